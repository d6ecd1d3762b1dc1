"""The index variables of a program for isl: those of launch dimensions and of serial loops.

A loop whose index is divided by numbers has a variable for each digit, where isl needs it: of a
program with fragments, and where the index has a size in its extent (`Forms`).

What a program does with its indices adds variables, which `isl_spaces` finds: digits of sums take
the place of indices (`Group`), products and quotients have variables beside them (`derived`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise
from typing import Any

from loopnest import kir
from loopnest.kir.tiles import had_tiles
from loopnest.proofs import affine
from loopnest.proofs.program_model import Access, Guards, Model, Site, reads_memory, terms
from loopnest.proofs.quasi_affine import (
    Algebra,
    Poly,
    as_constant,
    constant,
    evenly,
    mixed_radix,
    times,
    variable,
)
from loopnest.scalar.enums import LAUNCH_DIMENSIONS, ParallelType
from loopnest.scalar.expr import Buffer, Const, Expr, Index, LaunchIndex, Local, Op, walk

MAX_OPERATIONS = 200_000
"""How many steps isl may take to show one fact about indices."""


class Forms(Enum):
    """How indices are given to isl: each way has programs that only it can express.

    PLAIN: digits stand for the indices of a divided sum.
    DIGITS: for those that are used as a whole only; other quotients have variables of their own.
    QUOTIENTS: all quotients have.
    """

    PLAIN = auto()
    DIGITS = auto()
    QUOTIENTS = auto()


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


class IndexVariables:
    """Names, extents and environments of all index variables, and what holds of them.

    Raises:
        NotAffine: an index cannot be represented.
    """

    def __init__(self, model: Model, algebra: Algebra, forms: Forms = Forms.PLAIN) -> None:
        self.model, self.algebra, self.forms = model, algebra, forms
        program = model.program
        self.env: dict[Expr, Poly] = {}
        self.names: dict[Index, tuple[str, ...]] = {}
        """The variables of each serial loop's index: one, or its digits, the fastest last."""
        self._numbers = _dividing_numbers(program)
        # Only of fragments: the digits of lanes that exchange values cost isl more than they save.
        often = any(len(numbers) > 1 for numbers in self._numbers.values())
        self._has_fragments = often and had_tiles(program)
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
        self.derived: dict[str, dict[str, affine.Condition]] = {}
        self.hidden: dict[str, affine.Condition] = {}
        self._context: Any = None
        self._shown: dict[object, bool] = {}
        self.shapes: dict[Buffer, tuple[Poly, ...]] = {}
        """The extents of an array that is looked at in another shape than its own."""

    def along(self, dimensions: Iterable[ParallelType]) -> list[str]:
        """Return the variables of launch dimensions: none of one that the launch lacks."""
        return [name for d in dimensions for name in self.threads.get(d, ())]

    def _digits(
        self, index: Expr, key: Index | ParallelType | None, name: str, size: Poly
    ) -> tuple[str, ...]:
        """Name the digits of an index in the radix of the numbers that divide it.

        isl is spared the quotients: ``i // 4`` and ``i // 2 % 2`` are variables. It has no product
        of a size and a floor, but one of a size and a variable can be had: where the digits of an
        index are those of two axes, each has a variable.
        """
        numbers = self._numbers.get(key, frozenset()) if key is not None else frozenset()
        if as_constant(size) is None:
            takes = self.wide and len(numbers) == 1 and isinstance(key, Index)
        else:
            takes = self._has_fragments
        radix = _radix_of(size, numbers) if takes else [size]
        names = [name] if len(radix) == 1 else [f"{name}_{n}" for n in range(len(radix))][::-1]
        self.extent.update(zip(names, radix, strict=True))
        self.env[index] = mixed_radix(names, radix)
        return tuple(names)

    def _loop(self, node: kir.Loop) -> None:
        if node.parallel.is_thread:
            self.env[node.var] = self.env[LaunchIndex(node.parallel)]
        elif node.var not in self.names:  # copies of one loop have one index, and one name
            name, extent = f"v_{len(self.names)}", self.algebra.poly(node.var.extent, {})
            lanes = node.parallel is ParallelType.vectorize and as_constant(extent) is not None
            self.names[node.var] = self._digits(node.var, None if lanes else node.var, name, extent)

    def name(self, var: Index) -> str:
        """Return the variable of a loop whose index is not divided by a number."""
        (name,) = self.names[var]
        return name

    @property
    def wide(self) -> bool:
        """Whether hidden variables and other shapes may be used."""
        return self.forms is not Forms.PLAIN

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
                if access.buffer in self.shapes:
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

    def in_digits(self, p: Poly) -> Poly:
        """Return a polynomial of loop indices, the last of each group written by its digits."""
        result: Poly = {}
        for monomial, count in p.items():
            term = constant(count)
            for part in monomial:
                term = times(term, self.last_of.get(part, variable(part)))
            result = affine.plus(result, term)
        return result

    # What a site has

    def range_of(self, v: str) -> list[affine.Condition]:
        """Return the limits of a variable."""
        if v in self.extent:
            return [affine.within(v, self.algebra.linear(self.extent[v]))]
        if v in self.algebra.derived.values():
            return []
        limit = self.algebra.below.get(v)
        if limit is None:
            return [affine.at_most(0, v)]
        return [affine.within(v, self.algebra.linear(dict([limit])))]

    def bound(self, loop: kir.Loop) -> list[affine.Condition]:
        """Return the test that a loop bound to a launch dimension makes, where it is one."""
        size = self.model.program.launch_extent(loop.parallel)
        launch = constant(1) if size is None else self.algebra.poly(size, {})
        mine = self.algebra.poly(loop.var.extent, {})
        if mine == launch:
            return []
        return [self.algebra.compare("lt", self.env[LaunchIndex(loop.parallel)], mine)]

    def limits(self, site: Site) -> list[affine.Condition]:
        """Return the limits of a site's variables, without tests, and without ties."""
        variables = self.variables(site)
        result = [limit for v in variables for limit in self.range_of(v)]
        for group in self.groups:
            if group.digits[0] in variables and group.exact is not None:
                result.append(self.algebra.compare("lt", group.whole, group.exact))
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
                raise affine.NotAffine("a part of a merged index")
            else:
                result.update(dict.fromkeys(group.digits))
        for v in list(result):
            result.update(dict.fromkeys(self.derived.get(v, ())))
        return list(result)

    # Facts of points

    def lies_in(self, rest: Poly, by: Poly, site: Site, guards: Guards) -> bool:
        """Whether isl shows that a rest is in [0, by) at a statement, under conditions."""
        around = (site.loops, *site.guards, *guards)  # many statements stand at one place
        key = (frozenset(rest.items()), frozenset(by.items()), around)
        if key not in self._shown:
            self._shown[key] = False
            with suppress(affine.NotAffine):
                self._shown[key] = self.always(self.algebra.inside(rest, by), site, guards)
        return self._shown[key]

    def always(self, condition: affine.Condition, site: Site, guards: Guards = ()) -> bool:
        """Whether isl shows a condition at a statement, under its conditions and others.

        Sizes are those that are assumed.
        """
        import islpy

        if self._context is None:
            self._context = islpy.Context()
            self._context.set_max_operations(MAX_OPERATIONS)
        variables = self.variables(site)
        ties = [tie for v in variables for tie in self.derived.get(v, {}).values()]
        known = [
            *self._known(site, guards),
            *ties,
            *self.algebra.facts(self.model.program),
            self.algebra.context(),
        ]
        relations = affine.Relations(islpy, self._context)
        try:
            points = (self.algebra.parameters(), tuple(variables))
            return bool(relations.make(*points, None, [~condition, *known]).is_empty())
        except (islpy.Error, affine.NotAffine):
            return False
        finally:
            self._context.reset_operations()

    def _known(self, site: Site, guards: Guards) -> Iterator[affine.Condition]:
        """Yield what isl can be told of the indices at a statement."""
        with suppress(affine.NotAffine):
            yield from self.limits(site)
        for condition, value in (*site.guards, *guards):
            for term in terms(condition) if value else (condition,):
                with suppress(affine.NotAffine):
                    found = self.algebra.condition(term, self.env)
                    if affine.names_in([found]).isdisjoint(self.hidden):
                        yield found if value else ~found

    def hidden_at(self, site: Site) -> set[str]:
        """Return the hidden variables of a site."""
        if not self.hidden:
            return set()
        return self.hidden.keys() & self.variables(site)

    def is_exact(self, site: Site) -> bool:
        """Whether no group of the site runs over more than its points."""
        groups = [self.group_of[m] for m in self.members_of(site) if m in self.group_of]
        return all(group.exact is not None for group in groups)

    # Sums

    def radix(self, whole: Poly) -> tuple[str, ...]:
        """Return the indices of a sum in mixed radix, the fastest last.

        Raises:
            NotAffine: the sum is no number in mixed radix.
        """
        strides: dict[str, Poly] = {}
        for monomial, count in whole.items():
            mine = [v for v in monomial if v in self.extent]
            if len(mine) != 1:
                raise affine.NotAffine("a sum that is not in mixed radix")
            rest = tuple([v for v in monomial if v != mine[0]])
            strides[mine[0]] = affine.plus(strides.get(mine[0], {}), {rest: count})
        step: Poly = constant(1)
        order: list[str] = []
        while strides:
            name = next((v for v, s in strides.items() if s == step), None)
            if name is None:
                raise affine.NotAffine("a sum that is not in mixed radix")
            del strides[name]
            order.insert(0, name)
            step = times(step, self.extent[name])
        return tuple(order)


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


