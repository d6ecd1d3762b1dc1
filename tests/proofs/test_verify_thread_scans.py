"""Proofs of scans over threads: a wrong exchange, a wrong carry, a wrong order are refuted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

import loopnest as ln
from helpers.schedule_run import PT
from loopnest import kir
from loopnest.kir.lowered import Lowered
from loopnest.kir.nest_text import print_nest
from loopnest.proofs.verifier import verify_program
from loopnest.scalar import dtypes
from loopnest.scalar.expr import Buffer, Expr, Load, Op, integer, loads, substitute
from mutation.rewriting import replaced, with_extent

AFFINE = ln.Reducer((1.0, 0.0), lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), "affine")
"""It does not commute: what lies first must come first."""


def lowered(*, ordered: bool = False, exclusive: bool = False) -> Lowered:
    """Return a scan of rows by 64 threads, 64 elements at a time."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        if ordered:
            y = ln.scan(AFFINE, (x, x), axis=1, exclusive=exclusive)[1]
        else:
            y = ln.cumsum(x, axis=1, exclusive=exclusive)
        f.output(y, "y")
    y.split(1, 64)
    y.parallelize({0: PT.grid_x, 2: PT.block_x})
    return ln.lower(f)._lowered


def changed(
    program: kir.Program, rule: Callable[[kir.Stmt], kir.Stmt | tuple[kir.Stmt, ...] | None]
) -> kir.Program:
    return program.with_body(kir.map_body(program.body, rule))


def refuted(program: kir.Program, like: Lowered) -> bool:
    assert verify_program(like.program, like.math()).ok
    assert print_nest(program) != print_nest(like.program)
    return verify_program(program, like.math()).status == "refuted"


def shuffles(program: kir.Program) -> list[kir.Shuffle]:
    return [n for n, _ in kir.walk(program.body) if isinstance(n, kir.Shuffle)]


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("step", [-1, 1])
def test_a_wrong_delta(exclusive: bool, step: int) -> None:
    right = lowered(exclusive=exclusive)
    for node in shuffles(right.program):
        offset = Op("add", (node.offset, integer(step)), dtypes.index)
        new = replace(node, offset=offset)
        assert refuted(replaced(right.program, node, new), right), node


def _names(program: kir.Program, op: str) -> Iterator[tuple[kir.Let, Op]]:
    """Yield the names in collectives whose value is an operation, and that."""
    for node, around in kir.walk(program.body):
        value = node.value if isinstance(node, kir.Let) else None
        if not isinstance(node, kir.Let) or not isinstance(value, Op) or value.op != op:
            continue
        if any(isinstance(n, kir.Collective) for n in around):
            yield node, value


def test_a_missing_mask() -> None:
    """Lanes at the beginning of a warp take in what other lanes, or none, hold."""
    right = lowered()
    found = list(_names(right.program, "where"))
    assert len(found) == 7
    for node, value in found:
        new = replace(node, value=value.args[1])
        assert refuted(replaced(right.program, node, new), right), node


def test_a_lost_combination() -> None:
    right = lowered()
    for node, value in _names(right.program, "where"):
        new = replace(node, value=value.args[2])
        assert refuted(replaced(right.program, node, new), right), node
    for node, value in _names(right.program, "add"):
        for kept in value.args:
            new = replace(node, value=kept)
            assert refuted(replaced(right.program, node, new), right), node


@pytest.mark.parametrize("role", ["merge", "partial", "update", "init"])
def test_a_lost_store(role: str) -> None:
    """Of the carry, of what it is combined with, of an element, of the first slot."""
    right = lowered()
    stores = [
        n for n, _ in kir.walk(right.program.body) if isinstance(n, kir.Store) and n.role == role
    ]
    assert stores
    for node in stores:
        assert refuted(replaced(right.program, node, None), right), node


def _with_sides_exchanged(program: kir.Program, pairs: dict[Expr, Expr]) -> kir.Program:
    """Return the program with `pairs` put in where lanes choose a combination."""

    def exchanged(node: kir.Stmt) -> kir.Stmt:
        if isinstance(node, kir.Let) and isinstance(node.value, Op) and node.value.op == "where":
            condition, both, own = node.value.args
            chosen = Op("where", (condition, substitute(both, pairs), own), own.dtype)
            return replace(node, value=chosen)
        return node

    return changed(program, exchanged)


def test_a_wrong_order() -> None:
    """Each combination of a pair with its sides exchanged; of a sum that is right."""
    right = lowered(ordered=True)
    lets = {n.var: n for n, _ in kir.walk(right.program.body) if isinstance(n, kir.Let)}
    tried = 0
    for node, around in kir.walk(right.program.body):
        if not isinstance(node, kir.Shuffle) or not any(
            isinstance(n, kir.Collective) for n in around
        ):
            continue
        # What a lane gets and what it holds, for each other, in all that is computed of them.
        got, held = node.var, node.value
        twins = [n for n in shuffles(right.program) if n is not node and n.offset is node.offset]
        near = [n for n in twins if abs(int(n.var.name[1:]) - int(got.name[1:])) == 1]
        if node.mode != "up" or len(near) != 1 or held not in lets:
            continue
        pairs: dict[Expr, Expr] = {got: held, held: got}
        pairs |= {near[0].var: near[0].value, near[0].value: near[0].var}
        assert refuted(_with_sides_exchanged(right.program, pairs), right), node
        tried += 1
    assert tried >= 10


