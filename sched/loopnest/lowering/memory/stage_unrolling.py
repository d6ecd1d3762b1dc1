"""Unrolls the loops that circular buffers in registers rotate through, by their stages.

A register has no address: the stage that an iteration reads must be known where it is printed. For
the loop over k, and stages whose least common multiple is s::

    for k: { T[(k + 1) % 2] = x[k + 1]; y += T[k % 2] }
    for o in ceildiv(K, 2):
      for u in 2:  # unroll
        if o * 2 + u < K: { T[(u + 1) % 2] = x[o * 2 + u + 1]; y += T[u] }
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from loopnest.base.errors import LoweringError
from loopnest.kir import Arrive, Collective, Commit, Shuffle, Wait, map_expressions
from loopnest.lowering.loops.guarded_tree import (
    Guarded,
    PredicateTerm,
    Rename,
    Tree,
    TreeItem,
    guarded,
)
from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import Const, Expr, Index, integer, rewrite, substitute
from loopnest.scalar.simplify import Simplifier
from loopnest.tensor.tensor_view import TensorView

FAR_AHEAD = "an iteration that far ahead exists"

MOST_COPIES = 64
"""How many copies of a loop's body may be printed."""


def far_ahead(tensor: TensorView) -> str:
    """Return why what runs ahead for a tensor is tested."""
    return f"{tensor.name}: {FAR_AHEAD}"


def unroll_stages(
    tree: Tree, turns: Mapping[Index, Sequence[TensorView]], algebra: Simplifier
) -> Tree:
    """Return `tree` with loops unrolled by the stages of the tensors that rotate through them.

    Raises:
        LoweringError: the stages of several tensors have a common multiple that is too large, or
            threads reduce together in a loop in which not every unrolled iteration exists.
    """
    body: list[TreeItem] = []
    for item in tree.body:
        if not isinstance(item, Tree):
            body.append(item)
            continue
        inner = unroll_stages(item, turns, algebra)
        tensors = turns.get(item.var) if item.var is not None else None
        body.append(inner if tensors is None else _unrolled(inner, tensors, algebra))
    return replace(tree, body=tuple(body))


def _unrolled(loop: Tree, tensors: Sequence[TensorView], algebra: Simplifier) -> Tree:
    assert loop.var is not None
    assert loop.spec is not None
    names = ", ".join([t.name for t in tensors])
    count = math.lcm(*[t.layout.stages for t in tensors])
    if count > MOST_COPIES:
        raise LoweringError(
            names,
            f"circular buffers in registers unroll the loop over {loop.var} by {count}, a common "
            "multiple of their stages",
            f"use numbers of stages with a common multiple of at most {MOST_COPIES}",
        )
    extent = loop.var.extent
    short = isinstance(extent, Const) and int(extent.value) <= count
    turn = extent if short else integer(count)
    inner = Index(loop.var.name, turn)
    outer = Index(loop.var.name, algebra.ceildiv(extent, turn))
    now: Expr = inner if short else algebra.add(algebra.mul(outer, turn), inner)
    terms: tuple[PredicateTerm, ...] = ()
    if not short and not algebra.divides(turn, extent):
        _require_no_exchange(loop, names, count)
        reason = f"{names}: the loop is unrolled by {count} stages"
        terms = (PredicateTerm(algebra.lt(now, extent), reason),)
    tested = {far_ahead(t) for t in tensors}
    move = _Moved(loop.var, now, terms, tested, algebra.simplify)
    moved = [move.item(item) for item in loop.body]
    spec = replace(loop.spec, extent=turn, parallel=ParallelType.unroll)
    unrolled = replace(loop, var=inner, spec=spec, body=tuple(moved))
    if short:
        return unrolled
    return replace(loop, var=outer, spec=replace(loop.spec, extent=outer.extent), body=(unrolled,))


def _require_no_exchange(loop: Tree, names: str, count: int) -> None:
    if any(_exchanges(tree) for tree in (loop, *_trees(loop))):
        raise LoweringError(
            names,
            f"its circular buffer in registers unrolls the loop over {loop.var}, in which threads "
            f"reduce together, by {count}, which is not known to divide its extent",
            "assume that it divides, use other numbers of stages, or SHARED memory",
        )


def _exchanges(tree: Tree) -> bool:
    """Whether threads or blocks exchange values, by names that a test would hide from others."""
    direct = [item for item in tree.body if isinstance(item, Guarded)]
    named = any(
        isinstance(s, (Shuffle, Arrive, Commit)) for item in direct for s in item.statements
    )
    return named or isinstance(tree.header, (Collective, Wait))


def _trees(tree: Tree) -> Iterator[Tree]:
    for item in tree.body:
        if isinstance(item, Tree):
            yield item
            yield from _trees(item)


@dataclass(frozen=True, slots=True)
class _Moved:
    """Puts `now` in the place of a loop index, under `terms` where no reason of `tested` stands."""

    var: Index
    now: Expr
    terms: tuple[PredicateTerm, ...]
    tested: Collection[str]
    simplify: Rename

    def item(self, item: TreeItem) -> TreeItem:
        if isinstance(item, Tree):
            header = None if item.header is None else map_expressions(item.header, self.value)
            body = tuple([self.item(inner) for inner in item.body])
            return replace(item, body=body, header=header)
        # What runs ahead in this loop is tested as of a later iteration.
        ahead = isinstance(item, Guarded) and any(t.reason in self.tested for t in item.terms)
        return guarded(item, self.value, lambda node: node, () if ahead else self.terms)

    def value(self, value: Expr) -> Expr:
        moved = substitute(value, {self.var: self.now})
        return moved if moved is value else simplified(moved, self.simplify)


def simplified(value: Expr, simplify: Rename) -> Expr:
    """Return `value` with its index expressions simplified."""

    def rule(node: Expr) -> Expr | None:
        return simplify(node) if node.dtype.name == "index" else None

    return rewrite(value, rule)
