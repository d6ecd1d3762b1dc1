"""The decorators that turn a template into a public pointwise function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, overload
from typing import cast as typed

from loopnest.base.errors import DefinitionError
from loopnest.scalar.expr import Expr
from loopnest.scalar.op_table import FUNCTIONS
from loopnest.tensor.ops.construction import elementwise
from loopnest.tensor.ops.operands import (
    Operand,
    Scalar,
    ScalarOperand,
    call_text,
    common_type,
    fusion_of,
    with_sizes,
)
from loopnest.tensor.ops.pointwise_docs import docstring
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

    return typed(Unary, _public(call, template))


def binary(template: Callable[[Expr, Expr], Expr]) -> Binary:
    """Make a template on two expressions the function of its name, of two operands."""
    name = _key(template, 2)

    def call(a: Operand, b: Operand) -> TensorView | ScalarOperand:
        return apply(name, (a, b), template)

    return typed(Binary, _public(call, template))


def _key(template: Callable[..., Expr], arity: int) -> str:
    assert FUNCTIONS[template.__name__].arity == arity
    return template.__name__


def _public(call: Callable[..., object], template: Callable[..., Expr]) -> Callable[..., object]:
    call.__name__ = call.__qualname__ = template.__name__
    call.__module__ = template.__module__
    call.__doc__ = docstring(template.__name__, template.__doc__ or "")
    return call
