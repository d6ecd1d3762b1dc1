"""Every op against NumPy or a plain loop, and the types that inference promises."""

import ml_dtypes
import numpy as np
import pytest

import loopnest.graph as G
from graph.case_makers import Case
from graph.op_cases import CASES, COMPOSITES, OPS
from loopnest.scalar import dtypes


def compare(found, expected):
    if isinstance(expected, tuple):
        assert isinstance(found, tuple)
        for part, other in zip(found, expected, strict=True):
            compare(part, other)
        return
    assert found.shape == expected.shape
    if found.dtype.kind == "f":
        single = found.dtype == np.float32
        tolerance = 1e-6 if single else 1e-12
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    else:
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("case", [*CASES, *COMPOSITES], ids=repr)
def test_value(case: Case):
    arrays = case.operands()
    graph = G.check(case.graph(arrays))
    (found,) = G.evaluate(graph, {f"x{i}": array for i, array in enumerate(arrays)})
    compare(found, case.expected(*arrays))


def test_the_table_has_every_op():
    assert {case.op for case in CASES} == set(OPS)


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_the_op_of_a_case_stands_in_its_graph(case: Case):
    assert case.op in {node.op for node in case.graph(case.operands()).nodes}


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_half_precision_rounds_once(name):
    dtype = getattr(dtypes, name).numpy
    data = np.random.default_rng(0).normal(size=(4, 300)).astype(dtype)
    x = G.var("x", data.shape, name)
    total, gelu = G.evaluate(G.Graph([x], [G.sum(x, 1), G.gelu(x, "tanh")]), {"x": data})
    wide = data.astype(np.float32)
    np.testing.assert_array_equal(total, wide.sum(1).astype(dtype))
    (exact,) = G.evaluate(G.Graph([w := G.var("w", data.shape)], [G.gelu(w, "tanh")]), {"w": wide})
    np.testing.assert_array_equal(gelu, exact.astype(dtype))


def test_half_types_meet_in_float32():
    a, b = G.var("a", (2,), "float16"), G.var("b", (2,), ml_dtypes.bfloat16)
    assert (a + b).dtype is dtypes.float32


@pytest.mark.parametrize(
    ("build", "dtype"),
    [
        (lambda i, b, f: i + 1, "int32"),
        (lambda i, b, f: i + 1.5, "float32"),
        (lambda i, b, f: i / 2, "float32"),
        (lambda i, b, f: b + b, "int32"),
        (lambda i, b, f: b + 1, "int32"),
        (lambda i, b, f: i + f, "float64"),
        (lambda i, b, f: f * 2, "float64"),
        (lambda i, b, f: G.sum(i), "int64"),
        (lambda i, b, f: G.sum(b), "int64"),
        (lambda i, b, f: G.max(i), "int32"),
        (lambda i, b, f: G.mean(i), "float32"),
        (lambda i, b, f: G.variance(i), "float32"),
        (lambda i, b, f: G.exp(i), "float32"),
        (lambda i, b, f: G.relu(i), "int32"),
        (lambda i, b, f: i < f, "bool"),
        (lambda i, b, f: G.logical_not(f), "bool"),
        (lambda i, b, f: ~i, "int32"),
        (lambda i, b, f: b | b, "bool"),
        (lambda i, b, f: 1 | i, "int32"),
        (lambda i, b, f: G.where(f, i, 1.5), "float32"),
        (lambda i, b, f: G.argmax(f, 0), "int64"),
        (lambda i, b, f: G.reshape(i, (2, 1)) @ G.reshape(i, (1, 2)), "int64"),
        (lambda i, b, f: np.float32(2) * f, "float64"),
    ],
)
def test_types(build, dtype):
    node = build(G.var("i", (2,), "int32"), G.var("b", (2,), "bool"), G.var("f", (2,), "float64"))
    assert str(node.dtype) == dtype


