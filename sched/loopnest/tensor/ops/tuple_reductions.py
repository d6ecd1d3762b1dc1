"""Reductions of several values at once, reducers of one's own, and scans.

`reduce` folds a tuple of values, broadcast against each other, to as many tensors, which share one
definition. `argmax` and `argmin` fold pairs of an element and its index, and give the index;
`logsumexp` folds pairs of the largest element and a sum.

Each element of a scan (cumsum, cumprod, cummax, scan) is what the elements up to it fold to, along
one axis; `exclusive` leaves the element itself out, `reverse` goes from the end: it is the scan of
the flipped values, flipped. The axis stays an axis of the result. Types are those of the reduction
of the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias, overload

from loopnest.base.errors import DefinitionError
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType, bool_, float32, int32, int64
from loopnest.scalar.enums import IterKind
from loopnest.scalar.expr import ONE, Arg, Const, Coordinate, Expr, Op, cast, walk
from loopnest.tensor.fusion import Number, Operand, ScalarOperand
from loopnest.tensor.ops import reducers
from loopnest.tensor.ops.construction import (
    Axis,
    axes_of,
    common_axes,
    define,
    define_tuple,
    extended,
    normalized_axes,
)
from loopnest.tensor.ops.operands import (
    as_expr,
    call_text,
    fusion_of,
    is_number,
    refusing,
    require_flag,
    show,
    with_sizes,
)
from loopnest.tensor.ops.own_reducers import Parts, Reducer
from loopnest.tensor.ops.pointwise import exp, maximum
from loopnest.tensor.ops.recurrences import Recurrences
from loopnest.tensor.ops.reducers import Family
from loopnest.tensor.ops.reductions import WIDE, checked_axes, documented, keep_axes, squeezed
from loopnest.tensor.ops.slices import flip
from loopnest.tensor.tensor_view import AxisMap, Read, Scan, TensorView, TracedReducer

_Axes: TypeAlias = "int | Sequence[int] | None"


@overload
def reduce(
    reducer: Reducer, values: TensorView, axis: _Axes = None, keepdims: bool = False
) -> TensorView: ...
@overload
def reduce(
    reducer: Reducer, values: Sequence[Operand], axis: _Axes = None, keepdims: bool = False
) -> tuple[TensorView, ...]: ...
def reduce(
    reducer: Reducer,
    values: TensorView | Sequence[Operand],
    axis: _Axes = None,
    keepdims: bool = False,
) -> TensorView | tuple[TensorView, ...]:
    """Return what `reducer` combines `values` to over `axis`, in the order of their elements.

    The elements are partial results, a value a component; those over several axes are in C order.
    Over no element the result is the identity. Values may be partial results themselves: of the
    tiles of an axis, each the product of a contraction, say.

    A value may lack axes of the others (broadcast axes stand there). A component that depends on
    such values alone then lacks these axes too: of (largest, sum, product) over ``(n, t, 1)``,
    ``(n, t, 1)`` and ``(n, t, w)`` the first two are computed for each n and t, not for each w.
    The components that go beyond are recurrences ``y = F y' + v`` where `combine` is linear in
    them; F and v are tensors of their own, made from an exclusive scan of the others.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> widest = ln.Reducer(
    ...     (float("inf"), float("-inf")),
    ...     lambda a, b: (ln.minimum(a[0], b[0]), ln.maximum(a[1], b[1])),
    ...     "extent",
    ... )
    >>> with ln.Fusion("extent") as f:
    ...     x = f.input("x", ("N", "D"), ln.float32)
    ...     low, high = ln.reduce(widest, (x, x), axis=1)
    ...     y = f.output(high - low, "y")
    >>> ln.evaluate(f, np.array([[1, 5, 2], [3, 3, 3]], np.float32))
    array([4., 0.], dtype=float32)

    Args:
        reducer: a `loopnest.Reducer`.
        values: a tensor, or a tuple as long as the identity: tensors that broadcast against each
            other, scalars and numbers, of which one is a tensor.
        axis: the axes to reduce; None for all.
        keepdims: whether broadcast axes stand in place of the reduced ones.

    Returns:
        A tensor for a tensor, a tuple for a tuple; each in the type in which the value and the
        component of the identity meet (of 16 bits: folded in float32, rounded once). One of a
        component that lacks axes has broadcast axes there.

    Raises:
        DefinitionError: no reducer, values that do not fit it or each other, axes that they do not
            have, or types in which the reducer fails its trial.

    Source: Blelloch, "Prefix sums and their applications", 1990; XLA's `Reduce`; Milakov and
    Gimelshein, "Online normalizer calculation for softmax", 2018.
    """
    folded = folded_values("reduce", reducer, values)
    axes = checked_axes("reduce", folded.widest, axis, keepdims)
    producers = folded.producers()
    uneven = Recurrences(reducer, producers, folded.axes, axes, folded.types, folded.elements)
    if uneven.is_uneven():
        made = uneven.results()
    else:
        made = _folded(
            reducer.name, folded.shown(producers), producers, folded.axes, axes, folded.types,
            folded.elements, folded.reducer,
        )  # fmt: skip
    rank = len(folded.axes)
    results = tuple([keep_axes(t, rank, axes) for t in made]) if keepdims else made
    return results[0] if isinstance(values, TensorView) else results


@dataclass(frozen=True, eq=False, slots=True)
class FoldedValues:
    """What a reducer of one's own is to fold, checked; nothing is defined yet.

    Args:
        tensors: the distinct tensors among the values.
        axes: those that they broadcast to.
        types: of the results, one a component.
        elements: the partial result of an element, in terms of the tensors.
        reducer: how elements fold.
    """

    tensors: tuple[TensorView, ...]
    axes: list[Axis]
    types: list[DType]
    elements: tuple[Expr, ...]
    reducer: TracedReducer

    @property
    def widest(self) -> TensorView:
        """A tensor that has all axes."""
        return max(self.tensors, key=lambda tensor: len(tensor.domain.logical))

    def producers(self) -> list[TensorView]:
        """Return the tensors, with broadcast axes in front where they have fewer axes."""
        return [extended(tensor, len(self.axes)) for tensor in self.tensors]

    def shown(self, producers: Sequence[TensorView]) -> tuple[TensorView | Expr, ...]:
        """Return the values for texts of the math: a producer where one is read, else a scalar."""
        read = [[n.number for n in walk(e) if isinstance(n, Arg)] for e in self.elements]
        return tuple(
            [producers[r[0]] if r else e for r, e in zip(read, self.elements, strict=True)]
        )


def folded_values(
    name: str, reducer: Reducer, values: TensorView | Sequence[Operand]
) -> FoldedValues:
    """Return what call `name` is to fold.

    Raises:
        DefinitionError: no reducer, values that do not fit it or each other, or types in which the
            reducer fails its trial.
    """
    parts = with_sizes(_parts(name, reducer, values))
    fusion_of(name, parts)
    tensors = list(dict.fromkeys([v for v in parts if isinstance(v, TensorView)]))
    if not tensors:
        subject = call_text(name, (reducer.name, *parts))
        raise DefinitionError(subject, "no value is a TensorView", "give one that has the axes")
    axes = common_axes(name, parts, tensors)
    types = _types(parts, reducer.identity)
    elements = tuple(
        [
            cast(Arg(tensors.index(v), v.dtype), kind.compute)
            if isinstance(v, TensorView)
            else _scalar(reducer, v, kind.compute)
            for v, kind in zip(parts, types, strict=True)
        ]
    )
    return FoldedValues(tuple(tensors), axes, types, elements, reducer.of_elements(elements))


@documented
def argmax(tv: TensorView, axis: int | None = None, keepdims: bool = False) -> TensorView:
    """Return the index of the largest element over `axis`, as int64: the first one of equals.

    The first NaN counts as the largest. With None it is the index into all elements in C order. A
    launch without elements along the axis is refused.
    """
    return _arg("argmax", tv, axis, keepdims, reducers.ARGMAX)


@documented
def argmin(tv: TensorView, axis: int | None = None, keepdims: bool = False) -> TensorView:
    """Return the index of the least element over `axis`, as int64: the first one of equals.

    The first NaN counts as the least. With None it is the index into all elements in C order. A
    launch without elements along the axis is refused.
    """
    return _arg("argmin", tv, axis, keepdims, reducers.ARGMIN)


def _arg(
    name: str, tv: TensorView, axis: int | None, keepdims: bool, family: reducers.Family
) -> TensorView:
    axes = checked_axes(name, tv, axis, keepdims)
    if axis is not None and isinstance(axis, (tuple, list)):
        call = call_text(name, (tv,), f"axis={show(axis)}")
        raise DefinitionError(call, "several axes are named", "name one, or None for all")
    _require_elements(tv, axes)
    number = element_number(tv, axes)
    kind = tv.dtype.compute
    kind = int32 if kind.is_bool else kind
    values = (cast(Arg(0, tv.dtype), kind), number)
    types = [kind if tv.dtype.is_bool else tv.dtype, int64]
    made = folded(name, tv, axes, types, values, family.of(kind, int64))
    return keep_axes(made[1], len(tv.domain.logical), axes) if keepdims else made[1]


def folded(
    op: str,
    tv: TensorView,
    axes: tuple[int, ...],
    types: Sequence[DType],
    values: tuple[Expr, ...],
    reducer: TracedReducer,
) -> tuple[TensorView, ...]:
    """Define a reduction of `values` of one tensor, or a copy over broadcast axes."""
    return _folded(op, (tv,), [tv], axes_of(tv), axes, types, values, reducer)


def element_number(tv: TensorView, axes: Sequence[int]) -> Expr:
    """Return the number of an element among those along `axes`, in C order."""
    result: Expr | None = None
    for place in axes:
        axis = tv.domain.logical[place]
        if axis.is_broadcast:
            continue
        step = cast(Coordinate(place), int64)
        if result is not None:
            scaled = Op("mul", (result, cast(axis.size, int64)), int64)
            step = Op("add", (scaled, step), int64)
        result = step
    return Const(0, int64) if result is None else result


def _require_elements(tv: TensorView, axes: Sequence[int]) -> None:
    """Let every launch check that there are elements along `axes`."""
    for place in axes:
        size = tv.sizes[place]
        if isinstance(size, Const) and size.value >= 1:
            continue
        tv.fusion.require(Op("ge", (size, ONE), bool_))


def _parts(name: str, reducer: Reducer, values: object) -> tuple[Operand, ...]:
    """Return the value of each component."""
    if not isinstance(reducer, Reducer):
        call = call_text(name, (reducer, values))
        kind = f"of type {type(reducer).__name__}"
        raise DefinitionError(call, f"operand 1 is {kind}", "use a loopnest.Reducer")
    parts = tuple(values) if isinstance(values, (tuple, list)) else (values,)
    if len(parts) != len(reducer.identity):
        call = call_text(name, (reducer.name, values))
        count = "1 value is" if len(parts) == 1 else f"{len(parts)} values are"
        wanted = len(reducer.identity)
        raise DefinitionError(
            call,
            f"{count} given, the partial results of {reducer.name} have {wanted} "
            f"component{'s' * (wanted > 1)}",
            "give a value a component",
        )
    return parts


def _types(parts: Sequence[Operand], identity: Sequence[Number]) -> list[DType]:
    """Return the type of each component: in which its value and that of the identity meet.

    Where both are numbers, it is the one in which others of their kind are computed.
    """
    found = [
        None if is_number(value) else dtypes.meet((_typed(value),), (neutral,))
        for value, neutral in zip(parts, identity, strict=True)
    ]
    result: list[DType] = []
    for kind, value, neutral in zip(found, parts, identity, strict=True):
        if kind is None:
            assert is_number(value)
            weak = dtypes.meet((), (value, neutral))
            same = [known.compute for known in found if known and known.kind == weak.kind]
            kind = dtypes.meet(same) if same else int64 if weak.is_integer else weak
        result.append(kind)
    return result


def _typed(value: Operand) -> DType:
    assert isinstance(value, (TensorView, ScalarOperand))
    return value.dtype


def _scalar(reducer: Reducer, value: Operand, dtype: DType) -> Expr:
    assert not isinstance(value, TensorView)
    with refusing(call_text("reduce", (reducer.name, value))):
        return as_expr(value, dtype)


def _folded(
    op: str,
    operands: tuple[TensorView | Expr, ...],
    producers: Sequence[TensorView],
    old: Sequence[Axis],
    axes: tuple[int, ...],
    types: Sequence[DType],
    values: tuple[Expr, ...],
    reducer: TracedReducer,
) -> tuple[TensorView, ...]:
    """Define a reduction of `values`, or a copy where only broadcast axes are reduced."""
    note = f"axis={axes[0] if len(axes) == 1 else axes}"
    places: AxisMap = tuple(range(len(old)))
    if all(old[axis][1] is IterKind.BROADCAST for axis in axes):
        new, places = squeezed(old, axes)
        return define_tuple(op, operands, producers, places, new, types, values, None, note)
    new = [
        (size, IterKind.REDUCTION if place in axes else kind)
        for place, (size, kind) in enumerate(old)
    ]
    return define_tuple(op, operands, producers, places, new, types, values, reducer, note)


def logsumexp(tv: TensorView, axis: _Axes = None, keepdims: bool = False) -> TensorView:
    """Return the logarithm of the sum of the exponentials over `axis`, in one pass.

    What is summed are exponentials of what lies below the largest element so far, so that none
    overflows. -inf for no element.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N", "D"), ln.float32)
    ...     y = f.output(ln.logsumexp(x, axis=1), "y")
    >>> print(ln.evaluate(f, np.array([[0, 0], [3, 3]], np.float32)))
    [0.6931472 3.6931472]

    Args:
        tv: the operand, of any shape; integers and bools are taken as float32.
        axis: an axis, several, or None for all; negative from the end.
        keepdims: whether broadcast axes of extent 1 stand in place of the reduced ones.

    Returns:
        A tensor without the reduced axes; with `keepdims` a broadcast, whose `.reduction` it is.

    Raises:
        DefinitionError: no TensorView, or axes that it does not have.

    Source: torch.logsumexp; Milakov and Gimelshein, "Online normalizer calculation for softmax",
    2018.
    """
    axes = checked_axes("logsumexp", tv, axis, keepdims)
    dtype = tv.dtype if tv.dtype.is_float else float32
    kind = dtype.compute
    values = (cast(Arg(0, tv.dtype), kind), Const(1, kind))
    reducer = _log_sum_exp().of_elements(values)
    largest, total = folded("logsumexp", tv, axes, [kind, kind], values, reducer)
    most, sums = Arg(0, kind), Arg(1, kind)
    whole = Op("add", (most, Op("log", (sums,), kind)), kind)
    infinite = Op("eq", (Op("abs", (most,), kind), Const(float("inf"), kind)), dtypes.bool_)
    shape = axes_of(largest)
    along = tuple(range(len(shape)))
    result = define(
        tv.fusion, "logsumexp", (largest, total),
        (Read.along(largest, along), Read.along(total, along)), shape, dtype,
        Op("where", (infinite, most, whole), kind),
    )  # fmt: skip
    return keep_axes(result, len(tv.domain.logical), axes) if keepdims else result


@cache
def _log_sum_exp() -> Reducer:
    """Return the fold of pairs (largest element, sum of the exponentials of what lies below it)."""

    def combine(a: Parts, b: Parts) -> tuple[object, object]:
        most = maximum(a[0], b[0])
        return most, a[1] * exp(a[0] - most) + b[1] * exp(b[0] - most)

    return Reducer((float("-inf"), 0.0), combine, "logsumexp", commutative=True)


@documented
def cumsum(tv: TensorView, axis: int, exclusive: bool = False, reverse: bool = False) -> TensorView:
    """Return the sums of all elements up to each along `axis`; types as `sum`."""
    return _of_family("cumsum", tv, axis, exclusive, reverse, reducers.SUM)


@documented
def cumprod(
    tv: TensorView, axis: int, exclusive: bool = False, reverse: bool = False
) -> TensorView:
    """Return the products of all elements up to each along `axis`; types as `prod`."""
    return _of_family("cumprod", tv, axis, exclusive, reverse, reducers.PROD)


@documented
def cummax(tv: TensorView, axis: int, exclusive: bool = False, reverse: bool = False) -> TensorView:
    """Return the largest of all elements up to each along `axis`; from a NaN on it is NaN."""
    bools = isinstance(tv, TensorView) and tv.dtype.is_bool
    family = reducers.ANY if bools else reducers.MAX
    return _of_family("cummax", tv, axis, exclusive, reverse, family)


@overload
def scan(
    reducer: Reducer, values: TensorView, axis: int, exclusive: bool = False, reverse: bool = False
) -> TensorView: ...
@overload
def scan(
    reducer: Reducer,
    values: Sequence[Operand],
    axis: int,
    exclusive: bool = False,
    reverse: bool = False,
) -> tuple[TensorView, ...]: ...
def scan(
    reducer: Reducer,
    values: TensorView | Sequence[Operand],
    axis: int,
    exclusive: bool = False,
    reverse: bool = False,
) -> TensorView | tuple[TensorView, ...]:
    """Return what `reducer` combines all `values` up to each element to, along `axis`.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> affine = ln.Reducer(
    ...     (1.0, 0.0), lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), "affine"
    ... )
    >>> with ln.Fusion("smooth") as f:  # y[i] = y[i - 1] / 2 + x[i]
    ...     x = f.input("x", ("N",), ln.float32)
    ...     y = f.output(ln.scan(affine, (0.5, x), axis=0)[1], "y")
    >>> ln.evaluate(f, np.array([4, 2, 0, 8], np.float32))
    array([4., 4., 2., 9.], dtype=float32)

    Args:
        reducer: a `loopnest.Reducer`.
        values: a tensor, or a tuple as long as the identity, as `reduce` takes them.
        axis: the axis to go along.
        exclusive: whether an element has what lies before it, the first one the identity.
        reverse: whether to go from the end.

    Returns:
        A tensor for a tensor, a tuple for a tuple; in the types of `reduce`.

    Raises:
        DefinitionError: as `reduce`, and flags that are no bools.

    Source: Blelloch, "Prefix sums and their applications", 1990.
    """
    _require_flags("scan", exclusive, reverse)
    folded = folded_values("scan", reducer, values)
    (place,) = _axis("scan", folded.widest, axis)
    producers = folded.producers()
    if reverse:
        producers = [_flipped(tensor, place) for tensor in producers]
    made = _scanned(
        reducer.name, producers, folded.axes, Scan(place, exclusive), folded.types,
        folded.elements, folded.reducer,
    )  # fmt: skip
    if reverse:
        made = tuple([_flipped(tensor, place) for tensor in made])
    return made[0] if isinstance(values, TensorView) else made


def _of_family(
    name: str, tv: TensorView, axis: int, exclusive: bool, reverse: bool, family: Family
) -> TensorView:
    (place,) = _axis(name, tv, axis)
    _require_flags(name, exclusive, reverse)
    kind = tv.dtype if family in (reducers.MAX, reducers.ANY) else WIDE.get(tv.dtype, tv.dtype)
    source = _flipped(tv, place) if reverse else tv
    values = (cast(Arg(0, tv.dtype), kind.compute),)
    (made,) = _scanned(
        name, [source], axes_of(tv), Scan(place, exclusive), [kind], values,
        family.of(kind.compute),
    )  # fmt: skip
    return _flipped(made, place) if reverse else made


def _scanned(
    op: str,
    producers: Sequence[TensorView],
    axes: Sequence[Axis],
    scan: Scan,
    types: Sequence[DType],
    values: tuple[Expr, ...],
    reducer: TracedReducer,
) -> tuple[TensorView, ...]:
    """Define a scan; along a broadcast axis each element is itself, or the identity."""
    places = tuple(range(len(axes)))
    note = f"axis={scan.axis}{', exclusive=True' if scan.exclusive else ''}"
    operands = tuple(producers)
    if axes[scan.axis][1] is IterKind.BROADCAST:
        values = reducer.identity if scan.exclusive else values
        return define_tuple(op, operands, producers, places, axes, types, values, None, note)
    return define_tuple(op, operands, producers, places, axes, types, values, reducer, note, scan)


def _flipped(tensor: TensorView, place: int) -> TensorView:
    """Return `tensor` from the end; one that has one element along the axis is itself."""
    return tensor if tensor.domain.logical[place].is_broadcast else flip(tensor, place)


def _axis(name: str, tv: TensorView, axis: object) -> tuple[int, ...]:
    if isinstance(axis, (tuple, list)) or axis is None:
        call = call_text(name, (tv,), f"axis={show(axis)}")
        raise DefinitionError(call, "a scan goes along one axis", "name it by an int")
    return normalized_axes(name, tv, axis)


def _require_flags(name: str, exclusive: object, reverse: object) -> None:
    for flag, value in (("exclusive", exclusive), ("reverse", reverse)):
        require_flag(f"{name}({flag}={show(value)})", flag, value)
