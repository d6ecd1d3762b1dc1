"""Launches without threads are a part of all sizes: the host does what one thread would."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import loopnest as ln

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


def test_threads_that_combine_along_another_axis_are_a_note() -> None:
    """What they do without threads along the first one is declared, not written out."""
    with ln.Fusion("k") as f:
        x = f.input("x", (4, "M"), ln.float32)
        y = f.output(ln.sum(x, (0, 1)), "y")
    y.parallelize({0: PT.block_y, 1: PT.grid_x})
    report = ln.verify(ln.lower(f))
    assert str(report) == (
        "proved for all sizes\n  sizes: there is no proof for M=0, where a launch has no thread"
    )


def test_sizes_that_a_variant_never_meets() -> None:
    """The launch of vectors has `D // 8` threads; at D=1 the scalar variant runs."""
    from kernels.rmsnorm import rmsnorm

    kernel = rmsnorm.lower("gpu")
    assert kernel.launch(N=4, D=1).variant == "scalar"
    assert str(ln.verify(kernel)) == "proved for all sizes"
