"""Tiles and shuffles as ordinary statements, for readers that need no instruction.

A shuffle that is no part of a collective, by the XOR of a lane's number, reads what another lane
has in a LOCAL buffer. That buffer may as well be one of the block, with an element of it for each
thread, of which a lane reads another's: all lanes have stored when the first one reads (a barrier
of the warp), and all have read when the first one stores again (another one)::

    let v = shuffle_xor(T[0], 4)    # T: float32[1] local

    barrier warp                    # T: float32[64, 1] shared; T[0] is T[block_x, 0]
    let v = T[block_x ^ 4, 0]       # ^ in sums: indices know no bits
    barrier warp
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

from loopnest.kir.kernel_program import Program
from loopnest.kir.nodes import (
    Allocate,
    Barrier,
    Collective,
    Item,
    Let,
    Shuffle,
    Stmt,
    Tile,
    bodies,
    map_accesses,
    walk,
    with_bodies,
)
from loopnest.scalar.dtypes import index
from loopnest.scalar.enums import BLOCK_DIMENSIONS, WARP, Memory, ParallelType
from loopnest.scalar.expr import ONE, Buffer, Const, Expr, LaunchIndex, Load, Op, integer
from loopnest.scalar.simplify import Simplifier

_WARPS = (ParallelType.block_z, ParallelType.block_y)
EDGE = Barrier("warp", "a tile begins or ends")
"""What stands in front of the body of a tile, and behind it, where the tile does not."""

EXCHANGE = Barrier("warp", "a shuffle begins or ends")
"""What stands in front of a read in place of a shuffle, and behind it."""


def without_tiles(program: Program, keep: Callable[[Tile], bool] = lambda _: False) -> Program:
    """Return a program in which tiles are their bodies, those of a warp between barriers of it.

    WARP buffers are SHARED ones, and shuffles reads of such. The same program comes back where it
    has none of these.

    Args:
        program: the program.
        keep: whether a tile stays.
    """
    warp = {buffer: replace(buffer, memory=Memory.SHARED) for buffer in warp_buffers(program)}
    exchanges = _Exchanges(program)
    if not (warp or exchanges.spread or any(isinstance(node, Tile) for node in program.nodes)):
        return program
    return program.with_body(_OtherBuffers(warp, keep=keep, exchanges=exchanges).body(program.body))


class _Exchanges:
    """The shuffles of a program that may as well be reads of SHARED memory.

    Attributes:
        spread: the buffers that other lanes read, with what is in their place: a buffer of the
            block and the dimensions of its threads, the slowest first.
    """

    def __init__(self, program: Program) -> None:
        self.spread: dict[Buffer, tuple[Buffer, dict[ParallelType, int]]] = {}
        for launch in program.launches:
            block = {d: e.value for d, e in launch.launch if d.is_block and isinstance(e, Const)}
            symbolic = any(d.is_block and d not in block for d, _ in launch.launch)
            extents = {d: int(block[d]) for d in reversed(BLOCK_DIMENSIONS) if d in block}
            for node, around in walk(() if symbolic else launch.body):
                if any(isinstance(outer, Collective) for outer in around):
                    continue
                offered, mask = _offered(node)
                if offered is not None and _bits(extents, mask) is not None:
                    self.spread[offered.buffer] = _spread(offered.buffer, extents), extents

    def placed(self, load: Load, mask: int = 0) -> Load:
        """Return the element of a LOCAL buffer in the lane that differs by some bits."""
        buffer, extents = self.spread[load.buffer]
        bits = _bits(extents, mask)
        assert bits is not None
        numbers = [_without_bits(LaunchIndex(d), bits[d]) for d in extents]
        if load.flat:
            return Load(buffer, (*numbers, *_unravelled(load)))
        return Load(buffer, (*numbers, *load.args))

    def statements(self, node: Stmt) -> tuple[Stmt, ...] | None:
        """Return what stands in the place of a shuffle; None for anything else."""
        offered, mask = _offered(node)
        if offered is None or offered.buffer not in self.spread:
            return None
        if _bits(self.spread[offered.buffer][1], mask) is None:
            return None
        assert isinstance(node, Shuffle)
        return EXCHANGE, Let(node.var, self.placed(offered, mask), node.origin), EXCHANGE


def _offered(node: Stmt) -> tuple[Load | None, int]:
    """Return the element of a LOCAL buffer that a shuffle brings, and what lanes differ by."""
    if isinstance(node, Shuffle) and node.mode == "xor":
        value, offset = node.value, Simplifier().simplify(node.offset)
        if isinstance(value, Load) and value.buffer.memory is Memory.LOCAL:
            return value, int(offset.value) if isinstance(offset, Const) else -1
    return None, -1


def _bits(extents: dict[ParallelType, int], mask: int) -> dict[ParallelType, int] | None:
    """Return by which bits threads differ along each dimension, whose lanes differ by a mask.

    None where they do not differ alike in all lanes. A lane is the number of its thread in bits, of
    which each dimension has some as long as extents are powers of two. What is left is beyond the
    last one: there is no such thread.
    """
    if not extents or not 0 <= mask < WARP:
        return None
    found: dict[ParallelType, int] = {}
    for number, (dimension, extent) in enumerate(reversed(extents.items()), 1):
        whole = extent % (1 << mask.bit_length()) == 0 or number == len(extents)
        if not whole and extent & (extent - 1):
            return None
        found[dimension] = mask if whole else mask % extent
        mask = (mask - found[dimension]) // extent
    return found


def _spread(buffer: Buffer, extents: dict[ParallelType, int]) -> Buffer:
    """Return a buffer of the block with an element for each thread where a LOCAL one has one."""
    shape = (*map(integer, extents.values()), *buffer.shape)
    strides = list(buffer.strides)
    size = buffer.size
    for extent in reversed(extents.values()):
        strides.insert(0, size)
        size = integer(int(size.value) * extent) if isinstance(size, Const) else size
    return replace(
        buffer, memory=Memory.SHARED, shape=shape, strides=tuple(strides), size=size, kind="shared"
    )


def _without_bits(number: Expr, bits: int) -> Expr:
    """Return the XOR of a number with bits, as a sum: each is added where it is 0, else taken."""
    result = number
    for place in range(bits.bit_length()):
        bit = bits & (1 << place)
        if bit:
            is_set = Op("mod", (Op("floordiv", (number, integer(bit)), index), integer(2)), index)
            change = Op("sub", (integer(bit), Op("mul", (is_set, integer(2 * bit)), index)), index)
            result = Op("add", (result, change), index)
    return result


def _unravelled(load: Load) -> tuple[Expr, ...]:
    """Return one index a dimension in place of an offset."""
    (offset,) = load.args
    found: list[Expr] = []
    for extent, stride in zip(load.buffer.shape, load.buffer.strides, strict=True):
        quotient = Op("floordiv", (offset, stride), index)
        found.append(Op("mod", (quotient, extent), index))
    return tuple(found)


def had_tiles(program: Program) -> bool:
    """Whether a program is what `without_tiles` made of one with tiles."""
    return any(isinstance(n, Barrier) and n.reason == EDGE.reason for n in program.nodes)


def in_registers(launch: Program) -> Program:
    """Return a launch whose WARP buffers are LOCAL ones: of each thread what its lane holds.

    Tiles stay; of the indices in their bodies those in front of the lane alone have a meaning.
    """
    warps = len(warp_axes(launch))
    kept = {b: _without_lane(b.shape, b.stages > 1, warps) for b in warp_buffers(launch)}
    if not kept:
        return launch
    warp = {b: _local(b, shape) for b, shape in kept.items()}
    places = {b: _without_lane(range(len(b.shape)), b.stages > 1, warps) for b in kept}
    return launch.with_body(_OtherBuffers(warp, places).body(launch.body))


def warp_buffers(program: Program) -> tuple[Buffer, ...]:
    """Return the WARP buffers of a program."""
    held = [n.storage for n in program.nodes if isinstance(n, Allocate)]
    return tuple(dict.fromkeys([b for b in held if b.memory is Memory.WARP]))


def warp_axes(launch: Program) -> tuple[ParallelType, ...]:
    """Return the launch dimensions that tell the warps of a block apart, the slowest first."""
    sizes = dict(launch.launch)
    return tuple([d for d in _WARPS if sizes.get(d, ONE) is not ONE])


def _without_lane(items: Sequence[Item], staged: bool, warps: int) -> tuple[Item, ...]:
    """Return what belongs to the axes of a WARP buffer that are not those of warps and lanes."""
    front = int(staged)
    return (*items[:front], *items[front + warps : -2], items[-1])


def _local(buffer: Buffer, shape: tuple[Expr, ...]) -> Buffer:
    sizes = [int(extent.value) for extent in shape if isinstance(extent, Const)]
    assert len(sizes) == len(shape)
    strides = [integer(prod(sizes[n + 1 :])) for n in range(len(sizes))]
    size = integer(prod(sizes))
    return replace(
        buffer, memory=Memory.LOCAL, shape=shape, strides=tuple(strides), size=size, kind="local"
    )


class _OtherBuffers:
    """Statements with other buffers in the place of some.

    Args:
        warp: buffer -> what stands in its place.
        places: buffer -> the dimensions that are left, where not all are.
        keep: whether a tile stays.
        exchanges: what stands in the place of shuffles, and of the buffers that they read.
    """

    def __init__(
        self,
        warp: Mapping[Buffer, Buffer],
        places: Mapping[Buffer, tuple[int, ...]] | None = None,
        keep: Callable[[Tile], bool] = lambda _: True,
        exchanges: _Exchanges | None = None,
    ) -> None:
        self.warp, self.places, self.keep = dict(warp), places or {}, keep
        self.exchanges = exchanges
        if exchanges is not None:
            self.warp.update({old: new for old, (new, _) in exchanges.spread.items()})
        self.known: dict[Stmt, tuple[Stmt, ...]] = {}

    def body(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        found = tuple([made for node in body for made in self.statement(node)])
        same = len(found) == len(body) and all(a is b for a, b in zip(found, body, strict=True))
        return body if same else found

    def statement(self, node: Stmt) -> tuple[Stmt, ...]:
        """Return what stands in the place of a statement; the same for one at several places."""
        found = self.known.get(node)
        if found is None:
            found = self.exchanges.statements(node) if self.exchanges is not None else None
            if found is not None:
                self.known[node] = found
        if found is None:
            made = with_bodies(node, tuple([self.body(part) for part in bodies(node)]))
            found = self.known[node] = (self._own(made),)
            if isinstance(made, Tile) and not self.keep(made):
                edge = (EDGE,) if made.over_lanes else ()
                found = self.known[node] = (*edge, *made.body, *edge)
        return found

    def _own(self, node: Stmt) -> Stmt:
        if isinstance(node, Tile):
            held = tuple([(role, self.warp.get(buffer, buffer)) for role, buffer in node.operands])
            return replace(node, operands=held)
        return map_accesses(node, self._placed, self.warp)

    def _placed(self, load: Load) -> Load:
        if load.buffer not in self.warp:
            return load
        if self.exchanges is not None and load.buffer in self.exchanges.spread:
            return self.exchanges.placed(load)
        places = self.places.get(load.buffer, range(len(load.args)))
        return Load(self.warp[load.buffer], tuple([load.args[p] for p in places]), load.flat)
