"""What one evaluation of a graph does: its steps in order, and the memory of each value.

A value is a place in a storage. Reshapes are other places in the same storage. Storages that live
at different times share the arena, which is laid out where all sizes are known. A variable's new
value is written over the old one where no step, output or other variable reads that later; else it
is kept apart and copied at the end.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeAlias

from loopnest.graph.dimensions import Dim, Shape, at
from loopnest.graph.node import Node, TensorType, TupleType, Type
from loopnest.graph.program import Graph
from loopnest.graph.registry import get_attr
from loopnest.graph_kernels.code_gen import Generated
from loopnest.graph_kernels.kernel_groups import VIEWS, is_library
from loopnest.graph_kernels.plan_records import (
    PlaceTree,
    PlannedStep,
    ResultTree,
    StepPlan,
    Storage,
    UpdatedVariable,
    UpdateGroup,
    ValuePlace,
    places_in,
    rounded,
)

_NO_NUMPY = frozenset({"assign", "fused", "transpose"})
"""Ops whose operands must be contiguous."""


def plan_steps(graph: Graph, found: Generated, library: bool, results: int) -> StepPlan:
    """Return the plan of a graph whose groups have kernels; its first outputs are `results`."""
    return _StepPlanner(graph, found, library).plan(results)


Rooms: TypeAlias = "dict[int, tuple[int, int]]"
"""Where storages of the arena begin, by number, and how many bytes each has."""
Rivals: TypeAlias = "Mapping[int, Sequence[int]]"
"""Which storages of the arena live while another does."""


def rivals_of(plan: StepPlan) -> Rivals:
    """Return for each storage of the arena those that live while it does."""
    lives = lives_of_storages(plan)
    arena = [n for n in lives if plan.storages[n].kind == "arena"]
    return {
        n: [x for x in arena if lives[x][0] <= lives[n][1] and lives[n][0] <= lives[x][1]]
        for n in arena
    }


class SizedPlan:
    """A plan at sizes: the places of its storages in the arena, and each step when asked for it.

    Args:
        whole: the plan with sizes as symbols.
        rivals: of its storages.
        sizes: a value for each size.
        graph: that the plan at sizes is of.
        node_at: returns what a step, or a storage, computes or holds at these sizes.
    """

    def __init__(
        self,
        whole: StepPlan,
        rivals: Rivals,
        sizes: Mapping[str, int],
        graph: Graph,
        node_at: Callable[[Node], Node],
    ) -> None:
        self.whole, self.sizes, self._graph, self.node_at = whole, sizes, graph, node_at
        self._known: dict[Dim, int] = {}
        storages = self.whole.storages
        self.rooms = _laid_out(
            {n: self.number(storages[n].elements) * storages[n].dtype.size for n in rivals}, rivals
        )
        self.arena = max(
            [start + rounded(count) for start, count in self.rooms.values()], default=0
        )
        """Its size in bytes."""

    @cached_property
    def plan(self) -> StepPlan:
        """The plan of `graph`; a step without sizes is the same object at all of them."""
        whole = self.whole
        steps = tuple(map(self.step, whole.steps))
        storages = tuple(map(self._storage, range(len(whole.storages))))
        results = tuple(map(self.tree, whole.results))
        commits = tuple([(state, self.place(place)) for state, place in whole.commits])
        return StepPlan(self._graph, steps, storages, results, commits, self.arena)

    def number(self, extent: Dim) -> int:
        """Return an extent."""
        if isinstance(extent, int):
            return extent
        found = self._known.get(extent)
        if found is None:
            found = self._known[extent] = at(extent, self.sizes)
        return found

    def shape(self, shape: Shape) -> tuple[int, ...]:
        """Return extents."""
        return tuple(map(self.number, shape))

    def _storage(self, number: int) -> Storage:
        own = self.whole.storages[number]
        node = own.node if own.node is None else self.node_at(own.node)
        offset, _ = self.rooms.get(number, (-1, 0))
        elements = self.number(own.elements)
        return Storage(own.kind, node, elements, own.dtype, offset, own.over)

    def place(self, place: ValuePlace) -> ValuePlace:
        """Return a place."""
        if _is_static(place):
            return place
        strides = None if place.strides is None else self.shape(place.strides)
        return ValuePlace(place.storage, self.shape(place.shape), place.axes, strides)

    def tree(self, tree: ResultTree) -> ResultTree:
        """Return what an output is."""
        match tree:
            case ValuePlace():
                return self.place(tree)
            case UpdatedVariable():
                return tree
            case UpdateGroup():
                return UpdateGroup(tuple(map(self.tree, tree.items)))
        return self._places(tree)

    def _places(self, tree: PlaceTree) -> PlaceTree:
        return self.place(tree) if isinstance(tree, ValuePlace) else tuple(map(self._places, tree))

    def step(self, step: PlannedStep) -> PlannedStep:
        """Return a step."""
        node = self.node_at(step.node)
        if node is step.node and all(map(_is_static, (*places_in(step.inputs), *step.outputs))):
            return step
        inputs, outputs = [*map(self._places, step.inputs)], [*map(self.place, step.outputs)]
        copies = [(self.place(a), self.place(b)) for a, b in step.copies]
        return PlannedStep(node, step.kind, inputs, outputs, step.made, copies, step.reason)


def _is_static(place: ValuePlace) -> bool:
    return all(isinstance(extent, int) for extent in (*place.shape, *(place.strides or ())))


class _StepPlanner:
    def __init__(self, graph: Graph, found: Generated, library: bool) -> None:
        self.graph, self.found, self.library = graph, found, library
        self.storages: list[Storage] = []
        self.places: dict[Node, PlaceTree] = {}
        self.steps: list[PlannedStep] = []
        self.states: dict[str, int] = {}
        self.assigned: dict[str, ValuePlace] = {}

    def plan(self, count: int) -> StepPlan:
        for node in self.graph.nodes:
            self.places[node] = self._place(node)
        results = tuple(map(self._result, self.graph.outputs[:count]))
        self.steps = self._ordered()
        for place in places_in(results):
            storage = self.storages[place.storage]
            if storage.kind == "arena" and place.is_plain:
                storage.kind = "output"
        commits = self._commits(results)
        steps, storages = tuple(self.steps), tuple(self.storages)
        return StepPlan(self.graph, steps, storages, results, tuple(commits), 0)

    # Places

    def _result(self, node: Node) -> ResultTree:
        if node.op == "group":
            items = tuple(map(self._update, node.inputs))
            if any(isinstance(x, (UpdatedVariable, UpdateGroup)) for x in items):
                return UpdateGroup(items)
        return self.places[node]

    def _update(self, node: Node) -> ResultTree:
        if node.op == "assign":
            return UpdatedVariable(node.attrs["variable"], node.static_shape)
        return self._result(node)

    def _new(self, kind: str, node: Node | None, tensor: TensorType) -> ValuePlace:
        self.storages.append(Storage(kind, node, tensor.size, tensor.dtype))
        return ValuePlace(len(self.storages) - 1, tensor.shape)

    def _place(self, node: Node) -> PlaceTree:
        match node.op:
            case "var":
                return self._new("input", node, node.tensor_type)
            case "const":
                return self._new("const", node, node.tensor_type)
            case "variable":
                name = node.attrs["variable"]
                if name not in self.states:
                    self.states[name] = self._new("state", node, node.tensor_type).storage
                return ValuePlace(self.states[name], node.shape)
            case "tuple" | "group":
                return tuple([self.places[x] for x in node.inputs])
            case "get_item":
                whole = self.places[node.inputs[0]]
                assert isinstance(whole, tuple)
                return whole[node.attrs["index"]]
            case "assign":
                return self._assigned(node)
        source = self.places[node.inputs[0]] if node.inputs else None
        plain = source if isinstance(source, ValuePlace) and source.is_plain else None
        if plain is not None and node.op in VIEWS:
            return ValuePlace(plain.storage, node.shape)
        if plain is not None and node.op == "transpose" and self._numpy_reads(node):
            return replace(plain, axes=node.attrs["axes"])
        if plain is not None and node.op == "strided_view" and self._numpy_reads(node):
            return replace(plain, shape=node.shape, strides=node.attrs["strides"])
        return self._computed(node)

    def _numpy_reads(self, node: Node) -> bool:
        """Whether all readers of a node are steps of NumPy, which take any strides."""
        if node in self.graph.outputs:
            return False
        readers = self.graph.users[node]
        return not any(x.is_tuple or x.op in _NO_NUMPY or x.op in VIEWS for x in readers)

    def _assigned(self, node: Node) -> PlaceTree:
        value = self.places[node.inputs[1]]
        state = self.places[node.inputs[0]]
        assert isinstance(value, ValuePlace)
        assert isinstance(state, ValuePlace)
        self.states.setdefault(node.attrs["variable"], state.storage)
        self.assigned[node.attrs["variable"]] = value
        return value

    def _computed(self, node: Node) -> PlaceTree:
        own = bool(get_attr(node, "makes_memory", False))
        tree = self._results(node.type, "made" if own else "arena")
        made = self.found.kernels.get(node)
        kind = "fallback" if made is None else "kernel"
        by_choice, reason = node.attrs.get("told", (False, ""))
        if made is None and (by_choice or (self.library and is_library(node))):
            kind = "library"
        elif kind == "fallback":
            reason = reason or self._reason(node)
        inputs = [self.places[x] for x in node.inputs]
        step = PlannedStep(node, kind, inputs, [*places_in(tree)], made, reason=reason)
        self.steps.append(step)
        return tree

    def _reason(self, node: Node) -> str:
        return self.found.refused.get(node, f"op {node.op} has no attribute 'lower'")

    def _results(self, kind: Type, memory: str) -> PlaceTree:
        if isinstance(kind, TupleType):
            return tuple([self._results(part, memory) for part in kind.fields])
        return self._new(memory, None, kind)

    # Order

    def _ordered(self) -> list[PlannedStep]:
        """Return the steps in topological order; readers of a variable before its new value."""
        maker = {place.storage: i for i, s in enumerate(self.steps) for place in s.outputs}
        reads = [s.reads() for s in self.steps]
        before = [{maker[r] for r in read if r in maker} for read in reads]
        for name, value in self.assigned.items():
            writer = maker.get(value.storage)
            if writer is None:
                continue
            # A reader of the old value comes before the step that overwrites it, unless it needs
            # that step: then the old value is kept, and copied at the end (`_commits`).
            for number, read in enumerate(reads):
                old = number != writer and self.states[name] in read
                if old and not _reaches(before, number, writer):
                    before[writer].add(number)
        return [self.steps[number] for number in _sorted(before)]

    # Variables

    def _commits(self, results: Sequence[ResultTree]) -> list[tuple[int, ValuePlace]]:
        """Let new values overwrite old ones where that is safe; return what is copied instead."""
        late = {place.storage for place in places_in(results)}
        late |= {place.storage for place in self.assigned.values()}
        commits: list[tuple[int, ValuePlace]] = []
        maker = {place.storage: n for n, s in enumerate(self.steps) for place in s.outputs}
        last = {storage: n for n, s in enumerate(self.steps) for storage in s.reads()}
        for name, value in self.assigned.items():
            state, writer = self.states[name], maker.get(value.storage)
            taken = state in late or self.storages[value.storage].over is not None
            free = writer is not None and not taken and last.get(state, -1) <= writer
            if writer is not None and free and self._overwrites(self.steps[writer], state, value):
                self.storages[value.storage].kind = "state"
                self.storages[value.storage].over = state
            else:
                commits.append((state, value))
        for step in self.steps:
            self._keep_apart(step)
        return commits

    def _overwrites(self, writer: PlannedStep, state: int, value: ValuePlace) -> bool:
        """Whether a step may write a new value over the old one, which no later step reads."""
        reads = [i for i, tree in enumerate(writer.inputs) if state in _storages(tree)]
        if not reads:
            return True
        number = [p.storage for p in writer.outputs].index(value.storage)
        # The step reads the old value itself: element by element in the same place, or not at all.
        return writer.made is not None and all((number, i) in writer.made.inplace for i in reads)

    def _keep_apart(self, step: PlannedStep) -> None:
        """Give a kernel that overwrites an input a copy of it, where the input must stay."""
        for output, operand in step.made.inplace if step.made else ():
            source, result = step.inputs[operand], step.outputs[output]
            assert isinstance(source, ValuePlace)
            if self.storages[result.storage].over != source.storage:
                step.copies.append((source, result))
                step.inputs[operand] = result


def lives_of_storages(plan: StepPlan) -> dict[int, tuple[int, int]]:
    """Return the first and the last step that each storage is used by."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, step in enumerate(plan.steps):
        used = [*step.outputs, *places_in(step.inputs)]
        for place in used:
            first.setdefault(place.storage, number)
            last[place.storage] = number
    for place in (*places_in(plan.results), *[value for _, value in plan.commits]):
        # Results and new values of variables are read behind the last step.
        last[place.storage] = len(plan.steps)
    return {number: (start, last[number]) for number, start in first.items()}


