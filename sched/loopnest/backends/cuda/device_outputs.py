"""The outputs of a launch on arrays of the GPU: the caller's, checked, or new ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from loopnest.backends.cuda.driver.device_array import DeviceArray, DeviceMemory, DeviceView
from loopnest.backends.cuda.driver.driver_interface import Driver, Stream
from loopnest.launch.launch_plan import LaunchPlan
from loopnest.launch.outputs import Outputs


class DeviceOutputs(Outputs):
    """Makes the outputs of one program's launches, on the host (as `Outputs`) or on the GPU."""

    def take_on_device(
        self,
        places: Sequence[Any],
        inputs: Sequence[DeviceView],
        plan: LaunchPlan,
        driver: Driver,
        stream: Stream,
    ) -> list[DeviceView]:
        """Return one place a output; its `source` is what the caller gets.

        Args:
            places: what the caller gave for each output: a view, None, or anything else.
            inputs: in C order.
            plan: the launch.
            driver: of the GPU.
            stream: where new arrays will be ready.

        Raises:
            LaunchError: a place, or an input that is overwritten, does not fit.
        """
        found = [self._place(n, p, inputs, plan, driver, stream) for n, p in enumerate(places)]
        self.check_apart(found, inputs, places)
        return found

    def _place(
        self,
        number: int,
        place: Any,
        inputs: Sequence[DeviceView],
        plan: LaunchPlan,
        driver: Driver,
        stream: Stream,
    ) -> DeviceView:
        source = self.sources[number]
        if source is not None:
            return self._overwritten(number, place, inputs[source], self.inputs[source])
        if place is None:
            return self._new(number, plan, driver, stream)
        name = self.out_name(number)
        if not isinstance(place, DeviceView):
            found = f"{name} is of type {type(place).__name__}, while inputs lie on the GPU"
            raise self._error(found, "pass an array of the GPU")
        self.check_kind(number, place, plan)
        if place.strides is not None:
            raise self._error(f"{name} is not C-contiguous", "pass a C-contiguous array")
        return self._unprotected(place, name)

    def _overwritten(self, number: int, place: Any, target: DeviceView, name: str) -> DeviceView:
        same = isinstance(place, DeviceView) and place.address == target.address
        if place is not None and not same:
            found = f"{self.out_name(number)} is another array than {name}, which it overwrites"
            raise self._error(found, "leave it None")
        return self._unprotected(target, name)

    def _unprotected(self, place: DeviceView, name: str) -> DeviceView:
        if place.read_only:
            raise self._error(f"{name} is read-only", "pass a writable array")
        return place

    def _new(self, number: int, plan: LaunchPlan, driver: Driver, stream: Stream) -> DeviceView:
        shape, dtype = plan.outputs[number], self.dtypes[number]
        memory = DeviceMemory(driver, math.prod(shape) * dtype.itemsize, stream)
        array = DeviceArray(memory, shape, self.outputs[number].buffer.dtype, stream)
        return DeviceView(array, memory.address, shape, dtype, None, False, memory)

    def share(self, a: Any, b: Any) -> bool:
        if isinstance(a, DeviceView) and isinstance(b, DeviceView):
            return a.overlaps(b)
        return super().share(a, b)
