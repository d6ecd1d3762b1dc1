"""Value numbering: equal numbers are equal computations, whatever nodes stand for them.

Two nodes have one number if they apply equal ops (with equal attributes, such as axes) to operands
of equal numbers. Vars are equal by name and type, so that graphs which share no nodes can be
compared; constants are equal by value. Operands of commutative ops have no order; a field of a
tuple is the field itself; a call of a fused group is what its body computes.

Source: Click, "Global Code Motion, Global Value Numbering", 1995.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from loopnest.graph.node import Node
from loopnest.graph.passes.purity import is_pure
from loopnest.graph.program import body_of
from loopnest.graph.registry import get_attr
from loopnest.graph.structural import node_key


class Numbering:
    """Numbers of values, over any number of graphs; they are counted from 0."""

    def __init__(self) -> None:
        self._numbers: dict[Node, int] = {}
        self._table: dict[Hashable, int] = {}
        self._fields: dict[int, tuple[int, ...]] = {}

    def add(self, roots: Iterable[Node]) -> None:
        """Give numbers to all that `roots` reach and that has none yet."""
        numbers = self._numbers
        for root in roots:
            stack = [root]
            while stack:
                node = stack[-1]
                missing = [x for x in node.inputs if x not in numbers]
                if missing:
                    stack += missing[::-1]
                    continue
                if node not in numbers:
                    numbers[node] = self._value(node, [numbers[x] for x in node.inputs])
                stack.pop()

    def __getitem__(self, node: Node) -> int:
        """Return the number of a node that was added."""
        return self._numbers[node]

    def _value(self, node: Node, operands: Sequence[int]) -> int:
        if node.op == "fused" and is_pure(node):
            return self._called(node, operands)
        if node.op in ("tuple", "group"):
            return self._tuple(operands)
        if node.op == "get_item" and operands[0] in self._fields:
            return self._fields[operands[0]][node.attrs["index"]]
        if node.op == "var":
            return self._number(("var", node.name, node.type))
        if not is_pure(node):
            return self._number(("impure", node))
        if get_attr(node, "commutative", False):
            operands = sorted(operands)
        return self._number((node_key(node), *operands))

    def _called(self, node: Node, operands: Sequence[int]) -> int:
        body = body_of(node)
        inner = dict(zip(body.inputs, operands, strict=True))
        for step in body.nodes:
            if step not in inner:
                inner[step] = self._value(step, [inner[x] for x in step.inputs])
        outputs = [inner[x] for x in body.outputs]
        return outputs[0] if len(outputs) == 1 else self._tuple(outputs)

    def _tuple(self, fields: Sequence[int]) -> int:
        number = self._number(("fields", *fields))
        self._fields[number] = tuple(fields)
        return number

    def _number(self, key: Hashable) -> int:
        return self._table.setdefault(key, len(self._table))
