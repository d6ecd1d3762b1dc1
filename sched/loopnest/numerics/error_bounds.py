"""How far a correct kernel's results may lie from the oracle's: see `numerics`.

Reducers of one's own have their templates on intervals, in whatever grouping they fold. A
combination that does not round gives one result in every grouping: then that of the templates on
the enclosures of the elements holds all. One that rounds errs once where two partial results are
combined, at n - 1 places, and what it errs there reaches the result by way of the combinations
after it. How much that comes to, one tree shows: the partial results in it, single elements
included, are each taken to be off by as many roundings as the combination has operations that
round, whether these operands need them or not. Each of the n - 1 errors of another tree counts as
much as all of its together.

That is a bound to first order, for partial results like those that the tree has: where one of
another grouping is far larger than all of these (as where elements next to each other cancel, but
not those further apart), it may be too small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from loopnest.base.errors import LaunchError
from loopnest.kir.instruction_rows import Instruction, instructions
from loopnest.numerics.float64_math import Values, evaluate_expr, held
from loopnest.numerics.interval_rules import enclose
from loopnest.numerics.intervals import (
    Interval,
    cut_off,
    exact,
    extremes,
    flushed,
    flushing,
    is_wild,
    narrowed,
    undetermined,
    unknown_where,
    widened,
)
from loopnest.numerics.oracle import (
    LoweredKernel,
    Oracle,
    Result,
    Scatter,
    math_of,
    producers_of,
    snapshot_of,
)
from loopnest.numerics.oracle_blocks import halves
from loopnest.numerics.oracle_operands import Places, fold_values, scan_values
from loopnest.numerics.reduction_intervals import FOLDS, fold, instructed_sum
from loopnest.numerics.target_accuracy import (
    EXECUTING,
    FORMATS,
    SELECTING,
    STANDARD,
    TARGET_NAMES,
    Arithmetic,
    unit,
)
from loopnest.scalar.arguments import size_value
from loopnest.scalar.dtypes import DType, float32
from loopnest.scalar.expr import Arg, Expr, Load, Op, cast, two_sides, walk
from loopnest.scalar.target_names import target_name
from loopnest.tensor.domain import TensorDomain
from loopnest.tensor.fusion import Fusion
from loopnest.tensor.math_snapshot import MathTensor
from loopnest.tensor.tensor_view import Definition, TensorView, TracedReducer


def fold_templates(
    reducer: TracedReducer,
    parts: Sequence[Interval],
    totals: Sequence[Values],
    arithmetic: Arithmetic,
) -> list[Interval]:
    """Return the enclosures of what a reducer folds `parts` to, by its combination.

    Args:
        reducer: how partial results combine.
        parts: the enclosure of each component, with the axis to fold away last (not empty).
        totals: what the oracle folds each component to.
        arithmetic: the rules of the computation.
    """
    found = _tree(reducer, list(parts), arithmetic)
    points = [exact(part.value) for part in parts]
    erring = _tree(reducer, _off(reducer, points), arithmetic, erring=True)
    steps = parts[0].value.shape[-1] - 1
    made = [
        exact(total, unsigned=True)
        if one.exact and other.exact
        else _widened(one, other, total, steps, dtype)
        for one, other, total, dtype in zip(found, erring, totals, reducer.types, strict=True)
    ]
    unsure = _changed_by_identity(reducer, [part.value for part in parts]).any(axis=-1)
    unsure |= _changed_by_identity(reducer, totals)
    return [unknown_where(part, unsure) for part in made] if unsure.any() else made


def scan_templates(
    reducer: TracedReducer,
    parts: Sequence[Interval],
    totals: Sequence[Values],
    arithmetic: Arithmetic,
    *,
    exclusive: bool,
) -> list[Interval]:
    """Return the enclosures of what a scan gives: for each element as `fold_templates`."""
    found = _so_far(reducer, list(parts), arithmetic)
    points = [exact(part.value) for part in parts]
    neutral = [enclose(value, {}, arithmetic) for value in reducer.identity]
    erring = _erring_so_far(reducer, points, arithmetic)
    if exclusive:
        found, erring = [_shifted(neutral, some) for some in (found, erring)]
    steps = np.arange(parts[0].value.shape[-1])
    made = [
        exact(total, unsigned=True)
        if one.exact and other.exact
        else _widened(one, other, total, steps, dtype)
        for one, other, total, dtype in zip(found, erring, totals, reducer.types, strict=True)
    ]
    if reducer.name in FOLDS:
        return made
    unsure = _changed_by_identity(reducer, [part.value for part in parts])
    if exclusive:
        unsure = np.concatenate([np.zeros_like(unsure[..., :1]), unsure[..., :-1]], axis=-1)
    unsure = np.logical_or.accumulate(unsure | _changed_by_identity(reducer, totals), axis=-1)
    return [unknown_where(part, unsure) for part in made] if unsure.any() else made


def _changed_by_identity(reducer: TracedReducer, parts: Sequence[Values]) -> Values:
    """Return for which partial results the identity is not neutral.

    That of a reducer which multiplies is not beside an infinity or NaN. Kernels fold it in where
    their loops begin, as often as they have such beginnings: so results may be anything there.
    """
    left, right = two_sides(reducer.types)
    neutral = [held(evaluate_expr(c, {}), c.dtype) for c in reducer.identity]
    shape = np.broadcast_shapes(*[part.shape for part in parts])
    changed = np.zeros(shape, np.bool_)
    for one, other in ((neutral, parts), (parts, neutral)):
        env: dict[Expr, Values] = dict(zip((*left, *right), (*one, *other), strict=True))
        for template, part in zip(reducer.combination, parts, strict=True):
            found = evaluate_expr(template, env)
            changed |= (found != part) & ((found == found) | (part == part))
    return changed


def _erring_so_far(
    reducer: TracedReducer, points: list[Interval], arithmetic: Arithmetic
) -> list[Interval]:
    """Return what may be off for each element of a scan at one combination."""
    if reducer.name != "sum" or not reducer.types[0].is_float:
        return _so_far(reducer, _off(reducer, points), arithmetic, erring=True)
    (x,) = points  # an addition errs by its result, which is at most all magnitudes
    with np.errstate(all="ignore"):
        sizes = np.cumsum(np.abs(x.value), axis=-1)
        largest = FORMATS[reducer.types[0].name].largest
        error = np.where(sizes >= largest, np.inf, unit(reducer.types[0]) * sizes)
        total = np.cumsum(x.value, axis=-1)
        return [Interval(total, total - error, total + error, is_wild(error), True)]


def _so_far(
    reducer: TracedReducer,
    parts: list[Interval],
    arithmetic: Arithmetic,
    *,
    erring: bool = False,
) -> list[Interval]:
    """Fold each element with all before it, twice as many a round; `erring` as in `_tree`."""
    size, reach = parts[0].value.shape[-1], 1
    while reach < size:
        before, after = _cut(parts, slice(None, -reach)), _cut(parts, slice(reach, None))
        made = _combined(reducer, before, after, arithmetic)
        made = _off(reducer, made) if erring else made
        first = _cut(parts, slice(None, reach))
        parts = [_joined(a, b) for a, b in zip(first, made, strict=True)]
        reach *= 2
    return parts


def _shifted(neutral: Sequence[Interval], parts: Sequence[Interval]) -> list[Interval]:
    """Return for each element what the one before it has, for the first the identity."""
    shape = parts[0].value[..., :1].shape
    first = [part.viewed(lambda a: np.broadcast_to(a, shape)) for part in neutral]
    return [_joined(a, b) for a, b in zip(first, _cut(parts, slice(None, -1)), strict=True)]


def _tree(
    reducer: TracedReducer,
    parts: list[Interval],
    arithmetic: Arithmetic,
    *,
    erring: bool = False,
) -> list[Interval]:
    """Fold the last axis away by halves; `erring` combinations are each off by their roundings."""
    while (size := parts[0].value.shape[-1]) > 1:
        first, second = halves(size // 2, reducer.ordered)
        one, other = _cut(parts, first), _cut(parts, second)
        made = _combined(reducer, one, other, arithmetic)
        made = _off(reducer, made) if erring else made
        if size % 2:
            rest = _cut(parts, slice(-1, None))
            made = [_joined(a, b) for a, b in zip(made, rest, strict=True)]
        parts = made
    return [part.viewed(lambda a: a[..., 0]) for part in parts]


def _off(reducer: TracedReducer, parts: Sequence[Interval]) -> list[Interval]:
    """Return partial results off by as many roundings as their combination has."""
    result: list[Interval] = []
    for part, template, dtype in zip(parts, reducer.combination, reducer.types, strict=True):
        count = len([node for node in walk(template) if _rounds(node)])
        if count and dtype.is_float:
            least = FORMATS[dtype.name].least
            with np.errstate(all="ignore"):
                low, high = widened(part.low, part.high, count * unit(dtype))
                low, high = low - count * least, high + count * least
            part = Interval(part.value, low, high, part.wild or is_wild(low, high), True)
        result.append(part)
    return result


def _rounds(node: Expr) -> bool:
    return isinstance(node, Op) and node.dtype.is_float and node.op not in SELECTING


def _cut(parts: Sequence[Interval], where: slice) -> list[Interval]:
    return [part.viewed(lambda a: a[..., where]) for part in parts]


def _combined(
    reducer: TracedReducer,
    one: Sequence[Interval],
    other: Sequence[Interval],
    arithmetic: Arithmetic,
) -> list[Interval]:
    left, right = two_sides(reducer.types)
    env: Mapping[Expr, Interval] = dict(zip((*left, *right), (*one, *other), strict=True))
    shape = np.broadcast_shapes(*[part.value.shape for part in (*one, *other)])
    made = [enclose(template, env, arithmetic) for template in reducer.combination]
    return [part.viewed(lambda a: np.broadcast_to(a, shape)) for part in made]


def _joined(a: Interval, b: Interval) -> Interval:
    value = np.concatenate([a.value, b.value], axis=-1)
    wild, unsigned = a.wild or b.wild, a.unsigned or b.unsigned
    if a.exact and b.exact:
        return Interval(value, value, value, wild, unsigned)
    low, high = [np.concatenate(ends, axis=-1) for ends in ((a.low, b.low), (a.high, b.high))]
    return Interval(value, low, high, wild, unsigned)


def _widened(
    found: Interval, erring: Interval, total: Values, steps: int | Values, dtype: DType
) -> Interval:
    """Return an enclosure of another grouping, given what one tree errs."""
    if not dtype.is_float:
        least, most = extremes(dtype)
        free = undetermined(erring)
        low, high = np.where(free, least, found.low), np.where(free, most, found.high)
        return Interval(total, low, high)
    with np.errstate(all="ignore"):
        reach = np.maximum(erring.high - erring.value, erring.value - erring.low)
        reach = np.where(erring.low == erring.high, 0.0, reach)
        low, high = found.low - steps * reach, found.high + steps * reach
    unknown = np.isnan(low) | np.isnan(high) | np.isnan(total)
    low, high = np.where(unknown, -np.inf, low), np.where(unknown, np.inf, high)
    return Interval(total, low, high, is_wild(low, high), True)


@overload
def error_bound(
    fusion: Fusion | LoweredKernel, /, *arrays: object, tensors: Literal[False] = False,
    fast_math: bool = False, target: str = "", **scalars: object,
) -> Result: ...  # fmt: skip
@overload
def error_bound(
    fusion: Fusion | LoweredKernel, /, *arrays: object, tensors: Literal[True],
    fast_math: bool = False, target: str = "", **scalars: object,
) -> tuple[Result, dict[str, npt.NDArray[Any]]]: ...  # fmt: skip
def error_bound(
    fusion: Fusion | LoweredKernel,
    /,
    *arrays: object,
    tensors: bool = False,
    fast_math: bool = False,
    target: str = "",
    **scalars: object,
) -> Result | tuple[Result, dict[str, npt.NDArray[Any]]]:
    """Return how far each result of a correct kernel may lie from that of `loopnest.evaluate`.

    From what that gives with ``exact=True`` too, before a float32 result was rounded. The bound
    holds for every schedule: any order of sums, products fused with sums, elements computed again.
    A row of `loopnest.instructions` that computes a reduction adds to it what its `accuracy` says.
    It is 0 where no rounding is needed, and inf where a result may be anything: a quotient whose
    divisor may be 0, a sum that may overflow. Bools and integers that come of a comparison or
    rounding that may go either way have the bound of both cases.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("row_sum") as f:
    ...     x = f.input("x", ("N", "D"), ln.float32)
    ...     y = f.output(ln.sum(x, axis=1), "y")
    >>> ln.error_bound(f, np.ones((2, 3), np.float32))
    array([0., 0.])
    >>> bool(ln.error_bound(f, np.full((1, 1000), 0.1, np.float32)) < 999 * 2.0**-24 * 100.1)
    True

    Args:
        fusion: the math: a fusion, scheduled or not, or a kernel, which carries the math of the one
            that it was lowered from.
        arrays: one an input, in the order of ``fusion.inputs``.
        tensors: whether to return the bounds of every tensor too.
        fast_math: whether the kernel was compiled with ``fast_math=True``.
        target: what the kernel was compiled for: "cuda", "c" or "interpret". Functions of "c" err
            by 1 or 2 units in the last place, and "cuda" alone executes instructions; by default
            the bound holds for every target.
        scalars: the run-time scalars, and the sizes that no input has.

    Returns:
        The bound of the output in float64, or a tuple of them where there is not exactly one. With
        `tensors` that, and a dict of the bound of every tensor by name.

    Raises:
        LaunchError: arguments that do not fit, or an assumption that does not hold; a kernel's
            instruction of which there is no row.

    Source: Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., sections 3.1 and 4.2.
    """
    asked, fusion = fusion, math_of(fusion, "error_bound")
    target = target_name(target)
    if target not in ("", *TARGET_NAMES):
        names = ", ".join([f'"{name}"' for name in TARGET_NAMES])
        raise LaunchError(
            f"error_bound(target={target!r})", "there is no such target", f"use {names}"
        )
    wanted = fusion.tensors if tensors else fusion.outputs
    arithmetic = Arithmetic(fast_math, target=target)
    oracle = _Enclosures(arithmetic, fusion, arrays, scalars, "error_bound")
    oracle.execute(_instructed(asked))
    found = oracle.results(wanted, Interval.bound_in)
    bounds = {tensor.name: bound for tensor, bound in found.items()}
    outputs = tuple([bounds[tensor.name] for tensor in fusion.outputs])
    result: Result = outputs[0] if len(outputs) == 1 else outputs
    return (result, bounds) if tensors else result


def enclosures(
    fusion: Fusion,
    arrays: Sequence[object],
    keywords: Mapping[str, object],
    tensors: Iterable[TensorView] | None = None,
    arithmetic: Arithmetic = STANDARD,
    places: Places | None = None,
) -> dict[str, Interval]:
    """Return the oracle's values by name, with the intervals that correct results lie in.

    Args:
        fusion: the math, scheduled or not.
        arrays: one an input.
        keywords: the run-time scalars, and the sizes that no input has.
        tensors: which to return; by default the outputs.
        arithmetic: the rules that a correct computation keeps to.
        places: axes of which only some coordinates are evaluated.
    """
    wanted = tuple(fusion.outputs if tensors is None else tensors)
    oracle = _Enclosures(arithmetic, fusion, arrays, keywords, "error_bound", places)
    oracle.execute(_instructed(fusion))
    return {tensor.name: found for tensor, found in oracle.run(wanted).items()}


def leaf_enclosures(
    fusion: Fusion,
    arrays: Sequence[object],
    keywords: Mapping[str, object],
    tensor: TensorView,
    places: Places | None = None,
) -> dict[Expr, Interval]:
    """Return the enclosures of what the templates of a tensor are made of, on its root domain.

    They broadcast to the extents of that domain. Arguments as for `enclosures`.
    """
    assert tensor.definition is not None
    oracle = _Enclosures(STANDARD, fusion, arrays, keywords, "error_bound", places)
    oracle.run(tensor.producers)
    everywhere = (None,) * len(tensor.domain.root)
    return oracle.operands(tensor.definition, tensor.domain, everywhere, {})


def _instructed(asked: object) -> list[MathTensor]:
    """Return the tensors of a fusion or a kernel that instructions compute."""
    if isinstance(asked, Fusion) and not any(t.instruction for t in asked.tensors):
        return []
    return [t for t in snapshot_of(asked, "error_bound").tensors if t.instruction]


def factors(
    theirs: Expr, ours: Expr, definition: Definition
) -> list[tuple[str, Definition, Arg]] | None:
    """Return what the operands are of an instruction that computes a template of a definition.

    Args:
        theirs: what the row adds up, of loads from its operands.
        ours: the template, or a part of it.
        definition: whose template it is.

    Returns:
        The role of each, with the definition and its read that find the element; None where the
        instruction computes something else.
    """
    if isinstance(theirs, Load):
        return [(theirs.buffer.name, definition, ours)] if isinstance(ours, Arg) else None
    if isinstance(ours, Arg):
        producer = definition.reads[ours.number].producer
        made = producer.definition
        if made is None or made.reducer is not None:
            return None
        value = cast(made.values[made.outputs.index(producer)], producer.dtype)
        return factors(theirs, value, made)
    if not isinstance(theirs, Op) or not isinstance(ours, Op):
        return [] if theirs is ours else None
    if theirs.op != ours.op or theirs.dtype is not ours.dtype or len(theirs.args) != len(ours.args):
        return None
    for order in (ours.args, ours.args[::-1]):  # a sum or a product is written either way
        found = [factors(a, b, definition) for a, b in zip(theirs.args, order, strict=True)]
        if None not in found:
            return [factor for part in found for factor in part or ()]
        if theirs.op not in ("add", "mul"):
            break
    return None


def _inside_casts(template: Expr) -> Expr:
    while isinstance(template, Op) and template.op == "cast":
        (template,) = template.args
    return template


class _Enclosures(Oracle[Interval]):
    """The oracle on enclosures."""

    def __init__(self, arithmetic: Arithmetic, *args: Any) -> None:
        self.arithmetic = arithmetic
        self.cuts: dict[Definition, dict[Arg, float]] = {}
        self.flushed: dict[Definition, set[Arg]] = {}
        self.instructed: dict[Definition, tuple[float, int, bool]] = {}
        super().__init__(*args)

    def execute(self, tensors: Iterable[MathTensor]) -> None:
        """Let the rows of the table compute what of `tensors` they are named in."""
        if self.arithmetic.reference or self.arithmetic.target not in EXECUTING:
            return
        made = {tensor.name: tensor for tensor in self.order}
        for tensor in tensors:
            definition = made[tensor.name].definition
            row = instructions.get(tensor.instruction)
            if row is None:
                raise LaunchError(
                    self.subject,
                    f"{tensor.name} is computed by the instruction {tensor.instruction}, of which "
                    "there is no row",
                    "add it with ln.add_instruction",
                )
            assert definition is not None
            if row.executes_on(self.arithmetic.target):
                self._execute(definition, row, size_value(tensor.steps, self.sizes))

    def _execute(self, definition: Definition, row: Instruction, steps: int) -> None:
        accuracy = row.accuracy or {}
        if row.result in accuracy:
            self.instructed[definition] = accuracy[row.result], steps, row.flushes
        found = factors(row.added, definition.values[0], definition)
        if found is None:
            raise LaunchError(
                self.subject,
                f"{definition.outputs[0].name} is not what the instruction {row.name} computes",
                f"it computes {row.behaviour}",
            )
        for role, reader, arg in found:
            if row.flushes:
                self.flushed.setdefault(reader, set()).add(arg)
            if role in accuracy:
                cuts = self.cuts.setdefault(reader, {})
                cuts[arg] = max(cuts.get(arg, 0.0), accuracy[role])

    def operands(self, definition: Definition, *args: Any) -> dict[Expr, Interval]:
        env = super().operands(definition, *args)
        for arg in self.flushed.get(definition, ()):
            env[arg] = flushing(env[arg])
        for arg, relative in self.cuts.get(definition, {}).items():
            env[arg] = cut_off(env[arg], relative, arg.dtype)
        template = definition.values[0]
        if (
            self.arithmetic.reference
            and isinstance(template, Op)
            and template.op in ("add", "sub")
            and template.dtype.is_float
            and definition.reducer is None
        ):
            for ours, theirs in (template.args, template.args[::-1]):
                self._begin_sum(ours, theirs, definition, env)
        return env

    def _begin_sum(
        self, ours: Expr, theirs: Expr, definition: Definition, env: dict[Expr, Interval]
    ) -> None:
        """Let what is added to a sum be one of its terms, which other kernels begin with (a bias).

        Then each of the sum's n additions may err by the magnitude of that, too. What it errs more
        by that of its own terms is what one of its n - 1 additions did.
        """
        ours, theirs = [_inside_casts(x) for x in (ours, theirs)]
        count = self._terms(ours, definition)
        if count < 2 or theirs not in env:
            return
        x, y = env[ours], env[theirs]
        with np.errstate(all="ignore"):
            most = np.maximum(np.abs(y.low), np.abs(y.high))
            error = count * unit(ours.dtype) * most + (x.high - x.low) / 2 / (count - 1)
        error = np.where(np.isfinite(error), error, 0.0)  # what is infinite is so in any order
        value = np.broadcast_to(x.value, error.shape)
        env[ours] = replace(x, value=value, low=x.low - error, high=x.high + error, unsigned=True)

    def _terms(self, template: Expr, definition: Definition) -> int:
        """Return how many elements a template sums up, which may be copies of a sum; else 1."""
        while isinstance(template, Arg):
            producer = definition.reads[template.number].producer
            made = producer.definition
            if made is None:
                return 1
            if made.reducer is not None:
                folded = [axis.size for axis in producer.domain.root if axis.is_reduction]
                sums = made.reducer.name == "sum"
                return prod([size_value(size, self.sizes) for size in folded]) if sums else 1
            template = _inside_casts(made.values[made.outputs.index(producer)])
            definition = made
        return 1

    def given(self, values: Values, dtype: DType) -> Interval:
        found = exact(held(values, dtype))
        if self.arithmetic.fast_math and dtype is float32:
            low, high = flushed(found.low, found.high)
            return replace(found, low=low, high=high, unsigned=True)
        return found

    def expression(self, root: Expr, env: Mapping[Expr, Interval]) -> Interval:
        return enclose(root, env, self.arithmetic)

    def viewed(self, value: Interval, view: Callable[[Values], Values]) -> Interval:
        return value.viewed(view)

    def integers(self, value: Interval) -> Values:
        return value.value

    def uncertain(self, value: Interval, indices: Sequence[Interval]) -> Interval:
        if all(index.exact for index in indices):
            return value
        unsure = np.logical_or.reduce(np.broadcast_arrays(*[i.low != i.high for i in indices]))
        return unknown_where(value, unsure)

    def folded(
        self, definition: Definition, reducer: TracedReducer, parts: Sequence[Interval]
    ) -> list[Interval]:
        totals = fold_values(reducer, [part.value for part in parts])
        if definition in self.instructed:
            error, steps, flushes = self.instructed[definition]
            arithmetic = replace(self.arithmetic, fast_math=flushes or self.arithmetic.fast_math)
            found = instructed_sum(parts[0], totals[0], reducer.types[0], arithmetic, error, steps)
            return [found]
        if reducer.name in FOLDS:
            return fold(reducer.name, parts, totals, reducer.types[0], self.arithmetic)
        return fold_templates(reducer, parts, totals, self.arithmetic)

    def folded_so_far(
        self, reducer: TracedReducer, parts: Sequence[Interval], *, exclusive: bool
    ) -> list[Interval]:
        totals = scan_values(reducer, [part.value for part in parts], exclusive=exclusive)
        return scan_templates(reducer, parts, totals, self.arithmetic, exclusive=exclusive)

    def scatter(self, definition: Definition, domain: TensorDomain) -> Scatter | None:
        """Return where elements go, if these are integers of integers, which nothing rounds."""
        found = super().scatter(definition, domain)
        if found is None:
            return None
        args = [arg for arg in walk(found.target) if isinstance(arg, Arg)]
        made = producers_of([definition.reads[arg.number].producer for arg in args])
        values = [v for t in made if t.definition is not None for v in t.definition.values]
        numbers = {t.dtype for t in made} | {node.dtype for node in walk(*values)}
        return None if any(dtype.is_float for dtype in numbers) else found

    def defined(self, value: Interval, dtype: DType) -> Interval:
        return narrowed(value, dtype, self.arithmetic) if dtype.is_narrow else value

    def assembled(self, shape: tuple[int, ...]) -> _Pieces:
        return _Pieces(shape)


class _Pieces:
    """An enclosure that is put together from blocks; its ends exist only where they differ."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = tuple(shape)
        self.value: Values | None = None
        self.ends: tuple[Values, Values] | None = None
        self.wild = self.unsigned = False

    def put(self, where: tuple[slice | Values, ...], piece: Interval) -> None:
        if self.value is None:
            self.value = np.empty(self.shape, piece.value.dtype)
            if not piece.exact:
                self.ends = np.empty_like(self.value), np.empty_like(self.value)
        self.value[where] = piece.value
        if not piece.exact and self.ends is None:
            self.ends = self.value.copy(), self.value.copy()  # what came before is exact
        if self.ends is not None:
            self.ends[0][where], self.ends[1][where] = piece.low, piece.high
        self.wild, self.unsigned = self.wild or piece.wild, self.unsigned or piece.unsigned

    def whole(self) -> Interval:
        assert self.value is not None
        low, high = self.ends or (self.value, self.value)
        return Interval(self.value, low, high, self.wild, self.unsigned)
