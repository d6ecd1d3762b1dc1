"""Launches without threads: what a program does where an extent of its grid or block is 0.

No thread runs then. The host does what all of them would do, once: statements outside of the loops
over the threads that there are not, one thread's part of what threads combine, with room for one
thread in the buffers that have an element a thread.

Before, at M=0: ``for i0 in M: a[0] += x[i0] / v0 = sum(a[0]) over block_x / y[0] = v0``; after, in
a launch of one thread: ``for i0 in M: a[0] += x[i0] / let v0 = a[0] / y[0] = v0``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from loopnest import kir
from loopnest.kir.buffers import Buffer
from loopnest.proofs.point_arrays import number
from loopnest.scalar.expr import (
    ONE,
    TRUE,
    ZERO,
    Expr,
    Load,
    Symbol,
    integer,
    rewrite,
    substitute,
    walk,
)
from loopnest.scalar.facts import Facts
from loopnest.scalar.simplify import Simplifier

_SMALL = range(9)
"""Values of a size at which an extent that is less than it (``N - 2``) may be 0."""


def empty_sizes(program: kir.Program, given: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield sizes at which a launch has no thread, though there is something to compute."""
    algebra = Simplifier(Facts.of(_tests(program)))
    seen: list[dict[str, int]] = []
    for _, extent in program.launch:
        names = sorted(_names(extent) - given.keys())
        alone = [{name: n} for name in names for n in _SMALL if _is_zero(extent, {name: n})]
        for sizes in alone or [dict.fromkeys(names, 0)]:
            known = {**given, **sizes}
            if (
                not sizes
                or sizes in seen
                or algebra.proves_positive(extent)
                or not _is_zero(extent, known)
            ):
                continue
            seen.append(sizes)
            if not _is_refused(program, known) and not _computes_nothing(program, known):
                yield sizes


def _is_refused(program: kir.Program, sizes: Mapping[str, int]) -> bool:
    """Whether a launch of these sizes is refused, whatever the others are."""
    tests = [test for test in _tests(program) if _names(test) <= sizes.keys()]
    factors = [factor for factor in program.split_factors if _names(factor) <= sizes.keys()]
    return not all(number(t, sizes) for t in tests) or any(number(f, sizes) < 1 for f in factors)


def _tests(program: kir.Program) -> list[Expr]:
    return [test for _, test in (*program.conditions, *program.requires)]


def _names(value: Expr) -> set[str]:
    return {node.name for node in walk(value) if isinstance(node, Symbol)}


def _computes_nothing(program: kir.Program, sizes: Mapping[str, int]) -> bool:
    return all(any(_is_zero(n, sizes) for n in output.shape) for output in program.outputs)


def of_the_host(program: kir.Program, sizes: Mapping[str, int]) -> kir.Program | None:
    """Return what the host does at sizes at which a launch of `program` has no thread.

    It is `program` itself where the launch has threads. None where there are several along another
    dimension, and they combine values: the host does what is declared, which is no statement.
    """
    extents = [_at(extent, sizes) for _, extent in program.launch]
    if ZERO not in extents:
        return program
    nodes = [node for node, _ in kir.walk(program.body)]
    combines = any(isinstance(node, (kir.Collective, kir.Arrive)) for node in nodes)
    if combines and not {ZERO, ONE}.issuperset(extents):
        return None
    roomy: dict[Buffer, Buffer] = {}
    made = [node.storage for node in nodes if isinstance(node, kir.Allocate)]
    spaces = [p.buffer for p in program.params if p.kind == "workspace" and p.buffer is not None]
    for buffer in (*made, *spaces):
        if any(_is_zero(extent, sizes) for extent in buffer.shape):
            roomy[buffer] = _with_room(buffer, sizes)

    def loaded(node: Expr) -> Expr | None:
        if not isinstance(node, Load) or node.buffer not in roomy:
            return None
        return Load(roomy[node.buffer], tuple([rewrite(a, loaded) for a in node.args]), node.flat)

    def rule(node: kir.Stmt) -> kir.Stmt | tuple[kir.Stmt, ...]:
        found = kir.map_expressions(node, lambda value: rewrite(value, loaded))
        match found:
            case kir.Collective():
                return tuple(_alone(found))
            case kir.Arrive():
                return kir.Let(found.var, TRUE, found.origin)
            case kir.Store() | kir.Allocate() if found.storage in roomy:
                return replace(found, storage=roomy[found.storage])
        return found

    params = [replace(p, buffer=roomy.get(p.buffer, p.buffer)) if p.buffer is not None else p
              for p in program.params]  # fmt: skip
    return replace(
        program,
        params=tuple(params),
        launch=tuple([(d, ONE if _is_zero(e, sizes) else e) for d, e in program.launch]),
        body=kir.map_body(program.body, rule),
    )


def _alone(node: kir.Collective) -> Iterator[kir.Let]:
    """Yield the results of a collective of one thread."""
    before = node.identity if node.scan == "exclusive" else node.args
    for place, result in enumerate(node.results):
        values = before if node.is_so_far(place) else node.args
        yield kir.Let(result, values[place % len(values)], node.origin)


def _with_room(buffer: Buffer, sizes: Mapping[str, int]) -> Buffer:
    """Return a buffer with room for one thread where it has an element for each."""
    algebra = Simplifier()
    shape = tuple([ONE if _is_zero(extent, sizes) else extent for extent in buffer.shape])
    strides = [algebra.product(shape[n + 1 :]) for n in range(len(shape))]
    return replace(buffer, shape=shape, strides=tuple(strides), size=algebra.product(shape))


def _is_zero(value: Expr, sizes: Mapping[str, int]) -> bool:
    return _at(value, sizes) is ZERO


def _at(value: Expr, sizes: Mapping[str, int]) -> Expr:
    """Return an expression of sizes where some are known."""
    known: dict[Expr, Expr] = {Symbol(name): integer(n) for name, n in sizes.items()}
    return Simplifier().simplify(substitute(value, known))
