"""inline_at and inline_most: share loops that correspond already.

They replay nothing, but for the tensors without a place of ``inline_most(replay=True)``.

`depth_limit` says what keeps a tensor from being computed deeper in its consumers' loops, and what
would let it: a call that was tried, carried out on the fusion, seen to place the tensor deeper and
to leave a kernel, and undone. Those that change least come first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from loopnest.base.errors import LoopnestError, ScheduleError
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import ONE
from loopnest.scalar.origin import Origin
from loopnest.schedule.chains import common_consumers
from loopnest.schedule.compute_at import (
    RECOMPUTE,
    compute_at,
    joins_plainly,
    rebind_unfrozen,
    require_aligned,
    set_position,
)
from loopnest.schedule.loop_forest import Conflict, LoopForest
from loopnest.schedule.max_info_tree import next_replay
from loopnest.schedule.overlap import readers, tiles_at, whole_loops
from loopnest.schedule.replay import mirror, shared_positions
from loopnest.schedule.root_maps import windowed
from loopnest.schedule.transaction import (
    PrimitiveRefused,
    axis_names,
    leading_position,
    listed,
    place_text,
    primitive,
    require_computed,
    require_flag,
)
from loopnest.schedule.transforms import parallelize, reorder
from loopnest.tensor.axis_names import Axis
from loopnest.tensor.domain import TensorDomain, ancestors
from loopnest.tensor.fusion import Fusion, current_fusion
from loopnest.tensor.intents import Intent, LeftBehind
from loopnest.tensor.overlapping_tiles import overlaps
from loopnest.tensor.tensor_view import TensorView

STRICT = frozenset({ParallelType.vectorize})
_BEST_EFFORT = frozenset({ParallelType.vectorize, ParallelType.unroll})


def structural_limit(tensor: TensorView, barred: frozenset[ParallelType]) -> int:
    """Return how many leading axes of `tensor` correspond to those of all its consumers.

    The walk stops at a reduction, at a pinned axis and at a parallel type of `barred`, on the
    producer and on the consumer (rule 31). It does not look at orders of expressions.
    """
    live = tensor.fusion.live()
    limits = [
        _pair_limit(twin, consumer, barred)
        for twin in tensor.siblings
        for consumer in twin.consumers
        if consumer in live
    ]
    return min(limits, default=0)


def _pair_limit(producer: TensorView, consumer: TensorView, barred: frozenset[ParallelType]) -> int:
    places = shared_positions(producer, consumer)
    for position, place in enumerate(places):
        for axis in (producer.domain.leaf[position], consumer.domain.leaf[place]):
            if axis.pinned or axis.parallel in barred:
                return position
    return len(places)


def largest_position(tensor: TensorView, barred: frozenset[ParallelType] = _BEST_EFFORT) -> int:
    """Return the largest position that `tensor` can have, given the others' positions."""
    heads = tensor.siblings[0]
    for pos in range(structural_limit(tensor, barred), tensor.compute_at_pos, -1):
        if joins_plainly(tensor, pos) or not _conflict(tensor.fusion, heads, pos):
            return pos
    return tensor.compute_at_pos


def _conflict(fusion: Fusion, head: TensorView, pos: int) -> str:
    """Return why no order of expressions exists with `head` at `pos`; "" where one does."""
    try:
        LoopForest(fusion, {head: pos}).check()
    except Conflict as conflict:
        return conflict.reason
    return ""


@primitive
def inline_at(tensor: TensorView, pos: Axis) -> TensorView:
    """Share the leading `pos` loops of `tensor` with its consumers; see `TensorView.inline_at`.

    Raises:
        ScheduleError: an input, a position out of range, or beyond the largest legal one.

    Source: nvFuser TensorView::inlineAt.
    """
    require_computed(tensor)
    place = leading_position(tensor, pos)
    if place <= tensor.compute_at_pos:
        return tensor
    if place > structural_limit(tensor, STRICT):
        place = _tile(tensor, place)
    largest = largest_position(tensor, STRICT)
    if largest < place <= structural_limit(tensor, STRICT):
        conflict = _conflict(tensor.fusion, tensor.siblings[0], place)
        raise PrimitiveRefused(conflict, f"the largest legal position is {largest}")
    if place > largest:
        _refuse_barred(tensor, place, largest)
        raise PrimitiveRefused(
            f"position {place} is beyond the largest legal position {largest}",
            "inline_at replays nothing: the leading axes must correspond already; "
            "compute_at replays them",
        )
    set_position(tensor, place)
    return tensor


