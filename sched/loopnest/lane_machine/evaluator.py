"""Expressions on the lanes of a frame, every access checked."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from loopnest.base.errors import InternalError
from loopnest.lane_machine import native_math
from loopnest.lane_machine.frame import Dependences, Frame
from loopnest.lane_machine.native_math import Array, Value
from loopnest.lane_machine.watched_memory import WatchedStorage
from loopnest.scalar import dtypes
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import FALSE, TRUE, Buffer, Const, Expr, Load, Op


class Faults(Protocol):
    """Who tells of a broken rule; each method returns the error to raise."""

    def out_of_bounds(
        self, access: Load, index: list[int], axis: int, extent: int, frame: Frame, lane: int
    ) -> Exception: ...

    def undefined(self, access: Load, index: list[int], frame: Frame, lane: int) -> Exception: ...


class AccessWatcher(Protocol):
    """Who is told of each load, and may raise its error."""

    def read(self, access: Load, address: Value, frame: Frame) -> None: ...


class Evaluator:
    """Evaluate expressions on frames; caches what does not read memory in the frames.

    Args:
        kernel: its name, for errors.
        memory: the storage of every buffer that exists at the moment.
        faults: makes the errors.
        dependences: what the expressions of the kernel depend on.
        watcher: is told of each load.
    """

    def __init__(
        self,
        kernel: str,
        memory: dict[Buffer, WatchedStorage],
        faults: Faults,
        dependences: Dependences,
        watcher: AccessWatcher | None = None,
    ) -> None:
        self.kernel = kernel
        self.memory = memory
        self.faults = faults
        self.dependences = dependences
        self.watcher = watcher
        self._literals: dict[Const, Value] = {}

    def value(self, node: Expr, frame: Frame) -> Value:
        """Return the value of `node` on the lanes of `frame`."""
        if not self.dependences.reads(node):
            return self.pure(node, frame)
        found = frame.scratch.get(node)
        if found is None:
            found = self._load(node, frame) if isinstance(node, Load) else self._op(node, frame)
            frame.scratch[node] = found
        return found

    def operand(self, node: Expr, frame: Frame) -> Array:
        """Return what is given to another lane, as an array: of numbers, on this machine."""
        return native_math.as_array(self.value(node, frame), node.dtype)

    def garbage(self, dtype: dtypes.DType) -> Array:
        """Return an undefined value: NaN, or a pattern of bits that no kernel expects."""
        if dtype.is_float:
            return np.array([np.nan]).astype(dtype.numpy)
        if dtype.is_bool:
            return np.array([True])
        return np.frombuffer(b"\xa5" * dtype.size, dtype.numpy)

    def pure(self, node: Expr, frame: Frame) -> Value:
        """Return the value of a `node` that does not read memory; of a Load: its address."""
        found = frame.values.get(node)
        if found is not None:
            return found
        if isinstance(node, Const):
            return self._literal(node)
        if frame.parent is None or not self.dependences.free(node).isdisjoint(frame.defines):
            found = self._compute(node, frame)
        else:
            found = frame.taken_over(self.pure(node, frame.parent))
        frame.values[node] = found
        return found

    def _literal(self, node: Const) -> Value:
        found = self._literals.get(node)
        if found is None:
            found = self._literals[node] = native_math.literal(node.value, node.dtype)
        return found

    def _compute(self, node: Expr, frame: Frame) -> Value:
        if isinstance(node, Load):
            storage = self.storage(node.buffer)
            return self._offset(storage, [self.pure(a, frame) for a in node.args], node, frame)
        if not isinstance(node, Op):
            raise InternalError(self.kernel, f"'{node}' is used where it is not defined")
        args = [self.pure(a, frame) for a in node.args]
        return self._apply(node, args)

    def _apply(self, node: Op, args: list[Value]) -> Value:
        if node.op == "cast":
            return native_math.convert(args[0], node.args[0].dtype, node.dtype)
        if node.op == "where":
            return native_math.select(args[0], args[1], args[2], node.dtype)
        return native_math.apply(node.op, args, [a.dtype for a in node.args], node.dtype)

    def _op(self, node: Expr, frame: Frame) -> Value:
        assert isinstance(node, Op)
        reads = self.dependences.reads
        if node.op == "where" and (reads(node.args[1]) or reads(node.args[2])):
            condition, yes, no = node.args
            return self._either(condition, yes, no, node.dtype, frame)
        if node.op in ("and", "or") and reads(node.args[1]):
            left, right = node.args
            yes, no = (right, FALSE) if node.op == "and" else (TRUE, right)
            return self._either(left, yes, no, node.dtype, frame)
        return self._apply(node, [self.value(a, frame) for a in node.args])

    def _either(
        self, condition: Expr, yes: Expr, no: Expr, dtype: dtypes.DType, frame: Frame
    ) -> Value:
        """Return an operation of which each lane evaluates only the operand that it needs."""
        chosen = self.value(condition, frame)
        if not isinstance(chosen, np.ndarray) or chosen.size == 1:
            return self.value(yes if bool(chosen) else no, frame)
        taken = np.flatnonzero(chosen)
        if taken.size == chosen.size:
            return self.value(yes, frame)
        if taken.size == 0:
            return self.value(no, frame)
        result = np.empty(frame.lanes, np.int64 if dtype.kind == "x" else dtype.numpy)
        result[taken] = self.value(yes, frame.subset(taken))
        others = np.flatnonzero(~chosen)
        result[others] = self.value(no, frame.subset(others))
        return result

    # Memory

    def storage(self, buffer: Buffer) -> WatchedStorage:
        """Return the memory of a buffer that is in scope."""
        found = self.memory.get(buffer)
        if found is None:
            raise self._out_of_scope(buffer)
        return found

    def _out_of_scope(self, buffer: Buffer) -> InternalError:
        return InternalError(self.kernel, f"buffer {buffer.name} is used where it is not allocated")

    def _load(self, node: Load, frame: Frame) -> Value:
        address = self.address(node, frame)
        self.require_defined(node, address, frame)
        if self.watcher is not None:
            self.watcher.read(node, address, frame)
        return self.storage(node.buffer).load(address)

    def require_defined(self, access: Load, address: Value, frame: Frame) -> None:
        """Fault where an element at `address` was never stored."""
        bad = self.storage(access.buffer).undefined(address)
        if bad is not None:
            lane = int(bad[0])
            raise self.faults.undefined(access, self.index(access, frame, lane), frame, lane)

    def index(self, access: Load, frame: Frame, lane: int) -> list[int]:
        """Return the index of an access in one lane, for errors."""
        values = [np.atleast_1d(np.asarray(self.value(a, frame))) for a in access.args]
        return [int(v[lane if v.size > 1 else 0]) for v in values]

    def address(self, access: Load, frame: Frame) -> Value:
        """Return where `access` lies in its storage, one address a lane, checked."""
        storage = self.storage(access.buffer)
        extents = (storage.layout.size,) if access.flat else storage.layout.shape
        reads = self.dependences.reads
        if not any(reads(a) for a in access.args):
            for axis, (index, extent) in enumerate(zip(access.args, extents, strict=True)):
                low, high = self._range(index, frame)
                if low < 0 or high >= extent:
                    self._check(access, axis, self.pure(index, frame), extent, frame)
            return self.pure(access, frame)
        values = [self.value(a, frame) for a in access.args]
        for axis, (value, extent) in enumerate(zip(values, extents, strict=True)):
            self._check(access, axis, value, extent, frame)
        return self._offset(storage, values, access, frame)

    def _range(self, index: Expr, frame: Frame) -> tuple[int, int]:
        """Return bounds of an index: its range where it was computed, on these lanes or more."""
        found = frame.ranges.get(index)
        if found is None:
            if frame.parent is None or not self.dependences.free(index).isdisjoint(frame.defines):
                value = self.pure(index, frame)
                if isinstance(value, np.ndarray):
                    found = int(value.min()), int(value.max())
                else:
                    found = value, value
            else:
                found = self._range(index, frame.parent)
            frame.ranges[index] = found
        return found

    def _check(self, access: Load, axis: int, value: Value, extent: int, frame: Frame) -> None:
        at = np.atleast_1d(np.asarray(value))
        bad = np.flatnonzero((at < 0) | (at >= extent))
        if bad.size:
            lane = int(bad[0])
            index = self.index(access, frame, lane)
            raise self.faults.out_of_bounds(access, index, axis, extent, frame, lane)

    def _offset(
        self, storage: WatchedStorage, index: list[Value], access: Load, frame: Frame
    ) -> Value:
        result = self.base(access.buffer, frame)
        strides = (1,) if access.flat else storage.layout.strides
        for value, stride in zip(index, strides, strict=True):
            result = result + (value if stride == 1 else value * stride)
        if isinstance(result, np.ndarray) and result.size == 1:
            return int(result[0])
        return result

    def base(self, buffer: Buffer, frame: Frame) -> Value:
        """Return where this lane's copy of `buffer` begins."""
        found = frame.values.get(buffer)
        if found is None:
            if frame.parent is None:
                if buffer.memory is not Memory.GLOBAL:
                    raise self._out_of_scope(buffer)
                return 0
            found = frame.values[buffer] = frame.taken_over(self.base(buffer, frame.parent))
        return found
