"""What `gpu_check.py` runs: schedules for a GPU, in each type, and the sizes to run them at."""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

import loopnest as ln
from loopnest.base.errors import LaunchError, LoopnestError
from loopnest.devtools.kernel_def import KernelDef, kernels_of
from loopnest.devtools.trial_sizes import trial_sizes
from loopnest.facade.kernel_class import Kernel, lower
from loopnest.proofs.size_choice import points_at
from loopnest.scalar.arguments import size_value
from loopnest.tensor.fusion import Fusion

Sizes = dict[str, int]

PROBES = Path(__file__).with_name("gpu_probes.py")

TYPES = ("float32", "float16", "bfloat16")

LARGE_BYTES = 256 << 20
"""What a launch that is timed moves at least: more than the caches hold."""

LARGE = {
    "cumsum_long@gpu": {"N": 1 << 21},  # all blocks must be resident at once
    "embedding": {"V": 32000, "D": 768, "K": 65536},
    "gemm": {"M": 4096, "N": 4096, "K": 4096},
    "lstm_cell": {"B": 512, "K": 2048, "H": 2048},
}
"""Sizes of kernels whose time does not follow from the bytes of their first axis."""

LARGE_POINTS = 1 << 37
"""Statements that a launch that is timed may run: some tenths of a second on a large GPU."""

PRIME = (1021, 257, 131, 37, 31, 7, 3, 1)
"""Extents that no tile and no vector divides: ragged tiles, the scalar variant."""

EVEN = (2056, 1032, 264, 136, 72, 40, 24, 8)
"""Multiples of 8 that no tile divides: the variant with wide accesses, partial warps."""

MOST_POINTS = 1 << 26
"""Statements that a launch at sizes like these may run: the oracle computes them too."""


@dataclass(frozen=True)
class Subject:
    """A schedule of a kernel in one type.

    Args:
        file: where it is defined.
        definition: the kernel.
        schedule: its name.
        dtype: of its inputs; "" where the kernel does not let one choose.
    """

    file: Path
    definition: KernelDef
    schedule: str
    dtype: str

    @property
    def name(self) -> str:
        """``softmax@gpu``, or ``softmax@gpu float16``."""
        plain = f"{self.definition.name}@{self.schedule}"
        return plain if self.dtype in ("", TYPES[0]) else f"{plain} {self.dtype}"

    @property
    def is_main(self) -> bool:
        """Whether it is in the type that times are measured in."""
        return self.dtype in ("", TYPES[0])

    def fusion(self) -> Fusion:
        """Return the scheduled math, made anew."""
        given = {"dtype": getattr(ln, self.dtype)} if self.dtype else {}
        return self.definition.fusion(self.schedule, **given)

    @cached_property
    def kernel(self) -> Kernel:
        """What it is lowered to."""
        return lower(self.fusion())

    # Sizes

    def small(self) -> list[Sizes]:
        """Return sizes at which every kind of launch runs, the most telling first.

        Tiles crossed by one element, hardly begun, filled exactly; ragged tiles of the scalar
        variant, and of the one with wide accesses; extents of 1 and of 0.
        """
        found: list[Sizes] = []
        for sizes in itertools.chain(self._ragged(), self._trial(), self._degenerate()):
            if sizes not in found and self._is_legal(sizes):
                found.append(sizes)
        return found

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        return tuple([p.name for p in self.kernel.params if p.kind == "size"])

    def _ragged(self) -> Iterator[Sizes]:
        """Yield the largest ragged sizes that are not too large, and the smallest."""
        count = len(self.symbols)
        for values in (PRIME, EVEN):
            rows = [
                dict(zip(self.symbols, values[i:], strict=False))
                for i in range(len(values) - max(count, 1) + 1)
            ]
            legal = [row for row in rows if self._is_legal(row)]
            yield from (legal[:1] + legal[-1:]) if count else []

    def _trial(self) -> Iterator[Sizes]:
        return (dict(sizes) for sizes in trial_sizes(self.kernel.program))

    def _degenerate(self) -> Iterator[Sizes]:
        for value in (1, 0):
            for symbol in self.symbols:
                yield {**dict.fromkeys(self.symbols, 5), symbol: value}
            yield dict.fromkeys(self.symbols, value)

    def _is_legal(self, sizes: Sizes) -> bool:
        try:
            self.kernel.launch(**sizes)
        except LaunchError:
            return False
        return points_at(self.kernel.program, sizes) <= MOST_POINTS

    def large(self) -> Sizes:
        """Return sizes at which what a launch moves does not fit into a cache."""
        name = self.definition.name
        chosen = LARGE.get(f"{name}@{self.schedule}") or LARGE.get(name) or {}
        sizes = {**self.definition.sizes, **chosen}
        names = [name for name in self.symbols if name in sizes]
        while not chosen and names and self.moved(sizes) < LARGE_BYTES:
            larger = {**sizes, names[0]: 2 * sizes[names[0]]}
            if points_at(self.kernel.program, larger) > LARGE_POINTS:
                break
            sizes = larger
        return sizes

    def moved(self, sizes: Mapping[str, int]) -> int:
        """Return the bytes that a launch must move: every input and output once."""
        read = [(p.shape, p.dtype) for p in self.kernel.params if p.kind == "input"]
        written = [(o.shape, o.buffer.dtype) for o in self.kernel.program.outputs]
        total = 0
        for shape, dtype in read + written:
            extents = [s if isinstance(s, int) else size_value(s, sizes) for s in shape or ()]
            total += math.prod(extents) * dtype.size
        return total


def subjects(folder: Path, only: Sequence[str], tell: Console) -> Iterator[Subject]:
    """Yield the schedules that bind a launch dimension, those of float32 first of each kernel.

    Says which of them have no CUDA text, and why.
    """
    for file in (*sorted(folder.glob("*.py")), PROBES):
        for definition in load(file):
            for schedule in definition.schedules:
                label = f"{definition.name}@{schedule}"
                if only and not {definition.name, label} & set(only):
                    continue
                for dtype in _types(definition):
                    subject = Subject(file, definition, schedule, dtype)
                    try:
                        if not subject.kernel.program.launch:
                            break
                        subject.kernel.cuda()
                    except LoopnestError as error:
                        tell.print(
                            f"[dim]{subject.name} is left out: {error}[/dim]", highlight=False
                        )
                    else:
                        yield subject


def _types(definition: KernelDef) -> Sequence[str]:
    return TYPES if "dtype" in inspect.signature(definition.math).parameters else ("",)


def find(place: str, dtype: str) -> Subject:
    """Return the subject ``FILE:KERNEL@SCHEDULE`` of a type."""
    file, _, name = place.rpartition(":")
    wanted, _, schedule = name.partition("@")
    definition = next(d for d in load(Path(file)) if d.name == wanted)
    return Subject(Path(file), definition, schedule, dtype)


def load(file: Path) -> tuple[KernelDef, ...]:
    """Return the kernels that a file defines."""
    name = f"gpu_check_{file.stem}"
    if name not in sys.modules:
        spec: Any = importlib.util.spec_from_file_location(name, file)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return kernels_of(name)
