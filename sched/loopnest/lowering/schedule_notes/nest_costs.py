"""Notes that concern no single call: what the nest spends on memory and tests.

Four there are: a LOCAL buffer of symbolic size, registers that are picked at run time, a buffer
that is laid out for more than its loops compute, and a test in an innermost loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from loopnest.kir import BOUND, If, Loop, Stmt, Store, bodies, expressions, walk
from loopnest.kir.buffers import Buffer
from loopnest.kir.lowered import Note
from loopnest.lowering.schedule_notes.lowered_schedule import (
    UNSWITCHED,
    Lowering,
)
from loopnest.lowering.schedule_notes.removals import removal
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import (
    ONE,
    Expr,
    LaunchIndex,
    Load,
    Symbol,
    free_indices,
    loads,
)
from loopnest.scalar.expr import walk as walk_expr

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
