"""The command line: ``loopnest list|dump|run|bench FILE``, and the same as a kernel file's own.

`main` serves both: run by a kernel file (``if __name__ == "__main__": ln.main()``) it works on the
kernels of that file. A mistake of the user's ends in one sentence, or in the part of the traceback
that lies in their file; exit status 1.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loopnest.errors import LoopnestError, NotSupported
from loopnest.script import kernels_of
from loopnest.selection import Choice, CliError, Source, choose

if TYPE_CHECKING:
    from loopnest.fusion import Fusion
    from loopnest.kernel import Kernel
    from loopnest.runtime.launch import CompiledKernel
    from loopnest.trial import Arguments

Command: TypeAlias = Callable[..., Any]

_PACKAGE = str(Path(__file__).parent) + os.sep
_TARGETS = ("auto", "cuda", "c", "interpret")
_PASSES = ("groups", "tree", "allocation", "indexing", "predicates", "unswitch")
STAGES = ("math", *_PASSES, "nest", "cuda", "c", "ptx", "sass")
"""What `dump` prints; "tree" is the pass that `Kernel.stages` calls "nest"."""

_DEVICE_OF = {"cuda": "cuda", "ptx": "cuda", "sass": "cuda", "c": "c"}
_LEXERS = {"cuda": "cuda", "c": "c"}
_SMALL = 64
_MOST_POINTS = 1 << 26
PATIENCE = 2.0
"""Seconds after which a terminal is told what goes on."""


class UserCodeError(click.ClickException):
    """An exception that the user's own code raised: its traceback, as far as it is theirs."""

    def __init__(self, error: BaseException, file: str) -> None:
        super().__init__(str(error))
        frames = traceback.extract_tb(error.__traceback__)
        first = next((n for n, f in enumerate(frames) if f.filename == file), len(frames))
        own = [f for f in frames[first:] if not f.filename.startswith(_PACKAGE)]
        head = ["Traceback (most recent call last):\n"] if own else []
        lines = [*head, *traceback.format_list(own), *traceback.format_exception_only(error)]
        self.text = "".join(lines)

    def show(self, file: Any = None) -> None:
        Console(stderr=True, file=file, soft_wrap=True).print(Text(self.text.rstrip()))


class _Group(click.Group):
    """Commands whose errors are rendered here, whoever calls them."""

    def invoke(self, ctx: click.Context) -> Any:
        source: Source = ctx.obj
        try:
            return super().invoke(ctx)
        except LoopnestError as error:
            raise CliError(f"{_place(error, source.file)}{error}") from error
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if source.file and _passes(error, source.file):
                raise UserCodeError(error, source.file) from error
            raise


