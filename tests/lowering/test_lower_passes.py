"""The pipeline as data: one tuple that stages, documents and the hook are read from."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import loopnest as ln
from kernels.gemm import gemm
from kernels.grid_sum import grid_sum
from kernels.transpose import transpose
from loopnest.base.errors import InternalError
from loopnest.kir import Allocate, Barrier, Let, Program, map_body
from loopnest.kir import parse as parse_nest
from loopnest.kir.legal_program import program_faults
from loopnest.lowering import pipeline, watchers
from loopnest.lowering.loops import loop_plan
from loopnest.lowering.pipeline import PASSES
from loopnest.scalar.expr import Local

ARCHITECTURE = Path(__file__).parents[2] / "sched" / "ARCHITECTURE.md"


def scaled() -> ln.Fusion:
    with ln.Fusion("scaled") as f:
        x = f.input("x", ("N",), ln.float32)
        y = f.output(x * 2.0, "y")
    y.split(0, 64)
    y.parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.block_x})
    return f


@pytest.mark.parametrize("step", PASSES, ids=lambda step: step.name)
def test_each_pass_says_what_it_requires_and_ensures(step):
    text = importlib.import_module(f"loopnest.lowering.{step.module}").__doc__
    assert text.startswith(f'Pass "{step.name}": ')
    assert re.search(r"\bRequires\b", text)
    assert re.search(r"\bEnsures\b", text)
    assert re.search(r"\bBefore\b.*\bafter\b|It changes nothing", text, re.DOTALL)


def test_the_table_of_the_architecture():
    text = ARCHITECTURE.read_text()
    rows = [f"| {p.name} | `{p.module}` | {p.result} | {p.why} |" for p in PASSES]
    assert "\n".join(rows) in text, "the table should be\n" + "\n".join(rows)


def test_each_pass_has_a_text():
    for kernel in (gemm.lower("gpu"), grid_sum.lower("gpu"), ln.lower(scaled())):
        assert list(kernel.stages) == [step.name for step in PASSES]
        assert all(kernel.stages.values())
        assert kernel.stages["renumber"] == str(kernel)
    assert grid_sum.lower("gpu").stages["grid_reductions"] == (
        "# grid reductions\nT2 over grid_x: the last block goes on; workspace T2_blocks, T2_count\n"
    )


def test_texts_are_those_of_their_passes():
    """The text of each pass shows what it does, and nothing that a later one does."""
    for kernel, word, name in (
        (gemm.lower("gpu"), "barrier block", "barriers"),
        (transpose.lower("gpu_padded"), ".flat[", "addresses"),
    ):
        stages = kernel.stages
        order = list(stages)
        has = [word in stages[step] for step in order]
        assert has.index(True) == order.index(name)
        assert all(has[has.index(True) :])


def test_two_programs_share_what_no_size_decides(monkeypatch):
    """What is right at all sizes is checked once; the other program has its loops."""
    calls = []
    for module, name in (
        (pipeline, "check_plan"), (pipeline, "check_readers"), (loop_plan, "LoopForest"),
        (pipeline, "index_tree"),
    ):  # fmt: skip
        run = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *given, run=run, name=name: (calls.append(name), run(*given))[1]
        )
    kernel = gemm.lower("gpu")
    assert kernel.has_scalar
    assert Counter(calls) == {
        "check_plan": 1, "check_readers": 1, "LoopForest": 1, "index_tree": 2,
    }  # fmt: skip


# LOOPNEST_PASSES


def test_times(monkeypatch, capsys):
    monkeypatch.setenv(watchers.VARIABLE, "time")
    ln.lower(scaled())
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "lower(scaled):"
    assert [line.split()[0] for line in lines[1:]] == [*[p.name for p in PASSES], "all"]
    assert all(line.endswith(" ms") for line in lines[1:])


def test_differences(monkeypatch, capsys):
    monkeypatch.setenv(watchers.VARIABLE, "diff")
    ln.lower(scaled())
    text = capsys.readouterr().err
    assert "--- after addresses\n+++ after predicates\n" in text or (
        "predicates changes nothing" in text
    )
    assert "barriers changes nothing\n" in text
    assert "+for i0 in ceildiv(N, 64):  # grid_x\n" in text


def test_a_watcher_that_does_not_exist(monkeypatch):
    monkeypatch.setenv(watchers.VARIABLE, "time, prove")
    with pytest.raises(ln.LoweringError) as caught:
        ln.lower(scaled())
    assert str(caught.value) == (
        "LOOPNEST_PASSES=time,prove: 'prove' is no watcher; use time, verify, diff, or several "
        "with commas between them"
    )


def without(name):
    """Return the pipeline with a pass that does nothing to what it gets."""
    return tuple([replace(p, run=lambda state: None) if p.name == name else p for p in PASSES])


def test_a_missing_barrier_is_found_after_its_pass(monkeypatch):
    monkeypatch.setenv(watchers.VARIABLE, "verify")
    with ln.Fusion("turned") as f:
        x = f.input("x", (64, 32), ln.float32)
        t = x + 1.0
        y = f.output(ln.permute(t, (1, 0)), "y")
    t.memory = ln.SHARED
    t.parallelize({1: ln.ParallelType.block_x})
    y.parallelize({1: ln.ParallelType.block_x})
    ln.lower(f)
    monkeypatch.setattr(pipeline, "PASSES", without("barriers"))
    with pytest.raises(InternalError) as caught:
        ln.lower(f)
    assert str(caught.value).startswith("lower(turned): after the pass barriers: refuted")


def test_an_illegal_nest_is_found_after_its_pass(monkeypatch):
    monkeypatch.setenv(watchers.VARIABLE, "verify")
    f = scaled()
    f["y"].cache_before().compute_at(f["y"], 2)

    def drop(state):
        body = map_body(state.program.body, lambda n: None if isinstance(n, Allocate) else n)
        state.program = state.program.with_body(body)

    broken = [replace(p, run=drop) if p.name == "unswitch" else p for p in PASSES]
    monkeypatch.setattr(pipeline, "PASSES", tuple(broken))
    with pytest.raises(InternalError) as caught:
        ln.lower(f)
    assert str(caught.value).startswith(
        "lower(scaled): after the pass unswitch: T2 is used where it is not made"
    )


# What a legal nest is

LEGAL = """
    kernel legal(x: float32[N]) -> (y: float32[N])
    for i0 in ceildiv(N, 64):  # grid_x
      for i1 in 64:  # block_x
        T2: float32[1] local
        if i0 * 64 + i1 < N:
          T2[0] = x[i0 * 64 + i1]
          let v0 = T2[0]
          y[i0 * 64 + i1] = v0
