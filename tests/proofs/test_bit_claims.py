"""Claims of equal bits: each is held against what "c" computes, for all kernels and random ones."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from random import Random

import pytest

import loopnest as ln
from end_to_end.test_goldens import KERNELS
from fuzzing.fusions import FusionWriter
from helpers.batch_bits import apart, differing, pairs
from kernels.adam import adam
from kernels.bias_gelu import bias_gelu
from kernels.gemm import gemm
from kernels.rmsnorm import rmsnorm
from kernels.row_sum import row_sum
from kernels.transpose import transpose
from loopnest.base.errors import VerifyError
from loopnest.devtools.fuzzing import Failure
from loopnest.devtools.fuzzing.case_lines import Session
from loopnest.devtools.fuzzing.schedule_styles import ScheduleWriter
from loopnest.proofs.bit_claims import BitClaim, batch_invariant, same_bits

PAGE = Path(__file__).parents[2] / "sched" / "docs" / "guide" / "same_bits.md"
PT = ln.ParallelType


@pytest.fixture
def unproved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run kernels without the proof first, which other tests of the same kernels ask for."""
    monkeypatch.delenv("LOOPNEST_VERIFY", raising=False)


def sizes_of(k: ln.Kernel) -> list[str]:
    return [p.name for p in k.program.params if p.kind == "size"]


def refuted(claim: BitClaim, run: object, k: ln.Kernel, size: str, ranges: object = None) -> str:
    """Return what the bits on "c" say against a claim; "" where they bear it out."""
    if claim.status == "unknown":
        return ""
    if claim.status == "different":
        assert claim.witness is not None
        few, many = claim.witness.sizes
        found = any(differing(run, few, many, ranges, seed) for seed in (None, *range(8)))
        return "" if found else f"{claim}: the bits are the same"
    variant = k.scalar or k
    for few, many in pairs(variant.program, size, 2):
        found = differing(run, few, many, ranges)
        if found:
            return f"{claim}, but at {few} and {many} {found}"
    return ""


def test_claims_of_all_kernels(unproved: None, request: pytest.FixtureRequest) -> None:
    made = [(d, s, d.lower(s)) for d in KERNELS for s in d.schedules]
    # All are claims of the page; every third is run, which takes most of the time.
    tried = dict.fromkeys(range(0, len(made), 3))
    runs = ln.compile_many([made[n][2] for n in tried], "c", optimize=1)
    tried.update(zip(tried, runs, strict=True))
    wrong, seen = [], dict.fromkeys(("same", "different", "unknown"), 0)
    rows = []
    for number, (definition, schedule, k) in enumerate(made):
        claims = {size: batch_invariant(k, size) for size in sizes_of(k)}
        for size, claim in claims.items():
            seen[claim.status] += 1
            if number not in tried:
                continue
            text = refuted(claim, tried[number], k, size, definition.ranges)
            wrong += [f"{definition.label(schedule)}: {text}"] if text else []
        cells = [
            ", ".join(n for n, c in claims.items() if c.status == s) or "none"
            for s in ("same", "different", "unknown")
        ]
        rows.append(f"| `{definition.name}` | `{schedule}` | {' | '.join(cells)} |")
    assert wrong == []
    assert all(seen.values())
    text = PAGE.read_text("utf-8")
    shown = re.findall(r"^\| `.*$", text, re.MULTILINE)
    if request.config.getoption("--update-goldens"):
        PAGE.write_text(text.replace("\n".join(shown), "\n".join(rows)), "utf-8")
        return
    assert shown == rows, "\n" + "\n".join(rows)


def drawn(number: int) -> ln.Kernel | None:
    """Return the kernel of a random fusion under a random schedule, None where it has none."""
    rng, session = Random(number), Session(f"c{number}")
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            with session.fusion:
                FusionWriter(session, rng).write()
            ScheduleWriter(session, rng).write()
        return ln.lower(session.fusion)
    except (Failure, ln.LoopnestError):
        return None


def test_claims_of_random_schedules(unproved: None) -> None:
    made = {n: k for n in range(24) if (k := drawn(n)) is not None}
    runs = ln.compile_many(list(made.values()), "c", optimize=1)
    wrong, seen = [], set()
    for (number, k), run in zip(made.items(), runs, strict=True):
        for size in sizes_of(k):
            claim = batch_invariant(k, size)
            seen.add(claim.status)
            with contextlib.suppress(ln.LaunchError):
                text = refuted(claim, run, k, size)
                wrong += [f"{number}: {text}"] if text else []
    assert wrong == []
    assert seen == {"same", "different", "unknown"}


def summed(schedule: Callable[[ln.Fusion, ln.TensorView], object]) -> ln.Kernel:
    """Return a sum of rows under a schedule."""
    with ln.Fusion("row_sum") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = f.output(ln.sum(x, axis=1), "y")
    schedule(f, y)
    return ln.lower(f)


