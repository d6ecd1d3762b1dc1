"""The width of indices that a launch needs, and the values of its run-time tests.

Interval arithmetic over every index expression of a program, at given sizes. It is rigorous: an
intermediate sum or product that does not fit is found, too, as in the last, padded iteration of a
split loop. What holds for all sizes up to the next powers of two is found once for all of them: a
launch at sizes that grow by one then asks for nothing anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from loopnest import kir
from loopnest.scalar.arguments import size_value
from loopnest.scalar.dtypes import uint32
from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import (
    Buffer,
    Const,
    Expr,
    Index,
    LaunchIndex,
    Local,
    Op,
    Symbol,
    loads,
    terms_of,
    walk,
)
from loopnest.scalar.polynomials import index_op

Interval: TypeAlias = tuple[int, int]

INT32 = (1 << 31) - 1
UINT32 = (1 << 32) - 1
INT64 = (1 << 63) - 1


class IndexWidth:
    """The index expressions of a program, operands first, ready to be bounded at any sizes."""

    def __init__(self, program: kir.Program) -> None:
        self.program = program
        nodes = program.nodes
        self.lets = {n.var: n.value for n in nodes if isinstance(n, kir.Let)}
        self.buffers = _buffers(program, nodes)
        self.tests = _vector_tests(program)
        self.order: dict[Expr, None] = {}
        evaluated = dict.fromkeys([e for node in nodes for e in kir.expressions(node)])
        for node in nodes:
            if isinstance(node, kir.Loop):
                self._add(node.var)
        parts = list(walk(*evaluated))
        for part in parts:
            self._note(part)
        for difference in _differences(nodes):
            self._add(difference)
        for _, size in program.launch:
            self._add(size)
        for buffer in self.buffers:
            for e in (buffer.size, *buffer.strides):
                self._add(e)
        for _, most in program.counts:
            self._add(most)
        data = any(n.dtype.kind == "x" and isinstance(n, Op) and n.op == "cast" for n in parts)
        self.inside = _inside(evaluated) if data else set()
        self._in_box: dict[tuple[object, ...], bool] = {}
        """What is known of all sizes of the same numbers of bits."""

    def _add(self, root: Expr) -> None:
        if root not in self.order:
            for node in walk(root):
                self._note(node)

    def _note(self, node: Expr) -> None:
        """Take in one index expression, whose operands are known, behind what bounds it."""
        if node.dtype.kind != "x" or node in self.order:
            return
        bound: Expr | None = None
        if isinstance(node, Index):
            bound = node.extent
        elif isinstance(node, LaunchIndex):
            bound = self.program.launch_extent(node.dimension)
        elif isinstance(node, Local):
            bound = self.lets.get(node)
        if bound is not None:
            self._add(bound)
        self.order[node] = None

    def intervals(self, sizes: Mapping[str, int]) -> dict[Expr, Interval]:
        """Return the least and the largest value of each index expression."""
        return self._intervals(_exact(sizes))

    def _intervals(self, ranges: Mapping[str, Interval]) -> dict[Expr, Interval]:
        """Return what `intervals` does, for all sizes in ranges."""
        found: dict[Expr, Interval] = {}
        for node in self.order:
            found[node] = self._interval(node, ranges, found)
        return found

    def _interval(
        self, node: Expr, sizes: Mapping[str, Interval], found: Mapping[Expr, Interval]
    ) -> Interval:
        if node in self.inside:
            largest = {name: high for name, (_, high) in sizes.items()}
            return 0, max([size_value(b.size, largest) for b in self.buffers], default=0)
        match node:
            case Const():
                return int(node.value), int(node.value)
            case Symbol():
                return sizes[node.name]
            case Index():
                return 0, max(found[node.extent][1] - 1, 0)
            case LaunchIndex():
                extent = self.program.launch_extent(node.dimension)
                return 0, max(found[extent][1] - 1, 0) if extent is not None else 0
            case Local() if node in self.lets:
                return found[self.lets[node]]
            case Op() if node.op in _RULES:
                return _RULES[node.op](*[found[a] for a in node.args if a in found])
        return whole_range(node)

    def fits(self, sizes: Mapping[str, int], largest: int) -> bool:
        """Whether every index, size and intermediate value lies within +-`largest`."""
        return self._holds(sizes, largest, lambda box: self._beyond(box, largest) is None)

    def _holds(
        self,
        sizes: Mapping[str, int],
        question: object,
        answer: Callable[[Mapping[str, Interval]], bool],
    ) -> bool:
        """Whether something holds at sizes: known where it holds of all around them."""
        if not self.inside:  # their bound is exact for sizes alone
            key = (question, *[(name, size.bit_length()) for name, size in sizes.items()])
            if key not in self._in_box:
                self._in_box[key] = answer({n: _around(size) for n, size in sizes.items()})
            if self._in_box[key]:
                return True
        return answer(_exact(sizes))

    def _beyond(self, sizes: Mapping[str, Interval], largest: int) -> Expr | None:
        """Return the first index, size or intermediate value beyond +-`largest`, or None."""
        found = self._intervals(sizes)
        for node, (low, high) in found.items():
            if low < -largest or high > largest:
                return node
            # ceildiv(a, b) is computed as (a + b - 1) / b.
            rounded_up = isinstance(node, Op) and node.op == "ceildiv"
            if rounded_up and sum(found[a][1] for a in node.args) > largest:
                return node
        return None

    def too_large(self, sizes: Mapping[str, int] | None = None) -> str:
        """Return what exceeds 64 bits, as errors name it, at `sizes` or, without, at 1 each."""
        given = self._ones() if sizes is None else sizes
        for buffer in self.buffers:
            if size_value(buffer.size, given) > INT64:
                return f"an index exceeds 64 bits: {buffer.tensor} has {buffer.size} elements"
        return f"an index exceeds 64 bits: '{self._beyond(_exact(given), INT64)}'"

    def static_bits(self, more: Sequence[Expr] = ()) -> int | None:
        """Return the width that static sizes alone need, 32 or 64; None beyond 64 bits.

        Each size symbol counts as 1.

        Args:
            more: sizes of what a target makes beside the buffers.
        """
        ones = self._ones()
        if self.fits(ones, INT32) and all(size_value(size, ones) <= INT32 for size in more):
            return 32
        return 64 if self.fits(ones, INT64) else None

    def _ones(self) -> dict[str, int]:
        """Return 1 for each size symbol."""
        return {p.name: 1 for p in self.program.params if p.kind == "size"}

    def takes_vectors(self, sizes: Mapping[str, int]) -> bool:
        """Whether there are vectorized loops, and every test in one holds for all its lanes."""
        if self.tests is None:
            return False
        tests = self.tests

        def hold(box: Mapping[str, Interval]) -> bool:
            found = self._intervals(box)
            return all(_holds(test, found) for test in tests)

        return self._holds(sizes, "vectors", hold)


def _exact(sizes: Mapping[str, int]) -> dict[str, Interval]:
    return {name: (size, size) for name, size in sizes.items()}


def _around(size: int) -> Interval:
    """Return the sizes of as many bits."""
    bits = size.bit_length()
    return (1 << bits) >> 1, (1 << bits) - 1


def _buffers(program: kir.Program, nodes: Sequence[kir.Stmt]) -> list[Buffer]:
    params = [p.buffer for p in program.params if p.buffer is not None]
    return [*params, *[n.storage for n in nodes if isinstance(n, kir.Allocate)]]


def _differences(nodes: Sequence[kir.Stmt]) -> list[Expr]:
    """Return what a text computes of several data for the bounds of loops, and no nest has."""
    bounds = [n.condition for n in nodes if isinstance(n, kir.If) and n.reason == kir.BOUND]
    return [
        index_op("sub", term.args[1], term.args[0])
        for bound in bounds
        for term in terms_of(bound)
        if len(loads(term)) > 1
    ]


_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_FREE = ("min", "max", *_COMPARISONS)
"""What may be asked of an index that is data, whatever it is."""


def _inside(roots: Iterable[Expr]) -> set[Expr]:
    """Return indices that are data and must lie inside of an axis: such as are not clamped.

    The remainder of one is small whatever it is; a quotient is so only where the index is. Where a
    layout takes both, they are the digits of an index inside of its axis. Of what stands in sums
    that are compared, and in no place, nobody asks that it lies inside: it bounds a loop.
    """
    found: set[Expr] = set()
    compared: set[Expr] = set()
    placed: set[Expr] = set()
    free: set[Expr] = set()
    wrapped: set[Expr] = set()
    digits: set[Expr] = set()
    for root in roots:
        parts = [n for n in walk(root) if isinstance(n, Op)]
        found.update([n for n in parts if n.op == "cast" and n.dtype.kind == "x"])
        free.update([a for n in parts if n.op in _FREE for a in n.args])
        compared.update([a for n in parts if n.op in _COMPARISONS for a in walk(*n.args)])
        places = [i for load in loads(root) for i in load.args]
        placed.update(walk(*places, *([root] if root.dtype.kind == "x" else [])))
        remainders = [n for n in parts if n.op == "mod"]
        wrapped.update([n.args[0] for n in remainders])
        small = {q for n in remainders for q in walk(n.args[0])}
        quotients = [n for n in parts if n.op == "floordiv" and n not in small]
        digits.update([n.args[0] for n in quotients])
    return found - free - (compared - placed) - (wrapped - digits)


def _vector_tests(program: kir.Program) -> list[Expr] | None:
    """Return the tests inside vectorized loops; None where there is no such loop."""
    tests: list[Expr] = []
    found = False
    for node, ancestors in kir.walk(program.body):
        if isinstance(node, kir.Loop):
            found = found or _is_vector(node)
        elif isinstance(node, kir.If) and any(map(_is_vector, ancestors)):
            tests.append(node.condition)
    return tests if found else None


def _is_vector(node: kir.Stmt) -> bool:
    return isinstance(node, kir.Loop) and node.parallel is ParallelType.vectorize


def _holds(test: Expr, found: Mapping[Expr, Interval]) -> bool:
    if isinstance(test, Op) and test.op == "and":
        return all(_holds(a, found) for a in test.args)
    if isinstance(test, Op) and test.op in ("lt", "le") and all(a in found for a in test.args):
        (_, left), (right, _) = (found[a] for a in test.args)
        return left < right or (test.op == "le" and left == right)
    return isinstance(test, Const) and bool(test.value)


def whole_range(node: Expr) -> Interval:
    """Bound an index that is read from memory or chosen by a condition."""
    narrow = [a.dtype for a in node.args if a.dtype.size < 8] if isinstance(node, Op) else []
    most = UINT32 if uint32 in narrow else INT32 if narrow else INT64
    return -most, most


def _product(a: Interval, b: Interval) -> Interval:
    ends = [x * y for x in a for y in b]
    return min(ends), max(ends)


def _floordiv(a: Interval, b: Interval) -> Interval:
    if b[0] <= 0:  # a division by an extent 0 stands in a loop that does not run
        return min(a[0], 0), max(a[1], 0)
    ends = [x // y for x in a for y in b]
    return min(ends), max(ends)


def _ceildiv(a: Interval, b: Interval) -> Interval:
    low, high = _floordiv((-a[1], -a[0]), b)
    return -high, -low


def _bitwise(a: Interval, b: Interval) -> Interval:
    bits = max(abs(end) for end in (*a, *b)).bit_length()
    return (-(1 << bits) if min(a[0], b[0]) < 0 else 0), (1 << bits) - 1


_RULES: Mapping[str, Callable[..., Interval]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "neg": lambda a: (-a[1], -a[0]),
    "mul": _product,
    "floordiv": _floordiv,
    "ceildiv": _ceildiv,
    "mod": lambda a, b: (0, max(b[1] - 1, 0)),
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "where": lambda a, b: (min(a[0], b[0]), max(a[1], b[1])),
    "bitand": _bitwise,
    "bitor": _bitwise,
    "bitxor": _bitwise,
}
"""By operation: the interval of its result; of "where" it gets the two index operands alone."""
