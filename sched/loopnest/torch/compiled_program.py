"""A graph of ATen operators as a function of torch's tensors: what torch.compile calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from loopnest.graph.dimensions import at
from loopnest.scalar.expr import Expr
from loopnest.torch.aten_graph import AtenGraph, AtenOutput
from loopnest.torch.input_layouts import giver
from loopnest.torch.tensor_arrays import Tensor
from loopnest.torch.torch_graph import TorchGraph

MAX_SIZES = 512
"""How arguments and results are bound is kept for so many sets of sizes."""


class CompiledProgram:
    """A graph of ATen operators, compiled.

    `kernels` are its launches, `in_torch` the operators without a rule, by name, and why, `times`
    what was measured of operators that a library may compute.

    Args:
        found: the graph.
        target: of its kernels.
        device: of its tensors.
        options: of `loopnest.compile`.
    """

    def __init__(
        self, found: AtenGraph, target: str, device: Any, options: Mapping[str, Any]
    ) -> None:
        self.found, self.device = found, device
        self.in_torch, self.times = found.in_torch, found.times
        self.run = TorchGraph(found.graph, target, device, options, found.aliases)
        self.kernels = self.run.kernels
        self._sizes = [found.sizes[name] for name in self.run.sizes]
        self.givers = [giver(layout, device) for layout in found.layouts]
        """For each input what takes it, at sizes."""
        self._bound: dict[tuple[int, ...], _AtSizes] = {}

    def __call__(self, args: Sequence[Any]) -> list[Any] | None:
        """Run the graph; return None where an argument lies otherwise in memory than expected."""
        numbers = tuple([args[place] for place in self._sizes]) if self._sizes else ()
        bound = self._bound.get(numbers)
        if bound is None:
            if len(self._bound) >= MAX_SIZES:
                self._bound.clear()
            bound = self._bound[numbers] = _AtSizes(self, numbers)
        return bound.run(args)


class _AtSizes:
    """A program at sizes: how its arguments are taken, and its results are given."""

    def __init__(self, program: CompiledProgram, numbers: tuple[int, ...]) -> None:
        found = program.found
        self.numbers, self.graph = numbers, program.run
        sizes = dict(zip(program.run.sizes, numbers, strict=True))
        self.givers = [
            (source if isinstance(source, int) else -1, source, give(sizes))
            for source, give in zip(found.inputs, program.givers, strict=True)
        ]
        self.outputs = [_result(output, sizes) for output in found.outputs]
        self.plain: list[int] | None = None
        """The outputs of the graph that the program returns, where they are returned as they are;
        not known before the first call."""
        self.is_first = True

    def run(self, args: Sequence[Any]) -> list[Any] | None:
        tensors = []
        for place, tensor, give in self.givers:
            given = give(args[place] if place >= 0 else tensor)
            if given is None:
                return None
            tensors.append(given)
        made = self.graph(tensors, self.numbers)
        if self.plain is not None:
            return [made[place] for place in self.plain]
        results = [result(made) for result in self.outputs]
        if self.is_first:
            self.is_first = False
            self.plain = self._unchanged(made, results)
        return results

    def _unchanged(self, made: Sequence[Tensor], results: Sequence[Any]) -> list[int] | None:
        """Return which output of the graph each result is; None where one is none of them.

        And where calls may differ: tensors that each call makes anew have the same strides.
        """
        places = {id(tensor): place for place, tensor in enumerate(made)}
        found = [places.get(id(result)) for result in results]
        known = [place for place in found if place is not None]
        is_all = len(known) == len(found) and self.graph.makes_outputs(self.numbers)
        return known if is_all else None


def _result(
    output: AtenOutput | tuple[Any], sizes: Mapping[str, int]
) -> Callable[[Sequence[Tensor]], Any]:
    """Return what takes a value that the program returns from the outputs of its graph."""
    if isinstance(output, tuple):
        (value,) = output
        number = at(value, sizes) if isinstance(value, Expr) else value
        return lambda made: number
    place, axes = output.number, output.axes
    shape = None if output.shape is None else [at(extent, sizes) for extent in output.shape]
    wanted = tuple([at(step, sizes) for step in output.strides])

    def result(made: Sequence[Tensor]) -> Tensor:
        tensor = made[place]
        if axes is not None:
            tensor = tensor.permute(axes)
        if shape is not None:
            tensor = tensor.expand(shape)
        return tensor if tensor.stride() == wanted else _strided(tensor, wanted)

    return result


def _strided(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """Return an output with the strides that torch expects: itself where it has them."""
    if not tensor.numel() or len(strides) != tensor.dim():
        return tensor
    rows = zip(tensor.stride(), strides, tensor.shape, strict=True)
    if all(own == wanted or extent == 1 for own, wanted, extent in rows):
        return tensor
    if 0 in strides:
        return tensor
    result = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return result.copy_(tensor)
