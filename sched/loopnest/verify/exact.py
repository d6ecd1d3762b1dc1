"""The facts at given sizes, decided by looking at every point.

Every access gets a key (which element of which copy of the buffer) and a time. The source of a
read is the last write of its key before it; partial results are followed from their init on.
Nothing here is approximate: what fails has a witness, what does not fail holds at these sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from loopnest import kir
from loopnest.buffers import Buffer
from loopnest.enums import IterKind, Memory, ParallelType
from loopnest.expr import Expr
from loopnest.math_snapshot import MathSnapshot, MathTensor
from loopnest.verify.domains import logical_numbers
from loopnest.verify.lanes import Array, Enumeration, Flags, Points, number
from loopnest.verify.model import Access, Model, Site, is_private
from loopnest.verify.obligations import Need, Work
from loopnest.verify.report import Finding
from loopnest.verify.witness import Witness

_OUTSIDE = -1


@dataclass(slots=True)
class Marks:
    """An access at every point at which it happens.

    `where` numbers the points of its site, `key` the elements, `time` orders them.
    """

    access: Access
    work: Work
    need: Need | None
    points: Points
    where: Array
    index: tuple[Array, ...]
    key: Array
    time: Array


@dataclass(slots=True)
class Writes:
    """All writes of one buffer, in order of key and time.

    Args:
        mark, point: which access, and which of its points.
        key, time: sorted.
        starts: whether a write begins a value (all but updates).
        final: whether it stores a whole value.
        tensor: the number of the tensor that it claims.
        element: the linear logical index that it claims, -1 outside of the tensor.
        count: updates since the start, itself included.
        good: whether these are updates of one element, by different elements of its domain.
        last: the linear root coordinate of the update, -1 for others.
    """

    mark: Array
    point: Array
    key: Array
    time: Array
    starts: Flags
    final: Flags
    tensor: Array
    element: Array
    count: Array
    good: Flags
    last: Array


class Exact:
    """Decide the facts at one set of sizes.

    Args:
        model, math: the program and what it should compute.
        works: its stores, with what the math demands.
        sizes: the value of every size symbol.
        most: at most so many points a statement.
    """

    def __init__(
        self,
        model: Model,
        math_: MathSnapshot,
        works: Sequence[Work],
        sizes: Mapping[str, int],
        most: int = 1 << 20,
    ) -> None:
        self.model, self.math, self.works, self.sizes = model, math_, works, sizes
        self.space = Enumeration(model, sizes, most)
        self.witness = Witness(model, sizes, self.space.grid, self.space.block)
        self.marks: list[Marks] = []
        self.shapes = {b: tuple([number(s, sizes) for s in b.shape]) for b in model.buffers()}
        self.numbers = {t.name: n for n, t in enumerate(math_.tensors)}

    def findings(self) -> Iterator[Finding]:
        """Yield what does not hold at these sizes, the most basic facts first."""
        found = list(self._layouts())
        found += list(self._bounds())
        yield from found
        if found:
            return
        yield from self._equalities()
        yield from self._barriers()
        by_buffer: dict[Buffer, list[Marks]] = {}
        for mark in self.marks:
            by_buffer.setdefault(mark.access.buffer, []).append(mark)
        writes = {b: self._writes(b, marks) for b, marks in by_buffer.items()}
        for work in self.works:
            if work.store.role != "init" and work.store.storage.memory is Memory.GLOBAL:
                yield from self._claim(work)
        for buffer, marks in by_buffer.items():
            yield from self._flow(buffer, marks, writes[buffer])
            yield from self._races(buffer, marks)
        yield from self._outputs(writes)

    # Evaluation

    def _array(self, points: Points, site: Site, node: Expr) -> Array:
        return points.array(node, site.lets, self.sizes)

    def _shape(self, axes: Sequence[Any]) -> tuple[int, ...]:
        return tuple([number(axis.extent, self.sizes) for axis in axes])

    def _linear(
        self, points: Points, site: Site, index: Sequence[Expr], shape: Sequence[int]
    ) -> Array:
        """Return the row-major number of an element, -1 where it lies outside of the shape."""
        result = np.zeros(points.count, np.int64)
        inside = np.ones(points.count, np.bool_)
        for node, extent in zip(index, shape, strict=True):
            value = self._array(points, site, node)
            inside &= (value >= 0) & (value < extent)
            result = result * extent + value
        return np.where(inside, result, _OUTSIDE)

    # Layouts and bounds

    def _layouts(self) -> Iterator[Finding]:
        for buffer in self.model.buffers():
            shape = self.shapes[buffer]
            strides = [number(s, self.sizes) for s in buffer.strides]
            size = number(buffer.size, self.sizes)
            if 0 in shape:
                continue
            last = sum([(e - 1) * s for e, s in zip(shape, strides, strict=True)])
            if last >= size:
                yield self.witness.plain(
                    "layout", f"buffer {buffer.name} has {size} elements, its shape {list(shape)} "
                    f"and strides {strides} reach element {last}", buffer.tensor,
                )  # fmt: skip
            need = 1
            for extent, stride in sorted(zip(shape, strides, strict=True), key=lambda p: p[1]):
                if extent > 1 and stride < need:
                    yield self.witness.plain(
                        "layout", f"two elements of buffer {buffer.name} share a place: shape "
                        f"{list(shape)}, strides {strides}", buffer.tensor,
                    )  # fmt: skip
                    break
                need = max(need, stride * extent)
        yield from self._parameters()

    def _parameters(self) -> Iterator[Finding]:
        for param in self.model.program.params:
            tensor = self.math.tensor(param.buffer.tensor) if param.buffer is not None else None
            if tensor is None or param.buffer is None:
                continue
            wanted, found = self._shape(tensor.logical), self.shapes[param.buffer]
            if (wanted or (1,)) != found:
                yield self.witness.plain(
                    "layout", f"buffer {param.name} has the shape {list(found)}, its tensor "
                    f"{list(wanted)}", tensor.name,
                )  # fmt: skip

    def _bounds(self) -> Iterator[Finding]:
        for work in self.works:
            points = self.space.points[work.site]
            for need in (*work.needs, None):
                access = work.write if need is None else need.access
                mark, finding = self._mark(work, need, access, points)
                if finding is not None:
                    yield finding
                elif mark is not None:
                    self.marks.append(mark)

    def _mark(
        self, work: Work, need: Need | None, access: Access, points: Points
    ) -> tuple[Marks | None, Finding | None]:
        buffer = access.buffer
        where = np.arange(points.count, dtype=np.int64)
        if access.guards:
            where = where[points.where(access.guards, access.moment.lets, self.sizes)]
            points = points.take(where)
        if not points.count:
            return None, None
        if self.model.missing(access):
            message = f"{work.tensor.name} uses buffer {buffer.name}, which is not in scope"
            return None, self.witness.point("scope", message, work, points, 0, access)
        shape = self.shapes[buffer]
        extents = (number(buffer.size, self.sizes),) if access.flat else shape
        index = tuple([self._array(points, access.moment, i) for i in access.index])
        for axis, (value, extent) in enumerate(zip(index, extents, strict=True)):
            bad = np.flatnonzero((value < 0) | (value >= extent))
            if bad.size:
                verb = "writes" if access.writes else "reads"
                which = "" if access.flat else f"axis {axis} of "
                message = (
                    f"{work.tensor.name} {verb} out of bounds: index {value[bad[0]]} for {which}"
                    f"{buffer.name}, which has extent {extent}"
                )
                at_ = self.witness.point("bounds", message, work, points, int(bad[0]), access)
                return None, at_
        if access.flat and len(shape) > 1:
            index = tuple(np.unravel_index(index[0], shape)) if 0 not in shape else index
        element = np.zeros(points.count, np.int64)
        for value, extent in zip(index, shape, strict=True):
            element = element * extent + value
        key = element + math.prod(shape) * self._copy(access, points)
        return Marks(
            access, work, need, points, where, index, key, self._time(access, points)
        ), None

    def _copy(self, access: Access, points: Points) -> Array:
        """Return the number of the buffer's copy: of which thread or block, made when."""
        made = self.model.lifetime(access)
        if made is None:
            return np.zeros(points.count, np.int64)
        owner = points.thread if is_private(access.buffer) else points.block
        return owner * self.space.span + self._moment(made, points)

    def _time(self, access: Access, points: Points) -> Array:
        if access.moment is access.site:
            return points.time
        return self._moment(access.moment, points)

    def _moment(self, earlier: Site, points: Points) -> Array:
        """Return the time at which an enclosing body's statement ran for each of the points."""
        start, terms = self.space.formula(earlier)
        result = np.full(points.count, start, np.int64)
        for var, step in terms:
            result += points.values[var] * step
        return result

    # Writes and what they hold

    def _writes(self, buffer: Buffer, marks: Sequence[Marks]) -> Writes | None:
        writes = [(n, m) for n, m in enumerate(marks) if m.access.writes]
        if not writes:
            return None
        columns: dict[str, list[Array]] = {}
        for n, mark in writes:
            work, points = mark.work, mark.points
            role, count = work.store.role, points.count
            root = self._linear(
                points, work.site, work.store.coordinate, self._shape(work.tensor.root)
            )
            element = np.full(count, _OUTSIDE)
            if role != "init":
                element = self._linear(
                    points, work.site, work.element, self._shape(work.tensor.logical)
                )
            row = {
                "mark": np.full(count, n), "point": np.arange(count), "key": mark.key,
                "time": mark.time, "starts": np.full(count, role != "update"),
                "final": np.full(count, work.is_final),
                "tensor": np.full(count, self.numbers[work.tensor.name]),
                "element": element,
                "last": root if role == "update" else np.full(count, _OUTSIDE),
            }  # fmt: skip
            for name, value in row.items():
                columns.setdefault(name, []).append(value)
        whole = {name: np.concatenate(parts) for name, parts in columns.items()}
        order = np.lexsort((whole["mark"], whole["time"], whole["key"]))
        whole = {name: value[order] for name, value in whole.items()}
        taken, good = _chains(whole)
        return Writes(
            whole["mark"], whole["point"], whole["key"], whole["time"],
            whole["starts"].astype(np.bool_), whole["final"].astype(np.bool_), whole["tensor"],
            whole["element"], taken, good, whole["last"],
        )  # fmt: skip

    # Claims, coordinates in values

    def _claim(self, work: Work) -> Iterator[Finding]:
        """Check that a store to a whole tensor writes the element that it claims."""
        mark = next((m for m in self.marks if m.work is work and m.access.writes), None)
        if mark is None:
            return
        shape = self._shape(work.tensor.logical)
        claimed = self._linear(mark.points, work.site, work.element, shape)
        written = self._written(mark, shape)
        bad = np.flatnonzero(claimed != written)
        if bad.size:
            p = int(bad[0])
            element = [int(self._array(mark.points, work.site, e)[p]) for e in work.element]
            message = (
                f"{work.tensor.name} writes the element {[int(i[p]) for i in mark.index]} "
                f"and claims {element}"
            )
            yield self.witness.point("claim", message, work, mark.points, p, work.write)

    def _written(self, mark: Marks, shape: Sequence[int]) -> Array:
        result = np.zeros(mark.points.count, np.int64)
        for value, extent in zip(mark.index, shape if shape else (1,), strict=True):
            result = result * extent + value
        return result

    def _equalities(self) -> Iterator[Finding]:
        for work in self.works:
            points = self.space.points[work.site]
            if not points.count:
                continue
            for wanted, found in work.equalities:
                a = self._array(points, work.site, wanted)
                bad = np.flatnonzero(a != self._array(points, work.site, found))
                if bad.size:
                    p = int(bad[0])
                    message = f"{work.tensor.name} uses {found} for the coordinate {int(a[p])}"
                    yield self.witness.point("claim", message, work, points, p, work.write)

    # Flow

    def _flow(
        self, buffer: Buffer, marks: Sequence[Marks], writes: Writes | None
    ) -> Iterator[Finding]:
        for mark in marks:
            if mark.access.writes or mark.need is None:
                continue
            source = _sources(mark.key, mark.time, writes)
            finding = self._read(mark, mark.need, source, marks, writes)
            if finding is not None:
                yield finding

    def _read(
        self,
        mark: Marks,
        need: Need,
        source: Array,
        marks: Sequence[Marks],
        writes: Writes | None,
    ) -> Finding | None:
        if need.own:
            return self._own(mark, need, source, marks, writes)
        work, name = mark.work, mark.work.tensor.name
        shape = self._shape(need.tensor.logical)
        wanted = self._linear(mark.points, work.site, need.element, shape)
        if need.tensor.definition is None:
            return self._input(mark, need, source, marks, writes, wanted, shape)
        missing = np.flatnonzero(source < 0)
        if missing.size:
            message = f"{name} reads an element of {need.tensor.name} that was never stored"
            return self.witness.point(
                "flow", message, work, mark.points, int(missing[0]), mark.access
            )
        assert writes is not None
        return self._value(mark, need, source, marks, writes, wanted)

    def _input(
        self,
        mark: Marks,
        need: Need,
        source: Array,
        marks: Sequence[Marks],
        writes: Writes | None,
        wanted: Array,
        shape: Sequence[int],
    ) -> Finding | None:
        work, name = mark.work, mark.work.tensor.name
        if mark.access.buffer.tensor != need.tensor.name:
            message = f"{name} reads buffer {mark.access.buffer.name} for input {need.tensor.name}"
            return self.witness.point("flow", message, work, mark.points, 0, mark.access)
        late = np.flatnonzero(source >= 0)
        if late.size:
            assert writes is not None
            p = int(late[0])
            other = marks[int(writes.mark[source[p]])]
            message = f"{name} reads an element of {need.tensor.name} after it was overwritten"
            return self.witness.pair(
                "flow", message, mark, p, other, int(writes.point[source[p]])
            )  # fmt: skip
        bad = np.flatnonzero(wanted != self._written(mark, shape))
        if not bad.size:
            return None
        return self._wrong_element(mark, need, int(bad[0]))

    def _wrong_element(self, mark: Marks, need: Need, p: int) -> Finding:
        wanted = [int(self._array(mark.points, mark.work.site, e)[p]) for e in need.element]
        found = [int(i[p]) for i in mark.index]
        message = (
            f"{mark.work.tensor.name} needs {need.tensor.name}{wanted} and reads element {found}"
        )
        return self.witness.point("flow", message, mark.work, mark.points, p, mark.access)

    def _value(
        self,
        mark: Marks,
        need: Need,
        source: Array,
        marks: Sequence[Marks],
        writes: Writes,
        wanted: Array,
    ) -> Finding | None:
        """Check that each source holds the whole value of the element that is needed."""
        problems = self._problems(need.tensor, source, writes, wanted, mark.work.store.role)
        for kind, bad, text in problems:
            first = np.flatnonzero(bad)
            if first.size:
                p = int(first[0])
                element = [
                    int(self._array(mark.points, mark.work.site, e)[p]) for e in need.element
                ]
                message = f"{mark.work.tensor.name} needs {need.tensor.name}{element}, {text}"
                other = marks[int(writes.mark[source[p]])]
                return self.witness.pair(
                    kind, message, mark, p, other, int(writes.point[source[p]])
                )  # fmt: skip
        return None

    def _problems(
        self, tensor: MathTensor, source: Array, writes: Writes, wanted: Array, role: str
    ) -> Iterator[tuple[str, Flags, str]]:
        mine = writes.tensor[source] == self.numbers[tensor.name]
        yield "flow", ~mine, "the last store there is another tensor's"
        final = writes.final[source]
        started = writes.count[source] == 0
        holds = writes.element[source] == wanted
        yield "flow", final & ~holds, "the last store there claims another element"
        partial = ~final
        if role != "finish" and self._is_finished(tensor):
            yield "accumulation", partial, "the last store there is a partial result"
        expected = self._expected(tensor)
        known = np.where(wanted >= 0, wanted, 0)
        count = expected[known] if expected.size else np.zeros_like(known)
        yield "flow", partial & ~started & ~holds, "the last store there claims another element"
        yield (
            "accumulation", partial & ~writes.good[source],
            "which accumulates an element twice, or without an init, or of another element",
        )  # fmt: skip
        yield (
            "accumulation", partial & (wanted >= 0) & (writes.count[source] != count),
            "which has not accumulated its whole domain by then",
        )  # fmt: skip

    def _is_finished(self, tensor: MathTensor) -> bool:
        return any(w.tensor is tensor and w.store.role == "finish" for w in self.works)

    def _expected(self, tensor: MathTensor) -> Array:
        """Return how many elements each logical element of a reduction folds."""
        root, logical = self._shape(tensor.root), self._shape(tensor.logical)
        total = math.prod(logical)
        if not tensor.is_factored:
            folded = [
                e for e, a in zip(root, tensor.root, strict=True) if a.kind is IterKind.REDUCTION
            ]
            return np.full(total, math.prod(folded))
        return np.bincount(logical_numbers(tensor, root, logical, self.sizes), minlength=total)

    def _own(
        self,
        mark: Marks,
        need: Need,
        source: Array,
        marks: Sequence[Marks],
        writes: Writes | None,
    ) -> Finding | None:
        """Check that an update reads the partial result that it continues."""
        work, name = mark.work, mark.work.tensor.name
        missing = np.flatnonzero(source < 0)
        if missing.size:
            message = f"{name} accumulates into an element that was never initialised"
            return self.witness.point(
                "accumulation", message, work, mark.points, int(missing[0]), mark.access
            )
        assert writes is not None
        bad = (writes.tensor[source] != self.numbers[need.tensor.name]) | writes.final[source]
        if need.tensor is work.tensor:
            write = next(m for m in self.marks if m.work is work and m.access.writes)
            bad |= write.key[mark.where] != mark.key
        else:
            bad |= self._out_of_step(work, mark, source, writes)
        first = np.flatnonzero(bad)
        if not first.size:
            return None
        p = int(first[0])
        message = f"{name} continues what is no partial result of its own"
        other = marks[int(writes.mark[source[p]])]
        return self.witness.pair(
            "accumulation", message, mark, p, other, int(writes.point[source[p]])
        )  # fmt: skip

    def _out_of_step(self, work: Work, mark: Marks, source: Array, writes: Writes) -> Flags:
        """Return where another component has not taken in the same elements as this one."""
        mine = next(
            m for m in self.marks
            if m.work is work and m.need is not None and m.need.own and m.need.tensor is work.tensor
        )  # fmt: skip
        own = self._writes(
            mine.access.buffer, [m for m in self.marks if m.access.buffer is mine.access.buffer]
        )
        place = _sources(mine.key, mine.time, own)
        if own is None or bool((place < 0).any()) or mine.where.size != mark.where.size:
            return np.ones(source.size, np.bool_)
        same = (own.count[place] == writes.count[source]) & (own.last[place] == writes.last[source])
        result: Flags = ~same
        return result

    # Outputs

    def _outputs(self, writes: Mapping[Buffer, Writes | None]) -> Iterator[Finding]:
        for output in self.model.program.outputs:
            tensor = self.math.tensor(output.name)
            if tensor is None:
                message = f"the math has no output '{output.name}'"
                yield self.witness.plain("output", message, output.name)
                continue
            shape = self._shape(tensor.logical)
            if not math.prod(shape):
                continue
            held = writes.get(output.buffer)
            finding = self._output(tensor, shape, output.buffer, held)
            if finding is not None:
                yield finding

    def _output(
        self, tensor: MathTensor, shape: tuple[int, ...], buffer: Buffer, writes: Writes | None
    ) -> Finding | None:
        wanted = np.arange(math.prod(shape))
        source = _sources(wanted, np.full(wanted.size, self.space.span), writes)
        missing = np.flatnonzero(source < 0)
        if missing.size or writes is None:
            index = [int(i) for i in np.unravel_index(int(missing[0]), shape)] if shape else []
            return self.witness.plain(
                "output", f"element {index} of output {tensor.name} is never stored", tensor.name,
                tuple(index),
            )  # fmt: skip
        marks = [m for m in self.marks if m.access.buffer is buffer]
        for kind, bad, text in self._problems(tensor, source, writes, wanted, ""):
            first = np.flatnonzero(bad)
            if first.size:
                p = int(first[0])
                index = [int(i) for i in np.unravel_index(p, shape)] if shape else []
                other = marks[int(writes.mark[source[p]])]
                message = f"element {index} of output {tensor.name}: {text}"
                return self.witness.point(
                    kind if kind == "accumulation" else "output", message, other.work, other.points,
                    int(writes.point[source[p]]), other.access, tuple(index),
                )  # fmt: skip
        return self._repeated(tensor, marks, writes)

    def _repeated(
        self, tensor: MathTensor, marks: Sequence[Marks], writes: Writes
    ) -> Finding | None:
        """Name an element that is written more than once: equal values, or it failed before."""
        chains = np.flatnonzero(writes.starts)
        again = np.flatnonzero(writes.key[chains][1:] == writes.key[chains][:-1])
        if not again.size:
            return None
        first, second = chains[again[0]], chains[again[0] + 1]
        a, b = marks[int(writes.mark[first])], marks[int(writes.mark[second])]
        ends = np.r_[chains[1:], writes.key.size] - 1
        complete = writes.good[ends] & (
            writes.count[ends] == self._expected(tensor)[writes.key[ends]]
        )
        identity = writes.count[ends] == 0  # stored again before anything is folded in
        same = bool((writes.final[ends] | complete | identity).all())
        status: Literal["note", "refuted"] = "note" if same else "refuted"
        message = f"an element of output {tensor.name} is written more than once" + (
            ", with equal values" if same else ""
        )
        return self.witness.pair(
            "redundant" if same else "output", message, b, int(writes.point[second]),
            a, int(writes.point[first]), status,
        )  # fmt: skip

    # Races and barriers

    def _races(self, buffer: Buffer, marks: Sequence[Marks]) -> Iterator[Finding]:
        if not any(m.access.writes for m in marks):
            return
        if not is_private(buffer):
            shared = buffer.memory is Memory.SHARED
            blocks = [m.points.block for m in marks]
            between = [self._epoch(m, ("grid",)) for m in marks]
            if not shared:
                yield from self._conflicts(buffer, marks, blocks, between, "threads")
            teams = math.prod(self.space.grid)
            together = [
                self._epoch(m, ("grid", "block")) * teams + b
                for m, b in zip(marks, blocks, strict=True)
            ]
            owner = [m.points.thread for m in marks]
            yield from self._conflicts(buffer, marks, owner, together, "threads")
        for loop, inside in self._unordered(buffer, marks):
            owner = [m.points.values[loop.var] for m in inside]
            epoch = [self._outer(m, loop) for m in inside]
            what = f"iterations of the {loop.parallel.value} loop {loop.index}"
            yield from self._conflicts(buffer, inside, owner, epoch, what)

    def _unordered(
        self, buffer: Buffer, marks: Sequence[Marks]
    ) -> Iterator[tuple[kir.Loop, list[Marks]]]:
        """Yield the loops that promise any order, with the accesses of `buffer` inside."""
        loops: dict[kir.Loop, list[Marks]] = {}
        for mark in marks:
            made = self.model.lifetime(mark.access)
            for loop in mark.work.site.loops:
                free = loop.parallel in (ParallelType.cpu_parallel, ParallelType.vectorize)
                if free and (made is None or loop not in made.loops):
                    loops.setdefault(loop, []).append(mark)
        yield from loops.items()

    def _outer(self, mark: Marks, loop: kir.Loop) -> Array:
        """Return the number of the run of `loop` that each point belongs to."""
        result = mark.points.thread.copy()
        for outer in mark.work.site.serial:
            if outer is loop:
                break
            result = result * max(self.space.extent(outer), 1) + mark.points.values[outer.var]
        return result

    def _epoch(self, mark: Marks, scopes: tuple[str, ...]) -> Array:
        """Return how many barriers of these scopes came before each access."""
        times = [
            self.space.points[b].time for b in self.model.barriers
            if isinstance(b.node, kir.Barrier) and b.node.scope in scopes
        ]  # fmt: skip
        if not times:
            return np.zeros(mark.key.size, np.int64)
        return np.searchsorted(np.unique(np.concatenate(times)), mark.time)

    def _conflicts(
        self,
        buffer: Buffer,
        marks: Sequence[Marks],
        owner: Sequence[Array],
        epoch: Sequence[Array],
        what: str,
    ) -> Iterator[Finding]:
        key = np.concatenate([m.key for m in marks])
        who = np.concatenate(owner)
        when = np.concatenate(epoch)
        writes = np.concatenate([np.full(m.key.size, m.access.writes) for m in marks])
        order = np.lexsort((~writes, when, key))
        key, who, when, writes = key[order], who[order], when[order], writes[order]
        start = np.flatnonzero(np.r_[True, (key[1:] != key[:-1]) | (when[1:] != when[:-1])])
        group = np.repeat(np.arange(start.size), np.diff(np.r_[start, key.size]))
        bad = np.flatnonzero((who != who[start][group]) & writes[start][group])
        if not bad.size:
            return
        time = np.concatenate([m.time for m in marks])[order]
        if _one_value(marks) and _own_first(group, group[bad], who, time, writes):
            return
        source = np.concatenate([np.full(m.key.size, n) for n, m in enumerate(marks)])[order]
        point = np.concatenate([np.arange(m.key.size) for m in marks])[order]
        b = int(bad[0])
        a = int(start[group[b]])
        message = f"two {what} use one element of {buffer.name}, and one of them writes"
        yield self.witness.pair(
            "race", message, marks[int(source[b])], int(point[b]),
            marks[int(source[a])], int(point[a]),
        )  # fmt: skip

    def _barriers(self) -> Iterator[Finding]:
        for site in self.model.barriers:
            points = self.space.points[site]
            assert isinstance(site.node, kir.Barrier)
            team = points.block if site.node.scope != "grid" else np.zeros_like(points.block)
            size = self.space.threads * (
                1 if site.node.scope != "grid" else math.prod(self.space.grid)
            )
            runs, count = np.unique(team * self.space.span + points.time, return_counts=True)
            del runs
            if site.node.scope != "warp" and bool((count != size).any()):
                message = f"not all threads reach the {site.node.scope} barrier"
                yield self.witness.bare("barrier", message, site)


