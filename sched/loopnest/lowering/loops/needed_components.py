"""Which components of a reduction are computed: for the passes "allocation" and "indexing".

A reducer of several components defines a tensor for each of them, and a fusion may use some. A
component that nobody reads, and that no other one is combined with, needs no buffer and no step:
of pairs (F, v), folded as ``v = v' * F + v``, the product of all F is such a one.
"""

from __future__ import annotations

from loopnest.lowering.loops.loop_plan import LoopPlan, scanned_over
from loopnest.scalar.expr import Arg, walk
from loopnest.tensor.tensor_view import TensorView


def is_needed(plan: LoopPlan, tensor: TensorView) -> bool:
    """Whether `tensor` is computed; false of unread components of a reduction in one thread."""
    definition = tensor.definition
    if definition is None or definition.reducer is None or len(definition.outputs) == 1:
        return True
    if plan.crossed[definition.outputs[0]] or scanned_over(plan, definition.outputs[0]):
        return True  # partial results are exchanged whole
    combination = (*definition.reducer.combination,)
    special = definition.reducer.special
    count = len(definition.outputs)
    needed = {n for n, twin in enumerate(definition.outputs) if _is_used(plan, twin)}
    if not needed:
        return True
    stack = list(needed)
    while stack:
        number = stack.pop()
        templates = [combination[number], *special[number : number + 1]]
        for node in (node for template in templates for node in walk(template)):
            if isinstance(node, Arg) and node.number < count and node.number not in needed:
                needed.add(node.number)
                stack.append(node.number)
    return definition.outputs.index(tensor) in needed


def _is_used(plan: LoopPlan, tensor: TensorView) -> bool:
    """Whether it is a result, or a tensor that is computed reads it."""
    if tensor.is_output or not plan.fusion.outputs:
        return True
    return any(consumer.siblings[0] in plan.forest.position for consumer in tensor.consumers)