def _dividing_numbers(program: kir.Program) -> dict[Index | ParallelType, frozenset[int]]:
    """Return the numbers that each index is divided by; of threads, by launch dimension.

    ``i0 // 2 % 4`` divides i0 by 2 and by 8.
    """
    bound = {
        node.var: node.parallel
        for node, _ in kir.walk(program.body)
        if isinstance(node, kir.Loop) and node.parallel.is_thread
    }
    found: dict[Index | ParallelType, set[int]] = {}
    seen: set[Expr] = set()
    for node, _ in kir.walk(program.body):
        claimed = node.coordinate if isinstance(node, kir.Store) else ()
        for whole in (*kir.expressions(node), *claimed):
            if whole in seen:
                continue
            seen.add(whole)
            for index, number in _divided(whole):
                key = index.dimension if isinstance(index, LaunchIndex) else bound.get(index, index)
                found.setdefault(key, set()).add(number)
    return {index: frozenset(numbers) for index, numbers in found.items()}


def _divided(whole: Expr) -> Iterator[tuple[Index | LaunchIndex, int]]:
    for part in walk(whole):
        number = 1
        while isinstance(part, Op) and part.op in ("floordiv", "mod"):
            inner, by = part.args
            if not isinstance(by, Const):
                break
            number = number * int(by.value) if part.op == "floordiv" or number == 1 else number
            if isinstance(inner, (Index, LaunchIndex)):
                yield inner, number
            part = inner


def _radix_of(extent: Poly, numbers: frozenset[int]) -> Sequence[Poly]:
    """Return how many values each digit of an index has, the fastest last.

    One digit where the numbers do not divide each other, or the extent.
    """
    known = as_constant(extent)
    steps = [n for n in sorted(numbers) if n > 1 and (known is None or n < known)]
    sizes = [*map(constant, (1, *steps)), extent]
    radix = [evenly(large, small) for small, large in pairwise(sizes)]
    digits = [digit for digit in radix if digit]
    return digits[::-1] if len(digits) == len(radix) else [extent]
