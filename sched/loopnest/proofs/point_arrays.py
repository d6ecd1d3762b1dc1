"""The points of every statement at given sizes, as arrays; index expressions on them, exactly."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from loopnest import kir
from loopnest.proofs.program_model import Guards, Model, Site
from loopnest.scalar.enums import (
    BLOCK_DIMENSIONS,
    GRID_DIMENSIONS,
    MOST_ALONG,
    MOST_THREADS,
    ParallelType,
    along_dimensions,
)
from loopnest.scalar.expr import (
    Buffer,
    Const,
    Coordinate,
    Expr,
    Index,
    LaunchIndex,
    Load,
    Local,
    Op,
    Symbol,
    loads,
)

Array: TypeAlias = "npt.NDArray[np.int64]"
Flags: TypeAlias = "npt.NDArray[np.bool_]"


class Undecidable(Exception):
    """An expression whose value verify does not know: it depends on data."""


_WHOLE = 8
"""Bytes of an integer that holds every index."""


class TooMany(Exception):
    """More points than are worth enumerating."""


class NoLaunch(Exception):
    """Sizes at which nothing runs: an axis is split by 0, no thread starts, or a block is large."""


def _operated(node: Op, args: Sequence[Any]) -> Any:
    """Return the value of an operation; what a narrow integer does not hold wraps."""
    found = OPERATIONS[node.op](*args)
    if node.op == "cast" and node.dtype.is_integer and node.dtype.size < _WHOLE:
        return np.asarray(found).astype(node.dtype.numpy).astype(np.int64)
    return found


def _checked_divisor(b: Any) -> Any:
    if np.any(np.asarray(b) == 0):
        raise ZeroDivisionError
    return b


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "neg": lambda a: -a,
    "cast": lambda a: a,  # to an index or an int64, which hold an integer as it is
    "abs": np.abs,
    "floordiv": lambda a, b: a // _checked_divisor(b),
    "mod": lambda a, b: a % _checked_divisor(b),
    "ceildiv": lambda a, b: -(-a // _checked_divisor(b)),
    "min": np.minimum,
    "max": np.maximum,
    "bitxor": lambda a, b: a ^ b,
    "bitand": lambda a, b: a & b,
    "bitor": lambda a, b: a | b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
    "where": np.where,
}


def number(size: Expr, sizes: Mapping[str, int]) -> int:
    """Return an expression over size symbols as a number.

    Raises:
        Undecidable: it depends on more.
        NoLaunch: a divisor is 0, or an axis is split by less.
    """
    try:
        return _number(size, sizes)
    except ZeroDivisionError:
        raise NoLaunch from None


def _number(size: Expr, sizes: Mapping[str, int]) -> int:
    match size:
        case Const():
            return int(size.value)
        case Symbol():
            return sizes[size.name]
        case Op() if size.op in OPERATIONS:
            args = [_number(a, sizes) for a in size.args]
            if size.op == "ceildiv" and args[1] < 1:
                raise ZeroDivisionError
            return int(OPERATIONS[size.op](*args))
    raise Undecidable(f"an extent depends on data: {size}")


class Points:
    """Points of one statement: `count` of them, in the order of threads, then of loops.

    `values` gives each variable as an array; `thread` numbers the thread, `block` its block.
    """

    def __init__(
        self, count: int, values: dict[Expr, Any], thread: Array, block: Array, time: Array
    ) -> None:
        self.count = count
        self.values = values
        self.thread = thread
        self.block = block
        self.time = time
        self._memo: dict[Expr, Any] = {}

    def take(self, chosen: Any) -> Points:
        """Return the chosen points (a mask or places)."""
        values = {v: a[chosen] for v, a in self.values.items()}
        thread = self.thread[chosen]
        return Points(thread.size, values, thread, self.block[chosen], self.time[chosen])

    def with_each(self, node: Expr, numbers: Array) -> Points:
        """Return each point once for every number that an expression may have."""
        chosen = np.repeat(np.arange(self.count), numbers.size)
        result = self.take(chosen)
        result.values[node] = np.tile(numbers, self.count)
        return result

    def with_data(
        self,
        asked: Iterable[Load],
        data: Mapping[Buffer, Array],
        lets: Mapping[Local, Site],
        sizes: Mapping[str, int],
    ) -> Points:
        """Return the points with what some loads of inputs find, where `data` has their elements.

        A load that leaves its input finds one of its elements; that it does is a fault of its own.
        """
        values = dict(self.values)
        for load in asked:
            array = data.get(load.buffer)
            if array is None or load.flat or load in values:
                continue
            index = [self.array(i, lets, sizes) for i in load.args]
            inside = zip(index, array.shape, strict=True)
            place = tuple([np.clip(i, 0, max(extent - 1, 0)) for i, extent in inside])
            values[load] = array[place] if array.size else np.zeros(self.count, np.int64)
        return Points(self.count, values, self.thread, self.block, self.time)

    def expand(self, var: Index, extent: int) -> Points:
        """Return each point once for every iteration of a loop."""
        values = {v: np.repeat(a, extent) for v, a in self.values.items()}
        values[var] = np.tile(np.arange(extent, dtype=np.int64), self.count)
        return Points(
            self.count * extent,
            values,
            np.repeat(self.thread, extent),
            np.repeat(self.block, extent),
            np.repeat(self.time, extent),
        )

    def value(self, node: Expr, lets: Mapping[Local, Site], sizes: Mapping[str, int]) -> Any:
        """Return an expression at every point: an array, or one number for all.

        Raises:
            Undecidable: it depends on data.
            ZeroDivisionError: a divisor is 0.
        """
        found = self._memo.get(node)
        if found is None:
            found = self._memo[node] = self._value(node, lets, sizes)
        return found

    def _value(self, node: Expr, lets: Mapping[Local, Site], sizes: Mapping[str, int]) -> Any:
        match node:
            case Const():
                return node.value if node.dtype.is_bool else int(node.value)
            case Symbol():
                return sizes[node.name]
            case Load() | Index() | LaunchIndex() | Coordinate():
                if node in self.values:
                    return self.values[node]
                if isinstance(node, LaunchIndex):
                    return 0
            case Local():
                if node in self.values:
                    return self.values[node]
                let = lets[node].node if node in lets else None
                if isinstance(let, kir.Let):
                    return self.value(let.value, lets, sizes)
            case Op() if node.op in OPERATIONS:
                try:
                    return _operated(node, [self.value(a, lets, sizes) for a in node.args])
                except ZeroDivisionError:
                    if node.op not in ("where", "and", "or"):
                        raise
                return self._lazily(node, lets, sizes)
        raise Undecidable(f"an index or a test depends on data: {node}")

    def _lazily(self, node: Op, lets: Mapping[Local, Site], sizes: Mapping[str, int]) -> Any:
        """Return an operation of which each point evaluates only what its first operand asks for.

        Raises:
            ZeroDivisionError: a divisor is 0 that is evaluated.
        """
        first = np.broadcast_to(self.value(node.args[0], lets, sizes), (self.count,))
        # Of `or` the second operand is asked for where the first one is false, else where it is
        # true; of `where` the third one where it is false.
        chosen = first if node.op != "or" else ~first
        result = np.array(first, np.int64 if node.op == "where" else np.bool_)
        for arg, where in zip(node.args[1:], (chosen, ~chosen), strict=False):
            some = self.take(where)
            if some.count:
                result[where] = some.value(arg, lets, sizes)
        return result

    def array(self, node: Expr, lets: Mapping[Local, Site], sizes: Mapping[str, int]) -> Array:
        """Return an index expression at every point, as an array."""
        if not self.count:
            return np.zeros(0, np.int64)
        found = np.asarray(self.value(node, lets, sizes), dtype=np.int64)
        return np.broadcast_to(found, (self.count,))

    def where(self, guards: Guards, lets: Mapping[Local, Site], sizes: Mapping[str, int]) -> Flags:
        """Return at which points all conditions hold."""
        result: Flags = np.ones(self.count, np.bool_)
        if not self.count:
            return result
        for condition, wanted in guards:
            found = np.broadcast_to(self.value(condition, lets, sizes), (self.count,))
            result &= found if wanted else ~found
        return result


def fits_launch(extents: Mapping[ParallelType, int]) -> bool:
    """Whether a block of these extents is within the limits of a launch."""
    block = {d: extents.get(d, 1) for d in BLOCK_DIMENSIONS}
    deep = any(size > MOST_ALONG[d] for d, size in block.items())
    return not deep and math.prod(block.values()) <= MOST_THREADS


def groups_along(
    dims: Collection[ParallelType], places: Mapping[ParallelType, Array], key: Array
) -> Array:
    """Return a number for each point: that of its group of threads along launch dimensions `dims`.

    Args:
        dims: the dimensions along which threads of one group differ.
        places: the place of each point along each dimension of its block.
        key: a number that points of one group share, such as that of block and moment.
    """
    for dim, place in places.items():
        if dim not in dims:
            # A place is below the largest block: no two (key, place) give one number.
            key = key * MOST_THREADS + place
    return key


class Enumeration:
    """The points of every site of a program at given sizes.

    Args:
        model: the program.
        sizes: the value of every size symbol.
        most: at most so many points of one statement.
        first: the flags of the arrivals of whose blocks the first goes on at every other counter;
            else it is the last one.
        data: the elements of inputs that tests load.

    Attributes:
        faults: arrivals that do not add up: (site, sentence).

    Raises:
        TooMany, Undecidable, NoLaunch: see there.
    """

    def __init__(
        self,
        model: Model,
        sizes: Mapping[str, int],
        most: int,
        first: Collection[Local] = (),
        data: Mapping[Buffer, Array] = MappingProxyType({}),
    ) -> None:
        self.model, self.sizes, self.most, self.first = model, sizes, most, first
        self.data = data
        program = model.program
        launch = {d: number(size, sizes) for d, size in program.launch}
        self.grid = [launch.get(d, 1) for d in GRID_DIMENSIONS]
        self.block = [launch.get(d, 1) for d in BLOCK_DIMENSIONS]
        self.threads = math.prod(self.block)
        total = math.prod(self.grid) * self.threads
        # An extent of fewer than no threads, as of N - 1 at N = 0, starts none either.
        if min(launch.values(), default=1) <= 0 or not fits_launch(launch):
            raise NoLaunch
        if total > most:
            raise TooMany
        lanes = np.arange(total, dtype=np.int64)
        self.launched = self._launched(lanes)
        values: dict[Expr, Any] = {LaunchIndex(d): self.launched[d] for d in launch}
        start = Points(total, values, lanes, lanes // self.threads, np.zeros_like(lanes))
        self.points: dict[Site, Points] = {}
        self.starts: dict[Site, int] = {}
        self.faults: list[tuple[Site, str]] = []
        self._site_of = {(s.node, s.time): s for s in model.sites}
        self._durations: dict[int, int] = {}  # of bodies, by identity: the model keeps them
        self.span = self._duration(program.body) + 1
        self._body(program.body, start, (), 0)

    def places(self, points: Points) -> dict[ParallelType, Array]:
        """Return the place of each point along each dimension of its block."""
        return {d: self.launched[d][points.thread] for d in BLOCK_DIMENSIONS}

    def _launched(self, lanes: Array) -> dict[Any, Array]:
        block, thread = lanes // self.threads, lanes % self.threads
        result: dict[Any, Array] = {}
        for dims, rest, extents in (
            (GRID_DIMENSIONS, block, self.grid),
            (BLOCK_DIMENSIONS, thread, self.block),
        ):
            x, y, _ = extents
            result.update(zip(dims, along_dimensions(rest, x, y), strict=True))
        return result

    # Time: a number that grows with the time vector

    def _duration(self, body: tuple[kir.Stmt, ...]) -> int:
        found = self._durations.get(id(body))
        if found is None:
            found = self._durations[id(body)] = sum([self._ticks(node) for node in body])
        return found

    def _ticks(self, node: kir.Stmt) -> int:
        inner = sum([self._duration(body) for body in kir.bodies(node)])
        if isinstance(node, kir.Loop):
            return inner if node.parallel.is_thread else inner * self.extent(node)
        return inner + (not isinstance(node, kir.Issue))

    def extent(self, loop: kir.Loop) -> int:
        """Return the number of iterations of a loop."""
        return max(number(loop.var.extent, self.sizes), 0)

    def formula(self, site: Site) -> tuple[int, list[tuple[Index, int]]]:
        """Return the time of a site: a start, and what an iteration of each loop adds."""
        steps = [(loop.var, self._duration(loop.body)) for loop in site.serial]
        return self.starts[site], steps

    def moment(self, earlier: Site, points: Points) -> Array:
        """Return the time at which an enclosing body's statement ran for each of the points."""
        start, steps = self.formula(earlier)
        result = np.full(points.count, start, np.int64)
        for var, step in steps:
            result += points.values[var] * step
        return result

    def _body(
        self, body: tuple[kir.Stmt, ...], points: Points, time: tuple[int | Index, ...], start: int
    ) -> None:
        """Visit `body`; `start` is the time of its first statement after that in `points`."""
        for place, node in enumerate(body):
            now = (*time, place)
            match node:
                case kir.Loop():
                    self._loop(node, points, now, start)
                case kir.If():
                    self._if(node, points, now, start)
                case kir.Collective():
                    self._site(self._site_of[node, (*now, 0)], points, start)
                    self._body(node.body, points, (*now, 1), start + 1)
                case kir.Issue():
                    self._body(node.body, points, now, start)
                case _:
                    site = self._site_of[node, now]
                    self._site(site, points, start)
                    if isinstance(node, kir.Arrive):
                        points = self._arrive(site, node, points)
            start += self._ticks(node)

    def _site(self, site: Site, points: Points, start: int) -> None:
        self.starts[site] = start
        self.points[site] = Points(
            points.count, points.values, points.thread, points.block, points.time + start
        )

    def _loop(
        self, node: kir.Loop, points: Points, now: tuple[int | Index, ...], start: int
    ) -> None:
        extent = self.extent(node)
        if node.parallel.is_thread:
            index = points.values.get(LaunchIndex(node.parallel))
            if index is None:
                index = np.zeros(points.count, np.int64)
            inside = points.take(index < extent)
            inside.values[node.var] = index[index < extent]
            self._body(node.body, inside, now, start)
            return
        if not self._duration(node.body):
            extent = min(extent, 1)  # loops that do not run hold all that it does
        if points.count * extent > self.most:
            raise TooMany
        inside = points.expand(node.var, extent)
        # All that an iteration does has times from its own start on, below that of the next one.
        inside.time = inside.time + inside.values[node.var] * self._duration(node.body)
        self._body(node.body, inside, (*now, node.var), start)

    def _if(self, node: kir.If, points: Points, now: tuple[int | Index, ...], start: int) -> None:
        test = self._site_of.get((node, (*now, 0)))  # of data
        if test is not None:
            self._site(test, points, start)
        points = points.with_data(loads(node.condition), self.data, self.model.names, self.sizes)
        holds = points.where(((node.condition, True),), self.model.names, self.sizes)
        self._body(node.body, points.take(holds), (*now, 1), start + 1)
        later = start + 1 + self._duration(node.body)
        self._body(node.orelse, points.take(~holds), (*now, 2), later)

    # Arrivals

    def counter(self, site: Site, points: Points) -> Array:
        """Return the number of the counter that each point of an arrival arrives at."""
        assert isinstance(site.node, kir.Arrive)
        result = np.zeros(points.count, np.int64)
        for node, size in zip(site.node.index, site.node.counter.shape, strict=True):
            value = points.array(node, self.model.names, self.sizes)
            result = result * max(number(size, self.sizes), 1) + value
        return result

    def lets_first_go_on(self, node: kir.Arrive, count: int) -> Flags:
        """Return at which of `count` counters, in order, the first block arrives last.

        At every other one: which block it is at one counter says nothing of the next.
        """
        result: Flags = (np.arange(count) % 2 == 0) & (node.var in self.first)
        return result

    def _arrive(self, site: Site, node: kir.Arrive, points: Points) -> Points:
        """Return the points with the flag of an arrival; note where the blocks are not as many."""
        counter = self.counter(site, points)
        count = points.array(node.count, self.model.names, self.sizes)
        blocks = math.prod(self.grid)
        times = self.points[site].time
        once = np.unique(np.stack([counter, points.block, times]), axis=1)
        arrivals, size = np.unique(once[0], return_counts=True)
        found = np.searchsorted(arrivals, counter)
        if points.count and bool((size[found] != count).any()):
            p = int(np.flatnonzero(size[found] != count)[0])
            message = f"{int(size[found[p]])} blocks arrive at {node.counter.name}, not {count[p]}"
            self.faults.append((site, message))
        # (counter, block, time) are unique: fewer (counter, block) than those are two times.
        if np.unique(once[:2], axis=1).shape[1] != once.shape[1]:
            self.faults.append((site, f"a block arrives twice at one {node.counter.name}"))
        least, most = np.full(arrivals.size, blocks, np.int64), np.full(arrivals.size, -1, np.int64)
        place = np.searchsorted(arrivals, once[0])
        np.minimum.at(least, place, once[1])
        np.maximum.at(most, place, once[1])
        chosen = np.where(self.lets_first_go_on(node, arrivals.size), least, most)
        flag = points.block == chosen[found] if points.count else np.zeros(0, np.bool_)
        values = {**points.values, node.var: flag}
        return Points(points.count, values, points.thread, points.block, points.time)
