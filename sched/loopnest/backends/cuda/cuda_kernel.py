"""Kernels on a GPU: arrays of the host are copied, those of the GPU taken as they are.

The outputs of a launch on arrays of the GPU: the caller's, checked, or new ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from loopnest import kir
from loopnest.backends.compiled_kernel import CompiledKernel, K, Results
from loopnest.backends.cuda import cuda_target
from loopnest.backends.cuda.cuda_target import CompiledCuda
from loopnest.backends.cuda.driver import gpu_driver
from loopnest.backends.cuda.driver.device_array import (
    DeviceArray,
    DeviceMemory,
    DeviceView,
    gathered,
    stream_number,
    uploaded,
    view,
)
from loopnest.backends.cuda.driver.gpu_driver import Driver, Stream
from loopnest.launch.launch_plan import LaunchPlan
from loopnest.launch.outputs import Outputs
from loopnest.launch.target_interface import Array, TargetRow
from loopnest.launch.timing import BenchResult, measure_batches


class CudaKernel(CompiledKernel[K]):
    """A kernel on a GPU.

    NumPy arrays are copied to the GPU, and results back. Where an input or an array of `out` lies
    in the GPU's memory, the call does not wait and copies nothing back: results are the arrays of
    `out` or a `DeviceArray` each, ready for work on the call's stream.
    """

    @cached_property
    def _placed(self) -> DeviceOutputs:
        """Makes outputs in the memory of the GPU."""
        return DeviceOutputs(self._program, self._subject, self.driver)

    @property
    def driver(self) -> Driver:
        """The GPU that it runs on."""
        return self._compiled(self._program).driver

    def __call__(
        self, /, *arrays: Any, out: Any = None, stream: object = None, **scalars: Any
    ) -> Results:
        """Run the kernel once; as `CompiledKernel`, and on arrays of the GPU.

        Args:
            *arrays: the inputs: NumPy's, or any with DLPack or ``__cuda_array_interface__``.
            out: where the outputs go, in the memory of the host or of the GPU as the inputs.
            stream: of PyTorch, CuPy, cuda-core or pycuda, or its address; None is the default one.
            **scalars: the run-time scalars, and the sizes that are the extent of no input.

        Returns:
            The output, or a tuple of them.

        Raises:
            LaunchError: an argument does not fit; nothing ran.
        """
        number = stream_number(stream, self._subject)
        with self.driver.current():
            given = self._viewed(arrays, number)
            places = [
                self._view(a, self._outputs.out_name(i), number)
                for i, a in enumerate(self._outputs.given(out))
            ]
            plan, values = self._bound(given, scalars, self._key(given, scalars))
            if any(isinstance(a, DeviceView) for a in (*given, *places)):
                results = self._on_device(given, places, plan, values, number)
                _enqueued(given, results, number, stream)
            else:
                results = self._on_host(given, out, plan, values, number)
        return results[0] if len(results) == 1 else tuple(results)

    def bench(self, /, *arrays: Any, **scalars: Any) -> BenchResult:
        """Measure launches on `arrays`, which are copied to the GPU first if need be.

        Launches follow each other without a pause, on the same arrays again and again; inputs that
        an output overwrites are copied first.

        Raises:
            LaunchError: as a call.
        """
        driver = self.driver
        with driver.current():
            given = self._viewed(arrays, 0)
            plan, values = self._bound(given, scalars, self._key(given, scalars))
            inputs = [
                uploaded(self._copied(a, 0), driver, 0)
                if spec.name in self._outputs.overwritten
                else a
                for spec, a in zip(self._inputs, given, strict=True)
            ]
            held = self._held(inputs, 0)
            self._check_data(held, plan, lambda array: self._copied(array, 0))
            outs = self._placed.fitted(self._outputs.given(None), held, plan)
            plan = self._aligned(plan, held, outs)
            moved = sum([a.nbytes for a in (*held, *outs)])
            return measure_batches(
                lambda: self._launch(held, outs, values, plan, 0),
                lambda work: driver.timed(work, 0),
                moved,
            )

    # Arguments

    def sizes_for(
        self, program: kir.Program, arrays: Sequence[Any], keywords: Mapping[str, Any]
    ) -> dict[str, int]:
        """Return the sizes that arguments give, those on the GPU too; raises as on the host."""
        with self.driver.current():
            return super().sizes_for(program, self._viewed(arrays, 0), keywords)

    def _viewed(self, arrays: Sequence[Any], stream: Stream) -> list[Any]:
        names = [spec.name for spec in self._inputs]
        names += [f"argument {i + 1}" for i in range(len(names), len(arrays))]
        return [self._view(a, name, stream) for a, name in zip(arrays, names, strict=False)]

    def _view(self, array: Any, name: str, stream: Stream) -> Any:
        """Return an array of the GPU as a `DeviceView`, any other object as it is."""
        found = None if array is None else view(array, name, self.driver, stream, self._subject)
        return array if found is None else found

    def _compiled(self, program: kir.Program) -> CompiledCuda:
        found = self._variant(program).executable
        assert isinstance(found, CompiledCuda)
        return found

    # Arrays of the host

    def _on_host(
        self,
        arrays: Sequence[Any],
        out: Any,
        plan: LaunchPlan,
        values: Sequence[Any],
        stream: Stream,
    ) -> list[Any]:
        inputs = list(map(self._contiguous, range(len(arrays)), arrays))
        self._check_data(arrays if self._strided else inputs, plan)
        results = self._outputs.take(out, inputs, plan)
        if plan.is_empty:
            self._run(inputs, results, values, plan)
        else:
            passed = [*inputs, *self._outputs.own(results)]
            self._compiled(plan.program).run(passed, values, plan, stream, self._subject)
        self._outputs.give_back(results, arrays)
        return results

    # Arrays of the GPU

    def _strides_of(self, array: Any) -> tuple[int, ...]:
        if not isinstance(array, DeviceView):
            return super()._strides_of(array)
        shape = array.shape
        plain = tuple([math.prod(shape[n + 1 :]) for n in range(len(shape))])
        return plain if array.strides is None else array.strides

    def _on_device(
        self,
        arrays: Sequence[Any],
        places: Sequence[Any],
        plan: LaunchPlan,
        values: Sequence[Any],
        stream: Stream,
    ) -> list[Any]:
        held = self._held(arrays, stream)
        self._check_data(held, plan, lambda array: self._copied(array, stream))
        outs = self._placed.fitted(places, held, plan, stream)
        plan = self._aligned(plan, held, outs)
        if plan.is_empty:
            self._fill(held, outs, values, plan, stream)
        else:
            self._launch(held, outs, values, plan, stream)
        return [place.source for place in outs]

    def _held(self, arrays: Sequence[Any], stream: Stream) -> list[DeviceView]:
        """Return the inputs in the memory of the GPU, in C order."""
        result = []
        for number, array in enumerate(arrays):
            name = self._inputs[number].name
            if not isinstance(array, DeviceView):
                hint = "pass an array of the GPU"
                self._outputs.refuse_copy(name, "no array of the GPU, as others are", hint)
                array = uploaded(self._contiguous(number, array), self.driver, stream)
            elif array.strides is not None and self._inputs[number].strides is None:
                self._outputs.refuse_copy(name, "not C-contiguous", "pass a C-contiguous array")
                self._warn_of_copy(name)
                array = gathered(array, self.driver, stream)
            result.append(array)
        return result

    def _aligned(
        self, plan: LaunchPlan, held: Sequence[DeviceView], outs: Sequence[DeviceView]
    ) -> LaunchPlan:
        """Return the plan of the variant that these addresses allow."""
        required = self._compiled(plan.program).alignments
        for (name, count), place in zip(required, (*held, *self._own(outs)), strict=True):
            if place.address % count:
                reason = f"{name} is not aligned to {count} bytes"
                scalar = self._planner.scalar
                if scalar is None or plan.program is scalar.program:
                    raise self._error(reason, "pass an array that is")
                self._tell_scalar(reason)
                return scalar.own_plan(plan.sizes, self._subject)
        return plan

    def _own(self, outs: Sequence[DeviceView]) -> list[DeviceView]:
        return [outs[i] for i in self._outputs.own_places]

    def _launch(
        self,
        held: Sequence[DeviceView],
        outs: Sequence[DeviceView],
        values: Sequence[Any],
        plan: LaunchPlan,
        stream: Stream,
    ) -> None:
        compiled = self._compiled(plan.program)
        launches = compiled.configure(plan, self._subject)
        places = [place.address for place in (*held, *self._own(outs))]
        compiled.launch(launches, places, values, plan, stream)

    def _fill(
        self,
        held: Sequence[DeviceView],
        outs: Sequence[DeviceView],
        values: Sequence[Any],
        plan: LaunchPlan,
        stream: Stream,
    ) -> None:
        """Do on the host what a launch of no thread leaves to do."""
        inputs = [self._copied(place, stream) for place in held]
        results = self._outputs.take(None, inputs, plan)
        self._run(inputs, results, values, plan)
        for result, place in zip(results, outs, strict=True):
            self.driver.upload(place.address, result, stream)

    def _copied(self, array: Any, stream: Stream) -> Array:
        """Return a copy on the host of an array that is ready for work on `stream`."""
        if not isinstance(array, DeviceView):
            return np.array(array)
        result = np.empty(array.shape, array.dtype)
        if array.strides is not None:
            array = gathered(array, self.driver, stream)
        self.driver.download(result, array.address, stream)
        return result


def _enqueued(
    inputs: Sequence[Any], results: Sequence[Any], number: Stream, stream: object
) -> None:
    """Note where the work was enqueued that reads these inputs and computes these results.

    A result that was new is used there alone; one that the caller gave may be older.
    """
    for place in inputs:
        if isinstance(place, DeviceView) and isinstance(place.source, DeviceArray):
            place.source.memory.used(number, stream)
    for array in results:
        if isinstance(array, DeviceArray):
            note = array.memory.made_for if array.is_new else array.memory.used
            note(number, stream)
            array.is_new = False
            array.stream, array.stream_owner = number, stream


def _build(program: kir.Program, **options: Any) -> CompiledCuda:
    return CompiledCuda(program, gpu_driver.find_driver(), **options)


TARGET = TargetRow(
    "cuda",
    cuda_target.OPTIONS,
    _build,
    device="gpu",
    text=cuda_target.TEXT,
    obstacle=gpu_driver.obstacle,
    instead='use target "c" or "interpret"; kernel.cubin(arch) compiles without a GPU',
    kernel=CudaKernel,
)


class DeviceOutputs(Outputs):
    """Makes the outputs of one program's launches on the GPU; `source` is what a caller gets."""

    def __init__(self, program: kir.Program, subject: str, driver: Driver) -> None:
        super().__init__(program, subject)
        self.driver = driver

    def new(self, number: int, plan: LaunchPlan, stream: Stream) -> DeviceView:
        shape, dtype = plan.outputs[number], self.dtypes[number]
        memory = DeviceMemory(self.driver, math.prod(shape) * dtype.itemsize, stream)
        array = DeviceArray(memory, shape, self.outputs[number].buffer.dtype, stream)
        return DeviceView(array, memory.address, shape, dtype, None, False, memory)

    def is_same(self, array: Any, place: DeviceView) -> bool:
        return isinstance(array, DeviceView) and array.address == place.address

    def check_owner(self, name: str, array: Any) -> None:
        if not isinstance(array, DeviceView):
            found = f"{name} is of type {type(array).__name__}, while inputs lie on the GPU"
            raise self._error(found, "pass an array of the GPU")

    def is_contiguous(self, array: DeviceView) -> bool:
        return array.strides is None

    def is_writable(self, array: DeviceView) -> bool:
        return not array.read_only

    def share(self, a: DeviceView, b: DeviceView) -> bool:
        return a.overlaps(b)
