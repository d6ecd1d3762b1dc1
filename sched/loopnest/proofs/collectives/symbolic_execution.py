"""Check what a collective declares, by running its body on symbols.

A partial result is the combination of the contributions of some threads to one of the values that
the collective combines: a multiset tells whose, a number to which value, and a component which of
the reducer's it is. The body must be data-oblivious: its tests and indices
depend on thread numbers and sizes alone. Threads run in step; that this order is as good as any
follows from the absence of races, which is shown for the whole program, not here.

The reducer is associative and commutative (but for rounding) and its identity neutral: facts of
`loopnest.tensor.ops.reducers`, which the math uses as well. That it commutes is not taken for
granted where the order of threads is declared to be kept: partial results are then runs of
neighbouring threads, and only those that meet may be combined, the earlier one first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from loopnest import kir
from loopnest.kir.buffers import Buffer
from loopnest.proofs.collectives.group_memory import GroupMemory
from loopnest.proofs.collectives.multisets import Bits, Multisets, Spans, Sums
from loopnest.proofs.collectives.thread_values import Blocks, Shape, Value, Wrong
from loopnest.proofs.point_arrays import OPERATIONS, Array, Flags, Undecidable, groups_along
from loopnest.proofs.program_model import is_decidable
from loopnest.proofs.template_matching import unified
from loopnest.scalar.enums import WARP
from loopnest.scalar.expr import Arg, Const, Expr, Index, LaunchIndex, Load, Local, Op, Symbol, walk

IDEMPOTENT = ("max", "min", "any", "all")
"""Reducers in which a contribution may be taken in more than once."""

MOST_LANES = 1 << 14
"""Threads that are run together; a batch ends with the shape that exceeds it."""

MOST_STATEMENTS = 4096
"""How many statements of a body are run, iterations of loops counted."""


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
    blocks = Blocks([block], {e: [value] for e, value in numbers.items()})
    try:
        _SymbolicRun(node, blocks, Bits).run()
    except Wrong as why:
        return why.message
    return None


def check_many(node: kir.Collective, blocks: Blocks) -> Shape | None:
    """Return a shape in which a collective may be wrong, None if it is right in all of them.

    Raises:
        Undecidable: it does what is not modelled here.
    """
    try:
        _SymbolicRun(node, blocks, Sums).run()
    except Wrong as why:
        return blocks.shapes[int(blocks.block[why.lane])]
    return None


class _SymbolicRun:
    def __init__(self, node: kir.Collective, blocks: Blocks, kind: type[Bits] | type[Sums]) -> None:
        self.node, self.blocks, self._sets = node, blocks, kind
        self.kind: type[Bits] | type[Sums] | type[Spans] = Spans if node.in_order else kind
        self.count = blocks.count
        self.names: dict[Local, Any] = {}
        self.indices: dict[Index, int] = {}
        self.memory = GroupMemory(blocks)
        self.literals: list[Const] = []
        self.steps = 0
        self.loaded: dict[tuple[Load, int], tuple[Flags, Value]] = {}
        # Expressions are interned: of two arguments that are one expression, a use does not tell
        # which is meant.
        if len(set(node.args)) != len(node.args):
            raise Undecidable("two components of a collective are one value")

    @property
    def template(self) -> tuple[Expr, ...]:
        return self.node.combine

    @cached_property
    def local(self) -> set[Local]:
        """The names that the body defines."""
        return {n.var for n, _ in kir.walk(self.node.body) if isinstance(n, (kir.Let, kir.Shuffle))}

    @cached_property
    def singles(self) -> Multisets:
        if self.kind is Spans:
            first, place, _ = self.turns
            return Spans(first + place, first + place + 1)
        return self._sets.singles(self.count)

    @cached_property
    def group(self) -> Array:
        """The number of each thread's group."""
        key = groups_along(self.node.dims, self.blocks.places, self.blocks.block)
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
        place = np.empty(self.count, np.int64)
        place[order] = np.arange(self.count) - start[self.group[order]]
        return self.group * (2 * MOST_LANES), place, sizes[self.group]

    def run(self) -> None:
        self.body(self.node.body, np.ones(self.count, np.bool_))
        for component, name in enumerate(self.node.results):
            if name not in self.names:
                raise Wrong(f"{name} is not defined by it")
            which, part = divmod(component, len(self.template))
            if self.node.scan:
                which = 0
            found = self.part(self.names[name], part)
            self.result(name, found, which, self.wanted(component))

    def wanted(self, result: int) -> Multisets:
        """Return what a result, by its number, holds in each thread."""
        if not isinstance(self.singles, Spans):
            return self.singles.gathered(self.group)
        first, place, size = self.turns
        if not self.node.is_so_far(result):
            return Spans(first, first + size)
        return Spans(first, first + place + (self.node.scan == "inclusive"))

    def result(self, name: Local, found: Value, which: int, wanted: Multisets) -> None:
        """Check that a result is the combination of one value of a thread's whole group."""
        self.refuse(~found.known, f"{name} is undefined in")
        other = (found.which >= 0) & (found.which != which)
        self.refuse(other, f"{name}, of value {which}, is of another value in")
        if isinstance(found.held, Bits) and isinstance(wanted, Bits):
            have, group = found.held, wanted.once
            repeated = have.twice & group
            if self.node.name in IDEMPOTENT:
                repeated = np.zeros_like(repeated)
            for bad, text in (
                (group & ~have.once, "lacks"),
                (have.once & ~group, "has taken in"),
                (repeated, "has twice"),
            ):
                rows = np.flatnonzero(bad.any(axis=1))
                if rows.size:
                    bits = np.unpackbits(bad[rows[0]].view(np.uint8), bitorder="little")
                    other = int(np.flatnonzero(bits)[0])
                    raise Wrong(
                        f"{name} in thread {int(rows[0])} {text} the contribution of thread {other}"
                    )
            return
        same = found.held.same(wanted)  # type: ignore[arg-type]
        what = "is no combination of its threads in their order in" if self.node.in_order else ""
        self.refuse(~same, f"{name} {what or 'is not combined in'}")

    def refuse(self, bad: Flags, text: str) -> None:
        """Raise Wrong where something holds in a thread."""
        if bad.any():
            lane = int(np.flatnonzero(bad)[0])
            raise Wrong(f"{text} thread {int(self.blocks.thread[lane])}", lane)

    # Statements

    def body(self, body: Sequence[kir.Stmt], mask: Flags) -> None:
        for node in body:
            self.steps += 1
            if self.steps > MOST_STATEMENTS:
                raise Undecidable("a collective of too many statements")
            self.statement(node, mask)

    def statement(self, node: kir.Stmt, mask: Flags) -> None:
        match node:
            case kir.Let():
                self.names[node.var] = self.let(node, mask)
            case kir.Shuffle():
                self.names[node.var] = self.shuffle(node, mask)
            case kir.Store():
                self.store(node, mask)
            case kir.Allocate():
                self.allocate(node.storage)
            case kir.Barrier():
                self.together(mask, node.scope, "barrier")
            case kir.If():
                holds = self.flags(node.condition)
                for body, chosen in ((node.body, mask & holds), (node.orelse, mask & ~holds)):
                    if body and chosen.any():
                        self.body(body, chosen)
            case kir.Loop():
                self.loop(node, mask)
            case _:
                raise Undecidable(f"{type(node).__name__} in a collective")

    def loop(self, node: kir.Loop, mask: Flags) -> None:
        if node.parallel.is_thread:
            raise Undecidable("a thread loop in a collective")
        extent = self.lanes(node.var.extent)
        if (extent != extent[self.blocks.first]).any():
            raise Undecidable("a loop that differs between threads")
        for value in range(int(extent.max(initial=0))):
            inside = mask & (value < extent)
            if inside.any():
                self.indices[node.var] = value
                self.loaded.clear()
                self.body(node.body, inside)

    def together(self, mask: Flags, scope: str, what: str) -> None:
        """Check that a scope takes part as a whole, or not at all."""
        if mask.all():
            return
        team = self.blocks.warp if scope == "warp" else self.blocks.block
        inside = np.bincount(team, weights=mask)
        bad = (inside > 0) & (inside < np.bincount(team))
        self.refuse(bad[team], f"not all threads of a {scope} reach a {what}: not")

    def let(self, node: kir.Let, mask: Flags) -> Any:
        if node.value not in self.node.args and is_decidable(node.value):
            return self.number(node.value)
        return self.value(node.value, mask)

    def shuffle(self, node: kir.Shuffle, mask: Flags) -> Value:
        self.together(mask, "warp", "shuffle")
        lane = self.blocks.thread % WARP
        first = np.arange(self.count) - lane
        offset = self.lanes(node.offset)
        if (offset != offset[first])[mask].any():
            raise Wrong("a shuffle by different offsets in one warp")
        match node.mode:
            case "xor":
                source = lane ^ offset
            case "down":
                source = lane + offset
            case "up":
                source = lane - offset
            case "lane":
                source = offset
            case _:
                raise Undecidable(f"shuffle {node.mode}")
        place = first + source
        exists = mask & (source >= 0) & (source < WARP)
        # the last warp of a block may be partial
        exists &= place < self.blocks.first + self.blocks.size
        return self.value(node.value, mask).take(np.where(exists, place, 0), exists)

    # Memory

    def allocate(self, buffer: Buffer) -> None:
        room = max(int(np.max(self.number(buffer.size))), 1)
        self.memory.allocate(buffer, room, self.kind)
        self.loaded.clear()

    def store(self, node: kir.Store, mask: Flags) -> None:
        value = self.value(node.value, mask)
        if node.storage not in self.memory:
            raise Wrong(f"it stores to {node.storage.name}, which it does not make")
        place = self.place(node.storage, node.index, node.flat, mask)
        self.loaded.clear()
        self.memory.put(node.storage, value, place, mask)

    def place(self, buffer: Buffer, index: Sequence[Expr], flat: bool, mask: Flags) -> Array:
        """Return the number of the element at hand, in each thread of `mask`.

        Raises:
            Wrong: it lies outside of the buffer.
        """
        space = self.memory[buffer]
        shape, strides = (buffer.size,) if flat else buffer.shape, buffer.strides
        result: Any = 0
        for n, (node, extent) in enumerate(zip(index, shape, strict=True)):
            value = self.number(node)
            outside = np.logical_or(value < 0, value >= self.number(extent))
            if np.any(outside):
                self.refuse(outside & mask, f"{node} is out of bounds of {buffer.name} in")
            result = result + (value if flat else value * self.number(strides[n]))
        if space.register:  # in bounds of one element
            return space.owner
        result = result + space.owner * space.room
        return result if mask.all() else np.where(mask, result, 0)

    # Values

    def lanes(self, node: Expr) -> Array:
        return np.broadcast_to(np.asarray(self.number(node), np.int64), (self.count,))

    def is_number(self, node: Expr) -> bool:
        """Whether thread numbers, indices and sizes tell what it is: no partial result.

        A literal may be either.
        """
        names = {n for n, found in self.names.items() if not isinstance(found, Value)}
        leaves = {n for n in walk(node) if not isinstance(n, (Op, Const))}
        numbers = {n for n in leaves if isinstance(n, (LaunchIndex, Index, Symbol)) or n in names}
        return node not in self.node.args and leaves == numbers != set()

    def flags(self, node: Expr) -> Flags:
        return np.broadcast_to(np.asarray(self.number(node), np.bool_), (self.count,))

    def number(self, node: Expr) -> Any:
        """Return an expression of thread numbers, indices and sizes, by thread."""
        if node in self.blocks.numbers:
            return self.blocks.numbers[node]
        match node:
            case Const():
                return node.value if node.dtype.is_bool else int(node.value)
            case LaunchIndex() if node.dimension in self.blocks.places:
                return self.blocks.places[node.dimension]
            case Index() if node in self.indices:
                return self.indices[node]
            case Local() if node in self.names and not isinstance(self.names[node], Value):
                return self.names[node]
            case Op() if node.op in OPERATIONS:
                return OPERATIONS[node.op](*[self.number(a) for a in node.args])
            case Symbol():
                raise Undecidable(f"a collective depends on the size {node}")
        raise Undecidable(f"a collective computes with '{node}'")

    def value(self, node: Expr, mask: Flags) -> Value:
        """Return what an expression is in the threads of `mask`.

        Raises:
            Wrong: it reads what is not there, or folds what is no partial result.
            Undecidable: it is nothing that is modelled.
        """
        if node in self.node.args:
            which, component = divmod(self.node.args.index(node), len(self.template))
            return Value(self.singles, mask, np.full(self.count, which), component)
        match node:
            case Local():
                found = self.names.get(node)
                if found is None and node in self.local:
                    raise Wrong(f"{node} is not defined there")
                if isinstance(found, Value):
                    return found
            case Const():
                return self.constant(node, mask)
            case Load():
                return self.load(node, mask)
            case Op():
                return self.operation(node, mask)
        raise Undecidable(f"a collective computes with '{node}'")

    def constant(self, node: Const, mask: Flags) -> Value:
        if node not in self.literals:
            self.literals.append(node)
        number = np.full(self.count, self.literals.index(node), np.int64)
        nobody = np.full(self.count, -1, np.int64)
        return Value(self.kind.empty(self.count, self.count), mask, nobody, None, number)

    def load(self, node: Load, mask: Flags) -> Value:
        if node.buffer not in self.memory:
            raise Undecidable(f"a load of {node.buffer.name} in a collective")
        known = self.loaded.get((node, id(mask)))
        if known is not None:
            return known[1]
        place = self.place(node.buffer, node.args, node.flat, mask)
        space = self.memory[node.buffer]
        if ((space.other if space.register else space.other[place]) & mask).any():
            raise Undecidable(f"{node.buffer.name} holds two components")
        if space.register:
            found = replace(space.held, known=space.held.known & mask)
        else:
            found = space.held.take(place, mask)
        self.refuse(
            mask & ~found.known, f"nothing was stored to the element of {node.buffer.name} read by"
        )
        self.loaded[node, id(mask)] = mask, found
        return found

    def operation(self, node: Op, mask: Flags) -> Value:
        fits = [
            (component, bound)
            for component, template in enumerate(self.template)
            if (bound := unified(template, node)) is not None
            and not any(self.is_number(expr) for _, expr in bound)
        ]
        for component, bound in fits:
            # Components may combine alike; what is combined tells which of them this is.
            try:
                return self.folded(component, bound, mask)
            except Wrong:
                if component == fits[-1][0]:
                    raise
        if node.op == "where":
            holds = self.flags(node.args[0])
            for arg, where in zip(node.args[1:], (mask & holds, mask & ~holds), strict=True):
                if (where == mask).all():
                    return self.value(arg, mask)
            return self.chosen(
                holds,
                self.value(node.args[1], mask & holds),
                self.value(node.args[2], mask & ~holds),
            )
        raise Undecidable(f"a collective computes '{node}', which is no combination")

    def chosen(self, holds: Flags, a: Value, b: Value) -> Value:
        component = a.component if a.component is not None else b.component
        if b.component not in (None, component):
            raise Undecidable("two components in one value")
        return a.chosen(holds, b, component)

    def folded(self, component: int, bound: Sequence[tuple[Arg, Expr]], mask: Flags) -> Value:
        """Return the combination of two partial results, given by some of their components."""
        sides: list[list[Value]] = [[], []]
        for arg, expr in bound:
            side, place = divmod(arg.number, len(self.template))
            sides[side].append(self.part(self.value(expr, mask), place))
        a, b = [self.agreed(side, mask) for side in sides]
        held = a.held.plus(b.held)  # type: ignore[arg-type]
        known = a.known & b.known
        differ = mask & known & (a.which >= 0) & (b.which >= 0) & (a.which != b.which)
        self.refuse(differ, "partial results of different values are combined in")
        return Value(held, known, np.maximum(a.which, b.which), component)

    def agreed(self, parts: Sequence[Value], mask: Flags) -> Value:
        """Return the one value whose components these are."""
        first, *rest = parts
        for other in rest:
            known = first.known & other.known
            same = first.held.same(other.held) & (first.which == other.which)  # type: ignore[arg-type]
            differ = mask & known & ~same
            self.refuse(differ, "components of different partial results are combined in")
            first = Value(first.held, known, first.which, first.component, first.literal)
        return first

    def part(self, found: Any, component: int) -> Value:
        """Return a value as a component of a partial result: a literal must be neutral there."""
        if not isinstance(found, Value):
            raise Undecidable("an index among partial results")
        if found.literal is not None:
            self.neutral(found.literal[found.known], component)
        if found.component not in (None, component):
            raise Wrong(f"it takes component {found.component} for component {component}")
        return Value(found.held, found.known, found.which, component)

    def neutral(self, used: Array, component: int) -> None:
        """Check that literals, by their numbers, are a component of the identity."""
        for number in np.unique(used[used >= 0]).tolist():
            if self.literals[number] is not self.node.identity[component]:
                raise Wrong(
                    f"it takes in {self.literals[number]}, the identity is "
                    f"{self.node.identity[component]}"
                )
