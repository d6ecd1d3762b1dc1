"""How exactly the targets compute: the formats, and the error of each operation, in one table.

Every error bound of this package rests on what stands here, and on nothing else. An error in ulps
is in units of the last place of the exact result, which are up to 2 unit roundoffs of it.

Sources: C: `backends/cpu/loopnest_math.h`, as tools/measure_ulps.py finds it for one value and for
vectors, with FMA and without (the figure here is above all of these; tests/backends/cpu/
test_c_math.py holds the functions to it). Sine, cosine, tangent and power of float64 are those of
the C library: within 4 ulp. CUDA: "CUDA C++ Programming Guide", chapter Mathematical
Functions, tables 17, 18 (standard) and 20, 21 (--use_fast_math); these count from the correctly
rounded result, hence half an ulp more here. NumPy, which the interpreter and the oracle call:
within 4 ulp (numpy/_core/tests/test_umath_accuracy.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from loopnest.scalar.dtypes import DType
from loopnest.scalar.op_table import Column, ops


@dataclass(frozen=True, slots=True)
class Format:
    """A float format, rounded to nearest.

    Args:
        unit: the unit roundoff: the largest relative error of a rounding without underflow.
        least: the smallest positive number, subnormal; a rounding that underflows errs by half.
        normal: the smallest positive number that is not subnormal.
        largest: the largest finite number.
    """

    unit: float
    least: float
    normal: float
    largest: float


def _format(digits: int, exponent: int) -> Format:
    """Return the format of `digits` binary digits whose largest exponent is `exponent`."""
    normal = math.ldexp(1.0, 1 - exponent)
    largest = math.ldexp(2.0 - math.ldexp(1.0, 1 - digits), exponent)
    return Format(math.ldexp(1.0, -digits), math.ldexp(normal, 1 - digits), normal, largest)


FORMATS: Mapping[str, Format] = {
    "float8_e4m3fn": Format(2.0**-4, 2.0**-9, 2.0**-6, 448.0),  # the last exponent has numbers too
    "float8_e5m2": _format(3, 15),
    "float16": _format(11, 15),
    "bfloat16": _format(8, 127),
    "float32": _format(24, 127),
    "float64": _format(53, 1023),
}


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The rules that a computation keeps to.

    Args:
        fast_math: those of a kernel that was compiled with ``fast_math=True``.
        reference: those of a reference in NumPy instead of a kernel's: it computes in a type that
            is at least as precise, by a formula of its own (so no result counts as exact), and it
            may leave out the rounding to 16-bit types.
        target: whose functions count, by its name; "": those of any target.
    """

    fast_math: bool = False
    reference: bool = False
    target: str = ""


STANDARD = Arithmetic()

TARGET_NAMES = ("cuda", "c", "interpret")
"""Whose functions may be asked for."""

EXECUTING = ("", "cuda", "c")
"""Targets that execute instructions of tiles, by their rows; others execute all their bodies."""


