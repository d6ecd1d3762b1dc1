"""The sentences of a broken rule: which statement, which element, which thread."""

from __future__ import annotations

from loopnest import kir
from loopnest.buffers import Buffer
from loopnest.enums import LAUNCH_DIMENSIONS
from loopnest.errors import KernelFault
from loopnest.expr import LaunchIndex, Load
from loopnest.interpreter.frame import Frame
from loopnest.printers.nest import nest_lines, print_nest


class FaultReport:
    """Make the KernelFault of a statement; `statement` is the one that runs."""

    def __init__(self, program: kir.Program) -> None:
        self.program = program
        self.statement: kir.Stmt | None = None

    def out_of_bounds(
        self, access: Load, index: list[int], axis: int, extent: int, frame: Frame, lane: int
    ) -> KernelFault:
        """Return the fault of an access beyond its buffer."""
        place = "" if access.flat else f"axis {axis} of "
        return self.fault(
            f"{self._actor()} {self._verb(access)} {_element(access, index)}: index {index[axis]} "
            f"is out of bounds for {place}{_named(access.buffer)}, which has extent {extent}",
            frame,
            lane,
        )

    def undefined(self, access: Load, index: list[int], frame: Frame, lane: int) -> KernelFault:
        """Return the fault of a load of an element that was never stored."""
        return self.fault(
            f"{self._actor()} reads {_element(access, index)} of {_named(access.buffer)}, "
            "which was never stored",
            frame,
            lane,
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
        number = nest_lines(self.program)[self.statement]
        text = print_nest(self.program).splitlines()[number - 1].strip()
        return f"{self.program.name}, nest line {number} '{text}'"

    def _actor(self) -> str:
        match self.statement:
            case kir.Store():
                return self.statement.tensor
            case kir.Let():
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
        return ", ".join([place, *[f"{name}={value}" for name, value in self._loops(frame, lane)]])

    def _loops(self, frame: Frame, lane: int) -> list[tuple[str, int]]:
        """Return the loops around the statement; it may stand at two places, one of them runs."""
        for node, ancestors in kir.walk(self.program.body):
            if node is self.statement:
                loops = [n.var for n in ancestors if isinstance(n, kir.Loop)]
                values = [(v.name, frame.at_lane(v, lane)) for v in loops]
                known = [(name, value) for name, value in values if value is not None]
                if len(known) == len(values):
                    return known
        return []


def _element(access: Load, index: list[int]) -> str:
    inner = ", ".join(map(str, index))
    return f"{access.buffer.name}{'.flat' if access.flat else ''}[{inner}]"


def _named(buffer: Buffer) -> str:
    return f"buffer {buffer.name} (tensor {buffer.tensor})"
