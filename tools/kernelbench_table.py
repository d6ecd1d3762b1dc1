"""The table of a run of KernelBench: rows, sums and remarks of what `bench_kernelbench.py` found.

A row is what is known of a problem, by name; what was not asked for is missing.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from rich.table import Table

LIMITS = (
    "problems that are not judged by the bound alone, that no kernel computes alone, wrong ones, "
    "those without a proof for all sizes, and those below half of eager's speed"
)


def is_right(row: Mapping[str, Any]) -> bool:
    return bool(row.get("error_of_generated", math.inf) <= 1)


def is_generated(row: Mapping[str, Any]) -> bool:
    return is_right(row) and not row["not_generated"] and row["launches"] > 0


def cells(row: Mapping[str, Any]) -> list[str]:
    def shown(key: str) -> str:
        value = row.get(key)
        return "" if value is None else f"{value:.2f}"

    right = "right" if is_right(row) else "WRONG" if "error_of_generated" in row else "failed"
    generated = "yes" if is_generated(row) else "no" if "not_generated" in row else ""
    proved = f"{row['proved']}/{row['kernels']}" if "proved" in row else ""
    symbolic = f"{row['all_sizes']}/{row['symbolic']}" if row.get("symbolic") else ""
    times = [shown(f"{key}_ms") for key in ("eager", "inductor", "library", "generated")]
    name = str(row["problem"])
    return [
        name.split("_")[0],
        name.split("_", 1)[1].strip("_").replace("_", " ")[:48],
        right,
        " / ".join([f"{row[key]:.2g}" for key in _ERRORS if key in row]),
        generated,
        proved,
        symbolic or ("no" if "all_sizes" in row else ""),
        ", ".join(row.get("schedules", [])),
        shown("first_call_s"),
        *times,
    ]


_ERRORS = ("error_of_generated", "error_of_eager")
HEADINGS = (
    *(
        "",
        "problem",
        "result",
        "of what is allowed / eager",
        "generated",
        "proved",
        "for all sizes",
        "schedules",
    ),
    "first call, s",
    *("eager, ms", "inductor, ms", "library, ms", "generated, ms"),
)


def table_of(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(*HEADINGS)
    for row in rows:
        table.add_row(*cells(row))
    return table


def summary_of(rows: Sequence[Mapping[str, Any]]) -> str:
    right, generated = sum(map(is_right, rows)), sum(map(is_generated, rows))
    proofs = [r for r in rows if "proved" in r and is_generated(r)]
    proved = sum(r["proved"] == r["kernels"] for r in proofs)
    lines = [f"{len(rows)} problems: {right} right, {generated} right and generated"]
    if proofs:
        lines.append(f"every kernel proved at its sizes: {proved} of the generated ones")
    symbolic = [r for r in rows if "all_sizes" in r]
    if symbolic:
        whole = sum(r["symbolic"] == r["all_sizes"] > 0 for r in symbolic)
        lines.append(f"compiled for symbolic sizes and proved for all of them: {whole}")
    for key, name in (("library", "with library=True"), ("generated", "with library=False")):
        ratios = [r["eager_ms"] / r[f"{key}_ms"] for r in rows if r.get(f"{key}_ms")]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            lines.append(f"speed over eager, {name}: {mean:.2f} (geometric mean)")
    ratios = [r["inductor_ms"] / r["library_ms"] for r in rows if r.get("inductor_ms")]
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        lines.append(f"speed over inductor, with library=True: {mean:.2f} (geometric mean)")
    return "\n".join(lines)


def remarks_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each problem that falls short, with its reason."""
    lines = []
    for row in rows:
        reasons = [row["error"]] if "error" in row else []
        reasons += row.get("not_generated", [])
        if "error_of_generated" in row and not is_right(row):
            reasons.append(f"{row['error_of_generated']:.3g} times the error allowed")
        if row.get("judged_by", "the bound") != "the bound":
            reasons.append(f"judged by {row['judged_by']}")
        if row.get("all_sizes", 1) < row.get("symbolic", 1):
            reasons.append(f"proved for all sizes: {row['all_sizes']} of {row['symbolic']} kernels")
        if "why" in row:
            reasons.append(row["why"])
        if row.get("library_ms", 0) > 2 * row.get("eager_ms", math.inf):
            ratio = row["eager_ms"] / row["library_ms"]
            reasons.append(f"with library=True {ratio:.2f} of eager's speed")
        if reasons:
            lines.append(f"{row['problem'].split('_')[0]}. {'; '.join(reasons)}")
    return lines


def page_of(
    rows: Sequence[Mapping[str, Any]], level: int, threads: int, elements: int, flops: float
) -> str:
    """Return the page of a run whose problems were reduced to so many elements and operations."""
    import torch

    clock = {0: "a thread a core", 1: "time of the processor, one thread"}.get(
        threads, f"{threads} threads"
    )
    head = "| " + " | ".join(HEADINGS) + " |"
    lines = [
        f'# KernelBench, level {level}, by `torch.compile(backend="loopnest")`',
        "",
        f"{date.today()}, {machine()}, torch {torch.__version__}; {clock}; sizes reduced to "
        f"{elements} elements and {flops:.0e} operations. "
        "`python tools/bench_kernelbench.py FOLDER --write`.",
        "",
        *[f"- {line}" for line in summary_of(rows).splitlines()],
        "",
        head,
        "| " + " | ".join(["---"] * len(HEADINGS)) + " |",
        *["| " + " | ".join(cells(row)) + " |" for row in rows],
        "",
        f"## {LIMITS.capitalize()}",
        "",
        *[f"- {line}" for line in remarks_of(rows)],
    ]
    return "\n".join(lines) + "\n"


def machine() -> str:
    """Return the name of the processor and the number of its cores."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    names = [x.split(":")[1].strip() for x in text.splitlines() if x.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores"
