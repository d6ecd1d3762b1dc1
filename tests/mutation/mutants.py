"""One change at a time in a loop nest: programs that are wrong, to judge what checks them.

Each mutant is a program with a text that says what was changed. Not every one is wrong: some
changes make no difference to any result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from loopnest.kir import (
    Allocate,
    Arrive,
    Barrier,
    Collective,
    If,
    Launch,
    Let,
    Loop,
    Program,
    Shuffle,
    Stmt,
    Store,
    bodies,
    is_sync,
    map_body,
)
from loopnest.kir import walk as statements
from loopnest.kir.buffers import Buffer
from loopnest.kir.lowered import Lowered
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import LAUNCH_DIMENSIONS, Memory, ParallelType
from loopnest.scalar.expr import (
    Const,
    Expr,
    Index,
    LaunchIndex,
    Load,
    Op,
    all_of,
    integer,
    substitute,
    terms_of,
    walk,
)
from mutation.interfaces import changed_interfaces, retyped
from mutation.rewriting import (
    in_scope,
    neighbours,
    packed,
    replaced,
    swapped,
    with_buffer,
    with_extent,
)

if TYPE_CHECKING:
    import pytest

CORE = frozenset({
    "predicate", "init", "identity", "store", "index", "claim", "bound", "buffer", "threads",
    "order",
})  # fmt: skip
"""Kinds of changes that every nest has a place for."""

KINDS = CORE | {
    "launch", "stride", "vector", "barrier", "shuffle", "arrival", "alias", "redirect", "clobber",
    "type", "interface", "values", "constant", "operation", "swizzle",
}  # fmt: skip
"""All kinds.

predicate   drop, weaken (< to <=) or narrow a term of a test or of a `where`; an index off in it
init        drop the store that a reduction starts with
identity    start a reduction from another value, or fill a copy with it
store       drop any other store
index       drop or change a term of an index of a store or a load
claim       change what a statement declares: the coordinate of a store, the threads of a collective
            or which of its results is which
bound       a loop that runs once more or less
buffer      one element less along an axis
threads     swap two launch dimensions
order       swap two neighbouring statements
launch      one thread or block more or less along a launch dimension; of several launches one
            left out, two swapped, or two in one
