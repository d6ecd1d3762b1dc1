"""The value of a graph by NumPy: the oracle of every pass.

Each node is computed in its own element type; 16-bit floats are computed in float32 (a reduction
accumulates in it too) and rounded once, at the node. What needs values before a graph is whole
stands here too: a `Variable` whose first value is a node, and the op of fused groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from loopnest.base.errors import kind_of
from loopnest.graph.graph_error import GraphError, Refused
from loopnest.graph.leaves import check_name, constant_array, dtype_of, var
from loopnest.graph.node import Attrs, Node, TensorType, Type, describe
from loopnest.graph.program import Graph, body_of, require_graph
from loopnest.graph.registry import (
    WRONG,
    Pattern,
    call,
    get_attr,
    get_op,
    register_op,
    short,
    takes_arguments,
)
from loopnest.graph.size_binding import bound, graph_sizes, sizes_of_arrays
from loopnest.graph.state import check_state
from loopnest.scalar.dtypes import DType

Array: TypeAlias = "npt.NDArray[Any]"
Value: TypeAlias = "Array | tuple[Value, ...]"
State: TypeAlias = MutableMapping[str, Array]
Watch: TypeAlias = "Callable[[Node, Value], None]"


def evaluate(
    graph: Graph,
    feeds: Mapping[str, object] | None = None,
    state: State | None = None,
    watch: Watch | None = None,
    **sizes: int,
) -> tuple[Value, ...]:
    """Return the values of a graph's outputs (a tuple for a tuple-typed output).

    Args:
        graph: the graph.
        feeds: an array for each input, by name, of its shape; converted to its dtype if NumPy's
            "same kind" casts can.
        state: values of variables by name; those left out have their first value. What the graph
            assigns is written to it at the end.
        watch: is told each node and its value, in order of computation (not of fused bodies).
        **sizes: the sizes that the shapes of the inputs do not say.

    Raises:
        GraphError: an input without an array, an array without an input, one that does not fit,
            a size that is missing or that two inputs disagree on, a node that does not fit at
            these sizes, or a variable that is assigned twice.

    >>> from loopnest.graph import var
    >>> x = var("x", (2,))
    >>> evaluate(Graph([x], [x * 2.0]), {"x": [1.0, 2.0]})
    (array([2., 4.], dtype=float32),)
    """
    _check_arguments(graph, feeds, state)
    given = {} if feeds is None else dict(feeds)
    known = {x.name for x in graph.inputs}
    for name in given:
        if name not in known:
            names = ", ".join(x.name for x in graph.inputs) or "none"
            raise GraphError(
                f"evaluate({graph.name})", f"there is no input {name}", f"inputs are: {names}"
            )
    if sizes or graph_sizes(graph):
        graph, watch = _at_sizes(graph, given, sizes, watch)
    values: dict[Node, Value] = {x: _fed(graph, x, given) for x in graph.inputs}
    machine = _Machine({} if state is None else state, watch)
    with np.errstate(all="ignore"):
        outputs = machine.run(graph, values)
    if state is not None:
        state.update({name: np.array(value) for name, value in machine.assigned.items()})
    return tuple([_own(value) for value in outputs])


def _at_sizes(
    graph: Graph, feeds: Mapping[str, object], given: Mapping[str, int], watch: Watch | None
) -> tuple[Graph, Watch | None]:
    """Return the graph at the sizes that its inputs have, and who watches its nodes."""
    subject = f"evaluate({graph.name})"
    arrays = [_array(_feed(graph, x, feeds), x, subject) for x in graph.inputs]
    for x, array in zip(graph.inputs, arrays, strict=True):
        if array.ndim != x.ndim:
            raise _wrong_shape(x, array, subject)
    try:
        sizes = sizes_of_arrays(graph, [array.shape for array in arrays], given)
    except Refused as refused:
        raise GraphError(subject, refused.reason, refused.hint) from None
    found = bound(graph, sizes)
    if watch is None:
        return found.graph, None
    told = {made: node for node, made in found.nodes.items()}
    return found.graph, lambda node, value: watch(told[node], value)


def _check_arguments(graph: Graph, feeds: object, state: object) -> None:
    subject = f"evaluate({require_graph(graph, 'evaluate').name})"
    names = ", ".join([f"{x.name!r}: …" for x in graph.inputs])
    if feeds is not None and not isinstance(feeds, Mapping):
        raise GraphError(subject, f"the feeds are {kind_of(feeds)}", f"pass a mapping: {{{names}}}")
    if state is not None and not isinstance(state, MutableMapping):
        kind = type(state).__name__
        raise GraphError(subject, f"the state is a {kind}", "pass a dict of arrays by name")
    check_state(graph)


@takes_arguments
def Variable(value: object, name: str, dtype: DType | str | type | None = None) -> Node:
    """Return state: a tensor that keeps its value between evaluations.

    Args:
        value: the first value: an array, a number, or a node that depends on no input.
        name: its key in the `state` of `evaluate`; unique in a graph.
        dtype: the element type; that of `value` by default.

    Raises:
        GraphError: the name is no identifier, or `value` is no array, number or node.
    """
    subject = f"Variable({name!r})"
    check_name(name, subject)
    if isinstance(value, Node):
        value = evaluate_closed(value)
    array = constant_array(value, dtype, subject)
    return call("variable", (), {"value": array, "variable": name}, name)


def evaluate_closed(node: Node) -> Array:
    """Return the value of a node that depends on no input and on no state.

    Raises:
        GraphError: it does, or it is a tuple.
    """
    graph = Graph([], [node], "closed")
    if graph.variables or not isinstance(node.type, TensorType):
        raise GraphError(describe(node), "it is no tensor of constants")
    (value,) = evaluate(graph)
    assert not isinstance(value, tuple)
    return value


def compute(node: Node, args: Sequence[Value]) -> Value:
    """Return the value of one node by its op, given those of its operands."""
    function = get_op(node.op).evaluate
    try:
        found = function(node, *[_widened(x) for x in args])
    except WRONG as error:
        reason = f"its op could not compute it: {error}"
        raise GraphError(describe(node), reason, f"it is {node.type}") from error
    return _stored(found, node.type, node)


def math_of(node: Node, dtypes: Sequence[DType] | None = None) -> Graph | None:
    """Return what a node is made of, on operands of its own; None where its op has no math.

    The attribute ``math`` of an op is a function from a node to one that computes the same by other
    ops: its value and its kernel follow from that, and what `gradients` says of some ops.

    Args:
        node: the node.
        dtypes: the element types of the operands, where they are others than the node's.
    """
    rule = get_attr(node, "math", None)
    if rule is None:
        return None
    types = [x.dtype for x in node.inputs] if dtypes is None else dtypes
    pairs = enumerate(zip(node.inputs, types, strict=True))
    inputs = [var(f"p{number}", x.shape, dtype) for number, (x, dtype) in pairs]
    return Graph(inputs, [rule(call(node.op, inputs, node.attrs))], "math")


def by_math(node: Node, *arrays: Array) -> Value:
    """Return the value of a node whose op has the attribute ``math``."""
    body = math_of(node, [dtype_of(array.dtype, describe(node)) for array in arrays])
    assert body is not None
    (found,) = _Machine({}, None).run(body, dict(zip(body.inputs, arrays, strict=True)))
    return found


class _Machine:
    """One evaluation: the state that it reads, and what it assigned."""

    def __init__(self, state: Mapping[str, Array], watch: Watch | None) -> None:
        self.state, self.watch = state, watch
        self.assigned: dict[str, Array] = {}

    def run(self, graph: Graph, values: dict[Node, Value]) -> tuple[Value, ...]:
        left = {node: len(users) for node, users in graph.users.items()}
        for node in graph.outputs:
            left[node] += 1
        for node in graph.nodes:
            if node not in values:
                values[node] = self._value(node, [values[x] for x in node.inputs])
            if self.watch is not None:
                self.watch(node, values[node])
            for operand in dict.fromkeys(node.inputs):
                left[operand] -= 1
                if not left[operand]:
                    del values[operand]  # large graphs: keep only what is still read
        return tuple(values[node] for node in graph.outputs)

    def call(self, node: Node, args: Sequence[Value]) -> Value:
        body = body_of(node)
        inner = _Machine(self.state, None)
        outputs = inner.run(body, dict(zip(body.inputs, args, strict=True)))
        self.assigned.update(inner.assigned)
        return outputs[0] if len(outputs) == 1 else outputs

    def _value(self, node: Node, args: Sequence[Value]) -> Value:
        if node.op == "variable":
            return self._state_of(node)
        if node.op == "fused":
            return self.call(node, args)
        if node.op in ("tuple", "group", "get_item", "const"):
            found: Value = get_op(node.op).evaluate(node, *args)
            return found
        value = compute(node, args)
        if node.op == "assign":
            assert not isinstance(value, tuple)
            self.assigned[node.attrs["variable"]] = value
        return value

    def _state_of(self, node: Node) -> Array:
        name = node.attrs["variable"]
        if name not in self.state:
            return node.value
        return _fitting(self.state[name], node, f"evaluate(state={{{name!r}: …}})")


def _own(value: Value) -> Value:
    """Return a result as the caller's: writable, no view of an input or a constant."""
    return tuple([_own(item) for item in value]) if isinstance(value, tuple) else np.array(value)


