"""What a consumer reads of each axis of a producer while some of its loops stand still.

The index of a read is an expression of the consumer's root coordinates, and these follow from its
loops. With some loops given, the index is what those give (the *center*), and a range that the
others add. The range is an interval of sums, products by constants, quotients and remainders; what
no interval describes (an index that is itself read from memory) is the whole axis.

    y[i] = t[2 * i] + t[2 * i + 3], i = 8 * outer + inner, outer given: center 16 * outer, 0..17

Source: the regions of Halide's bounds inference (src/Bounds.cpp) and the footprints of loopy's
prefetches (loopy/transform/precompute.py); the center stands apart, because a tile of the producer
is a function of the loops around it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from loopnest.scalar.expr import (
    ONE,
    ZERO,
    Const,
    Coordinate,
    Expr,
    Index,
    Op,
    Symbol,
    free_indices,
    integer,
    substitute,
    walk,
)
from loopnest.scalar.simplify import Simplifier
from loopnest.scalar.templates import coordinates
from loopnest.tensor.domain import IterDomain, TensorDomain
from loopnest.tensor.overlapping_tiles import Overlap
from loopnest.tensor.tensor_view import TensorView


@dataclass(frozen=True, slots=True)
class Footprint:
    """The indices ``center + low``, … ``center + high``, `step` apart.

    `center` depends on given loops, `low` and `high` on no loop. A single index has the `step` 0.
    """

    center: Expr
    low: Expr
    high: Expr
    step: int

    @property
    def single(self) -> bool:
        """Whether it is one index."""
        return self.low is ZERO and self.high is ZERO

    def begin(self, algebra: Simplifier) -> Expr:
        """Return the first index."""
        return algebra.add(self.center, self.low)

    def count(self, algebra: Simplifier) -> Expr:
        """Return how many indices there are."""
        length = algebra.sub(self.high, self.low)
        return algebra.add(algebra.floordiv(length, integer(max(self.step, 1))), ONE)


class _Unknown(Exception):
    """No interval describes an index."""


def whole_axis(axis: IterDomain, algebra: Simplifier) -> Footprint:
    """Return the span of all indices of an axis."""
    return Footprint(ZERO, ZERO, algebra.sub(axis.size, ONE), 1)


class GivenLoops:
    """The coordinates of a consumer, some of its loops being given.

    Args:
        domain: the consumer's axes.
        given: leaf axes, each with an expression for its index.
        algebra: the arithmetic of indices.
    """

    def __init__(
        self, domain: TensorDomain, given: Mapping[IterDomain, Expr], algebra: Simplifier
    ) -> None:
        self.domain, self.algebra = domain, algebra
        self.inner: set[Index] = set()
        self._known: dict[IterDomain, Expr] = dict(given)
        self._wanted = set(given)
        self.tiled: set[IterDomain] = set()
        """Axes whose index follows from that of a tile."""
        for step in reversed(domain.history):
            if not self._wanted.isdisjoint(step.outputs):
                self._wanted.update(step.inputs)
                if isinstance(step, Overlap) or not self.tiled.isdisjoint(step.outputs):
                    self.tiled.update(step.inputs)

    def index(self, axis: IterDomain) -> Expr:
        """Return the index of an axis, with a variable for each axis that is not given."""
        found = self._known.get(axis)
        if found is not None:
            return found
        step = self.domain.uses.get(axis)
        if axis.is_broadcast or axis.size is ONE:
            self._known[axis] = ZERO
        elif step is None or axis not in self._wanted:
            self._known[axis] = variable = Index(f"v{len(self._known)}", axis.size)
            self.inner.add(variable)
        else:
            outputs = [self.index(output) for output in step.outputs]
            for source, value in zip(
                step.inputs, step.backward(outputs, self.algebra), strict=True
            ):
                self._known.setdefault(source, value)
        return self._known[axis]

    def span(self, template: Expr) -> Footprint:
        """Return what an index template runs over.

        Raises:
            _Unknown: no interval describes it.
        """
        root = self.domain.root
        known: dict[Expr, Expr] = {c: self.index(root[c.number]) for c in coordinates(template)}
        return self._span(self.algebra.simplify(substitute(template, known)))

    def _span(self, value: Expr) -> Footprint:
        if self.inner.isdisjoint(free_indices(value)):
            # An index that is data is no function of the loops.
            if any(not isinstance(n, (Const, Symbol, Index, Op)) for n in walk(value)):
                raise _Unknown
            return Footprint(value, ZERO, ZERO, 0)
        if isinstance(value, Index):
            return Footprint(ZERO, ZERO, self.algebra.sub(value.extent, ONE), 1)
        if not isinstance(value, Op) or len(value.args) != 2:
            raise _Unknown
        a, b = value.args
        match value.op:
            case "add":
                return self._sum(self._span(a), self._span(b))
            case "sub":
                return self._sum(self._span(a), self._scaled(self._span(b), integer(-1)))
            case "mul":
                small, factor = (a, b) if self.inner.isdisjoint(free_indices(b)) else (b, a)
                return self._scaled(self._span(small), factor)
            case "floordiv":
                return self._quotient(self._span(a), b)
            case "mod":
                return self._remainder(self._span(a), b)
            case "min" | "max":
                return self._extreme(value.op, self._span(a), self._span(b))
        raise _Unknown

    def _sum(self, a: Footprint, b: Footprint) -> Footprint:
        add, step = self.algebra.add, math.gcd(a.step, b.step)
        return Footprint(add(a.center, b.center), add(a.low, b.low), add(a.high, b.high), step)

    def _scaled(self, span: Footprint, factor: Expr) -> Footprint:
        mul = self.algebra.mul
        center = mul(span.center, factor)
        if span.single:
            return Footprint(center, ZERO, ZERO, 0)
        low, high = mul(span.low, factor), mul(span.high, factor)
        if isinstance(factor, Const):
            count = int(factor.value)
            # A negative factor turns the interval round.
            low, high = (high, low) if count < 0 else (low, high)
            return Footprint(center, low, high, span.step * abs(count))
        if not self._of_sizes(factor) or not self.algebra.proves_le(ZERO, factor):
            raise _Unknown
        return Footprint(center, low, high, 1)

    def _of_sizes(self, value: Expr) -> bool:
        return not free_indices(value)

    def _quotient(self, span: Footprint, divisor: Expr) -> Footprint:
        div, algebra = self.algebra.floordiv, self.algebra
        center = div(span.center, divisor)
        if span.single:
            return Footprint(center, ZERO, ZERO, 0)
        if not self._of_sizes(divisor):
            raise _Unknown
        slack: Expr = ZERO
        # floor((c + r) / d) is floor(c / d) + floor(r / d) where d divides c; else what c leaves
        # over may carry one more.
        if not algebra.divides(divisor, span.center):
            slack = algebra.sub(divisor, ONE)
        return Footprint(
            center, div(span.low, divisor), div(algebra.add(span.high, slack), divisor), 1
        )

    def _remainder(self, span: Footprint, divisor: Expr) -> Footprint:
        algebra = self.algebra
        if span.single:
            return Footprint(algebra.mod(span.center, divisor), ZERO, ZERO, 0)
        if not self._of_sizes(divisor):
            raise _Unknown
        # (c + r) % d is r where d divides c and 0 <= r < d; else it may be anything below d.
        inside = algebra.proves_le(ZERO, span.low) and algebra.proves_lt(span.high, divisor)
        if inside and algebra.divides(divisor, span.center):
            return replace(span, center=ZERO)
        return Footprint(ZERO, ZERO, algebra.sub(divisor, ONE), 1)

    def _extreme(self, op: str, a: Footprint, b: Footprint) -> Footprint:
        algebra = self.algebra
        choose = algebra.min if op == "min" else algebra.max
        if algebra.equal(a.center, b.center):
            return Footprint(a.center, choose(a.low, b.low), choose(a.high, b.high), 1)
        # min(c + r, c' + r') lies between min(c, c') + the least of all r and min(c, c') + the
        # greatest; likewise max.
        low, high = least(a.low, b.low, algebra), most(a.high, b.high, algebra)
        return Footprint(choose(a.center, b.center), low, high, 1)


def spans(
    producer: TensorView, consumer: TensorView, loops: GivenLoops
) -> Iterator[list[Footprint]]:
    """Yield, for each logical axis of `producer`, what each read of it by `consumer` runs over."""
    definition = consumer.definition
    assert definition is not None
    reads = [read for read in definition.reads if read.producer is producer]
    for number, axis in enumerate(producer.domain.logical):
        found: list[Footprint] = []
        for read in reads:
            try:
                found.append(loops.span(read.indices[number]))
            except _Unknown:
                found.append(whole_axis(axis, loops.algebra))
        yield found


def hull(axis: IterDomain, found: Sequence[Footprint], algebra: Simplifier) -> Footprint:
    """Return the smallest span that has all of `found`; the whole axis where they move apart."""
    first, *others = found
    for span in others:
        moved = algebra.sub(span.center, first.center)
        # Reads whose distance depends on a loop have no common tile that moves with it.
        if not all(isinstance(node, (Const, Symbol, Op)) for node in walk(moved)):
            return whole_axis(axis, algebra)
        low, high = algebra.add(span.low, moved), algebra.add(span.high, moved)
        step = math.gcd(first.step, span.step, _distance(algebra.sub(low, first.low)))
        first = Footprint(
            first.center, least(first.low, low, algebra), most(first.high, high, algebra), step
        )
    return first


def _distance(gap: Expr) -> int:
    return abs(int(gap.value)) if isinstance(gap, Const) else 1


def least(a: Expr, b: Expr, algebra: Simplifier) -> Expr:
    """Return the smaller of two numbers of sizes."""
    return algebra.min(a, b)


def most(a: Expr, b: Expr, algebra: Simplifier) -> Expr:
    """Return the larger of two numbers of sizes."""
    if algebra.proves_le(a, b):
        return b
    return a if algebra.proves_le(b, a) else algebra.max(a, b)


def is_below(a: Expr, b: Expr, algebra: Simplifier) -> bool:
    """Whether ``a <= b`` is proved, also where one is the least or the most of several."""
    if algebra.proves_le(a, b):
        return True
    if isinstance(b, Op) and b.op == "max":
        return any(is_below(a, each, algebra) for each in b.args)
    return isinstance(a, Op) and a.op == "min" and any(is_below(e, b, algebra) for e in a.args)


def templates(values: Iterable[Expr], loops: Sequence[Index]) -> tuple[Expr, ...]:
    """Return expressions of loops as templates, with a coordinate for each of `loops`."""
    known: dict[Expr, Expr] = {index: Coordinate(j) for j, index in enumerate(loops)}
    return tuple([substitute(value, known) for value in values])


def holds(
    step: Overlap, read: Mapping[IterDomain, Footprint], loops: Sequence[Expr], algebra: Simplifier
) -> bool:
    """Whether the tiles of `step` have all that is read of its inputs under the same loops."""
    begin = step.begin(loops, algebra)
    for axis, first, by, extent in zip(step.inputs, begin, step.steps, step.extents, strict=True):
        if axis.is_broadcast:
            continue
        span = read[axis]
        before = algebra.sub(span.begin(algebra), first)
        if not all(isinstance(node, (Const, Symbol, Op)) for node in walk(before)):
            return False
        after = algebra.add(before, algebra.sub(span.high, span.low))
        last = algebra.mul(algebra.sub(extent, ONE), integer(by))
        if not (is_below(ZERO, before, algebra) and is_below(after, last, algebra)):
            return False
        # A tile of every by-th element has those that are read only if these lie on its grid.
        if span.step % by or not algebra.divides(integer(by), before):
            return False
    return True


def loops_of_tiles(
    steps: Iterable[Overlap],
    loops: Mapping[IterDomain, IterDomain],
    producer: TensorView,
    consumer: TensorView,
) -> dict[IterDomain, IterDomain]:
    """Return which loops of the consumer are those that tiles of the producer follow from.

    They are those of `loops` under which all that the consumer reads lies in the tile.
    """
    algebra = producer.fusion.algebra
    result: dict[IterDomain, IterDomain] = {}
    for step in steps:
        if not all(axis in loops for axis in step.outer):
            continue
        images = [loops[axis] for axis in step.outer]
        indices = [Index("l", axis.size) for axis in images]
        used = step.used()
        if not all(algebra.equal(step.outer[n].size, images[n].size) for n in used):
            continue
        given = GivenLoops(
            consumer.domain,
            {axis: i for n, (axis, i) in enumerate(zip(images, indices, strict=True)) if n in used},
            algebra,
        )
        found = dict(zip(producer.domain.logical, spans(producer, consumer, given), strict=True))
        read = {axis: hull(axis, found[axis], algebra) for axis in step.inputs}
        if holds(step, read, indices, algebra):
            result.update(zip(step.outer, images, strict=True))
    return result
