"""A compiled graph on tensors of torch: the plan of `loopnest.graph_kernels`, on torch's memory.

Tensors of the CPU are taken as they are by kernels of "c"; tensors of a GPU by kernels of "cuda",
on the stream that is torch's current one. A step that runs in torch is a call of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
import torch

from loopnest.backends.cpu.c_target import CompiledC
from loopnest.backends.cpu.openmp import threads_are_lost
from loopnest.errors import LaunchError
from loopnest.graph.dimensions import at
from loopnest.graph.node_values import compute
from loopnest.graph.program import Graph
from loopnest.graph_kernels.code_gen import compiled
from loopnest.graph_kernels.compiled_graph import launch_of, with_kernels
from loopnest.graph_kernels.launch_table import MOST_POINTERS, LaunchTable
from loopnest.graph_kernels.step_plan import (
    ALIGNMENT,
    PlaceTree,
    PlannedStep,
    Storage,
    ValuePlace,
    places_in,
    plan_steps,
)
from loopnest.torch.tensor_arrays import Tensor, array_of, tensor_of, torch_dtype
from loopnest.torch.torch_calls import run_in_torch

Memory: TypeAlias = "list[Tensor]"
Action: TypeAlias = "Callable[[Memory], None]"


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
        self._aliases = aliases
        self.graph, self.target, self.device = graph, target, device
        calls, found = with_kernels(graph, target, library=False, fallback=True)
        self._runners = compiled(found, target, options or {})
        plan = self._plan = plan_steps(calls, found, False, len(graph.outputs))
        self.kernels = tuple([launch_of(step) for step in plan.steps])
        """Each launch, in order."""
        self._lock = Lock()
        self._numbers = {
            storage.node.name: number
            for number, storage in enumerate(plan.storages)
            if storage.kind == "input" and storage.node is not None
        }
        self._constants = {
            number: self._constant(storage)
            for number, storage in enumerate(plan.storages)
            if storage.kind == "const"
        }
        self._outputs = [
            (number, at(storage.elements, {}), torch_dtype(storage.dtype))
            for number, storage in enumerate(plan.storages)
            if storage.kind == "output"
        ]
        self._fixed: Memory | None = None
        self._actions = self._joined()

    def __repr__(self) -> str:
        return f"<TorchGraph {self.graph.name} on '{self.target}': {len(self.kernels)} launches>"

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Run the graph once.

        Args:
            tensors: the inputs, in order, of the shapes and types that it was made for.

        Returns:
            A contiguous tensor for each output, of the caller's own where it is no alias.
        """
        with torch.no_grad(), self._lock:
            memory = self._memory(tensors)
            for action in self._actions:
                action(memory)
            taken: set[int] = set()
            return [
                self._result(place, memory, taken, number in self._aliases)
                for number, place in enumerate(self._plan.results)
            ]

    # Memory

    def _constant(self, storage: Storage) -> Tensor:
        assert storage.node is not None
        return tensor_of(storage.node.value.reshape(-1).copy()).to(self.device)

    def _memory(self, tensors: Sequence[Tensor]) -> Memory:
        """Return the flat tensor of each storage for a call; None for what a step makes."""
        if self._fixed is None:
            self._fixed = self._attached()
        memory = list(self._fixed)
        if self.target == "cuda":  # each call has an arena of its own, by the order of its stream
            self._fixed = None
        for node, tensor in zip(self.graph.inputs, tensors, strict=True):
            number = self._numbers.get(node.name)
            if number is not None:
                memory[number] = self._given(tensor)
        for number, elements, dtype in self._outputs:
            memory[number] = torch.empty(elements, dtype=dtype, device=self.device)
        return memory

    def _attached(self) -> Memory:
        """Return the constants and the places in an arena."""
        arena = torch.empty(self._plan.arena + ALIGNMENT, dtype=torch.uint8, device=self.device)
        arena = arena[-arena.data_ptr() % ALIGNMENT :]
        memory: Memory = [None] * len(self._plan.storages)
        for number, storage in enumerate(self._plan.storages):
            if storage.kind == "arena" and storage.offset >= 0:
                piece = arena[storage.offset : storage.offset + storage.bytes]
                memory[number] = piece.view(torch_dtype(storage.dtype))
        for number, constant in self._constants.items():
            memory[number] = constant
        return memory

    def _given(self, tensor: Tensor) -> Tensor:
        """Return an input as a flat tensor: itself, or a copy where it has other strides."""
        plain = tensor.detach()
        if plain.device != self.device:
            plain = plain.to(self.device)  # a number of the CPU beside tensors of a GPU
        if plain.is_conj() or plain.is_neg():
            plain = plain.resolve_conj().resolve_neg()
        return plain.contiguous().view(-1)

    def _result(self, tree: PlaceTree, memory: Memory, taken: set[int], is_alias: bool) -> Tensor:
        assert isinstance(tree, ValuePlace)
        found = _view(tree, memory)
        kind = self._plan.storages[tree.storage].kind
        if is_alias and kind == "input":
            return found
        if kind in ("output", "made") and tree.storage not in taken:
            taken.add(tree.storage)
            return found
        return found.clone(memory_format=torch.contiguous_format)

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
        if step.kind == "kernel":
            return self._kernel_call(step)
        return _torch_call(step) if step.node.op.startswith("torch_") else self._numpy_call(step)

    def _kernel_call(self, step: PlannedStep) -> Action:
        runner, made = self._runners[step.node], step.made
        assert made is not None
        inputs = [place for number in made.inputs for place in places_in(step.inputs[number])]

        def run(memory: Memory) -> None:
            operands = [_view(place, memory) for place in inputs]
            outputs = [_view(place, memory) for place in step.outputs]
            if self.target == "cuda":
                stream = torch.cuda.current_stream(self.device).cuda_stream
                runner(*operands, out=tuple(outputs), stream=stream)
            else:
                runner(*map(array_of, operands), out=tuple(map(array_of, outputs)))

        return run

    def _numpy_call(self, step: PlannedStep) -> Action:
        """Return a step of a graph op that has no kernel: NumPy computes it, on the host."""

        def run(memory: Memory) -> None:
            found = compute(step.node, [_arrays(tree, memory) for tree in step.inputs])
            values: Any = found if isinstance(found, tuple) else (found,)
            for place, value in zip(step.outputs, values, strict=True):
                _view(place, memory).copy_(tensor_of(value.copy()))

        return run

    def _fast(self, step: PlannedStep) -> tuple[Any, list[int]] | None:
        """Return a kernel's C function and the storages that it takes; None where it has none."""
        made = step.made
        if self.target != "c" or made is None or threads_are_lost():
            return None
        plan, executable = self._runners[step.node].launch_at({})
        if plan.is_empty or plan.workspace or plan.program.ranges:
            return None  # what a launch does beyond calling the function
        if not isinstance(executable, CompiledC):
            return None
        if executable.threads is not None:
            return None
        operands = [step.inputs[number] for number in made.inputs]
        slots = [place.storage for place in (*places_in(operands), *step.outputs)]
        if not 0 < len(slots) <= MOST_POINTERS:
            return None
        return executable.function(executable.index_bits(plan)), slots

    def _table(self, launches: Sequence[tuple[Any, list[int]]]) -> Action:
        storages = list(dict.fromkeys([slot for _, slots in launches for slot in slots]))
        place = {storage: number for number, storage in enumerate(storages)}
        slots = [[place[slot] for slot in own] for _, own in launches]
        table = LaunchTable([function for function, _ in launches], slots, [[] for _ in launches])

        def run(memory: Memory) -> None:
            places = [memory[storage].data_ptr() for storage in storages]
            if table.run(np.array(places, np.uint64)):
                found = "no memory is left for the local buffers of its kernels"
                raise LaunchError(f"{self.graph.name}(...)", found, "pass smaller tensors")

        return run


def _torch_call(step: PlannedStep) -> Action:
    """Return a step that torch computes; what it returns is the memory of the values."""
    inputs = [place for tree in step.inputs for place in places_in(tree)]

    def run(memory: Memory) -> None:
        found = run_in_torch(step.node, [_view(place, memory) for place in inputs])
        values = [value for value in found if isinstance(value, torch.Tensor)]
        for place, value in zip(step.outputs, values, strict=True):
            memory[place.storage] = value.contiguous().view(-1)

    return run


def _view(place: ValuePlace, memory: Memory) -> Tensor:
    found = memory[place.storage].view([at(extent, {}) for extent in place.shape])
    return found if place.axes is None else found.permute(place.axes)


def _arrays(tree: PlaceTree, memory: Memory) -> Any:
    if isinstance(tree, ValuePlace):
        return array_of(_view(tree, memory).cpu())
    return tuple([_arrays(item, memory) for item in tree])
