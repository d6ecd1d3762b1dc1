"""Text of records: dataclasses and what they refer to, for people and complete.

A record is a line, ``Kind field=value field=value``, with the records that it holds below it,
indented; fields that have their default are left out. What has an identity (buffers, loop indices,
temporaries, axes) or is named often (sizes, places in the user's code) is a *member*: it stands
once, in a table in front, as ``label = Kind field=value``, and is named by its label: its name,
which is then no field of the line, with ``~2``, ``~3``… where several have one name.

The fields are those of the classes themselves, which are also what a pickle holds; the first line
therefore carries the number of the pickles' schema.

Read back, a line is taken apart at its fields; their values are expressions in Python's grammar,
but for some marks (types, labels with numbers, holes of templates), which are written in its signs
first. Equal values of a field are read once.
"""

from __future__ import annotations

import ast
import json
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from keyword import kwlist
from typing import Any, NoReturn

from loopnest.base import pickling
from loopnest.base.errors import LoopnestError, NotSupported, kind_of
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import LAUNCH_DIMENSIONS, ParallelType
from loopnest.scalar.expr import (
    Arg,
    Const,
    Coordinate,
    Expr,
    Index,
    LaunchIndex,
    Load,
    Local,
    Number,
    Op,
    ScalarParam,
    Symbol,
    TextFormat,
)
from loopnest.scalar.expr_parser import TYPES, ExprParser, Unreadable
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


# Reading


_STRING = r'"(?:[^"\\]|\\["\\/bfnrtu])*"'
_NUMBER = r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_LABEL = r"[^\W\d]\w*(?:~\d+)?"
_LINE = re.compile(rf"^( *)(?:({_LABEL}) = )?(\w*)(:$)?(.*)$", re.MULTILINE)
_FIELD = re.compile(rf'\s*(?=\S)([^\s=]*)(?:=((?:[^" ]+|{_STRING}| (?!\w+=[^=]))*))?')
_TOKEN = rf"\s*({_STRING}|{_NUMBER}|{_LABEL}|[$#]\d+|[=!<>]=|<<|>>|//|[-+*/%&|^~<>=()\[\],:.])"
_WORDS = "|".join([word for word in kwlist if word not in RESERVED])
_MARKS = re.compile(
    rf"({_STRING})(?!\s*\")|(?<=\w)(~)(?=\d)|\$(\d+):(\w+)|#(\d+)|\b({_NUMBER}|inf|nan):(\w+)|(:)"
    rf"|\b({_WORDS})\b(?!~)|[^\w\s\-+*/%&|^~<>=!()\[\],.]"
)
_TILDE = "·"
"""Stands for the ~ of a label in Python's names, and behind a label that is a word of Python's."""
_PLAIN: Mapping[type, str] = {
    str: "a text in double quotes",
    bool: "one of True, False",
    int: "an integer",
}
_LAUNCH = {dimension.value for dimension in LAUNCH_DIMENSIONS}


def parse_records(
    text: str, root: type, members: Mapping[str, MemberKind], names: tuple[type, ...]
) -> Any:
    """Return the record of class `root` that `text` is of.

    Args:
        text: of `record_text.print_records`.
        root: the class of the record.
        members: the kinds of the table.
        names: classes that modules of records name without importing them.

    Raises:
        LoopnestError: another version wrote the text, or a line is damaged.
    """
    return _RecordParser(text, members, names).read(root)


def _python(mark: re.Match[str]) -> str:
    """Return what stands for a mark in Python's grammar; its brackets and @ occur nowhere else."""
    text, tilde, arg, arg_type, coordinate, number, number_type, colon, word = mark.groups()
    if text or colon:
        return text or "."
    if tilde or word:
        return f"{word or ''}{_TILDE}"
    if arg:
        return f"{{{arg}: {arg_type}}}"
    if coordinate:
        return f"{{{coordinate}}}"
    return f"({number}@{number_type})" if number else "?"


