"""Windows of a tensor, what is folded of each, and borders: unfold, max_pool, avg_pool, pad.

A border is a constant around a tensor, or between its elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from loopnest.base.errors import DefinitionError
from loopnest.scalar.expr import ONE, ZERO, Const, Coordinate, Expr, cast, integer, whole
from loopnest.tensor.fusion import Scalar, ScalarOperand
from loopnest.tensor.ops import reducers
from loopnest.tensor.ops.construction import (
    Axis,
    Demands,
    along,
    axes_of,
    axis_of,
    bordered,
    compared,
    listed_ints,
    position,
    static,
    view,
)
from loopnest.tensor.ops.operands import (
    OperandRefused,
    as_expr,
    call_text,
    is_number,
    require_tensor,
    show,
)
from loopnest.tensor.ops.reductions import max, mean
from loopnest.tensor.tensor_view import TensorView

Width: TypeAlias = "int | str | Expr"
"""How many elements stand beside an axis: an int, a size symbol by name, or a size expression."""
Pair: TypeAlias = "tuple[Width, Width]"
"""How many stand before the elements of an axis, and after them."""
Border: TypeAlias = "tuple[Expr, Expr]"
"""The same, as expressions."""
NO_BORDER: Border = (ZERO, ZERO)


def pad(
    tv: TensorView,
    widths: Sequence[Pair],
    value: Scalar = 0,
    interior: int | Sequence[int] = 0,
) -> TensorView:
    """Return `tv` with `value` around it: ``(before, after)`` elements of it an axis.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("padded") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     y = f.output(ln.pad(x, [(1, 2)], value=7), "y")
    >>> ln.evaluate(f, np.arange(3, dtype=np.float32))
    array([7., 0., 1., 2., 7., 7.], dtype=float32)

    Args:
        tv: the operand.
        widths: two an axis; negative ones leave elements out. Each is an int, a size symbol by name
            or a size expression. What leaves a negative extent is refused, at launch if only
            that knows.
        value: a Python number or a scalar of the fusion, converted to the type of `tv`.
        interior: how many elements of `value` stand between two of `tv`: an int, or one an axis.
            It asks for one element at least along an axis of symbolic extent.

    Raises:
        DefinitionError: no TensorView, not two widths an axis, a negative extent of the result, or
            a value that is no number.

    Source: the order (interior first, then what is around or left out) is XLA's Pad.
    """
    require_tensor("pad", tv, widths)
    call = call_text("pad", (tv, widths))
    old, rank = axes_of(tv), len(tv.domain.logical)
    pairs = _pairs(call, tv, widths)
    between = listed_ints(call, "interior", interior, rank, least=0)
    fill = border_value(call, tv, value)
    demands = Demands(tv.fusion.algebra)
    axes: list[Axis] = []
    indices: list[Expr] = []
    inside: list[Expr] = []
    for place, (pair, extra) in enumerate(zip(pairs, between, strict=True)):
        if pair == NO_BORDER and not extra:
            axes.append(old[place])
            indices.append(along(place, old[place]))
            continue
        try:
            size = _extent(tv, demands, place, pair, extra)
        except OperandRefused as refused:
            raise DefinitionError(call, refused.reason, refused.hint) from None
        axes.append(axis_of(size))
        index, tests = border(tv, old[place][0], along(place, axes[-1]), pair, extra)
        indices.append(index)
        inside += tests
    tv.fusion.require(*demands.conditions)
    shown = ", ".join([f"{low}:{high}" for low, high in pairs])
    note = f"[{shown}], value={fill}" + (f", interior={between}" if any(between) else "")
    return bordered("pad", tv, indices, inside, fill, axes, note)


def _pairs(call: str, tv: TensorView, widths: object) -> list[Border]:
    rank = len(tv.domain.logical)
    hint = f"give a pair of ints for each of the {rank} axes of {tv.name}, as in ((1, 1), (0, 2))"
    if not isinstance(widths, (tuple, list)) or len(widths) != rank:
        raise DefinitionError(call, f"the widths are {show(widths)}", hint)
    pairs: list[Border] = []
    for pair in widths:
        found = border_of(tv, call, pair)
        if found is None:
            raise DefinitionError(call, f"the widths {show(pair)} are no pair of ints", hint)
        pairs.append(found)
    return pairs


def border_of(tv: TensorView, call: str, pair: object) -> Border | None:
    """Return a pair of widths as expressions; None where it is none."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        return None
    low, high = [_width(tv, call, width) for width in pair]
    return None if low is None or high is None else (low, high)


def _width(tv: TensorView, call: str, width: object) -> Expr | None:
    number = whole(width)
    if number is not None:
        return integer(number)
    if not isinstance(width, (str, Expr)):
        return None
    return tv.fusion.algebra.simplify(tv.fusion.size(call, width))


