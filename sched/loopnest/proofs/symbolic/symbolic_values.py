"""Which value each read finds, and what outputs hold in the end.

A whole value must be claimed by the store that is a read's source (`flow`), or be a partial result
that holds just the domain of the element (`parts`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from loopnest import kir
from loopnest.kir.buffers import Buffer
from loopnest.proofs.data_indices import Need
from loopnest.proofs.index_products import MOST_CASES
from loopnest.proofs.obligations import Work
from loopnest.proofs.program_model import Access, Site
from loopnest.proofs.quasi_affine import (
    NotAffine,
    Poly,
    as_constant,
    constant,
    plus,
    times,
    variable,
)
from loopnest.proofs.report import Finding
from loopnest.proofs.symbolic.partial_reductions import PartialReductions
from loopnest.proofs.symbolic.polyhedral_model import PolyhedralModel
from loopnest.proofs.symbolic.sibling_stores import side_by_side
from loopnest.proofs.symbolic.statement_claims import StatementClaims
from loopnest.proofs.symbolic.statement_instances import Instances, NotProved, about
from loopnest.proofs.symbolic.symbolic_dataflow import SymbolicDataflow, Writes
from loopnest.proofs.symbolic.symbolic_padding import SymbolicPadding
from loopnest.proofs.template_matching import Combined
from loopnest.scalar.enums import IterKind
from loopnest.scalar.expr import Coordinate, Expr, Load, Op
from loopnest.scalar.templates import coordinates
from loopnest.tensor.math_snapshot import MathTensor


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
                raise NotAffine("an index of a reduction that is stored as a digit")
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
                differ = [
                    f"{self.setting.text(x, 'a_')} != {self.setting.text(y, 'b_')}"
                    for x, y in pairs
                ]
                bad = self.setting.relation(
                    source.renamed("a_"), at.renamed("b_"), [f"({' or '.join(differ)})"]
                )
                self.setting.require_empty(part.intersect(bad), f"an element of {tensor.name}")

    def _by_digits(self, buffer: Buffer) -> bool:
        """Whether digits name the elements of an output, instead of the indices of its tensor."""
        return buffer in self.setting.spaces.dense.shapes or self.setting.parted.by_digits(buffer)

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
        ties: list[str] = []
        for n, data in enumerate(setting.live.data(tensor)):
            if not isinstance(data, Load) or not set(coordinates(data)) <= env.keys():
                continue
            wanted = [setting.algebra.poly(i, env) for i in data.args]
            ties += [
                f"g{n} = {name}" for name, load in setting.tested_at(at)
                if load.buffer is data.buffer and setting.polys(load.args) == wanted
            ]  # fmt: skip
        return setting.over(at, f"C[{', '.join(self.parts.tilings.names(tensor))}]", ties)

    def _wanted(self, at: Instances, tensor: MathTensor, element: Sequence[Poly]) -> Any:
        """Return the map from reads to the root coordinates that they must have folded."""
        setting = self.setting
        names = self.parts.tilings.names(tensor)
        roots = names[: len(tensor.root)]
        env: dict[Expr, Poly] = {Coordinate(n): variable(name) for n, name in enumerate(roots)}
        extents = [setting.algebra.poly(axis.extent, {}) for axis in tensor.root]
        conditions = self.parts.tilings.conditions(tensor, extents)
        for name, extent in zip(roots, extents, strict=True):
            conditions.append(f"0 <= {name} < {setting.text(extent)}")
        for n, arg in enumerate(setting.live.data(tensor)):
            env[arg] = variable(f"g{n}")
        for condition in setting.live.conditions(tensor):
            conditions.append(setting.algebra.condition(condition, env, str))
        conditions += self._quotients(tensor, element, env)
        logical = zip(tensor.places, tensor.logical, element, strict=True)
        for number, (place, axis, value) in enumerate(logical):
            if axis.kind is not IterKind.BROADCAST:
                p = setting.algebra.poly(place, env)
                sign = "="
                if tensor.scan is not None and tensor.scan.axis == number:
                    sign = "<" if tensor.scan.exclusive else "<="
                    length = tensor.scan.segment
                    if length is not None:
                        start, own = setting.text(p), setting.text(value)
                        conditions.append(f"floor(({start})/{length}) = floor(({own})/{length})")
                conditions.append(f"{setting.text(p)} {sign} {setting.text(value)}")
        found = setting.over(at, f"C[{', '.join(names)}]", conditions)
        return found.intersect(self._at_data(at, tensor, element))

    def _quotients(
        self, tensor: MathTensor, element: Sequence[Poly], env: Mapping[Expr, Poly]
    ) -> Iterator[str]:
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

    def _between(self, whole: Poly, by: Poly, value: Poly, values: int | None) -> str:
        """Return that a quotient has a value, which is one of a number of `values`."""
        text = self.setting.text
        if values is None or values > MOST_CASES:
            return f"0 <= {text(plus(whole, times(value, by), -1))} < {text(by)}"
        cases = [
            f"({text(value)} = {k} and "
            f"0 <= {text(plus(whole, times(by, constant(k)), -1))} < {text(by)})"
            for k in range(values)
        ]
        return f"({' or '.join(cases) or '1 = 0'})"

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
        found = setting.spaces.dense.shapes.get(buffer)
        if found is None:
            shape = [setting.algebra.poly(a.extent, {}) for a in tensor.logical]
            extents = setting.parted.extents(buffer, shape) if shape else []
        else:
            extents = [[extent] for extent in found]
        element = [self._named(f"o{n}", along) for n, along in enumerate(extents)]
        names = [f"o{n}_{k}" for n, along in enumerate(extents) for k, _ in enumerate(along)]
        conditions = [
            f"0 <= {v} < {setting.text(extent)}"
            for v, extent in zip(names, [e for along in extents for e in along], strict=True)
        ]
        conditions += setting.launched()
        # Read behind the last statement of the program.
        last = [str(len(setting.model.program.body))]
        at = Instances("OUT", names, conditions, last + ["0"] * (setting.times - 1))
        place = setting.place(buffer, element or [constant(0)])
        target = f"{setting.tags[buffer]}[{', '.join(map(setting.text, place))}]"
        access = setting.over(at, target)
        self._value(at, access, buffer, tensor, element)
        self._once(name, self.flow.writes(buffer))

    def _named(self, name: str, extents: Sequence[Poly]) -> Poly:
        """Return the index along an axis of an output by its digits, the slowest first."""
        whole: Poly = {}
        for k, extent in enumerate(extents):
            digit = f"{name}_{k}"
            self.setting.algebra.extents[digit] = extent
            whole = plus(times(whole, extent), variable(digit))
        return whole

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
