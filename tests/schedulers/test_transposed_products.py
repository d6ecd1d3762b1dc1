"""Products of a transposed left operand: a large one is copied in tiles first."""

from __future__ import annotations

import pytest

import loopnest as ln
from loopnest.schedulers import contraction_loops
from loopnest.schedulers.contraction_parts import contraction
from loopnest.schedulers.iteration_space import iteration_space
from loopnest.schedulers.processor_facts import Processor


def product(size: int | str, batch: bool = False) -> ln.Fusion:
    outer: tuple[int, ...] = (64,) if batch else ()
    with ln.Fusion("product") as f:
        a = f.input("a", (*outer, size, size), ln.float32)
        b = f.input("b", (*outer, size, size), ln.float32)
        last = len(outer)
        f.output(ln.matmul(ln.permute(a, (*range(last), last + 1, last)), b), "c")
    contraction_loops.for_cores(f, Processor())
    return f


def test_large_operand_is_copied_tile_by_tile() -> None:
    text = str(ln.lower(product(600)))
    assert "T3: float32[1, 100, 600, 6] global" in text


@pytest.mark.parametrize("batch", [False, True])
def test_what_lies_in_a_cache_is_read_where_it_lies(batch: bool) -> None:
    assert "global" not in str(ln.lower(product(64, batch)))


def test_sizes_that_are_not_known_are_proved() -> None:
    kernel = ln.lower(product("N"))
    assert " global\n" in str(kernel)
    report = ln.verify(kernel)
    assert report.ok, report


def test_columns_are_innermost_in_the_result_whichever_operand_is_largest() -> None:
    """The right operand is the largest array, and has the rows of the result in front."""
    with ln.Fusion("flat") as f:
        a, b = f.input("a", (31, 512), ln.float32), f.input("b", (512, 640), ln.float32)
        f.output(ln.matmul(a, b), "y")
    space = iteration_space(f)
    assert space is not None
    parts = contraction(f, space)
    assert parts is not None
    assert [space.dims[d].extent for d in parts.dims("columns")] == [640]
    assert [space.dims[d].extent for d in parts.dims("rows")] == [31]
