"""Compiled graphs with sizes: one function for all of them."""

import numpy as np
import pytest

import loopnest as ln
import loopnest.graph as G
from graph_kernels.random_programs import RandomProgram, assert_alike
from helpers.graph_arrays import feeds
from loopnest.backends.cpu.host_call import LaunchTable
from loopnest.graph_kernels import runs_by_size


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed):
    program = RandomProgram(seed, symbolic=True)
    fn = G.compile(program.graph, target="c", library=bool(seed % 2), optimize=0)
    assert not [launch for launch in fn.kernels if launch.fallback]
    results = fn(*program.arrays())
    expected = program.expected()
    assert_alike(results if len(expected) > 1 else (results,), expected)


def network():
    x, w, b = G.var("x", ("N", "D")), G.var("w", ("D", 8)), G.var("b", (8,))
    y = G.softmax(G.relu(x @ w + b))
    loss = G.mean(y * y)
    return G.Graph([x, w, b], [loss, *G.gradient(loss, [x, w, b])])


@pytest.mark.parametrize("target", ["c", "interpret"])
def test_one_function_computes_at_all_sizes(target):
    graph = network()
    fn = G.compile(graph, target=target, library=False)
    kernels = [launch.kernel for launch in fn.kernels]
    random = np.random.default_rng(0)
    for n, d in ((0, 3), (1, 1), (5, 3), (40, 17), (5, 3)):
        shapes = ((n, d), (d, 8), (8,))
        arrays = [random.normal(size=shape).astype(np.float32) for shape in shapes]
        assert_alike(fn(*arrays), G.evaluate(graph, feeds(graph, arrays)))
    assert [launch.kernel for launch in fn.kernels] == kernels
    assert len(fn._runs.kept) == 4
    (product,) = [k for k in fn.kernels if k.ops[0] == "matmul"]
    assert str(product.flops) == "D * N * 16"


def test_the_arena_is_that_of_the_largest_call():
    x = G.var("x", ("N", "N"))
    y = x
    for _ in range(5):
        y = G.tanh(y @ y)
    graph = G.Graph([x], [y])
    fn = G.compile(graph, target="c", optimize=0)
    random = np.random.default_rng(0)
    for n in (8, 64, 8, 32, 64):
        array = random.normal(size=(n, n)).astype(np.float32)
        assert_alike((fn(array),), G.evaluate(graph, {"x": array}), 10)
        assert fn.plan(N=n).arena <= 2 * 4 * n * n
    assert fn._runs.memory.arena.nbytes <= 2 * 4 * 64 * 64


def test_runs_at_other_sizes_have_the_tables_of_earlier_ones(monkeypatch):
    """What sizes change are words alone, each run's own; another machine code needs a table."""
    made = []
    monkeypatch.setattr(
        runs_by_size, "LaunchTable", lambda *args: made.append(args) or LaunchTable(*args)
    )
    x, w = G.var("x", ("N", "D")), G.var("w", ("D", 16))
    y = G.tanh(x @ w)
    graph = G.Graph([x, w], [G.softmax(y @ G.transpose(y, (1, 0))), G.sum(x, axis=1)])
    fn = G.compile(graph, target="c", optimize=0, library=False)
    random = np.random.default_rng(0)
    shapes = [((n, d), (d, 16)) for n, d in ((16, 32), (7, 3), (0, 3))]
    arrays = [[random.normal(size=s).astype(np.float32) for s in pair] for pair in shapes]
    expected = [G.evaluate(graph, feeds(graph, pair)) for pair in arrays]
    for number in (0, 1, 2, 1, 0, 2):
        assert_alike(fn(*arrays[number]), expected[number], 10)
    before = len(made)
    assert before
    for n, d in ((32, 64), (9, 5), (48, 32), (11, 3)):
        pair = [random.normal(size=s).astype(np.float32) for s in ((n, d), (d, 16))]
        assert_alike(fn(*pair), G.evaluate(graph, feeds(graph, pair)), 10)
    assert len(made) == before


def test_state_is_shared_by_all_sizes():
    x, total = G.var("x", ("N",)), G.Variable(np.zeros(3, np.float32), "total")
    graph = G.Graph([x], [G.assign(total, total + G.sum(x))])
    fn = G.compile(graph, target="c", optimize=0)
    for n in (2, 5, 2):
        fn(np.ones(n, np.float32))
    np.testing.assert_array_equal(fn.state["total"], [9, 9, 9])


def test_what_numpy_evaluates_has_the_sizes_of_the_call():
    x = G.var("x", ("N", 2, 8, 8))
    y = G.max_pool2d(x, 2)
    graph = G.Graph([x], [*G.gradient(G.sum(y * y), [x]), x[1:]])
    fn = G.compile(graph, target="interpret")
    for n in (1, 3):
        array = np.random.default_rng(n).normal(size=(n, 2, 8, 8)).astype(np.float32)
        assert_alike(fn(array), G.evaluate(graph, {"x": array}))


