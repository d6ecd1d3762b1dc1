"""The sentences of a broken rule: which statement, which element, which thread."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from loopnest import kir
from loopnest.base.errors import KernelFault
from loopnest.kir.nest_text import nest_lines, print_nest
from loopnest.lane_machine.concrete_program import ConcreteProgram
from loopnest.lane_machine.frame import Frame
from loopnest.scalar.enums import LAUNCH_DIMENSIONS, along_dimensions
from loopnest.scalar.expr import Buffer, Index, LaunchIndex, Load

FEW = 4
"""How many threads a message names at most."""


@dataclass(frozen=True, slots=True)
class Rival:
    """The earlier access of a race.

    Args:
        statement: that made it.
        verb: "read" or "write".
        thread: the number of a thread that made it, in the launch.
        level: whether others did, too: 1 in its warp, 2 in its block, 3 in the grid.
        is_self: whether it is the thread of the later access; then others did, too.
    """

    statement: kir.Stmt
    verb: str
    thread: int
    level: int
    is_self: bool


class FaultReport:
    """Make the KernelFault of a statement; `statement` is the one that runs."""

    def __init__(self, setting: ConcreteProgram) -> None:
        self.setting = setting
        self.program, self.whole = setting.program, setting.whole
        self.statement: kir.Stmt | None = None

    def out_of_bounds(
        self, access: Load, index: list[int], axis: int, extent: int, frame: Frame, lane: int
    ) -> KernelFault:
        """Return the fault of an access beyond its buffer."""
        place = "" if access.flat else f"axis {axis} of "
        return self.fault(
            f"{self._actor()} {self._verb(access)} {element_text(access, index)}: index "
            f"{index[axis]} is out of bounds for {place}{_named(access.buffer)}, which has extent "
            f"{extent}",
            frame,
            lane,
        )

    def undefined(self, access: Load, index: list[int], frame: Frame, lane: int) -> KernelFault:
        """Return the fault of a load of an element that was never stored."""
        return self.fault(
            f"{self._actor()} reads {element_text(access, index)} of {_named(access.buffer)}, "
            "which was never stored",
            frame,
            lane,
        )

    def race(
        self, access: Load, index: list[int], rival: Rival, frame: Frame, lane: int
    ) -> KernelFault:
        """Return the fault of two accesses that nothing orders."""
        where = "in this statement"
        if rival.statement is not self.statement:
            where = "at " + self._line(rival.statement)
        who = "it" if rival.is_self else self.thread(rival.thread)
        if rival.level:
            who += " and others" + ("", " of its warp", " of its block", "")[rival.level]
        verb = rival.verb if rival.level else rival.verb + "s"
        return self.fault(
            f"{self._actor()} {self._verb(access)} {element_text(access, index)} of "
            f"{_named(access.buffer)}, which {who} {verb} {where}, and no barrier orders the two",
            frame,
            lane,
        )

    def missing(self, what: str, threads: list[int], frame: Frame, lane: int) -> KernelFault:
        """Return the fault of a statement that some threads of its scope do not reach."""
        named = ", ".join([self.thread(t) for t in threads[:FEW]])
        more = f" and {len(threads) - FEW} more" if len(threads) > FEW else ""
        return self.fault(f"this {what} is not reached by {named}{more}", frame, lane)

    def misaligned(
        self, access: Load, index: list[int], width: int, offset: int, frame: Frame, lane: int
    ) -> KernelFault:
        """Return the fault of a wide access at an address that its width does not divide."""
        return self.fault(
            f"misaligned vector access: {self._actor()} {self._verb(access)} {width} bytes at "
            f"{element_text(access, index)} of {_named(access.buffer)}, {offset} bytes from its "
            "start",
            frame,
            lane,
        )

    def touched(
        self, access: Load, index: list[int], how: str, frame: Frame, lane: int
    ) -> KernelFault:
        """Return the fault of a change of what a copy in flight reads or writes."""
        return self.fault(
            f"{element_text(access, index)} of {_named(access.buffer)} was {how} while the copy of "
            f"{self._actor()} was in flight",
            frame,
            lane,
        )

    def shuffled(self, what: str, frame: Frame, lane: int) -> KernelFault:
        """Return the fault of a use of a value that no thread offered."""
        reason = f"{what} is undefined: it was shuffled from a thread that does not exist"
        return self.fault(reason, frame, lane)

    def left_over(self, counter: Buffer, index: list[int], value: int) -> KernelFault:
        """Return the fault of a counter that is not 0 in the end."""
        element = f"{counter.name}[{', '.join(map(str, index))}]"
        return KernelFault(
            self.program.name,
            f"the kernel ended with {value} in {element} of {_named(counter)}",
            "as many blocks must arrive as the arrival counts",
        )

    def unwritten(self, buffer: Buffer, index: list[int]) -> KernelFault:
        """Return the fault of an output element that no thread stored."""
        element = f"{buffer.name}[{', '.join(map(str, index))}]"
        return KernelFault(
            self.program.name, f"the kernel ended without storing {element} of {_named(buffer)}"
        )

    def fault(self, reason: str, frame: Frame, lane: int) -> KernelFault:
        """Return the fault `reason` of the running statement in one lane of `frame`."""
        return KernelFault(self._subject(), reason, self._place(frame, lane))

    def _subject(self) -> str:
        if self.statement is None:
            return self.program.name
        return f"{self.program.name}, {self._line(self.statement)}"

    def _line(self, statement: kir.Stmt) -> str:
        return "nest line {} '{}'".format(*self.line_of(statement))

    def line_of(self, statement: kir.Stmt) -> tuple[int, str]:
        """Return the number and the text of a statement's line in the nest."""
        number = self._numbers[statement]
        return number, self._texts[number - 1].strip()

    @cached_property
    def _numbers(self) -> dict[kir.Stmt, int]:
        return nest_lines(self.whole)

    @cached_property
    def _texts(self) -> list[str]:
        return print_nest(self.whole).splitlines()

    def thread(self, number: int) -> str:
        """Return how messages name the thread of this number in the launch."""
        block, thread = divmod(number, self.setting.threads)
        found = f"thread {along_dimensions(thread, *self.setting.block[:2])}"
        if self.setting.blocks == 1:
            return found
        return f"{found} of block {along_dimensions(block, *self.setting.grid[:2])}"

    def _actor(self) -> str:
        match self.statement:
            case kir.Store():
                return self.statement.tensor
            case kir.Let() | kir.Shuffle() | kir.Arrive():
                return self.statement.var.name
        return "the condition"

    def _verb(self, access: Load) -> str:
        node = self.statement
        if isinstance(node, kir.Store) and access is Load(node.storage, node.index, node.flat):
            return "writes"
        return "reads"

    def _place(self, frame: Frame, lane: int) -> str:
        numbers = [frame.at_lane(LaunchIndex(d), lane) or 0 for d in LAUNCH_DIMENSIONS]
        place = f"block {tuple(numbers[:3])}, thread {tuple(numbers[3:])}"
        return ", ".join([place, *[f"{name}={value}" for name, value in self.loops(frame, lane)]])

    def loops(self, frame: Frame, lane: int) -> list[tuple[str, int]]:
        """Return the loops around the statement; it may stand at two places, one of them runs."""
        for loops in self._places.get(self.statement, ()):
            values = [(v.name, frame.at_lane(v, lane)) for v in loops]
            known = [(name, value) for name, value in values if value is not None]
            if len(known) == len(values):
                return known
        return []

    @cached_property
    def _places(self) -> dict[kir.Stmt | None, list[list[Index]]]:
        """The loops around each place at which a statement stands."""
        found: dict[kir.Stmt | None, list[list[Index]]] = {}
        for node, ancestors in kir.walk(self.program.body):
            loops = [n.var for n in ancestors if isinstance(n, kir.Loop)]
            found.setdefault(node, []).append(loops)
        return found


def element_text(access: Load, index: list[int]) -> str:
    """Return the name of an element, as messages have it."""
    inner = ", ".join(map(str, index))
    return f"{access.buffer.name}{'.flat' if access.flat else ''}[{inner}]"


def _named(buffer: Buffer) -> str:
    return f"buffer {buffer.name} (tensor {buffer.tensor})"
