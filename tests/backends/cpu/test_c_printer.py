"""The C text: compiled by the system's compiler, run, compared with NumPy."""

import ctypes
import math
import platform
import re
import shutil
import subprocess

import numpy as np
import pytest

from helpers.printed_c import run_c
from helpers.printer_cases import CASTS, GROUPING, row_sum
from loopnest.backends.cpu.c_compiler import compile_c
from loopnest.backends.cpu.c_printer import c_prelude, print_c
from loopnest.errors import InternalError
from loopnest.kir import Loop, Param, Program, Store
from loopnest.kir import parse as parse_nest
from loopnest.scalar import dtypes
from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import (
    Arg,
    Const,
    Index,
    LaunchIndex,
    Load,
    Op,
    ScalarParam,
    Symbol,
    integer,
)
from loopnest.scalar.op_table import OPS

RNG = np.random.default_rng(7)


def randn(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def body_of(program, **options):
    """Return the text without the headers."""
    return print_c(program, prelude=False, **options)


def both_widths(test):
    return pytest.mark.parametrize("bits", [32, 64])(test)


# Loops and launches


@both_widths
@pytest.mark.parametrize(("n", "d"), [(8, 5), (7, 5), (1, 1), (0, 3), (3, 0), (100, 33)])
def test_row_sum(bits, n, d):
    x = RNG.integers(-9, 9, (n, d)).astype(np.float32)
    result = run_c(row_sum(), x=x, bits=bits)
    assert result.status == 0
    np.testing.assert_array_equal(result["y"], x.sum(axis=1))


def test_text_of_row_sum():
    text = body_of(row_sum())
    assert (
        text
        == """\
LN_WORK ln_work_row_sum_1(
    const int64_t ln_from,
    const int64_t ln_to,
    const float *restrict x,
    float *restrict y,
    const idx_t N,
    const idx_t D)
{
  for (idx_t i0 = (idx_t)ln_from; i0 < (idx_t)ln_to; ++i0) {  // grid_x
    for (idx_t i1 = 0; i1 < 4; ++i1) {  // block_y
      float T2 = 0.0f;  // T2 init
      if (i0 * 4 + i1 < N) {
        for (idx_t i2 = 0; i2 < D; ++i2) {
          T2 = T2 + x[(i0 * 4 + i1) * D + i2];  // T2 update
        }
        y[i0 * 4 + i1] = T2;  // y
      }
    }
  }
}

int row_sum(
    const float *restrict x,
    float *restrict y,
    const int64_t size_N,
    const int64_t size_D)
{
  const idx_t N = (idx_t)size_N;
  const idx_t D = (idx_t)size_D;
  const int ln_threads = ln_max_threads();
  {
    const int64_t ln_count = (int64_t)((N + 3) / 4);  // grid_x
    const int64_t ln_stores = (size_N + 3) / 4 * (4 * (1 + (size_D + 1)));
    #pragma omp parallel num_threads(ln_team(ln_threads, ln_count, ln_stores))
      ln_work_row_sum_1(ln_share(ln_count, 0), ln_share(ln_count, 1), x, y, N, D);
  }
  return LN_OK;
}
"""
    )


def test_two_nests_guard_the_launch_dimension_that_is_too_large():
    # The second nest needs fewer blocks and threads than the launch has.
    program = parse_nest("""
        kernel k(x: float32[N], v: float32[3]) -> (y: float32[N], w: float32[3])
        for i0 in ceildiv(N, 8):  # grid_x
          for i1 in 8:  # block_x
            if i0 * 8 + i1 < N:
              y[i0 * 8 + i1] = x[i0 * 8 + i1] * 2.0
        for i2 in 1:  # grid_x
          for i3 in 3:  # block_x
            w[i3] = v[i3] + 1.0
        """)
    text = body_of(program)
    assert "if (grid_x < 1) {" in text
    assert "if (block_x < 3) {" in text
    for n in (1, 8, 50):
        x, v = randn(n), randn(3)
        result = run_c(program, x=x, v=v)
        np.testing.assert_array_equal(result["y"], x * 2)
        np.testing.assert_array_equal(result["w"], v + 1)


def test_loops_that_are_the_launch_need_no_guard():
    program = parse_nest("""
        kernel k(x: float32[N, M]) -> (y: float32[N, M])
        for i0 in N:  # grid_y
          for i1 in M:  # grid_x
            for i2 in 1:  # block_x
              y[i0, i1] = -x[i0, i1]
        """)
    text = body_of(program)
    assert "if (" not in text
    assert "const int64_t ln_count = (int64_t)N * M;" in text
    x = randn(5, 7)
    np.testing.assert_array_equal(run_c(program, x=x)["y"], -x)


def test_launch_index():
    program = parse_nest("""
        kernel k(x: float32[N]) -> (y: float32[N])
        for i0 in N:  # grid_x
          y[i0] = x[i0]
        """)
    (loop,) = program.body
    (store,) = loop.body
    place = LaunchIndex(ParallelType.grid_x)
    nowhere = LaunchIndex(ParallelType.block_z)  # not in use: 0
    value = Op(
        "add",
        (Load(store.value.buffer, (place,)), Op("cast", (nowhere,), dtypes.float32)),
        dtypes.float32,
    )
    moved = Store(store.storage, (place,), value, "y")
    program = program.with_body((Loop(loop.var, loop.parallel, "", (moved,)),))
    x = randn(9)
    np.testing.assert_array_equal(run_c(program, x=x)["y"], x)


@pytest.mark.parametrize("openmp", [True, False])
def test_parallel_loops(openmp):
    program = parse_nest("""
        kernel k(x: float32[N, M]) -> (y: float32[N, M], z: float32[M])
        for i0 in N:  # cpu_parallel
          for i1 in M:  # cpu_parallel
            y[i0, i1] = x[i0, i1] + 1.0
        for i2 in M:
          z[i2] = 0.0
        for i3 in N:
          T3: float32[2] local
          T3[0] = 2.0
          T3[1] = 1.0
          T4: float32[1] local
          T4[0] = T3[0]
          let v0 = i3 * 2
          for i4 in M:  # cpu_parallel
            z[i4] = z[i4] + y[v0 // 2, i4] * T4[0] * T3[1]
        """)
    text = body_of(program)
    assert text.count("LN_WORK") == 2
    assert text.count("#pragma omp parallel") == 2
    x = RNG.integers(-9, 9, (6, 11)).astype(np.float32)
    result = run_c(program, x=x, openmp=openmp)
    np.testing.assert_array_equal(result["y"], x + 1)
    np.testing.assert_array_equal(result["z"], ((x + 1) * 2).sum(axis=0))


def test_a_parallel_loop_that_folds_into_one_element_runs_in_order():
    program = parse_nest("""
        kernel k(x: float32[N]) -> (y: float32[1])
        T2: float32[1] local
        T2[0] = 0.0
        for i0 in N:  # cpu_parallel
          T2[0] = T2[0] + x[i0]
        y[0] = T2[0]
        """)
    assert "#pragma" not in body_of(program)
    x = RNG.integers(-9, 9, 1000).astype(np.float32)
    assert run_c(program, x=x)["y"][0] == x.sum()


def test_guarded_loops_end_where_the_guard_does():
    program = parse_nest("""
        kernel k(x: float32[N, M]) -> (y: float32[N, M])
        for i0 in ceildiv(N, 4):
          for i1 in 4:
            for i2 in ceildiv(M, 16):
              for i3 in 16:  # vectorize
                if i0 * 4 + i1 < N and i2 * 16 + i3 < M:
                  y[i0 * 4 + i1, i2 * 16 + i3] = x[i0 * 4 + i1, i2 * 16 + i3] * 2.0
        """)
    text = body_of(program)
    assert "for (idx_t i1 = 0; i1 < ln_min_i64(4, N - i0 * 4); ++i1) {" in text
    assert "for (; i2 < ln_min_i64((M + 15) / 16, M / 16); ++i2) {" in text
    assert "for (idx_t i3 = 0; i3 < 16; i3 += LN_LANES(ln_f32x16)) {" in text
    assert "for (idx_t i3 = 0; i3 < ln_min_i64(16, M - i2 * 16); i3 += LN_LANES(" in text
    for shape in ((1, 1), (4, 16), (9, 50), (0, 4)):
        x = randn(*shape)
        np.testing.assert_array_equal(run_c(program, x=x)["y"], x * 2)


def test_a_guard_that_is_no_bound_stays():
    program = parse_nest("""
        kernel k(x: float32[N]) -> (y: float32[N])
        for i0 in N:
          if i0 % 3 < 2 and i0 * 2 < N:
            y[i0] = x[i0]
        """)
    x = randn(10)
    expected = np.full(10, 77, np.float32)
    keep = [i for i in range(10) if i % 3 < 2 and i * 2 < 10]
    expected[keep] = x[keep]
    np.testing.assert_array_equal(run_c(program, x=x)["y"], expected)


def test_a_guard_that_divides_by_a_size_stays_in_the_loop_over_it():
    program = parse_nest("""
        kernel k(x: float32[N, M]) -> (y: float32[N, M])
        for i0 in N:
          for i1 in M:
            if i0 % M < 2 and i1 + i0 // M < M:
              y[i0, i1] = x[i0, i1]
        """)
    for shape in ((4, 0), (4, 3)):
        x = randn(*shape)
        i, j = np.indices(shape)
        keep = (i % max(shape[1], 1) < 2) & (j + i // max(shape[1], 1) < shape[1])
        np.testing.assert_array_equal(run_c(program, x=x)["y"], np.where(keep, x, np.float32(77)))


# Vector code


ACCUMULATOR = """
    kernel k(x: float32[N, D]) -> (y: float32[N])
    for i0 in N:  # cpu_parallel
      T2: float32[16] local
      for i1 in 16:  # vectorize
        T2[i1] = 0.0
      for i2 in D // 16:
        for i3 in 16:  # vectorize
          T2[i3] = T2[i3] + x[i0, i2 * 16 + i3]
      T3: float32[1] local
      T3[0] = 0.0
      for i4 in 16:
        T3[0] = T3[0] + T2[i4]
      y[i0] = T3[0]
    """


@both_widths
@pytest.mark.parametrize("optimize", [1, 3])
def test_vector_accumulator(bits, optimize):
    x = RNG.integers(-9, 9, (5, 64)).astype(np.float32)
    result = run_c(parse_nest(ACCUMULATOR), x=x, bits=bits, optimize=optimize)
    np.testing.assert_array_equal(result["y"], x.sum(axis=1))


def test_lanes_that_meet_in_one_element_get_no_simd_pragma():
    program = parse_nest("""
        kernel k(x: float32[16]) -> (y: float32[1], z: float32[8])
        T2: float32[1] local
        T2[0] = 0.0
        for i0 in 16:  # vectorize
          T2[0] = T2[0] + x[i0]
        y[0] = T2[0]
        for i1 in 8:
          z[i1] = 0.0
        for i2 in 16:  # vectorize
          z[i2 // 2] = z[i2 // 2] + x[i2]
        """)
    assert "#pragma omp simd" not in body_of(program)
    x = RNG.integers(-9, 9, 16).astype(np.float32)
    result = run_c(program, x=x, optimize=3)
    assert result["y"][0] == x.sum()
    np.testing.assert_array_equal(result["z"], x.reshape(8, 2).sum(axis=1))


TILE = """
        kernel k(a: float32[M, K], b: float32[K, N]) -> (c: float32[M, N])
        for i0 in M // 6:  # cpu_parallel
          for i1 in N // 32:
            T2: float32[6, 32] local
            for i2 in 6:  # unroll
              for i3 in 32:  # vectorize
                T2[i2, i3] = 0.0
            for i4 in K:
              for i5 in 6:  # unroll
                for i6 in 32:  # vectorize
                  T2[i5, i6] = T2[i5, i6] + a[i0 * 6 + i5, i4] * b[i4, i1 * 32 + i6]
            for i7 in 6:  # unroll
              for i8 in 32:  # vectorize
                c[i0 * 6 + i7, i1 * 32 + i8] = T2[i7, i8]
        """


def test_register_tile():
    program = parse_nest(TILE)
    assert "#pragma GCC unroll 6" in body_of(program)
    a = RNG.integers(-9, 9, (12, 10)).astype(np.float32)
    b = RNG.integers(-9, 9, (10, 64)).astype(np.float32)
    np.testing.assert_array_equal(run_c(program, a=a, b=b, optimize=3)["c"], a @ b)


def is_gcc_for_x86():
    """Tell whether the command gcc is GCC, which it is not everywhere, and makes x86-64 code."""
    if not shutil.which("gcc") or platform.machine() not in ("x86_64", "AMD64"):
        return False
    command = ["gcc", "--version"]
    return (
        "Free Software Foundation" in subprocess.run(command, capture_output=True, text=True).stdout
    )


@pytest.mark.parametrize(
    ("text", "instruction", "count"), [(TILE, "vfmadd", 12), (ACCUMULATOR, "vaddps", 1)]
)
def test_accumulators_stay_in_registers(text, instruction, count, tmp_path):
    """No block of the assembly that accumulates writes to memory."""
    if not is_gcc_for_x86():
        pytest.skip("looks at what gcc makes for AVX-512")
    source = tmp_path / "kernel.c"
    source.write_text(print_c(parse_nest(text)))
    # Not -march=native: gcc prefers 256-bit vectors on some of the CPUs that have 512-bit ones.
    flags = "-std=gnu11 -O3 -march=skylake-avx512 -mprefer-vector-width=512 -fopenmp"
    command = [
        "gcc",
        *flags.split(),
        "-fno-math-errno",
        "-fno-trapping-math",
        "-w",
        "-S",
        "-o",
        "-",
        str(source),
    ]
    assembly = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    blocks = re.split(r"^\.L\w+:$|^\t[jc]\w+\t.*$", assembly, flags=re.MULTILINE)
    hot = [b for b in blocks if len(re.findall(rf"\t{instruction}.*zmm", b)) >= count]
    assert hot
    for block in hot:
        assert not re.search(r"\tvmov.*\t%[xyz]mm\d+, .*\(", block), block


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


# Types


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_16_bit_storage(name):
    dtype = dtypes.of(name).numpy
    program = parse_nest(f"""
        kernel k(x: {name}[N]) -> (y: {name}[N], z: float32[N], w: {name}[N], v: bool[N])
        for i0 in N:
          T2: {name}[1] local
          T2[0] = float32(x[i0]) * 1.1
          T3: {name}[2] local
          T3[1] = T2[0]
          y[i0] = T3[1]
          z[i0] = float32(T3[1]) + 1.0
          w[i0] = {name}(float64(x[i0]) * float64(1.3))
          v[i0] = bool(x[i0])
        """)
    x = np.concatenate([randn(100), [0, -0.0, np.inf, np.nan, 1e-7, 4e4]]).astype(dtype)
    result = run_c(program, x=x)
    y = (x.astype(np.float32) * np.float32(1.1)).astype(dtype)
    np.testing.assert_array_equal(result["y"].view(np.uint16)[:-3], y.view(np.uint16)[:-3])
    np.testing.assert_array_equal(result["z"], y.astype(np.float32) + 1)
    w = (x.astype(np.float64) * np.float64(1.3)).astype(dtype)
    np.testing.assert_array_equal(result["w"].astype(np.float64), w.astype(np.float64))
    np.testing.assert_array_equal(result["v"], x.astype(bool))


def test_operations_on_16_bit_values_compute_in_float32():
    x = parse_nest("kernel k(x: float16[N]) -> (y: float16[N])\nfor i0 in N:\n  y[i0] = x[i0]")
    (loop,) = x.body
    (store,) = loop.body
    value = store.value
    twice = Op("add", (value, Op("exp", (value,), dtypes.float16)), dtypes.float16)
    test = Op("lt", (value, Const(0.5, dtypes.float16)), dtypes.bool_)
    chosen = Op("where", (test, twice, value), dtypes.float16)
    body = (Loop(loop.var, loop.parallel, "", (Store(store.storage, store.index, chosen, "y"),)),)
    data = randn(50, dtype=np.float16)
    exponential = np.exp(data.astype(np.float32)).astype(np.float16)
    total = (data.astype(np.float32) + exponential.astype(np.float32)).astype(np.float16)
    expected = np.where(data < 0.5, total, data)
    np.testing.assert_array_equal(run_c(x.with_body(body), x=data)["y"], expected)


def test_casts_are_numpys():
    lines = "\n".join([f"  y_{a}_{b}[i0] = {b}({a}_x[i0])" for a, b in CASTS])
    inputs = ", ".join([f"{a}_x: {a}[N]" for a in dict(CASTS)])
    outputs = ", ".join([f"y_{a}_{b}: {b}[N]" for a, b in CASTS])
    program = parse_nest(f"kernel k({inputs}) -> ({outputs})\nfor i0 in N:\n{lines}")
    values = np.array([0, 1, -1, 2.5, -2.5, 0.99, 1000, 3e4, 65519, 1e-8, 7, -60000])
    with np.errstate(over="ignore", invalid="ignore"):
        arrays = {f"{a}_x": values.astype(dtypes.of(a).numpy) for a in dict(CASTS)}
    result = run_c(program, **arrays)
    for a, b in CASTS:
        given, target = arrays[f"{a}_x"], dtypes.of(b)
        with np.errstate(over="ignore", invalid="ignore"):
            expected = given.astype(target.numpy)
            whole = np.trunc(given.astype(np.float64))
        if dtypes.of(a).is_float and target.is_integer:  # elsewhere NumPy promises nothing
            defined = (whole >= target.least) & (whole <= target.greatest)
        else:
            defined = np.full(given.shape, True)
        np.testing.assert_array_equal(
            result[f"y_{a}_{b}"].astype(np.float64)[defined],
            expected.astype(np.float64)[defined],
            f"{a} to {b}",
        )


def test_integers_wrap():
    program = parse_nest("""
        kernel k(x: int32[N], z: int64[N]) -> (y: int32[N], w: int64[N], v: int32[N], u: int64[N])
        for i0 in N:
          y[i0] = x[i0] * x[i0] + x[i0] - 7
          w[i0] = z[i0] * z[i0] - z[i0] + 9000000000
          v[i0] = -x[i0] ^ abs(x[i0]) & ~x[i0]
          u[i0] = fma(z[i0], z[i0], -9223372036854775808)
        """)
    x = np.array([0, 5, -5, 2**31 - 1, -(2**31), 123456789], np.int32)
    z = np.array([0, 5, -5, 2**63 - 1, -(2**63), 1234567890123], np.int64)
    with np.errstate(over="ignore"):
        expected = {
            "y": x * x + x - np.int32(7),
            "w": z * z - z + 9000000000,
            "v": -x ^ np.abs(x) & ~x,
            "u": z * z + np.int64(-(2**63)),
        }
    for optimize in (1, 3):
        result = run_c(program, x=x, z=z, optimize=optimize)
        for name, array in expected.items():
            np.testing.assert_array_equal(result[name], array, name)


@both_widths
def test_division_of_negative_values_rounds_down(bits):
    program = parse_nest("""
        kernel k(x: int32[N], b: int64[N]) -> (q: int32[N], r: int64[N], s: int64[N], t: int64[N], c: int64[N])
        for i0 in N:
          q[i0] = x[i0] // 7 + x[i0] % -3
          r[i0] = b[i0] // -4 + b[i0] % 5
          s[i0] = int64((i0 - 9) // 4)
          t[i0] = int64((i0 - 9) % 4 + (0 - i0) % N)
          c[i0] = int64(ceildiv(i0 - 9, 4) * 100 + ceildiv(i0, N) + (N - i0) // 1)
        """)  # noqa: E501
    text = body_of(program, index_bits=bits)
    assert f"ln_index_div_i{bits}(i0 - 9, 4)" in text
    x = np.arange(-11, 12, dtype=np.int32)
    b = x.astype(np.int64) * 3_000_000_000
    result = run_c(program, x=x, b=b, bits=bits)
    i, n = np.arange(len(x)), len(x)
    np.testing.assert_array_equal(result["q"], x // 7 + x % -3)
    np.testing.assert_array_equal(result["r"], b // -4 + b % 5)
    np.testing.assert_array_equal(result["s"], (i - 9) // 4)
    np.testing.assert_array_equal(result["t"], (i - 9) % 4 + -i % n)
    np.testing.assert_array_equal(result["c"], -(-(i - 9) // 4) * 100 - (-i // n) + n - i)


def test_division_of_indices_is_plain_where_they_cannot_be_negative():
    program = parse_nest("""
        kernel k(x: float32[N, M]) -> (y: float32[N, M])
        for i0 in ceildiv(N * M, 4):
          for i1 in 4:
            let v0 = i0 * 4 + i1
            if v0 < N * M:
              y[v0 // M % N, v0 % M] = x.flat[min(v0, N * M)]
        """)
    text = body_of(program)
    assert "const idx_t v0 = i0 * 4 + i1;" in text
    assert "y[v0 / M % N * M + v0 % M] = x[ln_min_i64(v0, N * M)];" in text
    x = randn(5, 7)
    np.testing.assert_array_equal(run_c(program, x=x)["y"], x)


def test_literals_are_exact():
    values = [0.1, 1e-45, 3.4028234663852886e38, -0.0, np.pi, 1 / 3, 1e300, np.inf, -np.inf, np.nan]
    lines = [f"y[{i}] = {v!r}" for i, v in enumerate(values)]
    lines += [f"z[{i}] = {v!r}" for i, v in enumerate(values)]
    head = f"kernel k() -> (y: float32[{len(values)}], z: float64[{len(values)}])\n"
    program = parse_nest(head + "\n".join(lines))
    result = run_c(program)
    with np.errstate(over="ignore"):
        single = np.array(values).astype(np.float32)
    np.testing.assert_array_equal(result["y"].view(np.uint32)[:-1], single.view(np.uint32)[:-1])
    np.testing.assert_array_equal(result["z"], np.array(values))
    assert np.isnan(result["y"][-1])
    assert np.signbit(result["y"][3])
    assert "y[0] = 0.1f;" in body_of(program)


# Expressions


def test_loads_under_a_false_condition_are_not_performed():
    program = parse_nest("""
        kernel k(x: float32[N]) -> (y: float32[N], z: bool[N])
        for i0 in N:
          y[i0] = where(i0 > 100000000, x[i0 * 100000000], x[i0])
          z[i0] = i0 < 0 and x[i0 * 100000000] > 0.0 or i0 == 3
        """)
    x = randn(8)
    for optimize in (1, 3):
        result = run_c(program, x=x, optimize=optimize)
        np.testing.assert_array_equal(result["y"], x)
        np.testing.assert_array_equal(result["z"], np.arange(8) == 3)


def test_grouping_of_operators():
    lines = "\n".join([f"  y[{n}, i0] = {text}" for n, text in enumerate(GROUPING)])
    for old, new in (("a", "x[0, i0]"), ("b", "x[1, i0]"), ("c", "x[2, i0]")):
        lines = re.sub(rf"\b{old}\b", new, lines)
    program = parse_nest(
        f"kernel k(x: float32[3, N]) -> (y: float32[{len(GROUPING)}, N])\nfor i0 in N:\n{lines}"
    )
    x = RNG.integers(1, 9, (3, 40)).astype(np.float32) * RNG.choice([1, -1], (3, 40)).astype("f")
    result = run_c(program, x=x)["y"]
    a, b, c = x
    scope = {
        "a": a, "b": b, "c": c, "where": np.where, "max": np.maximum, "min": np.minimum,
        "float32": np.float32, "int32": lambda v: v.astype(np.int32), "isnan": np.isnan,
        "abs": np.abs, "fma": lambda p, q, r: p * q + r, "reciprocal": lambda v: 1 / v,
    }  # fmt: skip
    for n, text in enumerate(GROUPING):
        python = text.replace("not (", "~(").replace(" and ", " & ").replace(" or ", " | ")
        python = re.sub(r"(\w < \w)( [&|])", r"(\1)\2", python)
        python = re.sub(r"([&|] )(\w < \w)", r"\1(\2)", python).replace("not a < b", "~(a < b)")
        with np.errstate(divide="ignore", invalid="ignore"):
            expected = np.float32(eval(python, {}, scope))
        np.testing.assert_allclose(result[n], expected, rtol=2e-7, err_msg=text)


UNARY = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "log1p": np.log1p,
    "sqrt": np.sqrt, "rsqrt": lambda v: 1 / np.sqrt(v), "reciprocal": lambda v: 1 / v,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "tanh": np.tanh,
    "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
    "abs": np.abs, "floor": np.floor, "ceil": np.ceil, "round": np.rint, "trunc": np.trunc,
    "neg": np.negative,
}  # fmt: skip
BINARY = {
    "pow": np.power, "mod": np.mod, "floordiv": np.floor_divide, "min": np.minimum,
    "max": np.maximum, "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal,
}  # fmt: skip


def test_every_operation_of_floats():
    tested = [*UNARY, *BINARY, "erf", "isnan"]
    for name in ("float32", "float64"):
        dtype = dtypes.of(name)
        base = parse_nest(
            f"kernel k(a: {name}[N], b: {name}[N]) -> (y: {name}[{len(tested)}, N])\n"
            "for i0 in N:\n  y[0, i0] = a[i0] + b[i0]"
        )
        (loop,) = base.body
        (first,) = loop.body
        a, b = first.value.args
        stores = []
        for row, op in enumerate(tested):
            kind = dtypes.bool_ if OPS[op].result == "bool" else dtype
            value = Op(op, (a, b)[: OPS[op].arity], kind)
            stores.append(Store(first.storage, (integer(row), loop.var), value, "y"))
        program = base.with_body((Loop(loop.var, loop.parallel, "", tuple(stores)),))
        x = RNG.uniform(0.1, 5, 64).astype(name)
        z = RNG.uniform(-3, 3, 64).astype(name)
        x[:4], z[:4] = [np.nan, 1, np.nan, 2], [1, np.nan, np.nan, 2]
        result = run_c(program, a=x, b=z)["y"]
        wide = {"a": x.astype(np.float64), "b": z.astype(np.float64)}
        for row, op in enumerate(tested):
            if op in UNARY:
                expected = UNARY[op](wide["a"])
            elif op in BINARY:
                # Rounding and remainders are those of the type itself.
                exact = op in ("mod", "floordiv")
                expected = BINARY[op](*((x, z) if exact else wide.values()))
            elif op == "isnan":
                expected = np.isnan(x)
            else:
                expected = np.array([math.erf(v) for v in wide["a"]])
            np.testing.assert_allclose(
                result[row].astype(np.float64),
                expected.astype(np.float64),
                rtol=4 * np.finfo(name).eps,
                err_msg=f"{op} of {name}",
            )


def test_every_operation_of_integers():
    tested = ["add", "sub", "mul", "floordiv", "mod", "min", "max", "bitand", "bitor", "bitxor",
              "shl", "shr", "pow", "eq", "lt", "neg", "abs", "bitnot", "floor", "round",
              "isnan"]  # fmt: skip
    numpy = {"neg": np.negative, "abs": np.abs, "bitnot": np.invert, "floor": np.positive,
             "round": np.positive, "isnan": np.isnan, "bitand": np.bitwise_and,
             "bitor": np.bitwise_or, "bitxor": np.bitwise_xor, "shl": np.left_shift,
             "shr": np.right_shift, **BINARY}  # fmt: skip
    for name in [dtype.name for dtype in dtypes.INTEGERS]:
        dtype = dtypes.of(name)
        base = parse_nest(
            f"kernel k(a: {name}[N], b: {name}[N]) -> (y: {name}[{len(tested)}, N])\n"
            "for i0 in N:\n  y[0, i0] = a[i0] + b[i0]"
        )
        (loop,) = base.body
        (first,) = loop.body
        stores = []
        for row, op in enumerate(tested):
            kind = dtypes.bool_ if OPS[op].result == "bool" else dtype
            value = Op(op, first.value.args[: OPS[op].arity], kind)
            stores.append(Store(first.storage, (integer(row), loop.var), value, "y"))
        program = base.with_body((Loop(loop.var, loop.parallel, "", tuple(stores)),))
        a = RNG.integers(-20, 20, 64).astype(name)
        b = np.abs(RNG.integers(-20, 20, 64).astype(name)) % 7
        result = run_c(program, a=a, b=b)["y"]
        for row, op in enumerate(tested):
            args = (a, b)[: OPS[op].arity]
            with np.errstate(divide="ignore", over="ignore"):
                expected = numpy[op](*args).astype(name)
            np.testing.assert_array_equal(result[row], expected, f"{op} of {name}")


# Names


def test_hostile_names():
    program = parse_nest("""
        kernel exp(int: float32[N, I], exp: float32[N], i0: float32[N], T2: float32[1], blockIdx: float32, idx_t: float32, size_N: float32) -> (double: float32[N, I], linux: float32[N])
        for i1 in N:
          for i2 in I:
            double[i1, i2] = int[i1, i2] * blockIdx + exp[i1] + idx_t
        for register in N:
          T2_: float32[1] local
          T2_[0] = T2[0] * size_N
          let auto = i0[register] + T2_[0]
          linux[register] = auto
        """)  # noqa: E501
    x, e, i, t = randn(4, 3), randn(4), randn(4), randn(1)
    values = {"int": x, "exp": e, "i0": i, "T2": t, "blockIdx": 2.0, "idx_t": 3.0, "size_N": 4.0}
    result = run_c(program, **values)
    np.testing.assert_allclose(result["double"], x * 2 + e[:, None] + 3, rtol=1e-6)
    np.testing.assert_allclose(result["linux"], i + t * 4, rtol=1e-6)


def test_names_of_different_things_that_collide():
    # An input, a size, a scalar, a loop index and a buffer of one name.
    n, f32 = Symbol("k"), dtypes.float32
    base = parse_nest("kernel k(k: float32[M]) -> (y: float32[M])\nfor k in M:\n  y[k] = 1.0")
    array = base.params[0].buffer
    index = Index("k", Symbol("M"))
    scalar = ScalarParam("k", f32)
    value = Op("mul", (Load(array, (index,)), scalar), f32)
    value = Op("add", (value, Op("cast", (n,), f32)), f32)
    params = (
        *base.params[:2],
        Param("k", "scalar", f32),
        Param("M", "size", dtypes.index),
        Param("k", "size", dtypes.index),
    )
    store = Store(base.params[1].buffer, (index,), value, "y")
    loop = Loop(index, base.body[0].parallel, "", (store,))
    program = Program("k", params, (loop,), (), base.outputs)
    text = body_of(program)
    assert "y[k___] = k[k___] * k_ + (float)k__;" in text
    x, y = randn(5), np.zeros(5, np.float32)
    function = compile_c(print_c(program), optimize=1).function("k", restype=ctypes.c_int)
    function.argtypes = None
    pointers = [ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data)]
    function(*pointers, ctypes.c_float(2), ctypes.c_int64(5), ctypes.c_int64(9))
    np.testing.assert_array_equal(y, x * 2 + 9)


def test_tensor_names_do_not_leave_their_comment():
    program = parse_nest("kernel k() -> (y: float32[1])\ny[0] = 1.0")
    (store,) = program.body
    for name in ("a\\", "a\nb", "a */ b"):
        node = Store(store.storage, store.index, store.value, name)
        assert run_c(program.with_body((node,)))["y"][0] == 1


# The whole text


def test_prelude_once_for_many_kernels():
    kernels = [
        parse_nest(
            f"kernel k{n}() -> (y: float32[N])\nfor i0 in N:  # cpu_parallel\n  y[i0] = {n}.0"
        )
        for n in range(3)
    ]
    source = c_prelude() + "".join([print_c(k, prelude=False) for k in kernels])
    library = compile_c(source, optimize=1)
    for n in range(3):
        y = np.zeros(4, np.float32)
        function = library.function(f"k{n}", restype=ctypes.c_int)
        function.argtypes = None
        function(ctypes.c_void_p(y.ctypes.data), ctypes.c_int64(4))
        np.testing.assert_array_equal(y, np.full(4, n, np.float32))


def test_barriers_of_one_thread_vanish():
    alone = parse_nest("""
        kernel k(x: float32[8]) -> (y: float32[8])
        for i0 in 1:  # block_x
          T2: float32[8] shared
          for i1 in 8:
            T2[i1] = x[i1]
          barrier block
          for i2 in 8:
            y[i2] = T2[7 - i2]
        """)
    x = randn(8)
    np.testing.assert_array_equal(run_c(alone, x=x)["y"], x[::-1])


def test_what_is_left_of_a_template_is_an_internal_error():
    program = parse_nest("kernel k() -> (y: float32[1])\ny[0] = 1.0")
    (store,) = program.body
    node = Store(store.storage, store.index, Arg(0, dtypes.float32), "y")
    with pytest.raises(InternalError) as raised:
        print_c(program.with_body((node,)))
    assert str(raised.value) == "$0: an Arg is left in the loop nest"
