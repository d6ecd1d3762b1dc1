"""Recomputation: clone a producer for the consumers that cannot share its place.

nvFuser's design note of computeAt leaves this open. What can share is found by trial: the target
first where it reads the producer, then consumers on the way to it, then the others in order of
creation; each keeps the original if the original can still be placed, and reads a clone otherwise.
The clone has the loops that the producer had before.

Where the consumers that stand apart do not read the producer itself but a tensor farther on, all
between the two is cloned with it; so is what is computed inside of the producer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from loopnest.scalar.enums import Memory
from loopnest.schedule import chains
from loopnest.schedule.atomic_folds import require_not_atomic
from loopnest.schedule.cloning import carry_allocation, clone_domain, new_tensor, reroute
from loopnest.schedule.replay import shared_positions
from loopnest.schedule.transaction import PrimitiveRefused
from loopnest.tensor.tensor_view import TensorView

Place: TypeAlias = Callable[[TensorView, TensorView, int], None]

Split: TypeAlias = "tuple[TensorView, Sequence[TensorView]]"
"""A tensor, and those of its consumers that read a clone of it."""

RECOMPUTE = "pass recompute=True to clone it for the consumers that cannot share"
"""What a refusal to place without clones advises."""


def place_or_clone(producer: TensorView, target: TensorView, pos: int, place: Place) -> None:
    """Place `producer` at `target`, cloning it for consumers that cannot share.

    Raises:
        Refusal: it cannot be placed even alone, or lives in SHARED or GLOBAL memory.
    """
    refusal = _attempt(producer, None, target, pos, place)
    if refusal is None:
        return
    if producer.memory is not Memory.LOCAL:
        raise PrimitiveRefused(
            f"{producer.name} is {producer.memory.value}, and a recomputed tensor must be local",
            "set its memory to ln.LOCAL, or place it where all its consumers can share it",
        )
    for fork in _forks(producer, target):
        apart = _apart(producer, fork, target, pos, place)
        if apart and _attempt(producer, (fork, apart), target, pos, place) is None:
            return
    if refusal.hint == RECOMPUTE:
        refusal.hint = (
            f"first clone, by recompute=True, the tensor nearest to {target.name} that consumers "
            "read in several ways"
        )
    raise refusal


def _forks(producer: TensorView, target: TensorView) -> Iterator[TensorView]:
    """Yield the tensors that consumers may read a clone of, the producer first.

    They lie on the way to the target, and all from the producer to them can be computed again.
    """
    live = producer.fusion.live()
    between = chains.descendants(producer) & chains.ancestors(target) & live
    for tensor in producer.fusion.topological():
        if tensor not in between or tensor is not tensor.siblings[0] or tensor in target.siblings:
            continue
        way = between & chains.ancestors(tensor)
        if all(t.memory is Memory.LOCAL for t in way) and len(_users(tensor)) > 1:
            yield tensor


def _users(tensor: TensorView) -> list[TensorView]:
    live = tensor.fusion.live()
    return [c for c in chains.consumers_of(tensor) if c in live and c is c.siblings[0]]


def _apart(
    producer: TensorView, fork: TensorView, target: TensorView, pos: int, place: Place
) -> tuple[TensorView, ...]:
    """Return the consumers of `fork` that must read a clone; () where even that does not help."""
    way = chains.ancestors(target)
    users = _users(fork)
    # The target decides where the original stands: if the original cannot serve it, no clone for
    # others helps.
    users.sort(key=lambda user: (user is not target.siblings[0], user not in way))
    kept: list[TensorView] = []
    for user in users:
        rest = tuple(c for c in users if c not in kept and c is not user)
        if not kept and (user not in way or target.siblings[0] in users[: users.index(user)]):
            return ()
        if rest and _works(producer, (fork, rest), target, pos, place):
            kept.append(user)
    return tuple(c for c in users if c not in kept) if kept else ()


def _works(producer: TensorView, split: Split, target: TensorView, pos: int, place: Place) -> bool:
    """Whether the producer, or the tensor that is split, rises once consumers read a clone."""
    fusion, before = producer.fusion, (producer.compute_at_pos, split[0].compute_at_pos)
    mark = fusion.begin()
    try:
        refusal = _attempt(producer, split, target, pos, place)
        after = producer.compute_at_pos, split[0].compute_at_pos
        return refusal is None and after != before  # positions only rise
    finally:
        fusion.rollback(mark)
        fusion.end()


def _attempt(
    producer: TensorView, split: Split | None, target: TensorView, pos: int, place: Place
) -> PrimitiveRefused | None:
    """Clone for the consumers of `split`, place the producer; undo both and return what refused."""
    fusion = producer.fusion
    mark = fusion.begin()
    try:
        if split is not None:
            _clone_for(producer, *split)
        place(producer, target, pos)
    except PrimitiveRefused as refusal:
        fusion.rollback(mark)
        return refusal
    finally:
        fusion.end()
    return None


def _clone_for(producer: TensorView, fork: TensorView, apart: Sequence[TensorView]) -> None:
    """Let `apart` read a clone of `fork`, with clones of all from `producer` on to it.

    What is computed inside of these is cloned with them; what is in their loops and in those of
    the consumers too is not.
    """
    again = chains.descendants(producer) & chains.ancestors(fork)
    depths: dict[TensorView, int] = {}
    copy_of: dict[TensorView, TensorView] = {}
    # Consumers first: a clone reads clones of what is cloned with it, so that its readers must be
    # there when it is made.
    for tensor in reversed(fork.fusion.topological()):
        if tensor is not tensor.siblings[0] or tensor.is_input:
            continue
        depth = fork.compute_at_pos if tensor in fork.siblings else _outside(tensor, depths)
        if depth is None or (tensor not in again and tensor.compute_at_pos <= depth):
            continue
        depths.update(dict.fromkeys(tensor.siblings, depth))
        readers = [c for c in chains.consumers_of(tensor) if c in copy_of]
        for original, copy in zip(tensor.siblings, clone(tensor), strict=True):
            copy_of[original] = copy
            reroute([copy_of[c] for c in readers], original, copy)
            if original in fork.siblings:
                reroute([c for user in apart for c in user.siblings], original, copy)


def _outside(tensor: TensorView, depths: dict[TensorView, int]) -> int | None:
    """Return how many loops `tensor` shares with what is not cloned; None where no clone reads it.

    `depths` has that number for each tensor that is cloned.
    """
    found = [
        sum(place < depths[reader] for place in shared_positions(twin, reader))
        for twin in tensor.siblings
        for reader in twin.consumers
        if reader in depths
    ]
    return min(found, default=None)


def clone(tensor: TensorView) -> tuple[TensorView, ...]:
    """Return copies of `tensor` and its siblings: same definition, loops, layout and positions."""
    fusion = tensor.fusion
    copies: list[TensorView] = []
    for original in tensor.siblings:
        domain, _ = clone_domain(original.domain, fusion.algebra)
        copy = new_tensor(original, domain)
        carry_allocation(copy, original.domain)
        family = (*original.clones, copy)
        fusion.change(copy, "_name", _free_name(original, len(family) + 1))
        fusion.change(copy, "_compute_at_pos", original.compute_at_pos)
        fusion.change(copy, "_produced_at_pos", original.produced_at_pos)
        fusion.change(original, "clones", family)
        if original.starts_launch:
            fusion.change(copy, "_starts_launch", True)
        copies.append(copy)
    assert tensor.definition is not None
    require_not_atomic(tensor, "compute_at")
    definition = tensor.definition.with_outputs(copies)
    for copy in copies:
        copy.define(definition)
    return tuple(copies)


def _free_name(original: TensorView, count: int) -> str:
    taken = {t.name for t in original.fusion.tensors}
    while f"{original.name}_{count}" in taken:
        count += 1
    return f"{original.name}_{count}"
