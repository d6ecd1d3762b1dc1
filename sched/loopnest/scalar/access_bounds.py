"""Which numbers an index or a thread may have, under the conditions of an access."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import (
    ZERO,
    Const,
    Expr,
    Index,
    LaunchIndex,
    Op,
    Symbol,
    integer,
    loads,
    rewrite,
    substitute,
    variables,
)
from loopnest.scalar.launch_bounds import LaunchBounds
from loopnest.scalar.simplify import Simplifier

Conditions: TypeAlias = "tuple[Expr, ...]"

_FAR = 1 << 40
"""Larger than any index."""


class AccessBounds:
    """Bounds that conditions and the limits of a launch set.

    Args:
        limits: of the launch.
        algebra: for sizes.
    """

    def __init__(self, limits: LaunchBounds, algebra: Simplifier) -> None:
        self.limits, self.algebra = limits, algebra
        self._reached: dict[tuple[Expr, Expr, Expr], bool] = {}
        self._most: dict[tuple[ParallelType, Conditions], int] = {}
        self._ranges: dict[tuple[Expr, Conditions], tuple[int, int | None]] = {}

    def most(self, dim: ParallelType, conditions: Conditions) -> int:
        """Return how many numbers along a dimension the threads under some conditions have."""
        found = self._most.get((dim, conditions))
        if found is None:
            found = self._most[dim, conditions] = self._find_most(dim, conditions)
        return found

    def _find_most(self, dim: ParallelType, conditions: Conditions) -> int:
        if self.limits.has_one(dim):
            return 1
        number = LaunchIndex(dim)
        if self.only_zero(number, conditions):
            return 1
        found = [self.limits.most(dim)]
        for condition in conditions:
            if isinstance(condition, Op) and condition.op == "lt":
                found += self._below(number, *condition.args)
            elif isinstance(condition, Op) and condition.op == "eq" and number in condition.args:
                found += [int(a.value) + 1 for a in condition.args if isinstance(a, Const)]
        return max(min(found), 1)

    def only_zero(self, index: Expr, conditions: Conditions) -> bool:
        """Whether some conditions hold only where an index is 0."""
        for condition in conditions:
            if not isinstance(condition, Op) or condition.op not in ("eq", "lt"):
                continue
            value, bound = condition.args
            if condition.op == "eq" and value is index and bound is ZERO:
                return True
            if condition.op == "lt" and self._reaches(value, index, bound):
                return True
        return False

    def _reaches(self, value: Expr, index: Expr, bound: Expr) -> bool:
        """Whether `value`, a sum of a multiple of `index` and others, is at `bound` from 1 on."""
        if index not in variables(value):
            return False
        key = value, index, bound
        found = self._reached.get(key)
        if found is None:
            found = self._reached[key] = self._find_reach(value, index, bound)
        return found

    def _find_reach(self, value: Expr, index: Expr, bound: Expr) -> bool:
        algebra = self.algebra
        terms = [t for t in algebra.poly(value) if any(index in variables(atom) for atom in t)]
        if terms == [(index,)]:  # linear
            count = algebra.poly(value)[(index,)]
            rest = algebra.sub(value, algebra.mul(integer(count), index))
            return count > 0 and algebra.proves_le(bound, algebra.add(rest, integer(count)))
        first = algebra.simplify(substitute(value, {index: ZERO}))
        if first is value:
            return False
        second = algebra.simplify(substitute(value, {index: integer(1)}))
        # Linear in the index and growing, and at the bound from 1 on: then below it at 0 alone.
        step = algebra.sub(second, first)
        linear = algebra.add(first, algebra.mul(step, index))
        grows = step is not ZERO and algebra.proves_le(ZERO, step)
        return grows and algebra.equal(linear, value) and algebra.proves_le(bound, second)

    def _below(self, number: Expr, small: Expr, large: Expr) -> Iterator[int]:
        """Yield bounds that ``small < large`` sets to a number, which is one of its terms."""
        scale = self.algebra.poly(small).get((number,), 0)
        most = self.limits.upper(large)
        if scale <= 0 or most is None:
            return
        rest = self.algebra.sub(small, self.algebra.mul(integer(scale), number))
        # number + ceil(n / 2) < n leaves numbers below n / 2
        if scale == 1 and rest is self._half(large):
            yield most // 2
        # scale * number <= large - 1 - rest, where rest is not negative
        elif self.algebra.proves_le(ZERO, rest):
            most -= int(rest.value) if isinstance(rest, Const) else 0
            yield -(-most // scale)

    def _half(self, size: Expr) -> Expr:
        """Return half of a size, rounded up."""
        by = 2
        if isinstance(size, Op) and size.op == "ceildiv" and isinstance(size.args[1], Const):
            by = 2 * int(size.args[1].value)
            size = size.args[0]
        return self.algebra.ceildiv(size, integer(by))

    def _is_size(self, term: tuple[Expr, ...]) -> bool:
        return all(is_fixed(atom, frozenset()) for atom in term)

    def apart(self, a: Expr, mine: Conditions, b: Expr, theirs: Conditions) -> bool:
        """Whether all values of one index are larger than all of another."""
        low, high = self._range(a, mine)
        least, most = self._range(b, theirs)
        return (high is not None and high < least) or (most is not None and most < low)

    def _range(self, index: Expr, conditions: Conditions) -> tuple[int, int | None]:
        """Return bounds of an index; None where it has no upper one."""
        found = self._ranges.get((index, conditions))
        if found is None:
            found = self._ranges[index, conditions] = self._find_range(index, conditions)
        return found

    def _find_range(self, index: Expr, conditions: Conditions) -> tuple[int, int | None]:
        low, high = 0, 0
        open_above = False
        for term, count in self.algebra.poly(index).items():
            least, most = self._range_of(term, conditions)
            if term and (count < 0 or least < 0):
                # Neither end is known then: a term that falls, or may be negative, has no use for
                # the bounds of the others.
                return -_FAR, None
            low += count * least
            open_above = open_above or most is None
            high += count * (most or 0)
        return low, None if open_above else high

    def _range_of(self, term: tuple[Expr, ...], conditions: Conditions) -> tuple[int, int | None]:
        if not term:
            return 1, 1
        (atom, *others) = term
        if others or not self.algebra.proves_le(ZERO, atom):
            natural = all(self.algebra.proves_le(ZERO, a) for a in term)
            return 0 if natural else -1, None
        if isinstance(atom, LaunchIndex):
            return 0, self.most(atom.dimension, conditions) - 1
        if isinstance(atom, Index):
            most = self.limits.upper(atom.extent)
            return 0, None if most is None else most - 1
        # The access happens, so that what the launch needs to start at all is 1 or more.
        positive = self._is_size(term) and self.limits.runs(atom)
        return int(positive), self.limits.upper(atom) if self._is_size(term) else None


def is_fixed(value: Expr, common: frozenset[Index]) -> bool:
    """Whether `value` is the same for two accesses with these indices in common."""
    return all(isinstance(n, Symbol) or n in common for n in variables(value)) and not loads(value)


def without_remainders(index: Expr, conditions: tuple[Expr, ...], algebra: Simplifier) -> Expr:
    """Return an index without the remainders and quotients that a predicate decides."""
    less = [c.args for c in conditions if isinstance(c, Op) and c.op == "lt"]

    def rule(node: Expr) -> Expr | None:
        if not isinstance(node, Op) or node.op not in ("mod", "floordiv"):
            return None
        value, by = node.args
        whole = value, by
        if isinstance(value, Op) and value.op == "floordiv":  # x // K % M, where x < K * M
            whole = value.args[0], algebra.mul(value.args[1], by)
        known = any(
            algebra.equal(small, low) and algebra.proves_le(large, high)
            for small, large in less
            for low, high in (whole, (value, by))
        )
        if not known or not algebra.proves_le(ZERO, value):
            return None
        # 0 <= x < K: then x % K is x, and x // K is 0
        return value if node.op == "mod" else ZERO

    return rewrite(index, rule) if less else index
