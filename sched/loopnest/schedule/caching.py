"""cache_after, cache_before, cache_fork: insert a copy, to hold a tensor somewhere else.

Rfactor and recomputation copy domains and tensors by the same functions.
"""

from __future__ import annotations

from collections.abc import Iterable

from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import Arg
from loopnest.scalar.simplify import Simplifier
from loopnest.schedule.replay import consumer_as_producer
from loopnest.schedule.transaction import (
    PrimitiveRefused,
    primitive,
    require_computed,
    require_no_start,
    require_not_atomic,
    require_not_instructed,
)
from loopnest.schedule.transforms import hand_over_launch
from loopnest.tensor.domain import IterDomain, TensorDomain, transforms_between
from loopnest.tensor.intents import take_back
from loopnest.tensor.tensor_view import Definition, Read, TensorView, root_axis


def clone_domain(
    domain: TensorDomain, algebra: Simplifier
) -> tuple[TensorDomain, dict[IterDomain, IterDomain]]:
    """Return a copy of `domain` on fresh axes, and the map from old to new."""
    image = {axis: _twin(axis) for axis in domain.root}
    for step in domain.history:
        copy = step.replay_named([image[axis] for axis in step.inputs], algebra)
        for old, new in zip(step.outputs, copy.outputs, strict=True):
            new.kind, new.size = old.kind, old.size
            new.parallel, new.pinned, new.origin = old.parallel, old.pinned, old.origin
            image[old] = new
    cloned = TensorDomain(
        tuple([image[a] for a in domain.root]),
        tuple([image[a] for a in domain.rfactor]),
        tuple([image[a] for a in domain.leaf]),
    )
    return cloned, image


def _twin(axis: IterDomain) -> IterDomain:
    new = IterDomain(axis.size, axis.kind)
    new.parallel, new.pinned, new.origin = axis.parallel, axis.pinned, axis.origin
    new.names, new.is_named = axis.names, axis.is_named
    return new


def plain_domain(tensor: TensorView) -> TensorDomain:
    """Return the untransformed domain of a copy of `tensor`."""
    axes = [root_axis(axis.size) for axis in tensor.domain.logical]
    for new, old in zip(axes, tensor.domain.logical, strict=True):
        new.kind = old.kind
    return TensorDomain.of_root(axes)


def carry_allocation(tensor: TensorView, old: TensorDomain) -> None:
    """Give `tensor`, whose logical axes were made anew, the allocation domain that it had.

    A step that its loops have on the same axes is that of the loops, any other is replayed.
    """
    if old.allocation is None:
        return
    domain, algebra = tensor.domain, tensor.fusion.algebra
    image = dict(zip(old.logical, domain.logical, strict=True))
    for step in transforms_between(old.logical, old.allocation):
        inputs = tuple([image[axis] for axis in step.inputs])
        own = domain.uses.get(inputs[0])
        if own is None or own.key != step.key or own.inputs != inputs:
            own = step.replay_named(inputs, algebra)
        image.update(zip(step.outputs, own.outputs, strict=True))
    tensor.bind(domain.with_allocation([image[axis] for axis in old.allocation]))


def new_tensor(like: TensorView, domain: TensorDomain, dtype: DType | None = None) -> TensorView:
    """Return a new LOCAL tensor of the fusion of `like`."""
    return TensorView(like.fusion, domain, dtype or like.dtype)


def copy_definition(source: TensorView, target: TensorView) -> Definition:
    """Return the definition ``target = source``."""
    read = Read.along(source, tuple(range(len(source.domain.logical))))
    return Definition("copy", (source,), (read,), (target,), (Arg(0, source.dtype),))


def reroute(consumers: Iterable[TensorView], old: TensorView, new: TensorView) -> None:
    """Let `consumers` read `new` where they read `old`."""
    done: set[Definition] = set()
    for consumer in tuple(consumers):
        definition = consumer.definition
        if definition is None or definition in done:
            continue
        changed = definition.with_producers({old: new})
        done.add(changed)
        for output in definition.outputs:
            output.define(changed)


@primitive
def cache_after(tensor: TensorView) -> TensorView:
    """Insert a copy between `tensor` and its consumers.

    Before ``x -> y``; after ``c = x.cache_after()``: ``x -> c -> y``. Applies to inputs too.

    Returns:
        The copy: LOCAL, with the loops of `tensor` (an input has none).

    Raises:
        ScheduleError: no tensor consumes it, or it has a frozen prefix.
    """
    _require_unfrozen(tensor)
    require_no_start(tensor, "cache_after")
    consumers = tensor.consumers
    if not consumers:
        raise PrimitiveRefused(
            f"no tensor consumes {tensor.name}", "cache_before serves an output, cache_fork both"
        )
    copy = new_tensor(tensor, plain_domain(tensor))
    reroute(consumers, tensor, copy)
    copy.define(copy_definition(tensor, copy))
    if not tensor.is_input:
        _take_loops(copy, tensor)
    return copy


