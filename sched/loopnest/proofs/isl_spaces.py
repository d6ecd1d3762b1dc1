"""The variables of a program for isl where it merges, divides and multiplies its indices.

Where a program uses some loop indices only by one sum in mixed radix (``i0 * 128 + i1``) that it
divides by symbolic extents, or that multiplies an index by one, these indices are replaced by the
digits of the sum: ``i0 * 128 + i1`` with ``e // D`` and ``e % D`` becomes ``q * D + r``, and all is
affine in q and r. The points correspond one to one, and in the same order where the loops stand in
that of the sum (`symbolic/symbolic_races` has the others).

The product of an index with few values and a size (``i1 * ceildiv(D, 4)`` with i1 < 4) becomes a
variable of its own, tied to the index by one case for each value.

Where the indices of a sum are used by themselves too, or have many values, such a product becomes a
*hidden* variable: one that may have any value, of the points at which all of the sum's indices are
known. There are more points then than the program has, with products that are none. What is shown
of all of them is shown; what must exist must not depend on a hidden variable (`Tilings`).

Where isl shows that at every point that uses it a quotient by a size is one of a few numbers, it is
a variable, too (`BoundedQuotients`). A flat offset needs none of these where the extents and tests
around it tell its indices, as behind ``i1 * 8 + i2 < W`` (`FlatOffsets`); an array of the caller
may be looked at in another shape (`DenseShapes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from loopnest.proofs import affine
from loopnest.proofs.index_variables import Forms, Group, IndexVariables
from loopnest.proofs.program_model import (
    Access,
    Guards,
    Model,
    Site,
    is_callers,
    terms,
)
from loopnest.proofs.quasi_affine import (
    Algebra,
    Monomial,
    Poly,
    Product,
    as_constant,
    as_product,
    constant,
    evenly,
    mixed_radix,
    offset_of,
    parted,
    product_of,
    row_major,
    times,
    variable,
)
from loopnest.scalar.enums import GRID_DIMENSIONS
from loopnest.scalar.expr import Buffer, Expr, Op, walk

MOST_CASES = 8
"""How many values an index or a quotient may have whose products with sizes are variables."""


@dataclass(slots=True)
class DividedSums:
    """The sums of a program in mixed radix, by their indices.

    Args:
        divisors: what each is divided by.
        products: the products of an index and sizes in it.
        nodes: the expressions that divide it.
        offsets: the flat offsets that are nothing but it.
        left: expressions that divide another sum.
    """

    divisors: dict[tuple[str, ...], dict[Product, None]] = field(default_factory=dict)
    products: dict[tuple[str, ...], dict[Monomial, None]] = field(default_factory=dict)
    nodes: dict[tuple[str, ...], list[Expr]] = field(default_factory=dict)
    offsets: dict[tuple[str, ...], list[Expr]] = field(default_factory=dict)
    left: list[Expr] = field(default_factory=list)


class Spaces(IndexVariables):
    """The index variables, and what stands for sums, products and quotients of them.

    Raises:
        NotAffine: an index cannot be represented.
    """

    def __init__(self, model: Model, algebra: Algebra, forms: Forms = Forms.PLAIN) -> None:
        super().__init__(model, algebra, forms)
        self.offsets = FlatOffsets(self)
        self.quotients = BoundedQuotients(self)
        self.products = IndexProducts(self)
        self.apart: set[Expr] = set()
        """Flat offsets whose indices follow from the extents and tests around them."""
        self.dense = DenseShapes(self)
        self._find_groups()
        self._shown.clear()  # of indices that digits stand for by now
        self.rounds = [group for group in self.groups if _is_round(group)]
        """Groups of an index of the grid and loops: a block takes part after part, in rounds."""

    # Groups

    def _find_groups(self) -> None:
        sums = self._sums()
        wanted = sums.divisors
        for members in self._left_whole(wanted):
            sums.left += sums.nodes.get(members, ())
            del wanted[members]
        self._share_divisors(wanted)
        taken: set[str] = set()
        for members, divisors in sorted(wanted.items(), key=lambda found: not found[1]):
            if taken.intersection(members):
                if divisors:
                    raise affine.NotAffine("an index in two sums")
                self.apart.update(sums.offsets.get(members, ()))  # the digits of others may tell
                continue
            if not divisors and self.products.hide(members, sums.products[members]):
                continue
            taken.update(members)
            self._add_group(members, list(divisors))
        self.quotients.find(sums.left)

    def _share_divisors(self, wanted: dict[tuple[str, ...], dict[Product, None]]) -> None:
        """Add divisors to the sums of indices that are to be divided, by their indices.

        An axis of M * N elements may be stored by a merged loop, whose index is divided by N
        elsewhere, and be read at ``i * N + j``, or by a loop that nobody divides. Elements are
        named by the same digits (`PartedAxes`) where each of these sums is divided by N,
        or has a quotient by it already.
        """
        for found in self._along() if any(wanted.values()) else ():
            divisors = {d: None for members in found for d in wanted.get(members, ())}
            for members, whole in found.items() if divisors else ():
                if any(self.algebra.exactly(whole, dict([d])) is None for d in divisors):
                    wanted.setdefault(members, {}).update(divisors)
                elif not wanted.get(members):  # its indices are the digits
                    wanted.pop(members, None)

    def _left_whole(
        self, wanted: dict[tuple[str, ...], dict[Product, None]]
    ) -> list[tuple[str, ...]]:
        """Return the divided sums whose quotients have variables of their own, instead of digits.

        Their indices are used by themselves too, or they go along an axis with a sum of which that
        is true: all indices of an axis are written in the same way.
        """
        divided = [members for members, divisors in wanted.items() if divisors]
        if self.forms is Forms.QUOTIENTS or not self.wide:
            return divided if self.wide else []
        result = {members for members in divided if self.products.used_apart(members)}
        for found in self._along() if divided else ():
            if any(self.products.used_apart(members) for members in found):
                result.update(members for members in found if wanted.get(members))
        return [members for members in divided if members in result]

    def _along(self) -> list[dict[tuple[str, ...], Poly]]:
        """Return the sums of indices along each axis of each buffer, by their indices."""
        along: dict[tuple[Buffer, int], dict[tuple[str, ...], Poly]] = {}
        for access in self.model.accesses:
            for axis, node in enumerate(() if access.flat else access.index):
                with suppress(affine.NotAffine):
                    whole = self.algebra.poly(node, self.env)
                    members = self.radix(whole)
                    if members:
                        along.setdefault((access.buffer, axis), {})[members] = whole
        return list(along.values())

    def _sums(self) -> DividedSums:
        """Return the sums in mixed radix that are divided, or that hold products."""
        sums = DividedSums()
        expressions = self.expressions()
        for node in sorted(expressions, key=lambda node: len(expressions[node]) > 0):
            accesses = expressions[node]
            if self._are_apart(accesses, sums.divisors):
                self.apart.add(node)
                continue
            for whole, by in self._trouble(node):
                number = 1
                if by is not None:
                    whole, by, number = self.algebra.unfloored(whole, by)
                divisor = None if by is None else as_product(by)
                try:
                    members = self.radix(whole)
                except affine.NotAffine:
                    if by is not None:
                        sums.left.append(node)
                    continue  # a part of a sum that stands elsewhere, of no use, or a quotient
                if accesses:
                    sums.offsets.setdefault(members, []).append(node)
                found = sums.divisors.setdefault(members, {})
                if divisor is not None:
                    found[divisor] = None
                    if number > 1:
                        found[(), number] = None
                    sums.nodes.setdefault(members, []).append(node)
                products = dict.fromkeys(self.products.of(whole))
                sums.products.setdefault(members, {}).update(products)
        return sums

    def _are_apart(self, accesses: Sequence[Access], groups: Iterable[tuple[str, ...]]) -> bool:
        """Whether tests tell the indices of flat accesses, none of which is a part of a sum."""
        members = set().union(*groups)
        for access in accesses:
            found = self.offsets.parts(access)
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
            self.algebra.linear(p)
        except affine.NotAffine:
            return False
        return True

    def taken_apart(self, access: Access) -> Parts | None:
        """Return the offset of a flat access along its first axes, and the other indices.

        None where nothing tells them, or where the offset is needed as a whole.
        """
        found = self.offsets.parts(access) if access.index[0] in self.apart else None
        if found is None:
            return None
        tail = tuple([self.in_digits(p) for p in found.tail])
        return Parts(found.count, self.in_digits(found.whole), tail)

    def _trouble(self, node: Expr) -> list[tuple[Poly, Poly | None]]:
        """Return the sums in `node` that are divided by, or multiplied with, a symbol."""
        algebra = self.algebra
        start = len(algebra.divisions)
        try:
            p = algebra.poly(node, self.env)
        except affine.NotAffine:
            found = algebra.divisions[start:]
            if not found:
                raise
            return [(whole, by) for whole, by in found]
        if all(self.products.derive(m) for m in self.products.of(p)):
            return []
        # ``H * (e % 3)`` has a product of a floor and a size: with digits, of one with few values.
        parts = [v for m in p for v in m if len(m) > 1 and algebra.is_floor(v)]
        floors = [algebra.functions[v][1] for v in dict.fromkeys(parts)]
        return [(whole, by) for whole, by in floors] or [(p, None)]

    def _add_group(self, members: tuple[str, ...], divisors: list[Product]) -> None:
        algebra = self.algebra
        divisors.sort(key=lambda divisor: (len(divisor[0]), divisor[1]))
        name = "e_" + "_".join(members)
        below: Product = ((), 1)
        digits: list[str] = []
        whole: Poly = {}
        for n, divisor in enumerate(divisors):
            limit = evenly(dict([divisor]), dict([below]))
            if limit is None:
                raise affine.NotAffine("divisors of one sum that do not divide each other")
            digit = f"{name}_{n}"
            algebra.extents[digit] = limit
            (algebra.below[digit],) = limit.items()
            digits.insert(0, digit)
            whole = affine.plus(whole, times(dict([below]), variable(digit)))
            below = divisor
        top = f"{name}_{len(divisors)}"
        digits.insert(0, top)
        whole = affine.plus(whole, times(dict([below]), variable(top)))
        exact: Poly | None = product_of([self.extent[member] for member in members])
        if any(part in algebra.functions for m in exact or {} for part in m):
            exact = None
        if exact is not None:
            exact = self._at_top(top, below, whole, exact)
        group = Group(members, tuple(digits), whole, exact)
        self.groups.append(group)
        for member in members:
            self.group_of[member] = group
        self._eliminate(group)

    def _at_top(self, top: str, below: Product, whole: Poly, exact: Poly) -> Poly | None:
        """Return the bound of a sum, None where isl cannot compare them; bound its top digit."""
        try:
            self.algebra.compare("lt", whole, exact)
        except affine.NotAffine:
            return None
        limit = evenly(exact, dict([below]))
        if limit is not None:
            self.algebra.extents[top] = limit
        return exact

    def _eliminate(self, group: Group) -> None:
        """Write the fastest member as the whole less the others; these must cancel in every use."""
        fastest = group.members[-1]
        whole = mixed_radix(group.members, [self.extent[member] for member in group.members])
        others = affine.plus(whole, variable(fastest), -1)
        self.last_of[fastest] = affine.plus(group.whole, others, -1)
        for node, value in self.env.items():
            if any(fastest in monomial for monomial in value):
                self.env[node] = self.in_digits(value)

    # What a site has

    # Facts of points


def _is_round(group: Group) -> bool:
    """Whether an index of the grid and one of a loop are members of a group."""
    grid = [member in _GRID for member in group.members]
    return any(grid) and not all(grid)


def _compared(condition: Expr) -> Iterator[Expr]:
    """Yield the index expressions that a condition compares."""
    for part in walk(condition):
        if isinstance(part, Op) and part.dtype.is_bool and part.args[0].dtype.kind == "x":
            yield from part.args


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
        rest = [v for v in product if v not in own]
        known = set[str]().union(*[algebra.variables({(v,): 1}) for v in rest])
        if len(own) > 1 or cases is None or cases > MOST_CASES or known - algebra.symbols:
            return False
        self.tie(product, own[0], range(cases), own[0])
        return True

    def tie(self, product: Monomial, own: str, values: Iterable[int], key: str) -> None:
        """Make a variable for the product of a variable and sizes, one case for each value.

        Args:
            product: of a variable and sizes.
            own: the variable.
            values: those that it may have.
            key: the variable that brings it along.
        """
        derived = self.algebra.derived
        if product in derived:
            return
        rest = list(product)
        rest.remove(own)
        name = derived[product] = f"m{len(derived)}_{own}"
        step = self.algebra.linear({tuple(rest): 1})
        cases = [
            affine.equal(own, n) & affine.equal(name, affine.sum_of([(step, n)])) for n in values
        ]
        self.spaces.derived.setdefault(key, {})[name] = affine.any_of(cases)

    def _hidden(self, product: Monomial) -> str | None:
        """Return the hidden variable of a product; None where another one stands for it."""
        algebra, hidden = self.algebra, self.spaces.hidden
        if product not in algebra.derived:
            name = algebra.derived[product] = f"m{len(algebra.derived)}_hidden"
            hidden[name] = self._between(product, name)
        found = algebra.derived[product]
        return found if found in hidden else None

    def hide(self, members: tuple[str, ...], products: Iterable[Monomial]) -> bool:
        """Make hidden variables for the products in a sum; whether its indices are used apart."""
        if self._together(members) and not (self.spaces.wide and self.used_apart(members)):
            return False
        around = self._around()
        for product in products:
            name = self._hidden(product)
            if name is not None:
                key = self._inside(members, product, around)
                self.spaces.derived.setdefault(key, {})[name] = self.spaces.hidden[name]
        return True

    def used_apart(self, members: tuple[str, ...]) -> bool:
        """Whether indices of a sum are known one without the others, or used by themselves."""
        if not self._together(members):
            return True
        fastest = members[-1]
        whole = mixed_radix(members, [self.spaces.extent[member] for member in members])
        for node in self.spaces.expressions():
            try:
                p = self.algebra.poly(node, self.spaces.env)
            except affine.NotAffine:
                continue  # quotients and rests of the sum, or what is refused later
            times_whole: Poly = {
                tuple([v for v in m if v != fastest]): c for m, c in p.items() if fastest in m
            }
            rest = affine.plus(p, times(times_whole, whole), -1)
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
            raise affine.NotAffine("*".join(product))
        loops = [spaces.names[loop.var] for loop in site.serial]
        outside = next((n + 1 for n, names in enumerate(loops) if own[0] in names), 0)
        if outside == len(loops):
            raise affine.NotAffine("*".join(product))
        key = loops[outside][0]
        name = self._hidden(product)
        if name is not None and name not in spaces.variables(site):
            spaces.derived.setdefault(key, {})[name] = spaces.hidden[name]

    def _inside(
        self, members: tuple[str, ...], product: Monomial, around: Sequence[set[str]]
    ) -> str:
        """Return the outermost loop of a sum inside of which the index of a product is known.

        Raises:
            NotAffine: the index is known inside of no loop of the sum.
        """
        loops = [v for v in members if v not in self.spaces.launch]
        for v in loops:
            known = all(found.intersection(product) for found in around if v in found)
            if v not in product and known:
                return v
        for v in loops:  # of an index of a launch all that a loop has is known in the loop itself
            if all(found.issuperset(members) for found in around if v in found):
                return v
        raise affine.NotAffine("a part of a merged index")

    def _between(self, product: Monomial, name: str) -> affine.Condition:
        """Return the limits of a product with a name."""
        (own,) = [v for v in product if v in self.spaces.extent]
        rest = tuple([v for v in product if v != own])
        top = times(affine.plus(self.spaces.extent[own], constant(1), -1), {rest: 1})
        end = self.algebra.linear(top)
        rising = affine.at_most(0, name) & affine.at_most(name, end)
        return rising | affine.at_most(end, name) & affine.at_most(name, 0)


class BoundedQuotients:
    """The quotients of a program by sizes: of ``(i + 1) % M`` and ``(i - 5) // (M - 1)``.

    isl divides by numbers alone. Where isl shows that at every point that uses it a quotient ``q =
    whole // by`` is one of a few numbers k, q becomes a variable of its own, tied to the indices by
    one case for each: ``k * by <= whole < (k + 1) * by and q = k``. In a case all products of q are
    linear, and a remainder is ``whole - q * by``.

    A quotient of many values, as that of a row of channels and pixels by the pixels of a channel,
    has a hidden variable, and its product with the divisor another one, where digits cannot stand
    for its indices (`_name_hidden`).

    A case says that the divisor is positive. Where no case holds, q is a number that is none of
    these values, so that a point stays one point; that no statement asks for q there is shown
    (`require_known`).

    Args:
        spaces: its variables; groups are known.

    Attributes:
        values: the values of each quotient, by its variable.
        known: for each quotient the condition under which it is known.
    """

    def __init__(self, spaces: Spaces) -> None:
        self.spaces, self.algebra = spaces, spaces.algebra
        self.values: dict[str, range] = {}
        self.known: dict[str, affine.Condition] = {}
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
                    if len(monomial) > 1:
                        self.spaces.products.tie(monomial, v, self.values[v], self._keys[v])

    def _divided(self, node: Expr, places: Sequence[tuple[Site, Guards]]) -> Poly:
        """Return an index expression in which each quotient has a variable."""
        while True:
            start = len(self.algebra.divisions)
            try:
                return self.algebra.poly(node, self.spaces.env)
            except affine.NotAffine:
                if len(self.algebra.divisions) == start:
                    raise
            self._name(*self.algebra.divisions[-1], places)

    def _name(self, whole: Poly, by: Poly, uses: Sequence[tuple[Site, Guards]]) -> None:
        """Make a variable for a quotient, from the statements and conditions that it is used in."""
        try:
            values = self._values(whole, by, uses)
        except affine.NotAffine:
            if not self.spaces.wide:
                raise
            self._name_hidden(whole, by, uses)
            return
        name = f"m{len(self.values)}_quotient"
        key = self._key(whole)
        cases = [self._between(whole, by, k, k + 1) & affine.equal(name, k) for k in values]
        known = self._between(whole, by, values.start, values.stop)
        known = known & affine.below(0, self.algebra.linear(by))
        none = values.start - 1
        cases.append(~known & affine.equal(name, none))
        self.values[name] = range(none, values.stop)
        self.known[name], self._keys[name] = known, key
        self.algebra.quotients[self.algebra.division(whole, by)] = name
        self.algebra.divided_in[name] = whole
        self.algebra.derived[(name,)] = name
        self.spaces.derived.setdefault(key, {})[name] = affine.any_of(cases)

    def _name_hidden(self, whole: Poly, by: Poly, uses: Sequence[tuple[Site, Guards]]) -> None:
        """Make two variables for a quotient q of many values: for q and for the product q * by.

        Both are hidden (`IndexProducts`): of them is known that 0 <= q < top, that the product is
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
        inside = affine.within(algebra.linear(whole), algebra.linear(times(top, by)))
        rest = affine.sum_of([(algebra.linear(whole), 1), (product, -1)])
        limit = affine.all_of([
            affine.within(name, algebra.linear(top)),
            affine.at_most(0, product),
            affine.at_most(product, algebra.linear(times(affine.plus(top, constant(1), -1), by))),
            affine.within(rest, algebra.linear(by)),
        ])  # fmt: skip
        algebra.quotients[algebra.division(whole, by)] = name
        algebra.divided_in[name] = whole
        algebra.extents[name] = top
        algebra.derived[(name,)] = name
        algebra.derived[tuple(sorted((name, *sizes)))] = product
        self.known[name] = inside
        for hidden in (name, product):
            spaces.hidden[hidden] = limit
            spaces.derived.setdefault(key, {})[hidden] = ~inside | limit

    def _between(self, whole: Poly, by: Poly, first: int, end: int) -> affine.Condition:
        """Return that a quotient by what is above 0 is one of the numbers from `first` on."""
        size, value = self.algebra.linear(by), self.algebra.linear(whole)
        least, over = [affine.sum_of([(size, n)]) for n in (first, end)]
        return affine.at_most(least, value) & affine.below(value, over)

    def _top(self, whole: Poly, by: Poly, uses: Sequence[tuple[Site, Guards]]) -> Poly:
        """Return a product of sizes that a quotient is always below.

        Raises:
            NotAffine: none of the extents in the program is one, or a product is divided by.
        """
        if len(by) != 1 or next(iter(by.values())) != 1:
            raise affine.NotAffine("division by a sum")
        for extent in self._extents(uses):
            top = evenly(extent, by)
            if top and all(self.spaces.lies_in(whole, extent, *use) for use in uses):
                return top
        raise affine.NotAffine("division by a symbol")

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
            except affine.NotAffine:
                continue
            found[frozenset(p.items())] = p
        return list(found.values())

    def require_known(self, name: str, site: Site, guards: Guards = ()) -> None:
        """Show that a quotient is known wherever a statement runs under conditions.

        Raises:
            NotAffine: it may not be.
        """
        if not self.spaces.always(self.known[name], site, guards):
            raise affine.NotAffine("division by a symbol")

    def _key(self, whole: Poly) -> str:
        """Return the variable at all of whose places the others of a sum are known too."""
        own = [v for v in self.algebra.variables(whole) if v not in self.algebra.symbols]
        places = [set(self.spaces.variables(site)) for site in self.spaces.model.sites]
        for v in sorted(own, reverse=True):
            if all(found.issuperset(own) for found in places if v in found):
                return v
        raise affine.NotAffine("a quotient of indices that are not known together")

    def _values(self, whole: Poly, by: Poly, uses: Iterable[tuple[Site, Guards]]) -> range:
        """Return the numbers that isl shows to be all values of a quotient.

        Raises:
            NotAffine: there are many.
        """
        low, high = 0, 0
        for site, guards in uses:
            while not self._holds("ge", whole, by, low, site, guards):
                low -= 1
                self._require_few(low, high)
            while not self._holds("lt", whole, by, high + 1, site, guards):
                high += 1
                self._require_few(low, high)
        return range(low, high + 1)

    def _holds(
        self, op: str, whole: Poly, by: Poly, count: int, site: Site, guards: Guards
    ) -> bool:
        """Whether isl shows ``whole op count * by`` at a statement."""
        with suppress(affine.NotAffine):
            condition = self.algebra.compare(op, whole, times(by, constant(count)))
            return self.spaces.always(condition, site, guards)
        return False

    def _require_few(self, low: int, high: int) -> None:
        if high - low >= MOST_CASES:
            raise affine.NotAffine("division by a symbol")


