"""Distribute: the distributive law, wherever it makes a graph cheaper.

```
(a*b + a*c) + (a*d + d*c)   ->   a*(b + c) + d*(a + c)
(a*b + a*c) + (a*b + 2*d)   ->   a*(b + c) + (a*b + 2*d)
                                 a*((b + c) + b) + 2*d        with reassociation
```

Each tree of additions is rewritten at once. Its forms are `FixedSums` or `FreeSums`; what a form
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

Sums of products in other forms: the distributive law, with and without reassociation.

A form of a sum is a node that computes it. `FixedSums` keeps the tree of additions as it is and
uses the law on two operands of one addition; `FreeSums` takes the addends of a whole tree of
additions, and the factors of products, in any grouping.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from loopnest.graph.cost import flops, traffic
from loopnest.graph.dimensions import broadcast, typical
from loopnest.graph.graph_error import GraphError
from loopnest.graph.node import LEAVES, Node, describe
from loopnest.graph.passes.manager import (
    FunctionPass,
    PassContext,
    PassInfo,
    register_option,
    register_pass,
)
from loopnest.graph.passes.numbering import Numbering
from loopnest.graph.program import Graph, Unit, body_of, graphs_of
from loopnest.graph.registry import call, rebuild, short, with_attrs
from loopnest.graph.structural import attribute_key

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


Cost: TypeAlias = Callable[[Node], float]
Number: TypeAlias = Callable[[Node], int]
"""What operands are compared by."""

SUMS = frozenset({"add", "sub"})

_COMMON = {
    # op: pairs of operand places that may hold the common factor of two products, in the order in
    # which they are tried: (place in the left product, place in the right one).
    "mul": ((0, 0), (0, 1), (1, 0), (1, 1)),
    "matmul": ((0, 0), (1, 1)),
    "conv2d": ((0, 0), (1, 1)),
    "div": ((1, 1),),
}
PRODUCTS = frozenset(_COMMON)

_DEPTH = 12
"""How deep in products of products all common factors are tried; deeper, the first is taken."""


class Workshop:
    """Where forms are built: one node for each value that is built.

    Args:
        number: what operands are compared by; equal numbers are equal operands.
        known: nodes by number that may be used instead of a new one (empty if nodes of the graph
            count by identity).
        cost: of one node.
        opened: the nodes of the graph that forms may leave out: the sums and products in question.
    """

    def __init__(
        self, number: Number, known: Mapping[int, Node], cost: Cost, opened: Iterable[Node]
    ) -> None:
        self.number, self.cost = number, cost
        self._known = known
        self._made: dict[object, Node] = {}
        self._open = set(opened)
        self._weights: dict[Node, float] = {}

    def make(self, op: str, operands: Sequence[Node], like: Node | None = None) -> Node:
        """Return the op on operands, with the attributes of the node `like`."""
        key = (op, like is not None and _attrs(like), *operands)
        if key not in self._made:
            node = call(op, operands, None if like is None else like.attrs)
            node = self._known.get(self.number(node), node)
            self._made[key] = node
            self._open.add(node)
        return self._made[key]

    def weight(self, node: Node) -> float:
        """Return the cost of what a form builds; what it uses twice counts twice."""
        stack = [node]
        while stack:
            top = stack[-1]
            inner = [x for x in top.inputs if x in self._open]
            missing = [x for x in inner if x not in self._weights]
            if top not in self._weights and missing:
                stack += missing
            else:
                total = self.cost(top) + sum(self._weights.get(x, 0.0) for x in inner)
                self._weights.setdefault(top, total)
                stack.pop()
        return self._weights[node]

    def same(self, a: Node, b: Node) -> bool:
        """Whether two operands are the same."""
        return a is b or self.number(a) == self.number(b)


def _attrs(node: Node) -> object:
    return attribute_key(tuple([(key, node.attrs[key]) for key in sorted(node.attrs)]))


def fits(product: str, a: Node, b: Node) -> bool:
    """Whether two operands of products can be added before the product is formed."""
    if product == "conv2d":
        return a.shape == b.shape  # windows of one size
    return broadcast((a.shape, b.shape)) is not None


@dataclass(frozen=True, slots=True)
class _Factor:
    """A common factor: of a mul (`like` is None), or at a place of another kind of product."""

    node: Node
    place: int = 0
    like: Node | None = None

    @property
    def key(self) -> object:
        return None if self.like is None else (self.like.op, _attrs(self.like))

    def of(self, shop: Workshop, inner: Node) -> Node:
        """Return the product of the factor and what is left of the products that have it."""
        operands = (inner, self.node) if self.place else (self.node, inner)
        return shop.make("mul" if self.like is None else self.like.op, operands, self.like)

    def fits(self, other: _Factor) -> bool:
        """Whether what is left of two products can be added."""
        if self.like is None or other.like is None:
            return True
        own, others = self.like.inputs[1 - self.place], other.like.inputs[1 - other.place]
        return fits(self.like.op, own, others)


class FixedSums:
    """Forms of a tree of additions that keep the tree.

    Args:
        shop: where forms are built.
        tree: the additions of the tree, operands first; their other operands are its leaves.
        width: how many forms of each addition are kept, the cheapest.
    """

    def __init__(self, shop: Workshop, tree: Iterable[Node], width: int = 8) -> None:
        self._shop, self._width = shop, width
        self._forms: dict[Node, list[Node]] = {}
        self._sums: dict[object, list[Node]] = {}
        for node in tree:
            left, right = [self._forms.get(x, [x]) for x in node.inputs]
            found = [f for a in left for b in right for f in self._sum(node.op, a, b)]
            self._forms[node] = self._best(found)

    def of(self, root: Node) -> list[Node]:
        """Return the forms of the whole, the cheapest first, of equal ones the first tried."""
        return self._forms[root]

    def _best(self, forms: Iterable[Node]) -> list[Node]:
        return sorted(dict.fromkeys(forms), key=self._shop.weight)[: self._width]

    def _sum(self, op: str, a: Node, b: Node, depth: int = _DEPTH) -> list[Node]:
        """Return forms of a + b or a - b: as it is, and with each common factor in front."""
        key = (op, self._shop.number(a), self._shop.number(b), depth)
        if key not in self._sums:
            forms = [self._shop.make(op, (a, b))]
            for taken, rests in self._factored(a, b) if depth else ():
                # The sum of the rests may have a common factor in turn.
                forms += [taken.of(self._shop, inner) for inner in self._sum(op, *rests, depth - 1)]
            forms += [] if depth else [self._first_factors(op, a, b)]
            self._sums[key] = self._best(forms)
        return self._sums[key]

    def _first_factors(self, op: str, a: Node, b: Node) -> Node:
        """Return the form with the first common factor in front, again and again."""
        found: list[_Factor] = []
        while (step := next(self._factored(a, b), None)) is not None:
            found.append(step[0])
            a, b = step[1]
        form = self._shop.make(op, (a, b))
        for factor in reversed(found):
            form = factor.of(self._shop, form)
        return form

    def _factored(self, a: Node, b: Node) -> Iterator[tuple[_Factor, tuple[Node, Node]]]:
        """Yield each common factor of two products, and what is left of both."""
        if a.op != b.op or a.op not in PRODUCTS or _attrs(a) != _attrs(b):
            return
        for i, j in _COMMON[a.op]:
            rests = (a.inputs[1 - i], b.inputs[1 - j])
            if self._shop.same(a.inputs[i], b.inputs[j]) and fits(a.op, *rests):
                yield _Factor(a.inputs[i]) if a.op == "mul" else _Factor(a.inputs[i], i, a), rests


@dataclass(frozen=True, slots=True)
class ProductTerm:
    """An addend: its sign, its factors, and the node of their product if there is one."""

    sign: int
    factors: tuple[Node, ...]
    node: Node | None = None


class FreeSums:
    """Forms of a sum of terms in any grouping: what common factor to take out, and in what order.

    All orders are tried for few terms; for many, the common factor with the most terms is taken
    first (greedy, as in algebraic factoring of logic).

    Source: Brayton and McMullen, "The decomposition and factorization of Boolean expressions",
    1982.
    """

    _FEW = 8
    _STEPS = 400

    def __init__(self, shop: Workshop) -> None:
        self._shop = shop
        self._steps = 0
        self._best: dict[object, Node] = {}

    def form(self, terms: Sequence[ProductTerm], depth: int = _DEPTH) -> Node:
        """Return the cheapest form that was found; it is the negated sum if all signs are -1."""
        self._steps += 1
        if len(terms) > self._FEW or self._steps > self._STEPS:
            return self._greedy(terms, depth)
        key = tuple([(t.sign, *[self._shop.number(f) for f in t.factors]) for t in terms])
        if key not in self._best:
            forms = [self._added(terms)]
            for group in self._groups(terms) if depth else ():
                forms.append(self.form(self._taken_out(terms, *group, depth), depth - 1))
            self._best[key] = min(forms, key=self._shop.weight)
        return self._best[key]

    def _greedy(self, terms: Sequence[ProductTerm], depth: int) -> Node:
        groups = self._groups(terms) if depth else []
        while groups:
            terms = self._taken_out(terms, *max(groups, key=lambda group: len(group[1])), depth)
            groups = self._groups(terms)
        return self._added(terms)

    def _taken_out(
        self, terms: Sequence[ProductTerm], factor: _Factor, places: Sequence[int], depth: int
    ) -> list[ProductTerm]:
        """Return the terms with a common factor taken out of those at `places`."""
        chosen = [terms[i] for i in places]
        sign = max(t.sign for t in chosen)
        inner = self.form(
            [ProductTerm(t.sign * sign, self._without(t, factor)) for t in chosen], depth - 1
        )
        factors = (factor.node, inner) if factor.like is None else (factor.of(self._shop, inner),)
        rest = {i: t for i, t in enumerate(terms) if i not in places}
        rest[places[0]] = ProductTerm(sign, factors)
        return [rest[i] for i in sorted(rest)]

    def _groups(self, terms: Sequence[ProductTerm]) -> list[tuple[_Factor, list[int]]]:
        """Return each factor that several terms have, and their places, in order of appearance."""
        found: dict[object, tuple[_Factor, dict[int, None]]] = {}
        for i, term in enumerate(terms):
            for factor in self._factors(term):
                key = (factor.key, factor.place, self._shop.number(factor.node))
                first, places = found.setdefault(key, (factor, {}))
                if first.fits(factor):
                    places[i] = None
        return [(factor, list(places)) for factor, places in found.values() if len(places) > 1]

    def _factors(self, term: ProductTerm) -> Iterator[_Factor]:
        if len(term.factors) > 1:
            for node in term.factors:
                yield _Factor(node)
        elif term.factors[0].op in PRODUCTS - {"mul"}:
            product = term.factors[0]
            for place, _ in _COMMON[product.op]:
                yield _Factor(product.inputs[place], place, product)

    def _without(self, term: ProductTerm, factor: _Factor) -> tuple[Node, ...]:
        if factor.like is not None:
            return (term.factors[0].inputs[1 - factor.place],)
        places = [i for i, f in enumerate(term.factors) if self._shop.same(f, factor.node)]
        return term.factors[: places[0]] + term.factors[places[0] + 1 :]

    def _added(self, terms: Sequence[ProductTerm]) -> Node:
        """Return the sum of terms, from left to right, a positive one first."""
        ordered = sorted(terms, key=lambda t: t.sign < 0)
        turned = ordered[0].sign
        total = self._product(ordered[0])
        for term in ordered[1:]:
            op = "add" if term.sign == turned else "sub"
            total = self._shop.make(op, (total, self._product(term)))
        return total

    def _product(self, term: ProductTerm) -> Node:
        """Return the product of a term's factors, small ones first."""
        if term.node is not None:
            return term.node
        first, *others = sorted(term.factors, key=lambda f: typical(f.tensor_type.size))
        for factor in others:
            first = self._shop.make("mul", (first, factor))
        return first


