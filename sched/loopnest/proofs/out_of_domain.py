"""What is computed outside of a tensor, where filled copies hold constants.

A reduction may run over points beyond its domain where what it reads there is such that it adds the
reducer's identity (`loopnest.lowering.indexing.predicate_elimination` makes such nests).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from loopnest.numerics.float64_math import fold
from loopnest.proofs.template_matching import reducer_of
from loopnest.scalar.expr import Arg, Const, Expr, substitute, walk
from loopnest.tensor.math_snapshot import MathTensor

Constants = Mapping[str, Const]
"""What the producers of a tensor hold, by name."""


def defined(tensor: MathTensor, constants: Constants) -> Const | None:
    """Return the value of a pointwise definition of constants; None where one is missing."""
    definition = tensor.definition
    assert definition is not None
    found = _folded(tensor, definition.values[definition.component], constants)
    return found if isinstance(found, Const) else None


def is_neutral(tensor: MathTensor, constants: Constants) -> bool:
    """Whether an update by constants leaves a partial result as it is."""
    definition = tensor.definition
    assert definition is not None
    reducer, reads = reducer_of(tensor), len(definition.reads)
    own = tuple([Arg(reads + n, dtype) for n, dtype in enumerate(reducer.types)])
    kept = reducer.combine(own, reducer.identity)
    wanted = fold(kept[definition.component])
    return _folded(tensor, definition.updates[definition.component], constants) is wanted


def _folded(tensor: MathTensor, value: Expr, constants: Constants) -> Expr:
    assert tensor.definition is not None
    named = [read.producer for read in tensor.definition.reads]
    values: dict[Expr, Expr] = {
        arg: constants[named[arg.number]]
        for arg in _args(value)
        if arg.number < len(named) and named[arg.number] in constants
    }
    return fold(substitute(value, values))


def _args(value: Expr) -> Iterable[Arg]:
    return [node for node in walk(value) if isinstance(node, Arg)]
