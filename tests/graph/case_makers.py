"""What a table of ops is made of: calls of ops, arrays for their operands, and what is expected."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import loopnest.graph as G


@dataclass(frozen=True)
class Case:
    """A call of an op: `arrays` makes its operands from a random generator."""

    op: str
    build: Callable
    expected: Callable
    arrays: Callable
    label: str = ""

    def __repr__(self) -> str:
        return f"{self.op}{'-' if self.label else ''}{self.label}"

    def operands(self, seed: int = 0) -> list[np.ndarray]:
        return [np.asarray(array) for array in self.arrays(np.random.default_rng(seed))]

    def graph(self, arrays: list[np.ndarray]) -> G.Graph:
        nodes = [G.var(f"x{i}", a.shape, a.dtype.name) for i, a in enumerate(arrays)]
        return G.Graph(nodes, [self.build(*nodes)])


def normal(*shapes):
    return lambda r: [r.normal(size=shape) for shape in shapes]


def positive(*shapes):
    return lambda r: [r.uniform(0.5, 2, size=shape) for shape in shapes]


def apart(*shapes):
    """Values of which no two are near each other, nor near 0: for kinks."""

    def make(r):
        count = sum(math.prod(shape) for shape in shapes)
        values = r.permutation(np.arange(count) - count / 2 + 0.25) * 0.37
        parts = np.split(values, np.cumsum([math.prod(shape) for shape in shapes])[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    return make


def between(r):
    """a and b with a / b far from integers."""
    b = r.uniform(1, 2, (4,)) * r.choice([-1, 1], 4)
    return [b * (r.integers(-3, 4, (3, 4)) + r.uniform(0.2, 0.8, (3, 4))), b]


def integers(*shapes, low=-5, high=6, dtype="int64"):
    return lambda r: [r.integers(low, high, shape).astype(dtype) for shape in shapes]


def quotient(a, b):
    """Return NumPy's a // b of integers; by 0 it is 0."""
    with np.errstate(divide="ignore"):
        return np.floor_divide(a, b)


def bools(*shapes):
    return lambda r: [r.integers(0, 2, shape).astype(bool) for shape in shapes]


def both(*makers):
    return lambda r: [array for maker in makers for array in maker(r)]


def case(op, arrays, expected, build=None, label=""):
    return Case(op, build or getattr(G, op), expected, arrays, label)


def transposed(linear, shape):
    """Return dx of sum(dy * linear(x)) for a linear function of x, element by element."""

    def pull(dy):
        dx = np.zeros(shape)
        for at in np.ndindex(*shape):
            unit = np.zeros(shape)
            unit[at] = 1
            dx[at] = np.sum(dy * linear(unit))
        return dx

    return pull
