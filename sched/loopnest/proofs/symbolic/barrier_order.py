"""Barriers: who reaches them, and which accesses they order.

The epoch of an access is the last barrier before it, as a time; accesses of one block (or of the
grid, or of a warp) with one epoch are not ordered. Epochs follow from the times alone, so that a
loop that holds a barrier has an epoch for each of its iterations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loopnest import kir
from loopnest.proofs.program_model import Model, Site
from loopnest.proofs.symbolic.polyhedral_model import PolyhedralModel
from loopnest.proofs.symbolic.statement_instances import Instances, NotProved
from loopnest.proofs.symbolic.symbolic_dataflow import earlier
from loopnest.scalar.enums import BLOCK_DIMENSIONS, WARP, Memory
from loopnest.scalar.expr import Const, LaunchIndex


class Order:
    """The barriers of a program.

    Args:
        setting: the program.
        syncs: the barriers, shuffles and arrivals that count.
    """

    def __init__(self, setting: PolyhedralModel, syncs: Sequence[Site]) -> None:
        self.setting = setting
        self.syncs = list(syncs)
        self._epochs: dict[tuple[str, Site], Any] = {}
        self._alike: dict[object, Any] = {}
        self._stretches = stretches(setting.model)

    def has(self, scope: str) -> bool:
        """Whether there are barriers of a scope (arrivals are barriers of the block)."""
        return any(
            kir.meets(s.node) == scope and not isinstance(s.node, kir.Shuffle) for s in self.syncs
        )

    # Divergence

    def prove_uniform(self) -> None:
        """Show that each is reached by all threads of its scope, or by none.

        Raises:
            NotProved: it is not.
        """
        for site in self.syncs:
            self.closed(site, self._members(site))
        for site in self.setting.model.collectives:
            assert isinstance(site.node, kir.Collective)
            dims = self.setting.spaces.along(site.node.dims)
            shared = any(
                isinstance(n, kir.Store) and n.storage.memory is Memory.SHARED
                for n, _ in kir.walk(site.node.body)
            )
            block = self.setting.block(self.setting.sites[site])
            self.closed(site, block if shared else dims)

    def _members(self, site: Site) -> list[str]:
        """Return the variables that differ among the threads of a barrier's scope."""
        at = self.setting.sites[site]
        match kir.meets(site.node):
            case "grid":
                return [*self.setting.grid(at), *self.setting.block(at)]
            case _:
                return self.setting.block(at)

    def closed(self, site: Site, free: Sequence[str]) -> None:
        """Show that a site is reached for all values of these variables, or for none.

        Raises:
            NotProved: it is not, or a variable is merged with others.
        """
        at, spaces = self.setting.sites[site], self.setting.spaces
        free = [v for v in free if v in spaces.launch or v in at.variables]
        if any(v not in at.variables or v not in spaces.extent for v in free):
            raise NotProved("a merged thread number at a barrier")
        tied = self._tied(at, free)
        conditions = [f"a_{v} = b_{v}" for v in at.variables if v not in (*free, *tied)]
        for v in free:
            conditions.append(f"0 <= b_{v} < {self.setting.text(self.setting.spaces.extent[v])}")
        for v in free:
            for text in self.setting.spaces.derived.get(v, {}).values():
                conditions.append(_marked(text, "b_", (v, *tied)))
        domain = self.setting.domain(at)
        # Reached by all of the block or by none is more than a warp needs, holds mostly, and has no
        # division in it; only where it fails is each warp asked by itself.
        if site in self.setting.model.syncs and kir.meets(site.node) == "warp":
            try:
                self._all(at, conditions, domain)
                return
            except NotProved:
                conditions.append(self._same_warp())
        self._all(at, conditions, domain)

    def _all(self, at: Instances, conditions: Sequence[str], domain: Any) -> None:
        others = self.setting.relation(at.renamed("a_"), at.renamed("b_"), conditions)
        reached = others.intersect_domain(domain).range()
        self.setting.require_empty(reached.subtract(domain), "a divergent barrier")

    def _tied(self, at: Instances, free: Sequence[str]) -> list[str]:
        return [d for v in free for d in self.setting.spaces.derived.get(v, {})]

    # Warps

    def _same_warp(self) -> str:
        """Return that the threads of ``a_`` and ``b_`` are of one warp.

        Raises:
            NotProved: the number of a thread is no affine function of its coordinates.
        """
        a, b = self._thread("a_"), self._thread("b_")
        return f"floor(({a})/{WARP}) = floor(({b})/{WARP})"

    def _thread(self, mark: str) -> str:
        step, parts, spaces = 1, [], self.setting.spaces
        last = [d for d in BLOCK_DIMENSIONS if d in spaces.threads]
        for dim in last:
            if any(name in spaces.group_of for name in spaces.threads[dim]):
                raise NotProved("a merged thread number in a warp")
            number = self.setting.text(spaces.env[LaunchIndex(dim)], mark)
            parts.append(f"{step}*({number})")
            extent = self.setting.model.program.launch_extent(dim)
            if isinstance(extent, Const):
                step *= int(extent.value)
            elif dim is not last[-1]:
                raise NotProved("warps of a block of symbolic extents")
        return " + ".join(parts) or "0"

    def warp_condition(self, same: bool) -> str:
        """Return that ``a_`` and ``b_`` are of one warp, or of two."""
        text = self._same_warp()
        return text if same else f"not ({text})"

    # Epochs

    def epoch(self, site: Site, at: Instances, scopes: tuple[str, ...]) -> Any:
        """Return the map from points to the time of the last barrier of these scopes before.

        The time -1 stands for none. A thread is where its whole scope is, so its own instances of
        a barrier tell the time.
        """
        setting = self.setting
        key = (" ".join(scopes), site)
        found = self._epochs.get(key)
        if found is None:
            # What is not parted by a barrier has one epoch, in the loops around it.
            around = (site.loops, site.guards, site.time[:-1], self._stretches[site])
            alike = (key[0], around, *at.variables, *at.conditions)
            found = self._alike.get(alike)
            if found is None:
                found = self._alike[alike] = self._last_barrier(at, scopes)
            found = found.set_tuple_name(setting.isl.dim_type.in_, at.name)
            self._epochs[key] = found
        return found

    def _last_barrier(self, at: Instances, scopes: tuple[str, ...]) -> Any:
        setting = self.setting
        width = setting.times
        start = ", ".join(["-1"] + ["0"] * (width - 1))
        whole = setting.over(at, f"T[{start}]", untied=True)
        for other in self.syncs:
            if kir.meets(other.node) not in scopes or isinstance(other.node, kir.Shuffle):
                continue
            barrier = setting.sites[other]
            parts = earlier(barrier, "b_", at, "a_", ())
            if not parts:
                continue
            # Its own instances: the others of its scope are at the same ones (`prove_uniform`).
            team = [*setting.grid(barrier), *setting.block(barrier)]
            conditions = [f"a_{v} = b_{v}" for v in team]
            if [] not in parts:
                conditions.append(" or ".join([f"({' and '.join(part)})" for part in parts]))
            before = setting.relation(at.renamed("a_"), barrier.renamed("b_"), conditions)
            before = before.intersect_domain(setting.domain(at, untied=True))
            times = setting.over(barrier, f"T[{', '.join(barrier.time)}]", untied=True)
            whole = whole.union(before.apply_range(times))
        return whole.lexmax()

    # Rounds

    def parted(self, site: Site, at: Instances, scopes: tuple[str, ...], *, after: bool) -> Any:
        """Return the points with a barrier of these scopes in their round, before or after them."""
        setting = self.setting
        domain = setting.domain(at)
        found = domain.subtract(domain)
        loops = self._loops_of_rounds(site)
        around = [v for loop in loops for v in setting.spaces.names[loop.var]]
        for other in self.syncs:
            barrier = setting.sites[other]
            counts = kir.meets(other.node) in scopes and not isinstance(other.node, kir.Shuffle)
            if not counts or other.serial[: len(loops)] != loops:
                continue
            one, two = ((at, "a_"), (barrier, "b_")) if after else ((barrier, "b_"), (at, "a_"))
            parts = [f"({' and '.join(p) or '1 = 1'})" for p in earlier(*one, *two, ())]
            team = [*setting.grid(barrier), *setting.block(barrier), *around]
            own = [f"a_{v} = b_{v}" for v in team if v in barrier.variables and v in at.variables]
            texts = [*own, " or ".join(parts) or "1 = 0"]
            pairs = setting.relation(at.renamed("a_"), barrier.renamed("b_"), texts)
            found = found.union(pairs.intersect_range(setting.domain(barrier)).domain())
        return found.intersect(domain)

    def _loops_of_rounds(self, site: Site) -> tuple[kir.Loop, ...]:
        """Return the loops around a site down to the innermost one that makes rounds."""
        members = {m for group in self.setting.spaces.rounds for m in group.members}
        names = self.setting.spaces.names
        depths = [n + 1 for n, loop in enumerate(site.serial) if members & set(names[loop.var])]
        return site.serial[: max(depths, default=0)]


def stretches(model: Model) -> dict[Site, int]:
    """Return the stretch of text of each site; synchronisations part them, each one by itself."""
    syncs, passed = set(model.syncs), 0
    result: dict[Site, int] = {}
    for site in model.sites:
        passed += site in syncs
        result[site] = passed
        passed += site in syncs
    return result


def _marked(text: str, mark: str, names: Sequence[str]) -> str:
    import re

    for name in names:
        text = re.sub(rf"\b{name}\b", mark + name, text)
    return text
