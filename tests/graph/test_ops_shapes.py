"""Random shapes, axes, indices and attributes, against NumPy's own answer."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import loopnest.graph as G
from graph.op_cases import conv, pool

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


def data(*shapes):
    random = np.random.default_rng(0)
    return [random.normal(size=shape) for shape in shapes]


def run(build, *arrays):
    nodes = [G.var(f"x{i}", a.shape, a.dtype.name) for i, a in enumerate(arrays)]
    graph = G.check(G.Graph(nodes, [build(*nodes)]))
    return G.evaluate(graph, {x.name: a for x, a in zip(nodes, arrays, strict=True)})[0]


@settings(deadline=None)
@given(hnp.mutually_broadcastable_shapes(num_shapes=3, min_side=0, max_dims=4))
def test_broadcasting(shapes):
    a, b, c = data(*shapes.input_shapes)
    np.testing.assert_array_equal(run(lambda x, y, z: x * y + z, a, b, c), a * b + c)
    np.testing.assert_array_equal(
        run(lambda x, y, z: G.where(x > 0, y, z), a, b, c), np.where(a > 0, b, c)
    )


@settings(deadline=None)
@given(SHAPES, SHAPES)
def test_shapes_that_do_not_broadcast(first, second):
    try:
        expected = np.broadcast_shapes(first, second)
    except ValueError:
        with pytest.raises(G.GraphError, match=r"do not broadcast together; equal extents or 1"):
            G.var("x", first) + G.var("y", second)
    else:
        assert (G.var("x", first) + G.var("y", second)).shape == expected


@settings(deadline=None)
@given(st.data(), hnp.array_shapes(max_dims=4, max_side=4), st.booleans())
def test_reductions(draw, shape, keepdims):
    axes = draw.draw(
        st.none()
        | st.integers(-len(shape), len(shape) - 1)
        | hnp.valid_tuple_axes(len(shape), min_size=0)
    )
    (x,) = data(shape)
    for op, function in (("sum", np.sum), ("max", np.max), ("mean", np.mean), ("prod", np.prod)):
        found = run(lambda n, op=op: getattr(G, op)(n, axes, keepdims=keepdims), x)
        np.testing.assert_allclose(found, function(x, axis=axes, keepdims=keepdims), rtol=1e-12)


@settings(max_examples=300, deadline=None)
@given(st.data(), hnp.array_shapes(max_dims=4, max_side=5))
def test_basic_indexing(draw, shape):
    key = draw.draw(hnp.basic_indices(shape, allow_newaxis=True))
    parts = key if isinstance(key, tuple) else (key,)
    assume(all(not isinstance(p, slice) or (p.step or 1) > 0 for p in parts))
    (x,) = data(shape)
    np.testing.assert_array_equal(run(lambda n: n[key], x), x[key])


@settings(deadline=None)
@given(st.data(), hnp.array_shapes(max_dims=4, max_side=4))
def test_movement(draw, shape):
    (x,) = data(shape)
    order = draw.draw(st.permutations(range(len(shape))))
    np.testing.assert_array_equal(run(lambda n: G.transpose(n, order), x), np.transpose(x, order))
    axes = draw.draw(hnp.valid_tuple_axes(len(shape)))
    np.testing.assert_array_equal(run(lambda n: G.flip(n, axes), x), np.flip(x, axes))
    widths = draw.draw(st.tuples(*[st.tuples(*[st.integers(0, 2)] * 2)] * len(shape)))
    np.testing.assert_array_equal(run(lambda n: G.pad(n, widths), x), np.pad(x, widths))
    places = sorted(draw.draw(st.sets(st.integers(0, len(shape) + 1), max_size=2)))
    if places and places[-1] < len(shape) + len(places):
        grown = run(lambda n: G.expand_dims(n, places), x)
        np.testing.assert_array_equal(grown, np.expand_dims(x, places))


@settings(deadline=None)
@given(hnp.mutually_broadcastable_shapes(signature="(m,k),(k,n)->(m,n)", max_dims=2, max_side=3))
def test_matmul(shapes):
    a, b = data(*shapes.input_shapes)
    np.testing.assert_allclose(run(G.matmul, a, b), a @ b, rtol=1e-12, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 2)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(*[st.integers(1, 2)] * 2),
    st.tuples(*[st.integers(0, 2)] * 4),
    st.tuples(*[st.integers(1, 2)] * 2),
    st.sampled_from([("NCHW", "OIHW"), ("NHWC", "HWIO"), ("NCHW2c", "OIHW2o")]),
)
def test_convolution(counts, kernel, strides, padding, dilation, layouts):
    groups, ins, outs = counts
    x, w = data((2, 2 * groups * ins, 5, 6), (2 * groups * outs, 2 * ins, *kernel))
    expected = conv(x, w, strides, padding, dilation, groups)

    def build(nx, nw):
        nx = G.layout_transform(nx, "NCHW", layouts[0])
        nw = G.layout_transform(nw, "OIHW", layouts[1])
        y = G.conv2d(nx, nw, strides, padding, dilation, groups, *layouts)
        return G.layout_transform(y, layouts[0], "NCHW")

    np.testing.assert_allclose(run(build, x, w), expected, rtol=1e-11, atol=1e-11)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 1))
def test_pooling(size, stride, padding):
    assume(padding < size)
    (x,) = data((2, 3, 5, 5))
    found = run(lambda n: G.max_pool2d(n, size, stride, padding), x)
    np.testing.assert_array_equal(found, pool(x, size, stride, padding, np.nanmax))
    found = run(lambda n: G.avg_pool2d(n, size, stride, padding), x)
    np.testing.assert_allclose(found, pool(x, size, stride, padding, np.nanmean), rtol=1e-12)
