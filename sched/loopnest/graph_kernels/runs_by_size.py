"""The steps of a compiled graph for each set of sizes that it is called with.

A plan is proved before it runs (`plan_proof`), so that what holds of the plan with sizes as symbols
holds of the places in memory too that storages get at each set of sizes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence

from loopnest.errors import InternalError, LaunchError
from loopnest.facade import Kernel
from loopnest.graph.graph_error import GraphError, Refused
from loopnest.graph.node import Node
from loopnest.graph.program import Graph
from loopnest.graph.size_binding import bound, graph_sizes, sizes_of_arrays
from loopnest.graph_kernels.code_gen import Generated
from loopnest.graph_kernels.plan_proof import PlanFault, plan_faults
from loopnest.graph_kernels.sized_run import SizedRun, StepMemory
from loopnest.graph_kernels.step_arrays import Runner, StepArrays
from loopnest.graph_kernels.step_plan import plan_steps
from loopnest.graph_kernels.variable_memory import VariableMemory

MAX_RUNS = 32
"""Plans at other sizes are kept up to this number."""


class RunsBySize:
    """The runs of a graph; kernels are the same at all sizes.

    Args:
        graph: what was compiled.
        target: of its kernels.
        calls: the graph with its groups as calls; its first outputs are those of `graph`.
        found: the kernels of the calls.
        runners: the compiled kernel of each call.
        library: whether a library computes products of matrices.
        arrays: what the runs work on.
        aliases: outputs that may be memory of an input.
        shared: the variables, of a graph whose variables this one shares; None for its own.
    """

    def __init__(
        self,
        graph: Graph,
        target: str,
        calls: Graph,
        found: Generated,
        runners: Mapping[Node, Runner],
        library: bool,
        arrays: StepArrays,
        aliases: frozenset[int] = frozenset(),
        shared: VariableMemory | None = None,
    ) -> None:
        self.graph, self.target = graph, target
        self.subject = f"{graph.name}(...)"
        self.names = graph_sizes(calls)
        """The sizes of the graph."""
        self.memory = StepMemory(arrays, shared or VariableMemory(arrays, calls.variables))
        self.plan = plan_steps(calls, found, library, len(graph.outputs))
        """The plan of a step, with sizes where the graph has them."""
        self._calls, self._found, self._runners = calls, found, runners
        self._library, self._aliases = library, aliases
        self.kept: OrderedDict[tuple[int, ...], SizedRun] = OrderedDict()
        """The runs at the sizes of the last calls."""
        self._sizes_of: dict[Hashable, tuple[int, ...]] = {}
        self._last: tuple[tuple[int, ...], SizedRun] | None = None
        """The run of the last call."""
        if not self.names:
            self.at(())

    def numbers(
        self, shapes: Sequence[tuple[int, ...]], sizes: Mapping[str, int]
    ) -> tuple[int, ...]:
        """Return the value of each size; remembered by the shapes of the inputs.

        Raises:
            LaunchError: two shapes disagree, or nothing says what a size is.
        """
        if not self.names and not sizes:
            return ()
        key = (*shapes, *sizes.items())
        known = self._sizes_of.get(key)
        if known is None:
            try:
                found = sizes_of_arrays(self.graph, shapes, sizes)
            except Refused as refused:
                raise LaunchError(self.subject, refused.reason, refused.hint) from None
            known = tuple([found[name] for name in self.names])
            if len(self._sizes_of) > MAX_RUNS * 16:
                self._sizes_of.clear()
            self._sizes_of[key] = known
        return known

    def at(self, numbers: tuple[int, ...]) -> SizedRun:
        """Return the run at sizes: planned now if these are new.

        Raises:
            LaunchError: a node does not fit at these sizes.
        """
        if self._last is not None and self._last[0] == numbers:
            return self._last[1]
        run = self.kept.get(numbers) or self._planned(numbers)
        self.kept[numbers] = run
        self.kept.move_to_end(numbers)
        while len(self.kept) > MAX_RUNS:
            self.kept.popitem(last=False)
        self._last = (numbers, run)
        return run

    def _planned(self, numbers: tuple[int, ...]) -> SizedRun:
        sizes = dict(zip(self.names, numbers, strict=True))
        try:
            at_sizes = bound(self._calls, sizes)
        except GraphError as error:
            raise LaunchError(self.subject, str(error)) from None
        found = Generated(
            {at_sizes.nodes[call]: made for call, made in self._found.kernels.items()},
            {at_sizes.nodes[call]: why for call, why in self._found.refused.items()},
        )
        runners = {at_sizes.nodes[call]: runner for call, runner in self._runners.items()}
        plan = plan_steps(at_sizes.graph, found, self._library, len(self.graph.outputs))
        faults = plan_faults(plan, _kernels_of(runners), len(self.graph.outputs), sizes)
        if faults:
            raise InternalError(
                self.subject, f"the plan of its steps is wrong: {faults[0].message}"
            )
        return SizedRun(self.subject, self.target, plan, runners, sizes, self.memory, self._aliases)

    def faults(self, numbers: tuple[int, ...] | None = None) -> list[PlanFault]:
        """Return what is wrong with the plan at sizes; by default, with all plans that there are.

        Raises:
            LaunchError: a node does not fit at these sizes.
        """
        count = len(self.graph.outputs)
        runs = {numbers: self.at(numbers)} if numbers is not None else {**self.kept}
        faults: list[PlanFault] = []
        if numbers is None and self.names:
            faults += plan_faults(self.plan, _kernels_of(self._runners), count, {})
        for own, run in runs.items():
            sizes = dict(zip(self.names, own, strict=True))
            faults += plan_faults(run.plan, _kernels_of(run.runners), count, sizes)
        return faults


def _kernels_of(runners: Mapping[Node, Runner]) -> dict[Node, Kernel]:
    """Return the kernel that each call launches."""
    return {node: runner.kernel for node, runner in runners.items()}
