"""Instruments: what watches every pass. Timing, well-formedness, equality of values, printing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TextIO, TypeAlias

import numpy as np

from loopnest.graph.dimensions import at
from loopnest.graph.graph_error import GraphError
from loopnest.graph.node import Node, describe
from loopnest.graph.node_values import evaluate
from loopnest.graph.passes.manager import (
    FunctionPass,
    PassContext,
    PassInfo,
    PassInstrument,
    register_pass,
)
from loopnest.graph.printer import to_text
from loopnest.graph.program import Graph, Unit, graphs_of
from loopnest.graph.registry import short
from loopnest.graph.size_binding import graph_sizes
from loopnest.graph.state import check

Feeds: TypeAlias = Callable[[Graph, np.random.Generator], Mapping[str, object]]
Outputs: TypeAlias = "tuple[Any, dict[str, Any]]"


class WellFormed(PassInstrument):
    """Check graphs before and after every pass, also those that a pass returns unchanged.

    Raises:
        GraphError: one is ill-formed; the message names the pass and the node.
    """

    def run_before_pass(self, mod: Unit, info: PassInfo) -> None:
        self._check(mod, f"before pass {info.name}")

    def run_after_pass(self, mod: Unit, info: PassInfo) -> None:
        self._check(mod, f"after pass {info.name}")

    @staticmethod
    def _check(unit: Unit, when: str) -> None:
        for graph in graphs_of(unit):
            try:
                check(graph)
            except GraphError as error:
                raise GraphError(f"{when}, {error.subject}", error.reason, error.hint) from None


@dataclass(frozen=True, slots=True)
class Timed:
    """One run of a pass: seconds, and nodes (of all graphs) before and after."""

    name: str
    seconds: float
    before: int
    after: int


class PassTiming(PassInstrument):
    """Measure how long passes take.

    Attributes:
        profiles: what was measured, in order of time, since the context was entered.
    """

    def __init__(self) -> None:
        self.profiles: list[Timed] = []
        self._open: list[tuple[float, int]] = []

    def enter_pass_ctx(self) -> None:
        self.profiles, self._open = [], []

    def run_before_pass(self, mod: Unit, info: PassInfo) -> None:
        self._open.append((perf_counter(), _size(mod)))

    def run_after_pass(self, mod: Unit, info: PassInfo) -> None:
        start, size = self._open.pop()
        self.profiles.append(Timed(info.name, perf_counter() - start, size, _size(mod)))

    def run_failed_pass(self, mod: Unit, info: PassInfo) -> None:
        self._open.pop()

    def render(self) -> str:
        """Return a table: a line a run, then the total."""
        width = max([len(each.name) for each in self.profiles] + [5])
        lines = [
            f"{run.name:{width}}  {run.seconds * 1e3:9.3f} ms  {run.before} -> {run.after} nodes"
            for run in self.profiles
        ]
        total = sum(each.seconds for each in self.profiles)
        return "\n".join([*lines, f"{'total':{width}}  {total * 1e3:9.3f} ms"])


def _size(unit: Unit) -> int:
    return sum(len(graph.nodes) for graph in graphs_of(unit))


_TOLERANCES = {1: 0.3, 2: 2e-2, 4: 1e-4, 8: 1e-9}
"""Relative tolerance by the size of a float in bytes."""


class SameValues(PassInstrument):
    """Evaluate graphs before and after every pass that changes one, on fresh random inputs.

    Args:
        seed: of the inputs; each pass gets new ones.
        tolerance: relative to the largest magnitude of an output; by default 2e-2, 1e-4 or 1e-9
            for floats of 2, 4 or 8 bytes. Integers and bools must be equal.
        feeds: makes the inputs of a graph; by default floats in [-1, 1], integers 0 or 1.

    Raises:
        GraphError: names and types of inputs or outputs differ, or a value does.
    """

    def __init__(
        self, seed: int = 0, tolerance: float | None = None, feeds: Feeds | None = None
    ) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise GraphError(f"SameValues(seed={short(seed)})", "it is no integer >= 0")
        if tolerance is not None and not isinstance(tolerance, (int, float)):
            raise GraphError(f"SameValues(tolerance={short(tolerance)})", "it is no number")
        self.seed, self.tolerance = seed, tolerance
        self._feeds = feeds or random_feeds
        self._random = np.random.default_rng(seed)
        self._open: list[Unit] = []

    def enter_pass_ctx(self) -> None:
        self._random, self._open = np.random.default_rng(self.seed), []

    def run_before_pass(self, mod: Unit, info: PassInfo) -> None:
        self._open.append(mod)

    def run_failed_pass(self, mod: Unit, info: PassInfo) -> None:
        self._open.pop()

    def run_after_pass(self, mod: Unit, info: PassInfo) -> None:
        old = {graph.name: graph for graph in graphs_of(self._open.pop())}
        for graph in graphs_of(mod):
            before = old.get(graph.name, graph)
            if before is not graph:
                self._compare(before, graph, f"pass {info.name} on graph {graph.name}")

    def _compare(self, before: Graph, after: Graph, subject: str) -> None:
        _check_signature(before, after, subject)
        feeds = self._feeds(before, self._random)
        wanted, found = _values(before, feeds), _values(after, feeds)
        for number, (a, b) in enumerate(zip(wanted[0], found[0], strict=True)):
            place = f"output {number} ({describe(after.outputs[number])})"
            self._same(a, b, subject, place)
        if set(wanted[1]) != set(found[1]):
            names = sorted(set(wanted[1]) ^ set(found[1]))
            raise GraphError(subject, f"another set of variables is assigned: {names}")
        for name, value in wanted[1].items():
            self._same(value, found[1][name], subject, f"the variable {name}")

    def _same(self, wanted: Any, found: Any, subject: str, place: str) -> None:
        if isinstance(wanted, tuple):
            for number, (a, b) in enumerate(zip(wanted, found, strict=True)):
                self._same(a, b, subject, f"{place}[{number}]")
            return
        difference = _difference(wanted, found, self.tolerance)
        if difference:
            raise GraphError(
                subject,
                f"{place} has other values than before: {difference}",
                f"SameValues(seed={self.seed}) shows it again",
            )


def _check_signature(before: Graph, after: Graph, subject: str) -> None:
    for what, old, new in (
        ("inputs", before.inputs, after.inputs),
        ("outputs", before.outputs, after.outputs),
    ):
        shown = [
            ", ".join(f"{n.name + ': ' if what == 'inputs' else ''}{n.type}" for n in side)
            for side in (old, new)
        ]
        if shown[0] != shown[1]:
            raise GraphError(subject, f"the {what} were ({shown[0]}), they are ({shown[1]})")


def _values(graph: Graph, feeds: Mapping[str, object]) -> Outputs:
    state: dict[str, Any] = {}
    return evaluate(graph, feeds, state), state


def _difference(wanted: Any, found: Any, tolerance: float | None) -> str:
    """Return what differs, "" if nothing does."""
    exact = wanted.dtype.kind in "biu"
    if not wanted.size or (exact and np.array_equal(wanted, found)):
        return ""
    a, b = wanted.astype(np.float64), found.astype(np.float64)
    limit = tolerance if tolerance is not None else _TOLERANCES[wanted.dtype.itemsize]
    finite = np.abs(a[np.isfinite(a)])
    scale = max(float(finite.max()), 1.0) if finite.size else 1.0
    with np.errstate(all="ignore"):
        near = np.abs(a - b) <= (0 if exact else limit * scale)
    wrong = ~(near | (a == b) | (np.isnan(a) & np.isnan(b)))
    if not wrong.any():
        return ""
    where = tuple(np.argwhere(wrong)[0].tolist())
    return f"{int(wrong.sum())} of {a.size}; at {list(where)} {a[where]!s} became {b[where]!s}"


def random_feeds(graph: Graph, random: np.random.Generator) -> dict[str, object]:
    """Return random inputs: floats in [-1, 1], integers and bools 0 or 1; sizes are 3, 4, 5…"""
    sizes = {name: number for number, name in enumerate(graph_sizes(graph), 3)}
    return {
        x.name: _random_array(tuple([at(extent, sizes) for extent in x.shape]), x, random)
        for x in graph.inputs
    }


def _random_array(shape: tuple[int, ...], x: Node, random: np.random.Generator) -> Any:
    floats = x.dtype.is_float
    found = random.uniform(-1, 1, shape) if floats else random.integers(0, 2, shape)
    return found.astype(x.dtype.numpy)


class PrintIR(FunctionPass, PassInstrument):
    """Print graphs; large constants are left out.

    As a pass it prints where it stands and returns the same graph. As an instrument it prints
    before every pass (and after it, with `after`) which one it is and the graph.

    Args:
        header: a line printed first, as a pass.
        file: where to print; standard output by default.
        before: as an instrument, whether to print before a pass.
        after: as an instrument, whether to print after a pass.

    Source: TVM's documentation, "Pass Infrastructure" (both forms).
    """

    info = PassInfo("PrintIR", 0, changes_graph=False)

    def __init__(
        self,
        header: str = "",
        file: TextIO | None = None,
        before: bool = True,
        after: bool = False,
    ) -> None:
        self.header, self.file = header, file
        self.before, self.after = before, after

    def transform_function(self, func: Graph, mod: Unit, ctx: PassContext) -> Graph:
        self._print(self.header, func)
        return func

    def run_before_pass(self, mod: Unit, info: PassInfo) -> None:
        if self.before and info.name != "PrintIR":
            self._print(f"Running pass: {info}", mod)

    def run_after_pass(self, mod: Unit, info: PassInfo) -> None:
        if self.after and info.name != "PrintIR":
            self._print(f"After pass: {info}", mod)

    def _print(self, header: str, unit: Unit) -> None:
        parts = [header] if header else []
        parts += [to_text(graph, constants=False) for graph in graphs_of(unit)]
        print("\n".join(parts), file=self.file or sys.stdout)


register_pass("PrintIR", PrintIR)
