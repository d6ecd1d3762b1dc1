"""Distribute: the distributive law, wherever it makes a graph cheaper.

```
(a*b + a*c) + (a*d + d*c)   ->   a*(b + c) + d*(a + c)
(a*b + a*c) + (a*b + 2*d)   ->   a*(b + c) + (a*b + 2*d)
                                 a*((b + c) + b) + 2*d        with reassociation
```

Each tree of additions is rewritten at once. Its forms come from `distribute_forms`; what a form
costs is found in the graph as it is: the nodes that would no longer be needed are taken off, those
that it needs are put on, and nodes that others need anyway are free. The cheapest form is taken if
it is cheaper than what is there; of equal ones the first in the order of the source below.

On an e-graph library. egglog (PyPI, 13.2, MIT) was tried on both examples: it saturates them in
0.05 s and finds the same costs. It was not taken. Its extraction counts a shared term at every use
(upstream calls DAG costs unsupported, and a greedy extractor is not in the release), while this
pass lives on sharing: ``a*b`` that stands elsewhere too must count as free. With commutativity
every order of operands is equal to it, and which one it prints is not ours to say, while ties here
keep the source's order. It brings 34 packages and 215 MB, and takes 0.8 s to import. What is needed
is small: sums of a few products, with one law.

Source: "The Problem of Tensor level optimization", wiki of github.com/BoostGSoC19/tensor, 2019
(`optimize_xform`, which tries the places of a common factor in order); costs by reference counts as
in Mishchenko et al., "DAG-aware AIG rewriting", 2006.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from loopnest.graph.cost import flops, traffic
from loopnest.graph.dimensions import typical
from loopnest.graph.graph_error import GraphError
from loopnest.graph.node import LEAVES, Node, describe
from loopnest.graph.passes.context import PassContext
from loopnest.graph.passes.decorators import register_pass
from loopnest.graph.passes.distribute_forms import (
    PRODUCTS,
    SUMS,
    FixedSums,
    FreeSums,
    Workshop,
    products_under,
    terms_of,
)
from loopnest.graph.passes.info import PassInfo
from loopnest.graph.passes.manager import FunctionPass
from loopnest.graph.passes.module import Unit, graphs_of
from loopnest.graph.passes.numbering import Numbering
from loopnest.graph.passes.options import register_option
from loopnest.graph.program import Graph, body_of
from loopnest.graph.registry import rebuild, short, with_attrs

register_option(
    "Distribute.reassociate", False, doc="whether sums and products of floats may be regrouped"
)
register_option(
    "Distribute.identity", "structure", doc="what operands are compared by: 'structure' or 'object'"
)
register_option(
    "Distribute.bytes_weight",
    0.25,
    (int, float),
    doc="how many operations a byte that is read or written is worth, >= 0",
)

_ROUNDS = 8
"""A rewrite may bring forth sums that can be rewritten; so often at most they are."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A sum that was rewritten.

    Attributes:
        before: the node as it was.
        after: the node that computes it now.
        saved: by how much the graph became cheaper (operations, and bytes by their weight).
        reassociated: whether sums or products were regrouped.
    """

    before: Node
    after: Node
    saved: float
    reassociated: bool

    def __str__(self) -> str:
        law = "distributed and regrouped" if self.reassociated else "distributed"
        return f"{describe(self.before, 3)} -> {describe(self.after, 3)}: {law}, saves {self.saved}"


class Distribute(FunctionPass):
    """Take common factors out of sums where that costs less: ``a*b + a*c -> a*(b + c)``.

    Products are mul, matmul (``A@B + A@C -> A@(B + C)``, ``A@C + B@C -> (A + B)@C``), conv2d
    (linear in the data and in the kernel) and div (``a/c + b/c -> (a + b)/c``); sums are add and
    sub. The law rounds otherwise than what it replaces, and that is what this pass is called for.

    Regrouping is another matter, and opt-in for floats. As reassociation count: taking together
    addends that are not the two operands of one addition (``x + (y + z) -> (x + y) + z``), factors
    that are not the two operands of one product (``a*(b*c) + b*d -> b*(a*c + d)``), and moving a
    sign out of a sum or product. Integers wrap, so that regrouping them is exact: they need no
    option.

    Args:
        reassociate: whether floats may be regrouped; None takes the option
            ``Distribute.reassociate``, which is False.
        identity: "structure": operands are the same if they compute the same; "object": only if
            they are the same node. None takes the option ``Distribute.identity``, "structure".

    Attributes:
        rewrites: what the last run did; empty where nothing applied, and then the graph that came
            back is the same object.

    Raises:
        GraphError: another identity.

    It runs until nothing more applies, so that a second run changes nothing (at most 8 times, which
    no graph needed so far).

    >>> from loopnest.graph import var
    >>> a, b, c = [var(name, (4,)) for name in "abc"]
    >>> g = Graph([a, b, c], [a * b + a * c])
    >>> law = Distribute()
    >>> h = law(g)
    >>> print(law.rewrites[0])
    add(mul(a, b), mul(a, c)) -> mul(a, add(b, c)): distributed, saves 16.0
    >>> law(h) is h, law.changed
    (True, False)
    """

    info = PassInfo("Distribute", opt_level=2)

    def __init__(self, reassociate: bool | None = None, identity: str | None = None) -> None:
        if identity is not None:
            _check_identity(identity)
        self.reassociate, self.identity = reassociate, identity
        self.rewrites: tuple[Rewrite, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether the last run changed the graph."""
        return bool(self.rewrites)

    def transform_function(self, func: Graph, mod: Unit, ctx: PassContext) -> Graph:
        if func is graphs_of(mod)[0]:
            self.rewrites = ()
        settings = _Settings(
            ctx.option("Distribute.reassociate") if self.reassociate is None else self.reassociate,
            _check_identity(self.identity or ctx.option("Distribute.identity")) == "structure",
            ctx.option("Distribute.bytes_weight"),
        )
        for _ in range(_ROUNDS):
            func, rewrites = _Distributor(func, settings).run()
            self.rewrites += tuple(rewrites)
            if not rewrites:
                break
        return func


