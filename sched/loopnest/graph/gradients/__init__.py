"""The ``gradient`` attribute of every op. Importing this registers all rules."""

from loopnest.graph.gradients import nn, pointwise, reduce, structure
from loopnest.graph.gradients.common import NotDifferentiable, Rule

__all__ = ["NotDifferentiable", "Rule", "nn", "pointwise", "reduce", "structure"]
