"""The operations of the scalar language on NumPy values, in their native types.

A value is a Python int or bool, or an array with one element a lane (or one element that all lanes
share). Index arithmetic on uniform values stays in Python ints, which are unbounded; everything
else is an array, so that int32 wraps silently. Written apart from the oracle on purpose: the two
share no code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType
from loopnest.scalar.op_table import Column, ops

Array: TypeAlias = "npt.NDArray[Any]"
Value: TypeAlias = "Array | int | bool"


def literal(value: bool | int | float, dtype: DType) -> Value:
    """Return a literal of the scalar language as a value."""
    if dtype.kind == "x":
        return int(value)
    if dtype.is_bool:
        return bool(value)
    return np.array([value], dtype.numpy)


def as_array(value: Value, dtype: DType) -> Array:
    """Return `value` as an array of `dtype`, without conversion of arrays."""
    if isinstance(value, np.ndarray):
        return value
    return _convert(np.array([value]), dtype)


def convert(value: Value, source: DType, target: DType) -> Value:
    """Convert a value as a cast or a store does: floats round to nearest even, once."""
    if source is target:
        return value
    if target.kind == "x":
        return value.astype(np.int64) if isinstance(value, np.ndarray) else int(value)
    if target.is_bool and not isinstance(value, np.ndarray):
        return bool(value)
    return _convert(as_array(value, source), target)


def _convert(value: Array, target: DType) -> Array:
    if target.is_narrow and target is not dtypes.float16 and value.dtype.itemsize > 2:
        return _to_float32_for_rounding(value).astype(target.numpy)
    return value.astype(target.numpy)


def _to_float32_for_rounding(value: Array) -> Array:
    """Return float32 values that round to a type of ml_dtypes as `value` does: rounded to odd.

    Source: Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms
    using rounding to odd", 2008.
    """
    if value.dtype == np.float32:
        return value
    wide = value.astype(np.float64)
    if value.dtype == np.int64:  # of more digits than float64 has, the last is odd where some go
        kept = value >> 11
        odd = np.ldexp((kept | (kept << 11 != value)).astype(np.float64), 11)
        wide = np.where((value >> 53 == 0) | (value >> 53 == -1), wide, odd)
    near = wide.astype(np.float32)
    bits = near.view(np.int32)
    back = near.astype(np.float64)
    inexact = (back != wide) & np.isfinite(back)
    beyond = np.abs(back) > np.abs(wide)
    return np.where(inexact, (bits - beyond) | 1, bits).view(np.float32)


def _floor_divide(a: Value, b: Value) -> Value:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.floor_divide(a, b)
    return a // b if b else 0  # as NumPy: a test on the divisor may follow


def _remainder(a: Value, b: Value) -> Value:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.remainder(a, b)
    return a % b if b else 0


def _ceil_divide(a: Value, b: Value) -> Value:
    return -_floor_divide(-a, b)


def _smaller(a: Value, b: Value) -> Value:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.minimum(a, b)
    return min(a, b)


def _larger(a: Value, b: Value) -> Value:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.maximum(a, b)
    return max(a, b)


def _logical(ufunc: Callable[..., Any]) -> Callable[[Value, Value], Value]:
    def apply(a: Value, b: Value) -> Value:
        result = ufunc(a, b)
        return result if isinstance(result, np.ndarray) else bool(result)

    return apply


def _not(a: Value) -> Value:
    return np.logical_not(a) if isinstance(a, np.ndarray) else not a


def _power(a: Array, b: Array) -> Array:
    if a.dtype.kind != "i":  # unsigned powers wrap, too
        return np.power(a, b)
    magnitude = np.power(a, np.maximum(b, 0))
    unit = np.where(a == -1, np.where(b % 2 == 0, 1, -1), a == 1)
    return np.where(b < 0, unit.astype(a.dtype), magnitude)


def _fma(a: Array, b: Array, c: Array) -> Array:
    """Return a * b + c rounded once (float64: to within the last place)."""
    if a.dtype.kind != "f" or a.dtype.itemsize > 4:
        return _fma_wide(a, b, c) if a.dtype.kind == "f" else a * b + c
    product = a.astype(np.float64) * b.astype(np.float64)
    total, error = _two_sum(product, c.astype(np.float64))
    odd = (error != 0) & np.isfinite(total) & (total.view(np.int64) % 2 == 0)
    towards = np.where(error > 0, np.inf, -np.inf)
    return np.where(odd, np.nextafter(total, towards), total).astype(a.dtype)


def _shift_left(a: Array, b: Array) -> Array:
    inside, count = _count(b)
    return np.where(inside, a << count, np.zeros(1, a.dtype))


def _shift_right(a: Array, b: Array) -> Array:
    inside, count = _count(b)
    return np.where(inside, a >> count, np.where(a < 0, ~np.zeros(1, a.dtype), 0).astype(a.dtype))


def _count(b: Array) -> tuple[Array, Array]:
    """Return which counts of a shift are inside of the width, and these."""
    inside = (b >= 0) & (b < 8 * b.dtype.itemsize)
    return inside, np.where(inside, b, np.zeros(1, b.dtype))


def _philox(key: Array, low: Array, high: Array, element: Array) -> Array:
    """Return random bits: Philox 4x32 in ten rounds, on a block a lane, its words of 32 bits."""
    lanes = np.broadcast(key, low, high, element).size
    state = np.empty((4, lanes), np.uint32)
    words = [np.broadcast_to(a, lanes).astype(np.uint64) for a in (low, high, key, element)]
    start = words[0] + words[3] // 4
    carried = words[1] + np.where(start < words[0], np.uint64(1), np.uint64(0))
    for place, whole in ((0, start), (2, carried)):
        state[place], state[place + 1] = whole % 2**32, whole // 2**32
    k0, k1 = (part.astype(np.uint32) for part in (words[2] % 2**32, words[2] // 2**32))
    for _ in range(10):
        even = state[0].astype(np.uint64) * 3528531795
        odd = state[2].astype(np.uint64) * 3449720151
        state = np.stack([
            (odd // 2**32).astype(np.uint32) ^ state[1] ^ k0, (odd % 2**32).astype(np.uint32),
            (even // 2**32).astype(np.uint32) ^ state[3] ^ k1, (even % 2**32).astype(np.uint32),
        ])  # fmt: skip
        k0, k1 = k0 + np.uint32(2654435769), k1 + np.uint32(3144134277)
    chosen: Array = np.take_along_axis(state, (words[3] % 4).astype(np.intp)[None], 0)[0]
    return chosen


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _fma_wide(a: Array, b: Array, c: Array) -> Array:
    high_a, high_b = _high_half(a), _high_half(b)
    low_a, low_b = a - high_a, b - high_b
    product = a * b
    error = ((high_a * high_b - product) + high_a * low_b + low_a * high_b) + low_a * low_b
    total, rest = _two_sum(product, c)
    exact = total + (error + rest)
    return np.where(np.isfinite(exact), exact, product + c)


def _high_half(a: Array) -> Array:
    scaled = a * np.float64(134217729.0)  # 2**27 + 1 (Veltkamp)
    high: Array = scaled - (scaled - a)
    return high


def _erf(a: Array) -> Array:
    """Return erf: NumPy has none, the C library's is called for each lane."""
    return np.fromiter(map(math.erf, a.tolist()), np.float64, a.size).astype(a.dtype)


