"""cse: what the backward takes from the forward, the ledger, the budget."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import combinations
from random import Random

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import loopnest.graph as G
from graph import published
from graph.random_graphs import Sample, samples
from loopnest.graph.cse_across import (
    Ledger,
    Problem,
    _filled,
    _savings,
    choose,
    closed_flops,
    evaluate,
    minimum_cut,
)


def run_both(
    forward: G.Graph, backward: G.Graph, feeds: dict[str, np.ndarray], outputs: int
) -> tuple:
    """Run a forward, then a backward that gets the further outputs as its further inputs."""
    results = G.evaluate(forward, {x.name: feeds[x.name] for x in forward.inputs})
    new = [x.name for x in backward.inputs if x.name not in feeds]
    known = {x.name: feeds[x.name] for x in backward.inputs if x.name in feeds}
    stashed = dict(zip(new, results[outputs:], strict=True))
    return results[:outputs], G.evaluate(backward, {**known, **stashed})


def check_same(pair: published.TwoPasses, budget: int | None, seed: int = 0) -> Ledger:
    """Check that values stay bit for bit, and what the ledger says; return it."""
    forward, backward, ledger = G.cse(pair.forward, pair.backward, budget)
    inputs = {x.name: x for x in (*pair.forward.inputs, *pair.backward.inputs)}
    feeds = published.feeds(G.Graph(list(inputs.values()), []), seed)
    count = len(pair.forward.outputs)
    wanted = run_both(pair.forward, pair.backward, feeds, count)
    found = run_both(forward, backward, feeds, count)
    for a, b in zip((*wanted[0], *wanted[1]), (*found[0], *found[1]), strict=True):
        np.testing.assert_array_equal(a, b)
    G.check(forward), G.check(backward)
    check_ledger(pair, forward, backward, ledger)
    return ledger


def check_ledger(
    pair: published.TwoPasses, forward: G.Graph, backward: G.Graph, ledger: Ledger
) -> None:
    stashed = [each.node for each in ledger.stashed]
    assert list(forward.outputs) == [*forward.outputs[: len(pair.forward.outputs)], *stashed]
    new = backward.inputs[len(pair.backward.inputs) :]
    assert [x.name for x in new] == [each.name for each in ledger.stashed]
    assert [x.type for x in new] == [node.type for node in stashed]
    assert ledger.bytes_stashed == sum(each.bytes for each in ledger.stashed)
    assert ledger.flops_recomputed >= ledger.least_flops
    assert ledger.stash_bytes is None or ledger.bytes_stashed <= ledger.stash_bytes
    read = {x for node in backward.nodes for x in node.inputs} | set(backward.outputs)
    assert ledger.unread == tuple(
        x.name for x in backward.inputs[: len(pair.backward.inputs)] if x not in read
    )


# The published examples


def test_the_backward_of_tanh_evaluates_no_tanh() -> None:
    pair = published.tanh_of_cse_rfc()
    ledger = check_same(pair, None)
    _, backward, _ = G.cse(pair.forward, pair.backward)
    assert G.count_ops(backward) == {"mul": 2, "sub": 1}
    assert str(ledger) == (
        "value    type           bytes  flops  recomputed  kept as\n"
        "tanh(x)  float64[4, 8]  256    320    0           stash0\n"
        "256 bytes stashed (no budget), 0 flops recomputed of 320; minimum cut"
    )
    (only,) = ledger
    assert only.is_output
    assert ledger.unread == ("x",)


def test_tanh_of_graphs_that_share_no_nodes() -> None:
    pair = published.tanh_of_cse_rfc()
    apart = published.TwoPasses(G.parse(str(pair.forward)), G.parse(str(pair.backward)))
    assert len(check_same(apart, None).stashed) == 1


def test_x_hat_is_stashed_for_the_gradient_of_gamma() -> None:
    pair = published.gamma_gradient_of_cse_rfc()
    check_same(pair, None)
    forward, backward, _ = G.cse(pair.forward, pair.backward)
    assert str(backward) == (
        "# loopnest graph 1\n"
        "graph gamma_gradient(x: float64[2, 3, 4, 5], dy: float64[2, 3, 4, 5], "
        "stash0: float64[2, 3, 4, 5]) {\n"
        "  %0: float64[2, 3, 4, 5] = mul(dy, stash0)\n"
        "  %1: float64[3] = sum(%0, axis=(0, 2, 3))\n"
        "  return %1\n"
        "}"
    )
    x_hat = next(node for node in pair.forward.nodes if node.op == "div")
    assert forward.outputs == (*pair.forward.outputs, x_hat)


def test_without_inlining_index_maps_hide_x_hat() -> None:
    pair = published.gamma_gradient_of_cse_rfc()
    _, backward, ledger = G.cse(pair.forward, pair.backward, inline=False)
    assert [each.node.op for each in ledger.stashed] == ["mean", "variance"]
    assert G.count_ops(backward)["flip"] == 4


def test_batch_norm_recomputes_nothing_without_a_budget() -> None:
    ledger = check_same(published.batch_norm_of_cse_rfc(), None)
    assert [each.node.op for each in ledger.stashed] == ["sub", "sqrt", "div"]
    assert (ledger.flops_recomputed, ledger.flops_before, ledger.exact) == (0, 1215, True)


@pytest.mark.parametrize(
    ("budget", "kept", "flops"),
    [
        (0, [], 1215),
        (23, [], 1215),
        (24, ["sqrt"], 720),
        (48, ["mean", "sqrt"], 600),
        (960, ["mean", "sqrt"], 600),
        (984, ["sqrt", "div"], 240),
        (1008, ["mean", "sqrt", "div"], 120),
        (1943, ["mean", "sqrt", "div"], 120),
        (1944, ["sub", "sqrt", "div"], 0),
    ],
)
def test_the_best_choice_under_a_budget(budget: int, kept: list[str], flops: int) -> None:
    ledger = check_same(published.batch_norm_of_cse_rfc(), budget)
    assert [each.node.op for each in ledger.stashed] == kept
    assert (ledger.flops_recomputed, ledger.exact) == (flops, True)
    assert sum(each.recomputed for each in ledger) == flops


def test_a_budget_of_nothing_gives_the_same_objects() -> None:
    pair = published.tanh_of_cse_rfc()
    forward, backward, ledger = G.cse(pair.forward, pair.backward, 0)
    assert forward is pair.forward
    assert backward is pair.backward
    assert len(ledger) == 1
    assert not ledger[0].stashed
    assert ledger[0].recomputed == 320


def test_nothing_in_common_gives_the_same_objects() -> None:
    x, dy = G.var("x", (4,)), G.var("dy", (4,))
    pair = published.TwoPasses(G.Graph([x], [G.exp(x)], "f"), G.Graph([x, dy], [dy * x], "b"))
    forward, backward, ledger = G.cse(pair.forward, pair.backward)
    assert (forward, backward, len(ledger)) == (pair.forward, pair.backward, 0)


def test_movements_alone_are_not_kept() -> None:
    x, dy = G.var("x", (4, 3)), G.var("dy", (3, 4))
    y = G.transpose(x)
    forward, _, ledger = G.cse(G.Graph([x], [y * 2.0]), G.Graph([x, dy], [dy * y]))
    assert (len(ledger), len(forward.outputs)) == (0, 1)


def test_state_that_the_forward_assigns_is_not_common() -> None:
    x, v = G.var("x", (4,), "float64"), G.Variable(np.ones(4), "v")
    before = G.exp(v)
    moved = G.Graph([x], [before + x, G.assign(v, v * 2.0)], "moved")
    kept = G.Graph([x], [before + x], "kept")
    backward = G.Graph([x], [before * x], "backward")
    assert len(G.cse(moved, backward)[2].stashed) == 0
    assert len(G.cse(G.FuseOps()(moved), backward)[2].stashed) == 0
    assert len(G.cse(kept, backward)[2].stashed) == 1


def test_fused_graphs_have_values_in_common() -> None:
    pair = published.batch_norm_of_cse_rfc()
    fused = published.TwoPasses(G.FuseOps()(pair.forward), G.FuseOps()(pair.backward))
    ledger = check_same(fused, None)
    assert ledger.stashed


def test_names_of_placeholders_are_free() -> None:
    x, dy = G.var("x", (4,)), G.var("stash0", (4,))
    y = G.tanh(x)
    _, backward, _ = G.cse(G.Graph([x], [y]), G.Graph([x, dy], [y * dy]))
    assert [each.name for each in backward.inputs] == ["x", "stash0", "stash1"]


def test_the_residual_network_recomputes_nothing_of_its_forward() -> None:
    graph = published.residual_network(blocks=6)
    pair = published.TwoPasses(
        G.Graph(graph.inputs, graph.outputs[:1], "forward"),
        G.Graph(graph.inputs, graph.outputs[1:], "backward"),
    )
    whole = check_same(pair, None)
    assert whole.flops_recomputed == 0
    half = check_same(pair, whole.bytes_stashed // 2)
    gap = half.flops_recomputed - half.least_flops
    assert gap <= 0.02 * half.flops_before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((published.tanh_of_cse_rfc().forward, 3), "cse(…): it was given an int; pass G.Graphs"),
        (
            (published.tanh_of_cse_rfc().forward, published.tanh_of_cse_rfc().backward, -1),
            "cse(tanh, tanh_backward): stash_bytes is -1; give bytes >= 0, or None",
        ),
        (
            (published.tanh_of_cse_rfc().forward, published.tanh_of_cse_rfc().backward, 1.5),
            "cse(tanh, tanh_backward): stash_bytes is 1.5; give bytes >= 0, or None",
        ),
        (
            (published.tanh_of_cse_rfc((2,)).forward, published.tanh_of_cse_rfc((3,)).backward),
            "cse(tanh, tanh_backward): the input x is float64[2] of one and float64[3] of the "
            "other; inputs of one name are one tensor",
        ),
    ],
)
def test_wrong_arguments_are_named(arguments: tuple, message: str) -> None:
    with pytest.raises(G.GraphError) as caught:
        G.cse(*arguments)
    assert str(caught.value) == message


# Properties


@hypothesis.given(samples(max_ops=15, differentiable=True), st.integers(0, 3000))
@hypothesis.settings(max_examples=60, deadline=None)
def test_gradients_are_the_same_with_and_without(sample: Sample, budget: int) -> None:
    graph = sample.graph
    wanted = [x for x in graph.inputs if x.dtype.is_float]
    y = graph.outputs[0]
    hypothesis.assume(not y.is_tuple and y.dtype.is_float)
    dy = G.var("dy", y.shape, y.dtype)
    gradients = G.gradient(y, wanted, dy)
    pair = published.TwoPasses(
        G.Graph(graph.inputs, [y], "forward"),
        G.Graph([*graph.inputs, dy], gradients, "backward"),
    )
    free = check_same(pair, None, sample.seed)
    assert free.flops_recomputed == 0
    assert check_same(pair, budget, sample.seed).flops_recomputed <= free.flops_before


def problem(seed: int, count: int) -> Problem:
    random = Random(seed)
    operands = [sorted(random.sample(range(i), min(i, random.randint(0, 2)))) for i in range(count)]
    return Problem(
        operands,
        [random.choice([0, 1, 5, 20, 50]) for _ in range(count)],
        [random.choice([1, 4, 10, 30]) for _ in range(count)],
        [random.random() < 0.8 for _ in range(count)],
        frozenset(random.sample(range(count), random.randint(1, min(4, count)))),
    )


def best_of_all(each: Problem, budget: int) -> int:
    places = [i for i in range(len(each.flops)) if each.keepable[i]]
    subsets = (kept for size in range(len(places) + 1) for kept in combinations(places, size))
    found = (evaluate(each, kept) for kept in subsets)
    return min(choice.flops for choice in found if choice.bytes <= budget)


@pytest.mark.parametrize("seed", range(40))
def test_small_problems_are_solved_exactly(seed: int) -> None:
    each = problem(seed, 9)
    for budget in (0, 7, 15, 31, 60):
        found = choose(each, budget)
        assert found.bytes <= budget
        assert found.flops == best_of_all(each, budget)
        assert found.exact
    assert choose(each, None).flops == best_of_all(each, 10**9)


@pytest.mark.parametrize("seed", range(10))
def test_large_problems_stay_in_the_budget_and_near_the_bound(seed: int) -> None:
    each = problem(seed, 400)
    most = choose(each, None).bytes
    for budget in (most // 4, most // 2, max(most - 1, 0)):
        found = choose(each, budget)
        again = evaluate(each, found.kept)
        assert (again.bytes, again.flops) == (found.bytes, found.flops)
        assert found.bytes <= budget
        assert found.least <= found.flops <= found.least + 50


def test_a_minimum_cut_that_needs_flow_sent_back() -> None:
    edges = [(0, 1, 1), (0, 2, 1), (1, 2, 1), (1, 3, 1), (2, 4, 1), (3, 5, 1), (4, 5, 1), (2, 3, 1)]
    value, side = minimum_cut(6, edges, 0, 5)
    assert value == 2
    assert side == {0}


@pytest.mark.parametrize("seed", range(20))
def test_minimum_cuts_agree_with_all_cuts(seed: int) -> None:
    random = Random(seed)
    count = 7
    edges = [
        (a, b, random.randint(0, 5))
        for a in range(count)
        for b in range(count)
        if a != b and random.random() < 0.5
    ]

    def capacity(side: set[int]) -> int:
        return sum(c for a, b, c in edges if a in side and b not in side)

    inner = range(1, count - 1)
    sides = [{0, *kept} for size in range(count) for kept in combinations(inner, size)]
    least = min(map(capacity, sides))
    value, side = minimum_cut(count, edges, 0, count - 1)
    assert (value, capacity(side)) == (least, least)
    assert side == set.intersection(*[each for each in sides if capacity(each) == least])


@st.composite
def problems(draw):
    """Random values on values before them, as the choice of values to keep takes them."""
    count = draw(st.integers(1, 24))
    operands = [
        sorted(draw(st.sets(st.integers(0, i - 1), max_size=3))) if i else [] for i in range(count)
    ]
    numbers = st.lists(st.integers(0, 9), min_size=count, max_size=count)
    keepable = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    required = draw(st.sets(st.integers(0, count - 1), min_size=1))
    flops, sizes = draw(numbers), [size + 1 for size in draw(numbers)]
    return Problem(operands, flops, sizes, keepable, frozenset(required))


@hypothesis.settings(deadline=None, max_examples=200)
@hypothesis.given(problems())
def test_what_a_value_takes_is_what_computing_it_alone_takes(problem):
    alone = [
        evaluate(replace(problem, required=frozenset([value])), ()).flops
        for value in range(len(problem.flops))
    ]
    assert closed_flops(problem) == alone


@hypothesis.settings(deadline=None, max_examples=200)
@hypothesis.given(problems(), st.integers(0, 60), st.data())
def test_filling_a_budget_is_trying_value_after_value(problem, budget, data):
    keepable = [i for i, can in enumerate(problem.keepable) if can]
    kept = data.draw(st.sets(st.sampled_from(keepable))) if keepable else set()
    first = evaluate(problem, kept)
    saved = _savings(problem, first)
    for value in first.computed:
        assert saved[value] == first.flops - evaluate(problem, first.kept | {value}).flops
    best = first
    open_ = [v for v in sorted(first.computed) if problem.keepable[v]]
    small = [v for v in open_ if problem.bytes[v] + first.bytes <= budget]
    for value in sorted(small, key=lambda v: saved[v] / problem.bytes[v], reverse=True):
        trial = evaluate(problem, best.kept | {value})
        if trial.bytes <= budget and (trial.flops, trial.bytes) < (best.flops, best.bytes):
            best = trial
    assert _filled(problem, first, (), budget) == best


@pytest.mark.parametrize("shared", [0, 3])
def test_a_long_chain_takes_time_in_proportion(shared: int) -> None:
    """Steps are counted, not seconds: values that a walk visits again are the quadratic part."""
    count = 4000
    head = list(range(shared))  # read by all, such as a mask
    operands = [[*head, i - 1] if i > shared else [] for i in range(count)]
    ones = [1] * count
    problem = Problem(operands, ones, ones, [True] * count, frozenset([count - 1]))
    calls = 0

    def counted(frame, event, argument):
        nonlocal calls
        calls += event == "c_call"

    sys.setprofile(counted)
    try:
        total = closed_flops(problem)
    finally:
        sys.setprofile(None)
    assert total[shared + 1 :] == list(range(shared + 2, count + 1))
    assert calls < 60 * count


def test_wide_problems_are_walked_too() -> None:
    """More values are open at one time than are remembered."""
    operands: list[list[int]] = [[] for _ in range(40)]
    operands += [[i, (7 * i + 3) % 40] for i in range(40)]
    operands += [list(range(40, 80)), [80, 5], [81, 45]]
    count = len(operands)
    problem = Problem(operands, range(count), [1] * count, [True] * count, frozenset([count - 1]))
    assert closed_flops(problem) == [
        evaluate(replace(problem, required=frozenset([value])), ()).flops for value in range(count)
    ]
