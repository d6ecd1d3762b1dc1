"""EliminateCommonSubexpr: compute equal expressions once."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from loopnest.graph.node import Node
from loopnest.graph.passes.manager import FunctionPass, PassContext, PassInfo, register_pass
from loopnest.graph.program import Graph, Unit
from loopnest.graph.registry import get_attr, register_attr
from loopnest.graph.rewriting import ExprMutator
from loopnest.graph.state import is_pure
from loopnest.graph.structural import node_key

_COMMUTATIVE = "add mul maximum minimum eq ne bitand bitor logical_and logical_or"
register_attr(_COMMUTATIVE.split(), "commutative", True)


class EliminateCommonSubexpr(FunctionPass):
    """Merge nodes of equal structure: the same op and attributes on the same operands.

    Constants of equal value are merged too, and calls of fused groups with equal bodies; each body
    is treated by itself. Of several equal nodes the first in the order of the graph stays.

    Args:
        commutative: whether a + b and b + a are equal (ops of the attribute ``commutative``).
        skip: nodes for which it returns True are left alone.

    Idempotent. Sources: TVM's `relay.transform.EliminateCommonSubexpr` (to v0.18); Click, "Global
    Code Motion, Global Value Numbering", 1995.
    """

    info = PassInfo("EliminateCommonSubexpr", 3)

    def __init__(
        self, commutative: bool = False, skip: Callable[[Node], bool] | None = None
    ) -> None:
        self.commutative, self.skip = commutative, skip

    def transform_function(self, func: Graph, mod: Unit, ctx: PassContext) -> Graph:
        return _Merger(self.commutative, self.skip).visit(func)


class _Merger(ExprMutator):
    """Numbers values: operands are merged already, so equal expressions have equal operands."""

    def __init__(self, commutative: bool, skip: Callable[[Node], bool] | None) -> None:
        super().__init__()
        self._commutative, self._skip = commutative, skip
        self._first: dict[Hashable, Node] = {}

    def visit_node(self, node: Node) -> Node:
        if node.op == "variable":
            # A graph has one first value of each variable, which may be large.
            return self._first.setdefault((node.attrs["variable"], str(node.type)), node)
        if node.op == "var" or not is_pure(node) or (self._skip is not None and self._skip(node)):
            return node
        operands = [id(x) for x in node.inputs]
        if self._commutative and get_attr(node, "commutative", False):
            operands.sort()
        # The first node is kept alive by this table, and with it the ids of its operands.
        return self._first.setdefault((node_key(node), *operands), node)

    def visit_fused(self, node: Node) -> Node:
        return self.visit_node(super().visit_fused(node))


register_pass("EliminateCommonSubexpr", EliminateCommonSubexpr)
