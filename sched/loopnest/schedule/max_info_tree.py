"""Replay many tensors from one reference, each once, along a maximum spanning tree.

A tensor is reached along the path from the reference that keeps the most of the reference's root
axes: a path through a reduction or past a broadcast loses axes, and what is lost cannot be replayed
farther on.

Source: nvFuser's MaxInfoSpanningTree (Fuser, csrc/maxinfo_propagator.cpp), an adaptation of Prim's
algorithm; loopnest computes it over definitions, so that outputs of one definition move together.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping
from typing import TypeAlias

from loopnest.schedule.overlap import (
    SharedLoops,
    WindowReplay,
    crosses,
    readers,
    require_no_output,
    whole_loops,
)
from loopnest.schedule.replay import (
    consumer_as_producer,
    mirror,
    producer_as_consumer,
    reshapes,
)
from loopnest.schedule.root_maps import pairs
from loopnest.tensor.domain import IterDomain, TensorDomain, ancestors
from loopnest.tensor.overlapping_tiles import overlaps
from loopnest.tensor.tensor_view import TensorView

Kept: TypeAlias = frozenset[tuple[IterDomain, IterDomain]]
"""(an axis of the reference's root, the axis of the tensor at hand that stands for it)."""

_Entry: TypeAlias = "tuple[int, int, int, TensorView, TensorView | None, Kept]"
"""(inputs passed, how little is kept, a number, tensor, the one that it is reached from, kept)."""

Replayed: TypeAlias = dict[TensorView, tuple[TensorDomain, int]]


def max_info_replay(
    reference: TensorView, pos: int, selected: Collection[TensorView], *, windows: bool = False
) -> Replayed:
    """Return the domain and aligned position of each selected tensor reached from `reference`.

    Tensors come in the order in which they are reached; nothing is changed. A selected input is
    passed through, but not where another way leads to the same tensor: an input shares no loop.
    With `windows` a tensor that is read in windows gets the tiles that these need (see `overlap`).
    """
    found = _Replay(reference, pos, selected, windows).run()
    return {t: (made.domain, len(made.loops)) for t, made in found.items()}


def shared_loops(
    reference: TensorView, pos: int, selected: Collection[TensorView]
) -> dict[TensorView, SharedLoops]:
    """Return what `max_info_replay` does across windows, with the loops of the reference."""
    return _Replay(reference, pos, selected, windows=True).run()


def next_replay(
    tensor: TensorView, consumer: TensorView, known: SharedLoops, reference: TensorView
) -> SharedLoops:
    """Return the last step of `shared_loops`: a tensor that is reached from `consumer` alone."""
    replay = _Replay(reference, len(known.loops), (tensor,), windows=True)
    replay.done[consumer] = known
    return replay.step(consumer, tensor)


class _Replay:
    """One replay of many tensors; `windows` says whether windows are crossed."""

    def __init__(
        self, reference: TensorView, pos: int, selected: Collection[TensorView], windows: bool
    ) -> None:
        self.reference, self.selected, self.windows = reference, selected, windows
        needed = ancestors(reference.domain.leaf[:pos], reference.domain)
        start: Kept = frozenset((axis, axis) for axis in reference.domain.root if axis in needed)
        self.done: dict[TensorView, SharedLoops] = {}
        self.queue: list[_Entry] = [(0, -len(start), 0, reference, None, start)]
        self.waiting: dict[TensorView, _Entry] = {}
        self.start = whole_loops(reference, reference.domain, range(pos))

    def run(self) -> dict[TensorView, SharedLoops]:
        """Reach all tensors."""
        count = 0
        while self.queue or self.waiting:
            forced = not self.queue
            entry = self._last_waiting() if forced else heapq.heappop(self.queue)
            inputs, _, _, tensor, origin, kept = entry
            if tensor in self.done:
                continue
            if not forced and self._waits(tensor, origin):
                self.waiting.setdefault(tensor, entry)
                continue
            self._reach(tensor, origin)
            for near, neighbour, left in _neighbours(tensor, kept, self.selected, self.done):
                count += 1
                passed = inputs + neighbour.is_input
                heapq.heappush(self.queue, (passed, -len(left), count, neighbour, near, left))
            for other in [t for t in self.waiting if not self._waits(t, None)]:
                heapq.heappush(self.queue, self.waiting.pop(other))
        return self.done

    def _waits(self, tensor: TensorView, origin: TensorView | None) -> bool:
        """Whether a tensor that is read in windows waits for other consumers than `origin`."""
        if not self.windows or (origin is not None and tensor not in origin.producers):
            return False
        found = [c for _, c in readers(tensor) if c in self.selected]
        if all(c in self.done for c in found):
            return False
        return crosses(tensor, found) or any(
            overlaps(self.done[c].domain.history) for c in found if c in self.done
        )

    def _last_waiting(self) -> _Entry:
        """Take the waiting tensor that is computed last: none of its consumers comes any more."""
        order = {t: n for n, t in enumerate(self.reference.fusion.topological())}
        # The last in program order: nothing that still waits depends on it, so that no reader of it
        # is to come.
        return self.waiting.pop(max(self.waiting, key=lambda t: order[t]))

    def _reach(self, tensor: TensorView, origin: TensorView | None) -> None:
        found = self.start if origin is None else self.step(origin, tensor)
        if len(overlaps(found.domain.history)) > len(overlaps(tensor.domain.history)):
            require_no_output(tensor)  # tiles that its reader has, not its own windows
        self.done[tensor] = found
        for twin in tensor.siblings:
            if twin not in self.done:
                domain = twin.domain
                if found.domain is not tensor.domain:
                    domain = mirror(found.domain, twin)
                self.done[twin] = SharedLoops(domain, found.loops, found.exact)

    def step(self, origin: TensorView, tensor: TensorView) -> SharedLoops:
        """Return the loops of a tensor that is reached from `origin`, which is done."""
        source = self.done[origin]
        pos = len(source.loops)
        if tensor not in origin.producers:
            made = consumer_as_producer(tensor, origin, source.domain, pos)
        else:
            if self.windows:
                known = {c: self.done[c] for _, c in readers(tensor) if c in self.done}
                across = WindowReplay(tensor, known).run()
                if across is not None:
                    return across
            made = producer_as_consumer(tensor, origin, source.domain, pos, tiles=self.windows)
        loops = tuple([source.loops[place] for place in made.places])
        # A loop is exact only if it is so at every step of the path: what was merged with more on
        # the way stays so.
        exact = whole_loops(tensor, made.domain, loops).exact & source.exact
        kept = {source.loops[place] for place in made.exact}
        return SharedLoops(made.domain, loops, exact & kept)


def _neighbours(
    tensor: TensorView, kept: Kept, selected: Collection[TensorView], done: Collection[TensorView]
) -> Iterator[tuple[TensorView, TensorView, Kept]]:
    """Yield (sibling that is adjacent, neighbour to go to, what the step to it keeps)."""
    for twin in tensor.siblings:
        own = _as_twin(kept, tensor, twin)
        down = _to_logical(own, twin)
        for consumer in twin.consumers:
            if consumer in selected and consumer not in done:
                forward = dict(pairs(twin, consumer))
                if reshapes(consumer):  # what it takes apart cannot be replayed from here
                    left = set(consumer.domain.rfactor)
                    forward = {mine: theirs for mine, theirs in forward.items() if theirs in left}
                yield twin, consumer, _through(down, forward)
        for producer in twin.producers:
            if producer in selected and producer not in done:
                back = {c: p for p, c in pairs(producer, twin)}
                yield twin, producer, _to_root(_through(own, back), producer)


def _through(kept: Kept, mapping: Mapping[IterDomain, IterDomain]) -> Kept:
    return frozenset((axis, mapping[here]) for axis, here in kept if here in mapping)


def _as_twin(kept: Kept, tensor: TensorView, twin: TensorView) -> Kept:
    if twin is tensor:
        return kept
    return _through(kept, dict(zip(tensor.domain.root, twin.domain.root, strict=True)))


def _to_logical(kept: Kept, tensor: TensorView) -> Kept:
    """Express root axes by the logical axes that they became (rfactored tensors)."""
    domain = tensor.domain
    if domain.rfactor is domain.root:
        return kept
    result = set()
    for axis, here in kept:
        for logical in domain.logical:
            if here in ancestors((logical,), domain):
                result.add((axis, logical))
                break
    return frozenset(result)


def _to_root(kept: Kept, tensor: TensorView) -> Kept:
    """Express logical axes by the root axes that they came from."""
    domain = tensor.domain
    if domain.rfactor is domain.root:
        return kept
    result = set()
    for axis, here in kept:
        sources = ancestors((here,), domain)
        result.add((axis, next(root for root in domain.root if root in sources)))
    return frozenset(result)
