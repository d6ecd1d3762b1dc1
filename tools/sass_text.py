"""Read disassembled machine code: instructions, basic blocks, loops, and what stands in them.

Reads what nvdisasm and cuobjdump print (``--print-code``, ``--dump-sass``). Only what a reader of
performance asks is kept: opcodes, and where control goes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

_INSTRUCTION = re.compile(
    r"^\s*/\*(?P<address>[0-9a-f]{4,})\*/\s+(?:@(?P<guard>!?U?P[\dT]+)\s+)?"
    r"(?P<opcode>[A-Z][\w.]*)\s*(?P<operands>[^;]*?)\s*;"
)
_LABEL = re.compile(r"^(?P<name>[.$\w]+):\s*$")
_TARGET = re.compile(r"`\((?P<label>[^)]+)\)|\b0x(?P<address>[0-9a-f]+)\s*$")
_SECTION = re.compile(r"^\s*\.section\s+\.text\.([^,\s]+)|^\s*Function\s*:\s*(\S+)")

_ENDS = ("BRA", "EXIT", "RET", "BRX", "JMP", "JMX", "KILL", "BPT")
_FLOATS = ("FADD", "FMUL", "FFMA", "FMNMX", "FMNMX3", "MUFU", "FSEL", "FSET", "FSETP", "FCHK",
           "HADD2", "HMUL2", "HFMA2", "HMNMX2", "DADD", "DMUL", "DFMA")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction; `guard` is the predicate that it runs under, such as "!P0", or ""."""

    address: int
    guard: str
    opcode: str
    operands: str

    @property
    def name(self) -> str:
        """The opcode without its modifiers: "LDG" of "LDG.E.128"."""
        return self.opcode.partition(".")[0]

    @property
    def is_slow_call(self) -> bool:
        """Whether it calls the slow path of a division or a root, as the compiler places them."""
        return self.name == "CALL" and "slowpath" in self.operands

    @property
    def is_far_jump(self) -> bool:
        """Whether it calls a label of the kernel itself, as ptxas writes some jumps for sm_80."""
        return self.name == "CALL" and self.operands.startswith("`(.L_")

    @property
    def bits(self) -> int:
        """The bits of a thread's access to memory: 32 where the opcode says nothing."""
        parts = self.opcode.split(".")[1:]
        for part in parts:
            if part in ("64", "128", "256"):
                return int(part)
            if part in ("U8", "S8"):
                return 8
            if part in ("U16", "S16"):
                return 16
        return 32


@dataclass(frozen=True, slots=True)
class Block:
    """Instructions that run one after another, and the places of the blocks that may follow."""

    instructions: tuple[Instruction, ...]
    successors: tuple[int, ...]


@dataclass(frozen=True)
class Code:
    """Some instructions, and counts of what they are."""

    instructions: tuple[Instruction, ...]

    def __len__(self) -> int:
        return len(self.instructions)

    @cached_property
    def names(self) -> Counter[str]:
        """How often each opcode stands here, without modifiers."""
        return Counter([i.name for i in self.instructions])

    @property
    def floats(self) -> int:
        """Instructions of floating-point arithmetic; products of 0 are how constants are loaded."""
        return len(
            [i for i in self.instructions if i.name in _FLOATS and "-RZ, RZ," not in i.operands]
        )

    def accesses(self, name: str) -> tuple[int, int]:
        """Return how many accesses `name` ("LDG") there are: those of 16 bytes, and all."""
        found = [i for i in self.instructions if i.name == name]
        return sum([i.bits >= 128 for i in found]), len(found)


