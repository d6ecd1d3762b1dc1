"""`op(kernel)`: one scheduled kernel as an operator of torch, for models and `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import torch

import loopnest as ln
from loopnest import kir
from loopnest.base.errors import DefinitionError, kind_of
from loopnest.scalar.arguments import size_value
from loopnest.scalar.expr import Expr, Symbol
from loopnest.scalar.target_names import among
from loopnest.torch.tensor_arrays import Tensor, array_of, torch_dtype

Gradient: TypeAlias = "Callable[..., Any]"


def op(
    kernel: Any,
    name: str | None = None,
    gradient: Gradient | None = None,
    schedule: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Return a kernel as an operator of torch: ``torch.ops.loopnest.<name>``.

    It takes tensors in the order of the fusion's inputs, then the scalars, then sizes that no
    shape gives, and returns the outputs that do not overwrite an input. It works under
    `torch.compile` (a fake implementation tells shapes), on tensors of the CPU by "c" and on those
    of a GPU by "cuda", on torch's current stream; contiguous tensors are not copied.

    >>> import loopnest as ln
    >>> from loopnest.torch import op
    >>> with ln.Fusion("double") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     y = f.output(x * 2.0, "y")
    >>> double = op(f, gradient=lambda inputs, outputs, grads: double(grads[0]))
    >>> import torch
    >>> double(torch.ones(3))
    tensor([2., 2., 2.])

    Args:
        kernel: a Fusion (as it is scheduled), a lowered Kernel, or a definition by `ln.kernel`.
        name: of the operator; by default the kernel's own.
        gradient: ``gradient(inputs, outputs, grads)``: a gradient for each tensor that the operator
            takes (a tuple; of one the tensor itself), None where there is none. It may call other
            operators. Without it the operator cannot be differentiated.
        schedule: the target ("c" or "cuda") to the name of its schedule, of a definition by
            `ln.kernel`; by default its first schedule.
        **options: of `loopnest.compile`.

    Raises:
        DefinitionError: no kernel, or an operator of this name is there already.

    Source: torch.library.custom_op.
    """
    found = _Kernels(kernel, dict(schedule or {}), options)
    called = found.kernel("c").name if name is None else name
    subject = f"op({called})"
    if not isinstance(called, str) or not called.isidentifier():
        raise DefinitionError(subject, "the name is not an identifier")
    if hasattr(torch.ops.loopnest, called):
        raise DefinitionError(
            subject, f"torch.ops.loopnest.{called} is there already", "pass another name"
        )
    return _registered(called, found, gradient)


class _Kernels:
    """The kernel of an operator for each target, lowered and compiled when first used."""

    def __init__(self, given: Any, schedules: Mapping[str, Any], options: Mapping[str, Any]):
        self.given, self.schedules, self.options = given, schedules, options
        self.compiled = cache(self._compiled)
        self.kernel = cache(self._kernel)

    def _kernel(self, target: str) -> ln.Kernel:
        given = self.given
        if isinstance(given, ln.Kernel):
            return given
        if isinstance(given, ln.Fusion):
            return ln.lower(given)
        if hasattr(given, "lower") and hasattr(given, "fusion"):
            name = self.schedules.get(among(target, self.schedules))
            found: ln.Kernel = given.lower() if name is None else given.lower(name)
            return found
        hint = "pass a Fusion, a Kernel, or what @ln.kernel made"
        raise DefinitionError("op(…)", f"it was given {kind_of(given)}", hint)

    def _compiled(self, target: str) -> Any:
        return ln.compile(self.kernel(target), target=target, **self.options)

    @property
    def program(self) -> kir.Program:
        return self.kernel("c").program


