"""What threads say to each other, in CUDA text: barriers, shuffles, arrivals, collectives."""

import re

import pytest

import loopnest as ln
from helpers import cuda_cases as cases
from loopnest.backends.cuda.printing.cuda_printer import print_cuda
from loopnest.kir import Barrier, Let, Store
from loopnest.scalar import dtypes
from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import ZERO, Const, LaunchIndex, Load

PT = ParallelType
ARCHS = pytest.mark.parametrize("arch", ["sm_80", "sm_90"])


def compiled(program, arch="sm_90", bits=32):
    """Compile, and return the result: nothing spills and no register array is in memory."""
    pytest.importorskip("cuda.bindings")
    from loopnest.backends.cuda.toolchain.nvrtc import compile_cuda

    found = compile_cuda(print_cuda(program, bits), arch)
    (numbers,) = found.resources.values()
    assert (numbers.spill_bytes, numbers.stack_bytes) == (0, 0)
    return found


@ARCHS
@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("make", ["row_sum", "grid_sum", "neighbours", "transpose", "copy"])
def test_programs_compile(make, bits, arch):
    compiled(getattr(cases, make)(), arch, bits)


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_shuffles_of_every_type_compile(dtype):
    sass = compiled(cases.exchange(dtype, 64), "sm_80").sass
    words = 2 if dtype.size == 8 else 1
    for mode in ("BFLY", "DOWN", "IDX"):
        assert len(re.findall(rf"SHFL\.{mode}", sass)) == words


@ARCHS
@pytest.mark.parametrize("threads", [16, 48, "N"])
def test_shuffles_in_partial_warps_compile(threads, arch):
    compiled(cases.exchange(dtypes.float32, threads), arch)


@pytest.mark.parametrize(
    ("launch", "mask"),
    [
        ({PT.block_x: 64}, None),
        ({PT.block_x: 8, PT.block_y: 4}, None),
        ({PT.block_x: "N", PT.block_y: 32}, None),
        ({PT.block_x: "N", PT.block_y: 8, PT.block_z: 4}, None),
        ({PT.block_x: 16}, "0xffffu"),
        ({}, "0x1u"),
        ({PT.block_x: 48}, "block_x < 32 ? 0xffffffffu : 0xffffu"),
        ({PT.block_x: 33}, "block_x < 32 ? 0xffffffffu : 0x1u"),
        (
            {PT.block_x: 5, PT.block_y: 3, PT.block_z: 3},
            "block_x + 5 * (block_y + 3 * block_z) < 32 ? 0xffffffffu : 0x1fffu",
        ),
        ({PT.block_z: 40}, "block_z < 32 ? 0xffffffffu : 0xffu"),
        (
            {PT.block_x: "N"},
            "ln_warp_mask(block_x, blockDim.x * blockDim.y * blockDim.z)",
        ),
        (
            {PT.block_x: 3, PT.block_y: "N"},
            "ln_warp_mask(block_x + 3 * block_y, blockDim.x * blockDim.y * blockDim.z)",
        ),
    ],
)
def test_masks_name_the_lanes_that_exist(launch, mask):
    """Never those that happen to run together."""
    y = cases.global_("y", ("N",), kind="output")
    body = [Barrier("warp"), Store(y, (ZERO,), Const(1.0, dtypes.float32), "y")]
    program = cases.program("k", [y], body, launch)
    text = print_cuda(program)
    if mask is None:
        assert "  __syncwarp();\n" in text
        assert "warp_mask" not in text
    elif mask.endswith("u") and "?" not in mask:
        assert f"  __syncwarp({mask});\n" in text
    else:
        assert f"  const unsigned int warp_mask = {mask};\n" in text
        assert "  __syncwarp(warp_mask);\n" in text
    assert "activemask" not in text
    compiled(program)


def test_shuffle_texts():
    text = print_cuda(cases.exchange(dtypes.float32, 64))
    assert "  const float v_xor = __shfl_xor_sync(0xffffffffu, value, 1);\n" in text
    assert "  const float v_down = __shfl_down_sync(0xffffffffu, value, 1);\n" in text
    assert "  const float v_lane = __shfl_sync(0xffffffffu, value, 1);\n" in text
    text = print_cuda(cases.exchange(dtypes.bool_, 64))
    assert "const bool v_xor = __shfl_xor_sync(0xffffffffu, (int)value, 1) != 0;\n" in text


def test_a_collective_is_printed_in_place():
    text = print_cuda(cases.row_sum())
    assert "  __shared__ __align__(16) float slots[4];  // slots: [4]\n" in text
    assert text.count("__shfl_xor_sync(0xffffffffu, ") == 10
    assert text.index("slots[block_x / 32]") < text.index("__syncthreads()")
    assert "  const float mine = block_x % 32 < 4 ? slots[block_x % 32] : 0.0f;\n" in text
    assert "    y[grid_x] = b_1_sum;  // y\n" in text


@pytest.mark.parametrize(
    ("threads", "reduce", "expected"),
    [
        ("D", ln.sum, 1),
        ("D", ln.max, 1),
        (512, ln.sum, 0),
        ("D", lambda x, axis: ln.welford(x, axis)[1], 0),
    ],
    ids=["sum", "max", "static", "welford"],
)
def test_slots_of_warps_are_folded_four_at_a_time(threads, reduce, expected):
    """Where their number is not known, and folding one is a single statement."""
    with ln.Fusion("k") as f:
        y = f.output(reduce(f.input("x", ("N", threads), ln.float32), axis=1), "y")
    y.parallelize({0: PT.grid_x, 1: PT.block_x})
    text = ln.lower(f).cuda()
    found = re.findall(r"\n( *)#pragma unroll 4\n\1for .*\{\n.*\n\1\}\n", text)
    assert text.count("#pragma unroll 4") == len(found) == expected
    if expected:
        pytest.importorskip("cuda.bindings")
        assert "LDS.128" in ln.lower(f).sass("sm_90")


