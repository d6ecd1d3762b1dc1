"""The facts at given sizes, decided by looking at every point.

Every access gets a key (which element of which copy of the buffer) and a time. The source of a
read is the last write of its key before it; partial results are followed from their init on, from
stage to stage. What fails has a witness, what does not fail holds at these sizes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from loopnest import kir
from loopnest.proofs.collectives.collective_contract import Body
from loopnest.proofs.enumeration.access_instances import InstanceTable
from loopnest.proofs.enumeration.enumerated_alignment import misaligned
from loopnest.proofs.enumeration.enumerated_dataflow import EnumeratedDataflow
from loopnest.proofs.enumeration.enumerated_races import EnumeratedRaces
from loopnest.proofs.enumeration.value_provenance import ValueProvenance
from loopnest.proofs.obligations import CollectiveMath, Work
from loopnest.proofs.point_arrays import Array, Enumeration, Points, number
from loopnest.proofs.program_model import Access, Model, is_callers, strided
from loopnest.proofs.report import Finding
from loopnest.proofs.template_matching import Agreement
from loopnest.proofs.witness import Witness
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import Buffer, Expr, Local, Symbol
from loopnest.tensor.math_snapshot import MathSnapshot, MathTensor

__all__ = ["EnumeratedFacts"]


class EnumeratedFacts:
    """Decide the facts at one set of sizes.

    Args:
        model, math: the program and what it should compute.
        works, exchanges: its stores and collectives, with what the math demands.
        sizes: the value of every size symbol.
        most: at most so many points a statement.
        first: the flags of the arrivals of whose blocks the first goes on, else it is the last one.
        data: the elements of inputs that tests load.
    """

    def __init__(
        self,
        model: Model,
        math_: MathSnapshot,
        works: Sequence[Work],
        exchanges: Sequence[CollectiveMath],
        sizes: Mapping[str, int],
        most: int = 1 << 20,
        first: Collection[Local] = (),
        data: Mapping[Buffer, Array] = MappingProxyType({}),
    ) -> None:
        self.model, self.math, self.works, self.sizes = model, math_, works, sizes
        self.space = Enumeration(model, sizes, most, first, data)
        self.witness = Witness(model, sizes, self.space.grid, self.space.block)
        trusted = {w.site: w.trusted for w in works}
        self.table = InstanceTable(model, sizes, self.space, self.witness, trusted)
        self.exchanges = {e.site: e for e in exchanges}
        self.contents = ValueProvenance(self.table, math_, works, self.exchanges)

    def findings(self) -> Iterator[Finding]:
        """Yield what does not hold at these sizes, the most basic facts first."""
        found = [*self._layouts(), *self._bounds()]
        yield from found
        if found:
            return
        yield from self._equalities()
        for work in self.works:
            whole = work.kind not in ("init", "partial")
            if whole and is_callers(work.store.storage):
                yield from self._claim(work)
            if work.kind == "fill":
                yield from self._fill(work)
        yield from misaligned(self.table)
        yield from self._declarations()
        yield from EnumeratedDataflow(self.contents).findings()
        yield from EnumeratedRaces(self.table).findings()

    # Layouts and bounds

    def _layouts(self) -> Iterator[Finding]:
        given = strided(self.model.program)
        for buffer in self.model.buffers():
            if buffer not in given:  # the caller's, of which elements may lie in one place
                yield from self._layout(buffer)
        for param in self.model.program.params:
            if param.buffer is None or param.kind not in ("input", "output"):
                continue
            tensor = self.math.tensor(param.name)
            if tensor is not None:
                yield from self._parameter(param, param.buffer, tensor)

    def _parameter(self, param: kir.Param, buffer: Buffer, tensor: MathTensor) -> Iterator[Finding]:
        """Check that an array is passed in the math's shape, row-major, without gaps."""
        logical = self.contents.shape(tensor.logical)
        passed = tuple([number(extent, self.sizes) for extent in param.shape])
        for found, wanted in ((passed, logical), (self.table.shapes[buffer], logical or (1,))):
            if found != wanted:
                message = (
                    f"{param.kind} {param.name} has the shape {list(found)}, its tensor "
                    f"{list(wanted)}"
                )
                yield self.witness.plain("layout", message, tensor.name)
                return
        size = math.prod(logical)
        steps = [math.prod(logical[n + 1 :]) for n in range(len(logical))] or [1]
        if tensor.strides is not None:
            steps = [number(stride, self.sizes) for stride in tensor.strides]
            reach = zip(logical, steps, strict=True)
            size = 1 + sum([(e - 1) * s for e, s in reach]) if size else 0
        strides = list(self.table.strides[buffer])
        if size and (steps != strides or self.table.sizes_of[buffer] != size):
            message = (
                f"{param.kind} {param.name} has the strides {strides} and "
                f"{self.table.sizes_of[buffer]} elements; a caller passes {steps} and {size}"
            )
            yield self.witness.plain("layout", message, tensor.name)

    def _layout(self, buffer: Buffer) -> Iterator[Finding]:
        shape = self.table.shapes[buffer]
        strides, size = list(self.table.strides[buffer]), self.table.sizes_of[buffer]
        if 0 in shape:
            return
        last = sum([(e - 1) * s for e, s in zip(shape, strides, strict=True)])
        if last >= size:
            yield self.witness.plain(
                "layout",
                f"buffer {buffer.name} has {size} elements, its shape {list(shape)} "
                f"and strides {strides} reach element {last}",
                buffer.tensor,
            )
        yield from self._room(buffer, size)
        need = 1
        for extent, stride in sorted(zip(shape, strides, strict=True), key=lambda p: p[1]):
            if extent > 1 and stride < need:
                yield self.witness.plain(
                    "layout",
                    f"two elements of buffer {buffer.name} share a place: shape "
                    f"{list(shape)}, strides {strides}",
                    buffer.tensor,
                )
                break
            need = max(need, stride * extent)
        if not all(self._permutes(buffer, swizzle) for swizzle in buffer.swizzles):
            yield self.witness.plain(
                "layout",
                f"the swizzle of {buffer.name} is no permutation of its tile: shape {list(shape)}",
                buffer.tensor,
            )

    def _room(self, buffer: Buffer, size: int) -> Iterator[Finding]:
        """Check that texts declare as many bytes of shared memory as a buffer takes."""
        if buffer.memory is not Memory.SHARED:
            return
        room = number(self.model.declared_bytes[buffer], self.sizes)
        if size * buffer.dtype.size > room:
            message = f"buffer {buffer.name} takes {size * buffer.dtype.size} bytes of {room}"
            yield self.witness.plain("layout", message, buffer.tensor)

    def _permutes(self, buffer: Buffer, swizzle: tuple[int, int]) -> bool:
        """Whether a swizzle maps the elements of its tile one to one into it."""
        if swizzle[0] == swizzle[1]:
            return False
        rows, columns = [self.table.shapes[buffer][d] for d in swizzle]
        if rows < 1 or columns < 1:
            return True
        i, j = np.indices((rows, columns))
        place = j ^ (i % columns)
        inside = bool((place < columns).all())
        return inside and np.unique(i * columns + place).size == rows * columns

    def _bounds(self) -> Iterator[Finding]:
        for access in self.model.accesses:
            finding = self.table.misplaced(access, self._subject(access))
            if finding is not None:
                yield finding

    def _subject(self, access: Access) -> str:
        node = access.site.node
        match node:
            case kir.Store():
                return node.tensor
            case kir.Let() | kir.Shuffle():
                return node.var.name
            case kir.Arrive():
                return f"the arrival {node.var.name}"
        return "a test"

    # Claims, coordinates in values, declarations

    def _claim(self, work: Work) -> Iterator[Finding]:
        """Check that a store to a whole tensor writes the element that it claims."""
        mark = self.table.marks(work.write)
        shape = self.contents.shape(work.tensor.logical)
        index = self.table.element(mark)
        if len(index) != len(shape or (1,)):
            message = f"{work.tensor.name} is stored to a buffer of another rank"
            yield self.witness.bare("claim", message, work.site)
            return
        claimed = self.table.linear(mark.points, work.element, shape)
        written = np.zeros(mark.points.count, np.int64)
        for value, extent in zip(index, shape or (1,), strict=True):
            written = written * extent + value
        bad = np.flatnonzero(claimed != written)
        if bad.size:
            p = int(bad[0])
            element = [int(self.table.array(mark.points, e)[p]) for e in work.element]
            message = (
                f"{work.tensor.name} writes the element {[int(i[p]) for i in index]} "
                f"and claims {element}"
            )
            yield self.witness.point("claim", message, work.write, mark.points, p)

    def _fill(self, work: Work) -> Iterator[Finding]:
        """Check that a constant is stored outside of a tensor only."""
        points = self.space.points[work.site]
        root = self.table.linear(
            points, work.store.coordinate, self.contents.shape(work.tensor.root)
        )
        bad = np.flatnonzero(root >= 0)
        if bad.size:
            p = int(bad[0])
            element = [int(self.table.array(points, e)[p]) for e in work.element]
            message = f"{work.tensor.name}{element} is stored as the constant {work.store.value}"
            yield self.witness.point("value", message, work.write, points, p)

    def _equalities(self) -> Iterator[Finding]:
        for work in self.works:
            points = self.space.points[work.site]
            if not points.count:
                continue
            for wanted, found in work.equalities:
                a = self.table.array(points, wanted)
                bad = np.flatnonzero(a != self.table.array(points, found))
                if bad.size:
                    p = int(bad[0])
                    message = f"{work.tensor.name} uses {found} for the coordinate {int(a[p])}"
                    yield self.witness.point("claim", message, work.write, points, p)
            for agreement in work.conditions:
                yield from self._disagreements(work, agreement, points)

    def _disagreements(self, work: Work, agreement: Agreement, points: Points) -> Iterator[Finding]:
        """Check that a condition says what that of the math does."""
        held = points.where(agreement.guards, self.model.names, self.sizes)
        points = points.take(held)
        wanted, found = agreement.wanted, agreement.found
        a, b = [self.table.array(points, node) for node in (wanted, found)]
        bad = np.flatnonzero(a != b)
        if bad.size:
            p = int(bad[0])
            message = (
                f"{work.tensor.name} takes '{found}' for the condition '{wanted}', "
                f"which is {bool(a[p])}"
            )
            yield self.witness.point("value", message, work.write, points, p)

    def _declarations(self) -> Iterator[Finding]:
        numbers: dict[Expr, int] = {Symbol(name): value for name, value in self.sizes.items()}
        x, y, z = self.space.block
        assert math.prod((x, y, z)) == self.space.threads
        for site, exchange in self.exchanges.items():
            problem = Body(exchange.node).check((x, y, z), numbers)
            if problem is not None:
                message = (
                    f"the collective '{exchange.node.name}' does not do what it declares in a "
                    f"block of {(x, y, z)}: {problem}"
                )
                yield self.witness.bare("collective", message, site)
