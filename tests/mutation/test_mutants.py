"""Mutants: each kind of change is made, and who notices is judged rightly; a few of each kernel."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import loopnest as ln
from helpers.flying_nests import pipeline, plain
from loopnest import kir
from loopnest.kir import parse as parse_nest
from loopnest.kir.nest_text import print_nest
from loopnest.proofs import verify_program
from loopnest.second_checker.thread_machine import run
from mutation import judge
from mutation.judge import Verdict, judge_mutant, judge_original, mutants_of
from mutation.mutant import Mutant
from mutation.mutants import CORE, KINDS, mutants
from mutation.reasons import relation
from mutation.report import Tally, markdown
from mutation.subjects import Key, Subject, keys_in, load, random_keys

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "kernels"
THREADS = ROOT / "tests" / "mutation" / "kernels"

NEST = """
kernel all(x: float32[N, 8]) -> (y: float32[N, 8])
w: float32[N, 8] global
count: int32[1] global
for i0 in N:  # grid_x
  a: float32[8] shared
  b: float32[8] shared
  for i1 in 8:  # block_x
    let e = x[i0, i1]
    let s = shuffle_xor(e, 4)
    a[i1] = s
  barrier block
  for i2 in 2:  # block_y
    for i3 in 4:  # vectorize
      if i2 * 4 + i3 < 8:
        b[i2 * 4 + i3] = where(i3 < 4, a[i2 * 4 + i3], 0.0)
  barrier block
  for i4 in 8:  # block_x
    let c = b[i4]
    w[i0, i4] = c
  let last = arrive(count[0], N)
  if last:
    for i5 in 8:  # block_x
      y[i0, i5] = w[i0, i5] + 1.0
