"""Indices that depend on data: what each must be computed from, and what is taken on trust.

An index of the math may be computed from what other reads find. In the nest such an index has a
load in it; that load must find just that element, which is a need of its own. Its value is then one
and the same in the index that is accessed and in the one that is needed, whatever it is.

The math has no value where such an index leaves its tensor. That it does not is a fact of the data,
which nothing in a kernel can show: it is taken on trust, and reports name it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from loopnest import kir
from loopnest.proofs.computed_ranges import ComputedRanges
from loopnest.proofs.program_model import Access, Guards, data_values
from loopnest.proofs.template_matching import Mismatch, Operand
from loopnest.scalar import dtypes
from loopnest.scalar.data_ranges import DataRange
from loopnest.scalar.enums import IterKind
from loopnest.scalar.expr import ONE, ZERO, Arg, Const, Expr, Load, Op, cast, substitute
from loopnest.scalar.facts import Facts
from loopnest.scalar.simplify import Simplifier
from loopnest.scalar.templates import at
from loopnest.tensor.definition import data_of
from loopnest.tensor.math_snapshot import MathRead, MathSnapshot, MathTensor

Demand: TypeAlias = 'Literal["whole", "own", "part"]'
"""What a read must find: a tensor's element, the partial result that is continued, or any part."""


@dataclass(frozen=True, eq=False, slots=True)
class Need:
    """A read and what it must read.

    Args:
        operand: the read.
        tensor: the tensor whose element it must be.
        element: its logical index, for a demand of "whole".
        demand: what it must find.
    """

    operand: Operand
    tensor: MathTensor
    element: tuple[Expr, ...]
    demand: Demand = "whole"

    @property
    def in_test(self) -> bool:
        """Whether a test around the statement reads it, not the statement itself."""
        return isinstance(self.operand.moment.node, kir.If)


@dataclass(frozen=True, eq=False, slots=True)
class Trusted:
    """What is taken on trust of the data that an index is computed from.

    Args:
        condition: of loads, indices and sizes.
        loads: the loads that it is of.
        guards: where it is.
        text: how reports name it; empty where the math tells it.
    """

    condition: Expr
    loads: tuple[Load, ...]
    guards: Guards
    text: str


