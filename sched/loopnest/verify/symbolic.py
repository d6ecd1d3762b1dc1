"""The facts for all sizes, decided by isl; what it cannot decide is left to `exact`.

Every check shows that a set of counterexamples is empty. `NotProved` says that one may not be, or
that something has no affine form: never that the kernel is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from loopnest import kir
from loopnest.buffers import Buffer
from loopnest.enums import IterKind, Memory, ParallelType
from loopnest.expr import Coordinate, Expr, LaunchIndex, Op
from loopnest.math_snapshot import MathSnapshot, MathTensor
from loopnest.verify.model import Access, Guards, Model, Site, is_private
from loopnest.verify.obligations import Need, Work
from loopnest.verify.poly import Algebra, NotAffine, Poly, constant, plus, times, variable
from loopnest.verify.report import Finding
from loopnest.verify.spaces import Spaces

MAX_OPERATIONS = 20_000_000
"""How many of isl's operations a proof may take."""


class NotProved(Exception):
    """A fact that isl did not show; `sizes` are some at which it may fail."""

    def __init__(self, what: str, sizes: dict[str, int] | None = None) -> None:
        super().__init__(what)
        self.sizes = sizes or {}


class Instances:
    """A statement's points, or a read's, as an isl tuple with constraints."""

    def __init__(self, name: str, variables: Sequence[str], conditions: list[str], time: list[str]):
        self.name = name
        self.variables = list(variables)
        self.conditions = conditions
        self.time = time

    @property
    def tuple(self) -> str:
        return f"{self.name}[{', '.join(self.variables)}]"

    def renamed(self, mark: str) -> str:
        return f"{self.name}[{', '.join([mark + v for v in self.variables])}]"


