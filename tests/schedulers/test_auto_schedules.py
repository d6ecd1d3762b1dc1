"""Automatic schedules: each is proved, and computes what the oracle says."""

import numpy as np
import pytest

import loopnest as ln
from helpers.scheduled_fusions import check_values, fusion
from loopnest import kir
from loopnest.numerics.compare import compare
from loopnest.numerics.error_bounds import enclosures
from loopnest.schedulers import (
    Scheduler,
    auto_schedule,
    register_scheduler,
    scheduler_of,
    schedulers,
    unregister_scheduler,
)
from loopnest.schedulers.processor_facts import Processor


def softmax(axis):
    def build(x):
        e = ln.exp(x - ln.max(x, axis=axis, keepdims=True))
        return e / ln.sum(e, axis=axis, keepdims=True)

    return build


def norm(axis):
    """With weights along one axis, and the statistics as outputs too."""

    def build(x, weight):
        mean = ln.mean(x, axis=axis, keepdims=True)
        centered = x - mean
        variance = ln.mean(centered * centered, axis=axis, keepdims=True)
        return centered * ln.rsqrt(variance + 1e-5) * (weight * 2.0), mean

    return build


def backward(x, dy):
    """Two sums of one shape over what they share."""
    return ln.sum(dy, axis=0), ln.sum(dy * x, axis=0)


def dense(x, w, b):
    return ln.relu(ln.matmul(x, w) + b)


def distances(x, y):
    d = ln.broadcast(x, (False, True, False)) - ln.broadcast(y, (True, False, False))
    return ln.sum(d * d, axis=2)