def _tile(tensor: TensorView, place: int) -> int:
    """Give a tensor that is read in windows the tiles that `place` shared loops need.

    All of its axes mean all loops of its consumers. Returns how many loops it is to share:
    `place`, where no window is crossed.
    """
    whole = place == tensor.ndim
    found = tiles_at(tensor, None if whole else place)
    if found is None or _passes_barred(tensor, len(found.loops), STRICT):
        return place
    _bind_tiles(tensor, found.domain)
    return len(found.loops) if whole else place


def _bind_tiles(tensor: TensorView, domain: TensorDomain) -> None:
    """Give a tensor and its siblings a replayed domain."""
    head = tensor.siblings[0]
    if domain is not head.domain:
        rebind_unfrozen(head, domain)
        for twin in head.siblings[1:]:
            rebind_unfrozen(twin, mirror(domain, twin))
        for twin in head.siblings:
            require_aligned(twin)


def _passes_barred(tensor: TensorView, count: int, barred: frozenset[ParallelType]) -> bool:
    """Whether one of the leading loops of the consumers is one that nothing is inlined past."""
    leading = [a for _, c in readers(tensor) for a in c.domain.leaf[:count]]
    return any(axis.pinned or axis.parallel in barred for axis in leading)


def _refuse_barred(tensor: TensorView, place: int, largest: int) -> None:
    """Refuse a position past a pinned or vectorized axis of a tensor or of its consumers."""
    live = tensor.fusion.live()
    for twin in tensor.siblings:
        for consumer in [c for c in twin.consumers if c in live]:
            for position, other in enumerate(shared_positions(twin, consumer)[:place]):
                for holder, number in ((twin, position), (consumer, other)):
                    axis = holder.domain.leaf[number]
                    if axis.pinned or axis.parallel in STRICT:
                        how = "pinned" if axis.pinned else "vectorized"
                        raise PrimitiveRefused(
                            f"position {place} lies past axis {place_text(axis, number)} of "
                            f"{holder.name}, which is {how}",
                            f"the largest legal position is {largest}",
                        )


def inline_most(tensors: Iterable[TensorView] | None = None, *, replay: bool = False) -> None:
    """Share as many loops as is legal, for each tensor from outputs to inputs.

    Args:
        tensors: which tensors; by default all of the current fusion. Newest first, each gets the
            largest position that is legal with those already placed; a position never falls. It
            compares leaf axes and replays nothing.
        replay: let tensors without a place take the loops of a consumer first: of the one in whose
            loops they come to lie deepest. Only their own loops change. A LOCAL tensor that was
            taken along by calls for others, and by none of its own, has no place behind its
            position either. What keeps loops of its own all the same is in `Kernel.notes`, with
            the reason.

    Raises:
        ScheduleError: there is no current fusion, or `tensors` are of several.

    Source: nvFuser inlineMost (Fuser, csrc/scheduler/tools/inlining.cpp).

    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N", "D"), ln.float32)
    ...     t = ln.exp(x)
    ...     y = f.output(t + 1.0, "y")
    ...     ln.inline_most()
    >>> t.compute_at_pos
    2
    """
    if tensors is None:
        fusion = current_fusion()
        if fusion is None:
            raise ScheduleError(
                "inline_most()", "no fusion is current", "call it inside `with`, or give tensors"
            )
        inline_all(fusion, replay=replay)
    elif chosen := listed("inline_most", tensors):
        _inline_most(chosen[0], chosen, replay=replay)


def inline_all(
    fusion: Fusion,
    tensors: TensorView | Iterable[TensorView] | None = None,
    *,
    replay: bool = False,
) -> None:
    """Share as many loops as is legal of all tensors of `fusion`, or of those; see `inline_most`.

    Raises:
        ScheduleError: `tensors` are no tensors of `fusion`.
    """
    if tensors is None:
        if fusion.tensors:
            _inline_most(fusion.tensors[0], None, replay=replay)
        return
    call = f"{fusion.name}.inline_most"
    chosen = listed(call, tensors)
    if chosen and chosen[0].fusion is not fusion:
        other = f"{chosen[0].name} is a tensor of {chosen[0].fusion.name}"
        raise ScheduleError(f"{call}(…)", other, f"give tensors of {fusion.name}")
    if chosen:
        _inline_most(chosen[0], chosen, replay=replay)


@primitive
def _inline_most(
    _first: TensorView, tensors: Sequence[TensorView] | None = None, *, replay: bool = False
) -> None:
    require_flag("replay", replay)
    fusion = _first.fusion
    chosen = fusion.tensors if tensors is None else tensors
    wanted = {t.siblings[0] for t in chosen if not t.is_input} & fusion.live()
    if not replay:
        _Sweep(fusion, wanted).place_all()
        return
    scheduled = {intent.of for intent in fusion.intents if intent.of is not None}
    unplaced = {t for t in wanted if _has_no_place(t, scheduled)}
    _Sweep(fusion, wanted, unplaced).place_all()
    for tensor in sorted(unplaced, key=fusion.tensors.index):
        if (left := _left_behind(tensor)) and fusion.calling is not None:
            fusion.intents.append(Intent(fusion.calling, "left", tensor, value=left))


