"""Graphs with sizes: types, text, values, binding, passes, and what is refused."""

import numpy as np
import pytest

import loopnest.graph as G
from graph_kernels.random_programs import SIZES, RandomProgram, assert_alike
from helpers.graph_arrays import feeds
from helpers.made_at import without_lines
from loopnest.graph.size_binding import graph_sizes

X = G.var("x", ("N", "D"))


@pytest.mark.parametrize(
    ("node", "type"),
    [
        (X + G.var("y", ("D",)), "float32[N, D]"),
        (X + G.var("y", ("N", 1)), "float32[N, D]"),
        (X @ G.var("w", ("D", 8)), "float32[N, 8]"),
        (G.reshape(X, -1), "float32[D * N]"),
        (G.reshape(X, ("D", -1)), "float32[D, N]"),
        (G.reshape(G.var("y", ("4 * N", 6)), (-1, 8)), "float32[N * 3, 8]"),
        (G.concatenate([X, G.var("y", (3, "D")), X]), "float32[N * 2 + 3, D]"),
        (G.pad(X, ((1, 2), (0, 0))), "float32[N + 3, D]"),
        (X[1:-1, ::2], "float32[N - 2, ceildiv(D, 2)]"),
        (X[0], "float32[D]"),
        (G.sum(X, 1, keepdims=True), "float32[N, 1]"),
        (G.transpose(X), "float32[D, N]"),
        (G.iota("N * 2"), "int64[N * 2]"),
        (G.full(("M + N", "N + M"), 0), "int32[M + N, M + N]"),
        (
            G.conv2d(G.var("i", ("N", 3, "H", 9)), G.var("w", (4, 3, 3, 3)), 2, 1),
            "float32[N, 4, ceildiv(H, 2), 5]",
        ),
        (G.max_pool2d(G.var("i", ("N", 3, "H", 8)), 2), "float32[N, 3, H // 2, 4]"),
        (G.size("N", "int64"), "int64[]"),
    ],
)
def test_types(node, type):
    assert str(node.type) == type


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: X + G.var("y", ("M", "D")),
            "add(x: float32[N, D], y: float32[M, D]): the shapes [N, D] and [M, D] do not "
            "broadcast together; equal extents or 1 fit",
        ),
        (
            lambda: X @ G.var("y", ("N", "D")),
            "matmul(x: float32[N, D], y: float32[N, D]): the extents D and N differ; the last "
            "extent of the first is the last but one of the second",
        ),
        (
            lambda: G.reshape(X, (4, -1)),
            "reshape(x: float32[N, D], (4, -1)): the -1 has no value; elements must divide evenly",
        ),
        (
            lambda: G.reshape(X, ("N", 4)),
            "reshape(x: float32[N, D], shape=(N, 4)): [N, 4] has N * 4 elements, the operand D * N",
        ),
        (
            lambda: G.slice(X, (0, 0), ("N + 1", "D")),
            "slice(x: float32[N, D], starts=(0, 0), stops=(N + 1, D), steps=(1, 1)): 0:N + 1:1 "
            "does not fit extent N",
        ),
        (
            lambda: G.layout_transform(G.var("i", ("N", "C", 8, 8)), "NCHW", "NCHW16c"),
            "layout_transform(i: float32[N, C, 8, 8], src_layout='NCHW', dst_layout='NCHW16c'): "
            "extent C of C in NCHW16c; it must be a multiple of 16",
        ),
    ],
)
def test_refused(build, message):
    with pytest.raises(G.GraphError) as found:
        build()
    assert str(found.value) == message


def graph_of_slices():
    y = G.var("y", ("M", "D"))
    both = G.concatenate([X[1:], y])
    return G.Graph([X, y], [G.flip(both, 0)[2:], G.mean(both), G.variance(both, 0)])


def test_text_of_sizes_parses_back():
    graph = graph_of_slices()
    assert "slice(x, starts=(1, 0), stops=(N, D), steps=(1, 1))" in str(graph)
    again = G.parse(str(graph))
    assert G.structural_equal(again, graph)
    assert str(again) == str(graph)
    assert graph_sizes(again) == ("N", "D", "M")


def test_values_are_those_of_the_bound_graph():
    graph = graph_of_slices()
    random = np.random.default_rng(0)
    for n, m, d in ((4, 3, 5), (1, 2, 1), (2, 1, 0)):
        given = {"x": random.normal(size=(n, d)), "y": random.normal(size=(m, d))}
        given = {name: value.astype(np.float32) for name, value in given.items()}
        bound = G.bind(graph, {"N": n, "M": m, "D": d})
        assert not graph_sizes(bound)
        assert_alike(G.evaluate(graph, given), G.evaluate(G.check(bound), given))
    assert G.bind(bound, {}) is bound


