"""What the command line prints: programs, tables, what goes on, and what went wrong."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from loopnest.backends.interpret.diagnosis import Diagnosis
    from loopnest.base.errors import KernelFault
    from loopnest.facade.kernel_class import Kernel
    from loopnest.proofs import Finding

_PACKAGE = str(Path(__file__).parents[2]) + os.sep
PATIENCE = 2.0
"""Seconds after which a terminal is told what goes on."""


class UserCodeError(click.ClickException):
    """An exception that the user's own code raised, with the user's part of the traceback."""

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


class Interrupted(click.ClickException):
    """Ctrl-C: the exit status is that of a process which the signal ended."""

    exit_code = 130

    def __init__(self) -> None:
        super().__init__("interrupted")

    def show(self, file: Any = None) -> None:
        click.echo(self.message, file=file, err=True)


def print_notes(kernel: Kernel) -> None:
    """Say on standard error what was asked of the schedule and has no effect."""
    for note in kernel.notes:
        click.echo(f"note: {note}", err=True)


@contextmanager
def checked_output() -> Iterator[None]:
    """Print what the terminal's encoding lacks as escapes; notice that output cannot be written.

    Python flushes standard output once more when it exits, after all handlers: a full disk or a
    closed pipe would end in a traceback there.
    """
    if sys.stdout is None:
        print("error: standard output is closed", file=sys.stderr)
        sys.exit(1)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left goes nowhere
        if error.errno != errno.EPIPE:
            print(f"error: standard output: {error.strerror}", file=sys.stderr)
        sys.exit(1)


def plain_console() -> Console:
    """Return standard output, without marks that were not asked for."""
    return Console(highlight=False, soft_wrap=True)


def print_code(console: Console, text: str, lexer: str) -> None:
    """Print a program, in colour on a terminal only."""
    if console.is_terminal and not console.no_color:
        from rich.syntax import Syntax

        console.print(Syntax(text.rstrip("\n"), lexer, theme="ansi_dark"))
    else:
        click.echo(text if text.endswith("\n") else text + "\n", nl=False)


def table_of(*columns: str) -> Table:
    """Return a table without lines, to be filled."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def print_table(table: Table) -> None:
    """Print a table in its full width: a cut name or shape would tell nothing."""
    console = Console(highlight=False, width=1000)
    with console.capture() as caught:
        console.print(table)
    lines = [line.rstrip() for line in caught.get().splitlines()]
    click.echo("\n".join(lines), color=console.is_terminal)


def shape_text(sizes: Sequence[object]) -> Text:
    """Return a shape as ``[N, 4]``."""
    return Text(f"[{', '.join([str(size) for size in sizes])}]")


@contextmanager
def patience(what: str) -> Iterator[None]:
    """Say what goes on where it takes longer than `PATIENCE`, on a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    status = console.status(f"{what} ...")
    with delayed(status.start, status.stop):
        yield


@contextmanager
def delayed(start: Callable[[], None], stop: Callable[[], None]) -> Iterator[None]:
    """Start what tells the user what goes on, where it takes longer than `PATIENCE`; stop it."""
    timer = Timer(PATIENCE, start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        stop()


def diagnosis_lines(found: Diagnosis) -> list[str]:
    """Return the tensor that `loopnest.diagnose` found, a fact a line; none where none differs."""
    lines: list[str] = []
    if found.tensor:
        value = "is never stored" if found.actual is None else f"is {found.actual!r}"
        lines.append(
            f"{found.tensor}{list(found.index)} {value}, the math says {found.expected!r} "
            f"(allowed difference {found.allowed:.3g})"
        )
        count = f"{found.differing} element{' differs' if found.differing == 1 else 's differ'}"
        before = f"; before it {', '.join(found.compared)} are right" if found.compared else ""
        lines.append(f"  of {found.tensor} {count}{before}")
    if found.line:
        lines.append(f"  stored at nest line {found.line} '{found.text}'")
    if found.placed:
        lines.append(f"  placed by {found.placed}")
    return lines


def fault_lines(fault: KernelFault) -> list[str]:
    """Return a broken rule, a fact a line: what, where in the nest, who."""
    return [
        line for line in (fault.reason, f"  {fault.subject}", f"  {fault.hint}") if line.strip()
    ]


def at_sizes(sizes: Mapping[str, int]) -> str:
    """Return `` at N=3, D=5``; nothing where there are no sizes."""
    shown = ", ".join([f"{name}={size}" for name, size in sizes.items()])
    return f" at {shown}" if shown else ""


def finding_lines(found: Finding) -> list[str]:
    """Return a finding of `loopnest.verify` with its witness, a fact a line."""
    lines = [f"{found.kind}: {found.message}"]
    if found.at is not None:
        lines.append(f"  {'' if found.at.access else 'at '}{found.at}")
    if found.other is not None:
        lines.append(f"  other access: {found.other}")
    if found.sizes:
        lines.append(f" {at_sizes(found.sizes)}")
    if found.origin:
        lines.append(f"  placed by {found.origin}")
    return lines
