"""The decorators that turn a template into a public pointwise function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, overload
from typing import cast as typed

from loopnest.errors import DefinitionError
from loopnest.scalar.dtypes import Rule
from loopnest.scalar.expr import Expr
from loopnest.tensor.ops.construction import elementwise
from loopnest.tensor.ops.operands import (
    Operand,
    Scalar,
    ScalarOperand,
    call_text,
    common_type,
    fusion_of,
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
    name: str,
    rule: Rule,
    operands: tuple[Operand, ...],
    template: Callable[..., Expr],
    note: str = "",
) -> TensorView | ScalarOperand:
    """Return `template` of `operands`, typed by `rule`.

    Raises:
        DefinitionError: operands that do not fit together.
    """
    fusion = fusion_of(name, operands)
    common = common_type(operands)
    types = rule.get(common)
    if types is None:
        raise DefinitionError(
            call_text(name, operands),
            f"the operands meet in {common}",
            "bitwise operations take integers or bool",
        )
    computed, result = types
    return elementwise(fusion, name, operands, (computed,) * len(operands), result, template, note)


def unary(rule: Rule) -> Callable[[Callable[[Expr], Expr]], Unary]:
    """Make a template on one expression a function of one operand, typed by `rule`."""

    def decorate(template: Callable[[Expr], Expr]) -> Unary:
        name = template.__name__

        def call(x: Operand) -> TensorView | ScalarOperand:
            return apply(name, rule, (x,), template)

        return typed(Unary, _public(call, template))

    return decorate


def binary(rule: Rule) -> Callable[[Callable[[Expr, Expr], Expr]], Binary]:
    """Make a template on two expressions a function of two operands, typed by `rule`."""

    def decorate(template: Callable[[Expr, Expr], Expr]) -> Binary:
        name = template.__name__

        def call(a: Operand, b: Operand) -> TensorView | ScalarOperand:
            return apply(name, rule, (a, b), template)

        return typed(Binary, _public(call, template))

    return decorate


def _public(call: Callable[..., object], template: Callable[..., Expr]) -> Callable[..., object]:
    call.__name__ = call.__qualname__ = template.__name__
    call.__doc__ = template.__doc__
    return call
