"""Sizes of a graph: which there are, what arrays say of them, and the graph where they are known.

What needs numbers (evaluation, the plan of a step) works on the graph at its sizes: `bound` puts
them in, and inference checks there what could not be decided before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loopnest.base.errors import kind_of
from loopnest.graph.dimensions import Dim, at, symbols
from loopnest.graph.graph_error import GraphError, Refused
from loopnest.graph.leaves import make_tuple
from loopnest.graph.node import Attrs, Node, TupleType, Type, describe
from loopnest.graph.node_origins import made_for, origin_of, place_of, postorder
from loopnest.graph.program import Graph, require_graph
from loopnest.graph.registry import call
from loopnest.scalar.expr import Expr, Symbol, whole

_SIZES = "_sizes"


def graph_sizes(graph: Graph) -> tuple[str, ...]:
    """Return the names of the sizes of a graph, those of its inputs first; kept."""
    found: tuple[str, ...] | None = graph.__dict__.get(_SIZES)
    if found is None:
        names = dict.fromkeys([name for node in graph.nodes for name in node_sizes(node)])
        found = graph.__dict__[_SIZES] = tuple(names)
    return found


def node_sizes(node: Node) -> Iterator[str]:
    """Yield the sizes that a node's type, its attributes, or the body that it calls depend on."""
    yield from _type_sizes(node.type)
    for value in node.attrs.values():
        yield from _attribute_sizes(value)


def _type_sizes(kind: Type) -> Iterator[str]:
    if isinstance(kind, TupleType):
        for part in kind.fields:
            yield from _type_sizes(part)
    else:
        for extent in kind.shape:
            yield from symbols(extent)


def _attribute_sizes(value: object) -> Iterator[str]:
    if isinstance(value, Expr):
        yield from symbols(value)
    elif isinstance(value, tuple):
        for item in value:
            yield from _attribute_sizes(item)
    elif isinstance(value, Graph):
        yield from graph_sizes(value)


def sizes_of_arrays(
    graph: Graph, shapes: Sequence[Sequence[int]], given: Mapping[str, object]
) -> dict[str, int]:
    """Return every size of a graph: as the shapes of its inputs say, or by name.

    Args:
        graph: the graph.
        shapes: of the arrays of its inputs, in order, of their ranks.
        given: sizes by name; those that shapes say must agree.

    Raises:
        Refused: two shapes disagree, or nothing says what a size is.
    """
    wanted = graph_sizes(graph)
    sizes: dict[str, int] = {}
    source: dict[str, str] = {}
    for name, value in given.items():
        sizes[name] = _given_size(name, value, wanted)
        source[name] = "keyword"
    extents = [
        (extent, int(found), f"axis {axis} of {node.name}")
        for node, shape in zip(graph.inputs, shapes, strict=True)
        for axis, (extent, found) in enumerate(zip(node.shape, shape, strict=True))
    ]
    for extent, found, place in sorted(extents, key=lambda row: not isinstance(row[0], Symbol)):
        _learn(extent, found, place, sizes, source)
    for name in wanted:
        if name not in sizes:
            raise Refused(f"the size {name} is the extent of no input", f"pass {name}=...")
    return sizes


def _given_size(name: str, value: object, wanted: Sequence[str]) -> int:
    if name not in wanted:
        listed = ", ".join(wanted) or "none"
        raise Refused(f"it has no size '{name}'", f"its sizes are: {listed}")
    number = whole(value)
    if number is None or number < 0:
        found = kind_of(value) if number is None else number
        raise Refused(f"{name} = {found} is no size", "sizes are ints >= 0")
    return number


def _learn(
    extent: Dim, found: int, place: str, sizes: dict[str, int], source: dict[str, str]
) -> None:
    """Hold an extent against an array's; where it says what a size is, take that."""
    unknown = [name for name in dict.fromkeys(symbols(extent)) if name not in sizes]
    if len(unknown) == 1 and isinstance(extent, Expr):
        solved = _solved(extent, unknown[0], found, sizes)
        if solved is not None:
            sizes[unknown[0]], source[unknown[0]] = solved, place
            return
    if unknown:
        return
    wanted = at(extent, sizes)
    if wanted != found:
        if isinstance(extent, Symbol):
            first = f"{extent.name} is {wanted} by {source[extent.name]}"
            raise Refused(f"{first} but {found} by {place}", "a size has one value in a call")
        known = f" = {extent}" if isinstance(extent, Expr) else ""
        raise Refused(f"{place} has extent {found}, not {wanted}{known}")


