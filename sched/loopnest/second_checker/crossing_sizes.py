"""Sizes to run a nest at: each loop over tiles runs over two of them, and begins a third."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product

from loopnest import kir
from loopnest.scalar.arguments import size_value
from loopnest.scalar.enums import MOST_ALONG, MOST_THREADS
from loopnest.scalar.expr import Const, Expr, Op, Symbol, variables, walk

BEGUN = 3
"""How often a loop runs where it has crossed two tiles."""

COSTLY = 20
"""How many times more statements may run where all sizes with elements run too many."""

_ODD = (5, 3, 7, 2, 6, 4)
_LARGEST = 1 << 14
_MOST_SEARCHED = 20_000
_MOST_FOUND = 4
_LONGER = (1, 4, 16, 64)


def crossing_sizes(
    program: kir.Program, conditions: Sequence[Expr], most: int
) -> Iterator[dict[str, int]]:
    """Yield sizes that fulfil conditions, at which about `most` statements run at most.

    First all axes cross two tiles by one element, then they fill them; where these are too many
    statements, one or two axes at a time. Then small sizes, ones, and an axis without elements.
    Where a tile of constants is so large that all of these with elements take more, the one that
    takes the fewest comes first, if it takes no more than `COSTLY` times as many.
    """
    names = [p.name for p in program.params if p.kind == "size"]
    usual = [_tied(sizes, conditions) for sizes in _telling(program, names, conditions, most)]
    found = [sizes for sizes in usual if fulfils(program, conditions, sizes)]
    if not any(all(sizes.values()) for sizes in found):
        found += _searched(program, names, conditions)
    fitting = [sizes for sizes in found if statements_at(program, sizes) <= most]
    telling = [sizes for sizes in found if all(sizes.values())]
    if telling and not any(all(sizes.values()) for sizes in fitting):
        least = min(telling, key=lambda sizes: statements_at(program, sizes))
        if statements_at(program, least) <= COSTLY * most:
            yield least
    yield from [sizes for n, sizes in enumerate(fitting) if sizes not in fitting[:n]]


def ended_loops(program: kir.Program) -> dict[kir.Until, kir.Loop]:
    """Return the loops that run in order and whose last statement may end them."""
    loops = [n for n in program.nodes if isinstance(n, kir.Loop) and n.body]
    ends = [(n.body[-1], n) for n in loops if n.parallel.order == "ascending"]
    return {end: loop for end, loop in ends if isinstance(end, kir.Until)}


def longer_sizes(
    program: kir.Program,
    tried: Sequence[Mapping[str, int]],
    conditions: Sequence[Expr],
    most: int,
) -> list[Mapping[str, int]]:
    """Return sizes at which data may end loops or not, those first at which few statements run.

    They are those of `tried` that have elements, one with all axes alike, for what converges on
    square matrices alone, and all of these with more steps of the loops that a condition ends.
    """
    extents = [loop.var.extent for loop in ended_loops(program).values()]
    steps = {v.name for extent in extents for v in variables(extent) if isinstance(v, Symbol)}
    names = [p.name for p in program.params if p.kind == "size"]
    alike = {name: _up(BEGUN, _step(name, conditions)) for name in names}
    found: list[Mapping[str, int]] = []
    for sizes in [alike, *[sizes for sizes in tried if all(sizes.values())]] if extents else []:
        for times in _LONGER:
            longer = {name: size * times if name in steps else size for name, size in sizes.items()}
            longer = _tied(longer, conditions)
            if longer not in found and fulfils(program, conditions, longer):
                found.append(longer)
    fitting = [s for s in found if s in tried or statements_at(program, s) <= most]
    return sorted(fitting, key=lambda sizes: statements_at(program, sizes))


def fulfils(program: kir.Program, conditions: Sequence[Expr], sizes: Mapping[str, int]) -> bool:
    """Whether a launch accepts these sizes."""
    try:
        if not all(size_value(condition, sizes) for condition in conditions):
            return False
    except ZeroDivisionError:
        return False
    if any(size_value(factor, sizes) < 1 for factor in program.split_factors):
        return False
    for part in program.launches:
        extents = {dim: size_value(size, sizes) for dim, size in part.launch}
        if any(size > MOST_ALONG[dim] for dim, size in extents.items()):
            return False
        if math.prod([size for dim, size in extents.items() if dim.is_block]) > MOST_THREADS:
            return False
    return True


def statements_at(program: kir.Program, sizes: Mapping[str, int]) -> int:
    """Return about how many statements run at these sizes, tests left aside."""
    total = 0
    for part in program.launches:
        threads = math.prod([max(size_value(size, sizes), 1) for _, size in part.launch])
        total += threads * _each(part.body, sizes)
    return total


def _each(body: Sequence[kir.Stmt], sizes: Mapping[str, int]) -> int:
    """Return how many statements a thread runs."""
    total = len(body)
    for node in body:
        times = 1
        if isinstance(node, kir.Loop) and not node.parallel.is_thread:
            times = max(size_value(node.var.extent, sizes), 0)
        total += times * sum([_each(inner, sizes) for inner in kir.bodies(node)])
    return total


def _telling(
    program: kir.Program, names: Sequence[str], conditions: Sequence[Expr], most: int
) -> Iterator[dict[str, int]]:
    if not names:
        yield {}
        return
    steps = {name: _step(name, conditions) for name in names}
    small = _small(names, steps)
    crossed = two_tiles(program, conditions)
    whole = {name: _up(max(crossed[name] - 1, 1), steps[name]) for name in names}
    yield crossed
    if statements_at(program, crossed) > most:
        yield from [{**small, name: crossed[name]} for name in names]
        for one, other in product(names, names):
            if one < other:
                yield {**small, one: crossed[one], other: crossed[other]}
    yield whole
    yield small
    yield {name: _up(1, steps[name]) for name in names}
    yield from [{**small, name: 0} for name in names]


def two_tiles(program: kir.Program, conditions: Sequence[Expr]) -> dict[str, int]:
    """Return for each size the least at which all loops over it run over two tiles and more."""
    names = [p.name for p in program.params if p.kind == "size"]
    steps = {name: _step(name, conditions) for name in names}
    small = _small(names, steps)
    return {name: _crossing(program, name, small, steps[name]) for name in names}


def _small(names: Sequence[str], steps: Mapping[str, int]) -> dict[str, int]:
    return {name: _up(_ODD[n % len(_ODD)], steps[name]) for n, name in enumerate(names)}


def _step(name: str, conditions: Sequence[Expr]) -> int:
    """Return a number of which conditions ask that a size is a multiple."""
    rests = [n for c in conditions for n in walk(c) if isinstance(n, Op) and n.op == "mod"]
    found = [r.args[1].value for r in rests
             if r.args[0] is Symbol(name) and isinstance(r.args[1], Const)]  # fmt: skip
    return math.lcm(*[int(value) for value in found if value > 0])


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


def _crossing(program: kir.Program, name: str, small: Mapping[str, int], step: int) -> int:
    """Return the least size at which all loops over an axis, and its parts, run often enough."""
    symbol, least = Symbol(name), small[name]
    buffers = [n.storage for n in program.nodes if isinstance(n, kir.Allocate)]
    often = max([BEGUN, *[buffer.stages + 2 for buffer in buffers if buffer.stages > 1]])
    extents = [size for part in program.launches for _, size in part.launch]
    extents += [n.var.extent for n in program.nodes if isinstance(n, kir.Loop)]
    parts = {n for extent in extents for n in walk(extent) if symbol in variables(n)}
    for part in parts:
        if isinstance(part, Op) and part.op in ("ceildiv", "floordiv"):
            least = max(least, _least(part, name, small, often))
    return _up(least, step)


def _least(extent: Expr, name: str, others: Mapping[str, int], goal: int) -> int:
    """Return the least size at which an extent is `goal`; 0 where none is that is not too large."""
    low, high = 0, 1
    while size_value(extent, {**others, name: high}) < goal:
        low, high = high, 2 * high
        if high > _LARGEST:
            return 0
    while high - low > 1:
        middle = (low + high) // 2
        if size_value(extent, {**others, name: middle}) < goal:
            low = middle
        else:
            high = middle
    return high


def _tied(sizes: Mapping[str, int], conditions: Sequence[Expr]) -> dict[str, int]:
    """Return sizes with those changed that a condition makes of others, as ``P == G + 1`` does."""
    found, made = dict(sizes), set[Expr]()
    for condition in conditions:
        if not isinstance(condition, Op) or condition.op != "eq":
            continue
        for one, other in (condition.args, condition.args[::-1]):
            used = variables(other)
            if isinstance(one, Symbol) and one not in used and used.isdisjoint(made):
                found[one.name] = size_value(other, found)
                made.add(one)
                break
    return found


def _searched(
    program: kir.Program, names: Sequence[str], conditions: Sequence[Expr]
) -> Iterator[dict[str, int]]:
    """Yield sizes made of the numbers in conditions, small ones first, where usual ones fail."""
    numbers = {int(n.value) for c in conditions for n in walk(c) if isinstance(n, Const)}
    near = [m * times + more for m in numbers for times in (1, 2, 3) for more in (0, 1)]
    values = sorted({*range(1, 9), *[value for value in near if value > 0]})
    choices = islice(product(values, repeat=len(names)), _MOST_SEARCHED)
    made = [dict(zip(names, choice, strict=True)) for choice in choices]
    yield from islice([s for s in made if fulfils(program, conditions, s)], _MOST_FOUND)
