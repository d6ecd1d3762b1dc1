"""Chains between tensors, and their common consumers.

The two iterators enumerate paths for people; no scheduling code uses them, since diamonds in
series have exponentially many. Common consumers are found in one sweep over the tensors.

Source: the terms are those of nvFuser's computeAt design note (dependency chain, use chain, common
consumer).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeAlias

from loopnest.base.errors import ScheduleError
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


def leads_to(tensor: TensorView, target: TensorView) -> bool:
    """Whether `target` depends on `tensor`, or is it; only what lies between is looked at."""
    ranks = tensor.fusion.order.ranks
    last = max(ranks[twin] for twin in target.siblings)

    def step(t: TensorView) -> tuple[TensorView, ...]:
        return tuple([other for other in (*t.siblings, *t.consumers) if ranks[other] <= last])

    return target in _closure(tensor.siblings, step)


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
    return tuple([unit for unit, common in _live_users(tensor) if common])


def users_up_to(tensor: TensorView, target: TensorView) -> set[TensorView]:
    """Return the live tensors on the use chains, up to the first common consumer after `target`.

    Or `target` itself, where that is one; all of them where there is none. They include `tensor`.
    """
    rank = tensor.fusion.order.ranks
    found: set[TensorView] = set()
    for unit, common in _live_users(tensor):
        found.update(unit.siblings)
        if common and rank[unit] >= rank[target.siblings[0]]:
            break
    return found


def _live_users(tensor: TensorView) -> Iterator[tuple[TensorView, bool]]:
    """Yield the first output of each live definition that depends on `tensor`, in program order.

    And whether it is on every use chain; that of `tensor` itself comes first.
    """
    live, rank = tensor.fusion.live(), tensor.fusion.order.ranks
    head = tensor.siblings[0]
    if head not in live:
        return
    waiting = [(rank[head], head)]
    seen = {head}
    ended = False
    while waiting:
        _, unit = heapq.heappop(waiting)
        # In topological order: what waits is what edges from tensors before lead to. Where nothing
        # else waits and no chain has ended, every chain runs through this one.
        yield unit, not waiting and not ended and unit is not head
        for consumer in consumers_of(unit):
            first = consumer.siblings[0]
            if consumer in live and first not in seen:
                seen.add(first)
                heapq.heappush(waiting, (rank[first], first))
        ended = ended or any(t.is_output and live.isdisjoint(t.consumers) for t in unit.siblings)
