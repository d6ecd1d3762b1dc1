"""One change at a time in a loop nest: programs that are wrong, to judge what checks them.

Each mutant is a program with a text that says what was changed. Not every one is wrong: some
changes make no difference to any result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from loopnest import dtypes
from loopnest.buffers import Buffer
from loopnest.expr import TRUE, Const, Expr, Index, Load, Op, integer, rewrite, substitute, walk
from loopnest.kir import (
    Allocate,
    If,
    Let,
    Loop,
    Output,
    Param,
    Program,
    Stmt,
    Store,
    bodies,
    map_body,
    with_bodies,
)
from loopnest.kir import walk as statements


@dataclass(frozen=True)
class Mutant:
    """A changed program: the kind of the change, where, and the program."""

    kind: str
    text: str
    program: Program


def mutants(program: Program) -> Iterator[Mutant]:
    """Yield every mutant of `program`."""
    nodes = list(dict.fromkeys(node for node, _ in statements(program.body)))
    for node in nodes:
        match node:
            case If():
                yield from _of_test(program, node)
            case Store():
                yield from _of_store(program, node)
            case Loop():
                yield from _of_loop(program, node)
            case Allocate():
                yield from _of_buffer(program, node.storage)
    yield from _swapped_threads(program, nodes)
    yield from _swapped_neighbours(program)


def replaced(program: Program, old: Stmt, new: Stmt | tuple[Stmt, ...] | None) -> Program:
    """Return `program` with one statement replaced (with `old`'s bodies unchanged by then)."""

    def visit(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        result: list[Stmt] = []
        for node in body:
            if node is old:
                result.extend(new if isinstance(new, tuple) else () if new is None else (new,))
            else:
                inner = tuple(visit(b) for b in bodies(node))
                result.append(with_bodies(node, inner) if inner else node)
        return tuple(result)

    return program.with_body(visit(program.body))


def _terms(condition: Expr) -> list[Expr]:
    if isinstance(condition, Op) and condition.op == "and":
        return [*_terms(condition.args[0]), *_terms(condition.args[1])]
    return [condition]


def _all(terms: list[Expr]) -> Expr:
    result: Expr = TRUE
    for term in terms:
        result = term if result is TRUE else Op("and", (result, term), dtypes.bool_)
    return result


def _of_test(program: Program, node: If) -> Iterator[Mutant]:
    terms = _terms(node.condition)
    for number, term in enumerate(terms):
        rest = [t for n, t in enumerate(terms) if n != number]
        test = If(_all(rest), node.body, node.orelse, node.reason, node.origin)
        yield Mutant("predicate", f"drop '{term}'", replaced(program, node, test))
        if isinstance(term, Op) and term.op == "lt":
            for step, name in ((1, "weaken"), (-1, "narrow")):
                bound = Op("add", (term.args[1], integer(step)), dtypes.index)
                other = [*rest, Op("lt", (term.args[0], bound), dtypes.bool_)]
                test = If(_all(other), node.body, node.orelse, node.reason, node.origin)
                yield Mutant("predicate", f"{name} '{term}'", replaced(program, node, test))


def _of_store(program: Program, node: Store) -> Iterator[Mutant]:
    if node.role == "init":
        yield Mutant("init", f"drop {node.storage.name} init", replaced(program, node, None))
        if isinstance(node.value, Const):
            other = Const(node.value.value == 0, node.value.dtype)
            text = f"start {node.storage.name} from {other}"
            yield Mutant("identity", text, replaced(program, node, replace(node, value=other)))
    else:
        yield Mutant("store", f"drop {node.storage.name}", replaced(program, node, None))
    for place, index in enumerate(node.index):
        for name, other in _indices(index):
            changed = (*node.index[:place], other, *node.index[place + 1 :])
            text = f"store {node.storage.name}: {name}"
            yield Mutant("index", text, replaced(program, node, replace(node, index=changed)))
    for load in dict.fromkeys(n for n in walk(node.value) if isinstance(n, Load)):
        for place, index in enumerate(load.args):
            for name, other in _indices(index):
                changed = (*load.args[:place], other, *load.args[place + 1 :])
                value = substitute(node.value, {load: Load(load.buffer, changed, load.flat)})
                text = f"load {load.buffer.name}: {name}"
                yield Mutant("index", text, replaced(program, node, replace(node, value=value)))
    for place, index in enumerate(node.coordinate):
        if isinstance(index, Const):
            continue
        other = Op("add", (index, integer(1)), dtypes.index)
        changed = (*node.coordinate[:place], other, *node.coordinate[place + 1 :])
        text = f"claim of {node.tensor}: axis {place}"
        yield Mutant("claim", text, replaced(program, node, replace(node, coordinate=changed)))


def _indices(index: Expr) -> Iterator[tuple[str, Expr]]:
    yield f"{index} + 1", Op("add", (index, integer(1)), dtypes.index)
    for var in dict.fromkeys(n for n in walk(index) if isinstance(n, Index)):
        yield f"{index} without {var}", substitute(index, {var: integer(0)})
    for number in dict.fromkeys(n for n in walk(index) if isinstance(n, Const) and n.value > 1):
        yield f"{index} with {number} + 1", substitute(index, {number: integer(number.value + 1)})


def _of_loop(program: Program, node: Loop) -> Iterator[Mutant]:
    for step in (-1, 1):
        var = Index(node.var.name, Op("add", (node.var.extent, integer(step)), dtypes.index))
        body = _reindexed(node.body, {node.var: var})
        new = Loop(var, node.parallel, node.axis, body, node.origin)
        yield Mutant("bound", f"loop {node.index} {step:+}", replaced(program, node, new))


def _reindexed(body: tuple[Stmt, ...], mapping: dict[Expr, Expr]) -> tuple[Stmt, ...]:
    return _rewritten(body, lambda e: substitute(e, mapping))


def _rewritten(body: tuple[Stmt, ...], change: Callable[[Expr], Expr]) -> tuple[Stmt, ...]:
    def rule(node: Stmt) -> Stmt:
        match node:
            case Store():
                return replace(
                    node,
                    index=tuple(change(i) for i in node.index),
                    value=change(node.value),
                    coordinate=tuple(change(i) for i in node.coordinate),
                )
            case If():
                return replace(node, condition=change(node.condition))
            case Let():
                return replace(node, value=change(node.value))
        return node

    return map_body(body, rule)


def _of_buffer(program: Program, buffer: Buffer) -> Iterator[Mutant]:
    for axis, extent in enumerate(buffer.shape):
        small = Op("sub", (extent, integer(1)), dtypes.index)
        shape = (*buffer.shape[:axis], small, *buffer.shape[axis + 1 :])
        strides: list[Expr] = []
        step: Expr = integer(1)
        for size in reversed(shape):
            strides.insert(0, step)
            step = Op("mul", (step, size), dtypes.index)
        new = replace(buffer, shape=shape, strides=tuple(strides), size=step)
        yield Mutant("buffer", f"{buffer.name} axis {axis}", _with_buffer(program, buffer, new))


def _with_buffer(program: Program, old: Buffer, new: Buffer) -> Program:
    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.buffer is old:
            return Load(new, tuple(rewrite(a, rule) for a in node.args), node.flat)
        return None

    def swap(node: Stmt) -> Stmt:
        if isinstance(node, Allocate) and node.storage is old:
            return Allocate(new, node.origin)
        if isinstance(node, Store) and node.storage is old:
            return replace(node, storage=new)
        return node

    body = map_body(_rewritten(program.body, lambda e: rewrite(e, rule)), swap)
    params = tuple(
        Param(p.name, p.kind, p.dtype, new, p.shape) if p.buffer is old else p
        for p in program.params
    )
    outputs = tuple(
        Output(o.name, new, o.shape, o.inplace) if o.buffer is old else o for o in program.outputs
    )
    return Program(program.name, params, body, program.launch, outputs, program.conditions)


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
            yield Mutant("threads", text, program.with_body(map_body(program.body, swap)))


def _swapped_neighbours(program: Program) -> Iterator[Mutant]:
    seen: set[int] = set()

    def visit(body: tuple[Stmt, ...]) -> Iterator[tuple[Stmt, Stmt]]:
        if id(body) in seen:
            return
        seen.add(id(body))
        for a, b in pairwise(body):
            if not isinstance(a, Allocate) and not isinstance(b, Allocate):
                yield a, b
        for node in body:
            for inner in bodies(node):
                yield from visit(inner)

    for a, b in visit(program.body):

        def swap(body: tuple[Stmt, ...], a: Stmt = a, b: Stmt = b) -> tuple[Stmt, ...]:
            result = []
            for node in body:
                if node is a:
                    result.append(b)
                elif node is b:
                    result.append(a)
                else:
                    inner = tuple(swap(x, a, b) for x in bodies(node))
                    result.append(with_bodies(node, inner) if inner else node)
            return tuple(result)

        yield Mutant("order", "swap two neighbours", program.with_body(swap(program.body)))
