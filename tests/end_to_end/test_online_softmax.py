"""Online softmax: a reducer over tiles of keys, whose partial results are contractions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import loopnest as ln
from helpers.schedule_run import PT

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
