"""Programs of threads that communicate, compiled for target "c", and what their texts hold."""

import re
from types import SimpleNamespace

import numpy as np

from loopnest.backends.compiled_kernel import CompiledKernel
from loopnest.backends.cpu.c_printer import print_c
from loopnest.backends.cpu.c_target import CompiledC
from loopnest.kir import parse as parse_nest

RNG = np.random.default_rng(11)


def randn(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def whole(*shape, dtype=np.float32):
    """Small integers: sums of them are exact in any order."""
    return RNG.integers(-8, 9, shape).astype(dtype)


def compiled(text, threads=None):
    program = parse_nest(text) if isinstance(text, str) else text
    built = CompiledC(program, threads=threads)
    return CompiledKernel(SimpleNamespace(program=program), "c", built)


def run(text, *arrays, threads=None):
    return compiled(text, threads)(*arrays)


def body_of(text, **options):
    program = parse_nest(text, **options) if isinstance(text, str) else text
    return print_c(program, prelude=False)


def lines(text, pattern):
    return [line.strip() for line in text.splitlines() if re.search(pattern, line)]


REVERSE = """
    kernel reverse(x: float32[N, 32]) -> (y: float32[N, 32])
    for i0 in N:  # grid_x
      s: float32[32] shared
      for i1 in 32:  # block_x
        s[i1] = x[i0, i1] * 2.0
        barrier block
        y[i0, i1] = s[31 - i1]
    """
