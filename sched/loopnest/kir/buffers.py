"""Buffers: the memory that a kernel reads and writes, with its layout."""

from __future__ import annotations

from dataclasses import dataclass

from loopnest.base.fast_init import fast_init
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import Expr


@fast_init
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
        kind: "input", "output", "workspace", "counter" (GLOBAL, 0 before and after a launch),
            "local", "shared", "scratch" (SHARED, of a collective) or "accumulator".
        alias_of: the name of the buffer whose space it shares; both begin at the same address, and
            a store to the one makes the elements of the other undefined.
        stages: copies of the buffer that circular buffering rotates through: the extent of the
            leading dimension where not 1.
        swizzles: pairs of dimensions (a, b) whose extents are static powers of two, in the order
            in which they are applied: the element at index (…a…b…) lies where (…a…b ^ a…) would,
            of `a` as many low bits as `b` has; indices stay as they are.
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
    swizzles: tuple[tuple[int, int], ...] = ()

    def __copy__(self) -> Buffer:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Buffer:
        return self
