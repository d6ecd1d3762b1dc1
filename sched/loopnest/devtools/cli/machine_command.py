"""``loopnest machine``: facts of this machine's processor, for those who schedule for it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from loopnest.devtools.cli.console_output import patience, print_table, table_of

if TYPE_CHECKING:
    from loopnest.scalar.machine_facts import MachineFacts

HELP = """\
Show what is known of this machine's processor.

It is measured once, in about a second, and kept with the compiled kernels. Compiler flags and the
defaults of "cpu" schedules follow from it; ln.machine() returns it. LOOPNEST_MACHINE=any in the
environment takes the facts of no particular machine, so that texts can be compared.
"""


@click.command("machine", help=HELP, short_help="Show what is known of this machine.")
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
    for fact, value in _rows(found):
        table.add_row(fact, value)
    print_table(table)


def _rows(found: MachineFacts) -> list[tuple[str, str]]:
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
