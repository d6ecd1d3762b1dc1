"""Random schedules and a judge of them: of random math (`tools/fuzz.py`), of a user's own.

A case is lines of Python that schedule a fusion. `schedule_styles` writes them, of the calls that
`schedule_calls` makes; `case_lines` executes them and sees that a refused call changes nothing;
`judge` holds what comes of them against the oracle; `kernel_fuzzing` does so for a user's kernel,
and drops what a failure does not need. Types to know: `Case`, `Session`, `Failure`.
"""

from loopnest.devtools.fuzzing.case_lines import Case, Failure, Session
from loopnest.devtools.fuzzing.judge import check, expect, judged

__all__ = ["Case", "Failure", "Session", "check", "expect", "judged"]
