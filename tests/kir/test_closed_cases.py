"""Readers of a loop nest know every statement, expression and parallel type, or fail by name.

A toy of each, which no reader knows, goes through all of them. Of a statement those that only walk
the nest ask for what its class declares; those that say or do what it does fail.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import pytest

import loopnest as ln
from loopnest import kir
from loopnest.backends.cpu.c_printer import print_c
from loopnest.backends.cpu.fission.thread_loop_fission import thread_form
from loopnest.backends.cuda.printing.cuda_printer import print_cuda
from loopnest.backends.interpret import interpret
from loopnest.base.errors import InternalError
from loopnest.kir.legal_program import program_faults
from loopnest.kir.nest_text import print_nest
from loopnest.kir.nodes import Statement
from loopnest.launch.index_width import IndexWidth
from loopnest.proofs.barrier_necessity import sliced
from loopnest.proofs.obligations import program_of
from loopnest.proofs.program_model import Model
from loopnest.proofs.size_choice import points_at
from loopnest.proofs.verifier import verify_program
from loopnest.scalar import dtypes
from loopnest.scalar.enums import GRID_DIMENSIONS, LAUNCH_DIMENSIONS, ParallelType
from loopnest.scalar.expr import ONE, ZERO, Expr, LaunchIndex, Load, Local
from loopnest.tensor.math_snapshot import MathSnapshot

SIZES = {"N": 8}


@dataclass(frozen=True, eq=False, slots=True)
class Toy(Statement):
    """A statement that no reader knows: it evaluates a value."""

    evaluates: ClassVar = ("value",)
    value: Expr = ONE


@dataclass(frozen=True, eq=False, slots=True)
class ToyBlock(Statement):
    """One that has a body, and is reached by all threads of a block together."""

    encloses: ClassVar = ("body",)
    threads: ClassVar = "block"
    body: tuple[kir.Stmt, ...] = ()


class ToyExpr(Expr):
    """An expression that no reader knows."""

    __slots__ = ()

    def __init__(self, like: Expr) -> None:
        self.dtype, self.args, self._text, self._variables = like.dtype, (), None, None


def toy_parallel() -> ParallelType:
    """Return a parallel type that is none of the members."""
    toy = object.__new__(ParallelType)
    toy._name_ = toy._value_ = "toy"
    return toy


def run(program: kir.Program) -> None:
    interpret(program, {"x": np.ones(8, np.float32), "y": np.zeros(8, np.float32)}, SIZES, {})


def copied() -> tuple[kir.Program, MathSnapshot]:
    """Return the nest of a copy, and its math."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N",), ln.float32)
        f.output(ln.exp(x), "y")
    return program_of(ln.lower(f), "k")


PROGRAM, MATH = copied()


READERS: dict[str, Callable[[kir.Program], Any]] = {
    "nest text": print_nest,
    "legal program": program_faults,
    "C": print_c,
    "C with threads as loops": thread_form,
    "CUDA": print_cuda,
    "interpreter": run,
    "index width": IndexWidth,
    "model of the proofs": Model,
    "slices of the proofs": sliced,
    "points of the proofs": lambda program: points_at(program, SIZES),
    "proof for all sizes": lambda program: verify_program(program, MATH),
    "proof of these sizes": lambda program: verify_program(program, MATH, SIZES),
    "cooperative": lambda program: program.is_cooperative,
    "expressions": lambda program: [kir.expressions(n) for n in program.body],
    "other expressions": lambda program: [
        kir.map_expressions(n, lambda e: e) for n in program.body
    ],
    "other bodies": lambda program: [kir.with_bodies(n, ((),)) for n in program.body],
    "meeting threads": lambda program: kir.holds_sync(program.body),
}


def said(reader: Callable[[kir.Program], Any], program: kir.Program) -> str:
    """Return what a reader answers: its text, its complaint, or ""."""
    try:
        found = reader(program)
    except (AssertionError, InternalError) as error:
        return str(error)
    return "\n".join(found) if isinstance(found, list) else ""


def with_statement(node: Any) -> kir.Program:
    program = PROGRAM
    return program.with_body((*program.body, node))


TRAVERSALS = {"cooperative", "expressions", "other expressions", "other bodies", "meeting threads"}
ACTING = ("nest text", "C", "CUDA", "interpreter")
"""The readers that must know what a statement does."""


@pytest.mark.parametrize("name", ACTING)
def test_a_statement_of_no_known_class(name: str) -> None:
    assert "Toy(value=" in said(READERS[name], with_statement(Toy()))


@pytest.mark.parametrize("name", sorted(set(READERS) - {*ACTING, *TRAVERSALS}))
def test_a_statement_by_what_it_declares(name: str) -> None:
    assert said(READERS[name], with_statement(Toy())) == said(READERS[name], PROGRAM)


def test_what_a_statement_declares_is_read() -> None:
    buffer = PROGRAM.params[0].buffer
    assert buffer is not None
    load, name = Load(buffer, (ZERO,)), Local("lost", dtypes.index)
    toy: Any = Toy(load)
    other: Any = kir.map_expressions(toy, lambda _: name)
    assert (kir.expressions(toy), kir.loaded(toy), kir.bodies(toy)) == ((load,), (load,), ())
    assert (kir.map_expressions(toy, lambda value: value), other.value) == (toy, name)
    block: Any = ToyBlock()
    around: Any = kir.with_bodies(block, ((toy, other),))
    assert [node for node, _ in kir.walk((around,))] == [around, toy, other]
    assert (kir.meets(around), kir.holds_sync((toy, around))) == ("block", True)
    assert program_faults(with_statement(around)) == ["a toy names lost before it is defined"]
    model = Model(PROGRAM.with_body((toy, other)))
    assert [access.buffer for access in model.accesses] == [buffer]
    assert model.undefined == [(other, name)]
    with pytest.raises(InternalError, match=r"toyblock: a reader of one toyblock was given 2 st"):
        Model(PROGRAM.with_body((around,)))


