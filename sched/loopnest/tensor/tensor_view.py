"""TensorViews: a tensor of a fusion, its definition, its axes and the place of its computation.

A definition says what a tensor computes at each element. One class serves every operation. A
template in the scalar language gives the value of each output at an element (`Arg(i)` is what read
i finds, `Coordinate(d)` the element's index); a read says which element of a producer that is, by
an index template for each of the producer's axes; a reducer, if any, folds the template over the
reduction axes. All of it is data: no definition holds a function.

A read need not stay inside of its producer. Where it does not, its `Arg` must stand under a
``where`` of the template whose condition, of coordinates and sizes alone, is false there: a load
under a false condition is never performed. A padded tensor is
``where(0 <= #0 - 1 and #0 - 1 < N, $0, 0.0)``: what stands outside is a part of the template.

A schedule primitive rebinds fields of TensorViews, IterDomains and the Fusion; every such write
goes through `Fusion.change`, which journals it, so that a failed call is undone whole. Operators
and primitives are inherited (`schedule_methods`): rooms above fulfil them, as they do those of the
allocation domain, the axes of a buffer and their layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias, overload

from loopnest.base.errors import DefinitionError
from loopnest.base.fast_init import fast_init
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import IterKind, Memory, ParallelType
from loopnest.scalar.expr import (
    ZERO,
    Arg,
    Const,
    Coordinate,
    Expr,
    Load,
    Op,
    is_zero,
    substitute,
    walk,
)
from loopnest.scalar.operators import Operators
from loopnest.scalar.origin import Origin, caller
from loopnest.scalar.templates import instantiate
from loopnest.tensor.axis_names import name_by_sizes
from loopnest.tensor.domain import IterDomain, TensorDomain
from loopnest.tensor.layout_transforms import PLAIN, padding_of, stored_axis, swizzles_of
from loopnest.tensor.schedule_methods import AllocationMethods, ScheduleMethods, TensorMath

if TYPE_CHECKING:
    from loopnest.pictures.svg import Svg
    from loopnest.tensor.fusion import Fusion, Operand  # noqa: F401 - a type argument, in quotes


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


def padded_copy(value: Expr) -> tuple[Expr, Expr, Expr] | None:
    """Return the operands of ``where(test, copied, 0)``; None of any other value."""
    if not isinstance(value, Op) or value.op != "where":
        return None
    test, copied, other = value.args
    reads = any(isinstance(node, (Arg, Load)) for node in walk(test))
    moved = isinstance(copied, (Arg, Load)) and not reads and is_zero(other)
    return (test, copied, other) if moved else None


def started_by(tensor: TensorView) -> TensorView | None:
    """Return the atomic fold whose initial values `tensor` holds; None of any other tensor."""
    for consumer in tensor.consumers:
        if consumer.definition is not None and consumer.definition.starts_from is tensor:
            return consumer
    return None


class TensorView(TensorMath, Operators["Operand", "TensorView"], ScheduleMethods):
    """A tensor of a fusion: its math, its axes, and the place of its computation.

    Made by `Fusion.input`, by operations and by schedule primitives, never directly.
    """

    __slots__ = (
        "__weakref__", "_compute_at_pos", "_consumers", "_memory", "_name", "_produced_at_pos",
        "_starts_launch", "clones", "definition", "domain", "dtype", "fusion",
        "instruction", "layout", "number", "origin", "placed", "reduction", "strides",
    )  # fmt: skip

    def __init__(self, fusion: Fusion, domain: TensorDomain, dtype: DType) -> None:
        self.fusion = fusion
        self.dtype = dtype
        self.definition: Definition | None = None
        self._name: str | None = None
        self._memory = Memory.LOCAL
        self.layout = PLAIN
        self.instruction = ""
        """The name of the instruction that computes it, of a reduction."""
        self._compute_at_pos = 0
        self._produced_at_pos = 0
        self._starts_launch = False
        self._consumers: tuple[TensorView, ...] = ()
        self.clones: tuple[TensorView, ...] = ()
        self.reduction: TensorView | None = None
        """Of a keepdims reduction's result: the reduced TensorView below the broadcast."""
        self.strides: tuple[Expr, ...] | None = None
        """Of an input that was declared with strides: from one element to the next, an axis."""
        self.origin = fusion.calling or caller()
        """Where the tensor was made."""
        self.placed: Origin | None = None
        """The call that last set its compute-at position."""
        self.domain = domain
        self.bind(domain)
        self.number = fusion._register(self)

    def bind(self, domain: TensorDomain) -> None:
        """Make `domain` this tensor's; its leaves become handles of this tensor."""
        self.fusion.change(self, "domain", domain)
        for axis in (*domain.leaf, *(domain.allocation or ())):
            if axis.owner is not self:
                self.fusion.change(axis, "owner", self)
                if axis.origin is None:
                    axis.origin = self.fusion.calling

    def __reduce__(self) -> tuple[Callable[..., TensorView], tuple[Fusion, int]]:
        """Pickle the fusion, and the place in it."""
        return _tensor_at, (self.fusion, self.fusion.tensors.index(self))

    # Identity

    @property
    def name(self) -> str:
        """The name in errors, nests and CUDA: given by the user, or ``T3``."""
        return self._name if self._name is not None else f"T{self.number}"

    def named(self, name: str) -> TensorView:
        """Give this tensor a name.

        Raises:
            DefinitionError: not an identifier, or taken.
        """
        self.fusion.rename(self, name)
        return self

    def __repr__(self) -> str:
        return f"<TensorView {self}>"

    def __str__(self) -> str:
        axes = ", ".join(
            f"{axis.label(i)}: {axis.size}"
            + ("" if axis.parallel is ParallelType.serial else f" {axis.parallel.value}")
            + (" pinned" if axis.pinned else "")
            for i, axis in enumerate(self.domain.leaf)
        )
        return (
            f"{self.name} {self.dtype} {self._memory.value} [{axes}] "
            f"compute_at={self._compute_at_pos} produced_at={self._produced_at_pos}"
        )

    def picture(self) -> Svg:
        """Return a picture of the axes as SVG text: from root to leaf, by their transforms.

        Loops are coloured by what they are bound to, dashed where they are reduced; a red line
        behind a loop is a position of `compute_at`. Notebooks show it, `save` writes it to a file.

        Source: the diagrams of tensor domains in nvFuser's documentation, drawn anew.
        """
        from loopnest.pictures.domain_picture import draw_domain

        title = str(self).split(" [", maxsplit=1)[0]
        places = {"compute_at": self._compute_at_pos, "produced_at": self._produced_at_pos}
        return draw_domain(title, self.domain, places)

    def _repr_html_(self) -> str:
        return self.picture()

    @property
    def signature(self) -> str:
        """Type and shape: ``float32[N, D]``."""
        return f"{self.dtype}[{', '.join(str(s) for s in self.sizes)}]"

    # Domains

    @property
    def root_domain(self) -> tuple[IterDomain, ...]:
        """The axes that the definition computes over, reductions included."""
        return self.domain.root

    @property
    def rfactor_domain(self) -> tuple[IterDomain, ...]:
        """What consumers see: the root after rfactor, else the root."""
        return self.domain.rfactor

    @property
    def leaf_domain(self) -> tuple[IterDomain, ...]:
        """The loops, outermost first."""
        return self.domain.leaf

    @property
    def allocation_domain(self) -> AllocationDomain:
        """The axes of the buffer in the order of memory, and a handle that lays it out.

        ``t.allocation_domain.split(1, 4).swizzle(ln.Swizzle.XOR, 0, 1)`` permutes chunks of 4
        elements, whatever the loops of `t` are then or later; see `AllocationDomain`.
        """
        return AllocationDomain(self)

    @property
    def ndim(self) -> int:
        """The number of leaf axes."""
        return len(self.domain.leaf)

    @property
    def sizes(self) -> tuple[Expr, ...]:
        """The logical extents: the rfactor domain without reductions."""
        return tuple([axis.size for axis in self.domain.logical])

    @property
    def shape(self) -> tuple[int | Expr, ...]:
        """The logical extents, as ints where static."""
        return tuple([axis.extent for axis in self.domain.logical])

    # Place

    @property
    def compute_at_pos(self) -> int:
        """How many leading leaf axes share their loops with the consumers; 0 = own nest."""
        return self._compute_at_pos

    @property
    def produced_at_pos(self) -> int:
        """The largest position in its own axes at which a producer was computed into it."""
        return self._produced_at_pos

    @property
    def frozen(self) -> int:
        """How many leading leaf axes no primitive may change."""
        return max(self._compute_at_pos, self._produced_at_pos)

    @property
    def starts_launch(self) -> bool:
        """Whether the loops that compute it start a launch of their own (`new_launch`)."""
        return self._starts_launch

    @property
    def memory(self) -> Memory:
        """Where the tensor lives; settable on intermediates."""
        return self._memory

    @memory.setter
    def memory(self, memory: Memory) -> None:
        self._set_memory(memory)

    @property
    def is_input(self) -> bool:
        """Whether it is an argument of the fusion, without a definition."""
        return self.definition is None

    @property
    def is_output(self) -> bool:
        """Whether the fusion gives it to the caller."""
        return self in self.fusion._outputs

    @property
    def producers(self) -> tuple[TensorView, ...]:
        """The tensors that its definition reads, each once."""
        return () if self.definition is None else self.definition.producers

    @property
    def is_state(self) -> bool:
        """Whether steps read what it was in an earlier one."""
        return any(self in other.carried for other in self.fusion.tensors)

    @property
    def carried(self) -> tuple[TensorView, ...]:
        """The states that its definition reads as they were some steps ago."""
        found = self.definition
        return () if found is None else tuple([found.reads[n].producer for n in found.carried])

    @property
    def consumers(self) -> tuple[TensorView, ...]:
        """The tensors whose definitions read it, in order of creation."""
        return self._consumers

    @property
    def siblings(self) -> tuple[TensorView, ...]:
        """The outputs of its definition, itself included."""
        return (self,) if self.definition is None else self.definition.outputs

    def define(self, definition: Definition) -> None:
        """Make `definition` the one of this tensor, and keep the producers' consumers right."""
        old = self.producers
        self.fusion.change(self, "definition", definition)
        _name_axes(self.domain, definition, self.fusion.algebra.equal)
        for producer in dict.fromkeys((*old, *definition.producers)):
            keep = producer._consumers
            if producer in old:
                keep = tuple([c for c in keep if c is not self])
            if producer in definition.producers:
                place = len(keep)
                while place and keep[place - 1].number > self.number:
                    place -= 1
                keep = (*keep[:place], self, *keep[place:])
            self.fusion.change(producer, "_consumers", keep)
        self.fusion.version += 1

    # Math: operators forward to `ops`

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise DefinitionError(
            self.name, "a tensor has no truth value", "use ln.where(cond, a, b) or ln.logical_and"
        )

    def __iter__(self) -> Iterator[TensorView]:
        raise TypeError(f"{self.name} is no sequence; take parts of it, as in {self.name}[0]")

    def __contains__(self, item: object) -> bool:
        raise TypeError(f"{self.name} has no values before it runs; compare elements by ln.eq")


