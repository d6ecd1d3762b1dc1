"""Loops over rows of threads; faults of programs, and memory, where threads are loops."""

import re

import numpy as np
import pytest

from helpers.communicating_threads import REVERSE, body_of, compiled, lines, randn, run, whole
from loopnest.backends.cpu.c_compiler import find_compiler
from loopnest.backends.cpu.c_printer import print_c
from loopnest.backends.cpu.c_target import CompiledC
from loopnest.base.errors import InternalError, LaunchError
from loopnest.kir import parse as parse_nest
from loopnest.launch.launch_plan import Planner
from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import integer

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")


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


def test_shuffles_have_four_modes():
    program = parse_nest("""
        kernel k(x: float32[32]) -> (y: float32[32])
        for i0 in 32:  # block_x
          let v0 = shuffle_turn(x[i0], 1)
          y[i0] = v0
        """)
    with pytest.raises(InternalError, match="v0: a shuffle of mode 'turn'"):
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
