"""No kernel of kernels/ has lanes of a warp wait for each other's banks of shared memory."""

import numpy as np
import pytest

import loopnest as ln
from end_to_end.test_goldens import KERNELS, of_type, typed
from helpers.bank_conflicts import conflicts, shared_accesses, warp_conflicts
from kernels.gemm import gemm
from kernels.transpose import transpose

LANE = np.arange(32)
GPU = [
    pytest.param(kernel, name, id=kernel.label(name))
    for kernel in KERNELS
    for name in kernel.schedules
    if name.startswith("gpu")
]
SIZES = {"N": 128, "D": 128, "M": 128, "K": 24, "B": 8, "H": 128, "C": 64, "S": 2048}
SIZES |= {"V": 64, "E": 8, "Q": 128, "W": 64, "T": 128, "I": 2, "O": 32, "P": 32}
SIZES |= {"X": 64, "Y": 32, "Z": 16, "G": 31}
FEW = {"attention": 256, "seidel2d": 4, "sinkhorn": 4}
"""S of a kernel: four tiles of a sequence; or steps, each of which accesses what the last did."""


@pytest.mark.parametrize(
    ("addresses", "size", "expected"),
    [
        (LANE * 4, 4, 0),
        (LANE * 0, 4, 0),  # all the same word
        (LANE * 2, 2, 0),  # two lanes a word
        (LANE // 2 * 4, 4, 0),
        (LANE * 8, 4, 1),
        (LANE * 128, 4, 31),
        (LANE * 132, 4, 0),
        (np.where(LANE < 3, LANE * 128, -1), 4, 2),  # three active lanes
        (LANE * 8, 8, 0),
        (LANE % 16 * 8, 8, 0),  # halves of a warp do not wait for each other
        (LANE * 16, 8, 2),
        (LANE * 16, 16, 0),
        (LANE * 32, 16, 4),
        (LANE * 128, 16, 28),
        (LANE // 8 * 128, 16, 0),
    ],
)
def test_conflicts_of_a_warp(addresses, size, expected):
    assert warp_conflicts(np.asarray(addresses), size) == expected


@pytest.mark.parametrize(("kernel", "schedule", "dtype"), typed(GPU))
def test_no_conflicts(kernel, schedule, dtype):
    program = kernel.lower(schedule, **of_type(kernel, dtype)).program
    names = [p.name for p in program.params if p.kind == "size"]
    own = [n for name, n in FEW.items() if kernel.name.startswith(name)]
    sizes = SIZES | dict.fromkeys("S" if own else "", min(own, default=0))
    assert [str(a) for a in conflicts(program, {name: sizes[name] for name in names})] == []


@pytest.mark.parametrize(
    "parameters",
    [
        *({"parts": 1}, {"depth": 16}, {"steps": 4}, {"whole": True}, {"lanes": 8}),
        *({"dtype": ln.float16}, {"dtype": ln.float16, "depth": 32}),
    ],
    ids=str,
)
def test_no_conflicts_in_other_tiles_of_gemm(parameters):
    lowered = gemm.lower("gpu", **parameters)
    found = shared_accesses(lowered.program, {"M": 128, "N": 128, "K": 32})
    assert {a.is_store for a in found if a.size == 16} == {True, False}
    assert [str(a) for a in found if a.conflicts] == []


@pytest.mark.parametrize("lanes", [2, 4, 8])
def test_no_conflicts_in_other_tiles_of_transpose(lanes):
    program = transpose.lower("gpu", dtype=ln.float16, lanes=lanes).program
    assert [str(a) for a in conflicts(program, {"N": 128, "D": 128})] == []


def test_a_tile_without_padding_conflicts():
    with ln.Fusion("transpose") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = ln.permute(x, (1, 0))
        f.output(y, "y")
    tile = x.cache_after()
    y.split(1, 32)
    y.split(0, 32)
    y.reorder({1: 2})
    tile.compute_at(y, 2)
    tile.memory = ln.SHARED
    tile.reorder({2: 3})
    for tensor in (y, tile):
        tensor.parallelize({2: ln.ParallelType.block_y, 3: ln.ParallelType.block_x})
    found = shared_accesses(ln.lower(f).program, {"N": 32, "D": 32})
    assert [str(a) for a in found] == [
        f"store to {tile.name}, 4 bytes a lane: 0 in 32",
        f"load of {tile.name}, 4 bytes a lane: 992 in 32",
    ]
