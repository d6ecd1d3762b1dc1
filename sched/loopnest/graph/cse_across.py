"""Common subexpressions of a forward and a backward graph: kept by one, read by the other.

The backward of ``y = tanh(x)`` is ``(1 - tanh(x) * tanh(x)) * dy``: it computes again what the
forward has computed. Here the largest expressions that both compute become outputs of the forward
and inputs (placeholders) of the backward. Which of them is a choice between memory and work
(`choose`), and a `Ledger` says what each value would cost either way.

Source: TVM's RFC "CSE Optimization" (discuss.tvm.apache.org/t/8130), steps Analysis, Transform
(Forward), Transform (Backward), and its `AutoInliner`, without which index maps hide that
expressions are equal.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TypeAlias

from loopnest.base.errors import kind_of
from loopnest.base.gc_pause import paused
from loopnest.graph.cost import bytes_of, flops
from loopnest.graph.dimensions import typical
from loopnest.graph.graph_error import GraphError
from loopnest.graph.leaves import var
from loopnest.graph.node import LEAVES, Node, describe
from loopnest.graph.passes.auto_inline import inlined
from loopnest.graph.passes.numbering import Numbering
from loopnest.graph.program import Graph
from loopnest.graph.registry import short
from loopnest.graph.rewriting import substitute
from loopnest.graph.state import assignments, check_state, has_state, is_pure

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


@dataclass(frozen=True, slots=True)
class Candidate:
    """A value that the forward computes and the backward needs: keep it, or compute it again.

    Attributes:
        node: the node of the forward.
        bytes: what keeping it takes.
        flops: the operations that computing it from the backward's own inputs takes, if nothing
            is kept.
        stashed: whether it is kept.
        name: of the backward's input that the kept value becomes; "" if it is not kept.
        recomputed: the operations that its own op costs in the new backward; 0 if it is kept or
            no longer needed.
        is_output: whether the forward returned it anyway, so that keeping it takes no new memory.
    """

    node: Node
    bytes: int
    flops: int
    stashed: bool
    name: str
    recomputed: int
    is_output: bool


@dataclass(frozen=True, slots=True)
class Ledger:
    """What was kept, what is computed again, and what each value would have cost.

    Attributes:
        candidates: the values that both graphs compute, in the order of the forward (those that
            cost no operation are never kept and left out).
        stash_bytes: the budget; None for none.
        bytes_stashed: the bytes of what is kept.
        flops_recomputed: the operations by which the new backward computes again what the forward
            had computed.
        flops_before: the same of the backward as it was, each value counted once.
        method: "minimum cut" (exact), "search" (exact, over all choices) or "heuristic".
        least_flops: no choice within the budget recomputes fewer operations.
        unread: inputs of the backward that it no longer reads.

    A ledger is a sequence of its candidates; its text is a table.
    """

    candidates: tuple[Candidate, ...]
    stash_bytes: int | None
    bytes_stashed: int
    flops_recomputed: int
    flops_before: int
    method: str
    least_flops: int
    unread: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Whether no choice within the budget recomputes less."""
        return self.flops_recomputed == self.least_flops

    @property
    def stashed(self) -> tuple[Candidate, ...]:
        """What is kept, in the order of the new outputs and of the new inputs."""
        return tuple([each for each in self.candidates if each.stashed])

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self.candidates)

    def __len__(self) -> int:
        return len(self.candidates)

    def __getitem__(self, number: int) -> Candidate:
        return self.candidates[number]

    def __str__(self) -> str:
        rows = [("value", "type", "bytes", "flops", "recomputed", "kept as")]
        for each in self.candidates:
            numbers = (str(each.bytes), str(each.flops), str(each.recomputed))
            rows.append((describe(each.node), str(each.node.type), *numbers, each.name or "-"))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        budget = "no budget" if self.stash_bytes is None else f"of {self.stash_bytes}"
        lines.append(
            f"{self.bytes_stashed} bytes stashed ({budget}), {self.flops_recomputed} flops "
            f"recomputed of {self.flops_before}; {self.method}"
            + ("" if self.exact else f", at least {self.least_flops}")
        )
        return "\n".join(lines)


