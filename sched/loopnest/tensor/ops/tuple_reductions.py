"""Reductions of several values at once: by reducers of one's own, and argmax and argmin.

`reduce` folds a tuple of values, broadcast against each other, to as many tensors, which share one
definition. `argmax` and `argmin` fold pairs of an element and its index, and give the index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, overload

from loopnest.base.errors import DefinitionError
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType, bool_, int32, int64
from loopnest.scalar.enums import IterKind
from loopnest.scalar.expr import ONE, Arg, Const, Coordinate, Expr, Op, cast, walk
from loopnest.tensor.definition import AxisMap, TracedReducer
from loopnest.tensor.ops import reducers
from loopnest.tensor.ops.construction import (
    Axis,
    axes_of,
    common_axes,
    define_tuple,
    extended,
)
from loopnest.tensor.ops.operands import (
    Number,
    Operand,
    OperandRefused,
    ScalarOperand,
    as_expr,
    call_text,
    fusion_of,
    is_number,
    show,
    with_sizes,
)
from loopnest.tensor.ops.own_reducers import Reducer
from loopnest.tensor.ops.recurrences import Recurrences
from loopnest.tensor.ops.reduction_docs import documented
from loopnest.tensor.ops.reductions import checked_axes, keep_axes, squeezed
from loopnest.tensor.tensor_view import TensorView

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
    try:
        return as_expr(value, dtype)
    except OperandRefused as refused:
        call = call_text("reduce", (reducer.name, value))
        raise DefinitionError(call, refused.reason, refused.hint) from None


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
