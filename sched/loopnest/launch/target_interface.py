"""What a target is to the launcher: it builds a program and runs it on checked arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy.typing as npt

from loopnest.errors import CompileError
from loopnest.launch.launch_plan import LaunchPlan

Array: TypeAlias = "npt.NDArray[Any]"


class Executable(Protocol):
    """A program built for a target."""

    def run(self, arrays: Sequence[Array], scalars: Sequence[Any], plan: LaunchPlan) -> None:
        """Run one launch.

        Args:
            arrays: C-contiguous; one a parameter that is an input, an output or workspace, in
                their order.
            scalars: the values of the scalar parameters, in their order.
            plan: the launch.
        """


Check: TypeAlias = Callable[[object], bool]


@dataclass(frozen=True, slots=True)
class TargetOption:
    """An option of a target: what a value must be, in words and as a test."""

    allowed: str
    accepts: Check


def _is_count(least: int, most: int | None = None) -> Check:
    def accepts(value: object) -> bool:
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        return least <= value and (most is None or value <= most)

    return accepts


THREADS = COUNT = TargetOption("an int >= 1", _is_count(1))
REGISTERS = TargetOption("an int from 24 to 255", _is_count(24, 255))
SEED = TargetOption("an int >= 0, or None", lambda v: v is None or _is_count(0)(v))
LEVEL = TargetOption("an int from 0 to 3", _is_count(0, 3))
SWITCH = TargetOption("True or False", lambda v: isinstance(v, bool))


def check_options(
    options: Mapping[str, object], known: Mapping[str, TargetOption], target: str, subject: str
) -> None:
    """Check the options of a compilation.

    Raises:
        CompileError: an unknown option, or a wrong value.
    """
    for name, value in options.items():
        option = known.get(name)
        if option is None:
            allowed = f"its options are {', '.join(known)}"
            raise CompileError(subject, f"target '{target}' has no option '{name}'", allowed)
        if not option.accepts(value):
            raise CompileError(subject, f"{name} = {value!r}", f"pass {option.allowed}")
