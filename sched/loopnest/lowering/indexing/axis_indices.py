"""The indices of one tensor's axes, computed from the indices of its loops, for the indexer.

A walk backward over the transforms behind the loops gives the roots; axes of the math that several
tensors share are looked up by their class (rule 26: the index of a broadcast axis is 0).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loopnest.lowering.loops.loop_plan import LoopPlan
from loopnest.lowering.loops.never_empty import before_growth
from loopnest.scalar.expr import ZERO, Expr
from loopnest.schedule.loop_forest import RootClass
from loopnest.tensor.domain import IterDomain, Transform, transforms_between, undone
from loopnest.tensor.tensor_view import TensorView


class Environment:
    """The indices of one tensor's axes, given those of its loops."""

    def __init__(
        self, plan: LoopPlan, tensor: TensorView, indices: tuple[Expr | None, ...]
    ) -> None:
        self.plan = plan
        self.tensor = tensor
        self._indices = indices
        self.promotion = plan.promotions[tensor]
        self.known: dict[IterDomain, Expr] = {
            axis: index
            for axis, index in zip(self.promotion.leaf, indices, strict=True)
            if index is not None
        }
        self._by_class: dict[RootClass, Expr] | None = None
        self._taken_by_class: dict[RootClass, Expr] | None = None
        self._by_node: dict[IterDomain, Expr] = {}
        self._allocated: dict[IterDomain, Expr] = {}
        self.known.update(self._around_tiles())
        self._same = self._same_axes() if plan.promoter.reshapes else {}
        for axis, index in tuple(self.known.items()):
            self._note(axis, index)
        for step in reversed(self.promotion.steps):
            self._note_inputs(step, [self._told(axis) for axis in step.outputs])
        if plan.promoter.reshapes and self.promotion.image:
            # What the tensor's own steps tell of axes that others made, too.
            for step in reversed(self.tensor.domain.history):
                for axis in step.outputs:
                    value = self.alike(axis)
                    if value is not None:
                        self._note(axis, value)
                self._note_inputs(step, [self.known.get(axis) for axis in step.outputs])

    def _note(self, axis: IterDomain, value: Expr) -> None:
        """Keep the index of an axis, and as that of axes which reshapes make alike."""
        for each in (axis, self._same.get(axis, axis)):
            value = self.known.setdefault(each, value)
            if self.plan.promoter.reshapes:
                self._by_node.setdefault(self.plan.promoter.canonical(each), value)

    def _note_inputs(self, step: Transform, outputs: Sequence[Expr | None]) -> None:
        """Keep the indices of what a step takes, where those of all that it makes are known."""
        given = [value for value in outputs if value is not None]
        if len(given) == len(outputs):
            values = step.backward(given, self.plan.algebra)
            for axis, value in zip(step.inputs, values, strict=True):
                self._note(axis, value)

    def _told(self, axis: IterDomain) -> Expr | None:
        """Return the index of an axis, or of one that loops with reshapes made alike."""
        value = self.known.get(axis)
        return self.alike(axis) if value is None and self.promotion.image else value

    def _same_axes(self) -> dict[IterDomain, IterDomain]:
        """Return for axes of the loops the earlier ones that run over the same points."""
        result: dict[IterDomain, IterDomain] = {}
        for step in self.promotion.steps:
            inputs = [result.get(axis, axis) for axis in step.inputs]
            found = undone(step, inputs, self.plan.algebra)
            for axis, earlier in zip(step.outputs, found or (), strict=False):
                result[axis] = result.get(earlier, earlier)
        return result

    def _around_tiles(self) -> dict[IterDomain, Expr]:
        """Return the indices of loops that tiles follow from: those of the tensor's own loops."""
        steps = dict.fromkeys([*self.promotion.steps, *self.tensor.domain.history])
        found = [axis for step in steps for axis in step.given()]
        if not found:
            return {}
        find, loop_of = self.plan.forest.find, self.plan.promoter.loop_of
        index_of = {
            find(axis): index
            for axis, index in zip(self.tensor.domain.leaf, self._indices, strict=True)
            if index is not None
        }
        loops = {axis: find(loop_of.get(axis, axis)) for axis in found}
        return {axis: index_of[loop] for axis, loop in loops.items() if loop in index_of}

    def element(self) -> tuple[Expr, ...]:
        """Return the element of the logical domain at hand."""
        found = [self.index(axis) for axis in self.tensor.domain.logical]
        return tuple([ZERO if value is None else value for value in found])

    def coordinate(self) -> tuple[Expr, ...]:
        """Return the element of the root domain at hand: the first of those that are reduced."""
        whole = self
        if any(index is None for index in self._indices):
            first = tuple([ZERO if index is None else index for index in self._indices])
            whole = Environment(self.plan, self.tensor, first)
        found = [whole.index(axis) for axis in self.tensor.domain.root]
        return tuple([ZERO if value is None else value for value in found])

    def by_class(self) -> dict[RootClass, Expr]:
        """Return the index of each axis of the math that the loops run over."""
        if self._by_class is None:
            class_of = self.plan.forest.class_of
            self._by_class = {}
            for axis, value in self.known.items():
                found = class_of.get(axis)
                if found is not None and not axis.is_broadcast:
                    self._by_class.setdefault(found.find(), value)
        return self._by_class

    def alike(self, axis: IterDomain) -> Expr | None:
        """Return the index of an axis that a reshape lies behind, by what was made as it was."""
        promoter = self.plan.promoter
        return self._by_node.get(promoter.canonical(axis)) if promoter.reshapes else None

    def of_class(self, group: RootClass) -> Expr | None:
        """Return the index of an axis of the math, None where the loops do not tell it.

        The index of an axis that a reshape makes follows from the axes that the reshape takes, and
        those of the axes that it takes from what it makes, where the loops run over that.
        """
        value = self.by_class().get(group)
        if value is None:
            node = self.plan.promoter.reshaped(group)
            value = None if node is None else self._made(node)
            if value is None:
                value = self._taken().get(group)
            if value is not None:
                self.by_class()[group] = value
        return value

    def _taken(self) -> dict[RootClass, Expr]:
        """Return the indices of axes that reshapes take, from those of what they make."""
        if self._taken_by_class is None:
            self._taken_by_class = {}
            promoter, class_of = self.plan.promoter, self.plan.forest.class_of
            found = dict(self._by_node)
            for step in reversed(promoter.reshape_steps):
                outputs = [found.get(promoter.canonical(axis)) for axis in step.outputs]
                given = [value for value in outputs if value is not None]
                if len(given) < len(outputs):
                    continue
                values = step.backward(given, self.plan.algebra)
                for axis, value in zip(step.inputs, values, strict=True):
                    group = class_of.get(axis)
                    if group is not None and not axis.is_broadcast:
                        found.setdefault(promoter.canonical(axis), value)
                        self._taken_by_class.setdefault(group.find(), value)
        return self._taken_by_class

    def _made(self, node: IterDomain) -> Expr | None:
        """Return the index of what a reshape makes, from those of what it makes it of."""
        if node in self.known or node.definition is None:
            return self.known.get(node)
        inputs: list[Expr] = []
        for axis in node.definition.inputs:
            group = self.plan.forest.class_of.get(axis)
            value = self._made(axis) if group is None else self.of_class(group.find())
            if value is None:
                return None
            inputs.append(value)
        values = node.definition.forward(inputs, self.plan.algebra)
        return values[node.definition.outputs.index(node)]

    def index(self, axis: IterDomain) -> Expr | None:
        """Return the index of a root or logical axis of the tensor; None where it has none.

        That of a broadcast axis is 0, also where its loop runs over the axis of a consumer.
        """
        if axis.is_broadcast:
            return ZERO
        value = self.known.get(axis) if not self.promotion.image else None
        if value is not None:
            return value
        found = self.plan.forest.class_of.get(axis)
        if found is not None:
            value = self.of_class(found.find())
        if value is None:
            value = self.known.get(axis)
        if value is None:
            value = self.part(axis)
        # What this tensor alone made of axes that the loops tell, as another one made them.
        return self._made(axis) if value is None and self.promotion.image else value

    def allocated(self, axis: IterDomain) -> Expr | None:
        """Return the index of an axis of the allocation domain; None where it has none.

        It follows from the logical axes, unless the loops run over that very axis.
        """
        found = self._allocated.get(axis)
        if found is not None:
            return found
        step = axis.definition
        value = None if self.promotion.image else self.known.get(axis)
        if value is not None:
            return value
        if axis in self.tensor.domain.logical or step is None:
            return self.index(axis)
        inputs = [self.allocated(source) for source in step.inputs]
        inputs += [self.known.get(loop) for loop in step.given()]
        given = [value for value in inputs if value is not None]
        if len(given) < len(inputs):
            return None
        values = step.forward(given, self.plan.algebra)
        self._allocated.update(zip(step.outputs, values, strict=True))
        return self._allocated[axis]

    def above(self, axes: Sequence[IterDomain]) -> frozenset[IterDomain]:
        """Return the axes that the loops run over and of which `axes` are only parts.

        That an index of such an axis is in range does not place an element along `axes` in range.
        """
        class_of = self.plan.forest.class_of
        classes = {class_of[axis].find() for axis in axes if axis in class_of}
        same = {a for a in self.known if a in class_of and class_of[a].find() in classes}
        level = same | {self.promotion.image.get(axis, axis) for axis in axes}
        parts = [before_growth(axis) for axis in level]
        inputs = (a for axis in parts for a in _taken_apart(axis))
        return frozenset(inputs) - same  # a loop over a merge has the axis itself behind it too

    def index_as_part(self, axis: IterDomain) -> Expr | None:
        """Return the index of an axis that is a part of a split, where that alone tells it.

        An axis that `rfactor` left, and the root of the tensor that folds it, are parts of a split;
        where the loop must run at least once, its part of that split is made anew.
        """
        step = axis.definition
        if step is not None and all(source in self.known for source in step.inputs):
            return None
        return self.part(axis)

    def part(self, axis: IterDomain) -> Expr | None:
        """Return the index of an axis in the promoted copy of the split that made it, or None."""
        node = None if axis.is_broadcast else self.promotion.image.get(axis)
        if node is None or node.definition is None or len(node.definition.outputs) < 2:
            return None
        return self.known.get(node)


def _taken_apart(axis: IterDomain) -> Iterator[IterDomain]:
    """Yield the axes that `axis` was made from by a step with other outputs too.

    An element along a merge, in contrast, is one along each of its inputs.
    """
    step = axis.definition
    if step is None:
        return
    if len(step.outputs) > 1:
        yield from (a for s in transforms_between((), (axis,)) for a in s.inputs)
    else:
        for source in step.inputs:
            yield from _taken_apart(source)
