"""``loopnest list|dump|run|bench|profile|explain|report|tune|machine|judge``: one kernel."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loopnest.base.errors import KernelFault
from loopnest.devtools.cli.console_output import (
    at_sizes,
    diagnosis_lines,
    fault_lines,
    patience,
    plain_console,
    print_code,
    print_notes,
    print_table,
    shape_text,
    table_of,
)
from loopnest.devtools.cli_spec import CliError, CommandOptions, Request, Source, whole
from loopnest.scalar.target_names import target_name

if TYPE_CHECKING:
    from loopnest.backends.compiled_kernel import CompiledKernel
    from loopnest.devtools.harness import Arguments
    from loopnest.facade.kernel_class import Kernel
    from loopnest.launch.target_interface import TargetText
    from loopnest.launch.timing import BenchResult
    from loopnest.numerics.compare import Verdict
    from loopnest.scalar.machine_facts import MachineFacts
    from loopnest.tensor.fusion import Fusion

_SMALL = 64
_MOST_DIAGNOSED = 1 << 24


def list_kernels(request: Request, as_json: bool) -> object:
    """List the kernels of FILE, their sizes, and their schedules with parameters.

    Of a kernel that chooses its schedule by size, the conditions take the place of parameters.
    """
    source = request.source
    wanted, chosen = source.open(request.spec)
    kernels = source.kernels() if not wanted else (source.named(wanted),)
    if chosen and not any(chosen in kernel.schedules for kernel in kernels):
        kernels[0].resolve(chosen)
    table, facts = table_of("kernel", "schedule", "parameters", "sizes"), []
    for kernel in kernels:
        sizes = ", ".join([f"{name}={size}" for name, size in kernel.sizes.items()])
        conditions = [] if kernel.chosen is None else kernel.chosen.conditions
        where = dict(zip(kernel.schedules, conditions, strict=False))
        for name in kernel.schedules or ("",):
            if chosen in ("", name):
                known = kernel.parameters(name)
                shown = where.get(name) or ", ".join([f"{n}={v}" for n, v in known.items()])
                table.add_row(kernel.name, name or "-", shown or "-", sizes or "-")
                named = {"kernel": kernel.name, "schedule": name, "parameters": _plain(known)}
                facts.append({**named, "condition": where.get(name), "sizes": dict(kernel.sizes)})
    if not as_json:
        print_table(table)
    return facts


def _plain(values: Mapping[str, object]) -> dict[str, object]:
    """Return parameters, or scalars, as JSON holds them."""
    from loopnest.devtools.tuned_rows import as_json

    return {name: as_json(value) for name, value in values.items()}


def stages() -> tuple[str, ...]:
    """Return what ``--stage`` takes: "math", each pass in order, then texts of the whole.

    "tree" is the pass that `Kernel.stages` calls "nest".
    """
    from loopnest.lowering.pipeline import PASSES

    passes = ["tree" if step.name == "nest" else step.name for step in PASSES]
    return ("math", *passes, *_texts())


def _target_texts() -> dict[str, TargetText]:
    from loopnest.backends.targets import TARGETS

    return {name: row.text for name, row in TARGETS.items() if row.text is not None}


def _texts() -> dict[str, str]:
    """Return the texts of a whole kernel, and what each is."""
    return {
        "nest": "the loop nest, after the last pass",
        **{name: text.title for name, text in _target_texts().items()},
        "ptx": "PTX, by NVRTC",
        "sass": "machine code of --arch, by NVRTC",
    }


def stage_option(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Check the name of a stage ("list" shows them all); the passes are loaded only now."""
    if value is not None:
        value = target_name(value)
        click.Choice(("list", *stages())).convert(value, param, ctx)
    return value


def _listed_stages() -> Iterator[tuple[str, str, str]]:
    """Yield each stage, what there is after it, and why it stands there."""
    from loopnest.lowering.pipeline import PASSES

    yield "math", "the math, as it was written", ""
    for step in PASSES:
        yield "tree" if step.name == "nest" else step.name, step.result, step.why
    for name, what in _texts().items():
        yield name, what, ""


