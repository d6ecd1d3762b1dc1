"""`op(kernel)`: one scheduled kernel as a function of JAX, by its exported library."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import jax_tvm_ffi
import tvm_ffi

from loopnest.base.errors import DefinitionError, LaunchError
from loopnest.exports.manifest import read_export
from loopnest.facade.kernel_operator import OperatorKernels, OperatorSignature

Gradient: TypeAlias = "Callable[..., Any]"
_NAMES: set[str] = set()


def op(
    kernel: Any,
    name: str | None = None,
    gradient: Gradient | None = None,
    schedule: str | None = None,
) -> Callable[..., Any]:
    """Return a kernel as a function of JAX, on the CPU.

    It takes arrays in the order of the fusion's inputs, then the scalars, then sizes that no shape
    gives, and returns the outputs. It works under `jax.jit`, where scalars and sizes are numbers of
    Python, under `jax.vmap` (one call after the other) and, with a gradient, under `jax.grad`.

    >>> import loopnest as ln
    >>> from loopnest.jax import op
    >>> with ln.Fusion("twice") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     y = f.output(x * 2.0, "y")
    >>> twice = op(f, gradient=lambda inputs, outputs, grads: twice(grads[0]))
    >>> import jax
    >>> print(jax.grad(lambda x: twice(x).sum())(jax.numpy.ones(3)))
    [2. 2. 2.]

    Args:
        kernel: a Fusion (as it is scheduled), a lowered Kernel, or a definition by `ln.kernel`.
        name: of the function; by default the kernel's own.
        gradient: ``gradient(inputs, outputs, grads)``: a gradient for each array that the function
            takes (a tuple; of one the array itself), None where there is none. It may call other
            functions of this kind. Without it the function cannot be differentiated.
        schedule: the name of its schedule, of a definition by `ln.kernel`; by default its first.

    Raises:
        DefinitionError: no kernel; a function of this name is there already; an output that
            overwrites an input, since arrays of JAX are never written.

    Source: jax.ffi, jax-tvm-ffi.
    """
    kernels = OperatorKernels(kernel, {} if schedule is None else {"c": schedule}, {})
    called, subject = kernels.named(name)
    signature = OperatorSignature(kernels.program)
    if signature.overwritten:
        reason = f"it overwrites its input {signature.overwritten[0]}"
        hint = "arrays of JAX are never written: declare the output without inplace"
        raise DefinitionError(subject, reason, hint)
    if called in _NAMES:
        reason = f"a function of JAX of the name {called} is there already"
        raise DefinitionError(subject, reason, "pass another name")
    target = f"loopnest.{called}"
    numbers = _register(kernels, target)
    _NAMES.add(called)
    return _function(called, signature, target, numbers, gradient)


def _register(kernels: OperatorKernels, target: str) -> list[str]:
    """Register the library of a kernel; return the scalars and sizes that it is given by name."""
    with tempfile.TemporaryDirectory(prefix="loopnest-jax-") as folder:
        digest = kernels.kernel("c").export(folder, target="c", prove=False)
        built = read_export(folder, digest).manifest["built"]
        library = tvm_ffi.load_module(str(Path(folder) / built["library"]))
        function = library[Path(built["library"]).stem.removeprefix("lib")]
    arrays = {p.name for p in kernels.program.params if p.kind in ("input", "output")}
    numbers = [name for name in built["ffi"] if name not in arrays]
    order = ["args", "rets", *[f"attrs.{name}" for name in numbers]]
    jax_tvm_ffi.register_ffi_target(target, function, order, platform="cpu")
    return numbers


def _function(
    name: str,
    signature: OperatorSignature,
    target: str,
    numbers: list[str],
    gradient: Gradient | None,
) -> Callable[..., Any]:
    count = len(signature.inputs)
    others = [p.name for p in (*signature.scalars, *signature.sizes)]

    def called(arrays: tuple[Any, ...], given: Mapping[str, Any]) -> tuple[Any, ...]:
        shapes = signature.shapes(arrays, given)
        made = [
            jax.ShapeDtypeStruct(shape, output.buffer.dtype.numpy)
            for shape, output in zip(shapes, signature.outputs, strict=True)
        ]
        call = jax.ffi.ffi_call(target, made, vmap_method="sequential")
        return tuple(call(*arrays, **{key: given[key] for key in numbers}))

    @lru_cache(maxsize=256)
    def differentiable(values: tuple[tuple[str, Any], ...]) -> Callable[..., tuple[Any, ...]]:
        given = dict(values)
        function: Any = jax.custom_vjp(lambda *arrays: called(arrays, given))

        def forward(*arrays: Any) -> tuple[Any, Any]:
            outputs = called(arrays, given)
            return outputs, (arrays, outputs)

        def backward(kept: Any, grads: Any) -> tuple[Any, ...]:
            assert gradient is not None
            return signature.gradients(gradient(*kept, grads), name)

        function.defvjp(forward, backward)
        found: Callable[..., tuple[Any, ...]] = function
        return found

    def function(*args: Any) -> Any:
        if len(args) != count + len(others):
            names = ", ".join([*[p.name for p in signature.inputs], *others])
            reason = f"it takes {count + len(others)} arguments ({names})"
            raise LaunchError(f"{name}(...)", f"{len(args)} were given", reason)
        arrays, given = signature.split(args)
        taken = tuple([jnp.asarray(array) for array in arrays])
        _check(name, signature, taken)
        if gradient is None:
            return signature.results(called(taken, given))
        return signature.results(differentiable(tuple(given.items()))(*taken))

    function.__name__ = function.__qualname__ = name
    return function


def _check(name: str, signature: OperatorSignature, arrays: tuple[Any, ...]) -> None:
    """Refuse arrays of another type or rank, and types that JAX narrows.

    Raises:
        LaunchError: there is one.
    """
    for output in signature.outputs:
        dtype = output.buffer.dtype
        if dtype.size == 8 and not jax.config.jax_enable_x64:
            reason = f"{output.name} is {dtype}, and this JAX computes in 32 bits"
            hint = 'jax.config.update("jax_enable_x64", True)'
            raise LaunchError(f"{name}(...)", reason, hint)
    for param, array in zip(signature.inputs, arrays, strict=True):
        if array.dtype != param.dtype.numpy or array.ndim != len(param.shape):
            shape = ", ".join(map(str, param.shape))
            found = f"{param.name} is {array.dtype}{[*array.shape]}"
            raise LaunchError(f"{name}(...)", found, f"pass {param.dtype}[{shape}]")
