"""Proofs about collectives by themselves: their bodies, their components, what they claim."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

import loopnest as ln
from helpers.verify_nests import program_of
from loopnest import kir
from loopnest.facade.kernel_class import lower
from loopnest.proofs import verify, verify_program
from loopnest.proofs.collectives.collective_contract import Body
from loopnest.proofs.point_arrays import Undecidable
from loopnest.scalar.dtypes import bool_, index
from loopnest.scalar.enums import ParallelType as PT
from loopnest.scalar.expr import ONE, ZERO, Expr, Op, Symbol, integer
from mutation.mutants import mutants

# Collectives by themselves

SHUFFLES = """
kernel k(x: float32[N]) -> (y: float32[N])
acc: float32[1] local
r = max(acc[0]) over block_x:
  let a = shuffle_xor(acc[0], 1)
  let b = max(acc[0], a)
  let c = shuffle_xor(b, 1)
  let r = max(b, c)
"""

EVERYONE = """
kernel k(x: float32[N]) -> (y: float32[N])
acc: float32[1] local
r = sum(acc[0]) over block_x:
  slots: float32[N] shared
  slots[block_x] = acc[0]
  barrier block
  total: float32[1] local
  total[0] = 0.0
  for i in N:
    total[0] = total[0] + slots[i]
  let r = total[0]
"""


def body_of(text: str, old: str = "", new: str = "") -> Body:
    """Return the collective of a nest, with one text replaced."""
    assert old in text
    program = program_of(text.replace(old, new, 1) if old else text, {PT.block_x: integer(2)})
    (node,) = [n for n in program.body if isinstance(n, kir.Collective)]
    return Body(node)


def test_a_contribution_may_be_taken_twice_where_that_makes_no_difference() -> None:
    assert body_of(SHUFFLES).check((2, 1, 1), {}) is None
    twice = body_of(
        SHUFFLES.replace("max(", "sum(", 1)
        .replace("max(acc[0], a)", "acc[0] + a")
        .replace("max(b, c)", "b + c")
    )
    assert twice.check((2, 1, 1), {}) == "r in thread 0 has twice the contribution of thread 0"


def test_a_lane_that_does_not_exist_has_nothing() -> None:
    assert body_of(SHUFFLES).check((1, 1, 1), {}) == "r is undefined in thread 0"


def test_all_extents_of_a_block_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys.modules["loopnest.proofs.collectives.collective_contract"], "MOST_THREADS", 70
    )
    extents = {PT.block_x: Symbol("N")}
    assert body_of(EVERYONE).check_all(extents, {}) is None
    short = body_of(EVERYONE, "for i in N:", "for i in min(N, 60):")
    assert short.check_all(extents, {}) == (
        "in a block of (61, 1, 1): r in thread 0 lacks the contribution of thread 60"
    )


def test_what_is_right_of_a_maximum_is_looked_at_again_of_a_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        sys.modules["loopnest.proofs.collectives.collective_contract"], "MOST_THREADS", 70
    )
    twice = EVERYONE.replace("total[0] = 0.0", "total[0] = acc[0]")
    largest = twice.replace("sum(", "max(").replace(
        "total[0] + slots[i]", "max(total[0], slots[i])"
    )
    extents = {PT.block_x: Symbol("N")}
    assert body_of(largest).check_all(extents, {}) is None
    assert body_of(twice).check_all(extents, {}) == (
        "in a block of (1, 1, 1): r in thread 0 has twice the contribution of thread 0"
    )


SIZE = Symbol("N")
EXTENTS: dict[str, Expr] = {
    "ceildiv(1000000, N)": Op("ceildiv", (integer(1_000_000), SIZE), index),
    "ceildiv(N, 64)": Op("ceildiv", (SIZE, integer(64)), index),
    "1000000000 - N": Op("sub", (integer(1_000_000_000), SIZE), index),
}
CONDITIONS: dict[str, Expr] = {
    "N % 40000 == 0": Op("eq", (Op("mod", (SIZE, integer(40_000)), index), ZERO), bool_),
    "N >= 40000": Op("ge", (SIZE, integer(40_000)), bool_),
    "N >= 1": Op("ge", (SIZE, ONE), bool_),
}


@pytest.mark.parametrize(
    ("extent", "assumed"),
    [
        ("ceildiv(1000000, N)", "N % 40000 == 0"),
        ("ceildiv(1000000, N)", "N >= 40000"),
        ("ceildiv(N, 64)", "N % 40000 == 0"),
        ("1000000000 - N", "N >= 1"),
    ],
)
def test_sizes_beyond_those_that_are_tried_are_not_excluded(extent: str, assumed: str) -> None:
    """A block of some size is wrong; the sizes that give it are none of those that are tried."""
    wrong = EVERYONE.replace("total[0] = 0.0", "total[0] = acc[0]").replace("N", "512")
    condition, launched = CONDITIONS[assumed], EXTENTS[extent]
    assert body_of(wrong).check_all({PT.block_x: launched}, {}, [condition]) is not None
    with pytest.raises(Undecidable, match="which has too many sizes"):
        body_of(wrong.replace("512", "N")).check_all({PT.block_x: launched}, {}, [condition])


def test_sizes_beyond_a_bound_are_excluded() -> None:
    wrong = EVERYONE.replace("in N", "in min(N, 60)")
    bounds = [Op("le", (SIZE, integer(most)), bool_) for most in (60, 61)]
    extents = {PT.block_x: SIZE}
    assert body_of(wrong).check_all(extents, {}, bounds[:1]) is None
    assert body_of(wrong).check_all(extents, {}, bounds[1:]) == (
        "in a block of (61, 1, 1): r in thread 0 lacks the contribution of thread 60"
    )


def test_all_threads_of_a_batch_of_blocks_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever dimension has the symbolic extent: else a batch takes ever more memory."""
    contract = sys.modules["loopnest.proofs.collectives.collective_contract"]
    counts = []

    def counted(node: kir.Collective, shapes: list[tuple[int, int, int]], numbers: object) -> None:
        counts.append([x * y * z for x, y, z in shapes])

    monkeypatch.setattr(contract, "check_many", counted)
    text = EVERYONE.replace("in N", "in 512")
    assert body_of(text).check_all({PT.block_x: integer(2), PT.block_y: Symbol("N")}, {}) is None
    assert sum(map(len, counts)) == 512
    assert all(sum(batch[:-1]) <= 2 * contract.MOST_LANES for batch in counts)


