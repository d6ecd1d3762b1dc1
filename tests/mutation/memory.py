"""The memory of `mutation.machine`: values, and who used each element last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import Buffer

if TYPE_CHECKING:
    from mutation.machine import Thread


class Undefined:
    """The value of an element that was never stored."""


UNDEFINED = Undefined()


class Storage:
    """A shared or global buffer that is written: values, and who used each element last."""

    __slots__ = ("buffer", "instance", "linked", "number", "readers", "values", "writers")

    def __init__(self, number: int, buffer: Buffer, values: list[Any]) -> None:
        self.number, self.buffer, self.values = number, buffer, values
        self.writers: list[Any] = [None] * len(values)
        self.readers: list[Any] = [None] * len(values)
        self.instance: list[int] = [0] * len(values)
        self.linked: list[Storage] = []

    def link(self, others: Any) -> None:
        """Find the buffers that share this one's space."""
        root = self.buffer.alias_of or self.buffer.name
        for other in others:
            if other is not self and root in (other.buffer.alias_of, other.buffer.name):
                self.linked.append(other)
                other.linked.append(self)

    def read(self, thread: Thread, place: int) -> object:
        """Return an element's value, UNDEFINED where it has none here; note the access."""
        machine = thread.machine
        writer = self._other(thread, place)
        if writer is not None:
            machine.broke("race", thread, self.buffer, (place,), writer[0])
        readers = self.readers[place]
        if readers is None:
            readers = self.readers[place] = {}
        if thread.atomic != self.number:  # the store of the same step stands for both
            readers[thread] = machine.moment(thread)
        value = self.values[place]
        if self.buffer.memory is Memory.SHARED:
            current = self.instance[place] == thread.instances[self.number]
            return value if current else UNDEFINED
        return value

    def write(self, thread: Thread, place: int, value: object) -> None:
        """Storage an element; note the access."""
        self.race(thread, place, value)
        self.values[place] = value
        alone = thread.atomic == self.number
        self.writers[place] = (*thread.machine.moment(thread), value, alone)
        self.readers[place] = None
        self.instance[place] = thread.instances.get(self.number, 0)
        for other in self.linked:
            mine, size = self.buffer.dtype.size, other.buffer.dtype.size
            for element in range(place * mine // size, -(-(place + 1) * mine // size)):
                if element < len(other.values):
                    other.race(thread, element, UNDEFINED)
                    other.values[element] = UNDEFINED
                    other.writers[element] = self.writers[place]

    def _other(self, thread: Thread, place: int) -> Any:
        """Return who stored an element without an order to `thread`; updates in one step have one.

        The machine runs a statement of a thread as a whole, as an atomic update must be.
        """
        writer = self.writers[place]
        if writer is None or writer[0] is thread or thread.machine.ordered(writer, thread):
            return None
        return None if writer[6] and thread.atomic == self.number else writer

    def race(self, thread: Thread, place: int, value: object) -> None:
        """Note where a store races with earlier accesses."""
        machine = thread.machine
        writer = self._other(thread, place)
        if writer is not None:
            same = writer[5] == value or (value != value and writer[5] != writer[5])
            rule = "equal race" if same else "race"
            machine.broke(rule, thread, self.buffer, (place,), writer[0])
        for other, moment in (self.readers[place] or {}).items():
            if other is not thread and not machine.ordered(moment, thread):
                machine.broke("race", thread, self.buffer, (place,), other)
