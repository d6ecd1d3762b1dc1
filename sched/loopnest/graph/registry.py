"""The op registry: what an op is, and what other modules know about it.

`register_op` says what every op must have: how its type follows from its operands', and what it
computes. Everything else is an attribute, registered from wherever it is used: its fusion
``pattern``, its ``gradient``, how it is ``lower``ed, its layouts.

Nodes are pickled by their ops: a node and all that it is computed from as one table, a row a node.
A pickle that went from node to operand would end at Python's limit of recursion. Nodes that stand
in one pickle stay related: as long as a table is being pickled, a node that it has is pickled as a
row of it, and other tables refer to that node.
"""

from __future__ import annotations

import copyreg
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import wraps
from operator import getitem
from types import MappingProxyType
from typing import Any, ParamSpec, TypeAlias, TypeVar, overload
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from loopnest.base.errors import kind_of
from loopnest.base.pickling import STAMP
from loopnest.graph.graph_error import GraphError, Refused
from loopnest.graph.node import NO_ATTRS, Attrs, Node, Type, describe, items_of
from loopnest.graph.node_origins import keep_origin, made_for, origin_of
from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import Expr

Infer: TypeAlias = Callable[[tuple[Type, ...], Attrs], Type]
Evaluate: TypeAlias = Callable[..., Any]  # (node, *arrays) -> array, or a tuple of arrays
P = ParamSpec("P")
T = TypeVar("T")

_REQUIRED: object = type("Required", (), {"__repr__": lambda self: "REQUIRED"})()
REQUIRED: Any = _REQUIRED
"""In `params` of `register_op`: an attribute without a default."""


WRONG = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)
"""What a function runs into where an argument has another type than it should."""


class Pattern(IntEnum):
    """How an op relates output elements to input elements: what fusion asks about it.

    The larger of two patterns is that of both together.

    Source: TVM's `OpPatternKind` (include/tvm/relay/op_attr_types.h, to v0.18).
    """

    ELEMWISE = 0  # out[i, j] = f(in[i, j])
    BROADCAST = 1  # output axes map to input axes in order: out[i, j] = f(in[j])
    INJECTIVE = 2  # each output element reads one input element, anywhere: transpose, slice
    REDUCTION = 3  # a commutative fold over some axes
    COMM_REDUCE = 3
    OUT_ELEMWISE_FUSABLE = 4  # elementwise ops may join its output; never two in a group: conv2d
    TUPLE = 7
    OPAQUE = 8


@dataclass(frozen=True, slots=True)
class OpDef:
    """An op: arity None takes any number of operands; `params` are attributes with defaults."""

    name: str
    infer: Infer
    evaluate: Evaluate
    arity: int | None
    params: Mapping[str, object]


_OPS: dict[str, OpDef] = {}
_ATTRIBUTES: dict[str, dict[str, object]] = {}


def register_op(
    name: str,
    *,
    infer: Infer,
    evaluate: Evaluate,
    arity: int | None = None,
    params: Mapping[str, object] | Iterable[str] = (),
    pattern: Pattern | None = None,
) -> OpDef:
    """Register an op.

    Args:
        name: an identifier; `Node.op`.
        infer: ``(input types, attrs) -> type``; raises `Refused(reason, hint)`.
        evaluate: ``(node, *arrays) -> array`` (a tuple of arrays for a tuple), by NumPy.
        arity: the number of operands; None for any.
        params: the attributes: names (all required) or a mapping from name to default, where
            `REQUIRED` stands for none.
        pattern: registers the attribute ``pattern`` too.

    Raises:
        GraphError: there is such an op already, or the name is no identifier.
    """
    subject = f"register_op({short(name)})"
    if not isinstance(name, str) or not name.isidentifier():
        raise GraphError(subject, "the name is not an identifier")
    if name in _OPS:
        raise GraphError(subject, "there is such an op already", "choose a name")
    for role, function in (("infer", infer), ("evaluate", evaluate)):
        if not callable(function):
            raise GraphError(subject, f"{role} is {kind_of(function)}", "pass a function")
    known = dict(params) if isinstance(params, Mapping) else dict.fromkeys(params, _REQUIRED)
    _OPS[name] = OpDef(name, infer, evaluate, arity, MappingProxyType(known))
    _ATTRIBUTES[name] = {}
    if pattern is not None:
        register_attr(name, "pattern", pattern)
    return _OPS[name]


def unregister_op(name: str) -> None:
    """Forget an op and its attributes (for tests of toy ops)."""
    get_op(name)
    del _OPS[name], _ATTRIBUTES[name]


def op_names() -> tuple[str, ...]:
    """Return the names of all ops, in order of registration."""
    return tuple(_OPS)


def get_op(name: str) -> OpDef:
    """Return the registered op of a name.

    Raises:
        GraphError: no op has that name.
    """
    found = _OPS.get(name) if isinstance(name, str) else None
    if found is None:
        raise GraphError(
            short(name) if not isinstance(name, str) else name,
            "there is no such op",
            "G.op_names() lists all",
        )
    return found


