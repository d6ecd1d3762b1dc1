"""Text of records: dataclasses and what they refer to, for people and complete.

A record is a line, ``Kind field=value field=value``, with the records that it holds below it,
indented; fields that have their default are left out. What has an identity (buffers, loop indices,
temporaries, axes) or is named often (sizes, places in the user's code) is a *member*: it stands
once, in a table in front, as ``label = Kind field=value``, and is named by its label: its name,
which is then no field of the line, with ``~2``, ``~3``… where several have one name.

The fields are those of the classes themselves, which are also what a pickle holds; the first line
therefore carries the number of the pickles' schema.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

from loopnest.base import pickling
from loopnest.base.errors import NotSupported
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import LAUNCH_DIMENSIONS
from loopnest.scalar.expr import (
    Arg,
    Const,
    Expr,
    Index,
    Load,
    Local,
    Op,
    ScalarParam,
    Symbol,
)
from loopnest.scalar.expr_text import TextFormat
from loopnest.scalar.op_table import OPS
from loopnest.scalar.origin import Origin

HEADER = "# loopnest program"
"""The first line, followed by the number of the schema."""
LAST = "# end"
"""The last line, so that a text that was cut off is none."""
RESERVED = frozenset(
    {
        *("True", "False", "None", "inf", "nan", "and", "or", "not"),
        *(dimension.value for dimension in LAUNCH_DIMENSIONS),
    }
)
"""Words of expressions, which are no labels."""


REQUIRED = object()
"""The default of a field that has none."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record: its type, and its default."""

    type: Any
    default: Any = REQUIRED


@dataclass(frozen=True, slots=True)
class MemberKind:
    """A class whose objects stand in the table.

    Args:
        make: returns the object of given fields; without fields where `late`.
        fields: what is written of it.
        late: whether the fields are set afterwards, since they name other members.
        word: what labels are made of where there is no name.
    """

    make: Callable[..., object]
    fields: Mapping[str, Field]
    late: bool = False
    word: str = "_"


_TYPES: dict[Any, Any] = {}


@cache
def record_fields(kind: type, *others: type) -> Mapping[str, Field]:
    """Return the fields of a dataclass; `others` are classes that its module does not import."""
    hints = typing.get_type_hints(kind, localns={other.__name__: other for other in others})
    # Equal types are one object, whose number is a quick key.
    return {
        f.name: Field(
            _TYPES.setdefault(hints[f.name], hints[f.name]),
            REQUIRED if f.default is MISSING else f.default,
        )
        for f in fields(kind)
    }


SCALAR_MEMBERS: Mapping[str, MemberKind] = {
    "Origin": MemberKind(Origin, record_fields(Origin), word="at"),
    "Symbol": MemberKind(Symbol, {"name": Field(str)}),
    "ScalarParam": MemberKind(ScalarParam, {"name": Field(str), "dtype": Field(DType)}),
    "Local": MemberKind(Local, {"name": Field(str), "dtype": Field(DType)}),
    "Index": MemberKind(Index, {"name": Field(str), "extent": Field(Expr)}),
}
"""The members that expressions name, and origins."""


def bare(label: str) -> str:
    """Return a label without its number: the name of what it labels, where it has that name."""
    return label.partition("~")[0]


def natural_type(op: str, args: tuple[Expr, ...]) -> DType:
    """Return the type of an operation that its text leaves out."""
    if OPS[op].result in ("bool", "uint32", "int64"):
        return dtypes.of(OPS[op].result)
    return args[1 if op == "where" else 0].dtype


def print_records(root: object, members: Mapping[str, MemberKind]) -> str:
    """Return the text of the record `root`; `members` are the kinds of the table."""
    writer = _RecordWriter(members)
    body = list(writer.record(root, ""))
    table = list(writer.table())
    return "\n".join([f"{HEADER} {pickling.SCHEMA}", *table, *body, LAST])


