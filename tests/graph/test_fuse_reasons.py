"""What `G.explain_fusion` says of two ops: a group, or the rule that parts them."""

from __future__ import annotations

import pytest

import loopnest.graph as G
from graph import published

# Reasons


def op(graph: G.Graph, name: str, number: int = 0) -> G.Node:
    return [node for node in graph.nodes if node.op == name][number]


def test_why_ops_fuse() -> None:
    graph = published.diamond_of_tvm()
    assert G.explain_fusion(graph, op(graph, "tanh"), op(graph, "conv2d")) == (
        "tanh(conv2d(…)) [ELEMWISE] and conv2d(x, w) [OUT_ELEMWISE_FUSABLE] fuse: phase 0 merged "
        "conv2d(x, w) with its post-dominator add(add(…), mul(…)) and what lies between "
        "(relu(conv2d(…)) [ELEMWISE], tanh(conv2d(…)) [ELEMWISE], add(relu(…), tanh(…)) "
        "[BROADCAST], mul(conv2d(…), 2.0) [BROADCAST]) by the rule for heavy ops (all edges are "
        "ELEMWISE, all ops at most BROADCAST)"
    )


def test_why_injective_ops_and_tuples_fuse() -> None:
    graph = published.tuple_of_tvm()
    assert G.explain_fusion(graph, op(graph, "exp"), op(graph, "mul")) == (
        "exp(transpose(…)) [ELEMWISE] and mul(get_item(…), get_item(…)) [BROADCAST] fuse: phase 2 "
        "merged exp(transpose(…)) with its post-dominator tuple(transpose(…), exp(…)) by the rule "
        "for tuples (the tuple was fused into injective ops before)"
    )
    assert " fuse: phase 1 merged " in G.explain_fusion(graph, op(graph, "tuple"), op(graph, "mul"))


HEAVY = published.conv_chain_of_tvm()
DIAMOND = published.diamond_of_tvm(opaque=True)
X = G.var("x", (4, 8))
SUMMED = G.Graph([X], [G.exp(G.sum(G.tanh(X), 1))], "summed")
SPREAD = G.Graph([X], [G.tanh(X), G.exp(G.tanh(X))], "spread")
_hidden = G.tanh(X)
SCATTERED = G.Graph([X], [G.exp(_hidden), G.sin(_hidden)], "scattered")
_pair = G.make_tuple(G.tanh(X), G.sin(X))
PAIR = G.Graph([X], [_pair, _pair[0] + 1.0], "pair")