def products_under(nodes: Iterable[Node], most: int = 10_000) -> list[Node]:
    """Return the products among nodes, and those among the operands of these, and so on."""
    found: dict[Node, None] = {}
    pending = list(nodes)
    while pending and len(found) < most:
        node = pending.pop()
        if node not in found and (node.op in PRODUCTS or node.op == "neg"):
            found[node] = None
            pending += node.inputs
    return list(found)


def terms_of(tree: Iterable[Node], root: Node) -> list[ProductTerm]:
    """Return the addends of a tree of additions, left to right, products opened to their factors.

    Args:
        tree: its additions.
        root: the last of them.
    """
    inside = set(tree)
    terms: list[ProductTerm] = []
    stack = [(1, root)]
    while stack:
        sign, node = stack.pop()
        if node in inside:
            left, right = node.inputs
            stack += [(-sign if node.op == "sub" else sign, right), (sign, left)]
        elif node.op == "neg":
            stack.append((-sign, node.inputs[0]))
        else:
            terms.append(ProductTerm(sign, _factors_of(node), node))
    return terms


def _factors_of(node: Node, most: int = 8) -> tuple[Node, ...]:
    factors = [node]
    while len(factors) < most:
        place = next((i for i, f in enumerate(factors) if f.op == "mul"), None)
        if place is None:
            break
        factors[place : place + 1] = factors[place].inputs
    return tuple(factors)
