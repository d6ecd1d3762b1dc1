"""`G.compile`: a graph as a function of arrays, made of kernels.

A graph with sizes is compiled once, for all of them. What depends on numbers (the places of values
in memory, the launches) is planned at the first call of each size, and kept (`sized_run`).
Constants, variables and the arena belong to the function, so that calls take turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from threading import Lock
from types import MappingProxyType
from typing import Any

import numpy as np

import loopnest as ln
from loopnest.backends.cuda.driver import driver_interface
from loopnest.errors import LaunchError, kind_of
from loopnest.graph.cost import flops, traffic
from loopnest.graph.dimensions import Dim, at
from loopnest.graph.graph_error import GraphError
from loopnest.graph.leaves import var
from loopnest.graph.node import LEAVES, Node, describe
from loopnest.graph.node_origins import place_of
from loopnest.graph.passes.decompose import Decompose
from loopnest.graph.passes.eliminate_common_subexpr import EliminateCommonSubexpr
from loopnest.graph.passes.fold_constant import FoldConstant
from loopnest.graph.program import Graph, body_of, require_graph
from loopnest.graph.registry import call, rebuild
from loopnest.graph.size_binding import node_sizes
from loopnest.graph.state import check_state
from loopnest.graph_kernels.code_gen import (
    Generated,
    compiled,
    current_target,
    generated,
    schedule_target,
)
from loopnest.graph_kernels.device_arrays import DeviceArrays, DeviceStates
from loopnest.graph_kernels.kept_groups import groups_key, keep_groups, read_groups
from loopnest.graph_kernels.kernel_fusion import grouped, inlined, values_for_assignments
from loopnest.graph_kernels.kernel_groups import VIEWS, GroupLimits, is_library, product_of
from loopnest.graph_kernels.library_times import (
    LibraryTimes,
    Rivals,
    Run,
    is_measured,
    measured,
)
from loopnest.graph_kernels.op_math import lower_of
from loopnest.graph_kernels.runs_by_size import RunsBySize
from loopnest.graph_kernels.sized_run import SizedRun
from loopnest.graph_kernels.step_arrays import Array, HostArrays, Runner
from loopnest.graph_kernels.step_plan import PlannedStep, StepPlan

MEMORY = frozenset({"assign", "get_item", "group", "tuple"})
"""Ops that compute nothing: what they say is where values lie."""


@dataclass(frozen=True, slots=True)
class GraphLaunch:
    """A launch of a compiled graph: a kernel, a call of a library, or a fallback.

    Args:
        ops: the names of the ops that it computes, in order.
        bytes: what it reads and writes: an int, or a size expression.
        flops: operations, as `loopnest.graph.cost` weighs them, likewise.
        library: whether a library computes it.
        schedule: the name of the scheduler; "" where there is no kernel.
        kernel: the kernel; None where there is none.
        fallback: why NumPy evaluates it; "" where it does not.
        times: of an op that a library and kernels were measured at, both times.
    """

    ops: tuple[str, ...]
    bytes: Dim
    flops: Dim
    library: bool
    schedule: str
    kernel: ln.Kernel | None
    fallback: str
    times: str = ""

    def __str__(self) -> str:
        how = self.schedule or ("library" if self.library else f"fallback: {self.fallback}")
        times = f"; {self.times}" if self.times else ""
        return f"{', '.join(self.ops)}: {self.bytes} bytes, {self.flops} flops, {how}{times}"


def compile_graph(
    g: Graph, target: str = "auto", library: bool = True, **options: Any
) -> CompiledGraph:
    """Return a function of arrays that computes a graph by kernels.

    Constants are folded, ops that are made of others replaced by these, and equal ones computed
    once. Groups of ops become kernels with automatic schedules; what has no kernel NumPy evaluates,
    and ``fn.kernels`` lists it. A graph that knows its attribute ``rtc`` keeps its own groups.
    Kernels of a graph with sizes have them too: one function computes at all sizes.

    Args:
        g: the graph.
        target: "c", "interpret", "cuda", or "auto": the first that this machine can do.
        library: whether products of matrices may be left to NumPy's library, and what has no
            kernel may be evaluated; where False, everything is a kernel. A product is left where
            the library is faster, which is measured once for its sizes (see ``launch.times``); on
            the target "interpret", where sizes are symbolic, and with ``LOOPNEST_MACHINE=any``,
            it always is.
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
    times = _product_times(g, chosen, options) if library else {}
    return _compiled(g, chosen, library, options, times)


