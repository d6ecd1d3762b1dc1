"""A call of a compiled graph as one call of C: arguments looked at, addresses told, kernels run.

Where every step is a kernel of C and every result an array that the call makes, all that is left to
do for the arguments is to see that they are what the graph was compiled for, and where they lie.
C reads that from the arrays themselves: the fields of an array of NumPy are part of its binary
interface, which extensions are compiled against, and those of a tuple part of CPython's. Whether
they are found there is tried once; where they are not, or an argument is anything else than an
array as the graph takes it, Python looks at the arguments and says what is wrong.

Source: NumPy, ``numpy/core/include/numpy/ndarraytypes.h`` (``PyArrayObject_fields``).
"""

from __future__ import annotations

import ctypes
import math
import struct
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from loopnest.graph_kernels.array_address import field_address, interface_address
from loopnest.graph_kernels.launch_table import TABLE_SOURCE, LaunchTable
from loopnest.scalar.dtypes import DType

MISFIT = -2
"""The status of a call that did nothing: an argument is not as C takes it."""

_HEAD, _TUPLE = object.__basicsize__, tuple.__basicsize__
_WORD = struct.calcsize("P")
_FIELDS = {
    name: _HEAD + place * _WORD
    for place, name in enumerate(("DATA", "RANK", "SHAPE", "STRIDES", "BASE", "DTYPE", "FLAGS"))
}
"""Where each field of an array stands, in bytes from its beginning."""
_PLAIN = 0x1 | 0x100
"""The flags of an array that is C-contiguous, and whose elements are aligned."""


def _source() -> str:
    """Return C source of a function that takes two tuples: of arguments, and of new results."""
    places = "".join([f"#define {name} {place}\n" for name, place in _FIELDS.items()])
    return (
        f"{TABLE_SOURCE}{places}#define TYPE {_HEAD - _WORD}\n#define COUNT {_TUPLE - _WORD}\n"
        f"#define ITEMS {_TUPLE}\n#define PLAIN {_PLAIN}\n#define MISFIT ({MISFIT})\n"
        "#define AT(kind, object, place) (*(kind const *)((object) + (place)))\n"
        "typedef struct {\n  const loopnest_table *table;\n  int64_t inputs, results;\n"
        "  const char *type;\n  const char *const *dtypes;\n  const int64_t *ranks, *shapes;\n"
        "  const uint64_t *bytes;\n  uint64_t begin, end;\n} loopnest_host_call;\n"
        "int loopnest_call(const loopnest_host_call *own, const char *given, const char *made) {\n"
        "  const char *const *x = (const char *const *)(given + ITEMS);\n"
        "  const char *const *y = (const char *const *)(made + ITEMS);\n"
        "  const int64_t *extent = own->shapes;\n  uint64_t *p = (uint64_t *)own->table->p;\n"
        "  if (AT(int64_t, given, COUNT) != own->inputs) return MISFIT;\n"
        "  for (int64_t i = 0; i < own->inputs; i++) {\n"
        "    if (AT(char *, x[i], TYPE) != own->type) return MISFIT;\n"
        "    if (AT(char *, x[i], DTYPE) != own->dtypes[i]) return MISFIT;\n"
        "    if ((AT(int, x[i], FLAGS) & PLAIN) != PLAIN) return MISFIT;\n"
        "    if (AT(int, x[i], RANK) != own->ranks[i]) return MISFIT;\n"
        "    const int64_t *shape = AT(int64_t *, x[i], SHAPE);\n"
        "    for (int64_t axis = 0; axis < own->ranks[i]; axis++)\n"
        "      if (shape[axis] != *extent++) return MISFIT;\n"
        "    uint64_t place = AT(uint64_t, x[i], DATA);\n"
        "    if (own->begin < place + own->bytes[i] && place < own->end) return MISFIT;\n"
        "    p[i] = place;\n  }\n"
        "  for (int64_t i = 0; i < own->results; i++)\n"
        "    p[own->inputs + i] = AT(uint64_t, y[i], DATA);\n"
        "  return loopnest_run_table(own->table);\n}\n"
    )