class Symbolic:
    """Prove the facts of one program for all sizes but those given.

    Raises:
        NotProved, NotAffine: it could not be shown.
    """

    def __init__(
        self,
        model: Model,
        math: MathSnapshot,
        works: Sequence[Work],
        sizes: dict[str, int],
    ) -> None:
        import islpy

        self.isl = islpy
        self.ctx = islpy.Context()
        self.ctx.set_max_operations(MAX_OPERATIONS)
        self.model, self.math, self.works = model, math, list(works)
        self.algebra = Algebra(sizes)
        self.spaces = Spaces(model, works, self.algebra)
        self.env = self.spaces.env
        self._number = count()
        self._read_texts: dict[str, Any] = {}
        self.depth = max([len(s.time) for s in model.sites], default=0)
        self.assumed = self._assumptions()
        self.notes: list[Finding] = []
        self.tags: dict[Buffer, str] = {b: f"B{n}" for n, b in enumerate(model.buffers())}
        self.sites: dict[Site, Instances] = {}

    def _assumptions(self) -> str:
        found = []
        for _, condition in self.model.program.assumed:
            try:
                found.append(self.algebra.condition(condition, {}, str))
            except NotAffine:
                continue  # not needed for soundness: what is shown holds without it
        return " and ".join(found) or "1 = 1"

    def prove(self) -> list[Finding]:
        """Prove every fact; return notes."""
        try:
            self._prove()
        except self.isl.Error as error:
            raise NotProved(f"isl: {error}") from None
        return self.notes

    def _prove(self) -> None:
        if any(isinstance(s.node, (kir.Barrier, kir.Collective)) for s in self.model.sites):
            raise NotProved("barriers")
        self._layouts()
        for site in self.model.sites:
            self.sites[site] = self._instances(site)
        for work in self.works:
            self._basics(work)
        for buffer in self.model.buffers():
            self._buffer(buffer)
        for output in self.model.program.outputs:
            self._output(output.name, output.buffer)

    # Text to isl

    def _text(self, p: Poly, mark: str = "") -> str:
        return self.algebra.text(p, lambda v: mark + v)

    def _map(self, domain: str, target: str, conditions: Sequence[str]) -> Any:
        head = ", ".join([*sorted(self.algebra.symbols), *self.algebra.products.values()])
        parts = [f"({c})" for c in (*conditions, self.algebra.context(), self.assumed)]
        inner = f"{domain} -> {target}" if target else domain
        text = f"[{head}] -> {{ {inner} : {' and '.join(parts)} }}"
        found = self._read_texts.get(text)
        if found is None:
            kind = self.isl.Map if target else self.isl.Set
            found = self._read_texts[text] = kind.read_from_str(self.ctx, text)
        return found

    def _require_empty(self, found: Any, what: str) -> None:
        if not found.is_empty():
            raise NotProved(what, self._sample(found))

    def _sample(self, found: Any) -> dict[str, int]:
        """Return sizes at which a set is not empty; none where they are not small."""
        isl = self.isl
        params = found.params()
        point = params.sample_point()
        result: dict[str, int] = {}
        for place in range(params.dim(isl.dim_type.param)):
            name = params.get_dim_name(isl.dim_type.param, place)
            value = point.get_coordinate_val(isl.dim_type.param, place)
            if name in self.algebra.symbols:
                result[name.removeprefix("p_")] = int(value.to_python())
        return result

    # Points

    def _instances(self, site: Site, name: str = "", moment: Site | None = None) -> Instances:
        spaces, algebra = self.spaces, self.algebra
        members = spaces.members_of(site)
        variables = spaces.replaced(members)
        conditions: list[str] = []
        for v in variables:
            if v in spaces.extent:
                extent = self._text(spaces.extent[v])
                conditions.append(f"0 <= {v} < {extent}")
            else:
                conditions.append(f"{v} >= 0")
                limit = algebra.below.get(v)
                if limit is not None:
                    conditions.append(f"{v} < {self._text({limit: 1})}")
        for group in spaces.groups:
            if group.digits[0] in variables and group.exact is not None:
                conditions.append(algebra.compare("lt", group.whole, group.exact, str))
        for loop in site.loops:
            if loop.parallel.is_thread:
                conditions += self._bound(loop)
        conditions += self._guards(site.guards)
        self._require_present(conditions, variables)
        mark = name or f"S{next(self._number)}"
        return Instances(mark, variables, conditions, self._time(moment or site, variables))

    def _bound(self, loop: kir.Loop) -> list[str]:
        """Return the test that a loop bound to a launch dimension makes, where it is one."""
        launch = self.spaces.extent.get(f"t_{loop.parallel.value}", constant(1))
        mine = self.algebra.poly(loop.var.extent, {})
        if mine == launch:
            return []
        index = self.env[LaunchIndex(loop.parallel)]
        return [self.algebra.compare("lt", index, mine, str)]

    def _guards(self, guards: Guards) -> list[str]:
        result: list[str] = []
        for condition, wanted in guards:
            text = self.algebra.condition(condition, self.env, str)
            result.append(text if wanted else f"not ({text})")
        return result

    def _require_present(self, texts: Sequence[str], variables: Sequence[str]) -> None:
        """Refuse a member of a group that did not cancel."""
        import re

        gone = [m for g in self.spaces.groups for m in g.members if m not in variables]
        for text in texts:
            for name in gone:
                if re.search(rf"\b{name}\b", text):
                    raise NotAffine(f"{name} did not cancel")

    def _time(self, site: Site, variables: Sequence[str]) -> list[str]:
        result: list[str] = []
        for step in site.time:
            if isinstance(step, int):
                result.append(str(step))
                continue
            name = self.spaces.name(step)
            group = self.spaces.group_of.get(name)
            if group is None:
                result.append(name)
            elif name == next(m for m in group.members if m.startswith("v_")):
                result += list(group.digits)
            else:
                result.append("0")
        extra = sum(len(g.digits) for g in self.spaces.groups)
        return result + ["0"] * (self.depth + extra - len(result))

    def _polys(self, index: Sequence[Expr]) -> list[Poly]:
        return [self.algebra.poly(i, self.env) for i in index]

    def _element(self, access: Access) -> list[Poly]:
        """Return one index a dimension; a flat offset is taken apart by the shape."""
        index = self._polys(access.index)
        shape = access.buffer.shape
        if not access.flat or len(shape) == 1:
            return index
        rest = index[0]
        result: list[Poly] = []
        for extent in reversed(shape[1:]):
            size = self.algebra.poly(extent, {})
            whole = self.algebra.divided(rest, size)
            result.insert(0, plus(rest, times(whole, size), -1))
            rest = whole
        return [rest, *result]

    def _access(self, at: Instances, access: Access) -> Any:
        """Return the map from points to elements, of this thread's copy where there are copies."""
        parts = [self._text(p) for p in self._element(access)]
        parts = [*self._copy(access), *parts]
        self._require_present(parts, at.variables)
        target = f"{self.tags[access.buffer]}[{', '.join(parts)}]"
        return self._map(at.tuple, target, at.conditions)

    def _copy(self, access: Access) -> list[str]:
        made = self.model.lifetime(access)
        if made is None:
            return []
        if not is_private(access.buffer):
            raise NotProved("shared memory")
        return self.spaces.variables(made)

    # Shapes

    def _layouts(self) -> None:
        for buffer in self.model.buffers():
            step: Poly = constant(1)
            shape = [self.algebra.poly(s, {}) for s in buffer.shape]
            strides = [self.algebra.poly(s, {}) for s in buffer.strides]
            for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
                if stride != step:
                    raise NotProved(f"the layout of {buffer.name}")
                step = times(step, extent)
            if self.algebra.poly(buffer.size, {}) != step:
                raise NotProved(f"the size of {buffer.name}")
        for param in self.model.program.params:
            tensor = self.math.tensor(param.buffer.tensor) if param.buffer is not None else None
            if tensor is not None and param.buffer is not None:
                wanted = [self.algebra.poly(a.extent, {}) for a in tensor.logical] or [constant(1)]
                if wanted != [self.algebra.poly(s, {}) for s in param.buffer.shape]:
                    raise NotProved(f"the shape of {param.name}")

    # Facts of a single store

    def _basics(self, work: Work) -> None:
        at = self.sites[work.site]
        exact = self.spaces.is_exact(work.site)
        for access in (work.write, *[n.access for n in work.needs]):
            if self.model.missing(access):
                raise NotProved("scope")
            self._bounds(at, access)
        if not exact and not is_private(work.store.storage) and not self._bounded(work, at):
            raise NotProved("a merged index without a test")
        for wanted, found in work.equalities:
            self._same(at, self.algebra.poly(wanted, self.env), self.algebra.poly(found, self.env))
        if work.store.storage.memory is Memory.GLOBAL and work.store.role != "init":
            self._same_element(
                at, self._element(work.write), work.tensor, self._polys(work.element)
            )

    def _bounded(self, work: Work, at: Instances) -> bool:
        """Whether the tests around a store bound each merged index by the sum's own extent.

        Then the points that the digits add lie outside of the tests.
        """
        for group in self.spaces.groups:
            if group.digits[0] not in at.variables or group.exact is not None:
                continue
            top: Poly = constant(1)
            for member in group.members:
                top = times(top, self.spaces.extent[member])
            limits = [
                self.algebra.poly(term.args[1], self.env)
                for condition, wanted in work.site.guards if wanted
                for term in _terms(condition)
                if isinstance(term, Op) and term.op == "lt"
                and self.algebra.poly(term.args[0], self.env) == group.whole
            ]  # fmt: skip
            if not any(self._at_least(top, limit) for limit in limits):
                return False
        return True

    def _at_least(self, top: Poly, limit: Poly) -> bool:
        """Whether `top` is never below `limit`, for all sizes."""
        if top == limit:
            return True
        try:
            below = self.algebra.compare("lt", top, limit, str)
        except NotAffine:
            return False
        return bool(self._map("[]", "", [below]).is_empty())

    def _bounds(self, at: Instances, access: Access) -> None:
        guards = self._guards(access.guards)
        if access.flat:
            index = self._polys(access.index)
            extents: Sequence[Poly] = [self.algebra.poly(access.buffer.size, {})]
        else:
            index = self._polys(access.index)
            extents = [self.algebra.poly(s, {}) for s in access.buffer.shape]
        try:
            self._inside(at, index, extents, guards, access)
        except NotAffine:
            index = self._element(access)
            extents = [self.algebra.poly(s, {}) for s in access.buffer.shape]
            self._inside(at, index, extents, guards, access)

    def _inside(
        self,
        at: Instances,
        index: Sequence[Poly],
        extents: Sequence[Poly],
        guards: list[str],
        access: Access,
    ) -> None:
        good = []
        for value, extent in zip(index, extents, strict=True):
            good.append(f"{self._text(value)} >= 0")
            good.append(self.algebra.compare("lt", value, extent, str))
        outside = f"not ({' and '.join([f'({g})' for g in good])})"
        self._require_present(good, at.variables)
        found = self._map(at.tuple, "", [*at.conditions, *guards, outside])
        self._require_empty(found, f"bounds of {access}")

    def _same(self, at: Instances, a: Poly, b: Poly) -> None:
        if a == b:
            return
        text = self.algebra.compare("ne", a, b, str)
        self._require_present([text], at.variables)
        self._require_empty(self._map(at.tuple, "", [*at.conditions, text]), "a claim")

    def _same_element(
        self, at: Instances, index: Sequence[Poly], tensor: MathTensor, element: Sequence[Poly]
    ) -> None:
        if not element:
            element = [constant(0)]
        if len(index) != len(element):
            raise NotProved(f"the shape of {tensor.name}")
        for a, b in zip(index, element, strict=True):
            self._same(at, a, b)

    # Buffers: flow, accumulation, races

    def _buffer(self, buffer: Buffer) -> None:
        writers = [w for w in self.works if w.store.storage is buffer]
        reads = [(w, n) for w in self.works for n in w.needs if n.access.buffer is buffer]
        writes = [(w, self._access(self.sites[w.site], w.write)) for w in writers]
        for work, need in reads:
            self._read(work, need, writes)
        if writers:
            for work in writers:
                if work.store.role == "update":
                    self._continues(work, writes)
            self._races(buffer, writers, reads)

    def _read(self, work: Work, need: Need, writes: list[tuple[Work, Any]]) -> None:
        if need.own:
            self._own(work, need)
            return
        site = work.site
        at = self._instances(site, f"R{next(self._number)}", need.access.moment)
        at.conditions += self._guards(need.access.guards)
        access = self._access(at, need.access)
        element = self._polys(need.element)
        if need.tensor.definition is None:
            if need.access.buffer.tensor != need.tensor.name:
                raise NotProved("an input's buffer")
            self._same_element(at, self._element(need.access), need.tensor, element)
            if writes:
                dependences, _ = self._flow(at, access, writes)
                self._require_empty(dependences, "read after overwrite")
            return
        self._value(at, access, need.tensor, element, writes, work.store.role)

    def _value(
        self,
        at: Instances,
        access: Any,
        tensor: MathTensor,
        element: Sequence[Poly],
        writes: list[tuple[Work, Any]],
        role: str = "",
    ) -> None:
        """Show that every point of `at` reads the whole value of `element` of `tensor`."""
        finals = [(w, m) for w, m in writes if w.is_final]
        if not finals or (role == "finish"):
            self._accumulated(at, access, tensor, element, writes)
            return
        dependences, missing = self._flow(at, access, writes)
        self._require_empty(missing, f"a read of {tensor.name} without a source")
        for work, _ in writes:
            part = dependences.extract_map(self._pair_space(work, at))
            if part.is_empty():
                continue
            if work.tensor is not tensor or not work.is_final:
                raise NotProved(f"the source of a read of {tensor.name}")
            claimed = self._polys(work.element)
            for a, b in zip(claimed, element, strict=True):
                source = self.sites[work.site]
                differ = f"{self._text(a, 'a_')} != {self._text(b, 'b_')}"
                bad = self._map(source.renamed("a_"), at.renamed("b_"), [differ])
                self._require_empty(part.intersect(bad), f"an element of {tensor.name}")

    def _pair_space(self, work: Work, at: Instances) -> Any:
        source = self.sites[work.site]
        return self._map(source.renamed("a_"), at.renamed("b_"), []).get_space()

    def _flow(self, at: Instances, access: Any, writes: list[tuple[Work, Any]]) -> tuple[Any, Any]:
        """Return (source -> read, elements read without a source)."""
        isl = self.isl
        sources = isl.UnionMap.from_map(writes[0][1]) if writes else None
        if sources is None:
            raise NotProved("a read without a store")
        for _, more in writes[1:]:
            sources = sources.union(isl.UnionMap.from_map(more))
        schedule = isl.UnionMap.from_map(self._schedule(at))
        for work, _ in writes:
            schedule = schedule.union(isl.UnionMap.from_map(self._schedule(self.sites[work.site])))
        info = isl.UnionAccessInfo.from_sink(isl.UnionMap.from_map(access))
        info = info.set_must_source(sources).set_schedule_map(schedule)
        flow = info.compute_flow()
        return flow.get_may_dependence(), flow.get_must_no_source()

    def _schedule(self, at: Instances) -> Any:
        return self._map(at.tuple, f"[{', '.join(at.time)}]", at.conditions)

    # Accumulation

    def _own(self, work: Work, need: Need) -> None:
        """Show that an update reads the element it stores, before it or a sibling does."""
        sibling = next(
            (w for w in self.works if w.tensor is need.tensor and w.store.role == "update"
             and w.site.loops == work.site.loops and w.site.guards == work.site.guards
             and w.site.time[:-1] == work.site.time[:-1]), None,
        )  # fmt: skip
        if sibling is None or sibling.store.storage is not need.access.buffer:
            raise NotProved("a partial result")
        if sibling.store.coordinate != work.store.coordinate:
            raise NotProved("partial results out of step")
        moment, stored = need.access.moment, sibling.site
        same_body = moment.time[:-1] == stored.time[:-1] and moment.loops == stored.loops
        if not same_body or not moment.time[-1] <= stored.time[-1]:  # type: ignore[operator]
            raise NotProved("a partial result is read too late")
        at = self.sites[work.site]
        for a, b in zip(self._element(need.access), self._element(sibling.write), strict=True):
            self._same(at, a, b)

    def _continues(self, work: Work, writes: list[tuple[Work, Any]]) -> None:
        """Show that an update finds a partial result of its own tensor."""
        at = self._instances(work.site, f"R{next(self._number)}")
        dependences, missing = self._flow(at, self._access(at, work.write), writes)
        self._require_empty(missing, "an update without an init")
        for other, _ in writes:
            wrong = other.tensor is not work.tensor or other.is_final
            if wrong and not dependences.extract_map(self._pair_space(other, at)).is_empty():
                raise NotProved("an update of another's value")

    def _accumulated(
        self,
        at: Instances,
        access: Any,
        tensor: MathTensor,
        element: Sequence[Poly],
        writes: list[tuple[Work, Any]],
    ) -> None:
        """Show that every point reads a sum over just the domain of `element`."""
        isl = self.isl
        mine = [(w, m) for w, m in writes if w.tensor is tensor]
        if len(mine) != len(writes):
            raise NotProved("two tensors in one accumulator")
        starts = [(w, m) for w, m in mine if w.store.role == "init"]
        updates = [(w, m) for w, m in mine if w.store.role == "update"]
        begun, missing = self._flow(at, access, starts)
        self._require_empty(missing, f"a read of {tensor.name} without an init")
        wanted = self._wanted(at, tensor, element)
        have = None
        for work, _ in updates:
            again = self._instances(work.site, f"U{next(self._number)}")
            chained, missing = self._flow(again, self._access(again, work.write), starts)
            self._require_empty(missing, "an update without an init")
            taken = begun.reverse().apply_range(chained)  # read -> update of the same value
            self._require_before(taken, at, again)
            coordinate = [self._text(p) for p in self._polys(work.store.coordinate)]
            target = f"C[{', '.join(coordinate)}]"
            claims = isl.UnionMap.from_map(self._map(again.tuple, target, again.conditions))
            once = chained.reverse().range_product(claims)
            if not once.is_injective():
                raise NotProved("an element is accumulated twice")
            found = taken.apply_range(claims)
            if have is not None and not have.intersect(found).is_empty():
                raise NotProved("an element is accumulated by two statements")
            have = found if have is None else have.union(found)
        if have is None:
            self._require_empty(wanted, "a reduction without updates")
        elif not have.is_equal(isl.UnionMap.from_map(wanted)):
            raise NotProved(f"the domain of {tensor.name} is not covered")

    def _wanted(self, at: Instances, tensor: MathTensor, element: Sequence[Poly]) -> Any:
        """Return the map from reads to the root coordinates that they must have folded."""
        names = [f"c{n}" for n in range(len(tensor.root))]
        env: dict[Expr, Poly] = {Coordinate(n): variable(name) for n, name in enumerate(names)}
        conditions = list(at.conditions)
        for name, axis in zip(names, tensor.root, strict=True):
            conditions.append(f"0 <= {name} < {self._text(self.algebra.poly(axis.extent, {}))}")
        for place, axis, value in zip(tensor.places, tensor.logical, element, strict=True):
            if axis.kind is not IterKind.BROADCAST:
                p = self.algebra.poly(place, env)
                conditions.append(f"{self._text(p)} = {self._text(value)}")
        return self._map(at.tuple, f"C[{', '.join(names)}]", conditions)

    def _require_before(self, taken: Any, at: Instances, update: Instances) -> None:
        """Show that no update of the value comes at or after the read."""
        pairs = []
        for n, (a, b) in enumerate(zip(at.time, update.time, strict=True)):
            same = [
                f"{_marked(x, 'a_', at)} = {_marked(y, 'b_', update)}"
                for x, y in zip(at.time[:n], update.time[:n], strict=True)
            ]
            x, y = _marked(a, "a_", at), _marked(b, "b_", update)
            if not (x == y or (x.isdigit() and y.isdigit() and int(y) < int(x))):
                pairs.append(" and ".join([*same, f"{y} > {x}"]))
            if x.isdigit() and y.isdigit() and x != y:
                break
        if pairs:
            after = " or ".join([f"({p})" for p in pairs])
            late = self._map(at.renamed("a_"), update.renamed("b_"), [after])
            late = self.isl.UnionMap.from_map(late)
            self._require_empty(taken.intersect(late), "a partial result is read")

    # Outputs and races

    def _output(self, name: str, buffer: Buffer) -> None:
        tensor = self.math.tensor(name)
        if tensor is None:
            raise NotProved("an output")
        names = [f"o{n}" for n in range(len(tensor.logical))]
        conditions = [
            f"0 <= {v} < {self._text(self.algebra.poly(a.extent, {}))}"
            for v, a in zip(names, tensor.logical, strict=True)
        ]
        conditions += self._launched()
        last = [str(len(self.model.program.body))]
        extra = sum(len(g.digits) for g in self.spaces.groups)
        at = Instances("OUT", names, conditions, last + ["0"] * (self.depth + extra - 1))
        target = f"{self.tags[buffer]}[{', '.join(names) or '0'}]"
        access = self._map(at.tuple, target, conditions)
        writes = [
            (w, self._access(self.sites[w.site], w.write))
            for w in self.works if w.store.storage is buffer
        ]  # fmt: skip
        self._value(at, access, tensor, [variable(v) for v in names], writes)
        begins = [m for w, m in writes if w.store.role != "update"]
        whole = self.isl.UnionMap.from_map(begins[0])
        for more in begins[1:]:
            whole = whole.union(self.isl.UnionMap.from_map(more))
        if not whole.is_injective():
            if any(w.store.role != "define" for w, _ in writes):
                raise NotProved(f"{name} is written more than once")
            message = f"an element of output {name} is written more than once, with equal values"
            self.notes.append(Finding("redundant", "note", message, name))

    def _launched(self) -> list[str]:
        """Return that every launch dimension has a thread: else nothing is launched."""
        result: list[str] = []
        for name in self.spaces.launch:
            result.append(f"{self._text(self.spaces.extent[name])} >= 1")
        return result

    def _races(
        self, buffer: Buffer, writers: Sequence[Work], reads: Sequence[tuple[Work, Need]]
    ) -> None:
        accesses = [(w, w.write) for w in writers] + [(w, n.access) for w, n in reads]
        if not is_private(buffer) and self.spaces.launch:
            who = self.spaces.launch
            for work in writers:
                for other, access in accesses:
                    equal = work.is_final and access.writes and other.is_final
                    if not (equal and other.tensor is work.tensor):
                        self._apart(work, other, access, who, [])
        for work in writers:
            for loop in work.site.loops:
                if loop.parallel in (ParallelType.cpu_parallel, ParallelType.vectorize):
                    self._unordered(buffer, work, loop, accesses)

    def _unordered(
        self, buffer: Buffer, work: Work, loop: kir.Loop, accesses: Sequence[tuple[Work, Access]]
    ) -> None:
        made = self.model.lifetime(work.write)
        if made is not None and loop in made.loops:
            return
        outer = [self.spaces.name(o.var) for o in work.site.serial[: work.site.serial.index(loop)]]
        for other, access in accesses:
            if loop in other.site.loops:
                name = self.spaces.name(loop.var)
                self._apart(work, other, access, [name], [*self.spaces.launch, *outer])

    def _apart(
        self, work: Work, other: Work, access: Access, differ: Sequence[str], same: Sequence[str]
    ) -> None:
        """Show that no two points with these indices different use one element."""
        a, b = self.sites[work.site], self.sites[other.site]
        for members in (differ, same):
            members = [m for m in members if m not in a.variables or m not in b.variables]
            if not all(m in self.spaces.group_of for m in members):
                raise NotProved("a race")
        for group in self.spaces.groups:
            part = set(group.members)
            if not part.isdisjoint(same) and not part <= set(same):
                raise NotProved("a merged index of which a part agrees")
        apart = [v for v in self._named(differ, a) if v in b.variables]
        together = [v for v in self._named(same, a) if v in b.variables]
        distinct = " or ".join([f"a_{v} != b_{v}" for v in apart]) or "1 = 0"
        conditions = [distinct, *[f"a_{v} = b_{v}" for v in together]]
        pairs = self._map(a.renamed("a_"), b.renamed("b_"), conditions)
        first = self._access(a, work.write)
        second = self._access(b, access)
        meet = first.apply_range(second.reverse())
        self._require_empty(meet.intersect(pairs), f"a race on {access}")

    def _named(self, members: Sequence[str], at: Instances) -> list[str]:
        result: dict[str, None] = {}
        for member in members:
            group = self.spaces.group_of.get(member)
            for v in (member,) if group is None else group.digits:
                if v in at.variables:
                    result[v] = None
        return list(result)


def _marked(text: str, mark: str, at: Instances) -> str:
    return mark + text if text in at.variables else text


def _terms(condition: Expr) -> list[Expr]:
    if isinstance(condition, Op) and condition.op == "and":
        return [*_terms(condition.args[0]), *_terms(condition.args[1])]
    return [condition]
