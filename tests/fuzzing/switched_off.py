"""What a check refuses, judged by another: the lowering without it, and a proof of what it gives.

A refusal for threads is exact where no kernel that is lowered without the check can be proved. The
checks are those that ask which thread has an element; the proof knows nothing of the lowering.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import loopnest as ln
from loopnest.facade.kernel_class import lower as lower_fusion
from loopnest.lowering import pipeline, plan_checks

OF_THREADS = ("a value crosses threads", "a read before the store", "a race in a parallel loop")
"""The refusals (`judge.LEGITIMATE`) whose checks can be switched off."""


@contextmanager
def switched_off() -> Iterator[None]:
    """Lower without the checks that ask which thread has an element."""
    known = pipeline.check_readers, plan_checks.check_races
    pipeline.check_readers = lambda indexer: None
    plan_checks.check_races = lambda plan, tensor, storage: None
    try:
        yield
    finally:
        pipeline.check_readers, plan_checks.check_races = known


def verdict_without(fusion: ln.Fusion) -> str:
    """Return what a proof says of the kernel that a refused fusion would have.

    One of "proved" (for all sizes), "proved at sizes", "refuted" and "unknown", or "no kernel"
    where another pass fails.
    """
    try:
        with switched_off():
            kernel = lower_fusion(fusion)
        report = ln.verify(kernel)
    except (ln.LoopnestError, AssertionError, KeyError):
        return "no kernel"
    if report.status == "refuted":
        return "refuted"
    if not report.ok:
        return "unknown"
    return "proved" if report.all_sizes else "proved at sizes"