def _compiled(
    g: Graph,
    target: str,
    library: bool,
    options: Mapping[str, Any],
    times: Mapping[str, LibraryTimes],
) -> CompiledGraph:
    own = tuple(sorted([name for name, found in times.items() if not found.by_library]))
    graph, found = with_kernels(g, target, library, fallback=library, own=own)
    runners = compiled(found, target, options)
    return CompiledGraph(g, target, graph, found, runners, library, times)


def _product_times(g: Graph, target: str, options: Mapping[str, Any]) -> Mapping[str, LibraryTimes]:
    """Return the times of the products of matrices of known sizes, by `product_of`."""
    if target == "interpret" or not is_measured():
        return {}
    nodes = {product_of(x): x for x in inlined(Decompose()(g)).nodes if is_library(x)}
    known = [x for x in nodes.values() if not any(map(list, map(node_sizes, (x, *x.inputs))))]
    return measured([_rivals(x, target, options) for x in known])


def _rivals(node: Node, target: str, options: Mapping[str, Any]) -> Rivals:
    """Return a product of matrices as what is measured."""
    leaves = [x.inputs[0] if x.op == "transpose" else x for x in node.inputs]
    own = [var(f"x{n}", x.shape, x.dtype) for n, x in enumerate(leaves)]
    seen = [
        call("transpose", [leaf], x.attrs) if x.op == "transpose" else leaf
        for x, leaf in zip(node.inputs, own, strict=True)
    ]
    graph = Graph(own, [rebuild(node, seen)], "product")

    def made() -> tuple[Run, Run]:
        arrays = [np.ones(x.static_shape, x.dtype.numpy) for x in own]
        kernels, library = [_compiled(graph, target, left, options, {}) for left in (False, True)]
        return lambda: kernels(*arrays), lambda: library(*arrays)

    settings = f"{np.__version__} {target} {sorted(options.items())}"
    return Rivals(product_of(node), settings, float(at(flops(node), {})), made)


def with_kernels(
    g: Graph, target: str, library: bool, fallback: bool, own: tuple[str, ...] = ()
) -> tuple[Graph, Generated]:
    """Return a graph of calls, and their kernels; a group that has none is taken apart.

    Args:
        g: the graph.
        target: "c", "interpret" or "cuda".
        library: whether products of matrices are left to a library.
        fallback: whether ops may stay without a kernel.
        own: products that are not left to it, by `product_of`.

    Raises:
        GraphError: an op has no kernel, and `fallback` is False.
    """
    made = g.attrs.get("generated")
    if "rtc" in g.attrs and isinstance(made, Generated) and not _assigns_inside(g):
        return g, made
    simple = EliminateCommonSubexpr()(FoldConstant()(inlined(Decompose()(g))))
    simple = values_for_assignments(simple)
    limits = GroupLimits(schedule_target(target), library, own)
    single: frozenset[Node] = frozenset()
    if not fallback:
        _check_lowered(simple)
    key = groups_key(simple, limits)
    kept = read_groups(key)
    if kept is not None:
        graph = grouped(simple, limits, known=kept.groups).graph
        return graph, kept.generated(graph)
    while True:
        grouping = grouped(simple, limits, single)
        found = generated(grouping.graph, target)
        apart = [x for call in found.refused for x in grouping.members[call]]
        if single.issuperset(apart):
            if found.refused and not fallback:
                raise _without_kernel(g, *next(iter(found.refused.items())))
            keep_groups(key, simple, grouping.groups, grouping.graph, found)
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
    subject = f"compile({graph.name}, library=False), node {describe(node)}{place_of(node)}"
    return GraphError(subject, f"it has no kernel: {reason}", "pass library=True")


