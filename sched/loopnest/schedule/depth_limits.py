"""What keeps a tensor from being computed deeper in its consumers' loops, and what would let it.

The reason is that of `inlining`; the remedy is a call that was tried: carried out on the fusion,
seen to place the tensor deeper and to leave a kernel, and undone. Those that change least come
first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

from loopnest.base.errors import LoopnestError
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.origin import Origin
from loopnest.schedule.axis_places import place_text
from loopnest.schedule.chains import common_consumers
from loopnest.schedule.compute_at import compute_at
from loopnest.schedule.inlining import (
    STRICT,
    barred_axes,
    inline_at,
    largest_position,
    loops_left,
    what_parts,
)
from loopnest.schedule.loop_groups import Conflict
from loopnest.schedule.overlap import readers
from loopnest.schedule.transaction import PrimitiveRefused
from loopnest.schedule.transforms import parallelize, reorder
from loopnest.tensor.intents import LeftBehind
from loopnest.tensor.tensor_view import TensorView

Refusal: TypeAlias = "Callable[[], str]"
"""Why the schedule as it is has no kernel; "" where it has one."""
_Calls: TypeAlias = "Callable[[], str]"
"""Makes calls, and returns them as a user writes them."""

_MOST_KERNELS = 4
"""So many calls that place a tensor deeper are asked for a kernel."""


def depth_limit(tensor: TensorView, refusal: Refusal) -> LeftBehind:
    """Return what keeps a tensor at its position, and the smallest change that takes it deeper.

    Args:
        tensor: computed, and needed by an output. It is the same afterwards.
        refusal: asks for a kernel of its fusion.

    Returns:
        The position; why it is no larger, as it reads after "because"; the calls, or "" where it
        shares all loops that it could, or where no call does.
    """
    head = tensor.siblings[0]
    pos, found = head.compute_at_pos, readers(head)
    if not found:
        return LeftBehind(pos, "no tensor reads it, so that its loops are its own", "")
    if not loops_left(head.domain, pos):
        return LeftBehind(pos, "it shares all of its loops", "")
    why = _reason(head, pos)
    refused = ""
    kernels = 0
    for make in _candidates(head, pos):
        text, missing = _tried(head, pos, make, refusal)
        if text and not missing:
            return LeftBehind(pos, why or "no call asked for more", text)
        if text:
            refused = refused or f"{text} would place it deeper, but then {missing}"
            kernels += 1
            if kernels == _MOST_KERNELS:
                break
    if not why or refused:
        why = f"{why}; {refused}" if why and refused else why or refused
    return LeftBehind(pos, why or "no call places it deeper", "")


def _reason(head: TensorView, pos: int) -> str:
    barred = barred_axes(head, pos)
    if not barred:
        return what_parts(head, pos).why
    holder, place = barred[0]
    axis = holder.domain.leaf[place]
    how = "pinned" if axis.pinned else "vectorized"
    return (
        f"axis {place_text(axis, place)} of {holder.name} is {how}, and nothing is inlined past it"
    )


def _tried(head: TensorView, pos: int, make: _Calls, refusal: Refusal) -> tuple[str, str]:
    """Return calls that place a tensor deeper, and why there is no kernel then; "" if they do not.

    They are undone.
    """
    fusion = head.fusion
    before, mark = fusion.calling, fusion.begin()
    fusion.calling = Origin("", 0)
    try:
        text = make()
        return (text, refusal()) if head.compute_at_pos > pos else ("", "")
    except (PrimitiveRefused, Conflict, LoopnestError):
        return "", ""
    finally:
        fusion.rollback(mark)
        fusion.end()
        fusion.calling = before


def _candidates(head: TensorView, pos: int) -> Iterator[_Calls]:
    """Yield calls that may place a tensor deeper, those that change least first."""
    yield from _placing(head, pos)
    for holder, place in barred_axes(head, pos):
        yield partial(_freed, head, holder, place)
    leaf = head.domain.leaf
    order = sorted(range(head.ndim), key=lambda n: n >= head.frozen and leaf[n].is_reduction)
    if order != [*range(head.ndim)]:
        for make in _placing(head, pos):
            yield partial(_reordered, head, order, make)
    if head.memory is Memory.LOCAL:
        for consumer in dict.fromkeys([c for _, c in readers(head)]):
            for place in range(consumer.ndim, pos, -1):
                yield partial(_placed, head, consumer, place, recompute=True)


def _placing(head: TensorView, pos: int) -> Iterator[_Calls]:
    """Yield calls of its own that place a tensor at a larger position."""
    yield partial(_inlined, head)
    for consumer in dict.fromkeys([*[c for _, c in readers(head)], *common_consumers(head)]):
        for place in range(consumer.ndim, pos, -1):
            yield partial(_placed, head, consumer, place)


def _inlined(head: TensorView) -> str:
    place = largest_position(head, STRICT)
    inline_at(head, place)
    return f"{head.name}.inline_at({place})"


def _placed(head: TensorView, consumer: TensorView, place: int, *, recompute: bool = False) -> str:
    compute_at(head, consumer, place, recompute=recompute)
    shown = -1 if place == consumer.ndim else place
    more = ", recompute=True" if recompute else ""
    return f"{head.name}.compute_at({consumer.name}, {shown}{more})"


def _freed(head: TensorView, holder: TensorView, place: int) -> str:
    axis, fusion = holder.domain.leaf[place], head.fusion
    if not axis.pinned:
        parallelize(holder, {place: ParallelType.serial})
        free = f"{holder.name}.axis({place}).parallelize(ln.ParallelType.serial)"
        return f"{free}; {_inlined(head)}"
    asked = [i.origin.call for i in fusion.intents if i.kind == "pinned" and i.tensor is holder]
    fusion.change(axis, "pinned", False)
    return f"leave out {' and '.join(asked)}; {_inlined(head)}"


def _reordered(head: TensorView, order: list[int], make: _Calls) -> str:
    reorder(head, order)
    return f"{head.name}.reorder({order}); {make()}"
