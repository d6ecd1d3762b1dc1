"""Products that are summed, as tensors that the schedule can reach: matmul and conv.

A product of matrices is broadcasts, a product and a sum; conv has windows in place of a broadcast.
"""

from __future__ import annotations

from collections.abc import Sequence

from loopnest.base.errors import DefinitionError
from loopnest.scalar.dtypes import ARITHMETIC, DType
from loopnest.scalar.expr import ONE, Const, Expr, Op, Symbol, integer, whole
from loopnest.tensor.fusion import Fusion, check_dtype
from loopnest.tensor.ops.construction import (
    Axis,
    Demands,
    along,
    axes_of,
    axis_of,
    common_axes,
    elementwise,
    insert_axes,
    listed_ints,
    named_size,
    static,
    view,
)
from loopnest.tensor.ops.operands import (
    call_text,
    common_type,
    fusion_of,
    kind_text,
    require_flag,
    show,
)
from loopnest.tensor.ops.reducers import SUM
from loopnest.tensor.ops.reductions import WIDE, fold
from loopnest.tensor.ops.sliding_windows import (
    Border,
    Pair,
    Window,
    check_fit,
    pad,
    padded,
    paddings,
    unfolded,
)
from loopnest.tensor.tensor_view import TensorView


def matmul(a: TensorView, b: TensorView, dtype: DType | None = None) -> TensorView:
    """Return the matrix product a @ b over the last two axes; those in front broadcast.

    The product's domain is […, M, N, K], of which the sum reduces K. Of 16-bit operands the
    product is float32, so that nothing is rounded before the sum; the sum adds in float32 and is
    rounded once, to the operands' type: ``dtype=ln.float32`` keeps it. As in `mul` and `sum`, int32
    and bool operands are multiplied in int32 and summed in int64.

    Args:
        a: […, M, K].
        b: […, K, N].
        dtype: what operands are converted to, the type of products, sum and result; a 16-bit one is
            that of the result alone, which is computed in float32. By default as said above.

    Raises:
        DefinitionError: no TensorViews, ranks below 2, extents that do not fit, or no type to
            multiply in.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     a = f.input("a", ("M", "K"), ln.float32)
    ...     b = f.input("b", ("K", "N"), ln.float32)
    ...     c = f.output(ln.matmul(a, b), "c")
    >>> left = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    >>> print(ln.evaluate(f, left, np.eye(3, 2, dtype=np.float32)))
    [[1. 2.]
     [4. 5.]]

    Source: numpy.matmul.
    """
    fusion = _check_factors(a, b)
    computed, result = ARITHMETIC[common_type((a, b))]
    wide = WIDE.get(result, result)
    if dtype is not None:
        _check_type(call_text("matmul", (a, b), f"dtype={dtype}"), dtype)
        computed, wide = dtype.compute, dtype
    rank = 1 + max(len(a.sizes), len(b.sizes))
    left = insert_axes(a, _mask(rank, len(a.sizes), rank - 2))
    inner = len(b.sizes) - 2
    order = (*range(inner), inner + 1, inner)
    right = insert_axes(b, _mask(rank, len(b.sizes), rank - 3), order)
    for side in (left, right):
        for axis, name in zip(side.domain.root[-3:], "mnk", strict=True):
            axis.names = tuple(dict.fromkeys((*axis.names, name)))
    product = elementwise(fusion, "mul", (left, right), (computed, computed), computed, _product)
    assert isinstance(product, TensorView)
    said = "" if dtype is None else f", dtype={dtype}"
    return fold("sum", product, (rank - 1,), False, SUM, wide, wide.compute, said)


def _product(a: Expr, b: Expr) -> Expr:
    return Op("mul", (a, b), a.dtype)


def _mask(rank: int, own: int, new: int) -> list[bool]:
    """Return the mask that brings `own` axes to `rank`: in front, and at `new`."""
    mask = [place < rank - 1 - own for place in range(rank - 1)]
    mask.insert(new, True)
    return mask


def _check_factors(a: TensorView, b: TensorView) -> Fusion:
    for number, operand in enumerate((a, b)):
        if not isinstance(operand, TensorView):
            what = f"operand {number + 1} is {kind_text(operand)}"
            raise DefinitionError(call_text("matmul", (a, b)), what, "use TensorViews")
    fusion = fusion_of("matmul", (a, b))
    sizes_a, sizes_b = a.sizes, b.sizes
    if len(sizes_a) < 2 or len(sizes_b) < 2:
        low = a if len(sizes_a) < 2 else b
        what = f"{low.name} has rank {len(low.sizes)}"
        raise DefinitionError(call_text("matmul", (a, b)), what, "both ranks are at least 2")
    if not a.fusion.algebra.equal(sizes_a[-1], sizes_b[-2]):
        raise DefinitionError(
            call_text("matmul", (a, b)),
            f"{a.name} is {a.signature}, {b.name} is {b.signature}",
            "the last extent of the first is the last but one of the second",
        )
    common_axes("matmul", (a, b), (a, b), trailing=2)
    return fusion


