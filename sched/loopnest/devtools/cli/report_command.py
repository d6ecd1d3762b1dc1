"""``loopnest report``: one page of HTML about a kernel, or about two of its schedules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from loopnest.devtools.cli.console_output import patience
from loopnest.devtools.cli_spec import CliError, Source, choose


def report(
    source: Source,
    spec: str,
    output: str | None,
    beside: str | None,
    device: str,
    define: Sequence[str],
    param: Sequence[str],
) -> None:
    """Write a page about a kernel: math, axes, nest, tiles, passes, code, costs, reasons, proof.

    The page is one file that needs no network: open it in a browser. With --beside it shows another
    schedule of the same kernel next to it. Counts and tiles are those of the sizes of the kernel.
    """
    from loopnest.devtools.kernel_report import Subject, report_page
    from loopnest.facade.kernel_class import lower

    specs = [spec] if beside is None else [spec, f"{spec.rsplit('@', 1)[0]}@{beside}"]
    choices = [choose(source, one, "cuda", define, param) for one in specs]
    path = Path(output or f"{choices[0].label.replace('@', '_')}.html")
    _check_place(path)
    subjects = []
    for choice in choices:
        fusion = choice.fusion()
        sizes = choice.sizes(fusion)
        with patience(f"lowering {choice.label}"):
            kernel = lower(fusion)
        subjects.append(Subject(choice.label, fusion, kernel, sizes, device))
    label = " and ".join([subject.label for subject in subjects])
    with patience(f"writing about {label}"):
        page = report_page(tuple(subjects))
    with _writing(path):
        path.write_text(page, encoding="utf-8")
    click.echo(f"{path}: {len(page) / 1e6:.1f} MB about {label}")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CliError(f"{path}: it cannot be written: {error.strerror}") from None


def _check_place(path: Path) -> None:
    """Refuse a path that cannot be written, before there is anything to write."""
    fresh = not path.exists()
    if path.is_fifo():  # whoever reads it would see its end
        return
    with _writing(path):
        path.open("ab").close()
    if fresh:
        path.unlink()
