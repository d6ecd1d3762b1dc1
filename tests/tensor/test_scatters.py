"""Scatters against NumPy: math, kernels, proofs, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import loopnest as ln
from helpers.math_run import assert_equal, run
from loopnest.proofs.verifier import verify_program
from loopnest.tensor.ops.gathers import scatter_prod
from mutation.mutants import mutants

RNG = np.random.default_rng(0)
PT = ln.ParallelType


def small(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.integers(-8, 9, shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.int8])
@pytest.mark.parametrize(("axis", "shape"), [(0, (7, 4)), (1, (3, 6)), (1, (2, 6)), (0, (5, 2))])
def test_scatter_add(axis: int, shape: tuple[int, ...], dtype: Any) -> None:
    x, u = small(3, 4, dtype=dtype), small(*shape, dtype=dtype)
    i = RNG.integers(0, x.shape[axis], shape)
    expected = x.astype(np.float64 if x.dtype.kind == "f" else dtype)
    for place in np.ndindex(*shape):
        target = (*place[:axis], i[place], *place[axis + 1 :])
        expected[target] += u[place]
    found = run(lambda x, i, u: ln.scatter_add(x, i, u, axis), x, i, u)
    assert_equal(found, expected.astype(dtype))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_index_add(axis: int) -> None:
    x = small(3, 5, 2)
    i = RNG.integers(0, x.shape[axis], 4).astype(np.int32)
    shape = list(x.shape)
    shape[axis] = 4
    u, expected = small(*shape), x.copy()
    np.add.at(np.moveaxis(expected, axis, 0), i, np.moveaxis(u, axis, 0))
    assert_equal(run(lambda x, i, u: ln.index_add(x, axis, i, u), x, i, u), expected)


def test_what_lies_outside_is_added_nowhere() -> None:
    x, u, i = np.zeros(3, np.float32), np.ones(4, np.float32), np.array([-1, 0, 3, 2])
    assert_equal(run(lambda x, i, u: ln.scatter_add(x, i, u, 0), x, i, u), [1, 0, 1])


def gradient() -> ln.Fusion:
    with ln.Fusion("gradient") as f:
        g, i = f.input("g", ("K", "D"), ln.float32), f.input("i", ("K",), ln.int32)
        f.output(ln.index_add(ln.full(("V", "D"), 0.0), 0, i, g), "w")
    return f


def _elements(w: ln.TensorView) -> None:
    w.split(1, 4)
    w.parallelize({0: PT.grid_x, 2: PT.block_x})


def _updates(w: ln.TensorView) -> None:
    w.reorder({2: 0})


def _private(w: ln.TensorView) -> None:
    w.split(2, 3)
    part = w.rfactor(3)
    part.memory = ln.GLOBAL
    part.reorder({2: 0})
    part.parallelize({0: PT.cpu_parallel})


@pytest.mark.parametrize("schedule", [_elements, _updates, _private])
def test_kernels(schedule: Any) -> None:
    f = gradient()
    schedule(f["w"])
    kernel = ln.lower(f)
    report = ln.verify(kernel)
    assert report.all_sizes
    assert report.ranges == ()
    g, i = small(7, 5), np.array([1, 0, 3, 3, 9, 1, 1], np.int32)
    expected = np.zeros((4, 5), np.float32)
    np.add.at(expected, i[i < 4], g[i < 4])
    for target in ("interpret", "c"):
        assert_equal(ln.compile(kernel, target=target)(g, i, V=4), expected)


CASES = [
    ("ln.scatter_add(x, i, x, 0)",
     "scatter_add(x, i, x, 0): x is float32[V, 3], i is int32[K, 3]; the indices have the shape of "
     "the updates"),
    ("ln.scatter_add(x, u, u, 0)",
     "scatter_add(x, u, u, 0): u is float32; indices are integers; convert them by ln.cast"),
    ("ln.scatter_add(x, i, i, 0)",
     "scatter_add(x, i, i, 0): i is int32, x is float32; both have one type; convert one by "
     "ln.cast"),
    ("ln.scatter_add(x, i, 3, 0)",
     "scatter_add(x, i, 3, 0): the updates are of type int; use a TensorView"),
    ("ln.scatter_add(x, i, u, 2)",
     "scatter_add(x, i, u, 2): axis 2 is out of range; x has 2 axes, so use -2..1"),
    ("ln.scatter_add(x, n, n, 0)", "scatter_add(x, n, n, 0): n is int32, x is float32; both have "
     "one type; convert one by ln.cast"),
    ("ln.index_add(x, 0, i, u)", "index_add(x, 0, i, u): i is int32[K, 3]; use one axis"),
    ("ln.index_add(x, 0, n, x)",
     "index_add(x, 0, n, x): x is float32[V, 3], n is int32[K]; the updates are [K, 3], x is "
     "float32[V, 3]"),
    ("ln.scatter_max(b, i, b, 0)",
     "scatter_max(b, i, b, 0): b is bool; use a type that can be ordered"),
    ("ln.scatter_min(x, i, x, 0)",
     "scatter_min(x, i, x, 0): x is float32[V, 3], i is int32[K, 3]; the indices have the shape of "
     "the updates"),
    ("ln.scatter(x, i, u, 0, unique=2)", "scatter(x, i, u, 0): unique is 2; use True or False"),
    ("ln.index_add(x, 0, n, u, deterministic=1)",
     "index_add(x, 0, n, u): deterministic is 1; use True or False"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "said"), CASES)
def test_what_is_refused(code: str, said: str) -> None:
    with ln.Fusion("rows") as f:
        names = {
            "ln": ln, "f": f,
            "x": f.input("x", ("V", 3), ln.float32), "i": f.input("i", ("K", 3), ln.int32),
            "u": f.input("u", ("K", 3), ln.float32), "n": f.input("n", ("K",), ln.int32),
            "b": f.input("b", ("K", 3), ln.bool),
        }  # fmt: skip
        before = f.facts.conditions, len(f.tensors)
        with pytest.raises(ln.DefinitionError) as caught:
            eval(code, names)
    assert str(caught.value) == said
    assert (f.facts.conditions, len(f.tensors)) == before


def assigned(x: np.ndarray, i: np.ndarray, u: np.ndarray, axis: int) -> np.ndarray:
    """Return `x` with updates assigned one after the other, those outside nowhere."""
    found = x.copy()
    for place in np.ndindex(*u.shape):
        if 0 <= i[place] < x.shape[axis]:
            found[(*place[:axis], i[place], *place[axis + 1 :])] = u[place]
    return found


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.int8, np.uint16, np.bool_])
@pytest.mark.parametrize(("axis", "shape"), [(0, (7, 4)), (1, (3, 6)), (1, (2, 6)), (0, (0, 2))])
def test_scatter_keeps_the_last_update(axis: int, shape: tuple[int, ...], dtype: Any) -> None:
    x, u = small(3, 4).astype(dtype), small(*shape).astype(dtype)
    i = RNG.integers(-1, x.shape[axis] + 1, shape)
    found = run(lambda x, i, u: ln.scatter(x, i, u, axis), x, i, u)
    assert_equal(found, assigned(x, i, u, axis))


def scatter_fusion() -> tuple[ln.Fusion, ln.TensorView, ln.TensorView]:
    with ln.Fusion("k") as f:
        x = f.input("x", ("V", "D"), ln.float32)
        i, u = f.input("i", ("K", "D"), ln.int32), f.input("u", ("K", "D"), ln.float32)
        y = f.output(ln.scatter(x, i, u, 0), "y")
    return f, next(t for t in f.tensors if t.definition and t.definition.reducer), y


def walked(last: ln.TensorView, y: ln.TensorView) -> None:
    last.reorder([2, 1, 0])  # the updates outside of the rows that they may go to


def threads(last: ln.TensorView, y: ln.TensorView) -> None:
    y.parallelize({0: PT.grid_x, 1: PT.block_x})
    ln.propagate(y)
    y.fusion.inline_most()


def factored(last: ln.TensorView, y: ln.TensorView) -> None:
    last.split(2, 4)
    last.rfactor([3])


@pytest.mark.parametrize("schedule", [walked, threads, factored])
def test_schedules_of_scatter_keep_the_order(schedule: Any) -> None:
    f, last, y = scatter_fusion()
    schedule(last, y)
    kernel = ln.lower(f)
    assert ln.verify(kernel).all_sizes
    x, i, u = small(5, 3), RNG.integers(0, 5, (20, 3)).astype(np.int32), small(20, 3)
    for target in ("c", "interpret"):
        assert_equal(ln.compile(kernel, target=target)(x, i, u), assigned(x, i, u, 0))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
@pytest.mark.parametrize("rows", [5, 9, 32])
def test_scatter_in_c_where_compilers_unroll_all_inner_loops(rows: int, dtype: Any) -> None:
    """GCC 12 merges loads that tests choose, three updates of two elements; see `chooses_load`."""
    x, u = np.full((rows, 1, 2), -1, dtype), np.arange(rows * 6).reshape(rows, 3, 2).astype(dtype)
    for place in range(3):
        i = np.full((rows, 3, 2), 7, np.int32)
        i[:, place] = 0
        with ln.Fusion("last") as f:
            arrays = [
                f.input(n, a.shape, getattr(ln, a.dtype.name))
                for n, a in zip("xiu", (x, i, u), strict=True)
            ]
            f.output(ln.scatter(*arrays, 1), "y")
        assert_equal(ln.compile(f, target="c")(x, i, u), u[:, place : place + 1])


def test_a_scatter_goes_through_its_updates_alone() -> None:
    f, last, y = scatter_fusion()
    walked(last, y)
    loop = "for i4 in max(0, index(i[i2, i3]))..min(index(i[i2, i3]), V - 1) + 1 of V:"
    assert loop in str(ln.lower(f))


def folded_by_threads(last: ln.TensorView, y: ln.TensorView) -> None:
    last.split(2, 8)
    last.parallelize({3: PT.block_x})


def atomic_updates(last: ln.TensorView, y: ln.TensorView) -> None:
    start = last.atomic()
    start.parallelize({0: PT.grid_x, 1: PT.block_x})
    last.new_launch()
    last.reorder([2, 1, 0])
    last.parallelize({0: PT.grid_x, 1: PT.block_x})
    y.new_launch()
    y.parallelize({0: PT.grid_x, 1: PT.block_x})


@pytest.mark.parametrize("schedule", [folded_by_threads, atomic_updates])
def test_threads_assign_in_any_order(schedule: Any) -> None:
    """The last update is the one of the largest number, whichever thread comes first."""
    f, last, y = scatter_fusion()
    schedule(last, y)
    kernel = ln.lower(f)
    assert ln.verify(kernel).all_sizes
    x, i, u = small(5, 3), RNG.integers(-1, 6, (20, 3)).astype(np.int32), small(20, 3)
    for seed in range(3):
        found = ln.compile(kernel, target="interpret", thread_order=seed)(x, i, u)
        assert_equal(found, assigned(x, i, u, 0))
    assert_equal(ln.compile(kernel, target="c")(x, i, u), assigned(x, i, u, 0))


# Extremes


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.uint8])
@pytest.mark.parametrize("name", ["scatter_max", "scatter_min"])
@pytest.mark.parametrize(("axis", "shape"), [(0, (7, 4)), (1, (3, 6)), (1, (2, 6)), (0, (0, 2))])
def test_extremes(axis: int, shape: tuple[int, ...], name: str, dtype: Any) -> None:
    x, u = np.abs(small(3, 4)).astype(dtype), np.abs(small(*shape)).astype(dtype)
    if x.dtype.kind == "f" and u.size:
        x[1, 1], u[0, 0] = -np.inf, np.nan
    i = RNG.integers(-1, x.shape[axis] + 1, shape)
    expected, larger = x.copy(), np.maximum if name == "scatter_max" else np.minimum
    for place in np.ndindex(*shape):
        if 0 <= i[place] < x.shape[axis]:
            target = (*place[:axis], i[place], *place[axis + 1 :])
            expected[target] = larger(expected[target], u[place])
    found = run(lambda x, i, u: getattr(ln, name)(x, i, u, axis), x, i, u)
    assert_equal(found, expected)


def test_extremes_by_atomic_updates_have_the_same_bits_each_time() -> None:
    with ln.Fusion("largest") as f:
        x, i = f.input("x", ("V",), ln.float32), f.input("i", ("K",), ln.int32)
        f.output(ln.scatter_max(x, i, f.input("u", ("K",), ln.float32), 0), "y")
    assert ln.auto_schedule(f, "cuda").name == "scatter"
    kernel = ln.lower(f)
    assert "atomic" in str(kernel)
    assert ln.verify(kernel).all_sizes
    x, i, u = small(6), RNG.integers(0, 6, 50).astype(np.int32), small(50)
    u[7] = np.nan
    for seed in range(3):
        found = ln.compile(kernel, target="interpret", thread_order=seed)(x, i, u)
        assert_equal(found, ln.evaluate(f, x, i, u))


# Products


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.uint8])
@pytest.mark.parametrize(("axis", "shape"), [(0, (7, 4)), (1, (3, 6)), (1, (2, 6)), (0, (0, 2))])
def test_products(axis: int, shape: tuple[int, ...], dtype: Any) -> None:
    x, u = np.abs(small(3, 4)).astype(dtype), np.abs(small(*shape)).astype(dtype)
    if x.dtype.kind == "f" and u.size:
        x[1, 1], u[0, 0] = np.inf, np.nan
    i = RNG.integers(-1, x.shape[axis] + 1, shape)
    inside = [at for at in np.ndindex(*shape) if 0 <= i[at] < x.shape[axis]]
    target = [(*at[:axis], i[at], *at[axis + 1 :]) for at in inside]
    expected = x.astype(np.float32) if dtype is np.float16 else x.copy()
    if inside:
        np.multiply.at(expected, tuple(np.transpose(target)), [u[at] for at in inside])
    found = run(lambda x, i, u: scatter_prod(x, i, u, axis), x, i, u)
    assert_equal(found, expected.astype(dtype))


def test_products_by_atomic_updates() -> None:
    with ln.Fusion("products") as f:
        x, i = f.input("x", ("V",), ln.int32), f.input("i", ("K",), ln.int32)
        f.output(scatter_prod(x, i, f.input("u", ("K",), ln.int32), 0), "y")
    assert ln.auto_schedule(f, "cuda").name == "scatter"
    kernel = ln.lower(f)
    assert "atomic" in str(kernel)
    assert ln.verify(kernel).all_sizes
    x, u = RNG.integers(-9, 9, (2, 50)).astype(np.int32)
    i, expected = RNG.integers(0, 50, 50).astype(np.int32), x.copy()
    np.multiply.at(expected, i, u)
    for seed in range(3):
        assert_equal(ln.compile(kernel, target="interpret", thread_order=seed)(x, i, u), expected)


# Places that differ


def unique_scatter(kind: str) -> ln.Fusion:
    """Return a scatter whose indices are an input, one with strides, or computed."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("V", "D"), ln.float32)
        strides = {"strides": (1, "K")} if kind == "strided" else {}
        i = f.input("i", ("K", "D"), ln.int32, **strides)
        places = (i - 1).named("places") if kind == "computed" else i
        f.output(ln.scatter(x, places, f.input("u", ("K", "D"), ln.float32), 0, unique=True), "y")
    return f


