"""Notes on tensors that are computed more than once, since tiles that read them have halos.

Counted are the elements of all tiles that lie in the tensor: exactly where sizes and loops are
constant; else those of a tile, by how far tiles are apart. Tiles that do not overlap have no note.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from loopnest.kir.lowered import Note
from loopnest.lowering.schedule_notes.lowered_schedule import Lowering, ScheduledTensor
from loopnest.scalar.expr import ONE, Const, Coordinate, Expr, walk
from loopnest.scalar.simplify import Simplifier
from loopnest.tensor.overlapping_tiles import Overlap
from loopnest.tensor.tensor_view import TensorView

MOST_TILES = 1 << 14
MOST_ELEMENTS = 1 << 24
"""Tiles and elements that are counted one by one; of more there is an expression."""


def halo_notes(lowering: Lowering) -> Iterator[Note]:
    """Yield a note for each tensor of which elements are computed more than once in tiles.

    What is computed in the same tiles for one of them alone is part of it, and has none.
    """
    algebra = lowering.plan.algebra
    tiles = {
        tensor: _in_order(
            lowering.held[tensor],
            [step for step in _overlaps(lowering.held[tensor]) if _repeat(step, algebra)],
        )
        for tensor in lowering.storage
        if tensor in lowering.held
    }
    for tensor, steps in tiles.items():
        own = [step.key for step in steps]
        users = [[s.key for s in tiles[c]] for c in tensor.consumers if c in tiles]
        if any(step.inputs for step in steps) and (not users or any(keys != own for keys in users)):
            held = lowering.held[tensor]
            copied = tensor.definition is not None and tensor.definition.is_copy
            done, each = ("loaded", "loads") if copied else ("computed", "computes")
            counted = _counted(held, steps, _repeated(lowering, tensor), algebra, done)
            if counted is None:
                continue
            yield Note(
                held.name,
                held.placed.call or f"{held.name} in tiles",
                counted,
                f"neighbouring tiles need the same elements at their edges (halo), and each {each} "
                "them again",
                f"split what reads {held.name} into larger tiles, or compute it at a smaller "
                "position (compute_at): at 0 nothing is repeated",
                held.placed,
            )


def _in_order(held: ScheduledTensor, steps: Sequence[Overlap]) -> list[Overlap]:
    """Return the splits of a tensor in the order of its axes."""
    places = {axis: n for n, axis in enumerate(held.domain.root)}
    return sorted(steps, key=lambda step: min([places.get(a, -1) for a in step.inputs], default=-1))


def _overlaps(held: ScheduledTensor) -> Iterator[Overlap]:
    """Yield the splits into tiles with halo that a tensor's loops come from."""
    seen: set[object] = set()
    waiting = list(held.leaf)
    while waiting:
        step = waiting.pop().definition
        if step is None or step in seen:
            continue
        seen.add(step)
        waiting += step.inputs
        if isinstance(step, Overlap):
            yield step


def _repeat(tiles: Overlap, algebra: Simplifier) -> bool:
    """Whether several tiles have an element in common."""
    if _again(tiles, algebra):
        return True
    return any(
        _meet(tiles, place, algebra)
        for place, axis in enumerate(tiles.inputs)
        if not axis.is_broadcast
    )


def _again(tiles: Overlap, algebra: Simplifier) -> list[Expr]:
    """Return the extents of loops in which the same tiles are computed each time."""
    used = tiles.used()
    again = [algebra.simplify(e) for n, e in enumerate(tiles.loops) if n not in used]
    return [extent for extent in again if extent is not ONE]


def _meet(tiles: Overlap, place: int, algebra: Simplifier) -> bool:
    """Whether tiles overlap along an axis: a loop moves them by less than they cover."""
    moved = _moves(tiles.bases[place], algebra)
    if moved is None:
        return True
    moves: list[tuple[int, float]] = []
    for number, count in moved[1].items():
        extent = tiles.loops[number]
        steps = float(extent.value) if isinstance(extent, Const) else float("inf")
        if steps != 1:
            moves.append((abs(count), steps))
    own = tiles.extents[place]
    covered = float(own.value) if isinstance(own, Const) else float("inf")
    covered *= abs(tiles.steps[place])
    for move, steps in sorted(moves):
        if move < covered:
            return True
        covered = move * steps
    return False


def _moves(base: Expr, algebra: Simplifier) -> tuple[int, dict[int, int]] | None:
    """Return where the first tile begins, and by how much each loop moves it.

    None where that is no number for each loop; sizes that all tiles are moved by are left out.
    """
    begin, moves = 0, dict[int, int]()
    for term, count in algebra.poly(base).items():
        loops = [atom for atom in term if isinstance(atom, Coordinate)]
        if not term:
            begin = count
        elif len(term) == len(loops) == 1:
            moves[loops[0].number] = count
        elif any(isinstance(n, Coordinate) for atom in term for n in walk(atom)):
            return None
    return begin, moves


