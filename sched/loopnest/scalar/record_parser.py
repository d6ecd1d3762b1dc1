"""Read the text of records back: the objects that `record_text` wrote, with new members."""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import Enum
from typing import Any, NoReturn

from loopnest.errors import LoopnestError, kind_of
from loopnest.scalar import dtypes, pickling
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import LAUNCH_DIMENSIONS, ParallelType
from loopnest.scalar.expr import (
    FALSE,
    TRUE,
    Arg,
    Const,
    Coordinate,
    Expr,
    LaunchIndex,
    Load,
    Op,
)
from loopnest.scalar.op_table import OPS
from loopnest.scalar.record_text import (
    HEADER,
    LAST,
    REQUIRED,
    Field,
    MemberKind,
    bare,
    natural_type,
    record_fields,
)

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\]|\\.)*")"""
    r"|(?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
    r"|(?P<name>[^\W\d]\w*(?:~\d+)?)"
    r"|(?P<hole>[$#]\d+)"
    r"|(?P<sign>==|!=|<=|>=|<<|>>|//|[-+*/%&|^~<>=()\[\],:.]))"
)
_INFIX = {info.infix: name for name, info in OPS.items() if info.infix and info.arity == 2}
_LAUNCH = {dimension.value for dimension in LAUNCH_DIMENSIONS}
_TYPES = {dtype.name: dtype for dtype in (*dtypes.ALL, dtypes.index)}
Token = tuple[str, str]
"""The kind of a token, a group of `_TOKEN` or "end", and its text."""


