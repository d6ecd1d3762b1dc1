"""Python's arithmetic on sizes: ``x.shape[0] * 2``, ``D // 2``, ``-(-D // 8)``.

What it returns is canonical: two ways to write one size give the same expression, so that extents
made of them are equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, cast

from loopnest.base.errors import DefinitionError

if TYPE_CHECKING:
    from loopnest.scalar.expr import Expr


class SizeOperators:
    """The operators of size expressions, with ints and with each other; == stays identity.

    Results without symbols are ints. Other types of expressions have none of these: their
    operators stand on the tensors and scalars of a fusion.

    >>> import loopnest as ln
    >>> with ln.Fusion("halves") as f:
    ...     x = f.input("x", ("N", "D"), ln.float32)
    ...     half = x.shape[1] // 2
    ...     y = f.output(x[:, :half] * x[:, half : half * 2], "y")
    >>> print(y.shape[1])
    D // 2

    Raises:
        DefinitionError: a divisor of 0 or less, or what may be no whole number: floats, / and **.
    """

    __slots__ = ()
    __array_ufunc__ = None  # a number of NumPy on the left leaves the operator to this side

    def __add__(self, other: object) -> Expr | int:
        return _operate("add", self, other)

    def __radd__(self, other: object) -> Expr | int:
        return _operate("add", other, self)

    def __sub__(self, other: object) -> Expr | int:
        return _operate("sub", self, other)

    def __rsub__(self, other: object) -> Expr | int:
        return _operate("sub", other, self)

    def __mul__(self, other: object) -> Expr | int:
        return _operate("mul", self, other)

    def __rmul__(self, other: object) -> Expr | int:
        return _operate("mul", other, self)

    def __floordiv__(self, other: object) -> Expr | int:
        return _operate("floordiv", self, other)

    def __rfloordiv__(self, other: object) -> Expr | int:
        return _operate("floordiv", other, self)

    def __mod__(self, other: object) -> Expr | int:
        return _operate("mod", self, other)

    def __rmod__(self, other: object) -> Expr | int:
        return _operate("mod", other, self)

    def __truediv__(self, other: object) -> NoReturn:
        raise _no_size(f"{self} / {other}")

    def __rtruediv__(self, other: object) -> NoReturn:
        raise _no_size(f"{other} / {self}")

    def __pow__(self, other: object) -> NoReturn:
        raise _no_size(f"{self} ** {other}")

    def __rpow__(self, other: object) -> NoReturn:
        raise _no_size(f"{other} ** {self}")

    def __neg__(self) -> Expr | int:
        from loopnest.scalar.expr import Op
        from loopnest.scalar.simplify import Simplifier

        if isinstance(self, Op) and self.op == "floordiv":
            dividend, divisor = self.args
            # -(-a // b) is how Python rounds up; -(a // b) is what it is
            if all(count < 0 for count in Simplifier().poly(dividend).values()):
                return _operate("ceildiv", _operate("sub", 0, dividend), divisor)
        return _operate("sub", 0, self)


_SIGNS = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%"}


def _no_size(call: str) -> DefinitionError:
    return DefinitionError(
        call,
        "sizes are whole numbers, with + - * // % by whole numbers",
        "f.extent(size) is a scalar of the math, of which there are all functions",
    )


def _operate(op: str, left: object, right: object) -> Expr | int:
    """Return the simplified result; NotImplemented where an operand is no size."""
    from loopnest.scalar.expr import Const
    from loopnest.scalar.simplify import Simplifier

    sizes = [_size(operand) for operand in (left, right)]
    one, other = sizes
    if isinstance(left, float) or isinstance(right, float):
        raise _no_size(f"{left} {_SIGNS[op]} {right}")
    if one is None or other is None:
        return cast("int", NotImplemented)  # Python tries the other operand, then raises TypeError
    if op in ("floordiv", "mod", "ceildiv") and isinstance(other, Const) and other.value <= 0:
        raise DefinitionError(
            f"{one} {'%' if op == 'mod' else '//'} {other}",
            "sizes are divided by what is 1 or more",
        )
    found = Simplifier().binary(op, one, other)
    return int(found.value) if isinstance(found, Const) else found


def _size(operand: object) -> Expr | None:
    """Return an int or a size expression as an expression; None of anything else."""
    from loopnest.scalar import dtypes
    from loopnest.scalar.arguments import as_int
    from loopnest.scalar.expr import Expr, integer

    if isinstance(operand, Expr):
        return operand if operand.dtype is dtypes.index else None
    number = as_int(operand)
    return None if number is None else integer(number)
