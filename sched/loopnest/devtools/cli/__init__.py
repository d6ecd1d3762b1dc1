"""The command line: looks at kernels, tunes and checks them; ``loopnest --help`` lists commands.

`main` serves kernel files, too: run by one (``if __name__ == "__main__": ln.main()``) it works on
the kernels of that file. A mistake of the user's ends in one sentence, or in the part of the
traceback that lies in their file; exit status 1 (2 where the arguments cannot be read, 130 after
Ctrl-C).
"""

from __future__ import annotations

import atexit
import errno
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import click

from loopnest.base.errors import LoopnestError
from loopnest.devtools.cli.check_command import HELP as CHECK_HELP
from loopnest.devtools.cli.check_command import check
from loopnest.devtools.cli.console_output import Interrupted, UserCodeError, checked_output
from loopnest.devtools.cli.fuzz_command import fuzz
from loopnest.devtools.cli.kernel_commands import (
    bench,
    dump,
    explain,
    judge_candidate,
    list_kernels,
    profile,
    report,
    run,
    show_machine,
    stage_option,
    stages,
    tune_schedule,
)
from loopnest.devtools.cli_spec import (
    CliError,
    Request,
    Source,
    own_modules,
    sentence_of,
    spec_files,
)
from loopnest.devtools.kernel_def import kernels_of
from loopnest.scalar.target_names import target_name

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = ["Source", "command_line", "main", "stages"]

Command: TypeAlias = Callable[..., Any]

TRACEBACK = "LOOPNEST_TRACEBACK"
"""The environment variable that, set to 1, shows the traceback of an error that is a bug."""


class _TargetOption(click.Option):
    """``--target``: "auto" or a target; their names are loaded where one is asked for."""

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        if isinstance(value, str):
            self._load()
            value = target_name(value)
        return super().type_cast_value(ctx, value)

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        self._load()
        return super().get_help_record(ctx)

    def _load(self) -> None:
        from loopnest.backends.targets import TARGETS

        self.type = click.Choice(("auto", *TARGETS))


class _Group(click.Group):
    """Commands whose errors are rendered here, whoever calls them."""

    def invoke(self, ctx: click.Context) -> Any:
        source: Source = ctx.obj
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BaseException as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # nobody reads on: click ends quietly
            raise _rendered(error, source.file) from error


def _rendered(error: BaseException, file: str) -> click.ClickException:
    """Return what a command that ends in `error` prints."""
    expected = (LoopnestError, MemoryError, OSError, SystemExit)
    if isinstance(error, KeyboardInterrupt):
        return Interrupted()
    if file and not isinstance(error, expected) and _passes(error, file):
        return UserCodeError(error, file)
    sentence = sentence_of(error, file)
    if isinstance(error, expected):
        return CliError(sentence)
    if os.environ.get(TRACEBACK) == "1":
        traceback.print_exception(error)
    return CliError(f"{sentence} with the traceback that {TRACEBACK}=1 shows")


def _passes(error: BaseException, file: str) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    syntax = isinstance(error, SyntaxError) and error.filename == file
    return syntax or any(frame.filename == file for frame in frames)


# The command line


