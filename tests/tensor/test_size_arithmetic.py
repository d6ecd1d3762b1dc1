"""Sizes in arithmetic: extents of tensors, texts, what is equal, what each launch checks."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import loopnest as ln
from loopnest.scalar.arguments import size_value
from loopnest.scalar.expr import integer

F = ln.float32


@pytest.fixture
def sizes():
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), F)
        yield f, x, *x.shape


WRITTEN = [
    (lambda n, d: n * 2, "N * 2"),
    (lambda n, d: 2 * n, "N * 2"),
    (lambda n, d: n + d - 3, "N + D - 3"),
    (lambda n, d: 3 - n, "N * -1 + 3"),
    (lambda n, d: -n, "N * -1"),
    (lambda n, d: n // 4, "N // 4"),
    (lambda n, d: n % 4, "N % 4"),
    (lambda n, d: 7 // n, "7 // N"),
    (lambda n, d: 7 % n, "7 % N"),
    (lambda n, d: -(-n // 4), "ceildiv(N, 4)"),
    (lambda n, d: (n + 1) * (d - 1), "N * D - N + D - 1"),
    (lambda n, d: np.int64(3) * n, "N * 3"),
]


@pytest.mark.parametrize(("written", "text"), WRITTEN)
def test_operators_give_canonical_sizes(sizes, written, text):
    assert str(written(*sizes[2:])) == text


def test_without_symbols_the_result_is_an_int(sizes):
    n = sizes[2]
    assert (n - n, n // n, n - n + 4) == (0, 1, 4)


def test_no_arithmetic_with_other_types(sizes):
    n = sizes[2]
    for other in (1.5, True, "N", None):
        with pytest.raises(TypeError):
            n + other
    with pytest.raises(ln.DefinitionError, match=r"N // 0: sizes are divided by what is 1 or more"):
        n // 0


def test_extents_of_texts_and_of_arithmetic_are_equal(sizes):
    f, _, n, d = sizes
    y = ln.full((2 * n, d // 2), 1.0) + ln.full(("N * 2", "D // 2"), 2.0)
    z = f.input("z", ("N + N", d // 2), F)
    assert (y + z).shape == (n * 2, d // 2)
    f.output(y + z, "y")
    found = ln.evaluate(f, np.zeros((3, 5), "f"), np.ones((6, 2), "f"))
    assert_array_equal(found, np.full((6, 2), 4.0))


def test_slices_up_to_a_half(sizes):
    f, x, _, d = sizes
    y = f.output(x[:, : d // 2] - x[:, "D // 2" : d // 2 * 2], "y")
    values = np.arange(14, dtype="f").reshape(2, 7)
    assert_array_equal(ln.evaluate(f, values), np.full((2, 3), -3.0))
    assert y.shape[1] is d // 2


def test_pixels_of_channels():
    with ln.Fusion("shuffle") as f:
        x = f.input("x", ("N", 12, "H", "W"), F)
        n, _, h, w = x.shape
        t = ln.permute(ln.reshape(x, (n, 3, 2, 2, h, w)), (0, 1, 4, 2, 5, 3))
        f.output(ln.reshape(t, (n, 3, h * 2, w * 2)), "y")
    values = np.random.default_rng(0).random((2, 12, 3, 4)).astype("f")
    expected = values.reshape(2, 3, 2, 2, 3, 4).transpose(0, 1, 4, 2, 5, 3).reshape(2, 3, 6, 8)
    assert_array_equal(ln.evaluate(f, values), expected)


@pytest.mark.parametrize("target", ["interpret", "oracle"])
def test_a_launch_refuses_a_negative_extent(target):
    with ln.Fusion("k") as f:
        x = f.input("x", ("N",), F)
        f.output(ln.full((x.shape[0] - 4,), 1.0), "y")
    run = ln.compile(ln.lower(f), target=target) if target == "interpret" else None
    call = run or (lambda *arrays: ln.evaluate(f, *arrays))
    assert call(np.zeros(4, "f")).shape == (0,)
    with pytest.raises(ln.LaunchError, match=r"the assumption '4 <= N' does not hold for N = 3"):
        call(np.zeros(3, "f"))


def test_an_extent_that_is_always_negative(sizes):
    _, _, n, _ = sizes
    with pytest.raises(ln.DefinitionError, match=r"the extent N \* -1 - 1 is negative"):
        ln.full((-n - 1,), 0.0)


def test_even_and_odd_elements_are_as_many_by_an_assumption():
    with ln.Fusion("k") as f:
        x = f.input("x", ("D",), F)
        with pytest.raises(ln.DefinitionError, match="the extent of T1 is ceildiv"):
            x[0::2] * x[1::2]
        late = x[0::2], x[1::2]
        f.assume("D % 2 == 0")
        with pytest.raises(ln.DefinitionError, match="an assumption that stands behind them"):
            late[0] * late[1]
        f.output(x[0::2] * x[1::2], "y")
    assert_array_equal(ln.evaluate(f, np.arange(6, dtype="f")), [0.0, 6.0, 20.0])
    assert ln.verify(ln.lower(f)).scope == "all sizes"


@pytest.mark.parametrize("divisor", [2, 3, 4, 8])
@pytest.mark.parametrize("known", [2, 4, 12])
@pytest.mark.parametrize("offset", [-9, -2, -1, 1, 3, 5])
def test_quotients_beside_a_known_divisor(divisor, known, offset):
    """Whatever the simplifier makes of them, its value is the quotient's."""
    with ln.Fusion("k") as f:
        f.input("x", ("D",), F)
        f.assume(f"D % {known} == 0")
    algebra = f.algebra
    size = f.symbol("D") + offset
    for op, expected in [
        (algebra.floordiv, lambda a: a // divisor),
        (algebra.ceildiv, lambda a: -(-a // divisor)),
        (algebra.mod, lambda a: a % divisor),
    ]:
        made = op(size, integer(divisor))
        for value in range(known, known * 9, known):
            assert size_value(made, {"D": value}) == expected(value + offset)
