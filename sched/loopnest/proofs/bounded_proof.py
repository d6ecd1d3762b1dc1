"""Where no proof for all sizes is found: look at every point, at given or at small sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loopnest.proofs.enumeration import EnumeratedFacts
from loopnest.proofs.obligations import CollectiveMath, Work
from loopnest.proofs.point_arrays import NoLaunch, TooMany, Undecidable
from loopnest.proofs.program_model import Model
from loopnest.proofs.report import Finding, Report
from loopnest.proofs.size_choice import filled, fulfils, points_at, small_sizes, starts
from loopnest.scalar.expr import Local
from loopnest.tensor.math_snapshot import MathSnapshot

MOST_SIZES = 12
"""How many sets of small sizes are looked at."""

MOST_POINTS = 6_000_000
"""How many points of statements are looked at in all of them together."""

MOST_FIRST = 6_000_000
"""How many points may be looked at where it would be none else."""


def enumerated(
    model: Model,
    math: MathSnapshot,
    works: Sequence[Work],
    exchanges: Sequence[CollectiveMath],
    given: Mapping[str, int],
    hints: Sequence[Mapping[str, int]] = (),
) -> Report:
    """Return what holds at some sizes; those of `hints` come first.

    At sizes that no launch admits (a loop is split by 0), or at which no thread runs, there is
    nothing to be wrong; where all that are looked at are such sizes, a note says so.

    Args:
        model: the program.
        math: what it should compute.
        works: its stores.
        exchanges: its collectives.
        given: the size symbols that have a value.
        hints: sizes at which something may fail.
    """
    program = model.program
    done: list[dict[str, int]] = []
    notes: dict[str, Finding] = {}
    budget, telling, launched = MOST_POINTS, False, False
    for sizes in small_sizes(program, given, hints):
        cost = points_at(program, sizes)
        if cost > (budget if telling else MOST_FIRST) or len(done) == MOST_SIZES:
            launched = True
            continue
        budget -= cost
        try:
            found = _looked_at(model, math, works, exchanges, sizes, both=not telling)
        except TooMany:
            launched = True
            continue
        except NoLaunch:
            done.append(sizes)
            continue
        except Undecidable as why:
            return _unknown(str(why))
        except ZeroDivisionError:
            message = "an index or a test divides by 0"
            fault = Finding("bounds", "refuted", message, sizes=dict(sizes))
            return Report("refuted", (fault,), named(sizes))
        launched = True
        refuted = [f for f in found if f.status == "refuted"]
        if refuted:
            return Report("refuted", tuple(refuted), named(sizes))
        notes.update({f.message: f for f in found})
        done.append(sizes)
        telling = telling or all(v for name, v in sizes.items() if name not in given)
    scope = "; ".join(map(named, done))
    asked = [filled(program, given, hint) for hint in hints]
    missed = [sizes for sizes in asked if sizes not in done]
    missed = [sizes for sizes in missed if fulfils(program, sizes) and starts(program, sizes)]
    if missed:
        where = f"it may fail at {named(missed[0])}"
        return _unknown(f"{where}, where there are too many points to look at", scope)
    if done and not launched:
        message = "nothing is launched at these sizes"
        return Report("proved", (Finding("launch", "note", message),), scope)
    if not telling:
        return _unknown("there are too many points to look at every one", scope or named(given))
    return Report("proved", tuple(notes.values()), scope)


def _unknown(message: str, scope: str = "all sizes") -> Report:
    return Report("unknown", (Finding("value", "unknown", message),), scope)


def _looked_at(
    model: Model,
    math: MathSnapshot,
    works: Sequence[Work],
    exchanges: Sequence[CollectiveMath],
    sizes: Mapping[str, int],
    both: bool,
) -> list[Finding]:
    """Return the findings at these sizes, where the last block arrives last; if `both`, the first.

    That it makes no difference which one it is is seen where it is tried once; and that it may be
    one at this counter and another one at that.
    """
    found: list[Finding] = []
    flags = tuple(model.arrivals)
    choices: list[tuple[Local, ...]] = [()]
    if flags and both:
        choices += [flags, *([(flag,) for flag in flags] if len(flags) > 1 else [])]
    for first in choices:
        found += EnumeratedFacts(model, math, works, exchanges, sizes, first=first).findings()
        if any(f.status == "refuted" for f in found):
            break
    return found


def named(sizes: Mapping[str, int]) -> str:
    """Return sizes as a text."""
    return ", ".join([f"{name}={value}" for name, value in sizes.items()]) or "its sizes"
