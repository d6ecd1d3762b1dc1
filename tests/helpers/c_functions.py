"""Evaluate functions of the C header for each element of arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from loopnest.backends.cpu.c_compiler import Library, compile_c

Array = np.ndarray[Any, Any]
C_TYPES = {
    "float32": "float",
    "float64": "double",
    "int32": "int32_t",
    "int64": "int64_t",
    "uint16": "uint16_t",
    "longdouble": "long double",
}


def loop(name: str, result: str, arguments: Sequence[str], expression: str) -> str:
    """Write a C function `name` that evaluates `expression` of x (and y) for each element."""
    pointers = "".join(
        f", const {C_TYPES[a]} *restrict p{v}" for a, v in zip(arguments, "xy", strict=False)
    )
    values = " ".join(f"{C_TYPES[a]} {v} = p{v}[i];" for a, v in zip(arguments, "xy", strict=False))
    return (
        f"void {name}({C_TYPES[result]} *restrict out{pointers}, long n) {{\n"
        f"  for (long i = 0; i < n; i++) {{ {values} out[i] = {expression}; }}\n}}\n"
    )


def call(library: Library, name: str, result: str, *arguments: Array) -> Array:
    out = np.empty(len(arguments[0]), np.dtype(result))
    arrays = [np.ascontiguousarray(a) for a in arguments]
    types = [ctypes.c_void_p] * (len(arrays) + 1)
    function = library.function(name, [*types, ctypes.c_long])
    function(out.ctypes.data, *[a.ctypes.data for a in arrays], out.size)
    return out


def suffix(name: str, dtype: str) -> str:
    return f"ln_{name}f" if dtype == "float32" else f"ln_{name}"


def one_expression(expression: str, result: str, *arguments: Array) -> Array:
    source = '#include "loopnest_math.h"\n' + loop(
        "f", result, [a.dtype.name for a in arguments], expression
    )
    return call(compile_c(source, openmp=False), "f", result, *arguments)


def all_exponents(dtype: str, mantissas: int, seed: int = 0) -> Array:
    """Return values of either sign in every binade, subnormal numbers, inf and NaN among them."""
    rng = np.random.default_rng(seed)
    bits, width, word = (23, 8, np.uint32) if dtype == "float32" else (52, 11, np.uint64)
    parts: Array = rng.integers(0, 1 << bits, (mantissas, 1), word)
    parts[:3, 0] = 0, 1, (1 << bits) - 1
    upper: Array = (np.arange(2 << width) << bits).astype(word)
    result: Array = (parts | upper).ravel().view(dtype)
    return result
