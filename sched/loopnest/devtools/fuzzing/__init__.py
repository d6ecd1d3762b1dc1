"""Random schedules and a judge of them: of random math (`tools/fuzz.py`), of a user's own.

A case is lines of Python that schedule a fusion. `schedules` writes them, `case_lines` executes
them and sees that a refused call changes nothing, `judge` holds what comes of them against the
oracle, and `shrink` drops what a failure does not need.
"""

from loopnest.devtools.fuzzing.case_lines import Case, Session
from loopnest.devtools.fuzzing.failures import Failure
from loopnest.devtools.fuzzing.judge import check, expect, judged

__all__ = ["Case", "Failure", "Session", "check", "expect", "judged"]
