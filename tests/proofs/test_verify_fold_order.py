"""Proofs of reducers that need not commute: nests that combine out of order are refuted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import loopnest as ln
from helpers.schedule_run import PT
from loopnest.proofs import Report
from loopnest.proofs.enumeration.fold_orders import FoldOrder
from loopnest.proofs.verifier import program_of, verify_program
from loopnest.tensor.math_snapshot import MathSnapshot


def ordered(math: MathSnapshot) -> MathSnapshot:
    """Return the math with reducers that need not commute."""
    tensors = []
    for tensor in math.tensors:
        found = tensor.definition
        if found is not None and found.reducer is not None:
            reducer = replace(found.reducer, ordered=True)
            tensor = replace(tensor, definition=replace(found, reducer=reducer))
        tensors.append(tensor)
    return replace(math, tensors=tuple(tensors))


def report(schedule: Callable[[ln.TensorView], object], **sizes: int) -> Report:
    """Return what is proved of a sum whose order counts."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = f.output(ln.sum(x, 1), "y")
    schedule(y)
    program, math = program_of(ln.lower(f), "verify")
    return verify_program(program, ordered(math), sizes)


@pytest.mark.parametrize(
    "schedule", [lambda y: None, lambda y: y.split(1, 4), lambda y: y.parallelize({0: PT.block_x})]
)
def test_order_is_proved_for_all_sizes(schedule: Callable[[ln.TensorView], object]) -> None:
    assert report(schedule).all_sizes


@pytest.mark.parametrize(
    "schedule",
    [
        lambda y: (y.split(1, 4), y.reorder({1: 2, 2: 1})),
        lambda y: (y.split(1, 4), y.parallelize({2: PT.block_x})),
        lambda y: (y.split(1, 4), y.parallelize({1: PT.grid_x, 2: PT.block_x})),
    ],
)
def test_another_order_is_refuted(schedule: Callable[[ln.TensorView], object]) -> None:
    found = report(schedule)
    assert found.status == "refuted"
    assert "whose elements are not combined in order; sum need not commute" in str(found)


def test_fold_orders() -> None:
    one = FoldOrder.single(np.array([3, 1, 2, 0, 5]), np.array([True, True, True, False, True]))
    begin = np.array([0, 1, 1, 1, 1])
    found = one.since(begin)
    assert found.kept.tolist() == [True] * 5
    assert (found.first.tolist(), found.last.tolist()) == ([3, 1, 1, 1, 1], [3, 1, 2, 2, 5])
    assert one.since(np.zeros(5, np.int64)).kept.tolist() == [True, False, False, False, False]
    group = np.array([0, 0, 1, 1, 0])
    assert one.grouped(group, np.array([1, 0, 0, 1, 2])).kept.tolist() == [True, True]
    assert one.grouped(group, np.array([0, 1, 0, 1, 2])).kept.tolist() == [False, True]
    assert FoldOrder.nothing(0).since(np.zeros(0, np.int64)).kept.size == 0
