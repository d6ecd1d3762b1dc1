#!/usr/bin/env python
"""What is claimed of KernelBench: error bounds, and results that no batch size changes."""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import click
from bench_kernelbench import listed, loaded, problems_of

import loopnest as ln

HERE = Path(__file__).resolve().parent
Row = dict[str, Any]

HELP = """Hold what loopnest claims of the problems of KernelBench against what is computed.

FOLDER is a copy of github.com/ScalingIntelligence/KernelBench; a load.py beside the problems may
make them smaller. Of each problem:

\b
- bounds: `loopnest.torch.error_bound` of the model, whether torch's own results lie within it
  (`assert_close`), and that zeros do not;
- batch: the model is compiled for "c" with the first extent of its first input as a symbol, and
  `ln.batch_invariant` asked of each kernel; then half of the rows are computed alone, and compared
  bit by bit with these rows among all.

Each problem runs in a process of its own, and what is known is kept in --state.

\b
    tools/run python tools/kernelbench_claims.py FOLDER --write
"""


@click.command(help=HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--level", default=1, show_default=True, help="Which problems.")
@click.option("--elements", default=1 << 16, show_default=True, help="Of a tensor at most.")
@click.option("--flops", default=1e8, show_default=True, help="Operations of a call at most.")
@click.option("--limit", default=120.0, show_default=True, help="Seconds that a problem may take.")
@click.option("--state", type=click.Path(dir_okay=False, path_type=Path), help="What is known.")
@click.option("--write", is_flag=True, help="Write the table to tools/results.")
def main(
    folder: Path, level: int, elements: int, flops: float, limit: float, state: Path | None,
    write: bool,
) -> None:  # fmt: skip
    kept = state or HERE.parent / "build" / f"kernelbench-claims{level}.json"
    known: dict[str, Row] = json.loads(kept.read_text()) if kept.exists() else {}
    problems = problems_of(folder, level)
    for problem in [p for p in problems if p.stem not in known]:
        known[problem.stem] = asked(folder, problem, elements, flops, limit)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(known, indent=1))
    rows = [known[p.stem] for p in problems]
    page = page_of(rows, level, elements, flops)
    print(page)
    if write:
        (HERE / "results" / f"kernelbench_level{level}_claims_{date.today()}.md").write_text(page)
    raise SystemExit(1 if any(map(is_wrong, rows)) else 0)


