"""What a legal tile is: its body does what its row says, on elements that lie where it says.

A body is decided by its points: loops of a tile are static and few, so that the element of each
operand is known at each of them. What the targets execute in its place is the row's own business.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product

import numpy as np
import numpy.typing as npt

from loopnest.kir.instruction_rows import Instruction, instructions
from loopnest.kir.instruction_table import gives_lanes
from loopnest.kir.kernel_program import Program
from loopnest.kir.matrix_rows import NoRows, named_rows
from loopnest.kir.nodes import Allocate, Loop, Stmt, Store, Tile, expressions, walk
from loopnest.kir.tiles import warp_axes, warp_buffers
from loopnest.kir.vector_access import VectorFinder
from loopnest.scalar.enums import WARP, Memory, ParallelType
from loopnest.scalar.expr import (
    ONE,
    ZERO,
    Buffer,
    Const,
    Expr,
    LaunchIndex,
    Load,
    Op,
    cast,
    free_indices,
    loads,
    rewrite,
)
from loopnest.scalar.fragments import Fragment

_Numbers = npt.NDArray[np.int64]

_LANE = ParallelType.block_x
_COMMUTES = ("add", "mul")
_NUMPY: Mapping[str, Callable[..., _Numbers]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "mod": operator.mod,
    "floordiv": operator.floordiv, "min": np.minimum, "max": np.maximum,
}  # fmt: skip


def tile_faults(program: Program) -> Iterator[str]:
    """Yield what is not legal about the tiles and the WARP buffers of one launch."""
    tiles = [node for node in program.nodes if isinstance(node, Tile)]
    warp = set(warp_buffers(program))
    if not tiles and not warp:
        return
    lanes = warp or any(tile.over_lanes for tile in tiles)
    if (
        lanes
        and program.launch_extent(_LANE) is not None
        and not _is(program.launch_extent(_LANE), WARP)
    ):
        size = program.launch_extent(_LANE)
        yield f"tiles and WARP buffers in blocks of {size} threads along block_x, not {WARP}"
        return
    for tile in tiles:
        fault = _Body(tile, program).fault()
        if fault:
            yield f"the tile {tile.instruction}: {fault}"
    yield from _other_lanes(program, warp)


def _other_lanes(program: Program, warp: set[Buffer]) -> Iterator[str]:
    """Yield the accesses to WARP buffers that ordinary statements make of other lanes' elements."""
    axes = warp_axes(program)
    bound: dict[Expr, ParallelType] = {}
    for node, around in walk(program.body):
        if isinstance(node, Loop) and node.parallel.is_thread:
            bound[node.var] = node.parallel
        inside = any(isinstance(outer, Tile) for outer in around)
        used = [load for e in expressions(node) for load in loads(e)]
        used += [node.own] if isinstance(node, Store) else []
        for load in [load for load in used if load.buffer in warp]:
            if load.flat or len(load.args) < len(axes) + 2:
                yield f"{load.buffer.name} in WARP memory is accessed without a lane"
                continue
            found = [_dimension(i, bound) for i in load.args[int(load.buffer.stages > 1) :]]
            if found[: len(axes)] != [*axes]:
                yield f"{load} is an access to another warp's elements"
            if not inside and found[-2] is not _LANE:
                yield f"{load} is an access to other lanes' elements outside of a tile"


def _dimension(index: Expr, bound: Mapping[Expr, ParallelType]) -> ParallelType | None:
    return index.dimension if isinstance(index, LaunchIndex) else bound.get(index)


def _is(value: Expr | None, number: int) -> bool:
    return isinstance(value, Const) and value.value == number


class _NoTile(Exception):
    """Why a body is not that of its row."""