"""


def texts(kind: str, nest: str = NEST) -> list[str]:
    return [m.text for m in mutants(parse_nest(nest), KINDS) if m.kind == kind]


@pytest.mark.parametrize(
    "kind",
    sorted(
        KINDS
        - {
            "claim",
            "init",
            "identity",
            "clobber",
            "values",
            "swizzle",
            "atomic",
            "flight",
            "tile",
            "end",
        }
    ),
)
def test_each_kind_is_made_and_changes_the_nest(kind: str) -> None:
    program = parse_nest(NEST)
    text, places = print_nest(program), {n for n, _ in kir.walk(program.body)}
    found = [m for m in mutants(program, KINDS) if m.kind == kind]
    assert found
    for mutant in found:
        assert mutant.node is None or mutant.node in places
        same_text = kind in ("launch", "stride", "buffer", "interface")
        assert same_text or print_nest(mutant.program) != text
        assert kind == "interface" or len(mutant.program.params) == len(program.params)


def test_copies_in_flight_are_changed() -> None:
    found = texts("flight", plain(pipeline(3, 2)))
    assert {text for text in found if not text.startswith(("raise", "lower"))} == {
        "store at once", "drop issue", "drop commit", "commit twice", "drop wait",
        "wait 2 instead of 1", "wait 0 instead of 1",
    }  # fmt: skip
    assert {text for text in found if text.startswith(("raise", "lower"))} == {
        "raise commit", "lower commit", "lower wait"
    }  # fmt: skip


TILES = (
    ("flight", "drop wait", "undefined"),
    ("flight", "drop commit", "undefined"),
    ("flight", "wait 2 instead of 1", "undefined"),
    ("flight", "lower wait", "undefined"),
    ("flight", "T7 a stage less", "race"),
    ("flight", "T8 a stage less", "race"),
    ("barrier", "remove barrier block", "undefined"),
    ("tile", "tile only where block_x is 0", "divergence"),
    ("tile", "tile only where block_y is 0", ""),
    ("tile", "drop tile", ""),
    ("tile", "the body without a tile", "race"),
    ("tile", "load T9: digits of 4 and 1 in", ""),
    ("tile", "load T9: digits of 4 and 2 in", ""),
    ("tile", "load T10: digits of 8 and 4 in", ""),
    ("tile", "load T8: digits of 8 and 4 in", ""),
    ("claim", "claim of tile: mma.m16n8k16.f32.bf16 instead of mma.m16n8k16.f32.f16", ""),
    ("claim", "claim of tile: mma.m16n8k8.f32.tf32 instead of mma.m16n8k16.f32.f16", ""),
    ("claim", "claim of tile: operands a and b for each other", ""),
    ("claim", "claim of tile: T9 in other registers", ""),
    ("claim", "claim of tile: T10 in other registers", ""),
)
"""Mutants of `product@flying`: kind, text, and the rule that breaks; empty: results differ, or what
is declared is not so."""


@pytest.mark.parametrize(("kind", "text", "rule"), TILES)
def test_tiles_and_what_they_read_in_flight(kind: str, text: str, rule: str) -> None:
    found = subject("product@flying")
    of_text = [
        (number, mutant)
        for number, mutant in enumerate(all_mutants(found.name))
        if mutant.kind == kind and mutant.text.startswith(text)
    ]
    assert of_text
    for number, mutant in of_text:
        report = verify_program(mutant.program, found.math)
        assert report.status == "refuted", (mutant.text, report)
        if kind == "claim":
            with pytest.raises(ln.KernelFault):
                judge._interpreted(mutant.program, found.trials[0])
            continue
        judged = Verdict(found.name, number, mutant.kind, mutant.text, 0, "")
        judge._run(judged, mutant.program, found.trials[0])
        assert judged.is_wrong
        assert not judged.failed
        assert rule in judged.rules if rule else judged.fault or judged.values
        assert bool(judged.fault) or not judged.rules


def test_moves_of_matrices_that_are_none() -> None:
    """Each is refuted but one: behind the barriers of another tile ordinary loads do as well."""
    found = subject("product@moved")
    of_tiles = [
        mutant
        for mutant in all_mutants(found.name)
        if mutant.node is not None
        and isinstance(mutant.node, (kir.Tile, kir.Store))
        and (mutant.kind == "tile" or mutant.text.startswith("claim of tile"))
    ]
    assert len(of_tiles) > 50
    proved = [
        mutant.text
        for mutant in of_tiles
        if verify_program(mutant.program, found.math).status != "refuted"
    ]
    assert proved == ["the body without a tile"]


def test_swizzles_that_are_no_permutation_are_wrong() -> None:
    """The machine follows swizzles. Nothing that loses elements is proved, or goes past one."""
    with ln.Fusion("turned") as f:
        x = f.input("x", (8, 8), ln.float32)
        y = f.output(ln.permute(x, (1, 0)), "y")
    tile = x.cache_after()
    tile.memory = ln.SHARED
    for tensor in (tile, y):
        tensor.parallelize({0: ln.ParallelType.block_y, 1: ln.ParallelType.block_x})
    tile.swizzle(ln.Swizzle.XOR, 0, 1)
    kernel = ln.lower(f)
    value = np.arange(64, dtype=np.float32).reshape(8, 8)
    right = run(kernel.program, {}, {"x": value}, {}, 0)
    assert not right.broken
    np.testing.assert_array_equal(right.outputs[0], value.T)
    wrong = 0
    for mutant in mutants(kernel.program, frozenset({"swizzle"})):
        found = run(mutant.program, {}, {"x": value}, {}, 0)
        wrong += bool(found.broken) or not np.array_equal(found.outputs[0], value.T)
        report = verify_program(mutant.program, kernel._lowered.math(), {})
        assert not report.ok, (mutant.text, str(report))
    assert wrong == 3


def test_integers_are_computed_otherwise() -> None:
    nest = """
        kernel k(x: int32[N], u: uint8[N]) -> (y: int32[N])
        for i0 in N:
          y[i0] = (x[i0] << 3 ^ int32(u[i0]) >> 1) // 5
        """
    assert texts("operation", nest) == [
        "shr for shl",
        "int32(u[i0]) by way of int8",
        "shl for shr",
        "bitand for bitxor",
        "mod for floordiv",
    ]


def test_the_core_is_what_others_use() -> None:
    program = parse_nest(NEST)
    assert {m.kind for m in mutants(program)} <= CORE
    assert CORE < KINDS


def test_barriers_are_removed_narrowed_and_moved() -> None:
    found = texts("barrier")
    assert found[: len(found) // 2] == [
        "remove barrier block",
        "narrow barrier block",
        "raise barrier block",
        "lower barrier block",
        "take out of its body barrier block",
        "only where block_x is 0: barrier block",
        "only where block_y is 0: barrier block",
    ]


def test_what_blocks_and_lanes_do_together() -> None:
    assert texts("shuffle") == [
        "shuffle s: offset + 1",
        "shuffle s: offset - 1",
        "shuffle s: offset * 2",
        "shuffle s: down instead of xor",
        "shuffle s: up instead of xor",
        "shuffle s: lane instead of xor",
    ]
    assert texts("arrival") == [
        "arrive count: count -1",
        "arrive count: count +1",
        "arrive count: 0 + 1",
    ]
    assert texts("alias") == ["b in the space of a"]
    assert texts("vector") == ["vectorize i3 by 2 instead of 4", "vectorize i3 by 8 instead of 4"]
    assert "drop 'last'" in texts("predicate")
    assert "mask: drop 'i3 < 4'" in texts("predicate")
    assert "launch block_y +1" in texts("launch")
    assert "w axis 1" in texts("buffer")
    assert "w stride of axis 0 -1" in texts("stride")


# Verdicts


@cache
def subject(name: str) -> Subject:
    label = name.removesuffix("/scalar")
    folders = (KERNELS, THREADS)
    key = next(k for f in folders for k in keys_in(f, (label,)) if k.name == name)
    found = load(key)
    assert found is not None
    return found


@cache
def all_mutants(name: str) -> list[Mutant]:
    """Return the mutants of a subject, in the order of their numbers; they are made once."""
    return mutants_of(subject(name))


def verdict(name: str, accepts: Callable[[Mutant], bool]) -> Verdict:
    """Return the verdict on the first mutant that is accepted."""
    found = subject(name)
    number, mutant = next((n, m) for n, m in enumerate(all_mutants(found.name)) if accepts(m))
    return judge_mutant(found, number, mutant)


def test_a_dropped_predicate_is_wrong_and_seen() -> None:
    found = verdict("plain_sum@gpu", lambda m: m.text == "drop 'i0 * 128 + i1 < N'")
    assert found.is_wrong
    assert found.proof == "refuted"
    assert found.finding.startswith("bounds: ")
    assert "is out of bounds" in found.fault
    assert "bounds" in found.rules
    assert (found.line, found.code) == (7, "if i0 * 128 + i1 < N:")


def test_a_dropped_init_is_wrong_and_seen() -> None:
    found = verdict("plain_sum@gpu", lambda m: m.kind == "init")
    assert found.proof == "refuted"
    assert "undefined" in found.rules
    assert "was never stored" in found.fault


def test_a_wrong_identity_is_wrong_by_its_values_alone() -> None:
    found = verdict("plain_sum@gpu", lambda m: m.kind == "identity")
    assert found.proof == "refuted"
    assert found.values.startswith("at N=129, D=3: y: ")
    assert not found.rules
    assert not found.fault


def test_a_wrong_claim_is_wrong_although_it_runs_rightly() -> None:
    found = verdict("plain_sum@gpu", lambda m: m.text == "claim of y: axis 0")
    assert found.is_wrong
    assert found.proof == "refuted"
    assert (found.rules, found.values, found.fault) == ({}, "", "")


def test_what_is_no_mutant_has_a_reason() -> None:
    found = verdict("plain_sum@gpu", lambda m: m.text == "loop i0 +1")
    assert not found.is_wrong
    assert found.is_proved
    assert found.reason == "an iteration that stores nothing"
    found = verdict("plain_softmax@gpu", lambda m: m.text == "start largest from 0.0")
    assert not found.is_wrong
    assert found.proof == "refuted"
    assert "largest" in found.reason
    assert found.reason.endswith("other values, the outputs agree within rounding")


def test_a_flag_that_is_dropped_is_refuted_with_many_threads_a_block() -> None:
    found = verdict("grid_sum@gpu", lambda m: m.text == "drop 'T2_last'")
    assert found.proof == "refuted"
    assert found.finding.startswith("race: two blocks use one element of T2_blocks, ")


@pytest.mark.parametrize("name", ["staged@tile", "staged@loop"])
def test_each_barrier_is_needed(name: str) -> None:
    found = subject(name)
    removed = [
        (n, m) for n, m in enumerate(all_mutants(found.name)) if m.text == "remove barrier block"
    ]
    assert removed
    for number, mutant in removed:
        assert "race" in judge_mutant(found, number, mutant).rules, mutant.node


@pytest.mark.parametrize(
    "name", ["column@joint_warps", "column@joint_odd", "column@joint_folded", "column@joint_grid"]
)
def test_values_that_cross_together_are_kept_apart(name: str) -> None:
    found = subject(name)
    assert judge_original(found).proof == "proved"
    swapped = [
        m
        for m in all_mutants(found.name)
        if m.kind == "values" or "for each other" in m.text or m.text == "remove barrier block"
    ]
    assert {m.kind for m in swapped} >= {"values", "claim"}
    for mutant in swapped:
        assert verify_program(mutant.program, found.math).status == "refuted", mutant.text


def test_components_of_a_result_are_told_apart() -> None:
    found = subject("welford_mean_var@warp")
    text = "store mean and var: each other's values"
    ((number, mutant),) = [(n, m) for n, m in enumerate(all_mutants(found.name)) if m.text == text]
    verdict = judge_mutant(found, number, mutant)
    assert verdict.proof == "refuted"
    assert verdict.finding == "value: the store takes v37, a part of var, for one of mean"


def test_relations_of_stores() -> None:
    one, two = ("y", 0, 1.0), ("y", 1, 2.0)
    mine = ("t", 0, 5.0)
    cases = {
        "same": [one, two],
        "reordered": [two, one],
        "repeated": [one, two, two],
        "fewer": [one],
        "more": [one, two, ("y", 2, 0.0)],
        "other": [one, ("y", 1, 3.0)],
    }
    for name, after in cases.items():
        assert relation({(0, 0): [one, two]}, {(0, 0): after}, set()) == name
    assert relation({(0, 0): [one]}, {(0, 1): [one]}, set()) == "threads"
    assert relation({(0, 0): [mine, one]}, {(0, 0): [("t", 0, 6.0), one]}, {"t"}) == "local"


# A few mutants of each kernel


def few(found: Subject, count: int) -> list[int]:
    """Return the numbers of a few mutants, spread over the whole nest."""
    total = len(all_mutants(found.name))
    return list(range(0, total, max(1, total // count)))[:count]


@pytest.mark.parametrize(
    "name",
    ["plain_sum@gpu", "plain_softmax@gpu", "plain_softmax@cpu", "plain_gemm@gpu", "product@tile"],
)
def test_a_few_mutants_of_a_kernel(name: str) -> None:
    found = subject(name)
    tally = Tally(originals=[judge_original(found)])
    for number in few(found, 8):
        tally.verdicts.append(judge_mutant(found, number, all_mutants(found.name)[number]))
    assert not tally.alarms
    assert not tally.holes
    assert not tally.missed
    assert not tally.errors
    assert len(tally.wrong) >= 4


def test_random_kernels_are_subjects_too() -> None:
    keys = list(random_keys(3, 0))
    assert len({key.number for key in keys}) == 3
    loaded = [load(key) for key in keys]
    for found in loaded:
        if found is not None:
            assert mutants_of(found)


# The tool


def test_the_tool_reports(tmp_path: Path) -> None:
    report, verdicts = tmp_path / "report.md", tmp_path / "verdicts.json"
    command = [
        sys.executable, str(ROOT / "tools" / "mutate.py"), "--kernel", "plain_sum@gpu",
        "--limit", "5", "--jobs", "1", "--out", str(report), "--json", str(verdicts),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    assert report.read_text().startswith("# Mutants of 1 programs\n")
    assert "## Wrong, but proved: 0\n" in report.read_text()
    found = json.loads(verdicts.read_text())
    assert found["figures"]["mutants"] == 5
    assert len(found["mutants"]) == 5
    assert {m["subject"] for m in found["mutants"]} == {"plain_sum@gpu"}


def test_a_run_goes_on_where_it_was_cut(tmp_path: Path) -> None:
    journal, report = tmp_path / "verdicts.jsonl", tmp_path / "report.md"
    command = [
        sys.executable, str(ROOT / "tools" / "mutate.py"), "--kernel", "plain_sum@gpu", "--limit",
        "3", "--jobs", "1", "--out", str(report), "--journal", str(journal), "--resume",
    ]  # fmt: skip
    subprocess.run(command, capture_output=True, check=True)
    lines = journal.read_text().splitlines()
    assert len(lines) == 4
    told = {**json.loads(lines[1]), "finding": "as it was told"}
    journal.write_text("\n".join([lines[0], json.dumps(told), lines[2], lines[3][:40]]) + "\n")
    subprocess.run(command, capture_output=True, check=True)
    again = journal.read_text().splitlines()
    assert len(again) == 5
    assert json.loads(again[4])["number"] == json.loads(lines[3])["number"]
    assert json.loads(again[1])["finding"] == "as it was told"


def test_a_proof_that_takes_too_long_is_unknown() -> None:
    found = judge_original(subject("plain_softmax@gpu"), seconds=1e-3)
    assert (found.proof, found.finding) == ("unknown", "time: no verdict within 0.001 s")


def test_a_limit_of_time_is_not_lost_in_a_finalizer() -> None:
    def wait(seconds: float) -> None:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            pass

    class Slow:
        def __del__(self) -> None:
            wait(0.03)

    def work() -> None:
        Slow()
        with contextlib.suppress(Exception):
            wait(60.0)

    with pytest.raises(judge.TooLong), judge.at_most(1e-3):
        work()


def test_the_report_names_holes_alarms_and_misses() -> None:
    hole = Verdict("k", 3, "bound", "loop i0 -1", 4, "for i0 in N:", "proved", scope="N=3")
    hole.values = "at N=16: y: largest error 1"
    missed = Verdict("k", 4, "barrier", "remove barrier block", 5, "barrier block", "refuted")
    missed.rules = {"race": "race: a[0], line 6, thread 0.0 and 0.1"}
    idle = Verdict("k", 5, "barrier", "remove barrier block", 9, "barrier block", "proved")
    idle.reason = "no value crosses threads there"
    alarm = Verdict("r", -1, "none", "unchanged", 0, "", "refuted", "race: two threads")
    sound = Verdict("k", -1, "none", "unchanged", 0, "", "proved")
    text = markdown(Tally([hole, missed, idle], [alarm, sound]), "Title")
    for part in (
        "## False alarms: 1\n",
        "- race: two threads (1)\n  - r #-1 none: unchanged\n",
        "- proved for N=3; at N=16: y: largest error 1 (1)\n"
        "  - k #3 bound: loop i0 -1, line 4 `for i0 in N:`\n",
        "## Broken rules that the sanitizer did not see: 1\n",
        "## Barriers that could go or be narrower: 1\n",
        "| killed by verify alone | 50.00% |\n",
    ):
        assert part in text
    assert Key("a") == Key("a")
