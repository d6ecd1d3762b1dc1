"""Memory under watch: each buffer with a shadow bit an element that says whether it was stored."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from loopnest.buffers import Buffer
from loopnest.interpreter.scalar import Array, Value


@dataclass(eq=False, slots=True)
class Storage:
    """The elements of a buffer, all copies (one a lane or a block) in one array.

    Args:
        buffer: what is stored.
        data: copies * size elements.
        valid: whether each element holds a value; None where all do, and nothing stores.
        shape, strides, size: the layout of one copy, in elements.
        aliases: other buffers in the same space, which a store here overwrites.
    """

    buffer: Buffer
    data: Array
    valid: Array | None
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    size: int
    aliases: list[Storage] = field(default_factory=list)

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

    def overwritten(self, by: Storage, address: Value) -> None:
        """Forget the elements that share bytes with those of `by` at `address`.

        Buffers with other numbers of copies (allocated at other lanes) are left alone: what is
        missed here is a fault not found, never a false one.
        """
        if self.valid is None or self.copies != by.copies:
            return
        at = np.atleast_1d(np.asarray(address))
        copy, offset = at // by.size, at % by.size
        width, other = self.data.itemsize, by.data.itemsize
        for byte in range(0, other, min(width, other)):
            element = (offset * other + byte) // width
            inside = element < self.size
            self.valid[(copy * self.size + element)[inside]] = False

    @property
    def copies(self) -> int:
        """How many copies there are, one a lane or a block."""
        return self.data.size // max(self.size, 1)

    def forget(self) -> None:
        """Make every element undefined."""
        if self.valid is not None:
            self.valid.fill(False)


def watched(
    buffer: Buffer,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    size: int,
    copies: int,
) -> Storage:
    """Return new memory for `copies` of a buffer, its elements undefined."""
    return Storage(
        buffer,
        np.empty(copies * size, buffer.dtype.numpy),
        np.zeros(copies * size, np.bool_),
        shape,
        strides,
        size,
    )
