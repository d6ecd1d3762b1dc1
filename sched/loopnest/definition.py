"""Definitions: what a tensor computes at each element, and how its axes relate to its producers'.

One class serves every operation. A template in the scalar language gives the value of each output
at an element (`Arg(i)` is producer i there, `Coordinate(d)` the element's index); an axis map says
which root axis of the output each logical axis of a producer is; a reducer, if any, folds the
template over the reduction axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from loopnest.dtypes import DType
from loopnest.expr import Arg, Const, Expr, substitute

if TYPE_CHECKING:
    from loopnest.tensor import TensorView

AxisMap: TypeAlias = "tuple[int | None, ...]"
"""For each logical axis of a producer its root axis in the consumer; None where squeezed."""

Combine: TypeAlias = Callable[[tuple[Expr, ...], tuple[Expr, ...]], tuple[Expr, ...]]


@dataclass(frozen=True, eq=False, slots=True)
class Reducer:
    """How a reduction folds, as data: the same for a thread, a warp, a block and a grid.

    Args:
        name: "sum", "max", "welford"…
        components: how many values a partial result has (Welford: mean, variance, count).
        identity: the neutral partial result, given the components' types.
        combine: folds two partial results, given as expressions of the components' types.
    """

    name: str
    components: int
    identity: Callable[[tuple[DType, ...]], tuple[Const, ...]]
    combine: Combine


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
