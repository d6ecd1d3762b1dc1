"""Transposed convolutions with strides as convolutions: the same values, fewer products."""

import random

import numpy as np
import pytest

import loopnest.graph as G
from loopnest.graph.node_origins import postorder
from loopnest.graph.passes.decompose import conv_by_phases, gradient_by_phases


def transposed(own, kernel, space, stride=1, padding=0, dilation=1, groups=1):
    x = G.var("x", (2, 2 * groups, *own))
    w = G.var("w", (2 * groups, 3, *kernel))
    return G.conv_transposed(x, w, space, stride, padding, dilation, groups)


def nodes(node):
    return [*postorder([node])]


def values(node):
    rng = np.random.default_rng(0)
    inputs = sorted([x for x in nodes(node) if x.op == "var"], key=lambda x: x.name)
    feeds = {x.name: rng.standard_normal(x.shape).astype(np.float32) for x in inputs}
    (found,) = G.evaluate(G.Graph(inputs, [node]), feeds)
    return found


def operations(node):
    return [x.op for x in nodes(node) if x.op != "var"]


CASES = {
    "a phase at each border": ([4, 5], [3, 4], [8, 10], 2, 1),
    "the result begins inside a phase": ([4], [5], [9], 3, 1),
    "groups": ([3, 3], [3, 3], [7, 7], 2, 0, 1, 2),
    "a dilation prime to the stride": ([4], [3], [12], 3, 0, 2),
    "a dilation that the stride divides": ([3, 4], [3, 3], [9, 11], 2, 1, 2),
    "zeros behind what windows reach": ([3], [2], [9], 2),
    "more phases than elements": ([3], [2], [11], 5),
    "a kernel of one element": ([4, 3], [1, 1], [8, 5], 2),
    "one of its extents is 1": ([4, 3], [1, 3], [7, 7], 2, (0, 1), 3),
}


@pytest.mark.parametrize("case", CASES)
def test_the_values_are_the_same(case):
    node = transposed(*CASES[case])
    found = conv_by_phases(node)
    assert found.type == node.type
    assert found is not node
    np.testing.assert_allclose(values(found), values(node), rtol=1e-5, atol=1e-5)


def test_what_a_transposed_convolution_becomes():
    found = conv_by_phases(transposed([4, 4], [4, 4], [8, 8], 2, 0))
    kernels = ["reshape", "transpose", "flip", "reshape"]
    assert operations(found) == [*kernels, "conv", "reshape", "transpose", "reshape"]
    found = conv_by_phases(transposed([4, 4], [4, 4], [9, 9], 2, 0))
    assert operations(found)[-1] == "slice"
    found = conv_by_phases(transposed([4], [3], [9], 2, 0, 2))
    assert operations(found) == ["conv_transposed", "unslice"]


@pytest.mark.parametrize(
    "case",
    [
        ([4, 4], [3, 3], [6, 6], 1),  # no strides
        ([4], [3], [3], 2),  # elements of x that are not read
    ],
)
def test_what_stays_as_it_is(case):
    node = transposed(*case)
    assert conv_by_phases(node) is node


def wide(stride, kernel, padding=1, channels=32):
    x, w = G.var("x", (2, 3, 4, 5)), G.var("w", (3, channels, *kernel))
    space = [3 * stride + kernel[0] - 2 * padding, 4 * stride + kernel[1] - 2 * padding]
    return G.conv_transposed(x, w, space, stride, padding)


@pytest.mark.parametrize("kernel", [(3, 3), (3, 2), (5, 5), (2, 3)])
def test_phases_of_different_kernels_are_convolutions_of_their_own(kernel):
    node = wide(2, kernel)
    found = conv_by_phases(node)
    assert found.type == node.type
    np.testing.assert_allclose(values(found), values(node), rtol=1e-5, atol=1e-5)
    shapes = [x.inputs[1].shape[2:] for x in nodes(found) if x.op == "conv"]
    assert sum(rows * columns for rows, columns in shapes) == kernel[0] * kernel[1]