def _name_axes(
    domain: TensorDomain, definition: Definition, equal: Callable[[Expr, Expr], bool]
) -> None:
    """Let axes without a name have those of what they are, of all that the definition reads.

    Axes that are none of these have the names of their sizes. Names are no state of a schedule:
    they follow from the math, so that nothing undoes them.
    """
    root = domain.root
    bare = [not axis.names for axis in root]
    for read in definition.reads:
        for theirs, index in zip(read.producer.domain.logical, read.indices, strict=True):
            names = theirs.names
            if not names or index.__class__ is not Coordinate:
                continue
            mine = root[index.number]
            # Along chains of operations it is one tuple, so that this is all that is looked at.
            if mine.names is names or not bare[index.number]:
                continue
            alike = mine.kind is theirs.kind or mine.is_broadcast == theirs.is_broadcast
            if alike and (mine.size is theirs.size or equal(mine.size, theirs.size)):
                mine.names = _joined(mine, theirs) if mine.names else names
                mine.is_named = mine.is_named or theirs.is_named
    name_by_sizes(root)
    if domain.rfactor is not root:
        name_by_sizes(domain.logical)


def _joined(one: IterDomain, other: IterDomain) -> tuple[str, ...]:
    """Return the names of both axes, those in front that users gave."""
    first, second = (other, one) if other.is_named and not one.is_named else (one, other)
    names = (*first.names[:1], *second.names[:1]) if second.is_named else first.names
    return tuple(dict.fromkeys((*names, *first.names, *second.names)))


