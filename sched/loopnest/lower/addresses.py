"""Pass, addresses: an access on the chip takes one flat offset where that needs less division.

Requires guarded statements. Ensures the same elements: a buffer whose axes were merged and split
again is indexed by quotients and remainders, which its strides mostly undo. GLOBAL accesses were
flattened at indexing; these wait for barriers, which are decided by one index a dimension.

Before: ``T7[(k * 64 + i) // 256, (k * 64 + i) % 256]``; after: ``T7.flat[k * 64 + i]``.
"""

from __future__ import annotations

from dataclasses import replace

from loopnest.buffers import Buffer
from loopnest.enums import Memory
from loopnest.expr import Expr, Load, Op, rewrite, walk
from loopnest.kir import Store, map_expressions
from loopnest.lower.tree import Guarded, Tree, TreeItem
from loopnest.simplify import Simplifier


def flatten_addresses(tree: Tree, algebra: Simplifier) -> Tree:
    """Return `tree` with flat offsets where they are cheaper."""

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Load) and not node.flat:
            offset = _flat(node.buffer, node.args, algebra)
            return None if offset is None else Load(node.buffer, (offset,), True)
        return None

    def item(node: TreeItem) -> TreeItem:
        if isinstance(node, Tree):
            return replace(node, body=tuple([item(i) for i in node.body]))
        if not isinstance(node, Guarded):
            return node
        made = [map_expressions(s, lambda value: rewrite(value, rule)) for s in node.statements]
        return replace(
            node,
            statements=tuple([_stored(s, algebra) if isinstance(s, Store) else s for s in made]),
        )

    return replace(tree, body=tuple([item(i) for i in tree.body]))


def _stored(node: Store, algebra: Simplifier) -> Store:
    offset = None if node.flat else _flat(node.storage, node.index, algebra)
    return node if offset is None else replace(node, index=(offset,), flat=True)


def _flat(buffer: Buffer, index: tuple[Expr, ...], algebra: Simplifier) -> Expr | None:
    if buffer.memory is Memory.GLOBAL or buffer.swizzle is not None or len(index) < 2:
        return None
    cost = sum(_divisions(i) for i in index)
    if not cost:
        return None
    terms = (algebra.mul(i, s) for i, s in zip(index, buffer.strides, strict=True))
    flat = algebra.sum(terms)
    return flat if _divisions(flat) < cost else None


def _divisions(value: Expr) -> int:
    return sum(1 for node in walk(value) if isinstance(node, Op) and node.op in ("floordiv", "mod"))
