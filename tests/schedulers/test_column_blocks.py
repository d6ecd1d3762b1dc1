"""Folds of columns: blocks of vectors whose results stay in registers."""

from __future__ import annotations

import numpy as np
import pytest

import loopnest as ln
from loopnest.numerics.compare import compare
from loopnest.numerics.error_bounds import enclosures
from loopnest.schedulers import Processor, auto_schedule

AVX2 = Processor(vector_bytes=32, registers=16)
AVX512 = Processor(vector_bytes=64, registers=32, cores=2)
MANY_CORES = Processor(vector_bytes=64, registers=32, cores=64)
PROCESSORS = {"any": Processor(), "avx2": AVX2, "avx512": AVX512, "many": MANY_CORES}


def largest(x):
    return ln.max(x, axis=-2)


def scaled_sum(x):
    return ln.sum(x * 2.0, axis=-2) + 1.0


def standardised(x):
    mean = ln.mean(x, axis=-2, keepdims=True)
    return (x - mean) * ln.rsqrt(ln.mean((x - mean) * (x - mean), axis=-2, keepdims=True) + 1e-3)


def two_sums(x):
    return ln.sum(x, axis=-2), ln.sum(x * x, axis=-2)


def vector_and_matrix(x):
    weights = ln.sigmoid(x[..., 0:1])  # [K, 1]
    return ln.sum(weights * x, axis=-2)


BUILDS = {f.__name__: f for f in (largest, scaled_sum, standardised, two_sums, vector_and_matrix)}
SHAPES = [(9, 512), (40, 320), (3, 7, 96), (5, 1024), (6, 304), (7, 100), (2, 64), (0, 64)]


def scheduled(build, shape, processor, dtype=ln.float32):
    with ln.Fusion("columns") as f:
        made = build(f.input("x", shape, dtype))
        for number, tensor in enumerate(made if isinstance(made, tuple) else (made,)):
            f.output(tensor, f"y{number}")
    return f, auto_schedule(f, "c", processor).name


def block_of(f):
    """Return the extents of the loops of a fold inside of those over what it folds."""
    fold = next(t for t in f.tensors if any(axis.is_reduction for axis in t.leaf_domain))
    last = max(n for n, axis in enumerate(fold.leaf_domain) if axis.is_reduction)
    return [axis.extent for axis in fold.leaf_domain[last + 1 :]]


@pytest.mark.parametrize("name", BUILDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("processor", PROCESSORS)
def test_values_and_proof(name, shape, processor):
    f, chosen = scheduled(BUILDS[name], shape, PROCESSORS[processor])
    assert chosen == "fold"
    kernel = ln.lower(f)
    report = ln.verify(kernel)
    assert report.ok, report
    if processor == "avx512":
        x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
        results = ln.compile(kernel, target="c", optimize=1)(x)
        bounds = enclosures(f, [x], {})
        for output, result in zip(
            f.outputs, results if isinstance(results, tuple) else (results,), strict=True
        ):
            verdict = compare(output.name, result, bounds[output.name])
            assert verdict.ok, str(verdict)


@pytest.mark.parametrize(
    ("shape", "processor", "expected"),
    [
        ((100, 1024), AVX512, [32, 16]),  # as many vectors as registers
        ((100, 1024), AVX2, [16, 8]),
        ((100, 320), AVX512, [10, 16]),  # two cores, a half each
        ((8, 100, 320), AVX512, [20, 16]),  # a whole row
        ((100, 1024), MANY_CORES, [8, 16]),  # no shorter pieces of rows for the sake of cores
        ((100, 300), AVX512, [112]),  # no whole vectors
        ((100, 16 * 37), AVX512, [80]),  # 37 vectors: no number of them divides
    ],
)
def test_a_block_of_columns(shape, processor, expected):
    f, _ = scheduled(largest, shape, processor)
    assert block_of(f) == expected


def test_what_is_read_again_stays_in_the_cache():
    shape = (64, 2048)
    once, _ = scheduled(largest, shape, AVX512)
    again, _ = scheduled(
        standardised, shape, Processor(vector_bytes=64, registers=32, cache=1 << 16)
    )
    assert block_of(once) == [32, 16]
    assert block_of(again) == [8, 16]


def test_other_types_and_several_components_keep_one_loop():
    f, _ = scheduled(largest, (40, 320), AVX512, ln.int32)
    assert len(block_of(f)) == 1
    f, _ = scheduled(lambda x: ln.argmax(x, axis=0), (40, 320), AVX512)
    assert len(block_of(f)) == 1


def test_doubles_have_half_of_the_lanes():
    f, _ = scheduled(largest, (100, 1024), AVX512, ln.float64)
    assert block_of(f) == [32, 8]
    assert "ln_f64x8_max" in ln.lower(f).c()


def test_what_is_folded_is_computed_in_its_lanes():
    """A product in front of a sum has no loop, and no array, of its own."""
    f, _ = scheduled(vector_and_matrix, (100, 1024), AVX512)
    arrays = [line for line in ln.lower(f).c().splitlines() if "_Alignas(64) float" in line]
    assert len(arrays) == 1, arrays


@pytest.mark.parametrize("dtype", [ln.bool, ln.int8, ln.float16, ln.int64, ln.float64])
@pytest.mark.parametrize("processor", PROCESSORS)
def test_results_of_other_widths(dtype, processor):
    """A result wider than the sums is stored element by element; the sums are vectors."""
    f, chosen = scheduled(
        lambda x: ln.cast(ln.sum(x, axis=0), dtype), (12, 320), PROCESSORS[processor]
    )
    assert chosen == "fold"
    assert len(block_of(f)) == 2
    kernel = ln.lower(f)
    assert ln.verify(kernel).all_sizes
    x = np.random.default_rng(2).integers(-3, 4, (12, 320)).astype(np.float32)
    np.testing.assert_array_equal(
        ln.compile(kernel, target="c", optimize=1)(x), ln.evaluate(f, x).astype(dtype.numpy)
    )
