"""propagate and parallelize_like: carry one tensor's loops, or their parallel types, to others."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from loopnest.errors import ScheduleError
from loopnest.scalar.enums import ParallelType
from loopnest.schedule import chains
from loopnest.schedule.compute_at import rebind_unfrozen
from loopnest.schedule.max_info_tree import max_info_replay
from loopnest.schedule.replay import Match, match_leaves
from loopnest.schedule.root_maps import pairs
from loopnest.schedule.transaction import leading_position, listed, primitive, require_computed
from loopnest.tensor.domain import IterDomain
from loopnest.tensor.tensor_view import TensorView


def propagate(ref: TensorView, pos: int = -1) -> None:
    """Replay the leading `pos` axes of `ref` on every computed tensor connected to it.

    Each tensor is replayed once, along the path from `ref` that keeps the most of its axes. Sets
    no positions and no parallel types.

    Args:
        ref: the reference; it does not change.
        pos: how many of its leading leaf axes; negative: ``pos += ndim + 1``.

    Raises:
        ScheduleError: `pos` out of range, an input, or a frozen prefix that would change.

    Source: nvFuser TransformPropagator over MaxInfoSpanningTree.
    """
    if not isinstance(ref, TensorView):
        raise ScheduleError(f"propagate({ref!r})", "it is no TensorView")
    _propagate(ref, pos)


@primitive
def _propagate(ref: TensorView, pos: int) -> None:
    require_computed(ref)
    place = leading_position(ref, pos)
    selected = {t for t in ref.fusion.tensors if not t.is_input}
    for tensor, (domain, _) in max_info_replay(ref, place, selected).items():
        if tensor is not ref:
            rebind_unfrozen(tensor, domain)


def parallelize_like(ref: TensorView, tvs: Iterable[TensorView] | None = None) -> None:
    """Give the axes that correspond to those of `ref` the parallel types that these have.

    Args:
        ref: the reference.
        tvs: the tensors to change; by default all computed ones connected to `ref`.

    Raises:
        ScheduleError: a tensor would have one launch dimension twice.

    Source: nvFuser scheduler_utils::parallelizeAllLike.
    """
    if not isinstance(ref, TensorView):
        raise ScheduleError(f"parallelize_like({ref!r})", "it is no TensorView")
    _parallelize_like(ref, None if tvs is None else listed("parallelize_like", tvs, ref))


@primitive
def _parallelize_like(ref: TensorView, tvs: Sequence[TensorView] | None = None) -> None:
    require_computed(ref)
    chosen = set(ref.fusion.tensors if tvs is None else tvs)
    for tensor, axes in _corresponding(ref).items():
        if tensor is ref or tensor not in chosen:
            continue
        place_of = {axis: place for place, axis in enumerate(tensor.domain.leaf)}
        types: dict[int, ParallelType] = {}
        for mine, theirs in axes.items():
            if theirs in place_of and mine.parallel is not ParallelType.serial:
                types[place_of[theirs]] = mine.parallel
        if types:
            tensor.parallelize(types)


def _corresponding(ref: TensorView) -> dict[TensorView, dict[IterDomain, IterDomain]]:
    """Return, for each connected computed tensor, which of its axes are leaf axes of `ref`."""
    found = {ref: {axis: axis for axis in ref.domain.leaf}}
    queue = deque([ref])
    while queue:
        tensor = queue.popleft()
        for near in (*tensor.producers, *chains.consumers_of(tensor), *tensor.siblings):
            if near in found or near.is_input:
                continue
            step = _step(tensor, near)
            found[near] = {a: step[b] for a, b in found[tensor].items() if b in step}
            queue.append(near)
    return found


def _step(tensor: TensorView, near: TensorView) -> dict[IterDomain, IterDomain]:
    if near in tensor.siblings:
        return dict(zip(tensor.domain.leaf, near.domain.leaf, strict=True))
    if near in tensor.producers:
        seed = {c: p for p, c in pairs(near, tensor)}
        match = Match(tensor.domain, near.domain, seed, tensor.domain.root).follow(None)
    else:
        twin = next(t for t in tensor.siblings if near in t.consumers)
        match = match_leaves(twin, near)
        if twin is not tensor:
            to_twin = _step(tensor, twin)
            return {a: match.settle(match.image[b]) for a, b in to_twin.items() if b in match.image}
    return {a: match.settle(b) for a, b in match.image.items()}
