"""replay_pasc and replay_casp: what a tensor becomes when it gets the loops of a neighbour."""

from __future__ import annotations

from collections.abc import Callable

from loopnest.schedule.axis_places import leading_position
from loopnest.schedule.overlap import WindowReplay, whole_loops
from loopnest.schedule.replay import consumer_as_producer, producer_as_consumer
from loopnest.schedule.transaction import PrimitiveRefused
from loopnest.tensor.axis_names import Axis
from loopnest.tensor.domain import TensorDomain
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
