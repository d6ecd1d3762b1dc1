"""Arrays for the inputs of a graph."""

import numpy as np

import loopnest.graph as G


def feeds(graph, arrays):
    return {x.name: array for x, array in zip(graph.inputs, arrays, strict=True)}


def normal(graph, seed=0):
    random = np.random.default_rng(seed)
    return [random.normal(size=x.shape).astype(x.dtype.numpy) for x in graph.inputs]


def counter(value=0.0):
    return G.Variable(np.full((3,), value, np.float32), "s")
