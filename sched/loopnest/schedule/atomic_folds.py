"""atomic: a reduction whose threads update its memory directly, one step at a time.

Before ``y [i0, r1]``, whose threads along r1 would fold partial results of their own and exchange
them; ``s = y.atomic()`` makes ``s [i0]`` of identities, in the memory of y, and y then updates that
memory by atomic operations. s is scheduled like any tensor; its elements must be stored before any
update: in a launch of its own (``y.new_launch()``), or in loops before those of y, with a barrier
in between where other threads store them.

A scatter is a reduction in which data say which element an update goes to, so that its loops over
the updates may be bound to all that a launch has.
"""

from __future__ import annotations

from dataclasses import replace

from loopnest.scalar.enums import Memory
from loopnest.schedule.caching import new_tensor, plain_domain
from loopnest.schedule.transaction import (
    PrimitiveRefused,
    primitive,
    require_computed,
    require_not_instructed,
)
from loopnest.schedule.transforms import check_launches
from loopnest.tensor.math_snapshot import logical_places
from loopnest.tensor.overlapping_tiles import overlaps
from loopnest.tensor.tensor_view import Definition, Read, TensorView

EXACT = ("max", "min")
"""Reducers whose result does not depend on the order, whatever the type."""


@primitive
def atomic(tensor: TensorView) -> TensorView:
    """Let all threads fold into the memory of `tensor`; see `TensorView.atomic`."""
    require_computed(tensor)
    require_not_instructed(tensor, "atomic")
    _require_reduction(tensor)
    _take_memory(tensor)
    definition = tensor.definition
    assert definition is not None
    assert definition.reducer is not None
    start = new_tensor(tensor, plain_domain(tensor))
    tensor.fusion.change(start, "_memory", tensor.memory)
    values = definition.reducer.identity
    start.define(Definition("start", (), (), (start,), values, None, definition.reducer.name))
    reads = (*definition.reads, Read(start, logical_places(tensor.domain)))
    tensor.define(replace(definition, reads=reads, start=len(definition.reads)))
    return start


def _folds(tensor: TensorView) -> bool:
    return any(axis.is_reduction for axis in tensor.domain.root)


def _require_reduction(tensor: TensorView) -> None:
    """Refuse what no thread may fold on its own, in any order, in a single element."""
    definition, name = tensor.definition, tensor.name
    assert definition is not None
    reducer = definition.reducer
    if reducer is None or not (_folds(tensor) or definition.scan):
        folded = sorted({read.producer.name for read in definition.reads if _folds(read.producer)})
        hint = f"; {name} reads {', '.join(folded)}, which has it" if folded else ""
        raise PrimitiveRefused(f"{name} is no reduction", f"atomic() is for reductions{hint}")
    if definition.start is not None:
        raise PrimitiveRefused(f"{name} is atomic already", "call it once")
    if definition.scan is not None:
        raise PrimitiveRefused(
            f"{name} is a scan, whose steps have an order", "rfactor it for threads side by side"
        )
    if len(reducer.identity) > 1:
        raise PrimitiveRefused(
            f"{reducer.name} has {len(reducer.identity)} components, and an atomic operation "
            "updates one element",
            "bind the loops without atomic(): threads then exchange partial results",
        )
    if reducer.ordered:
        raise PrimitiveRefused(
            f"{reducer.name} need not commute, and atomic operations have no order",
            "say commutative=True of a reducer that commutes",
        )
    if tensor.dtype.compute is not tensor.dtype:
        raise PrimitiveRefused(
            f"{name} is {tensor.dtype}, whose partial results are {tensor.dtype.compute}: each "
            "update would round",
            f"reduce to {tensor.dtype.compute} (dtype=, or ln.cast of what is reduced), and cast "
            "the result",
        )
    if tensor.dtype.size not in (4, 8):
        raise PrimitiveRefused(
            f"an element of {name} has {tensor.dtype.size} "
            f"{'byte' if tensor.dtype.size == 1 else 'bytes'}",
            "atomic operations update 4 or 8 bytes",
        )
    if definition.deterministic and tensor.dtype.is_float and reducer.name not in EXACT:
        raise PrimitiveRefused(
            f"{name} is {definition.op} with deterministic=True, and a {reducer.name} of "
            f"{tensor.dtype} by atomic operations has other bits each time",
            "leave out deterministic=True, or schedule the reduction without atomic()",
        )


def _take_memory(tensor: TensorView) -> None:
    """Move a LOCAL result to GLOBAL memory, where all threads may update it.

    SHARED memory stays: each block has its own, which its threads update.
    """
    if tensor.memory is Memory.LOCAL:
        tensor.fusion.change(tensor, "_memory", Memory.GLOBAL)
        check_launches(tensor)
    if tensor.memory is Memory.GLOBAL and overlaps(tensor.domain.history):
        raise PrimitiveRefused(
            f"{tensor.name} is computed in tiles that overlap, as its consumers' windows ask, and "
            "what lies in two of them would be folded twice",
            f"compute {tensor.name} in front of the loops of its consumers",
        )
    if tensor.domain.allocation is not None:
        raise PrimitiveRefused(
            f"{tensor.name} is laid out by an allocation domain of its own",
            f"{tensor.name}.allocation_domain.reset() first: updates go to the plain layout",
        )
    if tensor.layout.stages > 1:
        raise PrimitiveRefused(
            f"{tensor.name} has a circular buffer of {tensor.layout.stages} stages, which begins "
            "anew in each iteration",
            "leave out one of the two",
        )
    if tensor in tensor.fusion.inplace:
        raise PrimitiveRefused(
            f"{tensor.name} takes the memory of {tensor.fusion.inplace[tensor].name}, which its "
            "initial values would overwrite",
            "drop inplace=",
        )
