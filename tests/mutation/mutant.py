"""A loop nest with one change, as every module of mutants yields it."""

from __future__ import annotations

from dataclasses import dataclass

from loopnest.kir import Program, Stmt


@dataclass(frozen=True)
class Mutant:
    """A changed program: the kind of the change, where, the program.

    `node` is the statement of the original program that was changed, None for a change of the
    program as a whole.
    """

    kind: str
    text: str
    program: Program
    node: Stmt | None = None
