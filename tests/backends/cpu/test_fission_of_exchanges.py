"""Threads as loops that exchange values: shuffles, arrivals, barriers of the grid."""

import numpy as np
import pytest

from helpers.communicating_threads import body_of, compiled, lines, randn, run, whole
from loopnest.backends.cpu.c_compiler import find_compiler

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")


# Shuffles


@pytest.mark.parametrize("offset", [0, 1, 5, 16, 31])
@pytest.mark.parametrize("size", [16, 32, 33, 50, 64, 100])
@pytest.mark.parametrize("mode", ["xor", "down", "up", "lane"])
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
    target = {
        "xor": lane ^ offset,
        "down": lane + offset,
        "up": lane - offset,
        "lane": 0 * lane + offset,
    }[mode]
    partner = number - lane + target
    exists = (target >= 0) & (target < 32) & (partner < size)
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