POINTWISE = {
    "chain": (lambda x: ln.exp(x * 2.0) + 1.0, lambda n, d: [(n, d)]),
    "rank 3": (lambda x: -x, lambda n, d: [(n, d, 3)]),
    "bias": (lambda x, b: x + b * 2.0, lambda n, d: [(n, d), (d,)]),
    "column": (lambda x, b: x * b, lambda n, d: [(n, d), (n, 1)]),
    "outer": (lambda x, y: x * y, lambda n, d: [(n, 1), (d,)]),
    "two outputs": (lambda x: (ln.exp(x), ln.exp(x) * x), lambda n, d: [(n, d)]),
    "siblings": (lambda x: (x + 1.0, x * 2.0), lambda n, d: [(n, d)]),
    "transpose": (lambda x: ln.permute(x, (1, 0)), lambda n, d: [(n, d)]),
    "transpose and sum": (lambda x, y: ln.permute(x, (1, 0)) + y, lambda n, d: [(n, d), (d, n)]),
    "with its transpose": (lambda x: x + ln.permute(x, (1, 0)), lambda n, d: [(n, n)]),
    "scalar": (lambda x: ln.exp(x), lambda n, d: [()]),
    "expand": (lambda x: ln.expand(x, (4, *x.shape)), lambda n, d: [(n, d)]),
    "part of a transpose": (
        lambda x: ln.permute(x * 2.0, (2, 0, 1))[1:2] + 1.0,
        lambda n, d: [(n, d, 3)],
    ),
    "border of a part": (
        lambda x: ln.pad(ln.exp(x)[1:], ((1, 0), (0, 1))),
        lambda n, d: [(n + 1, d)],
    ),
    "layout": (lambda x: ln.permute(x, (0, 2, 3, 1)) * 2.0, lambda n, d: [(2, 16, n, d)]),
    "tiles": (lambda x: ln.permute(x, (1, 0)), lambda n, d: [(16 * n, 32 * d)]),
    "channels": (lambda x, c: x * ln.broadcast(c, (False, True)), lambda n, d: [(2, n, d), (n,)]),
}
FOLDS = {
    "rows": (lambda x: ln.sum(x, axis=1), lambda n, d: [(n, d)]),
    "columns": (lambda x: ln.max(x * 2.0, axis=0), lambda n, d: [(n, d)]),
    "all": (lambda x: ln.sum(ln.exp(x)) * 0.5, lambda n, d: [(n, d)]),
    "middle": (lambda x: ln.sum(x, axis=1, keepdims=True), lambda n, d: [(3, n, d)]),
    "ends": (lambda x: ln.mean(x, axis=(0, 2)), lambda n, d: [(n, 5, d)]),
    "softmax": (softmax(1), lambda n, d: [(n, d)]),
    "softmax of columns": (softmax(0), lambda n, d: [(n, d)]),
    "softmax of all": (softmax((0, 1)), lambda n, d: [(n, d)]),
    "layer norm": (norm(1), lambda n, d: [(n, d), (d,)]),
    "batch norm": (norm((0, 2, 3)), lambda n, d: [(n, 3, d, 2), (3, 1, 1)]),
    "norm of columns": (norm(0), lambda n, d: [(n, d), (d,)]),
    "variance": (lambda x: ln.var(x, axis=1), lambda n, d: [(n, d)]),
    "siblings": (backward, lambda n, d: [(n, d), (n, d)]),
    "matrix and vector": (ln.matmul, lambda n, d: [(n, d), (d, 1)]),
}
CONTRACTIONS = {
    "matmul": (ln.matmul, lambda n, d: [(n, d), (d, 9)]),
    "dense": (dense, lambda n, d: [(n, d), (d, 40), (40,)]),
    "batched": (ln.matmul, lambda n, d: [(3, n, 5), (3, 5, d)]),
    "one right operand": (ln.matmul, lambda n, d: [(2, n, d), (d, 7)]),
    "distances": (distances, lambda n, d: [(n, 5), (d, 5)]),
    "repeated operand": (
        lambda x, w: ln.matmul(ln.expand(x, (2, *x.shape)), w),
        lambda n, d: [(n, d), (d, 7)],
    ),
    "masked operand": (
        lambda x, mask, w: ln.matmul(ln.where(mask > 0.0, x, 0.0), w),
        lambda n, d: [(n, d), (n, d), (d, 9)],
    ),
    "with itself": (lambda x: ln.matmul(x, ln.permute(x, (1, 0))), lambda n, d: [(n, d)]),
}
WINDOWS = {
    "conv": (
        lambda x, w, b: ln.relu(ln.conv(x, w, padding=1) + ln.broadcast(b, (False, True, True))),
        lambda n, d: [(2, 3, n, d), (4, 3, 3, 3), (4,)],
    ),
    "unpadded conv": (
        lambda x, w: ln.conv(x, w) * 2.0,
        lambda n, d: [(2, 3, n, d), (5, 3, 2, 2)],
    ),
    "strided conv": (
        lambda x, w: ln.conv(x, w, stride=2, padding=2, dilation=2),
        lambda n, d: [(1, 2, n, d), (3, 2, 2, 3)],
    ),
    "grouped conv": (
        lambda x, w: ln.conv(x, w, padding=1, groups=2),
        lambda n, d: [(2, 4, n, d), (6, 2, 3, 3)],
    ),
    "depthwise conv": (
        lambda x, w: ln.conv(x, w, groups=3),
        lambda n, d: [(2, 3, n, d), (3, 1, 2, 3)],
    ),
    "max pool": (lambda x: ln.max_pool(x, 3, 2, 1) * 2.0, lambda n, d: [(2, 3, n, d)]),
    "two pools": (
        lambda x: ln.avg_pool(x, 2, 1, 1) / ln.avg_pool(ln.exp(x), 2, 1, 1),
        lambda n, d: [(2, n, d, 5)],
    ),
}
SCANS = {
    "rows": (lambda x: ln.cumsum(x * 0.01, 1) + 1.0, lambda n, d: [(n, d)]),
    "columns": (lambda x: ln.cumprod(x, 0), lambda n, d: [(n, d)]),
    "middle": (lambda x: ln.cumsum(x, 1, exclusive=True), lambda n, d: [(3, n, d)]),
    "from the end": (lambda x: ln.cumsum(x, 1, reverse=True), lambda n, d: [(n, d)]),
    "columns from the end": (lambda x: ln.cumsum(x, 0, reverse=True), lambda n, d: [(n, d)]),
    "alone": (lambda x: ln.cummax(x, 0), lambda n, d: [(n,)]),
    "with its sums": (lambda x: (ln.cumsum(x, 1), ln.cumsum(x, 1) * x), lambda n, d: [(n, d)]),
}
CASES = {
    f"{kind}: {name}": (kind, *case)
    for kind, cases in (
        ("pointwise", POINTWISE),
        ("fold", FOLDS),
        ("contraction", CONTRACTIONS),
        ("window", WINDOWS),
        ("scan", SCANS),
    )
    for name, case in cases.items()
}
SIZES = ((0, 5), (5, 0), (1, 1), (7, 1), (1, 33), (2, 3), (13, 67), (129, 260))


def sizes(name, among):
    """Return the extents for a case; windows need more than one element."""
    return [s for s in among if "window" not in name or min(s) > 1]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", ["c", "cuda"])
