"""`G.compile`: a graph as a function of arrays, made of kernels.

A graph with sizes is compiled once, for all of them. What depends on numbers (the places of values
in memory, the launches) is planned at the first call of each size, and kept (`runs_by_size`).
Constants, variables and the arena belong to the function, so that calls take turns.

On a GPU, constants are uploaded once; variables and the arena stay on the device. A call uploads
its inputs, enqueues all launches on one stream and downloads its outputs. What NumPy computes (a
library's product, an op without a kernel) goes by way of the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loopnest.backends.cpu.host_call import HostCall
from loopnest.backends.cuda.driver import gpu_driver
from loopnest.backends.cuda.driver.device_array import DeviceMemory, DeviceView, gathered
from loopnest.backends.cuda.driver.gpu_driver import Driver
from loopnest.backends.targets import named_target
from loopnest.base.errors import LaunchError, kind_of
from loopnest.graph.cost import flops
from loopnest.graph.dimensions import at
from loopnest.graph.graph_error import GraphError
from loopnest.graph.leaves import var
from loopnest.graph.node import Node
from loopnest.graph.passes.decompose import Decompose
from loopnest.graph.program import Graph, require_graph
from loopnest.graph.registry import call, rebuild, short
from loopnest.graph.size_binding import node_sizes
from loopnest.graph.state import check_state
from loopnest.graph_kernels.code_gen import (
    Generated,
    compiled,
    current_target,
    without_sizes_in_bits,
)
from loopnest.graph_kernels.graph_launch import launch_of
from loopnest.graph_kernels.kernel_calls import with_kernels
from loopnest.graph_kernels.kernel_fusion import inlined
from loopnest.graph_kernels.kernel_groups import is_library, product_of
from loopnest.graph_kernels.library_times import (
    LibraryTimes,
    Rivals,
    Run,
    is_measured,
    measured,
)
from loopnest.graph_kernels.plan_records import PlannedStep, StepPlan, ValuePlace, places_in
from loopnest.graph_kernels.runs_by_size import RunsBySize, SizedRun
from loopnest.graph_kernels.step_arrays import Array, Memory, Runner, Seen, StepArrays
from loopnest.graph_kernels.variable_memory import VariableMemory
from loopnest.launch.new_arrays import address_of
from loopnest.scalar.dtypes import DType, uint8
from loopnest.scalar.expr import whole

if TYPE_CHECKING:
    from loopnest.proofs import Report


def compile_graph(
    g: Graph,
    target: str = "auto",
    library: bool = True,
    state: CompiledGraph | None = None,
    invariant: Sequence[str] = (),
    **options: Any,
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
            the target "interpret" and with ``LOOPNEST_MACHINE=any`` it always is, of symbolic sizes
            never.
        state: a compiled graph whose variables this one reads and assigns, instead of its own:
            what a step of training has learnt, a graph of scores sees, without copies.
        invariant: sizes that the bits of no element may depend on (`loopnest.batch_invariant`):
            rows of a small batch have the same results inside of a large one. Kernels have then
            schedules of which that is shown, where need be the plain loops of the math; nothing is
            left to a library.
        **options: those of `loopnest.compile` for the target.

    Raises:
        GraphError: it assigns a variable twice, or has an op without a kernel and `library` is
            False, or a variable that `state` does not have; `invariant` names no size of it, or one
            that the bits of a kernel depend on with plain loops too.
        CompileError: as `loopnest.compile`.
    """
    require_graph(g, "compile")
    check_state(g)
    if not isinstance(library, bool):
        found = f"library is {kind_of(library)}"
        raise GraphError(f"compile({g.name})", found, "pass True or False")
    _check_sizes(g, invariant)
    library = library and not invariant
    named = named_target(target, f"compile({g.name}, target={short(target)})")
    chosen = current_target() if named == "auto" else named
    if state is not None:
        _check_shared(g, chosen, state)
    sized, unsized = _products(g, chosen) if library else ([], frozenset[str]())
    times = measured([_rivals(x, chosen, options) for x in sized])
    return _compiled(g, chosen, library, options, times, state, unsized, tuple(invariant))


