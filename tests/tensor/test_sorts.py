"""Sorts, the largest few and places in what is sorted: against NumPy, on targets, proved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import loopnest as ln
from helpers.math_run import assert_equal
from loopnest.backends.cuda.toolchain.nvrtc import compile_cuda
from loopnest.base.errors import CompileError
from loopnest.proofs.verifier import verify_program
from mutation.mutants import mutants

FLOATS = [np.nan, -0.0, 0.0, np.inf, -np.inf, 1.0, 2.0, -1.5, 1e-6]
TYPES = [ln.float32, ln.float64, ln.float16, ln.int8, ln.uint32, ln.int64]


def drawn(dtype: ln.DType, *shape: int) -> np.ndarray:
    rng = np.random.default_rng(sum(shape))
    if dtype.is_float:
        return rng.choice(FLOATS, shape).astype(dtype.numpy)
    ends = max(dtype.least, -(2**62)), min(dtype.greatest, 2**62)
    found = rng.integers(*ends, shape).astype(dtype.numpy)
    found[..., :2] = [dtype.least, dtype.greatest]
    return np.ascontiguousarray(np.repeat(found, 2, axis=-1)[..., : shape[-1]])


def order(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """Return the stable order, one comparison after the other, a NaN as the largest."""
    rows = np.moveaxis(x, axis, -1)
    result = np.empty(rows.shape, np.int64)
    for row in np.ndindex(*rows.shape[:-1]):
        values = [float(v) if x.dtype.kind not in "iu" else int(v) for v in rows[row]]
        keys: list[Any] = [(v != v, 0 if v != v else v) for v in values]
        result[row] = sorted(range(len(keys)), key=keys.__getitem__)
        if descending:
            falls = sorted(range(len(keys)), key=keys.__getitem__, reverse=True)
            result[row] = falls
    return np.moveaxis(result, -1, axis)


def fusion(
    math: Callable[[ln.TensorView], Any], shape: tuple[Any, ...], dtype: ln.DType = ln.float32
) -> ln.Fusion:
    with ln.Fusion("k") as f:
        found = math(f.input("x", shape, dtype))
        for number, tensor in enumerate(found if isinstance(found, tuple) else (found,)):
            f.output(tensor, f"y{number}")
    return f


def judge(f: ln.Fusion, target: str, *arrays: np.ndarray, proved: bool = True) -> Any:
    """Return what the math has, which a scheduled kernel has too; it is proved for all sizes."""
    ln.auto_schedule(f, target)
    kernel = ln.lower(f)
    report = ln.verify(kernel)
    assert report.ok
    assert report.all_sizes or not proved
    expected = ln.evaluate(f, *arrays)
    for run in ("interpret", "c"):
        found = ln.compile(kernel, target=run)(*arrays)
        for one, other in zip(
            *[r if isinstance(r, tuple) else (r,) for r in (found, expected)], strict=True
        ):
            assert_equal(one, other)
    return expected


@pytest.mark.parametrize(
    ("shape", "axis", "descending"), [(("N",), -1, False), ((3, 20), 1, True), (("N", 2), 0, True)]
)
@pytest.mark.parametrize("dtype", TYPES)
def test_orders(dtype: ln.DType, shape: tuple[Any, ...], axis: int, descending: bool) -> None:
    x = drawn(dtype, *[70 if n == "N" else n for n in shape])
    f = fusion(lambda x: ln.argsort(x, axis, descending=descending), shape, dtype)
    assert_equal(judge(f, "c", x), order(x, axis, descending))


@pytest.mark.parametrize("count", [0, 1, 2, 300])
@pytest.mark.parametrize("descending", [False, True])
def test_sorts(count: int, descending: bool) -> None:
    x = drawn(ln.float32, count) if count else np.zeros(0, np.float32)
    f = fusion(lambda x: ln.sort(x, descending=descending), ("N",))
    places = order(x, 0, descending)
    assert_equal(judge(f, "c", x), x[places])


@pytest.mark.parametrize("shape", [("N",), ("B", 64), ("B", 80)])
def test_threads_sort(shape: tuple[Any, ...]) -> None:
    f = fusion(ln.sort, shape)
    x = drawn(ln.float32, *[{"N": 90, "B": 3}.get(n, n) for n in shape])
    expected = judge(f, "cuda", x)
    assert_equal(expected, np.sort(x, axis=-1))
    compiled(ln.lower(f).cuda())


def compiled(text: str) -> None:
    try:
        assert compile_cuda(text, "sm_80").ptx
    except CompileError as error:
        if "nvrtc" not in str(error).lower() or "error:" in str(error):
            raise
        pytest.skip(str(error))


def test_a_gather_at_an_order_and_one_alone_have_schedules() -> None:
    """What ends in a copy of one of several operands is no sort."""
    for order in (False, True):
        with ln.Fusion("rows") as f:
            x, i = f.input("x", ("N", 3), ln.float32), f.input("i", ("N",), ln.int32)
            f.output(ln.take(x, ln.argsort(i) if order else i, 0), "y")
        x, i = drawn(ln.float32, 7, 3), np.array([3, 1, 0, 6, 2, 5, 4], np.int32)
        ln.auto_schedule(f)
        found = ln.compile(f, target="c")(x, i)
        assert_equal(found, x[np.argsort(i) if order else i])


def test_a_sort_without_a_schedule() -> None:
    f = fusion(ln.sort, ("N",), ln.int16)
    x = drawn(ln.int16, 90)
    kernel = ln.lower(f)
    for target in ("interpret", "c"):
        assert_equal(ln.compile(kernel, target=target)(x), np.sort(x))


def test_the_loop_over_digits_runs_over_the_one_of_the_element() -> None:
    f = fusion(ln.argsort, ("N",), ln.uint8)
    ln.auto_schedule(f, "c")
    loops = [line for line in str(ln.lower(f)).splitlines() if line.endswith("of 256:")]
    assert len(loops) == 2
    assert all("in max(0, index(T" in line for line in loops)


def test_mutants_of_a_pass_are_not_proved() -> None:
    """But for tests that a value repeats, and those in front of loops without tests."""
    f = fusion(ln.argsort, ("N",), ln.uint8)
    ln.auto_schedule(f, "c")
    lowered = ln.lower(f)._lowered
    assert lowered.math is not None
    math = lowered.math()
    kinds = frozenset({"predicate", "index", "init", "store", "identity"})
    made = [
        m
        for m in mutants(lowered.program, kinds)
        if not m.text.startswith(("drop '", "weaken", "narrow"))
    ]
    assert len(made) > 50
    assert [m.text for m in made if verify_program(m.program, math).ok] == []


# The largest


@pytest.mark.parametrize("k", [1, 16, 17, 40])
@pytest.mark.parametrize(("shape", "axis"), [((3, 40), 1), (("N", 3), 0)])
def test_the_largest(k: int, shape: tuple[Any, ...], axis: int) -> None:
    x = drawn(ln.float32, *[40 if n == "N" else n for n in shape])
    f = fusion(lambda x: ln.topk(x, k, axis), shape)
    values, places = judge(f, "c", x)
    wanted = np.take(order(x, axis, True), range(k), axis)
    assert_equal(places, wanted)
    assert_equal(values, np.take_along_axis(x, wanted, axis))


def test_a_launch_with_fewer_elements_is_refused() -> None:
    f = fusion(lambda x: ln.topk(x, 20)[1], ("N",))
    with pytest.raises(ln.LaunchError) as refused:
        ln.compile(ln.lower(f), target="interpret")(np.zeros(19, np.float32))
    assert str(refused.value) == (
        "k(...): the assumption '20 <= N' does not hold for N = 19; pass sizes for which it does, "
        "or define the kernel without it"
    )


# Places in what is sorted


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("count", [0, 1, 7, 64])
@pytest.mark.parametrize("dtype", [ln.float32, ln.int8])
def test_places_in_what_is_sorted(dtype: ln.DType, count: int, side: str) -> None:
    x = np.sort(drawn(dtype, 2 * count + 2)[:count])
    v = drawn(dtype, 4, 5)
    with ln.Fusion("k") as f:
        a, b = f.input("x", ("N",), dtype), f.input("v", ("K", 5), dtype)
        f.output(ln.searchsorted(a, b, side), "y")
    assert_equal(judge(f, "c", x, v), np.searchsorted(x, v, side))


@pytest.mark.parametrize("target", ["c", "cuda"])
def test_places_in_sorted_rows(target: str) -> None:
    x, v = np.sort(drawn(ln.float32, 3, 30), -1), drawn(ln.float32, 3, 9)
    with ln.Fusion("k") as f:
        a, b = f.input("x", ("B", "N"), ln.float32), f.input("v", ("B", "K"), ln.float32)
        f.output(ln.searchsorted(a, b, "right"), "y")
    rows = [np.searchsorted(*row, "right") for row in zip(x, v, strict=True)]
    assert_equal(judge(f, target, x, v), np.stack(rows))
    if target == "cuda":
        compiled(ln.lower(f).cuda())


def test_a_search_has_a_step_for_each_bit_of_the_extent() -> None:
    for extent, steps in ((1, 1), (3, 2), (4, 3), (1000, 10), ("N", 31)):
        with ln.Fusion("k") as f:
            a, b = f.input("x", (extent,), ln.int32), f.input("v", ("K",), ln.int32)
            f.output(ln.searchsorted(a, b), "y")
        assert len(f.tensors) == steps + 3


# What is refused

CASES = [
    ("ln.sort(b)", "sort(b, axis=-1): b is bool; sort numbers; convert it by ln.cast(…, ln.int8)"),
    ("ln.argsort(x, 2)", "argsort(x, axis=2): axis 2 is out of range; x has 2 axes, so use -2..1"),
    ("ln.sort(x, None)", "sort(x, axis=None): sort goes along one axis; name it by an int"),
    ("ln.sort(x, 0, descending=1)", "sort(x, axis=0): descending is 1; use True or False"),
    ("ln.topk(x, 0)", "topk(x, 0, axis=-1): k is 0; use an int from 1 to the axis' extent"),
    ("ln.topk(x, 50)", "topk(x, 50, axis=-1): the axis has fewer than 50 elements; x is "
     "float32[N, 4]"),
    ("ln.topk(b, 20, 0)", "topk(b, 20, axis=0): b is bool; sort numbers; convert it by "
     "ln.cast(…, ln.int8)"),
    ("ln.searchsorted(v, i)", "searchsorted(v, i, side='left'): v is float32[N], i is int32[N]; "
     "both have one type; convert one by ln.cast"),
    ("ln.searchsorted(v, v, 'up')", "searchsorted(v, v, side='up'): side is 'up'; use \"left\" or "
     '"right"'),
    ("ln.searchsorted(x, v)", "searchsorted(x, v, side='left'): x is float32[N, 4], v is "
     "float32[N]; what is sorted has one axis, or the axes of the values with another last one"),
    ("ln.searchsorted(v, 2.0)", "searchsorted(v, 2.0, side='left'): the values are 2.0; use a "
     "TensorView"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "said"), CASES)
def test_what_is_refused(code: str, said: str) -> None:
    with ln.Fusion("k") as f:
        names = {
            "ln": ln, "x": f.input("x", ("N", 4), ln.float32), "b": f.input("b", ("N",), ln.bool),
            "v": f.input("v", ("N",), ln.float32), "i": f.input("i", ("N",), ln.int32),
        }  # fmt: skip
        before = f.facts.conditions, len(f.tensors)
        with pytest.raises(ln.DefinitionError) as caught:
            eval(code, names)
    assert str(caught.value) == said
    assert (f.facts.conditions, len(f.tensors)) == before
