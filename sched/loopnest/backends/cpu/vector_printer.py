"""Statements of C that work on vectors: lanes, whole cache lines, tiles that are transposed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

from loopnest.backends.clike.c_expressions import CFormat
from loopnest.backends.clike.dialect import ATOM, COND, OR, SUM, UNARY, Dialect, Text
from loopnest.backends.clike.statements import StatementPrinter, comment
from loopnest.backends.cpu.lane_vectors import (
    ARITHMETIC,
    LINE_BYTES,
    LONG,
    NAMES,
    LaneVectors,
    chooses_load,
    is_line,
    lane_vectors,
)
from loopnest.kir import Allocate, If, Let, Loop, Program, Stmt, Store, expressions, walk
from loopnest.kir.loop_bounds import loop_bounds
from loopnest.kir.vector_access import VectorFinder, first_lane
from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import ONE, Buffer, Const, Expr, Load, Local, Op
from loopnest.scalar.expr import walk as nodes_of


class VectorPrinter(StatementPrinter):
    """Prints the loops that have a form with vector types; a subclass prints all else."""

    streamed: tuple[Buffer, ...] = ()
    """The outputs that may be stored past the caches."""
    declares: bool = False
    """Whether the store that is printed makes its variable: there is no value to keep."""

    def __init__(self, program: Program, dialect: Dialect) -> None:
        super().__init__(program, dialect)
        self.format = self.lane_format = LaneFormat(dialect, self.names, facts=self.facts)
        self.called: dict[str, None] = {}
        """The vector types whose functions are called."""

    @property
    def vectors(self) -> LaneVectors | None:
        """What differs by lane in the loop that is being printed with vector types."""
        return self.lane_format.vectors

    @cached_property
    def finder(self) -> VectorFinder:
        """Finds the neighbouring elements of vectorized loops."""
        return VectorFinder(self.program)

    @abstractmethod
    def is_whole(self, node: Loop) -> bool:
        """Whether a loop runs all its iterations."""

    def buffer_name(self, buffer: Buffer) -> str:
        """Return the identifier of a buffer."""
        return self.names.of("buffer", buffer.name)

    # Loops

    def print_vectors(self, node: Loop) -> bool:
        """Print a loop over lanes with vector types; return whether it has such a form."""
        if loop_bounds(node, self.algebra) is not None:  # it may begin behind the first lane
            return False
        limit = None if self.is_whole(node) else self.bound(node)
        vectors = lane_vectors(node, self.finder, limit)
        if vectors is None:
            return False
        if vectors.calls:
            self.called[vectors.short_name] = None
        # No loop stands in this one.
        with self.lane_format.lanes(vectors, "" if limit is None else "ln_rest"):
            if limit is None:
                self.plain_loop(node, [f"#pragma GCC unroll {vectors.lanes}"])
            else:
                self._last_lanes(node, limit, vectors.type_name)
        return True

    def _last_lanes(self, node: Loop, limit: Expr, name: str) -> None:
        """Print a loop that ends before its last lane."""
        index, bound = self.format.format(node.var), self.format.format(limit, SUM)
        header = f"for (idx_t {index} = 0; {index} < {bound}; {self.step(node)}) {{"
        rest = f"const {name}_mask ln_rest = {name}_first({bound} - {index});"
        self.block(header + self.remark(node), node.body, first=[rest])

    def vector_functions(self) -> list[str]:
        """Return the lines that define the functions of vectors that were called."""
        lines = []
        for name in self.called:
            made = f"LN_HAS_{name}"
            lines += [f"#ifndef {made}", f"#define {made}", f"LN_FUNCTIONS_{name}", "#endif"]
        return lines

    def print_transposed(self, node: Loop) -> bool:
        """Print a copy whose rows become columns, in registers; return whether it is one."""
        tile = transposed_tile(node, self.finder)
        if tile is None or not self.is_whole(tile.inner):
            return False
        self._transpose(node, tile)
        return True

    def _transpose(self, node: Loop, tile: TransposedTile) -> None:
        """Print the copy of a tile whose rows become columns, in registers."""
        store, load = tile.store, tile.load
        dtype = store.storage.dtype
        to = self._at_zero(store.storage, store.index, store.flat, node, tile.inner)
        source = self._at_zero(load.buffer, load.args, load.flat, node, tile.inner)
        steps = [self.format.format(step) for step in (tile.to_step, tile.from_step)]
        past = self.past(store.storage) if store.storage in self.streamed else "false"
        name = f"ln_{NAMES[dtype]}x{tile.inner.extent}_transpose"
        arguments = f"&{to}, {steps[0]}, &{source}, {steps[1]}, {past}"
        self.emit(f"{name}({arguments});  // {comment(store.tensor)}")

    def _at_zero(
        self, buffer: Buffer, index: tuple[Expr, ...], flat: bool, outer: Loop, inner: Loop
    ) -> str:
        """Return the element that the first iterations of two loops access."""
        first = first_lane(outer, first_lane(inner, index))
        return self.format.element(buffer, first, flat=flat)

    # A loop that is printed with vector types

    def step(self, node: Loop) -> str:
        if self.vectors is None:
            return super().step(node)
        return f"{self.format.format(node.var)} += LN_LANES({self.vectors.type_name})"

    def type_of(self, variable: Buffer | Local) -> str:
        if self.vectors is not None and variable in self.vectors.varying:
            name = self.vectors.type_name
            return f"{name}_mask" if variable.dtype.is_bool else name
        return super().type_of(variable)

    def statements(self, body: tuple[Stmt, ...]) -> None:
        vectors, found = self.vectors, None
        if vectors is not None and vectors.takes_long and body and not self.lane_format.mask:
            found = skipped_side(body, vectors)
        if vectors is None or found is None:
            super().statements(body)
            return
        super().statements(found.before)
        if found.rest[-1] in vectors.inside:
            vectors.inside.add(found.other)
        if not vectors.varies(found.other.value):
            vectors.spread.add(found.other)
        mask = self.lane_format.as_mask(found.condition)
        lanes = mask if found.holds else f"~{mask}"
        self.block(f"if ({vectors.type_name}_is_full({lanes})) {{", (found.other,), "")
        with self.scope("} else {"):
            super().statements(found.rest)

    def visit_if(self, node: If) -> None:
        if self.vectors and self.vectors.varies(node.condition):
            self._masked(node, self.vectors)
        else:
            super().visit_if(node)

    def _masked(self, node: If, vectors: LaneVectors) -> None:
        """Print what some lanes do, and then what the others do."""
        mask = f"ln_if_{len(self.pad) // 2}"  # unlike those around
        with self.scope():
            condition = self.format.format(node.condition)
            self.emit(f"const {vectors.type_name}_mask {mask} = {condition};")
            for lanes, body in ((mask, node.body), (f"~{mask}", node.orelse)):
                with self.lane_format.under(lanes):
                    self.statements(body)

    def visit_store(self, node: Store, declare: str = "") -> None:
        vectors = self.vectors
        if vectors is None or self.is_scalar(node.storage):
            self.declares = bool(declare)
            super().visit_store(node, declare)
            self.declares = False
            return
        place = self.format.element(node.storage, node.index, flat=node.flat)
        remark = comment(node.tensor)
        name, mask = vectors.type_name, self.lane_format.mask
        if node.storage.dtype.is_bool:
            lanes = f"_of(&{place}, {mask}, " if mask else f"(&{place}, "
            value = self.lane_format.as_mask(node.value)
            self.emit(f"{name}_store_mask{lanes}{value});  // {remark}")
            return
        value = self.stored_value(node)
        if mask and node not in vectors.inside:
            self.emit(f"{name}_store(&{place}, {mask}, {value});  // {remark}")
        elif not mask and node.storage in self.streamed and vectors.is_line:
            past = self.past(node.storage)
            if vectors.takes_long:  # then stores that wait for memory cost more than they spare
                past += " && !LN_FAST_MEMORY"
            self.emit(f"{name}_stream(&{place}, {value}, {past});  // {remark}")
        else:
            super().visit_store(node, declare)

    def visit_let(self, node: Let) -> None:
        super().visit_let(node)
        if chooses_load(node.value):
            self.emit("LN_APART();")

    def past(self, buffer: Buffer) -> str:
        """Return the name of whether stores into an output go past the caches."""
        return "ln_past_" + self.buffer_name(buffer)

    def fence(self, body: tuple[Stmt, ...]) -> None:
        """Let other threads see what `body` has streamed."""
        past = [b for b in self.streamed if any(_stores(node, b) for node, _ in walk(body))]
        if past:
            self.emit(f"if ({' || '.join([self.past(b) for b in past])}) LN_FENCE();")

    def stored_place(self, node: Store) -> str:
        place = super().stored_place(node)
        if self.vectors is None or self.is_scalar(node.storage):
            return place
        return f"LN_VEC({self.vectors.type_name}, {place})"

    def stored_value(self, node: Store) -> str:
        if self.vectors is None:
            return super().stored_value(node)
        masks = node.storage.dtype.is_bool and node.storage in self.vectors.varying
        value = self.lane_format.as_mask(node.value) if masks else super().stored_value(node)
        if not masks and node in self.vectors.spread:
            value = f"LN_ALL({self.vectors.type_name}, {value})"
        kept = node in self.vectors.inside
        if self.is_scalar(node.storage) and self.lane_format.depth:
            kept = node.storage in self.vectors.varying and not self.declares
        if self.lane_format.mask and kept:
            # The other lanes keep what they have; the array stays in registers.
            mask, place = self.lane_format.mask, self.stored_place(node)
            pick = "LN_MASK_PICK" if masks else f"{self.vectors.type_name}_where"
            value = f"{pick}({mask}, {value}, {place})"
        return value


def _stores(node: Stmt, buffer: Buffer) -> bool:
    return isinstance(node, Store) and node.storage is buffer


# Expressions in C where some differ by lane: functions of vectors, masks, loads of some lanes.


class LaneFormat(CFormat):
    """Formats expressions; while a loop is printed with vector types, by them what differs by lane.

    Conditions become masks: vectors of integers, 0 or -1 in each lane.
    """

    vectors: LaneVectors | None = None
    """What differs by lane in the loop that is being printed with vector types."""
    mask: str = ""
    """The lanes that take part; empty for all."""
    depth: int = 0
    """How many conditions that differ by lane stand around."""

    @contextmanager
    def lanes(self, vectors: LaneVectors, mask: str) -> Iterator[None]:
        """Write what differs by lane as vectors while a `with` block lasts."""
        self.vectors, self.mask = vectors, mask
        with self.renamed({}):  # what was written before stands for one lane
            yield
        self.vectors, self.mask = None, ""

    @contextmanager
    def under(self, mask: str) -> Iterator[None]:
        """Let loads be those of the lanes of one more mask."""
        outer = self.mask
        self.mask = f"{mask} & {outer}" if outer else mask
        self.depth += 1
        with self.renamed({}):
            yield
        self.mask = outer
        self.depth -= 1

    def vector(self, value: Expr, level: int = 0) -> str:
        """Return a value as a vector, one that is the same for all lanes too."""
        assert self.vectors is not None
        if self.vectors.varies(value):
            return self.format(value, level)
        return f"LN_ALL({self.vectors.type_name}, {self.format(value)})"

    def load(self, node: Load) -> str:
        place = super().load(node)
        if self.vectors is None or node not in self.vectors.places:
            return place
        name = self.vectors.type_name
        if node.dtype.is_bool:
            all_lanes = not self.mask or node in self.vectors.inside
            some = f"(&{place})" if all_lanes else f"_of(&{place}, {self.mask})"
            return f"{name}_load_mask{some}"
        if node in self.vectors.steps:
            step = self.vectors.steps[node]
            some = f"_of(&{place}, {step}, {self.mask})" if self.mask else f"(&{place}, {step})"
            return f"{name}_every{some}"
        if not self.mask or node in self.vectors.inside:
            return f"LN_VEC({name}, {place})"
        return f"{name}_load(&{place}, {self.mask})"

    def operation(self, node: Op) -> Text:
        vectors = self.vectors
        if vectors is None or node.op in ARITHMETIC or not vectors.varies(node):
            return super().operation(node)
        if node.op == "where":
            return self._select(node)
        if node.dtype.is_bool:
            return self._mask(node)
        if node.op == "cast":  # of a condition
            one, zero = Const(1.0, node.dtype), Const(0.0, node.dtype)
            return self._select(Op("where", (node.args[0], one, zero), node.dtype))
        arguments = ", ".join([self.vector(a) for a in node.args])
        return f"{vectors.type_name}_{node.op}({arguments})", ATOM

    def _select(self, node: Op) -> Text:
        assert self.vectors is not None
        condition, first, second = node.args
        if not self.vectors.varies(condition):
            either = f"{self._branch(first, OR)} : {self._branch(second, COND)}"
            return f"{self.format(condition, OR)} ? {either}", COND
        mask = self.format(condition, UNARY)
        with self.under(mask):
            then = self.vector(first)
        with self.under(f"~{mask}"):
            otherwise = self.vector(second)
        return f"{self.vectors.type_name}_where({mask}, {then}, {otherwise})", ATOM

    def _branch(self, value: Expr, level: int) -> str:
        """Return a branch of a conditional expression, both of which gcc wants of one type.

        What it computes of vectors has another type than vectors in memory, whose elements are
        aligned one by one.
        """
        assert self.vectors is not None
        if isinstance(value, Op) and value.op in ARITHMETIC and self.vectors.varies(value):
            return f"({self.vectors.type_name})({self.vector(value)})"
        return self.vector(value, level)

    def _mask(self, node: Op) -> Text:
        """Return a condition that differs by lane, in parentheses or behind a cast."""
        assert self.vectors is not None
        name = self.vectors.type_name
        if node in self.vectors.masks:
            bound, below = self.vectors.masks[node]
            var = self.format(self.vectors.var)
            mask = f"{name}_first({self.format(bound, SUM)} - {var})"
            return (mask, ATOM) if below else (f"~{mask}", UNARY)
        args = node.args
        if node.op == "not":
            return f"~{self.format(args[0], UNARY)}", UNARY
        if node.op in ("and", "or"):
            # Loads of the second are those of the lanes that the first does not decide.
            first = self.as_mask(args[0])
            with self.under(first if node.op == "and" else f"~{first}"):
                second = self.as_mask(args[1])
            return f"({first} {'&' if node.op == 'and' else '|'} {second})", ATOM
        sides = [self.format(a, UNARY) for a in (args * 2)[:2]]
        sign = _SIGNS[node.op]
        return f"({name}_mask)({sides[0]} {sign} {sides[1]})", UNARY

    def as_mask(self, condition: Expr) -> str:
        """Return a condition as a mask, one that is the same for all lanes too."""
        assert self.vectors is not None
        text = self.format(condition, UNARY)
        if self.vectors.varies(condition):
            return text
        # GCC takes no _Bool beside a vector, as a variable of bools is.
        return f"(({self.vectors.type_name}_mask){{0}} - (int){text})"


_SIGNS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "isnan": "!="}


# Which pairs of loops in C copy a square tile with rows and columns exchanged, in registers.
#
# A copy whose two sides run along different axes moves single elements, whichever loop is
# innermost. A tile as wide as a cache line can be read in vectors along one axis, transposed by
# shuffles, and written in vectors along the other::
#
#     for u in 16:
#       for v in 16:  # vectorize         ->   ln_f32x16_transpose(&y[…], M, &x[…], N, …)
#         y[j * 16 + u, i * 16 + v] = x[i * 16 + v, j * 16 + u]
#
# Source: the network of shuffles exchanges blocks of 1, 2, 4… elements between rows: Eklundh, "A
# fast computer method for matrix transposing" (1972).


@dataclass(frozen=True, slots=True)
class TransposedTile:
    """A tile and where it lies.

    Args:
        inner: the loop over lanes.
        store: its statement; the value is a load.
        load: what is copied.
        to_step: elements from one vector of the result to the next.
        from_step: elements from one vector that is read to the next.
    """

    inner: Loop
    store: Store
    load: Load
    to_step: Expr
    from_step: Expr


def transposed_tile(loop: Loop, finder: VectorFinder) -> TransposedTile | None:
    """Return the tile that `loop` copies together with the vectorized loop in it, or None.

    Both have as many iterations as a cache line has elements; the store runs along the inner one,
    the load along the outer one.
    """
    match loop:
        case Loop(
            parallel=ParallelType.serial | ParallelType.unroll | ParallelType.unswitch,
            body=(Loop(parallel=ParallelType.vectorize, body=(Store(value=Load()) as store,)),),
        ):
            (inner,) = loop.body
        case _:
            return None
    load = store.value
    assert isinstance(inner, Loop)
    assert isinstance(load, Load)
    lanes = inner.extent
    if loop.extent != lanes or not is_line(inner, store.storage):
        return None
    assert isinstance(lanes, int)
    if lanes * store.storage.dtype.size != LINE_BYTES:
        return None
    # The tile is read as a whole before any of it is written: within one array the loops might read
    # what they wrote.
    if load.buffer.dtype is not store.storage.dtype or load.buffer is store.storage:
        return None
    along = finder.are_neighbours(store.own, inner.var, lanes)
    if not along or not finder.are_neighbours(load, loop.var, lanes):
        return None
    to_step, from_step = finder.step(store.own, loop.var), finder.step(load, inner.var)
    if to_step is None or from_step is None:
        return None
    return TransposedTile(inner, store, load, to_step, from_step)


# Which functions of a vectorized loop are computed only where some lane needs them.
#
# A loop that ends in a choice computes both sides of it in all lanes. Where one side alone needs
# functions that take long, and all lanes of a vector choose the other, they are skipped::
#
#     T1 = x[v] > 0.0                            T1 = x[v] > 0.0
#     T2 = exp(x[v])                      ->     if all lanes of T1: y[v] = x[v]
#     y[v] = where(T1, x[v], T2 - 1.0)           else: T2 = exp(x[v])
#                                                      y[v] = where(T1, x[v], T2 - 1.0)
#
# The test is one instruction and a branch, far less than any of these functions takes.
#
# Source: "branches on superword condition codes", Shin, "Introducing Control Flow into Vectorized
# Code" (PACT 2007).


@dataclass(frozen=True, slots=True)
class SkippedSide:
    """The body of a loop that ends in a choice, of which one side may be skipped.

    Args:
        before: what is computed in any case.
        condition: of the choice.
        holds: whether the side is skipped where the condition holds in all lanes, or in none.
        other: the store of the other side.
        rest: what only the skipped side reads, and the choice.
    """

    before: tuple[Stmt, ...]
    condition: Expr
    holds: bool
    other: Store
    rest: tuple[Stmt, ...]


def skipped_side(body: tuple[Stmt, ...], vectors: LaneVectors) -> SkippedSide | None:
    """Return how a body is printed so that one side of its last choice may be skipped.

    Args:
        body: of a loop that is printed with vector types.
        vectors: what in it differs by lane.
    """
    *others, last = body
    if not isinstance(last, Store) or last.atomic or last.storage.size is ONE:
        return None
    choice = last.value
    if not (isinstance(choice, Op) and choice.op == "where" and vectors.varies(choice.args[0])):
        return None
    if not _are_names(others):
        return None
    condition, *sides = choice.args
    for side, other, holds in ((sides[1], sides[0], True), (sides[0], sides[1], False)):
        kept = _read([condition, other, *last.index])
        inner = _only_for(others, _read([side]) - kept, kept)
        rest = tuple([node for node in others if _made(node) in inner])
        values = [side, *(value for node in rest for value in expressions(node))]
        if any(isinstance(e, Op) and e.op in LONG for value in values for e in nodes_of(value)):
            before = tuple([node for node in others if _made(node) not in inner])
            return SkippedSide(before, condition, holds, replace(last, value=other), (*rest, last))
    return None


def _are_names(body: Iterable[Stmt]) -> bool:
    """Whether statements give values to scalars alone, one to each: their order is that of reads.

    None of them changes an array, so that one may pass another that does not read it.
    """
    stored = [node.storage for node in body if isinstance(node, Store)]
    if len(stored) != len(set(stored)) or any(buffer.size is not ONE for buffer in stored):
        return False
    made = {node.storage for node in body if isinstance(node, Allocate)}
    return made.issuperset(stored) and all(isinstance(n, (Allocate, Let, Store)) for n in body)


def _made(node: Stmt) -> Buffer | Local | None:
    """Return what a statement makes or gives a value."""
    if isinstance(node, (Allocate, Store)):
        return node.storage
    return node.var if isinstance(node, Let) else None


def _only_for(
    body: list[Stmt], wanted: set[Buffer | Local], kept: set[Buffer | Local]
) -> set[Buffer | Local]:
    """Return the scalars that are read, directly or by others of them, for `wanted` alone."""
    kept = set(kept)
    found: set[Buffer | Local] = set()
    for node in reversed(body):  # readers come behind what they read
        if isinstance(node, Allocate):
            continue
        made = _made(node)
        reads = _read(expressions(node))
        if made in wanted and made not in kept:
            found.add(made)
            wanted = wanted | reads
        else:
            kept |= reads
    return found


def _read(values: Iterable[Expr]) -> set[Buffer | Local]:
    """Return the buffers and names that values read."""
    nodes = [node for value in values for node in nodes_of(value)]
    names: set[Buffer | Local] = {node for node in nodes if isinstance(node, Local)}
    return names | {node.buffer for node in nodes if isinstance(node, Load)}