def conv(
    x: TensorView,
    w: TensorView,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int | Pair] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int | str | Expr = 1,
    transposed: bool = False,
    dtype: DType | None = None,
) -> TensorView:
    """Return the cross-correlation of ``x [N, C, *space]`` and ``w [O, C / groups, *kernel]``.

    The windows of x, zeros around it, times w, summed: every tensor on the way can be scheduled.
    The product's domain is ``[N, O, *space, C / groups, *kernel]``, of which the sum reduces the
    channels and the kernel.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("smooth") as f:
    ...     x = f.input("x", (1, 1, "N"), ln.float32)
    ...     w = f.input("w", (1, 1, 3), ln.float32)
    ...     y = f.output(ln.conv(x, w, padding=1), "y")
    >>> ln.evaluate(f, np.ones((1, 1, 4), np.float32), np.ones((1, 1, 3), np.float32))
    array([[[2., 3., 3., 2.]]], dtype=float32)

    Args:
        x: ``[N, C, *space]``.
        w: ``[O, C / groups, *kernel]``; where `transposed`, ``[C, O / groups, *kernel]``.
        stride: from one window to the next: an int, or one a spatial axis.
        padding: how many zeros stand around: an int, or an int or a pair of ints a spatial axis.
        dilation: from one element of a window to the next: an int, or one a spatial axis.
        groups: into how many parts the channels fall that have to do with each other alone: an int
            or a size, such as ``"C"`` for a kernel ``["C", 1, 3, 3]`` for each of so many channels.
            Assumptions say that it divides a size (``f.assume("O % G == 0")``).
        transposed: the map of the gradient: the elements of x are spread out by `stride`, the
            kernel is turned round, and the padding is what is left out around.
        dtype: the type of products, sum and result; by default as `matmul`'s.

    Raises:
        DefinitionError: no TensorViews of one rank >= 3, extents that do not fit, or bad
            parameters.

    Source: torch.nn.functional.conv1d, conv2d, conv3d and conv_transpose2d.
    """
    call = call_text("conv", (x, w))
    rank = _spatial(call, x, w)
    strides = listed_ints(call, "stride", stride, rank, least=1)
    apart = listed_ints(call, "dilation", dilation, rank, least=1)
    pairs = paddings(x, call, padding, rank)
    parts = _parts(call, x.fusion, groups)
    require_flag(call, "transposed", transposed, "use True or False")
    if dtype is not None:
        _check_type(call, dtype)
    _check_channels(call, x, w, parts, transposed)
    if transposed:
        pairs = _outer(call, w, pairs, apart)
        strides, spread = (1,) * rank, tuple([step - 1 for step in strides])
        x = pad(x, ((0, 0),) * (2 + rank), interior=(0, 0, *spread)) if any(spread) else x
        w = _turned(w, parts)
    steps = zip(w.sizes[2:], strides, apart, strict=True)
    windows = [Window(size, by, between) for size, by, between in steps]
    check_fit(call, x, windows, pairs)
    left = _windows(padded(x, pairs, 0), w, windows, parts)
    right = insert_axes(w, [True, False, *[True] * rank, False, *[False] * rank])
    return _summed(left, right, rank, dtype)


def _spatial(call: str, x: object, w: object) -> int:
    """Return how many spatial axes two operands have."""
    for number, operand in enumerate((x, w)):
        if not isinstance(operand, TensorView):
            what = f"operand {number + 1} is {kind_text(operand)}"
            raise DefinitionError(call, what, "use TensorViews")
    assert isinstance(x, TensorView)
    assert isinstance(w, TensorView)
    fusion_of("conv", (x, w))
    rank = len(x.sizes) - 2
    if rank < 1 or len(w.sizes) != rank + 2:
        raise DefinitionError(
            call,
            f"{x.name} is {x.signature}, {w.name} is {w.signature}",
            "they are [N, C, *space] and [O, C / groups, *kernel], of one rank >= 3",
        )
    return rank


def _check_type(call: str, dtype: DType) -> None:
    check_dtype(call, dtype)
    if dtype.is_bool:
        what = "bool is no type to add or multiply in"
        raise DefinitionError(call, what, "use an integer or a float type")


def _parts(call: str, fusion: Fusion, groups: object) -> Expr:
    """Return the number of groups as a size."""
    number = whole(groups)
    if number is None and isinstance(groups, (str, Expr)):
        found = fusion.algebra.simplify(named_size(fusion, call, groups))
        number = static(found)
        if number is None:
            return found
    if number is None or number < 1:
        raise DefinitionError(call, f"groups is {show(groups)}", "give an int >= 1, or a size")
    return integer(number)