@overload
def register_attr(op: str | Iterable[str], key: str, value: T, *, override: bool = False) -> T: ...
@overload
def register_attr(
    op: str | Iterable[str], key: str, *, override: bool = False
) -> Callable[[T], T]: ...
def register_attr(
    op: str | Iterable[str], key: str, value: Any = REQUIRED, *, override: bool = False
) -> Any:
    """Register an attribute of one or several ops; without a value it is a decorator.

    >>> register_attr("exp", "cost", 8)
    8
    >>> get_attr("exp", "cost")
    8

    Raises:
        GraphError: no such op, or the attribute is there already and `override` is False.
    """
    if value is REQUIRED:
        return lambda function: register_attr(op, key, function, override=override)
    names = (op,) if isinstance(op, str) else items_of(op)
    if names is None or not isinstance(key, str):
        subject = f"register_attr({short(op)}, {short(key)})"
        raise GraphError(subject, "it takes the names of ops, and that of an attribute")
    for name in names:
        get_op(name)
        if key in _ATTRIBUTES[name] and not override:
            raise GraphError(
                f"register_attr({name!r}, {key!r})",
                "it is registered already",
                "pass override=True to replace it",
            )
        _ATTRIBUTES[name][key] = value
    return value


def get_attr(op: str | Node, key: str, default: Any = REQUIRED) -> Any:
    """Return an attribute of an op.

    Raises:
        GraphError: it is not registered and there is no default, or there is no such op.
    """
    name = op.op if isinstance(op, Node) else op
    get_op(name)
    found = _ATTRIBUTES[name].get(key, default) if isinstance(key, str) else default
    if found is REQUIRED:
        have = ", ".join(_ATTRIBUTES[name]) or "none"
        raise GraphError(
            describe(op) if isinstance(op, Node) else op,
            f"op {name} has no attribute {key!r} (it has: {have})",
            f"register_attr({name!r}, {key!r}, …) registers one",
        )
    return found


def pattern_of(node: Node) -> Pattern:
    """Return the fusion pattern of a node's op; OPAQUE where none is registered.

    Args:
        node: a node of any kind; an input is OPAQUE.

    >>> import loopnest.graph as G
    >>> G.pattern_of(G.exp(G.var("x", (4,)))).name
    'ELEMWISE'

    Source: TVM's `OpPatternKind`.
    """
    found: Pattern = get_attr(node, "pattern", Pattern.OPAQUE)
    return found


def call(
    op: str, inputs: Sequence[Node], attrs: Mapping[str, object] | None = None, name: str = ""
) -> Node:
    """Return a node: the op applied to nodes, its type inferred.

    Attributes left out take their defaults; lists become tuples, arrays become read-only.

    Raises:
        GraphError: no such op, a wrong number of operands, an unknown or missing attribute, or
            types that do not fit; it shows the call with the types of its operands.
    """
    definition = get_op(op)
    operands = items_of(inputs)
    if operands is None:
        reason = f"the inputs are {short(inputs)}"
        raise GraphError(f"call({op!r}, …)", reason, "pass a list of nodes")
    given = attrs or NO_ATTRS
    try:
        complete = _complete(definition, operands, given)
        inferred = definition.infer(tuple(node.type for node in operands), complete)
    except Refused as refused:
        subject = call_text(op, operands, given)
        raise GraphError(subject, refused.reason, refused.hint) from None
    except WRONG as error:
        reason = f"an attribute is not what the op takes: {error}"
        raise GraphError(call_text(op, operands, given), reason) from error
    found = Node(op, operands, complete, inferred, name)
    _INFERRED[found] = definition
    return keep_origin(found)


_INFERRED: WeakKeyDictionary[Node, OpDef] = WeakKeyDictionary()
"""The op, as it was registered then, that each node's type was inferred by."""


def is_inferred(node: Node) -> bool:
    """Whether a node has the type and the attributes that its op gives it, as it is registered now.

    Nodes never change: what `call` made needs no second inference.
    """
    found = _INFERRED.get(node)
    return found is not None and found is _OPS.get(node.op)


