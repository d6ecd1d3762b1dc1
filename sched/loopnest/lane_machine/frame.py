"""Frames: the lanes that execute a body together, and what is known of them.

A lane is one thread of the launch at one point of the loops around the body. Loops, guards and
expanded loops derive frames from frames: a lane of the new frame continues one lane of its parent.
A frame keeps no mask: lanes that do not take part are not in it.

Values that do not read memory are cached where the innermost variable that they depend on is
defined, and taken over by derived frames: what does not change in a loop is computed once.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from loopnest.lane_machine.native_math import Array, Value
from loopnest.scalar.expr import (
    Buffer,
    Const,
    Expr,
    Index,
    LaunchIndex,
    Load,
    Local,
    ScalarParam,
    Symbol,
)

Variable: TypeAlias = "Expr | Buffer"
"""What a frame defines: an index, a temporary, or the place of a buffer allocated in it."""


class Frame:
    """Lanes that run together.

    Args:
        lanes: how many.
        parent: the frame that this one was derived from; None for the launch.
        origin: for each lane its lane in `parent`; None where they are the same lanes.
    """

    __slots__ = ("defines", "lanes", "origin", "parent", "ranges", "scratch", "values")

    def __init__(self, lanes: int, parent: Frame | None, origin: Array | None = None) -> None:
        self.lanes = lanes
        self.parent = parent
        self.origin = origin
        self.defines: set[Variable] = set()
        self.values: dict[Variable, Value] = {}
        self.ranges: dict[Expr, tuple[int, int]] = {}
        self.scratch: dict[Expr, Value] = {}
        """Values that read memory; they last for one statement."""

    def define(self, variable: Variable, value: Value) -> None:
        """Give `variable` its value in this frame and the frames derived from it."""
        if variable in self.defines:
            self.clear_derived()
        self.defines.add(variable)
        self.values[variable] = value

    def clear_derived(self) -> None:
        """Forget everything but the variables defined here."""
        self.values = {v: self.values[v] for v in self.defines}
        self.ranges = {}

    def restart(self, variable: Variable, value: Value) -> None:
        """Forget everything, then define `variable`: the next iteration of a loop."""
        self.defines = {variable}
        self.values = {variable: value}
        self.ranges = {}

    def taken_over(self, value: Value) -> Value:
        """Return a value of the parent's lanes on the lanes of this frame."""
        if self.origin is None or not isinstance(value, np.ndarray) or value.size == 1:
            return value
        taken: Array = value.take(self.origin)
        return taken

    def same_lanes(self) -> Frame:
        """Return a frame of the same lanes: the body of a loop."""
        return Frame(self.lanes, self)

    def subset(self, chosen: Array) -> Frame:
        """Return a frame of the lanes `chosen`, in this order."""
        return Frame(chosen.size, self, chosen)

    def expanded(self, variable: Variable, start: int, stop: int) -> Frame:
        """Return a frame in which each lane runs the iterations [start, stop) side by side.

        The iterations of one lane are neighbours, so that lanes stay in the order of the program.
        """
        count = stop - start
        frame = Frame(self.lanes * count, self, np.repeat(np.arange(self.lanes), count))
        frame.define(variable, np.tile(np.arange(start, stop), self.lanes))
        return frame

    def frozen(self) -> Frame:
        """Return a frame of the same lanes that keeps what its variables are now."""
        made = Frame(self.lanes, None)
        frame: Frame | None = self
        lanes: Array | None = None  # for each lane its lane in `frame`
        while frame is not None:
            for variable in frame.defines - made.defines:
                value = frame.values[variable]
                if isinstance(value, np.ndarray) and value.size > 1 and lanes is not None:
                    value = value[lanes]
                made.define(variable, value)
            if frame.origin is not None:
                lanes = frame.origin if lanes is None else frame.origin[lanes]
            frame = frame.parent
        return made

    def at_lane(self, variable: Variable, lane: int) -> int | None:
        """Return the value of an index variable in one lane, or None where it is not defined."""
        frame: Frame | None = self
        while frame is not None:
            if variable in frame.defines:
                value = frame.values[variable]
                if isinstance(value, np.ndarray):
                    return int(value[lane if value.size > 1 else 0])
                return int(value)
            if frame.origin is not None:
                lane = int(frame.origin[lane])
            frame = frame.parent
        return None


class Dependences:
    """What expressions depend on, found once a program: variables, and whether they read memory."""

    def __init__(self) -> None:
        self._free: dict[Expr, frozenset[Variable]] = {}
        self._reads: dict[Expr, bool] = {}

    def free(self, node: Expr) -> frozenset[Variable]:
        """Return the variables that `node` depends on (of a Load: those of its address)."""
        found = self._free.get(node)
        if found is None:
            found = self._free[node] = self._find_free(node)
        return found

    def _find_free(self, node: Expr) -> frozenset[Variable]:
        match node:
            case Index() | Local() | LaunchIndex() | Symbol() | ScalarParam():
                return frozenset([node])
            case Const():
                return frozenset()
        inner = frozenset[Variable]().union(*[self.free(a) for a in node.args])
        return inner | {node.buffer} if isinstance(node, Load) else inner

    def reads(self, node: Expr) -> bool:
        """Whether `node` loads from memory."""
        found = self._reads.get(node)
        if found is None:
            found = isinstance(node, Load) or any(self.reads(a) for a in node.args)
            self._reads[node] = found
        return found


def uniform(value: Value) -> int | None:
    """Return an index that all lanes share, or None where they differ."""
    if not isinstance(value, np.ndarray):
        return int(value)
    first = int(value[0])
    return first if value.size == 1 or bool((value == first).all()) else None
