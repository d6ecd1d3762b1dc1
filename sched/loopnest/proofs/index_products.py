"""Products of a loop index and sizes, for each of which isl gets a variable of its own.

The product of an index with few values is tied to it by one case for each value. Any other one is
*hidden*: it may have every value between its least and its largest (`symbolic/tilings` says where
that is allowed).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from loopnest.proofs.quasi_affine import (
    Monomial,
    NotAffine,
    Poly,
    as_constant,
    constant,
    plus,
    times,
    variable,
)

if TYPE_CHECKING:
    from loopnest.proofs.isl_spaces import Spaces
    from loopnest.proofs.program_model import Site

MOST_CASES = 8
"""How many values an index may have whose products with sizes are variables."""


class IndexProducts:
    """The variables of products.

    Args:
        spaces: the loops; variables that a loop brings with it are added to its `derived`.
    """

    def __init__(self, spaces: Spaces) -> None:
        self.spaces, self.algebra = spaces, spaces.algebra

    def of(self, p: Poly) -> list[Monomial]:
        """Return the products of an index, or a digit of one, and sizes in a sum."""
        return [m for m in p if len(m) > 1 and any(v in self.algebra.extents for v in m)]

    def derive(self, product: Monomial) -> bool:
        """Make a variable for the product of an index and sizes; whether there can be one."""
        algebra = self.algebra
        own = [v for v in product if v in algebra.extents]
        cases = as_constant(algebra.extents[own[0]])
        rest = list(product)
        rest.remove(own[0])
        known = set[str]().union(*[algebra.variables({(v,): 1}) for v in rest])
        if len(own) > 1 or cases is None or cases > MOST_CASES or known - algebra.symbols:
            return False
        if product not in algebra.derived:
            name = f"m{len(algebra.derived)}_{own[0]}"
            algebra.derived[product] = name
            step = algebra.text({tuple(rest): 1}, str)
            values = [f"({own[0]} = {n} and {name} = {n} * {step})" for n in range(cases)]
            self.spaces.derived.setdefault(own[0], {})[name] = f"({' or '.join(values) or '1 = 0'})"
        return True

    def hide(self, members: tuple[str, ...], products: Iterable[Monomial]) -> bool:
        """Make hidden variables for the products in a sum; whether its indices are used apart."""
        if self._together(members) and not (self.spaces.wide and self.used_apart(members)):
            return False
        around = self._around()
        for product in products:
            if product not in self.algebra.derived:
                name = f"m{len(self.algebra.derived)}_hidden"
                self.algebra.derived[product] = name
                self.spaces.hidden[name] = self._between(product)
            name = self.algebra.derived[product]
            if name in self.spaces.hidden:
                key = self._inside(members, product, around)
                limits = self.spaces.hidden[name].format(name)
                self.spaces.derived.setdefault(key, {})[name] = limits
        return True

    def used_apart(self, members: tuple[str, ...]) -> bool:
        """Whether indices of a sum are known one without the others, or used by themselves."""
        if not self._together(members):
            return True
        fastest = members[-1]
        whole: Poly = {}
        step: Poly = constant(1)
        for member in reversed(members):
            whole = plus(whole, times(variable(member), step))
            step = times(step, self.spaces.extent[member])
        for node in self.spaces.expressions():
            try:
                p = self.algebra.poly(node, self.spaces.env)
            except NotAffine:
                continue  # quotients and rests of the sum, or what is refused later
            times_whole: Poly = {
                tuple([v for v in m if v != fastest]): c for m, c in p.items() if fastest in m
            }
            rest = plus(p, times(times_whole, whole), -1)
            if any(v in members for monomial in rest for v in monomial):
                return True
        return False

    def _together(self, members: tuple[str, ...]) -> bool:
        """Whether every statement is inside of all loops of a sum, or of none."""
        return all(set(members) <= f or f.isdisjoint(members) for f in self._around())

    def _around(self) -> list[set[str]]:
        return [set(self.spaces.members_of(site)) for site in self.spaces.model.sites]

    def hide_at(self, product: Monomial, site: Site) -> None:
        """Make a hidden variable for a product, of the loop right inside of its index's.

        All that is computed from the product lies in this loop, so that a value and its reader
        have one product.

        Raises:
            NotAffine: there is no such loop around the site, or this is no product of an index.
        """
        spaces, algebra = self.spaces, self.algebra
        own = [v for v in product if v in spaces.extent]
        if len(own) != 1 or any(v not in algebra.symbols for v in product if v not in own):
            raise NotAffine("*".join(product))
        loops = [spaces.names[loop.var] for loop in site.serial]
        outside = next((n + 1 for n, names in enumerate(loops) if own[0] in names), 0)
        if outside == len(loops):
            raise NotAffine("*".join(product))
        key = loops[outside][0]
        if product not in algebra.derived:
            name = f"m{len(algebra.derived)}_hidden"
            algebra.derived[product] = name
            spaces.hidden[name] = self._between(product)
        name = algebra.derived[product]
        if name in spaces.hidden and name not in spaces.variables(site):
            limits = spaces.hidden[name].format(name)
            spaces.derived.setdefault(key, {})[name] = limits

    def _inside(
        self, members: tuple[str, ...], product: Monomial, around: Sequence[set[str]]
    ) -> str:
        """Return the outermost loop of a sum inside of which the index of a product is known.

        Raises:
            NotAffine: the index is known inside of no loop of the sum.
        """
        for v in members:
            known = all(found.intersection(product) for found in around if v in found)
            if v not in self.spaces.launch and v not in product and known:
                return v
        raise NotAffine("a part of a merged index")

    def _between(self, product: Monomial) -> str:
        """Return the limits of a product, as a text with a place for its name."""
        (own,) = [v for v in product if v in self.spaces.extent]
        rest = list(product)
        rest.remove(own)
        top = times(plus(self.spaces.extent[own], constant(1), -1), {tuple(rest): 1})
        text = self.algebra.text(top, str)
        return f"((0 <= {{0}} <= {text}) or ({text} <= {{0}} <= 0))"
