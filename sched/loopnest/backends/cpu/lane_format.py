"""Expressions in C where some differ by lane: functions of vectors, masks, loads of some lanes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from loopnest.backends.clike.c_expressions import CFormat
from loopnest.backends.clike.dialect import ATOM, COND, OR, SUM, UNARY, Text
from loopnest.backends.cpu.lane_vectors import ARITHMETIC, LaneVectors
from loopnest.scalar.expr import Const, Expr, Load, Op


class LaneFormat(CFormat):
    """Formats expressions; while a loop is printed with vector types, by them what differs by lane.

    Conditions become masks: vectors of integers, 0 or -1 in each lane.
    """

    vectors: LaneVectors | None = None
    """What differs by lane in the loop that is being printed with vector types."""
    mask: str = ""
    """The lanes that take part; empty for all."""
    depth: int = 0
    """How many conditions that differ by lane stand around."""

    @contextmanager
    def lanes(self, vectors: LaneVectors, mask: str) -> Iterator[None]:
        """Write what differs by lane as vectors while a `with` block lasts."""
        self.vectors, self.mask = vectors, mask
        with self.renamed({}):  # what was written before stands for one lane
            yield
        self.vectors, self.mask = None, ""

    @contextmanager
    def under(self, mask: str) -> Iterator[None]:
        """Let loads be those of the lanes of one more mask."""
        outer = self.mask
        self.mask = f"{mask} & {outer}" if outer else mask
        self.depth += 1
        with self.renamed({}):
            yield
        self.mask = outer
        self.depth -= 1

    def vector(self, value: Expr, level: int = 0) -> str:
        """Return a value as a vector, one that is the same for all lanes too."""
        assert self.vectors is not None
        if self.vectors.varies(value):
            return self.format(value, level)
        return f"LN_ALL({self.vectors.type_name}, {self.format(value)})"

    def load(self, node: Load) -> str:
        place = super().load(node)
        if self.vectors is None or node not in self.vectors.places:
            return place
        name = self.vectors.type_name
        if node.dtype.is_bool:
            all_lanes = not self.mask or node in self.vectors.inside
            some = f"(&{place})" if all_lanes else f"_of(&{place}, {self.mask})"
            return f"{name}_load_mask{some}"
        if node in self.vectors.steps:
            step = self.vectors.steps[node]
            some = f"_of(&{place}, {step}, {self.mask})" if self.mask else f"(&{place}, {step})"
            return f"{name}_every{some}"
        if not self.mask or node in self.vectors.inside:
            return f"LN_VEC({name}, {place})"
        return f"{name}_load(&{place}, {self.mask})"

    def operation(self, node: Op) -> Text:
        vectors = self.vectors
        if vectors is None or node.op in ARITHMETIC or not vectors.varies(node):
            return super().operation(node)
        if node.op == "where":
            return self._select(node)
        if node.dtype.is_bool:
            return self._mask(node)
        if node.op == "cast":  # of a condition
            one, zero = Const(1.0, node.dtype), Const(0.0, node.dtype)
            return self._select(Op("where", (node.args[0], one, zero), node.dtype))
        arguments = ", ".join([self.vector(a) for a in node.args])
        return f"{vectors.type_name}_{node.op}({arguments})", ATOM

    def _select(self, node: Op) -> Text:
        assert self.vectors is not None
        condition, first, second = node.args
        if not self.vectors.varies(condition):
            either = f"{self._branch(first, OR)} : {self._branch(second, COND)}"
            return f"{self.format(condition, OR)} ? {either}", COND
        mask = self.format(condition, UNARY)
        with self.under(mask):
            then = self.vector(first)
        with self.under(f"~{mask}"):
            otherwise = self.vector(second)
        return f"{self.vectors.type_name}_where({mask}, {then}, {otherwise})", ATOM

    def _branch(self, value: Expr, level: int) -> str:
        """Return a branch of a conditional expression, both of which gcc wants of one type.

        What it computes of vectors has another type than vectors in memory, whose elements are
        aligned one by one.
        """
        assert self.vectors is not None
        if isinstance(value, Op) and value.op in ARITHMETIC and self.vectors.varies(value):
            return f"({self.vectors.type_name})({self.vector(value)})"
        return self.vector(value, level)

    def _mask(self, node: Op) -> Text:
        """Return a condition that differs by lane, in parentheses or behind a cast."""
        assert self.vectors is not None
        name = self.vectors.type_name
        if node in self.vectors.masks:
            bound, below = self.vectors.masks[node]
            var = self.format(self.vectors.var)
            mask = f"{name}_first({self.format(bound, SUM)} - {var})"
            return (mask, ATOM) if below else (f"~{mask}", UNARY)
        args = node.args
        if node.op == "not":
            return f"~{self.format(args[0], UNARY)}", UNARY
        if node.op in ("and", "or"):
            # Loads of the second are those of the lanes that the first does not decide.
            first = self.as_mask(args[0])
            with self.under(first if node.op == "and" else f"~{first}"):
                second = self.as_mask(args[1])
            return f"({first} {'&' if node.op == 'and' else '|'} {second})", ATOM
        sides = [self.format(a, UNARY) for a in (args * 2)[:2]]
        sign = _SIGNS[node.op]
        return f"({name}_mask)({sides[0]} {sign} {sides[1]})", UNARY

    def as_mask(self, condition: Expr) -> str:
        """Return a condition as a mask, one that is the same for all lanes too."""
        assert self.vectors is not None
        text = self.format(condition, UNARY)
        if self.vectors.varies(condition):
            return text
        # GCC takes no _Bool beside a vector, as a variable of bools is.
        return f"(({self.vectors.type_name}_mask){{0}} - (int){text})"


_SIGNS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "isnan": "!="}
