"""propagate and parallelize_like: carry one tensor's loops, or their parallel types, to others.

replay_pasc and replay_casp tell what a tensor becomes when it gets the loops of a neighbour.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

from loopnest.base.errors import ScheduleError
from loopnest.scalar.enums import ParallelType
from loopnest.schedule import chains
from loopnest.schedule.compute_at import rebind_unfrozen
from loopnest.schedule.max_info_tree import Replayed, max_info_replay
from loopnest.schedule.overlap import WindowReplay, whole_loops
from loopnest.schedule.replay import consumer_as_producer, producer_as_consumer
from loopnest.schedule.root_maps import Match, pairs
from loopnest.schedule.transaction import (
    PrimitiveRefused,
    leading_position,
    listed,
    primitive,
    require_computed,
)
from loopnest.tensor.axis_names import Axis
from loopnest.tensor.domain import IterDomain, TensorDomain
from loopnest.tensor.tensor_view import TensorView


def replay_pasc(producer: TensorView, consumer: TensorView, pos: Axis) -> tuple[TensorDomain, int]:
    """Return what `producer` becomes when it is replayed as its direct consumer.

    With ``T2 [i0: ceildiv(I, 4), i1: 4, i2: J]`` and ``T1 [i0: I, i1: J]``, ``replay_pasc(T1, T2,
    1)`` gives ``[ceildiv(I, 4), 4, J]`` and 1. It changes nothing: the axes that it makes belong
    to no tensor. Where the consumer reads windows, the producer gets the tiles that these need.

    Args:
        producer: a tensor that `consumer` reads.
        consumer: has the loops that are wanted.
        pos: how many of the consumer's leading leaf axes; negative: ``pos += ndim + 1``; or the
            name of the innermost of them.

    Returns:
        The producer's domain with these axes in front, and how many of its leading axes they are.

    Raises:
        ScheduleError: no direct neighbours, a position out of range, or a producer whose rfactor
            domain would change.

    Source: nvFuser's design note on computeAt, replayPasC.

    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     t = f.input("x", ("I", "J"), ln.float32) * 2.0
    ...     y = f.output(t + 1.0, "y")
    >>> y.split(0, 4)
    <TensorView y float32 global [i0: ceildiv(I, 4), i1: 4, i2: J] compute_at=0 produced_at=0>
    >>> domain, pos = ln.replay_pasc(t, y, 1)
    >>> [str(axis.extent) for axis in domain.leaf], pos
    (['ceildiv(I, 4)', '4', 'J'], 1)
    """

    def replay(place: int) -> tuple[TensorDomain, int]:
        loops = whole_loops(consumer, consumer.domain, range(place))
        across = WindowReplay(producer, {consumer: loops}).run()
        if across is not None:
            return across.domain, len(across.loops)
        found = producer_as_consumer(producer, consumer, consumer.domain, place)
        return found.domain, len(found.places)

    return _replayed("replay_pasc", producer, consumer, pos, replay)


def replay_casp(consumer: TensorView, producer: TensorView, pos: Axis) -> tuple[TensorDomain, int]:
    """Return what `consumer` becomes when it is replayed as its direct producer.

    With ``T1 [i0: I, r1: R, i2: K]`` and ``T2 [i0: I, i1: K]``, ``replay_casp(T2, T1, 2)`` gives
    ``[I, K]`` and 1: the consumer does not see reductions. It changes nothing: the axes that it
    makes belong to no tensor.

    Args:
        consumer: a tensor that reads `producer`.
        producer: has the loops that are wanted.
        pos: how many of the producer's leading leaf axes; negative: ``pos += ndim + 1``; or the
            name of the innermost of them.

    Returns:
        The consumer's domain with these axes in front, and how many of its leading axes they are.

    Raises:
        ScheduleError: no direct neighbours, a position out of range, or a consumer whose rfactor
            domain would change.

    Source: nvFuser's design note on computeAt, replayCasP.

    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     t = f.input("x", ("I", "J"), ln.float32) * 2.0
    ...     y = f.output(t + 1.0, "y")
    >>> t.split(0, 4)
    <TensorView T1 float32 local [i0: ceildiv(I, 4), i1: 4, i2: J] compute_at=0 produced_at=0>
    >>> domain, pos = ln.replay_casp(y, t, 1)
    >>> [str(axis.extent) for axis in domain.leaf], pos
    (['ceildiv(I, 4)', '4', 'J'], 1)
    """

    def replay(place: int) -> tuple[TensorDomain, int]:
        found = consumer_as_producer(consumer, producer, producer.domain, place)
        return found.domain, len(found.places)

    return _replayed("replay_casp", consumer, producer, pos, replay)


def _replayed(
    name: str,
    tensor: TensorView,
    neighbour: TensorView,
    pos: Axis,
    replay: Callable[[int], tuple[TensorDomain, int]],
) -> tuple[TensorDomain, int]:
    """Return what `replay` gives at a position of the neighbour, once both are looked at.

    Raises:
        ScheduleError: no direct neighbours, a position out of range, or what `replay` refuses.
    """
    shown = [t.name if isinstance(t, TensorView) else repr(t) for t in (tensor, neighbour)]
    pair = (tensor, neighbour) if name == "replay_pasc" else (neighbour, tensor)
    try:
        _require_neighbours(*pair)
        return replay(leading_position(neighbour, pos))
    except PrimitiveRefused as refusal:
        raise refusal.error(f"{name}({shown[0]}, {shown[1]}, {pos!r})") from None


def _require_neighbours(producer: object, consumer: object) -> None:
    if not isinstance(producer, TensorView):
        raise PrimitiveRefused(f"{producer!r} is no TensorView", "give two TensorViews")
    if not isinstance(consumer, TensorView):
        raise PrimitiveRefused(f"{consumer!r} is no TensorView", "give two TensorViews")
    if producer not in consumer.producers:
        raise PrimitiveRefused(
            f"{consumer.name} does not read {producer.name}",
            "give a producer and one of its direct consumers",
        )


def propagate(ref: TensorView, pos: Axis = -1, tensors: Iterable[TensorView] | None = None) -> None:
    """Replay the leading `pos` axes of `ref` on every computed tensor connected to it.

    Each tensor is replayed once, along the path from `ref` that keeps the most of its axes; those
    that only an input connects to it are reached through the input. Sets no positions and no
    parallel types. Tiles with halo are not carried: their loops are those of whoever shares them.

    Args:
        ref: the reference; it does not change.
        pos: how many of its leading leaf axes; negative: ``pos += ndim + 1``; or the name of the
            innermost of them.
        tensors: the tensors to change, reached over one another and over inputs; by default all.

    Raises:
        ScheduleError: `pos` out of range, an input, a tensor that is not reached, or a frozen
            prefix that would change.

    Source: nvFuser TransformPropagator over MaxInfoSpanningTree, which passes through inputs too.

    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N", "D"), ln.float32)
    ...     t = ln.exp(x)
    ...     y = f.output(t + 1.0, "y")
    >>> y = y.merge(0)
    >>> ln.propagate(y)
    >>> print(t)
    T1 float32 local [i0: N * D] compute_at=0 produced_at=0
    """
    if not isinstance(ref, TensorView):
        raise ScheduleError(f"propagate({ref!r})", "it is no TensorView")
    if tensors is None:
        _propagate(ref, pos)
    else:
        _propagate(ref, pos, listed("propagate", tensors, ref))


@primitive
def _propagate(ref: TensorView, pos: Axis, tensors: Sequence[TensorView] | None = None) -> None:
    require_computed(ref)
    place = leading_position(ref, pos)
    for tensor in tensors or ():
        require_computed(tensor)
    computed = {t for t in ref.fusion.tensors if not t.is_input} if tensors is None else {*tensors}
    near = max_info_replay(ref, place, computed)
    _rebind(ref, near, computed)
    rest = computed - near.keys() - {ref}
    if not rest:
        return
    try:
        far = max_info_replay(ref, place, computed.union(ref.fusion.inputs))
        _rebind(ref, far, rest)
    except PrimitiveRefused as refusal:
        raise PrimitiveRefused(
            refusal.reason,
            f"{refusal.hint}, or name the tensors that shall have the loops of {ref.name} by "
            "tensors=[...], since an input alone connects it to others",
        ) from None
    lost = [t.name for t in tensors or () if t not in far and t is not ref]
    if lost:
        raise PrimitiveRefused(
            f"no path over the given tensors and inputs leads from {ref.name} to {lost[0]}",
            "give the tensors between them too",
        )


def _rebind(ref: TensorView, replayed: Replayed, chosen: Collection[TensorView]) -> None:
    for tensor, (domain, _) in replayed.items():
        if tensor is not ref and tensor in chosen:
            rebind_unfrozen(tensor, domain)


def parallelize_like(ref: TensorView, tvs: Iterable[TensorView] | None = None) -> None:
    """Give the axes that correspond to those of `ref` the parallel types that these have.

    Args:
        ref: the reference.
        tvs: the tensors to change; by default all computed ones connected to `ref`.

    Raises:
        ScheduleError: a tensor would have one launch dimension twice.

    Source: nvFuser scheduler_utils::parallelizeAllLike.

    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N", "D"), ln.float32)
    ...     t = ln.exp(x)
    ...     y = f.output(t + 1.0, "y")
    >>> y = y.parallelize({0: ln.ParallelType.grid_x})
    >>> ln.parallelize_like(y)
    >>> t.axis(0).parallel
    <ParallelType.grid_x: 'grid_x'>
    """
    if not isinstance(ref, TensorView):
        raise ScheduleError(f"parallelize_like({ref!r})", "it is no TensorView")
    _parallelize_like(ref, None if tvs is None else listed("parallelize_like", tvs, ref))


@primitive
def _parallelize_like(ref: TensorView, tvs: Sequence[TensorView] | None = None) -> None:
    require_computed(ref)
    chosen = set(ref.fusion.tensors if tvs is None else tvs)
    for tensor, axes in _corresponding(ref).items():
        if tensor is ref or tensor.is_input or tensor not in chosen:
            continue
        place_of = {axis: place for place, axis in enumerate(tensor.domain.leaf)}
        types: dict[int, ParallelType] = {}
        for mine, theirs in axes.items():
            if theirs in place_of and mine.parallel is not ParallelType.serial:
                types[place_of[theirs]] = mine.parallel
        if types:
            tensor.parallelize(types)


def _corresponding(ref: TensorView) -> dict[TensorView, dict[IterDomain, IterDomain]]:
    """Return, for each connected tensor, which of its axes are leaf axes of `ref`.

    An input is passed through, as what it would be with the loops of the tensor that reads it,
    but not before all others are reached.
    """
    found = {ref: {axis: axis for axis in ref.domain.leaf}}
    domains = {ref: ref.domain}
    near, far = deque([ref]), deque[TensorView]()
    while near or far:
        tensor = (near or far).popleft()
        for other in (*tensor.producers, *chains.consumers_of(tensor), *tensor.siblings):
            if other in found:
                continue
            domains[other] = other.domain
            if other.is_input:
                domains[other] = producer_as_consumer(
                    other, tensor, domains[tensor], tensor.ndim
                ).domain
            step = _step(tensor, other, domains[tensor], domains[other])
            found[other] = {a: step[b] for a, b in found[tensor].items() if b in step}
            (far if other.is_input else near).append(other)
    return found


def _step(
    tensor: TensorView, near: TensorView, source: TensorDomain, target: TensorDomain
) -> dict[IterDomain, IterDomain]:
    """Return which axes of `near`, as `target`, are axes of its neighbour, as `source`."""
    if near in tensor.siblings:
        return dict(zip(source.leaf, target.leaf, strict=True))
    if near in tensor.producers:
        seed = {c: p for p, c in pairs(near, tensor)}
        match = Match(source, target, seed, source.root, tensor.fusion.algebra).follow()
        return {a: match.settle(b) for a, b in match.image.items()}
    twin = next(t for t in tensor.siblings if near in t.consumers)
    seed = dict(pairs(twin, near))
    if twin is not tensor:
        algebra, start = tensor.fusion.algebra, twin.domain.rfactor
        match = Match(twin.domain, target, seed, start, algebra).follow()
        to_twin = _step(tensor, twin, source, twin.domain)
        return {a: match.settle(match.image[b]) for a, b in to_twin.items() if b in match.image}
    match = Match(source, target, seed, source.rfactor, tensor.fusion.algebra).follow()
    return {a: match.settle(b) for a, b in match.image.items()}