@pytest.mark.parametrize(
    ("shapes", "sizes", "message"),
    [
        (
            ((3, 4), (5, 8), (8,)),
            {},
            "main(...): D is 4 by axis 1 of x but 5 by axis 0 of w; a size has one value in a call",
        ),
        (
            ((3, 4), (4, 8), (7,)),
            {},
            "main(...): axis 0 of b has extent 7, not 8",
        ),
        (((3, 4), (4, 8), (8,)), {"K": 1}, "main(...): it has no size 'K'; its sizes are: N, D"),
        (
            ((3,), (4, 8), (8,)),
            {},
            "main(...): x is float32[N, D], the array float32[3]; compile the graph for the "
            "shapes and types that it is called with",
        ),
    ],
)
def test_arguments_that_do_not_fit(shapes, sizes, message):
    fn = G.compile(network(), target="interpret")
    with pytest.raises(ln.LaunchError) as found:
        fn(*[np.zeros(shape, np.float32) for shape in shapes], **sizes)
    assert str(found.value) == message


def test_a_node_that_does_not_fit_at_the_sizes_is_named():
    x = G.var("x", ("N",))
    fn = G.compile(G.Graph([x], [x[2:] * 2.0]), target="interpret")
    with pytest.raises(ln.LaunchError) as found:
        fn(np.zeros(1, np.float32))
    assert "at N = 1" in str(found.value)
    np.testing.assert_array_equal(fn(np.ones(3, np.float32)), [2])


def test_a_size_has_the_name_of_a_parameter():
    x = G.var("x", ("p0", "o0"))
    fn = G.compile(G.Graph([x], [G.exp(x) + 1.0]), target="c", library=False, optimize=0)
    np.testing.assert_array_equal(fn(np.zeros((2, 3), np.float32)), np.full((2, 3), 2.0))


def test_a_size_by_name():
    fn = G.compile(G.Graph([], [G.cast(G.iota("N"), "float32") * 0.5]), target="c", optimize=0)
    np.testing.assert_array_equal(fn(N=3), [0, 0.5, 1])
    with pytest.raises(ln.LaunchError, match="the size N is the extent of no input"):
        fn()


# Places that are data


def embedding():
    table, tokens = G.var("table", (9, 5)), G.var("tokens", ("N", 3), "int32")
    loss = G.sum(G.tanh(G.take(table, tokens)) * 0.5)
    return G.Graph([table, tokens], [loss, *G.gradient(loss, [table])])


def test_an_embedding_and_its_gradient_are_kernels():
    fn = G.compile(embedding(), target="c", library=False, optimize=0)
    random = np.random.default_rng(0)
    for n in (1, 6):
        arrays = [
            random.normal(size=(9, 5)).astype(np.float32),
            random.integers(0, 9, (n, 3)).astype(np.int32),
        ]
        assert_alike(fn(*arrays), G.evaluate(embedding(), feeds(embedding(), arrays)))


def test_indices_are_checked_before_a_kernel_reads():
    table, tokens = G.var("table", (9, 5)), G.var("tokens", ("N",), "int32")
    graph = G.Graph([table, tokens], [G.take(table, tokens)])
    arrays = [np.zeros((9, 5), np.float32), np.array([3, 9], np.int32)]
    with pytest.raises(ln.LaunchError, match="9"):
        G.compile(graph, target="c", optimize=0)(*arrays)
    with pytest.raises(G.GraphError, match="index 9 is outside of an axis of 9"):
        G.evaluate(graph, feeds(graph, arrays))


def image():
    return G.var("x", ("N", 2, "H", "W"))


def grown(x, w):
    return G.conv_transposed(x, w, ("H * 2 + 1", "W * 2 + 1"), 2, 1)


LAST_WINDOWS = {
    "conv2d": (lambda x, w: G.conv2d(x, w, 2, 1), (4, 2, 3, 3)),
    "conv_transposed": (grown, (2, 3, 4, 4)),
    "max_pool2d": (lambda x, w: G.max_pool2d(x * w, 3, 2, 1), ()),
}


@pytest.mark.parametrize("name", LAST_WINDOWS)
def test_gradients_of_windows(name):
    """A size says how many elements behind the last window none has; proved for all sizes."""
    build, shape = LAST_WINDOWS[name]
    x, w = image(), G.var("w", shape)
    y = build(x, w)
    graph = G.Graph([x, w], G.gradient(G.sum(y * y), [x, w]))
    fn = G.compile(graph, target="interpret", library=False)
    reports = [ln.verify(launch.kernel) for launch in fn.kernels]
    assert all(report.all_sizes for report in reports), [str(report) for report in reports]
    random = np.random.default_rng(0)
    shapes = ((2, 2, 5, 6), shape)
    arrays = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    assert_alike(fn(*arrays), G.evaluate(graph, feeds(graph, arrays)), 10)
