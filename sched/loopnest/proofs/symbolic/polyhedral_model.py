"""A program in isl: the points of its statements, their times, and the elements they access."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import Any

from loopnest import kir
from loopnest.proofs import affine
from loopnest.proofs.affine import NotAffine, names_in, plus
from loopnest.proofs.data_indices import Need, Trusted
from loopnest.proofs.index_variables import Forms, Group
from loopnest.proofs.isl_spaces import Spaces
from loopnest.proofs.live_points import LivePoints, with_temporaries
from loopnest.proofs.obligations import CollectiveMath, Work, bounding_loads
from loopnest.proofs.program_model import (
    Access,
    Guards,
    Model,
    Site,
    data_values,
    equal_sizes,
    is_callers,
    is_private,
    launch_dimensions,
    multiples,
)
from loopnest.proofs.quasi_affine import (
    Algebra,
    Monomial,
    Poly,
    as_constant,
    constant,
    evenly,
    offset_of,
    times,
    variable,
)
from loopnest.proofs.report import Finding
from loopnest.proofs.symbolic.isl_relations import (
    NOWHERE,
    Instances,
    IslRelations,
    NotProved,
    about,
)
from loopnest.scalar.enums import (
    BLOCK_DIMENSIONS,
    GRID_DIMENSIONS,
    MOST_ALONG,
    MOST_THREADS,
    Memory,
    ParallelType,
)
from loopnest.scalar.expr import Buffer, Const, Expr, Load, Local, Op, loads, walk
from loopnest.scalar.templates import at
from loopnest.tensor.math_snapshot import MathSnapshot

MAX_OPERATIONS = 10_000_000
"""How many of isl's operations a proof may take, however few statements there are."""

MAX_OPERATIONS_A_STATEMENT = 100_000
"""How many it may take for each statement where there are many."""


def _algebra(program: kir.Program, sizes: dict[str, int], least: Mapping[object, int]) -> Algebra:
    return Algebra(sizes, multiples(program), equal_sizes(program), least)


def least_sizes(model: Model, sizes: dict[str, int]) -> dict[object, int]:
    """Return what sizes, and quotients of sizes, are at least, where extents count from there.

    Of ``H // 2 - 1``, where 2 <= H is assumed, H // 2 is 1 or more: with a parameter that counts
    from 1 the extent is that parameter, by which isl's indices are divided, and not a sum.
    """
    extents = [e for buffer in model.buffers() for e in buffer.shape]
    extents += [
        node.var.extent for node, _ in kir.walk(model.program.body) if isinstance(node, kir.Loop)
    ]
    result: dict[object, int] = {}
    while True:
        algebra = _algebra(model.program, sizes, result)
        found = next(_least(algebra, model.program, extents), None)
        if found is None:
            return result
        name, number = found
        result[algebra.stands_for[name]] = number


def _least(
    algebra: Algebra, program: kir.Program, extents: Iterable[Expr]
) -> Iterator[tuple[str, int]]:
    """Yield parameters with numbers that they are at least, where an extent counts from there."""
    relations = IslRelations(algebra, MAX_OPERATIONS)
    for extent in extents:
        with suppress(NotAffine, relations.isl.Error):
            for name, number in algebra.counted_from(algebra.poly(extent, {})):
                less = [affine.below(name, number), *algebra.facts(program), algebra.context()]
                if relations.relation(NOWHERE.tuple(), None, less).is_empty():
                    yield name, number


