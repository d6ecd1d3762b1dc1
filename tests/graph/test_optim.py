"""Optimisers: their updates against NumPy, and wrong calls."""

import numpy as np
import pytest

import loopnest.graph as G


def quadratic(optimizer, dtype="float32"):
    """A loss of two variables, and a group of their updates."""
    w = G.Variable([[1.0, -2.0, 3.0]], "w", dtype)
    b = G.Variable(0.5, "b", dtype)
    loss = G.sum((w * w + b) * (w - b))
    return G.Graph([], [loss, optimizer.minimize(loss)])


def gradients(w, b):
    return 3 * w * w + b - 2 * b * w, np.sum(w - b) - np.sum(w * w + b)


def stepped(optimizer, steps=4):
    graph, state = quadratic(optimizer), {}
    for _ in range(steps):
        G.evaluate(graph, {}, state)
    return state


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd(momentum):
    state = stepped(G.optim.SGD(0.01, momentum))
    w, b = np.array([[1.0, -2.0, 3.0]]), np.array(0.5)
    v = [0.0, 0.0]
    for _ in range(4):
        found = gradients(w, b)
        v = [momentum * old + g for old, g in zip(v, found, strict=True)]
        w, b = w - 0.01 * v[0], b - 0.01 * v[1]
    np.testing.assert_allclose(state["w"], w, rtol=1e-5)
    np.testing.assert_allclose(state["b"], b, rtol=1e-5)
    assert set(state) == {"w", "b"} | ({"SGD_v0", "SGD_v1"} if momentum else set())


def test_adam():
    state = stepped(G.optim.Adam(0.1))
    w, b = np.array([[1.0, -2.0, 3.0]]), np.array(0.5)
    m, v = [0.0, 0.0], [0.0, 0.0]
    for t in range(1, 5):
        found = gradients(w, b)
        rate = 0.1 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        m = [0.9 * old + 0.1 * g for old, g in zip(m, found, strict=True)]
        v = [0.999 * old + 0.001 * g * g for old, g in zip(v, found, strict=True)]
        w, b = [
            x - rate * first / (np.sqrt(second) + 1e-4)
            for x, first, second in zip((w, b), m, v, strict=True)
        ]
    assert state["Adam_t"] == 4
    np.testing.assert_allclose(state["w"], w, rtol=1e-4)
    np.testing.assert_allclose(state["b"], b, rtol=1e-4)
    assert set(state) == {
        "w", "b", "Adam_t", "Adam_m0", "Adam_m1", "Adam_v0", "Adam_v1"
    }  # fmt: skip


def test_variables_keep_their_type():
    for dtype in ("float16", "bfloat16", "float64"):
        for optimizer in (G.optim.SGD(0.1, 0.5), G.optim.Adam()):
            graph = quadratic(optimizer, dtype)
            state = {}
            G.evaluate(graph, {}, state)
            assert state["w"].dtype == graph.variables["w"].dtype.numpy


def test_the_rate_may_be_an_input_and_the_variables_chosen():
    w = G.Variable(np.float32([1.0]), "w")
    u = G.Variable(np.float32([1.0]), "u")
    rate = G.var("rate", ())
    update = G.optim.SGD(rate).minimize(w * u, [u])
    assert update.op == "group"
    state = {}
    G.evaluate(G.Graph([rate], [update]), {"rate": 0.5}, state)
    assert {name: float(value[0]) for name, value in state.items()} == {"u": 0.5}


def message(call):
    with pytest.raises(G.GraphError) as error:
        call()
    return str(error.value)


def test_wrong_calls():
    x = G.var("x", (3,))
    w = G.Variable(np.int64([1]), "w")
    sgd = G.optim.SGD()
    assert message(lambda: sgd.minimize(G.sum(x))) == (
        "SGD.minimize(sum(x)): there is no variable to update; make one by G.Variable"
    )
    assert message(lambda: sgd.minimize(G.sum(x), [w])) == (
        "SGD.minimize(sum(x)): w is no variable of floats; make one by G.Variable"
    )
    assert message(lambda: G.optim.Adam(epsilon=-1.0)) == (
        "Adam(…): epsilon is -1.0; use a finite number >= 0"
    )
    assert message(lambda: G.optim.SGD("fast")) == (
        "SGD(…): learning_rate is 'fast'; use a finite number"
    )
    assert message(lambda: G.optim.SGD(x)) == (
        "SGD(…): the learning rate is float32[3]; use a float of shape ()"
    )
    assert message(lambda: G.optim.SGD(name="a b")) == ("SGD(…): the name 'a b' is no identifier")
    f = G.Variable(np.float32([1.0]), "f")
    assert "floor" in message(lambda: sgd.minimize(G.floor(f)))
