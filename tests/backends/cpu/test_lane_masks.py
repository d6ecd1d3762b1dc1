"""Booleans in memory where a loop is printed in C with vector types: bytes, and masks of lanes."""

import numpy as np
import pytest

from helpers.printed_c import run_c
from loopnest.backends.cpu.c_printer import print_c
from loopnest.kir import parse as parse_nest

RNG = np.random.default_rng(12)
FLOATS = pytest.mark.parametrize("dtype", ["float32", "float64"])


def body_of(nest):
    return print_c(parse_nest(nest), prelude=False)


@pytest.fixture(params=[16, 32, 64])
def run(request):
    """Run a nest with vector types of so many bytes, whatever the machine has."""

    def run(nest, **values):
        width = f"#define LN_VECTOR_BYTES {request.param}\n"
        return run_c(parse_nest(nest), before=width, **values)

    return run


@FLOATS
@pytest.mark.parametrize("n", [0, 1, 7, 8, 21, 24])
def test_a_row_of_booleans_is_loaded_and_stored_by_vectors(run, dtype, n):
    """Also where the row ends before the last lane: nothing behind the end is written."""
    nest = f"""
        kernel k(x: {dtype}[N], p: bool[N]) -> (y: {dtype}[N], q: bool[M])
        for i0 in ceildiv(N, 8):
          for i1 in 8:  # vectorize
            T2: bool[1] local
            if i0 * 8 + i1 < N:
              T2[0] = x[i0 * 8 + i1] <= 0.0 or not p[i0 * 8 + i1]
              q[i0 * 8 + i1] = T2[0]
              y[i0 * 8 + i1] = where(T2[0], 0.0, x[i0 * 8 + i1])
        """
    text = body_of(nest)
    name = f"ln_f{dtype[-2:]}x8"
    assert f"{name}_mask T2 = " in text
    assert f"{name}_store_mask(&q[i0 * 8 + i1], T2);" in text
    assert f"{name}_store_mask_of(&q[i0 * 8 + i1], ln_rest, T2);" in text
    assert "#pragma omp simd" not in text
    x, p = RNG.standard_normal(n).astype(dtype), RNG.random(n) < 0.5
    q = np.full(n + 8, True)
    result = run(nest, x=x, p=p, q=q)
    wanted = (x <= 0) | ~p
    np.testing.assert_array_equal(result["q"].view(np.uint8), [*wanted, *[1] * 8])
    np.testing.assert_array_equal(result["y"], np.where(wanted, 0, x))


@FLOATS
def test_a_loop_that_stores_booleans_alone_has_the_type_that_it_compares(run, dtype):
    nest = f"""
        kernel k(x: {dtype}[16], s: {dtype}) -> (q: bool[16])
        for i0 in 16:  # vectorize
          let v0 = x[i0] < s
          q[i0] = v0 and not isnan(x[i0])
        """
    assert f"ln_f{dtype[-2:]}x{16 if dtype == 'float32' else 8}_mask v0 = " in body_of(nest)
    x = RNG.standard_normal(16).astype(dtype)
    x[3] = np.nan
    result = run(nest, x=x, s=0.25)
    np.testing.assert_array_equal(result["q"].view(np.uint8), x < 0.25)


