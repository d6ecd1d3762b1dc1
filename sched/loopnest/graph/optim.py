"""Optimisers: from a loss to a node that carries the updates of its variables.

    step = G.Graph([x, labels], [loss, G.optim.Adam(0.001).minimize(loss)])
    fn = G.compile(step)

The state of an optimiser are variables of its own, named after it, so that a call of the compiled
graph is a whole step of training. It overwrites the variables, which are the compiled graph's own,
and copies none of them: ``loss, updates = fn(x, labels)`` gives the loss, and updates that copy a
value when it is asked for. ``fn.state`` has all variables by name, ``fn.state_dict()`` is a
checkpoint, and a graph of scores that is compiled with ``state=fn`` reads what the step has learnt.

Source: TinyFlow's ``AdamOptimizer`` (github.com/tqchen/tinyflow), whose defaults these are.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from loopnest.graph.gradients import gradient
from loopnest.graph.graph_error import GraphError
from loopnest.graph.leaves import assign, group
from loopnest.graph.node import Node, describe, is_name, items_of
from loopnest.graph.node_origins import postorder
from loopnest.graph.node_values import Variable
from loopnest.graph.operators import pointwise_ops as p
from loopnest.graph.registry import short
from loopnest.scalar.dtypes import float32


class Optimizer(ABC):
    """A rule that updates variables by their gradients.

    Args:
        learning_rate: a number, or a node of shape ().
        name: an identifier that the names of its variables begin with.

    Raises:
        GraphError: an argument of another kind.
    """

    def __init__(self, learning_rate: float | Node, name: str) -> None:
        self.subject = f"{type(self).__name__}(…)"
        if not is_name(name):
            raise GraphError(self.subject, f"the name {short(name)} is no identifier")
        if isinstance(learning_rate, Node):
            if learning_rate.shape != () or not learning_rate.dtype.is_float:
                found = f"the learning rate is {learning_rate.type}"
                raise GraphError(self.subject, found, "use a float of shape ()")
        else:
            self._check_number("learning_rate", learning_rate)
        self.learning_rate, self.name = learning_rate, name

    def _check_number(self, role: str, value: object, least: float = -sys.float_info.max) -> None:
        number = value if isinstance(value, (int, float)) else math.nan
        if isinstance(value, bool) or not least <= number < math.inf:
            allowed = "use a finite number" + ("" if least < 0 else f" >= {least:g}")
            raise GraphError(self.subject, f"{role} is {short(value)}", allowed)

    def minimize(self, loss: Node, variables: Sequence[Node] | None = None) -> Node:
        """Return a group of updates that make a loss smaller.

        Args:
            loss: a float tensor; of one that is no scalar the sum is made smaller.
            variables: which to update; all floats that the loss depends on by default.

        Raises:
            GraphError: no variable, or one that is none or no float; an op on the way that has no
                gradient.
        """
        subject = f"{type(self).__name__}.minimize({describe(loss)})"
        if variables is None:
            chosen = [x for x in postorder([loss]) if x.op == "variable" and x.dtype.is_float]
        else:
            chosen = list(items_of(variables) or ())
        if not chosen:
            raise GraphError(subject, "there is no variable to update", "make one by G.Variable")
        for x in chosen:
            if not isinstance(x, Node) or x.op != "variable" or not x.dtype.is_float:
                found = f"{short(x) if not isinstance(x, Node) else describe(x)} is no variable"
                raise GraphError(subject, f"{found} of floats", "make one by G.Variable")
        return group(*self.updates(chosen, gradient(loss, chosen)))

    @abstractmethod
    def updates(self, variables: Sequence[Node], gradients: Sequence[Node]) -> list[Node]:
        """Return the assignments of one step."""

    def _state(self, role: str, like: Node) -> Node:
        """Return a variable of the optimiser's own that begins with zeros."""
        return Variable(np.zeros(like.static_shape, like.dtype.numpy), f"{self.name}_{role}")


class SGD(Optimizer):
    """Gradient descent, by ``x - learning_rate * v`` where ``v = momentum * v + gradient``.

    >>> from loopnest.graph import Graph, Variable, evaluate
    >>> w = Variable([4.0], "w", "float32")
    >>> step, state = Graph([], [SGD(0.25).minimize(w * w)]), {}
    >>> _ = evaluate(step, {}, state)
    >>> state["w"]
    array([2.], dtype=float32)
    """

    def __init__(
        self, learning_rate: float | Node = 0.01, momentum: float = 0.0, name: str = "SGD"
    ) -> None:
        super().__init__(learning_rate, name)
        self._check_number("momentum", momentum, 0.0)
        self.momentum = momentum

    def updates(self, variables: Sequence[Node], gradients: Sequence[Node]) -> list[Node]:
        found: list[Node] = []
        for number, (x, g) in enumerate(zip(variables, gradients, strict=True)):
            step = g
            if self.momentum:
                v = self._state(f"v{number}", x)
                step = assign(v, p.add(p.mul(v, self.momentum), g))
                found.append(step)
            found.append(assign(x, p.cast(p.sub(x, p.mul(step, self.learning_rate)), x.dtype)))
        return found


class Adam(Optimizer):
    """Adaptive moment estimation: steps by the mean of gradients over the root of their squares'.

    Args:
        learning_rate: a number, or a node of shape ().
        beta1: the decay of the mean of gradients.
        beta2: the decay of the mean of their squares.
        epsilon: added to the root.
        name: an identifier that the names of its variables begin with.

    Source: Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, algorithm 1.
    """

    def __init__(
        self,
        learning_rate: float | Node = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-4,
        name: str = "Adam",
    ) -> None:
        super().__init__(learning_rate, name)
        for role, value in (("beta1", beta1), ("beta2", beta2), ("epsilon", epsilon)):
            self._check_number(role, value, 0.0)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon

    def updates(self, variables: Sequence[Node], gradients: Sequence[Node]) -> list[Node]:
        t = Variable(np.zeros((), np.float32), f"{self.name}_t", float32)
        new_t = assign(t, p.add(t, 1.0))
        bias = p.div(
            p.sqrt(p.sub(1.0, p.pow(self.beta2, new_t))), p.sub(1.0, p.pow(self.beta1, new_t))
        )
        rate = p.mul(self.learning_rate, bias)
        found = [new_t]
        for number, (x, g) in enumerate(zip(variables, gradients, strict=True)):
            m, v = self._state(f"m{number}", x), self._state(f"v{number}", x)
            new_m = assign(m, p.add(p.mul(m, self.beta1), p.mul(g, 1 - self.beta1)))
            squares = p.mul(p.mul(g, g), 1 - self.beta2)
            new_v = assign(v, p.add(p.mul(v, self.beta2), squares))
            step = p.div(p.mul(rate, new_m), p.add(p.sqrt(new_v), self.epsilon))
            found += [new_m, new_v, assign(x, p.cast(p.sub(x, step), x.dtype))]
        return found