def _has_no_place(tensor: TensorView, scheduled: Collection[TensorView]) -> bool:
    """Whether nobody chose the loops of a tensor behind its position.

    It shares none, or is none of those `scheduled` by calls of their own: a call for another tensor
    took it along. It is LOCAL then, and holds several elements there.
    """
    pos = tensor.compute_at_pos
    if not pos or not loops_left(tensor.domain, pos):
        return not pos
    return tensor.memory is Memory.LOCAL and not any(t in scheduled for t in tensor.siblings)


def loops_left(domain: TensorDomain, pos: int) -> bool:
    """Whether a tensor at `pos` holds several elements: an axis of its own lies behind."""
    return any(axis.size is not ONE and not axis.is_reduction for axis in domain.leaf[pos:])


def _left_behind(tensor: TensorView) -> LeftBehind | None:
    """Return what keeps a LOCAL tensor from lying deeper; None where it does not, or was asked to.

    A pinned, vectorized or unrolled axis is a request to stay in front of it.
    """
    pos = tensor.compute_at_pos
    local = tensor.memory is Memory.LOCAL and not any(t.is_output for t in tensor.siblings)
    if not local or not loops_left(tensor.domain, pos) or barred_axes(tensor, pos, _BEST_EFFORT):
        return None
    return what_parts(tensor, pos)


def barred_axes(
    tensor: TensorView, pos: int, barred: frozenset[ParallelType] = STRICT
) -> list[tuple[TensorView, int]]:
    """Return the axes, each with its tensor, that nothing is inlined past.

    Of those that a tensor would share next with all of its consumers.
    """
    found = readers(tensor)
    aligned = [shared_positions(twin, consumer) for twin, consumer in found]
    if not all(len(places) > pos for places in aligned):
        return []
    holders = [(tensor, pos), *((c, p[pos]) for (_, c), p in zip(found, aligned, strict=True))]
    axes = [(holder, place, holder.domain.leaf[place]) for holder, place in holders]
    return [(h, place) for h, place, axis in axes if axis.pinned or axis.parallel in barred]


def what_parts(tensor: TensorView, pos: int) -> LeftBehind:
    """Return why a tensor with consumers shares no more than `pos` loops with them.

    Nothing but a request for it may be missing: `why` is empty then.
    """
    found = readers(tensor)
    if all(len(shared_positions(twin, consumer)) > pos for twin, consumer in found):
        why = _conflict(tensor.fusion, tensor, pos + 1)
        return LeftBehind(pos, why, RECOMPUTE)
    return _unlike(tensor, pos, found)


def _unlike(
    tensor: TensorView, pos: int, found: Sequence[tuple[TensorView, TensorView]]
) -> LeftBehind:
    """Say why the next axis of a tensor is no loop that all of its consumers have."""
    axis = tensor.domain.leaf[pos]
    name = axis.label(pos)
    whole = f"{tensor.name}.memory = ln.SHARED or ln.GLOBAL holds it whole"
    if axis.is_reduction:
        why = f"its reduction axis {name} stands in front of what it keeps"
        return LeftBehind(pos, why, f"reorder {name} behind its other axes")
    sources = ancestors((axis,), tensor.domain)
    for twin, consumer in found:
        if twin is tensor and not windowed(twin, consumer).isdisjoint(sources):
            return LeftBehind(
                pos,
                f"{consumer.name} reads its axis {name} at other indices than its own",
                f"{tensor.name}.compute_at, at an outer loop, computes what an iteration of it "
                f"reads; {whole}",
            )
    names = " and ".join(f"{c.name} {axis_names(c.domain)}" for _, c in found)
    if len(found) == 1:
        return LeftBehind(pos, f"its axis {name} is no loop of {names}", whole)
    last = found[-1][1].name
    return LeftBehind(
        pos,
        f"its axis {name} is no loop that {names} share",
        f"{tensor.name}.compute_at({last}, -1, recompute=True), called first, computes it for each "
        "of them",
    )


def _shares_tiles(unit: TensorView) -> bool:
    """Whether a unit shares all loops that its tiles with halo move with.

    Tiles overlap: in which of them an element is, its readers know by the loops around it.
    """
    shared = ancestors(unit.domain.leaf[: unit.compute_at_pos], unit.domain)
    return all(shared.issuperset(step.outer) for step in overlaps(unit.domain.history))


