"""Pass "allocation": which buffer holds each tensor, its shape, and where it is made.

Requires the nest. Ensures a `TensorStorage` for every live tensor: GLOBAL ones have their full
logical shape; a LOCAL one has the leaf axes right of its compute-at position (right of the loops
around its definition, where nobody reads it) that are neither bound to threads, nor reductions, nor
of extent 1; a SHARED one those not bound to blocks, and the axes
bound to threads of a block left of the position too (rule 40). Both are made in the body where
their own loops begin. A reduction that folds apart (see `phase_nest`) has a LOCAL accumulator, of
float32 for 16 bits. It comes before indexing, because an access is an index into these shapes.

Before: ``for i0: { define T1; define T2 }``; after::

    for i0: { T1: float32[1] local; define T1; define T2 }
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from loopnest.errors import LoweringError
from loopnest.kir.buffers import Buffer
from loopnest.lowering.loops.loop_plan import LoopPlan
from loopnest.lowering.loops.phase_nest import accumulates_apart
from loopnest.lowering.reductions.block_reduction import FreshNames, row_major
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import ONE, Expr, integer
from loopnest.schedule.loop_groups import LoopGroup
from loopnest.tensor.buffer_layout import PLAIN
from loopnest.tensor.domain import IterDomain
from loopnest.tensor.tensor_view import TensorView


@dataclass(frozen=True, eq=False, slots=True)
class TensorStorage:
    """Where a tensor lives.

    `places` are the leaf positions that index a LOCAL or SHARED buffer, in its order; a GLOBAL
    one is indexed by the logical axes. `home` is the loop in whose body such a buffer is made
    (None: the kernel's). `accumulator` is the buffer that a reduction folds in: its own, or another
    with the leaf positions `partial_places`.
    """

    buffer: Buffer
    places: tuple[int, ...]
    home: LoopGroup | None
    accumulator: Buffer
    partial_places: tuple[int, ...]


def allocate(plan: LoopPlan, names: FreshNames) -> dict[TensorView, TensorStorage]:
    """Return the storage of every live tensor and of every input."""
    result: dict[TensorView, TensorStorage] = {}
    for tensor in plan.fusion.inputs:
        result[tensor] = _global(plan, tensor, "input", tensor.name)
    for unit in plan.forest.units:
        for tensor in unit.siblings:
            storage = _storage(plan, tensor, result)
            if accumulates_apart(plan, tensor):
                storage = _with_accumulator(plan, tensor, storage, names)
            result[tensor] = storage
    return result


def _storage(
    plan: LoopPlan, tensor: TensorView, done: dict[TensorView, TensorStorage]
) -> TensorStorage:
    target = plan.fusion.inplace.get(tensor)
    if target is not None and tensor.is_output:
        return done[target]
    if tensor.memory is Memory.GLOBAL:
        return _global(plan, tensor, "output" if tensor.is_output else "workspace", tensor.name)
    return _on_chip(plan, tensor)


def _global(plan: LoopPlan, tensor: TensorView, kind: str, name: str) -> TensorStorage:
    shape = tuple([plan.algebra.simplify(size) for size in tensor.sizes]) or (ONE,)
    buffer = _buffer(plan, name, tensor, Memory.GLOBAL, tensor.dtype, shape, kind)
    if tensor.layout is not PLAIN:
        buffer = _laid_out(plan, tensor, buffer, tensor.domain.logical)
    return TensorStorage(buffer, (), None, buffer, ())


def _laid_out(
    plan: LoopPlan, tensor: TensorView, buffer: Buffer, axes: tuple[IterDomain, ...]
) -> Buffer:
    """Return `buffer`, whose dimensions run over `axes`, in the layout that the user gave it."""
    layout, algebra = tensor.layout, plan.algebra
    known = (*axes, *tensor.domain.leaf) if tensor.memory is not Memory.GLOBAL else axes
    if any(axis not in known for axis in layout.axes()):
        raise LoweringError(
            tensor.name,
            "its layout names an axis that it does not have (any more)",
            "lay the buffer out last, after splits, merges and compute_at"
            + ("; a GLOBAL tensor by its own axes" if tensor.memory is Memory.GLOBAL else ""),
        )
    gaps = dict(layout.pad)
    padded = [
        algebra.add(size, integer(gaps.get(axis, 0)))
        for size, axis in zip(buffer.shape, axes, strict=True)
    ] if axes else list(buffer.shape)  # fmt: skip
    rank = {axis: n for n, axis in enumerate(layout.order or ())}
    order = sorted(range(len(padded)), key=lambda d: rank.get(axes[d], d) if axes else d)
    strides: list[Expr] = [ONE] * len(padded)
    step: Expr = ONE
    for dimension in reversed(order):
        strides[dimension] = step
        step = algebra.mul(step, padded[dimension])
    shape = buffer.shape
    pairs: tuple[tuple[int, int], ...] = ()
    if layout.swizzle is not None:
        pairs = (_swizzled_pair(tensor, axes),)
    if layout.stages > 1:
        shape, strides = (integer(layout.stages), *shape), [step, *strides]
        step = algebra.mul(step, integer(layout.stages))
        pairs = tuple([(a + 1, b + 1) for a, b in pairs])
    return replace(
        buffer, shape=shape, strides=tuple(strides), size=step, swizzles=pairs, stages=layout.stages
    )


def _swizzled_pair(tensor: TensorView, axes: tuple[IterDomain, ...]) -> tuple[int, int]:
    assert tensor.layout.swizzle is not None
    places = [axes.index(axis) for axis in tensor.layout.swizzle if axis in axes]
    if tensor.memory is not Memory.SHARED or len(places) != 2:
        raise LoweringError(
            tensor.name,
            f"its swizzle is over axes that its buffer in {tensor.memory.value} memory lacks",
            "swizzle two axes that a SHARED buffer holds: those right of the compute-at position, "
            "and those bound to threads of a block",
        )
    return places[0], places[1]


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
        if spec.parallel.is_thread or spec.extent is ONE:
            continue
        result.append(place)
    return tuple(result)


def shared_places(plan: LoopPlan, tensor: TensorView) -> tuple[int, ...]:
    """Return the leaf positions that a SHARED buffer of `tensor` is indexed by.

    Those that a block runs over while the buffer lives: what is right of the compute-at position,
    and left of it the axes bound to threads of a block.
    """
    result: list[int] = []
    for place, axis in enumerate(tensor.domain.leaf):
        spec = plan.spec(axis)
        inside = place >= tensor.compute_at_pos or spec.parallel.is_block
        if axis.is_iteration and inside and not spec.parallel.is_grid and spec.extent is not ONE:
            result.append(place)
    return tuple(result)


def _on_chip(plan: LoopPlan, tensor: TensorView) -> TensorStorage:
    pos, leaf = _position(plan, tensor), tensor.domain.leaf
    shared = tensor.memory is Memory.SHARED
    places = shared_places(plan, tensor) if shared else stored_places(plan, tensor, pos)
    shape = tuple([plan.spec(leaf[place]).extent for place in places]) or (ONE,)
    kind = tensor.memory.value
    buffer = _buffer(plan, tensor.name, tensor, tensor.memory, tensor.dtype, shape, kind)
    if tensor.layout is not PLAIN:
        buffer = _laid_out(plan, tensor, buffer, tuple([leaf[place] for place in places]))
    home = plan.forest.find(leaf[pos - 1]) if pos else None
    return TensorStorage(buffer, places, home, buffer, places)


def _position(plan: LoopPlan, tensor: TensorView) -> int:
    """Return the position right of which a buffer of `tensor` needs its axes.

    That of an output of several that nobody reads lies inside of all loops that its definition does
    not go through more than once: only its siblings, computed there, need it.
    """
    read = any(consumer.siblings[0] in plan.forest.position for consumer in tensor.consumers)
    if read or tensor.memory is not Memory.LOCAL or len(tensor.siblings) == 1:
        return tensor.compute_at_pos
    leaf = tensor.domain.leaf
    first = next((n for n, axis in enumerate(leaf) if axis.is_reduction), len(leaf))
    return max(first, tensor.compute_at_pos)


def _with_accumulator(
    plan: LoopPlan, tensor: TensorView, storage: TensorStorage, names: FreshNames
) -> TensorStorage:
    leaf = tensor.domain.leaf
    first = next(n for n, axis in enumerate(leaf) if axis.is_reduction)
    places = stored_places(plan, tensor, first)
    shape = tuple([plan.spec(leaf[place]).extent for place in places]) or (ONE,)
    name = names.buffer(f"{tensor.name}_acc")
    partial = _buffer(plan, name, tensor, Memory.LOCAL, tensor.dtype.compute, shape, "accumulator")
    return TensorStorage(storage.buffer, storage.places, storage.home, partial, places)
