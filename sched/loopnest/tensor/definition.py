"""Definitions: what a tensor computes at each element, and how its axes relate to its producers'.

One class serves every operation. A template in the scalar language gives the value of each output
at an element (`Arg(i)` is what read i finds, `Coordinate(d)` the element's index); a read says
which element of a producer that is, by an index template for each of the producer's axes; a
reducer, if any, folds the template over the reduction axes. All of it is data: no definition holds
a function.

A read need not stay inside of its producer. Where it does not, its `Arg` must stand under a
``where`` of the template whose condition, of coordinates and sizes alone, is false there: a load
under a false condition is never performed. A padded tensor is
``where(0 <= #0 - 1 and #0 - 1 < N, $0, 0.0)``: what stands outside is a part of the template.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from loopnest.base.fast_init import fast_init
from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import (
    ZERO,
    Arg,
    Const,
    Coordinate,
    Expr,
    substitute,
    walk,
)
from loopnest.scalar.templates import instantiate

if TYPE_CHECKING:
    from loopnest.tensor.domain import IterDomain
    from loopnest.tensor.tensor_view import TensorView

AxisMap: TypeAlias = "tuple[int | None, ...]"
"""For each logical axis of a producer the root axis of the consumer that it is; else None."""


@fast_init
@dataclass(frozen=True, slots=True)
class Read:
    """Which element of a producer a definition reads, at an element of its own.

    Args:
        producer: the tensor read.
        indices: for each logical axis of `producer` the index along it, in terms of the reader's
            root coordinates, sizes and integers; of what is gathered, of the `Arg`s of other
            reads too (see `data_of`). A broadcast axis is read at 0, whatever it says.
    """

    producer: TensorView
    indices: tuple[Expr, ...]

    @property
    def data(self) -> tuple[Arg, ...]:
        """What the indices are computed from that other reads of the definition find."""
        return data_of(self.indices)

    @classmethod
    def along(cls, producer: TensorView, axes: AxisMap) -> Read:
        """Return the read of `producer` at the same index along `axes`, 0 along others."""
        return cls(producer, tuple([ZERO if a is None else Coordinate(a) for a in axes]))

    def equal_axes(self, root: Sequence[IterDomain]) -> AxisMap:
        """Return for each axis of the producer the number of the reader's root axis that it equals.

        None for an axis that is read at another index, or has another extent, by all that is
        assumed of sizes. A broadcast axis equals any axis along which it is repeated.
        """
        algebra = self.producer.fusion.algebra
        return tuple(
            [
                index.number
                if isinstance(index, Coordinate)
                and (axis.is_broadcast or algebra.equal(axis.size, root[index.number].size))
                else None
                for axis, index in zip(self.producer.domain.logical, self.indices, strict=True)
            ]
        )


def data_of(indices: Iterable[Expr]) -> tuple[Arg, ...]:
    """Return the `Arg`s in index templates, each once: indices that depend on data.

    The reads that these stand for have none themselves. An index that leaves the producer has no
    meaning: that it lies inside is what the math asks of the data, wherever the read happens.
    """
    return tuple(dict.fromkeys([n for index in indices for n in walk(index) if isinstance(n, Arg)]))


@dataclass(frozen=True, slots=True)
class TracedReducer:
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
        ordered: whether partial results are combined in the order of their elements only:
            `combination` need not commute.
    """

    name: str
    identity: tuple[Const, ...]
    combination: tuple[Expr, ...]
    literals: tuple[Const | None, ...] = ()
    special: tuple[Expr, ...] = ()
    ordered: bool = False

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


@dataclass(frozen=True, slots=True)
class Scan:
    """Along which axis a definition keeps what it has folded so far, at each element.

    The axis is an iteration axis of the result, like any other: its elements are stored, and
    consumers share its loops. Only the loops of the definition itself must run in its order.

    Args:
        axis: a root axis.
        exclusive: whether an element has what lies before it, without itself.
        segment: after how many elements it starts anew; None where it goes on to the end.
    """

    axis: int
    exclusive: bool = False
    segment: int | None = None


