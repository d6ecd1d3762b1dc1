"""CUDA sources that NVRTC compiles or refuses, and its messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from loopnest.base.errors import CompileError

SAXPY = """\
extern "C" __global__ void __launch_bounds__(256)
saxpy(int n, float a, const float* __restrict__ x, float* __restrict__ y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}
"""


HALVES = """\
#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" __global__ void halves(const __half2* x, __half2* y) {
  y[threadIdx.x] = __hfma2(x[threadIdx.x], x[threadIdx.x], y[threadIdx.x]);
}
extern "C" __global__ void brains(const __nv_bfloat162* x, __nv_bfloat162* y) {
  y[threadIdx.x] = __hfma2(x[threadIdx.x], x[threadIdx.x], y[threadIdx.x]);
}
"""


# 64 values live at once.
GREEDY = """\
extern "C" __global__ void __launch_bounds__(256) greedy(float* x, int n) {
  float a[64];
#pragma unroll
  for (int i = 0; i < 64; i++) a[i] = x[i * n + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; i++) x[i * n + threadIdx.x * 2] = a[i] * a[63 - i];
}
"""


MEMORY = """\
extern "C" __global__ void local_array(float* x, int n) {
  float a[1000];
  for (int i = 0; i < 1000; i++) a[i] = x[i];
  x[0] = a[n];
}
extern "C" __global__ void shared_array(float* x, int n) {
  __shared__ float s[100];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[n];
}
"""


WRONG = """\
extern "C" __global__ void wrong(float* x) {
  int i = threadIdx.x;
  x[i] = scale * x[i];
}




extern "C" __global__ void wrong_too(float* x) {
  x[0] = missing(x[1]);
}
"""


class MemoryCache:
    """Stands for the disk cache, so that no test sees the results of another run."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}
        self.hits = 0

    def get(self, key: str) -> bytes | None:
        self.hits += key in self.stored
        return self.stored.get(key)

    def put(self, key: str, data: bytes) -> None:
        self.stored[key] = data


def message(action: Callable[[], object]) -> str:
    with pytest.raises(CompileError) as caught:
        action()
    return str(caught.value)


def executable(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path
