"""``loopnest explain``: why a kernel came out as it did, tensor by tensor."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from loopnest.devtools.cli.console_output import patience
from loopnest.devtools.cli_spec import CliError, Source, choose


def explain(
    source: Source,
    spec: str,
    tensor: str | None,
    as_json: bool,
    define: Sequence[str],
    param: Sequence[str],
) -> None:
    """Say why a kernel came out as it did, of each tensor or of TENSOR.

    Where it is computed, which call put it there, and what takes it deeper; why its memory is as
    large as it is; each test around it, and what makes it superfluous. It holds for all sizes.
    """
    from loopnest.devtools.explanation import explain as explained
    from loopnest.facade.kernel_class import lower

    choice = choose(source, spec, None, define, param)
    fusion = choice.fusion()
    choice.check_values(fusion)
    with patience(f"lowering {choice.label}"):
        kernel = lower(fusion)
    with patience(f"trying what would change {choice.label}"):
        found = explained(kernel)
    if tensor is not None:
        known = [one.name for one in found]
        if tensor not in known:
            raise CliError(
                f"{choice.label}: it computes no tensor '{tensor}'; it has {', '.join(known)}"
            )
        found = found[tensor]
    click.echo(json.dumps(found.to_dict(), indent=2) if as_json else str(found))