def dump(
    request: Request,
    stage: str | None,
    changed: str | None,
    scalar: bool,
    target: str | None,
    arch: str,
    as_json: bool,
) -> object:
    """Print a kernel: its math, the loop nest after a pass, CUDA C++, C, PTX or SASS."""
    if "list" in (stage, changed):
        rows = [*_listed_stages()]
        if not as_json:
            table = table_of("stage", "what there is after it", "why it stands there")
            for row in rows:
                table.add_row(*row)
            print_table(table)
        return [dict(zip(("stage", "result", "why"), row, strict=True)) for row in rows]
    if stage is not None and changed is not None:
        raise CliError("--stage prints a text, --diff what a pass changed in it: name one of them")
    if stage is None:
        stage = target if target in _target_texts() else "nest"
    device = target if target not in (None, "auto") else _target_of(stage)
    choice = request.choose(device)
    fusion = choice.fusion()
    choice.check_values(fusion)  # sizes stay symbolic in every text
    if scalar and (changed is not None or stage not in _texts()):
        kinds = ", ".join(_texts())
        raise CliError(f"--scalar takes the text of a whole kernel: --stage {kinds}")
    if changed is not None:
        text, language = _changes(fusion, changed), "diff"
    else:
        text, printed = _stage_text(choice, fusion, stage, arch, scalar), _target_texts().get(stage)
        language = "python" if printed is None else printed.language
    if not as_json:
        print_code(plain_console(), text, language)
    return {**_named(choice), "stage": changed or stage, "text": text}


def _named(choice: CommandOptions) -> dict[str, object]:
    return {
        "kernel": choice.kernel.name,
        "schedule": choice.schedule,
        "parameters": _plain(choice.params),
    }


def _target_of(stage: str) -> str | None:
    """Return the target that a text is for, None where it is for all."""
    if stage in ("ptx", "sass"):
        return "cuda"
    return stage if stage in _target_texts() else None


def _changes(fusion: Fusion, stage: str) -> str:
    """Return what a pass changed, against the stage before it."""
    from loopnest.facade.kernel_class import lower
    from loopnest.lowering.watchers import changes

    texts = dict(lower(fusion).stages)
    order = ["", *texts]
    name = "nest" if stage == "tree" else stage
    if name not in texts or stage == "nest":
        raise CliError(
            f"--diff {stage}: no pass; --diff takes {', '.join(stages()[1 : -len(_texts())])}"
        )
    before = order[order.index(name) - 1]
    return "\n".join(changes((before, texts.get(before, "")), (name, texts[name]))) + "\n"


def _variant(choice: CommandOptions, kernel: Kernel, scalar: bool) -> Kernel:
    """Return the variant to show; say on standard error when a launch takes which."""
    where = " and ".join([text for text, _ in kernel.program.requires])
    if not scalar:
        if kernel.has_scalar:
            vectors = f"with vectors, for launches where {where}" if where else "with vectors"
            click.echo(f"note: this is the variant {vectors}; --scalar shows the other", err=True)
        return kernel
    if kernel.scalar is None:
        raise CliError(f"--scalar: {choice.label} has one variant, which runs on all sizes")
    return kernel.scalar


def _stage_text(choice: CommandOptions, fusion: Fusion, stage: str, arch: str, scalar: bool) -> str:
    if stage == "math":
        from loopnest.tensor.fusion import math_text

        return math_text(fusion) + "\n"
    from loopnest.facade.kernel_class import lower

    kernel = lower(fusion)
    print_notes(kernel)
    if stage not in _texts():
        return kernel.stages["nest" if stage == "tree" else stage]
    kernel = _variant(choice, kernel, scalar)
    with patience(f"compiling {choice.label}"):
        makers: Mapping[str, Callable[[], str]] = {
            "nest": lambda: str(kernel),
            "ptx": lambda: kernel.ptx(arch),
            "sass": lambda: kernel.sass(arch),
        }
        return makers[stage]() if stage in makers else kernel.printed(stage)


# run, bench