# To some readers all loops of one thread are the same: they print the name of their type, or ask
# for what is in them alone.
PARALLEL = set(READERS) - TRAVERSALS - {"nest text", "index width", "slices of the proofs"}
# Some look at no value but for the loads in it, which any expression has among its operands.
EXPRESSION = set(READERS) - TRAVERSALS - {
    "index width", "model of the proofs", "slices of the proofs", "points of the proofs",
    "C with threads as loops",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(PARALLEL))
def test_a_loop_of_no_known_parallel_type(name: str) -> None:
    program = PROGRAM
    (loop,) = program.body
    assert isinstance(loop, kir.Loop)
    toy = program.with_body((replace(loop, parallel=toy_parallel()),))
    assert "toy" in said(READERS[name], toy)


@pytest.mark.parametrize("name", sorted(EXPRESSION))
def test_a_value_of_no_known_class(name: str) -> None:
    program = PROGRAM
    (loop,) = program.body
    assert isinstance(loop, kir.Loop)
    (store,) = loop.body
    assert isinstance(store, kir.Store)
    toy = replace(store, value=ToyExpr(store.value))
    assert "Toy" in said(READERS[name], program.with_body((replace(loop, body=(toy,)),)))


def test_an_index_of_no_launch_dimension() -> None:
    """It was 0, as that of a dimension that no launch has."""
    (loop,) = PROGRAM.body
    assert isinstance(loop, kir.Loop)
    (store,) = loop.body
    assert isinstance(store, kir.Store)
    toy = replace(store, index=(LaunchIndex(ParallelType.serial),))
    with pytest.raises(InternalError, match=r"serial is no launch dimension"):
        print_c(PROGRAM.with_body((toy,)))


def test_parallel_types() -> None:
    """What readers ask of a parallel type stands with it, not in its name."""
    assert {t.order for t in ParallelType} == {"ascending", "any", "grid", "block"}
    bound = {t for t in ParallelType if t.is_thread}
    assert bound == set(LAUNCH_DIMENSIONS) == {t for t in ParallelType if t.is_grid or t.is_block}
    assert {t for t in ParallelType if t.is_grid} == set(GRID_DIMENSIONS)
    names = ["blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z"]
    assert [t.cuda_name for t in LAUNCH_DIMENSIONS] == names
    assert [t.name for t in ParallelType if t.is_unordered] == ["vectorize", "cpu_parallel"]


def sources() -> Iterator[tuple[str, str]]:
    root = Path(ln.__file__).parent
    for path in sorted(root.rglob("*.py")):
        yield path.relative_to(root).as_posix(), path.read_text("utf-8")


def test_the_size_of_a_warp_stands_once() -> None:
    found = [name for name, text in sources() if re.search(r"^WARP\b.*= *\d", text, re.MULTILINE)]
    assert found == ["scalar/enums.py"]


STATEMENTS = {kind.__name__ for kind in get_args(kir.Stmt)}


def classes(pattern: ast.pattern) -> set[str]:
    """Return the names of the classes in a pattern, without their module."""
    found = [node.cls for node in ast.walk(pattern) if isinstance(node, ast.MatchClass)]
    return {c.attr if isinstance(c, ast.Attribute) else getattr(c, "id", "") for c in found}


def is_closed(match: ast.Match) -> bool:
    """Whether a match fails on what its cases do not name."""
    last = match.cases[-1]
    ends = isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None
    text = ast.unparse(last.body[-1])
    return ends and text.startswith(("assert_never(", "raise "))


# How many matches leave open what else there is: they look for some statements among those that
# `kir.walk` gives or that lie in a tree of lowering, and do nothing about the others, or what these
# declare.
SEEKING = {
    "backends/clike/narrow_counts.py": 1,
    "backends/cpu/c_printer.py": 1,
    "backends/cpu/fission/loop_form.py": 1,
    "backends/cpu/fission/loop_interchange.py": 1,
    "backends/cpu/fission/parallel_regions.py": 1,
    "backends/cpu/fission/thread_loop_fission.py": 4,
    "backends/cpu/lane_vectors.py": 1,
    "backends/cpu/vector_printer.py": 1,
    "lane_machine/fault_report.py": 1,
    "lane_machine/loop_dependence.py": 1,
    "costs/launch_counts.py": 2,
    "launch/launch_plan.py": 1,
    "lowering/indexing/indexed_tree.py": 2,
    "lowering/loops/tightening.py": 1,
    "proofs/empty_launches.py": 1,
    "proofs/enumeration/__init__.py": 1,
    "proofs/obligations.py": 1,
    "proofs/point_arrays.py": 1,
    "proofs/barrier_necessity.py": 3,
}


def test_every_match_of_statements_is_closed() -> None:
    """It ends with assert_never, so that mypy names each reader that a new statement needs."""
    found: Counter[str] = Counter()
    for name, text in sources():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Match) and not is_closed(node):
                named = set().union(*[classes(case.pattern) for case in node.cases])
                found[name] += bool(named & STATEMENTS)
    assert {name: count for name, count in found.items() if count} == SEEKING