def border_value(call: str, tv: TensorView, value: object) -> Expr:
    """Return the value of a border, in the type of `tv`."""
    if isinstance(value, ScalarOperand) and value.fusion is tv.fusion:
        return cast(value.expr, tv.dtype)
    if not is_number(value):
        what = f"the value {show(value)} is no number"
        raise DefinitionError(call, what, "use a Python number or a scalar of the fusion")
    if not tv.dtype.is_float and value != int(value if value - value == 0 else 0):
        raise DefinitionError(call, f"{show(value)} is no {tv.dtype}", "use a value of that type")
    try:
        return cast(as_expr(value, tv.dtype.compute), tv.dtype)
    except OperandRefused as refused:
        raise DefinitionError(call, refused.reason, refused.hint) from None


def _extent(tv: TensorView, demands: Demands, place: int, pair: Border, extra: int) -> Expr:
    """Return the extent of a padded axis."""
    algebra, size = tv.fusion.algebra, tv.sizes[place]
    whole = size
    if extra and size is not ZERO:
        hint = f"{tv.name} is {tv.signature}"
        demands.at_most(ONE, size, f"axis {place} has no elements to stand apart", hint)
        whole = algebra.sub(algebra.mul(size, integer(extra + 1)), integer(extra))
    result = algebra.add(whole, algebra.add(*pair))
    reason = f"the extent of axis {place} would be {result}"
    demands.at_most(ZERO, result, reason, f"{tv.name} is {tv.signature}")
    return result


def border(
    tv: TensorView, size: Expr, own: Expr, pair: Border, extra: int = 0
) -> tuple[Expr, list[Expr]]:
    """Return the index at which a padded axis reads its producer, and where it does."""
    algebra = tv.fusion.algebra
    low, high = pair
    dense = algebra.sub(own, low)
    step = integer(extra + 1)
    tests: list[Expr] = []
    if _is_positive(low):
        tests.append(compared("le", ZERO, dense))
    index = algebra.floordiv(dense, step)
    if _is_positive(high) or size is ZERO:
        tests.append(compared("lt", index, size))
    if extra and isinstance(own, Coordinate):
        tests.append(compared("eq", algebra.mod(dense, step), ZERO))
    return index, tests


def _is_positive(width: Expr) -> bool:
    """Whether elements stand there, or may: that depends on a size."""
    return not isinstance(width, Const) or width.value > 0


@dataclass(frozen=True, slots=True)
class Window:
    """Windows along one axis: of `size` elements, `dilation` apart, one every `stride`."""

    size: Expr
    stride: int
    dilation: int

    def count(
        self, tensor: TensorView, demands: Demands, axis: int, around: Border = NO_BORDER
    ) -> Expr:
        """Return how many windows fit into an axis with so much padding `around`.

        Raises:
            OperandRefused: fewer than none.
        """
        algebra = demands.algebra
        extent = algebra.add(tensor.sizes[axis], algebra.add(*around))
        reach = algebra.mul(algebra.sub(self.size, ONE), integer(self.dilation))
        starts = algebra.sub(extent, reach)
        demands.at_most(
            integer(1 - self.stride),
            starts,
            f"a window of {self.size} elements is larger than axis {axis}",
            f"{tensor.name} is {tensor.signature}",
        )
        return algebra.ceildiv(starts, integer(self.stride))

    def index(self, demands: Demands, start: Expr, inner: Expr) -> Expr:
        """Return the index of an element of a window."""
        algebra = demands.algebra
        return algebra.add(
            algebra.mul(start, integer(self.stride)), algebra.mul(inner, integer(self.dilation))
        )