def run(request: Request, target: str | None, seed: int, step: str | None, as_json: bool) -> object:
    """Run a kernel: show its loop nest, compare its results, measure its time.

    Where a result is wrong, it names the first tensor of the nest that differs from the math.
    """
    if step is not None:
        return _stepped(request, target, seed, step, as_json)
    console = plain_console()
    launch = _Launch.prepared(request, target, seed)
    kernel = launch.compiled.kernel
    if not as_json:
        print_code(console, str(kernel), "python")
        click.echo()
        print_table(_tensor_table(kernel))
        click.echo()
        print_notes(kernel)
        launch.describe()
    facts: dict[str, object] = {**launch.facts(), "nest": str(kernel)}
    wrong = CliError(f"{launch.label}: the result is wrong", facts)
    try:
        verdicts = launch.compared()
    except KernelFault as fault:
        facts["fault"] = str(fault)
        console.print(Text("it broke a rule:", style="bold red"))
        for line in fault_lines(fault):
            console.print(Text(f"  {line}"))
        launch.diagnose(console)
        raise wrong from fault
    facts["results"] = [
        {"output": verdict.name, "right": verdict.ok, "told": str(verdict)} for verdict in verdicts
    ]
    if not as_json:
        _print_verdicts(console, verdicts)
    if not all(verdict.ok for verdict in verdicts):
        launch.diagnose(console)
        raise wrong
    return {**facts, **_times(launch.time(), as_json)}


def _stepped(request: Request, target: str | None, seed: int, place: str, as_json: bool) -> object:
    """Run a kernel on the interpreter; show each statement of one thread."""
    if target not in (None, "auto", "interpret"):
        raise CliError(f"--step {place}: it runs on interpret, not on {target}")
    launch = _Launch.prepared(request, "interpret", seed)
    block, thread = _places(place)
    steps = launch.compiled.step(
        *launch.arguments.fresh(),
        block=block,
        thread=thread,
        **launch.arguments.keywords(launch.fusion),
    )
    if as_json:
        return {**launch.facts(), "steps": [step.to_dict() for step in steps]}
    launch.describe()
    for step in steps:
        click.echo(str(step))
    return None


def _places(text: str) -> list[tuple[int, ...]]:
    """Return what ``BLOCK:THREAD`` names, as ``0:31`` or ``2,1:31``."""
    try:
        block, thread = [tuple(map(int, part.split(","))) for part in text.split(":")]
    except ValueError:
        raise CliError(f"--step {text}: use BLOCK:THREAD, as 0:31 or 2,1:31") from None
    return [block, thread]


def _print_verdicts(console: Console, verdicts: Sequence[Verdict]) -> None:
    if not verdicts:
        click.echo("not compared: it is too large for the oracle")
    for verdict in verdicts:
        style = "green" if verdict.ok else "red"
        word = "right" if verdict.ok else "WRONG"
        console.print(Text(f"{verdict}: "), Text(word, style=style), sep="")


def bench(request: Request, target: str | None, seed: int, as_json: bool) -> object:
    """Measure the time of a kernel."""
    launch = _Launch.prepared(request, target, seed)
    if not as_json:
        launch.describe()
    return {**launch.facts(), **_times(launch.time(), as_json)}


def _times(found: BenchResult, as_json: bool) -> dict[str, object]:
    """Return the seconds of each call, and the bytes that it must move; print them for people."""
    if not as_json:
        click.echo(f"{1e3 * min(found.times):.3f} ms at best, {found}")
    return {"seconds": list(found.times), "bytes": found.bytes}


def _tensor_table(kernel: Kernel) -> Table:
    """Return where each tensor lives: its buffer, and how many loops it shares with its users."""
    table = table_of("tensor", "dtype", "shape", "memory", "buffer", "compute_at")
    shapes = {buffer.name: buffer.shape for buffer in kernel.buffers}
    for tensor in kernel.tensors:
        held = tensor.buffer
        table.add_row(
            Text(tensor.name),
            tensor.dtype.name,
            shape_text(tensor.shape),
            tensor.memory.value,
            Text("-") if held is None else Text(held) + shape_text(shapes[held]),
            str(tensor.compute_at_pos),
        )
    return table


