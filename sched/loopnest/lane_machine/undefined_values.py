"""Undefined values: what a shuffle gives where the thread to take it from does not exist.

A temporary that may be undefined has a *mark* beside it, a boolean a lane; frames hand it down like
the temporary itself. An operation on an undefined value is undefined, but for the operand that a
`where`, an `and` or an `or` does not choose.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from loopnest import kir
from loopnest.lane_machine import native_math
from loopnest.lane_machine.evaluator import Evaluator
from loopnest.lane_machine.frame import Frame
from loopnest.lane_machine.native_math import Array, Value
from loopnest.scalar import dtypes
from loopnest.scalar.expr import Expr, Local, Op


class Undefined:
    """Which values are undefined.

    Args:
        nodes: the statements of the program, in order.
        evaluator: evaluates what chooses between operands.
    """

    def __init__(self, nodes: Iterable[kir.Stmt], evaluator: Evaluator) -> None:
        self.eval = evaluator
        self.marks: dict[Local, Local] = {}
        self._known: dict[Expr, bool] = {}
        for node in nodes:
            if isinstance(node, kir.Shuffle) or (
                isinstance(node, kir.Let) and self.may_be(node.value)
            ):
                self.marks[node.var] = Local(f"{node.var.name} is undefined", dtypes.bool_)

    def may_be(self, node: Expr) -> bool:
        """Whether `node` depends on a temporary that may be undefined."""
        if not self.marks:
            return False
        found = self._known.get(node)
        if found is None:
            found = node in self.marks or any(self.may_be(a) for a in node.args)
            self._known[node] = found
        return found

    def lanes(self, node: Expr, frame: Frame) -> Array | None:
        """Return the lanes in which `node` is undefined; None where it is defined in all."""
        if not self.may_be(node):
            return None
        mask = self._mask(node, frame, {})
        if not isinstance(mask, np.ndarray):
            return np.arange(frame.lanes) if mask else None
        lanes = np.flatnonzero(mask)
        return lanes if lanes.size else None

    def define(self, var: Local, value: Expr, frame: Frame) -> None:
        """Mark `var` where `value` is undefined."""
        if var in self.marks:
            frame.define(self.marks[var], self._mask(value, frame, {}))

    def mask(self, node: Expr, frame: Frame) -> Value:
        """Return where `node` is undefined, one bool a lane or one for all."""
        return self._mask(node, frame, {})

    def _mask(self, node: Expr, frame: Frame, known: dict[Expr, Value]) -> Value:
        if not self.may_be(node):
            return False
        found = known.get(node)
        if found is None:
            found = known[node] = self._find(node, frame, known)
        return found

    def _find(self, node: Expr, frame: Frame, known: dict[Expr, Value]) -> Value:
        if node in self.marks:
            assert isinstance(node, Local)
            return self.eval.pure(self.marks[node], frame)
        masks = [self._mask(a, frame, known) for a in node.args]
        if isinstance(node, Op) and node.op in ("where", "and", "or"):
            return self._chosen(node, masks, frame)
        return _any(masks)

    def _chosen(self, node: Op, masks: list[Value], frame: Frame) -> Value:
        first, *others = masks
        if all(mask is False for mask in others):
            return first
        condition = self.eval.value(node.args[0], frame)
        yes, no = {"where": others, "and": [others[0], False], "or": [False, others[0]]}[node.op]
        return _any([first, native_math.select(condition, yes, no, dtypes.bool_)])


def _any(masks: list[Value]) -> Value:
    result: Value = False
    for mask in masks:
        if mask is not False:
            result = mask if result is False else np.logical_or(result, mask)
    return result
