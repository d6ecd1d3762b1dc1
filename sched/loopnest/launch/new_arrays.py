"""New arrays for results and workspace: where they begin, and what makes many of one shape."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

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


# Where the elements of an array of NumPy lie, for calls that are short.
#
# ``array.ctypes`` and ``__array_interface__`` build objects for a number. In CPython an array's
# first field behind the object's head is the pointer to its elements (``PyArrayObject_fields``),
# and it is part of NumPy's binary interface, which extensions are compiled against; so it is read
# from there. Whether it is found there is tried once; where it is not, the documented way counts.
#
# Source: NumPy, ``numpy/core/include/numpy/ndarraytypes.h``.


def interface_address(array: Any) -> int:
    """Return where the first element of an array lies, as NumPy tells it."""
    found: int = array.__array_interface__["data"][0]
    return found


_HEAD = object.__basicsize__
_pointer_at = ctypes.c_size_t.from_address


def field_address(array: Any) -> int:
    """Return where the first element of an array lies, as its field says."""
    return _pointer_at(id(array) + _HEAD).value


def _chosen() -> Callable[[Any], int]:
    """Return the fastest way that gives what NumPy tells."""
    if sys.implementation.name != "cpython":
        return interface_address
    whole = np.zeros((3, 4), np.float32)
    trials = (whole, whole[1:, ::2], whole[2, 3:].reshape(()))
    same = all(field_address(x) == interface_address(x) for x in trials)
    return field_address if same else interface_address


address_of: Callable[[Any], int] = _chosen()
"""Return where the first element of an array of NumPy lies."""
