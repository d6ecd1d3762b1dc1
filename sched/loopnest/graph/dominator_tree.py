"""Dominators in a directed graph without cycles, a node at a time."""

from __future__ import annotations

from collections.abc import Iterable


class DominatorTree:
    """The dominator tree of nodes 0 .. count - 1, added in topological order under a root.

    Each node points to its parent and to one ancestor further up, so that two nodes meet in
    logarithmic time, however deep the tree.

    >>> tree = DominatorTree(4)
    >>> tree.add(0, ())
    >>> for node, before in ((1, [0]), (2, [0]), (3, [1, 2])):
    ...     tree.add(node, before)
    >>> tree.parent(3), tree.parent(0)
    (0, None)

    Source: Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm", 2001; Myers, "An
    Applicative Random-Access Stack", 1983 (the jumps).
    """

    def __init__(self, count: int) -> None:
        self._root = count
        self._parent = [count] * (count + 1)
        self._jump = [count] * (count + 1)
        self._depth = [0] * (count + 1)

    def add(self, node: int, before: Iterable[int]) -> None:
        """Add a node that is reached from nodes added before, or from the root if from none."""
        above: int | None = None
        for other in before:
            above = other if above is None else self._meet(above, other)
        top = self._root if above is None else above
        self._parent[node], self._depth[node] = top, self._depth[top] + 1
        jump = self._jump[top]
        even = (
            self._depth[top] - self._depth[jump]
            == self._depth[jump] - self._depth[self._jump[jump]]
        )
        self._jump[node] = self._jump[jump] if even else top

    def parent(self, node: int) -> int | None:
        """Return the nearest node that all ways to a node pass, or None for the root."""
        found = self._parent[node]
        return None if found == self._root else found

    def _meet(self, a: int, b: int) -> int:
        """Return the deepest node that dominates both."""
        depth, parent, jump = self._depth, self._parent, self._jump
        if depth[a] < depth[b]:
            a, b = b, a
        while depth[a] > depth[b]:
            a = jump[a] if depth[jump[a]] >= depth[b] else parent[a]
        while a != b:
            a, b = (jump[a], jump[b]) if jump[a] != jump[b] else (parent[a], parent[b])
        return a