@pytest.mark.parametrize(
    ("graph", "a", "b", "options", "reason"),
    [
        (
            HEAVY,
            op(HEAVY, "conv2d"),
            op(HEAVY, "conv2d", 1),
            {},
            "conv2d(x, w0) [OUT_ELEMWISE_FUSABLE] and conv2d(relu(…), w1) [OUT_ELEMWISE_FUSABLE] "
            "do not fuse: the group of conv2d(x, w0) ends at relu(add(…)): phase 0 did not merge "
            "relu(add(…)) with its post-dominator conv2d(relu(…), w1), because the edge into "
            "conv2d(relu(…), w1) [OUT_ELEMWISE_FUSABLE] is OUT_ELEMWISE_FUSABLE: two heavy ops "
            "never share a group",
        ),
        (
            HEAVY,
            op(HEAVY, "relu"),
            op(HEAVY, "add"),
            {"max_depth": 2},
            "relu(add(…)) [ELEMWISE] and add(conv2d(…), b0) [BROADCAST] do not fuse: phase 0 did "
            "not merge add(conv2d(…), b0) with its post-dominator relu(add(…)), because their "
            "group would have 3 ops or more, max_depth is 2",
        ),
        (
            HEAVY,
            op(HEAVY, "relu"),
            op(HEAVY, "add"),
            {"fuse_opt_level": 0},
            "relu(add(…)) [ELEMWISE] and add(conv2d(…), b0) [BROADCAST] do not fuse: "
            "fuse_opt_level 0 leaves every op in a group of its own, before phase 0",
        ),
        (
            DIAMOND,
            op(DIAMOND, "conv2d"),
            op(DIAMOND, "relu"),
            {},
            "conv2d(x, w) [OUT_ELEMWISE_FUSABLE] and relu(conv2d(…)) [ELEMWISE] do not fuse: "
            "phase 0 did not merge conv2d(x, w) with its post-dominator add(add(…), mul(…)), "
            "because the edge into softmax(conv2d(…)) [OPAQUE] is OPAQUE, against the rule for "
            "heavy ops (all edges are ELEMWISE, all ops at most BROADCAST)",
        ),
        (
            DIAMOND,
            op(DIAMOND, "add"),
            op(DIAMOND, "softmax"),
            {},
            "add(relu(…), softmax(…)) [BROADCAST] and softmax(conv2d(…)) [OPAQUE] do not fuse: "
            "softmax(conv2d(…)) is OPAQUE, which no phase fuses with anything",
        ),
        (
            SUMMED,
            op(SUMMED, "tanh"),
            op(SUMMED, "exp"),
            {},
            "tanh(x) [ELEMWISE] and exp(sum(…)) [ELEMWISE] do not fuse: the group of tanh(x) ends "
            "at sum(tanh(…)): sum(tanh(…)) is a REDUCTION, which no phase fuses with what reads it",
        ),
        (
            SPREAD,
            SPREAD.outputs[0],
            SPREAD.outputs[1],
            {},
            "tanh(x) [ELEMWISE] and exp(tanh(…)) [ELEMWISE] do not fuse: tanh(x) is an output of "
            "the graph, where a group ends in every phase",
        ),
        (
            SCATTERED,
            _hidden,
            SCATTERED.outputs[1],
            {},
            "tanh(x) [ELEMWISE] and sin(tanh(…)) [ELEMWISE] do not fuse: tanh(x) has no "
            "post-dominator (the ways from it to the outputs do not meet in one op), so that no "
            "phase fuses it",
        ),
        (
            PAIR,
            op(PAIR, "tanh"),
            op(PAIR, "sin"),
            {},
            "tanh(x) [ELEMWISE] and sin(x) [ELEMWISE] do not fuse: phase 1 did not merge tanh(x) "
            "with its post-dominator tuple(tanh(…), sin(…)), because that is a TUPLE which was "
            "fused with nothing that reads it",
        ),
        (
            HEAVY,
            op(HEAVY, "relu"),
            HEAVY.inputs[0],
            {},
            "x is a var, which belongs to no group: a group takes it as a parameter, and copies a "
            "scalar constant",
        ),
        (HEAVY, op(HEAVY, "relu"), op(HEAVY, "relu"), {}, "relu(add(…)) [ELEMWISE] is one op"),
    ],
)
def test_why_ops_do_not_fuse(
    graph: G.Graph, a: G.Node, b: G.Node, options: dict[str, int], reason: str
) -> None:
    assert G.explain_fusion(graph, a, b, **options) == reason


def test_two_ops_alone_are_explained_in_the_graph_of_what_they_reach() -> None:
    graph = published.diamond_of_tvm()
    a, b = op(graph, "conv2d"), graph.outputs[0]
    assert G.explain_fusion(a, b) == G.explain_fusion(graph, a, b)
    assert G.explain_fusion(b, a) == G.explain_fusion(graph, b, a)
    # The branches themselves are outputs of what they reach.
    assert " do not fuse: " in G.explain_fusion(op(graph, "relu"), op(graph, "tanh"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (HEAVY, op(HEAVY, "relu"), DIAMOND.outputs[0]),
            "explain_fusion(relu(add(…)), add(add(…), mul(…))): add(add(…), mul(…)) is no node of "
            "graph conv_chain; take nodes of the graph before fusion",
        ),
        (
            (HEAVY, op(HEAVY, "relu")),
            "explain_fusion(Graph, Node): it takes a graph and two nodes; write (graph, a, b)",
        ),
    ],
)
def test_explanations_of_something_else_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(G.GraphError) as caught:
        G.explain_fusion(*arguments)
    assert str(caught.value) == message