@dataclass(frozen=True, slots=True)
class Parts:
    """A flat offset: the offset along the first `count` axes together, and the others' indices."""

    count: int
    whole: Poly
    tail: tuple[Poly, ...]


class FlatOffsets:
    """The axes' indices of flat offsets, in the variables that loops have from the start.

    Where loops run over merged or split axes, an access holds one offset into memory, ``i0 * H * W
    + i1 * 8 * W + i2 * W + i3``. Divided as a polynomial by W it is ``i0 * H + i1 * 8 + i2`` and a
    rest i3. Where isl shows that the rest lies in [0, W) at every point of the access, these are
    the row and the column, since quotient and rest of a division are unique. The same is done by H.
    What is left where that ends is the offset along the first axes.

    Args:
        spaces: the loops, before any index is written by digits.
    """

    def __init__(self, spaces: Spaces) -> None:
        self.spaces, self.algebra = spaces, spaces.algebra
        self._parts: dict[object, Parts | None] = {}

    def parts(self, access: Access) -> Parts | None:
        """Return the indices of the last axes of an access; None where no axis can be told.

        It is asked for before indices are written by digits; what it is then is known later.
        """
        key = (access.site.loops, access.site.guards, access.guards, access.buffer, access.index)
        if key not in self._parts:
            self._parts[key] = self._taken_apart(access)
        return self._parts[key]

    def _taken_apart(self, access: Access) -> Parts | None:
        shape = access.buffer.shape
        try:
            rest = self.algebra.poly(access.index[0], self.spaces.env)
        except affine.NotAffine:
            return None
        tail: list[Poly] = []
        while len(tail) < len(shape) - 1:
            try:
                size = self.algebra.poly(shape[-1 - len(tail)], {})
                whole, within = self._divided(rest, size)
                self.algebra.linear(within)
            except affine.NotAffine:
                break
            known = as_constant(size) is not None
            if not known and not self.spaces.lies_in(within, size, access.site, access.guards):
                break
            tail.insert(0, within)
            rest = whole
        return Parts(len(shape) - len(tail), rest, tuple(tail)) if tail else None

    def _divided(self, whole: Poly, size: Poly) -> tuple[Poly, Poly]:
        if as_constant(size) is None:
            return parted(whole, size)
        found = self.algebra.divided(whole, size)
        return found, affine.plus(whole, times(found, size), -1)


