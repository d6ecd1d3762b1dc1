"""Rules of `SimplifyExpr` for ops that move elements, for tuples and layouts: all exact.

A rule rewrites one op, or two of a kind, into one op of the graph. Chains of several kinds are maps
of indices (`index_map`), which are compared and composed but need be no op.
"""

from __future__ import annotations

from loopnest.graph import operators
from loopnest.graph.dimensions import Dim, add, last_place, mul
from loopnest.graph.node import Node
from loopnest.graph.passes.identities import EXACT, rule
from loopnest.graph.registry import call


@rule(EXACT, "transpose")
def _transpose(node: Node) -> Node | None:
    (x,) = node.inputs
    axes = node.attrs["axes"]
    if axes == tuple(range(len(axes))):
        return x
    if x.op == "transpose":
        return operators.transpose(x.inputs[0], [x.attrs["axes"][axis] for axis in axes])
    return None


@rule(EXACT, "flip")
def _flip(node: Node) -> Node | None:
    (x,) = node.inputs
    axes = {axis for axis in node.attrs["axis"] if x.shape[axis] not in (0, 1)}
    if x.op == "flip":
        axes ^= set(x.attrs["axis"])
        x = x.inputs[0]
    elif axes and len(axes) == len(node.attrs["axis"]):
        return None
    return operators.flip(x, sorted(axes)) if axes else x


@rule(EXACT, "reshape", "expand_dims", "squeeze")
def _reshape(node: Node) -> Node | None:
    (x,) = node.inputs
    if node.shape == x.shape:
        return x
    if x.op not in ("reshape", "expand_dims", "squeeze"):
        return None
    source = x.inputs[0]
    if source.shape == node.shape:
        return source
    return operators.reshape(source, node.shape) if "reshape" in (node.op, x.op) else None


@rule(EXACT, "broadcast_to")
def _broadcast(node: Node) -> Node | None:
    (x,) = node.inputs
    if x.op == "broadcast_to":
        x = x.inputs[0]
    elif x.shape != node.shape:
        return None
    return operators.broadcast_to(x, node.shape)


@rule(EXACT, "slice")
def _slice(node: Node) -> Node | None:
    (x,) = node.inputs
    if node.shape == x.shape:
        return x
    starts, steps = node.attrs["starts"], node.attrs["steps"]
    if x.op == "unslice" and node.shape == x.inputs[0].shape:
        same = all(x.attrs[key] == node.attrs[key] for key in ("starts", "steps"))
        return x.inputs[0] if same else None
    if x.op != "slice":
        return None
    inner = list(zip(x.attrs["starts"], x.attrs["steps"], strict=True))
    first = [add(a, mul(b, start)) for start, (a, b) in zip(starts, inner, strict=True)]
    step = [own * b for own, (_, b) in zip(steps, inner, strict=True)]
    return operators.slice(x.inputs[0], first, _stops(first, step, node), step)


def _stops(starts: list[Dim], steps: list[int], node: Node) -> list[Dim]:
    """Return the least stops that give the shape of a node."""
    parts = zip(starts, steps, node.shape, strict=True)
    return [last_place(*part) for part in parts]


@rule(EXACT, "pad", "unslice", "concatenate")
def _nothing_added(node: Node) -> Node | None:
    x = node.inputs[0]
    whole = node.shape == x.shape
    if node.op == "concatenate":
        parts = [part for part in node.inputs if part.shape[node.attrs["axis"]] != 0]
        if len(parts) == len(node.inputs) and len(parts) > 1:
            return None
        return call("concatenate", parts, node.attrs) if len(parts) > 1 else (parts or [x])[0]
    return x if whole else None


@rule(EXACT, "layout_transform")
def _layout(node: Node) -> Node | None:
    (x,) = node.inputs
    src, dst = node.attrs["src_layout"], node.attrs["dst_layout"]
    if x.op == "layout_transform" and x.attrs["dst_layout"] == src:
        return operators.layout_transform(x.inputs[0], x.attrs["src_layout"], dst)
    return x if src == dst else None


@rule(EXACT, "get_item")
def _field(node: Node) -> Node | None:
    (x,) = node.inputs
    return x.inputs[node.attrs["index"]] if x.op in ("tuple", "group") else None
