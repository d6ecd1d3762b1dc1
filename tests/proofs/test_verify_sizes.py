"""Which sizes a proof holds for: all, those given, those that are picked, or none."""

from __future__ import annotations

import numpy as np
import pytest

import loopnest as ln
from fuzzing.switched_off import switched_off
from helpers.verify_cases import (
    CASES,
)
from loopnest import kir
from loopnest.facade.kernel_class import compile, lower
from loopnest.kir.vector_access import wide_accesses
from loopnest.proofs import verifier, verify
from loopnest.proofs.point_arrays import Enumeration
from loopnest.proofs.program_model import Model
from loopnest.proofs.size_choice import small_sizes, telling_extents
from loopnest.proofs.symbolic import polyhedral_model


def test_sizes_given_are_the_scope() -> None:
    report = verify(lower(CASES["factored_outer"]()), N=6, D=10)
    assert (report.status, report.scope) == ("proved", "N=6, D=10")
    assert verify(lower(CASES["row_sum"]()), N=4096, D=1024).scope == "N=4096, D=1024"


def test_what_isl_does_not_prove_names_its_sizes() -> None:
    report = verify(lower(CASES["factored_outer"]()))
    assert report.ok
    assert not report.all_sizes
    assert report.scope.startswith("N=3, D=5; ")
    note = report.findings[-1]
    assert (note.kind, note.status) == ("sizes", "note")
    assert note.message == ("there is no proof for all sizes: it has no affine form: q0_ceil*v_3")
    assert note.at is not None
    assert note.at.text == "y[i0] = y[i0] + T2[i3]"


def test_sizes_that_are_picked_cross_two_tiles_or_it_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ln.Fusion("tiled") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = f.output(ln.sum(x, axis=1), "y")
    y.split(1, 9, inner=False)
    y.split(0, 32)
    y.rfactor(3).compute_at(y, 1)
    k = lower(f)
    assert "N=33" in verify(k).scope
    monkeypatch.setattr(verifier, "MOST_FIRST", 1200)
    report = verify(k)
    assert report.status == "unknown"
    assert report.findings[0].message == (
        "at N=33, D=10, where a loop of extent 'ceildiv(N, 32)' runs 2 times, there are too many "
        "points"
    )


def test_the_budget_of_isl_grows_with_the_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polyhedral_model, "MAX_OPERATIONS", 1_000)
    assert verify(lower(CASES["row_sum"]())).all_sizes
    monkeypatch.setattr(polyhedral_model, "MAX_OPERATIONS_A_STATEMENT", 1)
    assert not verify(lower(CASES["row_sum"]())).all_sizes


def test_each_body_is_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[kir.Stmt] = []
    ticks = Enumeration._ticks

    def counted(self: Enumeration, node: kir.Stmt) -> int:
        timed.append(node)
        return ticks(self, node)

    monkeypatch.setattr(Enumeration, "_ticks", counted)
    with ln.Fusion("deep") as f:
        x = f.input("x", ("N",), ln.float32)
        y = f.output(ln.exp(x), "y")
    for _ in range(12):
        y.split(0, 2)
    program = lower(f).program
    Enumeration(Model(program), {"N": 3}, 1 << 20)
    assert len(timed) <= 3 * len(list(kir.walk(program.body)))


def test_a_circular_buffer_turns_once_at_the_sizes_that_are_picked() -> None:
    with ln.Fusion("staged") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = f.output(ln.exp(x) + 1.0, "y")
    y.split(1, 8)
    staged = f.tensors[1]
    staged.compute_at(y, 2)
    staged.memory = ln.SHARED
    staged.circular_buffer(3)
    y.parallelize({0: ln.ParallelType.grid_x, 2: ln.ParallelType.block_x})
    staged.parallelize({2: ln.ParallelType.block_x})
    found = {str(e): times for e, times in telling_extents(lower(f).program).items()}
    assert found["ceildiv(D, 8)"] == 4
    assert found["N"] == 2


@pytest.mark.parametrize(
    "bounds", [("N % 4 == 1", "N % 2 == 0"), ("D % 4 == 1", "D % 6 == 2")], ids=str
)
def test_assumptions_that_contradict_each_other_are_named(bounds: tuple[str, str]) -> None:
    """Those of which the definition does not see it: bounds of sizes do not show it."""
    f = CASES["factored_outer"]()
    for text in bounds:
        f.assume(text)
    report = verify(lower(f))
    assert report.status == "unknown"
    assert report.findings[0].message == f"no sizes were found that fulfil {', '.join(bounds)}"


def test_where_a_size_is_always_0_those_sizes_are_what_can_be_looked_at() -> None:
    f = CASES["factored_outer"]()
    f.assume("N <= 0")
    assert verify(lower(f)).ok


