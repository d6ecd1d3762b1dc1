"""A hypothesis strategy for random graphs: typed, well-formed, of values that stay moderate.

Values are safe from log(0), overflow and the like: each node carries a bound of its magnitude, and
ops get operands on which they are smooth. What jumps (comparisons, floor, argmax) reads inputs
alone, so that passes may round otherwise without another branch being taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

import loopnest.graph as G

_LIMIT = 100.0
"""Beyond this magnitude a node is squashed before it is used."""


@dataclass(frozen=True)
class Sample:
    """A graph and what makes its inputs; its repr is a program that shows it."""

    graph: G.Graph
    seed: int

    def feeds(self, seed: int | None = None) -> dict[str, np.ndarray]:
        """Return arrays for the inputs: floats in [-1, 1], integers in [-3, 3]."""
        random = np.random.default_rng(self.seed if seed is None else seed)
        return {
            x.name: (
                random.uniform(-1, 1, x.shape)
                if x.dtype.is_float
                else random.integers(-3, 4, x.shape)
            ).astype(x.dtype.numpy)
            for x in self.graph.inputs
        }

    def run(self, graph: G.Graph | None = None, seed: int | None = None) -> tuple:
        """Return the outputs of the sample's graph, or of another with the same inputs."""
        return G.evaluate(graph or self.graph, self.feeds(seed))

    def __repr__(self) -> str:
        return f"Sample(G.parse('''{self.graph}'''), seed={self.seed})"


@dataclass
class _Builder:
    """The nodes so far, with bounds of their magnitudes."""

    draw: Callable
    dtype: str
    bounds: dict[G.Node, float] = field(default_factory=dict)
    inputs: list[G.Node] = field(default_factory=list)

    def input(self, shape: tuple[int, ...], dtype: str) -> G.Node:
        node = G.var(f"x{len(self.inputs)}", shape, dtype)
        self.inputs.append(node)
        self.bounds[node] = 1.0 if dtype.startswith("float") else 3.0
        return node

    def add(self, node: G.Node, bound: float) -> None:
        if bound > _LIMIT and node.dtype.is_float:
            node, bound = G.tanh(node), 1.0
        self.bounds.setdefault(node, bound)

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def chosen(self, items: list) -> object:
        return items[self.number(0, len(items) - 1)]

    def operand(self, accept: Callable[[G.Node], bool] = lambda node: True) -> G.Node:
        """Return a float node that fits; the newest are likeliest when examples shrink."""
        found = [n for n in self.bounds if n.dtype.is_float and accept(n)]
        return self.chosen(found[::-1]) if found else self._fresh(accept)

    def _fresh(self, accept: Callable[[G.Node], bool]) -> G.Node:
        for shape in ((2, 4, 5, 5), (3, 4), (4,), ()):
            probe = G.var("probe", shape, self.dtype)
            if accept(probe):
                return self.input(shape, self.dtype)
        raise AssertionError("no operand fits")

    def partner(self, a: G.Node) -> G.Node:
        """Return a node that broadcasts with `a`: another, a constant, or a slice of it."""

        def fits(node: G.Node) -> bool:
            try:
                return np.broadcast_shapes(node.shape, a.shape) is not None
            except ValueError:
                return False

        if self.number(0, 4) == 4:
            values = self.draw(st.lists(st.integers(-4, 4), min_size=1, max_size=1))
            node = G.const(np.full(a.shape[-1:], values[0] / 4 + 0.1, self.dtype))
            self.bounds.setdefault(node, 2.0)
            return node
        return self.operand(fits)


def _unary(b: _Builder) -> None:
    x = b.operand()
    m = b.bounds[x]
    table = {
        "neg": m, "abs": m, "relu": m, "tanh": 1.0, "sigmoid": 1.0, "erf": 1.0, "silu": m,
        "gelu": m, "sin": 1.0, "cos": 1.0, "exp": np.exp(min(m, 5)), "exp2": 2.0 ** min(m, 5),
        "log": 5.0, "log2": 5.0, "log1p": 5.0, "sqrt": m + 1, "rsqrt": 2.0, "reciprocal": 2.0,
    }  # fmt: skip
    name = b.chosen(list(table))
    if name in ("log", "log2", "log1p", "sqrt", "rsqrt", "reciprocal"):
        x = x * x + 0.5
        b.bounds.setdefault(x, m * m + 0.5)
    if name in ("exp", "exp2") and m > 5:
        x = G.tanh(x)
    b.add(getattr(G, name)(x), table[name])


