"""show: pictures of graphs."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

import loopnest.graph as G
from graph import published
from loopnest.graph.graph_picture import to_dot


def small() -> G.Graph:
    x = G.var("x", (2,))
    return G.Graph([x], [G.exp(x * 2.0)], "small")


def texts(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg)
    return [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text")]


def test_the_dot_text_of_a_graph() -> None:
    assert to_dot(small()) == (
        "digraph {\n"
        '  node [shape=box style="filled,rounded" fontname=Helvetica]\n'
        '  subgraph cluster_0 { label="small" fontname=Helvetica\n'
        '    n0_0 [label="x\\nfloat32[2]" shape=ellipse style=filled fillcolor=white '
        "color=gray40]\n"
        '    n0_1 [label="2.0\\nfloat32[]" shape=ellipse style=filled fillcolor=white '
        "color=gray40]\n"
        '    n0_2 [label="mul\\nfloat32[2]" fillcolor="#dbe9f6" color=gray40]\n'
        '    n0_3 [label="exp\\nfloat32[2]" fillcolor="#dbe9f6" color=gray40]\n'
        "    n0_0 -> n0_2\n"
        "    n0_1 -> n0_2\n"
        "    n0_2 -> n0_3\n"
        '    n0_out0 [label="output 0" shape=plaintext style=""]\n'
        "    n0_3 -> n0_out0\n"
        "  }\n"
        "}"
    )


def test_before_and_after_a_pass() -> None:
    graph = small()
    text = to_dot(graph, G.FuseOps()(graph.with_outputs([graph.outputs[0] + 1.0])))
    assert 'label="before: small"' in text
    assert 'label="after: small"' in text
    assert 'label="@fused0"' in text
    assert text.count("#1e8449") == 2  # the addition and its 1.0 are new
    assert "#c0392b" not in text
    law = to_dot(published.distribute_of_ublas(), G.Distribute()(published.distribute_of_ublas()))
    assert law.count("#c0392b") == 7
    assert law.count("#1e8449") == 5


def test_groups_within_groups_tuples_and_state_are_drawn() -> None:
    for graph in (
        published.adam_of_nnvm(),
        G.FuseOps()(published.adam_of_nnvm()),
        published.worked_example_of_tvm(2, 4),
    ):
        text = to_dot(graph)
        assert text.count("{") == text.count("}")
    x, p = G.var("x", (2,)), G.var("p", (2,))
    inner = G.Graph([p], [G.exp(p), G.tanh(p)], "inner")
    outer = G.Graph([p], [G.call_graph(inner, [p])[0] * 2.0], "outer")
    text = to_dot(G.Graph([x], [G.call_graph(outer, [x])]))
    assert 'label="@inner"' in text
    assert 'label="@outer"' in text


def test_names_are_quoted() -> None:
    x = G.var("x", (2,))
    graph = G.Graph([x], [G.layout_transform(G.reshape(x, (1, 2, 1, 1)), "NCHW", "NCHW2c")])
    assert 'src_layout=\\"NCHW\\"' in to_dot(graph)


def test_far_readers_of_large_graphs_get_a_note() -> None:
    x = y = G.var("x", (2,))
    for _ in range(300):
        y = G.tanh(y)
    text = to_dot(G.Graph([x], [y + x]))
    assert 'label="x #0" shape=plaintext' in text
    assert "splines=line" in text


def test_a_picture_is_svg(tmp_path: Path) -> None:
    pytest.importorskip("pygraphviz")
    graph = published.diamond_of_tvm()
    target = tmp_path / "diamond.svg"
    picture = G.show(graph, G.FuseOps(), path=target)
    assert target.read_text(encoding="utf-8") == picture
    assert picture._repr_svg_() == picture
    found = texts(picture)
    assert found.count("conv2d") == 2
    assert "@fused0" in found
    assert "before: diamond" in found
    assert G.show(graph) == G.show(graph)
    assert texts(G.show(graph, graph)).count("conv2d") == 2


def test_a_large_graph_is_drawn() -> None:
    pytest.importorskip("pygraphviz")
    picture = G.show(published.residual_network(blocks=2))
    assert texts(picture)


def test_without_pygraphviz_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygraphviz", None)
    with pytest.raises(G.GraphError) as caught:
        G.show(small())
    assert str(caught.value) == (
        "show(…): pygraphviz is not installed; pip install 'loopnest[show]'"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros(3),), "show(…): it was given a ndarray; pass a G.Graph"),
        ((small(), "FuseOps"), "show(small, …): after is a str; pass a graph or a pass"),
    ],
)
def test_something_else_is_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(G.GraphError) as caught:
        G.show(*arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize(("blocks", "limit"), [(1, ""), (3, "nslimit=1 "), (12, "nslimit=0.1 ")])
def test_layout_of_many_nodes_is_refined_less(blocks, limit):
    dot = to_dot(published.residual_network(blocks))
    assert limit in dot
    assert dot.count("nslimit=") == bool(limit)