def chunks_of_n(f: ln.Fusion, y: ln.TensorView) -> None:
    y.split(1, "N")
    y.rfactor([2])


def as_many_chunks_as_n(f: ln.Fusion, y: ln.TensorView) -> None:
    y.split(1, "N", inner=False)
    y.rfactor([2])


@pytest.mark.parametrize("schedule", [chunks_of_n, as_many_chunks_as_n])
def test_chunks_of_n_elements_differ(schedule: Callable[..., object]) -> None:
    k = summed(schedule)
    claim = batch_invariant(k, "N")
    assert claim.status == "different"
    assert claim.witness is not None
    assert claim.witness.sums
    assert refuted(claim, ln.compile(k, "c"), k, "N") == ""


def test_the_witness_names_the_element_and_both_sums() -> None:
    assert str(batch_invariant(summed(chunks_of_n), "N")) == (
        "batch_invariant(row_sum, 'N'): different; y: its terms are folded in another order; y[0] "
        "differs at N=3, D=5 and N=4, D=5; (x[0, 0] + x[0, 1] + x[0, 2]) + (x[0, 3] + x[0, 4]), "
        "but x[0, 0] + x[0, 1] + x[0, 2] + x[0, 3] + x[0, 4]"
    )


def test_why_it_is_not_known_is_told_with_its_line() -> None:
    with ln.Fusion("running") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        f.output(ln.cumsum(x, axis=1), "y")
    claim = batch_invariant(ln.lower(f), "D")
    assert not claim
    assert str(claim) == (
        "batch_invariant(running, 'D'): unknown; y: terms are folded by D iterations, "
        "nest line 6 'for i1 in D:'"
    )


def test_atomic_updates_come_in_any_order() -> None:
    with ln.Fusion("count") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = f.output(ln.sum(x, axis=0), "y")
    y.atomic()
    claim = batch_invariant(ln.lower(f), "D")
    assert claim.status == "unknown"
    assert "atomic updates come in any order" in str(claim)


def test_integers_have_the_same_bits_in_any_order() -> None:
    with ln.Fusion("count") as f:
        x = f.input("x", ("N", "D"), ln.int32)
        y = f.output(ln.sum(x, axis=0), "y")
    y.atomic()
    assert batch_invariant(ln.lower(f), "D")


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ("Q", "batch_invariant(row_sum, 'Q'): 'Q' is no size of it; its sizes are ['N', 'D']"),
        (3, "batch_invariant(row_sum, 3): an int is no size; its sizes are ['N', 'D']"),
    ],
)
def test_a_size_that_the_kernel_lacks(size: object, message: str) -> None:
    with pytest.raises(VerifyError, match=f"^{re.escape(message)}$"):
        batch_invariant(summed(lambda f, y: None), size)  # type: ignore[arg-type]


def test_what_is_no_kernel() -> None:
    message = (
        "batch_invariant(3): it is no kernel that carries its math; pass what ln.lower returns"
    )
    with pytest.raises(VerifyError, match=f"^{re.escape(message)}$"):
        batch_invariant(3, "N")


def test_same_bits_of_pairs_of_schedules(unproved: None) -> None:
    """Each claim on two schedules of a kernel, held against the bits of both on "c"."""
    definitions = [adam, bias_gelu, gemm, row_sum, rmsnorm, transpose]
    made = {(d.name, s): d.lower(s) for d in definitions for s in d.schedules}
    runs = dict(zip(made, ln.compile_many(list(made.values()), "c", optimize=1), strict=True))
    wrong, seen = [], dict.fromkeys(("same", "different", "unknown"), 0)
    for definition in definitions:
        for one, other in combinations(definition.schedules, 2):
            k1, k2 = made[definition.name, one], made[definition.name, other]
            claim = same_bits(k1, k2)
            seen[claim.status] += 1
            both = runs[definition.name, one], runs[definition.name, other]
            text = ""
            if claim.status == "different":
                assert claim.witness is not None
                (sizes,) = claim.witness.sizes
                found = any(apart(*both, sizes, definition.ranges, seed) for seed in range(8))
                text = "" if found else "the bits are the same"
            elif claim:
                size = sizes_of(k1)[0]
                for _, sizes in pairs((k1.scalar or k1).program, size, 2):
                    text = text or apart(*both, sizes, definition.ranges) or ""
            wrong += [f"{definition.name}: {one}, {other}: {claim}: {text}"] if text else []
    assert wrong == []
    assert seen == {"same": 12, "different": 2, "unknown": 23}


def test_another_tile_of_rows_has_the_same_bits() -> None:
    one, other = summed(lambda f, y: y.split(0, 4)), summed(lambda f, y: y.split(1, 8))
    assert same_bits(one, other)
    assert same_bits(one, one)