def test_loops_that_need_less_than_the_largest_one_have_sizes_of_their_own() -> None:
    """Those at which the largest runs twice may have too many points to look at."""
    f = CASES["factored_outer"]()
    with f:
        f.output(ln.exp(f.inputs[0]), "z").split(0, 4000)
        f.output(ln.neg(f.inputs[0]), "w").split(0, 8)
    found = [sizes["N"] for sizes in small_sizes(lower(f).program, {})]
    assert 4001 in found
    assert 9 in found


def test_the_environment_is_told_of_proofs_for_some_sizes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LOOPNEST_VERIFY", "1")
    with caplog.at_level("INFO", "loopnest"):
        compile(lower(CASES["row_sum"]()), target="interpret")
        compile(lower(CASES["factored_outer"]()), target="interpret")
    told = [(r.levelname, r.getMessage()) for r in caplog.records if "proved" in r.getMessage()]
    assert told[0] == ("INFO", "verify(row_sum): proved for all sizes")
    assert told[1][0] == "WARNING"
    assert told[1][1].startswith("verify(factored_outer): proved for N=3, D=5; ")
    assert "there is no proof for all sizes: it has no affine form" in told[1][1]


def test_a_launch_along_which_there_is_no_thread() -> None:
    """Statements outside of the empty loop run in one block of 16 threads, and read their own."""
    with ln.Fusion("k") as f:
        x = f.input("x", (0, 8), ln.float32)
        z = f.input("z", (16,), ln.float32)
        y = f.output(x * 2.0, "y")
        t = z + 1.0
        w = f.output(t * 2.0, "w")
    y.axis(0).parallelize(ln.ParallelType.block_y)
    t.axis(0).parallelize(ln.ParallelType.block_x)
    with switched_off():
        assert ln.verify(ln.lower(f)).status == "refuted"
    t.memory = ln.SHARED
    assert str(ln.verify(ln.lower(f))) == "proved for all sizes"
    found = ln.compile(f, target="interpret")(np.zeros((0, 8), np.float32), np.ones(16, np.float32))
    assert np.array_equal(found[1], np.full(16, 4.0))
    assert w.is_output


def test_a_product_of_sizes_aligns_what_is_a_multiple_of_it() -> None:
    """That 4 divides N * N is known of the product alone, of which a row's offset has several."""
    with ln.Fusion("rows") as f:
        (n,) = f.input("like", ("N",), ln.float32).sizes
        x = f.input("x", (2, 3, n * n), ln.float32)
        y = f.output(x * 2.0, "y")
    y.split(2, 4)
    y.axis(3).parallelize(ln.ParallelType.vectorize)
    f.assume("N * N % 4 == 0")
    k = lower(f)
    assert wide_accesses(k.program)
    assert verify(k).all_sizes


def test_loops_around_an_empty_one_have_no_points() -> None:
    """However often they run: nothing is left to look at."""
    with ln.Fusion("empty") as f:
        x = f.input("x", (1 << 20, 0, 1 << 10), ln.float32)
        y = f.output(ln.permute(x, (0, 2, 1)), "y")
    y.merge(0)
    k = lower(f)
    assert "for i0 in 1073741824:\n  for i1 in 0:" in str(k), str(k)
    assert verify(k).status == "proved"


def halved(*assumptions: str, threads: bool = False) -> ln.Kernel:
    with ln.Fusion("halved") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = f.output(ln.sum(x, axis=1), "y")
    for text in assumptions:
        f.assume(text)
    y.split(1, "D // 2")
    if threads:
        y.parallelize({0: ln.ParallelType.grid_x, 2: ln.ParallelType.block_x})
    return lower(f)


def test_sizes_that_a_quotient_refuses_are_named() -> None:
    """A launch refuses a factor of 0, so that it is proved for the others."""
    assert str(verify(halved())) == (
        "proved for all sizes\n  factor: a launch is refused at sizes for which D // 2 is not 1 or "
        "more, since an axis is split by it"
    )
    assert str(verify(halved("D >= 2"))) == "proved for all sizes"


def test_sizes_that_a_factor_of_memory_refuses_are_named() -> None:
    with ln.Fusion("tiles") as f:
        t = f.input("x", ("N", "D"), ln.float32) * 2.0
        f.output(t + 1.0, "y")
    t.memory = ln.GLOBAL
    t.allocation_domain.split(1, "D // 2")
    text = "a launch is refused at sizes for which D // 2 is not 1 or more"
    assert f"factor: {text}, since an axis is split by it" in str(verify(lower(f)))


@pytest.mark.parametrize("threads", [False, True])
def test_nothing_is_launched_where_a_factor_is_zero(threads: bool) -> None:
    report = verify(halved(threads=threads), N=3, D=1)
    assert report.ok
    assert str(verify(halved(threads=threads), N=3, D=5)).startswith("proved for N=3, D=5")


def test_no_block_has_fewer_threads_than_none() -> None:
    with ln.Fusion("folded") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = f.output(ln.sum(x, axis=1), "y")
    y.split(1, "D - 3")
    y.parallelize({2: ln.ParallelType.block_x})
    assert verify(lower(f), N=3, D=1).ok
    assert verify(lower(f), N=3, D=5).ok
