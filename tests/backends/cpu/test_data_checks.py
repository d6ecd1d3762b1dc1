"""Each launch of "c" looks at the data that are indices, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import loopnest as ln
import loopnest.graph as G

I32 = np.int32
X = np.arange(12, dtype=np.float32).reshape(6, 2)
Made = Callable[[ln.Fusion, ln.TensorView, ln.TensorView], ln.TensorView]


def rows(
    made: Made, dtype: ln.DType = ln.int32, declared: tuple[int | str, int | str] | None = None
) -> ln.Fusion:
    """Return a fusion of x [N, D] and indices i [K]."""
    with ln.Fusion("rows") as f:
        x, i = f.input("x", ("N", "D"), ln.float32), f.input("i", ("K",), dtype)
        if declared is not None:
            f.assume_range(i, *declared)
        f.output(made(f, x, i), "y")
    return f


def by_row(f: ln.Fusion, x: ln.TensorView, i: ln.TensorView) -> ln.TensorView:
    return ln.take(x, i, 0)


def refused(fn: Any, *arrays: Any, **keywords: Any) -> str:
    with pytest.raises(ln.LaunchError) as caught:
        fn(*arrays, **keywords)
    return str(caught.value)


@pytest.mark.parametrize("dtype", [ln.int32, ln.int64])
@pytest.mark.parametrize("count", [1, 3, 100, 70_001])
def test_an_index_outside_is_named_wherever_it_stands(dtype: ln.DType, count: int) -> None:
    fn = ln.compile(rows(by_row, dtype), target="c")
    limits = np.iinfo(dtype.numpy)
    good = np.arange(count, dtype=dtype.numpy) % 6
    np.testing.assert_array_equal(fn(X, good), X[good])
    for place in {0, count // 2, count - 1}:
        for value in (-1, 6, int(limits.max), int(limits.min)):
            bad = good.copy()
            bad[place] = value
            out = np.full((count, 2), 7, np.float32)
            assert refused(fn, X, bad, out=out) == (
                f"rows(...): i[{place}] is {value}, where y reads axis 0 of x, which has 6 "
                "elements; pass elements in 0..5"
            )
            assert (out == 7).all()


def test_where_there_are_no_indices_nothing_is_outside() -> None:
    fn = ln.compile(rows(by_row), target="c")
    assert fn(X, np.zeros(0, I32)).shape == (0, 2)
    assert fn(np.zeros((0, 2), np.float32), np.zeros(0, I32)).shape == (0, 2)
    message = refused(fn, np.zeros((0, 2), np.float32), np.zeros(1, I32))
    assert message == (
        "rows(...): i[0] is 0, where y reads axis 0 of x, which has 0 elements; no element is "
        "allowed"
    )


def test_check_indices_leaves_it_out() -> None:
    f = rows(by_row)
    plain = ln.compile(f, target="c", check_indices=False)
    padded = np.concatenate([X, X + 100])
    np.testing.assert_array_equal(plain(padded[:6], np.array([7, 0], I32)), padded[[7, 0]])
    for target in ("interpret", "auto"):
        assert ln.compile(f, target=target, check_indices=False)(X, np.array([1], I32)).size
    with pytest.raises(ln.CompileError) as caught:
        ln.compile(f, target="c", check_indices=1)
    assert str(caught.value) == (
        "compile(rows, target='c', check_indices=1): check_indices = 1; pass True or False"
    )


def test_a_declared_range_is_always_looked_at() -> None:
    for checks in (True, False):
        fn = ln.compile(rows(by_row, declared=(0, "N")), target="c", check_indices=checks)
        out = np.full((2, 2), 7, np.float32)
        assert refused(fn, X, np.array([5, 6], I32), out=out) == (
            "rows(...): i[1] is 6, but it was declared that 0 <= i < N, here 0 <= i < 6; "
            "pass elements in 0..5"
        )
        assert (out == 7).all()


def test_a_declared_range_that_is_too_wide_does_not_replace_the_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LOOPNEST_VERIFY")  # it is refuted
    fn = ln.compile(rows(by_row, declared=(0, 10)), target="c")
    np.testing.assert_array_equal(fn(X, np.array([5], I32)), X[[5]])
    assert refused(fn, X, np.array([9], I32)).startswith("rows(...): i[0] is 9, where y reads")
    assert refused(fn, X, np.array([10], I32)).startswith("rows(...): i[0] is 10, but it was")


COMPUTED: dict[str, tuple[Made, list[int], int, str]] = {
    "a sum": (lambda f, x, i: ln.take(x, (i + 1).named("j"), 0), [4, 5], 1, "j[1] is 6"),
    "of data": (lambda f, x, i: ln.take(x, ln.take(i, i, 0), 0), [1, 5], 1, "i[1] is 5"),
    "a fold": (
        lambda f, x, i: ln.take(x, ln.cumsum(i, axis=0).named("j"), 0), [3, 2, 1], 2, "j[2] is 6"
    ),
    "a whole fold": (
        lambda f, x, i: ln.take(x, ln.sum(i, axis=0, keepdims=True).named("j"), 0), [5, 1], 0,
        "j[0] is 6",
    ),
    "with a condition": (
        lambda f, x, i: ln.take(x, ln.where(i > 3, i * 2, i).named("j"), 0), [3, 4], 1, "j[1] is 8"
    ),
    "pointwise behind it": (
        lambda f, x, i: ln.exp(ln.take(x * 2.0, (i - 1).named("j"), 0)), [1, 0], 1, "j[1] is -1"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.parametrize("placed", ["alone", "inline", "workspace"])
def test_indices_that_the_kernel_computes(name: str, placed: str) -> None:
    made, bad, place, told = COMPUTED[name]
    f = rows(made)
    if placed == "inline":
        f.inline_most()
    elif placed == "workspace":
        for tensor in f.tensors:
            if tensor.definition is not None and tensor not in f.outputs:
                tensor.memory = ln.GLOBAL
    fn = ln.compile(f, target="c")
    good = np.array(bad, I32) * 0 + (1 if "behind" in name else 0)
    np.testing.assert_allclose(fn(X, good), ln.evaluate(f, X, good), rtol=1e-6)
    message = refused(fn, X, np.array(bad, I32))
    assert message.startswith(f"rows(...): {told}, where ")
    assert place in range(len(bad))


def test_indices_from_another_launch() -> None:
    f = rows(lambda f, x, i: ln.take(x, (i * 2).named("j"), 0))
    f["j"].memory = ln.GLOBAL
    f["y"].new_launch()
    fn = ln.compile(f, target="c")
    np.testing.assert_array_equal(fn(X, np.array([2, 0], I32)), X[[4, 0]])
    assert refused(fn, X, np.array([2, 3], I32)) == (
        "rows(...): j[1] is 6, where y reads axis 0 of x, which has 6 elements; pass what keeps j "
        "in 0..5, or clamp it"
    )


def test_scalars_and_sizes_reach_the_indices() -> None:
    with ln.Fusion("k") as f:
        x, i = f.input("x", ("N",), ln.float32), f.input("i", (2, "K"), ln.int64)
        a = f.scalar("a", ln.int64)
        f.output(ln.take(x, i * a + f.extent("M"), 0), "y")
    fn = ln.compile(f, target="c")
    x, i = np.arange(9, dtype=np.float32), np.array([[0, 1, 2], [2, 1, 0]])
    np.testing.assert_array_equal(fn(x, i, a=3, M=2), x[i * 3 + 2])
    assert refused(fn, x, i, a=4, M=2).startswith("k(...): T")
    assert "[0, 2] is 10, where y reads axis 0 of x, which has 9 elements" in refused(
        fn, x, i, a=4, M=2
    )


@pytest.mark.parametrize("op", ["gather", "gather of columns"])
def test_gathers(op: str) -> None:
    axis = 0 if op == "gather" else 1
    with ln.Fusion("k") as f:
        x, i = f.input("x", ("N", "M"), ln.float32), f.input("i", ("N", "M"), ln.int64)
        f.output(ln.gather(x, i, axis), "y")
    fn = ln.compile(f, target="c")
    i = np.zeros((6, 2), np.int64)
    i[4, 1] = (1, 5)[axis == 0]
    np.testing.assert_array_equal(fn(X, i), np.take_along_axis(X, i, axis))
    i[4, 1] = (2, 6)[axis == 0]
    extent = X.shape[axis]
    assert refused(fn, X, i) == (
        f"k(...): i[4, 1] is {extent}, where y reads axis {axis} of x, which has {extent} "
        f"elements; pass elements in 0..{extent - 1}"
    )


def test_what_needs_no_check_has_none() -> None:
    for made in (
        lambda f, x, i: ln.take(x, i, 0, mode="clip"),
        lambda f, x, i: ln.take(x, i, 0, mode="wrap"),
        lambda f, x, i: ln.index_add(x, 1, i, ln.take(x, i, 1, mode="clip")),
    ):
        with ln.Fusion("k") as f:
            x, i = f.input("x", ("N", "D"), ln.float32), f.input("i", ("K",), ln.int32)
            f.assume("N >= 1")
            f.assume("D >= 1")
            f.output(made(f, x, i), "y")
        program = ln.lower(f)._lowered.program
        assert program.index_checks == ()
        outside = np.array([-5, 100, 1], I32)
        found = ln.compile(f, target="c")(X, outside)
        np.testing.assert_array_equal(found, ln.evaluate(f, X, outside))


def test_clamped_to_an_axis_that_may_be_empty() -> None:
    """The bounds hold but where the axis is empty, which only such launches look at."""
    with ln.Fusion("k") as f:
        x, i = f.input("x", ("N",), ln.float32), f.input("i", ("K",), ln.int32)
        f.output(ln.take(x, ln.clamp(i, 0, x.shape[0] - 1).named("j"), 0), "y")
    (check,) = ln.lower(f)._lowered.program.index_checks
    assert not check.always
    fn = ln.compile(f, target="c")
    x = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(fn(x, np.array([9, -9], I32)), x[[2, 0]])
    assert refused(fn, x[:0], np.array([9], I32)).startswith("k(...): j[0] is ")


def test_strided_indices() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N",), ln.float32)
        i = f.input("i", ("K", "L"), ln.int32, strides=("S", "T"))
        f.output(ln.take(x, i, 0), "y")
    fn = ln.compile(f, target="c")
    x = np.arange(5, dtype=np.float32)
    whole = np.full((8, 6), 99, I32)
    part = whole[::2, 1::2]
    part[...] = np.arange(12).reshape(4, 3) % 5
    np.testing.assert_array_equal(fn(x, part), x[part])
    part[2, 1] = -3
    assert refused(fn, x, part) == (
        "k(...): i[2, 1] is -3, where y reads axis 0 of x, which has 5 elements; pass elements in "
        "0..4"
    )


def test_vectors_and_the_scalar_variant() -> None:
    f = rows(by_row)
    f["y"].split(1, 4)
    f["y"].parallelize({2: ln.ParallelType.vectorize})
    fn = ln.compile(f, target="c")
    for width in (8, 7):
        x = np.arange(6 * width, dtype=np.float32).reshape(6, width)
        np.testing.assert_array_equal(fn(x, np.array([5, 1], I32)), x[[5, 1]])
        assert "i[1] is 6, where" in refused(fn, x, np.array([5, 6], I32))


def test_copies_of_a_kernel_keep_the_checks() -> None:
    kernel = ln.lower(rows(lambda f, x, i: ln.take(x, (i + 1).named("j"), 0)))
    read = ln.Kernel.parse(kernel.text(full=True))
    assert read.c() == kernel.c()
    assert read.text(full=True) == kernel.text(full=True)
    for fn in (ln.compile(read, target="c"), *ln.compile_many([kernel, read])):
        assert "j[0] is 6, where" in refused(fn, X, np.array([5], I32))


def test_graphs_look_at_their_indices() -> None:
    x, i = G.var("x", (6, 2), "float32"), G.var("i", (3,), "int32")
    fn = G.compile(G.Graph([x, i], [G.exp(G.take(x * 2.0, i, 0))]), target="c")
    good = np.array([0, 5, 2], I32)
    np.testing.assert_allclose(fn(X, good), np.exp(X[good] * 2), rtol=1e-6)
    assert "is 6, but it was declared that 0 <= " in refused(fn, X, np.array([0, 6, 2], I32))


@pytest.mark.parametrize("placed", ["a scan in segments", "a fold in parts", "copies"])
def test_indices_whose_schedule_made_tensors_of_its_own(placed: str) -> None:
    folds = placed == "a fold in parts"
    f = rows(
        lambda f, x, i: ln.take(
            x,
            ln.sum(ln.broadcast(i, (False, True)) + i * 0, axis=1).named("j")
            if folds
            else ln.cumsum(i, axis=0).named("j"),
            0,
        )
    )
    j = f["j"]
    if placed == "copies":
        f["i"].cache_after()
        j.cache_after()
    else:
        j.split(int(folds), 4)
        j.rfactor([1 + folds])
    fn = ln.compile(f, target="c")
    i = np.zeros(7, I32)
    np.testing.assert_array_equal(fn(X, i), ln.evaluate(f, X, i))
    i[2] = 6
    assert f" is {42 if folds else 6}, where " in refused(fn, X, i)
