"""What is kept of a compilation on disk, and what is not."""

import numpy as np
import pytest

import loopnest.graph as G
from graph_kernels.random_programs import assert_alike
from loopnest.graph.registry import register_attr, register_op, unregister_op
from loopnest.graph_kernels import kernel_groups
from loopnest.schedulers import Scheduler, register_scheduler, unregister_scheduler


@pytest.fixture
def searches(monkeypatch, tmp_path):
    """How often groups were searched for; the cache is empty at first."""
    monkeypatch.setenv("LOOPNEST_CACHE_DIR", str(tmp_path / "cache"))
    found = []
    search = kernel_groups.KernelGroups._find
    monkeypatch.setattr(
        kernel_groups.KernelGroups, "_find", lambda self: found.append(self) or search(self)
    )
    return found


def program(weight=0.5, extent=16):
    x = G.var("x", (4, extent))
    w = G.Variable(np.full(extent, weight, np.float32), "w")
    y = G.softmax(x * w + G.const(np.arange(extent, dtype=np.float32)))
    return G.Graph([x], [y, G.optim.Adam(0.1).minimize(G.mean(y * y))])


def check(graph):
    fn = G.compile(graph, target="interpret")
    array = np.random.default_rng(0).normal(size=graph.inputs[0].static_shape).astype(np.float32)
    assert_alike(fn(array), G.evaluate(graph, {"x": array}))
    return [(launch.ops, launch.schedule) for launch in fn.kernels]


def test_groups_are_searched_for_once(searches):
    first = check(program())
    assert len(searches) == 1
    assert check(program()) == first
    assert check(program(weight=0.25)) == first  # the values of variables are no part of it
    assert len(searches) == 1
    check(program(extent=8))
    assert len(searches) == 2


def test_a_damaged_entry_is_made_again(searches, tmp_path):
    check(program())
    for entry in (tmp_path / "cache" / "groups").glob("*.bin"):
        entry.write_bytes(b"no pickle")
    check(program())
    assert len(searches) == 2


def test_a_scheduler_of_a_users_own_is_asked(searches):
    check(program())
    register_scheduler(Scheduler("own", "c", lambda fusion, facts: False, lambda f, facts: None))
    try:
        check(program())
    finally:
        unregister_scheduler("own", "c")
    assert len(searches) == 2


def test_an_op_of_a_users_own_is_lowered_anew(searches):
    register_op(
        "doubled", infer=lambda types, attrs: types[0], evaluate=lambda node, x: x * 2, arity=1
    )
    try:
        x = G.var("x", (4, 8))
        graph = G.Graph([x], [G.softmax(G.exp(G.call("doubled", [x])) + 1.0)])
        for factor in (2.0, 4.0):
            register_attr(
                "doubled", "lower", lambda node, operands, f=factor: operands[0] * f, override=True
            )
            kernel_groups._SCHEDULERS.clear()
            G.compile(graph, target="interpret")
    finally:
        unregister_op("doubled")
    assert len(searches) == 2
