"""The oracle: the math of a fusion by NumPy, without loops, buffers or schedules.

It reads definitions only (templates, reads, reducers, and the transforms between root and
rfactor domain), so a scheduled fusion, whose definitions were split and copied, evaluates as well.

Memory is that of inputs and outputs, of reductions, and of blocks: a large pointwise tensor is not
held but computed, block by block, where it is read. It is computed again for each reduction and
output that reads it, which costs time only where more than a block is to compute.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from graphlib import TopologicalSorter
from typing import Any, Literal, Protocol, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from loopnest.base.errors import InternalError, LaunchError, kind_of
from loopnest.kir.kernel_program import Program
from loopnest.numerics import oracle_blocks
from loopnest.numerics.float64_math import Values, evaluate_expr, held, rounded, stored
from loopnest.numerics.oracle_blocks import (
    Arrays,
    Block,
    Pieces,
    Region,
    blocks_of,
    chunks_of,
    length,
)
from loopnest.numerics.oracle_operands import (
    AxisImages,
    OracleOperands,
    Segments,
    V,
    fold_values,
    part_of,
    rows_of,
    scan_values,
)
from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import TRUE, Coordinate, Expr, Index, Op, substitute, terms_of, walk
from loopnest.scalar.simplify import Simplifier
from loopnest.tensor.domain import IterDomain, TensorDomain, transforms_between
from loopnest.tensor.fusion import Fusion
from loopnest.tensor.math_snapshot import MathSnapshot, snapshot, thaw
from loopnest.tensor.tensor_view import Definition, Scan, TensorView, TracedReducer

Result: TypeAlias = "npt.NDArray[Any] | tuple[npt.NDArray[Any], ...]"


class LoweredKernel(Protocol):
    """What `loopnest.lower` returns: `facade.Kernel`, which lies above this room."""

    @property
    def program(self) -> Program:
        """The loop nest."""


@overload
def evaluate(
    fusion: Fusion | LoweredKernel, /, *arrays: object, tensors: Literal[False] = False,
    exact: bool = False,
    **scalars: object,
) -> Result: ...  # fmt: skip
@overload
def evaluate(
    fusion: Fusion | LoweredKernel, /, *arrays: object, tensors: Literal[True],
    exact: bool = False,
    **scalars: object,
) -> tuple[Result, dict[str, npt.NDArray[Any]]]: ...  # fmt: skip
def evaluate(
    fusion: Fusion | LoweredKernel, /, *arrays: object, tensors: bool = False, exact: bool = False,
    **scalars: object,
) -> Result | tuple[Result, dict[str, npt.NDArray[Any]]]:  # fmt: skip
    """Return what `fusion` computes of `arrays`, by NumPy: the oracle.

    Floats are computed in float64 and rounded only by casts and where a 16-bit tensor is defined;
    integers are computed in their own type.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("row_sum") as f:
    ...     x = f.input("x", ("N", "D"), ln.float32)
    ...     y = f.output(ln.sum(x, axis=1), "y")
    >>> ln.evaluate(f, np.ones((2, 3), np.float32))
    array([3., 3.], dtype=float32)
    >>> ln.evaluate(f, np.full((1, 3), 0.1, np.float32), exact=True)
    array([0.3])

    Args:
        fusion: the math: a fusion, scheduled or not, or a kernel, which carries the math of the one
            that it was lowered from.
        arrays: one an input, in the order of ``fusion.inputs``.
        tensors: whether to return every tensor.
        exact: whether floats are returned in float64, as they were computed: a float32 result is
            then not rounded. Casts, and the definitions of 16-bit tensors, round all the same.
        scalars: the run-time scalars, and the sizes that no input has.

    Returns:
        The output, or a tuple of them where there is not exactly one, in the outputs' types. With
        `tensors` that, and a dict of every tensor by name.

    Raises:
        LaunchError: arguments that do not fit, or an assumption that does not hold.

    Source: the way of nvFuser's `ExpressionEvaluator`: definitions alone, no schedule.
    """
    fusion = math_of(fusion, "evaluate")
    for name, flag in (("tensors", tensors), ("exact", exact)):
        if not isinstance(flag, bool):
            subject = f"evaluate({fusion.name}, {name}={type(flag).__name__})"
            raise LaunchError(subject, f"{name}= is no bool", "pass True or False")
    wanted = fusion.tensors if tensors else fusion.outputs
    results = _Values(fusion, arrays, scalars).results(wanted, _unrounded if exact else stored)
    outputs = tuple([results[tensor] for tensor in fusion.outputs])
    result: Result = outputs[0] if len(outputs) == 1 else outputs
    return (result, {t.name: results[t] for t in fusion.tensors}) if tensors else result


def math_of(asked: object, call: str) -> Fusion:
    """Return the math of a fusion or a kernel, as a fusion.

    Raises:
        LaunchError: it is neither, or a kernel without math; `call` is what the user called.
    """
    if isinstance(asked, Fusion):
        return asked
    return thaw(snapshot_of(asked, call))


def snapshot_of(asked: object, call: str) -> MathSnapshot:
    """Return the math of a fusion or a kernel, as it is now or was when it was lowered.

    Raises:
        LaunchError: as `math_of`.
    """
    if isinstance(asked, Fusion):
        return snapshot(asked)
    make: Callable[[], MathSnapshot] | None = getattr(
        getattr(asked, "_lowered", None), "math", None
    )
    if make is not None:
        return make()
    hint = "pass the fusion, or the kernel that ln.lower made of it"
    if isinstance(getattr(asked, "program", None), Program):
        raise LaunchError(f"{call}({asked!r})", "this kernel carries no math", hint)
    found = f"{kind_of(asked)} is neither a Fusion nor a Kernel"
    raise LaunchError(f"{call}({asked!r})", found, hint)


class Oracle(OracleOperands[V]):
    """One evaluation: definitions in their order, folds, and what is held in memory.

    What a value is, a subclass says: it brings the arithmetic, this class the order of definitions,
    the blocks and the memory. Arguments are those of `OracleOperands`.
    """

    # The arithmetic of folds

    @abstractmethod
    def folded(self, definition: Definition, reducer: TracedReducer, parts: Sequence[V]) -> list[V]:
        """Return the components of a reduction, with their last axis folded away."""

    @abstractmethod
    def folded_so_far(
        self, reducer: TracedReducer, parts: Sequence[V], *, exclusive: bool
    ) -> list[V]:
        """Return for each element along the last axis what all up to it fold to.

        With `exclusive` it is all before it.
        """

    @abstractmethod
    def defined(self, value: V, dtype: DType) -> V:
        """Return `value` as a tensor of `dtype` has it: rounded if it is a 16-bit tensor."""

    @abstractmethod
    def assembled(self, shape: tuple[int, ...]) -> Pieces[V]:
        """Return what puts a value of extents `shape` together from blocks."""

    # The order of definitions

    def run(self, wanted: Sequence[TensorView]) -> dict[TensorView, V]:
        """Return the values of `wanted`; others are kept only while needed."""
        self._define_all(wanted, {})
        return {tensor: self._read(tensor, None) for tensor in wanted}

    def results(
        self, wanted: Sequence[TensorView], final: Callable[[V, DType], Values]
    ) -> dict[TensorView, Values]:
        """Return `final` of the values of `wanted`, computed block by block where possible."""
        needed = producers_of(wanted)
        ends = {} if len(needed) == len(set(wanted)) else dict.fromkeys(wanted, final)
        made = self._define_all(wanted, ends)
        with np.errstate(all="ignore"):
            for tensor in wanted:
                if tensor not in made:
                    made[tensor] = final(self._read(tensor, None), tensor.dtype)
        return made

    def _define_all(
        self, wanted: Sequence[TensorView], ends: Mapping[TensorView, Callable[[V, DType], Values]]
    ) -> dict[TensorView, Values]:
        """Evaluate all that `wanted` needs; return what `ends` make of the values of theirs.

        Large pointwise tensors are computed anew, block by block, where they are read.
        """
        needed = producers_of(wanted)
        order = [t for t in self.order if t in needed and t.definition is not None]
        loops = _step_loops(order)
        order = _in_units(order, loops)
        gathered_from = {
            r.producer for t in order if t.definition for r in t.definition.reads if r.data
        }
        self.inlined = {
            t for t in order
            if (t in ends or t not in wanted) and self._is_large(t) and t not in gathered_from
            and t not in loops
        }  # fmt: skip
        read = {producer for t in order for producer in t.producers}
        stored_whole = read.difference(self.inlined)
        stages = [t for t in order if t not in self.inlined or t in ends]
        inner = {tensor: self._inlined_into(tensor) for tensor in stages}
        last = {p: t for t in stages for u in (t, *inner[t]) for p in u.producers}
        made: dict[TensorView, Values] = {}
        with np.errstate(all="ignore"):
            for tensor in stages:
                if tensor in loops and tensor not in self.values:
                    self._define_steps(loops[tensor])
                elif tensor not in self.values and tensor not in made:
                    direct = {t: end for t, end in ends.items() if t not in stored_whole}
                    self._define(tensor, inner[tensor], direct, made)
                for producer in [p for p, t in last.items() if t is tensor]:
                    if producer not in wanted:
                        self.values.pop(producer, None)
        return made

    def _is_large(self, tensor: TensorView) -> bool:
        """Whether a tensor is pointwise, and larger than a block."""
        definition, domain = tensor.definition, tensor.domain
        assert definition is not None
        if definition.reducer is not None or domain.rfactor != domain.root:
            return False
        return math.prod(self.shape(domain.root)) > oracle_blocks.BLOCK

    def _inlined_into(self, tensor: TensorView) -> list[TensorView]:
        """Return the tensors that are computed where `tensor` reads them, producers first."""
        found: set[TensorView] = set()
        stack = list(tensor.producers)
        while stack:
            producer = stack.pop()
            if producer in self.inlined and producer not in found:
                found.add(producer)
                stack.extend(producer.producers)
        return [t for t in self.order if t in found] if found else []

    def _define(
        self,
        tensor: TensorView,
        inner: Sequence[TensorView],
        ends: Mapping[TensorView, Callable[[V, DType], Values]],
        made: dict[TensorView, Values],
    ) -> None:
        """Evaluate the definition of `tensor`, for all its outputs, block by block."""
        definition, domain = tensor.definition, tensor.domain
        assert definition is not None
        shape = self.shape(domain.root)
        reduces = definition.reducer is not None
        kept = [
            place
            for place, axis in enumerate(domain.root)
            if axis in domain.rfactor and not (reduces and axis.is_reduction)
        ]
        if definition.scan is not None:
            kept.remove(definition.scan.axis)
        walked, scatter = shape, self.scatter(definition, domain)
        if scatter is not None:
            kept.remove(scatter.axis)
            walked = (*shape[: scatter.axis], 1, *shape[scatter.axis + 1 :])
        logical = [a for a in domain.rfactor if not (reduces and a.is_reduction)]
        whole = self.shape(logical)
        arrays = {t: Arrays(whole) for t in definition.outputs if t in ends}
        pieces = {t: self.assembled(whole) for t in definition.outputs if t not in ends}
        for block in blocks_of(walked, kept):
            parts = self._block(definition, domain, shape, block, inner)
            cut = {domain.root[place]: part for place, part in block.items()}
            where = tuple([cut.get(axis, slice(None)) for axis in logical])
            for output, part in zip(definition.outputs, parts, strict=True):
                value = self.defined(part, output.dtype)
                if output in ends:
                    arrays[output].put(where, ends[output](value, output.dtype))
                elif not block:  # all of it
                    self.values[output] = value
                else:
                    pieces[output].put(where, value)
        made.update({t: result.whole() for t, result in arrays.items()})
        rest = {t: piece for t, piece in pieces.items() if t not in self.values}
        self.values.update({t: piece.whole() for t, piece in rest.items()})

    def _define_steps(self, tensors: Sequence[TensorView]) -> None:
        """Evaluate the tensors of a loop over steps, all of a step before those of the next."""
        definitions = dict.fromkeys([t.definition for t in tensors if t.definition is not None])
        outputs = [t for found in definitions for t in found.outputs]
        shapes = {t: self.shape(t.domain.logical) for t in outputs}
        pieces = {t: self.assembled(shape) for t, shape in shapes.items()}
        for tensor, shape in shapes.items():  # no step reads an element of a later one
            zeros = np.zeros(shape, tensor.dtype.numpy)
            self.values[tensor] = self.given(zeros, tensor.dtype)
        (count,) = self.shape(tensors[0].domain.root[:1])
        for step in range(count):
            block = {0: slice(step, step + 1)}
            for found in definitions:
                domain = found.outputs[0].domain
                inner = self._inlined_into(found.outputs[0])
                parts = self._block(found, domain, self.shape(domain.root), block, inner)
                for output, part in zip(found.outputs, parts, strict=True):
                    pieces[output].put((block[0],), self.defined(part, output.dtype))
                    self.values[output] = pieces[output].whole()

    def _block(
        self,
        definition: Definition,
        domain: TensorDomain,
        shape: tuple[int, ...],
        block: Block,
        inner: Sequence[TensorView],
    ) -> list[V]:
        """Return what a definition gives on a block of its root domain."""
        scatter = self.scatter(definition, domain)
        if scatter is not None and shape[scatter.axis]:
            return self._scattered(definition, domain, shape, block, inner, scatter)
        reducer = definition.reducer
        chunks = [block]
        if self.folds_in_parts and reducer is not None and domain.rfactor == domain.root:
            chunks = list(chunks_of(shape, block, [a.is_reduction for a in domain.root]))
        found = []
        for chunk in chunks:
            region = tuple([_bounds(chunk, place) for place in range(len(shape))])
            local = self._locals(definition, region, inner)
            env = self.operands(definition, domain, region, local)
            size = tuple([length(chunk, place, n) for place, n in enumerate(shape)])
            found.append(self.computed(definition, domain, size, env, chunk))
        if len(found) == 1:
            return found[0]
        assert reducer is not None
        return self.folded_parts(definition, reducer, found)

    def scatter(self, definition: Definition, domain: TensorDomain) -> Scatter | None:
        """Return where the elements of a fold go, if they are looked at once."""
        found = scatter_of(definition, domain)
        return None if found is None or domain.root[found.axis] in self.places else found

    def _scattered(
        self,
        definition: Definition,
        domain: TensorDomain,
        shape: tuple[int, ...],
        block: Block,
        inner: Sequence[TensorView],
        scatter: Scatter,
    ) -> list[V]:
        """Return what a fold gives on a block, each element taken in where it goes."""
        reducer = definition.reducer
        assert reducer is not None
        walked = {**block, scatter.axis: slice(0, 1)}
        region = tuple([_bounds(walked, place) for place in range(len(shape))])
        env = self.operands(definition, domain, region, self._locals(definition, region, inner))
        folded = [place for place, axis in enumerate(domain.root) if axis.is_reduction]
        kept = [place for place in range(len(shape)) if place not in folded]
        sizes = tuple([length(walked, place, n) for place, n in enumerate(shape)])
        flat = (*[sizes[n] for n in kept], math.prod([sizes[n] for n in folded]))
        found = tuple([length(block, place, shape[place]) for place in kept])

        def turned(values: Values) -> Values:
            return np.transpose(np.broadcast_to(values, sizes), (*kept, *folded)).reshape(flat)

        target = turned(self.integers(self.expression(scatter.target, env)))
        inside = (target >= 0) & (target < shape[scatter.axis])
        spots = list(np.ogrid[tuple([slice(n) for n in flat])])[:-1]
        spots[kept.index(scatter.axis)] = np.where(inside, target, 0)
        places = np.ravel_multi_index(tuple(np.broadcast_arrays(*spots)), found)[inside]
        order = np.argsort(places, kind="stable")
        parts: list[V] = []
        pieces: list[Pieces[V]] = []
        for value, constant in zip(scatter.values, reducer.identity, strict=True):
            none = evaluate_expr(constant, {})
            ordered = partial(_ordered, turned, inside, order, none)
            parts.append(self.viewed(self.expression(value, env), ordered))
            pieces.append(self.assembled((math.prod(found),)))
            start = self.given(np.full(math.prod(found), none), constant.dtype)
            pieces[-1].put((slice(None),), start)
        for where, numbers in rows_of(places[order]):
            rows = [self.viewed(part, partial(np.take, indices=numbers)) for part in parts]
            for piece, row in zip(pieces, self.folded(definition, reducer, rows), strict=True):
                piece.put((where,), row)
        return [self.viewed(piece.whole(), lambda a: a.reshape(found)) for piece in pieces]

    folds_in_parts = False
    """Whether a reduction may fold parts of its elements, and then `folded_parts` of these."""

    def folded_parts(
        self, definition: Definition, reducer: TracedReducer, parts: Sequence[list[V]]
    ) -> list[V]:
        """Return what partial results fold to, the components of each given."""
        raise InternalError(reducer.name, f"{type(self).__name__} folds no parts")

    def _locals(
        self, definition: Definition, region: Region, inner: Sequence[TensorView]
    ) -> dict[tuple[TensorView, Region], V]:
        """Return the parts of inlined tensors that a definition reads on a region."""
        asked: dict[TensorView, dict[Region, None]] = {tensor: {} for tensor in inner}

        def ask(definition: Definition, region: Region) -> None:
            root = definition.outputs[0].domain.root
            for read in definition.reads:
                if read.producer in asked:
                    spots = self._spots(read, root, region)
                    asked[read.producer][part_of(spots, region)] = None

        if inner:
            ask(definition, region)
        for tensor in reversed(inner):
            for part in asked[tensor]:
                assert tensor.definition is not None
                ask(tensor.definition, part)
        found: dict[tuple[TensorView, Region], V] = {}
        for tensor in inner:
            own = tensor.definition
            assert own is not None
            for part in asked[tensor]:
                env = self.operands(own, tensor.domain, part, found)
                size = tuple(
                    [
                        n if ends is None else ends[1] - ends[0]
                        for n, ends in zip(self.shape(tensor.domain.root), part, strict=True)
                    ]
                )
                value = self.viewed(
                    self.expression(own.values[0], env), partial(np.broadcast_to, shape=size)
                )
                found[tensor, part] = self.defined(value, tensor.dtype)
        return found

    def computed(
        self,
        definition: Definition,
        domain: TensorDomain,
        shape: tuple[int, ...],
        env: Mapping[Expr, V],
        block: Block,
    ) -> list[V]:
        """Return what a definition gives on a block of extents `shape` of its root domain.

        Args:
            definition: the definition.
            domain: of its outputs.
            shape: the extents of the block.
            env: the leaves of the templates, to broadcast to `shape`.
            block: where it lies.
        """
        parts = [
            self.viewed(self.expression(value, env), lambda a: np.broadcast_to(a, shape))
            for value in definition.values
        ]
        reducer = definition.reducer
        if domain.rfactor != domain.root:
            fill = reducer.identity if reducer else None
            empty = [evaluate_expr(c, {}) for c in fill] if fill else [np.asarray(0)] * len(parts)
            cut = {domain.root[place]: part.stop - part.start for place, part in block.items()}
            where = self._places(domain, cut)
            whole = zip(domain.rfactor, self.shape(domain.rfactor), strict=True)
            shape = tuple([cut.get(axis, size) for axis, size in whole])
            parts = [
                self.viewed(part, partial(_placed, shape, where, neutral))
                for part, neutral in zip(parts, empty, strict=True)
            ]
        if reducer is None:
            return parts
        if definition.scan is not None:
            return self._scanned(reducer, definition.scan, parts)
        return self._reduced(definition, reducer, domain.rfactor, shape, parts)

    def _places(self, domain: TensorDomain, cut: Mapping[IterDomain, int]) -> tuple[Values, ...]:
        """Return the index along each rfactor axis of each point of the root domain.

        `cut` gives for some axes, which both domains have, how many coordinates are looked at.
        """
        names, images = self._images(domain)
        env: dict[Expr, Values] = dict(self.indices)
        region = tuple([(0, cut[axis]) if axis in cut else None for axis in domain.root])
        for axis, points in zip(domain.root, self._grid(domain.root, region), strict=True):
            dense = np.arange(points.size).reshape(points.shape)
            env[names[axis]] = dense if axis in self.places else points
        for name, image in images:
            env[name] = evaluate_expr(image, env)
        return tuple([env[names[axis]] for axis in domain.rfactor])

    def _images(self, domain: TensorDomain) -> AxisImages:
        """Return a name for each axis between root and rfactor domain, and what those after it are.

        They are the same for each block, and made for the first one.
        """
        known = self.images.get(domain)
        if known is None:
            algebra = Simplifier()
            names = {axis: Index(f"i{n}", axis.size) for n, axis in enumerate(domain.root)}
            images: list[tuple[Index, Expr]] = []
            for step in transforms_between(domain.root, domain.rfactor):
                made = step.forward([names[axis] for axis in step.inputs], algebra)
                for axis, image in zip(step.outputs, made, strict=True):
                    names[axis] = Index(f"i{len(names)}", axis.size)
                    images.append((names[axis], image))
            known = self.images[domain] = names, images
        return known

    def _scanned(self, reducer: TracedReducer, scan: Scan, parts: Sequence[V]) -> list[V]:
        """Give each element what is folded so far along an axis."""
        last = [self.viewed(part, lambda a: np.moveaxis(a, scan.axis, -1)) for part in parts]
        if scan.segment is None:
            found = self.folded_so_far(reducer, last, exclusive=scan.exclusive)
        else:
            cut = Segments(scan.segment)
            apart = [self.viewed(part, cut.apart) for part in last]
            found = self.folded_so_far(reducer, apart, exclusive=scan.exclusive)
            found = [self.viewed(part, cut.joined) for part in found]
        return [self.viewed(part, lambda a: np.moveaxis(a, -1, scan.axis)) for part in found]

    def _reduced(
        self,
        definition: Definition,
        reducer: TracedReducer,
        axes: Sequence[IterDomain],
        shape: tuple[int, ...],
        parts: Sequence[V],
    ) -> list[V]:
        """Fold the reduction axes away."""
        folded = tuple([place for place, axis in enumerate(axes) if axis.is_reduction])
        kept = [place for place in range(len(axes)) if place not in folded]
        count = int(np.prod([shape[place] for place in folded], dtype=np.int64))
        flat = (*[shape[place] for place in kept], count)
        order = (*kept, *folded)
        if count == 0:
            neutral = [(evaluate_expr(c, {}), c.dtype) for c in reducer.identity]
            return [self.given(np.full(flat[:-1], value), dtype) for value, dtype in neutral]
        now = [self.viewed(p, lambda a: np.transpose(a, order).reshape(flat)) for p in parts]
        return self.folded(definition, reducer, now)


def _ordered(
    turned: Callable[[Values], Values], inside: Values, order: Values, neutral: Values, part: Values
) -> Values:
    """Return the elements inside of the axis in the order of their places, and a neutral one."""
    return np.append(turned(part)[inside][order], np.asarray(neutral, part.dtype))


def _placed(
    shape: tuple[int, ...], where: tuple[Values, ...], neutral: Values, part: Values
) -> Values:
    """Return `part`, given on the root domain, on an rfactor domain of extents `shape`.

    Points of the rfactor domain that are no points of the root hold `neutral`.
    """
    result = np.full(shape, neutral, part.dtype)
    result[tuple([np.broadcast_to(index, part.shape) for index in where])] = part
    return result


class _Values(Oracle[Values]):
    """The oracle itself: floats in float64, integers in their own type."""

    def given(self, values: Values, dtype: DType) -> Values:
        return held(values, dtype)

    def expression(self, root: Expr, env: Mapping[Expr, Values]) -> Values:
        return evaluate_expr(root, env)

    def viewed(self, value: Values, view: Callable[[Values], Values]) -> Values:
        return view(value)

    def integers(self, value: Values) -> Values:
        return value

    def uncertain(self, value: Values, indices: Sequence[Values]) -> Values:
        return value

    def folded(
        self, definition: Definition, reducer: TracedReducer, parts: Sequence[Values]
    ) -> list[Values]:
        return fold_values(reducer, parts)

    def folded_so_far(
        self, reducer: TracedReducer, parts: Sequence[Values], *, exclusive: bool
    ) -> list[Values]:
        return scan_values(reducer, parts, exclusive=exclusive)

    def defined(self, value: Values, dtype: DType) -> Values:
        return define_values(value, dtype)

    def assembled(self, shape: tuple[int, ...]) -> Arrays:
        return Arrays(shape)

    folds_in_parts = True

    def folded_parts(
        self, definition: Definition, reducer: TracedReducer, parts: Sequence[list[Values]]
    ) -> list[Values]:
        return fold_values(reducer, [np.stack(part, axis=-1) for part in zip(*parts, strict=True)])


@dataclass(frozen=True, slots=True)
class Scatter:
    """A fold each element of which goes to one place along a root axis, which data say.

    Args:
        axis: the number of that axis.
        target: the coordinate along it that an element goes to; outside of the axis to none.
        values: what goes there.
    """

    axis: int
    target: Expr
    values: tuple[Expr, ...]


def scatter_of(definition: Definition, domain: TensorDomain) -> Scatter | None:
    """Return where elements go of a fold that all but one coordinate take as neutral, if it is."""
    reducer = definition.reducer
    if reducer is None or definition.scan is not None or domain.rfactor != domain.root:
        return None
    pairs = zip(definition.values, reducer.identity, strict=True)
    first, *others = [dict.fromkeys(_tests_of(value, neutral)) for value, neutral in pairs]
    indices = [index for read in definition.reads for index in read.indices]
    for test in [t for t in first if isinstance(t, Op) and t.op == "eq"]:
        if not all(test in tests for tests in others):
            continue
        values = tuple([substitute(value, {test: TRUE}) for value in definition.values])
        for own, target in (test.args, reversed(test.args)):
            if not isinstance(own, Coordinate) or domain.root[own.number].is_reduction:
                continue
            if own not in walk(target, *values, *indices):
                return Scatter(own.number, target, values)
    return None


def _tests_of(value: Expr, neutral: Expr) -> Iterator[Expr]:
    """Yield the tests all of which an element passes that is not neutral."""
    while isinstance(value, Op) and value.op == "where" and value.args[2] == neutral:
        yield from terms_of(value.args[0])
        value = value.args[1]


def _unrounded(values: Values, dtype: DType) -> Values:
    """Return `values` as they were computed, in a new array."""
    return np.array(values)


def define_values(values: Values, dtype: DType) -> Values:
    """Return `values` as a tensor of `dtype` has them: rounded if it is a 16-bit tensor."""
    return rounded(values, dtype) if dtype.is_narrow else held(values, dtype)


def _bounds(block: Block, place: int) -> tuple[int, int] | None:
    return (block[place].start, block[place].stop) if place in block else None


def producers_of(wanted: Sequence[TensorView]) -> set[TensorView]:
    """Return `wanted`, and all that they are computed from."""
    found: set[TensorView] = set()
    stack = list(wanted)
    while stack:
        tensor = stack.pop()
        if tensor not in found:
            found.add(tensor)
            stack.extend((*tensor.producers, *tensor.carried))
    return found


def _step_loops(order: Sequence[TensorView]) -> dict[TensorView, list[TensorView]]:
    """Return by tensor the loop over steps that computes it, as its tensors in their order.

    They lie between what reads an earlier state and the states.
    """
    states = {state for tensor in order for state in tensor.carried}
    inner: set[TensorView] = set()
    for tensor in order:
        read = [p for p in tensor.producers if p in inner and p not in states]
        if tensor.carried or read:
            inner.add(tensor)
    needed = set(states)
    for tensor in reversed(order):
        if tensor in needed and tensor in inner:
            needed.update([p for p in tensor.producers if p in inner and p not in states])
    loops: dict[TensorView, list[TensorView]] = {}
    for tensor in [t for t in order if t in needed and t in inner]:
        joined: list[TensorView] = [tensor]
        for other in (*tensor.producers, *tensor.carried, *tensor.siblings):
            mine = loops.get(other, joined)
            if mine is not joined and (other not in states or other in tensor.carried):
                joined = [*mine, *joined]
        loops.update(dict.fromkeys(joined, joined))
    return {t: [u for u in order if u in set(found)] for t, found in loops.items()}


def _in_units(
    order: Sequence[TensorView], loops: Mapping[TensorView, list[TensorView]]
) -> list[TensorView]:
    """Return tensors in an order in which those of a loop over steps stand together."""
    if not loops:
        return list(order)
    first = {t: loops[t][0] if t in loops else t for t in order}
    graph: dict[TensorView, list[TensorView]] = {first[t]: [] for t in order}
    for tensor in order:
        own = first[tensor]
        graph[own] += [first[p] for p in tensor.producers if p in first and first[p] is not own]
    units = TopologicalSorter(graph).static_order()
    return [t for unit in units for t in loops.get(unit, [unit])]
