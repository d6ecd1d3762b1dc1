"""Arrays of a GPU for the steps of a graph, and its variables as arrays of the host.

Constants are uploaded once; variables and the arena stay on the device. A call uploads its inputs,
enqueues all launches on one stream and downloads its outputs. What NumPy computes (a library's
product, an op without a kernel) goes by way of the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from loopnest.backends.cuda.driver.device_array import DeviceMemory, DeviceView, gathered
from loopnest.backends.cuda.driver.driver_interface import Driver
from loopnest.graph.dimensions import at
from loopnest.graph_kernels.plan_records import PlannedStep, ValuePlace, places_in
from loopnest.graph_kernels.step_arrays import Array, HostArrays, Memory, Runner, Seen
from loopnest.scalar.dtypes import DType, uint8

STREAM = 0
"""The default stream, on which all that a graph does on the GPU follows each other."""


class DeviceArrays:
    """Arrays in the memory of a GPU, as the steps of a graph use them.

    All functions are called where the GPU's context is current.

    Args:
        driver: of the GPU.
    """

    is_host = False

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def maker(self, shape: Sequence[int], dtype: DType) -> Callable[[], DeviceView]:
        """Return a function that makes new arrays."""
        own, kind = tuple(shape), dtype.numpy
        return lambda: self._empty(own, kind)

    def _empty(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> DeviceView:
        memory = DeviceMemory(self.driver, math.prod(shape) * kind.itemsize, STREAM)
        return DeviceView(memory, memory.address, shape, kind, None, False, memory)

    def constant(self, value: npt.NDArray[Any]) -> DeviceView:
        """Return a copy of an array of the host, flat."""
        memory = DeviceMemory(self.driver, value.nbytes, STREAM)
        found = (memory.address, (value.size,), value.dtype)
        if value.nbytes:
            self.driver.upload(memory.address, np.ascontiguousarray(value), STREAM)
        return DeviceView(memory, *found, None, False, memory)

    def room(self, size: int) -> DeviceView:
        """Return bytes."""
        return self._empty((size,), uint8.numpy)

    def piece(self, room: DeviceView, start: int, size: int, dtype: DType) -> DeviceView:
        """Return bytes of a room as a flat array of elements."""
        shape = (size // dtype.numpy.itemsize,)
        return replace(room, address=room.address + start, shape=shape, dtype=dtype.numpy)

    def address(self, array: DeviceView) -> int:
        """Return where the first element of an array lies."""
        return array.address

    def seen(self, array: DeviceView, place: ValuePlace) -> DeviceView:
        """Return the array of a storage as a place in it says, at known sizes."""
        shape = tuple([at(extent, {}) for extent in place.shape])
        if place.strides is not None:
            steps = tuple([at(step, {}) for step in place.strides])
            return replace(array, shape=shape, strides=steps, read_only=True)
        if place.axes is None:
            return replace(array, shape=shape)
        plain = [math.prod(shape[n + 1 :]) for n in range(len(shape))]
        axes = place.axes
        steps = tuple([plain[axis] for axis in axes])
        return replace(array, shape=tuple([shape[axis] for axis in axes]), strides=steps)

    def alias(self, array: DeviceView) -> DeviceView:
        """Return another array on the same memory."""
        return replace(array)

    def copied(self, array: DeviceView) -> npt.NDArray[Any]:
        """Return a copy: on the host, where results go."""
        return self.fetched(array)

    def kept(self, array: DeviceView) -> npt.NDArray[Any]:
        """Return a copy on the host for a caller, behind the call."""
        with self.driver.current():
            return self.fetched(array)

    def overwrite(self, array: DeviceView, value: DeviceView | npt.NDArray[Any]) -> None:
        """Give an array the elements of another, in C order."""
        self.send(array, self.fetched(value) if isinstance(value, DeviceView) else value)

    def launch(
        self, runner: Runner, inputs: list[Array], outputs: list[Array], sizes: Mapping[str, int]
    ) -> None:
        """Launch a kernel; an output that overwrites an input is None."""
        runner(*inputs, out=tuple(outputs), **sizes)

    def without_kernel(
        self, step: PlannedStep, seen: Callable[[ValuePlace], Seen], sizes: Mapping[str, int]
    ) -> Callable[[Memory], None]:
        """Return what computes a step that has no kernel: NumPy, on copies."""
        host = HostArrays()

        def copy_of(place: ValuePlace) -> Seen:
            return lambda memory: host.seen(memory[place.storage], place)

        compute = host.without_kernel(step, copy_of, sizes)
        reads = {place.storage for place in places_in(step.inputs)}
        writes = [place.storage for place in step.outputs]

        def run(memory: Memory) -> None:
            own: Memory = list(memory)
            for number in reads:
                own[number] = self.fetched(memory[number])
            for number in writes:
                own[number] = np.empty(memory[number].size, memory[number].dtype)
            compute(own)
            for number in writes:
                self.send(memory[number], own[number])

        return run

    # To the host and back

    def fetched(self, array: DeviceView) -> npt.NDArray[Any]:
        """Return a copy on the host, when all work on it is done."""
        found = np.empty(array.shape, array.dtype)
        if array.strides is not None:
            array = gathered(array, self.driver, STREAM)
        if found.nbytes:
            self.driver.download(found, array.address, STREAM)
        return found

    def send(self, array: DeviceView, value: npt.NDArray[Any]) -> None:
        """Copy elements of the host into an array."""
        if value.nbytes:
            self.driver.upload(array.address, np.ascontiguousarray(value), STREAM)

    def results(self, values: Any) -> Any:
        """Return outputs of a step as arrays of the host; of a tuple a tuple."""
        if type(values) is tuple:
            return tuple([self.results(value) for value in values])
        return self.fetched(values) if isinstance(values, DeviceView) else values


class DeviceStates(Mapping[str, npt.NDArray[Any]]):
    """The variables of a graph on a GPU, by name: arrays of the host.

    An array is made when it is asked for. From then on each call copies it to the GPU before, where
    a caller may have written to it, and back afterwards.

    Args:
        arrays: of the GPU.
        states: the variables there, flat.
        shapes: their shapes.
    """

    def __init__(
        self,
        arrays: DeviceArrays,
        states: Mapping[str, DeviceView],
        shapes: Mapping[str, Sequence[int]],
    ) -> None:
        self.arrays, self._states, self._shapes = arrays, states, shapes
        self._lent: dict[str, npt.NDArray[Any]] = {}

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        if name not in self._lent:
            with self.arrays.driver.current():
                found = self.arrays.fetched(self._states[name])
            self._lent[name] = found.reshape(self._shapes[name])
        return self._lent[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def send(self) -> None:
        """Copy to the GPU what a caller may have written."""
        for name, value in self._lent.items():
            self.arrays.send(self._states[name], value)

    def fetch(self) -> None:
        """Copy what callers look at from the GPU."""
        for name, value in self._lent.items():
            value[...] = self.arrays.fetched(self._states[name]).reshape(value.shape)