class _RecordParser(ExprParser):
    """Reads line by line; `number` is the line at hand, counted from 1."""

    def __init__(
        self, text: str, members: Mapping[str, MemberKind], names: tuple[type, ...]
    ) -> None:
        self.lines = text.rstrip("\n").split("\n")
        self.rows = _LINE.findall("\n".join(self.lines))
        self.kinds, self.names = members, names
        self.number = 1
        self.table: dict[str, int] = {}
        self.made: dict[str, Any] = {}
        self.values: dict[tuple[int, str], Any] = {}

    def read(self, root: type) -> Any:
        """Return the record of the whole text."""
        first = f"{HEADER} {pickling.SCHEMA}"
        if self.lines[0] != first:
            self.fail(f"it is '{self.lines[0]}'", f"'{first}', as this version writes it")
        if self.lines[-1] != LAST:
            self.number = len(self.lines)
            self.fail("the text ends early", f"'{LAST}' as its last line")
        self.number = 2
        self.members()
        result = self.record({root.__name__: root}, 0)
        if self.number != len(self.lines):
            self.fail(f"'{self.line.strip()}' is left over", f"'{LAST}'")
        return result

    @property
    def line(self) -> str:
        """The line at hand."""
        return self.lines[self.number - 1]

    @property
    def row(self) -> tuple[str, str, str, str, str]:
        """Its parts: spaces, the label, the first word, the colon of a section, the fields."""
        found: tuple[str, str, str, str, str] = self.rows[self.number - 1]
        return found

    def fail(self, found: str, expected: str) -> NoReturn:
        """Say what stands at the line at hand, and what should."""
        rest = re.sub(rf"^(?:{_TOKEN})*", "", self.line).strip()
        if rest and self.number > 1 and self.line != LAST:
            found, expected = f"'{rest}' cannot be read", "a name, a number or a sign"
        raise LoopnestError(f"parse, line {self.number}", found, f"expected {expected}")

    # Members

    def members(self) -> None:
        """Read the table; a member is made when it is first named."""
        while label := self.row[1]:
            if label in self.table:
                self.fail(f"{label} stands twice in the table", "one line a member")
            self.table[label] = self.number
            self.number += 1
        end = self.number
        for label in self.table:
            self.member(label)
        for label, number in self.table.items():
            self.number = number
            kind = self.declared()
            if kind.late:  # it may name what names it
                for name, content in self.member_fields(kind).items():
                    object.__setattr__(self.made[label], name, content)
        self.number = end

    def member(self, label: str) -> Any:
        """Return what a label stands for; its line is read where nothing is made of it yet."""
        if label not in self.made:
            here, self.number = self.number, self.table[label]
            self.made[label] = None
            kind = self.declared()
            self.made[label] = kind.make(**({} if kind.late else self.member_fields(kind)))
            self.number = here
        return self.made[label]

    def declared(self) -> MemberKind:
        """Return the kind of the member at hand."""
        word = self.row[2]
        if word not in self.kinds:
            self.fail(f"'{word}' is no kind of a member", f"one of {', '.join(self.kinds)}")
        return self.kinds[word]

    def member_fields(self, kind: MemberKind) -> dict[str, Any]:
        """Read the fields of a member, whose name is its label where it has no other."""
        given = self.inline(kind.fields)
        if "name" in kind.fields:
            given.setdefault("name", bare(self.row[1]))
        return self.complete(kind.fields, given)

    # Records

    def record(self, allowed: Mapping[str, type], indent: int) -> Any:
        """Read a record with what is below it."""
        start = self.number
        word = self.row[2]
        if word not in allowed:
            self.fail(f"'{word}' stands here", f"one of {', '.join(allowed)}")
        known = record_fields(allowed[word], *self.names)
        given = self.inline(known)
        self.number += 1
        self.below(known, given, indent + 2)
        here, self.number = self.number, start
        complete = self.complete(known, given)
        self.number = here
        return allowed[word](**complete)

    def below(self, known: Mapping[str, Field], given: dict[str, Any], indent: int) -> None:
        """Read the records that one holds, which stand below it."""
        while self.indent(indent) == indent:
            name, section = self.row[2:4] if self.row[3] else ("body", "")
            if name not in known or name in given:
                self.fail(f"'{self.line.strip()}' stands here", _open_fields(known, given))
            self.number += len(section)
            inner = indent + 2 * len(section)
            allowed = _classes(known[name].type)
            found = []
            while self.indent(inner) == inner and not self.row[3]:
                found.append(self.record(allowed, inner))
            many = typing.get_origin(known[name].type) is tuple
            if not many and len(found) != 1:
                self.fail(f"{name} holds {len(found)} records", "one")
            given[name] = tuple(found) if many else found[0]

    def indent(self, expected: int) -> int:
        """Return by how much the line at hand is indented, no more than expected."""
        found = len(self.row[0])
        if found > expected:
            self.fail(f"it is indented by {found}", f"{expected} spaces")
        return -1 if self.number == len(self.lines) else found

    # Fields

    def inline(self, known: Mapping[str, Field]) -> dict[str, Any]:
        """Read the fields of the line at hand."""
        given: dict[str, Any] = {}
        for name, text in _FIELD.findall(self.row[4]):
            if name not in known or name in given:
                self.fail(f"'{name or '='}' stands here", _open_fields(known, given))
            kind = known[name].type
            found = self.values.get((id(kind), text), REQUIRED)
            if found is REQUIRED:
                found = self.values[id(kind), text] = self.value(kind, text)
            given[name] = found
        return given

    def complete(self, known: Mapping[str, Field], given: dict[str, Any]) -> dict[str, Any]:
        """Return all fields, with the defaults of those that were left out."""
        for name, field in known.items():
            if name not in given:
                if field.default is REQUIRED:
                    self.fail(f"the field {name} is missing", f"{name}=…")
                given[name] = field.default
        return given

    # Values

    def value(self, kind: Any, text: str) -> Any:
        """Read what a field of type `kind` holds."""
        try:
            return _reader(kind)(self, self.tree(text))
        except (Unreadable, SyntaxError, ValueError) as error:
            after = re.match(_TOKEN, self.line.partition(f"={text}")[2])
            if getattr(error, "offset", 1) or not after:
                self.fail(f"'{text}' stands here", _expected(kind))
            self.fail(f"'{after[1]}' stands here", "a label of the table")

    def tree(self, text: str) -> ast.expr:
        """Return the tree of a value."""
        if text in self.table:
            return ast.Name(text)
        if text.startswith('"'):
            return ast.Constant(json.loads(text))
        return ast.parse(_MARKS.sub(_python, text), mode="eval").body

    def plain(self, kind: type, node: ast.expr) -> Any:
        """Return a text, a truth value or an integer."""
        read = node if kind is str else self.build(node)
        value = getattr(read, "value", None)
        if type(value) is not kind:
            self.stands(node, _PLAIN[kind])
        if isinstance(value, str):
            # JSON writes two escapes for a character beyond 16 bits.
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
        return value

    def one_of(self, kinds: tuple[Any, ...], node: ast.expr) -> Any:
        """Return None, or what is of the other type; an int where a literal has both."""
        if type(None) in kinds and isinstance(node, ast.Constant) and node.value is None:
            return None
        *rest, kind = [kind for kind in kinds if kind is not type(None)]
        found = _reader(kind)(self, node)
        return found.value if int in rest and isinstance(found, Const) else found

    def items(self, kinds: tuple[Any, ...], node: ast.expr) -> tuple[Any, ...]:
        """Return what is in a list."""
        if not isinstance(node, ast.List):
            self.stands(node, "'['")
        if kinds[-1] is Ellipsis:
            kinds = kinds[:1] * len(node.elts)
        if len(node.elts) != len(kinds):
            self.fail(f"a list has {len(node.elts)} parts", f"{len(kinds)}")
        return tuple(
            [_reader(kind)(self, part) for kind, part in zip(kinds, node.elts, strict=True)]
        )

    def word(self, values: Mapping[str, Any], node: ast.expr) -> Any:
        """Return what one of some words stands for."""
        word = node.id.removesuffix(_TILDE) if isinstance(node, ast.Name) else ""
        if word not in values:
            self.stands(node, f"one of {', '.join(values)}")
        return values[word]

    def labelled(self, name: str) -> Any:
        """Return the member of which a tree has the label."""
        label = name.replace(_TILDE, "~").removesuffix("~")
        if label not in self.table:
            self.fail(f"'{label}' stands here", "a label of the table")
        return self.member(label)

    def one(self, kind: type, node: ast.expr) -> Any:
        """Return an expression or a member."""
        if issubclass(kind, Expr) or not isinstance(node, ast.Name):
            found: Any = self.build(node)
        else:
            found = self.labelled(node.id)
        if not isinstance(found, kind):
            self.fail(f"{kind_of(found)} stands here", f"a {kind.__name__}")
        return found

    def stands(self, node: ast.expr, expected: str) -> NoReturn:
        """Say what stands instead of what should."""
        self.fail(f"'{ast.unparse(node).replace(_TILDE, '~')}' stands here", expected)

    # Expressions

    def other(self, node: ast.expr) -> Expr:
        match node:
            case ast.Dict(keys=[ast.Constant(value=int(number))], values=[dtype]):
                return Arg(number, self.word(TYPES, dtype))
            case ast.Set(elts=[ast.Constant(value=int(number))]):
                return Coordinate(number)
            case ast.BinOp(left=number, op=ast.MatMult(), right=dtype):
                return self.build(number, self.word(TYPES, dtype))
            case ast.Call(func=ast.Attribute(value=ast.Name(id=op), attr=dtype), args=args) if (
                dtype in TYPES
            ):
                return self.operation(op, self.operands(args, None), TYPES[dtype])
        return super().other(node)

    def name(self, name: str) -> Expr:
        if name in _LAUNCH:
            return LaunchIndex(ParallelType(name))
        found = self.labelled(name)
        if not isinstance(found, Expr):
            self.fail(f"{kind_of(found)} stands in an expression", "a value")
        return found

    def load(self, buffer: str, index: tuple[Expr, ...], *, flat: bool) -> Load:
        found = self.labelled(buffer)
        if not hasattr(found, "dtype"):
            self.fail(f"{kind_of(found)} stands in an expression", "a value")
        return Load(found, index, flat)

    def literal(self, value: Number, want: DType | None) -> Expr:
        if want is not None and isinstance(value, float) != want.is_float:
            self.fail(f"{value}:{want} is no literal", f"one of {want}")
        return super().literal(value, want)

    def operation(self, op: str, args: tuple[Expr, ...], dtype: DType | None = None) -> Expr:
        if op not in OPS or op == "cast":
            self.fail(f"'{op}' is called", "an operation or a type")
        if len(args) != OPS[op].arity:
            self.fail(f"{op} has {len(args)} operands", f"{OPS[op].arity}")
        return Op(op, args, dtype or natural_type(op, args))


