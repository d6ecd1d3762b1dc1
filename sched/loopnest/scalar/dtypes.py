"""Element types, their promotion, and the types that operations compute in.

Tensors, run-time scalars and the nodes of graphs all ask here.

Source: the promotion of integers and of floats is NumPy's, with weak Python scalars (NEP 50); an
integer with a float gives that float, and division and float functions of integers give float32.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, eq=False)
class DType:
    """An element type: `ln.float32` and the others, one object each, compared by identity.

    Args:
        name: what it is called, `str` of it.
        kind: "b" for bool, "i" for integers, "f" for floats; "x" for indices.
        size: in bytes.
        rank: its place in promotions.
        signed: whether an integer may be negative.

    >>> import loopnest as ln
    >>> def plus_one(dtype: ln.DType = ln.float32) -> ln.Fusion:
    ...     with ln.Fusion("plus_one") as f:
    ...         f.output(f.input("x", ("N",), dtype) + 1, "y")
    ...     return f
    >>> print(plus_one(ln.uint16)["y"].dtype)
    uint16

    Source: NumPy's dtype.
    """

    name: str
    kind: str  # "b" bool, "i" integer, "f" float, "x" index
    size: int
    rank: int
    signed: bool = True

    def __repr__(self) -> str:
        return f"ln.{self.name}"

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> str | tuple[object, ...]:
        return of, (self.name,)

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        return self.kind in "ix"

    @property
    def is_bool(self) -> bool:
        return self.kind == "b"

    @property
    def is_narrow(self) -> bool:
        """Whether it is a float of 8 or 16 bits, which is computed in float32 and rounded once."""
        return self.kind == "f" and self.size < 4

    @property
    def bits(self) -> int:
        """Its width."""
        return 8 * self.size

    @property
    def least(self) -> int:
        """The least value of an integer type."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def greatest(self) -> int:
        """The greatest value of an integer type."""
        return (1 << (self.bits - self.signed)) - 1

    @property
    def largest(self) -> float:
        """The largest finite value of a float type."""
        return _LARGEST[self.name]

    def wrapped(self, value: int) -> int:
        """Return an integer as this integer type holds it: modulo 2 to the power of its width."""
        return (value - self.least) % (1 << self.bits) + self.least

    def holds(self, value: bool | int | float) -> bool:
        """Whether a number is a value of this type, no narrow float: to convert it changes nothing.

        Every float type holds NaN and infinities.
        """
        if self.is_float:
            return self is float64 or isinstance(value, bool) or _fits_float32(value)
        if not math.isfinite(value) or value != int(value):
            return False
        return self.kind != "i" or self.least <= value <= self.greatest

    @property
    def compute(self) -> DType:
        """The type that values of this type are computed in."""
        return float32 if self.is_narrow else self

    @cached_property
    def numpy(self) -> np.dtype[np.generic]:
        """The NumPy dtype (bfloat16 and the floats of 8 bits: ml_dtypes')."""
        import numpy as np

        if self.is_narrow and self is not float16:
            import ml_dtypes

            own: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, self.name))
            return own
        found: np.dtype[np.generic] = np.dtype({"index": "int64"}.get(self.name, self.name))
        return found


_LARGEST = {
    "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "float16": 65504.0,
    "bfloat16": float.fromhex("0x1.fep127"), "float32": float.fromhex("0x1.fffffep127"),
    "float64": float.fromhex("0x1.fffffffffffffp1023"),
}  # fmt: skip

bool_ = DType("bool", "b", 1, 0)
int8 = DType("int8", "i", 1, 1)
uint8 = DType("uint8", "i", 1, 1, signed=False)
int16 = DType("int16", "i", 2, 2)
uint16 = DType("uint16", "i", 2, 2, signed=False)
int32 = DType("int32", "i", 4, 3)
uint32 = DType("uint32", "i", 4, 3, signed=False)
int64 = DType("int64", "i", 8, 4)
float8_e4m3fn = DType("float8_e4m3fn", "f", 1, 5)
float8_e5m2 = DType("float8_e5m2", "f", 1, 5)
float16 = DType("float16", "f", 2, 6)
bfloat16 = DType("bfloat16", "f", 2, 6)
float32 = DType("float32", "f", 4, 7)
float64 = DType("float64", "f", 8, 8)
index = DType("index", "x", 8, 4)
"""Loop indices, extents and addresses: an integer whose width is chosen when a kernel is built."""

