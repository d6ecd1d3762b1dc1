"""Pauses of the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """Keep the cyclic collector from running inside the block.

    Scheduling, lowering and proofs allocate many small objects that stay alive until they return; a
    collector that runs in between visits them again and again and frees nothing. For a chain of a
    thousand tensors that was a third of the time.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
