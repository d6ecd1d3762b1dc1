"""Count conflicts of shared memory's banks, by the addresses that each warp of a block forms.

Shared memory has 32 banks of 4 bytes. Lanes that ask one bank for different words wait for each
other; those that ask for the same word do not. An access of up to 4 bytes serves all 32 lanes at
once, one of 8 bytes half a warp, one of 16 bytes a quarter.

The nest is executed for a whole block at once, as far as indices go: the values of elements are
not known, and where a test depends on one, both of its branches are taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from loopnest import kir
from loopnest.kir.shared_memory import shared_layout, swizzled
from loopnest.kir.vector_access import WideAccess, wide_accesses
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import (
    Buffer,
    Const,
    Expr,
    Index,
    LaunchIndex,
    Load,
    Local,
    Op,
    Symbol,
    loads,
)

BANKS, WORD, WARP = 32, 4, 32

OPERATIONS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "floordiv": np.floor_divide,
    "mod": np.mod,
    "ceildiv": lambda a, b: -(-a // b),
    "min": np.minimum,
    "max": np.maximum,
    "bitxor": np.bitwise_xor,
    "bitand": np.bitwise_and,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
}


class Unknown(Exception):
    """An expression depends on the values of elements."""


def warp_conflicts(addresses: np.ndarray, size: int) -> int:
    """Return how many passes more than without conflicts an access of a warp takes.

    Args:
        addresses: in bytes, of the lanes 0 to 31; negative where a lane takes no part.
        size: bytes that each lane accesses.
    """
    # Banks repeat every 128 bytes: iterations of a loop mostly move a warp by a multiple of them.
    active = addresses >= 0
    start = int(addresses.min(where=active, initial=1 << 62)) // (BANKS * WORD) * (BANKS * WORD)
    return _passes(tuple(np.where(active, addresses - start, -1).tolist()), size)


@cache
def _passes(addresses: tuple[int, ...], size: int) -> int:
    lanes = WARP // max(1, size // WORD)
    passes = 0
    for first in range(0, WARP, lanes):
        group = [address // WORD for address in addresses[first : first + lanes] if address >= 0]
        words = {w + k for w in group for k in range(max(1, size // WORD))}
        degree = max(Counter(w % BANKS for w in words).values(), default=1)
        passes += degree - 1
    return passes


@dataclass
class Access:
    """What the accesses of one place of the nest came to.

    Args:
        buffer: in SHARED memory.
        is_store: whether it writes.
        size: bytes that a lane accesses at once.
        count: how often a warp with active lanes executed it.
        conflicts: passes that conflicts added, in all.
    """

    buffer: str
    is_store: bool
    size: int
    count: int = 0
    conflicts: int = 0

    def __str__(self) -> str:
        kind = "store to" if self.is_store else "load of"
        return f"{kind} {self.buffer}, {self.size} bytes a lane: {self.conflicts} in {self.count}"


def shared_accesses(program: kir.Program, sizes: Mapping[str, int]) -> list[Access]:
    """Return the accesses to SHARED memory of the first block, with their conflicts."""
    block = _Block(program, sizes)
    block.run(program.body, block.everybody)
    return list(block.found.values())


@dataclass
class _Block:
    """The threads of a block, [warps, 32] at once."""

    program: kir.Program
    sizes: Mapping[str, int]
    found: dict[tuple[object, int], Access] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.values: dict[object, np.ndarray] = {}
        self.offsets = {
            b: int(self.value(e)) for b, e in shared_layout(self.program).offsets.items()
        }
        self.wide: dict[object, WideAccess] = {
            a.statement if a.load is None else a.load: a
            for a in wide_accesses(self.program)
            if a.buffer.memory is Memory.SHARED
        }
        self.shared: dict[int, list[tuple[Load | kir.Store, bool]]] = {}
        self.entered: set[int] = set()
        for node, ancestors in kir.walk(self.program.body):
            found = list(_shared_of(node))
            self.shared[id(node)] = found
            if found or isinstance(node, kir.Collective):  # its results are names that follow it
                self.entered.update(map(id, (node, *ancestors)))
        extents = {d: int(self.value(e)) for d, e in self.program.launch}
        block = [d for d in ParallelType if d.is_block]
        threads = int(np.prod([extents.get(d, 1) for d in block]))
        number = np.arange(-(-threads // WARP) * WARP).reshape(-1, WARP)
        self.everybody = number < threads
        for dimension in ParallelType:
            if dimension.is_grid:
                self.values[dimension] = np.zeros_like(number)
            elif dimension.is_block:
                self.values[dimension] = number % extents.get(dimension, 1)
                number = number // extents.get(dimension, 1)

    def value(self, node: Expr) -> np.ndarray:
        """Evaluate an index expression or a test in all threads."""
        match node:
            case Const():
                return np.asarray(node.value)
            case Symbol():
                return np.asarray(self.sizes[node.name])
            case LaunchIndex():
                return self.values[node.dimension]
            case Index() | Local() if node in self.values:
                return self.values[node]
            case Op() if node.op in OPERATIONS:
                return np.asarray(OPERATIONS[node.op](*[self.value(a) for a in node.args]))
        raise Unknown

    def run(self, body: tuple[kir.Stmt, ...], active: np.ndarray) -> None:
        for node in body:
            match node:
                case kir.Loop():
                    if id(node) in self.entered:
                        self.loop(node, active)
                case kir.If():
                    if id(node) in self.entered:
                        self.branch(node, active)
                case kir.Collective():
                    self.run(node.body, active)
                case _:
                    self.statement(node, active)

    def loop(self, node: kir.Loop, active: np.ndarray) -> None:
        extent = self.value(node.var.extent)
        if node.parallel.is_block or node.parallel.is_grid:
            self.values[node.var] = self.values[node.parallel]
            self.run(node.body, active & (self.values[node.var] < extent))
            return
        for number in range(int(extent.max())):
            self.values[node.var] = np.asarray(number)
            self.run(node.body, active)

    def branch(self, node: kir.If, active: np.ndarray) -> None:
        try:
            holds = np.broadcast_to(self.value(node.condition), active.shape)
            cases = ((node.body, active & holds), (node.orelse, active & ~holds))
        except Unknown:
            cases = ((node.body, active), (node.orelse, active))
        for body, threads in cases:
            if threads.any():
                self.run(body, threads)

    def statement(self, node: kir.Stmt, active: np.ndarray) -> None:
        for key, is_store in self.shared[id(node)]:
            self.access(key, active, is_store=is_store)
        if isinstance(node, kir.Let):
            try:
                self.values[node.var] = self.value(node.value)
            except Unknown:
                self.values.pop(node.var, None)

    def access(self, key: Load | kir.Store, active: np.ndarray, *, is_store: bool) -> None:
        buffer, index = (
            (key.buffer, key.args) if isinstance(key, Load) else (key.storage, key.index)
        )
        size = buffer.dtype.size
        wide = self.wide.get(key)
        if wide is not None:
            lane = int(self.values[wide.loop.var])
            if lane % wide.piece_lanes:
                return  # part of the access of an earlier lane
            size = wide.piece_bytes
        found = self.found.setdefault((key, size), Access(buffer.name, is_store, size))
        start = self.offsets[buffer] + self.element(buffer, index, key.flat) * buffer.dtype.size
        addresses = np.where(active, start, -1)
        assert not (addresses[active] % size).any(), f"{found}: not aligned"
        for warp in addresses[active.any(axis=1)]:
            found.count += 1
            found.conflicts += warp_conflicts(warp, size)

    def element(self, buffer: Buffer, index: tuple[Expr, ...], flat: bool) -> np.ndarray:
        """Return the offset of an element from the start of its buffer, in elements."""
        if flat:
            return self.value(index[0])
        terms = zip(swizzled(buffer, index), buffer.strides, strict=True)
        return np.asarray(sum(self.value(i) * self.value(s) for i, s in terms))


def _shared_of(node: kir.Stmt) -> Iterator[tuple[Load | kir.Store, bool]]:
    """Yield the accesses of a statement to SHARED memory, and whether each is its store."""
    if isinstance(node, (kir.Loop, kir.If, kir.Collective)):
        return
    for load in dict.fromkeys([load for e in kir.expressions(node) for load in loads(e)]):
        if load.buffer.memory is Memory.SHARED:
            yield load, False
    if isinstance(node, kir.Store) and node.storage.memory is Memory.SHARED:
        yield node, True


def conflicts(program: kir.Program, sizes: Mapping[str, int]) -> Iterator[Access]:
    """Yield the accesses of the first block that conflict."""
    yield from [a for a in shared_accesses(program, sizes) if a.conflicts]
