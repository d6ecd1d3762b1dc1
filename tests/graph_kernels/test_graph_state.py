"""Variables of compiled graphs: what is read and overwritten from call to call."""

import threading

import numpy as np
import pytest

import loopnest.graph as G
from graph_kernels.random_programs import assert_alike
from helpers.graph_arrays import counter, feeds, normal

# State


def test_state_goes_on_from_call_to_call():
    s, x = counter(), G.var("x", (3,))
    fn = G.compile(G.Graph([x], [s, G.assign(s, s + x)]), target="c")
    for step in range(3):
        old, new = fn(np.ones(3, np.float32))
        assert (old[0], new[0], fn.state["s"][0]) == (step, step + 1, step + 1)
    with pytest.raises(TypeError):
        fn.state["s"] = new  # its arrays are written to, not exchanged


def test_an_assignment_overwrites_where_nothing_reads_the_old_value_later():
    s, x = counter(), G.var("x", (3,))
    fn = G.compile(G.Graph([x], [G.group(G.assign(s, s * 0.5 + x))]), target="c")
    assert [storage.over for storage in fn.plan().storages if storage.over is not None]
    assert not fn.plan().commits
    assert fn.kernels[0].kernel.program.outputs[0].inplace == "p0"


def test_two_variables_exchange_their_values():
    a = G.Variable(np.float32([1, 2]), "a")
    b = G.Variable(np.float32([3, 4]), "b")
    graph = G.Graph([], [G.assign(a, b), G.assign(b, a)])
    fn = G.compile(graph, target="c")
    fn()
    assert fn.state["a"].tolist() == [3, 4]
    assert fn.state["b"].tolist() == [1, 2]


def test_readers_of_the_old_value_come_first():
    """w is updated from dw, and dx reads the old w, in whatever order the outputs are given."""
    for order in (1, -1):
        x, w = G.var("x", (5, 6)), G.Variable(np.ones((6, 6), np.float32), "w")
        loss = G.sum(G.tanh(x @ w))
        dx, dw = G.gradient(loss, [x, w])
        graph = G.Graph([x], [dx, G.assign(w, w - dw * 0.1), loss][::order])
        fn = G.compile(graph, target="c", optimize=0)
        state = {}
        for _ in range(3):
            arrays = normal(graph)
            expected = G.evaluate(graph, feeds(graph, arrays), state)
            assert_alike(fn(*arrays), expected)
            np.testing.assert_allclose(fn.state["w"], state["w"], rtol=1e-4)


def test_an_old_value_that_is_an_output_is_kept():
    s = counter(1.0)
    graph = G.Graph([], [G.assign(s, s * 2.0), G.reshape(s, (3, 1))])
    fn = G.compile(graph, target="c")
    new, old = fn()
    assert (new[0], old[0, 0], fn.state["s"][0]) == (2, 1, 2)


@pytest.mark.parametrize("seed", range(12))
def test_random_updates(seed):
    """Variables that read each other, in place or not, as the evaluator says."""
    random = np.random.default_rng(seed)
    names = "abc"
    states = [G.Variable(random.normal(size=(4, 5)).astype(np.float32), n) for n in names]
    x = G.var("x", (4, 5))
    nodes = [x, *states]
    for _ in range(6):
        a, b = [nodes[random.integers(len(nodes))] for _ in range(2)]
        kind = random.integers(4)
        nodes.append(
            [lambda a, b: G.tanh(a + b), lambda a, b: a * 0.5, lambda a, b: a - G.mean(b, 1, True),
             lambda a, b: G.reshape(G.reshape(a, (20,)), (4, 5))][kind](a, b)
        )  # fmt: skip
    outputs = [G.assign(s, nodes[random.integers(len(nodes))]) for s in states]
    outputs += [nodes[random.integers(len(nodes))], states[0]]
    graph = G.Graph([x], [outputs[i] for i in random.permutation(len(outputs))])
    fn = G.compile(graph, target="c", optimize=0)
    state = {}
    for _ in range(2):
        arrays = normal(graph, seed)
        assert_alike(fn(*arrays), G.evaluate(graph, feeds(graph, arrays), state))
        for name in names:
            np.testing.assert_allclose(fn.state[name], state[name], rtol=1e-4, atol=1e-5)


def test_an_input_may_be_a_variable_itself():
    """What the caller passes keeps its value during a call, also where that is overwritten."""
    s, x = counter(1.0), G.var("x", (3,))
    e = G.mean(x)
    graph = G.Graph([x], [G.assign(s, s + 1.0), x * 2.0 + G.cast(G.argmax(x, 0), "float32") * e])
    fn = G.compile(graph, target="c")
    for step in range(1, 4):
        new, twice = fn(fn.state["s"])
        assert (new[0], twice[0], fn.state["s"][0]) == (step + 1, 2 * step, step + 1)
    view = fn.state["s"][::-1][::-1]
    assert fn(view)[1][0] == 8


def test_calls_of_several_threads_take_turns():
    s = counter()
    fn = G.compile(G.Graph([], [G.assign(s, s + 1.0)]), target="c")
    threads = [threading.Thread(target=lambda: [fn() for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fn.state["s"].tolist() == [200, 200, 200]


def test_an_assignment_that_only_arithmetic_reads_is_carried_out():
    s = counter(1.0)
    fn = G.compile(G.Graph([], [G.assign(s, s + 1.0) * 10.0]), target="c")
    assert fn()[0] == 20
    assert fn.state["s"][0] == 2
