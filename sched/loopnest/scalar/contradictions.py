"""Find assumptions that no sizes fulfil together, where bounds of sizes show it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TypeAlias

from loopnest.scalar.expr import Expr, Op, terms_of, walk
from loopnest.scalar.facts import Facts
from loopnest.scalar.polynomials import UNIT, Poly
from loopnest.scalar.simplify import Simplifier

Claim: TypeAlias = "tuple[str, Poly]"
"""The text of an assumption, and a sum of sizes that is 0 or less where it holds."""

_MOST = 40
"""How many claims, of the last assumptions, are added in pairs: pairs grow with their square."""

_MOST_CHAINS = 200
"""How many sums of claims in a chain are looked at."""


def contradiction(facts: Facts) -> str | None:
    """Return why no sizes fulfil all assumptions, as a clause; None where that is not found.

    Each assumption, each sum of two, and chains of more in which sizes cancel are bounded over the
    sizes that all of them leave.
    """
    conditions = facts.conditions
    algebra = Simplifier(replace(facts.copy(), used=set()))  # an assumption is not used here
    for size, low, high, step in algebra.facts.empty_ranges():
        texts = [text for text, test in conditions if _speaks_of(algebra, test, size)]
        multiple = f" and a multiple of {step}" if step > 1 else ""
        return f"{size} would be at least {low}, at most {high}{multiple}, by {_listed(texts)}"
    claims: list[Claim] = []
    for text, condition in conditions:
        for term in terms_of(condition):
            if isinstance(term, Op):
                if _is_false(algebra, term):
                    return f"with what was assumed before, {text!r} holds for no sizes"
                claims += [(text, poly) for poly in _claims(algebra, term)]
    for (one, a), (other, b) in combinations(claims[-_MOST:], 2):
        least = algebra.poly_range(algebra.combine(a, b, 1))[0]
        if least is not None and least > 0 and one != other:
            return f"{one!r} and {other!r} hold together for no sizes"
    return _chain(algebra, claims[-_MOST:])


def _chain(algebra: Simplifier, claims: Sequence[Claim]) -> str | None:
    """Return why the last assumption holds for no sizes, by a chain of others; None if unknown.

    Two claims are added so that a product of sizes cancels: ``N < M`` and ``M < K`` give ``N < K``,
    which ``K <= N`` contradicts. Those before the last one were looked at before.
    """
    last = claims[-1][0] if claims else ""
    found: list[tuple[tuple[str, ...], Poly]] = [
        ((text,), poly) for text, poly in claims if text == last
    ]
    for texts, poly in found:  # which grows
        for text, other in claims:
            if text in texts or len(found) > _MOST_CHAINS:
                continue
            for term in (t for t in poly if t != UNIT and poly[t] * other.get(t, 0) < 0):
                scaled = algebra.combine({}, poly, abs(other[term]))
                added = algebra.combine(scaled, other, abs(poly[term]))
                least = algebra.poly_range(added)[0]
                if least is not None and least > 0:
                    used = [t for t, _ in claims if t in (*texts, text)]
                    return f"{_listed(used)} hold together for no sizes"
                found.append(((*texts, text), added))
    return None


def _listed(texts: Sequence[str]) -> str:
    return " and ".join([repr(text) for text in dict.fromkeys(texts)])


def _speaks_of(algebra: Simplifier, test: Expr, size: Expr) -> bool:
    """Whether a size stands on a side of a comparison, or is divided there."""
    return any(
        algebra.facts.named(side) is size
        for term in terms_of(test)
        for arg in term.args
        for side in (arg, *arg.args)
    )


def _difference(algebra: Simplifier, term: Op) -> Poly:
    """Return the left side of a comparison minus its right one."""
    left, right = [algebra.poly(_solved(algebra, side)) for side in term.args]
    return algebra.combine(left, right, -1)


def _solved(algebra: Simplifier, side: Expr) -> Expr:
    """Return a sum or product of sizes with assumed equations put in.

    Quotients and minima stay: they are simplified as inside of loops, where no size is 0.
    """
    plain = all(not isinstance(n, Op) or n.op in _PLAIN for n in walk(side))
    return algebra.solved.apply(side) if plain else side


_PLAIN = ("add", "sub", "mul", "neg")


def _is_false(algebra: Simplifier, term: Op) -> bool:
    """Whether a comparison holds for no sizes."""
    if term.op == "ne":
        return algebra.poly_range(_difference(algebra, term)) == (0, 0)
    if term.op == "eq" and _differs_by_rest(_difference(algebra, term)):
        return True
    for poly in _claims(algebra, term):
        low = algebra.poly_range(poly)[0]
        if low is not None and low > 0:
            return True
    return False


def _differs_by_rest(difference: Poly) -> bool:
    """Whether a sum is never 0, since a number divides all of it but its constant: N * 2 - 7."""
    step = math.gcd(*[count for term, count in difference.items() if term != UNIT])
    return difference.get(UNIT, 0) % step != 0 if step else UNIT in difference


def _claims(algebra: Simplifier, term: Op) -> Iterator[Poly]:
    """Yield sums that are 0 or less where a comparison holds."""
    difference = _difference(algebra, term)
    opposite = algebra.combine({}, difference, -1)
    match term.op:
        case "eq":
            yield from (difference, opposite)
        case "le":
            yield difference
        case "lt":
            yield algebra.combine(difference, {UNIT: 1}, 1)
        case "ge":
            yield opposite
        case "gt":
            yield algebra.combine(opposite, {UNIT: 1}, 1)
