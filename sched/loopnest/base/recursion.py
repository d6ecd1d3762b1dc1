"""Room for functions that go as deep as the expressions and loops that a user has made."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from threading import Lock
from typing import ParamSpec, TypeVar

from loopnest.base.errors import LoweringError

P = ParamSpec("P")
R = TypeVar("R")

_DEPTH = 6000
"""Frames, which the usual stack of a thread (8 MiB) holds many times over."""

_lock = Lock()
_inside = 0
_before = 0


@contextmanager
def _room() -> Iterator[None]:
    """Raise Python's limit, which is one for all threads, until the last of them has left."""
    global _inside, _before
    with _lock:
        if _inside == 0:
            _before = sys.getrecursionlimit()
            sys.setrecursionlimit(max(_before, _DEPTH))
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                sys.setrecursionlimit(_before)


def deep(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function recurse deeper than Python's default, which 70 splits of an axis reach.

    Raises:
        LoweringError: even that is not enough.
    """

    @wraps(function)
    def with_room(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            with _room():
                return function(*args, **kwargs)
        except RecursionError as error:
            reason = "its loops or expressions are nested too deep to be followed"
            raise LoweringError(f"{function.__name__}(...)", reason, "split less") from error

    return with_room
