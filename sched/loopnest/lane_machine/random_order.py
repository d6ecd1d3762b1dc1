"""Run threads one after another in a random order, so that a missing barrier shows in values.

Statements of one thread are put off until one comes that concerns several. Those that were put off
are then run by random groups of blocks, one group after the other; inside a group of blocks by
groups of warps, from one barrier of the block to the next; inside a group of warps by groups of
threads, from one statement of the warp to the next. A group of threads runs in step. Loops with
barriers in them are unrolled on the way, so that a thread may be in the next iteration while
another one is still behind. Every such order is one that a GPU may take: a kernel without races
gives the same in all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from loopnest import kir
from loopnest.lane_machine import abstract_machine
from loopnest.lane_machine.abstract_machine import Machine
from loopnest.lane_machine.concrete_program import LaunchedBlocks
from loopnest.lane_machine.frame import Frame
from loopnest.lane_machine.loop_dependence import Expansions
from loopnest.lane_machine.native_math import Array, Value
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import Buffer, Local

GROUPS = 6
"""Into how many groups blocks, warps or threads are dealt, at most."""

GRID, BLOCK, WARP, THREAD = range(4)
"""The threads that run some statements together: those that a statement at hand concerns."""

Item = tuple[kir.Stmt, Frame]


class OrderedMachine(Machine):
    """A machine that runs threads in a random order between barriers; it looks for no races.

    Args:
        expansions, arrays, scalars: as for `Machine`.
        seed: of the order.
    """

    def __init__(
        self,
        expansions: Expansions,
        arrays: Mapping[str, Array],
        scalars: Mapping[str, object],
        seed: int,
        earlier: Machine | None = None,
    ) -> None:
        super().__init__(expansions, arrays, scalars, races=False, earlier=earlier)
        self.random = self.landing = np.random.default_rng(seed)
        self._levels: dict[kir.Stmt, int] = {}
        self._level = THREAD
        self._put_off: list[Item] = []

    def launches(self) -> Iterator[LaunchedBlocks]:
        lanes, size = abstract_machine.LANES, abstract_machine.BYTES
        return self.setting.launches(self.constants, lanes, size, self.random)

    def arrivals(self, lanes: Array) -> Array:
        return self.random.permutation(lanes)

    def _start(self, launch: LaunchedBlocks) -> None:
        super()._start(launch)
        for buffer in [b for b in self.memory if b.memory is Memory.SHARED]:
            del self.memory[buffer]

    def run_launch(self, launch: LaunchedBlocks) -> None:
        self._base = launch.frame
        items: list[Item] = [(node, launch.frame) for node in self.program.body]
        self._run(GRID, items, launch.frame)

    # Levels

    def _run(self, level: int, items: list[Item], base: Frame) -> None:
        """Run statements on frames of whole blocks ("GRID"), warps or threads, below `base`."""
        outer = self._level, self._put_off, self._base
        self._level, self._put_off, self._base = level, [], base
        for node, frame in items:
            self.body((node,), frame)
        self._catch_up()
        self._level, self._put_off, self._base = outer

    _base: Frame

    def body(self, body: tuple[kir.Stmt, ...], frame: Frame) -> None:
        if self._level == THREAD:
            super().body(body, frame)
            return
        for node in body:
            if isinstance(node, kir.Allocate):
                self._make(node.storage, frame)
                self._put_off.append((node, frame))
            elif self._level_of(node) > self._level and not isinstance(node, kir.Until):
                self._put_off.append((node, frame))
            else:
                if kir.is_sync(node) or isinstance(node, kir.Until):
                    self._catch_up()
                super().body((node,), frame)

    def _catch_up(self) -> None:
        """Run what was put off, by random groups."""
        items, self._put_off = self._put_off, []
        if not items:
            return
        level = min(self._level_of(node) for node, _ in items)
        news: list[News] = []
        for lanes in self._groups(level, self._base):
            mirror = FrameSubset(self._base, lanes)
            mirrored = [(node, mirror.of(frame)) for node, frame in items]
            base = mirror.of(self._base)
            assert base is not None
            self._run(level, [(n, f) for n, f in mirrored if f is not None], base)
            news += mirror.news()
        join(news)

    def _level_of(self, node: kir.Stmt) -> int:
        """Return the largest scope of the statements in `node` that concern several threads."""
        found = self._levels.get(node)
        if found is None:
            found = min([_LEVELS[kir.meets(inner)] for inner, _ in kir.walk((node,))])
            self._levels[node] = found
        return found

    # Groups

    def _groups(self, level: int, frame: Frame) -> list[Array]:
        """Return the lanes of each group; blocks or warps stay whole, and their lanes in order."""
        if level == THREAD:
            return self._dealt(np.arange(frame.lanes))
        units, unit = np.unique(
            self.together.groups("block" if level == BLOCK else "warp", frame), return_inverse=True
        )
        dealt = self._dealt(np.arange(units.size))
        return [np.flatnonzero(np.isin(unit, group)) for group in dealt]

    def _dealt(self, units: Array) -> list[Array]:
        order = self.random.permutation(units)
        if order.size <= GROUPS:
            return np.array_split(order, order.size)
        count = int(self.random.integers(2, GROUPS + 1))
        cuts = self.random.choice(np.arange(1, order.size), count - 1, replace=False)
        return np.split(order, np.sort(cuts))

    # Statements that have others in them

    def _iterate(self, node: kir.Loop, extent: int, frame: Frame) -> None:
        if self._level == THREAD:
            super()._iterate(node, extent, frame)
            return
        going: Frame | None = frame
        for i in range(extent):  # what is put off keeps its iteration's frame
            if going is None:
                break
            inner = going.same_lanes()
            inner.define(node.var, i)
            self.body(node.body, inner)
            going = self.going_on(inner)

    def visit_if(self, node: kir.If, frame: Frame) -> None:
        depends = self.setting.dependences
        if depends.reads(node.condition) or any(
            isinstance(v, Local) for v in depends.free(node.condition)
        ):
            self._catch_up()
        super().visit_if(node, frame)

    def _make(self, buffer: Buffer, frame: Frame) -> None:
        """Make memory as soon as it is named; what it held is forgotten when its turn comes."""
        if buffer not in frame.defines:
            copies = self.launch.blocks.size if buffer.memory is Memory.SHARED else frame.lanes
            found = self.memory.get(buffer)
            if found is not None and found.copies != copies:
                self._catch_up()  # while the memory is still there
            self._place(buffer, frame)

    def visit_allocate(self, node: kir.Allocate, frame: Frame) -> None:
        """Forget what LOCAL memory held; threads that are behind may still read SHARED memory."""
        buffer = node.storage
        if buffer not in frame.defines:
            self._place(buffer, frame)
        if buffer.memory is Memory.LOCAL:
            storage = self.memory[buffer]
            first = np.atleast_1d(np.asarray(frame.values[buffer]))
            storage.forget(first // max(storage.layout.pitch, 1))


_LEVELS = {"grid": GRID, "block": BLOCK, "warp": WARP, "": THREAD}


class News(NamedTuple):
    """A temporary that was named on some lanes of a frame."""

    frame: Frame
    variable: Local
    lanes: Array
    value: Value


class FrameSubset:
    """The frames below `base`, cut down to some of its lanes.

    Args:
        base: a frame.
        lanes: those of its lanes that are kept, in this order.
    """

    def __init__(self, base: Frame, lanes: Array) -> None:
        self.base = base
        self._lanes = {base: lanes}
        self._frames = {base: self._cut(base, base, lanes, lanes)}

    def of(self, frame: Frame) -> Frame | None:
        """Return what is left of a frame derived from `base`; None where no lane is."""
        found = self._frames.get(frame)
        if found is None:
            parent = frame.parent
            assert parent is not None
            above = self.of(parent)
            if above is None:
                return None
            place = np.full(parent.lanes, -1)
            place[self._lanes[parent]] = np.arange(above.lanes)
            if frame.origin is not None:
                place = place[frame.origin]
            kept = np.flatnonzero(place >= 0)
            kept = kept[np.argsort(place[kept], kind="stable")]
            if not kept.size:
                return None
            self._lanes[frame] = kept
            found = self._frames[frame] = self._cut(frame, above, kept, place[kept])
        return found

    def _cut(self, frame: Frame, above: Frame, kept: Array, origin: Array) -> Frame:
        result = Frame(kept.size, above, origin)
        for variable in frame.defines:
            value = frame.values[variable]
            if isinstance(value, np.ndarray) and value.size > 1:
                value = value[kept]
            result.define(variable, value)
        return result

    def news(self) -> list[News]:
        """Return the temporaries that were named in the mirror."""
        return [
            News(frame, variable, self._lanes[frame], mirrored.values[variable])
            for frame, mirrored in self._frames.items()
            for variable in mirrored.defines - frame.defines
            if isinstance(variable, Local)
        ]


def join(news: list[News]) -> None:
    """Name in the frames what was named in their mirrors, which have all their lanes together."""
    joined: dict[tuple[Frame, Local], Array] = {}
    for frame, variable, lanes, value in news:
        key = (frame, variable)
        if key not in joined:
            joined[key] = np.empty(frame.lanes, np.asarray(value).dtype)
        joined[key][lanes] = value
    for (frame, variable), values in joined.items():
        frame.define(variable, values)
