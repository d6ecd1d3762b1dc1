"""Bounds of the elements of an integer tensor, from the math that computes them.

Indices that are data need no declared range where these bounds lie inside of the axis: what is cast
from uint8, clamped, masked, or a remainder. Bounds are expressions of sizes. Of an input they are
those of its type, and what is declared of its elements.

A launch checks the data of indices that nothing bounds, proofs say that nothing does: both ask here
(`index_bound`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from loopnest.scalar import dtypes
from loopnest.scalar.data_ranges import DataRange
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import IterKind
from loopnest.scalar.expr import (
    ONE,
    ZERO,
    Arg,
    Const,
    Coordinate,
    Expr,
    Op,
    Symbol,
    integer,
    two_sides,
    walk,
)
from loopnest.scalar.facts import Facts
from loopnest.scalar.simplify import Simplifier
from loopnest.scalar.templates import at
from loopnest.tensor.math_snapshot import MathDefinition, MathSnapshot, MathTensor
from loopnest.tensor.tensor_view import Distinct

_DEEPEST = 50
"""How many tensors and operations are followed, one behind the other; beyond, the type bounds."""


@dataclass(frozen=True, slots=True)
class IndexUse:
    """Elements of a tensor that are indices of an axis.

    Args:
        source: the tensor that they are the elements of.
        table: the tensor that is read there.
        axis: of `table`.
        extent: of that axis.
        reader: the tensor that is computed.
    """

    source: MathTensor
    table: MathTensor
    axis: int
    extent: Expr
    reader: MathTensor


def index_uses(math: MathSnapshot) -> Iterator[IndexUse]:
    """Yield the indices of the math that are data, as they are found, in order of the tensors."""
    for reader in math.tensors:
        reads = () if reader.definition is None else reader.definition.reads
        for read in reads:
            table = math.tensor(read.producer)
            for axis, index in enumerate(read.indices):
                found = data_index(index)
                if found is None or table is None:
                    continue
                source = math.tensor(reads[found.number].producer)
                if source is not None:
                    yield IndexUse(source, table, axis, table.logical[axis].extent, reader)


def distinct_data(math: MathSnapshot) -> Iterator[tuple[MathTensor, MathTensor, Distinct]]:
    """Yield what is declared of data that choose elements: the data, who reads them, and what."""
    for reader in math.tensors:
        found = reader.definition
        source = math.tensor(found.reads[0].producer) if found and found.distinct else None
        if found is not None and found.distinct is not None and source is not None:
            yield source, reader, found.distinct


def data_index(index: Expr) -> Arg | None:
    """Return what an index template finds, where it is that and nothing else."""
    if isinstance(index, Op) and index.op == "cast" and isinstance(index.args[0], Arg):
        return index.args[0]
    return None


@dataclass(frozen=True, slots=True)
class IndexBound:
    """Whether the math keeps the elements of a tensor inside of an axis.

    Args:
        holds: "always", "without empty axes" (where no size is 0), or "unknown".
        declared: the declared ranges that bound what they are computed from.
    """

    holds: Literal["always", "without empty axes", "unknown"]
    declared: tuple[DataRange, ...]


def index_bound(math: MathSnapshot, source: MathTensor, extent: Expr) -> IndexBound:
    """Return whether the math keeps the elements of `source` inside of an axis of `extent`."""
    algebra = Simplifier(Facts.of([test for _, test in math.conditions]))
    always = ComputedRanges(math, algebra, algebra.holds_le)
    if always.inside(source, extent):
        return IndexBound("always", always.declared)
    some = ComputedRanges(math, algebra, algebra.proves_le)
    if some.inside(source, extent):
        return IndexBound("without empty axes", some.declared)
    return IndexBound("unknown", some.declared)


@dataclass(frozen=True, slots=True)
class Limits:
    """The known lower and upper bounds of elements, each of which holds."""

    low: tuple[Expr, ...] = ()
    high: tuple[Expr, ...] = ()


class ComputedRanges:
    """The limits of the elements of tensors.

    Args:
        math: the definitions.
        algebra: simplifies sizes by what is assumed of them.
        at_most: whether the first of two sizes is never above the second.
    """

    def __init__(
        self, math: MathSnapshot, algebra: Simplifier, at_most: Callable[[Expr, Expr], bool]
    ) -> None:
        self.math, self.algebra, self.at_most = math, algebra, at_most
        self._declared: dict[DataRange, None] = {}

    @property
    def declared(self) -> tuple[DataRange, ...]:
        """The declared ranges that were taken into account so far."""
        return tuple(self._declared)

    def inside(self, tensor: MathTensor, extent: Expr) -> bool:
        """Whether all elements are indices of an axis of this extent."""
        found = self._tensor(tensor, 0)
        return any(self.at_most(ZERO, low) for low in found.low) and any(
            self.at_most(self.algebra.add(high, ONE), extent) for high in found.high
        )

    def _tensor(self, tensor: MathTensor, depth: int) -> Limits:
        definition = tensor.definition
        plain = _of_type(tensor.dtype)
        if definition is None:
            return self._input(tensor, plain)
        if definition.op == "until":
            # The number of a step; who reads it asks before whether there is a step.
            (steps,) = tensor.root
            return Limits((ZERO,), (self.algebra.sub(steps.extent, ONE),))
        if definition.reducer is not None:
            # A part of a reduction may have folded no element.
            if tensor.is_factored:
                return plain
            chosen = self._chosen(tensor, depth)
            return _joined(plain, chosen or self._summed(tensor, depth))
        if len(definition.values) != 1:
            return plain
        return self._value(definition.values[0], tensor, depth)

    def _chosen(self, tensor: MathTensor, depth: int) -> Limits | None:
        """Return the limits of what a reduction chooses from, None where it may make new values.

        Of at least one element the identity is never chosen: combined with a value it gives that.
        """
        definition = tensor.definition
        if definition is None or definition.reducer is None or depth > _DEEPEST:
            return None
        mine, size = definition.component, len(definition.values)
        sides = {Arg(n, tensor.dtype) for n in (mine, mine + size)}
        folds_some = all(
            self.at_most(ONE, axis.extent)
            for axis in tensor.root
            if axis.kind is IterKind.REDUCTION
        )
        if (
            not folds_some
            or definition.scan is not None
            or definition.start is not None
            or not sides.issuperset(_choices(definition.reducer.combination[mine]))
        ):
            return None
        part = self._part(definition)
        if part is not None:
            return self._chosen(part, depth + 1)
        return self._value(definition.values[mine], tensor, depth + 1)

    def _part(self, definition: MathDefinition) -> MathTensor | None:
        """Return the tensor whose parts a reduction folds as that does; None of any other."""
        value = definition.values[definition.component]
        read = definition.reads[value.number].producer if isinstance(value, Arg) else ""
        part = self.math.tensor(read)
        if part is None or part.definition is None or not part.is_factored:
            return None
        return part if part.definition.reducer == definition.reducer else None

    def _summed(self, tensor: MathTensor, depth: int) -> Limits:
        """Return the limits of a sum along one axis of numbers that are not negative.

        A rank counts the elements before one. That one is none of them: where ``x[j] < x[i]`` is
        summed along j, the element at j = i is 0.
        """
        definition = tensor.definition
        assert definition is not None
        part = self._part(definition)
        if part is not None:
            return self._summed(part, depth + 1)
        places = [n for n, a in enumerate(tensor.root) if a.kind is IterKind.REDUCTION]
        if len(places) != 1 or depth > _DEEPEST or not _adds(definition):
            return Limits()
        ends = _ends(self._value(definition.values[0], tensor, depth + 1))
        if ends is None or ends[0] < 0:
            return Limits()
        (along,), most = places, integer(ends[1])
        extent = tensor.root[along].extent
        place: list[Expr] = [Coordinate(n) for n, _ in enumerate(tensor.root)]
        for number, axis in enumerate(tensor.root):
            place[along] = Coordinate(number)
            inside = number != along and self.at_most(axis.extent, extent)
            if inside and self._is_zero(definition.values[0], tensor, place, depth):
                extent = self.algebra.sub(extent, ONE)
                break
        high = self.algebra.mul(extent, most)
        # An axis has at most as many elements as an index of 64 bits has values.
        fits = most is ONE and tensor.dtype.size == 8
        fits = fits or self.at_most(high, integer(tensor.dtype.greatest))
        return Limits((ZERO,), (high,)) if fits else Limits()

    def _is_zero(self, node: Expr, tensor: MathTensor, place: Sequence[Expr], depth: int) -> bool:
        """Whether an expression in the definition of `tensor` is 0, or false, at an element."""
        if depth > _DEEPEST:
            return False
        match node:
            case Const():
                return not node.value
            case Arg():
                found = self._element(node, tensor, place)
                value = None if found is None else _pointwise(found[0])
                if found is None or value is None:
                    return False
                return self._is_zero(value, *found, depth + 1)
            case Op(op="and" | "or" | "cast"):
                zeros = [self._is_zero(arg, tensor, place, depth + 1) for arg in node.args]
                return any(zeros) if node.op == "and" else all(zeros)
            case Op(op="lt" | "gt"):
                one, other = [self._origin(arg, tensor, place) for arg in node.args]
                return one == other
        return False

    def _origin(self, node: Expr, tensor: MathTensor, place: Sequence[Expr]) -> object:
        """Return what an expression is a copy of at an element: an element, or itself."""
        while isinstance(node, Arg):
            found = self._element(node, tensor, place)
            if found is None:
                break
            tensor, place = found
            value = _pointwise(tensor)
            if value is None or value.dtype is not tensor.dtype:
                return tensor.name, place
            node = value
        free = not any(isinstance(n, Arg) for n in walk(node))
        return at(node, place) if free else (tensor.name, tuple(place), node)

    def _element(
        self, node: Arg, tensor: MathTensor, place: Sequence[Expr]
    ) -> tuple[MathTensor, tuple[Expr, ...]] | None:
        """Return what a read finds at an element; None where data or an earlier step tell it."""
        definition = tensor.definition
        assert definition is not None
        read = definition.reads[node.number]
        source = self.math.tensor(read.producer)
        chosen = any(isinstance(n, Arg) for index in read.indices for n in walk(index))
        if source is None or chosen or node.number in definition.carried:
            return None
        return source, tuple([
            ZERO if axis.kind is IterKind.BROADCAST else at(index, place)
            for axis, index in zip(source.logical, read.indices, strict=True)
        ])  # fmt: skip

    def _input(self, tensor: MathTensor, plain: Limits) -> Limits:
        """Return the limits of an input: of its type, and those that are declared."""
        for declared in self.math.ranges:
            if declared.name == tensor.name:
                self._declared[declared] = None
                top = self.algebra.sub(declared.high, ONE)
                plain = _joined(plain, Limits((declared.low,), (top,)))
        return plain

    def _value(self, node: Expr, tensor: MathTensor, depth: int) -> Limits:
        """Return the limits of an expression in the definition of `tensor`."""
        if depth > _DEEPEST:
            return _of_type(node.dtype)
        if isinstance(node, Coordinate):
            return Limits((ZERO,), (self.algebra.sub(tensor.root[node.number].extent, ONE),))
        if node.dtype is dtypes.index:
            size = all(isinstance(n, (Op, Const, Symbol)) for n in walk(node))
            return Limits((node,), (node,)) if size else Limits()
        if isinstance(node, Const) and float(node.value).is_integer():
            exact = integer(int(node.value))
            return Limits((exact,), (exact,))
        if isinstance(node, Arg):
            return self._read(node, tensor, depth)
        if isinstance(node, Op) and node.dtype.kind in "ib":
            args = [self._value(arg, tensor, depth + 1) for arg in node.args]
            return _joined(self._operation(node, args), _of_type(node.dtype))
        return _of_type(node.dtype)

    def _read(self, node: Arg, tensor: MathTensor, depth: int) -> Limits:
        assert tensor.definition is not None
        source = self.math.tensor(tensor.definition.reads[node.number].producer)
        return _of_type(node.dtype) if source is None else self._tensor(source, depth + 1)

    def _operation(self, node: Op, args: list[Limits]) -> Limits:
        match node.op, args:
            case "cast", [value]:
                return value if self._holds(node.dtype, node.args[0].dtype, value) else Limits()
            case "min", [a, b]:
                return Limits(self._common_low(a, b), (*a.high, *b.high))
            case "max", [a, b]:
                return Limits((*a.low, *b.low), self._common_high(a, b))
            case "where", [_, a, b]:
                return Limits(self._common_low(a, b), self._common_high(a, b))
            case "mod", [_, b] if any(self.at_most(ONE, low) for low in b.low):
                return Limits((ZERO,), tuple([self.algebra.sub(high, ONE) for high in b.high]))
            case "bitand", [a, b]:
                natural = [x for x in (a, b) if any(self.at_most(ZERO, low) for low in x.low)]
                highs = [high for x in natural for high in x.high]
                return Limits((ZERO,), tuple(highs)) if natural else Limits()
            case (("add" | "sub" | "mul" | "floordiv" | "shr"), [a, b]):
                return _exact(node, a, b)
        return Limits()

    def _holds(self, target: DType, source: DType, value: Limits) -> bool:
        """Whether a cast leaves values within the limits as they are."""
        if source is dtypes.index:
            return target.size == 8
        if source.kind not in "ib" or target.kind != "i":
            return False
        least, greatest = integer(target.least), integer(target.greatest)
        return any(self.at_most(least, low) for low in value.low) and any(
            self.at_most(high, greatest) for high in value.high
        )

    def _common_low(self, a: Limits, b: Limits) -> tuple[Expr, ...]:
        """Return those lower bounds that hold for both."""
        return tuple([low for low in (*a.low, *b.low) if self._is_low(low, a, b)])

    def _is_low(self, low: Expr, a: Limits, b: Limits) -> bool:
        return all(any(self.at_most(low, known) for known in side.low) for side in (a, b))

    def _common_high(self, a: Limits, b: Limits) -> tuple[Expr, ...]:
        """Return those upper bounds that hold for both."""
        return tuple([high for high in (*a.high, *b.high) if self._is_high(high, a, b)])

    def _is_high(self, high: Expr, a: Limits, b: Limits) -> bool:
        return all(any(self.at_most(known, high) for known in side.high) for side in (a, b))


def _adds(definition: MathDefinition) -> bool:
    """Whether a reduction is a sum of integers."""
    value, reducer = definition.values[0], definition.reducer
    if reducer is None or value.dtype.kind != "i" or len(definition.values) > 1:
        return False
    (one,), (other,) = two_sides([value.dtype])
    sums = reducer.combination == (Op("add", (one, other), value.dtype),)
    whole = definition.scan is None and definition.start is None
    return sums and not reducer.identity[0].value and whole


def _pointwise(tensor: MathTensor) -> Expr | None:
    """Return the value of an element that is computed of single elements."""
    definition = tensor.definition
    if definition is None or definition.reducer is not None or tensor.is_factored:
        return None
    return definition.values[0] if len(definition.values) == 1 else None


def _choices(node: Expr) -> Iterator[Expr]:
    """Yield the values one of which an expression is."""
    if isinstance(node, Op) and node.op in ("where", "min", "max"):
        for arg in node.args[1 if node.op == "where" else 0 :]:
            yield from _choices(arg)
    else:
        yield node


def _of_type(dtype: DType) -> Limits:
    """Return the limits of all values of a type."""
    if dtype.kind == "b":
        return Limits((ZERO,), (ONE,))
    if dtype.kind == "i":
        return Limits((integer(dtype.least),), (integer(dtype.greatest),))
    return Limits()


def _joined(a: Limits, b: Limits) -> Limits:
    """Return the bounds of the same elements that two ways found."""
    return Limits((*a.low, *b.low), (*a.high, *b.high))


def _exact(node: Op, a: Limits, b: Limits) -> Limits:
    """Return the limits of an operation on bounds that are numbers.

    None are known where the type of the result might wrap, of quotients by what may be less than 1,
    and of shifts by what may be no place of the type.
    """
    ends = [_ends(a), _ends(b)]
    if None in ends or node.dtype.kind != "i":
        return Limits()
    (low, high), (least, most) = [end for end in ends if end is not None]
    if node.op == "add":
        found = [low + least, high + most]
    elif node.op == "sub":
        found = [low - most, high - least]
    elif node.op == "mul":
        found = [x * y for x in (low, high) for y in (least, most)]
    elif node.op == "floordiv" and least >= 1:
        found = [x // y for x in (low, high) for y in (least, most)]
    elif node.op == "shr" and least >= 0 and most < 8 * node.dtype.size:
        found = [x >> y for x in (low, high) for y in (least, most)]
    else:
        return Limits()
    if min(found) < node.dtype.least or max(found) > node.dtype.greatest:
        return Limits()
    return Limits((integer(min(found)),), (integer(max(found)),))


def _ends(limits: Limits) -> tuple[int, int] | None:
    """Return the closest bounds that are numbers."""
    lows = [int(low.value) for low in limits.low if isinstance(low, Const)]
    highs = [int(high.value) for high in limits.high if isinstance(high, Const)]
    return (max(lows), min(highs)) if lows and highs else None
