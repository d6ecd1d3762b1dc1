"""Products as tensor cores compute them, by what was measured on an H200 (tools/results)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import loopnest as ln

Array = npt.NDArray[Any]

TF32 = 11
"""How many bits of a float32 factor are looked at; the others are cut off."""


def cut(values: Array, bits: int) -> Array:
    """Return float64 values with all but their first `bits` bits cut off."""
    fraction, exponent = np.frexp(values)
    kept: Array = np.ldexp(np.trunc(np.ldexp(fraction, bits)), exponent - bits)
    return kept


def tensor_core_product(row: ln.Instruction, a: Array, b: Array, bits: int = TF32) -> Array:
    """Return a @ b in the type of the row's result, an instruction after the other along k.

    Products are exact; all terms of an instruction are added together, each cut off at two bits
    below 2^-23 of the largest, and their sum is cut off to 24 bits.

    Args:
        row: a product of floats.
        a, b: matrices of the type of the row's factors.
        bits: how many bits of a float32 factor take part.
    """
    left, right = a.astype(np.float64), b.astype(np.float64)
    if row.operands["a"].dtype is ln.float32:
        left, right = cut(left, bits), cut(right, bits)
    depth = row.extents["k"]
    total = np.zeros((len(left), right.shape[1]))
    for k in range(0, left.shape[1], depth):
        products = left[:, k : k + depth, None] * right[None, k : k + depth]
        terms = np.concatenate([total[:, None], products], axis=1)
        _, largest = np.frexp(np.abs(terms).max(axis=1, keepdims=True))
        unit = np.ldexp(1.0, largest - 26)
        total = cut((np.trunc(terms / unit) * unit).sum(axis=1), 24)
    return total.astype(row.operands[row.result].dtype.numpy)