def test_sizes_that_follow_from_those_of_the_block_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        sys.modules["loopnest.proofs.collectives.collective_contract"], "MOST_THREADS", 70
    )
    text = EVERYONE.replace("float32[N] shared", "float32[ceildiv(N, 8) * 2] shared")
    body = body_of(text.replace("for i in N:", "for i in ceildiv(N, 4):"))
    assert body.check_all({PT.block_x: kir_extent("ceildiv(N, 4)")}, {}) is None


def kir_extent(text: str) -> kir.Expr:
    """Return an extent as an expression."""
    program = program_of(f"""
        kernel k(x: float32[N]) -> (y: float32[N])
        for i in {text}:
          y[i] = x[i]
    """)
    (loop,) = program.body
    assert isinstance(loop, kir.Loop)
    return loop.var.extent


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  barrier block\n", "  if block_x == 0:\n    barrier block\n",
         "not all threads of a block reach a barrier: not thread 0"),
        ("slots[block_x] = acc[0]", "slots[block_x + 1] = acc[0]",
         "block_x + 1 is out of bounds of slots in thread 1"),
        ("slots[block_x] = acc[0]", "slots[0] = acc[0]",
         "two threads store one element of slots"),
        ("total[0] = 0.0", "total[0] = 3.0", "it takes in 3.0, the identity is 0.0"),
        ("  total[0] = 0.0\n", "",
         "nothing was stored to the element of total read by thread 0"),
        ("slots[i]", "slots[0]", "r in thread 0 lacks the contribution of thread 1"),
        ("let r = total[0]", "let r = 0.0", "r in thread 0 lacks the contribution of thread 0"),
    ],
)  # fmt: skip
def test_a_wrong_body_is_named(old: str, new: str, message: str) -> None:
    body = body_of(EVERYONE, old, new)
    assert body.check((2, 1, 1), {Symbol("N"): 2}) == message


