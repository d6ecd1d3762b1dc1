"""What is mutated: kernels of files under each schedule, and random kernels under random ones."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import loopnest as ln
from fuzzing.fusions import FusionWriter
from loopnest import kir
from loopnest.devtools.fuzzing import Failure
from loopnest.devtools.fuzzing.case_lines import Session
from loopnest.devtools.fuzzing.schedule_styles import ScheduleWriter
from loopnest.devtools.harness import Arguments, judge, make_arguments, oracle
from loopnest.devtools.kernel_def import KernelDef, kernels_of
from loopnest.devtools.trial_sizes import trial_sizes
from loopnest.facade.kernel_class import Kernel, lower
from loopnest.kir.lowered import Lowered
from loopnest.proofs.size_choice import points_at
from loopnest.tensor.fusion import Fusion
from loopnest.tensor.math_snapshot import MathSnapshot

MOST_POINTS = 500_000
"""How many statements a run of `thread_machine` may have."""


@dataclass(frozen=True)
class Key:
    """What names a subject in any process.

    Args:
        name: for people: ``softmax@gpu``, with ``/scalar`` for the variant without vectors.
        file, kernel, schedule: of a kernel in a file; "" for a random one.
        number: of a random one.
        scalar: whether it is the variant that runs where vectors do not divide sizes.
    """

    name: str
    file: str = ""
    kernel: str = ""
    schedule: str = ""
    number: int = -1
    scalar: bool = False


@dataclass
class Trial:
    """Sizes and arguments at which programs are run, and what must come of it."""

    fusion: Fusion
    arguments: Arguments

    @property
    def sizes(self) -> Mapping[str, int]:
        return self.arguments.sizes

    @cached_property
    def wanted(self) -> Any:
        return oracle(self.fusion, self.arguments)

    def inputs(self) -> dict[str, np.ndarray]:
        """Return the arrays by name, copied: a program may overwrite them."""
        names = [tensor.name for tensor in self.fusion.inputs]
        return dict(zip(names, self.arguments.fresh(), strict=True))

    def difference(self, outputs: Sequence[np.ndarray]) -> str:
        """Return how outputs differ from the oracle's, "" where they do not."""
        verdicts = judge(self.fusion, self.sizes, tuple(outputs), self.wanted)
        return next((str(v) for v in verdicts if not v.ok), "")


@dataclass
class Subject:
    """A kernel whose mutants are judged."""

    name: str
    fusion: Fusion
    program: kir.Program
    math: MathSnapshot
    ranges: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """Arguments at up to three small sizes; at one where every size takes long."""
        made = [
            self.trial(sizes)
            for sizes in trial_sizes(self.program, None, 3, MOST_POINTS)
            if points_at(self.program, sizes) <= 5 * MOST_POINTS
        ]
        return tuple([trial for trial in made if trial is not None])

    def trial(self, sizes: Mapping[str, int]) -> Trial | None:
        """Return arguments at these sizes; None where they do not fit."""
        try:
            return Trial(self.fusion, make_arguments(self.fusion, sizes, self.ranges))
        except ln.LaunchError:
            return None

    @cached_property
    def lines(self) -> list[str]:
        """The nest, for the lines that reports name."""
        from loopnest.kir.nest_text import print_nest

        return print_nest(self.program).splitlines()


def keys_in(folder: Path, wanted: Sequence[str] = ()) -> Iterator[Key]:
    """Yield the kernels and schedules in the files of a folder.

    Args:
        folder: with Python files; or one such file.
        wanted: ``kernel`` or ``kernel@schedule``; all where there is none.
    """
    for file in sorted(folder.glob("*.py")) if folder.is_dir() else [folder]:
        for kernel in _kernels(str(file.resolve())):
            for schedule in kernel.schedules or ("",):
                label = kernel.label(schedule)
                if wanted and kernel.name not in wanted and label not in wanted:
                    continue
                key = Key(label, str(file.resolve()), kernel.name, schedule)
                yield key
                if _has_scalar(kernel, schedule):
                    yield replace(key, name=f"{label}/scalar", scalar=True)


def random_keys(count: int, seed: int) -> Iterator[Key]:
    """Yield names of random kernels; some of them have no kernel (`load` gives None)."""
    for number in range(count):
        yield Key(f"random {seed}.{number}", number=1_000_003 * seed + number)


def load(key: Key) -> Subject | None:
    """Return the subject that `key` names; None for a random schedule that has no kernel.

    Raises:
        LoopnestError: a schedule of a file has no kernel.
    """
    if key.file:
        kernel = next(k for k in _kernels(key.file) if k.name == key.kernel)
        fusion = kernel.fusion(key.schedule or None)
        return _subject(key, fusion, lower(fusion), kernel.ranges)
    made = random_kernel(key.number)
    return None if made is None else _subject(key, *made, {})


def random_kernel(number: int) -> tuple[Fusion, Kernel] | None:
    """Return a random fusion under a random schedule, and its kernel; None where it has none."""
    rng = Random(number)
    session = Session(f"c{number}")
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            with session.fusion:
                FusionWriter(session, rng).write()
            ScheduleWriter(session, rng).write()
        return session.fusion, lower(session.fusion)
    except (Failure, ln.LoopnestError):
        return None  # what others test


def _subject(key: Key, fusion: Fusion, kernel: Kernel, ranges: Mapping[str, Any]) -> Subject:
    lowered = kernel._lowered
    if key.scalar:
        lowered = _scalar_of(lowered) or lowered
    assert lowered.math is not None
    return Subject(key.name, fusion, lowered.program, lowered.math(), ranges)


def _has_scalar(kernel: KernelDef, schedule: str) -> bool:
    try:
        return _scalar_of(kernel.lower(schedule or None)._lowered) is not None
    except ln.LoopnestError:
        return False  # told when it is loaded


def _scalar_of(lowered: Lowered) -> Lowered | None:
    make = getattr(lowered, "scalar", None)
    return None if make is None else make()


def _kernels(file: str) -> tuple[KernelDef, ...]:
    name = f"mutated_{Path(file).stem}"
    found = kernels_of(name)
    if not found:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        found = kernels_of(name)
    return found
