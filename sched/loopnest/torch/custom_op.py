"""`op(kernel)`: one scheduled kernel as an operator of torch, for models and `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from loopnest.base.errors import DefinitionError
from loopnest.facade.kernel_operator import OperatorKernels, OperatorSignature
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
    found = OperatorKernels(kernel, dict(schedule or {}), options)
    called, subject = found.named(name)
    if hasattr(torch.ops.loopnest, called):
        raise DefinitionError(
            subject, f"torch.ops.loopnest.{called} is there already", "pass another name"
        )
    return _registered(called, found, gradient)


def _schema(signature: OperatorSignature) -> str:
    """Return a signature in torch's own language."""
    parts = []
    for number, p in enumerate(signature.inputs):
        mark = f"({chr(ord('a') + number)}!)" if p.name in signature.overwritten else ""
        parts.append(f"Tensor{mark} {p.name}")
    for p in signature.scalars:
        kind = "float" if p.dtype.is_float else "bool" if p.dtype.is_bool else "int"
        parts.append(f"{kind} {p.name}")
    parts += [f"SymInt {p.name}" for p in signature.sizes]
    results = ["Tensor"] * len(signature.outputs)
    returned = results[0] if len(results) == 1 else f"({', '.join(results)})"
    return f"({', '.join(parts)}) -> {returned}"


def _registered(name: str, found: OperatorKernels, gradient: Gradient | None) -> Any:
    """Return the operator of torch."""
    signature = OperatorSignature(found.program)
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
        f"loopnest::{name}", run, mutates_args=signature.overwritten, schema=_schema(signature)
    )
    custom.register_fake(fake)
    if gradient is not None:
        _differentiated(custom, signature, gradient)
    return custom


def _launch(
    found: OperatorKernels,
    signature: OperatorSignature,
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


def _differentiated(custom: Any, signature: OperatorSignature, gradient: Gradient) -> None:
    """Give an operator its gradient."""
    count = len(signature.inputs)

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.save_for_backward(*inputs[:count], *[x for x in outputs if x is not None])
        ctx.others = len(inputs) - count

    def backward(ctx: Any, *grads: Any) -> Any:
        saved = ctx.saved_tensors
        found = gradient(saved[:count], saved[count:], grads)
        parts = signature.gradients(found, custom._qualname)
        return (*parts, *[None] * ctx.others)

    custom.register_autograd(backward, setup_context=keep)