def test_scratch_in_the_space_of_scratch_is_lost() -> None:
    text = EVERYONE.replace(
        "  barrier block\n",
        "  others: float32[N] shared = slots\n  others[block_x] = acc[0]\n  barrier block\n",
    )
    assert body_of(text).check((2, 1, 1), {Symbol("N"): 2}) == (
        "nothing was stored to the element of slots read by thread 0"
    )


# Components in collectives, and claims of merges


def moments_of_blocks() -> ln.Fusion:
    """Return a mean by two blocks a row; nothing depends on the variance's last stage."""
    with ln.Fusion("moments") as f:
        mean, _, _ = ln.welford(f.input("x", ("N", "D"), ln.float32), axis=1)
        f.output(mean, "mean")
    mean.split(1, 2, inner=False)
    part = mean.rfactor([2])
    mean.parallelize({1: PT.grid_x})
    part.compute_at(mean, 2)
    return f


def test_a_wrong_claim_of_a_merge_is_refuted_though_nothing_depends_on_it() -> None:
    k = lower(moments_of_blocks())
    assert verify(k).ok
    assert k._lowered.math is not None
    math = k._lowered.math()
    claims = [m for m in mutants(k.program, frozenset({"claim"}))
              if isinstance(m.node, kir.Store) and m.node.role == "update"
              and m.node.tensor == "T2" and m.text.endswith("axis 0")]  # fmt: skip
    assert claims
    for mutant in claims:
        report = verify_program(mutant.program, math)
        assert report.status == "refuted", f"{mutant.text}\n{report}"


def moments_of_threads() -> ln.Fusion:
    with ln.Fusion("moments") as f:
        _, var, _ = ln.welford(f.input("x", ("N", "D"), ln.float32), axis=1)
        f.output(var, "var")
    var.split(1, 40)
    part = var.rfactor(1)
    var.parallelize({0: PT.grid_x, 1: PT.block_x})
    part.compute_at(var, 1)
    part.parallelize({2: PT.block_x})
    return f


def test_scratch_of_another_component_is_not_what_is_read() -> None:
    k = lower(moments_of_threads())
    assert k._lowered.math is not None
    kinds = frozenset({"redirect", "predicate"})
    found = [
        m
        for m in mutants(k.program, kinds)
        if (m.kind == "redirect" and m.text.startswith("store T1_part: to T1_part_2"))
        or (m.text.endswith("== 0'") and m.text.startswith("mask: drop 'v"))
    ]
    assert len(found) >= 2
    for mutant in found:
        report = verify_program(mutant.program, k._lowered.math())
        assert report.status == "refuted", f"{mutant.text}\n{report}"


def test_a_collective_stores_to_its_own_buffers_alone() -> None:
    k = lower(moments_of_threads())
    outside = next(n for n, _ in k.walk() if isinstance(n, kir.Allocate) and n.buffer == "T4")
    store = next(n for n, _ in k.walk() if isinstance(n, kir.Store) and n.buffer == "T1_part")
    other = replace(store, storage=outside.storage, index=(integer(0),))
    body = kir.map_body(k.program.body, lambda n: other if n is store else n)
    assert k._lowered.math is not None
    report = verify_program(k.program.with_body(body), k._lowered.math())
    assert report.status == "refuted"
    assert report.findings[0].message.endswith("it stores to T4, which it does not make")


@pytest.mark.parametrize("assumed", ["N % 4 == 0", "N >= 1"])
def test_blocks_that_an_assumption_excludes_are_not_asked(assumed: str) -> None:
    """Halves of a row are exact where it has a factor; for a block of one thread they are not."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("K", "N"), ln.float32)
        f.assume(assumed)
        y = f.output(ln.sum(x, 1), "y")
    y.split(0, 7)
    y.parallelize({1: ln.ParallelType.block_y, 2: ln.ParallelType.block_x})
    kernel = ln.lower(f)
    assert ("block_x + N // 2 < N" in str(kernel)) == ("%" in assumed)
    assert ln.verify(kernel).all_sizes
