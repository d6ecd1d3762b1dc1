"""Slices of a program that suffice to find its races, at the largest blocks of a launch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import assert_never

from loopnest import kir
from loopnest.kir.buffers import Buffer
from loopnest.scalar import dtypes
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import (
    ONE,
    ZERO,
    Const,
    Expr,
    Index,
    Local,
    Op,
    integer,
    loads,
    substitute,
    walk,
)


def sliced(program: kir.Program) -> kir.Program:
    """Return a program without the statements that have no part in races between threads."""
    watched = _watched(program)
    names = _names(program, watched)

    def rule(node: kir.Stmt) -> kir.Stmt | tuple[kir.Stmt, ...] | None:
        match node:
            case kir.Loop() | kir.If() | kir.Issue():
                return node if any(kir.bodies(node)) else None
            case kir.Collective():
                return node.body
            case kir.Shuffle():
                return None
            case kir.Let():
                return node if node.var in names or _reads(node, watched) else None
            case kir.Store():
                return node if node.storage in watched or _reads(node, watched) else None
            case kir.Allocate() | kir.Barrier() | kir.Arrive() | kir.Commit() | kir.Wait():
                return node
            case kir.Launch() | kir.Tile():
                raise kir.one_launch(node)
            case _:
                assert_never(node)

    def short(node: kir.Stmt) -> kir.Stmt:
        if isinstance(node, kir.Store) and not any(b in watched for b in _loaded([node.value])):
            # A race is about where and when; the value of a store that loads no shared memory is
            # neither.
            return replace(node, value=Const(0, node.storage.dtype))
        return node

    body = kir.map_body(program.body, rule)
    return program.with_body(_without_idle(kir.map_body(body, short)))


def _without_idle(body: tuple[kir.Stmt, ...]) -> tuple[kir.Stmt, ...]:
    """Return `body` without loops and tests that hold allocations alone."""

    def rule(node: kir.Stmt) -> kir.Stmt | None:
        inner = [n for b in kir.bodies(node) for n in b]
        idle = all(isinstance(n, kir.Allocate) for n in inner)
        return None if kir.bodies(node) and idle else node

    return kir.map_body(body, rule)


def _watched(program: kir.Program) -> frozenset[Buffer]:
    """Return the buffers that threads share and some thread stores to, with their spaces."""
    stored = {n.storage for n, _ in kir.walk(program.body) if isinstance(n, kir.Store)}
    made = {n.storage for n, _ in kir.walk(program.body) if isinstance(n, kir.Allocate)}
    common = {b for b in stored | made if b.memory is not Memory.LOCAL}
    spaces = {b.alias_of or b.name for b in stored}
    return frozenset(b for b in common if b in stored or (b.alias_of or b.name) in spaces)


def _names(program: kir.Program, watched: Collection[Buffer]) -> set[Local]:
    """Return the names that decide where and whether shared memory is used."""
    made: dict[Local, Expr] = {}
    queue: list[Expr] = []
    for node, _ in kir.walk(program.body):
        match node:
            case kir.If():
                queue.append(node.condition)
            case kir.Loop():
                queue.append(node.var.extent)
            case kir.Store():
                queue += node.index
            case kir.Let():
                made[node.var] = node.value
            case kir.Launch() | kir.Tile():
                raise kir.one_launch(node)
            case (
                kir.Allocate() | kir.Barrier() | kir.Shuffle() | kir.Arrive() | kir.Collective()
                | kir.Issue() | kir.Commit() | kir.Wait()
            ):  # fmt: skip
                pass
            case _:
                assert_never(node)
        for part in kir.expressions(node):
            queue += [part] if any(b in watched for b in _loaded([part])) else []
    found: set[Local] = set()
    while queue:
        for part in walk(queue.pop()):
            if isinstance(part, Local) and part not in found:
                found.add(part)
                queue += [made[part]] if part in made else []
    return found


def _reads(node: kir.Stmt, watched: Collection[Buffer]) -> bool:
    return any(b in watched for b in _loaded(kir.expressions(node)))


def _loaded(values: Sequence[Expr]) -> Iterator[Buffer]:
    for value in values:
        yield from (load.buffer for load in loads(value))


# Around one barrier


def focused(program: kir.Program, barrier: kir.Barrier) -> kir.Program:
    """Return what a thread does around a barrier, without long loops before and after it.

    For a barrier of a block or a warp, only the first block runs. Of each body a stretch of its
    statements is kept, of each loop at most two iterations (one, where the stretch is not the whole
    body). Each race of the result is a race of the program.
    """
    launch = [
        (d, ONE if d.is_grid and barrier.scope != "grid" else size) for d, size in program.launch
    ]
    return replace(program, launch=tuple(launch), body=_stretch(program.body, barrier)[0])


def _stretch(
    body: tuple[kir.Stmt, ...], barrier: kir.Barrier
) -> tuple[tuple[kir.Stmt, ...], bool, bool]:
    """Return a stretch of a body, whether that is all of it, and whether it is in a loop."""
    (place,) = [n for n, node in enumerate(body) if _holds(node, barrier)]
    node = body[place]
    whole, looped = True, False
    match node:
        case kir.If():
            first = any(_holds(n, barrier) for n in node.body)
            inner, whole, looped = _stretch(node.body if first else node.orelse, barrier)
            node = replace(node, body=inner if first else (), orelse=() if first else inner)
        case kir.Loop():
            inner, whole, looped = _stretch(node.body, barrier)
            if node.parallel.is_thread:
                node = replace(node, body=inner)
            else:
                # Two iterations show a race of what stands behind the barrier with what stands
                # before it in the next one, but only where all of the body is kept: what is left
                # out could have a barrier.
                node = _shortened(node, inner, 2 if whole and not looped else 1)
                looped = True
    low, high = place, place + 1
    if not looped:
        while low and not _is_long(body[low - 1]):
            low -= 1
        while high < len(body) and not _is_long(body[high]):
            high += 1
    named = (kir.Let, kir.Arrive, kir.Allocate)
    before = [n for n in body[:low] if isinstance(n, named)]
    made = (*before, *body[low:place], node, *body[place + 1 : high])
    return made, whole and low == 0 and high == len(body), looped


def _holds(node: kir.Stmt, barrier: kir.Barrier) -> bool:
    return node is barrier or any(_holds(n, barrier) for b in kir.bodies(node) for n in b)


def _is_long(node: kir.Stmt) -> bool:
    """Whether a statement has a loop, not bound to threads, of symbolic extent."""
    symbolic = isinstance(node, kir.Loop) and not isinstance(node.var.extent, Const)
    if symbolic and isinstance(node, kir.Loop) and not node.parallel.is_thread:
        return True
    return any(_is_long(n) for b in kir.bodies(node) for n in b)


def _shortened(loop: kir.Loop, body: tuple[kir.Stmt, ...], most: int) -> kir.Stmt:
    """Return the first iterations of a loop."""
    if most == 1:
        first: dict[Expr, Expr] = {loop.var: ZERO}
        test = Op("lt", (ZERO, loop.var.extent), dtypes.bool_)
        return kir.If(test, _substituted(body, first))
    extent = Op("min", (loop.var.extent, integer(most)), dtypes.index)
    var = Index(loop.var.name, extent)
    return replace(loop, var=var, body=_substituted(body, {loop.var: var}))


def _substituted(body: tuple[kir.Stmt, ...], values: dict[Expr, Expr]) -> tuple[kir.Stmt, ...]:
    def rule(node: kir.Stmt) -> kir.Stmt:
        if not any(v in set(walk(e)) for e in kir.expressions(node) for v in values):
            return node
        return kir.map_expressions(node, lambda value: substitute(value, values))

    return kir.map_body(body, rule)
