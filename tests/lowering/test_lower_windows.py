"""Tensors read at other indices under schedules: tiles, threads, vectors, barriers."""

from __future__ import annotations

import numpy as np
import pytest

import loopnest as ln

PT = ln.ParallelType
X = np.arange(5 * 37, dtype=np.float32).reshape(5, 37)


def check(f: ln.Fusion, *arrays: np.ndarray) -> ln.Kernel:
    """Return the kernel of `f`, which is proved and gives what the math does."""
    kernel = ln.lower(f)
    expected = ln.evaluate(f, *arrays)
    for target in ("interpret", "c"):
        np.testing.assert_array_equal(ln.compile(kernel, target=target)(*arrays), expected)
    assert ln.verify(kernel).ok
    return kernel


def test_what_windows_read_is_computed_in_tiles() -> None:
    """A tile of 8 windows of 3 is 10 elements; a position in front of the windows takes a row."""
    with ln.Fusion("blur") as f:
        x = f.input("x", ("N", "W"), ln.float32)
        s = x * 2
        y = f.output(ln.sum(ln.unfold(s, 1, 3), axis=2), "y")
    y.split(1, 8)
    windows = y.producers[0]
    s.compute_at(y, 2)
    windows.compute_at(y, -1)
    assert (s.compute_at_pos, windows.compute_at_pos) == (2, 4)
    assert str(check(f, X)) == (
        "# loopnest nest 1\n"
        "kernel blur(x: float32[N, W]) -> (y: float32[N, W - 2])\n"
        "for i0 in N:\n"
        "  for i1 in ceildiv(W - 2, 8):\n"
        "    T1: float32[10] local\n"
        "    for i2 in 10:\n"
        "      if i1 * 8 + i2 < W:\n"
        "        T1[i2] = x[i0, i1 * 8 + i2] * 2.0\n"
        "    for i3 in 8:\n"
        "      if i1 * 8 + i3 < W - 2:\n"
        "        y[i0, i1 * 8 + i3] = 0.0\n"
        "        for i4 in 3:\n"
        "          T2: float32[1] local\n"
        "          T2[0] = T1[i3 + i4]\n"
        "          y[i0, i1 * 8 + i3] = y[i0, i1 * 8 + i3] + T2[0]"
    )


def test_a_loop_merged_with_a_window_tells_an_element() -> None:
    """The producer has the axis, at other indices: of one loop of all windows it has an element."""
    with ln.Fusion("merged") as f:
        x = f.input("x", (4, 6), ln.float32)
        s = x * 2
        y = f.output(s[:, 1:] + 0, "y")
    part = y.producers[0]
    s.merge(0)
    part.merge(0)
    y.merge(0)
    part.compute_at(y, 1)
    s.inline_at(1)
    assert [str(axis.size) for axis in s.leaf_domain] == ["20", "1", "1"]
    assert "T1[0] = x[i0 // 5, i0 % 5 + 1] * 2.0" in str(check(f, X[:4, :6].copy()))


def test_a_padded_tile_in_shared_memory() -> None:
    with ln.Fusion("tile") as f:
        x = f.input("x", (12, 16), ln.float32)
        p = ln.pad(x, ((1, 1), (1, 1)))
        windows = ln.unfold(ln.unfold(p, 0, 3), 1, 3)
        y = f.output(ln.sum(windows, (2, 3)), "y")
    p.memory = ln.SHARED
    for tensor in (p, y):
        tensor.split(0, 4)
        tensor.split(2, 8)
        tensor.parallelize({1: PT.block_y, 3: PT.block_x})
    windows.compute_at(y, -1)
    rows = windows.producers[0]
    rows.compute_at(windows, -1)
    assert (rows.ndim, rows.compute_at_pos) == (7, 6)
    kernel = check(f, np.arange(12 * 16, dtype=np.float32).reshape(12, 16))
    assert "barrier warp" in str(kernel)
    assert "where(0 <= " in str(kernel)
    assert "__syncwarp" in kernel.cuda()