def unfold(
    tv: TensorView,
    axis: int | Sequence[int],
    size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
    padding: int | Pair | Sequence[int | Pair] = 0,
    value: Scalar = 0,
) -> TensorView:
    """Return the windows of `tv` along an axis, or several; each is along a new last axis.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("windows") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     y = f.output(ln.unfold(x, 0, 3, stride=2), "y")
    >>> ln.evaluate(f, np.arange(7, dtype=np.float32))
    array([[0., 1., 2.],
           [2., 3., 4.],
           [4., 5., 6.]], dtype=float32)

    Args:
        tv: the operand.
        axis: along which axis, or axes; one of extent n becomes
            ``(n - dilation * (size - 1) - 1) // stride + 1`` windows. The elements of windows
            along several axes lie along as many new axes, in the order of `axis`.
        size: how many elements a window has: an int, or for several axes one an axis.
        stride: from one window to the next, likewise.
        dilation: from one element of a window to the next, likewise.
        padding: how many elements stand before and after those of the axis, for windows that reach
            beyond it: an int or a pair; for several axes an int, or an int or a pair an axis.
            ``stride=size, padding=(0, size - 1)`` makes tiles, of which the last one may be a part.
            No padded tensor is made.
        value: what stands there: a Python number or a scalar of the fusion.

    Raises:
        DefinitionError: no TensorView, an axis out of range or twice, a size, stride or dilation
            that is no int >= 1, a padding that is none, or an axis shorter than a window.

    Source: torch.Tensor.unfold, with a dilation, and for several axes at once.
    """
    require_tensor("unfold", tv, axis, size)
    call = call_text(
        "unfold", (tv, axis, size), f"stride={show(stride)}, dilation={show(dilation)}"
    )
    several = isinstance(axis, Sequence)
    along_axes = [*axis] if isinstance(axis, Sequence) else [axis]
    rank = len(along_axes)
    given = [("size", size), ("stride", stride), ("dilation", dilation)]
    sizes, strides, apart = [listed_ints(call, what, found, rank, least=1) for what, found in given]
    pairs = paddings(tv, call, padding if several else [padding], rank)
    fill = border_value(call, tv, value)
    try:
        places = _positions(tv, along_axes)
        demands = Demands(tv.fusion.algebra)
        rows = zip(sizes, strides, apart, strict=True)
        windows = [Window(integer(length), by, step) for length, by, step in rows]
        axes = axes_of(tv)
        extents = [axes[place][0] for place in places]
        for place, window, around in zip(places, windows, pairs, strict=True):
            axes[place] = axis_of(window.count(tv, demands, place, around))
    except OperandRefused as refused:
        raise DefinitionError(call, refused.reason, refused.hint) from None
    axes += [axis_of(window.size) for window in windows]
    own = [along(n, found) for n, found in enumerate(axes)]
    indices, inner = own[: len(own) - rank], own[len(own) - rank :]
    inside: list[Expr] = []
    for n, (place, window) in enumerate(zip(places, windows, strict=True)):
        index = window.index(demands, indices[place], inner[n])
        indices[place], tests = border(tv, extents[n], index, pairs[n])
        inside += tests
    tv.fusion.require(*demands.conditions)
    if several and all(pair == NO_BORDER for pair in pairs):
        return view("unfold", tv, indices, axes, unfolded(windows, places))
    note = _listed("axis", places) + _listed(", size", sizes)
    note += _listed(", stride", strides) + _listed(", dilation", apart)
    if any(pair != NO_BORDER for pair in pairs):
        shown = ", ".join([f"({low}, {high})" for low, high in pairs])
        note += f", padding=({shown})" if several else f", padding={shown}"
        note += f", value={fill}"
    return bordered("unfold", tv, indices, inside, fill, axes, note)


def _positions(tv: TensorView, axes: Sequence[int]) -> list[int]:
    """Return the places of axes, none of them negative.

    Raises:
        OperandRefused: no axis, one out of range, or one that stands twice.
    """
    places = [position(tv, axis) for axis in axes]
    if not places or len({*places}) < len(places):
        raise OperandRefused(f"its axes are {show(tuple(axes))}", "name each axis once")
    return places


def _listed(name: str, values: Sequence[int]) -> str:
    return f"{name}={values[0] if len(values) == 1 else tuple(values)}"


def max_pool(
    x: TensorView,
    size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int | Pair] = 0,
) -> TensorView:
    """Return the largest element of each window of ``x [N, C, *space]``: ``max(unfold(pad(x)))``.

    Args:
        x: the operand; of rank 3 it has one spatial axis.
        size: of windows, an int, or one a spatial axis.
        stride: from one window to the next, likewise; by default `size`.
        padding: how many elements stand around, less than all others: an int, or an int or a pair
            of ints a spatial axis.

    Raises:
        DefinitionError: no TensorView of rank >= 3, or bad parameters.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", (1, 1, "N"), ln.float32)
    ...     y = f.output(ln.max_pool(x, 2), "y")
    >>> print(ln.evaluate(f, np.array([[[1, 2, 4, 3]]], np.float32)))
    [[[2. 4.]]]

    Source: torch.nn.functional.max_pool1d, max_pool2d, max_pool3d.
    """
    lowest = reducers.least(x.dtype) if isinstance(x, TensorView) and not x.dtype.is_bool else False
    windows, inner = _pooled("max_pool", x, size, stride, padding, lowest)
    return max(windows, axis=inner)


