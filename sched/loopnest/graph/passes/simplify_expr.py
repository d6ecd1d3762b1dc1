"""SimplifyExpr: algebraic identities, and movements that cancel or compose."""

from __future__ import annotations

from loopnest.base.errors import InternalError
from loopnest.graph.node import Node, describe
from loopnest.graph.passes import movements
from loopnest.graph.passes.context import PassContext
from loopnest.graph.passes.decorators import register_pass
from loopnest.graph.passes.identities import EXACT, LOOSE
from loopnest.graph.passes.info import PassInfo
from loopnest.graph.passes.manager import FunctionPass
from loopnest.graph.passes.module import Unit
from loopnest.graph.passes.options import register_option
from loopnest.graph.program import Graph
from loopnest.graph.rewriting import rewrite

__all__ = ["SimplifyExpr", "movements"]

_KEY = "SimplifyExpr.reassociate"
_ROUNDS = 100
"""More rewrites of one node, or rounds over a graph, mean that rules undo each other."""
register_option(
    _KEY, False, doc="True lets floats be treated as real numbers: x - x is 0, constants meet"
)


class SimplifyExpr(FunctionPass):
    """Apply identities until none applies: x + 0, x * 1, -(-x), two transposes, a slice of a slice.

    Values stay bit for bit the same, but for the sign of a zero (-0.0 + 0 is +0.0, the result is
    -0.0) and the last bit of x ** 2, which becomes x * x.

    Args:
        reassociate: whether floats may be treated as real numbers: x - x is 0 (even of NaN),
            (x + 1) + 2 is x + 3, (x + y) - y is x, exp(log(x)) is x. Without it, that of the
            option ``SimplifyExpr.reassociate``; integers are treated so in any case, since they
            wrap.

    Idempotent. The rules are tables: `identities`, `movements`.
    """

    info = PassInfo("SimplifyExpr", 0)

    def __init__(self, reassociate: bool | None = None) -> None:
        self.reassociate = reassociate

    def transform_function(self, func: Graph, mod: Unit, ctx: PassContext) -> Graph:
        loose = ctx.option(_KEY) if self.reassociate is None else self.reassociate
        for _ in range(_ROUNDS):
            simpler = rewrite(func, lambda node: _simplified(node, loose))
            if simpler is func:
                return func
            func = simpler
        raise InternalError("SimplifyExpr", f"no end after {_ROUNDS} rounds over {func.name}")


def _simplified(node: Node, loose: bool) -> Node:
    for _ in range(_ROUNDS):
        simpler = _once(node, loose)
        if simpler is None:
            return node
        node = simpler
    raise InternalError("SimplifyExpr", f"no end of rewriting {describe(node)}")


def _once(node: Node, loose: bool) -> Node | None:
    rules = EXACT.get(node.op, [])
    if node.op in LOOSE and (loose or not node.dtype.is_float):
        rules = rules + LOOSE[node.op]
    for rule in rules:
        simpler = rule(node)
        if simpler is not None and simpler is not node:
            if simpler.type != node.type:
                raise InternalError(
                    "SimplifyExpr", f"{describe(node)}: {node.type} became {simpler.type}"
                )
            return simpler
    return None


register_pass("SimplifyExpr", SimplifyExpr)
