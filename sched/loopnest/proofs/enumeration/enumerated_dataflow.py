"""Which store each read finds, at every point, and whether it holds what the math needs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from loopnest import kir
from loopnest.proofs.data_indices import Need
from loopnest.proofs.enumeration.access_instances import AccessInstances
from loopnest.proofs.enumeration.held_multisets import Held
from loopnest.proofs.enumeration.value_provenance import ValueProvenance, Writes
from loopnest.proofs.obligations import CollectiveMath, Work
from loopnest.proofs.point_arrays import Array, Flags, Undecidable
from loopnest.proofs.program_model import Access, is_private
from loopnest.proofs.report import Finding
from loopnest.proofs.template_matching import Combined, reducer_of
from loopnest.scalar.enums import IterKind, Memory
from loopnest.scalar.expr import Buffer
from loopnest.tensor.math_snapshot import MathTensor


class EnumeratedDataflow:
    """Decide what reads find, and what outputs hold in the end."""

    def __init__(self, contents: ValueProvenance) -> None:
        self.contents, self.table = contents, contents.table
        self.witness, self.space = self.table.witness, self.table.space

    def findings(self) -> Iterator[Finding]:
        """Yield what does not hold."""
        for work in self.contents.works:
            for need in work.needs:
                finding = self._need(work, need)
                if finding is not None:
                    yield finding
            if work.kind == "merge":
                yield from self._in_step(work)
        for exchange in self.contents.exchanges.values():
            yield from self._exchange(exchange)
        for output in self.table.model.program.outputs:
            yield from self._output(output.name, output.buffer)

    # Reads

    def _need(self, work: Work, need: Need) -> Finding | None:
        if isinstance(need.operand, Combined):
            return self._from_threads(work, need, need.operand)
        mark, writes, source = self.contents.own(need.operand)
        if not mark.points.count:
            return None
        if need.demand == "own":
            return self._own(work, need, mark, writes, source)
        if need.tensor.definition is None:
            return self._input(work, need, mark, writes, source)
        missing = np.flatnonzero(source < 0)
        name = work.tensor.name
        if missing.size:
            message = f"{name} reads an element of {need.tensor.name} that was never stored"
            return self.witness.point("flow", message, mark.access, mark.points, int(missing[0]))
        finding = self._overwritten(work, mark, writes, source)
        if finding is not None or need.demand == "part":
            return finding
        return self._value(work, need, mark, writes, source)

    def _overwritten(
        self, work: Work, mark: AccessInstances, writes: Writes, source: Array
    ) -> Finding | None:
        """Check that no store to a buffer in the same space lies between a read and its source."""
        buffer = mark.access.buffer
        model, span = self.table.model, self.space.span + 1
        others = model.aliases(buffer)
        for access in (a for a in model.accesses_to(others) if a.writes):
            other = self.table.marks(access)
            if not other.points.count:
                continue
            owner, owners = self._owner(buffer, mark), self._owner(buffer, other)
            order = np.argsort(owners * span + other.time)
            times = (owners * span + other.time)[order]
            place = np.searchsorted(times, owner * span + mark.time) - 1
            bad = (place >= 0) & (times[place] > owner * span + writes.time[source])
            first = np.flatnonzero(bad)
            if first.size:
                p = int(first[0])
                message = (
                    f"{work.tensor.name} reads an element of {buffer.name} after a store to "
                    f"{access.buffer.name}, which shares its space"
                )
                return self.witness.pair(
                    "alias", message, mark.access, mark.points, p, access, other.points,
                    int(order[place[p]]),
                )  # fmt: skip
        return None

    def _owner(self, buffer: Buffer, mark: AccessInstances) -> Array:
        if is_private(buffer):
            return mark.points.thread
        if buffer.memory is Memory.SHARED:
            return mark.points.block
        return np.zeros(mark.points.count, np.int64)

    def _input(
        self, work: Work, need: Need, mark: AccessInstances, writes: Writes, source: Array
    ) -> Finding | None:
        name = work.tensor.name
        if mark.access.buffer.tensor != need.tensor.name:
            message = f"{name} reads buffer {mark.access.buffer.name} for input {need.tensor.name}"
            return self.witness.point("flow", message, mark.access, mark.points, 0)
        late = np.flatnonzero(source >= 0)
        if late.size:
            message = f"{name} reads an element of {need.tensor.name} after it was overwritten"
            return self._pair("flow", message, mark, int(late[0]), writes, source)
        shape = self.contents.shape(need.tensor.logical)
        wanted = self.table.linear(mark.points, need.element, shape)
        bad = np.flatnonzero(wanted != self._written(mark, shape))
        if not bad.size:
            return None
        p = int(bad[0])
        found = [int(i[p]) for i in self.table.element(mark)]
        message = (
            f"{name} needs {need.tensor.name}{self._element(mark, need, p)} and reads "
            f"element {found}"
        )
        return self.witness.point("flow", message, mark.access, mark.points, p)

    def _written(self, mark: AccessInstances, shape: Sequence[int]) -> Array:
        result = np.zeros(mark.points.count, np.int64)
        for value, extent in zip(self.table.element(mark), shape if shape else (1,), strict=True):
            result = result * extent + value
        return result

    def _element(self, mark: AccessInstances, need: Need, p: int) -> list[int]:
        return [int(self.table.array(mark.points, e)[p]) for e in need.element]

    def _pair(
        self, kind: str, message: str, mark: AccessInstances, p: int, writes: Writes, source: Array
    ) -> Finding:
        other = writes.marks[int(writes.work[source[p]])]
        point = int(writes.point[source[p]])
        return self.witness.pair(
            kind, message, mark.access, mark.points, p, other.access, other.points, point
        )

    # Whole values

    def _value(
        self, work: Work, need: Need, mark: AccessInstances, writes: Writes, source: Array
    ) -> Finding | None:
        """Check that each source holds the whole value of the element that is needed."""
        shape = self.contents.shape(need.tensor.logical)
        wanted = self.table.linear(mark.points, need.element, shape)
        finishes = work.kind == "finish"
        counts = self._counts(work)[mark.where]
        for kind, bad, text in self._problems(need.tensor, source, writes, wanted, finishes):
            first = np.flatnonzero(bad & counts)
            if first.size:
                p = int(first[0])
                element = self._element(mark, need, p)
                message = f"{work.tensor.name} needs {need.tensor.name}{element}, {text}"
                return self._pair(kind, message, mark, p, writes, source)
        return None

    def _counts(self, work: Work) -> Flags:
        """Return where it matters what a store reads: not where it keeps what is in no tensor."""
        points = self.space.points[work.site]
        if work.store.storage.memory is Memory.GLOBAL or work.kind in ("init", "partial"):
            return np.ones(points.count, np.bool_)
        axes = work.tensor.claims(whole=work.store.role in kir.WHOLE_ELEMENTS)
        shape = self.contents.shape(axes)
        folded = [a.kind is IterKind.REDUCTION for a in axes]
        kept = [
            (c, s) for c, s, f in zip(work.store.coordinate, shape, folded, strict=True) if not f
        ]
        inside = self.table.linear(points, [c for c, _ in kept], [s for _, s in kept])
        result: Flags = inside >= 0
        return result

    def _problems(
        self, tensor: MathTensor, source: Array, writes: Writes, wanted: Array, finishes: bool
    ) -> Iterator[tuple[str, Flags, str]]:
        mine = writes.tensor[source] == self.contents.numbers[tensor.name]
        yield "flow", ~mine, "the last store there is another tensor's"
        final = writes.final[source]
        claimed = writes.element[source]
        yield "flow", final & (claimed != wanted), "the last store there claims another element"
        partial = ~final
        if not partial.any():
            return
        if not finishes and self._is_finished(tensor):
            yield "accumulation", partial, "the last store there is a partial result"
        update = partial & ~writes.starts[source] & (tensor.scan is None)
        yield "flow", update & (claimed != wanted), "the last store there claims another element"
        held = self.contents.held(writes.marks[0].access.buffer).take(source)
        for bad, text in self._uncovered(tensor, held, wanted):
            yield "accumulation", partial & bad, text

    def _uncovered(
        self, tensor: MathTensor, held: Held, wanted: Array
    ) -> Iterator[tuple[Flags, str]]:
        """Yield where a multiset is not the domain of an element, and why."""
        known = wanted >= 0
        domain = self.contents.wanted(tensor)
        if not domain.count.size:
            return
        domain = domain.take(np.where(known, wanted, 0))
        short = known & held.valid & (held.count < domain.count)
        yield short, "which has not accumulated its whole domain by then"
        text = "which accumulates an element twice, or without an init, or of another element"
        yield known & ~held.same(domain), text
        if reducer_of(tensor).ordered:
            text = f"whose elements are not combined in order; {reducer_of(tensor).name} need not "
            yield known & ~held.order.kept, text + "commute"

    def _is_finished(self, tensor: MathTensor) -> bool:
        return any(w.tensor is tensor and w.kind == "finish" for w in self.contents.works)

    # Partial results

    def _own(
        self, work: Work, need: Need, mark: AccessInstances, writes: Writes, source: Array
    ) -> Finding | None:
        """Check that an update reads the partial result that it continues."""
        name = work.tensor.name
        missing = np.flatnonzero(source < 0)
        if missing.size:
            message = f"{name} accumulates into an element that was never initialised"
            return self.witness.point(
                "accumulation", message, mark.access, mark.points, int(missing[0])
            )
        finding = self._overwritten(work, mark, writes, source)
        if finding is not None:
            return finding
        bad = writes.tensor[source] != self.contents.numbers[need.tensor.name]
        bad |= writes.final[source]
        if need.tensor is work.tensor:
            bad |= self.table.marks(work.write).key[mark.where] != mark.key
        else:
            bad |= self._out_of_step(work, mark, source, writes)
        first = np.flatnonzero(bad)
        if not first.size:
            return None
        message = f"{name} continues what is no partial result of its own"
        return self._pair("accumulation", message, mark, int(first[0]), writes, source)

    def _out_of_step(
        self, work: Work, mark: AccessInstances, source: Array, writes: Writes
    ) -> Flags:
        """Return where another component has not taken in the same elements as this one."""
        owned = [n.operand for n in work.needs if n.demand == "own" and n.tensor is work.tensor]
        if not owned:
            raise Undecidable(f"{work.tensor.name} is computed from other components alone")
        mine = owned[0]
        assert isinstance(mine, Access)
        own, _, place = self.contents.own(mine)
        if bool((place < 0).any()) or own.where.size != mark.where.size:
            return np.ones(source.size, np.bool_)
        held = self.contents.held(mine.buffer).take(place)
        other = self.contents.held(mark.access.buffer).take(source)
        return ~held.same(other)

    def _in_step(self, work: Work) -> Iterator[Finding]:
        """Check that all components of another partial result hold the same elements."""
        parts = [self.contents.part(work, n) for n in work.needs if n.demand == "part"]
        for need in work.needs:
            if need.demand != "part" or need.tensor is not work.tensor:
                continue
            if work.tensor.scan is not None:
                continue  # readers ask what is held, whatever was claimed
            held = self.contents.part(work, need)
            first = np.flatnonzero(held.valid & ~self.contents.claimed(work, held))
            if first.size:
                points = self.space.points[work.site]
                message = f"{work.tensor.name} takes in a part of another element than it claims"
                yield self.witness.point("claim", message, work.write, points, int(first[0]))
                return
        for other in parts[1:]:
            first = np.flatnonzero(~parts[0].same(other))
            if first.size:
                points = self.space.points[work.site]
                message = f"{work.tensor.name} takes in components of different partial results"
                yield self.witness.point("accumulation", message, work.write, points, int(first[0]))
                return

    def _from_threads(self, work: Work, need: Need, operand: Combined) -> Finding | None:
        """Check a use of a collective's result."""
        points = self.space.points[work.site]
        if need.demand != "whole" or not points.count:
            return None
        held = self.contents.found(work.site, operand, need.tensor)
        shape = self.contents.shape(need.tensor.logical)
        wanted = self.table.linear(points, need.element, shape)
        for bad, text in self._uncovered(need.tensor, held, wanted):
            first = np.flatnonzero(bad)
            if first.size:
                p = int(first[0])
                element = [int(self.table.array(points, e)[p]) for e in need.element]
                message = f"{work.tensor.name} needs {need.tensor.name}{element}, {text}"
                return self.witness.point("accumulation", message, work.write, points, p)
        return None

    def _exchange(self, exchange: CollectiveMath) -> Iterator[Finding]:
        """Check that what the threads of a collective contribute is there and of one kind.

        Where no store takes its result, nothing is asked: a block may combine what is left over
        from rows that the tensor does not have.
        """
        points = self.space.points[exchange.site]
        if not points.count:
            return
        used = self.contents.used(exchange)
        parts = []
        for arg, tensor in zip(exchange.args, exchange.tensors, strict=True):
            part = self.contents.found(exchange.site, arg, tensor)
            first = np.flatnonzero(~part.valid & used)
            if first.size:
                message = f"a thread contributes what is no partial result of {tensor.name}"
                access = arg if isinstance(arg, Access) else None
                yield self.witness.at(
                    "accumulation", message, exchange.site, access, points, int(first[0])
                )
                return
            parts.append(part)
        for one, *others in exchange.node.by_value(parts):
            for other in others:
                first = np.flatnonzero(~one.same(other) & used)
                if first.size:
                    message = "a thread contributes components of different partial results"
                    yield self.witness.at(
                        "accumulation", message, exchange.site, None, points, int(first[0])
                    )
                    return

    # Outputs

    def _output(self, name: str, buffer: Buffer) -> Iterator[Finding]:
        tensor = self.contents.math.tensor(name)
        if tensor is None:
            yield self.witness.plain("output", f"the math has no output '{name}'", name)
            return
        shape = self.contents.shape(tensor.logical)
        if not math.prod(shape):
            return
        finding = self._stored(tensor, shape, buffer)
        if finding is not None:
            yield finding

    def _stored(self, tensor: MathTensor, shape: tuple[int, ...], buffer: Buffer) -> Finding | None:
        writes = self.contents.writes(buffer)
        wanted = np.arange(math.prod(shape))
        index = np.unravel_index(wanted, shape) if shape else (wanted,)
        place = np.zeros_like(wanted)
        for value, stride in zip(index, self.table.strides[buffer], strict=True):
            place = place + value * stride
        source = writes.source(place, np.full(wanted.size, self.space.span))
        missing = np.flatnonzero(source < 0)
        if missing.size:
            element = _unraveled(int(missing[0]), shape)
            message = f"element {list(element)} of output {tensor.name} is never stored"
            return self.witness.plain("output", message, tensor.name, element)
        for kind, bad, text in self._problems(tensor, source, writes, wanted, False):
            first = np.flatnonzero(bad)
            if first.size:
                p = int(first[0])
                element = _unraveled(p, shape)
                other = writes.marks[int(writes.work[source[p]])]
                message = f"element {list(element)} of output {tensor.name}: {text}"
                return self.witness.point(
                    kind if kind == "accumulation" else "output", message, other.access,
                    other.points, int(writes.point[source[p]]), element,
                )  # fmt: skip
        return self._repeated(tensor, writes)

    def _repeated(self, tensor: MathTensor, writes: Writes) -> Finding | None:
        """Name an element that is written more than once: equal values, or it failed before."""
        chains = np.flatnonzero(writes.starts)
        again = np.flatnonzero(writes.key[chains][1:] == writes.key[chains][:-1])
        if not again.size:
            return None
        same = bool(writes.final.all()) or self._complete(tensor, writes, chains)
        status: Literal["note", "refuted"] = "note" if same else "refuted"
        message = f"an element of output {tensor.name} is written more than once" + (
            ", with equal values" if same else ""
        )
        first, second = chains[again[0]], chains[again[0] + 1]
        a, b = writes.marks[int(writes.work[first])], writes.marks[int(writes.work[second])]
        return self.witness.pair(
            "redundant" if same else "output", message, b.access, b.points,
            int(writes.point[second]), a.access, a.points, int(writes.point[first]), status,
        )  # fmt: skip

    def _complete(self, tensor: MathTensor, writes: Writes, chains: Array) -> bool:
        """Whether every value that is stored is whole, or no more than an identity yet."""
        ends = np.r_[chains[1:], writes.key.size] - 1
        held = self.contents.held(writes.marks[0].access.buffer).take(ends)
        element = np.maximum(writes.element[ends], 0)
        whole = held.same(self.contents.wanted(tensor).take(element))
        return bool((writes.final[ends] | whole | (held.valid & (held.count == 0))).all())


def _unraveled(number: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple([int(i) for i in np.unravel_index(number, shape)]) if shape else ()
