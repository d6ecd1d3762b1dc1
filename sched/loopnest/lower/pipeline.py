"""The lowering pipeline: a fusion and its schedule become a loop nest."""

from __future__ import annotations

from collections.abc import Callable

from loopnest import dtypes
from loopnest.buffers import Buffer
from loopnest.collector import paused
from loopnest.enums import LAUNCH_DIMENSIONS, Memory, ParallelType
from loopnest.expr import Expr
from loopnest.fusion import Fusion
from loopnest.kir import Output, Param, Program
from loopnest.lower.allocation import Storage, allocate
from loopnest.lower.build import index_tree, insert_allocations, statements, tree_text
from loopnest.lower.checks import check_plan
from loopnest.lower.groups import Plan, group_loops, is_trivial
from loopnest.lower.indexing import Indexer
from loopnest.lower.inplace import check_inplace
from loopnest.lower.nest import build_nest
from loopnest.lower.unswitch import unswitch
from loopnest.lowered import Lowered, TensorInfo
from loopnest.math_snapshot import capture
from loopnest.printers.nest import print_nest
from loopnest.simplify import Simplifier
from loopnest.tensor import TensorView


def lower(fusion: Fusion) -> Lowered:
    """Return the loop nest of `fusion` as it is scheduled now; the fusion is unchanged.

    The passes, and why they stand in this order:

    1. groups: which axes share a loop, what it runs over, how it runs; all else speaks of loops.
    2. nest: the ordered tree with numbered indices; a buffer's home is a place in it.
    3. allocation: buffers and their shapes; an access is an index into a shape.
    4. indexing: statements, and the terms of their predicates, from the transforms.
    5. predicates: tests placed as far out as they go; needs all terms of a loop.
    6. unswitch: doubles bodies, so it comes last.

    Raises:
        LoweringError: no kernel exists for this schedule.
        NotSupported: it needs a feature that does not exist yet.
    """
    with paused():
        return _run(fusion)


def _run(fusion: Fusion) -> Lowered:
    plan = group_loops(fusion)
    nest = build_nest(plan)
    storage = allocate(plan)
    check_plan(plan, storage)
    allocated = insert_allocations(nest, storage)
    indexed = index_tree(allocated, Indexer(nest, storage))
    program = _program(plan, storage)
    placed = program.with_body(statements(indexed, lifted=True))
    check_inplace(placed, plan)
    final = unswitch(placed, plan.algebra)
    stages: tuple[tuple[str, Callable[[], str]], ...] = (
        ("groups", plan.text),
        ("nest", nest.text),
        ("allocation", lambda: tree_text(allocated, "allocation")),
        ("indexing", lambda: print_nest(program.with_body(statements(indexed, lifted=False)))),
        ("predicates", lambda: print_nest(placed)),
        ("unswitch", lambda: print_nest(final)),
    )
    infos, buffers = _infos(fusion, storage), _buffers(plan, storage)
    return Lowered(final, stages, infos, buffers, capture(fusion))


def _program(plan: Plan, storage: dict[TensorView, Storage]) -> Program:
    fusion, algebra = plan.fusion, plan.algebra
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
    return Program(
        fusion.name,
        tuple(params),
        (),
        _launch(plan, algebra),
        tuple(outputs),
        tuple(fusion.facts.conditions),
    )


def _array(tensor: TensorView, buffer: Buffer, kind: str) -> Param:
    return Param(buffer.name, kind, buffer.dtype, buffer, tensor.sizes)


def _launch(plan: Plan, algebra: Simplifier) -> tuple[tuple[ParallelType, Expr], ...]:
    """Return the largest extent that any nest needs of each launch dimension."""
    extents: dict[ParallelType, Expr] = {}
    for spec in plan.specs.values():
        if spec.parallel.is_thread and not is_trivial(spec):
            have = extents.get(spec.parallel)
            extents[spec.parallel] = spec.extent if have is None else algebra.max(have, spec.extent)
    return tuple([(d, extents[d]) for d in LAUNCH_DIMENSIONS if d in extents])


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


def _buffers(plan: Plan, storage: dict[TensorView, Storage]) -> tuple[Buffer, ...]:
    found: dict[Buffer, None] = {}
    for held in storage.values():
        found[held.buffer] = None
        found[held.accumulator] = None
    first = [b for b in found if b.memory is Memory.GLOBAL]
    return (*first, *(b for b in found if b.memory is not Memory.GLOBAL))