def test_integers():
    i = G.var("i", (4,), "int32")
    outputs = [i % 0, i % 3, i**2, i**-1, G.prod(i), G.mean(i), G.abs(i)]
    data = np.array([-4, -1, 1, 2**31 - 1], np.int32)
    found = G.evaluate(G.Graph([i], outputs), {"i": data})
    np.testing.assert_array_equal(found[0], [0, 0, 0, 0])
    np.testing.assert_array_equal(found[1], data % 3)
    np.testing.assert_array_equal(found[2], data * data)
    np.testing.assert_array_equal(found[3], [0, -1, 1, 0])
    assert found[4] == np.int64(4) * (2**31 - 1)
    assert found[5] == np.float32((2**31 - 1 - 4) / 4)


def test_no_element():
    x = G.var("x", (0, 3), "float64")
    i = G.var("i", (0,), "int32")
    graph = G.Graph([x, i], [G.sum(x, 0), G.max(x, 0), G.min(x, 0), G.mean(x, 0), G.max(i)])
    total, top, low, mean, whole = G.evaluate(graph, {"x": np.zeros((0, 3)), "i": []})
    assert total.tolist() == [0, 0, 0]
    assert top.tolist() == [-np.inf] * 3
    assert low.tolist() == [np.inf] * 3
    assert np.isnan(mean).all()
    assert whole == -(2**31)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_averages_of_ones_are_ones(dtype):
    x = G.ones((1, 1, 9, 9), dtype)
    averages = [G.avg_pool2d(x, size, 1, size - 1) for size in range(1, 8)]
    for found in G.evaluate(G.Graph([], averages)):
        assert (found == 1).all()


@pytest.mark.parametrize(("n", "c", "o"), [(0, 2, 3), (2, 0, 3), (2, 2, 0)])
@pytest.mark.parametrize("op", [G.conv, G.conv2d])
def test_convolutions_of_no_element(op, n, c, o):
    x, w = G.var("x", (n, c, 4, 5)), G.var("w", (o, c, 3, 2))
    y = op(x, w)
    graph = G.Graph([x, w], [y, *G.gradient(y, [x, w])])
    found = G.evaluate(graph, {"x": np.ones(x.shape), "w": np.ones(w.shape)})
    assert [value.shape for value in found] == [(n, o, 2, 4), x.shape, w.shape]
    assert not any(value.any() for value in found)


@pytest.mark.parametrize(
    "key",
    [
        0,
        -1,
        slice(1, None),
        (slice(None), 2),
        (Ellipsis, slice(None, None, 2)),
        (None, slice(None), None, -2),
        (1, 2),
        (slice(0, 0), None, Ellipsis),
        Ellipsis,
    ],
)
def test_indexing_is_numpys(key):
    data = np.arange(12.0).reshape(3, 4)
    x = G.var("x", (3, 4), "float64")
    (found,) = G.evaluate(G.Graph([x], [x[key]]), {"x": data})
    np.testing.assert_array_equal(found, data[key])


def test_nothing_to_do_gives_the_operand():
    x = G.var("x", (3, 4))
    for same in (
        G.broadcast_to(x, (3, 4)),
        G.cast(x, "float32"),
        G.squeeze(x),
        G.layout_transform(x, "AB", "AB"),
        x[:],
    ):
        assert same is x