def cse(
    forward: Graph,
    backward: Graph,
    stash_bytes: int | None = None,
    *,
    inline: bool = True,
    sizes: Mapping[str, int] | None = None,
) -> tuple[Graph, Graph, Ledger]:
    """Let the backward read what the forward has computed already.

    The largest common subexpressions become further outputs of the forward, behind its own, and
    further inputs of the backward, behind its own, in the same order. Nothing else changes in the
    ends of either; with nothing to keep, the same objects come back. Inputs of one name are one
    tensor. Values that depend on state which the forward assigns are not common.

    Args:
        forward: the forward graph.
        backward: the backward graph; whether the two share nodes does not matter.
        stash_bytes: how many bytes may be kept; None for any number.
        inline: whether index maps are composed first (`AutoInline`) where that makes more common;
            inputs of the backward may then be other nodes of the same names.
        sizes: what sizes of the graphs are taken for where bytes and operations are counted; those
            left out count as 64.

    Returns:
        The forward, the backward, and the `Ledger`. Among the choices within the budget it is the
        one by which the backward computes the fewest operations again (`Ledger.exact` says whether
        that is certain).

    Raises:
        GraphError: an argument of another kind, a negative budget, or inputs of one name and
            different types.

    >>> from loopnest.graph import gradient, tanh
    >>> x, dy = var("x", (4,)), var("dy", (4,))
    >>> y = tanh(x)
    >>> forward = Graph([x], [y], "forward")
    >>> backward = Graph([x, dy], gradient(y, [x], dy), "backward")
    >>> forward, backward, ledger = cse(forward, backward)
    >>> print(ledger)
    value    type        bytes  flops  recomputed  kept as
    tanh(x)  float32[4]  16     40     0           stash0
    16 bytes stashed (no budget), 0 flops recomputed of 40; minimum cut
    >>> [x.name for x in backward.inputs], forward.outputs
    (['x', 'dy', 'stash0'], (<tanh(x): float32[4]>, <tanh(x): float32[4]>))
    """
    _check(forward, backward, stash_bytes)
    with paused():
        best = _Common(forward, backward, stash_bytes, sizes)
        for pair in _variants(forward, backward) if inline else ():
            other = _Common(*pair, stash_bytes, sizes)
            if other.cost < best.cost:
                best = other
        return best.rewritten()


def _check(forward: Graph, backward: Graph, stash_bytes: object) -> None:
    for graph in (forward, backward):
        if not isinstance(graph, Graph):
            raise GraphError("cse(…)", f"it was given {kind_of(graph)}", "pass G.Graphs")
        check_state(graph)
    subject = f"cse({forward.name}, {backward.name})"
    number = -1 if isinstance(stash_bytes, bool) else stash_bytes
    if stash_bytes is not None and not (isinstance(number, int) and number >= 0):
        raise GraphError(
            subject, f"stash_bytes is {short(stash_bytes)}", "give bytes >= 0, or None"
        )
    known = {x.name: x for x in forward.inputs}
    for x in backward.inputs:
        other = known.get(x.name, x)
        if other.type != x.type:
            reason = f"the input {x.name} is {other.type} of one and {x.type} of the other"
            raise GraphError(subject, reason, "inputs of one name are one tensor")


def _variants(forward: Graph, backward: Graph) -> list[tuple[Graph, Graph]]:
    """Return the pair with the backward inlined, and with both inlined; none if nothing changes."""
    own = {x.name: x for x in forward.inputs}
    same = {x: own[x.name] for x in backward.inputs if x.name in own}
    inputs = [same.get(x, x) for x in backward.inputs]
    outputs = substitute(backward.outputs, same)
    joined = Graph(list(dict.fromkeys([*forward.inputs, *inputs])), [*forward.outputs, *outputs])
    short = inlined(joined)
    if short is joined:
        return []
    count = len(forward.outputs)
    new_backward = backward.changed(inputs, short.outputs[count:])
    new_forward = forward.changed(forward.inputs, short.outputs[:count])
    return [(forward, new_backward), (new_forward, new_backward)]