def _check_sizes(g: Graph, invariant: object) -> None:
    """Check that a graph has the sizes that its bits are not to depend on.

    Raises:
        GraphError: it has not, or they are no names.
    """
    subject = f"compile({g.name}, invariant={invariant!r})"
    if isinstance(invariant, str) or not isinstance(invariant, Sequence):
        found = f"invariant is {kind_of(invariant)}"
        raise GraphError(subject, found, 'pass a list of sizes, as ["N"]')
    known = list(dict.fromkeys([name for node in g.nodes for name in node_sizes(node)]))
    for name in invariant:
        if name not in known:
            raise GraphError(subject, f"{name!r} is no size of it", f"its sizes are {known}")


def _check_shared(g: Graph, target: str, other: object) -> None:
    """Check that a compiled graph has the variables of a graph.

    Raises:
        GraphError: they are not what the graph needs.
    """
    subject = f"compile({g.name}, state=…)"
    if not isinstance(other, CompiledGraph):
        raise GraphError(subject, f"state is {kind_of(other)}", "pass what G.compile returned")
    if (other.target == "cuda") != (target == "cuda"):
        found = f"the variables lie where '{other.target}' runs, the graph is for '{target}'"
        raise GraphError(subject, found, "compile both for one target")
    memory = other.variable_memory
    for name, node in g.variables.items():
        own = memory.nodes.get(name)
        if own is None:
            has = ", ".join(memory.nodes) or "none"
            found = f"{other.graph.name} has no variable {name}; it has {has}"
            raise GraphError(subject, found, "let both graphs have the same variables")
        if own.type != node.type:
            found = f"the variable {name} is {node.type}, in {other.graph.name} it is {own.type}"
            raise GraphError(subject, found, "let both graphs have the same variables")


def _compiled(
    g: Graph,
    target: str,
    library: bool,
    options: Mapping[str, Any],
    times: Mapping[str, LibraryTimes],
    shared: CompiledGraph | None = None,
    unsized: frozenset[str] = frozenset(),
    invariant: tuple[str, ...] = (),
) -> CompiledGraph:
    faster = {name for name, found in times.items() if not found.by_library}
    own = tuple(sorted(faster | unsized))
    graph, found = with_kernels(g, target, library, fallback=library, own=own)
    found = without_sizes_in_bits(found, target, invariant)
    runners = compiled(found, target, options)
    return CompiledGraph(g, target, graph, found, runners, library, times, shared)


