"""Counts of elements in 32 bits, where a launch's indices have them: for the texts in C and CUDA.

A count of elements (`Program.counts`) is int64 in the nest. The width of indices bounds it as it
bounds any index (`launch/index_width`), so that a text of 32-bit indices may count in int32: a
conversion from 64 bits to a float takes four times as long. Memory of the launch keeps its type.

Before: ``n: int64; mean = mean + (x - mean) * (1.0 / float32(n + 1))``; after the same, n an int32.
What a sum of counts may be is known only of the sums that are counts themselves: the values of
stores to such buffers, and what an exchange between threads adds. All else is computed in int64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from loopnest.kir import (
    Allocate,
    Collective,
    Let,
    Program,
    Shuffle,
    Stmt,
    Store,
    bodies,
    map_expressions,
    walk,
    with_bodies,
)
from loopnest.scalar.dtypes import bool_, float32, int32, int64
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import Buffer, Const, Expr, Load, Local, Op, cast, rewrite

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def narrow_counts(program: Program) -> tuple[Program, frozenset[Expr]]:
    """Return `program` with its counts on the chip in int32, and the quotients of counts in it.

    These are divisions in float32 of numbers that were integers of 32 bits, by ones >= 1: no
    operand is denormal, infinite or NaN. It is the same program where nothing is counted.
    """
    if not program.counts:
        return program, frozenset()
    narrowing = _Narrowing(program)
    body = tuple([narrowing.statement(node) for node in program.body])
    return program.with_body(body), frozenset(narrowing.quotients)


def launch_programs(program: Program, index_bits: int) -> Iterator[tuple[Program, frozenset[Expr]]]:
    """Yield each launch under a name of its own, and the quotients of counts in it.

    The name is that of the program where it is one launch. Counts are narrowed to 32 bits where
    indices have no more.
    """
    for name, part in zip(launch_names(program), program.launches, strict=True):
        named = part if name == part.name else replace(part, name=name)
        yield narrow_counts(named) if index_bits == 32 else (named, frozenset())


def launch_names(program: Program) -> tuple[str, ...]:
    """Return the name of each launch in texts: that of the program where it is one."""
    count = len(program.launches)
    if count == 1:
        return (program.name,)
    return tuple([f"{program.name}_launch{number}" for number in range(count)])


class _Narrowing:
    """The rewriting of one program, statement by statement.

    Attributes:
        names: of counts: the name in int32 by that in int64.
        buffers: on the chip, of counts: the buffer of int32 by that of int64.
        sums: expressions of int64 that are counts.
        positive: expressions of int32 that are counts of one element at least.
        quotients: what counts are divided to.
    """

    def __init__(self, program: Program) -> None:
        self.tensors = {name for name, _ in program.counts}
        self.names: dict[Local, Local] = {}
        self.buffers: dict[Buffer, Buffer] = {}
        self.sums: set[Expr] = set()
        self.positive: set[Expr] = set()
        self.quotients: set[Expr] = set()
        lets: dict[Expr, Expr] = {}
        nodes = [node for node, _ in walk(program.body)]
        for node in nodes:
            if isinstance(node, Allocate) and self._is_private(node.storage):
                self.buffers[node.storage] = replace(node.storage, dtype=int32)
            elif isinstance(node, Let):
                lets[node.var] = node.value
        for node in nodes:
            if isinstance(node, Store) and self._is_count(node.storage):
                self.sums |= {node.value, lets.get(node.value, node.value)}
        for node in nodes:
            if isinstance(node, Collective):
                self._exchange(node)

    def _is_count(self, buffer: Buffer) -> bool:
        return buffer.tensor in self.tensors and buffer.dtype is int64

    def _is_private(self, buffer: Buffer) -> bool:
        return self._is_count(buffer) and buffer.memory is not Memory.GLOBAL

    def _exchange(self, node: Collective) -> None:
        """Find which names and scratch buffers of an exchange hold sums of counts."""
        inner = [found for found, _ in walk(node.body)]
        stored: dict[Buffer, list[Expr]] = {}
        for found in inner:
            if isinstance(found, Store):
                stored.setdefault(found.storage, []).append(found.value)
        known = -1
        while known != len(self.names) + len(self.buffers):
            known = len(self.names) + len(self.buffers)
            for found in inner:
                if isinstance(found, (Let, Shuffle)) and self._adds(found.value):
                    self.names.setdefault(found.var, Local(found.var.name, int32))
            for buffer, values in stored.items():
                if buffer.dtype is int64 and all(map(self._adds, values)):
                    self.buffers.setdefault(buffer, replace(buffer, dtype=int32))

    def _adds(self, value: Expr) -> bool:
        """Whether a value of an exchange is a count: it goes to the sums where it is a sum."""
        if value.dtype is not int64:
            return False
        if isinstance(value, Const):
            return value.value == 0
        match value:
            case Op(op="add", args=(a, b)) if a is not b:
                found = self._is_leaf(a) and self._is_leaf(b)
            case Op(op="where", args=(_, a, b)):
                found = self._adds(a) and self._adds(b)
            case _:
                return self._is_leaf(value)
        if found:
            self.sums.add(value)
        return found

    def _is_leaf(self, value: Expr) -> bool:
        if isinstance(value, Load):
            return value.buffer in self.buffers or self._is_count(value.buffer)
        return value in self.names

    # Rewriting

    def statement(self, node: Stmt) -> Stmt:
        inner = tuple([tuple([self.statement(n) for n in body]) for body in bodies(node)])
        node = with_bodies(node, inner) if inner else node
        match node:
            case Allocate() if node.storage in self.buffers:
                return replace(node, storage=self.buffers[node.storage])
            case Store() if node.storage in self.buffers:
                value = cast(self._either(node.value), int32)
                index = tuple([self.wide(place) for place in node.index])
                return replace(node, storage=self.buffers[node.storage], index=index, value=value)
            case Let() | Shuffle():
                small = self.narrow(node.value)
                if small is None:
                    return map_expressions(node, self.wide)
                var = self.names.setdefault(node.var, Local(node.var.name, int32))
                return replace(node, var=var, value=small)
            case Collective():
                results = tuple([self.names.get(name, name) for name in node.results])
                args = tuple([self._either(a) for a in node.args])
                return replace(node, results=results, args=args)
        return map_expressions(node, self.wide)

    def narrow(self, node: Expr) -> Expr | None:
        """Return a count in int32; None of anything else."""
        if node.dtype is not int64:
            return None
        match node:
            case Const() if 0 <= node.value <= int32.greatest:
                return Const(node.value, int32)
            case Local():
                return self.names.get(node)
            case Load() if node.buffer in self.buffers or self._is_count(node.buffer):
                index = tuple([self.wide(place) for place in node.args])
                buffer = self.buffers.get(node.buffer, node.buffer)
                return cast(Load(buffer, index, node.flat), int32)
            case Op(op="max", args=args):
                return self._operation(node, args)
            case Op(op="add" | "where", args=args) if node in self.sums:
                return self._operation(node, args)
        return None

    def _either(self, node: Expr) -> Expr:
        found = self.narrow(node)
        return self.wide(node) if found is None else found

    def _operation(self, node: Op, args: tuple[Expr, ...]) -> Expr | None:
        made = [self.narrow(a) if a.dtype is int64 else self.wide(a) for a in args]
        kept = tuple([a for a in made if a is not None])
        if len(kept) != len(made):
            return None
        result = Op(node.op, kept, int32)
        if node.op != "where" and any(isinstance(a, Const) and a.value >= 1 for a in kept):
            self.positive.add(result)
        return result

    def wide(self, root: Expr) -> Expr:
        """Return an expression that reads counts in int32, of the type that it had."""
        return rewrite(root, self._rule)

    def _rule(self, node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.buffer not in self.buffers:
            return None
        if node.dtype is int64 and not isinstance(node, Const):
            small = self.narrow(node)
            return None if small is None else cast(small, int64)
        match node:
            case Op(op="cast", args=(value,)) if value.dtype is int64:
                count = self.narrow(value)
                return None if count is None else cast(count, node.dtype)
            case Op(op="div", args=(a, b)) if node.dtype is float32:
                left, right = self.wide(a), self.wide(b)
                made = Op("div", (left, right), float32)
                whole = isinstance(left, Const) and left.value == 1
                whole = whole or (isinstance(left, Op) and _from_int32(left))
                if whole and _from_int32(right) and right.args[0] in self.positive:
                    self.quotients.add(made)
                return made
            case Op(op=op, args=(a, b)) if op in _COMPARISONS and a.dtype is int64:
                sides = tuple([found for x in (a, b) if (found := self.narrow(x)) is not None])
                return Op(op, sides, bool_) if len(sides) == 2 else None
        return None


def _from_int32(node: Expr) -> bool:
    return isinstance(node, Op) and node.op == "cast" and node.args[0].dtype is int32
