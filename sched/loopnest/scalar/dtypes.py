"""Element types, their promotion, and the types that operations compute in.

Tensors, run-time scalars and the nodes of graphs all ask here.

Source: the promotion lattice is NumPy's, cut down to seven types, with weak Python scalars
(NEP 50) and with division and float functions of integers giving float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, eq=False)
class DType:
    """An element type; compared by identity (there is one object a type).

    `rank` orders types for promotion, `size` is in bytes.
    """

    name: str
    kind: str  # "b" bool, "i" integer, "f" float, "x" index
    size: int
    rank: int

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
    def is_half(self) -> bool:
        """Whether it is a 16-bit float, which is computed in float32 and rounded once."""
        return self.kind == "f" and self.size == 2

    @property
    def compute(self) -> DType:
        """The type that values of this type are computed in."""
        return float32 if self.is_half else self

    @cached_property
    def numpy(self) -> np.dtype[np.generic]:
        """The NumPy dtype (bfloat16: ml_dtypes')."""
        import numpy as np

        if self.name == "bfloat16":
            import ml_dtypes

            brain: np.dtype[np.generic] = np.dtype(ml_dtypes.bfloat16)
            return brain
        found: np.dtype[np.generic] = np.dtype({"index": "int64"}.get(self.name, self.name))
        return found


bool_ = DType("bool", "b", 1, 0)
int32 = DType("int32", "i", 4, 1)
int64 = DType("int64", "i", 8, 2)
float16 = DType("float16", "f", 2, 3)
bfloat16 = DType("bfloat16", "f", 2, 3)
float32 = DType("float32", "f", 4, 4)
float64 = DType("float64", "f", 8, 5)
index = DType("index", "x", 8, 2)
"""Loop indices, extents and addresses: an integer whose width is chosen when a kernel is built."""

ALL: tuple[DType, ...] = (bool_, int32, int64, float16, bfloat16, float32, float64)
_BY_NAME = {d.name: d for d in (*ALL, index)}


def of(name: str) -> DType:
    """Return the type called `name`."""
    return _BY_NAME[name]


def from_numpy(dtype: np.dtype[np.generic]) -> DType | None:
    """Return the type of a NumPy dtype, or None where there is none."""
    found = _BY_NAME.get(dtype.name)
    return found if found is not index else None


def promote(a: DType, b: DType) -> DType:
    """Return the type that a value of `a` and a value of `b` meet in.

    float16 with bfloat16 gives float32; int or bool with a float gives that float.
    """
    if a is b:
        return a
    if a.rank == b.rank and a.is_half:
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
KEEPING = _rule(lambda d: d)
FLOAT = _rule(lambda d: d if d.is_float else float32)
COMPARISON = _rule(lambda d: d, bool_)
LOGICAL = _rule(lambda d: bool_, bool_)
BITWISE: Rule = {d: types for d, types in KEEPING.items() if not d.is_float}
