"""Quotients by a size that have few values: of ``(i + 1) % M`` and ``(i - 5) // (M - 1)``.

isl divides by numbers alone. Where isl shows that at every point that uses it a quotient ``q =
whole // by`` is one of a few numbers k, q becomes a variable of its own, tied to the indices by one
case for each: ``k * by <= whole < (k + 1) * by and q = k``. In a case all products of q are linear,
and a remainder is ``whole - q * by``.

A quotient of many values, as that of a row of channels and pixels by the pixels of a channel, has a
hidden variable, and its product with the divisor another one, where digits cannot stand for its
indices (`_name_hidden`).

A case says that the divisor is positive. Where no case holds, q is a number that is none of these
values, so that a point stays one point; that no statement asks for q there is shown
(`require_known`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from loopnest.proofs.program_model import terms
from loopnest.proofs.quasi_affine import NotAffine, Poly, constant, plus, quotient, times

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
        known: for each quotient the condition under which it is known.
    """

    def __init__(self, spaces: Spaces) -> None:
        self.spaces, self.algebra = spaces, spaces.algebra
        self.values: dict[str, range] = {}
        self.known: dict[str, str] = {}
        self._keys: dict[str, str] = {}
        self._inside_of: dict[object, bool] = {}

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

    def _name(self, whole: Poly, by: Poly, uses: Sequence[tuple[Site, Guards]]) -> None:
        """Make a variable for a quotient, from the statements and conditions that it is used in."""
        try:
            values = self._values(whole, by, uses)
        except NotAffine:
            if not self.spaces.wide:
                raise
            self._name_hidden(whole, by, uses)
            return
        name = f"m{len(self.values)}_quotient"
        key = self._key(whole)
        cases = [f"({self._case(whole, by, k)} and {name} = {k})" for k in values]
        known = self._between(whole, by, values)
        none = values.start - 1
        cases.append(f"(not {known} and {name} = {none})")
        self.values[name] = range(none, values.stop)
        self.known[name], self._keys[name] = known, key
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

    def _name_hidden(self, whole: Poly, by: Poly, uses: Sequence[tuple[Site, Guards]]) -> None:
        """Make two variables for a quotient q of many values: for q and for the product q * by.

        Both are hidden (`index_products`): of them is known that 0 <= q < top, that the product is
        0 or more and at most (top - 1) * by, and that whole - product, the remainder, lies in [0,
        by). These hold of the true ones wherever 0 <= whole < top * by, since floor division is
        unique; elsewhere nothing is said. That no statement asks for the quotient there is shown
        by `require_known`.
        """
        algebra, spaces = self.algebra, self.spaces
        top = self._top(whole, by, uses)
        key, number = self._key(whole), len(algebra.derived)
        name, product = f"m{number}_many", f"m{number}_hidden"
        ((sizes, _),) = by.items()
        last = algebra.text(times(plus(top, constant(1), -1), by), str)
        inside = self._inside(whole, by, top)
        rest = f"({algebra.text(whole, str)} - {product})"
        limit = f"0 <= {name} < {algebra.text(top, str)} and 0 <= {product} <= {last}"
        limit += f" and 0 <= {rest} < {algebra.text(by, str)}"
        algebra.quotients[algebra.division(whole, by)] = name
        algebra.divided_in[name] = whole
        algebra.extents[name] = top
        algebra.derived[(name,)] = name
        algebra.derived[tuple(sorted((name, *sizes)))] = product
        self.known[name] = inside
        for hidden in (name, product):
            spaces.hidden[hidden] = limit
            spaces.derived.setdefault(key, {})[hidden] = f"(not {inside} or ({limit}))"

    def _between(self, whole: Poly, by: Poly, values: range) -> str:
        """Return that a divisor is positive, and a quotient one of some values."""
        low = self.algebra.text(plus(whole, times(by, constant(values.start)), -1), str)
        high = self.algebra.text(plus(whole, times(by, constant(values.stop)), -1), str)
        return f"({self.algebra.text(by, str)} > 0 and {low} >= 0 and {high} < 0)"

    def _inside(self, whole: Poly, by: Poly, top: Poly) -> str:
        low, high = self.algebra.text(whole, str), self.algebra.text(times(top, by), str)
        return f"({low} >= 0 and {low} < {high})"

    def _top(self, whole: Poly, by: Poly, uses: Sequence[tuple[Site, Guards]]) -> Poly:
        """Return a product of sizes that a quotient is always below.

        Raises:
            NotAffine: none of the extents in the program is one, or a product is divided by.
        """
        if len(by) != 1 or next(iter(by.values())) != 1:
            raise NotAffine("division by a sum")
        ((sizes, _),) = by.items()
        for extent in self._extents(uses):
            top: Poly = {}
            for monomial, count in extent.items():
                part = quotient(monomial, sizes)
                if part is not None:
                    top[part] = count
            if not top or times(top, by) != extent:
                continue
            if all(self.lies_in(whole, extent, site, guards) for site, guards in uses):
                return top
        raise NotAffine("division by a symbol")

    def _extents(self, uses: Sequence[tuple[Site, Guards]]) -> list[Poly]:
        """Return the extents of buffers and loops, and what tests compare with, each once."""
        algebra, spaces = self.algebra, self.spaces
        found = {frozenset(p.items()): p for p in spaces.extent.values()}
        nodes = [e for buffer in spaces.model.buffers() for e in buffer.shape]
        for site, guards in uses:
            for condition, _ in (*site.guards, *guards):
                nodes += [
                    a for t in terms(condition) for a in t.args if not t.args[0].dtype.is_bool
                ]
        for node in nodes:
            try:
                p = algebra.poly(node, spaces.env)
            except NotAffine:
                continue
            found[frozenset(p.items())] = p
        return list(found.values())

    def require_known(self, name: str, site: Site, guards: Guards = ()) -> None:
        """Show that a quotient is known wherever a statement runs under conditions.

        Raises:
            NotAffine: it may not be.
        """
        outside = [f"not {self.known[name]}", *self._limits(site, guards)]
        if not self._never(outside, site):
            raise NotAffine("division by a symbol")

    def lies_in(self, rest: Poly, by: Poly, site: Site, guards: Guards) -> bool:
        """Whether isl shows that a rest is in [0, by) at a statement, under its conditions."""
        around = (site.loops, *site.guards, *guards)  # many statements stand at one place
        key = (frozenset(rest.items()), frozenset(by.items()), around)
        if key not in self._inside_of:
            self._inside_of[key] = False
            with suppress(NotAffine):
                limits, over = self._limits(site, guards), plus(rest, by, -1)
                self._inside_of[key] = self._shown(limits, site, rest, ">= 0") and self._shown(
                    limits, site, over, "< 0"
                )
        return self._inside_of[key]

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
        try:
            outside = f"not ({self.algebra.text(p, str)} {sign})"
        except NotAffine:
            return False
        return self._never([outside, *limits], site)

    def _never(self, conditions: Sequence[str], site: Site) -> bool:
        """Whether isl shows that some conditions hold at no point of a statement."""
        spaces = self.spaces
        variables = spaces.variables(site)
        ties = [text for v in variables for text in spaces.derived.get(v, {}).values()]
        return spaces.offsets.no_point(variables, [*conditions, *ties])
