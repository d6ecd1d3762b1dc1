"""Contractions whose operands are computed on the way: where they are copied, once an element."""

import numpy as np
import pytest

import loopnest as ln
from loopnest.numerics.compare import compare
from loopnest.numerics.error_bounds import enclosures
from loopnest.schedulers import Processor, auto_schedule, scheduler_of

F = ln.float32
TARGETS = ["c", "cuda"]
SIZES = {"M": 37, "K": 21, "N": 70, "V": 9, "H": 6, "W": 7}


def activation(a, w):
    return ln.matmul(ln.tanh(a), w)


def gate(a, g, w):
    return ln.matmul(ln.silu(a) * g, w)


def exponents_on_the_right(a, w):
    return ln.matmul(a, ln.exp(w))


def both_sides(a, w):
    return ln.relu(ln.matmul(ln.relu(a), ln.exp(w) * 0.5))


def dequantised(a, w, scale):
    """Rows of weights, each with a scale."""
    return ln.matmul(a, ln.permute(ln.cast(w, F) * scale[:, None], (1, 0)))


def from_zero_points(a, w, scale, zero):
    return ln.matmul(a, (ln.cast(w, F) - ln.cast(zero, F)) * scale)


def transposed(a, w):
    return ln.matmul(ln.permute(ln.exp(a), (1, 0)), w)


def chosen_rows(table, places, w):
    places.fusion.assume_range(places, 0, "V")
    return ln.matmul(ln.take(table, places, 0), w)


def rectified_images(x, w):
    return ln.conv(ln.relu(x * 2.0), w, padding=1)


def squashed_images(x, w):
    return ln.conv(ln.tanh(x), w, stride=2, padding=1)


CASES = {
    activation: [("M", "K"), ("K", "N")],
    gate: [("M", "K"), ("M", "K"), ("K", "N")],
    exponents_on_the_right: [("M", "K"), ("K", "N")],
    both_sides: [("M", "K"), ("K", "N")],
    dequantised: [("M", "K"), ("N", "K"), ("N",)],
    from_zero_points: [("M", "K"), ("K", "N"), ("N",), ("N",)],
    transposed: [("K", "M"), ("K", "N")],
    chosen_rows: [("V", "K"), ("M",), ("K", "N")],
    rectified_images: [("M", 3, "H", "W"), (8, 3, 3, 3)],
    squashed_images: [("M", 3, "H", "W"), (8, 3, 3, 3)],
}
INTEGERS = {
    (dequantised, 1): ln.int8,
    (from_zero_points, 1): ln.int8,
    (from_zero_points, 3): ln.int8,
    (chosen_rows, 1): ln.int64,
}


def fusion(build, static=False):
    with ln.Fusion(build.__name__) as f:
        inputs = []
        for n, shape in enumerate(CASES[build]):
            extents = [SIZES.get(extent, extent) if static else extent for extent in shape]
            if build is chosen_rows and n == 0:
                extents[0] = "V"
            inputs.append(f.input(f"x{n}", extents, INTEGERS.get((build, n), F)))
        f.output(build(*inputs), "y")
    return f


def arrays_of(build):
    random = np.random.default_rng(0)
    found = []
    for n, shape in enumerate(CASES[build]):
        extents = [SIZES.get(extent, extent) for extent in shape]
        dtype = INTEGERS.get((build, n))
        if dtype is None:
            found.append(random.normal(size=extents).astype(np.float32))
        else:
            found.append(random.integers(0, SIZES["V"], extents).astype(dtype.numpy))
    return found


@pytest.mark.parametrize("static", [False, True], ids=["symbolic", "static"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("build", CASES, ids=lambda build: build.__name__)
def test_proved_and_right(build, target, static):
    f = fusion(build, static)
    assert auto_schedule(f, target, Processor()).name == "contraction"
    kernel = ln.lower(f)
    report = ln.verify(kernel)
    assert report.all_sizes or (static and report.ok), str(report)
    if target == "cuda":
        assert kernel.cuda()
        return
    arrays = arrays_of(build)
    verdict = compare(
        "y", ln.compile(kernel, target="c", optimize=1)(*arrays), enclosures(f, arrays, {})["y"]
    )
    assert verdict.ok, str(verdict)


@pytest.mark.parametrize("build", [activation, chosen_rows, squashed_images])
def test_right_on_cuda_schedules(build):
    f = fusion(build)
    auto_schedule(f, "cuda", Processor())
    arrays = arrays_of(build)
    result = ln.compile(f, target="interpret")(*arrays)
    verdict = compare("y", result, enclosures(f, arrays, {})["y"])
    assert verdict.ok, str(verdict)


def loops_around(kernel, text):
    """Return the loops around the first line of a nest that holds `text`, outermost first."""
    found = []
    for line in str(kernel).splitlines():
        depth = len(line) - len(line.lstrip())
        found = [loop for loop in found if loop[0] < depth]
        if text in line:
            return [loop for _, loop in found]
        if line.lstrip().startswith("for "):
            found.append((depth, line.strip()))
    raise AssertionError(f"no line with {text}")


def test_rows_are_computed_once_not_for_each_band_of_columns():
    f = fusion(activation, static=True)
    auto_schedule(f, "c", Processor())
    text = ln.lower(f)
    around = loops_around(text, "tanh(")
    assert str(text).count("tanh(") == 1
    assert not any(" 3:" in loop for loop in around), around  # 70 columns are three bands


def test_a_block_computes_each_element_of_a_slice_by_one_thread():
    f = fusion(activation)
    auto_schedule(f, "cuda", Processor())
    kernel = ln.lower(f)
    assert str(kernel).count("tanh(") == 1
    around = [loop.split("in ")[1] for loop in loops_around(kernel, "tanh(")]
    assert around[-3:] == ["4:", "16:  # block_y", "16:  # block_x"]  # 64 rows by 16 terms


def test_what_is_dear_is_computed_before_its_windows():
    f = fusion(squashed_images)
    auto_schedule(f, "c", Processor())
    stored = next(t for t in f.tensors if t.definition is not None and t.definition.op == "tanh")
    assert stored.memory is ln.GLOBAL
    f = fusion(rectified_images)
    auto_schedule(f, "c", Processor())
    assert all(t.memory is ln.LOCAL for t in f.tensors if not (t.is_input or t.is_output))


def test_an_operand_that_something_else_reads_is_none():
    with ln.Fusion("f") as f:
        a, w = f.input("a", (8, 8), F), f.input("w", (8, 8), F)
        e = ln.exp(a)
        f.output(ln.matmul(e, w) + e, "y")
    assert scheduler_of(f, "c", Processor()) is None