def _open_fields(known: Mapping[str, Field], given: Mapping[str, Any]) -> str:
    """Return which fields may still be given, for a message."""
    names = [name for name in known if name not in given]
    return f"one of the fields {', '.join(names)}" if names else "the end of the line"


@cache
def _reader(kind: Any) -> Callable[[_RecordParser, ast.expr], Any]:
    """Return what makes the value of a field of type `kind` of a tree."""
    parts = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        return lambda parser, node: parser.items(parts, node)
    if parts:
        return lambda parser, node: parser.one_of(parts, node)
    if kind in _PLAIN:
        return lambda parser, node: parser.plain(kind, node)
    if kind is DType or issubclass(kind, Enum):
        words = TYPES if kind is DType else {str(member.value): member for member in kind}
        return lambda parser, node: parser.word(words, node)
    return lambda parser, node: parser.one(kind, node)


def _expected(kind: Any) -> str:
    """Return what stands for a field of type `kind`, for a message."""
    if parts := typing.get_args(kind):
        return "a list" if typing.get_origin(kind) is tuple else _expected(parts[0])
    if issubclass(kind, Enum):
        return f"one of {', '.join([str(member.value) for member in kind])}"
    return _PLAIN.get(kind) or ("an expression" if issubclass(kind, Expr) else "a label")


@cache
def _classes(kind: Any) -> Mapping[str, type]:
    """Return the classes of the records in a field of type `kind`, by name."""
    if is_dataclass(kind):
        found = typing.cast("type", kind)
        return {found.__name__: found}
    return {name: c for part in typing.get_args(kind) for name, c in _classes(part).items()}
