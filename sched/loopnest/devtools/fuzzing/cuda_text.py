"""CUDA text of many kernels, compiled by NVRTC at once: most of the time goes into its headers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec

import loopnest as ln
from loopnest.backends.cuda.printing.cuda_printer import print_cuda
from loopnest.devtools.fuzzing.failures import Failure
from loopnest.facade.kernel_class import Kernel
from loopnest.kir import Program

ARCH = "compute_90"
NO_CUDA = re.compile(r"its LOCAL buffer has the symbolic size")
"""Why a kernel may have no CUDA text."""


def has_nvrtc() -> bool:
    """Whether CUDA text can be compiled here."""
    return find_spec("cuda") is not None and find_spec("cuda.bindings") is not None


def texts_of(kernel: Kernel) -> list[Program]:
    """Return the programs of a kernel that are printed: the scalar variant is one too."""
    scalar = kernel.scalar
    return [kernel.program] if scalar is None else [kernel.program, scalar.program]


def failures_of(kernels: Sequence[Kernel]) -> list[Failure | None]:
    """Return for each kernel why NVRTC refuses its CUDA text; None where it takes it.

    A kernel without CUDA text is passed over.
    """
    texts = [_text(kernel) for kernel in kernels]
    if _refusal("\n".join(texts)) is None:
        return [None] * len(kernels)
    return [_refusal(text) for text in texts]


def _text(kernel: Kernel) -> str:
    """Return the text of all variants, each with names of its own."""
    parts = []
    for number, program in enumerate(texts_of(kernel)):
        space = f"variant_{number}_of_{program.name}"
        try:
            text = print_cuda(replace(program, name=space), index_bits=(32, 64)[number % 2])
        except ln.LoweringError as error:
            if NO_CUDA.search(str(error)):
                continue
            raise
        lines = text.splitlines()
        includes = [line for line in lines if line.startswith("#include")]
        rest = [line for line in lines if not line.startswith("#include")]
        parts.append("\n".join([*includes, f"namespace in_{space} {{", *rest, "}"]))
    return "\n".join(parts)


def _refusal(text: str) -> Failure | None:
    from loopnest.backends.cuda.toolchain.nvrtc import compile_cuda

    if not text.strip():
        return None
    try:
        assert compile_cuda(text, ARCH).ptx
    except Exception as error:
        found = re.search(r"error: (.*)", str(error))
        what = found[1] if found else f"{type(error).__name__}: {error}"
        return Failure("compile", what, where="nvrtc")
    return None
