"""Run a launch one statement of one thread at a time: what it read, and what it made of that.

The machine runs all its lanes in step, loops one iteration after the other, and tells of each
statement once for each lane, in the order of threads. Steps are made when they are asked for: the
machine runs in a thread of its own, which waits in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, NamedTuple

import numpy as np

from loopnest import kir
from loopnest.lane_machine.abstract_machine import Machine
from loopnest.lane_machine.concrete_program import THREAD
from loopnest.lane_machine.fault_report import element_text
from loopnest.lane_machine.frame import Frame
from loopnest.lane_machine.native_math import Array, Value, as_array, convert
from loopnest.lane_machine.random_order import OrderedMachine
from loopnest.scalar.enums import LAUNCH_DIMENSIONS
from loopnest.scalar.expr import Expr, LaunchIndex, Load, Local, walk

Place = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class ThreadStep:
    """One statement, executed by one thread; its text says all of it.

    Args:
        line, text: of the statement in the nest that the interpreter runs, where tiles are their
            bodies.
        block, thread: who executes it, along x, y and z.
        loops: the value of each loop around it.
        reads: what it loads, and the temporaries that it uses: name -> value.
        makes: what it stores or names: name -> value; of a test "condition".
        in_flight: whether a copy begins here that stores later.
    """

    line: int
    text: str
    block: Place
    thread: Place
    loops: Mapping[str, int]
    reads: Mapping[str, Any]
    makes: Mapping[str, Any]
    in_flight: bool = False

    def __str__(self) -> str:
        loops = [f"{name}={value}" for name, value in self.loops.items()]
        where = ", ".join([f"block {self.block}", f"thread {self.thread}", *loops])
        told = ", ".join([f"{name} is {value}" for name, value in self.reads.items()])
        made = ", ".join([f"{name} = {value}" for name, value in self.makes.items()])
        told += f"{' ' if told else ''}-> {made}" if made else ""
        told += ", when the copy lands" if self.in_flight else ""
        lines = [f"line {self.line}: {self.text}", where, *([told] if told else [])]
        return "\n    ".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as what JSON has."""
        reads, makes = [
            {name: getattr(value, "item", lambda v=value: v)() for name, value in part.items()}
            for part in (self.reads, self.makes)
        ]
        return {
            "line": self.line, "text": self.text, "block": self.block, "thread": self.thread,
            "loops": dict(self.loops), "reads": reads, "makes": makes, "in_flight": self.in_flight,
        }  # fmt: skip


Teller = Callable[["ThreadStep | None"], None]
"""Takes a step; or None: a statement that nobody wants to see has run."""


class _Read(NamedTuple):
    access: Load
    frame: Frame
    values: Array


