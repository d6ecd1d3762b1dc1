"""Where in the user's code the nodes of a graph were made, for errors: a table beside the nodes.

A node that a pass makes of another has the place of that one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from weakref import WeakKeyDictionary

from loopnest.graph.node import Node
from loopnest.scalar.origin import Origin, caller

_ORIGINS: WeakKeyDictionary[Node, Origin] = WeakKeyDictionary()
_CURRENT: ContextVar[Origin | None] = ContextVar("origin of new nodes", default=None)


def origin_of(node: Node) -> Origin | None:
    """Return where a node was made; None where that is not known, as of one that was unpickled."""
    return _ORIGINS.get(node)


def keep_origin(node: Node, like: Node | None = None) -> Node:
    """Give a node the place of another one, else that of the call that leads here; return it."""
    found = None if like is None else _ORIGINS.get(like)
    _ORIGINS[node] = found or _CURRENT.get() or caller()
    return node


@contextmanager
def made_for(origin: Origin | None) -> Iterator[None]:
    """Let nodes that are made while it is entered have a place; None changes nothing."""
    if origin is None:
        yield
        return
    token = _CURRENT.set(origin)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def place_of(node: Node) -> str:
    """Return `` made at FILE:LINE``, or nothing where that is not known."""
    found = origin_of(node)
    return "" if found is None or not found.line else f" made at {found}"


def postorder(roots: Iterable[Node]) -> list[Node]:
    """Return every node that `roots` reach, once, operands before their users.

    The order follows from the structure alone: roots in turn, operands left to right.
    """
    order: list[Node] = []
    seen: set[Node] = set()
    for root in roots:
        stack = [(root, False)]
        while stack:
            node, done = stack.pop()
            if done:
                order.append(node)
            elif node not in seen:
                seen.add(node)
                stack.append((node, True))
                stack += [(operand, False) for operand in reversed(node.inputs)]
    return order
