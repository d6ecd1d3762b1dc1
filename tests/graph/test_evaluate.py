"""The evaluator: what it is fed, state, and what it tells a watcher."""

import numpy as np
import pytest

import loopnest.graph as G
from graph import published
from helpers.work import calls
from loopnest.graph.node_values import evaluate_closed

X = G.var("x", (2,), "float32")
GRAPH = G.Graph([X], [X * 2.0])


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "evaluate(main): the input x has no array; inputs are: x"),
        (
            {"x": np.zeros(2, np.float32), "y": 1},
            "evaluate(main): there is no input y; inputs are: x",
        ),
        ({"x": np.zeros(3)}, "evaluate(main): x is float32[2], the array [3]"),
        (
            {"x": np.zeros(2, complex)},
            "evaluate(main): x is float32[2], the array <array complex128[2]>",
        ),
    ],
)
def test_errors(feeds, message):
    with pytest.raises(G.GraphError) as found:
        G.evaluate(GRAPH, feeds)
    assert str(found.value) == message


def test_lists_and_wider_floats_are_converted():
    for value in ([1, 2], np.array([1.0, 2.0]), np.array([1, 2])):
        (found,) = G.evaluate(GRAPH, {"x": value})
        assert (found.dtype, found.tolist()) == (np.float32, [2, 4])


def test_state_is_read_before_and_written_after():
    s = G.Variable([1.0], "s")
    new = G.assign(s, s * 2.0)
    graph = G.Graph([], [s + 0.0, new, s + new])
    state: dict[str, np.ndarray] = {}
    assert [v.tolist() for v in G.evaluate(graph, {}, state)] == [[1], [2], [3]]
    assert state["s"].tolist() == [2]
    assert [v.tolist() for v in G.evaluate(graph, {}, state)] == [[2], [4], [6]]
    assert [v.tolist() for v in G.evaluate(graph)] == [[1], [2], [3]]
    with pytest.raises(G.GraphError) as found:
        G.evaluate(graph, {}, {"s": np.zeros(3)})
    assert str(found.value) == "evaluate(state={'s': …}): s is float32[1], the array [3]"


def test_state_is_assigned_inside_a_fused_group():
    s = G.Variable([1.0], "s")
    p = G.var("p", (1,))
    new = G.Node("assign", (p, p + 1.0), {"variable": "s"}, p.type)
    graph = G.check(G.Graph([], [G.call_graph(G.Graph([p], [new], "step"), [s])]))
    assert G.structural_equal(G.parse(str(graph)), graph)
    state: dict[str, np.ndarray] = {}
    for expected in (2, 3, 4):
        G.evaluate(graph, {}, state)
        assert state["s"].tolist() == [expected]


def test_nothing_is_written_when_an_evaluation_fails():
    s = G.Variable([1.0], "s")
    G.register_op(
        "fails", infer=lambda types, attrs: types[0], evaluate=lambda node, x: 1 // 0, arity=1
    )
    try:
        graph = G.Graph([], [G.call("fails", [G.assign(s, s + 1.0)])])
        state: dict[str, np.ndarray] = {}
        with pytest.raises(ZeroDivisionError):
            G.evaluate(graph, {}, state)
        assert state == {}
    finally:
        from loopnest.graph.registry import unregister_op

        unregister_op("fails")


def test_an_op_that_breaks_its_promise_is_named():
    G.register_op(
        "liar", infer=lambda types, attrs: types[0], evaluate=lambda node, x: x[:1], arity=1
    )
    try:
        with pytest.raises(G.GraphError) as found:
            G.evaluate(G.Graph([X], [G.call("liar", [X])]), {"x": [1, 2]})
        assert str(found.value) == "liar(x): its op computed [1], inference promised float32[2]"
    finally:
        from loopnest.graph.registry import unregister_op

        unregister_op("liar")


def test_a_watcher_sees_every_node():
    seen = []
    G.evaluate(GRAPH, {"x": [1, 2]}, watch=lambda node, value: seen.append((node.op, value.sum())))
    assert seen == [("var", 3), ("const", 2), ("mul", 6)]


def test_closed_nodes():
    assert evaluate_closed(G.zeros((2,)) + 1.0).tolist() == [1, 1]
    with pytest.raises(G.GraphError) as found:
        evaluate_closed(G.exp(G.Variable([1.0], "s")))
    assert str(found.value) == "exp(s): it is no tensor of constants"


def test_results_do_not_share_memory_with_what_is_fed():
    data = np.ones(2, np.float32)
    (found,) = G.evaluate(G.Graph([X], [X]), {"x": data})
    data[0] = 5
    assert found.tolist() == [1, 1]


def test_the_outputs_are_the_callers():
    c = G.const(np.zeros(2))
    found, view = G.evaluate(G.Graph([], [c, c[0:1]]))
    found[0] = 1
    view[0] = 2
    assert c.value.tolist() == [0, 0]


def test_a_residual_network_takes_some_calls_a_node():
    graph = published.residual_network()
    assert len(graph.nodes) > 1000
    made = calls(lambda: G.evaluate(G.check(graph), published.feeds(graph)))
    assert made < 300 * len(graph.nodes)
