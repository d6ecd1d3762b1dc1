"""Which statements of the nest are copies in flight: those of tensors that an instruction moves.

What stores such a tensor is issued, as a whole where nothing else stands in its loops. Where no
circular buffer waits for it later, it is waited for at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import replace

from loopnest.base.errors import LoweringError
from loopnest.kir import Allocate, Commit, Issue, Store, Wait
from loopnest.lowering.loops.guarded_tree import Guarded, Tree, TreeItem, fresh
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import Load

LEAST_BYTES = 4
"""How many bytes a copy in flight moves at least; 8 or 16 are the others."""

COMMIT = Guarded((Commit(),), ())
"""Closes a group of copies."""


def issue_moves(tree: Tree, moves: Mapping[str, str]) -> Tree:
    """Return `tree` with the stores of tensors issued that an instruction moves.

    Args:
        tree: the nest with guarded statements.
        moves: name of a tensor -> name of the instruction.
    """
    if not moves:
        return tree
    return replace(tree, body=tuple([_issued(item, moves) for item in tree.body]))


def _issued(item: TreeItem, moves: Mapping[str, str]) -> TreeItem:
    stored = list(dict.fromkeys(stored_tensors(item)))
    if len(stored) == 1 and stored[0] in moves:
        _require_copies(item, moves[stored[0]])
        return Tree(None, None, (item,), Issue(moves[stored[0]], ()))
    if isinstance(item, Tree):
        return replace(item, body=tuple([_issued(inner, moves) for inner in item.body]))
    return item


def _require_copies(item: TreeItem, name: str) -> None:
    """Refuse stores of what is in registers, or computed: a later call may have put it there.

    Raises:
        LoweringError: there is one.
    """
    for inner in item.body if isinstance(item, Tree) else ():
        _require_copies(inner, name)
    for node in item.statements if isinstance(item, Guarded) else ():
        value = node.value if isinstance(node, Store) else None
        if isinstance(node, Store) and not (
            isinstance(value, Load) and value.buffer.memory is Memory.GLOBAL
        ):
            raise LoweringError(
                node.tensor,
                f"it is moved by {name}, from GLOBAL memory, and is stored {value}",
                "let it copy an input, or a tensor in GLOBAL memory, and compute from it",
            )


def stored_tensors(item: TreeItem) -> Iterator[str]:
    """Yield the names of tensors that the statements of an item store."""
    if isinstance(item, Tree):
        for inner in item.body:
            yield from stored_tensors(inner)
    elif isinstance(item, Guarded):
        yield from (s.tensor for s in item.statements if isinstance(s, Store))


def complete_moves(tree: Tree, names: Set[str]) -> Tree:
    """Return `tree` with a Commit and a Wait behind what was issued of some tensors."""
    if not names:
        return tree
    made: list[TreeItem] = []
    landing: list[TreeItem] = []
    for item in tree.body:
        issued = isinstance(item, Tree) and isinstance(item.header, Issue)
        issued = issued and not names.isdisjoint(stored_tensors(item))
        if landing and not issued and not isinstance(item, Allocate):
            made += _completed(landing)
            landing = []
        if issued:
            landing.append(item)
        made.append(complete_moves(item, names) if isinstance(item, Tree) else item)
    return replace(tree, body=(*made, *(_completed(landing) if landing else ())))


def _completed(landing: list[TreeItem]) -> list[TreeItem]:
    """Return what waits for copies at once."""
    return [COMMIT, Tree(None, None, tuple([fresh(item, {}) for item in landing]), Wait(0))]