def _fed(graph: Graph, node: Node, feeds: Mapping[str, object]) -> Array:
    return _fitting(_feed(graph, node, feeds), node, f"evaluate({graph.name})")


def _feed(graph: Graph, node: Node, feeds: Mapping[str, object]) -> object:
    if node.name not in feeds:
        names = ", ".join(x.name for x in graph.inputs)
        raise GraphError(
            f"evaluate({graph.name})", f"the input {node.name} has no array", f"inputs are: {names}"
        )
    return feeds[node.name]


def _array(value: object, node: Node, subject: str) -> Array:
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise GraphError(subject, f"{node.name} has no array: {error}") from None


def _wrong_shape(node: Node, array: Array, subject: str) -> GraphError:
    return GraphError(subject, f"{node.name} is {node.type}, the array {list(array.shape)}")


def _fitting(value: object, node: Node, subject: str) -> Array:
    array = _array(value, node, subject)
    dtype = node.dtype.numpy
    if array.shape != node.shape:
        raise _wrong_shape(node, array, subject)
    if array.dtype == dtype:
        return array
    weak = not isinstance(value, (np.ndarray, np.generic))
    if not (weak or np.can_cast(array.dtype, dtype, "same_kind")):
        raise GraphError(subject, f"{node.name} is {node.type}, the array {short(array)}")
    try:
        return array.astype(dtype)
    except (OverflowError, TypeError, ValueError) as error:
        raise GraphError(subject, f"{node.name} is {node.type}: {error}") from None


