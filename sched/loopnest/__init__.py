"""Write the math once, schedule its loops, read the loop nest, run it.

These are the names of the language, in which math and schedules are written, and those of the
tools: what is imported below for type checkers alone is loaded when first used.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from loopnest.facade import language

if TYPE_CHECKING:
    from loopnest.costs import assert_cost, profile
    from loopnest.devtools.cli import main
    from loopnest.devtools.explanation import bisect, explain, explain_inline
    from loopnest.devtools.kernel_def import KernelDef, kernel
    from loopnest.devtools.tuning import tune
    from loopnest.devtools.tuning_space import choice
    from loopnest.facade.language import *  # noqa: F403 - with all of its names
    from loopnest.schedulers.scheduler_table import auto_schedule

_CALLED_ELSEWHERE = {
    "broadcast_to": "expand",
    "cat": "concatenate",
    "clip": "clamp",
    "concat": "concatenate",
    "inverse": "reciprocal",
    "transpose": "permute",
    "view": "reshape",
    "zeros": "full",
    "ones": "full",
}
"""Names that NumPy and torch have for our functions."""

__all__ = [
    "KernelDef",
    "assert_cost",
    "auto_schedule",
    "bisect",
    "choice",
    "explain",
    "explain_inline",
    "kernel",
    "main",
    "profile",
    "tune",
]
__all__ += language.__all__

_CODE = sys._getframe().f_code


def _attribute(name: str) -> object:
    if name not in __all__:
        ours = _CALLED_ELSEWHERE.get(name)
        hint = f"; it is called ln.{ours} here" if ours else ""
        raise AttributeError(f"module 'loopnest' has no attribute '{name}'{hint}")
    of_language = name in language.__all__
    value: object = getattr(language, name) if of_language else language.lazy_value(name, _CODE)
    globals()[name] = value
    return value


globals().update({n: value for n, value in vars(language).items() if n in language.__all__})
if not TYPE_CHECKING:  # for whom any name would be one of ours
    __getattr__ = _attribute


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
