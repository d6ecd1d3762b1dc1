"""The minimum cut of a network, by Dinic's algorithm, without recursion."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

INFINITE = 1 << 200
"""A capacity that no cut pays; capacities are ints of any size."""


def minimum_cut(
    count: int, edges: Iterable[tuple[int, int, int]], source: int, sink: int
) -> tuple[int, set[int]]:
    """Return the value of a minimum cut, and the smallest side of the source that has it.

    Args:
        count: the number of nodes, which are 0 .. count - 1.
        edges: (from, to, capacity).
        source: a node.
        sink: a node.

    >>> minimum_cut(4, [(0, 1, 3), (0, 2, 2), (1, 3, 2), (2, 3, 4), (1, 2, 1)], 0, 3)
    (5, {0})

    Source: Dinic, "Algorithm for solution of a problem of maximum flow in networks with power
    estimation", 1970.
    """
    network = _Network(count, edges)
    value = 0
    while True:
        level = network.levels(source)
        if level[sink] < 0:
            return value, {node for node in range(count) if level[node] >= 0}
        value += network.blocking_flow(level, source, sink)


class _Network:
    """Edges in pairs: edge e has e ^ 1 as its reverse, with what flows on it as capacity."""

    def __init__(self, count: int, edges: Iterable[tuple[int, int, int]]) -> None:
        self.out: list[list[int]] = [[] for _ in range(count)]
        self.to: list[int] = []
        self.left: list[int] = []
        for a, b, capacity in edges:
            self.out[a].append(len(self.to))
            self.out[b].append(len(self.to) + 1)
            self.to += [b, a]
            self.left += [capacity, 0]

    def levels(self, source: int) -> list[int]:
        """Return the distance of each node from the source over edges that have room, or -1."""
        level = [-1] * len(self.out)
        level[source] = 0
        queue = deque([source])
        while queue:
            node = queue.popleft()
            for edge in self.out[node]:
                if self.left[edge] and level[self.to[edge]] < 0:
                    level[self.to[edge]] = level[node] + 1
                    queue.append(self.to[edge])
        return level

    def blocking_flow(self, level: list[int], source: int, sink: int) -> int:
        """Send flow along shortest ways until each has a full edge; return how much."""
        following = [0] * len(self.out)
        path: list[int] = []
        node, total = source, 0
        while True:
            if node == sink:
                sent = min(self.left[edge] for edge in path)
                total += sent
                for edge in path:
                    self.left[edge] -= sent
                    self.left[edge ^ 1] += sent
                first = next(i for i, edge in enumerate(path) if not self.left[edge])
                node = self.to[path[first] ^ 1]
                del path[first:]
            elif following[node] < len(self.out[node]):
                edge = self.out[node][following[node]]
                ahead = self.to[edge]
                if self.left[edge] and level[ahead] == level[node] + 1:
                    path.append(edge)
                    node = ahead
                else:
                    following[node] += 1
            elif path:
                node = self.to[path.pop() ^ 1]
                following[node] += 1
            else:
                return total
