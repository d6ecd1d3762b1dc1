"""Proofs of reducers that need not commute: nests that combine out of order are refuted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import loopnest as ln
from helpers.ordered_reducers import SCHEDULES, composed, flagged
from helpers.schedule_run import PT
from loopnest import kir
from loopnest.kir.lowered import Lowered
from loopnest.proofs import Report
from loopnest.proofs.enumeration.fold_orders import FoldOrder
from loopnest.proofs.obligations import program_of
from loopnest.proofs.verifier import verify_program
from loopnest.scalar import dtypes
from loopnest.scalar.expr import Expr, Local, Op, integer, substitute
from loopnest.tensor.math_snapshot import MathSnapshot
from mutation.rewriting import replaced


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


# Over threads and blocks


def lowered(name: str, made: Callable[[], ln.Fusion] = composed) -> Lowered:
    f = made()
    SCHEDULES[name](f["a"])
    return ln.lower(f)._lowered


def in_exchanges(program: kir.Program, kind: type[kir.Stmt]) -> list[kir.Stmt]:
    return [
        n
        for n, around in kir.walk(program.body)
        if isinstance(n, kind) and any(isinstance(a, kir.Collective) for a in around)
    ]


def not_proved(right: Lowered, program: kir.Program, *, refuted: bool = True) -> bool:
    assert verify_program(right.program, right.math()).ok
    found = verify_program(program, right.math()).status
    return found == "refuted" if refuted else found != "proved"


@pytest.mark.parametrize("name", ["lanes", "warps", "odd", "across, odd"])
def test_two_lanes_for_each_other(name: str) -> None:
    """In a step of the exchange, what comes first and what comes after are exchanged."""
    right = lowered(name)
    chosen = folded = 0
    for n in in_exchanges(right.program, kir.Let):
        assert isinstance(n, kir.Let)
        match n.value:
            case Op(op="where", args=(Local() as earlier, a, b)):
                new = Op("where", (earlier, b, a), n.value.dtype)
                chosen += 1
            case Op(op="where", args=(exists, Op(op="add", args=(product, last)) as both, own)):
                new = Op("where", (exists, turned(both, product, last), own), n.value.dtype)
                folded += 1
            case Op(op="add", args=(product, last)):
                new = turned(n.value, product, last)
                folded += 1
            case _:
                continue
        assert not_proved(right, replaced(right.program, n, replace(n, value=new))), n
    assert folded >= 3
    assert bool(chosen) is (name in ("lanes", "warps"))


@pytest.mark.parametrize("name", ["lanes", "warps", "odd", "across, odd"])
def test_two_sides_of_a_flag_for_each_other(name: str) -> None:
    """Of the reducer's own choices, and of those between lanes."""
    right = lowered(name, flagged)
    choices = [
        n
        for n in in_exchanges(right.program, kir.Let)
        if isinstance(n, kir.Let) and isinstance(n.value, Op) and n.value.op == "where"
    ]
    for n in choices:
        assert isinstance(n.value, Op)
        flag, a, b = n.value.args
        new = replace(n, value=Op("where", (flag, b, a), n.value.dtype))
        assert not_proved(right, replaced(right.program, n, new), refuted=False), n
    assert len(choices) >= 3


def turned(both: Expr, product: Expr, last: Expr) -> Expr:
    """Return ``a * B + b`` with a and b for each other: the second part before the first."""
    first = product.args[0]
    return substitute(both, {first: last, last: first})


@pytest.mark.parametrize("name", ["lanes", "warps", "odd"])
def test_shuffles_from_other_lanes(name: str) -> None:
    right = lowered(name)
    shuffles = [n for n in in_exchanges(right.program, kir.Shuffle) if isinstance(n, kir.Shuffle)]
    for node in shuffles[::2]:
        for changed in (
            replace(node, mode="up"),
            replace(node, offset=Op("mul", (node.offset, integer(2)), dtypes.index)),
        ):
            assert not_proved(right, replaced(right.program, node, changed)), node


@pytest.mark.parametrize("name", ["warps", "odd", "across, odd", "blocks of threads"])
def test_a_missing_barrier(name: str) -> None:
    right = lowered(name)
    barriers = [n for n, _ in kir.walk(right.program.body) if isinstance(n, kir.Barrier)]
    for node in barriers:
        assert not_proved(right, replaced(right.program, node, None)), node
    assert barriers or name == "blocks of threads"


def test_an_exchange_that_declares_no_order() -> None:
    """It may do what is right: nobody has said so."""
    right = lowered("lanes")
    (node,) = [n for n, _ in kir.walk(right.program.body) if isinstance(n, kir.Collective)]
    free = replaced(right.program, node, replace(node, ordered=False))
    assert not_proved(right, free)


@pytest.mark.parametrize("name", ["blocks", "blocks of threads"])
def test_parts_of_blocks_in_another_order(name: str) -> None:
    """The loop over what blocks left goes from the last one to the first."""
    right = lowered(name)
    loads = []
    for n, around in kir.walk(right.program.body):
        if isinstance(n, kir.Let) and "_blocks[" in str(n.value):
            (loop,) = [a for a in around if isinstance(a, kir.Loop)][-1:]
            loads.append((n, loop))
    assert loads
    program = right.program
    for n, loop in loads:
        last = Op("sub", (loop.var.extent, integer(1)), dtypes.index)
        other = Op("sub", (last, loop.var), dtypes.index)
        new = replace(n, value=substitute(n.value, {loop.var: other}))
        program = program.with_body(
            kir.map_body(program.body, lambda s, n=n, new=new: new if s is n else s)
        )
    assert not_proved(right, program)


def test_what_a_thread_goes_on_with_comes_first() -> None:
    """The merge of what was gathered so far with that of a turn."""
    right = lowered("blocks of threads")
    exchange = [n for n, _ in kir.walk(right.program.body) if isinstance(n, kir.Collective)][-1]
    (merge,) = [
        n
        for n, _ in kir.walk(right.program.body)
        if isinstance(n, kir.Let) and isinstance(n.value, Op) and n.value.op == "add"
        and n.value.args[1] is exchange.results[1]
    ]  # fmt: skip
    new = replace(merge, value=turned(merge.value, *merge.value.args))
    assert not_proved(right, replaced(right.program, merge, new))
