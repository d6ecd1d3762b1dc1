"""``loopnest list|dump|run|bench``: look at one kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
from loopnest.devtools.cli_spec import CliError, CommandOptions, Source, choose
from loopnest.scalar.target_names import target_name

if TYPE_CHECKING:
    from loopnest.backends.compiled_kernel import CompiledKernel
    from loopnest.devtools.harness import Arguments
    from loopnest.facade.kernel_class import Kernel
    from loopnest.launch.target_interface import TargetText
    from loopnest.tensor.fusion import Fusion

_SMALL = 64
_MOST_DIAGNOSED = 1 << 24


def list_kernels(source: Source, spec: str) -> None:
    """List the kernels of FILE, their sizes, and their schedules with parameters.

    Of a kernel that chooses its schedule by size, the conditions take the place of parameters.
    """
    wanted, chosen = source.open(spec)
    kernels = source.kernels() if not wanted else (source.named(wanted),)
    if chosen and not any(chosen in kernel.schedules for kernel in kernels):
        kernels[0].resolve(chosen)
    table = table_of("kernel", "schedule", "parameters", "sizes")
    for kernel in kernels:
        sizes = ", ".join([f"{name}={size}" for name, size in kernel.sizes.items()])
        conditions = [] if kernel.chosen is None else kernel.chosen.conditions
        where = dict(zip(kernel.schedules, conditions, strict=False))
        for name in kernel.schedules or ("",):
            if chosen in ("", name):
                known = kernel.parameters(name)
                shown = where.get(name) or ", ".join([f"{n}={v}" for n, v in known.items()])
                table.add_row(kernel.name, name or "-", shown or "-", sizes or "-")
    print_table(table)


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


def _list_stages() -> None:
    from loopnest.lowering.pipeline import PASSES

    table = table_of("stage", "what there is after it", "why it stands there")
    table.add_row("math", "the math, as it was written", "")
    for step in PASSES:
        name = "tree" if step.name == "nest" else step.name
        table.add_row(name, step.result, step.why)
    for name, what in _texts().items():
        table.add_row(name, what, "")
    print_table(table)


def dump(
    source: Source,
    spec: str,
    stage: str | None,
    changed: str | None,
    scalar: bool,
    target: str | None,
    arch: str,
    define: Sequence[str],
    param: Sequence[str],
) -> None:
    """Print a kernel: its math, the loop nest after a pass, CUDA C++, C, PTX or SASS."""
    if "list" in (stage, changed):
        _list_stages()
        return
    if stage is not None and changed is not None:
        raise CliError("--stage prints a text, --diff what a pass changed in it: name one of them")
    if stage is None:
        stage = target if target in _target_texts() else "nest"
    device = target if target not in (None, "auto") else _target_of(stage)
    choice = choose(source, spec, device, define, param)
    fusion = choice.fusion()
    choice.check_values(fusion)  # sizes stay symbolic in every text
    if scalar and (changed is not None or stage not in _texts()):
        kinds = ", ".join(_texts())
        raise CliError(f"--scalar takes the text of a whole kernel: --stage {kinds}")
    if changed is not None:
        print_code(plain_console(), _changes(fusion, changed), "diff")
        return
    text = _stage_text(choice, fusion, stage, arch, scalar)
    printed = _target_texts().get(stage)
    print_code(plain_console(), text, "python" if printed is None else printed.language)


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
        from loopnest.tensor.ops.math_text import math_text

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


def run(
    source: Source,
    spec: str,
    target: str | None,
    seed: int,
    define: Sequence[str],
    param: Sequence[str],
) -> None:
    """Run a kernel: show its loop nest, compare its results, measure its time.

    Where a result is wrong, it names the first tensor of the nest that differs from the math.
    """
    console = plain_console()
    choice, compiled, fusion, arguments = _prepared(source, spec, target, seed, define, param)
    print_code(console, str(compiled.kernel), "python")
    click.echo()
    print_table(_tensor_table(compiled.kernel))
    click.echo()
    print_notes(compiled.kernel)
    _describe(choice, compiled, arguments)
    wrong = CliError(f"{choice.label} on target {compiled.target}: the result is wrong")
    try:
        right = _compared(console, choice, compiled, fusion, arguments)
    except KernelFault as fault:
        console.print(Text("it broke a rule:", style="bold red"))
        for line in fault_lines(fault):
            console.print(Text(f"  {line}"))
        _diagnosed(console, choice, compiled, fusion, arguments)
        raise wrong from fault
    if not right:
        _diagnosed(console, choice, compiled, fusion, arguments)
        raise wrong
    _timed(choice, compiled, fusion, arguments)


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
) -> tuple[CommandOptions, CompiledKernel[Kernel], Fusion, Arguments]:
    from loopnest.backends.targets import TARGETS
    from loopnest.facade.kernel_class import compile

    wanted = target or "auto"
    choice = choose(source, spec, wanted, define, param)
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
    return choice, compiled, fusion, arguments


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


def _describe(
    choice: CommandOptions, compiled: CompiledKernel[Kernel], arguments: Arguments
) -> None:
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
    choice: CommandOptions,
    compiled: CompiledKernel[Kernel],
    fusion: Fusion,
    arguments: Arguments,
) -> bool:
    """Compare one run with the reference, or else with the oracle; say how far off it is."""
    from loopnest.devtools.harness import expected, judge, oracle

    with patience("running the reference"):
        target = compiled.target
        wanted = expected(choice.kernel, fusion, arguments, choice.params, target=target)
        if wanted is None:
            wanted = oracle(fusion, arguments, target=target)
    if wanted is None:
        click.echo("not compared: it is too large for the oracle")
        return True
    with patience(f"running {choice.label}"):
        actual = compiled(*arguments.fresh(), **arguments.keywords(fusion))
    verdicts = judge(fusion, arguments.sizes, actual, wanted)
    for verdict in verdicts:
        style = "green" if verdict.ok else "red"
        word = "right" if verdict.ok else "WRONG"
        console.print(Text(f"{verdict}: "), Text(word, style=style), sep="")
    return all(verdict.ok for verdict in verdicts)


def _diagnosed(
    console: Console,
    choice: CommandOptions,
    compiled: CompiledKernel[Kernel],
    fusion: Fusion,
    arguments: Arguments,
) -> None:
    """Say which tensor of the nest is the first that differs from the math, and where."""
    from loopnest.devtools.harness import make_arguments
    from loopnest.devtools.schedule_check import diagnosed
    from loopnest.devtools.trial_sizes import trial_sizes
    from loopnest.proofs.size_choice import points_at

    program = compiled.kernel.program
    where = ""
    if points_at(program, arguments.sizes) > _MOST_DIAGNOSED:
        small = next(trial_sizes(program), None)
        if small is None:
            return
        arguments = make_arguments(fusion, {**arguments.sizes, **small}, choice.kernel.ranges)
        where = at_sizes(arguments.sizes)
    with patience("looking for the first tensor that differs"):
        found = diagnosed(compiled.kernel, fusion, arguments)
    if found is None:
        return
    if found.ok:
        console.print(Text(_innocent(choice, compiled, where)))
    elif found.tensor:
        console.print(Text(f"the first tensor that differs{where}:", style="bold"))
        for line in diagnosis_lines(found):
            console.print(Text(f"  {line}"))


def _innocent(choice: CommandOptions, compiled: CompiledKernel[Kernel], where: str) -> str:
    """Return what to think where every tensor of the nest has the values of the math."""
    if where:
        return f"every tensor has the values of the math{where}; set other small sizes by -D"
    if choice.kernel.reference is not None:
        return (
            "every tensor of the nest has the values of the math, run by the interpreter: the "
            f"reference says something else than the math of {choice.kernel.name}"
            + ("" if compiled.target == "interpret" else f", or target {compiled.target} errs")
        )
    return f"the interpreter runs this nest rightly: target {compiled.target} errs"


def _timed(
    choice: CommandOptions, compiled: CompiledKernel[Kernel], fusion: Fusion, arguments: Arguments
) -> None:
    with patience(f"measuring {choice.label}"):
        found = compiled.bench(*arguments.arrays, **arguments.keywords(fusion))
    click.echo(f"{1e3 * min(found.times):.3f} ms at best, {found}")
