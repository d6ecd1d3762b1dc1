"""The parser of a graph's text: recursive descent over a handful of forms (see `printer`)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from loopnest.base.errors import kind_of
from loopnest.graph.cost import bytes_of
from loopnest.graph.dimensions import Dim, read_dim
from loopnest.graph.dimensions import at as at_sizes
from loopnest.graph.graph_error import GraphError
from loopnest.graph.leaves import const, var
from loopnest.graph.node import Node, TensorType, TupleType, Type
from loopnest.graph.node_values import Variable
from loopnest.graph.printer import abbreviated, decode, read_number
from loopnest.graph.program import Graph, call_graph
from loopnest.graph.registry import call
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType

T = TypeVar("T")
_TOKENS = re.compile(
    r"""(?P<space>[ \t\r\n]+|\#[^\n]*)
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<number>-(?:inf|nan)\b|-?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)
    |(?P<ref>[%@$]\w+)
    |(?P<word>[^\W\d]\w*)
    |(?P<mark>//|[(){}\[\],:=+*%-])""",
    re.VERBOSE,
)
_DTYPES = {dtype.name: dtype for dtype in dtypes.ALL}
_DIGEST = "sha256"
"""Stands before the digest of a constant that is not written whole."""
_LITERALS = ("True", "False", "inf", "nan")
"""Words that are numbers, where a number stands (they may name inputs too)."""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


def parse(text: str) -> Graph:
    """Return the graph of a text: `str(g)` gives one structurally equal to g.

    Raises:
        GraphError: malformed text, an unknown op or name, or a node that does not fit; `line` and
            `column` (from 1) say where.
    """
    if not isinstance(text, str):
        raise GraphError("parse(…)", f"it was given {kind_of(text)}", "pass the text of a graph")
    return _GraphParser(text).whole()


class _ParsedNames:
    """What names mean inside one graph."""

    def __init__(self, outer: _ParsedNames | None) -> None:
        self.nodes: dict[str, Node] = {}
        self.bodies: dict[str, Graph] = dict(outer.bodies) if outer else {}