def _laid_out(wanted: Mapping[int, int], rivals: Rivals) -> Rooms:
    """Return a place for each storage of the arena.

    Args:
        wanted: the bytes of each storage.
        rivals: of each.
    """
    rooms: Rooms = {}
    # Largest first: small ones find gaps between large ones, seldom the other way round.
    for number in sorted(wanted, key=lambda n: (-wanted[n], n)):
        start, count = 0, wanted[number]
        length = rounded(count)
        for low, taken in sorted([rooms[n] for n in rivals[number] if n in rooms]):
            if low - start >= length:
                break
            start = max(start, low + rounded(taken))
        rooms[number] = start, count
    return rooms


def _storages(tree: PlaceTree) -> set[int]:
    return {place.storage for place in places_in(tree)}


def _reaches(before: Sequence[set[int]], step: int, other: int) -> bool:
    """Whether `step` needs `other`, directly or not."""
    pending, seen = [step], {step}
    while pending:
        for number in before[pending.pop()]:
            if number == other:
                return True
            if number not in seen:
                seen.add(number)
                pending.append(number)
    return False


def _sorted(before: Sequence[set[int]]) -> list[int]:
    """Return numbers in topological order, the smallest that is ready first."""
    left = [len(needed) for needed in before]
    after: dict[int, list[int]] = {}
    for number, needed in enumerate(before):
        for other in needed:
            after.setdefault(other, []).append(number)
    ready = [number for number, count in enumerate(left) if not count]
    order: list[int] = []
    while ready:
        number = heapq.heappop(ready)
        order.append(number)
        for other in after.get(number, ()):
            left[other] -= 1
            if not left[other]:
                heapq.heappush(ready, other)
    return order
