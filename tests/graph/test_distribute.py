"""Distribute: the published examples, costs, sharing, and what counts as regrouping."""

from __future__ import annotations

import functools
from collections.abc import Callable
from random import Random

import hypothesis
import numpy as np
import pytest

import loopnest.graph as G
from graph import published
from graph.random_graphs import Sample, samples
from helpers.work import calls
from loopnest.graph.cost import flops, traffic
from loopnest.graph.node import LEAVES

A, B, C, D = [G.var(name, (8, 8), "float64") for name in "abcd"]
COLUMN, ROW, ONE = [
    G.var(name, shape, "float64")
    for name, shape in (("column", (8, 1)), ("row", (1, 8)), ("one", (1, 1)))
]
INPUTS = [A, B, C, D, COLUMN, ROW, ONE]
CHECKED = [G.WellFormed(), G.SameValues()]


def shown(node: G.Node) -> str:
    """Return an expression as users write it."""
    signs = {"add": "+", "sub": "-", "mul": "*", "div": "/", "matmul": "@"}
    if node.op in signs:
        return f"({shown(node.inputs[0])} {signs[node.op]} {shown(node.inputs[1])})"
    if node.op == "neg":
        return f"-{shown(node.inputs[0])}"
    return str(node)


def law(graph: G.Graph, **options: object) -> tuple[G.Graph, G.Distribute]:
    each = G.Distribute(**options)
    with G.PassContext(instruments=CHECKED):
        return each(graph), each


def result(node: G.Node, **options: object) -> str:
    graph, _ = law(G.Graph(INPUTS, [node]), **options)
    return shown(graph.outputs[0])


def cost(graph: G.Graph) -> float:
    found = 0.0
    for node in graph.nodes:
        if node.op not in LEAVES:
            found += flops(node) + 0.25 * traffic(node)
    return found


# The published examples


@pytest.mark.parametrize("options", [{}, {"identity": "object"}, {"reassociate": True}])
def test_both_sides(options: dict[str, object]) -> None:
    graph, each = law(published.distribute_of_ublas("both"), **options)
    assert shown(graph.outputs[0]) == "((a * (b + c)) + (d * (a + c)))"
    assert each.changed
    assert [str(rewrite) for rewrite in each.rewrites] == [
        "add(add(mul(a, b), mul(a, c)), add(mul(a, d), mul(d, c))) -> "
        "add(mul(a, add(b, c)), mul(d, add(a, c))): distributed, saves 56.0"
    ]


def test_one_side_where_only_one_can_be() -> None:
    graph, each = law(published.distribute_of_ublas("left"))
    assert shown(graph.outputs[0]) == "((a * (b + c)) + ((a * b) + (2.0 * d)))"
    assert each.changed


def test_further_where_addends_may_be_regrouped() -> None:
    graph, each = law(published.distribute_of_ublas("left"), reassociate=True)
    assert shown(graph.outputs[0]) == "((a * ((b + c) + b)) + (2.0 * d))"
    assert [rewrite.reassociated for rewrite in each.rewrites] == [True]


@pytest.mark.parametrize(
    "config", [{"Distribute.reassociate": True}, {"Distribute.reassociate": False}]
)
def test_regrouping_is_an_option_of_the_context(config: dict[str, bool]) -> None:
    with G.PassContext(config=config):
        graph = G.Sequential([G.Distribute()])(published.distribute_of_ublas("left"))
    wanted = {"add": 3, "mul": 2} if config["Distribute.reassociate"] else {"add": 3, "mul": 3}
    assert G.count_ops(graph) == wanted


def test_where_nothing_applies_the_same_object_comes_back() -> None:
    for node in (A * B + C * D, A + B, A * B, G.exp(A * B) + A * C):
        graph = G.Graph(INPUTS, [node])
        each = G.Distribute()
        assert each(graph) is graph
        assert not each.changed
        assert each.rewrites == ()


def test_a_pass_forgets_its_last_run() -> None:
    each = G.Distribute()
    each(published.distribute_of_ublas())
    assert each.changed
    each(G.Graph(INPUTS, [A + B]))
    assert not each.changed
    each(G.Module([published.distribute_of_ublas(), G.Graph(INPUTS, [A + B], "other")]))
    assert each.changed


