"""Tiles with halo under schedules: memories, threads, tails; what is read and computed, counted."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable

import numpy as np
import pytest

import loopnest as ln
from loopnest import kir
from loopnest.kir import expressions
from loopnest.scalar.expr import loads

PT = ln.ParallelType
X = np.random.default_rng(5).integers(0, 9, (38, 34)).astype(np.float32)


def check(f: ln.Fusion, *arrays: np.ndarray, all_sizes: bool = True) -> ln.Kernel:
    """Return the kernel of `f`, which is proved and gives what the math does."""
    kernel = ln.lower(f)
    expected = ln.evaluate(f, *arrays)
    for target in ("interpret", "c"):
        np.testing.assert_array_equal(ln.compile(kernel, target=target)(*arrays), expected)
    report = ln.verify(kernel)
    assert report.ok
    assert report.all_sizes or not all_sizes
    return kernel


def rows(t: ln.TensorView) -> ln.TensorView:
    return t[:, :-2] + t[:, 1:-1] + t[:, 2:]


def columns(t: ln.TensorView) -> ln.TensorView:
    return t[:-2] + t[1:-1] + t[2:]


def happens(kernel: ln.Kernel, buffer: str, *, load: bool) -> int:
    """Return how often elements of a buffer are loaded or stored; all extents are static."""
    count = 0
    for node, around in kernel.walk():
        if isinstance(node, kir.Store):
            times = math.prod(int(str(p.extent)) for p in around if isinstance(p, kir.Loop))
            found = [x for value in expressions(node) for x in loads(value)]
            count += times * sum(x.buffer.name == buffer for x in found) if load else 0
            count += times * (node.buffer == buffer) if not load else 0
    return count


def tiled_blur(sizes: tuple[int | str, int | str]) -> tuple[ln.Fusion, ln.TensorView]:
    """Return a two-stage blur whose image is copied to shared memory tile by tile."""
    with ln.Fusion("blur") as f:
        x = f.input("x", sizes, ln.float32)
        y = f.output(columns(rows(x).named("mid")), "y")
    image = x.cache_after().named("image")
    y.split(1, 8).split(0, 4).reorder({1: 2})
    y.parallelize({0: PT.grid_y, 1: PT.grid_x, 2: PT.block_y, 3: PT.block_x})
    image.compute_at(y, 2)
    f["mid"].compute_at(y, 2)
    for tensor in (image, f["mid"]):
        tensor.memory = ln.SHARED
        tensor.parallelize({2: PT.block_y, 3: PT.block_x})
    for near, tensor in ((f["mid"], y), (image, f["mid"])):
        for part in near.consumers:
            part.compute_at(tensor, -1)
    f.inline_most()
    return f, image


def test_a_two_stage_blur_reads_the_tile_and_its_halo() -> None:
    f, image = tiled_blur(("N", "M"))
    kernel = check(f, X)
    shapes = {b.name: [str(n) for n in b.shape] for b in kernel.buffers if b.memory is ln.SHARED}
    assert shapes == {"image": ["6", "10"], "mid": ["6", "8"]}
    assert "__shared__" in kernel.cuda()
    assert image.compute_at_pos > 1
    f, _ = tiled_blur((38, 34))
    kernel = check(f, X)
    tiles = 9 * 4
    assert happens(kernel, "x", load=True) == tiles * (4 + 2) * (8 + 2)
    assert happens(kernel, "mid", load=False) == tiles * (4 + 2) * 8


def test_a_convolution_has_no_buffer_with_the_axes_of_its_windows() -> None:
    with ln.Fusion("conv") as f:
        x = f.input("x", (2, 4, 16, 16), ln.float32)
        w = f.input("w", (8, 4, 3, 3), ln.float32)
        y = f.output(ln.conv(x, w), "y")
    tile = x.cache_after()
    total = y.cache_before()
    y.split(3, 7).split(2, 7).reorder({4: 3}).reorder({1: 3})  # [2, 2, 2, 8, 7, 7]
    total.compute_at(y, 3)
    tile.compute_at(y, 3)
    tile.memory = ln.SHARED
    f["w"].consumers[0].compute_at(total, -1)
    f.inline_most()
    weights = np.arange(8 * 4 * 9, dtype=np.float32).reshape(8, 4, 3, 3) % 5
    kernel = check(f, np.tile(X[:16, :16], (2, 4, 1, 1)), weights)
    held = {b.name: [int(str(n)) for n in b.shape] for b in kernel.buffers}
    assert held[tile.name] == [4, 9, 9]
    assert not any(shape[-2:] == [3, 3] for name, shape in held.items() if name != "w")
    assert happens(kernel, "x", load=True) == 2 * 2 * 2 * 4 * 9 * 9


MEMORIES: dict[str, Callable[[ln.TensorView], object]] = {
    "local": lambda t: None,
    "shared": lambda t: setattr(t, "memory", ln.SHARED),
    "global": lambda t: setattr(t, "memory", ln.GLOBAL),
}


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("outer", [PT.serial, PT.grid_x, PT.block_y, PT.cpu_parallel])
def test_a_tile_in_each_memory_and_loop(memory: str, outer: ln.ParallelType) -> None:
    """Negative steps, two apart: tiles are tested on both sides, and stored once at a time."""
    with ln.Fusion("k") as f:
        t = f.input("x", ("N",), ln.float32) * 2.0
        both = (t[3:][::-2], t[:-3][::-2]) if outer is PT.serial else (t[1:], t[:-1])
        y = f.output(both[0] - both[1], "y")
    y.split(0, 8)
    y.axis(0).parallelize(outer)
    t.compute_at(y, 1)
    MEMORIES[memory](t)
    f.inline_most()
    row = np.arange(38, dtype=np.float32)
    if memory == "global" and outer is PT.cpu_parallel:
        with pytest.raises(ln.LoweringError) as caught:
            ln.lower(f)
        assert str(caught.value) == (
            "T1: the tiles of the cpu_parallel loop y.i0 overlap, and would store the same "
            "elements of GLOBAL memory at once; set the memory of T1 to ln.SHARED or ln.LOCAL, or "
            "compute it outside of that loop"
        )
        return
    kernel = check(f, row)
    if memory == "global" and outer is PT.grid_x:
        assert "(i1 < 8 or i0 + 1 == ceildiv(N - 1, 8))" in str(kernel)
        assert "barrier grid" in str(kernel)


@pytest.mark.parametrize(
    ("stride", "dilation", "owner"),
    [
        (4, 2, "(i1 * 2 < 4 or i0 + 1 == ceildiv(N, 4) - 2)"),
        (3, 2, "i1 * 2 < 6 or N // 3 - 4 < i0 + 1"),
        (1, 8, "i1 * 8 < 8 or N - 40 < i0 + 1"),
    ],
)
def test_a_tile_of_elements_apart_shares_them_with_a_later_one(
    stride: int, dilation: int, owner: str
) -> None:
    """Tiles whose elements lie apart have some of the same only after several tiles."""
    with ln.Fusion("k") as f:
        t = f.input("x", ("N",), ln.float32) * 2.0
        windows = ln.unfold(t, 0, 5, stride=stride, dilation=dilation)
        y = f.output(ln.sum(windows, -1), "y")
    t.memory = ln.GLOBAL
    windows.compute_at(y, -1)
    t.compute_at(y, 1)
    y.axis(0).parallelize(PT.block_x)
    assert owner in str(check(f, np.arange(77, dtype=np.float32)))


def test_a_tail_of_a_tile_is_not_read_beyond_it() -> None:
    """18 rows in parts of 8: the third part has two, and what it reads has no more."""
    with ln.Fusion("k") as f:
        t = f.input("x", ("N", "M"), ln.float32) * 2.0
        mid = rows(t)
        y = f.output(columns(mid), "y")
    y.split(0, 16)
    t.compute_at(y, 1)
    mid.split(1, 8)
    for part in t.consumers:
        part.compute_at(mid, -1)
    kernel = check(f, X, all_sizes=False)
    assert "< 18" in str(kernel)


def test_a_scheduled_tile_is_pickled() -> None:
    f, _ = tiled_blur(("N", "M"))
    kernel = ln.lower(f)
    assert str(ln.lower(pickle.loads(pickle.dumps(f)))) == str(kernel)
    assert ln.verify(pickle.loads(pickle.dumps(kernel))).all_sizes
    assert str(ln.Kernel.parse(kernel.text(full=True))) == str(kernel)


def test_vectors_of_tiles_moved_by_sizes_are_whole() -> None:
    """Where the sizes that a tile is moved by are multiples of the vector, no lane has a test."""
    with ln.Fusion("joined") as f:
        parts = [
            f.input(name, ("N", width), ln.float32)
            for name, width in zip("abc", "DEC", strict=True)
        ]
        y = f.output(ln.concatenate(parts, axis=1), "y")
    y.split(1, 4)
    for part in parts:
        copy = part.cache_after()
        copy.compute_at(y, 2)
        copy.axis(-1).parallelize(ln.ParallelType.vectorize)
    y.axis(-1).parallelize(ln.ParallelType.vectorize)
    k = ln.lower(f)
    assert k.notes == ()
    assert """    if D + E <= i1 * 4:
      for i4 in 4:  # vectorize
        T6[i4] = c[i0, i1 * 4 - D - E + i4]
