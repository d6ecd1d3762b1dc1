"""Kernels that `gpu_check.py` runs beside those of `kernels/`, for the launches that these lack."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import loopnest as ln
from loopnest.scalar.dtypes import DType

GRID, BLOCK = ln.ParallelType.grid_x, ln.ParallelType.block_x


def centred_numpy(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    difference: npt.NDArray[Any] = x - np.mean(x, dtype=np.float64)
    return difference


@ln.kernel(sizes={"N": 1 << 16}, reference=centred_numpy)
def centred(f: ln.Fusion, dtype: DType = ln.float32) -> None:
    """x - mean(x): all blocks wait for a sum over all of them, so the launch is cooperative."""
    x = f.input("x", ("N",), dtype)
    f.output(x - ln.mean(x, keepdims=True), "y")


@centred.schedule("gpu")
def gpu(f: ln.Fusion, blocks: int = 64, threads: int = 256) -> None:
    y = f["y"]
    (total,) = [t for t in f.tensors if any(a.is_reduction for a in t.root_domain)]
    total.split(0, threads)
    total.split(0, blocks, inner=False)
    part = total.rfactor([1])
    for tensor in (part, total):
        tensor.parallelize({0: GRID, tensor.ndim - 1: BLOCK})
    y.split(0, threads)
    y.split(0, blocks, inner=False)
    y.parallelize({0: GRID, 2: BLOCK})
    part.compute_at(total, 2)
    ln.inline_most()


@ln.kernel(sizes={"N": 1 << 20}, reference=lambda x: 2 * x)
def doubled(f: ln.Fusion, dtype: DType = ln.float32) -> None:
    """2 x by vectors: the simplest kernel that has a scalar variant."""
    x = f.input("x", ("N",), dtype)
    f.output(x + x, "y")


@doubled.schedule("gpu")
def vectors(f: ln.Fusion, threads: int = 128, lanes: int = 4) -> None:
    y = f["y"]
    y.split(0, lanes)
    y.split(0, threads)
    y.parallelize({0: GRID, 1: BLOCK, 2: ln.ParallelType.vectorize})


if __name__ == "__main__":
    ln.main()
