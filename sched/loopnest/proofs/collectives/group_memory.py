"""The memory of a collective whose body runs on symbols: what each element of a buffer holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from loopnest.kir.buffers import Buffer
from loopnest.proofs.collectives.multisets import Bits, Spans, Sums
from loopnest.proofs.collectives.thread_values import Blocks, Value, Wrong
from loopnest.proofs.point_arrays import Array, Flags, Undecidable
from loopnest.scalar.enums import Memory

MOST_WORDS = 1 << 23
"""How large a buffer of symbols may be."""


@dataclass(slots=True)
class Room:
    """A buffer: elements of each block (SHARED), or of each thread (LOCAL).

    All that is known to be held is of one component; `other` says which elements hold another one.
    A register is one element of each thread: what it holds is exchanged as a whole, never written
    in place, so that loads need no copy.
    """

    room: int
    owner: Array
    held: Value
    other: Flags
    register: bool

    def set(self, value: Value, mask: Flags | None) -> None:
        """Let a register hold `value`, in the threads of `mask` where there is one."""
        held, component = self.held, self.held.component
        if component is None:
            component = value.component
        elif value.component not in (None, component):
            component = value.component
            self.other = self.other | held.known
            held = replace(held, known=np.zeros_like(held.known))
        if mask is None:
            self.other = np.zeros_like(self.other)
            self.held = replace(value, component=component)
            return
        self.other = self.other & ~mask
        self.held = value.chosen(mask, held, component)

    def put(self, value: Value, place: Array, rows: Any) -> None:
        """Let the elements at `place` hold what the threads `rows` have."""
        component = self.held.component
        if component is None:
            component = value.component
        elif value.component not in (None, component):
            component = value.component
            self.other |= self.held.known
            self.held.known[:] = False
        self.other[place] = False
        held = self.held
        held.held.put(place, value.held.take(rows))  # type: ignore[arg-type]
        held.known[place] = value.known[rows]
        held.which[place] = value.which[rows]
        literal = held.literal
        if literal is None and value.literal is not None:
            literal = np.full(held.known.size, -1, np.int64)
        if literal is not None:
            literal[place] = -1 if value.literal is None else value.literal[rows]
        self.held = Value(held.held, held.known, held.which, component, literal)


class GroupMemory:
    """The buffers that the body of a collective made, of all threads that are run together."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._rooms: dict[Buffer, Room] = {}

    def __contains__(self, buffer: Buffer) -> bool:
        return buffer in self._rooms

    def __getitem__(self, buffer: Buffer) -> Room:
        return self._rooms[buffer]

    def allocate(
        self, buffer: Buffer, room: int, kind: type[Bits] | type[Sums] | type[Spans]
    ) -> None:
        """Make a buffer of `room` elements a block or thread, which hold nothing yet.

        Raises:
            Undecidable: it is too large.
        """
        count = self._blocks.count
        private = buffer.memory is Memory.LOCAL
        owner = np.arange(count) if private else self._blocks.block
        size = room * (int(owner.max(initial=0)) + 1)
        if size * (-(-count // 64) if kind is Bits else 1) > MOST_WORDS:
            raise Undecidable(f"{buffer.name} is too large to be followed")
        nobody, never = np.full(size, -1, np.int64), np.zeros(size, np.bool_)
        nothing = Value(kind.empty(size, count), never, nobody, None)
        other = np.zeros(size, np.bool_)
        self._rooms[buffer] = Room(room, owner, nothing, other, private and room == 1)

    def put(self, buffer: Buffer, value: Value, place: Array, mask: Flags) -> None:
        """Store a value: `place` is the number of its element, in each thread of `mask`.

        Raises:
            Wrong: two threads store one element.
        """
        space = self._rooms[buffer]
        everyone = bool(mask.all())
        rows = slice(None) if everyone else np.flatnonzero(mask)
        if space.register:
            self._kill(buffer, rows)
            space.set(value, None if everyone else mask)
            return
        place = place[rows]
        _check_single(place, buffer)
        self._kill(buffer, rows)
        space.put(value, place, rows)

    def _kill(self, buffer: Buffer, rows: Any) -> None:
        """Forget what buffers in the same space hold, in the blocks or threads that store."""
        name = buffer.alias_of or buffer.name
        for other, space in self._rooms.items():
            if other is not buffer and (other.alias_of or other.name) == name:
                gone = np.zeros(int(space.owner.max(initial=0)) + 1, np.bool_)
                gone[space.owner[rows]] = True
                kept = np.repeat(~gone, space.room)
                space.held = replace(space.held, known=space.held.known & kept)
                space.other = space.other & kept


def _check_single(place: Array, buffer: Buffer) -> None:
    """Check that no two threads store one element."""
    writer = np.empty(int(place.max(initial=-1)) + 1, np.int64)
    writer[place] = np.arange(place.size)
    if (writer[place] != np.arange(place.size)).any():
        raise Wrong(f"two threads store one element of {buffer.name}")
