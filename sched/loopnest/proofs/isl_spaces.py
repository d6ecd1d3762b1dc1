"""The variables of a program for isl: launch indices and serial loops, merged ones re-expressed.

Where a program uses some loop indices only by one sum in mixed radix (``i0 * 128 + i1``) that it
divides by symbolic extents, or that multiplies an index by one, these indices are replaced by the
digits of the sum: ``i0 * 128 + i1`` with ``e // D`` and ``e % D`` becomes ``q * D + r``, and all is
affine in q and r. The points correspond one to one, and in the same order where the loops stand in
that of the sum (`symbolic/merged_order` has the others).

The product of an index with few values and a size (``i1 * ceildiv(D, 4)`` with i1 < 4) becomes a
variable of its own, tied to the index by one case for each value.

Where the indices of a sum are used by themselves too, or have many values, such a product becomes a
*hidden* variable: one that may have any value, of the points at which all of the sum's indices are
known. There are more points then than the program has, with products that are none. What is shown
of all of them is shown; what must exist must not depend on a hidden variable (`symbolic/tilings`).

A flat offset needs none of these where the extents and tests around it tell its indices, as behind
``i1 * 8 + i2 < W`` (`flat_offsets`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from loopnest import kir
from loopnest.proofs.bounded_quotients import BoundedQuotients
from loopnest.proofs.flat_offsets import FlatOffsets, Parts
from loopnest.proofs.program_model import Access, Guards, Model, Site, reads_memory
from loopnest.proofs.quasi_affine import (
    Algebra,
    Monomial,
    NotAffine,
    Poly,
    as_constant,
    constant,
    plus,
    quotient,
    times,
    variable,
)
from loopnest.proofs.shared_divisors import share_divisors
from loopnest.scalar.enums import LAUNCH_DIMENSIONS
from loopnest.scalar.expr import Const, Expr, Index, LaunchIndex, Local


@dataclass(frozen=True, slots=True)
class Group:
    """Indices that are used by one sum: the sum's digits stand for them.

    Args:
        members: their names, the fastest last.
        digits: the names of the digits, the fastest last; all but the first are bounded.
        whole: the sum, in digits.
        exact: an upper bound of the sum that makes it run over just the points, or None.
    """

    members: tuple[str, ...]
    digits: tuple[str, ...]
    whole: Poly
    exact: Poly | None


MOST_CASES = 8
"""How many values an index may have whose products with sizes are variables."""


class Spaces:
    """Names, extents and environments of all index variables.

    Raises:
        NotAffine: an index cannot be represented.
    """

    def __init__(self, model: Model, algebra: Algebra) -> None:
        self.model, self.algebra = model, algebra
        program = model.program
        self.env: dict[Expr, Poly] = {}
        self.names: dict[Index, str] = {}
        self.extent: dict[str, Poly] = {}
        self.launch = [
            _launch_name(d) for d in LAUNCH_DIMENSIONS if program.launch_extent(d) is not None
        ]
        for dimension, size in program.launch:
            self.env[LaunchIndex(dimension)] = variable(_launch_name(dimension))
            self.extent[_launch_name(dimension)] = algebra.poly(size, {})
        for dimension in LAUNCH_DIMENSIONS:
            self.env.setdefault(LaunchIndex(dimension), {})
        for node, _ in kir.walk(program.body):
            if isinstance(node, kir.Let) and node.var.dtype.kind == "x":
                algebra.named[node.var] = node.value
        for node, _ in kir.walk(program.body):
            if isinstance(node, kir.Loop):
                self._loop(node)
        algebra.extents.update(self.extent)
        self.groups: list[Group] = []
        self.group_of: dict[str, Group] = {}
        self.last_of: dict[str, Poly] = {}
        self.derived: dict[str, dict[str, str]] = {}
        self.hidden: dict[str, str] = {}
        self.offsets = FlatOffsets(model, algebra, self.env, self.extent)
        self.quotients = BoundedQuotients(self)
        self.apart: set[Expr] = set()
        """Flat offsets whose indices follow from the extents and tests around them."""
        self._find_groups()

    def _loop(self, node: kir.Loop) -> None:
        if node.parallel.is_thread:
            self.env[node.var] = self.env[LaunchIndex(node.parallel)]
            return
        name = self.name(node.var)
        self.env[node.var] = variable(name)
        self.extent[name] = self.algebra.poly(node.var.extent, {})

    def name(self, var: Index) -> str:
        """Return the variable of a serial loop's index (the names of two may be the same)."""
        return self.names.setdefault(var, f"v_{len(self.names)}")

    # Groups

    def _find_groups(self) -> None:
        wanted: dict[tuple[str, ...], dict[Monomial, None]] = {}
        products: dict[tuple[str, ...], dict[Monomial, None]] = {}
        expressions = self._expressions()
        left: list[Expr] = []
        offsets: dict[tuple[str, ...], list[Expr]] = {}
        for node in sorted(expressions, key=lambda node: len(expressions[node]) > 0):
            accesses = expressions[node]
            if self._are_apart(accesses, wanted):
                self.apart.add(node)
                continue
            for whole, by in self._trouble(node):
                divisor = None if by is None else _single(by)
                try:
                    members = self.radix(whole)
                except NotAffine:
                    if by is not None:
                        left.append(node)
                    continue  # a part of a sum that stands elsewhere, of no use, or a quotient
                if accesses:
                    offsets.setdefault(members, []).append(node)
                found = wanted.setdefault(members, {})
                if divisor is not None:
                    found[divisor] = None
                products.setdefault(members, {}).update(dict.fromkeys(self._products(whole)))
        share_divisors(self, wanted)
        taken: set[str] = set()
        for members, divisors in sorted(wanted.items(), key=lambda found: not found[1]):
            if taken.intersection(members):
                if divisors:
                    raise NotAffine("an index in two sums")
                self.apart.update(offsets.get(members, ()))  # the digits of others may tell
                continue
            if not divisors and self._hide(members, products[members]):
                continue
            taken.update(members)
            self._add_group(members, list(divisors))
        self.quotients.find(left)

    def uses(self) -> Iterator[tuple[Expr, Site, Guards]]:
        """Yield the index expressions of statements, and the conditions that each is used under."""
        for site in self.model.sites:
            used: list[tuple[Expr, Guards]] = [(node, ()) for node in self._of_site(site)]
            for access in self.model.accesses_of(site):
                used += [(node, access.guards) for node in access.index]
            for node, guards in used:
                for part in _index_parts(node):
                    yield part, site, guards

    def _expressions(self) -> dict[Expr, list[Access]]:
        """Return the index expressions, with the flat accesses that they are the offsets of.

        There are none for one that stands elsewhere too.
        """
        found: dict[Expr, list[Access]] = {}
        elsewhere: set[Expr] = set()
        for site in self.model.sites:
            for node in self._of_site(site):
                for part in _index_parts(node):
                    found.setdefault(part, [])
                    elsewhere.add(part)
            for access in self.model.accesses_of(site):
                for part in (p for node in access.index for p in _index_parts(node)):
                    found.setdefault(part, [])
                    if access.flat and _has_sizes(access) and access.index == (part,):
                        found[part].append(access)
                    else:
                        elsewhere.add(part)
        return {part: [] if part in elsewhere else users for part, users in found.items()}

    def _of_site(self, site: Site) -> Iterator[Expr]:
        for condition, _ in site.guards:
            yield condition
        if isinstance(site.node, kir.Store):
            yield from site.node.coordinate
        if isinstance(site.node, kir.Arrive):
            yield site.node.count
        for access in self.model.accesses_of(site):
            yield from [condition for condition, _ in access.guards]

    def _are_apart(self, accesses: Sequence[Access], groups: Iterable[tuple[str, ...]]) -> bool:
        """Whether tests tell the indices of flat accesses, none of which is a part of a sum."""
        members = set().union(*groups)
        for access in accesses:
            found = self._parts(access)
            if found is None or any(self.algebra.variables(p) & members for p in found.tail):
                return False
            own = self.algebra.variables(found.whole)
            if found.count == 1:
                if own & members or not self._is_affine(found.whole):
                    return False
            elif not any(own <= {*group, *self.algebra.symbols} for group in groups):
                return False
        return bool(accesses)

    def _is_affine(self, p: Poly) -> bool:
        try:
            self.algebra.text(p, str)
        except NotAffine:
            return False
        return True

    def _parts(self, access: Access) -> Parts | None:
        return self.offsets.parts(access, self.members_of(access.site))

    def taken_apart(self, access: Access) -> Parts | None:
        """Return the offset of a flat access along its first axes, and the other indices.

        None where nothing tells them, or where the offset is needed as a whole.
        """
        found = self._parts(access) if access.index[0] in self.apart else None
        if found is None:
            return None
        tail = tuple([self._in_digits(p) for p in found.tail])
        return Parts(found.count, self._in_digits(found.whole), tail)

    def _in_digits(self, p: Poly) -> Poly:
        """Return a polynomial of loop indices, the last of each group written by its digits."""
        result: Poly = {}
        for monomial, count in p.items():
            term = constant(count)
            for part in monomial:
                term = times(term, self.last_of.get(part, variable(part)))
            result = plus(result, term)
        return result

    def _trouble(self, node: Expr) -> list[tuple[Poly, Poly | None]]:
        """Return the sums in `node` that are divided by, or multiplied with, a symbol."""
        algebra = self.algebra
        start = len(algebra.divisions)
        try:
            p = algebra.poly(node, self.env)
        except NotAffine:
            found = algebra.divisions[start:]
            if not found:
                raise
            return [(whole, by) for whole, by in found]
        return [(p, None)] if not all(self._derive(m) for m in self._products(p)) else []

    def _products(self, p: Poly) -> list[Monomial]:
        """Return the products of an index and sizes in a sum."""
        return [m for m in p if len(m) > 1 and any(v in self.extent for v in m)]

    def _derive(self, product: Monomial) -> bool:
        """Make a variable for the product of an index and sizes; whether there can be one."""
        algebra = self.algebra
        own = [v for v in product if v in self.extent]
        cases = as_constant(self.extent[own[0]])
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
            self.derived.setdefault(own[0], {})[name] = f"({' or '.join(values) or '1 = 0'})"
        return True

    def _hide(self, members: tuple[str, ...], products: Iterable[Monomial]) -> bool:
        """Make hidden variables for the products in a sum; whether its indices are used apart."""
        around = [set(self.members_of(site)) for site in self.model.sites]
        if all(found.isdisjoint(members) or found.issuperset(members) for found in around):
            return False
        for product in products:
            if product not in self.algebra.derived:
                name = f"m{len(self.algebra.derived)}_hidden"
                self.algebra.derived[product] = name
                self.hidden[name] = self._between(product)
            name = self.algebra.derived[product]
            if name in self.hidden:
                key = self._inside(members, product, around)
                self.derived.setdefault(key, {})[name] = self.hidden[name].format(name)
        return True

    def _inside(
        self, members: tuple[str, ...], product: Monomial, around: Sequence[set[str]]
    ) -> str:
        """Return the outermost loop of a sum inside of which the index of a product is known.

        Raises:
            NotAffine: the index is known inside of no loop of the sum.
        """
        for v in members:
            known = all(found.intersection(product) for found in around if v in found)
            if v not in self.launch and v not in product and known:
                return v
        raise NotAffine("a part of a merged index")

    def _between(self, product: Monomial) -> str:
        """Return the limits of a product, as a text with a place for its name."""
        (own,) = [v for v in product if v in self.extent]
        rest = list(product)
        rest.remove(own)
        top = times(plus(self.extent[own], constant(1), -1), {tuple(rest): 1})
        text = self.algebra.text(top, str)
        return f"((0 <= {{0}} <= {text}) or ({text} <= {{0}} <= 0))"

    def radix(self, whole: Poly) -> tuple[str, ...]:
        """Return the indices of a sum in mixed radix, the fastest last.

        Raises:
            NotAffine: the sum is no number in mixed radix.
        """
        strides: dict[str, Poly] = {}
        for monomial, count in whole.items():
            mine = [v for v in monomial if v in self.extent]
            if len(mine) != 1:
                raise NotAffine("a sum that is not in mixed radix")
            rest = list(monomial)
            rest.remove(mine[0])
            strides[mine[0]] = plus(strides.get(mine[0], {}), {tuple(rest): count})
        step: Poly = constant(1)
        order: list[str] = []
        while strides:
            name = next((v for v, s in strides.items() if s == step), None)
            if name is None:
                raise NotAffine("a sum that is not in mixed radix")
            del strides[name]
            order.insert(0, name)
            step = times(step, self.extent[name])
        return tuple(order)

    def _add_group(self, members: tuple[str, ...], divisors: list[Monomial]) -> None:
        algebra = self.algebra
        divisors.sort(key=len)
        name = "e_" + "_".join(members)
        below: Monomial = ()
        digits: list[str] = []
        whole: Poly = {}
        for n, divisor in enumerate(divisors):
            limit = quotient(divisor, below)
            if limit is None:
                raise NotAffine("divisors of one sum that do not divide each other")
            digit = f"{name}_{n}"
            algebra.below[digit] = limit
            algebra.extents[digit] = {limit: 1}
            digits.insert(0, digit)
            whole = plus(whole, {tuple(sorted((*below, digit))): 1})
            below = divisor
        top = f"{name}_{len(divisors)}"
        digits.insert(0, top)
        whole = plus(whole, {tuple(sorted((*below, top))): 1})
        exact: Poly | None = constant(1)
        for member in members:
            exact = times(exact, self.extent[member]) if exact is not None else None
        if any(part in algebra.functions for m in exact or {} for part in m):
            exact = None
        if exact is not None:
            exact = self._at_top(top, below, whole, exact)
        group = Group(members, tuple(digits), whole, exact)
        self.groups.append(group)
        for member in members:
            self.group_of[member] = group
        self._eliminate(group)

    def _at_top(self, top: str, below: Monomial, whole: Poly, exact: Poly) -> Poly | None:
        """Return the bound of a sum, None where isl cannot compare them; bound its top digit."""
        try:
            self.algebra.compare("lt", whole, exact, str)
        except NotAffine:
            return None
        limit = {quotient(monomial, below): count for monomial, count in exact.items()}
        if None not in limit:
            self.algebra.extents[top] = {m: n for m, n in limit.items() if m is not None}
        return exact

    def _eliminate(self, group: Group) -> None:
        """Write the fastest member as the whole less the others; these must cancel in every use."""
        step: Poly = constant(1)
        rest = dict(group.whole)
        for member in reversed(group.members):
            if member != group.members[-1]:
                rest = plus(rest, times(variable(member), step), -1)
            step = times(step, self.extent[member])
        fastest = group.members[-1]
        self.last_of[fastest] = rest
        for node, value in self.env.items():
            if value == variable(fastest):
                self.env[node] = rest

    # What a site has

    def range_of(self, v: str) -> list[str]:
        """Return the limits of a variable."""
        if v in self.extent:
            return [f"0 <= {v} < {self.algebra.text(self.extent[v], str)}"]
        if v in self.algebra.derived.values():
            return []
        limit = self.algebra.below.get(v)
        below = [] if limit is None else [f"{v} < {self.algebra.text({limit: 1}, str)}"]
        return [f"{v} >= 0", *below]

    def bound(self, loop: kir.Loop) -> list[str]:
        """Return the test that a loop bound to a launch dimension makes, where it is one."""
        launch = self.extent.get(_launch_name(loop.parallel), constant(1))
        mine = self.algebra.poly(loop.var.extent, {})
        if mine == launch:
            return []
        return [self.algebra.compare("lt", self.env[LaunchIndex(loop.parallel)], mine, str)]

    def limits(self, site: Site) -> list[str]:
        """Return the limits of a site's variables, without tests, and without ties."""
        variables = self.variables(site)
        result = [text for v in variables for text in self.range_of(v)]
        for group in self.groups:
            if group.digits[0] in variables and group.exact is not None:
                result.append(self.algebra.compare("lt", group.whole, group.exact, str))
        for loop in site.loops:
            if loop.parallel.is_thread:
                result += self.bound(loop)
        return result

    def members_of(self, site: Site) -> list[str]:
        """Return the indices around a site: launch dimensions, then serial loops."""
        return [*self.launch, *[self.name(loop.var) for loop in site.serial]]

    def variables(self, site: Site) -> list[str]:
        """Return the variables of a site, groups replaced by their digits."""
        return self.replaced(self.members_of(site))

    def replaced(self, members: Sequence[str]) -> list[str]:
        """Return variables for these indices.

        Raises:
            NotAffine: a part of a group without the rest.
        """
        result: dict[str, None] = {}
        for member in members:
            group = self.group_of.get(member)
            if group is None:
                result[member] = None
            elif not set(group.members) <= set(members):
                raise NotAffine("a part of a merged index")
            else:
                result.update(dict.fromkeys(group.digits))
        for v in list(result):
            result.update(dict.fromkeys(self.derived.get(v, ())))
        return list(result)

    def hidden_at(self, site: Site) -> set[str]:
        """Return the hidden variables of a site."""
        if not self.hidden:
            return set()
        return self.hidden.keys() & self.variables(site)

    def is_exact(self, site: Site) -> bool:
        """Whether no group of the site runs over more than its points."""
        members = self.members_of(site)
        return all(
            group.exact is not None for m in members if (group := self.group_of.get(m)) is not None
        )


def _launch_name(dimension: object) -> str:
    return f"t_{getattr(dimension, 'value', '')}"


def _index_parts(node: Expr) -> Iterator[Expr]:
    """Yield the index expressions that a condition compares."""
    if node.dtype.is_bool and node.args:
        for arg in node.args:
            yield from _index_parts(arg)
    elif not isinstance(node, Local) and not reads_memory(node):
        yield node


def _single(divisor: Poly) -> Monomial | None:
    """Return the sizes of a divisor that is a product; None for a sum."""
    return next(iter(divisor)) if len(divisor) == 1 and min(divisor.values()) > 0 else None


def _has_sizes(access: Access) -> bool:
    """Whether the offset of an element is a product of sizes."""
    return any(not isinstance(extent, Const) for extent in access.buffer.shape[1:])
