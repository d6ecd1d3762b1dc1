"""Findings with their witnesses: numbers for who, where and which element."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal

from loopnest import kir
from loopnest.kir.nest_text import nest_lines, print_nest
from loopnest.kir.tiles import EDGE, EXCHANGE, without_tiles
from loopnest.proofs.point_arrays import Points
from loopnest.proofs.program_model import Access, Model, Site
from loopnest.proofs.report import Finding, Place
from loopnest.scalar.enums import along_dimensions


class Witness:
    """Makes findings about one program at given sizes."""

    def __init__(
        self, model: Model, sizes: Mapping[str, int], grid: Sequence[int], block: Sequence[int]
    ) -> None:
        self.model, self.sizes = model, dict(sizes)
        self.grid, self.block = grid, block

    @cached_property
    def lines(self) -> dict[kir.Stmt, int]:
        return nest_lines(self.model.program)

    @cached_property
    def texts(self) -> list[str]:
        return print_nest(self.model.program).splitlines()

    def plain(
        self, kind: str, message: str, tensor: str, index: tuple[int, ...] | None = None
    ) -> Finding:
        """Return a finding that has no statement."""
        return Finding(kind, "refuted", message, tensor, index, self.sizes)

    def bare(
        self,
        kind: str,
        message: str,
        site: Site,
        status: Literal["refuted", "unknown", "note"] = "refuted",
        index: tuple[int, ...] | None = None,
    ) -> Finding:
        """Return a finding about a site, at no point of it; `index` is an element."""
        return self.statement(kind, message, site.node, status, index)

    def statement(
        self,
        kind: str,
        message: str,
        node: kir.Stmt,
        status: Literal["refuted", "unknown", "note"] = "refuted",
        index: tuple[int, ...] | None = None,
    ) -> Finding:
        """Return a finding about a statement."""
        line = self.lines[node]
        at = Place(line, self.texts[line - 1].strip(), (0, 0, 0), (0, 0, 0), {})
        return Finding(
            kind, status, message, _tensor(node), index, self.sizes, at, None, _origin(node)
        )

    def at(
        self,
        kind: str,
        message: str,
        site: Site,
        access: Access | None,
        points: Points,
        point: int,
        index: tuple[int, ...] | None = None,
        status: Literal["refuted", "note"] = "refuted",
    ) -> Finding:
        """Return a finding about a point of a statement, and an access there if it is one's."""
        at = self._place(site, access, points, point)
        if index is None and access is not None:
            index = self._element(points, point, access)
        return Finding(kind, status, message, _tensor(site.node), index, self.sizes, at, None,
                       _origin(site.node))  # fmt: skip

    def point(
        self,
        kind: str,
        message: str,
        access: Access,
        points: Points,
        point: int,
        index: tuple[int, ...] | None = None,
    ) -> Finding:
        """Return a finding about an access at a point."""
        return self.at(kind, message, access.site, access, points, point, index)

    def pair(
        self,
        kind: str,
        message: str,
        access: Access,
        points: Points,
        point: int,
        other: Access,
        other_points: Points,
        other_point: int,
        status: Literal["refuted", "note"] = "refuted",
    ) -> Finding:
        """Return a finding about two accesses."""
        site = access.site
        return Finding(
            kind,
            status,
            message,
            _tensor(site.node),
            self._element(points, point, access),
            self.sizes,
            self._place(site, access, points, point),
            self._place(other.site, other, other_points, other_point),
            _origin(site.node),
        )

    def _element(self, points: Points, point: int, access: Access) -> tuple[int, ...]:
        names = self.model.names
        return tuple([int(points.array(i, names, self.sizes)[point]) for i in access.index])

    def _place(self, site: Site, access: Access | None, points: Points, point: int) -> Place:
        line = self.lines[site.node if access is None else access.moment.node]
        thread = int(points.thread[point])
        threads = max(self.block[0] * self.block[1] * self.block[2], 1)
        loops = {loop.index: int(points.values[loop.var][point]) for loop in site.loops}
        text = ""
        if access is not None:
            inner = ", ".join(map(str, self._element(points, point, access)))
            flat = ".flat" if access.flat else ""
            verb = "write of" if access.writes else "read of"
            text = f"{verb} {access.buffer.name}{flat}[{inner}]"
        return Place(
            line,
            self.texts[line - 1].strip(),
            _unravel(thread // threads, self.grid),
            _unravel(thread % threads, self.block),
            loops,
            text,
        )


def among_tiles(program: kir.Program) -> Callable[[Place], Place]:
    """Return what tells where a place in the nest of `without_tiles(program)` is in `program`.

    The line of a tile is that of the barrier in front of its body, the line of a shuffle that of
    the read between two barriers; the other barriers have no line.
    """
    texts, plain = (print_nest(p).splitlines() for p in (program, without_tiles(program)))
    edges, exchanges = (
        [line for line, text in enumerate(plain, 1) if text.endswith(barrier.reason)]
        for barrier in (EDGE, EXCHANGE)
    )
    fronts = dict(zip(edges[1::2], edges[::2], strict=True))
    for first, last in zip(exchanges[::2], exchanges[1::2], strict=True):
        fronts[first] = fronts[last] = first + 1

    def moved(place: Place) -> Place:
        line = fronts.get(place.line, place.line)
        line -= sum(behind < line for behind in fronts)
        return replace(place, line=line, text=texts[line - 1].strip())

    return moved


def _unravel(number: int, extents: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = along_dimensions(number, max(extents[0], 1), max(extents[1], 1))
    return x, y, z


def _tensor(node: kir.Stmt) -> str:
    return node.tensor if isinstance(node, kir.Store) else ""


def _origin(node: kir.Stmt) -> str:
    return str(node.origin) if node.origin is not None else ""
