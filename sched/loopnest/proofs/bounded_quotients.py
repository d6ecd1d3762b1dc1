"""Quotients by a size that have few values: of ``(i + 1) % M`` and ``(i - 5) // (M - 1)``.

isl divides by numbers alone. Where isl shows that at every point that uses it a quotient ``q =
whole // by`` is one of a few numbers k, q becomes a variable of its own, tied to the indices by one
case for each: ``k * by <= whole < (k + 1) * by and q = k``. In a case all products of q are linear,
and a remainder is ``whole - q * by``.

A case says that the divisor is positive. The tie is exact at the points where some case holds, and
leaves out all others; that a statement has none of these, whether it uses q or not, is shown when
its points are made (`PolyhedralModel`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from loopnest.proofs.program_model import terms
from loopnest.proofs.quasi_affine import NotAffine, Poly, constant, plus, times

if TYPE_CHECKING:
    from loopnest.proofs.isl_spaces import Spaces
    from loopnest.proofs.program_model import Guards, Site
    from loopnest.scalar.expr import Expr

MOST_QUOTIENTS = 8
"""How many values a quotient may have."""


class BoundedQuotients:
    """The quotients of a program that have few values.

    Args:
        spaces: its variables; groups are known.

    Attributes:
        values: the values of each quotient, by its variable.
        covers: for each the condition that it has one of these.
    """

    def __init__(self, spaces: Spaces) -> None:
        self.spaces, self.algebra = spaces, spaces.algebra
        self.values: dict[str, range] = {}
        self.covers: dict[str, str] = {}
        self._keys: dict[str, str] = {}

    def find(self, nodes: Sequence[Expr]) -> None:
        """Make variables for the quotients in index expressions, and for products of these.

        Raises:
            NotAffine: one has many values.
        """
        uses: dict[Expr, list[tuple[Site, Guards]]] = {node: [] for node in nodes}
        for part, site, guards in self.spaces.uses() if nodes else ():
            if part in uses:
                uses[part].append((site, guards))
        for node, places in uses.items():
            for monomial in self._divided(node, places):
                for v in set(monomial) & self.values.keys():
                    rest = list(monomial)
                    rest.remove(v)
                    if rest:
                        self._product(v, tuple(rest))

    def _divided(self, node: Expr, places: Sequence[tuple[Site, Guards]]) -> Poly:
        """Return an index expression in which each quotient has a variable."""
        while True:
            start = len(self.algebra.divisions)
            try:
                return self.algebra.poly(node, self.spaces.env)
            except NotAffine:
                if len(self.algebra.divisions) == start:
                    raise
            self._name(*self.algebra.divisions[-1], places)

    def _name(self, whole: Poly, by: Poly, uses: Iterable[tuple[Site, Guards]]) -> None:
        """Make a variable for a quotient, from the statements and conditions that it is used in."""
        values = self._values(whole, by, uses)
        name = f"m{len(self.values)}_quotient"
        key = self._key(whole)
        cases = [f"({self._case(whole, by, k)} and {name} = {k})" for k in values]
        cover = " or ".join([f"({self._case(whole, by, k)})" for k in values])
        self.values[name], self.covers[name], self._keys[name] = values, f"({cover})", key
        self.algebra.quotients[self.algebra.division(whole, by)] = name
        self.algebra.divided_in[name] = whole
        self.algebra.derived[(name,)] = name
        self.spaces.derived.setdefault(key, {})[name] = f"({' or '.join(cases)})"

    def _product(self, name: str, rest: tuple[str, ...]) -> None:
        """Make a variable for the product of a quotient and sizes."""
        product = tuple(sorted((name, *rest)))
        if product in self.algebra.derived:
            return
        found = f"m{len(self.algebra.derived)}_{name}"
        step = self.algebra.text({rest: 1}, str)
        cases = [f"({name} = {k} and {found} = {k} * {step})" for k in self.values[name]]
        self.algebra.derived[product] = found
        self.spaces.derived[self._keys[name]][found] = f"({' or '.join(cases)})"

    def _case(self, whole: Poly, by: Poly, k: int) -> str:
        least = self.algebra.text(plus(whole, times(by, constant(k)), -1), str)
        over = self.algebra.text(plus(whole, times(by, constant(k + 1)), -1), str)
        return f"{least} >= 0 and {over} < 0"

    def _key(self, whole: Poly) -> str:
        """Return the variable at all of whose places the others of a sum are known too."""
        own = [v for v in self.algebra.variables(whole) if v not in self.algebra.symbols]
        places = [set(found) for found in self._variables_of_sites()]
        for v in sorted(own, reverse=True):
            if all(found.issuperset(own) for found in places if v in found):
                return v
        raise NotAffine("a quotient of indices that are not known together")

    def _variables_of_sites(self) -> Iterator[list[str]]:
        for site in self.spaces.model.sites:
            yield self.spaces.replaced(self.spaces.members_of(site))

    def _values(self, whole: Poly, by: Poly, uses: Iterable[tuple[Site, Guards]]) -> range:
        low, high = 0, 0
        for site, guards in uses:
            limits = self._limits(site, guards)
            while not self._shown(limits, site, plus(whole, times(by, constant(low)), -1), ">= 0"):
                low -= 1
                self._require_few(low, high)
            over = plus(whole, by, -1)
            while not self._shown(limits, site, plus(over, times(by, constant(high)), -1), "< 0"):
                high += 1
                self._require_few(low, high)
        return range(low, high + 1)

    def _require_few(self, low: int, high: int) -> None:
        if high - low >= MOST_QUOTIENTS:
            raise NotAffine("division by a symbol")

    def _limits(self, site: Site, guards: Guards) -> list[str]:
        """Return what is known of the indices where a statement uses a quotient."""
        spaces = self.spaces
        result = spaces.limits(site)
        for condition, value in (*site.guards, *guards):
            for term in terms(condition) if value else (condition,):
                try:
                    text = self.algebra.condition(term, spaces.env, str)
                except NotAffine:
                    continue
                if not any(v in text for v in spaces.hidden):
                    result.append(text if value else f"not ({text})")
        return result

    def _shown(self, limits: Sequence[str], site: Site, p: Poly, sign: str) -> bool:
        spaces = self.spaces
        variables = spaces.variables(site)
        ties = [text for v in variables for text in spaces.derived.get(v, {}).values()]
        try:
            outside = f"not ({self.algebra.text(p, str)} {sign})"
        except NotAffine:
            return False
        return spaces.offsets.no_point(variables, [outside, *limits, *ties])
