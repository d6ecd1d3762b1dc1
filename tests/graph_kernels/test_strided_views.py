"""Views at strides of a graph's inputs: kernels read them where they lie."""

import numpy as np
import pytest

import loopnest as ln
import loopnest.graph as G

VIEWS = [
    ((4, 3, 5), (1, 20, 4)),  # permuted
    ((4, 3, 5), (0, 5, 1)),  # repeated
    ((3, 4), (10, 2)),  # parts
    ((3, 3), (1, 1)),  # windows
    ((0, 3), (3, 1)),
    ((5,), (0,)),
]


@pytest.mark.parametrize("target", ["c", "interpret"])
@pytest.mark.parametrize(("shape", "strides"), VIEWS)
def test_a_view_of_an_input(shape, strides, target):
    last = sum((extent - 1) * step for extent, step in zip(shape, strides, strict=True))
    flat = np.random.default_rng(0).normal(size=max(last + 1, 0)).astype(np.float32)
    x = G.var("x", flat.shape)
    view = G.strided_view(x, shape, strides)
    graph = G.Graph([x], [view * 2.0, G.sum(view, 0)])
    fn = G.compile(graph, target=target, library=False)
    for found, expected in zip(fn(flat), G.evaluate(graph, {"x": flat}), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert [ln.verify(launch.kernel).status for launch in fn.kernels] == ["proved"]


def test_a_library_reads_a_view_without_a_copy():
    x, w = G.var("x", 14), G.var("w", (4, 2))
    fn = G.compile(G.Graph([x, w], [G.strided_view(x, (3, 4), (5, 1)) @ w]), target="c")
    assert [launch.ops for launch in fn.kernels] == [("matmul",)]
    flat, other = np.arange(14, dtype=np.float32), np.ones((4, 2), np.float32)
    np.testing.assert_array_equal(fn(flat, other)[:, 0], [6, 26, 46])


def test_a_view_of_what_a_kernel_computes():
    x = G.var("x", 14)
    graph = G.Graph([x], [G.strided_view(G.exp(x), (3, 4), (5, 1)) * 2.0])
    fn = G.compile(graph, target="c", library=False)
    flat = np.linspace(0, 1, 14).astype(np.float32)
    np.testing.assert_allclose(fn(flat), G.evaluate(graph, {"x": flat})[0], rtol=1e-6)


def test_a_view_that_reaches_beyond():
    with pytest.raises(G.GraphError) as found:
        G.strided_view(G.var("x", 13), (3, 4), (5, 1))
    assert str(found.value) == (
        "strided_view(x: float32[13], shape=(3, 4), strides=(5, 1)): the last element is x[13], "
        "and x has 13"
    )
