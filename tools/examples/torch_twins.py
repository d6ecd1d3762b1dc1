"""The models of the examples here in PyTorch, with the same first values, to compare with.

A twin is a function of parameters, in the order in which the graph made its variables, and of the
inputs of a step. `TorchStep` trains it: eagerly, or compiled by a backend of torch.compile.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import loopnest.graph as G
import loopnest.torch  # noqa: F401 - registers the backend
from loopnest.graph.dimensions import at

Tensor: TypeAlias = "torch.Tensor"
Loss: TypeAlias = "Callable[..., Tensor]"
"""A loss of parameters and of the inputs of a step."""
Update: TypeAlias = "Callable[[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]], None]"
"""New values of parameters by gradients and by the state of an optimiser."""


def parameters_of(graph: G.Graph) -> list[npt.NDArray[Any]]:
    """Return the first values of a graph's own variables, in the order of their numbers."""
    numbers = {name: re.fullmatch(r"[pw](\d+)", name) for name in graph.variables}
    own = sorted([(int(found[1]), name) for name, found in numbers.items() if found])
    return [graph.variables[name].value.copy() for _, name in own]


# Models


def my_sigmoid(x: Tensor) -> Tensor:
    """Return the sigmoid by simple ops."""
    return 1.0 / (1.0 + torch.exp(-x))


