"""Random sizes to run a fusion at: what it assumes holds at all of them."""

from __future__ import annotations

import math
from random import Random

import loopnest as ln
from loopnest.devtools.fuzzing.case_lines import Sizes
from loopnest.scalar.arguments import size_value
from loopnest.scalar.expr import Expr, Symbol, walk

_DIVISIBLE, _RAGGED, _LARGER = (4, 8, 16), (2, 3, 5, 7, 9, 11, 13), (17, 19, 24, 33)
_MOST = 2500
"""The most points that one tensor may be computed at."""


def choose_sizes(fusion: ln.Fusion, rng: Random) -> tuple[Sizes, ...]:
    """Return sizes to run at: divisible, ragged, with ones, with a zero, and once a larger one."""
    names = [s.name for s in fusion.symbols]
    if not names:
        return ({},)
    whole = {n: rng.choice(_DIVISIBLE) for n in names}
    ragged = {n: rng.choice(_RAGGED) for n in names}
    ones = {n: 1 if rng.random() < 0.6 else rng.choice(_RAGGED) for n in names}
    ones[rng.choice(names)] = 1
    zero = {n: rng.choice(_RAGGED) for n in names}
    zero[rng.choice(names)] = 0
    larger = {n: rng.choice(_RAGGED[:3]) for n in names}
    larger[rng.choice(names)] = rng.choice(_LARGER)
    tried = [_fitting(fusion, sizes) for sizes in (whole, ragged, ones, zero, larger)]
    found = [sizes for sizes in tried if sizes is not None]
    return tuple(s for n, s in enumerate(found) if s not in found[:n])


def _fitting(fusion: ln.Fusion, sizes: Sizes) -> Sizes | None:
    """Return sizes that the fusion's assumptions allow and that are not too large, if any."""
    result = dict(sizes)
    while _points(fusion, result) > _MOST and max(result.values()) > 2:
        largest = max(result, key=lambda name: result[name])
        result[largest] = (result[largest] + 1) // 2
    return result if _fit(fusion, result) else None


def _fit(fusion: ln.Fusion, sizes: Sizes) -> bool:
    """Change `sizes` until they are what the fusion assumes; return whether they are."""
    conditions = [condition for _, condition in fusion.facts.conditions]
    for _ in range(20):
        broken = next((c for c in conditions if not size_value(c, sizes)), None)
        if broken is None:
            return True
        _mend(broken, sizes)
    return False


def _mend(condition: Expr, sizes: Sizes) -> None:
    """Change one size so that a condition holds, if there is one that does it."""
    for name in [node.name for node in walk(condition) if isinstance(node, Symbol)]:
        now = sizes[name]
        for value in (8 * ((now + 7) // 8), *range(now + 1, 40), *range(now)):
            if size_value(condition, {**sizes, name: value}):
                sizes[name] = value
                return


def _points(fusion: ln.Fusion, sizes: Sizes) -> int:
    return max(
        math.prod([size_value(axis.size, sizes) for axis in tensor.root_domain])
        for tensor in fusion.tensors
    )
