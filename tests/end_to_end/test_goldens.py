"""The loop nest of every kernel and schedule against its golden, by the project's own plugin."""

from __future__ import annotations

import pytest

import loopnest as ln
from kernels.adam import adam
from kernels.argmax import argmax
from kernels.attention import attention, attention_causal, attention_two_pass
from kernels.batchnorm import batchnorm
from kernels.bias_gelu import bias_gelu
from kernels.bilinear import bilinear
from kernels.blur import blur
from kernels.column_sum import column_sum
from kernels.concatenate import concatenate
from kernels.conv1d import conv1d
from kernels.conv2d import conv2d
from kernels.cross_entropy import cross_entropy
from kernels.cumsum import cumsum, cumsum_long
from kernels.dropout import dropout
from kernels.embedding import embedding, embedding_grad
from kernels.gated_delta_rule import gated_delta_rule
from kernels.gemm import gemm
from kernels.grid_sum import grid_sum
from kernels.group_norm import group_norm
from kernels.grouped_gemm import grouped_gemm
from kernels.histogram import histogram
from kernels.int8_gemm import int8_gemm
from kernels.jacobi3d import jacobi3d
from kernels.layernorm import layernorm
from kernels.layernorm_backward import layernorm_backward
from kernels.lstm_cell import lstm_cell
from kernels.lstm_sequence import lstm_sequence
from kernels.max_pool import max_pool
from kernels.nbody import nbody
from kernels.power_iteration import power_iteration
from kernels.rmsnorm import rmsnorm
from kernels.rope import rope
from kernels.row_sum import row_sum
from kernels.seidel2d import seidel2d
from kernels.selective_scan import selective_scan
from kernels.sinkhorn import sinkhorn
from kernels.smith_waterman import smith_waterman
from kernels.softmax import softmax
from kernels.sort_rows import sort_rows
from kernels.spmv import spmv, spmv_csr
from kernels.transpose import transpose
from kernels.varlen_attention import varlen_attention
from loopnest.devtools import pytest_plugin

KERNELS = (
    adam, argmax, attention, attention_causal, attention_two_pass, batchnorm, bias_gelu, bilinear,
    blur, column_sum, concatenate, conv1d, conv2d, cross_entropy, cumsum, cumsum_long, dropout,
    embedding, embedding_grad, gated_delta_rule, gemm, grid_sum, group_norm, grouped_gemm,
    histogram, int8_gemm, jacobi3d, layernorm, layernorm_backward, lstm_cell, lstm_sequence,
    max_pool, nbody, power_iteration, rmsnorm, rope, row_sum, seidel2d, selective_scan, sinkhorn,
    smith_waterman, softmax, sort_rows, spmv, spmv_csr, transpose, varlen_attention,
)  # fmt: skip
CASES = [
    pytest.param(kernel, name, id=kernel.label(name))
    for kernel in KERNELS
    for name in kernel.schedules
]


def typed(cases):
    """Return cases with an element type each: float32, and float16 where the math has a choice."""
    return [
        pytest.param(*case.values, dtype, id=f"{case.id}-{dtype}")
        for case in cases
        for dtype in (ln.float32, ln.float16)
        if dtype is ln.float32 or "dtype" in case.values[0].parameters("")
    ]


def of_type(kernel, dtype):
    """Return the parameters by which a kernel has an element type."""
    return {"dtype": dtype} if "dtype" in kernel.parameters("") else {}


@pytest.mark.parametrize(("kernel", "schedule"), CASES)
def test_golden(schedule_regression, kernel, schedule, monkeypatch):
    # `test_kernel_is_right` proves the same nests, and runs them at sizes of each kind.
    monkeypatch.setattr(pytest_plugin, "_check_results", lambda *arguments: None)
    schedule_regression(kernel, schedule)


def test_golden_of_parameters(schedule_regression):
    schedule_regression(softmax, "gpu", dtype=ln.float16, lanes=8, N=50)
