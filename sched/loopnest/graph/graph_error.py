"""The error of the graph layer."""

from __future__ import annotations

from loopnest.base.errors import LoopnestError


class GraphError(LoopnestError):
    """A graph, a node or a pass does not fit; the subject names the node.

    Args:
        subject: what was asked: a call with its operands and their types, or a node.
        reason: what was found.
        hint: what is allowed, or what to do instead.
        line: of malformed text, where it is (from 1).
        column: of malformed text, where it is (from 1).
    """

    def __init__(
        self,
        subject: str,
        reason: str,
        hint: str = "",
        line: int | None = None,
        column: int | None = None,
    ) -> None:
        super().__init__(subject, reason, hint)
        self.line, self.column = line, column

    def __reduce__(self) -> tuple[type[GraphError], tuple[str, str, str, int | None, int | None]]:  # type: ignore[override]
        return type(self), (self.subject, self.reason, self.hint, self.line, self.column)


class Refused(Exception):
    """Operands or attributes do not fit an op: the reason and what is allowed.

    Raised by inference; `registry.call` knows the call and makes it a GraphError.
    """

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason, self.hint = reason, hint
