"""Compare the machine code of the benchmark kernels with what Triton and TVM make of the same math.

Run it as `tools/run python tools/compare_sass.py --help`.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import click
from codegen_figures import KERNELS, FixedSizes, load_kernel, static_sizes
from rich.console import Console
from rich.table import Table
from sass_text import Code, functions

import loopnest as ln
from loopnest.backends.cuda.toolchain.cubin import disassemble
from loopnest.backends.cuda.toolchain.cuda_toolkit import find_tool, load_nvrtc, nvrtc_build

OURS = "loopnest"
PEERS = Path(__file__).with_name("sass_peers.py")
MAKE_PEERS = """\
python3 -m venv /tmp/sass-peers
/tmp/sass-peers/bin/pip install 'triton==3.9.0' 'apache-tvm>=0.27'
tools/run python tools/compare_sass.py --peers /tmp/sass-peers/bin/python"""

COLUMNS = ("block", "out", "loop", "float", "all", "slow", "regs", "shared", "BAR", "WARPSYNC",
           "SHFL", "LDG", "STG", "LDS", "STS", "cp.async", "local")  # fmt: skip

HELP = f"""Compare the machine code of the benchmark kernels with Triton's and TVM's; no GPU needed.

The five kernels of codegen_figures.py, float32, at its sizes, all known when the code is made.
loopnest: every "gpu" schedule of kernels/, by NVRTC. Triton: the kernels of its tutorials, by its
own assembler. TVM: tensor expressions under DLight's default GPU schedules, CUDA through nvcc.

Counts are of instructions as they stand, not as they run; those of slow paths (divisions of odd
operands, warps that have parted) are counted apart.

\b
block     threads of a block
out       elements of the result that a thread makes
loop      instructions of the hot loop: the innermost one; "-" where all loops are unrolled
float     arithmetic in floating point among them (where there is no loop: among all)
all       instructions of the kernel, without slow paths
slow      instructions of slow paths
regs      registers of a thread
shared    bytes of shared memory of a block
BAR WARPSYNC SHFL         barriers of a block, of a warp; shuffles
LDG STG LDS STS cp.async  accesses to global and shared memory: those of 16 bytes / all
local     accesses to local memory: spilled registers, arrays indexed at run time

Peers live in an environment of their own. Without one, loopnest stands alone:

