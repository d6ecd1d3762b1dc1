"""Proofs: kernels under many schedules are proved, and what is broken is refuted with a witness."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import loopnest as ln
from fuzzing.switched_off import switched_off
from loopnest import kir
from loopnest.errors import VerifyError
from loopnest.facade import Kernel, compile, lower
from loopnest.proofs import Report, bounded_proof, verify, verify_program
from loopnest.proofs.point_arrays import Enumeration
from loopnest.proofs.program_model import Model
from loopnest.proofs.size_choice import small_sizes, telling_extents
from loopnest.proofs.symbolic import polyhedral_model
from loopnest.scalar.enums import ParallelType as PT
from mutation.mutant import Mutant
from mutation.mutants import mutants

CASES: dict[str, Callable[[], ln.Fusion]] = {}


def case(make: Callable[[], ln.Fusion]) -> Callable[[], ln.Fusion]:
    CASES[make.__name__] = make
    return make


@case
def row_sum() -> ln.Fusion:
    with ln.Fusion("row_sum") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = f.output(ln.sum(x, axis=1), "y")
    t = y.cache_before()
    y.split(0, 4)
    y.parallelize({0: PT.grid_x, 1: PT.block_y})
    t.compute_at(y, 2)
    return f


@case
def softmax_half() -> ln.Fusion:
    with ln.Fusion("softmax") as f:
        x = f.input("x", ("N", "D"), ln.float16)
        a = f.scalar("alpha", ln.float32)
        e = ln.exp(a * (x - ln.max(x, axis=1, keepdims=True)))
        y = f.output(e / ln.sum(e, axis=1, keepdims=True), "y")
    y.split(0, 4)
    y.parallelize({0: PT.grid_x, 1: PT.block_y})
    ln.propagate(y, 2)
    f.inline_most()
    return f


@case
def factored() -> ln.Fusion:
    with ln.Fusion("factored") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = f.output(ln.sum(x, axis=1), "y")
    y.split(1, 4)
    y.rfactor(1).compute_at(y, 1)
    return f


@case
def factored_outer() -> ln.Fusion:
    with ln.Fusion("factored_outer") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = f.output(ln.sum(x, axis=1), "y")
    y.split(1, 4, inner=False)
    y.rfactor(2).compute_at(y, 1)
    return f


@case
def welford() -> ln.Fusion:
    with ln.Fusion("welford") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        mean, var, _ = ln.welford(x, axis=1)
        f.output(mean, "m")
        f.output(var, "v")
    mean.split(1, 4)
    mean.rfactor(1).compute_at(mean, 1)
    return f


@case
def merged() -> ln.Fusion:
    with ln.Fusion("merged") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        b = f.input("b", ("D",), ln.float32)
        t = x + b
        y = f.output(ln.exp(t), "y")
    y.merge(0)
    y.split(0, 128)
    y.parallelize({0: PT.grid_x, 1: PT.block_x})
    t.compute_at(y, 2)
    f.inline_most()
    return f


@case
def in_place() -> ln.Fusion:
    with ln.Fusion("in_place") as f:
        x = f.input("x", ("N",), ln.float32)
        t = x * 2.0
        y = f.output(ln.exp(t), "y", inplace=x)
    y.split(0, 4)
    y.split(0, 8)
    y.parallelize({0: PT.grid_x, 1: PT.unswitch, 2: PT.vectorize})
    t.compute_at(y, 2)
    return f


@case
def gemm() -> ln.Fusion:
    with ln.Fusion("gemm") as f:
        a = f.input("a", ("M", "K"), ln.float32)
        b = f.input("b", ("K", "N"), ln.float32)
        y = f.output(a @ b, "y")
    t = y.cache_before()
    y.split(0, 4)
    y.split(2, 4)
    y.reorder([0, 2, 1, 3])
    y.parallelize({0: PT.grid_y, 1: PT.grid_x, 2: PT.block_y, 3: PT.block_x})
    t.compute_at(y, 4)
    f.inline_most()
    return f


@case
def promoted() -> ln.Fusion:
    with ln.Fusion("promoted") as f:
        x = f.input("x", ("N",), ln.float32)
        t = ln.exp(x)
        u = ln.broadcast(t, (False, True))
        z = f.input("z", ("N", "K"), ln.float32)
        y = f.output(u + z, "y")
    y.merge(0)
    y.split(0, 8)
    u.compute_at(y, 2)
    t.compute_at(y, 2)
    return f


def broken(name: str, kind: str, text: str) -> Report:
    """Return what verify says of the mutant of that kind whose text begins like that."""
    k = lower(CASES[name]())
    mutant = next(m for m in mutants(k.program) if m.kind == kind and m.text.startswith(text))
    return verify_program(mutant.program, math_of(k))


def math_of(k: Kernel) -> object:
    make = k._lowered.math
    assert make is not None
    return make()


@pytest.mark.parametrize("name", list(CASES))
def test_a_legal_schedule_is_proved(name: str) -> None:
    report = verify(lower(CASES[name]()))
    assert report.ok, str(report)
    assert report.status == "proved"
    if name != "factored_outer":
        assert report.scope == "all sizes"


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
    assert note.message == (
        "there is no proof for all sizes: it has no affine form: division by a sum"
    )
    assert note.at is not None
    assert note.at.text == "y[i0] = y[i0] + T2[i3]"


def test_sizes_that_are_picked_cross_two_tiles_or_it_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ln.Fusion("tiled") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = f.output(ln.sum(x, axis=1), "y")
    y.split(1, 4, inner=False)
    y.split(0, 32)
    y.rfactor(3).compute_at(y, 1)
    k = lower(f)
    assert "N=33" in verify(k).scope
    monkeypatch.setattr(bounded_proof, "MOST_FIRST", 700)
    report = verify(k)
    assert report.status == "unknown"
    assert report.findings[0].message == (
        "at N=33, D=5, where a loop of extent 'ceildiv(N, 32)' runs 2 times, there are too many "
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


@pytest.mark.parametrize("bounds", [("N >= 5", "N <= 3"), ("D % 4 == 1", "D % 4 == 2")], ids=str)
def test_assumptions_that_contradict_each_other_are_named(bounds: tuple[str, str]) -> None:
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


def test_a_dropped_predicate_reads_out_of_bounds() -> None:
    report = broken("row_sum", "predicate", "drop")
    assert report.status == "refuted"
    found = next(f for f in report.findings if f.kind == "bounds")
    assert found.at is not None
    assert found.at.block == (0, 0, 0)
    n = found.sizes["N"]
    assert found.at.thread == (0, n % 4, 0)
    assert str(found) == (
        f"bounds: T2 reads out of bounds: index {n} for axis 0 of x, which has extent {n}; "
        f"read of x[{n}, 0] at nest line 9 'T2[0] = T2[0] + x[i0 * 4 + i1, i2]', "
        f"block (0, 0, 0), thread (0, {n}, 0), i0=0, i1={n}, i2=0; N={n}, D={found.sizes['D']}; "
        f"placed by {found.origin}"
    )
    assert found.origin.startswith("T2.compute_at(y, 2) at ")


def test_a_dropped_init_is_found() -> None:
    report = broken("row_sum", "init", "drop T2")
    assert report.status == "refuted"
    messages = [f.message for f in report.findings]
    assert "T2 accumulates into an element that was never initialised" in messages


def test_a_wrong_identity_is_found() -> None:
    report = broken("row_sum", "identity", "start T2")
    assert [str(f).split("; ")[0] for f in report.findings] == [
        "value: the store starts T2 from 1.0, its identity is 0.0"
    ]


def test_a_wrong_index_names_what_was_needed() -> None:
    report = broken("row_sum", "index", "load x: i2 without")
    found = report.findings[0]
    assert found.kind == "flow"
    assert found.message == "T2 needs x[0, 1] and reads element [0, 0]"


def test_a_small_buffer_is_out_of_bounds() -> None:
    report = broken("factored", "buffer", "T2 axis 0")
    assert {f.kind for f in report.findings} == {"bounds"}
    assert "which has extent 3" in report.findings[0].message


def test_a_short_loop_leaves_elements_out() -> None:
    report = broken("row_sum", "bound", "loop i2 -1")
    found = report.findings[0]
    assert found.kind == "accumulation"
    assert "has not accumulated its whole domain" in found.message
    assert found.other is not None


def test_swapped_thread_axes_are_found() -> None:
    report = broken("row_sum", "threads", "swap grid_x and block_y")
    assert report.status == "refuted"


def test_a_wrong_claim_can_only_fail() -> None:
    report = broken("row_sum", "claim", "claim of y")
    assert report.status == "refuted"
    found = report.findings[0]
    assert found.kind == "claim"
    assert found.message == "y writes the element [0] and claims [1]"


def test_an_output_left_out_is_named() -> None:
    report = broken("gemm", "store", "drop y")
    assert report.findings[0].kind == "output"
    assert report.findings[0].message == "element [0, 0] of output y is never stored"


def test_a_store_by_all_threads_is_a_race() -> None:
    with ln.Fusion("race") as f:
        x = f.input("x", ("N", "M"), ln.float32)
        s = ln.sum(x, axis=1)
        f.output(s, "s")
        y = f.output(ln.exp(x), "y")
    y.parallelize({0: PT.block_x})
    k = lower(f)
    report = verify(k)
    assert report.ok
    mutant = next(m for m in mutants(k.program) if m.text.startswith("drop 'block_x == 0'"))
    report = verify_program(mutant.program, math_of(k))
    race = next(f for f in report.findings if f.kind == "race")
    assert race.message == "two threads use one element of s, and one of them writes"
    assert race.at is not None
    assert race.other is not None
    assert race.at.thread != race.other.thread


EQUIVALENT = {"order", "bound", "claim", "predicate", "threads"}
"""Kinds of changes that may make no difference: a test decides, or both orders are right."""


@pytest.mark.parametrize("name", ["row_sum", "factored", "merged", "in_place", "promoted"])
def test_mutants_are_refuted(name: str) -> None:
    k = lower(CASES[name]())
    math = math_of(k)
    survivors = []
    for mutant in mutants(k.program):
        report = verify_program(mutant.program, math)
        if report.ok and mutant.kind not in EQUIVALENT:
            survivors.append((mutant.kind, mutant.text, report.scope))
    assert not survivors


def test_arguments_are_checked() -> None:
    k = lower(CASES["row_sum"]())
    with pytest.raises(VerifyError) as unknown:
        verify(k, Q=3)
    assert str(unknown.value) == "verify(row_sum): 'Q' is no size of it; its sizes are ['N', 'D']"
    with pytest.raises(VerifyError) as bad:
        verify(k, N=-1)
    assert str(bad.value) == "verify(row_sum): N=-1 is no size; give an int >= 0"
    with pytest.raises(VerifyError) as none:
        verify(3)
    assert str(none.value) == (
        "verify(3): it is no kernel that carries its math; pass what ln.lower returns"
    )


def test_broken_assumptions_are_refused() -> None:
    with ln.Fusion("assumed") as f:
        x = f.input("x", ("N",), ln.float32)
        y = f.output(x * 2.0, "y")
        f.assume("N % 128 == 0")
    y.split(0, 128)
    k = lower(f)
    assert verify(k).scope == "all sizes"
    with pytest.raises(VerifyError) as found:
        verify(k, N=100)
    assert str(found.value) == (
        "verify(assumed): the sizes {'N': 100} break an assumption of the kernel"
    )


def test_the_environment_asks_for_proofs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPNEST_VERIFY", "1")
    k = lower(CASES["row_sum"]())
    compile(k, target="interpret")
    mutant = next(m for m in mutants(k.program) if m.kind == "init")
    wrong = Kernel(replace(k._lowered, program=mutant.program))
    with pytest.raises(VerifyError, match=r"^verify\(row_sum\): refuted for .*: accumulation: "):
        compile(wrong, target="interpret")


def test_the_snapshot_survives_later_scheduling() -> None:
    f = CASES["row_sum"]()
    k = lower(f)
    f["y"].fusion.tensors[1].named("renamed")
    assert verify(k).ok


def test_isl_is_loaded_only_by_a_proof() -> None:
    code = "import loopnest, sys; assert 'islpy' not in sys.modules; import loopnest.proofs, sys; "
    code += "assert 'islpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# What is computed from components that nothing else reads

COMPONENTS = ("mean", "var", "count")


def moments(*used: str) -> ln.Fusion:
    """Return a fusion whose outputs are some components of Welford's reduction of rows."""
    with ln.Fusion("moments") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        found = dict(zip(COMPONENTS, ln.welford(x, axis=1), strict=True))
        for name in used:
            f.output(found[name], name)
    return f


