"""Pass "addresses": an access on the chip takes one flat offset where that divides less.

Requires guarded statements. Ensures the same elements: a buffer whose axes were merged and split
again is indexed by quotients and remainders, which its strides mostly undo. GLOBAL accesses were
flattened at indexing; these wait for barriers, which are decided by one index a dimension.

Before: ``T7[(k * 64 + i) // 256, (k * 64 + i) % 256]``; after: ``T7.flat[k * 64 + i]``.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace

from loopnest.kir import Store, expressions, map_accesses
from loopnest.lowering.loops.guarded_tree import Tree, guarded_items, map_guarded
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import Buffer, Expr, Load, Op, loads, walk
from loopnest.scalar.simplify import Simplifier


def flatten_addresses(tree: Tree, algebra: Simplifier) -> Tree:
    """Return `tree` with flat offsets for all accesses of a buffer where they save divisions."""
    found: dict[Buffer, int] = {}
    for buffer, index in _accesses(tree):
        # A swizzle permutes indices along two dimensions, which an offset does not have; nor has it
        # a lane.
        if buffer.memory in (Memory.GLOBAL, Memory.WARP) or buffer.swizzles:
            continue
        now = sum(map(_divisions, index))
        if now or any(map(_divisions, buffer.strides)):  # else the offset has none either
            saved = now - _divisions(_offset(buffer, index, algebra))
            found[buffer] = found.get(buffer, 0) + saved
    chosen = {buffer for buffer, saved in found.items() if saved > 0}
    return _flattened(tree, chosen, algebra) if chosen else tree


def _accesses(tree: Tree) -> Iterator[tuple[Buffer, tuple[Expr, ...]]]:
    for item in guarded_items(tree):
        for node in item.statements:
            if isinstance(node, Store) and not node.flat:
                yield node.storage, node.index
            for value in expressions(node):
                yield from ((load.buffer, load.args) for load in loads(value) if not load.flat)


def _flattened(tree: Tree, chosen: Container[Buffer], algebra: Simplifier) -> Tree:
    def rule(node: Load) -> Load:
        if node.buffer in chosen and not node.flat:
            return Load(node.buffer, (_offset(node.buffer, node.args, algebra),), True)
        return node

    return map_guarded(
        tree,
        lambda item: replace(
            item, statements=tuple([map_accesses(s, rule) for s in item.statements])
        ),
    )


def _offset(buffer: Buffer, index: tuple[Expr, ...], algebra: Simplifier) -> Expr:
    return algebra.sum(algebra.mul(i, s) for i, s in zip(index, buffer.strides, strict=True))


def _divisions(value: Expr) -> int:
    if not value.args:
        return 0
    return sum(1 for node in walk(value) if isinstance(node, Op) and node.op in ("floordiv", "mod"))
