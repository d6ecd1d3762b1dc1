"""Inputs with strides of their own: read where they lie, on every target; proofs and refusals."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest

import loopnest as ln
from loopnest.devtools.harness import make_arguments
from loopnest.launch.strided_arrays import arranged, copied, span

PT = ln.ParallelType
A = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)


def doubled(
    strides: tuple[int | str | None, ...] | None, shape: tuple[int | str, ...] = ("N", "D")
) -> tuple[ln.Fusion, ln.TensorView, ln.TensorView]:
    """Return a fusion with y = 2 * x, and both."""
    with ln.Fusion("k") as f:
        x = f.input("x", shape, ln.float32, strides=strides)
        y = f.output(x * 2.0, "y")
    return f, x, y


LAYOUTS = [
    (("S", 1), A[:, :5]),
    (("S", 1), A[1::2]),
    ((1, "S"), A.T),
    (("S", "R"), A[::2, 1::3]),
    (("S", "R"), np.broadcast_to(A[:, :1], (6, 4))),
    (("S", "R"), np.broadcast_to(A[0], (3, 8))),
    ((0, 1), np.broadcast_to(A[0], (5, 8))),
    ((8, None), A),
    (("S", 1), A[:0]),
    (("S", 1), A[:1, :3]),
    ((None, None), A),
]


@pytest.mark.parametrize(("strides", "array"), LAYOUTS)
def test_elements_are_read_where_they_lie(
    strides: tuple[int | str | None, ...], array: np.ndarray
) -> None:
    """No copy is made (a copy would be told), and the proof is for all sizes and strides."""
    kernel = ln.lower(doubled(strides)[0])
    assert ln.verify(kernel).all_sizes
    for target in ("interpret", "c"):
        fn = ln.compile(kernel, target=target)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            np.testing.assert_array_equal(fn(array), 2 * array)
    np.testing.assert_array_equal(ln.evaluate(doubled(strides)[0], array), 2 * array)


def test_the_nest_names_the_strides_and_texts_keep_them() -> None:
    f, _, _ = doubled((1, "S"))
    kernel = ln.lower(f)
    header = "kernel k(x: float32[N, D] strides(1, S)) -> (y: float32[N, D])"
    assert str(kernel).splitlines()[1] == header
    again = ln.Kernel.parse(kernel.text(full=True))
    copy = pickle.loads(pickle.dumps(f))
    for other in (again, ln.lower(copy)):
        assert str(other) == str(kernel)
        assert ln.verify(other).all_sizes
        np.testing.assert_array_equal(ln.compile(other, target="interpret")(A.T), 2 * A.T)
    assert "x[i0 + i1 * (idx_t)S]" in kernel.cuda() or "i1 * S" in kernel.cuda()


def test_vectors_ask_strides_to_divide() -> None:
    """Rows of a slice begin at multiples of 16 bytes where the stride is a multiple of 4."""
    f, x, y = doubled(("S", 1))
    copy = x.cache_after()
    y.split(1, 4)
    copy.compute_at(y, 2)
    for tensor in (y, copy):
        tensor.parallelize({2: PT.vectorize})
    kernel = ln.lower(f)
    assert kernel.launch(N=6, D=4, S=8).variant == "vector"
    assert kernel.launch(N=6, D=4, S=7).variant == "scalar"
    assert "ln_wide<4>(&x[" in kernel.cuda()
    assert ln.verify(kernel).all_sizes
    odd = np.ascontiguousarray(A[:, :7])
    for array in (A[:, :4], odd[:, :4], A[:, 1:5]):
        for target in ("interpret", "c"):
            np.testing.assert_array_equal(ln.compile(kernel, target=target)(array), 2 * array)


def test_a_reshape_and_a_reduction_read_a_transposed_input() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", 8), ln.float32, strides=(1, "S"))
        y = f.output(ln.sum(ln.reshape(x, ("N", 2, 4)), 2), "y")
    f.inline_most()
    array = np.asfortranarray(A)
    expected = A.reshape(6, 2, 4).sum(2)
    kernel = ln.lower(f)
    assert y.shape[1] == 2
    assert ln.verify(kernel).ok
    found = ln.compile(kernel, target="c")(array)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_arrays_of_other_strides_are_refused() -> None:
    fn = ln.compile(doubled((1, "S"))[0], target="interpret")
    with pytest.raises(ln.LaunchError) as caught:
        fn(A)
    assert str(caught.value) == (
        "k(...): x has the strides (8, 1) in elements; its strides are declared as (1, S), none of "
        "them negative; copy it, or declare others"
    )
    fn = ln.compile(doubled(("S", 1))[0], target="interpret")
    with pytest.raises(ln.LaunchError, match=r"x has the strides \(-8, 1\) in elements"):
        fn(A[::-1])
    np.testing.assert_array_equal(fn(A), 2 * A)
    with pytest.raises(ln.LaunchError, match="has the strides"):  # a plan was made for others
        fn(A.T)
    fields = np.zeros(6, [("a", np.float32), ("b", np.int16)])["a"]
    one = ln.compile(doubled(("S",), ("N",))[0], target="interpret")
    with pytest.raises(ln.LaunchError, match="not aligned"):
        one(fields)


def test_copies_of_made_arguments_have_the_declared_strides() -> None:
    f, _, _ = doubled((0, 1), (3, 4))
    arguments = make_arguments(f, {})
    (array,) = arguments.fresh()
    assert array.strides == (0, 4)
    assert not np.shares_memory(array, arguments.arrays[0])
    found = ln.compile(f, target="interpret")(array)
    np.testing.assert_array_equal(found, 2 * arguments.arrays[0])


@pytest.mark.parametrize(("strides", "array"), [((1, "S"), A.T), ((0, 1), LAYOUTS[6][1])])
def test_a_diagnosis_reads_elements_where_they_lie(
    strides: tuple[int | str | None, ...], array: np.ndarray
) -> None:
    found = ln.diagnose(ln.lower(doubled(strides)[0]), array)
    assert found.ok, str(found)


def test_a_symbol_has_one_value_in_strides_and_extents() -> None:
    """Strides that name an extent: the array is as if contiguous, and others are refused."""
    fn = ln.compile(doubled(("D", 1))[0], target="interpret")
    np.testing.assert_array_equal(fn(A), 2 * A)
    with pytest.raises(ln.LaunchError) as caught:
        fn(A[:, :4])
    assert str(caught.value) == (
        "k(...): D is 4 by axis 1 of x but 8 by stride 0 of x; a size symbol has one value in a "
        "launch"
    )


@pytest.mark.parametrize(
    ("strides", "found"),
    [
        ((1,), "the strides (1,) are not one for each of 2 axes; use an int >= 0, a size symbol or "
         "None an axis"),
        ("S", "the strides 'S' are not one for each of 2 axes; use an int >= 0, a size symbol or "
         "None an axis"),
        ((-1, 1), "-1 is no extent; use an int >= 0 or the name of a size symbol (an identifier)"),
    ],
)  # fmt: skip
def test_strides_that_are_none(strides: object, found: str) -> None:
    with ln.Fusion("k") as f, pytest.raises(ln.DefinitionError) as caught:
        f.input("x", ("N", "D"), ln.float32, strides=strides)  # type: ignore[arg-type]
    assert str(caught.value) == f"input('x', ('N', 'D')): {found}"
    assert (f.inputs, f.symbols[2:]) == ((), ())


def test_an_output_does_not_take_the_memory_of_a_strided_input() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float32, strides=("S", 1))
        with pytest.raises(ln.DefinitionError) as caught:
            f.output(x * 2.0, "y", inplace=x)
    assert str(caught.value) == "output('y'): x has strides of its own; an output is C-contiguous"


def test_arranged_arrays() -> None:
    found = arranged(A, (1, 7))
    assert found.strides == (4, 28)
    assert span(found).shape == (6 + 7 * 7,)
    assert copied(found).strides == found.strides
    wide = arranged(A[:, :4], (9, 2))
    np.testing.assert_array_equal(wide, A[:, :4])
    np.testing.assert_array_equal(arranged(A, (8, 0))[:, 3], A[:, 0])
    assert span(A[:0]).shape == (0,)
