"""propagate and parallelize_like: carry one tensor's loops, or their parallel types, to others."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence

from loopnest.base.errors import ScheduleError
from loopnest.scalar.enums import ParallelType
from loopnest.schedule import chains
from loopnest.schedule.axis_match import Match
from loopnest.schedule.axis_places import leading_position
from loopnest.schedule.compute_at import rebind_unfrozen
from loopnest.schedule.max_info_tree import Replayed, max_info_replay
from loopnest.schedule.replay import producer_as_consumer
from loopnest.schedule.root_maps import pairs
from loopnest.schedule.transaction import (
    PrimitiveRefused,
    listed,
    primitive,
    require_computed,
)
from loopnest.tensor.axis_names import Axis
from loopnest.tensor.domain import IterDomain, TensorDomain
from loopnest.tensor.tensor_view import TensorView


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