def _check_identity(identity: object) -> str:
    if not isinstance(identity, str) or identity not in ("structure", "object"):
        raise GraphError(
            f"Distribute(identity={short(identity)})",
            "there is none",
            "use 'structure' or 'object'",
        )
    return identity


@dataclass(frozen=True, slots=True)
class _Settings:
    reassociate: bool
    by_structure: bool
    bytes_weight: float


@dataclass
class _References:
    """How often each node of the graph is used, kept up to date while forms are tried."""

    settings: _Settings
    uses: Counter[Node] = field(default_factory=Counter)
    costs: dict[Node, float] = field(default_factory=dict)

    def cost(self, node: Node) -> float:
        """Return the cost of one node."""
        found = self.costs.get(node)
        if found is None:
            moved = self.settings.bytes_weight * typical(traffic(node))
            work = typical(flops(node)) + moved
            found = self.costs[node] = 0.0 if node.op in LEAVES else work
        return found

    def release(self, root: Node) -> float:
        """Take off a node that nobody uses any more, and what it alone used; return their cost."""
        total, stack = 0.0, [root]
        while stack:
            node = stack.pop()
            total += self.cost(node)
            for operand in node.inputs:
                self.uses[operand] -= 1
                if not self.uses[operand]:
                    stack.append(operand)
        return total

    def acquire(self, root: Node) -> float:
        """Put on a node that nobody uses yet, and what it needs; return their cost."""
        total, stack = 0.0, [root]
        while stack:
            node = stack.pop()
            total += self.cost(node)
            for operand in node.inputs:
                if not self.uses[operand]:
                    stack.append(operand)
                self.uses[operand] += 1
        return total

    def price(self, root: Node) -> float:
        """Return what it would cost to put on a node."""
        if self.uses[root]:
            return 0.0
        total = self.acquire(root)
        self.release(root)
        return total


