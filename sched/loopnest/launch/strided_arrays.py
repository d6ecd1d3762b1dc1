"""Arrays of other strides than C order has: the strides, and the memory that they span."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from loopnest.base.errors import LaunchError
from loopnest.launch.target_interface import Array


def element_strides(array: Any, subject: str) -> tuple[int, ...]:
    """Return the strides of an array of the host in elements.

    Raises:
        LaunchError: elements do not begin at multiples of their size.
    """
    plain = np.asarray(array)
    width = plain.dtype.itemsize
    if not plain.flags.aligned or any(step % width for step in plain.strides):
        raise LaunchError(
            subject,
            f"an array with the strides {plain.strides} in bytes has elements of {width} bytes "
            "that are not aligned",
            "copy it",
        )
    return tuple([step // width for step in plain.strides])


def span(array: Array) -> Array:
    """Return the memory from the first to the last element of an array, as one axis.

    Its strides are not negative, so that the first element in C order is the first in memory.
    """
    if not array.size:
        return np.empty(0, array.dtype)
    width = array.dtype.itemsize
    steps = zip(array.shape, array.strides, strict=True)
    reach = sum([(extent - 1) * step for extent, step in steps if extent > 1])
    return _viewed(array, (reach // width + 1,), (width,))


def spread(memory: Array, shape: Sequence[int], strides: Sequence[int]) -> Array:
    """Return the array of a shape, at strides in elements, whose memory `span` returned."""
    steps = tuple([step * memory.dtype.itemsize for step in strides])
    return _viewed(memory, tuple(shape), steps) if memory.size else memory.reshape(tuple(shape))


def copied(array: Array) -> Array:
    """Return a copy of an array, at the same strides."""
    if array.flags.c_contiguous:
        return array.copy()
    return arranged(array, [step // array.itemsize for step in array.strides])


def _viewed(array: Array, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """Return the memory of `array` at other strides, in bytes."""
    words = array.view(f"u{array.dtype.itemsize}")  # NumPy's function knows no other types
    return as_strided(words, shape, strides).view(array.dtype)


def arranged(array: Array, strides: Sequence[int]) -> Array:
    """Return an array with the elements of `array` at `strides`, given in elements.

    Along an axis of stride 0 it has the first of them everywhere.
    """
    width = array.dtype.itemsize
    pairs = zip(array.shape, strides, strict=True)
    reach = sum([(extent - 1) * step for extent, step in pairs if extent > 1])
    memory = np.zeros(reach + 1 if array.size else 0, array.dtype)
    result = _viewed(memory, array.shape, tuple([step * width for step in strides]))
    first = tuple([slice(0, 1) if not step else slice(None) for step in strides])
    result[...] = array[first]
    return result
