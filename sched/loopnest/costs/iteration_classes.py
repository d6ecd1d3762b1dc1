"""Which iterations of a loop cost the same, so that one of them is counted for all.

Two iterations do if every test has the same outcome in both, whatever the other loops and threads
do, and every address of the one is that of the other moved by whole sectors (of SHARED memory: by
whole words, which only renames its banks). The first is asked by intervals of index arithmetic, the
second by the period of an expression: p and s with e(v + p) = e(v) + s.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from loopnest.scalar.expr import Const, Expr, Op, variables, walk

Array: TypeAlias = "npt.NDArray[np.int64]"
Span: TypeAlias = "tuple[Any, Any]"
"""The least and the largest value of an expression: numbers, or an array for each iteration."""

NEVER, ALWAYS, SOMETIMES = 0, 1, 2
"""Outcomes of a test in an iteration."""

COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})


@dataclass(frozen=True, slots=True)
class Iterations:
    """Iterations that stand for all of a loop.

    Args:
        values: of its index.
        weights: how many iterations each stands for.
    """

    values: Array
    weights: Array


@dataclass(frozen=True, slots=True)
class Uses:
    """What decides the costs of a launch, free of names and sizes.

    Args:
        conditions: tests.
        offsets: addresses in elements, each with the distance that makes no difference.
        extents: of every variable.
    """

    conditions: tuple[Expr, ...]
    offsets: tuple[tuple[Expr, int], ...]
    extents: Mapping[Expr, int]

    def iterations(self, var: Expr, extent: int, whole: bool = False) -> Iterations:
        """Return iterations that stand for all of [0, extent); where `whole`, all of them."""
        values = np.arange(extent, dtype=np.int64)
        if whole or extent < 2:
            return Iterations(values, np.ones_like(values))
        period = self._period(var)
        keys = [values if period is None else values % period]
        spans = _Spans(var, values, self.extents)
        for atom in dict.fromkeys(a for c in self.conditions for a in _comparisons(c)):
            if var in variables(atom):
                outcome = np.broadcast_to(spans.outcome(atom), values.shape)
                keys.append(np.where(outcome == SOMETIMES, values + 2, outcome))
        _, first, count = np.unique(np.stack(keys), axis=1, return_index=True, return_counts=True)
        order = np.argsort(first)
        return Iterations(values[first[order]], count[order].astype(np.int64))

    def _period(self, var: Expr) -> int | None:
        """Return how far apart iterations are whose addresses cost the same."""
        result = 1
        for offset, unit in self.offsets:
            if var not in variables(offset):
                continue
            found = period(offset, var, self.extents)
            if found is None:
                return None
            step, shift = found
            result = math.lcm(result, step * (unit // math.gcd(shift, unit)))
        return result


def _comparisons(condition: Expr) -> Iterable[Expr]:
    """Yield the comparisons that a condition, or a choice in an index, is made of."""
    return [n for n in walk(condition) if isinstance(n, Op) and n.op in COMPARISONS]


def period(node: Expr, var: Expr, extents: Mapping[Expr, int]) -> tuple[int, int] | None:
    """Return p > 0 and s such that a step of p in `var` adds s to an expression; None: unknown."""
    if var not in variables(node):
        return 1, 0
    if node is var:
        return 1, 1
    if not isinstance(node, Op):
        return None
    found = [period(arg, var, extents) for arg in node.args]
    known = [f for f in found if f is not None]
    if len(known) < len(found):
        return None
    step = math.lcm(*[p for p, _ in known])
    shifts = [s * (step // p) for p, s in known]
    if not any(shifts):
        return step, 0
    return _moved(node, step, shifts, var, extents)


def _moved(
    node: Op, step: int, shifts: list[int], var: Expr, extents: Mapping[Expr, int]
) -> tuple[int, int] | None:
    """Return the period of an operation whose operands are moved by `shifts` after `step`."""
    by = node.args[-1]
    match node.op:
        case "add":
            return step, sum(shifts)
        case "sub":
            return step, shifts[0] - shifts[1]
        case "neg":
            return step, -shifts[0]
        case "cast":
            return step, shifts[0]
        case "mul":
            for factor, shift in zip(node.args, reversed(shifts), strict=True):
                if isinstance(factor, Const):
                    return step, shift * int(factor.value)
        case "floordiv" | "ceildiv" | "mod" if isinstance(by, Const) and by.value > 0:
            size = int(by.value)
            times = size // math.gcd(shifts[0], size)
            moved = shifts[0] * times // size
            return step * times, 0 if node.op == "mod" else moved
        case "min" | "max" if shifts[0] == shifts[1]:
            return step, shifts[0]
        case "bitxor" | "bitor" | "bitand" if 0 in shifts:
            still = node.args[shifts.index(0)]
            _, high = _Spans(var, np.zeros(1, np.int64), extents).of(still)
            if high is not None:
                size = 1 << int(np.max(high)).bit_length()
                times = size // math.gcd(sum(shifts), size)
                return step * times, 0 if node.op == "bitand" else sum(shifts) * times
    return None


class _Spans:
    """Intervals of expressions in each iteration of one loop, over all that the others may be."""

    def __init__(self, var: Expr, values: Array, extents: Mapping[Expr, int]) -> None:
        self.var, self.values, self.extents = var, values, extents
        self._known: dict[Expr, Span] = {}

    def outcome(self, atom: Expr) -> Any:
        """Return what becomes of a comparison in each iteration."""
        assert isinstance(atom, Op)
        (low, high), (least, most) = [self.of(arg) for arg in atom.args]
        if low is None or least is None:
            return SOMETIMES
        match atom.op:
            case "lt":
                yes, no = high < least, low >= most
            case "le":
                yes, no = high <= least, low > most
            case "gt":
                yes, no = low > most, high <= least
            case "ge":
                yes, no = low >= most, high < least
            case _:
                same = (low == high) & (least == most) & (low == least)
                apart = (high < least) | (low > most)
                yes, no = (same, apart) if atom.op == "eq" else (apart, same)
        return np.where(yes, ALWAYS, np.where(no, NEVER, SOMETIMES))

    def of(self, node: Expr) -> Span:
        """Return the span of an expression; (None, None) where nothing is known."""
        found = self._known.get(node)
        if found is None:
            found = self._known[node] = self._of(node)
        return found

    def _of(self, node: Expr) -> Span:
        if node is self.var:
            return self.values, self.values
        if isinstance(node, Const):
            return int(node.value), int(node.value)
        if node in self.extents:
            return 0, max(self.extents[node] - 1, 0)
        if not isinstance(node, Op):
            return None, None
        spans = [self.of(arg) for arg in node.args]
        if node.op == "where":
            spans = spans[1:]
        if any(low is None for low, _ in spans):
            return None, None
        return self._operated(node, spans)

    def _operated(self, node: Op, spans: list[Span]) -> Span:
        (a, b), (c, d) = spans[0], spans[-1]
        match node.op:
            case "add":
                return a + c, b + d
            case "sub":
                return a - d, b - c
            case "neg":
                return -b, -a
            case "cast":
                return a, b
            case "mul":
                corners = [a * c, a * d, b * c, b * d]
                return _least(corners), _most(corners)
            case "min":
                return np.minimum(a, c), np.minimum(b, d)
            case "max":
                return np.maximum(a, c), np.maximum(b, d)
            case "where":
                return np.minimum(a, c), np.maximum(b, d)
            case "floordiv" | "ceildiv" if np.all(c == d) and np.all(c > 0):
                return (a // c, b // c) if node.op == "floordiv" else (-(-a // c), -(-b // c))
            case "mod" if np.all(c == d) and np.all(c > 0):
                inside = a // c == b // c
                return np.where(inside, a % c, 0), np.where(inside, b % c, c - 1)
        return None, None


def _least(corners: list[Any]) -> Any:
    return np.minimum(np.minimum(*corners[:2]), np.minimum(*corners[2:]))


def _most(corners: list[Any]) -> Any:
    return np.maximum(np.maximum(*corners[:2]), np.maximum(*corners[2:]))
