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

Three more forms are for programs that have no proof without them (`Forms`): a loop whose index is
divided by a number has a variable for each digit (`divided_loops`), an array of the caller another
shape (`dense_shapes`), and a quotient of many values two hidden variables (`bounded_quotients`).

A flat offset needs none of these where the extents and tests around it tell its indices, as behind
``i1 * 8 + i2 < W`` (`flat_offsets`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from loopnest import kir
from loopnest.kir.tiles import had_tiles
from loopnest.proofs.bounded_quotients import BoundedQuotients
from loopnest.proofs.dense_shapes import DenseShapes
from loopnest.proofs.divided_loops import (
    dividing_numbers,
    is_divided_often,
    numbers_below,
    radix_of,
)
from loopnest.proofs.flat_offsets import FlatOffsets, Parts
from loopnest.proofs.index_notation import DividedSums, Forms, Group
from loopnest.proofs.index_products import IndexProducts
from loopnest.proofs.program_model import Access, Guards, Model, Site, reads_memory
from loopnest.proofs.quasi_affine import (
    Algebra,
    NotAffine,
    Poly,
    Product,
    as_constant,
    as_product,
    constant,
    evenly,
    plus,
    times,
    variable,
)
from loopnest.proofs.shared_divisors import left_whole, share_divisors
from loopnest.scalar.enums import GRID_DIMENSIONS, LAUNCH_DIMENSIONS, ParallelType
from loopnest.scalar.expr import Const, Expr, Index, LaunchIndex, Local


class Spaces:
    """Names, extents and environments of all index variables.

    Raises:
        NotAffine: an index cannot be represented.
    """

    def __init__(self, model: Model, algebra: Algebra, forms: Forms = Forms.PLAIN) -> None:
        self.model, self.algebra, self.forms = model, algebra, forms
        program = model.program
        self.env: dict[Expr, Poly] = {}
        self.names: dict[Index, tuple[str, ...]] = {}
        """The variables of each serial loop's index: one, or its digits, the fastest last."""
        found = dividing_numbers(program)
        self._cuts = numbers_below(found) if self.wide else {}
        # Only of fragments: the digits of lanes that exchange values cost isl more than they save.
        self._numbers = found if is_divided_often(found) and had_tiles(program) else {}
        self.extent: dict[str, Poly] = {}
        self.threads: dict[ParallelType, tuple[str, ...]] = {}
        """The variables of each launch dimension: one, or its digits, the fastest last."""
        sizes = dict(program.launch)
        for dimension in [d for d in LAUNCH_DIMENSIONS if d in sizes]:
            name, size = f"t_{dimension.value}", algebra.poly(sizes[dimension], {})
            key = dimension if dimension.is_block else None
            self.threads[dimension] = self._digits(LaunchIndex(dimension), key, name, size)
        self.launch = [name for names in self.threads.values() for name in names]
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
        self.products = IndexProducts(self)
        self.apart: set[Expr] = set()
        """Flat offsets whose indices follow from the extents and tests around them."""
        self.dense = DenseShapes(self)
        self._find_groups()
        self.rounds = [group for group in self.groups if _is_round(group)]
        """Groups of an index of the grid and loops: a block takes part after part, in rounds."""

    def along(self, dimensions: Iterable[ParallelType]) -> list[str]:
        """Return the variables of launch dimensions: none of one that the launch lacks."""
        return [name for d in dimensions for name in self.threads.get(d, ())]

    def _digits(
        self, index: Expr, key: Index | ParallelType | None, name: str, size: Poly
    ) -> tuple[str, ...]:
        """Name the digits of an index in the radix of the numbers that divide it.

        isl is spared the quotients: ``i // 4`` and ``i // 2 % 2`` are variables.
        """
        extent, numbers = as_constant(size), self._numbers.get(key) if key is not None else None
        radix = radix_of(extent, numbers) if extent and numbers else []
        if len(radix) < 2:
            self.env[index], self.extent[name] = variable(name), size
            return (name,)
        names = tuple([f"{name}_{len(radix) - 1 - n}" for n in range(len(radix))])
        whole: Poly = {}
        for digit, count in zip(names, radix, strict=True):
            whole = plus(times(whole, constant(count)), variable(digit))
            self.extent[digit] = constant(count)
        self.env[index] = whole
        return names

    def _loop(self, node: kir.Loop) -> None:
        if node.parallel.is_thread:
            self.env[node.var] = self.env[LaunchIndex(node.parallel)]
            return
        # Copies of one loop have one index, and one name.
        known = self.names.get(node.var)
        if known:
            return
        name = f"v_{len(self.names)}"
        number, extent = self._cuts.get(node.var, 0), self.algebra.poly(node.var.extent, {})
        whole = {m: c // number for m, c in extent.items()} if number else {}
        if as_constant(extent) is not None or times(whole, constant(number)) != extent:
            lanes = node.parallel is ParallelType.vectorize
            key = None if lanes else node.var
            self.names[node.var] = self._digits(node.var, key, name, extent)
            return
        # isl has no product of a size and a floor, but one of a size and a variable can be had:
        # where the digits of an index are those of two axes, each has a variable.
        digit = f"{name}_low"
        self.names[node.var] = (name, digit)
        self.env[node.var] = {(name,): number, (digit,): 1}
        self.extent[name], self.extent[digit] = whole, constant(number)

    def name(self, var: Index) -> str:
        """Return the variable of a loop whose index is not divided by a number."""
        (name,) = self.names[var]
        return name

    # Groups

    def _find_groups(self) -> None:
        sums = self._sums()
        wanted = sums.divisors
        for members in self._left_whole(wanted):
            sums.left += sums.nodes.get(members, ())
            del wanted[members]
        share_divisors(self, wanted)
        taken: set[str] = set()
        for members, divisors in sorted(wanted.items(), key=lambda found: not found[1]):
            if taken.intersection(members):
                if divisors:
                    raise NotAffine("an index in two sums")
                self.apart.update(sums.offsets.get(members, ()))  # the digits of others may tell
                continue
            if not divisors and self.products.hide(members, sums.products[members]):
                continue
            taken.update(members)
            self._add_group(members, list(divisors))
        self.quotients.find(sums.left)

    @property
    def wide(self) -> bool:
        """Whether hidden variables and other shapes may be used."""
        return self.forms is not Forms.PLAIN

    def _left_whole(
        self, wanted: dict[tuple[str, ...], dict[Product, None]]
    ) -> list[tuple[str, ...]]:
        """Return the sums whose quotients have variables of their own, instead of digits."""
        if self.forms is Forms.QUOTIENTS:
            return [members for members, divisors in wanted.items() if divisors]
        return left_whole(self, wanted) if self.wide else []

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
                except NotAffine:
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

    def uses(self) -> Iterator[tuple[Expr, Site, Guards]]:
        """Yield the index expressions of statements, and the conditions that each is used under."""
        for site in self.model.sites:
            used: list[tuple[Expr, Guards]] = [(node, ()) for node in self._of_site(site)]
            for access in self.model.accesses_of(site):
                used += [(node, access.guards) for node in access.index]
            for node, guards in used:
                for part in _index_parts(node):
                    yield part, site, guards

    def expressions(self) -> dict[Expr, list[Access]]:
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
                if access.buffer in self.dense.shapes:
                    continue
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
        tail = tuple([self.in_digits(p) for p in found.tail])
        return Parts(found.count, self.in_digits(found.whole), tail)

    def in_digits(self, p: Poly) -> Poly:
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
        if all(self.products.derive(m) for m in self.products.of(p)):
            return []
        # ``H * (e % 3)`` has a product of a floor and a size: with digits, of one with few values.
        parts = [v for m in p for v in m if len(m) > 1 and algebra.is_floor(v)]
        floors = [algebra.functions[v][1] for v in dict.fromkeys(parts)]
        return [(whole, by) for whole, by in floors] or [(p, None)]

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

    def _add_group(self, members: tuple[str, ...], divisors: list[Product]) -> None:
        algebra = self.algebra
        divisors.sort(key=lambda divisor: (len(divisor[0]), divisor[1]))
        name = "e_" + "_".join(members)
        below: Product = ((), 1)
        digits: list[str] = []
        whole: Poly = {}
        for n, divisor in enumerate(divisors):
            limit = evenly(dict([divisor]), below)
            if limit is None:
                raise NotAffine("divisors of one sum that do not divide each other")
            digit = f"{name}_{n}"
            algebra.extents[digit] = limit
            (algebra.below[digit],) = limit.items()
            digits.insert(0, digit)
            whole = plus(whole, times(dict([below]), variable(digit)))
            below = divisor
        top = f"{name}_{len(divisors)}"
        digits.insert(0, top)
        whole = plus(whole, times(dict([below]), variable(top)))
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

    def _at_top(self, top: str, below: Product, whole: Poly, exact: Poly) -> Poly | None:
        """Return the bound of a sum, None where isl cannot compare them; bound its top digit."""
        try:
            self.algebra.compare("lt", whole, exact, str)
        except NotAffine:
            return None
        limit = evenly(exact, below)
        if limit is not None:
            self.algebra.extents[top] = limit
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
            if any(fastest in monomial for monomial in value):
                self.env[node] = self.in_digits(value)

    # What a site has

    def range_of(self, v: str) -> list[str]:
        """Return the limits of a variable."""
        if v in self.extent:
            return [f"0 <= {v} < {self.algebra.text(self.extent[v], str)}"]
        if v in self.algebra.derived.values():
            return []
        limit = self.algebra.below.get(v)
        below = [] if limit is None else [f"{v} < {self.algebra.text(dict([limit]), str)}"]
        return [f"{v} >= 0", *below]

    def bound(self, loop: kir.Loop) -> list[str]:
        """Return the test that a loop bound to a launch dimension makes, where it is one."""
        size = self.model.program.launch_extent(loop.parallel)
        launch = constant(1) if size is None else self.algebra.poly(size, {})
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
        return [*self.launch, *[v for loop in site.serial for v in self.names[loop.var]]]

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


def _is_round(group: Group) -> bool:
    """Whether an index of the grid and one of a loop are members of a group."""
    grid = [member in _GRID for member in group.members]
    return any(grid) and not all(grid)


def _index_parts(node: Expr) -> Iterator[Expr]:
    """Yield the index expressions that a condition compares."""
    if node.dtype.is_bool and node.args:
        for arg in node.args:
            yield from _index_parts(arg)
    elif not isinstance(node, Local) and not reads_memory(node):
        yield node


def _has_sizes(access: Access) -> bool:
    """Whether the offset of an element is a product of sizes."""
    return any(not isinstance(extent, Const) for extent in access.buffer.shape[1:])


_GRID = frozenset([f"t_{d.value}" for d in GRID_DIMENSIONS])
"""The names of the indices of the grid."""