def _products(g: Graph, target: str) -> tuple[list[Node], frozenset[str]]:
    """Return the products of matrices of known sizes, and the others by `product_of`.

    No time decides on the others. They have kernels: a library that has threads of its own waits
    for those of kernels around it, which for a short time after a launch wait in busy loops (2
    cores: a hundred times as long).
    """
    if target == "interpret" or not is_measured():
        return [], frozenset()
    nodes = {product_of(x): x for x in inlined(Decompose()(g)).nodes if is_library(x)}
    others = [k for k, x in nodes.items() if any(map(list, map(node_sizes, (x, *x.inputs))))]
    return [x for name, x in nodes.items() if name not in others], frozenset(others)


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
        shared: a graph whose variables this one has too; None for its own.
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
        shared: CompiledGraph | None = None,
    ) -> None:
        self.graph, self.target = graph, target
        self._subject = f"{graph.name}(...)"
        self._device: DeviceArrays | None = None
        if target == "cuda":
            self._device = DeviceArrays(gpu_driver.find_driver())
        with self._context():
            arrays = self._device or StepArrays()
            variables = None if shared is None else shared.variable_memory
            runs = RunsBySize(
                graph, target, calls, found, runners, library, arrays, shared=variables
            )
        self._runs = runs
        self.variable_memory: VariableMemory = runs.memory.variables
        """The variables, which graphs that are compiled with ``state=`` share."""
        self._device_states = self._new_device_states(shared)
        self.state: Mapping[str, Array] = self._new_state(shared)
        """The value of each variable, by name: the arrays themselves, which calls overwrite."""
        self.kernels = tuple([launch_of(step, times) for step in runs.plan.steps])
        """Each launch, in order."""
        self._expected = [(x.shape, x.dtype.numpy) for x in graph.inputs]
        self._last: tuple[SizedRun, HostCall] | None = None
        """The run of the last call, if the next one may be a call of C."""

    def _new_device_states(self, shared: CompiledGraph | None) -> DeviceStates | None:
        if shared is not None:
            return shared._device_states
        memory = self.variable_memory
        if self._device is None:
            return None
        return DeviceStates(self._device, memory.states, memory.shapes())

    def _new_state(self, shared: CompiledGraph | None) -> Mapping[str, Array]:
        if shared is not None:
            return shared.state
        if self._device_states is not None:
            return self._device_states
        memory = self.variable_memory
        own = {name: memory.states[name].reshape(x) for name, x in memory.shapes().items()}
        return MappingProxyType(own)

    def __repr__(self) -> str:
        return f"<CompiledGraph {self.graph.name} on '{self.target}': {len(self.kernels)} launches>"

    def __call__(self, *arrays: Any, **sizes: int) -> Any:
        """Run the graph once.

        Args:
            *arrays: the inputs, in order; what is not C-contiguous is copied, and what lies in a
                variable of this function too.
            **sizes: the sizes that the shapes of the inputs do not say.

        Returns:
            The output, or a tuple of them; arrays of the caller's own. Of a tuple it is a tuple, of
            a group of updates (`G.group`, ``minimize``) a sequence whose values of variables are
            copied when they are asked for, until a later call overwrites them.

        Raises:
            LaunchError: an argument does not fit, or a node at these sizes; nothing ran.
        """
        if self._last is not None and not sizes:
            run, call = self._last
            with self.variable_memory.lock:
                results = run.called(call, arrays)
            if results is not None:
                return results[0] if len(results) == 1 else results
        given, places = self._checked(arrays)
        names = self._runs.names
        numbers = self._runs.numbers([x.shape for x in given], sizes) if names or sizes else ()
        with self.variable_memory.lock:
            if self._device_states is not None:
                return self._on_device(self._device_states, numbers, given)
            run = self._runs.at(numbers)
            self._last = None if sizes or run.host_call is None else (run, run.host_call)
            if run.is_table:
                results = run.run(given, places)
            else:
                with np.errstate(all="ignore"):
                    results = run.run(given, places)
        return results[0] if len(results) == 1 else results

    def _on_device(
        self, states: DeviceStates, numbers: tuple[int, ...], given: Sequence[Array]
    ) -> Any:
        """Return the outputs of a call whose memory is that of the GPU."""
        device = states.arrays
        with np.errstate(all="ignore"), device.driver.current():
            run = self._runs.at(numbers)
            states.send()
            sent = [device.constant(array) for array in given]
            results = device.results(run.run(sent, [x.address for x in sent]))
            states.fetch()
        return results[0] if len(results) == 1 else results

    def _context(self) -> AbstractContextManager[None]:
        """Return where memory may be used: a GPU's in its context."""
        return nullcontext() if self._device is None else self._device.driver.current()

    # Variables

    def state_dict(self) -> dict[str, Array]:
        """Return a copy of the value of each variable, by name: a checkpoint."""
        memory = self.variable_memory
        with memory.lock, self._context():
            if self._device_states is not None:
                self._device_states.send()
            shapes = memory.shapes().items()
            return {name: memory.arrays.kept(memory.states[name]).reshape(x) for name, x in shapes}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Give each variable the value that has its name, as `state_dict` returned them.

        Raises:
            LaunchError: a name is missing or unknown, or a value is no array of the shape and type;
                no variable has changed.
        """
        subject, memory = f"{self.graph.name}.load_state_dict(…)", self.variable_memory
        if not isinstance(values, Mapping):
            reason = f"the values are {kind_of(values)}, not a mapping of names"
            raise LaunchError(subject, reason, "pass what state_dict returned")
        found: dict[str, Array] = {}
        for name, node in memory.nodes.items():
            if name not in values:
                raise LaunchError(subject, f"there is no value for the variable {name}")
            try:
                found[name] = np.array(values[name])  # a copy: it may be memory of a variable
            except (ValueError, TypeError) as error:
                reason = f"the value of the variable {name} is no array"
                raise LaunchError(subject, reason, "pass what state_dict returned") from error
            if found[name].shape != node.shape or found[name].dtype != node.dtype.numpy:
                given = f"{found[name].dtype}{list(found[name].shape)}"
                reason = f"the variable {name} is {node.type}, the value {given}"
                raise LaunchError(subject, reason, "pass what state_dict returned")
        unknown = [name for name in values if name not in found]
        if unknown:
            has = ", ".join(found) or "none"
            reason = f"there is no variable {short(unknown[0])}"
            raise LaunchError(subject, reason, f"the graph has {has}")
        with memory.lock, self._context():
            memory.version += 1
            for name, value in found.items():
                memory.arrays.overwrite(memory.states[name], value)
            if self._device_states is not None:
                self._device_states.fetch()

    # Times

    def profile(self, *arrays: Any, calls: int = 5, **sizes: int) -> StepProfile:
        """Measure the launches of a step; variables are then as they were before.

        Args:
            *arrays: as of a call.
            calls: how often to run; of each launch the least time counts.
            **sizes: as of a call.

        Raises:
            LaunchError: as of a call; `calls` is less than 1.
        """
        if not isinstance(calls, int) or calls < 1:
            raise LaunchError(f"{self.graph.name}.profile(…)", f"calls is {short(calls)}")
        given, places = self._checked(arrays)
        numbers = self._runs.numbers([x.shape for x in given], sizes)
        before = self.state_dict()
        with self.variable_memory.lock, np.errstate(all="ignore"), self._context():
            run = self._runs.at(numbers)
            if self._device is not None:
                given = [self._device.constant(array) for array in given]
                places = [x.address for x in given]
            times = [run.timed(given, places) for _ in range(calls)]
        self.load_state_dict(before)
        at_sizes = dict(zip(self._runs.names, numbers, strict=True))
        moved = tuple([at(launch.bytes, at_sizes) for launch in self.kernels])
        return StepProfile(self.kernels, moved, *least(times))

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
        with self.variable_memory.lock, self._context():
            return self._runs.at(tuple([sizes[name] for name in self._runs.names])).plan

    def verify(self, kernels: bool = False, **sizes: int) -> Report:
        """Prove what stands between the kernels of a step, without running it.

        Of each step: what it reads is the last value written to its operand, in the size and the
        type that the kernel, the library or NumPy takes. What it writes lies over nothing that a
        later step, a result or a variable still needs, nor over an operand, but where its kernel is
        made to overwrite one. Arrays of the caller and constants are not written. At the end
        results and variables have the values that the graph gives them.

        What a kernel computes of its operands `loopnest.verify` proves, which takes longer than all
        this: `kernels` asks it of each. What is taken on trust: the passes that made the calls of
        the graph, and what a library, NumPy or torch computes.

        Args:
            kernels: whether to prove each kernel too.
            **sizes: a value for each size. Where one is left out, the proof is for all sizes: each
                set of sizes gets a plan with places in memory of its own, none of which runs before
                it is proved in the same way; those that calls have made are proved again.

        Returns:
            A report as that of `loopnest.verify`: "refuted" names the step, its operand and what
            lies there instead; "unknown" comes from kernels alone.

        Raises:
            LaunchError: a size that the graph does not have, or that is no int >= 0; a node that
                does not fit at these sizes.

        >>> import loopnest.graph as G
        >>> x = G.var("x", ("N", 8))
        >>> print(G.compile(G.Graph([x], [G.softmax(x)]), target="interpret").verify())
        proved for all sizes

        Source: Pnueli, Siegel and Singerman, "Translation validation", TACAS 1998: proved is what
        was made, not what makes it.
        """
        from loopnest.proofs import Finding, Report, verify
        from loopnest.proofs.report import ALL_SIZES

        numbers = self._numbers_of(sizes)
        with self.variable_memory.lock, self._context():
            faults = self._runs.faults(numbers)
        found = [Finding(x.kind, "refuted", x.message, x.tensor, sizes=x.sizes) for x in faults]
        named = ", ".join([f"{name}={value}" for name, value in sizes.items()])
        scope = named if numbers else ALL_SIZES
        reports = [Report("refuted" if faults else "proved", tuple(found), scope)]
        if kernels:
            for kernel in dict.fromkeys([x.kernel for x in self.kernels if x.kernel]):
                own = {p.name for p in kernel.params if p.kind == "size"}
                known = {name: value for name, value in sizes.items() if name in own}
                reports.append(verify(kernel, **known))
        worst = min(reports, key=lambda x: ("refuted", "unknown", "proved").index(x.status))
        findings = [finding for x in reports for finding in x.findings]
        scopes = dict.fromkeys([scope, *[x.scope for x in reports if not x.all_sizes]])
        return Report(worst.status, tuple(findings), "; ".join(scopes))

    def _numbers_of(self, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
        """Return sizes in order; None where one is left out.

        Raises:
            LaunchError: one is none of the graph, or no int >= 0.
        """
        names = self._runs.names
        for name, value in sizes.items():
            if name not in names:
                has = ", ".join(names) or "none"
                raise LaunchError(
                    self._subject, f"it has no size '{name}'", f"its sizes are: {has}"
                )
            if (whole(value) or 0) < 0 or whole(value) is None:
                found = f"{name} = {short(value)} is no size"
                raise LaunchError(self._subject, found, "sizes are ints >= 0")
        return tuple([sizes[name] for name in names]) if len(sizes) == len(names) else None

    # Arguments

    def _checked(self, arrays: Sequence[Any]) -> tuple[list[Array], list[int]]:
        """Return the arguments as aligned C-contiguous arrays of the types and ranks of inputs.

        And where their first elements lie.
        """
        if len(arrays) != len(self._expected):
            names = ", ".join([f"{x.name}: {x.type}" for x in self.graph.inputs]) or "none"
            found = f"{len(arrays)} arrays were given for {len(self._expected)} inputs"
            raise LaunchError(self._subject, found, f"pass {names}")
        begin, end = self.variable_memory.host_range
        sized = bool(self._runs.names)
        given: list[Array] = []
        places: list[int] = []
        for value, (shape, dtype) in zip(arrays, self._expected, strict=True):
            array = value if value.__class__ is np.ndarray else np.asarray(value)
            fits = array.ndim == len(shape) if sized else array.shape == shape
            if not fits or array.dtype != dtype:
                raise self._does_not_fit(self.graph.inputs[len(given)], value, array)
            if not (array.flags.c_contiguous and array.flags.aligned):
                array = array.copy()
            place = address_of(array)
            if begin < place + array.nbytes and place < end:
                array = array.copy()  # a step may write to the variable before it is read
                place = address_of(array)
            given.append(array)
            places.append(place)
        return given, places

    def _does_not_fit(self, node: Node, value: object, array: Array) -> LaunchError:
        found = f"{node.name} is {node.type}, the array {array.dtype}{list(array.shape)}"
        hint = "compile the graph for the shapes and types that it is called with"
        if array.dtype.kind in "OSU":
            found, hint = f"{node.name} is {node.type}, it is given {kind_of(value)}", "pass arrays"
        return LaunchError(self._subject, found, hint)


STREAM = 0
"""The default stream, on which all that a graph does on the GPU follows each other."""


class DeviceArrays(StepArrays):
    """Arrays in the memory of a GPU, as the steps of a graph use them.

    All functions are called where the GPU's context is current.

    Args:
        driver: of the GPU.
    """

    is_host = False

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.address = attrgetter("address")

    def maker(self, shape: Sequence[int], dtype: DType) -> Callable[[], DeviceView]:
        """Return a function that makes new arrays."""
        own, kind = tuple(shape), dtype.numpy
        return lambda: self._empty(own, kind)

    def _empty(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> DeviceView:
        memory = DeviceMemory(self.driver, math.prod(shape) * kind.itemsize, STREAM)
        return DeviceView(memory, memory.address, shape, kind, None, False, memory)

    def constant(self, value: npt.NDArray[Any]) -> DeviceView:
        """Return a copy of an array of the host, flat."""
        memory = DeviceMemory(self.driver, value.nbytes, STREAM)
        found = (memory.address, (value.size,), value.dtype)
        if value.nbytes:
            self.driver.upload(memory.address, np.ascontiguousarray(value), STREAM)
        return DeviceView(memory, *found, None, False, memory)

    def room(self, size: int) -> DeviceView:
        """Return bytes."""
        return self._empty((size,), uint8.numpy)

    def piece(self, room: DeviceView, start: int, size: int, dtype: DType) -> DeviceView:
        """Return bytes of a room as a flat array of elements."""
        shape = (size // dtype.numpy.itemsize,)
        return replace(room, address=room.address + start, shape=shape, dtype=dtype.numpy)

    def seen(self, array: DeviceView, place: ValuePlace) -> DeviceView:
        """Return the array of a storage as a place in it says, at known sizes."""
        shape = tuple([at(extent, {}) for extent in place.shape])
        if place.strides is not None:
            steps = tuple([at(step, {}) for step in place.strides])
            return replace(array, shape=shape, strides=steps, read_only=True)
        if place.axes is None:
            return replace(array, shape=shape)
        plain = [math.prod(shape[n + 1 :]) for n in range(len(shape))]
        axes = place.axes
        steps = tuple([plain[axis] for axis in axes])
        return replace(array, shape=tuple([shape[axis] for axis in axes]), strides=steps)

    def alias(self, array: DeviceView) -> DeviceView:
        """Return another array on the same memory."""
        return replace(array)

    def kept(self, array: DeviceView) -> npt.NDArray[Any]:
        """Return a copy on the host for a caller, behind the call."""
        with self.driver.current():
            return self.copied(array)

    def overwrite(self, array: DeviceView, value: DeviceView | npt.NDArray[Any]) -> None:
        """Give an array the elements of another, in C order."""
        self.send(array, self.copied(value) if isinstance(value, DeviceView) else value)

    def without_kernel(
        self, step: PlannedStep, seen: Callable[[ValuePlace], Seen], sizes: Mapping[str, int]
    ) -> Callable[[Memory], None]:
        """Return what computes a step that has no kernel: NumPy, on copies."""
        host = StepArrays()

        def copy_of(place: ValuePlace) -> Seen:
            return lambda memory: host.seen(memory[place.storage], place)

        compute = host.without_kernel(step, copy_of, sizes)
        reads = {place.storage for place in places_in(step.inputs)}
        writes = [place.storage for place in step.outputs]

        def run(memory: Memory) -> None:
            own: Memory = list(memory)
            for number in reads:
                own[number] = self.copied(memory[number])
            for number in writes:
                own[number] = np.empty(memory[number].size, memory[number].dtype)
            compute(own)
            for number in writes:
                self.send(memory[number], own[number])

        return run

    # To the host and back

    def copied(self, array: DeviceView) -> npt.NDArray[Any]:
        """Return a copy: on the host, where results go, when all work on it is done."""
        found = np.empty(array.shape, array.dtype)
        if array.strides is not None:
            array = gathered(array, self.driver, STREAM)
        if found.nbytes:
            self.driver.download(found, array.address, STREAM)
        return found

    def send(self, array: DeviceView, value: npt.NDArray[Any]) -> None:
        """Copy elements of the host into an array."""
        if value.nbytes:
            self.driver.upload(array.address, np.ascontiguousarray(value), STREAM)

    def results(self, values: Any) -> Any:
        """Return outputs of a step as arrays of the host; of a tuple a tuple."""
        if type(values) is tuple:
            return tuple([self.results(value) for value in values])
        return self.copied(values) if isinstance(values, DeviceView) else values


class DeviceStates(Mapping[str, npt.NDArray[Any]]):
    """The variables of a graph on a GPU, by name: arrays of the host.

    An array is made when it is asked for. From then on each call copies it to the GPU before, where
    a caller may have written to it, and back afterwards.

    Args:
        arrays: of the GPU.
        states: the variables there, flat.
        shapes: their shapes.
    """

    def __init__(
        self,
        arrays: DeviceArrays,
        states: Mapping[str, DeviceView],
        shapes: Mapping[str, Sequence[int]],
    ) -> None:
        self.arrays, self._states, self._shapes = arrays, states, shapes
        self._lent: dict[str, npt.NDArray[Any]] = {}

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        if name not in self._lent:
            with self.arrays.driver.current():
                found = self.arrays.copied(self._states[name])
            self._lent[name] = found.reshape(self._shapes[name])
        return self._lent[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def send(self) -> None:
        """Copy to the GPU what a caller may have written."""
        for name, value in self._lent.items():
            self.arrays.send(self._states[name], value)

    def fetch(self) -> None:
        """Copy what callers look at from the GPU."""
        for name, value in self._lent.items():
            value[...] = self.arrays.copied(self._states[name]).reshape(value.shape)


@dataclass(frozen=True, slots=True)
class StepProfile:
    """The times of a step, each the least of several calls.

    Args:
        launches: what was launched, in order: as ``fn.kernels``.
        bytes: what each reads and writes, at the sizes of the call.
        seconds: of each launch.
        overhead: seconds of a call besides its launches: arguments, results, the calls themselves.
    """

    launches: tuple[Any, ...]
    bytes: tuple[int, ...]
    seconds: tuple[float, ...]
    overhead: float

    @property
    def total(self) -> float:
        """The seconds of the launches and of what is besides."""
        return sum(self.seconds) + self.overhead

    def __str__(self) -> str:
        rows = zip(self.launches, self.bytes, self.seconds, strict=True)
        slowest = sorted(rows, key=lambda row: -row[2])
        lines = [f"{_milliseconds(s)} {_rate(moved, s)}  {_name(x)}" for x, moved, s in slowest]
        share = self.overhead / self.total if self.total else 0.0
        lines += [
            f"{_milliseconds(sum(self.seconds))}  {len(self.launches)} launches",
            f"{_milliseconds(self.overhead)}  besides ({share:.1%})",
        ]
        return "\n".join(lines)


def least(calls: Sequence[tuple[float, Sequence[float]]]) -> tuple[tuple[float, ...], float]:
    """Return the least seconds of each launch, and of what each call takes besides.

    Args:
        calls: of each call its seconds, and those of its launches.
    """
    launches = tuple([min(times) for times in zip(*[own for _, own in calls], strict=True)])
    return launches, max(0.0, min([whole - sum(own) for whole, own in calls]))


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:9.3f} ms"


def _rate(moved: int, seconds: float) -> str:
    return f"{moved / seconds / 1e9:7.2f} GB/s" if seconds > 0 else " " * 12


def _name(launch: Any) -> str:
    how = launch.schedule or ("library" if launch.library else "fallback")
    return f"{how}: {', '.join(launch.ops)}"
