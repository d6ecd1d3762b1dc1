"""The transform of a loop that runs at least once, even where the axis that it runs over is empty.

A tensor that lacks an axis has one value along it. Where that value is needed outside of a loop
over the axis, the loop must run once to compute it; statements of tensors that have the axis are
then under a test. `promotion` decides which loops these are.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from loopnest.scalar.expr import ONE, Expr
from loopnest.scalar.simplify import Simplifier
from loopnest.tensor.domain import IterDomain, Transform


class AtLeastOne(Transform):
    """An axis that may be empty to one of at least one point, tested by whoever has the axis."""

    __slots__ = ()

    def __init__(self, axis: IterDomain, algebra: Simplifier) -> None:
        self._bind([axis], [IterDomain(algebra.max(axis.size, ONE), axis.kind)])

    @property
    def key(self) -> Hashable:
        return ("at least one",)

    def replay(self, inputs: Sequence[IterDomain], algebra: Simplifier) -> AtLeastOne:
        return AtLeastOne(inputs[0], algebra)

    def backward(self, outputs: Sequence[Expr], algebra: Simplifier) -> tuple[Expr, ...]:
        return tuple(outputs)

    def forward(self, inputs: Sequence[Expr], algebra: Simplifier) -> tuple[Expr, ...]:
        return tuple(inputs)

    def overshoots(self, algebra: Simplifier) -> tuple[IterDomain, ...]:
        return self.inputs

    def follows(self) -> tuple[IterDomain, ...]:
        return self.outputs

    def describe(self) -> str:
        return "loop that runs at least once"


def before_growth(node: IterDomain) -> IterDomain:
    """Return the axis that was made to run at least once, where `node` is that."""
    step = node.definition
    return step.inputs[0] if isinstance(step, AtLeastOne) else node
