"""Waves: a loop over steps and an axis of the state, run along their diagonals.

Element i of step s is computed in wave ``s + factor * i``. All that shares the loop over steps gets
the loop over waves in its place, so that the index of the step, its tests and the barriers between
waves follow from the transform (`tensor.domain.Skew`). Three things are seen to before:

- What reads the state before a step at other elements than its own reads the states themselves: the
  definition of the state before is put in place of it.
- What a step computes of no state and without the axis is computed before the loop.
- Each element must be computed in a later wave than those of earlier steps that it reads, at all
  sizes: the difference of the waves is an index expression, which the simplifier bounds.

Source: loop skewing: Wolfe, "Loops skewing: the wavefront method revisited", 1986.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import ONE, Arg, Coordinate, Expr, Index, integer, substitute, walk, whole
from loopnest.schedule.loop_forest import Conflict, LoopForest
from loopnest.schedule.replay import match_leaves, sharers
from loopnest.schedule.transaction import (
    PrimitiveRefused,
    leaf_position,
    place_text,
    primitive,
    require_computed,
)
from loopnest.tensor.axis_names import Axis
from loopnest.tensor.domain import IterDomain, Skew
from loopnest.tensor.tensor_view import Definition, Read, TensorView


@primitive
def skew(tensor: TensorView, step_axis: Axis, axis: Axis, factor: int = 1) -> TensorView:
    """Run a loop over steps in waves; see `TensorView.skew`."""
    require_computed(tensor)
    place, other = leaf_position(tensor, step_axis), leaf_position(tensor, axis)
    by = whole(factor)
    if not by:
        raise PrimitiveRefused(f"the factor {factor!r} makes no waves", "use an int, as 1 or -1")
    steps, own = tensor.domain.leaf[place], tensor.domain.leaf[other]
    if not steps.is_step:
        raise PrimitiveRefused(
            f"axis {place_text(steps, place)} of {tensor.name} is none of steps",
            "name the axis that ln.recur made, and one of the state",
        )
    if not own.is_iteration or own.is_step:
        raise PrimitiveRefused(
            f"axis {place_text(own, other)} of {tensor.name} is none of the state",
            "name the axis of steps, and one of the state",
        )
    for number, each in ((place, steps), (other, own)):
        if each not in tensor.domain.root or each.parallel is not ParallelType.serial:
            raise PrimitiveRefused(
                f"axis {place_text(each, number)} of {tensor.name} was split, merged, skewed or "
                "made parallel",
                "skew first",
            )
    _skew(tensor, place, own, by)
    return tensor


def _skew(tensor: TensorView, place: int, own: IterDomain, factor: int) -> None:
    fusion, places = tensor.fusion, sharers(tensor, place)
    stepped, traced = _stepped(places), [*places, *_only_sliced(places)]
    along = _images(tensor, own, traced)
    for producer in [t for t in fusion.topological() if t in traced]:
        _read_through(producer, along.get(producer), producer in stepped, traced)
    axes = {t: a for t, a in _images(tensor, own, places).items() if a.is_iteration}
    for other in places:
        if other in axes:
            _require_later(other, axes, factor)
        elif other in stepped and other.consumers:
            raise PrimitiveRefused(
                f"{other.name} is computed of states of the step before, and has no elements along "
                "the axis: what reads it would need all waves of that step",
                "skew along an axis that all has which is computed of the state",
            )
    for other, position in places.items():
        if other in axes:
            _in_waves(other, position, axes[other], factor)
        else:
            fusion.change(other, "_compute_at_pos", 0)
            fusion.change(other, "_produced_at_pos", 0)
    try:
        LoopForest(fusion).check()
    except Conflict as conflict:
        raise PrimitiveRefused(conflict.reason, "skew before other tensors are placed") from None


def _in_waves(tensor: TensorView, place: int, axis: IterDomain, factor: int) -> None:
    leaf = list(tensor.domain.leaf)
    step = Skew(leaf[place], axis, factor, tensor.fusion.algebra)
    for made, old in zip(step.outputs, step.inputs, strict=True):
        made.names, made.is_named, made.pinned = old.names, old.is_named, old.pinned
        leaf[leaf.index(old)] = made
    tensor.bind(tensor.domain.with_leaf(leaf))
    # The call sets the position anew: axes in front of it are frozen for others, not for this one.
    tensor.fusion.change(tensor, "_produced_at_pos", tensor.produced_at_pos)


def _only_sliced(places: Collection[TensorView]) -> list[TensorView]:
    """Return what the steps of a loop compute of what is sliced alone."""
    states = {state for tensor in places for state in tensor.carried}
    found: dict[TensorView, None] = {}
    stack = list(places)
    while stack:
        for producer in stack.pop().producers:
            begin = producer.domain.root[:1]
            if begin and begin[0].is_step and producer not in (*places, *found):
                found[producer] = None
                stack.append(producer)
    return [tensor for tensor in found if tensor not in states and tensor.definition is not None]


def _stepped(found: Collection[TensorView]) -> set[TensorView]:
    """Return those tensors that are computed of an earlier state."""
    stepped: set[TensorView] = set()
    for tensor in next(iter(found)).fusion.topological():
        if tensor in found and (tensor.carried or not stepped.isdisjoint(tensor.producers)):
            stepped.update(tensor.siblings)
    return stepped


def _read_through(
    producer: TensorView, axis: IterDomain | None, stepped: bool, traced: Collection[TensorView]
) -> None:
    """Let what reads a state before its step at other elements than its own read the states.

    What has no elements along the axis is computed where it is read: of a state, or a copy of what
    is sliced.
    """
    inner = producer.definition
    assert inner is not None
    own = axis is not None and axis.is_iteration
    again = inner.reducer is None and len(inner.values) == 1
    again &= stepped or (inner.is_copy and axis is None)
    if not (producer.carried if own else again):
        return
    for consumer in producer.consumers:
        definition = consumer.definition
        assert definition is not None
        if consumer not in traced or any(read.data for read in definition.reads):
            continue
        used = {n.number for value in definition.values for n in walk(value) if isinstance(n, Arg)}
        reads = [read for n, read in enumerate(definition.reads) if n in used]
        equal = own and axis in match_leaves(producer, consumer).image
        if not equal and any(read.producer is producer for read in reads):
            made = _composed(definition, producer)
            for twin in consumer.siblings:
                twin.define(made)


def _composed(definition: Definition, producer: TensorView) -> Definition:
    """Return a definition with that of `producer`, of a pointwise value, in place of its reads."""
    inner = producer.definition
    assert inner is not None
    reads: list[Read] = []
    carried: list[int] = []
    found: dict[Expr, Expr] = {}
    for number, read in enumerate(definition.reads):
        arg = Arg(number, read.producer.dtype)
        if read.producer is not producer:
            found[arg] = Arg(len(reads), read.producer.dtype)
            if number in definition.carried:
                carried.append(len(reads))
            reads.append(read)
            continue
        at: dict[Expr, Expr] = {Coordinate(n): index for n, index in enumerate(read.indices)}
        own: dict[Expr, Expr] = dict(at)
        for n, each in enumerate(inner.reads):
            own[Arg(n, each.producer.dtype)] = Arg(len(reads), each.producer.dtype)
            if n in inner.carried:
                carried.append(len(reads))
            reads.append(Read(each.producer, tuple([substitute(i, at) for i in each.indices])))
        found[arg] = substitute(inner.values[0], own)
    values = tuple([substitute(value, found) for value in definition.values])
    return replace(definition, reads=tuple(reads), values=values, carried=tuple(carried))


def _images(
    tensor: TensorView, own: IterDomain, places: Collection[TensorView]
) -> dict[TensorView, IterDomain]:
    """Return, for the tensors of a loop over steps that have an axis of `tensor`, that axis."""
    found, stack = {tensor: own}, [tensor]
    while stack:
        one = stack.pop()
        near: list[tuple[TensorView, IterDomain | None]] = [
            (twin, _beside(one, twin, found[one])) for twin in one.siblings
        ]
        for consumer in [c for c in one.consumers if c in places]:
            near.append((consumer, match_leaves(one, consumer).image.get(found[one])))
        for producer in [p for p in one.producers if p in places]:
            image = match_leaves(producer, one).image
            near.append((producer, next((a for a, b in image.items() if b is found[one]), None)))
        for other, axis in [(t, a) for t, a in near if a is not None]:
            if axis in other.domain.leaf and not axis.is_reduction and other not in found:
                found[other] = axis
                stack.append(other)
    return found


def _beside(tensor: TensorView, twin: TensorView, axis: IterDomain) -> IterDomain:
    return twin.domain.leaf[tensor.domain.leaf.index(axis)]


def _require_later(tensor: TensorView, axes: dict[TensorView, IterDomain], factor: int) -> None:
    """Refuse reads of elements that are computed in the same wave or a later one."""
    definition, root, algebra = tensor.definition, tensor.domain.root, tensor.fusion.algebra
    assert definition is not None
    if axes[tensor] not in root:
        raise PrimitiveRefused(f"the axis of {tensor.name} was made of others", "skew first")
    along = Coordinate(root.index(axes[tensor]))
    if definition.scan is not None and definition.scan.axis == along.number:
        raise PrimitiveRefused(
            f"{tensor.name} is a scan along the axis, whose elements are of one step",
            "skew along another axis",
        )
    here: dict[Expr, Expr] = {
        Coordinate(n): Index(axis.label(n), axis.size) for n, axis in enumerate(root)
    }
    for number, read in enumerate(definition.reads):
        producer = read.producer
        if producer not in axes or Arg(number, producer.dtype) not in walk(*definition.values):
            continue
        index = read.indices[producer.domain.logical.index(axes[producer])]
        if number not in definition.carried and index is along:
            continue
        at = [substitute(i, here) for i in (Coordinate(0), along, read.indices[0], index)]
        waves = algebra.add(
            algebra.sub(at[0], at[2]), algebra.mul(integer(factor), algebra.sub(at[1], at[3]))
        )
        if number not in definition.carried or not algebra.proves_le(ONE, waves):
            raise PrimitiveRefused(
                f"{tensor.name} of step {at[0]}, element {at[1]} reads {producer.name} of step "
                f"{at[2]}, element {at[3]}, which would be computed {waves} waves before it",
                "these must be 1 or more at all sizes: skew by another factor or along another "
                "axis, or leave the loop over steps as it is",
            )
