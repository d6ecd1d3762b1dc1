"""A step of a compiled graph at sizes: its memory, and what a call does to it.

On "c" the launches that follow each other are one call of a table (`launch_table`). What is the
same at all sizes (constants, variables, the arena) belongs to `StepMemory`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

import loopnest as ln
from loopnest.backends.compiled_kernel import CompiledKernel
from loopnest.backends.cpu.c_target import CompiledC
from loopnest.backends.cpu.openmp import threads_are_lost
from loopnest.errors import LaunchError
from loopnest.graph.dimensions import at
from loopnest.graph.node import Node
from loopnest.graph.node_values import compute
from loopnest.graph_kernels.launch_table import MOST_POINTERS, MOST_SIZES, LaunchTable
from loopnest.graph_kernels.step_plan import (
    ALIGNMENT,
    PlaceTree,
    PlannedStep,
    StepPlan,
    Storage,
    ValuePlace,
    places_in,
)

Array: TypeAlias = "npt.NDArray[Any]"
Values: TypeAlias = "Array | tuple[Values, ...]"
Pointers: TypeAlias = "npt.NDArray[np.uint64]"
Action: TypeAlias = "Callable[[list[Array], Pointers], None]"
"""A step on the storages of a call, and on where they lie."""
Runner: TypeAlias = "CompiledKernel[ln.Kernel]"

_NOTHING: Array = np.empty(0, np.uint8)


class StepMemory:
    """The memory that stays from call to call: constants, variables, the arena.

    Args:
        variables: the nodes of the variables, one a name.
    """

    def __init__(self, variables: Mapping[str, Node]) -> None:
        sizes = {name: _rounded(node.value.nbytes) for name, node in variables.items()}
        self.variables = aligned(sum(sizes.values()))
        """All variables in one piece, so that one look tells an alias of any."""
        self.arena = aligned(0)
        self.states: dict[str, Array] = {}
        """The value of each variable, flat."""
        self._constants: dict[Node, Array] = {}
        used = 0
        for name, node in variables.items():
            piece = self.variables[used : used + node.value.nbytes]
            used += sizes[name]
            self.states[name] = piece.view(node.value.dtype)
            self.states[name][:] = node.value.reshape(-1)

    def constant(self, node: Node) -> Array:
        """Return the value of a constant, flat."""
        if node not in self._constants:
            found = aligned(node.value.nbytes).view(node.value.dtype)
            found[:] = node.value.reshape(-1)
            self._constants[node] = found
        return self._constants[node]

    def reserve(self, size: int) -> None:
        """Let the arena have so many bytes."""
        if self.arena.nbytes < size:
            self.arena = aligned(size)


class SizedRun:
    """What a call does where all sizes are known.

    Args:
        subject: the call, for errors.
        target: where kernels run.
        plan: the steps at these sizes.
        runners: the compiled kernel of each call.
        sizes: the sizes.
        memory: what stays from call to call.
    """

    def __init__(
        self,
        subject: str,
        target: str,
        plan: StepPlan,
        runners: Mapping[Node, Runner],
        sizes: Mapping[str, int],
        memory: StepMemory,
    ) -> None:
        self.plan = plan
        self._subject, self._target = subject, target
        self._runners, self._sizes, self._memory = runners, sizes, memory
        self._outputs = [n for n, s in enumerate(plan.storages) if s.kind == "output"]
        self._inputs = {
            storage.node.name: number
            for number, storage in enumerate(plan.storages)
            if storage.kind == "input" and storage.node is not None
        }
        self._fixed: list[Array] = []
        self._places: Pointers = np.empty(0, np.uint64)
        self._arena: Array | None = None
        self._actions = self._joined()

    def run(self, given: Mapping[str, Array]) -> tuple[Values, ...]:
        """Run the steps on the arrays of the inputs, flat; return the outputs.

        Raises:
            LaunchError: no memory is left.
        """
        memory, pointers = self._storages(given)
        for action in self._actions:
            action(memory, pointers)
        taken: set[int] = set()
        results = tuple([self._result(x, memory, taken) for x in self.plan.results])
        self._commit(memory)
        return results

    # Memory

    def _attach(self) -> None:
        """Find the storages that stay: again where the arena has moved."""
        self._memory.reserve(self.plan.arena)
        self._arena = self._memory.arena
        self._fixed = []
        for storage in self.plan.storages:
            owner = storage if storage.over is None else self.plan.storages[storage.over]
            self._fixed.append(self._place(owner))
        self._places = np.array([array.ctypes.data for array in self._fixed], np.uint64)

    def _place(self, storage: Storage) -> Array:
        if storage.kind == "const" and storage.node is not None:
            return self._memory.constant(storage.node)
        if storage.kind == "state" and storage.node is not None:
            return self._memory.states[storage.node.attrs["variable"]]
        if storage.kind == "arena" and storage.offset >= 0:
            assert self._arena is not None
            piece = self._arena[storage.offset : storage.offset + storage.bytes]
            return piece.view(storage.dtype.numpy)
        return _NOTHING

    def _storages(self, given: Mapping[str, Array]) -> tuple[list[Array], Pointers]:
        """Return the array of each storage for a call, flat, and where each lies."""
        if self._arena is not self._memory.arena or self._arena.nbytes < self.plan.arena:
            self._attach()
        memory, pointers = list(self._fixed), self._places.copy()
        own = [(number, given[name]) for name, number in self._inputs.items()]
        for number in self._outputs:
            storage = self.plan.storages[number]
            own.append((number, aligned(storage.bytes).view(storage.dtype.numpy)))
        for number, array in own:
            memory[number] = array
            pointers[number] = array.ctypes.data
        return memory, pointers

    def _result(self, tree: PlaceTree, memory: Sequence[Array], taken: set[int]) -> Values:
        """Return an output as an array of the caller's own."""
        if not isinstance(tree, ValuePlace):
            return tuple([self._result(item, memory, taken) for item in tree])
        found = _view(tree, memory)
        if self.plan.storages[tree.storage].kind == "output" and tree.storage not in taken:
            taken.add(tree.storage)
            return found
        return found.copy()

    def _commit(self, memory: Sequence[Array]) -> None:
        """Write the new values of variables that lie elsewhere: all are read before one is."""
        values = [memory[place.storage] for _, place in self.plan.commits]
        kinds = [self.plan.storages[place.storage].kind for _, place in self.plan.commits]
        kept = [v.copy() if k == "state" else v for v, k in zip(values, kinds, strict=True)]
        for (state, _), value in zip(self.plan.commits, kept, strict=True):
            memory[state][:] = value

    # Steps

    def _joined(self) -> list[Action]:
        """Return what a call does: launches of C that follow each other are one action."""
        actions: list[Action] = []
        table: list[_Entry] = []
        for step in self.plan.steps:
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

        def action(memory: list[Array], pointers: Pointers) -> None:
            for source, target in step.copies:
                memory[target.storage][:] = memory[source.storage]
            run(memory)

        return action

    def _kernel_call(self, step: PlannedStep) -> Callable[[list[Array]], None]:
        runner, made = self._runners[step.node], step.made
        assert made is not None
        inputs = [step.inputs[number] for number in made.inputs]
        inplace = {output for output, _ in made.inplace}
        sizes = {name: self._sizes[name] for name in runner.sizes}

        def run(memory: list[Array]) -> None:
            arrays = [_view(place, memory) for tree in inputs for place in places_in(tree)]
            outputs = [
                None if number in inplace else _view(place, memory)
                for number, place in enumerate(step.outputs)
            ]
            runner(*arrays, out=tuple(outputs), **sizes)

        return run

    def _fast(self, step: PlannedStep) -> _Entry | None:
        """Return a kernel's C function with its storages and sizes; None where it has none."""
        made = step.made
        if self._target != "c" or made is None or step.copies or threads_are_lost():
            return None
        plan, executable = self._runners[step.node].launch_at(self._sizes)
        if plan.is_empty or plan.workspace or plan.program.ranges:
            return None  # what a launch does beyond calling the function
        if not isinstance(executable, CompiledC):
            return None
        if executable.threads is not None or len(plan.sizes) > MOST_SIZES:
            return None
        operands = [step.inputs[number] for number in made.inputs]
        overwritten = {output for output, _ in made.inplace}
        own = [p for number, p in enumerate(step.outputs) if number not in overwritten]
        slots = [place.storage for place in (*places_in(operands), *own)]
        if not 0 < len(slots) <= MOST_POINTERS:
            return None
        return executable.function(executable.index_bits(plan)), slots, [*plan.sizes.values()]

    def _table(self, launches: Sequence[_Entry]) -> Action:
        table = LaunchTable(*zip(*launches, strict=True))

        def action(memory: list[Array], pointers: Pointers) -> None:
            if table.run(pointers):
                found = "no memory is left for the local buffers of its kernels"
                raise LaunchError(self._subject, found, "pass smaller arrays, or fewer threads")

        return action


_Entry: TypeAlias = "tuple[Any, list[int], list[int]]"
"""A launch of a table: a function, the numbers of its storages, and its sizes."""


def _rounded(size: int) -> int:
    """Return a size in whole cache lines."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def aligned(size: int) -> Array:
    """Return bytes that begin at a cache line."""
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    piece: Array = raw[start : start + size]
    return piece


def _view(place: ValuePlace, memory: Sequence[Array]) -> Array:
    found = memory[place.storage].reshape([at(extent, {}) for extent in place.shape])
    return found if place.axes is None else found.transpose(place.axes)


def _numpy_call(step: PlannedStep) -> Callable[[list[Array]], None]:
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
