"""Memory under watch: each buffer with a shadow bit an element that says whether it was stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from loopnest.lane_machine.native_math import Array, Value
from loopnest.scalar.expr import Buffer


class ElementLayout(NamedTuple):
    """Where the elements of a buffer lie, in elements.

    Args:
        shape, strides: of one copy.
        size: how many elements one copy has.
        pitch: the distance between two copies: one in bytes for all buffers that share a space.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    size: int
    pitch: int


@dataclass(eq=False, slots=True)
class WatchedStorage:
    """The elements of a buffer, all copies (one a lane or a block) in one array.

    Args:
        buffer: what is stored.
        data: copies * pitch elements.
        valid: whether each element holds a value; None where all do, and nothing stores.
        layout: of one copy.
        aliases: other buffers in the same space, which a store here overwrites.
    """

    buffer: Buffer
    data: Array
    valid: Array | None
    layout: ElementLayout
    aliases: list[WatchedStorage] = field(default_factory=list)

    def load(self, address: Value) -> Array:
        """Return the elements at `address` (copy offset included, in bounds)."""
        if isinstance(address, np.ndarray):
            return self.data.take(address)
        return self.data[address : address + 1].copy()

    def undefined(self, address: Value) -> Array | None:
        """Return where elements at `address` were never stored; None where all were."""
        if self.valid is None:
            return None
        if isinstance(address, np.ndarray):
            known = self.valid.take(address)
        else:
            known = self.valid[address : address + 1]
        return None if known.all() else np.flatnonzero(~known)

    def store(self, address: Value, value: Array) -> None:
        """Write one element a lane; of lanes that write one element, the last one's stays."""
        if isinstance(address, np.ndarray):
            self.data[address] = value
        else:
            self.data[address : address + 1] = value[-1:]
        if self.valid is not None:
            self.valid[address] = True
        for other in self.aliases:
            other.overwritten(self, address)

    def begin(self, address: Array) -> None:
        """Make elements undefined that something will be copied to."""
        assert self.valid is not None
        self.valid[address] = False
        for other in self.aliases:
            other.overwritten(self, address)

    def is_undefined(self, address: Array) -> Array:
        """Return which elements at `address` hold no value."""
        assert self.valid is not None
        return ~self.valid.take(address)

    def overwritten(self, by: WatchedStorage, address: Value) -> None:
        """Forget the elements that share bytes with those of `by` at `address`.

        Buffers with other numbers of copies (allocated at other lanes) are left alone: what is
        missed here is a fault not found, never a false one.
        """
        if self.valid is None or self.copies != by.copies:
            return
        at = np.atleast_1d(np.asarray(address))
        width, other = self.data.itemsize, by.data.itemsize
        for byte in range(0, other, min(width, other)):
            self.valid[(at * other + byte) // width] = False

    @property
    def copies(self) -> int:
        """How many copies there are, one a lane or a block."""
        return self.data.size // max(self.layout.pitch, 1)

    def forget(self, copies: Array | None = None) -> None:
        """Make every element undefined, of some copies or of all."""
        if self.valid is None:
            return
        if copies is None:
            self.valid.fill(False)
        elif self.valid.size:
            self.valid.reshape(-1, self.layout.pitch)[copies] = False


def watched(buffer: Buffer, layout: ElementLayout, copies: int) -> WatchedStorage:
    """Return new memory for `copies` of a buffer: undefined, but for a counter, which is 0."""
    count = copies * layout.pitch
    if buffer.kind == "counter":
        return WatchedStorage(buffer, np.zeros(count, buffer.dtype.numpy), None, layout)
    data = np.empty(count, buffer.dtype.numpy)
    return WatchedStorage(buffer, data, np.zeros(count, np.bool_), layout)
