"""A step of a compiled graph at sizes: its memory, and what a call does to it.

Arrays are NumPy's, or those of another library (`step_arrays`). On "c" the launches that follow
each other are one call of a table (`launch_table`). What is the same at all sizes (constants,
variables, the arena) belongs to `StepMemory`. A call goes through
actions: launches of C that are one call, and steps in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from struct import Struct
from time import perf_counter
from typing import Any, TypeAlias

from loopnest.backends.cpu.array_fields import reads_arrays
from loopnest.backends.cpu.c_target import CompiledC
from loopnest.backends.cpu.host_call import HostCall
from loopnest.backends.cpu.launch_table import LaunchTable, TableEntry, words_of
from loopnest.backends.ready_call import no_memory
from loopnest.graph.dimensions import at
from loopnest.graph.node import Node
from loopnest.graph_kernels.plan_records import (
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
from loopnest.graph_kernels.step_arrays import Array, Memory, Runner, Seen, StepArrays
from loopnest.graph_kernels.variable_memory import StepUpdates, VariableMemory
from loopnest.launch.target_interface import MISFIT, ArrayForm
from loopnest.scalar.expr import Expr

Values: TypeAlias = "Any"
"""Results: arrays, tuples of them, and groups of updates."""


class StepMemory:
    """The memory that stays from call to call: constants, variables, the arena.

    Args:
        arrays: of which kind.
        variables: the variables, which other graphs may share.
    """

    def __init__(self, arrays: StepArrays, variables: VariableMemory) -> None:
        self.arrays, self.variables = arrays, variables
        self.arena = arrays.room(0)
        self.reserved = 0
        """The bytes of the arena."""
        self._constants: dict[Node, Array] = {}
        self.entries: dict[int, tuple[PlannedStep, Entry]] = {}
        """Of steps that are the same at all sizes, by the id of the step."""

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
        self.runners, self._sizes, self._memory = runners, sizes, memory
        self._arrays = memory.arrays
        self._address = memory.arrays.address
        self.inputs = [number for number, s in enumerate(plan.storages) if s.kind == "input"]
        """The storage of each input, in order."""
        self._made, self._makers = self._new_arrays()
        front = [*self.inputs, *self._made]
        self._first = len(front)
        self._slots = {number: place for place, number in enumerate(front)}
        """Which words say where inputs lie, then new outputs: what each call tells, in front."""
        self._told = Struct(f"={len(front)}Q")
        self._fixed: Memory = []
        self._nothing: Memory = []
        self._words = words_of([])
        self._arena: Array = None
        self._more: list[int] = []
        """What stands behind the storages of the plan: sizes, and 0 for workspace."""
        self._workspace: dict[int, int] = {}
        """Which words are workspace, and where that begins in the whole of it."""
        self._workspace_bytes = 0
        self._calls: list[PlannedStep] = []
        """Steps that are no entries of a table."""
        self._actions = self._joined()
        self._runs = [action.run for action in self._actions]
        self._seen_storages = {p.storage for p in self._places_of_arrays()}
        """The storages that are arrays in a call: what kernels of a table read are addresses."""
        self._results = [(tree, n in aliases) for n, tree in enumerate(plan.results)]
        self._assigns = bool(plan.commits) or any(s.over is not None for s in plan.storages)
        self._simple = self._simple_results()
        """Where results are arrays that the call makes, or updates: a number or items of each."""
        self.is_table = not self._calls and self._simple is not None
        """Whether a call runs kernels of C alone, and makes the arrays of its results before."""
        self.makes_outputs = self.is_table and self._simple == [*range(len(self._made))]
        """Whether the outputs are arrays that a call makes, and nothing else is done with them."""

    def _places_of_arrays(self) -> Iterator[ValuePlace]:
        for step in self._calls:
            yield from (*places_in(step.inputs), *step.outputs, *places_in(step.copies))
        yield from (*places_in(self.plan.results), *[place for _, place in self.plan.commits])

    def _new_arrays(self) -> tuple[list[int], list[Callable[[], Array]]]:
        """Return the storages of outputs that a call makes, and what makes each."""
        shapes = {p.storage: p.shape for p in places_in(self.plan.results) if p.is_plain}
        found, makers = [], []
        for number, storage in enumerate(self.plan.storages):
            if storage.kind == "output":
                shape = _numbers(shapes.get(number, (storage.elements,)), {})
                found.append(number)
                makers.append(self._arrays.maker(shape, storage.dtype))
        return found, makers

    def _simple_results(self) -> list[int | tuple[UpdatedVariable, ...]] | None:
        """Return what the results are, where they are new arrays as they are, or updates alone."""
        shapes = {p.storage: p.shape for p in places_in(self.plan.results) if p.is_plain}
        found: list[int | tuple[UpdatedVariable, ...]] = []
        left = dict(zip(self._made, range(len(self._made)), strict=True))
        for tree in self.plan.results:
            if isinstance(tree, ValuePlace) and tree.storage in left:
                if shapes[tree.storage] != tree.shape:
                    return None
                found.append(left.pop(tree.storage))
            elif isinstance(tree, UpdateGroup):
                items = tuple([x for x in tree.items if isinstance(x, UpdatedVariable)])
                if len(items) < len(tree.items):
                    return None
                found.append(items)
            else:
                return None
        return None if self.plan.commits else found

    def run(self, given: Sequence[Array], places: Sequence[int]) -> tuple[Values, ...]:
        """Run the steps; return the outputs.

        Args:
            given: the inputs in order, C-contiguous.
            places: where their first elements lie.

        Raises:
            LaunchError: no memory is left.
        """
        made = self._begun(places)
        memory = self._nothing if self.is_table else self._storages(given, made)
        for run in self._runs:
            run(memory)
        return self._values(made, memory)

    @cached_property
    def host_call(self) -> HostCall | None:
        """The call as a function of C; None where a step or a result needs more than kernels."""
        if not (self.is_table and self._arrays.is_host and len(self._actions) == 1):
            return None
        (action,) = self._actions
        nodes = [self.plan.storages[number].node for number in self.inputs]
        if not reads_arrays() or not isinstance(action, TableAction) or None in nodes:
            return None
        known = [node for node in nodes if node is not None]
        inputs = [ArrayForm(node.dtype.numpy, node.static_shape) for node in known]
        storages = [self.plan.storages[number] for number in self._made]
        made = [ArrayForm(s.dtype.numpy, (at(s.elements, {}),), is_written=True) for s in storages]
        return HostCall(action.table, inputs, made, apart=self._memory.variables.host_range)

    def called(self, call: HostCall, arrays: tuple[Any, ...]) -> tuple[Values, ...] | None:
        """Run the steps by `host_call`; return the outputs.

        None where nothing ran: an argument is not as C takes it.

        Raises:
            LaunchError: no memory is left.
        """
        if self._arena is not self._memory.arena:
            self._attach()
        if call.words is not self._words:
            call.attach(self._words)
        made = tuple([make() for make in self._makers])
        status = call.run(arrays, made)
        if status == MISFIT:
            return None
        if self._assigns:
            self._memory.variables.version += 1
        if status:
            raise no_memory(self._subject, WHOSE)
        return self._values(made, self._nothing)

    def timed(self, given: Sequence[Array], places: Sequence[int]) -> tuple[float, list[float]]:
        """Run the steps; return the seconds of the call, and those of each step."""
        seconds: list[float] = []
        start = perf_counter()
        made = self._begun(places)
        memory = self._nothing if self.is_table else self._storages(given, made)
        for action in self._actions:
            seconds += action.timed(memory)
        self._values(made, memory)
        return perf_counter() - start, seconds

    def _begun(self, places: Sequence[int]) -> list[Array]:
        """Tell the tables where inputs lie, and new arrays for the outputs; return these."""
        if self._arena is not self._memory.arena:
            self._attach()
        made = [make() for make in self._makers]
        self._told.pack_into(self._words, 0, *places, *map(self._address, made))
        if self._assigns:
            self._memory.variables.version += 1
        return made

    def _values(self, made: Sequence[Array], memory: Memory) -> tuple[Values, ...]:
        """Return the results, and give variables the new values that lie elsewhere."""
        if self._simple is None:
            taken: set[int] = set()
            found = tuple([self._result(x, memory, taken, alias) for x, alias in self._results])
            if self.plan.commits:
                self._commit(memory)
            return found
        if self.makes_outputs:
            return tuple(made)
        variables, subject = self._memory.variables, self._subject
        results: list[Values] = []
        for x in self._simple:
            if isinstance(x, int):
                results.append(made[x])
            else:
                results.append(StepUpdates.of(x, variables, subject))
        return tuple(results)

    # Memory

    def _storages(self, given: Sequence[Array], made: Sequence[Array]) -> Memory:
        """Return the array of each storage in this call."""
        memory = self._fixed.copy()
        for number, array in zip(self.inputs, given, strict=True):
            memory[number] = array
        for number, array in zip(self._made, made, strict=True):
            memory[number] = array
        return memory

    def _attach(self) -> None:
        """Find the storages that stay: again where the arena has moved."""
        room = rounded(self.plan.arena)
        self._memory.reserve(room + self._workspace_bytes)
        self._arena = self._memory.arena
        nothing, address = self._arrays.room(0), self._arrays.address
        self._fixed = [nothing] * len(self.plan.storages)
        fixed, start = [0] * len(self.plan.storages), address(self._arena)
        for number, storage in enumerate(self.plan.storages):
            owner = storage if storage.over is None else self.plan.storages[storage.over]
            if owner.kind == "arena" and number not in self._seen_storages:
                fixed[number] = start + owner.offset
                continue
            found = self._place(owner)
            if found is not None:
                self._fixed[number], fixed[number] = found, address(found)
        self._words = words_of([*[0] * self._first, *fixed, *self._more])
        for number, offset in self._workspace.items():
            self._words[number] = start + room + offset
        for action in self._actions:
            if isinstance(action, TableAction):
                action.attach(self._words)

    def _place(self, storage: Storage) -> Array | None:
        if storage.kind == "const" and storage.node is not None:
            return self._memory.constant(storage.node)
        if storage.kind == "state" and storage.node is not None:
            return self._memory.variables.states[storage.node.attrs["variable"]]
        if storage.kind == "arena" and storage.offset >= 0:
            offset = storage.offset
            return self._arrays.piece(self._arena, offset, storage.bytes, storage.dtype)
        return None

    def _seen(self, place: ValuePlace) -> Seen:
        """Return what a place is in a call; kept where its storage stays from call to call."""
        number, arrays = place.storage, self._arrays
        if self.plan.storages[number].kind not in ("const", "state", "arena"):
            return lambda memory: arrays.seen(memory[number], place)
        source: Array = None
        view: Array = None

        def kept(memory: Memory) -> Array:
            nonlocal source, view
            if memory[number] is not source:
                source = memory[number]
                view = arrays.seen(source, place)
            return view

        return kept

    def _result(self, tree: ResultTree, memory: Memory, taken: set[int], is_alias: bool) -> Values:
        """Return an output as an array of the caller's own."""
        match tree:
            case ValuePlace():
                kind = self.plan.storages[tree.storage].kind
                found = self._arrays.seen(memory[tree.storage], tree)
                if is_alias and kind == "input":
                    return self._arrays.alias(found)
                if kind in ("output", "made") and tree.storage not in taken:
                    taken.add(tree.storage)
                    return found
                return self._arrays.copied(found)
            case UpdatedVariable():
                return tree
            case UpdateGroup():
                items = [self._result(item, memory, taken, is_alias) for item in tree.items]
                return StepUpdates.of(tuple(items), self._memory.variables, self._subject)
        return tuple([self._result(item, memory, taken, is_alias) for item in tree])

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

    def _joined(self) -> list[TableAction | CallAction]:
        """Return what a call does: launches of C that follow each other are one action."""
        actions: list[TableAction | CallAction] = []
        table: list[Entry] = []
        for step in self.plan.steps:
            fast = self._fast(step)
            if fast is not None:
                table.append(fast)
                continue
            if table:
                actions.append(TableAction(table, self._subject))
                table = []
            self._calls.append(step)
            actions.append(CallAction(self._slow(step)))
        if table:
            actions.append(TableAction(table, self._subject))
        return actions

    def _slow(self, step: PlannedStep) -> Callable[[Memory], None]:
        """Return a step as a call of a library, or of a compiled kernel."""
        arrays = self._arrays
        if step.kind == "kernel":
            run = self._kernel_call(step)
        else:
            run = arrays.without_kernel(step, self._seen, self._sizes)
        made = [x.storage for x in step.outputs if self.plan.storages[x.storage].kind == "made"]
        if not step.copies and not made:
            return run

        def action(memory: Memory) -> None:
            for source, target in step.copies:
                arrays.overwrite(memory[target.storage], memory[source.storage])
            run(memory)
            for number in made:
                self._words[self._slot(number)] = arrays.address(memory[number])

        return action

    def _kernel_call(self, step: PlannedStep) -> Callable[[Memory], None]:
        runner, made = self.runners[step.node], step.made
        assert made is not None
        inputs = [place for number in made.inputs for place in places_in(step.inputs[number])]
        own = [p for p in runner.kernel.program.params if p.kind == "input"]
        sizes = {name: self._sizes[name] for name in runner.sizes}
        for number, (place, param) in enumerate(zip(inputs, own, strict=True)):
            steps = None if param.strides is None else _numbers(param.strides, sizes)
            shape = _numbers(param.shape, sizes)
            inputs[number] = ValuePlace(place.storage, shape, None, steps)
        inplace = {output for output, _ in made.inplace}
        seen = [*map(self._seen, inputs)]
        results = [
            None if number in inplace else self._seen(place)
            for number, place in enumerate(step.outputs)
        ]

        def run(memory: Memory) -> None:
            outputs = [None if result is None else result(memory) for result in results]
            operands = [operand(memory) for operand in seen]
            self._arrays.launch(runner, operands, outputs, sizes)

        return run

    def _fast(self, step: PlannedStep) -> Entry | None:
        """Return a kernel's launch on its storages and sizes; None where it needs more."""
        known, entry = self._memory.entries.get(id(step), (None, None))
        if known is step:
            return entry
        made = step.made
        if self._target != "c" or made is None or step.copies:
            return None
        plan, executable = self.runners[step.node].launch_at(self._sizes)
        if plan.is_empty or not isinstance(executable, CompiledC):
            return None  # what a launch does beyond calling the function
        if plan.program.ranges or plan.program.index_checks:
            return None  # which says what is wrong with its data
        spaces = [p.buffer for p in plan.program.params if p.kind == "workspace"]
        if any(b is None or b.kind == "counter" for b in spaces):
            return None
        operands = [step.inputs[number] for number in made.inputs]
        overwritten = {output for output, _ in made.inplace}
        own = [p for number, p in enumerate(step.outputs) if number not in overwritten]
        slots = [self._slot(place.storage) for place in (*places_in(operands), *own)]
        slots += map(self._number, plan.sizes.values())
        rooms = zip(spaces, plan.workspace, strict=True)
        slots += self._spaces([count * b.dtype.numpy.itemsize for b, count in rooms if b])
        entry = TableEntry(executable.entry(executable.index_bits(plan)), slots), executable
        if not plan.sizes and not spaces:
            self._memory.entries[id(step)] = step, entry
        return entry

    def _slot(self, storage: int) -> int:
        """Return which word says where a storage lies."""
        return self._slots.get(storage, self._first + storage)

    def _number(self, value: int) -> int:
        """Return the word behind those of the storages of the plan that is a size."""
        number = self._first + len(self.plan.storages) + len(self._more)
        self._more.append(value)
        return number

    def _spaces(self, sizes: Sequence[int]) -> list[int]:
        """Return words behind those of the storages for a launch's workspace.

        Launches follow each other: all begin at one place.
        """
        found, offset = [], 0
        for size in sizes:
            number = self._number(0)
            self._workspace[number] = offset
            found.append(number)
            offset += rounded(size)
        self._workspace_bytes = max(self._workspace_bytes, offset)
        return found


