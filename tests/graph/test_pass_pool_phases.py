"""What max pooling spreads back, by the phases of its strides: the same values."""

import random

import numpy as np
import pytest

import loopnest.graph as G
from loopnest.graph.node_origins import postorder
from loopnest.graph.passes.decompose import by_phases

CASES = {
    "windows that overlap": ((2, 3, 8, 10), (3, 3), (2, 2), (1, 1, 1, 1)),
    "windows side by side": ((1, 2, 6, 9), (2, 3), (2, 3), (0, 0, 0, 0)),
    "elements between windows": ((1, 2, 11, 7), (2, 1), (4, 3), (1, 0, 0, 0)),
    "one stride is 1": ((2, 1, 7, 8), (3, 2), (1, 2), (1, 0, 2, 1)),
    "extents that the strides do not divide": ((1, 1, 13, 11), (5, 3), (3, 2), (2, 1, 2, 1)),
}


def spread(shape, pool, strides, padding, data_layout="NCHW"):
    attrs = {"pool": pool, "strides": strides, "padding": padding, "data_layout": data_layout}
    x = G.var("x", shape)
    largest = G.call("max_pool2d", (x,), attrs)
    places, dy = G.var("places", largest.shape, "int32"), G.var("dy", largest.shape)
    return G.call("max_pool2d_spread", (places, dy), {"shape": x.shape, **attrs})


def arrays(node):
    rng = np.random.default_rng(0)
    places, dy = node.inputs
    height, width = node.attrs["pool"]
    return {
        "places": rng.integers(0, height * width, places.shape).astype(np.int32),
        "dy": rng.standard_normal(dy.shape).astype(np.float32),
    }


def check(node):
    """Check by NumPy, and as kernels."""
    found, feeds = by_phases(node), arrays(node)
    assert found is not node
    assert found.type == node.type
    (wanted,) = G.evaluate(G.Graph([*node.inputs], [node]), feeds)
    (values,) = G.evaluate(G.Graph([*node.inputs], [found]), feeds)
    np.testing.assert_allclose(values, wanted, rtol=1e-5, atol=1e-6)
    fn = G.compile(G.Graph([*node.inputs], [node]), library=False)
    values = fn(*feeds.values())
    np.testing.assert_allclose(values, wanted, rtol=1e-5, atol=1e-6)
    return fn


@pytest.mark.parametrize("case", CASES)
def test_the_values_are_the_same(case):
    fn = check(spread(*CASES[case]))
    assert all(launch.kernel is not None for launch in fn.kernels)


@pytest.mark.parametrize("seed", range(8))
def test_random_ones(seed):
    rng = random.Random(seed)
    pool, strides = [[rng.randint(1, most) for _ in range(2)] for most in (4, 4)]
    if strides == [1, 1]:
        strides = [1, 2]
    padding = [rng.randint(0, size - 1) for size in pool * 2]
    shape = (2, 2, *[rng.randint(size, 12) for size in pool])
    check(spread(shape, tuple(pool), tuple(strides), tuple(padding)))


@pytest.mark.parametrize(
    "case",
    [
        ((1, 2, 8, 8), (3, 3), (1, 1), (1, 1, 1, 1)),
        ((1, 8, 8, 2), (3, 3), (2, 2), (1, 1, 1, 1), "NHWC"),
        ((1, 2, "H", 8), (2, 2), (2, 2), (0, 0, 0, 0)),
    ],
)
def test_what_stays_as_it_is(case):
    node = spread(*case)
    assert by_phases(node) is node


def test_the_batch_may_be_a_size():
    node = spread(("N", 2, 8, 8), (3, 3), (2, 2), (1, 1, 1, 1))
    assert "max_pool2d_spread_phases" in [x.op for x in postorder([by_phases(node)])]


def test_phases_need_extents():
    node = spread((1, 2, "H", 8), (2, 2), (2, 2), (0, 0, 0, 0))
    with pytest.raises(G.GraphError, match="static"):
        G.call("max_pool2d_spread_phases", node.inputs, node.attrs)
