"""The splits and merges between two shapes of the same elements in C order, for `reshape`.

Shapes are cut into the least runs of extents that have equal products; each run is walked from
outer to inner axes. What is at hand is split where the next extent of the shape divides it, and
merged with (a part of) the axis behind it where it does not, so that loops over an axis that both
shapes have, or that one shape has in parts, cross a split or merge alone.

Source: nvFuser's AnalyzeViewTransformation (csrc/transform_view.cpp), for static extents.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from loopnest.scalar import dtypes
from loopnest.scalar.enums import IterKind
from loopnest.scalar.expr import ONE, ZERO, Const, Expr, Op, walk
from loopnest.scalar.simplify import Simplifier
from loopnest.tensor.definition import AxisMap
from loopnest.tensor.domain import IterDomain, Merge, Split


class ShapeAlgebra:
    """Products of extents, and what the assumptions of a fusion say of them."""

    def __init__(self, algebra: Simplifier, conditions: Iterable[Expr]) -> None:
        self.algebra = algebra
        self._differences = [
            algebra.sub(*condition.args)
            for condition in conditions
            if isinstance(condition, Op) and condition.op == "eq"
        ]

    def product(self, sizes: Iterable[Expr]) -> Expr:
        """Return the product of extents."""
        return self.algebra.product(sizes)

    def normal(self, size: Expr) -> Expr:
        """Return an extent with sizes that follow from others written out."""
        return self.algebra.simplify(self.algebra.solved.apply(size))

    def same(self, a: Sequence[Expr], b: Sequence[Expr]) -> bool:
        """Whether two shapes have as many elements."""
        one, two = self.product(a), self.product(b)
        if self.algebra.equal(one, two) or self.normal(one) is self.normal(two):
            return True
        found = self.algebra.poly(self.algebra.sub(one, two))
        return any(self._is_multiple(found, difference) for difference in self._differences)

    def _is_multiple(self, found: dict[tuple[Expr, ...], int], difference: Expr) -> bool:
        """Whether a polynomial is another one times a term."""
        poly = self.algebra.poly(difference)
        if len(poly) != len(found) or not poly:
            return False
        (term, count), *_ = poly.items()
        for mine, many in found.items():
            by = self._term(mine, many, term, count)
            if by is not None:
                scaled = self.algebra.mul(by, difference)
                if self.algebra.poly(scaled) == found:
                    return True
        return False

    def _term(
        self, mine: tuple[Expr, ...], many: int, term: tuple[Expr, ...], count: int
    ) -> Expr | None:
        rest = list(mine)
        for atom in term:
            if atom not in rest:
                return None
            rest.remove(atom)
        if many % count:
            return None
        return self.product([Const(many // count, dtypes.index), *rest])

    def exact(self, whole: Expr, part: Expr) -> Expr | None:
        """Return ``whole // part`` where the division is known to leave nothing, else None."""
        if part is ZERO:
            return None
        if whole is part:
            return ONE
        one, two = self.normal(whole), self.normal(part)
        for a, b in ((one, two), (whole, part)):
            if self.algebra.divides(b, a):
                found = self.algebra.floordiv(a, b)
                if self.algebra.equal(self.algebra.mul(found, b), a):
                    return found
        return None

    def cancelled(self, a: Sequence[Expr], b: Sequence[Expr]) -> tuple[list[Expr], list[Expr]]:
        """Return two shapes without the extents that both have."""
        left, rest = list(a), list(b)
        for size in b:
            if size in left:
                left.remove(size)
                rest.remove(size)
        return left, rest

    def quotient(self, sizes: Sequence[Expr], others: Sequence[Expr]) -> Expr | None:
        """Return how many elements of shape `sizes` there are for each of shape `others`."""
        if ZERO in others:
            return None
        left, rest = self.cancelled(sizes, others)
        found = self.exact(self.product(left), self.product(rest)) if self._static(left) else None
        for size in rest if found is None else ():
            parts = [(n, self.exact(whole, size)) for n, whole in enumerate(left)]
            divided = [(n, part) for n, part in parts if part is not None]
            if not divided:
                whole = self.product(self.cancelled(sizes, others)[0])
                return self.exact(whole, self.product(rest))
            place, part = divided[0]
            left[place] = part
        return self.product(left) if found is None else found

    def _static(self, sizes: Sequence[Expr]) -> bool:
        return all(isinstance(size, Const) for size in sizes)


