"""Measuring the calls of a kernel."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

WARM_UPS = 2
FEWEST, MOST = 5, 1000
SECONDS = 0.5
BATCH_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class BenchResult:
    """The times of some calls.

    Args:
        seconds: the median.
        bytes: memory that a call must move: every input once, every output once.
        times: of each call, in seconds.
    """

    seconds: float
    bytes: int
    times: tuple[float, ...]

    @property
    def gbps(self) -> float:
        """Bytes moved a second, in 10^9."""
        return self.bytes / self.seconds / 1e9

    def __str__(self) -> str:
        count = f"median of {len(self.times)} runs"
        return f"{self.seconds * 1e3:.3f} ms ({count}), {self.gbps:.1f} GB/s"


def measure(call: Callable[[], None], moved: int) -> BenchResult:
    """Call again and again for about half a second; the first calls do not count.

    Args:
        call: the call measured.
        moved: the bytes that it moves.
    """

    def seconds() -> float:
        before = perf_counter()
        call()
        return perf_counter() - before

    for _ in range(WARM_UPS):
        call()
    return _sampled(seconds, moved)


def _sampled(seconds: Callable[[], float], moved: int) -> BenchResult:
    """Measure again and again for about half a second."""
    times: list[float] = []
    start = perf_counter()
    while len(times) < FEWEST or (perf_counter() - start < SECONDS and len(times) < MOST):
        times.append(seconds())
    return BenchResult(statistics.median(times), moved, tuple(times))


def measure_batches(
    enqueue: Callable[[], None], timed: Callable[[Callable[[], None]], float], moved: int
) -> BenchResult:
    """Time launches that run one after the other without a pause, for about half a second.

    Args:
        enqueue: starts one launch and returns.
        timed: calls a function, and returns the seconds that the GPU took for what it enqueued.
        moved: the bytes that a launch moves.
    """

    def batch(count: int) -> float:
        return timed(lambda: _repeat(enqueue, count))

    count = 1
    while batch(count) < BATCH_SECONDS and count < MOST:  # the first, short batches warm up
        count *= 2
    return _sampled(lambda: batch(count) / count, moved)


def _repeat(call: Callable[[], None], count: int) -> None:
    for _ in range(count):
        call()
