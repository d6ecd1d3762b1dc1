"""Scalar expressions on NumPy arrays, with floats in float64: the arithmetic of the oracle.

A value of a float type is held in float64, whatever the type; a cast, and a literal, round it to
what the type can hold. Integers and bools are held in their own types, so that they wrap; an index
is an int64. Kept apart from the interpreter of loop nests, whose results it judges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import Const, Expr, Op, walk
from loopnest.scalar.op_table import Column, ops

Values: TypeAlias = "npt.NDArray[Any]"

_CHUNK = 1 << 16


def held(values: Values, dtype: DType) -> Values:
    """Return values of any type as those of `dtype` are held."""
    target = np.dtype(np.float64) if dtype.is_float else dtype.numpy
    return np.asarray(values).astype(target, copy=False)


def rounded(values: Values, dtype: DType) -> Values:
    """Return `values` converted to what `dtype` can hold: floats rounded once, to nearest even."""
    if not dtype.is_float or dtype is dtypes.float64:
        return held(values, dtype)
    if dtype in _GRIDS:
        return _to_grid(held(_gathered(values), dtypes.float64), dtype)
    return np.asarray(values).astype(dtype.numpy).astype(np.float64)


def _gathered(values: Values) -> Values:
    """Return integers that float64 holds, which round to bfloat16 as `values` do.

    Of more digits than float64 has, those that it lacks count as one that is odd.
    """
    values = np.asarray(values)
    if values.dtype != np.int64:
        return values
    odd = (values & ~0x7FF) | np.where(values & 0x7FF, 0x400, 0)
    return np.where((values < 1 << 53) & (values > -1 << 53), values, odd)


_GRIDS: Mapping[DType, tuple[int, int]] = {
    dtypes.bfloat16: (8, -125), dtypes.float8_e4m3fn: (4, -5), dtypes.float8_e5m2: (3, -13),
}  # fmt: skip
"""The digits of the types of ml_dtypes, and the exponent of their least normal number."""


def _to_grid(values: Values, dtype: DType) -> Values:
    """Round float64 to a type of ml_dtypes, once (its own casts go by way of float32)."""
    digits, least = _GRIDS[dtype]
    _, exponent = np.frexp(values)
    quantum = np.ldexp(1.0, np.maximum(exponent, least) - digits)
    near = np.rint(values / quantum) * quantum
    # What is beyond the range becomes infinity, or NaN.
    return np.asarray(near.astype(np.float32).astype(dtype.numpy).astype(np.float64))


def stored(values: Values, dtype: DType) -> Values:
    """Return `values` in a new array of `dtype` itself."""
    return np.array(rounded(values, dtype).astype(dtype.numpy))


def evaluate_expr(root: Expr, env: Mapping[Expr, Values]) -> Values:
    """Return the value of `root`; `env` has those of its leaves (all but literals)."""
    done: dict[Expr, Values] = {}
    for node in walk(root):
        found = env.get(node)
        if found is not None:
            done[node] = found
        elif isinstance(node, Const):
            done[node] = rounded(np.asarray(node.value), node.dtype)
        elif isinstance(node, Op):
            args = [done[arg] for arg in node.args]
            done[node] = _convert(node, args[0]) if node.op == "cast" else APPLY[node.op](*args)
        else:
            raise KeyError(f"no value for {node!r}")
    return done[root]


def fold(value: Expr) -> Expr:
    """Return an expression with every operation on literals carried out; -0 counts as 0."""
    done: dict[Expr, Expr] = {}
    for node in walk(value):
        args = tuple([done[a] for a in node.args])
        made = node
        if isinstance(node, Op):
            made = Op(node.op, args, node.dtype)
            if args and all(isinstance(a, Const) for a in args):
                with np.errstate(all="ignore"):
                    found = rounded(evaluate_expr(made, {}), node.dtype).item()
                made = Const(found + 0 if found == 0 else found, node.dtype)
        done[node] = made
    return done[value]


def _convert(node: Op, values: Values) -> Values:
    if node.dtype.is_bool:
        return np.not_equal(values, 0)
    return rounded(values, node.dtype)


def _pow(a: Values, b: Values) -> Values:
    if np.asarray(b).dtype.kind == "f":
        return np.asarray(np.power(a, b))
    whole = np.power(a, np.maximum(b, 0))
    fraction = np.where(a == 1, 1, np.where(a == -1, 1 - 2 * (b % 2), 0))
    return np.where(b < 0, fraction, whole).astype(whole.dtype)


def _sigmoid(x: Values) -> Values:
    return np.asarray(1 / (1 + np.exp(-x)))


def _erf(x: Values) -> Values:
    flat = np.ravel(x)
    result = np.empty(flat.shape, np.float64)
    for start in range(0, flat.size, _CHUNK):  # a list of all elements would take much memory
        part = flat[start : start + _CHUNK]
        result[start : start + _CHUNK] = [math.erf(value) for value in part.tolist()]
    return result.reshape(np.shape(x))


_ROUND_FACTORS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def _philox(key: Values, low: Values, high: Values, element: Values) -> Values:
    """Return random bits, as uint64 arithmetic on words of 32 bits.

    Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011.
    """
    word = np.uint64(0xFFFFFFFF)
    key, low, high, element = [
        np.asarray(a, np.int64).view(np.uint64)
        for a in np.broadcast_arrays(key, low, high, element)
    ]
    first = low + (element >> 2)
    top = high + (first < low)
    block = [first & word, first >> 32, top & word, top >> 32]
    keys = [key & word, key >> 32]
    for _ in range(10):
        products = [block[0] * _ROUND_FACTORS[0], block[2] * _ROUND_FACTORS[1]]
        (upper, under), (right, left) = [(p >> 32, p & word) for p in products]
        block = [right ^ block[1] ^ keys[0], left, upper ^ block[3] ^ keys[1], under]
        keys = [(k + step) & word for k, step in zip(keys, _KEY_STEPS, strict=True)]
    return np.choose((element & 3).astype(np.intp), block).astype(np.uint32)


def _ordinal(x: Values, real: type, whole: type) -> Values:
    """Return the number of each float among all in their order, of which a NaN is the last.

    Both zeros are 0.
    """
    bits: Values = np.asarray(x).astype(real).view(whole)
    ends = np.iinfo(whole)
    number = np.where(bits < 0, ends.min - bits, bits)
    return np.where(np.isnan(x), ends.max, number).astype(np.int64)


_APPLY: Mapping[str, Callable[..., Values]] = {
    "or": np.logical_or,
    "and": np.logical_and,
    "not": np.logical_not,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "bitor": np.bitwise_or,
    "bitxor": np.bitwise_xor,
    "bitand": np.bitwise_and,
    "bitnot": np.invert,
    "shl": np.left_shift,  # NumPy defines all counts
    "shr": np.right_shift,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floordiv": np.floor_divide,
    "mod": np.mod,
    "ceildiv": lambda a, b: -np.floor_divide(np.negative(a), b),
    "neg": np.negative,
    "min": np.minimum,
    "max": np.maximum,
    "pow": _pow,
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "trunc": np.trunc,
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "erf": _erf,
    "isnan": np.isnan,
    "ordinal32": lambda x: _ordinal(x, np.float32, np.int32),
    "ordinal64": lambda x: _ordinal(x, np.float64, np.int64),
    "fma": lambda a, b, c: a * b + c,
    "philox": _philox,
    "where": np.where,
}
APPLY = Column("NumPy function", __name__, _APPLY, needs=ops(lambda op: op.result != "cast"))
"""Every operation but the cast."""