"""


def test_a_legal_nest():
    assert program_faults(parse_nest(LEGAL)) == []


def test_buffers_are_made_once_and_used_where_they_are():
    missing = changed(lambda n: None if isinstance(n, Allocate) else n)
    assert program_faults(missing) == ["T2 is used where it is not made"]
    twice = changed(lambda n: (n, n) if isinstance(n, Allocate) else n)
    assert program_faults(twice) == ["T2 is made twice"]
    deep = parse_nest(LEGAL.replace("T2[0] = x", "T2[0, 0] = x"))
    assert program_faults(deep) == ["T2 has 1 dimensions, an access 2 indices"]


def changed(rule) -> Program:
    program = parse_nest(LEGAL)
    return program.with_body(map_body(program.body, rule))


def test_names_are_defined_before_they_are_used():
    missing = changed(lambda n: None if isinstance(n, Let) else n)
    assert program_faults(missing) == ["a store to y names v0 before it is defined"]
    loop = changed(lambda n: n)
    outside = loop.with_body(loop.body[0].body)
    assert "a condition names i0 outside of its loop" in program_faults(outside)


def test_types_scopes_and_launches():
    strange = changed(lambda n: (Barrier("cluster"), n) if isinstance(n, Allocate) else n)
    assert program_faults(strange) == ["a barrier of the scope 'cluster'"]
    wide = Local("v9", ln.float64)
    typed = changed(lambda n: (Let(wide, n.value), n) if isinstance(n, Let) else n)
    assert program_faults(typed) == ["v9 has the type float64, its value float32"]
    unlaunched = replace(parse_nest(LEGAL), launch=())
    assert program_faults(unlaunched) == [
        "the loop over i0 is bound to grid_x, which no launch has",
        "the loop over i1 is bound to block_x, which no launch has",
    ]
