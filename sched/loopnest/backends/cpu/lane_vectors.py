"""Which vectorized loops are printed in C with vector types, and what in them differs by lane.

A C compiler vectorizes a loop when its cost model says so, and where a tile of sums has to stay in
registers it often says no, or spills. A loop of plain arithmetic on neighbouring elements needs no
such judgement: each of its statements is one operation on vectors::

    for v in 16:  # vectorize                  for (v = 0; v < 16; v += LN_LANES(ln_f32x16))
      T4 = T2 * b[k, j * 16 + v]                 ln_f32x16 T4 = T2 * LN_VEC(ln_f32x16, b[…]);
      T6[i, v] = T6[i, v] + T4                   LN_VEC(ln_f32x16, T6[…]) = … + T4;

Functions, comparisons and selects have such a form too: a condition that differs by lane is a mask.
Where a loop ends before its last lane, at the end of a row, its loads and stores are those of the
lanes that are left. Booleans in memory are bytes, 0 or 1: a load makes a mask of as many bytes as
there are lanes, and a store makes bytes of a mask. The header cuts a vector type to the registers
of the machine that compiles it, so that the text is the same everywhere. What has no form with
vector types (conversions, other functions, elements that are no neighbours) stays a loop over
lanes, which the compiler may vectorize.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from loopnest.backends.cpu.fission.loop_form import upper_bound
from loopnest.kir import Allocate, If, Let, Loop, Program, Stmt, Store, expressions, walk
from loopnest.kir.vector_access import VectorFinder
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import ONE, Buffer, Const, Expr, Index, Load, Local, Op, loads, variables
from loopnest.scalar.expr import walk as nodes_of

NAMES = {dtypes.float32: "f32", dtypes.float64: "f64"}
"""The element types that have vectors, and how the header calls them."""

WIDTHS = range(16, 65)
"""Bytes of a vector type: from a register of SSE or NEON to one of AVX-512; `loopnest_kernel.h`
has a type for each."""

_MOST_BYTES = 8 * WIDTHS[-1]
"""Loops of more lanes are no handful of vectors."""

STEPS = (-1, 2, -2, 3, -3, 4, -4)
"""Elements from one lane to the next that are loaded by vectors and shuffles, besides 1."""

ARITHMETIC = frozenset({"add", "sub", "mul", "div", "neg", "reciprocal"})
"""What C's operators do with vectors."""

FUNCTIONS = frozenset({
    "exp", "exp2", "log", "log2", "log1p", "sqrt", "rsqrt", "tanh", "sigmoid", "erf",
    "floor", "ceil", "trunc", "round", "abs", "max", "min", "fma",
})  # fmt: skip
"""The operations that the header has for each vector type."""

LONG = frozenset({"exp", "exp2", "log", "log2", "log1p", "tanh", "sigmoid", "erf"})
"""Those that take as long as an element from memory does."""

COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_BELOW = {"lt": ("lt", False), "le": ("le", False), "gt": ("lt", True), "ge": ("le", True)}


