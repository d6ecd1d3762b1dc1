"""Recomputation: clone a producer for the consumers that cannot share its place.

nvFuser's design note of computeAt leaves this open. What can share is found by trial: the target
first where it reads the producer, then consumers on the way to it, then the others in order of
creation; each keeps the original if the original can still be placed, and reads a clone otherwise.
The clone has the loops that the producer had before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from loopnest.scalar.enums import Memory
from loopnest.schedule import chains
from loopnest.schedule.cloning import clone_domain, new_tensor, reroute
from loopnest.schedule.transaction import PrimitiveRefused
from loopnest.tensor.tensor_view import TensorView

Place: TypeAlias = Callable[[TensorView, TensorView, int], None]


def place_or_clone(producer: TensorView, target: TensorView, pos: int, place: Place) -> None:
    """Place `producer` at `target`, cloning it for consumers that cannot share.

    Raises:
        Refusal: it cannot be placed even alone, or lives in SHARED or GLOBAL memory.
    """
    refusal = _attempt(producer, (), target, pos, place)
    if refusal is None:
        return
    if producer.memory is not Memory.LOCAL:
        raise PrimitiveRefused(
            f"{producer.name} is {producer.memory.value}, and a recomputed tensor must be local",
            "set its memory to ln.LOCAL, or place it where all its consumers can share it",
        )
    apart = _apart(producer, target, pos, place)
    refusal = _attempt(producer, apart, target, pos, place) if apart else refusal
    if refusal is not None:
        raise refusal


def _apart(
    producer: TensorView, target: TensorView, pos: int, place: Place
) -> tuple[TensorView, ...]:
    """Return the consumers that must read a clone; () where even that does not help."""
    live = producer.fusion.live()
    way = chains.ancestors(target)
    users = [c for c in chains.consumers_of(producer) if c in live and c is c.siblings[0]]
    users.sort(key=lambda user: (user is not target.siblings[0], user not in way))
    kept: list[TensorView] = []
    for user in users:
        rest = tuple(c for c in users if c not in kept and c is not user)
        if not kept and (user not in way or target.siblings[0] in users[: users.index(user)]):
            return ()
        if rest and _works(producer, rest, target, pos, place):
            kept.append(user)
    return tuple(c for c in users if c not in kept) if kept else ()


def _works(
    producer: TensorView, apart: Sequence[TensorView], target: TensorView, pos: int, place: Place
) -> bool:
    """Whether the producer's position rises once the consumers `apart` read a clone."""
    fusion, before = producer.fusion, producer.compute_at_pos
    mark = fusion.begin()
    try:
        refusal = _attempt(producer, apart, target, pos, place)
        return refusal is None and producer.compute_at_pos > before
    finally:
        fusion.rollback(mark)
        fusion.end()


def _attempt(
    producer: TensorView, apart: Sequence[TensorView], target: TensorView, pos: int, place: Place
) -> PrimitiveRefused | None:
    """Clone for the consumers `apart`, place the producer; undo both and return what refused."""
    fusion = producer.fusion
    mark = fusion.begin()
    try:
        if apart:
            _clone_for(producer, apart)
        place(producer, target, pos)
    except PrimitiveRefused as refusal:
        fusion.rollback(mark)
        return refusal
    finally:
        fusion.end()
    return None


def _clone_for(producer: TensorView, apart: Sequence[TensorView]) -> None:
    """Let `apart` read a clone of `producer`, with clones of what is computed inside of it.

    What shares no more loops than the producer itself did is in those of both, and is not cloned.
    """
    copies = clone(producer)
    for original, copy in zip(producer.siblings, copies, strict=True):
        reroute([c for user in apart for c in user.siblings], original, copy)
    for source in dict.fromkeys(copies[0].producers):
        if source.compute_at_pos > producer.compute_at_pos:
            _clone_for(source, (copies[0],))


def clone(tensor: TensorView) -> tuple[TensorView, ...]:
    """Return copies of `tensor` and its siblings: same definition, loops and positions."""
    fusion = tensor.fusion
    copies: list[TensorView] = []
    for original in tensor.siblings:
        domain, _ = clone_domain(original.domain, fusion.algebra)
        copy = new_tensor(original, domain)
        family = (*original.clones, copy)
        fusion.change(copy, "_name", _free_name(original, len(family) + 1))
        fusion.change(copy, "_compute_at_pos", original.compute_at_pos)
        fusion.change(copy, "_produced_at_pos", original.produced_at_pos)
        fusion.change(original, "clones", family)
        copies.append(copy)
    assert tensor.definition is not None
    definition = tensor.definition.with_outputs(copies)
    for copy in copies:
        copy.define(definition)
    return tuple(copies)


def _free_name(original: TensorView, count: int) -> str:
    taken = {t.name for t in original.fusion.tensors}
    while f"{original.name}_{count}" in taken:
        count += 1
    return f"{original.name}_{count}"