class CompiledGraph:
    """A graph that runs on arrays: ``fn(*arrays, **sizes)``, in the order of the graph's inputs.

    Made by `compile_graph`. `graph` is what was compiled, `target` where it runs.

    Args:
        graph: what was compiled.
        target: the target of its kernels.
        calls: the graph with its groups as calls; its first outputs are those of `graph`.
        found: the kernels of the calls.
        runners: the compiled kernel of each call.
        library: whether a library computes products of matrices.
        times: of products that it and kernels were measured at.
    """

    def __init__(
        self,
        graph: Graph,
        target: str,
        calls: Graph,
        found: Generated,
        runners: Mapping[Node, Runner],
        library: bool,
        times: Mapping[str, LibraryTimes],
    ) -> None:
        self.graph, self.target = graph, target
        self._subject = f"{graph.name}(...)"
        self._lock = Lock()
        self._device: DeviceArrays | None = None
        if target == "cuda":
            self._device = DeviceArrays(driver_interface.find_driver())
        with self._context():
            arrays = self._device or HostArrays()
            runs = RunsBySize(graph, target, calls, found, runners, library, arrays)
        self._runs, self._memory = runs, runs.memory
        states, shapes = (
            self._memory.states,
            {n: x.static_shape for n, x in calls.variables.items()},
        )
        self.state: Mapping[str, Array]
        """The value of each variable, by name: the arrays themselves, which calls overwrite."""
        if self._device is not None:
            self.state = self._states = DeviceStates(self._device, states, shapes)
        else:
            own = {name: states[name].reshape(shape) for name, shape in shapes.items()}
            self.state = MappingProxyType(own)
        self.kernels = tuple([launch_of(step, times) for step in runs.plan.steps])
        """Each launch, in order."""

    def __repr__(self) -> str:
        return f"<CompiledGraph {self.graph.name} on '{self.target}': {len(self.kernels)} launches>"

    def __call__(self, *arrays: Any, **sizes: int) -> Any:
        """Run the graph once.

        Args:
            *arrays: the inputs, in order; what is not C-contiguous is copied, and what lies in a
                variable of this function too.
            **sizes: the sizes that the shapes of the inputs do not say.

        Returns:
            The output, or a tuple of them (of an output of several values a tuple too); arrays of
            the caller's own.

        Raises:
            LaunchError: an argument does not fit, or a node at these sizes; nothing ran.
        """
        given = self._checked(arrays)
        numbers = self._runs.numbers([array.shape for array in given], sizes)
        with self._lock, np.errstate(all="ignore"), self._context():
            run = self._runs.at(numbers)
            own = zip(run.inputs, given, strict=True)
            if self._device is not None:
                return self._on_device(self._device, run, own)
            results = run.run([(number, self._flat(array)) for number, array in own])
        return results[0] if len(results) == 1 else results

    def _on_device(
        self, device: DeviceArrays, run: SizedRun, given: Iterable[tuple[int, Array]]
    ) -> Any:
        """Return the outputs of a call whose memory is that of the GPU."""
        self._states.send()
        found = run.run([(number, device.constant(array)) for number, array in given])
        results = device.results(found)
        self._states.fetch()
        return results[0] if len(results) == 1 else results

    def _context(self) -> AbstractContextManager[None]:
        """Return where memory may be used: a GPU's in its context."""
        return nullcontext() if self._device is None else self._device.driver.current()

    def plan(self, **sizes: int) -> StepPlan:
        """Return the plan of a step: what a call does at these sizes.

        Args:
            **sizes: a value for each size of the graph.

        Raises:
            LaunchError: a size is missing, or a node does not fit at these sizes.
        """
        missing = [name for name in self._runs.names if name not in sizes]
        if missing:
            raise LaunchError(self._subject, f"the size {missing[0]} is missing")
        with self._lock, self._context():
            return self._runs.at(tuple([sizes[name] for name in self._runs.names])).plan

    # Arguments

    def _checked(self, arrays: Sequence[Any]) -> list[Array]:
        """Return the arguments as arrays of the types and ranks that the inputs have."""
        inputs = self.graph.inputs
        if len(arrays) != len(inputs):
            names = ", ".join([f"{x.name}: {x.type}" for x in inputs]) or "none"
            found = f"{len(arrays)} arrays were given for {len(inputs)} inputs"
            raise LaunchError(self._subject, found, f"pass {names}")
        given: list[Array] = []
        for node, value in zip(inputs, arrays, strict=True):
            array = np.asarray(value)
            fits = array.shape == node.shape if not self._runs.names else array.ndim == node.ndim
            if not fits or array.dtype != node.dtype.numpy:
                found = f"{node.name} is {node.type}, the array {array.dtype}{list(array.shape)}"
                hint = "compile the graph for the shapes and types that it is called with"
                raise LaunchError(self._subject, found, hint)
            given.append(array)
        return given

    def _flat(self, array: Array) -> Array:
        if np.may_share_memory(array, self._memory.variables):
            array = array.copy()  # a step may write to the variable before it is read
        return np.ascontiguousarray(array).reshape(-1)


def launch_of(step: PlannedStep, times: Mapping[str, LibraryTimes]) -> GraphLaunch:
    """Return what is listed of a step; `times` are those of products, by `product_of`."""
    node = step.node
    nodes = body_of(node).nodes if node.op == "fused" else (node,)
    ops = tuple([x.op for x in nodes if x.op not in LEAVES])
    made = step.made
    by_library = step.kind == "library"
    told = [str(times[name]) for x in nodes if (name := product_of(x)) in times]
    return GraphLaunch(
        ops,
        traffic(node),
        flops(node),
        by_library,
        made.schedule if made else "",
        made.kernel if made else None,
        "" if by_library else step.reason,
        step.reason if by_library and step.reason else "; ".join(told),
    )