@pytest.mark.parametrize("whose", ["_all", "_acc"])
def test_what_is_carried_comes_first(whose: str) -> None:
    """In the result of a thread, and in what all threads carry on."""
    right = lowered(ordered=True)
    (node,) = [n for n, _ in kir.walk(right.program.body) if isinstance(n, kir.Collective)]
    found = node.results[:2] if whose == "_all" else node.results[2:]
    lets = [n for n, _ in kir.walk(right.program.body) if isinstance(n, kir.Let)]
    merges = [n for n in lets if any(f"{whose}[0]" in str(load) for load in loads(n.value))]
    assert len(merges) == 2
    carried = dict.fromkeys(load for n in merges for load in loads(n.value))
    pairs: dict[Expr, Expr] = {}
    for load, name in zip(carried, found, strict=True):
        pairs |= {load: name, name: load}

    def exchanged(n: kir.Stmt) -> kir.Stmt:
        if isinstance(n, kir.Let) and n in merges:
            return replace(n, value=substitute(n.value, pairs))
        return n

    assert refuted(changed(right.program, exchanged), right)


@pytest.mark.parametrize("scan", ["", "exclusive"])
def test_a_wrong_declaration(scan: str) -> None:
    right = lowered()

    def other(node: kir.Stmt) -> kir.Stmt:
        return replace(node, scan=scan) if isinstance(node, kir.Collective) else node

    report = verify_program(changed(right.program, other), right.math())
    assert not report.ok


# Several items a thread


def with_items(*, ordered: bool = False, exclusive: bool = False) -> Lowered:
    """Return a scan of rows by 64 threads, three elements each at a time."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        if ordered:
            y = ln.scan(AFFINE, (x, x), axis=1, exclusive=exclusive)[1]
        else:
            y = ln.cumsum(x, axis=1, exclusive=exclusive)
        f.output(y, "y")
    y.split(1, 3)
    y.split(1, 64)
    y.parallelize({0: PT.grid_x, 2: PT.block_x})
    return ln.lower(f)._lowered


@pytest.mark.parametrize("exclusive", [False, True])
def test_a_lost_store_of_items(exclusive: bool) -> None:
    """Of a thread's part, of what lies before it, of what it goes on with, of the carry."""
    right = with_items(exclusive=exclusive)
    stores = [n for n, _ in kir.walk(right.program.body) if isinstance(n, kir.Store)]
    assert {n.role for n in stores} == {"init", "update", "partial", "merge", "finish"}
    for node in stores:
        assert refuted(replaced(right.program, node, None), right), node


def test_a_lost_item() -> None:
    """The loop that folds a thread's items, or the one that takes its steps, misses the last."""
    right = with_items(ordered=True)
    loops = [
        n for n, _ in kir.walk(right.program.body) if isinstance(n, kir.Loop) and n.extent == 3
    ]
    assert len(loops) == 2
    for node in loops:
        assert refuted(replaced(right.program, node, with_extent(node, integer(2))), right), node


def test_a_part_by_itself_is_no_start() -> None:
    """A thread that goes on with its own part, or with all of its block, has not what is before."""
    right = with_items()
    (node,) = [n for n, _ in kir.walk(right.program.body) if isinstance(n, kir.Collective)]
    before, whole = node.results
    merges = [
        n
        for n, _ in kir.walk(right.program.body)
        if isinstance(n, kir.Store) and n.role == "merge" and n.storage.name == "y_before"
    ]
    (merge,) = merges
    for other in (whole, node.args[0]):
        new = replace(merge, value=substitute(merge.value, {before: other}))
        assert refuted(replaced(right.program, merge, new), right)


@pytest.mark.parametrize("threads", [40, 64])
def test_a_missing_barrier_of_items(threads: int) -> None:
    with ln.Fusion("k") as f:
        y = f.output(ln.cumsum(f.input("x", ("N", "D"), ln.float32), axis=1), "y")
    y.split(1, 3)
    y.split(1, threads)
    y.parallelize({0: PT.grid_x, 2: PT.block_x})
    right = ln.lower(f)._lowered
    barriers = [n for n, _ in kir.walk(right.program.body) if isinstance(n, kir.Barrier)]
    assert len(barriers) == 2
    for node in barriers:
        assert refuted(replaced(right.program, node, None), right), node


def test_what_a_scan_reads_is_stored_in_both_loops() -> None:
    """The first loop over items makes buffers of its own: the next one finds nothing there."""
    with ln.Fusion("k") as f:
        t = ln.tanh(f.input("x", ("N", "D"), ln.float32))
        y = f.output(ln.cumsum(t, axis=1), "y")
    y.split(1, 3)
    y.split(1, 64)
    y.parallelize({0: PT.grid_x, 2: PT.block_x})
    ln.propagate(y)
    f.inline_most()
    right = ln.lower(f)._lowered
    stores = [
        n
        for n, _ in kir.walk(right.program.body)
        if isinstance(n, kir.Store) and n.tensor == t.name
    ]
    assert [n.storage.name for n in stores] == [f"{t.name}_again", t.name]
    for node in stores:
        assert refuted(replaced(right.program, node, None), right), node
    one, other = [n.storage for n in stores]

    def both(node: kir.Stmt) -> kir.Stmt:
        if isinstance(node, (kir.Store, kir.Allocate)) and node.storage is one:
            node = replace(node, storage=other)
        pairs = {load: Load(other, load.args) for load in _loads_of(node, one)}
        return kir.map_expressions(node, lambda value: substitute(value, pairs))

    report = verify_program(changed(right.program, both), right.math())
    assert report.status == "unknown"
    assert [f.message for f in report.findings] == [
        f"{t.name} is made at several places of the nest"
    ]


def _loads_of(node: kir.Stmt, buffer: Buffer) -> Iterator[Load]:
    for value in kir.expressions(node):
        yield from [load for load in loads(value) if load.buffer is buffer]