def _check_channels(
    call: str, x: TensorView, w: TensorView, groups: Expr, transposed: bool
) -> None:
    """Check that the channels of x are those that the kernel takes, for each group."""
    algebra = x.fusion.algebra
    given, (first, second) = x.sizes[1], w.sizes[:2]
    taken = first if transposed else algebra.mul(second, groups)
    split = given if transposed else first
    what = f"{x.name} is {x.signature}, {w.name} is {w.signature}, groups={groups}"
    name = "C" if transposed else "O"
    many = (
        f"the channels of x are groups times those that the kernel takes, and groups divides {name}"
    )
    if not algebra.equal(taken, given):
        raise DefinitionError(call, what, many)
    if not algebra.divides(groups, split):
        sized = static(split) is None or static(groups) is None
        by = groups if isinstance(groups, (Const, Symbol)) else f"({groups})"
        state = f"; state it before: f.assume('{split} % {by} == 0')" if sized else ""
        raise DefinitionError(call, what, f"{many}{state}")


def _outer(
    call: str, w: TensorView, pairs: Sequence[Border], apart: Sequence[int]
) -> tuple[Border, ...]:
    """Return the padding around the spread out operand of a transposed convolution."""
    algebra = w.fusion.algebra
    result: list[Border] = []
    for size, (low, high), between in zip(w.sizes[2:], pairs, apart, strict=True):
        length = static(size)
        reach = None if length is None else (length - 1) * between
        if reach is None or any((static(width) or 0) > reach for width in (low, high)):
            hint = "the kernel is static, and the padding at most dilation * (size - 1)"
            raise DefinitionError(call, f"{w.name} is {w.signature}, padding ({low}, {high})", hint)
        result.append((algebra.sub(integer(reach), low), algebra.sub(integer(reach), high)))
    return tuple(result)


def _turned(w: TensorView, groups: Expr) -> TensorView:
    """Return w [C, O / groups, *kernel] as [O, C / groups, *kernel], turned round in space."""
    algebra = w.fusion.algebra
    inner, outer, *kernel = w.sizes
    axes = [axis_of(algebra.mul(outer, groups)), axis_of(algebra.floordiv(inner, groups))]
    axes += [axis_of(size) for size in kernel]
    own = [along(n, axis) for n, axis in enumerate(axes)]
    indices = [own[1], own[0]]
    if groups is not ONE:
        first = algebra.mul(algebra.floordiv(own[0], outer), axes[1][0])
        indices = [algebra.add(first, own[1]), algebra.mod(own[0], outer)]
    for size, place in zip(kernel, own[2:], strict=True):
        indices.append(algebra.sub(algebra.sub(size, ONE), place))
    if groups is not ONE:
        return view("turn", w, indices, axes, f"groups={groups}")
    order, turned = (1, 0, *range(2, 2 + len(kernel))), tuple(range(2, 2 + len(kernel)))
    return view("flip", w, indices, axes, f"flip(permute({{}}, order={order}), axis={turned})")


def _windows(x: TensorView, w: TensorView, windows: Sequence[Window], groups: Expr) -> TensorView:
    """Return the windows of x as [N, O, *space, C / groups, *kernel], O for several groups only."""
    demands, algebra = Demands(x.fusion.algebra), x.fusion.algebra
    axes: list[Axis] = [axes_of(x)[0], axis_of(ONE if groups is ONE else w.sizes[0])]
    axes += [axis_of(window.count(x, demands, n)) for n, window in enumerate(windows, 2)]
    axes += [axis_of(size) for size in w.sizes[1:]]
    own = [along(n, axis) for n, axis in enumerate(axes)]
    rank = len(windows)
    channel: Expr = own[2 + rank]
    if groups is not ONE:
        each = algebra.floordiv(w.sizes[0], groups)
        first = algebra.mul(algebra.floordiv(own[1], each), w.sizes[1])
        channel = algebra.add(first, channel)
    inner = own[3 + rank :]
    indices = [own[0], channel]
    indices += [
        window.index(demands, start, place)
        for window, start, place in zip(windows, own[2 : 2 + rank], inner, strict=True)
    ]
    x.fusion.require(*demands.conditions)
    if groups is not ONE:  # no short call gives each output channel the windows of its group
        shown = ", ".join([f"{w.size} by {w.stride} apart {w.dilation}" for w in windows])
        return view("windows", x, indices, axes, f"{shown}, groups={groups}")
    order = (0, *range(2, 2 + rank), 1, *range(2 + rank, 2 + 2 * rank))
    mask = (False, True, *[False] * (1 + 2 * rank))
    text = f"broadcast(permute({unfolded(windows)}, order={order}), mask={mask})"
    return view("unfold", x, indices, axes, text)


def _summed(left: TensorView, right: TensorView, rank: int, dtype: DType | None) -> TensorView:
    """Return the sum of the products over channels and kernel."""
    computed, result = ARITHMETIC[common_type((left, right))]
    wide = WIDE.get(result, result)
    if dtype is not None:
        computed, wide = dtype.compute, dtype
    product = elementwise(
        left.fusion, "mul", (left, right), (computed, computed), computed,
        lambda a, b: Op("mul", (a, b), a.dtype),
    )  # fmt: skip
    assert isinstance(product, TensorView)
    axes = tuple(range(2 + rank, len(product.sizes)))
    said = "" if dtype is None else f", dtype={dtype}"
    return fold("sum", product, axes, False, SUM, wide, wide.compute, said)
