"""Between the passes: the nest as a tree of loops, with phases or guarded statements as leaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from loopnest.expr import Expr, Index
from loopnest.kir import Allocate, Arrive, Barrier, Collective, Let, Shuffle, Store
from loopnest.lower.groups import LoopSpec
from loopnest.lower.nest import Compute


@dataclass(frozen=True, slots=True)
class Term:
    """One term of a predicate, and why it is needed."""

    condition: Expr
    reason: str


Simple: TypeAlias = "Store | Let | Shuffle | Arrive"


@dataclass(frozen=True, eq=False, slots=True)
class Guarded:
    """Statements under the conjunction of `terms`."""

    statements: tuple[Simple, ...]
    terms: tuple[Term, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Tree:
    """A loop (or the kernel's body, where `var` is None) with allocations in place.

    The leaves are computation phases before indexing, guarded statements after. `collective` is
    the declaration of a tree that is the body of a collective operation, no loop.
    """

    var: Index | None
    spec: LoopSpec | None
    body: tuple[TreeItem, ...]
    collective: Collective | None = None


TreeItem: TypeAlias = "Tree | Compute | Guarded | Allocate | Barrier"
