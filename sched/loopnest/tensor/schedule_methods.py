"""The methods that rooms above fulfil: of tensors, of their buffers, and of fusions.

A primitive is a function of `loopnest.schedule`, an operator one of `tensor.ops`; users call them
on the tensor. Here they are declared for readers and type checkers, with their docstrings. What a
room has made is put in their place when it is loaded (`fulfil`), which the first call of one does.
"""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Generic, Self, TypeVar

from loopnest.scalar.data_ranges import DataRange
from loopnest.scalar.enums import Memory, ParallelType, Swizzle
from loopnest.scalar.expr import Expr
from loopnest.scalar.fragments import Fragment
from loopnest.tensor.axis_names import Axis, AxisKey
from loopnest.tensor.domain import IterDomain

C = TypeVar("C", bound=type)
Tensor = TypeVar("Tensor")
DECLARED: dict[type, dict[str, FunctionType]] = {}
"""The methods that each class declares."""


def _declared(methods: C) -> C:
    """Let each method of a class load what fulfils it, when it is called before it is there."""
    found = {name: f for name, f in vars(methods).items() if isinstance(f, FunctionType)}
    for name, declared in found.items():
        setattr(methods, name, _loading(methods, declared))
    DECLARED[methods] = found
    return methods


def _loading(methods: type, declared: FunctionType) -> Callable[..., object]:
    @wraps(declared)
    def load(*args: object, **kwargs: object) -> object:
        import_module("loopnest.schedule")
        return getattr(methods, declared.__name__)(*args, **kwargs)

    return load


def fulfil(methods: type, *modules: ModuleType, **functions: Callable[..., object]) -> None:
    """Let functions, or those of modules that have the name, be the methods of a class."""
    for name, declared in DECLARED[methods].items():
        found = [vars(module)[name] for module in modules if name in vars(module)]
        for function in [*found, *([functions[name]] if name in functions else [])][-1:]:
            function.__doc__, function.__name__ = declared.__doc__, declared.__name__
            function.__qualname__ = declared.__qualname__
            # Signature, defaults and source are those of the declaration, for who asks `inspect`.
            function.__dict__["__wrapped__"] = declared
            setattr(methods, name, function)


