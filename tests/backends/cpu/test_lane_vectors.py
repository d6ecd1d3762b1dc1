"""Vectorized loops that are printed in C with vector types, at every width of a register."""

import numpy as np
import pytest

from helpers.printed_c import run_c
from loopnest.backends.cpu.c_printer import print_c
from loopnest.kir import parse as parse_nest

RNG = np.random.default_rng(11)


def body_of(nest):
    return print_c(parse_nest(nest), prelude=False)


def randn(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


@pytest.fixture(params=[16, 32, 64])
def run(request):
    """Run a nest with vector types of so many bytes, whatever the machine has."""

    def run(nest, **values):
        width = f"#define LN_VECTOR_BYTES {request.param}\n"
        return run_c(parse_nest(nest), before=width, **values)

    return run


PRODUCT = """
    kernel k(a: float32[M], b: float32[N * 16]) -> (c: float32[M, N * 16])
    for i0 in M:
      for i1 in N:
        T2: float32[1] local
        T2[0] = a[i0]
        T3: float32[16] local
        for i2 in 16:  # vectorize
          T3[i2] = T2[0] * b[i1 * 16 + i2]
        for i3 in 16:  # vectorize
          c[i0, i1 * 16 + i3] = -T3[i3] / 3.0 + T2[0]
    """


def test_arithmetic_on_neighbours_becomes_vectors(run):
    text = body_of(PRODUCT)
    assert text.count("i2 += LN_LANES(ln_f32x16)") == 1
    assert "LN_VEC(ln_f32x16, T3[i2]) = T2 * LN_VEC(ln_f32x16, b[i1 * 16 + i2]);" in text
    a, b = randn(3), randn(32)
    result = run(PRODUCT, a=a, b=b, sizes={"N": 2})
    wanted = -(a[:, None] * b) / np.float32(3) + a[:, None]
    np.testing.assert_allclose(result["c"], wanted, rtol=1e-6)


@pytest.mark.parametrize(("dtype", "name"), [("float32", "ln_f32x4"), ("float64", "ln_f64x4")])
def test_private_scalars_and_names_are_vectors_where_their_value_differs(run, dtype, name):
    nest = f"""
        kernel k(x: {dtype}[8], s: {dtype}) -> (y: {dtype}[8])
        for i0 in 2:
          for i1 in 4:  # vectorize
            T2: {dtype}[1] local
            T2[0] = s * 2.0
            T3: {dtype}[1] local
            T3[0] = x[i0 * 4 + i1] * T2[0]
            let v0 = T3[0] + T2[0]
            if i0 == 0:
              y[i0 * 4 + i1] = v0
            else:
              y[i0 * 4 + i1] = v0 - T3[0]
        """
    text = body_of(nest)
    kind = "float" if dtype == "float32" else "double"
    assert f"{kind} T2 = s * 2.0" in text
    assert f"{name} T3 = " in text
    assert f"const {name} v0 = T3 + T2;" in text
    x = randn(8, dtype=dtype)
    result = run(nest, x=x, s=1.5)
    np.testing.assert_allclose(result["y"], np.r_[x[:4] * 3 + 3, np.full(4, 3)], rtol=1e-5)


def test_one_value_in_all_lanes_keeps_its_sign(run):
    nest = """
        kernel k(s: float32) -> (y: float32[8])
        for i0 in 8:  # vectorize
          y[i0] = s
        """
    assert "LN_VEC(ln_f32x8, y[i0]) = LN_ALL(ln_f32x8, s);" in body_of(nest)
    assert np.signbit(run(nest, s=-0.0)["y"]).all()
    assert np.isnan(run(nest, s=np.nan)["y"]).all()


@pytest.mark.parametrize(
    "statement",
    [
        "y[i0] = exp(x[i0])",  # a call
        "y[i0] = max(x[i0], 0.0)",
        "y[i0] = where(x[i0] < 0.0, 0.0, x[i0])",
        "y[i0] = x[i0 * 2]",  # no neighbours
        "y[i0] = x[15 - i0]",
        "y[i0] = x[i0 % 4] + 1.0",
        "y[i0] = float32(i0)",  # the number of the lane
        "y[i0] = x[i0] + float32(i0)",
        "y[i0 * 2] = x[i0] * 2.0",
        "y[i0] = float32(h[i0])",  # another type
    ],
)
def test_what_has_no_vector_form_stays_a_loop_over_lanes(statement):
    nest = f"""
        kernel k(x: float32[16], h: float16[16]) -> (y: float32[16])
        for i0 in 8:  # vectorize
          {statement}
        """
    text = body_of(nest)
    assert "LN_VEC" not in text
    assert "#pragma omp simd" in text


def test_where_lanes_are_tested_vectors_do_the_part_that_needs_no_test(run):
    nest = """
        kernel k(x: float32[N]) -> (y: float32[N])
        for i0 in ceildiv(N, 8):
          for i1 in 8:  # vectorize
            if i0 * 8 + i1 < N:
              y[i0 * 8 + i1] = x[i0 * 8 + i1] * 2.0
        """
    text = body_of(nest)
    assert text.count("+= LN_LANES(ln_f32x8)") == 1
    assert text.count("#pragma omp simd") == 1
    x = randn(13)
    np.testing.assert_array_equal(run(nest, x=x)["y"], x * 2)


def test_a_scalar_that_differs_on_one_branch_alone_differs_behind_it(run):
    nest = """
        kernel k(x: float32[8], s: float32) -> (y: float32[8])
        for i0 in 2:
          for i1 in 4:  # vectorize
            T2: float32[1] local
            if i0 == 0:
              T2[0] = s
            else:
              T2[0] = x[i0 * 4 + i1]
            y[i0 * 4 + i1] = T2[0] * 2.0
        """
    x = randn(8)
    np.testing.assert_array_equal(run(nest, x=x, s=3.0)["y"], np.r_[np.full(4, 6), x[4:] * 2])
