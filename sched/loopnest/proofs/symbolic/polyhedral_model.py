"""A program in isl: the points of its statements, their times, and the elements they access."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

from loopnest import kir
from loopnest.kir.buffers import Buffer
from loopnest.proofs.data_indices import Need, Trusted
from loopnest.proofs.index_notation import Forms, Group
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
    is_private,
    launch_dimensions,
    multiples,
)
from loopnest.proofs.quasi_affine import (
    Algebra,
    NotAffine,
    Poly,
    as_constant,
    constant,
    plus,
    times,
    variable,
)
from loopnest.proofs.report import Finding
from loopnest.proofs.symbolic.hidden_points import HiddenPoints
from loopnest.proofs.symbolic.isl_relations import IslRelations
from loopnest.proofs.symbolic.parted_axes import PartedAxes
from loopnest.proofs.symbolic.statement_instances import NOWHERE, Instances, NotProved, about
from loopnest.scalar.enums import (
    BLOCK_DIMENSIONS,
    GRID_DIMENSIONS,
    MOST_ALONG,
    MOST_THREADS,
    ParallelType,
)
from loopnest.scalar.expr import Const, Expr, Load, Local, Op, loads
from loopnest.scalar.templates import at
from loopnest.tensor.math_snapshot import MathSnapshot

MAX_OPERATIONS = 10_000_000
"""How many of isl's operations a proof may take, however few statements there are."""

MAX_OPERATIONS_A_STATEMENT = 100_000
"""How many it may take for each statement where there are many."""