def _options(*names: str) -> Callable[[Command], Command]:
    """Add options; they stand in the order of the names."""
    made = {
        "stage": click.option(
            "--stage", callback=stage_option, metavar="STAGE",
            help="What to print [nest]; 'list' shows what there is.",
        ),
        "diff": click.option(
            "--diff", "changed", callback=stage_option, metavar="STAGE",
            help="What a pass changed."
        ),
        "scalar": click.option(
            "--scalar", is_flag=True,
            help="The variant without vectors, for sizes that they do not divide."
        ),
        "target": click.option("--target", cls=_TargetOption, help="Where [auto]."),
        "arch": click.option(
            "--arch", default="sm_90", show_default=True, help="GPU of --stage ptx and sass."
        ),
        "device": click.option(
            "--device", default="H100", show_default=True,
            help="GPU that occupancy and bounds of time are for.",
        ),
        "output": click.option(
            "-o", "--output", metavar="PAGE", help="Where to write it [KERNEL_SCHEDULE.html]."
        ),
        "tensor": click.argument("tensor", required=False, metavar="[TENSOR]"),
        "beside": click.option(
            "--beside", metavar="SCHEDULE", help="Another schedule, to show next to it."
        ),
        "seed": click.option(
            "--seed", default=0, type=click.IntRange(min=0), show_default=True,
            help="Of the made arrays.",
        ),
        "step": click.option(
            "--step", metavar="BLOCK:THREAD",
            help="Show each statement of one thread, as 0:31 or 2,1:31, on the interpreter.",
        ),
        "define": click.option(
            "-D", "define", multiple=True, metavar="N=1000", help="Set a size or a scalar."
        ),
        "param": click.option(
            "-P", "param", multiple=True, metavar="threads=128",
            help="Set a parameter of math or schedule.",
        ),
        "strict": click.option(
            "--strict", is_flag=True, help="Fail, too, where a proof is unknown or nothing was run."
        ),
        "invariant": click.option(
            "--invariant", multiple=True, metavar="N",
            help="Fail, too, where the bits of a result may depend on this size."
        ),
        "release": click.option(
            "--release", is_flag=True,
            help="Compile C as ln.compile does: slower, and what runs is what users run."
        ),
        "count": click.option(
            "--count", default=100, type=click.IntRange(min=1), show_default=True,
            help="How many schedules at most.",
        ),
        "time": click.option(
            "--time", "budget", default="60s", show_default=True,
            help="Begin no more after so long, as 60s or 5m.",
        ),
        "verify": click.option("--verify", is_flag=True, help="Prove each kernel, too."),
        "budget": click.option(
            "--budget", default="60s", show_default=True, help="How long it may take: 90s, 5m."
        ),
        "defaults": click.option(
            "--diff", is_flag=True,
            help="Print what makes the result the default in the file, as a diff.",
        ),
        "jobs": click.option(
            "--jobs", default=1, type=click.IntRange(min=1), show_default=True,
            help="Processes that share the work.",
        ),
        "scheduler": click.option(
            "--scheduler", metavar="tcp://HOST:8786|local",
            help="A cluster of Dask's that does the work.",
        ),
        "watch": click.option(
            "--watch", is_flag=True,
            help="Do it again whenever the file, or one that it imports, changes.",
        ),
        "json": click.option(
            "--json", "as_json", is_flag=True, help="Print JSON, for other programs."
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
        (f"dump{file} --diff barriers", "what a pass changed"),
        (f"profile{file} -D N=8192", "bytes, conflicts, registers, bounds of the time"),
        (f"explain{file}{colon}softmax@gpu e", "why a tensor came out so, what changes it"),
        (f"fuzz{file}{colon}softmax --time 5m", "random schedules of the math, judged"),
        (f"report{file} -o softmax.html", "a page to look at"),
        (f"check{file}", "prove it, run it with every access checked"),
        (f"tune{file}{colon}softmax@cpu", "find the fastest parameters on this machine"),
    ]
    if not script:
        lines.append(("machine", 'what the processor can do, as "cpu" schedules see it'))
        lines.append(("judge reference.py candidate.py", "whether code of torch is right"))
    return _listed(prog, lines)


def _check_examples(prog: str, script: bool) -> str:
    file = "" if script else " kernels/softmax.py"
    colon = " " if script else ":"
    lines = [
        ("check" + file, "all kernels and schedules of a file"),
        (f"check{file}{colon}softmax@gpu -P threads=64", "one schedule, with a parameter"),
        (f"check{file} -D N=1000", "for this N alone, any D"),
        (f"check{file} --invariant N", "rows have the same bits in any batch"),
        (f"check{file} --release", "the very machine code that ln.compile makes"),
    ]
    if not script:
        lines += [
            ("check kernels", "all files of a folder"),
            ("check kernels:@gpu", "all schedules called gpu"),
            ("check kernels --strict --json > report.json", "in continuous integration"),
        ]
    return _listed(prog, lines)


def _listed(prog: str, lines: Sequence[tuple[str, str]]) -> str:
    width = max([len(command) for command, _ in lines])
    shown = [f"  {prog} {command:{width}}  {meaning}" for command, meaning in lines]
    return "\b\nExamples:\n" + "\n".join(shown)


def command_line(script: bool, prog: str) -> click.Group:
    """Return the command line of the package, or of a kernel file that was started itself."""
    spec_name = "[KERNEL[@SCHEDULE]]" if script else "FILE[:KERNEL[@SCHEDULE]]"
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

    def add(
        name: str, function: Command, *options: str, names: str = spec_name, **more: str
    ) -> None:
        about: dict[str, Any] = {"help": (function.__doc__ or "").strip(), **more}
        spec = click.argument("spec", metavar=names, shell_complete=_completed, **optional)
        made = spec(_options(*options)(_asked(function)))
        group.add_command(click.command(name, None, **about)(made))

    optional: dict[str, Any] = {"required": False, "default": ""} if script else {}
    common = ("define", "param")
    add("list", list_kernels, "json")
    add("dump", dump, "stage", "diff", "scalar", "target", "arch", "watch", "json", *common)
    add("run", run, "target", "seed", "step", "watch", "json", *common)
    add("bench", bench, "target", "seed", "json", *common)
    add("profile", profile, "device", "watch", "json", *common)
    add("report", report, "output", "beside", "device", "json", *common)
    add("explain", explain, "tensor", "json", *common)
    add("fuzz", fuzz, "seed", "count", "time", "verify", "json", "jobs", "scheduler", *common)
    add("tune", tune_schedule, "target", "budget", "defaults", "json", "define")
    add("check", check, *common, "strict", "invariant", "release", "jobs", "scheduler", "watch",
        "json", names=spec_name if script else "FILE|FOLDER[:KERNEL[@SCHEDULE]]",
        help=f"{CHECK_HELP}\n{_check_examples(prog, script)}",
        short_help="Prove, sanitize and compare kernels.")  # fmt: skip
    if not script:
        group.add_command(show_machine)
        group.add_command(judge_candidate)
    return group


def _completed(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from loopnest.devtools.cli.name_completion import completions

    return completions(incomplete)


def _asked(function: Command) -> Command:
    """Return a command that takes the source of kernels, their names, -D and -P as a `Request`.

    What it returns is what --json prints; then all that files of kernels print goes elsewhere.
    """

    def called(
        source: Source,
        /,
        spec: str,
        define: Sequence[str] = (),
        param: Sequence[str] = (),
        watch: bool = False,
        **options: Any,
    ) -> None:
        if watch:
            if source.script:  # what has run is not what the file will be
                source.script, spec = False, f"{source.file}:{spec}".removesuffix(":")
            _fork_at_each_change(spec_files(spec))
        request = Request(source, spec, define, param)
        if not options.get("as_json"):
            function(request, **options)
            return
        try:
            with redirect_stdout(sys.stderr):
                facts = function(request, **options)
        except CliError as error:
            if error.facts is not None:
                click.echo(json.dumps(error.facts, indent=2))
            raise
        click.echo(json.dumps(facts, indent=2))

    return click.pass_obj(called)


# --watch

_INTERVAL = 0.2
"""Seconds between two looks at the files."""


def _fork_at_each_change(named: Sequence[str]) -> None:
    """Return in a new process, now and whenever a file that the last one loaded has changed.

    This process ends with Ctrl-C, and never returns. A process each time: what a file imports is
    loaded anew, and whatever it does ends with it.

    Args:
        named: the files that are asked for, whether they can be loaded or not.
    """
    files = dict.fromkeys(named)
    try:
        while True:
            sys.stdout.flush()
            before = {file: _time_of(file) for file in files}
            reader, writer = os.pipe()
            if not os.fork():
                os.close(reader)
                for name in own_modules():
                    del sys.modules[name]
                atexit.register(_tell_files, writer)
                return
            os.close(writer)
            with open(reader) as told:
                files = dict.fromkeys([*named, *(told.read().splitlines() or files)])
            os.wait()
            before = {file: before.get(file, _time_of(file)) for file in files}
            shown = ", ".join([os.path.relpath(file) for file in files])
            click.echo(f"-- until {shown} changes; Ctrl-C ends", err=True)
            changed = _changed(before)
            click.echo(f"-- again: {os.path.relpath(changed)} has changed", err=True)
    except KeyboardInterrupt:  # what runs is told, too, and says so
        with suppress(ChildProcessError):
            os.wait()
        raise click.exceptions.Exit(0) from None


def _tell_files(writer: int) -> None:
    with suppress(BrokenPipeError), open(writer, "w") as out:
        out.write("\n".join(own_modules().values()))


def _changed(before: Mapping[str, int]) -> str:
    """Wait for a file to have another time than before, and return it."""
    while True:
        time.sleep(_INTERVAL)  # in front: who writes a file may write more of it at once
        for file, written in before.items():
            if _time_of(file) != written:
                return file


def _time_of(file: str) -> int:
    """Return when a file was written last, in nanoseconds; 0 where there is none."""
    try:
        return os.stat(file).st_mtime_ns
    except OSError:
        return 0


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; in a kernel file, on the kernels of that file.

    Args:
        arguments: by default those of the process.

    Raises:
        SystemExit: always; its code is 0 where all is well.

    >>> import loopnest as ln
    >>> ln.main(["--help"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    SystemExit: 0

    Source: click, which reads the arguments.
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
    if any(name.endswith("_COMPLETE") for name in os.environ):
        from click.shell_completion import add_completion_class

        from loopnest.devtools.cli.name_completion import ColonBash

        add_completion_class(ColonBash)
    with checked_output():
        sys.exit(group.main(given, prog_name=prog, obj=source))
