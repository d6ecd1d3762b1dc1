"""How the axes of a producer and of its direct consumer correspond (rules 16 to 20)."""

from __future__ import annotations

from loopnest.errors import ScheduleError
from loopnest.tensor.domain import IterDomain
from loopnest.tensor.tensor_view import TensorView


def pairs(producer: TensorView, consumer: TensorView) -> list[tuple[IterDomain, IterDomain]]:
    """Return (logical axis of `producer`, root axis of `consumer`) for direct neighbours."""
    definition = consumer.definition
    assert definition is not None
    axes = definition.maps[definition.producers.index(producer)]
    root = consumer.domain.root
    logical = producer.domain.logical
    return [
        (axis, root[place]) for axis, place in zip(logical, axes, strict=True) if place is not None
    ]


def root_map(producer: TensorView, consumer: TensorView) -> dict[IterDomain, IterDomain]:
    """Map axes of a producer to those of its direct consumer.

    Returns:
        From each non-reduction axis of the producer's rfactor domain to the consumer's root axis;
        an axis that the consumer squeezes, and one that it inserts, stand in no pair.

    Raises:
        ScheduleError: `consumer` does not read `producer`.

    Source: nvFuser PairwiseLogicalDomainMap.
    """
    if not isinstance(consumer, TensorView) or producer not in consumer.producers:
        raise ScheduleError(
            f"root_map({_name(producer)}, {_name(consumer)})",
            "the second does not read the first",
            "give a producer and one of its direct consumers",
        )
    return dict(pairs(producer, consumer))


def _name(tensor: object) -> str:
    return tensor.name if isinstance(tensor, TensorView) else repr(tensor)