class _GraphParser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[_Token] = []
        self.next = 0
        self._split()
        self.large = self._large()

    # Words

    def _split(self) -> None:
        at = 0
        while at < len(self.text):
            match = _TOKENS.match(self.text, at)
            if match is None:
                self._fail(at, f"{self.text[at]!r} begins nothing")
            kind = match.lastgroup or ""
            if kind != "space":
                self.tokens.append(_Token(kind, match.group(), at))
            at = match.end()
        self.tokens.append(_Token("end", "", len(self.text)))

    def _large(self) -> dict[str, str]:
        """Return the large constants, which stand behind the graph but are used in it."""
        found: dict[str, str] = {}
        for at in range(len(self.tokens) - 3):
            name, equals, first, second = self.tokens[at : at + 4]
            if name.text[:1] != "$" or equals.text != "=":
                continue
            if first.kind == "string":
                found[name.text] = first.text[1:-1]
            elif first.text == _DIGEST and second.kind == "string":
                found[name.text] = _DIGEST + second.text[1:-1]
        return found

    def _fail(self, at: int, reason: str, hint: str = "", subject: str = "") -> NoReturn:
        line = self.text.count("\n", 0, at) + 1
        column = at - (self.text.rfind("\n", 0, at) + 1) + 1
        place = f"line {line}, column {column}" + (f", {subject}" if subject else "")
        raise GraphError(place, reason, hint, line, column)

    def _made(self, at: int, make: Callable[[], T]) -> T:
        """Return what `make` makes; its errors get the place."""
        try:
            return make()
        except GraphError as error:
            if error.line is not None:
                raise
            self._fail(at, error.reason, error.hint, error.subject)

    @property
    def _ahead(self) -> _Token:
        return self.tokens[self.next]

    def _take(self, *wanted: str) -> _Token:
        """Return the next token, which must be one of `wanted` (texts, or kinds in <>)."""
        token = self._ahead
        if token.text not in wanted and f"<{token.kind}>" not in wanted:
            found = repr(token.text) if token.text else "the end of the text"
            self._fail(token.at, f"here is {found}", f"expected {' or '.join(wanted)}")
        self.next += 1
        return token

    def _at(self, text: str) -> bool:
        return self._ahead.text == text

    def _list(self, close: str, item: Callable[[], T]) -> list[T]:
        """Return items between commas, up to `close`; a comma may stand before it."""
        found: list[T] = []
        while not self._at(close):
            found.append(item())
            if not self._at(close):
                self._take(",", close)
        self._take(close)
        return found

    # Forms

    def whole(self) -> Graph:
        self._take("graph")
        graph = self._graph(self._take("<word>").text, None)
        while self._ahead.text[:1] == "$":
            self.next += 1
            self._take("=")
            if self._at(_DIGEST):
                self.next += 1
            self._take("<string>")
        self._take("<end>")
        return graph

    def _graph(self, name: str, outer: _ParsedNames | None) -> Graph:
        scope = _ParsedNames(outer)
        start = self._take("(").at
        inputs = self._list(")", self._param)
        scope.nodes = {node.name: node for node in inputs}
        self._take("{")
        while not self._at("return"):
            if self._at("def"):
                self.next += 1
                callee = self._take("<ref>").text
                scope.bodies[callee] = self._graph(callee[1:], scope)
            else:
                self._statement(scope)
        self._take("return")
        outputs = self._list("}", lambda: self._operand(scope))
        return self._made(start, lambda: Graph(inputs, outputs, name))

    def _param(self) -> Node:
        token = self._take("<word>")
        self._take(":")
        found = self._tensor_type()
        return self._made(token.at, lambda: var(token.text, found.shape, found.dtype))

    def _statement(self, scope: _ParsedNames) -> None:
        target = self._take("<ref>", "return", "def")
        if target.text in scope.nodes:
            self._fail(target.at, f"{target.text} is defined already")
        if target.text[0] != "%":
            self._fail(target.at, f"{target.text} cannot be defined here", "nodes begin with %")
        self._take(":")
        wanted = self._type()
        self._take("=")
        at = self._ahead.at
        label = target.text[1:]
        node = self._right(scope, wanted, "" if label.isdigit() else label)
        if node.type != wanted:
            self._fail(at, f"{target.text} is declared {wanted}, it is {node.type}")
        scope.nodes[target.text] = node

    def _right(self, scope: _ParsedNames, wanted: Type, name: str) -> Node:
        token = self._take("<word>", "<ref>")
        if token.text in ("const", "variable") and not self._at("("):
            if not isinstance(wanted, TensorType):
                self._fail(token.at, f"a {token.text} is no tuple")
            if token.text == "const":
                array = self._array(wanted)
                return self._made(token.at, lambda: const(array, name=name))
            own = self._take("<word>").text
            array = self._array(wanted)
            return self._made(token.at, lambda: Variable(array, own))
        self._take("(")
        attrs: dict[str, object] = {}
        operands = self._list(")", lambda: self._argument(scope, attrs))
        nodes = [node for node in operands if node is not None]
        if token.kind == "word":
            return self._made(token.at, lambda: call(token.text, nodes, attrs, name))
        body = scope.bodies.get(token.text)
        if body is None or attrs:
            self._fail(token.at, f"there is no function {token.text} above that takes this")
        return self._made(token.at, lambda: call_graph(body, nodes, name))

    def _argument(self, scope: _ParsedNames, attrs: dict[str, object]) -> Node | None:
        token = self._ahead
        if token.kind == "word" and self.tokens[self.next + 1].text == "=":
            self.next += 2
            if token.text in attrs:
                self._fail(token.at, f"the attribute {token.text} stands twice")
            attrs[token.text] = self._attribute()
            return None
        return self._operand(scope)

    def _operand(self, scope: _ParsedNames) -> Node:
        token = self._take("<ref>", "<word>", "<number>")
        if self._at(":") and (token.kind == "number" or token.text in _LITERALS):
            self._take(":")
            dtype = _DTYPES.get(self._take("<word>").text)
            if dtype is None:
                self._fail(token.at, "the literal has no dtype that exists", "write 1.0:float32")
            number = self._number(token, dtype)
            return self._made(token.at, lambda: const(number, dtype))
        node = scope.nodes.get(token.text)
        if node is None:
            self._fail(token.at, f"{token.text} is not defined", "define it above, or as an input")
        return node

    def _number(self, token: _Token, dtype: DType | None = None) -> bool | int | float:
        number = read_number(token.text)
        if dtype is not None and isinstance(number, float) > dtype.is_float:
            self._fail(token.at, f"{token.text} is no {dtype}")
        return number

    def _array(self, wanted: TensorType) -> npt.NDArray[Any]:
        at = self._ahead.at
        if self._ahead.text[:1] == "$":
            name = self._take("<ref>").text
            if name not in self.large:
                self._fail(at, f"{name} has no value", f'write {name} = "…" behind the graph')
            if self.large[name].startswith(_DIGEST):
                return self._held(at, name, wanted)
            try:
                return decode(self.large[name], wanted)
            except ValueError as error:
                self._fail(at, f"the value of {name} is damaged: {error}")
        items = [self._take("<number>", *_LITERALS)] if not self._at("[") else []
        if not items:
            self._take("[")
            items = self._list("]", lambda: self._take("<number>", *_LITERALS))
        if len(items) != wanted.size:
            self._fail(at, f"{len(items)} elements for {wanted}")
        try:
            numbers = [self._number(item, wanted.dtype) for item in items]
            values = np.array(numbers, wanted.dtype.numpy)
        except (OverflowError, ValueError) as error:
            self._fail(at, f"the elements are no {wanted.dtype}: {error}")
        return values.reshape([at_sizes(extent, {}) for extent in wanted.shape])

    def _held(self, at: int, name: str, wanted: TensorType) -> npt.NDArray[Any]:
        """Return a constant of which the text has only the digest."""
        found = abbreviated(self.large[name].removeprefix(_DIGEST))
        if found is None:
            self._fail(
                at,
                f"of {name}, a {wanted} of {bytes_of(wanted)} bytes, the text has only the digest",
                "graph.text(full=True) writes a text with all constants",
            )
        if found.dtype != wanted.dtype.numpy or found.shape != wanted.shape:
            self._fail(at, f"{name} is {found.dtype}{list(found.shape)}, declared {wanted}")
        return found

    def _attribute(self) -> object:
        token = self._take("<number>", "<string>", "<word>", "(")
        if token.kind in ("number", "word") and self._ahead.text not in (",", ")"):
            return self._expression(token)
        if token.text == "(":
            return tuple(self._list(")", self._attribute))
        if token.kind == "string":
            try:
                return json.loads(token.text)
            except ValueError:
                self._fail(token.at, f"{token.text} is no string")
        if token.kind == "number" or token.text in _LITERALS:
            return self._number(token)
        if token.text == "None":
            return None
        if token.text in _DTYPES:
            return _DTYPES[token.text]
        return self._size(token.at, token.text)

    def _type(self) -> Type:
        if self._at("("):
            self.next += 1
            return TupleType(tuple(self._list(")", self._type)))
        return self._tensor_type()

    def _tensor_type(self) -> TensorType:
        token = self._take("<word>")
        dtype = _DTYPES.get(token.text)
        if dtype is None:
            self._fail(token.at, f"there is no dtype {token.text}", f"use {', '.join(_DTYPES)}")
        self._take("[")
        return TensorType(tuple(self._list("]", self._extent)), dtype)

    def _extent(self) -> Dim:
        token = self._take("<number>", "<word>")
        if self._at(",") or self._at("]"):
            if token.kind == "word":
                return self._size(token.at, token.text)
            if not token.text.isdigit():
                self._fail(token.at, f"{token.text} is no extent", "extents are integers >= 0")
            return int(token.text)
        return self._expression(token)

    def _expression(self, first: _Token) -> Dim:
        """Return the size expression that begins with a token that is taken already."""
        depth = 0
        while depth or self._ahead.text not in (",", ")", "]"):
            token = self._take("<number>", "<word>", "<ref>", "<mark>")
            depth += (token.text == "(") - (token.text == ")")
        return self._size(first.at, self.text[first.at : self._ahead.at])

    def _size(self, at: int, text: str) -> Dim:
        hint = "a size is a name, or + - * // % of names and ints"
        return self._made(at, lambda: read_dim(text, lambda why: GraphError("", why, hint)))
