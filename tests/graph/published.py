"""Published examples as graphs: what the passes are measured by.

Names end with the source: `of_cse_rfc` is TVM's RFC "CSE Optimization"
(discuss.tvm.apache.org/t/8130), `of_ublas` the wiki page "The Problem of Tensor level optimization"
(github.com/BoostGSoC19/tensor), `of_nnvm` the article "Fusion and Runtime Compilation for NNVM and
TinyFlow" (DMLC, 2016), `of_tvm` TVM's pass infrastructure and src/relay/transforms/fuse_ops.cc.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import loopnest.graph as G


@dataclass(frozen=True)
class TwoPasses:
    """A forward graph, and a backward one that shares its nodes (and its inputs)."""

    forward: G.Graph
    backward: G.Graph


def both(inputs: list[G.Node], y: G.Node, wanted: list[G.Node], name: str) -> TwoPasses:
    """Return y of inputs, and the gradients of `wanted` for an input dy more."""
    dy = G.var("dy", y.shape, y.dtype)
    forward = G.Graph(inputs, [y], name)
    backward = G.Graph([*inputs, dy], G.gradient(y, wanted, dy), f"{name}_backward")
    return TwoPasses(forward, backward)


def tanh_of_cse_rfc(shape: tuple[int, ...] = (4, 8), dtype: str = "float64") -> TwoPasses:
    """Y = tanh(X); dX = (1 - tanh(X) * tanh(X)) * dY."""
    x = G.var("x", shape, dtype)
    return both([x], G.tanh(x), [x], "tanh")


def batch_norm_of_cse_rfc(
    shape: tuple[int, ...] = (2, 3, 4, 5), dtype: str = "float64", eps: float = 1e-5
) -> TwoPasses:
    """y = BatchNorm(x); the backward gives dx, dgamma, dbeta."""
    x = G.var("x", shape, dtype)
    gamma, beta = G.var("gamma", shape[1:2], dtype), G.var("beta", shape[1:2], dtype)
    y = G.batch_norm(x, gamma, beta, eps)
    return both([x, gamma, beta], y, [x, gamma, beta], "batch_norm")


def gamma_gradient_of_cse_rfc(
    shape: tuple[int, int, int, int] = (2, 3, 4, 5), dtype: str = "float64", eps: float = 1e-5
) -> TwoPasses:
    """The forward, and dgamma as the RFC shows it before inlining.

    extracted[b, h, w, -c] = (X[b, -c, h, w] - E[-c]) / sqrt(V[-c] + eps) has other axes than dY and
    a reversed one; dgamma[c] += dY[b, c, h, w] * extracted[b, h, w, -c].
    """
    x = G.var("x", shape, dtype)
    gamma, beta = G.var("gamma", shape[1:2], dtype), G.var("beta", shape[1:2], dtype)
    forward = G.Graph([x, gamma, beta], [G.batch_norm(x, gamma, beta, eps)], "batch_norm")
    dy = G.var("dy", shape, dtype)
    axes = (0, 2, 3)
    turned, mean, var = [
        G.flip(G.transpose(t, (0, 2, 3, 1)), 3)
        for t in (x, G.mean(x, axes, keepdims=True), G.variance(x, axes, keepdims=True))
    ]
    extracted = (turned - mean) / G.sqrt(var + eps)
    seen = G.transpose(G.flip(extracted, 3), (0, 3, 1, 2))
    dgamma = G.sum(dy * seen, axes)
    return TwoPasses(forward, G.Graph([x, dy], [dgamma], "gamma_gradient"))


def distribute_of_ublas(case: str = "both", shape: tuple[int, ...] = (4,)) -> G.Graph:
    """(a*b + a*c) + (a*d + d*c), or with case "left" (a*b + a*c) + (a*b + 2*d)."""
    a, b, c, d = [G.var(name, shape, "float64") for name in "abcd"]
    right = a * d + d * c if case == "both" else a * b + 2.0 * d
    return G.Graph([a, b, c, d], [(a * b + a * c) + right])


def adam_of_nnvm(
    shapes: dict[str, tuple[int, ...]] | None = None, dtype: str = "float64"
) -> G.Graph:
    """One step of Adam for a linear model with parameters `shapes`; state in variables."""
    x, target = G.var("x", (8, 4), dtype), G.var("target", (8, 3), dtype)
    shapes = shapes or {"w": (4, 3), "b": (3,)}
    parameters = [
        G.Variable(np.linspace(-1, 1, int(np.prod(shape))).reshape(shape).astype(dtype), name)
        for name, shape in shapes.items()
    ]
    error = G.tanh(x @ parameters[0] + parameters[1]) - target
    loss = G.mean(error * error)
    return G.Graph([x, target], [loss, G.group(*adam_updates(loss, parameters))], "adam")


def adam_updates(
    loss: G.Node,
    parameters: list[G.Node],
    learning_rate: float = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-4,
) -> list[G.Node]:
    """Return the assignments of one step."""
    t = G.Variable(np.zeros(1, loss.dtype.numpy), "adam_t")
    step = G.assign(t, t + 1.0)
    rate = learning_rate * (G.sqrt(1.0 - beta2**step) / (1.0 - beta1**step))
    updates = []
    for i, (p, g) in enumerate(zip(parameters, G.gradient(loss, parameters), strict=True)):
        m = G.Variable(np.zeros(p.shape, p.dtype.numpy), f"adam_m{i}")
        v = G.Variable(np.zeros(p.shape, p.dtype.numpy), f"adam_v{i}")
        new_m = G.assign(m, beta1 * m + (1 - beta1) * g)
        new_v = G.assign(v, beta2 * v + (1 - beta2) * g * g)
        updates.append(G.assign(p, p - rate * new_m / (G.sqrt(new_v) + epsilon)))
    return updates


def worked_example_of_tvm(channels: int = 64, size: int = 56, dtype: str = "float32") -> G.Graph:
    """The program of articles on TVM's passes: conv2d(x, weight) + (c + c) * 2, twice + c."""
    inner = (1, channels, size - 2, size - 2)
    values = np.linspace(-1, 1, int(np.prod(inner))).reshape(inner).astype(dtype)
    c = G.const(values)
    weight = G.var("weight", (channels, channels, 3, 3), dtype)
    x = G.var("x", (1, channels, size, size), dtype)
    y = G.add(c, c)
    y = G.mul(y, G.const(2, dtype))
    y = G.add(G.conv2d(x, weight), y)
    return G.Graph([x, weight], [G.add(G.add(y, c), G.add(y, c))])


