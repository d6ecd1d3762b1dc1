"""Reverse-mode differentiation: the gradient of a graph is a graph of the same ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from loopnest.base.errors import kind_of
from loopnest.graph.gradients import NotDifferentiable, Rule
from loopnest.graph.gradients.gradient_rules import Contribution
from loopnest.graph.graph_error import GraphError
from loopnest.graph.leaves import var
from loopnest.graph.node import Node, TensorType, TupleType, describe, items_of
from loopnest.graph.node_origins import made_for, origin_of, place_of
from loopnest.graph.operators.creation import ones_like, zeros_like
from loopnest.graph.operators.pointwise_ops import add
from loopnest.graph.program import body_of
from loopnest.graph.registry import get_attr, register_attr, short
from loopnest.graph.rewriting import substitute
from loopnest.graph.traverse import postorder

Adjoint: TypeAlias = "Node | tuple[Node | None, ...]"


def gradient(y: Node, xs: Sequence[Node], dy: Node | None = None) -> list[Node]:
    """Return the gradient of y with respect to each of `xs`: nodes, which can be differentiated.

    Args:
        y: a float tensor.
        xs: float tensors: inputs, variables or any other node; zeros for those that y does not
            depend on.
        dy: the gradient that arrives at y, of y's type; ones by default, that is, the gradient of
            sum(y).

    Integers, bools and comparisons end a path, as the condition of `where` does. Ties of `maximum`
    go to its first operand, those of a `max` reduction are shared, `relu` and `abs` have slope 0
    at 0. An extreme that is NaN is the element that is NaN, so that a NaN is never lost on the
    way. ``a ** b`` has slope 0 in b where a is 0 and b >= 0, and NaN where a < 0.

    Raises:
        GraphError: an operand that is no float tensor, or a node on the way from xs to y whose op
            is not differentiable (floor, argmax…) or has no gradient registered.

    >>> from loopnest.graph import tanh, var
    >>> x, dy = var("x", (3,)), var("dy", (3,))
    >>> gradient(tanh(x), [x], dy)
    [<mul(sub(…), dy): float32[3]>]

    Source: Griewank and Walther, "Evaluating Derivatives", 2008, section 3.2.
    """
    wanted = items_of(xs)
    if wanted is None:
        kind = "a node" if isinstance(xs, Node) else kind_of(xs)
        raise GraphError(f"gradient(xs={short(xs)})", f"xs is {kind}", "pass a list of nodes")
    seed = _checked(y, wanted, dy)
    found = _pulled_back({y: seed}, wanted)
    results: list[Node] = []
    for x in wanted:
        adjoint = found.get(x)
        assert not isinstance(adjoint, tuple)
        results.append(zeros_like(x) if adjoint is None else adjoint)
    return results


def _checked(y: Node, xs: Sequence[Node], dy: Node | None) -> Node:
    """Return the gradient that arrives at y."""
    for role, node in (("y", y), *[("x", x) for x in xs]):
        if not isinstance(node, Node):
            raise GraphError(
                f"gradient({role}={short(node)})", f"it is {kind_of(node)}", "use a node"
            )
        if not isinstance(node.type, TensorType) or not node.dtype.is_float:
            raise GraphError(
                f"gradient({role}={describe(node)})", f"it is {node.type}", "use a float tensor"
            )
    if dy is None:
        return ones_like(y)
    if not isinstance(dy, Node) or dy.type != y.type:
        what = str(dy.type) if isinstance(dy, Node) else kind_of(dy)
        raise GraphError(f"gradient(dy={dy})", f"it is {what}, y is {y.type}", "they must agree")
    return dy


def _pulled_back(adjoints: dict[Node, Adjoint], xs: Sequence[Node]) -> dict[Node, Adjoint]:
    """Return the adjoints of all nodes between the given ones and xs."""
    order = postorder(adjoints)
    wanted = set(xs)
    active: set[Node] = set()  # what depends on xs
    for node in order:
        if node in wanted or any(x in active for x in node.inputs):
            active.add(node)
    for node in reversed(order):
        dy = adjoints.get(node)
        if dy is None or not any(x in active for x in node.inputs):
            continue
        with made_for(origin_of(node)):
            parts = _rule(node)(node, dy)
        if len(parts) != len(node.inputs):
            raise GraphError(
                describe(node), f"its gradient has {len(parts)} parts", "one for each operand"
            )
        for operand, part in zip(node.inputs, parts, strict=True):
            if part is not None and operand in active:
                adjoints[operand] = _sum(node, operand, adjoints.get(operand), part)
    return adjoints


def _rule(node: Node) -> Rule:
    """Return the rule of a node's op.

    Raises:
        GraphError: it has none.
    """
    rule: Rule | NotDifferentiable | None = get_attr(node, "gradient", None)
    if rule is None or isinstance(rule, NotDifferentiable):
        why = "no gradient is registered for it" if rule is None else rule.reason
        raise GraphError(
            f"gradient of {describe(node)}{place_of(node)}",
            f"op {node.op} is not differentiable: {why}",
            f"register_attr({node.op!r}, 'gradient', …) gives it a rule",
        )
    return rule


def _sum(node: Node, operand: Node, old: Adjoint | None, part: Contribution) -> Adjoint:
    """Return an adjoint with one more contribution, that of `node`."""
    if isinstance(operand.type, TupleType):
        fields = (None,) * len(operand.type.fields)
        before = old if isinstance(old, tuple) else fields
        assert isinstance(part, tuple)
        return tuple([_added(a, b) for a, b in zip(before, part, strict=True)])
    assert not isinstance(old, tuple)
    if not isinstance(part, Node) or part.type != operand.type:
        what = part.type if isinstance(part, Node) else type(part).__name__
        raise GraphError(
            f"gradient of {describe(node)}{place_of(node)}",
            f"its rule gives {what} for {describe(operand)}",
            f"that is {operand.type}",
        )
    return part if old is None else add(old, part)


def _added(a: Node | None, b: Node | None) -> Node | None:
    if a is None or b is None:
        return b if a is None else a
    return add(a, b)


@register_attr("fused", "gradient")
def _fused(node: Node, dy: Adjoint) -> list[Contribution]:
    """Differentiate the body on its own inputs, then put the operands in."""
    body = body_of(node)
    arriving = dy if isinstance(dy, tuple) else (dy,)
    adjoints: dict[Node, Adjoint] = {}
    replacements = dict(zip(body.inputs, node.inputs, strict=True))
    for output, part in zip(body.outputs, arriving, strict=True):
        if part is not None:
            seed = var("dy", part.shape, part.dtype)
            replacements[seed] = part
            adjoints[output] = _sum(node, output, adjoints.get(output), seed)
    found = _pulled_back(adjoints, body.inputs)
    parts = [found.get(x) for x in body.inputs]
    present = iter(substitute([x for x in parts if isinstance(x, Node)], replacements))
    return [None if part is None else next(present) for part in parts]
