"""Collectives by their declaration, for launches without threads.

A launch with an extent of 0 runs nothing. One thread then stands for it, so that what follows the
loops of the launch still happens (a sum over no element is finished and stored). The bodies of
collectives count on the extents of the launch; their declarations do not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from loopnest import kir
from loopnest.backends.interpret.concrete_program import SLOT, THREAD, ConcreteProgram
from loopnest.backends.interpret.evaluator import Evaluator
from loopnest.backends.interpret.frame import Frame
from loopnest.backends.interpret.native_math import Array, Value
from loopnest.scalar.enums import BLOCK_DIMENSIONS
from loopnest.scalar.expr import Expr, Local
from loopnest.scalar.templates import instantiate


def combine_declared(
    node: kir.Collective, setting: ConcreteProgram, evaluator: Evaluator, frame: Frame
) -> None:
    """Define the results of `node`: in each thread the combination of its group's arguments."""
    lanes_of, group_of = _groups(node, setting, evaluator, frame)
    if node.scan:
        _scan_declared(node, lanes_of, evaluator, frame)
        return
    for some, results in zip(node.by_value(node.args), node.by_value(node.results), strict=True):
        values = _combined(node, some, lanes_of, evaluator, frame)
        for result, value in zip(results, values, strict=True):
            spread = np.broadcast_to(np.asarray(value), (len(lanes_of),))
            frame.define(result, spread[group_of])


def _scan_declared(
    node: kir.Collective, lanes_of: Array, evaluator: Evaluator, frame: Frame
) -> None:
    """Define the results of a scan: what the threads of a group combine to so far, and at last."""
    size = len(node.identity)
    neutral = [evaluator.value(value, frame) for value in node.identity]
    found = [np.empty(frame.lanes, np.asarray(value).dtype) for value in neutral]
    for turn in range(lanes_of.shape[1]):
        until = turn + (node.scan == "inclusive")
        some = lanes_of[:, :until]
        values = _combined(node, node.args, some, evaluator, frame) if until else neutral
        for whole, value in zip(found, values, strict=True):
            whole[lanes_of[:, turn]] = value
    for result, whole in zip(node.results, found, strict=False):
        frame.define(result, whole)
    if len(node.results) > size:
        group = np.empty(frame.lanes, np.int64)
        group[lanes_of] = np.arange(len(lanes_of))[:, None]
        values = _combined(node, node.args, lanes_of, evaluator, frame)
        for result, value in zip(node.results[size:], values, strict=True):
            frame.define(result, np.broadcast_to(np.asarray(value), (len(lanes_of),))[group])


def _combined(
    node: kir.Collective, given: Sequence[Expr], lanes_of: Array, evaluator: Evaluator, frame: Frame
) -> list[Value]:
    """Return the components of one value, combined in each group of lanes."""
    args = [np.broadcast_to(np.asarray(evaluator.value(a, frame)), (frame.lanes,)) for a in given]
    values: list[Value] = [arg[lanes_of[:, 0]] for arg in args]
    mine = tuple([Local(f"mine{n}", a.dtype) for n, a in enumerate(given)])
    theirs = tuple([Local(f"theirs{n}", a.dtype) for n, a in enumerate(given)])
    both = instantiate(node.combine, mine, theirs)
    for turn in range(1, lanes_of.shape[1]):
        inner = Frame(len(lanes_of), None)
        for n, arg in enumerate(args):
            inner.define(mine[n], values[n])
            inner.define(theirs[n], arg[lanes_of[:, turn]])
        values = [evaluator.value(e, inner) for e in both]
    return values


def _groups(
    node: kir.Collective, setting: ConcreteProgram, evaluator: Evaluator, frame: Frame
) -> tuple[Array, Array]:
    """Return the lanes of each group in the order of their threads, and the group of each lane."""
    slots = np.broadcast_to(np.asarray(evaluator.pure(SLOT, frame)), (frame.lanes,))
    number = np.asarray(evaluator.pure(THREAD, frame)) % setting.threads
    rest = np.broadcast_to(number, (frame.lanes,))
    key, places = slots, {}
    for dim, extent in zip(BLOCK_DIMENSIONS, setting.block, strict=True):
        places[dim] = rest % extent
        if dim not in node.dims:
            key = key * extent + places[dim]
        rest = rest // extent
    _, group_of = np.unique(key, return_inverse=True)
    group_of = group_of.reshape(-1)
    size = math.prod(
        e for d, e in zip(BLOCK_DIMENSIONS, setting.block, strict=True) if d in node.dims
    )
    turns = [places[dim] for dim in node.dims]
    return np.lexsort((*turns, group_of)).reshape(-1, size), group_of