def _numbers(extents: Sequence[int | Expr], sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple([at(extent, sizes) for extent in extents])


Entry: TypeAlias = "tuple[TableEntry, CompiledC]"
"""A launch of a table, and what it launches."""
WHOSE = "the local buffers of its kernels"
"""What memory is missing for where a launch fails."""


class TableAction:
    """Launches of a table, as a part of a call.

    Args:
        launches: in order, each with what it launches; all of these have the same options.
        subject: the call, for errors.
    """

    def __init__(self, launches: Sequence[Entry], subject: str) -> None:
        kernels = [kernel for _, kernel in launches]
        runtime = next((kernel.runtime for kernel in kernels if kernel.runtime), None)
        own = [launch for launch, _ in launches]
        self.table = LaunchTable(own, kernels[0].threads, runtime)
        self._subject = subject
        self._words: Any = None

    def attach(self, words: Any) -> None:
        """Let the following calls find addresses and sizes in `words`."""
        self._words = words

    def run(self, memory: Memory) -> None:
        """Run the launches."""
        if self.table.run(self._words):
            raise no_memory(self._subject, WHOSE)

    def timed(self, memory: Memory) -> list[float]:
        """Run the launches; return the seconds of each."""
        status, seconds = self.table.timed(self._words)
        if status:
            raise no_memory(self._subject, WHOSE)
        return seconds


class CallAction:
    """A step that Python calls: a library, an evaluation, a kernel that no table takes.

    Args:
        run: the step.
    """

    def __init__(self, run: Callable[[Memory], None]) -> None:
        self.run = run

    def timed(self, memory: Memory) -> list[float]:
        """Run the step; return its seconds."""
        start = perf_counter()
        self.run(memory)
        return [perf_counter() - start]
