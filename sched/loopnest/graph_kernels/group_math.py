"""The body of a fused group as a Fusion: inputs ``p0``, ``p1``…, outputs ``o0``, ``o1``…"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeAlias

import loopnest as ln
from loopnest.graph.dimensions import Shape, at, product
from loopnest.graph.node import Node, TupleType
from loopnest.graph.passes.decompose import decomposed
from loopnest.graph.program import Graph
from loopnest.graph.rewriting import rewrite
from loopnest.graph.size_binding import graph_sizes
from loopnest.graph_kernels.free_ops import read_apart
from loopnest.graph_kernels.op_math import MathValue, value_of
from loopnest.schedulers import Processor, Scheduler, scheduler_of

Inplace: TypeAlias = "tuple[tuple[int, int], ...]"
"""Pairs of an output's number and that of the input whose memory it takes."""
AxisNames: TypeAlias = "Sequence[Sequence[str | None]]"
_PARAMETER = re.compile(r"[po]\d+")


@dataclass(frozen=True, slots=True)
class GroupMath:
    """The math of a group.

    Args:
        fusion: unscheduled.
        inputs: for each input of the fusion, in order, the number of the body's input.
    """

    fusion: ln.Fusion
    inputs: tuple[int, ...]


def scheduled_by(
    body: Graph,
    target: str,
    processor: Processor | None,
    inplace: Inplace = (),
    names: AxisNames = (),
) -> tuple[GroupMath, Scheduler | None]:
    """Return the math of a body, and the scheduler that accepts it, if one does.

    An op that moves or repeats is one tensor of the math, unless no scheduler accepts that: then it
    is one for each of its readers, whose axes have nothing to do with each other's.

    Raises:
        NotSupported, LoopnestError: as `group_math`.
    """
    math = group_math(body, inplace, names=names)
    found = scheduler_of(math.fusion, target, processor)
    apart = body if found is not None else read_apart(body)
    if apart is not body:
        math = group_math(apart, inplace, names=names)
        found = scheduler_of(math.fusion, target, processor)
    return math, found


def group_math(
    body: Graph,
    inplace: Inplace = (),
    value: Callable[..., MathValue] = value_of,
    names: AxisNames = (),
) -> GroupMath:
    """Return the math of a body; an input that nothing reads is left out.

    Args:
        body: the graph.
        inplace: see `Inplace`.
        value: the math of a node, given that of its operands: `value_of`, or `value_alone`.
        names: of the axes of each input of the fusion, for those that are no strided views.

    Raises:
        NotSupported: an op has no attribute ``lower``.
        LoopnestError: the core does not take what an op becomes.
    """
    body = rewrite(body, decomposed)
    read = {x for node in body.nodes for x in node.inputs} | {*body.outputs}
    used = [number for number, x in enumerate(body.inputs) if x in read]
    # A size may have the name of a parameter.
    prefix = "_" if any(map(_PARAMETER.fullmatch, graph_sizes(body))) else ""
    with ln.Fusion(body.name) as fusion:
        values: dict[Node, MathValue] = {}
        for number, called in zip_longest(used, names):
            x = body.inputs[number]
            view, name = _view_of(x, body), f"{prefix}p{number}"
            if view is x:
                values[x] = fusion.input(name, x.shape, x.dtype, names=called)
            else:
                values[view] = _strided_input(fusion, name, view)
        for node in body.nodes:
            if node not in values and node.op != "var":
                values[node] = value(node, [values[x] for x in node.inputs])
        sources = dict(inplace)
        leaves = [leaf for x in body.outputs for leaf in _leaves(values[x], x)]
        for number, tensor in enumerate(leaves):
            source = sources.get(number)
            taken = None if source is None else fusion[f"{prefix}p{source}"]
            fusion.output(tensor, f"{prefix}o{number}", inplace=taken)
    return GroupMath(fusion, tuple(used))


def _view_of(x: Node, body: Graph) -> Node:
    """Return what is read of an input: its view at strides where nothing else reads it."""
    users = body.users[x]
    alone = len(users) == 1 and x not in body.outputs
    return users[0] if alone and users[0].op == "strided_view" else x


def _strided_input(fusion: ln.Fusion, name: str, view: Node) -> ln.TensorView:
    """Declare an input that is read at strides; its axes stand in the order of memory.

    What is repeated (of stride 0) is read once, and an array without gaps is an ordinary input.
    """
    strides: Shape = view.attrs["strides"]
    rows = [*enumerate(zip(view.shape, strides, strict=True))]
    real = [axis for axis, (extent, step) in rows if step != 0 and extent != 1]
    if all(isinstance(strides[axis], int) for axis in real):
        real.sort(key=lambda axis: -at(strides[axis], {}))
    shape = [view.shape[axis] for axis in real]
    steps = [strides[axis] for axis in real]
    dense = steps == [product(shape[place + 1 :]) for place in range(len(shape))]
    named = [step if isinstance(step, int) else str(step) for step in steps]
    found = fusion.input(name, shape, view.dtype, None if dense else named)
    order = [place for place, _ in sorted(enumerate(real), key=lambda row: row[1])]
    found = ln.permute(found, order) if order != [*range(len(order))] else found
    if len(real) < view.ndim:
        found = ln.broadcast(found, [axis not in real for axis in range(view.ndim)])
    return ln.expand(found, view.shape)


def _leaves(value: MathValue, node: Node) -> list[ln.TensorView]:
    """Return the tensors of an output; a number as one of its node's type."""
    if isinstance(value, tuple):
        assert isinstance(node.type, TupleType)
        return [leaf for item in value for leaf in _leaves(item, node)]
    if isinstance(value, ln.TensorView):
        return [value]
    return [ln.full((), value, node.dtype)]