class _Distributor:
    """One run on one graph."""

    def __init__(self, graph: Graph, settings: _Settings) -> None:
        self._graph, self._settings = graph, settings
        self._references = _References(settings)
        self._numbers = Numbering()
        self._known: dict[int, Node] = {}
        self._rewrites: list[Rewrite] = []
        self._bodies: dict[Graph, Graph] = {}
        self._ends = set(graph.outputs)

    def run(self) -> tuple[Graph, list[Rewrite]]:
        uses = self._references.uses
        for node in self._graph.nodes:
            uses.update(node.inputs)
        uses.update(self._graph.outputs)
        done: dict[Node, Node] = {}
        for node in self._graph.nodes:
            new = self._body(rebuild(node, [done[x] for x in node.inputs]))
            uses[new] = uses[node]
            if node.op in SUMS and not self._is_inner(node):
                new = self._best_form(node, new)
            done[node] = new
            if self._settings.by_structure:
                self._numbers.add([new])
                self._known.setdefault(self._numbers[new], new)
        outputs = [done[x] for x in self._graph.outputs]
        return self._graph.changed(self._graph.inputs, outputs), self._rewrites

    def _body(self, node: Node) -> Node:
        """Return a fused call with its body rewritten; any other node as it is."""
        if node.op != "fused":
            return node
        body = body_of(node)
        if body not in self._bodies:
            self._bodies[body], rewrites = _Distributor(body, self._settings).run()
            self._rewrites += rewrites
        new = self._bodies[body]
        return node if new is body else with_attrs(node, body=new)

    def _is_inner(self, node: Node) -> bool:
        """Whether a sum is an operand of one other sum only, which then is the one to rewrite."""
        users = self._graph.users[node]
        once = len(users) == 1 and users[0].inputs.count(node) == 1
        return once and users[0].op in SUMS and node not in self._ends

    def _number(self, node: Node) -> int:
        if not self._settings.by_structure:
            return id(node)
        self._numbers.add([node])
        return self._numbers[node]

    def _best_form(self, old: Node, root: Node) -> Node:
        """Return the cheapest form of a tree of sums; `root` itself if none is cheaper."""
        tree = self._tree(root)
        forms = self._forms(root, tree)
        if not forms:
            return root
        references = self._references
        users, cost = references.uses.pop(root), references.release(root)
        prices = [(references.price(form), i) for i, (form, _) in enumerate(forms)]
        least, first = min(prices)
        best, regrouped = forms[first] if least < cost else (root, False)
        if not references.uses[best]:
            references.acquire(best)
        references.uses[best] += users
        if best is not root:
            self._rewrites.append(Rewrite(old, best, cost - least, regrouped))
        return best

    def _tree(self, root: Node) -> list[Node]:
        """Return the sums that belong to a tree of additions, operands first."""
        found, stack = [], [root]
        while stack:
            node = stack.pop()
            found.append(node)
            stack += [x for x in node.inputs if x.op in SUMS and self._references.uses[x] == 1]
        return found[::-1]

    def _forms(self, root: Node, tree: list[Node]) -> list[tuple[Node, bool]]:
        """Return other forms of a sum, and whether each regroups; none if no product is in it."""
        inside = set(tree)
        leaves = [x for node in tree for x in node.inputs if x not in inside]
        if sum(_is_product(x) for x in leaves) < 2:
            return []
        known: Mapping[int, Node] = self._known if self._settings.by_structure else {}
        opened = [*tree, *products_under(leaves)]
        shop = Workshop(self._number, known, self._references.cost, opened)
        forms = [(form, False) for form in FixedSums(shop, tree).of(root)]
        if self._settings.reassociate or root.dtype.is_integer:
            terms = terms_of(tree, root)
            form = FreeSums(shop).form(terms)
            negated = all(term.sign < 0 for term in terms)
            forms.append((shop.make("neg", (form,)) if negated else form, True))
        return [(f, is_free) for f, is_free in forms if f is not root and f.type == root.type]


def _is_product(node: Node) -> bool:
    while node.op == "neg":
        (node,) = node.inputs
    return node.op in PRODUCTS


register_pass("Distribute", Distribute)
