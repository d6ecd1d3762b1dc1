"""Elementary functions of one operand, by elements: exponentials, roots, angles, activations.

They are computed in floats; integers give float32. Written as those of `pointwise`.
"""

from __future__ import annotations

import math
from typing import TypeVar, cast

from loopnest.base.errors import DefinitionError
from loopnest.scalar.expr import Const, Expr, Op
from loopnest.tensor.ops.operands import (
    ScalarOperand,
    call_text,
)
from loopnest.tensor.ops.pointwise_typing import apply, unary
from loopnest.tensor.tensor_view import TensorView

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
    return cast(T, apply("gelu", (x,), template, note if approximate == "tanh" else ""))


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
