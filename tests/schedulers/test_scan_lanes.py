"""Automatic schedules of scans: lanes or a few rows go along together; random ones are right."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

import loopnest as ln
from loopnest.numerics.compare import compare
from loopnest.numerics.error_bounds import enclosures
from loopnest.schedulers import auto_schedule

AFFINE = ln.Reducer((1.0, 0.0), lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), "affine")


def random_fusion(number: int) -> ln.Fusion:
    """Return scans along the last axis of up to three tensors, among pointwise operations."""
    draw = Random(number)
    shape: tuple[int | str, ...] = ("N", "D") if draw.random() < 0.5 else (draw.choice([3, 40]), 70)
    with ln.Fusion("k") as f:
        made = [f.input("x", shape, ln.float32), f.input("z", shape, ln.float32)]
        for _ in range(draw.randint(1, 3)):
            a, b = draw.choice(made), draw.choice(made)
            how = {"exclusive": draw.random() < 0.3, "reverse": draw.random() < 0.3}
            made += draw.choice([
                lambda a=a, b=b, how=how: [ln.cumsum(a * 0.5 + b, 1, **how)],
                lambda a=a, how=how: [ln.cummax(ln.tanh(a), 1, **how)],
                lambda a=a, b=b, how=how: [ln.scan(AFFINE, (ln.sigmoid(a), b), 1, **how)[1]],
            ])()  # fmt: skip
        f.output(made[-1] * 2.0 if draw.random() < 0.5 else made[-1], "y")
        if draw.random() < 0.3:
            f.output(ln.exp(made[2] * 0.01), "u")
    return f


@pytest.mark.parametrize("target", ["c", "cuda"])
@pytest.mark.parametrize("number", range(16))
def test_random_scans(number: int, target: str) -> None:
    f = random_fusion(number)
    assert auto_schedule(f, target).name == "scan"
    kernel = ln.lower(f)
    assert ln.verify(kernel).all_sizes, ln.verify(kernel)
    if target == "cuda":
        assert "__shfl_up_sync" in kernel.cuda()
    shape = tuple(
        [e if isinstance(e, int) else {"N": 5, "D": 70}[str(e)] for e in f.inputs[0].shape]
    )
    draw = np.random.default_rng(number)
    arrays = [draw.uniform(-1, 1, shape).astype(np.float32) for _ in f.inputs]
    found = ln.compile(kernel, target="interpret")(*arrays)
    bounds = enclosures(f, arrays, {})
    for output, result in zip(
        f.outputs, found if isinstance(found, tuple) else (found,), strict=True
    ):
        verdict = compare(output.name, result, bounds[output.name])
        assert verdict.ok, str(verdict)


def block(shape: tuple[int, ...]) -> tuple[int, int, int]:
    with ln.Fusion("k") as f:
        f.output(ln.cumsum(f.input("x", shape, ln.float32), len(shape) - 1), "y")
    auto_schedule(f, "cuda")
    return ln.lower(f).launch().block


def test_threads_of_a_row() -> None:
    """A warp a row where there are many, more threads where there are few, fewer in short rows."""
    assert block((4096, 1024)) == (32, 4, 1)
    assert block((16, 1024)) == (256, 1, 1)
    assert block((4096, 10)) == (16, 8, 1)
    assert block((1 << 12,)) == (256, 1, 1)


def test_rows_that_lie_side_by_side_have_a_thread_each() -> None:
    with ln.Fusion("k") as f:
        f.output(ln.cumsum(f.input("x", ("N", "D"), ln.float32), 0), "y")
    auto_schedule(f, "cuda")
    assert "shuffle" not in str(ln.lower(f))


@pytest.mark.parametrize(
    ("shape", "together"), [((40, 70), 4), ((37, 70), 4), ((3, 70), 0), (("N", 70), 4)]
)
def test_rows_that_a_core_goes_along_together(shape: tuple[int | str, ...], together: int) -> None:
    """Four sums wait for their last elements side by side."""
    with ln.Fusion("k") as f:
        y = f.output(ln.cumsum(ln.tanh(f.input("x", shape, ln.float32)), 1), "y")
    assert auto_schedule(f, "c").name == "scan"
    assert ln.verify(ln.lower(f)).all_sizes
    unrolled = [a.extent for a in y.leaf_domain if a.parallel is ln.ParallelType.unroll]
    assert unrolled == [together] * (together > 0)
