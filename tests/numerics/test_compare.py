"""Comparing: results with enclosures, references with what they may be, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import loopnest as ln
from kernels.gemm import gemm
from kernels.softmax import softmax, softmax_numpy
from loopnest.devtools.harness import Arguments, expected, judge, make_arguments, oracle
from loopnest.devtools.kernel_def import KernelDef
from loopnest.numerics.compare import Verdict, compare
from loopnest.numerics.intervals import Interval, exact, is_wild

Array = np.ndarray[Any, Any]


def enclosure(value: Any, reach: Any = 0.0) -> Interval:
    wide = np.asarray(value, np.float64)
    with np.errstate(invalid="ignore"):
        low, high = wide - reach, wide + reach
    return Interval(wide, low, high, is_wild(low, high))


# Elements


def test_what_is_said() -> None:
    good = compare("y", np.float32([1, 2.25, np.nan]), enclosure([1, 2, np.nan], 0.5))
    assert good == Verdict("y", 0.25, 0.5, (1,), 0, 3)
    assert str(good) == "y: largest error 0.25 at [1], where rounding allows 0.5"
    same = compare("y", np.float32([1, 2]), enclosure([1, 2]))
    assert str(same) == "y: largest error 0, where rounding allows 0"
    bad = compare("y", np.float32([[1, 3], [2, 9]]), enclosure([[1, 2], [2, 3]], 0.125))
    assert not bad.ok
    assert str(bad) == (
        "y: largest error 6 at [1, 1], where rounding allows 0.125; 2 of 4 elements differ"
    )
    assert str(compare("y", np.zeros(2), enclosure(np.zeros(3)))) == (
        "y: its shape is (2,), not (3,)"
    )
    assert compare("y", np.zeros(0), enclosure(np.zeros(0))).ok


def test_a_small_error_counts_where_nothing_is_allowed() -> None:
    """Not the largest error is shown, but the largest of those that are wrong."""
    found = compare("y", np.float64([1.5, 2 + 1e-9]), enclosure([1, 2], [1.0, 0.0]))
    assert (found.ok, found.place, found.wrong) == (False, (1,), 1)


@pytest.mark.parametrize(
    ("got", "want"),
    [(1.0, np.nan), (np.nan, 1.0), (np.inf, 1.0), (np.inf, -np.inf), (np.nan, np.inf)],
)
def test_what_is_not_finite_must_match(got: float, want: float) -> None:
    found = compare("y", np.float32([got]), enclosure([want]))
    assert (found.ok, found.error) == (False, np.inf)
    assert compare("y", np.float32([want]), enclosure([want])).ok


def test_an_element_that_may_be_anything() -> None:
    free = Interval(np.array([0.5, 1]), np.array([-np.inf, 1]), np.array([np.inf, 1]), True)
    for value in (np.nan, np.inf, -7.0):
        found = compare("y", np.array([value, 1]), free)
        assert found.ok
        assert found.place == (1,)  # it says nothing, the other does


def test_integers_and_bools() -> None:
    near = Interval(np.array([3, 5]), np.array([3, 4]), np.array([3, 5]))
    assert compare("y", np.array([3, 4], np.int32), near).ok
    assert compare("y", np.array([2, 5], np.int32), near).place == (0,)
    truth = exact(np.array([True, False]))
    assert compare("y", np.array([True, False]), truth).ok
    assert compare("y", np.array([True, True]), truth).wrong == 1


# Kernels and references


def tried(kernel: KernelDef, **sizes: int) -> tuple[ln.Fusion, Arguments, Any]:
    fusion = kernel.fusion()
    arguments = make_arguments(fusion, sizes or {"N": 64, "D": 100}, kernel.ranges)
    function = ln.compile(fusion, target="interpret")
    return fusion, arguments, function(*arguments.fresh(), **arguments.keywords(fusion))


def single(x: Array) -> Array:
    """Return the softmax of float64 in float32."""
    return softmax_numpy(x.astype(np.float32))


def other_formula(x: Array) -> Array:
    e = np.exp(x)
    return (e.T / e.sum(axis=1)).T


def wrong_sign(x: Array) -> Array:
    return softmax_numpy(-x)


def slightly_off(x: Array) -> Array:
    return softmax_numpy(x) * 1.0001


@pytest.mark.parametrize(
    ("reference", "right"),
    [(softmax_numpy, True), (single, True), (other_formula, True), (wrong_sign, False),
     (slightly_off, False)],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [ln.float32, ln.float16, ln.float64])
def test_references(reference: Callable[..., Array], right: bool, dtype: Any) -> None:
    """Any formula that is as stable, in any type that is as precise; but it must be the same math.

    In float32 for a float64 kernel is not precise enough.
    """
    if reference is single and dtype is ln.float64:
        right = False

    @ln.kernel(reference=reference)
    def softmax_of(f: ln.Fusion) -> None:
        x = f.input("x", ("N", "D"), dtype)
        e = ln.exp(x - ln.max(x, 1, keepdims=True))
        f.output(e / ln.sum(e, 1, keepdims=True), "y")

    fusion, arguments, actual = tried(softmax_of)
    wanted = expected(softmax_of, fusion, arguments, {})
    assert wanted is not None
    assert len(wanted.arrays) == 1
    (verdict,) = judge(fusion, arguments.sizes, actual, wanted)
    if dtype is ln.float16 and reference is slightly_off:
        return  # below the last digit of most results
    assert verdict.ok is right, str(verdict)
    by_oracle = oracle(fusion, arguments)
    assert by_oracle is not None
    assert judge(fusion, arguments.sizes, actual, by_oracle)[0].ok


def test_results_that_agree_with_a_wrong_reference_are_wrong() -> None:
    """The reference is held against the math too."""

    @ln.kernel(reference=lambda x: x * 3)
    def twice(f: ln.Fusion) -> None:
        f.output(f.input("x", ("N",), ln.float32) * 2.0, "y")

    fusion, arguments, actual = tried(twice, N=10)
    wanted = expected(twice, fusion, arguments, {})
    assert wanted is not None
    assert not judge(fusion, arguments.sizes, actual, wanted)[0].ok
    assert not judge(fusion, arguments.sizes, actual * 1.5, wanted)[0].ok


def test_a_reference_of_another_shape() -> None:
    @ln.kernel(reference=lambda x: x[1:])
    def same(f: ln.Fusion) -> None:
        f.output(f.input("x", ("N",), ln.float32) + 0.5, "y")

    fusion, arguments, actual = tried(same, N=10)
    wanted = expected(same, fusion, arguments, {})
    assert wanted is not None
    (verdict,) = judge(fusion, arguments.sizes, actual, wanted)
    assert str(verdict) == "y: the reference has the shape (9,), not (10,)"
    (verdict,) = judge(fusion, arguments.sizes, actual[1:], wanted)
    assert str(verdict) == "y: its shape is (9,), not (10,)"


def test_integers_by_a_reference_in_floats() -> None:
    @ln.kernel(reference=lambda x: np.floor(x))
    def floors(f: ln.Fusion) -> None:
        f.output(ln.cast(ln.floor(f.input("x", ("N",), ln.float32)), ln.int32), "y")

    fusion, arguments, actual = tried(floors, N=100)
    wanted = expected(floors, fusion, arguments, {})
    assert wanted is not None
    assert judge(fusion, arguments.sizes, actual, wanted)[0].ok
    (verdict,) = judge(fusion, arguments.sizes, actual + 1, wanted)
    assert (verdict.wrong, verdict.error) == (100, 1)


# Large problems


def test_a_large_problem_is_compared_in_part() -> None:
    fusion, arguments, actual = tried(gemm, M=64, N=48, K=8)
    for wanted in (
        oracle(fusion, arguments, most=5000),
        expected(gemm, fusion, arguments, {}, most=5000),
    ):
        assert wanted is not None
        (verdict,) = judge(fusion, arguments.sizes, actual, wanted)
        assert verdict.ok
        assert 0 < verdict.size < 64 * 48 == verdict.whole
        assert str(verdict).endswith(f"; compared {verdict.size} of 3072 elements")
        broken = actual.copy()
        broken[-1, -1] += 0.01
        (verdict,) = judge(fusion, arguments.sizes, broken, wanted)
        assert (verdict.wrong, verdict.place) == (1, (63, 47))


def test_too_much_is_reduced_to_each_result() -> None:
    fusion, arguments, _ = tried(gemm, M=4, N=4, K=100)
    assert oracle(fusion, arguments, most=500) is None
    assert expected(gemm, fusion, arguments, {}, most=500) is None


def test_no_reference() -> None:
    @ln.kernel()
    def plain(f: ln.Fusion) -> None:
        f.output(f.input("x", ("N",), ln.float32) + 1.0, "y")

    fusion, arguments, _ = tried(plain, N=4)
    assert expected(plain, fusion, arguments, {}) is None


def test_softmax_of_the_interpreter() -> None:
    fusion, arguments, actual = tried(softmax)
    wanted = expected(softmax, fusion, arguments, {})
    assert wanted is not None
    (verdict,) = judge(fusion, arguments.sizes, actual, wanted)
    assert verdict.ok
    assert verdict.size == 6400


def test_a_reference_does_not_round_constants_to_float32() -> None:
    @ln.kernel(reference=lambda x: 0.9 * x + 0.1)
    def mixed(f: ln.Fusion) -> None:
        f.output(0.9 * f.input("x", ("N",), ln.float32) + 0.1, "y")

    fusion, arguments, actual = tried(mixed, N=1000)
    wanted = expected(mixed, fusion, arguments, {})
    assert wanted is not None
    assert judge(fusion, arguments.sizes, actual, wanted)[0].ok


def test_a_reference_knows_integers_and_masks() -> None:
    @ln.kernel(reference=lambda x, i: (np.where(x > 0.5, i & 6, -1), (i * 3) % 5 + (x < 0.25)))
    def masks(f: ln.Fusion) -> None:
        x, i = f.input("x", ("N",), ln.float32), f.input("i", ("N",), ln.int32)
        f.output(ln.where(x > 0.5, i & 6, -1), "y")
        f.output((i * 3) % 5 + ln.cast(x < 0.25, ln.int32), "z")

    fusion, arguments, actual = tried(masks, N=200)
    wanted = expected(masks, fusion, arguments, {})
    assert wanted is not None
    assert all(verdict.ok for verdict in judge(fusion, arguments.sizes, actual, wanted))
    off = (actual[0], actual[1] + 1)
    assert [v.wrong for v in judge(fusion, arguments.sizes, off, wanted)] == [0, 200]
