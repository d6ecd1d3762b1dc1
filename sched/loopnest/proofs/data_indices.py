"""Indices that depend on data: what each must be computed from, and what is taken on trust.

An index of the math may be computed from what other reads find. In the nest such an index has a
load in it; that load must find just that element, which is a need of its own. Its value is then one
and the same in the index that is accessed and in the one that is needed, whatever it is.

The math has no value where such an index leaves its tensor. Where neither the math that computes
it nor a declared range shows that it does not, the kernel is not proved: nothing in a nest can show
it. All else is then proved as if it did not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from loopnest import kir
from loopnest.proofs.program_model import Access, Guards, data_values
from loopnest.proofs.single_launches import LaunchMath
from loopnest.proofs.template_matching import Mismatch, Operand
from loopnest.scalar import dtypes
from loopnest.scalar.data_ranges import DataRange
from loopnest.scalar.enums import IterKind
from loopnest.scalar.expr import ONE, ZERO, Arg, Const, Expr, Load, Op, cast, substitute
from loopnest.scalar.facts import Facts
from loopnest.scalar.simplify import Simplifier
from loopnest.scalar.templates import at
from loopnest.tensor.computed_ranges import IndexUse, data_index, index_bound
from loopnest.tensor.math_snapshot import MathRead, MathSnapshot, MathTensor
from loopnest.tensor.tensor_view import data_of

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
        texts: how reports name what it follows from; empty where the math tells it.
    """

    condition: Expr
    loads: tuple[Load, ...]
    guards: Guards
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unbounded:
    """Data that nothing keeps inside of the axis whose indices they are.

    Args:
        use: the indices.
        declared: the ranges of just these data that are declared, and do not do.
    """

    use: IndexUse
    declared: tuple[DataRange, ...]

    def __str__(self) -> str:
        use = self.use
        where = f"axis {use.axis} of {use.table.name}, of {use.extent} elements"
        if self.declared:
            return f"assume_range declares {self.declared[0]}, and {use.reader.name} reads {where}"
        found = f"{use.reader.name} reads {where}, at {use.source.name}, which nothing bounds: "
        bounds = f"{use.source.name}, 0, {_argument(use.extent)}"
        if use.source.definition is None:
            return f"{found}declare it by assume_range({bounds})"
        return f"{found}clamp it, or declare the range of what it is computed from"


def _argument(extent: Expr) -> str:
    """Return a size as an argument of a call: a number, or a text."""
    return str(extent) if isinstance(extent, Const) else f'"{extent}"'


class DataIndices:
    """The indices of one store's reads that depend on data.

    Args:
        math: what the program should compute.
        tensor: what the store claims to compute.
        store: the store.

    Attributes:
        needs: what the loads in indices must find.
        trusted: what is taken on trust.
        unbounded: the data of which nothing says that they lie inside.
    """

    def __init__(self, math: MathSnapshot, tensor: MathTensor, store: kir.Store) -> None:
        self.math, self.tensor, self.store = math, tensor, store
        self.needs: list[Need] = []
        self.trusted: list[Trusted] = []
        self.unbounded: list[Unbounded] = []

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
        for place, (template, index) in enumerate(zip(indices, needed, strict=True)):
            if data_index(template) is not None:
                (arg,), (load,) = data_of((template,)), data_values((index,))
                self._inside(self._read(arg).producer, load, operand, producer, place)
        return tuple(needed)

    def _read_at_data(
        self, indices: list[Expr], read: MathRead, producer: MathTensor, operand: Operand
    ) -> list[Expr]:
        """Return indices where those that can only be 0 are, unless the nest computes them.

        Along an axis of one element, also by what is assumed of sizes, an index that is data is 0
        wherever the math has a value; a buffer may lack that axis.
        """
        loads = data_values(operand.index) if isinstance(operand, Access) else ()
        result = list(indices)
        for place, index in enumerate(indices):
            sources = [self._read(arg).producer for arg in data_of((index,))]
            found = all(any(self._holds(load, source) for load in loads) for source in sources)
            if not found and self._single(producer.logical[place].extent):
                result[place] = ZERO
        return result

    def _read(self, arg: Arg) -> MathRead:
        """Return the read that an `Arg` of the store's templates stands for."""
        assert self.tensor.definition is not None
        return self.tensor.definition.reads[arg.number]

    def _holds(self, load: Load, name: str) -> bool:
        """Whether the buffer of a load is a tensor's: its own, or that of an input it lies in."""
        tensor = self.math.tensor(name)
        assert tensor is not None
        return load.buffer.tensor in (name, tensor.inplace)

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
            read = self._read(arg)
            load = next((x for x in loads if self._holds(x, read.producer)), None)
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
        value = cast(load, dtypes.index)
        for bound in self._declared(source):
            for condition in (_at_most(bound.low, value), _below(value, bound.high)):
                self._trust(condition, load, operand, (bound,))

    def _trust(
        self, condition: Expr, load: Load, operand: Operand, declared: Sequence[DataRange],
        *texts: str,
    ) -> None:  # fmt: skip
        assert isinstance(operand, Access)
        named = [f"{bound}, as declared by assume_range" for bound in declared]
        self.trusted.append(Trusted(condition, (load,), operand.guards, (*named, *texts)))

    def _inside(
        self, name: str, load: Load, operand: Operand, table: MathTensor, axis: int
    ) -> None:
        """Suppose that an index that is data lies inside of its axis, and note why it does."""
        source, extent = self._whole.tensor(name), table.logical[axis].extent
        assert source is not None
        bound = index_bound(self._whole, source, extent)
        texts: tuple[str, ...] = ()
        if bound.holds == "without empty axes":
            texts = (f"0 <= {source.name} < {extent}, as it is computed where no size is 0",)
        elif bound.holds == "unknown":
            use = IndexUse(source, table, axis, extent, self.tensor)
            self.unbounded.append(Unbounded(use, self._declared(source)))
        value = cast(load, dtypes.index)
        for condition in (_at_most(ZERO, value), _below(value, extent)):
            self._trust(condition, load, operand, bound.declared, *texts)

    @property
    def _whole(self) -> MathSnapshot:
        """The math of all launches: what an earlier one stored has a definition there."""
        whole = self.math.whole if isinstance(self.math, LaunchMath) else None
        return self.math if whole is None else whole

    def _declared(self, tensor: MathTensor) -> tuple[DataRange, ...]:
        """Return what is declared of the elements of a tensor: those of an input, or some of it."""
        definition = tensor.definition
        while definition is not None:
            plain = definition.reducer is None and len(definition.reads) == 1
            if not plain or not isinstance(definition.values[0], Arg):
                return ()
            source = self._whole.tensor(definition.reads[0].producer)
            if source is None or source.dtype is not tensor.dtype:
                return ()
            tensor, definition = source, source.definition
        return tuple([r for r in self.math.ranges if r.name == tensor.name])


def _at_most(a: Expr, b: Expr) -> Expr:
    return Op("le", (a, b), dtypes.bool_)


def _below(a: Expr, b: Expr) -> Expr:
    return Op("lt", (a, b), dtypes.bool_)
