"""Where in the user's code a tensor, a loop or a statement came from."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from types import FrameType

from loopnest.base.fast_init import fast_init

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


@fast_init
@dataclass(frozen=True, slots=True)
class Origin:
    """A place in the user's code, and the schedule call there (empty for a definition)."""

    file: str
    line: int
    call: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}"
        return f"{self.call} at {place}" if self.call else place


def caller(call: str = "") -> Origin:
    """Return the innermost place outside this package that leads here."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    if frame is None:
        return Origin("<unknown>", 0, call)
    return Origin(frame.f_code.co_filename, frame.f_lineno, call)
