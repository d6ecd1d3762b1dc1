"""Notes that concern no single call: what the nest spends on memory, tests, halos and banks.

Of memory and tests there are four: a LOCAL buffer of symbolic size, registers that are picked at
run time, a buffer that is laid out for more than its loops compute, and a test in an innermost
loop.

Tensors may be computed more than once, since tiles that read them have halos. Counted are the
elements of all tiles that lie in the tensor: exactly where sizes and loops are
constant; else those of a tile, by how far tiles are apart. Tiles that do not overlap have no note.

Accesses of SHARED buffers may let the lanes of a warp wait for each other. Shared memory has 32
banks of 4 bytes: word w lies in bank w % 32. A bank gives one word at a time; lanes that ask it for
different words take turns, lanes that ask for one word do not. An access of 8 bytes serves half a
warp at once, one of 16 bytes a quarter.

Counted is the first warp of the first block, in the first iteration of each serial loop: a later
iteration moves all lanes alike, or permutes them by a swizzle. An access whose place depends on
data, on a size or on a block of symbolic extents has no note.

Source: CUDA C++ Best Practices Guide, "Shared Memory and Memory Banks".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from loopnest.kir import (
    BOUND,
    Collective,
    If,
    Let,
    Loop,
    Program,
    Stmt,
    Store,
    Tile,
    bodies,
    expressions,
    walk,
)
from loopnest.kir.lowered import Note
from loopnest.kir.matrix_rows import named
from loopnest.kir.shared_memory import swizzled
from loopnest.kir.tiles import in_registers
from loopnest.kir.vector_access import WideAccess, wide_accesses
from loopnest.lowering.schedule_notes.lowered_schedule import UNSWITCHED, Lowering, ScheduledTensor
from loopnest.lowering.schedule_notes.removals import removal
from loopnest.numerics.float64_math import APPLY
from loopnest.scalar.enums import BLOCK_DIMENSIONS, Memory, ParallelType
from loopnest.scalar.expr import (
    ONE,
    Buffer,
    Const,
    Coordinate,
    Expr,
    LaunchIndex,
    Load,
    Op,
    Symbol,
    free_indices,
    integer,
    loads,
)
from loopnest.scalar.expr import walk as walk_expr
from loopnest.scalar.simplify import Simplifier
from loopnest.tensor.layout_transforms import stored_axes
from loopnest.tensor.overlapping_tiles import Overlap
from loopnest.tensor.tensor_view import TensorView

FAR_AHEAD = "an iteration that far ahead exists"


def nest_notes(lowering: Lowering) -> Iterator[Note]:
    """Yield the notes of LOCAL buffers, of unused parts of buffers, and of tests in loops."""
    yield from _large_locals(lowering)
    yield from _picked_registers(lowering)
    yield from _unused_parts(lowering)
    yield from _guards(lowering)


def _large_locals(lowering: Lowering) -> Iterator[Note]:
    """Yield a note for each LOCAL buffer of symbolic size, but for a row of a CPU's cache.

    Without a launch, a tensor that was placed inside a loop, or runs over the cores of a CPU, has
    such a buffer for good.
    """
    for tensor, (why, remedy) in lowering.spread.items():
        buffer, held = lowering.storage[tensor].buffer, lowering.held[tensor]
        kinds = {lowering.spec(axis).parallel for axis in held.leaf}
        meant = held.position > 0 or ParallelType.cpu_parallel in kinds
        if lowering.program.launch or not meant:
            asked = f"{held.name} in local memory"
            became = f"each thread has a buffer of {buffer.size} elements"
            yield Note(held.name, asked, became, why, remedy, held.placed)


def _picked_registers(lowering: Lowering) -> Iterator[Note]:
    """Yield a note for each LOCAL buffer of which a thread of a GPU picks elements at run time.

    Loops of static extents are unrolled; the number of a thread, that of an iteration of another
    loop, and what lies in memory are not known when the element is printed.
    """
    if not lowering.program.launch:
        return
    loops: dict[Expr, Loop] = {
        n.var: n for n, _ in walk(lowering.program.body) if isinstance(n, Loop)
    }
    picked: dict[Buffer, dict[str, None]] = {}
    for node, _ in walk(lowering.program.body):
        places = [(node.storage, node.index)] if isinstance(node, Store) else []
        places += [(load.buffer, load.args) for e in expressions(node) for load in loads(e)]
        for buffer, index in places:
            if buffer.memory is Memory.LOCAL:
                picked.setdefault(buffer, {}).update(dict.fromkeys(_run_time_parts(index, loops)))
    for tensor, where in lowering.storage.items():
        held, names = lowering.held[tensor], picked.get(where.buffer)
        if names and tensor not in lowering.spread and where.buffer.size is not ONE:
            yield Note(
                held.name,
                f"{held.name} in local memory",
                f"its {where.buffer.size} elements lie in memory and not in registers, or each "
                "access compares its index with all of them",
                f"registers have no addresses, and which one is meant ({' and '.join(names)}) is "
                "known at run time only",
                f"let loops of static extents choose the element, or set {held.name}.memory = "
                "ln.SHARED",
                held.placed,
            )


def _run_time_parts(index: Iterable[Expr], loops: Mapping[Expr, Loop]) -> Iterator[str]:
    """Yield what no printer knows of an index."""
    stack = list(index)
    while stack:
        node = stack.pop(0)
        loop = loops.get(node)
        if isinstance(node, Load):
            yield f"an element of {node.buffer.name}"
        elif isinstance(node, LaunchIndex):
            yield node.dimension.value
        elif loop is not None and loop.parallel.is_thread:
            yield loop.parallel.value
        elif loop is not None and not isinstance(loop.extent, int):
            yield f"a loop of {loop.extent} steps"
        else:
            stack += node.args


def _unused_parts(lowering: Lowering) -> Iterator[Note]:
    """Yield a note for each buffer on the chip that has room for more than is in it at a time.

    So has one whose allocation domain does not split an axis where the loops outside of its home
    begin: all of that axis is allocated.
    """
    algebra = lowering.plan.algebra
    for tensor, where in lowering.storage.items():
        held = lowering.held[tensor]
        if where.axes is None or held.domain.allocation is None:
            continue  # nobody laid it out
        if where.buffer.memory is Memory.GLOBAL:
            continue
        room = algebra.product([algebra.simplify(axis.size) for axis in where.axes])
        used = algebra.product([lowering.spec(held.leaf[place]).extent for place in where.places])
        if not algebra.proves_le(room, used):
            yield Note(
                held.name,
                f"the allocation domain of {held.name}",
                f"its buffer has room for {room} elements, of which {used} are used at a time",
                "its allocation domain is not split as the loops around it are",
                f"call {held.name}.allocation_domain.split as those loops are split, or lay the "
                "buffer out after compute_at",
                held.placed,
            )


def _guards(lowering: Lowering) -> Iterator[Note]:
    """Yield a note for each loop that tests in each iteration, among those nested deepest."""
    depths = list(_depths(lowering.program.body, 0))
    deepest = max([depth for _, depth in depths], default=0)
    for loop, depth in depths:
        if depth < deepest or not _iterates(loop) or "." not in loop.axis:
            continue
        for node in loop.body:
            if not isinstance(node, If) or loop.var not in free_indices(node.condition):
                continue
            if node.reason == BOUND or node.reason.endswith(FAR_AHEAD):
                continue
            remedy = removal(lowering, node.condition) or _dividing(node.condition)
            yield Note(
                loop.axis,
                f"a loop over {loop.axis}",
                f"{node.condition} is tested in each iteration",
                node.reason or "it is needed",
                f"{remedy}, or parallelize this axis, or one around it, as unswitch",
                node.origin or loop.origin,
            )
            break


def _dividing(condition: Expr) -> str:
    if any(isinstance(e, Symbol) for e in walk_expr(condition)):
        return "state by f.assume that tiles divide the sizes"
    return "split by a factor that divides the extent"


def _iterates(loop: Loop) -> bool:
    return not loop.parallel.is_thread and loop.extent != 1


def _depths(body: tuple[Stmt, ...], depth: int) -> Iterator[tuple[Loop, int]]:
    """Yield each loop with how many loops that iterate it is nested in, itself included.

    What runs where the one test of an unswitch loop failed is left out.
    """
    for node in body:
        if isinstance(node, Loop):
            inner = depth + _iterates(node)
            yield node, inner
            yield from _depths(node.body, inner)
        elif isinstance(node, If) and node.reason.startswith(UNSWITCHED):
            yield from _depths(node.body, depth)
        else:
            for part in bodies(node):
                yield from _depths(part, depth)


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
        elif any(isinstance(n, Coordinate) for atom in term for n in walk_expr(atom)):
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


_BANKS, _WORD, _WARP = 32, 4, 32
_MOST_PAD = 16
"""Bytes of padding that are tried: what an access of 16 bytes needs to find other banks."""


@dataclass(frozen=True, slots=True)
class _BankAccess:
    """What the lanes of a warp access at once: elements `index` of `buffer`, a piece each."""

    buffer: Buffer
    index: tuple[Any, ...]
    flat: bool
    active: Any
    bytes: int
    user: str

    def turns(self) -> tuple[int, int]:
        """Return how often the banks are asked, and how often they would be without conflicts."""
        if self.flat:
            offset = self.index[0]
        else:
            strides = [int(s.value) for s in self.buffer.strides if isinstance(s, Const)]
            offset = sum(i * s for i, s in zip(self.index, strides, strict=True))
        first = np.broadcast_to(offset * self.buffer.dtype.size // _WORD, (_WARP,))
        length = max(1, self.bytes // _WORD)
        taken = least = 0
        for start in range(0, _WARP, _WARP // length):
            lanes = slice(start, start + _WARP // length)
            words = {int(w) + k for w in first[lanes][self.active[lanes]] for k in range(length)}
            taken += max(Counter([word % _BANKS for word in words]).values(), default=0)
            least += bool(words)
        return taken, least


def bank_notes(lowering: Lowering) -> Iterator[Note]:
    """Yield a note for each SHARED tensor of which an access takes more turns than it needs."""
    worst: dict[Buffer, _BankAccess] = {}
    for launch in lowering.program.launches:
        for access in _accesses(named(in_registers(launch))):
            taken, least = access.turns()
            other = worst.get(access.buffer)
            if taken > least and (other is None or taken > other.turns()[0]):
                worst[access.buffer] = access
    for tensor, where in lowering.storage.items():
        if where.buffer not in worst:
            continue
        access, held = worst[where.buffer], lowering.held[tensor]
        taken, least = access.turns()
        origin = lowering.call("memory", tensor) or held.placed
        yield Note(
            held.name,
            f"{held.name}.memory = ln.SHARED",
            f"{access.user} takes a warp {taken} turns instead of {least}",
            f"its lanes ask for different words of the same bank, one of {_BANKS}, which serves "
            "them one after the other",
            _remedy(lowering, tensor, access),
            origin,
        )


def _remedy(lowering: Lowering, tensor: TensorView, access: _BankAccess) -> str:
    """Return the least padding of rows that parts the lanes, or a swizzle."""
    where, held = lowering.storage[tensor], lowering.held[tensor]
    swizzle = f"{held.name}.allocation_domain.swizzle(ln.Swizzle.XOR, a, b) permutes its rows"
    buffer = access.buffer
    if access.flat or buffer.swizzles or len(buffer.shape) < 2:
        return swizzle
    axes = where.axes or tuple([held.leaf[place] for place in where.places])
    size = buffer.dtype.size
    step = max(1, access.bytes // size)  # pieces of several bytes stay aligned
    for pad in range(step, max(step, _MOST_PAD // size, _WORD // size) + 1, step):
        longer = _padded(buffer, pad)
        if longer is None:
            break
        taken, least = replace(access, buffer=longer).turns()
        if taken == least:
            stored = stored_axes(held.domain)
            if where.axes is None and axes[-1] in held.leaf:
                call = f"{held.name}.set_allocation(pad={{{held.leaf.index(axes[-1])}: {pad}}})"
            elif axes[-1] in stored:
                call = f"{held.name}.allocation_domain.pad({stored.index(axes[-1])}, {pad})"
            else:
                break
            return f"{call} makes its rows longer, or {swizzle}"
    return swizzle


def _padded(buffer: Buffer, pad: int) -> Buffer | None:
    """Return a row-major buffer whose rows are so many elements longer, None of another layout."""
    strides = [int(s.value) if isinstance(s, Const) else 0 for s in buffer.strides]
    if strides[-1] != 1 or any(s == 0 or s % strides[-2] for s in strides[:-1]):
        return None
    row = strides[-2]
    longer = [integer(s // row * (row + pad)) for s in strides[:-1]]
    return replace(buffer, strides=(*longer, buffer.strides[-1]))


def _accesses(program: Program) -> Iterator[_BankAccess]:
    """Yield what the first warp of a launch accesses in SHARED memory."""
    extents: dict[Any, int] = {}
    for dimension, extent in program.launch:
        if dimension.is_block:
            if not isinstance(extent, Const):
                return
            extents[dimension] = int(extent.value)
    number = np.arange(_WARP)
    values: dict[Any, Any] = {}
    for dimension in BLOCK_DIMENSIONS:
        values[dimension] = number % extents.get(dimension, 1)
        number = number // extents.get(dimension, 1)
    wide: dict[object, WideAccess] = {}
    wide |= {a.statement if a.load is None else a.load: a for a in wide_accesses(program)}
    yield from _walk(program.body, number == 0, values, wide)


def _walk(
    body: tuple[Stmt, ...], active: Any, values: dict[Any, Any], wide: Mapping[object, WideAccess]
) -> Iterator[_BankAccess]:
    """Yield the accesses of statements in the lanes that are active."""
    for node in body:
        if isinstance(node, Loop):
            values[node.var] = values.get(node.parallel, np.zeros(_WARP, np.int64))
            extent = _value(node.var.extent, values)
            inside = active if extent is None else active & (values[node.var] < extent)
            yield from _walk(node.body, inside, values, wide)
        elif isinstance(node, If):
            found = _value(node.condition, values)
            # Where data or sizes decide, either branch may run in all lanes.
            yield from _walk(node.body, active if found is None else active & found, values, wide)
            other = active if found is None else active & ~np.asarray(found)
            yield from _walk(node.orelse, other, values, wide)
        elif isinstance(node, (Collective, Tile)):
            yield from _walk(node.body, active, values, wide)
        else:
            yield from _of_statement(node, active, values, wide)


def _of_statement(
    node: Stmt, active: Any, values: dict[Any, Any], wide: Mapping[object, WideAccess]
) -> Iterator[_BankAccess]:
    found: list[tuple[Load | Store, Buffer, tuple[Expr, ...], bool, str]] = []
    for load in dict.fromkeys([load for e in expressions(node) for load in loads(e)]):
        by = f"a load of it by {node.tensor}" if isinstance(node, Store) else "a load of it"
        found.append((load, load.buffer, load.args, load.flat, by))
    if isinstance(node, Store):
        found.append((node, node.storage, node.index, node.flat, "a store to it"))
    for key, buffer, index, flat, by in found:
        if buffer.memory is not Memory.SHARED or not np.any(active):
            continue
        places = [_value(i, values) for i in (index if flat else swizzled(buffer, index))]
        if any(place is None for place in places):
            continue
        if not flat and not all(isinstance(s, Const) for s in buffer.strides):
            continue
        size = wide[key].piece_bytes if key in wide else buffer.dtype.size
        yield _BankAccess(buffer, tuple(places), flat, np.broadcast_to(active, (_WARP,)), size, by)
    if isinstance(node, Let):
        value = _value(node.value, values)
        if value is not None:
            values[node.var] = value


def _value(node: Expr, values: Mapping[Any, Any]) -> Any:
    """Return an expression in each lane, None where data or sizes decide it."""
    if isinstance(node, Const):
        return node.value
    if isinstance(node, LaunchIndex):
        return values.get(node.dimension, 0)
    if isinstance(node, Op) and node.op in APPLY:
        args = [_value(arg, values) for arg in node.args]
        return None if any(arg is None for arg in args) else APPLY[node.op](*args)
    return values.get(node)