def perceptron(weights: Sequence[Tensor], x: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of `fused_training`: labels are chances of classes."""
    w1, b1, w2, b2 = weights
    scores = my_sigmoid(x @ w1 + b1) @ w2 + b2
    return -(F.log_softmax(scores, 1) * labels).sum(1).mean()


def lenet(weights: Sequence[Tensor], x: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of `lenet_digits`."""
    w = iter(weights)
    for _ in range(2):
        y = F.conv2d(x, next(w), padding=1)
        x = F.max_pool2d(F.relu(y + next(w).reshape(-1, 1, 1)), 2)
    y = x.reshape(-1, 128)
    for layer in range(3):
        y = (F.relu(y) if layer else y) @ next(w) + next(w)
    return F.cross_entropy(y, labels)


def resnet(blocks: Sequence[int], wide: bool) -> Loss:
    """Return the loss of `resnet_step`, of so many blocks a stage, bottlenecks where `wide`."""

    def norm(w: Iterator[Tensor], x: Tensor, stride: int = 1) -> Tensor:
        kernel = next(w)
        y = F.conv2d(x, kernel, stride=stride, padding=kernel.shape[2] // 2)
        return F.batch_norm(y, None, None, next(w), next(w), training=True)

    def block(w: Iterator[Tensor], x: Tensor, channels: int, stride: int) -> Tensor:
        out = channels * 4 if wide else channels
        shortcut = x if x.shape[1] == out and stride == 1 else norm(w, x, stride)
        if wide:
            y = F.relu(norm(w, x))
            y = F.relu(norm(w, y, stride))
        else:
            y = F.relu(norm(w, x, stride))
        return F.relu(norm(w, y) + shortcut)

    def loss(weights: Sequence[Tensor], x: Tensor, labels: Tensor) -> Tensor:
        w = iter(weights)
        y = F.max_pool2d(F.relu(norm(w, x, 2)), 3, 2, 1)
        for stage, count in enumerate(blocks):
            for number in range(count):
                y = block(w, y, 64 << stage, 2 if stage and not number else 1)
        return F.cross_entropy(y.mean((2, 3)) @ next(w) + next(w), labels)

    return loss


def unet(levels: int) -> Loss:
    """Return the loss of `unet_discs`."""

    def norm(w: Iterator[Tensor], x: Tensor) -> Tensor:
        kernel = next(w)
        y = F.conv2d(x, kernel, padding=kernel.shape[2] // 2)
        return F.relu(F.batch_norm(y, None, None, next(w), next(w), training=True))

    def loss(weights: Sequence[Tensor], x: Tensor, inside: Tensor) -> Tensor:
        w, y = iter(weights), x
        skipped = []
        for _ in range(levels):
            y = norm(w, norm(w, y))
            skipped.append(y)
            y = F.max_pool2d(y, 2)
        y = norm(w, norm(w, y))
        while skipped:
            y = norm(w, F.interpolate(y, scale_factor=2))
            y = norm(w, norm(w, torch.cat([skipped.pop(), y], 1)))
        scores = (F.conv2d(y, next(w)) + next(w)).squeeze(1)
        return F.binary_cross_entropy_with_logits(scores, inside)

    return loss


def language_model(width: int, heads: int, layers: int) -> Loss:
    """Return the loss of `language_model`."""

    def norm(w: Iterator[Tensor], x: Tensor) -> Tensor:
        return F.layer_norm(x, (width,), next(w), next(w))

    def dense(w: Iterator[Tensor], x: Tensor) -> Tensor:
        return x @ next(w) + next(w)

    def attention(w: Iterator[Tensor], x: Tensor, length: int) -> Tensor:
        share = width // heads
        shape = (-1, length, heads, share)
        query, key, value = [dense(w, x).reshape(shape).transpose(1, 2) for _ in range(3)]
        scores = query @ key.transpose(2, 3) * share**-0.5
        place = torch.arange(length)
        scores = torch.where(place[:, None] >= place, scores, -1e9)
        mixed = (torch.softmax(scores, -1) @ value).transpose(1, 2)
        return dense(w, mixed.reshape(-1, width))

    def loss(weights: Sequence[Tensor], tokens: Tensor, labels: Tensor) -> Tensor:
        w, length = iter(weights), tokens.shape[1]
        x = next(w)[tokens] + next(w)
        x = x.reshape(-1, width)
        for _ in range(layers):
            x = x + attention(w, norm(w, x), length)
            x = x + dense(w, F.gelu(dense(w, norm(w, x)), approximate="tanh"))
        return F.cross_entropy(dense(w, norm(w, x)), labels)

    return loss


# Optimisers, as `loopnest.graph.optim` has them


def sgd(rate: float, momentum: float) -> Update:
    """Return gradient descent with momentum; its state is a velocity a parameter."""

    def update(
        weights: Sequence[Tensor], gradients: Sequence[Tensor], state: Sequence[Tensor]
    ) -> None:
        for x, g, v in zip(weights, gradients, state, strict=True):
            v.mul_(momentum).add_(g)
            x.sub_(v, alpha=rate)

    return update


def adam(rate: float, epsilon: float = 1e-4) -> Update:
    """Return Adam; its state is a count, and two moments a parameter."""

    def update(
        weights: Sequence[Tensor], gradients: Sequence[Tensor], state: Sequence[Tensor]
    ) -> None:
        count, *moments = state
        count.add_(1.0)
        now = rate * torch.sqrt(1.0 - 0.999**count) / (1.0 - 0.9**count)
        pairs = zip(moments[::2], moments[1::2], strict=True)
        for x, g, (m, v) in zip(weights, gradients, pairs, strict=True):
            m.mul_(0.9).add_(g, alpha=0.1)
            v.mul_(0.999).add_(g * g, alpha=0.001)
            x.sub_(now * m / (v.sqrt() + epsilon))

    return update


class TorchStep:
    """A step of training in torch: the loss, gradients, updates.

    Args:
        graph: the graph whose twin it trains; the first values are those of its variables.
        loss: of parameters and inputs.
        update: of parameters; `adam`, or `sgd`.
        backend: of torch.compile; "" for eager.
    """

    def __init__(self, graph: G.Graph, loss: Loss, update: Update, backend: str = "") -> None:
        self.backend = backend
        self.weights = [torch.from_numpy(x).requires_grad_() for x in parameters_of(graph)]
        moments = update.__qualname__.startswith("adam")
        self.state = [torch.zeros(())] if moments else []
        for x in self.weights:
            self.state += [torch.zeros(x.shape) for _ in range(1 + moments)]
        self._loss, self._update = loss, update
        if backend:
            torch._dynamo.reset()
            self._loss = torch.compile(loss, backend=backend, dynamic=False)
            self._update = torch.compile(update, backend=backend, dynamic=False)

    def __call__(self, *arrays: npt.NDArray[Any]) -> float:
        """Train one step, and return its loss."""
        given = [torch.from_numpy(x) for x in arrays]
        tensors = [x.long() if x.dtype == torch.int32 else x for x in given]
        loss = self._loss(self.weights, *tensors)
        gradients = torch.autograd.grad(loss, self.weights)
        with torch.no_grad():
            self._update(self.weights, gradients, self.state)
        return float(loss.detach())


class OpCounter(TorchDispatchMode):
    """Counts the operators of torch that run while it is entered, and the bytes they move."""

    def __init__(self) -> None:
        super().__init__()
        self.launches = self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        aliases = [x.alias_info for x in func._schema.returns]
        if not any(x is not None and not x.is_write for x in aliases):  # no view
            self.launches += 1
            moved = torch.utils._pytree.tree_leaves((args, result))
            self.bytes += sum(x.nbytes for x in moved if isinstance(x, torch.Tensor))
        return result


def counted(step: TorchStep, arrays: Sequence[npt.NDArray[Any]]) -> tuple[int, int]:
    """Return the launches and bytes of a step; it trains, and compiles what is not compiled yet."""
    if not step.backend:
        with OpCounter() as counter:
            step(*arrays)
        return counter.launches, counter.bytes
    if step.backend == "loopnest":
        from loopnest.torch import recording

        with recording() as programs:
            step(*arrays)
        launches = [launch for program in programs for launch in program.kernels]
        return len(launches), sum([at(launch.bytes, {}) for launch in launches])
    from torch._inductor import config, metrics

    metrics.reset()
    torch._logging.set_logs(inductor_metrics=True)
    with config.patch(force_disable_caches=True):
        step(*arrays)
    torch._logging.set_logs()
    return len(metrics.nodes_num_elem), metrics.num_bytes_accessed


def largest_difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the largest difference of losses, relative to the larger of a loss and 1."""
    a, b = np.array(ours), np.array(theirs)
    return float(np.max(np.abs(a - b) / np.maximum(np.abs(a), 1.0)))
