"""Reports of wrong code by other compilers, rebuilt as math and schedules of ours.

A report is a generator: it declares the math, yields, and schedules it. What the report is about
(a ragged tile, a barrier, memory that is used twice) is in that schedule, at the sizes of the
report or smaller ones of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import loopnest as ln

PT = ln.ParallelType
Build = Callable[[ln.Fusion], Iterator[None]]


@dataclass(frozen=True)
class Report:
    """One report.

    Args:
        where: "owner/repository#number".
        build: declares the math, yields, and schedules.
        sizes: at which it is run.
        barriers: whether the kernel is wrong without its barriers.
        shows: what its nest has, so that the report is about it.
    """

    where: str
    build: Build
    sizes: tuple[dict[str, int], ...]
    barriers: bool = False
    shows: str = ""


REPORTS: list[Report] = []


def report(
    where: str, *sizes: dict[str, int], barriers: bool = False, shows: str = ""
) -> Callable[[Build], Build]:
    """Keep a report."""

    def add(build: Build) -> Build:
        REPORTS.append(Report(where, build, sizes or ({},), barriers, shows))
        return build

    return add


def inline_but(f: ln.Fusion, *kept: ln.TensorView) -> None:
    """Compute all tensors inside of what reads them, but for some."""
    ln.inline_most([t for t in f.tensors if not t.is_input and t not in kept])


# Ragged tiles


def blurred(f: ln.Fusion) -> tuple[ln.TensorView, ln.TensorView]:
    """Return the sums of 5 x 5 neighbours, and their mean as an integer."""
    x = f.input("x", ("H", "W"), ln.int32)
    total = ln.sum(ln.unfold(x, (0, 1), 5), (2, 3))
    return total, f.output(total // 25, "blurry")


@report("halide/Halide#7872", {"H": 12, "W": 14}, {"H": 5, "W": 9})
def sums_inside_of_guarded_tiles(f: ln.Fusion) -> Iterator[None]:
    total, blurry = blurred(f)
    yield
    blurry.split(1, 2)
    total.compute_at(blurry, 3)


@report("halide/Halide#7764", {"N": 16}, {"N": 15})
def inner_tiles_larger_than_the_outer_ones(f: ln.Fusion) -> Iterator[None]:
    copied = f.input("x", ("N",), ln.int32) + 0
    y = f.output(copied * 1, "y")
    yield
    y.split(0, 2)
    y.split(1, 4)
    y.reorder([0, 1, 2])
    copied.compute_at(y, 1)


@report("halide/Halide#7890", {"H": 11, "W": 13}, {"H": 5, "W": 8})
def factored_sums_of_split_rows(f: ln.Fusion) -> Iterator[None]:
    total, blurry = blurred(f)
    yield
    blurry.split(0, 2)
    total.split(1, 4)
    total.split(1, 1)
    total.rfactor([-1])


@report("halide/Halide#4324")
def factored_sum_of_a_ragged_split(f: ln.Fusion) -> Iterator[None]:
    y = f.output(ln.sum(f.input("x", (15,), ln.int32)), "y")
    yield
    y.split(0, 8)
    y.rfactor([0])


@report("halide/Halide#3424", {"N": 10}, {"N": 7})
def producer_inside_of_a_ragged_sum(f: ln.Fusion) -> Iterator[None]:
    x = f.input("x", ("N",), ln.float32)
    root = ln.sqrt(ln.abs(x))
    y = f.output(ln.sum(root), "y")
    yield
    y.split(0, 4)
    root.compute_at(y, 1)


@report("triton-lang/triton#1760", {"M": 3, "N": 7, "K": 64}, {"M": 3, "N": 32, "K": 64})
def product_of_irregular_shapes(f: ln.Fusion) -> Iterator[None]:
    a, b = f.input("a", ("M", "K"), ln.float32), f.input("b", ("K", "N"), ln.float32)
    y = f.output(ln.matmul(a, b), "y")
    yield
    t = y.cache_before()
    y.split(1, 16)
    y.split(0, 16)
    y.parallelize({0: PT.grid_x, 2: PT.grid_y})
    y.reorder([0, 2, 1, 3])
    y.parallelize({2: PT.block_y, 3: PT.block_x})
    t.compute_at(y, 4)
    t.split(-1, 16)


@report(
    "triton-lang/triton#480", {"K": 6, "N": 9, "C": 7}, {"K": 5, "N": 3, "C": 12}, barriers=True
)
def sums_of_gathered_rows(f: ln.Fusion) -> Iterator[None]:
    x, i = f.input("x", ("N", "C"), ln.float32), f.input("i", ("K",), ln.int32)
    f.assume_range(i, 0, "N")
    y = f.output(ln.sum(ln.take(x, i, 0), 1), "y")
    yield
    y.parallelize({0: PT.grid_x})
    y.split(1, 4)
    t = y.rfactor([1])
    t.axis(1).parallelize(PT.block_x)
    y.axis(1).parallelize(PT.block_x)
    f.inline_most()


@report("triton-lang/triton#4379", {"H": 6, "W": 9})
def sums_over_two_axes_in_turn(f: ln.Fusion) -> Iterator[None]:
    x = f.input("x", ("H", "W"), ln.float32)
    windows = ln.unfold(x, (0, 1), 3)
    y = f.output(ln.sum(ln.sum(windows, 2), 2), "y")
    yield
    y.split(0, 4)
    y.split(2, 4)
    y.parallelize({0: PT.grid_x, 1: PT.block_y, 3: PT.block_x})
    f.inline_most()


@report("triton-lang/triton#3013", {"N": 16}, {"N": 5})
def largest_of_a_column(f: ln.Fusion) -> Iterator[None]:
    x = f.input("x", ("N", 1), ln.float32)
    y = f.output(ln.max(x, 0), "y")
    yield
    y.split(0, 4)
    t = y.rfactor([0])
    t.axis(1).parallelize(PT.block_x)
    y.axis(0).parallelize(PT.block_x)


# Barriers


@report("csarofeen/pytorch#380", {"M": 7, "N": 9}, {"M": 1, "N": 4}, barriers=True,
        shows="barrier block  # T1 stores to T1 after")  # fmt: skip
def shared_memory_inside_of_a_loop(f: ln.Fusion) -> Iterator[None]:
    x = f.input("x", ("M", "N"), ln.float32)
    row = x + 1.0
    y = f.output(ln.flip(row, 1) * 2.0, "y")
    yield
    inline_but(f, row)
    row.memory = ln.SHARED
    row.compute_at(y, 1)
    for t in (row, y):
        t.axis(1).parallelize(PT.block_x)


def mirrored_in_turn(f: ln.Fusion, times: int, width: int) -> Iterator[None]:
    """Mirror rows some times, each time by way of SHARED memory."""
    x = f.input("x", ("N", width), ln.float32)
    tensors = [x * 2.0]
    for _ in range(times - 1):
        tensors.append(ln.flip(tensors[-1], 1) + 1.0)
    y = f.output(ln.roll(tensors[-1], 1, 1), "y")
    yield
    inline_but(f, *tensors)
    for t in tensors:
        t.memory = ln.SHARED
        t.compute_at(y, 1)
    for t in (*tensors, y):
        t.axis(1).parallelize(PT.block_x)


@report("csarofeen/pytorch#1105", {"N": 10}, {"N": 1}, barriers=True, shows="shared = T1")
def memory_of_a_tensor_that_is_gone(f: ln.Fusion) -> Iterator[None]:
    return mirrored_in_turn(f, 3, 64)


@report("apache/tvm#17439", {"N": 3}, barriers=True, shows="shared = T")
def four_buffers_in_one_space(f: ln.Fusion) -> Iterator[None]:
    return mirrored_in_turn(f, 4, 16)


@report("apache/tvm#2937", {"M": 5, "N": 70}, barriers=True)
def sums_of_a_block_in_a_loop(f: ln.Fusion) -> Iterator[None]:
    y = f.output(ln.sum(f.input("x", ("M", "N"), ln.float32), 1), "y")
    yield
    y.split(1, 64)
    t = y.rfactor([1])
    t.compute_at(y, 1)
    t.axis(2).parallelize(PT.block_x)
    y.axis(1).parallelize(PT.block_x)


@report("apache/tvm#10210", barriers=True)
def sums_beside_another_dimension_of_threads(f: ln.Fusion) -> Iterator[None]:
    y = f.output(ln.sum(f.input("x", (1, 16, 48), ln.float32), 2), "y")
    yield
    y.parallelize({0: PT.grid_x, 1: PT.block_y, 2: PT.block_x})


@report("NVIDIA/Fuser#678", {"M": 4, "N": 5}, {"M": 9, "N": 140}, barriers=True)
def idle_threads_beside_a_sum_in_shared_memory(f: ln.Fusion) -> Iterator[None]:
    x = f.input("x", ("M", "N"), ln.float32)
    total = ln.sum(x, 1)
    y = f.output(total * 2.0, "y")
    yield
    total.split(1, 64)
    part = total.rfactor([1])
    total.memory = ln.SHARED
    total.compute_at(y, 1)
    part.compute_at(total, 1)
    part.axis(2).parallelize(PT.block_x)
    total.axis(1).parallelize(PT.block_x)


@report("NVIDIA/Fuser#489", {"M": 6, "N": 96}, barriers=True)
def two_sums_that_go_back_to_all_threads(f: ln.Fusion) -> Iterator[None]:
    x = f.input("x", ("M", "N"), ln.float32)
    mean = ln.mean(x, 1, keepdims=True)
    square = ln.mean(x * x, 1, keepdims=True)
    y = f.output((x - mean) * ln.rsqrt(square + 1.0), "y")
    yield
    sums = [t for t in f.tensors if t.definition is not None and t.definition.reducer]
    for t in (*sums, y):
        t.split(1, 96)
        t.parallelize({0: PT.grid_x, 2: PT.block_x})
    for t in sums:
        t.compute_at(y, 1)
    inline_but(f, *sums)


@report("tile-ai/tilelang#2556", {"N": 48}, {"N": 35}, barriers=True)
def part_of_a_block_that_is_no_whole_warp(f: ln.Fusion) -> Iterator[None]:
    x = f.input("x", ("N",), ln.float32)
    t = x + 1.0
    y = f.output(ln.flip(t, 0) * 2.0, "y")
    z = f.output(f.input("z", (64,), ln.float32) + 1.0, "u")
    yield
    inline_but(f, t)
    t.memory = ln.SHARED
    for tensor in (t, y, z):
        tensor.axis(0).parallelize(PT.block_x)


@report("tile-ai/tilelang#2612", {"M": 5, "N": 12}, {"M": 2, "N": 33}, barriers=True, shows="mask[")
def a_loop_with_barriers_under_a_test_of_data(f: ln.Fusion) -> Iterator[None]:
    x, mask = f.input("x", ("M", "N"), ln.float32), f.input("mask", ("N",), ln.int32)
    row = x * 2.0
    moved = ln.flip(row, 1)
    y = f.output(ln.where(ln.ne(mask, 0), moved, 0.0), "y")
    yield
    inline_but(f, row)
    row.memory = ln.SHARED
    row.compute_at(y, 1)
    for t in (row, y):
        t.axis(1).parallelize(PT.block_x)


# Memory that is used twice, and copies that run ahead


@report("csarofeen/pytorch#1034", {"M": 3}, {"M": 1})
def registers_below_a_broadcast(f: ln.Fusion) -> Iterator[None]:
    a, b = f.input("a", (2,), ln.float32), f.input("b", ("M", 2), ln.float32)
    t = a * 2.0
    wide = ln.broadcast(t, (True, False))
    y = f.output(ln.exp(wide + b) + wide, "y")
    yield
    y.axis(1).parallelize(PT.unroll)
    wide.compute_at(y, 1)


@report("NVIDIA/Fuser#5350", {"N": 4}, {"N": 7})
def registers_read_in_an_outer_loop(f: ln.Fusion) -> Iterator[None]:
    x, w = f.input("x", ("N", 4), ln.float32), f.input("w", ("N", 4, 4), ln.float32)
    kept = x + 1.0
    square = kept * kept
    y = f.output(ln.broadcast(square, (False, False, True)) + w, "y")
    yield
    for t in (kept, square, y):
        t.axis(1).parallelize(PT.unroll)
    square.compute_at(y, 2)
    kept.compute_at(y, 1)


@report("NVIDIA/Fuser#3428", {"M": 5, "N": 96}, {"M": 2, "N": 64}, barriers=True, shows="cp.async")
def copies_in_flight_below_two_rows_of_threads(f: ln.Fusion) -> Iterator[None]:
    x = f.input("x", ("M", "N"), ln.float32)
    y = f.output(ln.flip(x, 1) * 2.0, "y")
    yield
    tile = x.cache_after()
    tile.memory = ln.SHARED
    y.split(0, 2)
    y.parallelize({0: PT.grid_x, 1: PT.block_y})
    tile.compute_at(y, 2)
    inline_but(f, tile)
    tile.move_by("cp.async")
    for t in (tile, y):
        t.axis(2).parallelize(PT.block_x)


@report("NVIDIA/Fuser#2000", {"N": 9}, {"N": 1}, barriers=True, shows="wait 1")
def copies_ahead_beside_memory_that_is_used_again(f: ln.Fusion) -> Iterator[None]:
    x = f.input("x", ("N", 32), ln.float32)
    y = f.output(ln.flip(ln.flip(x, 1) * 2.0, 1), "y")
    yield
    tile = x.cache_after()
    tile.memory = ln.SHARED
    tile.compute_at(y, 1)
    middle = next(t for t in f.tensors if t.definition and t.definition.op == "mul")
    middle.memory = ln.SHARED
    middle.compute_at(y, 1)
    inline_but(f, tile, middle)
    for t in (tile, middle, y):
        t.axis(1).parallelize(PT.block_x)
    tile.move_by("cp.async")
    tile.circular_buffer(3)


@report(
    "tile-ai/tilelang#3072", {"N": 1}, {"N": 2}, {"N": 8}, {"N": 0}, barriers=True, shows="[4, "
)
def fewer_iterations_than_stages(f: ln.Fusion) -> Iterator[None]:
    x = f.input("x", ("N", 16), ln.float32)
    y = f.output(ln.flip(x, 1) * 2.0, "y")
    yield
    tile = x.cache_after()
    tile.memory = ln.SHARED
    tile.compute_at(y, 1)
    inline_but(f, tile)
    for t in (tile, y):
        t.axis(1).parallelize(PT.block_x)
    tile.circular_buffer(4)


@report(
    "triton-lang/triton#3936", {"M": 5, "K": 3}, {"M": 4, "K": 8}, shows="T2: float32[2, 1] local"
)
def the_last_stage_reads_the_last_element(f: ln.Fusion) -> Iterator[None]:
    x = f.input("x", ("M", "K"), ln.float32)
    y = f.output(ln.sum(x, 1), "y")
    yield
    tile = x.cache_after()
    tile.compute_at(y, 2)
    tile.circular_buffer(2)


# Folds


@report("NVIDIA/Fuser#2839", {"N": 10, "M": 2, "K": 2}, {"N": 3, "M": 1, "K": 0}, shows="in t0")
def an_input_that_is_overwritten_and_read(f: ln.Fusion) -> Iterator[None]:
    t0 = f.input("t0", ("N", "M"), ln.float32)
    t1 = f.input("t1", ("K", "N", "M"), ln.float32)
    f.output(ln.relu(t0), "t2", inplace=t0)
    f.output(t0 + t1, "t3")
    yield


@report("apache/tvm#19578", {"M": 4, "N": 4, "K": 0}, {"M": 4, "N": 3, "K": 5})
def product_over_no_element(f: ln.Fusion) -> Iterator[None]:
    a, b = f.input("a", ("M", "K"), ln.float32), f.input("b", ("K", "N"), ln.float32)
    y = f.output(ln.matmul(a, b), "y")
    yield
    y.split(2, 4)
    y.parallelize({0: PT.grid_x, 1: PT.block_x})


@report("tensorflow/tensorflow#3510", {"N": 0}, {"N": 3}, barriers=True)
def folds_over_no_row(f: ln.Fusion) -> Iterator[None]:
    x = f.input("x", ("N", 10), ln.float32)
    for name, fold in (("least", ln.min), ("largest", ln.max), ("middle", ln.mean)):
        f.output(fold(x, 0), name)
    yield
    for y in f.outputs:
        y.axis(0).parallelize(PT.block_x)


@report("llvm/torch-mlir#300", {"M": 3, "N": 6})
def sums_in_memory_full_of_garbage(f: ln.Fusion) -> Iterator[None]:
    total = ln.sum(f.input("x", ("M", "N"), ln.float32), 1)
    f.output(total + 1.0, "y")
    yield
    total.memory = ln.GLOBAL


@report("ByteDance-Seed/Triton-distributed#184", {"N": 70}, {"N": 1}, barriers=True)
def atomic_sum_into_memory_full_of_garbage(f: ln.Fusion) -> Iterator[None]:
    y = f.output(ln.sum(f.input("x", ("N",), ln.int32)), "y")
    yield
    y.split(0, 32)
    y.atomic()
    y.parallelize({0: PT.grid_x, 1: PT.block_x})


@report("triton-lang/triton#2361", {"N": 8}, {"N": 21})
def counts_so_far_in_a_loop_of_blocks(f: ln.Fusion) -> Iterator[None]:
    y = f.output(ln.cumsum(f.input("x", ("N",), ln.int64) * 0 + 1, 0), "y")
    yield
    y.split(0, 8)
    y.axis(1).parallelize(PT.block_x)


def affine() -> ln.Reducer:
    """Return the composition of x -> a * x + b: it does not commute."""
    return ln.Reducer((1.0, 0.0), lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), "composed")


@report("triton-lang/triton#2359", {"N": 64}, {"N": 37})
def scan_that_does_not_commute(f: ln.Fusion) -> Iterator[None]:
    values = f.input("a", ("N",), ln.float32), f.input("b", ("N",), ln.float32)
    for number, y in enumerate(ln.scan(affine(), values, 0)):
        f.output(y, f"y{number}")
    yield
    f["y0"].split(0, 32)
    f["y0"].axis(1).parallelize(PT.block_x)


@report("triton-lang/triton#4362", {"N": 16}, {"N": 11})
def scan_from_the_end(f: ln.Fusion) -> Iterator[None]:
    values = f.input("a", ("N",), ln.float32), f.input("b", ("N",), ln.float32)
    for number, y in enumerate(ln.scan(affine(), values, 0, reverse=True)):
        f.output(y, f"y{number}")
    yield
    f["y0"].split(0, 16)
    f["y0"].axis(1).parallelize(PT.block_x)


@report("pytorch/pytorch#93630", {"M": 10, "N": 10}, {"M": 3, "N": 70})
def place_of_the_first_of_equals(f: ln.Fusion) -> Iterator[None]:
    x = f.input("x", ("N", "M"), ln.int32)
    y = f.output(ln.argmax(ln.clamp(x, -1, 1), 0), "y")
    yield
    y.parallelize({0: PT.grid_x})
    y.split(1, 16)
    y.axis(2).parallelize(PT.block_x)
    f.inline_most()


@report("pytorch/pytorch#38922")
def place_along_an_axis_of_one_element(f: ln.Fusion) -> Iterator[None]:
    y = f.output(ln.argmax(f.input("x", (40, 900, 1), ln.float32), 2), "y")
    yield
    y.parallelize({0: PT.cpu_parallel})


@report("triton-lang/triton#802", {"M": 3, "N": 40}, {"M": 1, "N": 1})
def mask_of_the_largest_of_equals(f: ln.Fusion) -> Iterator[None]:
    x = f.input("x", ("M", "N"), ln.float32) * 0.0
    place = ln.argmax(x, 1, keepdims=True)
    y = f.output(ln.eq(ln.broadcast(ln.iota("N"), (True, False)), place), "y")
    yield
    y.parallelize({0: PT.grid_x})
    y.split(1, 32)
    y.axis(2).parallelize(PT.block_x)


@report("tracel-ai/burn#4694", {"M": 4, "N": 6}, {"M": 1, "N": 0})
def softmax_of_rows_that_are_masked_out(f: ln.Fusion) -> Iterator[None]:
    scores, mask = f.input("s", ("M", "N"), ln.float32), f.input("mask", ("M", "N"), ln.bool)
    shown = ln.where(ln.logical_and(mask, ~mask), scores, float("-inf"))
    top = ln.maximum(ln.max(shown, 1, keepdims=True), -1e4)
    weight = ln.exp(shown - top)
    f.output(weight / ln.maximum(ln.sum(weight, 1, keepdims=True), 1e-6), "y")
    yield
    f.inline_most()
