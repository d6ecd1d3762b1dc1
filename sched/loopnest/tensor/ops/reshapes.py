"""Functions that give the elements of a tensor another shape, in C order: reshape, flatten.

The root domain of the result has the axes of the operand, its rfactor domain those of the shape:
splits and merges lead from one to the other (`shape_steps`), so that loops cross them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from loopnest.base.errors import DefinitionError
from loopnest.scalar.arguments import as_int
from loopnest.scalar.expr import ZERO, Arg, Const, Expr, Op, Symbol, walk
from loopnest.scalar.simplify import Simplifier
from loopnest.tensor.definition import Definition, Read
from loopnest.tensor.domain import TensorDomain
from loopnest.tensor.fusion import Fusion
from loopnest.tensor.ops.construction import define, position
from loopnest.tensor.ops.data_movement import root_axes
from loopnest.tensor.ops.index_maps import named_size
from loopnest.tensor.ops.operands import OperandRefused, call_text, require_tensor, show
from loopnest.tensor.ops.shape_steps import Reshaping, ShapeAlgebra
from loopnest.tensor.tensor_view import TensorView

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
    try:
        first, last = position(tv, start), position(tv, stop)
    except OperandRefused as refused:
        raise DefinitionError(call, refused.reason, refused.hint) from None
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
    sizes = [None if as_int(extent) == -1 else named_size(fusion, call, extent) for extent in given]
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