def _chains(columns: Mapping[str, Array]) -> tuple[Array, Flags]:
    """Return, for each write, the updates since its chain's start, and whether they are sound."""
    key, starts = columns["key"], columns["starts"].astype(np.bool_)
    place = np.arange(key.size)
    fresh = np.r_[True, key[1:] != key[:-1]]
    begin = np.maximum.accumulate(np.where(starts | fresh, place, 0))
    count = np.where(starts, 0, place - begin + (fresh & ~starts)[begin])
    bad = ~starts & (columns["last"] < 0)
    bad |= fresh & ~starts  # an update without a start
    previous = np.r_[0, place[:-1]]
    second = ~starts & ~starts[previous] & ~fresh
    bad |= second & (columns["element"] != columns["element"][previous])
    changed = ~starts & (columns["tensor"] != columns["tensor"][begin])
    bad |= changed
    chain = np.cumsum(starts | fresh)
    bad |= _repeats(chain, np.where(starts, -1 - place, columns["last"]))
    broken = np.cumsum(bad)
    good: Flags = broken - broken[begin] + bad[begin] == 0
    return count, good


def _one_value(marks: Sequence[Marks]) -> bool:
    """Whether all writes are whole stores of one tensor: equal values where elements are equal."""
    writes = [m.work for m in marks if m.access.writes]
    return all(w.is_final for w in writes) and len({w.tensor.name for w in writes}) == 1