@cache
def _function() -> Any:
    from loopnest.backends.cpu.c_compiler import compile_c

    library = compile_c(_source(), optimize=1)
    types = [ctypes.c_void_p, ctypes.py_object, ctypes.py_object]
    return library.function("loopnest_call", types, ctypes.c_int)


@cache
def reads_arrays() -> bool:
    """Whether the fields of arrays and tuples stand where C looks for them."""
    if sys.implementation.name != "cpython" or (_HEAD, _WORD) != (16, 8):
        return False
    whole = np.zeros((3, 4), np.float32)
    raw = np.zeros(64, np.uint8)
    trials = (whole, whole[1:, ::2], raw[1:41].view(np.float64), whole[2, 3:].reshape(()))
    items = _words(trials, _TUPLE - _WORD, 1 + len(trials))
    return items == [len(trials), *map(id, trials)] and all(map(_as_told, trials))


def _as_told(array: Any) -> bool:
    """Whether an array's fields say what NumPy tells of it."""
    fields = dict(zip(_FIELDS, _words(array, _HEAD, len(_FIELDS)), strict=True))
    flags = fields["FLAGS"] & 0xFFFFFFFF
    plain = array.flags.c_contiguous and array.flags.aligned
    return (
        _words(array, _HEAD - _WORD, 1) == [id(np.ndarray)]
        and fields["DATA"] == field_address(array) == interface_address(array)
        and fields["RANK"] & 0xFFFFFFFF == array.ndim
        and [*(ctypes.c_int64 * array.ndim).from_address(fields["SHAPE"])] == [*array.shape]
        and fields["DTYPE"] == id(array.dtype)
        and (flags & _PLAIN == _PLAIN) == plain
    )


def _words(value: object, place: int, count: int) -> list[int]:
    return [*(ctypes.c_uint64 * count).from_address(id(value) + place)]


class _Call(ctypes.Structure):
    """What the C function is given: ``loopnest_host_call`` of its source."""

    _fields_ = (
        ("table", ctypes.c_void_p),
        ("inputs", ctypes.c_int64),
        ("results", ctypes.c_int64),
        *[(name, ctypes.c_void_p) for name in ("type", "dtypes", "ranks", "shapes", "bytes")],
        ("begin", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
    )


class HostCall:
    """The launches of a table, called with the arrays of a user.

    Args:
        table: the launches; the first pointers are those of inputs, then of results.
        shapes: of each input.
        dtypes: of each input.
        results: their number.
        variables: from where to where the memory lies that no argument may share.
    """

    def __init__(
        self,
        table: LaunchTable,
        shapes: Sequence[tuple[int, ...]],
        dtypes: Sequence[DType],
        results: int,
        variables: tuple[int, int],
    ) -> None:
        sizes = [math.prod(s) * d.numpy.itemsize for s, d in zip(shapes, dtypes, strict=True)]
        kinds = [dtype.numpy for dtype in dtypes]
        self._kept = (
            _numbers([id(kind) for kind in kinds]),
            _numbers([len(shape) for shape in shapes]),
            _numbers([extent for shape in shapes for extent in shape]),
            _numbers(sizes),
        )
        self._owners = (table, kinds)  # what the addresses are of
        places = map(ctypes.addressof, self._kept)
        own = (table.address, len(shapes), results, id(np.ndarray), *places, *variables)
        self._call = _Call(*own)
        self._argument = ctypes.c_void_p(ctypes.addressof(self._call))
        self._run = _function()

    def run(self, arrays: tuple[Any, ...], made: tuple[Any, ...]) -> int:
        """Run the launches; return the status of the first to fail, or `MISFIT`.

        Args:
            arrays: the arguments.
            made: new arrays for the results.
        """
        status: int = self._run(self._argument, arrays, made)
        return status


def _numbers(values: Sequence[int]) -> Any:
    return (ctypes.c_uint64 * len(values))(*values)
