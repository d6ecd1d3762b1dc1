"""The process that times one candidate of a tuning: ``python -m`` and the name of this module.

A candidate that crashes ends this process alone, and one that hangs is ended with it. Messages are
pickles of the tuner's own, by standard input and output.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Callable
from typing import Any

BATCH_SECONDS = 0.004
MOST_CALLS = 2000
BATCHES = 5


def main() -> None:
    """Serve one candidate until the tuner closes the pipe."""
    source, results = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a compiler prints is no message
    call: Callable[[], Any] | None = None
    count = 1
    while True:
        try:
            message = pickle.load(source)
        except EOFError:
            return
        try:
            if call is None:
                call, count = _started(*message)
                answer: tuple[str, Any] = ("ready", None)
            else:
                answer = ("times", [_seconds(call, count) for _ in range(BATCHES)])
        except Exception as error:
            answer = ("failed", f"{type(error).__name__}: {error}")
        pickle.dump(answer, results)
        results.flush()


def _started(kernel: Any, target: str, path: str) -> tuple[Callable[[], Any], int]:
    """Compile a kernel; return its call on the arguments of a file, and how often to call it."""
    from loopnest.facade.kernel_class import compile

    with open(path, "rb") as file:
        arrays, keywords = pickle.load(file)
    function = compile(kernel, target=target)
    if target == "cuda":  # on arrays of the GPU, timed there
        return lambda: function.bench(*arrays, **keywords).seconds, 0
    results = function(*arrays, **keywords)
    inplace = any(output.inplace for output in kernel.program.outputs)
    out = None if inplace else results

    def call() -> Any:
        return function(*arrays, out=out, **keywords)

    once = min([_seconds(call, 1) for _ in range(3)])
    return call, max(1, min(MOST_CALLS, int(BATCH_SECONDS / max(once, 1e-7))))


def _seconds(call: Callable[[], Any], count: int) -> float:
    if count == 0:
        return float(call())
    started = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - started) / count


if __name__ == "__main__":
    main()
