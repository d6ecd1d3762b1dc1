"""The C text of loops and launches, and of vector code: compiled, run, compared with NumPy."""

import platform
import re
import shutil
import subprocess

import numpy as np
import pytest

from helpers.printed_c import run_c
from helpers.printed_nests import RNG, body_of, both_widths, randn
from helpers.printer_cases import row_sum
from loopnest.backends.cpu.c_printer import print_c
from loopnest.kir import Loop, Store
from loopnest.kir import parse as parse_nest
from loopnest.scalar import dtypes
from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import (
    LaunchIndex,
    Load,
    Op,
)

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
    const int ln_members = ln_team(ln_threads, ln_count, ln_stores);
    if (ln_members < 2) {
      ln_work_row_sum_1(0, ln_count, x, y, N, D);
    } else {
      #pragma omp parallel num_threads(ln_members)
      ln_work_row_sum_1(ln_share(ln_count, 0), ln_share(ln_count, 1), x, y, N, D);
    }
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
    work, _, entry = body_of(program).partition("int k(")
    assert "if (" not in work
    assert "const int64_t ln_count = (int64_t)N * M;" in entry
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