def test_schedules_are_proved(name, target):
    _, build, shapes = CASES[name]
    for n, d in sizes(name, SIZES):
        f = fusion(build, *shapes(n, d))
        auto_schedule(f, target)
        report = ln.verify(ln.lower(f))
        assert report.ok, f"{name} at {n}, {d}: {report.findings}"


@pytest.mark.parametrize("name", CASES)
def test_values(name, monkeypatch):
    monkeypatch.setenv("LOOPNEST_VERIFY", "0")  # the test above proves these nests
    _, build, shapes = CASES[name]
    fusions = [fusion(build, *shapes(n, d)) for n, d in sizes(name, SIZES[2:3] + SIZES[-2:])]
    for f in fusions:
        auto_schedule(f, "c")
    for f, run in zip(fusions, ln.compile_many([ln.lower(f) for f in fusions]), strict=True):
        check_values(f, run)


SYMBOLIC = {
    "chain": (POINTWISE["chain"][0], [("N", "D")]),
    "bias": (POINTWISE["bias"][0], [("N", "D"), ("D",)]),
    "rows": (FOLDS["rows"][0], [("N", "D")]),
    "columns": (FOLDS["columns"][0], [("N", "D")]),
    "layer norm": (norm(1), [("N", "D"), ("D",)]),
    "matmul": (ln.matmul, [("M", "K"), ("K", "N")]),
    "scan": (SCANS["rows"][0], [("N", "D")]),
    "transpose": (lambda x: ln.exp(ln.permute(x, (1, 0))), [("N", "D")]),
    "copy of a transpose": (lambda x: ln.permute(x, (1, 0)), [("N", "D")]),
    "scan of columns": (SCANS["columns"][0], [("N", "D")]),
}


@pytest.mark.parametrize("name", SYMBOLIC)
def test_extents_may_be_symbols(name):
    build, shapes = SYMBOLIC[name]
    f = fusion(build, *shapes)
    auto_schedule(f)
    report = ln.verify(ln.lower(f))
    assert report.ok, report.findings
    run = ln.compile(f, target="c", optimize=1)
    sizes = {"N": 37, "D": 150, "M": 50, "K": 41}
    arrays = [np.random.default_rng(0).normal(size=[sizes[s] for s in shape]) for shape in shapes]
    arrays = [array.astype(np.float32) for array in arrays]
    results = run(*arrays)
    bounds = enclosures(f, arrays, {})
    for output, result in zip(
        f.outputs, results if isinstance(results, tuple) else (results,), strict=True
    ):
        assert compare(output.name, result, bounds[output.name]).ok


@pytest.mark.parametrize(
    ("name", "n", "d", "expected"),
    [
        ("pointwise: chain", 1000, 300, "pointwise"),
        ("pointwise: transpose", 1000, 300, "transpose"),
        ("pointwise: transpose and sum", 1000, 300, "transpose"),
        ("pointwise: transpose", 1000, 3, "pointwise"),
        ("window: unpadded conv", 1000, 300, "window"),
        ("window: grouped conv", 1000, 300, "window"),
        ("window: depthwise conv", 1000, 300, "window"),
        ("fold: rows", 1000, 300, "fold"),
        ("fold: all", 1000, 300, "fold_alone"),
        ("fold: softmax of all", 1000, 300, "fold"),
        ("contraction: dense", 1000, 300, "contraction"),
        ("fold: matrix and vector", 1000, 300, "fold"),
        ("contraction: with itself", 1000, 300, "contraction"),
        ("pointwise: part of a transpose", 1000, 300, "pointwise"),
        ("scan: from the end", 1000, 300, "scan"),
    ],
)
def test_the_class_follows_from_the_axes(name, n, d, expected):
    _, build, shapes = CASES[name]
    assert scheduler_of(fusion(build, *shapes(n, d)), "c", Processor()).name == expected


@pytest.mark.parametrize("dtype", [ln.float64, ln.float16, ln.int8])
@pytest.mark.parametrize("op", [lambda x: x, lambda x: x * 2 + x], ids=["copied", "read twice"])
@pytest.mark.parametrize("target", ["c", "cuda"])
def test_squares_of_all_types(dtype, op, target):
    f = fusion(lambda x: ln.permute(op(x), (1, 0)), (48, 160), dtype=dtype)
    assert auto_schedule(f, target).name == "transpose"
    assert ln.verify(ln.lower(f)).ok
    if target == "c":
        check_values(f)


