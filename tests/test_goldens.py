"""The loop nest of every kernel and schedule against its golden, by the project's own plugin."""

from __future__ import annotations

import pytest

import loopnest as ln
from kernels.adam import adam
from kernels.bias_gelu import bias_gelu
from kernels.column_sum import column_sum
from kernels.gemm import gemm
from kernels.layernorm import layernorm
from kernels.lstm_cell import lstm_cell
from kernels.row_sum import row_sum
from kernels.softmax import softmax
from kernels.transpose import transpose

KERNELS = (
    adam, bias_gelu, column_sum, gemm, layernorm, lstm_cell, row_sum, softmax, transpose
)  # fmt: skip
CASES = [
    pytest.param(kernel, name, id=kernel.label(name))
    for kernel in KERNELS
    for name in kernel.schedules
]


@pytest.mark.parametrize(("kernel", "schedule"), CASES)
def test_golden(schedule_regression, kernel, schedule):
    schedule_regression(kernel, schedule)


def test_golden_of_parameters(schedule_regression):
    schedule_regression(softmax, "gpu", dtype=ln.float16, threads=32, N=50)
