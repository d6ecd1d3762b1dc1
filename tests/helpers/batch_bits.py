"""Rows of a small launch inside of a large one on "c": are the bits of common elements the same?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import loopnest as ln
from loopnest.devtools.harness import make_arguments
from loopnest.launch.strided_arrays import arranged
from loopnest.proofs.bit_claims import common_data, scalar_data
from loopnest.proofs.program_model import equal_sizes
from loopnest.proofs.size_choice import fulfils, points_at, small_sizes, starts
from loopnest.scalar.arguments import size_value
from loopnest.scalar.expr import Symbol, variables
from loopnest.tensor.math_snapshot import thaw

MOST_POINTS = 3_000_000
_PAIRS = ((1, 3), (3, 70), (4, 64), (31, 97), (8, 130), (5, 6), (64, 65), (2, 4), (16, 272))
_OTHERS = (133, 132, 64, 20, 33, 8, 5, 4, 2)


def pairs(program: ln.kir.Program, size: str, most: int) -> Iterator[tuple[dict, dict]]:
    """Yield two sets of sizes that differ in one of them, of launches that run."""
    plain = replace(program, requires=())
    names = [p.name for p in program.params if p.kind == "size"]
    equal = {n: v for n, v in equal_sizes(program).items() if Symbol(size) in variables(v)}
    small = [{**s, size: few} for s in small_sizes(plain, {}) for few, _ in _PAIRS[:2]]
    usual = [{**dict.fromkeys(names, o), size: few} for o in _OTHERS for few, _ in _PAIRS]
    seen = 0
    used: dict[tuple[int, ...], int] = {}
    for few in (*usual, *small):
        rest = tuple(v for n, v in few.items() if n != size)
        for one, many in _PAIRS:
            both = []
            for n in (one, many):
                sizes = {**few, size: n}
                sizes |= {name: size_value(value, sizes) for name, value in equal.items()}
                both.append(sizes)
            if one != few[size] or used.get(rest, 0) >= max(most // 2, 1):
                continue
            if all(fulfils(plain, s) and starts(plain, s) for s in both) and (
                points_at(program, both[1]) <= MOST_POINTS
            ):
                used[rest] = used.get(rest, 0) + 1
                seen += 1
                yield both[0], both[1]
                if seen == most:
                    return


def differing(
    run: Any,
    few: Mapping[str, int],
    many: Mapping[str, int],
    ranges: Mapping[str, Any] | None = None,
    seed: int | None = 0,
) -> str | None:
    """Return an element of which the bits differ in two launches; None where all are the same.

    With the `seed` None of the data by which a claim shows that values depend on the size.
    """
    fusion = thaw(run.kernel._lowered.math())
    both = (few, many)
    if seed is None:
        given = common_data(run.kernel._lowered.math(), both)
        scalars = scalar_data(fusion)
    else:
        arguments = make_arguments(fusion, many, {**(ranges or {}), **declared(fusion, both)}, seed)
        given, scalars = [part(fusion, arguments.arrays, s) for s in both], arguments.scalars
    results = []
    for sizes, arrays in zip(both, given, strict=True):
        shaped = {str(s) for t in fusion.inputs for s in t.sizes}
        free = {s.name: sizes[s.name] for s in fusion.symbols if s.name not in shaped}
        placed = [
            a.copy()
            if t.strides is None
            else arranged(a, [size_value(n, sizes) for n in t.strides])
            for t, a in zip(fusion.inputs, arrays, strict=True)
        ]
        if not all(map(np.array_equal, placed, arrays)):
            return None  # strides by which elements share a place
        found = run(*placed, **scalars, **free)
        results.append(found if isinstance(found, tuple) else (found,))
    return other_bits(fusion, *results)


def apart(
    one: Any, other: Any, sizes: Mapping[str, int], ranges: Mapping[str, Any] | None, seed: int = 0
) -> str | None:
    """Return an element of which two kernels give other bits; None where all are the same."""
    fusion = thaw(one.kernel._lowered.math())
    arguments = make_arguments(
        fusion, sizes, {**(ranges or {}), **declared(fusion, (sizes,))}, seed
    )
    results = []
    for run in (one, other):
        found = run(*arguments.fresh(), **arguments.keywords(fusion))
        results.append(found if isinstance(found, tuple) else (found,))
    return other_bits(fusion, *results)


def other_bits(
    fusion: ln.Fusion, one: Sequence[np.ndarray], other: Sequence[np.ndarray]
) -> str | None:
    """Return a common element of results that has other bits, None where all are the same."""
    for output, a, b in zip(fusion.outputs, one, other, strict=True):
        common = tuple(map(slice, np.minimum(a.shape, b.shape)))
        first, second = [np.ascontiguousarray(v[common]) for v in (a, b)]
        bits = f"V{first.dtype.itemsize}"
        differs = first.view(bits) != second.view(bits)
        if differs.any():
            place = np.unravel_index(int(np.flatnonzero(differs)[0]), differs.shape)
            where = f"{output.name}{list(map(int, place))}"
            return f"{where} is {first[place]!r}, not {second[place]!r}"
    return None


def declared(fusion: ln.Fusion, both: Sequence[Mapping[str, int]]) -> dict[str, tuple[int, int]]:
    """Return the ranges of inputs that are declared at all of some sizes."""
    return {
        r.name: (
            max(size_value(r.low, s) for s in both),
            min(size_value(r.high, s) for s in both) - 1,
        )
        for r in fusion.ranges
    }


def part(
    fusion: ln.Fusion, arrays: Sequence[np.ndarray], sizes: Mapping[str, int]
) -> list[np.ndarray]:
    """Return the parts of arrays that a launch at these sizes has."""
    shapes = [[size_value(s, sizes) for s in t.sizes] for t in fusion.inputs]
    return [a[tuple(map(slice, shape))] for a, shape in zip(arrays, shapes, strict=True)]
