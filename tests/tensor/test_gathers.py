"""take and gather against NumPy: math, kernels, declared ranges, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import loopnest as ln
from helpers.math_run import assert_equal, define, run

RNG = np.random.default_rng(0)
PT = ln.ParallelType


def floats(*shape: int) -> np.ndarray:
    return RNG.integers(-8, 9, shape).astype(np.float32)


def indices(high: int, *shape: int, low: int = 0, dtype: Any = np.int32) -> np.ndarray:
    return RNG.integers(low, high, shape).astype(dtype)


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (0,), (1, 2)])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_take(shape: tuple[int, ...], axis: int) -> None:
    x = floats(3, 5, 2)
    i = indices(x.shape[axis], *shape, dtype=np.int64)
    assert_equal(run(lambda x, i: ln.take(x, i, axis), x, i), np.take(x, i, axis))


@pytest.mark.parametrize("mode", ["clip", "wrap"])
def test_take_of_indices_that_lie_outside(mode: str) -> None:
    x, i = floats(5, 2), indices(12, 4, 3, low=-9)
    expected = np.take(x, i, 0, mode=mode)  # type: ignore[call-overload]
    assert_equal(run(lambda x, i: ln.take(x, i, 0, mode=mode), x, i), expected)


@pytest.mark.parametrize(("axis", "shape"), [(0, (7, 4)), (1, (3, 6)), (1, (2, 6)), (0, (5, 2))])
def test_gather(axis: int, shape: tuple[int, ...]) -> None:
    x = floats(3, 4)
    i = indices(x.shape[axis], *shape)
    part = x[: shape[0]] if axis == 1 else x[:, : shape[1]]
    expected = np.take_along_axis(part, i.astype(np.int64), axis)
    assert_equal(run(lambda x, i: ln.gather(x, i, axis), x, i), expected)


def test_a_large_gather_is_evaluated_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopnest.numerics.oracle_blocks.BLOCK", 8)
    x, i = floats(9, 4), indices(9, 11)
    f = define(lambda x, i: ln.sum(ln.take(x * 2 + 1, i + 0, 0) * 3, 1), x, i)
    assert_equal(ln.evaluate(f, x, i), ((x * 2 + 1)[i] * 3).sum(1))
    assert_equal(ln.error_bound(f, x, i), np.zeros(11))


def test_an_index_that_rounding_may_change_bounds_nothing() -> None:
    x, z = floats(4), np.array([0.0, 1.0], np.float32)
    f = define(lambda x, z: ln.take(x, ln.cast(ln.floor(ln.exp(z)), ln.int32), 0), x, z)
    assert list(np.isinf(ln.error_bound(f, x, z))) == [True, False]


def _inline(f: ln.Fusion, y: ln.TensorView) -> None:
    f.inline_most()


def _threads(f: ln.Fusion, y: ln.TensorView) -> None:
    y.split(0, 4)
    y.parallelize({0: PT.grid_x, 1: PT.block_x})
    f.inline_most()


def _tile(f: ln.Fusion, y: ln.TensorView) -> None:
    tile = f["x"].cache_after()
    tile.memory = ln.SHARED
    tile.parallelize({0: PT.block_x})
    y.split(0, 4)
    y.parallelize({1: PT.block_x})
    for tensor in f.tensors:
        if tensor not in (tile, y) and not tensor.is_input:
            tensor.compute_at(y, -1)


def _vector(f: ln.Fusion, y: ln.TensorView) -> None:
    y.split(1, 4)
    f.inline_most()
    copy = next(t for t in f.tensors if t.definition and t.definition.op == "take")
    copy.compute_at(y, 2)
    for tensor in (copy, y):
        tensor.parallelize({2: PT.vectorize})


@pytest.mark.parametrize("schedule", [_inline, _threads, _tile, _vector])
@pytest.mark.parametrize("target", ["interpret", "c"])
def test_kernels(schedule: Any, target: str) -> None:
    with ln.Fusion("rows") as f:
        x, i = f.input("x", ("V", "D"), ln.float32), f.input("i", ("K",), ln.int64)
        f.assume_range(i, 0, "V")
        y = f.output(ln.take(x, i, 0) * 2, "y")
    schedule(f, y)
    kernel = ln.lower(f)
    assert ln.verify(kernel).all_sizes
    function = ln.compile(kernel, target=target)
    for v, d, k in ((5, 8, 7), (1, 3, 1), (3, 4, 0)):
        a, b = floats(v, d), indices(v, k, dtype=np.int64)
        assert_equal(function(a, b), a[b] * 2)


def test_the_vector_is_one_access() -> None:
    with ln.Fusion("rows") as f:
        x, i = f.input("x", ("V", 8), ln.float32), f.input("i", ("K",), ln.int32)
        y = f.output(ln.take(x, i, 0) * 2, "y")
    _vector(f, y)
    assert "ln_wide<4>(&x[(idx_t)i[i0] * 8 + i1 * 4])" in ln.lower(f).cuda()


def test_indices_of_64_bits_leave_32_bit_offsets() -> None:
    with ln.Fusion("rows") as f:
        x, i = f.input("x", ("V",), ln.float32), f.input("i", ("K",), ln.int64)
        f.output(ln.take(x, i, 0), "y")
    plan = ln.lower(f)._planner.plan
    assert plan({"V": 9, "K": 4}, "rows").index_bits == 32
    assert plan({"V": 1 << 31, "K": 4}, "rows").index_bits == 64


# What data break


def declared(*shape: int | str) -> ln.Fusion:
    with ln.Fusion("rows") as f:
        x, i = f.input("x", ("V",), ln.float32), f.input("i", shape, ln.int32)
        f.assume_range(i, 0, "V")
        f.output(ln.take(x, i, 0), "y")
    return f


@pytest.mark.parametrize("index", [-1, 3])
def test_data_outside_of_their_range(index: int) -> None:
    f = declared("K", 2)
    given = floats(3), np.array([[0, 1], [2, index]], np.int32)
    said = (
        f"i[1, 1] is {index}, but it was declared that 0 <= i < V, here 0 <= i < 3; pass elements "
        "in 0..2"
    )
    for target in ("interpret", "c"):
        with pytest.raises(ln.LaunchError) as caught:
            ln.compile(ln.lower(f), target=target)(*given)
        assert str(caught.value) == f"rows(...): {said}"
    for call in (ln.evaluate, ln.error_bound):
        with pytest.raises(ln.LaunchError) as caught:
            call(f, *given)
        assert str(caught.value) == f"{call.__name__}(rows): {said}"


def test_indices_outside_that_nobody_declared() -> None:
    with ln.Fusion("rows") as f:
        x, i = f.input("x", ("V",), ln.float32), f.input("i", ("K",), ln.int32)
        f.output(ln.take(x, i, 0), "y")
    given = floats(3), np.array([0, -1], np.int32)
    with pytest.raises(ln.KernelFault, match=r"reads x\[-1\]: index -1 is out of bounds"):
        ln.compile(ln.lower(f), target="interpret")(*given)
    with pytest.raises(ln.LaunchError) as caught:
        ln.evaluate(f, *given)
    assert str(caught.value) == (
        "evaluate(rows): y (take) reads x at index -1 along axis 0, which has extent 3; pass "
        "indices that lie inside"
    )


TYPES = "indices are integers; convert them by ln.cast"

CASES = [
    ("ln.take(x, x, 0)", "take(x, x, 0): x is float32; " + TYPES),
    ("ln.take(x, u > 3, 0)", "take(x, T5, 0): T5 is bool; " + TYPES),
    ("ln.take(x, i, 2)", "take(x, i, 2): axis 2 is out of range; x has 2 axes, so use -2..1"),
    ("ln.take(x, 3, 0)", "take(x, 3, 0): the indices are 3; use a TensorView"),
    ("ln.take(3, i, 0)", "take(3, i, 0): operand 1 is of type int; use a TensorView"),
    ('ln.take(x, i, 0, mode="q")',
     "take(x, i, 0, mode='q'): there is no mode 'q'; use \"raise\", \"clip\", \"wrap\""),
    ("ln.take(e, i, 0, mode='clip')",
     "take(e, i, 0, mode='clip'): axis 0 of e is empty; it has no nearest index"),
    ("ln.gather(x, i, 0)",
     "gather(x, i, 0): x is float32[V, 3], i is int32[K]; both have one rank"),
    ("ln.gather(x, j, 0)",
     "gather(x, j, 0): along axis 1 j has 4, x 3; the indices are no larger there"),
    ("f.assume_range(x, 0, 1)", "rows.assume_range(x, 0, 1): x is float32; use an integer type"),
    ("f.assume_range(i + 1, 0, 1)",
     "rows.assume_range(T5, 0, 1): T5 is no input of this fusion; declare ranges of inputs; what "
     "is computed can be clamped by ln.clamp"),
    ("f.assume_range(i, 3, 3)",
     "rows.assume_range(i, 3, 3): no number is in 3..3; low is below high"),
    ('f.assume_range(i, 0, "Q")',
     "rows.assume_range(i, 0, 'Q'): 'Q' is no size of rows; the sizes are V, K"),
    ("f.assume_range(i, 0, 1.5)",
     "rows.assume_range(i, 0, 1.5): 1.5 is no extent; use an int >= 0 or the name of a size symbol "
     "(an identifier)"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "said"), CASES)
def test_what_is_refused(code: str, said: str) -> None:
    with ln.Fusion("rows") as f:
        names = {
            "ln": ln, "f": f,
            "x": f.input("x", ("V", 3), ln.float32), "i": f.input("i", ("K",), ln.int32),
            "j": f.input("j", ("V", 4), ln.int32), "u": f.input("u", ("K",), ln.uint8),
            "e": f.input("e", (0, 3), ln.float32),
        }  # fmt: skip
        before = f.facts.conditions, f.ranges
        with pytest.raises(ln.DefinitionError) as caught:
            eval(code, names)
    assert str(caught.value) == said
    assert (f.facts.conditions, f.ranges) == before
