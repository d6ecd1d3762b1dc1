"""Shuffles as loads of what all threads left in context arrays.

A shuffle by XOR with a power of two swaps neighbouring runs of threads. Done for all threads at
once it is a copy, which C compilers turn into vector code, while an index like ``t ^ 16`` within a
loop over threads becomes a gather.
"""

from __future__ import annotations

from loopnest.backends.cpu.fission.context_arrays import ContextArray, ContextArrays
from loopnest.base.errors import InternalError
from loopnest.kir import Loop, Shuffle, Stmt, Store
from loopnest.scalar import dtypes
from loopnest.scalar.enums import WARP, ParallelType
from loopnest.scalar.expr import (
    FALSE,
    ONE,
    TRUE,
    ZERO,
    Const,
    Expr,
    Index,
    Load,
    Op,
    all_of,
    integer,
)
from loopnest.scalar.simplify import Simplifier


def is_swap(node: Shuffle, threads: tuple[Index, ...]) -> bool:
    """Whether `node` swaps whole runs of `threads`, all of which exist."""
    offset = node.offset
    if node.mode != "xor" or not isinstance(offset, Const) or not 0 < offset.value < WARP:
        return False
    run = int(offset.value)
    _, count = _number(threads)
    # xor with a power of two swaps neighbouring runs of that length; if all pairs of runs are
    # whole, every partner exists.
    return run & (run - 1) == 0 and Simplifier().divides(integer(2 * run), count)


def swap(
    node: Shuffle,
    offered: ContextArray,
    got: ContextArray,
    threads: tuple[Index, ...],
    maker: ContextArrays,
) -> Stmt:
    """Return the loops that give all threads what they get, where `is_swap`."""
    assert isinstance(node.offset, Const)
    run = int(node.offset.value)
    algebra = maker.algebra
    _, count = _number(threads)
    pair = maker.index("pair", algebra.floordiv(count, integer(2 * run)))
    lane = ZERO if run == 1 else maker.index("lane", integer(run))
    low = algebra.add(algebra.mul(pair, integer(2 * run)), lane)
    high = algebra.add(low, node.offset)
    body: tuple[Stmt, ...] = tuple(
        [
            Store(
                got.buffer, (a,), Load(offered.buffer, (b,), flat=True), node.var.name, "kept", True
            )
            for a, b in ((low, high), (high, low))
        ]
    )
    if isinstance(lane, Index):
        body = (Loop(lane, ParallelType.serial, "", body),)
    return Loop(pair, ParallelType.serial, "", body, node.origin)


def shuffled(node: Shuffle, offered: ContextArray, threads: tuple[Index, ...]) -> Expr:
    """Return what `node` gives this thread; its own value where its partner does not exist.

    Raises:
        InternalError: an unknown mode.
    """
    algebra = Simplifier()
    number, count = _number(threads)
    lane = algebra.mod(number, integer(WARP))
    match node.mode:
        case "xor" if isinstance(node.offset, Const) and 0 <= node.offset.value < WARP:
            partner: Expr = Op("bitxor", (number, node.offset), dtypes.index)
            # an offset below 32 leaves the number of the warp as it is
            exists = algebra.lt(partner, count)
        case "xor":
            target: Expr = Op("bitxor", (lane, node.offset), dtypes.index)
            partner, exists = _in_warp(number, lane, target, count)
        case "down":
            partner, exists = _in_warp(number, lane, algebra.add(lane, node.offset), count)
        case "up":
            partner, exists = _in_warp(number, lane, algebra.sub(lane, node.offset), count)
        case "lane":
            partner, exists = _in_warp(number, lane, node.offset, count)
        case mode:
            raise InternalError(node.var.name, f"a shuffle of mode '{mode}'")
    own, others = [Load(offered.buffer, (at,), flat=True) for at in (number, partner)]
    if exists in (TRUE, FALSE):
        return others if exists is TRUE else own
    return Op("where", (exists, others, own), node.var.dtype)


def _in_warp(number: Expr, lane: Expr, target: Expr, count: Expr) -> tuple[Expr, Expr]:
    """Return the number of the thread in lane `target` of a warp, and whether it exists."""
    algebra = Simplifier()
    partner = algebra.add(algebra.sub(number, lane), target)
    terms = [algebra.lt(integer(-1), target), algebra.lt(target, integer(WARP))]
    if not algebra.divides(integer(WARP), count):
        terms.append(algebra.lt(partner, count))
    return partner, FALSE if FALSE in terms else all_of(terms)


def _number(threads: tuple[Index, ...]) -> tuple[Expr, Expr]:
    """Return the number of this thread in its block, and how many there are."""
    algebra = Simplifier()
    number: Expr = ZERO
    count: Expr = ONE
    for index in reversed(threads):
        number = algebra.add(number, algebra.mul(index, count))
        count = algebra.mul(count, index.extent)
    return number, count
