"""The targets: which there are, what options they take, which this machine can do."""

from __future__ import annotations

import copyreg
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any
from weakref import WeakSet

from loopnest import kir
from loopnest.backends.compiled_kernel import CompiledKernel, K
from loopnest.backends.cpu import c_target
from loopnest.backends.cuda import cuda_target
from loopnest.backends.interpret import interpret_target
from loopnest.base.errors import CompileError, LoopnestError, LoweringError, NotSupported
from loopnest.base.pickling import STAMP
from loopnest.launch.target_interface import Executable, TargetRow, check_options
from loopnest.scalar.expr import Symbol
from loopnest.scalar.target_names import target_name

_log = logging.getLogger("loopnest")

TARGETS: Mapping[str, TargetRow] = {
    row.name: row
    for row in (
        cuda_target.TARGET,
        c_target.TARGET,
        interpret_target.TARGET,
    )
}
"""Every target; "auto" tries them in this order."""


def named_target(target: object, subject: str) -> str:
    """Return the target that a name stands for: "c" for "cpu", "cuda" for "gpu"; or "auto".

    Raises:
        CompileError: it names none.
    """
    found = target_name(target)
    if not isinstance(found, str) or found not in (*TARGETS, "auto"):
        allowed = ", ".join([f'"{t}"' for t in (*TARGETS, "auto")])
        raise CompileError(subject, f"there is no target {target!r}", f"use one of {allowed}")
    return found


def compile_kernel(kernel: K, target: str, options: Mapping[str, Any]) -> CompiledKernel[K]:
    """Return `kernel` ready to run on `target`; "auto" takes the first that this machine can do.

    Raises:
        CompileError: an unknown target or option, a scalar that a call cannot name, a compiler
            is missing or fails, or there is no GPU.
        LoweringError: the kernel cannot run on a GPU.
        NotSupported: the target cannot run this kernel yet.
        VerifyError: the environment has LOOPNEST_VERIFY=1, and there is no proof.

    With LOOPNEST_INTERPRET=1 in the environment every kernel is interpreted, whatever its target;
    LOOPNEST_PRINT names texts that are shown of each on standard error: nest, cuda, c, ptx.
    """
    name = kernel.program.name
    shown = [f"{key}={value!r}" for key, value in options.items()]
    subject = f"compile({', '.join([name, f'target={target!r}', *shown])})"
    target = named_target(target, subject)
    _check_keywords(kernel.program, subject)
    _show(kernel)
    asked = TARGETS.values() if target == "auto" else [TARGETS[target]]
    known = {name: option for row in asked for name, option in row.options.items()}
    check_options(options, known, target, subject)
    if _asked("LOOPNEST_INTERPRET"):
        row = TARGETS["interpret"]
        return _build(kernel, row, {k: v for k, v in options.items() if k in row.options})
    if target == "auto":
        return _automatic(kernel, options, subject)
    row = TARGETS[target]
    if row.instead and (missing := row.obstacle()) is not None:
        raise CompileError(subject, missing, row.instead)
    return _build(kernel, row, options)


def _build(
    kernel: K, row: TargetRow, options: Mapping[str, Any], prove: bool = True
) -> CompiledKernel[K]:
    make = partial(_executable, row=row, options=options, prove=prove)
    of_target: type[CompiledKernel[K]] = row.kernel or CompiledKernel
    return of_target(kernel, row.name, make(kernel), make, options)


def _executable(
    kernel: Any, row: TargetRow, options: Mapping[str, Any], prove: bool = True
) -> Executable:
    """Return a kernel, or the scalar variant of one, proved if asked for, and built."""
    if prove:
        _prove(kernel)
    return row.build(kernel.program, **options)


_PROVED: WeakSet[object] = WeakSet()
"""Kernels that were proved, once for all targets: a kernel is a snapshot and never changes."""


def _asked(variable: str) -> bool:
    """Return whether a variable of the environment is 1.

    Raises:
        CompileError: it is neither 0 nor 1.
    """
    value = os.environ.get(variable, "")
    if value not in ("", "0", "1"):
        raise CompileError(
            f"{variable}={value}", f"'{value}' is neither 0 nor 1", "use one of them"
        )
    return value == "1"


def _show(kernel: Any) -> None:
    """Print on standard error what LOOPNEST_PRINT asks for.

    Raises:
        CompileError: it has a name that is not there.
    """
    value = os.environ.get("LOOPNEST_PRINT", "")
    texts = ["nest", *[target for target, row in TARGETS.items() if row.text], "ptx"]
    for name in dict.fromkeys([name.strip() for name in value.split(",") if name.strip()]):
        if name not in texts:
            allowed = f"use {', '.join(texts)}, or several with commas between them"
            raise CompileError(
                f"LOOPNEST_PRINT={value}", f"'{name}' is no text of a kernel", allowed
            )
        try:
            if name == "nest":
                text = str(kernel)
            else:
                text = kernel.ptx("sm_90") if name == "ptx" else kernel.printed(name)
        except LoopnestError as error:
            text = f"{kernel.program.name} has no {name}: {error}"
        print(text, file=sys.stderr)