def unit(dtype: DType) -> float:
    """Return the unit roundoff of an operation in `dtype`, and of the oracle's in float64."""
    return FORMATS[dtype.name].unit + FORMATS["float64"].unit


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The largest error of a function at x.

    Args:
        ulps: the error in units of the last place of the exact result.
        slope: what comes to `ulps` for each unit of the magnitude of x.
        absolute: what comes to that.
        relative: what comes to that, relative to the exact result.
        within: the largest magnitude of x for which this is promised.
    """

    ulps: float
    slope: float = 0.0
    absolute: float = 0.0
    relative: float = 0.0
    within: float = math.inf


OF_FLOATS = ops(
    lambda op: "f" in op.kinds and op.result not in ("bool", "int64"), but=("floordiv",)
)
"""The operations that take and give floats. (Lowering alone divides by floor, and that indices.)"""

ROUNDED = frozenset({"add", "sub", "mul", "div", "sqrt", "reciprocal", "fma", "mod"})
"""What every target rounds to nearest, once (mod: an exact remainder, then an addition where the
signs differ). It may leave out the rounding of a product that is then added (contraction)."""

SELECTING = frozenset(
    {"neg", "abs", "min", "max", "floor", "ceil", "round", "trunc", "where", "cast"}
)
"""What adds no error of its own, but for a cast to a narrower type."""

_FUNCTION = Accuracy(4)

_ACCURACY: Mapping[str, Accuracy] = {
    **dict.fromkeys(("exp", "exp2", "log", "log2", "log1p", "tanh", "erf"), _FUNCTION),
    **dict.fromkeys(("sin", "cos", "rsqrt"), _FUNCTION),
    "tan": Accuracy(5),
    "pow": Accuracy(4.5),
    # 1 / (1 + exp(-x)): 4 ulp of exp, two roundings. Where exp overflows the result is 0.
    "sigmoid": Accuracy(5, absolute=1.0 / FORMATS["float32"].largest),
}
ACCURACY = Column("accuracy", __name__, _ACCURACY, needs=OF_FLOATS - ROUNDED - SELECTING)
"""The error of what is neither in `ROUNDED` nor in `SELECTING`."""

_C: Mapping[str, tuple[Accuracy, Accuracy]] = {
    **dict.fromkeys(("log", "log2", "log1p", "tanh"), (Accuracy(1), Accuracy(1))),
    **dict.fromkeys(("exp", "exp2", "erf"), (Accuracy(1.5), Accuracy(1.5))),
    "rsqrt": (Accuracy(1.5), Accuracy(1.5)),  # a square root and a quotient, each rounded once
    "sigmoid": (Accuracy(2), Accuracy(2)),
    "sin": (Accuracy(3), _FUNCTION),
    "cos": (Accuracy(3), _FUNCTION),
    "tan": (Accuracy(5), _FUNCTION),
    "pow": (Accuracy(1), Accuracy(4.5)),
}
C = Column("accuracy in C", __name__, _C, needs=frozenset(ACCURACY))
"""The error of functions on target "c": of float32, and of float64."""

_FAST_RANGE = 2.0**126  # divisors beyond give 0

_FAST: Mapping[str, Accuracy] = {
    "div": Accuracy(2.5),
    "reciprocal": Accuracy(1.5),
    "sqrt": Accuracy(1.5),
    "rsqrt": Accuracy(4),
    "exp": Accuracy(4, slope=1.173),
    "exp2": Accuracy(4),
    "log": Accuracy(4, absolute=2.0**-21.41),
    "log2": Accuracy(4, absolute=2.0**-22),
    "log1p": Accuracy(4),
    "sin": Accuracy(4, absolute=2.0**-21.41, within=math.pi),
    "cos": Accuracy(4, absolute=2.0**-21.19, within=math.pi),
    # sin(x) / cos(x): `operation_ranges.tangent_error` adds the errors of sine and cosine.
    "tan": Accuracy(5, within=math.pi),
    "tanh": Accuracy(4, relative=2.0**-11),
    "erf": Accuracy(7),  # C: a rational function; CUDA has no other one
    "sigmoid": Accuracy(8, slope=1.173, absolute=4 / _FAST_RANGE),
    # exp2(y * log2(x)): `operation_ranges.power_error` adds those of product and logarithm.
    "pow": Accuracy(4.5),
}
FAST = Column(
    "accuracy with fast math",
    __name__,
    _FAST,
    needs=frozenset(ACCURACY) | ops(lambda op: op.result == "float") | {"div"},
)
"""The same with fast math, which replaces functions of float32, and divides by reciprocals."""

_FAST_OF_FLOAT64 = ("div", "reciprocal", "sqrt")


def accuracy(op: str, dtype: DType, arithmetic: Arithmetic) -> Accuracy | None:
    """Return the error of a function; None for what is rounded to nearest."""
    if arithmetic.fast_math and (dtype.size == 4 or op in _FAST_OF_FLOAT64):
        found = FAST.get(op)
        if found is not None:
            return found
    if op in ROUNDED:
        return None
    if arithmetic.target == "c" and not arithmetic.fast_math and not arithmetic.reference:
        return C[op][dtype.size == 8]
    found = ACCURACY[op]
    if op == "sigmoid" and dtype.size == 8:
        return Accuracy(found.ulps, absolute=1.0 / FORMATS["float64"].largest)
    return found