def _widened(value: Value) -> Value:
    """Return an operand as ops compute on it: floats of 8 and 16 bits as float32."""
    if isinstance(value, tuple):
        return tuple([_widened(item) for item in value])
    narrow = value.dtype.itemsize <= 2 and value.dtype.kind in "fV"
    return value.astype(np.float32) if narrow else value


def _stored(value: Any, wanted: Type, node: Node) -> Value:
    """Return what an op computed as arrays of the types that inference promised."""
    if not isinstance(wanted, TensorType):
        fields = zip(value, wanted.fields, strict=True)
        return tuple([_stored(item, part, node) for item, part in fields])
    array = np.asarray(value)
    if array.shape != wanted.shape:
        raise GraphError(
            describe(node), f"its op computed {list(array.shape)}, inference promised {wanted}"
        )
    return array if array.dtype == wanted.dtype.numpy else array.astype(wanted.dtype.numpy)


def _infer_fused(types: tuple[Type, ...], attrs: Attrs) -> Type:
    body = attrs["body"]
    if not isinstance(body, Graph):
        raise Refused(f"the body is {kind_of(body)}", "it must be a Graph")
    if len(types) != len(body.inputs):
        raise Refused(f"{body.name} takes {len(body.inputs)} operands, here are {len(types)}")
    for number, (given, formal) in enumerate(zip(types, body.inputs, strict=True)):
        if given != formal.type:
            raise Refused(f"operand {number} is {given}, {formal.name} is {formal.type}")
    return body.type


register_op(
    "fused",
    infer=_infer_fused,
    evaluate=lambda node, *args: _Machine({}, None).call(node, args),  # state is not kept
    params=("body",),
    pattern=Pattern.OPAQUE,
)
