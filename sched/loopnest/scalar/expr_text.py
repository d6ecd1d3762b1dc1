"""The text of scalar expressions, as in the nest."""

from __future__ import annotations

from loopnest.base.errors import InternalError
from loopnest.scalar.expr import (
    Arg,
    Const,
    Coordinate,
    Expr,
    Index,
    LaunchIndex,
    Load,
    Local,
    Op,
    ScalarParam,
    Symbol,
)
from loopnest.scalar.op_table import OPS


class TextFormat:
    """Print expressions as in the nest: Python's operators and precedence.

    A subclass for another language overrides the methods, not the traversal.
    """

    def format(self, node: Expr, level: int = 0) -> str:
        """Return the text of `node`, in parentheses where `level` binds tighter than it."""
        match node:
            case Op():
                text, own = self.operation(node)
                return f"({text})" if own < level else text
            case Const():
                return self.literal(node, level)
            case Load():
                return self.load(node)
            case Index() | Symbol() | ScalarParam() | Local():
                return self.name(node)
            case LaunchIndex():
                return self.launch_index(node)
            case Arg():
                return f"${node.number}"
            case Coordinate():
                return f"#{node.number}"
        raise InternalError(type(node).__name__, "no text for expressions of this class")

    def name(self, node: Index | Symbol | ScalarParam | Local) -> str:
        """Return the name of a variable."""
        return node.name

    def launch_index(self, node: LaunchIndex) -> str:
        """Return the number of this block or thread along a launch dimension."""
        return node.dimension.value

    def literal(self, node: Const, level: int) -> str:
        """Return a literal: Python's repr."""
        text = repr(node.value)
        return f"({text})" if text.startswith("-") and level > 11 else text

    def load(self, node: Load) -> str:
        """Return an access: ``x[i, j]``, or ``x.flat[e]`` for one offset."""
        inner = ", ".join([self.format(a) for a in node.args])
        return f"{node.buffer.name}{'.flat' if node.flat else ''}[{inner}]"

    def operation(self, node: Op) -> tuple[str, int]:
        """Return the text and the precedence of an operation."""
        info = OPS[node.op]
        level = info.precedence
        if node.op == "cast":
            return f"{node.dtype.name}({self.format(node.args[0])})", 12
        if not info.infix:
            return f"{info.name}({', '.join([self.format(a) for a in node.args])})", 12
        if info.arity == 1:
            return info.infix + self.format(node.args[0], level), level
        left, right = node.args
        left_level = level + 1 if level == 4 else level
        text = f"{self.format(left, left_level)} {info.infix} {self.format(right, level + 1)}"
        return text, level


TEXT = TextFormat()
