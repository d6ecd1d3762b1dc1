"""New arrays for results and workspace: where they begin, and what makes many of one shape."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from loopnest.launch.array_address import address_of
from loopnest.launch.target_interface import Array

SMALL_BYTES = 4096
"""Below, it costs more to find a place than kernels gain by it."""
PAGE = 4096
PLACE = PAGE // 2
"""Where in a page of memory a large array begins: at a cache line, and far from where NumPy's own
large arrays begin (16 bytes into one). A store holds up the loads behind it whose addresses agree
with its own in the low 12 bits, which the next elements of an input would do."""


def array_maker(
    shape: tuple[int, ...], dtype: np.dtype[Any], is_zero: bool = False
) -> Callable[[], Array]:
    """Return what makes a new array at each call, of zeros or of undefined elements."""
    size = math.prod(shape) * dtype.itemsize
    if size < SMALL_BYTES:
        return partial(np.zeros if is_zero else np.empty, shape, dtype)
    empty, array, byte = np.empty, np.ndarray, np.dtype(np.uint8)

    def make() -> Array:
        raw = empty(size + PAGE, byte)
        found: Array = array(shape, dtype, raw, (PLACE - address_of(raw)) % PAGE)
        if is_zero:
            found.fill(0)
        return found

    return make
