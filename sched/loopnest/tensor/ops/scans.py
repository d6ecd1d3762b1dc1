"""Scans: cumsum, cumprod, cummax, and scan by a reducer of one's own.

Each element of the result is what the elements up to it fold to, along one axis; `exclusive` leaves
the element itself out, `reverse` goes from the end: it is the scan of the flipped values, flipped.
The axis stays an axis of the result. Types are those of the reduction of the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from loopnest.base.errors import DefinitionError
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import IterKind
from loopnest.scalar.expr import Arg, Expr, cast
from loopnest.tensor.definition import Scan, TracedReducer
from loopnest.tensor.ops import reducers
from loopnest.tensor.ops.construction import Axis, axes_of, define_tuple, normalized_axes
from loopnest.tensor.ops.operands import Operand, call_text, show
from loopnest.tensor.ops.own_reducers import Reducer
from loopnest.tensor.ops.reducers import Family
from loopnest.tensor.ops.reduction_docs import documented
from loopnest.tensor.ops.reductions import WIDE
from loopnest.tensor.ops.slices import flip
from loopnest.tensor.ops.tuple_reductions import folded_values
from loopnest.tensor.tensor_view import TensorView


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
        if not isinstance(value, bool):
            text = f"{flag}={show(value)}"
            raise DefinitionError(
                f"{name}({text})", f"{text} is no bool", f"use {flag}=True or {flag}=False"
            )
