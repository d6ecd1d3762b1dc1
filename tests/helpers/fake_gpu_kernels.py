"""Kernels of nest text, and what a wrong call of them says, for tests on a GPU that is none."""

from __future__ import annotations

import numpy as np
import pytest

import loopnest as ln
from loopnest.facade.kernel_class import Kernel
from loopnest.kir import parse as parse_nest
from loopnest.kir.lowered import Lowered

PT = ln.ParallelType
F = np.float32


def kernel_of(program, scalar=None):
    made = None if scalar is None else lambda: Lowered(scalar, (), (), ())
    return Kernel(Lowered(program, (), (), (), scalar=made))


def scale():
    return kernel_of(parse_nest("""
        kernel scale(x: float32[N, D], alpha: float32, shift: float16, count: int32) -> (y: float32[N, D])
        for i0 in N:  # grid_x
          for i1 in ceildiv(D, 4):  # grid_y
            for i2 in 4:  # block_x
              if i1 * 4 + i2 < D:
                y[i0, i1 * 4 + i2] = x[i0, i1 * 4 + i2] * alpha + float32(shift) + float32(count)
        """))  # fmt: skip # noqa: E501


SCALARS = {"alpha": 2.0, "shift": 0.5, "count": 3}


def message(error, call):
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)