@dataclass(eq=False, slots=True)
class LaneVectors:
    """What a vectorized loop needs to be printed with vector types.

    Args:
        dtype: of all that differs by lane, but for conditions.
        lanes: iterations of the loop.
        varying: private scalars and names whose value differs by lane.
        places: the loads of neighbouring elements, and of elements a few steps apart.
        steps: how many, where the loads are not of neighbours.
        spread: the stores of one value to all lanes.
        limit: how many lanes there are, where that is not all of them.
        inside: the loads and stores whose lanes all lie in their array, beyond the limit and a
            mask too.
        masks: the conditions on a lane's index, as "the index is below (or, False, not below)".
        calls: whether functions of the vector type are called.
        takes_long: whether some of them take as long as memory does.
    """

    dtype: DType
    lanes: int
    var: Index
    varying: set[Buffer | Local] = field(default_factory=set)
    places: set[Load] = field(default_factory=set)
    steps: dict[Load, int] = field(default_factory=dict)
    spread: set[Store] = field(default_factory=set)
    limit: Expr | None = None
    inside: set[Load | Store] = field(default_factory=set)
    masks: dict[Op, tuple[Expr, bool]] = field(default_factory=dict)
    calls: bool = False
    takes_long: bool = False

    @property
    def is_line(self) -> bool:
        """Whether the lanes fill cache lines."""
        return self.lanes * self.dtype.size >= WIDTHS[-1]

    @property
    def short_name(self) -> str:
        """The vector type without its prefix: ``f32x16``."""
        return f"{NAMES[self.dtype]}x{min(self.lanes, WIDTHS[-1] // self.dtype.size)}"

    @property
    def type_name(self) -> str:
        """The vector type in the header: ``ln_f32x16``."""
        return f"ln_{self.short_name}"

    def varies(self, value: Expr) -> bool:
        """Whether `value` differs by lane."""
        return any(self._differs(node) for node in nodes_of(value))

    def _differs(self, node: Expr) -> bool:
        if isinstance(node, Load):
            return node.buffer in self.varying
        return node is self.var or node in self.varying


def lane_vectors(loop: Loop, finder: VectorFinder, limit: Expr | None = None) -> LaneVectors | None:
    """Return how to print `loop` with vector types, None where it stays a loop over lanes.

    Args:
        loop: a vectorized loop whose iterations write elements of their own.
        finder: knows which elements are neighbours.
        limit: how many iterations it runs, where that is not all of them.
    """
    lanes = loop.extent
    if not isinstance(lanes, int) or lanes & (lanes - 1):
        return None
    dtype = _dtype(loop)
    if dtype not in NAMES or not WIDTHS[0] <= lanes * dtype.size <= _MOST_BYTES:
        return None
    found = LaneVectors(dtype, lanes, loop.var, limit=limit, calls=limit is not None)
    reader = _LaneReader(loop, finder, found)
    reader.learn_what_varies()
    if not reader.reads(loop.body):
        return None
    if limit is None:  # what is loaded in any case needs no mask where a condition guards it
        found.inside |= found.places & set(_always_loaded(loop.body))
    return found


def _always_loaded(body: tuple[Stmt, ...]) -> Iterator[Load]:
    """Yield what each iteration loads, whatever its conditions say."""
    for node in body:
        if isinstance(node, (Let, Store)):
            for value in expressions(node):
                yield from _unguarded_loads(value)


def _unguarded_loads(value: Expr) -> Iterator[Load]:
    if isinstance(value, Load):
        yield value
    elif isinstance(value, Op):
        guarding = value.op in ("where", "and", "or")
        for part in value.args[:1] if guarding else value.args:
            yield from _unguarded_loads(part)


def _dtype(loop: Loop) -> DType | None:
    """Return the one type that a loop stores besides booleans, or else loads; None for several."""
    nodes = [node for node, _ in walk(loop.body)]
    found = {n.storage.dtype for n in nodes if isinstance(n, Store)} - {dtypes.bool_}
    if not found:
        values = [e for n in nodes for e in expressions(n)]
        found = {load.dtype for e in values for load in loads(e)} - {dtypes.bool_}
    return found.pop() if len(found) == 1 else None


