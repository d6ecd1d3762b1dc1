"""``loopnest tune``: find the parameters of a schedule on this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from typing import Any

import click

from loopnest.devtools.cli_spec import CliError, Source, choose
from loopnest.devtools.tuned_rows import as_json


def tune_schedule(
    source: Source,
    spec: str,
    target: str | None,
    budget: str,
    diff: bool,
    as_json_text: bool,
    define: Sequence[str],
) -> None:
    """Find the fastest parameters of a schedule, of those that it declares by ln.choice.

    Candidates that a constraint, a schedule call, a proof or counts rule out are not run; the
    others are timed in turn, each in a process of its own. The result is kept for this machine.
    """
    from loopnest.devtools.tuning import defaults_diff, tune

    choice = choose(source, spec, target or "auto", define, ())
    sizes = {}
    for name, value in choice.values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise CliError(f"-D {name}={value}: sizes are ints >= 0")
        sizes[name] = value
    with redirect_stdout(sys.stderr if diff or as_json_text else sys.stdout):
        found = tune(choice.kernel, choice.schedule, target or "auto", sizes, budget)
    if as_json_text:
        shown: dict[str, Any] = asdict(found)
        shown["parameters"] = {n: as_json(v) for n, v in found.parameters.items()}
        shown["timed"] = [
            [{n: as_json(v) for n, v in candidate.items()}, ratio]
            for candidate, ratio in found.timed
        ]
        shown["row"] = None if found.row is None else str(found.row)
        click.echo(json.dumps(shown, indent=2))
    elif diff:
        click.echo(defaults_diff(choice.kernel, choice.schedule, found.parameters), nl=False)
