"""Definitions: what a tensor computes at each element, and how its axes relate to its producers'.

One class serves every operation. A template in the scalar language gives the value of each output
at an element (`Arg(i)` is producer i there, `Coordinate(d)` the element's index); an axis map says
which root axis of the output each logical axis of a producer is; a reducer, if any, folds the
template over the reduction axes. All of it is data: no definition holds a function.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import Arg, Const, Expr, instantiate, substitute

if TYPE_CHECKING:
    from loopnest.tensor.tensor_view import TensorView

AxisMap: TypeAlias = "tuple[int | None, ...]"
"""For each logical axis of a producer its root axis in the consumer; None where squeezed."""


@dataclass(frozen=True, slots=True)
class Reducer:
    """How a reduction folds, as data: the same for a thread, a warp, a block and a grid.

    A partial result has n components, one a output (Welford: mean, variance, count). In the
    templates `Arg(k)` is component k of the one partial result, `Arg(n + k)` that of the other.

    Args:
        name: "sum", "max", "welford"…
        identity: the neutral partial result, a literal a component.
        combination: the components of two partial results in one, a template each.
        literals: components of the other partial result for which there is a cheaper form, None
            where any value will do; empty where there is none.
        special: the templates of that form.
    """

    name: str
    identity: tuple[Const, ...]
    combination: tuple[Expr, ...]
    literals: tuple[Const | None, ...] = ()
    special: tuple[Expr, ...] = ()

    @property
    def types(self) -> tuple[DType, ...]:
        """The types of the components."""
        return tuple([value.dtype for value in self.identity])

    def combine(self, one: tuple[Expr, ...], other: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return the components of two partial results in one."""
        assert self.types == tuple([value.dtype for value in one])
        fits = [known in (None, found) for known, found in zip(self.literals, other, strict=False)]
        cheaper = bool(fits) and all(fits)
        return instantiate(self.special if cheaper else self.combination, one, other)


@dataclass(frozen=True, eq=False, slots=True)
class Definition:
    """The expression that a tensor is the result of.

    Args:
        op: the operation's name, for people.
        operands: the operands as written: tensors and scalar expressions.
        producers: the distinct tensors read; `Arg(i)` stands for `producers[i]`.
        maps: one axis map a producer.
        outputs: the tensors that it defines, one a component of the reducer.
        values: one template an output (for a reduction: of the partial result of one element).
        reducer: how the values fold over the reduction axes; None for a pointwise definition.
        note: what `print_math` adds: "axis=1", "mask=(True, False)".
    """

    op: str
    operands: tuple[TensorView | Expr, ...]
    producers: tuple[TensorView, ...]
    maps: tuple[AxisMap, ...]
    outputs: tuple[TensorView, ...]
    values: tuple[Expr, ...]
    reducer: Reducer | None = None
    note: str = ""

    def with_producers(self, replace: dict[TensorView, TensorView]) -> Definition:
        """Return this definition reading other tensors of the same shape and type."""
        return Definition(
            self.op,
            tuple([o if isinstance(o, Expr) else replace.get(o, o) for o in self.operands]),
            tuple([replace.get(p, p) for p in self.producers]),
            self.maps,
            self.outputs,
            self.values,
            self.reducer,
            self.note,
        )

    def with_outputs(self, outputs: Iterable[TensorView]) -> Definition:
        """Return the same expression defining other tensors."""
        return Definition(
            self.op, self.operands, self.producers, self.maps, tuple(outputs), self.values,
            self.reducer, self.note,
        )  # fmt: skip

    def value(self, component: int, args: tuple[Expr, ...]) -> Expr:
        """Return the template of `component` with its operands' values put in."""
        mapping: dict[Expr, Expr] = {
            Arg(number, producer.dtype): value
            for number, (producer, value) in enumerate(zip(self.producers, args, strict=True))
        }
        return substitute(self.values[component], mapping)
