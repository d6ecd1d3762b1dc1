"""The opinion of the second checker on a kernel: inputs, runs, and the comparison of outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided

from loopnest import kir
from loopnest.base.errors import LaunchError
from loopnest.kir.nest_text import nest_lines
from loopnest.numerics.compare import compare
from loopnest.numerics.error_bounds import enclosures
from loopnest.numerics.intervals import Interval
from loopnest.scalar.arguments import size_value
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import Expr
from loopnest.second_checker.crossing_sizes import (
    COSTLY,
    crossing_sizes,
    ended_loops,
    longer_sizes,
    two_tiles,
)
from loopnest.second_checker.thread_machine import EARLY, WHOLE, run
from loopnest.tensor.fusion import Fusion
from loopnest.tensor.math_snapshot import MathSnapshot, MathTensor, thaw

MOST_STATEMENTS = 2_000_000
"""Sizes at which more statements run are left out: one run takes some seconds."""

SEEDS = (0, 1)
"""Orders of threads; with the second all inputs that may be are negative."""

SCALES = (1.0, 16.0, 1 / 16, 256.0, 1 / 256)
"""How large inputs are: two seeds each. Only loops that data end need others than the first."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """What the second checker found.

    Args:
        status: "right", "wrong", or "unknown" where no sizes with elements could be tried, or
            no data by which a loop ends early, or runs all its steps.
        sizes: those that were tried; the last one shows what is wrong.
        finding: what is wrong, or why nothing could be tried.
        uncrossed: for each size that was too small in all that was tried, from where on loops over
            its tiles run over two of them and begin a third.
    """

    status: str
    sizes: tuple[Mapping[str, int], ...] = ()
    finding: str = ""
    uncrossed: Mapping[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the kernel is right at all sizes that were tried."""
        return self.status == "right"

    def __str__(self) -> str:
        if not self.ok:
            return f"{self.status}: {self.finding}"
        right = "right at " + "; ".join([_text(sizes) for sizes in self.sizes])
        if not self.uncrossed:
            return right
        return (
            f"{right}; two tiles are crossed from {_text(self.uncrossed)} on, which was not tried"
        )


def second_opinion(
    program: kir.Program, math: MathSnapshot, most: int = MOST_STATEMENTS
) -> Opinion:
    """Return whether a program computes its math at sizes that cross two tiles of each split.

    Args:
        program: the nest.
        math: what it is to compute.
        most: how many statements may run at one of the sizes.
    """
    differs = next(_interface(program, math), "")
    if differs:
        return Opinion("wrong", (), differs)
    assumed = [condition for _, condition in (*math.conditions, *program.requires)]
    fusion = thaw(math)
    tried: list[Mapping[str, int]] = []
    seen: Ends = {}
    for sizes in crossing_sizes(program, assumed, most):
        if any(
            size_value(a.extent, sizes) < 0 for t in math.tensors for a in (*t.root, *t.logical)
        ):
            continue
        tried.append(sizes)
        try:
            found = next(_faults(program, math, fusion, sizes, SEEDS, seen), "")
        except _NoInputs:
            tried.pop()
            continue
        if found:
            return Opinion("wrong", tuple(tried), f"{found} at {_text(sizes)}")
    if not any(all(sizes.values()) for sizes in tried):
        why = f"no sizes with elements are known at which at most {COSTLY * most} statements run"
        return Opinion("unknown", (), why)
    for longer in longer_sizes(program, tried, assumed, most):
        if not _unseen(program, math, seen):
            break
        found = _ending_fault(program, math, fusion, longer, seen)
        tried = [*[known for known in tried if known != longer], longer]
        if found:
            return Opinion("wrong", tuple(tried), f"{found} at {_text(longer)}")
    unseen = _unseen(program, math, seen)
    crossed = two_tiles(program, assumed).items()
    uncrossed = {name: n for name, n in crossed if all(sizes[name] < n for sizes in tried)}
    return Opinion("unknown" if unseen else "right", tuple(tried), unseen, uncrossed)


Ends: TypeAlias = "dict[kir.Until, set[str]]"
"""How loops that a condition ends were left in trials whose outputs the math determines."""


def _ending_fault(
    program: kir.Program, math: MathSnapshot, fusion: Fusion, sizes: Mapping[str, int], seen: Ends
) -> str:
    """Return what is wrong with larger and smaller inputs, tried until all ends were seen."""
    for number in range(len(SEEDS), len(SEEDS) * len(SCALES)):
        try:
            found = next(_faults(program, math, fusion, sizes, (number,), seen), "")
        except _NoInputs:
            continue
        if found or not _unseen(program, math, seen):
            return found
    return ""


