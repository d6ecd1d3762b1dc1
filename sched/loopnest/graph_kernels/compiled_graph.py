"""`G.compile`: a graph as a function of arrays, made of kernels.

A call checks its arguments, makes the outputs, and runs the steps of the plan: on "c" those that
follow each other are one call of a table (`launch_table`). The arena, constants and variables
belong to the function, so that calls take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

import loopnest as ln
from loopnest.backends.compiled_kernel import CompiledKernel
from loopnest.backends.cpu.c_target import CompiledC
from loopnest.backends.cpu.openmp import threads_are_lost
from loopnest.errors import LaunchError, kind_of
from loopnest.graph.cost import flops, traffic
from loopnest.graph.graph_error import GraphError
from loopnest.graph.node import LEAVES, Node, describe
from loopnest.graph.node_values import compute
from loopnest.graph.passes.decompose import Decompose
from loopnest.graph.passes.eliminate_common_subexpr import EliminateCommonSubexpr
from loopnest.graph.passes.fold_constant import FoldConstant
from loopnest.graph.program import Graph, body_of, require_graph
from loopnest.graph.state import check_state
from loopnest.graph_kernels.code_gen import (
    Generated,
    compiled,
    current_target,
    generated,
    schedule_target,
)
from loopnest.graph_kernels.kernel_fusion import grouped, inlined, values_for_assignments
from loopnest.graph_kernels.kernel_groups import VIEWS, GroupLimits
from loopnest.graph_kernels.launch_table import MOST_POINTERS, LaunchTable
from loopnest.graph_kernels.op_math import lower_of
from loopnest.graph_kernels.step_plan import (
    ALIGNMENT,
    PlaceTree,
    PlannedStep,
    StepPlan,
    Storage,
    ValuePlace,
    places_in,
    plan_steps,
)

Array: TypeAlias = "npt.NDArray[Any]"
Values: TypeAlias = "Array | tuple[Values, ...]"
MEMORY = frozenset({"assign", "get_item", "group", "tuple"})
"""Ops that compute nothing: what they say is where values lie."""
Action: TypeAlias = "Callable[[list[Array]], None]"
"""A step on the storages of a call."""


@dataclass(frozen=True, slots=True)
class GraphLaunch:
    """A launch of a compiled graph: a kernel, a call of a library, or a fallback.

    Args:
        ops: the names of the ops that it computes, in order.
        bytes: what it reads and writes.
        flops: operations, as `loopnest.graph.cost` weighs them.
        library: whether a library computes it.
        schedule: the name of the scheduler; "" where there is no kernel.
        kernel: the kernel; None where there is none.
        fallback: why NumPy evaluates it; "" where it does not.
    """

    ops: tuple[str, ...]
    bytes: int
    flops: int
    library: bool
    schedule: str
    kernel: ln.Kernel | None
    fallback: str

    def __str__(self) -> str:
        how = self.schedule or ("library" if self.library else f"fallback: {self.fallback}")
        return f"{', '.join(self.ops)}: {self.bytes} bytes, {self.flops} flops, {how}"


def compile_graph(
    g: Graph, target: str = "auto", library: bool = True, **options: Any
) -> CompiledGraph:
    """Return a function of arrays that computes a graph by kernels.

    Constants are folded, ops that are made of others replaced by these, and equal ones computed
    once. Groups of ops become kernels with automatic schedules; what has no kernel NumPy evaluates,
    and ``fn.kernels`` lists it. A graph that knows its attribute ``rtc`` keeps its own groups.

    Args:
        g: the graph.
        target: "c", "interpret", "cuda", or "auto": the first that this machine can do.
        library: whether products of matrices are left to NumPy's library, and what has no kernel
            may be evaluated; where False, everything is a kernel.
        **options: those of `loopnest.compile` for the target.

    Raises:
        GraphError: it assigns a variable twice, or has an op without a kernel and `library` is
            False.
        CompileError: as `loopnest.compile`.
    """
    require_graph(g, "compile")
    check_state(g)
    if not isinstance(library, bool):
        found = f"library is {kind_of(library)}"
        raise GraphError(f"compile({g.name})", found, "pass True or False")
    chosen = current_target() if target == "auto" else target
    graph, found_kernels = _with_kernels(g, chosen, library)
    runners = compiled(found_kernels, chosen, options)
    plan = plan_steps(graph, found_kernels, library, len(g.outputs))
    return CompiledGraph(g, chosen, plan, runners)


def _with_kernels(g: Graph, target: str, library: bool) -> tuple[Graph, Generated]:
    """Return a graph of calls, and their kernels; a group that has none is taken apart."""
    own = g.attrs.get("generated")
    if "rtc" in g.attrs and isinstance(own, Generated) and not _assigns_inside(g):
        return g, own
    simple = EliminateCommonSubexpr()(FoldConstant()(inlined(Decompose()(g))))
    simple = values_for_assignments(simple)
    limits = GroupLimits(schedule_target(target), library)
    single: frozenset[Node] = frozenset()
    if not library:
        _check_lowered(simple)
    while True:
        grouping = grouped(simple, limits, single)
        found = generated(grouping.graph, target)
        apart = [x for call in found.refused for x in grouping.members[call]]
        if single.issuperset(apart):
            if found.refused and not library:
                raise _without_kernel(g, *next(iter(found.refused.items())))
            return grouping.graph, found
        single = single.union(apart)


def _assigns_inside(graph: Graph) -> bool:
    """Whether a function of a graph assigns a variable."""
    return any(node.op == "assign" for body in graph.functions for node in body.nodes)


def _check_lowered(graph: Graph) -> None:
    """Check that every op can be math of a kernel, or is another shape of its operand.

    Raises:
        GraphError: one cannot; it names the node.
    """
    for node in graph.nodes:
        if node.op in LEAVES or node.op in VIEWS or node.op in MEMORY:
            continue
        if lower_of(node) is None:
            raise _without_kernel(graph, node, f"op {node.op} has no attribute 'lower'")


def _without_kernel(graph: Graph, node: Node, reason: str) -> GraphError:
    subject = f"compile({graph.name}, library=False), node {describe(node)}"
    return GraphError(subject, f"it has no kernel: {reason}", "pass library=True")


class CompiledGraph:
    """A graph that runs on arrays: ``fn(*arrays)``, in the order of the graph's inputs.

    Made by `compile_graph`. `graph` is what was compiled, `target` where it runs.

    Args:
        graph: what was compiled.
        target: the target of its kernels.
        plan: its steps.
        runners: the compiled kernel of each call.
    """

    def __init__(
        self,
        graph: Graph,
        target: str,
        plan: StepPlan,
        runners: Mapping[Node, CompiledKernel[ln.Kernel]],
    ) -> None:
        self.graph, self.target = graph, target
        self._subject = f"{graph.name}(...)"
        self._plan, self._runners = plan, runners
        self._lock = Lock()
        self._arena = _aligned(plan.arena)
        self._variables = _aligned(
            sum(_rounded(storage.bytes) for storage in plan.storages if _is_variable(storage))
        )
        self._used = 0
        self._fixed: dict[int, Array] = {}
        for number, storage in enumerate(plan.storages):
            self._make_fixed(number, storage)
        for number, storage in enumerate(plan.storages):
            if storage.over is not None:
                self._fixed[number] = self._fixed[storage.over]
        self._inputs = {
            storage.node.name: number
            for number, storage in enumerate(plan.storages)
            if storage.kind == "input" and storage.node is not None
        }
        self.state: Mapping[str, Array] = MappingProxyType(self._states())
        """The value of each variable, by name: the arrays themselves, which calls overwrite."""
        self.kernels = tuple([_launch(step) for step in plan.steps])
        """Each launch, in order."""
        self._actions = self._joined()

    def __repr__(self) -> str:
        return f"<CompiledGraph {self.graph.name} on '{self.target}': {len(self.kernels)} launches>"

    def __call__(self, *arrays: Any) -> Any:
        """Run the graph once.

        Args:
            *arrays: the inputs, in order; what is not C-contiguous is copied, and what lies in a
                variable of this function too.

        Returns:
            The output, or a tuple of them (of an output of several values a tuple too); arrays of
            the caller's own.

        Raises:
            LaunchError: an argument does not fit; nothing ran.
        """
        given = self._checked(arrays)
        with self._lock, np.errstate(all="ignore"):
            memory = self._memory(given)
            for action in self._actions:
                action(memory)
            taken: set[int] = set()
            results = tuple([self._result(x, memory, taken) for x in self._plan.results])
            self._commit(memory)
        return results[0] if len(results) == 1 else results

    # Memory

    def _make_fixed(self, number: int, storage: Storage) -> None:
        """Make what stays from call to call: constants, variables, places in the arena."""
        dtype = storage.dtype.numpy
        if storage.over is not None:
            return
        if storage.kind in ("const", "state") and storage.node is not None:
            if _is_variable(storage):  # all in one piece, so that one look tells an alias of any
                piece = self._variables[self._used : self._used + storage.bytes]
                self._used += _rounded(storage.bytes)
            else:
                piece = _aligned(storage.bytes)
            self._fixed[number] = piece.view(dtype)
            self._fixed[number][:] = storage.node.value.reshape(-1)
        elif storage.kind == "arena" and storage.offset >= 0:
            piece = self._arena[storage.offset : storage.offset + storage.bytes]
            self._fixed[number] = piece.view(dtype)

    def _states(self) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for number, storage in enumerate(self._plan.storages):
            if storage.kind == "state" and storage.node is not None:
                shape = storage.node.shape
                found[storage.node.attrs["variable"]] = self._fixed[number].reshape(shape)
        return found

    def _checked(self, arrays: Sequence[Any]) -> dict[int, Array]:
        """Return the arrays of the inputs that are read, by storage."""
        inputs = self.graph.inputs
        if len(arrays) != len(inputs):
            names = ", ".join([f"{x.name}: {x.type}" for x in inputs]) or "none"
            found = f"{len(arrays)} arrays were given for {len(inputs)} inputs"
            raise LaunchError(self._subject, found, f"pass {names}")
        given: dict[int, Array] = {}
        for node, value in zip(inputs, arrays, strict=True):
            array = np.asarray(value)
            if array.shape != node.shape or array.dtype != node.dtype.numpy:
                found = f"{node.name} is {node.type}, the array {array.dtype}{list(array.shape)}"
                hint = "compile the graph for the shapes and types that it is called with"
                raise LaunchError(self._subject, found, hint)
            if node.name in self._inputs:
                if np.may_share_memory(array, self._variables):
                    array = array.copy()  # a step may write to the variable before it is read
                given[self._inputs[node.name]] = np.ascontiguousarray(array).reshape(-1)
        return given

    def _memory(self, given: Mapping[int, Array]) -> list[Array]:
        """Return the array of each storage for a call: flat."""
        memory: list[Array] = []
        for number, storage in enumerate(self._plan.storages):
            if storage.kind == "output":
                memory.append(_aligned(storage.bytes).view(storage.dtype.numpy))
            elif number in given:
                memory.append(given[number])
            else:
                memory.append(self._fixed.get(number, _NOTHING))
        return memory

    def _result(self, tree: PlaceTree, memory: Sequence[Array], taken: set[int]) -> Values:
        """Return an output as an array of the caller's own."""
        if not isinstance(tree, ValuePlace):
            return tuple([self._result(item, memory, taken) for item in tree])
        found = _view(tree, memory)
        if self._plan.storages[tree.storage].kind == "output" and tree.storage not in taken:
            taken.add(tree.storage)
            return found
        return found.copy()

    def _commit(self, memory: Sequence[Array]) -> None:
        """Write the new values of variables that lie elsewhere: all are read before one is."""
        values = [memory[place.storage] for _, place in self._plan.commits]
        kinds = [self._plan.storages[place.storage].kind for _, place in self._plan.commits]
        kept = [v.copy() if k == "state" else v for v, k in zip(values, kinds, strict=True)]
        for (state, _), value in zip(self._plan.commits, kept, strict=True):
            memory[state][:] = value

    # Steps

    def _joined(self) -> list[Action]:
        """Return what a call does: launches of C that follow each other are one action."""
        actions: list[Action] = []
        table: list[tuple[Any, list[int]]] = []
        for step in self._plan.steps:
            fast = self._fast(step)
            if fast is not None:
                table.append(fast)
                continue
            if table:
                actions.append(self._table(table))
                table = []
            actions.append(self._slow(step))
        if table:
            actions.append(self._table(table))
        return actions

    def _slow(self, step: PlannedStep) -> Action:
        """Return a step as a call of NumPy, or of a compiled kernel."""
        run = self._kernel_call(step) if step.kind == "kernel" else _numpy_call(step)

        def action(memory: list[Array]) -> None:
            _copy(step, memory)
            run(memory)

        return action

    def _kernel_call(self, step: PlannedStep) -> Action:
        runner, made = self._runners[step.node], step.made
        assert made is not None
        inputs = [step.inputs[number] for number in made.inputs]
        inplace = {output for output, _ in made.inplace}

        def run(memory: list[Array]) -> None:
            arrays = [_view(place, memory) for tree in inputs for place in places_in(tree)]
            outputs = [
                None if number in inplace else _view(place, memory)
                for number, place in enumerate(step.outputs)
            ]
            runner(*arrays, out=tuple(outputs))

        return run

    def _fast(self, step: PlannedStep) -> tuple[Any, list[int]] | None:
        """Return a kernel's C function and the storages that it takes; None where it has none."""
        made = step.made
        if self.target != "c" or made is None or step.copies or threads_are_lost():
            return None
        plan, executable = self._runners[step.node].static_launch()
        if plan.is_empty or plan.workspace or not isinstance(executable, CompiledC):
            return None
        if executable.threads is not None:
            return None
        operands = [step.inputs[number] for number in made.inputs]
        overwritten = {output for output, _ in made.inplace}
        own = [p for number, p in enumerate(step.outputs) if number not in overwritten]
        slots = [place.storage for place in (*places_in(operands), *own)]
        if len(slots) > MOST_POINTERS:
            return None
        return executable.function(executable.index_bits(plan)), slots

    def _table(self, launches: Sequence[tuple[Any, list[int]]]) -> Action:
        table = LaunchTable([f for f, _ in launches], [slots for _, slots in launches])

        def action(memory: list[Array]) -> None:
            if table.run([array.ctypes.data for array in memory]):
                found = "no memory is left for the local buffers of its kernels"
                raise LaunchError(self._subject, found, "pass smaller arrays, or fewer threads")

        return action


