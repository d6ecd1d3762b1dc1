"""No two threads use one element unordered, with a write among them.

One map per access from points to elements, joined with its epoch; two accesses meet where these
agree. Within a block all barriers order; between blocks only those of the grid do, and arrivals:
what a block did before it arrived comes before what the last block does afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import combinations_with_replacement, product
from typing import Any

from loopnest import kir
from loopnest.kir.buffers import Buffer
from loopnest.proofs.program_model import Access, Site, is_private, launch_dimensions
from loopnest.proofs.quasi_affine import constant, times
from loopnest.proofs.symbolic.alike_pairs import AlikePairs
from loopnest.proofs.symbolic.barrier_order import Order
from loopnest.proofs.symbolic.polyhedral_model import PolyhedralModel
from loopnest.proofs.symbolic.statement_instances import Instances, NotProved, about
from loopnest.proofs.symbolic.symbolic_dataflow import earlier
from loopnest.proofs.symbolic.symbolic_landings import SymbolicLandings
from loopnest.scalar.enums import Memory, ParallelType

_BLOCK = ("block", "grid")
"""The scopes of barriers that order all threads of a block."""


class SymbolicRaces:
    """Prove that accesses are ordered.

    Args:
        setting: the program.
        without: barriers that do not count.

    Raises:
        NotProved, NotAffine: it could not be shown.
    """

    def __init__(self, setting: PolyhedralModel, without: Collection[kir.Barrier] = ()) -> None:
        self.setting = setting
        self.pairs = AlikePairs(setting.model)
        self.order = Order(setting, [s for s in setting.model.syncs if s.node not in without])
        self.landings = SymbolicLandings(setting, self.order)

    def prove(self) -> None:
        """Prove all of it."""
        self.order.prove_uniform()
        for site in self.setting.model.arrivals.values():
            with about(site):
                self._arrival(site)
        self._lonely()
        self.prove_apart()

    def prove_apart(self) -> None:
        """Prove that there are no races."""
        done: set[Buffer] = set()
        for buffer in self.setting.model.buffers():
            if buffer not in done and buffer not in self.setting.model.counters:
                group = [buffer, *self.setting.model.aliases(buffer)]
                done.update(group)
                self._space(group)

    # One space of memory

    def _space(self, group: Sequence[Buffer]) -> None:
        model = self.setting.model
        accesses = model.accesses_to(group)
        if not any(a.writes for a in accesses):
            return
        if not is_private(group[0]):
            for a, b in self.pairs.different(accesses):
                with about(b.site):
                    self._pair(a, b)
                    self._in_flight(a, b)
        for loop in {loop: None for a in accesses for loop in a.site.loops}:
            if loop.parallel.is_unordered:
                inside = [a for a in accesses if loop in a.site.loops]
                self._unordered(loop, inside)

    def _pair(self, a: Access, b: Access) -> None:
        """Show that two accesses by different threads do not meet."""
        setting = self.setting
        if not setting.spaces.launch:
            return
        first, second = setting.points(a), setting.points(b)
        shared = a.buffer.memory is Memory.SHARED
        synced = any(map(self.order.has, ("block", "grid", "warp")))
        # Without barriers the whole launch is one epoch: threads of one block and of two are asked
        # at once.
        if not shared and not synced and a.buffer is b.buffer:
            self._apart(a, b, setting.spaces.launch, [])
            return
        grid, block = setting.grid(first), setting.block(first)
        apart = [f"a_{v} != b_{v}" for v in block]
        together = [f"a_{v} = b_{v}" for v in grid]
        if block:
            threads = f"({' or '.join(apart)})"
            self._in_block(a, b, first, second, [*together, threads])
            self._in_two_rounds(a, b, first, second, threads)
        if grid and not shared:
            self._between_blocks(a, b, first, second, grid)

    def _in_flight(self, a: Access, b: Access) -> None:
        """Show that a thread does not touch what a copy of its own has in flight."""
        for flying, other in self.landings.touching(a, b):
            first, second = self.setting.points(flying), self.setting.points(other)
            own = [*self.setting.grid(first), *self.setting.block(first)]
            same = [f"a_{v} = b_{v}" for v in own if v in second.variables]
            met = self._at_one_place(flying, other, first, second, same)
            if not met.is_empty():
                met = self.landings.untouched(flying, other, met)
            self.setting.require_empty(met, f"{other} while a copy of {flying} is in flight")

    def _in_block(
        self, a: Access, b: Access, first: Instances, second: Instances, pairs: list[str]
    ) -> None:
        if self.order.has("warp"):
            met = self._together(a, b, first, second, pairs, _BLOCK)
            if met.is_empty():
                return  # barriers of the block are enough, whatever those of a warp do
        for which, scopes in self._scopes():
            met = self._together(a, b, first, second, [*pairs, *which], scopes)
            self.setting.require_empty(met, f"a race of {a} and {b}")

    def _scopes(self) -> Iterator[tuple[list[str], tuple[str, ...]]]:
        """Yield conditions on two threads of a block, with the scopes of barriers that count.

        A barrier of the warp orders threads of one warp; for those of two it does not count.
        """
        scopes, order = _BLOCK, self.order
        if not order.has("warp"):
            yield [], scopes
            return
        yield [order.warp_condition(False)], scopes
        yield [order.warp_condition(True)], (*scopes, "warp")

    def _in_two_rounds(
        self, a: Access, b: Access, first: Instances, second: Instances, threads: str
    ) -> None:
        """Show that accesses in two rounds of a block do not meet, or that a barrier parts them.

        Which rounds are of one block the digits do not tell: any two may be. Of barriers those
        count that are in one of both rounds, behind the access there that comes first or in front
        of the other one. Which of them comes first is not asked: either may.
        """
        setting, order = self.setting, self.order
        rounds = [v for group in setting.spaces.rounds for v in group.digits]
        differ = [f"a_{v} != b_{v}" for v in rounds if v in first.variables]
        if not differ:
            return
        same = [f"a_{v} = b_{v}" for v in setting.grid(first) if v not in rounds]
        pairs = [*same, threads, f"({' or '.join(differ)})"]
        for (which, scopes), behind in product(self._scopes(), (True, False)):
            met = self._at_one_place(a, b, first, second, [*pairs, *which])
            if not met.is_empty():
                if a.site.issue is not None or b.site.issue is not None:
                    raise NotProved("copies in flight in two rounds of a block")
                met = met.subtract_domain(order.parted(a.site, first, scopes, after=behind))
                met = met.subtract_range(order.parted(b.site, second, scopes, after=not behind))
            setting.require_empty(met, f"a race of {a} and {b}")

    def _together(
        self,
        a: Access,
        b: Access,
        first: Instances,
        second: Instances,
        pairs: list[str],
        scopes: tuple[str, ...],
    ) -> Any:
        """Return the pairs of points that use one element in one epoch."""
        met = self._at_one_place(a, b, first, second, pairs)
        if met.is_empty() or not any(self.order.has(scope) for scope in scopes):
            return met
        mine = self.order.epoch(a.site, first, scopes)
        other = self.order.epoch(b.site, second, scopes)
        if a.site.issue is None and b.site.issue is None:
            return met.intersect(mine.apply_range(other.reverse()))
        # Each begins before the other one is over.
        over = self.landings.last_epoch(b.site, second, scopes)
        met = met.intersect(mine.lex_le_map(over))
        if met.is_empty():
            return met
        over = self.landings.last_epoch(a.site, first, scopes)
        return met.intersect(other.lex_le_map(over).reverse())

    def _at_one_place(
        self, a: Access, b: Access, first: Instances, second: Instances, pairs: list[str]
    ) -> Any:
        """Return the pairs of points that use one element; all of buffers that share space."""
        setting = self.setting
        if a.buffer is b.buffer:
            places = zip(setting.placed(a), setting.placed(b), strict=True)
            pairs = [
                *pairs,
                *[f"{setting.text(p, 'a_')} = {setting.text(q, 'b_')}" for p, q in places],
            ]
        met = setting.relation(first.renamed("a_"), second.renamed("b_"), pairs)
        met = met.intersect_domain(setting.domain(first, a.guards))
        return met.intersect_range(setting.domain(second, b.guards))

    # Between blocks

    def _between_blocks(
        self, a: Access, b: Access, first: Instances, second: Instances, grid: Sequence[str]
    ) -> None:
        setting = self.setting
        apart = [f"({' or '.join([f'a_{v} != b_{v}' for v in grid])})"]
        met = self._together(a, b, first, second, apart, ("grid",))
        for site in setting.model.arrivals.values():
            if met.is_empty() or a.site.issue is not None or b.site.issue is not None:
                break  # an arrival orders no copy that is in flight
            met = met.subtract(self._arrived(site, a, first, b, second))
            met = met.subtract(self._arrived(site, b, second, a, first).reverse())
        setting.require_empty(met, f"a race between blocks of {a} and {b}")

    def _arrived(
        self, site: Site, a: Access, first: Instances, b: Access, second: Instances
    ) -> Any:
        """Return the pairs: the first before an arrival, the second after it in the last block.

        Raises:
            NotProved: the arrival's counter has no affine index.
        """
        bound = [
            t
            for loop in site.loops
            if loop.parallel.is_thread
            for t in self.setting.spaces.bound(loop)
        ]
        if not site.serial and not site.guards and not bound:
            return self._arrived_once(site, first, second)
        before = self._counter(site, first, late=False)
        after = self._counter(site, second, late=True)
        return before.apply_range(after.reverse())

    def _arrived_once(self, site: Site, first: Instances, second: Instances) -> Any:
        """Return the same for an arrival that every block comes to once."""
        setting, arrival = self.setting, self.setting.sites[site]
        node = site.node
        assert isinstance(node, kir.Arrive)
        conditions = []
        for before, after in ((first, arrival), (arrival, second)):
            mark = "a_" if before is first else "b_"
            parts = earlier(before, mark, after, mark, ())
            if [] not in parts:
                texts = [f"({' and '.join(part)})" for part in parts] or ["1 = 0"]
                conditions.append(" or ".join(texts))
        for p in setting.polys(node.index):
            conditions.append(f"{setting.text(p, 'a_')} = {setting.text(p, 'b_')}")
        dims = setting.last[node.var]
        conditions += [f"b_t_{d.value} = {self._parameter(site, d)}" for d in dims]
        return setting.relation(first.renamed("a_"), second.renamed("b_"), conditions)

    def _counter(self, site: Site, at: Instances, *, late: bool) -> Any:
        """Return points -> the counters at which their block arrives later (earlier if `late`)."""
        setting, arrival = self.setting, self.setting.sites[site]
        node = site.node
        assert isinstance(node, kir.Arrive)
        same = [f"a_{v} = b_{v}" for v in setting.grid(arrival)]
        if late:
            dims = setting.last[node.var]
            same += [f"b_t_{d.value} = {self._parameter(site, d)}" for d in dims]
        pairs = setting.relation(at.renamed("a_"), arrival.renamed("b_"), same)
        mine = setting.over(at, f"T[{', '.join(at.time)}]")
        theirs = setting.over(arrival, f"T[{', '.join(arrival.time)}]")
        ordered = mine.lex_gt_map(theirs) if late else mine.lex_lt_map(theirs)
        access = Access(site, site, node.counter, node.index, False, False)
        return pairs.intersect(ordered).apply_range(setting.access(arrival, access))

    def _parameter(self, site: Site, dim: ParallelType) -> str:
        node = site.node
        assert isinstance(node, kir.Arrive)
        return self.setting.last_names[node.var, dim]

    # Arrivals

    def _arrival(self, site: Site) -> None:
        """Show that just `count` blocks arrive at each counter, each once."""
        setting, at = self.setting, self.setting.sites[site]
        node = site.node
        assert isinstance(node, kir.Arrive)
        dims = [f"t_{d.value}" for d in setting.last[node.var]]
        count = constant(1)
        for name in dims:
            count = times(count, setting.spaces.extent[name])
        if setting.algebra.poly(node.count, {}) != count:
            raise NotProved(f"so many blocks arrive at {node.counter.name}")
        self.order.closed(site, dims)
        access = Access(site, site, node.counter, node.index, False, False)
        where = setting.access(at, access, place=True)
        derived = setting.algebra.derived.values()
        others = [v for v in at.variables if v not in (*dims, *setting.block(at), *derived)]
        # Two arrivals at one counter that differ in anything but the blocks that it gathers (or the
        # thread, which all threads of a block share) would be two rounds of counting.
        differ = " or ".join([f"a_{v} != b_{v}" for v in others]) or "1 = 0"
        pairs = setting.relation(at.renamed("a_"), at.renamed("b_"), [differ])
        met = where.apply_range(where.reverse()).intersect(pairs)
        setting.require_empty(met, f"two rounds at one counter {node.counter.name}")

    def _lonely(self) -> None:
        """Show that it makes no difference to common memory which block was the last.

        Raises:
            NotProved: an index in global memory, or a claim, depends on that block's number, or
                memory of its own keeps what it stored to a later arrival.
        """
        model = self.setting.model
        for buffer in model.kept_by_last_blocks():
            raise NotProved(f"{buffer.name} keeps what an earlier last block stored")
        for site in model.sites:
            dims = {d for f in model.flags(site.guards) for d in self.setting.last.get(f, ())}
            if not dims:
                continue
            used = [i for a in model.accesses_of(site) if a.buffer.memory is Memory.GLOBAL
                    for i in a.index]  # fmt: skip
            if isinstance(site.node, kir.Store):
                used += site.node.coordinate
            used += [condition for condition, _ in site.guards]
            if any(dims & launch_dimensions(site, i) for i in used):
                with about(site):
                    raise NotProved("an access that depends on which block is the last")

    # Loops without an order

    def _unordered(self, loop: kir.Loop, accesses: Sequence[Access]) -> None:
        model, spaces = self.setting.model, self.setting.spaces
        for a, b in combinations_with_replacement(accesses, 2):
            made = model.lifetime(a)
            # A buffer made inside of the loop is another one in each iteration.
            inner = made is not None and loop in made.loops
            if inner or not (a.writes or b.writes) or (a.atomic and b.atomic):
                continue
            with about(b.site):
                if a.buffer is not b.buffer:
                    raise NotProved("a loop without an order over shared space")
                around = a.site.serial[: a.site.serial.index(loop)]
                outer = [v for o in around for v in spaces.names[o.var]]
                self._apart(a, b, spaces.names[loop.var], [*spaces.launch, *outer])

    def _apart(self, a: Access, b: Access, differ: Sequence[str], same: Sequence[str]) -> None:
        """Show that no two points with these indices different use one element."""
        spaces = self.setting.spaces
        first, second = self.setting.points(a), self.setting.points(b)
        for members in (differ, same):
            gone = [m for m in members if m not in first.variables or m not in second.variables]
            if not all(m in spaces.group_of for m in gone):
                raise NotProved("a race")
        # Digits of a merged index may agree where the index differs: a group is asked for as a
        # whole.
        for group in spaces.groups:
            part = set(group.members)
            if not part.isdisjoint(same) and not part <= set(same):
                raise NotProved("a merged index of which a part agrees")
        apart = [v for v in self._named(differ, first) if v in second.variables]
        together = [v for v in self._named(same, first) if v in second.variables]
        distinct = " or ".join([f"a_{v} != b_{v}" for v in apart]) or "1 = 0"
        conditions = [f"({distinct})", *[f"a_{v} = b_{v}" for v in together]]
        pairs = self.setting.relation(first.renamed("a_"), second.renamed("b_"), conditions)
        met = self.setting.access(first, a).apply_range(self.setting.access(second, b).reverse())
        self.setting.require_empty(met.intersect(pairs), f"a race on {b}")

    def _named(self, members: Sequence[str], at: Instances) -> list[str]:
        return list(dict.fromkeys(self._digits(members, at)))

    def _digits(self, members: Sequence[str], at: Instances) -> Iterator[str]:
        for member in members:
            group = self.setting.spaces.group_of.get(member)
            yield from [
                v for v in ((member,) if group is None else group.digits) if v in at.variables
            ]
