"""Compiled kernels: arguments checked, outputs made, then one call.

What depends on shapes alone is planned once and kept, so that a call on small arrays costs little
more than the call of the function.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np

from loopnest import kir
from loopnest.arguments import ArraySpec, bind, scalar_value
from loopnest.errors import CompileError, LaunchError, NotSupported
from loopnest.expr import ScalarParam, Symbol
from loopnest.runtime import c_target, interpret_target
from loopnest.runtime.bench import BenchResult, measure
from loopnest.runtime.outputs import Outputs
from loopnest.runtime.plan import Plan, Planner, identity
from loopnest.runtime.target import Array, Executable, Option, check_options

_log = logging.getLogger("loopnest")

MAX_PLANS = 512
"""Plans of other shapes are kept up to this number; then all are made anew."""


class Launchable(Protocol):
    """A kernel as far as it is launched."""

    @property
    def program(self) -> kir.Program: ...


K = TypeVar("K", bound=Launchable)

Results: TypeAlias = "Array | tuple[Array, ...]"


class CompiledKernel(Generic[K]):
    """A kernel that runs on arrays: ``fn(*arrays, out=None, stream=None, **scalars)``.

    Made by `loopnest.compile`. `target` names where it runs, `kernel` is what was compiled.
    """

    def __init__(self, kernel: K, target: str, executable: Executable) -> None:
        self.kernel = kernel
        self.target = target
        self._executable = executable
        program = kernel.program
        self._program = program
        self._subject = f"{program.name}(...)"
        inputs = [p for p in program.params if p.kind == "input"]
        self._inputs = [ArraySpec(p.name, p.dtype, p.shape) for p in inputs]
        scalars = [p for p in program.params if p.kind == "scalar"]
        self._scalars = [ScalarParam(p.name, p.dtype) for p in scalars]
        self._symbols = [Symbol(p.name) for p in program.params if p.kind == "size"]
        self._spaces = [p.dtype.numpy for p in program.params if p.kind == "workspace"]
        self._outputs = Outputs(program, self._subject)
        self._planner = Planner(program)
        self._plans: dict[object, Plan] = {}
        self._warned = False

    def __repr__(self) -> str:
        return f"<CompiledKernel {self._program.name} on '{self.target}'>"

    def __call__(
        self, /, *arrays: Any, out: Any = None, stream: object = None, **scalars: Any
    ) -> Results:
        """Run the kernel once.

        Args:
            *arrays: the inputs, in order.
            out: where the outputs go: an array, or one a output in a tuple; None allocates (in
                the tuple, too). The entry of an output in place is None or its input.
            stream: a CUDA stream; None on other targets.
            **scalars: the run-time scalars, and the sizes that are the extent of no input.

        Returns:
            The output, or a tuple of them.

        Raises:
            LaunchError: an argument does not fit; nothing ran.
        """
        if stream is not None:
            raise self._error("a stream was given", f"target '{self.target}' has none")
        plan, values = self._bound(arrays, scalars)
        inputs = [self._contiguous(i, a) for i, a in enumerate(arrays)]
        results = self._outputs.take(out, inputs, plan)
        self._run(inputs, results, values, plan)
        self._outputs.give_back(results, arrays)
        return results[0] if len(results) == 1 else tuple(results)

    def bench(self, /, *arrays: Any, **scalars: Any) -> BenchResult:
        """Measure calls on `arrays`, writing the same outputs again and again.

        Inputs that an output overwrites are copied first; the caller's stay as they are.

        Raises:
            LaunchError: as a call.
        """
        plan, values = self._bound(arrays, scalars)
        inputs = [self._contiguous(i, a) for i, a in enumerate(arrays)]
        inputs = [
            a.copy() if spec.name in self._outputs.overwritten else a
            for spec, a in zip(self._inputs, inputs, strict=True)
        ]
        results = self._outputs.take(None, inputs, plan)
        moved = sum([a.nbytes for a in (*inputs, *results)])
        return measure(lambda: self._run(inputs, results, values, plan), moved)

    # Arguments

    def _error(self, reason: str, hint: str = "") -> LaunchError:
        return LaunchError(self._subject, reason, hint)

    def _bound(
        self, arrays: Sequence[Any], keywords: Mapping[str, Any]
    ) -> tuple[Plan, list[bool | int | float]]:
        """Return the plan of a launch and the values of the scalars, all arguments checked."""
        try:
            key: object = self._key(arrays, keywords)
            plan = self._plans.get(key)
        except (AttributeError, TypeError):
            plan = key = None
        if plan is None:
            plan = self._plan(key, arrays, keywords)
        subject = self._subject
        return plan, [scalar_value(s, keywords[s.name], subject) for s in self._scalars]

    def _key(self, arrays: Sequence[Any], keywords: Mapping[str, Any]) -> object:
        """Return what a plan depends on, and what shows that its arguments were checked."""
        key = [(a.shape, a.dtype) for a in arrays]
        if not keywords:
            return tuple(key)
        sizes = [keywords.get(s.name) for s in self._symbols]
        return (*key, *keywords, *sizes, *map(type, sizes))

    def _plan(self, key: object, arrays: Sequence[Any], keywords: Mapping[str, Any]) -> Plan:
        bound = bind(
            self._inputs, self._scalars, self._symbols, self._program.conditions, arrays, keywords,
            self._subject,
        )  # fmt: skip
        plan = self._planner.plan(bound.sizes, self._subject)
        if key is not None:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            self._plans[key] = plan
        return plan

    def _contiguous(self, position: int, array: Any) -> Array:
        if type(array) is np.ndarray and array.flags.c_contiguous and array.flags.aligned:
            return array
        name = self._inputs[position].name
        plain = np.asarray(array)
        if plain.flags.c_contiguous and plain.flags.aligned:
            if not isinstance(array, np.ndarray):
                self._outputs.refuse_copy(name, "no NumPy array")
            return plain
        self._outputs.refuse_copy(name, "not C-contiguous")
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{self._subject}: {name} is not C-contiguous, so it is copied; this is said once "
                "for this kernel",
                RuntimeWarning,
                stacklevel=4,
            )
        return plain.copy(order="C")

    # The launch

    def _run(
        self, inputs: Sequence[Array], results: Sequence[Array], scalars: Sequence[Any], plan: Plan
    ) -> None:
        spaces = [
            self._outputs.empty((size,), dtype)
            for size, dtype in zip(plan.workspace, self._spaces, strict=True)
        ]
        arrays = [*inputs, *self._outputs.own(results), *spaces]
        if plan.is_empty:
            self._run_empty(arrays, results, scalars, plan)
        else:
            self._executable.run(arrays, scalars, plan)

    def _run_empty(
        self, arrays: Sequence[Array], results: Sequence[Array], scalars: Sequence[Any], plan: Plan
    ) -> None:
        """Fill the outputs of a launch of no thread; statements outside its loops run once."""
        for output, result in zip(self._program.outputs, results, strict=True):
            if not output.inplace:
                result.fill(identity(self._program, output.buffer))
        if any(result.size for result in results):
            interpret_target.Interpreted(self._program).run(arrays, scalars, plan)


# Targets

_OPTIONS: Mapping[str, Mapping[str, Option]] = {
    "c": c_target.OPTIONS,
    "interpret": interpret_target.OPTIONS,
}
_TARGETS = ("cuda", *_OPTIONS, "auto")


def compile_kernel(kernel: K, target: str, options: Mapping[str, Any]) -> CompiledKernel[K]:
    """Return `kernel` ready to run on `target`; "auto" takes the first that this machine can do.

    Raises:
        CompileError: an unknown target or option, a scalar that a call cannot name, or the C
            compiler is missing or fails.
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
    if target == "cuda":
        raise NotSupported(
            subject,
            "launching on a GPU is a later feature",
            'use target "c" or "interpret"; kernel.cubin(arch) compiles without a GPU',
        )
    if target == "auto":
        return _automatic(kernel, options, subject)
    check_options(options, _OPTIONS[target], target, subject)
    _prove(kernel)
    return CompiledKernel(kernel, target, _BUILDERS[target](kernel.program, **options))


