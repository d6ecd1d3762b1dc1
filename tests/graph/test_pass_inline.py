"""AutoInline: index maps compose, cancel, and stand on tensors that exist."""

import numpy as np
import pytest

import loopnest.graph as G
from graph import published
from loopnest.graph.passes.auto_inline import Chain, core, map_of

X = G.var("x", (2, 3, 4), "float64")
Y = G.var("y", (2, 3, 4), "float64")
ROW = G.var("row", (4,), "float64")
INPUTS = [X, Y, ROW]


def inlined(*outputs):
    """Return what outputs become; values and a second run are checked."""
    g = G.Graph(INPUTS, outputs)
    with G.PassContext(instruments=[G.SameValues(tolerance=0)]):
        done = G.AutoInline()(g)
    assert G.AutoInline()(done) is done
    return done.outputs if len(outputs) > 1 else done.outputs[0]


def text(*outputs):
    return str(G.Graph(INPUTS, outputs))


def test_the_seeds_gamma_gradient():
    """000: dgamma is a reduction of dY * (X - E) / sqrt(V + eps); the reversed axis is gone."""
    two = published.gamma_gradient_of_cse_rfc()
    with G.PassContext(instruments=[G.SameValues()]):
        done = G.AutoInline()(two.backward)
    assert (
        str(done)
        == """\
# loopnest graph 1
graph gamma_gradient(x: float64[2, 3, 4, 5], dy: float64[2, 3, 4, 5]) {
  %0: float64[1, 3, 1, 1] = mean(x, axis=(0, 2, 3), keepdims=True)
  %1: float64[2, 3, 4, 5] = sub(x, %0)
  %2: float64[1, 3, 1, 1] = variance(x, axis=(0, 2, 3), keepdims=True)
  %3: float64[1, 3, 1, 1] = add(%2, 1e-05:float64)
  %4: float64[1, 3, 1, 1] = sqrt(%3)
  %5: float64[2, 3, 4, 5] = div(%1, %4)
  %6: float64[2, 3, 4, 5] = mul(dy, %5)
  %7: float64[3] = sum(%6, axis=(0, 2, 3))
  return %7
}"""
    )


def test_the_seeds_gamma_gradient_shares_x_hat_with_the_forward():
    two = published.gamma_gradient_of_cse_rfc()
    inputs = [*two.forward.inputs, two.backward.inputs[1]]
    both = G.Graph(inputs, [*two.forward.outputs, *two.backward.outputs], "both")
    done = G.EliminateCommonSubexpr()(G.AutoInline()(both))
    counts = G.count_ops(done)
    assert (counts["div"], counts["sqrt"], counts["mean"], counts["variance"]) == (1, 1, 1, 1)
    assert not {"flip", "transpose"} & set(counts)


CANCELLED = [
    (G.transpose(G.exp(G.transpose(X))), G.exp(X)),
    (G.flip(G.flip(X, (0, 2)) * 2.0, (0, 2)), X * 2.0),
    (G.reshape(G.tanh(G.reshape(X, (6, 4))), (2, 3, 4)), G.tanh(X)),
    (G.reshape(G.transpose(G.exp(G.transpose(G.reshape(X, (6, 4))))), (2, 3, 4)), G.exp(X)),
    (G.squeeze(G.exp(G.expand_dims(X, 2)), 2), G.exp(X)),
    (X + G.broadcast_to(ROW, (2, 3, 4)), X + ROW),
    (X * G.expand_dims(ROW, (0, 1)), X * ROW),
    (G.flip(G.exp(X) + G.flip(Y, 1), 1), G.exp(G.flip(X, 1)) + Y),
    (G.transpose(G.where(G.lt(G.transpose(X), G.transpose(Y)), G.transpose(X), 0.0)),
     G.where(G.lt(X, Y), X, 0.0)),
    (G.cast(G.flip(G.cast(G.flip(X, 0), "float32"), 0), "float64"),
     G.cast(G.cast(X, "float32"), "float64")),
    (G.transpose(G.clamp(G.transpose(X), -0.5, 0.5)), G.clamp(X, -0.5, 0.5)),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CANCELLED)))
def test_what_cancels(number):
    node, wanted = CANCELLED[number]
    assert text(inlined(node)) == text(wanted)


COMPOSED = [
    (G.flip(G.transpose(G.flip(X, 0), (2, 0, 1)), 1), G.transpose(X, (2, 0, 1))),
    (G.transpose(X)[::2][1:], G.transpose(X[:, :, 2:3])),
    (G.flip(X, 2)[:, :, 1:3], G.flip(X[:, :, 1:3], 2)),
    (G.flip(X, 2)[:, :, ::3], G.flip(X[:, :, ::3], 2)),
    (X[1][2], G.squeeze(X[1:2, 2:3], (0, 1))),
    (G.transpose(X[1], (1, 0)), G.transpose(G.squeeze(X[1:2], 0))),
    (
        G.broadcast_to(G.expand_dims(ROW, 1), (3, 4, 5))[:, 1:],
        G.broadcast_to(G.expand_dims(ROW[1:], 1), (3, 3, 5)),
    ),
    (G.reshape(G.reshape(X, (24,)), (4, 6)), G.reshape(X, (4, 6))),
]


@pytest.mark.parametrize("number", range(len(COMPOSED)))
def test_what_composes(number):
    node, wanted = COMPOSED[number]
    assert text(inlined(node)) == text(wanted)


