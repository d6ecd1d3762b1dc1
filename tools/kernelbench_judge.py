"""How far a result may lie from torch's in float64: by the bound of the math, else by eager.

The bound (`ln.error_bound`) holds for every correct kernel of the graph that torch.compile hands
over, whatever its schedules: a result lies within it of the math of that graph (`ln.evaluate`).
That math lies within it, or eager's largest distance, of torch's float64: both round constants to
float32. Where there is no bound (an operator that torch computes; a quotient whose divisor may be
0) eager's distance alone tells what float32 can do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import loopnest as ln

EAGER_FACTOR = 4.0
"""How many times eager's largest distance a result may lie off where there is no bound: sums in
another order, of as many terms."""


@dataclass(frozen=True)
class Judge:
    """What is allowed of the results of a problem.

    Args:
        exact: torch's results in float64.
        math: those of the graph in float64; None where it has no math.
        bounds: for each of them how far each element may lie off; None likewise.
        eager: the largest distance of eager's result from each of them.
        why: why there are no bounds; "" where there are.
    """

    exact: Sequence[Any]
    math: Sequence[Any | None]
    bounds: Sequence[Any | None]
    eager: Sequence[float]
    why: str

    def error(self, found: Any) -> float:
        """Return the largest error in units of what is allowed: 1 and below are right."""
        rows = zip(listed(found), self.exact, self.math, self.bounds, self.eager, strict=True)
        return max(
            _error(a, exact, value, bound, EAGER_FACTOR * far)
            for a, exact, value, bound, far in rows
        )

    def by(self) -> str:
        """Return by what results are judged."""
        if self.why:
            return f"eager's distance: {self.why}"
        unbounded = sum(int(bound.isinf().sum()) for bound in self.bounds if bound is not None)
        whole = sum(exact.numel() for exact in self.exact)
        part = f", {unbounded} of {whole} elements by eager's distance" if unbounded else ""
        return f"the bound{part}"


def judge_of(
    compiled: Callable[..., Any], model: Callable[..., Any], inputs: Sequence[Any], exact: Any
) -> Judge:
    """Return what is allowed of a compiled model, which was called before.

    Args:
        compiled: the model, by the backend.
        model: the model itself, in float32.
        inputs: its arguments.
        exact: its results in float64.
    """
    wanted = listed(exact)
    found = listed(model(*inputs))
    eager = [_largest(_distance(a, b)) for a, b in zip(found, wanted, strict=True)]
    try:
        values = listed(by_math(compiled, inputs, partial(ln.evaluate, exact=True)))
        bounds = listed(by_math(compiled, inputs, partial(ln.error_bound, target="c")))
    except Exception as error:  # of the math of the graph: it has none, then
        why = " ".join(str(error).split())[:120]
        return Judge(wanted, [None] * len(wanted), [None] * len(wanted), eager, why)
    return Judge(wanted, values, bounds, eager, "")


def by_math(compiled: Callable[..., Any], inputs: Sequence[Any], asked: Callable[..., Any]) -> Any:
    """Return what a function says of the math of a compiled model, in place of each result.

    The model is called as ever, but its graph returns that: it goes through what the model does
    with results. `asked` is `ln.evaluate` or `ln.error_bound`.

    Raises:
        LoopnestError: an operator has no math here; a number that the bound does not know.
        ValueError: the model is several graphs, or none.
    """
    graphs: list[Any] = []
    with _math_in_place(graphs, asked):
        found = compiled(*inputs)
    if len(graphs) != 1:
        raise ValueError(f"it is {len(graphs)} graphs")
    return found


@contextmanager
def _math_in_place(graphs: list[Any], asked: Callable[..., Any]) -> Iterator[None]:
    """Let graphs of torch return what `asked` says of their math; they are added to `graphs`."""
    from loopnest.torch.compiled_program import TorchGraph

    def call(self: Any, tensors: Sequence[Any], numbers: tuple[int, ...] = ()) -> Any:
        graphs.append(self)
        return _of_math(self, tensors, numbers, asked)

    own = TorchGraph.__call__
    TorchGraph.__call__ = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        TorchGraph.__call__ = own  # type: ignore[method-assign]


def _of_math(
    graph: Any, tensors: Sequence[Any], numbers: Sequence[int], asked: Callable[..., Any]
) -> tuple[Any, ...]:
    """Return what `asked` says of each output of a graph."""
    import torch

    from loopnest.graph_kernels.group_math import group_math
    from loopnest.torch.tensor_arrays import array_of

    with _reshapes():
        math = group_math(graph.graph)
    sizes = dict(zip(graph.sizes, numbers, strict=True))
    rows = zip(math.fusion.inputs, math.inputs, strict=True)
    arrays = [_laid_out(array_of(tensors[number]), own, sizes) for own, number in rows]
    told = {str(size) for own in math.fusion.inputs for size in own.sizes}
    named = {s.name: sizes[s.name] for s in math.fusion.symbols if s.name not in told}
    found = asked(math.fusion, *arrays, **named)
    return tuple([torch.from_numpy(x) for x in (found if isinstance(found, tuple) else (found,))])


@contextmanager
def _reshapes() -> Iterator[None]:
    """Let a reshape be math: kernels of a graph do without it."""
    module: Any = import_module("loopnest.graph_kernels.group_math")

    def lower_of(node: Any) -> Any:
        return _reshaped if node.op == "reshape" else own(node)

    own, module.lower_of = module.lower_of, lower_of
    try:
        yield
    finally:
        module.lower_of = own


def _reshaped(node: Any, operands: Sequence[Any]) -> Any:
    return ln.reshape(operands[0], node.shape)


def _laid_out(array: Any, own: Any, sizes: dict[str, int]) -> Any:
    """Return an array as an input is declared, which may be a view of it at strides."""
    import numpy as np

    from loopnest.scalar.arguments import size_value

    shape = tuple([size_value(size, sizes) for size in own.sizes])
    if own.strides is None:
        return np.ascontiguousarray(array).reshape(shape)
    steps = tuple([size_value(step, sizes) * array.itemsize for step in own.strides])
    return np.lib.stride_tricks.as_strided(array, shape, steps)


def listed(found: Any) -> list[Any]:
    """Return results as a list."""
    return list(found) if isinstance(found, (tuple, list)) else [found]


def _distance(found: Any, exact: Any) -> Any:
    """Return how far each element lies off: 0 where both are the same, NaN and infinities too."""
    import torch

    a, b = found.double(), exact.double()
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, torch.zeros_like(a), (a - b).abs().nan_to_num(math.inf, math.inf))


def _largest(values: Any) -> float:
    return float(values.max()) if values.numel() else 0.0


def _error(
    found: Any, exact: Any, of_math: Any | None, bound: Any | None, otherwise: float
) -> float:
    """Return the largest distance in units of what is allowed: the bound where it is finite."""
    import torch

    if found.shape != exact.shape:
        return math.inf
    away = _distance(found, exact)
    if of_math is None or bound is None:
        return _largest(_units(away, torch.full_like(away, otherwise)))
    allowed = torch.where(bound.isinf(), torch.full_like(away, otherwise), bound)
    near = torch.where(bound.isinf(), away, _distance(found, of_math))
    meant = _units(_distance(of_math, exact), allowed.clamp(min=otherwise))
    return max(_largest(_units(near, allowed)), _largest(meant))


def _units(away: Any, allowed: Any) -> Any:
    """Return distances in units of what is allowed; infinite where that is 0."""
    import torch

    return torch.where(away > 0, away / allowed, torch.zeros_like(away))
