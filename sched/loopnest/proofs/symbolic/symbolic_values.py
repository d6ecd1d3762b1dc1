"""Which value each read finds, and what outputs hold in the end.

A whole value must be claimed by the store that is a read's source (`flow`), or be a partial result
that holds just the domain of the element (`parts`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from loopnest import kir
from loopnest.proofs import affine
from loopnest.proofs.data_indices import Need
from loopnest.proofs.isl_spaces import MOST_CASES
from loopnest.proofs.obligations import Work
from loopnest.proofs.program_model import Access, Site, is_callers, is_private, strided, terms
from loopnest.proofs.quasi_affine import (
    Poly,
    as_constant,
    constant,
    mixed_radix,
    offset_of,
    product_of,
    row_major,
    times,
    variable,
)
from loopnest.proofs.report import Finding
from loopnest.proofs.symbolic.isl_relations import NOWHERE, Instances, NotProved, about
from loopnest.proofs.symbolic.partial_reductions import PartialReductions
from loopnest.proofs.symbolic.polyhedral_model import PolyhedralModel
from loopnest.proofs.symbolic.symbolic_dataflow import SymbolicDataflow, Writes
from loopnest.proofs.symbolic.symbolic_padding import SymbolicPadding
from loopnest.proofs.template_matching import Agreement, Combined
from loopnest.scalar.enums import IterKind, Memory
from loopnest.scalar.expr import Buffer, Const, Coordinate, Expr, Load, Op
from loopnest.scalar.templates import coordinates
from loopnest.tensor.math_snapshot import MathTensor

# Facts of single statements: layouts, bounds, claimed coordinates.


class StatementClaims:
    """Prove what concerns one statement at a time.

    Raises:
        NotProved, NotAffine: it could not be shown.
    """

    def __init__(self, setting: PolyhedralModel) -> None:
        self.setting, self.algebra = setting, setting.algebra

    def prove(self) -> None:
        """Prove layouts, bounds and claims of the whole program."""
        given = strided(self.setting.model.program)
        for buffer in self.setting.model.buffers():
            if buffer not in given:  # the caller's, of which elements may lie in one place
                self._layout(buffer)
        self._parameters()
        for access in self.setting.model.accesses:
            with about(access.site):
                if self.setting.model.missing(access):
                    raise NotProved("scope")
                self._bounds(self.setting.points(access), access)
        for work in self.setting.works:
            with about(work.site):
                self._work(work)

    # Layouts

    def _layout(self, buffer: Buffer) -> None:
        """Show that no two elements share a place, and that all lie inside.

        Taken by growing stride, each stride must be at least the reach of those before it.
        """
        poly = self.algebra.poly
        rest = [
            (poly(e, {}), poly(s, {})) for e, s in zip(buffer.shape, buffer.strides, strict=True)
        ]
        rest = [(e, s) for e, s in reversed(rest) if e != constant(1)]
        reach: Poly = constant(1)
        while rest:
            found = next((n for n, (_, s) in enumerate(rest) if s == reach), None)
            if found is None:
                found = next((n for n, (_, s) in enumerate(rest) if self._at_least(s, reach)), None)
            if found is None:
                raise NotProved(f"the layout of {buffer.name}")
            extent, stride = rest.pop(found)
            # Elements of all dimensions so far lie below stride * extent, since the ones before lie
            # below the stride.
            reach = times(stride, extent)
        if not self._at_least(poly(buffer.size, {}), reach):
            raise NotProved(f"the size of {buffer.name}")
        if buffer.memory is Memory.SHARED and not self._holds(
            self.setting.model.declared_bytes[buffer],
            times(poly(buffer.size, {}), constant(buffer.dtype.size)),
        ):
            raise NotProved(f"the shared memory of {buffer.name}")
        self._swizzles(buffer)

    def _holds(self, room: Expr, need: Poly) -> bool:
        """Whether declared bytes are at least as many as a buffer needs, for all sizes.

        A size rounded up is at least that size, whether the bytes were rounded or the size itself.
        """
        if self._at_least(self.algebra.poly(room, {}), need):
            return True
        match room:
            case Op(op="max", args=parts):
                return any(self._holds(part, need) for part in parts)
            case Op(op="mul", args=(Op(op="ceildiv", args=(part, by)), again)) if by is again:
                return self._holds(part, need)
            case _:
                return False

    def _swizzles(self, buffer: Buffer) -> None:
        """Show that a swizzle permutes the elements of its tile, by trying all of them."""
        for a, b in buffer.swizzles:
            if a == b or not is_swizzle(buffer.shape[a], buffer.shape[b]):
                raise NotProved(f"the swizzle of {buffer.name}")

    def _parameters(self) -> None:
        """Show that inputs and outputs are arrays of the math's shape, row-major, without gaps."""
        poly = self.algebra.poly
        for param in self.setting.model.program.params:
            if param.buffer is None or param.kind not in ("input", "output"):
                continue
            tensor = self.setting.math.tensor(param.name)
            if tensor is None:
                raise NotProved(f"parameter {param.name}")
            wanted = [poly(a.extent, {}) for a in tensor.logical]
            if wanted != [poly(s, {}) for s in param.shape]:
                raise NotProved(f"the shape of {param.name}")
            shape = wanted or [constant(1)]
            steps, size = row_major(shape), product_of(shape)
            buffer = param.buffer
            if tensor.strides is not None:
                steps = [poly(stride, {}) for stride in tensor.strides]
                last = offset_of([affine.plus(extent, constant(-1)) for extent in shape], steps)
                size = affine.plus(last, constant(1))
            found = [[poly(e, {}) for e in part] for part in (buffer.shape, buffer.strides)]
            if found != [shape, steps] or poly(buffer.size, {}) != size:
                raise NotProved(f"the layout of {param.name}")

    # Bounds

    def _bounds(self, at: Instances, access: Access) -> None:
        guards = self.setting.guards(access.guards)
        shape = access.buffer.shape
        # Inside of the buffer is enough for an offset, if isl can say so; else the indices along
        # its axes are asked, which is more.
        if access.flat:
            size = self.algebra.poly(access.buffer.size, {})
            try:
                self._inside(at, self.setting.polys(access.index), [size], guards, access)
                return
            except affine.NotAffine:
                pass
        index = self.setting.element(access)
        if access.buffer in self.setting.spaces.shapes:
            self._inside(at, index, self.setting.spaces.shapes[access.buffer], guards, access)
            return
        extents = [self.algebra.poly(s, {}) for s in shape]
        parts = self.setting.parted.bounded(access.buffer, index, extents)
        self._inside(at, *parts, guards, access)

    def _inside(
        self,
        at: Instances,
        index: Sequence[Poly],
        extents: Sequence[Poly],
        guards: list[affine.Condition],
        access: Access,
    ) -> None:
        good = affine.all_of(map(self.algebra.inside, index, extents))
        self.setting.require_present([good], at.variables)
        found = self.setting.among(at, [*guards, ~good])
        self.setting.require_empty(found, f"bounds of {access}")

    # Claims

    def _work(self, work: Work) -> None:
        at = self.setting.sites[work.site]
        exact = self.setting.spaces.is_exact(work.site)
        if not exact and not is_private(work.store.storage) and not self._bounded(work, at):
            raise NotProved("a merged index without a test")
        for wanted, found in work.equalities:
            self.same(at, *self.setting.polys((wanted, found), work.site))
        for agreement in work.conditions:
            self._agree(at, agreement)
        if is_callers(work.store.storage) and work.kind not in ("init", "partial"):
            element = self.setting.claimed(work)
            self.same_element(at, work.write, work.tensor, element)
            if work.store.storage in self.setting.spaces.shapes:
                self._in_domain(at, work.tensor, element)
        if any(isinstance(n.operand, Combined) for n in work.needs) and not exact:
            raise NotProved("a merged index over threads")

    def _agree(self, at: Instances, agreement: Agreement) -> None:
        """Show that a condition says what that of the math does at every point."""
        guards = self.setting.guards(agreement.guards)
        a, b = self.setting.guards(((agreement.wanted, True), (agreement.found, True)))
        apart = affine.any_of([affine.all_of([a, ~b]), affine.all_of([b, ~a])])
        self.setting.require_present([*guards, apart], at.variables)
        found = self.setting.among(at, [*guards, apart])
        self.setting.require_empty(found, f"the condition '{agreement.found}'")

    def same(self, at: Instances, a: Poly, b: Poly) -> None:
        """Show that two indices are equal at every point."""
        if a == b:
            return
        other = self.algebra.compare("ne", a, b)
        self.setting.require_present([other], at.variables)
        found = self.setting.among(at, [other])
        self.setting.require_empty(found, "a claim")

    def same_element(
        self, at: Instances, access: Access, tensor: MathTensor, element: Sequence[Poly]
    ) -> None:
        """Show that an access is to an element of a tensor, both given by logical indices."""
        dense = self.setting.spaces.dense
        if access.buffer in self.setting.spaces.shapes:
            # Two elements of dense memory are one where their offsets are.
            offset = dense.offset(access.buffer, element)
            if offset != dense.whole(access):
                raise NotProved(f"an element of {tensor.name}")
            return
        index = self.setting.element(access)
        if not element:
            element = [constant(0)]
        if len(index) != len(element):
            raise NotProved(f"the shape of {tensor.name}")
        for a, b in zip(index, element, strict=True):
            self.same(at, a, b)

    def _in_domain(self, at: Instances, tensor: MathTensor, element: Sequence[Poly]) -> None:
        """Show that each index of a claimed element lies within its axis.

        An offset inside of the array does not show it: ``(0, C)`` is where ``(1, 0)`` lies.
        """
        extents = [self.algebra.poly(axis.extent, {}) for axis in tensor.logical]
        good = affine.all_of(map(self.algebra.inside, element, extents))
        self.setting.require_present([good], at.variables)
        found = self.setting.among(at, [~good])
        self.setting.require_empty(found, f"the domain of {tensor.name}")

    def _bounded(self, work: Work, at: Instances) -> bool:
        """Whether the tests around a store bound each merged index by the sum's own extent.

        Then the points that the digits add lie outside of the tests.
        """
        for group in self.setting.spaces.groups:
            if group.digits[0] not in at.variables or group.exact is not None:
                continue
            top = product_of([self.setting.spaces.extent[member] for member in group.members])
            limits = [
                self.algebra.poly(term.args[1], self.setting.env)
                for condition, wanted in work.site.guards
                if wanted
                for term in terms(condition)
                if isinstance(term, Op)
                and term.op == "lt"
                and self.algebra.poly(term.args[0], self.setting.env) == group.whole
            ]
            if not any(self._at_least(top, limit) for limit in limits):
                return False
        return True

    def _at_least(self, top: Poly, limit: Poly) -> bool:
        """Whether `top` is never below `limit`, for all sizes."""
        if top == limit:
            return True
        try:
            less = self.algebra.compare("lt", top, limit)
            return bool(self.setting.among(NOWHERE, [less]).is_empty())
        except affine.NotAffine:
            return False


