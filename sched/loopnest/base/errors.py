"""The errors of loopnest: one sentence each, rendered in one place.

A message says what was asked (`subject`), what was found (`reason`) and what is allowed
(`hint`): ``T3.split(axis=5, factor=4): axis 5 is out of range; T3 has 3 leaf axes
[i0, i1, r2], so use -3..2``.
"""

from __future__ import annotations


class LoopnestError(Exception):
    """Any error that loopnest raises on purpose.

    Args:
        subject: what was asked: the call as the user wrote it, a tensor or a kernel.
        reason: what was found.
        hint: what is allowed, or what to do instead.
    """

    def __init__(self, subject: str, reason: str, hint: str = "") -> None:
        self.subject = subject
        self.reason = reason
        self.hint = hint
        super().__init__(f"{subject}: {reason}" + (f"; {hint}" if hint else ""))

    def __reduce__(self) -> tuple[type[LoopnestError], tuple[str, str, str]]:
        return type(self), (self.subject, self.reason, self.hint)


class DefinitionError(LoopnestError):
    """The math is wrong: shapes, types, names or operands that do not fit."""


class ScheduleError(LoopnestError):
    """A schedule call cannot be carried out; nothing was changed."""


class LoweringError(LoopnestError):
    """The schedule is well-formed, but no kernel exists for it."""


class CompileError(LoopnestError):
    """A compiler is missing or refused the generated source."""


class LaunchError(LoopnestError):
    """The arguments of a launch do not fit the kernel; nothing ran."""


class KernelFault(LoopnestError):
    """A running kernel broke a rule (bounds, races, uninitialised reads)."""


class VerifyError(LoopnestError):
    """A proof was demanded and failed."""


class CostError(LoopnestError, AssertionError):
    """A kernel costs more than a test allows."""


class NotSupported(LoopnestError):
    """The feature does not exist yet."""


class InternalError(LoopnestError):
    """loopnest broke its own invariant: a bug to report."""


def kind_of(value: object) -> str:
    """Return the type of what was passed, with its article: "an int", "a list"."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"
