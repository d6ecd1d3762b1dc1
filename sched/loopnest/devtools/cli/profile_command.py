"""``loopnest profile``: what a kernel costs at given sizes, counted without running it."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from loopnest.devtools.cli.console_output import patience, print_notes
from loopnest.devtools.cli_spec import Source, choose


def profile(
    source: Source,
    spec: str,
    device: str,
    as_json: bool,
    define: Sequence[str],
    param: Sequence[str],
) -> None:
    """Count what a kernel does at given sizes, and what bounds its time on a GPU.

    Nothing is run. Bytes and sectors of memory, conflicts of banks, barriers, arithmetic and
    registers are those of the schedule 'gpu', or of the one that is named.
    """
    from loopnest.costs import profile as counted
    from loopnest.facade.kernel_class import lower

    choice = choose(source, spec, "cuda", define, param)
    fusion = choice.fusion()
    with patience(f"lowering {choice.label}"):
        kernel = lower(fusion)
    sizes = choice.sizes(fusion)
    with patience(f"counting {choice.label}"):
        found = counted(kernel, device=device, **sizes)
        text = json.dumps(found.to_dict(), indent=2) if as_json else str(found)
    click.echo(text)
    if not as_json:
        print_notes(kernel)
