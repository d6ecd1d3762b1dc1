"""Gradients of convolutions, windows, pools, scans and softmax."""

from __future__ import annotations

from loopnest.graph.dimensions import Dim, add, mul, sub
from loopnest.graph.gradients.gradient_rules import not_differentiable
from loopnest.graph.graph_error import GraphError
from loopnest.graph.node import Attrs, Node, describe
from loopnest.graph.operators import convolution, creation, pooling, slicing, spatial_ops
from loopnest.graph.operators import movement_ops as m
from loopnest.graph.operators import pointwise_ops as p
from loopnest.graph.operators.pool_phases import side_by_side
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


def _around(node: Node) -> dict[str, object]:
    attrs = node.attrs
    found = {"stride": attrs["strides"], "padding": attrs["padding"]}
    return {**found, "dilation": attrs["dilation"], "groups": attrs["groups"]}


@register_attr("conv", "gradient")
def _conv_of_any_rank(node: Node, dy: Node) -> tuple[Node, Node]:
    x, w = node.inputs
    lows = [low for low, _ in node.attrs["padding"]]
    around = {**_around(node), "padding": lows}
    dx = spatial_ops.conv_transposed(dy, w, x.shape[2:], **around)  # type: ignore[arg-type]
    dw = spatial_ops.conv_weight(x, dy, w.shape[2:], **_around(node))  # type: ignore[arg-type]
    return dx, dw


@register_attr("conv_transposed", "gradient")
def _conv_transposed(node: Node, dy: Node) -> tuple[Node, Node]:
    x, w = node.inputs
    around = {**_around(node), "padding": _padding_of(node)}
    stops = [*dy.shape[:2], *_ends(node)]
    dy = slicing.slice(dy, [0] * dy.ndim, stops)
    dw = spatial_ops.conv_weight(dy, x, w.shape[2:], **around)  # type: ignore[arg-type]
    return spatial_ops.conv(dy, w, **around), dw  # type: ignore[arg-type]


def _ends(node: Node) -> list[Dim]:
    """Return where the last windows of a transposed convolution end in its result, or that ends."""
    return [
        add(extent, min(behind, 0))
        for extent, behind in zip(node.attrs["space"], _behind(node), strict=True)
    ]


def _padding_of(node: Node) -> list[tuple[int, int]]:
    """Return the padding of the convolution that a transposed one is the gradient of."""
    rows = zip(node.attrs["padding"], _behind(node), strict=True)
    return [(low, max(behind, 0)) for low, behind in rows]


def _behind(node: Node) -> list[int]:
    """Return how many elements of the last windows lie behind the result; negative: before its end.

    Raises:
        GraphError: that depends on a size.
    """
    (x, w), attrs = node.inputs, node.attrs
    found = []
    for axis, extent in enumerate(attrs["space"]):
        reach = mul(sub(w.shape[2 + axis], 1), attrs["dilation"][axis])
        last = mul(sub(x.shape[2 + axis], 1), attrs["strides"][axis])
        behind = sub(sub(add(add(last, reach), 1), attrs["padding"][axis]), extent)
        if not isinstance(behind, int):
            reason = f"its last window has {behind} elements behind axis {2 + axis}"
            raise GraphError(describe(node), reason, "bind the sizes: G.bind")
        found.append(max(behind, -extent) if isinstance(extent, int) else behind)
    return found


@register_attr("conv_weight", "gradient")
def _conv_weight_of_any_rank(node: Node, dw: Node) -> tuple[Node, Node]:
    x, above = node.inputs
    lows = [low for low, _ in node.attrs["padding"]]
    around = {**_around(node), "padding": lows}
    dx = spatial_ops.conv_transposed(above, dw, x.shape[2:], **around)  # type: ignore[arg-type]
    return dx, spatial_ops.conv(x, dw, **_around(node))  # type: ignore[arg-type]


@register_attr("unfold", "gradient")
def _unfold(node: Node, dy: Node) -> tuple[Node]:
    """Return dy with each place of the windows put back, all added."""
    (x,) = node.inputs
    attrs, axis = node.attrs, node.attrs["axis"]
    steps = [1] * x.ndim
    steps[axis] = attrs["stride"]
    parts = []
    for place in range(attrs["size"]):
        starts = [0] * x.ndim
        starts[axis] = place * attrs["dilation"]
        parts.append(slicing.unslice(dy[..., place], x.shape, starts, steps))
    total = parts[0]
    for part in parts[1:]:
        total = p.add(total, part)
    return (total,)


@register_attr("cumsum", "gradient")
def _cumsum(node: Node, dy: Node) -> tuple[Node]:
    return (call("cumsum", (dy,), {**node.attrs, "reverse": not node.attrs["reverse"]}),)


@register_attr("cumprod", "gradient")
def _cumprod(node: Node, dy: Node) -> tuple[Node]:
    """Return, for each factor, the products that it is part of, without it.

    They are made anew for each factor, since a quotient of products would be 0 / 0 beside a 0.
    """
    (x,) = node.inputs
    axis, last = node.attrs["axis"], node.ndim - 1
    order = [*[i for i in range(node.ndim) if i != axis], axis]
    back = [order.index(i) for i in range(node.ndim)]
    turned = [m.transpose(m.flip(t, axis) if node.attrs["reverse"] else t, order) for t in (x, dy)]
    factors, above = turned
    count = factors.shape[last]
    if node.attrs["exclusive"]:
        widths = [*[(0, 0)] * last, (0, 1)]
        above = slicing.pad(above[..., 1:], widths)
    places = creation.iota(count)
    later = p.gt(places[None, :], places[:, None])
    own = m.expand_dims(factors, last)
    between = call("cumprod", (p.where(later, own, 1.0),), {"axis": last + 1})
    reached = p.where(p.ge(places[None, :], places[:, None]), between, 0.0)
    total = sum(p.mul(reached, m.expand_dims(above, last)), last + 1)
    before = call("cumprod", (factors,), {"axis": last, "exclusive": True})
    found = m.transpose(p.mul(before, total), back)
    return (m.flip(found, axis) if node.attrs["reverse"] else found,)


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


@register_attr("max_pool2d_spread_phases", "gradient")
def _max_pool_spread_phases(node: Node, dy: Node) -> tuple[None, Node]:
    attrs = {key: value for key, value in node.attrs.items() if key != "shape"}
    whole = side_by_side(dy, node.attrs["shape"])
    return None, call("max_pool2d_pick", (node.inputs[0], whole), attrs)


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