def diamond_of_tvm(channels: int = 4, size: int = 6, opaque: bool = False) -> G.Graph:
    """conv2d, three branches of pointwise ops, an elementwise add of them.

    Args:
        channels: of data and kernel.
        size: height and width.
        opaque: whether one branch is an op that nothing fuses with (softmax).
    """
    x = G.var("x", (1, channels, size, size), "float64")
    w = G.var("w", (channels, channels, 3, 3), "float64")
    conv = G.conv2d(x, w, padding=1)
    branches = [G.relu(conv), G.softmax(conv, 1) if opaque else G.tanh(conv), conv * 2.0]
    return G.Graph([x, w], [branches[0] + branches[1] + branches[2]], "diamond")


def conv_chain_of_tvm(channels: int = 4, size: int = 6) -> G.Graph:
    """conv2d, bias, relu, conv2d, bias: two heavy ops, which never share a group."""
    shape = (1, channels, size, size)
    x = G.var("x", shape, "float64")
    weights = [G.var(f"w{i}", (channels, channels, 3, 3), "float64") for i in range(2)]
    biases = [G.var(f"b{i}", (channels, 1, 1), "float64") for i in range(2)]
    hidden = G.relu(G.conv2d(x, weights[0], padding=1) + biases[0])
    y = G.conv2d(hidden, weights[1], padding=1) + biases[1]
    return G.Graph([x, *weights, *biases], [y], "conv_chain")


def tuple_of_tvm() -> G.Graph:
    """Return a tuple of two injective ops whose fields are multiplied (fuse_ops.cc, phase 2)."""
    x, y = G.var("x", (4, 8), "float64"), G.var("y", (4, 8), "float64")
    pair = G.make_tuple(G.transpose(x), G.exp(G.transpose(y)))
    return G.Graph([x, y], [pair[0] * pair[1]])


def residual_network(
    blocks: int = 24, channels: int = 4, size: int = 6, classes: int = 5, dtype: str = "float32"
) -> G.Graph:
    """A residual network of 2 * blocks + 2 layers (50 by default), forward and backward.

    Outputs: the loss, then the gradient of each parameter.
    """
    x = G.var("x", (2, 3, size, size), dtype)
    labels = G.var("labels", (2,), "int64")
    parameters: list[G.Node] = []

    def parameter(name: str, *shape: int) -> G.Node:
        parameters.append(G.var(name, shape, dtype))
        return parameters[-1]

    def layer(data: G.Node, name: str, inputs: int, kernel: int) -> G.Node:
        weight = parameter(f"{name}_w", channels, inputs, kernel, kernel)
        data = G.conv2d(data, weight, padding=kernel // 2)
        scale, shift = [parameter(f"{name}_{part}", channels) for part in ("gamma", "beta")]
        return G.batch_norm(data, scale, shift)

    hidden = G.relu(layer(x, "stem", 3, 3))
    for block in range(blocks):
        inner = G.relu(layer(hidden, f"block{block}a", channels, 3))
        hidden = G.relu(layer(inner, f"block{block}b", channels, 3) + hidden)
    pooled = G.mean(hidden, (2, 3))
    logits = pooled @ parameter("fc_w", channels, classes) + parameter("fc_b", classes)
    loss = G.cross_entropy(logits, labels)
    gradients = G.gradient(loss, parameters)
    return G.Graph([x, labels, *parameters], [loss, *gradients], "residual_network")


def feeds(graph: G.Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Return random arrays for a graph's inputs; integers are 0 or 1."""
    random = np.random.default_rng(seed)
    return {
        x.name: (
            random.normal(size=x.shape) if x.dtype.is_float else random.integers(0, 2, x.shape)
        ).astype(x.dtype.numpy)
        for x in graph.inputs
    }
