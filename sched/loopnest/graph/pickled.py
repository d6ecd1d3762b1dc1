"""Pickles of nodes: a node and all that it is computed from as one table, a row a node.

A pickle that went from node to operand would end at Python's limit of recursion. Nodes that stand
in one pickle stay related: as long as a table is being pickled, a node that it has is pickled as a
row of it, and other tables refer to that node.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from operator import getitem
from typing import Any
from weakref import WeakValueDictionary

from loopnest.base.pickling import STAMP
from loopnest.graph.node import Node
from loopnest.graph.registry import call


class _Open(threading.local):
    """The tables that are in use, by the identity of each of their nodes."""

    def __init__(self) -> None:
        self.tables: WeakValueDictionary[int, Table] = WeakValueDictionary()


_OPEN = _Open()


class Table:
    """A node and what it is computed from, operands first; it is loaded as the tuple of them."""

    __slots__ = ("__weakref__", "foreign", "place")

    def __init__(self, root: Node) -> None:
        self.place: dict[Node, int] = {}
        self.foreign: set[Node] = set()
        """The nodes that are rows of other tables."""
        stack = [(root, False)]
        while stack:
            node, done = stack.pop()
            if node in self.place:
                continue
            if id(node) in _OPEN.tables:
                self.foreign.add(node)
            if done or node in self.foreign:
                self.place[node] = len(self.place)
            else:
                stack.append((node, True))
                stack += [(operand, False) for operand in reversed(node.inputs)]
        _OPEN.tables.update({id(node): self for node in self.place if node not in self.foreign})

    def __reduce__(self) -> tuple[Callable[..., tuple[Node, ...]], tuple[object, ...]]:
        return _nodes, (STAMP, *map(self._row, self.place))

    def _row(self, node: Node) -> object:
        if node in self.foreign:
            return node
        inputs = [self.place[operand] for operand in node.inputs]
        return node.op, inputs, dict(node.attrs), node.name


def _nodes(_: object, *rows: Any) -> tuple[Node, ...]:
    made: list[Node] = []
    for row in rows:
        if isinstance(row, Node):
            made.append(row)
        else:
            op, inputs, attrs, name = row
            made.append(call(op, [made[number] for number in inputs], attrs, name))
    return tuple(made)


def pickled(node: Node) -> tuple[Callable[..., Node], tuple[object, int]]:
    """Return what a node is pickled as: a table, and the node's place in it."""
    table = _OPEN.tables.get(id(node))
    if table is None:
        table = Table(node)
    return getitem, (table, table.place[node])
