"""A table of what a step of training computes: op by op, as kernels, in torch; for the examples."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from rich.table import Table

import loopnest.graph as G
from loopnest.graph.cost import traffic
from loopnest.graph.dimensions import at
from loopnest.graph.node import LEAVES
from loopnest.graph.program import body_of
from loopnest.graph_kernels.kernel_fusion import grouped
from loopnest.graph_kernels.kernel_groups import GroupLimits


def fastest(run: Callable[[], object], steps: int) -> tuple[float, float]:
    """Return the milliseconds of the fastest of some calls, and of the processor in the least."""
    spent, worked = [], []
    for _ in range(steps):
        start, before = time.perf_counter(), time.process_time()
        run()
        worked.append(time.process_time() - before)
        spent.append(time.perf_counter() - start)
    return 1e3 * min(spent), 1e3 * min(worked)


class StepTable:
    """Rows of launches, bytes and milliseconds of one graph.

    The last column is the time of all cores, which other programs beside hardly change.

    Args:
        graph: a step.
        arrays: its inputs.
        steps: timed calls, of which the fastest counts.
        sizes: of the graph in these arrays.
    """

    def __init__(
        self,
        graph: G.Graph,
        arrays: Sequence[np.ndarray[Any, Any]],
        steps: int,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        self.graph, self.arrays, self.steps = graph, arrays, steps
        self.sizes = dict(sizes or {})
        columns = (
            "launches",
            "kernels",
            "library",
            "fallbacks",
            "MB moved",
            "ms a step",
            "ms of cores",
        )
        self.table = Table(graph.name, *columns, title="a step of training")

    def add_ops(self) -> None:
        """Add the step op by op, as NumPy evaluates it."""
        nodes = G.Decompose()(self.graph).nodes
        single = [n for n in nodes if n.op not in LEAVES and not n.is_tuple]
        feeds = {x.name: a for x, a in zip(self.graph.inputs, self.arrays, strict=True)}
        state: dict[str, np.ndarray[Any, Any]] = {}
        spent = fastest(lambda: G.evaluate(self.graph, feeds, state), 1)
        moved = sum(at(traffic(node), self.sizes) for node in single)
        self._add("op by op, NumPy", len(single), 0, 0, len(single), moved, *spent)

    def add_unfused(self) -> None:
        """Add the step with a kernel for each op."""
        self.add_compiled("a kernel an op", G.compile(unfused(self.graph)))

    def add_torch(self, names: Iterable[str], loss: Any, update: Any) -> None:
        """Add the step in torch: eager, and compiled by each backend; nothing without torch."""
        try:
            import torch_twins as twins
        except ImportError:
            return
        for name in names:
            step = twins.TorchStep(self.graph, loss, update, "" if name == "eager" else name)
            launches, moved = twins.counted(step, self.arrays)
            spent = fastest(partial(step, *self.arrays), self.steps)
            made = "" if name == "eager" else str(launches)
            shown = "torch eager" if name == "eager" else f"torch.compile, {name}"
            self.table.add_row(shown, str(launches), made, "", "", *_shown(moved, *spent))

    def add_compiled(self, name: str, fn: Any) -> None:
        """Add the step as a compiled graph runs it."""
        kernels = fn.kernels
        made = {id(launch.kernel) for launch in kernels if launch.kernel is not None}
        moved = sum(at(launch.bytes, self.sizes) for launch in kernels)
        spent = fastest(lambda: fn(*self.arrays), self.steps)
        library = sum(launch.library for launch in kernels)
        fallbacks = sum(bool(launch.fallback) for launch in kernels)
        self._add(name, len(kernels), len(made), library, fallbacks, moved, *spent)

    def _add(self, name: str, *numbers: float) -> None:
        *counts, moved, spent, worked = numbers
        self.table.add_row(name, *[str(n) for n in counts], *_shown(moved, spent, worked))


def _shown(moved: float, spent: float, worked: float) -> tuple[str, str, str]:
    return f"{moved / 1e6:.1f}", f"{spent:.2f}", f"{worked:.2f}"


def unfused(graph: G.Graph) -> G.Graph:
    """Return a graph of the same outputs that has a kernel for each of its ops."""
    calls = grouped(G.Decompose()(graph), GroupLimits(library=True, most=1)).graph
    calls = calls.with_attrs(subgraph={call: body_of(call) for call in calls.calls})
    return G.RTCGen()(G.CodeGen()(calls))
