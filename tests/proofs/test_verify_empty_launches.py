"""Launches without threads are a part of all sizes: the host does what one thread would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import loopnest as ln
from loopnest import kir
from loopnest.proofs import verifier
from loopnest.proofs.report import Report
from loopnest.proofs.verifier import verify_program
from loopnest.scalar import dtypes
from loopnest.scalar.expr import Const

PT = ln.ParallelType


def outer_and_rows(f: ln.Fusion, kind: ln.ParallelType) -> None:
    """`t` lacks the axis that is bound to threads, and is an output too."""
    x, w = f.input("x", ("N", "M"), ln.float32), f.input("w", ("N",), ln.float32)
    t = f.output(w * 2.0, "t")
    y = f.output(ln.broadcast(t, (False, True)) + x, "y")
    y.reorder([1, 0])
    y.axis(0).parallelize(kind)
    ln.propagate(y)
    f.inline_most()


def sums(f: ln.Fusion, kind: ln.ParallelType) -> None:
    x, w = f.input("x", ("N", "M"), ln.float32), f.input("w", ("N",), ln.float32)
    y = f.output(ln.sum(x, 1), "y")
    f.output(w * 2.0, "t")
    y.split(1, 8)
    y.axis(1).parallelize(kind)


def places(f: ln.Fusion, kind: ln.ParallelType) -> None:
    x, w = f.input("x", ("N", "M"), ln.float32), f.input("w", ("N",), ln.float32)
    count = ln.welford(x, 1)[2]
    f.output(count, "y")
    f.output(w * 2.0, "t")
    count.axis(1).parallelize(kind)


def scans(f: ln.Fusion, kind: ln.ParallelType) -> None:
    """A scan of threads that there are not, beside what needs none."""
    x, w = f.input("x", ("N", "M"), ln.float32), f.input("w", ("N",), ln.float32)
    y = f.output(ln.cumsum(x, 1), "y")
    f.output(w * 2.0, "t")
    y.axis(1).parallelize(PT.block_x)


CASES = [outer_and_rows, sums, places, scans]


def fusion(case: Callable[[ln.Fusion, ln.ParallelType], None], kind: ln.ParallelType) -> ln.Fusion:
    with ln.Fusion("k") as f:
        case(f, kind)
    return f


@pytest.mark.parametrize("kind", [PT.grid_x, PT.block_x])
@pytest.mark.parametrize("case", CASES)
def test_what_the_host_does_is_proved(
    case: Callable[[ln.Fusion, ln.ParallelType], None], kind: ln.ParallelType
) -> None:
    f = fusion(case, kind)
    kernel = ln.lower(f)
    assert str(ln.verify(kernel)) == "proved for all sizes"
    assert ln.verify(kernel, N=3, M=0).ok
    arrays = np.zeros((3, 0), np.float32), np.arange(3, dtype=np.float32)
    found, expected = ln.compile(kernel, "c")(*arrays), ln.evaluate(f, *arrays)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_loop_that_others_need_is_refuted_where_it_has_no_thread() -> None:
    """Without the one iteration that `t` needs, it is not stored where M is 0."""
    kernel = ln.lower(fusion(outer_and_rows, PT.grid_x))
    text = kernel.text(full=True)
    assert "max(M, 1)" in text
    broken = ln.Kernel.parse(text.replace("max(M, 1)", "M"))
    report = ln.verify(broken)
    assert str(report) == (
        "refuted for M=0, N=1\n  output: element [0] of output t is never stored; M=0, N=1"
    )
    assert ln.verify(broken, M=4).ok


def whole(f: ln.Fusion, kind: ln.ParallelType) -> None:
    """Threads that there are combine what those would give that there are not."""
    x = f.input("x", (4, "M"), ln.float32)
    y = f.output(ln.sum(x, (0, 1)), "y")
    y.parallelize({0: PT.block_y, 1: kind})


def blocks(f: ln.Fusion, kind: ln.ParallelType) -> None:
    x = f.input("x", ("N", "M"), ln.float32)
    y = f.output(ln.max(x, (0, 1)), "y")
    y.parallelize({0: PT.grid_x, 1: kind})


def many(f: ln.Fusion, kind: ln.ParallelType) -> None:
    """What blocks add to each other, then spread to all of them."""
    x = f.input("x", ("N", "M"), ln.float32)
    total = ln.sum(x, (0, 1)).named("total")
    y = f.output(x + ln.broadcast(total, (True, True)), "y")
    f.output(ln.full(("N",), 1.0, ln.float32) * 2.0, "t")
    for tv in (total, y):
        tv.parallelize({0: PT.grid_y, 1: kind})


def columns(f: ln.Fusion, kind: ln.ParallelType) -> None:
    """Each column that there is not has a counter, for blocks that there are."""
    x = f.input("x", (4, "M"), ln.float32)
    y = f.output(ln.max(x, 0), "y")
    f.output(ln.full((3,), 1.0, ln.float32) * 2.0, "t")
    y.parallelize({0: PT.grid_y, 1: kind})


@pytest.mark.parametrize("kind", [PT.grid_x, PT.block_x])
@pytest.mark.parametrize("case", [whole, blocks, many, columns])
def test_threads_that_combine_along_another_axis(
    case: Callable[[ln.Fusion, ln.ParallelType], None], kind: ln.ParallelType
) -> None:
    """They do what is declared, whatever their bodies count on."""
    f = fusion(case, PT.grid_z if case is blocks and kind is PT.grid_x else kind)
    kernel = ln.lower(f)
    report = ln.verify(kernel)
    assert report.ok
    assert "where a launch has no thread" not in str(report)
    assert ln.verify(kernel, M=0).ok
    rows = 4 if case in (whole, columns) else 3
    x = np.zeros((rows, 0), np.float32)
    for target in ("c", "interpret"):
        found, expected = ln.compile(kernel, target)(x), ln.evaluate(f, x)
        if not isinstance(expected, tuple):
            found, expected = (found,), (expected,)
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def changed(
    f: ln.Fusion, rule: Callable[[kir.Stmt], kir.Stmt | tuple[kir.Stmt, ...] | None]
) -> tuple[kir.Program, Any]:
    """Return the program of a fusion with statements changed by `rule`, and its math."""
    lowered = ln.lower(f)._lowered
    body = kir.map_body(lowered.program.body, lambda node: rule(node) or node)
    return replace(lowered.program, body=body), lowered.math()


def test_a_start_that_is_wrong_without_threads_is_refuted() -> None:
    """Each thread starts with 1, which nothing takes away where no loop runs."""

    def rule(node: kir.Stmt) -> kir.Stmt | None:
        if isinstance(node, kir.Store) and node.role == "init":
            return replace(node, value=Const(1.0, dtypes.float32))
        return None

    program, math = changed(fusion(whole, PT.grid_x), rule)
    assert verify_program(program, math, {"M": 0}).status == "refuted"


def test_a_collective_without_a_body_is_refuted() -> None:
    """Only what the host does is done as declared."""

    def rule(node: kir.Stmt) -> kir.Stmt | None:
        return replace(node, body=()) if isinstance(node, kir.Collective) else None

    program, math = changed(fusion(whole, PT.grid_x), rule)
    assert str(verify_program(program, math)).startswith(
        "refuted for all sizes\n  collective: the body of sum does not define v"
    )


def test_sizes_without_a_proof_are_no_part_of_the_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    whole_proof = verifier._verify_one

    def some(program: kir.Program, math: Any, given: dict[str, int]) -> Report:
        return Report("unknown") if given else whole_proof(program, math, given)

    monkeypatch.setattr(verifier, "_verify_one", some)
    report = ln.verify(ln.lower(fusion(whole, PT.grid_x)))
    assert report.ok
    assert not report.all_sizes
    assert str(report) == (
        "proved for all sizes but M=0\n"
        "  sizes: there is no proof for M=0, where a launch has no thread"
    )


def test_sizes_that_a_variant_never_meets() -> None:
    """The launch of vectors has `D // 8` threads; at D=1 the scalar variant runs."""
    from kernels.rmsnorm import rmsnorm

    kernel = rmsnorm.lower("gpu")
    assert kernel.launch(N=4, D=1).variant == "scalar"
    assert str(ln.verify(kernel)) == "proved for all sizes"