@_declared
class ScheduleMethods:
    """The primitives that move, split, place and lay out one tensor."""

    __slots__ = ()

    def axis(self, position: Axis) -> IterDomain:
        """Return leaf axis `position` (negative from the end, or a name): a handle.

        It has `parallelize` and `pin`.

        Raises:
            ScheduleError: out of range, or no name of an axis.
        """

    def _set_memory(self, memory: Memory) -> None:
        """Move the tensor to another memory."""

    def split(
        self,
        axis: Axis,
        factor: int | str | Expr,
        inner: bool = True,
        names: Sequence[str | None] | None = None,
    ) -> Self:
        """Split a leaf axis in two.

        Before ``[i0: N]``; ``t.split(0, 4)`` gives ``[i0: ceildiv(N, 4), i1: 4]``;
        ``t.split(0, 4, inner=False)`` gives ``[i0: 4, i1: ceildiv(N, 4)]``. An axis of steps is
        split in all tensors that share its loop; they share both loops then.

        Args:
            axis: a leaf position, negative from the end, or a name.
            factor: the inner extent (the outer with ``inner=False``): an int >= 1, the name of a
                size symbol of the fusion, or arithmetic on these (``"D // 2"``, an extent); it
                need not divide. A launch refuses sizes at which it is not 1 or more.
            inner: whether `factor` is the inner extent.
            names: of the outer and the inner axis, by which calls may then give them; None for
                one that gets no name.

        Raises:
            ScheduleError: axis out of range, frozen or parallel; a bad factor; a name that another
                axis has; an input.

        Source: nvFuser TensorView::split; Halide Func::split.

        >>> import loopnest as ln
        >>> with ln.Fusion("k") as f:
        ...     x = f.input("x", ("N", "D"), ln.float32)
        ...     t = ln.exp(x)
        ...     y = f.output(t * 2.0, "y")
        >>> print(y.split(0, 4))
        y float32 global [i0: ceildiv(N, 4), i1: 4, i2: D] compute_at=0 produced_at=0
        >>> print(t.split("D", 8, names=("do", "di")))
        T1 float32 local [i0: N, i1 do: ceildiv(D, 8), i2 di: 8] compute_at=0 produced_at=0
        """

    def merge(self, axis: Axis, other: Axis | None = None, name: str | None = None) -> Self:
        """Merge two leaf axes into one.

        Before ``[i0: N, i1: D]``; ``t.merge(0)`` gives ``[i0: N * D]``.

        Args:
            axis: the outer of the two.
            other: the inner, by default `axis` + 1; they need not be neighbours. The result
                stands at the smaller of the two places.
            name: of the result.

        Raises:
            ScheduleError: out of range, the same axis twice, frozen, parallel, an iteration axis
                with a reduction axis, a name that another axis has, an input.

        Source: nvFuser TensorView::merge; Halide Func::fuse.

        >>> import loopnest as ln
        >>> with ln.Fusion("k") as f:
        ...     x = f.input("x", ("N", "D"), ln.float32)
        ...     t = ln.exp(x)
        ...     y = f.output(t * 2.0, "y")
        >>> print(y.merge(0))
        y float32 global [i0: N * D] compute_at=0 produced_at=0
        """

    def skew(self, step_axis: Axis, axis: Axis, factor: int = 1) -> Self:
        """Run a loop over steps in waves: element i of step s in wave ``s + factor * i``.

        Before ``[s0: T, i1: N]``; ``t.skew(0, 1)`` gives ``[s0: T + N, i1: N]``. The loop over
        waves runs in order, in all tensors that share the loop over steps; in a wave the axis may
        be shared out among threads or lanes.

        Args:
            step_axis: the axis of steps (`ln.recur`): a leaf position, or a name.
            axis: one of the state, as the math has it.
            factor: how many waves later than its left neighbour an element is; with one below 0 its
                right neighbour.

        Raises:
            ScheduleError: no axis of steps, one that was split or made parallel; an element would
                be computed no later than one of an earlier step that it reads, at some size; a step
                folds or scans along the axis, or reads what it computes at other elements.

        Source: M. Wolfe, "Loops skewing: the wavefront method revisited", 1986.

        >>> import loopnest as ln
        >>> with ln.Fusion("k") as f:
        ...     x = f.input("x", ("N",), ln.float32)
        ...     h = ln.recur(lambda h, _: h + ln.pad(h, [(1, -1)]), x, steps="T")
        ...     h = f.output(h, "h")
        >>> print(h.skew(0, 1))
        h float32 global [s0: T + N, i1: N] compute_at=0 produced_at=1
        """

    def reorder(self, order: Mapping[AxisKey, Axis] | Sequence[Axis] | int, *more: Axis) -> Self:
        """Permute the leaf axes.

        Before ``[i0, i1, i2]``; ``t.reorder({2: 0})`` gives ``[i2, i0, i1]``, as does
        ``t.reorder([2, 0, 1])``. ``t.reorder("di", "N")`` gives the places that these two have to
        "di" and then "N"; all others stay.

        Args:
            order: ``{old: new}`` (axes not named keep their order in the places left), a full
                permutation p (new axis i is old axis p[i]), or the first of some axes in their new
                order.
            more: the other ones.

        Raises:
            ScheduleError: not a permutation, an axis out of range or frozen, an input.

        Source: nvFuser TensorView::reorder; Halide Func::reorder, which takes names alike.

        >>> import loopnest as ln
        >>> with ln.Fusion("k") as f:
        ...     x = f.input("x", ("N", "D"), ln.float32)
        ...     t = ln.exp(x)
        ...     y = f.output(t * 2.0, "y")
        >>> print(y.reorder({1: 0}))
        y float32 global [i0: D, i1: N] compute_at=0 produced_at=0
        """

    def parallelize(
        self, /, types: Mapping[AxisKey, ParallelType] | None = None, **axes: ParallelType
    ) -> Self:
        """Give leaf axes parallel types: ``t.parallelize({0: ln.ParallelType.grid_x})``.

        By names of axes it is ``t.parallelize(do=ln.ParallelType.grid_x)``.

        Raises:
            ScheduleError: out of range, no ParallelType, a type that the tensor has already, an
                axis that is given two, an input.

        Args:
            types: leaf position, negative from the end, or name -> `ParallelType`.
            axes: the same by names.

        >>> import loopnest as ln
        >>> with ln.Fusion("k") as f:
        ...     x = f.input("x", ("N", "D"), ln.float32)
        ...     t = ln.exp(x)
        ...     y = f.output(t * 2.0, "y")
        >>> print(y.parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.block_x}))
        y float32 global [i0: N grid_x, i1: D block_x] compute_at=0 produced_at=0

        Source: nvFuser IterDomain::parallelize; TVM's ``bind``.
        """

    def pin(self, axis: Axis) -> Self:
        """Never inline past leaf axis `axis`, of this tensor or of a producer.

        Raises:
            ScheduleError: out of range, or an input.

        Args:
            axis: a leaf position, negative from the end, or a name.

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

    def compute_at(self, consumer: Self, pos: Axis, recompute: bool = False) -> Self:
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
            pos: how many of the consumer's leading leaf axes; negative: ``pos += ndim + 1``; or
                the name of the innermost of them. 0, or a position not above the present one,
                changes nothing.
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

    def inline_at(self, pos: Axis) -> Self:
        """Share the leading `pos` loops with the consumers, without any replay.

        But for a tensor that is read in windows: it gets the tiles that these need in `pos` shared
        loops, and with ``-1`` in all loops of its consumers: what is read there, computed anew.

        Args:
            pos: how many of this tensor's leading leaf axes; negative: ``pos += ndim + 1``; or the
                name of the innermost of them.

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

    def rfactor(self, axes: Axis | Sequence[Axis], refold: bool = False) -> Self:
        """Factor a reduction in two: a new tensor reduces some axes, this one the others.

        Before ``y [i0, r1, r2]``; after ``t = y.rfactor(1)``: ``t [i0, r1, i2]``, ``y [i0, r1]``,
        and y reduces what t leaves. Of a definition with several outputs, all are factored. Of a
        scan, t scans each segment by itself, and y combines it with a scan of their totals.

        Args:
            axes: the reduction leaf axes that the new tensor reduces, one or several, not all, by
                position or name; the inner ones of those that the axis of a scan was split to.
            refold: of a scan: whether the totals of its segments fold their elements again. The
                scan of a segment is then read by this tensor alone, and may be computed in its
                loops; else a total is the last element of that scan.

        Returns:
            The new tensor, the producer of this one.

        Raises:
            ScheduleError: no reduction or scan; an axis that is none, is out of range or is named
                twice; all of them; a frozen prefix; `refold` of what is no scan.

        >>> import loopnest as ln
        >>> with ln.Fusion("k") as f:
        ...     y = f.output(ln.sum(f.input("x", ("N", "D"), ln.float32), axis=1), "y")
        >>> print(y.split(1, 8).rfactor(1))
        T2 float32 local [i0: N, r1: ceildiv(D, 8), i2: 8] compute_at=0 produced_at=0

        Source: nvFuser TensorView::rFactor; Suriana et al., "Parallel Associative Reductions in
        Halide", CGO 2017.
        """

    def distribute(self, fragment: Fragment, axes: Sequence[Axis]) -> Self:
        """Spread leaf axes over the lanes of a warp and their registers.

        The axes are split by the fragment's digits, put in order and merged, as by `split`,
        `reorder` and `merge`: in the place of the first of them stand the lane, bound to block_x,
        and the register.

        Args:
            fragment: where the elements lie.
            axes: the leaf axes that are those of the fragment, in its order, by position or name.

        Returns:
            This tensor.

        Raises:
            ScheduleError: an input; axes of other extents, or of symbolic ones; axes that are
                parallel or frozen; block_x is bound already.

        >>> import loopnest as ln
        >>> with ln.Fusion("k") as f:
        ...     x = f.input("x", (64, 8), ln.float32)
        ...     y = f.output(x * 2.0, "y")
        >>> quads = ln.Fragment("(g) (t p) -> (g t) (p)", g=8, t=4, p=2)
        >>> print(y.split(0, 8).distribute(quads, axes=(1, 2)))
        y float32 global [i0: 8, i1: 32 block_x, i2: 2] compute_at=0 produced_at=0

        Source: CuTe's layouts of threads and values (``TiledMMA``).
        """

    def instruct(self, name: str, axes: Sequence[Axis]) -> Self:
        """Let a row of `ln.instructions` compute tiles of this reduction.

        The definition must be what the row says, a sum of products of casts, of tensors in
        `ln.WARP` memory. The result's fragment is applied to this tensor, those of the operands to
        the tensors that it reads, as by `distribute`; what lies between them is then computed
        inside of the tile, so that it must be inlined into it (`compute_at` with position -1).

        Args:
            name: of the row.
            axes: the leaf axes of a tile, by position or name, in the order of the row's: of a
                product m, n, k.

        Returns:
            This tensor.

        Raises:
            ScheduleError: no such row, or one that moves values; axes of other extents or kinds; a
                definition that differs; an operand that is not in WARP memory, or is not computed
                in the loops around the tile; block_x is bound already.
            NotSupported: an instruction that needs a later version.

        >>> import loopnest as ln
        >>> with ln.Fusion("k") as f:
        ...     a, b = f.input("a", (16, 16), ln.float16), f.input("b", (16, 8), ln.float16)
        ...     c = f.output(ln.matmul(a, b, dtype=ln.float32), "c")
        >>> c.instruct("mma.m16n8k16.f32.f16", axes=(0, 1, 2))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        loopnest.base.errors.ScheduleError: c.instruct('mma.m16n8k16.f32.f16', (0, 1, 2)): ...

        Source: Exo's ``replace`` by an instruction, checked as data instead of unified.
        """

    def cache_after(self) -> Self:
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

    def cache_before(self) -> Self:
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

    def cache_fork(self) -> Self:
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

    def new_launch(self) -> Self:
        """Let the loops that compute this tensor start the next launch of the kernel.

        They run in a launch after those of all that they read and that is computed elsewhere. Each
        launch has a grid and blocks of its own; all threads of one end before the next one begins,
        so that no barrier is needed in between. What one launch stores and another reads lies in
        GLOBAL memory: `memory` says so for an intermediate, which is then workspace. A tensor in
        LOCAL or SHARED memory may be computed in the loops of this one (`compute_at`); it is then
        computed in the new launch.

        Returns:
            This tensor.

        Raises:
            ScheduleError: an input, or a tensor that shares loops with a producer in GLOBAL memory.

        >>> import loopnest as ln
        >>> with ln.Fusion("k") as f:
        ...     x = f.input("x", (1 << 20,), ln.float32)
        ...     y = f.output(ln.sum(x), "y")
        >>> part = y.split(0, 1 << 12).rfactor(1)
        >>> part.memory = ln.GLOBAL
        >>> _ = part.axis(0).parallelize(ln.ParallelType.grid_x)
        >>> y = y.new_launch()
        >>> [config.grid for config in ln.lower(f).launch().launches]
        [(256, 1, 1), (1, 1, 1)]

        Source: nvFuser's segmented fusions (``SegmentedFusion``), cut where the user says.
        """

    def atomic(self) -> Self:
        """Let all threads fold into the memory of this reduction, by atomic operations.

        Its loops over what is reduced may then be bound to anything a launch has, and to
        cpu_parallel, without partial results: an update is one step, whoever takes it. The order
        of the updates is free, so that a sum of floats has other bits each time. Where data say
        which element an update goes to, this is how a scatter runs over its sources:
        ``ln.index_add(w, 0, i, u)``.

        Returns:
            A new tensor, of the initial values, in the memory of this one, which is moved to GLOBAL
            memory where it is LOCAL. It has loops of its own; all of its elements are stored before
            any update: in an earlier launch where this tensor calls `new_launch`, else before a
            barrier. In SHARED memory each block has a result of its own, which its threads update.

        Raises:
            ScheduleError: no reduction; a scan; several components; a reducer that need not
                commute; a type whose partial results are wider (float16), or that is not of 4 or 8
                bytes; a sum of floats with ``deterministic=True``.

        >>> import loopnest as ln
        >>> with ln.Fusion("k") as f:
        ...     x = f.input("x", ("N",), ln.int32)
        ...     y = f.output(ln.sum(x, dtype=ln.int32), "y")
        >>> start = y.atomic()
        >>> y = y.parallelize({0: ln.ParallelType.cpu_parallel})
        >>> print(ln.lower(f))
        # loopnest nest 1
        kernel k(x: int32[N]) -> (y: int32[])
        y[0] = 0
        for i0 in N:  # cpu_parallel
          atomic y[0] = y[0] + x[i0]

        Source: Halide's ``Func::atomic``; CUDA C++ Programming Guide, "Atomic Functions".
        """

    def circular_buffer(self, stages: int, prefetch: int | None = None) -> Self:
        """Compute this LOCAL or SHARED tensor some iterations ahead of its consumers.

        Its buffer gets `stages` copies, which the innermost loop that it shares, launch dimensions
        aside, rotates through; LOCAL tensors that only it reads run ahead with it: their values
        are loaded before the consumers' work of an iteration, and stored after it. For copies in
        registers that loop is unrolled by `stages`, so that each stage has registers of its own.
        A reduction runs ahead as a whole, a scan step by step, as long as no threads fold together.

        Args:
            stages: the copies, 2 to 32.
            prefetch: how many iterations ahead it is computed, 1 to `stages` - 1; by default
                `stages` - 1.

        Raises:
            ScheduleError: another number of stages, or of iterations ahead; a tensor that is
                GLOBAL, atomic, or not computed inside a serial loop; one of several outputs of a
                definition that another of them refuses.

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

    def move_by(self, name: str) -> Self:
        """Let an instruction copy the elements of this tensor.

        "cp.async" copies to SHARED memory. Its copies are in flight: a thread begins them, works,
        and waits for them before they are read. With a circular buffer they are under way for its
        prefetch; those of all tensors that rotate through one loop form one group an iteration.
        Without one they are waited for at once. Vectorize the innermost axis by 16 bytes: each copy
        is of 16, 8 or 4 aligned bytes, and elements of 1 or 2 bytes do not go alone.

        "ldmatrix.x2" and "ldmatrix.x4" copy from SHARED to WARP memory, in a tile: 2 or 4 matrices
        of 8 rows, each of 16 bytes that lie together, so that each lane gets 8 or 16 bytes. With
        ".trans" a lane gets elements of one column instead of one row, of 2 bytes each.

        Args:
            name: of a row of `ln.instructions` that moves.

        Raises:
            ScheduleError: no such instruction, or none that moves; an input; a tensor that is no
                copy, is not between the memories of the row, or has elements of other bytes.
            NotSupported: a move that this version does not make.

        >>> import loopnest as ln
        >>> with ln.Fusion("k") as f:
        ...     x = f.input("x", (64, 128), ln.float32)
        ...     y = f.output(x * 2.0, "y")
        >>> tile = x.cache_after()
        >>> tile.memory = ln.SHARED
        >>> tile = tile.compute_at(y, 1).move_by("cp.async").circular_buffer(2)
        >>> [line.strip() for line in str(ln.lower(f)).splitlines() if "wait" in line]
        ['wait 0']

        Source: CUDA C++ Programming Guide, "Asynchronous Data Copies"; PTX ISA, cp.async.
        """

    def swizzle(self, kind: Swizzle, a: Axis, b: Axis) -> Self:
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

    def set_allocation(
        self,
        order: Sequence[Axis] | None = None,
        pad: Mapping[AxisKey, int] | None = None,
    ) -> Self:
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


@_declared
class AllocationMethods:
    """The primitives that lay out the buffer of one tensor."""

    __slots__ = ()

    def split(self, axis: Axis, factor: int | str | Expr, inner: bool = True) -> Self:
        """Split an axis in two, as `TensorView.split` does.

        Before ``[i0: 32, i1: 32]``; ``t.allocation_domain.split(1, 4)`` gives
        ``[i0: 32, i1: 8, i2: 4]``.

        Raises:
            ScheduleError: an input or output; out of range; a bad factor; padded or swizzled.
        """

    def merge(self, axis: Axis, other: Axis | None = None) -> Self:
        """Merge two axes into one, as `TensorView.merge` does.

        Before ``[i0: 8, i1: 32]``; ``t.allocation_domain.merge(0)`` gives ``[i0: 256]``.

        Raises:
            ScheduleError: an input or output; out of range; the same axis twice; padded or
                swizzled.
        """

    def reorder(self, order: Mapping[AxisKey, Axis] | Sequence[Axis] | int, *more: Axis) -> Self:
        """Permute the axes in memory, as `TensorView.reorder` does.

        Before ``[i0: 8, i1: 32]``; ``t.allocation_domain.reorder([1, 0])`` gives
        ``[i0: 32, i1: 8]``.

        Raises:
            ScheduleError: an input or output; no permutation, or an axis out of range.
        """

    def pad(self, axis: Axis, count: int) -> Self:
        """Add `count` unused elements to the extent of an axis.

        Before ``[i0: 8, i1: 32]``; ``t.allocation_domain.pad(1, 1)`` gives
        ``[i0: 8, i1: 32 + 1]``: rows are 33 elements apart.

        Raises:
            ScheduleError: an input or output; out of range; no int >= 0.
        """

    def swizzle(self, kind: Swizzle, a: Axis, b: Axis) -> Self:
        """Let the element at axes (a, b) of a SHARED tensor lie at (a, b ^ a).

        The extents are static powers of two; where axis `a` is longer, its low bits move axis `b`:
        of 32 rows of 8 chunks, row 9 has chunk 0 where row 1 has it, at 1. Several swizzles follow
        each other. Before ``[i0: 32, i1: 8, i2: 4]``;
        ``t.allocation_domain.swizzle(ln.Swizzle.XOR, 0, 1)`` gives
        ``[i0: 32, i1: 8 xor i0, i2: 4]``.

        Raises:
            ScheduleError: an input or output; not SHARED; out of range; the same axis twice; an
                extent that is no static power of two.
        """

    def reset(self) -> Self:
        """Let the buffer follow from the loops again, without order, padding and swizzles.

        Raises:
            ScheduleError: an input or output.
        """


@_declared
class TensorMath:
    """Operators of a tensor, and its copy."""

    __slots__ = ()

    def _operate(self, name: str, *operands: object) -> Self:
        """Return what a pointwise function gives, of which one operand is this tensor."""

    def _copied(self) -> Self:
        """Return a tensor with the elements of this one."""

    def __getitem__(self, key: object) -> Self:
        """Return a part, by NumPy's basic indexing: ``tv[1:-1, ::-2, None, ..., 0]``."""

    def __matmul__(self, other: Self) -> Self:
        """Return the product of two matrices, or of two arrays of such."""

    def __rmatmul__(self, other: Self) -> Self:
        """Return the product of two matrices, of which this is the second."""


@_declared
class ScalarMath:
    """Operators of a run-time scalar."""

    __slots__ = ()

    def _operate(self, name: str, *operands: object) -> Self:
        """Return what a pointwise function gives; a tensor among its operands takes over."""


@_declared
class FusionMethods(Generic[Tensor]):
    """What a fusion hands over: the primitive of all its tensors, and a declaration of data."""

    def inline_most(
        self, tensors: Tensor | Iterable[Tensor] | None = None, *, replay: bool = False
    ) -> None:
        """Inline every tensor as deep as is legal, or those of a list; see `ln.inline_most`.

        Raises:
            ScheduleError: `tensors` are no tensors of this fusion.
        """

    def _declared_range(
        self, indices: object, low: object, high: object, ascending: object
    ) -> DataRange:
        """Return what `Fusion.assume_range` declares."""
