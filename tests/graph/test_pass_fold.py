"""FoldConstant, EliminateCommonSubexpr and DeadCodeElimination."""

import numpy as np
import pytest

import loopnest.graph as G

X = G.var("x", (3,), "float64")
C = G.const(np.arange(3.0))


def fold(*outputs):
    return G.FoldConstant()(G.Graph([X], outputs)).outputs


def merged(graph, **keywords):
    return G.EliminateCommonSubexpr(**keywords)(graph)


def swept(graph):
    return G.DeadCodeElimination()(graph)


# FoldConstant


def test_what_depends_on_constants_alone_is_folded():
    (y,) = fold(X * (G.exp(C) + 1.0))
    assert y.op == "mul"
    assert y.inputs[1].op == "const"
    np.testing.assert_array_equal(y.inputs[1].value, np.exp(np.arange(3.0)) + 1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int32", "bool"])
def test_folding_keeps_types(dtype):
    c = G.const([0, 1, 2], dtype)
    node = G.add(c, c)
    (folded,) = fold(node)
    assert folded.op == "const"
    assert folded.type == node.type
    assert folded.value.tobytes() == G.evaluate(G.Graph([], [node]))[0].tobytes()


def test_constants_made_by_ops_are_folded_with_their_readers():
    zeros = G.zeros((3,), "float64")
    assert fold(zeros) == (zeros,)
    (folded,) = fold(zeros + 1.0)
    np.testing.assert_array_equal(folded.value, np.ones(3))
    (folded,) = fold(G.sum(G.iota(5)))
    assert folded.value.item() == 10


def test_large_results_of_small_constants_are_left():
    wide = G.broadcast_to(G.const(1.0), (1000, 1000))
    assert fold(wide) == (wide,)
    with G.PassContext(config={"FoldConstant.max_bytes": 1 << 30}):
        (folded,) = fold(wide)
    assert folded.op == "const"
    large = G.const(np.ones((600, 600)))
    assert fold(large + large)[0].op == "const"  # as large as what it comes from


def test_tuples_and_fused_calls_of_constants():
    p = G.var("p", (3,), "float64")
    body = G.Graph([p], [p + 1.0, p * (G.const(2.0, "float64") + 1.0)], "pair")
    closed = G.call_graph(body, [C])
    (y,) = fold(closed[0] + X)
    np.testing.assert_array_equal(y.inputs[0].value, [1, 2, 3])
    (call,) = fold(G.call_graph(body, [X])[1])
    assert G.count_ops(G.Graph([X], [call])) == {
        "add": 1,
        "get_item": 1,
        "mul": 1,
    }  # inside: folded
    assert fold(G.make_tuple(C, X)[0] + C)[0].op == "add"  # a tuple with X is not known
    assert fold(G.make_tuple(C, C)[1])[0].op == "const"


def test_state_is_no_constant():
    v = G.Variable(np.ones(3), "v")
    outputs = (v + 1.0, G.assign(v, C), G.call_graph(G.Graph([], [v + 1.0], "read"), []))
    assert fold(*outputs) == outputs


def test_impure_ops_are_not_folded_nor_merged():
    G.register_op(
        "toy_random",
        infer=lambda types, attrs: types[0],
        evaluate=lambda node, x: x + np.random.default_rng().uniform(),
        arity=1,
    )
    G.register_attr("toy_random", "pure", False)
    from loopnest.graph.registry import unregister_op

    try:
        outputs = (G.call("toy_random", [C]), G.call("toy_random", [C]))
        g = G.Graph([X], outputs)
        assert G.FoldConstant()(g) is g
        assert merged(g) is g
    finally:
        unregister_op("toy_random")


# EliminateCommonSubexpr


def test_equal_expressions_become_one():
    a, b = G.tanh(X) * C, G.tanh(X) * G.const(np.arange(3.0))
    done = merged(G.Graph([X], [a + b]))
    y = done.outputs[0]
    assert y.inputs[0] is y.inputs[1]
    assert G.count_ops(done) == {"add": 1, "mul": 1, "tanh": 1}


def test_what_differs_is_kept():
    g = G.Graph(
        [X],
        [G.sum(X, 0), G.sum(X, 0, keepdims=True), X + 0.0, X + -0.0, G.cast(X, "int32") + 1],
    )
    assert merged(g) is g


def test_commutativity_is_optional():
    y = G.var("y", (3,), "float64")
    g = G.Graph([X, y], [X + y, y + X, X - y, y - X])
    assert merged(g) is g
    done = merged(g, commutative=True)
    assert done.outputs[0] is done.outputs[1]
    assert done.outputs[2:] == g.outputs[2:]


def test_skipped_nodes_stay():
    g = G.Graph([X], [G.exp(X), G.exp(X), G.sin(X), G.sin(X)])
    done = merged(g, skip=lambda node: node.op == "exp")
    assert done.outputs[:2] == g.outputs[:2]
    assert done.outputs[2] is done.outputs[3]


def test_bodies_are_merged_inside_and_calls_of_equal_bodies_become_one():
    def call():
        p = G.var("p", (3,), "float64")
        return G.call_graph(G.Graph([p], [G.exp(p) + G.exp(p)], "body"), [X])

    done = merged(G.Graph([X], [call() + call()]))
    assert len(done.calls) == 1
    assert G.count_ops(done) == {"add": 2, "exp": 1}


def test_variables_of_one_name_are_one():
    value = np.ones(3)
    g = G.Graph([X], [G.Variable(value, "v") + G.Variable(value, "v")])
    assert len(merged(g).nodes) == 3


# DeadCodeElimination


def call_of(outputs, inputs=(X,), count=1):
    params = [G.var(f"p{i}", (3,), "float64") for i in range(count)]
    return G.call_graph(G.Graph(params, outputs(*params), "body"), inputs)


def test_fields_that_nobody_takes_are_not_computed():
    call = call_of(lambda p: [G.exp(p), G.sin(p), G.tanh(p)])
    done = swept(G.Graph([X], [call[0] + call[2]]))
    assert G.count_ops(done) == {"add": 1, "exp": 1, "get_item": 2, "tanh": 1}
    done = swept(G.Graph([X], [call[1]]))
    assert (
        str(done)
        == """\
# loopnest graph 1
graph main(x: float64[3]) {
  def @body(p0: float64[3]) {
    %0: float64[3] = sin(p0)
    return %0
  }
  %0: float64[3] = @body(x)
  return %0
}"""
    )


def test_operands_that_no_body_reads_are_not_passed():
    call = call_of(lambda p, q, r: [p + r], [X, G.exp(X), X], 3)
    done = swept(G.Graph([X], [call]))
    (inner,) = done.functions
    assert [x.name for x in inner.inputs] == ["p0"]
    assert G.count_ops(done) == {"add": 1}


def test_operands_that_a_body_returns_are_handed_over():
    call = call_of(lambda p, q: [q, p * q], [X, G.exp(X)], 2)
    done = swept(G.Graph([X], [call[0] + call[1]]))
    assert G.count_ops(done) == {"add": 1, "exp": 1, "mul": 1}
    assert swept(G.Graph([X], [call[0]])).outputs[0].op == "exp"
    assert not swept(G.Graph([X], [call[0]])).calls


def test_whole_tuples_keep_all_fields():
    call = call_of(lambda p: [G.exp(p), G.sin(p)])
    g = G.Graph([X], [call])
    assert swept(g) is g
    nested = G.Graph([X], [G.make_tuple(call, X)])
    assert swept(nested) is nested


def test_fields_of_tuples():
    assert swept(G.Graph([X], [G.make_tuple(C, X)[1]])).outputs == (X,)
    g = G.Graph([X], [G.make_tuple(C, X)])
    assert swept(g) is g


def test_assignments_are_no_dead_code():
    v = G.Variable(np.zeros(3), "v")
    call = call_of(lambda p: [G.exp(p), G.assign(v, p), G.sin(p)])
    g = G.Graph([X], [call[0]])
    done = swept(g)
    assert G.count_ops(done) == {"assign": 1, "exp": 1, "get_item": 1}
    for graph in (g, done):
        state = {}
        G.evaluate(graph, {"x": np.ones(3)}, state)
        np.testing.assert_array_equal(state["v"], np.ones(3))


def test_dead_code_in_nested_bodies():
    inner = call_of(lambda p: [G.exp(p), G.sin(p)])
    outer = G.call_graph(G.Graph([X], [inner[0], inner[1]], "outer"), [X])
    done = swept(G.Graph([X], [outer[1]]))
    assert G.count_ops(done) == {"sin": 1}
    assert swept(done) is done


def test_inputs_stay():
    y = G.var("y", (3,))
    g = G.Graph([X, y], [X])
    assert swept(g) is g
