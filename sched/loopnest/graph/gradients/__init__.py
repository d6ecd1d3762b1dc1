"""The ``gradient`` attribute of every op. Importing this registers all rules."""

from loopnest.graph.gradients import (
    movement_gradients,
    nn_gradients,
    pointwise_gradients,
    reduction_gradients,
)
from loopnest.graph.gradients.gradient_rules import NotDifferentiable, Rule

__all__ = [
    "NotDifferentiable",
    "Rule",
    "movement_gradients",
    "nn_gradients",
    "pointwise_gradients",
    "reduction_gradients",
]
