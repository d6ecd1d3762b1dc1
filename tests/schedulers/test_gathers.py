"""Fusions that read at places which are data: each has the schedule of what it does with them."""

import numpy as np
import pytest

import loopnest as ln
from loopnest.numerics.compare import compare
from loopnest.numerics.error_bounds import enclosures
from loopnest.schedulers import Processor, auto_schedule

F = ln.float32
SIZES = {"V": 11, "D": 37, "B": 3, "L": 5, "N": 7, "C": 9}


def embedding(f, table, places):
    f.assume_range(places, 0, "V")
    return ln.take(table, places, 0) * 2.0


def normalised_embedding(f, table, places, position):
    """With what is added for each place of a sequence, and a norm of each row."""
    f.assume_range(places, 0, "V")
    x = ln.take(table, places, 0) + position
    centered = x - ln.mean(x, axis=2, keepdims=True)
    return centered * ln.rsqrt(ln.mean(centered * centered, axis=2, keepdims=True) + 1e-5)


def bag(f, table, places):
    f.assume_range(places, 0, "V")
    return ln.sum(ln.take(table, places, 0), axis=1)


def chosen_columns(f, x, places):
    f.assume_range(places, 0, "C")
    return ln.take(x, places, 1) + 1.0


def loss(f, x, labels):
    f.assume_range(labels, 0, "C")
    right = ln.squeeze(ln.gather(x, labels[:, None], axis=1), 1)
    return ln.logsumexp(x, axis=1) - right


CASES = {
    embedding: ([("V", "D"), ("N",)], "pointwise"),
    normalised_embedding: ([("V", "D"), ("B", "L"), ("L", "D")], "fold"),
    bag: ([("V", "D"), ("B", "L")], "fold"),
    chosen_columns: ([("N", "C"), ("L",)], "pointwise"),
    loss: ([("N", "C"), ("N",)], "fold"),
}


def fusion(build):
    with ln.Fusion(build.__name__) as f:
        shapes, _ = CASES[build]
        types = [ln.int64 if n == 1 else F for n in range(len(shapes))]
        inputs = [
            f.input(f"x{n}", s, t) for n, (s, t) in enumerate(zip(shapes, types, strict=True))
        ]
        f.output(build(f, *inputs), "y")
    return f


@pytest.mark.parametrize("target", ["c", "cuda"])
@pytest.mark.parametrize("build", CASES, ids=lambda build: build.__name__)
def test_proved_for_all_sizes_and_right(build, target):
    f = fusion(build)
    shapes, name = CASES[build]
    assert auto_schedule(f, target, Processor()).name == name
    kernel = ln.lower(f)
    report = ln.verify(kernel)
    assert report.all_sizes, str(report)
    assert target == "c" or kernel.cuda()
    random = np.random.default_rng(0)
    arrays = []
    for n, shape in enumerate(shapes):
        extents = [SIZES[extent] for extent in shape]
        values = random.integers(0, 9, extents) if n == 1 else random.normal(size=extents)
        arrays.append(values.astype(np.int64 if n == 1 else np.float32))
    result = ln.compile(kernel, target="interpret")(*arrays)
    verdict = compare("y", result, enclosures(f, arrays, {})["y"])
    assert verdict.ok, str(verdict)
