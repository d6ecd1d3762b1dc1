"""Where the time of a compiled graph goes: its launches, and what a call costs besides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StepProfile:
    """The times of a step, each the least of several calls.

    Args:
        launches: what was launched, in order: as ``fn.kernels``.
        bytes: what each reads and writes, at the sizes of the call.
        seconds: of each launch.
        overhead: seconds of a call besides its launches: arguments, results, the calls themselves.
    """

    launches: tuple[Any, ...]
    bytes: tuple[int, ...]
    seconds: tuple[float, ...]
    overhead: float

    @property
    def total(self) -> float:
        """The seconds of the launches and of what is besides."""
        return sum(self.seconds) + self.overhead

    def __str__(self) -> str:
        rows = zip(self.launches, self.bytes, self.seconds, strict=True)
        slowest = sorted(rows, key=lambda row: -row[2])
        lines = [f"{_milliseconds(s)} {_rate(moved, s)}  {_name(x)}" for x, moved, s in slowest]
        share = self.overhead / self.total if self.total else 0.0
        lines += [
            f"{_milliseconds(sum(self.seconds))}  {len(self.launches)} launches",
            f"{_milliseconds(self.overhead)}  besides ({share:.1%})",
        ]
        return "\n".join(lines)


def least(calls: Sequence[tuple[float, Sequence[float]]]) -> tuple[tuple[float, ...], float]:
    """Return the least seconds of each launch, and of what each call takes besides.

    Args:
        calls: of each call its seconds, and those of its launches.
    """
    launches = tuple([min(times) for times in zip(*[own for _, own in calls], strict=True)])
    return launches, max(0.0, min([whole - sum(own) for whole, own in calls]))


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:9.3f} ms"


def _rate(moved: int, seconds: float) -> str:
    return f"{moved / seconds / 1e9:7.2f} GB/s" if seconds > 0 else " " * 12


def _name(launch: Any) -> str:
    how = launch.schedule or ("library" if launch.library else "fallback")
    return f"{how}: {', '.join(launch.ops)}"
