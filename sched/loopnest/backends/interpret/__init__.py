"""The "interpret" target: run a loop nest by NumPy, all threads in step, every access checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from loopnest.base.errors import KernelFault, LaunchError
from loopnest.kir import Program
from loopnest.kir.legal_tiles import tile_faults
from loopnest.kir.tiles import without_tiles
from loopnest.lane_machine.abstract_machine import Machine
from loopnest.lane_machine.concrete_program import ConcreteProgram
from loopnest.lane_machine.loop_dependence import Expansions
from loopnest.lane_machine.native_math import Array
from loopnest.lane_machine.random_order import OrderedMachine
from loopnest.lane_machine.stepping import SteppedMachine, SteppedOrder, Teller
from loopnest.scalar.enums import LAUNCH_DIMENSIONS

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
        for machine, last in self._machines(arrays, sizes, scalars, thread_order):
            machine.run(last=last)

    def steps(
        self,
        arrays: Mapping[str, Array],
        sizes: Mapping[str, int],
        scalars: Mapping[str, object],
        thread_order: int | None,
        block: object,
        thread: object,
        subject: str,
    ) -> Callable[[Teller], None]:
        """Return what runs the program once, as `run`, and tells of each step.

        Args:
            arrays: as for `run`.
            sizes: as for `run`.
            scalars: as for `run`.
            thread_order: as for `run`.
            block: the one to tell of: its place in the grid, None for all.
            thread: its place in its block, None for all.
            subject: the call, for errors.

        Raises:
            LaunchError: there is no such block or thread.
        """
        settings = [launch.setting for launch in self._launches(sizes)]
        blocks = _numbers(block, [s.grid for s in settings], f"{subject}.step(block={block!r})")
        threads = _numbers(
            thread, [s.block for s in settings], f"{subject}.step(thread={thread!r})"
        )

        def run(tell: Teller) -> None:
            machines = self._machines(arrays, sizes, scalars, thread_order, _STEPPED)
            for (machine, last), *only in zip(machines, blocks, threads, strict=True):
                assert isinstance(machine, SteppedMachine)
                machine.watch(tell, (only[0], only[1]))
                machine.run(last=last)

        return run

    def _machines(
        self,
        arrays: Mapping[str, Array],
        sizes: Mapping[str, int],
        scalars: Mapping[str, object],
        thread_order: int | None,
        classes: tuple[type[Machine], type[OrderedMachine]] = (Machine, OrderedMachine),
    ) -> Iterator[tuple[Machine, bool]]:
        """Yield the machine of each launch, to be run before the next, and whether it is the last.

        Raises:
            KernelFault: a tile does not do what its instruction does.
        """
        if self._fault:
            raise KernelFault(self.program.name, self._fault)
        in_step, in_order = classes
        found = self._launches(sizes)
        machine: Machine | None = None
        for launch in found:
            # An empty launch is interpreted with one thread that it does not have: it can race with
            # no other, and has no order.
            empty = launch.setting.is_empty
            if thread_order is None or empty:
                races = self.races and not empty
                machine = in_step(launch, arrays, scalars, races, machine)
            else:
                machine = in_order(launch, arrays, scalars, thread_order, machine)
            yield machine, launch is found[-1]

    def _launches(self, sizes: Mapping[str, int]) -> tuple[Expansions, ...]:
        key = tuple(sizes.items())
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MAX_SIZES:
                self._known.clear()
            found = self._known[key] = tuple(launches_at(self.program, sizes))
        return found


_STEPPED: tuple[type[Machine], type[OrderedMachine]] = (SteppedMachine, SteppedOrder)


def _numbers(place: object, extents: Sequence[Sequence[int]], subject: str) -> list[int | None]:
    """Return the number of a block or thread in each launch; -1 in one that does not have it.

    Raises:
        LaunchError: no launch has it.
    """
    if place is None:
        return [None] * len(extents)
    given = place if isinstance(place, tuple) else (place,)
    whole = all(isinstance(n, int) and not isinstance(n, bool) for n in given)
    if not whole or not 0 < len(given) <= len(LAUNCH_DIMENSIONS) // 2:
        reason = f"{place!r} is no place"
        raise LaunchError(subject, reason, "pass an int, or a tuple of at most 3, or None for all")
    x, y, z = [*given, 0, 0][:3]
    found: list[int | None] = [
        x + own[0] * (y + own[1] * z)
        if all(0 <= n < extent for n, extent in zip((x, y, z), own, strict=True))
        else -1
        for own in extents
    ]
    if all(number == -1 for number in found):
        shown = " or ".join(dict.fromkeys([f"{tuple(own)}" for own in extents]))
        raise LaunchError(
            subject, f"there is none at {(x, y, z)}", f"along x, y and z there are {shown}"
        )
    return found


def interpret(
    program: Program,
    arrays: Mapping[str, Array],
    sizes: Mapping[str, int],
    scalars: Mapping[str, object],
    thread_order: int | None = None,
) -> None:
    """Run `program` once; see `Interpreter.run`."""
    Interpreter(program).run(arrays, sizes, scalars, thread_order)