def test_slices_are_taken_before_arithmetic_and_repetition_after_it():
    assert text(inlined(G.exp(X + ROW)[:, :, 1:])) == text(G.exp(X[:, :, 1:] + ROW[1:]))
    assert text(inlined(G.exp(G.broadcast_to(ROW, (5, 4))))) == text(
        G.broadcast_to(G.exp(ROW), (5, 4))
    )


def test_what_is_read_by_several_maps_is_computed_once():
    e = G.exp(X)
    outputs = inlined(e + 1.0, G.flip(e, 0) * 2.0)
    assert text(*outputs) == text(e + 1.0, G.flip(e, 0) * 2.0)
    halves = inlined(e[0], e[1])
    assert G.count_ops(G.Graph(INPUTS, halves))["exp"] == 1


def test_what_is_read_twice_by_one_map_is_computed_in_that_form():
    e = G.exp(G.flip(X, 0))
    a, b = inlined(G.flip(e, 0) + 1.0, G.flip(e, 0) * 2.0)
    assert a.inputs[0] is b.inputs[0]
    assert text(a.inputs[0]) == text(G.exp(X))


def test_maps_stay_on_tensors_that_exist():
    """Reductions, contractions and opaque ops are no pointwise ops: a map stays on them."""
    kept = [
        G.transpose(G.softmax(X)),
        G.flip(G.sum(X, 0), 0),
        G.transpose(X, (0, 2, 1)) @ G.flip(X, 0),
        G.concatenate([G.flip(X, 0), Y], 0),
        G.pad(G.flip(X, 1), [(1, 0), (0, 0), (0, 0)]),
    ]
    for node in kept:
        assert inlined(node) is node


def test_a_reshape_is_not_carried_through_a_broadcast():
    node = G.reshape(X + ROW, (24,))
    assert inlined(node) is node
    assert text(inlined(G.reshape(X * 2.0 + Y, (24,)))) == text(
        G.reshape(X, (24,)) * 2.0 + G.reshape(Y, (24,))
    )


def test_axes_in_front_are_left_to_broadcasting():
    """A second run once carried the axis of extent 1 through all that was read by one map."""
    e = G.exp(X * G.expand_dims(ROW, 0))
    y = inlined(e + G.neg(G.expand_dims(e, 0)))
    e = G.exp(X * ROW)
    assert text(y) == text(G.expand_dims(e + G.neg(e), 0))


def test_full_is_made_in_the_shape_that_is_read():
    node = G.transpose(G.full((4, 3, 2), 0.5, "float64"))
    assert text(inlined(node + X)) == text(G.full((2, 3, 4), 0.5, "float64") + X)


def test_bodies_are_inlined_each_by_itself():
    p = G.var("p", (2, 3, 4), "float64")
    body = G.Graph([p], [G.transpose(G.exp(G.transpose(p)))], "body")
    call = inlined(G.call_graph(body, [G.flip(G.flip(X, 0), 0)]))
    assert call.op == "fused"
    assert G.count_ops(G.Graph(INPUTS, [call])) == {"exp": 1}


def test_tuples_and_state_are_boundaries():
    v = G.Variable(np.zeros((4, 3, 2)), "v")
    nodes = [
        G.make_tuple(G.flip(X, 0), Y),
        G.flip(G.make_tuple(X, Y)[0], 0),
        G.transpose(G.assign(v, G.transpose(X))),
    ]
    for node in nodes:
        assert inlined(node) is node


def test_toy_ops_of_other_patterns_are_boundaries():
    from loopnest.graph.registry import unregister_op

    G.register_op(
        "toy_scan",
        infer=lambda types, attrs: types[0],
        evaluate=lambda node, x: np.cumsum(x, 0),
        arity=1,
    )
    try:
        node = G.flip(G.call("toy_scan", [G.flip(X, 0)]), 0)
        assert inlined(node) is node
    finally:
        unregister_op("toy_scan")


def test_empty_tensors():
    e = G.var("e", (0, 3), "float64")
    node = G.transpose(G.exp(G.flip(e, 1)[:, 1:]))
    done = G.AutoInline()(G.Graph([e], [node]))
    assert done.outputs[0].shape == (2, 0)
    assert G.evaluate(done, {"e": np.zeros((0, 3))})[0].shape == (2, 0)


def test_index_maps_compose_to_one():
    """x[b, c, 3 - 2 * w] is one step, whatever it was made of."""
    node = G.flip(G.transpose(G.flip(X, 2), (2, 0, 1)), 0)
    chain = Chain(X.shape)
    path = []
    while node.inputs:
        path.append(node)
        node = node.inputs[0]
    for op in reversed(path):
        chain = chain.then(map_of(op))
    assert chain == Chain(X.shape).then(map_of(G.transpose(X, (2, 0, 1))))
    assert core(chain) == core(Chain(X.shape).then(map_of(G.transpose(X, (2, 0, 1)))))
    there = Chain(X.shape).then(map_of(G.reshape(X, (6, 4))))
    assert there.then(map_of(G.reshape(G.reshape(X, (6, 4)), (2, 3, 4)))) == Chain(X.shape)
    wide = G.broadcast_to(G.expand_dims(X, 0), (5, 2, 3, 4))
    assert core(Chain(X.shape).then(map_of(wide.inputs[0])).then(map_of(wide))) == core(
        Chain(X.shape)
    )
