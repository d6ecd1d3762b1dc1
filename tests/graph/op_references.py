"""What ops compute, by NumPy or a plain loop: the references of the table of ops."""

from __future__ import annotations

import math

import numpy as np

import loopnest.graph as G
from graph.case_makers import (
    integers,
)


def erf(x):
    return np.vectorize(math.erf)(x)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def conv(x, w, stride=(1, 1), pad=(0, 0, 0, 0), dilation=(1, 1), groups=1):
    """Convolution by loops over outputs and kernel."""
    x = np.pad(x, ((0, 0), (0, 0), (pad[0], pad[2]), (pad[1], pad[3])))
    o, i, kh, kw = w.shape
    oh = (x.shape[2] - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    ow = (x.shape[3] - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    y = np.zeros((x.shape[0], o, oh, ow))
    for n, k, p, q in np.ndindex(*y.shape):
        first = k // (o // groups) * i
        for c, a, b in np.ndindex(i, kh, kw):
            at = p * stride[0] + a * dilation[0], q * stride[1] + b * dilation[1]
            y[n, k, p, q] += x[(n, first + c, *at)] * w[k, c, a, b]
    return y


def pool(x, size, stride, pad, fold):
    """Pooling by a loop over windows; the padding is NaN, which `fold` ignores."""
    widths = ((0, 0), (0, 0), (pad, pad), (pad, pad))
    x = np.pad(x, widths, constant_values=np.nan)
    oh, ow = ((e - size) // stride + 1 for e in x.shape[2:])
    y = np.zeros((*x.shape[:2], oh, ow))
    for p, q in np.ndindex(oh, ow):
        rows = slice(p * stride, p * stride + size)
        y[:, :, p, q] = fold(x[:, :, rows, q * stride : q * stride + size], (2, 3))
    return y


def places(x, size, stride):
    """Return, for each window of a pool without padding, where its first largest element is."""
    oh, ow = ((e - size) // stride + 1 for e in x.shape[2:])
    found = {}
    for n, c, p, q in np.ndindex(*x.shape[:2], oh, ow):
        window = x[n, c, p * stride : p * stride + size, q * stride : q * stride + size]
        a, b = np.unravel_index(np.argmax(window), window.shape)
        found[n, c, p, q] = (n, c, p * stride + a, q * stride + b)
    return found


def place_numbers(x, largest):
    """Return, for each window of POOL, which of its elements is the first largest."""
    found = np.zeros(largest.shape, np.int32)
    for (n, c, p, q), (_, _, i, j) in places(x, 2, 1).items():
        found[n, c, p, q] = (i - p) * 2 + j - q
    return found


def by_number(numbers, at):
    return at[0], at[1], at[2] + numbers[at] // 2, at[3] + numbers[at] % 2


def spread_by_number(numbers, dy):
    dx = np.zeros((1, 2, 4, 3))
    for at in np.ndindex(*dy.shape):
        dx[by_number(numbers, at)] += dy[at]
    return dx


def picked_by_number(numbers, values):
    return np.array([values[by_number(numbers, at)] for at in np.ndindex(*numbers.shape)]).reshape(
        numbers.shape
    )


NUMBERS = integers((1, 2, 3, 2), low=0, high=4, dtype="int32")


def spread(x, dy):
    dx = np.zeros_like(x)
    for at, place in places(x, 2, 1).items():
        dx[place] += dy[at]
    return dx


def gathered(x, values):
    y = np.zeros((*x.shape[:2], x.shape[2] - 1, x.shape[3] - 1))
    for at, place in places(x, 2, 1).items():
        y[at] = values[place]
    return y


def multiplied(x, i, u):
    y = x.copy()
    np.multiply.at(y.reshape(-1), i, u)
    return y


def unsliced(x):
    y = np.zeros((5, 7))
    y[1:5:2, 0:7:3] = x
    return y


def blocked(x, factor):
    """NCHW as NCHW[factor]c."""
    n, c, h, w = x.shape
    return x.reshape(n, c // factor, factor, h, w).transpose(0, 1, 3, 4, 2)


def unblocked(x):
    n, c, h, w, factor = x.shape
    return x.transpose(0, 1, 4, 2, 3).reshape(n, c * factor, h, w)


def average(x):
    return pool(x, 3, 2, 1, np.nanmean)


def fused(x, y):
    p, q = G.var("p", x.shape, "float64"), G.var("q", y.shape, "float64")
    body = G.Graph([p, q], [G.tanh(p + q), p + q], "body")
    both = G.call_graph(body, [x, y])
    return both[0] * both[1]


def normalised(x, axes, eps):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)