INTEGERS: tuple[DType, ...] = (int8, uint8, int16, uint16, int32, uint32, int64)
FLOATS: tuple[DType, ...] = (
    float8_e4m3fn, float8_e5m2, float16, bfloat16, float32, float64,
)  # fmt: skip
ALL: tuple[DType, ...] = (bool_, *INTEGERS, *FLOATS)
_BY_NAME = {d.name: d for d in (*ALL, index)}


def _fits_float32(value: float) -> bool:
    try:
        back: float = struct.unpack("f", struct.pack("f", float(value)))[0]
    except OverflowError:
        return False
    return back == value or math.isnan(value)


def of(name: str) -> DType:
    """Return the type called `name`."""
    return _BY_NAME[name]


def from_numpy(dtype: np.dtype[np.generic]) -> DType | None:
    """Return the type of a NumPy dtype, or None where there is none."""
    found = _BY_NAME.get(dtype.name)
    return found if found is not index else None


def listed() -> str:
    """Return the element types as errors name them: the first as users write it."""
    names = [d.name for d in ALL]
    return f"ln.{', '.join(names[:-1])} or {names[-1]}"


def promote(a: DType, b: DType) -> DType:
    """Return the type that a value of `a` and a value of `b` meet in.

    The smallest that holds both, of integers; an integer or bool with a float gives that float. Two
    narrow floats of one width, neither of which holds the other, give float32.
    """
    if a is b:
        return a
    if a.is_integer and b.is_integer and a.signed != b.signed:
        signed, unsigned = (a, b) if a.signed else (b, a)
        wider = (d for d in (int16, int32, int64) if d.size > unsigned.size)
        return next(d for d in wider if d.rank >= signed.rank)
    if a.rank == b.rank and a.is_narrow:
        return float32
    return a if a.rank > b.rank else b


def weak_type(value: bool | int | float) -> DType:
    """Return the type of a Python number that meets no other type."""
    if isinstance(value, bool):
        return bool_
    return int32 if isinstance(value, int) else float32


def meet(types: Iterable[DType], numbers: Iterable[bool | int | float] = ()) -> DType:
    """Return the type that values of `types` and weak Python numbers meet in.

    An integer with a Python float gives float32, a bool with a Python int int32.
    """
    typed: DType | None = None
    for own in types:
        typed = own if typed is None else promote(typed, own)
    weak = bool_
    for number in numbers:
        found = weak_type(number)
        weak = found if found.rank > weak.rank else weak
    if typed is None or (weak.rank > typed.rank and weak.kind != typed.kind):
        return weak
    return typed


Rule: TypeAlias = Mapping[DType, tuple[DType, DType]]
"""From the type in which the operands meet to (the type computed in, the type of the result).

Each operand is converted to the type computed in, and the value once to that of the result. A
type that a rule lacks is refused."""


def _rule(operand: Callable[[DType], DType], result: DType | None = None) -> Rule:
    return {d: (operand(d).compute, result or operand(d)) for d in ALL}


ARITHMETIC = _rule(lambda d: int32 if d.is_bool else d)
INTEGRAL: Rule = {d: types for d, types in ARITHMETIC.items() if not d.is_float}
KEEPING = _rule(lambda d: d)
FLOAT = _rule(lambda d: d if d.is_float else float32)
COMPARISON = _rule(lambda d: d, bool_)
LOGICAL = _rule(lambda d: bool_, bool_)
BITWISE: Rule = {d: types for d, types in KEEPING.items() if not d.is_float}