def _repeated(lowering: Lowering, tensor: TensorView) -> list[Expr]:
    """Return the extents of loops around a tensor that it has no axis for."""
    plan, held = lowering.plan, lowering.held[tensor]
    own = {
        plan.forest.find(plan.promoter.loop_of.get(axis, axis))
        for axis in held.leaf
        if not axis.is_broadcast
    }
    specs = [plan.specs[group] for group in plan.forest.path(tensor) if group not in own]
    return [s.extent for s in specs if s.extent is not ONE and not s.parallel.is_block]


def _counted(
    held: ScheduledTensor,
    steps: Sequence[Overlap],
    repeated: Sequence[Expr],
    algebra: Simplifier,
    done: str,
) -> str | None:
    """Return how many elements tiles have, and of how many; None where none is in two tiles.

    `done` is what makes them: "computed", or "loaded" where the tensor is a copy.
    """
    inside = [axis for step in steps for axis in step.inputs]
    rest = [a.size for a in held.domain.root if a not in inside and not a.is_broadcast]
    others = _numbers([algebra.simplify(size) for size in rest])
    exact = [_exact(step, algebra) for step in steps]
    times = _numbers(repeated)
    if others is not None and times is not None and None not in exact:
        pairs = [pair for pair in exact if pair is not None]
        computed = prod([*others, *times, *(pair[0] for pair in pairs)])
        needed = prod([*others, *(pair[1] for pair in pairs)])
        if computed <= needed:
            return None
        ratio = f", {computed / needed:.2f} times as many" if needed else ""
        return f"{computed} elements are {done} for {needed} that are needed{ratio}"
    shapes: list[str] = []
    apart: list[int] = []
    share = 1.0
    for step in steps:
        for place, axis in enumerate(step.inputs):
            if axis.is_broadcast:
                continue
            extent = algebra.simplify(step.extents[place])
            shapes.append(str(extent))
            moved = _moves(step.bases[place], algebra)
            moves = [abs(c) for n, c in (moved[1] if moved else {}).items()
                     if not algebra.equal(step.loops[n], ONE)]  # fmt: skip
            if moves and isinstance(extent, Const):
                apart.append(min(moves) // abs(step.steps[place]))
                share *= int(extent.value) * abs(step.steps[place]) / min(moves)
    text = f"its tiles have {' x '.join(shapes)} elements"
    if len(apart) == len(shapes) and 0 not in apart:
        far = " x ".join(map(str, apart))
        text = f"{text} and begin {far} apart, {share:.2f} times as many as are needed"
    again = [str(extent) for step in steps for extent in _again(step, algebra)]
    again += [str(extent) for extent in repeated]
    if not again and len(apart) == len(shapes) and share <= 1.0:
        return None
    return f"{text}, and each is {done} {' * '.join(again)} times" if again else text


def _exact(tiles: Overlap, algebra: Simplifier) -> tuple[int, int] | None:
    """Return how many elements all tiles have, and of how many; None where that is not known."""
    axes = [n for n, axis in enumerate(tiles.inputs) if not axis.is_broadcast]
    loops, extents = _numbers(tiles.loops), _numbers([tiles.extents[n] for n in axes])
    sizes = _numbers([tiles.inputs[n].size for n in axes])
    moves = [_moves(tiles.bases[n], algebra) for n in axes]
    if loops is None or extents is None or sizes is None or None in moves:
        return None
    used = sorted(tiles.used())
    if prod(loops[n] for n in used) > MOST_TILES or prod(sizes) > MOST_ELEMENTS:
        return None
    again = prod(extent for n, extent in enumerate(loops) if n not in used)
    computed, met = 0, np.zeros(sizes, np.bool_)
    steps = [np.arange(e) * tiles.steps[n] for n, e in zip(axes, extents, strict=True)]
    for place in np.ndindex(*[loops[n] for n in used]):
        index = dict(zip(used, place, strict=True))
        found = []
        for move, step, size in zip(moves, steps, sizes, strict=True):
            assert move is not None
            every = step + move[0] + sum(count * index[n] for n, count in move[1].items())
            found.append(every[(every >= 0) & (every < size)])
        computed += again * prod(part.size for part in found)
        met[np.ix_(*found)] = True
    return computed, int(met.sum())


def _numbers(values: Sequence[Expr]) -> list[int] | None:
    """Return expressions as numbers; None where one of them is symbolic."""
    found = [int(value.value) for value in values if isinstance(value, Const)]
    return found if len(found) == len(values) else None
