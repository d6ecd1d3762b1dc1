"""Which row of shared memory each lane names for a move of matrices, from what its tile copies.

Moves such as ldmatrix take an address from each lane, that of a row of one of their matrices, and
give each lane elements of many rows. A tile says what lane has which element at the end; that of a
row, and so its address, follows from the fragment of the instruction::

    tile ldmatrix.x2(d=A, s=T):               for i0 in 32:  # block_x
      for i0 in 32:  # block_x        ->        if i0 < 16:
        for i1 in 4:                              for i2 in 8:  # vectorize
          A[i0, i1] = T[i0 // 4, i1 // 2 * 8 …      A[i0, i2] = T[i0 % 8, i0 // 8 * 8 + i2]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from loopnest.kir.instruction_rows import Instruction, instructions
from loopnest.kir.instruction_table import gives_lanes
from loopnest.kir.kernel_program import Program
from loopnest.kir.nodes import If, Loop, Stmt, Store, Tile, expressions, map_body, walk
from loopnest.kir.vector_access import VectorFinder, first_lane, is_vector
from loopnest.scalar import dtypes
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import (
    ONE,
    ZERO,
    Buffer,
    Const,
    Expr,
    Index,
    Load,
    Op,
    free_indices,
    integer,
    loads,
    substitute,
)
from loopnest.scalar.facts import Facts
from loopnest.scalar.fragments import Fragment
from loopnest.scalar.simplify import Simplifier


class NoRows(Exception):
    """Why lanes cannot name the rows that a tile copies."""


def named(launch: Program) -> Program:
    """Return a launch in whose tiles the lanes that name rows load these at once."""
    if not moves(launch):
        return launch
    finder = VectorFinder(launch)

    def rule(node: Stmt) -> Stmt:
        if isinstance(node, Tile) and gives_lanes(node.instruction):
            return replace(node, body=(named_rows(node, finder),))
        return node

    return launch.with_body(map_body(launch.body, rule))


def moves(launch: Program) -> list[Tile]:
    """Return the tiles of a launch that move matrices."""
    return [n for n in launch.nodes if isinstance(n, Tile) and gives_lanes(n.instruction)]


def named_rows(tile: Tile, finder: VectorFinder) -> Loop:
    """Return the loop over lanes in which each loads the row that it names.

    Raises:
        NoRows: the tile does not copy as its instruction, or its rows are not together.
    """
    row = instructions[tile.instruction]
    lanes, loops, store = _parts(tile)
    load = store.value
    assert isinstance(load, Load)
    operand = row.operands[row.result]
    assert operand.fragment is not None
    size = load.buffer.dtype.size
    *around, width = operand.fragment.shape
    algebra = Simplifier(Facts())
    element = Index(f"{lanes.var.name}_e", integer(width // size))
    rows = prod(around)
    number = lanes.var if rows == row.lanes else _op("mod", lanes.var, rows)
    place = [*_digits(number, around), _op("mul", element, size)]
    lane, first = [algebra.simplify(p) for p in _places(operand.fragment, place)]
    registers = operand.fragment.registers // size
    strides = _strides(row, store, lanes.var, loops, registers, algebra)
    register = algebra.simplify(_op("floordiv", first, size))
    values: dict[Expr, Expr] = {lanes.var: lane}
    for loop, stride in strides.items():
        digit = _op("floordiv", register, stride)
        values[loop.var] = algebra.simplify(_op("mod", digit, _count(loop)))
    index = tuple([algebra.simplify(substitute(i, values)) for i in load.args])
    named = Load(load.buffer, index, load.flat)
    if finder.piece(named, element, width // size) != width:
        raise NoRows(
            f"the {width} bytes of a row do not follow each other in {load.buffer.name}, at a "
            f"multiple of {width}: {named} for {element.name} in {element.extent}"
        )
    zero: dict[Expr, Expr] = {loop.var: ZERO for loop in loops}
    start = [algebra.simplify(substitute(i, zero)) for i in store.index]
    whole = replace(
        store,
        index=(*start[:-1], algebra.add(start[-1], element)),
        value=named,
    )
    body: Stmt = Loop(element, ParallelType.vectorize, "", (whole,), tile.origin)
    if rows < row.lanes:
        body = If(Op("lt", (lanes.var, integer(rows)), dtypes.bool_), (body,))
    return replace(lanes, body=(body,))


def first_elements(tile: Tile) -> dict[Buffer, Load]:
    """Return of each buffer the first element that a lane has, or that of the row that it names."""
    found: dict[Buffer, Load] = {}
    loops = [n for n, _ in walk(tile.body) if isinstance(n, Loop)]
    rows, inner = [n for n in loops if is_vector(n)], {n.var for n in loops}
    for node, _ in walk(tile.body):
        used = [load for e in expressions(node) for load in loads(e)]
        for load in [*used, *([node.own] if isinstance(node, Store) else [])]:
            one = inner.isdisjoint(free_indices(load.args[-1]))  # there is one register
            first = load.args if one else (*load.args[:-1], ZERO)
            first = first_lane(rows[0], load.args) if rows else first
            found[load.buffer] = Load(load.buffer, first, load.flat)
    return found


def _parts(tile: Tile) -> tuple[Loop, list[Loop], Store]:
    """Return the loop over lanes, those inside of it, and the one copy of a tile's body."""
    found: list[Loop] = []
    body = tile.body
    while len(body) == 1 and isinstance(body[0], Loop):
        found.append(body[0])
        body = body[0].body
    lanes = [loop for loop in found if loop.parallel is ParallelType.block_x]
    store = body[0] if len(body) == 1 else None
    if len(lanes) != 1 or not isinstance(store, Store) or not isinstance(store.value, Load):
        raise NoRows("it is not one copy in loops over lanes and registers")
    source, target = dict(tile.operands).get("s"), dict(tile.operands).get("d")
    if store.storage is not target or store.value.buffer is not source:
        raise NoRows("it does not copy s to d")
    if store.value.buffer.memory is not Memory.SHARED:
        raise NoRows(f"{store.value.buffer.name} is in {store.value.buffer.memory.value} memory")
    if store.storage.dtype is not store.value.buffer.dtype:
        raise NoRows(f"it copies {store.value.buffer.dtype} to {store.storage.dtype}")
    if store.atomic or store.flat:
        raise NoRows("its result is stored atomically or by an offset")
    return lanes[0], [loop for loop in found if loop is not lanes[0]], store


