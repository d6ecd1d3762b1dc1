"""Bisect: which call of a schedule first made its kernel be what somebody asks about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy

from loopnest.base.errors import LoopnestError, LoweringError, NotSupported, kind_of
from loopnest.facade.kernel_class import Kernel, lower
from loopnest.scalar.origin import Origin
from loopnest.tensor.fusion import Fusion


def bisect(fusion: Fusion, predicate: Callable[[Kernel], object]) -> tuple[int, Origin]:
    """Return the first call of a schedule after which a predicate of its kernel holds.

    The kernels behind one call after the other are asked, the first of them first, so that the
    predicate may hold, fail and hold again. Where a call leaves no kernel, none is asked. The
    fusion is unchanged.

    Args:
        fusion: its math and its schedule.
        predicate: a function of a `Kernel`.

    Returns:
        The place of the call in ``fusion.trace``, and the call with its file and line.

    Raises:
        LoopnestError: it holds before the first call, or behind none; no fusion, no function, or a
            fusion that was copied or loaded, which has no earlier states.

    >>> import loopnest as ln
    >>> with ln.Fusion("rows") as f:
    ...     x = f.input("x", ("N", "D"), ln.float32)
    ...     y = f.output(ln.sum(ln.exp(x), axis=1), "y")
    >>> y = y.split(0, 4).parallelize({0: ln.ParallelType.grid_x})
    >>> t = f["T1"].compute_at(y, -1)
    >>> index, call = ln.bisect(f, lambda kernel: "T1: float32[1]" in str(kernel))
    >>> index, call.call
    (2, 'T1.compute_at(y, -1)')

    Source: ``git bisect``; here each state is asked, since kernels are made in milliseconds.
    """
    if not isinstance(fusion, Fusion):
        raise LoopnestError(
            f"bisect({fusion!r}, ...)",
            f"{kind_of(fusion)} is no Fusion",
            "use bisect(f, predicate)",
        )
    subject = f"bisect({fusion.name}, ...)"
    if not callable(predicate):
        raise LoopnestError(subject, f"{predicate!r} is no function", "pass a function of a Kernel")
    for number in range(-1, len(fusion.trace)):
        with _behind(fusion, number, subject) as state:
            try:
                kernel = lower(state)
            except (LoweringError, NotSupported):
                continue
        if predicate(kernel):
            break
    else:
        calls = len(fusion.trace)
        raise LoopnestError(
            subject,
            f"the predicate holds behind none of the {calls} calls",
            "ask of ln.lower(f) first",
        )
    if number < 0:
        raise LoopnestError(
            subject,
            "the predicate holds of the math, before the first call",
            "ask for what a call brings about",
        )
    return number, fusion.trace[number]


@contextmanager
def _behind(fusion: Fusion, number: int, subject: str) -> Iterator[Fusion]:
    """Let a fusion be what it was behind a call; give it, or a copy that is."""
    start, state = fusion.after_call(-1), fusion.after_call(number)
    if start is None or state is None:
        raise LoopnestError(
            subject,
            "this fusion was copied or loaded, and has no earlier states",
            "bisect the one that the calls were made on",
        )
    if not fusion.trace.ends_in_stage(number + 1):
        with fusion.as_of(state):
            yield fusion
        return
    with fusion.as_of(start):
        again = copy(fusion)
    exec(fusion.trace.script(number + 1), {"f": again})
    yield again
