"""Walks over nodes, without recursion: graphs are thousands of nodes deep."""

from __future__ import annotations

from collections.abc import Iterable

from loopnest.graph.node import Node


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
