"""Which vectorized loops are printed in C with vector types, and what in them differs by lane.

A C compiler vectorizes a loop when its cost model says so, and where a tile of sums has to stay in
registers it often says no, or spills. A loop of plain arithmetic on neighbouring elements needs no
such judgement: each of its statements is one operation on vectors::

    for v in 16:  # vectorize                  for (v = 0; v < 16; v += LN_LANES(ln_f32x16))
      T4 = T2 * b[k, j * 16 + v]                 ln_f32x16 T4 = T2 * LN_VEC(ln_f32x16, b[…]);
      T6[i, v] = T6[i, v] + T4                   LN_VEC(ln_f32x16, T6[…]) = … + T4;

The header cuts a vector type to the registers of the machine that compiles it, so that the text is
the same everywhere. What has no form with vector types (calls, selects, conversions, tests of a
lane, elements that are no neighbours) stays a loop over lanes, which the compiler may vectorize.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from loopnest.kir import Allocate, If, Let, Loop, Stmt, Store, expressions, walk
from loopnest.kir.buffers import Buffer
from loopnest.kir.vector_access import VectorFinder
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import ONE, Expr, Load, Local, Op, loads
from loopnest.scalar.expr import walk as nodes_of

NAMES = {dtypes.float32: "f32", dtypes.float64: "f64"}
"""The element types that have vectors, and how the header calls them."""

WIDTHS = range(16, 65)
"""Bytes of a vector type: from a register of SSE or NEON to one of AVX-512; `loopnest_kernel.h`
has a type for each."""

_ARITHMETIC = frozenset({"add", "sub", "mul", "div", "neg"})


@dataclass(eq=False, slots=True)
class LaneVectors:
    """What a vectorized loop needs to be printed with vector types.

    Args:
        dtype: of all that differs by lane.
        lanes: iterations of the loop.
        varying: private scalars and names whose value differs by lane.
        places: the loads of neighbouring elements.
        spread: the stores of one value to all lanes.
    """

    dtype: DType
    lanes: int
    varying: set[Buffer | Local] = field(default_factory=set)
    places: set[Load] = field(default_factory=set)
    spread: set[Store] = field(default_factory=set)

    @property
    def is_line(self) -> bool:
        """Whether the lanes fill a cache line."""
        return self.lanes * self.dtype.size == WIDTHS[-1]

    @property
    def type_name(self) -> str:
        """The vector type in the header: ``ln_f32x16``."""
        return f"ln_{NAMES[self.dtype]}x{self.lanes}"


def lane_vectors(loop: Loop, finder: VectorFinder) -> LaneVectors | None:
    """Return how to print `loop` with vector types, None where it stays a loop over lanes.

    Args:
        loop: a vectorized loop whose iterations write elements of their own.
        finder: knows which elements are neighbours.
    """
    stored = {n.storage.dtype for n, _ in walk(loop.body) if isinstance(n, Store)}
    lanes = loop.extent
    if len(stored) != 1 or not isinstance(lanes, int) or lanes & (lanes - 1):
        return None
    (dtype,) = stored
    if dtype not in NAMES or lanes * dtype.size not in WIDTHS:
        return None
    found = LaneVectors(dtype, lanes)
    reader = _LaneReader(loop, finder, found)
    reader.learn_what_varies()
    return found if reader.reads(loop.body) else None


def is_short(loop: Loop) -> bool:
    """Whether an ordinary loop has as few iterations as a vector has elements."""
    ordinary = loop.parallel in (ParallelType.serial, ParallelType.unroll)
    lanes = loop.extent
    return ordinary and isinstance(lanes, int) and any(lanes * d.size in WIDTHS for d in NAMES)


def reads_own_lane(loop: Loop) -> bool:
    """Whether each iteration reads, of what the loop stores, only what it stores itself.

    Vectorized loops promise that; of an ordinary one it is seen where indices are the same.
    """
    stored: dict[Buffer, set[tuple[Expr, ...]]] = {}
    nodes = [node for node, _ in walk(loop.body)]
    for node in nodes:
        if isinstance(node, Store):
            stored.setdefault(node.storage, set()).add(node.index)
    found = {load for node in nodes for e in expressions(node) for load in loads(e)}
    return all(stored.get(load.buffer, {load.args}) == {load.args} for load in found)


class _LaneReader:
    """Reads the statements of one loop; stops at what has no vector form."""

    def __init__(self, loop: Loop, finder: VectorFinder, found: LaneVectors) -> None:
        self.loop = loop
        self.finder = finder
        self.found = found
        self.private = {
            n.storage
            for n, _ in walk(loop.body)
            if isinstance(n, Allocate) and n.storage.memory is Memory.LOCAL
        }

    def learn_what_varies(self) -> None:
        """Fill `varying`: a scalar that differs by lane after one statement is a vector in all."""
        known = -1
        while known != len(self.found.varying):
            known = len(self.found.varying)
            for node, _ in walk(self.loop.body):
                if isinstance(node, Let) and self._varies(node.value):
                    self.found.varying.add(node.var)
                elif isinstance(node, Store) and self._varies(node.value):
                    self.found.varying |= {node.storage} & self.private

    def reads(self, body: tuple[Stmt, ...]) -> bool:
        """Whether all of `body` has a vector form; notes the accesses in it."""
        return all(self._reads(node) for node in body)

    def _reads(self, node: Stmt) -> bool:
        match node:
            case Allocate():
                return node.storage in self.private and node.storage.size is ONE
            case Let():
                return node.var not in self.found.varying or self._is_vector(node.value)
            case Store():
                return self._stores(node)
            case If():
                steady = not self._varies(node.condition)
                return steady and self.reads(node.body) and self.reads(node.orelse)
        return False

    def _stores(self, node: Store) -> bool:
        if node.storage in self.private:
            if node.storage not in self.found.varying:
                return True
        elif not self._are_neighbours(node.storage, node.index, node.flat):
            return False
        if not self._varies(node.value):
            self.found.spread.add(node)
        return self._is_vector(node.value)

    def _varies(self, value: Expr) -> bool:
        """Whether `value` differs by lane."""
        return any(self._differs(node) for node in nodes_of(value))

    def _differs(self, node: Expr) -> bool:
        if isinstance(node, Load):
            return node.buffer in self.found.varying
        return node is self.loop.var or node in self.found.varying

    def _is_vector(self, value: Expr) -> bool:
        """Whether a value that differs by lane is one expression of vectors and plain numbers."""
        if not self._varies(value):
            return value.dtype is self.found.dtype
        if value.dtype is not self.found.dtype:
            return False
        match value:
            case Local():
                return True
            case Load():
                if value.buffer in self.private:
                    return True
                self.found.places.add(value)
                return self._are_neighbours(value.buffer, value.args, value.flat)
            case Op():
                return value.op in _ARITHMETIC and all(self._is_vector(a) for a in value.args)
        return False

    def _are_neighbours(self, buffer: Buffer, index: tuple[Expr, ...], flat: bool) -> bool:
        """Whether the lanes access neighbouring elements, at an index of plain numbers."""
        if buffer.dtype is not self.found.dtype or any(_named(i, self.found) for i in index):
            return False
        return self.finder.are_neighbours(buffer, index, flat, self.loop.var, self.found.lanes)


def _named(index: Expr, found: LaneVectors) -> bool:
    return any(
        node in found.varying or (isinstance(node, Load) and node.buffer in found.varying)
        for node in nodes_of(index)
    )