@dataclass
class _Body:
    """A tile's body, read as one statement over all points of its loops.

    Args:
        tile: the tile.
        program: the launch that it is of.
        loops: those of the body.
        temporaries: what its own scalars hold.
        store: the one store to the result, with temporaries put in their places.
    """

    tile: Tile
    program: Program
    loops: list[Loop] = field(default_factory=list)
    temporaries: dict[Buffer, Expr | None] = field(default_factory=dict)
    store: tuple[Load, Expr] | None = None

    def fault(self) -> str:
        """Return what is wrong; empty where nothing is."""
        row = instructions.get(self.tile.instruction)
        if row is None:
            return f"no such instruction; there are {', '.join(instructions)}"
        if self.tile.over_lanes is not (row.lanes > 1):
            return f"its body has {'a' if self.tile.over_lanes else 'no'} loop over lanes"
        try:
            if gives_lanes(row.name):
                named_rows(self.tile, VectorFinder(self.program))
                return ""
            self._read(self.tile.body)
            self._compare(row)
        except (_NoTile, NoRows) as why:
            return str(why)
        return ""

    def _read(self, body: Sequence[Stmt]) -> None:
        for node in body:
            match node:
                case Loop():
                    if not isinstance(node.extent, int):
                        raise _NoTile(f"the loop over {node.var.name} is not static")
                    self.loops.append(node)
                    self._read(node.body)
                case Allocate(storage=buffer) if buffer.size is ONE:
                    self.temporaries[buffer] = None
                case Store():
                    self._take(node)
                case _:
                    raise _NoTile(f"its body holds a {type(node).__name__}")

    def _take(self, node: Store) -> None:
        if self.store is not None:
            raise _NoTile("its body goes on behind the store of its result")
        value = cast(rewrite(node.value, self._held), node.storage.dtype)
        if node.storage in self.temporaries:
            self.temporaries[node.storage] = value
        elif node.atomic or node.flat:
            raise _NoTile("its result is stored atomically or by an offset")
        else:
            self.store = node.own, value

    def _held(self, node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.buffer in self.temporaries:
            value = self.temporaries[node.buffer]
            if value is None:
                raise _NoTile(f"{node.buffer.name} is read before it is stored")
            return value
        return None

    def _compare(self, row: Instruction) -> None:
        if self.store is None:
            raise _NoTile("its body stores nothing")
        buffers = dict(self.tile.operands)
        if set(buffers) != set(row.operands):
            raise _NoTile(f"its operands are {', '.join(buffers)}, not {', '.join(row.operands)}")
        for role, buffer in buffers.items():
            if buffer.dtype is not row.operands[role].dtype:
                wanted = row.operands[role].dtype
                raise _NoTile(f"its operand {role} is of {buffer.dtype}, not {wanted}")
        own, value = self.store
        used: dict[str, Load] = {}
        statement = row.statement
        pairs = [(statement.own, own), (statement.value, value)]
        if not all(self._alike(theirs, ours, buffers, used) for theirs, ours in pairs):
            raise _NoTile(f"its body is not {row.behaviour}")
        self._check_places(row, used)

    def _alike(
        self, theirs: Expr, ours: Expr, buffers: Mapping[str, Buffer], used: dict[str, Load]
    ) -> bool:
        """Whether a value is one of the behaviour; what operands it reads is then in `used`."""
        if isinstance(theirs, Load):
            role = theirs.buffer.name
            if not isinstance(ours, Load) or ours.buffer is not buffers[role]:
                return False
            return used.setdefault(role, ours) is ours
        if not isinstance(theirs, Op) or not isinstance(ours, Op):
            return theirs is ours
        if theirs.op != ours.op or theirs.dtype is not ours.dtype:
            return False
        if len(theirs.args) != len(ours.args):
            return False
        orders = [ours.args, ours.args[::-1]] if theirs.op in _COMMUTES else [ours.args]
        for order in orders:
            trial = dict(used)
            pairs = zip(theirs.args, order, strict=True)
            if all(self._alike(a, b, buffers, trial) for a, b in pairs):
                used.update(trial)
                return True
        return False

    def _check_places(self, row: Instruction, used: Mapping[str, Load]) -> None:
        """Check that each point of the loops is one point of the axes, and each of these one."""
        points = self._points()
        known: dict[str, _Numbers] = {}
        for role, load in used.items():
            operand = row.operands[role]
            if operand.fragment is None:
                continue
            for axis, found in zip(
                operand.axes, self._element(load, operand.fragment, points), strict=True
            ):
                if axis in known and not np.array_equal(known[axis], found):
                    raise _NoTile(f"{load} is another {axis} than its other operands have")
                known[axis] = found
        extents = row.extents
        whole: _Numbers = np.zeros_like(next(iter(known.values())))
        for axis, numbers in known.items():
            whole = whole * extents[axis] + numbers
        if not np.array_equal(np.sort(whole), np.arange(_count(extents))):
            raise _NoTile(f"its loops are not once over each of {', '.join(extents)}")

    def _points(self) -> dict[Expr, _Numbers]:
        """Return the value of each index of the tile's loops at all points."""
        extents = [int(loop.var.extent.value) for loop in self.loops]  # type: ignore[attr-defined]
        grids = np.indices(extents).reshape(len(extents), -1)
        return {loop.var: grid for loop, grid in zip(self.loops, grids, strict=True)}

    def _element(
        self, load: Load, fragment: Fragment, points: Mapping[Expr, _Numbers]
    ) -> Sequence[_Numbers]:
        """Return the element of an operand at all points."""
        in_warp = load.buffer.memory is Memory.WARP
        if not in_warp and load.buffer.memory is not Memory.LOCAL:
            raise _NoTile(f"{load.buffer.name} is in {load.buffer.memory.value} memory")
        lane = load.args[-2] if in_warp else self._own_lane(fragment)
        register, around = load.args[-1], load.args[: -2 if in_warp else -1]
        if not in_warp and fragment.registers == 1:  # its buffer has no axis of one element
            register, around = ZERO, load.args
        inner = set(points)
        if any(not inner.isdisjoint(free_indices(index)) for index in around):
            raise _NoTile(f"{load} runs over more than one matrix")
        lanes, registers = [_at(index, points) for index in (lane, register)]
        if lanes.max() >= fragment.lanes or registers.max() >= fragment.registers:
            raise _NoTile(f"{load} lies beyond the fragment")
        return [*_elements(fragment)[:, lanes, registers]]

    def _own_lane(self, fragment: Fragment) -> Expr:
        if fragment.lanes == 1:
            return ZERO
        found = [loop.var for loop in self.loops if loop.parallel is _LANE]
        (lane,) = found
        return lane


def _count(extents: Mapping[str, int]) -> int:
    count = 1
    for extent in extents.values():
        count *= extent
    return count


@lru_cache
def _elements(fragment: Fragment) -> _Numbers:
    """Return the element of each lane and register, an array an axis."""
    found = np.empty((len(fragment.shape), fragment.lanes, fragment.registers), np.int64)
    for lane, register in product(range(fragment.lanes), range(fragment.registers)):
        found[:, lane, register] = fragment.element(lane, register)
    return found


def _at(value: Expr, points: Mapping[Expr, _Numbers]) -> _Numbers:
    """Return an index at all points."""
    match value:
        case Const(value=number):
            return np.full_like(next(iter(points.values())), int(number))
        case Op(op=op, args=args) if op in _NUMPY:
            return _NUMPY[op](*[_at(a, points) for a in args])
        case _ if value in points:
            return points[value]
    raise _NoTile(f"the place of an element depends on {value}, which is no loop of the tile")