# One law, several products


@pytest.mark.parametrize(
    ("node", "wanted"),
    [
        # The four places of the published transform, in its order.
        (A * B + A * C, "(a * (b + c))"),
        (A * B + C * A, "(a * (b + c))"),
        (B * A + A * C, "(a * (b + c))"),
        (B * A + C * A, "(a * (b + c))"),
        (A * B + A * B, "(a * (b + b))"),
        (A * B + B * A, "(a * (b + b))"),
        (A * B - A * C, "(a * (b - c))"),
        ((A * B - A * C) + A * D, "(a * ((b - c) + d))"),
        ((A * B + A * C) + (A * D + A * B), "(a * ((b + c) + (d + b)))"),
        (A * (B * C) + A * (B * D), "(a * (b * (c + d)))"),
        (A @ B + A @ C, "(a @ (b + c))"),
        (A @ C - B @ C, "((a - b) @ c)"),
        (A @ B + B @ A, "((a @ b) + (b @ a))"),
        (A / C + B / C, "((a + b) / c)"),
        (C / A + C / B, "((c / a) + (c / b))"),
        # Both common factors are left for later, so that the third product finds its own.
        ((A * B + B * A) + B * C, "(b * ((a + a) + c))"),
        # Without regrouping these stay.
        ((A * B + C) + A * D, "(((a * b) + c) + (a * d))"),
        (A * (B * C) + B * D, "((a * (b * c)) + (b * d))"),
        (-(A * B) - A * C, "(-(a * b) - (a * c))"),
    ],
)
def test_without_regrouping(node: G.Node, wanted: str) -> None:
    assert result(node) == wanted


@pytest.mark.parametrize(
    ("node", "wanted"),
    [
        ((A * B + C) + A * D, "((a * (b + d)) + c)"),
        (A * (B * C) + B * D, "(b * ((a * c) + d))"),
        (-(A * B) - A * C, "-(a * (b + c))"),
        (A * C - (A * B + D), "((a * (c - b)) - d)"),
        (D - A * B - A * C, "(d - (a * (b + c)))"),
        (-(A * B) + A * C, "(a * (c - b))"),
        ((A @ B + C) + (A @ D + D * C), "(((a @ (b + d)) + c) + (d * c))"),
        ((A * B + A * C) + (D * B + D * C), "((b + c) * (a + d))"),
    ],
)
def test_with_regrouping(node: G.Node, wanted: str) -> None:
    assert result(node, reassociate=True) == wanted


def test_convolutions_are_linear_in_data_and_in_kernel() -> None:
    x, y = [G.var(name, (1, 2, 5, 5), "float64") for name in "xy"]
    v, w = [G.var(name, (3, 2, 3, 3), "float64") for name in "vw"]
    graph, _ = law(G.Graph([x, v, w], [G.conv2d(x, v, padding=1) + G.conv2d(x, w, padding=1)]))
    assert G.count_ops(graph) == {"add": 1, "conv2d": 1}
    graph, _ = law(G.Graph([x, y, w], [G.conv2d(x, w) - G.conv2d(y, w)]))
    assert G.count_ops(graph) == {"conv2d": 1, "sub": 1}
    other = G.Graph([x, v, w], [G.conv2d(x, v, padding=1) + G.conv2d(x, w, 1, (1, 1))])
    assert G.count_ops(law(other)[0])["conv2d"] == 1
    strided = G.var("s", (1, 2, 10, 10), "float64")
    apart = G.Graph(
        [x, strided, w],
        [G.conv2d(x, w, padding=1) + G.conv2d(strided, w, strides=2, padding=1)],
    )
    assert G.Distribute()(apart) is apart


# Costs


def test_an_outer_sum_would_cost_more_and_stays() -> None:
    assert result(ONE * COLUMN + ONE * ROW) == "((one * column) + (one * row))"
    # With a large factor the same law saves.
    assert result(A * COLUMN + A * ROW) == "(a * (column + row))"