def _count(loop: Loop) -> int:
    if not isinstance(loop.extent, int):
        raise NoRows(f"the loop over {loop.index} is not static")
    return loop.extent


def _strides(
    row: Instruction,
    store: Store,
    lane: Index,
    loops: Sequence[Loop],
    wanted: int,
    algebra: Simplifier,
) -> dict[Loop, int]:
    """Return how many registers lie between the iterations of each loop inside of that of lanes.

    Together they go through `wanted` registers in a row.
    """
    shape, index = list(store.storage.shape), list(store.index)
    if store.storage.memory is Memory.WARP:
        if index[-2] is not lane:
            raise NoRows(f"{store.own} is no register of the lane at hand")
        del shape[-2], index[-2]
    sizes = [int(e.value) if isinstance(e, Const) else 0 for e in shape]
    offset: Expr = ZERO
    for n, place in enumerate(index):
        offset = algebra.add(offset, algebra.mul(place, integer(prod(sizes[n + 1 :]))))
    found: dict[Loop, int] = {}
    for loop in loops:
        zero: dict[Expr, Expr] = {other.var: ZERO for other in loops}
        step = algebra.sub(
            algebra.simplify(substitute(offset, {**zero, loop.var: ONE})),
            algebra.simplify(substitute(offset, zero)),
        )
        if not isinstance(step, Const):
            raise NoRows(f"its registers are not in the order of the loop over {loop.index}")
        found[loop] = int(step.value)
        offset = algebra.sub(offset, algebra.mul(loop.var, step))
    count = 1
    for loop in sorted(found, key=lambda inner: found[inner]):
        if found[loop] != count:
            raise NoRows("the registers of its loops do not follow each other")
        count *= _count(loop)
    if count != wanted:
        size = store.storage.dtype.size
        raise NoRows(
            f"{row.name} gives a lane {wanted * size} bytes, and the loops of a tile inside of "
            f"that over lanes store {count * size}"
        )
    if any(loop.var in free_indices(offset) for loop in loops):
        raise NoRows("the registers of its loops do not follow each other")
    return found


def _digits(number: Expr, extents: Sequence[int]) -> list[Expr]:
    """Return the indices along axes of an element in C order."""
    found: list[Expr] = []
    for n, extent in enumerate(extents):
        digit = _op("floordiv", number, prod(extents[n + 1 :]))
        found.append(_op("mod", digit, extent) if n else digit)
    return found


def _places(fragment: Fragment, element: Sequence[Expr]) -> tuple[Expr, Expr]:
    """Return the lane and the register of an element."""
    digits: dict[str, Expr] = {}
    for index, group in zip(element, fragment.axes, strict=True):
        values = _digits(index, [fragment.sizes[name] for name in group])
        digits.update(zip(group, values, strict=True))
    made: list[Expr] = []
    for group in fragment.places:
        number: Expr = ZERO
        for name in group:
            number = _op("add", _op("mul", number, fragment.sizes[name]), digits[name])
        made.append(number)
    lane, register = made
    return lane, register


def _op(name: str, a: Expr, b: Expr | int) -> Expr:
    return Op(name, (a, integer(b) if isinstance(b, int) else b), dtypes.index)