def test_a_watcher_sees_the_nodes_of_the_graph():
    graph, seen = graph_of_slices(), []
    arrays = {"x": np.zeros((3, 2)), "y": np.zeros((3, 2))}
    G.evaluate(graph, arrays, watch=lambda node, value: seen.append(node))
    assert seen == list(graph.nodes)


@pytest.mark.parametrize("seed", range(12))
def test_passes_keep_the_values_of_random_graphs(seed):
    program = RandomProgram(seed, symbolic=True)
    graph, arrays = program.graph, feeds(program.graph, program.arrays())
    expected = G.evaluate(graph, arrays)
    assert_alike(
        G.evaluate(G.bind(graph, {n: SIZES[n] for n in graph_sizes(graph)}), arrays), expected
    )
    passes = (G.AutoInline, G.Distribute, G.Decompose, G.SimplifyExpr, G.FuseOps, G.FoldConstant)
    for each in passes:
        graph = each()(graph)
        assert_alike(G.evaluate(G.check(graph), arrays), expected)
    assert G.structural_equal(G.parse(str(graph)), graph)


@pytest.mark.parametrize("seed", [1, 3, 8])
def test_instruments_choose_sizes(seed):
    with G.PassContext(instruments=[G.SameValues(), G.WellFormed()]):
        G.AutoInline()(RandomProgram(seed, symbolic=True).graph)


def test_gradients_hold_at_all_sizes():
    y = G.sum(G.mean(X * X, 1) * G.variance(X, 1, correction=1) + G.prod(X, 1))
    graph = G.Graph([X], G.gradient(y, [X]))
    static = G.var("x", (3, 4))
    other = G.sum(G.mean(static * static, 1) * G.variance(static, 1, 1) + G.prod(static, 1))
    expected = G.Graph([static], G.gradient(other, [static]))
    array = {"x": np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)}
    assert_alike(G.evaluate(graph, array), G.evaluate(expected, array))


def test_a_budget_of_cse_is_counted_at_sizes():
    dy = G.var("dy", ("N", "D"))
    y = G.tanh(G.exp(X))
    graphs = G.Graph([X], [y], "forward"), G.Graph([X, dy], G.gradient(y, [X], dy), "backward")
    sizes = {"N": 100, "D": 10}
    assert G.cse(*graphs, stash_bytes=4000, sizes=sizes)[2].bytes_stashed == 4000
    assert G.cse(*graphs, stash_bytes=3999, sizes=sizes)[2].bytes_stashed == 0


# Sizes of a call


@pytest.mark.parametrize(
    ("shapes", "sizes", "message"),
    [
        (
            ((3, 4), (2, 5)),
            {},
            "evaluate(main): D is 4 by axis 1 of x but 5 by axis 1 of y; a size has one value in "
            "a call",
        ),
        (
            ((3,), (2, 5)),
            {},
            "evaluate(main): x is float32[N, D], the array [3]",
        ),
        (
            ((3, 4), (2, 4)),
            {"K": 3},
            "evaluate(main): it has no size 'K'; its sizes are: N, D, M",
        ),
        (
            ((3, 4), (2, 4)),
            {"N": 5},
            "evaluate(main): N is 5 by keyword but 3 by axis 0 of x; a size has one value in a "
            "call",
        ),
        (
            ((0, 4), (2, 4)),
            {},
            "graph main at N = 0, D = 4, M = 2, node slice(x): 1:0:1 does not fit extent 0",
        ),
    ],
)
def test_sizes_that_do_not_fit(shapes, sizes, message):
    arrays = dict(zip("xy", [np.zeros(shape, np.float32) for shape in shapes], strict=True))
    with pytest.raises(G.GraphError) as found:
        G.evaluate(graph_of_slices(), arrays, **sizes)
    assert without_lines(found.value) == message


def test_a_size_that_no_input_has_is_given_by_name():
    graph = G.Graph([], [G.iota("N") * 2, G.size("N + 1", "int64")])
    assert_alike(G.evaluate(graph, N=3), (np.array([0, 2, 4]), np.array(4)))
    with pytest.raises(G.GraphError, match=r"the size N is the extent of no input; pass N=\.\.\."):
        G.evaluate(graph)


def test_a_size_is_found_from_an_extent_that_grows_with_it():
    x = G.var("x", ("2 * N + 1",))
    graph = G.Graph([x], [G.size("N", "int64")])
    assert G.evaluate(graph, {"x": np.zeros(9)})[0] == 4
    with pytest.raises(G.GraphError, match="the size N is the extent of no input"):
        G.evaluate(graph, {"x": np.zeros(8)})


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"N": 2}, "bind(main): the size D is missing; sizes: ['N', 'D', 'M']"),
        ({"N": -1}, "bind(main): N = -1 is no size; sizes are ints >= 0"),
        (3, "bind(main): the sizes are an int; pass a dict of ints by name"),
    ],
)
def test_bad_bindings(sizes, message):
    with pytest.raises(G.GraphError) as found:
        G.bind(graph_of_slices(), sizes)
    assert str(found.value) == message