@dataclass(frozen=True, slots=True)
class Distinct:
    """What is declared of the first read's producer, data that choose elements: no two choose one.

    Args:
        axis: of the producer; elements that differ in other axes choose different ones.
        extent: of the axis that is chosen from; an element outside of it chooses none.
    """

    axis: int
    extent: Expr


@dataclass(frozen=True, eq=False, slots=True)
class Definition:
    """The expression that a tensor is the result of.

    Args:
        op: the operation's name, for people.
        operands: the operands as written: tensors and scalar expressions.
        reads: what it reads; `Arg(i)` stands for what `reads[i]` finds.
        outputs: the tensors that it defines, one a component of the reducer.
        values: one template an output (for a reduction: of the partial result of one element).
        reducer: how the values fold over the reduction axes; None for a pointwise definition.
        scan: the axis along which they fold instead, and each element has what is folded so far.
        note: what `print_math` adds: "axis=1", "mask=(True, False)". One with ``{}`` in it is the
            whole text, operands in place of these: a definition that several calls make, too.
        start: the number of a read whose producer holds what the fold starts from, in the memory
            that this one folds in, by atomic operations (`TensorView.atomic`): identities, so that
            no template needs them. None where the loops that fold make the identity themselves.
        deterministic: whether the same bits are asked for each time.
        carried: the numbers of reads that find what was computed in an earlier step of the loop
            over the first axis, which all tensors from there to what is read share. These are no
            producers.
        distinct: what is declared of data that choose elements.
    """

    op: str
    operands: tuple[TensorView | Expr, ...]
    reads: tuple[Read, ...]
    outputs: tuple[TensorView, ...]
    values: tuple[Expr, ...]
    reducer: TracedReducer | None = None
    note: str = ""
    scan: Scan | None = None
    start: int | None = None
    deterministic: bool = False
    distinct: Distinct | None = None
    carried: tuple[int, ...] = ()
    producers: tuple[TensorView, ...] = field(init=False)
    """The tensors read, each once; not those of earlier steps."""

    def __post_init__(self) -> None:
        own = [r.producer for n, r in enumerate(self.reads) if n not in self.carried]
        found = tuple(dict.fromkeys(own))
        object.__setattr__(self, "producers", found)

    @property
    def is_copy(self) -> bool:
        """Whether each element is one of a single producer, unchanged: it is moved or repeated."""
        return self.reducer is None and len(self.values) == 1 and isinstance(self.values[0], Arg)

    @property
    def is_zero(self) -> bool:
        """Whether it says that each element is 0, and reads nothing."""
        (value, *others) = self.values
        return not (others or self.reads) and isinstance(value, Const) and value.value == 0

    def with_producers(self, new: dict[TensorView, TensorView]) -> Definition:
        """Return this definition reading other tensors of the same shape and type."""
        return replace(
            self,
            operands=tuple([o if isinstance(o, Expr) else new.get(o, o) for o in self.operands]),
            reads=tuple([Read(new.get(r.producer, r.producer), r.indices) for r in self.reads]),
        )

    def with_outputs(self, outputs: Iterable[TensorView]) -> Definition:
        """Return the same expression defining other tensors."""
        return replace(self, outputs=tuple(outputs))

    @property
    def starts_from(self) -> TensorView | None:
        """The tensor whose memory holds what an atomic fold starts from; None of any other."""
        return None if self.start is None else self.reads[self.start].producer

    def value(self, component: int, args: tuple[Expr, ...]) -> Expr:
        """Return the template of `component` with the values that its reads find put in."""
        mapping: dict[Expr, Expr] = {
            Arg(number, read.producer.dtype): value
            for number, (read, value) in enumerate(zip(self.reads, args, strict=True))
        }
        return substitute(self.values[component], mapping)


def started_by(tensor: TensorView) -> TensorView | None:
    """Return the atomic fold whose initial values `tensor` holds; None of any other tensor."""
    for consumer in tensor.consumers:
        if consumer.definition is not None and consumer.definition.starts_from is tensor:
            return consumer
    return None
