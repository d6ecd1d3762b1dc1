"""TensorViews: a tensor of a fusion, its axes and the place of its computation.

A schedule primitive rebinds fields of TensorViews, IterDomains and the Fusion; every such write
goes through `Fusion.change`, which journals it, so that a failed call is undone whole. Operators
and setters import the layers above (`ops`, `schedule`) when called; the primitives are inherited
(`schedule_methods`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from loopnest.base.errors import DefinitionError
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import IterKind, Memory, ParallelType
from loopnest.scalar.expr import Const, Expr
from loopnest.scalar.operators import Operators
from loopnest.scalar.origin import Origin, caller
from loopnest.tensor.allocation_domain import AllocationDomain
from loopnest.tensor.axis_names import Axis, name_axes
from loopnest.tensor.definition import Definition
from loopnest.tensor.domain import IterDomain, TensorDomain
from loopnest.tensor.layout_transforms import PLAIN
from loopnest.tensor.schedule_methods import ScheduleMethods

if TYPE_CHECKING:
    from loopnest.pictures.svg import Svg
    from loopnest.tensor.fusion import Fusion
    from loopnest.tensor.ops.operands import Operand  # noqa: F401 - a type argument, in quotes


class TensorView(Operators["Operand", "TensorView"], ScheduleMethods):
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

    def axis(self, position: Axis) -> IterDomain:
        """Return leaf axis `position` (negative from the end, or a name): a handle.

        It has `parallelize` and `pin`.

        Raises:
            ScheduleError: out of range, or no name of an axis.
        """
        from loopnest.schedule.transaction import PrimitiveRefused, leaf_position

        try:
            return self.domain.leaf[leaf_position(self, position)]
        except PrimitiveRefused as refusal:
            raise refusal.error(f"{self.name}.axis({position!r})") from None

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
        from loopnest.schedule import transforms

        transforms.set_memory(self, memory)

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
        name_axes(self.domain, definition, self.fusion.algebra.equal)
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

    def _operate(self, name: str, *operands: object) -> TensorView:
        from loopnest.tensor.ops import pointwise

        result = getattr(pointwise, name)(*operands)
        assert isinstance(result, TensorView)
        return result

    def __getitem__(self, key: object) -> TensorView:
        """Return a part, by NumPy's basic indexing: ``tv[1:-1, ::-2, None, ..., 0]``."""
        from loopnest.tensor.ops.slices import basic_index

        return basic_index(self, key)

    def __iter__(self) -> Iterator[TensorView]:
        raise TypeError(f"{self.name} is no sequence; take parts of it, as in {self.name}[0]")

    def __contains__(self, item: object) -> bool:
        raise TypeError(f"{self.name} has no values before it runs; compare elements by ln.eq")

    def __matmul__(self, other: TensorView) -> TensorView:
        from loopnest.tensor.ops.convolutions import matmul

        return matmul(self, other)

    def __rmatmul__(self, other: TensorView) -> TensorView:
        from loopnest.tensor.ops.convolutions import matmul

        return matmul(other, self)


def _tensor_at(fusion: Fusion, place: int) -> TensorView:
    return fusion.tensors[place]


def root_axis(size: Expr, *, reduction: bool = False) -> IterDomain:
    """Return a root axis of extent `size`; a static 1 that is not reduced is a broadcast axis."""
    if reduction:
        return IterDomain(size, IterKind.REDUCTION)
    one = isinstance(size, Const) and size.value == 1
    return IterDomain(size, IterKind.BROADCAST if one else IterKind.ITERATION)