class _Common:
    """What a forward and a backward have in common, and the choice of what to keep."""

    def __init__(
        self,
        forward: Graph,
        backward: Graph,
        budget: int | None,
        sizes: Mapping[str, int] | None,
    ) -> None:
        self.forward, self.backward, self.budget = forward, backward, budget
        self.sizes = sizes
        self.numbers = Numbering()
        self.numbers.add([*forward.nodes, *backward.nodes])
        self.sources = self._sources()
        self.values: list[Node] = []
        self.problem = self._problem()
        self.choice = choose(self.problem, budget)

    @property
    def cost(self) -> tuple[int, int]:
        """Operations of the new backward, and bytes kept: what variants are compared by."""
        inside = set(self.values)
        own: dict[int, int] = {}
        for node in self.backward.nodes:
            if node not in inside and self.numbers[node] not in own:
                own[self.numbers[node]] = typical(flops(node), self.sizes)
        shared = {self.numbers[node] for node in self.values}
        rest = sum(work for number, work in own.items() if number not in shared)
        return rest + self.choice.flops, self.choice.bytes

    def _sources(self) -> dict[int, Node]:
        """Return the forward's nodes whose values can be kept, by number, the first of each."""
        assigned = {node.attrs["variable"] for node in assignments(self.forward)}
        unfit: set[Node] = set()
        found: dict[int, Node] = {}
        for node in self.forward.nodes:
            if _unfit(node, assigned) or not unfit.isdisjoint(node.inputs):
                unfit.add(node)
            elif node.op not in LEAVES and not node.is_tuple:
                found.setdefault(self.numbers[node], node)
        return found

    def _problem(self) -> Problem:
        """Return the choice as a problem on numbers; `values` are the backward's nodes of them."""
        nodes: dict[int, Node] = {}
        for node in self.backward.nodes:
            nodes.setdefault(self.numbers[node], node)
        required, inner = self._needed(nodes)
        order = [number for number in nodes if number in inner]
        place = {number: i for i, number in enumerate(order)}
        self.values = [nodes[number] for number in order]
        operands = [
            sorted({place[self.numbers[x]] for x in node.inputs if self.numbers[x] in place})
            for node in self.values
        ]
        return Problem(
            operands,
            [typical(flops(node), self.sizes) for node in self.values],
            [typical(bytes_of(node.type), self.sizes) for node in self.values],
            [number in self.sources for number in order],
            frozenset(place[number] for number in required),
        )

    def _needed(self, nodes: dict[int, Node]) -> tuple[set[int], set[int]]:
        """Return the numbers that the rest of the backward reads, and all that they reach."""
        required: set[int] = set()
        inner: set[int] = set()
        pending = [(self.numbers[x], False) for x in self.backward.outputs]
        seen = set(pending)
        while pending:
            number, below = pending.pop()
            if nodes[number].op in LEAVES:
                continue
            if not below and number in self.sources:
                required.add(number)
            below = below or number in self.sources
            if below:
                inner.add(number)
            following = {(self.numbers[x], below) for x in nodes[number].inputs} - seen
            seen |= following
            pending += following
        return required, inner

    def rewritten(self) -> tuple[Graph, Graph, Ledger]:
        """Return the graphs with what is kept as outputs and inputs, and the ledger."""
        candidates = self._candidates()
        kept = [each for each in candidates if each.stashed]
        places = {self.numbers[each.node]: _placeholder(each) for each in kept}
        if not kept:
            return self.forward, self.backward, self._ledger(candidates, self.backward)
        replaced = {
            node: places[self.numbers[node]]
            for node in self.backward.nodes
            if self.numbers[node] in places
        }
        inputs = [*self.backward.inputs, *places.values()]
        backward = self.backward.changed(inputs, substitute(self.backward.outputs, replaced))
        forward = self.forward.with_outputs([*self.forward.outputs, *[each.node for each in kept]])
        return forward, backward, self._ledger(candidates, backward)

    def _ledger(self, candidates: list[Candidate], backward: Graph) -> Ledger:
        choice, before = self.choice, evaluate(self.problem, ())
        read = {x for node in backward.nodes for x in node.inputs} | set(backward.outputs)
        return Ledger(
            tuple(candidates),
            self.budget,
            choice.bytes,
            choice.flops,
            before.flops,
            choice.method,
            choice.least,
            tuple([x.name for x in self.backward.inputs if x not in read]),
        )

    def _candidates(self) -> list[Candidate]:
        place = {self.numbers[node]: i for i, node in enumerate(self.values)}
        taken = {x.name for x in (*self.forward.inputs, *self.backward.inputs)}
        names = (name for name in map("stash{}".format, range(10**9)) if name not in taken)
        outputs = {self.numbers[x] for x in self.forward.outputs}
        alone = closed_flops(self.problem)
        found: list[Candidate] = []
        for number, node in self.sources.items():
            if number not in place:
                continue
            i = place[number]
            if not alone[i]:
                continue
            stashed = i in self.choice.kept
            again = self.problem.flops[i] if i in self.choice.computed else 0
            size, name = self.problem.bytes[i], next(names) if stashed else ""
            is_output = number in outputs
            found.append(Candidate(node, size, alone[i], stashed, name, again, is_output))
        return found


def _unfit(node: Node, assigned: set[str]) -> bool:
    """Whether a value is not the same in the backward: it is random, or state that changes."""
    if node.op == "variable":
        return node.attrs["variable"] in assigned
    return node.op == "assign" or not is_pure(node) or (node.op == "fused" and has_state(node))


def _placeholder(each: Candidate) -> Node:
    return var(each.name, each.node.shape, each.node.dtype)
