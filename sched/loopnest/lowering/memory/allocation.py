"""Pass "allocation": which buffer holds each tensor, its shape, and where it is made.

Requires the nest. Ensures a `TensorStorage` for every live tensor: GLOBAL ones have their full
logical shape; a LOCAL one has the leaf axes right of its compute-at position (right of the loops
around its definition, where nobody reads it) that are neither bound to threads, nor reductions, nor
of extent 1; a SHARED one those not bound to blocks, and the axes bound to threads of a block left
of the position too (rule 40). Where the user laid the buffer out, it has the axes of the allocation
domain instead, but for those whose index is fixed while it lives. Both are made
in the body where their own loops begin. A reduction that folds apart (see `phase_nest`) has a LOCAL
accumulator, of float32 for 16 bits; a scan over threads with several items each has a few registers
more. It comes before indexing, because an access is an index into
these shapes.

Before: ``for i0: { define T1; define T2 }``; after::

    for i0: { T1: float32[1] local; define T1; define T2 }

A buffer holds the part of a tensor that its loops compute while it lives. An axis of the
allocation domain whose index is the same all that time, because the loops that it follows from are
outside of the buffer's home, is not allocated. The index of each axis is found as that of an access
is, with a stand-in for each loop; so an axis need not be one of the loops' own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TypeAlias

from loopnest.base.errors import InternalError, LoweringError
from loopnest.base.fast_init import fast_init
from loopnest.lowering.loops.loop_plan import (
    LoopPlan,
    is_atomic,
    is_trivial,
    item_axes,
    loops_with_start,
)
from loopnest.lowering.loops.phase_nest import accumulates_apart
from loopnest.lowering.reductions.block_exchange import FreshNames, row_major
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import (
    ONE,
    ZERO,
    Buffer,
    Const,
    Coordinate,
    Expr,
    Index,
    free_indices,
    integer,
)
from loopnest.schedule.fold_order import folded_axes
from loopnest.schedule.instructed_tiles import has_lanes, lane_axis
from loopnest.schedule.loop_forest import LoopGroup
from loopnest.tensor.domain import IterDomain, TensorDomain
from loopnest.tensor.layout_transforms import (
    is_power_of_two,
    paddings_of,
    stored_axes,
    swizzles_of,
)
from loopnest.tensor.tensor_view import TensorView, started_by

Places: TypeAlias = "Sequence[int]"
"""Leaf positions whose loops run while a buffer lives."""

IndexOf: TypeAlias = "Callable[[IterDomain], Expr | None]"

Indices: TypeAlias = "Callable[[TensorView, tuple[Expr | None, ...]], IndexOf]"
"""From a tensor and the indices of its loops to the index of an axis of its allocation domain."""


@dataclass(frozen=True, eq=False, slots=True)
class StoredAxes:
    """The dimensions of a buffer that somebody laid out.

    Args:
        axes: one axis of the allocation domain a dimension.
        extents: how many elements each has.
        places: the leaf positions of the axes; None where they are no leaf axes.
    """

    axes: tuple[IterDomain, ...]
    extents: tuple[Expr, ...]
    places: tuple[int, ...] | None


def on_chip(plan: LoopPlan, tensor: TensorView, places: Places, indices: Indices) -> StoredAxes:
    """Return what a LOCAL or SHARED buffer holds of the allocation domain.

    Where it is the leaf axes at `places`, these keep the order of the loops; other axes are in the
    order of memory. So are those of an atomic fold, whose initial values have loops of their own.

    Raises:
        LoweringError: several threads would store one element of a SHARED buffer.
    """
    leaf = tensor.domain.leaf
    stand_ins = _stand_ins(plan, tensor)
    running = {stand_ins[place] for place in places}
    index_of = indices(tensor, stand_ins)
    held: list[IterDomain] = []
    for axis in _in_memory(tensor.domain):
        if not axis.is_iteration:
            continue
        value = index_of(axis)
        if value is None:
            raise InternalError(
                tensor.name, f"an axis of its allocation domain has no index: {axis!r}"
            )
        if not running.isdisjoint(free_indices(value)) or (
            not free_indices(value) and plan.algebra.simplify(axis.size) is not ONE
        ):  # where one element is all of it, its extent tells launches what it is split by
            held.append(axis)
    if not is_atomic(tensor) and set(held) == {leaf[place] for place in places}:
        extents = tuple([plan.spec(leaf[place]).extent for place in places])
        return StoredAxes(tuple([leaf[place] for place in places]), extents, tuple(places))
    _require_one_store(plan, tensor)
    return StoredAxes(tuple(held), _sizes(plan, held), None)


def in_global(plan: LoopPlan, tensor: TensorView) -> StoredAxes:
    """Return the dimensions of a GLOBAL buffer: the whole allocation domain.

    Logical axes keep their order; others are in the order of memory.
    """
    axes, logical = stored_axes(tensor.domain), tensor.domain.logical
    if set(axes) == set(logical):
        return StoredAxes(logical, _sizes(plan, logical), ())
    return StoredAxes(axes, _sizes(plan, axes), None)


def strides_of(
    plan: LoopPlan, tensor: TensorView, stored: StoredAxes
) -> tuple[tuple[Expr, ...], Expr]:
    """Return the stride of each dimension, and how many elements all of them take."""
    algebra, gaps = plan.algebra, paddings_of(tensor.domain)
    extent = dict(zip(stored.axes, stored.extents, strict=True))
    stride: dict[IterDomain, Expr] = {}
    step: Expr = ONE
    for axis in reversed(_in_memory(tensor.domain)):
        if axis in extent:
            stride[axis] = step
            step = algebra.mul(step, algebra.add(extent[axis], integer(gaps.get(axis, 0))))
    return tuple([stride[axis] for axis in stored.axes]), step


def swizzles(plan: LoopPlan, tensor: TensorView, stored: StoredAxes) -> tuple[tuple[int, int], ...]:
    """Return the pairs of dimensions that are swizzled.

    Raises:
        LoweringError: the buffer lacks an axis of one, or its loops give it another extent.
    """
    result: list[tuple[int, int]] = []
    for pair in swizzles_of(tensor.domain.allocation or ()):
        # (a, b ^ a) with as many bits of `a` as `b` has: of one element, either has none to move.
        if ONE in _sizes(plan, pair):
            continue
        places = [stored.axes.index(axis) for axis in pair if axis in stored.axes]
        if tensor.memory is not Memory.SHARED or len(places) != 2:
            raise LoweringError(
                tensor.name,
                f"its swizzle is over axes that its buffer in {tensor.memory.value} memory lacks",
                "swizzle two axes that a SHARED buffer holds: those right of the compute-at "
                "position, and those bound to threads of a block",
            )
        found = [stored.extents[place] for place in places]
        if not all(map(is_power_of_two, found)):
            raise LoweringError(
                tensor.name,
                f"its swizzle is over axes of the extents {found[0]} and {found[1]} in the loops "
                "that it shares",
                "swizzle axes of static powers of two there, too",
            )
        result.append((places[0], places[1]))
    return tuple(result)


def _in_memory(domain: TensorDomain) -> tuple[IterDomain, ...]:
    """Return the axes of a buffer in the order of memory: the logical ones unless laid out."""
    return stored_axes(domain) if domain.allocation is not None else domain.logical


def _sizes(plan: LoopPlan, axes: Sequence[IterDomain]) -> tuple[Expr, ...]:
    return tuple([plan.algebra.simplify(axis.size) for axis in axes])


def _stand_ins(plan: LoopPlan, tensor: TensorView) -> tuple[Expr | None, ...]:
    """Return an index for each loop of a tensor, none for reductions."""
    result: list[Expr | None] = []
    for place, axis in enumerate(tensor.domain.leaf):
        spec = plan.spec(axis)
        index: Expr = ZERO if is_trivial(spec) else Index(f"i{place}", spec.extent)
        result.append(None if axis.is_reduction else index)
    return tuple(result)


def _require_one_store(plan: LoopPlan, tensor: TensorView) -> None:
    """Refuse threads of a block that compute one element, each in a place of its own so far."""
    if tensor.memory is not Memory.SHARED:
        return
    promoter = plan.promoter
    held = promoter.held(tensor.siblings[0])
    for axis, node in zip(tensor.domain.leaf, plan.promotions[tensor].leaf, strict=True):
        keys, spec = promoter.concrete_keys(node), plan.spec(axis)
        if spec.parallel.is_block and not is_trivial(spec) and keys - held and keys & held:
            raise LoweringError(
                tensor.name,
                f"its buffer is laid out by its own axes, but several threads of the "
                f"{spec.parallel.value} loop {spec.axis} compute one element",
                "lay out the axis that is bound to these threads, or bind one that it has",
            )


@fast_init
@dataclass(frozen=True, eq=False, slots=True)
class ItemRegisters:
    """What a thread holds while it scans several items, one buffer each.

    Args:
        part: what its items fold to.
        before: what lies before them.
        running: the same, and its items so far.
        home: the loop in whose body they are made.
    """

    part: Buffer
    before: Buffer
    running: Buffer
    home: LoopGroup | None


@fast_init
@dataclass(frozen=True, eq=False, slots=True)
class TensorStorage:
    """Where a tensor lives.

    `places` are the leaf positions that index a LOCAL or SHARED buffer, in its order; a GLOBAL
    one is indexed by the logical axes. `home` is the loop in whose body such a buffer is made
    (None: the kernel's). `accumulator` is the buffer that a reduction folds in: its own, or another
    with the leaf positions `partial_places`. `axes` are the axes that index `buffer` where somebody
    laid it out by others than those: its allocation domain's. `items` are of a scan over threads
    that have several items each; the leaf positions `partial_places` index them too. `rooms` is the
    number of last steps of which a buffer on chip has the state, in front of `places`; 0 of any
    other.
    """

    buffer: Buffer
    places: tuple[int, ...]
    home: LoopGroup | None
    accumulator: Buffer
    partial_places: tuple[int, ...]
    axes: tuple[IterDomain, ...] | None = None
    items: ItemRegisters | None = None
    rooms: int = 0


def allocate(
    plan: LoopPlan,
    names: FreshNames,
    indices: Indices,
    earlier: Mapping[TensorView, TensorStorage],
) -> dict[TensorView, TensorStorage]:
    """Return the storage of every live tensor and of every input.

    `indices` finds the indices of axes, for allocation domains that the loops do not give;
    `earlier` is what earlier launches have.
    """
    result: dict[TensorView, TensorStorage] = dict(earlier)
    for tensor in () if earlier else plan.fusion.inputs:
        result[tensor] = _global(plan, tensor, "input", tensor.name)
    for unit in plan.forest.units:
        for tensor in unit.siblings:
            storage = _storage(plan, tensor, result, indices)
            if accumulates_apart(plan, tensor):
                storage = _with_accumulator(plan, tensor, storage, names)
            if item_axes(plan, unit):
                storage = _with_items(plan, tensor, storage, names)
            result[tensor] = storage
    return result


def _storage(
    plan: LoopPlan,
    tensor: TensorView,
    done: dict[TensorView, TensorStorage],
    indices: Indices,
) -> TensorStorage:
    start = tensor.definition.starts_from if tensor.definition is not None else None
    if start is not None and tensor.memory is Memory.GLOBAL:
        return done[start]
    fold = started_by(tensor)
    if fold is not None:  # initial values lie where the fold updates them, in loops of their own
        return replace(_storage_of(plan, fold, done, indices), places=())
    found = _storage_of(plan, tensor, done, indices)
    if start is None:
        return found
    return replace(found, buffer=done[start].buffer, accumulator=done[start].buffer)


def _storage_of(
    plan: LoopPlan,
    tensor: TensorView,
    done: dict[TensorView, TensorStorage],
    indices: Indices,
) -> TensorStorage:
    target = plan.fusion.inplace.get(tensor)
    if target is not None and tensor.is_output:
        return done[target]
    if tensor.memory is Memory.GLOBAL:
        return _global(plan, tensor, "output" if tensor.is_output else "workspace", tensor.name)
    return _on_chip(plan, tensor, indices)


def _global(plan: LoopPlan, tensor: TensorView, kind: str, name: str) -> TensorStorage:
    shape = tuple([plan.algebra.simplify(size) for size in tensor.sizes]) or (ONE,)
    buffer = _buffer(plan, name, tensor, Memory.GLOBAL, tensor.dtype, shape, kind)
    if tensor.strides:
        buffer = _strided(plan, buffer, tensor.strides)
    if tensor.domain.allocation is None:
        return TensorStorage(buffer, (), None, buffer, ())
    stored = in_global(plan, tensor)
    buffer = _laid_out(plan, tensor, buffer, stored)
    axes = stored.axes if stored.places is None else None
    return TensorStorage(buffer, (), None, buffer, (), axes)


def _strided(plan: LoopPlan, buffer: Buffer, strides: tuple[Expr, ...]) -> Buffer:
    """Return `buffer` with other strides: it reaches to the last element."""
    algebra = plan.algebra
    steps = tuple([algebra.simplify(stride) for stride in strides])
    reach = [
        algebra.mul(algebra.sub(extent, ONE), stride)
        for extent, stride in zip(buffer.shape, steps, strict=True)
    ]
    return replace(buffer, strides=steps, size=algebra.add(algebra.sum(reach), ONE))


def _laid_out(plan: LoopPlan, tensor: TensorView, buffer: Buffer, stored: StoredAxes) -> Buffer:
    """Return `buffer` with the dimensions and the layout of the tensor's allocation domain."""
    strides, size = strides_of(plan, tensor, stored)
    shape = stored.extents or (ONE,)
    return replace(
        buffer,
        shape=shape,
        strides=strides or (ONE,),
        size=size,
        swizzles=swizzles(plan, tensor, stored),
    )


def _rotating(plan: LoopPlan, buffer: Buffer, copies: int) -> Buffer:
    """Return `buffer` several times, in front of all axes: for stages, or for states of steps."""
    return replace(
        buffer,
        shape=(integer(copies), *buffer.shape),
        strides=(buffer.size, *buffer.strides),
        size=plan.algebra.mul(buffer.size, integer(copies)),
        swizzles=tuple([(a + 1, b + 1) for a, b in buffer.swizzles]),
    )


def _buffer(
    plan: LoopPlan,
    name: str,
    tensor: TensorView,
    memory: Memory,
    dtype: DType,
    shape: tuple[Expr, ...],
    kind: str,
) -> Buffer:
    algebra = plan.algebra
    size = algebra.product(shape)
    return Buffer(name, tensor.name, memory, dtype, shape, row_major(shape, algebra), size, kind)


def stored_places(plan: LoopPlan, tensor: TensorView, start: int) -> tuple[int, ...]:
    """Return the leaf positions from `start` on that a LOCAL buffer of `tensor` is indexed by."""
    result: list[int] = []
    for place, axis in enumerate(tensor.domain.leaf):
        if place < start or not axis.is_iteration:
            continue
        spec = plan.spec(axis)
        # Each thread has a buffer of its own, and one index of every axis that is bound to threads.
        # The last axis of what an instruction computes is that of its registers, though it be one.
        one = spec.extent is ONE and spec.parallel is not ParallelType.mma
        if spec.parallel.is_thread or one:
            continue
        result.append(place)
    return tuple(result)


def shared_places(plan: LoopPlan, tensor: TensorView, start: int) -> tuple[int, ...]:
    """Return the leaf positions that a SHARED buffer of `tensor` is indexed by.

    Those that a block runs over while the buffer lives: from position `start` on, and left of it
    the axes bound to threads of a block.
    """
    result: list[int] = []
    for place, axis in enumerate(tensor.domain.leaf):
        spec = plan.spec(axis)
        inside = place >= start or spec.parallel.is_block
        # Of axes left of the position, those over threads of the block count: its threads are at
        # all of their indices at once. A block has one index of each axis bound to the grid.
        if axis.is_iteration and inside and not spec.parallel.is_grid and spec.extent is not ONE:
            result.append(place)
    return tuple(result)


def warps_of(plan: LoopPlan) -> tuple[ParallelType, ...]:
    """Return the launch dimensions that tell the warps of a block apart, the slowest first."""
    dims = (ParallelType.block_z, ParallelType.block_y)
    return tuple([d for d in dims if plan.launch.get(d, ONE) is not ONE])


def _warp_places(plan: LoopPlan, tensor: TensorView, start: int) -> tuple[int, ...]:
    """Return the leaf positions that a WARP buffer is indexed by: last the lane and the register.

    A warp has one index of each other axis that is bound to threads, and a buffer of its own.

    Raises:
        LoweringError: the tensor is not spread over 32 lanes.
    """
    if not has_lanes(tensor):
        raise LoweringError(
            tensor.name,
            "its memory is WARP, and no axis of it is over the 32 lanes of a warp, in front of one "
            "over registers",
            f"spread its axes by {tensor.name}.distribute, or by instruct of what reads it",
        )
    lane = lane_axis(tensor)
    others = [p for p in stored_places(plan, tensor, start) if p not in (lane, lane + 1)]
    return (*others, lane, lane + 1)


def _on_chip(plan: LoopPlan, tensor: TensorView, indices: Indices) -> TensorStorage:
    pos, leaf, rooms = _position(plan, tensor), tensor.domain.leaf, _rooms(plan, tensor)
    home = plan.forest.find(leaf[pos - 1]) if pos else None
    if rooms:  # all of a state lives on from step to step
        steps = [n for n, axis in enumerate(leaf) if axis.is_step]
        home, pos = plan.forest.find(leaf[steps[0]]).enclosing(), steps[-1] + 1
    if tensor.memory is Memory.WARP:
        places = _warp_places(plan, tensor, pos)
    elif tensor.memory is Memory.SHARED:
        places = shared_places(plan, tensor, pos)
    else:
        places = stored_places(plan, tensor, pos)
    shape = tuple([plan.spec(leaf[place]).extent for place in places]) or (ONE,)
    if tensor.memory is Memory.WARP:
        shape = (*[plan.launch[d] for d in warps_of(plan)], *shape)
    kind = tensor.memory.value
    buffer = _buffer(plan, tensor.name, tensor, tensor.memory, tensor.dtype, shape, kind)
    axes: tuple[IterDomain, ...] | None = None
    if tensor.domain.allocation is not None or is_atomic(tensor):
        stored = on_chip(plan, tensor, places, indices)
        buffer = _laid_out(plan, tensor, buffer, stored)
        axes = stored.axes if stored.places is None else None
    if tensor.layout.stages > 1 and _is_read(plan, tensor):
        buffer = _rotating(plan, buffer, tensor.layout.stages)
        buffer = replace(buffer, stages=tensor.layout.stages)
    if rooms:
        buffer = _rotating(plan, buffer, rooms)
    return TensorStorage(buffer, places, home, buffer, places, axes, rooms=rooms)


def _rooms(plan: LoopPlan, tensor: TensorView) -> int:
    """Return of how many steps a state is needed at once: those that a step reads, and its own.

    0 of a tensor of which no step reads an earlier one, and of one in GLOBAL memory, which has all.
    """
    if tensor.memory is Memory.GLOBAL:
        return 0
    back = [
        plan.algebra.sub(Coordinate(0), definition.reads[number].indices[0])
        for unit in plan.forest.units
        if (definition := unit.definition) is not None
        for number in definition.carried
        if definition.reads[number].producer is tensor
    ]
    return 1 + max([int(ago.value) for ago in back if isinstance(ago, Const)]) if back else 0


def _position(plan: LoopPlan, tensor: TensorView) -> int:
    """Return the position right of which a buffer of `tensor` needs its axes.

    Mostly the compute-at position. Of a component that no consumer reads (a count beside a mean) it
    is that of the first reduction loop: only its siblings need it, while they are computed.
    """
    if is_atomic(tensor):
        return min(tensor.compute_at_pos, _with_start(plan, tensor))
    alone = tensor.memory is not Memory.LOCAL or len(tensor.siblings) == 1
    if alone or _is_read(plan, tensor):
        return tensor.compute_at_pos
    leaf = tensor.domain.leaf
    first = next((n for n, axis in enumerate(leaf) if axis.is_reduction), len(leaf))
    return max(first, tensor.compute_at_pos)


def _is_read(plan: LoopPlan, tensor: TensorView) -> bool:
    return any(consumer.siblings[0] in plan.forest.position for consumer in tensor.consumers)


def _with_start(plan: LoopPlan, tensor: TensorView) -> int:
    """Return how many leading axes of an atomic fold its initial values share the loops of."""
    own = loops_with_start(plan, tensor)
    return sum(1 for _ in takewhile(lambda axis: plan.forest.find(axis) in own, tensor.domain.leaf))


def _with_accumulator(
    plan: LoopPlan, tensor: TensorView, storage: TensorStorage, names: FreshNames
) -> TensorStorage:
    places = _partial_places(plan, tensor)
    partial = _partial(plan, tensor, places, names.buffer(f"{tensor.name}_acc"))
    return replace(storage, accumulator=partial, partial_places=places)


def _with_items(
    plan: LoopPlan, tensor: TensorView, storage: TensorStorage, names: FreshNames
) -> TensorStorage:
    places = _partial_places(plan, tensor)
    part, before, running = [
        _partial(plan, tensor, places, names.buffer(f"{tensor.name}_{stem}"))
        for stem in ("part", "before", "all")
    ]
    home = plan.forest.find(item_axes(plan, tensor.siblings[0])[0]).enclosing()
    items = ItemRegisters(part, before, running, home)
    return replace(storage, partial_places=places, items=items)


def _partial_places(plan: LoopPlan, tensor: TensorView) -> tuple[int, ...]:
    """Return the leaf positions that index what a thread folds."""
    leaf, folded = tensor.domain.leaf, folded_axes(tensor)
    first = leaf.index(folded[0])
    return tuple([p for p in stored_places(plan, tensor, first) if leaf[p] not in folded])


def _partial(plan: LoopPlan, tensor: TensorView, places: tuple[int, ...], name: str) -> Buffer:
    """Return a buffer for what a thread folds."""
    shape = tuple([plan.spec(tensor.domain.leaf[place]).extent for place in places]) or (ONE,)
    return _buffer(plan, name, tensor, Memory.LOCAL, tensor.dtype.compute, shape, "accumulator")