X, Y, WHOLE = G.var("x", (3, 4)), G.var("y", (2,)), G.var("i", (3,), "int32")
IMAGE, KERNEL = G.var("image", (1, 4, 5, 5)), G.var("kernel", (6, 4, 3, 3))
BIG = 1 << 40


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: X + Y,
            "add(x: float32[3, 4], y: float32[2]): the shapes [3, 4] and [2] do not broadcast "
            "together; equal extents or 1 fit",
        ),
        (
            lambda: X + np.ones(4),
            "add(x: float32[3, 4], <array float64[4]>): operand 1 is an array; use nodes (G.const "
            "makes one of an array) or Python numbers",
        ),
        (
            lambda: G.exp("x"),
            "exp('x'): operand 0 is str; use nodes (G.const makes one of an array) or Python "
            "numbers",
        ),
        (
            lambda: G.exp(G.make_tuple(X, Y)),
            "exp(tuple(x, y): (float32[3, 4], float32[2])): operand 0 is a tuple; take a field: "
            "node[0]",
        ),
        (lambda: WHOLE + BIG, f"add(…, {BIG}): {BIG} does not fit int32; use a wider type"),
        (
            lambda: ~X,
            "invert(x: float32[3, 4]): the operands meet in float32; use integers or bool",
        ),
        (
            lambda: G.gelu(X, "sinh"),
            "gelu(x: float32[3, 4], approximate='sinh'): there is no approximate='sinh'; use "
            "'none' or 'tanh'",
        ),
        (
            lambda: G.call("add", [X, WHOLE]),
            "add(x: float32[3, 4], i: int32[3]): element types differ: float32 and int32; cast one "
            "of them",
        ),
        (
            lambda: G.call("exp", [WHOLE]),
            "exp(i: int32[3]): it does not take int32; cast the operands",
        ),
        (
            lambda: G.sum(X, 2),
            "sum(x: float32[3, 4], axis=2): axis 2 is out of range; use -2..1",
        ),
        (lambda: G.sum(X, (0, -2)), "sum(x: float32[3, 4], axis=(0, -2)): an axis is named twice"),
        (lambda: G.sum(X, "a"), "sum(x: float32[3, 4], axis='a'): the axis 'a' is no integer"),
        (
            lambda: G.variance(X, 0, float("nan")),
            "variance(x: float32[3, 4], correction=nan): the correction is not finite",
        ),
        (
            lambda: G.argmax(X, (0, 1)),
            "argmax(x: float32[3, 4], axis=(0, 1), keepdims=False): it is along 2 axes; name one "
            "axis",
        ),
        (
            lambda: X @ Y,
            "matmul(x: float32[3, 4], y: float32[2]): an operand has rank 1; both ranks are at "
            "least 2",
        ),
        (
            lambda: X @ X,
            "matmul(x: float32[3, 4], x: float32[3, 4]): the extents 4 and 3 differ; the last "
            "extent of the first is the last but one of the second",
        ),
        (
            lambda: G.reshape(X, (5,)),
            "reshape(x: float32[3, 4], shape=(5,)): [5] has 5 elements, the operand 12",
        ),
        (
            lambda: G.reshape(X, (5, -1)),
            "reshape(x: float32[3, 4], (5, -1)): the -1 has no value; elements must divide evenly",
        ),
        (
            lambda: G.transpose(X, (0, 0)),
            "transpose(x: float32[3, 4], axes=(0, 0)): axes=(0, 0) is no permutation; name each of "
            "2 axes once",
        ),
        (
            lambda: G.squeeze(X, 0),
            "squeeze(x: float32[3, 4], axis=(0,)): axis 0 has extent 3; only extents of 1 go",
        ),
        (
            lambda: G.broadcast_to(X, (4,)),
            "broadcast_to(x: float32[3, 4], shape=(4,)): [3, 4] does not broadcast to [4]; extents "
            "of 1 repeat",
        ),
        (
            lambda: G.concatenate([X, Y]),
            "concatenate(x: float32[3, 4], y: float32[2], axis=0): float32[2] does not fit "
            "float32[3, 4]; extents agree but along axis 0",
        ),
        (lambda: G.concatenate([]), "concatenate([]): there is no tensor; pass at least one"),
        (
            lambda: X[5],
            "x[5]: place 5 is out of range; extent 3",
        ),
        (
            lambda: X[::-1],
            "x[slice(None, None, -1)]: slice(None, None, -1) is no place; use integers, forward "
            "slices, None, ...",
        ),
        (lambda: X[0, 0, 0], "x[(0, 0, 0)]: there are 3 places for 2 axes"),
        (
            lambda: G.slice(X, (0, 0), (1, 1), (1, -1)),
            "slice(x: float32[3, 4], (0, 0), (1, 1), (1, -1)): a step is below 1; G.flip reverses "
            "an axis",
        ),
        (
            lambda: G.pad(X, ((1, 1),)),
            "pad(x: float32[3, 4], widths=((1, 1),), value=0): widths=((1, 1),); a pair of "
            "integers >= 0 for each axis",
        ),
        (
            lambda: G.layout_transform(IMAGE, "NCHW", "NCHW3c"),
            "layout_transform(image: float32[1, 4, 5, 5], src_layout='NCHW', dst_layout='NCHW3c'): "
            "extent 4 of C in NCHW3c; it must be a multiple of 3",
        ),
        (
            lambda: G.layout_transform(X, "NCHW", "NHWC"),
            "layout_transform(x: float32[3, 4], src_layout='NCHW', dst_layout='NHWC'): [3, 4] is "
            "no NCHW; NCHW has 4 axes",
        ),
        (
            lambda: G.layout_transform(IMAGE, "NCHW", "NCH-W"),
            "layout_transform(image: float32[1, 4, 5, 5], src_layout='NCHW', dst_layout='NCH-W'): "
            "'NCH-W' is no layout; write for example NCHW or NCHW16c",
        ),
        (
            lambda: G.conv2d(IMAGE, G.var("k", (6, 3, 3, 3))),
            "conv2d(image: float32[1, 4, 5, 5], k: float32[6, 3, 3, 3], strides=(1, 1), "
            "padding=(0, 0, 0, 0), dilation=(1, 1), groups=1, data_layout='NCHW', "
            "kernel_layout='OIHW'): the kernel takes 3 channels in 1 groups, the data has 4; the "
            "second extent of the kernel is C // groups",
        ),
        (
            lambda: G.conv2d(IMAGE, KERNEL, groups=4),
            "conv2d(image: float32[1, 4, 5, 5], kernel: float32[6, 4, 3, 3], strides=(1, 1), "
            "padding=(0, 0, 0, 0), dilation=(1, 1), groups=4, data_layout='NCHW', "
            "kernel_layout='OIHW'): 4 groups of 4 channels to 6; groups must divide both",
        ),
        (
            lambda: G.conv2d(IMAGE, KERNEL, strides=0),
            "conv2d(image: float32[1, 4, 5, 5], kernel: float32[6, 4, 3, 3], strides=0, padding=0):"
            " 0 is no pair; one or two integers >= 1",
        ),
        (
            lambda: G.conv_transposed(IMAGE, KERNEL, (7, 7)),
            "conv_transposed(image: float32[1, 4, 5, 5], kernel: float32[6, 4, 3, 3], "
            "space=(7, 7), strides=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1): the kernel "
            "takes 6 channels, the data has 4",
        ),
        (
            lambda: G.conv_weight(IMAGE, IMAGE, (3, 3)),
            "conv_weight(image: float32[1, 4, 5, 5], image: float32[1, 4, 5, 5], kernel=(3, 3), "
            "strides=(1, 1), padding=((0, 0), (0, 0)), dilation=(1, 1), groups=1): the gradient is "
            "[1, 4, 5, 5], the windows are [3, 3]",
        ),
        (
            lambda: G.max_pool2d(IMAGE, 6),
            "max_pool2d(image: float32[1, 4, 5, 5], pool=(6, 6), strides=(6, 6), "
            "padding=(0, 0, 0, 0), data_layout='NCHW'): a window of 6 does not fit the padded "
            "extent 5",
        ),
        (
            lambda: G.batch_norm(X, Y, Y),
            "batch_norm(x: float32[3, 4], y: float32[2], y: float32[2]): gamma is float32[2]; it "
            "must be [4]",
        ),
        (
            lambda: G.cross_entropy(X, Y),
            "cross_entropy(x: float32[3, 4], y: float32[2]): labels do not fit; probabilities […, "
            "classes] or integers […]",
        ),
        (lambda: G.full((2,), "a"), "full((2,), 'a'): the value is a str; use a Python number"),
        (
            lambda: G.full((-2,), 1),
            "full((-2,), 1): the shape is (-2,); a shape is a tuple of integers >= 0 and names of "
            "sizes",
        ),
    ],
)
def test_errors(build, message):
    with pytest.raises(G.GraphError) as found:
        build()
    assert str(found.value) == message
