"""Atomic folds whose initial values an earlier launch stores, for the proofs of single launches.

The launch that stores them computes a tensor of the math, the initial values; the one that folds
finds them in memory, as if it had stored them itself before all else. So the first is asked to
compute that tensor, in an array of its own, and the second is given the statements that store it:
what it then has to show is that it folds each element once.

Before: ``launch: w[i] = 0.0 / launch: atomic w[i] = w[i] + x[j]``; after:
``launch: T4[i] = 0.0 / launch: { w[i] = 0.0; barrier grid; atomic w[i] = w[i] + x[j] }``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from loopnest import kir
from loopnest.kir.buffers import Buffer
from loopnest.scalar import dtypes
from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import (
    ONE,
    ZERO,
    Coordinate,
    Expr,
    Index,
    LaunchIndex,
    Op,
    all_of,
    loads,
)
from loopnest.tensor.math_snapshot import MathSnapshot, MathTensor


@dataclass(frozen=True, slots=True)
class StartedLaunches:
    """A program of several launches in which each fold is started by the launch that folds.

    Args:
        program: the program.
        starts: the arrays of initial values that earlier launches store.
        added: by number of a launch: how many lines of its nest were put in front.
    """

    program: kir.Program
    starts: tuple[Buffer, ...]
    added: dict[int, int]


def started_launches(program: kir.Program, math: MathSnapshot) -> StartedLaunches:
    """Return `program` with initial values apart from the folds that they are of."""
    found = StartedLaunches(program, (), {})
    for tensor in math.tensors:
        definition = tensor.definition
        if definition is not None and definition.start is not None:
            start = math.tensor(definition.reads[definition.start].producer)
            assert start is not None
            found = _apart(found, tensor, start)
    return found


def _apart(found: StartedLaunches, fold: MathTensor, start: MathTensor) -> StartedLaunches:
    """Return the launches with those of one fold apart, as they are where none stores its start."""
    launches = [node for node in found.program.body if isinstance(node, kir.Launch)]
    stores = [list(_stores(launch, fold)) for launch in launches]
    begins = [n for n, own in enumerate(stores) if any(s.role == "init" for s in own)]
    folds = [n for n, own in enumerate(stores) if any(s.role != "init" for s in own)]
    if len(begins) != 1 or len(folds) != 1 or begins[0] >= folds[0]:
        return found
    buffers = {store.storage for own in stores for store in own}
    buffer = buffers.pop()
    if buffers or any(_reads(launch, buffer) for launch in launches[: folds[0]]):
        return found
    preamble = _preamble(found.program, launches[folds[0]], fold, buffer)
    if preamble is None:
        return found
    own = replace(buffer, name=start.name, tensor=start.name, kind="workspace")

    def moved(node: kir.Stmt) -> kir.Stmt:
        if not isinstance(node, kir.Store) or node.storage is not buffer:
            return node
        element = fold.claimed(node.coordinate, whole=node.role in kir.WHOLE_ELEMENTS)
        return replace(node, storage=own, tensor=start.name, role="define", coordinate=element)

    body = list(launches)
    body[begins[0]] = replace(body[begins[0]], body=kir.map_body(body[begins[0]].body, moved))
    body[folds[0]] = replace(body[folds[0]], body=(*preamble, *body[folds[0]].body))
    shape = next(p.shape for p in found.program.params if p.buffer is buffer)
    param = kir.Param(own.name, "workspace", own.dtype, own, shape)
    program = replace(
        found.program, body=tuple(body), params=(*found.program.params, param)
    )  # fmt: skip
    lines = len(list(kir.walk(preamble)))
    added = {**found.added, folds[0]: found.added.get(folds[0], 0) + lines}
    return StartedLaunches(program, (*found.starts, own), added)


def _stores(launch: kir.Launch, fold: MathTensor) -> Sequence[kir.Store]:
    nodes = [node for node, _ in kir.walk(launch.body)]
    return [n for n in nodes if isinstance(n, kir.Store) and n.tensor == fold.name]


def _reads(launch: kir.Launch, buffer: Buffer) -> bool:
    return any(
        load.buffer is buffer
        for node, _ in kir.walk(launch.body)
        for value in kir.expressions(node)
        for load in loads(value)
    )


def _preamble(
    program: kir.Program, launch: kir.Launch, fold: MathTensor, buffer: Buffer
) -> tuple[kir.Stmt, ...] | None:
    """Return the statements by which one thread stores what `fold` starts from, before all else.

    None where the buffer does not have the axes of the math.
    """
    assert fold.definition is not None
    indices = [Index(f"{fold.name}_{n}", axis.extent) for n, axis in enumerate(fold.logical)]
    place: tuple[Expr, ...] = tuple(indices) or (ZERO,)
    if len(place) != len(buffer.shape):
        return None
    claim: list[Expr] = [ZERO] * len(fold.root)
    for index, where in zip(indices, fold.places, strict=True):
        if not isinstance(where, Coordinate):
            return None
        claim[where.number] = index
    value = fold.definition.identity[0]
    body: tuple[kir.Stmt, ...] = (
        kir.Store(buffer, place, value, fold.name, "init", False, tuple(claim)),
    )
    for index in reversed(indices):
        body = (kir.Loop(index, ParallelType.serial, "", body),)
    one = [
        Op("eq", (LaunchIndex(d), ZERO), dtypes.bool_)
        for d, size in launch.extents
        if size is not ONE
    ]
    if one:
        body = (kir.If(all_of(one), body, (), "one thread for all"),)
    return (*body, kir.Barrier("grid", "the launch before has ended"))
