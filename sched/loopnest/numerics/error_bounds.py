"""How far a correct kernel's results may lie from the oracle's: see `numerics`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from loopnest.base.errors import LaunchError
from loopnest.kir.instruction_rows import Instruction, instructions
from loopnest.numerics.float64_math import Values, held
from loopnest.numerics.interval_rules import enclose
from loopnest.numerics.intervals import (
    Interval,
    cut_off,
    exact,
    flushed,
    narrowed,
    unknown_where,
)
from loopnest.numerics.oracle import LoweredKernel, Oracle, Result, math_of, snapshot_of
from loopnest.numerics.oracle_folds import fold_values, scan_values
from loopnest.numerics.oracle_operands import Places
from loopnest.numerics.reduction_intervals import FOLDS, fold, instructed_sum
from loopnest.numerics.target_accuracy import EXECUTING, STANDARD, TARGET_NAMES, Arithmetic
from loopnest.numerics.template_folds import fold_templates, scan_templates
from loopnest.scalar.arguments import size_value
from loopnest.scalar.dtypes import DType, float32
from loopnest.scalar.expr import Arg, Expr, Load, Op, cast
from loopnest.scalar.target_names import target_name
from loopnest.tensor.definition import Definition, TracedReducer
from loopnest.tensor.fusion import Fusion
from loopnest.tensor.math_snapshot import MathTensor
from loopnest.tensor.tensor_view import TensorView


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


class _Enclosures(Oracle[Interval]):
    """The oracle on enclosures."""

    def __init__(self, arithmetic: Arithmetic, *args: Any) -> None:
        self.arithmetic = arithmetic
        self.cuts: dict[Definition, dict[Arg, float]] = {}
        self.instructed: dict[Definition, tuple[float, int]] = {}
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
            self._execute(definition, row, size_value(tensor.steps, self.sizes))

    def _execute(self, definition: Definition, row: Instruction, steps: int) -> None:
        accuracy = row.accuracy or {}
        if row.result in accuracy:
            self.instructed[definition] = accuracy[row.result], steps
        found = factors(row.added, definition.values[0], definition)
        if found is None:
            raise LaunchError(
                self.subject,
                f"{definition.outputs[0].name} is not what the instruction {row.name} computes",
                f"it computes {row.behaviour}",
            )
        for role, reader, arg in found:
            if role in accuracy:
                cuts = self.cuts.setdefault(reader, {})
                cuts[arg] = max(cuts.get(arg, 0.0), accuracy[role])

    def operands(self, definition: Definition, *args: Any) -> dict[Expr, Interval]:
        env = super().operands(definition, *args)
        for arg, relative in self.cuts.get(definition, {}).items():
            env[arg] = cut_off(env[arg], relative, arg.dtype)
        return env

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
            error, steps = self.instructed[definition]
            found = instructed_sum(
                parts[0], totals[0], reducer.types[0], self.arithmetic, error, steps
            )
            return [found]
        if reducer.name in FOLDS:
            return fold(reducer.name, parts, totals, reducer.types[0], self.arithmetic)
        return fold_templates(reducer, parts, totals, self.arithmetic)

    def folded_so_far(
        self, reducer: TracedReducer, parts: Sequence[Interval], *, exclusive: bool
    ) -> list[Interval]:
        totals = scan_values(reducer, [part.value for part in parts], exclusive=exclusive)
        return scan_templates(reducer, parts, totals, self.arithmetic, exclusive=exclusive)

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

    def put(self, where: tuple[slice, ...], piece: Interval) -> None:
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