class _Signature:
    """What an operator takes and returns, from the parameters of its program."""

    def __init__(self, program: kir.Program) -> None:
        self.program = program
        self.inputs = [p for p in program.params if p.kind == "input"]
        self.scalars = [p for p in program.params if p.kind == "scalar"]
        given = {e.name for p in self.inputs for e in p.shape if isinstance(e, Symbol)}
        sizes = [p for p in program.params if p.kind == "size"]
        self.sizes = [p for p in sizes if p.name not in given]
        self.overwritten = [o.inplace for o in program.outputs if o.inplace]
        self.outputs = [o for o in program.outputs if not o.inplace]

    @property
    def schema(self) -> str:
        """The signature in torch's own language."""
        parts = []
        for number, p in enumerate(self.inputs):
            mark = f"({chr(ord('a') + number)}!)" if p.name in self.overwritten else ""
            parts.append(f"Tensor{mark} {p.name}")
        for p in self.scalars:
            kind = "float" if p.dtype.is_float else "bool" if p.dtype.is_bool else "int"
            parts.append(f"{kind} {p.name}")
        parts += [f"SymInt {p.name}" for p in self.sizes]
        results = ["Tensor"] * len(self.outputs)
        returned = results[0] if len(results) == 1 else f"({', '.join(results)})"
        return f"({', '.join(parts)}) -> {returned}"

    def split(self, args: Sequence[Any]) -> tuple[list[Tensor], dict[str, Any]]:
        """Return the tensors of a call, and its scalars and sizes by name."""
        count = len(self.inputs)
        names = [p.name for p in (*self.scalars, *self.sizes)]
        return [*args[:count]], dict(zip(names, args[count:], strict=True))

    def shapes(self, tensors: Sequence[Tensor], given: Mapping[str, Any]) -> list[list[Any]]:
        """Return the shape of each output, which may be symbolic in torch's own way."""
        sizes = {p.name: given[p.name] for p in self.sizes}
        for p, tensor in zip(self.inputs, tensors, strict=True):
            rows = zip(p.shape, tensor.shape, strict=False)
            sizes.update({e.name: extent for e, extent in rows if isinstance(e, Symbol)})
        shapes = {p.name: p.shape for p in self.program.params if p.kind == "output"}
        return [[_extent(e, sizes) for e in shapes[o.name]] for o in self.outputs]

    def results(self, made: Sequence[Tensor]) -> Any:
        """Return outputs as torch does."""
        return None if not made else made[0] if len(made) == 1 else tuple(made)


def _extent(extent: Expr, sizes: Mapping[str, Any]) -> Any:
    return sizes[extent.name] if isinstance(extent, Symbol) else size_value(extent, sizes)


def _registered(name: str, found: _Kernels, gradient: Gradient | None) -> Any:
    """Return the operator of torch."""
    signature = _Signature(found.program)
    dtypes = [torch_dtype(o.buffer.dtype) for o in signature.outputs]

    def made(tensors: Sequence[Tensor], given: Mapping[str, Any]) -> list[Tensor]:
        shapes = signature.shapes(tensors, given)
        rows = zip(shapes, dtypes, strict=True)
        return [torch.empty(shape, dtype=d, device=tensors[0].device) for shape, d in rows]

    def run(*args: Any) -> Any:
        tensors, given = signature.split(args)
        plain = [
            t if p.name in signature.overwritten else t.contiguous()
            for p, t in zip(signature.inputs, tensors, strict=True)
        ]
        results = made(tensors, given) if tensors else []
        _launch(found, signature, plain, results, given)
        return signature.results(results)

    def fake(*args: Any) -> Any:
        return signature.results(made(*signature.split(args)))

    custom = torch.library.custom_op(
        f"loopnest::{name}", run, mutates_args=signature.overwritten, schema=signature.schema
    )
    custom.register_fake(fake)
    if gradient is not None:
        _differentiated(custom, signature, gradient)
    return custom


def _launch(
    found: _Kernels,
    signature: _Signature,
    tensors: Sequence[Tensor],
    results: Sequence[Tensor],
    given: Mapping[str, Any],
) -> None:
    """Run the kernel on tensors; outputs in place have no array of their own."""
    device = tensors[0].device
    own = iter(results)
    places = [None if o.inplace else next(own) for o in signature.program.outputs]
    if device.type == "cuda":
        stream = torch.cuda.current_stream(device).cuda_stream
        found.compiled("cuda")(*tensors, out=tuple(places), stream=stream, **given)
        return
    arrays = [array_of(tensor) for tensor in tensors]
    outputs = tuple([None if x is None else array_of(x) for x in places])
    found.compiled("c")(*arrays, out=outputs if len(outputs) > 1 else outputs[0], **given)


def _differentiated(custom: Any, signature: _Signature, gradient: Gradient) -> None:
    """Give an operator its gradient."""
    count = len(signature.inputs)

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.save_for_backward(*inputs[:count], *[x for x in outputs if x is not None])
        ctx.others = len(inputs) - count

    def backward(ctx: Any, *grads: Any) -> Any:
        saved = ctx.saved_tensors
        found = gradient(saved[:count], saved[count:], grads)
        parts = tuple(found) if isinstance(found, (tuple, list)) else (found,)
        if len(parts) != count:
            raise DefinitionError(
                f"the gradient of {custom._qualname}",
                f"it returned {len(parts)} gradients",
                f"return one for each of {count} tensors, None where there is none",
            )
        return (*parts, *[None] * ctx.others)

    custom.register_autograd(backward, setup_context=keep)