""" in str(k)
    required = {text for text, _ in k.program.requires}
    assert {"D % 4 == 0", "E % 4 == 0", "C % 4 == 0"} <= required
    assert "D + E <= i1 * 4 + i4" in str(k.scalar)
    assert ln.verify(k).all_sizes


def test_one_element_of_an_axis_is_computed_alone() -> None:
    """No loop tells which one, and no other axis is read in windows."""
    with ln.Fusion("last") as f:
        x = f.input("x", ("N", "M"), ln.float32)
        t = ln.exp(x)
        y = f.output(t[:, -1] * 2.0, "y")
    t.compute_at(y, -1)
    f.inline_most()
    kernel = ln.lower(f)
    assert "T1[0] = exp(x[i0, M - 1])" in str(kernel)
    assert ln.verify(kernel).all_sizes


@pytest.mark.parametrize("size", [8, "N"])
def test_one_element_of_the_only_axis_shares_no_loop(size: int | str) -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", (size,), ln.float32)
        if size == "N":
            f.assume("N >= 3")
        t = x * 2.0
        f.output(t[-3:-2], "y")
    f.inline_most()
    assert t.compute_at_pos == 0
    assert ln.verify(ln.lower(f)).all_sizes


def test_tiles_of_a_tensor_whose_sibling_alone_is_read() -> None:
    """The places of an argmax are read, not its values, by what is read in windows itself."""
    with ln.Fusion("places") as f:
        x, w = f.input("x", ("N", 11), ln.float32), f.input("w", (1, 11), ln.float32)
        t = ln.argmax(w, 0, keepdims=True) + x
        y = f.output(t[:, 3:9:2] * 1, "y")
    y.split(1, 2)
    f.inline_most()
    assert ln.verify(ln.lower(f)).all_sizes


def windows_over_threads(memory: str, split: int = 0) -> ln.Fusion:
    """Windows computed where both the window and the place in it are bound to threads."""
    with ln.Fusion("k") as f:
        t = f.input("x", ("N",), ln.float32) * 2.0
        y = f.output(ln.sum(ln.unfold(t, 0, 3), 1), "y")
    MEMORIES[memory](t)
    if memory == "shared":
        t.allocation_domain.split(0, 8)
    if split:
        y.split(0, split)
    y.axis(-2).parallelize(PT.block_y)
    y.axis(-1).parallelize(PT.block_x)
    f.inline_most(replay=True)
    return f


@pytest.mark.parametrize("memory", ["shared", "global"])
def test_windows_that_overlap_along_two_thread_axes_are_stored_once(memory: str) -> None:
    """All threads of a diagonal have the same element: the first in each window stores it."""
    kernel = check(windows_over_threads(memory), np.arange(21, dtype=np.float32))
    assert "if i1 < 1 or i0 + 1 == N - 2:" in str(kernel)
    assert "barrier block" in str(kernel)


def test_threads_of_tiles_that_may_be_missing_have_no_owner() -> None:
    """Which window is the last one of a loop follows from another loop's index."""
    with pytest.raises(ln.LoweringError) as caught:
        ln.lower(windows_over_threads("shared", 4))
    assert str(caught.value) == (
        "T1: its buffer is laid out by its own axes, but the tiles of the block_y loop y.i1 "
        "overlap, and would store the same elements of it at once; leave the layout of T1 to its "
        "loops, set its memory to ln.LOCAL, or compute it outside of that loop"
    )


