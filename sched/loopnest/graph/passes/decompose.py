"""Decompose: ops made of smaller ones become these, so that a kernel can hold them.

The attribute ``decompose`` of an op is a function from a node to a node that computes the same by
other ops. 16-bit floats are widened first and rounded once at the end, as the op itself does.
"""

from __future__ import annotations

from loopnest.graph.data_layout import math_shape, parse_layout, shape_in
from loopnest.graph.dimensions import product
from loopnest.graph.node import Node
from loopnest.graph.operators import movement_ops as m
from loopnest.graph.operators import pointwise_ops as p
from loopnest.graph.operators import reduction_ops as r
from loopnest.graph.operators.creation import size
from loopnest.graph.operators.pool_phases import side_by_side
from loopnest.graph.passes import conv_phases  # noqa: F401 - registers how one is made of others
from loopnest.graph.passes.context import PassContext
from loopnest.graph.passes.decorators import register_pass
from loopnest.graph.passes.info import PassInfo
from loopnest.graph.passes.manager import FunctionPass
from loopnest.graph.passes.module import Unit
from loopnest.graph.program import Graph
from loopnest.graph.registry import call, get_attr, register_attr
from loopnest.graph.rewriting import rewrite
from loopnest.scalar.dtypes import float64


class Decompose(FunctionPass):
    """Replace each op that has the attribute ``decompose`` by the nodes that this function returns.

    softmax and log_softmax become a largest element, exponentials and their sum; a variance two
    means; a transposed convolution with strides a convolution; what max pooling spreads back its
    phases; a change of layout reshapes and transposes, also around windows of other layouts; a
    reshape that only adds or drops axes of extent 1 an expand_dims or a squeeze.

    >>> from loopnest.graph import Graph, count_ops, softmax, var
    >>> x = var("x", (4, 8))
    >>> list(count_ops(Decompose()(Graph([x], [softmax(x)]))))
    ['div', 'exp', 'max', 'sub', 'sum']
    """

    info = PassInfo("Decompose", opt_level=0)

    def transform_function(self, func: Graph, mod: Unit, ctx: PassContext) -> Graph:
        return rewrite(func, decomposed)


def decomposed(node: Node) -> Node:
    """Return what a node is made of; itself where its op has no attribute ``decompose``."""
    found = get_attr(node, "decompose", None)
    if found is None:
        return node
    result: Node = found(node)
    return result


@register_attr("softmax", "decompose")
def _softmax(node: Node) -> Node:
    powers = p.exp(_shifted(node))
    total = r.sum(powers, node.attrs["axis"], keepdims=True)
    return p.cast(p.div(powers, total), node.dtype)


@register_attr("log_softmax", "decompose")
def _log_softmax(node: Node) -> Node:
    shifted = _shifted(node)
    total = r.sum(p.exp(shifted), node.attrs["axis"], keepdims=True)
    return p.cast(p.sub(shifted, p.log(total)), node.dtype)


def _shifted(node: Node) -> Node:
    """Return the operand, widened, less its largest element along the axis."""
    wide = p.cast(node.inputs[0], node.dtype.compute)
    return p.sub(wide, r.max(wide, node.attrs["axis"], keepdims=True))


@register_attr("variance", "decompose")
def _variance(node: Node) -> Node:
    (x,) = node.inputs
    axes, keepdims = node.attrs["axis"], node.attrs["keepdims"]
    wide = p.cast(x, x.dtype.compute if x.dtype.is_float else float64)
    count = product([x.shape[axis] for axis in axes])
    center = p.sub(wide, r.mean(wide, axes, keepdims=True))
    total = r.sum(p.mul(center, center), axes, keepdims=keepdims)
    correction = node.attrs["correction"]
    if isinstance(count, int):
        return p.cast(p.div(total, float(max(count - correction, 0))), node.dtype)
    left = p.maximum(p.sub(size(count, wide.dtype), correction), 0)
    return p.cast(p.div(total, left), node.dtype)


@register_attr("layout_transform", "decompose")
def _layout_transform(node: Node) -> Node:
    return _layout_of(node.inputs[0], node.attrs["src_layout"], node.attrs["dst_layout"])


def _layout_of(x: Node, src_layout: str, dst_layout: str) -> Node:
    """Return a node in another layout, by reshapes and transposes."""
    if src_layout == dst_layout:
        return x
    src, dst = parse_layout(src_layout), parse_layout(dst_layout)
    extents = math_shape(x.shape, src)
    merged = m.transpose(x, [place for letter in dst.letters for place in src.places(letter)])
    merged = m.reshape(merged, [extents[letter] for letter in dst.letters])
    shape = shape_in(extents, dst)
    places = [place for letter in dst.letters for place in dst.places(letter)]
    split = m.reshape(merged, [shape[place] for place in places])
    return m.transpose(split, [places.index(place) for place in range(len(places))])


@register_attr(["conv2d", "max_pool2d", "avg_pool2d"], "decompose")
def _in_plain_layout(node: Node) -> Node:
    """Return windows over NCHW, and changes of layout around them."""
    layouts = [node.attrs["data_layout"], node.attrs.get("kernel_layout", "OIHW")]
    if layouts == ["NCHW", "OIHW"]:
        return node
    plain = [
        _layout_of(x, layout, wanted)
        for x, layout, wanted in zip(node.inputs, layouts, ("NCHW", "OIHW"), strict=False)
    ]
    kernel = {"kernel_layout": "OIHW"} if "kernel_layout" in node.attrs else {}
    found = call(node.op, plain, {**node.attrs, "data_layout": "NCHW", **kernel})
    return _layout_of(found, "NCHW", layouts[0])


@register_attr(["max_pool2d_backward", "max_pool2d_gather"], "decompose")
def _by_places(node: Node) -> Node:
    """Return what spreads or picks by the places of the largest elements, found first."""
    x, values = node.inputs
    largest = call("max_pool2d", (x,), node.attrs)
    places = call("max_pool2d_places", (x, largest), node.attrs)
    if node.op == "max_pool2d_gather":
        return call("max_pool2d_pick", (places, values), node.attrs)
    return by_phases(call("max_pool2d_spread", (places, values), {"shape": x.shape, **node.attrs}))


@register_attr("max_pool2d_spread", "decompose")
def by_phases(node: Node) -> Node:
    """Return what spreads by the phases of the strides, laid side by side.

    It is left as it is where the strides are 1, in other layouts, and where H or W is symbolic.
    """
    attrs, shape = node.attrs, node.shape
    static = all(isinstance(extent, int) and extent > 0 for extent in shape[2:])
    if attrs["data_layout"] != "NCHW" or {*attrs["strides"]} == {1} or not static:
        return node
    apart = call("max_pool2d_spread_phases", node.inputs, attrs)
    return side_by_side(apart, shape)


@register_attr("reshape", "decompose")
def _reshape(node: Node) -> Node:
    """Return a reshape that keeps the extents other than 1 without one."""
    (x,) = node.inputs
    if [e for e in x.shape if e != 1] != [e for e in node.shape if e != 1]:
        return node
    bare = m.squeeze(x)
    return m.expand_dims(bare, [place for place, e in enumerate(node.shape) if e == 1])


register_pass("Decompose", Decompose)