def is_swizzle(a: object, b: object) -> bool:
    """Whether ``(a, b) -> (a, b ^ a % size of b)`` permutes a tile, by trying all elements."""
    if not isinstance(a, Const) or not isinstance(b, Const):
        return False
    rows, columns = int(a.value), int(b.value)
    places = {(i, j ^ (i % columns)) for i in range(rows) for j in range(columns)}
    return len(places) == rows * columns and all(j < columns for _, j in places)


class Values:
    """Prove what reads find.

    Raises:
        NotProved, NotAffine: it could not be shown.
    """

    def __init__(self, setting: PolyhedralModel) -> None:
        self.setting, self.isl = setting, setting.isl
        self.claims = StatementClaims(setting)
        self.flow = SymbolicDataflow(setting)
        self.outside = SymbolicPadding(setting, self.flow)
        self.parts = PartialReductions(setting, self.flow, self.outside)

    def prove(self) -> None:
        """Prove every read, and every output."""
        self.outside.prove()
        for work in self.setting.works:
            with about(work.site):
                for need in work.needs:
                    self._need(work, need)
                if not work.starts:
                    self._in_step(work)
        for output in self.setting.model.program.outputs:
            self._output(output.name, output.buffer)

    # Reads

    def _need(self, work: Work, need: Need) -> None:
        if need.demand == "own":
            self._own(work, need)
            return
        if need.demand == "part":
            return  # where it matters what it holds, its readers ask
        operand = need.operand
        if isinstance(operand, Combined):
            at = self.setting.sites[work.site]
            held = self.parts.combined(at, operand)
            self._covers(at, held, need.tensor, self.setting.needed(work, need))
            return
        at = self.parts.reading(operand)
        element = self.setting.needed(work, need)
        if need.tensor.definition is None:
            self._input(at, operand, need, element)
        else:
            access = self.setting.access(at, operand)
            self._value(at, access, operand.buffer, need.tensor, element, work.kind == "finish")

    def _input(self, at: Instances, access: Access, need: Need, element: Sequence[Poly]) -> None:
        if access.buffer.tensor != need.tensor.name:
            raise NotProved("an input's buffer")
        self.claims.same_element(at, access, need.tensor, element)
        writes = self.flow.writes(access.buffer)
        if writes:
            overwritten, _ = self.flow.sources(
                at, self.setting.access(at, access), access.buffer, writes
            )
            self.setting.require_empty(overwritten, "read after overwrite")

    def _value(
        self,
        at: Instances,
        access: Any,
        buffer: Buffer,
        tensor: MathTensor,
        element: Sequence[Poly],
        finishes: bool = False,
    ) -> None:
        """Show that every point of `at` reads the whole value of `element` of `tensor`."""
        writes = self.flow.writes(buffer)
        # No store claims the whole value: what the accumulator holds must be the domain of the
        # element.
        if finishes or not any(w.is_final for w, _ in writes):
            if at.name == "OUT" and self._by_digits(buffer):
                raise affine.NotAffine("an index of a reduction that is stored as a digit")
            so_far = tensor.scan is not None  # the elements after this one come later
            held = self.parts.held(at, access, buffer, tensor, so_far=so_far)
            self._covers(at, held, tensor, element)
            return
        found, missing = self.flow.sources(at, access, buffer, writes)
        self.setting.require_empty(missing, f"a read of {tensor.name} without a source")
        for work, _ in writes:
            source = self.setting.hidden_points.storing(work)
            part = found.extract_map(self.flow.pairs(source, at))
            if part.is_empty():
                continue
            if work.tensor is not tensor or not work.is_final:
                raise NotProved(f"the source of a read of {tensor.name}")
            if at.name == "OUT" and self._by_digits(buffer):
                continue  # that it stores what belongs to its place is a claim of its own
            for a, b in zip(self.setting.claimed(work), element, strict=True):
                pairs = zip(*self.setting.parted.alike(a, b), strict=True)
                linear = self.setting.linear
                same = [affine.equal(linear(x, "a_"), linear(y, "b_")) for x, y in pairs]
                bad = self.setting.between(source, at, [~affine.all_of(same)])
                self.setting.require_empty(part.intersect(bad), f"an element of {tensor.name}")

    def _by_digits(self, buffer: Buffer) -> bool:
        """Whether digits name the elements of an output, instead of the indices of its tensor."""
        return buffer in self.setting.spaces.shapes or self.setting.parted.by_digits(buffer)

    # The domain of a reduction

    def _covers(
        self, at: Instances, held: Any, tensor: MathTensor, element: Sequence[Poly]
    ) -> None:
        """Show that the elements held are just those that `element` of `tensor` folds."""
        held = held.intersect(self._at_data(at, tensor, element))

        def covers(held: Any, wanted: Any) -> None:
            if not held.is_equal(wanted):
                wrong = held.subtract(wanted).union(wanted.subtract(held))
                self.setting.require_empty(wrong, f"the domain of {tensor.name}")

        self.setting.require_once(covers, held, self._wanted(at, tensor, element))

    def _at_data(self, at: Instances, tensor: MathTensor, element: Sequence[Poly]) -> Any:
        """Return the map from reads to all that has the data by which the reads are chosen.

        What a test around a read loads is the same number as what the math has at that element.
        """
        setting = self.setting
        env: dict[Expr, Poly] = {
            place: value
            for place, value in zip(tensor.places, element, strict=True)
            if isinstance(place, Coordinate)
        }
        ties: list[affine.Condition] = []
        for n, data in enumerate(setting.live.data(tensor)):
            if not isinstance(data, Load) or not set(coordinates(data)) <= env.keys():
                continue
            wanted = [setting.algebra.poly(i, env) for i in data.args]
            ties += [
                affine.equal(f"g{n}", name) for name, load in setting.tested_at(at)
                if load.buffer is data.buffer and setting.polys(load.args) == wanted
            ]  # fmt: skip
        return setting.over(at, affine.Tuple("C", tuple(self.parts.tilings.names(tensor))), ties)

    def _wanted(self, at: Instances, tensor: MathTensor, element: Sequence[Poly]) -> Any:
        """Return the map from reads to the root coordinates that they must have folded."""
        setting = self.setting
        names = self.parts.tilings.names(tensor)
        roots = names[: len(tensor.root)]
        env: dict[Expr, Poly] = {Coordinate(n): variable(name) for n, name in enumerate(roots)}
        extents = [setting.algebra.poly(axis.extent, {}) for axis in tensor.root]
        conditions = self.parts.tilings.conditions(tensor, extents)
        for name, extent in zip(roots, extents, strict=True):
            conditions.append(affine.within(name, setting.linear(extent)))
        for n, arg in enumerate(setting.live.data(tensor)):
            env[arg] = variable(f"g{n}")
        for condition in setting.live.conditions(tensor):
            conditions.append(setting.algebra.condition(condition, env))
        conditions += self._quotients(tensor, element, env)
        logical = zip(tensor.places, tensor.logical, element, strict=True)
        for number, (place, axis, value) in enumerate(logical):
            if axis.kind is not IterKind.BROADCAST:
                p, own = map(setting.linear, (setting.algebra.poly(place, env), value))
                compare = affine.equal
                if tensor.scan is not None and tensor.scan.axis == number:
                    compare = affine.below if tensor.scan.exclusive else affine.at_most
                    length = tensor.scan.segment
                    if length is not None:
                        starts = [affine.floor_of(found, length) for found in (p, own)]
                        conditions.append(affine.equal(*starts))
                conditions.append(compare(p, own))
        found = setting.over(at, affine.Tuple("C", tuple(names)), conditions)
        return found.intersect(self._at_data(at, tensor, element))

    def _quotients(
        self, tensor: MathTensor, element: Sequence[Poly], env: Mapping[Expr, Poly]
    ) -> Iterator[affine.Condition]:
        """Yield which root coordinates have the quotients by sizes that an element names.

        An axis that is split by a size and reduced in part has its outer index, ``c // S``, as a
        logical one: of a given q these are the c with ``q * S <= c < (q + 1) * S``.
        """
        algebra = self.setting.algebra
        algebra.given.clear()  # of the last element
        for place, axis, value in zip(tensor.places, tensor.logical, element, strict=True):
            if isinstance(place, Op) and place.op == "floordiv":
                whole, by = [algebra.poly(arg, env) for arg in place.args]
                if as_constant(by) is None:
                    algebra.given[algebra.division(whole, by)] = value
                    yield self._between(
                        whole, by, value, as_constant(algebra.poly(axis.extent, {}))
                    )

    def _between(self, whole: Poly, by: Poly, value: Poly, values: int | None) -> affine.Condition:
        """Return that a quotient has a value, which is one of a number of `values`."""
        linear = self.setting.linear

        def rest(value: Poly) -> affine.Condition:
            return affine.within(linear(affine.plus(whole, times(value, by), -1)), linear(by))

        if values is None or values > MOST_CASES:
            return rest(value)
        cases = [
            affine.all_of([affine.equal(linear(value), k), rest(constant(k))])
            for k in range(values)
        ]
        return affine.any_of(cases)

    # Updates

    def _own(self, work: Work, need: Need) -> None:
        """Show that an update reads the element it stores, before anything else is stored there."""
        access = need.operand
        if isinstance(access, Combined):
            raise NotProved("a partial result")
        if need.tensor is not work.tensor:
            return  # `_in_step` compares what it holds
        if work.store.storage is not access.buffer:
            raise NotProved("a partial result in another buffer")
        self._untouched(access, work.site)
        at = self.setting.sites[work.site]
        own, stored = self.setting.element(access), self.setting.element(work.write)
        for a, b in zip(own, stored, strict=True):
            self.claims.same(at, a, b)

    def _untouched(self, access: Access, stored: Site) -> None:
        """Show that nothing is stored to the buffer between a read and the store of its update."""
        moment = access.moment
        depth = len(stored.time) - 1
        if moment.time[:-1] != stored.time[:-1] or moment.loops != stored.loops:
            raise NotProved("a partial result is read elsewhere")
        first, last = moment.time[-1], stored.time[-1]
        assert isinstance(first, int)
        assert isinstance(last, int)
        if first > last:
            raise NotProved("a partial result is read too late")
        for other in self.setting.model.stores:
            assert isinstance(other.node, kir.Store)
            inside = other.time[:depth] == stored.time[:-1] and len(other.time) > depth
            if inside and other.node.storage is access.buffer and other is not stored:
                place = other.time[depth]
                assert isinstance(place, int)
                if first <= place < last:
                    raise NotProved("a partial result is overwritten before its update")

    def _in_step(self, work: Work) -> None:
        """Show that the components of a partial result that is read hold the same elements.

        Of the one that is continued each component must have begun, even if nothing reads it
        afterwards: its siblings are computed from it.
        """
        own = [need for need in work.needs if need.demand == "own"]
        parts = [need for need in work.needs if need.demand == "part"]
        if work.kind == "merge" and work.tensor.scan is None:
            self._claimed(work)  # of a scan, readers ask what is held, whatever was claimed
        self._same(work.tensor, own, lambda need: self.parts.continued(work, need))
        self._same(work.tensor, parts, lambda need: self.parts.part(work, need))

    def _same(self, tensor: MathTensor, needs: Sequence[Need], held: Callable[[Need], Any]) -> None:
        # An element that no sibling is computed from has nothing to be in step with: what it holds
        # is asked by its readers.
        if not needs or (len(needs) == 1 and needs[0].tensor is tensor):
            return
        if side_by_side(self.flow, needs):
            return
        components = [held(need) for need in needs]
        if not all(components[0].is_equal(other) for other in components[1:]):
            raise NotProved("partial results out of step")

    def _claimed(self, work: Work) -> None:
        """Show that all that a merge takes in folds into the element that it claims."""
        need = work.part
        if need is None:
            raise NotProved("a merge of nothing")
        at = self.setting.sites[work.site]
        wanted = self._wanted(at, work.tensor, self.setting.claimed(work))

        def claims(part: Any, wanted: Any) -> None:
            what = f"what a merge into {work.tensor.name} claims"
            self.setting.require_empty(part.subtract(wanted), what)

        self.setting.require_once(claims, self.parts.part(work, need), wanted)

    # Outputs

    def _output(self, name: str, buffer: Buffer) -> None:
        setting = self.setting
        tensor = setting.math.tensor(name)
        if tensor is None:
            raise NotProved("an output")
        found = setting.spaces.shapes.get(buffer)
        if found is None:
            shape = [setting.algebra.poly(a.extent, {}) for a in tensor.logical]
            extents = setting.parted.extents(buffer, shape) if shape else []
        else:
            extents = [[extent] for extent in found]
        element = [self._named(f"o{n}", along) for n, along in enumerate(extents)]
        names = [f"o{n}_{k}" for n, along in enumerate(extents) for k, _ in enumerate(along)]
        conditions = [
            affine.within(v, setting.linear(extent))
            for v, extent in zip(names, [e for along in extents for e in along], strict=True)
        ]
        conditions += setting.launched()
        # Read behind the last statement of the program.
        last: list[affine.Value] = [len(setting.model.program.body), *[0] * (setting.times - 1)]
        at = Instances("OUT", names, conditions, last)
        place = setting.place(buffer, element or [constant(0)])
        target = affine.Tuple(setting.tags[buffer], tuple(map(setting.linear, place)))
        access = setting.over(at, target)
        self._value(at, access, buffer, tensor, element)
        self._once(name, self.flow.writes(buffer))

    def _named(self, name: str, extents: Sequence[Poly]) -> Poly:
        """Return the index along an axis of an output by its digits, the slowest first."""
        digits = [f"{name}_{k}" for k, _ in enumerate(extents)]
        self.setting.algebra.extents.update(zip(digits, extents, strict=True))
        return mixed_radix(digits, extents)

    def _once(self, name: str, writes: Writes) -> None:
        """Show that each element of an output is written once; name it where it is not."""
        whole = self.isl.UnionMap.read_from_str(self.setting.ctx, "{}")
        for work, found in writes:
            if work.starts:
                whole = whole.union(self.isl.UnionMap.from_map(found))
        if not whole.is_injective():
            if any(w.kind != "define" for w, _ in writes):
                raise NotProved(f"{name} is written more than once")
            message = f"an element of output {name} is written more than once, with equal values"
            self.setting.notes.append(Finding("redundant", "note", message, name))


