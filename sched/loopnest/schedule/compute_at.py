"""compute_at: place one tensor inside another's loops, and carry that along the use chains.

One pass: the tensors between producer and the first common consumer (or all use chains) are found;
each is replayed once, along the path from the target that keeps the most of the target's axes
(a maximum spanning tree, never from a second reference); then each shares the loops that its
replayed position says, and the whole is checked to have an order.

Source: nvFuser's computeAt design note ("Compute at current implementation and challenges", issue
110), its TransformPropagator and MaxInfoSpanningTree (Fuser, csrc/transform_replay.cpp,
maxinfo_propagator.cpp).

`placed_at` keeps where tensors were placed: what the next call need not find out again. A position
never falls and the loops left of it are frozen: what shares its leading loops with a target keeps
them as long as the graph of tensors is the same and no call is undone.

With recompute=True a producer is cloned for the consumers that cannot share its place. nvFuser's
design note of computeAt leaves this open. What can share is found by trial: the target
first where it reads the producer, then consumers on the way to it, then the others in order of
creation; each keeps the original if the original can still be placed, and reads a clone otherwise.
The clone has the loops that the producer had before.

Where the consumers that stand apart do not read the producer itself but a tensor farther on, all
between the two is cloned with it; so is what is computed inside of the producer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from loopnest.base.fast_init import fast_init
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.schedule import chains
from loopnest.schedule.caching import carry_allocation, clone_domain, new_tensor, reroute
from loopnest.schedule.fold_order import carries
from loopnest.schedule.loop_forest import (
    ELSEWHERE,
    SEPARATE,
    Conflict,
    LaunchConflict,
    LoopForest,
    MergedRepetition,
    is_several_launches,
)
from loopnest.schedule.max_info_tree import next_replay, shared_loops
from loopnest.schedule.overlap import SharedLoops
from loopnest.schedule.replay import reshapes, shared_positions
from loopnest.schedule.root_maps import pairs, windowed
from loopnest.schedule.transaction import (
    PrimitiveRefused,
    axis_names,
    leading_position,
    place_text,
    primitive,
    require_flag,
    require_not_atomic,
    require_tensor,
)
from loopnest.tensor.axis_names import Axis
from loopnest.tensor.domain import TensorDomain
from loopnest.tensor.intents import take_back
from loopnest.tensor.overlapping_tiles import overlaps, same_loops
from loopnest.tensor.tensor_view import TensorView


@fast_init
@dataclass(frozen=True, eq=False, slots=True)
class Placement:
    """The loops of a target that a tensor was placed in.

    Args:
        target: the tensor whose loops they are.
        pos: how many of its leading ones were asked for.
        domain: the axes of the target then.
        shared: the loops that the tensor shares of these.
    """

    target: TensorView
    pos: int
    domain: TensorDomain
    shared: SharedLoops


def note_placed(target: TensorView, pos: int, found: Mapping[TensorView, SharedLoops]) -> None:
    """Take note of the tensors that share all the loops that they were replayed to have.

    And that the target depends on: others are replayed with them, but share no loop of its own.
    """
    order = target.fusion.order
    for tensor in sorted(found, key=order.ranks.__getitem__, reverse=True):
        shared = found[tensor]
        leads = any(
            consumer is target or placed_at(consumer, target, pos) is not None
            for consumer in tensor.consumers
            if consumer in order.live
        )
        alone = len(tensor.siblings) == 1 and tensor is not target
        if leads and alone and shared.loops and tensor.compute_at_pos >= len(shared.loops):
            order.placed[tensor] = Placement(target, pos, target.domain, shared)


def placed_at(tensor: TensorView, target: TensorView, pos: object) -> SharedLoops | None:
    """Return the loops that a tensor shares with a target, where it was placed there."""
    found = target.fusion.order.placed.get(tensor)
    if not isinstance(found, Placement) or found.target is not target:
        return None
    same = found.domain is target.domain and found.shared.domain is tensor.domain
    return found.shared if same and leading_position(target, pos) == found.pos else None


@primitive
def compute_at(
    producer: TensorView, consumer: TensorView, pos: Axis, *, recompute: bool = False
) -> TensorView:
    """Compute `producer` inside the leading `pos` loops of `consumer`.

    Before, two nests; after ``T1.compute_at(T2, 1)`` with T2 ``[i0, i1]``::

        for i0:
          for i1: T1
          for i2: T2

    Args:
        producer: on an input, it acts on the input's users on the way.
        consumer: any tensor that depends on the producer; its own domain never changes.
        pos: how many of the consumer's leading leaf axes; negative: ``pos += ndim + 1``. 0, or a
            position not above the present one, changes nothing.
        recompute: clone the producer (and upstream only what cannot share either) for consumers
            that cannot share; the clones are ``T1_2``…, listed in ``producer.clones``.

    Returns:
        The producer.

    Raises:
        ScheduleError: the target is the producer itself or does not depend on it; a position out
            of range, or past a pinned or vectorized axis; a frozen prefix would change; a tensor
            would have to be computed at two positions; no order of expressions would exist.

    Source: nvFuser TensorView::computeAt and its design note; rules 1 to 15, 18, 19, 21, 22, 32.
    """
    target = require_tensor(producer, consumer)
    require_flag("recompute", recompute)
    if not recompute and _placed_next(producer, target, pos):
        return producer
    if target is producer or target in producer.siblings:
        raise PrimitiveRefused("a tensor cannot be computed at itself", "name one of its consumers")
    if not chains.leads_to(producer, target):
        raise PrimitiveRefused(
            f"{target.name} does not depend on {producer.name}",
            "compute_at takes a tensor that is computed from the producer",
        )
    position = target_position(target, pos)
    for head in _users(producer, target) if producer.is_input else (producer,):
        if recompute:
            _recompute(head, target, position)
        else:
            _place(head, target, position)
    return producer


def target_position(target: TensorView, pos: object) -> int:
    """Return a compute-at position counted from the front.

    Raises:
        Refusal: no int, out of range, or past a pinned or vectorized axis.
    """
    place = leading_position(target, pos)
    for number, axis in enumerate(target.domain.leaf[:place]):
        if axis.pinned or axis.parallel is ParallelType.vectorize:
            how = "pinned" if axis.pinned else "vectorized"
            raise PrimitiveRefused(
                f"position {place} lies past axis {place_text(axis, number)} of {target.name}, "
                f"which is {how}",
                f"use a position up to {number}",
            )
    return place


def _users(tensor: TensorView, target: TensorView) -> tuple[TensorView, ...]:
    on_the_way = chains.ancestors(target)
    # Outputs of one definition have one position (rule 14): the first speaks for all of them, and
    # the target's own siblings stand where the target does.
    found = [c for c in chains.consumers_of(tensor) if c in on_the_way and c is not target]
    return tuple(c for c in found if c is c.siblings[0] and target not in c.siblings)


def selection(producer: TensorView, target: TensorView) -> set[TensorView]:
    """Return the tensors that one pass schedules: up to the first common consumer, or all."""
    if target in producer.fusion.live():
        return chains.users_up_to(producer, target)
    return chains.descendants(producer) & producer.fusion.live()


def _place(producer: TensorView, target: TensorView, pos: int) -> None:
    if pos == 0:
        return
    fusion = producer.fusion
    mark = fusion.begin()
    try:
        # Replays without a position that rises would leave other loops and share none: rule 7 asks
        # that such a call changes nothing.
        if not _propagate(producer, target, pos):
            fusion.rollback(mark)
    finally:
        fusion.end()


def _propagate(producer: TensorView, target: TensorView, pos: int) -> bool:
    """Replay and position the selected tensors; return whether any position rose."""
    selected = selection(producer, target)
    selected |= set(target.siblings)
    replayed = shared_loops(target, pos, selected)
    for tensor, found in replayed.items():
        if tensor is not target:
            rebind_unfrozen(tensor, found.domain)
    # All domains are final before any position is set: which axes a tensor shares is found by
    # comparing its domain to its consumers', in whatever order these were replayed.
    for tensor in replayed:
        require_aligned(tensor)
    wanted = {t: _wanted(t, len(found.loops), selected) for t, found in replayed.items()}
    risen = [(tensor, place) for tensor, place in wanted.items() if place > tensor.compute_at_pos]
    _raise(producer, risen)
    if risen:
        note_placed(target, pos, {t: replayed[t] for t, place in wanted.items() if place})
    return bool(risen)


def _raise(producer: TensorView, risen: list[tuple[TensorView, int]]) -> None:
    """Set positions, and check that there is an order where that does not show at once."""
    plain = joins_plainly(*risen[0]) if len(risen) == 1 else _join_plainly(risen)
    for tensor, wanted in risen:
        set_position(tensor, wanted)
    if risen and not plain:
        _check_order(producer)


def _placed_next(producer: TensorView, target: object, pos: object) -> bool:
    """Place a tensor whose only consumer is computed at the target already; say whether it is.

    Whatever lies between has its loops, which are frozen, so that the last step of the replay is
    all that is left of it. Nothing is done where that is not known.
    """
    fusion = producer.fusion
    if producer.is_input or not isinstance(target, TensorView) or target.fusion is not fusion:
        return False
    live = fusion.live()
    consumers = [c for c in producer.consumers if c in live]
    if len(producer.siblings) > 1 or len(consumers) != 1 or not {producer, target} <= live:
        return False
    known = placed_at(consumers[0], target, pos)
    if known is None:
        return False
    place = target_position(target, pos)
    found = next_replay(producer, consumers[0], known, target)
    rebind_unfrozen(producer, found.domain)
    require_aligned(producer)
    wanted = _wanted(producer, len(found.loops), set(consumers))
    if wanted > producer.compute_at_pos:
        _raise(producer, [(producer, wanted)])
    note_placed(target, place, {producer: found} if wanted else {})
    return True


def rebind_unfrozen(tensor: TensorView, domain: TensorDomain) -> None:
    """Give `tensor` a replayed domain.

    Raises:
        Refusal: its frozen prefix would change.
    """
    frozen = tensor.frozen
    if not same_loops(domain.leaf[:frozen], tensor.domain.leaf[:frozen]):
        raise PrimitiveRefused(
            f"it would change the leading {frozen} loops of {tensor.name}, which are shared "
            f"already (compute_at_pos {tensor.compute_at_pos}, "
            f"produced_at_pos {tensor.produced_at_pos})",
            f"split, merge and reorder {tensor.name} in the same way first, or {take_back(tensor)}",
        )
    if domain is not tensor.domain:
        tensor.bind(domain)


def require_aligned(tensor: TensorView) -> None:
    """Refuse new tiles of a tensor that what is computed inside of it does not fit.

    Raises:
        Refusal: a producer that shares its loops needs the ones of before.
    """
    if not overlaps(tensor.domain.history):
        return
    for producer in tensor.producers:
        placed = producer.compute_at_pos
        if placed > len(shared_positions(producer, tensor)):
            raise PrimitiveRefused(
                f"{producer.name} is computed in the loops of {tensor.name} already, which the "
                "call would replace",
                f"place {tensor.name} first, then {producer.name}: {take_back(producer)}",
            )


def _wanted(tensor: TensorView, aligned: int, selected: set[TensorView]) -> int:
    """Return the compute-at position that an aligned position means for `tensor`."""
    # A tensor has one place (rule 8): a consumer that this pass does not schedule keeps loops of
    # its own, so that no loop can be shared by all. A reduction axis of the tensor ends what can be
    # shared (rule 22): its result is there only behind that loop.
    consumers = [c for c in chains.consumers_of(tensor) if c in tensor.fusion.live()]
    if not consumers or not all(c in selected for c in consumers):
        return 0
    leaf = tensor.domain.leaf
    return next((n for n in range(aligned) if leaf[n].is_reduction), aligned)


def set_position(tensor: TensorView, pos: int) -> None:
    """Set the compute-at position of `tensor`, and the consumers' produced-at positions.

    Raises:
        Refusal: the leading axes do not correspond to those of a consumer, or one of them is
            pinned or vectorized.
    """
    fusion = tensor.fusion
    for number in range(pos):
        _require_free(tensor, tensor, number)
    for twin in tensor.siblings:
        for consumer in twin.consumers:
            if consumer in fusion.live():
                _align(twin, consumer, pos)
        fusion.change(twin, "_compute_at_pos", pos)
        fusion.change(twin, "placed", fusion.calling)


def joins_plainly(tensor: TensorView, pos: int) -> bool:
    """Whether `tensor` may share the leading `pos` loops of its consumer without a look at others.

    It shares no loop with its only consumer so far. Either nothing that it depends on shares one:
    then it comes before all that is computed in the consumer's loops, and no chain leads from there
    to it. Or the consumer shares none, and reads nothing else that is computed: then no chain
    leads from the tensor's loops to the consumer but by the tensor.
    """
    live = tensor.fusion.live()
    consumers = [c for c in tensor.consumers if c in live]
    if len(tensor.siblings) > 1 or len(consumers) != 1 or tensor not in live:
        return False
    if tensor.memory is Memory.GLOBAL and is_several_launches(tensor.fusion):
        return False
    (consumer,) = consumers
    if overlaps(tensor.domain.history):
        return False  # the windows of several consumers have to agree on the loops around a tile
    if reshapes(consumer) and consumer.compute_at_pos:
        return False  # its consumers tell whether an axis that it took is one of their loops
    places = shared_positions(tensor, consumer)
    # With axes of equal extent, broadcasts matched by broadcasts, no two axes of the math become
    # one and no extent contradicts another (rules 18 and 19).
    if tensor.compute_at_pos or pos > len(places) or not _same_axes(tensor, consumer):
        return False
    if not tensor.produced_at_pos and not _has_placed_ancestor(tensor):
        return True
    alone = not consumer.frozen and len(consumer.siblings) == 1
    others = [p for p in consumer.producers if p is not tensor and not p.is_input]
    return alone and not others and places[:pos] == tuple(range(pos))


def _join_plainly(risen: list[tuple[TensorView, int]]) -> bool:
    """Whether tensors may share loops with their consumers without a look at others.

    None of them, and nothing that they depend on, shares a loop so far, and each has one consumer:
    then no two loops become one, each tensor only joins loops that there are. An order would fail
    only if a chain led out of such a loop and back into it by one of the tensors; it would begin
    at something that the tensor depends on and that lies in the loop, but that one is alone in its
    loops, or leads to its own consumer inside of them.
    """
    chosen = {tensor for tensor, _ in risen}
    for tensor, pos in risen:
        live = tensor.fusion.live()
        consumers = [c for c in tensor.consumers if c in live]
        if len(tensor.siblings) > 1 or len(consumers) != 1 or tensor not in live:
            return False
        if tensor.frozen or tensor.memory is Memory.GLOBAL or carries(tensor):
            return False
        if overlaps(tensor.domain.history):
            return False  # the windows of several consumers have to agree on the loops around
        if reshapes(consumers[0]):
            return False  # its consumers tell whether an axis that it took is one of their loops
        if pos > len(shared_positions(tensor, consumers[0])) or not _fits(tensor, consumers[0]):
            return False
    waiting, seen = list(chosen), chosen
    while waiting:
        for producer in waiting.pop().producers:
            for twin in producer.siblings:
                if twin not in seen:
                    if twin.frozen:
                        return False
                    seen.add(twin)
                    waiting.append(twin)
    return True


def _fits(tensor: TensorView, consumer: TensorView) -> bool:
    """Whether axes of a tensor that shares no loop yet can be those of its consumer (18, 19).

    Each is another axis of it, and has its extent unless it is a broadcast.
    """
    found = pairs(tensor, consumer)
    equal = tensor.fusion.algebra.equal
    return len({theirs for _, theirs in found}) == len(found) and all(
        mine.is_broadcast or (not theirs.is_broadcast and equal(mine.size, theirs.size))
        for mine, theirs in found
    )


def _has_placed_ancestor(tensor: TensorView) -> bool:
    """Whether the tensor, or one that it depends on, shares a loop with its consumers."""
    order = tensor.fusion.order
    if order.ranks[tensor] < order.first_placed:
        return False
    return any(t.compute_at_pos for t in chains.ancestors(tensor))


def _same_axes(tensor: TensorView, consumer: TensorView) -> bool:
    """Whether each axis corresponds to one of the consumer, broadcasts to broadcasts."""
    equal = tensor.fusion.algebra.equal
    return all(
        mine.is_broadcast == theirs.is_broadcast and equal(mine.size, theirs.size)
        for mine, theirs in pairs(tensor, consumer)
    )


def _align(tensor: TensorView, consumer: TensorView, pos: int) -> None:
    places = shared_positions(tensor, consumer)
    if len(places) < pos:
        raise PrimitiveRefused(
            f"{tensor.name} would share {pos} loops with {consumer.name}, but only "
            f"{len(places)} of their leading axes correspond "
            f"({axis_names(tensor.domain)} and {axis_names(consumer.domain)}), "
            f"so {tensor.name} would have to be recomputed",
            _remedy(tensor, consumer),
        )
    for place in places[:pos]:
        _require_free(tensor, consumer, place)
    # Places rise, so the last is the largest. Axes of the consumer in between, which the tensor
    # lacks (rule 25), lie around the tensor too: they are frozen with the others.
    reached = places[pos - 1] + 1 if pos else 0
    for twin in consumer.siblings:
        if reached > twin.produced_at_pos:
            twin.fusion.change(twin, "_produced_at_pos", reached)


def _remedy(tensor: TensorView, consumer: TensorView) -> str:
    """Return what helps where too few leading axes correspond."""
    moved = windowed(tensor, consumer)
    if not moved:
        return RECOMPUTE
    places = [str(n) for n, axis in enumerate(tensor.domain.logical) if axis in moved]
    axes = f"ax{'i' if len(places) == 1 else 'e'}s {' and '.join(places)}"
    return (
        f"{consumer.name} reads {axes} of {tensor.name} at other indices than its own, which "
        "shares no loop: use a position in front of what is made of it"
    )


def _require_free(tensor: TensorView, holder: TensorView, number: int) -> None:
    axis = holder.domain.leaf[number]
    if axis.pinned or axis.parallel is ParallelType.vectorize:
        how = "pinned" if axis.pinned else "vectorized"
        raise PrimitiveRefused(
            f"{tensor.name} would be inlined past axis {place_text(axis, number)} of "
            f"{holder.name}, which is {how}",
            "use a smaller position",
        )


def _check_order(tensor: TensorView) -> None:
    try:
        LoopForest(tensor.fusion).check()
    # A clone would not help there: the launches, or the shapes, contradict each other.
    except LaunchConflict as conflict:
        raise PrimitiveRefused(conflict.reason, SEPARATE) from None
    except MergedRepetition as conflict:
        raise PrimitiveRefused(conflict.reason, ELSEWHERE) from None
    except Conflict as conflict:
        raise PrimitiveRefused(
            f"{conflict.reason}, so a tensor would have to be recomputed", RECOMPUTE
        ) from None


def _recompute(producer: TensorView, target: TensorView, pos: int) -> None:
    place_or_clone(producer, target, pos, _place)


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
        if all(t.memory is Memory.LOCAL for t in way) and len(_computed_users(tensor)) > 1:
            yield tensor


def _computed_users(tensor: TensorView) -> list[TensorView]:
    live = tensor.fusion.live()
    return [c for c in chains.consumers_of(tensor) if c in live and c is c.siblings[0]]


def _apart(
    producer: TensorView, fork: TensorView, target: TensorView, pos: int, place: Place
) -> tuple[TensorView, ...]:
    """Return the consumers of `fork` that must read a clone; () where even that does not help."""
    way = chains.ancestors(target)
    users = _computed_users(fork)
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
