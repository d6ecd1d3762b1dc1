"""Sizes in arithmetic: extents of tensors, texts, what is equal, what each launch checks."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import loopnest as ln
from loopnest.scalar.arguments import size_value
from loopnest.scalar.expr import Expr, integer
from loopnest.scalar.facts import size_expression
from loopnest.scalar.polynomials import index_op

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
    for other in (True, "N", None):
        with pytest.raises(TypeError):
            n + other
    with pytest.raises(ln.DefinitionError, match=r"N // 0: sizes are divided by what is 1 or more"):
        n // 0


@pytest.mark.parametrize(
    ("written", "call"),
    [
        (lambda n: n + 1.5, "N + 1.5"),
        (lambda n: 0.5 * n, "0.5 * N"),
        (lambda n: n / 2, "N / 2"),
        (lambda n: 1.0 / n, "1.0 / N"),
        (lambda n: n**2, "N ** 2"),
        (lambda n: 2.0**n, "2.0 ** N"),
    ],
)
def test_what_is_no_whole_number_is_a_scalar_of_the_math(sizes, written, call):
    with pytest.raises(ln.DefinitionError) as caught:
        written(sizes[2])
    assert str(caught.value) == (
        f"{call}: sizes are whole numbers, with + - * // % by whole numbers; "
        "f.extent(size) is a scalar of the math, of which there are all functions"
    )


def test_sizes_are_operands_of_math(sizes):
    f, x, n, d = sizes
    i = ln.iota(d, start=n)
    y = x * d / ln.sqrt(n) + ln.full((n, d), d) + ln.where(x > n, n, d // 2)
    f.output(y + ln.clamp(i, 0, n + d - 2), "y")
    total = ln.Reducer((0.0, 0.0), lambda a, b: (a[0] + b[0], a[1] + b[1]), "sums")
    f.output(ln.reduce(total, (x, ln.full((), 1.0) * d), axis=1)[1], "z")
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    expected = (
        data * 4 / np.sqrt(3) + 4 + np.where(data > 3, 3, 2) + np.clip(np.arange(4) + 3, 0, 5)
    )
    y, z = ln.compile(f, target="interpret")(data)
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    assert z.tolist() == [16, 16, 16]
    assert ln.verify(ln.lower(f)).all_sizes


def test_a_size_with_an_int32_tensor_is_int64(sizes):
    _, x, n, _ = sizes
    assert (ln.cast(x, ln.int32) + n).dtype is ln.int64


def test_all_ways_to_round_up_are_one_extent(sizes):
    _, x, _, d = sizes
    parts = [x[:, : -(-d // 2)], x[:, : (d + 1) // 2], x[:, :"ceildiv(D, 2)"]]
    assert {str(part.shape[1]) for part in parts} == {"ceildiv(D, 2)"}
    assert (parts[0] + parts[1] + parts[2]).shape[1] is parts[0].shape[1]


ROUNDED = {
    "ceildiv(N, 2)": ["(N + 1) // 2", "-(-N // 2)", "N - N // 2", "N // 2 + N % 2",
                      "(N - 1) // 2 + 1", "(N + N % 2) // 2", "ceildiv(N - 2, 2) + 1"],
    "ceildiv(N, 2) * 2": ["N + N % 2", "(N + 1) // 2 * 2", "N + -N % 2", "N * 2 - N // 2 * 2"],
    "N // 2 * 2": ["N - N % 2", "N * 2 - ceildiv(N, 2) * 2", "(N - N % 2) // 2 * 2"],
    "N // 2": ["N - ceildiv(N, 2)", "ceildiv(N - 1, 2)", "N - 1 - (N - 1) // 2"],
    "ceildiv(N, 4) * 4": ["N + -N % 4", "N + (4 - N % 4) % 4", "(N + 3) // 4 * 4"],
    "N % 4": ["N - N // 4 * 4", "N % 8 % 4", "(N + 4) % 4"],
    "N * -1 % 4": ["ceildiv(N, 4) * 4 - N", "(4 - N % 4) % 4"],
    "N % 2": ["ceildiv(N, 2) - N // 2", "-N % 2", "N * 3 % 2"],
    "D * ceildiv(N, 2) * 2": ["D * N + D * (N % 2)", "(N + 1) // 2 * (D * 2)"],
    "(N + 1) // 4": ["(N + 5) // 4 - 1"],
    "N // 4 + 1": ["ceildiv(N + 1, 4)", "(N + 4) // 4", "ceildiv(N - 3, 4) + 1"],
    "N - N // 4": ["N // 4 * 3 + N % 4"],
}  # fmt: skip
"""The form of a size that is rounded, and other ways to write it."""


@pytest.mark.parametrize(("form", "ways"), ROUNDED.items())
def test_a_rounded_size_has_one_form(sizes, form, ways):
    f = sizes[0]
    for text in [form, *ways]:
        assert str(f.size("size", text)) == form, text
        written = size_expression(text, ("N", "D").__contains__, "size")
        for n in range(9):
            known = {"N": n, "D": 3}
            assert size_value(written, known) == size_value(f.size("size", form), known)


WAYS = [
    (lambda d: (d + 3) // 2, "ceildiv(D, 2) + 1"),
    (lambda d: (2 * d + 1) // 2, "D"),
    (lambda d: (2 * d + 3) // 4, "ceildiv(D * 2, 4)"),
    (lambda d: -d // 2, "ceildiv(D, 2) * -1"),
    (lambda d: -(d + 1) // 2, "D // 2 * -1 - 1"),
    (lambda d: (3 - d) // 2, "D // 2 * -1 + 1"),
    (lambda d: (d + 1) // 4, "(D + 1) // 4"),
]


@pytest.mark.parametrize(("written", "text"), WAYS)
def test_quotients_that_round_up_or_are_negative(sizes, written, text):
    found = written(sizes[3])
    assert str(found) == text
    for d in range(13):
        assert size_value(found, {"D": d}) == written(d)


@pytest.mark.parametrize("bound", ["-D // 2", "-(D // 2)"])
def test_a_bound_below_zero_counts_from_the_end(sizes, bound):
    f, x, _, _ = sizes
    f.output(ln.slice(x, (0, bound), (None, None)), "y")
    data = np.arange(10, dtype=np.float32).reshape(2, 5)
    found = ln.compile(f, target="interpret")(data)
    assert (found == data[:, eval(bound, {"D": 5}) :]).all()


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


@pytest.mark.parametrize("length", [2, 3, 7, 8])
def test_bounds_of_sizes_below_0_count_from_the_end(length):
    with ln.Fusion("k") as f:
        x = f.input("x", ("N",), F)
        half = x.shape[0] // 2
        for part in (x[-half:], x[:-half], x[-half - 1 : -1], x[-half:None:-1]):
            f.output(part * 1.0, f"y{len(f.outputs)}")
    values = np.arange(length, dtype="f")
    half = length // 2
    expected = values[-half:], values[:-half], values[-half - 1 : -1], values[-half:None:-1]
    for got, wanted in zip(ln.evaluate(f, values), expected, strict=True):
        assert_array_equal(got, wanted)


def test_a_bound_that_counts_from_the_end_is_not_0():
    with ln.Fusion("k") as f:
        x, k = f.input("x", ("N",), F), f.input("k", ("K",), F)
        y = f.output(x[-k.shape[0] :] * k, "y")
        assert y.shape[0] is k.shape[0]
    values = np.arange(5, dtype="f")
    assert_array_equal(ln.evaluate(f, values, values[:2]), [0.0, 4.0])
    with pytest.raises(ln.LaunchError, match=r"the assumption '1 <= K' does not hold for K = 0"):
        ln.evaluate(f, values, values[:0])


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_what_a_part_leaves_of_a_multiple(parts):
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), F)
        f.assume(f"D % {parts * 2} == 0")
        n, d = x.shape
        part = d // parts
        for factor in range(-3, 4):
            for count in range(-7, 8):
                made = d * factor + part * count + n
                for value in (0, parts * 2, parts * 6):
                    simple = f.algebra.simplify(made) if isinstance(made, Expr) else made
                    sizes = {"D": value, "N": 5}
                    assert size_value(simple, sizes) == value * factor + value // parts * count + 5
        rest = x[:, part:]
        assert rest.shape[1] is f.algebra.simplify(part * (parts - 1))


def test_a_quotient_that_is_0_stands_beside_others(sizes):
    algebra = sizes[0].algebra
    nothing = index_op("floordiv", algebra.sub(sizes[2], sizes[2]), integer(4))
    made = algebra.sub(sizes[2], index_op("mul", nothing, sizes[3]))
    assert size_value(made, {"N": 5, "D": 3}) == 5


def test_halves_of_an_even_axis_are_as_long():
    """As a rotary embedding reads them."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), F)
        f.assume("D % 2 == 0")
        half = x.shape[1] // 2
        low, high = x[:, :half], x[:, half:]
        f.output(ln.concatenate([-high, low], 1), "y")
        f.output(low * high, "z")
    values = np.arange(8, dtype="f").reshape(2, 4)
    y, z = ln.evaluate(f, values)
    assert_array_equal(y, [[-2, -3, 0, 1], [-6, -7, 4, 5]])
    assert_array_equal(z, [[0, 3], [24, 35]])


