"""A call of C kernels as one call of C: arguments looked at, addresses told, kernels run.

All that is left to do for the arguments of a call that is like an earlier one is to see that they
are as that one's were, and where they lie. C reads that from the arrays themselves
(`field_places`). Where an argument is anything else than an array as the call takes it, nothing
runs, and Python looks at the arguments and says what is wrong.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from loopnest.backends.cpu import c_compiler, openmp
from loopnest.launch.new_arrays import field_address, interface_address
from loopnest.launch.target_interface import MISFIT, ArrayForm

Packer: TypeAlias = "Callable[[Sequence[Any]], bytes]"
"""Makes words of the values of scalars, one of each."""


@cache
def _functions() -> tuple[Any, Any]:
    """Return what calls without scalars, and what calls with them."""
    library = calls_library()
    types: list[Any] = [ctypes.c_void_p, ctypes.py_object, ctypes.py_object]
    return (
        library.function("loopnest_call", types, ctypes.c_int),
        library.function("loopnest_scalar_call", [*types, ctypes.c_char_p], ctypes.c_int),
    )


class _ArrayRecord(ctypes.Structure):
    """What C knows of an argument: ``array_form`` of its source."""

    _fields_ = (
        ("dtype", ctypes.c_void_p),
        ("rank", ctypes.c_int64),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("flags", ctypes.c_int),
        ("is_written", ctypes.c_int),
    )


class _Call(ctypes.Structure):
    """What the C function is given: ``host_call`` of its source."""

    _fields_ = (
        ("table", ctypes.c_void_p),
        ("words", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("type", ctypes.c_void_p),
        ("forms", ctypes.c_void_p),
        *[(name, ctypes.c_int64) for name in ("inputs", "results", "scalars")],
        *[(name, ctypes.c_uint64) for name in ("begin", "end")],
        ("is_out", ctypes.c_int64),
    )


class HostCall:
    """The launches of a table, called with arrays of NumPy.

    Args:
        table: the launches; the first words are where inputs lie, then results, then scalars.
        inputs: the inputs, in order.
        results: the arrays that a call makes or is given for results, in order.
        scalars: their number.
        pack: makes words of them.
        apart: from where to where memory lies that no input may share.
    """

    def __init__(
        self,
        table: LaunchTable,
        inputs: Sequence[ArrayForm],
        results: Sequence[ArrayForm],
        scalars: int = 0,
        pack: Packer = bytes,
        apart: tuple[int, int] = (0, 0),
    ) -> None:
        forms = [*inputs, *results]
        self._numbers = [_numbers(form.shape) for form in forms]
        self._numbers += [_numbers(form.strides or ()) for form in forms]
        self._dtypes = [form.dtype for form in forms]  # alive while C knows where they are
        self._forms = (_ArrayRecord * len(forms))(
            *[self._record(n, form) for n, form in enumerate(forms)]
        )
        self._table, self._pack = table, pack
        self.words: ctypes.Array[Any] | None = None
        """What is the same in all calls."""
        self._calls = [
            _Call(
                table.address, None, 0, id(np.ndarray), ctypes.addressof(self._forms), len(inputs),
                len(results), scalars, *apart, is_out,
            )
            for is_out in (False, True)
        ]  # fmt: skip
        self._making, self._given = [ctypes.c_void_p(ctypes.addressof(c)) for c in self._calls]
        self._run, self._run_scalars = _functions()

    def _record(self, number: int, form: ArrayForm) -> _ArrayRecord:
        count = len(self._numbers) // 2
        shape, strides = self._numbers[number], self._numbers[count + number]
        flags = ALIGNED | (CONTIGUOUS if form.strides is None else 0)
        flags |= WRITEABLE if form.is_written else 0
        steps = None if form.strides is None else ctypes.addressof(strides)
        return _ArrayRecord(
            id(form.dtype), len(form.shape), ctypes.addressof(shape), steps, form.bytes, flags,
            form.is_written,
        )  # fmt: skip

    def attach(self, words: ctypes.Array[Any]) -> None:
        """Let the following calls find in `words` what is the same in all of them."""
        self.words = words
        for call in self._calls:
            call.words, call.count = ctypes.addressof(words), len(words)

    def learn(self, inputs: Sequence[Any]) -> None:
        """Take the type objects of these inputs for those that inputs have.

        Two may say the same: an array that was unpickled has one of its own.
        """
        for number, array in enumerate(inputs):
            dtype = array.dtype
            self._forms[number].dtype, self._dtypes[number] = id(dtype), dtype

    def run(
        self,
        arrays: tuple[Any, ...],
        made: tuple[Any, ...],
        is_out: bool = False,
        scalars: Sequence[Any] = (),
    ) -> int:
        """Run the launches; return the status of the first to fail, or `MISFIT`.

        Args:
            arrays: the inputs.
            made: arrays for the results.
            is_out: whether those are the caller's, and must be looked at.
            scalars: their values; one that its type does not hold is a `MISFIT`.
        """
        call = self._given if is_out else self._making
        status: int
        if not scalars:
            status = self._run(call, arrays, made)
            return status
        try:
            words = self._pack(scalars)
        except (OverflowError, struct.error):
            return MISFIT
        status = self._run_scalars(call, arrays, made, words)
        return status


def _numbers(values: Sequence[int]) -> Any:
    return (ctypes.c_int64 * len(values))(*values)


# Launches of C kernels as one call: a table of their entries and of the words that they take.
#
# A word has 64 bits: an address, a size, or a scalar at its beginning.


Words: TypeAlias = "ctypes.Array[Any] | bytes"
"""The words of a call."""


def words_of(numbers: Sequence[int]) -> ctypes.Array[Any]:
    """Return addresses and sizes as a table takes them."""
    return (ctypes.c_uint64 * len(numbers))(*numbers)


class TableEntry(NamedTuple):
    """A launch of a table.

    Args:
        entry: the function of C, as `c_printer.print_entry` prints it.
        slots: of each parameter, the number of its word.
    """

    entry: Any
    slots: Sequence[int]


@cache
def calls_library() -> c_compiler.Library:
    """Return the functions that run tables."""
    places = "".join([f"#define {name} {place}\n" for name, place in field_places().items()])
    text = Path(__file__).with_name("loopnest_calls.c").read_text(encoding="utf-8")
    return c_compiler.compile_c(f"{places}#define MISFIT ({MISFIT})\n{text}", openmp=False)


@cache
def _runner() -> Any:
    types = [ctypes.c_void_p, ctypes.c_void_p]
    return calls_library().function("loopnest_run_table", types, ctypes.c_int)


class _Table(ctypes.Structure):
    """What the C function is given: ``launch_table`` of its source."""

    _fields_ = (
        ("count", ctypes.c_int64),
        *[(name, ctypes.c_void_p) for name in ("entries", "widths", "slots", "times")],
        ("threads", ctypes.c_int),
        *[(name, ctypes.c_void_p) for name in ("most", "limit", "home")],
    )


class LaunchTable:
    """Launches that follow each other.

    Args:
        launches: in order.
        threads: how many may run one, None for OpenMP's choice.
        runtime: the OpenMP runtime of the entries, None where they have none.
    """

    def __init__(
        self,
        launches: Sequence[TableEntry],
        threads: int | None = None,
        runtime: openmp.Runtime | None = None,
    ) -> None:
        count = len(launches)
        entries = [launch.entry for launch in launches]
        self._times = (ctypes.c_int64 * count)()
        self._arrays = (
            (ctypes.c_void_p * count)(*map(_address, entries)),
            _ints([len(launch.slots) for launch in launches]),
            _ints([slot for launch in launches for slot in launch.slots]),
        )
        self._kept = (entries, runtime)  # a function lives as long as its library does
        own = (_address(runtime.read), _address(runtime.write)) if runtime else (None, None)
        home = ctypes.addressof(openmp.home)
        places = map(ctypes.addressof, self._arrays)
        self._table = _Table(count, *places, None, threads or 0, *own, home)
        self.address = ctypes.addressof(self._table)
        """Where the table stands, for a function of C."""
        self._argument = ctypes.c_void_p(self.address)
        self._run = _runner()

    def run(self, words: Words) -> int:
        """Run all launches; return the status of the first to fail."""
        status: int = self._run(self._argument, words)
        return status

    def timed(self, words: Words) -> tuple[int, list[float]]:
        """Run all launches; return the status, and the seconds of each."""
        self._table.times = ctypes.addressof(self._times)
        try:
            return self.run(words), [nanoseconds * 1e-9 for nanoseconds in self._times]
        finally:
            self._table.times = None


def _address(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value


def _ints(numbers: Sequence[int]) -> Any:
    return (ctypes.c_int * len(numbers))(*numbers)


# Where the fields of an array of NumPy and of a tuple stand, for functions of C that read them.
#
# The fields of an array are part of NumPy's binary interface, which extensions are compiled
# against, and those of a tuple part of CPython's. Whether they are found there is tried once.
#
# Source: NumPy, ``numpy/core/include/numpy/ndarraytypes.h`` (``PyArrayObject_fields``).


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
