"""From the lines of a case to a verdict on it: what `tools/fuzz.py` and ``loopnest fuzz`` share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import loopnest as ln
from loopnest.devtools.fuzzing.case_lines import Case, Session
from loopnest.devtools.fuzzing.failures import Failure
from loopnest.devtools.fuzzing.judge import (
    TARGETS,
    Expected,
    cases_on,
    check_oracle,
    compiled,
    expect,
    lowered,
    require_order,
    require_proof,
    require_ptx,
    require_texts,
    run,
    targets_of,
)
from loopnest.facade.kernel_class import Kernel

SERIAL = (
    "[t.parallelize({n: ln.ParallelType.serial for n in range(t.ndim)}) "
    "for t in f.tensors if not t.is_input]"
)
"""The schedule line that takes back all parallel types."""

OF_LOOPS = frozenset({
    "a value crosses threads", "a read before the store", "a launch limit",
    "two parallel types in one loop", "a launch dimension twice",
    "a vectorized axis is not innermost", "the width of a vector", "a vector that never divides",
    "a vector of atomic updates", "blocks that fold into SHARED memory",
    "a vectorized or cpu_parallel reduction", "a race in a parallel loop",
    "a circular buffer in a parallel loop", "tiles that store one element", "a value crosses lanes",
    "a fold by threads cannot run ahead", "initial values of other blocks",
})  # fmt: skip
"""Refusals that parallel types alone cause: without these types the schedule must lower."""


def lowered_or_serial(
    session: Session, refused: Callable[[ln.Fusion, str], None] | None = None
) -> tuple[Kernel | str, tuple[str, ...]]:
    """Return the kernel of a scheduled fusion, or why there is none, and all refusals.

    Where parallel types are the reason, they are taken back; what is left must lower. `refused` is
    told of the fusion, and why it was refused, before that.

    Raises:
        Failure: a refusal without a good reason.
    """
    found = lowered(session.fusion)
    if not isinstance(found, str) or found not in OF_LOOPS:
        return found, (found,) if isinstance(found, str) else ()
    if refused is not None:
        refused(session.fusion, found)
    session.attempt(SERIAL)
    second = lowered(session.fusion)
    if isinstance(second, str) and second in OF_LOOPS:
        raise Failure("lowering", f"refused for {second}, but every loop is serial", SERIAL)
    return second, (found, second) if isinstance(second, str) else (found,)


def judge_case(
    case: Case, targets: Sequence[str] = TARGETS, started: Session | None = None
) -> tuple[Failure | None, Session]:
    """Judge a case from its lines; return its failure and the session as far as it came.

    `started` is a session whose math is there already.
    """
    session = started or Session(case.name)
    try:
        for line in case.math:
            session.define(line)
        if session.fusion.outputs:
            _judge_lines(session, case, targets)
    except Failure as failure:
        return failure, session
    return None, session


def _judge_lines(session: Session, case: Case, targets: Sequence[str]) -> None:
    expected = []
    for sizes in case.sizes:
        needed = {s.name for s in session.fusion.symbols}
        kept = {n: v for n, v in sizes.items() if n in needed}
        expected.append(expect(session.fusion, kept, case.data, case.ranges))
    for line in case.schedule:
        if session.attempt(line) and "inline_most" in line:
            require_order(session.fusion, line)
    judge_schedule(session, expected, targets)


def judge_schedule(session: Session, expected: Sequence[Expected], targets: Sequence[str]) -> int:
    """Judge what a schedule came to; return how many launches were judged, 0 without a kernel.

    Raises:
        Failure: a promise is broken.
    """
    require_order(session.fusion)
    check_oracle(session.fusion, expected)
    kernel = lowered(session.fusion)
    if isinstance(kernel, str):
        if kernel in OF_LOOPS and session.schedule[-1:] == [SERIAL]:
            raise Failure("lowering", f"refused for {kernel}, but every loop is serial", SERIAL)
        return 0
    require_texts(kernel, session.fusion)
    if "nvrtc" in targets:
        require_ptx(kernel)
    if "verify" in targets:
        require_proof(kernel)
    runs = 0
    for target in targets_of(kernel, targets):
        function = compiled(kernel, target)
        for one in cases_on(target, expected):
            runs += not run(function, one, target)
    return runs
