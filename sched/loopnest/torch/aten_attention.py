"""Rules of ATen's attention of the CPU, and of its gradient.

Torch's own decomposition of the first gives no logarithms of sums, which the second needs.
"""

from __future__ import annotations

import math

import loopnest.graph as G
from loopnest.graph.node import Node
from loopnest.scalar.dtypes import DType, bool_, float64, int64
from loopnest.torch.aten_table import Call, as_node, translates
from loopnest.torch.symbolic_sizes import NotTranslated


def _scores(call: Call, q: Node, k: Node) -> tuple[Node, Node]:
    """Return the scaled products of queries and keys, masked; and their scale."""
    if call["dropout_p"]:
        raise NotTranslated("with dropout")
    wide = q.dtype.compute
    scale = _scale(call, q, wide)
    scores = G.matmul(as_node(q, wide), G.transpose(as_node(k, wide), _swapped(k)))
    scores = G.mul(scores, scale)
    mask = call["attn_mask"]
    if mask is not None and mask.dtype is bool_:
        scores = G.where(mask, scores, as_node(-math.inf, wide))
    elif mask is not None:
        scores = G.add(scores, as_node(mask, wide))
    if call["is_causal"]:
        rows = G.reshape(G.iota(q.shape[-2], 0, 1, int64), (q.shape[-2], 1))
        columns = G.reshape(G.iota(k.shape[-2], 0, 1, int64), (1, k.shape[-2]))
        scores = G.where(G.ge(rows, columns), scores, as_node(-math.inf, wide))
    return scores, scale


def _scale(call: Call, q: Node, dtype: DType) -> Node:
    """Return what products are multiplied by: as given, or by the number of features."""
    given, width = call["scale"], q.shape[-1]
    if given is not None:
        return as_node(float(given), dtype)
    if isinstance(width, int):
        return as_node(1 / math.sqrt(width), dtype)
    return as_node(G.div(1.0, G.sqrt(G.size(width, float64))), dtype)


def _swapped(x: Node) -> list[int]:
    """Return the order of axes in which the last two are swapped."""
    return [*range(x.ndim - 2), x.ndim - 1, x.ndim - 2]


@translates("_scaled_dot_product_flash_attention_for_cpu.default")
def _attention(call: Call) -> tuple[Node, Node]:
    """Return softmax(q k^T) v, and the logarithm of each row's sum of exponentials."""
    q, k, v = call.args[:3]
    scores, _ = _scores(call, q, k)
    wide = scores.dtype
    largest = G.max(scores, -1, True)
    exponentials = G.exp(G.sub(scores, largest))
    total = G.sum(exponentials, -1, True)
    found = G.matmul(G.div(exponentials, total), as_node(v, wide))
    rows = G.squeeze(G.add(largest, G.log(total)), -1)
    return as_node(found, q.dtype), as_node(rows, wide)


@translates("_scaled_dot_product_flash_attention_for_cpu_backward.default")
def _attention_backward(call: Call) -> tuple[Node, Node, Node]:
    """Return the gradients of q, k and v.

    Source: Dao et al., "FlashAttention", 2022, algorithm 4.
    """
    dy, q, k, v, y, rows = call.args[:6]
    scores, scale = _scores(call, q, k)
    wide = scores.dtype
    dy, v, y = [as_node(x, wide) for x in (dy, v, y)]
    shares = G.exp(G.sub(scores, G.expand_dims(as_node(rows, wide), -1)))
    along = G.sum(G.mul(dy, y), -1, True)
    ds = G.mul(shares, G.sub(G.matmul(dy, G.transpose(v, _swapped(v))), along))
    ds = G.mul(ds, scale)
    dq = G.matmul(ds, as_node(k, wide))
    dk = G.matmul(G.transpose(ds, _swapped(ds)), as_node(q, wide))
    dv = G.matmul(G.transpose(shares, _swapped(shares)), dy)
    return as_node(dq, q.dtype), as_node(dk, q.dtype), as_node(dv, q.dtype)
