"""Visiting and rewriting graphs, bottom-up, without recursion, each node once.

What a pass does not change stays the same object, up to the graph itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, overload

from loopnest.base.errors import kind_of
from loopnest.graph.graph_error import GraphError
from loopnest.graph.node import Node, describe, items_of
from loopnest.graph.node_origins import made_for, origin_of, postorder
from loopnest.graph.program import Graph, body_of, require_root
from loopnest.graph.registry import rebuild, with_attrs

Rule: TypeAlias = Callable[[Node], Node]

_ALIASES = {"const": "constant", "fused": "function", "variable": "state"}
"""Second names of methods: `visit_constant` is `visit_const`."""


class ExprVisitor:
    """Visit each node of a graph (and of fused bodies) once, operands first.

    A subclass has methods ``visit_<op>(node)``; ``visit_node(node)`` takes every other op.
    """

    def visit(self, root: Graph | Node) -> None:
        """Visit all nodes of a graph, or all that a node reaches."""
        for node in root.nodes if isinstance(root, Graph) else postorder([root]):
            method = _method(self, node.op)
            if method is not None:
                method(node)
            elif node.op == "fused":
                self.visit(body_of(node))
            else:
                self.visit_node(node)

    def visit_node(self, node: Node) -> None:
        """Visit a node that has no method of its own."""


class ExprMutator:
    """Rewrite a graph bottom-up: the same object comes back where nothing changed.

    A subclass has methods ``visit_<op>(node) -> node``. The node that a method gets has its
    operands rewritten already; what it returns is not visited again. ``visit_node(node)`` takes
    every op without a method and returns the node as it is. Bodies of fused groups are rewritten
    too, each by itself, unless `visit_fused` is overridden. One instance visits each node once
    over its lifetime, so that several graphs may share what they share.

    >>> from loopnest.graph import const, var
    >>> class Double(ExprMutator):
    ...     def visit_const(self, node):
    ...         return const(node.value * 2)
    >>> x = var("x", (3,))
    >>> g = Graph([x], [x + 1.0])
    >>> Double().visit(g).outputs
    (<add(x, 2.0): float32[3]>,)
    >>> ExprMutator().visit(g) is g
    True
    """

    def __init__(self) -> None:
        self._memo: dict[Node, Node] = {}

    @overload
    def visit(self, root: Graph) -> Graph: ...
    @overload
    def visit(self, root: Node) -> Node: ...
    def visit(self, root: Graph | Node) -> Graph | Node:
        """Return the rewritten graph or node.

        Raises:
            GraphError: operands no longer fit, or an input became something else than a var.
        """
        memo = self.memo
        require_root(root, type(self).__name__)
        for node in root.nodes if isinstance(root, Graph) else postorder([root]):
            if node not in memo:
                memo[node] = self._visited(rebuild(node, [memo[x] for x in node.inputs]))
        if isinstance(root, Node):
            return memo[root]
        return root.changed([memo[x] for x in root.inputs], [memo[x] for x in root.outputs])

    @property
    def memo(self) -> dict[Node, Node]:
        """What became of each node so far (kept even if a subclass has an `__init__` alone)."""
        found: dict[Node, Node] = self.__dict__.setdefault("_memo", {})
        return found

    def _visited(self, node: Node) -> Node:
        method = _method(self, node.op)
        with made_for(origin_of(node)):
            result = method(node) if method is not None else self.visit_node(node)
        if not isinstance(result, Node):
            raise GraphError(
                describe(node),
                f"{type(self).__name__} returned {kind_of(result)} for it",
                "a visit method returns a node",
            )
        return result

    def visit_node(self, node: Node) -> Node:
        """Return what becomes of a node that has no method of its own."""
        return node

    def visit_fused(self, node: Node) -> Node:
        """Return the call of the rewritten body."""
        body = body_of(node)
        changed = self.visit(body)
        return node if changed is body else with_attrs(node, body=changed)


def _method(visitor: object, op: str) -> Callable[[Node], Node] | None:
    found: Callable[[Node], Node] | None = getattr(visitor, f"visit_{op}", None)
    if found is None and op in _ALIASES:
        found = getattr(visitor, f"visit_{_ALIASES[op]}", None)
    return found


class _ByRule(ExprMutator):
    def __init__(self, rule: Rule) -> None:
        super().__init__()
        self._rule = rule

    def visit_node(self, node: Node) -> Node:
        return self._rule(node)


def rewrite(graph: Graph, rule: Rule) -> Graph:
    """Return `graph` with `rule(node)` for every node, operands first, in fused bodies too.

    The rule gets a node whose operands are rewritten already (never a call of a fused group); it
    returns the node itself to keep it.
    """
    if not callable(rule):
        raise GraphError(
            f"rewrite({require_root(graph, 'rewrite')}, …)",
            f"the rule is {kind_of(rule)}",
            "a rule is a function from a node to a node",
        )
    return _ByRule(rule).visit(graph)


def substitute(roots: Iterable[Node], replacements: Mapping[Node, Node]) -> list[Node]:
    """Return `roots` with nodes replaced, and what depends on them rebuilt; the rest is kept.

    Replacements are taken as they are: they are not searched for further nodes to replace. What
    stands only behind a replaced node is not visited.
    """
    if not isinstance(replacements, Mapping):
        kind = type(replacements).__name__
        raise GraphError("substitute(…)", f"the replacements are a {kind}", "pass a dict of nodes")
    memo = dict(replacements)
    wanted = _nodes(roots)
    for root in wanted:
        stack = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if node in memo:
                continue
            if ready:
                memo[node] = rebuild(node, [memo[x] for x in node.inputs])
            else:
                stack.append((node, True))
                stack += [(x, False) for x in reversed(node.inputs)]
    return [memo[root] for root in wanted]


def _nodes(roots: object) -> list[Node]:
    given = items_of(roots)
    wanted = [root for root in given or () if isinstance(root, Node)]
    if given is None or len(wanted) < len(given):
        kind = type(roots).__name__
        raise GraphError("substitute(…)", f"the roots are a {kind}", "pass a list of nodes")
    return wanted


def inline_call(node: Node) -> list[Node]:
    """Return the outputs of a fused node's body, on the node's operands."""
    body = body_of(node)
    return substitute(body.outputs, dict(zip(body.inputs, node.inputs, strict=True)))


def replace(graph: Graph, replacements: Mapping[Node, Node]) -> Graph:
    """Return `graph` with nodes replaced (its own nodes, not those of fused bodies).

    Inputs stay as they are, but for those that are replaced by a var.
    """
    inputs: Sequence[Node] = [
        replacements[x] if x in replacements and replacements[x].op == "var" else x
        for x in graph.inputs
    ]
    return graph.changed(inputs, substitute(graph.outputs, replacements))