def is_short(loop: Loop, in_work: bool) -> bool:
    """Whether an ordinary loop has as few iterations as a vector has elements.

    Args:
        loop: the loop.
        in_work: whether it is part of what one thread does: loops over cores are ordinary there.
    """
    ordinary = loop.parallel in (ParallelType.serial, ParallelType.unroll)
    ordinary = ordinary or (in_work and loop.parallel is ParallelType.cpu_parallel)
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
            for node, around in walk(self.loop.body):
                if isinstance(node, Let) and self._varies(node.value):
                    self.found.varying.add(node.var)
                elif isinstance(node, Store) and self._differs(node, around):
                    self.found.varying |= {node.storage} & self.private

    def _differs(self, node: Store, around: tuple[Stmt, ...]) -> bool:
        """Whether lanes store different values, or some of them none."""
        tests = [n.condition for n in around if isinstance(n, If)]
        return any(self._varies(value) for value in (node.value, *tests))

    def reads(self, body: tuple[Stmt, ...], some: bool = False) -> bool:
        """Whether all of `body` has a vector form; notes the accesses in it.

        Args:
            body: the statements.
            some: whether only some lanes come here, or none.
        """
        return all(self._reads(node, some) for node in body)

    def _reads(self, node: Stmt, some: bool) -> bool:
        if some and isinstance(node, (Let, Store)) and self._loads_once(node.value):
            return False
        match node:
            case Allocate():
                return node.storage in self.private and node.storage.size is ONE
            case Let():
                known = node.value.dtype is node.var.dtype and self._has_form(node.value)
                return known or node.var not in self.found.varying
            case Store():
                return self._stores(node)
            case If():
                if some and self._loads_once(node.condition):
                    return False
                if self._varies(node.condition):
                    some = self.found.calls = True
                    if not self._is_mask(node.condition):
                        return False
                return self.reads(node.body, some) and self.reads(node.orelse, some)
        return False

    def _stores(self, node: Store) -> bool:
        if node.storage in self.private:
            if node.storage not in self.found.varying:
                return True
        elif not self._are_neighbours(node.own):
            return False
        elif self._are_inside(node.own):
            self.found.inside.add(node)
        if not self._varies(node.value):
            self.found.spread.add(node)
        self.found.calls |= node.storage.dtype.is_bool
        return node.value.dtype is node.storage.dtype and self._has_form(node.value)

    def _varies(self, value: Expr) -> bool:
        return self.found.varies(value)

    def _has_form(self, value: Expr) -> bool:
        """Whether a value is one expression of vectors, masks and plain numbers."""
        if value.dtype.is_bool:
            return not self._varies(value) or self._is_mask(value)
        return self._is_vector(value)

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
                return self._is_near(value) or self._are_steps_apart(value)
            case Op(op="where"):
                return self._is_select(value)
            case Op(op="cast", args=(condition,)):
                self.found.calls = True
                return condition.dtype.is_bool and self._is_mask(condition)
            case Op():
                self.found.calls |= value.op in FUNCTIONS
                self.found.takes_long |= value.op in LONG
                known = value.op in ARITHMETIC or value.op in FUNCTIONS
                return known and all(self._is_vector(a) for a in value.args)
        return False

    def _is_near(self, load: Load) -> bool:
        """Whether the lanes load a private scalar, or neighbouring elements; notes the latter."""
        if load.buffer in self.private:
            return True
        self.found.places.add(load)
        if self._are_inside(load):
            self.found.inside.add(load)
        return self._are_neighbours(load)

    def _is_select(self, value: Op) -> bool:
        """Whether a `where` is one: a load under a mask is that of the lanes of the mask."""
        condition, *branches = value.args
        if self._varies(condition):
            self.found.calls = True
            if not self._is_mask(condition) or any(self._loads_once(b) for b in branches):
                return False
        return all(self._is_vector(b) for b in branches)

    def _loads_once(self, value: Expr) -> bool:
        """Whether a load that is the same for all lanes is part of `value`."""
        return any(x.buffer.size is not ONE and not self._varies(x) for x in loads(value))

    def _is_mask(self, condition: Expr) -> bool:
        """Whether a condition that differs by lane is one operation on masks and vectors."""
        if isinstance(condition, Load):
            self.found.calls = True
            return self._is_near(condition)
        if not isinstance(condition, Op):
            return isinstance(condition, Local)
        args = condition.args
        if condition.op in ("and", "or"):
            if self._loads_once(args[1]):  # where the first does not decide
                return False
            return all(not self._varies(a) or self._is_mask(a) for a in args)
        if condition.op == "not":
            return self._is_mask(args[0])
        if condition.op in COMPARISONS and args[0].dtype is dtypes.index:
            return self._is_range(condition)
        known = condition.op in COMPARISONS or condition.op == "isnan"
        return known and all(self._is_vector(a) for a in args)

    def _is_range(self, condition: Op) -> bool:
        """Whether a comparison of indices says which lanes: the first ones, or all but them."""
        left, right = condition.args
        if condition.op not in _BELOW:
            return False
        op, swapped = _BELOW[condition.op]
        test = Op(op, (right, left) if swapped else (left, right), condition.dtype)
        bound = upper_bound(test, self.loop.var)
        holds = bound is not None
        if bound is None:  # the lanes that are not: `a <= v` where not `v < a`
            op = "le" if test.op == "lt" else "lt"
            bound = upper_bound(Op(op, test.args[::-1], condition.dtype), self.loop.var)
        if bound is None or any(True for _ in loads(bound)):
            return False
        self.found.masks[condition] = bound, holds
        return True

    def _are_inside(self, load: Load) -> bool:
        """Whether all lanes of an access lie in an array of this thread if the first one does."""
        if load.buffer.memory is not Memory.LOCAL:
            return False
        return self.finder.are_whole(load, self.loop.var, self.found.lanes)

    def _are_neighbours(self, load: Load) -> bool:
        """Whether the lanes access neighbouring elements, at an index of plain numbers."""
        known = load.dtype is self.found.dtype or load.dtype.is_bool
        if not known or any(_named(i, self.found) for i in load.args):
            return False
        return self.finder.are_neighbours(load, self.loop.var, self.found.lanes)

    def _are_steps_apart(self, load: Load) -> bool:
        """Whether the lanes load elements a few steps apart, at an index of plain numbers."""
        if load.buffer.dtype is not self.found.dtype or any(
            _named(i, self.found) for i in load.args
        ):
            return False
        step = self.finder.step(load, self.loop.var)
        if not isinstance(step, Const) or step.value not in STEPS:
            return False
        self.found.steps[load] = int(step.value)
        self.found.calls = True
        return True


