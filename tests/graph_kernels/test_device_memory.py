"""Graphs on "cuda": what stays in the GPU's memory, by a driver that is a fake."""

import numpy as np
import pytest

import loopnest.graph as G
from graph_kernels.random_programs import RandomProgram, assert_alike
from helpers.fake_gpu import FakeGpu, plug_in


@pytest.fixture
def gpu(monkeypatch):
    return plug_in(monkeypatch, FakeGpu())


def training():
    """A step of a layer: constants, variables, an input, two outputs."""
    random = np.random.default_rng(0)
    x = G.var("x", (4, 6))
    w = G.Variable(random.normal(size=(6, 5)).astype(np.float32), "w")
    table = G.const(random.normal(size=(4, 5)).astype(np.float32))
    y = G.tanh(x @ w) * table
    loss = G.mean(y * y)
    return G.Graph([x], [loss, y, G.optim.SGD(0.1, 0.9).minimize(loss)], "layer")


def array(seed):
    return np.random.default_rng(seed).normal(size=(4, 6)).astype(np.float32)


@pytest.mark.parametrize("library", [False, True])
def test_values_over_several_steps(gpu, library):
    graph = training()
    fn, state = G.compile(graph, target="cuda", library=library), {}
    for seed in range(3):
        results = fn(array(seed))
        expected = G.evaluate(graph, {"x": array(seed)}, state)
        assert_alike(results[:2], expected[:2])
    assert sorted(fn.state) == sorted(state)
    for name, value in state.items():
        assert_alike(fn.state[name], value)


def test_a_call_moves_inputs_and_outputs_alone(gpu):
    fn = G.compile(training(), target="cuda", library=False)
    fn(array(0))
    held, before = len(gpu.memory), len(gpu.log)
    loss, y, _ = fn(array(1))
    calls = gpu.log[before:]
    assert [c[1:] for c in calls if c[0] == "upload"] == [(array(1).nbytes, 0)]
    moved = sorted(c[1] for c in calls if c[0] == "download")
    assert moved[:2] == [loss.nbytes, y.nbytes]
    assert {c[-1] for c in calls if c[0] == "launch"} == {0}
    assert len([c for c in calls if c[0] == "launch"]) == len(fn.kernels)
    assert len(gpu.memory) == held  # what a call took it has given back


def test_what_a_caller_writes_to_a_variable_counts(gpu):
    graph = training()
    fn, state = G.compile(graph, target="cuda", library=False), {}
    value = fn.state["w"]
    assert_alike(value, graph.variables["w"].value)
    value[...] = 0.5
    fn(array(0))
    state["w"] = np.full((6, 5), 0.5, np.float32)
    G.evaluate(graph, {"x": array(0)}, state)
    assert fn.state["w"] is value
    assert_alike(value, state["w"])


@pytest.mark.parametrize("seed", range(6))
def test_random_programs(gpu, seed):
    program = RandomProgram(seed)
    results = G.compile(program.graph, target="cuda", library=bool(seed % 2))(*program.arrays())
    expected = program.expected()
    assert_alike(results if len(expected) > 1 else (results,), expected)


def test_sizes_and_empty_arrays(gpu):
    x = G.var("x", ("N", 3))
    graph = G.Graph([x], [G.softmax(x), G.sum(x, 0)])
    fn = G.compile(graph, target="cuda", library=False)
    for n in (4, 0, 7):
        value = np.random.default_rng(n).normal(size=(n, 3)).astype(np.float32)
        assert_alike(fn(value), G.evaluate(graph, {"x": value}))