def _place(error: LoopnestError, file: str) -> str:
    """Return where in the user's file an error arose, as ``softmax.py:12: ``."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    return f"{Path(file).name}:{lines[-1]}: " if lines else ""


def _passes(error: BaseException, file: str) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    syntax = isinstance(error, SyntaxError) and error.filename == file
    return syntax or any(frame.filename == file for frame in frames)


# What is printed


def _console() -> Console:
    return Console(highlight=False, soft_wrap=True)


def _print_code(console: Console, text: str, lexer: str) -> None:
    """Print a program, in colour on a terminal only."""
    if console.is_terminal and not console.no_color:
        from rich.syntax import Syntax

        console.print(Syntax(text.rstrip("\n"), lexer, theme="ansi_dark"))
    else:
        click.echo(text if text.endswith("\n") else text + "\n", nl=False)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def _print_table(table: Table) -> None:
    """Print a table in its full width: a cut name or shape would tell nothing."""
    console = Console(highlight=False, width=1000)
    with console.capture() as caught:
        console.print(table)
    lines = [line.rstrip() for line in caught.get().splitlines()]
    click.echo("\n".join(lines), color=console.is_terminal)


def _tensor_table(kernel: Kernel) -> Table:
    """Return where each tensor lives: its buffer, and how many loops it shares with its users."""
    table = _table("tensor", "dtype", "shape", "memory", "buffer", "compute_at")
    shapes = {buffer.name: buffer.shape for buffer in kernel.buffers}
    for tensor in kernel.tensors:
        held = tensor.buffer
        table.add_row(
            Text(tensor.name),
            tensor.dtype.name,
            _shape(tensor.shape),
            tensor.memory.value,
            Text("-") if held is None else Text(held) + _shape(shapes[held]),
            str(tensor.compute_at_pos),
        )
    return table


def _shape(sizes: Sequence[object]) -> Text:
    return Text(f"[{', '.join([str(size) for size in sizes])}]")


@contextmanager
def _patience(what: str) -> Iterator[None]:
    """Say what goes on where it takes longer than `PATIENCE`, on a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    status = console.status(f"{what} ...")
    timer = Timer(PATIENCE, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()


# The commands


def list_kernels(source: Source, spec: str) -> None:
    """List the kernels of FILE, their sizes, and their schedules with parameters."""
    if not source.script:
        source.choose(spec)
    table = _table("kernel", "schedule", "parameters", "sizes")
    for kernel in source.kernels():
        sizes = ", ".join([f"{name}={size}" for name, size in kernel.sizes.items()])
        for name in kernel.schedules or ("",):
            known = kernel.parameters(name)
            shown = ", ".join([f"{n}={v}" for n, v in known.items()])
            table.add_row(kernel.name, name or "-", shown or "-", sizes or "-")
    _print_table(table)


def dump(
    source: Source,
    spec: str,
    stage: str | None,
    target: str | None,
    arch: str,
    define: Sequence[str],
    param: Sequence[str],
) -> None:
    """Print a kernel: its math, the loop nest after a pass, CUDA C++, C, PTX or SASS."""
    if stage is None:
        stage = target if target in ("cuda", "c") else "nest"
    device = target if target not in (None, "auto") else _DEVICE_OF.get(stage)
    choice = choose(source, spec, device, define, param)
    fusion = choice.fusion()
    choice.check_values(fusion)  # sizes stay symbolic in every text
    text = _stage_text(choice, fusion, stage, arch)
    _print_code(_console(), text, _LEXERS.get(stage, "python"))


def _stage_text(choice: Choice, fusion: Fusion, stage: str, arch: str) -> str:
    if stage == "math":
        from loopnest.ops.describe import math_text

        return math_text(fusion) + "\n"
    from loopnest.kernel import lower

    kernel = lower(fusion)
    if stage in _PASSES:
        return kernel.stages["nest" if stage == "tree" else stage]
    with _patience(f"compiling {choice.label}"):
        makers: Mapping[str, Callable[[], str]] = {
            "nest": lambda: str(kernel),
            "cuda": kernel.cuda,
            "c": kernel.c,
            "ptx": lambda: kernel.ptx(arch),
            "sass": lambda: kernel.sass(arch),
        }
        return makers[stage]()


def run(
    source: Source,
    spec: str,
    target: str | None,
    seed: int,
    define: Sequence[str],
    param: Sequence[str],
) -> None:
    """Run a kernel: show its loop nest, compare its results, measure its time."""
    console = _console()
    choice, compiled, fusion, arguments = _prepared(source, spec, target, seed, define, param)
    _print_code(console, str(compiled.kernel), "python")
    click.echo()
    _print_table(_tensor_table(compiled.kernel))
    click.echo()
    _describe(choice, compiled, arguments)
    right = _compared(console, choice, compiled, fusion, arguments)
    _timed(choice, compiled, fusion, arguments)
    if not right:
        raise CliError(f"{choice.label} on target {compiled.target}: the result is wrong")


def bench(
    source: Source,
    spec: str,
    target: str | None,
    seed: int,
    define: Sequence[str],
    param: Sequence[str],
) -> None:
    """Measure the time of a kernel."""
    choice, compiled, fusion, arguments = _prepared(source, spec, target, seed, define, param)
    _describe(choice, compiled, arguments)
    _timed(choice, compiled, fusion, arguments)


def _prepared(
    source: Source,
    spec: str,
    target: str | None,
    seed: int,
    define: Sequence[str],
    param: Sequence[str],
) -> tuple[Choice, CompiledKernel[Kernel], Fusion, Arguments]:
    from loopnest.kernel import compile

    wanted = target or "auto"
    choice = choose(source, spec, wanted, define, param)
    fusion = choice.fusion()
    with _patience(f"compiling {choice.label}"):
        compiled = compile(fusion, target=wanted)
    slow = compiled.target == "interpret"
    with _patience("making arrays"):
        arguments = choice.arguments(fusion, seed, _SMALL if slow else None)
    return choice, compiled, fusion, arguments


def _describe(choice: Choice, compiled: CompiledKernel[Kernel], arguments: Arguments) -> None:
    values = {**arguments.sizes, **arguments.scalars}
    shown = ", ".join([f"{name}={_short(value)}" for name, value in values.items()])
    click.echo(f"{choice.label} on target {compiled.target}" + (f": {shown}" if shown else ""))
    if compiled.target == "interpret" and any(
        arguments.sizes.get(name, size) < size for name, size in choice.kernel.sizes.items()
    ):
        click.echo(f"(sizes are at most {_SMALL} on this target; -D sets others)")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _compared(
    console: Console,
    choice: Choice,
    compiled: CompiledKernel[Kernel],
    fusion: Fusion,
    arguments: Arguments,
) -> bool:
    """Compare one run with the reference, or else with the oracle; say how far off it is."""
    from loopnest.evaluate import evaluate
    from loopnest.trial import expected, judge, points

    keywords = arguments.keywords(fusion)
    with _patience("running the reference"):
        wanted = expected(choice.kernel, fusion, arguments, choice.params)
        if wanted is None and points(fusion, arguments.sizes) <= _MOST_POINTS:
            found = evaluate(fusion, *arguments.arrays, **keywords)
            wanted = found if isinstance(found, tuple) else (found,)
    if wanted is None:
        click.echo("not compared: the kernel has no reference, and is too large for the oracle")
        return True
    with _patience(f"running {choice.label}"):
        actual = compiled(*arguments.fresh(), **keywords)
    verdicts = judge(fusion, arguments.sizes, actual, wanted)
    for verdict in verdicts:
        style = "green" if verdict.ok else "red"
        word = "right" if verdict.ok else "WRONG"
        console.print(Text(f"{verdict}: "), Text(word, style=style), sep="")
    return all(verdict.ok for verdict in verdicts)


def _timed(
    choice: Choice, compiled: CompiledKernel[Kernel], fusion: Fusion, arguments: Arguments
) -> None:
    with _patience(f"measuring {choice.label}"):
        found = compiled.bench(*arguments.arrays, **arguments.keywords(fusion))
    click.echo(f"{1e3 * min(found.times):.3f} ms at best, {found}")


_COMING = {
    "check": "prove that a kernel is free of races and stays within bounds",
    "profile": "count what a kernel loads, stores and computes",
    "explain": "say why a kernel looks as it does",
    "report": "write all of this to a page",
}


def _coming(name: str) -> NoReturn:
    raise NotSupported(
        f"loopnest {name}",
        f"the command that will {_COMING[name]} is coming, but does not exist yet",
        "use list, dump, run or bench",
    )


# The command line


def _options(*names: str) -> Callable[[Command], Command]:
    """Add options; they stand in the order of the names."""
    made = {
        "stage": click.option("--stage", type=click.Choice(STAGES), help="What to print [nest]."),
        "target": click.option("--target", type=click.Choice(_TARGETS), help="Where [auto]."),
        "arch": click.option(
            "--arch", default="sm_90", show_default=True, help="GPU of --stage ptx and sass."
        ),
        "seed": click.option("--seed", default=0, show_default=True, help="Of the made arrays."),
        "define": click.option(
            "-D", "define", multiple=True, metavar="N=1000", help="Set a size or a scalar."
        ),
        "param": click.option(
            "-P", "param", multiple=True, metavar="threads=128",
            help="Set a parameter of math or schedule.",
        ),
    }  # fmt: skip

    def add(function: Command) -> Command:
        for name in reversed(names):
            function = made[name](function)
        return function

    return add


def _examples(prog: str, script: bool) -> str:
    file = "" if script else " kernels/softmax.py"
    colon = " " if script else ":"
    lines = [
        ("list" + file, "what is in the file"),
        ("run" + file, "nest, tensors, comparison, time"),
        (f"run{file} -D N=1000 --target interpret", "small, and every access checked"),
        (f"run{file} -P dtype=float16", "with a parameter of the math"),
        (f"dump{file}", "the loop nest"),
        (f"dump{file}{colon}softmax@gpu --stage cuda", "one schedule, as CUDA C++"),
        (f"dump{file} --stage groups", "what shares a loop with what"),
    ]
    width = max([len(command) for command, _ in lines])
    shown = [f"  {prog} {command:{width}}  {meaning}" for command, meaning in lines]
    return "\b\nExamples:\n" + "\n".join(shown)


def command_line(script: bool, prog: str) -> click.Group:
    """Return the command line of the package, or of a kernel file that was started itself."""
    spec_name = "[KERNEL[@SCHEDULE]]" if script else "FILE[:KERNEL[@SCHEDULE]]"
    spec = click.argument("spec", required=not script, default="", metavar=spec_name)
    about = "Print, run and measure the kernels of this file; 'run' is the default."
    if not script:
        about = "Print, run and measure the kernels of a Python file."
    about += (
        "\n\nA kernel is math plus schedules. Where none is named, 'run' and 'bench' take the "
        "schedule 'gpu' on cuda and 'cpu' elsewhere if there is one, else the first."
    )
    group = _Group(
        "loopnest",
        help=f"{about}\n\n{_examples(prog, script)}",
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def add(name: str, function: Command, *options: str) -> None:
        about = (function.__doc__ or "").strip()
        made = click.command(name, help=about)(_options(*options)(spec(click.pass_obj(function))))
        group.add_command(made)

    common = ("define", "param")
    add("list", list_kernels)
    add("dump", dump, "stage", "target", "arch", *common)
    add("run", run, "target", "seed", *common)
    add("bench", bench, "target", "seed", *common)
    for name, meaning in _COMING.items():
        group.add_command(_later(name, meaning))
    return group


def _later(name: str, meaning: str) -> click.Command:
    def refuse(**_: Any) -> None:
        _coming(name)

    arguments = click.Argument(["rest"], nargs=-1, type=click.UNPROCESSED)
    return click.Command(
        name,
        callback=refuse,
        params=[arguments],
        help=f"{meaning[0].upper()}{meaning[1:]} (coming).",
        context_settings={"ignore_unknown_options": True},
    )


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; in a kernel file, on the kernels of that file.

    Args:
        arguments: by default those of the process.
    """
    started = kernels_of("__main__")
    prog = Path(sys.argv[0]).name if started else "loopnest"
    source = Source(script=bool(started))
    given = list(sys.argv[1:] if arguments is None else arguments)
    if started:
        source.file = str(Path(str(sys.modules["__main__"].__file__)))
        source.module = "__main__"
    group = command_line(source.script, prog)
    if started and not (given and given[0] in (*group.commands, "-h", "--help")):
        given = ["run", *given]
    sys.exit(group.main(given, prog_name=prog, obj=source))