def test_the_last_block_is_told_by_its_count():
    text = print_cuda(cases.grid_sum())
    assert "  const bool last = ln_arrive(done, 8);\n  if (last) {\n" in text
    assert text.count("atomicInc") == 1
    body = text[text.index("bool ln_arrive") : text.index('extern "C"')]
    words = ("__syncthreads();", "__threadfence();", "atomicInc", "__syncthreads_or")
    assert sorted(words, key=body.index) == list(words)
    assert body.count("__threadfence();") == 2
    assert "ln_grid_barrier" not in text


def test_a_counter_among_others():
    y = cases.global_("y", (1,), kind="output")
    count = cases.global_("done", (4, 3), dtypes.int32, kind="counter")
    last = cases.Local("last", dtypes.bool_)
    place = (LaunchIndex(PT.grid_x), LaunchIndex(PT.grid_y))
    body = [
        cases.Arrive(last, count, place, cases.Symbol("N")),
        cases.If(last, (Store(y, (ZERO,), Const(1.0, dtypes.float32), "y"),)),
    ]
    x = cases.global_("x", ("N",))
    program = cases.program("k", [x, y, count], body, {PT.grid_x: 4, PT.grid_y: 3, PT.block_x: 8})
    assert "ln_arrive(done + grid_x * 3 + grid_y, N)" in print_cuda(program)
    compiled(program)


def test_a_barrier_of_the_grid_counts_in_a_hidden_parameter():
    text = print_cuda(cases.neighbours())
    assert "// grid (4, 1, 1), block (32, 1, 1), all blocks at once\n" in text
    assert "    float *T2,\n    unsigned int *ln_arrived)\n" in text
    assert "  ln_grid_barrier(ln_arrived);\n" in text
    body = text[text.index("void ln_grid_barrier") : text.index('extern "C"')]
    assert body.count("__threadfence();") == 2
    assert "ln_arrived" not in print_cuda(cases.grid_sum())


def test_what_threads_exchange_is_not_restrict():
    """Else the compiler might keep in a register what another thread changes."""
    text = print_cuda(cases.neighbours())
    assert "    const float *__restrict__ x,\n    float *__restrict__ y,\n    float *T2,\n" in text
    text = print_cuda(cases.grid_sum())
    assert "    const float *__restrict__ x,\n    float *y,\n" in text
    assert "    float *T3,\n    int *done)" in text


def test_without_barriers_everything_is_restrict():
    y = cases.global_("y", ("N",), kind="output")
    held = cases.global_("T2", ("N",), kind="workspace")
    i = LaunchIndex(PT.block_x)
    body = [
        Store(held, (i,), Const(1.0, dtypes.float32), "T2"),
        Store(y, (i,), Load(held, (i,)), "y"),
    ]
    text = print_cuda(cases.program("k", [y, held], body, {PT.block_x: "N"}))
    assert "    float *__restrict__ T2)" in text


def test_a_swizzled_tile_has_no_bank_conflicts():
    """Each access of a warp touches 32 banks."""
    text = print_cuda(cases.transpose())
    store, load = re.findall(r"T2\[([^;]*?)\] = x|= T2\[([^;]*)\];", text)
    for index in (store[0], load[1]):
        python = re.sub(r"block_([xy])", r"\1", index)
        for y in range(32):
            banks = {eval(python, {"x": x, "y": y}) % 32 for x in range(32)}
            assert len(banks) == 32, index
    compiled(cases.transpose())


def test_names_of_users_do_not_meet_ours():
    x = cases.global_("warp_mask", ("block_x",))
    y = cases.global_("grid_x", ("block_x",), kind="output")
    value = cases.Local("ln_arrived", dtypes.float32)
    i = LaunchIndex(PT.block_x)
    guard = cases.less(i, cases.Symbol("block_x"))
    zero = Const(0.0, dtypes.float32)
    body = [
        Let(value, cases.Op("where", (guard, Load(x, (i,)), zero), dtypes.float32)),
        cases.Shuffle(cases.Local("value", dtypes.float32), value, "xor", cases.ONE),
        Barrier("grid"),
        cases.If(guard, (Store(y, (i,), value, "y"),)),
    ]
    compiled(cases.program("ln_arrive", [x, y], body, {PT.block_x: "block_x"}))


@pytest.mark.parametrize(
    ("threads", "blocks", "expected"),
    [
        (64, 2, "__launch_bounds__(64, 2) k("),
        (64, None, "__launch_bounds__(64, 1) k("),
        ("N", 2, "__launch_bounds__(1024, 2) k("),
    ],
)
def test_launch_bounds(threads, blocks, expected):
    y = cases.global_("y", ("N",), kind="output")
    body = [Store(y, (ZERO,), Const(1.0, dtypes.float32), "y")]
    program = cases.program("k", [y], body, {PT.block_x: threads})
    assert expected in print_cuda(program, min_blocks=blocks)


def test_sizes_that_nothing_reads_get_no_variable():
    text = print_cuda(cases.row_sum())
    assert "const idx_t D = " in text
    assert "const idx_t N = " not in text