def test_of_two_common_factors_the_cheaper_sum_wins() -> None:
    assert result(COLUMN * A + COLUMN * A) == "(a * (column + column))"
    assert result(A * COLUMN + A * COLUMN) == "(a * (column + column))"


def test_products_that_are_needed_elsewhere_are_free() -> None:
    x, y = A * B, A * C
    both = G.Graph(INPUTS, [x + y, x, y])
    assert G.Distribute()(both) is both
    one = G.Graph(INPUTS, [x + y, x])  # a product less, an addition more: no gain
    assert G.Distribute()(one) is one


def test_sums_that_are_there_already_are_free() -> None:
    x, y, there = A * B, A * C, B + C
    graph, _ = law(G.Graph(INPUTS, [there, x + y, x]))
    assert G.count_ops(graph) == {"add": 1, "mul": 2}
    assert graph.outputs[1].inputs[1] is graph.outputs[0]


def test_identity_by_object_or_by_structure() -> None:
    same = G.tanh(A)
    graph = G.Graph(INPUTS, [G.tanh(A) * B + G.tanh(A) * C])
    assert G.count_ops(law(graph)[0]) == {"add": 1, "mul": 1, "tanh": 1}
    assert law(graph, identity="object")[0] is graph
    shared = G.Graph(INPUTS, [same * B + same * C])
    assert G.count_ops(law(shared, identity="object")[0]) == {"add": 1, "mul": 1, "tanh": 1}
    with G.PassContext(config={"Distribute.identity": "object"}):
        assert G.Distribute()(graph) is graph


def test_integers_are_regrouped_without_an_option() -> None:
    i, j, k, n = [G.var(name, (4,), "int32") for name in "ijkn"]
    graph, each = law(G.Graph([i, j, k, n], [i * j + (k + i * n)]))
    assert G.count_ops(graph) == {"add": 2, "mul": 1}
    assert each.rewrites[0].reassociated
    large = {x.name: np.full(4, 2**30 + 7, np.int32) for x in graph.inputs}
    before = G.evaluate(G.Graph([i, j, k, n], [i * j + (k + i * n)]), large)
    np.testing.assert_array_equal(before[0], G.evaluate(graph, large)[0])


def test_bodies_of_functions_are_rewritten() -> None:
    graph = G.FuseOps()(published.distribute_of_ublas())
    found, each = law(graph)
    assert G.count_ops(found) == {"add": 3, "mul": 2}
    assert len(found.functions) == 1
    assert each.changed


def test_constants_are_the_same_by_value() -> None:
    assert result(2.0 * A + 2.0 * B) == "(2.0 * (a + b))"
    graph = G.Graph(INPUTS, [2.0 * A + 2.0 * B])
    assert law(graph, identity="object")[0] is graph


# Errors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: G.Distribute(identity="name"),
            "Distribute(identity='name'): there is none; use 'structure' or 'object'",
        ),
        (
            lambda: G.PassContext(config={"Distribute.reassociate": 1}),
            "PassContext(config={'Distribute.reassociate': 1}): the value is an int; "
            "whether sums and products of floats may be regrouped",
        ),
    ],
)
def test_wrong_arguments_are_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(G.GraphError) as caught:
        make()
    assert str(caught.value) == message


# Properties


def sum_of_products(seed: int, dtype: str = "float64") -> G.Graph:
    """A random expression of few inputs, so that factors repeat."""
    random = Random(seed)
    shapes = [(4, 4), (4, 4), (4, 4), (1, 4), (4, 1), ()]
    inputs = [G.var(f"x{i}", shape, dtype) for i, shape in enumerate(shapes)]
    nodes = list(inputs)

    def product() -> G.Node:
        a, b = random.choice(nodes), random.choice(nodes)
        kind = random.random()
        if kind < 0.15 and a.ndim == b.ndim == 2 and a.shape[1] == b.shape[0]:
            return a @ b
        if kind < 0.25 and dtype == "float64":
            return a / (random.choice(inputs[:2]) * 0.01 + 3.0)
        if kind < 0.35:
            return -(a * b)
        return a * b

    for _ in range(random.randint(1, 3)):
        terms = [product() for _ in range(random.randint(2, 6))]
        while len(terms) > 1:
            a = terms.pop(random.randrange(len(terms)))
            b = terms.pop(random.randrange(len(terms)))
            terms.append(a + b if random.random() < 0.6 else a - b)
        nodes.append(terms[0] * 0.25 if dtype == "float64" else terms[0])
    outputs = [nodes[-1], *random.sample(nodes, random.randint(0, 2))]
    return G.Graph(inputs, outputs, "sums")


