"""Chains between tensors, and their common consumers.

The two iterators enumerate paths for people; no scheduling code uses them, since diamonds in
series have exponentially many. Common consumers are found in one sweep over the tensors.

Source: the terms are those of nvFuser's computeAt design note (dependency chain, use chain, common
consumer).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeAlias

from loopnest.errors import ScheduleError
from loopnest.tensor.tensor_view import TensorView

Step: TypeAlias = Callable[[TensorView], tuple[TensorView, ...]]
Stop: TypeAlias = Callable[[TensorView], bool]


def _require_tensors(call: str, *tensors: object) -> None:
    for tensor in tensors:
        if not isinstance(tensor, TensorView):
            shown = [t.name if isinstance(t, TensorView) else repr(t) for t in tensors]
            raise ScheduleError(
                f"{call}({', '.join(shown)})", f"{tensor!r} is no TensorView", "give TensorViews"
            )


def consumers_of(tensor: TensorView) -> tuple[TensorView, ...]:
    """Return the direct consumers of a tensor and of its siblings, each once."""
    if len(tensor.siblings) == 1:
        return tensor.consumers
    return tuple(dict.fromkeys(c for twin in tensor.siblings for c in twin.consumers))


def descendants(tensor: TensorView) -> set[TensorView]:
    """Return every tensor that depends on `tensor`, itself and siblings included."""
    return _closure(tensor.siblings, lambda t: (*t.siblings, *t.consumers))


def ancestors(tensor: TensorView) -> set[TensorView]:
    """Return every tensor that `tensor` depends on, itself and siblings included."""
    return _closure(tensor.siblings, lambda t: (*t.siblings, *t.producers))


def _closure(start: Iterable[TensorView], step: Step) -> set[TensorView]:
    found = set(start)
    stack = list(found)
    while stack:
        for other in step(stack.pop()):
            if other not in found:
                found.add(other)
                stack.append(other)
    return found


def dependency_chains(a: TensorView, b: TensorView) -> Iterator[tuple[TensorView, ...]]:
    """Iterate over every path of definitions from `a` to `b`, both ends included.

    There may be exponentially many; nothing is computed before it is asked for.

    Args:
        a: where the paths begin.
        b: where they end, a tensor of the same fusion.

    Raises:
        ScheduleError: no TensorView.

    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     t = x * 2.0
    ...     y = f.output(t + x, "y")
    >>> [[tensor.name for tensor in chain] for chain in ln.dependency_chains(x, y)]
    [['x', 'T1', 'y'], ['x', 'y']]

    Source: nvFuser's design note of computeAt ("dependency chain").
    """
    _require_tensors("dependency_chains", a, b)
    return _paths((a,), ancestors(b), lambda tensor: tensor is b)


def use_chains(tensor: TensorView) -> Iterator[tuple[TensorView, ...]]:
    """Iterate over every path from `tensor` to a terminal output (one that no tensor consumes).

    A tensor that no output depends on is on no path.

    Args:
        tensor: of any fusion.

    Raises:
        ScheduleError: no TensorView.

    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     t = x * 2.0
    ...     y = f.output(t + x, "y")
    >>> [[tensor.name for tensor in chain] for chain in ln.use_chains(t)]
    [['T1', 'y']]

    Source: nvFuser's design note of computeAt ("use chain").
    """
    _require_tensors("use_chains", tensor)
    live = tensor.fusion.live()
    return _paths((tensor,), live, lambda t: live.isdisjoint(t.consumers))


def _paths(
    path: tuple[TensorView, ...], useful: Collection[TensorView], stop: Stop
) -> Iterator[tuple[TensorView, ...]]:
    stack = [path]
    while stack:
        path = stack.pop()
        if stop(path[-1]):
            yield path
            continue
        for consumer in reversed(path[-1].consumers):
            if consumer in useful:
                stack.append((*path, consumer))


def common_consumers(tensor: TensorView) -> tuple[TensorView, ...]:
    """Return the tensors on every use chain of `tensor`, nearest first.

    One sweep in topological order: a tensor is on every chain if and only if, when it is reached,
    it is the only one that edges from the tensors before it lead to.

    Args:
        tensor: of any fusion.

    Raises:
        ScheduleError: no TensorView.

    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     t = x * 2.0
    ...     y = f.output(t + x, "y")
    >>> [tensor.name for tensor in ln.common_consumers(x)]
    ['y']

    Source: nvFuser's design note of computeAt ("common consumer").
    """
    _require_tensors("common_consumers", tensor)
    live = tensor.fusion.live()
    reached = descendants(tensor) & live
    units: dict[TensorView, None] = {}
    for other in tensor.fusion.topological():
        if other in reached and other is other.siblings[0]:
            units[other] = None
    head = tensor.siblings[0]
    pending: set[TensorView] = {head}
    result: list[TensorView] = []
    ended = False
    for unit in units:
        only = pending == {unit}
        pending.discard(unit)
        if only and not ended and unit is not head:
            result.append(unit)
        pending.update(c.siblings[0] for c in consumers_of(unit) if c in live)
        ended = ended or any(t.is_output and live.isdisjoint(t.consumers) for t in unit.siblings)
    return tuple(result)