def _loops_to_take(
    unit: TensorView, reader: tuple[TensorView, TensorView] | None
) -> Iterator[TensorDomain]:
    """Yield the domain of a unit with the loops of a reader: all of them, all but one, and so on.

    Without a reader it is the domain as it is.
    """
    if reader is None:
        yield unit.domain
        return
    twin, consumer = reader
    for count in range(consumer.ndim, 0, -1):
        loops = whole_loops(consumer, consumer.domain, range(count))
        try:
            found = next_replay(twin, consumer, loops, consumer).domain
        except PrimitiveRefused:  # an output in windows, a scan along them
            return
        yield found if twin is unit else mirror(found, unit)


class _Sweep:
    """One pass over the units, consumers first, keeping the loop groups of those passed.

    Args:
        wanted: the units to place.
        replayed: those of them that take the loops of a consumer where that places them deeper.
    """

    def __init__(
        self, fusion: Fusion, wanted: set[TensorView], replayed: Collection[TensorView] = ()
    ) -> None:
        self.fusion = fusion
        self.wanted = wanted
        self.replayed = replayed

    def place_all(self) -> None:
        """Place every wanted unit."""
        before = LoopForest(self.fusion)
        # Consumers first: a tensor joins loops that its consumers have by then. Those in front of
        # it are not placed in this forest; `earliest` says in which loops they will turn up.
        forest = LoopForest(self.fusion, units=(), earliest=before.earliest())
        for rank, unit in reversed(list(enumerate(before.units))):
            if unit in self.replayed:
                self._take_loops(unit, forest, rank)
            elif unit in self.wanted:
                self._raise(unit, forest, rank)
            forest.place(unit, unit.compute_at_pos)

    def _take_loops(self, unit: TensorView, forest: LoopForest, rank: int) -> None:
        """Place a unit in its own loops, or in those of a consumer where it comes to lie deeper."""
        best, deepest = unit.domain, unit.compute_at_pos
        most = max([consumer.ndim for _, consumer in readers(unit)], default=0)
        for reader in (None, *readers(unit)):
            domain, pos = self._deepest(unit, reader, forest, rank)
            if pos > deepest:
                best, deepest = domain, pos
            if deepest >= most:
                break
        if deepest > unit.compute_at_pos:
            _bind_tiles(unit, best)
            set_position(unit, deepest)

    def _deepest(
        self,
        unit: TensorView,
        reader: tuple[TensorView, TensorView] | None,
        forest: LoopForest,
        rank: int,
    ) -> tuple[TensorDomain, int]:
        """Return domain and position of a unit in the loops of a reader; nothing is changed.

        It takes fewer of the loops where it cannot share all that its tiles would move with.
        """
        for domain in _loops_to_take(unit, reader):
            mark = self.fusion.begin()
            try:
                _bind_tiles(unit, domain)
                self._raise(unit, forest, rank)
                if _shares_tiles(unit):
                    return unit.domain, unit.compute_at_pos
            except PrimitiveRefused:  # what is computed inside of it holds its loops
                break
            finally:
                self.fusion.rollback(mark)
                self.fusion.end()
        return unit.domain, 0

    def _inlines_element(self, unit: TensorView, forest: LoopForest, rank: int) -> bool:
        """Compute a LOCAL tensor anew for each element that windows read, where that is legal.

        A reduction is not, nor what a consumer reads several elements of at once.
        """
        folds = unit.definition is not None and unit.definition.reducer is not None
        barred = any(t.memory is not Memory.LOCAL or t.is_output for t in unit.siblings)
        if folds or barred or unit.frozen:
            return False
        found = tiles_at(unit, None)
        if found is None or not found.loops:  # without a loop there is nothing to share
            return False
        if _passes_barred(unit, len(found.loops), _BEST_EFFORT):
            return False
        # An axis left inside would hold what one consumer reads at several indices in one
        # iteration: every iteration would compute all of them anew.
        if any(axis.size is not ONE for axis in found.domain.leaf[len(found.loops) :]):
            return False
        mark = self.fusion.begin()
        try:
            _bind_tiles(unit, found.domain)
            pos = len(found.loops)
            if structural_limit(unit, _BEST_EFFORT) < pos or _conflict(self.fusion, unit, pos):
                self.fusion.rollback(mark)
                return False
            set_position(unit, pos)
        finally:
            self.fusion.end()
        return True

    def _raise(self, unit: TensorView, forest: LoopForest, rank: int) -> None:
        limit = structural_limit(unit, _BEST_EFFORT)
        if self._inlines_element(unit, forest, rank):
            return
        for pos in range(limit, unit.compute_at_pos, -1):
            plain = forest.joins_plainly(unit, pos, rank)
            if plain is None and forest.parts_a_fold(unit, pos):
                continue
            if plain or (plain is None and not _conflict(self.fusion, unit, pos)):
                set_position(unit, pos)
                return


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