def product_and_sum(p: ln.TensorView, c: ln.TensorView) -> ln.TensorView:
    return c + p


def product_of_another_sign(p: ln.TensorView, c: ln.TensorView) -> ln.TensorView:
    return c + (-p)


def copied_product(p: ln.TensorView, c: ln.TensorView) -> ln.TensorView:
    y = c + p
    p.cache_after()
    return y


def chosen_product(p: ln.TensorView, c: ln.TensorView) -> ln.TensorView:
    return c + ln.where(c > -100.0, p, 0.0)


def product_in_a_function(p: ln.TensorView, c: ln.TensorView) -> ln.TensorView:
    return c + ln.erf(p)


@pytest.mark.parametrize(
    ("made", "factor", "shown"),
    [
        (product_and_sum, ln.mul, True),
        (product_and_sum, lambda a, b: ln.prod(ln.stack([a, b], axis=0), axis=0), True),
        (product_and_sum, lambda a, b: ln.erf(a), False),
        (product_of_another_sign, ln.mul, True),
        (copied_product, ln.mul, True),
        (chosen_product, ln.mul, False),  # processors with masks alone round both together
        (product_in_a_function, ln.mul, False),
    ],
)
def test_a_product_that_is_rounded_first(
    made: Callable[..., ln.TensorView], factor: Callable[..., ln.TensorView], shown: bool
) -> None:
    """Whatever stands between a product and its sum: a compiler may round both together."""
    kernels = []
    for at_once in (True, False):
        with ln.Fusion("k") as f:
            a, b, c = [f.input(name, ("N",), ln.float32) for name in "abc"]
            p = factor(a, b)
            y = f.output(made(p, c), "y")
        for tensor in f.tensors if at_once else p.consumers:
            if not (tensor.is_input or tensor.is_output):
                tensor.compute_at(y, 1)
        kernels.append(ln.lower(f))
    assert same_bits(kernels[0], kernels[0])
    assert not shown or apart(*ln.compile_many(kernels, "c", optimize=3), {"N": 133}, None)
    assert same_bits(*kernels).status == "unknown"


def needed_twice(*, together: bool, copied: bool) -> ln.Kernel:
    """Return a kernel that adds a product, and has a function of the same product."""
    with ln.Fusion("k") as f:
        a, b, c = [f.input(name, ("N",), ln.float32) for name in "abc"]
        added, other = a * b, a * b
        q, y = f.output(ln.erf(other), "q"), f.output(c + added, "y")
    if copied:
        added.cache_after()
        other.cache_after()
    if together:
        a.cache_after().compute_at(y, 1)
    added.compute_at(y, 1)
    other.compute_at(q, 1)
    return ln.lower(f)


def test_a_product_that_more_than_a_sum_needs_is_rounded() -> None:
    """In loops that need a product twice a compiler computes it once, and rounds it by itself."""
    kernels = [
        needed_twice(together=together, copied=copied)
        for together in (True, False)
        for copied in (False, True)
    ]
    runs = ln.compile_many(kernels, "c", optimize=3)
    found = [
        (same_bits(k1, k2).status, apart(run1, run2, {"N": 133}, None) is None)
        for (k1, run1), (k2, run2) in combinations(zip(kernels, runs, strict=True), 2)
    ]
    assert found == [("same", True), *[("unknown", False)] * 4, ("same", True)]


def test_a_sum_in_chunks_has_other_bits() -> None:
    def chunked(f: ln.Fusion, y: ln.TensorView) -> None:
        y.split(1, 2)
        y.rfactor([2])

    assert str(same_bits(summed(lambda f, y: None), summed(chunked))) == (
        "same_bits(row_sum, row_sum): different; y: its terms are folded in another order; y[0] "
        "differs at N=3, D=5; x[0, 0] + x[0, 1] + x[0, 2] + x[0, 3], but (x[0, 0] + x[0, 1]) + "
        "(x[0, 2] + x[0, 3])"
    )


def test_kernels_of_other_results_are_not_compared() -> None:
    with ln.Fusion("other") as f:
        f.output(ln.exp(f.input("x", ("N", "D"), ln.float32)), "y")
    message = (
        "same_bits(row_sum, other): the outputs of the first are y: float32[N], of the second "
        "y: float32[N, D]; pass kernels of the same math"
    )
    with pytest.raises(VerifyError, match=f"^{re.escape(message)}$"):
        same_bits(summed(lambda f, y: None), ln.lower(f))


def test_another_math_has_other_bits() -> None:
    with ln.Fusion("other") as f:
        f.output(ln.max(f.input("x", ("N", "D"), ln.float32), axis=1), "y")
    claim = same_bits(summed(lambda f, y: None), ln.lower(f))
    assert claim.status == "different"
    assert claim.witness is not None
    assert claim.witness.reason == "its math is another"