@dataclass(frozen=True)
class _Launch:
    """A compiled kernel, and the arguments to call it with."""

    choice: CommandOptions
    compiled: CompiledKernel[Kernel]
    fusion: Fusion
    arguments: Arguments

    @classmethod
    def prepared(cls, request: Request, target: str | None, seed: int) -> _Launch:
        """Compile what is asked for, with the parameters of a tuning where none are given."""
        from loopnest.backends.targets import TARGETS
        from loopnest.facade.kernel_class import compile

        wanted = target or "auto"
        choice = request.choose(wanted)
        if not choice.params:
            sizes = {**choice.kernel.sizes, **{n: int(v) for n, v in choice.values.items()}}
            found = choice.kernel.tuned(choice.schedule, wanted, sizes)
            if found:
                listed = ", ".join([f"{name}={value}" for name, value in found.items()])
                click.echo(f"note: tuned on this machine: {listed}; -P sets others", err=True)
                choice = replace(choice, params=found)
        fusion = choice.fusion()
        with patience(f"compiling {choice.label}"):
            compiled = compile(fusion, target=wanted)
        slow = TARGETS[compiled.target].checked
        with patience("making arrays"):
            arguments = choice.arguments(fusion, seed, _SMALL if slow else None)
        return cls(choice, compiled, fusion, arguments)

    @property
    def label(self) -> str:
        return f"{self.choice.label} on target {self.compiled.target}"

    def facts(self) -> dict[str, object]:
        """Return what is run, for JSON."""
        return {
            **_named(self.choice),
            "target": self.compiled.target,
            "sizes": _plain(self.arguments.sizes),
            "scalars": _plain(self.arguments.scalars),
        }

    def describe(self) -> None:
        """Print what is run, with its sizes and scalars."""
        sizes = self.arguments.sizes
        values = {**sizes, **self.arguments.scalars}
        shown = ", ".join([f"{name}={_short(value)}" for name, value in values.items()])
        click.echo(self.label + (f": {shown}" if shown else ""))
        if self.compiled.target == "interpret" and any(
            sizes.get(name, size) < size for name, size in self.choice.kernel.sizes.items()
        ):
            click.echo(f"(sizes are at most {_SMALL} on this target; -D sets others)")

    def compared(self) -> list[Verdict]:
        """Compare one run with the reference, or else with the oracle.

        There is no verdict where it is too large for the oracle.
        """
        from loopnest.devtools.harness import expected, judge, oracle

        choice, fusion, arguments = self.choice, self.fusion, self.arguments
        with patience("running the reference"):
            target = self.compiled.target
            wanted = expected(choice.kernel, fusion, arguments, choice.params, target=target)
            if wanted is None:
                wanted = oracle(fusion, arguments, target=target)
        if wanted is None:
            return []
        with patience(f"running {choice.label}"):
            actual = self.compiled(*arguments.fresh(), **arguments.keywords(fusion))
        return judge(fusion, arguments.sizes, actual, wanted)

    def diagnose(self, console: Console) -> None:
        """Say which tensor of the nest is the first that differs from the math, and where."""
        from loopnest.devtools.harness import make_arguments
        from loopnest.devtools.schedule_check import diagnosed
        from loopnest.devtools.trial_sizes import trial_sizes
        from loopnest.proofs.size_choice import points_at

        program, arguments, where = self.compiled.kernel.program, self.arguments, ""
        if points_at(program, arguments.sizes) > _MOST_DIAGNOSED:
            small = next(trial_sizes(program), None)
            if small is None:
                return
            ranges = self.choice.kernel.ranges
            arguments = make_arguments(self.fusion, {**arguments.sizes, **small}, ranges)
            where = at_sizes(arguments.sizes)
        with patience("looking for the first tensor that differs"):
            found = diagnosed(self.compiled.kernel, self.fusion, arguments)
        if found is None:
            return
        if found.ok:
            console.print(Text(self._innocent(where)))
        elif found.tensor:
            console.print(Text(f"the first tensor that differs{where}:", style="bold"))
            for line in diagnosis_lines(found):
                console.print(Text(f"  {line}"))

    def _innocent(self, where: str) -> str:
        """Return what to think where every tensor of the nest has the values of the math."""
        kernel, target = self.choice.kernel, self.compiled.target
        if where:
            return f"every tensor has the values of the math{where}; set other small sizes by -D"
        if kernel.reference is not None:
            return (
                "every tensor of the nest has the values of the math, run by the interpreter: the "
                f"reference says something else than the math of {kernel.name}"
                + ("" if target == "interpret" else f", or target {target} errs")
            )
        return f"the interpreter runs this nest rightly: target {target} errs"

    def time(self) -> BenchResult:
        """Measure it."""
        with patience(f"measuring {self.choice.label}"):
            return self.compiled.bench(
                *self.arguments.arrays, **self.arguments.keywords(self.fusion)
            )


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# profile, explain, report


