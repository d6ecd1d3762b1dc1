"""Proofs of several launches: what passes between them, and nests that are wrong there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import loopnest as ln
from helpers.launch_cases import CASES, numbers, split_sum
from loopnest.kir.nest_text import print_nest
from loopnest.proofs.barrier_necessity import superfluous_barriers
from loopnest.proofs.program_model import Model
from loopnest.proofs.single_launches import stages_apart
from loopnest.proofs.verifier import verify_program
from loopnest.scalar.expr import Op, integer
from loopnest.schedulers import auto_schedule
from loopnest.second_checker.thread_machine import run
from mutation.mutants import mutants

kir = ln.kir


@pytest.mark.parametrize("name", CASES)
def test_all_sizes_are_proved(name):
    k = ln.lower(CASES[name][0]())
    report = ln.verify(k)
    assert report.ok, report
    assert report.all_sizes, report
    assert (
        superfluous_barriers(k, **dict.fromkeys([p.name for p in k.params if p.kind == "size"], 9))
        == []
    )


def report_of(change):
    k = ln.lower(split_sum())
    return verify_program(k.program.with_body(change(*k.program.body)), k._lowered.math())


def test_launches_in_another_order_are_refuted():
    report = report_of(lambda a, b: (b, a))
    assert report.status == "refuted"
    assert report.findings[0].message == "launch 0 reads T2, which no launch before it stores"


def test_a_launch_left_out_is_refuted():
    assert report_of(lambda a, b: (b,)).status == "refuted"
    assert report_of(lambda a, b: (a,)).findings[0].message == "no launch stores the output y"


def test_a_statement_beside_the_launches_is_refuted():
    """No launch runs it: a proof of each launch says nothing of it."""
    store = next(node for node, _ in kir.walk(ln.lower(split_sum()).program.body)
                 if isinstance(node, kir.Store))  # fmt: skip
    report = report_of(lambda a, b: (a, b, store))
    assert report.status == "refuted"
    assert report.findings[0].message == (
        "a statement stands beside the launches, so that none of them runs it"
    )


def test_an_extent_below_0_starts_no_threads():
    """At N = 0 a launch of N - 1 blocks is none; at other sizes its outputs are not all stored."""
    lowered = ln.lower(split_sum())._lowered
    a, b = lowered.program.body
    (dim, extent), *rest = b.extents
    less = Op("sub", (extent, integer(1)), extent.dtype)
    fewer = replace(b, extents=((dim, less), *rest))
    assert verify_program(lowered.program.with_body((a, fewer)), lowered.math()).status == "refuted"


def test_two_launches_as_one_are_a_race():
    """The boundary dropped: what blocks store is read by others before they have stored it."""
    k = ln.lower(split_sum())
    a, b = k.program.body
    extents = {**dict(a.extents), **dict(b.extents)}
    merged = replace(a, body=(*a.body, *b.body), extents=tuple(extents.items()))
    for body in ((merged,), merged.body):
        report = verify_program(k.program.with_body(body), k._lowered.math())
        assert report.status == "refuted", report
        assert {f.kind for f in report.findings} <= {"race", "flow", "claim"}


def test_two_launches_that_store_one_array_are_not_proved():
    report = report_of(lambda a, b: (a, a, b))
    assert report.status == "unknown"
    assert report.findings[0].message == "the launches 0, 1 all store to T2"


@pytest.mark.parametrize("name", ["split_sum", "scanned"])
def test_a_mutant_that_is_proved_is_right(name):
    """Indices, predicates, starting values, buffers: a wrong one in any launch is found."""
    make, (size,), _ = CASES[name]
    lowered, x = ln.lower(make())._lowered, numbers((size,))
    kinds = frozenset({"index", "predicate", "init", "clobber", "launch"})
    made = list(mutants(lowered.program, kinds))
    proved = [m for m in made if verify_program(m.program, lowered.math(), {"N": size}).ok]
    right = run(lowered.program, {"N": size}, {"x": x}, {}).outputs[0]
    for mutant in proved:
        found = run(mutant.program, {"N": size}, {"x": x}, {}, 1)
        assert found.broken == {}, mutant.text
        assert np.allclose(found.outputs[0], right, rtol=1e-5), mutant.text
    assert len(proved) < 0.2 * len(made)
    texts = {m.text for m in made if "launch" in m.text} - {m.text for m in proved}
    assert {"drop launch 0", "swap launch 0 with the next"} <= texts
    assert "no boundary between launch 0 and the next" in texts


@pytest.mark.parametrize("launches", [1, 2])
def test_what_orders_the_first_values_of_a_fold_is_needed_where_data_decide_where_it_adds(launches):
    """A barrier of the grid, or the end of a launch: that is no statement, so no note is on it."""
    with ln.Fusion("sums") as f:
        x = f.input("x", ("K",), ln.float32)
        places = f.input("places", ("K",), ln.int32)
        f.assume_range(places, 0, 10)
        f.output(ln.index_add(ln.full((10,), 0.0), 0, places, x), "sums")
    sums = f["sums"]
    sums.atomic().parallelize({0: ln.ParallelType.block_x})
    if launches == 2:
        sums.new_launch()
    sums.reorder({1: 0})
    sums.parallelize({0: ln.ParallelType.grid_x})
    kernel = ln.lower(f)
    assert len(kernel.program.launches) == launches
    assert superfluous_barriers(kernel) == []
    notes = [n for n in ln.verify(kernel, needed=True).findings if n.kind == "needed"]
    what = ["the barrier of the grid", "the atomic store"][launches - 1 :]
    assert [n.message for n in notes] == [f"whether {w} is needed depends on data" for w in what]
    texts = [text.strip() for text in str(kernel).splitlines()]
    assert all(texts[n.at.line - 1] == n.at.text for n in notes)


def test_what_needs_the_barrier_of_a_launch_is_told_in_lines_of_the_whole_nest():
    """Also where workspace, whose lines are in front of the launches, is an output of this one."""
    kernel = ln.lower(CASES["two_results"][0]())
    (note,) = [n for n in ln.verify(kernel, needed=True).findings if n.kind == "needed"]
    texts = [text.strip() for text in str(kernel).splitlines()]
    (line,) = [n for n, text in enumerate(texts, 1) if text.startswith("barrier warp")]
    assert note.message == f"the barrier of the warp at nest line {line} orders two accesses"
    assert [place.text for place in (note.at, note.other)] == [
        "let v36 = T1_part[0]",
        "T1_part[0] = v33",
    ]
    for place in (note.at, note.other):
        assert texts[place.line - 1] == place.text


def test_a_finding_names_the_launch_and_the_line():
    k = ln.lower(split_sum())
    a, b = k.program.body
    store = next(n for n, _ in kir.walk(b.body) if isinstance(n, kir.Store) and n.role == "init")
    half = kir.map_body(b.body, lambda n: None if n is store else n)
    program = k.program.with_body((a, replace(b, body=half)))
    report = verify_program(program, k._lowered.math(), {"N": 20})
    assert report.status == "refuted"
    assert all(f.message.startswith("in launch 1, ") for f in report.findings)
    at = report.findings[0].at
    assert at is not None
    assert at.line > 12
    assert print_nest(program).splitlines()[at.line - 1].strip() == at.text


def winograd() -> ln.Fusion:
    """A convolution by products of 4 x 4: filters and tiles are transformed side by side."""
    with ln.Fusion("winograd") as f:
        x = f.input("x", ("N", "C", "H", "W"), ln.float32)
        w, g = f.input("w", ("K", "C", 3, 3), ln.float32), f.input("g", (4, 3), ln.float32)
        b, a = f.input("b", (4, 4), ln.float32), f.input("a", (2, 4), ln.float32)
        tiles = ln.unfold(ln.unfold(x, 2, 4, stride=2), 3, 4, stride=2)
        v = ln.matmul(ln.matmul(b, tiles), ln.permute(b, (1, 0)))
        u = ln.matmul(ln.matmul(g, w), ln.permute(g, (1, 0)))
        m = ln.sum(u[None, :, :, None, None] * v[:, None], axis=2)
        y = ln.permute(ln.matmul(ln.matmul(a, m), ln.permute(a, (1, 0))), (0, 1, 2, 4, 3, 5))
        n, k, rows, _, columns, _ = y.shape
        f.output(ln.reshape(y, (n, k, rows * 2, columns * 2)), "y")
    auto_schedule(f, "cuda")
    return f


def transforms() -> ln.Kernel:
    """One step of each of its transforms: two stages in one launch of `max(…)` blocks."""
    with ln.Fusion("transforms") as f:
        x, w = f.input("x", ("H", "W"), ln.float32), f.input("w", ("K", "C", 3), ln.float32)
        b, g = f.input("b", (4, 4), ln.float32), f.input("g", (4, 3), ln.float32)
        f.output(ln.matmul(b, ln.unfold(ln.unfold(x, 0, 4, stride=2), 1, 4, stride=2)), "v")
        f.output(ln.matmul(w, ln.permute(g, (1, 0))), "u")
    auto_schedule(f, "cuda")
    return ln.lower(f)


def test_stages_of_one_launch_divide_its_blocks_by_sizes_of_their_own():
    assert str(ln.verify(ln.lower(winograd()))) == "proved for all sizes"


def test_stages_are_apart_where_threads_meet_between_them():
    """SHARED memory serves both stages: without the barrier one destroys what the other reads."""
    k = transforms()
    body, math = k.program.body, k._lowered.math()
    assert "max(" in str(k.program.launch[1][1])
    between = next(node for node in body if getattr(node, "reason", "").startswith("T12 stores"))
    assert len(stages_apart(Model(k.program), math)) == 2
    assert ln.verify(k).all_sizes
    open_ = k.program.with_body(tuple([node for node in body if node is not between]))
    assert stages_apart(Model(open_), math) == ()
    assert verify_program(open_, math).status == "refuted"
    other = k.program.with_body((*body[:1], *[n for n in body[1:] if n is not between], between))
    assert stages_apart(Model(other), math) == ()


def test_stages_that_are_wrong_are_refuted():
    k = transforms()
    made = mutants(k.program, frozenset({"index", "claim", "init", "barrier"}))
    status = [verify_program(m.program, k._lowered.math()).status for m in list(made)[::23]]
    assert set(status) == {"refuted"}


def test_what_stages_have_in_common_keeps_them_together():
    """What one computes into LOCAL or GLOBAL memory the other reads."""
    k = ln.lower(split_sum())
    a, b = k.program.body
    merged = replace(k.program, body=(*a.body, *b.body), launch=a.extents)
    assert stages_apart(Model(merged), k._lowered.math()) == ()
