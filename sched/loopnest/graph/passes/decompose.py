"""Decompose: ops made of smaller ones become these, so that a kernel can hold them.

The attribute ``decompose`` of an op is a function from a node to a node that computes the same by
other ops. 16-bit floats are widened first and rounded once at the end, as the op itself does.

A transposed convolution with strides (the gradient of a convolution's operand,
``conv2d_backward_data``, is one) becomes a convolution for each phase of the result. Elements of
the result that are a stride apart see the same elements of the kernel. So the kernel is cut into as
many kernels as there are phases, each without the zeros between the elements of x. A convolution
with all of them makes as many channels for one, and the last step lays these side by side. Where
phases see different numbers of elements of the kernel (3 x 3, a stride of 2: 4, 2, 2 and 1), most
of that would be zeros: then each has a convolution of its own. What stride and dilation have as a
common divisor leaves zeros in the result alone.

Source: Shi et al., "Is the deconvolution layer the same as a convolutional layer?", 2016
(arXiv:1609.07009).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product as product_of
from math import gcd, prod

from loopnest.graph.dimensions import at, mul, product
from loopnest.graph.node import Node
from loopnest.graph.operators import convolution as s
from loopnest.graph.operators import movement_ops as m
from loopnest.graph.operators.pooling import by_places, side_by_side
from loopnest.graph.passes.manager import FunctionPass, PassContext, PassInfo, register_pass
from loopnest.graph.program import Graph, Unit
from loopnest.graph.registry import call, get_attr, register_attr
from loopnest.graph.rewriting import rewrite


@dataclass(frozen=True, slots=True)
class _Axis:
    """A spatial axis of a transposed convolution.

    Element p of the result sees element k of the kernel at element i of x where
    ``stride * i + k * dilation == p + padding``.

    Args:
        stride: the number of phases.
        dilation: the distance of the kernel's elements.
        kernel: its elements.
        start: of the first of them in the kernel that is cut.
        taps: the elements of the kernel of a phase.
        front: elements in front of the result that are computed too.
        count: results of a phase.
        before: zeros in front of x.
        behind: zeros behind it.
    """

    stride: int
    dilation: int
    kernel: int
    start: int
    taps: int
    front: int
    count: int
    before: int
    behind: int


def _axis(stride: int, dilation: int, padding: int, kernel: int, own: int, out: int) -> _Axis:
    reach = (kernel - 1) * dilation + 1
    start = -padding % stride  # the phases then begin with the result
    if (reach + start - 1) // stride > (reach - 1) // stride:
        start = 0
    taps = (reach + start - 1) // stride + 1
    first, front = divmod(padding + start, stride)
    last = (padding + start + out - 1) // stride
    before, behind = taps - 1 - first, last - own + 1
    return _Axis(stride, dilation, kernel, start, taps, front, last - first + 1, before, behind)


@register_attr("conv_transposed", "decompose")
def conv_by_phases(node: Node) -> Node:
    """Return a transposed convolution as a convolution, where that has fewer products.

    It is left as it is where its strides are 1, its spatial extents are symbolic, or elements of x
    are not read.
    """
    x, w = node.inputs
    extents = (*x.shape[2:], *w.shape, *node.shape[2:])
    static = [e for e in extents if isinstance(e, int) and e > 0]
    if set(node.attrs["strides"]) == {1} or len(static) < len(extents):
        return node
    spread = _without_zeros(node)
    return _by_phases(node) if spread is None else spread


@register_attr("conv2d_backward_data", "decompose")
def gradient_by_phases(node: Node) -> Node:
    """Return the gradient of a convolution's operand by the phases of its strides.

    It is left as it is where a transposed convolution would be, in other layouts, and of groups,
    whose few channels gain less by a convolution than the steps around it cost.
    """
    (dy, w), attrs = node.inputs, node.attrs
    layouts = (attrs["data_layout"], attrs["kernel_layout"])
    plain = layouts == ("NCHW", "OIHW") and attrs["groups"] == 1
    if not plain or set(attrs["strides"]) == {1}:
        return node
    around = attrs["strides"], attrs["padding"][:2], attrs["dilation"]
    whole = s.conv_transposed(dy, w, node.shape[2:], *around)
    found = conv_by_phases(whole)
    return node if found is whole else found


def _without_zeros(node: Node) -> Node | None:
    """Return the result from its elements that are not zero; None where all phases have some."""
    (x, w), attrs = node.inputs, node.attrs
    # Elements of the kernel that there is one of lie at any distance from each other.
    steps = zip(attrs["strides"], attrs["dilation"], w.shape[2:], strict=True)
    apart = [stride if extent == 1 else dilation for stride, dilation, extent in steps]
    both = [gcd(*pair) for pair in zip(attrs["strides"], apart, strict=True)]
    firsts = [-(-p // g) for p, g in zip(attrs["padding"], both, strict=True)]
    rows = zip(firsts, both, attrs["padding"], node.shape[2:], strict=True)
    counts = [(p + out - 1) // g - first + 1 for first, g, p, out in rows]
    if set(both) == {1} or min(counts) < 1:
        return None
    strides, dilation = [
        [e // g for e, g in zip(found, both, strict=True)] for found in (attrs["strides"], apart)
    ]
    inner = s.conv_transposed(x, w, counts, strides, firsts, dilation, attrs["groups"])
    starts = [f * g - p for f, g, p in zip(firsts, both, attrs["padding"], strict=True)]
    return m.unslice(conv_by_phases(inner), node.shape, [0, 0, *starts], [1, 1, *both])


def _by_phases(node: Node) -> Node:
    (x, w), attrs = node.inputs, node.attrs
    kernel, groups = w.shape[2:], attrs["groups"]
    names = "strides", "dilation", "padding"
    rows = zip(*[attrs[name] for name in names], kernel, x.shape[2:], node.shape[2:], strict=True)
    axes = [_axis(*row) for row in rows]
    if any(a.before < 0 or a.behind < 0 for a in axes):
        return node
    if prod([a.taps for a in axes]) >= at(product(kernel), {}):
        return node
    if _differ(node, axes):
        return _side_by_side(_apart(node, axes), axes, node)
    found = s.conv(x, _kernels(w, axes, groups), 1, [(a.before, a.behind) for a in axes], 1, groups)
    return _side_by_side(found, axes, node)


CHANNELS = 32
"""The least number of result channels that fill the vectors of one phase's convolution: two vectors
of 16 floats. A convolution of all phases has so many channels for each."""
PHASES = 4
"""The most convolutions that are made of one, since each reads all of x."""
FEWER = 0.8
"""The largest part of the products, of those of one convolution for all phases, that pays for
several convolutions."""


def _differ(node: Node, axes: list[_Axis]) -> bool:
    """Whether phases see different numbers of taps, so many zeros that each has a convolution."""
    channels = node.shape[1]
    if node.attrs["groups"] > 1 or any(a.dilation > 1 for a in axes):
        return False
    if not isinstance(channels, int) or channels < CHANNELS:
        return False
    if prod([a.stride for a in axes]) > PHASES:
        return False
    taps = [[len(_own_taps(a, phase)) for phase in range(a.stride)] for a in axes]
    if any(0 in own for own in taps):
        return False
    around = [_around(a, phase) for a in axes for phase in range(a.stride)]
    if any(width < 0 for pair in around for width in pair):
        return False
    whole = prod([a.taps * a.stride for a in axes])
    return prod([sum(own) for own in taps]) <= FEWER * whole


def _own_taps(axis: _Axis, phase: int) -> range:
    """Return which of the taps of all phases one phase has: others are zeros of its kernel."""
    first = -(-max(axis.start - phase, 0) // axis.stride)
    return range(first, (axis.start + axis.kernel - 1 - phase) // axis.stride + 1)


def _around(axis: _Axis, phase: int) -> tuple[int, int]:
    """Return the zeros in front of x and behind it for the windows of one phase."""
    own = _own_taps(axis, phase)
    return axis.before - (axis.taps - own.stop), axis.behind - own.start


def _apart(node: Node, axes: list[_Axis]) -> Node:
    """Return [N, O * phases, *counts] of a convolution for each phase, with its own kernel."""
    x, w = node.inputs
    c, o = w.shape[:2]
    swap = (1, 0, *range(2, node.ndim))
    n = node.shape[0]
    found = []
    for phases in product_of(*[range(a.stride) for a in axes]):
        rows = [*zip(axes, phases, strict=True)]
        own = [_own_taps(*row) for row in rows]
        firsts = [
            a.stride * t.start + phase - a.start for (a, phase), t in zip(rows, own, strict=True)
        ]
        stops = [f + (len(t) - 1) * a.stride + 1 for f, t, a in zip(firsts, own, axes, strict=True)]
        kernel = m.slice(w, [0, 0, *firsts], [c, o, *stops], [1, 1, *[a.stride for a in axes]])
        kernel = m.transpose(m.flip(kernel, [*range(2, node.ndim)]), swap)
        one = s.conv(x, kernel, 1, [_around(*row) for row in rows])
        found.append(m.reshape(one, (n, o, 1, *one.shape[2:])))
    together = m.concatenate(found, 2)
    return m.reshape(together, (n, mul(o, len(found)), *found[0].shape[3:]))


def _kernels(w: Node, axes: list[_Axis], groups: int) -> Node:
    """Return [O * phases, C / groups, *taps] of w, which is [C, O / groups, *kernel]."""
    rank = len(axes)
    c, own = w.shape[:2]
    whole = [c, own, *[a.taps * a.stride for a in axes]]
    starts, steps = [0, 0, *[a.start for a in axes]], [1, 1, *[a.dilation for a in axes]]
    spread = w if [*w.shape] == whole else m.unslice(w, whole, starts, steps)
    cut = m.reshape(
        spread, (groups, c // groups, own, *[e for a in axes for e in (a.taps, a.stride)])
    )
    taps, phases = [3 + 2 * n for n in range(rank)], [4 + 2 * n for n in range(rank)]
    moved = m.transpose(cut, (0, 2, *phases, 1, *taps))
    moved = m.flip(moved, [3 + rank + n for n in range(rank)])
    channels = groups * own * prod([a.stride for a in axes])
    return m.reshape(moved, (channels, c // groups, *[a.taps for a in axes]))


def _side_by_side(found: Node, axes: list[_Axis], node: Node) -> Node:
    """Return [N, O, *space] of [N, O * phases, *counts]."""
    rank = len(axes)
    n, o = node.shape[:2]
    apart = m.reshape(found, (n, o, *[a.stride for a in axes], *[a.count for a in axes]))
    order = [place for axis in range(rank) for place in (2 + rank + axis, 2 + axis)]
    whole = m.reshape(
        m.transpose(apart, (0, 1, *order)), (n, o, *[a.count * a.stride for a in axes])
    )
    if whole.shape == node.shape:
        return whole
    stops = [a.front + out for a, out in zip(axes, node.shape[2:], strict=True)]
    return m.slice(whole, [0, 0, *[a.front for a in axes]], [n, o, *stops], [1] * (2 + rank))


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


for _op in ("layout_transform", "log_softmax", "softmax", "variance"):
    register_attr(_op, "decompose", get_attr(_op, "math"))
register_attr(["conv2d", "max_pool2d", "avg_pool2d"], "decompose", m.in_plain_layouts)
register_attr("max_pool2d_gather", "decompose", by_places)
register_attr("max_pool2d_backward", "decompose", lambda node: by_phases(by_places(node)))
register_pass("Decompose", Decompose)