class PolyhedralModel(IslRelations):
    """The names, points and maps that all checks share.

    Args:
        model, math_: the program, and what it should compute.
        works: its stores.
        exchanges: its collectives.
        sizes: the size symbols that have a value.
        forms: how indices are written.

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
    ) -> None:
        most = max(MAX_OPERATIONS, MAX_OPERATIONS_A_STATEMENT * len(model.sites))
        same = equal_sizes(model.program)
        super().__init__(Algebra(sizes, multiples(model.program), same), most)
        self.model, self.math, self.works = model, math_, list(works)
        self.exchanges = {e.site: e for e in exchanges}
        self.spaces = Spaces(model, self.algebra, forms)
        self.env = self.spaces.env
        self.numbers = count()
        self.depth = max([self._steps(s) for s in model.sites], default=0)
        self.notes: list[Finding] = []
        self.tags: dict[Buffer, str] = {b: f"B{n}" for n, b in enumerate(model.buffers())}
        self.last: dict[Local, list[ParallelType]] = {}
        self.last_names: dict[tuple[Local, ParallelType], str] = {}
        self._flag_texts: dict[Expr, str] = {}
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

    def _assumptions(self) -> str:
        program = self.model.program
        found = []
        for _, condition in (*program.conditions, *program.requires):
            try:
                found.append(self.algebra.condition(condition, {}, str))
            except NotAffine:
                continue  # not needed for soundness: what is shown holds without it
        return " and ".join([*found, *self._factors(), *self._limits()]) or "1 = 1"

    def _factors(self) -> Iterator[str]:
        """Yield that what axes are split by is >= 1: other launches are refused."""
        for factor in self.model.program.split_factors:
            with suppress(NotAffine):  # less is assumed
                yield f"{self.text(self.algebra.poly(factor, {}))} >= 1"

    def _limits(self) -> Iterator[str]:
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
                yield self.algebra.compare("le", mine, constant(most), str)
            except NotAffine:
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
        texts = []
        for dim in dims:
            name = f"last{len(self.last)}_{dim.value}"
            extent = self.text(self.spaces.extent[f"t_{dim.value}"])
            self.last_names[flag, dim] = name
            self.algebra.symbols.add(name)
            # There are blocks where there is a point. Another case, without any, would double the
            # parts of every relation.
            self.algebra.bounds[name] = f"{name} < {extent}"
            texts.append(f"t_{dim.value} = {name}")
        self._flag_texts[flag] = f"({' and '.join(texts) or '1 = 1'})"

    # Sets and maps of points

    def domain(self, at: Instances, guards: Guards = (), *, untied: bool = False) -> Any:
        """Return the set of points, for sizes that fulfil what is assumed."""
        conditions = at.untied if untied else at.conditions
        context = [*conditions, *self.guards(guards), self.algebra.context(), self.assumed]
        return self.relation(at.tuple, "", context)

    def over(
        self, at: Instances, target: str, extra: Sequence[str] = (), *, untied: bool = False
    ) -> Any:
        """Return the map from points to `target`, under conditions beside theirs."""
        found = self.relation(at.tuple, target, extra)
        return found.intersect_domain(self.domain(at, untied=untied))

    def among(self, at: Instances, extra: Sequence[str]) -> Any:
        """Return the set of points of which some conditions hold."""
        return self.relation(at.tuple, "", extra).intersect(self.domain(at))

    # Points

    def instances(self, site: Site, name: str = "", moment: Site | None = None) -> Instances:
        """Return the points of a site, at its time or at that of an earlier site around it."""
        with about(site):
            return self._instances(site, name, moment or site)

    def _instances(self, site: Site, name: str, moment: Site) -> Instances:
        spaces = self.spaces
        variables = spaces.variables(site)
        chosen = self._named_data(site)
        ties = [text for v in variables for text in spaces.derived.get(v, {}).values()]
        conditions = [*spaces.limits(site), *ties]
        shared = self._shared.get(site, ())
        conditions += self.guards(tuple([g for g in site.guards if g not in shared]))
        self.require_present(conditions, variables)
        mark = name or f"S{next(self.numbers)}"
        return Instances(mark, [*variables, *chosen], conditions, self.time(moment), ties)

    def require_divisors(self) -> None:
        """Show that no size that is divided by is 0 where there is a launch.

        Raises:
            NotProved: one may be.
        """
        for by in self.algebra.divisors:
            zero = self.algebra.compare("le", by, {}, str)
            self.require_empty(self.among(NOWHERE, [zero]), "that no divisor is 0")

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
            plain = [o for o in operands if isinstance(o, Access) and not o.flat]
            # Data that are folded themselves are read twice: each read has a need of its own.
            same = {Load(o.buffer, o.index) for o in plain}
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
                (text,) = self.guards(((trusted.condition, True),))
                where = self.guards(trusted.guards)
                conditions.append(f"(not ({' and '.join(where)}) or {text})" if where else text)
        names = [n for n in [self._data[load] for load in found] if n not in at.variables]
        used = set[str]().union(*[self.algebra.variables(p) for p in self.polys(access.index)])
        for remainder in sorted(used & self.algebra.wrapped.keys() - set(at.variables)):
            names.append(remainder)
            conditions.append(f"0 <= {remainder} < {self.text(self.algebra.wrapped[remainder])}")
        return Instances(name, [*at.variables, *names], conditions, at.time, at.ties)

    def guards(self, guards: Guards) -> list[str]:
        """Return conditions as texts."""
        result: list[str] = []
        for condition, wanted in guards:
            text = self._condition(condition)
            result.append(text if wanted else f"not ({text})")
        return result

    def _condition(self, node: Expr) -> str:
        if node in self._flag_texts:
            return self._flag_texts[node]
        if isinstance(node, Op) and node.op in ("and", "or", "not"):
            parts = [self._condition(a) for a in node.args]
            if node.op == "not":
                return f"not ({parts[0]})"
            return f"({f' {node.op} '.join(parts)})"
        return self.algebra.condition(node, self.env, str)

    def require_present(self, texts: Sequence[str], variables: Sequence[str]) -> None:
        """Refuse a member of a group that did not cancel, or a product that is not known there."""
        gone = [m for g in self.spaces.groups for m in g.members if m not in variables]
        gone += [m for m in self.spaces.hidden if m not in variables]
        for name in gone:
            pattern = re.compile(rf"\b{name}\b")
            if any(pattern.search(text) for text in texts):
                raise NotAffine(f"{name} did not cancel")

    def time(self, site: Site) -> list[str]:
        """Return the time of a site's points, one text a dimension."""
        result: list[str] = []
        for step in site.time:
            if isinstance(step, int):
                result.append(str(step))
                continue
            for name in self.spaces.names[step]:
                group = self.spaces.group_of.get(name)
                if group is None:
                    result.append(name)
                elif name == next(m for m in group.members if m.startswith("v_")):
                    result += list(group.digits)
                else:
                    result.append("0")
        return result + ["0"] * (self.times - len(result))

    def _steps(self, site: Site) -> int:
        """Return how many texts a site's time has, without digits of merged indices."""
        names = self.spaces.names
        return sum([1 if isinstance(step, int) else len(names[step]) for step in site.time])

    @property
    def times(self) -> int:
        """The number of dimensions of a time."""
        return self.depth + sum(len(g.digits) for g in self.spaces.groups)

    def schedule(self, at: Instances) -> Any:
        return self.over(at, f"[{', '.join(at.time)}]")

    def launched(self) -> list[str]:
        """Return that every launch dimension has a thread: else nothing is launched."""
        return [f"{self.text(self.spaces.extent[name])} >= 1" for name in self.spaces.launch]

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
        quotients = self.spaces.quotients
        self.algebra.shown = lambda rest, by: quotients.lies_in(rest, by, site, guards)
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
        if access.buffer in self.spaces.dense.shapes:
            return self.spaces.dense.index(access)
        index = self.polys(access.index, access.site, access.guards)
        if not access.flat:
            return index
        self.require_dense(access.buffer)
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
            result.insert(0, plus(offset, times(whole, size), -1))
            offset = whole
        return [offset, *result]

    def access(self, at: Instances, access: Access, *, place: bool = False) -> Any:
        """Return the map from points to elements.

        An element belongs to a copy of its buffer: of which thread or block, made in which
        iterations; where `place`, to the place in memory, which all copies of a block share.
        """
        parts = [self.text(p) for p in self.placed(access)]
        if not place:
            parts = [*self._copy(access), *parts]
        self.require_present(parts, at.variables)
        target = f"{self.tags[access.buffer]}[{', '.join(parts)}]"
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
        if buffer in self.spaces.dense.shapes:
            return list(index)
        if strides is None:
            return self.parted.parts(buffer, index)
        total: Poly = {}
        for p, stride in zip(index, strides, strict=True):
            total = plus(total, times(p, constant(stride)))
        return [total]

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

    def require_dense(self, buffer: Buffer) -> None:
        """Show that a flat offset is a row-major number: there is no padding."""
        step: Poly = constant(1)
        for extent, stride in zip(reversed(buffer.shape), reversed(buffer.strides), strict=True):
            if self.algebra.poly(stride, {}) != step:
                raise NotProved(f"a flat offset in {buffer.name}")
            step = times(step, self.algebra.poly(extent, {}))

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
