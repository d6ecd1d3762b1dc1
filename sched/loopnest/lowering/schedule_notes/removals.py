"""What makes a test superfluous: an assumption that decides it, or a factor that divides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from loopnest.base.errors import DefinitionError
from loopnest.lowering.schedule_notes.lowered_schedule import Lowering
from loopnest.scalar.conditions import decided
from loopnest.scalar.contradictions import contradiction
from loopnest.scalar.expr import (
    TRUE,
    Const,
    Expr,
    Index,
    Op,
    Symbol,
    free_indices,
    substitute,
    walk,
)
from loopnest.scalar.facts import Facts
from loopnest.scalar.simplify import Simplifier


def removal(lowering: Lowering, condition: Expr) -> str:
    """Return what decides a test for all indices; "" where nothing is known that does.

    An assumption is a call: ``f.assume("N % 4 == 0")``. It was tried: with it, the test is true.
    """
    algebra = lowering.plan.algebra
    factor = dividing_factor(algebra, condition)
    found = [t for t in assumptions(algebra, condition) if decides(algebra.facts, t, condition)]
    return factor or (f'f.assume("{found[0]}")' if found else "")


def dividing_factor(algebra: Simplifier, condition: Expr) -> str:
    """Return the factor that a test of a static size needs none of; "" for other tests."""
    sides = _sides(condition)
    if sides is None or not isinstance(sides[1], Const):
        return ""
    return _factor(algebra, sides[0], int(sides[1].value))


def assumptions(algebra: Simplifier, condition: Expr) -> list[str]:
    """Return assumptions that may decide a test of a symbolic size, the weakest first."""
    sides = _sides(condition)
    if sides is None or isinstance(sides[1], Const):
        return []
    return [*dict.fromkeys(_assumptions(algebra, *sides))]


def _sides(condition: Expr) -> tuple[Expr, Expr] | None:
    """Return the index and the size of a test that keeps the one below the other."""
    if not isinstance(condition, Op) or condition.op not in ("lt", "le"):
        return None
    index, size = condition.args
    return None if free_indices(size) or not free_indices(index) else (index, size)


def decides(facts: Facts, text: str, condition: Expr) -> bool:
    """Whether a test is true for all indices where an assumption holds too."""
    known = {node.name for node in walk(condition) if isinstance(node, Symbol)}
    known |= {
        node.name
        for index in free_indices(condition)
        for node in walk(index.extent)
        if isinstance(node, Symbol)
    }
    made = replace(facts.copy(), used=set())
    try:
        made.add(text, known.__contains__)
    except DefinitionError:
        return False
    if contradiction(made) is not None:
        return False
    algebra = Simplifier(made)
    # Loops have other extents then.
    loops: dict[Expr, Expr] = {
        index: Index(index.name, algebra.simplify(index.extent))
        for index in free_indices(condition)
    }
    return decided(substitute(condition, loops), algebra) is TRUE


def _assumptions(algebra: Simplifier, index: Expr, size: Expr) -> Iterator[str]:
    """Yield assumptions that may decide ``index < size``, the weakest first."""
    whole, times = size, 1
    if isinstance(size, Op) and size.op == "floordiv" and isinstance(size.args[1], Const):
        whole, times = size.args[0], int(size.args[1].value)
    shown = str(whole) if isinstance(whole, Symbol) else f"({whole})"
    for step in _steps(algebra, index):
        yield f"{shown} % {int(step) * times if step.isdigit() else step} == 0"
    for node in sorted(free_indices(index), key=str):
        if not isinstance(node.extent, Const):
            yield f"{node.extent} <= {size}"


def _steps(algebra: Simplifier, index: Expr) -> Iterator[str]:
    """Yield how far an index moves from one iteration of each loop to the next, small steps first.

    A size that is such a step comes last.
    """
    numbers: set[int] = set()
    sizes: dict[str, None] = {}
    for term, count in algebra.poly(index).items():
        numbers.add(abs(int(count)))
        for atom in (node for part in term for node in walk(part)):
            if isinstance(atom, Index) and isinstance(atom.extent, Const):
                numbers.add(abs(int(count)) * int(atom.extent.value))
            elif isinstance(atom, Index) and isinstance(atom.extent, Symbol):
                sizes[atom.extent.name] = None
            elif isinstance(atom, Symbol):
                sizes[atom.name] = None
    yield from map(str, sorted(numbers - {0, 1}))
    yield from sizes


def _factor(algebra: Simplifier, index: Expr, size: int) -> str:
    """Return the factor nearest to that of the outermost split that divides a static size."""
    steps = sorted([int(step) for step in _steps(algebra, index) if step.isdigit()])
    moved = [step for step in steps if step < _reach(algebra, index)]
    if not moved:
        return ""
    outer = moved[-1]
    inner = max([step for step in moved[:-1] if outer % step == 0], default=1)
    fitting = [d for d in range(2, size + 1) if size % d == 0 and d % inner == 0]
    if not fitting:
        return ""
    best = min(fitting, key=lambda divisor: (abs(divisor - outer), divisor))
    return f"split by {best} in place of {outer}: {best} divides {size}"


def _reach(algebra: Simplifier, index: Expr) -> int:
    """Return one more than the largest value of an index of static loops; 0 of others."""
    most = 0
    for term, count in algebra.poly(index).items():
        extents = [a.extent for a in term if isinstance(a, Index)]
        if len(extents) != len(term) or not all(isinstance(e, Const) for e in extents):
            return 0
        value = int(count)
        for extent in extents:
            assert isinstance(extent, Const)
            value *= int(extent.value) - 1
        most += value
    return most + 1