def asked(folder: Path, problem: Path, elements: int, flops: float, limit: float) -> Row:
    """Return what a process of its own finds out about a problem, even if it fails or hangs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "loopnest.torch", "loopnest.proofs"])
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch) / "answer.json"
        answer.write_text("{}")
        process = context.Process(target=_answered, args=(folder, problem, answer, elements, flops))
        process.start()
        process.join(limit)
        row: Row = json.loads(answer.read_text())
        if process.is_alive():
            process.kill()
            process.join()
            row["late"] = f"it took more than {limit:.0f} s"
    return {"problem": problem.stem, **row}


def _answered(folder: Path, problem: Path, answer: Path, elements: int, flops: float) -> None:
    import torch

    warnings.filterwarnings("ignore")
    row: Row = {}
    with torch.no_grad():
        for part in (bounds, batch):
            try:
                model, inputs = loaded(folder, problem, elements, flops)
                row |= part(model, inputs)
            except Exception as error:  # whatever it is, it is the answer
                text = " ".join(str(error).split())[:200]
                row[f"{part.__name__}_error"] = f"{type(error).__name__}: {text}"
            answer.write_text(json.dumps(row))


def bounds(model: Any, inputs: Sequence[Any]) -> Row:
    """Return how much of the results of a model is bounded, and who lies within."""
    import torch

    from loopnest.torch import assert_close, error_bound

    def refused(got: Any) -> str:
        try:
            assert_close(got, model, *inputs)
        except AssertionError as error:
            return " ".join(str(error).split())[:300]
        return ""

    found = listed(error_bound(model, *inputs))
    own = model(*inputs)
    zeros = [torch.zeros_like(result) for result in listed(own)]
    return {
        "elements": sum(bound.numel() for bound in found),
        "bounded": sum(int(bound.isfinite().sum()) for bound in found),
        "torch": refused(own),
        "zeros": refused(type(own)(zeros) if isinstance(own, (tuple, list)) else zeros[0]),
    }


def batch(model: Any, inputs: Sequence[Any]) -> Row:
    """Return what is claimed of kernels whose batch is a symbol, and what the bits say."""
    import torch
    from torch._dynamo.exc import UserError
    from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

    from loopnest.torch import loopnest_backend, recording

    rows = inputs[0].shape[0] if isinstance(inputs[0], torch.Tensor) and inputs[0].dim() else 0
    if rows < 2:
        return {"batch_error": f"its first input has {rows} rows"}
    sharing = [x for x in inputs if isinstance(x, torch.Tensor) and x.dim() and len(x) == rows]
    for marked in ([inputs[0]], sharing):
        torch._dynamo.reset()
        for tensor in marked:
            torch._dynamo.mark_dynamic(tensor, 0)
        with recording() as programs:
            run = torch.compile(model, backend=loopnest_backend, options={"library": False})
            try:
                whole = listed(run(*inputs))
            except (
                UserError,
                ConstraintViolationError,
            ):  # other inputs have as many rows as the first
                continue
        break
    else:
        return {"batch_error": "torch takes the number of its rows for a constant"}
    kernels = [x.kernel for p in programs for x in p.kernels if x.kernel]
    names = sorted({name for p in programs for name in p.run.sizes})
    claims = [ln.batch_invariant(k, n) for k in kernels for n in names if n in _sizes(k)]
    half = [x[: rows // 2] if any(x is m for m in marked) else x for x in inputs]
    alone = listed(run(*half))
    same = [_same_bits(a, b, rows) for a, b in zip(alone, whole, strict=True)]
    others = sorted({why for p in programs for why in p.in_torch.values()})
    witness = next((str(claim.witness) for claim in claims if not claim), "")
    return {
        "kernels": len(kernels),
        "symbolic": bool(names),
        "claims": [claim.status for claim in claims],
        "witness": witness[:300],
        "in_torch": others,
        "same_bits": all(same),
    }


def _sizes(kernel: Any) -> list[str]:
    return [param.name for param in kernel.params if param.kind == "size"]


def _same_bits(alone: Any, whole: Any, rows: int) -> bool:
    """Whether rows that were computed alone have the bits that they have among all."""
    import torch

    part = whole[: len(alone)] if whole.dim() and len(whole) == rows else whole
    return bool(torch.equal(alone.nan_to_num(7.0), part.nan_to_num(7.0)))


def is_wrong(row: Row) -> bool:
    """Whether a claim did not hold."""
    claimed = set(row.get("claims", [])) == {"same"} and not row.get("in_torch")
    return bool(row.get("torch") or row.get("zeros") == "" or (claimed and not row["same_bits"]))


def claim_of(row: Row) -> str:
    """Return what is claimed of the batch of a problem, as the table says it."""
    if "batch_error" in row or "kernels" not in row:
        return "none"
    if row["in_torch"]:
        return "none: torch computes a part"
    if not row["symbolic"]:
        return "none: no symbol"
    statuses = set(row["claims"])
    return next((s for s in ("different", "unknown") if s in statuses), "same")


def page_of(rows: Sequence[Row], level: int, elements: int, flops: float) -> str:
    """Return the table as a page."""
    known = [row for row in rows if "bounded" in row]
    claims = [claim_of(row) for row in rows]
    confirmed = [row for row, claim in zip(rows, claims, strict=True) if claim == "same"]
    lines = [
        f"# KernelBench level {level}: bounds, and batches",
        "",
        f"At sizes of at most {elements} elements a tensor and {flops:.0e} operations, on c.",
        "",
        f"- Bounds: {len(known)} of {len(rows)} problems have one; in "
        f"{sum(row['bounded'] == row['elements'] for row in known)} every element is bounded. "
        f"torch's results lie within in {sum(not row['torch'] for row in known)}, zeros are "
        f"refused in {sum(bool(row['zeros']) for row in known)}.",
        f"- Batches: {len(confirmed)} problems are claimed to give the same bits whatever the "
        f"batch; in {sum(row['same_bits'] for row in confirmed)} half of the rows alone have the "
        f"bits that they have among all. {claims.count('different')} differ by a witness, "
        f"{claims.count('unknown')} are not known.",
        "",
        "| problem | bounded | torch | zeros | batch | bits | why |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def cells(row: Mapping[str, Any]) -> list[str]:
    """Return a row of the table."""
    share = "none"
    if "bounded" in row:
        whole = row["bounded"] == row["elements"]
        share = "all" if whole else f"{row['bounded']} of {row['elements']}"
    why = [row.get(name, "") for name in ("bounds_error", "torch", "batch_error", "late")]
    why += row.get("in_torch", [])
    why += [row.get("witness", "")]
    said = "; ".join([text for text in why if text])
    return [
        row["problem"].replace("_", " "),
        share,
        "" if "torch" not in row else "outside" if row["torch"] else "inside",
        "" if "zeros" not in row else "refused" if row["zeros"] else "accepted",
        claim_of(dict(row)),
        "" if "same_bits" not in row else "same" if row["same_bits"] else "differ",
        said[:200].replace("|", "/"),
    ]


if __name__ == "__main__":
    sys.exit(main())