def _unseen(program: kir.Program, math: MathSnapshot, seen: Ends) -> str:
    """Return which loop was never left in a way that it must be left in, to be called right."""
    loops = ended_loops(program)
    ending = [t for t in math.tensors if t.definition is not None and t.definition.op == "until"]
    if ending and not loops:
        return f"no loop of the nest ends early, as {ending[0].name} of the math says"
    for end in loops:
        for how in (EARLY, WHOLE):
            if how not in seen.get(end, ()):
                line = nest_lines(program)[end]
                return f"no trial is known in which the loop that ends at line {line} {how}"
    return ""


def _text(sizes: Mapping[str, int]) -> str:
    return ", ".join([f"{name}={size}" for name, size in sizes.items()]) or "its static sizes"


def _interface(program: kir.Program, math: MathSnapshot) -> Iterator[str]:
    """Yield how what a program takes and gives differs from what its math does, shapes aside."""
    inputs = [t for t in math.tensors if t.role == "input"]
    outputs = [(name, math.tensor(name)) for name in math.outputs]
    for what, mine, theirs in (
        (
            "inputs",
            [(p.name, p.dtype.name) for p in program.params if p.kind == "input"],
            [(t.name, t.dtype.name) for t in inputs],
        ),
        (
            "scalars",
            [(p.name, p.dtype.name) for p in program.params if p.kind == "scalar"],
            [(s.name, s.dtype.name) for s in math.scalars],
        ),
        (
            "sizes",
            sorted([p.name for p in program.params if p.kind == "size"]),
            sorted([s.name for s in math.symbols]),
        ),
        (
            "outputs",
            [(o.name, o.buffer.dtype.name, o.inplace) for o in program.outputs],
            [(name, t.dtype.name, t.inplace) for name, t in outputs if t is not None],
        ),
    ):
        if mine != theirs:
            yield f"the {what} of the nest are {mine}, those of the math {theirs}"
    for text, condition in program.conditions:
        if condition not in [known for _, known in math.conditions]:
            yield f"the nest assumes that {text}, the math does not"
    for node in program.nodes:
        if isinstance(node, kir.Allocate) and node.storage.memory is Memory.GLOBAL:
            yield f"{node.buffer} is allocated in GLOBAL memory, which only a caller can pass"
    for node in program.nodes:
        if isinstance(node, kir.Until) and node not in ended_loops(program):
            yield f"until {node.condition} is not the last statement of a loop that runs in order"
    for declared in program.ranges:
        if declared not in math.ranges:
            yield f"the nest assumes that {declared}, the math does not"


class _NoInputs(Exception):
    """No inputs fulfil what is declared of them at these sizes."""


def _faults(
    program: kir.Program,
    math: MathSnapshot,
    fusion: Fusion,
    sizes: Mapping[str, int],
    seeds: Sequence[int],
    seen: Ends,
) -> Iterator[str]:
    """Yield what is wrong with a program at sizes; note in `seen` how loops were left."""
    yield from _shapes(program, math, sizes)
    for seed in seeds:
        arrays = _arrays(program, math, sizes, seed)
        scalars = {s.name: _scalar(s.dtype, seed) for s in math.scalars}
        wanted = _wanted(fusion, arrays, scalars, sizes)
        try:
            found = run(program, sizes, arrays, scalars, seed)
        except ZeroDivisionError:
            yield "a size is divided by 0"
            return
        yield from found.broken.values()
        for output, values in zip(program.outputs, found.outputs, strict=True):
            verdict = compare(output.name, values, wanted[output.name])
            if not verdict.ok:
                yield str(verdict)
        if all(not w.value.size or np.isfinite(w.bound).any() for w in wanted.values()):
            for end, ways in found.ends.items():
                seen.setdefault(end, set()).update(ways)


def _wanted(
    fusion: Fusion,
    arrays: Mapping[str, np.ndarray],
    scalars: Mapping[str, object],
    sizes: Mapping[str, int],
) -> Mapping[str, Interval]:
    shown = {str(size) for tensor in fusion.inputs for size in tensor.sizes}
    rest = {name: size for name, size in sizes.items() if name not in shown}
    given = [arrays[tensor.name] for tensor in fusion.inputs]
    try:
        return enclosures(fusion, given, {**scalars, **rest})
    except LaunchError as error:
        raise _NoInputs from error


