"""DeadCodeElimination: drop what no output needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loopnest.graph import operators
from loopnest.graph.leaves import get_item, make_tuple
from loopnest.graph.node import Node, TensorType, Type
from loopnest.graph.node_origins import postorder
from loopnest.graph.passes.manager import FunctionPass, PassContext, PassInfo, register_pass
from loopnest.graph.program import Graph, Unit, body_of, call_graph
from loopnest.graph.registry import rebuild
from loopnest.graph.rewriting import substitute
from loopnest.graph.state import assignments, body_is_pure


class DeadCodeElimination(FunctionPass):
    """Drop fields of tuples that nobody takes, and outputs and operands that no body needs.

    A graph holds only what its outputs reach, so that what is dead is dead behind a tuple or in a
    fused body: a field of a call that nobody takes is no longer computed, an operand that the body
    does not read (or that comes twice) is no longer passed, ``tuple(a, b)[0]`` is ``a``, and for a
    body that returns an operand as it is stands the operand. Inputs of the graph stay, and so does
    what assigns variables or calls impure ops.

    Idempotent.
    """

    info = PassInfo("DeadCodeElimination", 1)

    def transform_function(self, func: Graph, mod: Unit, ctx: PassContext) -> Graph:
        return _eliminated(func)


def _eliminated(graph: Graph) -> Graph:
    """Return a graph without dead code; each round may make more of it dead."""
    while True:
        smaller = _swept(graph)
        if smaller is graph:
            return graph
        graph = smaller


def _swept(graph: Graph) -> Graph:
    memo: dict[Node, Node] = {}
    for node in graph.nodes:
        new = rebuild(node, [memo[x] for x in node.inputs])
        if node.op == "fused":
            new = _smaller_call(new, _taken(graph, node))
        elif node.op == "get_item" and new.inputs[0].op in ("tuple", "group"):
            new = new.inputs[0].inputs[new.attrs["index"]]
        memo[node] = new
    return graph.with_outputs([memo[x] for x in graph.outputs])


def _taken(graph: Graph, node: Node) -> set[int]:
    """Return which outputs of a call's body are needed."""
    body = body_of(node)
    fields = set(range(len(body.outputs)))
    users = graph.users[node]
    whole = node in graph.outputs or any(user.op != "get_item" for user in users)
    if whole or len(fields) == 1:
        return fields
    taken = {user.attrs["index"] for user in users}
    return {i for i in fields if i in taken or _has_effect(body, i)}


def _has_effect(body: Graph, index: int) -> bool:
    """Whether an output must be computed even if it is not read."""
    part = Graph(body.inputs, [body.outputs[index]], body.name)
    return bool(assignments(part)) or not body_is_pure(part)


def _smaller_call(node: Node, taken: set[int]) -> Node:
    """Return a call that computes only the outputs that are needed.

    It is the call itself where nothing is dead; else a tuple, of which each `get_item` will take
    its field, so that the fields that nobody takes vanish with it.
    """
    body = _eliminated(body_of(node))
    passed = _merged_operands(body, node.inputs)
    outputs = substitute(body.outputs, passed)
    values = dict(zip(body.inputs, node.inputs, strict=True))
    computed = list(dict.fromkeys(outputs[i] for i in sorted(taken) if outputs[i] not in values))
    inputs = _reached(body, computed)
    if len(inputs) == len(body.inputs) and len(computed) == len(outputs):
        return node if body is body_of(node) else call_graph(body, node.inputs, node.name)
    if computed:
        call = call_graph(
            Graph(inputs, computed, body.name), [values[x] for x in inputs], node.name
        )
        for number, output in enumerate(computed):
            values[output] = get_item(call, number) if len(computed) > 1 else call
    fields = [
        values[output] if i in taken else _placeholder(output.type)
        for i, output in enumerate(outputs)
    ]
    return fields[0] if len(fields) == 1 else make_tuple(*fields)


def _merged_operands(body: Graph, operands: Sequence[Node]) -> Mapping[Node, Node]:
    """Return, for each parameter that gets the same operand as an earlier one, that one."""
    first: dict[Node, Node] = {}
    passed: dict[Node, Node] = {}
    for param, operand in zip(body.inputs, operands, strict=True):
        if first.setdefault(operand, param) is not param:
            passed[param] = first[operand]
    return passed


def _reached(body: Graph, outputs: Sequence[Node]) -> list[Node]:
    nodes = set(postorder(outputs))
    return [x for x in body.inputs if x in nodes]


def _placeholder(kind: Type) -> Node:
    """Return a node of a type, in place of a field that is not read."""
    if isinstance(kind, TensorType):
        return operators.zeros(kind.shape, kind.dtype)
    return make_tuple(*[_placeholder(part) for part in kind.fields])


register_pass("DeadCodeElimination", DeadCodeElimination)
