"""Common subexpressions of a forward and a backward graph: kept by one, read by the other.

The backward of ``y = tanh(x)`` is ``(1 - tanh(x) * tanh(x)) * dy``: it computes again what the
forward has computed. Here the largest expressions that both compute become outputs of the forward
and inputs (placeholders) of the backward. Which of them is a choice between memory and work:
`stash_choice` makes it, and a `Ledger` says what each value would cost either way.

Source: TVM's RFC "CSE Optimization" (discuss.tvm.apache.org/t/8130), steps Analysis, Transform
(Forward), Transform (Backward), and its `AutoInliner`, without which index maps hide that
expressions are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from loopnest.base.errors import kind_of
from loopnest.base.gc_pause import paused
from loopnest.graph.cost import bytes_of, flops
from loopnest.graph.dimensions import typical
from loopnest.graph.graph_error import GraphError
from loopnest.graph.leaves import var
from loopnest.graph.node import LEAVES, Node, describe
from loopnest.graph.passes.auto_inline import inlined
from loopnest.graph.passes.numbering import Numbering
from loopnest.graph.passes.purity import has_state, is_pure
from loopnest.graph.program import Graph
from loopnest.graph.registry import short
from loopnest.graph.rewriting import substitute
from loopnest.graph.stash_choice import Problem, choose, closed_flops, evaluate
from loopnest.graph.state import assignments, check_state


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
