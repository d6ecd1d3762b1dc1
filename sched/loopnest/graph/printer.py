"""The text of a graph, which `parser.parse` reads back to a structurally equal graph.

```
# loopnest graph 1
graph main(x: float32[4, 3], w: float32[3, 2]) {
  def @fused0(p0: float32[4, 2]) {
    %0: float32[4, 2] = add(p0, 1.0:float32)
    return %0
  }
  %0: float32[4, 2] = matmul(x, w)
  %1: float32[4, 2] = @fused0(%0)
  %2: float32[2] = const [0.5, 1.0]
  %3: float32[2] = sum(%1, axis=(0,))
  return %3, %2
}
```

One node a line, operands before users, numbered in that order; a named node shows its name. A
scalar constant with one use stands at its use. Attributes that have their default are left out.
Small constants are written out, in the fewest digits that give the value back; others stand behind
the graph, compressed: ``$0 = "…"``. Where the text is to be read (`str`), one of more than 4 KiB is
a digest: ``$0 = sha256 "…"``. Such a text parses as long as this process holds the constant; the
full text (`Graph.text(full=True)`) parses anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterator
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from loopnest.graph.dimensions import at
from loopnest.graph.node import Node, TensorType, is_name
from loopnest.graph.program import Graph, body_of, require_graph
from loopnest.graph.registry import get_op, short
from loopnest.graph.structural import attribute_key
from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import Expr

HEADER = "# loopnest graph 1"
_INLINE = 16
"""Up to so many elements a constant is written out."""


_WHOLE = 4096
"""Up to so many bytes a constant is written whole in a text that is to be read."""


def to_text(graph: Graph, constants: bool = True, full: bool = True) -> str:
    """Return the text of a graph, without a final newline; deterministic.

    Args:
        graph: the graph.
        constants: whether large constants follow; without them the text is for reading only.
        full: whether constants of more than 4 KiB follow whole, or as digests.
    """
    printer = _Printer()
    require_graph(graph, "to_text")
    lines = [HEADER, *printer.graph(graph, f"graph {graph.name}", "")]
    if constants:
        lines += [f"{name} = {_behind(a, full)}" for name, a in printer.large.values()]
    return "\n".join(lines)


_ABBREVIATED: WeakValueDictionary[str, np.ndarray[Any, Any]] = WeakValueDictionary()
"""Constants that texts of this process name by their digests, as long as they live."""


def _behind(array: np.ndarray[Any, Any], full: bool) -> str:
    if full or array.nbytes <= _WHOLE:
        return f'"{encode(array)}"'
    name = digest(array)
    _ABBREVIATED[name] = array
    return f'sha256 "{name}"  # {array.dtype.name}{list(array.shape)}, {array.nbytes} bytes'


def digest(array: np.ndarray[Any, Any]) -> str:
    """Return a short name of a large constant: a hash of its type, shape and elements."""
    head = f"{array.dtype.name}{list(array.shape)}".encode()
    return hashlib.sha256(head + array.tobytes()).hexdigest()


def abbreviated(name: str) -> np.ndarray[Any, Any] | None:
    """Return the constant of a digest, if this process has printed it and still holds it."""
    return _ABBREVIATED.get(name)


class _Printer:
    """What one text shares: large constants, by value."""

    def __init__(self) -> None:
        self.large: dict[object, tuple[str, np.ndarray[Any, Any]]] = {}

    def graph(self, graph: Graph, head: str, indent: str) -> Iterator[str]:
        """Yield the lines of a graph or of a body."""
        params = ", ".join(f"{x.name}: {x.type}" for x in graph.inputs)
        yield f"{indent}{head}({params}) {{"
        scope = _PrintedNames(graph)
        inner = indent + "  "
        for body, name in scope.bodies.items():
            yield from self.graph(body, f"def {name}", inner)
        for node in graph.nodes:
            if node.op != "var" and node not in scope.inlined:
                yield f"{inner}{scope.names[node]}: {node.type} = {self._right(node, scope)}"
        outputs = ", ".join(scope.show(node) for node in graph.outputs)
        yield f"{inner}return {outputs}".rstrip()
        yield f"{indent}}}"

    def _right(self, node: Node, scope: _PrintedNames) -> str:
        if node.op == "const":
            return f"const {self._value(node.value)}"
        if node.op == "variable":
            return f"variable {node.attrs['variable']} {self._value(node.value)}"
        operands = [scope.show(x) for x in node.inputs]
        if node.op == "fused":
            return f"{scope.bodies[body_of(node)]}({', '.join(operands)})"
        defaults = get_op(node.op).params
        for key, value in node.attrs.items():
            if attribute_key(defaults[key]) != attribute_key(value):
                operands.append(f"{key}={show_attribute(value)}")
        return f"{node.op}({', '.join(operands)})"

    def _value(self, array: np.ndarray[Any, Any]) -> str:
        inline = inline_value(array)
        if inline is not None:
            return inline
        key = attribute_key(array)
        name, _ = self.large.setdefault(key, (f"${len(self.large)}", array))
        return name


class _PrintedNames:
    """The names of the nodes of one graph."""

    def __init__(self, graph: Graph) -> None:
        outputs = set(graph.outputs)
        self.inlined: dict[Node, str] = {}
        self.names: dict[Node, str] = {}
        self.bodies: dict[Graph, str] = {}
        taken: set[str] = set()
        for node in graph.nodes:
            if node.op == "var":
                self.names[node] = node.name
            elif _stands_at_use(node, graph, outputs):
                self.inlined[node] = f"{inline_value(node.value)}:{node.dtype}"
            else:
                self.names[node] = f"%{self._label(node, taken, len(taken))}"
        for body in graph.functions:
            if body not in self.bodies:
                self.bodies[body] = _unused(f"@{body.name}", set(self.bodies.values()))

    @staticmethod
    def _label(node: Node, taken: set[str], number: int) -> str:
        plain = is_name(node.name) and node.name not in taken
        label = node.name if plain else str(number)
        taken.add(label)
        return label

    def show(self, node: Node) -> str:
        """Return an operand."""
        return self.inlined.get(node) or self.names[node]


def _stands_at_use(node: Node, graph: Graph, outputs: set[Node]) -> bool:
    if node.op != "const" or node.value.ndim or node.name or node in outputs:
        return False
    users = graph.users[node]
    once = len(users) == 1 and users[0].inputs.count(node) == 1
    return once and inline_value(node.value) is not None


def _unused(name: str, taken: set[str]) -> str:
    found, number = name, 1
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    return found


def inline_value(array: np.ndarray[Any, Any]) -> str | None:
    """Return a small array written out in row-major order, if that is exact; else None."""
    if array.size > _INLINE:
        return None
    items = [_number(item) for item in array.ravel()]
    back = np.array([read_number(item) for item in items], dtype=array.dtype)
    if back.tobytes() != array.tobytes():
        return None  # a NaN with a payload
    return f"[{', '.join(items)}]" if array.ndim else items[0]


def _number(value: Any) -> str:
    if value.dtype.kind in "bi":
        return str(value.item())
    text = str(value)
    return text if any(mark in text for mark in ".en") else f"{text}.0"


def read_number(text: str) -> bool | int | float:
    """Return the value of a literal."""
    if text in ("True", "False"):
        return text == "True"
    try:
        return int(text)
    except ValueError:
        return float(text)


def encode(array: np.ndarray[Any, Any]) -> str:
    """Return an array's elements (little-endian, row-major) compressed, in base64."""
    data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return base64.b64encode(zlib.compress(data, 6)).decode()


def decode(text: str, wanted: TensorType) -> np.ndarray[Any, Any]:
    """Return the array that `encode` wrote.

    Raises:
        ValueError: the text is damaged, or of another size.
    """
    try:
        data = zlib.decompress(base64.b64decode(text, validate=True))
    except zlib.error as error:
        raise ValueError(str(error)) from None
    dtype = wanted.dtype.numpy
    if len(data) != at(wanted.size, {}) * dtype.itemsize:
        raise ValueError(f"{len(data)} bytes for {wanted}")
    return np.frombuffer(data, dtype).reshape([at(extent, {}) for extent in wanted.shape])


def show_attribute(value: object) -> str:
    """Return an attribute's value as the parser reads it."""
    if isinstance(value, tuple):
        items = ", ".join(show_attribute(item) for item in value)
        return f"({items}{',' * (len(value) == 1)})"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, (DType, Expr, bool, int, float)) or value is None:
        return str(value)
    return f"<{short(value)}>"  # has no text: the parser refuses it
