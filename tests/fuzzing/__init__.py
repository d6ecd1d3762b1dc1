"""Random fusions under random schedules, and a judge: see `tools/fuzz.py`."""

from __future__ import annotations

from fuzzing.failures import Failure
from fuzzing.judge import check, expect, judged
from fuzzing.program import Case, Session

__all__ = ["Case", "Failure", "Session", "check", "expect", "judged"]
