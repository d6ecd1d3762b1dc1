"""The "interpret" target: run a loop nest by NumPy, all threads in step, every access checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from loopnest.base.errors import KernelFault
from loopnest.kir import Program
from loopnest.kir.legal_tiles import tile_faults
from loopnest.kir.tiles import without_tiles
from loopnest.lane_machine.abstract_machine import Machine
from loopnest.lane_machine.concrete_program import ConcreteProgram
from loopnest.lane_machine.loop_dependence import Expansions
from loopnest.lane_machine.native_math import Array
from loopnest.lane_machine.random_order import OrderedMachine

__all__ = ["Interpreter", "interpret"]

MAX_SIZES = 32
"""What is known of so many sizes is kept; then all is found out anew."""


def launches_at(program: Program, sizes: Mapping[str, int]) -> Iterator[Expansions]:
    """Yield the launches of a program at given sizes, ready to be run in this order."""
    for launch in program.launches:
        yield Expansions(ConcreteProgram(launch, sizes, program))


class Interpreter:
    """A program to interpret; what depends on sizes alone is kept for the next run.

    All threads of a block run in step, many blocks at a time; serial loops run their iterations
    side by side where no iteration touches what another one writes.

    Args:
        program: the kernel.
        races: whether to look for accesses of different threads that nothing orders.
    """

    def __init__(self, program: Program, races: bool = True) -> None:
        self.program, self.races = without_tiles(program), races
        faults = [fault for launch in program.launches for fault in tile_faults(launch)]
        self._fault = faults[0] if faults else ""
        self._known: dict[tuple[tuple[str, int], ...], tuple[Expansions, ...]] = {}

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
            thread_order: a seed: between barriers threads run in a random order, and no races
                are looked for; they show as faults, or as outputs that depend on the seed.

        Raises:
            KernelFault: an access out of bounds or misaligned, a load of an element that was never
                stored, a race, a barrier (or the like) that only some of its threads reach, a use
                of what a thread that does not exist offered in a shuffle, an output element that
                is never stored, a counter that is not 0 in the end; a tile that does not do what
                its instruction does.
            LaunchError: the blocks wait for each other and take too much memory together.
        """
        if self._fault:
            raise KernelFault(self.program.name, self._fault)
        key = tuple(sizes.items())
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MAX_SIZES:
                self._known.clear()
            found = self._known[key] = tuple(launches_at(self.program, sizes))
        machine: Machine | None = None
        for launch in found:
            # An empty launch is interpreted with one thread that it does not have: it can race with
            # no other, and has no order.
            empty = launch.setting.is_empty
            if thread_order is None or empty:
                races = self.races and not empty
                machine = Machine(launch, arrays, scalars, races, machine)
            else:
                machine = OrderedMachine(launch, arrays, scalars, thread_order, machine)
            machine.run(last=launch is found[-1])


def interpret(
    program: Program,
    arrays: Mapping[str, Array],
    sizes: Mapping[str, int],
    scalars: Mapping[str, object],
    thread_order: int | None = None,
) -> None:
    """Run `program` once; see `Interpreter.run`."""
    Interpreter(program).run(arrays, sizes, scalars, thread_order)
