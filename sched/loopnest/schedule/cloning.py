"""Copies of domains and tensors, made by the caches, by rfactor and by recomputation."""

from __future__ import annotations

from collections.abc import Iterable

from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import Arg
from loopnest.scalar.simplify import Simplifier
from loopnest.tensor.definition import Definition, Read
from loopnest.tensor.domain import IterDomain, TensorDomain, transforms_between
from loopnest.tensor.tensor_view import TensorView, root_axis


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
