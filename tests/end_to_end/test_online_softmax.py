"""Online softmax: a reducer over tiles of keys, whose partial results are contractions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import loopnest as ln
from helpers.schedule_run import PT
from kernels.attention import attention as attention_kernel
from kernels.attention import attention_causal, attention_two_pass
from loopnest.kir import Allocate, Loop, Program, Store, walk
from loopnest.proofs.verifier import verify_program
from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import Const, Op, Symbol, substitute
from loopnest.scalar.expr import walk as nodes
from loopnest.scalar.simplify import Simplifier
from loopnest.second_checker.thread_machine import run
from mutation.mutants import mutants

INF = float("inf")


def rescaled(a: Any, b: Any) -> Any:
    """(largest score, sum of the exponentials, their product with the values)."""
    most = ln.maximum(a[0], b[0])
    one, other = ln.exp(a[0] - most), ln.exp(b[0] - most)
    return most, a[1] * one + b[1] * other, a[2] * one + b[2] * other


SOFTMAX = ln.Reducer((-INF, 0.0, 0.0), rescaled, "online_softmax")


def attention() -> ln.Fusion:
    """Scores of each row with keys in tiles, and the values of the keys."""
    with ln.Fusion("attention") as f:
        scores = f.input("scores", ("N", "T", 8), ln.float32)
        values = f.input("values", ("T", 8, "W"), ln.float32)
        most = ln.max(scores, axis=2, keepdims=True)
        weights = ln.exp(scores - most)
        total = ln.sum(weights, axis=2, keepdims=True)
        spread = ln.broadcast(weights, (False, False, False, True))
        product = ln.sum(spread * values, axis=2).named("product")  # [N, T, W]
        _, sums, sized = ln.reduce(SOFTMAX, (most, total, product), axis=1)
        f.output(sized / sums, "y")
    return f


def reference(scores: np.ndarray, values: np.ndarray) -> np.ndarray:
    flat = scores.reshape(scores.shape[0], -1).astype(np.float64)
    weights = np.exp(flat - flat.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    return weights @ values.reshape(flat.shape[1], -1).astype(np.float64)


@pytest.mark.parametrize("scheduled", [False, True], ids=["", "scheduled"])
def test_attention_over_tiles(scheduled: bool) -> None:
    f = attention()
    if scheduled:
        sized = f["y"].producers[0]
        f["y"].parallelize({0: PT.cpu_parallel})
        sized.compute_at(f["y"], 1)
        sized.reorder({1: 2, 2: 1})  # tiles outside, values inside
        f["product"].compute_at(sized, 2)
    k = ln.lower(f)
    assert ln.verify(k).status == "proved"
    rng = np.random.default_rng(0)
    scores = (rng.normal(size=(3, 5, 8)) * 10).astype(np.float32)
    values = rng.normal(size=(5, 8, 4)).astype(np.float32)
    np.testing.assert_allclose(ln.evaluate(f, scores, values), reference(scores, values), 1e-5)
    wanted, bound = ln.evaluate(f, scores, values, exact=True), ln.error_bound(f, scores, values)
    assert np.isfinite(bound).all()
    for target in ("interpret", "c"):
        found = ln.compile(k, target=target)(scores, values)
        assert (abs(found - wanted) <= bound).all()


def exponentials(program: Program, sizes: dict[str, int]) -> int:
    """Return how many exponentials a launch takes, those at holes of its loops among them."""
    algebra, total = Simplifier(), 0
    known: dict[Any, Any] = {
        Symbol(name): Const(n, Symbol(name).dtype) for name, n in sizes.items()
    }
    for node, around in walk(program.body):
        if isinstance(node, Store):
            times = sum(isinstance(n, Op) and n.op == "exp" for n in nodes(node.value))
            for loop in around:
                if isinstance(loop, Loop):
                    size = algebra.simplify(substitute(loop.var.extent, known))
                    assert isinstance(size, Const)
                    times *= int(size.value)
            total += times
    return total


@pytest.mark.parametrize("schedule", ["gpu", "cpu"])
@pytest.mark.parametrize("kernel", [attention_kernel, attention_causal], ids=lambda k: k.name)
def test_one_exponential_a_row_and_key(kernel: Any, schedule: str) -> None:
    """Two more a row and tile; and no memory grows with the keys."""
    k = kernel.lower(schedule)
    heads, rows, keys = 3, 384, 640  # whole blocks of 64 rows and of 96
    tiles = keys // 64
    found = exponentials(k.program, {"H": heads, "M": rows, "S": keys})
    assert found == heads * rows * (keys + 2 * tiles)
    for node, _ in walk(k.program.body):
        if isinstance(node, Allocate):
            assert isinstance(node.storage.size, Const)


@pytest.mark.parametrize("dtype", [ln.float16, ln.bfloat16, ln.float32], ids=str)
@pytest.mark.parametrize(
    "kernel", [attention_kernel, attention_causal, attention_two_pass], ids=lambda k: k.name
)
def test_kernels(kernel: Any, dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proved for all sizes, and within the bound; rows and keys that fill no tile."""
    monkeypatch.setenv("LOOPNEST_VERIFY", "0")  # proved here
    rng = np.random.default_rng(0)
    given = [rng.normal(size=(2, n, 64)).astype(dtype.numpy) for n in (37, 70, 70)]
    for schedule in kernel.schedules:
        k = kernel.lower(schedule, dtype=dtype)
        assert ln.verify(k).all_sizes
        f = kernel.fusion(schedule, dtype=dtype)
        wanted, bound = ln.evaluate(f, *given, exact=True), ln.error_bound(f, *given)
        found = np.asarray(ln.compile(k, target="c", optimize=1)(*given)).astype(np.float64)
        assert (abs(found - wanted) <= bound).all()
        reference = kernel.reference(*[a.astype(np.float64) for a in given])
        assert abs(found - reference).max() < 2e-2


@pytest.mark.parametrize("schedule", ["gpu", "cpu"])
def test_causal_tiles_are_skipped(schedule: str) -> None:
    """Of 4 x 4 tiles those above the diagonal are neither loaded nor multiplied."""
    own = {"rows": 8, "lanes": 4, **({"some": 2} if schedule == "cpu" else {})}
    lowered = attention_causal.lower(schedule, width=8, tile=8, **own)._lowered
    rng = np.random.default_rng(0)
    given = [rng.normal(size=(1, 32, 8)).astype(np.float32) for _ in range(3)]
    arrays = dict(zip("qkv", given, strict=True))
    ran = run(lowered.program, {"H": 1, "M": 32, "S": 32}, arrays, {}, trace=True)
    assert ran.broken == {}
    wanted = attention_causal.reference(*given)
    np.testing.assert_allclose(ran.outputs[0], wanted, rtol=1e-4, atol=1e-5)
    stores = [name for made in ran.trace.values() for name, *_ in made]
    assert stores.count("keys") == stores.count("values") == 10 * 8 * 8


def test_tiles_that_count_are_not_skipped() -> None:
    """A bound of one row less is refuted."""
    lowered = attention_causal.lower("cpu", width=4, tile=4, rows=4, lanes=4, some=2)._lowered
    assert verify_program(lowered.program, lowered.math()).status == "proved"
    made = list(mutants(lowered.program, frozenset({"predicate"})))
    narrow = [m for m in made if m.text.startswith("narrow 'i9 * 4 <= i0 * 4 + i17 * 2 + i")]
    assert len(narrow) == 2
    for mutant in narrow:
        assert verify_program(mutant.program, lowered.math()).status == "refuted"
