"""Statements that several threads execute together: barriers, shuffles and arrivals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from loopnest import kir
from loopnest.backends.interpret.concrete_program import (
    SLOT,
    THREAD,
    ConcreteProgram,
    LaunchedBlocks,
)
from loopnest.backends.interpret.evaluator import Evaluator
from loopnest.backends.interpret.fault_report import FaultReport
from loopnest.backends.interpret.frame import Frame
from loopnest.backends.interpret.native_math import Array, Value, as_array
from loopnest.backends.interpret.race_detector import RaceDetector
from loopnest.backends.interpret.undefined_values import Undefined, garbage
from loopnest.scalar.enums import WARP
from loopnest.scalar.expr import Expr, Load


class SyncStatements:
    """What threads do together.

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
        threads = np.asarray(self.eval.pure(THREAD, frame)) % self.setting.threads
        return slots, np.broadcast_to(threads, (frame.lanes,))

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
        self._require_defined(node.offset, "the offset", frame)
        source, exists = self._sources(node, frame)
        value = as_array(self.eval.value(node.value, frame), node.value.dtype)
        mask = self.undefined.mask(node.value, frame)
        if value.size > 1:
            value = value.take(source)
        if isinstance(mask, np.ndarray) and mask.size > 1:
            mask = mask.take(source)
        if not exists.all():
            value = np.where(exists, value, garbage(node.value.dtype).astype(value.dtype))
            mask = np.logical_or(mask, ~exists)
        frame.define(node.var, value)
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
        exists = (other >= 0) & (other < WARP) & (threads - mine + other < self.setting.threads)
        return np.where(exists, np.arange(frame.lanes) - mine + other, 0), exists

    def _require_uniform(self, values: Array, steps: Array, reason: str, frame: Frame) -> None:
        """Fault where a value differs from that of the lane `steps` before."""
        bad = np.flatnonzero(values != values[np.arange(frame.lanes) - steps])
        if bad.size:
            raise self.faults.fault(reason, frame, int(bad[0]))

    def _require_defined(self, value: Expr, what: str, frame: Frame) -> None:
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
            self._require_defined(value, "the counter", frame)
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
