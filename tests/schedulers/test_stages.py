"""Schedules in stages: programs that no single nest computes, and random fusions."""

from random import Random

import numpy as np
import pytest

import loopnest as ln
from fuzzing.fusions import FusionWriter
from loopnest.devtools.fuzzing.case_lines import Session
from loopnest.devtools.fuzzing.judge import choose_sizes, compiled, expect, require_proof, run
from loopnest.schedulers import auto_schedule

F = ln.float32
TARGETS = ["c", "cuda"]
RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.random(shape).astype(np.float32)


def blocks_of_cosines():
    """Blocks of 8 x 8 of an image, transformed along both axes: two products and reshapes."""
    with ln.Fusion("blocks") as f:
        x, c = f.input("x", (16, 24), F), f.input("c", (8, 8), F)
        blocks = ln.permute(ln.reshape(x, (2, 8, 3, 8)), (0, 2, 1, 3))
        y = ln.matmul(ln.matmul(c, blocks), ln.permute(c, (1, 0)))
        f.output(ln.reshape(ln.permute(y, (0, 2, 1, 3)), (16, 24)), "y")
    return f, [floats(16, 24), floats(8, 8)]


def weights_of_four_bits():
    with ln.Fusion("four_bits") as f:
        w, x = f.input("w", ("O", 32), ln.uint8), f.input("x", ("M", 64), F)
        low, high = ln.cast(w & 15, F) - 8.0, ln.cast(w >> 4, F) - 8.0
        wide = ln.reshape(ln.stack([low, high], axis=2), (w.shape[0], 64))
        f.output(ln.matmul(x, ln.permute(wide, (1, 0))), "y")
    return f, [RNG.integers(0, 256, (5, 32)).astype(np.uint8), floats(3, 64)]


def normalized_by_neighbours():
    with ln.Fusion("neighbours") as f:
        x = f.input("x", ("N", "C", "H"), F)
        energy = ln.sum(ln.unfold(x * x, 1, 5, padding=2), axis=3)
        f.output(x / ln.sqrt(2.0 + energy), "y")
    return f, [floats(2, 7, 5)]


def edges():
    """What is read at three places is computed at each of them."""
    with ln.Fusion("edges") as f:
        x = f.input("x", ("H", "W"), F)
        p = ln.pad(x, ((1, 1), (1, 1)))
        size = ln.abs(p[1:-1, 2:] - p[1:-1, :-2]) + ln.abs(p[2:, 1:-1] - p[:-2, 1:-1])
        q = ln.pad(size, ((0, 0), (1, 1)))
        f.output(ln.where(ln.logical_and(size >= q[:, 2:], size >= q[:, :-2]), size, 0.0), "y")
    return f, [floats(6, 7)]


def choice_of_experts():
    with ln.Fusion("experts") as f:
        x = f.input("x", ("T", 8), F)
        values, places = ln.topk(x, 2, axis=1)
        e = ln.exp(values - ln.max(values, axis=1, keepdims=True))
        share = e / ln.sum(e, axis=1, keepdims=True)
        chosen = ln.eq(places[:, :, None], ln.iota(8)[None, None, :])
        f.output(ln.sum(ln.cast(chosen, F) * share[:, :, None], axis=1), "y")
    return f, [floats(5, 8)]


def nearest_of_another_set():
    with ln.Fusion("nearest") as f:
        a, b = f.input("a", ("N", "D"), F), f.input("b", ("M", "D"), F)
        distance = ln.sum((a[:, None, :] - b[None, :, :]) ** 2, axis=2)
        f.output(ln.argmin(distance, axis=1), "place")
        f.output(ln.min(distance, axis=1), "distance")
    return f, [floats(4, 6), floats(5, 6)]


def moving_average():
    with ln.Fusion("moving") as f:
        c = ln.pad(ln.cumsum(f.input("x", ("B", "T"), F), axis=1), ((0, 0), (1, 0)))
        f.output((c[:, 4:] - c[:, :-4]) / 4.0, "y")
    return f, [floats(3, 11)]


def mean_loss():
    with ln.Fusion("loss") as f:
        x, t = f.input("x", ("N", "C"), F), f.input("t", ("N",), ln.int64)
        f.assume_range(t, 0, "C")
        right = ln.squeeze(ln.gather(x, t[:, None], axis=1), 1)
        f.output(ln.mean(ln.logsumexp(x, axis=1) - right), "loss")
    return f, [floats(6, 5), RNG.integers(0, 5, 6)]


def doubled_image():
    with ln.Fusion("doubled") as f:
        x = f.input("x", ("H", "W"), F)
        h, w = x.shape
        z = f.input("z", (h * 2, w * 2), F)
        wide = ln.expand(x[:, None, :, None], (h, 2, w, 2))
        f.output(ln.reshape(wide, (h * 2, w * 2)) + z, "y")
    return f, [floats(3, 4), floats(6, 8)]


def in_the_memory_of_what_is_read_elsewhere():
    with ln.Fusion("turned") as f:
        x = f.input("x", (5, 5), F)
        f.output(x + ln.permute(x, (1, 0)) * ln.sum(x), "y", inplace=x)
    return f, [floats(5, 5)]