def _prove(kernel: object) -> None:
    """Prove `kernel` where the environment has LOOPNEST_VERIFY=1."""
    if os.environ.get("LOOPNEST_VERIFY") == "1":
        from loopnest.verify import require_proved

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
    passed_over = ["launching on a GPU is a later feature"]
    for target, build in _BUILDERS.items():
        reason = _obstacle(target, options)
        if reason is None:
            try:
                result = CompiledKernel(kernel, target, build(kernel.program, **options))
            except NotSupported as error:
                reason = str(error)
            else:
                _tell(target, "; ".join(passed_over))
                return result
        passed_over.append(reason)
    raise CompileError(subject, "no target can do it: " + "; ".join(passed_over))


def _obstacle(target: str, options: Mapping[str, Any]) -> str | None:
    """Return why this machine, or these options, rule a target out."""
    from loopnest.runtime.c_compiler import find_compiler

    for name in options:
        if name not in _OPTIONS[target]:
            return f"target '{target}' has no option '{name}'"
    missing = target == "c" and find_compiler() is None
    return "no C compiler was found" if missing else None


@cache
def _tell(target: str, why: str) -> None:
    _log.info("target 'auto' takes '%s' on this machine: %s", target, why)


def _built_c(program: kir.Program, **options: Any) -> Executable:
    built = c_target.CompiledC(program, **options)
    built.function(32)
    return built


_BUILDERS: Mapping[str, Callable[..., Executable]] = {
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
    check_options({"optimize": optimize}, c_target.OPTIONS, target, "compile_many(...)")
    for kernel in kernels:
        _prove(kernel)
    built = c_target.build_together([kernel.program for kernel in kernels], optimize)
    return [CompiledKernel(k, "c", e) for k, e in zip(kernels, built, strict=True)]
