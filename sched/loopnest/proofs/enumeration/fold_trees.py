"""The trees in which the terms of elements are folded, at given sizes, by the flow of values.

A tree is a number in a table (`TreeTable`) that several programs and sizes share, so that equal
trees are equal numbers. What the identity adds is left out, and operands of sums and products have
no order: both leave the bits as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeAlias

import numpy as np

from loopnest.proofs.collectives.collective_contract import Outline
from loopnest.proofs.data_indices import Need
from loopnest.proofs.enumeration import EnumeratedFacts
from loopnest.proofs.fold_steps import constant, is_rounding
from loopnest.proofs.obligations import CollectiveMath, Work
from loopnest.proofs.point_arrays import Array, Flags, Undecidable
from loopnest.proofs.program_model import Site
from loopnest.proofs.template_matching import Combined, Operand, reducer_of
from loopnest.scalar.enums import IterKind
from loopnest.scalar.expr import Arg, Buffer, Coordinate, Expr, Op, Symbol, integer, substitute
from loopnest.tensor.math_snapshot import MathAxis, MathRead, MathSnapshot, MathTensor

Node: TypeAlias = "tuple[object, ...]"

EMPTY = 0
"""The tree of no term: the identity."""

_COMMUTING = ("sum", "prod", "max", "min")
_MOST_TEXT = 72
_MOST_PIECES = 64

MOST_PLACES = 1 << 14
"""How many elements are followed to what they are computed from."""


class TreeTable:
    """Trees by number."""

    def __init__(self) -> None:
        self.nodes: list[Node] = [("empty",)]
        self._numbers: dict[Node, int] = {("empty",): EMPTY}

    def number(self, node: Node) -> int:
        """Return the number of a tree."""
        found = self._numbers.get(node)
        if found is None:
            found = self._numbers[node] = len(self.nodes)
            self.nodes.append(node)
        return found

    def join(self, a: int, b: int, commutes: bool, reducer: str = "") -> int:
        """Return the combination of two trees by a reducer."""
        if EMPTY in (a, b):
            return a or b
        return self.number(("join", reducer, *(sorted((a, b)) if commutes else (a, b))))

    def exchanges(self, tree: int) -> set[Node]:
        """Return how threads combine what they have, wherever a tree does so."""
        found: set[Node] = set()
        stack, seen = [tree], {tree}
        while stack:
            node = self.nodes[stack.pop()]
            if node[0] == "exchange":
                found.add(node[1:3])
            below = [n for n in self.below(node) if n not in seen]
            seen.update(below)
            stack += below
        return found

    def leaves(self, tree: int) -> list[int]:
        """Return what a tree of combinations folds."""
        found: list[int] = []
        stack = [tree]
        while stack:
            number = stack.pop()
            node = self.nodes[number]
            inner = self.below(node) if node[0] in ("join", "exchange") else ()
            found += [] if inner or number == EMPTY else [number]
            stack += inner
        return found

    def parting(self, a: int, b: int) -> tuple[int, int]:
        """Return the smallest parts in which two different trees differ."""
        while True:
            one, other = self.below(self.nodes[a]), self.below(self.nodes[b])
            left = [n for n in one if n not in other]
            right = [n for n in other if n not in one]
            if len(left) != 1 or len(right) != 1 or len(one) != len(other):
                return a, b
            (a,), (b,) = left, right

    def text(self, tree: int) -> str:
        """Return the sum that a tree is, cut where it is long."""
        found = "".join(islice(self._pieces(tree), _MOST_PIECES + 1))
        return found if len(found) <= _MOST_TEXT else f"{found[:_MOST_TEXT]}…"

    def _pieces(self, tree: int) -> Iterator[str]:
        """Yield the text of a tree in pieces: it may be very long."""
        node = self.nodes[tree]
        match node[0]:
            case "input":
                yield f"{node[1]}{list(node[2])}"  # type: ignore[call-overload] # a place
            case "number" | "leaf":
                yield f"{node[-1] if node[0] == 'number' else node[1]}"
            case "join" if node[1] == "sum":
                for n, part in enumerate(self._chain(tree)):
                    yield " + " if n else ""
                    inner = self.nodes[part][0] == "join"
                    yield "(" if inner else ""
                    yield from self._pieces(part)
                    yield ")" if inner else ""
            case _:
                yield f"{node[0] if node[0] == 'exchange' else node[1]}("
                for n, part in enumerate(self.below(node)):
                    yield ", " if n else ""
                    yield from self._pieces(part)
                yield ")"

    def _chain(self, tree: int) -> list[int]:
        """Return what a sum adds one after another, from its first term on."""
        found: list[int] = []
        while True:
            parts = self.below(self.nodes[tree])
            inner = [n for n in parts if self.nodes[n][0] == "join"]
            if len(inner) != 1:
                return [*parts, *reversed(found)]
            (tree,) = inner
            found += [n for n in parts if n != tree]

    @staticmethod
    def below(node: Node) -> tuple[int, ...]:
        """Return the trees that a tree is made of."""
        first = {"join": 2, "exchange": 4, "op": 3, "set": 2}.get(str(node[0]), len(node))
        return tuple([int(str(n)) for n in node[first:]])


class FoldTrees:
    """The trees of a program at given sizes.

    Args:
        facts: the program, with the flow of its values.
        table: where the trees are numbered.
    """

    def __init__(self, facts: EnumeratedFacts, table: TreeTable) -> None:
        self.facts, self.table = facts, table
        self.contents, self.points = facts.contents, facts.space.points
        self._rows: dict[tuple[Buffer, int], int] = {}
        self._terms: dict[Work, tuple[Array, Flags]] = {}
        self._threads: dict[tuple[Site, int, int], int] = {}
        self._groups: dict[Site, Array] = {}

    def of(self, tensor: MathTensor, element: Sequence[int]) -> int | None:
        """Return the tree of an element; None where nobody stores it.

        Raises:
            Undecidable: it depends on data, or on what other launches left.
        """
        shape = self.contents.shape(tensor.logical)
        wanted = int(np.ravel_multi_index(tuple(element), shape)) if shape else 0
        works = [w for w in self.facts.works if w.tensor is tensor]
        ends = [w for w in works if w.kind == "finish"] or [
            w for w in works if w.kind in ("update", "merge")
        ]
        for buffer in dict.fromkeys([w.store.storage for w in reversed(ends)]):
            writes = self.contents.writes(buffer)
            numbers = [n for n, w in enumerate(writes.works) if w in ends]
            rows = np.flatnonzero(np.isin(writes.work, numbers) & (writes.element == wanted))
            if rows.size:
                return self._row(buffer, int(rows[-1]))
        return None

    def _row(self, buffer: Buffer, row: int) -> int:
        """Return the tree that a store leaves, by its place among the stores to its buffer."""
        found = self._rows.get((buffer, row))
        if found is not None:
            return found
        writes = self.contents.writes(buffer)
        begin = row
        while not writes.starts[begin]:
            begin -= 1
            if begin < 0 or writes.key[begin] != writes.key[row]:
                raise Undecidable("a partial result that nothing starts")
        tree = EMPTY
        for n in range(begin, row + 1):
            work, point = writes.works[int(writes.work[n])], int(writes.point[n])
            tree = self._after(tree, work, point)
            self._rows[buffer, n] = tree
        return tree

    def _after(self, tree: int, work: Work, point: int) -> int:
        """Return the tree that a store leaves where `tree` was."""
        commutes = reducer_of(work.tensor).name in _COMMUTING
        match work.kind:
            case "init":
                return EMPTY
            case "update":
                return self.table.join(tree, self._term(work, point), commutes)
            case "merge":
                if work.part is None:
                    raise Undecidable("a merge of nothing")
                return self.table.join(tree, self._operand(work, work.part, point), commutes)
            case "partial" | "finish":
                return self._operand(work, work.needs[0], point)
        raise Undecidable(f"a {work.kind} among partial results")

    def _term(self, work: Work, point: int) -> int:
        if work not in self._terms:
            points = self.points[work.site]
            coordinate = [self.facts.table.array(points, c) for c in work.store.coordinate]
            held = self.contents.elements(work)
            self._terms[work] = np.array(coordinate).reshape(-1, points.count), held.count > 0
        coordinates, counts = self._terms[work]
        if not counts[point]:
            return EMPTY
        place = tuple([int(c) for c in coordinates[:, point]])
        return self.table.number(("term", work.tensor.name, place))

    def _operand(self, work: Work, need: Need, point: int) -> int:
        return self._found(need.operand, point)

    def _found(self, operand: Operand, point: int) -> int:
        if isinstance(operand, Combined):
            return self._exchanged(operand, point)
        mark, _, source = self.contents.own(operand)
        place = int(np.searchsorted(mark.where, point))
        row = int(source[place]) if place < mark.where.size and mark.where[place] == point else -1
        if row < 0:
            raise Undecidable("a partial result of another launch")
        return self._row(mark.access.buffer, row)

    def _group(self, exchange: CollectiveMath) -> Array:
        if exchange.site not in self._groups:
            self._groups[exchange.site] = self.contents.groups(exchange)
        return self._groups[exchange.site]

    def _exchanged(self, operand: Combined, point: int) -> int:
        """Return what a collective gives the thread of a point."""
        exchange = self.contents.exchanges[operand.moment]
        node = exchange.node
        points = self.points[operand.site].take(np.array([point]))
        own = int(self.facts.table.lookup(exchange.site, points)[0])
        group = self._group(exchange)
        key = (exchange.site, operand.component, own if node.scan else -1 - int(group[own]))
        if key not in self._threads:
            members = np.flatnonzero(group == group[own])
            turn = self.contents.turns(exchange)
            members = members[np.argsort(turn[members], kind="stable")]
            argument = exchange.args[operand.component % len(exchange.args)]
            place = -1
            if node.is_so_far(operand.component):
                place = int(np.flatnonzero(members == own)[0])
                members = members[: place + (node.scan == "inclusive")]
            parts = [self._found(argument, int(m)) for m in members]
            shape = tuple(self.facts.space.block)
            head = ("exchange", Outline(node, frozenset()).text, shape, (operand.component, place))
            self._threads[key] = self.table.number((*head, *parts))
        return self._threads[key]


class ValueTrees:
    """How elements are computed from the inputs, at given sizes: the math, with the trees of folds.

    Args:
        math: of the whole program.
        sizes: the value of every size symbol.
        launches: the trees of each launch.
    """

    def __init__(
        self, math: MathSnapshot, sizes: Mapping[str, int], launches: Sequence[FoldTrees]
    ) -> None:
        self.math, self.launches, self.table = math, launches, launches[0].table
        self._sizes: dict[Expr, Expr] = {Symbol(n): integer(value) for n, value in sizes.items()}
        self._values: dict[tuple[str, tuple[int, ...]], int] = {}

    def shape(self, axes: Sequence[MathAxis]) -> tuple[int, ...]:
        """Return extents as numbers."""
        return self.launches[0].contents.shape(axes)

    def value(self, tensor: MathTensor, place: tuple[int, ...]) -> int:
        """Return the tree of an element, down to elements of inputs.

        Raises:
            Undecidable: it depends on data, on an element that nobody stores, or on too many.
        """
        key = (tensor.name, place)
        found = self._values.get(key)
        if found is None:
            if len(self._values) > MOST_PLACES:
                raise Undecidable("an element that is computed from too many")
            found = self._values[key] = self._value(tensor, place)
        return found

    def _value(self, tensor: MathTensor, place: tuple[int, ...]) -> int:
        definition = tensor.definition
        if definition is None:
            return self.table.number(("input", tensor.name, place))
        if tensor.is_factored or tensor.accumulates:
            return self._fold(tensor, place)
        kept = iter(place)
        root = [0 if a.kind is IterKind.REDUCTION else next(kept) for a in tensor.root]
        return self._template(tensor, root)

    def _fold(self, tensor: MathTensor, place: tuple[int, ...]) -> int:
        tree = self._tree(tensor, place)
        known: dict[int, int] = {EMPTY: EMPTY}
        reducer = reducer_of(tensor).name

        stack = [tree]  # no recursion: a chain of sums is as deep as it is long
        while stack:
            number = stack[-1]
            node = self.table.nodes[number]
            waiting = [n for n in self.table.below(node) if n not in known]
            stack += reversed(waiting)
            if waiting:
                continue
            stack.pop()
            parts = [known[n] for n in self.table.below(node)]
            match node[0]:
                case "term":
                    assert isinstance(node[2], tuple)
                    known[number] = self._template(tensor, node[2])
                case "join":
                    a, b = parts
                    known[number] = self.table.join(a, b, reducer in _COMMUTING, reducer)
                case "exchange":
                    known[number] = self.table.number((*node[:4], *parts))
        found = known[tree]
        if is_rounding(tensor):
            return found
        # Any order gives one number, but for the sign of a zero: this is no tree that may differ.
        return self.table.number(("set", reducer, *sorted(self.table.leaves(found))))

    def _tree(self, tensor: MathTensor, place: tuple[int, ...]) -> int:
        for trees in self.launches:
            own = trees.facts.math.tensor(tensor.name)
            found = None if own is None or own.definition is None else trees.of(own, place)
            if found is not None:
                return found
        raise Undecidable(f"nobody stores {tensor.name}{place}")

    def _template(self, tensor: MathTensor, root: Sequence[int]) -> int:
        """Return the value of a definition at an element of its root domain."""
        definition = tensor.definition
        assert definition is not None
        env = dict(self._sizes) | {Coordinate(n): integer(c) for n, c in enumerate(root)}

        def visit(node: Expr) -> int:
            if isinstance(node, Arg):
                return self.value(*self._read(definition.reads[node.number], env))
            number = constant(substitute(node, env))
            if number is not None and not node.dtype.is_float:
                return self.table.number(("number", node.dtype.name, number))
            if not isinstance(node, Op):
                return self.table.number(("leaf", str(node), node.dtype.name))
            if node.op == "where":
                side = constant(substitute(node.args[0], env))
                if side is not None:
                    return visit(node.args[1 if side else 2])
            parts = [visit(arg) for arg in node.args]
            return self.table.number(("op", node.op, node.dtype.name, *parts))

        found = visit(definition.values[definition.component])
        same = definition.values[definition.component].dtype is tensor.dtype
        wide = definition.reducer is not None or not tensor.dtype.is_narrow
        return (
            found if same or wide else self.table.number(("op", "round", tensor.dtype.name, found))
        )

    def _read(self, read: MathRead, env: dict[Expr, Expr]) -> tuple[MathTensor, tuple[int, ...]]:
        producer = self.math.tensor(read.producer)
        assert producer is not None
        place = []
        for index, extent in zip(read.indices, self.shape(producer.logical), strict=True):
            number = 0 if extent == 1 else constant(substitute(index, env))
            if number is None or not 0 <= number < extent:
                raise Undecidable(f"{read.producer} is read at {index}")
            place.append(number)
        return producer, tuple(place)


def parted_sums(table: TreeTable, one: int, other: int) -> tuple[int, int] | None:
    """Return the sums in which two trees differ, where these fold the same terms; else None."""
    a, b = table.parting(one, other)
    first, second = table.nodes[a], table.nodes[b]
    if first[0] != "join" or first[:2] != second[:2] or table.exchanges(a) or table.exchanges(b):
        return None
    return (a, b) if sorted(table.leaves(a)) == sorted(table.leaves(b)) else None