@pytest.mark.parametrize("reassociate", [False, True])
@pytest.mark.parametrize("identity", ["structure", "object"])
@pytest.mark.parametrize("seed", range(0, 60, 20))
def test_sums_of_products_keep_values_and_never_cost_more(
    seed: int, identity: str, reassociate: bool
) -> None:
    for number in range(seed, seed + 20):
        graph = sum_of_products(number)
        found, each = law(graph, identity=identity, reassociate=reassociate)
        saved = sum(rewrite.saved for rewrite in each.rewrites)
        assert each.changed == (found is not graph)
        assert cost(found) == pytest.approx(cost(graph) - saved)
        assert saved > 0 or found is graph
        assert law(found, identity=identity, reassociate=reassociate)[0] is found


def test_more_freedom_never_costs_more_on_single_sums() -> None:
    for number in range(60):
        graph = sum_of_products(number)
        single = G.Graph(graph.inputs, graph.outputs[:1])
        free = G.Distribute(reassociate=True)(single)
        assert cost(free) <= cost(single)


@pytest.mark.parametrize("seed", range(20))
def test_integers_keep_their_values_exactly(seed: int) -> None:
    graph = sum_of_products(seed, "int32")
    found = G.Distribute()(graph)
    random = np.random.default_rng(seed)
    feeds = {
        x.name: random.integers(-(2**31), 2**31, x.shape).astype(np.int32) for x in graph.inputs
    }
    for a, b in zip(G.evaluate(graph, feeds), G.evaluate(found, feeds), strict=True):
        np.testing.assert_array_equal(a, b)


@hypothesis.given(samples(max_ops=25))
@hypothesis.settings(max_examples=60, deadline=None)
def test_random_graphs_keep_their_values(sample: Sample) -> None:
    for options in ({}, {"reassociate": True}):
        found, _ = law(sample.graph, **options)
        assert law(found, **options)[0] is found


@pytest.mark.parametrize("reassociate", [False, True])
def test_a_sum_of_400_products_takes_twice_the_work_of_200(reassociate: bool) -> None:
    def sum_of(count: int) -> G.Graph:
        terms = [G.var(f"x{i}", (4,), "float64") for i in range(40)]
        products = [terms[i % 7] * terms[(i * i + 3) % 40] for i in range(count)]
        return G.Graph(terms, [functools.reduce(lambda a, b: a + b, products)])

    half, whole = sum_of(200), sum_of(400)
    law(sum_of(200), reassociate=reassociate)  # what a first call computes for good
    work = [calls(lambda g=g: law(g, reassociate=reassociate)) for g in (half, whole)]
    assert work[1] < 2.5 * work[0]
    if reassociate:
        assert G.count_ops(law(whole, reassociate=True)[0])["mul"] < 60


def test_products_of_3000_factors_are_no_problem() -> None:
    inputs = x, y, z = [G.var(name, (2,), "float64") for name in "xyz"]
    for _ in range(3000):
        x, y = z * x, z * y
    graph = G.Distribute()(G.Graph(inputs, [x + y]))
    assert G.count_ops(graph) == {"add": 1, "mul": 3000}


def test_powers_that_have_every_factor_in_common_are_no_problem() -> None:
    x = y = G.var("x", (2,), "float64")
    for _ in range(20):
        y = y * y
    graph, _ = law(G.Graph([x], [y * 1e-9 + y]))
    assert G.count_ops(graph)["mul"] <= 21
    same, _ = law(G.Graph([x], [y + y * 1.0]), reassociate=True)
    assert G.count_ops(same)["mul"] <= 21
    square = [x, x]
    for _ in range(20):
        square = [a * a for a in square]
    both, _ = law(G.Graph([x], [square[0] + square[1]]), reassociate=True)
    assert G.count_ops(both)["mul"] <= 40