def _solved(extent: Expr, name: str, found: int, sizes: Mapping[str, int]) -> int | None:
    """Return the size at which an extent that grows evenly with it is `found`; None for none."""
    zero, one, two = [at(extent, {**sizes, name: value}) for value in (0, 1, 2)]
    slope = one - zero
    if slope <= 0 or two - one != slope or (found - zero) % slope or found < zero:
        return None
    number = (found - zero) // slope
    return number if at(extent, {**sizes, name: number}) == found else None


@dataclass(frozen=True, slots=True)
class BoundGraph:
    """A graph at sizes, and what became of each of its nodes."""

    graph: Graph
    nodes: Mapping[Node, Node]


def bind(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Return the graph at sizes: the same ops on static shapes.

    >>> from loopnest.graph import exp, var
    >>> x = var("x", ("N", 3))
    >>> bind(Graph([x], [exp(x)]), {"N": 4}).outputs[0]
    <exp(x): float32[4, 3]>

    Args:
        graph: the graph; one without sizes comes back itself.
        sizes: a value for each of its sizes, by name.

    Raises:
        GraphError: a size is missing, or one that the graph does not have; a node does not fit at
            these sizes.
    """
    require_graph(graph, "bind")
    subject = f"bind({graph.name})"
    if not isinstance(sizes, Mapping):
        raise GraphError(subject, f"the sizes are {kind_of(sizes)}", "pass a dict of ints by name")
    wanted = graph_sizes(graph)
    try:
        numbers = {name: _given_size(name, value, wanted) for name, value in sizes.items()}
    except Refused as refused:
        raise GraphError(subject, refused.reason, refused.hint) from None
    missing = [name for name in wanted if name not in numbers]
    if missing:
        raise GraphError(subject, f"the size {missing[0]} is missing", f"sizes: {list(wanted)}")
    return bound(graph, numbers).graph


def bound(graph: Graph, sizes: Mapping[str, int]) -> BoundGraph:
    """Return a graph at sizes, each of which is known, with its nodes by those of the graph.

    Raises:
        GraphError: a node does not fit at these sizes.
    """
    if not graph_sizes(graph):
        return BoundGraph(graph, {node: node for node in graph.nodes})
    return _Binder(sizes).bound(graph)


def bound_alone(node: Node, sizes: Mapping[str, int]) -> Node:
    """Return a node at sizes whose operands are variables of their types there.

    Raises:
        GraphError: it does not fit at these sizes.
    """
    if not any(next(node_sizes(x), None) for x in (node, *node.inputs)):
        return node
    binder = _Binder(sizes)
    return binder.node(str(node), node, [binder.variable(x.type) for x in node.inputs])


class _Binder:
    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self.where = ", ".join([f"{name} = {size}" for name, size in sizes.items()])
        self.bodies: dict[Graph, Graph] = {}

    def bound(self, graph: Graph) -> BoundGraph:
        done: dict[Node, Node] = {}
        for node in postorder([*graph.inputs, *graph.outputs]):
            done[node] = self.node(graph.name, node, [done[x] for x in node.inputs])
        inputs, outputs = [done[x] for x in graph.inputs], [done[x] for x in graph.outputs]
        return BoundGraph(graph.changed(inputs, outputs), done)

    def variable(self, kind: Type) -> Node:
        """Return a variable of a type at the sizes; of several tensors a tuple of them."""
        if isinstance(kind, TupleType):
            return make_tuple(*map(self.variable, kind.fields))
        shape = tuple([at(extent, self.sizes) for extent in kind.shape])
        return call("var", (), {"shape": shape, "dtype": kind.dtype}, "operand")

    def node(self, graph: str, node: Node, inputs: list[Node]) -> Node:
        """Return a node at the sizes, of operands that are."""
        same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
        if same and not next(node_sizes(node), None):
            return node
        attrs: Attrs = {key: self._attribute(value) for key, value in node.attrs.items()}
        try:
            with made_for(origin_of(node)):
                return call(node.op, inputs, attrs, node.name)
        except GraphError as error:
            subject = f"graph {graph} at {self.where}, node {describe(node)}{place_of(node)}"
            raise GraphError(subject, error.reason, error.hint) from None

    def _attribute(self, value: Any) -> object:
        if isinstance(value, Expr):
            return at(value, self.sizes)
        if isinstance(value, tuple):
            return tuple([self._attribute(item) for item in value])
        if isinstance(value, Graph) and graph_sizes(value):
            if value not in self.bodies:
                self.bodies[value] = self.bound(value).graph
            return self.bodies[value]
        return value
