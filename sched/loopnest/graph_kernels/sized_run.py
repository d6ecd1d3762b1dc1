"""A step of a compiled graph at sizes: its memory, and what a call does to it.

Arrays are NumPy's, or those of another library (`step_arrays`). On "c" the launches that follow
each other are one call of a table (`launch_table`). What is the same at all sizes (constants,
variables, the arena) belongs to `StepMemory`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from loopnest.backends.cpu.c_target import CompiledC
from loopnest.backends.cpu.openmp import threads_are_lost
from loopnest.errors import LaunchError
from loopnest.graph.dimensions import at
from loopnest.graph.node import Node
from loopnest.graph_kernels.launch_table import (
    MOST_POINTERS,
    MOST_SIZES,
    LaunchTable,
    Pointers,
    pointers_of,
)
from loopnest.graph_kernels.step_arrays import Array, Memory, Runner, StepArrays
from loopnest.graph_kernels.step_plan import (
    ALIGNMENT,
    PlaceTree,
    PlannedStep,
    StepPlan,
    Storage,
    ValuePlace,
    places_in,
)
from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import Expr

Values: TypeAlias = "Array | tuple[Values, ...]"
Action: TypeAlias = "Callable[[Memory, Pointers], None]"
"""A step on the storages of a call, and on where they lie."""


class StepMemory:
    """The memory that stays from call to call: constants, variables, the arena.

    Args:
        arrays: of which kind.
        variables: the nodes of the variables, one a name.
    """

    def __init__(self, arrays: StepArrays, variables: Mapping[str, Node]) -> None:
        self.arrays = arrays
        sizes = {name: rounded(node.value.nbytes) for name, node in variables.items()}
        self.variables = arrays.room(sum(sizes.values()))
        """All variables in one piece, so that one look tells an alias of any."""
        self.arena = arrays.room(0)
        self.reserved = 0
        """The bytes of the arena."""
        self.states: dict[str, Array] = {}
        """The value of each variable, flat."""
        self._constants: dict[Node, Array] = {}
        used = 0
        for name, node in variables.items():
            dtype = node.dtype
            self.states[name] = arrays.piece(self.variables, used, node.value.nbytes, dtype)
            arrays.overwrite(self.states[name], arrays.constant(node.value))
            used += sizes[name]

    def constant(self, node: Node) -> Array:
        """Return the value of a constant, flat."""
        if node not in self._constants:
            self._constants[node] = self.arrays.constant(node.value)
        return self._constants[node]

    def reserve(self, size: int) -> None:
        """Let the arena have at least `size` bytes."""
        if self.reserved < size:
            self.arena, self.reserved = self.arrays.room(size), size

    def renew(self) -> None:
        """Let the next call have an arena of its own."""
        self.arena, self.reserved = self.arrays.room(0), 0


@dataclass(frozen=True, slots=True)
class _NewArray:
    """An output that a call makes: the number of its storage, its shape and type."""

    number: int
    shape: tuple[int, ...]
    dtype: DType


class SizedRun:
    """What a call does where all sizes are known.

    Args:
        subject: the call, for errors.
        target: where kernels run.
        plan: the steps at these sizes.
        runners: the compiled kernel of each call.
        sizes: the sizes.
        memory: what stays from call to call.
        aliases: results that may be memory of an input; others are the caller's own.
    """

    def __init__(
        self,
        subject: str,
        target: str,
        plan: StepPlan,
        runners: Mapping[Node, Runner],
        sizes: Mapping[str, int],
        memory: StepMemory,
        aliases: frozenset[int] = frozenset(),
    ) -> None:
        self.plan = plan
        self._subject, self._target = subject, target
        self._runners, self._sizes, self._memory = runners, sizes, memory
        self._arrays = memory.arrays
        self._new = [*self._new_arrays()]
        self.inputs = [number for number, s in enumerate(plan.storages) if s.kind == "input"]
        """The storage of each input, in order."""
        self._fixed: Memory = []
        self._pointers = pointers_of([])
        self._arena: Array = None
        self._workspace: dict[int, int] = {}
        """Storages behind those of the plan that are workspace, and where they begin in it."""
        self._workspace_bytes = 0
        self._calls: list[PlannedStep] = []
        """Steps that are no entries of a table."""
        self._actions = self._joined()
        self._results = [(tree, n in aliases) for n, tree in enumerate(plan.results)]
        own = {new.number: new.shape for new in self._new}
        self._plain = [
            place.storage
            for place in plan.results
            if isinstance(place, ValuePlace) and own.get(place.storage) == place.shape
        ]
        """Where each result is an array that the call makes, as it is: their numbers."""
        if not len(set(self._plain)) == len(self._plain) == len(plan.results):
            self._plain = []

    @property
    def is_table(self) -> bool:
        """Whether a call runs kernels of C alone, and its results are all arrays that it makes."""
        return not self._calls and bool(self._plain)

    def _new_arrays(self) -> list[_NewArray]:
        """Return the outputs that a call makes, in the shapes that they are returned in."""
        shapes = {p.storage: p.shape for p in places_in(self.plan.results) if p.is_plain}
        found = []
        for number, storage in enumerate(self.plan.storages):
            if storage.kind == "output":
                shape = shapes.get(number, (storage.elements,))
                found.append(_NewArray(number, _numbers(shape, {}), storage.dtype))
        return found

    def run(self, given: Sequence[tuple[int, Array]]) -> tuple[Values, ...]:
        """Run the steps; return the outputs.

        Args:
            given: arrays of inputs, each with the number of its storage.

        Raises:
            LaunchError: no memory is left.
        """
        if self._arena is None or self._arena is not self._memory.arena:
            self._attach()
        memory, pointers = self._fixed.copy(), self._pointers
        address = self._arrays.address
        for number, array in given:
            memory[number] = array
            pointers[number] = address(array)
        for new in self._new:
            array = memory[new.number] = self._arrays.empty(new.shape, new.dtype)
            pointers[new.number] = address(array)
        for action in self._actions:
            action(memory, pointers)
        results = tuple([memory[number] for number in self._plain])
        if not self._plain:
            taken: set[int] = set()
            results = tuple([self._result(x, memory, taken, alias) for x, alias in self._results])
        if self.plan.commits:
            self._commit(memory)
        return results

    # Memory

    def _attach(self) -> None:
        """Find the storages that stay: again where the arena has moved."""
        room = rounded(self.plan.arena)
        self._memory.reserve(room + self._workspace_bytes)
        self._arena = self._memory.arena
        self._fixed = []
        nothing = self._arrays.room(0)
        for storage in self.plan.storages:
            owner = storage if storage.over is None else self.plan.storages[storage.over]
            found = self._place(owner)
            self._fixed.append(nothing if found is None else found)
        start = self._arrays.address(self._arena) + room
        spaces = [start + offset for offset in self._workspace.values()]
        self._pointers = pointers_of([*map(self._arrays.address, self._fixed), *spaces])

    def _place(self, storage: Storage) -> Array | None:
        if storage.kind == "const" and storage.node is not None:
            return self._memory.constant(storage.node)
        if storage.kind == "state" and storage.node is not None:
            return self._memory.states[storage.node.attrs["variable"]]
        if storage.kind == "arena" and storage.offset >= 0:
            offset = storage.offset
            return self._arrays.piece(self._arena, offset, storage.bytes, storage.dtype)
        return None

    def _seen(self, place: ValuePlace, memory: Memory) -> Array:
        return self._arrays.seen(memory[place.storage], place)

    def _result(self, tree: PlaceTree, memory: Memory, taken: set[int], is_alias: bool) -> Values:
        """Return an output as an array of the caller's own."""
        if not isinstance(tree, ValuePlace):
            return tuple([self._result(item, memory, taken, is_alias) for item in tree])
        kind = self.plan.storages[tree.storage].kind
        found = self._seen(tree, memory)
        if is_alias and kind == "input":
            return self._arrays.alias(found)
        if kind in ("output", "made") and tree.storage not in taken:
            taken.add(tree.storage)
            return found
        return self._arrays.copied(found)

    def _commit(self, memory: Memory) -> None:
        """Write the new values of variables that lie elsewhere: all are read before one is."""
        places = [place.storage for _, place in self.plan.commits]
        kinds = [self.plan.storages[number].kind for number in places]
        kept = [
            self._arrays.copied(memory[number]) if kind == "state" else memory[number]
            for number, kind in zip(places, kinds, strict=True)
        ]
        for (state, _), value in zip(self.plan.commits, kept, strict=True):
            self._arrays.overwrite(memory[state], value)

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
            self._calls.append(step)
            actions.append(self._slow(step))
        if table:
            actions.append(self._table(table))
        return actions

    def _slow(self, step: PlannedStep) -> Action:
        """Return a step as a call of a library, or of a compiled kernel."""
        arrays = self._arrays
        run = self._kernel_call(step) if step.kind == "kernel" else arrays.without_kernel(step)
        made = [x.storage for x in step.outputs if self.plan.storages[x.storage].kind == "made"]

        def action(memory: Memory, pointers: Pointers) -> None:
            for source, target in step.copies:
                arrays.overwrite(memory[target.storage], memory[source.storage])
            run(memory)
            for number in made:
                pointers[number] = arrays.address(memory[number])

        return action

    def _kernel_call(self, step: PlannedStep) -> Callable[[Memory], None]:
        runner, made = self._runners[step.node], step.made
        assert made is not None
        inputs = [place for number in made.inputs for place in places_in(step.inputs[number])]
        own = [p for p in runner.kernel.program.params if p.kind == "input"]
        sizes = {name: self._sizes[name] for name in runner.sizes}
        for number, (place, param) in enumerate(zip(inputs, own, strict=True)):
            steps = None if param.strides is None else _numbers(param.strides, sizes)
            shape = _numbers(param.shape, sizes)
            inputs[number] = ValuePlace(place.storage, shape, None, steps)
        inplace = {output for output, _ in made.inplace}

        def run(memory: Memory) -> None:
            outputs = [
                None if number in inplace else self._seen(place, memory)
                for number, place in enumerate(step.outputs)
            ]
            operands = [self._seen(place, memory) for place in inputs]
            self._arrays.launch(runner, operands, outputs, sizes)

        return run

    def _fast(self, step: PlannedStep) -> _Entry | None:
        """Return a kernel's C function with its storages and sizes; None where it has none."""
        made = step.made
        if self._target != "c" or made is None or step.copies or threads_are_lost():
            return None
        plan, executable = self._runners[step.node].launch_at(self._sizes)
        if plan.is_empty or plan.program.ranges or not isinstance(executable, CompiledC):
            return None  # what a launch does beyond calling the function
        if executable.threads is not None or len(plan.sizes) > MOST_SIZES:
            return None
        spaces = [p.buffer for p in plan.program.params if p.kind == "workspace"]
        if spaces and (plan.sizes or any(b is None or b.kind == "counter" for b in spaces)):
            return None
        operands = [step.inputs[number] for number in made.inputs]
        overwritten = {output for output, _ in made.inplace}
        own = [p for number, p in enumerate(step.outputs) if number not in overwritten]
        slots = [place.storage for place in (*places_in(operands), *own)]
        if not 0 < len(slots) + len(spaces) <= MOST_POINTERS:
            return None
        rooms = zip(spaces, plan.workspace, strict=True)
        slots += self._spaces([count * b.dtype.numpy.itemsize for b, count in rooms if b])
        return executable.function(executable.index_bits(plan)), slots, [*plan.sizes.values()]

    def _spaces(self, sizes: Sequence[int]) -> list[int]:
        """Return storages behind those of the plan for a launch's workspace.

        Launches follow each other: all begin at one place.
        """
        found, offset = [], 0
        for size in sizes:
            number = len(self.plan.storages) + len(self._workspace)
            self._workspace[number] = offset
            found.append(number)
            offset += rounded(size)
        self._workspace_bytes = max(self._workspace_bytes, offset)
        return found

    def _table(self, launches: Sequence[_Entry]) -> Action:
        table = LaunchTable(*zip(*launches, strict=True))

        def action(memory: Memory, pointers: Pointers) -> None:
            if table.run(pointers):
                found = "no memory is left for the local buffers of its kernels"
                raise LaunchError(self._subject, found, "pass smaller arrays, or fewer threads")

        return action


_Entry: TypeAlias = "tuple[Any, list[int], list[int]]"
"""A launch of a table: a function, the numbers of its storages, and its sizes."""


def _numbers(extents: Sequence[int | Expr], sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple([at(extent, sizes) for extent in extents])


def rounded(size: int) -> int:
    """Return a size in whole cache lines."""
    return -(-size // ALIGNMENT) * ALIGNMENT
