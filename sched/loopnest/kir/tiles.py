"""Tiles as ordinary statements, for readers that need no instruction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from loopnest.kir.kernel_program import Program
from loopnest.kir.nodes import (
    Allocate,
    Barrier,
    Item,
    Stmt,
    Tile,
    bodies,
    map_accesses,
    with_bodies,
)
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import ONE, Buffer, Const, Expr, Load, integer

_WARPS = (ParallelType.block_z, ParallelType.block_y)
EDGE = Barrier("warp", "a tile begins or ends")
"""What stands in front of the body of a tile, and behind it, where the tile does not."""


def without_tiles(program: Program) -> Program:
    """Return a program in which tiles are their bodies, between barriers of the warp.

    WARP buffers are SHARED ones. The same program comes back where it has neither.
    """
    warp = {buffer: replace(buffer, memory=Memory.SHARED) for buffer in warp_buffers(program)}
    if not warp and not any(isinstance(node, Tile) for node in program.nodes):
        return program
    return program.with_body(_OtherBuffers(warp).body(program.body))


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
    return launch.with_body(_OtherBuffers(warp, places, keep=True).body(launch.body))


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
        keep: whether tiles stay.
    """

    def __init__(
        self,
        warp: Mapping[Buffer, Buffer],
        places: Mapping[Buffer, tuple[int, ...]] | None = None,
        *,
        keep: bool = False,
    ) -> None:
        self.warp, self.places, self.keep = warp, places or {}, keep
        self.known: dict[Stmt, tuple[Stmt, ...]] = {}

    def body(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        found = tuple([made for node in body for made in self.statement(node)])
        same = len(found) == len(body) and all(a is b for a, b in zip(found, body, strict=True))
        return body if same else found

    def statement(self, node: Stmt) -> tuple[Stmt, ...]:
        """Return what stands in the place of a statement; the same for one at several places."""
        found = self.known.get(node)
        if found is None:
            made = with_bodies(node, tuple([self.body(part) for part in bodies(node)]))
            found = self.known[node] = (self._own(made),)
            if isinstance(made, Tile) and not self.keep:
                found = self.known[node] = (EDGE, *made.body, EDGE)
        return found

    def _own(self, node: Stmt) -> Stmt:
        if isinstance(node, Tile):
            held = tuple([(role, self.warp.get(buffer, buffer)) for role, buffer in node.operands])
            return replace(node, operands=held)
        return map_accesses(node, self._placed, self.warp)

    def _placed(self, load: Load) -> Load:
        if load.buffer not in self.warp:
            return load
        places = self.places.get(load.buffer, range(len(load.args)))
        return Load(self.warp[load.buffer], tuple([load.args[p] for p in places]), load.flat)
