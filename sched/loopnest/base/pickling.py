"""Pickles: the schema that they carry, and tables of objects that refer to one another.

What a pickle of a fusion, a kernel or a compiled function holds may change with loopnest. Each
carries the number of the schema, in front of all else, so that another version says a sentence
instead of failing somewhere inside.

Objects that refer to each other (tensors, their axes and the transforms between them) are stored
as a table: first which objects there are, then what each holds, where the others stand as numbers.
A chain of any length is then stored without recursion, and stays the graph that it was.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import Any

from loopnest.base.errors import LoopnestError

SCHEMA = 25
"""Grows whenever a pickled class gets other fields, or a field another meaning."""

State = Mapping[str, Any]
"""What an object holds: the values of its fields."""


class Stamp:
    """The schema of the pickle that it stands in; the first thing that is loaded of it."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Callable[[object], Stamp], tuple[int]]:
        return checked, (SCHEMA,)


STAMP = Stamp()


def checked(schema: object) -> Stamp:
    """Return the stamp of a pickle whose schema this version reads.

    Raises:
        LoopnestError: it has another one.
    """
    if schema != SCHEMA:
        raise LoopnestError(
            "unpickling",
            f"the pickle has schema {schema}, but this version of loopnest reads schema {SCHEMA}",
            "make it again with this version",
        )
    return STAMP


class _Writer(pickle.Pickler):
    """Writes the members of a table as numbers."""

    def __init__(self, file: BytesIO, members: Sequence[object]) -> None:
        super().__init__(file, protocol=4)
        self._numbers = {id(member): number for number, member in enumerate(members)}

    def persistent_id(self, obj: object) -> int | None:
        return self._numbers.get(id(obj))


class _Reader(pickle.Unpickler):
    """Reads what a `_Writer` wrote."""

    members: Sequence[object] = ()

    def persistent_load(self, number: Any) -> object:
        return self.members[number]


def dump_table(value: object, members: Sequence[object], state: Callable[[Any], State]) -> bytes:
    """Return `value` with the objects that it refers to.

    Args:
        value: anything that can be pickled, but for what it has of the members.
        members: objects told apart by identity, which may refer to each other.
        state: returns the fields of a member to keep.
    """
    file = BytesIO()
    writer = _Writer(file, members)
    kinds = list(dict.fromkeys([type(member) for member in members]))
    place = {kind: number for number, kind in enumerate(kinds)}
    writer.dump(kinds)
    writer.dump([place[type(member)] for member in members])
    writer.dump(([dict(state(member)) for member in members], value))
    return file.getvalue()


def load_table(data: bytes) -> Any:
    """Return the value of a table, with new members."""
    reader = _Reader(BytesIO(data))
    kinds = reader.load()
    members = [kinds[number].__new__(kinds[number]) for number in reader.load()]
    reader.members = members
    states, value = reader.load()
    for member, fields in zip(members, states, strict=True):
        for name, content in fields.items():
            object.__setattr__(member, name, content)
    return value


def fields_of(member: Any) -> State:
    """Return what an object holds, by field."""
    found = member.__getstate__()
    plain, slots = found if isinstance(found, tuple) else (found, None)
    return {**(plain or {}), **(slots or {})}