class Reshaping:
    """The axes of a reshaped tensor.

    Attributes:
        root: its root domain: the axes of the operand that are no broadcasts, and new broadcasts.
        rfactor: the axes of the shape.
        axis_map: for each axis of the operand which of the root it is; None where it is dropped.
        conditions: what sizes must satisfy for the splits to leave nothing over.
    """

    def __init__(
        self, operand: Sequence[IterDomain], sizes: Sequence[Expr], algebra: ShapeAlgebra
    ) -> None:
        self.shapes, self.algebra = algebra, algebra.algebra
        self.conditions: list[Expr] = []
        root: list[IterDomain] = []
        axis_map: list[int | None] = []
        targets = [size for size in sizes if size is not ONE]
        for axis in operand:
            # Without targets there is one element: symbols that are left are assumed to be 1.
            dropped = axis.is_broadcast or not targets
            axis_map.append(None if dropped else len(root))
            if not dropped:
                root.append(IterDomain(axis.size, axis.kind))
        kept = list(root)
        if not kept:
            sizes, targets = [ONE] * len(sizes), []
        made = [axis for run in self._runs(kept, targets) for axis in self._run(*run)]
        rest = iter(made)
        rfactor: list[IterDomain] = []
        for size in sizes:
            if size is ONE:
                root.append(IterDomain(ONE, IterKind.BROADCAST))
            rfactor.append(root[-1] if size is ONE else next(rest))
        self.root = tuple(root)
        self.rfactor = self.root if rfactor == root else tuple(rfactor)
        self.axis_map: AxisMap = tuple(axis_map)

    def _runs(
        self, axes: Sequence[IterDomain], sizes: Sequence[Expr]
    ) -> Iterator[tuple[list[IterDomain], list[Expr]]]:
        """Yield the least runs of both shapes that have as many elements."""
        i = j = 0
        while i < len(axes) and j < len(sizes):
            total = len(axes) - i + len(sizes) - j
            ends = ((a, b - a) for b in range(2, total) for a in range(1, b))
            m, n = next(
                (
                    (a, b)
                    for a, b in ends
                    if i + a <= len(axes)
                    and j + b <= len(sizes)
                    and self.shapes.same([x.size for x in axes[i : i + a]], sizes[j : j + b])
                ),
                (len(axes) - i, len(sizes) - j),
            )
            if i + m == len(axes) or j + n == len(sizes):  # what is left of either belongs here
                m, n = len(axes) - i, len(sizes) - j
            yield list(axes[i : i + m]), list(sizes[j : j + n])
            i, j = i + m, j + n

    def _run(self, axes: list[IterDomain], sizes: list[Expr]) -> Iterator[IterDomain]:
        """Yield the axes of extents `sizes` that have the elements of `axes`."""
        axis, *axes = axes
        while len(sizes) > 1:
            size = sizes[0]
            if axes and self.shapes.same([axis.size], [size]):
                yield self._named(axis, sizes.pop(0))
                axis = axes.pop(0)
                continue
            inner = self.shapes.exact(axis.size, size) if axes else self.shapes.product(sizes[1:])
            if inner is None:
                axis = self._joined(axis, axes, size)
            else:
                outer, axis = self._split(axis, sizes.pop(0), inner)
                yield outer
        while axes:
            axis = Merge(axis, axes.pop(0), self.algebra).outputs[0]
        yield self._named(axis, sizes[0])

    def _joined(self, axis: IterDomain, axes: list[IterDomain], size: Expr) -> IterDomain:
        """Return `axis` merged with the next of `axes`, or with the part of it that is missing."""
        missing, behind = self.shapes.exact(size, axis.size), axes.pop(0)
        if missing is not None and not self.shapes.same([missing], [behind.size]):
            rest = self.shapes.exact(behind.size, missing)
            if rest is not None:
                behind, after = self._split(behind, missing, rest)
                axes.insert(0, after)
        return Merge(axis, behind, self.algebra).outputs[0]

    def _split(self, axis: IterDomain, outer: Expr, inner: Expr) -> tuple[IterDomain, IterDomain]:
        """Return the two parts of an axis, which has ``outer * inner`` points.

        The factor is the part that is no quotient: the other one follows from it.
        """
        by_inner = not _has_quotient(inner) or _has_quotient(outer)
        factor = inner if by_inner else outer
        if not self.algebra.divides(factor, axis.size):
            left = Op("mod", (axis.size, factor), dtypes.index)
            self.conditions.append(Op("eq", (left, ZERO), dtypes.bool_))
        rest = outer if by_inner else inner
        step = Split(axis, factor, self.algebra, inner=by_inner, whole=axis.size, rest=rest)
        first, second = step.outputs
        return first, second

    def _named(self, axis: IterDomain, size: Expr) -> IterDomain:
        """Return `axis` with its extent as the shape writes it."""
        step = axis.definition
        if isinstance(step, Merge):
            step.product, step.whole, axis.size = axis.size, size, size
        elif step is not None:
            assert isinstance(step, Split)
            step.whole = step.inputs[0].size
            axis.size = size
            if axis is step.outputs[0 if step.inner else 1]:
                step.rest = size
        elif axis.size is not size:  # an axis of the operand, of an extent that is assumed equal
            outer, within = self._split(axis, ONE, size)
            axis = self._named(Merge(outer, within, self.algebra).outputs[0], size)
        return axis


def _has_quotient(size: Expr) -> bool:
    return any(isinstance(node, Op) and node.op != "mul" for node in walk(size))