def profile(request: Request, device: str, as_json: bool) -> object:
    """Count what a kernel does at given sizes, and what bounds its time on a GPU.

    Nothing is run. Bytes and sectors of memory, conflicts of banks, barriers, arithmetic and
    registers are those of the schedule 'gpu', or of the one that is named.
    """
    from loopnest.costs import profile as counted

    choice = request.choose("cuda")
    fusion, kernel = _lowered(choice)
    sizes = choice.sizes(fusion)
    with patience(f"counting {choice.label}"):
        found = counted(kernel, device=device, **sizes)
    if not as_json:
        click.echo(str(found))
        print_notes(kernel)
    return found.to_dict()


def _lowered(choice: CommandOptions) -> tuple[Fusion, Kernel]:
    from loopnest.facade.kernel_class import lower

    fusion = choice.fusion()
    choice.check_values(fusion)
    with patience(f"lowering {choice.label}"):
        return fusion, lower(fusion)


def explain(request: Request, tensor: str | None, as_json: bool) -> object:
    """Say why a kernel came out as it did, of each tensor or of TENSOR.

    Where it is computed, which call put it there, and what takes it deeper; why its memory is as
    large as it is; each test around it, and what makes it superfluous. It holds for all sizes.
    """
    from loopnest.devtools.explanation import explain as explained

    choice = request.choose(None)
    _, kernel = _lowered(choice)
    with patience(f"trying what would change {choice.label}"):
        found = explained(kernel)
    if tensor is not None:
        known = [one.name for one in found]
        if tensor not in known:
            raise CliError(
                f"{choice.label}: it computes no tensor '{tensor}'; it has {', '.join(known)}"
            )
        found = found[tensor]
    if not as_json:
        click.echo(str(found))
    return found.to_dict()


def report(
    request: Request, output: str | None, beside: str | None, device: str, as_json: bool
) -> object:
    """Write a page about a kernel: math, axes, nest, tiles, passes, code, costs, reasons, proof.

    The page is one file that needs no network: open it in a browser. With --beside it shows another
    schedule of the same kernel next to it. Counts and tiles are those of the sizes of the kernel.
    """
    from loopnest.costs.devices import find_device
    from loopnest.devtools.kernel_report import Subject, report_page

    find_device(device, f"report(device={device!r})")
    choices = [request.choose("cuda")]
    if beside is not None:
        choices.append(request.choose("cuda", beside))
    path = Path(output or f"{choices[0].label.replace('@', '_')}.html")
    _check_place(path)
    subjects = []
    for choice in choices:
        fusion, kernel = _lowered(choice)
        subjects.append(Subject(choice.label, fusion, kernel, choice.sizes(fusion), device))
    label = " and ".join([subject.label for subject in subjects])
    with patience(f"writing about {label}"):
        page = report_page(tuple(subjects))
    with _writing(path):
        path.write_text(page, encoding="utf-8")
    if not as_json:
        click.echo(f"{path}: {len(page) / 1e6:.1f} MB about {label}")
    return {"page": str(path), "about": [subject.label for subject in subjects]}


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CliError(f"{path}: it cannot be written: {error.strerror}") from None


def _check_place(path: Path) -> None:
    """Refuse a path that cannot be written, before there is anything to write."""
    place = Path(os.path.realpath(path))  # a link to no file stays as it is
    fresh = not place.exists()
    if place.is_fifo():  # whoever reads it would see its end
        return
    with _writing(path):
        place.open("ab").close()
    if fresh:
        place.unlink()


# tune


def tune_schedule(
    request: Request, target: str | None, budget: str, diff: bool, as_json: bool
) -> object:
    """Find the fastest parameters of a schedule, of those that it declares by ln.choice.

    Candidates that a constraint, a schedule call, a proof or counts rule out are not run; the
    others are timed in turn, each in a process of its own. The result is kept for this machine.
    """
    from loopnest.devtools.tuning import Tuned, defaults_diff, tune

    choice = request.choose(target or "auto")
    sizes = {name: whole(name, value) for name, value in choice.values.items()}
    with redirect_stdout(sys.stderr if diff or as_json else sys.stdout):
        found = tune(choice.kernel, choice.schedule, target or "auto", sizes, budget)
    assert isinstance(found, Tuned)
    if diff and not as_json:
        click.echo(defaults_diff(choice.kernel, choice.schedule, found.parameters), nl=False)
    return {
        **asdict(found),
        "parameters": _plain(found.parameters),
        "timed": [[_plain(candidate), ratio] for candidate, ratio in found.timed],
        "row": None if found.row is None else str(found.row),
    }


