"""`dtype=` of reductions and of matmul: what elements, sums and results are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import loopnest as ln
from helpers.math_run import define
from loopnest.devtools.fuzzing.judge import TARGETS, check, expect
from loopnest.scalar.dtypes import DType, listed

Array = np.ndarray[Any, Any]
FOLDS = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "mean": np.mean}
TYPES = (ln.int32, ln.int64, ln.float16, ln.bfloat16, ln.float32, ln.float64)


def sample(dtype: DType, *shape: int) -> Array:
    return np.random.default_rng(0).integers(-3, 4, shape).astype(dtype.numpy)


@pytest.mark.parametrize("name", [*FOLDS, "var"])
@pytest.mark.parametrize("chosen", TYPES, ids=str)
@pytest.mark.parametrize("dtype", [ln.bool, ln.int32, ln.float16, ln.float64], ids=str)
def test_sums_and_results_are_of_that_type(name: str, chosen: DType, dtype: DType) -> None:
    if name in ("mean", "var") and not chosen.is_float:
        pytest.skip("its results are floats")
    x = sample(dtype, 5, 4)
    f = define(lambda t: getattr(ln, name)(t, axis=1, dtype=chosen), x)
    found = ln.evaluate(f, x)
    assert found.dtype == chosen.numpy
    wide = np.float64 if chosen.is_float else chosen.numpy
    with np.errstate(all="ignore"):
        expected = {**FOLDS, "var": np.var}[name](x.astype(wide), axis=1).astype(chosen.numpy)
    if name == "var":
        np.testing.assert_allclose(found.astype(float), expected.astype(float), rtol=8e-3)
    else:
        assert found.tolist() == expected.tolist()


def test_a_16_bit_sum_in_float32() -> None:
    ones = np.ones((1, 4100), np.float16)
    f = define(lambda t: (ln.sum(t, 1), ln.sum(t, 1, dtype=ln.float32)), ones, symbolic=("N", "D"))
    narrow, wide = ln.evaluate(f, ones)
    assert (narrow.dtype, wide.dtype) == (np.float16, np.float32)
    assert (narrow[0], wide[0]) == (4100, 4100)
    big = np.full((1, 4), 59968, np.float16)
    narrow, wide = ln.evaluate(f, big)
    assert (narrow[0], wide[0]) == (np.inf, 239872)


def test_elements_are_not_rounded_to_a_16_bit_type() -> None:
    """They are added in float32, and the sum is rounded once."""
    x = np.full((1, 2048), 1 + 2.0**-11, np.float32)
    f = define(lambda t: ln.sum(t, 1, dtype=ln.float16), x)
    assert ln.evaluate(f, x)[0] == np.float16(2049)


def test_products_of_matrices() -> None:
    a, b = np.full((2, 300), 16, np.float16), np.full((300, 3), 16, np.float16)
    f = define(lambda s, t: (ln.matmul(s, t), ln.matmul(s, t, dtype=ln.float32)), a, b)
    narrow, wide = ln.evaluate(f, a, b)
    assert (narrow.dtype, wide.dtype) == (np.float16, np.float32)
    assert np.isinf(narrow).all()
    assert (wide == 76800).all()
    c, d = np.full((1, 2), 1 << 20, np.int32), np.full((2, 1), 1 << 20, np.int32)
    f = define(lambda s, t: (ln.matmul(s, t), ln.matmul(s, t, dtype=ln.int64)), c, d)
    wrapped, whole = ln.evaluate(f, c, d)
    assert (wrapped[0, 0], whole[0, 0]) == (0, 1 << 41)
    e = np.full((1, 1), 0.1, np.float32)
    f = define(lambda s, t: ln.matmul(s, t, dtype=ln.float64), e, e)
    assert ln.evaluate(f, e, e)[0, 0] == np.float64(np.float32(0.1)) ** 2


def test_the_docstring_of_matmul_says_what_is_rounded() -> None:
    assert "rounded once, to the operands' type: ``dtype=ln.float32`` keeps it" in " ".join(
        str(ln.matmul.__doc__).split()
    )


@pytest.mark.parametrize("kept", [ln.float16, ln.float32, ln.float64], ids=str)
@pytest.mark.parametrize("name", ["sum", "mean", "var", "matmul"])
def test_on_every_target_and_proved(name: str, kept: DType) -> None:
    with ln.Fusion() as f:
        x = f.input("x", ("N", 7), ln.float16)
        if name == "matmul":
            t = ln.matmul(x, f.input("w", (7, 3), ln.float16), dtype=kept)
        else:
            t = getattr(ln, name)(x, axis=1, dtype=kept)
        f.output(t, "y")
    expected = [expect(f, {"N": n}, 2) for n in (0, 1, 9)]
    folds = [t for t in f.tensors if t.definition is not None and t.definition.reducer is not None]
    y = next(t for t in reversed(folds) if t.dtype.is_float)
    y.split(-1, 4)
    part = y.rfactor([-1])
    assert part.dtype is kept.compute
    y.axis(0).parallelize(ln.ParallelType.grid_x)
    y.axis(-1).parallelize(ln.ParallelType.block_x)
    ln.parallelize_like(y)
    assert check(f, expected, TARGETS) == ""
    kernel = ln.lower(f)
    assert ln.verify(kernel).ok
    assert "y" in kernel.cuda()


def test_printed_as_written() -> None:
    with ln.Fusion("half") as f:
        x = f.input("x", ("N", "D"), ln.float16)
        f.output(ln.sum(x, axis=1, dtype=ln.float32), "y")
        f.output(ln.matmul(x, ln.permute(x, (1, 0)), dtype=ln.float32), "z")
    text = f.print_math()
    assert "y: float32[N] = sum(x, axis=1, dtype=float32)" in str(text)
    assert "z: float32[N, N] = sum(T5, axis=2, dtype=float32)" in str(text)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: ln.sum(x, axis=1, dtype=ln.bool),
            "sum(x, axis=1, dtype=bool): bool is no type to add or multiply in; "
            "use an integer or a float type; ln.any and ln.all reduce to bool",
        ),
        (
            lambda x: ln.mean(x, dtype=ln.int32),
            "mean(x, axis=None, dtype=int32): int32 is no float type; use ln.float32, say",
        ),
        (
            lambda x: ln.welford(x, 0, dtype=ln.bool),
            "welford(x, axis=0, dtype=bool): bool is no float type; use ln.float32, say",
        ),
        (
            lambda x: ln.matmul(x, x, dtype=ln.bool),
            "matmul(x, x, dtype=bool): bool is no type to add or multiply in; "
            "use an integer or a float type",
        ),
        (
            lambda x: ln.sum(x, dtype="float32"),
            f"sum(x, axis=None, dtype=float32): 'float32' is no element type; use {listed()}",
        ),
        (
            lambda x: ln.prod(x, axis=7, dtype=ln.float32),
            "prod(x, axis=7, dtype=float32): axis 7 is out of range; x has 2 axes, so use -2..1",
        ),
    ],
)
def test_other_types_are_sentences(call: Any, message: str) -> None:
    with ln.Fusion() as f:
        x = f.input("x", ("N", "N"), ln.float16)
        with pytest.raises(ln.DefinitionError) as caught:
            call(x)
    assert str(caught.value) == message
    assert f.tensors == (x,)
