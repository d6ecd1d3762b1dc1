"""Where the elements of an array of NumPy lie, for calls that are short.

``array.ctypes`` and ``__array_interface__`` build objects for a number. In CPython an array's first
field behind the object's head is the pointer to its elements (``PyArrayObject_fields``), and it is
part of NumPy's binary interface, which extensions are compiled against; so it is read from there.
Whether it is found there is tried once; where it is not, the documented way counts.

Source: NumPy, ``numpy/core/include/numpy/ndarraytypes.h``.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import numpy as np


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
