"""SimplifyExpr: each identity, what it must not touch, and reassociation on request."""

import numpy as np
import pytest

import loopnest.graph as G

X, Y = G.var("x", (2, 3), "float64"), G.var("y", (2, 3), "float64")
N = G.var("n", (2, 3), "int32")
B, C = G.var("b", (2, 3), "bool"), G.var("c", (2, 3), "bool")
ROW = G.var("row", (3,), "float64")
INPUTS = [X, Y, N, B, C, ROW]
R = np.random.default_rng(3)
FEEDS = {
    "x": R.normal(size=(2, 3)),
    "y": R.normal(size=(2, 3)),
    "n": R.integers(-3, 4, (2, 3)).astype("int32"),
    "b": R.integers(0, 2, (2, 3)).astype(bool),
    "c": R.integers(0, 2, (2, 3)).astype(bool),
    "row": R.normal(size=(3,)),
}


def simplified(node, **keywords):
    """Return what a node becomes; its value, type and a second run are checked."""
    g = G.Graph(INPUTS, [node])
    done = G.SimplifyExpr(**keywords)(g)
    assert done.outputs[0].type == node.type
    assert G.SimplifyExpr(**keywords)(done) is done
    (before,), (after,) = G.evaluate(g, FEEDS), G.evaluate(done, FEEDS)
    np.testing.assert_allclose(after, before, rtol=1e-12, atol=1e-12)
    return done.outputs[0]


SAME = [
    X + 0.0, 0.0 + X, X - 0.0, X * 1.0, 1.0 * X, X / 1.0, X**1.0, G.neg(-X),
    X + G.zeros((3,), "float64"),
    G.full((2, 1), 1, "float64") * X, G.where(B, X, X), G.where(G.full((2, 3), True), X, Y),
    G.where(G.const(False), Y, X), G.maximum(X, X), G.cast(X, "float64"),
    G.transpose(X, (0, 1)), G.transpose(G.transpose(X)), G.flip(G.flip(X, 0), 0), X[:, :],
    G.flip(X, ()), G.flip(G.flip(X, (0, 1)), (1, 0)), G.reshape(G.reshape(X, (6,)), (2, 3)),
    G.squeeze(G.expand_dims(X, 1), 1), G.expand_dims(X, 0)[0], G.broadcast_to(X, (2, 3)),
    G.pad(X, [(0, 0), (0, 0)]), G.concatenate([X], 0), G.concatenate([X, X[:0]], 0),
    G.unslice(X, (5, 9), (1, 0), (2, 3))[1:4:2, 0:7:3], G.make_tuple(Y, X)[1], G.sum(X, ()),
    G.layout_transform(G.layout_transform(X, "NC", "CN"), "CN", "NC"), G.reshape(X, (2, 3)),
    G.mean(G.expand_dims(X, 0), 0), G.max(X, ()), G.where(G.const(np.ones((2, 1), bool)), X, 0.0),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(SAME)))
def test_to_an_operand(number):
    assert simplified(SAME[number]) is X


