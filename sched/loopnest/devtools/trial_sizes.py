"""Small sizes to run a loop nest at: they fulfil its assumptions, and fill tiles differently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product
from typing import TypeAlias

from loopnest import kir
from loopnest.scalar.arguments import size_value
from loopnest.scalar.expr import Const, Expr, Op, Symbol, walk

Sizes: TypeAlias = "dict[str, int]"

_ODD = (5, 3, 7, 11, 13, 17)
SMALL_POINTS = 2_000_000
"""Sizes that are chosen here run at most so many statements."""
MOST_POINTS = 200_000_000
"""Sizes that are given, or static, run at most so many: some seconds on the interpreter."""
_MOST_SEARCHED = 20_000
"""So many sets of sizes are tried on the assumptions where usual ones do not fulfil them."""
_MOST_COSTLY = 50
"""So many sets that run too many statements are looked at, for the one that runs the fewest."""


def trial_sizes(
    program: kir.Program,
    given: Mapping[str, int] | None = None,
    count: int = 4,
    most: int = SMALL_POINTS,
) -> Iterator[Sizes]:
    """Yield small sizes to run a kernel at, the most telling first; `given` ones as they are.

    They fulfil the kernel's assumptions. Tiles are crossed by one element, hardly begun, filled
    exactly; then every size is 1. Yields one empty set where all sizes are static, none where no
    small sizes fulfil the assumptions.

    Args:
        program: the loop nest.
        given: sizes that are fixed.
        count: how many sets at most.
        most: how many statements may run. Where all sizes run more, since a tile of constants is
            that large, the set that runs the fewest is yielded alone.
    """
    from loopnest.proofs.size_choice import fulfils, points_at

    fixed = dict(given or {})
    free = [p.name for p in program.params if p.kind == "size" and p.name not in fixed]
    if not free:
        yield fixed
        return
    tied = _tied(program, free)
    seen: list[Sizes] = []
    costly: list[tuple[int, Sizes]] = []
    for enough, candidates in (
        (count, _candidates(program, fixed, free, most)),
        (min(count, 2), _searched(program, free)),
    ):
        for found in candidates:
            sizes = {**fixed, **found}
            sizes |= {name: size_value(size, sizes) for name, size in tied.items()}
            if len(seen) >= enough or len(costly) >= _MOST_COSTLY:
                break
            if sizes in seen or not fulfils(program, sizes):
                continue
            points = points_at(program, sizes)
            if points <= most:
                seen.append(sizes)
                yield sizes
            else:
                costly.append((points, sizes))
    if costly and not seen:
        yield min(costly, key=lambda one: one[0])[1]


def _tied(program: kir.Program, free: Sequence[str]) -> dict[str, Expr]:
    """Return the sizes that an assumption makes of others, as ``P == G + 1`` does."""
    found: dict[str, Expr] = {}
    for _, condition in program.conditions:
        if not isinstance(condition, Op) or condition.op != "eq":
            continue
        for one, other in (condition.args, condition.args[::-1]):
            names = {n.name for n in walk(other) if isinstance(n, Symbol)}
            if isinstance(one, Symbol) and one.name in free and names.isdisjoint(found):
                if one.name not in names:
                    found[one.name] = other
                break
    return found


def sizes_of_variants(program: kir.Program, fixed: Mapping[str, int]) -> list[Sizes]:
    """Return sizes at which each variant of a kernel runs, if any fulfil what it requires."""
    from loopnest.proofs.size_choice import fulfils

    found = list(trial_sizes(replace(program, requires=()), fixed))
    if program.requires and not any(fulfils(program, sizes) for sizes in found):
        found += trial_sizes(program, fixed, 1)
    return found


def may_run(program: kir.Program, fixed: Mapping[str, int]) -> bool:
    """Whether what a variant requires can hold where these sizes are fixed."""
    known = [
        condition
        for _, condition in program.requires
        if all(n.name in fixed for n in walk(condition) if isinstance(n, Symbol))
    ]
    return all(size_value(condition, fixed) for condition in known)


def _candidates(
    program: kir.Program, fixed: Mapping[str, int], free: Sequence[str], most: int
) -> Iterator[Sizes]:
    tiles = tiles_of(program)
    odd = {name: _ODD[n % len(_ODD)] for n, name in enumerate(free)}
    crossing = {n: tiles[n] + 1 if tiles.get(n, 1) > 1 else odd[n] for n in free}
    whole = {n: tiles[n] if tiles.get(n, 1) > 1 else odd[n] + 1 for n in free}
    yield _affordable(program, fixed, crossing, odd, most)
    yield odd
    yield _affordable(program, fixed, whole, odd, most)
    yield dict.fromkeys(free, 1)


def _searched(program: kir.Program, free: Sequence[str]) -> Iterator[Sizes]:
    """Yield sizes made of the numbers in the assumptions, small ones first."""
    numbers = {int(n.value) for _, c in program.conditions for n in walk(c) if isinstance(n, Const)}
    known = sorted(n for n in numbers if n > 1)
    values = dict.fromkeys(
        [*_ODD[:3], *[m * k + d for k in (1, 3, 2) for m in known for d in (0, 1, -1)]]
    )
    # A bound and a multiple in one: ``N >= 50`` and ``N % 8 == 0``.
    values.update(dict.fromkeys([-(-m // by) * by for m in known for by in known if by < m]))
    places = product(range(len(values)), repeat=len(free))
    ranked = sorted(islice(places, _MOST_SEARCHED), key=sum)
    for place in ranked:
        yield {name: list(values)[p] for name, p in zip(free, place, strict=True)}


def _affordable(
    program: kir.Program,
    fixed: Mapping[str, int],
    sizes: Sizes,
    small: Mapping[str, int],
    most: int,
) -> Sizes:
    """Return `sizes`, the largest of them replaced by small ones until few statements run."""
    from loopnest.proofs.size_choice import points_at

    result = dict(sizes)
    for name in sorted(sizes, key=lambda n: -sizes[n]):
        if points_at(program, {**fixed, **result}) <= most:
            break
        result[name] = small[name]
    return result


def tiles_of(program: kir.Program) -> dict[str, int]:
    """Return for each size symbol the product of the constants that its loops split it by.

    A loop over ``ceildiv(ceildiv(M, 4), 16)`` makes tiles of 64 of M.
    """
    result: dict[str, int] = {}
    extents = [size for _, size in program.launch]
    extents += [n.var.extent for n, _ in kir.walk(program.body) if isinstance(n, kir.Loop)]
    for extent in extents:
        for name, tile in _tiles(extent).items():
            result[name] = max(result.get(name, 1), tile)
    return result


def _tiles(size: Expr) -> dict[str, int]:
    if isinstance(size, Symbol):
        return {size.name: 1}
    if not isinstance(size, Op):
        return {}
    factor = 1
    if size.op in ("ceildiv", "floordiv") and isinstance(size.args[1], Const):
        factor = int(size.args[1].value)
    result: dict[str, int] = {}
    for arg in size.args:
        for name, tile in _tiles(arg).items():
            result[name] = max(result.get(name, 1), tile * factor)
    return result
