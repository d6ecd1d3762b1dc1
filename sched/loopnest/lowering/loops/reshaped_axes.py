"""The axes that reshapes make, and what is known of them where others are, for promotion."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from loopnest.schedule.loop_forest import RootClass
from loopnest.tensor.domain import IterDomain, Transform, transforms_between

RootKey: TypeAlias = "RootClass | IterDomain"
"""An axis of the math: a class of root axes, or an axis that is in none."""


@dataclass(eq=False, slots=True)
class ReshapedAxes:
    """The axes that reshapes make, and which axes of the math they are made from.

    `axes` are canonical; `steps` are the splits and merges on the way.
    """

    axes: set[IterDomain] = field(default_factory=set)
    steps: list[Transform] = field(default_factory=list)
    _closed: dict[frozenset[RootKey], frozenset[RootKey]] = field(default_factory=dict)

    def closed(
        self, keys: frozenset[RootKey], keys_of: Callable[[IterDomain], frozenset[RootKey]]
    ) -> frozenset[RootKey]:
        """Return `keys` with those of both sides of each step that has all of one side's."""
        found = self._closed.get(keys)
        if found is None:
            found, before = keys, None
            while found != before:
                before = found
                for step in self.steps:
                    both = (step.inputs, step.outputs)
                    sides = [frozenset().union(*map(keys_of, axes)) for axes in both]
                    if any(side <= found for side in sides):
                        found = found.union(*sides)
            self._closed[keys] = found
        return found


def axes_behind(node: IterDomain, stop: Iterable[IterDomain] = ()) -> list[IterDomain]:
    """Return `node` and the axes that it was made from, those in `stop` the last."""
    inner = (axis for step in transforms_between(stop, (node,)) for axis in step.inputs)
    return list(dict.fromkeys((node, *inner)))
