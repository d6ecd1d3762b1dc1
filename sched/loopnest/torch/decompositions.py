"""Which operators of ATen torch takes apart before loopnest sees them."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

_ALSO = (
    "_adaptive_avg_pool2d_backward",
    "_batch_norm_no_update",
    "_batch_norm_with_update",
    "_batch_norm_with_update_functional",
    "_log_softmax_backward_data",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training",
    "_softmax_backward_data",
    "_to_copy",
    "addmm",
    "batch_norm_backward",
    "elu",
    "elu_backward",
    "gelu_backward",
    "hardsigmoid",
    "hardswish",
    "huber_loss",
    "huber_loss_backward",
    "leaky_relu_backward",
    "mish",
    "native_batch_norm",
    "native_batch_norm_backward",
    "native_dropout",
    "native_dropout_backward",
    "native_group_norm",
    "native_group_norm_backward",
    "native_layer_norm",
    "native_layer_norm_backward",
    "nll_loss_backward",
    "nll_loss_forward",
    "sigmoid_backward",
    "silu_backward",
    "softplus",
    "softplus_backward",
    "tanh_backward",
    "threshold_backward",
)
_OWN = (
    *("_to_copy", "addmm", "embedding_dense_backward", "index_select", "native_dropout"),
    *("square", "stack", "_scaled_dot_product_flash_attention_for_cpu"),
)
"""Operators that have a rule of their own, or that are to draw the numbers that torch draws."""


@cache
def decompositions() -> dict[Any, Any]:
    """Return the table that AOTAutograd takes operators apart by."""
    aten = torch.ops.aten
    found = dict(core_aten_decompositions())
    found.update(get_decompositions([getattr(aten, name) for name in _ALSO if hasattr(aten, name)]))
    own = [getattr(aten, name) for name in _OWN]
    return {key: value for key, value in found.items() if _packet(key) not in own}


def _packet(key: Any) -> Any:
    return getattr(key, "overloadpacket", key)
