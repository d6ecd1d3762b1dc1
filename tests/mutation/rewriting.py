"""Nests with something else in a place: what mutants are made by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

from loopnest.kir import (
    Allocate,
    Arrive,
    Collective,
    If,
    Let,
    Loop,
    Output,
    Param,
    Program,
    Shuffle,
    Stmt,
    Store,
    bodies,
    map_body,
    with_bodies,
)
from loopnest.scalar import dtypes
from loopnest.scalar.expr import Buffer, Expr, Index, Load, Op, integer, rewrite, substitute


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


def in_scope(program: Program, node: Stmt) -> list[Buffer]:
    """Return the buffers that `node` may use where it stands first, parameters first."""

    def visit(body: tuple[Stmt, ...], made: tuple[Buffer, ...]) -> tuple[Buffer, ...] | None:
        for other in body:
            if other is node:
                return made
            if isinstance(other, Allocate):
                made = (*made, other.storage)
            for inner in bodies(other):
                found = visit(inner, made)
                if found is not None:
                    return found
        return None

    params = tuple([p.buffer for p in program.params if p.buffer is not None])
    return list(dict.fromkeys(visit(program.body, params) or ()))


def neighbours(program: Program) -> Iterator[tuple[Stmt, Stmt]]:
    """Yield each two statements that follow each other."""
    seen: set[int] = set()

    def visit(body: tuple[Stmt, ...]) -> Iterator[tuple[Stmt, Stmt]]:
        if id(body) in seen:
            return
        seen.add(id(body))
        yield from pairwise(body)
        for node in body:
            for inner in bodies(node):
                yield from visit(inner)

    yield from visit(program.body)


def swapped(program: Program, a: Stmt, b: Stmt) -> Program:
    """Return `program` with two neighbours in the other order."""

    def swap(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        result = []
        for node in body:
            if node is a:
                result.append(b)
            elif node is b:
                result.append(a)
            else:
                inner = tuple(swap(x) for x in bodies(node))
                result.append(with_bodies(node, inner) if inner else node)
        return tuple(result)

    return program.with_body(swap(program.body))


def with_extent(node: Loop, extent: Expr) -> Loop:
    """Return a loop with another extent, its index renewed in its body."""
    var = Index(node.var.name, extent)
    body = _rewritten(node.body, lambda e: substitute(e, {node.var: var}))
    return Loop(var, node.parallel, node.axis, body, node.origin)


def packed(shape: tuple[Expr, ...]) -> tuple[tuple[Expr, ...], Expr]:
    """Return the strides and the size of a shape without gaps."""
    strides: list[Expr] = []
    step: Expr = integer(1)
    for size in reversed(shape):
        strides.insert(0, step)
        step = Op("mul", (step, size), dtypes.index)
    return tuple(strides), step


def with_buffer(program: Program, old: Buffer, new: Buffer) -> Program:
    """Return `program` with a buffer replaced in all its uses."""

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.buffer is old:
            return Load(new, tuple(rewrite(a, rule) for a in node.args), node.flat)
        return None

    def swap(node: Stmt) -> Stmt:
        match node:
            case Allocate() if node.storage is old:
                return Allocate(new, node.origin)
            case Store() if node.storage is old:
                return replace(node, storage=new)
            case Arrive() if node.counter is old:
                return replace(node, counter=new)
        return node

    body = map_body(_rewritten(program.body, lambda e: rewrite(e, rule)), swap)
    params = tuple(
        Param(p.name, p.kind, p.dtype, new, p.shape) if p.buffer is old else p
        for p in program.params
    )
    outputs = tuple(
        Output(o.name, new, o.shape, o.inplace) if o.buffer is old else o for o in program.outputs
    )
    return replace(program, body=body, params=params, outputs=outputs)


def with_values(program: Program, change: Callable[[Expr], Expr]) -> Program:
    """Return `program` with every expression in it changed."""
    return program.with_body(_rewritten(program.body, change))


def _rewritten(body: tuple[Stmt, ...], change: Callable[[Expr], Expr]) -> tuple[Stmt, ...]:
    def all_changed(items: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(change(i) for i in items)

    def rule(node: Stmt) -> Stmt:
        match node:
            case Store():
                return replace(
                    node,
                    index=all_changed(node.index),
                    value=change(node.value),
                    coordinate=all_changed(node.coordinate),
                )
            case If():
                return replace(node, condition=change(node.condition))
            case Let():
                return replace(node, value=change(node.value))
            case Shuffle():
                return replace(node, value=change(node.value), offset=change(node.offset))
            case Arrive():
                return replace(node, index=all_changed(node.index), count=change(node.count))
            case Collective():
                return replace(node, args=all_changed(node.args))
        return node

    return map_body(body, rule)
