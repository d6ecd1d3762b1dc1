"""Compiled kernels whose machine code an export has."""

from __future__ import annotations

from typing import Any

from loopnest import kir
from loopnest.backends.compiled_kernel import CompiledKernel, K
from loopnest.backends.cpu.c_target import from_library
from loopnest.base.errors import CompileError
from loopnest.exports.manifest import Export
from loopnest.launch.target_interface import Executable


def loaded(kernel: K, export: Export, subject: str) -> CompiledKernel[K]:
    """Return a kernel that runs the machine code of an export.

    Args:
        kernel: what was exported.
        export: its files.
        subject: the call, for errors.

    Raises:
        CompileError: the machine code does not load, lacks a function, or is for no target.
    """
    target = export.manifest["target"]
    if target not in ("c", "cuda"):
        raise CompileError(subject, f"it is for target {target!r}, which is none")
    first = kernel.program

    def build(variant: Any) -> Executable:
        number = 0 if variant.program is first else 1
        return _executable(export, target, variant.program, number, subject)

    of_target: type[CompiledKernel[K]] = CompiledKernel
    if target == "cuda":
        from loopnest.backends.cuda.cuda_kernel import CudaKernel

        of_target = CudaKernel
    return of_target(kernel, target, build(kernel), build)


def _executable(
    export: Export, target: str, program: kir.Program, number: int, subject: str
) -> Executable:
    built = export.manifest["built"]
    try:
        own = {bits: built["code"][f"{number}_{bits}"] for bits in (32, 64)}
        held = {}
        if target == "cuda":
            texts = {bits: name.removesuffix(".cubin") + ".ptx" for bits, name in own.items()}
            held = {b: (export.files[own[b]], export.files[texts[b]]) for b in own}
        library = export.files[built["library"]] if target == "c" else b""
    except (KeyError, TypeError):
        raise CompileError(
            subject, "its manifest does not fit its files", "export it again"
        ) from None
    if target == "cuda":
        from loopnest.backends.cuda.cuda_target import from_machine_code

        return from_machine_code(program, held, built["arch"])
    try:
        return from_library(library, program, own)
    except CompileError as error:
        reason = f"its library does not fit its manifest, or this machine: {error}"
        raise CompileError(subject, reason, "export the kernel on this machine") from None
