"""Reductions: sum, prod, max, min, any, all, mean, var, welford.

Each reduces the axes `axis` (an int, several, or None for all) to tensors without them, or with
`keepdims` to a broadcast tensor whose `.reduction` is the reduced one. Where all these axes are
broadcast axes there is nothing to fold: the definition is a copy that squeezes them. `dtype` is the
type of the reduction and its result, as in NumPy: elements are converted to it first; of a 16-bit
type to float32, in which it folds, rounded once at the end. Names shadow builtins on purpose: they
are what users call as ``ln.sum``.

What the docstrings of reductions and scans share (operands, axes, errors) is written here once;
what each one says of itself is what it returns, and a row of `FOLD_ROWS`: an example, its result
and a source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from loopnest.base.errors import DefinitionError
from loopnest.scalar.dtypes import INTEGERS, DType, bool_, float32, float64, int64
from loopnest.scalar.enums import IterKind
from loopnest.scalar.expr import ONE, Arg, Const, Expr, Op, cast
from loopnest.tensor.fusion import check_dtype
from loopnest.tensor.ops import reducers
from loopnest.tensor.ops.construction import (
    Axis,
    axes_of,
    define,
    define_reduction,
    insert_axes,
    normalized_axes,
)
from loopnest.tensor.ops.operands import call_text, is_number, require_flag, show
from loopnest.tensor.ops.reducers import Family
from loopnest.tensor.tensor_view import AxisMap, Read, TensorView

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class FoldRow:
    """What the docstring of a reduction or scan cannot take from its parameters.

    Args:
        call: of the example, on the operand x.
        y: what NumPy prints of the result.
        source: where the function is defined.
        x: the elements of the operand.
        needs: what else it refuses: "no type to add in".
    """

    call: str
    y: str
    source: str
    x: str = "[[1, 2, 3], [4, 5, 6]]"
    needs: str = ""


_PAIRS = "[[1, 5, 5], [3, 2, 4]]"
_LINE = "[1, 3, 2]"
_MAX, _MIN = [f"numpy.{n}, with an identity for no element" for n in ("max", "min")]

FOLD_ROWS: Mapping[str, FoldRow] = {
    "sum": FoldRow("sum(x, axis=1)", "[ 6. 15.]", "numpy.sum", needs="no type to add in"),
    "prod": FoldRow("prod(x, axis=1)", "[  6. 120.]", "numpy.prod", needs="no type to multiply in"),
    "max": FoldRow("max(x, axis=1)", "[3. 6.]", _MAX, needs="no element type"),
    "min": FoldRow("min(x, axis=0)", "[1. 2. 3.]", _MIN, needs="no element type"),
    "any": FoldRow("any(x > 5.0, axis=1)", "[False  True]", "numpy.any"),
    "all": FoldRow("all(x > 3.0, axis=1)", "[False  True]", "numpy.all"),
    "mean": FoldRow("mean(x, axis=1)", "[2. 5.]", "numpy.mean", needs="no float type"),
    "argmax": FoldRow("argmax(x, axis=1)", "[1 2]", "numpy.argmax", _PAIRS),
    "argmin": FoldRow("argmin(x, axis=1)", "[0 1]", "numpy.argmin", _PAIRS),
    "cumsum": FoldRow(
        "cumsum(x, 0)", "[1. 4. 6.]",
        'numpy.cumsum; Blelloch, "Prefix sums and their applications", 1990', _LINE,
    ),
    "cumprod": FoldRow("cumprod(x, 0)", "[1. 3. 6.]", "numpy.cumprod", _LINE),
    "cummax": FoldRow("cummax(x, 0)", "[1. 3. 3.]", "numpy.maximum.accumulate", _LINE),
}  # fmt: skip

_REDUCED = """\
Args:
    tv: the operand, of any shape.
    axis: an axis, several, or None for all; negative from the end.
    keepdims: whether broadcast axes of extent 1 stand in place of the reduced ones."""

_TYPED = """
    dtype: what elements are converted to, the type of the fold and of the result; a 16-bit type
        is folded in float32 and rounded once."""

_KEPT = """\
Returns:
    A tensor without the reduced axes; with `keepdims` a broadcast, whose `.reduction` it is."""

_FOUND = """\
Args:
    tv: the operand, of any shape.
    axis: an axis, negative from the end, or None for all.
    keepdims: whether a broadcast axis stands in place of the reduced one."""

_SCANNED = """\
Args:
    tv: the operand, of any shape.
    axis: the axis to go along, negative from the end.
    exclusive: whether an element has what lies before it, the first one the identity.
    reverse: whether to go from the end."""


def documented(function: F) -> F:
    """Give `function`, whose docstring says what it returns, the rest of it."""
    name = function.__name__
    function.__doc__ = fold_docstring(name, function.__doc__ or "", function.__annotations__)
    return function


def fold_docstring(name: str, first: str, parameters: Mapping[str, object]) -> str:
    """Return the docstring of the function `name`, which begins with `first`."""
    row = FOLD_ROWS[name]
    axes, sections = "axes that it does not have", [_REDUCED, _KEPT]
    if "exclusive" in parameters:
        axes, sections = "no axis that it has", [_SCANNED]
    elif name.startswith("arg"):
        axes, sections = "an axis that it does not have", [_FOUND]
    elif "dtype" in parameters:
        sections[0] += _TYPED
    last = "flags that are no bools" if "exclusive" in parameters else row.needs
    refused = f"{axes}, or {last}" if last else f"or {axes}"
    shape = '("N",)' if row.x is _LINE else '("N", "D")'
    lines = " ".join(first.split("\n\n")[0].split())
    rest = ["\n".join(line.strip() for line in p.splitlines()) for p in first.split("\n\n")[1:]]
    parts = [
        lines,
        *[paragraph.strip() for paragraph in rest if paragraph.strip()],
        f"Raises:\n    DefinitionError: no TensorView, {refused}.",
        *sections,
        ">>> import numpy as np\n>>> import loopnest as ln\n"
        '>>> with ln.Fusion("k") as f:\n'
        f'...     x = f.input("x", {shape}, ln.float32)\n'
        f'...     y = f.output(ln.{row.call}, "y")\n'
        f">>> print(ln.evaluate(f, np.array({row.x}, np.float32)))\n"
        f"{row.y}",
        f"Source: {row.source}.",
    ]
    return "\n\n".join(parts)


_Axes = int | Sequence[int] | None
WIDE = dict.fromkeys((bool_, *INTEGERS), int64)
"""What sums and products of bools and integers are, and are computed in."""

_MEAN = {**WIDE, int64: float64}
"""What the mean of integers is summed in: exactly, and in what cannot overflow."""


@documented
def sum(
    tv: TensorView, axis: _Axes = None, keepdims: bool = False, dtype: DType | None = None
) -> TensorView:
    """Return the sum over `axis`; of bools and integers in int64, unless `dtype` says in what."""
    axes, chosen = _chosen("sum", tv, axis, keepdims, dtype)
    wide = chosen or WIDE.get(tv.dtype, tv.dtype)
    return fold("sum", tv, axes, keepdims, reducers.SUM, wide, wide.compute, _said(dtype))


@documented
def prod(
    tv: TensorView, axis: _Axes = None, keepdims: bool = False, dtype: DType | None = None
) -> TensorView:
    """Return the product over `axis`; of bools and integers in int64, unless `dtype` says what."""
    axes, chosen = _chosen("prod", tv, axis, keepdims, dtype)
    wide = chosen or WIDE.get(tv.dtype, tv.dtype)
    return fold("prod", tv, axes, keepdims, reducers.PROD, wide, wide.compute, _said(dtype))


@documented
def max(
    tv: TensorView, axis: _Axes = None, keepdims: bool = False, dtype: DType | None = None
) -> TensorView:
    """Return the largest element over `axis`; NaN if one is, -inf or the least int for none."""
    axes, chosen = _chosen("max", tv, axis, keepdims, dtype, bools=True)
    kind = chosen or tv.dtype
    family = reducers.ANY if kind.is_bool else reducers.MAX
    return fold("max", tv, axes, keepdims, family, kind, kind.compute, _said(dtype))


@documented
def min(
    tv: TensorView, axis: _Axes = None, keepdims: bool = False, dtype: DType | None = None
) -> TensorView:
    """Return the least element over `axis`; NaN if one is, inf or the greatest int for none."""
    axes, chosen = _chosen("min", tv, axis, keepdims, dtype, bools=True)
    kind = chosen or tv.dtype
    family = reducers.ALL if kind.is_bool else reducers.MIN
    return fold("min", tv, axes, keepdims, family, kind, kind.compute, _said(dtype))


@documented
def any(tv: TensorView, axis: _Axes = None, keepdims: bool = False) -> TensorView:
    """Return whether an element over `axis` is not 0."""
    axes = checked_axes("any", tv, axis, keepdims)
    return fold("any", tv, axes, keepdims, reducers.ANY, bool_, bool_)


@documented
def all(tv: TensorView, axis: _Axes = None, keepdims: bool = False) -> TensorView:
    """Return whether no element over `axis` is 0."""
    axes = checked_axes("all", tv, axis, keepdims)
    return fold("all", tv, axes, keepdims, reducers.ALL, bool_, bool_)


@documented
def mean(
    tv: TensorView, axis: _Axes = None, keepdims: bool = False, dtype: DType | None = None
) -> TensorView:
    """Return the mean over `axis`: a sum, then a division. NaN for no element.

    Integers give float32 (their sum is exact), unless `dtype` says what sum and mean are; a 16-bit
    sum is not rounded in between. `.reduction` is the sum.
    """
    axes, chosen = _chosen("mean", tv, axis, keepdims, dtype, floats=True)
    wide = chosen.compute if chosen else _MEAN.get(tv.dtype, tv.dtype.compute)
    total = fold("sum", tv, axes, False, reducers.SUM, wide, wide, _said(dtype))
    result = chosen or (tv.dtype if tv.dtype.is_float else float32)
    real = float64 if wide is float64 else result.compute
    parts = (cast(Arg(0, wide), real), cast(_count(tv, axes), real))
    value = cast(Op("div", parts, real), result.compute)
    return _finish("div", total, parts[1], value, result, tv, axes, keepdims)


def var(
    tv: TensorView,
    axis: _Axes = None,
    correction: float = 0,
    keepdims: bool = False,
    dtype: DType | None = None,
) -> TensorView:
    """Return the variance over `axis`: Welford's, then a factor. NaN for no element.

    Args:
        tv: the operand; integers give float32.
        axis: the axes to reduce; None for all.
        correction: the divisor is the number of elements minus this (at least 0).
        keepdims: whether broadcast axes stand in place of the reduced ones.
        dtype: the float type of Welford's algorithm and of the result.

    `.reduction` is the variance that Welford's algorithm gives.

    Raises:
        DefinitionError: no TensorView, axes that it does not have, a correction that is no finite
            number, or no float type.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N", "D"), ln.float32)
    ...     y = f.output(ln.var(x, axis=1), "y")
    >>> print(ln.evaluate(f, np.array([[1, 2, 3], [4, 5, 6]], np.float32)))
    [0.6666667 0.6666667]

    Source: numpy.var; Welford, 1962.
    """
    axes, chosen = _chosen("var", tv, axis, keepdims, dtype, floats=True)
    if not is_number(correction) or not math.isfinite(correction):
        raise DefinitionError(
            call_text("var", (tv,), f"correction={correction!r}{_said(dtype)}"),
            "the correction is no finite number",
            "use 0 (of a population), 1 (of a sample) or another number",
        )
    result = chosen or (tv.dtype if tv.dtype.is_float else float32)
    factor = _variance_factor(_count(tv, axes), float(correction), result.compute)
    if isinstance(factor, Const) and factor.value == 1:
        spread = _welford(tv, axes, result, _said(dtype))[1]
        return keep_axes(spread, len(tv.domain.logical), axes) if keepdims else spread
    spread = _welford(tv, axes, result.compute, _said(dtype))[1]
    value = Op("mul", (Arg(0, result.compute), factor), result.compute)
    return _finish("mul", spread, factor, value, result, tv, axes, keepdims)


def welford(
    tv: TensorView, axis: _Axes = None, keepdims: bool = False, dtype: DType | None = None
) -> tuple[TensorView, TensorView, TensorView]:
    """Return (mean, population variance, count: int64) over `axis`, in one pass.

    Integers give float32, unless `dtype` says what mean and variance are. Over no element all three
    are 0. Elements that are not finite make the variance NaN, and with others the mean (`mean`
    itself keeps infinities).

    Raises:
        DefinitionError: no TensorView, axes that it does not have, or no float type.

    Source: Welford, "Note on a method for calculating corrected sums of squares and products",
    1962.

    Args:
        tv: the operand, of any shape.
        axis: an axis, several, or None for all; negative from the end.
        keepdims: whether broadcast axes of extent 1 stand in place of the reduced ones.
        dtype: what elements are converted to, the type of the fold and of the result; a 16-bit type
            is folded in float32 and rounded once.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N", "D"), ln.float32)
    ...     for name, tensor in zip(("m", "v", "n"), ln.welford(x, axis=1)):
    ...         y = f.output(tensor, name)
    >>> for result in ln.evaluate(f, np.array([[1, 2, 3], [4, 5, 6]], np.float32)):
    ...     print(result)
    [2. 5.]
    [0.6666667 0.6666667]
    [3 3]
    """
    axes, chosen = _chosen("welford", tv, axis, keepdims, dtype, floats=True)
    kind = chosen or (tv.dtype if tv.dtype.is_float else float32)
    parts = _welford(tv, axes, kind, _said(dtype))
    average, spread, count = (
        [keep_axes(p, len(tv.domain.logical), axes) for p in parts] if keepdims else parts
    )
    return average, spread, count


def fold(
    op: str,
    tv: TensorView,
    axes: tuple[int, ...],
    keepdims: bool,
    family: Family,
    dtype: DType,
    computed: DType,
    said: str = "",
) -> TensorView:
    """Return `tv` folded over `axes` by reducers of one component, in type `computed`.

    `said` is what people read of the call after its axes.
    """
    value = cast(Arg(0, tv.dtype), computed)
    (result,) = _reduced(op, tv, axes, family, (dtype,), (value,), said)
    return keep_axes(result, len(tv.domain.logical), axes) if keepdims else result


def checked_axes(
    name: str, tv: TensorView, axis: _Axes, keepdims: object, said: str = ""
) -> tuple[int, ...]:
    """Return the axes of a call from 0 on; `said` is what the call says behind them.

    Raises:
        DefinitionError: no TensorView, axes that it does not have, or a `keepdims` that is no bool.
    """
    axes = normalized_axes(name, tv, axis, said)
    if not isinstance(keepdims, bool):
        require_flag(call_text(name, (tv,), f"keepdims={show(keepdims)}"), "keepdims", keepdims)
    return axes


def _chosen(
    name: str,
    tv: TensorView,
    axis: _Axes,
    keepdims: object,
    dtype: DType | None,
    *,
    bools: bool = False,
    floats: bool = False,
) -> tuple[tuple[int, ...], DType | None]:
    """Return the axes of a call from 0 on, and its `dtype`.

    Args:
        name: of the call.
        tv: its operand.
        axis: its axes.
        keepdims: whether they stay, as broadcast axes.
        dtype: the type that it names.
        bools: whether it reduces in bool.
        floats: whether it reduces in floats alone.
    """
    axes = checked_axes(name, tv, axis, keepdims, _said(dtype))
    if dtype is None:
        return axes, None
    call = call_text(name, (tv,), f"axis={axis!r}{_said(dtype)}")
    check_dtype(call, dtype)
    if floats and not dtype.is_float:
        raise DefinitionError(call, f"{dtype} is no float type", "use ln.float32, say")
    if dtype.is_bool and not bools:
        hint = "use an integer or a float type; ln.any and ln.all reduce to bool"
        raise DefinitionError(call, "bool is no type to add or multiply in", hint)
    return axes, dtype


def _said(dtype: object) -> str:
    return "" if dtype is None else f", dtype={dtype}"


def _welford(
    tv: TensorView, axes: tuple[int, ...], dtype: DType, said: str
) -> tuple[TensorView, ...]:
    element = cast(Arg(0, tv.dtype), dtype.compute)
    zero = Op("sub", (element, element), dtype.compute)  # NaN for what is not finite
    values = (element, zero, Const(1, int64))
    return _reduced("welford", tv, axes, reducers.WELFORD, (dtype, dtype, int64), values, said)


def _reduced(
    op: str,
    tv: TensorView,
    axes: tuple[int, ...],
    family: Family,
    dtypes: tuple[DType, ...],
    values: tuple[Expr, ...],
    said: str,
) -> tuple[TensorView, ...]:
    """Define a reduction, or a squeezing copy where only broadcast axes are reduced."""
    old = axes_of(tv)
    note = f"axis={axes[0] if len(axes) == 1 else axes}{said}"
    if not [axis for axis in axes if old[axis][1] is not IterKind.BROADCAST]:
        op, folds = ("squeeze" if op != "welford" else op), None
        new, axis_map = squeezed(old, axes)
        return define_reduction(op, tv, new, axis_map, dtypes, values, folds, note)
    kept: list[Axis] = [
        (size, IterKind.REDUCTION if place in axes else kind)
        for place, (size, kind) in enumerate(old)
    ]
    axis_map = tuple(range(len(old)))
    reducer = family.of(*[value.dtype for value in values])
    return define_reduction(op, tv, kept, axis_map, dtypes, values, reducer, note)


def squeezed(old: Sequence[Axis], axes: tuple[int, ...]) -> tuple[list[Axis], AxisMap]:
    """Return what axes are left where `axes` are squeezed, and the axis map of the others."""
    kept = [place for place in range(len(old)) if place not in axes]
    axis_map = tuple([None if place in axes else kept.index(place) for place in range(len(old))])
    return [old[place] for place in kept], axis_map


def keep_axes(result: TensorView, rank: int, axes: tuple[int, ...]) -> TensorView:
    """Return `result` with broadcast axes where a tensor of `rank` axes was reduced."""
    mask = [place in axes for place in range(rank)]
    kept = insert_axes(result, mask)
    kept.reduction = result
    return kept


def _finish(
    op: str,
    reduction: TensorView,
    factor: Expr,
    value: Expr,
    dtype: DType,
    tv: TensorView,
    axes: tuple[int, ...],
    keepdims: bool,
) -> TensorView:
    """Define the pointwise tensor that follows the reduction of a mean or variance."""
    shape = axes_of(reduction)
    reads = (Read.along(reduction, tuple(range(len(shape)))),)
    result = define(tv.fusion, op, (reduction, factor), reads, shape, dtype, value)
    if keepdims:
        result = keep_axes(result, len(tv.domain.logical), axes)
    result.reduction = reduction
    return result


def _count(tv: TensorView, axes: tuple[int, ...]) -> Expr:
    """Return the number of elements that are reduced to one, as an index expression."""
    sizes = tv.sizes
    count: Expr = ONE
    for axis in axes:
        count = tv.fusion.algebra.mul(count, sizes[axis])
    return count


def _variance_factor(count: Expr, correction: float, real: DType) -> Expr:
    """Return count / max(count - correction, 0): 1 or NaN (for no element) without correction."""
    if isinstance(count, Const) and count.value > correction:
        return Const(count.value / (count.value - correction), real)
    number = cast(count, real)
    rest: Expr = number
    if correction:
        rest = Op("sub", (number, Const(correction, real)), real)
        rest = Op("max", (rest, Const(0.0, real)), real)
    return Op("div", (number, rest), real)
