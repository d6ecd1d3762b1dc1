"""Groups with a reshape in them: values, and that a reshape ends no group where axes agree."""

import numpy as np
import pytest

import loopnest.graph as G
from graph_kernels.random_programs import assert_alike
from helpers.graph_arrays import feeds, normal
from loopnest.graph.node_origins import postorder

B, T, C, H = 2, 6, 8, 2
FLAT = G.var("flat", (B * T, C))
ROWS = G.var("rows", (B, T, C))
PLACES = G.var("places", (T, C))
WEIGHTS = G.var("weights", (C, C))
BIAS = G.var("bias", (C,))
IMAGES = G.var("images", (2, 6, 4, 5))
SCALE = G.var("scale", (6, 1, 1))
HEADS, VALUES = G.var("heads", (B, H, T, T)), G.var("values", (B, H, T, C // H))
TOKENS = G.var("tokens", (B, T), "int32")
TABLE = G.var("table", (12, C))
PRODUCT = G.matmul(FLAT, WEIGHTS) + BIAS


def heads(x):
    return G.transpose(G.reshape(x, (B, T, H, C // H)), (0, 2, 1, 3))


def met(x):
    return G.reshape(G.transpose(x, (0, 2, 1, 3)), (B * T, C))


def group_norm(x, groups=3):
    n, c, *sides = x.shape
    y = G.reshape(x, (n, groups, c // groups, *sides))
    center = y - G.mean(y, (2, 3, 4), keepdims=True)
    spread = G.mean(center * center, (2, 3, 4), keepdims=True)
    return G.reshape(center * G.rsqrt(spread + 1e-5), x.shape)


def embedded():
    rows = G.take(TABLE, G.reshape(TOKENS, B * T))
    return G.reshape(rows, (B, T, C)) + PLACES


def with_gradient():
    y = G.tanh(group_norm(G.exp(IMAGES)) * SCALE)
    return [y, *G.gradient(y, [IMAGES], G.var("dy", y.shape))]


CASES = {
    "after a product": ([G.relu(G.reshape(PRODUCT, (B, T, C)) + ROWS)], 1),
    "rows that are cut": ([G.relu(G.reshape(PRODUCT, (B, T, C)) + ROWS + PLACES)], 1),
    "before a product": ([G.matmul(G.reshape(G.exp(ROWS), (B * T, C)), WEIGHTS)], 1),
    "a layer norm": (
        [G.reshape(G.softmax(G.reshape(G.exp(FLAT), (B, T, C)) + ROWS), (B * T, C)) * 2.0],
        1,
    ),
    "a group norm": ([G.relu(group_norm(G.exp(IMAGES)) * SCALE)], 1),
    "a group norm and its gradient": (with_gradient(), 1),
    "heads": ([G.tanh(heads(G.exp(FLAT)))], 1),
    "heads of a product": ([G.tanh(heads(PRODUCT))], 1),
    "heads that meet": (
        [G.exp(met(G.tanh(heads(FLAT))))],
        1,
    ),
    "heads that nothing reads": ([heads(PRODUCT)], 1),
    "heads that a product has": ([met(HEADS @ VALUES)], 1),
    "heads before and after": (
        [HEADS @ VALUES, met(HEADS @ VALUES)],
        None,
    ),
    "heads between products": (
        [G.matmul(met(HEADS @ VALUES), WEIGHTS)],
        2,
    ),
    "both shapes are read": ([G.relu(G.reshape(PRODUCT, (B, T, C))), G.exp(PRODUCT)], 1),
    "both shapes are outputs": ([G.exp(FLAT), G.reshape(G.exp(FLAT), (B, T, C)) * 2.0], 1),
    "rows of a table": ([embedded()], 1),
    "a mean of all": ([G.mean(G.reshape(G.exp(FLAT), -1), 0), G.sum(G.exp(FLAT), 0)], None),
    "no parts in common": (
        [G.sum(G.reshape(G.exp(G.reshape(IMAGES, (12, 20))), (16, 15)), 1)],
        2,
    ),
    "a matrix and its transpose": (
        [G.reshape(G.exp(G.reshape(IMAGES, (2, 120))), (2, 12, 10))
         + G.transpose(G.reshape(G.exp(G.reshape(IMAGES, (2, 120))), (2, 10, 12)), (0, 2, 1))],
        None,
    ),
    "axes of extent 1": (
        [G.tanh(G.reshape(G.sum(G.exp(FLAT), 1, keepdims=True), (1, B, T, 1, 1)) * 2.0)],
        1,
    ),
    "a slice of what is cut": (
        [G.reshape(G.exp(FLAT), (B, T, C))[:, 1:3] * 2.0],
        None,
    ),
    "no element": ([G.exp(G.reshape(G.exp(G.var("none", (0, 6))), (3, 0, 2)))], None),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_values_and_kernels(name):
    outputs, kernels = CASES[name]
    inputs = [x for x in postorder(outputs) if x.op == "var"]
    graph = G.Graph(inputs, outputs)
    fn = G.compile(graph, target="c", library=False, optimize=0)
    arrays = normal(graph)
    arrays = [np.abs(a) % 12 if a.dtype.kind == "i" else a for a in arrays]
    assert_alike(fn(*arrays), G.evaluate(graph, feeds(graph, arrays)))
    if kernels is not None:
        assert len(fn.kernels) == kernels
