"""Hooks after each pass: `LOOPNEST_PASSES=time`, `verify`, `diff`, or several of them.

- time: the milliseconds of each pass, on standard error after each lowering.
- verify: what every pass makes is a legal nest; from the last barrier on, it computes its math.
- diff: what each pass changed, as lines taken away and added, on standard error.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable

from loopnest.base.errors import InternalError, LoweringError
from loopnest.kir import Program
from loopnest.kir.legal_program import program_faults
from loopnest.kir.lowered import Lowered
from loopnest.lowering.indexing.indexed_tree import statements
from loopnest.lowering.loops.renumber import assembled
from loopnest.lowering.passes import LoweringPass, State, Watcher
from loopnest.tensor.math_snapshot import capture

VARIABLE = "LOOPNEST_PASSES"

ORDERED = ("barriers", "addresses", "predicates", "inplace", "unswitch", "renumber")
"""Passes after which the nest is whole: accesses are ordered, so that its math can be proved."""


def chosen_watchers() -> tuple[Watcher, ...]:
    """Return the watchers that the environment names.

    Raises:
        LoweringError: one of them does not exist.
    """
    names = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    for name in names:
        if name not in WATCHERS:
            allowed = f"use {', '.join(WATCHERS)}, or several with commas between them"
            raise LoweringError(f"{VARIABLE}={','.join(names)}", f"'{name}' is no watcher", allowed)
    return tuple([WATCHERS[name]() for name in dict.fromkeys(names)])


class Times:
    """Prints how long each pass took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def after(self, step: LoweringPass, state: State, seconds: float) -> None:
        self.seconds[step.name] = self.seconds.get(step.name, 0.0) + seconds

    def end(self, state: State) -> None:
        rows = [*self.seconds.items(), ("all", sum(self.seconds.values()))]
        lines = [f"  {name:24}{seconds * 1e3:9.2f} ms" for name, seconds in rows]
        print(f"lower({state.fusion.name}):", *lines, sep="\n", file=sys.stderr)
        self.seconds.clear()


class Changes:
    """Prints what each pass changed."""

    def __init__(self) -> None:
        self.before = ("", "")

    def after(self, step: LoweringPass, state: State, seconds: float) -> None:
        text = step.text(state)()
        print(*changes(self.before, (step.name, text)), sep="\n", file=sys.stderr)
        self.before = (step.name, text)

    def end(self, state: State) -> None:
        self.before = ("", "")


def changes(before: tuple[str, str], after: tuple[str, str]) -> list[str]:
    """Return the lines of a unified diff of two (name of the pass, text)."""
    found = difflib.unified_diff(
        before[1].splitlines(), after[1].splitlines(), f"after {before[0] or 'nothing'}",
        f"after {after[0]}", lineterm="", n=2,
    )  # fmt: skip
    return list(found) or [f"{after[0]} changes nothing"]


class Checker:
    """Raises InternalError after the first pass whose result is not legal, or not the math."""

    def after(self, step: LoweringPass, state: State, seconds: float) -> None:
        program = _program(state)
        if program is None:
            return
        staged = any(name == "circular_buffers" for name, _ in state.texts)
        faults = program_faults(program, staged=staged)
        if faults:
            self._refuse(state, step, "; ".join(faults[:3]))
        if step.name in ORDERED:
            self._prove(step, state, program)

    def _prove(self, step: LoweringPass, state: State, program: Program) -> None:
        from loopnest.proofs.verifier import verify

        report = verify(Lowered(program, (), (), (), capture(state.fusion)))
        if report.status == "refuted":
            self._refuse(state, step, str(report))

    def _refuse(self, state: State, step: LoweringPass, found: str) -> None:
        raise InternalError(f"lower({state.fusion.name})", f"after the pass {step.name}: {found}")

    def end(self, state: State) -> None:
        pass


def _program(state: State) -> Program | None:
    """Return what the nest is so far; None before it has statements."""
    found = [_part(part) for part in state.launches]
    made = [program for program in found if program is not None]
    return assembled(made) if len(made) == len(found) else None


def _part(state: State) -> Program | None:
    if hasattr(state, "program"):
        return state.program
    if not hasattr(state, "frame"):
        return None
    return state.frame.with_body(statements(state.tree, lifted=None))


WATCHERS: dict[str, Callable[[], Watcher]] = {"time": Times, "verify": Checker, "diff": Changes}
