"""How C and CUDA C++ differ in expressions (`Dialect`), how tight operators bind, and literals."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import Const

# Precedence in C. `BIT` and `TEST` operands get parentheses more often than C asks for, as
# compilers' own warnings advise.
COND, OR, AND, BITOR, BITXOR, BITAND, EQ, REL, SUM, PRODUCT, UNARY, ATOM = range(1, 13)

Text = tuple[str, int]
"""A text and how tightly its outermost operator binds."""


@dataclass(frozen=True, eq=False, slots=True)
class Dialect:
    """Where C and CUDA C++ differ in expressions.

    Args:
        types: the type of each dtype.
        unsigned: the unsigned type in which each integer dtype wraps, if it is not itself one.
        special: how "inf" and "nan" are written in each float dtype.
        functions: the function of (operation, dtype of its first operand), where it is a call.
        casts: the function that converts (from, to), where it is a call.
        selects: the function of each dtype that chooses one of two values, where a choice by data
            is a call: both are evaluated.
        elements: the type of each dtype in an array, where it is another one.
    """

    types: Mapping[str, str]
    unsigned: Mapping[str, str]
    special: Mapping[tuple[str, str], str]
    functions: Mapping[tuple[str, str], str]
    casts: Mapping[tuple[str, str], str]
    selects: Mapping[str, str] = field(default_factory=dict)
    elements: Mapping[str, str] = field(default_factory=dict)

    def element(self, dtype: DType) -> str:
        """Return the type of an element of an array."""
        return self.elements.get(dtype.name, self.types[dtype.name])


def common_functions(column: Mapping[str, tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return functions of floats, by those of float32 and float64, and those of one type."""
    found = {
        ("philox", "int64"): "ln_philox",
        ("ordinal32", "float32"): "ln_ordinal32",
        ("ordinal64", "float64"): "ln_ordinal64",
    }
    for op, (single, double) in column.items():
        found |= {(op, "float32"): single, (op, "float64"): double}
    return found


def unsigned(narrow: str, wide: str) -> Mapping[str, str]:
    """Return the types in which integers wrap: uint32 itself does; narrower ones are promoted."""
    names = ("int8", "uint8", "int16", "uint16", "int32")
    return {**dict.fromkeys(names, narrow), "int64": wide}


def literal(node: Const, dialect: Dialect) -> Text:
    """Return a literal that has exactly the value of `node`."""
    dtype = node.dtype
    if dtype.is_float:
        return _float_literal(float(node.value), dtype, dialect)
    if dtype.is_bool:
        return ("true" if node.value else "false"), ATOM
    value = int(node.value)
    if dtype is dtypes.uint32:
        return f"{value}u", ATOM
    wide = dtype is dtypes.int64 or (dtype is dtypes.index and abs(value) >= 1 << 31)
    end = "LL" if wide else ""
    if value in (-(1 << 31), -(1 << 63)):  # -2147483648 would be minus a number that is too large
        return f"({value + 1}{end} - 1)", ATOM
    return f"{value}{end}", UNARY if value < 0 else ATOM


def _float_literal(value: float, dtype: DType, dialect: Dialect) -> Text:
    if dtype.is_narrow:
        inner, _ = _float_literal(value, dtypes.float32, dialect)
        return f"{dialect.casts['float32', dtype.name]}({inner})", ATOM
    # The literal must be the float32 that arithmetic before it found, not a float64 next to it.
    if dtype is dtypes.float32:
        value = _rounded(value)
    if math.isnan(value):
        return dialect.special["nan", dtype.name], ATOM
    if math.isinf(value):
        sign, level = ("-", UNARY) if value < 0 else ("", ATOM)
        return sign + dialect.special["inf", dtype.name], level
    text = float_text(value) + "f" if dtype is dtypes.float32 else repr(value)
    return text, UNARY if text.startswith("-") else ATOM


def _rounded(value: float) -> float:
    try:
        result: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return result


def float_text(value: float) -> str:
    """Return the shortest decimal that reads back as the float32 `value`.

    >>> float_text(0.10000000149011612), float_text(1.0), float_text(-0.0)
    ('0.1', '1.0', '-0.0')
    """
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    return sign + _magnitude_text(abs(value))  # a cache takes 0.0 and -0.0 for one key


@lru_cache(maxsize=4096)
def _magnitude_text(value: float) -> str:
    for digits in range(1, 10):
        text = f"{value:.{digits}g}"
        if _rounded(float(text)) == value:
            break
    return text if "." in text or "e" in text else text + ".0"
