"""`loopnest.verify`: prove that a kernel computes its math, or show where it does not."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from loopnest import kir
from loopnest.errors import VerifyError
from loopnest.math_snapshot import MathSnapshot
from loopnest.verify.exact import Exact
from loopnest.verify.lanes import NoLaunch, TooMany, Undecidable
from loopnest.verify.model import Model
from loopnest.verify.obligations import Mismatch, Work, work_of
from loopnest.verify.poly import NotAffine
from loopnest.verify.report import Finding, Report
from loopnest.verify.sizes import fulfils, points_at, small_sizes
from loopnest.verify.symbolic import NotProved, Symbolic
from loopnest.verify.witness import Witness

_log = logging.getLogger("loopnest")

MOST_SIZES = 12
"""How many sets of small sizes are looked at where a proof for all sizes is not found."""

MOST_POINTS = 1_000_000
"""How many points of statements are looked at in all of them together."""

MOST_FIRST = 4_000_000
"""How many points may be looked at where it would be none else."""


def verify(k: Any, **sizes: int) -> Report:
    """Prove that the kernel `k` computes its math.

    Args:
        k: a kernel, as `loopnest.lower` returns it.
        **sizes: values of size symbols; those left out stay symbolic.

    Returns:
        A report: "proved" (for the sizes that its scope names), "refuted" with a witness, or
        "unknown".

    Raises:
        VerifyError: no kernel, one without math, an unknown size, or sizes that break an
            assumption.
    """
    lowered = getattr(k, "_lowered", k)
    program, make = getattr(lowered, "program", None), getattr(lowered, "math", None)
    if not isinstance(program, kir.Program) or make is None:
        raise VerifyError(f"verify({k!r})", "it is no kernel that carries its math",
                          "pass what ln.lower returns")  # fmt: skip
    return verify_program(program, make(), sizes)


def verify_program(
    program: kir.Program, math: MathSnapshot, sizes: Mapping[str, int] | None = None
) -> Report:
    """Prove that `program` computes `math`; see `verify`."""
    given = dict(sizes or {})
    _check_sizes(program, given)
    model = Model(program)
    works, problems = _works(model, math)
    if problems:
        refuted = [f for f in problems if f.status == "refuted"]
        return Report("refuted" if refuted else "unknown", tuple(refuted or problems))
    hints: list[dict[str, int]] = []
    try:
        notes = Symbolic(model, math, works, given).prove()
    except (NotProved, NotAffine) as why:
        _log.debug("verify %s: no proof for all sizes: %s", program.name, why)
        if isinstance(why, NotProved) and why.sizes:
            hints.append(why.sizes)
    else:
        scope = _named(given) if given else "all sizes"
        return Report("proved", tuple(notes), scope)
    return _enumerated(model, math, works, given, hints)


def _check_sizes(program: kir.Program, given: Mapping[str, int]) -> None:
    subject = f"verify({program.name})"
    known = [p.name for p in program.params if p.kind == "size"]
    for name, value in given.items():
        if name not in known:
            raise VerifyError(subject, f"'{name}' is no size of it", f"its sizes are {known}")
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise VerifyError(subject, f"{name}={value!r} is no size", "give an int >= 0")
    if len(given) == len(known) and not fulfils(program, given):
        raise VerifyError(subject, f"the sizes {dict(given)} break an assumption of the kernel")


def _works(model: Model, math: MathSnapshot) -> tuple[list[Work], list[Finding]]:
    works: list[Work] = []
    problems: list[Finding] = []
    witness = Witness(model, {}, (1, 1, 1), (1, 1, 1))
    for site in model.sites:
        if isinstance(site.node, kir.Collective):
            message = f"the operation '{site.node.name}' is not modelled"
            problems.append(witness.bare("value", message, site, "unknown"))
        if not isinstance(site.node, kir.Store):
            continue
        try:
            works.append(work_of(model, math, site))
        except Mismatch as found:
            status: Literal["refuted", "unknown"]
            status = "refuted" if found.refutes else "unknown"
            message = f"the store {found.message}"
            problems.append(witness.bare(found.kind, message, site, status))
    return works, problems


def _enumerated(
    model: Model,
    math: MathSnapshot,
    works: Sequence[Work],
    given: Mapping[str, int],
    hints: Sequence[Mapping[str, int]] = (),
) -> Report:
    """Look at every point, at the sizes given or at small ones; `hints` come first."""
    program = model.program
    done: list[str] = []
    seen: list[dict[str, int]] = []
    notes: dict[str, Finding] = {}
    budget = MOST_POINTS
    for sizes in small_sizes(program, given, hints):
        cost = points_at(program, sizes)
        if cost > (budget if done else MOST_FIRST) or len(done) == MOST_SIZES:
            continue
        budget -= cost
        seen.append(sizes)
        try:
            found = list(Exact(model, math, works, sizes).findings())
        except TooMany:
            seen.remove(sizes)
            continue
        except NoLaunch:
            done.append(_named(sizes))
            continue
        except (Undecidable, ZeroDivisionError) as error:
            message = f"an index or a test depends on data: {error}"
            return Report("unknown", (Finding("value", "unknown", message),))
        refuted = [f for f in found if f.status == "refuted"]
        if refuted:
            return Report("refuted", tuple(refuted), _named(sizes))
        notes.update({f.message: f for f in found})
        done.append(_named(sizes))
    missed = [s for h in hints if fulfils(program, s := {**given, **h}) and s not in seen]
    if missed:
        message = f"it may fail at {_named(missed[0])}, where there are too many points to look at"
        return Report("unknown", (Finding("value", "unknown", message),), "; ".join(done))
    if not done:
        message = "there are too many points to look at every one"
        return Report("unknown", (Finding("value", "unknown", message),), _named(given))
    return Report("proved", tuple(notes.values()), "; ".join(done))


def _named(sizes: Mapping[str, int]) -> str:
    return ", ".join([f"{name}={value}" for name, value in sizes.items()]) or "its sizes"


def require_proved(k: Any) -> None:
    """Prove the kernel `k`, for all sizes where possible; one without math passes.

    Raises:
        VerifyError: it is refuted, or a fact could not be decided; with the first finding.
    """
    if getattr(getattr(k, "_lowered", k), "math", None) is None:
        return
    report = verify(k)
    if not report.ok:
        first = report.findings[0] if report.findings else "nothing was found"
        name = getattr(getattr(k, "program", None), "name", "kernel")
        raise VerifyError(f"verify({name})", f"{report.status} for {report.scope}: {first}")