def test_values_of_other_threads_cross_memory() -> None:
    """A thread reads what its neighbour wrote: LOCAL is refused, SHARED gets a barrier."""
    for memory in (ln.LOCAL, ln.SHARED):
        with ln.Fusion("shifted") as f:
            x = f.input("x", ("M", 64), ln.float32)
            s = x * 2
            y = f.output(s[:, 1:] - s[:, :-1], "y")
        s.memory = memory
        for tensor in (s, y):
            tensor.split(1, 32)
            tensor.parallelize({0: PT.grid_x, 2: PT.block_x})
        s.compute_at(y, 1)
        for part in y.producers:
            part.compute_at(y, -1)
        if memory is ln.LOCAL:
            with pytest.raises(ln.LoweringError, match="the reading thread is not the writing one"):
                ln.lower(f)
        else:
            kernel = check(f, np.arange(128, dtype=np.float32).reshape(2, 64))
            assert "barrier" in str(kernel)


def test_vectors_of_a_border() -> None:
    """Lanes test for themselves; a shifted row is never read wide."""
    with ln.Fusion("vectors") as f:
        x = f.input("x", (5, "N"), ln.float32)
        p = ln.pad(x, ((0, 0), (4, 4)))
        y = f.output(p * 1, "y")
    y.split(1, 4)
    y.parallelize({0: PT.grid_x, 1: PT.block_x, 2: PT.vectorize})
    p.compute_at(y, 2)
    p.parallelize({2: PT.vectorize})
    kernel = check(f, X)
    assert kernel.cuda()
    with ln.Fusion("shift") as g:
        x = g.input("x", (5, "N"), ln.float32)
        part = x[:, 1:]
        y = g.output(part + 0, "y")
    y.split(1, 4)
    y.parallelize({2: PT.vectorize})
    part.compute_at(y, 2)
    part.parallelize({2: PT.vectorize})
    assert "j:j+4" not in str(check(g, X))
    assert ":" not in str(ln.lower(g)).split("x[i0")[1].split("]")[0]


def test_unswitch_around_a_join() -> None:
    with ln.Fusion("joined") as f:
        x = f.input("x", ("N",), ln.float32)
        p = ln.pad(x, ((1, 1),))
        y = f.output(ln.concatenate([p, x * 2, p]), "y")
    y.split(0, 16)
    y.parallelize({0: PT.grid_x, 1: PT.unswitch})
    f.inline_most()
    assert "unswitch" in str(check(f, X[0]))


def test_each_thread_finishes_the_tile_that_it_has():
    """Threads go along tiles: none of these loops repeats what another one has stored."""
    kinds = ln.ParallelType
    with ln.Fusion("k") as f:
        x = f.input("x", ("M", "N"), ln.float32)
        total = ln.sum(x, 1)
        y = f.output(ln.exp(ln.unfold(total, 0, 3, stride=2)), "y")
    y.split(0, 2)
    total.compute_at(y, 3)
    total.memory = ln.SHARED
    y.parallelize({0: kinds.block_y, 1: kinds.block_x, 2: kinds.grid_x})
    f.inline_most()
    kernel = ln.lower(f)
    assert str(ln.verify(kernel)) == "proved for all sizes"
    values = np.random.default_rng(0).random((9, 4)).astype(np.float32)
    for target in ("interpret", "c"):
        found = ln.compile(kernel, target)(values)
        np.testing.assert_allclose(found, ln.evaluate(f, values), rtol=1e-6)


def test_a_test_of_one_block_is_none_of_a_loop_over_blocks():
    """What the loop leaves is in registers alone, and read under the test."""
    kinds = ln.ParallelType
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "M", 0), ln.float32)
        t = ln.exp(x)
        y = f.output(ln.concatenate([t, x], 0), "y")
    c = t.cache_after()
    y.reorder({1: 0})
    t.compute_at(y, 1)
    c.axis(0).parallelize(kinds.block_x)
    c.axis(1).parallelize(kinds.grid_x)
    text = str(ln.lower(f))
    assert text.index("# grid_x") < text.index("if grid_x == 0:")