@pytest.mark.parametrize("kind", ["input", "strided", "computed"])
def test_places_that_differ(kind: str) -> None:
    f = unique_scatter(kind)
    ln.auto_schedule(f, "c")
    kernel = ln.lower(f)
    report, source = ln.verify(kernel), "places" if kind == "computed" else "i"
    assert report.all_sizes
    assert str(report).splitlines() == [
        "proved for all sizes",
        f"  unique: assuming that the places of {source} differ, as declared by unique=True",
    ]
    x, u, first = small(9, 3), small(6, 3), 1 if kind == "computed" else 0
    i = np.stack([RNG.permutation(12)[:6] - 1 for _ in range(3)], axis=1).astype(np.int32) + first
    i[2:4] = 20  # those outside need not differ
    passed = np.asfortranarray(i) if kind == "strided" else i
    for target in ("c", "interpret"):
        found = ln.compile(kernel, target=target)(x, passed, u)
        assert_equal(found, assigned(x, i - first, u, 0))
    i[:, 2] = np.array([0, 1, 2, 3, 4, 1]) + first
    passed = np.asfortranarray(i) if kind == "strided" else i
    said = (
        f"{source}[1, 2] and {source}[5, 2] are both 1, but unique=True declares that the places "
        f"of {source} differ; pass places that differ along axis 0, or leave out unique=True"
    )
    before = x.copy()
    with pytest.raises(ln.LaunchError) as refused:
        ln.compile(kernel, target="c")(x, passed, u)
    assert str(refused.value) == f"k(...): {said}"
    with pytest.raises(ln.KernelFault) as fault:
        ln.compile(kernel, target="interpret")(x, passed, u)
    assert str(fault.value) == f"k: {said}"
    unchecked = ln.compile(kernel, target="c", check_indices=False)
    assert_equal(unchecked(x, passed, u), assigned(before, i - first, u, 0))