def _named(index: Expr, found: LaneVectors) -> bool:
    return any(
        node in found.varying or (isinstance(node, Load) and node.buffer in found.varying)
        for node in nodes_of(index)
    )


# Which outputs a C kernel may write past the caches, where they are larger than the last one.
#
# A plain store reads the line that it changes from memory first. A streaming store of a whole line
# does not: a kernel that only writes an output moves two bytes instead of three. That pays where
# the output would not stay in the cache anyway, which the kernel finds out from its sizes.


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


# Loads that data choose: what a compiler turns into loads under a mask, some of them wrongly.
#
# GCC 12 vectorizes a loop whose inner loops it has unrolled. Loads a few elements apart, each under
# a test of its own, may become one load of neighbours under one mask (-O3 with AVX2 or AVX-512): of
# a fold that keeps the last of the chosen values it then gives others. The C printer keeps the
# loops around such a value from being vectorized (`LN_APART`); explicit vectors have masks of their
# own.
#
# A sum of floats keeps its order, so that a vector of what data choose is gathered lane by lane and
# added lane by lane: a sparse matrix times a vector took 1.4 times as long (GCC 12, Zen 5). Such
# loops are kept from it, too.


def chooses_load(value: Expr) -> bool:
    """Whether data say if an element of an array is the value, and do not read it themselves."""
    for node in nodes_of(value):
        if isinstance(node, Op) and node.op == "where":
            condition, *sides = node.args
            known = loads(condition)
            chosen = [load for side in sides for load in loads(side) if load not in known]
            if known and any(load.buffer.memory is Memory.GLOBAL for load in chosen):
                return True
    return False


def folds_chosen(loop: Loop) -> bool:
    """Whether an innermost loop adds floats that data choose of an array to one element."""
    body = [node for node, _ in walk(loop.body)]
    stores = [node for node in body if isinstance(node, Store) and node.role == "update"]
    if any(isinstance(node, Loop) for node in body) or not stores:
        return False
    if any(loop.var in variables(i) for node in stores for i in node.index):
        return False
    values = [e for node in body for e in expressions(node)]
    chosen = any(loads(i) for e in values for load in loads(e) for i in load.args)
    return chosen and all(node.storage.dtype.is_float for node in stores)
