"""Gradients where a function has a kink, a pole, a tie or no value: what comes out, and why."""

import numpy as np
import pytest

import loopnest.graph as G

NAN, INF = float("nan"), float("inf")


def slopes(build, *arrays, dy=None, dtype="float64"):
    """Return the gradient of the sum of what `build` makes, with respect to each array."""
    values = [np.asarray(array, dtype) for array in arrays]
    inputs = [G.var(f"x{i}", value.shape, dtype) for i, value in enumerate(values)]
    y = build(*inputs)
    seed = None if dy is None else G.const(np.asarray(dy, dtype))
    graph = G.Graph(inputs, G.gradient(y, inputs, seed))
    return G.evaluate(graph, {x.name: v for x, v in zip(inputs, values, strict=True)})


def check(found, *expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, np.asarray(other, one.dtype))


@pytest.mark.parametrize("op", [G.max, G.min])
def test_the_nan_of_a_reduction_keeps_its_gradient(op):
    check(slopes(lambda x: op(x, 1), [[1, NAN, 3], [NAN, 2, NAN]]), [[0, 1, 0], [0.5, 0, 0.5]])
    (found,) = slopes(lambda x: op(x, 0) * op(x, 0), [1, NAN, 3])
    check([found], [0, NAN, 0])


def test_ties_of_a_reduction_are_shared():
    check(slopes(lambda x: G.max(x, 0), [2, 2, 1, 2]), [1 / 3, 1 / 3, 0, 1 / 3])
    check(slopes(lambda x: G.max(x, 0), [INF, 1, INF]), [0.5, 0, 0.5])
    check(slopes(lambda x: G.min(x, 0), [-INF, 1, -INF]), [0.5, 0, 0.5])
    assert slopes(lambda x: G.max(x, 0), np.zeros((0,)))[0].shape == (0,)


def test_ties_are_counted_exactly_in_16_bits():
    (found,) = slopes(lambda x: G.max(x, 0), np.ones(70000), dy=2.0**14, dtype="float16")
    np.testing.assert_array_equal(found, np.full(70000, 2.0**14 / 70000, np.float16))


@pytest.mark.parametrize("op", [G.maximum, G.minimum])
def test_the_nan_of_two_operands_keeps_its_gradient(op):
    check(slopes(op, [NAN, 1, NAN, 1], [2, NAN, NAN, 1]), [1, 0, 1, 1], [0, 1, 0, 0])


def test_a_clamp_is_a_maximum_and_a_minimum():
    x, lo, hi = [NAN, -5, 5, 0, 1, 0, 0], [-1, -1, -1, NAN, 1, 0, 2], [1, 1, 1, 1, NAN, 0, 1]
    check(
        slopes(G.clamp, x, lo, hi),
        [1, 0, 0, 0, 0, 1, 0],
        [0, 1, 0, 1, 0, 0, 0],
        [0, 0, 1, 0, 1, 0, 1],
    )


def test_kinks_pass_a_nan_on():
    check(slopes(G.relu, [NAN, -1, 0, 2]), [1, 0, 0, 1])
    check(slopes(G.abs, [NAN, -1, 0, 2]), [1, -1, 0, 1])
    for op in (G.relu, G.abs):
        check(slopes(lambda x, op=op: op(x) * op(x), [NAN, 2]), [NAN, 4])


def test_powers_at_zero():
    a = [0.0, 0.0, 0.0, 0.0, 0.0]
    b = [0.0, 0.5, 1.0, 2.0, -1.0]
    check(slopes(G.pow, a, b), [0, INF, 1, 0, -INF], [0, 0, 0, 0, -INF])
    for exponent, slope in ((0, 0), (0.5, INF), (1, 1), (2, 0), (3, 0)):
        check(slopes(lambda x, e=exponent: G.pow(x, e), [0.0]), [slope])


def test_powers_of_what_is_no_positive_number():
    (da, db) = slopes(G.pow, [NAN, INF, -2, -2, INF, NAN], [2, 2, 2, 0, 0, 0])
    check([da, db], [NAN, INF, -4, 0, 0, 0], [NAN, INF, NAN, NAN, INF, NAN])


def test_roots_logarithms_and_quotients_at_zero():
    check(slopes(G.sqrt, [0.0, INF, -1]), [INF, 0, NAN])
    check(slopes(G.rsqrt, [0.0, INF]), [-INF, 0])
    check(slopes(G.log, [0.0, INF]), [INF, 0])
    check(slopes(G.reciprocal, [0.0, INF]), [-INF, 0])
    check(slopes(G.div, [1.0, 0.0, 1.0], [0.0, 2.0, INF]), [INF, 0.5, 0], [-INF, 0, 0])


def test_the_side_that_is_not_taken_has_no_gradient():
    x = [1.0, 2.0]
    check(slopes(lambda a: G.where(G.const([True, False]), a, NAN), x), [1, 0])
    check(slopes(lambda a: G.where(G.gt(a, 5), a / 0.0, a), x), [NAN, NAN])  # 0 * inf: as in torch


def test_a_pool_of_nan_and_of_minus_infinity():
    image = np.array([[1, NAN], [3, 4]]).reshape(1, 1, 2, 2)
    check(slopes(lambda x: G.max_pool2d(x, 2), image), np.array([[[[0, 1], [0, 0]]]]))
    lowest = np.full((1, 1, 2, 2), -INF)
    (found,) = slopes(lambda x: G.max_pool2d(x, 3, 1, 1), lowest)
    check([found], [[[[4, 0], [0, 0]]]])


def test_a_class_of_probability_zero_costs_nothing():
    labels = G.const(np.array([0, 2]))
    (found,) = slopes(lambda x: G.cross_entropy(x, labels), [[0, -INF, 0], [-INF, -INF, 1]])
    check([found], [[-0.25, 0, 0.25], [0, 0, 0]])
