"""Choices and tests in C: what they load, and loops that stay loops because of them."""

import numpy as np
import pytest

import loopnest as ln


def masked(rows, columns):
    with ln.Fusion("masked") as f:
        x = f.input("x", (rows, columns), ln.float32)
        y = f.input("y", (rows, columns), ln.float32)
        f.output(ln.where(x <= 0.0, 0.0, y), "z")
    return f


@pytest.mark.parametrize("columns", [3, 5, 6, 7])
def test_few_columns_of_a_loop_that_is_vectorized(columns):
    """gcc 12 makes wrong masked loads of this many conditional ones."""
    f = masked(40, columns)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 40, columns)).astype(np.float32)
    found = ln.compile(ln.lower(f), target="c")(x, y)
    np.testing.assert_array_equal(found, np.where(x <= 0, 0, y))


def test_a_choice_by_data_is_a_call():
    text = ln.lower(masked(4, 5)).c()
    assert "= ln_select_float32(T2[i2 * 5 + i3], 0.0f, y[i2 * 5 + i3]);" in text


def test_a_load_that_a_condition_of_indices_guards_stays_conditional():
    with ln.Fusion("padded") as f:
        x = f.input("x", ("N",), ln.float32)
        f.output(ln.pad(x, ((1, 1),)), "y")
    assert "ln_select_float32(" not in ln.lower(f).c().split("#endif")[-1]


def transposed_tile():
    """Four rows of four, read along columns by the first threads of a block of 128."""
    with ln.Fusion("tile") as f:
        x = f.input("x", (4, 4), ln.float32)
        u = f.output(f.input("w", ("N",), ln.float32) * 2.0, "u")
        y = f.output(ln.permute(x, (1, 0)), "y")
    y.merge(0)
    for tensor in (u, y):
        tensor.split(0, 128)
        tensor.parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.block_x})
    return f


def test_a_gather_under_a_test_of_numbers_is_in_a_loop_that_stays_one():
    """gcc 12 makes a mask that is a constant, once a loop is unrolled, of ones: none is loaded."""
    f = transposed_tile()
    text = ln.lower(f).c()
    assert text.split("#endif")[-1].count("#pragma GCC unroll 1\n") == 1
    x, w = np.arange(16, dtype=np.float32).reshape(4, 4), np.ones(200, np.float32)
    u, y = ln.compile(f, target="c")(x, w)
    np.testing.assert_array_equal(y, x.T)
    np.testing.assert_array_equal(u, 2 * w)


def test_neighbours_and_tests_of_sizes_are_left_to_the_compiler():
    with ln.Fusion("rows") as f:
        x = f.input("x", (3, 100), ln.float32)
        w = f.input("w", ("N", 4), ln.float32)
        y = f.output(x + 1.0, "y")
        z = f.output(ln.permute(w, (1, 0)), "z")
    for tensor in (y, z):
        tensor.split(1, 64)
    z.parallelize({0: ln.ParallelType.grid_x, 2: ln.ParallelType.block_x})
    assert "#pragma GCC unroll 1\n" not in ln.lower(f).c().split("#endif")[-1]
