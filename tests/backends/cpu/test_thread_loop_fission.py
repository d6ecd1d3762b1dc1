"""Threads of a block as loops: programs whose threads communicate, run on target "c"."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from loopnest.backends.compiled_kernel import CompiledKernel
from loopnest.backends.cpu.c_compiler import find_compiler
from loopnest.backends.cpu.c_printer import print_c
from loopnest.backends.cpu.c_target import CompiledC
from loopnest.errors import InternalError, LaunchError
from loopnest.kir import parse as parse_nest
from loopnest.launch.launch_plan import Planner
from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import integer

RNG = np.random.default_rng(11)

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")


def randn(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def whole(*shape, dtype=np.float32):
    """Small integers: sums of them are exact in any order."""
    return RNG.integers(-8, 9, shape).astype(dtype)


def compiled(text, threads=None):
    program = parse_nest(text) if isinstance(text, str) else text
    built = CompiledC(program, threads=threads)
    return CompiledKernel(SimpleNamespace(program=program), "c", built)


def run(text, *arrays, threads=None):
    return compiled(text, threads)(*arrays)


def body_of(text, **options):
    program = parse_nest(text, **options) if isinstance(text, str) else text
    return print_c(program, prelude=False)


def lines(text, pattern):
    return [line.strip() for line in text.splitlines() if re.search(pattern, line)]


# Shared memory and barriers

REVERSE = """
    kernel reverse(x: float32[N, 32]) -> (y: float32[N, 32])
    for i0 in N:  # grid_x
      s: float32[32] shared
      for i1 in 32:  # block_x
        s[i1] = x[i0, i1] * 2.0
        barrier block
        y[i0, i1] = s[31 - i1]
    """


def test_text_of_a_barrier():
    text = body_of(REVERSE)
    assert (
        text[text.index("  for (idx_t i0") : text.index("int reverse")]
        == """\
  for (idx_t i0 = (idx_t)ln_from; i0 < (idx_t)ln_to; ++i0) {  // i0 grid_x
    _Alignas(64) float s[32];
    #pragma GCC unroll 32
    for (idx_t i1 = 0; i1 < 32; i1 += LN_LANES(ln_f32x16)) {  // i1 block_x
      LN_VEC(ln_f32x16, s[i1]) = LN_VEC(ln_f32x16, x[i0 * 32 + i1]) * 2.0f;  // s
    }
    #pragma omp simd
    for (idx_t i1 = 0; i1 < 32; ++i1) {  // i1 block_x
      y[i0 * 32 + i1] = s[31 - i1];  // y
    }
  }
}