def _shapes(program: kir.Program, math: MathSnapshot, sizes: Mapping[str, int]) -> Iterator[str]:
    """Yield parameters and results whose extents or strides are not those of the math."""
    for kind, name, shape, strides in (
        *[("input", p.name, p.shape, p.strides) for p in program.params if p.kind == "input"],
        *[("output", o.name, o.shape, None) for o in program.outputs],
    ):
        tensor = math.tensor(name)
        assert tensor is not None
        mine, theirs = _numbers(shape, sizes), _extents(tensor, sizes)
        if mine != theirs:
            yield f"the {kind} {name} has the extents {mine}, in the math {theirs}"
        if kind == "input" and (strides or ()) != (tensor.strides or ()):
            yield f"the {kind} {name} lies at other strides than in the math"


def _numbers(values: Sequence[Expr], sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple([size_value(value, sizes) for value in values])


def _extents(tensor: MathTensor, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return _numbers([axis.extent for axis in tensor.logical], sizes)


def _arrays(
    program: kir.Program, math: MathSnapshot, sizes: Mapping[str, int], seed: int
) -> dict[str, np.ndarray]:
    """Return inputs by name that fulfil what is declared of them."""
    bounds = {c.source: (0, size_value(c.extent, sizes)) for c in program.index_checks
              if not c.distinct}  # fmt: skip
    bounds |= {d.name: _numbers((d.low, d.high), sizes) for d in math.ranges}  # type: ignore[misc]
    ascending = {d.name for d in math.ranges if d.ascending}
    found = {}
    for number, tensor in enumerate(math.tensors):
        if tensor.role != "input":
            continue
        rng = np.random.default_rng([seed, number])
        shape = _extents(tensor, sizes)
        values = _drawn(rng, shape, tensor.dtype, bounds.get(tensor.name), seed)
        values = _differing(rng, math, tensor, values, sizes)
        if tensor.name in ascending:
            values = np.sort(values)
        with np.errstate(over="ignore"):
            made = values.astype(tensor.dtype.numpy)
        found[tensor.name] = _strided(made, tensor, sizes)
    return found


def _drawn(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    dtype: DType,
    bounds: tuple[int, int] | None,
    seed: int,
) -> np.ndarray:
    if bounds is not None:
        if bounds[0] >= bounds[1] and np.prod(shape):
            raise _NoInputs
        if not dtype.is_float:
            return rng.integers(*bounds, shape) if np.prod(shape) else np.zeros(shape, np.int64)
        return rng.uniform(*bounds, shape)
    scale = SCALES[seed // len(SEEDS)]
    if dtype.is_bool:
        return rng.random(shape) < 0.5
    if dtype.is_float:
        drawn = rng.normal(size=shape)
        return scale * (-np.abs(drawn) - 0.5 if seed % 2 else drawn)
    reach = max(int(8 * scale), 1)
    least, largest = max(dtype.least, -reach), min(dtype.greatest, reach)
    return rng.integers(least, 1 if seed % 2 and least < 0 else largest + 1, shape)


def _scalar(dtype: DType, seed: int) -> object:
    if dtype.is_bool:
        return True
    scale, second = SCALES[seed // len(SEEDS)], seed % 2
    return scale * (0.375 + second / 4) if dtype.is_float else max(int(2 * scale), 1) + second


def _differing(
    rng: np.random.Generator,
    math: MathSnapshot,
    tensor: MathTensor,
    values: np.ndarray,
    sizes: Mapping[str, int],
) -> np.ndarray:
    """Return places along an axis that differ, where that is declared; those left lie outside."""
    for other in math.tensors:
        declared = None if other.definition is None else other.definition.distinct
        if declared is None or other.definition.reads[0].producer != tensor.name:  # type: ignore[union-attr]
            continue
        count, extent = values.shape[declared.axis], size_value(declared.extent, sizes)
        rows = np.moveaxis(np.empty(values.shape, np.int64), declared.axis, -1)
        rows = rng.permuted(
            np.broadcast_to(np.arange(max(count, extent)), (*rows.shape[:-1], max(count, extent))),
            axis=-1,
        )
        return np.moveaxis(rows[..., :count], -1, declared.axis)
    return values


def _strided(values: np.ndarray, tensor: MathTensor, sizes: Mapping[str, int]) -> np.ndarray:
    """Return an array with these values at the strides that are declared of an input.

    Along an axis of stride 0 it has the first of them everywhere.
    """
    if tensor.strides is None:
        return values
    steps, width = _numbers(tensor.strides, sizes), values.dtype.itemsize
    reach = sum([max(n - 1, 0) * step for n, step in zip(values.shape, steps, strict=True)])
    memory = np.zeros(reach + 1, f"u{width}")
    view = as_strided(memory, values.shape, [step * width for step in steps])
    first = tuple([slice(None) if step else slice(0, 1) for step in steps])
    view[...] = values[first].view(f"u{width}")
    return view.view(values.dtype)
