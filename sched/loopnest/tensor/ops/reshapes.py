"""Functions that give the elements of a tensor another shape, in C order: reshape, flatten.

The root domain of the result has the axes of the operand, its rfactor domain those of the shape:
splits and merges lead from one to the other (`Reshaping`), so that loops cross them.

Shapes are cut into the least runs of extents that have equal products; each run is walked from
outer to inner axes. What is at hand is split where the next extent of the shape divides it, and
merged with (a part of) the axis behind it where it does not, so that loops over an axis that both
shapes have, or that one shape has in parts, cross a split or merge alone.

Source: nvFuser's AnalyzeViewTransformation (csrc/transform_view.cpp), for static extents.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from loopnest.base.errors import DefinitionError
from loopnest.scalar import dtypes
from loopnest.scalar.enums import IterKind
from loopnest.scalar.expr import ONE, ZERO, Arg, Const, Expr, Op, Symbol, walk, whole
from loopnest.scalar.simplify import Simplifier
from loopnest.tensor.domain import IterDomain, Merge, Split, TensorDomain
from loopnest.tensor.fusion import Fusion
from loopnest.tensor.ops.construction import define, named_size, position
from loopnest.tensor.ops.data_movement import root_axes
from loopnest.tensor.ops.operands import call_text, refusing, require_tensor, show
from loopnest.tensor.tensor_view import AxisMap, Definition, Read, TensorView

Extent: TypeAlias = "int | str | Expr"


def reshape(tv: TensorView, shape: Extent | Sequence[Extent]) -> TensorView:
    """Return the elements of `tv`, in C order, in another shape.

    Loops of its consumers are loops of `tv` too where they run over axes that the splits and merges
    between the two shapes keep: ``[N * K]`` in the shape ``[N, K]`` is split by K.

    Args:
        tv: the operand.
        shape: an extent an axis, or one: an int, the name of a size symbol, a size expression in a
            string (``"N * K"``), an extent of a tensor, or once -1 for what the others leave.

    Raises:
        DefinitionError: no TensorView, a bad extent, as many elements in the shape as in `tv` not
            known (the assumption that is missing is named), or known to be another number.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("heads") as f:
    ...     x = f.input("x", ("N", 6), ln.float32)
    ...     y = f.output(ln.sum(ln.reshape(x, ("N", 2, -1)), axis=2), "y")
    >>> print(ln.evaluate(f, np.arange(12, dtype=np.float32).reshape(2, 6)))
    [[ 3. 12.]
     [21. 30.]]

    Source: numpy.reshape; nvFuser's ViewOp.
    """
    require_tensor("reshape", tv, shape)
    return _reshaped("reshape", call_text("reshape", (tv, shape)), tv, shape)


def flatten(tv: TensorView, start: int = 0, stop: int = -1) -> TensorView:
    """Return `tv` with the axes from `start` to `stop`, that included, as one, in C order.

    Args:
        tv: the operand.
        start: the first axis, negative from the end.
        stop: the last axis, negative from the end.

    Raises:
        DefinitionError: no TensorView, an axis out of range, or `stop` before `start`.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N", 2, 3), ln.float32)
    ...     y = f.output(ln.flatten(x, 1), "y")
    >>> ln.evaluate(f, np.ones((4, 2, 3), np.float32)).shape
    (4, 6)

    Source: torch.flatten.
    """
    require_tensor("flatten", tv, note=f"start={start!r}, stop={stop!r}")
    sizes = tv.sizes
    if not sizes:
        return _reshaped("flatten", call_text("flatten", (tv,)), tv, (1,))
    call = call_text("flatten", (tv,), f"start={start!r}, stop={stop!r}")
    with refusing(call):
        first, last = position(tv, start), position(tv, stop)
    if last < first:
        what, hint = f"axis {last} stands before axis {first}", "stop is the last axis taken in"
        raise DefinitionError(call, what, hint)
    whole = tv.fusion.algebra.product(sizes[first : last + 1])
    return _reshaped("flatten", call, tv, (*sizes[:first], whole, *sizes[last + 1 :]))


def _reshaped(op: str, call: str, tv: TensorView, shape: object) -> TensorView:
    fusion = tv.fusion
    algebra = ShapeAlgebra(fusion.algebra, [c for _, c in fusion.facts.conditions])
    sizes = _sizes(fusion, call, shape, tv, algebra)
    if not algebra.same(tv.sizes, sizes):
        raise _different(call, tv, sizes, algebra)
    for node in [node for size in sizes for node in walk(size)]:
        if isinstance(node, Symbol):
            fusion.size(call, node.name)
    note = f"shape=({', '.join([str(size) for size in sizes])}{',' * (len(sizes) == 1)})"
    if any(size is ZERO for size in sizes):  # no element, so no factors either
        zero = Const(False if tv.dtype.is_bool else 0, tv.dtype.compute)
        return define(fusion, op, (tv,), (), root_axes(sizes), tv.dtype, zero, note)
    made = Reshaping(tv.domain.logical, sizes, algebra)
    fusion.require(*made.conditions)
    tensor = TensorView(fusion, TensorDomain(made.root, made.rfactor, made.rfactor), tv.dtype)
    reads = (Read.along(tv, made.axis_map),)
    value = Arg(0, tv.dtype)
    tensor.define(Definition(op, (tv,), reads, (tensor,), (value,), None, note))
    return tensor


def _sizes(
    fusion: Fusion, call: str, shape: object, tv: TensorView, algebra: ShapeAlgebra
) -> list[Expr]:
    """Return the extents of a shape, -1 replaced by what the others leave."""
    given = [shape] if isinstance(shape, (int, str, Expr)) else shape
    if not isinstance(given, (tuple, list)):
        raise DefinitionError(call, f"the shape {show(shape)} is not a tuple of extents")
    sizes = [None if whole(extent) == -1 else named_size(fusion, call, extent) for extent in given]
    if None not in sizes:
        return [size for size in sizes if size is not None]
    if sizes.count(None) > 1:
        raise DefinitionError(call, "-1 stands twice", "one extent at most follows from the others")
    others = [size for size in sizes if size is not None]
    rest = algebra.quotient(tv.sizes, others)
    if rest is None:
        raise _indivisible(call, tv, others, algebra)
    return [rest if size is None else size for size in sizes]


def _different(
    call: str, tv: TensorView, sizes: Sequence[Expr], algebra: ShapeAlgebra
) -> DefinitionError:
    mine, wanted = algebra.product(tv.sizes), algebra.product(sizes)
    shown = ", ".join([str(size) for size in sizes])
    what = f"{tv.name} is {tv.signature} and has {mine} elements, the shape ({shown}) has {wanted}"
    if isinstance(mine, Const) and isinstance(wanted, Const):
        return DefinitionError(call, what, "both have as many elements, or one extent is -1")
    hint = _assumed(tv.fusion, _conditions(tv, sizes, algebra), sizes)
    return DefinitionError(call, f"{what}, and nothing says that these are equal", hint)


def _indivisible(
    call: str, tv: TensorView, others: Sequence[Expr], algebra: ShapeAlgebra
) -> DefinitionError:
    mine, by = [algebra.product(sizes) for sizes in algebra.cancelled(tv.sizes, others)]
    what = f"-1 stands for the {algebra.product(tv.sizes)} elements of {tv.name} by "
    what += str(algebra.product(others))
    if ZERO in others:
        return DefinitionError(call, f"{what}, which is any number", "name the extent")
    if isinstance(mine, Const) and isinstance(by, Const):
        hint = f"{tv.name} is {tv.signature}"
        return DefinitionError(call, f"{what}, which is no whole number", hint)
    divisor = str(by) if isinstance(by, (Const, Symbol)) else f"({by})"
    hint = _assumed(tv.fusion, [f"{mine} % {divisor} == 0"], others)
    return DefinitionError(call, f"{what}, which nothing says is a whole number", hint)


def _conditions(tv: TensorView, sizes: Sequence[Expr], algebra: ShapeAlgebra) -> list[str]:
    """Return assumptions under which two shapes have as many elements.

    Where all that is missing is that quotients have no rest, as in N * (K // 2) * 2 and N * K, they
    say that: more follows from it than from an equation.
    """
    facts, missing = tv.fusion.facts, []
    nodes = dict.fromkeys(node for size in (*tv.sizes, *sizes) for node in walk(size))
    for node in nodes:
        if isinstance(node, Op) and node.op == "floordiv":
            whole, divisor = node.args
            if not Simplifier(facts).divides(divisor, whole):
                facts = facts.with_divisor(whole, divisor)
                written = divisor if isinstance(divisor, (Const, Symbol)) else f"({divisor})"
                missing.append(f"{whole} % {written} == 0")
    known = [condition for _, condition in facts.conditions]
    if missing and ShapeAlgebra(Simplifier(facts), known).same(tv.sizes, sizes):
        return missing
    mine, wanted = [algebra.product(rest) for rest in algebra.cancelled(tv.sizes, sizes)]
    return [f"{mine} == {wanted}"]


def _assumed(fusion: Fusion, conditions: Sequence[str], sizes: Sequence[Expr]) -> str:
    """Return how to state assumptions, and how to declare the names in them that are new."""
    nodes = dict.fromkeys(node for size in sizes for node in walk(size))
    fresh = [n.name for n in nodes if isinstance(n, Symbol) and n not in fusion.symbols]
    declared = "".join([f"f.symbol('{name}'), " for name in fresh])
    stated = ", ".join([f"f.assume('{condition}')" for condition in conditions])
    return f"state it before: {declared}{stated}"


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
