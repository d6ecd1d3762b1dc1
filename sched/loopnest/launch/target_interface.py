"""What a target is: one row with its options, its text, and how it builds and runs a program."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from loopnest import kir
from loopnest.base.errors import CompileError
from loopnest.launch.launch_plan import LaunchPlan
from loopnest.scalar.expr import Expr

Array: TypeAlias = "npt.NDArray[Any]"


class DataOutside(Exception):
    """A launch found data outside of their range, and ran nothing.

    Args:
        number: of the check: of the declared ranges, then of the checks of indices.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


MISFIT, NO_MEMORY = -2, 1
"""The status of a prepared call where an argument is not as it takes it, so that nothing ran; and
where no memory was left. Above are those of data outside of their ranges: nothing ran either."""


@dataclass(frozen=True, slots=True)
class ArrayForm:
    """An array as a prepared call takes it.

    Args:
        dtype: its type.
        shape: its extents.
        strides: in bytes, of axes with more than one element; None where it is C-contiguous.
        is_written: whether the call writes it: then it shares no memory with another.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    is_written: bool = False

    @property
    def bytes(self) -> int:
        """The bytes from its first element to the end of its last."""
        if 0 in self.shape:
            return 0
        width = self.dtype.itemsize
        if self.strides is None:
            return math.prod(self.shape) * width
        steps = zip(self.shape, self.strides, strict=True)
        return sum([(extent - 1) * step for extent, step in steps]) + width


class PreparedCall(Protocol):
    """Launches of one plan on arrays that are like those of an earlier call."""

    def run(
        self,
        arrays: tuple[Any, ...],
        made: tuple[Any, ...],
        is_out: bool,
        scalars: Sequence[Any] = (),
    ) -> int:
        """Run one launch; return 0, or why it did not: `MISFIT`, `NO_MEMORY`, or data outside.

        Args:
            arrays: what a caller gave for inputs.
            made: an array for each output that is not in place, then workspace.
            is_out: whether arrays of `made` are the caller's, and must be looked at.
            scalars: the values of the scalar parameters.
        """

    def learn(self, inputs: Sequence[Array]) -> None:
        """Take the type objects of these inputs for those that inputs have."""


@dataclass(frozen=True, slots=True)
class IdleOption:
    """An option of a compilation that changes nothing of a kernel.

    Args:
        asked: the option, as the call reads.
        became: what happens instead.
        why: as it reads after "because".
        remedy: what to do.
    """

    asked: str
    became: str
    why: str
    remedy: str = "leave it out"


class Executable(ABC):
    """A program built for a target."""

    checks_data = False
    """Whether `run` looks at the data, so that nobody needs to look before."""

    @abstractmethod
    def run(self, arrays: Sequence[Array], scalars: Sequence[Any], plan: LaunchPlan) -> None:
        """Run one launch.

        Args:
            arrays: C-contiguous; one a parameter that is an input, an output or workspace, in
                their order.
            scalars: the values of the scalar parameters, in their order.
            plan: the launch.

        Raises:
            DataOutside: data lie outside of their range; only where it `checks_data`.
        """

    def prepared(
        self, plan: LaunchPlan, inputs: Sequence[ArrayForm], made: Sequence[ArrayForm]
    ) -> PreparedCall | None:
        """Return a call of one plan; None where a launch does more than to call a function."""
        return None

    def idle_options(self) -> Iterator[IdleOption]:
        """Yield options that change nothing; a compiler may have to be asked."""
        return iter(())


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


@dataclass(frozen=True, slots=True)
class TargetText:
    """The text of a program for a target.

    Args:
        title: what it is, for lists of texts.
        language: how it is coloured: the name of a lexer of Pygments.
        print: makes it, with indices of 32 or 64 bits.
        sizes: elements of arrays that the text indexes beside the program's own buffers.
    """

    title: str
    language: str
    print: Callable[[kir.Program, int], str]
    sizes: Callable[[kir.Program], tuple[Expr, ...]] = lambda program: ()


@dataclass(frozen=True, slots=True)
class TargetRow:
    """A target, as `compile`, the command line and their messages know it.

    Args:
        name: what ``target=`` and ``--target`` take.
        options: what `build` takes by name.
        build: makes a program executable.
        device: "cpu" or "gpu": the name of the schedules that are meant for it.
        text: what it prints, None where it has no text.
        obstacle: why this machine cannot run it, None where it can.
        instead: what to do where there is an obstacle, for a call that names this target; empty
            where `build` has a better message.
        kernel: the class of its compiled kernels, None for `CompiledKernel`.
        together: builds many programs in one run of its compiler, None where it has no such way.
        checked: whether every access is checked, and runs are slow: made arrays are small.
    """

    name: str
    options: Mapping[str, TargetOption]
    build: Callable[..., Executable]
    device: str = "cpu"
    text: TargetText | None = None
    obstacle: Callable[[], str | None] = lambda: None
    instead: str = ""
    kernel: type[Any] | None = None
    together: Callable[[Sequence[kir.Program], int], Sequence[Executable]] | None = None
    checked: bool = field(default=False, kw_only=True)


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