stride      rows that overlap, or lie further apart than the buffer has room for
vector      a vector of twice or half the width
barrier     remove it, narrow its scope, move it, let some threads pass by
shuffle     another offset or mode
arrival     another count or counter of an `Arrive`
alias       let two shared buffers lie in one space
redirect    store to another buffer
clobber     store what a reduction starts from once more, when its value is being computed
swizzle     two elements in one place, or a store that goes past the swizzle
type        elements of another type in a buffer that is no parameter
values      swap the values of two neighbouring stores
interface   what a caller sees: parameters, their types and order, outputs, memory, assumptions
constant    another literal in a value
operation   another operation in a value
"""


@dataclass(frozen=True)
class Mutant:
    """A changed program: the kind of the change, where, the program.

    `node` is the statement of the original program that was changed, None for a change of the
    program as a whole.
    """

    kind: str
    text: str
    program: Program
    node: Stmt | None = None


def mutants(program: Program, kinds: frozenset[str] = CORE) -> Iterator[Mutant]:
    """Yield every mutant of `program` of these kinds."""
    for mutant in _mutants(program):
        if mutant.kind in kinds:
            yield mutant


def _mutants(program: Program) -> Iterator[Mutant]:
    nodes = list(dict.fromkeys(node for node, _ in statements(program.body)))
    for node in nodes:
        yield from _OF[type(node)](program, node)
    for param in program.params:
        if param.kind == "workspace" and param.buffer is not None:
            yield from _of_buffer(program, param.buffer, None)
    yield from _swapped_threads(program, nodes)
    yield from _swapped_neighbours(program)
    yield from _swapped_values(program)
    yield from _of_launch(program)
    yield from _aliased(program, nodes)
    yield from _clobbered(program, nodes)
    for text, changed in changed_interfaces(program):
        yield Mutant("interface", text, changed)


def break_lowering(monkeypatch: pytest.MonkeyPatch, kind: str, text: str) -> None:
    """Let every kernel that is lowered be its first mutant of this kind whose text begins so.

    Kernels that have none stay as they are; no kernel is proved before it is compiled.
    """
    pipeline = import_module("loopnest.lowering.pipeline")
    real = pipeline.lower

    def broken(fusion: object) -> Lowered:
        lowered: Lowered = real(fusion)
        for mutant in mutants(lowered.program, KINDS):
            if mutant.kind == kind and mutant.text.startswith(text):
                return replace(lowered, program=mutant.program)
        return lowered

    monkeypatch.setenv("LOOPNEST_VERIFY", "0")
    monkeypatch.setattr(pipeline, "lower", broken)


# Tests


def _of_test(program: Program, node: If) -> Iterator[Mutant]:
    for text, condition in _tests(node.condition):
        test = If(condition, node.body, node.orelse, node.reason, node.origin)
        yield Mutant("predicate", text, replaced(program, node, test), node)


def _tests(condition: Expr) -> Iterator[tuple[str, Expr]]:
    """Yield other conditions: a term dropped, weaker, narrower, or of another index."""
    terms = terms_of(condition)
    for number, term in enumerate(terms):
        rest = [t for n, t in enumerate(terms) if n != number]
        yield f"drop '{term}'", all_of(rest)
        if not isinstance(term, Op):
            continue
        left, right = term.args[0], term.args[-1]
        if term.op == "lt":
            for step, name in ((1, "weaken"), (-1, "narrow")):
                bound = Op("add", (right, integer(step)), dtypes.index)
                yield f"{name} '{term}'", all_of([*rest, Op("lt", (left, bound), dtypes.bool_)])
        if term.op == "le" and left.dtype is dtypes.index:
            for step, name in ((-1, "weaken"), (1, "narrow")):
                bound = Op("add", (left, integer(step)), dtypes.index)
                yield f"{name} '{term}'", all_of([*rest, Op("le", (bound, right), dtypes.bool_)])
        if term.op in ("lt", "le", "eq") and left.dtype is dtypes.index:
            for index, other in _without(left):
                changed = Op(term.op, (other, right), dtypes.bool_)
                yield f"'{term}' {index}", all_of([*rest, changed])


def _without(index: Expr) -> Iterator[tuple[str, Expr]]:
    for var in dict.fromkeys(n for n in walk(index) if isinstance(n, Index)):
        yield f"without {var}", substitute(index, {var: integer(0)})


# Stores, loads, temporaries


def _of_store(program: Program, node: Store) -> Iterator[Mutant]:
    yield from _dropped(program, node)
    yield from _redirected(program, node)
    for place, index in enumerate(node.index):
        for name, other in _indices(index):
            changed = (*node.index[:place], other, *node.index[place + 1 :])
            text = f"store {node.storage.name}: {name}"
            yield Mutant("index", text, replaced(program, node, replace(node, index=changed)), node)
    for kind, text, value in (*_values(node.value), *_other_math(node.value)):
        yield Mutant(kind, text, replaced(program, node, replace(node, value=value)), node)
    for place, index in enumerate(node.coordinate):
        if isinstance(index, Const) or node.role == "fill":
            continue  # a fill claims no more than that it lies outside
        other = Op("add", (index, integer(1)), dtypes.index)
        changed = (*node.coordinate[:place], other, *node.coordinate[place + 1 :])
        text = f"claim of {node.tensor}: axis {place}"
        new = replace(node, coordinate=changed)
        yield Mutant("claim", text, replaced(program, node, new), node)


def _redirected(program: Program, node: Store) -> Iterator[Mutant]:
    """Yield stores to other buffers in which the same index may stand."""
    mine = node.storage
    for other in in_scope(program, node):
        alike = len(other.shape) == len(mine.shape) and other.kind not in ("input", "counter")
        if other is not mine and alike and other.memory is mine.memory and not node.flat:
            text = f"store {mine.name}: to {other.name}"
            new = replace(node, storage=other)
            yield Mutant("redirect", text, replaced(program, node, new), node)


def _clobbered(program: Program, nodes: list[Stmt]) -> Iterator[Mutant]:
    """Yield inits repeated behind each other store to their buffer."""
    inits = {n.storage: n for n in nodes if isinstance(n, Store) and n.role == "init"}
    for node in nodes:
        if isinstance(node, Store) and node.role != "init" and node.storage in inits:
            again = replace(inits[node.storage], index=node.index, coordinate=node.coordinate)
            text = f"start {node.storage.name} again behind its {node.role}"
            yield Mutant("clobber", text, replaced(program, node, (node, again)), node)


def _dropped(program: Program, node: Store) -> Iterator[Mutant]:
    if node.role == "init":
        text = f"drop {node.storage.name} init"
        yield Mutant("init", text, replaced(program, node, None), node)
        if isinstance(node.value, Const):
            other = Const(node.value.value == 0, node.value.dtype)
            text = f"start {node.storage.name} from {other}"
            new = replace(node, value=other)
            yield Mutant("identity", text, replaced(program, node, new), node)
    else:
        text = f"drop {node.storage.name}"
        yield Mutant("store", text, replaced(program, node, None), node)
    if node.role == "fill" and isinstance(node.value, Const):
        other = Const(node.value.value == 0, node.value.dtype)
        text = f"fill {node.storage.name} with {other}"
        yield Mutant("identity", text, replaced(program, node, replace(node, value=other)), node)


def _values(value: Expr) -> Iterator[tuple[str, str, Expr]]:
    """Yield (kind, text, other value): loads at other places, masks dropped."""
    for load in dict.fromkeys(n for n in walk(value) if isinstance(n, Load)):
        for place, index in enumerate(load.args):
            for name, other in _indices(index):
                changed = (*load.args[:place], other, *load.args[place + 1 :])
                new = substitute(value, {load: Load(load.buffer, changed, load.flat)})
                yield "index", f"load {load.buffer.name}: {name}", new
    for mask in dict.fromkeys(n for n in walk(value) if isinstance(n, Op) and n.op == "where"):
        if any(isinstance(n, Load) for n in walk(mask.args[0])):
            continue  # part of the math
        for text, condition in _tests(mask.args[0]):
            new = Op("where", (condition, *mask.args[1:]), mask.dtype)
            yield "predicate", f"mask: {text}", substitute(value, {mask: new})
        yield "predicate", f"no mask '{mask.args[0]}'", substitute(value, {mask: mask.args[1]})
        if isinstance(mask.args[2], Const):
            other = Const(mask.args[2].value == 0, mask.args[2].dtype)
            new = Op("where", (*mask.args[:2], other), mask.dtype)
            yield "identity", f"mask: fill with {other}", substitute(value, {mask: new})


_OTHER_OPERATIONS = {
    "add": "sub", "sub": "add", "mul": "add", "div": "mul", "max": "min", "min": "max",
    "lt": "ge", "le": "gt", "exp": "exp2", "log": "log2", "sin": "cos", "tanh": "sigmoid",
    "sqrt": "rsqrt", "shl": "shr", "shr": "shl", "bitand": "bitor", "bitor": "bitxor",
    "bitxor": "bitand", "floordiv": "mod", "mod": "floordiv",
}  # fmt: skip


def _other_math(value: Expr) -> Iterator[tuple[str, str, Expr]]:
    """Yield (kind, text, other value): another literal, another operation."""
    nodes = [n for n in dict.fromkeys(walk(value)) if n.dtype is not dtypes.index]
    for node in nodes:
        if isinstance(node, Const) and not node.dtype.is_bool and math.isfinite(node.value):
            changed = node.value * 2 + 1
            integral = isinstance(changed, int) and node.dtype.kind == "i"
            other: Expr = Const(node.dtype.wrapped(changed) if integral else changed, node.dtype)
            yield "constant", f"{node} with {other}", substitute(value, {node: other})
        if isinstance(node, Op) and node.op == "cast" and _loses(node):
            by_way = Op("cast", (Op("cast", node.args, dtypes.int8),), node.dtype)
            yield "operation", f"{node} by way of int8", substitute(value, {node: by_way})
        if isinstance(node, Op) and node.op in _OTHER_OPERATIONS:
            name = _OTHER_OPERATIONS[node.op]
            if all(arg.dtype is not dtypes.index for arg in node.args):
                other = Op(name, node.args, node.dtype)
                yield "operation", f"{name} for {node.op}", substitute(value, {node: other})


def _loses(node: Op) -> bool:
    """Whether a cast gives other values by way of int8."""
    source = node.args[0].dtype
    return (
        node.dtype.is_integer
        and node.dtype.size > 1
        and not source.is_bool
        and source is not dtypes.int8
    )


def _indices(index: Expr) -> Iterator[tuple[str, Expr]]:
    yield f"{index} + 1", Op("add", (index, integer(1)), dtypes.index)
    for name, other in _without(index):
        yield f"{index} {name}", other
    for data in dict.fromkeys(n for n in walk(index) if isinstance(n, Load)):
        yield f"{index} with 0 for {data}", substitute(index, {data: Const(0, data.dtype)})
    for number in dict.fromkeys(n for n in walk(index) if isinstance(n, Const) and n.value > 1):
        yield f"{index} with {number} + 1", substitute(index, {number: integer(number.value + 1)})


def _of_let(program: Program, node: Let) -> Iterator[Mutant]:
    if node.var.dtype is dtypes.index:
        for name, other in _indices(node.value):
            text = f"let {node.var.name}: {name}"
            yield Mutant("index", text, replaced(program, node, replace(node, value=other)), node)
    for kind, text, value in _values(node.value):
        yield Mutant(kind, text, replaced(program, node, replace(node, value=value)), node)


# Loops and launches


def _of_loop(program: Program, node: Loop) -> Iterator[Mutant]:
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


def _of_launch(program: Program) -> Iterator[Mutant]:
    several = len(program.launches) > 1
    for place, launch in enumerate(program.launches if several else ()):
        for mutant in _of_launch(launch):
            changed = replace(program.body[place], extents=mutant.program.launch)
            body = (*program.body[:place], changed, *program.body[place + 1 :])
            yield Mutant("launch", f"{mutant.text} in launch {place}", program.with_body(body))
    for number, (dimension, extent) in enumerate(() if several else program.launch):
        for step in (-1, 1):
            other = (dimension, Op("add", (extent, integer(step)), dtypes.index))
            launch = (*program.launch[:number], other, *program.launch[number + 1 :])
            text = f"launch {dimension.value} {step:+}"
            yield Mutant("launch", text, replace(program, launch=launch))


def _of_one_launch(program: Program, node: Launch) -> Iterator[Mutant]:
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


def _swapped_threads(program: Program, nodes: list[Stmt]) -> Iterator[Mutant]:
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


def _swapped_neighbours(program: Program) -> Iterator[Mutant]:
    for a, b in neighbours(program):
        if not any(isinstance(n, Allocate) or is_sync(n) for n in (a, b)):
            yield Mutant("order", "swap two neighbours", swapped(program, a, b), b)


def _swapped_values(program: Program) -> Iterator[Mutant]:
    """Yield neighbouring stores each of which stores the value of the other."""
    for a, b in neighbours(program):
        if not isinstance(a, Store) or not isinstance(b, Store):
            continue
        if a.value is b.value or a.value.dtype is not b.value.dtype:
            continue
        once = replaced(program, a, replace(a, value=b.value))
        text = f"store {a.storage.name} and {b.storage.name}: each other's values"
        yield Mutant("values", text, replaced(once, b, replace(b, value=a.value)), b)


# Statements of several threads

_NARROWER = {"grid": "block", "block": "warp"}


def _of_barrier(program: Program, node: Barrier) -> Iterator[Mutant]:
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


def _of_shuffle(program: Program, node: Shuffle) -> Iterator[Mutant]:
    changes: list[tuple[str, Shuffle]] = []
    for step, name in ((1, "offset + 1"), (-1, "offset - 1")):
        offset = Op("add", (node.offset, integer(step)), dtypes.index)
        changes.append((name, replace(node, offset=offset)))
    twice = Op("mul", (node.offset, integer(2)), dtypes.index)
    changes.append(("offset * 2", replace(node, offset=twice)))
    for mode in ("xor", "down", "lane"):
        if mode != node.mode:
            changes.append((f"{mode} instead of {node.mode}", replace(node, mode=mode)))
    for text, new in changes:
        changed = replaced(program, node, new)
        yield Mutant("shuffle", f"shuffle {node.var.name}: {text}", changed, node)
    for kind, text, value in _values(node.value):
        yield Mutant(kind, text, replaced(program, node, replace(node, value=value)), node)


def _of_arrival(program: Program, node: Arrive) -> Iterator[Mutant]:
    for step in (-1, 1):
        count = Op("add", (node.count, integer(step)), dtypes.index)
        text = f"arrive {node.counter.name}: count {step:+}"
        new = replace(node, count=count)
        yield Mutant("arrival", text, replaced(program, node, new), node)
    for place, index in enumerate(node.index):
        for name, other in _indices(index):
            changed = (*node.index[:place], other, *node.index[place + 1 :])
            text = f"arrive {node.counter.name}: {name}"
            new = replace(node, index=changed)
            yield Mutant("arrival", text, replaced(program, node, new), node)


def _of_collective(program: Program, node: Collective) -> Iterator[Mutant]:
    """Yield other declarations of the same statements."""
    used = [d for d, _ in program.launch if d.is_block]
    other_dims = [tuple(d for d in node.dims if d is not dim) for dim in node.dims]
    other_dims += [(*node.dims, d) for d in used if d not in node.dims]
    for dims in other_dims:
        over = ", ".join([d.value for d in dims]) or "no dimension"
        text = f"claim of {node.name}: over {over}"
        yield Mutant("claim", text, replaced(program, node, replace(node, dims=dims)), node)
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


# Buffers


def _of_buffer(program: Program, buffer: Buffer, node: Stmt | None) -> Iterator[Mutant]:
    for axis, extent in enumerate(buffer.shape):
        small = Op("sub", (extent, integer(1)), dtypes.index)
        shape = (*buffer.shape[:axis], small, *buffer.shape[axis + 1 :])
        strides, size = packed(shape)
        new = replace(buffer, shape=shape, strides=strides, size=size)
        text = f"{buffer.name} axis {axis}"
        yield Mutant("buffer", text, with_buffer(program, buffer, new), node)
    for axis, stride in enumerate(buffer.strides):
        if isinstance(stride, Const) and stride.value == 1:
            continue
        for step in (-1, 1):
            other = Op("add", (stride, integer(step)), dtypes.index)
            strides = (*buffer.strides[:axis], other, *buffer.strides[axis + 1 :])
            new = replace(buffer, strides=strides)
            text = f"{buffer.name} stride of axis {axis} {step:+}"
            yield Mutant("stride", text, with_buffer(program, buffer, new), node)


def _of_swizzles(program: Program, buffer: Buffer, node: Stmt) -> Iterator[Mutant]:
    """Yield swizzles that move two elements to one place, and a store that goes past them."""
    for number, (a, b) in enumerate(buffer.swizzles):
        for pair in ((b, b), (a, a)):
            swizzles = (*buffer.swizzles[:number], pair, *buffer.swizzles[number + 1 :])
            new = replace(buffer, swizzles=swizzles)
            text = f"{buffer.name} xor{pair} for xor{(a, b)}"
            yield Mutant("swizzle", text, with_buffer(program, buffer, new), node)
    for store, _ in statements(program.body) if buffer.swizzles else ():
        if isinstance(store, Store) and store.storage is buffer and not store.flat:
            terms = [
                Op("mul", pair, dtypes.index)
                for pair in zip(store.index, buffer.strides, strict=True)
            ]
            offset: Expr = terms[0]
            for term in terms[1:]:
                offset = Op("add", (offset, term), dtypes.index)
            new_store = replace(store, index=(offset,), flat=True)
            text = f"{buffer.name} stored past its swizzle"
            yield Mutant("swizzle", text, replaced(program, store, new_store), store)


def _of_allocation(program: Program, node: Allocate) -> Iterator[Mutant]:
    yield from _of_buffer(program, node.storage, node)
    yield from _of_swizzles(program, node.storage, node)
    for dtype in _TYPES.get(node.storage.dtype.name, ()):
        text = f"{node.storage.name} of {dtype} instead of {node.storage.dtype}"
        yield Mutant("type", text, retyped(program, node.storage, dtype), node)


_TYPES: Mapping[str, tuple[DType, ...]] = {
    "float64": (dtypes.float32,),
    "float32": (dtypes.float16, dtypes.float64),
    "float16": (dtypes.float32, dtypes.bfloat16),
    "bfloat16": (dtypes.float32, dtypes.float16),
    "float8_e4m3fn": (dtypes.float16, dtypes.float8_e5m2),
    "float8_e5m2": (dtypes.float16, dtypes.float8_e4m3fn),
    "int64": (dtypes.int32,),
    "int32": (dtypes.int64, dtypes.uint32),
    "uint32": (dtypes.int32,),
    "int16": (dtypes.int8,),
    "int8": (dtypes.uint8,),
    "uint8": (dtypes.int8,),
}
"""Other types that the elements of a buffer may have."""


def _aliased(program: Program, nodes: list[Stmt]) -> Iterator[Mutant]:
    shared = [n for n in nodes if isinstance(n, Allocate) and n.storage.memory is Memory.SHARED]
    for number, a in enumerate(shared):
        for b in shared[number + 1 :]:
            root = a.storage.alias_of or a.storage.name
            if root in (b.storage.name, b.storage.alias_of):
                continue
            changed = with_buffer(program, b.storage, replace(b.storage, alias_of=root))
            yield Mutant("alias", f"{b.storage.name} in the space of {root}", changed, b)


_OF: Mapping[type[Stmt], Callable[[Program, Any], Iterator[Mutant]]] = {
    If: _of_test,
    Store: _of_store,
    Loop: _of_loop,
    Allocate: _of_allocation,
    Let: _of_let,
    Barrier: _of_barrier,
    Shuffle: _of_shuffle,
    Arrive: _of_arrival,
    Collective: _of_collective,
    Launch: _of_one_launch,
}
"""What may be changed in a statement of each class."""
