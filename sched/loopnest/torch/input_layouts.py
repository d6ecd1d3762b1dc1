"""How the inputs of a program lie in memory: what a compiled graph takes them as.

Torch compiles a graph for the strides of its inputs. One that is C-contiguous is an input of the
graph as it is. Another (transposed, sliced, repeated, channels last) is its memory from the first
element to the last, and a view of that at its strides, so that nothing is copied; along axes of
stride 0 that is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import loopnest.graph as G
from loopnest.graph.dimensions import Dim, add, at, mul, product, sub
from loopnest.graph.node import Node
from loopnest.scalar.dtypes import DType
from loopnest.torch.tensor_arrays import Tensor

Shape: TypeAlias = "tuple[Dim, ...]"
Giver: TypeAlias = "Callable[[Tensor], Tensor | None]"


@dataclass(frozen=True, slots=True)
class InputLayout:
    """How an input lies in memory.

    Args:
        shape: its extents.
        strides: in elements.
    """

    shape: Shape
    strides: Shape

    @property
    def is_contiguous(self) -> bool:
        """Whether it is C-contiguous, or has no element."""
        if any(extent == 0 for extent in self.shape):
            return True
        rows = enumerate(zip(self.shape, self.strides, strict=True), 1)
        return all(e == 1 or step == product(self.shape[n:]) for n, (e, step) in rows)

    @property
    def span(self) -> Dim:
        """Elements from the first to the last one in memory."""
        last: Dim = 0
        for extent, step in zip(self.shape, self.strides, strict=True):
            last = add(last, mul(sub(extent, 1), step))
        return add(last, 1)

    def nodes(self, name: str, dtype: DType) -> tuple[Node, Node]:
        """Return the input of a graph, and the tensor that a program sees."""
        if self.is_contiguous:
            var = G.var(name, self.shape, dtype)
            return var, var
        var = G.var(name, (self.span,), dtype)
        pairs = zip(self.shape, self.strides, strict=True)
        once = InputLayout(tuple([1 if step == 0 else e for e, step in pairs]), self.strides)
        if once.is_contiguous:
            seen = G.reshape(var, once.shape)
        else:
            seen = G.strided_view(var, once.shape, self.strides)
        return var, G.broadcast_to(seen, self.shape)


def contiguous(shape: Sequence[Dim]) -> Shape:
    """Return the strides of a C-contiguous tensor."""
    return tuple([product(shape[axis + 1 :]) for axis in range(len(shape))])


def order_in_memory(shape: Sequence[Dim], strides: Sequence[Dim]) -> list[int] | None:
    """Return the axes of a tensor without gaps from the outermost in memory; None where not known.

    An axis of one element stands where it stood.
    """
    if len(strides) != len(shape) or not all(isinstance(step, int) for step in strides):
        return None
    real = [axis for axis, extent in enumerate(shape) if extent != 1]
    inside = sorted(real, key=lambda axis: -at(strides[axis], {}))
    places = dict(zip(real, inside, strict=True))
    order = [places.get(axis, axis) for axis in range(len(shape))]
    own = contiguous([shape[axis] for axis in inside])
    dense = all(strides[axis] == step for axis, step in zip(inside, own, strict=True))
    return order if dense else None


def giver(layout: InputLayout, device: Any) -> Callable[[Mapping[str, int]], Giver]:
    """Return what makes the input of a graph of a tensor, itself or its memory: at sizes.

    It returns None where the tensor lies otherwise in memory than the layout says, and copies what
    lies on another device, or is a lazy conjugate or negative.

    Args:
        layout: of the input.
        device: of the graph.
    """
    plain = _prepared(device)
    if layout.is_contiguous:

        def whole(tensor: Tensor) -> Tensor | None:
            return plain(tensor) if tensor.is_contiguous() else None

        return lambda sizes: whole
    return partial(_strided, layout, plain)


def _strided(
    layout: InputLayout, plain: Callable[[Tensor], Tensor], sizes: Mapping[str, int]
) -> Giver:
    """Return what gives the memory of a tensor that lies as a layout says."""
    strides = tuple([at(step, sizes) for step in layout.strides])
    kept = [n for n, extent in enumerate(layout.shape) if at(extent, sizes) != 1]
    wanted = [strides[n] for n in kept]
    span = (max(at(layout.span, sizes), 0),)

    def strided(tensor: Tensor) -> Tensor | None:
        own = tensor.stride()
        if own != strides and [own[n] for n in kept] != wanted:
            return None
        return plain(tensor).as_strided(span, (1,))

    return strided


def _prepared(device: Any) -> Callable[[Tensor], Tensor]:
    is_cpu = device.type == "cpu"

    def prepared(tensor: Tensor) -> Tensor:
        if not is_cpu and tensor.device != device:
            tensor = tensor.to(device)  # a number of the CPU beside tensors of a GPU
        if tensor.is_neg() or tensor.is_conj():
            tensor = tensor.resolve_conj().resolve_neg()
        return tensor

    return prepared
