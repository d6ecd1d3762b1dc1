"""Launches without threads: what a program does where an extent of its grid or block is 0.

No thread runs then. The host does what all of them would do, as if that extent were 1: statements
outside of the loops over the threads that there are not, one thread's part of what threads combine,
with room for one thread in the buffers that have an element a thread. What threads along other
dimensions combine it does as declared, since the bodies of collectives count on the extents.

Before, at M=0: ``for i0 in M: a[0] += x[i0] / v0 = sum(a[0]) over block_x / y[0] = v0``; after, in
a launch of one thread: ``for i0 in M: a[0] += x[i0] / let v0 = a[0] / y[0] = v0``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from loopnest import kir
from loopnest.proofs.point_arrays import number
from loopnest.scalar import dtypes
from loopnest.scalar.enums import GRID_DIMENSIONS, ParallelType
from loopnest.scalar.expr import (
    ONE,
    ZERO,
    Buffer,
    Expr,
    LaunchIndex,
    Load,
    Op,
    Symbol,
    all_of,
    integer,
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


def of_the_host(program: kir.Program, sizes: Mapping[str, int]) -> kir.Program:
    """Return what the host does at sizes at which a launch of `program` has no thread.

    It is `program` itself where the launch has threads.
    """
    extents = {dim: _at(extent, sizes) for dim, extent in program.launch}
    if ZERO not in extents.values():
        return program
    several = frozenset([dim for dim, extent in extents.items() if extent not in (ZERO, ONE)])
    nodes = [node for node, _ in kir.walk(program.body)]
    bound: dict[Expr, ParallelType] = {LaunchIndex(dim): dim for dim in GRID_DIMENSIONS}
    bound |= {node.var: node.parallel for node in nodes if isinstance(node, kir.Loop)}
    roomy: dict[Buffer, Buffer] = {}
    spaces = [p.buffer for p in program.params if p.kind == "workspace" and p.buffer is not None]
    for buffer in (*kir.allocated(nodes), *spaces):
        if any(_is_zero(extent, sizes) for extent in buffer.shape):
            roomy[buffer] = _with_room(buffer, sizes)

    def placed(load: Load) -> Load:
        return Load(roomy.get(load.buffer, load.buffer), load.args, load.flat)

    def rule(node: kir.Stmt) -> kir.Stmt | tuple[kir.Stmt, ...]:
        found = kir.map_accesses(node, placed, roomy)
        match found:
            case kir.Collective():
                return _combined(found, several)
            case kir.Arrive() if _is_zero(found.count, sizes) or not several:
                # No block would arrive: the first of those that share the counter is the last.
                apart = {bound.get(node) for index in found.index for node in walk(index)}
                shared = [dim for dim in GRID_DIMENSIONS if dim in several and dim not in apart]
                return kir.Let(found.var, all_of(map(_is_first, shared)), found.origin)
        return found

    params = [replace(p, buffer=roomy.get(p.buffer, p.buffer)) if p.buffer is not None else p
              for p in program.params]  # fmt: skip
    return replace(
        program,
        params=tuple(params),
        launch=tuple([(d, ONE if _is_zero(e, sizes) else e) for d, e in program.launch]),
        body=kir.map_body(program.body, rule),
    )


def _combined(
    node: kir.Collective, several: frozenset[ParallelType]
) -> kir.Collective | tuple[kir.Let, ...]:
    """Return what a collective does where there are several threads along some dimensions only."""
    if several.isdisjoint(node.dims):
        return tuple(_alone(node))
    return replace(node, body=tuple([n for n in node.body if isinstance(n, kir.Barrier)]))


def _is_first(dimension: ParallelType) -> Expr:
    return Op("eq", (LaunchIndex(dimension), ZERO), dtypes.bool_)


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
