"""Statements on frames of lanes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loopnest import kir
from loopnest.base.errors import InternalError
from loopnest.lane_machine.concrete_program import (
    INSIDE,
    SLOT,
    THREAD,
    THREADS,
    ConcreteProgram,
    LaunchedBlocks,
)
from loopnest.lane_machine.evaluator import Evaluator
from loopnest.lane_machine.fault_report import FaultReport
from loopnest.lane_machine.frame import Frame, uniform
from loopnest.lane_machine.loop_dependence import Expansion, Expansions, folded
from loopnest.lane_machine.native_math import Array, Value, as_array, convert
from loopnest.lane_machine.race_detector import RaceDetector
from loopnest.lane_machine.undefined_values import Undefined
from loopnest.lane_machine.watched_memory import ElementLayout, WatchedStorage, watched
from loopnest.scalar.enums import BLOCK_DIMENSIONS, WARP, Memory
from loopnest.scalar.expr import FALSE, Buffer, Expr, LaunchIndex, Load, Local
from loopnest.scalar.templates import instantiate

LANES = 1 << 14
"""How many lanes run side by side where a launch or a loop has more."""

BYTES = 1 << 26
"""How much local and shared memory the lanes may take together, where one block takes less."""


class Machine(kir.StatementVisitor):
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
        self.ending: Value = False
        """Of the iteration that runs, in which lanes it is the last one."""
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
            self.visit(node, frame)

    def visit_barrier(self, node: kir.Barrier, frame: Frame) -> None:
        """Let threads wait for each other."""
        self.together.barrier(node, frame)

    def visit_shuffle(self, node: kir.Shuffle, frame: Frame) -> None:
        """Give threads what others of their warps have."""
        self.together.shuffle(node, frame)

    def visit_arrive(self, node: kir.Arrive, frame: Frame) -> None:
        """Count blocks."""
        self.together.arrive(node, self.memory[node.counter].data, frame)

    def visit_issue(self, node: kir.Issue, frame: Frame) -> None:
        """Begin copies."""
        self.flying.issuing = True
        self.body(node.body, frame)
        self.flying.issuing = False

    def visit_commit(self, _: kir.Commit, frame: Frame) -> None:
        """Close a group of copies."""
        self.flying.commit(frame)

    def visit_wait(self, node: kir.Wait, frame: Frame) -> None:
        """Wait for groups of copies."""
        self.flying.wait(node, frame)

    def visit_until(self, node: kir.Until, frame: Frame) -> None:
        """Take note of the lanes that end their loop."""
        self.ending = self.eval.value(node.condition, frame)
        self.together.require_defined(node.condition, "the condition", frame)

    def going_on(self, frame: Frame) -> Frame | None:
        """Return the lanes whose loop goes on behind an iteration; None where none does."""
        ending, self.ending = self.ending, False
        if not isinstance(ending, np.ndarray) or ending.size == 1:
            return None if bool(ending) else frame
        left = np.flatnonzero(~ending)
        if left.size in (0, ending.size):
            return frame if left.size else None
        return frame.subset(left)

    def visit_let(self, node: kir.Let, frame: Frame) -> None:
        value = self.eval.value(node.value, frame)
        self._check_alignment(node, frame)
        self.undefined.define(node.var, node.value, frame)
        frame.define(node.var, value)

    def visit_collective(self, node: kir.Collective, frame: Frame) -> None:
        """Run the body of a collective; in a launch without threads, do what it declares."""
        if not self.setting.is_empty:
            self.body(node.body, frame)
            return
        combine_declared(node, self.setting, self.eval, frame)
        for var in node.results:
            self.undefined.define(var, FALSE, frame)

    def visit_store(self, node: kir.Store, frame: Frame) -> None:
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
            self.together.require_defined(part, "what is stored", frame)
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
            self.visit_store(node, frame.subset(np.sort(order[turn == number])))

    def _value_to_store(self, value: Expr, target: Load, frame: Frame) -> Value:
        """Return what is stored; a load of the element itself races only if the store does."""
        if self.races is None:
            return self.eval.value(value, frame)
        self.races.covered = target
        found = self.eval.value(value, frame)
        self.races.covered = None
        return found

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
            self.together.require_defined(part, "what is stored", frame)
        self._watch_store(node, access, address, frame)
        places = np.broadcast_to(np.asarray(address), (frame.lanes,))
        operation.at(self.memory[node.storage].data, places, value)

    def visit_if(self, node: kir.If, frame: Frame) -> None:
        condition = self.eval.value(node.condition, frame)
        self.together.require_defined(node.condition, "the condition", frame)
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

    def visit_allocate(self, node: kir.Allocate, frame: Frame) -> None:
        """Make memory of a buffer for the lanes of `frame`; it holds nothing."""
        buffer = node.storage
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

    def visit_loop(self, node: kir.Loop, frame: Frame) -> None:
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
        inner: Frame | None = frame.same_lanes()
        for i in range(extent):
            if inner is None:
                break
            inner.restart(node.var, i)
            self.body(node.body, inner)
            inner = self.going_on(inner)

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


@dataclass(eq=False, slots=True)
class IssuedCopy:
    """The copies that one store of an Issue began, one a lane.

    Args:
        node: the store.
        storage, address: where they land.
        value: what they bring.
        frame: the lanes, as they were then.
        thread: of each lane.
        group: the number of its group among those of its thread.
        flying: which have not landed.
    """

    node: kir.Store
    storage: WatchedStorage
    address: Array
    value: Array
    frame: Frame
    thread: Array
    group: Array
    flying: Array


class FlyingCopies:
    """The copies of one run that have not landed.

    An issued copy makes its target undefined; its Wait lands it, as a store of the thread that
    waits. A machine that runs threads in a random order lands it at any time in between.

    Args:
        threads: how many there are in the launch.
        evaluator, faults, races: those of the machine.
        random: of the times at which copies land; None to land them at their Wait.
    """

    def __init__(
        self,
        threads: int,
        evaluator: Evaluator,
        faults: FaultReport,
        races: RaceDetector | None,
        random: np.random.Generator | None = None,
    ) -> None:
        self.eval, self.faults, self.races, self.random = evaluator, faults, races, random
        self.closed = np.zeros(threads, np.int64)
        self.copies: list[IssuedCopy] = []
        self.issuing = False
        """Whether the statements that run are those of an Issue."""

    def begin(
        self, node: kir.Store, storage: WatchedStorage, address: Value, value: Array, frame: Frame
    ) -> None:
        """Begin copies: nobody knows what their targets hold."""
        lanes = (frame.lanes,)
        places = np.array(np.broadcast_to(np.asarray(address), lanes))
        thread = np.array(np.broadcast_to(np.asarray(self.eval.pure(THREAD, frame)), lanes))
        storage.begin(places)
        values = np.array(np.broadcast_to(value, lanes))
        copy = IssuedCopy(
            node, storage, places, values, frame.frozen(), thread, self.closed[thread],
            np.ones(lanes, np.bool_),
        )  # fmt: skip
        self.copies.append(copy)
        self._land_some()

    def commit(self, frame: Frame) -> None:
        """Close the groups of the threads of a frame."""
        self.closed[np.unique(np.asarray(self.eval.pure(THREAD, frame)))] += 1
        self._land_some()

    def wait(self, node: kir.Wait, frame: Frame) -> None:
        """Land what the threads of a frame wait for.

        Raises:
            KernelFault: somebody stored to a target, or to a source, in the meantime.
        """
        here = np.zeros(self.closed.size, np.bool_)
        here[np.asarray(self.eval.pure(THREAD, frame))] = True
        for copy in self.copies:
            due = copy.flying & here[copy.thread]
            self._land(copy, due & (copy.group < self.closed[copy.thread] - node.pending))
        self.faults.statement = node
        self.copies = [copy for copy in self.copies if copy.flying.any()]
        self._land_some()

    def _land_some(self) -> None:
        """Land copies at random, if that is asked for: each may land as soon as it is issued."""
        if self.random is None:
            return
        for copy in self.copies:
            self._land(copy, copy.flying & (self.random.random(copy.flying.size) < 0.25))

    def _land(self, copy: IssuedCopy, chosen: Array) -> None:
        lanes = np.flatnonzero(chosen)
        if not lanes.size:
            return
        node, frame = copy.node, copy.frame.subset(lanes)
        address, value = copy.address[lanes], copy.value[lanes]
        self.faults.statement = node
        target = Load(node.storage, node.index, node.flat)
        stored = np.flatnonzero(~copy.storage.is_undefined(address))
        if stored.size:
            lane = int(stored[0])
            index = self.eval.index(target, frame, lane)
            raise self.faults.touched(target, index, "stored to", frame, lane)
        if self.races is not None:
            self.races.write(target, address, frame)
        self._check_source(node, value, frame)
        copy.storage.store(address, value)
        copy.flying[lanes] = False

    def _check_source(self, node: kir.Store, value: Array, frame: Frame) -> None:
        """Fault where a source holds something else than when the copy was issued."""
        source = node.value
        if not isinstance(source, Load):
            return
        now = np.broadcast_to(self.eval.value(source, frame), value.shape)
        other = np.flatnonzero(now.view(np.uint8).reshape(value.size, -1)
                               != value.view(np.uint8).reshape(value.size, -1))  # fmt: skip
        if other.size:
            lane = int(other[0]) // value.itemsize
            index = self.eval.index(source, frame, lane)
            raise self.faults.touched(source, index, "changed", frame, lane)


class SyncStatements:
    """What threads do together: barriers, shuffles and arrivals.

    Args:
        setting: the program at its sizes.
        evaluator, faults, undefined: those of the machine.
        races: is told what is ordered; None where races are not looked for.
        order: returns the order in which blocks arrive.
    """

    def __init__(
        self,
        setting: ConcreteProgram,
        evaluator: Evaluator,
        faults: FaultReport,
        undefined: Undefined,
        races: RaceDetector | None,
        order: Callable[[Array], Array],
    ) -> None:
        self.setting, self.eval, self.faults = setting, evaluator, faults
        self.undefined, self.races, self.order = undefined, races, order

    launch: LaunchedBlocks

    def _places(self, frame: Frame) -> tuple[Array, Array]:
        """Return the place of each lane's block, and its thread's number in the block."""
        slots = np.broadcast_to(np.asarray(self.eval.pure(SLOT, frame)), (frame.lanes,))
        return slots, np.broadcast_to(np.asarray(self.eval.pure(INSIDE, frame)), (frame.lanes,))

    def _require_whole(self, scope: str, what: str, frame: Frame) -> None:
        """Fault where some, but not all, threads of a warp, a block or the grid are in `frame`."""
        every = self.launch.frame
        if frame.lanes == every.lanes:
            return
        groups = self.groups(scope, every)
        here = self.groups(scope, frame)
        expected, found = np.bincount(groups), np.bincount(here, minlength=int(groups.max()) + 1)
        bad = np.flatnonzero((found != 0) & (found != expected))
        if bad.size:
            members = np.asarray(self.eval.pure(THREAD, every))[groups == bad[0]]
            missing = np.setdiff1d(members, self.eval.pure(THREAD, frame))
            lane = int(np.argmax(here == bad[0]))
            raise self.faults.missing(what, [int(t) for t in missing], frame, lane)

    def groups(self, scope: str, frame: Frame) -> Array:
        """Return the number of the warp, block or grid of each lane, among those that run."""
        slots, threads = self._places(frame)
        if scope == "warp":
            warps = -(-self.setting.threads // WARP)
            groups: Array = slots * warps + threads // WARP
            return groups
        return slots if scope == "block" else np.zeros_like(slots)

    def _tick(self, scope: str, frame: Frame) -> None:
        if self.races is not None:
            slots, threads = self._places(frame)
            self.races.barrier(scope, slots, threads // WARP)

    def barrier(self, node: kir.Barrier, frame: Frame) -> None:
        """Order the accesses of the threads in scope.

        Raises:
            KernelFault: some of them are not there.
        """
        self._require_whole(node.scope, "barrier", frame)
        self._tick(node.scope, frame)

    # Shuffles

    def shuffle(self, node: kir.Shuffle, frame: Frame) -> None:
        """Give each lane the value of another one of its warp.

        Raises:
            KernelFault: threads of a warp are not there, or their offsets differ.
        """
        self._require_whole("warp", "shuffle", frame)
        self.require_defined(node.offset, "the offset", frame)
        source, exists = self._sources(node, frame)
        value = self.eval.operand(node.value, frame)
        mask = self.undefined.mask(node.value, frame)
        if value.size > 1:
            value = value.take(source)
        if isinstance(mask, np.ndarray) and mask.size > 1:
            mask = mask.take(source)
        if not exists.all():
            value = np.where(exists, value, self.eval.garbage(node.value.dtype).astype(value.dtype))
            mask = np.logical_or(mask, ~exists)
        frame.define(node.var, value)
        if node.var in self.undefined.marks:
            frame.define(self.undefined.marks[node.var], mask)

    def _sources(self, node: kir.Shuffle, frame: Frame) -> tuple[Array, Array]:
        """Return the lane that each lane takes its value from, and whether there is one."""
        threads = self._places(frame)[1]
        mine = threads % WARP
        offset = np.broadcast_to(np.asarray(self.eval.value(node.offset, frame)), (frame.lanes,))
        self._require_uniform(offset, mine, "the offset of a shuffle differs in a warp", frame)
        other = {
            "xor": mine ^ offset,
            "down": mine + offset,
            "up": mine - offset,
            "lane": offset,
        }[node.mode]
        exists = (other >= 0) & (other < WARP)
        exists &= threads - mine + other < self.eval.pure(THREADS, frame)
        return np.where(exists, np.arange(frame.lanes) - mine + other, 0), exists

    def _require_uniform(self, values: Array, steps: Array, reason: str, frame: Frame) -> None:
        """Fault where a value differs from that of the lane `steps` before."""
        bad = np.flatnonzero(values != values[np.arange(frame.lanes) - steps])
        if bad.size:
            raise self.faults.fault(reason, frame, int(bad[0]))

    def require_defined(self, value: Expr, what: str, frame: Frame) -> None:
        """Fault where a value was shuffled from a thread that does not exist."""
        lanes = self.undefined.lanes(value, frame)
        if lanes is not None:
            raise self.faults.shuffled(what, frame, int(lanes[0]))

    # Arrivals

    def arrive(self, node: kir.Arrive, counter: Array, frame: Frame) -> None:
        """Count blocks; the one that makes the count full gets True.

        Raises:
            KernelFault: threads of a block are not there or do not agree, or more blocks arrive
                than the count says.
        """
        self._require_whole("block", "arrival", frame)
        for value in (*node.index, node.count):
            self.require_defined(value, "the counter", frame)
        self._tick("block", frame)
        slots, threads = self._places(frame)
        address = self.eval.address(Load(node.counter, node.index), frame)
        counts = self.eval.value(node.count, frame)
        at = np.broadcast_to(np.asarray(address), (frame.lanes,))
        of = np.broadcast_to(np.asarray(counts), (frame.lanes,))
        for values in (at, of):
            self._require_uniform(values, threads, "the counter differs in a block", frame)
        last = np.zeros(self.launch.blocks.size, np.bool_)
        for lane in self.order(np.flatnonzero(threads == 0)):
            last[slots[lane]] = self._count(int(lane), int(slots[lane]), at, of, counter, frame)
        flags: Value = last[slots]
        frame.define(node.var, flags)

    def _count(
        self, lane: int, slot: int, at: Array, of: Array, counter: Array, frame: Frame
    ) -> bool:
        """Let one block arrive; return whether it is the last."""
        place = int(at[lane])
        counter[place] += 1
        if of[lane] == 0:  # no block would arrive: the one that stands for them is the last
            return int(counter[place]) == 1
        if counter[place] > of[lane]:
            reason = f"more than {of[lane]} blocks arrive at this counter"
            raise self.faults.fault(reason, frame, lane)
        node = self.faults.statement
        assert isinstance(node, kir.Arrive)
        key = (node.counter, place)
        if self.races is not None:
            self.races.horizons.arrive(slot, key)
        if counter[place] < of[lane]:
            return False
        counter[place] = 0
        if self.races is not None:
            self.races.horizons.see_arrivals(slot, key)
        return True


# Collectives by their declaration


def combine_declared(
    node: kir.Collective, setting: ConcreteProgram, evaluator: Evaluator, frame: Frame
) -> None:
    """Define the results of `node`: in each thread the combination of its group's arguments.

    A launch with an extent of 0 runs nothing. One thread then stands for it, so that what follows
    the loops of the launch still happens (a sum over no element is finished and stored). The bodies
    of collectives count on the extents of the launch; their declarations do not.
    """
    lanes_of, group_of = _groups(node, setting, evaluator, frame)
    if node.scan:
        _scan_declared(node, lanes_of, evaluator, frame)
        return
    for some, results in zip(node.by_value(node.args), node.by_value(node.results), strict=True):
        values = _combined(node, some, lanes_of, evaluator, frame)
        for result, value in zip(results, values, strict=True):
            spread = np.broadcast_to(np.asarray(value), (len(lanes_of),))
            frame.define(result, spread[group_of])


def _scan_declared(
    node: kir.Collective, lanes_of: Array, evaluator: Evaluator, frame: Frame
) -> None:
    """Define the results of a scan: what the threads of a group combine to so far, and at last."""
    size = len(node.identity)
    neutral = [evaluator.value(value, frame) for value in node.identity]
    found = [np.empty(frame.lanes, np.asarray(value).dtype) for value in neutral]
    for turn in range(lanes_of.shape[1]):
        until = turn + (node.scan == "inclusive")
        some = lanes_of[:, :until]
        values = _combined(node, node.args, some, evaluator, frame) if until else neutral
        for whole, value in zip(found, values, strict=True):
            whole[lanes_of[:, turn]] = value
    for result, whole in zip(node.results, found, strict=False):
        frame.define(result, whole)
    if len(node.results) > size:
        group = np.empty(frame.lanes, np.int64)
        group[lanes_of] = np.arange(len(lanes_of))[:, None]
        values = _combined(node, node.args, lanes_of, evaluator, frame)
        for result, value in zip(node.results[size:], values, strict=True):
            frame.define(result, np.broadcast_to(np.asarray(value), (len(lanes_of),))[group])


def _combined(
    node: kir.Collective, given: Sequence[Expr], lanes_of: Array, evaluator: Evaluator, frame: Frame
) -> list[Value]:
    """Return the components of one value, combined in each group of lanes."""
    args = [np.broadcast_to(np.asarray(evaluator.value(a, frame)), (frame.lanes,)) for a in given]
    values: list[Value] = [arg[lanes_of[:, 0]] for arg in args]
    mine = tuple([Local(f"mine{n}", a.dtype) for n, a in enumerate(given)])
    theirs = tuple([Local(f"theirs{n}", a.dtype) for n, a in enumerate(given)])
    both = instantiate(node.combine, mine, theirs)
    for turn in range(1, lanes_of.shape[1]):
        inner = Frame(len(lanes_of), None)
        for n, arg in enumerate(args):
            inner.define(mine[n], values[n])
            inner.define(theirs[n], arg[lanes_of[:, turn]])
        values = [evaluator.value(e, inner) for e in both]
    return values


def _groups(
    node: kir.Collective, setting: ConcreteProgram, evaluator: Evaluator, frame: Frame
) -> tuple[Array, Array]:
    """Return the lanes of each group in the order of their threads, and the group of each lane."""
    slots = np.broadcast_to(np.asarray(evaluator.pure(SLOT, frame)), (frame.lanes,))
    rest = np.broadcast_to(np.asarray(evaluator.pure(INSIDE, frame)), (frame.lanes,))
    key, places = slots, {}
    for dim, extent in zip(BLOCK_DIMENSIONS, setting.block, strict=True):
        places[dim] = rest % extent
        if dim not in node.dims:
            key = key * extent + places[dim]
        rest = rest // extent
    _, group_of = np.unique(key, return_inverse=True)
    group_of = group_of.reshape(-1)
    size = math.prod(
        e for d, e in zip(BLOCK_DIMENSIONS, setting.block, strict=True) if d in node.dims
    )
    turns = [places[dim] for dim in node.dims]
    return np.lexsort((*turns, group_of)).reshape(-1, size), group_of
