"""A graph of ATen operators as a function of torch's tensors: what torch.compile calls.

A compiled graph on tensors of torch: the runs of `loopnest.graph_kernels`, on torch's memory.

Tensors of the CPU are taken as they are by kernels of "c"; tensors of a GPU by kernels of "cuda",
on the stream that is torch's current one. A step that runs in torch is a call of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from loopnest.graph.dimensions import at
from loopnest.graph.node_values import compute
from loopnest.graph.program import Graph
from loopnest.graph.size_binding import bound_alone
from loopnest.graph_kernels.code_gen import compiled
from loopnest.graph_kernels.graph_launch import launch_of
from loopnest.graph_kernels.kernel_calls import with_kernels
from loopnest.graph_kernels.plan_records import (
    ALIGNMENT,
    PlaceTree,
    PlannedStep,
    ValuePlace,
    places_in,
)
from loopnest.graph_kernels.runs_by_size import RunsBySize
from loopnest.graph_kernels.step_arrays import Memory, Runner, Seen, StepArrays
from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import Expr
from loopnest.torch.aten_graph import AtenGraph, AtenOutput
from loopnest.torch.input_layouts import giver
from loopnest.torch.tensor_arrays import Tensor, array_of, tensor_of, torch_dtype
from loopnest.torch.torch_calls import returns_views, run_in_torch


class TorchGraph:
    """A graph that runs on tensors: ``fn(tensors)`` returns one tensor for each output.

    Args:
        graph: the graph.
        target: "c" or "interpret" for tensors of the CPU, "cuda" for those of a GPU.
        device: where the tensors are.
        options: of `loopnest.compile`.
        aliases: outputs that may be memory of an input.
    """

    def __init__(
        self,
        graph: Graph,
        target: str,
        device: Any,
        options: Mapping[str, Any] | None = None,
        aliases: frozenset[int] = frozenset(),
    ) -> None:
        self.graph, self.target = graph, target
        calls, found = with_kernels(graph, target, library=False, fallback=True)
        runners = compiled(found, target, options or {}, variants=True)
        arrays = TorchArrays(device)
        self._runs = RunsBySize(
            graph, target, calls, found, runners, False, arrays, aliases, guarded=True
        )
        self._lock, self._address = self._runs.memory.variables.lock, arrays.address
        self.sizes = self._runs.names
        """The sizes of the graph."""
        self.kernels = tuple([launch_of(step, {}) for step in self._runs.plan.steps])
        """Each launch, in order."""

    def __repr__(self) -> str:
        return f"<TorchGraph {self.graph.name} on '{self.target}': {len(self.kernels)} launches>"

    def makes_outputs(self, numbers: tuple[int, ...]) -> bool:
        """Whether each output of a call is a tensor of its own, the same way at each call."""
        with self._lock:
            return self._runs.at(numbers).makes_outputs

    def __call__(
        self, tensors: Sequence[Tensor], numbers: tuple[int, ...] = ()
    ) -> tuple[Tensor, ...]:
        """Run the graph once.

        Args:
            tensors: the inputs, in order, of the shapes and types that it was made for,
                C-contiguous and on its device.
            numbers: the value of each size, in the order of `sizes`.

        Returns:
            A contiguous tensor for each output, of the caller's own where it is no alias.
        """
        with self._lock:
            run = self._runs.at(numbers)
            places = [*map(self._address, tensors)]
            if run.is_table:
                return run.run(tensors, places)
            with torch.no_grad():
                found = run.run(tensors, places)
            if self.target == "cuda":  # each call has an arena of its own, by the order of a stream
                self._runs.memory.renew()
        return found


_empty_on_cpu = getattr(torch._C._dynamo.guards, "_empty_strided_cpu", None)
"""Makes a tensor of a shape, strides and a type: what code of torch's own compiler calls, in a
third of the time of `torch.empty`; None where this version of torch has no such function."""


class TorchArrays(StepArrays):
    """Tensors of torch on a device, as `loopnest.graph_kernels.step_arrays` asks of them."""

    is_host = False

    def __init__(self, device: Any) -> None:
        self.device = device
        self.address = torch.Tensor.data_ptr

    def maker(self, shape: Sequence[int], dtype: DType) -> Callable[[], Tensor]:
        own, kind = tuple(shape), torch_dtype(dtype)
        if self.device.type == "cpu" and _empty_on_cpu is not None:
            return partial(_empty_on_cpu, own, torch.empty(own, device="meta").stride(), kind)
        return partial(torch.empty, own, dtype=kind, device=self.device)

    def constant(self, value: Any) -> Tensor:
        return tensor_of(value.reshape(-1).copy()).to(self.device)

    def room(self, size: int) -> Tensor:
        found = torch.empty(size + ALIGNMENT, dtype=torch.uint8, device=self.device)
        start = -found.data_ptr() % ALIGNMENT
        return found[start : start + size]

    def piece(self, room: Tensor, start: int, size: int, dtype: DType) -> Tensor:
        return room[start : start + size].view(torch_dtype(dtype))

    def seen(self, array: Tensor, place: ValuePlace) -> Tensor:
        shape = [at(extent, {}) for extent in place.shape]
        if place.strides is not None:
            return array.as_strided(shape, [at(step, {}) for step in place.strides])
        found = array if list(array.shape) == shape else array.view(shape)
        return found if place.axes is None else found.permute(place.axes)

    def alias(self, array: Tensor) -> Tensor:
        return array.detach()

    def copied(self, array: Tensor) -> Tensor:
        return array.clone(memory_format=torch.contiguous_format)

    def overwrite(self, array: Tensor, value: Tensor) -> None:
        array.copy_(value.reshape(array.shape))

    def launch(
        self, runner: Runner, inputs: list[Tensor], outputs: list[Tensor], sizes: Mapping[str, int]
    ) -> None:
        if self.device.type == "cuda":
            stream = torch.cuda.current_stream(self.device).cuda_stream
            # Torch lends no tensor that has a gradient, as parameters have.
            lent = [tensor.detach() for tensor in inputs]
            runner(*lent, out=tuple(outputs), stream=stream, **sizes)
        else:
            runner(*map(array_of, inputs), out=tuple(map(array_of, outputs)), **sizes)

    def without_kernel(
        self, step: PlannedStep, seen: Callable[[ValuePlace], Seen], sizes: Mapping[str, int]
    ) -> Callable[[Memory], None]:
        """Return a call of torch; of an op that torch does not know, of NumPy on the host."""
        if step.node.op.startswith("torch_"):
            return self._torch_call(step, seen, sizes)
        node = bound_alone(step.node, sizes)

        def run(memory: Memory) -> None:
            found = compute(node, [self._tree(tree, memory) for tree in step.inputs])
            values: Any = found if isinstance(found, tuple) else (found,)
            for place, value in zip(step.outputs, values, strict=True):
                self.seen(memory[place.storage], place).copy_(tensor_of(value.copy()))

        return run

    def _torch_call(
        self, step: PlannedStep, seen: Callable[[ValuePlace], Seen], sizes: Mapping[str, int]
    ) -> Callable[[Memory], None]:
        """Return a step that torch computes; what it returns is the memory of the values.

        The memory of a view is copied: that of its operand is another value's after its last use.
        """
        inputs = [*map(seen, places_in(step.inputs))]
        own = self.copied if returns_views(step.node) else torch.Tensor.contiguous

        def run(memory: Memory) -> None:
            found = run_in_torch(step.node, [operand(memory) for operand in inputs], sizes)
            values = [value for value in found if isinstance(value, torch.Tensor)]
            for place, value in zip(step.outputs, values, strict=True):
                memory[place.storage] = own(value)

        return run

    def _tree(self, tree: PlaceTree, memory: Memory) -> Any:
        if isinstance(tree, ValuePlace):
            return array_of(self.seen(memory[tree.storage], tree).cpu())
        return tuple([self._tree(item, memory) for item in tree])


MAX_SIZES = 512
"""How arguments and results are bound is kept for so many sets of sizes."""


class CompiledProgram:
    """A graph of ATen operators, compiled.

    `kernels` are its launches, `in_torch` the operators without a rule, by name, and why, `times`
    what was measured of operators that a library may compute.

    Args:
        found: the graph.
        target: of its kernels.
        device: of its tensors.
        options: of `loopnest.compile`.
    """

    def __init__(
        self, found: AtenGraph, target: str, device: Any, options: Mapping[str, Any]
    ) -> None:
        self.found, self.device = found, device
        self.in_torch, self.times = found.in_torch, found.times
        self.run = TorchGraph(found.graph, target, device, options, found.aliases)
        self.kernels = self.run.kernels
        self._sizes = [found.sizes[name] for name in self.run.sizes]
        self.givers = [giver(layout, device) for layout in found.layouts]
        """For each input what takes it, at sizes."""
        self._bound: dict[tuple[int, ...], _AtSizes] = {}

    def __call__(self, args: Sequence[Any]) -> list[Any] | None:
        """Run the graph; return None where an argument lies otherwise in memory than expected."""
        numbers = tuple([args[place] for place in self._sizes]) if self._sizes else ()
        bound = self._bound.get(numbers)
        if bound is None:
            if len(self._bound) >= MAX_SIZES:
                self._bound.clear()
            bound = self._bound[numbers] = _AtSizes(self, numbers)
        return bound.run(args)


class _AtSizes:
    """A program at sizes: how its arguments are taken, and its results are given."""

    def __init__(self, program: CompiledProgram, numbers: tuple[int, ...]) -> None:
        found = program.found
        self.numbers, self.graph = numbers, program.run
        sizes = dict(zip(program.run.sizes, numbers, strict=True))
        self.givers = [
            (source if isinstance(source, int) else -1, source, give(sizes))
            for source, give in zip(found.inputs, program.givers, strict=True)
        ]
        self.outputs = [_result(output, sizes) for output in found.outputs]
        self.plain: list[int] | None = None
        """The outputs of the graph that the program returns, where they are returned as they are;
        not known before the first call."""
        self.is_first = True

    def run(self, args: Sequence[Any]) -> list[Any] | None:
        tensors = []
        for place, tensor, give in self.givers:
            given = give(args[place] if place >= 0 else tensor)
            if given is None:
                return None
            tensors.append(given)
        made = self.graph(tensors, self.numbers)
        if self.plain is not None:
            return [made[place] for place in self.plain]
        results = [result(made) for result in self.outputs]
        if self.is_first:
            self.is_first = False
            self.plain = self._unchanged(made, results)
        return results

    def _unchanged(self, made: Sequence[Tensor], results: Sequence[Any]) -> list[int] | None:
        """Return which output of the graph each result is; None where one is none of them.

        And where calls may differ: tensors that each call makes anew have the same strides.
        """
        places = {id(tensor): place for place, tensor in enumerate(made)}
        found = [places.get(id(result)) for result in results]
        known = [place for place in found if place is not None]
        is_all = len(known) == len(found) and self.graph.makes_outputs(self.numbers)
        return known if is_all else None


def _result(
    output: AtenOutput | tuple[Any], sizes: Mapping[str, int]
) -> Callable[[Sequence[Tensor]], Any]:
    """Return what takes a value that the program returns from the outputs of its graph."""
    if isinstance(output, tuple):
        (value,) = output
        number = at(value, sizes) if isinstance(value, Expr) else value
        return lambda made: number
    place, axes = output.number, output.axes
    shape = None if output.shape is None else [at(extent, sizes) for extent in output.shape]
    wanted = tuple([at(step, sizes) for step in output.strides])

    def result(made: Sequence[Tensor]) -> Tensor:
        tensor = made[place]
        if axes is not None:
            tensor = tensor.permute(axes)
        if shape is not None:
            tensor = tensor.expand(shape)
        return tensor if tensor.stride() == wanted else _strided(tensor, wanted)

    return result


def _strided(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """Return an output with the strides that torch expects: itself where it has them."""
    if not tensor.numel() or len(strides) != tensor.dim():
        return tensor
    rows = zip(tensor.stride(), strides, tensor.shape, strict=True)
    if all(own == wanted or extent == 1 for own, wanted, extent in rows):
        return tensor
    if 0 in strides:
        return tensor
    result = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return result.copy_(tensor)
