"""What the judge says when loopnest is wrong."""

from __future__ import annotations

import re


class Failure(AssertionError):
    """loopnest broke a promise.

    Args:
        kind: which promise: "definition", "call", "transaction", "frozen", "order", "oracle",
            "lowering", "compile", "fault", "result", "crash"…
        what: what was found, a sentence.
        line: the line of the case that was executed, if it was one.
        where: the sizes and the target, if it ran.
    """

    def __init__(self, kind: str, what: str, line: str = "", where: str = "") -> None:
        self.kind, self.what, self.line, self.where = kind, what, line, where
        parts = [f"{kind}: {what}", f"in: {line}" if line else "", f"at: {where}" if where else ""]
        super().__init__("\n  ".join(p for p in parts if p))

    def __reduce__(self) -> tuple[type[Failure], tuple[str, str, str, str]]:
        return Failure, (self.kind, self.what, self.line, self.where)

    @property
    def signature(self) -> str:
        """What two failures of one fault have in common: the sentence without names and numbers."""
        text = self.what.partition("\n")[0]
        text = re.sub(r"'[^']*'", "'…'", text)
        text = re.sub(r"\b[TAxyta]\d+(_\d+)?\b|\[[^\]]*\]|\bcase\w*", "·", text)
        text = re.sub(r"-?\d+(\.\d+)?(e[-+]\d+)?|\bnan\b|\binf\b", "#", text)
        return f"{self.kind}: {text[:100]}"
