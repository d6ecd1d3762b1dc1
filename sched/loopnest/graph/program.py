"""A graph: inputs, outputs, and every node between them; functions called as nodes; modules.

A fused group is a node of op ``fused`` whose attribute ``body`` is a Graph of its own: its inputs
stand for the node's operands, its outputs for the node's value (a tuple if there are several).
Nothing in a body refers to a node outside of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeAlias

from loopnest.base.errors import kind_of
from loopnest.base.pickling import STAMP
from loopnest.graph.graph_error import GraphError
from loopnest.graph.node import LEAVES, Attrs, Node, TupleType, Type, describe, is_name, items_of
from loopnest.graph.node_origins import postorder
from loopnest.graph.registry import call, short

METHODS: dict[str, Callable[..., Any]] = {}
"""What methods of graphs hand over to, by name; the package adds it, which knows how to print."""


class Graph:
    """A tensor program, immutable and compared by identity.

    Args:
        inputs: vars, in the order of the arguments; a var may be unused.
        outputs: nodes, which reach no other var.
        name: an identifier.
        attrs: what passes found out about this graph (``provides`` of a pass); no part of its
            structure, dropped when the graph is changed.

    Raises:
        GraphError: an input that is no var or stands twice, an output that is no node, or a var
            that is reached but is no input.

    >>> from loopnest.graph import exp, var
    >>> x = var("x", (3,))
    >>> Graph([x], [exp(x)]).nodes
    (<x: float32[3]>, <exp(x): float32[3]>)
    """

    name: str
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    attrs: Attrs
    nodes: tuple[Node, ...]
    """Inputs in order, then every other node, operands before users; deterministic."""

    def __init__(
        self,
        inputs: Sequence[Node],
        outputs: Sequence[Node],
        name: str = "main",
        attrs: Mapping[str, Any] | None = None,
    ) -> None:
        if attrs is not None and not isinstance(attrs, Mapping):
            kind = type(attrs).__name__
            raise GraphError(f"Graph(name={name!r})", f"the attrs are a {kind}", "pass a dict")
        known = MappingProxyType(dict(attrs or {}))
        ends = {
            "inputs": _nodes("inputs", inputs),
            "outputs": _nodes("outputs", outputs),
        }
        self.__dict__.update(name=name, attrs=known, **ends)
        self._check_ends()
        self.__dict__["nodes"] = tuple(postorder([*self.inputs, *self.outputs]))
        self._check_vars()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a graph does not change: {name} cannot be set")

    def _check_ends(self) -> None:
        subject = f"graph {self.name}"
        if not is_name(self.name):
            raise GraphError(f"Graph(name={self.name!r})", "the name is not an identifier")
        for node in self.inputs:
            if not isinstance(node, Node) or node.op != "var":
                raise GraphError(subject, f"the input {node} is no var", "make inputs by G.var")
        for node in self.outputs:
            if not isinstance(node, Node):
                raise GraphError(subject, f"an output is {kind_of(node)}", "outputs are nodes")
        names = Counter(node.name for node in self.inputs)
        if names and names.most_common(1)[0][1] > 1:
            twice = names.most_common(1)[0][0]
            raise GraphError(subject, f"two inputs are called {twice}", "names are unique")

    def _check_vars(self) -> None:
        known = set(self.inputs)
        for node in self.nodes:
            if node.op == "var" and node not in known:
                have = ", ".join(x.name for x in self.inputs) or "none"
                raise GraphError(
                    f"graph {self.name}",
                    f"the var {node.name} is reached but is no input",
                    f"its inputs are: {have}",
                )

    @cached_property
    def calls(self) -> tuple[Node, ...]:
        """The nodes that call a fused group, operands before users."""
        return tuple(node for node in self.nodes if node.op == "fused")

    @cached_property
    def functions(self) -> tuple[Graph, ...]:
        """The fused groups: the body of each call, in the order of `calls`."""
        return tuple(body_of(node) for node in self.calls)

    @cached_property
    def users(self) -> Mapping[Node, tuple[Node, ...]]:
        """The nodes that take each node as an operand, each once, in the order of `nodes`."""
        found: dict[Node, list[Node]] = {node: [] for node in self.nodes}
        for node in self.nodes:
            for operand in dict.fromkeys(node.inputs):
                found[operand].append(node)
        return {node: tuple(users) for node, users in found.items()}

    @cached_property
    def index(self) -> Mapping[Node, int]:
        """The place of each node in `nodes`."""
        return {node: number for number, node in enumerate(self.nodes)}

    @cached_property
    def variables(self) -> Mapping[str, Node]:
        """The state that the graph reads or assigns (outside of fused bodies), by name."""
        return {n.attrs["variable"]: n for n in self.nodes if n.op == "variable"}

    @property
    def type(self) -> Type:
        """The type of a call: that of the output, or a tuple of those of several."""
        types = tuple(node.type for node in self.outputs)
        return types[0] if len(types) == 1 else TupleType(types)

    def with_outputs(self, outputs: Sequence[Node]) -> Graph:
        """Return the graph with other outputs; itself where they are the same."""
        return self.changed(self.inputs, outputs)

    def changed(self, inputs: Sequence[Node], outputs: Sequence[Node]) -> Graph:
        """Return the graph with other ends, without attributes; itself where all are the same."""
        inputs, outputs = _nodes("inputs", inputs), _nodes("outputs", outputs)
        same = len(inputs) == len(self.inputs) and len(outputs) == len(self.outputs)
        pairs = zip((*inputs, *outputs), (*self.inputs, *self.outputs), strict=False)
        if same and all(a is b for a, b in pairs):
            return self
        return Graph(inputs, outputs, self.name)

    def with_attrs(self, **attrs: object) -> Graph:
        """Return a graph of the same nodes that knows `attrs` too."""
        return Graph(self.inputs, self.outputs, self.name, {**self.attrs, **attrs})

    def find(self, expr: Node) -> tuple[Node, ...]:
        """Return the nodes that compute `expr`: see `loopnest.graph.find`."""
        found: tuple[Node, ...] = METHODS["find"](self, expr)
        return found

    def __reduce__(self) -> tuple[Callable[..., Graph], tuple[object, ...]]:
        """Pickle everything but `attrs`; see `loopnest.graph.registry`."""
        return _loaded, (STAMP, self.outputs, self.inputs, self.name)

    def __repr__(self) -> str:
        ends = ", ".join(str(node.type) for node in self.outputs)
        return f"<graph {self.name}: {len(self.nodes)} nodes -> {ends}>"

    def _repr_html_(self) -> str:
        """Return a picture where Graphviz is installed, else the text."""
        found: str = METHODS["html"](self)
        return found

    def text(self, full: bool = False) -> str:
        """Return the text of the graph, which `parse` reads; `str` of it, if not `full`.

        Args:
            full: whether constants of more than 4 KiB follow whole. Else they are digests, and the
                text parses only in this process, while it holds them.
        """
        found: str = METHODS["text"](self, full=full)
        return found

    def __str__(self) -> str:
        return self.text()


def _nodes(role: str, given: object) -> tuple[Any, ...]:
    """Return the ends of a graph as a tuple.

    Raises:
        GraphError: they are no sequence.
    """
    found = items_of(given)
    if found is None:
        what = describe(given) if isinstance(given, Node) else kind_of(given)
        raise GraphError(f"Graph({role}=…)", f"{role} is {what}", "pass a list of nodes")
    return found


def require_graph(value: object, function: str) -> Graph:
    """Return the first argument of a function if it is a graph.

    Raises:
        GraphError: the argument is no graph.
    """
    if isinstance(value, Graph):
        return value
    raise GraphError(f"{function}(…)", f"it was given {kind_of(value)}", "pass a G.Graph")


def require_root(value: object, function: str) -> Graph | Node:
    """Return the first argument of a function if it is a graph or a node.

    Raises:
        GraphError: it is neither.
    """
    return value if isinstance(value, Node) else require_graph(value, function)


def _loaded(_: object, outputs: tuple[Node, ...], inputs: tuple[Node, ...], name: str) -> Graph:
    return Graph(inputs, outputs, name)


def call_graph(body: Graph, args: Sequence[Node], name: str = "") -> Node:
    """Return a node that calls `body` as one fused group; a tuple if it has several outputs.

    Raises:
        GraphError: the operands do not fit the body's inputs.
    """
    return call("fused", args, {"body": body}, name)


def body_of(node: Node) -> Graph:
    """Return the body of a fused node.

    Raises:
        GraphError: the node is no fused one.
    """
    if not isinstance(node, Node):
        raise GraphError("body_of(…)", f"it was given {kind_of(node)}", "pass a node")
    if node.op != "fused":
        raise GraphError(describe(node), f"op {node.op} has no body")
    body: Graph = node.attrs["body"]
    return body


def count_ops(graph: Graph) -> dict[str, int]:
    """Return how often each op stands in a graph, fused bodies included, by name.

    Leaves (var, const, variable) and the calls of fused groups themselves are not counted.
    """
    counts: Counter[str] = Counter()
    pending = [require_graph(graph, "count_ops")]
    while pending:
        for node in pending.pop().nodes:
            if node.op == "fused":
                pending.append(body_of(node))
            elif node.op not in LEAVES:
                counts[node.op] += 1
    return dict(sorted(counts.items()))


class Module:
    """Graphs of distinct names, in order; immutable, compared by identity.

    Args:
        graphs: the graphs.

    Raises:
        GraphError: one is no graph, or two have the same name.

    >>> from loopnest.graph import var
    >>> x = var("x", (3,))
    >>> Module([Graph([x], [x], "forward"), Graph([x], [x + x], "backward")])
    <module: forward, backward>
    """

    __slots__ = ("graphs",)

    def __init__(self, graphs: Iterable[Graph]) -> None:
        found = items_of(graphs)
        if found is None:
            kind = type(graphs).__name__
            raise GraphError("Module(…)", f"it was given a {kind}", "pass a list of graphs")
        self.graphs: tuple[Graph, ...] = found
        names: set[str] = set()
        for graph in self.graphs:
            if not isinstance(graph, Graph):
                raise GraphError("Module(…)", f"it was given {kind_of(graph)}", "no graph")
            if graph.name in names:
                raise GraphError("Module(…)", f"two graphs are called {graph.name}")
            names.add(graph.name)

    def __getitem__(self, name: str) -> Graph:
        for graph in self.graphs:
            if isinstance(name, str) and graph.name == name:
                return graph
        have = ", ".join(graph.name for graph in self.graphs) or "none"
        raise GraphError(f"Module[{short(name)}]", "there is no such graph", f"it has: {have}")

    def __iter__(self) -> Iterator[Graph]:
        return iter(self.graphs)

    def __len__(self) -> int:
        return len(self.graphs)

    def map(self, function: Callable[[Graph], Graph]) -> Module:
        """Return the module of `function` of each graph; itself where all stay the same object."""
        mapped = [function(graph) for graph in self.graphs]
        same = all(new is old for new, old in zip(mapped, self.graphs, strict=True))
        return self if same else Module(mapped)

    def __repr__(self) -> str:
        return f"<module: {', '.join(graph.name for graph in self.graphs)}>"

    def __str__(self) -> str:
        return "\n\n".join(str(graph) for graph in self.graphs)


Unit: TypeAlias = Graph | Module
"""What a pass is called on, and returns."""


def graphs_of(unit: Unit) -> tuple[Graph, ...]:
    """Return the graph, or those of a module."""
    return unit.graphs if isinstance(unit, Module) else (unit,)
