"""The target "interpret": NumPy, every access checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loopnest import kir
from loopnest.backends.interpret import Interpreter
from loopnest.launch.launch_plan import LaunchPlan
from loopnest.launch.target_interface import (
    SEED,
    SWITCH,
    THREADS,
    Array,
    IdleOption,
    TargetOption,
    TargetRow,
)

OPTIONS: Mapping[str, TargetOption] = {
    "thread_order": SEED,
    "threads": THREADS,
    "fast_math": SWITCH,
    "check_indices": SWITCH,
}
"""All but `thread_order` are taken for the sake of "auto", and change nothing."""

_AS_IT_IS: Mapping[str, object] = {"threads": 1, "fast_math": False, "check_indices": True}
_OTHER_TARGET = 'leave it out, or compile for "c" or "cuda"'


class Interpreted:
    """A program that the interpreter runs."""

    checks_data = False

    def __init__(
        self, program: kir.Program, thread_order: int | None = None, **rest: object
    ) -> None:
        self.options = rest
        self.interpreter = Interpreter(program)
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
        named = dict(zip(self.names, arrays, strict=True))
        visible = {name: array for name, array in named.items() if name not in self.shared}
        values = dict(zip(self.scalars, scalars, strict=True))
        self.interpreter.run(visible, plan.sizes, values, self.thread_order)


TARGET = TargetRow("interpret", OPTIONS, Interpreted, checked=True)
