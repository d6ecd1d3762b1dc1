"""Products of matrices, as broadcasts, a product and a sum that the schedule can reach."""

from __future__ import annotations

from loopnest.base.errors import DefinitionError
from loopnest.scalar.dtypes import ARITHMETIC, DType
from loopnest.scalar.expr import Expr, Op
from loopnest.tensor.declarations import check_dtype
from loopnest.tensor.fusion import Fusion
from loopnest.tensor.ops.construction import common_axes, elementwise, insert_axes
from loopnest.tensor.ops.operands import call_text, common_type, fusion_of, kind_text
from loopnest.tensor.ops.reducers import SUM
from loopnest.tensor.ops.reductions import WIDE, fold
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
    fusion = _check(a, b)
    computed, result = ARITHMETIC[common_type((a, b))]
    wide = WIDE.get(result, result)
    if dtype is not None:
        _check_type(fusion, a, b, dtype)
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


def _check_type(fusion: Fusion, a: TensorView, b: TensorView, dtype: DType) -> None:
    call = call_text("matmul", (a, b), f"dtype={dtype}")
    check_dtype(call, dtype)
    if dtype.is_bool:
        what = "bool is no type to add or multiply in"
        raise DefinitionError(call, what, "use an integer or a float type")


def _product(a: Expr, b: Expr) -> Expr:
    return Op("mul", (a, b), a.dtype)


def _mask(rank: int, own: int, new: int) -> list[bool]:
    """Return the mask that brings `own` axes to `rank`: in front, and at `new`."""
    mask = [place < rank - 1 - own for place in range(rank - 1)]
    mask.insert(new, True)
    return mask


def _check(a: TensorView, b: TensorView) -> Fusion:
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