def test_tiles_of_threads_that_a_serial_loop_moves_too_meet_between_its_iterations() -> None:
    """Threads store elements of GLOBAL memory again that others stored an iteration before."""
    with ln.Fusion("k") as f:
        t = f.input("x", (17,), ln.float32) * 2.0
        y = f.output(ln.sum(ln.unfold(t, 0, 4, stride=3, dilation=2), 1), "y")
    t.memory = ln.GLOBAL
    y.axis(1).parallelize(PT.block_x)
    t.compute_at(y, -1)
    f.inline_most()
    kernel = check(f, np.arange(17, dtype=np.float32))
    assert "barrier warp  # T1 stores to T1 after T1 stores it in other threads" in str(kernel)


def test_a_tile_that_its_block_shares_is_not_stored_anew_before_all_have_read_it() -> None:
    """The thread that reads an element of a halo is not the only one that stores it."""
    with ln.Fusion("k") as f:
        t = f.input("x", ("N", 3), ln.float32) * 2.0
        y = f.output(ln.sum(ln.unfold(t, 0, 4, dilation=2), -1), "y")
    t.memory = ln.SHARED
    t.allocation_domain.split(0, 4)
    t.compute_at(y, 2)
    y.axis(0).parallelize(PT.block_z)
    f.inline_most()
    kernel = check(f, np.arange(27, dtype=np.float32).reshape(9, 3))
    assert "barrier block  # T1 stores to T1 after T2 reads it in other threads" in str(kernel)


def test_threads_of_a_loop_that_moves_no_tile_store_it_once() -> None:
    with ln.Fusion("k") as f:
        x, z = f.input("x", ("N",), ln.float32), f.input("z", ("M",), ln.float32)
        t = x * 2.0
        windows = ln.broadcast(t[:-1] + t[1:], [False, True])
        y = f.output(windows + ln.broadcast(z, [True, False]), "y")
    t.memory = ln.SHARED
    t.allocation_domain.split(0, 8)
    y.split(0, 8)
    y.reorder({2: 1})
    y.parallelize({0: PT.grid_x, 1: PT.block_x})
    t.compute_at(y, 2)
    f.inline_most()
    kernel = check(f, np.arange(21, dtype=np.float32), np.arange(3, dtype=np.float32))
    assert "if block_x == 0:" in str(kernel) or "if i1 == 0:" in str(kernel)
