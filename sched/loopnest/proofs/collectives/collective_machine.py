"""Check what a collective declares, by running its body on contributions instead of numbers.

A partial result is the combination of the contributions of some threads to one of the values that
the collective combines: a multiset tells whose, a number to which value, and a component which of
the reducer's it is (`Contributions`). The body must be data-oblivious: its tests and indices
depend on thread numbers and sizes alone. Threads run in step; that this order is as good as any
follows from the absence of races, which is shown for the whole program, not here.

The reducer is associative and commutative (but for rounding) and its identity neutral: facts of
`loopnest.tensor.ops.reducers`, which the math uses as well. That it commutes is not taken for
granted where the order of threads is declared to be kept: partial results are then runs of
neighbouring threads, and only those that meet may be combined, the earlier one first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from loopnest import kir
from loopnest.lane_machine.abstract_machine import Machine, SyncStatements
from loopnest.lane_machine.concrete_program import (
    INSIDE,
    SLOT,
    THREAD,
    THREADS,
    ConcreteProgram,
    LaunchedBlocks,
    spaces_of,
)
from loopnest.lane_machine.evaluator import Evaluator
from loopnest.lane_machine.fault_report import FaultReport
from loopnest.lane_machine.frame import Dependences, Frame
from loopnest.lane_machine.native_math import Value
from loopnest.lane_machine.undefined_values import Undefined
from loopnest.lane_machine.watched_memory import ElementLayout, WatchedStorage
from loopnest.proofs.point_arrays import Array, Flags, Undecidable, groups_along
from loopnest.proofs.program_model import is_decidable
from loopnest.proofs.template_matching import unified
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import BLOCK_DIMENSIONS, MOST_THREADS, WARP, Memory, along_dimensions
from loopnest.scalar.expr import (
    ONE,
    Arg,
    Buffer,
    Const,
    Expr,
    Index,
    LaunchIndex,
    Load,
    Local,
    Op,
    Symbol,
    walk,
)

Shape: TypeAlias = "tuple[int, int, int]"

_MODELLED = (
    kir.Let, kir.Shuffle, kir.Store, kir.Allocate, kir.Barrier, kir.If, kir.Loop,
)  # fmt: skip

IDEMPOTENT = ("max", "min", "any", "all")
"""Reducers in which a contribution may be taken in more than once."""

MOST_LANES = 1 << 14
"""Threads of one block, at most; of many blocks that are run together twice as many."""

MOST_STATEMENTS = 4096
"""How many statements of a body are run, iterations of loops counted."""

MOST_WORDS = 1 << 23
"""How large a buffer of contributions may be."""


def check(node: kir.Collective, block: Shape, numbers: Mapping[Expr, int]) -> str | None:
    """Return what is wrong with a collective in a block of this shape, None if nothing is.

    Args:
        node: the collective.
        block: extents along x, y and z.
        numbers: the value of each size symbol, and of other expressions that do not depend on the
            thread (launch extents).

    Raises:
        Undecidable: it does what is not modelled here.
    """
    try:
        _CollectiveMachine(node, [block], {e: [n] for e, n in numbers.items()}, Bits).check()
    except Wrong as why:
        return why.message
    return None


def check_many(
    node: kir.Collective, shapes: Sequence[Shape], numbers: Mapping[Expr, Sequence[int]]
) -> Shape | None:
    """Return a shape in which a collective may be wrong, None if it is right in all of them.

    Args:
        node: the collective.
        shapes: extents of blocks along x, y and z.
        numbers: expressions that are one number a block, with that number for each shape.

    Raises:
        Undecidable: it does what is not modelled here.
    """
    try:
        _CollectiveMachine(node, shapes, numbers, Sums).check()
    except Wrong as why:
        ends = np.cumsum([x * y * z for x, y, z in shapes])
        return shapes[int(np.searchsorted(ends, why.lane, side="right"))]
    return None


class Wrong(Exception):
    """The body does not do what is declared: a sentence, and a lane of which it is true."""

    def __init__(self, message: str, lane: int = 0) -> None:
        super().__init__(message)
        self.message, self.lane = message, lane


Records: TypeAlias = "npt.NDArray[np.void]"
"""Records as bytes: NumPy copies those of named fields one field after the other, much slower."""

Fields: TypeAlias = "npt.NDArray[Any]"
"""Records with named fields, as `Contributions.fields` shows them."""

NONE = -1
"""The number of the value that a literal is a part of."""

_DRAW = np.random.Generator(np.random.PCG64(20231))
_NUMBERS = _DRAW.integers(0, 1 << 64, 2 * MOST_LANES + MOST_THREADS, np.uint64)
"""What stands for each thread in a sum."""

_NO_RUN = -1

_KNOWN = [("known", np.bool_), ("which", np.int16), ("component", np.int16)]


def is_records(value: object) -> bool:
    """Whether a value is of contributions, not of numbers."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "V"


