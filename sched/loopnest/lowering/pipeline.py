"""The lowering pipeline: a fusion and its schedule become a loop nest."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import partial

from loopnest.base.errors import LoweringError, NotSupported
from loopnest.base.gc_pause import paused
from loopnest.base.recursion import deep
from loopnest.kir import Allocate, IndexCheck, Output, Param, Program, walk
from loopnest.kir.lowered import Lowered, TensorInfo
from loopnest.kir.nest_text import print_nest
from loopnest.kir.vector_access import require_wide_copies
from loopnest.lowering.barriers.barrier_insertion import insert_barriers
from loopnest.lowering.barriers.inplace_order import check_inplace
from loopnest.lowering.index_checks import has_data_indices, index_checks
from loopnest.lowering.indexing.axis_indices import Environment
from loopnest.lowering.indexing.indexed_tree import (
    check_rows,
    index_tree,
    insert_allocations,
    statements,
    tree_text,
)
from loopnest.lowering.indexing.indexer import Indexer
from loopnest.lowering.indexing.predicate_elimination import fill_copies
from loopnest.lowering.indexing.thread_ownership import check_readers
from loopnest.lowering.indexing.unswitch import unswitch
from loopnest.lowering.loops.early_exit import end_early
from loopnest.lowering.loops.guarded_tree import ThreadData, idle_conditions, stored_apart
from loopnest.lowering.loops.loop_plan import LoopPlan, group_loops, launch_extents
from loopnest.lowering.loops.phase_nest import build_nest
from loopnest.lowering.loops.renumber import assembled, renumber
from loopnest.lowering.loops.tightening import tighten
from loopnest.lowering.memory.aliasing import share_space
from loopnest.lowering.memory.allocation import TensorStorage, allocate
from loopnest.lowering.memory.circular_buffers import circulate
from loopnest.lowering.memory.flat_addresses import flatten_addresses
from loopnest.lowering.passes import LoweringPass, State, Text, Watcher, perform
from loopnest.lowering.plan_checks import check_plan, check_scans
from loopnest.lowering.reductions.block_exchange import FreshNames
from loopnest.lowering.reductions.grid_reduction import GridReduction, block_stage, last_blocks
from loopnest.lowering.schedule_notes.explanations import explained
from loopnest.lowering.schedule_notes.findings import notes_of
from loopnest.lowering.schedule_notes.lowered_schedule import lowering_of
from loopnest.lowering.watchers import chosen_watchers
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import int64
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import ONE, Arg, Buffer, Const, Expr, Op
from loopnest.scalar.simplify import Simplifier
from loopnest.schedule.loop_forest import LoopBody
from loopnest.tensor.domain import IterDomain
from loopnest.tensor.fusion import Fusion, right_side
from loopnest.tensor.math_snapshot import capture
from loopnest.tensor.tensor_view import TensorView, started_by


def element_counts(
    units: Iterable[TensorView], algebra: Simplifier
) -> tuple[tuple[str, Expr], ...]:
    """Return the tensors that count elements, by name, each with the most that it can count.

    That lets a target count in an index. A component of a reducer counts where each element is the
    constant 1 and two partial results are added: the third of Welford's. Its type is int64, since a
    count may be large; where all indices of a launch have 32 bits, so may it, and conversions to
    floats cost a quarter.

    `units` are the first outputs of definitions.
    """
    found = [(t.name, _most(t, algebra)) for unit in units for t in unit.siblings]
    return tuple([(name, most) for name, most in found if most is not None])


def _most(tensor: TensorView, algebra: Simplifier) -> Expr | None:
    """Return how many elements a tensor counts at most, None where it does not count.

    A stage of a factored reduction adds what the stage before it counted.
    """
    definition = tensor.definition
    if definition is None or definition.reducer is None or tensor.dtype is not int64:
        return None
    place, reducer = tensor.siblings.index(tensor), definition.reducer
    ours, others = Arg(place, int64), Arg(len(reducer.identity) + place, int64)
    if reducer.combination[place] is not Op("add", (ours, others), int64):
        return None
    each: Expr | None = None
    match definition.values[place]:
        case Const(value=1):
            each = ONE
        case Arg(number=number):
            each = _most(definition.reads[number].producer, algebra)
    if each is None:
        return None
    sizes = [algebra.simplify(axis.size) for axis in tensor.domain.root if axis.is_reduction]
    return algebra.product([each, *sizes])


def launch_parts(plan: LoopPlan) -> tuple[LoopPlan, ...]:
    """Return the plan of each launch, in order; `plan` itself where it is one.

    The passes after "groups" see one launch at a time. Loops, extents and promotions are those of
    the whole; a part has its own tensors, their order, and the launch dimensions that they need.
    What lies between two launches lies in GLOBAL memory.

    Raises:
        LoweringError: a launch reads what an earlier one holds in LOCAL or SHARED memory, or an
            input that an earlier one overwrites.
    """
    bodies = plan.order.parts()
    if len(bodies) == 1:
        return (plan,)
    launch = {unit: number for number, body in enumerate(bodies) for unit in body.walk()}
    for unit in plan.forest.units:
        for tensor in unit.siblings:
            _check_memory(tensor, launch)
    _check_overwritten(plan, launch)
    return tuple([_part(plan, body) for body in bodies])


def _part(plan: LoopPlan, body: LoopBody) -> LoopPlan:
    own = set(body.walk())
    forest = copy(plan.forest)
    forest.units = tuple([unit for unit in plan.forest.units if unit in own])
    groups = {group for unit in forest.units for group in forest.path(unit)}
    algebra = Simplifier(plan.algebra.facts)
    launch = launch_extents([plan.specs[group] for group in plan.specs if group in groups], algebra)
    algebra.launch = launch
    crossed = {unit: dims for unit, dims in plan.crossed.items() if unit in own}
    return replace(plan, algebra=algebra, forest=forest, order=body, launch=launch, crossed=crossed)


def _check_memory(tensor: TensorView, launch: dict[TensorView, int]) -> None:
    mine = launch[tensor.siblings[0]]
    for consumer in tensor.consumers:
        theirs = launch.get(consumer.siblings[0], mine)
        if theirs == mine:
            continue
        if tensor.domain.allocation is not None and not tensor.is_output:
            raise NotSupported(
                tensor.name,
                f"{consumer.name} reads it in a later launch (number {theirs}), and it has an "
                "allocation domain of its own",
                "leave what passes between launches in C order (allocation_domain.reset())",
            )
        if tensor.memory is not Memory.GLOBAL:
            keep = f"set {tensor.name}.memory = ln.GLOBAL"
            if started_by(tensor) is consumer:
                keep = f"set {consumer.name}.memory = ln.GLOBAL before atomic()"
            raise LoweringError(
                tensor.name,
                f"it is in {tensor.memory.value.upper()} memory, which ends with launch "
                f"{mine}, and {consumer.name} reads it in launch {theirs}",
                f"{keep}, or compute it in the loops of {consumer.name} (compute_at)",
            )


def _check_overwritten(plan: LoopPlan, launch: dict[TensorView, int]) -> None:
    """Refuse an output in the memory of an input that a later launch still reads."""
    for output, target in plan.fusion.inplace.items():
        written = launch.get(output.siblings[0], 0)
        for reader in target.consumers:
            if launch.get(reader.siblings[0], 0) > written:
                raise LoweringError(
                    f"{output.name} in the memory of {target.name}",
                    f"launch {written} overwrites {target.name}, and {reader.name} reads it in "
                    f"launch {launch[reader.siblings[0]]}",
                    f"start a launch with {output.name} too, or drop inplace=",
                )


def _groups(state: State) -> None:
    like = None if state.like is None else state.like.plan
    state.plan = group_loops(state.fusion, state.facts, like)
    state.names = FreshNames({tensor.name for tensor in state.fusion.tensors})
    parts = launch_parts(state.plan)
    if len(parts) > 1:
        state.split(parts)


def _nest(state: State) -> None:
    check_scans(state.plan)
    state.nest = build_nest(state.plan)


def _allocation(state: State) -> None:
    plan = state.plan

    def indices(
        tensor: TensorView, loops: tuple[Expr | None, ...]
    ) -> Callable[[IterDomain], Expr | None]:
        return Environment(plan, tensor, loops).allocated

    state.whole.storage = state.storage = allocate(plan, state.names, indices, state.whole.storage)
    state.tree = insert_allocations(state.nest, state.storage)


def _checks(state: State) -> None:
    if state.like is None:
        check_plan(state.plan, state.storage)


def _grid_reductions(state: State) -> None:
    state.flagged = last_blocks(state.plan)
    state.meetings = _meetings(state.plan, state.storage, state.flagged, state.names)


def _indexing(state: State) -> None:
    state.indexer = Indexer(
        state.nest, state.storage, state.meetings, state.flagged, state.names,
        whole_vectors=state.like is not None,
    )  # fmt: skip
    state.tree = index_tree(state.tree, state.indexer)
    state.frame = replace(_program(state.whole), launch=tuple(state.plan.launch.items()))


def _ownership(state: State) -> None:
    if state.like is None:
        check_readers(state.indexer)


def _predicate_elimination(state: State) -> None:
    state.tree = fill_copies(state.tree, state.plan)


def _circular_buffers(state: State) -> None:
    # Where vectors fit no size, each element is copied by itself.
    single = state.like is None and bool(state.requires)
    state.tree = circulate(state.tree, state.nest, state.storage, single=single)


def _aliases(state: State) -> None:
    state.tree = share_space(state.tree)


def _barriers(state: State) -> None:
    state.tree = insert_barriers(state.tree, state.plan, state.indexer.terms.arrivals())


def _addresses(state: State) -> None:
    state.tree = flatten_addresses(state.tree, state.plan.algebra)


def _predicates(state: State) -> None:
    state.data = ThreadData(state.plan.launch, stored_apart(state.tree))
    state.idle = frozenset(idle_conditions(state.tree))
    state.program = state.frame.with_body(statements(state.tree, lifted=state.data))
    check_rows(state.program)
    require_wide_copies(state.program)


def _in_place(state: State) -> None:
    check_inplace(state.program, state.plan)


def _tighten(state: State) -> None:
    state.program = tighten(state.program, state.plan.algebra, state.idle, state.data)


def _unswitch(state: State) -> None:
    state.program = unswitch(state.program, state.plan.algebra)


def _early_exit(state: State) -> None:
    state.program = end_early(state.program, state.plan.forest.units, state.plan.algebra)


def _renumber(state: State) -> None:
    state.program = renumber(state.program)


def _tree(state: State) -> Text:
    """Return the text of the nest before indexing."""
    tree = state.tree
    return lambda: tree_text(tree, "allocation")


def _meeting(state: State) -> Text:
    """Return how blocks meet."""
    meetings = state.meetings
    return lambda: "\n".join(["# grid reductions", *_meeting_lines(meetings)]) + "\n"


def _statements(state: State) -> Text:
    """Return the statements, each under its own test."""
    frame, tree = state.frame, state.tree
    return lambda: print_nest(frame.with_body(statements(tree, lifted=None)))


def _whole(state: State) -> Text:
    """Return the text of the program."""
    program = state.program
    return lambda: print_nest(program)


def _meeting_lines(meetings: dict[TensorView, GridReduction]) -> Iterator[str]:
    for unit, stage in meetings.items():
        dims = ", ".join([d.value for d in stage.dims])
        how = "the last block goes on" if stage.counter else "all blocks wait for each other"
        made = ", ".join([b.name for b in (*stage.partials, *filter(None, [stage.counter]))])
        yield f"{', '.join(t.name for t in unit.siblings)} over {dims}: {how}; workspace {made}"


PASSES = (
    LoweringPass("groups", "loops.loop_plan",
         "loops: extents, parallel types, order, the launch",
         "all later passes speak of loops, not of axes",
         _groups, lambda state: state.plan.text),
    LoweringPass("nest", "loops.phase_nest",
         "the tree of loops and phases (define, init, update, publish, finish)",
         "a buffer's home is a place in it",
         _nest, lambda state: state.nest.text),
    LoweringPass("allocation", "memory.allocation",
         "buffers, their layout, and where they are made",
         "an access needs the shape of its buffer",
         _allocation, _tree),
    LoweringPass("checks", "plan_checks",
         "nothing; refuses parallel loops that race, vectors of illegal width, impossible launches",
         "it asks where tensors lie; all that it lets through can be indexed",
         _checks, _tree),
    LoweringPass("grid_reductions", "reductions.grid_reduction",
         "where blocks that reduce together meet, and who goes on",
         "statements may have to run in the last block alone, under its flag",
         _grid_reductions, _meeting),
    LoweringPass("indexing", "indexing.indexer",
         "statements, and the terms of their predicates",
         "all that follows asks for indices",
         _indexing, _statements),
    LoweringPass("ownership", "indexing.thread_ownership",
         "nothing; refuses values that a thread reads and another wrote",
         "indices tell which thread has which element; later, reads without tests go past a tensor",
         _ownership, _statements),
    LoweringPass("predicate_elimination", "indexing.predicate_elimination",
         "fewer tests: copies hold a constant past the end of their tensor",
         "reads without tests may need barriers, and the next passes move statements",
         _predicate_elimination, _statements),
    LoweringPass("circular_buffers", "memory.circular_buffers",
         "tensors that are computed some iterations ahead",
         "buffers live longer after it, and one barrier an iteration is then enough",
         _circular_buffers, _statements),
    LoweringPass("aliases", "memory.aliasing",
         "SHARED buffers in one space",
         "now it is known how long buffers live; two that share space may need a barrier",
         _aliases, _statements),
    LoweringPass("barriers", "barriers.barrier_insertion",
         "barriers, and around them loops that run over all threads of the launch",
         "indices tell which threads meet; no test may be lifted over a barrier",
         _barriers, _statements),
    LoweringPass("addresses", "memory.flat_addresses",
         "flat offsets where they need less division",
         "barriers are decided by one index for each dimension",
         _addresses, _statements),
    LoweringPass("predicates", "indexing.predicates",
         "the program, with tests as far out as they go",
         "the statements and their terms are complete",
         _predicates, _whole),
    LoweringPass("inplace", "barriers.inplace_order",
         "nothing; refuses an output that would overwrite what is still read",
         "the order of reads and stores is final",
         _in_place, _whole),
    LoweringPass("tighten", "loops.tightening",
         "loops that run only where something in them counts",
         "tests are placed, and no body stands twice yet",
         _tighten, _whole),
    LoweringPass("unswitch", "indexing.unswitch",
         "bodies without tests where one test decides them all",
         "it lifts tests that are placed, and writes bodies twice",
         _unswitch, _whole),
    LoweringPass("early_exit", "loops.early_exit",
         "loops over steps that end where a condition of data holds",
         "it adds a statement to each copy of a loop",
         _early_exit, _whole),
    LoweringPass("renumber", "loops.renumber",
         "loop indices in order of appearance",
         "it changes names alone",
         _renumber, _whole),
)  # fmt: skip
"""The pipeline, in order."""

_INDEXED = [step.name for step in PASSES].index("indexing") + 1
"""After as many passes it is known what vectors require."""


@deep
def lower(fusion: Fusion) -> Lowered:
    """Return the loop nest of `fusion` as it is scheduled now; the fusion is unchanged.

    The passes are `PASSES`, in that order. Where vectors ask sizes to divide, two programs are
    made: one whose lanes test for themselves, and one that requires it. They have the same loops;
    what a pass refuses of the first for all sizes, it need not ask of the second.

    Raises:
        LoweringError: no kernel exists for this schedule, or LOOPNEST_PASSES names no watcher.
        NotSupported: it needs a feature that does not exist yet.
    """
    watchers = chosen_watchers()
    with paused():
        found = _variants(fusion, watchers)
        if found.math is None or not has_data_indices(fusion):
            return found
        checks = index_checks(found.math(), lambda part: _variants(part, ()).program)
        return _with_checks(found, checks) if checks else found


def _with_checks(lowered: Lowered, checks: tuple[IndexCheck, ...]) -> Lowered:
    """Return a kernel, and its scalar variant, whose launches look at indices that are data."""
    program, scalar = replace(lowered.program, index_checks=checks), lowered.scalar
    if scalar is None:
        return replace(lowered, program=program)
    lanes = _with_checks(scalar(), checks)
    return replace(lowered, program=program, scalar=lambda: lanes)


def _variants(fusion: Fusion, watchers: Sequence[Watcher]) -> Lowered:
    """Return what the passes make of a fusion, with and without wide accesses."""
    lanes = State(fusion, fusion.facts)
    perform(PASSES, lanes, watchers)
    scalar = _lowered(lanes, watchers)
    if not lanes.requires:
        return scalar
    facts = fusion.facts
    for size, width, _ in lanes.requires.values():
        facts = facts.with_divisor(size, width)
    whole = State(fusion, facts, like=lanes)
    perform(PASSES[:_INDEXED], whole, watchers)
    # What is known may give sizes another form, and that other requirements.
    requires = {**lanes.requires, **whole.requires}
    tests = [(text, test) for text, (_, _, test) in requires.items()]
    for state in whole.launches:
        state.frame = replace(state.frame, requires=tuple(tests))
    perform(PASSES[_INDEXED:], whole, watchers)
    return replace(
        _lowered(whole, watchers), scalar=lambda: replace(scalar, notes=None, explained=None)
    )


def _lowered(state: State, watchers: Sequence[Watcher]) -> Lowered:
    """Return what the passes made."""
    state.program = assembled([part.program for part in state.launches])
    for watcher in watchers:
        watcher.end(state)
    buffers = _buffers(state.program)
    infos = _infos(state.fusion, state.storage, {buffer.name for buffer in buffers})
    asked = lowering_of(state.plan, state.storage, state.program, state.fusion.facts)
    math = capture(state.fusion)
    return Lowered(
        state.program, tuple(state.texts), infos, buffers, math,
        notes=partial(notes_of, asked), explained=partial(explained, asked, lower),
    )  # fmt: skip


def _meetings(
    plan: LoopPlan,
    storage: dict[TensorView, TensorStorage],
    flagged: dict[TensorView, tuple[TensorView, ...]],
    names: FreshNames,
) -> dict[TensorView, GridReduction]:
    """Return how the blocks meet, of each reduction over the grid."""
    result: dict[TensorView, GridReduction] = {}
    for unit in plan.forest.units:
        held = [storage[twin] for twin in unit.siblings]
        inner = tuple([s.accumulator.shape if s.partial_places else () for s in held])
        stage = block_stage(plan, unit, flagged, inner, names)
        if stage is not None:
            result[unit] = stage
    return result


def _program(state: State) -> Program:
    """Return the whole program without its body."""
    plan, storage = state.plan, state.storage
    meetings = {unit: found for part in state.launches for unit, found in part.meetings.items()}
    fusion = plan.fusion
    params = [_array(t, storage[t].buffer, "input") for t in fusion.inputs]
    outputs: list[Output] = []
    for tensor in fusion.outputs:
        buffer = storage[tensor].buffer
        target = fusion.inplace.get(tensor)
        name = target.name if target is not None else ""
        outputs.append(Output(tensor.name, buffer, tensor.sizes, name))
        if target is None:
            params.append(_array(tensor, buffer, "output"))
    params += [Param(p.name, "scalar", p.dtype) for p in fusion.scalars]
    params += [Param(s.name, "size", dtypes.index) for s in fusion.symbols]
    for unit in plan.forest.units:
        for tensor in unit.siblings:
            if storage[tensor].buffer.kind == "workspace" and started_by(tensor) is None:
                params.append(_array(tensor, storage[tensor].buffer, "workspace"))
    for stage in meetings.values():
        made = (*stage.partials, *([stage.counter] if stage.counter else []))
        params += [Param(b.name, "workspace", b.dtype, b, b.shape) for b in made]
    return Program(
        fusion.name,
        tuple(params),
        (),
        tuple(plan.launch.items()),
        tuple(outputs),
        tuple(fusion.facts.conditions),
        ranges=fusion.ranges,
        about=tuple(
            [
                (tensor.name, _about(tensor))
                for tensor, held in storage.items()
                if tensor.memory is Memory.LOCAL and not isinstance(held.buffer.size, Const)
            ]
        ),
        counts=element_counts(plan.forest.units, plan.algebra),
    )


def _about(tensor: TensorView) -> str:
    """Return the math of a tensor and its loops, for messages."""
    axes = ", ".join([f"{a.label(i)}: {a.size}" for i, a in enumerate(tensor.domain.leaf)])
    shared = tensor.compute_at_pos
    return f"{tensor.name} = {right_side(tensor)} has the axes [{axes}], " + (
        f"of which it shares the leading {shared} with its consumers"
        if shared
        else "and shares no loop with its consumers"
    )


def _array(tensor: TensorView, buffer: Buffer, kind: str) -> Param:
    return Param(buffer.name, kind, buffer.dtype, buffer, tensor.sizes, tensor.strides)


def _infos(
    fusion: Fusion, storage: dict[TensorView, TensorStorage], made: Container[str]
) -> tuple[TensorInfo, ...]:
    """Return all tensors; one that the passes left out has no buffer."""
    names = {tensor: found.buffer.name for tensor, found in storage.items()}
    return tuple(
        [
            TensorInfo(
                tensor.name,
                tensor.dtype,
                tensor.shape,
                tensor.memory,
                names[tensor] if names.get(tensor) in made else None,
                tensor.compute_at_pos,
                str(tensor.domain),
            )
            for tensor in fusion.tensors
        ]
    )


def _buffers(program: Program) -> tuple[Buffer, ...]:
    """Return every buffer, parameters first, then in the order in which they are made."""
    params = [p.buffer for p in program.params if p.buffer is not None]
    made = [n.storage for n, _ in walk(program.body) if isinstance(n, Allocate)]
    return tuple(dict.fromkeys([*params, *made]))