def parse_records(
    text: str, root: type, members: Mapping[str, MemberKind], names: Mapping[str, Any]
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
    return _RecordReader(text, members, names).read(root)


class _RecordReader:
    """Reads line by line; `number` is the line at hand, counted from 1."""

    def __init__(
        self, text: str, members: Mapping[str, MemberKind], names: Mapping[str, Any]
    ) -> None:
        self.lines = text.rstrip("\n").split("\n")
        self.kinds, self.names = members, names
        self.number = 1
        self.table: dict[str, object] = {}
        self.tokens: list[Token] = []
        self.at = 0
        self.fields: dict[type, dict[str, Field]] = {}

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
        result = self.record((root,), 0)
        if self.number != len(self.lines):
            self.fail(f"'{self.line.strip()}' is left over", f"'{LAST}'")
        return result

    @property
    def line(self) -> str:
        """The line at hand."""
        return self.lines[self.number - 1]

    def fail(self, found: str, expected: str) -> NoReturn:
        """Say what stands at the line at hand, and what should."""
        raise LoopnestError(f"parse, line {self.number}", found, f"expected {expected}")

    # Members

    def members(self) -> None:
        """Read the table: what names no member first, then what others name, then the rest."""
        waiting: list[tuple[int, MemberKind, object]] = []
        while re.match(r"[^\W\d]\w*(?:~\d+)? = ", self.line):
            label, kind = self.declared()
            if label in self.table:
                self.fail(f"{label} stands twice in the table", "one line a member")
            if kind.late:
                self.table[label] = kind.make()
                waiting.append((self.number, kind, self.table[label]))
            else:
                self.table[label] = None
            self.number += 1
        end = self.number
        for early in (True, False):
            self.fill(end, waiting, early=early)
        self.number = end

    def fill(self, end: int, waiting: list[tuple[int, MemberKind, object]], *, early: bool) -> None:
        """Make the members that name no others, or give the others their fields."""
        order = list(self.kinds.values())
        if early:
            for self.number in range(2, end):
                label, kind = self.declared()
                if not kind.late:
                    self.table[label] = kind.make(**self.member_fields(label, kind))
            return
        for self.number, kind, member in sorted(waiting, key=lambda w: (order.index(w[1]), w[0])):
            label, _ = self.declared()
            for name, content in self.member_fields(label, kind).items():
                object.__setattr__(member, name, content)

    def member_fields(self, label: str, kind: MemberKind) -> dict[str, Any]:
        """Read the fields of a member, whose name is its label where it has no other."""
        given = self.inline(kind.fields)
        if "name" in kind.fields:
            given.setdefault("name", bare(label))
        return self.complete(kind.fields, given)

    def declared(self) -> tuple[str, MemberKind]:
        """Read ``label = Kind``."""
        self.tokenize()
        label = self.take("name", "a label")
        self.expect("=")
        word = self.take("name", "the kind of a member")
        if word not in self.kinds:
            self.fail(f"'{word}' is no kind of a member", f"one of {', '.join(self.kinds)}")
        return label, self.kinds[word]

    # Records

    def record(self, allowed: tuple[type, ...], indent: int) -> Any:
        """Read a record with what is below it."""
        start = self.number
        self.tokenize()
        by_name = {kind.__name__: kind for kind in allowed}
        word = self.take("name", " or ".join(by_name))
        if word not in by_name:
            self.fail(f"'{word}' stands here", f"one of {', '.join(by_name)}")
        kind = by_name[word]
        known = self.fields_of(kind)
        given = self.inline(known)
        self.number += 1
        self.below(known, given, indent + 2)
        here, self.number = self.number, start
        complete = self.complete(known, given)
        self.number = here
        return kind(**complete)

    def below(self, known: Mapping[str, Field], given: dict[str, Any], indent: int) -> None:
        """Read the records that one holds, which stand below it."""
        while self.indent() >= indent:
            if self.indent() > indent:
                self.fail(f"it is indented by {self.indent()}", f"{indent} spaces")
            section = re.fullmatch(r" *(\w+):", self.line)
            name, inner = (section[1], indent + 2) if section else ("body", indent)
            if name not in known or name in given:
                self.fail(f"'{self.line.strip()}' stands here", self.open_fields(known, given))
            self.number += bool(section)
            found = []
            while self.indent() >= inner and not re.fullmatch(rf" {{{inner}}}(\w+):", self.line):
                if self.indent() > inner:
                    self.fail(f"it is indented by {self.indent()}", f"{inner} spaces")
                found.append(self.record(_classes(known[name].type), inner))
            many = typing.get_origin(known[name].type) is tuple
            if not many and len(found) != 1:
                self.fail(f"{name} holds {len(found)} records", "one")
            given[name] = tuple(found) if many else found[0]

    def indent(self) -> int:
        """Return by how much the line at hand is indented; -1 for the last one."""
        if self.number >= len(self.lines):
            return -1
        return len(self.line) - len(self.line.lstrip(" "))

    def fields_of(self, kind: type) -> dict[str, Field]:
        """Return the fields of a record."""
        if kind not in self.fields:
            self.fields[kind] = record_fields(kind, self.names)
        return self.fields[kind]

    def inline(self, known: Mapping[str, Field]) -> dict[str, Any]:
        """Read ``field=value`` up to the end of the line."""
        given: dict[str, Any] = {}
        while self.tokens[self.at][0] != "end":
            name = self.take("name", self.open_fields(known, given))
            if name not in known or name in given:
                self.fail(f"'{name}' stands here", self.open_fields(known, given))
            self.expect("=")
            given[name] = self.value(known[name].type)
        return given

    def open_fields(self, known: Mapping[str, Field], given: Mapping[str, Any]) -> str:
        """Return which fields may still be given, for a message."""
        names = [name for name in known if name not in given]
        return f"one of the fields {', '.join(names)}" if names else "the end of the line"

    def complete(self, known: Mapping[str, Field], given: dict[str, Any]) -> dict[str, Any]:
        """Return all fields, with the defaults of those that were left out."""
        for name, field in known.items():
            if name not in given and field.default is REQUIRED:
                self.fail(f"the field {name} is missing", f"{name}=…")
        return {name: given.get(name, field.default) for name, field in known.items()}

    # Values

    def value(self, kind: Any) -> Any:
        """Read what a field of type `kind` holds."""
        if typing.get_origin(kind) in (typing.Union, types.UnionType):
            return self.one_of(typing.get_args(kind))
        if typing.get_origin(kind) is tuple:
            return self.items(typing.get_args(kind))
        if kind is str:
            return json.loads(self.take("text", "a text in double quotes"))
        if kind is bool:
            return self.word({"True": True, "False": False})
        if kind is int:
            negative = self.accept("-")
            return int(self.take("number", "an integer")) * (-1 if negative else 1)
        if kind is DType:
            return self.word(_TYPES)
        if issubclass(kind, Enum):
            return self.word({str(member.value): member for member in kind})
        found = self.expression() if issubclass(kind, Expr) else self.member()
        if not isinstance(found, kind):
            self.fail(f"{kind_of(found)} stands here", f"a {kind.__name__}")
        return found

    def one_of(self, kinds: tuple[Any, ...]) -> Any:
        """Read None, or what is of the other type; an int where a literal has both."""
        if type(None) in kinds and self.accept("None"):
            return None
        kinds = tuple([kind for kind in kinds if kind is not type(None)])
        found = self.value(kinds[-1])
        return found.value if int in kinds and isinstance(found, Const) else found

    def items(self, kinds: tuple[Any, ...]) -> tuple[Any, ...]:
        """Read ``[a, b, c]``."""
        self.expect("[")
        found: list[Any] = []
        while not self.accept("]"):
            if found:
                self.expect(",")
            many = kinds[-1] is Ellipsis
            if not many and len(found) == len(kinds):
                self.fail(f"a list has more than {len(kinds)} parts", "']'")
            found.append(self.value(kinds[0] if many else kinds[len(found)]))
        if kinds[-1] is not Ellipsis and len(found) != len(kinds):
            self.fail(f"a list has {len(found)} parts", f"{len(kinds)}")
        return tuple(found)

    def word(self, values: Mapping[str, Any]) -> Any:
        """Read one of some words."""
        found = self.take("name", f"one of {', '.join(values)}")
        if found not in values:
            self.fail(f"'{found}' stands here", f"one of {', '.join(values)}")
        return values[found]

    def member(self) -> object:
        """Read a label."""
        label = self.take("name", "a label of the table")
        if label not in self.table:
            self.fail(f"'{label}' stands here", "a label of the table")
        return self.table[label]

    # Expressions

    def expression(self, level: int = 1) -> Expr:
        """Read an expression whose operators bind at least as tight as `level`."""
        left = self.prefixed()
        while True:
            op = _INFIX.get(self.tokens[self.at][1])
            if op is None or OPS[op].precedence < level:
                return left
            self.at += 1
            left = self.operation(op, (left, self.expression(OPS[op].precedence + 1)))

    def prefixed(self) -> Expr:
        """Read an operand with the signs in front of it."""
        if self.accept("not"):
            return self.operation("not", (self.expression(OPS["not"].precedence),))
        if self.accept("~"):
            return self.operation("bitnot", (self.expression(OPS["bitnot"].precedence),))
        if self.accept("-"):
            kind, text = self.tokens[self.at]
            if kind == "number" or text in ("inf", "nan"):
                return self.literal(-1)
            return self.operation("neg", (self.expression(OPS["neg"].precedence),))
        return self.operand()

    def operand(self) -> Expr:
        """Read a literal, a hole of a template, a name, an access, a call or a parenthesis."""
        kind, text = self.tokens[self.at]
        if kind == "number" or text in ("inf", "nan"):
            return self.literal(1)
        if self.accept("("):
            inner = self.expression()
            self.expect(")")
            return inner
        if kind == "hole":
            self.at += 1
            number = int(text[1:])
            return Coordinate(number) if text[0] == "#" else Arg(number, self.typed())
        name = self.take("name", "an expression")
        if self.tokens[self.at][1] in ("(", ":"):
            return self.call(name)
        if name in ("True", "False"):
            return TRUE if name == "True" else FALSE
        if name in _LAUNCH:
            return LaunchIndex(ParallelType(name))
        self.at -= 1
        return self.named()

    def named(self) -> Expr:
        """Read a name, or an access to a buffer."""
        found: Any = self.member()
        if isinstance(found, Expr):
            return found
        flat = self.accept(".")
        if flat and self.take("name", "'flat'") != "flat":
            self.fail("another word stands behind '.'", "'flat'")
        if not hasattr(found, "dtype"):
            self.fail(f"{kind_of(found)} stands in an expression", "a value")
        return Load(found, self.items((Expr, ...)), flat)

    def literal(self, sign: int) -> Expr:
        """Read a number, with its type where it is no index and no float32."""
        text = self.tokens[self.at][1]
        self.at += 1
        is_float = not text.isdigit()
        natural = dtypes.float32 if is_float else dtypes.index
        dtype = self.typed() if self.tokens[self.at][1] == ":" else natural
        if is_float != dtype.is_float:
            self.fail(f"{text}:{dtype} is no literal", f"one of {dtype}")
        return Const(sign * (float(text) if is_float else int(text)), dtype)

    def typed(self) -> DType:
        """Read ``:dtype``."""
        self.expect(":")
        found: DType = self.word(_TYPES)
        return found

    def call(self, name: str) -> Expr:
        """Read the operands of an operation in functional form, or of a conversion."""
        dtype = self.typed() if self.tokens[self.at][1] == ":" else None
        self.expect("(")
        args: list[Expr] = []
        while not self.accept(")"):
            if args:
                self.expect(",")
            args.append(self.expression())
        if name in _TYPES and len(args) == 1:
            return Op("cast", tuple(args), _TYPES[name])
        return self.operation(name, tuple(args), dtype)

    def operation(self, op: str, args: tuple[Expr, ...], dtype: DType | None = None) -> Expr:
        """Return an operation, whose number of operands is checked."""
        if op not in OPS or op == "cast":
            self.fail(f"'{op}' is called", "an operation or a type")
        if len(args) != OPS[op].arity:
            self.fail(f"{op} has {len(args)} operands", f"{OPS[op].arity}")
        return Op(op, args, dtype or natural_type(op, args))

    # Tokens

    def tokenize(self) -> None:
        """Take the line at hand apart."""
        line, position = self.line.rstrip(), 0
        self.tokens, self.at = [], 0
        while position < len(line):
            found = _TOKEN.match(line, position)
            if found is None:
                self.fail(
                    f"'{line[position:].lstrip()}' cannot be read", "a name, a number or a sign"
                )
            kind = found.lastgroup or ""
            self.tokens.append((kind, found[kind]))
            position = found.end()
        self.tokens.append(("end", ""))

    def accept(self, text: str) -> bool:
        """Whether `text` is next, which is then taken."""
        kind, found = self.tokens[self.at]
        hit = found == text and kind != "text"
        self.at += hit
        return hit

    def expect(self, text: str) -> None:
        """Take `text`."""
        if not self.accept(text):
            self.fail(f"{self.next()} stands here", f"'{text}'")

    def take(self, kind: str, expected: str) -> str:
        """Take a token of a kind."""
        found, text = self.tokens[self.at]
        if found != kind:
            self.fail(f"{self.next()} stands here", expected)
        self.at += 1
        return text

    def next(self) -> str:
        """Return the next token, for a message."""
        text = self.tokens[self.at][1]
        return f"'{text}'" if text else "the end of the line"


def _classes(kind: Any) -> tuple[type, ...]:
    """Return the classes of the records in a field of type `kind`."""
    if is_dataclass(kind):
        return (typing.cast("type", kind),)
    found = [inner for part in typing.get_args(kind) for inner in _classes(part)]
    return tuple(found)