class Contributions(ABC):
    """A kind of multisets.

    The fields of a record: `known`, whether the thread has it; `which`, the number of the value
    that these are contributions to, of those that the collective combines; `component`, of the
    reducer, or the number of a literal, which is behind all components.

    Args:
        fields: those of a multiset.
        words: how many words of 64 bits one takes.
    """

    union: np.ufunc = np.add
    """What makes of two multisets without a common member the one of both, field by field."""

    def __init__(self, fields: list[Any], words: int) -> None:
        self.words = words
        self.names = [field[0] for field in fields]
        self._named = np.dtype([*_KNOWN, *fields], align=True)
        self._bytes = np.dtype((np.void, self._named.itemsize))

    def fields(self, records: Records) -> Fields:
        """Return records, in the same memory, with their fields by name."""
        return records.view(self._named)

    def records(self, fields: Fields) -> Records:
        """Return the records of `fields`, in the same memory."""
        return fields.view(self._bytes)

    def nothing(self, count: int) -> Fields:
        """Return what is not there."""
        return np.zeros(count, self._named)

    @abstractmethod
    def singles(self) -> Fields:
        """Return for each thread what it contributes, of no value yet."""

    @abstractmethod
    def plus(self, into: Fields, other: Fields) -> None:
        """Combine multisets with others, which come behind them."""

    def gathered(self, group: Array) -> Fields:
        """Return for each thread the contributions of its group."""
        own = self.singles()
        for name in self.names:
            whole = np.zeros_like(own[name])  # there are no more groups than threads
            self.union.at(whole, group, own[name])
            own[name] = whole[group]
        return own

    def same(self, one: Fields, other: Fields) -> Flags:
        """Return where multisets are equal."""
        equal = [one[name] == other[name] for name in self.names]
        result: Flags = np.logical_and.reduce([e if e.ndim == 1 else e.all(axis=1) for e in equal])
        return result


