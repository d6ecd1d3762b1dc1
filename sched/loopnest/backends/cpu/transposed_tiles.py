"""Which pairs of loops in C copy a square tile with rows and columns exchanged, in registers.

A copy whose two sides run along different axes moves single elements, whichever loop is innermost.
A tile as wide as a cache line can be read in vectors along one axis, transposed by shuffles, and
written in vectors along the other::

    for u in 16:
      for v in 16:  # vectorize         ->   ln_f32x16_transpose(&y[…], M, &x[…], N, …)
        y[j * 16 + u, i * 16 + v] = x[i * 16 + v, j * 16 + u]

Source: the network of shuffles exchanges blocks of 1, 2, 4… elements between rows: Eklundh, "A fast
computer method for matrix transposing" (1972).
"""

from __future__ import annotations

from dataclasses import dataclass

from loopnest.backends.cpu.streaming_stores import LINE_BYTES, is_line
from loopnest.kir import Loop, Store
from loopnest.kir.vector_access import VectorFinder
from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import Expr, Load


@dataclass(frozen=True, slots=True)
class TransposedTile:
    """A tile and where it lies.

    Args:
        inner: the loop over lanes.
        store: its statement; the value is a load.
        load: what is copied.
        to_step: elements from one vector of the result to the next.
        from_step: elements from one vector that is read to the next.
    """

    inner: Loop
    store: Store
    load: Load
    to_step: Expr
    from_step: Expr


def transposed_tile(loop: Loop, finder: VectorFinder) -> TransposedTile | None:
    """Return the tile that `loop` copies together with the vectorized loop in it, or None.

    Both have as many iterations as a cache line has elements; the store runs along the inner one,
    the load along the outer one.
    """
    match loop:
        case Loop(
            parallel=ParallelType.serial | ParallelType.unroll | ParallelType.unswitch,
            body=(Loop(parallel=ParallelType.vectorize, body=(Store(value=Load()) as store,)),),
        ):
            (inner,) = loop.body
        case _:
            return None
    load = store.value
    assert isinstance(inner, Loop)
    assert isinstance(load, Load)
    lanes = inner.extent
    if loop.extent != lanes or not is_line(inner, store.storage):
        return None
    assert isinstance(lanes, int)
    if lanes * store.storage.dtype.size != LINE_BYTES:
        return None
    # The tile is read as a whole before any of it is written: within one array the loops might read
    # what they wrote.
    if load.buffer.dtype is not store.storage.dtype or load.buffer is store.storage:
        return None
    to, source = (store.storage, store.index, store.flat), (load.buffer, load.args, load.flat)
    along = finder.are_neighbours(*to, inner.var, lanes)
    if not along or not finder.are_neighbours(*source, loop.var, lanes):
        return None
    to_step = finder.step(*to, loop.var)
    from_step = finder.step(*source, inner.var)
    if to_step is None or from_step is None:
        return None
    return TransposedTile(inner, store, load, to_step, from_step)
