"""The text of an error of a graph without the lines that made its nodes."""

import re


def without_lines(error: object) -> str:
    """Return the text of an error, without each ``made at FILE:LINE``."""
    return re.sub(r" made at [^:,;]*:\d+", "", str(error))
