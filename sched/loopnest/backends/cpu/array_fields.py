"""Where the fields of an array of NumPy and of a tuple stand, for functions of C that read them.

The fields of an array are part of NumPy's binary interface, which extensions are compiled against,
and those of a tuple part of CPython's. Whether they are found there is tried once.

Source: NumPy, ``numpy/core/include/numpy/ndarraytypes.h`` (``PyArrayObject_fields``).
"""

from __future__ import annotations

import ctypes
import struct
import sys
from functools import cache
from typing import Any

import numpy as np

from loopnest.launch.array_address import field_address, interface_address

_HEAD, _TUPLE = object.__basicsize__, tuple.__basicsize__
_WORD = struct.calcsize("P")
_FIELDS = {
    name: _HEAD + place * _WORD
    for place, name in enumerate(("DATA", "RANK", "SHAPE", "STRIDES", "BASE", "DTYPE", "FLAGS"))
}
"""Where each field of an array stands, in bytes from its beginning."""

CONTIGUOUS, ALIGNED, WRITEABLE = 0x1, 0x100, 0x400
"""Flags of an array, as NumPy numbers them."""


def field_places() -> dict[str, int]:
    """Return where fields stand, in bytes: of an array, then of a tuple."""
    return {**_FIELDS, "TYPE": _HEAD - _WORD, "COUNT": _TUPLE - _WORD, "ITEMS": _TUPLE}


@cache
def reads_arrays() -> bool:
    """Whether the fields of arrays and tuples stand where C looks for them."""
    if sys.implementation.name != "cpython" or (_HEAD, _WORD) != (16, 8):
        return False
    whole = np.zeros((3, 4), np.float32)
    raw = np.zeros(64, np.uint8)
    fixed = np.zeros(3)
    fixed.flags.writeable = False
    trials = (whole, whole[1:, ::2], raw[1:41].view(np.float64), whole[2, 3:].reshape(()), fixed)
    items = _words(trials, _TUPLE - _WORD, 1 + len(trials))
    return items == [len(trials), *map(id, trials)] and all(map(_as_told, trials))


def _as_told(array: Any) -> bool:
    """Whether an array's fields say what NumPy tells of it."""
    fields = dict(zip(_FIELDS, _words(array, _HEAD, len(_FIELDS)), strict=True))
    told = array.flags
    flags = {CONTIGUOUS: told.c_contiguous, ALIGNED: told.aligned, WRITEABLE: told.writeable}
    extents = ctypes.c_int64 * array.ndim
    return (
        _words(array, _HEAD - _WORD, 1) == [id(np.ndarray)]
        and fields["DATA"] == field_address(array) == interface_address(array)
        and fields["RANK"] & 0xFFFFFFFF == array.ndim
        and [*extents.from_address(fields["SHAPE"])] == [*array.shape]
        and [*extents.from_address(fields["STRIDES"])] == [*array.strides]
        and fields["DTYPE"] == id(array.dtype)
        and all(bool(fields["FLAGS"] & bit) == is_set for bit, is_set in flags.items())
    )


def _words(value: object, place: int, count: int) -> list[int]:
    return [*(ctypes.c_uint64 * count).from_address(id(value) + place)]
