"""Which outputs a C kernel may write past the caches, where they are larger than the last one.

A plain store reads the line that it changes from memory first. A streaming store of a whole line
does not: a kernel that only writes an output moves two bytes instead of three. That pays where the
output would not stay in the cache anyway, which the kernel finds out from its sizes.
"""

from __future__ import annotations

from loopnest.backends.cpu.lane_vectors import NAMES
from loopnest.kir import Loop, Program, Stmt, Store, expressions, walk
from loopnest.kir.buffers import Buffer
from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import loads

LINE_BYTES = 64
"""A cache line: stores that fill one at once."""


def streamed_outputs(program: Program, body: tuple[Stmt, ...]) -> tuple[Buffer, ...]:
    """Return the outputs of which nothing is read, and of which some loop stores whole lines.

    Args:
        program: whose outputs they are.
        body: its statements, as they are printed.
    """
    found = [p.buffer for p in program.params if p.kind == "output" and p.buffer is not None]
    nodes = [node for node, _ in walk(body)]
    read = {load.buffer for node in nodes for e in expressions(node) for load in loads(e)}
    lines = {
        store.storage
        for loop in nodes
        if isinstance(loop, Loop) and loop.parallel is ParallelType.vectorize
        for store in loop.body
        if isinstance(store, Store) and is_line(loop, store.storage)
    }
    # What is read again would have to come back from memory.
    return tuple([buffer for buffer in found if buffer in lines and buffer not in read])


def is_line(loop: Loop, buffer: Buffer) -> bool:
    """Whether the lanes of a vectorized loop fill cache lines of `buffer`."""
    lanes = loop.extent
    whole = isinstance(lanes, int) and lanes * buffer.dtype.size % LINE_BYTES == 0
    return whole and buffer.dtype in NAMES
