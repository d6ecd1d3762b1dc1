"""Small sizes to look at every point of: they fulfil the assumptions and cross the tiles' edges."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product

from loopnest import kir
from loopnest.kir.tiles import without_tiles
from loopnest.proofs.point_arrays import NoLaunch, Undecidable, fits_launch, number
from loopnest.scalar.dtypes import index
from loopnest.scalar.enums import MOST_ALONG, MOST_THREADS, ParallelType
from loopnest.scalar.expr import ONE, Const, Expr, Index, Op, Symbol, walk

_PRIMES = (3, 5, 2, 7, 4, 6)

_EXTENTS = (1024, 512, 256, 128, 64, 65, 33, 32, 31, 21, 16, 11, 8, 7, 4, 2)
"""Extents of a block that are looked at: powers of two, and some that end inside of a warp."""


def small_sizes(
    program: kir.Program, given: Mapping[str, int], hints: Sequence[Mapping[str, int]] = ()
) -> Iterator[dict[str, int]]:
    """Yield values of the size symbols, `given` ones as they are, the most telling first.

    `hints` are values of some of them at which something may fail.
    """
    free = [p.name for p in program.params if p.kind == "size" and p.name not in given]
    if not free:
        yield dict(given)
        return
    steps = [_step(program, name) for name in free]
    seen: set[tuple[int, ...]] = set()
    telling = False
    primes = tuple([_PRIMES[n % len(_PRIMES)] for n in range(len(free))])
    first = [tuple([filled(program, given, hint)[name] for name in free]) for hint in hints]
    repeated = _repeated(program, given, free, primes)
    widest = _widest(program, given, free, primes)
    candidates = _candidates(len(free), _tiles(program))
    fewer = _repeated_apart(program, given, free, primes)
    common = (primes, *repeated, *widest, *candidates, *fewer)
    plain = [
        tuple([-(-v // step) * step for v, step in zip(values, steps, strict=True)])
        for values in common
    ]
    for values in (*first, *plain):
        sizes = {**given, **dict(zip(free, values, strict=True))}
        key = tuple(sizes.values())
        if key not in seen and fulfils(program, sizes):
            seen.add(key)
            telling = telling or all(values)
            yield sizes
    if not telling:
        yield from _searched(program, given, free)


def large_sizes(program: kir.Program, given: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield sizes at which an extent of the block is one of `_EXTENTS`."""
    free = [p.name for p in program.params if p.kind == "size" and p.name not in given]
    for _, extent in reversed([(d, e) for d, e in program.launch if d.is_block]):
        for name in free:
            if Symbol(name) not in set(walk(extent)):
                continue
            step = _step(program, name)
            for other in (1, 2, 3, 8, 17):
                rest = {**given, **dict.fromkeys(free, other)}
                for goal in _EXTENTS:
                    value = least_size(extent, name, rest, goal)
                    sizes = {**rest, name: -(-value // step) * step}
                    if sizes[name] and fulfils(program, sizes) and starts(program, sizes):
                        yield sizes


def starts(program: kir.Program, sizes: Mapping[str, int]) -> bool:
    """Whether a block of these sizes is within the limits of a launch."""
    try:
        return all(
            fits_launch({d: number(size, sizes) for d, size in part.launch})
            for part in program.launches
        )
    except (NoLaunch, Undecidable):
        return False


def never_launched(program: kir.Program, given: Mapping[str, int]) -> Iterator[str]:
    """Yield why no launch admits a program: it is too large whatever the other sizes.

    Extents that are not known are taken for 1.
    """
    known: dict[ParallelType, int] = {}
    for dim, extent in program.launch:
        with suppress(KeyError, NoLaunch, Undecidable):
            known[dim] = number(extent, given)
    if 0 in known.values():
        return
    for dim, size in known.items():
        if size > MOST_ALONG[dim]:
            yield f"{dim.value} has the extent {size}; a launch takes at most {MOST_ALONG[dim]}"
    threads = math.prod([size for dim, size in known.items() if dim.is_block])
    if threads > MOST_THREADS:
        yield f"a block has {threads} threads; a launch takes at most {MOST_THREADS}"


def filled(
    program: kir.Program, given: Mapping[str, int], hint: Mapping[str, int]
) -> dict[str, int]:
    """Return values of all size symbols: `given` ones, those of a hint, and small ones."""
    free = [p.name for p in program.params if p.kind == "size" and p.name not in given]
    small = {name: _PRIMES[n % len(_PRIMES)] for n, name in enumerate(free)}
    return {**given, **{name: hint.get(name, value) for name, value in small.items()}}


def fulfils(program: kir.Program, sizes: Mapping[str, int]) -> bool:
    """Whether the assumptions hold at these sizes, and what this variant of the kernel requires."""
    try:
        conditions = (*program.conditions, *program.requires)
        return all(number(condition, sizes) for _, condition in conditions)
    except (NoLaunch, Undecidable):
        return False


def _candidates(count: int, tiles: Sequence[int]) -> Iterator[tuple[int, ...]]:
    primes = [_PRIMES[n % len(_PRIMES)] for n in range(count)]
    yield tuple(primes)
    for tile in tiles[:3]:
        yield tuple([tile + 1 + n for n in range(count)])
    yield tuple(reversed(primes))
    for place in range(count):
        yield tuple([0 if n == place else p for n, p in enumerate(primes)])
        yield tuple([1 if n == place else p for n, p in enumerate(primes)])
        for tile in tiles[-2:]:
            yield tuple([2 * tile + 1 if n == place else p for n, p in enumerate(primes)])
            yield tuple([tile - 1 if n == place else p for n, p in enumerate(primes)])
    yield (1,) * count
    for tile in tiles[:3]:
        yield (tile,) * count


def _step(program: kir.Program, name: str) -> int:
    """Return a number of which a size is a multiple, as far as assumptions ask for that."""
    conditions = (*program.conditions, *program.requires)
    found = [int(n.args[1].value) for _, c in conditions for n in walk(c)
             if isinstance(n, Op) and n.op == "mod" and isinstance(n.args[1], Const)
             and Symbol(name) in set(walk(n.args[0]))]  # fmt: skip
    return math.lcm(*[n for n in found if n > 0])


def _repeated(
    program: kir.Program, given: Mapping[str, int], free: Sequence[str], primes: Sequence[int]
) -> Iterator[tuple[int, ...]]:
    """Yield the least sizes at which each loop of symbolic extent runs as often as is telling.

    All of them together first, then as many as fill whole tiles, then one beside small ones.
    """
    least = [found[0] for found in _thresholds(program, given, free, primes)]
    yield tuple(least)
    yield tuple([max(value - 1, 1) for value in least])
    for place, value in enumerate(least):
        yield tuple([value if n == place else p for n, p in enumerate(primes)])


def _repeated_apart(
    program: kir.Program, given: Mapping[str, int], free: Sequence[str], primes: Sequence[int]
) -> Iterator[tuple[int, ...]]:
    """Yield the least sizes at which single loops run as often as is telling.

    One that needs a size with too many points to look at leaves others that need less.
    """
    for place, values in enumerate(_thresholds(program, given, free, primes)):
        for value in values[1:]:
            yield tuple([value if n == place else p for n, p in enumerate(primes)])


def _thresholds(
    program: kir.Program, given: Mapping[str, int], free: Sequence[str], primes: Sequence[int]
) -> Iterator[list[int]]:
    """Yield of each size those values at which a loop begins to run as often as is telling.

    The largest first; the last one is small.
    """
    extents = telling_extents(program)
    extents = {**dict.fromkeys(_factors(extents), 2), **extents}
    others = {**given, **dict(zip(free, primes, strict=True))}
    for name, prime in zip(free, primes, strict=True):
        mine = [(e, times) for e, times in extents.items() if Symbol(name) in set(walk(e))]
        found = {least_size(e, name, others, times) for e, times in mine}
        yield [*sorted([value for value in found if value > prime], reverse=True), prime]


def telling_extents(program: kir.Program) -> dict[Expr, int]:
    """Return the symbolic extents of loops, and how often such a loop runs where it tells much.

    Twice, so that there are two tiles of every split; one more than it has stages where a circular
    buffer turns, so that there is a steady iteration and a stage is filled again.
    """
    found: dict[Expr, int] = {}
    turns = _turns(program)
    for node, _ in kir.walk(program.body):
        if isinstance(node, kir.Loop) and any(isinstance(e, Symbol) for e in walk(node.var.extent)):
            extent = node.var.extent
            found[extent] = max(found.get(extent, 2), turns.get(node.var, 1) + 1)
    return found


def _factors(extents: Iterable[Expr]) -> Iterator[Expr]:
    """Yield the numbers of tiles that the extents of merged loops are made of."""
    for extent in extents:
        for node in walk(extent):
            if isinstance(node, Op) and node.op == "mul":
                yield from [e for e in node.args if isinstance(e, Op) and e.op == "ceildiv"]


def crossed(extents: Mapping[Expr, int], sizes: Mapping[str, int]) -> set[Expr]:
    """Return the extents that at these sizes are as large as is telling."""
    found = set()
    for extent, times in extents.items():
        with suppress(NoLaunch, Undecidable):
            if number(extent, sizes) >= times:
                found.add(extent)
    return found


def _turns(program: kir.Program) -> dict[Index, int]:
    """Return the loops that circular buffers turn with, and how many stages these have."""
    found: dict[Index, int] = {}
    for node, _ in kir.walk(program.body):
        if not isinstance(node, kir.Store) or node.storage.stages == 1:
            continue
        for part in (e for place in node.index for e in walk(place)):
            if isinstance(part, Op) and part.op == "mod":
                for var in (e for e in walk(part) if isinstance(e, Index)):
                    found[var] = max(found.get(var, 1), node.storage.stages)
    return found


def _widest(
    program: kir.Program,
    given: Mapping[str, int],
    free: Sequence[str],
    primes: Sequence[int],
) -> Iterator[tuple[int, ...]]:
    """Yield the largest size of each symbol at which a block is within the launch limits."""
    extents = [size for d, size in program.launch if d.is_block]
    threads: Expr = ONE
    for size in extents:
        threads = Op("mul", (threads, size), index)
    for place, name in enumerate(free):
        if Symbol(name) in set(walk(threads)):
            others = {**given, **dict(zip(free, primes, strict=True))}
            step = _step(program, name)
            most = (least_size(threads, name, others, MOST_THREADS + 1) - 1) // step * step
            if most > 0:
                yield tuple([most if n == place else p for n, p in enumerate(primes)])


def least_size(extent: Expr, name: str, others: Mapping[str, int], goal: int) -> int:
    """Return the least size at which an extent is `goal` or more, of sizes up to a million.

    0 where there is none.
    """
    try:
        low, high = 0, 1
        while number(extent, {**others, name: high}) < goal:
            low, high = high, 2 * high
            if high > 1 << 20:
                return 0
        while high - low > 1:
            middle = (low + high) // 2
            if number(extent, {**others, name: middle}) < goal:
                low = middle
            else:
                high = middle
    except (NoLaunch, Undecidable):
        return 0
    return high


def _searched(
    program: kir.Program, given: Mapping[str, int], free: Sequence[str]
) -> Iterator[dict[str, int]]:
    """Yield up to four sizes that fulfil assumptions which common candidates do not."""
    numbers = sorted({int(n.value) for _, c in (*program.conditions, *program.requires)
                      for n in walk(c)
                      if isinstance(n, Const) and n.value > 0})  # fmt: skip
    values = sorted({1, 2, 3, 4, 8, *(m * k for m in numbers for k in (1, 2, 3)),
                     *(m * k for m in numbers for k in numbers),
                     *(m + 1 for m in numbers)})  # fmt: skip
    found = 0
    for choice in product(values[:24], repeat=len(free)):
        sizes = {**given, **dict(zip(free, choice, strict=True))}
        if fulfils(program, sizes):
            yield sizes
            found += 1
            if found == 4:
                return


def _tiles(program: kir.Program) -> list[int]:
    """Return the constants that divide or multiply sizes and indices, the smallest first."""
    found: set[int] = set()

    def visit(node: Expr) -> None:
        for part in walk(node):
            if isinstance(part, Op) and part.op in ("ceildiv", "floordiv", "mod", "mul"):
                found.update(int(a.value) for a in part.args if isinstance(a, Const))

    for _, size in program.launch:
        visit(size)
    for node, _ in kir.walk(program.body):
        if isinstance(node, kir.Loop):
            visit(node.var.extent)
            if isinstance(node.var.extent, Const):
                found.add(int(node.var.extent.value))
        if isinstance(node, kir.Store):
            for place in node.index:
                visit(place)
    return sorted(t for t in found if t > 1)


def points_at(program: kir.Program, sizes: Mapping[str, int]) -> int:
    """Return about how many points the statements have at these sizes, tests left aside."""
    try:
        total = 0
        for part in without_tiles(program).launches:
            threads = math.prod([number(size, sizes) for _, size in part.launch])
            total += _points(part.body, threads, sizes)
        return total
    except (NoLaunch, Undecidable):
        return 0


def _points(body: tuple[kir.Stmt, ...], times: int, sizes: Mapping[str, int]) -> int:
    total = 0
    for node in body:
        inside = times
        if isinstance(node, kir.Loop) and not node.parallel.is_thread:
            inside = times * number(node.var.extent, sizes)
        total += sum([_points(inner, inside, sizes) for inner in kir.bodies(node)])
        if not node.encloses and not isinstance(node, (kir.Let, kir.Allocate, kir.Arrive)):
            total += times
    return total