class DenseShapes:
    """The shapes in which arrays of the caller are looked at; most keep their own.

    A group of C / 32 channels of S elements each is one row of a reshape, and a loop over that row
    has offsets ``i0 * C * S + i1 * (C // 32 * S) + i2``: no affine index of a channel follows from
    i2. But dense memory has no shape of its own. If each stride of a list divides the next one and
    the size of the array, the digits of an offset by these strides name the place as well as the
    indices of the declared shape do, one to one. The strides that occur in the offsets of a program
    are tried: what is left by a stride must lie in [0, stride) at every access, which isl shows
    from the loops and tests around it.

    Args:
        spaces: the loops, before any index is written by digits; gets the `shapes`.
    """

    def __init__(self, spaces: Spaces) -> None:
        self.spaces, self.algebra = spaces, spaces.algebra
        self._index: dict[tuple[Site, Buffer, tuple[Expr, ...]], list[Poly]] = {}
        for buffer in spaces.model.buffers() if spaces.wide else ():
            if is_callers(buffer) and self.is_dense(buffer):
                self._look_at(buffer, spaces.model.accesses_to([buffer]))

    def index(self, access: Access) -> list[Poly]:
        """Return the digits of an access of such an array, the slowest first."""
        found = self._index[access.site, access.buffer, access.index]
        return [self.spaces.in_digits(p) for p in found]

    def offset(self, buffer: Buffer, index: Sequence[Poly]) -> Poly:
        """Return the offset of an element of the declared shape."""
        return offset_of(index, [self.algebra.poly(stride, {}) for stride in buffer.strides])

    def whole(self, access: Access) -> Poly:
        """Return the offset of an access in the variables that isl knows."""
        return self.spaces.in_digits(self._offset(access))

    def is_dense(self, buffer: Buffer) -> bool:
        """Whether an offset into a buffer is a row-major number: there is no padding."""
        shape, strides = [
            [self.algebra.poly(e, {}) for e in part] for part in (buffer.shape, buffer.strides)
        ]
        return strides == row_major(shape)

    def _look_at(self, buffer: Buffer, accesses: Sequence[Access]) -> None:
        try:
            offsets = {access: self._offset(access) for access in accesses}
        except affine.NotAffine:
            return
        if all(self._is_plain(access) for access in accesses):
            return
        size = self.algebra.poly(buffer.size, {})
        shape: list[Poly] = []
        below: Poly = constant(1)
        digits: dict[Access, list[Poly]] = {access: [] for access in accesses}
        for stride in self._strides(offsets.values()):
            extent = evenly(stride, below)
            if extent is None or evenly(size, stride) is None:
                continue
            parts = {a: parted(offsets[a], extent) for a in accesses}
            if not all(self._lies_in(a, rest, extent) for a, (_, rest) in parts.items()):
                continue
            for access, (whole, rest) in parts.items():
                offsets[access] = whole
                digits[access].insert(0, rest)
            shape.insert(0, extent)
            below = stride
        first = evenly(size, below)
        if shape and first is not None:
            self.spaces.shapes[buffer] = (first, *shape)
            for a in accesses:
                self._index[a.site, a.buffer, a.index] = [offsets[a], *digits[a]]

    def _offset(self, access: Access) -> Poly:
        index = [self.algebra.poly(i, self.spaces.env) for i in access.index]
        return index[0] if access.flat else self.offset(access.buffer, index)

    def _is_plain(self, access: Access) -> bool:
        """Whether isl knows the indices of an access along the declared axes."""
        found = [self.algebra.poly(i, self.spaces.env) for i in access.index]
        if access.flat and len(access.buffer.shape) > 1:
            parts = self.spaces.offsets.parts(access)
            if parts is None or parts.count > 1:
                return False
            found = [parts.whole, *parts.tail]
        return all(
            self.spaces.products.derive(m) for p in found for m in self.spaces.products.of(p)
        )

    def _strides(self, offsets: Iterable[Poly]) -> list[Poly]:
        """Return the strides of loops in these offsets that are products of sizes, the least first.

        A product of fewer sizes comes first: only of such it is known that it may divide another.
        """
        found: dict[tuple[object, ...], Poly] = {}
        for offset in offsets:
            for monomial, count in offset.items():
                own = [v for v in monomial if v in self.spaces.extent]
                rest = tuple([v for v in monomial if v not in own])
                if len(own) == 1 and rest and count > 0:
                    found[len(rest), rest, count] = {rest: count}
        return [found[key] for key in sorted(found, key=lambda key: (key[0], key[2], key[1]))]

    def _lies_in(self, access: Access, rest: Poly, extent: Poly) -> bool:
        spaces, guards = self.spaces, (*access.site.guards, *access.guards)
        compared = [t for condition, _ in guards for t in _compared(condition)]
        for term in compared:
            with suppress(affine.NotAffine):
                for part in spaces.products.of(self.algebra.poly(term, spaces.env)):
                    spaces.products.derive(part)
        if not all(spaces.products.derive(m) for m in spaces.products.of(rest)):
            return False
        return spaces.lies_in(rest, extent, access.site, access.guards)


_GRID = frozenset([f"t_{d.value}" for d in GRID_DIMENSIONS])
"""The names of the indices of the grid."""