@dataclass(frozen=True)
class Function:
    """A kernel: its basic blocks, the first one being the entry.

    Args:
        name: as the cubin has it.
        blocks: in the order of their addresses.
        called: instructions of the functions that stand behind it in its section.
    """

    name: str
    blocks: tuple[Block, ...]
    called: int = 0

    @cached_property
    def usual(self) -> frozenset[int]:
        """The blocks that run without a slow path: neither calls to one, nor split warps' detours.

        A `BRA.DIV` leaves for a copy of the warp's next instructions where its threads have parted.
        """
        seen: set[int] = set()
        stack = [0] if self.blocks else []
        while stack:
            place = stack.pop()
            if place not in seen:
                seen.add(place)
                stack.extend(self._usual_successors(self.blocks[place]))
        return frozenset(seen)

    def _usual_successors(self, block: Block) -> Iterable[int]:
        last = block.instructions[-1]
        targets = block.successors
        if last.opcode.startswith("BRA.DIV"):
            targets = targets[1:]  # the target stands before the next block
        return [t for t in targets if not any(i.is_slow_call for i in self._of(t))]

    def _of(self, place: int) -> tuple[Instruction, ...]:
        return self.blocks[place].instructions

    def code(self, places: Iterable[int] | None = None) -> Code:
        """Return the instructions of some blocks: of the usual ones, unless it is said which."""
        chosen = sorted(self.usual if places is None else places)
        return Code(tuple([i for place in chosen for i in self._of(place) if i.name != "NOP"]))

    @property
    def unusual(self) -> int:
        """How many instructions stand on slow paths, in called functions and in parted warps."""
        aside = [n for n in range(len(self.blocks)) if n not in self.usual and not self._traps(n)]
        return len(self.code(aside)) + self.called

    def _traps(self, place: int) -> bool:
        """Whether a block is the endless loop that the assembler puts behind each function."""
        return self.blocks[place].successors == (place,)

    @cached_property
    def loops(self) -> tuple[frozenset[int], ...]:
        """The usual blocks of each loop, by the places of their first blocks.

        A loop is what can reach a jump back to a block without which that jump is never reached.
        """
        dominators = self._dominators()
        bodies: dict[int, set[int]] = {}
        for place in self.usual:
            for head in self._usual_successors(self.blocks[place]):
                if head in dominators[place]:
                    bodies.setdefault(head, {head}).update(self._reaching(place, head))
        return tuple([frozenset(bodies[head]) for head in sorted(bodies)])

    @cached_property
    def hot_loop(self) -> Code | None:
        """The innermost loop that stands in the most loops, the longest of these; None without one.

        How often a loop runs is not known here: depth stands for it.
        """
        found = [loop for loop in self.loops if not any(other < loop for other in self.loops)]
        if not found:
            return None

        def rank(loop: frozenset[int]) -> tuple[int, int]:
            return sum([loop <= other for other in self.loops]), len(self.code(loop))

        return self.code(max(found, key=rank))

    def _predecessors(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {place: [] for place in self.usual}
        for place in self.usual:
            for target in self._usual_successors(self.blocks[place]):
                found[target].append(place)
        return found

    def _reaching(self, place: int, head: int) -> set[int]:
        """Return the blocks that reach `place` without passing `head`."""
        predecessors = self._predecessors()
        seen, stack = {head}, [place]
        while stack:
            at = stack.pop()
            if at not in seen:
                seen.add(at)
                stack.extend(predecessors[at])
        return seen

    def _dominators(self) -> dict[int, set[int]]:
        """Return, of each usual block, those that every way from the entry to it passes."""
        predecessors = self._predecessors()
        found = {place: set(self.usual) for place in self.usual} | {0: {0}}
        changed = True
        while changed:
            changed = False
            for place in sorted(self.usual - {0}):
                above = set.intersection(*[found[p] for p in predecessors[place]]) | {place}
                if above != found[place]:
                    found[place], changed = above, True
        return found


def functions(text: str) -> dict[str, Function]:
    """Read all kernels of a disassembly, by name."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if start := _SECTION.match(line):
            lines = found.setdefault(start[1] or start[2], [])
        elif re.match(r"^//-{5,} \.(?!text\.)\S+ ", line):
            lines = []
        lines.append(line)
    return {name: function(name, lines) for name, lines in found.items()}


def function(name: str, lines: Sequence[str]) -> Function:
    """Read one kernel: instructions, with labels where nvdisasm prints them."""
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    entries: list[int] = []
    for line in lines:
        if label := _LABEL.match(line):
            labels[label["name"]] = len(instructions)
            if label["name"].startswith("$"):
                entries.append(len(instructions))
        elif found := _INSTRUCTION.match(line):
            address, guard, opcode, operands = found.groups(default="")
            instructions.append(Instruction(int(address, 16), guard, opcode, operands))
    end = min([at for at in entries if at > 0], default=len(instructions))
    called = len([i for i in instructions[end:] if i.name != "NOP"])
    called -= called > 0  # the endless loop behind it
    return Function(name, _blocks(instructions[:end], labels), called)


def _blocks(instructions: Sequence[Instruction], labels: dict[str, int]) -> tuple[Block, ...]:
    by_address = {i.address: place for place, i in enumerate(instructions)}
    jumps = {n: _target(i, labels, by_address) for n, i in enumerate(instructions) if _jumps(i)}
    count = len(instructions)
    starts = {0} | {at for at in jumps.values() if at is not None} | {n + 1 for n in jumps}
    ordered = sorted([at for at in starts if at < count])
    number = {start: place for place, start in enumerate(ordered)}
    blocks = []
    for start, after in zip(ordered, [*ordered[1:], count], strict=True):
        last = instructions[after - 1]
        next_ones = []
        target = jumps.get(after - 1)
        if target is not None and target < count:
            next_ones.append(number[target])
        if after < count and _goes_on(last):
            next_ones.append(number[after])
        blocks.append(Block(tuple(instructions[start:after]), tuple(dict.fromkeys(next_ones))))
    return tuple(blocks)


def _jumps(instruction: Instruction) -> bool:
    """Whether control leaves here; what calls a label of the kernel itself never returns."""
    return instruction.name in _ENDS or instruction.is_far_jump


def _goes_on(last: Instruction) -> bool:
    """Whether the instruction after `last` may be next: it does not jump, or on a condition."""
    if not _jumps(last):
        return True
    if last.guard not in ("", "PT", "UPT"):
        return True
    conditional = re.match(r"!?U?P\d\b|UR\d+\s*,|!?UP\d\b", last.operands)
    return last.name == "BRA" and conditional is not None


def _target(
    instruction: Instruction, labels: dict[str, int], by_address: dict[int, int]
) -> int | None:
    if instruction.name != "BRA" and not instruction.is_far_jump:
        return None
    found = _TARGET.search(instruction.operands)
    if found is None:
        return None
    if found["label"] is not None:
        return labels.get(found["label"])
    return by_address.get(int(found["address"], 16))