# Components of a reduction whose stores stand side by side hold the same elements.
#
# The components of a Welford reduction have a buffer each. Mostly each store to one has siblings
# that store to the others: in the same loops, under the same tests, at the same index and
# coordinate, and before or after a read of their buffer as its siblings are. Which stores a read
# finds follows from these alone. So the buffers hold the same elements wherever one of them is
# read, and isl need not be asked.


def side_by_side(flow: SymbolicDataflow, needs: Sequence[Need]) -> bool:
    """Whether all that these reads find was stored by siblings.

    Partial results that a store takes in are compared with those of its siblings elsewhere, not
    here: only starts with nothing and updates are siblings.
    """
    found = [_history(flow, need) for need in needs]
    return None not in found and all(history == found[0] for history in found[1:])


def _history(flow: SymbolicDataflow, need: Need) -> object | None:
    """Return what decides which elements a read finds; None where it is more than can be compared.

    The order of the stores of two components to each other decides nothing.
    """
    access = need.operand
    if not isinstance(access, Access) or flow.kills(access.buffer):
        return None
    works = [work for work, _ in flow.writes(access.buffer)]
    if not works or any(w.kind not in ("init", "update") or w.store.atomic for w in works):
        return None
    if any(work.tensor is not need.tensor for work in works):
        return None
    accesses = flow.setting.model.accesses_to([access.buffer])
    if sum(a.writes for a in accesses) != len(works):
        return None
    buffer = access.buffer
    made = flow.setting.model.lifetime(access)
    return (
        (buffer.memory, buffer.shape, buffer.strides, buffer.swizzles, made and made.loops),
        (access.index, access.flat, access.guards, access.moment.loops, access.moment.guards),
        [_step(work, works, access.moment) for work in works],
    )


def _step(work: Work, works: Sequence[Work], moment: Site) -> object:
    site, store = work.site, work.store
    return (
        work.kind,
        (site.loops, site.guards, site.time[:-1], site.within),
        (store.index, store.flat, store.coordinate),
        [_is_before(site, other.site) for other in works],
        _is_before(site, moment),
    )


def _is_before(site: Site, other: Site) -> tuple[int, bool]:
    """Return where two sites part, and whether the first one stands before the other there."""
    for place, (a, b) in enumerate(zip(site.time, other.time, strict=False)):
        if a is not b and a != b:
            return place, isinstance(a, int) and isinstance(b, int) and a < b
    return min(len(site.time), len(other.time)), False
