"""The C text of buffers and their memory."""

import numpy as np

from helpers.printed_c import run_c
from helpers.printed_nests import body_of, randn
from loopnest.kir import parse as parse_nest

# Memory


def test_scratch_in_parallel_loops():
    # Each thread keeps its row in memory of its own; rows are large, and there are two of them.
    program = parse_nest("""
        kernel k(x: float32[N, D]) -> (y: float32[N, D])
        for i0 in N:  # cpu_parallel
          T2: float32[D] local
          T3: float64[D + 1] local
          for i1 in D:
            T2[i1] = x[i0, i1] * 2.0
            T3[i1 + 1] = float64(x[i0, i1])
          T3[0] = float64(0.0)
          for i2 in D:
            y[i0, i2] = T2[D - 1 - i2] + float32(T3[i2])
        """)
    text = body_of(program)
    assert "ln_reserve(&ln_bytes, size_D, sizeof(float))" in text
    assert "ln_reserve(&ln_bytes, size_D + 1, sizeof(double))" in text
    for shape in ((64, 5000), (3, 1), (1, 100000)):
        x = randn(*shape)
        expected = x[:, ::-1] * 2
        expected[:, 1:] += x[:, :-1]
        result = run_c(program, x=x)
        assert result.status == 0
        np.testing.assert_array_equal(result["y"], expected)


def test_scratch_without_parallel_loops():
    program = parse_nest("""
        kernel k(x: float32[D]) -> (y: float32[D])
        T2: float32[D] local
        for i0 in D:
          T2[i0] = x[i0]
        for i1 in D:
          y[i1] = T2[D - 1 - i1]
        """)
    x = randn(1000)
    np.testing.assert_array_equal(run_c(program, x=x)["y"], x[::-1])


def test_scratch_made_outside_a_parallel_loop():
    program = parse_nest("""
        kernel k(x: float32[N, D]) -> (y: float32[N, D])
        for i0 in N:
          T2: float32[D] local
          for i1 in D:
            T2[i1] = x[i0, i1]
          for i2 in D:  # cpu_parallel
            T3: float32[D] local
            T3[0] = T2[D - 1 - i2]
            y[i0, i2] = T3[0]
        """)
    x = randn(4, 99)
    np.testing.assert_array_equal(run_c(program, x=x)["y"], x[:, ::-1])


def test_large_static_buffers_do_not_lie_on_the_stack():
    program = parse_nest("""
        kernel k(x: float32[4000000]) -> (y: float32[4000000])
        T2: float32[4000000] local
        for i0 in 4000000:
          T2[i0] = x[i0]
        for i1 in 4000000:
          y[i1] = T2[3999999 - i1]
        """)
    x = randn(4000000)
    np.testing.assert_array_equal(run_c(program, x=x)["y"], x[::-1])


def test_out_of_memory_is_reported_before_anything_runs():
    program = parse_nest("""
        kernel k(x: float32[N]) -> (y: float32[N])
        T2: float32[N * M] local
        for i0 in N:
          T2[i0] = x[i0]
          y[i0] = T2[i0]
        """)
    for m in (1 << 59, 1 << 50):
        result = run_c(program, {"M": m}, x=randn(4))
        assert result.status == 1
        np.testing.assert_array_equal(result["y"], np.full(4, 77, np.float32))


def test_output_in_the_memory_of_an_input():
    program = parse_nest("""
        kernel k(p: float32[N], g: float32[N], lr: float32) -> (p_new: float32[N] in p)
        for i0 in N:  # cpu_parallel
          p[i0] = p[i0] - g[i0] * lr
        """)
    assert "    float *restrict p,\n    const float *restrict g," in body_of(program)
    p, g = np.arange(8, dtype=np.float32), np.ones(8, np.float32)
    np.testing.assert_array_equal(run_c(program, p=p, g=g, lr=0.5)["p"], np.arange(8) - 0.5)


def test_padded_and_flat_accesses():
    program = parse_nest("""
        kernel k(x: float32[N, M]) -> (y: float32[N, M])
        for i0 in N:
          T2: float32[4, M] local
          for i1 in M:
            T2[3, i1] = x.flat[i0 * M + i1]
          for i2 in M:
            y.flat[i0 * M + i2] = T2[3, i2]
        """)
    x = randn(3, 5)
    np.testing.assert_array_equal(run_c(program, x=x)["y"], x)


def test_allocations_move_to_their_first_use():
    program = parse_nest("""
        kernel k(x: float32[N], z: float32[N]) -> (y: float32[N])
        for i0 in ceildiv(N, 8):  # cpu_parallel
          T2: float32[1] local
          T3: float32[1] local
          for i1 in 8:
            T4: float32[1] local
            T5: float32[2] local
            if i0 * 8 + i1 < N:
              T2[0] = x[i0 * 8 + i1]
              T4[0] = T2[0] * 2.0
              T5[1] = T4[0]
              y[i0 * 8 + i1] = T5[1]
          T3[0] = 1.0
          for i2 in 8:
            if i0 * 8 + i2 < N:
              T3[0] = T3[0] * z[i0 * 8 + i2]
        """)
    text = body_of(program)
    assert (
        """\
    for (idx_t i1 = 0; i1 < ln_min_i64(8, N - i0 * 8); ++i1) {
      float T2 = x[i0 * 8 + i1];  // T2
      float T4 = T2 * 2.0f;  // T4
      float T5[2];
      T5[1] = T4;  // T5
      y[i0 * 8 + i1] = T5[1];  // y
    }
    float T3 = 1.0f;  // T3
    for (idx_t i2 = 0; i2 < ln_min_i64(8, N - i0 * 8); ++i2) {
      T3 = T3 * z[i0 * 8 + i2];  // T3
    }
"""
        in text
    )
    x, z = randn(21), randn(21)
    np.testing.assert_array_equal(run_c(program, x=x, z=z)["y"], x * 2)


def test_a_scalar_made_outside_a_parallel_loop_that_needs_it_afresh():
    program = parse_nest("""
        kernel k(x: float32[N]) -> (y: float32[N])
        T2: float32[1] local
        for i0 in N:  # cpu_parallel
          T2[0] = x[i0]
          y[i0] = T2[0] * T2[0]
        """)
    assert "float T2 = x[i0];" in body_of(program)
    assert "#pragma omp parallel" in body_of(program)
    x = randn(100)
    np.testing.assert_array_equal(run_c(program, x=x)["y"], x * x)
