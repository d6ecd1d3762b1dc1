"""The outputs of a launch: the caller's arrays, checked, or new ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from loopnest import kir
from loopnest.base.errors import LaunchError
from loopnest.launch.launch_plan import LaunchPlan
from loopnest.launch.new_arrays import array_maker
from loopnest.launch.target_interface import Array


class Outputs:
    """Makes the outputs of one program's launches."""

    def __init__(self, program: kir.Program, subject: str) -> None:
        self.outputs = program.outputs
        self.subject = subject
        self.dtypes = [output.buffer.dtype.numpy for output in program.outputs]
        inputs = [p.name for p in program.params if p.kind == "input"]
        self.inputs = inputs
        self.sources = [inputs.index(o.inplace) if o.inplace else None for o in program.outputs]
        self.own_places = [i for i, source in enumerate(self.sources) if source is None]
        self.overwritten = {o.inplace: o.name for o in program.outputs if o.inplace}

    def own(self, results: Sequence[Array]) -> list[Array]:
        """Return the results that are parameters of their own: those not in place."""
        return [results[i] for i in self.own_places]

    def refuse_copy(
        self, name: str, found: str, hint: str = "pass a C-contiguous NumPy array"
    ) -> None:
        """Refuse an input that must be copied before it is passed, where an output overwrites it.

        Raises:
            LaunchError: it is overwritten, so a copy would not do.
        """
        if name in self.overwritten:
            raise self._error(
                f"{name} is {found}, but output {self.overwritten[name]} overwrites it", hint
            )

    def give_back(self, results: list[Array], arrays: Sequence[Array]) -> None:
        """Put the caller's own objects in the places of results in place."""
        for number, source in enumerate(self.sources):
            if source is not None:
                results[number] = arrays[source]

    def take(self, out: object, inputs: Sequence[Array], plan: LaunchPlan) -> list[Array]:
        """Return one array a output: of `out`, of the inputs in place, or new.

        Raises:
            LaunchError: `out` or an input in place does not fit.
        """
        if out is None and not self.overwritten:
            return list(map(self.empty, plan.outputs, self.dtypes))
        return self.fitted(self.given(out), inputs, plan)

    def fitted(
        self, given: Sequence[Any], inputs: Sequence[Any], plan: LaunchPlan, stream: int = 0
    ) -> list[Any]:
        """Return one array a output: as given, an input in place, or new.

        Args:
            given: what the caller gave for each output.
            inputs: in C order.
            plan: the launch.
            stream: where new arrays on a GPU will be ready.

        Raises:
            LaunchError: what was given, or an input that is overwritten, does not fit.
        """
        results = [self._result(n, array, inputs, plan, stream) for n, array in enumerate(given)]
        self.check_apart(results, inputs, given)
        return results

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], is_zero: bool = False) -> Array:
        """Return a new array of undefined elements, or of zeros.

        Raises:
            LaunchError: there is not enough memory.
        """
        try:
            return array_maker(shape, dtype, is_zero)()
        except (MemoryError, ValueError):
            size = math.prod(shape) * dtype.itemsize
            found = f"an array of {size} bytes does not fit into memory"
            raise self._error(found, "pass smaller arrays") from None

    def _error(self, reason: str, hint: str = "") -> LaunchError:
        return LaunchError(self.subject, reason, hint)

    def given(self, out: object) -> Sequence[object]:
        """Return what the caller gave for each output.

        Raises:
            LaunchError: too few or too many.
        """
        if out is None:
            return [None] * len(self.outputs)
        if not isinstance(out, (tuple, list)):
            out = (out,)
        if len(out) != len(self.outputs):
            names = ", ".join([output.name for output in self.outputs])
            raise self._error(f"out has {len(out)} of {len(self.outputs)} arrays", f"pass {names}")
        return out

    def _result(
        self, number: int, array: Any, inputs: Sequence[Any], plan: LaunchPlan, stream: int
    ) -> Any:
        source, name = self.sources[number], self.out_name(number)
        if source is not None:
            array, place, owner = inputs[source], array, self.inputs[source]
            if place is not None and not self.is_same(place, array):
                found = f"{name} is another array than {owner}, which it overwrites"
                raise self._error(found, "leave it None")
            name = owner
        elif array is None:
            return self.new(number, plan, stream)
        else:
            self.check_owner(name, array)
            self.check_kind(number, array, plan)
            if not self.is_contiguous(array):
                raise self._error(f"{name} is not C-contiguous", "pass a C-contiguous array")
        if not self.is_writable(array):
            raise self._error(f"{name} is read-only", "pass a writable array")
        return array

    # What depends on where arrays lie

    def new(self, number: int, plan: LaunchPlan, stream: int) -> Any:
        """Return a new array for an output."""
        return self.empty(plan.outputs[number], self.dtypes[number])

    def is_same(self, array: Any, place: Any) -> bool:
        """Whether what the caller gave is the array that an output overwrites."""
        if not isinstance(array, np.ndarray) or array.shape != place.shape:
            return False
        return bool(array.ctypes.data == place.ctypes.data and array.dtype == place.dtype)

    def check_owner(self, name: str, array: Any) -> None:
        """Check that an array is of the kind that calls write.

        Raises:
            LaunchError: it is not.
        """
        if type(array) is not np.ndarray:
            raise self._error(f"{name} is of type {type(array).__name__}", "pass a NumPy array")

    def is_contiguous(self, array: Any) -> bool:
        """Whether its elements lie in C order."""
        return bool(array.flags.c_contiguous and array.flags.aligned)

    def is_writable(self, array: Any) -> bool:
        """Whether it may be written."""
        return bool(array.flags.writeable)

    def share(self, a: Any, b: Any) -> bool:
        """Whether two arrays may share memory."""
        return np.may_share_memory(a, b)

    # Checks

    def check_kind(self, number: int, array: Any, plan: LaunchPlan) -> None:
        """Check the type and the extents of what the caller gave for an output.

        Raises:
            LaunchError: they are not the output's.
        """
        wanted = (self.dtypes[number], plan.outputs[number])
        if (array.dtype, array.shape) != wanted:
            found = f"{self.out_name(number)} is {array.dtype} of shape {array.shape}"
            raise self._error(found, f"pass {wanted[0]} of shape {wanted[1]}")

    def check_apart(
        self, results: Sequence[Any], inputs: Sequence[Any], given: Sequence[object]
    ) -> None:
        """Check that no array that is written shares memory with another argument.

        Raises:
            LaunchError: it does.
        """
        for number, result in enumerate(results):
            source = self.sources[number]
            if source is None and given[number] is None:
                continue
            name = self.out_name(number) if source is None else self.inputs[source]
            others = [
                (n, a)
                for i, (n, a) in enumerate(zip(self.inputs, inputs, strict=True))
                if i != source
            ]
            others += [(self.out_name(i), results[i]) for i in range(number)]
            for other, array in others:
                if self.share(result, array):
                    raise self._error(f"{name} shares memory with {other}", "pass arrays apart")

    def out_name(self, number: int) -> str:
        """Return what errors call an entry of `out`."""
        return f"out ({self.outputs[number].name})"
