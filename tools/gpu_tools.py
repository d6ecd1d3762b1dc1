"""compute-sanitizer and Nsight Compute around a process that runs one kernel once."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_subjects import Subject

CHECKS = ("memcheck", "racecheck", "synccheck", "initcheck")

READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
DURATION = "gpu__time_duration.sum"
SECTORS = tuple([f"l1tex__t_sectors_pipe_lsu_mem_global_op_{op}.sum" for op in ("ld", "st")])
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
METRICS = (READ, WRITTEN, CONFLICTS, DURATION, *SECTORS, WAVEFRONTS)

_ERRORS = 9
"""The exit status by which compute-sanitizer says that it found errors."""


def child(subject: Subject, sizes: Sequence[Mapping[str, int]], step: str = "") -> list[str]:
    """Return the command of a process for a step, or that runs a subject once at each size."""
    script = Path(__file__).with_name("gpu_check.py")
    place = f"{subject.file}:{subject.definition.name}@{subject.schedule}"
    given = [f"--dtype={subject.dtype}"] if subject.dtype else []
    given += [f"--step={step}"] if step else []
    return [sys.executable, str(script), "--once", place, *given, f"--sizes={json.dumps(sizes)}"]


def finding(command: Sequence[str], seconds: float) -> dict[str, Any]:
    """Return what a process finds: JSON in its last line; an end without one is an error."""
    done = _run(command, seconds)
    if done is None:
        return {"error": f"no end after {seconds:.0f} seconds"}
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    if done.returncode == 0 and lines:
        return dict(json.loads(lines[-1]))
    return {"error": lines[-1] if lines else f"it ended with exit status {done.returncode}"}


def find(tool: str) -> str | None:
    """Return the path of a tool, from PATH or from the usual place of the toolkit."""
    return shutil.which(tool) or shutil.which(tool, path="/usr/local/cuda/bin")


def sanitize(check: str, command: Sequence[str], seconds: float = 600) -> str:
    """Return "clean", or what compute-sanitizer says; "-" where it is missing."""
    tool = find("compute-sanitizer")
    if tool is None:
        return "-"
    full = [tool, "--tool", check, "--error-exitcode", str(_ERRORS), *command]
    done = _run(full, seconds)
    if done is None:
        return "timed out"
    if done.returncode == 0:
        return "clean"
    return verdict(done.stdout + done.stderr)


def verdict(output: str) -> str:
    """Return what the output of compute-sanitizer comes to: its summary, else its last line."""
    found = re.findall(r"(?:ERROR SUMMARY|RACECHECK SUMMARY): (.*)", output)
    lines = [line for line in output.strip().splitlines() if line.strip()]
    return (found or lines or ["failed without a word"])[-1].strip()


@dataclass(frozen=True, slots=True)
class Counters:
    """What the hardware counted of one launch.

    Args:
        bytes: of memory.
        conflicts: of banks.
        seconds: that it took.
        sectors: of GLOBAL memory, that loads and stores touched.
        wavefronts: of SHARED memory.
    """

    bytes: float
    conflicts: float
    seconds: float
    sectors: float
    wavefronts: float


def count(kernel: str, command: Sequence[str], seconds: float = 600) -> Counters | None:
    """Return what Nsight Compute counts of the kernel's launch; None where it is of no use."""
    tool = find("ncu")
    if tool is None:
        return None
    full = [tool, "--csv", "--page", "raw", "--print-units", "base", "--launch-count", "1",
            "--kernel-name", f"regex:^{re.escape(kernel)}_*$", "--metrics", ",".join(METRICS),
            *command]  # fmt: skip
    done = _run(full, seconds)
    return parse(done.stdout) if done is not None and done.returncode == 0 else None


def parse(output: str) -> Counters | None:
    """Read the table of Nsight Compute: names, units, then one line a launch."""
    lines = output.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return None
    rows = list(csv.DictReader(io.StringIO("\n".join(lines[start:]))))
    found = [row for row in rows if row["ID"]]
    if not found:
        return None

    def number(name: str) -> float:
        text = (found[0].get(name) or "nan").replace(",", "")
        return float(text) if text not in ("n/a", "") else float("nan")

    return Counters(
        number(READ) + number(WRITTEN), number(CONFLICTS), number(DURATION) / 1e9,
        sum([number(name) for name in SECTORS]), number(WAVEFRONTS),
    )  # fmt: skip


def _run(command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return None
