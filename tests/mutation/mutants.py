"""One change at a time in a loop nest: programs that are wrong, to judge what checks them.

Each mutant is a program with a text that says what was changed. Not every one is wrong: some
changes make no difference to any result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from loopnest.kir import (
    Allocate,
    Arrive,
    Barrier,
    Collective,
    Commit,
    If,
    Issue,
    Launch,
    Let,
    Loop,
    Program,
    Shuffle,
    Stmt,
    Store,
    Tile,
    Until,
    Wait,
)
from loopnest.kir import walk as statements
from loopnest.kir.lowered import Lowered
from mutation.buffer_mutants import aliased, of_allocation, of_buffer
from mutation.interfaces import changed_interfaces
from mutation.mutant import Mutant
from mutation.statement_mutants import (
    clobbered,
    of_let,
    of_store,
    of_test,
    of_until,
    swapped_values,
)
from mutation.thread_mutants import (
    of_arrival,
    of_barrier,
    of_collective,
    of_commit,
    of_issue,
    of_launch,
    of_loop,
    of_one_launch,
    of_shuffle,
    of_tile,
    of_wait,
    swapped_neighbours,
    swapped_threads,
)

if TYPE_CHECKING:
    import pytest

CORE = frozenset({
    "predicate", "init", "identity", "store", "index", "claim", "bound", "buffer", "threads",
    "order",
})  # fmt: skip
"""Kinds of changes that every nest has a place for."""

KINDS = CORE | {
    "launch", "stride", "vector", "barrier", "shuffle", "arrival", "alias", "redirect", "clobber",
    "type", "interface", "values", "constant", "operation", "swizzle", "atomic",
    "flight", "tile", "end",
}  # fmt: skip
"""All kinds.

predicate   drop, weaken (< to <=) or narrow a term of a test or of a `where`; an index off in it
init        drop the store that a reduction starts with
identity    start a reduction from another value, or fill a copy with it
store       drop any other store
index       drop or change a term of an index of a store or a load
claim       change what a statement declares: the coordinate of a store, the threads of a collective
            or which of its results is which, the instruction and the operands of a tile
bound       a loop that runs once more or less
buffer      one element less along an axis
threads     swap two launch dimensions
order       swap two neighbouring statements
launch      one thread or block more or less along a launch dimension; of several launches one
            left out, two swapped, or two in one
stride      rows that overlap, or lie further apart than the buffer has room for
vector      a vector of twice or half the width
barrier     remove it, narrow its scope, move it, let some threads pass by
shuffle     another offset or mode
arrival     another count or counter of an `Arrive`
alias       let two shared buffers lie in one space
redirect    store to another buffer
clobber     store what a reduction starts from once more, when its value is being computed
swizzle     two elements in one place, or a store that goes past the swizzle
type        elements of another type in a buffer that is no parameter
values      swap the values of two neighbouring stores
interface   what a caller sees: parameters, their types and order, outputs, memory, assumptions
constant    another literal in a value
operation   another operation in a value
flight      copies in flight: an issue, a commit or a wait dropped or moved, a wait for more or less
tile        drop it, run its body without it, put it under a test; digits of a fragment swapped
end         a loop ends by the opposite condition, one step off, or before its last store
atomic      a load, a computation and a store in place of an update in one step
"""


def mutants(program: Program, kinds: frozenset[str] = CORE) -> Iterator[Mutant]:
    """Yield every mutant of `program` of these kinds."""
    for mutant in _mutants(program):
        if mutant.kind in kinds:
            yield mutant


def _mutants(program: Program) -> Iterator[Mutant]:
    nodes = list(dict.fromkeys(node for node, _ in statements(program.body)))
    for node in nodes:
        yield from _OF[type(node)](program, node)
    for param in program.params:
        if param.kind == "workspace" and param.buffer is not None:
            yield from of_buffer(program, param.buffer, None)
    yield from swapped_threads(program, nodes)
    yield from swapped_neighbours(program)
    yield from swapped_values(program)
    yield from of_launch(program)
    yield from aliased(program, nodes)
    yield from clobbered(program, nodes)
    for text, changed in changed_interfaces(program):
        yield Mutant("interface", text, changed)


def break_lowering(monkeypatch: pytest.MonkeyPatch, kind: str, text: str) -> None:
    """Let every kernel that is lowered be its first mutant of this kind whose text begins so.

    Kernels that have none stay as they are; no kernel is proved before it is compiled.
    """
    pipeline = import_module("loopnest.lowering.pipeline")
    real = pipeline.lower

    def broken(fusion: object) -> Lowered:
        lowered: Lowered = real(fusion)
        for mutant in mutants(lowered.program, KINDS):
            if mutant.kind == kind and mutant.text.startswith(text):
                return replace(lowered, program=mutant.program)
        return lowered

    monkeypatch.setenv("LOOPNEST_VERIFY", "0")
    monkeypatch.setattr(pipeline, "lower", broken)


_OF: Mapping[type[Stmt], Callable[[Program, Any], Iterator[Mutant]]] = {
    If: of_test,
    Store: of_store,
    Loop: of_loop,
    Allocate: of_allocation,
    Let: of_let,
    Barrier: of_barrier,
    Shuffle: of_shuffle,
    Arrive: of_arrival,
    Collective: of_collective,
    Issue: of_issue,
    Commit: of_commit,
    Wait: of_wait,
    Tile: of_tile,
    Until: of_until,
    Launch: of_one_launch,
}
"""What may be changed in a statement of each class."""
