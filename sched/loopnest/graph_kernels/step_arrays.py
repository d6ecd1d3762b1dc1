"""What a step asks of the arrays that it works on: NumPy's here, tensors in `loopnest.torch`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

import loopnest as ln
from loopnest.backends.compiled_kernel import CompiledKernel
from loopnest.graph.dimensions import at
from loopnest.graph.node_values import compute
from loopnest.graph_kernels.plan_records import (
    ALIGNMENT,
    PlaceTree,
    PlannedStep,
    ValuePlace,
    places_in,
)
from loopnest.launch.new_arrays import address_of, array_maker
from loopnest.scalar.dtypes import DType

Array: TypeAlias = "Any"
"""An array of NumPy, or a tensor of another library."""
Memory: TypeAlias = "list[Array]"
"""The array of each storage of a plan, in a call."""
Runner: TypeAlias = "CompiledKernel[ln.Kernel]"

Seen: TypeAlias = "Callable[[Memory], Array]"
"""What a place of a step is in a call."""


class StepArrays:
    """The functions of a library of arrays that a step calls: NumPy's, for graphs on the host.

    Other libraries override those that are theirs.
    """

    is_host = True
    """Whether arrays lie in the memory of the host, and are NumPy's."""

    def __init__(self) -> None:
        self.address: Callable[[Array], int] = address_of
        """Returns where the first element of an array lies."""

    def maker(self, shape: Sequence[int], dtype: DType) -> Callable[[], Array]:
        """Return a function that makes new arrays; large ones begin at a cache line."""
        return array_maker(tuple(shape), dtype.numpy)

    def constant(self, value: npt.NDArray[Any]) -> Array:
        """Return the value of a constant, flat."""
        found = self.room(value.nbytes).view(value.dtype)
        found[:] = value.reshape(-1)
        return found

    def room(self, size: int) -> Array:
        """Return bytes, which begin at a cache line."""
        raw = np.empty(size + ALIGNMENT, np.uint8)
        start = -self.address(raw) % ALIGNMENT
        return raw[start : start + size]

    def piece(self, room: Array, start: int, size: int, dtype: DType) -> Array:
        """Return bytes of a room as a flat array of elements."""
        return room[start : start + size].view(dtype.numpy)

    def seen(self, array: Array, place: ValuePlace) -> Array:
        """Return the array of a storage as a place in it says, at known sizes."""
        shape = [at(extent, {}) for extent in place.shape]
        if place.strides is not None:
            steps = [at(step, {}) * array.itemsize for step in place.strides]
            return as_strided(array, shape, steps, writeable=False)
        found = array.reshape(shape)
        return found if place.axes is None else found.transpose(place.axes)

    def alias(self, array: Array) -> Array:
        """Return another array on the same memory."""
        return array.view()

    def copied(self, array: Array) -> Array:
        """Return a C-contiguous copy."""
        return array.copy()

    def kept(self, array: Array) -> Array:
        """Return a copy for a caller, behind the call."""
        return self.copied(array)

    def overwrite(self, array: Array, value: Array) -> None:
        """Give an array the elements of another, in C order."""
        array[...] = value.reshape(array.shape)

    def launch(
        self, runner: Runner, inputs: list[Array], outputs: list[Array], sizes: Mapping[str, int]
    ) -> None:
        """Launch a kernel; an output that overwrites an input is None."""
        runner(*inputs, out=tuple(outputs), **sizes)

    def without_kernel(
        self, step: PlannedStep, seen: Callable[[ValuePlace], Seen], sizes: Mapping[str, int]
    ) -> Callable[[Memory], None]:
        """Return what computes a step without a kernel, on what its places are in a call: NumPy."""
        if step.kind == "library":
            a, b, result = map(seen, places_in([*step.inputs, *step.outputs]))
            return lambda memory: np.matmul(a(memory), b(memory), out=result(memory))

        def evaluated(memory: Memory) -> None:
            found = compute(step.node, [self._tree(x, memory) for x in step.inputs])
            for place, value in zip(step.outputs, _leaves(found), strict=True):
                self.seen(memory[place.storage], place)[...] = value

        return evaluated

    def _tree(self, places: PlaceTree, memory: Memory) -> Any:
        if isinstance(places, ValuePlace):
            return self.seen(memory[places.storage], places)
        return tuple([self._tree(item, memory) for item in places])


def _leaves(value: Any) -> list[Array]:
    if isinstance(value, tuple):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]
