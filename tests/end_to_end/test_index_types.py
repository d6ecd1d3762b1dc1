"""Indices of every type of integers, also at the ends of the type."""

from __future__ import annotations

import numpy as np
import pytest

import loopnest as ln
import loopnest.graph as G
from loopnest.scalar import dtypes
from loopnest.schedulers import auto_schedule

TYPES = [ln.int8, ln.int16, ln.int32, ln.int64, ln.uint8, ln.uint16, ln.uint32]
TAKES = ("raise", "clip", "wrap")
OPS = (*TAKES, "gather", "scatter", "scatter_add", "index_add")
N, D, K = 37, 5, 50


def test_these_are_all_of_them() -> None:
    assert set(TYPES) == set(dtypes.INTEGERS)


def fusion(op: str, dtype: ln.DType) -> ln.Fusion:
    along = op in TAKES or op == "index_add"
    with ln.Fusion("k") as f:
        x, i = (
            f.input("x", ("N", "D"), ln.float32),
            f.input("i", ("K",) if along else ("N", "D"), dtype),
        )
        if op in TAKES:
            y = ln.take(x, i, 0, mode=op)
        elif op == "gather":
            y = ln.gather(x, i, 0)
        else:
            u = f.input("u", ("K" if along else "N", "D"), ln.float32)
            y = ln.index_add(x, 0, i, u) if along else getattr(ln, op)(x, i, u, 0)
        f.output(y, "y")
    return f


def arguments(f: ln.Fusion, op: str, dtype: ln.DType) -> list[np.ndarray]:
    rng, limits = np.random.default_rng(0), np.iinfo(dtype.numpy)
    places = list(range(N))
    if op not in ("raise", "gather"):  # of those every index lies inside
        places += [N, 100, int(limits.max), int(limits.min)]
    extents = {"N": N, "D": D, "K": K}
    made = []
    for tensor in f.inputs:
        shape = [extents[str(size)] for size in tensor.shape]
        values = rng.choice(np.array(places, object), shape)
        made.append((values if tensor.name == "i" else values % 9).astype(tensor.dtype.numpy))
    return made


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_results_and_proofs(op: str, dtype: ln.DType) -> None:
    every = dtype in (ln.int8, ln.uint32)  # the narrowest, and one whose ends an int32 lacks
    for schedule in ("plain", "automatic", "by update") if every else ("by update",):
        f = fusion(op, dtype)
        if schedule == "automatic":
            auto_schedule(f, "c")
        elif schedule == "by update":
            for tensor in f.tensors:
                if any(axis.is_reduction for axis in tensor.leaf_domain):
                    tensor.reorder({2: 0})
        arrays = arguments(f, op, dtype)
        expected = ln.evaluate(f, *arrays)
        kernel = ln.lower(f)
        report = ln.verify(kernel)
        assert report.all_sizes
        assert report.status == ("unknown" if op in ("raise", "gather") else "proved")
        for target in ("interpret", "c"):
            np.testing.assert_array_equal(ln.compile(kernel, target=target)(*arrays), expected)


def test_a_table_of_all_that_a_type_has_needs_no_range() -> None:
    with ln.Fusion("k") as f:
        x, i = f.input("x", (256,), ln.float32), f.input("i", ("K",), ln.uint8)
        f.output(ln.take(x, i, 0), "y")
    kernel = ln.lower(f)
    assert str(ln.verify(kernel)) == "proved for all sizes"
    assert kernel._lowered.program.index_checks == ()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_an_index_outside(dtype: ln.DType) -> None:
    fn = ln.compile(fusion("raise", dtype), target="c")
    x, i = np.zeros((N, D), np.float32), np.zeros(3, dtype.numpy)
    ends = {int(end) for end in (np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max)} - {0}
    for value in (N, *ends):
        i[2] = value
        with pytest.raises(ln.LaunchError) as caught:
            fn(x, i)
        assert str(caught.value) == (
            f"k(...): i[2] is {value}, where y reads axis 0 of x, which has {N} elements; pass "
            f"elements in 0..{N - 1}"
        )


@pytest.mark.parametrize("name", ["int8", "uint8", "uint32"])
def test_graphs(name: str) -> None:
    x, i = G.var("x", (N, D), "float32"), G.var("i", (K,), name)
    fn = G.compile(G.Graph([x, i], [G.take(x, i, 0), G.index_add(x, i, G.take(x, i, 0), 0)]))
    table = np.arange(N * D, dtype=np.float32).reshape(N, D)
    places = np.random.default_rng(0).integers(0, N, K).astype(name)
    taken, added = fn(table, places)
    np.testing.assert_array_equal(taken, table[places])
    expected = table.copy()
    np.add.at(expected, places, table[places])
    np.testing.assert_allclose(added, expected, rtol=1e-6)
