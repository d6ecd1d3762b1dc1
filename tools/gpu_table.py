"""What `gpu_check.py` found so far: a line of JSON a step, and the table that is made of them."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_tools import CHECKS

from loopnest.backends.cuda.driver.gpu_driver import Device

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Journal:
    """The findings of one day on one GPU; every new one is written down at once, with the table.

    Args:
        folder: where both files go.
        device: the GPU.
        day: as ``2026-01-31``.
        commit: of what is measured; findings of another commit do not count.
    """

    folder: Path
    device: Device
    day: str
    commit: str

    @property
    def table(self) -> Path:
        """The table, for people."""
        return self._file(".md")

    def _file(self, suffix: str) -> Path:
        return self.folder / f"gpu_{self.device.name.replace(' ', '_')}_{self.day}{suffix}"

    @property
    def _lines(self) -> Path:
        return self._file(".jsonl")

    def read(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return subject -> step -> finding; a line that was cut off does not count."""
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for line in self._lines.read_text().splitlines() if self._lines.exists() else ():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if entry["commit"] == self.commit:
                found.setdefault(entry["subject"], {})[entry["step"]] = entry["found"]
        return found

    def write(self, subject: str, step: str, found: Mapping[str, Any]) -> None:
        """Note a finding, and make the table anew."""
        self.folder.mkdir(parents=True, exist_ok=True)
        entry = {"commit": self.commit, "subject": subject, "step": step, "found": found}
        with self._lines.open("a+b") as file:
            end = file.seek(0, 2)
            file.seek(max(end - 1, 0))
            whole = file.read(1) in (b"", b"\n")  # else the line before was cut off
            file.write((b"" if whole else b"\n") + json.dumps(entry).encode() + b"\n")
        self.table.write_text(markdown(self.read(), self.device, self.day, self.commit))

    def forget(self) -> None:
        """Begin anew."""
        self._lines.unlink(missing_ok=True)


GPU = "GPU"
"""The subject of what belongs to no kernel: the bandwidth of a copy."""


def is_bad(step: str, found: Mapping[str, Any]) -> bool:
    """Whether a finding is a fault: a wrong result, a check that is not clean, an error."""
    if "error" in found:
        return True
    if step == "results":
        return not found["results"].startswith("right")
    return any(told not in ("clean", "-") for told in found.get("checks", {}).values())


def markdown(
    found: Mapping[str, Mapping[str, Mapping[str, Any]]], device: Device, day: str, commit: str
) -> str:
    """Return the report: what was measured on, what each column means, one line a subject."""
    bandwidth = found.get(GPU, {}).get("copy", {}).get("bandwidth")
    copy = "not measured" if bandwidth is None else f"{bandwidth / 1e9:.0f} GB/s"
    version = ".".join(map(str, device.cuda))
    lines = [
        f"# Kernels on {device.name}",
        "",
        f"{day}; {device.arch}, {device.multiprocessors} multiprocessors, driver of CUDA "
        f"{version}; copy bandwidth (read and written): {copy}; commit {commit}.",
        "",
        "- results: against the oracle, at ragged, even, degenerate and large sizes, arrays of the "
        "host and of the GPU, 32-bit and 64-bit indices",
        "- checks: compute-sanitizer's " + ", ".join(CHECKS),
        "- of copy: the time in which a copy moves the bytes that must move / our time",
        "- torch, Triton: our time / that of torch, and of torch.compile",
        "- memory: bytes that Nsight Compute counted / those that must move; conflicts: of banks",
        "- sectors, wavefronts: those that it counted / those that `ln.profile` counts",
        "",
        "| kernel | results | checks | sizes | time | GB/s | of copy | torch | Triton | memory "
        "| conflicts | sectors | wavefronts |",
        f"| --- | --- | --- | ---{' | ---:' * 9} |",
        *[_line(name, found[name], bandwidth) for name in sorted(found) if name != GPU],
    ]
    return "\n".join(lines) + "\n"


def commit_here() -> str:
    """Return the commit that is measured, marked where files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def _line(name: str, steps: Mapping[str, Mapping[str, Any]], bandwidth: float | None) -> str:
    flat: dict[str, Any] = {}
    for step, found in steps.items():
        flat |= {f"{step} failed": found["error"]} if "error" in found else dict(found)
    told = [flat.get("results", "")]
    told += [f"{key}: {value}" for key, value in flat.items() if key.endswith(" failed")]
    ran = {k: v for k, v in flat.get("checks", {}).items() if v != "-"}
    bad = [f"{k}: {v}" for k, v in ran.items() if v != "clean"]
    checks = "; ".join(bad) or ("clean" if ran else "")
    sizes = ", ".join([f"{k}={v}" for k, v in flat.get("sizes", {}).items()])
    results = "; ".join([text for text in told if text])
    cells: Sequence[str] = [name, results, checks, sizes, *_times(flat, bandwidth), *_counts(flat)]
    plain = [" ".join(cell.replace("|", "/").split()) for cell in cells]
    return f"| {' | '.join(plain)} |"


def _times(flat: Mapping[str, Any], bandwidth: float | None) -> list[str]:
    seconds = flat.get("seconds")
    if seconds is None:
        return [""] * 5
    peers = [flat.get(name) for name in ("eager", "compiled")]
    ratios = ["" if other is None else f"{seconds / other:.2f}" for other in peers]
    share = "" if bandwidth is None else f"{flat['moved'] / bandwidth / seconds:.0%}"
    return [f"{seconds * 1e6:.1f} µs", f"{flat['moved'] / seconds / 1e9:.0f}", share, *ratios]


def _counts(flat: Mapping[str, Any]) -> list[str]:
    if "bytes" not in flat:
        return [""] * 4
    share, conflicts = flat["bytes"] / flat["moved"], flat["conflicts"]
    plain = ["" if math.isnan(v) else t for v, t in
             ((share, f"{share:.2f}"), (conflicts, f"{conflicts:.0f}"))]  # fmt: skip
    pairs = [flat.get(name, [math.nan, 0]) for name in ("sectors", "wavefronts")]
    least = "" if flat.get("exact", True) else "<="
    return plain + [f"{least}{a / b:.3f}" if b and not math.isnan(a) else "" for a, b in pairs]
