"""Pointwise functions: each defines one TensorView, by a template over its operands' elements.

Most functions are written as their template on expressions; the decorator makes it the public
function on operands. Shapes follow NumPy's broadcasting, types the rule that the decorator names.
Names shadow builtins on purpose: they are what users call as ``ln.abs``.

What the docstrings share (shapes, operands, errors) is written in `docstring` once; what each one
says of itself is its first line, a row of `function_docs.ROWS`, and its rule of types. Elementary
functions (exponentials, roots, angles, activations) are computed in floats; integers give float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol, TypeVar, cast, overload
from typing import cast as typed

from loopnest.base.errors import DefinitionError
from loopnest.scalar.dtypes import DType, bool_
from loopnest.scalar.expr import Const, Expr, Op
from loopnest.scalar.expr import cast as convert
from loopnest.scalar.function_docs import ROWS, types
from loopnest.scalar.op_table import FUNCTIONS
from loopnest.tensor.fusion import Operand, Scalar, ScalarOperand
from loopnest.tensor.ops.construction import elementwise
from loopnest.tensor.ops.operands import (
    OperandRefused,
    call_text,
    common_type,
    fusion_of,
    with_sizes,
)
from loopnest.tensor.tensor_view import TensorView


class Unary(Protocol):
    """A function of one operand."""

    @overload
    def __call__(self, x: TensorView) -> TensorView: ...
    @overload
    def __call__(self, x: ScalarOperand) -> ScalarOperand: ...


class Binary(Protocol):
    """A function of two operands; a TensorView if one of them is."""

    @overload
    def __call__(self, a: TensorView, b: Operand) -> TensorView: ...
    @overload
    def __call__(self, a: Scalar, b: TensorView) -> TensorView: ...
    @overload
    def __call__(self, a: Scalar, b: Scalar) -> ScalarOperand: ...


def apply(
    name: str, operands: tuple[Operand, ...], template: Callable[..., Expr], note: str = ""
) -> TensorView | ScalarOperand:
    """Return `template` of `operands`, typed by the rule of the function `name`.

    Raises:
        DefinitionError: operands that do not fit together.
    """
    operands = with_sizes(operands)
    fusion = fusion_of(name, operands)
    common = common_type(operands)
    types = FUNCTIONS[name].rule.get(common)
    if types is None:
        hint = {
            "floordiv": "// takes integers or bool; of floats use ln.floor(a / b)",
            "lshift": "shifts take integers or bool",
            "rshift": "shifts take integers or bool",
        }
        raise DefinitionError(
            call_text(name, operands),
            f"the operands meet in {common}",
            hint.get(name, "bitwise operations take integers or bool"),
        )
    computed, result = types
    return elementwise(fusion, name, operands, (computed,) * len(operands), result, template, note)


def unary(template: Callable[[Expr], Expr]) -> Unary:
    """Make a template on one expression the function of its name, of one operand."""
    name = _key(template, 1)

    def call(x: Operand) -> TensorView | ScalarOperand:
        return apply(name, (x,), template)

    return typed("Unary", _public(call, template))


def binary(template: Callable[[Expr, Expr], Expr]) -> Binary:
    """Make a template on two expressions the function of its name, of two operands."""
    name = _key(template, 2)

    def call(a: Operand, b: Operand) -> TensorView | ScalarOperand:
        return apply(name, (a, b), template)

    return typed("Binary", _public(call, template))


def _key(template: Callable[..., Expr], arity: int) -> str:
    assert FUNCTIONS[template.__name__].arity == arity
    return template.__name__


def _public(call: Callable[..., object], template: Callable[..., Expr]) -> Callable[..., object]:
    call.__name__ = call.__qualname__ = template.__name__
    call.__module__ = template.__module__
    call.__doc__ = docstring(template.__name__, template.__doc__ or "")
    return call


_SHAPES = {
    1: """\
Args:
    x: a tensor of any shape, or a run-time scalar.

Returns:
    A tensor of the shape of `x`, element by element; a scalar expression of a scalar.
   """,
    2: """\
Args:
    a: a tensor, a run-time scalar, or a Python number.
    b: likewise; one of the two is no Python number.