class SteppedMachine(Machine):
    """A machine that tells of each statement and each lane, loops not expanded."""

    _tell: Teller
    _only: tuple[int | None, int | None]
    _reads: list[_Read]

    def watch(self, tell: Teller, only: tuple[int | None, int | None]) -> None:
        """Tell of each step of a block and a thread, by their numbers; None stands for all."""
        self._tell, self._only, self._reads = tell, only, []
        self.eval.watcher = self

    def read(self, access: Load, address: Value, frame: Frame) -> None:
        """Remember what a statement loads; it is told of each load."""
        if self.races is not None:
            self.races.read(access, address, frame)
        self._reads.append(_Read(access, frame, self.eval.storage(access.buffer).load(address)))

    def _side_by_side(
        self, node: kir.Loop, extent: int, frame: Frame
    ) -> tuple[frozenset[kir.Store], int]:
        return frozenset(), 1

    # Statements

    def visit(self, node: kir.Stmt, *given: Any) -> Any:
        self._reads = []
        return super().visit(node, *given)

    def visit_store(self, node: kir.Store, frame: Frame) -> None:
        if node.atomic and frame.lanes > 1:  # one after the other: each finds what others left
            for lane in range(frame.lanes):
                self.visit_store(node, frame.subset(np.array([lane])))
            return
        self._reads = []
        target = Load(node.storage, node.index, node.flat)
        storage = self.memory[node.storage]
        if node.atomic:
            address = self.eval.address(target, frame)
            self._reads = [_Read(target, frame, storage.load(address))]
        super().visit_store(node, frame)
        if node.atomic:
            made: Value = storage.load(address)
        else:
            value = self.eval.value(node.value, frame)
            made = as_array(
                convert(value, node.value.dtype, node.storage.dtype), node.storage.dtype
            )
        self._record(node, frame, {target: made}, self.flying.issuing)

    def visit_let(self, node: kir.Let, frame: Frame) -> None:
        super().visit_let(node, frame)
        self._record(node, frame, {node.var: self.eval.pure(node.var, frame)})

    def visit_shuffle(self, node: kir.Shuffle, frame: Frame) -> None:
        super().visit_shuffle(node, frame)
        self._record(node, frame, {node.var: self.eval.pure(node.var, frame)})

    def visit_arrive(self, node: kir.Arrive, frame: Frame) -> None:
        super().visit_arrive(node, frame)
        self._record(node, frame, {node.var: self.eval.pure(node.var, frame)})

    def visit_collective(self, node: kir.Collective, frame: Frame) -> None:
        """Tell of its statements; where it has one thread that is none, of what it declares."""
        super().visit_collective(node, frame)
        if self.setting.is_empty:
            self._record(node, frame, {v: self.eval.pure(v, frame) for v in node.results})

    def visit_barrier(self, node: kir.Barrier, frame: Frame) -> None:
        super().visit_barrier(node, frame)
        self._record(node, frame, {})

    def visit_commit(self, node: kir.Commit, frame: Frame) -> None:
        super().visit_commit(node, frame)
        self._record(node, frame, {})

    def visit_wait(self, node: kir.Wait, frame: Frame) -> None:
        super().visit_wait(node, frame)
        self._record(node, frame, {})

    def visit_if(self, node: kir.If, frame: Frame) -> None:
        value = self.eval.value(node.condition, frame)
        self._record(node, frame, {"condition": value})
        super().visit_if(node, frame)

    # Steps

    def _record(
        self,
        node: kir.Stmt,
        frame: Frame,
        made: Mapping[Expr | str, Value],
        in_flight: bool = False,
    ) -> None:
        """Tell of a statement that has run on the lanes of a frame."""
        reads, self._reads = self._reads, []
        self._tell(None)
        self.faults.statement = node
        number = np.broadcast_to(np.asarray(self.eval.pure(THREAD, frame)), (frame.lanes,))
        lanes = np.arange(frame.lanes)
        for found, own in zip(divmod(number, self.setting.threads), self._only, strict=True):
            lanes = lanes if own is None else lanes[found[lanes] == own]
        used = [(read, _origins(read.frame, frame)) for read in reads]
        for lane in map(int, lanes):
            told = dict[str, Any]()
            for read, origins in used:
                for inner in map(int, np.flatnonzero(origins == lane)):
                    told[self._name(read.access, read.frame, inner)] = _at(read.values, inner)
            for name in _temporaries(node):
                told[name.name] = _at(self.eval.pure(name, frame), lane)
            makes = {self._name(w, frame, lane): _at(value, lane) for w, value in made.items()}
            x, y, z, *thread = [frame.at_lane(LaunchIndex(d), lane) or 0 for d in LAUNCH_DIMENSIONS]
            loops = dict(self.faults.loops(frame, lane))
            place = (x, y, z), (thread[0], thread[1], thread[2])
            step = ThreadStep(*self.faults.line_of(node), *place, loops, told, makes, in_flight)
            self._tell(step)

    def _name(self, what: Expr | str, frame: Frame, lane: int) -> str:
        if isinstance(what, Load):
            return element_text(what, self.eval.index(what, frame, lane))
        return what.name if isinstance(what, Local) else str(what)


class SteppedOrder(OrderedMachine, SteppedMachine):
    """The same of a machine that runs threads in a random order."""


def _at(value: Value, lane: int) -> Any:
    """Return a value in one lane."""
    return value[lane if value.size > 1 else 0] if isinstance(value, np.ndarray) else value


def _origins(inner: Frame, outer: Frame) -> Array:
    """Return for each lane of a frame its lane in one that it is derived from; -1 in another."""
    lanes = np.arange(inner.lanes)
    frame: Frame | None = inner
    while frame is not None and frame is not outer:
        if frame.origin is not None:
            lanes = frame.origin[lanes]
        frame = frame.parent
    return lanes if frame is outer else np.full(inner.lanes, -1)


def _temporaries(node: kir.Stmt) -> list[Local]:
    """Return the temporaries that a statement uses."""
    roots: list[Expr] = []
    for name in node.evaluates:
        part = getattr(node, name)
        roots += part if isinstance(part, tuple) else (part,)
    return [part for part in walk(*roots) if isinstance(part, Local)]


class Steps(Iterator[ThreadStep]):
    """The steps of one run, each made when it is asked for; the run ends with its last step.

    Args:
        run: runs it and tells of each step.
        outputs: name -> array; what is in it is what the steps so far have stored.
    """

    def __init__(self, run: Callable[[Teller], None], outputs: Mapping[str, Array]) -> None:
        self.outputs = outputs
        self._steps = _in_turns(run)

    def __next__(self) -> ThreadStep:
        return next(self._steps)


class _Stopped(Exception):
    """Nobody asks for more steps."""


def _in_turns(run: Callable[[Teller], None]) -> Iterator[ThreadStep]:
    """Yield what `run` tells; it waits in a thread of its own until more is asked for."""
    asked: SimpleQueue[None] = SimpleQueue()
    told: SimpleQueue[ThreadStep | BaseException | None] = SimpleQueue()
    stopped = Event()

    def tell(step: ThreadStep | None) -> None:
        if step is not None:
            told.put(step)
            asked.get()
        if stopped.is_set():
            raise _Stopped

    def work() -> None:
        try:
            run(tell)
        except _Stopped:
            return
        except BaseException as error:
            told.put(error)
        else:
            told.put(None)

    Thread(target=work, name="loopnest steps", daemon=True).start()
    try:
        while (found := told.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            yield found
            asked.put(None)
    finally:
        stopped.set()
        asked.put(None)
