"""Tabulate what the machine code of our kernels takes: instructions, registers, spills, barriers.

Run it as `tools/run python tools/sass_table.py --help`.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

import click
from codegen_figures import FixedSizes, load_kernel
from sass_text import Code, Function, functions

import loopnest as ln
from loopnest.backends.cuda.toolchain.cuda_toolkit import load_nvrtc, nvrtc_build
from loopnest.scalar.dtypes import DType

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = (
    "instructions", "registers", "spilled",
    "STS", "LDS", "LDSM", "BAR", "LDG", "LDGSTS", "STG", "hot",
)  # fmt: skip
PRODUCTS = ("FFMA", "HFMA2", "IDP", "HMMA", "IMMA")
TYPES = (ln.float32, ln.float16)
ASIDE = ("rms_norm", "bounds")
"""Cases that are not in kernels/."""

HELP = """Tabulate what the machine code of our kernels takes, by NVRTC; no GPU needed.

Each "gpu" schedule of kernels/ with its own sizes known when the code is made, and some cases with
size symbols and assumptions; in float32 and float16.

\b
instructions  of the kernel, without slow paths (divisions of odd operands, warps that have parted)
registers     of a thread
spilled       bytes that a thread's instructions spill and bring back
STS LDS LDG STG
              accesses to memory: those of 16 bytes / all
LDSM LDGSTS   moves of matrices from shared memory; copies in flight into it
BAR           barriers of a block
hot           products with a sum (FFMA, HFMA2, IDP, HMMA, IMMA) in the loop with the most of them /
              all that is in it

Of several launches these are the sums, and the most registers that one takes.

With --from, files that --json wrote at one commit are shown, and nothing is measured.

With --before, a file that --json wrote at another commit, each figure stands as before -> after
where the two differ.
"""


@dataclass(frozen=True)
class Figures:
    """What one kernel takes, each as the text of a cell."""

    instructions: str
    registers: str
    spilled: str
    STS: str
    LDS: str
    LDSM: str
    BAR: str
    LDG: str
    LDGSTS: str
    STG: str
    hot: str


def fixed(kernel: ln.KernelDef, schedule: str, dtype: DType) -> ln.Kernel:
    """Return a kernel with its own sizes as numbers."""
    fusion = FixedSizes(kernel.name, kernel.sizes)
    with fusion:
        kernel.math(fusion, **({"dtype": dtype} if is_typed(kernel) else {}))
        kernel.schedules[schedule](fusion)
    return ln.lower(fusion)


def kernels() -> dict[str, ln.KernelDef]:
    """Return the kernels of all files of kernels/ by name, in the order of the files."""
    found: dict[str, ln.KernelDef] = {}
    for path in sorted((ROOT / "kernels").glob("*.py")):
        load_kernel(path.stem)
        own = vars(sys.modules[f"kernels.{path.stem}"]).values()
        found |= {value.name: value for value in own if isinstance(value, ln.KernelDef)}
    return found


Names: TypeAlias = "tuple[str, ...]"
Command: TypeAlias = "Callable[..., None]"


def _among_kernels(*others: str) -> Callable[[click.Context, click.Parameter, Names], Names]:
    """Return a callback of an option that refuses what is no kernel, and none of `others`."""

    def checked(context: click.Context, option: click.Parameter, names: Names) -> Names:
        there = [*kernels(), *others] if names else []
        for name in names:
            if name not in there:
                raise click.BadParameter(f"there is no {name}; there are {', '.join(there)}")
        return names

    return checked


def kernel_option(*others: str) -> Callable[[Command], Command]:
    """Return the option --kernel: the names of kernels, or of `others`."""
    there = "".join([f", or {name!r}" for name in others])
    return click.option(
        "--kernel",
        "-k",
        "names",
        multiple=True,
        metavar="NAME",
        callback=_among_kernels(*others),
        help=f"Only this one{there}; may be given several times.",
    )


def is_typed(kernel: ln.KernelDef) -> bool:
    """Whether the elements of a kernel may be of several types."""
    return "dtype" in inspect.signature(kernel.math).parameters


def rms_norm(dtype: DType) -> ln.Kernel:
    """Return y = x / sqrt(mean(x^2) + eps) * w; a block keeps its row in registers."""
    with ln.Fusion("rms_norm") as f:
        x, w = f.input("x", (4096, 1024), dtype), f.input("w", (1024,), dtype)
        wide = ln.cast(x, ln.float32)
        scale = ln.rsqrt(ln.mean(wide * wide, axis=1, keepdims=True) + 1e-5)
        y = ln.cast(wide * scale * ln.cast(w, ln.float32), dtype)
        f.output(y, "y")
    row, weight = x.cache_after(), w.cache_after()
    total = next(t for t in f.tensors if t.definition is not None and t.definition.reducer)
    y.split(1, 16 // dtype.size)
    y.split(1, 1, inner=False)
    ln.propagate(y)
    y.axis(0).parallelize(ln.ParallelType.grid_x)
    for tensor in (row, total):
        tensor.compute_at(y, 1)
    weight.compute_at(y, 3)
    for tensor in (row, total, y):
        tensor.axis(2).parallelize(ln.ParallelType.block_x)
    for tensor in (row, weight, y):
        tensor.axis(-1).parallelize(ln.ParallelType.vectorize)
    f.inline_most()
    return ln.lower(f)


def bounded_layernorm(kernel: ln.KernelDef, dtype: DType, *facts: str) -> ln.Kernel:
    """Return the layernorm of a block a row, 8 parts a thread, under assumptions on D."""
    fusion = ln.Fusion("layernorm")
    with fusion:
        kernel.math(fusion, dtype=dtype)
        for fact in facts:
            fusion.assume(fact)
        kernel.schedules["gpu"](fusion, parts=8)
    return ln.lower(fusion)


def cases(names: Names) -> Iterator[tuple[str, DType, ln.Kernel]]:
    """Yield each case: its label, its type, the kernel."""
    made = kernels()
    for name, kernel in made.items():
        for schedule in [s for s in kernel.schedules if s.startswith("gpu")]:
            for dtype in TYPES if is_typed(kernel) else TYPES[:1]:
                if names and name not in names:
                    continue
                try:
                    made_for = fixed(kernel, schedule, dtype)
                except ln.LoweringError as error:  # a schedule for wider elements
                    click.echo(f"{name}@{schedule} | {dtype}: left out: {error}", err=True)
                else:
                    yield f"{name}@{schedule}", dtype, made_for
    for dtype in TYPES:
        if not names or "rms_norm" in names:
            yield "rms_norm, 4096 x 1024", dtype, rms_norm(dtype)
        if not names or "bounds" in names:
            for facts in (("D <= 2048",), ("D == 4096",), ("D % 256 == 0", "D <= 2048")):
                bounded = bounded_layernorm(made["layernorm"], dtype, *facts)
                yield f"layernorm@gpu(parts=8), {', '.join(facts)}", dtype, bounded


def figures(kernel: ln.Kernel, arch: str) -> Figures:
    """Return what a kernel takes on one architecture, in all of its launches."""
    launches = list(functions(kernel.sass(arch)).values())
    code = Code(tuple([i for launch in launches for i in launch.code().instructions]))
    used = kernel.resources(arch)
    stores, reads, loads, writes = [
        "/".join(map(str, code.accesses(name))) for name in ("STS", "LDS", "LDG", "STG")
    ]
    return Figures(
        str(len(code)), str(used.registers), str(used.spill_bytes), stores, reads,
        str(code.names["LDSM"]), str(code.names["BAR"]), loads, str(code.names["LDGSTS"]), writes,
        hottest(launches),
    )  # fmt: skip


def hottest(launches: Sequence[Function]) -> str:
    """Return products with a sum / all instructions of the loop that has the most of them."""
    found: list[tuple[int, int]] = []
    for function in launches:
        inner = [one for one in function.loops if not any(other < one for other in function.loops)]
        for code in map(function.code, inner):
            found.append((sum(code.names[name] for name in PRODUCTS), len(code)))
    products, count = max(found, default=(0, 0))
    return f"{products}/{count}" if products else ""


def measured(names: Names, archs: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """Return the figures of each case, by a key of label, type and architecture."""
    found: dict[str, dict[str, str]] = {}
    for label, dtype, kernel in cases(names):
        for arch in archs:
            key = f"{label} | {dtype} | {arch}"
            click.echo(key, err=True)
            found[key] = asdict(figures(kernel, arch))
    return found


def measure(names: Names, archs: tuple[str, ...]) -> dict[str, object]:
    """Return what --json writes."""
    return {"commit": commit(), "nvrtc": nvrtc_version(), "rows": measured(names, archs)}


def read(files: Sequence[Path]) -> dict[str, object]:
    """Return in one what --json wrote in several runs at one commit, by one compiler."""
    pages = [json.loads(file.read_text()) for file in files]
    if len({(page["commit"], page["nvrtc"]) for page in pages}) > 1:
        raise click.ClickException("the files are of several commits or compilers")
    rows = {key: row for page in pages for key, row in page["rows"].items()}
    return {**pages[0], "rows": dict(sorted(rows.items()))}


def commit() -> str:
    """Return the commit that the tool runs at, marked where files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def nvrtc_version() -> str:
    """Return the version of the compiler."""
    _, major, minor = load_nvrtc().nvrtcVersion()
    return nvrtc_build() or f"{major}.{minor}"