def avg_pool(
    x: TensorView,
    size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int | Pair] = 0,
) -> TensorView:
    """Return the mean of each window of ``x [N, C, *space]``, zeros of the padding counted.

    Raises:
        DefinitionError: no TensorView of rank >= 3, or bad parameters.

    Args:
        x: the operand; of rank 3 it has one spatial axis.
        size: of windows, an int, or one a spatial axis.
        stride: from one window to the next, likewise; by default `size`.
        padding: how many zeros stand around: an int, or an int or a pair of ints a spatial axis.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", (1, 1, "N"), ln.float32)
    ...     y = f.output(ln.avg_pool(x, 2), "y")
    >>> print(ln.evaluate(f, np.array([[[1, 2, 4, 3]]], np.float32)))
    [[[1.5 3.5]]]

    Source: torch.nn.functional.avg_pool1d, avg_pool2d, avg_pool3d.
    """
    windows, inner = _pooled("avg_pool", x, size, stride, padding, 0)
    return mean(windows, axis=inner)


def _pooled(
    name: str, x: object, size: object, stride: object, padding: object, fill: float
) -> tuple[TensorView, tuple[int, ...]]:
    """Return the windows that are reduced to an element each, and their axes."""
    note = "" if stride is None else f"stride={show(stride)}"
    tensor = require_tensor(name, x, size, note=note)
    call = call_text(name, (x, size), note)
    rank = len(tensor.domain.logical) - 2
    if rank < 1:
        hint = "it is [N, C, *space], of rank 3 or more"
        raise DefinitionError(call, f"{tensor.name} is {tensor.signature}", hint)
    sizes = listed_ints(call, "size", size, rank, least=1)
    strides = sizes if stride is None else listed_ints(call, "stride", stride, rank, least=1)
    pairs = paddings(tensor, call, padding, rank)
    windows = [Window(integer(n), s, 1) for n, s in zip(sizes, strides, strict=True)]
    check_fit(call, tensor, windows, pairs)
    whole = padded(tensor, pairs, fill)
    axes, inner = axes_of(tensor)[:2], [axis_of(w.size) for w in windows]
    demands = Demands(tensor.fusion.algebra)
    axes += [axis_of(w.count(whole, demands, n + 2)) for n, w in enumerate(windows)]
    axes += inner
    own = [along(n, axis) for n, axis in enumerate(axes)]
    indices = own[:2] + [
        w.index(demands, own[n + 2], own[n + 2 + rank]) for n, w in enumerate(windows)
    ]
    tensor.fusion.require(*demands.conditions)
    made = view("unfold", whole, indices, axes, unfolded(windows))
    return made, tuple(range(2 + rank, 2 + 2 * rank))


def unfolded(windows: Sequence[Window], places: Sequence[int] | None = None) -> str:
    """Return the calls that make windows as text, ``{}`` the operand.

    They lie along the axes at `places`, by default along those of ``[N, C, *space]``.
    """
    text = "{}"
    for place, window in zip(places or range(2, 2 + len(windows)), windows, strict=True):
        steps = [("stride", window.stride), ("dilation", window.dilation)]
        shown = "".join([f", {name}={step}" for name, step in steps if step != 1])
        text = f"unfold({text}, axis={place}, size={window.size}{shown})"
    return text


def check_fit(call: str, x: TensorView, windows: Sequence[Window], pairs: Sequence[Border]) -> None:
    """Check that a window fits into each padded axis, before anything is defined."""
    algebra = x.fusion.algebra
    for place, (window, pair) in enumerate(zip(windows, pairs, strict=True), 2):
        length = static(algebra.add(x.sizes[place], algebra.add(*pair)))
        reach = static(algebra.mul(algebra.sub(window.size, ONE), integer(window.dilation)))
        if length is not None and (
            length < 0 or (reach is not None and length - reach <= -window.stride)
        ):
            raise DefinitionError(
                call,
                f"a window of {window.size} elements is larger than axis {place}, "
                f"which has {length} with its padding",
                f"{x.name} is {x.signature}",
            )


def paddings(x: TensorView, call: str, padding: object, rank: int) -> tuple[Border, ...]:
    """Return how many elements stand before and after each spatial axis."""
    given = [padding] * rank if whole(padding) is not None else padding
    pairs: list[Border] = []
    for each in given if isinstance(given, (tuple, list)) else ():
        pair = each if isinstance(each, (tuple, list)) else (each, each)
        found = border_of(x, call, pair)
        if found is not None and all((static(width) or 0) >= 0 for width in found):
            pairs.append(found)
    if not isinstance(given, (tuple, list)) or len(pairs) != len(given) or len(pairs) != rank:
        hint = f"give an int >= 0, or for each of {rank} axes an int or a pair of ints"
        raise DefinitionError(call, f"padding is {show(padding)}", hint)
    return tuple(pairs)


def padded(x: TensorView, pairs: Sequence[Border], fill: float) -> TensorView:
    """Return ``x [N, C, *space]`` with its spatial axes padded: itself where they are not."""
    if all(pair == NO_BORDER for pair in pairs):
        return x
    return pad(x, (NO_BORDER, NO_BORDER, *pairs), value=fill)
