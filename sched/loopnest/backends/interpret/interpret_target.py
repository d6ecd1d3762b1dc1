"""The target "interpret": NumPy, every access checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from loopnest import kir
from loopnest.backends.interpret import Interpreter
from loopnest.base.errors import KernelFault
from loopnest.lane_machine.stepping import Steps
from loopnest.launch.launch_plan import LaunchPlan
from loopnest.launch.strided_arrays import spread
from loopnest.launch.target_interface import (
    SEED,
    SWITCH,
    THREADS,
    Array,
    Executable,
    IdleOption,
    TargetOption,
    TargetRow,
)
from loopnest.scalar.arguments import size_value
from loopnest.scalar.data_ranges import first_repeated

OPTIONS: Mapping[str, TargetOption] = {
    "thread_order": SEED,
    "threads": THREADS,
    "fast_math": SWITCH,
    "check_indices": SWITCH,
}
"""All but `thread_order` are taken for the sake of "auto", and change nothing."""

_AS_IT_IS: Mapping[str, object] = {"threads": 1, "fast_math": False, "check_indices": True}
_OTHER_TARGET = 'leave it out, or compile for "c" or "cuda"'


class Interpreted(Executable):
    """A program that the interpreter runs."""

    def __init__(
        self, program: kir.Program, thread_order: int | None = None, **rest: object
    ) -> None:
        self.options = rest
        self.interpreter = Interpreter(program)
        self.checks = [check for check in program.index_checks if check.distinct]
        self.thread_order = thread_order
        self.names = [p.name for p in program.params if p.buffer is not None]
        self.scalars = [p.name for p in program.params if p.kind == "scalar"]
        self.shared = {p.name for p in program.params if p.kind == "workspace"}

    def idle_options(self) -> Iterator[IdleOption]:
        """Yield the options that other targets have."""
        for name, value in self.options.items():
            if value != _AS_IT_IS[name]:
                why = "the interpreter runs one thread at a time, exactly, and checks every access"
                yield IdleOption(f"{name}={value!r}", "it changes nothing", why, _OTHER_TARGET)

    def run(self, arrays: Sequence[Array], scalars: Sequence[Any], plan: LaunchPlan) -> None:
        """Run one launch; workspace is left to the interpreter, which watches it."""
        self.interpreter.run(*self._given(arrays, scalars, plan))

    def steps(
        self,
        arrays: Sequence[Array],
        scalars: Sequence[Any],
        plan: LaunchPlan,
        place: tuple[object, object],
        subject: str,
    ) -> Steps:
        """Return the steps of one launch, of a block and a thread; see `CompiledKernel.step`.

        Raises:
            LaunchError: there is no such block or thread.
        """
        given = self._given(arrays, scalars, plan)
        outputs = {p.name for p in self.interpreter.program.params if p.kind == "output"}
        shown = {name: array for name, array in given[0].items() if name in outputs}
        return Steps(self.interpreter.steps(*given, *place, subject), shown)

    def _given(
        self, arrays: Sequence[Array], scalars: Sequence[Any], plan: LaunchPlan
    ) -> tuple[Mapping[str, Array], Mapping[str, int], Mapping[str, object], int | None]:
        """Return what the interpreter is given: arrays, sizes, scalars, the order of threads.

        Raises:
            KernelFault: two elements that were declared to differ are the same.
        """
        named = dict(zip(self.names, arrays, strict=True))
        visible = {name: array for name, array in named.items() if name not in self.shared}
        values = dict(zip(self.scalars, scalars, strict=True))
        for check in self.checks:
            self._check_distinct(check, named, scalars, plan)
        return visible, plan.sizes, values, self.thread_order

    def _check_distinct(
        self,
        check: kir.IndexCheck,
        named: Mapping[str, Array],
        scalars: Sequence[Any],
        plan: LaunchPlan,
    ) -> None:
        """Look at data that were declared to differ.

        Raises:
            KernelFault: two of them are the same.
        """
        if check.program is not None:
            values = computed_indices(check, named, scalars, plan)
        else:
            param = next(p for p in self.interpreter.program.params if p.name == check.source)
            values = named[check.source]
            if param.strides is not None:
                extents = [[size_value(n, plan.sizes) for n in own]
                           for own in (param.shape, param.strides)]  # fmt: skip
                values = spread(values, *extents)
        found = repeated(check, values, size_value(check.extent, plan.sizes))
        if found is not None:
            raise KernelFault(self.interpreter.program.name, *found)


def computed_indices(
    check: kir.IndexCheck,
    named: Mapping[str, Array],
    scalars: Sequence[Any],
    plan: LaunchPlan,
) -> Array:
    """Return indices that a kernel computes, of its inputs by name."""
    assert check.program is not None
    made = np.empty([size_value(extent, plan.sizes) for extent in check.shape], check.dtype.numpy)
    inputs = [named[p.name] for p in check.program.params if p.kind == "input"]
    Interpreted(check.program).run([*inputs, made], scalars, plan)
    return made


def repeated(check: kir.IndexCheck, values: Array, extent: int) -> tuple[str, str] | None:
    """Return what is wrong with data that were declared to differ, and what is allowed; or None."""
    found = first_repeated(values, check.axis, extent)
    if found is None:
        return None
    one, other = [f"{check.source}{list(place)}" for place in found]
    return (
        f"{one} and {other} are both {values[found[0]]}, but unique=True declares that the places "
        f"of {check.source} differ",
        f"pass places that differ along axis {check.axis}, or leave out unique=True",
    )


TARGET = TargetRow("interpret", OPTIONS, Interpreted, checked=True)
