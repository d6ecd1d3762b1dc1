"""Which values to keep from the forward for the backward: the fewest operations under a budget.

A value that the backward needs is either kept, which takes its bytes, or computed again, which
takes its operations and needs its operands in turn. Without a budget, and for any price of an
operation in bytes, the best choice is a minimum cut: polynomial and exact. Under a budget it is a
knapsack. Cuts at the right prices then give a lower bound and a choice near it; if a gap is left, a
search over all choices closes it, as long as the values that are open at one time are few.

Sources: Picard, "Maximal closure of a graph", 1976 (choices with consequences as cuts); Everett,
"Generalized Lagrange multiplier method", 1963 (budgets as prices).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TypeAlias

_LIMIT = 200_000
"""The search gives up after so many partial choices."""
_REMEMBERED = 16
"""Sets of up to so many values are remembered by `closed_flops`."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Values by number, operands before users.

    Attributes:
        operands: of each value, those that are values here too (the others cost nothing).
        flops: the operations of each.
        bytes: the size of each.
        keepable: whether it can be kept.
        required: those that are needed in any case.
    """

    operands: Sequence[Sequence[int]]
    flops: Sequence[int]
    bytes: Sequence[int]
    keepable: Sequence[bool]
    required: frozenset[int]


@dataclass(frozen=True, slots=True)
class StashChoice:
    """What to keep, and what that costs.

    Attributes:
        kept: the values that are kept and needed.
        computed: those that are computed again.
        bytes: of what is kept.
        flops: of what is computed again.
        method: "minimum cut", "search" or "heuristic".
        least: a bound: no choice within the budget has fewer operations.
    """

    kept: frozenset[int]
    computed: frozenset[int]
    bytes: int
    flops: int
    method: str
    least: int

    @property
    def exact(self) -> bool:
        """Whether it is known that no choice has fewer operations."""
        return self.flops == self.least


def choose(problem: Problem, budget: int | None) -> StashChoice:
    """Return the choice with the fewest operations among those within a budget of bytes.

    Without a budget, and by search, it is also the one with the fewest bytes of these.
    """
    full = _cut(problem, flops=sum(problem.bytes) + 1, bytes_=1)
    if budget is None or full.bytes <= budget:
        return _named(full, "minimum cut", full.flops)
    best, least = _priced(problem, full, budget)
    best = _filled(problem, best, full.kept, budget)
    if best.flops == least:
        return _named(best, "minimum cut", least)
    found = _searched(problem, best.flops, budget)
    if found is None:
        return _named(best, "heuristic", least)
    exact = evaluate(problem, found)
    return _named(exact, "search", exact.flops)


def evaluate(problem: Problem, kept: Iterable[int]) -> StashChoice:
    """Return the cost of keeping some values, without those that the backward does not need."""
    wanted = frozenset(kept)
    pending, seen = list(problem.required), set(problem.required)
    while pending:
        value = pending.pop()
        if value not in wanted:
            fresh = [x for x in problem.operands[value] if x not in seen]
            seen.update(fresh)
            pending += fresh
    held, computed = frozenset(seen & wanted), frozenset(seen - wanted)
    size, work = sum(problem.bytes[i] for i in held), sum(problem.flops[i] for i in computed)
    return StashChoice(held, computed, size, work, "", work)


def _named(choice: StashChoice, method: str, least: int) -> StashChoice:
    return StashChoice(choice.kept, choice.computed, choice.bytes, choice.flops, method, least)


def _cut(problem: Problem, flops: int, bytes_: int) -> StashChoice:
    """Return the choice of least cost, at a price for an operation and one for a byte kept.

    Of choices of equal cost, the one that keeps the values nearest to the backward.
    """
    count = len(problem.flops)
    source, sink = 2 * count, 2 * count + 1
    edges = [(source, 2 * i, INFINITE) for i in sorted(problem.required)]
    for i in range(count):
        keep = bytes_ * problem.bytes[i] if problem.keepable[i] else INFINITE
        edges += [(2 * i, 2 * i + 1, keep), (2 * i + 1, sink, flops * problem.flops[i])]
        edges += [(2 * i + 1, 2 * x, INFINITE) for x in problem.operands[i]]
    _, side = minimum_cut(2 * count + 2, edges, source, sink)
    kept = [i for i in range(count) if 2 * i in side and 2 * i + 1 not in side]
    return evaluate(problem, kept)


def _priced(problem: Problem, over: StashChoice, budget: int) -> tuple[StashChoice, int]:
    """Return the best choice within the budget that is best at some price, and a lower bound.

    `over` is beyond the budget, `under` within it; each cut is at the price at which both cost the
    same, until no choice costs less: then they are neighbours on the hull of all choices.
    """
    under = evaluate(problem, ())
    while True:
        dearer, fewer = over.bytes - under.bytes, under.flops - over.flops
        found = _cut(problem, flops=dearer, bytes_=fewer)
        if _total(found, dearer, fewer) >= _total(over, dearer, fewer):
            break
        if found.bytes <= budget:
            under = found
        else:
            over = found
    spare = (budget - under.bytes) * fewer
    return under, under.flops - spare // dearer


def _total(choice: StashChoice, flops: int, bytes_: int) -> int:
    return choice.flops * flops + choice.bytes * bytes_


def _filled(problem: Problem, choice: StashChoice, more: Iterable[int], budget: int) -> StashChoice:
    """Return `choice` with further values kept, those first that save most for a byte."""
    saved = _savings(problem, choice)
    open_ = [v for v in sorted(choice.computed | set(more)) if problem.keepable[v]]
    small = [v for v in open_ if problem.bytes[v] + choice.bytes <= budget]
    needs = _Needs(problem, choice)
    for value in sorted(small, key=lambda v: saved[v] / max(problem.bytes[v], 1), reverse=True):
        needs.keep(value, budget)
    return evaluate(problem, needs.kept)


def _savings(problem: Problem, choice: StashChoice) -> list[int]:
    """Return the operations that keeping each value alone, beside those of a choice, would save.

    That are its own and those of all that is computed for it alone: what it dominates on the ways
    from the required values to their operands.
    """
    count = len(problem.flops)
    users: list[list[int]] = [[] for _ in range(count)]
    for user in choice.computed:
        for operand in problem.operands[user]:
            users[operand].append(user)
    tree = DominatorTree(count)
    saved = [0] * count
    for value in reversed(range(count)):
        if value in problem.required:
            tree.add(value, ())
        elif users[value]:
            tree.add(value, users[value])
    for value in sorted(choice.computed):  # operands first: those are lower in the tree
        saved[value] += problem.flops[value]
        above = tree.parent(value)
        if above is not None:
            saved[above] += saved[value]
    return saved


class _Needs:
    """What is needed while values are kept one after the other, by counts of users."""

    def __init__(self, problem: Problem, choice: StashChoice) -> None:
        self.problem = problem
        self.kept, self.computed, self.bytes = set(choice.kept), set(choice.computed), choice.bytes
        self.users = [int(i in problem.required) for i in range(len(problem.flops))]
        for user in choice.computed:
            for operand in problem.operands[user]:
                self.users[operand] += 1

    def keep(self, value: int, budget: int) -> None:
        """Keep a value if that saves operations, or bytes for the same, within the budget."""
        if value not in self.computed:
            return
        problem, dropped, touched = self.problem, [], []
        pending = list(problem.operands[value])
        while pending:
            operand = pending.pop()
            touched.append(operand)
            self.users[operand] -= 1
            if not self.users[operand]:
                dropped.append(operand)
                if operand in self.computed:
                    pending += problem.operands[operand]
        freed = self.kept.intersection(dropped)
        size = self.bytes + problem.bytes[value] - sum(problem.bytes[x] for x in freed)
        less = problem.flops[value] + sum(problem.flops[x] for x in dropped if x not in freed)
        if size <= budget and (-less, size) < (0, self.bytes):
            self.kept = (self.kept - freed) | {value} if freed else self.kept
            self.kept.add(value)
            self.computed.difference_update(dropped, (value,))
            self.bytes = size
        else:
            for operand in touched:
                self.users[operand] += 1


def closed_flops(problem: Problem) -> list[int]:
    """Return the operations of each value with all that it needs, if nothing is kept.

    What a set of values needs is the last of them and what the rest and its operands need. These
    sets are remembered, so that a walk ends where another has been: at the end of a layer.
    """
    known: dict[frozenset[int], int] = {frozenset(): 0}
    found: list[int] = []
    for value in range(len(problem.flops)):
        trail, end, work = _walked(problem, value, known)
        total = known[end] + work
        found.append(total)
        for state, before in trail:
            known[state] = total - before
    return found


def _walked(
    problem: Problem, value: int, known: Mapping[frozenset[int], int]
) -> tuple[list[tuple[frozenset[int], int]], frozenset[int], int]:
    """Walk from a value over what it needs, last first, until the rest is a set that is known.

    Returns:
        The small sets on the way, each with the operations before it; the known set; and the
        operations before that.
    """
    trail: list[tuple[frozenset[int], int]] = []
    rest, heap, work = {value}, [-value], 0
    while True:
        if len(rest) <= _REMEMBERED:
            state = frozenset(rest)
            if state in known:
                return trail, state, work
            trail.append((state, work))
        last = -heappop(heap)
        rest.remove(last)
        work += problem.flops[last]
        for operand in problem.operands[last]:
            if operand not in rest:
                rest.add(operand)
                heappush(heap, -operand)


_Kept: TypeAlias = "tuple[int, _Kept] | None"
_Partial: TypeAlias = tuple[int, int, _Kept]
"""Bytes, operations and what is kept (a linked list) of a choice for the values seen so far."""


def _searched(problem: Problem, most: int, budget: int) -> list[int] | None:
    """Return what the best of all choices keeps; None if there are too many.

    Values are decided users first. What matters of the decisions so far is which of the other
    values they need, and for each such set only choices that no other beats in both costs.
    """
    open_ = sum(1 << i for i in problem.required)
    states: dict[int, list[_Partial]] = {open_: [(0, 0, None)]}
    visited = 0
    for value in reversed(range(len(problem.flops))):
        following: dict[int, list[_Partial]] = {}
        for needed, partials in states.items():
            if not needed >> value & 1:
                following.setdefault(needed, []).extend(partials)
                continue
            rest = needed & ~(1 << value)
            inner = rest | sum(1 << x for x in set(problem.operands[value]))
            size, work = problem.bytes[value], problem.flops[value]
            for used, spent, kept in partials:
                if problem.keepable[value] and used + size <= budget:
                    following.setdefault(rest, []).append((used + size, spent, (value, kept)))
                if spent + work <= most:
                    following.setdefault(inner, []).append((used, spent + work, kept))
        states = {needed: _undominated(found) for needed, found in following.items()}
        visited += sum(map(len, states.values()))
        if visited > _LIMIT:
            return None
    _, _, kept = min(states[0], key=lambda partial: (partial[1], partial[0]))
    found: list[int] = []
    while kept is not None:
        found.append(kept[0])
        kept = kept[1]
    return found


def _undominated(partials: list[_Partial]) -> list[_Partial]:
    best: list[_Partial] = []
    for partial in sorted(partials, key=lambda p: p[:2]):
        if not best or partial[1] < best[-1][1]:
            best.append(partial)
    return best


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
