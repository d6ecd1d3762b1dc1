"""Frame subsets: some lanes of a tree of frames, as a tree of their own."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loopnest.backends.interpret.frame import Frame
from loopnest.backends.interpret.native_math import Array, Value
from loopnest.scalar.expr import Local


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
