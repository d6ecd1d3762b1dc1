"""A call of C kernels as one call of C: arguments looked at, addresses told, kernels run.

All that is left to do for the arguments of a call that is like an earlier one is to see that they
are as that one's were, and where they lie. C reads that from the arrays themselves
(`array_fields`). Where an argument is anything else than an array as the call takes it, nothing
runs, and Python looks at the arguments and says what is wrong.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from loopnest.backends.cpu.array_fields import ALIGNED, CONTIGUOUS, WRITEABLE
from loopnest.backends.cpu.launch_table import LaunchTable, calls_library
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
