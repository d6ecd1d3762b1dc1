"""What partial results hold: elements of a reduction's root domain, stage by stage.

What a reader finds is a map from it to these elements:

- a start (an init, or a partial result that is stored) holds what it took, an init nothing;
- an update adds the element at its coordinate (beyond its domain, nothing: see `outside`), a merge
  what the other partial result holds;
- a collective holds the union over its group of threads, a scan over those before a thread.

Each stage must be disjoint: then a map that equals the wanted domain covers it exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from loopnest.kir.buffers import Buffer
from loopnest.proofs.data_indices import Need
from loopnest.proofs.obligations import CollectiveMath, Work
from loopnest.proofs.program_model import Access, Site, data_values
from loopnest.proofs.quasi_affine import NotAffine
from loopnest.proofs.symbolic.polyhedral_model import PolyhedralModel
from loopnest.proofs.symbolic.statement_instances import Instances, NotProved
from loopnest.proofs.symbolic.symbolic_dataflow import SymbolicDataflow, Writes
from loopnest.proofs.symbolic.symbolic_padding import SymbolicPadding
from loopnest.proofs.symbolic.tilings import Tilings
from loopnest.proofs.template_matching import Combined, Operand
from loopnest.scalar.expr import Expr, substitute
from loopnest.scalar.templates import at
from loopnest.tensor.math_snapshot import MathTensor


class PartialReductions:
    """The partial results of a program.

    Raises:
        NotProved, NotAffine: it could not be shown that stages are disjoint.
    """

    def __init__(
        self, setting: PolyhedralModel, flow: SymbolicDataflow, outside: SymbolicPadding
    ) -> None:
        self.setting, self.flow, self.isl = setting, flow, setting.isl
        self.outside = outside
        self._contents: dict[Work, Any] = {}
        self._chains: dict[Work, tuple[Instances, Any]] = {}
        self._exchanges: dict[Site, tuple[Instances, list[Any]]] = {}
        self._open: set[object] = set()
        self.tilings = Tilings(setting)

    def reading(self, access: Access) -> Instances:
        """Return the points of a read, at the time of its moment."""
        name = f"R{next(self.setting.numbers)}"
        at = self.setting.instances(access.site, name, access.moment)
        at.conditions += self.setting.guards(access.guards)
        return self.setting.with_data(at, access, name) if data_values(access.index) else at

    def held(
        self,
        at: Instances,
        access: Any,
        buffer: Buffer,
        tensor: MathTensor,
        *,
        so_far: bool = False,
    ) -> Any:
        """Return {point of `at` -> elements that it finds accumulated in a buffer}.

        No update of the value may come later, unless what it holds `so_far` is asked for.
        """
        setting = self.setting
        writes = self.flow.writes(buffer)
        if any(w.tensor is not tensor or w.kind == "define" for w, _ in writes):
            raise NotProved("two tensors in one accumulator")
        starts = [(w, m) for w, m in writes if w.starts]
        begun, missing = self.flow.sources(at, access, buffer, starts)
        setting.require_empty(missing, f"a read of {tensor.name} without an init")
        parts = []
        for work in [w for w, _ in starts if w.kind != "init"]:
            found = begun.extract_map(
                self.flow.pairs(setting.hidden_points.storing(work), at)
            ).reverse()
            if not found.is_empty():
                parts.append(found.apply_range(self._content(work)))
        for work in [w for w, _ in writes if not w.starts]:
            again, chained = self.chain(work, buffer, starts)
            space = self.flow.pairs(at, again)
            # Of the updates, those that continue the start which the read finds.
            taken = begun.reverse().apply_range(chained).extract_map(space)
            if not taken.is_empty():  # {read -> update of the same value}
                late = taken.intersect(self.flow.late(at, again))
                if so_far:
                    taken = taken.subtract(late)
                else:
                    setting.require_empty(late, "a partial result is read")
                parts.append(taken.apply_range(self._adds(work, again, chained)))
        return self._disjoint(at, parts, tensor)

    def _disjoint(self, at: Instances, parts: Sequence[Any], tensor: MathTensor) -> Any:
        names = ", ".join(self.tilings.names(tensor))
        if len(parts) == 1:
            return parts[0].coalesce()
        whole = self.setting.relation(at.tuple, f"C[{names}]", ["1 = 0"])
        for part in parts:
            if not whole.intersect(part).is_empty():
                raise NotProved("an element is accumulated by two statements")
            whole = whole.union(part)
        return whole.coalesce()

    # Stores

    def part(self, work: Work, need: Need, name: str = "") -> Any:
        """Return {point of a store -> what a partial result that it takes in holds}."""
        at = self.setting.sites[work.site]
        return self._operand(at, need.operand, need.tensor, name or at.name)

    def _content(self, work: Work) -> Any:
        """Return {point of a store -> what the partial result that it stores holds}."""
        found = self._contents.get(work)
        if found is None:
            with self._once(work):
                found = self._contents[work] = self.part(work, work.needs[0])
        return found

    def continued(self, work: Work, need: Need) -> Any:
        """Return {point of an update -> what a partial result that it continues holds by then}."""
        at = self.setting.sites[work.site]
        return self._operand(at, need.operand, need.tensor, at.name, so_far=True)

    def _operand(
        self,
        at: Instances,
        operand: Operand,
        tensor: MathTensor,
        name: str,
        *,
        so_far: bool = False,
    ) -> Any:
        """Return what an operand holds at the points of `at`, as a map from tuples of a name."""
        so_far = so_far or tensor.scan is not None  # what is carried on goes on growing
        if isinstance(operand, Combined):
            held = self.combined(at, operand)
        else:
            reading = self.reading(operand)
            access = self.setting.access(reading, operand)
            held = self.held(reading, access, operand.buffer, tensor, so_far=so_far)
        return held.set_tuple_name(self.isl.dim_type.in_, name)

    def chain(self, work: Work, buffer: Buffer, starts: Writes) -> tuple[Instances, Any]:
        """Return an update's points, and {start -> update}."""
        found = self._chains.get(work)
        if found is None:
            setting = self.setting
            again = setting.instances(work.site, f"U{next(setting.numbers)}")
            access = setting.access(again, work.write)
            chained, missing = self.flow.sources(again, access, buffer, starts)
            setting.require_empty(missing, "an update without an init")
            found = self._chains[work] = again, chained
        return found

    def _adds(self, work: Work, again: Instances, chained: Any) -> Any:
        """Return {update -> what it adds to the value that it continues}."""
        found = self._contents.get(work)
        if found is not None:
            return found
        setting = self.setting
        if work.kind == "merge":
            need = work.part
            if need is None:
                raise NotProved("a merge of nothing")
            with self._once(work):
                adds = self.part(work, need, again.name)
        else:
            places = [setting.text(p) for p in setting.polys(work.store.coordinate)]
            places += self.tilings.tile(work)
            within = self.outside.folded(work)
            chosen = setting.chosen[work.site]
            data: dict[Expr, Expr] = {x: chosen[x] for x in setting.live.data(work.tensor)}
            named = [setting.algebra.poly(x, setting.env) for x in data.values()]
            places += [setting.text(p) for p in named]
            for condition in setting.live.conditions(work.tensor):
                here = at(substitute(condition, data), work.store.coordinate)
                within += setting.guards(((here, True),))
            adds = setting.over(again, f"C[{', '.join(places)}]", within)
        # Within one value, from one start on, each element is added by one point alone.
        if not chained.reverse().range_product(self.isl.UnionMap.from_map(adds)).is_injective():
            raise NotProved("an element is accumulated twice")
        self._contents[work] = adds
        return adds

    @contextmanager
    def _once(self, thing: object) -> Iterator[None]:
        """Refuse a partial result that is put together from itself."""
        if thing in self._open:
            raise NotProved("partial results depend on each other")
        self._open.add(thing)
        try:
            yield
        finally:
            self._open.discard(thing)

    # Collectives

    def combined(self, at: Instances, operand: Combined) -> Any:
        """Return what a collective's result holds: the union over the group of each thread.

        Of what a scan gives to a thread, that over the threads before it, and itself.
        """
        exchange = self.setting.exchanges[operand.moment]
        group, held = self._exchange(exchange)
        same = [f"a_{v} = b_{v}" for v in self._kept(exchange, group)]
        if exchange.node.is_so_far(operand.component):
            itself = exchange.node.scan == "inclusive"
            same.append(self._before(exchange, group, at, itself=itself))
        members = self.setting.relation(at.renamed("a_"), group.renamed("b_"), same)
        members = members.intersect_domain(self.setting.domain(at))
        return members.apply_range(held[operand.component % len(held)]).coalesce()

    def _before(
        self, exchange: CollectiveMath, first: Instances, second: Instances, *, itself: bool
    ) -> str:
        """Return that ``b_``, a thread of `first`, comes before ``a_`` of `second` in a scan.

        Raises:
            NotAffine: a thread's number is part of a merged index.
        """
        result = "1 = 1" if itself else "1 = 0"
        threads = self.setting.spaces.threads
        dims = exchange.node.dims  # the one that runs fastest comes first, as its last digit does
        for name in [v for dim in dims for v in reversed(threads[dim])]:
            if name not in first.variables or name not in second.variables:
                raise NotAffine("a merged index over threads of a scan")
            result = f"(b_{name} < a_{name} or (b_{name} = a_{name} and {result}))"
        return result

    def in_turn(self, exchange: CollectiveMath) -> Iterator[Any]:
        """Yield {element -> element that a later thread of a group contributes} for each value."""
        group, held = self._exchange(exchange)
        same = [f"a_{v} = b_{v}" for v in self._kept(exchange, group)]
        same.append(self._before(exchange, group, group, itself=False))
        later = self.setting.relation(group.renamed("b_"), group.renamed("a_"), same)
        later = later.intersect_domain(self.setting.domain(group))
        for first, *_ in exchange.node.by_value(held):
            yield first.reverse().apply_range(later).apply_range(first)

    def _kept(self, exchange: CollectiveMath, group: Instances) -> list[str]:
        """Return the variables in which the threads of a group agree."""
        spaces = self.setting.spaces
        dims = set(spaces.along(exchange.node.dims))
        kept = [m for m in spaces.members_of(exchange.site) if m not in dims]
        return [v for v in spaces.replaced(kept) if v in group.variables]

    def _exchange(self, exchange: CollectiveMath) -> tuple[Instances, list[Any]]:
        """Return a collective's points, and for each argument what each point contributes."""
        found = self._exchanges.get(exchange.site)
        if found is not None:
            return found
        setting = self.setting
        at = setting.instances(exchange.site, f"X{next(setting.numbers)}")
        with self._once(exchange):
            held = [
                self._operand(at, arg, tensor, at.name)
                for arg, tensor in zip(exchange.args, exchange.tensors, strict=True)
            ]
        kept = self._kept(exchange, at)
        key = setting.over(at, f"[{', '.join(kept)}]")
        for first, *others in exchange.node.by_value(held):
            if not all(first.is_equal(other) for other in others):
                raise NotProved("partial results out of step")
            # `kept` tells the group: within it, an element of two threads would be in the result
            # twice.
            if not key.range_product(first).is_injective():
                raise NotProved("two threads contribute one element")
        self._exchanges[exchange.site] = at, held
        return at, held
