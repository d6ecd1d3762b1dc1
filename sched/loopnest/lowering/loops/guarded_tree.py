"""Between the passes: the nest as a tree of loops, with phases or guarded statements as leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from loopnest.base.fast_init import fast_init
from loopnest.kir import (
    Allocate,
    Arrive,
    Barrier,
    Collective,
    Commit,
    Issue,
    Let,
    Shuffle,
    Store,
    Wait,
    map_expressions,
)
from loopnest.lowering.loops.loop_plan import LoopSpec
from loopnest.lowering.loops.phase_nest import Compute
from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import (
    TRUE,
    Buffer,
    Const,
    Expr,
    Index,
    LaunchIndex,
    Load,
    loads,
    map_loads,
    substitute,
    variables,
)

Rename: TypeAlias = Callable[[Expr], Expr]
_Stored: TypeAlias = dict[Buffer, frozenset[ParallelType]]


@fast_init
@dataclass(frozen=True, slots=True)
class PredicateTerm:
    """One term of a predicate, and why it is needed.

    Args:
        condition: what must hold.
        reason: for people.
        inside: where it keeps to a root axis of the tensor, the test of each element alone (one
            lane of a vector may stand for all in `condition`).
        folded: whether elements beyond that axis would be folded into a result.
        idle: whether it is needed for nothing: an update takes nothing in elsewhere.
    """

    condition: Expr
    reason: str
    inside: Expr | None = None
    folded: bool = False
    idle: bool = False


Simple: TypeAlias = "Store | Let | Shuffle | Arrive | Commit"


@fast_init
@dataclass(frozen=True, eq=False, slots=True)
class Guarded:
    """Statements under the conjunction of `terms`.

    With `fill`, where elements lie beyond the tensor (`Term.inside`) they are stored that instead.
    """

    statements: tuple[Simple, ...]
    terms: tuple[PredicateTerm, ...]
    fill: Const | None = None


@fast_init
@dataclass(frozen=True, eq=False, slots=True)
class Tree:
    """A loop (or the kernel's body, where `var` is None) with allocations in place.

    The leaves are computation phases before indexing, guarded statements after. A tree with a
    `header` is no loop, but the body of that statement. The body of a Wait, which the nest does not
    show, are the stores of the copies that land there.
    """

    var: Index | None
    spec: LoopSpec | None
    body: tuple[TreeItem, ...]
    header: Collective | Issue | Wait | None = None


TreeItem: TypeAlias = "Tree | Compute | Guarded | Allocate | Barrier"


def fresh(item: TreeItem, names: dict[Expr, Expr]) -> TreeItem:
    """Return a copy of `item` whose loops have indices of their own, which `names` then has."""
    if isinstance(item, Tree):
        var = item.var
        if var is not None:
            names[var] = var = Index(var.name, var.extent)
        made = item.header
        if made is not None:
            made = map_expressions(made, lambda value: substitute(value, names))
        body = tuple([fresh(inner, names) for inner in item.body])
        return replace(item, var=var, body=body, header=made)
    if isinstance(item, Guarded):
        return guarded(item, lambda value: substitute(value, names), lambda node: node, ())
    return item


def items_of(tree: Tree) -> Iterator[TreeItem]:
    """Yield the items in a tree at any depth, each in front of those in it."""
    for item in tree.body:
        yield item
        if isinstance(item, Tree):
            yield from items_of(item)


def guarded_items(tree: Tree) -> Iterator[Guarded]:
    """Yield the guarded statements in a tree."""
    return (item for item in items_of(tree) if isinstance(item, Guarded))


def map_guarded(tree: Tree, rule: Callable[[Guarded], Guarded]) -> Tree:
    """Return a tree with what a rule makes of its guarded statements."""

    def made(item: TreeItem) -> TreeItem:
        if isinstance(item, Tree):
            return map_guarded(item, rule)
        return rule(item) if isinstance(item, Guarded) else item

    return replace(tree, body=tuple([made(item) for item in tree.body]))


def made_in(tree: Tree) -> Iterator[Buffer]:
    """Yield the buffers that are made inside of a loop."""
    return (item.storage for item in items_of(tree) if isinstance(item, Allocate))


@dataclass(frozen=True, slots=True)
class ThreadData:
    """Which threads have data that a test may load.

    Args:
        launch: the extent of each launch dimension.
        stored: the dimensions along which each thread stores data of its own to a buffer, or none.
    """

    launch: Mapping[ParallelType, Expr]
    stored: Mapping[Buffer, frozenset[ParallelType]]

    def lacks(self, term: Expr, dimension: ParallelType) -> bool:
        """Whether threads along a dimension may not have the data that a test loads."""
        return any(dimension in self.stored.get(load.buffer, ()) for load in loads(term))

    def covers(self, dimension: ParallelType, extent: Expr) -> bool:
        """Whether all threads along a dimension run a loop, and the host is none in their place.

        Where a symbolic extent is 0, no thread stores data, and the host comes by the test.
        """
        return self.launch.get(dimension) is extent and isinstance(extent, Const)


def stored_apart(tree: Tree, around: frozenset[ParallelType] = frozenset()) -> _Stored:
    """Return by buffer the launch dimensions along which each thread stores data of its own."""
    found: _Stored = {}
    for item in tree.body:
        if isinstance(item, Tree):
            own = around if item.spec is None else around | {item.spec.parallel}
            made = stored_apart(item, own)
        elif isinstance(item, Guarded):
            named = [v for term in item.terms for v in variables(term.condition)]
            dims = around | {v.dimension for v in named if isinstance(v, LaunchIndex)}
            made = {s.storage: dims for s in item.statements if isinstance(s, Store)}
        else:
            continue
        for buffer, dims in made.items():
            private = [d for d in dims if _is_private(buffer, d)]
            found[buffer] = found.get(buffer, frozenset()).union(private)
    return found


def _is_private(buffer: Buffer, dimension: ParallelType) -> bool:
    """Whether threads along a launch dimension have a buffer each."""
    return dimension.is_thread and not buffer.memory.spans(dimension)


def idle_conditions(tree: Tree) -> Iterator[Expr]:
    """Yield the conditions outside of which updates take nothing in."""
    for item in guarded_items(tree):
        yield from (term.condition for term in item.terms if term.idle)


def with_buffers(item: TreeItem, other: Mapping[Buffer, Buffer]) -> TreeItem:
    """Return `item` with other buffers in the place of some."""
    if isinstance(item, Allocate):
        return replace(item, storage=other.get(item.storage, item.storage))

    def rule(node: Load) -> Load:
        made = other.get(node.buffer)
        return node if made is None else Load(made, node.args, node.flat)

    def place(store: Store) -> Store:
        return replace(store, storage=other.get(store.storage, store.storage))

    if isinstance(item, Tree):
        body = tuple([with_buffers(inner, other) for inner in item.body])
        header = item.header
        if header is not None:
            header = map_expressions(header, lambda value: map_loads(value, rule))
        return replace(item, body=body, header=header)
    return guarded(item, lambda value: map_loads(value, rule), place, ())


def guarded(
    item: TreeItem,
    rename: Rename,
    place: Callable[[Store], Store],
    guard: tuple[PredicateTerm, ...],
) -> TreeItem:
    """Return `item` with every expression renamed, every store placed, under `guard` too."""
    if isinstance(item, Tree):
        body = tuple([guarded(i, rename, place, guard) for i in item.body])
        header = None if item.header is None else map_expressions(item.header, rename)
        return replace(item, body=body, header=header)
    if isinstance(item, Guarded):
        made = [map_expressions(s, rename) for s in item.statements]
        placed = tuple([place(s) if isinstance(s, Store) else s for s in made])
        terms = [_renamed(term, rename) for term in item.terms]
        kept = tuple([t for t in terms if t.condition is not TRUE])
        return replace(item, statements=placed, terms=(*kept, *guard))
    assert isinstance(item, (Allocate, Barrier))
    return item


def _renamed(term: PredicateTerm, rename: Rename) -> PredicateTerm:
    inside = None if term.inside is None else rename(term.inside)
    return replace(term, condition=rename(term.condition), inside=inside)
