"""Samples: the part of a large problem that the oracle evaluates."""

from __future__ import annotations

import numpy as np
import pytest

import loopnest as ln
from kernels.gemm import gemm
from kernels.lstm_cell import lstm_cell
from kernels.softmax import softmax
from loopnest.devtools.harness import make_arguments
from loopnest.numerics.error_bounds import enclosures
from loopnest.numerics.subsample import Sample, choose, points


def lengths(fusion: ln.Fusion, sample: Sample, name: str) -> list[int | None]:
    axes = fusion[name].domain.logical
    return [len(sample.places[a]) if a in sample.places else None for a in axes]


def test_all_where_that_is_enough() -> None:
    f = softmax.fusion()
    sizes = {"N": 10, "D": 20}
    total = points(f, sizes)
    assert choose(f, sizes, total) == Sample({})
    assert choose(f, sizes, total - 1) != Sample({})


def test_axes_that_are_reduced_stay_whole() -> None:
    f = softmax.fusion()
    sizes = {"N": 4096, "D": 1000}
    sample = choose(f, sizes, 1 << 20)
    assert sample is not None
    assert lengths(f, sample, "x") == lengths(f, sample, "y") == [128, None]
    assert lengths(f, sample, "largest") == [128]
    assert points(f, sizes, sample) <= 1 << 20
    (places,) = {tuple(found) for found in sample.places.values()}
    assert (places[0], places[-1]) == (0, 4095)
    assert len(set(places)) == 128
    assert list(places) == sorted(places)


def test_axes_of_products_are_cut_apart() -> None:
    f = gemm.fusion("cpu")
    sample = choose(f, {"M": 2048, "N": 512, "K": 1024}, 1 << 20)
    assert sample is not None
    m, n = lengths(f, sample, "c")
    assert lengths(f, sample, "a") == [m, None]
    assert lengths(f, sample, "b") == [None, n]
    assert 3 <= m <= 32
    assert 3 <= n <= 32


def test_nothing_fits() -> None:
    with ln.Fusion() as f:
        f.output(ln.sum(f.input("x", ("N",), ln.float32)), "y")
    assert choose(f, {"N": 100}, 199) is None
    assert choose(f, {"N": 100}, 200) == Sample({})


def test_axes_that_a_reduction_was_factored_along_stay_whole() -> None:
    with ln.Fusion() as f:
        x = f.input("x", ("N", "D"), ln.float32)
        f.output(ln.sum(x, 1), "y")
    f["y"].split(1, 4)
    partial = f["y"].rfactor(1)
    sample = choose(f, {"N": 1000, "D": 10}, 4000)
    assert sample is not None
    assert lengths(f, sample, "x") == [*lengths(f, sample, partial.name)[:1], None]
    assert lengths(f, sample, "x")[0] < 1000


@pytest.mark.parametrize("kernel", [softmax, gemm, lstm_cell], ids=lambda k: k.name)
@pytest.mark.parametrize("schedule", [None, "cpu"])
def test_a_part_is_what_the_whole_has_there(kernel: ln.KernelDef, schedule: str | None) -> None:
    f = kernel.fusion(schedule) if schedule else kernel.fusion("gpu")
    sizes = dict(zip(("N", "D", "M", "K", "B", "H"), (40, 17, 31, 9, 24, 30), strict=True))
    arguments = make_arguments(f, sizes)
    sample = choose(f, arguments.sizes, points(f, arguments.sizes) // 5)
    assert sample is not None
    keywords = arguments.keywords(f)
    whole = enclosures(f, arguments.arrays, keywords)
    part = enclosures(f, arguments.arrays, keywords, places=sample.places)
    for tensor in f.outputs:
        for a, b in zip(part[tensor.name].parts, whole[tensor.name].parts, strict=True):
            assert a.size < b.size
            assert np.array_equal(a, sample.of(tensor, b))


def test_coordinates_are_those_of_the_whole() -> None:
    with ln.Fusion() as f:
        i = ln.iota("N", dtype=ln.int32)
        f.output(i * 2, "y")
    sample = choose(f, {"N": 1000}, 40)
    assert sample is not None
    found = enclosures(f, [], {"N": 1000}, places=sample.places)["y"]
    y = f["y"]
    assert found.value.tolist() == sample.of(y, 2 * np.arange(1000)).tolist()
    assert sample.index(y, (found.value.size - 1,)) == (999,)