class PolyhedralModel(IslRelations):
    """The names, points and maps that all checks share.

    Args:
        model, math_: the program, and what it should compute.
        works: its stores.
        exchanges: its collectives.
        sizes: the size symbols that have a value.
        forms: how indices are written.
        least: what sizes are counted from (`least_sizes`).

    Raises:
        NotProved, NotAffine: it cannot be represented.
    """

    def __init__(
        self,
        model: Model,
        math_: MathSnapshot,
        works: Sequence[Work],
        exchanges: Sequence[CollectiveMath],
        sizes: dict[str, int],
        forms: Forms = Forms.PLAIN,
        least: Mapping[object, int] = MappingProxyType({}),
    ) -> None:
        most = max(MAX_OPERATIONS, MAX_OPERATIONS_A_STATEMENT * len(model.sites))
        super().__init__(_algebra(model.program, sizes, least), most)
        self.model, self.math, self.works = model, math_, list(works)
        self.exchanges = {e.site: e for e in exchanges}
        self.spaces = Spaces(model, self.algebra, forms)
        self._domains: dict[object, Any] = {}
        self.env = self.spaces.env
        self.numbers = count()
        self.depth = max([self._steps(s) for s in model.sites], default=0)
        self.notes: list[Finding] = []
        self.tags: dict[Buffer, str] = {b: f"B{n}" for n, b in enumerate(model.buffers())}
        self.last: dict[Local, list[ParallelType]] = {}
        self.last_names: dict[tuple[Local, ParallelType], str] = {}
        self._flags: dict[Expr, affine.Condition] = {}
        for flag, site in model.arrivals.items():
            self._arrival(flag, site)
        self.assumed = self._assumptions()
        self.strides = self._flat_strides()
        self.parted = PartedAxes(self)
        self._by_data: dict[tuple[object, ...], Instances] = {}
        self._trusted: dict[Site, tuple[Trusted, ...]] = {w.site: w.trusted for w in works}
        self._data: dict[Load, str] = {}
        self.live = LivePoints(math_, model.program)
        self._shared: dict[Site, Guards] = {}
        self.chosen = with_temporaries({w.site: self.chosen_by(w) for w in works}, model.sites)
        for site in model.sites:
            chosen = dict(self.chosen.get(site, {}))
            kept = [x for x in self._tested(site) if self.live.is_kept(x)]
            chosen.update([(x, x) for x in kept if x not in chosen.values()])
            self.chosen[site] = chosen
        for load in self._loads():
            name = self._data.setdefault(load, f"d_{len(self._data)}")
            self.env[load] = variable(name)
            self.algebra.data.add(name)
        self.hidden_points = HiddenPoints(self)
        self.sites: dict[Site, Instances] = {s: self.instances(s) for s in model.sites}

    def _assumptions(self) -> affine.Condition:
        found = self.algebra.facts(self.model.program)
        return affine.all_of([*found, *self._factors(), *self._limits()])

    def _factors(self) -> Iterator[affine.Condition]:
        """Yield that what axes are split by is >= 1: other launches are refused."""
        for factor in self.model.program.split_factors:
            with suppress(affine.NotAffine):  # less is assumed
                yield affine.at_most(1, self.linear(self.algebra.poly(factor, {})))

    def _limits(self) -> Iterator[affine.Condition]:
        """Yield those limits of a block that bound one extent alone."""
        extents = {d: e for d, e in self.model.program.launch if d.is_block}
        known = [int(e.value) for e in extents.values() if isinstance(e, Const)]
        for dim, extent in extents.items():
            if isinstance(extent, Const):
                continue
            # The other symbolic extents are 1 or more where a block starts: they only lower this
            # bound.
            most = min(MOST_THREADS // max(math.prod(known), 1), MOST_ALONG[dim])
            try:
                mine = self.algebra.poly(extent, {})
                yield self.algebra.compare("le", mine, constant(most))
            except affine.NotAffine:
                continue

    # Arrivals: the number of the last block is a parameter, the same for all counters

    def _arrival(self, flag: Local, site: Site) -> None:
        """Make parameters for the block that goes on alone.

        It may be any block; what is shown holds for every value. That all groups of blocks have
        the same one is no restriction, since nothing that one group does in common memory depends
        on which of its blocks does it (`lonely`).
        """
        node = site.node
        assert isinstance(node, kir.Arrive)
        kept = set[ParallelType]().union(*[launch_dimensions(site, i) for i in node.index])
        kept |= {d for c, _ in site.guards for d in launch_dimensions(site, c)}
        alone = {d for other in self.model.flags(site.guards) for d in self.last.get(other, ())}
        used = [d for d, _ in self.model.program.launch if d.is_grid]
        dims = [d for d in used if d not in kept and d not in alone]
        self.last[flag] = dims
        for dim in dims:
            name = f"last{len(self.last)}_{dim.value}"
            extent = self.linear(self.spaces.extent[f"t_{dim.value}"])
            self.last_names[flag, dim] = name
            self.algebra.symbols.add(name)
            # There are blocks where there is a point. Another case, without any, would double the
            # parts of every relation.
            self.algebra.bounds[name] = affine.below(name, extent)
        last = [affine.equal(f"t_{dim.value}", self.last_names[flag, dim]) for dim in dims]
        self._flags[flag] = affine.all_of(last)

    # Sets and maps of points

    def domain(self, at: Instances, guards: Guards = (), *, untied: bool = False) -> Any:
        """Return the set of points, for sizes that fulfil what is assumed."""
        # Of points alone it is asked often: a look at what is known of sizes by now is soon done.
        sizes = (self.algebra.parameters(), len(self.algebra.bounds))
        key = (at, len(at.conditions), guards, untied, *sizes)
        found = None if guards else self._domains.get(key)
        if found is None:
            conditions = at.untied if untied else at.conditions
            context = [*conditions, *self.guards(guards), self.algebra.context(), self.assumed]
            found = self._domains[key] = self.relation(at.tuple(), None, context)
        return found

    def over(
        self,
        at: Instances,
        target: affine.Tuple,
        extra: Iterable[affine.Condition] = (),
        *,
        untied: bool = False,
    ) -> Any:
        """Return the map from points to `target`, under conditions beside theirs."""
        found = self.relation(at.tuple(), target, extra)
        return found.intersect_domain(self.domain(at, untied=untied))

    def among(self, at: Instances, extra: Sequence[affine.Condition]) -> Any:
        """Return the set of points of which some conditions hold."""
        return self.relation(at.tuple(), None, extra).intersect(self.domain(at))

    # Points

    def instances(self, site: Site, name: str = "", moment: Site | None = None) -> Instances:
        """Return the points of a site, at its time or at that of an earlier site around it."""
        with about(site):
            return self._instances(site, name, moment or site)

    def _instances(self, site: Site, name: str, moment: Site) -> Instances:
        spaces = self.spaces
        variables = spaces.variables(site)
        chosen = self._named_data(site)
        ties = [tie for v in variables for tie in spaces.derived.get(v, {}).values()]
        conditions = [*spaces.limits(site), *ties]
        shared = self._shared.get(site, ())
        conditions += self.guards(tuple([g for g in site.guards if g not in shared]))
        self.require_present(conditions, variables)
        mark = name or f"S{next(self.numbers)}"
        return Instances(mark, [*variables, *chosen], conditions, self.time(moment), ties)

    def require_divisors(self) -> None:
        """Show that no size that is divided by is 0: by threads where there are any, or the host.

        Raises:
            NotProved: one may be.
        """
        sizes = [extent for _, extent in self.model.program.launch]
        for buffer in self.model.buffers():
            sizes += () if buffer.memory is Memory.LOCAL else (*buffer.shape, buffer.size)
        parts = [part for size in sizes for part in walk(size) if isinstance(part, Op)]
        quotients = [part for part in parts if part.op in ("floordiv", "ceildiv", "mod")]
        by_host = [self.algebra.poly(part.args[1], {}) for part in quotients]
        for by in self.algebra.divisors:
            zero = [self.algebra.compare("le", by, {})]
            zero += [] if by in by_host else self.launched()
            self.require_empty(self.among(NOWHERE, zero), "that no divisor is 0")

    # Data

    def _loads(self) -> Iterator[Load]:
        """Yield the loads that have a variable: in indices, and that choose what is folded."""
        for access in self.model.accesses:
            yield from data_values(access.index)
        for found in self.chosen.values():
            yield from found.values()

    def _tested(self, site: Site) -> list[Load]:
        """Return what the tests around a site load, each once."""
        return list(dict.fromkeys([x for test, _ in site.guards for x in loads(test)]))

    def _named_data(self, site: Site) -> list[str]:
        """Return the variables of the data by which the points of a site are chosen."""
        return list(dict.fromkeys([self._data[x] for x in self.chosen.get(site, {}).values()]))

    def tested_at(self, at: Instances) -> list[tuple[str, Load]]:
        """Return the elements of inputs that the tests around points load, with their variables."""
        return [(n, x) for x, n in self._data.items() if n in at.variables and self.live.is_kept(x)]

    def chosen_by(self, work: Work) -> dict[Expr, Load]:
        """Return the loads by which data choose what an update folds, by what the math has there.

        Only what is known to be the math's data may stand in a test around it: that an update
        happens for some value of other data does not say that it does for the one at hand. The
        needs of a store say that its own load and each test find that. Another test may be around
        a store to what is a thread's own, and made under that test: who reads it is under the test,
        too, so that the store need not know it; one of an input it knows.

        Raises:
            NotProved: such data is no load, or a test around a store is of others.
        """
        wanted = self.live.data(work.tensor) if work.kind == "update" else ()
        bounds = bounding_loads(self.model, self.live, work.tensor, work.site) if wanted else ()
        tested = {data: Load(a.buffer, a.index) for data, _, a in bounds}
        found: dict[Expr, Load] = {}
        for data in wanted:
            if isinstance(data, Load):
                # No test need ask for it: then it stands for itself, where the element is.
                place = [at(index, work.store.coordinate) for index in data.args]
                found[data] = tested.get(data, Load(data.buffer, tuple(place)))
                continue
            assert work.tensor.definition is not None
            name = work.tensor.definition.reads[data.number].producer
            own = [n for n in work.needs if n.demand == "whole" and not n.in_test]
            operands = [n.operand for n in own if n.tensor.name == name]
            plain = [o for o in operands if isinstance(o, Access)]
            # Data that are folded themselves are read twice: each read has a need of its own.
            same = {Load(o.buffer, o.index, o.flat) for o in plain}
            if len(operands) != len(plain) or len(same) != 1:
                raise NotProved(f"the data that choose what {work.tensor.name} folds")
            (found[data],) = same
        made = self.model.lifetime(work.write)
        inside = made if is_private(work.store.storage) else None
        around = [] if inside is None else self._tested(inside)
        known = {*found.values(), *[load for load in around if self.live.is_kept(load)]}
        others = [guard for guard in work.site.guards if not known.issuperset(loads(guard[0]))]
        if not set(others) <= set(() if inside is None else inside.guards):
            raise NotProved(f"a test of data around {work.tensor.name}")
        self._shared[work.site] = tuple(others)
        return found

    def points(self, access: Access) -> Instances:
        """Return the points of an access.

        Where its index depends on data, there is one for each value that this may have.
        """
        found = data_values(access.index)
        if not found:
            return self.sites[access.site]
        key = (access.site, *found)
        if key not in self._by_data:
            name = f"D{next(self.numbers)}"
            self._by_data[key] = self.with_data(self.sites[access.site], access, name)
        return self._by_data[key]

    def with_data(self, at: Instances, access: Access, name: str) -> Instances:
        """Return points with a variable for each value that the index of an access depends on."""
        found = data_values(access.index)
        conditions = list(at.conditions)
        for trusted in self._trusted.get(access.site, ()):
            if set(trusted.loads) <= set(found):
                (holds,) = self.guards(((trusted.condition, True),))
                where = affine.all_of(self.guards(trusted.guards))
                conditions.append(~where | holds)
        names = [n for n in [self._data[load] for load in found] if n not in at.variables]
        used = set[str]().union(*[self.algebra.variables(p) for p in self.polys(access.index)])
        for remainder in sorted(used & self.algebra.wrapped.keys() - set(at.variables)):
            names.append(remainder)
            size = self.linear(self.algebra.wrapped[remainder])
            conditions.append(affine.within(remainder, size))
        return Instances(name, [*at.variables, *names], conditions, at.time, at.ties)

    def guards(self, guards: Guards) -> list[affine.Condition]:
        """Return conditions for isl."""
        result: list[affine.Condition] = []
        for condition, wanted in guards:
            found = self._condition(condition)
            result.append(found if wanted else ~found)
        return result

    def _condition(self, node: Expr) -> affine.Condition:
        if node in self._flags:
            return self._flags[node]
        if isinstance(node, Op) and node.op in affine.CONNECTIVES:
            return affine.connected(node.op, [self._condition(a) for a in node.args])
        return self.algebra.condition(node, self.env)

    def require_present(
        self, found: Iterable[affine.Condition | affine.Sum], variables: Sequence[str]
    ) -> None:
        """Refuse a member of a group that did not cancel, or a product that is not known there."""
        gone = [m for g in self.spaces.groups for m in g.members if m not in variables]
        gone += [m for m in self.spaces.hidden if m not in variables]
        used = affine.names_in(found) if gone else ()
        for name in gone:
            if name in used:
                raise affine.NotAffine(f"{name} did not cancel")

    def time(self, site: Site) -> list[affine.Value]:
        """Return the time of a site's points, one value a dimension."""
        result: list[affine.Value] = []
        for step in site.time:
            if isinstance(step, int):
                result.append(step)
                continue
            for name in self.spaces.names[step]:
                group = self.spaces.group_of.get(name)
                if group is None:
                    result.append(name)
                elif name == next(m for m in group.members if m.startswith("v_")):
                    result += list(group.digits)
                else:
                    result.append(0)
        return [*result, *[0] * (self.times - len(result))]

    def _steps(self, site: Site) -> int:
        """Return how many values a site's time has, without digits of merged indices."""
        names = self.spaces.names
        return sum([1 if isinstance(step, int) else len(names[step]) for step in site.time])

    @property
    def times(self) -> int:
        """The number of dimensions of a time."""
        return self.depth + sum(len(g.digits) for g in self.spaces.groups)

    def schedule(self, at: Instances) -> Any:
        return self.over(at, affine.Tuple("", tuple(at.time)))

    def launched(self) -> list[affine.Condition]:
        """Return that every launch dimension has a thread: else nothing is launched."""
        return [
            affine.at_most(1, self.linear(self.spaces.extent[name])) for name in self.spaces.launch
        ]

    # Elements

    def polys(
        self, index: Sequence[Expr], site: Site | None = None, guards: Guards = ()
    ) -> list[Poly]:
        """Return indices; those that hold at the points of a site alone, where one is given."""
        if site is None:
            return [self.algebra.poly(i, self.env) for i in index]
        with self._tests_of(site, guards):
            return [self.algebra.poly(i, self.env) for i in index]

    @contextmanager
    def _tests_of(self, site: Site, guards: Guards = ()) -> Iterator[None]:
        """Let divisions count on the tests around a statement, and on other conditions of it."""
        self.algebra.shown = lambda rest, by: self.spaces.lies_in(rest, by, site, guards)
        try:
            yield
        finally:
            self.algebra.shown = None

    def claimed(self, work: Work) -> list[Poly]:
        """Return the element that a store claims to compute, at its points."""
        return self.polys(work.element, work.site)

    def needed(self, work: Work, need: Need) -> list[Poly]:
        """Return the element that a read of a store must find, at the points that read it."""
        guards = need.operand.guards if isinstance(need.operand, Access) else ()
        return self.polys(need.element, work.site, guards)

    def element(self, access: Access) -> list[Poly]:
        """Return one index a dimension; a flat offset is taken apart by the shape, or by tests.

        Raises:
            NotProved: there is padding.
            NotAffine: nothing tells the indices of a flat offset.
        """
        if access.buffer in self.spaces.shapes:
            return self.spaces.dense.index(access)
        index = self.polys(access.index, access.site, access.guards)
        if not access.flat:
            return index
        if not self.spaces.dense.is_dense(access.buffer):
            raise NotProved(f"a flat offset in {access.buffer.name}")
        if len(access.buffer.shape) == 1:
            return index
        parts = self.spaces.taken_apart(access)
        if parts is None:
            with self._tests_of(access.site, access.guards):
                return self._by_shape(index[0], access.buffer.shape)
        first = self._by_shape(parts.whole, access.buffer.shape[: parts.count])
        return [*first, *parts.tail]

    def _by_shape(self, offset: Poly, shape: Sequence[Expr]) -> list[Poly]:
        """Divide a flat offset by extents.

        Raises:
            NotAffine: a rest is not known to be smaller than the extent.
        """
        result: list[Poly] = []
        for extent in reversed(shape[1:]):
            size = self.algebra.poly(extent, {})
            whole = self.algebra.divided(offset, size)
            result.insert(0, affine.plus(offset, times(whole, size), -1))
            offset = whole
        return [offset, *result]

    def access(self, at: Instances, access: Access, *, place: bool = False) -> Any:
        """Return the map from points to elements.

        An element belongs to a copy of its buffer: of which thread or block, made in which
        iterations; where `place`, to the place in memory, which all copies of a block share.
        """
        parts = [self.linear(p) for p in self.placed(access)]
        copy = () if place else self._copy(access)
        self.require_present([*parts, *[((name, 1),) for name in copy]], at.variables)
        target = affine.Tuple(self.tags[access.buffer], (*copy, *parts))
        return self.over(at, target, self.guards(access.guards))

    def placed(self, access: Access) -> list[Poly]:
        """Return the place of an access in its copy."""
        if access.buffer in self.strides and access.flat:
            return self.polys(access.index)
        return self.place(access.buffer, self.element(access))

    def place(self, buffer: Buffer, index: Sequence[Poly]) -> list[Poly]:
        """Return what tells two elements of a copy apart: indices, or an address.

        The address where the strides are static and some access has a flat offset.
        """
        strides = self.strides.get(buffer)
        if buffer in self.spaces.shapes:
            return list(index)
        if strides is None:
            return self.parted.parts(buffer, index)
        return [offset_of(index, map(constant, strides))]

    def _flat_strides(self) -> dict[Buffer, list[int]]:
        """Return the strides of the buffers whose elements are told apart by addresses.

        Raises:
            NotProved: a flat offset into a swizzled tile.
        """
        result: dict[Buffer, list[int]] = {}
        for access in self.model.accesses:
            buffer = access.buffer
            if not access.flat or buffer in result:
                continue
            if buffer.swizzles:
                with about(access.site):
                    raise NotProved("a flat offset into a swizzled tile")
            strides = [as_constant(self.algebra.poly(s, {})) for s in buffer.strides]
            known = [s for s in strides if s is not None]
            if len(known) == len(strides):
                result[buffer] = known
        return result

    def _copy(self, access: Access) -> list[str]:
        made = self.model.lifetime(access)
        if made is None:
            return []
        if is_private(access.buffer):
            return [*self.spaces.variables(made), *self._named_data(made)]
        members = [m for m in self.spaces.members_of(made) if not m.startswith("t_block")]
        return self.spaces.replaced(members)

    # Which launch dimensions differ

    def grid(self, at: Instances) -> list[str]:
        """Return the variables that number the block of a point.

        Where blocks take rounds (`Spaces.rounds`), the digits tell the block and the round: points
        that agree in them are of one block, and points of two blocks differ in them.
        """
        launch = self._launch_variables(at, GRID_DIMENSIONS, self.spaces.rounds)
        rounds = [v for group in self.spaces.rounds for v in group.digits if v in at.variables]
        return [*launch, *rounds]

    def block(self, at: Instances) -> list[str]:
        """Return the variables that number a point's thread in its block.

        Raises:
            NotAffine: an index of the block is merged with others.
        """
        return self._launch_variables(at, BLOCK_DIMENSIONS, ())

    def _launch_variables(
        self, at: Instances, dims: Sequence[ParallelType], rounds: Sequence[Group]
    ) -> list[str]:
        apart = {member for group in rounds for member in group.members}
        names = self.spaces.along(dims)
        members = [v for v in names if v not in apart]
        derived = self.algebra.derived.values()
        found = self.spaces.replaced(members)
        return [v for v in found if v in at.variables and v not in derived]


# Points with hidden variables: which products stores claim, and where these do not matter.


class HiddenPoints:
    """The hidden variables of what stores claim.

    Args:
        setting: the program in isl, whose statements have no points yet.

    Raises:
        NotAffine: a product is none of an index, or nothing is known of a quotient where a
            statement asks for it.
    """

    def __init__(self, setting: PolyhedralModel) -> None:
        self.setting, self.spaces = setting, setting.spaces
        self._storing: dict[Work, Instances] = {}
        for work in setting.works:
            with about(work.site):
                if self.spaces.quotients.known:
                    self._require_known(work)
                if self.spaces.wide:
                    self._hide(work)
                elif self.spaces.groups:
                    self._derive(work)

    def _derive(self, work: Work) -> None:
        """Make variables for the products of digits with few values and sizes."""
        for access in self.setting.model.accesses_of(work.site):
            with suppress(NotAffine, NotProved):  # who needs the indices says it
                for p in self.setting.placed(access):
                    for monomial in self.spaces.products.of(p):
                        self.spaces.products.derive(monomial)

    def _hide(self, work: Work) -> None:
        """Make variables for the products of indices and sizes in what a store claims and reads."""
        products = self.spaces.products
        for monomial in self._compared(work):
            if not products.derive(monomial) and any(v in self.spaces.extent for v in monomial):
                products.hide_at(monomial, work.site)

    def _require_known(self, work: Work) -> None:
        """Show that the quotients in what the math demands of a store are known where it runs.

        Those in the nest's own indices and tests are: their values were looked for there.
        """
        setting = self.setting
        demanded = [*work.store.coordinate, *[e for pair in work.equalities for e in pair]]
        self._ask(work.site, lambda: [*setting.polys(demanded), *setting.claimed(work)])
        for need in work.needs:
            guards = need.operand.guards if isinstance(need.operand, Access) else ()
            self._ask(work.site, partial(setting.needed, work, need), guards)
        for agreement in work.conditions:
            condition = ((agreement.wanted, True),)
            self._ask(work.site, partial(setting.guards, condition), agreement.guards)

    def _ask(self, site: Site, compute: Callable[[], object], guards: Guards = ()) -> None:
        asked = self.setting.algebra.asked
        asked.clear()
        compute()
        for name in sorted(asked):
            self.spaces.quotients.require_known(name, site, guards)

    def _compared(self, work: Work) -> list[Monomial]:
        """Return the products in indices that a source and its reader must have in common."""
        polys, products = self.setting.polys, self.spaces.products
        claimed = self.setting.claimed(work)
        compared = [] if is_callers(work.store.storage) else [*claimed]
        for need in work.needs:
            element = self.setting.needed(work, need)
            if need.tensor.definition is not None:
                compared += element
        for access in self.setting.model.accesses_of(work.site):
            if access.buffer not in self.spaces.shapes and not access.flat:
                compared += polys(access.index)
        return [m for p in compared for m in products.of(p)]

    def storing(self, work: Work) -> Instances:
        """Return the points of a store, without the hidden variables that do not matter to it.

        A statement runs once for the true value of a product, which is one of those that a hidden
        variable may have. Where no test, no time, no place and no claim of the store names the
        variable, all of them are one point, and none must be found: the variable is left out.
        """
        found = self._storing.get(work)
        if found is None:
            found = self._storing[work] = self._without_hidden(work)
        return found

    def _without_hidden(self, work: Work) -> Instances:
        setting, spaces = self.setting, self.spaces
        at = setting.sites[work.site]
        made = setting.model.lifetime(work.write)
        # A buffer made where a product is known is another one for each value of it.
        kept = set() if made is None else spaces.hidden_at(made)
        gone = spaces.hidden_at(work.site) - kept
        if not gone or not spaces.wide or work.kind not in ("init", "define"):
            return at
        ties = [t for v in spaces.derived.values() for name, t in v.items() if name in gone]
        conditions = [condition for condition in at.conditions if condition not in ties]
        values = [*map(setting.linear, setting.placed(work.write))]
        if work.store.storage not in spaces.shapes:
            values += map(setting.linear, setting.claimed(work))
        if not gone.isdisjoint(names_in([*conditions, *values]) | set(at.time)):
            return at
        variables = [v for v in at.variables if v not in gone]
        left = [t for t in at.ties if t not in ties]
        return Instances(at.name, variables, conditions, at.time, left)


# Axes of buffers as long as a product of sizes, whose elements are named by digits.
#
# Where a merged loop runs over digits, ``e = q * M + r``, an index e along one axis of a buffer
# is no affine relation of q and r. If the quotient and the rest of every index along that axis
# are known, as of ``i * M + j`` elsewhere, the pair (q, r) names the element as well as e does.


class PartedAxes:
    """By what the indices along the axes of buffers are divided.

    Args:
        setting: the program in isl.
    """

    def __init__(self, setting: PolyhedralModel) -> None:
        self.setting, self.algebra = setting, setting.algebra
        self._divisors: dict[Buffer, tuple[tuple[Monomial, ...], ...]] = {}

    def parts(self, buffer: Buffer, index: Sequence[Poly]) -> list[Poly]:
        """Return what names an element: an index, or its digits, along each axis."""
        along = zip(index, self.divisors(buffer), strict=True)
        return [digit for p, divisors in along for digit in self._digits(p, divisors)]

    def bounded(
        self, buffer: Buffer, index: Sequence[Poly], extents: Sequence[Poly]
    ) -> tuple[list[Poly], list[Poly]]:
        """Return the same with an extent for each; only the first digit's is not its own."""
        bounds = self.extents(buffer, extents)
        return self.parts(buffer, index), [extent for along in bounds for extent in along]

    def extents(self, buffer: Buffer, extents: Sequence[Poly]) -> list[list[Poly]]:
        """Return the extents of what names an element, along each axis.

        Raises:
            NotAffine: a divisor does not divide an axis.
        """
        result: list[list[Poly]] = []
        for extent, divisors in zip(extents, self.divisors(buffer), strict=True):
            bounds: list[Poly] = []
            for divisor in divisors:
                whole = evenly(extent, {divisor: 1})
                if whole is None:
                    raise NotAffine("a part of a merged axis")
                bounds.append(whole)
                extent = {divisor: 1}
            result.append([*bounds, extent])
        return result

    def by_digits(self, buffer: Buffer) -> bool:
        """Whether digits name the elements along an axis of a buffer."""
        return any(self.divisors(buffer))

    def divisors(self, buffer: Buffer) -> tuple[tuple[Monomial, ...], ...]:
        """Return the divisors of the indices along each axis, the largest first; mostly none."""
        if buffer not in self._divisors:
            self._divisors[buffer] = ((),) * max(len(buffer.shape), 1)
            if not is_callers(buffer):
                self._find(buffer)
            elif self.setting.spaces.groups and buffer not in self.setting.spaces.shapes:
                with suppress(NotAffine, NotProved):  # a caller's has no other place
                    self._find(buffer)
        return self._divisors[buffer]

    def _find(self, buffer: Buffer) -> None:
        accesses = self.setting.model.accesses_to([buffer])
        if accesses and buffer not in self.setting.strides:
            indices = [self.setting.element(access) for access in accesses]
            along = zip(*indices, strict=True)
            self._divisors[buffer] = tuple([self._along(list(p)) for p in along])

    def alike(self, one: Poly, other: Poly) -> tuple[list[Poly], list[Poly]]:
        """Return what two indices are compared by: themselves, or their digits by the same sizes.

        Numbers in mixed radix are equal where their digits are.
        """
        divisors = self._along([one, other])
        return self._digits(one, divisors), self._digits(other, divisors)

    def _along(self, indices: list[Poly]) -> tuple[Monomial, ...]:
        found: set[Monomial] = set()
        for p in indices:
            for monomial in p:
                sizes = tuple([v for v in monomial if v in self.algebra.symbols])
                if sizes and len(sizes) < len(monomial) and monomial not in self.algebra.derived:
                    found.add(sizes)
        divisors = tuple(sorted(found, key=lambda m: (-len(m), m)))
        try:
            for p in indices:
                self._digits(p, divisors)
        except NotAffine:
            return ()
        return divisors

    def _digits(self, p: Poly, divisors: Sequence[Monomial]) -> list[Poly]:
        """Return the digits of an index, the slowest first.

        Raises:
            NotAffine: the rest of a quotient is not known to be smaller than the divisor.
        """
        result: list[Poly] = []
        for divisor in divisors:
            whole = self.algebra.exactly(p, {divisor: 1})
            if whole is None:
                raise NotAffine("a part of a merged axis")
            result.append(whole)
            p = plus(p, times(whole, {divisor: 1}), -1)
        return [*result, p]
