"""Statements on frames of lanes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import assert_never

import numpy as np

from loopnest import kir
from loopnest.buffers import Buffer
from loopnest.enums import Memory
from loopnest.errors import InternalError, NotSupported
from loopnest.expr import LaunchIndex, Load
from loopnest.interpreter.dependence import Expansion, Expansions, folded
from loopnest.interpreter.evaluator import Evaluator
from loopnest.interpreter.faults import FaultReport
from loopnest.interpreter.frame import Frame, uniform
from loopnest.interpreter.memory import Storage, watched
from loopnest.interpreter.scalar import Array, as_array, convert
from loopnest.interpreter.setting import Launch

LANES = 1 << 14
"""How many lanes run side by side where a launch or a loop has more."""

BYTES = 1 << 26
"""How much local memory the lanes may take together, where one alone takes less."""


class Machine:
    """One run of a program on arrays.

    Args:
        expansions: how loops may be expanded, and with it the program at its sizes.
        arrays: name of parameter -> C-contiguous array; workspace may be left out.
        scalars: the value of every scalar parameter.
    """

    def __init__(
        self, expansions: Expansions, arrays: Mapping[str, Array], scalars: Mapping[str, object]
    ) -> None:
        self.expansions = expansions
        self.setting = setting = expansions.setting
        self.program = setting.program
        self.memory: dict[Buffer, Storage] = {}
        self.faults = FaultReport(self.program)
        self.eval = Evaluator(self.program.name, self.memory, self.faults, setting.dependences)
        self.constants = setting.constants(scalars)
        self.folding: frozenset[kir.Store] = frozenset()
        self._bind(arrays)

    def _bind(self, arrays: Mapping[str, Array]) -> None:
        for param in self.program.params:
            buffer = param.buffer
            if buffer is None:
                continue
            layout = self.setting.layouts[buffer]
            if param.name not in arrays:
                self.memory[buffer] = watched(buffer, *layout, 1)
                continue
            data = arrays[param.name].reshape(-1)
            valid = None if param.kind == "input" else np.zeros(data.size, np.bool_)
            self.memory[buffer] = Storage(buffer, data, valid, *layout)

    def run(self, thread_order: int | None) -> None:
        """Run every thread; see `loopnest.interpreter.interpret`."""
        if thread_order is None:
            launches = self.setting.launches(self.constants, LANES, BYTES)
        else:
            self._refuse_barriers()
            launches = self.setting.single_launches(self.constants, thread_order)
        with np.errstate(all="ignore"):
            for self.launch in launches:
                self.body(self.program.body, self.launch.frame)
        if not self.setting.is_empty:
            self._check_outputs()

    launch: Launch

    def _refuse_barriers(self) -> None:
        if any(isinstance(n, (kir.Barrier, kir.Collective)) for n in self.setting.nodes):
            raise NotSupported(
                f"interpret {self.program.name} with thread_order",
                "a random order of threads between barriers does not exist yet",
                "leave thread_order out: all threads of a block then run in step",
            )

    def _check_outputs(self) -> None:
        for output in self.program.outputs:
            storage = self.memory[output.buffer]
            if storage.valid is not None and not storage.valid.all():
                shape = self.setting.layouts[output.buffer][0]
                place = np.unravel_index(int(np.argmin(storage.valid)), shape)
                raise self.faults.unwritten(output.buffer, [int(i) for i in place])

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
                    frame.define(node.var, self.eval.value(node.value, frame))
                case kir.Allocate():
                    self._allocate(node.storage, frame)
                case kir.Barrier():
                    self._barrier(node, frame)
                case kir.Collective():
                    self.body(node.body, frame)
                case kir.Shuffle() | kir.Arrive():
                    reason = "values that cross threads do not exist yet"
                    raise NotSupported(f"interpret {self.program.name}", reason)
                case _:
                    assert_never(node)

    def _store(self, node: kir.Store, frame: Frame) -> None:
        if node in self.folding:
            self._fold(node, frame)
            return
        dtype = node.storage.dtype
        value = self.eval.value(node.value, frame)
        address = self.eval.address(Load(node.storage, node.index, node.flat), frame)
        rounded = as_array(convert(value, node.value.dtype, dtype), dtype)
        self.memory[node.storage].store(address, rounded)

    def _fold(self, node: kir.Store, frame: Frame) -> None:
        """Accumulate, lanes in order: what the serial loop would do."""
        fold = folded(node)
        assert fold is not None
        operation, operand = fold
        access = Load(node.storage, node.index, node.flat)
        value = as_array(self.eval.value(operand, frame), node.storage.dtype)
        address = self.eval.address(access, frame)
        self.eval.require_defined(access, address, frame)
        places = np.broadcast_to(np.asarray(address), (frame.lanes,))
        operation.at(self.memory[node.storage].data, places, value)

    def _if(self, node: kir.If, frame: Frame) -> None:
        condition = self.eval.value(node.condition, frame)
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
        shared = buffer.memory is Memory.SHARED
        copies = self.launch.blocks if shared else frame.lanes
        found = self.memory.get(buffer)
        if found is not None and found.size and found.copies == copies:
            found.forget()
        else:
            found = watched(buffer, *self.setting.layouts[buffer], copies)
            self.memory[buffer] = found
            self._link(found)
        copy = self.launch.blocks_in(frame) if shared else _numbered(frame.lanes)
        frame.define(buffer, copy * found.size)

    def _link(self, storage: Storage) -> None:
        """Let stores to buffers that share their space overwrite each other."""
        root = storage.buffer.alias_of or storage.buffer.name
        for other in self.memory.values():
            if other is not storage and root in (other.buffer.alias_of, other.buffer.name):
                other.aliases = [a for a in other.aliases if a.buffer is not storage.buffer]
                other.aliases.append(storage)
                storage.aliases.append(other)

    def _barrier(self, node: kir.Barrier, frame: Frame) -> None:
        """Check that whole blocks reach it; lanes in step need no other order."""
        if node.scope == "warp" or self.setting.threads == 1:
            return
        blocks = np.asarray(self.launch.blocks_in(frame))
        count = np.bincount(np.broadcast_to(blocks, (frame.lanes,)))
        partial = np.flatnonzero((count != self.setting.threads) & (count != 0))
        if partial.size:
            lane = int(np.argmax(blocks == partial[0]))
            reached = f"{count[partial[0]]} of the {self.setting.threads} threads"
            raise self.faults.fault(f"{reached} of a block reach this barrier", frame, lane)

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
            inner = frame.same_lanes()
            for i in range(extent):
                inner.restart(node.var, i)
                self.body(node.body, inner)
            return
        outer, self.folding = self.folding, self.folding | folds
        for start in range(0, extent, step):
            self.body(node.body, frame.expanded(node.var, start, min(start + step, extent)))
        self.folding = outer

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


def _numbered(lanes: int) -> Array | int:
    return np.arange(lanes) if lanes > 1 else 0
