"""Scalar expressions of texts in Python's grammar, made of `ast`'s trees: nothing is evaluated.

What differs between texts (what a name is, of what type a literal) a subclass says.
"""

from __future__ import annotations

import ast
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import FALSE, TRUE, Const, Expr, Load, Number, Op

INFIX: Mapping[type[ast.AST], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv",
    ast.Mod: "mod", ast.BitAnd: "bitand", ast.BitOr: "bitor", ast.BitXor: "bitxor",
    ast.LShift: "shl", ast.RShift: "shr", ast.And: "and", ast.Or: "or",
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge",
    ast.USub: "neg", ast.Not: "not", ast.Invert: "bitnot",
}  # fmt: skip
"""The operation of each operator of Python's grammar."""
TYPES: Mapping[str, DType] = {dtype.name: dtype for dtype in (*dtypes.ALL, dtypes.index)}
_FLOATS = {"inf": math.inf, "nan": math.nan}


class Unreadable(Exception):
    """What should stand in a text instead of what stands there."""


def items(node: ast.expr) -> list[ast.expr]:
    """Return what stands between brackets, or between commas."""
    return node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node]


class ExprParser(ABC):
    """Makes expressions of trees; `want` is the type of literals that meet no other operand."""

    @abstractmethod
    def name(self, name: str) -> Expr:
        """Return the expression that a name refers to."""

    @abstractmethod
    def load(self, buffer: str, index: tuple[Expr, ...], *, flat: bool) -> Load:
        """Return an access to a buffer."""

    def literal(self, value: Number, want: DType | None) -> Expr:
        """Return a literal: an index or a float32 where no type is wanted."""
        if isinstance(value, bool):
            return TRUE if value else FALSE
        return Const(value, want or (dtypes.float32 if isinstance(value, float) else dtypes.index))

    def operands(self, nodes: Sequence[ast.expr], want: DType | None) -> tuple[Expr, ...]:
        """Return the operands of one operation, of one type."""
        return tuple([self.build(node, want) for node in nodes])

    def convert(self, value: Expr, dtype: DType) -> Expr:
        """Return a conversion."""
        return Op("cast", (value,), dtype)

    @abstractmethod
    def operation(self, op: str, args: tuple[Expr, ...]) -> Expr:
        """Return an operation of operands that fit it."""

    def expression(self, text: str, want: DType | None = None) -> Expr:
        """Return the expression of a text.

        Raises:
            SyntaxError: it is none in Python's grammar.
            Unreadable: it is none of the scalar language.
        """
        return self.build(ast.parse(text, mode="eval").body, want)

    def build(self, node: ast.expr, want: DType | None = None) -> Expr:
        """Return the expression of a tree."""
        if isinstance(node, ast.Name):  # the most frequent first: patterns take their time
            name = node.id
            return self.literal(_FLOATS[name], want) if name in _FLOATS else self.name(name)
        if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
            return self.literal(node.value, want)
        if isinstance(node, ast.BinOp) and type(node.op) in INFIX:
            operands = self.operands([node.left, node.right], want)
            return self.operation(INFIX[type(node.op)], operands)
        match node:
            case ast.Subscript():
                return self._access(node)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in INFIX:
                return self.operation(INFIX[type(op)], self.operands([left, right], None))
            case ast.BoolOp(op=op, values=values):
                result, *rest = [self.build(value) for value in values]
                for term in rest:
                    result = self.operation(INFIX[type(op)], (result, term))
                return result
            case ast.UnaryOp(op=op, operand=operand) if type(op) in INFIX:
                inner = self.build(operand, want)
                if isinstance(op, ast.USub) and isinstance(inner, Const):
                    return Const(-inner.value, inner.dtype)
                return self.operation(INFIX[type(op)], (inner,))
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                return self.call(name, args, want)
        return self.other(node)

    def other(self, node: ast.expr) -> Expr:
        """Return the expression of a tree that only one text has."""
        raise Unreadable(f"an expression of the nest, not {ast.unparse(node)}")

    def _access(self, node: ast.Subscript) -> Load:
        buffer, flat = node.value, False
        if isinstance(buffer, ast.Attribute) and buffer.attr == "flat":
            buffer, flat = buffer.value, True
        if not isinstance(buffer, ast.Name):
            raise Unreadable("an access as buffer[index]")
        index = tuple([self.build(part) for part in items(node.slice)])
        return self.load(buffer.id, index, flat=flat)

    def call(self, name: str, args: list[ast.expr], want: DType | None) -> Expr:
        """Return an operation in functional form, or a conversion."""
        if name in TYPES and len(args) == 1:
            return self.convert(self.build(args[0]), TYPES[name])
        if name == "where":
            args, values = args[:1], args[1:]
            return self.operation(name, self.operands(args, None) + self.operands(values, want))
        return self.operation(name, self.operands(args, want))