Returns:
    A tensor of the shape that NumPy's broadcasting gives; a scalar expression of scalars.
   """,
}


def docstring(name: str, first: str) -> str:
    """Return the docstring of the function `name`, which begins with `first`."""
    row = ROWS.get(name)
    if row is None:
        return first
    arity = FUNCTIONS[name].arity
    call = f"ln.{name}(x, {row.b})" if row.b else f"ln.{name}(x)"
    parts = [
        first.strip(),
        f"{_SHAPES[arity]} {types(name)}",
        "Raises:\n    DefinitionError: an operand that is none (an array, a string), operands of "
        "two\n        fusions, or shapes or types that do not fit.",
        ">>> import numpy as np\n>>> import loopnest as ln\n"
        '>>> with ln.Fusion("k") as f:\n'
        f'...     x = f.input("x", (3,), ln.{row.dtype})\n'
        f'...     y = f.output({call}, "y")\n'
        f">>> print(ln.evaluate(f, np.array([{row.x}], np.{row.dtype})))\n"
        f"{row.y}",
        f"Source: {row.source}.",
    ]
    return "\n\n".join(parts)


# Arithmetic


@binary
def add(a: Expr, b: Expr) -> Expr:
    """Return a + b; two bools give int32, as in all arithmetic."""
    return Op("add", (a, b), a.dtype)


@binary
def sub(a: Expr, b: Expr) -> Expr:
    """Return a - b."""
    return Op("sub", (a, b), a.dtype)


@binary
def mul(a: Expr, b: Expr) -> Expr:
    """Return a * b."""
    return Op("mul", (a, b), a.dtype)


@binary
def div(a: Expr, b: Expr) -> Expr:
    """Return a / b; integers give float32."""
    return Op("div", (a, b), a.dtype)


@binary
def mod(a: Expr, b: Expr) -> Expr:
    """Return the remainder of a / b, with the sign of b; integers modulo 0 give 0."""
    return Op("mod", (a, b if b.dtype.is_float else _safe_divisor(b)), a.dtype)


def _safe_divisor(b: Expr) -> Expr:
    """Return 1 for 0 and -1, where processors trap and the remainder is 0 anyway."""
    one, *traps = [Const(value, b.dtype) for value in (1, 0, -1)[: 2 + b.dtype.signed]]
    if isinstance(b, Const):
        return one if b in traps else b
    trap, *others = [Op("eq", (b, value), bool_) for value in traps]
    for other in others:
        trap = Op("or", (trap, other), bool_)
    return Op("where", (trap, one, b), b.dtype)


@binary
def floordiv(a: Expr, b: Expr) -> Expr:
    """Return a / b of integers, rounded towards minus infinity; by 0 it is 0."""
    return Op("floordiv", (a, b), a.dtype)


@binary
def lshift(a: Expr, b: Expr) -> Expr:
    """Return the integer a * 2 ** b; 0 for a count that is negative or no less than the width."""
    return Op("shl", (a, b), a.dtype)


@binary
def rshift(a: Expr, b: Expr) -> Expr:
    """Return a / 2 ** b of integers, rounded towards minus infinity.

    A count that is negative or no less than the width gives 0, and -1 for a negative a.
    """
    return Op("shr", (a, b), a.dtype)


@binary
def pow(a: Expr, b: Expr) -> Expr:
    """Return a ** b. Of integers, a negative power is the true value without its fraction."""
    if isinstance(b, Const) and b.value == 2:
        return Op("mul", (a, a), a.dtype)
    if isinstance(b, Const) and not b.dtype.is_float:
        return _integer_power(a, int(b.value))
    return Op("pow", (a, b), a.dtype)


def _integer_power(a: Expr, exponent: int) -> Expr:
    """Return a ** exponent by squaring."""
    if exponent < 0:
        raise OperandRefused("an integer has no negative power", "cast it to a float first")
    result: Expr = Const(1, a.dtype)
    while exponent:
        if exponent & 1:
            one = isinstance(result, Const)
            result = a if one else Op("mul", (result, a), a.dtype)
        exponent >>= 1
        a = Op("mul", (a, a), a.dtype) if exponent else a
    return result


@unary
def neg(x: Expr) -> Expr:
    """Return -x."""
    return Op("neg", (x,), x.dtype)


@overload
def fma(a: TensorView, b: Operand, c: Operand) -> TensorView: ...
@overload
def fma(a: Operand, b: TensorView, c: Operand) -> TensorView: ...
@overload
def fma(a: Operand, b: Operand, c: TensorView) -> TensorView: ...
@overload
def fma(a: Scalar, b: Scalar, c: Scalar) -> ScalarOperand: ...
def fma(a: Operand, b: Operand, c: Operand) -> TensorView | ScalarOperand:
    """Return a * b + c, of floats rounded once.

    Args:
        a: a tensor, a run-time scalar, or a Python number.
        b: likewise.
        c: likewise; one of the three is no Python number.

    Returns:
        A tensor of the shape that NumPy's broadcasting gives; a scalar expression of scalars.

    Raises:
        DefinitionError: an operand that is none (an array, a string), operands of two fusions, or
            shapes or types that do not fit.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     y = f.output(ln.fma(x, 2.0, 1.0), "y")
    >>> print(ln.evaluate(f, np.array([1, 2, 3], np.float32)))
    [3. 5. 7.]

    Source: C11, 7.12.13.1; of integers a product and a sum.
    """
    return apply("fma", (a, b, c), _fma)


def _fma(a: Expr, b: Expr, c: Expr) -> Expr:
    if a.dtype.is_float:
        return Op("fma", (a, b, c), a.dtype)
    return Op("add", (Op("mul", (a, b), a.dtype), c), a.dtype)


# Functions that keep integers


@unary
def abs(x: Expr) -> Expr:
    """Return the magnitude of x."""
    return x if x.dtype.is_bool else Op("abs", (x,), x.dtype)


@unary
def floor(x: Expr) -> Expr:
    """Return the largest integer <= x."""
    return _of_floats("floor", x)


@unary
def ceil(x: Expr) -> Expr:
    """Return the least integer >= x."""
    return _of_floats("ceil", x)


@unary
def round(x: Expr) -> Expr:
    """Return the nearest integer, the even one of two."""
    return _of_floats("round", x)


@unary
def trunc(x: Expr) -> Expr:
    """Return x without its fraction."""
    return _of_floats("trunc", x)


def _of_floats(op: str, x: Expr) -> Expr:
    return Op(op, (x,), x.dtype) if x.dtype.is_float else x


@binary
def maximum(a: Expr, b: Expr) -> Expr:
    """Return the larger of a and b; NaN if one is."""
    return Op("or" if a.dtype.is_bool else "max", (a, b), a.dtype)


@binary
def minimum(a: Expr, b: Expr) -> Expr:
    """Return the smaller of a and b; NaN if one is."""
    return Op("and" if a.dtype.is_bool else "min", (a, b), a.dtype)


@unary
def relu(x: Expr) -> Expr:
    """Return max(x, 0)."""
    return x if x.dtype.is_bool else Op("max", (x, Const(0, x.dtype)), x.dtype)


@overload
def clamp(tv: TensorView, lo: Operand, hi: Operand) -> TensorView: ...
@overload
def clamp(tv: Scalar, lo: Scalar, hi: Scalar) -> ScalarOperand: ...
def clamp(tv: Operand, lo: Operand, hi: Operand) -> TensorView | ScalarOperand:
    """Return min(max(tv, lo), hi); NaN stays NaN.

    Args:
        tv: a tensor, a run-time scalar, or a Python number.
        lo: likewise.
        hi: likewise; one of the three is no Python number.

    Returns:
        A tensor of the shape that NumPy's broadcasting gives; a scalar expression of scalars.

    Raises:
        DefinitionError: an operand that is none (an array, a string), operands of two fusions, or
            shapes or types that do not fit.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     y = f.output(ln.clamp(x, 1.5, 2.5), "y")
    >>> print(ln.evaluate(f, np.array([1, 2, 3], np.float32)))
    [1.5 2.  2.5]

    Source: numpy.clip.
    """
    return apply("clamp", (tv, lo, hi), _clamp)


def _clamp(x: Expr, lo: Expr, hi: Expr) -> Expr:
    larger, smaller = ("or", "and") if x.dtype.is_bool else ("max", "min")
    return Op(smaller, (Op(larger, (x, lo), x.dtype), hi), x.dtype)


# Comparisons, bits, logic


@binary
def eq(a: Expr, b: Expr) -> Expr:
    """Return a == b."""
    return Op("eq", (a, b), bool_)


@binary
def ne(a: Expr, b: Expr) -> Expr:
    """Return a != b (true where one is NaN)."""
    return Op("ne", (a, b), bool_)


@binary
def lt(a: Expr, b: Expr) -> Expr:
    """Return a < b."""
    return Op("lt", (a, b), bool_)


@binary
def le(a: Expr, b: Expr) -> Expr:
    """Return a <= b."""
    return Op("le", (a, b), bool_)


@binary
def gt(a: Expr, b: Expr) -> Expr:
    """Return a > b."""
    return Op("gt", (a, b), bool_)


@binary
def ge(a: Expr, b: Expr) -> Expr:
    """Return a >= b."""
    return Op("ge", (a, b), bool_)


@binary
def bitand(a: Expr, b: Expr) -> Expr:
    """Return a & b: of integers bitwise, of bools logical."""
    return Op("and" if a.dtype.is_bool else "bitand", (a, b), a.dtype)


@binary
def bitor(a: Expr, b: Expr) -> Expr:
    """Return a | b: of integers bitwise, of bools logical."""
    return Op("or" if a.dtype.is_bool else "bitor", (a, b), a.dtype)


@binary
def bitxor(a: Expr, b: Expr) -> Expr:
    """Return a ^ b: of integers bitwise, of bools logical."""
    return Op("ne" if a.dtype.is_bool else "bitxor", (a, b), a.dtype)


@unary
def invert(x: Expr) -> Expr:
    """Return ~x: of integers bitwise, of bools logical."""
    return Op("not" if x.dtype.is_bool else "bitnot", (x,), x.dtype)


@binary
def logical_and(a: Expr, b: Expr) -> Expr:
    """Return whether a and b are both not 0."""
    return Op("and", (a, b), bool_)


@binary
def logical_or(a: Expr, b: Expr) -> Expr:
    """Return whether a or b is not 0."""
    return Op("or", (a, b), bool_)


@unary
def logical_not(x: Expr) -> Expr:
    """Return whether x is 0."""
    return Op("not", (x,), bool_)


@unary
def isnan(x: Expr) -> Expr:
    """Return whether x is NaN; of integers false."""
    return Op("isnan", (x,), bool_) if x.dtype.is_float else Op("ne", (x, x), bool_)


# Selection


@overload
def where(cond: TensorView, a: Operand, b: Operand) -> TensorView: ...
@overload
def where(cond: Operand, a: TensorView, b: Operand) -> TensorView: ...
@overload
def where(cond: Operand, a: Operand, b: TensorView) -> TensorView: ...
@overload
def where(cond: Scalar, a: Scalar, b: Scalar) -> ScalarOperand: ...
def where(cond: Operand, a: Operand, b: Operand) -> TensorView | ScalarOperand:
    """Return a where `cond` is not 0, else b.

    Args:
        cond: a tensor, a run-time scalar, or a Python number.
        a: likewise.
        b: likewise; one of the three is no Python number.

    Returns:
        A tensor of the shape that NumPy's broadcasting gives; a scalar expression of scalars.

    Raises:
        DefinitionError: an operand that is none (an array, a string), operands of two fusions, or
            shapes or types that do not fit.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     y = f.output(ln.where(x > 1.0, x, 0.0), "y")
    >>> print(ln.evaluate(f, np.array([1, 2, 3], np.float32)))
    [0. 2. 3.]

    Source: numpy.where.
    """
    cond, a, b = operands = with_sizes((cond, a, b))
    fusion = fusion_of("where", operands)
    dtype = common_type((a, b))
    types = (bool_, _chosen_type(a, dtype), _chosen_type(b, dtype))

    def template(cond: Expr, a: Expr, b: Expr) -> Expr:
        return Op("where", (cond, convert(a, dtype), convert(b, dtype)), dtype)

    return elementwise(fusion, "where", operands, types, dtype, template)


def _chosen_type(operand: Operand, dtype: DType) -> DType:
    """Return the type to read an operand in: elements keep their own, numbers are rounded once."""
    return dtype if isinstance(operand, TensorView) else dtype.compute


T = TypeVar("T", TensorView, ScalarOperand)


@unary
def exp(x: Expr) -> Expr:
    """Return e ** x."""
    return Op("exp", (x,), x.dtype)


@unary
def exp2(x: Expr) -> Expr:
    """Return 2 ** x."""
    return Op("exp2", (x,), x.dtype)


@unary
def log(x: Expr) -> Expr:
    """Return the natural logarithm of x."""
    return Op("log", (x,), x.dtype)


@unary
def log2(x: Expr) -> Expr:
    """Return the binary logarithm of x."""
    return Op("log2", (x,), x.dtype)


@unary
def log1p(x: Expr) -> Expr:
    """Return log(1 + x), exact for small x."""
    return Op("log1p", (x,), x.dtype)


@unary
def sqrt(x: Expr) -> Expr:
    """Return the square root of x."""
    return Op("sqrt", (x,), x.dtype)


@unary
def rsqrt(x: Expr) -> Expr:
    """Return 1 / sqrt(x)."""
    return Op("rsqrt", (x,), x.dtype)


@unary
def reciprocal(x: Expr) -> Expr:
    """Return 1 / x."""
    return Op("reciprocal", (x,), x.dtype)


@unary
def sin(x: Expr) -> Expr:
    """Return the sine of x."""
    return Op("sin", (x,), x.dtype)


@unary
def cos(x: Expr) -> Expr:
    """Return the cosine of x."""
    return Op("cos", (x,), x.dtype)


@unary
def tan(x: Expr) -> Expr:
    """Return the tangent of x."""
    return Op("tan", (x,), x.dtype)


@unary
def tanh(x: Expr) -> Expr:
    """Return the hyperbolic tangent of x."""
    return Op("tanh", (x,), x.dtype)


@unary
def sigmoid(x: Expr) -> Expr:
    """Return 1 / (1 + exp(-x))."""
    return Op("sigmoid", (x,), x.dtype)


@unary
def erf(x: Expr) -> Expr:
    """Return the error function of x."""
    return Op("erf", (x,), x.dtype)


@unary
def silu(x: Expr) -> Expr:
    """Return x * sigmoid(x)."""
    return Op("mul", (x, Op("sigmoid", (x,), x.dtype)), x.dtype)


def gelu(x: T, approximate: str = "none") -> T:
    """Return x times the share of a normal distribution below x.

    Args:
        x: the operand; integers give float32.
        approximate: "none" (by erf) or "tanh".

    Raises:
        DefinitionError: another `approximate`.

    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     y = f.output(ln.gelu(x), "y")
    >>> print(ln.evaluate(f, np.array([0, 1], np.float32)))
    [0.        0.8413447]
    """
    note = f"approximate={approximate!r}"
    known = {"none": _gelu, "tanh": _gelu_tanh}
    template = known.get(approximate) if isinstance(approximate, str) else None
    if template is None:
        raise DefinitionError(
            call_text("gelu", (x,), note), f"there is no {note}", "use 'none' or 'tanh'"
        )
    # A tensor gives a tensor, and a scalar or a size gives a scalar.
    return cast("T", apply("gelu", (x,), template, note if approximate == "tanh" else ""))


def _gelu(x: Expr) -> Expr:
    part = Op("erf", (_times(x, math.sqrt(0.5)),), x.dtype)
    return Op("mul", (_times(x, 0.5), _plus_one(part)), x.dtype)


def _gelu_tanh(x: Expr) -> Expr:
    square = Op("mul", (x, x), x.dtype)
    scaled = Op("mul", (x, _plus_one(_times(square, 0.044715))), x.dtype)
    part = Op("tanh", (_times(scaled, math.sqrt(2 / math.pi)),), x.dtype)
    return Op("mul", (_times(x, 0.5), _plus_one(part)), x.dtype)


def _times(x: Expr, factor: float) -> Expr:
    return Op("mul", (x, Const(factor, x.dtype)), x.dtype)


def _plus_one(x: Expr) -> Expr:
    return Op("add", (x, Const(1.0, x.dtype)), x.dtype)