@primitive
def cache_before(tensor: TensorView) -> TensorView:
    """Let a new tensor compute what `tensor` did, and `tensor` copy it.

    Before ``x -> y``; after ``c = y.cache_before()``: ``x -> c -> y``. Of the states of a loop over
    steps (`ln.recur`) the new tensor is the one that steps read, and `tensor` copies it in each.

    Returns:
        The new tensor: LOCAL, with the definition and the loops that `tensor` had; `tensor` keeps
        those that are no reductions. Where `tensor` started a launch, the new tensor does now.

    Raises:
        ScheduleError: an input, or a tensor with a frozen prefix.
    """
    require_computed(tensor)
    require_not_atomic(tensor, "cache_before")
    require_not_instructed(tensor, "cache_before")
    if tensor.is_state and not tensor.compute_at_pos:
        return _state_before(tensor)
    _require_unfrozen(tensor)
    definition = tensor.definition
    assert definition is not None
    before = tensor.domain
    domain, _ = clone_domain(before, tensor.fusion.algebra)
    new = new_tensor(tensor, domain)
    moved = definition.with_outputs(new if o is tensor else o for o in definition.outputs)
    tensor.bind(plain_domain(tensor))
    tensor.define(copy_definition(new, tensor))
    for output in moved.outputs:
        output.define(moved)
    _take_loops(tensor, new)
    carry_allocation(tensor, before)
    hand_over_launch(tensor, (new,))
    return new


def _state_before(tensor: TensorView) -> TensorView:
    """Let a new tensor be the state, which steps read; `tensor` copies it in each step."""
    fusion, definition = tensor.fusion, tensor.definition
    assert definition is not None
    domain, _ = clone_domain(tensor.domain, fusion.algebra)
    new = new_tensor(tensor, domain)
    new.bind(domain)
    tensor.define(copy_definition(new, tensor))
    new.define(definition.with_outputs([new]))
    reroute([t for t in fusion.tensors if tensor in t.carried], tensor, new)
    steps = sum(axis.is_step for axis in domain.leaf)
    fusion.change(new, "_produced_at_pos", tensor.produced_at_pos)
    fusion.change(new, "_compute_at_pos", steps)
    fusion.change(tensor, "_produced_at_pos", steps)
    return new


@primitive
def cache_fork(tensor: TensorView) -> TensorView:
    """Make a copy the output in place of `tensor`, which other tensors use.

    Before ``y (output) -> z``; after ``o = y.cache_fork()``: ``y -> o (output), y -> z``.

    Returns:
        The copy: the output, under the output's name; `tensor` becomes a LOCAL intermediate.

    Raises:
        ScheduleError: not an output, an output that no tensor uses, or a frozen prefix.
    """
    _require_unfrozen(tensor)
    if not tensor.is_output or not tensor.consumers:
        what = "no tensor consumes it" if tensor.is_output else "it is no output"
        raise PrimitiveRefused(
            f"{tensor.name} cannot be forked: {what}",
            "cache_fork serves an output that other tensors use",
        )
    fusion = tensor.fusion
    copy = new_tensor(tensor, plain_domain(tensor))
    copy.define(copy_definition(tensor, copy))
    _take_loops(copy, tensor)
    fusion.change(copy, "_memory", Memory.GLOBAL)
    fusion.change(tensor, "_memory", Memory.LOCAL)
    outputs = tuple([copy if o is tensor else o for o in fusion.outputs])
    fusion.change(fusion, "_outputs", outputs)
    inplace = {copy if o is tensor else o: i for o, i in fusion.inplace.items()}
    fusion.change(fusion, "_inplace", inplace)
    if tensor._name is not None:
        fusion.change(copy, "_name", tensor._name)
        fusion.change(tensor, "_name", None)
    fusion.version += 1
    return copy


def _require_unfrozen(tensor: TensorView) -> None:
    if tensor.frozen:
        raise PrimitiveRefused(
            f"the leading {tensor.frozen} loops of {tensor.name} are shared already",
            f"cache a tensor before compute_at: {take_back(tensor)}",
        )


def _take_loops(copy: TensorView, source: TensorView) -> None:
    """Give the consumer `copy` the loops of its producer `source`, parallel types included."""
    domain = consumer_as_producer(copy, source, source.domain, source.ndim).domain
    copy.bind(domain)
    places = [axis for axis in source.domain.leaf if not axis.is_reduction]
    if len(places) == copy.ndim:
        for mine, theirs in zip(copy.domain.leaf, places, strict=True):
            mine.parallel, mine.pinned = theirs.parallel, theirs.pinned