@pytest.mark.parametrize(
    ("shapes", "build"),
    [
        ([(2, 1), (1, 65536)], lambda a, b: ln.tanh(ln.matmul(a, b) * 0.5)),
        ([(1 << 18, 1)], lambda x: ln.squeeze(ln.exp(x), 1) * 2.0),
        ([(512, 1, 512)], lambda x: ln.squeeze(ln.exp(x), 1) * 2.0),
        ([(1 << 18,)], lambda x: ln.broadcast(ln.exp(x), (True, False)) * 2.0),
        ([(1 << 18,)], lambda x: ln.broadcast(ln.exp(x), (False, True)) * 2.0),
    ],
)
def test_axes_of_extent_1_keep_nothing_in_memory(shapes, build):
    f = fusion(build, *shapes)
    assert auto_schedule(f, "c").name == "pointwise"
    k = ln.lower(f)
    assert ln.verify(k).ok
    outer = [line for line in str(k).splitlines() if line.startswith(("for", "T"))]
    assert len(outer) == 1  # one loop over chunks or rows, and no tensor around it
    if max(shapes[0]) == 1 << 18:
        loops = [line.split(":")[1].strip() for line in str(k).splitlines() if "for " in line]
        assert all("vectorize" in kind for kind in loops[2:]), k  # in all loops of a chunk
    check_values(f)


@pytest.mark.parametrize("lead", [True, False])
def test_vectors_where_a_tensor_of_more_axes_comes_first(lead):
    """Each of two outputs has vectors, though one lacks an axis of the other."""

    def build(x, y):
        e = ln.exp(x)
        return e * 0.5, ln.squeeze(e, 0 if lead else 1) * y

    size = 1 << 16
    f = fusion(build, (1, size) if lead else (size, 1), (size,))
    assert auto_schedule(f, "c").name == "pointwise"
    assert ln.verify(ln.lower(f)).ok
    for output in f.outputs:
        assert output.axis(-1).parallel is ln.ParallelType.vectorize
    check_values(f)


def with_own_transpose(x):
    e = ln.exp(x)
    return e + ln.permute(e, (1, 0))


REFUSED = {
    "two shapes": (lambda x, b: (x + b, b * 2.0), [(3, 4), (4,)]),
    "sums along both axes": (lambda x: (ln.sum(x, axis=1), ln.max(x, axis=0)), [(3, 4)]),
    "one sum after another": (lambda x: ln.max(ln.sum(x, axis=1), axis=0), [(3, 4)]),
    "meets its transpose": (with_own_transpose, [(3, 3)]),
    "normalised operand": (lambda x, w: ln.matmul(softmax(1)(x), w), [(3, 4), (4, 5)]),
}


