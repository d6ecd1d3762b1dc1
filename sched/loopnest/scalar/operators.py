"""The operators that tensors and scalars share, each handed to one method."""

from __future__ import annotations

from abc import abstractmethod
from typing import Generic, TypeVar

Other = TypeVar("Other")
Result = TypeVar("Result")


class Operators(Generic[Other, Result]):
    """Python's operators by the names of the functions in `ops.pointwise`.

    == and != stay identity.
    """

    __slots__ = ()
    __array_ufunc__ = None  # an array on the left leaves the operator to this side

    @abstractmethod
    def _operate(self, name: str, *operands: object) -> Result:
        """Return the result of the function `name` on `operands`, of which one is `self`."""

    def __add__(self, other: Other) -> Result:
        return self._operate("add", self, other)

    def __radd__(self, other: Other) -> Result:
        return self._operate("add", other, self)

    def __sub__(self, other: Other) -> Result:
        return self._operate("sub", self, other)

    def __rsub__(self, other: Other) -> Result:
        return self._operate("sub", other, self)

    def __mul__(self, other: Other) -> Result:
        return self._operate("mul", self, other)

    def __rmul__(self, other: Other) -> Result:
        return self._operate("mul", other, self)

    def __truediv__(self, other: Other) -> Result:
        return self._operate("div", self, other)

    def __rtruediv__(self, other: Other) -> Result:
        return self._operate("div", other, self)

    def __floordiv__(self, other: Other) -> Result:
        return self._operate("floordiv", self, other)

    def __rfloordiv__(self, other: Other) -> Result:
        return self._operate("floordiv", other, self)

    def __mod__(self, other: Other) -> Result:
        return self._operate("mod", self, other)

    def __rmod__(self, other: Other) -> Result:
        return self._operate("mod", other, self)

    def __pow__(self, other: Other) -> Result:
        return self._operate("pow", self, other)

    def __rpow__(self, other: Other) -> Result:
        return self._operate("pow", other, self)

    def __and__(self, other: Other) -> Result:
        return self._operate("bitand", self, other)

    def __rand__(self, other: Other) -> Result:
        return self._operate("bitand", other, self)

    def __or__(self, other: Other) -> Result:
        return self._operate("bitor", self, other)

    def __ror__(self, other: Other) -> Result:
        return self._operate("bitor", other, self)

    def __xor__(self, other: Other) -> Result:
        return self._operate("bitxor", self, other)

    def __rxor__(self, other: Other) -> Result:
        return self._operate("bitxor", other, self)

    def __lshift__(self, other: Other) -> Result:
        return self._operate("lshift", self, other)

    def __rlshift__(self, other: Other) -> Result:
        return self._operate("lshift", other, self)

    def __rshift__(self, other: Other) -> Result:
        return self._operate("rshift", self, other)

    def __rrshift__(self, other: Other) -> Result:
        return self._operate("rshift", other, self)

    def __lt__(self, other: Other) -> Result:
        return self._operate("lt", self, other)

    def __le__(self, other: Other) -> Result:
        return self._operate("le", self, other)

    def __gt__(self, other: Other) -> Result:
        return self._operate("gt", self, other)

    def __ge__(self, other: Other) -> Result:
        return self._operate("ge", self, other)

    def __neg__(self) -> Result:
        return self._operate("neg", self)

    def __abs__(self) -> Result:
        return self._operate("abs", self)

    def __invert__(self) -> Result:
        return self._operate("invert", self)
