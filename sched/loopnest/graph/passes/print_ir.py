"""PrintIR: print the graph, as a pass in a `Sequential` or as an instrument around all passes."""

from __future__ import annotations

import sys
from typing import TextIO

from loopnest.graph.passes.context import PassContext, PassInstrument
from loopnest.graph.passes.decorators import register_pass
from loopnest.graph.passes.info import PassInfo
from loopnest.graph.passes.manager import FunctionPass
from loopnest.graph.passes.module import Unit, graphs_of
from loopnest.graph.printer import to_text
from loopnest.graph.program import Graph


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