SCATTER_REFUSED = [
    ("ln.scatter(x, i, i, 0)", "i is int32, x is float32; both have one type; convert one by "
     "ln.cast"),
    ("ln.scatter(x, i, x, 0)", "x is float32[V, D], i is int32[K, D]; the indices have the shape "
     "of the updates"),
    ("ln.scatter(x, i, 1.0, 0)", "the updates are of type float; use a TensorView"),
    ("ln.scatter(x, u, u, 0)", "u is float32; indices are integers; convert them by ln.cast"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "reason"), SCATTER_REFUSED)
def test_scatters_that_are_refused(text: str, reason: str) -> None:
    f, _, _ = scatter_fusion()
    names = {"ln": ln, "x": f["x"], "i": f["i"], "u": f["u"]}
    with pytest.raises(ln.DefinitionError) as caught:
        eval(text, names)
    assert str(caught.value) == f"{text[3:]}: {reason}"


def test_mutants_of_a_scatter_are_not_proved() -> None:
    f, last, y = scatter_fusion()
    walked(last, y)
    lowered = ln.lower(f)._lowered
    assert lowered.math is not None
    math = lowered.math()
    kinds = frozenset({"predicate", "index", "claim", "init", "store", "identity"})
    made = [
        m for m in mutants(lowered.program, kinds) if not m.text.startswith(("drop '", "weaken"))
    ]
    made = [m for m in made if not (m.kind == "claim" and getattr(m.node, "role", "") == "init")]
    assert len(made) > 45
    assert [m.text for m in made if verify_program(m.program, math).ok] == []