"""
    )


@pytest.mark.parametrize("n", [0, 1, 33])
def test_reverse(n):
    x = randn(n, 32)
    np.testing.assert_array_equal(run(REVERSE, x), 2 * x[:, ::-1])


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_each_thread_of_the_cpu_has_shared_memory_of_its_own(threads):
    x = randn(100, 32)
    np.testing.assert_array_equal(run(REVERSE, x, threads=threads), 2 * x[:, ::-1])


EXCHANGE = """
    kernel exchange(x: float32[N, M], K: float32[K]) -> (y: float32[N, M])
    for i0 in N:  # grid_x
      for i1 in M:  # block_x
        s: float32[M] shared
        v: float32[1] local
        v[0] = x[i0, i1]
        for k in K:
          s[i1] = v[0]
          barrier block
          v[0] = v[0] + s[(i1 + 1) % M]
          barrier block
        y[i0, i1] = v[0]
    """


@pytest.mark.parametrize("m", [1, 32, 33, 100])
@pytest.mark.parametrize("k", [0, 1, 4])
def test_neighbours_exchange_in_a_loop(m, k):
    x = whole(7, m)
    expected = x.copy()
    for _ in range(k):
        expected = expected + np.roll(expected, -1, axis=1)
    np.testing.assert_array_equal(run(EXCHANGE, x, np.zeros(k, np.float32)), expected)


def test_empty_launches():
    assert run(EXCHANGE, np.zeros((0, 4), np.float32), np.zeros(2, np.float32)).shape == (0, 4)
    assert run(EXCHANGE, np.zeros((4, 0), np.float32), np.zeros(2, np.float32)).shape == (4, 0)


GEMM = """
    kernel gemm(a: float32[M, K], b: float32[K, N]) -> (c: float32[M, N])
    for i0 in ceildiv(M, 16):  # grid_y
      for i1 in ceildiv(N, 16):  # grid_x
        As: float32[16, 16] shared
        Bs: float32[16, 16] shared
        for i2 in 16:  # block_y
          for i3 in 16:  # block_x
            acc: float32[1] local
            acc[0] = 0.0
            for k in ceildiv(K, 16):
              As[i2, i3] = where(i0 * 16 + i2 < M and k * 16 + i3 < K, a[i0 * 16 + i2, k * 16 + i3], 0.0)
              Bs[i2, i3] = where(k * 16 + i2 < K and i1 * 16 + i3 < N, b[k * 16 + i2, i1 * 16 + i3], 0.0)
              barrier block
              for kk in 16:
                acc[0] = acc[0] + As[i2, kk] * Bs[kk, i3]
              barrier block
            if i0 * 16 + i2 < M and i1 * 16 + i3 < N:
              c[i0 * 16 + i2, i1 * 16 + i3] = acc[0]
    """  # noqa: E501


@pytest.mark.parametrize(("m", "n", "k"), [(16, 16, 16), (33, 50, 70), (1, 1, 1), (5, 7, 0)])
def test_gemm_with_shared_tiles(m, n, k):
    a, b = whole(m, k), whole(k, n)
    np.testing.assert_array_equal(run(GEMM, a, b), a @ b)


TILES = """
    kernel tiles(a: float32[M, K], b: float32[K, N]) -> (c: float32[M, N])
    for i0 in M // 32:  # grid_y
      for i1 in N // 32:  # grid_x
        As: float32[16, 32] shared
        Bs: float32[16, 32] shared
        for i2 in 8:  # block_y
          for i3 in 8:  # block_x
            acc: float32[16] local
            for i in 4:  # unroll
              for j in 4:  # unroll
                acc[i * 4 + j] = 0.0
            for k in K // 16:
              for l in 8:
                As[(l * 64 + i2 * 8 + i3) % 16, (l * 64 + i2 * 8 + i3) // 16] = a[i0 * 32 + (l * 64 + i2 * 8 + i3) // 16, k * 16 + (l * 64 + i2 * 8 + i3) % 16]
                Bs[(l * 64 + i2 * 8 + i3) // 32, (l * 64 + i2 * 8 + i3) % 32] = b[k * 16 + (l * 64 + i2 * 8 + i3) // 32, i1 * 32 + (l * 64 + i2 * 8 + i3) % 32]
              barrier block
              for kk in 16:
                for i in 4:  # unroll
                  for j in 4:  # unroll
                    acc[i * 4 + j] = acc[i * 4 + j] + As[kk, i2 * 4 + i] * Bs[kk, i3 * 4 + j]
              barrier block
            for i in 4:  # unroll
              for j in 4:  # unroll
                c[i0 * 32 + i2 * 4 + i, i1 * 32 + i3 * 4 + j] = acc[i * 4 + j]
    """  # noqa: E501


def test_gemm_with_register_tiles():
    a, b = whole(64, 48), whole(48, 96)
    np.testing.assert_array_equal(run(TILES, a, b), a @ b)


def test_a_register_tile_is_worked_on_in_a_copy():
    text = body_of(TILES)
    # One thread's elements lie side by side, and the loop over k has a tile of its own: vectors go
    # from one to the other.
    tile = "LN_VEC(ln_f32x16, acc[kept])"
    slots = "LN_VEC(ln_f32x16, acc_slots[kept + i2 * 128 + i3 * 16])"
    assert lines(text, "kept") == [
        "for (idx_t kept = 0; kept < 16; kept += LN_LANES(ln_f32x16)) {",
        f"{tile} = {slots};  // acc kept",
        "for (idx_t kept = 0; kept < 16; kept += LN_LANES(ln_f32x16)) {",
        f"{slots} = {tile};  // acc kept",
    ]


def test_shared_memory_may_be_swizzled():
    text = """
        kernel transpose(x: float32[16, 16]) -> (y: float32[16, 16])
        s: float32[16, 16] shared xor(0, 1)
        for i0 in 16:  # block_y
          for i1 in 16:  # block_x
            s[i0, i1] = x[i0, i1]
            barrier block
            y[i0, i1] = s[i1, i0]
        """
    assert "i0 ^ i1" in body_of(text) or "i1 ^ i0" in body_of(text)
    x = randn(16, 16)
    np.testing.assert_array_equal(run(text, x), x.T)


def test_aliases_follow_each_other():
    text = """
        kernel alias(x: float32[N, 64]) -> (y: float32[N, 64])
        for i0 in N:  # grid_x
          for i1 in 64:  # block_x
            a: float32[64] shared
            b: int32[64] shared = a
            v: float32[1] local
            a[i1] = x[i0, i1]
            barrier block
            v[0] = a[63 - i1]
            barrier block
            b[i1] = int32(v[0])
            barrier block
            y[i0, i1] = v[0] + float32(b[63 - i1])
        """
    x = whole(9, 64)
    np.testing.assert_array_equal(run(text, x), x[:, ::-1] + x)


def test_shared_memory_without_barriers():
    text = """
        kernel own(x: float32[N]) -> (y: float32[N])
        for i0 in ceildiv(N, 8):  # grid_x
          s: float32[8] shared
          for i1 in 8:  # block_x
            if i0 * 8 + i1 < N:
              s[i1] = x[i0 * 8 + i1]
              y[i0 * 8 + i1] = s[i1] * s[i1]
        """
    x = whole(21)
    np.testing.assert_array_equal(run(text, x), x * x)


# What crosses a barrier


def test_local_arrays_cross_barriers():
    text = """
        kernel rows(x: float32[N, 8, 32]) -> (y: float32[N, 8, 32])
        for i0 in N:  # grid_x
          for i1 in 32:  # block_x
            row: float32[8] local
            s: float32[32] shared
            for j in 8:
              row[j] = x[i0, j, i1]
            for j in 8:
              s[i1] = row[j]
              barrier block
              row[j] = row[j] + s[31 - i1]
              barrier block
            for j in 8:
              y[i0, 7 - j, i1] = row.flat[j]
        """
    assert "_Alignas(64) float row_slots[256];" in body_of(text)
    x = whole(5, 8, 32)
    np.testing.assert_array_equal(run(text, x), (x + x[:, :, ::-1])[:, ::-1])


def test_local_arrays_of_symbolic_size_cross_barriers():
    text = """
        kernel rows(x: float32[N, D, T]) -> (y: float32[N, D, T])
        for i0 in N:  # grid_x
          for i1 in T:  # block_x
            row: float32[D] local
            s: float32[T] shared
            for j in D:
              row[j] = x[i0, j, i1]
            for j in D:
              s[i1] = row[j]
              barrier block
              row.flat[j] = row.flat[j] + s[T - 1 - i1]
              barrier block
            for j in D:
              y[i0, D - 1 - j, i1] = row[j]
        """
    assert "ln_reserve(&ln_bytes, size_D * size_T, sizeof(float))" in body_of(text)
    for n, d, t in ((5, 7, 33), (1, 1, 1), (3, 0, 4), (70, 40, 128)):
        x = whole(n, d, t)
        expected = (x + x[:, :, ::-1])[:, ::-1]
        np.testing.assert_array_equal(run(text, x), expected)


def test_what_one_region_uses_stays_its_own():
    text = body_of("""
        kernel own(x: float32[N, 32]) -> (y: float32[N, 32])
        for i0 in N:  # grid_x
          for i1 in 32:  # block_x
            s: float32[32] shared
            a: float32[1] local
            b: float32[4] local
            c: float32[1] local
            a[0] = x[i0, i1] * 2.0
            let v0 = a[0] + 1.0
            c[0] = v0
            s[i1] = v0 * a[0]
            barrier block
            for j in 4:
              b[j] = s[(i1 + j) % 32]
            y[i0, i1] = b[0] + b[1] + b[2] + b[3] + c[0]
        """)
    assert lines(text, "slots.*;$") == ["_Alignas(64) float c_slots[32];"]
    assert "ln_f32x16 a =" in text
    assert "float b[4];" in text
    assert " v0 =" in text


def test_names_of_index_arithmetic_are_computed_again():
    text = """
        kernel again(x: float32[N, 32]) -> (y: float32[N, 32])
        for i0 in N:  # grid_x
          for i1 in 32:  # block_x
            s: float32[32] shared
            let v0 = i0 * 2
            let v1 = 31 - i1
            let v2 = v1 + 1
            let v3 = x[i0, i1]
            let v4 = v3 < 0.0
            s[i1] = v3
            barrier block
            if v4:
              y[i0, i1] = s[v2 - 1] + float32(v0)
            else:
              y[i0, i1] = s[v1]
        """
    assert lines(body_of(text), r"slots\[\d+\];") == ["bool v4_slots[32];"]
    x = randn(6, 32)
    rows = np.arange(6, dtype=np.float32)[:, None]
    expected = np.where(x < 0, x[:, ::-1] + 2 * rows, x[:, ::-1])
    np.testing.assert_array_equal(run(text, x), expected)


def test_a_scalar_of_the_thread_before_the_loop():
    # v is stored in one iteration only: it must survive the others.
    text = """
        kernel first(x: float32[N, 32]) -> (y: float32[N, 32])
        for i0 in N:  # grid_x
          for i1 in 32:  # block_x
            s: float32[32] shared
            v: float32[1] local
            for k in 3:
              if k == 0:
                v[0] = x[i0, i1]
              barrier block
            s[i1] = v[0]
            barrier block
            y[i0, i1] = s[31 - i1]
        """
    x = randn(4, 32)
    np.testing.assert_array_equal(run(text, x), x[:, ::-1])


def test_half_floats_cross_barriers_and_lanes():
    text = """
        kernel halves(x: float16[N, 64], z: bfloat16[N, 64]) -> (y: float16[N, 64], w: bfloat16[N, 64])
        for i0 in N:  # grid_x
          for i1 in 64:  # block_x
            s: float16[64] shared
            v: bfloat16[2] local
            v[0] = z[i0, i1]
            let v0 = x[i0, i1]
            s[i1] = v0
            let v1 = shuffle_xor(v0, 1)
            v[1] = v[0] + v[0]
            barrier block
            y[i0, i1] = s[63 - i1] + v1
            w[i0, i1] = v[1]
        """  # noqa: E501
    import ml_dtypes

    x, z = whole(3, 64, dtype=np.float16), whole(3, 64, dtype=ml_dtypes.bfloat16)
    y, w = run(text, x, z)
    lanes = np.arange(64)
    np.testing.assert_array_equal(y, x[:, ::-1] + x[:, lanes ^ 1])
    np.testing.assert_array_equal(w, z + z)


# Guards and branches


def test_loops_smaller_than_the_launch():
    text = """
        kernel guarded(x: float32[N, D], z: float32[M]) -> (y: float32[N, D], w: float32[M])
        for i0 in N:  # grid_x
          s: float32[64] shared
          for i1 in 64:  # block_x
            if i1 < D:
              s[i1] = x[i0, i1]
            barrier block
            if i1 < D:
              y[i0, i1] = s[D - 1 - i1]
        for i2 in M:  # grid_x
          for i3 in 3:  # block_x
            if i3 == 0:
              w[i2] = z[i2] + 1.0
        """
    for n, m, d in ((5, 9, 64), (9, 5, 33), (4, 4, 1), (0, 3, 5)):
        x, z = randn(n, d), randn(m)
        y, w = run(text, x, z)
        np.testing.assert_array_equal(y, x[:, ::-1])
        np.testing.assert_array_equal(w, z + 1)


def test_a_test_of_the_first_thread_ends_the_loop():
    text = body_of("""
        kernel first(x: float32[N, 8, 8]) -> (y: float32[N])
        for i0 in N:  # grid_x
          s: float32[8, 8] shared
          for i1 in 8:  # block_y
            for i2 in 8:  # block_x
              s[i1, i2] = x[i0, i1, i2]
              barrier block
              if i1 == 0 and i2 == 0:
                y[i0] = s[7, 7] + s[0, 1]
        """)
    assert "i2 < ln_min_i64(8, 1)" in text
    assert "i1 < ln_min_i64(8, 1)" in text


BRANCH = """
    kernel branch(x: float32[N, 64], z: int32[N]) -> (y: float32[N, 64])
    for i0 in N:  # grid_x
      s: float32[64] shared
      for i1 in 64:  # block_x
        v: int32[1] local
        TAKEN
        if CONDITION:
          s[i1] = x[i0, i1]
          barrier block
          y[i0, i1] = s[63 - i1]
        else:
          y[i0, i1] = 1.0
    """


@pytest.mark.parametrize(
    ("taken", "condition", "shown"),
    [
        pytest.param("", "i0 % 2 == 0", "if (i0 % 2 == 0) {", id="uniform"),
        pytest.param("", "z[i0] == 0", "if (z[i0] == 0) {", id="loaded"),
        pytest.param("let v0 = z[i0] == 0", "v0", "if (taken_slots[0]) {", id="named"),
        pytest.param("v[0] = z[i0]", "v[0] == 0", "if (taken_slots[0]) {", id="stored"),
        pytest.param(
            "", "z[i0] == 0 and i1 < 64", "if (taken_slots[0]) {", id="the first thread decides"
        ),
    ],
)
def test_a_branch_around_a_barrier(taken, condition, shown):
    text = BRANCH.replace("CONDITION", condition).replace("TAKEN", taken or "pass")
    assert lines(body_of(text), re.escape(shown)) == [shown]
    x, z = randn(6, 64), (np.arange(6) % 2).astype(np.int32)
    expected = np.where(z[:, None] == 0, x[:, ::-1], np.float32(1))
    np.testing.assert_array_equal(run(text, x, z), expected)


def test_a_branch_that_only_some_warps_take():
    text = """
        kernel warps(x: float32[N, 64]) -> (y: float32[N, 64])
        for i0 in N:  # grid_x
          for i1 in 64:  # block_x
            y[i0, i1] = 5.0
            let v0 = x[i0, i1]
            if i1 // 32 == 1:
              let v1 = shuffle_xor(v0, 16)
              let v2 = v0 + v1
              for k in 2:
                let v3 = shuffle_down(v2, 1)
                y[i0, i1] = v3 + float32(k)
            else:
              let v4 = shuffle_lane(v0 + 1.0, 3)
              barrier warp
              y[i0, i1] = v4
        """
    x = whole(5, 64)
    y = run(text, x)
    np.testing.assert_array_equal(y[:, :32], np.repeat(x[:, 3:4] + 1, 32, axis=1))
    lanes = np.arange(32)
    sums = x[:, 32:] + x[:, 32:][:, lanes ^ 16]
    np.testing.assert_array_equal(y[:, 32:63], sums[:, 1:] + 1)


def test_a_loop_doubled_by_unswitch():
    # The same statements stand in both branches.
    program = parse_nest("""
        kernel twice(x: float32[N, 32]) -> (y: float32[N, 32])
        for i0 in N:  # grid_x
          s: float32[32] shared
          for i1 in 32:  # block_x
            if i0 < 3:
              v: float32[1] local
              v[0] = x[i0, i1]
              let v0 = v[0] + 1.0
              s[i1] = v0
              barrier block
              y[i0, i1] = s[31 - i1] + v0 + v[0]
        """)
    from loopnest.kir import If, map_body

    def double(node):
        return If(node.condition, node.body, node.body) if isinstance(node, If) else node

    x = whole(6, 32)
    doubled = program.with_body(map_body(program.body, double))
    np.testing.assert_array_equal(run(doubled, x), 2 * x + x[:, ::-1] + 2)


# Shuffles


@pytest.mark.parametrize("offset", [0, 1, 5, 16, 31])
@pytest.mark.parametrize("size", [16, 32, 33, 50, 64, 100])
@pytest.mark.parametrize("mode", ["xor", "down", "lane"])
def test_shuffles(mode, size, offset):
    text = f"""
        kernel k(x: float32[{size}]) -> (y: float32[{size}])
        for i in {size}:  # block_x
          let v0 = shuffle_{mode}(x[i], {offset})
          y[i] = v0
        """
    x = randn(size)
    number = np.arange(size)
    lane = number % 32
    target = {"xor": lane ^ offset, "down": lane + offset, "lane": 0 * lane + offset}[mode]
    partner = number - lane + target
    exists = (target < 32) & (partner < size)
    y = run(text, x)
    np.testing.assert_array_equal(y[exists], x[partner[exists]])


def test_shuffles_by_a_run_time_offset_in_blocks_of_three_dimensions():
    text = """
        kernel k(x: float32[3, 4, 6], z: int32[4]) -> (y: float32[4, 3, 4, 6])
        for a in 3:  # block_z
          for b in 4:  # block_y
            for c in 6:  # block_x
              for o in 4:
                let v0 = shuffle_xor(x[a, b, c], index(z[o]))
                y[o, a, b, c] = v0
        """
    x, z = randn(3, 4, 6), np.array([1, 2, 16, 31], np.int32)
    y = run(text, x, z).reshape(4, 72)
    number = np.arange(72)
    for row, offset in zip(y, z, strict=True):
        partner = number - number % 32 + (number % 32 ^ offset)
        exists = partner < 72
        np.testing.assert_array_equal(row[exists], x.reshape(-1)[partner[exists]])


def number_of(dims):
    """The number of a thread in its block, as text, and the number of threads."""
    terms, step = [], 1
    for name, size in zip("xyz", dims, strict=False):
        terms.append(f"block_{name} * {step}")
        step *= size
    return " + ".join(terms), step


def block_reduce(dims, extent):
    """Sum a row of `extent` elements in a block of `dims` threads, of any number."""
    number, threads = number_of(dims)
    loops = [f"for t{d} in {size}:  # block_{d}" for d, size in zip("xyz", dims, strict=False)]
    body = [
        f"let t = {number}",
        "acc: float32[1] local",
        "acc[0] = 0.0",
        f"for i in ceildiv({extent}, {threads}):",
        f"  if i * {threads} + t < {extent}:",
        f"    acc[0] = acc[0] + x[g, i * {threads} + t]",
        "let v0 = acc[0]",
    ]
    name = "v0"
    for n, offset in enumerate((16, 8, 4, 2, 1)):
        exists = f"t % 32 + {offset} < min(32, {threads} - t // 32 * 32)"
        body += [
            f"let s{n} = shuffle_down({name}, {offset})",
            f"let w{n} = where({exists}, {name} + s{n}, {name})",
        ]
        name = f"w{n}"
    body += [
        f"part: float32[{-(-threads // 32)}] shared",
        "if t % 32 == 0:",
        f"  part[t // 32] = {name}",
        "barrier block",
        "total: float32[1] local",
        "total[0] = 0.0",
        f"for p in {-(-threads // 32)}:",
        "  total[0] = total[0] + part[p]",
        "let r = total[0]",
    ]
    result = "r = sum(acc[0]) over " + ", ".join([f"block_{d}" for d in "xyz"[: len(dims)]]) + ":"
    text = ["kernel reduce(x: float32[G, D]) -> (y: float32[G, T])", "for g in G:  # grid_x"]
    pad = "  "
    for loop in reversed(loops):
        text.append(pad + loop)
        pad += "  "
    start, rest = body[:6], body[6:]
    text += [pad + line for line in start]
    text.append(pad + result)
    text += [pad + "  " + line for line in rest]
    text.append(pad + "y[g, t] = r")
    return "\n".join(text).replace("float32[G, T]", f"float32[G, {threads}]"), threads


@pytest.mark.parametrize("dims", [(32,), (128,), (33,), (1,), (8, 4), (16, 16), (5, 3, 7), (1024,)])
@pytest.mark.parametrize("extent", [0, 1, 33, 1000])
def test_block_reduce(dims, extent):
    text, threads = block_reduce(dims, "D")
    x = whole(4, extent)
    expected = np.repeat(x.sum(axis=1, keepdims=True), threads, axis=1)
    np.testing.assert_array_equal(run(text, x), expected)


@pytest.mark.parametrize("size", [1, 7, 32, 33, 64, 1000])
def test_block_reduce_of_symbolic_extent(size):
    text, _ = block_reduce((32,), "D")
    text = text.replace("for tx in 32", "for tx in B").replace("[G, 32]", "[G, B]")
    text = text.replace("block_x * 1", "block_x").replace("ceildiv(D, 32)", "ceildiv(D, B)")
    text = text.replace("i * 32", "i * B").replace("32 - t // 32", "B - t // 32")
    text = text.replace("part: float32[1]", "part: float32[ceildiv(B, 32)]")
    text = text.replace("for p in 1", "for p in ceildiv(B, 32)")
    text = text.replace("x: float32[G, D]", "x: float32[G, D], z: float32[B]")
    x = whole(3, 100)
    expected = np.repeat(x.sum(axis=1, keepdims=True), size, axis=1)
    np.testing.assert_array_equal(run(text, x, np.zeros(size, np.float32)), expected)


# Blocks that arrive

LAST = """
    kernel last(x: float32[B, 64]) -> (y: float32[2])
    parts: float32[B] global
    count: int32[1] global
    for i0 in B:  # grid_x
      for i1 in 64:  # block_x
        s: float32[64] shared
        s[i1] = x[i0, i1]
        barrier block
        if i1 == 0:
          acc: float32[1] local
          acc[0] = 0.0
          for j in 64:
            acc[0] = acc[0] + s[j]
          parts[i0] = acc[0]
        let last = arrive(count[0], B)
        if last:
          t: float32[1] local
          t[0] = 0.0
          for j in ceildiv(B, 64):
            if j * 64 + i1 < B:
              t[0] = t[0] + parts[j * 64 + i1]
          barrier block
          s[i1] = t[0]
          barrier block
          if i1 == 0:
            r: float32[1] local
            r[0] = 0.0
            for j in 64:
              r[0] = r[0] + s[j]
            y[0] = r[0]
            y[1] = 1.0
    """


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("blocks", [1, 2, 3, 7, 50, 500])
def test_the_last_block_reduces_what_all_left(blocks, threads):
    fn = compiled(LAST, threads)
    for _ in range(20):
        x = whole(blocks, 64)
        np.testing.assert_array_equal(fn(x), [x.sum(), 1])


def test_arrivals_see_memory_that_others_change():
    text = body_of(LAST)
    assert "const bool last = ln_arrive(&count[0], B);" in text
    work = text[: text.index("\n{")]
    assert "const float *restrict x," in work
    assert "float *parts," in work
    assert "float *y," in work
    assert "int32_t *count" in work


def test_two_arrivals():
    text = """
        kernel two(x: float32[A, B, 32]) -> (y: float32[A], z: float32[])
        rows: float32[A, B] global
        row_count: int32[A] global
        count: int32[1] global
        for a in A:  # grid_y
          for b in B:  # grid_x
            for t in 32:  # block_x
              let v0 = shuffle_xor(x[a, b, t], 16)
              let v1 = x[a, b, t] + v0
              let v2 = shuffle_xor(v1, 8)
              let v3 = v1 + v2
              let v4 = shuffle_xor(v3, 4)
              let v5 = v3 + v4
              let v6 = shuffle_xor(v5, 2)
              let v7 = v5 + v6
              let v8 = shuffle_xor(v7, 1)
              let v9 = v7 + v8
              if t == 0:
                rows[a, b] = v9
              let row_done = arrive(row_count[a], B)
              if row_done:
                if t == 0:
                  acc: float32[1] local
                  acc[0] = 0.0
                  for j in B:
                    acc[0] = acc[0] + rows[a, j]
                  y[a] = acc[0]
                let done = arrive(count[0], A)
                if done and t == 0:
                  sum: float32[1] local
                  sum[0] = 0.0
                  for j in A:
                    sum[0] = sum[0] + y[j]
                  z[0] = sum[0]
        """
    for a, b in ((1, 1), (3, 5), (7, 33)):
        x = whole(a, b, 32)
        y, z = run(text, x, threads=3)
        np.testing.assert_array_equal(y, x.sum(axis=(1, 2)))
        np.testing.assert_array_equal(z, x.sum())


# Barriers of the grid

MEAN = """
    kernel centred(x: float32[B, 32]) -> (y: float32[B, 32])
    parts: float32[B] global
    for i0 in B:  # grid_x
      for i1 in 32:  # block_x
        s: float32[32] shared
        keep: float32[1] local
        pair: float32[2] local
        let v0 = x[i0, i1]
        s[i1] = v0 * 2.0
        keep[0] = v0
        pair[1] = v0
        barrier block
        if i1 == 0:
          acc: float32[1] local
          acc[0] = 0.0
          for j in 32:
            acc[0] = acc[0] + s[j]
          parts[i0] = acc[0]
        barrier grid
        total: float32[1] local
        total[0] = 0.0
        for j in B:
          total[0] = total[0] + parts[j]
        y[i0, i1] = keep[0] + s[31 - i1] + total[0] + v0 + pair[1]
    """


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("blocks", [1, 2, 33])
def test_a_grid_barrier_broadcasts_back(blocks, threads):
    x = whole(blocks, 32)
    expected = 3 * x + 2 * x[:, ::-1] + 2 * x.sum()
    np.testing.assert_array_equal(run(MEAN, x, threads=threads), expected)


def test_text_of_a_grid_barrier():
    text = body_of(MEAN)
    assert text.count("#pragma omp parallel") == 2
    assert lines(text, "ln_reserve") == [
        "const size_t ln_at_s_slots = ln_reserve(&ln_kept_bytes, size_B * 32, sizeof(float));",
        "const size_t ln_at_keep_slots = ln_reserve(&ln_kept_bytes, size_B * 32, sizeof(float));",
        "const size_t ln_at_pair_slots = ln_reserve(&ln_kept_bytes, size_B * 64, sizeof(float));",
        "const size_t ln_at_v0_slots = ln_reserve(&ln_kept_bytes, size_B * 32, sizeof(float));",
    ]
    assert "ln_scratch_new(&ln_kept_memory, 1, ln_kept_bytes)" in text
    assert "__builtin_free(ln_kept_memory);" in text


def test_grid_barriers_in_a_loop():
    text = """
        kernel steps(x: float32[B, 8], K: float32[K]) -> (y: float32[B, 8])
        buf: float32[2, B, 8] global
        for b in B:  # grid_x
          for t in 8:  # block_x
            big: float32[5000] shared
            v: float32[1] local
            v[0] = x[b, t]
            for k in K:
              buf[k % 2, b, t] = v[0]
              barrier grid
              v[0] = v[0] + buf[k % 2, (b + 1) % B, t]
              big[t] = v[0]
              barrier block
              v[0] = v[0] + big[7 - t]
            y[b, t] = v[0]
        """
    for blocks, count in ((1, 3), (5, 0), (5, 4), (40, 2)):
        x = whole(blocks, 8)
        expected = x.copy()
        for _ in range(count):
            expected = expected + np.roll(expected, -1, axis=0)
            expected = expected + expected[:, ::-1]
        result = run(text, x, np.zeros(count, np.float32), threads=3)
        np.testing.assert_array_equal(result, expected)


def test_swizzled_memory_outlives_a_grid_barrier():
    text = """
        kernel turn(x: float32[B, 8, 8]) -> (y: float32[B, 8, 8])
        for b in B:  # grid_x
          for i in 8:  # block_y
            for j in 8:  # block_x
              s: float32[8, 8] shared xor(0, 1)
              s[i, j] = x[b, i, j]
              barrier grid
              y[b, i, j] = s[j, i]
        """
    assert "(j ^ i)" in body_of(text)
    x = randn(5, 8, 8)
    np.testing.assert_array_equal(run(text, x), x.swapaxes(1, 2))


def test_a_grid_barrier_of_one_block_is_one_of_its_threads():
    text = """
        kernel one(x: float32[8]) -> (y: float32[8])
        s: float32[8] shared
        for t in 8:  # block_x
          s[t] = x[t]
          barrier grid
          y[t] = s[7 - t]
        """
    x = randn(8)
    np.testing.assert_array_equal(run(text, x), x[::-1])


def test_barriers_of_one_thread_vanish():
    text = """
        kernel one(x: float32[N]) -> (y: float32[N])
        for i0 in N:  # grid_x
          s: float32[1] shared
          s[0] = x[i0]
          barrier block
          let v0 = shuffle_xor(s[0], 1)
          barrier warp
          y[i0] = v0
        """
    assert lines(body_of(text), "for") == [
        "for (idx_t i0 = (idx_t)ln_from; i0 < (idx_t)ln_to; ++i0) {  // i0 grid_x"
    ]
    x = randn(9)
    np.testing.assert_array_equal(run(text, x), x)


# Loops over rows of threads


def test_loops_along_which_threads_touch_neighbours_stand_outside():
    text = body_of("""
        kernel sums(x: float32[N, D]) -> (y: float32[N, 64])
        for i0 in N:  # grid_x
          for i1 in 64:  # block_x
            s: float32[64] shared
            acc: float32[1] local
            acc[0] = 0.0
            for j in D // 64:
              acc[0] = acc[0] + x[i0, j * 64 + i1]
            s[i1] = acc[0]
            barrier block
            y[i0, i1] = s[63 - i1]
        """)
    loops = [line.split(";")[0] for line in lines(text, "for ")]
    assert loops[2:4] == ["for (idx_t j = 0", "for (idx_t i1 = 0"]


def test_loops_along_which_a_thread_touches_neighbours_stand_inside():
    text = body_of("""
        kernel sums(x: float32[64, D]) -> (y: float32[64])
        for i1 in 64:  # block_x
          s: float32[64] shared
          acc: float32[1] local
          acc[0] = 0.0
          for j in D:
            acc[0] = acc[0] + x[i1, j]
          s[i1] = acc[0]
          barrier block
          y[i1] = s[63 - i1]
        """)
    loops = [line.split(";")[0] for line in lines(text, "for ")]
    assert loops[:2] == ["for (idx_t i1 = 0", "for (idx_t j = 0"]


def loops_of(text):
    return re.findall(r"for \(idx_t (\w+) =", text[: text.index("\nint ")])


COLUMNS = """
    kernel columns(x: float32[N, D]) -> (y: float32[D])
    for i0 in ceildiv(D, 32):  # grid_x
      for i1 in 32:  # block_x
        for i2 in 8:  # block_y
          s: float32[256] shared
          acc: float32[1] local
          acc[0] = 0.0
          if i0 * 32 + i1 < D:
            for j in ceildiv(N, 8):
              if j * 8 + i2 < N:
                acc[0] = acc[0] + x[j * 8 + i2, i0 * 32 + i1]
          s[i2 * 32 + i1] = acc[0]
          barrier block
          if i2 == 0 and i0 * 32 + i1 < D:
            t: float32[1] local
            t[0] = 0.0
            for j in 8:
              t[0] = t[0] + s[j * 32 + i1]
            y[i0 * 32 + i1] = t[0]
    """


def test_a_test_of_the_thread_moves_into_the_loops_under_it():
    text = body_of(COLUMNS)
    # Neighbours add neighbouring columns, and stop where the columns end.
    assert loops_of(text)[1:5] == ["i2", "i1", "j", "i1"]
    assert "i1 < ln_min_i64(32, D - i0 * 32)" in text
    for n, d in ((1, 1), (33, 70), (0, 5), (8, 32)):
        x = whole(n, d)
        np.testing.assert_array_equal(run(COLUMNS, x), x.sum(axis=0))


def test_loops_whose_extent_differs_between_threads_stay_inside():
    text = """
        kernel triangle(x: float32[N, 32]) -> (y: float32[N, 32])
        for i0 in N:  # grid_x
          for i1 in 32:  # block_x
            s: float32[64] shared
            acc: float32[1] local
            s[i1] = x[i0, i1]
            barrier block
            acc[0] = 0.0
            for j in i1 + 1:
              acc[0] = acc[0] + s[j]
            s[32 + i1] = acc[0]
            barrier block
            y[i0, i1] = s[32 + i1]
        """
    x = whole(3, 32)
    np.testing.assert_array_equal(run(text, x), x.cumsum(axis=1))


PARTS = """
    kernel parts(x: float32[N, 512]) -> (y: float32[N, 512])
    for i0 in N:  # grid_x
      for i1 in 64:  # block_x
        s: float32[64] shared
        row: float32[8] local
        acc: float32[1] local
        for j in 2:  # unroll
          for l in 4:  # vectorize
            row[j * 4 + l] = x[i0, j * 256 + i1 * 4 + l]
        acc[0] = 0.0
        for j in 2:  # unroll
          for l in 4:  # unroll
            acc[0] = acc[0] + exp(row[j * 4 + l])
        s[i1] = acc[0]
        barrier block
        for j in 2:  # unroll
          for l in 4:  # vectorize
            y[i0, j * 256 + i1 * 4 + l] = exp(row[j * 4 + l]) + s[63 - i1]
    """


def test_a_vector_of_a_thread_stays_inside_and_its_sum_does_not():
    text = body_of(PARTS)
    # A thread copies four neighbours; to add them, neighbouring threads go side by side.
    assert loops_of(text)[1:] == ["j", "i1", "l", "i1", "j", "l", "i1", "i1", "j", "i1", "l"]
    assert "row_slots[i1 * 8 + j * 4 + l]" in text  # as most loops want it
    x = np.zeros((3, 512), np.float32)
    np.testing.assert_array_equal(run(PARTS, x), x + 9)


def test_text_of_shuffles():
    text = body_of("""
        kernel k(x: float32[N, 64]) -> (y: float32[N, 64])
        for i0 in N:  # grid_x
          for i1 in 64:  # block_x
            let v0 = x[i0, i1]
            let v1 = shuffle_xor(v0, 2)
            let v2 = shuffle_down(v0 + v1, 1)
            y[i0, i1] = v2
        """)
    assert lines(text, r"_slots\[.*=") == [
        "LN_VEC(ln_f32x16, v0_slots[i1]) = v0;  // v0 kept",
        "v1_slots[pair * 4 + lane] = v0_slots[pair * 4 + lane + 2];  // v1 kept",
        "v1_slots[pair * 4 + lane + 2] = v0_slots[pair * 4 + lane];  // v1 kept",
        "LN_VEC(ln_f32x16, v2_2_slots[i1]) = v2_2;  // v2_2 kept",
    ]
    assert "i1 % 32 + 1 < 32 ? v2_2_slots[i1 + 1] : v2_2_slots[i1]" in text


def test_rows_of_several_dimensions():
    text = """
        kernel rows(x: float32[N, D]) -> (y: float32[N, 4])
        for i0 in N:  # grid_x
          for i1 in 4:  # block_y
            for i2 in 16:  # block_x
              row: float32[3] local
              s: float32[4, 16] shared
              acc: float32[1] local
              acc[0] = 0.0
              for j in 3:
                row[j] = x[i0, i1 * 48 + j * 16 + i2]
              for j in 3:
                acc[0] = acc[0] + row[j]
              s[i1, i2] = acc[0]
              barrier block
              if i2 == 0:
                t: float32[1] local
                t[0] = 0.0
                for j in 16:
                  t[0] = t[0] + s[i1, j]
                y[i0, i1] = t[0]
        """
    x = whole(3, 192)
    np.testing.assert_array_equal(run(text, x), x.reshape(3, 4, 48).sum(axis=2))


def test_cpu_parallel_loops_around_blocks():
    text = """
        kernel k(x: float32[N, 32]) -> (y: float32[N, 32])
        for i0 in N:  # cpu_parallel
          s: float32[5000] shared
          for i1 in 32:  # block_x
            s[i1] = x[i0, i1]
            barrier block
            y[i0, i1] = s[31 - i1]
        """
    assert "#pragma omp parallel" in body_of(text)
    x = randn(40, 32)
    np.testing.assert_array_equal(run(text, x, threads=4), x[:, ::-1])


# Faults of whoever made the program


def test_a_thread_loop_around_a_barrier_must_cover_the_launch():
    program = parse_nest(
        """
        kernel k(x: float32[N, 16]) -> (y: float32[N, 16])
        for i0 in N:  # grid_x
          for i1 in 16:  # block_x
            barrier block
            y[i0, i1] = x[i0, i1]
        """,
        launch={ParallelType.block_x: integer(32)},
    )
    message = "loop i1 (block_x): it holds a barrier and has extent 16, while the launch has 32"
    with pytest.raises(InternalError, match=re.escape(message)):
        print_c(program)


def test_blocks_arrive_at_one_counter():
    program = parse_nest("""
        kernel k(x: float32[32]) -> (y: float32[32])
        count: int32[32] global
        for i0 in 32:  # block_x
          let last = arrive(count[i0], 1)
          if last:
            y[i0] = x[i0]
        """)
    message = "last: where its blocks arrive differs between threads"
    with pytest.raises(InternalError, match=re.escape(message)):
        print_c(program)


def test_shuffles_have_three_modes():
    program = parse_nest("""
        kernel k(x: float32[32]) -> (y: float32[32])
        for i0 in 32:  # block_x
          let v0 = shuffle_up(x[i0], 1)
          y[i0] = v0
        """)
    with pytest.raises(InternalError, match="v0: a shuffle of mode 'up'"):
        print_c(program)


def test_a_loop_around_a_barrier_must_be_the_same_for_all():
    program = parse_nest("""
        kernel k(x: float32[32]) -> (y: float32[32])
        for i0 in 32:  # block_x
          for k in i0:
            barrier block
          y[i0] = x[i0]
        """)
    message = "loop k: its extent i0 differs between threads that meet in it"
    with pytest.raises(InternalError, match=re.escape(message)):
        print_c(program)


# Memory


def test_large_shared_memory_is_scratch():
    text = REVERSE.replace("[32] shared", "[6400] shared")
    assert "ln_reserve(&ln_bytes, 6400, sizeof(float))" in body_of(text)
    x = randn(9, 32)
    np.testing.assert_array_equal(run(text, x), 2 * x[:, ::-1])


def test_many_small_arrays_do_not_fill_the_stack():
    steps = "\n".join(
        f"          let v{n + 1} = shuffle_xor(v{n} + 1.0, {1 << n % 5})" for n in range(40)
    )
    text = f"""
        kernel many(x: float32[1024]) -> (y: float32[1024])
        for t in 1024:  # block_x
          let v0 = x[t]
{steps}
          y[t] = v40
        """
    printed = body_of(text)
    assert len(lines(printed, r"float \w+_slots\[1024\];")) == 16
    assert len(lines(printed, "ln_reserve")) == 64
    x = randn(1024)
    expected = x.copy()
    for n in range(40):
        expected = (expected + np.float32(1))[np.arange(1024) ^ (1 << n % 5)]
    np.testing.assert_array_equal(run(text, x), expected)


WIDE = """
    kernel wide(x: float32[64]) -> (y: float32[64])
    for t in 64:  # block_x
      row: float32[D] local
      s: float32[64] shared
      row[D - 1] = x[t]
      s[t] = x[t]
      barrier block
      y[t] = s[63 - t] + row[D - 1]
    """


def test_indices_are_as_wide_as_what_is_kept():
    program = parse_nest(WIDE)
    built = CompiledC(program)
    planner = Planner(program)
    widths = []
    for size in (1000, (1 << 31) // 64 - 1, (1 << 31) // 64):
        plan = planner.plan({"D": size}, "wide(...)")
        assert plan.index_bits == 32
        widths.append(built.index_bits(plan))
    assert widths == [32, 32, 64]


def test_no_memory_for_what_is_kept():
    fn = compiled(WIDE)
    x = randn(64)
    np.testing.assert_array_equal(fn(x, D=1000), x[::-1] + x)
    with pytest.raises(LaunchError) as raised:
        fn(x, D=1 << 45)
    assert str(raised.value) == (
        "wide(...): no memory is left for its local buffers; pass smaller arrays, or fewer threads"
    )


def test_no_memory_for_what_blocks_keep():
    fn = compiled("""
        kernel wide(x: float32[B, 8]) -> (y: float32[B, 8])
        buf: float32[B, 8] global
        for b in B:  # grid_x
          for t in 8:  # block_x
            row: float32[D] local
            s: float32[5000] shared
            row[D - 1] = x[b, t]
            buf[b, t] = x[b, t]
            barrier grid
            s[t] = buf[B - 1 - b, t]
            barrier block
            y[b, t] = s[7 - t] + row[D - 1]
        """)
    x = randn(5, 8)
    np.testing.assert_array_equal(fn(x, D=100), x[::-1, ::-1] + x)
    with pytest.raises(LaunchError, match="no memory is left"):
        fn(x, D=1 << 45)
