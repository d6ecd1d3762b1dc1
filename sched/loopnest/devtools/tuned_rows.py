"""The database of tunings: a row is a JSON file, called by the digest of its content.

Rows are data and are never executed. What tunes writes one; what runs kernels on this machine reads
those of its kernel, schedule, target and machine, and takes the one whose sizes are nearest.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from loopnest.base.errors import LaunchError
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType

_log = logging.getLogger("loopnest")

VERSION = 2
"""Of a row; it grows with a change of what a field means. Rows of version 1 serve no graph."""

FOLDER_VARIABLE = "LOOPNEST_TUNED"
"""The environment variable that names the folder of the database; empty: there is none."""


@dataclass(frozen=True)
class TunedRow:
    """What a tuning found.

    Args:
        kernel, schedule, target: what was tuned.
        digest: of the math, so that a row serves no other kernel of that name.
        machine: where.
        sizes: at which it was timed.
        parameters: of the schedule; an element type as its name.
        seconds, spread: the median of a call, and the distance of its quartiles.
        default_seconds: the same of the declared defaults, in the same rounds.
        loopnest: the version that tuned.
        version: of the row.
        form: the digest of the math without names and sizes, by which a group of a graph finds the
            row; "" where its calls depend on sizes by name (``f.assume``).
        inputs: for each input of the math, in order of use, the name and the extent of each axis.
        calls: of the schedule, with these parameters; see `tuned_calls`.
    """

    kernel: str
    schedule: str
    target: str
    digest: str
    machine: str
    sizes: dict[str, int]
    parameters: dict[str, Any]
    seconds: float
    spread: float
    default_seconds: float
    loopnest: str = ""
    version: int = field(default=VERSION)
    form: str = ""
    inputs: list[list[tuple[str | None, int]]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def values(self) -> dict[str, Any]:
        """Return the parameters as a schedule takes them."""
        return {name: _read(value) for name, value in self.parameters.items()}


def as_json(value: Any) -> Any:
    """Return a parameter's value as JSON has it."""
    return {"dtype": value.name} if isinstance(value, DType) else value


def _read(value: Any) -> Any:
    return dtypes.of(value["dtype"]) if isinstance(value, dict) else value


def folder() -> Path | None:
    """Return where the rows are; None where the user wants none."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named is not None:
        return Path(os.path.expanduser(named)) if named else None
    import platformdirs

    return platformdirs.user_data_path("loopnest", appauthor=False) / "tuned"


def put(row: TunedRow) -> Path | None:
    """Write a row, in place of an older one of the same sizes; None where there is no database.

    Raises:
        LaunchError: it cannot be written.
    """
    place = folder()
    if place is None:
        return None
    text = json.dumps(asdict(row), indent=1, sort_keys=True) + "\n"
    path = place / f"{hashlib.sha256(text.encode()).hexdigest()}.json"
    try:
        place.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
        for older, other in _rows(place):
            if older != path and _key(other) == _key(row):
                older.unlink(missing_ok=True)
    except OSError as error:
        reason = f"the row cannot be written to {place} ({error.strerror})"
        raise LaunchError("tune(...)", reason, f"set {FOLDER_VARIABLE} to another folder") from None
    return path


def _key(row: TunedRow) -> tuple[object, ...]:
    sizes = tuple(sorted(row.sizes.items()))
    return row.kernel, row.schedule, row.target, row.digest, row.machine, sizes


def rows() -> Iterator[TunedRow]:
    """Yield the rows of this version; what is damaged is named once in the log."""
    place = folder()
    if place is not None and place.is_dir():
        yield from [row for _, row in _rows(place)]


def state() -> tuple[str, ...]:
    """Return what names the content of the database."""
    place = folder()
    found = [] if place is None or not place.is_dir() else os.listdir(place)
    return tuple(sorted([name for name in found if name.endswith(".json")]))


def _rows(place: Path) -> Iterator[tuple[Path, TunedRow]]:
    for path in sorted(place.glob("*.json")):
        row = _row(path)
        if row is not None:
            yield path, row


@cache
def _row(path: Path) -> TunedRow | None:
    """Return the row of a file, which never changes; None where it is none of this version."""
    try:
        text = path.read_bytes()
        found = json.loads(text)
        if hashlib.sha256(text).hexdigest() != path.stem:
            raise ValueError("its content is not what its name says")
        if found.get("version") not in (1, VERSION):
            _log.warning("%s: a row of version %s is left out", path, found.get("version"))
            return None
        row = TunedRow(**found)
        row.values()
        extents = [size for axes in row.inputs for _, size in axes]
        if not all(type(size) is int and size >= 0 for size in [*row.sizes.values(), *extents]):
            raise ValueError("its sizes are not all ints >= 0")
        return row
    except (OSError, ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        _log.warning("%s is left out of the tuned schedules: %s", path, error)
        return None


def nearest(
    kernel: str, schedule: str, target: str, digest: str, sizes: Mapping[str, int]
) -> TunedRow | None:
    """Return the row of this machine whose sizes are nearest, by the ratios of all sizes."""
    here = machine_name(target)
    found = [
        row
        for row in rows()
        if (row.kernel, row.schedule, row.target, row.digest, row.machine)
        == (kernel, schedule, target, digest, here)
    ]
    return min(found, key=lambda row: _distance(row.sizes, sizes), default=None)


def _distance(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    shared = one.keys() & other.keys()
    return sum([abs(math.log2((one[n] + 1) / (other[n] + 1))) for n in sorted(shared)])


@cache
def machine_name(target: str) -> str:
    """Return what decides over times on this machine: the GPU, or the processor and its cores."""
    if target == "cuda":
        from loopnest.backends.cuda.driver.gpu_driver import find_driver

        return find_driver().device.name
    from loopnest.backends.cpu.c_compiler import cpu_model

    model = cpu_model()
    name = next((line.partition(":")[2].strip() for line in model.splitlines()
                 if line.startswith("model name")), "")  # fmt: skip
    short = hashlib.sha256(model.encode()).hexdigest()[:8]
    return f"{name or 'processor'}, {os.cpu_count()} cores ({short})"