@pytest.mark.parametrize("target", ["c", "cuda"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_no_single_nest_computes_goes_in_stages(name, target):
    build, shapes = REFUSED[name]
    f = fusion(build, *shapes)
    assert scheduler_of(f, target) is None
    assert not f.trace
    assert auto_schedule(f, target).name == "stages"
    check_values(f)


def test_a_users_scheduler_is_asked_first():
    f = fusion(lambda x: x * 2.0, (64, 64))

    def schedule(fusion, processor):
        fusion.outputs[0].merge(0)

    own = Scheduler("merged", "c", lambda fusion, processor: True, schedule)
    register_scheduler(own)
    try:
        assert schedulers("c")[0] is own
        assert auto_schedule(f) is own
        assert f.outputs[0].ndim == 1
        with pytest.raises(ln.ScheduleError) as error:
            register_scheduler(own)
        assert str(error.value) == (
            "register_scheduler('merged'): target 'c' has a scheduler of this name already; "
            "give it another name, or unregister that one"
        )
    finally:
        unregister_scheduler("merged", "c")
    assert scheduler_of(fusion(lambda x: x * 2.0, (64, 64)), "c").name == "pointwise"


@pytest.mark.parametrize("target", ["c", "cpu", "cuda", "gpu"])
def test_the_public_name_schedules_and_returns_the_scheduler(target):
    f = fusion(lambda x: x * 2.0, (64, 64))
    chosen = ln.auto_schedule(f, target)
    assert ln.auto_schedule is auto_schedule
    assert chosen.target == {"cpu": "c", "gpu": "cuda"}.get(target, target)
    assert f.trace
    assert ln.verify(ln.lower(f)).ok


def test_wrong_calls_are_sentences():
    f = fusion(lambda x: x * 2.0, (4, 4))
    for call, message in (
        (
            lambda: auto_schedule(f, "metal"),
            "auto_schedule(case, 'metal'): there are no schedulers for 'metal'; "
            'use "c" or "cuda"',
        ),
        (lambda: auto_schedule(3), "auto_schedule(3, 'c'): an int is no Fusion"),
        (
            lambda: unregister_scheduler("none", "c"),
            "unregister_scheduler('none', 'c'): there is no such scheduler; there are: "
            "steps (c), transpose (c), pointwise (c), scatter (c), sort (c), fold_alone (c), "
            "fold (c), convolution (c), contraction (c), window (c), scan (c), "
            "steps (cuda), transpose (cuda), pointwise (cuda), scatter (cuda), sort (cuda), "
            "fold (cuda), contraction (cuda), window (cuda), scan (cuda), sort_stages (c), "
            "sort_stages (cuda)",
        ),
    ):
        with pytest.raises(ln.ScheduleError) as error:
            call()
        assert str(error.value) == message
    auto_schedule(f)
    with pytest.raises(ln.ScheduleError) as error:
        auto_schedule(f)
    assert str(error.value).startswith("auto_schedule(case, 'c'): it has a schedule already: "), (
        error.value
    )


def test_equal_structure_is_asked_once():
    asked = []
    own = Scheduler("asked", "c", lambda f, p: asked.append(f.name) or False, lambda f, p: None)
    register_scheduler(own)
    try:
        for scale in (2.0, 2.0, 3.0):
            scheduler_of(fusion(lambda x, s=scale: x * s, (8, 8)), "c")
    finally:
        unregister_scheduler("asked", "c")
    assert len(asked) == 2


@pytest.mark.parametrize("columns", [1023, 1024])
def test_long_rows_are_folded_in_chains_whatever_their_length(columns):
    processor = Processor(lanes=16, vector_bytes=64)
    f = fusion(FOLDS["rows"][0], (64, columns))
    auto_schedule(f, "c", processor)
    kernel = ln.lower(f)
    assert "float32[4, 16] local" in kernel.text()
    assert ln.verify(kernel).ok
    check_values(f)


def test_a_condition_on_the_way_leaves_elements_in_vectors():
    f = fusion(lambda x: ln.where(ln.gt(x, 0.0), x, ln.exp(x) - 1.0), (64, 1024))
    auto_schedule(f, "c", Processor(vector_bytes=64))
    assert f.outputs[0].axis(-1).parallel is ln.ParallelType.vectorize
    assert ln.verify(ln.lower(f)).ok
    check_values(f)


def test_short_rows_that_are_moved_have_a_loop_around_them():
    def interleaved(x):
        return ln.permute(x, (0, 1, 4, 2, 5, 3))

    f = fusion(interleaved, (3, 8, 2, 3, 6, 10))
    assert auto_schedule(f, "c").name == "pointwise"
    assert f.outputs[0].ndim == 3
    assert ln.verify(ln.lower(f)).ok
    check_values(f)


def test_operands_that_are_computed_are_copied():
    """Windows would compute an element again for each window that has it."""
    f = fusion(lambda x, w: ln.conv(ln.exp(x), w), (2, 3, 34, 34), (7, 3, 3, 3))
    assert auto_schedule(f, "c", Processor()).name == "contraction"
    assert ln.verify(ln.lower(f)).ok


@pytest.mark.parametrize(
    ("image", "weights", "stride"),
    [
        ((2, 20, 5, 6), (7, 20, 1, 1), 1),
        ((1, 20, 5, 6), (7, 20, 1, 1), 2),
        ((3, 5, 9, 1), (7, 5, 1, 1), 1),
        ((2, 5, 1, 1), (7, 5, 1, 1), 1),
        (("N", "C", "H", "W"), ("O", "C", 1, 1), 1),
    ],
)
def test_convolutions_at_points_share_slices_between_threads(image, weights, stride):
    f = fusion(lambda x, w: ln.relu(ln.conv(x, w, stride)), image, weights)
    assert auto_schedule(f, "cuda", Processor()).name == "contraction"
    k = ln.lower(f)
    assert ln.verify(k).all_sizes
    shared = [b for b in k.buffers if b.memory is ln.SHARED]
    assert [b.shape for b in shared] == [(16, 64), (16, 64)]
    for node, above in k.walk():
        if isinstance(node, kir.Store) and node.storage.memory is ln.SHARED:
            types = {loop.parallel for loop in above if isinstance(loop, kir.Loop)}
            assert {ln.ParallelType.block_x, ln.ParallelType.block_y} <= types
    if "N" not in image:
        check_values(f, ln.compile(k, "interpret"))
