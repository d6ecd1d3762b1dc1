"""The value of an element as an expression over inputs, with the order of its folds, at all sizes.

Kernels of one form compute the same bits: the same operations on the same elements, each fold in
steps of one form (`fold_steps`). Copies leave no trace, so that tensors that a schedule made do not
matter. Forms are numbers in a table that several kernels share.

A product that is added at once may be rounded together with the sum; one that other loops, or other
threads, read is rounded by itself. That is a part of the form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from loopnest.proofs.obligations import Work
from loopnest.proofs.template_matching import reducer_of
from loopnest.scalar.enums import IterKind, Memory
from loopnest.scalar.expr import ZERO, Arg, Coordinate, Expr, Op
from loopnest.scalar.simplify import Simplifier
from loopnest.scalar.templates import at
from loopnest.tensor.definition import data_of
from loopnest.tensor.math_snapshot import MathSnapshot, MathTensor

Form: TypeAlias = "tuple[object, ...]"

_SUMS = ("add", "sub")
_BOUND = 1000
"""The first number of coordinates that stand for the place of a term in a fold."""


class FormTable:
    """Forms by number."""

    def __init__(self) -> None:
        self._numbers: dict[Form, int] = {}
        self.forms: list[Form] = []

    def number(self, form: Form) -> int:
        """Return the number of a form."""
        found = self._numbers.get(form)
        if found is None:
            found = self._numbers[form] = len(self.forms)
            self.forms.append(form)
        return found


class ValueForms:
    """The forms of a kernel's values.

    Args:
        math: what it computes.
        orders: by tensor the forms of the steps of its fold.
        works: its stores.
        table: where forms are numbered.
    """

    def __init__(
        self,
        math: MathSnapshot,
        orders: Mapping[str, tuple[str, ...]],
        works: Iterable[Work],
        table: FormTable,
    ) -> None:
        self.math, self.orders, self.table = math, orders, table
        self.algebra = Simplifier()
        self._works: dict[str, list[Work]] = {}
        for work in works:
            self._works.setdefault(work.tensor.name, []).append(work)
        self._values: dict[tuple[str, tuple[Expr, ...]], int] = {}

    def output(self, name: str) -> int:
        """Return the form of an element of an output."""
        tensor = self._tensor(name)
        return self._value(tensor, tuple([Coordinate(n) for n in range(len(tensor.logical))]), 0)

    def _tensor(self, name: str) -> MathTensor:
        found = self.math.tensor(name)
        assert found is not None
        return found

    def _value(self, tensor: MathTensor, index: tuple[Expr, ...], depth: int) -> int:
        key = (tensor.name, index)
        found = self._values.get(key)
        if found is None:
            found = self._values[key] = self._made(tensor, index, depth)
        return found

    def _made(self, tensor: MathTensor, index: tuple[Expr, ...], depth: int) -> int:
        if tensor.definition is None:
            return self.table.number(("input", tensor.name, *map(str, index)))
        if tensor.accumulates:
            return self._fold(tensor, index, depth)
        value = tensor.definition.values[tensor.definition.component]
        if tensor.is_factored:
            places = [Coordinate(_BOUND + 16 * depth + n) for n in range(len(tensor.root))]
            named = zip(tensor.places, index, strict=True)
            shown = tuple([f"{at(place, places)} is {i}" for place, i in named])
            found = self._template(tensor, value, places, depth + 1)
            return self.table.number(("reshaped", tensor.dtype.name, shown, found))
        kept = iter(index)
        root = [ZERO if a.kind is IterKind.REDUCTION else next(kept) for a in tensor.root]
        found = self._template(tensor, value, root, depth)
        narrow = tensor.dtype.is_narrow and value.dtype is not tensor.dtype
        return self.table.number(("round", tensor.dtype.name, found)) if narrow else found

    def _fold(self, tensor: MathTensor, index: tuple[Expr, ...], depth: int) -> int:
        definition, reducer = tensor.definition, reducer_of(tensor)
        assert definition is not None
        places = [Coordinate(_BOUND + 16 * depth + n) for n in range(len(tensor.root))]
        root: list[Expr] = list(places)
        named: tuple[str, ...] = ()
        if tensor.is_factored:
            named = tuple(
                [f"{at(p, places)} is {i}" for p, i in zip(tensor.places, index, strict=True)]
            )
        else:
            kept = iter(index)
            root = [
                p if a.kind is IterKind.REDUCTION else next(kept)
                for p, a in zip(places, tensor.root, strict=True)
            ]
        value = definition.values[definition.component]
        term = self._template(tensor, value, root, depth + 1, adds=reducer.name == "sum")
        how = (
            reducer.name,
            *map(str, reducer.combination),
            str(definition.scan),
            definition.component,
        )
        order = self.orders.get(tensor.name, ("exact",))
        return self.table.number(("fold", tensor.dtype.name, how, order, named, term))

    def _template(
        self, tensor: MathTensor, value: Expr, root: Sequence[Expr], depth: int, adds: bool = False
    ) -> int:
        """Return the form of a template at an element of the root domain."""
        definition = tensor.definition
        assert definition is not None
        known: dict[tuple[Expr, bool], int] = {}

        def visit(node: Expr, added: bool) -> int:
            key = (node, added)
            if key not in known:
                known[key] = made(node, added)
            return known[key]

        def made(node: Expr, added: bool) -> int:
            if isinstance(node, Arg):
                read = definition.reads[node.number]
                producer = self._tensor(read.producer)
                data = data_of(read.indices)
                place = [self.algebra.simplify(at(i, root)) for i in read.indices]
                if data:
                    parts = [visit(arg, False) for arg in data]
                    shown = tuple(map(str, place))
                    return self.table.number(("gather", self._where(producer), shown, *parts))
                places = tuple([
                    ZERO if a.kind is IterKind.BROADCAST else p
                    for a, p in zip(producer.logical, place, strict=True)
                ])  # fmt: skip
                found = self._value(producer, places, depth)
                if added and self.table.forms[found][:2] == ("op", "mul"):
                    return self.table.number(("product", self._reach(producer, tensor), found))
                return found
            if not isinstance(node, Op):
                leaf = at(node, root) if isinstance(node, Coordinate) else node
                return self.table.number(("leaf", str(leaf), node.dtype.name))
            if node.op in _SUMS:
                parts = [visit(arg, node.dtype.is_float) for arg in node.args]
            else:
                parts = [visit(arg, False) for arg in node.args]
            return self.table.number(("op", node.op, node.dtype.name, *parts))

        return visit(value, adds)

    def _where(self, tensor: MathTensor) -> int:
        """Return the form of a tensor that is read at places that are data."""
        return self._value(tensor, tuple([Coordinate(n) for n in range(len(tensor.logical))]), 0)

    def _reach(self, producer: MathTensor, reader: MathTensor) -> str:
        """Return how a product gets to the sum that takes it in."""
        reads = [work.site.loops for work in self._works.get(reader.name, ())]
        for work in self._works.get(producer.name, ()):
            if work.site.loops in reads:
                return "at once"
        memories = {w.store.storage.memory for w in self._works.get(producer.name, ())}
        # What a thread keeps for later the compiler may add at once or not.
        return f"kept {id(self)}" if Memory.LOCAL in memories or not memories else "stored"