class _RecordWriter(TextFormat):
    """Writes records; labels members in the order in which they are named."""

    def __init__(self, members: Mapping[str, MemberKind]) -> None:
        self.members = members
        self.labels: dict[object, str] = {}
        self.counts: dict[str, int] = {}

    def record(self, value: object, pad: str) -> Iterator[str]:
        """Yield the lines of a record."""
        kind: Any = type(value)
        inline, below = [], []
        for f in fields(kind):
            content = getattr(value, f.name)
            if _same(content, f.default):
                continue
            if self._is_record(content):
                below.append((f.name, (content,)))
            elif isinstance(content, tuple) and content and self._is_record(content[0]):
                below.append((f.name, content))
            else:
                inline.append(f" {f.name}={self.value(content)}")
        yield f"{pad}{kind.__name__}{''.join(inline)}"
        for name, content in below:
            deeper = pad + "  "
            if name != "body":
                yield f"{deeper}{name}:"
                deeper += "  "
            for part in content:
                yield from self.record(part, deeper)

    def table(self) -> Iterator[str]:
        """Yield a line for each member, also those that are named only by other members."""
        done = 0
        while done < len(self.labels):
            for value, label in list(self.labels.items())[done:]:
                done += 1
                kind = type(value).__name__
                parts = [f"{label} = {kind}"]
                for name, field in self.members[kind].fields.items():
                    content = getattr(value, name)
                    default = bare(label) if name == "name" else field.default
                    if not _same(content, default):
                        parts.append(f"{name}={self.value(content)}")
                yield " ".join(parts)

    def value(self, content: object) -> str:
        """Return the text of what a field holds."""
        if self._is_member(content):
            return self.label(content)
        match content:
            case None | bool() | int():
                return repr(content)
            case str():
                return json.dumps(content)
            case Expr():
                return self.format(content)
            case DType():
                return content.name
            case Enum():
                return str(content.value)
            case tuple():
                return f"[{', '.join([self.value(part) for part in content])}]"
        kind = type(content).__name__
        raise NotSupported("text(full=True)", f"a {kind} has no text")

    def label(self, member: object) -> str:
        """Return the label of a member."""
        found = self.labels.get(member)
        if found is None:
            kind = self.members[type(member).__name__]
            word = (getattr(member, "name", "") if "name" in kind.fields else "") or kind.word
            word = word if word.isidentifier() else "_"
            number = self.counts.get(word, int(word in RESERVED)) + 1
            self.counts[word] = number
            found = word if number == 1 else f"{word}~{number}"
            self.labels[member] = found
        return found

    def _is_member(self, content: object) -> bool:
        return type(content).__name__ in self.members

    def _is_record(self, content: object) -> bool:
        plain = isinstance(content, (Expr, DType)) or self._is_member(content)
        return is_dataclass(content) and not plain

    # Expressions: as in the nest, with the types that a reader could not tell

    def format(self, node: Expr, level: int = 0) -> str:
        if isinstance(node, Arg):
            return f"${node.number}:{node.dtype.name}"
        return super().format(node, level)

    def name(self, node: Index | Symbol | ScalarParam | Local) -> str:
        return self.label(node)

    def literal(self, node: Const, level: int) -> str:
        text = repr(node.value)
        plain = node.dtype in (dtypes.index, dtypes.float32, dtypes.bool_)
        return text if plain else f"{text}:{node.dtype.name}"

    def load(self, node: Load) -> str:
        inner = ", ".join([self.format(a) for a in node.args])
        return f"{self.label(node.buffer)}{'.flat' if node.flat else ''}[{inner}]"

    def operation(self, node: Op) -> tuple[str, int]:
        own = node.op == "cast" or node.dtype is natural_type(node.op, node.args)
        if own and not (node.op == "neg" and isinstance(node.args[0], Const)):
            return super().operation(node)
        mark = "" if own else f":{node.dtype.name}"
        return f"{node.op}{mark}({', '.join([self.format(a) for a in node.args])})", 12


def _same(content: object, default: object) -> bool:
    return content is default or (type(content) is type(default) and content == default)
