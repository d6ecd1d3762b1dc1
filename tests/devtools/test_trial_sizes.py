"""The sizes that ``loopnest check`` runs a kernel at."""

from __future__ import annotations

import loopnest as ln
from helpers.mma_gemm import mma_gemm
from loopnest.devtools.trial_sizes import tiles_of, trial_sizes
from loopnest.facade.kernel_class import lower
from loopnest.kir import parse as parse_nest

# The sizes that are run


def sizes_of(text, **options):
    return list(trial_sizes(parse_nest(text, **options)))


TILED = """
kernel tiled(x: float32[N, D]) -> (y: float32[N, D])
for i0 in ceildiv(ceildiv(N, 4), 16):  # grid_x
  for i1 in 16:  # block_x
    for i2 in 4:
      if i0 * 64 + i1 * 4 + i2 < N:
        for i3 in D:
          y[i0 * 64 + i1 * 4 + i2, i3] = x[i0 * 64 + i1 * 4 + i2, i3]
"""


def test_sizes_cross_the_tiles():
    assert tiles_of(parse_nest(TILED)) == {"N": 64, "D": 1}
    assert sizes_of(TILED) == [
        {"N": 65, "D": 3},
        {"N": 5, "D": 3},
        {"N": 64, "D": 4},
        {"N": 1, "D": 1},
    ]
    assert list(trial_sizes(parse_nest(TILED), {"D": 7}, 2)) == [
        {"D": 7, "N": 65},
        {"D": 7, "N": 5},
    ]


def test_sizes_fulfil_the_assumptions():
    with ln.Fusion("assumed") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = f.output(x * 2.0, "y")
        f.assume("N % 12 == 0")
        f.assume("D >= 9")
    y.split(0, 12)
    found = list(trial_sizes(lower(f).program))
    assert len(found) >= 2
    assert all(sizes["N"] % 12 == 0 and sizes["D"] >= 9 for sizes in found)


def test_kernels_with_tiles_are_run_at_whole_ones():
    found = list(trial_sizes(lower(mma_gemm("mma.m16n8k16.f32.f16", tiles=(1, 1, 1))).program))
    assert found
    assert all(sizes["M"] % 16 == sizes["N"] % 8 == sizes["K"] % 16 == 0 for sizes in found)


def test_static_sizes_are_run_as_they_are():
    with ln.Fusion("static") as f:
        f.output(f.input("x", (8, 9), ln.float32) * 2.0, "y")
    assert list(trial_sizes(lower(f).program)) == [{}]


LARGE_TILES = """
kernel tiled(x: float32[N]) -> (y: float32[N])
for i0 in ceildiv(N, 65536):  # grid_x
  for i1 in 64:  # block_x
    for i2 in 1024:
      if i0 * 65536 + i1 * 1024 + i2 < N:
        y[i0 * 65536 + i1 * 1024 + i2] = x[i0 * 65536 + i1 * 1024 + i2]
"""


def test_where_tiles_are_large_the_cheapest_size_is_run():
    program = parse_nest(LARGE_TILES)
    assert list(trial_sizes(program, most=1000)) == [{"N": 5}]
    assert list(trial_sizes(program, most=100_000)) == [{"N": 5}, {"N": 65536}, {"N": 1}]
    assert list(trial_sizes(program, {"N": 0}, most=1000)) == [{"N": 0}]


def test_a_bound_and_a_multiple_together():
    with ln.Fusion("k") as f:
        x = f.input("x", ("N",), ln.float32)
        f.output(x * 2.0, "y")
        f.assume("N >= 50")
        f.assume("N % 8 == 0")
    program = ln.lower(f).program
    assert list(trial_sizes(program)) == [{"N": 56}]