def _binary(b: _Builder) -> None:
    x = b.operand()
    y = b.partner(x)
    m, n = b.bounds[x], b.bounds[y]
    name = b.chosen(["add", "sub", "mul", "div", "maximum", "minimum", "pow", "fma", "clamp"])
    if name == "div":
        b.add(x / (y * y + 1.0), m)
    elif name == "pow":
        b.add(G.pow(G.sigmoid(x) + 0.5, G.tanh(y)), 2.0)
    elif name == "fma":
        b.add(G.fma(x, y, x), m * n + m)
    elif name == "clamp":
        b.add(G.clamp(x, -0.4, 0.7), 0.7)
    else:
        b.add(getattr(G, name)(x, y), m * n if name == "mul" else m + n)


def _repeat(b: _Builder) -> None:
    """Build a node once more: work for the elimination of common subexpressions."""
    x = b.operand()
    if x.inputs:
        b.add(G.call(x.op, x.inputs, x.attrs), b.bounds[x])


def _choice(b: _Builder) -> None:
    """Select by a comparison of inputs, which passes do not round otherwise."""
    x = b.operand()
    y = b.partner(x)
    test = b.input(x.shape, b.dtype)
    name = b.chosen(["lt", "le", "gt", "ge", "eq", "ne"])
    cond = getattr(G, name)(test, 0.1234)
    cond = b.chosen([cond, G.logical_not(cond), G.logical_and(cond, test < 0.7)])
    if b.number(0, 1):
        b.add(G.where(cond, x, y), max(b.bounds[x], b.bounds[y]))
    else:
        b.add(G.cast(cond, b.dtype) * x, b.bounds[x])


def _steps(b: _Builder) -> None:
    x = b.input(b.operand().shape, b.dtype)
    b.add(getattr(G, b.chosen(["floor", "ceil", "trunc", "round"]))(x * 3.0), 3.0)


def _reduction(b: _Builder) -> None:
    x = b.operand(lambda n: n.ndim > 0)
    axes = sorted({b.number(0, x.ndim - 1) for _ in range(b.number(1, 2))})
    name = b.chosen(["sum", "mean", "max", "min", "variance", "prod"])
    count = int(np.prod([x.shape[a] for a in axes]))
    m = b.bounds[x]
    if name == "prod":
        x, m = G.tanh(x), 1.0
    bound = {"sum": m * count, "variance": m * m}.get(name, m)
    b.add(getattr(G, name)(x, axes, keepdims=bool(b.number(0, 1))), bound)


def _movement(b: _Builder) -> None:
    x = b.operand(lambda n: n.ndim > 0)
    name = b.chosen(
        ["transpose", "reshape", "flip", "expand_dims", "squeeze", "broadcast_to", "slice", "pad",
         "concatenate", "unslice"]
    )  # fmt: skip
    axis = b.number(0, x.ndim - 1)
    if name == "transpose":
        node = G.transpose(x, b.draw(st.permutations(range(x.ndim))))
    elif name == "reshape":
        node = G.reshape(x, b.chosen([(-1,), (x.shape[0], -1), (*x.shape, 1)]))
    elif name == "flip":
        node = G.flip(x, axis)
    elif name == "expand_dims":
        node = G.expand_dims(x, axis)
    elif name == "squeeze":
        node = G.squeeze(x)
    elif name == "broadcast_to":
        node = G.broadcast_to(x, (2, *x.shape) if x.ndim < 4 else x.shape)
    elif name == "slice":
        start, step = b.number(0, x.shape[axis] - 1), b.number(1, 2)
        node = x[(slice(None),) * axis + (slice(start, None, step),)]
    elif name == "pad":
        node = G.pad(x, [(b.number(0, 1), b.number(0, 1)) for _ in x.shape], 0.25)
    elif name == "concatenate":
        node = G.concatenate([x, G.flip(x, axis), x], axis)
    else:
        shape = [2 * extent + 1 for extent in x.shape]
        node = G.unslice(x, shape, [1] * x.ndim, [2] * x.ndim)
    b.add(node, max(b.bounds[x], 0.25))


def _matmul(b: _Builder) -> None:
    x = b.operand(lambda n: n.ndim >= 2)
    other = b.input((x.shape[-1], b.number(1, 3)), b.dtype)
    b.add(x @ other, b.bounds[x] * x.shape[-1])


