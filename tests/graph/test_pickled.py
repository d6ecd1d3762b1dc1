"""Pickles and copies of graphs and of nodes."""

import copy
import pickle
import threading

import numpy as np
import pytest

import loopnest as ln
import loopnest.graph as G
from loopnest.base import pickling

DUPLICATES = {
    "pickled": lambda thing: pickle.loads(pickle.dumps(thing)),
    "by Python": lambda thing: pickle._loads(pickle._dumps(thing, 2)),
    "deepcopied": copy.deepcopy,
}
duplicated = pytest.mark.parametrize("duplicate", DUPLICATES.values(), ids=DUPLICATES)


def deep(count=20_000):
    x = G.var("x", (4,), "float32")
    y = x
    for number in range(count):
        y = G.exp(y) if number % 2 else y + y
    return x, y


@duplicated
def test_deep_nodes_and_graphs(duplicate):
    """Several times as deep as Python recurses."""
    x, y = deep(4000)
    assert str(duplicate(G.Graph([x], [y]))) == str(G.Graph([x], [y]))
    again = duplicate(y)
    assert again is not y
    assert duplicate((y, x))[1] is not x


def test_a_graph_20000_deep():
    x, y = deep()
    again = pickle.loads(pickle.dumps(G.Graph([x], [y])))
    assert [n.op for n in again.nodes] == [n.op for n in G.Graph([x], [y]).nodes]


@duplicated
@pytest.mark.parametrize("order", [1, -1])
def test_what_is_pickled_together_stays_related(duplicate, order):
    """Whatever comes first: a node, one that it is computed from, a graph of both."""
    x, y = deep(200)
    middle = y.inputs[0].inputs[0]
    graph = G.Graph([x], [y, middle])
    things = (x, middle, y, G.tanh(middle), graph, *graph.nodes)[::order]
    again = duplicate(things)[::order]
    var, half, whole, other, program, *nodes = again
    assert whole.inputs[0].inputs[0] is half
    assert other.inputs == (half,)
    assert (program.inputs, program.outputs) == ((var,), (whole, half))
    assert program.nodes == tuple(nodes)


@duplicated
def test_a_list_of_all_nodes(duplicate):
    x, y = deep(3000)
    nodes = G.Graph([x], [y]).nodes
    again = duplicate(nodes)
    assert [set(n.inputs) <= set(again) for n in again] == [True] * len(again)
    assert str(G.Graph(again[:1], again[-1:])) == str(G.Graph([x], [y]))


@duplicated
def test_constants_stay_read_only(duplicate):
    node = G.const(np.arange(100_000, dtype=np.float32)) * 2.0
    again = duplicate(node)
    value = again.inputs[0].value
    assert not value.flags.writeable
    np.testing.assert_array_equal(value, node.inputs[0].value)
    assert len(pickle.dumps(node)) < 500_000  # no text


@duplicated
def test_fused_groups(duplicate):
    x = G.var("x", (8, 8))
    graph = G.FuseOps()(G.Graph([x], [G.sum(G.exp(x) * 2.0)]))
    assert graph.functions
    again = duplicate(graph)
    assert str(again) == str(graph)
    assert G.structural_equal(again, graph)


def test_a_pickle_of_another_schema(monkeypatch):
    x = G.var("x", ())
    with monkeypatch.context() as patched:
        patched.setattr(pickling, "SCHEMA", 99)
        stored = [pickle.dumps(thing) for thing in (x, G.Graph([x], [x + 1.0]))]
    for data in stored:
        with pytest.raises(ln.LoopnestError, match="the pickle has schema 99"):
            pickle.loads(data)


def test_threads_pickle_the_same_nodes():
    x, y = deep(2000)
    nodes = G.Graph([x], [y]).nodes
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(pickle.loads(pickle.dumps(nodes))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for again in found:
        assert again[-1].inputs[0] is again[-2]