class Bits(Contributions):
    """The members, and those that are in more than once, as rows of bits."""

    union = np.bitwise_or

    def __init__(self, members: int) -> None:
        words = -(-members // 64)
        super().__init__([(name, np.uint64, (words,)) for name in ("once", "twice")], words)
        self.members = members

    def singles(self) -> Fields:
        made, thread = self.nothing(self.members), np.arange(self.members)
        bit = np.left_shift(np.uint64(1), (thread % 64).astype(np.uint64))
        made["once"][thread, thread // 64] = bit
        return made

    def plus(self, into: Fields, other: Fields) -> None:
        into["twice"] |= other["twice"] | (into["once"] & other["once"])
        into["once"] |= other["once"]


class Sums(Contributions):
    """Their sizes and the sums of their members' numbers."""

    def __init__(self, members: int) -> None:
        # Records of 16 bytes are moved at once.
        super().__init__([("count", np.uint16), ("sums", np.uint64)], 1)
        self.members = members

    def singles(self) -> Fields:
        made = self.nothing(self.members)
        made["count"], made["sums"] = 1, _NUMBERS[: self.members]
        return made

    def plus(self, into: Fields, other: Fields) -> None:
        into["count"] += other["count"]
        into["sums"] += other["sums"]


class Spans(Contributions):
    """The number of the first thread of a run and that behind its last one; equal where none is in.

    Args:
        first: of each thread the number of the first one of its group; those of two groups do not
            meet.
        place: its place in the group.
    """

    def __init__(self, first: Array, place: Array) -> None:
        super().__init__([("first", np.int64), ("stop", np.int64)], 1)
        self.first, self.place = first, place

    def singles(self) -> Fields:
        return self.runs(self.first + self.place, self.first + self.place + 1)

    def runs(self, first: Array, stop: Array) -> Fields:
        """Return runs of threads."""
        made = self.nothing(first.size)
        made["first"], made["stop"] = first, stop
        return made

    def plus(self, into: Fields, other: Fields) -> None:
        mine, theirs = into["first"] == into["stop"], other["first"] == other["stop"]
        joined = into["stop"] == other["first"]
        first = np.where(theirs | joined, into["first"], _NO_RUN)
        first = np.where(mine, other["first"], first)
        stop = np.where(theirs & ~mine, into["stop"], other["stop"])
        into["first"], into["stop"] = first, np.where(first == _NO_RUN, _NO_RUN - 1, stop)

    def same(self, one: Fields, other: Fields) -> Flags:
        neither = (one["first"] == one["stop"]) & (other["first"] == other["stop"])
        result: Flags = neither | super().same(one, other)
        return result


class _Blocks(LaunchedBlocks):
    """Blocks of different shapes, a lane for each of their threads."""

    def __init__(self, shapes: Sequence[Shape], numbers: Mapping[Expr, Sequence[int]]) -> None:
        sizes = np.array([x * y * z for x, y, z in shapes], np.int64)
        self.blocks = np.arange(len(shapes))
        slot = np.repeat(self.blocks, sizes)
        self.frame = frame = Frame(slot.size, None)
        inside = np.arange(slot.size) - (np.cumsum(sizes) - sizes)[slot]
        x, y = [np.array([s[n] for s in shapes], np.int64)[slot] for n in (0, 1)]
        self.places = dict(zip(BLOCK_DIMENSIONS, along_dimensions(inside, x, y), strict=True))
        for dim, place in self.places.items():
            frame.define(LaunchIndex(dim), place)
        frame.define(THREAD, np.arange(slot.size))
        frame.define(INSIDE, inside)
        frame.define(THREADS, sizes[slot])
        frame.define(SLOT, slot)
        for node, values in numbers.items():
            same = len(set(values)) == 1
            frame.define(node, values[0] if same else np.array(values, np.int64)[slot])


class _CollectiveBody(ConcreteProgram):
    """The body of a collective, as a program of which blocks of any sizes are run."""

    def __init__(self, node: kir.Collective, threads: int) -> None:
        self.program = self.whole = kir.Program(node.name, (), node.body)
        self.nodes = list(self.program.nodes)
        self.dependences = Dependences()
        self.threads = threads
        self.extents = {}
        self.spaces = spaces_of([n.storage for n in self.nodes if isinstance(n, kir.Allocate)])


class _BodyFaults(FaultReport):
    """What is wrong with a body: the first thread of which that is so."""

    def refuse(self, bad: Value, text: str, frame: Frame) -> None:
        """Raise Wrong where something holds in a thread."""
        if np.any(bad):
            lane = int(np.flatnonzero(np.broadcast_to(bad, (frame.lanes,)))[0])
            raise Wrong(f"{text} thread {frame.at_lane(INSIDE, lane)}", _whole_lane(frame, lane))

    def missing(self, what: str, threads: list[int], frame: Frame, lane: int) -> NoReturn:
        scope = self.statement.scope if isinstance(self.statement, kir.Barrier) else "warp"
        inside = frame.at_lane(INSIDE, lane) or 0
        first = inside // WARP * WARP if scope == "warp" else 0
        text = f"not all threads of a {scope} reach a {what}: not thread {first}"
        raise Wrong(text, _whole_lane(frame, lane))

    def fault(self, reason: str, frame: Frame, lane: int) -> NoReturn:
        raise Wrong("a shuffle by different offsets in one warp", _whole_lane(frame, lane))


def _whole_lane(frame: Frame, lane: int) -> int:
    return frame.at_lane(THREAD, lane) or 0


class _GroupStorage(WatchedStorage):
    """The memory of a buffer: a store to another one in its space takes all that a block has.

    A register is one element of each thread: what all have is exchanged as a whole.
    """

    __slots__ = ()

    def _is_whole(self, lanes: int) -> bool:
        return self.buffer.memory is Memory.LOCAL and lanes == self.data.size

    def load(self, address: Value) -> Records:
        return self.data if self._is_whole(np.size(address)) else super().load(address)

    def store(self, address: Value, value: Records) -> None:
        if self._is_whole(value.size):
            self.data = value
            for other in self.aliases:
                other.overwritten(self, address)
            return
        if self.layout.pitch == 1:
            self.data = self.data.copy()  # names may have what it held
        super().store(address, value)

    def overwritten(self, by: WatchedStorage, address: Value) -> None:
        gone = np.unique(np.asarray(address) // by.layout.pitch)
        self.data.reshape(-1, self.layout.pitch)[gone] = np.zeros((), self.data.dtype)


class _ContributionEvaluator(Evaluator):
    """Expressions on contributions; those of thread numbers, indices and sizes are numbers.

    Args:
        node: the collective.
        sets: the kind of multisets.
        setting, memory, faults: those of the machine.
    """

    faults: _BodyFaults

    def __init__(
        self,
        node: kir.Collective,
        sets: Contributions,
        setting: ConcreteProgram,
        memory: dict[Buffer, WatchedStorage],
        faults: _BodyFaults,
    ) -> None:
        super().__init__(node.name, memory, faults, setting.dependences)
        self.node, self.sets, self.template = node, sets, node.combine
        self.several = len(node.args) > len(node.combine)
        singles = sets.singles()
        singles["known"] = True
        self.singles = sets.records(singles)
        self.literals: list[Const] = []
        self._fits: dict[Op, list[tuple[int, tuple[tuple[Arg, Expr], ...]]]] = {}
        self.local = {n.var for n in setting.nodes if isinstance(n, (kir.Let, kir.Shuffle))}

    # Numbers

    def value(self, node: Expr, frame: Frame) -> Value:
        found = super().value(node, frame)
        if is_records(found):
            raise Undecidable(f"a collective computes with '{node}'")
        return found

    def _apply(self, node: Op, args: list[Value]) -> Value:
        for arg, found in zip(node.args, args, strict=True):
            if is_records(found):
                raise Undecidable(f"a collective computes with '{arg}'")
        return super()._apply(node, args)

    def _load(self, node: Load, frame: Frame) -> Value:
        raise Undecidable(f"a collective computes with '{node}'")

    def _compute(self, node: Expr, frame: Frame) -> Value:
        if isinstance(node, Symbol):
            raise Undecidable(f"a collective depends on the size {node}")
        if not isinstance(node, Op):
            raise Undecidable(f"a collective computes with '{node}'")
        return super()._compute(node, frame)

    def named(self, node: Local, frame: Frame) -> Value | None:
        """Return what a name stands for; None where it is not defined."""
        try:
            return self.pure(node, frame)
        except Undecidable:
            return None

    def is_number(self, node: Expr, frame: Frame) -> bool:
        """Whether thread numbers, indices and sizes tell what it is: no partial result.

        A literal may be either.
        """
        leaves = {n for n in walk(node) if not isinstance(n, (Op, Const))}
        if not leaves or node in self.node.args:
            return False
        for leaf in leaves:
            if isinstance(leaf, Local):
                found = self.named(leaf, frame)
                if found is None or is_records(found):
                    return False
            elif not isinstance(leaf, (LaunchIndex, Index, Symbol)):
                return False
        return True

    def address(self, access: Load, frame: Frame) -> Value:
        buffer, result = access.buffer, self.base(access.buffer, frame)
        flat = ((buffer.size,), (ONE,))
        for node, extent, stride in zip(
            access.args, *(flat if access.flat else (buffer.shape, buffer.strides)), strict=True
        ):
            value = self.value(node, frame)
            outside = (value < 0) | (value >= self.value(extent, frame))
            self.faults.refuse(outside, f"{node} is out of bounds of {buffer.name} in", frame)
            offset = value * self.value(stride, frame)
            result = result + offset if np.size(offset) > 1 or offset else result
        return result

    # Contributions

    def garbage(self, dtype: DType) -> Records:
        return self.sets.records(self.sets.nothing(1))

    def operand(self, node: Expr, frame: Frame) -> Records:
        """Return what an expression is, lane by lane.

        Raises:
            Wrong: it reads what is not there, or folds what is no partial result.
            Undecidable: it is nothing that is modelled.
        """
        if node in self.node.args:
            return self._argument(node, frame)
        match node:
            case Local():
                found = self.named(node, frame)
                if found is None and node in self.local:
                    raise Wrong(f"{node} is not defined there")
                if isinstance(found, np.ndarray) and is_records(found):
                    return found
            case Const():
                if node not in self.literals:
                    self.literals.append(node)
                made = self.sets.nothing(frame.lanes)
                made["known"], made["which"] = True, NONE
                made["component"] = len(self.template) + self.literals.index(node)
                return self.sets.records(made)
            case Load():
                return self._held(node, frame)
            case Op():
                return self._operation(node, frame)
        raise Undecidable(f"a collective computes with '{node}'")

    def _argument(self, node: Expr, frame: Frame) -> Records:
        """Return what each thread contributes."""
        made: Records = self.singles.take(self.pure(THREAD, frame))
        fields, number = self.sets.fields(made), self.node.args.index(node)
        fields["which"], fields["component"] = divmod(number, len(self.template))
        return made

    def _held(self, node: Load, frame: Frame) -> Records:
        found = frame.scratch.get(node)
        if not isinstance(found, np.ndarray):
            if node.buffer not in self.memory:
                raise Undecidable(f"a load of {node.buffer.name} in a collective")
            found = self.memory[node.buffer].load(self.address(node, frame))
            text = f"nothing was stored to the element of {node.buffer.name} read by"
            self.faults.refuse(~self.sets.fields(found)["known"], text, frame)
            frame.scratch[node] = found
        return found

    def _operation(self, node: Op, frame: Frame) -> Records:
        fits = self._fits.get(node)
        if fits is None:  # what a name stands for, a number or contributions, is the same each time
            fits = self._fits[node] = [
                (component, bound)
                for component, template in enumerate(self.template)
                if (bound := unified(template, node)) is not None
                and not any(self.is_number(expr, frame) for _, expr in bound)
            ]
        for component, bound in fits:
            # Components may combine alike; what is combined tells which of them this is.
            try:
                return self._folded(component, bound, frame)
            except Wrong:
                if component == fits[-1][0]:
                    raise
        if node.op != "where":
            raise Undecidable(f"a collective computes '{node}', which is no combination")
        condition, yes, no = node.args
        holds = np.broadcast_to(np.asarray(self.value(condition, frame)), (frame.lanes,))
        taken, others = np.flatnonzero(holds), np.flatnonzero(~holds)
        if not (taken.size and others.size):
            return self.operand(yes if taken.size else no, frame)
        return np.where(holds, self._in_lanes(yes, taken, frame), self._in_lanes(no, others, frame))

    def _in_lanes(self, node: Expr, lanes: Array, frame: Frame) -> Records:
        """Return what an expression is in some lanes, and anything in the others."""
        if not self.dependences.reads(node):
            try:  # soon done where nothing is wrong in the other lanes either
                return self.operand(node, frame)
            except (Wrong, Undecidable):
                pass
        made = self.sets.records(self.sets.nothing(frame.lanes))
        made[lanes] = self.operand(node, frame.subset(lanes))
        return made

    def _folded(self, component: int, bound: Sequence[tuple[Arg, Expr]], frame: Frame) -> Records:
        """Return the combination of two partial results, given by some of their components."""
        sides: list[list[Fields]] = [[], []]
        for arg, expr in bound:
            side, place = divmod(arg.number, len(self.template))
            sides[side].append(self.part(self.operand(expr, frame), place))
        (first, known), (other, theirs) = [self._agreed(side, frame) for side in sides]
        made = self.sets.fields(self.sets.records(first).copy())
        known = known & theirs
        if self.several:
            mine, others = first["which"], other["which"]
            differ = known & (mine != NONE) & (others != NONE) & (mine != others)
            self.faults.refuse(differ, "partial results of different values are combined in", frame)
            made["which"] = np.maximum(mine, others)
        self.sets.plus(made, other)
        made["known"], made["component"] = known, component
        return self.sets.records(made)

    def _agreed(self, parts: Sequence[Fields], frame: Frame) -> tuple[Fields, Flags]:
        """Return the one value whose components these are, and where it is known."""
        first, *rest = parts
        known: Flags = first["known"]
        for other in rest:
            same = self.sets.same(first, other) & (first["which"] == other["which"])
            known = known & other["known"]
            text = "components of different partial results are combined in"
            self.faults.refuse(known & ~same, text, frame)
        return first, known

    def part(self, found: Records, component: int) -> Fields:
        """Return a value that is a component of a partial result.

        Raises:
            Wrong: it is another component, or a literal that is not neutral there.
        """
        fields, size = self.sets.fields(found), len(self.template)
        numbers = fields["component"]
        if (numbers == component).all():
            return fields
        seen = np.flatnonzero(np.bincount(numbers[fields["known"]])).tolist()
        for literal in [self.literals[number - size] for number in seen if number >= size]:
            identity = self.node.identity[component]
            if literal is not identity:
                raise Wrong(f"it takes in {literal}, the identity is {identity}")
        components = [number for number in seen if number < size]
        if len(components) > 1:
            raise Undecidable("two components in one value")
        if components not in ([], [component]):
            raise Wrong(f"it takes component {components[0]} for component {component}")
        return fields


class _CollectiveMachine(Machine):
    """A machine that runs the body of a collective in blocks of some shapes."""

    eval: _ContributionEvaluator
    faults: _BodyFaults

    def __init__(
        self,
        node: kir.Collective,
        shapes: Sequence[Shape],
        numbers: Mapping[Expr, Sequence[int]],
        kind: type[Bits] | type[Sums],
    ) -> None:
        # Expressions are interned: of two arguments that are one expression, a use does not tell
        # which is meant.
        if len(set(node.args)) != len(node.args):
            raise Undecidable("two components of a collective are one value")
        self.node, self.blocks = node, _Blocks(shapes, numbers)
        self.launch, self.steps, count = self.blocks, 0, self.blocks.frame.lanes
        self.setting = setting = _CollectiveBody(node, max(x * y * z for x, y, z in shapes))
        self.memory, self.faults, self.races = {}, _BodyFaults(setting), None
        sets: Contributions = Spans(*self.turns[:2]) if node.in_order else kind(count)
        self.eval = _ContributionEvaluator(node, sets, setting, self.memory, self.faults)
        self.undefined = Undefined((), self.eval)  # who has nothing is known of each record
        self.together = SyncStatements(
            setting, self.eval, self.faults, self.undefined, None, self.arrivals
        )
        self.together.launch = self.launch

    @cached_property
    def group(self) -> Array:
        """The number of each thread's group."""
        slot = np.asarray(self.blocks.frame.values[SLOT])
        key = groups_along(self.node.dims, self.blocks.places, slot)
        return np.unique(key, return_inverse=True)[1]

    @cached_property
    def turns(self) -> tuple[Array, Array, Array]:
        """For each thread the first number of its group, its place in it, the group's size.

        Numbers of two groups do not meet.
        """
        places = [self.blocks.places[dim] for dim in self.node.dims]
        order = np.lexsort((*places, self.group))
        sizes = np.bincount(self.group)
        start = np.cumsum(sizes) - sizes
        place = np.empty(self.group.size, np.int64)
        place[order] = np.arange(self.group.size) - start[self.group[order]]
        return self.group * (2 * MOST_LANES), place, sizes[self.group]

    # Statements

    def body(self, body: tuple[kir.Stmt, ...], frame: Frame) -> None:
        for node in body:
            self.steps += 1
            if self.steps > MOST_STATEMENTS:
                raise Undecidable("a collective of too many statements")
            if not isinstance(node, _MODELLED):
                raise Undecidable(f"{type(node).__name__} in a collective")
            super().body((node,), frame)

    def visit_let(self, node: kir.Let, frame: Frame) -> None:
        number = node.value not in self.node.args and is_decidable(node.value)
        find = self.eval.value if number else self.eval.operand
        frame.define(node.var, find(node.value, frame))

    def visit_loop(self, node: kir.Loop, frame: Frame) -> None:
        if node.parallel.is_thread:
            raise Undecidable("a thread loop in a collective")
        found = np.asarray(self.eval.value(node.var.extent, frame))
        extent = np.broadcast_to(found, (frame.lanes,))
        of_block = np.zeros(self.launch.blocks.size, np.int64)
        slot = self.eval.pure(SLOT, frame)
        of_block[slot] = extent
        if (extent != of_block[slot]).any():
            raise Undecidable("a loop that differs between threads")
        inside = frame
        for value in range(int(extent.max(initial=0))):
            lanes = np.flatnonzero(value < extent)
            if lanes.size < inside.lanes:  # fewer and fewer
                inside = frame.subset(lanes)
            inner = inside.same_lanes()
            inner.define(node.var, value)
            self.body(node.body, inner)

    def visit_allocate(self, node: kir.Allocate, frame: Frame) -> None:
        buffer = node.storage
        room = max(int(np.max(self.eval.value(buffer.size, frame))), 1)
        private = buffer.memory is Memory.LOCAL
        size = room * (self.group.size if private else self.launch.blocks.size)
        if size * self.eval.sets.words > MOST_WORDS:
            raise Undecidable(f"{buffer.name} is too large to be followed")
        data = self.eval.sets.records(self.eval.sets.nothing(size))
        layout = ElementLayout((), (), room, room)
        self._add(_GroupStorage(buffer, data, None, layout))
        frame.define(buffer, self.eval.pure(THREAD if private else SLOT, frame) * room)

    def visit_store(self, node: kir.Store, frame: Frame) -> None:
        value, storage = self.eval.operand(node.value, frame), self.memory.get(node.storage)
        if storage is None:
            raise Wrong(f"it stores to {node.storage.name}, which it does not make")
        address = self.eval.address(Load(node.storage, node.index, node.flat), frame)
        if node.storage.memory is not Memory.LOCAL and np.bincount(address).max() > 1:
            raise Wrong(f"two threads store one element of {node.storage.name}")
        storage.store(address, value)

    # Results

    def check(self) -> None:
        """Run the body; check that each result is what is declared.

        Raises:
            Wrong: it is not.
        """
        frame = self.launch.frame
        with np.errstate(all="ignore"):
            self.body(self.node.body, frame)
        for number, name in enumerate(self.node.results):
            found = self.eval.named(name, frame)
            if found is None:
                raise Wrong(f"{name} is not defined by it")
            if not is_records(found):
                raise Undecidable("an index among partial results")
            which, component = divmod(number, len(self.node.combine))
            which = 0 if self.node.scan else which
            held = self.eval.part(np.asarray(found), component)
            self.faults.refuse(~held["known"], f"{name} is undefined in", frame)
            other = (held["which"] != NONE) & (held["which"] != which)
            self.faults.refuse(other, f"{name}, of value {which}, is of another value in", frame)
            self._result(name, held, number)

    def _result(self, name: Local, held: Fields, number: int) -> None:
        """Check that a result is the combination of one value of a thread's whole group."""
        sets = self.eval.sets
        if isinstance(sets, Bits):
            self._members(name, held, sets.gathered(self.group)["once"])
            return
        if isinstance(sets, Spans):
            text = f"{name} is no combination of its threads in their order in"
            first, place, size = self.turns
            if self.node.is_so_far(number):
                size = place + (self.node.scan == "inclusive")
            wanted = sets.runs(first, first + size)
        else:
            text, wanted = f"{name} is not combined in", sets.gathered(self.group)
        self.faults.refuse(~sets.same(held, wanted), text, self.launch.frame)

    def _members(self, name: Local, held: Fields, group: Flags) -> None:
        """Check who is in a result, and say who is not."""
        once, repeated = held["once"], held["twice"] & group
        if self.node.name in IDEMPOTENT:
            repeated = np.zeros_like(repeated)
        for bad, text in (
            (group & ~once, "lacks"),
            (once & ~group, "has taken in"),
            (repeated, "has twice"),
        ):
            rows = np.flatnonzero(bad.any(axis=1))
            if rows.size:
                bits = np.unpackbits(bad[rows[0]].view(np.uint8), bitorder="little")
                other = int(np.flatnonzero(bits)[0])
                raise Wrong(
                    f"{name} in thread {int(rows[0])} {text} the contribution of thread {other}"
                )
