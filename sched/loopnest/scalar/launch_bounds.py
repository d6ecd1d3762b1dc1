"""Bounds of the extents of a launch, from CUDA's limits and from assumptions.

A block has at most 1024 threads, at most 64 along z. Where one size decides several extents they
bound each other: a block of ``(ceildiv(M, 2), M)`` has at most 44 rows.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import reduce
from itertools import product

from loopnest.scalar.arguments import size_value
from loopnest.scalar.enums import BLOCK_DIMENSIONS, MOST_ALONG, MOST_THREADS, WARP, ParallelType
from loopnest.scalar.expr import (
    ONE,
    ZERO,
    Const,
    Expr,
    LaunchIndex,
    Op,
    Symbol,
    variables,
)
from loopnest.scalar.simplify import Simplifier

_INTEGER: Mapping[str, Callable[..., int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "min": min,
    "max": max,
}
"""What indices are computed by."""

_FAR = 1 << 40
"""A size that is larger than any."""


class LaunchBounds:
    """Bounds of extents, for one kernel.

    Args:
        launch: the extents of the launch.
        algebra: knows the assumptions.
    """

    def __init__(self, launch: Mapping[ParallelType, Expr], algebra: Simplifier) -> None:
        self.launch, self.algebra = launch, algebra
        block = {d: self._rising(e, upper=False) for d, e in launch.items() if d.is_block}
        self._block = {d: e for d, e in block.items() if e is not None}
        self.launched = frozenset(found for e in launch.values() for found in implied(e))
        self._largest: dict[Symbol, int | None] = {}
        self._most: dict[tuple[ParallelType, bool], int] = {}
        self._uppers: dict[tuple[Expr, bool], int | None] = {}
        self._threads: int | None = None

    def most(self, dim: ParallelType) -> int:
        """Return the largest extent that a launch may have along `dim`."""
        found = self._extent(dim, assumed=True)
        if found < self._extent(dim, assumed=False):
            self._rely_on(self.launch[dim])
        return found

    def has_one(self, dim: ParallelType) -> bool:
        """Whether no launch has more than one block or thread along `dim`.

        Assumptions count as used where they say so; below another number they decide nothing.
        """
        return self._extent(dim, assumed=True) == 1 == self.most(dim)

    def threads(self) -> int:
        """Return the largest number of threads that a block may have."""
        if self._threads is None:
            block = [d for d in self.launch if d.is_block]
            self._threads = self._find_threads(block, assumed=True)
            if self._threads < self._find_threads(block, assumed=False):
                for dim in block:
                    self._rely_on(self.launch[dim])
        return self._threads

    def in_threads(self, value: Expr) -> tuple[int, ...] | None:
        """Return an index in each thread of a block, in their order.

        None where it depends on more than the numbers of threads, or extents are symbolic.
        """
        extents = [self.launch.get(d, ONE) for d in BLOCK_DIMENSIONS]
        known = [int(extent.value) for extent in extents if isinstance(extent, Const)]
        if len(known) < len(extents) or math.prod(known) > MOST_THREADS:
            return None
        numbers = product(*[range(extent) for extent in reversed(known)])
        found: list[int] = []
        for place in numbers:
            one = dict(zip(reversed(BLOCK_DIMENSIONS), place, strict=True))
            number = _in_thread(value, one, {})
            if number is None:
                return None
            found.append(number)
        return tuple(found)

    def upper(self, size: Expr) -> int | None:
        """Return a number that an expression of sizes does not exceed, None where none is known."""
        found = self._upper(size, assumed=True)
        if found is not None and found != self._upper(size, assumed=False):
            self._rely_on(size)
        return found

    def _rely_on(self, size: Expr) -> None:
        for known in (size, *_symbols(size)):
            self.algebra.facts.rely_on(known)

    def _extent(self, dim: ParallelType, *, assumed: bool) -> int:
        key = dim, assumed
        found = self._most.get(key)
        if found is None:
            found = self._most[key] = self._find_most(dim, assumed=assumed)
        return found

    def _upper(self, size: Expr, *, assumed: bool) -> int | None:
        """Return the bound of a size, from assumptions too or from the launch alone."""
        if isinstance(size, Const):
            return int(size.value)
        key = size, assumed
        if key not in self._uppers:
            self._uppers[key] = self._find_upper(size, assumed=assumed)
        return self._uppers[key]

    def _find_upper(self, size: Expr, *, assumed: bool) -> int | None:
        known = self.algebra.facts.largest(size) if assumed else None
        rising = self._rising(size, upper=True)
        if rising is None:
            return known
        largest: dict[str, int] = {}
        for symbol in _symbols(rising):
            value = self._largest_of(symbol, assumed=assumed)
            if value is None:
                return known
            largest[symbol.name] = value
        found = size_value(rising, largest)
        return found if known is None else min(found, known)

    def at_most_one(self, size: Expr) -> bool:
        """Whether a size is 0 or 1, whatever the symbols: ``ceildiv(ceildiv(N, 2), N)``."""
        if isinstance(size, Const):
            return bool(size.value <= 1)
        if not isinstance(size, Op):
            return False
        match size.op:
            case "ceildiv":
                return self._no_more(size.args[0], size.args[1])
            case "min":
                return any(map(self.at_most_one, size.args))
            case "max" | "mul":
                return all(map(self.at_most_one, size.args))
        return False

    def _rising(self, size: Expr, *, upper: bool) -> Expr | None:
        """Return a bound of a size that does not get smaller where a size symbol gets larger."""
        if isinstance(size, Const):
            return size if size.value >= 0 else None
        if not isinstance(size, Op):
            return size if isinstance(size, Symbol) else None
        if self.at_most_one(size):
            # Such a size may fall where a symbol grows (a divisor); its two values bound it anyway.
            return ONE if upper else ZERO
        made = [self._rising(arg, upper=upper) for arg in size.args]
        args = [arg for arg in made if arg is not None]
        whole = len(args) == len(made)
        match size.op:
            # Any argument of a minimum bounds it from above, any one of a maximum from below; the
            # other way round all are needed.
            case "max" | "min" if args and (whole or upper == (size.op == "min")):
                return reduce(lambda a, b: Op(size.op, (a, b), size.dtype), args)
            case "add" | "mul" if whole:
                return Op(size.op, tuple(args), size.dtype)
            case "ceildiv" | "floordiv" if made[0] is not None:
                by = size.args[1]
                if isinstance(by, Const):
                    return Op(size.op, (made[0], by), size.dtype) if by.value > 0 else None
                # By a divisor of 1 or more a quotient is at most the dividend; larger sizes may
                # make it smaller, so that nothing but 0 bounds it from below.
                return made[0] if upper else ZERO
        return None

    def _no_more(self, size: Expr, other: Expr) -> bool:
        """Whether a size is at most another one."""
        while isinstance(size, Op) and size.op == "ceildiv" and isinstance(size.args[1], Const):
            if self.algebra.proves_le(size, other):
                return True
            size = size.args[0]
        return self.algebra.proves_le(size, other)

    def runs(self, extent: Expr, known: Container[Expr] = ()) -> bool:
        """Whether an extent is not 0, where none of the launch is and none that is known."""
        if extent in known or extent in self.launched or self.algebra.proves_positive(extent):
            return True
        if not isinstance(extent, Op):
            return False
        match extent.op:
            case "max":
                return any(self.runs(arg, known) for arg in extent.args)
            case "mul" | "min":
                return all(self.runs(arg, known) for arg in extent.args)
            case "ceildiv":
                return self.runs(extent.args[0], known)
        return False

    def _find_most(self, dim: ParallelType, *, assumed: bool) -> int:
        extent = self.launch.get(dim, ONE)
        if isinstance(extent, Const):
            return max(int(extent.value), 1)
        if not dim.is_block:
            found = self._upper(extent, assumed=assumed)
            return _FAR if found is None else found
        others = 1
        for other, size in self._block.items():
            if other is not dim:
                others *= _least(size)
        most = min(MOST_THREADS // max(others, 1), MOST_ALONG[dim])
        found = self._upper(extent, assumed=assumed)
        return max(most if found is None else min(most, found), 1)

    def _find_threads(self, block: Sequence[ParallelType], *, assumed: bool) -> int:
        bounds = min(math.prod([self._extent(d, assumed=assumed) for d in block]), MOST_THREADS)
        symbols = {s for d in block for s in _symbols(self.launch[d])}
        # Where one size decides all extents, each value that it may have can be tried; products of
        # bounds would take them for independent.
        if bounds <= WARP or len(symbols) != 1:
            return bounds
        (symbol,) = symbols
        largest = self.algebra.facts.largest(symbol) if assumed else None
        if largest is None or largest > MOST_THREADS:
            return bounds
        sizes = [{symbol.name: value} for value in range(1, largest + 1)]
        extents = [self.launch[d] for d in block]
        found = [math.prod([size_value(e, some) for e in extents]) for some in sizes]
        return max([n for n in found if n <= MOST_THREADS], default=1)

    def _largest_of(self, symbol: Symbol, *, assumed: bool) -> int | None:
        """Return the largest value of a size symbol, None where nothing limits it."""
        if symbol not in self._largest:
            self._largest[symbol] = self._find_largest(symbol)
        found = self._largest[symbol]
        known = self.algebra.facts.largest(symbol) if assumed else None
        return min([n for n in (found, known) if n is not None], default=None)

    def _find_largest(self, symbol: Symbol) -> int | None:
        """Return the largest value at which a block is within the limits, None without one."""
        if not any(symbol in variables(extent) for extent in self._block.values()):
            return None  # no number of threads follows from it
        low, high = 1, 2
        while self._may_start(symbol, high):
            low, high = high, 2 * high
            if high > _FAR:
                return None
        # The number of threads does not fall where the size grows (`_rising`), so that halving
        # finds the largest one.
        while high - low > 1:
            middle = (low + high) // 2
            if self._may_start(symbol, middle):
                low = middle
            else:
                high = middle
        return low

    def _may_start(self, symbol: Symbol, value: int) -> bool:
        """Whether a block of some sizes is within the limits where one of them has this value."""
        threads = 1
        for dim, extent in self._block.items():
            size = _least(extent, {symbol.name: value})
            if size > MOST_ALONG[dim]:
                return False
            threads *= size
        return threads <= MOST_THREADS


def _least(size: Expr, given: Mapping[str, int] | None = None) -> int:
    """Return the least number of threads that a rising extent starts, some sizes given."""
    sizes = {symbol.name: 0 for symbol in _symbols(size)}
    return max(size_value(size, {**sizes, **(given or {})}), 1)


def _in_thread(
    value: Expr, numbers: Mapping[ParallelType, int], known: dict[Expr, int | None]
) -> int | None:
    """Return what an index is in one thread, None where it depends on anything else."""
    if isinstance(value, Const):
        return int(value.value)
    if isinstance(value, LaunchIndex):
        return numbers.get(value.dimension)
    if not isinstance(value, Op) or value.op not in _INTEGER:
        return None
    if value not in known:
        args = [_in_thread(arg, numbers, known) for arg in value.args]
        whole = [arg for arg in args if arg is not None]
        known[value] = _INTEGER[value.op](*whole) if len(whole) == len(args) else None
    return known[value]


def _symbols(size: Expr) -> list[Symbol]:
    return [node for node in variables(size) if isinstance(node, Symbol)]


def implied(extent: Expr, least: int = 1) -> Iterator[Expr]:
    """Yield what is not 0 where an extent is `least` or more."""
    yield extent
    if not isinstance(extent, Op):
        return
    match extent.op:
        case "ceildiv" | "floordiv":
            yield from implied(extent.args[0], least)
        case "mul" | "min":
            for arg in extent.args:
                # of a product of 2 or more each factor is 1 or more, and no more is known
                yield from implied(arg)
        case "max":
            rest = [a for a in extent.args if not (isinstance(a, Const) and a.value < least)]
            if len(rest) == 1:
                yield from implied(rest[0], least)
