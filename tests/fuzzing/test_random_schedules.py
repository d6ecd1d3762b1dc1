"""Random fusions under random schedules: every call is judged, every result is the math's.

`tools/fuzz.py` runs any number of them and makes failing ones small.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fuzzing.engine import Engine
from fuzzing.fusions import FusionWriter
from loopnest.backends.cpu.c_compiler import find_compiler
from loopnest.devtools.fuzzing.case_lines import Session
from loopnest.devtools.fuzzing.judge import (
    check_oracle,
    choose_sizes,
    compiled,
    expect,
    has_nvrtc,
    lowered_or_serial,
    run,
)
from loopnest.devtools.fuzzing.schedule_styles import ScheduleWriter

SEED = 20_000_000
"""Another than that of the tool, whose cases are run by the thousand anyway."""

BATCHES, BATCH = 8, 20
TARGETS = ("interpret", "c") if find_compiler() is not None else ("interpret",)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_schedules(batch: int) -> None:
    """Judge a batch of cases, whose C kernels are compiled in one translation unit.

    So is the CUDA text of every other batch, where NVRTC is installed.
    """
    texts = ("nvrtc",) if batch % 2 == 0 and has_nvrtc() else ()
    outcomes = Engine(SEED, (*TARGETS, *texts)).judge(range(batch * BATCH, (batch + 1) * BATCH))
    for outcome in outcomes:
        if outcome.failure is not None:
            script = outcome.case.script(outcome.refused, str(outcome.failure))
            pytest.fail(f"{outcome.failure}\n\n{script}", pytrace=False)
    lowered = sum(outcome.runs > 0 for outcome in outcomes)
    assert lowered > BATCH / 2  # else these cases say little


@given(st.randoms(use_true_random=False))
@settings(
    max_examples=30, deadline=None, derandomize=True, database=None, report_multiple_bugs=False,
    phases=[Phase.generate],  # tools/fuzz.py shrinks better: it knows what a line is
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
def test_schedules_that_hypothesis_draws(rng: Random) -> None:
    """Judge a case whose every choice is drawn, and so made small, by hypothesis."""
    session = Session("case")
    FusionWriter(session, rng).write()
    expected = [
        expect(session.fusion, s, rng.randrange(16)) for s in choose_sizes(session.fusion, rng)
    ]
    ScheduleWriter(session, rng).write()
    check_oracle(session.fusion, expected)
    kernel, _ = lowered_or_serial(session)
    if not isinstance(kernel, str):
        function = compiled(kernel, "interpret")
        for one in expected:
            run(function, one, "interpret")
