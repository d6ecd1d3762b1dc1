"""Forks beside OpenMP: its threads end before a fork; a child that lost them runs without.

A child has one thread, but the memory of all: libgomp would wait for ever for the others, which its
records still show. So the team of the calling thread is let go before a fork; parent and child
start a new one when they need it. Where that could not be done, as in a fork that Python does not
see, every launch of the child runs on one thread.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loopnest.base.errors import CompileError

if TYPE_CHECKING:
    from loopnest.backends.cpu.c_compiler import Library

_SOFT = 1  # omp_pause_soft: what the user has set stays
Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Runtime:
    """The OpenMP runtime that a library is linked with: functions of the calling thread.

    Args:
        read: returns how many threads the next team has at most.
        write: sets it.
        pause: ends the team, and returns 0 if that was possible; None before OpenMP 5.0.
    """

    read: Function
    write: Function
    pause: Function | None


_runtimes: dict[int, Runtime] = {}
home = ctypes.c_int64(os.getpid())
"""The process whose threads the runtimes keep records of."""

_forking = threading.local()


def runtime_of(library: Library) -> Runtime | None:
    """Return the runtime of a library, made fit for forks; None where it has no OpenMP."""
    read = _find(library, "omp_get_max_threads", ())
    write = _find(library, "omp_set_num_threads", (ctypes.c_int,), None)
    if read is None or write is None:
        return None
    runtime = Runtime(read, write, _find(library, "omp_pause_resource_all", (ctypes.c_int,)))
    if _find(library, "kmp_get_blocktime", ()) is not None:
        return runtime  # LLVM's and Intel's start anew in a child by themselves
    address = ctypes.cast(write, ctypes.c_void_p).value  # type: ignore[arg-type]
    return _runtimes.setdefault(address or 0, runtime)


def _find(
    library: Library, name: str, argtypes: tuple[Any, ...], restype: Any = ctypes.c_int
) -> Function | None:
    with suppress(CompileError):
        return library.function(name, argtypes, restype)
    return None


def threads_are_lost() -> bool:
    """Tell whether this process was forked while threads were there that it does not have."""
    return os.getpid() != home.value


def _let_go() -> None:
    if threads_are_lost():  # to pause them would be to wait for them
        _forking.alone = False
        return
    paused = [r.pause is not None and r.pause(_SOFT) == 0 for r in list(_runtimes.values())]
    _forking.alone = all(paused)


def _settle() -> None:
    if _forking.alone:
        home.value = os.getpid()


os.register_at_fork(before=_let_go, after_in_child=_settle)
