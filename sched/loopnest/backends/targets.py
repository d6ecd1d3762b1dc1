"""The targets: which there are, what options they take, which this machine can do."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from loopnest import kir
from loopnest.backends.compiled_kernel import CompiledKernel, K
from loopnest.backends.cpu import c_target
from loopnest.backends.cuda import cuda_target
from loopnest.backends.cuda.cuda_kernel import CudaKernel
from loopnest.backends.cuda.driver import driver_interface
from loopnest.backends.interpret import interpret_target
from loopnest.errors import CompileError, LoweringError, NotSupported
from loopnest.launch.target_interface import Executable, TargetOption, check_options
from loopnest.scalar.expr import Symbol

_log = logging.getLogger("loopnest")

_OPTIONS: Mapping[str, Mapping[str, TargetOption]] = {
    "cuda": cuda_target.OPTIONS,
    "c": c_target.OPTIONS,
    "interpret": interpret_target.OPTIONS,
}
_TARGETS = (*_OPTIONS, "auto")


def compile_kernel(kernel: K, target: str, options: Mapping[str, Any]) -> CompiledKernel[K]:
    """Return `kernel` ready to run on `target`; "auto" takes the first that this machine can do.

    Raises:
        CompileError: an unknown target or option, a scalar that a call cannot name, a compiler
            is missing or fails, or there is no GPU.
        LoweringError: the kernel cannot run on a GPU.
        NotSupported: the target cannot run this kernel yet.
        VerifyError: the environment has LOOPNEST_VERIFY=1, and there is no proof.
    """
    name = kernel.program.name
    shown = [f"{key}={value!r}" for key, value in options.items()]
    subject = f"compile({', '.join([name, f'target={target!r}', *shown])})"
    if not isinstance(target, str) or target not in _TARGETS:
        allowed = ", ".join([f'"{t}"' for t in _TARGETS])
        raise CompileError(subject, f"there is no target {target!r}", f"use one of {allowed}")
    for argument in _keywords(kernel.program):
        if argument in ("out", "stream"):
            reason = f"its argument '{argument}' hides the keyword {argument}= of every call"
            raise CompileError(subject, reason, "give it another name")
    if target == "auto":
        return _automatic(kernel, options, subject)
    check_options(options, _OPTIONS[target], target, subject)
    if target == "cuda" and (missing := driver_interface.obstacle()) is not None:
        hint = 'use target "c" or "interpret"; kernel.cubin(arch) compiles without a GPU'
        raise CompileError(subject, missing, hint)
    return _build(kernel, target, options)


def _build(kernel: K, target: str, options: Mapping[str, Any]) -> CompiledKernel[K]:
    make = partial(_executable, target=target, options=options)
    built = make(kernel)
    if target == "cuda":
        return CudaKernel(kernel, target, built, make, options)
    return CompiledKernel(kernel, target, built, make, options)


def _executable(kernel: Any, target: str, options: Mapping[str, Any]) -> Executable:
    """Return a kernel, or the scalar variant of one, proved if asked for, and built."""
    _prove(kernel)
    return _BUILDERS[target](kernel.program, **options)


def _prove(kernel: object) -> None:
    """Prove `kernel` where the environment has LOOPNEST_VERIFY=1."""
    if os.environ.get("LOOPNEST_VERIFY") == "1":
        from loopnest.proofs import require_proved

        require_proved(kernel)


def _keywords(program: kir.Program) -> list[str]:
    """Return the arguments that a call must name: scalars, and sizes that no input tells."""
    told = {size for p in program.params if p.kind == "input" for size in p.shape}
    return [
        p.name for p in program.params
        if p.kind == "scalar" or (p.kind == "size" and Symbol(p.name) not in told)
    ]  # fmt: skip


def _automatic(kernel: K, options: Mapping[str, Any], subject: str) -> CompiledKernel[K]:
    """Return the kernel on the first target that this machine can do and that knows the options."""
    known = {name: option for table in _OPTIONS.values() for name, option in table.items()}
    check_options(options, known, "auto", subject)
    passed_over: list[str] = []
    for target in _BUILDERS:
        reason = _obstacle(target, options)
        if reason is None:
            try:
                result = _build(kernel, target, options)
            except (NotSupported, LoweringError) as error:
                reason = f"target '{target}' cannot run it: {error}"
            else:
                _tell(target, "; ".join(passed_over))
                return result
        passed_over.append(reason)
    raise CompileError(subject, "no target can do it: " + "; ".join(passed_over))


def preferred() -> str:
    """Return the target that "auto" tries first on this machine."""
    return next(target for target in _BUILDERS if _obstacle(target, {}) is None)


def _obstacle(target: str, options: Mapping[str, Any]) -> str | None:
    """Return why this machine, or these options, rule a target out."""
    from loopnest.backends.cpu.c_compiler import obstacle

    if target == "cuda" and (missing := driver_interface.obstacle()) is not None:
        return missing
    for name in options:
        if name not in _OPTIONS[target]:
            return f"target '{target}' has no option '{name}'"
    return obstacle() if target == "c" else None


@cache
def _tell(target: str, why: str) -> None:
    reason = f": {why}" if why else ""
    _log.info("target 'auto' takes '%s' on this machine%s", target, reason)


def _built_cuda(program: kir.Program, **options: Any) -> Executable:
    return cuda_target.CompiledCuda(program, driver_interface.find_driver(), **options)


def _built_c(program: kir.Program, **options: Any) -> Executable:
    built = c_target.CompiledC(program, **options)
    built.function(32)
    return built


_BUILDERS: Mapping[str, Callable[..., Executable]] = {
    "cuda": _built_cuda,
    "c": _built_c,
    "interpret": interpret_target.Interpreted,
}


def compile_together(
    kernels: Sequence[K], target: str = "c", optimize: int = 1
) -> list[CompiledKernel[K]]:
    """Return many kernels, built in one run of the C compiler where `target` is "c".

    Raises:
        CompileError: as `compile_kernel`.
    """
    if target != "c":
        return [compile_kernel(kernel, target, {}) for kernel in kernels]
    options = {"optimize": optimize}
    check_options(options, c_target.OPTIONS, target, "compile_many(...)")
    for kernel in kernels:
        _prove(kernel)
    built = c_target.build_together([kernel.program for kernel in kernels], optimize)
    make = partial(_executable, target="c", options=options)
    return [CompiledKernel(k, "c", e, make, options) for k, e in zip(kernels, built, strict=True)]