def _prove(kernel: object) -> None:
    """Prove `kernel` where the environment has LOOPNEST_VERIFY=1."""
    if _asked("LOOPNEST_VERIFY") and kernel not in _PROVED:
        from loopnest.proofs import require_proved

        require_proved(kernel)
        _PROVED.add(kernel)


def _check_keywords(program: kir.Program, subject: str) -> None:
    for argument in _keywords(program):
        if argument in ("out", "stream"):
            reason = f"its argument '{argument}' hides the keyword {argument}= of every call"
            raise CompileError(subject, reason, "give it another name")


def _keywords(program: kir.Program) -> list[str]:
    """Return the arguments that a call must name: scalars, and sizes that no input tells."""
    told = {size for p in program.params if p.kind == "input" for size in p.shape}
    return [
        p.name
        for p in program.params
        if p.kind == "scalar" or (p.kind == "size" and Symbol(p.name) not in told)
    ]


def _automatic(kernel: K, options: Mapping[str, Any], subject: str) -> CompiledKernel[K]:
    """Return the kernel on the first target that this machine can do and that knows the options."""
    passed_over: list[str] = []
    for target, row in TARGETS.items():
        reason = _obstacle(row, options)
        if reason is None:
            try:
                result = _build(kernel, row, options)
            except (NotSupported, LoweringError) as error:
                reason = f"target '{target}' cannot run it: {error}"
            else:
                _tell(target, "; ".join(passed_over))
                return result
        passed_over.append(reason)
    raise CompileError(subject, "no target can do it: " + "; ".join(passed_over))


def preferred() -> str:
    """Return the target that "auto" tries first on this machine."""
    return next(name for name, row in TARGETS.items() if _obstacle(row, {}) is None)


def _obstacle(row: TargetRow, options: Mapping[str, Any]) -> str | None:
    """Return why this machine, or these options, rule a target out."""
    if (missing := row.obstacle()) is not None:
        return missing
    unknown = next((name for name in options if name not in row.options), None)
    return None if unknown is None else f"target '{row.name}' has no option '{unknown}'"


@cache
def _tell(target: str, why: str) -> None:
    reason = f": {why}" if why else ""
    _log.info("target 'auto' takes '%s' on this machine%s", target, reason)


def compile_together(
    kernels: Sequence[K], target: str = "c", optimize: int = 1
) -> list[CompiledKernel[K]]:
    """Return many kernels, built in one run of the compiler where `target` has such a way.

    Raises:
        CompileError: as `compile_kernel`.
    """
    target = target_name(target)
    row = TARGETS.get(target) if isinstance(target, str) else None
    if row is None or row.together is None or _asked("LOOPNEST_INTERPRET"):
        return [compile_kernel(kernel, target, {}) for kernel in kernels]
    options = {"optimize": optimize}
    check_options(options, row.options, target, "compile_many(...)")
    for kernel in kernels:
        _show(kernel)
        _prove(kernel)
    built = row.together([kernel.program for kernel in kernels], optimize)
    make = partial(_executable, row=row, options=options)
    return [
        CompiledKernel(k, target, e, make, options) for k, e in zip(kernels, built, strict=True)
    ]


def compile_variants(kernel: K, target: str, optimize: int | None) -> CompiledKernel[K]:
    """Return a kernel whose scalar variant is built with it, in one run of the compiler.

    It is not proved first. Where `target` builds programs one by one, that variant is built when
    it is needed, and `optimize` is not heeded where there is no such level. With None both are
    built just as `compile_kernel` builds them.

    Raises:
        CompileError: a scalar that a call cannot name; a compiler is missing or fails.
    """
    _check_keywords(kernel.program, f"compile({kernel.program.name}, target={target!r})")
    row, scalar = TARGETS[target], getattr(kernel, "scalar", None)
    leveled = optimize is not None and "optimize" in row.options
    options = {"optimize": optimize} if leveled else {}
    if row.together is None or scalar is None or optimize is None:
        return _build(kernel, row, options, prove=False)
    first, second = row.together([kernel.program, scalar.program], optimize)
    return CompiledKernel(kernel, target, first, lambda _: second, options)


def _compiled_again(
    _: object, kernel: K, target: str, options: Mapping[str, Any]
) -> CompiledKernel[K]:
    return compile_kernel(kernel, target, options)


def _recipe(made: CompiledKernel[K]) -> tuple[Callable[..., CompiledKernel[K]], tuple[Any, ...]]:
    """Return what a kernel was compiled from; it is compiled again, or found in the cache."""
    return _compiled_again, (STAMP, made.kernel, made.target, made.options)


_KINDS: list[type[CompiledKernel[Any]]] = [
    CompiledKernel,
    *[row.kernel for row in TARGETS.values() if row.kernel],
]
for _kind in _KINDS:
    copyreg.pickle(_kind, _recipe)
