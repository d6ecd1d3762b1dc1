"""Which tensors count elements, and how many there may be: what lets a target count in an index.

A component of a reducer counts where each element is the constant 1 and two partial results are
added: the third of Welford's. Its type is int64, since a count may be large; where all indices of
a launch have 32 bits, so may it, and conversions to floats cost a quarter.
"""

from __future__ import annotations

from collections.abc import Iterable

from loopnest.scalar.dtypes import int64
from loopnest.scalar.expr import ONE, Arg, Const, Expr, Op
from loopnest.scalar.simplify import Simplifier
from loopnest.tensor.tensor_view import TensorView


def element_counts(
    units: Iterable[TensorView], algebra: Simplifier
) -> tuple[tuple[str, Expr], ...]:
    """Return the tensors that count elements, by name, each with the most that it can count.

    `units` are the first outputs of definitions.
    """
    found = [(t.name, _most(t, algebra)) for unit in units for t in unit.siblings]
    return tuple([(name, most) for name, most in found if most is not None])


def _most(tensor: TensorView, algebra: Simplifier) -> Expr | None:
    """Return how many elements a tensor counts at most, None where it does not count.

    A stage of a factored reduction adds what the stage before it counted.
    """
    definition = tensor.definition
    if definition is None or definition.reducer is None or tensor.dtype is not int64:
        return None
    place, reducer = tensor.siblings.index(tensor), definition.reducer
    ours, others = Arg(place, int64), Arg(len(reducer.identity) + place, int64)
    if reducer.combination[place] is not Op("add", (ours, others), int64):
        return None
    each: Expr | None = None
    match definition.values[place]:
        case Const(value=1):
            each = ONE
        case Arg(number=number):
            each = _most(definition.reads[number].producer, algebra)
    if each is None:
        return None
    sizes = [algebra.simplify(axis.size) for axis in tensor.domain.root if axis.is_reduction]
    return algebra.product([each, *sizes])
