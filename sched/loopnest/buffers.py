"""Buffers: the memory that a kernel reads and writes, with its layout."""

from __future__ import annotations

from dataclasses import dataclass

from loopnest.dtypes import DType
from loopnest.enums import Memory
from loopnest.expr import Expr


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Buffer:
    """A piece of memory with a layout; compared by identity.

    Args:
        name: unique in the kernel.
        tensor: the name of the TensorView that it holds.
        memory: LOCAL (one a thread), SHARED (one a block) or GLOBAL.
        dtype: the type of an element.
        shape: extents, outermost first; at least one (a scalar has the shape (1,)).
        strides: distance in elements between neighbours of each dimension, padding included.
        size: elements that the buffer takes, padding and stages included.
        kind: "input", "output", "workspace", "local", "shared" or "accumulator".
        alias_of: the name of the buffer whose space it shares.
        stages: copies of the buffer that circular buffering rotates through.
    """

    name: str
    tensor: str
    memory: Memory
    dtype: DType
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    size: Expr
    kind: str
    alias_of: str | None = None
    stages: int = 1

    @property
    def is_param(self) -> bool:
        """Whether the caller passes it."""
        return self.memory is Memory.GLOBAL
