"""Statements on frames of lanes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import assert_never

import numpy as np

from loopnest import kir
from loopnest.backends.interpret.concrete_program import SLOT, LaunchedBlocks
from loopnest.backends.interpret.declared_collectives import combine_declared
from loopnest.backends.interpret.evaluator import Evaluator
from loopnest.backends.interpret.fault_report import FaultReport
from loopnest.backends.interpret.flying_copies import FlyingCopies
from loopnest.backends.interpret.frame import Frame, uniform
from loopnest.backends.interpret.loop_dependence import Expansion, Expansions, folded
from loopnest.backends.interpret.native_math import Array, Value, as_array, convert
from loopnest.backends.interpret.race_detector import RaceDetector
from loopnest.backends.interpret.sync_statements import SyncStatements
from loopnest.backends.interpret.undefined_values import Undefined
from loopnest.backends.interpret.watched_memory import ElementLayout, WatchedStorage, watched
from loopnest.base.errors import InternalError
from loopnest.kir.buffers import Buffer
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import FALSE, Expr, LaunchIndex, Load

LANES = 1 << 14
"""How many lanes run side by side where a launch or a loop has more."""

BYTES = 1 << 26
"""How much local and shared memory the lanes may take together, where one block takes less."""


class Machine:
    """One run of a program on arrays.

    Args:
        expansions: how loops may be expanded, and with it the program at its sizes.
        arrays: name of parameter -> C-contiguous array; workspace may be left out.
        scalars: the value of every scalar parameter.
        races: whether to look for races.
        earlier: the machine of the launch before this one, whose arrays this one goes on with.
    """

    def __init__(
        self,
        expansions: Expansions,
        arrays: Mapping[str, Array],
        scalars: Mapping[str, object],
        races: bool = True,
        earlier: Machine | None = None,
    ) -> None:
        self.expansions = expansions
        self.setting = setting = expansions.setting
        self.program = setting.program
        self.memory: dict[Buffer, WatchedStorage] = {}
        self.faults = FaultReport(setting)
        self.eval = Evaluator(self.program.name, self.memory, self.faults, setting.dependences)
        self.races = RaceDetector(setting, self.faults, self.eval) if races else None
        self.eval.watcher = self.races
        self.undefined = Undefined(setting.nodes, self.eval)
        self.together = SyncStatements(
            setting, self.eval, self.faults, self.undefined, self.races, self.arrivals
        )
        self.constants = setting.constants(scalars)
        self.folding: frozenset[kir.Store] = frozenset()
        self._turns = 0
        self._bind(arrays, {} if earlier is None else earlier.memory)

    def _bind(self, arrays: Mapping[str, Array], earlier: Mapping[Buffer, WatchedStorage]) -> None:
        for param in self.program.params:
            buffer = param.buffer
            if buffer is None:
                continue
            if buffer in earlier:
                self._add(earlier[buffer])
                continue
            layout = self.setting.layouts[buffer]
            if param.name not in arrays or buffer.kind == "counter":
                self._add(watched(buffer, layout, 1))
                continue
            data = arrays[param.name].reshape(-1)
            valid = None if param.kind == "input" else np.zeros(data.size, np.bool_)
            self._add(WatchedStorage(buffer, data, valid, layout))

    def run(self, *, last: bool = True) -> None:
        """Run every thread; see `loopnest.backends.interpret.interpret`.

        After the `last` launch every element of the outputs must have been stored.
        """
        with np.errstate(all="ignore"):
            for launch in self.launches():
                self._start(launch)
                self.run_launch(launch)
        if not self.setting.is_roomy:
            if last:
                self._check_outputs()
            self._check_counters()

    launch: LaunchedBlocks
    flying: FlyingCopies
    landing: np.random.Generator | None = None
    """Of the times at which copies in flight land; None to land them at their Wait."""

    def _start(self, launch: LaunchedBlocks) -> None:
        self.launch = self.together.launch = launch
        threads = self.setting.blocks * self.setting.threads
        flies = any(isinstance(node, kir.Issue) for node in self.setting.nodes)
        self.flying = FlyingCopies(
            threads if flies else 0, self.eval, self.faults, self.races, self.landing
        )
        if self.races is not None:
            self.races.start(launch)

    def run_launch(self, launch: LaunchedBlocks) -> None:
        """Run the lanes of some blocks."""
        self.body(self.program.body, launch.frame)

    def launches(self) -> Iterator[LaunchedBlocks]:
        """Yield the blocks of the launch in groups that run together."""
        return self.setting.launches(self.constants, LANES, BYTES)

    def arrivals(self, lanes: Array) -> Array:
        """Return the order in which blocks arrive; each lane is one of another block.

        It turns round from one arrival to the next, since no block is the last one everywhere.
        """
        self._turns += 1
        return lanes if self._turns % 2 else lanes[::-1]

    def _check_outputs(self) -> None:
        for output in self.program.outputs:
            storage = self.memory[output.buffer]
            if storage.valid is not None and not storage.valid.all():
                place = _unraveled(int(np.argmin(storage.valid)), storage.layout)
                raise self.faults.unwritten(output.buffer, place)

    def _check_counters(self) -> None:
        for buffer, storage in self.memory.items():
            if buffer.kind == "counter" and storage.data.any():
                first = int(np.flatnonzero(storage.data)[0])
                place = _unraveled(first, storage.layout)
                raise self.faults.left_over(buffer, place, int(storage.data[first]))

    # Statements

    def body(self, body: tuple[kir.Stmt, ...], frame: Frame) -> None:
        """Execute statements on the lanes of `frame`."""
        for node in body:
            self.faults.statement = node
            frame.scratch.clear()
            match node:
                case kir.Store():
                    self._store(node, frame)
                case kir.Loop():
                    self._loop(node, frame)
                case kir.If():
                    self._if(node, frame)
                case kir.Let():
                    self._let(node, frame)
                case kir.Allocate():
                    self._allocate(node.storage, frame)
                case kir.Collective():
                    self._collective(node, frame)
                case kir.Barrier() | kir.Shuffle() | kir.Arrive():
                    self._meet(node, frame)
                case kir.Issue() | kir.Commit() | kir.Wait():
                    self._copies(node, frame)
                case kir.Launch() | kir.Tile():
                    raise kir.one_launch(node)
                case _:
                    assert_never(node)

    def _meet(self, node: kir.Barrier | kir.Shuffle | kir.Arrive, frame: Frame) -> None:
        """Do what several threads do together."""
        match node:
            case kir.Barrier():
                self.together.barrier(node, frame)
            case kir.Shuffle():
                self.together.shuffle(node, frame)
            case kir.Arrive():
                self.together.arrive(node, self.memory[node.counter].data, frame)
            case _:
                assert_never(node)

    def _copies(self, node: kir.Issue | kir.Commit | kir.Wait, frame: Frame) -> None:
        """Begin copies, close a group of them, or wait for some."""
        match node:
            case kir.Issue():
                self.flying.issuing = True
                self.body(node.body, frame)
                self.flying.issuing = False
            case kir.Commit():
                self.flying.commit(frame)
            case kir.Wait():
                self.flying.wait(node, frame)
            case _:
                assert_never(node)

    def _let(self, node: kir.Let, frame: Frame) -> None:
        value = self.eval.value(node.value, frame)
        self._check_alignment(node, frame)
        self.undefined.define(node.var, node.value, frame)
        frame.define(node.var, value)

    def _collective(self, node: kir.Collective, frame: Frame) -> None:
        """Run the body of a collective; in a launch without threads, do what it declares."""
        if not self.setting.is_empty:
            self.body(node.body, frame)
            return
        combine_declared(node, self.setting, self.eval, frame)
        for var in node.results:
            self.undefined.define(var, FALSE, frame)

    def _store(self, node: kir.Store, frame: Frame) -> None:
        target = Load(node.storage, node.index, node.flat)
        if node in self.folding or (node.atomic and folded(node) is not None):
            self._fold(node, target, frame)
            return
        if node.atomic and not self._is_apart(target, frame):
            self._one_by_one(node, target, frame)
            return
        dtype = node.storage.dtype
        value = self._value_to_store(node.value, target, frame)
        address = self.eval.address(target, frame)
        self._check_alignment(node, frame)
        for part in (node.value, *node.index):
            self._require_defined(part, "what is stored", frame)
        rounded = as_array(convert(value, node.value.dtype, dtype), dtype)
        self._watch_store(node, target, address, frame)
        storage = self.memory[node.storage]
        if self.flying.issuing:
            self.flying.begin(node, storage, address, rounded, frame)
        else:
            storage.store(address, rounded)

    def _watch_store(self, node: kir.Store, target: Load, address: Value, frame: Frame) -> None:
        if self.races is None:
            return
        if node.atomic:
            self.races.update(target, address, frame)
        else:
            self.races.write(target, address, frame)

    def _is_apart(self, target: Load, frame: Frame) -> bool:
        """Whether no two lanes have one element."""
        address = np.asarray(self.eval.address(target, frame))
        return frame.lanes == 1 or (address.size > 1 and np.unique(address).size == frame.lanes)

    def _one_by_one(self, node: kir.Store, target: Load, frame: Frame) -> None:
        """Execute an atomic store by one lane of those of each element after the other."""
        address = np.broadcast_to(np.asarray(self.eval.address(target, frame)), (frame.lanes,))
        order = np.argsort(address, kind="stable")
        same = address[order]
        first = np.maximum.accumulate(
            np.where(np.r_[True, same[1:] != same[:-1]], np.arange(order.size), 0)
        )
        turn = np.arange(order.size) - first
        for number in range(int(turn.max(initial=0)) + 1):
            self._store(node, frame.subset(np.sort(order[turn == number])))

    def _value_to_store(self, value: Expr, target: Load, frame: Frame) -> Value:
        """Return what is stored; a load of the element itself races only if the store does."""
        if self.races is None:
            return self.eval.value(value, frame)
        self.races.covered = target
        found = self.eval.value(value, frame)
        self.races.covered = None
        return found

    def _require_defined(self, value: Expr, what: str, frame: Frame) -> None:
        lanes = self.undefined.lanes(value, frame)
        if lanes is not None:
            raise self.faults.shuffled(what, frame, int(lanes[0]))

    def _check_alignment(self, node: kir.Stmt, frame: Frame) -> None:
        for wide in self.setting.wide.get(node, ()):
            address = np.asarray(self.eval.address(wide.place, frame))
            start = np.asarray(self.eval.pure(wide.lane, frame)) == 0
            offset = np.broadcast_to(address * wide.access.buffer.dtype.size, (frame.lanes,))
            bad = np.flatnonzero(start & (offset % wide.width != 0))
            if bad.size:
                lane = int(bad[0])
                index = self.eval.index(wide.access, frame, lane)
                found = int(offset[lane])
                raise self.faults.misaligned(wide.access, index, wide.width, found, frame, lane)

    def _fold(self, node: kir.Store, access: Load, frame: Frame) -> None:
        """Accumulate, lanes in order: what the serial loop would do."""
        fold = folded(node)
        assert fold is not None
        operation, operand = fold
        value = as_array(self.eval.value(operand, frame), node.storage.dtype)
        address = self.eval.address(access, frame)
        self.eval.require_defined(access, address, frame)
        for part in (operand, *node.index):
            self._require_defined(part, "what is stored", frame)
        self._watch_store(node, access, address, frame)
        places = np.broadcast_to(np.asarray(address), (frame.lanes,))
        operation.at(self.memory[node.storage].data, places, value)

    def _if(self, node: kir.If, frame: Frame) -> None:
        condition = self.eval.value(node.condition, frame)
        self._require_defined(node.condition, "the condition", frame)
        if not isinstance(condition, np.ndarray) or condition.size == 1:
            self.body(node.body if bool(condition) else node.orelse, frame)
            return
        taken = np.flatnonzero(condition)
        if taken.size in (0, condition.size):
            self.body(node.body if taken.size else node.orelse, frame)
            return
        self.body(node.body, frame.subset(taken))
        if node.orelse:
            self.body(node.orelse, frame.subset(np.flatnonzero(~condition)))

    def _allocate(self, buffer: Buffer, frame: Frame) -> None:
        """Make memory of a buffer for the lanes of `frame`; it holds nothing."""
        if self._place(buffer, frame):
            some = buffer.memory is Memory.SHARED and frame.lanes < self.launch.frame.lanes
            slots = np.unique(self.eval.pure(SLOT, frame)) if some else None
            self.memory[buffer].forget(slots)

    def _place(self, buffer: Buffer, frame: Frame) -> bool:
        """Say where the copies of a buffer lie; return whether their memory was used before."""
        shared = buffer.memory is Memory.SHARED
        copies = self.launch.blocks.size if shared else frame.lanes
        copy = self.eval.pure(SLOT, frame) if shared else _numbered(frame.lanes)
        found = self.memory.get(buffer)
        used = found is not None and found.copies == copies
        if found is None or not used:
            found = watched(buffer, self.setting.layouts[buffer], copies)
            self._add(found)
        frame.define(buffer, copy * found.layout.pitch)
        return used

    def _add(self, storage: WatchedStorage) -> None:
        """Add memory; let stores to buffers that share a space overwrite each other."""
        spaces = self.setting.spaces
        for other in self.memory.values():
            shares = spaces[other.buffer] is spaces[storage.buffer]
            if shares and other.buffer is not storage.buffer:
                other.aliases = [a for a in other.aliases if a.buffer is not storage.buffer]
                other.aliases.append(storage)
                storage.aliases.append(other)
        self.memory[storage.buffer] = storage

    # Loops

    def _loop(self, node: kir.Loop, frame: Frame) -> None:
        extent = self.setting.extents.get(node.var)
        if extent is None:
            extent = self._uniform_extent(node, frame)
        if node.parallel.is_thread:
            self._launch_loop(node, extent, frame)
            return
        folds, step = self._side_by_side(node, extent, frame)
        if step < 2:
            self._iterate(node, extent, frame)
            return
        outer, self.folding = self.folding, self.folding | folds
        for start in range(0, extent, step):
            self.body(node.body, frame.expanded(node.var, start, min(start + step, extent)))
        self.folding = outer

    def _iterate(self, node: kir.Loop, extent: int, frame: Frame) -> None:
        inner = frame.same_lanes()
        for i in range(extent):
            inner.restart(node.var, i)
            self.body(node.body, inner)

    def _launch_loop(self, node: kir.Loop, extent: int, frame: Frame) -> None:
        number = self.eval.pure(LaunchIndex(node.parallel), frame)
        inside: Frame | None = frame
        if isinstance(number, np.ndarray):
            taken = np.flatnonzero(number < extent)
            if taken.size == 0:
                inside = None
            elif 1 < number.size != taken.size:
                inside = frame.subset(taken)
        elif number >= extent:
            inside = None
        if inside is not None:
            inside.define(node.var, self.eval.pure(LaunchIndex(node.parallel), inside))
            self.body(node.body, inside)

    def _uniform_extent(self, node: kir.Loop, frame: Frame) -> int:
        extent = uniform(self.eval.value(node.var.extent, frame))
        if extent is None:
            reason = f"the extent of loop {node.var.name} differs between threads"
            raise InternalError(self.program.name, reason)
        return extent

    def _side_by_side(
        self, node: kir.Loop, extent: int, frame: Frame
    ) -> tuple[frozenset[kir.Store], int]:
        """Return (the stores that fold, how many iterations may run side by side)."""
        if extent < 2 or 2 * frame.lanes > LANES:
            return frozenset(), 1
        found = self.expansions.of(node)
        spread = frame.lanes * self._spread(found) if found else 0
        if found is None or spread == 0:
            return frozenset(), 1
        room = BYTES // (found.bytes * spread) if found.bytes else LANES
        return found.folds, min(extent, LANES // spread, max(room, 1))

    def _spread(self, found: Expansion) -> int:
        """Return how many lanes the nested loops make of one; 0 where one cannot be expanded."""
        loops = dict.fromkeys(found.nested)
        queue = list(loops)
        for loop in queue:  # grows while it is walked
            inner = self.expansions.of(loop)
            if inner is None:
                return 0
            queue.extend(n for n in inner.nested if n not in loops)
            loops.update(dict.fromkeys(inner.nested))
        return math.prod([self.setting.extents.get(loop.var, 0) for loop in loops])


def _unraveled(offset: int, layout: ElementLayout) -> list[int]:
    return [int(i) for i in np.unravel_index(offset, layout.shape)]


def _numbered(lanes: int) -> Array | int:
    return np.arange(lanes) if lanes > 1 else 0
