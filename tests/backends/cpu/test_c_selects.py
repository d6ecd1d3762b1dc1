"""Choices by data in C: what they load, they load whatever is chosen."""

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
