"""find: occurrences of an expression, by kind of node and axes."""

from __future__ import annotations

import numpy as np
import pytest

import loopnest.graph as G
from graph import published


def test_occurrences_are_found_by_structure_in_the_order_of_the_graph() -> None:
    pair = published.tanh_of_cse_rfc()
    x = pair.forward.inputs[0]
    g = G.Graph([x], [G.tanh(x) * G.tanh(x), G.exp(x)])
    assert G.find(g, G.tanh(x)) == (g.outputs[0].inputs[0], g.outputs[0].inputs[1])
    assert g.find(G.tanh(x)) == G.find(g, G.tanh(x))
    assert G.find(g, G.sin(x)) == ()
    assert G.find(pair.backward, pair.forward.outputs[0]) == (pair.forward.outputs[0],)


def test_axes_and_attributes_tell_expressions_apart() -> None:
    x = G.var("x", (3, 3))
    g = G.Graph([x], [G.sum(x, 0), G.sum(x, 1), G.sum(x, 0, keepdims=True), G.max(x, 0)])
    assert G.find(g, G.sum(x, 0)) == (g.outputs[0],)
    assert G.find(g, G.sum(x, 1)) == (g.outputs[1],)
    assert G.find(g, G.sum(x, 0, keepdims=True)) == (g.outputs[2],)


def test_inputs_are_the_same_by_name_and_type() -> None:
    x = G.var("x", (3,))
    g = G.parse(str(G.Graph([x], [G.exp(x + 1.0)])))
    assert G.find(g, G.exp(x + 1.0)) == g.outputs
    assert G.find(g, G.exp(x + 2.0)) == ()
    assert G.find(g, G.exp(G.var("y", (3,)) + 1.0)) == ()
    assert G.find(g, G.exp(G.var("x", (4,)) + 1.0)) == ()
    assert G.find(g, G.var("x", (3,))) == g.inputs


def test_constants_are_the_same_by_value() -> None:
    x, table = G.var("x", (3,)), np.arange(3, dtype=np.float32)
    g = G.Graph([x], [x * G.const(table)])
    assert G.find(g, x * G.const(table.copy())) == g.outputs
    assert G.find(g, x * G.const(table + 1)) == ()


def test_operands_of_commutative_ops_have_no_order() -> None:
    x, y = G.var("x", (3,)), G.var("y", (3,))
    g = G.Graph([x, y], [x * y + x, x - y])
    assert G.find(g, x + y * x) == g.outputs[:1]
    assert G.find(g, y - x) == ()


def test_a_field_of_a_tuple_is_the_field() -> None:
    x = G.var("x", (3,))
    pair = G.make_tuple(G.exp(x), G.tanh(x))
    g = G.Graph([x], [pair[1] * 2.0])
    assert G.find(g, G.tanh(x)) == (pair.inputs[1], g.outputs[0].inputs[0])


def test_a_fused_group_is_found_by_what_it_computes() -> None:
    g = published.conv_chain_of_tvm()
    fused = G.FuseOps()(g)
    relu = next(node for node in g.nodes if node.op == "relu")
    conv = next(node for node in g.nodes if node.op == "conv2d")
    assert G.find(fused, relu) == (fused.calls[0],)
    assert G.find(fused, g.outputs[0]) == fused.outputs
    assert G.find(fused, conv) == ()  # inside of a group


def test_a_shared_expression_of_a_hundred_levels_is_found() -> None:
    x = G.var("x", (2,))
    a = b = x
    for _ in range(100):
        a, b = a + a, b + b  # 2 ** 100 as trees
    assert G.find(G.Graph([x], [a]), b) == (a,)


def test_a_chain_of_3000_ops_is_no_problem() -> None:
    x = y = G.var("x", (2,))
    for _ in range(3000):
        y = G.tanh(y)
    assert G.find(G.Graph([x], [y]), y) == (y,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, G.var("x", (2,))), "find(…): it was given an int; pass a G.Graph"),
        (
            (published.distribute_of_ublas(), 3.0),
            "find(main, …): the expression is a float; pass a node",
        ),
    ],
)
def test_something_else_is_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(G.GraphError) as caught:
        G.find(*arguments)
    assert str(caught.value) == message