def _image(b: _Builder) -> None:
    x = b.operand(lambda n: n.ndim == 4 and n.shape[1] in (2, 4, 8) and min(n.shape[2:]) >= 2)
    name = b.chosen(["conv2d", "max_pool2d", "avg_pool2d", "batch_norm", "layout_transform"])
    m, channels = b.bounds[x], x.shape[1]
    if name == "conv2d":
        groups = b.chosen([1, 2])
        w = b.input((4, channels // groups, 2, 2), b.dtype)
        strides, padding = b.number(1, 2), b.number(0, 1)
        b.add(G.conv2d(x, w, strides, padding, groups=groups), m * channels * 4)
    elif name == "batch_norm":
        gamma, beta = b.input((channels,), b.dtype), b.input((channels,), b.dtype)
        b.add(G.batch_norm(x, gamma, beta, 0.5), 2 * m + 1)
    elif name == "layout_transform":
        there = G.layout_transform(x, "NCHW", "NCHW2c")
        b.add(G.layout_transform(G.tanh(there), "NCHW2c", "NCHW"), 1.0)
    else:
        b.add(getattr(G, name)(x, 2, b.number(1, 2), b.number(0, 1)), m)


def _normalisation(b: _Builder) -> None:
    x = b.operand(lambda n: n.ndim > 0)
    name = b.chosen(["softmax", "log_softmax", "layer_norm"])
    if name == "layer_norm":
        gamma, beta = b.input(x.shape[-1:], b.dtype), b.input(x.shape[-1:], b.dtype)
        b.add(G.layer_norm(x, gamma, beta, eps=0.5), 2 * b.bounds[x] + 1)
    else:
        b.add(getattr(G, name)(x, b.number(0, x.ndim - 1)), 2 * b.bounds[x] + 5)


def _integers(b: _Builder) -> None:
    """Exact arithmetic on integers, which meets the floats in the end."""
    x = b.input((b.number(1, 4),), b.chosen(["int32", "int64"]))
    y = b.chosen([x * 2 + 1, x % 3, G.maximum(x, 1), G.bitand(x, 3), G.abs(x), G.relu(x)])
    y = b.chosen([y, G.sum(y), y + G.iota(y.shape[0], dtype=y.dtype), G.argmax(y, 0)])
    b.add(G.cast(y, b.dtype), 20.0)


def _tuples(b: _Builder) -> None:
    x = b.operand()
    y = b.operand()
    pair = G.make_tuple(x, y)
    b.add(pair[0] + G.sum(pair[1]) * 0.01, b.bounds[x] + b.bounds[y] * y.tensor_type.size)


def _constants(b: _Builder) -> None:
    """A node of constants alone, for folding."""
    values = b.draw(st.lists(st.integers(-8, 8), min_size=1, max_size=4))
    node = G.const(np.array(values, b.dtype) / 8)
    b.add(b.chosen([node, G.tanh(node * 2.0), node + G.full(node.shape, 0.5, b.dtype)]), 2.0)


def _fused(b: _Builder) -> None:
    """A call of a fused group of two ops."""
    x = b.operand()
    y = b.partner(x)
    p, q = G.var("p0", x.shape, x.dtype), G.var("p1", y.shape, y.dtype)
    body = G.Graph([p, q], [G.tanh(p + q)], "group")
    b.add(G.call_graph(body, [x, y]), 1.0)


SMOOTH = (
    _unary, _binary, _repeat, _choice, _reduction, _movement, _matmul, _image, _normalisation,
    _tuples, _constants,
)  # fmt: skip
ALL = (*SMOOTH, _steps, _integers)


@st.composite
def samples(
    draw: Callable,
    max_ops: int = 20,
    dtype: str = "float64",
    differentiable: bool = False,
    fused: bool = True,
) -> Sample:
    """Draw a graph of up to `max_ops` steps (a step makes one node or a few).

    Args:
        draw: given by hypothesis.
        max_ops: the number of steps.
        dtype: the type of floats.
        differentiable: leave out what has no gradient (floor…, integers).
        fused: whether calls of fused groups may stand in it.
    """
    b = _Builder(draw, dtype)
    b.input(b.chosen([(2, 4, 5, 5), (3, 4), (4,), (2, 1, 3)]), dtype)
    families = [*(SMOOTH if differentiable else ALL), *([_fused] if fused else [])]
    for _ in range(draw(st.integers(1, max_ops))):
        b.chosen(families)(b)
    made = [node for node in b.bounds if node.inputs] or list(b.bounds)
    outputs = [made[-1], *[b.chosen(made) for _ in range(b.number(0, 2))]]
    return Sample(G.Graph(b.inputs, outputs, "random"), draw(st.integers(0, 999)))
