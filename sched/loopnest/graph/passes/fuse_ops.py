"""FuseOps: ops that one kernel can compute become one function.

The design is that of TVM's pass (src/relay/transforms/fuse_ops.cc, to v0.18): an indexed forward
graph (`indexed_graph`), its post-dominator tree (`dominators`), three phases that merge ops with
their post-dominators by union-find (`fuse_ops_groups`), and a graph that calls each group
(`fuse_ops_build`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock

from loopnest.graph.graph_error import GraphError
from loopnest.graph.passes.context import PassContext
from loopnest.graph.passes.decorators import register_pass
from loopnest.graph.passes.fuse_ops_build import fused_graph
from loopnest.graph.passes.fuse_ops_groups import Partition, partition
from loopnest.graph.passes.indexed_graph import ForwardGraph, forward_graph
from loopnest.graph.passes.info import PassInfo
from loopnest.graph.passes.manager import FunctionPass
from loopnest.graph.passes.module import Unit
from loopnest.graph.passes.options import register_option
from loopnest.graph.program import Graph, body_of
from loopnest.graph.structural import structural_key

register_option(
    "FuseOps.max_depth", 256, doc="the largest number of ops in a group, an integer >= 1"
)

_KEPT = 32
"""So many partitions are remembered; the key of one takes about 400 bytes an op."""

_PARTITIONS: OrderedDict[Hashable, Partition] = OrderedDict()
_LOCK = Lock()


class FuseOps(FunctionPass):
    """Turn groups of ops that one kernel can compute into functions.

    Every op that computes then stands in a function, alone where nothing fuses with it; tuples,
    and fields of tuples from other functions, stay between them. Calls of functions are left as
    they are, so that a second run changes nothing.

    Args:
        fuse_opt_level: 0 makes a function of every single op; from 1 on groups are fused; -1 takes
            the `opt_level` of the context.
        max_depth: the largest number of ops in a group; None takes the option
            ``FuseOps.max_depth``, which is 256.

    Raises:
        GraphError: an argument out of range.

    >>> from loopnest.graph import tanh, var
    >>> x = var("x", (4,))
    >>> g = FuseOps()(Graph([x], [tanh(x * x + 1.0)]))
    >>> g.outputs, g.functions[0].outputs
    ((<@fused0(x): float32[4]>,), (<tanh(add(…)): float32[4]>,))

    Source: TVM's `relay.transform.FuseOps` (src/relay/transforms/fuse_ops.cc, to v0.18).
    """

    info = PassInfo("FuseOps", opt_level=1)

    def __init__(self, fuse_opt_level: int = 2, max_depth: int | None = None) -> None:
        _check_integer("fuse_opt_level", fuse_opt_level, -1)
        if max_depth is not None:
            _check_integer("max_depth", max_depth, 1)
        self.fuse_opt_level, self.max_depth = fuse_opt_level, max_depth

    def transform_function(self, func: Graph, mod: Unit, ctx: PassContext) -> Graph:
        level = ctx.opt_level if self.fuse_opt_level < 0 else self.fuse_opt_level
        return fused_graph(func, *detect(func, level, depth_of(self.max_depth, ctx)))


class NnvmFusion(FuseOps):
    """FuseOps under the name that NNVM gave it: the result knows its ``subgraph``.

    ``graph.attrs["subgraph"]`` maps each call of a function to its body.
    """

    info = PassInfo("Fusion", opt_level=1, provides=("subgraph",))

    def transform_function(self, func: Graph, mod: Unit, ctx: PassContext) -> Graph:
        graph = super().transform_function(func, mod, ctx)
        if "subgraph" in graph.attrs:
            return graph
        return graph.with_attrs(subgraph={node: body_of(node) for node in graph.calls})


def detect(graph: Graph, level: int, max_depth: int) -> tuple[ForwardGraph, Partition]:
    """Return the forward graph and its groups, those of an equal structure if they are known."""
    ops = forward_graph(graph)
    key = (structural_key(graph), ops.patterns, min(level, 1), max_depth)
    with _LOCK:
        found = _PARTITIONS.pop(key, None) or partition(ops, max_depth, level)
        _PARTITIONS[key] = found  # the newest last
        while len(_PARTITIONS) > _KEPT:
            _PARTITIONS.popitem(last=False)
    return ops, found


def depth_of(max_depth: int | None, ctx: PassContext) -> int:
    """Return the largest number of ops in a group.

    Raises:
        GraphError: the option of the context is out of range.
    """
    if max_depth is not None:
        return max_depth
    found: int = ctx.option("FuseOps.max_depth")
    return _check_integer("max_depth", found, 1)


def _check_integer(name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise GraphError(f"FuseOps({name}={value!r})", f"it must be an integer >= {least}")
    return value


register_pass("FuseOps", FuseOps)
register_pass("Fusion", NnvmFusion)