def markdown(now: Mapping[str, object], before: Mapping[str, object] | None) -> Iterator[str]:
    """Yield the lines of the page."""
    since = f", beside commit {before['commit']}" if before else ""
    yield f"# Machine code at commit {now['commit']}{since}"
    yield ""
    yield f"NVRTC {now['nvrtc']}. By `tools/sass_table.py`, whose help says what the columns are."
    yield ""
    yield f"| kernel | type | arch | {' | '.join(COLUMNS)} |"
    yield "|---|---|---|" + "---:|" * len(COLUMNS)
    rows, old = rows_of(now), {} if before is None else rows_of(before)
    for key, row in rows.items():
        yield f"| {key} | " + " | ".join([cell(c, row, old.get(key)) for c in COLUMNS]) + " |"


def rows_of(page: Mapping[str, object]) -> dict[str, dict[str, str]]:
    """Return the figures of a page that --json wrote."""
    rows = page["rows"]
    assert isinstance(rows, dict)
    return rows


def cell(column: str, row: Mapping[str, str], old: Mapping[str, str] | None) -> str:
    """Return one figure, with the earlier one where that was another."""
    same = old is None or old.get(column, row[column]) == row[column]
    return row[column] if same or old is None else f"{old[column]} → {row[column]}"


@click.command(
    help=HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@kernel_option(*ASIDE)
@click.option("--arch", "archs", multiple=True, default=("sm_80", "sm_90"), show_default=True)
@click.option(
    "--from", "made", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--before", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--json", "data", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--markdown", "page", type=click.Path(dir_okay=False, path_type=Path))
def main(
    names: tuple[str, ...],
    archs: tuple[str, ...],
    made: tuple[Path, ...],
    before: Path | None,
    data: Path | None,
    page: Path | None,
) -> None:
    now = read(made) if made else measure(names, archs)
    lines = list(markdown(now, json.loads(before.read_text()) if before else None))
    click.echo("\n".join(lines))
    if data is not None:
        data.write_text(json.dumps(now, indent=1) + "\n")
    if page is not None:
        page.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