@pytest.mark.parametrize("s", [0.5, -0.5, np.nan])
def test_a_condition_that_is_the_same_for_all_lanes_is_a_mask_in_memory(run, s):
    nest = """
        kernel k(x: float32[8], s: float32) -> (y: float32[8], q: bool[8], r: bool[8])
        for i0 in 8:
          y[i0] = float32(x[i0] > 0.0 and s > 0.0) - x[i0]
          q[i0] = s > 0.0
          r[i0] = True
        """
    assert "ln_f32x8_store_mask(&q[i0], ((ln_f32x8_mask){0} - (int)(s > 0.0f)));" in body_of(nest)
    x = RNG.standard_normal(8).astype(np.float32)
    result = run(nest, x=x, s=s)
    np.testing.assert_array_equal(result["y"], ((x > 0) & (s > 0)) - x)
    np.testing.assert_array_equal(result["q"].view(np.uint8), [s > 0] * 8)
    np.testing.assert_array_equal(result["r"].view(np.uint8), [1] * 8)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_a_variable_of_bools_is_a_mask_of_all_lanes(run, dtype):
    nest = f"""
        kernel k(x: {dtype}[8], s: {dtype}) -> (y: {dtype}[8], q: bool[8])
        T3: bool[1] local
        T3[0] = s > x[0]
        for i0 in 8:
          T2: bool[1] local
          T2[0] = s > x[1]
          y[i0] = where(T3[0], x[i0], s)
          q[i0] = T2[0]
        """
    x = np.arange(8).astype(dtype)
    for s in (-1, 1, 2):
        result = run(nest, x=x, s=s)
        np.testing.assert_array_equal(result["y"], x if s > 0 else np.full(8, s, dtype))
        np.testing.assert_array_equal(result["q"].view(np.uint8), [s > 1] * 8)


def test_lanes_that_a_test_leaves_out_keep_their_booleans(run):
    nest = """
        kernel k(x: float32[8]) -> (q: bool[8], r: bool[8])
        for i0 in 8:  # vectorize
          T2: bool[1] local
          T2[0] = x[i0] > 1.0
          if x[i0] < 0.0:
            T2[0] = True
            r[i0] = x[i0] < -1.0
          q[i0] = T2[0]
        """
    assert "simd" not in body_of(nest)
    x = np.array([2, -2, 0.5, -0.5, np.nan, 3, -3, 0], np.float32)
    result = run(nest, x=x, r=np.full(8, True))
    np.testing.assert_array_equal(result["q"], (x > 1) | (x < 0))
    np.testing.assert_array_equal(result["r"], ~(x < 0) | (x < -1))


def test_a_boolean_that_a_condition_guards_is_read_of_its_lanes_alone(run):
    """Of an array of four booleans, eight lanes read four."""
    nest = """
        kernel k(p: bool[4], x: float32[8]) -> (y: float32[8])
        for i0 in 8:  # vectorize
          y[i0] = where(2 <= i0 and (i0 < 6 and p[i0 - 2]), x[i0], -1.0)
        """
    assert "_load_mask_of(&p[i0 - 2], ln_f32x8_first(6 - i0)" in body_of(nest)
    p, x = np.array([1, 0, 0, 1], bool), RNG.standard_normal(8).astype(np.float32)
    wanted = np.where([0, 0, *p, 0, 0], x, np.float32(-1))
    np.testing.assert_array_equal(run(nest, p=p, x=x)["y"], wanted)


@pytest.mark.parametrize(
    "statement",
    [
        "q[i0] = p[i0] and p[i0 + 8]",  # no floats: the compiler has vectors of bytes
        "q[i0] = p[i0 * 2] and x[i0] < 0.0",  # no neighbours
        "q[i0] = p[0] == (x[i0] < 0.0)",  # booleans compared
        "q[i0] = x[i0] < 0.0 and p[0]",  # one load, under a condition that differs
        "q[i0] = bool(x[i0])",
        "q[i0] = x[i0] < 0.0 or h[i0] < 0.0",  # two types
    ],
)
def test_booleans_without_a_vector_form_stay_a_loop_over_lanes(run, statement):
    nest = f"""
        kernel k(x: float32[8], h: float64[8], p: bool[16]) -> (q: bool[8])
        for i0 in 8:  # vectorize
          {statement}
        """
    text = body_of(nest)
    assert "_mask" not in text
    assert "#pragma omp simd" in text
    assert "const uint8_t *restrict p" in text
    x, p = RNG.standard_normal(8).astype(np.float32), RNG.random(16) < 0.5
    h = x[::-1].astype(np.float64)
    names = {"x": x, "h": h, "p": p, "i0": np.arange(8), "bool": lambda a: a != 0}
    value = statement.split(" = ")[1].replace(" and ", ") & (").replace(" or ", ") | (")
    wanted = eval(f"({value})", names)
    np.testing.assert_array_equal(run(nest, x=x, h=h, p=p)["q"].view(np.uint8), wanted)
