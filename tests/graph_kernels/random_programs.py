"""Random programs of ops that become kernels, on extents 0, 1, primes and large ones."""

from __future__ import annotations

import numpy as np

import loopnest.graph as G
from loopnest.graph.dimensions import at, broadcast

EXTENTS = (0, 1, 2, 7, 16, 31, 97, 300)
SIZES = {f"E{extent}": extent for extent in EXTENTS}
UNARY = ("exp", "tanh", "relu", "neg", "sigmoid", "abs", "silu", "erf")
BINARY = ("add", "sub", "mul", "maximum", "minimum")
FOLDS = ("sum", "mean", "max", "min", "variance")


class RandomProgram:
    """A graph of one random element type, made from a seed; values stay near [-1, 1].

    Where `symbolic`, each extent but 1 is a size of its own: ``E7`` is 7.
    """

    def __init__(self, seed: int, steps: int = 10, symbolic: bool = False) -> None:
        self.seed, self.symbolic = seed, symbolic
        self.random = np.random.default_rng(seed)
        self.dtype = self.chosen(("float32", "float32", "float64"))
        rank = self.random.integers(1, 4)
        self.inputs: list[G.Node] = []
        self.nodes = [self.input(tuple(self.extent() for _ in range(rank)))]
        for _ in range(self.random.integers(1, steps + 1)):
            step = self.chosen((self.unary, self.unary, self.binary, self.binary, self.fold,
                                self.norm, self.move, self.product, self.choice))  # fmt: skip
            node = step(self.chosen(self.nodes))
            if node is not None and at(node.tensor_type.size, SIZES) <= 200_000:
                self.nodes.append(node)
        made = [node for node in self.nodes if node.inputs]
        ends = [made[-1]] if made else self.nodes[:1]
        ends += [self.chosen(self.nodes) for _ in range(self.random.integers(0, 3))]
        self.graph = G.Graph(self.inputs, ends, "random")

    def extent(self):
        found = int(self.chosen(EXTENTS))
        return f"E{found}" if self.symbolic and found != 1 else found

    def chosen(self, items):
        return items[self.random.integers(len(items))]

    def input(self, shape) -> G.Node:
        self.inputs.append(G.var(f"x{len(self.inputs)}", shape, self.dtype))
        return self.inputs[-1]

    def unary(self, x):
        return G.tanh(getattr(G, self.chosen(UNARY))(x))

    def binary(self, x):
        fitting = [n for n in self.nodes if broadcast((n.shape, x.shape)) is not None]
        shape = tuple(e if self.random.integers(3) else 1 for e in x.shape)
        other = self.chosen([*fitting, self.input(shape[self.random.integers(len(shape) + 1) :])])
        return G.tanh(getattr(G, self.chosen(BINARY))(x, other))

    def fold(self, x):
        if not x.ndim:
            return None
        axes = sorted({int(self.random.integers(x.ndim)) for _ in range(2)})
        if any(at(x.shape[axis], SIZES) == 0 for axis in axes):
            return G.tanh(G.sum(x, axes))
        name = self.chosen(FOLDS)
        found = getattr(G, name)(x, axes, keepdims=bool(self.random.integers(2)))
        return G.tanh(found * 0.1) if name == "sum" else found

    def norm(self, x):
        if not x.ndim:
            return None
        axis = int(self.random.integers(x.ndim))
        if at(x.shape[axis], SIZES) == 0:
            return None
        kind = self.chosen(("softmax", "log_softmax", "layer"))
        if kind == "layer":
            weights = [self.input((x.shape[axis],)) for _ in range(2)]
            if axis != x.ndim - 1:
                return None
            return G.layer_norm(x, *weights, eps=0.1) * 0.3
        return getattr(G, kind)(x, axis) * 0.2

    def move(self, x):
        if not x.ndim:
            return None
        kind = self.chosen(("transpose", "expand", "reshape", "cut", "cut", "broadcast"))
        if kind == "transpose":
            return G.transpose(x, [int(a) for a in self.random.permutation(x.ndim)])
        if kind == "expand":
            return G.expand_dims(x, int(self.random.integers(x.ndim + 1))) if x.ndim < 4 else None
        if kind == "reshape":
            return G.reshape(x, (x.tensor_type.size,))
        if kind == "cut":
            return self.cut(x)
        return G.broadcast_to(x, (2, *x.shape)) if x.ndim < 4 else None

    def cut(self, x):
        """Return a shape in which a random axis is cut in two, or is one with that before it."""
        axis = int(self.random.integers(x.ndim))
        head, extent, tail = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
        if axis and self.random.integers(2):
            return G.reshape(x, (*head[:-1], head[-1] * extent, *tail))
        parts = [part for part in (1, 2, 3, 4, 5, 10) if at(extent, SIZES) % part == 0]
        part = int(self.chosen(parts)) if not self.symbolic else 1
        if not at(extent, SIZES) or x.ndim > 3:
            return None
        return G.reshape(x, (*head, part, extent if self.symbolic else extent // part, *tail))

    def product(self, x):
        if x.ndim < 2:
            return None
        other = self.input((x.shape[-1], self.extent()))
        return G.tanh(G.matmul(x, other) * 0.1)

    def choice(self, x):
        return G.where(x < 0.05, x * 0.5, G.cast(x > 0.3, self.dtype))

    def arrays(self) -> list[np.ndarray]:
        random = np.random.default_rng(self.seed)
        shapes = [[at(extent, SIZES) for extent in x.shape] for x in self.inputs]
        pairs = zip(self.inputs, shapes, strict=True)
        return [random.uniform(-1, 1, shape).astype(x.dtype.numpy) for x, shape in pairs]

    def expected(self) -> tuple:
        return G.evaluate(
            self.graph, {x.name: a for x, a in zip(self.inputs, self.arrays(), strict=True)}
        )


def leaves(values) -> list[np.ndarray]:
    """Return the arrays of results, tuples in them included."""
    if isinstance(values, tuple):
        return [leaf for value in values for leaf in leaves(value)]
    return [values]


def assert_alike(results, expected, loose: float = 1.0) -> None:
    """Compare results with the evaluation; both round in their own type at every step."""
    for found, wanted in zip(leaves(results), leaves(expected), strict=True):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        if wanted.dtype.kind == "f":
            bound = loose * (2e-4 if wanted.dtype.itemsize == 4 else 1e-9)
            np.testing.assert_allclose(found, wanted, rtol=bound, atol=bound)
        else:
            np.testing.assert_array_equal(found, wanted)