_NOTHING: Array = np.empty(0, np.uint8)


def _is_variable(storage: Storage) -> bool:
    return storage.kind == "state" and storage.node is not None


def _rounded(size: int) -> int:
    """Return a size in whole cache lines."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _aligned(size: int) -> Array:
    """Return bytes that begin at a cache line."""
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    piece: Array = raw[start : start + size]
    return piece


def _view(place: ValuePlace, memory: Sequence[Array]) -> Array:
    found = memory[place.storage].reshape(place.shape)
    return found if place.axes is None else found.transpose(place.axes)


def _copy(step: PlannedStep, memory: Sequence[Array]) -> None:
    for source, target in step.copies:
        memory[target.storage][:] = memory[source.storage]


def _numpy_call(step: PlannedStep) -> Action:
    """Return a step that NumPy computes."""

    def tree(places: PlaceTree, memory: Sequence[Array]) -> Values:
        if isinstance(places, ValuePlace):
            return _view(places, memory)
        return tuple([tree(item, memory) for item in places])

    def product(memory: list[Array]) -> None:
        a, b = [_view(place, memory) for place in places_in(step.inputs)]
        np.matmul(a, b, out=_view(step.outputs[0], memory))

    def evaluated(memory: list[Array]) -> None:
        found = compute(step.node, [tree(x, memory) for x in step.inputs])
        for place, value in zip(step.outputs, _leaves(found), strict=True):
            _view(place, memory)[...] = value

    return product if step.kind == "library" else evaluated


def _leaves(value: Values) -> list[Array]:
    if isinstance(value, tuple):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


def _launch(step: PlannedStep) -> GraphLaunch:
    node = step.node
    nodes = body_of(node).nodes if node.op == "fused" else (node,)
    ops = tuple([x.op for x in nodes if x.op not in LEAVES])
    made = step.made
    return GraphLaunch(
        ops,
        traffic(node),
        flops(node),
        step.kind == "library",
        made.schedule if made else "",
        made.kernel if made else None,
        step.reason,
    )
