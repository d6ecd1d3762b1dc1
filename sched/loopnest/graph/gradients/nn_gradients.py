"""Gradients of convolutions, pools and softmax: each op's is made of its partners."""

from __future__ import annotations

from loopnest.graph.gradients.gradient_rules import not_differentiable
from loopnest.graph.node import Attrs, Node
from loopnest.graph.operators import convolution, pooling
from loopnest.graph.operators import pointwise_ops as p
from loopnest.graph.operators.reduction_ops import sum
from loopnest.graph.registry import call, register_attr


def _conv_attrs(node: Node) -> Attrs:
    return {key: node.attrs[key] for key in convolution.CONV_ATTRS}


@register_attr("conv2d", "gradient")
def _conv(node: Node, dy: Node) -> tuple[Node, Node]:
    x, w = node.inputs
    attrs = _conv_attrs(node)
    dx = convolution.conv2d_backward_data(dy, w, x.shape, **attrs)
    return dx, convolution.conv2d_backward_weight(x, dy, w.shape, **attrs)


@register_attr("conv2d_backward_data", "gradient")
def _conv_data(node: Node, dy: Node) -> tuple[Node, Node]:
    above, w = node.inputs
    attrs = _conv_attrs(node)
    weight = convolution.conv2d_backward_weight(dy, above, w.shape, **attrs)
    return call("conv2d", (dy, w), attrs), weight


@register_attr("conv2d_backward_weight", "gradient")
def _conv_weight(node: Node, dy: Node) -> tuple[Node, Node]:
    x, above = node.inputs
    attrs = _conv_attrs(node)
    data = convolution.conv2d_backward_data(above, dy, x.shape, **attrs)
    return data, call("conv2d", (x, dy), attrs)


@register_attr("max_pool2d", "gradient")
def _max_pool(node: Node, dy: Node) -> tuple[Node]:
    return (pooling.max_pool2d_backward(node.inputs[0], dy, **node.attrs),)


@register_attr("max_pool2d_backward", "gradient")
def _max_pool_backward(node: Node, dy: Node) -> tuple[None, Node]:
    return None, pooling.max_pool2d_gather(node.inputs[0], dy, **node.attrs)


@register_attr("max_pool2d_gather", "gradient")
def _max_pool_gather(node: Node, dy: Node) -> tuple[None, Node]:
    return None, pooling.max_pool2d_backward(node.inputs[0], dy, **node.attrs)


not_differentiable(("max_pool2d_places",), "its value is an integer")


@register_attr("max_pool2d_spread", "gradient")
def _max_pool_spread(node: Node, dy: Node) -> tuple[None, Node]:
    attrs = {key: value for key, value in node.attrs.items() if key != "shape"}
    return None, call("max_pool2d_pick", (node.inputs[0], dy), attrs)


@register_attr("max_pool2d_pick", "gradient")
def _max_pool_pick(node: Node, dy: Node) -> tuple[None, Node]:
    places, values = node.inputs
    return None, call("max_pool2d_spread", (places, dy), {"shape": values.shape, **node.attrs})


@register_attr("avg_pool2d", "gradient")
def _avg_pool(node: Node, dy: Node) -> tuple[Node]:
    return (pooling.avg_pool2d_backward(dy, node.inputs[0].shape, **node.attrs),)


@register_attr("avg_pool2d_backward", "gradient")
def _avg_pool_backward(node: Node, dy: Node) -> tuple[Node]:
    attrs = {key: value for key, value in node.attrs.items() if key != "shape"}
    return (call("avg_pool2d", (dy,), attrs),)


@register_attr("softmax", "gradient")
def _softmax(node: Node, dy: Node) -> tuple[Node]:
    common = sum(p.mul(dy, node), node.attrs["axis"], keepdims=True)
    return (p.mul(node, p.sub(dy, common)),)


@register_attr("log_softmax", "gradient")
def _log_softmax(node: Node, dy: Node) -> tuple[Node]:
    total = sum(dy, node.attrs["axis"], keepdims=True)
    return (p.sub(dy, p.mul(p.exp(node), total)),)
