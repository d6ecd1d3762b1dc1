"""The math of a fusion as text: a line a tensor."""

from __future__ import annotations

from loopnest.scalar.expr import TEXT, Expr
from loopnest.scalar.op_table import OPS
from loopnest.tensor.fusion import Fusion
from loopnest.tensor.tensor_view import TensorView


def math_text(fusion: Fusion) -> str:
    """Return the definitions of `fusion`, producers before consumers, a line each.

    ``T2: float32[N] = sum(T1, axis=1)``: name, type and shape, operation, operands, parameters.
    """
    lines = [_header(fusion)]
    lines += [f"  assume {text}" for text, _ in fusion.facts.conditions]
    lines += [f"  assume {declared}" for declared in fusion.ranges]
    lines += [
        f"  {tensor.name}: {tensor.signature} = {right_side(tensor)}"
        for tensor in fusion.topological()
        if tensor.definition is not None
    ]
    return "\n".join(lines)


def _header(fusion: Fusion) -> str:
    params = [f"{tensor.name}: {tensor.signature}" for tensor in fusion.inputs]
    params += [f"{scalar.name}: {scalar.dtype}" for scalar in fusion.scalars]
    results = [_result(fusion, tensor) for tensor in fusion.outputs]
    return f"{fusion.name}({', '.join(params)}) -> ({', '.join(results)})"


def _result(fusion: Fusion, tensor: TensorView) -> str:
    target = fusion.inplace.get(tensor)
    place = f" in {target.name}" if target is not None else ""
    return f"{tensor.name}: {tensor.signature}{place}"


def right_side(tensor: TensorView) -> str:
    """Return the definition of a computed tensor, as ``exp(T8)`` or ``x + 1.0``."""
    definition = tensor.definition
    assert definition is not None
    info = OPS.get(definition.op)
    if info is not None and info.infix and info.arity == 2 and len(definition.operands) == 2:
        left, right = [_operand(o, info.precedence + 1) for o in definition.operands]
        return f"{left} {info.infix} {right}"
    parts = [_operand(operand, 0) for operand in definition.operands]
    if "{}" in definition.note:
        return definition.note.format(*parts)
    text = f"{definition.op}({', '.join([*parts, definition.note] if definition.note else parts)})"
    if len(definition.outputs) == 1:
        return text
    return f"{text}[{definition.outputs.index(tensor)}]"


def _operand(operand: TensorView | Expr, level: int) -> str:
    if isinstance(operand, TensorView):
        return operand.name
    return TEXT.format(operand, level)
