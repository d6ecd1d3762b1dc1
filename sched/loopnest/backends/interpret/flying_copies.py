"""Copies in flight: what was issued, by which thread, in which of its groups, until it lands.

An issued copy makes its target undefined; its Wait lands it, as a store of the thread that waits. A
machine that runs threads in a random order lands it at any time in between.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loopnest import kir
from loopnest.backends.interpret.concrete_program import THREAD
from loopnest.backends.interpret.evaluator import Evaluator
from loopnest.backends.interpret.fault_report import FaultReport
from loopnest.backends.interpret.frame import Frame
from loopnest.backends.interpret.native_math import Array, Value
from loopnest.backends.interpret.race_detector import RaceDetector
from loopnest.backends.interpret.watched_memory import WatchedStorage
from loopnest.scalar.expr import Load


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