# machine

JUDGE_HELP = """\
Judge code of torch, such as a kernel of Triton's and what calls it, by a reference.

The reference defines Model (made of get_init_inputs(), if there is one) or reference(), and
get_inputs(); the candidate defines ModelNew or candidate(). Results lie within the error bound of
the reference's math, or are wrong: for several inputs, in memory where others lay before, for odd
sizes where the reference takes such. Memory that is never written holds NaN, and inputs are
compared afterwards. Exit status: 0 if all is right, else 1. Needs PyTorch.
"""


@click.command("judge", help=JUDGE_HELP, short_help="Judge code of torch by a reference.")
@click.argument("reference", metavar="REFERENCE.py")
@click.argument("candidate", metavar="CANDIDATE.py")
@click.option("--seed", default=0, type=click.IntRange(min=0), show_default=True,
              help="Of the inputs.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for other programs.")
@click.pass_obj
def judge_candidate(
    source: Source, reference: str, candidate: str, seed: int, as_json: bool
) -> None:
    """Print what was found, a line each, or as JSON."""
    if find_spec("torch") is None:
        raise CliError("judge: PyTorch is not installed: pip install loopnest[torch]")
    room = import_module("loopnest.torch.candidate_judge")  # it lies above the command line
    with redirect_stdout(sys.stderr), patience("judging"):
        checks = room.judge_of(source, reference, candidate, seed).run()
    wrong = [check for check in checks if check.fault]
    if as_json:
        click.echo(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        click.echo("\n".join(map(str, checks)))
    if wrong:
        name = Path(candidate).name
        raise CliError(f"{name}: {len(wrong)} of {len(checks)} checks found something wrong")


MACHINE_HELP = """\
Show what is known of this machine's processor.

It is measured once, in about a second, and kept with the compiled kernels. Compiler flags and the
defaults of "cpu" schedules follow from it; ln.machine() returns it. LOOPNEST_MACHINE=any in the
environment takes the facts of no particular machine, so that texts can be compared.
"""


@click.command("machine", help=MACHINE_HELP, short_help="Show what is known of this machine.")
@click.option("--again", is_flag=True, help="Measure now, whatever is known.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for other programs.")
def show_machine(again: bool, as_json: bool) -> None:
    """Print the facts as a table, or as JSON."""
    from loopnest.backends.cpu.machine_probe import forget_machine, machine

    if again:
        forget_machine()
    with patience("measuring"):
        found = machine()
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
        return
    table = table_of("fact", "value")
    for fact, value in _facts(found):
        table.add_row(fact, value)
    print_table(table)


def _facts(found: MachineFacts) -> list[tuple[str, str]]:
    from loopnest.backends.cpu.machine_probe import vector_flags

    unknown = "not measured"
    levels = [f"L{level} {_bytes(size)}" for level, size in enumerate(found.caches, 1)]
    flops = f"{found.flops / 1e9:.0f} GFLOP/s of float32" if found.flops else unknown
    bandwidth = f"{found.bandwidth / 1e9:.0f} GB/s" if found.bandwidth else unknown
    return [
        ("processor", found.name),
        ("cores", str(found.cores)),
        ("vectors that pay", f"{found.vector_bytes} bytes, {found.lanes(4)} float32"),
        ("vector registers", str(found.vector_registers)),
        ("data caches", ", ".join(levels)),
        ("peak of a core", flops),
        ("copy by all cores", bandwidth),
        ("flags of the compiler", " ".join(vector_flags(found)) or "-"),
    ]


def _bytes(size: int) -> str:
    """Return a size in the largest unit that divides it.

    >>> _bytes(48 << 10), _bytes(1 << 20)
    ('48 KiB', '1 MiB')
    """
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} bytes"