def scanned_in_place():
    with ln.Fusion("scanned") as f:
        x = f.input("x", ("N", "M"), F)
        f.output(ln.sum(x, axis=0), "total")
        f.output(ln.cumsum(x, axis=1, exclusive=True), "y", inplace=x)
    return f, [floats(3, 4)]


def tiles_of_a_small_convolution():
    """Winograd's transform of 4 x 4 tiles of an image that overlap by 2."""
    with ln.Fusion("tiles") as f:
        x, b = f.input("x", ("H", "W"), F), f.input("b", (4, 4), F)
        tiles = ln.unfold(ln.unfold(x, 0, 4, stride=2), 1, 4, stride=2)
        f.output(ln.matmul(ln.matmul(b, tiles), ln.permute(b, (1, 0))), "y")
    return f, [floats(8, 10), floats(4, 4)]


def sums_and_differences():
    """Two steps of a fast Hadamard transform of 8 elements."""
    with ln.Fusion("hadamard") as f:
        t = f.input("x", ("B", 8), F)
        for half in (1, 2):
            pairs = ln.reshape(t, ("B", 4 // half, 2, half))
            first, second = pairs[:, :, 0], pairs[:, :, 1]
            t = ln.reshape(ln.stack([first + second, first - second], axis=2), ("B", 8))
        f.output(t, "y")
    return f, [floats(3, 8)]


def keys_put_into_a_cache():
    """Turned keys stand in the row that `pos` names, all others stay."""
    with ln.Fusion("cache") as f:
        k, angle = f.input("k", ("N", 8), F), f.input("angle", ("N", 4), F)
        cache, pos = f.input("cache", ("N", "L", 8), F), f.input("pos", ("N",), ln.int32)
        a, b, c, s = k[:, :4], k[:, 4:], ln.cos(angle), ln.sin(angle)
        turned = ln.concatenate([a * c - b * s, b * c + a * s], axis=1)
        hit = ln.eq(ln.iota("L")[None, :, None], pos[:, None, None])
        f.output(ln.where(hit, turned[:, None], cache), "y", inplace=cache)
    return f, [floats(3, 8), floats(3, 4), floats(3, 5, 8), np.array([4, 0, 2], np.int32)]


PROGRAMS = [
    blocks_of_cosines, weights_of_four_bits, normalized_by_neighbours, edges, choice_of_experts,
    nearest_of_another_set, moving_average, mean_loss, doubled_image,
    in_the_memory_of_what_is_read_elsewhere, scanned_in_place, tiles_of_a_small_convolution,
    sums_and_differences, keys_put_into_a_cache,
]  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs(program, target):
    f, arrays = program()
    expected = ln.evaluate(f, *arrays)
    auto_schedule(f, target)
    kernel = ln.lower(f)
    found = ln.compile(kernel, target="interpret")(*[array.copy() for array in arrays])
    pair = (expected, found) if isinstance(expected, tuple) else ((expected,), (found,))
    for right, result in zip(*pair, strict=True):
        np.testing.assert_allclose(result, right, rtol=1e-5, atol=1e-6)
    assert ln.verify(kernel).ok
    if target == "cuda":
        assert kernel.cuda()


def test_each_stage_is_a_launch_of_its_own():
    f, _ = mean_loss()
    auto_schedule(f, "cuda")
    launches = ln.lower(f).launch(N=1000, C=10).launches
    assert len(launches) == 2  # rows, with what is taken of them; their mean
    assert [launch.grid[0] > 1 for launch in launches] == [True, False]


def test_what_is_dear_and_read_in_windows_goes_through_memory():
    f, _ = normalized_by_neighbours()
    auto_schedule(f, "cuda")
    squares = next(t for t in f.tensors if t.name == "T1")
    assert squares.memory is ln.GLOBAL


@pytest.mark.parametrize("target", TARGETS)
def test_an_update_of_one_element_folds_over_no_dimension(target):
    with ln.Fusion("updated") as f:
        x, one = f.input("x", ("N", "N"), ln.int32), f.input("one", ("N", 1), ln.int32)
        place = f.input("place", (1,), ln.int32)
        f.assume_range(place, 0, "N")
        f.output(x * ln.index_add(x, 1, place, one), "y")
    auto_schedule(f, target)
    kernel = ln.lower(f)
    require_proof(kernel)
    a = np.arange(9, dtype=np.int32).reshape(3, 3)
    arrays = (a, np.array([[4], [5], [6]], np.int32), np.array([2], np.int32))
    found = compiled(kernel, "interpret")(*arrays)
    np.testing.assert_array_equal(found, [[0, 1, 12], [9, 16, 50], [36, 49, 112]])


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("target", TARGETS)
def test_random_fusions(seed, target):
    rng, session = Random(seed + 7000), Session("case")
    FusionWriter(session, rng).write()
    f = session.fusion
    if not f.outputs:
        pytest.skip("nothing to compute")
    cases = [expect(f, sizes, seed) for sizes in choose_sizes(f, rng)]
    auto_schedule(f, target)
    kernel = ln.lower(f)
    function = compiled(kernel, "interpret")
    for case in cases:
        run(function, case, "interpret")
    require_proof(kernel)
    if target == "cuda":
        assert kernel.cuda()