class DataIndices:
    """The indices of one store's reads that depend on data.

    Args:
        math: what the program should compute.
        tensor: what the store claims to compute.
        store: the store.

    Attributes:
        needs: what the loads in indices must find.
        trusted: what is taken on trust.
    """

    def __init__(self, math: MathSnapshot, tensor: MathTensor, store: kir.Store) -> None:
        self.math, self.tensor, self.store = math, tensor, store
        self.needs: list[Need] = []
        self.trusted: list[Trusted] = []

    def element(self, read: MathRead, producer: MathTensor, operand: Operand) -> tuple[Expr, ...]:
        """Return the element of `producer` that a read must find.

        Raises:
            Mismatch: the index of `operand` is computed from other data than the math's.
        """
        indices = [
            ZERO if axis.kind is IterKind.BROADCAST else index
            for axis, index in zip(producer.logical, read.indices, strict=True)
        ]
        indices = self._read_at_data(indices, read, producer, operand)
        values = self._values(data_of(indices), producer, operand)
        needed = [at(substitute(index, values), self.store.coordinate) for index in indices]
        for template, index, axis in zip(indices, needed, producer.logical, strict=True):
            if isinstance(template, Op) and template.op == "cast":
                (load,) = data_values((index,))
                self._inside(load, operand, axis.extent)
        return tuple(needed)

    def _read_at_data(
        self, indices: list[Expr], read: MathRead, producer: MathTensor, operand: Operand
    ) -> list[Expr]:
        """Return indices where those that can only be 0 are, unless the nest computes them.

        Along an axis of one element, also by what is assumed of sizes, an index that is data is 0
        wherever the math has a value; a buffer may lack that axis.
        """
        definition = self.tensor.definition
        assert definition is not None
        loads = data_values(operand.index) if isinstance(operand, Access) else ()
        names = {load.buffer.tensor for load in loads}
        result = list(indices)
        for place, index in enumerate(indices):
            sources = {definition.reads[arg.number].producer for arg in data_of((index,))}
            if not sources <= names and self._single(producer.logical[place].extent):
                result[place] = ZERO
        return result

    def _single(self, extent: Expr) -> bool:
        """Whether an axis has one element, at all sizes that are assumed."""
        algebra = Simplifier(Facts.of([test for _, test in self.math.conditions]))
        return algebra.simplify(extent) is ONE

    def _values(
        self, data: tuple[Arg, ...], producer: MathTensor, operand: Operand
    ) -> Mapping[Expr, Expr]:
        """Return the load of the nest for each `Arg` of the math's index templates."""
        loads = list(data_values(operand.index)) if isinstance(operand, Access) else []
        if len(loads) != len(data) or (data and not isinstance(operand, Access)):
            found = "a fixed element" if not loads else f"'{operand}', at indices that are data"
            wanted = "at an index that is data" if data else "a fixed element"
            message = f"reads {found} of {producer.name} where the math reads {wanted}"
            raise Mismatch("value", not loads or not data, message)
        values: dict[Expr, Expr] = {}
        for arg in data:
            assert isinstance(operand, Access)
            assert self.tensor.definition is not None
            read = self.tensor.definition.reads[arg.number]
            load = next((x for x in loads if x.buffer.tensor == read.producer), None)
            if load is None:
                message = f"reads {producer.name} at '{loads[0]}', no element of {read.producer}"
                raise Mismatch("value", True, message)
            loads.remove(load)
            values[arg] = load
            self._need(read, load, operand)
        return values

    def _need(self, read: MathRead, load: Load, operand: Access) -> None:
        """Demand that a load in an index finds what a read of the math does."""
        source = self.math.tensor(read.producer)
        assert source is not None
        element = tuple([
            ZERO if axis.kind is IterKind.BROADCAST else at(index, self.store.coordinate)
            for axis, index in zip(source.logical, read.indices, strict=True)
        ])  # fmt: skip
        access = Access(
            operand.site, operand.moment, load.buffer, load.args, load.flat, False, operand.guards
        )
        self.needs.append(Need(access, source, element))
        declared = self._declared(source)
        value = cast(load, dtypes.index)
        for bound in declared:
            for condition in (_at_most(bound.low, value), _below(value, bound.high)):
                text = f"{bound}, as declared by assume_range"
                self.trusted.append(Trusted(condition, (load,), operand.guards, text))

    def _inside(self, load: Load, operand: Operand, extent: Expr) -> None:
        """Take on trust that an index that is data lies inside of its axis."""
        assert isinstance(operand, Access)
        source = self.math.tensor(load.buffer.tensor)
        assert source is not None
        value = cast(load, dtypes.index)
        declared = [r for r in self._declared(source) if _within(r, extent)]
        text = f"0 <= {source.name} < {extent}, which {self.tensor.name} needs; no launch checks it"
        text += " unless assume_range declares it"
        if declared:
            text = f"{declared[0]}, as declared by assume_range"
        elif self._computed_inside(source, extent, at_launch=True):
            text = ""
        elif self._computed_inside(source, extent, at_launch=False):
            text = f"0 <= {source.name} < {extent}, as it is computed where no size is 0"
        for condition in (_at_most(ZERO, value), _below(value, extent)):
            self.trusted.append(Trusted(condition, (load,), operand.guards, text))

    def _computed_inside(self, source: MathTensor, extent: Expr, *, at_launch: bool) -> bool:
        """Whether the definition of indices tells that they lie inside of an axis."""
        algebra = Simplifier(Facts.of([test for _, test in self.math.conditions]))
        at_most = algebra.holds_le if at_launch else algebra.proves_le
        return ComputedRanges(self.math, algebra, at_most).inside(source, extent)

    def _declared(self, tensor: MathTensor) -> tuple[DataRange, ...]:
        """Return what is declared of the elements of a tensor: those of an input, or some of it."""
        definition = tensor.definition
        while definition is not None:
            plain = definition.reducer is None and len(definition.reads) == 1
            if not plain or not isinstance(definition.values[0], Arg):
                return ()
            source = self.math.tensor(definition.reads[0].producer)
            if source is None or source.dtype is not tensor.dtype:
                return ()
            tensor, definition = source, source.definition
        return tuple([r for r in self.math.ranges if r.name == tensor.name])


def _within(declared: DataRange, extent: Expr) -> bool:
    """Whether a declared range is one of indices of an axis, as written."""
    low, high = declared.low, declared.high
    if not isinstance(low, Const) or low.value < 0:
        return False
    if isinstance(high, Const) and isinstance(extent, Const):
        return high.value <= extent.value
    return high is extent


def _at_most(a: Expr, b: Expr) -> Expr:
    return Op("le", (a, b), dtypes.bool_)


def _below(a: Expr, b: Expr) -> Expr:
    return Op("lt", (a, b), dtypes.bool_)
