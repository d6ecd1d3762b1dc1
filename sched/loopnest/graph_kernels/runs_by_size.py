"""The steps of a compiled graph for each set of sizes that it is called with.

A plan is proved before it runs (`plan_proof`), so that what holds of the plan with sizes as symbols
holds of the places in memory too that storages get at each set of sizes. Where the caller has shown
that the shapes of the graph fit at all sizes that it comes with, as guards of torch do, the proof
is that of the plan with symbols; at sizes only the places in memory are looked at.

Arrays are NumPy's, or those of another library (`step_arrays`). On "c" the launches that follow
each other are one call of a table (`host_call`). What is the same at all sizes (constants,
variables, the arena) belongs to `StepMemory`, and what follows from the steps alone to `RunForm`:
tables of launches are the same wherever sizes choose the same machine code. A call (`SizedRun`)
goes through actions: launches of C that are one call, and steps in Python.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from struct import Struct
from time import perf_counter
from typing import Any, TypeAlias

from loopnest.backends.cpu.c_target import CompiledC
from loopnest.backends.cpu.host_call import (
    HostCall,
    LaunchTable,
    TableEntry,
    Words,
    reads_arrays,
    words_of,
)
from loopnest.backends.ready_call import no_memory
from loopnest.base.errors import InternalError, LaunchError
from loopnest.facade.kernel_class import Kernel
from loopnest.graph.dimensions import at
from loopnest.graph.graph_error import GraphError, Refused
from loopnest.graph.node import Node
from loopnest.graph.program import Graph
from loopnest.graph.size_binding import bound, graph_sizes, sizes_of_arrays
from loopnest.graph_kernels.code_gen import Generated
from loopnest.graph_kernels.plan_proof import ArenaProof, PlanFault, plan_faults
from loopnest.graph_kernels.plan_records import (
    PlannedStep,
    ResultTree,
    StepPlan,
    UpdatedVariable,
    UpdateGroup,
    ValuePlace,
    places_in,
    rounded,
)
from loopnest.graph_kernels.step_arrays import Array, Memory, Runner, Seen, StepArrays
from loopnest.graph_kernels.step_plan import SizedPlan, plan_steps, rivals_of
from loopnest.graph_kernels.variable_memory import StepUpdates, VariableMemory
from loopnest.launch.launch_plan import LaunchPlan
from loopnest.launch.target_interface import MISFIT, ArrayForm
from loopnest.scalar.expr import Expr

MAX_RUNS = 256
"""Plans at other sizes are kept up to this number."""


class RunsBySize:
    """The runs of a graph; kernels are the same at all sizes.

    Args:
        graph: what was compiled.
        target: of its kernels.
        calls: the graph with its groups as calls; its first outputs are those of `graph`.
        found: the kernels of the calls.
        runners: the compiled kernel of each call.
        library: whether a library computes products of matrices.
        arrays: what the runs work on.
        aliases: outputs that may be memory of an input.
        shared: the variables, of a graph whose variables this one shares; None for its own.
        guarded: whether the caller has shown that the shapes fit at the sizes that it comes with.
    """

    def __init__(
        self,
        graph: Graph,
        target: str,
        calls: Graph,
        found: Generated,
        runners: Mapping[Node, Runner],
        library: bool,
        arrays: StepArrays,
        aliases: frozenset[int] = frozenset(),
        shared: VariableMemory | None = None,
        guarded: bool = False,
    ) -> None:
        self.graph, self.target = graph, target
        self.subject = f"{graph.name}(...)"
        self.names = graph_sizes(calls)
        """The sizes of the graph."""
        self.memory = StepMemory(arrays, shared or VariableMemory(arrays, calls.variables))
        self.plan = plan_steps(calls, found, library, len(graph.outputs))
        """The plan of a step, with sizes where the graph has them."""
        self._rivals, self._arena_proof = rivals_of(self.plan), ArenaProof(self.plan)
        self._calls = calls
        self._kernels = {node: runner.kernel for node, runner in runners.items()}
        self._form = RunForm(
            self.subject, target, self.plan, runners, self.names, self.memory, aliases
        )
        count, proved = len(graph.outputs), guarded and bool(self.names)
        self._guarded = proved and not plan_faults(self.plan, self._kernels, count, {})
        """Whether the plan with symbols is proved, and sizes fit: else each plan at sizes is."""
        self.kept: OrderedDict[tuple[int, ...], SizedRun] = OrderedDict()
        """The runs at the sizes of the last calls."""
        self._sizes_of: dict[Hashable, tuple[int, ...]] = {}
        self._last: tuple[tuple[int, ...], SizedRun] | None = None
        """The run of the last call."""
        if not self.names:
            self.at(())

    def numbers(
        self, shapes: Sequence[tuple[int, ...]], sizes: Mapping[str, int]
    ) -> tuple[int, ...]:
        """Return the value of each size; remembered by the shapes of the inputs.

        Raises:
            LaunchError: two shapes disagree, or nothing says what a size is.
        """
        if not self.names and not sizes:
            return ()
        key = (*shapes, *sizes.items())
        known = self._sizes_of.get(key)
        if known is None:
            try:
                found = sizes_of_arrays(self.graph, shapes, sizes)
            except Refused as refused:
                raise LaunchError(self.subject, refused.reason, refused.hint) from None
            known = tuple([found[name] for name in self.names])
            if len(self._sizes_of) > MAX_RUNS * 16:
                self._sizes_of.clear()
            self._sizes_of[key] = known
        return known

    def at(self, numbers: tuple[int, ...]) -> SizedRun:
        """Return the run at sizes: planned now if these are new.

        Raises:
            LaunchError: a node does not fit at these sizes.
        """
        if self._last is not None and self._last[0] == numbers:
            return self._last[1]
        run = self.kept.get(numbers) or self._planned(numbers)
        self.kept[numbers] = run
        self.kept.move_to_end(numbers)
        while len(self.kept) > MAX_RUNS:
            self.kept.popitem(last=False)
        self._last = (numbers, run)
        return run

    def _planned(self, numbers: tuple[int, ...]) -> SizedRun:
        sizes = dict(zip(self.names, numbers, strict=True))
        try:
            plan = self._guarded_plan(sizes) if self._guarded else self._bound_plan(sizes)
        except GraphError as error:
            raise LaunchError(self.subject, str(error)) from None
        return SizedRun(self._form, plan)

    def _bound_plan(self, sizes: Mapping[str, int]) -> SizedPlan:
        """Return the plan of the graph at sizes."""
        made = bound(self._calls, sizes)
        found = SizedPlan(self.plan, self._rivals, sizes, made.graph, made.nodes.__getitem__)
        self._require(self._faults(found))
        return found

    def _guarded_plan(self, sizes: Mapping[str, int]) -> SizedPlan:
        """Return the plan at sizes of the graph with symbols, which has been proved."""
        found = SizedPlan(self.plan, self._rivals, sizes, self._calls, lambda node: node)
        self._require(self._arena_proof.faults(found.rooms, found.arena, sizes))
        return found

    def _faults(self, found: SizedPlan) -> list[PlanFault]:
        """Return what is wrong with a plan at sizes."""
        count = len(self.graph.outputs)
        return plan_faults(found.plan, self.kernels_of(found), count, found.sizes)

    def kernels_of(self, found: SizedPlan) -> dict[Node, Kernel]:
        """Return the kernel that each call of a plan at sizes launches."""
        return {found.node_at(node): kernel for node, kernel in self._kernels.items()}

    def _require(self, faults: Sequence[PlanFault]) -> None:
        if faults:
            reason = f"the plan of its steps is wrong: {faults[0].message}"
            raise InternalError(self.subject, reason)

    def faults(self, numbers: tuple[int, ...] | None = None) -> list[PlanFault]:
        """Return what is wrong with the plan at sizes; by default, with all plans that there are.

        Raises:
            LaunchError: a node does not fit at these sizes.
        """
        runs = [self.at(numbers)] if numbers is not None else [*self.kept.values()]
        faults: list[PlanFault] = []
        if numbers is None and self.names:
            faults += plan_faults(self.plan, self._kernels, len(self.graph.outputs), {})
        for run in runs:
            faults += self._faults(run.sized)
        return faults


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


class RunForm:
    """What the runs of a graph have in common at all sizes.

    A call tells tables words: where inputs lie, then new outputs, then the storages of the plan;
    then sizes; then the workspace of launches.

    Args:
        subject: the call, for errors.
        target: where kernels run.
        plan: the steps, with sizes where the graph has them.
        runners: the compiled kernel of each call.
        names: of the sizes.
        memory: what stays from call to call.
        aliases: results that may be memory of an input; others are the caller's own.
    """

    def __init__(
        self,
        subject: str,
        target: str,
        plan: StepPlan,
        runners: Mapping[Node, Runner],
        names: Sequence[str],
        memory: StepMemory,
        aliases: frozenset[int] = frozenset(),
    ) -> None:
        self.subject, self.plan, self.runners, self.memory = subject, plan, runners, memory
        self.inputs = [number for number, s in enumerate(plan.storages) if s.kind == "input"]
        """The storage of each input, in order."""
        self.made = [number for number, s in enumerate(plan.storages) if s.kind == "output"]
        """The storages of outputs that a call makes."""
        known = {p.storage: p.shape for p in places_in(plan.results) if p.is_plain}
        self.shapes = {n: known.get(n, (plan.storages[n].elements,)) for n in self.made}
        """The shape of each."""
        front = [*self.inputs, *self.made]
        self.first = len(front)
        self._slots = {number: place for place, number in enumerate(front)}
        """Which words say where inputs lie, then new outputs: what each call tells, in front."""
        self.told = Struct(f"={len(front)}Q")
        behind = self.first + len(plan.storages)
        self._size_slots = {name: behind + place for place, name in enumerate(names)}
        self.count = behind + len(names)
        """The number of words; launches that are new have workspace behind them."""
        self._is_c = target == "c"
        self._launches: dict[tuple[int, CompiledC, int], TableLaunch | None] = {}
        self._static: dict[int, SizedLaunch] = {}
        """Launches that are the same at all sizes, by the number of the step."""
        self._tables: dict[tuple[TableLaunch, ...], TableAction] = {}
        self.results = [(tree, n in aliases) for n, tree in enumerate(plan.results)]
        self.assigns = bool(plan.commits) or any(s.over is not None for s in plan.storages)
        self.simple = self._simple_results()
        """Where results are arrays that the call makes, or updates: a number or items of each."""

    def _simple_results(self) -> list[int | tuple[UpdatedVariable, ...]] | None:
        """Return what the results are, where they are new arrays as they are, or updates alone."""
        found: list[int | tuple[UpdatedVariable, ...]] = []
        left = dict(zip(self.made, range(len(self.made)), strict=True))
        for tree in self.plan.results:
            if isinstance(tree, ValuePlace) and tree.storage in left:
                if self.shapes[tree.storage] != tree.shape:
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

    def slot(self, storage: int) -> int:
        """Return which word says where a storage lies."""
        return self._slots.get(storage, self.first + storage)

    def launch(self, number: int, sizes: Mapping[str, int]) -> SizedLaunch | None:
        """Return the launch of a step at sizes; None where it needs more than a call of C."""
        static = self._static.get(number)
        if static is not None:
            return static
        step = self.plan.steps[number]
        if not self._is_c or step.made is None or step.copies:
            return None
        plan, executable = self.runners[step.node].launch_at(sizes)
        if plan.is_empty or not isinstance(executable, CompiledC):
            return None  # what a launch does beyond calling the function
        key = number, executable, executable.index_bits(plan)
        if key not in self._launches:
            self._launches[key] = self._new_launch(step, plan, *key[1:])
        launch = self._launches[key]
        if launch is None:
            return None
        if not plan.sizes and not launch.spaces:
            self._static[number] = launch, ()
        return launch, plan.workspace

    def _new_launch(
        self, step: PlannedStep, plan: LaunchPlan, executable: CompiledC, bits: int
    ) -> TableLaunch | None:
        """Return a step as a launch of a table; None where it is none."""
        if plan.program.ranges or plan.program.index_checks or step.made is None:
            return None  # which says what is wrong with its data
        spaces = [p.buffer for p in plan.program.params if p.kind == "workspace"]
        if any(b is None or b.kind == "counter" for b in spaces):
            return None
        operands = [step.inputs[number] for number in step.made.inputs]
        overwritten = {output for output, _ in step.made.inplace}
        own = [p for number, p in enumerate(step.outputs) if number not in overwritten]
        slots = [self.slot(place.storage) for place in (*places_in(operands), *own)]
        slots += [self._size_slots[name] for name in plan.sizes]
        words = range(self.count, self.count + len(spaces))
        self.count += len(spaces)
        bytes_of = [b.dtype.size for b in spaces if b is not None]
        entry = TableEntry(executable.entry(bits), [*slots, *words])
        return TableLaunch(entry, executable, tuple(zip(words, bytes_of, strict=True)))

    def table(self, launches: Sequence[TableLaunch]) -> TableAction:
        """Return launches that follow each other as one action."""
        key = tuple(launches)
        if key not in self._tables:
            self._tables[key] = TableAction(key, self.subject)
        return self._tables[key]


@dataclass(frozen=True, slots=True, eq=False)
class TableLaunch:
    """A launch of a table, wherever sizes choose this machine code.

    Args:
        entry: the function of C, and which words it takes.
        kernel: what is launched.
        spaces: of each workspace its word, and the bytes of an element.
    """

    entry: TableEntry
    kernel: CompiledC
    spaces: tuple[tuple[int, int], ...]


SizedLaunch: TypeAlias = "tuple[TableLaunch, tuple[int, ...]]"
"""A launch, and the elements of each workspace."""


class SizedRun:
    """What a call does where all sizes are known.

    Args:
        form: what runs at all sizes have in common.
        sized: the plan at these.
    """

    def __init__(self, form: RunForm, sized: SizedPlan) -> None:
        self.form, self.sized = form, sized
        self._subject, self._memory, self._sizes = form.subject, form.memory, sized.sizes
        self._arrays, self._storage_rows = form.memory.arrays, form.plan.storages
        self._address = self._arrays.address
        self.inputs, self._made, self._told = form.inputs, form.made, form.told
        self._makers = [
            self._arrays.maker(sized.shape(shape), self._storage_rows[number].dtype)
            for number, shape in form.shapes.items()
        ]
        self._fixed: Memory = []
        self._nothing: Memory = []
        self._words = words_of([])
        self._arena: Array = None
        self._workspace: dict[int, int] = {}
        """Which words are workspace, and where that begins in the whole of it."""
        self._workspace_bytes = 0
        self._calls: list[PlannedStep] = []
        """Steps that are no entries of a table."""
        self._actions = self._joined()
        self._runs = [action.run for action in self._actions]
        self._seen_storages = {p.storage for p in self._places_of_arrays()}
        """The storages that are arrays in a call: what kernels of a table read are addresses."""
        self._simple = form.simple
        self.is_table = not self._calls and self._simple is not None
        """Whether a call runs kernels of C alone, and makes the arrays of its results before."""
        self.makes_outputs = self.is_table and self._simple == [*range(len(self._made))]
        """Whether the outputs are arrays that a call makes, and nothing else is done with them."""

    @property
    def plan(self) -> StepPlan:
        """The plan at the sizes."""
        return self.sized.plan

    def _places_of_arrays(self) -> Iterator[ValuePlace]:
        for step in self._calls:
            yield from (*places_in(step.inputs), *step.outputs, *places_in(step.copies))
        plan = self.form.plan
        yield from (*places_in(plan.results), *[place for _, place in plan.commits])

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
            run(memory, self._words)
        return self._values(made, memory)

    @cached_property
    def host_call(self) -> HostCall | None:
        """The call as a function of C; None where a step or a result needs more than kernels."""
        if not (self.is_table and self._arrays.is_host and len(self._actions) == 1):
            return None
        (action,) = self._actions
        nodes = [self._storage_rows[number].node for number in self.inputs]
        if not reads_arrays() or not isinstance(action, TableAction) or None in nodes:
            return None
        known = [node for node in nodes if node is not None]
        shape = self.sized.shape
        inputs = [ArrayForm(node.dtype.numpy, shape(node.shape)) for node in known]
        storages = [self._storage_rows[number] for number in self._made]
        made = [ArrayForm(s.dtype.numpy, shape((s.elements,)), is_written=True) for s in storages]
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
        if self.form.assigns:
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
            seconds += action.timed(memory, self._words)
        self._values(made, memory)
        return perf_counter() - start, seconds

    def _begun(self, places: Sequence[int]) -> list[Array]:
        """Tell the tables where inputs lie, and new arrays for the outputs; return these."""
        if self._arena is not self._memory.arena:
            self._attach()
        made = [make() for make in self._makers]
        self._told.pack_into(self._words, 0, *places, *map(self._address, made))
        if self.form.assigns:
            self._memory.variables.version += 1
        return made

    def _values(self, made: Sequence[Array], memory: Memory) -> tuple[Values, ...]:
        """Return the results, and give variables the new values that lie elsewhere."""
        if self._simple is None:
            taken: set[int] = set()
            trees = [(self.sized.tree(tree), alias) for tree, alias in self.form.results]
            found = tuple([self._result(x, memory, taken, alias) for x, alias in trees])
            if self.form.plan.commits:
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
        room, rooms = rounded(self.sized.arena), self.sized.rooms
        self._memory.reserve(room + self._workspace_bytes)
        self._arena = self._memory.arena
        nothing, address = self._arrays.room(0), self._arrays.address
        count, first, start = len(self._storage_rows), self.form.first, address(self._arena)
        self._fixed = [nothing] * count
        words = [0] * self.form.count
        for number, (offset, _) in rooms.items():
            words[first + number] = start + offset
        for number, storage in enumerate(self._storage_rows):
            if storage.kind != "arena" or number in self._seen_storages:
                found = self._place(number if storage.over is None else storage.over)
                if found is not None:
                    self._fixed[number], words[first + number] = found, address(found)
        words[first + count : first + count + len(self._sizes)] = self._sizes.values()
        for number, offset in self._workspace.items():
            words[number] = start + room + offset
        self._words = words_of(words)

    def _place(self, number: int) -> Array | None:
        storage = self._storage_rows[number]
        if storage.kind == "const" and storage.node is not None:
            return self._memory.constant(storage.node)
        if storage.kind == "state" and storage.node is not None:
            return self._memory.variables.states[storage.node.attrs["variable"]]
        if number in self.sized.rooms:
            offset, size = self.sized.rooms[number]
            return self._arrays.piece(self._arena, offset, size, storage.dtype)
        return None

    def _seen(self, place: ValuePlace) -> Seen:
        """Return what a place is in a call; kept where its storage stays from call to call."""
        number, arrays = place.storage, self._arrays
        if self._storage_rows[number].kind not in ("const", "state", "arena"):
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
                kind = self._storage_rows[tree.storage].kind
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
        commits = self.form.plan.commits
        places = [place.storage for _, place in commits]
        kinds = [self._storage_rows[number].kind for number in places]
        kept = [
            self._arrays.copied(memory[number]) if kind == "state" else memory[number]
            for number, kind in zip(places, kinds, strict=True)
        ]
        for (state, _), value in zip(commits, kept, strict=True):
            self._arrays.overwrite(memory[state], value)

    # Steps

    def _joined(self) -> list[TableAction | CallAction]:
        """Return what a call does: launches of C that follow each other are one action."""
        actions: list[TableAction | CallAction] = []
        table: list[TableLaunch] = []
        for number, step in enumerate(self.form.plan.steps):
            found = self.form.launch(number, self._sizes)
            if found is not None:
                launch, elements = found
                table.append(launch)
                if elements:
                    self._place_workspace(launch, elements)
                continue
            if table:
                actions.append(self.form.table(table))
                table = []
            sized = self.sized.step(step)
            self._calls.append(sized)
            actions.append(CallAction(self._slow(sized, self.form.runners.get(step.node))))
        if table:
            actions.append(self.form.table(table))
        return actions

    def _place_workspace(self, launch: TableLaunch, elements: Sequence[int]) -> None:
        """Give a launch its workspace. Launches follow each other: all begin at one place."""
        offset = 0
        for (word, size), count in zip(launch.spaces, elements, strict=True):
            self._workspace[word] = offset
            offset += rounded(size * count)
        self._workspace_bytes = max(self._workspace_bytes, offset)

    def _slow(self, step: PlannedStep, runner: Runner | None) -> Callable[[Memory], None]:
        """Return a step as a call of a library, or of a compiled kernel."""
        arrays = self._arrays
        if step.kind == "kernel" and runner is not None:
            run = self._kernel_call(step, runner)
        else:
            run = arrays.without_kernel(step, self._seen, self._sizes)
        made = [x.storage for x in step.outputs if self._storage_rows[x.storage].kind == "made"]
        if not step.copies and not made:
            return run

        def action(memory: Memory) -> None:
            for source, target in step.copies:
                arrays.overwrite(memory[target.storage], memory[source.storage])
            run(memory)
            for number in made:
                self._words[self.form.slot(number)] = arrays.address(memory[number])

        return action

    def _kernel_call(self, step: PlannedStep, runner: Runner) -> Callable[[Memory], None]:
        made = step.made
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


def _numbers(extents: Sequence[int | Expr], sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple([at(extent, sizes) for extent in extents])


WHOSE = "the local buffers of its kernels"
"""What memory is missing for where a launch fails."""


class TableAction:
    """Launches of a table, as a part of a call.

    Args:
        launches: in order; what they launch has the same options.
        subject: the call, for errors.
    """

    def __init__(self, launches: Sequence[TableLaunch], subject: str) -> None:
        kernels = [launch.kernel for launch in launches]
        runtime = next((kernel.runtime for kernel in kernels if kernel.runtime), None)
        own = [launch.entry for launch in launches]
        self.table = LaunchTable(own, kernels[0].threads, runtime)
        self._subject = subject

    def run(self, memory: Memory, words: Words) -> None:
        """Run the launches, which find addresses and sizes in `words`."""
        if self.table.run(words):
            raise no_memory(self._subject, WHOSE)

    def timed(self, memory: Memory, words: Words) -> list[float]:
        """Run the launches; return the seconds of each."""
        status, seconds = self.table.timed(words)
        if status:
            raise no_memory(self._subject, WHOSE)
        return seconds


class CallAction:
    """A step that Python calls: a library, an evaluation, a kernel that no table takes.

    Args:
        step: what it does.
    """

    def __init__(self, step: Callable[[Memory], None]) -> None:
        self._step = step

    def run(self, memory: Memory, words: Words) -> None:
        """Run the step."""
        self._step(memory)

    def timed(self, memory: Memory, words: Words) -> list[float]:
        """Run the step; return its seconds."""
        start = perf_counter()
        self._step(memory)
        return [perf_counter() - start]
