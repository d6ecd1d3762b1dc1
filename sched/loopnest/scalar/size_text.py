"""The text of a size expression, read by Python's own grammar: ``N * 2``, ``ceildiv(N - 1, 2)``."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import TypeAlias

from loopnest.base.errors import LoopnestError
from loopnest.scalar import dtypes
from loopnest.scalar.expr import Const, Expr, Op, Symbol, integer

Refuse: TypeAlias = "Callable[[str], LoopnestError]"
"""Makes the error of a reason."""

_ARITHMETIC: Mapping[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
}
_FUNCTIONS = ("ceildiv", "max", "min")


def read_size(node: ast.expr, symbol: Callable[[str], Symbol], refuse: Refuse) -> Expr:
    """Return the size expression of a syntax tree.

    Args:
        node: integers, names, + - * // %, and calls of ceildiv, min and max.
        symbol: makes the symbol of a name, or raises.
        refuse: makes the error of what is none of these.
    """
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return integer(value)
        case ast.Name(id=name):
            return symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = read_size(operand, symbol, refuse)
            if isinstance(inner, Const):
                return integer(-int(inner.value))
            return Op("neg", (inner,), dtypes.index)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            args = (read_size(left, symbol, refuse), read_size(right, symbol, refuse))
            return _operation(_ARITHMETIC[type(op)], args, refuse)
        case ast.Call(func=ast.Name(id=name), args=[left, right], keywords=[]) if (
            name in _FUNCTIONS
        ):
            args = (read_size(left, symbol, refuse), read_size(right, symbol, refuse))
            return _operation(name, args, refuse)
    raise refuse(f"'{ast.unparse(node)}' is not allowed")


def _operation(name: str, args: tuple[Expr, Expr], refuse: Refuse) -> Op:
    divisor = args[1]
    if name in ("floordiv", "mod", "ceildiv") and isinstance(divisor, Const) and divisor.value <= 0:
        raise refuse(f"a divisor is {divisor}, and sizes are divided by what is 1 or more")
    return Op(name, args, dtypes.index)