\b
{MAKE_PEERS}
"""


@dataclass(frozen=True)
class Row:
    """What stands in a kernel's machine code.

    Args:
        by: who made it.
        code: without slow paths.
        loop: its hot loop, if any.
        slow: instructions on slow paths.
        registers: of a thread.
        shared: bytes of a block.
        block: threads of a block.
        outputs: elements of the result a thread.
    """

    by: str
    code: Code
    loop: Code | None
    slow: int
    registers: int
    shared: int
    block: int
    outputs: float

    @property
    def cells(self) -> dict[str, str]:
        """Return the text of each column."""
        hot = self.code if self.loop is None else self.loop
        names = self.code.names
        found = {
            "block": str(self.block),
            "out": f"{self.outputs:g}",
            "loop": "-" if self.loop is None else str(len(self.loop)),
            "float": str(hot.floats),
            "all": str(len(self.code)),
            "slow": str(self.slow),
            "regs": str(self.registers),
            "shared": str(self.shared),
            "local": str(names["LDL"] + names["STL"]),
        }
        found |= {name: str(names[name]) for name in ("BAR", "WARPSYNC", "SHFL")}
        for column, name in {"cp.async": "LDGSTS"}.items() | {
            (name, name) for name in ("LDG", "STG", "LDS", "STS")
        }:
            wide, count = self.code.accesses(name)
            found[column] = f"{wide}/{count}" if count else "0"
        return found

    def worse_than(self, other: Row) -> Iterator[str]:
        """Yield in what this row is worse, as text; instructions by what they achieve."""
        if self.loop is None and other.loop is None:
            counts = [len(r.code) / r.outputs for r in (self, other)]
            yield from _more("instructions an element", *counts)
        elif self.loop is not None and other.loop is not None:
            loops = [len(c) / (c.floats or 1) for c in (self.loop, other.loop)]
            yield from _more("instructions of the loop to one of floating point", *loops)
        yield from _more("registers", self.registers, other.registers)
        yield from _more("bytes shared", self.shared, other.shared)
        for text, name in (("barriers", "BAR"), ("shuffles", "SHFL")):
            yield from _more(text, self.code.names[name], other.code.names[name])
        for name in ("LDG", "STG"):
            narrow, theirs = [c - w for w, c in (r.code.accesses(name) for r in (self, other))]
            if narrow and not theirs:
                yield f"{narrow} narrow {name} against none"


def _more(what: str, mine: float, theirs: float) -> Iterator[str]:
    if mine > 1.02 * theirs:
        yield f"{what} {mine:.4g} against {theirs:.4g}"


def make_row(
    by: str, name: str, cubin: bytes, shared: int, launch: tuple[int, int], outputs: int
) -> Row:
    """Return what stands in a cubin; `launch`: blocks, and threads of a block."""
    major = _nvrtc_version()[0]
    found = functions(disassemble(cubin, major))
    kernel = next((f for key, f in found.items() if key.startswith(name)), None)
    if kernel is None:
        raise click.ClickException(f"{by}'s {name}: no such kernel among {', '.join(found)}")
    blocks, threads = launch
    return Row(by, kernel.code(), kernel.hot_loop, kernel.unusual, _registers(cubin, major),
               shared, threads, outputs / (blocks * threads))  # fmt: skip


def _registers(cubin: bytes, major: int) -> int:
    tool = find_tool("cuobjdump", major)
    if tool is None:
        raise click.ClickException("cuobjdump was not found; pip install 'loopnest[nvrtc]'")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return max(map(int, re.findall(r"\bREG:(\d+)", text)))


def _nvrtc_version() -> tuple[int, int]:
    _, major, minor = load_nvrtc().nvrtcVersion()
    return major, minor


# Who makes it


def our_rows(name: str, sizes: Mapping[str, int], arch: str, symbolic: bool) -> Iterator[Row]:
    """Yield a row for each "gpu" schedule of a kernel."""
    kernel = load_kernel(name)
    for schedule in [s for s in kernel.schedules if s.startswith("gpu")]:
        fusion = ln.Fusion(name) if symbolic else FixedSizes(name, sizes)
        with fusion:
            kernel.math(fusion)
            kernel.schedules[schedule](fusion)
        lowered = ln.lower(fusion)
        config = lowered.launch(**(sizes if symbolic else {}))
        launch = (prod(config.grid), prod(config.block))
        label = f"{OURS} {schedule}" + (" (symbolic)" if symbolic else "")
        cubin = lowered.cubin(arch)
        yield make_row(label, name, cubin, config.shared_bytes, launch, _outputs(name, sizes))


def _outputs(name: str, sizes: Mapping[str, int]) -> int:
    return sizes["M"] * sizes["N"] if name == "gemm" else sizes["N"] * sizes["D"]


def run_peers(python: str, arch: str, kernels: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Return what `sass_peers.py` prints under the peers' Python."""
    wanted = [f"{name}={','.join(map(str, sizes))}" for name, sizes in kernels.items()]
    command = [python, str(PEERS), arch, *wanted]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise click.ClickException(f"{python} {PEERS.name} failed:\n{done.stderr.strip()}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def peer_row(by: str, name: str, found: Mapping[str, Any], arch: str, outputs: int) -> Row:
    """Return what stands in a peer's kernel."""
    if "cubin" in found:
        cubin, shared = base64.b64decode(found["cubin"]), found["shared"]
    else:
        cubin, shared = _nvcc(found["cuda"], arch)
    launch = (found["blocks"], found["threads"])
    return make_row(by, name, cubin, shared, launch, outputs)


def _nvcc(source: str, arch: str) -> tuple[bytes, int]:
    """Return the cubin of CUDA text, and its static shared memory."""
    tool = find_tool("nvcc", _nvrtc_version()[0])
    assert tool is not None
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder, "kernel.cu"), Path(folder, "kernel.cubin")
        file.write_text(source)
        command = [str(tool), "-cubin", f"-arch={arch}", "-Xptxas", "-v", "-o", str(out), str(file)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise click.ClickException(f"nvcc failed:\n{done.stderr.strip()}")
        shared = re.search(r"(\d+) bytes smem", done.stderr)
        return out.read_bytes(), int(shared[1]) if shared else 0


def nvcc_note() -> str:
    """Return nvcc's version, or ""."""
    tool = find_tool("nvcc", _nvrtc_version()[0])
    if tool is None:
        return ""
    text = subprocess.run([tool, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"\bV([\d.]+)", text)
    return f"nvcc {found[1]}" if found else "nvcc"


# Showing


def show(console: Console, tables: Mapping[str, Sequence[Row]], sizes: Mapping[str, str]) -> None:
    table = Table(title_justify="left")
    table.add_column("kernel", no_wrap=True)
    table.add_column("by", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for name, rows in tables.items():
        for place, row in enumerate(rows):
            first = [name, sizes[name]][place] if place < 2 else ""
            table.add_row(
                first, row.by, *[row.cells[c] for c in COLUMNS], end_section=place == len(rows) - 1
            )
    console.print(table)


def markdown(tables: Mapping[str, Sequence[Row]], sizes: Mapping[str, str]) -> Iterator[str]:
    yield f"| kernel | by | {' | '.join(COLUMNS)} |"
    yield "|---|---|" + "---:|" * len(COLUMNS)
    for name, rows in tables.items():
        for row in rows:
            cells = " | ".join([row.cells[c] for c in COLUMNS])
            yield f"| {name} {sizes[name]} | {row.by} | {cells} |"


def verdicts(tables: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    """Yield a line for each peer and kernel: in what our first schedule is worse."""
    for name, rows in tables.items():
        mine = rows[0]
        for row in rows[1:]:
            if not row.by.startswith(OURS):
                found = "; ".join(mine.worse_than(row)) or "nothing"
                yield f"{name}: worse than {row.by} in {found}"


@click.command(
    help=HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option(
    "--kernel",
    "-k",
    "names",
    multiple=True,
    type=click.Choice(list(KERNELS)),
    help="Only this kernel; may be given several times.",
)
@click.option("--peers", metavar="PYTHON", help="The Python of the peers' environment.")
@click.option("--arch", default="sm_90", show_default=True, help="The architecture.")
@click.option("--symbolic", is_flag=True, help="Our kernels with symbolic sizes too.")
@click.option(
    "--markdown",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the table to this file too.",
)
def main(
    names: tuple[str, ...], peers: str | None, arch: str, symbolic: bool, file: Path | None
) -> None:
    chosen = {name: KERNELS[name] for name in names or KERNELS}
    console = Console(width=None if Console().is_terminal else 200)
    notes = [f"{arch}, float32", f"NVRTC {nvrtc_build() or '.'.join(map(str, _nvrtc_version()))}"]
    found: dict[str, Any] = {"notes": [], "peers": {}}
    if peers is None:
        console.print(f"loopnest alone, since no --peers was given. To have them:\n{MAKE_PEERS}\n")
    else:
        found = run_peers(peers, arch, chosen)
    nvcc = nvcc_note()
    notes += [*found["notes"], *([nvcc] if nvcc else [])]
    tables: dict[str, list[Row]] = {}
    for name in chosen:
        sizes = static_sizes(load_kernel(name))
        rows = list(our_rows(name, sizes, arch, symbolic=False))
        if symbolic:
            rows += our_rows(name, sizes, arch, symbolic=True)
        for by, kernels in found["peers"].items():
            made = kernels[name]
            if "cuda" in made and not nvcc:
                made = {"missing": "it wants nvcc, which was not found"}
            if "missing" in made:
                notes.append(f"{by}'s {name} left out: {made['missing']}")
            else:
                rows.append(peer_row(by, name, made, arch, _outputs(name, sizes)))
        tables[name] = rows
    shapes = {name: "x".join(map(str, sizes)) for name, sizes in chosen.items()}
    console.print("; ".join(notes), "\n", style="dim")
    show(console, tables, shapes)
    lines = list(verdicts(tables))
    for line in lines:
        console.print(line)
    if file is not None:
        text = [f"# Machine code, {'; '.join(notes)}", "", *markdown(tables, shapes), "",
                *[f"- {line}" for line in lines]]  # fmt: skip
        file.write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
