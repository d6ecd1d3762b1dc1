"""Collectives' declarations, checked for every shape of the block that a launch may have.

Bodies that differ in names only are checked once a process. Where one extent of the block is
symbolic, every extent that leaves a block within the launch limits is tried: there are at most
1024, so that this is a proof for all sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from loopnest import kir
from loopnest.proofs.collectives.collective_machine import (
    IDEMPOTENT,
    MOST_LANES,
    Shape,
    check,
    check_many,
)
from loopnest.proofs.point_arrays import OPERATIONS, Undecidable, number
from loopnest.scalar.enums import (
    BLOCK_DIMENSIONS,
    MOST_ALONG,
    MOST_THREADS,
    ParallelType,
)
from loopnest.scalar.expr import (
    ONE,
    Arg,
    Buffer,
    Const,
    Expr,
    Index,
    Load,
    Local,
    Op,
    Symbol,
    TextFormat,
    walk,
)

MOST_SIZE = 1 << 15
"""Sizes are tried up to this one, where the extents of a block follow from it."""


_KNOWN: dict[tuple[object, ...], str | None] = {}
"""What is wrong with a body in one shape of a block."""

_RIGHT: set[tuple[object, ...]] = set()
"""Bodies that are right in all shapes, whatever their reducer is called."""


def is_declared(node: kir.Stmt) -> bool:
    """Whether a statement is a collective that is done as declared: it has no body but barriers.

    The host does so where a launch has no thread: bodies count on its extents.
    """
    return isinstance(node, kir.Collective) and all(isinstance(n, kir.Barrier) for n in node.body)


class Body:
    """A collective, whose declaration is to be checked."""

    def __init__(self, node: kir.Collective) -> None:
        self.node = node
        self._outlines: dict[frozenset[Expr], Outline] = {}

    def check(self, block: Shape, numbers: Mapping[Expr, int]) -> str | None:
        """Return what `collective.check` does, from memory where an equal body was checked.

        Raises:
            Undecidable: the block is far beyond what a launch may have.
        """
        if is_declared(self.node):
            return None
        if min(block) < 1:  # sizes of no launch: loops are split by D - 4, which is negative
            return None
        threads = math.prod(block)
        if threads > MOST_LANES:
            raise Undecidable(f"a block of {threads} threads; a launch has at most {MOST_THREADS}")
        known = frozenset(numbers)
        outline = self._outlines.get(known)
        if outline is None:
            outline = self._outlines[known] = Outline(self.node, known)
        key = (self.node.name, outline.text, block, *[numbers[e] for e in outline.used])
        if key not in _KNOWN:
            _KNOWN[key] = check(self.node, block, numbers)
        return _KNOWN[key]

    def check_all(
        self,
        extents: Mapping[ParallelType, Expr],
        sizes: Mapping[str, int],
        conditions: Sequence[Expr] = (),
    ) -> str | None:
        """Return what is wrong with it in any block of these extents.

        Args:
            extents: of the launch.
            sizes: the size symbols that have a value.
            conditions: what is assumed of sizes.

        Raises:
            Undecidable: there are too many shapes, or it depends on more than these.
        """
        if is_declared(self.node):
            return None
        given: dict[Expr, int] = {Symbol(name): value for name, value in sizes.items()}
        known = {d: _static(extents.get(d, ONE), sizes) for d in BLOCK_DIMENSIONS}
        free = [d for d, value in known.items() if value is None]
        if len(free) > 1:
            raise Undecidable("two symbolic extents of a block")
        if not free:
            shape = [value or 0 for value in known.values()]
            problem = self.check((shape[0], shape[1], shape[2]), given)
            return None if problem is None else f"in a block of {tuple(shape)}: {problem}"
        cases = list(self._cases(free[0], extents[free[0]], known))
        allowed = _allowed(extents[free[0]], conditions, MOST_ALONG[free[0]])
        if allowed is not None:
            cases = [case for case in cases if case[0] in allowed]
        return self._check_cases(cases, known, given) if cases else None

    def _check_cases(
        self,
        cases: Sequence[tuple[int, dict[Expr, int]]],
        known: Mapping[ParallelType, int | None],
        given: Mapping[Expr, int],
    ) -> str | None:
        """Check all shapes, many at a time; those of a batch that fails are checked one by one."""
        outline = Outline(self.node, frozenset([*given, *cases[0][1]]))
        tried = tuple([value for value, _ in cases])
        key = (outline.text, tuple(known.values()), tried, *[given.get(e) for e in outline.used])
        of_these = (self.node.name in IDEMPOTENT, *key)
        if key in _RIGHT or of_these in _RIGHT:
            return None
        for some in _batches(cases, known):
            shapes = [_shape(value, known) for value, _ in some]
            numbers = {e: [case[e] for _, case in some] for e in some[0][1]}
            same = {e: [value] * len(some) for e, value in given.items()}
            if check_many(self.node, shapes, {**same, **numbers}) is not None:
                key = of_these  # a contribution may be taken twice
                problem = self._check_each(some, known, given)
                if problem is not None:
                    return problem
        _RIGHT.add(key)
        return None

    def _check_each(
        self,
        cases: Sequence[tuple[int, dict[Expr, int]]],
        known: Mapping[ParallelType, int | None],
        given: Mapping[Expr, int],
    ) -> str | None:
        for value, numbers in cases:
            shape = _shape(value, known)
            problem = self.check(shape, {**given, **numbers})
            if problem is not None:
                return f"in a block of {shape}: {problem}"
        return None

    def _cases(
        self, dim: ParallelType, extent: Expr, known: Mapping[ParallelType, int | None]
    ) -> Iterator[tuple[int, dict[Expr, int]]]:
        """Yield each value of the symbolic extent, with the numbers that go with it."""
        rest = int(np.prod([v for v in known.values() if v is not None]))
        most = min(MOST_THREADS // max(rest, 1), MOST_ALONG[dim])
        if most == 0:
            raise Undecidable(f"a block of more than {MOST_THREADS} threads")
        others = [e for e in self._sizes() if extent not in set(walk(e))]
        if not others:
            for value in range(1, most + 1):
                yield value, {extent: value}
            return
        symbols = {n for e in (extent, *others) for n in walk(e) if isinstance(n, Symbol)}
        if len(symbols) != 1:
            raise Undecidable("a collective that depends on two sizes")
        (symbol,) = symbols
        tried = {symbol: np.arange(1, MOST_SIZE + 1)}
        value = _evaluated(extent, tried)
        if value[-1] <= most or not _grows(extent):
            raise Undecidable(f"the extent {extent}, which has too many sizes")
        table = np.stack([value, *[_evaluated(e, tried) for e in others]], axis=1)
        table = table[(value >= 1) & (value <= most)]
        for row in np.unique(table, axis=0).tolist():
            yield row[0], dict(zip((extent, *others), row, strict=True))

    def _sizes(self) -> list[Expr]:
        """Return the largest expressions of sizes alone in the body."""
        found: dict[Expr, None] = {}
        for node, _ in kir.walk(self.node.body):
            stack = [*kir.expressions(node)]
            if isinstance(node, kir.Allocate):
                storage = node.storage
                stack += (*storage.shape, *storage.strides, storage.size)
            if isinstance(node, kir.Loop):
                stack.append(node.var.extent)
            while stack:
                part = stack.pop()
                leaves = [n for n in walk(part) if not isinstance(n, (Op, Const)) or not n.args]
                if all(isinstance(n, (Symbol, Const)) for n in leaves):
                    if any(isinstance(n, Symbol) for n in leaves):
                        found[part] = None
                else:
                    stack += part.args
        return list(found)


def _shape(value: int, known: Mapping[ParallelType, int | None]) -> Shape:
    x, y, z = [value if size is None else size for size in known.values()]
    return x, y, z


def _batches(
    cases: Sequence[tuple[int, dict[Expr, int]]], known: Mapping[ParallelType, int | None]
) -> Iterator[Sequence[tuple[int, dict[Expr, int]]]]:
    """Yield the cases in parts of not too many threads."""
    some: list[tuple[int, dict[Expr, int]]] = []
    threads = 0
    for case in cases:
        some.append(case)
        threads += math.prod(_shape(case[0], known))
        if threads > 2 * MOST_LANES:
            yield some
            some, threads = [], 0
    if some:
        yield some


def _static(extent: Expr, sizes: Mapping[str, int]) -> int | None:
    try:
        return number(extent, sizes)
    except KeyError:
        return None


def _allowed(extent: Expr, conditions: Sequence[Expr], most: int) -> set[int] | None:
    """Return the values of an extent that assumptions leave; None where they are not all known.

    They are where larger sizes than those that are tried are excluded, or make the extent larger
    than `most`.
    """
    symbols = {n for n in walk(extent) if isinstance(n, Symbol)}
    mine = [c for c in conditions if {n for n in walk(c) if isinstance(n, Symbol)} == symbols]
    if len(symbols) != 1 or not mine:
        return None
    tried = {symbol: np.arange(1, MOST_SIZE + 1) for symbol in symbols}
    value = _evaluated(extent, tried)
    too_large = _grows(extent) and value[-1] > most
    if not too_large and not any(_is_exceeded(c, tried) for c in mine):
        return None
    held = np.logical_and.reduce([_evaluated(c, tried) for c in mine])
    return set(value[held].tolist())


def _grows(node: Expr) -> bool:
    """Whether an expression gets no smaller as sizes grow, from the largest that are tried on."""
    match node:
        case Const():
            return bool(node.value >= 0)
        case Symbol():
            return True
        case Op(op="add" | "min" | "max" | "cast"):
            return all(map(_grows, node.args))
        case Op(op="mul"):
            return all(map(_grows, node.args)) and not any(
                isinstance(n, Op) and n.op == "sub" for n in walk(node)
            )
        case Op(op="sub"):
            return _grows(node.args[0]) and isinstance(node.args[1], Const)
        case Op(op="floordiv" | "ceildiv", args=(whole, Const() as by)):
            return _grows(whole) and bool(by.value > 0)
    return False


def _is_exceeded(condition: Expr, tried: Mapping[Symbol, Any]) -> bool:
    """Whether an assumption is a bound that the sizes beyond those that are tried do not meet."""
    match condition:
        case Op(op="lt" | "le" | "eq", args=(found, Const() as bound)):
            pass
        case Op(op="gt" | "ge" | "eq", args=(Const() as bound, found)):
            pass
        case _:
            return False
    return _grows(found) and bool(_evaluated(found, tried)[-1] > bound.value)


def _evaluated(node: Expr, values: Mapping[Symbol, Any]) -> Any:
    match node:
        case Const():
            return np.full(MOST_SIZE, int(node.value))
        case Symbol():
            return values[node]
        case Op() if node.op in OPERATIONS:
            return OPERATIONS[node.op](*[_evaluated(a, values) for a in node.args])
    raise Undecidable(f"an extent depends on data: {node}")


_NAMES = ("axis", "tensor", "role", "reason")
"""Fields by which people tell statements apart that do the same."""


class Outline(TextFormat):
    """A text of a collective in which names are numbers, in order of appearance.

    Args:
        node: the collective.
        known: expressions that get a number from outside; `used` are those that it depends on.
    """

    def __init__(self, node: kir.Collective, known: frozenset[Expr]) -> None:
        self.node, self.known = node, known
        self.used: list[Expr] = []
        self._numbers: dict[object, int] = {}
        self._template = node.combine
        head = [str(node.dims), node.scan, str(node.ordered), *[f"{a.dtype}" for a in node.args]]
        if self._binary(self._template[0]) is None:
            head += [str(t) for t in (*self._template, *node.identity)]
        lines = [*head, *self._body(node.body, 0), *map(self.format, node.results)]
        self.text = "\n".join(lines)

    def _body(self, body: tuple[kir.Stmt, ...], depth: int) -> Iterator[str]:
        for node in body:
            parts = [type(node).__name__, *map(self.format, kir.expressions(node))]
            for field in fields(node):
                if field.name not in _NAMES and field.name not in node.evaluates:
                    parts += self._field(getattr(node, field.name))
            yield f"{depth} {' ; '.join(parts)}"
            for inner in kir.bodies(node):
                yield f"{depth} body"
                yield from self._body(inner, depth + 1)

    def _field(self, value: object) -> Iterator[str]:
        """Yield what a field tells besides the expressions and bodies of its statement."""
        match value:
            case Index():
                yield from (self.format(value.extent), self._number(value))
            case Local():
                yield from (self._number(value), value.dtype.name)
            case Buffer():
                yield from (self._buffer(value), value.memory.value)
                yield from map(self.format, (*value.shape, *value.strides, value.size))
            case str() | int() | ParallelType():
                yield str(value)

    def _number(self, thing: object) -> str:
        return f"n{self._numbers.setdefault(thing, len(self._numbers))}"

    def _buffer(self, buffer: Buffer) -> str:
        space = self._number(buffer.alias_of or buffer.name)
        return f"{self._number(buffer)}:{buffer.dtype.name}:{space}"

    def _binary(self, node: Expr) -> tuple[Expr, ...] | None:
        """Return the operands of a combination, where it is one operation on two values."""
        template = self._template[0]
        if len(self._template) > 1 or not isinstance(template, Op):
            return None
        if not all(isinstance(a, Arg) for a in template.args) or len(template.args) != 2:
            return None
        same = isinstance(node, Op) and (node.op, node.dtype) == (template.op, template.dtype)
        return node.args if same else None

    def format(self, node: Expr, level: int = 0) -> str:
        both = self._binary(node)
        if both is not None:
            return f"combine({', '.join(map(self.format, both))})"
        if node in self.node.identity:
            return f"$identity{self.node.identity.index(node)}"
        if node in self.node.args:
            return f"$arg{self.node.args.index(node)}"
        if node in self.known:
            if node not in self.used:
                self.used.append(node)
            return f"$size{self.used.index(node)}"
        match node:
            case Local() | Index():
                return self._number(node)
            case Load():
                inner = ", ".join([self.format(a) for a in node.args])
                return f"{self._buffer(node.buffer)}[{node.flat}, {inner}]"
            case Const():
                return f"{node.dtype.name} {node.value!r}"
        return super().format(node, level)
