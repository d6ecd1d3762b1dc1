"""The lines of a text that a compiler complains about, for errors."""

from __future__ import annotations

from collections.abc import Sequence

CONTEXT = 2
"""How many lines are shown before and behind one."""


def excerpt(lines: Sequence[str], failing: Sequence[int]) -> str:
    """Return the lines around the failing ones, numbered from 1."""
    shown: list[str] = []
    last = 0
    for number, text in enumerate(lines, 1):
        if all(abs(number - line) > CONTEXT for line in failing):
            continue
        if shown and number != last + 1:
            shown.append("      ...")
        mark = ">" if number in failing else " "
        shown.append(f"{mark}{number:4} | {text}".rstrip())
        last = number
    return "\n".join(shown)
