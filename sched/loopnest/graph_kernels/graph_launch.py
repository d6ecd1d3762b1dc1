"""What a compiled graph tells of its launches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import loopnest as ln
from loopnest.graph.cost import flops, traffic
from loopnest.graph.dimensions import Dim
from loopnest.graph.node import LEAVES
from loopnest.graph.program import body_of
from loopnest.graph_kernels.kernel_groups import is_library, product_of
from loopnest.graph_kernels.library_times import LibraryTimes
from loopnest.graph_kernels.plan_records import PlannedStep


@dataclass(frozen=True, slots=True)
class GraphLaunch:
    """A launch of a compiled graph: a kernel, a call of a library, or a fallback.

    Args:
        ops: the names of the ops that it computes, in order.
        bytes: what it reads and writes: an int, or a size expression.
        flops: operations, as `loopnest.graph.cost` weighs them, likewise.
        library: whether a library computes it.
        schedule: the name of the scheduler; "" where there is no kernel.
        kernel: the kernel; None where there is none.
        fallback: why NumPy evaluates it; "" where it does not.
        times: of an op that a library and kernels were measured at, both times.
    """

    ops: tuple[str, ...]
    bytes: Dim
    flops: Dim
    library: bool
    schedule: str
    kernel: ln.Kernel | None
    fallback: str
    times: str = ""

    def __str__(self) -> str:
        how = self.schedule or ("library" if self.library else f"fallback: {self.fallback}")
        times = f"; {self.times}" if self.times else ""
        return f"{', '.join(self.ops)}: {self.bytes} bytes, {self.flops} flops, {how}{times}"


def launch_of(step: PlannedStep, times: Mapping[str, LibraryTimes]) -> GraphLaunch:
    """Return what is listed of a step; `times` are those of products, by `product_of`."""
    node = step.node
    nodes = body_of(node).nodes if node.op == "fused" else (node,)
    ops = tuple([x.op for x in nodes if x.op not in LEAVES])
    made = step.made
    by_library = step.kind == "library"
    asked = [x for x in nodes if is_library(x)] if times else []
    told = [str(times[name]) for x in asked if (name := product_of(x)) in times]
    return GraphLaunch(
        ops,
        traffic(node),
        flops(node),
        by_library,
        made.schedule if made else "",
        made.kernel if made else None,
        "" if by_library else step.reason,
        step.reason if by_library and step.reason else "; ".join(told),
    )
