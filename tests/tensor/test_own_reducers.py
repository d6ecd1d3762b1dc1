"""Reducers of one's own: what is refused, what they fold to, and in which order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import loopnest as ln
from helpers.math_run import define, run
from loopnest.tensor.ops import reducers

INF = float("inf")


def affine(a: Any, b: Any) -> Any:
    """Compose x -> a0 x + a1 and, after it, x -> b0 x + b1: it does not commute."""
    return a[0] * b[0], a[1] * b[0] + b[1]


def log_sum_exp(a: Any, b: Any) -> Any:
    most = ln.maximum(a[0], b[0])
    return most, a[1] * ln.exp(a[0] - most) + b[1] * ln.exp(b[0] - most)


def mean_and_spread(a: Any, b: Any) -> Any:
    count, delta = a[2] + b[2], b[0] - a[0]
    share = b[2] / ln.maximum(count, 1.0)
    return a[0] + delta * share, a[1] + b[1] + delta * delta * a[2] * share, count


def two_largest(a: Any, b: Any) -> Any:
    """(largest, its index, second, its index): the first of equals comes first."""
    swapped = b[0] > a[0]
    first = [ln.where(swapped, y, x) for x, y in zip(a[:2], b[:2], strict=True)]
    loser = [ln.where(swapped, x, y) for x, y in zip(a[:2], b[:2], strict=True)]
    rest = [ln.where(swapped, y, x) for x, y in zip(a[2:], b[2:], strict=True)]
    below = ln.where(swapped, loser[0] >= rest[0], loser[0] > rest[0])
    second = [ln.where(below, x, y) for x, y in zip(loser, rest, strict=True)]
    return (*first, *second)


AFFINE = ln.Reducer((1.0, 0.0), affine, "affine")
LOG_SUM_EXP = ln.Reducer((-INF, 0.0), log_sum_exp, "log_sum_exp")

# What is refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (None, affine, "none"),
            "Reducer('none'): the identity is None; give a tuple of numbers, one a component",
        ),
        (
            ((), affine, "empty"),
            "Reducer('empty'): the identity is (); give a tuple of numbers, one a component",
        ),
        (
            ((0.0,), affine, ""),
            "Reducer(''): the name is no text; as in 'log_sum_exp'",
        ),
        (
            ((0.0,), "add", "text"),
            "Reducer('text'): combine is of type str; use a function of two partial results",
        ),
        (
            ((0.0,), lambda a, b: 1 // 0, "broken"),
            "Reducer('broken'): combine raises ZeroDivisionError: integer division or modulo by "
            "zero",
        ),
        (
            ((0.0,), lambda a, b: (a[0] if a[0] > b[0] else b[0],), "branch"),
            "Reducer('branch'): combine raises $0 > $1: a scalar has no truth value before the "
            "launch; use ln.where(cond, a, b)",
        ),
        (
            ((0.0, 0.0), lambda a, b: (a[0] + b[0],), "short"),
            "Reducer('short'): combine returns ($0 + $2,); it returns a tuple as long as the "
            "identity: 2",
        ),
        (
            ((0.0,), lambda a, b: ("sum",), "words"),
            "Reducer('words'): component 0 of what combine returns is 'sum'; compute it from the "
            "partial results and numbers",
        ),
        (
            ((0,), lambda a, b: (ln.cast(a[0] + b[0], ln.float64),), "wide"),
            "Reducer('wide'): component 0 of what combine returns is float64, that of its operands "
            "int64; use ln.cast",
        ),
        (
            ((0.0,), lambda a, b: (a[0] - b[0],), "minus"),
            "Reducer('minus'): for components of float32, combine is not associative: (a b) c and "
            "a (b c) differ",
        ),
        (
            ((0.0,), lambda a, b: (ln.maximum(a[0], b[0]),), "largest"),
            "Reducer('largest'): for components of float32, the identity is not neutral: combined "
            "with a it does not give a",
        ),
        (
            ((0.0, 0.0), lambda a, b: (ln.maximum(a[0], b[0]), a[1] + b[1]), "pair"),
            "Reducer('pair'): for components of float32, float32, component 0 fails by itself: the "
            "identity is not neutral: combined with a it does not give a",
        ),
        (
            ((1.0, 0.0), lambda a, b: (a[0] * b[0], a[1] * b[0] - b[1]), "signed"),
            "Reducer('signed'): for components of float32, float32, combine is not associative: "
            "(a b) c and a (b c) differ",
        ),
        (
            ((0.0,), lambda a, b: (0.0,), "nothing"),
            "Reducer('nothing'): for components of float32, random partial results combine to what "
            "is always the same",
        ),
    ],
    ids=lambda value: value[2] if isinstance(value, tuple) else "",
)
def test_refused_reducers(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ln.DefinitionError) as caught:
        ln.Reducer(*arguments)
    assert str(caught.value) == message


def test_commutative_is_tried() -> None:
    with pytest.raises(ln.DefinitionError) as caught:
        ln.Reducer((1.0, 0.0), affine, "affine", commutative=True)
    assert str(caught.value) == (
        "Reducer('affine'): for components of float32, float32, combine does not commute, as "
        "commutative=True says: a b and b a differ"
    )
    with pytest.raises(ln.DefinitionError, match="commutative=1 is no bool"):
        ln.Reducer((1.0, 0.0), affine, "affine", commutative=1)  # type: ignore[arg-type]


def test_refused_values() -> None:
    with ln.Fusion("f") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        z = f.input("z", ("M",), ln.float32)
        before = f.tensors
        for call, message in (
            (
                lambda: ln.reduce("sum", x, 1),  # type: ignore[call-overload]
                "reduce('sum', x): operand 1 is of type str; use a loopnest.Reducer",
            ),
            (
                lambda: ln.reduce(AFFINE, x, 1),
                "reduce('affine', x): 1 value is given, the partial results of affine have 2 "
                "components; give a value a component",
            ),
            (
                lambda: ln.reduce(AFFINE, (1.0, 2.0), 1),
                "reduce(1.0, 2.0): no operand belongs to a fusion; at least one must be "
                "a TensorView or a scalar of a fusion",
            ),
            (
                lambda: ln.reduce(AFFINE, (x, z), 1),
                "reduce(x, z): at axis -1 the extent of x is D, that of z is M; extents "
                "at one axis are equal (the same int or the same name), or one is a static 1",
            ),
            (
                lambda: ln.reduce(AFFINE, (x, x), 2),
                "reduce(x, axis=2): axis 2 is out of range; x has 2 axes, so use -2..1",
            ),
            (
                lambda: ln.reduce(AFFINE, (x, x), 1, keepdims=1),  # type: ignore[call-overload]
                "reduce(x, keepdims=1): keepdims=1 is no bool; use keepdims=True or keepdims=False",
            ),
        ):
            with pytest.raises(ln.DefinitionError) as caught:
                call()
            assert str(caught.value) == message
        assert f.tensors == before


def test_types_that_a_reducer_does_not_fit() -> None:
    """The trial at its making had floats; integers overflow to what is no longer associative."""
    halves = ln.Reducer((0.0,), lambda a, b: (a[0] + b[0],), "halves")
    with ln.Fusion("f") as f:
        x = f.input("x", ("N",), ln.int32)
        assert ln.reduce(halves, x).dtype is ln.float32  # an int32 and a float meet there
    bits = ln.Reducer((0,), lambda a, b: (a[0] | b[0],), "bits")
    with ln.Fusion("f") as f:
        x = f.input("x", ("N",), ln.float32)
        with pytest.raises(ln.DefinitionError) as caught:
            ln.reduce(bits, x)
    assert str(caught.value) == (
        "Reducer('bits'): combine raises bitor($0, $1): the operands meet in float32; bitwise "
        "operations take integers or bool"
    )


# What they fold to


def composed(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.ones(x.shape[:-1]), np.zeros(x.shape[:-1])
    for n in range(x.shape[-1]):
        a, b = a * x[..., n], b * x[..., n] + y[..., n]
    return a, b


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 64, 1001])
def test_order_is_kept(size: int) -> None:
    rng = np.random.default_rng(size)
    x, y = rng.normal(size=(2, 3, size))
    found = run(lambda a, b: ln.reduce(AFFINE, (a, b), 1), x, y)
    for one, other in zip(found, composed(x, y), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def test_several_axes_are_in_c_order() -> None:
    x = np.random.default_rng(0).normal(size=(3, 4, 5))
    for axis in (None, (0, 2), (2, 1), (0, 1)):
        found = run(lambda t, axis=axis: ln.reduce(AFFINE, (t, 0.5), axis), x)
        folded = range(3) if axis is None else sorted(axis)
        kept = [n for n in range(3) if n not in folded]
        flat = x.transpose(*kept, *folded).reshape(*[x.shape[n] for n in kept], -1)
        np.testing.assert_allclose(found[1], composed(flat, np.full(flat.shape, 0.5))[1], 1e-9)


def test_values_broadcast_and_keepdims() -> None:
    x, y = np.random.default_rng(0).normal(size=(3, 4)), np.linspace(0.0, 1.0, 4)
    a, b = run(lambda t, u: ln.reduce(AFFINE, (t, u), 1, keepdims=True), x, y)
    assert a.shape == b.shape == (3, 1)
    np.testing.assert_allclose(b[:, 0], composed(x, np.broadcast_to(y, x.shape))[1], 1e-12)
    rows = run(lambda t: ln.reduce(AFFINE, (t, t), 0), np.ones((1, 3)))  # one row is a copy
    np.testing.assert_array_equal(rows[1], np.ones(3))


def test_results_are_as_the_values() -> None:
    total = ln.Reducer(0, lambda a, b: (a[0] + b[0],), "total")
    with ln.Fusion("f") as f:
        x = f.input("x", ("N", "D"), ln.float16)
        assert ln.reduce(total, x, 1).dtype is ln.float16
        (alone,) = ln.reduce(total, (x,), 1)
        assert alone.shape == (x.sizes[0],)
        m, s = ln.reduce(LOG_SUM_EXP, (x, 1.0), axis=1)
        assert (m.dtype, s.dtype) == (ln.float16, ln.float32)
        assert m.definition is s.definition
        n = f.input("n", ("N", "D"), ln.int64)
        assert ln.reduce(total, n, 0).dtype is ln.int64


def test_log_sum_exp() -> None:
    x = np.random.default_rng(0).normal(size=(4, 33)) * 30
    x[1] = -INF
    x[2, 5] = -INF
    m, s = run(lambda t: ln.reduce(LOG_SUM_EXP, (t, 1.0), axis=1), x)
    rows = x[[0, 2, 3]]
    wanted = np.log(np.sum(np.exp(rows - rows.max(1)[:, None]), 1)) + rows.max(1)
    np.testing.assert_allclose((m + np.log(s))[[0, 2, 3]], wanted, 1e-12)
    empty = run(lambda t: ln.reduce(LOG_SUM_EXP, (t, 1.0), axis=1), x[:, :0])
    np.testing.assert_array_equal(empty, [np.full(4, -INF), np.zeros(4)])


def test_mean_and_spread() -> None:
    """A count is not negative: partial results of any sign would not be associative."""
    reducer = ln.Reducer((0.0, 0.0, 0.0), mean_and_spread, "mean_and_spread")
    x = np.random.default_rng(0).normal(size=(4, 33)) + 5
    mean, spread, count = run(lambda t: ln.reduce(reducer, (t, 0.0, 1.0), axis=1), x)
    np.testing.assert_allclose(mean, x.mean(1), 1e-12)
    np.testing.assert_allclose(spread / count, x.var(1), 1e-12)


def test_two_largest() -> None:
    """The partial results of top-k are sorted: those drawn at random would not be associative."""
    reducer = ln.Reducer((-INF, 0, -INF, 0), two_largest, "two_largest")
    x = np.random.default_rng(0).integers(0, 9, size=(50, 20)).astype(np.float32)

    def largest(t: ln.TensorView) -> Any:
        place = ln.broadcast(ln.iota(20), (True, False))
        return ln.reduce(reducer, (t, place, -INF, 0), axis=1)

    a, i, b, j = run(largest, x)
    order = np.argsort(-x, axis=1, kind="stable")
    np.testing.assert_array_equal(np.stack([i, j], 1), order[:, :2])
    np.testing.assert_array_equal(np.stack([a, b], 1), np.take_along_axis(x, order[:, :2], 1))


# What definitions hold


def reducer_in(math: Callable[..., Any]) -> Any:
    f = define(math, np.zeros((2, 3), np.float32))
    found = [t.definition for t in f.tensors if t.definition is not None]
    return next(d.reducer for d in found if d.reducer is not None)


def test_what_treats_both_sides_alike_commutes() -> None:
    assert reducer_in(lambda t: ln.reduce(AFFINE, (t, t), 1)).ordered
    assert not reducer_in(lambda t: ln.reduce(LOG_SUM_EXP, (t, 1.0), 1)).ordered
    farther = ln.Reducer(
        (0.0,), lambda a, b: (ln.where(ln.abs(b[0]) > ln.abs(a[0]), b[0], a[0]),), "farther"
    )
    assert reducer_in(lambda t: ln.reduce(farther, t, 1)).ordered  # the first of equals
    union = ln.Reducer((0,), lambda a, b: (b[0] | a[0],), "union")
    x = np.array([[1, 2], [4, 4]])
    np.testing.assert_array_equal(run(lambda t: ln.reduce(union, t, 1), x), [3, 4])


def test_a_reducer_of_this_package_is_itself() -> None:
    total = ln.Reducer((0.0,), lambda a, b: (a[0] + b[0],), "sum")
    assert reducer_in(lambda t: ln.reduce(total, t, 1)) is reducers.SUM.of(ln.float32)


def test_names_are_free() -> None:
    """A name of this package, and one that is no identifier: nests have another one."""
    first = ln.Reducer(
        (-INF, 0),
        lambda a, b: (ln.where(b[0] > a[0], b[0], a[0]), ln.where(b[0] > a[0], b[1], a[1])),
        "argmax",
    )
    place = ln.Reducer((0.0,), lambda a, b: (a[0] + 2 * b[0] - b[0],), "1st-order sum")
    x = np.array([[1.0, 3.0, 3.0, 2.0], [5.0, 0.0, 5.0, 5.0]], np.float32)

    def math(t: ln.TensorView) -> tuple[ln.TensorView, ...]:
        index = ln.broadcast(ln.iota(4), (True, False))
        return ln.reduce(first, (t, index), 1)[1], ln.reduce(place, t, 1)

    f = define(math, x)
    assert "argmax(" in f.print_math()
    found = ln.compile(f, target="interpret")(x)
    np.testing.assert_array_equal(found[0], [1, 0])
    np.testing.assert_array_equal(found[1], x.sum(1))
    names = {t.definition.reducer.name for t in f.tensors if t.definition and t.definition.reducer}
    assert names == {"own_argmax", "_1st_order_sum"}


def test_an_identity_that_is_nan_with_itself_is_tested_for() -> None:
    """exp(-inf - -inf) is NaN: threads without elements fold two identities."""
    templates = LOG_SUM_EXP.of(ln.float32, ln.float32)
    assert str(templates.combination[0]) == (
        "where($2 == -inf and $3 == 0.0, $0, where($0 == -inf and $1 == 0.0, $2, max($0, $2)))"
    )
    made = reducer_in(lambda t: ln.reduce(LOG_SUM_EXP, (t, 1.0), 1))  # an element is no identity
    assert made.literals[1] is not None
    assert str(made.special[0]) == "where($0 == -inf and $1 == 0.0, $2, max($0, $2))"
    assert str(ln.Reducer((1.0, 0.0), affine, "plain").of(ln.float32, ln.float32).combination[0]) \
        == "$0 * $2"  # fmt: skip


def test_it_is_traced_once_a_choice_of_types() -> None:
    calls: list[int] = []

    def combine(a: Any, b: Any) -> Any:
        calls.append(1)
        return (a[0] + b[0],)

    reducer = ln.Reducer((0.0,), combine, "counted")
    assert reducer.of(ln.float64) is reducer.of(ln.float64)
    assert len(calls) == 2
    assert repr(reducer) == "Reducer('counted')"
