"""Threads of a block as loops: shared memory, barriers, branches, what crosses a barrier."""

import re

import numpy as np
import pytest

import loopnest as ln
from helpers.communicating_threads import REVERSE, body_of, lines, randn, run, whole
from loopnest.backends.cpu.c_compiler import find_compiler
from loopnest.kir import parse as parse_nest

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")


# Shared memory and barriers


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
    #pragma GCC unroll 32
    for (idx_t i1 = 0; i1 < 32; i1 += LN_LANES(ln_f32x16)) {  // i1 block_x
      LN_VEC(ln_f32x16, y[i0 * 32 + i1]) = ln_f32x16_every(&s[31 - i1], -1);  // y
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
    assert lines(body_of(text), r"slots\[\d+\];") == ["uint8_t v4_slots[32];"]
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


@pytest.mark.parametrize("n", [1, 4, 5, 8, 11])
def test_threads_of_another_branch_stay_out_of_a_loop_with_bounds(n):
    """The test that parts the threads was joined with the loop's bound, and taken for one."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "N"), ln.float64)
        row, column = ln.iota("N"), ln.iota("N")
        above = ln.lt(ln.broadcast(row, (True, False)), ln.broadcast(column, (False, True)))
        y = f.output(ln.sum(ln.where(above, x, 0.0), 0), "y")
    y.split(1, 5)
    y.split(0, 1)
    ln.propagate(y)
    f.inline_most(replay=True)
    kinds = ln.ParallelType
    y.parallelize({0: kinds.grid_x, 1: kinds.grid_y, 2: kinds.unswitch, 3: kinds.block_z})
    values = np.random.default_rng(n).standard_normal((n, n))
    found = ln.compile(f, "c")(values)
    np.testing.assert_allclose(found, ln.evaluate(f, values), rtol=1e-12, atol=1e-12)