def _tensor_at(fusion: Fusion, place: int) -> TensorView:
    return fusion.tensors[place]


def root_axis(size: Expr, *, reduction: bool = False) -> IterDomain:
    """Return a root axis of extent `size`; a static 1 that is not reduced is a broadcast axis."""
    if reduction:
        return IterDomain(size, IterKind.REDUCTION)
    one = isinstance(size, Const) and size.value == 1
    return IterDomain(size, IterKind.BROADCAST if one else IterKind.ITERATION)


class AllocationDomain(AllocationMethods, Sequence[IterDomain]):
    """The axes of a tensor's buffer in the order of memory, the one that varies slowest first.

    A sequence of axes, and a handle: what changes the tensor's buffer shows here. Until a method
    is called it is derived: the logical axes of a GLOBAL tensor, else the leaf axes that are no
    reductions. From the first call on it is the tensor's own, made from these axes, and loops may
    be split, merged and reordered without it. The buffer holds the axes that vary while it lives:
    those that the loops outside of its home run over (those left of the compute-at position, the
    grid's, and in LOCAL memory the threads') are not allocated.

    Positions are those of this domain, and may be negative; an axis may be given by name, too. Each
    method returns the handle, is carried out whole or raises a ScheduleError and changes nothing.
    Padding and swizzles come last: an axis that has one can be reordered, but not split or merged.

    Source: nvFuser's TensorDomain::setAllocationDomain; the swizzle of chunks is CuTe's Swizzle.
    """

    __slots__ = ("tensor",)

    def __init__(self, tensor: TensorView) -> None:
        self.tensor = tensor

    @property
    def axes(self) -> tuple[IterDomain, ...]:
        """The axes, in the order of memory."""
        own = self.tensor.domain.allocation
        return derived_axes(self.tensor) if own is None else own

    @property
    def is_derived(self) -> bool:
        """Whether it follows from the loops, since no call laid the buffer out."""
        return self.tensor.domain.allocation is None

    @overload
    def __getitem__(self, place: int) -> IterDomain: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[IterDomain, ...]: ...
    def __getitem__(self, place: int | slice) -> IterDomain | tuple[IterDomain, ...]:
        return self.axes[place]

    def __len__(self) -> int:
        return len(self.axes)

    def __iter__(self) -> Iterator[IterDomain]:
        return iter(self.axes)

    def __str__(self) -> str:
        axes = self.axes
        stored = [stored_axis(axis) for axis in axes]
        columns = {column: row for row, column in swizzles_of(axes)}
        shown: list[str] = []
        for number, (axis, held) in enumerate(zip(axes, stored, strict=True)):
            text = f"{held.label(number)}: {held.size}"
            text += f" + {padding_of(axis)}" if padding_of(axis) else ""
            if held in columns:
                row = columns[held]
                text += f" xor {row.kind.letter}{stored.index(row)}"
            shown.append(text)
        return f"[{', '.join(shown)}]"

    def __repr__(self) -> str:
        return f"<AllocationDomain of {self.tensor.name}: {self}>"


def derived_axes(tensor: TensorView) -> tuple[IterDomain, ...]:
    """Return the axes of a buffer that nobody laid out."""
    if tensor.memory is Memory.GLOBAL:
        return tensor.domain.logical
    return tuple([axis for axis in tensor.domain.leaf if not axis.is_reduction])
