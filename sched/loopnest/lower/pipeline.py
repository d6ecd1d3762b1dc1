"""The lowering pipeline: a fusion and its schedule become a loop nest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from loopnest import dtypes
from loopnest.buffers import Buffer
from loopnest.collector import paused
from loopnest.enums import Memory
from loopnest.expr import Const
from loopnest.facts import Facts
from loopnest.fusion import Fusion
from loopnest.kir import Allocate, Output, Param, Program, walk
from loopnest.lower.addresses import flatten_addresses
from loopnest.lower.aliases import share_space
from loopnest.lower.allocation import Storage, allocate
from loopnest.lower.build import index_tree, insert_allocations, statements, tree_text
from loopnest.lower.checks import check_plan
from loopnest.lower.circular import circulate
from loopnest.lower.crossing import BlockStage, block_stage, last_blocks
from loopnest.lower.exchange import Names
from loopnest.lower.fills import fill_copies
from loopnest.lower.groups import Plan, group_loops
from loopnest.lower.indexing import Indexer
from loopnest.lower.inplace import check_inplace
from loopnest.lower.nest import build_nest
from loopnest.lower.renumber import renumber
from loopnest.lower.sync import insert_barriers
from loopnest.lower.tree import Tree
from loopnest.lower.unswitch import unswitch
from loopnest.lowered import Lowered, TensorInfo
from loopnest.math_snapshot import capture
from loopnest.ops.describe import right_side
from loopnest.printers.nest import print_nest
from loopnest.recursion import deep
from loopnest.tensor import TensorView


@deep
def lower(fusion: Fusion) -> Lowered:
    """Return the loop nest of `fusion` as it is scheduled now; the fusion is unchanged.

    The passes, and why they stand in this order:

    1. groups: which axes share a loop, what it runs over, how it runs; all else speaks of loops.
    2. nest: the ordered tree with numbered indices; a buffer's home is a place in it.
    3. allocation: buffers and their shapes; an access is an index into a shape.
    4. indexing: statements, and the terms of their predicates, from the transforms.
    5. fills: the tests that are needless where copies hold a constant outside of their tensor.
    6. circular buffers: what runs ahead moves, with its indices and tests.
    7. aliases: lives of buffers are known now.
    8. barriers: what crosses threads is ordered; asks the indices which threads meet.
    9. addresses: flat offsets, once the barriers need no index a dimension any more.
    10. predicates: tests placed as far out as they go, but over no barrier.
    11. unswitch: doubles bodies, so it comes after them.
    12. renumber: names alone.

    Raises:
        LoweringError: no kernel exists for this schedule.
        NotSupported: it needs a feature that does not exist yet.
    """
    with paused():
        first = _Run(fusion, fusion.facts, whole_vectors=True)
        if not first.indexer.requires:
            return first.lowered()
        facts = fusion.facts
        for size, width, _ in first.indexer.requires.values():
            facts = facts.with_divisor(size, width)
        second = _Run(fusion, facts, whole_vectors=True)
        # What is known may give sizes another form, and that other requirements.
        requires = {**first.indexer.requires, **second.indexer.requires}
        tests = [(text, test) for text, (_, _, test) in requires.items()]
        whole = second.lowered()
        lanes = _Run(fusion, fusion.facts, whole_vectors=False).lowered()
        program = replace(whole.program, requires=tuple(tests))
        return replace(whole, program=program, scalar=lambda: lanes)


class _Run:
    """One way through the passes; what vectors require is known after indexing."""

    def __init__(self, fusion: Fusion, facts: Facts, *, whole_vectors: bool) -> None:
        self.fusion = fusion
        self.plan = plan = group_loops(fusion, facts)
        self.nest = build_nest(plan)
        names = Names({tensor.name for tensor in fusion.tensors})
        self.storage = allocate(plan, names)
        check_plan(plan, self.storage)
        self.allocated = insert_allocations(self.nest, self.storage)
        flagged = last_blocks(plan)
        self.meetings = _meetings(plan, self.storage, flagged, names)
        self.indexer = Indexer(
            self.nest, self.storage, self.meetings, flagged, names, whole_vectors=whole_vectors
        )
        self.plain = index_tree(self.allocated, self.indexer)

    def lowered(self) -> Lowered:
        """Return the result of the remaining passes."""
        plan = self.plan
        filled = fill_copies(self.plain, plan)
        spaced = share_space(circulate(filled, self.nest, self.storage))
        synced = insert_barriers(spaced, plan, self.indexer.arrivals())
        indexed = flatten_addresses(synced, plan.algebra)
        program = _program(plan, self.storage, self.meetings)
        placed = program.with_body(statements(indexed, lifted=True))
        check_inplace(placed, plan)
        final = renumber(unswitch(placed, plan.algebra))
        stages: tuple[tuple[str, Callable[[], str]], ...] = (
            ("groups", plan.text),
            ("nest", self.nest.text),
            ("allocation", lambda: tree_text(self.allocated, "allocation")),
            ("indexing", lambda: _printed(program, self.plain)),
            ("barriers", lambda: _printed(program, indexed)),
            ("predicates", lambda: print_nest(placed)),
            ("unswitch", lambda: print_nest(final)),
        )
        infos = _infos(self.fusion, self.storage)
        return Lowered(final, stages, infos, _buffers(final), capture(self.fusion))


def _printed(program: Program, tree: Tree) -> str:
    return print_nest(program.with_body(statements(tree, lifted=False)))


def _meetings(
    plan: Plan,
    storage: dict[TensorView, Storage],
    flagged: dict[TensorView, tuple[TensorView, ...]],
    names: Names,
) -> dict[TensorView, BlockStage]:
    """Return how the blocks meet, of each reduction over the grid."""
    result: dict[TensorView, BlockStage] = {}
    for unit in plan.forest.units:
        held = [storage[twin] for twin in unit.siblings]
        inner = tuple([s.accumulator.shape if s.partial_places else () for s in held])
        stage = block_stage(plan, unit, flagged, inner, names)
        if stage is not None:
            result[unit] = stage
    return result


def _program(
    plan: Plan,
    storage: dict[TensorView, Storage],
    meetings: dict[TensorView, BlockStage],
) -> Program:
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
            if storage[tensor].buffer.kind == "workspace":
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
        about=tuple(
            [
                (tensor.name, _about(tensor))
                for tensor, held in storage.items()
                if tensor.memory is Memory.LOCAL and not isinstance(held.buffer.size, Const)
            ]
        ),
    )


def _about(tensor: TensorView) -> str:
    """Return the math of a tensor and its loops, for messages."""
    axes = ", ".join([f"{a.kind.letter}{i}: {a.size}" for i, a in enumerate(tensor.domain.leaf)])
    shared = tensor.compute_at_pos
    return f"{tensor.name} = {right_side(tensor)} has the axes [{axes}], " + (
        f"of which it shares the leading {shared} with its consumers"
        if shared
        else "and shares no loop with its consumers"
    )


def _array(tensor: TensorView, buffer: Buffer, kind: str) -> Param:
    return Param(buffer.name, kind, buffer.dtype, buffer, tensor.sizes)


def _infos(fusion: Fusion, storage: dict[TensorView, Storage]) -> tuple[TensorInfo, ...]:
    return tuple([
        TensorInfo(
            tensor.name,
            tensor.dtype,
            tensor.shape,
            tensor.memory,
            storage[tensor].buffer.name if tensor in storage else None,
            tensor.compute_at_pos,
            str(tensor.domain),
        )
        for tensor in fusion.tensors
    ])  # fmt: skip


def _buffers(program: Program) -> tuple[Buffer, ...]:
    """Return every buffer, parameters first, then in the order in which they are made."""
    params = [p.buffer for p in program.params if p.buffer is not None]
    made = [n.storage for n, _ in walk(program.body) if isinstance(n, Allocate)]
    return tuple(dict.fromkeys([*params, *made]))
