"""Proofs: kernels under many schedules are proved, and what is broken is refuted with a witness."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

import loopnest as ln
from helpers.verify_cases import (
    CASES,
    math_of,
)
from loopnest import kir
from loopnest.base.errors import VerifyError
from loopnest.facade.kernel_class import Kernel, compile, lower
from loopnest.proofs import Report, verify, verify_program
from loopnest.scalar.dtypes import bool_
from loopnest.scalar.enums import ParallelType as PT
from loopnest.scalar.expr import ZERO, Op
from mutation.mutant import Mutant
from mutation.mutants import mutants


def broken(name: str, kind: str, text: str) -> Report:
    """Return what verify says of the mutant of that kind whose text begins like that."""
    k = lower(CASES[name]())
    mutant = next(m for m in mutants(k.program) if m.kind == kind and m.text.startswith(text))
    return verify_program(mutant.program, math_of(k))


@pytest.mark.parametrize("name", list(CASES))
def test_a_legal_schedule_is_proved(name: str) -> None:
    report = verify(lower(CASES[name]()))
    assert report.ok, str(report)
    assert report.status == "proved"
    if name != "factored_outer":
        assert report.scope == "all sizes"


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


def test_an_index_outside_of_its_loop_is_refuted() -> None:
    k = lower(CASES["row_sum"]())
    (test, *_) = [n for n, _ in k.walk() if isinstance(n, kir.Loop) and n.index == "i1"]
    changed = kir.If(Op("lt", (ZERO, test.var), bool_), k.program.body, k.program.body)
    report = verify_program(k.program.with_body((changed,)), math_of(k))
    assert report.status == "refuted"
    assert [(f.kind, f.message) for f in report.findings] == [
        ("scope", "a condition names i1 outside of its loop")
    ]