def takes_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Make a public function name the call where an argument is of a kind that it does not take.

    What it says itself of wrong arguments is a GraphError already and stays.
    """

    @wraps(function)
    def called(*args: P.args, **keywords: P.kwargs) -> T:
        try:
            return function(*args, **keywords)
        except WRONG as error:
            subject = call_text(function.__name__, args, keywords)
            raise GraphError(
                subject, f"an argument is not what it takes: {error}", _usage(function)
            ) from error

    return called


def _usage(function: Callable[..., object]) -> str:
    """Return how a function is called: ``pad(x, widths, value=0)``."""
    parts: list[str] = []
    marks: dict[object, str] = {
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.VAR_KEYWORD: "**",
    }
    for parameter in inspect.signature(function).parameters.values():
        default = "" if parameter.default is parameter.empty else f"={short(parameter.default)}"
        parts.append(f"{marks.get(parameter.kind, '')}{parameter.name}{default}")
    return f"write {function.__name__}({', '.join(parts)})"


def rebuild(node: Node, inputs: Sequence[Node]) -> Node:
    """Return `node` on other inputs, its type inferred again; itself where they are the same."""
    if len(inputs) == len(node.inputs) and all(map(_is, inputs, node.inputs)):
        return node
    with made_for(origin_of(node)):
        return call(node.op, inputs, node.attrs, node.name)


def _is(a: object, b: object) -> bool:
    return a is b


def with_attrs(node: Node, **changes: object) -> Node:
    """Return `node` with some attributes replaced."""
    with made_for(origin_of(node)):
        return call(node.op, node.inputs, {**node.attrs, **changes}, node.name)


def _complete(definition: OpDef, inputs: tuple[Node, ...], attrs: Mapping[str, object]) -> Attrs:
    """Return all attributes of a call, frozen."""
    for number, operand in enumerate(inputs):
        if not isinstance(operand, Node):
            raise Refused(f"operand {number} is {kind_of(operand)}", "use G.const")
    if definition.arity is not None and len(inputs) != definition.arity:
        raise Refused(f"it takes {definition.arity} operands, here are {len(inputs)}")
    params = definition.params
    for key in attrs:
        if key not in params:
            have = ", ".join(params) or "no attributes"
            raise Refused(f"there is no attribute {key!r}", f"it takes {have}")
    complete = {key: freeze(attrs.get(key, default)) for key, default in params.items()}
    for key, value in complete.items():
        if value is REQUIRED:
            raise Refused(f"the attribute {key!r} is missing")
    return MappingProxyType(complete) if complete else NO_ATTRS


def freeze(value: object) -> object:
    """Return an attribute's value in its immutable form."""
    if isinstance(value, (list, tuple)):
        return tuple([freeze(item) for item in value])
    if isinstance(value, np.ndarray):
        return read_only(value)
    if isinstance(value, np.generic):
        return value.item()
    return value


def read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a contiguous read-only array: the array itself, if it is one and owns its data."""
    if not array.flags.writeable and array.base is None and array.flags.c_contiguous:
        return array
    copy = np.array(array, order="C", copy=True)
    copy.flags.writeable = False
    return copy


def call_text(op: str, inputs: Sequence[object], attrs: Mapping[str, object] = NO_ATTRS) -> str:
    """Return a call as errors show it: ``add(x: float32[3], y: float32[4])``."""
    parts = [f"{describe(x)}: {x.type}" if isinstance(x, Node) else short(x) for x in inputs]
    parts += [f"{key}={short(value)}" for key, value in attrs.items()]
    return f"{op}({', '.join(parts)})"


def short(value: object) -> str:
    """Return a value as errors show it, on one line and not long."""
    if isinstance(value, DType):
        return str(value)
    if isinstance(value, np.ndarray):
        return f"<array {value.dtype}{list(value.shape)}>"
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    if isinstance(value, Expr):
        return str(value)
    if isinstance(value, (tuple, list)) and any(isinstance(item, Expr) for item in value):
        inner = ", ".join([short(item) for item in value])
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' * (len(value) == 1)})"
    text = object.__repr__(value) if type(value).__repr__ is object.__repr__ else repr(value)
    if " at 0x" in text:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 60 else text[:57] + "..."


class _OpenTables(threading.local):
    """The tables that are in use, by the identity of each of their nodes."""

    def __init__(self) -> None:
        self.tables: WeakValueDictionary[int, Table] = WeakValueDictionary()


_OPEN = _OpenTables()


class Table:
    """A node and what it is computed from, operands first; it is loaded as the tuple of them."""

    __slots__ = ("__weakref__", "foreign", "place")

    def __init__(self, root: Node) -> None:
        self.place: dict[Node, int] = {}
        self.foreign: set[Node] = set()
        """The nodes that are rows of other tables."""
        stack = [(root, False)]
        while stack:
            node, done = stack.pop()
            if node in self.place:
                continue
            if id(node) in _OPEN.tables:
                self.foreign.add(node)
            if done or node in self.foreign:
                self.place[node] = len(self.place)
            else:
                stack.append((node, True))
                stack += [(operand, False) for operand in reversed(node.inputs)]
        _OPEN.tables.update({id(node): self for node in self.place if node not in self.foreign})

    def __reduce__(self) -> tuple[Callable[..., tuple[Node, ...]], tuple[object, ...]]:
        return _loaded, (STAMP, *map(self._row, self.place))

    def _row(self, node: Node) -> object:
        if node in self.foreign:
            return node
        inputs = [self.place[operand] for operand in node.inputs]
        return node.op, inputs, dict(node.attrs), node.name


def _loaded(_: object, *rows: Any) -> tuple[Node, ...]:
    made: list[Node] = []
    for row in rows:
        if isinstance(row, Node):
            made.append(row)
        else:
            op, inputs, attrs, name = row
            made.append(call(op, [made[number] for number in inputs], attrs, name))
    return tuple(made)


def pickled(node: Node) -> tuple[Callable[..., Node], tuple[object, int]]:
    """Return what a node is pickled as: a table, and the node's place in it."""
    table = _OPEN.tables.get(id(node))
    if table is None:
        table = Table(node)
    return getitem, (table, table.place[node])


copyreg.pickle(Node, pickled)
