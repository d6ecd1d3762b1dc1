"""What a pass of the lowering is, the state that the passes hand on, and the hook after each pass.

`lowering/pipeline` holds the passes themselves, one tuple in order. Everything that is told about
them (`Kernel.stages`, ``loopnest dump --stage``, the table in ARCHITECTURE.md) is read from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol, TypeAlias

from loopnest.kir import Program
from loopnest.lowering.indexing.indexer import Indexer
from loopnest.lowering.loops.guarded_tree import ThreadData, Tree
from loopnest.lowering.loops.loop_plan import LoopPlan
from loopnest.lowering.loops.phase_nest import Nest
from loopnest.lowering.memory.allocation import TensorStorage
from loopnest.lowering.reductions.block_exchange import FreshNames
from loopnest.lowering.reductions.grid_reduction import GridReduction
from loopnest.scalar.expr import Expr
from loopnest.scalar.facts import Facts
from loopnest.tensor.fusion import Fusion
from loopnest.tensor.tensor_view import TensorView

Text: TypeAlias = Callable[[], str]
"""Makes the text of a pass' result when somebody reads it."""


class State:
    """What the passes hand on; each attribute is set by the pass that is named here.

    Args:
        fusion: the math and its schedule.
        facts: what is known of its sizes.
        like: the state of the program that is right at all sizes, where this one is of sizes that
            its vectors divide: it has the same loops, and nothing is checked again. Without one,
            each lane has a test of its own.

    A kernel of several launches has a state of its own for each, whose plan has the tensors of that
    launch; they share buffers and names.

    Attributes:
        parts: the states of the launches (groups); none where it is one.
        whole: the state of the kernel: this one, but for the state of a part.
        plan: the loops (groups).
        names: names that are not taken yet (groups).
        nest: the ordered tree of loops and phases (nest).
        storage: the buffer of each tensor (allocation).
        tree: the nest with allocations (allocation), then its statements (indexing and later).
        flagged: in which last blocks each definition is computed (grid_reductions).
        meetings: how blocks meet, of each reduction over the grid (grid_reductions).
        indexer: what made the statements, and knows what vectors require (indexing).
        frame: the program without its body (indexing).
        data: which threads have data that tests load (predicates).
        idle: the conditions outside of which updates take nothing in (predicates).
        program: the whole program (predicates and later).
    """

    plan: LoopPlan
    names: FreshNames
    nest: Nest
    storage: dict[TensorView, TensorStorage]
    tree: Tree
    flagged: dict[TensorView, tuple[TensorView, ...]]
    meetings: dict[TensorView, GridReduction]
    indexer: Indexer
    frame: Program
    data: ThreadData
    idle: frozenset[Expr]
    program: Program

    def __init__(self, fusion: Fusion, facts: Facts, like: State | None = None) -> None:
        self.fusion, self.facts, self.like = fusion, facts, like
        self.texts: list[tuple[str, Text]] = []
        self.storage = {}
        self.parts: tuple[State, ...] = ()
        self.whole = self

    @property
    def launches(self) -> tuple[State, ...]:
        """The states that a pass goes through: those of the launches, or this one."""
        return self.parts or (self,)

    def split(self, plans: Sequence[LoopPlan]) -> None:
        """Give each of several launches a state of its own."""
        self.storage = {}
        made: list[State] = []
        for plan in plans:
            part = copy(self)
            part.plan, part.whole = plan, self
            made.append(part)
        self.parts = tuple(made)

    @property
    def requires(self) -> dict[str, tuple[Expr, Expr, Expr]]:
        """What vectors require: of each test its text, with the size, the width and the test."""
        return {k: v for state in self.launches for k, v in state.indexer.vectors.requires.items()}


@dataclass(frozen=True, slots=True)
class LoweringPass:
    """One step of the lowering.

    Args:
        name: as `Kernel.stages` and ``loopnest dump --stage`` call it.
        module: in `lowering`; its docstring says what the pass requires and ensures, with a small
            nest before and after it.
        result: what the pass adds, in a few words.
        why: the reason for its place in the order.
        run: the pass.
        text: of what it made; taken right after it.
    """

    name: str
    module: str
    result: str
    why: str
    run: Callable[[State], None]
    text: Callable[[State], Text]


class Watcher(Protocol):
    """Is told after each pass; `LOOPNEST_PASSES` chooses some (see `lowering/watchers`)."""

    def after(self, step: LoweringPass, state: State, seconds: float) -> None:
        """Look at the state after `step`, which took `seconds`."""

    def end(self, state: State) -> None:
        """Look at the state after the last pass."""


def perform(passes: Sequence[LoweringPass], state: State, watchers: Sequence[Watcher]) -> None:
    """Run passes in order; the one hook is called after each."""
    for step in passes:
        started = perf_counter()
        for part in state.launches:
            step.run(part)
        seconds = perf_counter() - started
        state.texts.append((step.name, _text(step, state)))
        for watcher in watchers:
            watcher.after(step, state, seconds)


def _text(step: LoweringPass, state: State) -> Text:
    """Return the text of what a pass made, of each launch in turn."""
    if not state.parts or step.name == "groups":
        return step.text(state)
    texts = [step.text(part) for part in state.parts]
    return lambda: "".join([f"# launch {n}\n{text()}" for n, text in enumerate(texts)])