TO = [
    (X + -Y, X - Y),
    (-X + Y, Y - X),
    (X - -Y, X + Y),
    (0.0 - X, -X),
    (-(X - Y), Y - X),
    (-X * -Y, X * Y),
    (-X / -Y, X / Y),
    (X * -1.0, -X),
    (X**2.0, X * X),
    (X**0.0, G.ones((2, 3), "float64")),
    (X + G.neg(-ROW), X + ROW),
    (ROW + G.zeros((2, 3), "float64"), G.broadcast_to(ROW, (2, 3))),
    (G.abs(-X), G.abs(X)),
    (G.abs(G.exp(X)), G.exp(X)),
    (G.relu(G.relu(X)), G.relu(X)),
    (G.floor(G.round(X)), G.round(X)),
    (G.floor(G.cast(N, "float64")), G.cast(N, "float64")),
    (G.cast(G.cast(N, "int64"), "int32"), N),
    (G.cast(G.cast(B, "float32"), "int32"), G.cast(B, "int32")),
    (G.fma(X, Y, 0.0), X * Y),
    (G.fma(X, 1.0, Y), X + Y),
    (G.where(G.logical_not(B), X, Y), G.where(B, Y, X)),
    (G.logical_not(G.logical_not(B)), B),
    (G.logical_not(G.eq(X, Y)), G.ne(X, Y)),
    (G.logical_not(N < 2), N >= 2),
    (G.logical_and(B, True), B),
    (G.logical_and(B, False), G.full((2, 3), False)),
    (G.logical_or(False, B), B),
    (G.logical_or(B, B), B),
    (N * 0, G.zeros((2, 3), "int32")),
    (N - N, G.zeros((2, 3), "int32")),
    ((N + 2) - 5, N + -3),
    ((N * 3) * 2, N * 6),
    (G.transpose(G.transpose(G.expand_dims(X, 0), (1, 2, 0)), (1, 2, 0)),
     G.transpose(G.expand_dims(X, 0), (2, 0, 1))),
    (G.reshape(G.reshape(X, (6,)), (3, 2)), G.reshape(X, (3, 2))),
    (G.reshape(G.expand_dims(X, 0), (6,)), G.reshape(X, (6,))),
    (X[:, ::2][1:], X[1:, ::2]),
    (G.broadcast_to(G.broadcast_to(ROW, (1, 3)), (2, 3)), G.broadcast_to(ROW, (2, 3))),
    (G.layout_transform(G.layout_transform(G.reshape(X, (1, 6, 1, 1)), "NCHW", "NCHW2c"),
                        "NCHW2c", "NCHW3c"),
     G.layout_transform(G.reshape(X, (1, 6, 1, 1)), "NCHW", "NCHW3c")),
    (G.max(G.max(X, 0, keepdims=True), 1, keepdims=True), G.max(X, (0, 1), keepdims=True)),
    (G.sum(G.expand_dims(X, 0), 0), X),
    (G.concatenate([X, X[:0], Y], 0), G.concatenate([X, Y], 0)),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(TO)))
def test_to_a_simpler_node(number):
    node, wanted = TO[number]
    assert str(G.Graph(INPUTS, [simplified(node)])) == str(G.Graph(INPUTS, [wanted]))


KEPT = [
    X - X, X / X, X * 0.0, (X + 1.0) + 2.0, (X + Y) - Y, G.exp(G.log(X * X)), X + 1.0,
    G.logical_not(X < Y), G.cast(G.cast(X, "float32"), "float64"), G.sum(B, ()),
    G.cast(G.cast(N, "float32"), "int32"), G.transpose(X), G.flip(X, 1), X[1:], G.mean(X, 0),
    G.where(B, X, Y), G.pad(X, [(0, 1), (0, 0)]), G.layout_transform(X, "NC", "CN"),
    G.sum(G.sum(X, 0, keepdims=True), 1, keepdims=True), X - ROW, G.abs(X), G.relu(-X),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(KEPT)))
def test_what_stays(number):
    assert simplified(KEPT[number]) is KEPT[number]


LOOSE = [
    (X - X, G.zeros((2, 3), "float64")),
    (X * 0.0, G.zeros((2, 3), "float64")),
    (Y / Y, G.ones((2, 3), "float64")),
    ((X + 1.0) + 2.0, X + 3.0),
    ((1.0 + X) - 3.0, X + -2.0),
    ((X - 1.0) + 3.0, X + 2.0),
    ((X - 1.0) - 3.0, X - 4.0),
    ((X * 3.0) / 2.0, X * 1.5),
    ((X / 4.0) * 2.0, X * 0.5),
    ((X / 4.0) / 2.0, X / 8.0),
    (2.0 * (3.0 * X), X * 6.0),
    ((X + ROW) - ROW, X),
    ((X - Y) + Y, X),
    ((Y * X) / Y, X),
    (G.exp(G.log(G.exp(X))), G.exp(X)),
    (((X + 1.0) + 2.0) - 3.0, X),
]


@pytest.mark.parametrize("number", range(len(LOOSE)))
def test_reassociated_on_request(number):
    node, wanted = LOOSE[number]
    found = simplified(node, reassociate=True)
    assert str(G.Graph(INPUTS, [found])) == str(G.Graph(INPUTS, [wanted]))
    with G.PassContext(config={"SimplifyExpr.reassociate": True}):
        assert str(G.Graph(INPUTS, [simplified(node)])) == str(G.Graph(INPUTS, [wanted]))
        assert simplified(X - X, reassociate=False).op == "sub"


def test_bodies_are_simplified():
    p = G.var("p", (2, 3), "float64")
    call = G.call_graph(G.Graph([p], [G.exp(p + 0.0)], "body"), [X])
    assert G.count_ops(G.SimplifyExpr()(G.Graph([X], [call]))) == {"exp": 1}


def test_a_nan_is_not_taken_for_a_number():
    g = G.Graph([X], [X * G.const(np.nan, "float64")])
    assert G.SimplifyExpr(reassociate=True)(g) is g
