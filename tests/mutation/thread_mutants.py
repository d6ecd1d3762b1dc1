"""Changes of loops, launches and of statements of several threads, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise

from loopnest.kir import (
    Allocate,
    Arrive,
    Barrier,
    Collective,
    Commit,
    If,
    Issue,
    Launch,
    Loop,
    Program,
    Shuffle,
    Stmt,
    Store,
    Tile,
    Wait,
    bodies,
    is_unconditional,
    map_body,
)
from loopnest.kir import walk as statements
from loopnest.kir.instruction_rows import instructions
from loopnest.scalar import dtypes
from loopnest.scalar.enums import LAUNCH_DIMENSIONS, Memory, ParallelType
from loopnest.scalar.expr import (
    Buffer,
    Const,
    Expr,
    LaunchIndex,
    Load,
    Op,
    integer,
    loads,
    substitute,
)
from mutation.mutant import Mutant
from mutation.rewriting import (
    neighbours,
    replaced,
    swapped,
    with_extent,
)
from mutation.statement_mutants import indices, values

# Loops and launches


def of_loop(program: Program, node: Loop) -> Iterator[Mutant]:
    for step in (-1, 1):
        extent = Op("add", (node.var.extent, integer(step)), dtypes.index)
        text = f"loop {node.index} {step:+}"
        yield Mutant("bound", text, replaced(program, node, with_extent(node, extent)), node)
    width = node.extent
    if node.parallel is ParallelType.vectorize and isinstance(width, int):
        for other in (width // 2, width * 2):
            text = f"vectorize {node.index} by {other} instead of {width}"
            new = with_extent(node, integer(other))
            yield Mutant("vector", text, replaced(program, node, new), node)


def of_launch(program: Program) -> Iterator[Mutant]:
    several = len(program.launches) > 1
    for place, launch in enumerate(program.launches if several else ()):
        for mutant in of_launch(launch):
            changed = replace(program.body[place], extents=mutant.program.launch)
            body = (*program.body[:place], changed, *program.body[place + 1 :])
            yield Mutant("launch", f"{mutant.text} in launch {place}", program.with_body(body))
    for number, (dimension, extent) in enumerate(() if several else program.launch):
        for step in (-1, 1):
            other = (dimension, Op("add", (extent, integer(step)), dtypes.index))
            launch = (*program.launch[:number], other, *program.launch[number + 1 :])
            text = f"launch {dimension.value} {step:+}"
            yield Mutant("launch", text, replace(program, launch=launch))


def of_one_launch(program: Program, node: Launch) -> Iterator[Mutant]:
    """Yield programs without a launch, with the next one before it, or with both in one."""
    place = program.body.index(node)
    rest = [n for n in program.body if n is not node]
    yield Mutant("launch", f"drop launch {place}", program.with_body(tuple(rest)), node)
    following = program.body[place + 1 : place + 2]
    if not following or not isinstance(following[0], Launch):
        return
    after = following[0]
    swapped = [*program.body[:place], after, node, *program.body[place + 2 :]]
    yield Mutant("launch", f"swap launch {place} with the next", program.with_body(tuple(swapped)))
    extents = dict(node.extents)
    for dimension, extent in after.extents:
        known = extents.get(dimension, extent)
        extents[dimension] = extent if known is extent else Op("max", (known, extent), dtypes.index)
    order = tuple([(d, extents[d]) for d in LAUNCH_DIMENSIONS if d in extents])
    one = Launch(order, (*node.body, *after.body))
    joined = [*program.body[:place], one, *program.body[place + 2 :]]
    text = f"no boundary between launch {place} and the next"
    yield Mutant("launch", text, program.with_body(tuple(joined)), node)


def swapped_threads(program: Program, nodes: list[Stmt]) -> Iterator[Mutant]:
    loops = [n for n in nodes if isinstance(n, Loop) and n.parallel.is_thread]
    for number, a in enumerate(loops):
        for b in loops[number + 1 :]:
            if a.parallel is b.parallel:
                continue

            def swap(node: Stmt, a: Loop = a, b: Loop = b) -> Stmt:
                if isinstance(node, Loop) and node.var in (a.var, b.var):
                    other = b if node.var is a.var else a
                    return replace(node, parallel=other.parallel)
                return node

            text = f"swap {a.parallel.value} and {b.parallel.value}"
            yield Mutant("threads", text, program.with_body(map_body(program.body, swap)), a)


# Order


def swapped_neighbours(program: Program) -> Iterator[Mutant]:
    for a, b in neighbours(program):
        if not any(isinstance(n, Allocate) or is_unconditional(n) for n in (a, b)):
            yield Mutant("order", "swap two neighbours", swapped(program, a, b), b)


# Statements of several threads

_NARROWER = {"grid": "block", "block": "warp"}


def of_barrier(program: Program, node: Barrier) -> Iterator[Mutant]:
    def made(text: str, changed: Program) -> Mutant:
        return Mutant("barrier", f"{text} barrier {node.scope}", changed, node)

    yield made("remove", replaced(program, node, None))
    if node.scope in _NARROWER:
        narrow = replace(node, scope=_NARROWER[node.scope])
        yield made("narrow", replaced(program, node, narrow))
    for a, b in neighbours(program):
        if node in (a, b):
            yield made("raise" if b is node else "lower", swapped(program, a, b))
    for loop, _ in statements(program.body):
        if isinstance(loop, (Loop, If)) and any(node in inner for inner in bodies(loop)):
            without = map_body((loop,), lambda n: None if n is node else n)
            yield made("take out of its body", replaced(program, loop, (*without, node)))
    for dimension, _ in program.launch:
        if dimension.is_block:
            test = Op("eq", (LaunchIndex(dimension), integer(0)), dtypes.bool_)
            new = If(test, (node,))
            yield made(f"only where {dimension.value} is 0:", replaced(program, node, new))


def of_issue(program: Program, node: Issue) -> Iterator[Mutant]:
    yield Mutant("flight", "store at once", replaced(program, node, node.body), node)
    yield Mutant("flight", "drop issue", replaced(program, node, None), node)


def of_commit(program: Program, node: Commit) -> Iterator[Mutant]:
    yield Mutant("flight", "drop commit", replaced(program, node, None), node)
    yield Mutant("flight", "commit twice", replaced(program, node, (node, Commit())), node)
    yield from _moved(program, node, "commit")


def of_wait(program: Program, node: Wait) -> Iterator[Mutant]:
    yield Mutant("flight", "drop wait", replaced(program, node, None), node)
    for step in (1, -1) if node.pending else (1,):
        text = f"wait {node.pending + step} instead of {node.pending}"
        new = replace(node, pending=node.pending + step)
        yield Mutant("flight", text, replaced(program, node, new), node)
    yield from _moved(program, node, "wait")


def _moved(program: Program, node: Commit | Wait, name: str) -> Iterator[Mutant]:
    for a, b in neighbours(program):
        if node in (a, b):
            way = "raise" if b is node else "lower"
            yield Mutant("flight", f"{way} {name}", swapped(program, a, b), node)


def of_tile(program: Program, node: Tile) -> Iterator[Mutant]:
    """Yield tiles that are left out or not whole, and what they declare otherwise."""
    yield Mutant("tile", "drop tile", replaced(program, node, None), node)
    if node.over_lanes:  # that of one thread is its body
        yield Mutant("tile", "the body without a tile", replaced(program, node, node.body), node)
    tests = [(d.value, LaunchIndex(d)) for d, _ in program.launch if d.is_block]
    tests += [
        (outer.var.name, outer.var)
        for outer, _ in statements(program.body)
        if isinstance(outer, Loop) and not outer.parallel.is_thread
        if node in [inner for inner, _ in statements(outer.body)]
    ]
    for name, index in tests:
        test = If(Op("eq", (index, integer(0)), dtypes.bool_), (node,))
        text = f"tile only where {name} is 0"
        yield Mutant("tile", text, replaced(program, node, test), node)
    for row in instructions.values():
        alike = row.scope == instructions[node.instruction].scope and not row.completion
        if alike and row.name != node.instruction:
            new = replace(node, instruction=row.name)
            text = f"claim of tile: {row.name} instead of {node.instruction}"
            yield Mutant("claim", text, replaced(program, node, new), node)
    for one, two in combinations(range(len(node.operands)), 2):
        operands = list(node.operands)
        roles = operands[one][0], operands[two][0]
        operands[one], operands[two] = [
            (role, operands[place][1]) for role, place in zip(roles, (two, one), strict=True)
        ]
        new = replace(node, operands=tuple(operands))
        text = f"claim of tile: operands {roles[0]} and {roles[1]} for each other"
        yield Mutant("claim", text, replaced(program, node, new), node)
    for _, buffer in node.operands:
        if buffer.memory is Memory.WARP:
            changed = _turned(program, buffer)
            yield Mutant("claim", f"claim of tile: {buffer.name} in other registers", changed, node)


def _turned(program: Program, buffer: Buffer) -> Program:
    """Return `program` with each element of a WARP buffer in the register behind its own."""
    count = buffer.shape[-1]

    def other(index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        behind = Op("add", (index[-1], integer(1)), dtypes.index)
        return (*index[:-1], Op("mod", (behind, count), dtypes.index))

    def of_value(value: Expr) -> Expr:
        found = [load for load in dict.fromkeys(loads(value)) if load.buffer is buffer]
        return substitute(value, {n: Load(n.buffer, other(n.args), n.flat) for n in found})

    def of_node(node: Stmt) -> Stmt:
        if not isinstance(node, Store):
            return node
        index = other(node.index) if node.storage is buffer else node.index
        return replace(node, index=index, value=of_value(node.value))

    return program.with_body(map_body(program.body, of_node))


def of_shuffle(program: Program, node: Shuffle) -> Iterator[Mutant]:
    changes: list[tuple[str, Shuffle]] = []
    for step, name in ((1, "offset + 1"), (-1, "offset - 1")):
        offset = Op("add", (node.offset, integer(step)), dtypes.index)
        changes.append((name, replace(node, offset=offset)))
    twice = Op("mul", (node.offset, integer(2)), dtypes.index)
    changes.append(("offset * 2", replace(node, offset=twice)))
    for mode in ("xor", "down", "up", "lane"):
        if mode != node.mode:
            changes.append((f"{mode} instead of {node.mode}", replace(node, mode=mode)))
    for text, new in changes:
        changed = replaced(program, node, new)
        yield Mutant("shuffle", f"shuffle {node.var.name}: {text}", changed, node)
    for kind, text, value in values(node.value):
        yield Mutant(kind, text, replaced(program, node, replace(node, value=value)), node)


def of_arrival(program: Program, node: Arrive) -> Iterator[Mutant]:
    for step in (-1, 1):
        count = Op("add", (node.count, integer(step)), dtypes.index)
        text = f"arrive {node.counter.name}: count {step:+}"
        new = replace(node, count=count)
        yield Mutant("arrival", text, replaced(program, node, new), node)
    for place, index in enumerate(node.index):
        for name, other in indices(index):
            changed = (*node.index[:place], other, *node.index[place + 1 :])
            text = f"arrive {node.counter.name}: {name}"
            new = replace(node, index=changed)
            yield Mutant("arrival", text, replaced(program, node, new), node)


def of_collective(program: Program, node: Collective) -> Iterator[Mutant]:
    """Yield other declarations of the same statements."""
    used = [d for d, _ in program.launch if d.is_block]
    other_dims = [tuple(d for d in node.dims if d is not dim) for dim in node.dims]
    other_dims += [(*node.dims, d) for d in used if d not in node.dims]
    for dims in other_dims:
        over = ", ".join([d.value for d in dims]) or "no dimension"
        text = f"claim of {node.name}: over {over}"
        yield Mutant("claim", text, replaced(program, node, replace(node, dims=dims)), node)
    for scan in ("inclusive", "exclusive", "") if node.scan else ():
        if scan != node.scan:
            text = f"claim of {node.name}: {scan or 'no scan'} instead of {node.scan}"
            yield Mutant("claim", text, replaced(program, node, replace(node, scan=scan)), node)
    for number, value in enumerate(node.identity):
        if isinstance(value, Const):
            other = Const(value.value == 0, value.dtype)
            identity = (*node.identity[:number], other, *node.identity[number + 1 :])
            new = replace(node, identity=identity)
            text = f"claim of {node.name}: identity {other}"
            yield Mutant("claim", text, replaced(program, node, new), node)
    for number, (one, two) in enumerate(pairwise(node.results)):
        if one.dtype is two.dtype:
            results = list(node.results)
            results[number : number + 2] = two, one
            new = replace(node, results=tuple(results))
            text = f"claim of {node.name}: {one.name} and {two.name} for each other"
            yield Mutant("claim", text, replaced(program, node, new), node)
