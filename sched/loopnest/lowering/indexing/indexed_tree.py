"""Between the passes: the indexed nest as a tree of pieces, and the programs made of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import assert_never

from loopnest.base.errors import InternalError, LoweringError
from loopnest.kir import (
    Allocate,
    Barrier,
    Collective,
    If,
    Issue,
    Loop,
    Program,
    Stmt,
    Store,
    Tile,
    Wait,
    bodies,
    walk,
    with_bodies,
)
from loopnest.kir.instruction_rows import instructions
from loopnest.kir.instruction_table import gives_lanes
from loopnest.kir.matrix_rows import NoRows, moves, named_rows
from loopnest.kir.vector_access import VectorFinder
from loopnest.lowering.indexing.indexer import Indexer
from loopnest.lowering.indexing.predicates import (
    GuardedPiece,
    common_terms,
    lift,
    seal,
    uses,
)
from loopnest.lowering.loops.guarded_tree import Guarded, ThreadData, Tree, TreeItem
from loopnest.lowering.loops.loop_plan import LoopSpec, TileSpec, refolded
from loopnest.lowering.loops.needed_components import is_needed
from loopnest.lowering.loops.phase_nest import Compute, LoopNode, Nest, NestItem
from loopnest.lowering.memory.allocation import TensorStorage
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import Buffer, Index, all_of, loads
from loopnest.schedule.fold_order import folded_axes
from loopnest.schedule.loop_forest import LoopGroup
from loopnest.tensor.tensor_view import TensorView, padded_copy, started_by


def insert_allocations(nest: Nest, storage: dict[TensorView, TensorStorage]) -> Tree:
    """Return the nest with each LOCAL buffer made first in the body where its own loops begin."""
    wanted: dict[Index | None, list[Allocate]] = {}
    for unit in nest.plan.forest.units:
        for tensor in unit.siblings:
            held = storage[tensor]
            if not is_needed(nest.plan, tensor):
                continue
            if held.buffer.memory is not Memory.GLOBAL and started_by(tensor) is None:
                home = _body_of(nest, held.home)
                made = Allocate(held.buffer, tensor.placed or tensor.origin)
                wanted.setdefault(home, []).append(made)
            if held.accumulator is not held.buffer:
                home = _body_of(nest, _around_reduction(nest, tensor))
                made = Allocate(held.accumulator, tensor.placed or tensor.origin)
                wanted.setdefault(home, []).append(made)
            if held.items is not None:
                home, items = _body_of(nest, held.items.home), held.items
                for buffer in (items.part, items.before, items.running):
                    made = Allocate(buffer, tensor.placed or tensor.origin)
                    wanted.setdefault(home, []).append(made)
    return _with_allocations(None, None, nest.body, wanted)


def _body_of(nest: Nest, group: LoopGroup | None) -> Index | None:
    """Return the index of the innermost loop that is left of `group` and those around it."""
    while group is not None:
        index = nest.index_of[group]
        if isinstance(index, Index):
            return index
        group = group.enclosing()
    return None


def _around_reduction(nest: Nest, tensor: TensorView) -> LoopGroup | None:
    return nest.plan.forest.find(folded_axes(tensor)[0]).enclosing()


def _with_allocations(
    var: Index | None,
    spec: LoopSpec | None,
    body: list[NestItem],
    wanted: dict[Index | None, list[Allocate]],
) -> Tree:
    items: list[TreeItem] = list(wanted.get(var, ()))
    for item in body:
        if isinstance(item, LoopNode):
            items.append(_with_allocations(item.var, item.spec, item.body, wanted))
        else:
            items.append(item)
    return Tree(var, spec, tuple(items))


def index_tree(tree: Tree, indexer: Indexer) -> Tree:
    """Return the tree with every phase turned into guarded statements."""
    body: list[TreeItem] = []
    for number, item in enumerate(tree.body):
        if isinstance(item, Tree):
            body.append(index_tree(item, indexer))
        elif isinstance(item, Compute) and item.phase == "fold":
            loop = next(i for i in tree.body[number:] if isinstance(i, Tree) and _has(i, item.unit))
            body.append(_folded(loop, item.unit, indexer))
        elif isinstance(item, Compute):
            body.extend(indexer.statements(item))
        else:
            body.append(item)
    return Tree(tree.var, tree.spec, tuple(body), tree.header)


def _has(tree: Tree, unit: TensorView) -> bool:
    """Whether the steps of a scan are taken in a loop."""
    return any(
        _has(item, unit) if isinstance(item, Tree) else _updates(item, unit) for item in tree.body
    )


def _updates(item: TreeItem, unit: TensorView) -> bool:
    return isinstance(item, Compute) and item.unit is unit and item.phase == "update"


def _folded(loop: Tree, unit: TensorView, indexer: Indexer) -> Tree:
    """Return the loop over the items of a thread, of a scan over threads, that only folds them.

    It has indices of its own, and of all that the loop computes what the scan depends on.
    """
    again = refolded(indexer.plan, unit)
    kept = _part_of(loop, unit, {twin.name for u in again for twin in u.siblings})
    assert kept is not None
    made = indexer.again(index_tree(kept, indexer))
    assert isinstance(made, Tree)
    return made


def _part_of(tree: Tree, unit: TensorView, names: Collection[str]) -> Tree | None:
    """Return what computes tensors of some names and folds the items of a scan, None if nothing."""
    body: list[TreeItem] = []
    for item in tree.body:
        if isinstance(item, Tree):
            inner = _part_of(item, unit, names)
            body += [] if inner is None else [inner]
        elif isinstance(item, Compute):
            if _updates(item, unit):
                body.append(replace(item, phase="take"))
            elif item.unit.name in names:
                body.append(item)
        elif not isinstance(item, Allocate) or item.storage.tensor in names:
            body.append(item)
    return replace(tree, body=tuple(body)) if any(_computes(i) for i in body) else None


def _computes(item: TreeItem) -> bool:
    return isinstance(item, (Tree, Compute))


def statements(tree: Tree, *, lifted: ThreadData | None) -> tuple[Stmt, ...]:
    """Return the statements of an indexed tree.

    Its tests are lifted out of loops where it is told which threads have `lifted` data.
    """
    return seal(_pieces(tree, lifted))


def _pieces(tree: Tree, lifted: ThreadData | None) -> list[GuardedPiece]:
    pieces: list[GuardedPiece] = []
    for item in tree.body:
        if isinstance(item, Tree):
            made = _loop_piece if item.header is None else _header_piece
            pieces.append(made(item, lifted))
        elif isinstance(item, (Allocate, Barrier)):
            pieces.append(GuardedPiece(item, {}))
        elif isinstance(item, Guarded):
            pieces.extend(_guarded_pieces(item))
    return pieces


def _guarded_pieces(item: Guarded) -> Iterator[GuardedPiece]:
    """Yield the statements; one that has a fill with both of its cases."""
    terms = {term.condition: term for term in item.terms}
    if item.fill is None:
        yield from (GuardedPiece(s, dict(terms)) for s in item.statements)
        return
    inside = {c: t for c, t in terms.items() if t.inside is not None}
    (store,) = item.statements
    assert isinstance(store, Store)
    other = replace(store, value=item.fill, role="fill")
    reasons = "; ".join(dict.fromkeys(t.reason for t in inside.values()))
    both = If(all_of(inside), (store,), (other,), reasons, store.origin)
    yield GuardedPiece(both, {c: t for c, t in terms.items() if c not in inside})


def _loop_piece(tree: Tree, lifted: ThreadData | None) -> GuardedPiece:
    assert tree.var is not None
    assert tree.spec is not None
    pieces = _pieces(tree, lifted)
    outside = {} if lifted is None else lift(pieces, tree.var, tree.spec.parallel, lifted)
    loop = Loop(tree.var, tree.spec.parallel, tree.spec.axis, seal(pieces), tree.spec.origin)
    made = _both_outside(loop) if tree.spec.parallel is ParallelType.vectorize else loop
    if tree.spec.tile is not None:
        # Passes that are shown may have tests yet, which later ones remove.
        tested = any(isinstance(node, If) for node, _ in walk((loop,)))
        made = loop if tested and lifted is None else _tile(loop, tree.spec.tile)
    return GuardedPiece(made, dict(outside))


def _tile(loop: Loop, tile: TileSpec) -> Stmt:
    """Return the tile whose body is a loop over its lanes.

    Raises:
        LoweringError: a test stands in it, or an operand of its lanes lies elsewhere.
    """
    held: dict[str, Buffer] = {}
    for node, _ in walk((loop,)):
        if isinstance(node, If):
            raise LoweringError(
                tile.operands[0][1],
                f"{tile.instruction} would need the test {node.condition} of each element "
                f"({node.reason})",
                "let copies of its operands in SHARED memory be 0 outside, or let tiles divide the "
                "sizes (f.assume)",
            )
        if isinstance(node, Store):
            if node.tensor != tile.operands[0][1] and gives_lanes(tile.instruction):
                raise LoweringError(
                    tile.operands[0][1],
                    f"it shares its loop over lanes with {node.tensor}, and {tile.instruction} "
                    "copies alone",
                    f"compute {tile.operands[0][1]} outside of that loop (compute_at)",
                )
            if node.role == "init":
                raise LoweringError(
                    tile.operands[0][1],
                    f"no loop of its reduction stands around the tile of {tile.instruction}, in "
                    "which it would start",
                    "split the reduction by the instruction's extent, and move the outer axis to "
                    "the left of the tile's axes",
                )
            found = [node.storage, *[load.buffer for load in loads(node.value)]]
            held.update({buffer.tensor: buffer for buffer in found})
    for _, name in tile.operands:
        if name not in held:
            raise LoweringError(
                tile.operands[0][1],
                f"{tile.instruction} would not read {name}, but what is computed of it in front of "
                "the tile",
                f"inline what lies between {name} and {tile.operands[0][1]}: compute_at with "
                "position -1",
            )
    operands = tuple([(role, held[name]) for role, name in tile.operands])
    row = instructions[tile.instruction]
    for role, buffer in operands:
        held_by = row.operands[role].fragment is not None
        if held_by and buffer.memory not in (Memory.LOCAL, row.holder):
            raise LoweringError(
                buffer.tensor,
                f"operand {role} of {tile.instruction} would be in {buffer.memory.value} memory, "
                f"and its {'lanes hold' if row.holder is Memory.WARP else 'thread holds'} it",
                f"instruct a copy of {buffer.tensor} (cache_before), in LOCAL memory",
            )
    return Tile(tile.instruction, operands, (loop,), loop.origin)


def check_rows(program: Program) -> None:
    """Refuse moves of matrices whose rows do not lie together in SHARED memory.

    Raises:
        LoweringError: there is one.
    """
    for launch in program.launches:
        tiles = moves(launch)
        finder = VectorFinder(launch) if tiles else None
        for tile in tiles:
            try:
                assert finder is not None
                named_rows(tile, finder)
            except NoRows as why:
                raise LoweringError(
                    tile.operands[0][1].tensor,
                    f"{tile.instruction} cannot copy it: {why}",
                    "store rows of 16 bytes together in SHARED memory (allocation_domain), and let "
                    "the axes inside of the tile be those of as many matrices as the instruction "
                    "moves",
                ) from None


def _both_outside(loop: Loop) -> Stmt:
    """Return a loop over lanes with the one test of all lanes around it, in both of its cases."""
    match loop.body:
        case (If(orelse=(_, *_)) as test,) if not uses(test.condition, loop.var):
            whole, rest = replace(loop, body=test.body), replace(loop, body=test.orelse)
            return replace(test, body=(whole,), orelse=(rest,))
    return loop


def _padding_apart(node: Stmt) -> Stmt:
    """Return stores of ``where(test, copied, 0)`` as copies where it holds, and 0 elsewhere."""
    if isinstance(node, Store):
        padded = padded_copy(node.value)
        if padded is None:
            return node
        test, *values = padded
        copy, zero = [(replace(node, value=value),) for value in values]
        return If(test, copy, zero, f"{node.tensor}: it is 0 elsewhere", node.origin)
    parts = [tuple([_padding_apart(inner) for inner in body]) for body in bodies(node)]
    made = with_bodies(node, tuple(parts))
    if isinstance(made, Loop) and made.parallel is ParallelType.vectorize:
        return _both_outside(made)
    return made


def _header_piece(tree: Tree, lifted: ThreadData | None) -> GuardedPiece:
    """Return the statement whose body a tree is; tests of all that is issued stand around it."""
    match tree.header:
        case Collective():
            return GuardedPiece(replace(tree.header, body=seal(_pieces(tree, lifted))), {})
        case Issue():
            pieces = _pieces(tree, lifted)
            outside = {} if lifted is None else common_terms(pieces)
            body = tuple([_padding_apart(node) for node in seal(pieces)])
            return GuardedPiece(replace(tree.header, body=body), outside)
        case Wait():
            return GuardedPiece(tree.header, {})
        case None:
            raise InternalError("lower", "a loop was taken for a statement with a body")
        case _:
            assert_never(tree.header)


def tree_text(tree: Tree, title: str) -> str:
    """Return a tree before indexing, for the stage dump."""
    return "\n".join([f"# {title}", *_tree_lines(tree, 0)]) + "\n"


def _tree_lines(tree: Tree, depth: int) -> Iterator[str]:
    pad = "  " * depth
    for item in tree.body:
        match item:
            case Tree():
                assert item.var is not None
                assert item.spec is not None
                yield f"{pad}for {item.var.name} in {item.spec.extent}:"
                yield from _tree_lines(item, depth + 1)
            case Allocate():
                shape = ", ".join(str(s) for s in item.storage.shape)
                buffer = item.storage
                yield f"{pad}{buffer.name}: {buffer.dtype}[{shape}] {buffer.memory.value}"
            case Compute():
                yield f"{pad}{item.text()}"
