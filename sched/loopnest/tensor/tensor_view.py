"""TensorViews: a tensor of a fusion, its axes and the place of its computation.

A schedule primitive rebinds fields of TensorViews, IterDomains and the Fusion; every such write
goes through `Fusion.change`, which journals it, so that a failed call is undone whole. Methods of
TensorView import the layers above (`ops`, `schedule`) when called: the one deliberate exception to
the import rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from loopnest.errors import DefinitionError
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import IterKind, Memory, ParallelType, Swizzle
from loopnest.scalar.expr import Const, Expr
from loopnest.scalar.operators import Operators
from loopnest.scalar.origin import Origin, caller
from loopnest.tensor.allocation_domain import AllocationDomain
from loopnest.tensor.buffer_layout import PLAIN
from loopnest.tensor.definition import Definition
from loopnest.tensor.domain import IterDomain, TensorDomain

if TYPE_CHECKING:
    from loopnest.tensor.fusion import Fusion
    from loopnest.tensor.ops.operands import Operand  # noqa: F401 - a type argument, in quotes


class TensorView(Operators["Operand", "TensorView"]):
    """A tensor of a fusion: its math, its axes, and the place of its computation.

    Made by `Fusion.input`, by operations and by schedule primitives, never directly.
    """

    __slots__ = (
        "__weakref__", "_compute_at_pos", "_consumers", "_memory", "_name", "_produced_at_pos",
        "clones", "definition", "domain", "dtype", "fusion", "layout", "number", "origin", "placed",
        "reduction", "strides",
    )  # fmt: skip

    def __init__(self, fusion: Fusion, domain: TensorDomain, dtype: DType) -> None:
        self.fusion = fusion
        self.dtype = dtype
        self.definition: Definition | None = None
        self._name: str | None = None
        self._memory = Memory.LOCAL
        self.layout = PLAIN
        self._compute_at_pos = 0
        self._produced_at_pos = 0
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
        self.fusion._check_name(f"{self.name}.named({name!r})", name)
        if self._name is not None:
            self.fusion._names.pop(self._name, None)
        self.fusion._claim(name, self)
        self._name = name
        return self

    def __repr__(self) -> str:
        return f"<TensorView {self}>"

    def __str__(self) -> str:
        axes = ", ".join(
            f"{axis.kind.letter}{i}: {axis.size}"
            + ("" if axis.parallel is ParallelType.serial else f" {axis.parallel.value}")
            + (" pinned" if axis.pinned else "")
            for i, axis in enumerate(self.domain.leaf)
        )
        return (
            f"{self.name} {self.dtype} {self._memory.value} [{axes}] "
            f"compute_at={self._compute_at_pos} produced_at={self._produced_at_pos}"
        )

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

    def axis(self, position: int) -> IterDomain:
        """Return leaf axis `position` (negative from the end): a handle to parallelize or pin.

        Raises:
            ScheduleError: out of range.
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

    # Scheduling: each forwards to the module that owns it

    def split(self, axis: int, factor: int | str, inner: bool = True) -> TensorView:
        """Split a leaf axis in two.

        Before ``[i0: N]``; ``t.split(0, 4)`` gives ``[i0: ceildiv(N, 4), i1: 4]``;
        ``t.split(0, 4, inner=False)`` gives ``[i0: 4, i1: ceildiv(N, 4)]``.

        Args:
            axis: a leaf position, negative from the end.
            factor: the inner extent (the outer with ``inner=False``): an int >= 1, or the name of
                a size symbol of the fusion; it need not divide.
            inner: whether `factor` is the inner extent.

        Raises:
            ScheduleError: axis out of range, frozen or parallel; a bad factor; an input.

        Source: nvFuser TensorView::split; Halide Func::split.

        >>> import loopnest as ln
        >>> with ln.Fusion("k") as f:
        ...     x = f.input("x", ("N", "D"), ln.float32)
        ...     t = ln.exp(x)
        ...     y = f.output(t * 2.0, "y")
        >>> print(y.split(0, 4))
        y float32 global [i0: ceildiv(N, 4), i1: 4, i2: D] compute_at=0 produced_at=0
        """
        from loopnest.schedule import transforms

        return transforms.split(self, axis=axis, factor=factor, inner=inner)

    def merge(self, axis: int, other: int | None = None) -> TensorView:
        """Merge two leaf axes into one.

        Before ``[i0: N, i1: D]``; ``t.merge(0)`` gives ``[i0: N * D]``.

        Args:
            axis: the outer of the two.
            other: the inner, by default `axis` + 1; they need not be neighbours. The result
                stands at the smaller of the two places.

        Raises:
            ScheduleError: out of range, the same axis twice, frozen, parallel, an iteration axis
                with a reduction axis, an input.

        Source: nvFuser TensorView::merge; Halide Func::fuse.

        >>> import loopnest as ln
        >>> with ln.Fusion("k") as f:
        ...     x = f.input("x", ("N", "D"), ln.float32)
        ...     t = ln.exp(x)
        ...     y = f.output(t * 2.0, "y")
        >>> print(y.merge(0))
        y float32 global [i0: N * D] compute_at=0 produced_at=0
        """
        from loopnest.schedule import transforms

        return transforms.merge(self, axis, other)

    def reorder(self, order: Mapping[int, int] | Sequence[int]) -> TensorView:
        """Permute the leaf axes.

        Before ``[i0, i1, i2]``; ``t.reorder({2: 0})`` gives ``[i2, i0, i1]``, as does
        ``t.reorder([2, 0, 1])``.

        Args:
            order: ``{old: new}`` (axes not named keep their order in the places left), or a full
                permutation p (new axis i is old axis p[i]).

        Raises:
            ScheduleError: not a permutation, an axis out of range or frozen, an input.

        Source: nvFuser TensorView::reorder.

        >>> import loopnest as ln
        >>> with ln.Fusion("k") as f:
        ...     x = f.input("x", ("N", "D"), ln.float32)
        ...     t = ln.exp(x)
        ...     y = f.output(t * 2.0, "y")
        >>> print(y.reorder({1: 0}))
        y float32 global [i0: D, i1: N] compute_at=0 produced_at=0
        """
        from loopnest.schedule import transforms

        return transforms.reorder(self, order)

    def parallelize(self, types: Mapping[int, ParallelType]) -> TensorView:
        """Give leaf axes parallel types: ``t.parallelize({0: ln.ParallelType.grid_x})``.

        Raises:
            ScheduleError: out of range, no ParallelType, a type that the tensor has already, an
                input.

        Args:
            types: leaf position, negative from the end -> `ParallelType`.

        >>> import loopnest as ln
        >>> with ln.Fusion("k") as f:
        ...     x = f.input("x", ("N", "D"), ln.float32)
        ...     t = ln.exp(x)
        ...     y = f.output(t * 2.0, "y")
        >>> print(y.parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.block_x}))
        y float32 global [i0: N grid_x, i1: D block_x] compute_at=0 produced_at=0

        Source: nvFuser IterDomain::parallelize; TVM's ``bind``.
        """
        from loopnest.schedule import transforms

        return transforms.parallelize(self, types)

    def pin(self, axis: int) -> TensorView:
        """Never inline past leaf axis `axis`, of this tensor or of a producer.

        Raises:
            ScheduleError: out of range, or an input.

        Args:
            axis: a leaf position, negative from the end.

        >>> import loopnest as ln
        >>> with ln.Fusion("k") as f:
        ...     x = f.input("x", ("N", "D"), ln.float32)
        ...     t = ln.exp(x)
        ...     y = f.output(t * 2.0, "y")
        >>> t = t.pin(1)
        >>> f.inline_most()
        >>> t.compute_at_pos
        1

        Source: nvFuser's ``uninlinable_ids`` of MaxPosCalculator.
        """
        from loopnest.schedule import transforms

        return transforms.pin(self, axis)

    def compute_at(self, consumer: TensorView, pos: int, recompute: bool = False) -> TensorView:
        """Compute this tensor inside the leading `pos` loops of `consumer`.

        Before, two nests; after ``t.compute_at(y, 1)`` with y ``[i0, i1]``::

            for i0:
              for i1: t
              for i2: y

        Every tensor between the two is placed as well, and so is every other consumer of this one,
        up to the first common consumer of its use chains: all of them must share the loops that it
        lies in. The consumer's splits, merges and orders are replayed as far as the shared loops
        need them.

        Args:
            consumer: any tensor that depends on this one; its own domain never changes.
            pos: how many of the consumer's leading leaf axes; negative: ``pos += ndim + 1``. 0, or
                a position not above the present one, changes nothing.
            recompute: clone this tensor (and upstream only what cannot share either) for consumers
                that cannot share; the clones are listed in `clones`.

        Returns:
            This tensor. Of an input, its users on the way to `consumer` are placed.

        Raises:
            ScheduleError: the target is this tensor or does not depend on it; a position out of
                range, or past a pinned or vectorized axis; a frozen prefix would change; a tensor
                would have to be computed at two positions; no order of expressions would exist.

        >>> import loopnest as ln
        >>> with ln.Fusion("k") as f:
        ...     x = f.input("x", ("N", "D"), ln.float32)
        ...     t = ln.exp(x)
        ...     y = f.output(t * 2.0, "y")
        >>> y = y.split(0, 4)
        >>> print(t.compute_at(y, 1))
        T1 float32 local [i0: ceildiv(N, 4), i1: 4, i2: D] compute_at=1 produced_at=0

        Source: nvFuser TensorView::computeAt and its design note; the rules of sched/docs/rules.md.
        """
        from loopnest.schedule import compute_at

        return compute_at.compute_at(self, consumer, pos, recompute=recompute)

    def inline_at(self, pos: int) -> TensorView:
        """Share the leading `pos` loops with the consumers, without any replay.

        But for a tensor that is read in windows: it gets the tiles that these need in `pos` shared
        loops, and with ``-1`` in all loops of its consumers: what is read there, computed anew.

        Args:
            pos: how many of this tensor's leading leaf axes; negative: ``pos += ndim + 1``.

        Raises:
            ScheduleError: beyond the largest legal position.

        >>> import loopnest as ln
        >>> with ln.Fusion("k") as f:
        ...     x = f.input("x", ("N", "D"), ln.float32)
        ...     t = ln.exp(x)
        ...     y = f.output(t * 2.0, "y")
        >>> print(t.inline_at(1))
        T1 float32 local [i0: N, i1: D] compute_at=1 produced_at=0

        Source: nvFuser TensorView::inlineAt.
        """
        from loopnest.schedule import inlining

        return inlining.inline_at(self, pos)

    def rfactor(self, axes: int | Sequence[int]) -> TensorView:
        """Factor a reduction in two: a new tensor reduces some axes, this one the others.

        Before ``y [i0, r1, r2]``; after ``t = y.rfactor(1)``: ``t [i0, r1, i2]``, ``y [i0, r1]``,
        and y reduces what t leaves. Of a definition with several outputs, all are factored. Of a
        scan, t scans each segment by itself, and y combines it with a scan of their totals.

        Args:
            axes: the reduction leaf axes that the new tensor reduces, one or several, not all; the
                inner ones of those that the axis of a scan was split to.

        Returns:
            The new tensor, the producer of this one.

        Raises:
            ScheduleError: no reduction or scan; an axis that is none, is out of range or is named
                twice; all of them; a frozen prefix.

        >>> import loopnest as ln
        >>> with ln.Fusion("k") as f:
        ...     y = f.output(ln.sum(f.input("x", ("N", "D"), ln.float32), axis=1), "y")
        >>> print(y.split(1, 8).rfactor(1))
        T2 float32 local [i0: N, r1: ceildiv(D, 8), i2: 8] compute_at=0 produced_at=0

        Source: nvFuser TensorView::rFactor; Suriana et al., "Parallel Associative Reductions in
        Halide", CGO 2017.
        """
        from loopnest.schedule import rfactor

        return rfactor.rfactor(self, axes)

    def cache_after(self) -> TensorView:
        """Insert a copy between this tensor and its consumers; return the copy.

        Before ``x -> y``; after ``c = x.cache_after()``: ``x -> c -> y``. Applies to inputs too.

        Raises:
            ScheduleError: no tensor consumes it, or it has a frozen prefix.

        >>> import loopnest as ln
        >>> with ln.Fusion("k") as f:
        ...     x = f.input("x", ("N", "D"), ln.float32)
        ...     t = ln.exp(x)
        ...     y = f.output(t * 2.0, "y")
        >>> print(x.cache_after())
        T3 float32 local [i0: N, i1: D] compute_at=0 produced_at=0

        Source: nvFuser TensorView::cacheAfter; TVM's ``cache_read``.
        """
        from loopnest.schedule import caching

        return caching.cache_after(self)

    def cache_before(self) -> TensorView:
        """Let a new tensor compute what this one did, and this one copy it; return the new.

        Before ``x -> y``; after ``c = y.cache_before()``: ``x -> c -> y``. The new tensor is LOCAL
        and has the loops that this one had.

        Raises:
            ScheduleError: an input, or a frozen prefix.

        >>> import loopnest as ln
        >>> with ln.Fusion("k") as f:
        ...     x = f.input("x", ("N", "D"), ln.float32)
        ...     t = ln.exp(x)
        ...     y = f.output(t * 2.0, "y")
        >>> print(y.cache_before())
        T3 float32 local [i0: N, i1: D] compute_at=0 produced_at=0

        Source: nvFuser TensorView::cacheBefore; TVM's ``cache_write``.
        """
        from loopnest.schedule import caching

        return caching.cache_before(self)

    def cache_fork(self) -> TensorView:
        """Of an output that other tensors use: return a copy that becomes the output.

        Before ``y (output) -> z``; after ``o = y.cache_fork()``: ``y -> o (output), y -> z``.

        Raises:
            ScheduleError: no output, an output that no tensor uses, or a frozen prefix.

        >>> import loopnest as ln
        >>> with ln.Fusion("k") as f:
        ...     x = f.input("x", ("N", "D"), ln.float32)
        ...     t = ln.exp(x)
        ...     y = f.output(t * 2.0, "y")
        ...     z = f.output(y + 1.0, "z")
        >>> print(y.cache_fork())
        y float32 global [i0: N, i1: D] compute_at=0 produced_at=0

        Source: nvFuser TensorView::cacheFork.
        """
        from loopnest.schedule import caching

        return caching.cache_fork(self)

    def circular_buffer(self, stages: int, prefetch: int | None = None) -> TensorView:
        """Compute this LOCAL or SHARED tensor some iterations ahead of its consumers.

        Its buffer gets `stages` copies, which the innermost loop that it shares, launch dimensions
        aside, rotates through; LOCAL tensors that only it reads run ahead with it: their values
        are loaded before the consumers' work of an iteration, and stored after it. For copies in
        registers that loop is unrolled by `stages`, so that each stage has registers of its own.

        Args:
            stages: the copies, 2 to 32.
            prefetch: how many iterations ahead it is computed, 1 to `stages` - 1; by default
                `stages` - 1.

        Raises:
            ScheduleError: another number of stages, or of iterations ahead; a tensor that is
                GLOBAL, is not computed inside a serial loop, is a reduction, or is one of several
                outputs of a definition.

        >>> import loopnest as ln
        >>> with ln.Fusion("k") as f:
        ...     x = f.input("x", (64, 128), ln.float32)
        ...     y = f.output(x * 2.0, "y")
        >>> tile = x.cache_after()
        >>> tile.memory = ln.SHARED
        >>> print(tile.compute_at(y, 1).circular_buffer(2))
        T2 float32 shared [i0: 64, i1: 128] compute_at=1 produced_at=0

        Source: nvFuser TensorView::circularBuffer; Halide's ``ring_buffer``.
        """
        from loopnest.schedule import allocation_layout

        return allocation_layout.circular_buffer(self, stages, prefetch)

    def swizzle(self, kind: Swizzle, a: int, b: int) -> TensorView:
        """Let the element at leaf axes (a, b) of this SHARED tensor lie at (a, b ^ a).

        Loops stay as they are; columns of a tile then lie in different banks. It takes the place
        of an earlier swizzle; `allocation_domain` has more, and axes of different extents.

        Args:
            kind: `Swizzle.XOR`.
            a: the leaf axis whose index moves elements.
            b: the leaf axis along which they move; of the extent of `a`, a static power of two.

        Raises:
            ScheduleError: an input or output, a tensor that is not SHARED, or axes that do not fit.

        >>> import loopnest as ln
        >>> with ln.Fusion("k") as f:
        ...     x = f.input("x", (32, 32), ln.float32)
        ...     y = f.output(x * 2.0, "y")
        >>> tile = x.cache_after()
        >>> tile.memory = ln.SHARED
        >>> tile = tile.swizzle(ln.Swizzle.XOR, 0, 1)
        >>> next(line for line in str(ln.lower(f)).splitlines() if "T2:" in line)
        'T2: float32[32, 32] shared xor(0, 1)'

        Source: nvFuser TensorView::swizzle; the CUDA C++ Best Practices Guide on bank conflicts.
        """
        from loopnest.schedule import allocation_layout

        return allocation_layout.swizzle(self, kind, a, b)

    def set_allocation(
        self, order: Sequence[int] | None = None, pad: Mapping[int, int] | None = None
    ) -> TensorView:
        """Lay out the buffer of this intermediate.

        Args:
            order: the leaf axes in the order of memory, the one that varies slowest first.
            pad: unused elements to add to the extent of leaf axes, as ``{axis: count}``.

        The leaf axes as they are now become the allocation domain: later splits and merges of the
        loops leave the buffer as it is. What is not given here is as the loops have it.

        Raises:
            ScheduleError: an input or output, no permutation of the leaf axes, or a negative pad.

        >>> import loopnest as ln
        >>> with ln.Fusion("k") as f:
        ...     x = f.input("x", (64, 128), ln.float32)
        ...     y = f.output(x * 2.0, "y")
        >>> tile = x.cache_after()
        >>> tile.memory = ln.SHARED
        >>> tile = tile.set_allocation(pad={1: 1})
        >>> [buffer.strides for buffer in ln.lower(f).buffers if buffer.name == "T2"]
        [(129, 1)]

        Source: nvFuser's allocation domain; Halide's ``align_storage`` and ``reorder_storage``.
        """
        from loopnest.schedule import allocation_layout

        return allocation_layout.set_allocation(self, order=order, pad=pad)

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
        from loopnest.tensor.ops.matrix_products import matmul

        return matmul(self, other)

    def __rmatmul__(self, other: TensorView) -> TensorView:
        from loopnest.tensor.ops.matrix_products import matmul

        return matmul(other, self)


def _tensor_at(fusion: Fusion, place: int) -> TensorView:
    return fusion.tensors[place]


def root_axis(size: Expr, *, reduction: bool = False) -> IterDomain:
    """Return a root axis of extent `size`; a static 1 that is not reduced is a broadcast axis."""
    if reduction:
        return IterDomain(size, IterKind.REDUCTION)
    one = isinstance(size, Const) and size.value == 1
    return IterDomain(size, IterKind.BROADCAST if one else IterKind.ITERATION)