def test_phases_of_one_kernel_are_one_convolution():
    for node in (wide(2, (4, 4)), wide(2, (3, 3), channels=8), wide(3, (4, 4))):
        assert operations(conv_by_phases(node)).count("conv") == 1


def test_symbolic_extents_stay():
    x, w = G.var("x", ("N", 2, 4)), G.var("w", (2, 3, 3))
    node = G.conv_transposed(x, w, [9], 2)
    assert conv_by_phases(node).op == "slice"  # the batch may be a size
    x = G.var("x", (2, 2, "H"))
    assert conv_by_phases(kept := G.conv_transposed(x, w, [9], 2)) is kept


@pytest.mark.parametrize("seed", range(12))
def test_random_ones(seed):
    rng = random.Random(seed)
    own, kernel, stride, padding, dilation = [
        [rng.randint(low, high) for _ in range(2)]
        for low, high in ((1, 4), (1, 5), (1, 4), (0, 3), (1, 3))
    ]
    rows = zip(own, kernel, stride, padding, dilation, strict=True)
    space = [max((n - 1) * s + (k - 1) * d + 1 - 2 * p, 1) for n, k, s, p, d in rows]
    node = transposed(own, kernel, space, stride, padding, dilation, rng.choice([1, 2]))
    found = conv_by_phases(node)
    assert found.type == node.type
    np.testing.assert_allclose(values(found), values(node), rtol=1e-5, atol=1e-5)


# Gradients of the operands of convolutions


def backward(x_shape, w_shape, strides, padding, dilation=1, groups=1, **layouts):
    x, w = G.var("x", x_shape), G.var("w", w_shape)
    y = G.conv2d(x, w, strides, padding, dilation, groups, **layouts)
    dy = G.var("y", y.shape)
    (dx,) = G.gradient(y, [x], dy=dy)
    return next(n for n in nodes(dx) if n.op == "conv2d_backward_data")


BACKWARD = {
    "resnet": ([2, 3, 8, 8], [4, 3, 3, 3], 2, 1),
    "shortcut": ([2, 3, 8, 8], [4, 3, 1, 1], 2, 0),
    "first layer": ([2, 3, 12, 11], [4, 3, 7, 7], 2, 3),
    "uneven": ([1, 2, 9, 7], [3, 2, 3, 2], (3, 2), (1, 0, 2, 1)),
    "dilation": ([1, 2, 11, 9], [3, 2, 3, 3], 2, 1, 2),
}


@pytest.mark.parametrize("case", BACKWARD)
def test_gradients_by_phases_are_the_same(case):
    node = backward(*BACKWARD[case])
    found = gradient_by_phases(node)
    assert "conv2d_backward_data" not in operations(found)
    assert found.type == node.type
    np.testing.assert_allclose(values(found), values(node), rtol=1e-5, atol=1e-5)


def test_gradients_that_stay_as_they_are():
    node = backward([2, 3, 8, 8], [4, 3, 3, 3], 1, 1)
    assert gradient_by_phases(node) is node
    node = backward([2, 4, 8, 8], [6, 2, 3, 3], 2, 1, 1, 2)
    assert gradient_by_phases(node) is node
    node = backward([1, 2, 11, 9], [3, 2, 3, 3], 2, 1, 3)  # phases have no fewer products
    assert gradient_by_phases(node) is node
    layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI"}
    node = backward([2, 8, 8, 3], [4, 3, 3, 3], 2, 1, **layouts)
    assert gradient_by_phases(node) is node


@pytest.mark.parametrize("case", BACKWARD)
def test_gradients_by_phases_are_kernels(case):
    node = backward(*BACKWARD[case])
    graph = G.Graph([x for x in nodes(node) if x.op == "var"], [node])
    fn = G.compile(graph, target="c", library=False, optimize=1)
    assert "conv2d_backward_data" not in [op for launch in fn.kernels for op in launch.ops]
    rng = np.random.default_rng(1)
    arrays = {x.name: rng.standard_normal(x.shape).astype(np.float32) for x in graph.inputs}
    (expected,) = G.evaluate(graph, arrays)
    np.testing.assert_allclose(fn(*arrays.values()), expected, rtol=1e-4, atol=1e-4)
