"""The "interpret" target: run a loop nest by NumPy, all threads in step, every access checked."""

from __future__ import annotations

from collections.abc import Mapping

from loopnest.interpreter.dependence import Expansions
from loopnest.interpreter.machine import Machine
from loopnest.interpreter.scalar import Array
from loopnest.interpreter.setting import Setting
from loopnest.kir import Program

__all__ = ["Interpreter", "interpret"]

MAX_SIZES = 32
"""What is known of so many sizes is kept; then all is found out anew."""


class Interpreter:
    """A program to interpret; what depends on sizes alone is kept for the next run.

    All threads of a block run in step, many blocks at a time; serial loops run their iterations
    side by side where no iteration touches what another one writes.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._known: dict[tuple[tuple[str, int], ...], Expansions] = {}

    def run(
        self,
        arrays: Mapping[str, Array],
        sizes: Mapping[str, int],
        scalars: Mapping[str, object],
        thread_order: int | None = None,
    ) -> None:
        """Run the program once; inputs are read from `arrays`, outputs written into them.

        Args:
            arrays: name of parameter -> C-contiguous array of its shape; workspace may be left
                out.
            sizes: the value of every size symbol.
            scalars: the value of every scalar parameter, in its type.
            thread_order: a seed: threads run one after another, in a random order.

        Raises:
            KernelFault: an access out of bounds, a load of an element that was never stored, a
                barrier that not all threads reach, an output element that is never stored.
            NotSupported: a collective operation, or barriers under `thread_order`.
        """
        key = tuple(sizes.items())
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MAX_SIZES:
                self._known.clear()
            found = self._known[key] = Expansions(Setting(self.program, sizes))
        Machine(found, arrays, scalars).run(thread_order)


def interpret(
    program: Program,
    arrays: Mapping[str, Array],
    sizes: Mapping[str, int],
    scalars: Mapping[str, object],
    thread_order: int | None = None,
) -> None:
    """Run `program` once; see `Interpreter.run`."""
    Interpreter(program).run(arrays, sizes, scalars, thread_order)
