"""reshape and flatten: the elements against NumPy, the steps between two shapes, refusals."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import loopnest as ln
from loopnest.tensor.domain import transforms_between

SHAPES = [
    ((4, 6), (24,), ["merge"]),
    ((24,), (4, 6), ["split by 6"]),
    ((4, 6), (8, 3), ["split by 3", "merge"]),
    ((4, 6), (2, 12), ["split by 2", "merge"]),
    ((2, 12), (4, 6), ["split by 6", "merge"]),
    ((6, 4), (4, 6), ["merge", "split by 6"]),
    ((2, 3, 4), (24,), ["merge", "merge"]),
    ((5, 4, 6), (5, 3, 8), ["merge", "split by 8"]),
    ((4, 6), (1, 4, 1, 6), []),
    ((4, 1, 6), (4, 6), []),
    ((1, 1), (), []),
    ((), (1, 1), []),
    ((4, 3), (-1, 2), ["split by 1 outer"]),
    ((0, 3), (3, 0, 2), []),
    ((4, 6), (2, -1, 3), ["split by 2", "split by 3", "merge"]),
]


@pytest.mark.parametrize(("old", "new", "steps"), SHAPES[:12] + SHAPES[13:])
def test_the_elements_are_those_of_numpy(
    old: tuple[int, ...], new: tuple[int, ...], steps: list[str]
) -> None:
    """Steps lead from the axes of the operand to those of the shape, as few as there are."""
    x = np.arange(np.prod(old), dtype=np.float32).reshape(old)
    with ln.Fusion("k") as f:
        y = f.output(ln.reshape(f.input("x", old, ln.float32), new), "y")
    expected = x.reshape(new)
    np.testing.assert_array_equal(ln.evaluate(f, x), expected)
    assert y.shape == expected.shape
    found = [s.describe() for s in transforms_between(y.root_domain, y.rfactor_domain)]
    assert found == steps
    kernel = ln.lower(f)
    np.testing.assert_array_equal(ln.compile(kernel, target="interpret")(x), expected)
    assert ln.verify(kernel).ok


SYMBOLIC = [
    (("N", "K"), ("N * K",), (), "N * K"),
    (("N", "K"), ("K", "N"), (), "K, N"),
    (("N", 12), ("N", 3, -1), (), "N, 3, 4"),
    ((4, "N"), (2, "2 * N"), (), "2, N * 2"),
    (("C",), ("G", "D"), ("C == G * D",), "G, D"),
    (("N", "C"), ("N", "G", -1), ("C == G * D",), "N, G, D"),
    (("N", "C"), ("N", "G", -1), ("C % G == 0",), "N, G, C // G"),
    (("N", "C", "H"), ("N", 8, -1), ("C % 8 == 0",), "N, 8, C // 8 * H"),
    (("A", "B"), ("C", "D"), ("A * B == C * D",), "C, D"),
    (("N", "A", "B"), ("N", "C", "D"), ("A * B == C * D",), "N, C, D"),
    (("C",), ("D",), ("C == D",), "D"),
]
SIZES = {"N": 2, "K": 3, "C": 16, "G": 4, "D": 4, "H": 3, "A": 8, "B": 8}


@pytest.mark.parametrize(("old", "new", "assumed", "shown"), SYMBOLIC)
def test_symbolic_shapes_agree_as_polynomials_or_by_an_assumption(
    old: tuple[int | str, ...], new: tuple[int | str, ...], assumed: tuple[str, ...], shown: str
) -> None:
    sizes = {**SIZES, "D": 16} if assumed == ("C == D",) else dict(SIZES)
    with ln.Fusion("k") as f:
        x = f.input("x", old, ln.float32)
        for name in {name for name in sizes for text in assumed if name in text}:
            f.symbol(name)
        for text in assumed:
            f.assume(text)
        f.output(ln.exp(ln.reshape(ln.neg(x), new)), "y")
    y = f.outputs[0]
    assert f"[{shown}]" in y.signature
    used = {s.name for s in f.symbols}
    extents = [sizes[e] if isinstance(e, str) else e for e in old]
    array = np.random.default_rng(0).standard_normal(extents).astype(np.float32)
    others = {n: sizes[n] for n in used if n not in old}
    shape = ln.evaluate(f, array, **others).shape
    np.testing.assert_allclose(
        ln.evaluate(f, array, **others), np.exp(-array).reshape(shape), rtol=1e-6
    )
    f.inline_most()
    assert f.tensors[2].compute_at_pos == y.ndim
    kernel = ln.lower(copy.deepcopy(f))
    np.testing.assert_allclose(
        ln.compile(kernel, target="interpret")(array, **others),
        ln.evaluate(f, array, **others),
        rtol=1e-6,
    )


def test_the_assumption_is_checked_by_each_launch() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("C",), ln.float32)
        g = f.symbol("G")
        assert f.symbol("G") is g
        f.assume("C % G == 0")
        f.output(ln.reshape(x, ("G", -1)), "y")
    fn = ln.compile(f, target="interpret")
    assert fn(np.zeros(6, np.float32), G=3).shape == (3, 2)
    for size in (4, 0):
        if size:
            with pytest.raises(ln.LaunchError, match="C % G == 0"):
                fn(np.zeros(6, np.float32), G=size)


def test_one_element_has_any_shape_of_sizes_that_are_1() -> None:
    with ln.Fusion("k") as f:
        x, z = f.input("x", (1,), ln.float32), f.input("z", (1, "N", 1), ln.float32)
        f.assume("N == 1")
        y = ln.reshape(x, z.shape)
        f.output(y + z, "y")
    assert y.shape == (1, 1, 1)
    one = np.ones((1, 1, 1), np.float32)
    assert ln.evaluate(f, one[0, 0], one) == 2 * one


def test_flatten_takes_stop_in() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    with ln.Fusion("k") as f:
        tv = f.input("x", (2, 3, 4), ln.float32)
        f.output(ln.flatten(tv), "a")
        f.output(ln.flatten(tv, 1), "b")
        f.output(ln.flatten(tv, -3, 1), "c")
        f.output(ln.flatten(tv, 1, 1), "d")
        f.output(ln.flatten(ln.sum(tv)), "e")
    shapes = [found.shape for found in ln.evaluate(f, x)]
    assert shapes == [(24,), (2, 12), (6, 4), (2, 3, 4), (1,)]


REFUSED = [
    ("ln.reshape(x, (4, 5))", "reshape(x, (4, 5)): x is float32[4, 6] and has 24 elements, the "
     "shape (4, 5) has 20; both have as many elements, or one extent is -1"),
    ("ln.reshape(x, (5, -1))", "reshape(x, (5, -1)): -1 stands for the 24 elements of x by 5, "
     "which is no whole number; x is float32[4, 6]"),
    ("ln.reshape(x, (-1, -1))", "reshape(x, (-1, -1)): -1 stands twice; one extent at most follows "
     "from the others"),
    ("ln.reshape(x, (0, -1))", "reshape(x, (0, -1)): -1 stands for the 24 elements of x by 0, "
     "which is any number; name the extent"),
    ("ln.reshape(x, (4, -6))", "reshape(x, (4, -6)): -6 is no extent; use an int >= 0 or the name "
     "of a size symbol (an identifier)"),
    ("ln.reshape(x, 2.5)", "reshape(x, 2.5): the shape 2.5 is not a tuple of extents"),
    ("ln.reshape(2, (1,))", "reshape(2, (1,)): operand 1 is of type int; use a TensorView"),
    ("ln.reshape(z, ('N', 'Q'))", "reshape(z, ('N', 'Q')): z is float32[N, C] and has N * C "
     "elements, the shape (N, Q) has N * Q, and nothing says that these are equal; state it "
     "before: f.symbol('Q'), f.assume('C == Q')"),
    ("ln.reshape(z, ('N', 'C // 4', 2, 2))", "reshape(z, ('N', 'C // 4', 2, 2)): z is float32[N, "
     "C] and has N * C elements, the shape (N, C // 4, 2, 2) has N * (C // 4) * 4, and nothing "
     "says that these are equal; state it before: f.assume('C % 4 == 0')"),
    ("ln.reshape(z, ('N', 3, -1))", "reshape(z, ('N', 3, -1)): -1 stands for the N * C elements of "
     "z by N * 3, which nothing says is a whole number; state it before: f.assume('C % 3 == 0')"),
    ("ln.reshape(z, ('N * Q', -1))", "reshape(z, ('N * Q', -1)): of the size 'N * Q', 'Q' is no "
     "size symbol of this fusion; write integers and size symbols with + - * // %, such as "
     "'N * K'"),
    ("ln.reshape(z, ('N *',))", "reshape(z, ('N *',)): the size 'N *' cannot be read; write "
     "integers and size symbols with + - * // %, such as 'N * K'"),
    ("ln.reshape(z, ('x', -1))", "reshape(z, ('x', -1)): 'x' is the name of an argument already; "
     "name the size otherwise, such as 'x_size'"),
    ("ln.flatten(x, 1, 0)", "flatten(x, start=1, stop=0): axis 0 stands before axis 1; stop is the "
     "last axis taken in"),
    ("ln.flatten(x, 2)", "flatten(x, start=2, stop=-1): axis 2 is out of range; x has 2 axes, so "
     "use -2..1"),
    ("f.symbol(3)", "symbol(3): the name is no string"),
    ("f.symbol('x')", "symbol('x'): 'x' is the name of an argument already; "
     "name the size otherwise, such as 'x_size'"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_refusals_name_what_is_missing_and_change_nothing(text: str, message: str) -> None:
    with ln.Fusion("k") as f:
        names = {
            "x": f.input("x", (4, 6), ln.float32),
            "z": f.input("z", ("N", "C"), ln.float32),
        }
        before = (f.tensors, f.symbols, list(f.facts.conditions))
        with pytest.raises(ln.DefinitionError) as caught:
            eval(text, {"ln": ln, "f": f, **names})
    assert str(caught.value) == message
    assert (f.tensors, f.symbols, list(f.facts.conditions)) == before
