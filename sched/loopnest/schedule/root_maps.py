"""How the axes of a producer and of its direct consumer correspond (rules 16 to 20)."""

from __future__ import annotations

from dataclasses import dataclass

from loopnest.base.errors import ScheduleError
from loopnest.base.fast_init import fast_init
from loopnest.tensor.definition import Definition
from loopnest.tensor.domain import IterDomain
from loopnest.tensor.tensor_view import TensorView


@fast_init
@dataclass(frozen=True, eq=False, slots=True)
class _EqualAxes:
    """The pairs of two neighbours, and what they follow from: loops have no part in them."""

    definition: Definition
    rfactor: tuple[IterDomain, ...]
    root: tuple[IterDomain, ...]
    pairs: tuple[tuple[IterDomain, IterDomain], ...]


def pairs(producer: TensorView, consumer: TensorView) -> tuple[tuple[IterDomain, IterDomain], ...]:
    """Return (logical axis of `producer`, root axis of `consumer`) for direct neighbours.

    These are the axes that are equal in every read of `producer`.
    """
    definition, root, rfactor = consumer.definition, consumer.domain.root, producer.domain.rfactor
    known, key = producer.fusion.matches, (producer, consumer)
    found = known.get(key)
    if (
        isinstance(found, _EqualAxes)
        and found.definition is definition
        and found.root is root
        and found.rfactor is rfactor
    ):
        return found.pairs
    assert definition is not None
    if definition.starts_from is producer:
        # Initial values lie in the memory of the fold: the axes of both are those that it stores.
        result = tuple(zip(producer.domain.logical, consumer.domain.logical, strict=True))
        known[key] = _EqualAxes(definition, rfactor, root, result)
        return result
    first, *others = [r.equal_axes(root) for r in definition.reads if r.producer is producer]
    result = tuple(
        [
            (axis, root[place])
            for number, (axis, place) in enumerate(zip(producer.domain.logical, first, strict=True))
            if place is not None and all(axes[number] == place for axes in others)
        ]
    )
    known[key] = _EqualAxes(definition, rfactor, root, result)
    return result


def windowed(producer: TensorView, consumer: TensorView) -> set[IterDomain]:
    """Return the logical axes of `producer` that its direct consumer has, but not as they are.

    It reads them at other indices than its own, or along another extent: no axis of the consumer
    stands for them, and none lacks them.
    """
    equal = {mine for mine, _ in pairs(producer, consumer)}
    return {a for a in producer.domain.logical if a not in equal and not a.is_broadcast}


def root_map(producer: TensorView, consumer: TensorView) -> dict[IterDomain, IterDomain]:
    """Map axes of a producer to those of its direct consumer.

    Args:
        producer: a tensor that `consumer` reads.
        consumer: its direct consumer.

    Returns:
        From each non-reduction axis of the producer's rfactor domain to the consumer's root axis
        that equals it; an axis that the consumer squeezes or reads at another index than its own,
        and one that it inserts, stand in no pair.

    Raises:
        ScheduleError: `consumer` does not read `producer`.

    Source: nvFuser PairwiseLogicalDomainMap.

    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     t = x * 2.0
    ...     y = f.output(t + x, "y")
    >>> [(a is t.root_domain[0], b is y.root_domain[0]) for a, b in ln.root_map(t, y).items()]
    [(True, True)]
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
