"""Statements of C that work on vectors: lanes, whole cache lines, tiles that are transposed."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property

from loopnest.backends.clike.dialect import SUM, Dialect
from loopnest.backends.clike.statements import StatementPrinter, comment
from loopnest.backends.cpu.chosen_loads import chooses_load
from loopnest.backends.cpu.lane_format import LaneFormat
from loopnest.backends.cpu.lane_vectors import NAMES, LaneVectors, lane_vectors
from loopnest.backends.cpu.skipped_functions import skipped_side
from loopnest.backends.cpu.transposed_tiles import TransposedTile, transposed_tile
from loopnest.kir import If, Let, Loop, Program, Stmt, Store, walk
from loopnest.kir.buffers import Buffer
from loopnest.kir.loop_bounds import loop_bounds
from loopnest.kir.vector_access import VectorFinder, first_lane
from loopnest.scalar.expr import Expr, Local


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
        self.emit(header + self.remark(node))
        outer, self.pad = self.pad, self.pad + "  "
        self.emit(f"const {name}_mask ln_rest = {name}_first({bound} - {index});")
        self.statements(node.body)
        self.pad = outer
        self.emit("}")

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
        self.block(f"if ({vectors.type_name}_is_full({lanes})) {{", (found.other,), "} else {")
        outer, self.pad = self.pad, self.pad + "  "
        super().statements(found.rest)
        self.pad = outer
        self.emit("}")

    def statement(self, node: Stmt) -> None:
        if isinstance(node, If) and self.vectors and self.vectors.varies(node.condition):
            self._masked(node, self.vectors)
        else:
            super().statement(node)

    def _masked(self, node: If, vectors: LaneVectors) -> None:
        """Print what some lanes do, and then what the others do."""
        mask = f"ln_if_{len(self.pad) // 2}"  # unlike those around
        self.emit("{")
        outer, self.pad = self.pad, self.pad + "  "
        condition = self.format.format(node.condition)
        self.emit(f"const {vectors.type_name}_mask {mask} = {condition};")
        for lanes, body in ((mask, node.body), (f"~{mask}", node.orelse)):
            with self.lane_format.under(lanes):
                self.statements(body)
        self.pad = outer
        self.emit("}")

    def store(self, node: Store, declare: str = "") -> None:
        vectors = self.vectors
        if vectors is None or self.is_scalar(node.storage):
            self.declares = bool(declare)
            super().store(node, declare)
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
            super().store(node, declare)

    def let(self, node: Let) -> None:
        super().let(node)
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
