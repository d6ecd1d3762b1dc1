"""Between the passes: the nest as a tree of loops, with phases or guarded statements as leaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from loopnest.fast_init import fast_init
from loopnest.kir import Allocate, Arrive, Barrier, Collective, Let, Shuffle, Store
from loopnest.lowering.loops.loop_plan import LoopSpec
from loopnest.lowering.loops.phase_nest import Compute
from loopnest.scalar.expr import Const, Expr, Index


@fast_init
@dataclass(frozen=True, slots=True)
class PredicateTerm:
    """One term of a predicate, and why it is needed.

    Args:
        condition: what must hold.
        reason: for people.
        inside: where it keeps to a root axis of the tensor, the test of each element alone (one
            lane of a vector may stand for all in `condition`).
        folded: whether elements beyond that axis would be folded into a result.
    """

    condition: Expr
    reason: str
    inside: Expr | None = None
    folded: bool = False


Simple: TypeAlias = "Store | Let | Shuffle | Arrive"


@fast_init
@dataclass(frozen=True, eq=False, slots=True)
class Guarded:
    """Statements under the conjunction of `terms`.

    With `fill`, where elements lie beyond the tensor (`Term.inside`) they are stored that instead.
    """

    statements: tuple[Simple, ...]
    terms: tuple[PredicateTerm, ...]
    fill: Const | None = None


@fast_init
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