def _own_first(group: Array, conflicts: Array, who: Array, time: Array, writes: Flags) -> bool:
    """Whether in groups with conflicts each reader has stored the element itself before."""
    among = np.isin(group, conflicts)
    reads = np.flatnonzero(among & ~writes)
    stores = np.flatnonzero(among & writes)
    span = int(who.max(initial=0)) + 1
    keys, places = np.unique(group[stores] * span + who[stores], return_inverse=True)
    first = np.full(keys.size, np.iinfo(np.int64).max)
    np.minimum.at(first, places, time[stores])
    found = np.searchsorted(keys, group[reads] * span + who[reads])
    known = found < keys.size
    found = np.where(known, found, 0)
    known &= keys[found] == group[reads] * span + who[reads]
    return bool((known & (first[found] < time[reads])).all())


def _repeats(chain: Array, value: Array) -> Flags:
    """Return where a chain has a value that it had before."""
    order = np.lexsort((np.arange(value.size), value, chain))
    c, v = chain[order], value[order]
    same = np.r_[False, (c[1:] == c[:-1]) & (v[1:] == v[:-1])]
    result = np.zeros(value.size, np.bool_)
    result[order] = same
    return result


def _sources(key: Array, time: Array, writes: Writes | None) -> Array:
    """Return for each read the last write of its key before it; -1 where there is none."""
    if writes is None or not writes.key.size:
        return np.full(key.size, -1)
    keys, rank = np.unique(writes.key, return_inverse=True)
    span = int(max(writes.time.max(initial=0), time.max(initial=0))) + 2
    place = np.searchsorted(keys, key)
    known = place < keys.size
    known &= keys[np.where(known, place, 0)] == key
    found = np.searchsorted(rank * span + writes.time, place * span + time) - 1
    valid = known & (found >= 0)
    valid &= writes.key[np.where(found >= 0, found, 0)] == key
    return np.where(valid, found, -1)