def _sigmoid(a: Array) -> Array:
    one = np.ones(1, a.dtype)
    result: Array = one / (one + np.exp(-a))
    return result


def _keeps_integers(ufunc: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda a: ufunc(a) if a.dtype.kind not in "iub" else a


def _isnan(a: Value) -> Value:
    if not isinstance(a, np.ndarray):
        return False
    return np.isnan(a) if a.dtype.kind not in "iub" else np.zeros(a.shape, np.bool_)


def _ordinal(a: Array, whole: type) -> Array:
    """Return the number of each float in their order: its bits, counted from 0 on both sides."""
    bits, most = a.view(whole).astype(np.int64), np.iinfo(whole)
    return np.where(np.isnan(a), most.max, np.where(bits < 0, most.min - bits, bits))


_INDEX: Mapping[str, Callable[..., Value]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "neg": lambda a: -a,
    "abs": abs,
    "floordiv": _floor_divide,
    "mod": _remainder,
    "ceildiv": _ceil_divide,
    "min": _smaller,
    "max": _larger,
    "bitand": lambda a, b: a & b,
    "bitor": lambda a, b: a | b,
    "bitxor": lambda a, b: a ^ b,
    "bitnot": lambda a: ~a,
}
INDEX = Column(
    "interpreter's function of indices",
    __name__,
    _INDEX,
    needs=ops(lambda op: "x" in op.kinds and op.result == "same", but=("where",)),
)
"""Operations whose result is an index; they take Python ints as well."""

_PREDICATE: Mapping[str, Callable[..., Value]] = {
    "or": _logical(np.logical_or),
    "and": _logical(np.logical_and),
    "not": _not,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "isnan": _isnan,
}
PREDICATE = Column(
    "interpreter's predicate", __name__, _PREDICATE, needs=ops(lambda op: op.result == "bool")
)
"""Operations whose result is a bool, on operands of any type."""

_VALUE: Mapping[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.true_divide,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "ceildiv": lambda a, b: -np.floor_divide(-a, b),
    "bitor": np.bitwise_or,
    "bitxor": np.bitwise_xor,
    "bitand": np.bitwise_and,
    "bitnot": np.invert,
    "shl": _shift_left,
    "shr": _shift_right,
    "neg": np.negative,
    "min": np.minimum,
    "max": np.maximum,
    "pow": _power,
    "abs": np.absolute,
    "floor": _keeps_integers(np.floor),
    "ceil": _keeps_integers(np.ceil),
    "round": _keeps_integers(np.rint),
    "trunc": _keeps_integers(np.trunc),
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: a.dtype.type(1) / np.sqrt(a),
    "reciprocal": lambda a: a.dtype.type(1) / a,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "erf": _erf,
    "fma": _fma,
    "philox": _philox,
    "ordinal32": lambda a: _ordinal(a, np.int32),
    "ordinal64": lambda a: _ordinal(a, np.int64),
}
VALUE = Column(
    "interpreter's function",
    __name__,
    _VALUE,
    needs=ops(lambda op: op.result in ("same", "float", "uint32", "int64"), but=("where",)),
)
"""Operations on elements; their operands are arrays of one type."""


def apply(op: str, args: list[Value], sources: list[DType], result: DType) -> Value:
    """Return an operation of `op_table.OPS` (but for "where" and "cast") on values.

    Args:
        op: its name.
        args: its operands, whole.
        sources: the types of the operands.
        result: the type of the result.
    """
    if op in PREDICATE:
        return PREDICATE[op](*args)
    if result.kind == "x" and op in INDEX:
        return INDEX[op](*args)
    arrays = [as_array(a, t) for a, t in zip(args, sources, strict=True)]
    value = VALUE[op](*arrays)
    return value if value.dtype == result.numpy else value.astype(result.numpy)


def select(condition: Value, yes: Value, no: Value, dtype: DType) -> Value:
    """Return ``where(condition, yes, no)`` on values that are all known."""
    if not isinstance(condition, np.ndarray):
        return yes if condition else no
    if dtype.kind != "x":
        yes, no = as_array(yes, dtype), as_array(no, dtype)
    return np.where(condition, yes, no)