@pytest.mark.parametrize("length", [2, 3, 8])
def test_an_index_is_a_size(length):
    with ln.Fusion("k") as f:
        x, k = f.input("x", ("N", 2), F), f.input("k", ("K",), F)
        half = x.shape[0] // 2
        f.output(x[half] + x[-half, 1] + x[x.shape[0] - 1, 0] + ln.sum(k), "y")
        f.output(x[k.shape[0]], "z")
    values, k = np.arange(length * 2, dtype="f").reshape(-1, 2), np.zeros(1, "f")
    half = length // 2
    y, z = ln.evaluate(f, values, k)
    assert_array_equal(y, values[half] + values[-half, 1] + values[length - 1, 0])
    assert_array_equal(z, values[1])
    with pytest.raises(ln.LaunchError, match=r"the assumption 'K \+ 1 <= N' does not hold"):
        ln.evaluate(f, values, np.zeros(length, "f"))


@pytest.mark.parametrize("text", ["N // 0", "N % 0", "N // -1", "ceildiv(N, 0)", "2 // (-N % 0)"])
def test_a_text_that_divides_by_0_or_less(sizes, text):
    f = sizes[0]
    with pytest.raises(ln.DefinitionError, match="sizes are divided by what is 1 or more"):
        ln.full((text,), 0.0)
    with pytest.raises(ln.DefinitionError, match="sizes are divided by what is 1 or more"):
        f.assume(f"{text} == 0")


def test_errors_write_sizes_as_they_are(sizes):
    _, x, n, d = sizes
    with pytest.raises(ln.DefinitionError, match=r"reshape\(x, \(N, D // 16, 16\)\): x is"):
        ln.reshape(x, (n, d // 16, 16))


def test_extents_that_an_assumption_makes_equal_stand_at_one_axis():
    """F == D * 2: the second half of an axis of F has F - D elements, which are D."""
    with ln.Fusion("halves") as f:
        x = f.input("x", ("N", "D"), F)
        h = f.input("h", ("N", "F"), F)
        with pytest.raises(ln.DefinitionError):
            x * h[:, "D":]
        f.assume("F == D * 2")
        f.output(x * h[:, :"D"] + h[:, "D":], "y")
    x, h = np.ones((2, 3), np.float32), np.arange(12, dtype=np.float32).reshape(2, 6)
    kernel = ln.lower(f)
    assert_array_equal(ln.compile(kernel, target="interpret")(x, h), h[:, :3] + h[:, 3:])
    assert ln.verify(kernel).all_sizes
