"""What schedules take: `tools/run python tools/kernel_numbers.py --help`."""

from __future__ import annotations

import runpy
from pathlib import Path

import click

import loopnest as ln
from loopnest.devtools.harness import make_arguments

ARCH = "sm_90"
HEAD = "| schedule | blocks | threads | registers | spilled | shared | C, ms |"


def row(kernel: ln.KernelDef, name: str, sizes: dict[str, int]) -> str:
    """Return the row of a schedule; of the math with `inline_most` where the name is empty."""
    if name:
        fusion = kernel.fusion(name)
    else:
        with ln.Fusion(kernel.name) as fusion:
            kernel.math(fusion)
            ln.inline_most()
    lowered = ln.lower(fusion)
    if name.startswith("gpu"):
        launch = lowered.launch(**sizes)
        found = lowered.resources(ARCH)
        numbers = [
            " x ".join(str(n) for n in launch.grid if n > 1) or "1",
            " x ".join(str(n) for n in launch.block if n > 1) or "1",
            found.registers,
            found.spill_store_bytes,
            launch.shared_bytes,
            "",
        ]
    else:
        arguments = make_arguments(fusion, sizes, kernel.ranges)
        function = ln.compile(lowered, target="c", threads=1)
        result = function.bench(*arguments.fresh(), **arguments.keywords(fusion))
        numbers = ["", "", "", "", "", f"{min(result.times) * 1e3:.3g}"]
    cells = [f"`{name}`" if name else "inlined only", *[str(n) for n in numbers]]
    return "| " + " | ".join(cells) + " |"


HELP = """Print what the schedules of FILE take, as Markdown for a page of sched/docs/guide/kernels.

A row for each schedule, after one for the math with `inline_most` alone. Schedules for a GPU: the
launch at the sizes of the file, and registers, spilled bytes and bytes of shared memory of a thread
or block on sm_90, by NVRTC. Those that begin with "cpu": the least time of some calls in C, on one
core of this machine.

\b
    tools/run python tools/kernel_numbers.py kernels/softmax.py
    tools/run python tools/kernel_numbers.py kernels/gemm.py -D M=256 -D N=256 -D K=256
"""


@click.command(
    help=HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.argument("file", type=click.Path(path_type=Path, exists=True))
@click.option(
    "-D", "sizes", multiple=True, metavar="N=1000", help="Set a size; may be given several times."
)
def main(file: Path, sizes: tuple[str, ...]) -> None:
    given: dict[str, int] = {}
    for text in sizes:
        name, _, size = text.partition("=")
        if not size.isdecimal():
            raise click.BadParameter(f"{text!r} sets no size; write -D N=1000")
        given[name] = int(size)
    for kernel in runpy.run_path(str(file)).values():
        if not isinstance(kernel, ln.KernelDef):
            continue
        chosen = {**kernel.sizes, **given}
        shown = ", ".join(f"{name} = {size}" for name, size in chosen.items())
        print(f"{kernel.name}: {shown}\n\n{HEAD}\n{'| --- ' * 7}|")
        for name in ("", *kernel.schedules):
            try:
                print(row(kernel, name, chosen), flush=True)
            except ln.LoopnestError as error:
                raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main()
