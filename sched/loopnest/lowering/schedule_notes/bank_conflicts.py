"""Notes on SHARED buffers whose accesses let the lanes of a warp wait for each other.

Shared memory has 32 banks of 4 bytes: word w lies in bank w % 32. A bank gives one word at a time;
lanes that ask it for different words take turns, lanes that ask for one word do not. An access of
8 bytes serves half a warp at once, one of 16 bytes a quarter.

Counted is the first warp of the first block, in the first iteration of each serial loop: a later
iteration moves all lanes alike, or permutes them by a swizzle. An access whose place depends on
data, on a size or on a block of symbolic extents has no note.

Source: CUDA C++ Best Practices Guide, "Shared Memory and Memory Banks".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from loopnest.kir import Collective, If, Let, Loop, Program, Stmt, Store, Tile, expressions
from loopnest.kir.buffers import Buffer
from loopnest.kir.lowered import Note
from loopnest.kir.matrix_rows import named
from loopnest.kir.shared_memory import swizzled
from loopnest.kir.tiles import in_registers
from loopnest.kir.vector_access import WideAccess, wide_accesses
from loopnest.lowering.schedule_notes.lowered_schedule import Lowering
from loopnest.numerics.float64_math import APPLY
from loopnest.scalar.enums import BLOCK_DIMENSIONS, Memory
from loopnest.scalar.expr import Const, Expr, LaunchIndex, Load, Op, integer, loads
from loopnest.tensor.layout_transforms import stored_axes
from loopnest.tensor.tensor_view import TensorView

_BANKS, _WORD, _WARP = 32, 4, 32
_MOST_PAD = 16
"""Bytes of padding that are tried: what an access of 16 bytes needs to find other banks."""


@dataclass(frozen=True, slots=True)
class _BankAccess:
    """What the lanes of a warp access at once: elements `index` of `buffer`, a piece each."""

    buffer: Buffer
    index: tuple[Any, ...]
    flat: bool
    active: Any
    bytes: int
    user: str

    def turns(self) -> tuple[int, int]:
        """Return how often the banks are asked, and how often they would be without conflicts."""
        if self.flat:
            offset = self.index[0]
        else:
            strides = [int(s.value) for s in self.buffer.strides if isinstance(s, Const)]
            offset = sum(i * s for i, s in zip(self.index, strides, strict=True))
        first = np.broadcast_to(offset * self.buffer.dtype.size // _WORD, (_WARP,))
        length = max(1, self.bytes // _WORD)
        taken = least = 0
        for start in range(0, _WARP, _WARP // length):
            lanes = slice(start, start + _WARP // length)
            words = {int(w) + k for w in first[lanes][self.active[lanes]] for k in range(length)}
            taken += max(Counter([word % _BANKS for word in words]).values(), default=0)
            least += bool(words)
        return taken, least


def bank_notes(lowering: Lowering) -> Iterator[Note]:
    """Yield a note for each SHARED tensor of which an access takes more turns than it needs."""
    worst: dict[Buffer, _BankAccess] = {}
    for launch in lowering.program.launches:
        for access in _accesses(named(in_registers(launch))):
            taken, least = access.turns()
            other = worst.get(access.buffer)
            if taken > least and (other is None or taken > other.turns()[0]):
                worst[access.buffer] = access
    asked = {i.tensor: i.origin for i in lowering.intents if i.kind == "memory"}
    for tensor, where in lowering.storage.items():
        if where.buffer not in worst:
            continue
        access, held = worst[where.buffer], lowering.held[tensor]
        taken, least = access.turns()
        origin = asked.get(tensor, held.placed)
        yield Note(
            held.name,
            f"{held.name}.memory = ln.SHARED",
            f"{access.user} takes a warp {taken} turns instead of {least}",
            f"its lanes ask for different words of the same bank, one of {_BANKS}, which serves "
            "them one after the other",
            _remedy(lowering, tensor, access),
            origin,
        )


def _remedy(lowering: Lowering, tensor: TensorView, access: _BankAccess) -> str:
    """Return the least padding of rows that parts the lanes, or a swizzle."""
    where, held = lowering.storage[tensor], lowering.held[tensor]
    swizzle = f"{held.name}.allocation_domain.swizzle(ln.Swizzle.XOR, a, b) permutes its rows"
    buffer = access.buffer
    if access.flat or buffer.swizzles or len(buffer.shape) < 2:
        return swizzle
    axes = where.axes or tuple([held.leaf[place] for place in where.places])
    size = buffer.dtype.size
    step = max(1, access.bytes // size)  # pieces of several bytes stay aligned
    for pad in range(step, max(step, _MOST_PAD // size, _WORD // size) + 1, step):
        longer = _padded(buffer, pad)
        if longer is None:
            break
        taken, least = replace(access, buffer=longer).turns()
        if taken == least:
            stored = stored_axes(held.domain)
            if where.axes is None and axes[-1] in held.leaf:
                call = f"{held.name}.set_allocation(pad={{{held.leaf.index(axes[-1])}: {pad}}})"
            elif axes[-1] in stored:
                call = f"{held.name}.allocation_domain.pad({stored.index(axes[-1])}, {pad})"
            else:
                break
            return f"{call} makes its rows longer, or {swizzle}"
    return swizzle


def _padded(buffer: Buffer, pad: int) -> Buffer | None:
    """Return a row-major buffer whose rows are so many elements longer, None of another layout."""
    strides = [int(s.value) if isinstance(s, Const) else 0 for s in buffer.strides]
    if strides[-1] != 1 or any(s == 0 or s % strides[-2] for s in strides[:-1]):
        return None
    row = strides[-2]
    longer = [integer(s // row * (row + pad)) for s in strides[:-1]]
    return replace(buffer, strides=(*longer, buffer.strides[-1]))


def _accesses(program: Program) -> Iterator[_BankAccess]:
    """Yield what the first warp of a launch accesses in SHARED memory."""
    extents: dict[Any, int] = {}
    for dimension, extent in program.launch:
        if dimension.is_block:
            if not isinstance(extent, Const):
                return
            extents[dimension] = int(extent.value)
    number = np.arange(_WARP)
    values: dict[Any, Any] = {}
    for dimension in BLOCK_DIMENSIONS:
        values[dimension] = number % extents.get(dimension, 1)
        number = number // extents.get(dimension, 1)
    wide: dict[object, WideAccess] = {}
    wide |= {a.statement if a.load is None else a.load: a for a in wide_accesses(program)}
    yield from _walk(program.body, number == 0, values, wide)


def _walk(
    body: tuple[Stmt, ...], active: Any, values: dict[Any, Any], wide: Mapping[object, WideAccess]
) -> Iterator[_BankAccess]:
    """Yield the accesses of statements in the lanes that are active."""
    for node in body:
        if isinstance(node, Loop):
            values[node.var] = values.get(node.parallel, np.zeros(_WARP, np.int64))
            extent = _value(node.var.extent, values)
            inside = active if extent is None else active & (values[node.var] < extent)
            yield from _walk(node.body, inside, values, wide)
        elif isinstance(node, If):
            found = _value(node.condition, values)
            # Where data or sizes decide, either branch may run in all lanes.
            yield from _walk(node.body, active if found is None else active & found, values, wide)
            other = active if found is None else active & ~np.asarray(found)
            yield from _walk(node.orelse, other, values, wide)
        elif isinstance(node, (Collective, Tile)):
            yield from _walk(node.body, active, values, wide)
        else:
            yield from _of_statement(node, active, values, wide)


def _of_statement(
    node: Stmt, active: Any, values: dict[Any, Any], wide: Mapping[object, WideAccess]
) -> Iterator[_BankAccess]:
    found: list[tuple[Load | Store, Buffer, tuple[Expr, ...], bool, str]] = []
    for load in dict.fromkeys([load for e in expressions(node) for load in loads(e)]):
        by = f"a load of it by {node.tensor}" if isinstance(node, Store) else "a load of it"
        found.append((load, load.buffer, load.args, load.flat, by))
    if isinstance(node, Store):
        found.append((node, node.storage, node.index, node.flat, "a store to it"))
    for key, buffer, index, flat, by in found:
        if buffer.memory is not Memory.SHARED or not np.any(active):
            continue
        places = [_value(i, values) for i in (index if flat else swizzled(buffer, index))]
        if any(place is None for place in places):
            continue
        if not flat and not all(isinstance(s, Const) for s in buffer.strides):
            continue
        size = wide[key].piece_bytes if key in wide else buffer.dtype.size
        yield _BankAccess(buffer, tuple(places), flat, np.broadcast_to(active, (_WARP,)), size, by)
    if isinstance(node, Let):
        value = _value(node.value, values)
        if value is not None:
            values[node.var] = value


def _value(node: Expr, values: Mapping[Any, Any]) -> Any:
    """Return an expression in each lane, None where data or sizes decide it."""
    if isinstance(node, Const):
        return node.value
    if isinstance(node, LaunchIndex):
        return values.get(node.dimension, 0)
    if isinstance(node, Op) and node.op in APPLY:
        args = [_value(arg, values) for arg in node.args]
        return None if any(arg is None for arg in args) else APPLY[node.op](*args)
    return values.get(node)
