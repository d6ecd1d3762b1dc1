"""Findings with their witnesses: numbers for who, where and which element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from loopnest import kir
from loopnest.printers.nest import nest_lines, print_nest
from loopnest.verify.lanes import Points
from loopnest.verify.model import Access, Model, Site
from loopnest.verify.obligations import Work
from loopnest.verify.report import Finding, Place

if TYPE_CHECKING:
    from loopnest.verify.exact import Marks


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
        self, kind: str, message: str, site: Site, status: Literal["refuted", "unknown"] = "refuted"
    ) -> Finding:
        """Return a finding about a statement, at no point of it."""
        node = site.node
        tensor = node.tensor if isinstance(node, kir.Store) else ""
        line = self.lines[node]
        at = Place(line, self.texts[line - 1].strip(), (0, 0, 0), (0, 0, 0), {})
        return Finding(kind, status, message, tensor, None, self.sizes, at, None, _origin(node))

    def point(
        self,
        kind: str,
        message: str,
        work: Work,
        points: Points,
        point: int,
        access: Access,
        index: tuple[int, ...] | None = None,
    ) -> Finding:
        """Return a finding about an access at a point."""
        at = self._place(work, points, point, access)
        element = self._element(points, point, access) if index is None else index
        return Finding(
            kind, "refuted", message, work.tensor.name, element, self.sizes, at, None,
            _origin(work.store),
        )  # fmt: skip

    def pair(
        self,
        kind: str,
        message: str,
        mark: Marks,
        point: int,
        other: Marks,
        other_point: int,
        status: Literal["refuted", "note"] = "refuted",
    ) -> Finding:
        """Return a finding about two accesses."""
        return Finding(
            kind,
            status,
            message,
            mark.work.tensor.name,
            tuple([int(i[point]) for i in mark.index]),
            self.sizes,
            self._place(mark.work, mark.points, point, mark.access),
            self._place(other.work, other.points, other_point, other.access),
            _origin(mark.work.store),
        )

    def _element(self, points: Points, point: int, access: Access) -> tuple[int, ...]:
        lets = access.moment.lets
        return tuple([int(points.array(i, lets, self.sizes)[point]) for i in access.index])

    def _place(self, work: Work, points: Points, point: int, access: Access) -> Place:
        line = self.lines[access.moment.node]
        thread = int(points.thread[point])
        threads = max(self.block[0] * self.block[1] * self.block[2], 1)
        loops = {loop.index: int(points.values[loop.var][point]) for loop in work.site.loops}
        inner = ", ".join(map(str, self._element(points, point, access)))
        flat = ".flat" if access.flat else ""
        verb = "write of" if access.writes else "read of"
        return Place(
            line,
            self.texts[line - 1].strip(),
            _unravel(thread // threads, self.grid),
            _unravel(thread % threads, self.block),
            loops,
            f"{verb} {access.buffer.name}{flat}[{inner}]",
        )


def _unravel(number: int, extents: Sequence[int]) -> tuple[int, int, int]:
    x, y = max(extents[0], 1), max(extents[1], 1)
    return number % x, number // x % y, number // (x * y)


def _origin(node: kir.Stmt) -> str:
    return str(node.origin) if node.origin is not None else ""
