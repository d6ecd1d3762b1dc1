"""The race detector: find accesses of different threads to one element that nothing orders.

Lanes run in step, so a missing barrier seldom changes a value here; what shows it is *time*. The
clock ticks at each barrier and arrival. Each thread knows up to which time it sees the accesses of
others (its horizon): those of its warp, of its block, of all blocks, and, after an arrival that
made a count full, of the blocks that arrived before. An access at a time not before the horizon of
a later one, by another thread, one of them a store, is a race; the order in which lanes happened to
run plays no part.

Each element has two codes in its shadow: the last store, and the readers since. A code holds, from
the high bits down, the time, the statement, a level and a thread; the level says that several
threads of a warp (1), of a block (2) or of the grid (3) read it. Loads are only logged, and enter
the shadow when a store to their buffer comes before a barrier has made the log void: a kernel with
its barriers in place pays next to nothing for its loads. Buffers in one space share a shadow.

Source: FastTrack (Flanagan and Freund, 2009): an epoch an element instead of a vector clock.

Vector clocks: which accesses of other threads a thread has seen.

A clock ticks at each barrier and at each arrival. The horizon of a thread is the time before which
it sees all accesses of the threads of a scope; that of a smaller scope is never the earlier one.
Blocks order each other by a barrier of the grid, or by arrivals: the last block to arrive sees what
the others did before they arrived, and what these saw by then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from loopnest import kir
from loopnest.lane_machine.concrete_program import THREAD, ConcreteProgram, LaunchedBlocks
from loopnest.lane_machine.evaluator import Evaluator
from loopnest.lane_machine.fault_report import FaultReport, Rival
from loopnest.lane_machine.frame import Frame
from loopnest.lane_machine.native_math import Array, Value
from loopnest.scalar.enums import WARP, Memory
from loopnest.scalar.expr import Buffer, Load

LOGGED = 1 << 22
"""How many loads a log holds before they enter the shadow."""


class Entry(NamedTuple):
    """Logged loads: one a lane.

    Args:
        buffer, address: what was loaded.
        threads: that loaded it.
        lanes: how many there are.
        code: of the loads, without a thread.
    """

    buffer: Buffer
    address: Value
    threads: Value
    lanes: int
    code: int


@dataclass(eq=False, slots=True)
class Shadow:
    """What is known of the accesses to one space.

    Args:
        unit: the bytes that one element of the shadow stands for.
        is_shared: whether each block has its own.
        wrote: the code of the last store, -1 for none.
        readers: the code of the loads since; made when first needed.
        updaters: that of the atomic updates since; made when first needed.
        last_write, last_update, last_read: the latest time in the codes.
        log: loads not yet among the readers.
        logged: how many.
    """

    unit: int
    is_shared: bool
    wrote: Array
    readers: Array | None = None
    updaters: Array | None = None
    last_write: int = -1
    last_update: int = -1
    last_read: int = -1
    log: dict[tuple[Value, Value], Entry] = field(default_factory=dict)
    logged: int = 0

    def clear_log(self) -> None:
        """Forget the logged loads."""
        self.log.clear()
        self.logged = 0


class RaceDetector:
    """The accesses of one run.

    Args:
        setting: the program at its sizes.
        faults: makes the errors.
        evaluator: knows the threads of a frame.
    """

    def __init__(self, setting: ConcreteProgram, faults: FaultReport, evaluator: Evaluator) -> None:
        self.setting, self.faults, self.eval = setting, faults, evaluator
        self.horizons = VectorClocks(setting)
        self.covered: Load | None = None
        """The element that the running statement stores: its load races only if the store does."""
        self._watched = self._find_watched()
        self._shadows: dict[Buffer, Shadow] = {}
        self._sites = {node: number for number, node in enumerate(setting.nodes)}
        bits = (setting.blocks * setting.threads).bit_length()
        site_bits = len(setting.nodes).bit_length()
        self._thread, self._who = (1 << bits) - 1, (1 << (bits + 2)) - 1
        self._site_mask = (1 << site_bits) - 1
        self._level_at, self._site_at, self._time_at = bits, bits + 2, bits + 2 + site_bits

    def _find_watched(self) -> dict[Buffer, Buffer]:
        """Return the buffers to watch, with their spaces: several threads, one stores."""
        spaces = self.setting.spaces
        several = {
            Memory.LOCAL: False,
            Memory.SHARED: self.setting.threads > 1,
            Memory.GLOBAL: self.setting.threads * self.setting.blocks > 1,
        }
        stored = {spaces[n.storage] for n in self.setting.nodes if isinstance(n, kir.Store)}
        return {b: s for b, s in spaces.items() if s in stored and several[b.memory]}

    def start(self, launch: LaunchedBlocks) -> None:
        """Begin with other blocks: their shared memory is new."""
        self.horizons.start(launch.blocks)
        self._shadows = {b: s for b, s in self._shadows.items() if not s.is_shared}

    def barrier(self, scope: str, slots: Array, warps: Array) -> None:
        """Order accesses; see `Horizons.barrier`."""
        self.horizons.barrier(scope, slots, warps)
        for shadow in self._shadows.values():
            if shadow.log and self._floor(shadow) == self.horizons.now:
                shadow.clear_log()

    def _shadow(self, buffer: Buffer) -> Shadow:
        space = self._watched[buffer]
        found = self._shadows.get(space)
        if found is None:
            unit = min(b.dtype.size for b, s in self._watched.items() if s is space)
            shared = buffer.memory is Memory.SHARED
            count = self.setting.layouts[space].pitch * space.dtype.size // unit
            if shared:
                count *= self.horizons.blocks.size
            found = Shadow(unit, shared, np.full(count, -1))
            self._shadows[space] = found
        return found

    # Accesses

    def read(self, access: Load, address: Value, frame: Frame) -> None:
        """Check the loads of `access`, and remember them.

        Raises:
            KernelFault: another thread stored, and nothing orders the two.
        """
        if access.buffer not in self._watched or access is self.covered:
            return
        shadow = self._shadow(access.buffer)
        threads = self.eval.pure(THREAD, frame)
        if shadow.last_write >= self._floor(shadow):
            for at in _places(shadow, access.buffer, address, frame.lanes):
                self._check(shadow.wrote, "write", at, threads, shadow, access, frame)
        if shadow.updaters is not None and shadow.last_update >= self._floor(shadow):
            for at in _places(shadow, access.buffer, address, frame.lanes):
                self._check(shadow.updaters, "update", at, threads, shadow, access, frame)
        self._log(shadow, access.buffer, address, threads, frame)

    def _log(
        self, shadow: Shadow, buffer: Buffer, address: Value, threads: Value, frame: Frame
    ) -> None:
        places = id(address) if isinstance(address, np.ndarray) else address
        key = (places, id(threads) if isinstance(threads, np.ndarray) else threads)
        # Later loads of the same elements by the same threads stand for the earlier ones.
        if shadow.log.pop(key, None) is None:
            shadow.logged += frame.lanes
        shadow.log[key] = Entry(buffer, address, threads, frame.lanes, self._code())
        if shadow.logged > LOGGED:
            self._enter_log(shadow)

    def write(self, access: Load, address: Value, frame: Frame) -> None:
        """Check the stores to the element of `access`, and remember them.

        Raises:
            KernelFault: another thread stored or read, perhaps by this very statement, and
                nothing orders the two.
        """
        if access.buffer not in self._watched:
            return
        shadow = self._shadow(access.buffer)
        threads = self.eval.pure(THREAD, frame)
        if shadow.log:
            self._enter_log(shadow)
        floor = self._floor(shadow)
        code = self._code()
        for at in _places(shadow, access.buffer, address, frame.lanes):
            if shadow.last_write >= floor:
                self._check(shadow.wrote, "write", at, threads, shadow, access, frame)
            if shadow.readers is not None and shadow.last_read >= floor:
                self._check(shadow.readers, "read", at, threads, shadow, access, frame)
            if shadow.updaters is not None and shadow.last_update >= floor:
                self._check(shadow.updaters, "update", at, threads, shadow, access, frame)
            shadow.wrote[at] = code | threads
            self._check(shadow.wrote, "write", at, threads, shadow, access, frame)
        shadow.last_write = self.horizons.now

    def update(self, access: Load, address: Value, frame: Frame) -> None:
        """Check atomic updates of the element of `access`, and remember them.

        Raises:
            KernelFault: another thread stored or read otherwise, and nothing orders the two.
        """
        if access.buffer not in self._watched:
            return
        shadow = self._shadow(access.buffer)
        threads = self.eval.pure(THREAD, frame)
        if shadow.log:
            self._enter_log(shadow)
        if shadow.updaters is None:
            shadow.updaters = np.full(shadow.wrote.size, -1)
        floor = self._floor(shadow)
        code = self._code()
        for at in _places(shadow, access.buffer, address, frame.lanes):
            if shadow.last_write >= floor:
                self._check(shadow.wrote, "write", at, threads, shadow, access, frame)
            if shadow.readers is not None and shadow.last_read >= floor:
                self._check(shadow.readers, "read", at, threads, shadow, access, frame)
            self._enter(shadow.updaters, at, code | threads, floor)
        shadow.last_update = self.horizons.now

    def _check(
        self,
        codes: Array,
        verb: str,
        at: Array,
        threads: Value,
        shadow: Shadow,
        access: Load,
        frame: Frame,
    ) -> None:
        """Raise a fault where a code at `at` is that of another thread, and not ordered before."""
        found = codes.take(at)
        bad = found & self._who != threads
        if not bad.any():
            return
        bad &= found >= self._floor(shadow) << self._time_at
        lanes = np.flatnonzero(bad)
        if lanes.size:
            lanes = lanes[self._apart(found[lanes], _at(threads, lanes)) > 0]
        if lanes.size:
            lane = int(lanes[0])
            code = int(found[lane])
            other, level = code & self._thread, code >> self._level_at & 3
            is_self = other == _at(threads, lanes[:1])[0]
            rival = Rival(self._site(code), verb, other, level, bool(is_self))
            raise self.faults.race(access, self.eval.index(access, frame, lane), rival, frame, lane)

    def _apart(self, codes: Array, threads: Array) -> Array:
        """Return how the accesses of `codes` stand to `threads`, 0 where they are ordered."""
        times, spread = codes >> self._time_at, codes >> self._level_at & 3
        return self.horizons.unordered(times, codes & self._thread, spread, threads)

    # Readers

    def _enter_log(self, shadow: Shadow) -> None:
        """Bring the logged loads into the shadow, but for those that all threads see."""
        floor = self._floor(shadow)
        if shadow.readers is None:
            shadow.readers = np.full(shadow.wrote.size, -1)
        for entry in shadow.log.values():
            time = entry.code >> self._time_at
            if time >= floor:
                for at in _places(shadow, entry.buffer, entry.address, entry.lanes):
                    self._enter(shadow.readers, at, entry.code | entry.threads, floor)
                shadow.last_read = max(shadow.last_read, time)
        shadow.clear_log()

    def _enter(self, readers: Array, at: Array, codes: Value, floor: int) -> None:
        """Make the threads of `codes` the readers of elements, or add them to those there are."""
        codes = np.broadcast_to(np.asarray(codes), at.shape)
        before = readers.take(at)
        levels = np.zeros(at.size, np.int64)
        old = (before >= floor << self._time_at) & ((before ^ codes) & self._who != 0)
        lanes = np.flatnonzero(old)
        if lanes.size:
            levels[lanes] = self._apart(before[lanes], codes[lanes] & self._thread)
        readers[at] = codes
        lanes = np.flatnonzero(readers.take(at) != codes)
        if lanes.size:  # several threads in one statement
            here = readers[at[lanes]] & self._thread
            spread = self.horizons.relation(here, codes[lanes] & self._thread)
            levels[lanes] = np.maximum(levels[lanes], spread)
        if levels.any():
            for level in (IN_WARP, IN_BLOCK, IN_GRID):
                lanes = np.flatnonzero(levels == level)
                readers[at[lanes]] = codes[lanes] | level << self._level_at

    # Codes, lanes

    def _code(self) -> int:
        """Return the code of an access by the running statement, without its thread."""
        assert self.faults.statement is not None
        site = self._sites[self.faults.statement]
        return self.horizons.now << self._time_at | site << self._site_at

    def _site(self, code: int) -> kir.Stmt:
        return self.setting.nodes[code >> self._site_at & self._site_mask]

    def _floor(self, shadow: Shadow) -> int:
        """Return the time before which every thread sees all accesses."""
        return self.horizons.floor if shadow.is_shared else self.horizons.of_grid


def _places(shadow: Shadow, buffer: Buffer, address: Value, lanes: int) -> list[Array]:
    """Return the elements of the shadow that an access touches, one a lane in each array."""
    at = address if isinstance(address, np.ndarray) else np.full(lanes, address)
    count = buffer.dtype.size // shadow.unit
    return [at] if count == 1 else [at * count + k for k in range(count)]


def _at(threads: Value, lanes: Array) -> Array:
    if isinstance(threads, np.ndarray) and threads.size > 1:
        return threads[lanes]
    return np.full(lanes.size, threads)


SAME, IN_WARP, IN_BLOCK, IN_GRID = range(4)
"""How two threads stand to each other, and how far the readers of an element are spread."""


class VectorClocks:
    """The horizons of the threads that run.

    Args:
        setting: the program at its sizes.
    """

    def __init__(self, setting: ConcreteProgram) -> None:
        self.per_block = setting.threads
        self.total = setting.blocks
        self.now = 0
        self.of_grid = 0
        self.blocks: Array = np.zeros(0, np.int64)
        self._arrived: dict[object, list[tuple[int, int, Array | None]]] = {}

    def start(self, blocks: Array) -> None:
        """Begin with other blocks, their numbers in ascending order."""
        self.blocks = blocks
        self.of_block = np.full(blocks.size, self.now)
        self.of_warp = np.full((blocks.size, -(-self.per_block // WARP)), self.now)
        self.floor = self.now
        """Before it every thread sees all accesses of its block."""
        self._seen: dict[int, Array] = {}

    def barrier(self, scope: str, slots: Array, warps: Array) -> None:
        """Order the accesses within warps, blocks or the grid.

        Args:
            scope: "warp", "block" or "grid".
            slots: of each thread that is there, the place of its block.
            warps: its warp in the block.
        """
        self.now += 1
        if scope == "warp":
            self.of_warp[slots, warps] = self.now
            return
        self.of_block[slots] = self.of_warp[slots] = self.now
        self.floor = int(self.of_block.min())
        if scope == "grid":
            self.of_grid = self.now

    # Arrivals

    def arrive(self, slot: int, counter: object) -> None:
        """Let one block arrive at a counter, at this time."""
        block = int(self.blocks[slot])
        there = self._arrived.setdefault(counter, [])
        there.append((block, self.now, self._seen.get(block)))

    def see_arrivals(self, slot: int, counter: object) -> None:
        """Let one block see what all did that arrived at a counter, which begins anew."""
        seen = np.full(self.total, self.of_grid)
        for block, time, its_own in self._arrived.pop(counter, []):
            if its_own is not None:
                np.maximum(seen, its_own, out=seen)
            seen[block] = max(int(seen[block]), time)
        self._seen[int(self.blocks[slot])] = seen

    # Queries

    def relation(self, one: Array, other: Array) -> Array:
        """Return how threads stand to each other, by their numbers in the launch."""
        block, blocks = one // self.per_block, other // self.per_block
        warp, warps = one % self.per_block // WARP, other % self.per_block // WARP
        inside = np.where(warp == warps, IN_WARP, IN_BLOCK)
        return np.where(block == blocks, np.where(one == other, SAME, inside), IN_GRID)

    def unordered(self, times: Array, others: Array, spread: Array, threads: Array) -> Array:
        """Return how accesses stand to `threads` now: a relation, SAME where they are ordered.

        Args:
            times: of the accesses.
            others: one of the threads that made each.
            spread: how far these threads are spread: SAME for one alone.
            threads: that make accesses now.
        """
        apart = np.maximum(self.relation(others, threads), spread)
        block = threads // self.per_block
        slot = np.searchsorted(self.blocks, block)
        horizon = np.where(
            apart == IN_WARP,
            self.of_warp[slot, threads % self.per_block // WARP],
            np.where(apart == IN_BLOCK, self.of_block[slot], self.of_grid),
        )
        if self._seen:
            far = np.flatnonzero(apart == IN_GRID)
            for number in np.unique(block[far]):
                mine = far[block[far] == number]
                seen = self._seen_by(int(number), others[mine], spread[mine])
                horizon[mine] = np.maximum(horizon[mine], seen)
        return np.where(times < horizon, SAME, apart)

    def _seen_by(self, block: int, others: Array, spread: Array) -> Array | int:
        """Return the time up to which a block sees what other blocks did."""
        seen = self._seen.get(block)
        if seen is None:
            return self.of_grid
        each: Array = seen[others // self.per_block]
        if (spread == IN_GRID).any():
            # Of several blocks that read, the one that arrived last stands for all: what this
            # hides is a race with blocks of which only some arrived.
            latest = np.delete(seen, block).max(initial=0)
            each = np.where(spread == IN_GRID, latest, each)
        return each
