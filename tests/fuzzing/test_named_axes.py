"""A random schedule by names of axes is the one by positions."""

from __future__ import annotations

import re
from random import Random

import pytest

from fuzzing.fusions import FusionWriter
from loopnest.devtools.fuzzing.case_lines import Session
from loopnest.devtools.fuzzing.judge import lowered
from loopnest.devtools.fuzzing.schedule_styles import ScheduleWriter, by_names, with_names

_NAMES = re.compile(r"  # [on]\d+(, )?")


def _outcome(session: Session) -> str:
    """Return the nest of a schedule, or why it has none."""
    found = lowered(session.fusion)
    return found if isinstance(found, str) else str(found)


def _session(drawn: Session) -> Session:
    """Return a session of the same math, without a schedule."""
    session = Session(drawn.fusion.name)
    for line in drawn.math:
        assert session.define(line)
    return session


@pytest.mark.parametrize("number", range(40))
def test_names_and_positions_give_one_nest(number: int) -> None:
    """With names that are given and those of sizes; without them the nest lacks comments alone."""
    drawn = Session(f"case_{number}")
    FusionWriter(drawn, Random(f"names/{number}")).write()
    ScheduleWriter(drawn, Random(f"names/schedule/{number}")).write()
    bare, plain, named = _session(drawn), _session(drawn), _session(drawn)
    rng = Random(number)
    for n, line in enumerate(drawn.schedule):
        given = with_names(line, n)
        text = by_names(given, named, rng)
        assert bare.attempt(line) == plain.attempt(given) == named.attempt(text), text
        script = "\n".join([*named.math, *named.schedule])
        assert [*map(str, plain.fusion.tensors)] == [*map(str, named.fusion.tensors)], script
    assert _outcome(plain) == _outcome(named), "\n".join([*named.math, *named.schedule])
    shown = _NAMES.sub(lambda found: "  # " if found[1] else "", _outcome(plain))
    assert shown == _outcome(bare)
