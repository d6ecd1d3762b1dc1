"""Post-dominators of a forward graph: the first op that every way out of an op runs through.

The graph has no cycles, so that one walk against the edges builds the tree: the immediate
post-dominator of an op is the least common ancestor, in the tree so far, of its users. Ancestors
are found by jump pointers, one a node, in O(log n) steps; every pointer carries the pattern of the
way that it skips.

Sources: TVM's `DominatorTree` (src/relay/transforms/fuse_ops.cc, to v0.18: least common ancestors
over a DAG); Myers, "An applicative random-access stack", 1983 (jump pointers).
"""

from __future__ import annotations

from collections.abc import Sequence

from loopnest.graph.passes.indexed_graph import ForwardGraph
from loopnest.graph.registry import Pattern


class PostDominators:
    """The post-dominator tree of a graph, whose root stands behind all outputs.

    Attributes:
        parents: the number of each op's immediate post-dominator; that of the root, `len(graph)`,
            for ops whose ways out do not meet before the graph ends, and for its outputs.
        patterns: the largest pattern of an edge on the ways from each op to its parent (OPAQUE to
            the root).
    """

    def __init__(self, graph: ForwardGraph) -> None:
        root = len(graph)
        self.root = root
        self.parents = [root] * (root + 1)
        self.patterns: list[Pattern] = [Pattern.OPAQUE] * (root + 1)
        self._depth = [0] * (root + 1)
        self._jump = [root] * (root + 1)
        self._jumped: list[Pattern] = [Pattern.OPAQUE] * (root + 1)
        # Users first: the tree holds all of an op's users, so that their common ancestor is known.
        for number in reversed(range(root)):
            # The value leaves the graph here: no later op stands on all ways out.
            if graph.outputs[number]:
                self._insert(number, root, Pattern.OPAQUE)
            else:
                self._insert(number, *self._meeting(graph.edges[number]))

    def _insert(self, number: int, parent: int, pattern: Pattern) -> None:
        if parent == self.root:
            pattern = Pattern.OPAQUE
        self.parents[number], self.patterns[number] = parent, pattern
        self._depth[number] = self._depth[parent] + 1
        far = self._jump[parent]
        even = (
            self._depth[parent] - self._depth[far]
            == self._depth[far] - self._depth[self._jump[far]]
        )
        if even:  # two jumps of one length make one of twice the length
            self._jump[number] = self._jump[far]
            self._jumped[number] = max(pattern, self._jumped[parent], self._jumped[far])
        else:
            self._jump[number], self._jumped[number] = parent, pattern

    def _meeting(self, users: Sequence[tuple[int, Pattern]]) -> tuple[int, Pattern]:
        """Return where the ways through all users meet, and the largest pattern until there."""
        meeting, pattern = users[0]
        for user, edge in users[1:]:
            meeting, climbed = self._common_ancestor(meeting, user)
            pattern = max(pattern, edge, climbed)
        return meeting, pattern

    def _common_ancestor(self, a: int, b: int) -> tuple[int, Pattern]:
        """Return the least common ancestor of two ops, and the largest pattern on the way up."""
        pattern = Pattern.ELEMWISE
        if self._depth[a] < self._depth[b]:
            a, b = b, a
        while self._depth[a] > self._depth[b]:
            if self._depth[self._jump[a]] >= self._depth[b]:
                a, pattern = self._jump[a], max(pattern, self._jumped[a])
            else:
                a, pattern = self.parents[a], max(pattern, self.patterns[a])
        while a != b:  # ops of one depth jump to one depth
            # Different behind the jump: the meeting lies beyond it. The same: it lies at the jump
            # or before it, and one step is taken.
            if self._jump[a] != self._jump[b]:
                pattern = max(pattern, self._jumped[a], self._jumped[b])
                a, b = self._jump[a], self._jump[b]
            else:
                pattern = max(pattern, self.patterns[a], self.patterns[b])
                a, b = self.parents[a], self.parents[b]
        return a, pattern
