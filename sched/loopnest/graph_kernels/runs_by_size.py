"""The steps of a compiled graph for each set of sizes that it is called with.

A plan is proved before it runs (`plan_proof`), so that what holds of the plan with sizes as symbols
holds of the places in memory too that storages get at each set of sizes. Where the caller has shown
that the shapes of the graph fit at all sizes that it comes with, as guards of torch do, the proof
is that of the plan with symbols; at sizes only the places in memory are looked at.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence

from loopnest.base.errors import InternalError, LaunchError
from loopnest.facade.kernel_class import Kernel
from loopnest.graph.graph_error import GraphError, Refused
from loopnest.graph.node import Node
from loopnest.graph.program import Graph
from loopnest.graph.size_binding import bound, graph_sizes, sizes_of_arrays
from loopnest.graph_kernels.code_gen import Generated
from loopnest.graph_kernels.plan_proof import ArenaProof, PlanFault, plan_faults
from loopnest.graph_kernels.sized_run import RunForm, SizedRun, StepMemory
from loopnest.graph_kernels.step_arrays import Runner, StepArrays
from loopnest.graph_kernels.step_plan import PlanOfSizes, SizedPlan, plan_steps
from loopnest.graph_kernels.variable_memory import VariableMemory

MAX_RUNS = 256
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
        guarded: whether the caller has shown that the shapes fit at the sizes that it comes with.
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
        guarded: bool = False,
    ) -> None:
        self.graph, self.target = graph, target
        self.subject = f"{graph.name}(...)"
        self.names = graph_sizes(calls)
        """The sizes of the graph."""
        self.memory = StepMemory(arrays, shared or VariableMemory(arrays, calls.variables))
        self.plan = plan_steps(calls, found, library, len(graph.outputs))
        """The plan of a step, with sizes where the graph has them."""
        self._plans, self._arena_proof = PlanOfSizes(self.plan), ArenaProof(self.plan)
        self._calls = calls
        self._kernels = {node: runner.kernel for node, runner in runners.items()}
        self._form = RunForm(
            self.subject, target, self.plan, runners, self.names, self.memory, aliases
        )
        count, proved = len(graph.outputs), guarded and bool(self.names)
        self._guarded = proved and not plan_faults(self.plan, self._kernels, count, {})
        """Whether the plan with symbols is proved, and sizes fit: else each plan at sizes is."""
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
            plan = self._guarded_plan(sizes) if self._guarded else self._bound_plan(sizes)
        except GraphError as error:
            raise LaunchError(self.subject, str(error)) from None
        return SizedRun(self._form, plan)

    def _bound_plan(self, sizes: Mapping[str, int]) -> SizedPlan:
        """Return the plan of the graph at sizes."""
        at_sizes = bound(self._calls, sizes)
        found = SizedPlan(self._plans, sizes, at_sizes.graph, at_sizes.nodes.__getitem__)
        self._require(self._faults(found))
        return found

    def _guarded_plan(self, sizes: Mapping[str, int]) -> SizedPlan:
        """Return the plan at sizes of the graph with symbols, which has been proved."""
        found = SizedPlan(self._plans, sizes, self._calls, lambda node: node)
        self._require(self._arena_proof.faults(found.rooms, found.arena, sizes))
        return found

    def _faults(self, found: SizedPlan) -> list[PlanFault]:
        """Return what is wrong with a plan at sizes."""
        count = len(self.graph.outputs)
        return plan_faults(found.plan, self.kernels_of(found), count, found.sizes)

    def kernels_of(self, found: SizedPlan) -> dict[Node, Kernel]:
        """Return the kernel that each call of a plan at sizes launches."""
        return {found.node_at(node): kernel for node, kernel in self._kernels.items()}

    def _require(self, faults: Sequence[PlanFault]) -> None:
        if faults:
            reason = f"the plan of its steps is wrong: {faults[0].message}"
            raise InternalError(self.subject, reason)

    def faults(self, numbers: tuple[int, ...] | None = None) -> list[PlanFault]:
        """Return what is wrong with the plan at sizes; by default, with all plans that there are.

        Raises:
            LaunchError: a node does not fit at these sizes.
        """
        runs = [self.at(numbers)] if numbers is not None else [*self.kept.values()]
        faults: list[PlanFault] = []
        if numbers is None and self.names:
            faults += plan_faults(self.plan, self._kernels, len(self.graph.outputs), {})
        for run in runs:
            faults += self._faults(run.sized)
        return faults