@pytest.mark.parametrize(
    ("used", "memory"),
    [(("var",), None), (("mean",), ln.SHARED), (("count", "mean"), ln.LOCAL)],
)
def test_every_component_that_another_needs_is_followed(
    used: tuple[str, ...], memory: ln.Memory | None
) -> None:
    f = moments(*used)
    whole = next(t for t in f.tensors if any(a.is_reduction for a in t.root_domain))
    if memory is not None:
        whole.split(1, 4)
        part = whole.rfactor([1])
        if memory is not ln.LOCAL:
            part.memory = memory
    k = lower(f)
    assert verify(k).all_sizes
    math = math_of(k)
    needed = [
        m
        for m in mutants(k.program, frozenset({"init", "clobber", "redirect"}))
        if not is_dead(k, m)
    ]
    assert needed
    for mutant in needed:
        report = verify_program(mutant.program, math)
        assert report.status == "refuted", f"{mutant.text}\n{report}"


def is_dead(k: Kernel, mutant: Mutant) -> bool:
    """Whether a mutant changes the last stage of a component that no other one is computed from.

    Where the variance is no output, its last stage may hold anything.
    """
    stages = [t for t in math_of(k).tensors if t.definition is not None and t.definition.reducer]
    read = {name for t in math_of(k).tensors if t.definition is not None
            for name in t.definition.producers}  # fmt: skip
    variance = {t.name for t in stages if t.definition is not None and t.definition.component == 1}
    assert isinstance(mutant.node, kir.Store)
    name = mutant.node.tensor
    return name in variance and name not in read and name not in math_of(k).outputs


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
