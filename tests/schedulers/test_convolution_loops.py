"""Convolutions by packed weights: which fusions, in which tiles, proved and right."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import loopnest as ln
from loopnest.numerics.compare import compare
from loopnest.numerics.error_bounds import enclosures
from loopnest.schedulers import Processor, auto_schedule, scheduler_of

F = ln.float32
AVX2 = Processor(vector_bytes=32)
AVX512 = Processor(vector_bytes=64, tile=(8, 32), registers=32, cache=1 << 20, cores=2)
SMALL = Processor(vector_bytes=32, cache=1 << 13, cores=3)
PROCESSORS = {"any": Processor(), "avx2": AVX2, "avx512": AVX512, "small": SMALL}


def plain(x, w):
    return ln.conv(x, w, padding=1)


def strided(x, w):
    return ln.conv(x, w, 2, padding=1)


def unpadded(x, w):
    return ln.conv(x, w)


def dilated(x, w):
    return ln.conv(x, w, padding=2, dilation=2)


def biased(x, w, b):
    return ln.relu(ln.conv(x, w, padding=1) + b[:, None, None])


def residual(x, w, z):
    return ln.relu(ln.conv(x, w, padding=1) + z)


def transformed(x, w, scale):
    return ln.conv(ln.relu(x * scale[:, None, None]), ln.tanh(w), padding=1)


def scaled_weights(x, w, scale):
    return ln.conv(x, ln.exp(w) * scale[:, None, None, None], padding=1)


def of_reversed_weights(x, w):
    return ln.conv(
        ln.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), ln.permute(ln.flip(w, (2, 3)), (1, 0, 2, 3))
    )


def in_a_row(x, w):
    return ln.conv(x, w, padding=((0, 0), (1, 1)))


def in_a_column(x, w):
    return ln.conv(x, w, padding=((1, 1), (0, 0)))


def of_a_phase(x, w):
    """A part of the gradient of an operand: some elements of the kernel, reversed."""
    w = ln.permute(ln.flip(w[:, :, 0:3:2, 0:3:2], (2, 3)), (1, 0, 2, 3))
    return ln.conv(ln.pad(x, ((0, 0), (0, 0), (0, 1), (0, 1))), w)


def of_batches(x, dy):
    """The gradient of weights: the windows are as large as the results."""
    swap = (1, 0, 2, 3)
    x = ln.permute(ln.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), swap)
    return ln.permute(ln.conv(x, ln.permute(dy, swap)), swap)


CASES: dict[str, tuple[Callable[..., ln.TensorView], list[tuple[int | str, ...]]]] = {
    "rows of 12": (plain, [(2, 9, 6, 12), (32, 9, 3, 3)]),
    "rows of 16": (plain, [(3, 8, 4, 16), (32, 8, 3, 3)]),
    "rows of 9": (plain, [(2, 8, 9, 9), (32, 8, 3, 3)]),
    "rows of 17": (strided, [(1, 8, 13, 33), (32, 8, 3, 3)]),
    "one image": (plain, [(1, 8, 6, 12), (96, 8, 3, 3)]),
    "images": (plain, [("N", 8, 6, 12), (32, 8, 3, 3)]),
    "strided": (strided, [("N", 8, 12, 12), (32, 8, 3, 3)]),
    "unpadded": (unpadded, [("N", 3, 12, 14), (32, 3, 5, 5)]),
    "dilated": (dilated, [(2, 8, 8, 12), (32, 8, 3, 3)]),
    "biased": (biased, [("N", 8, 6, 12), (32, 8, 3, 3), (32,)]),
    "residual": (residual, [(2, 8, 6, 12), (32, 8, 3, 3), (2, 32, 6, 12)]),
    "transformed": (transformed, [(2, 8, 6, 12), (32, 8, 3, 3), (8,)]),
    "scaled weights": (scaled_weights, [(2, 8, 6, 12), (32, 8, 3, 3), (32,)]),
    "of reversed weights": (of_reversed_weights, [(2, 8, 6, 12), (8, 32, 3, 3)]),
    "in a row": (in_a_row, [("N", 24, 6, 12), (32, 24, 1, 3)]),
    "in a column": (in_a_column, [(2, 24, 6, 12), (32, 24, 3, 1)]),
    "of a phase": (of_a_phase, [(2, 16, 6, 12), (16, 32, 3, 3)]),
    "of batches": (of_batches, [(3, 4, 6, 7), (3, 32, 6, 7)]),
    "of one channel": (plain, [(2, 1, 12, 12), (32, 1, 9, 9)]),
    "half vectors": (plain, [(2, 8, 6, 9), (8, 8, 3, 3)]),
    "few terms of ragged rows": (plain, [(2, 3, 6, 9), (32, 3, 3, 3)]),
    "of a line": (plain, [(2, 24, 24), (32, 24, 3)]),
    "of a volume": (plain, [(1, 8, 4, 6, 12), (32, 8, 3, 3, 3)]),
}


def fusion(name: str, dtype: ln.ScalarType = F) -> ln.Fusion:
    build, shapes = CASES[name]
    with ln.Fusion("case") as f:
        inputs = [f.input(f"x{n}", shape, dtype) for n, shape in enumerate(shapes)]
        f.output(build(*inputs), "y")
    return f


def arrays_of(name: str) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    shapes = [[2 if e == "N" else e for e in shape] for shape in CASES[name][1]]
    return [random.normal(size=shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("name", CASES)
def test_proved_and_right(name: str, processor: str) -> None:
    f = fusion(name)
    assert auto_schedule(f, "c", PROCESSORS[processor]).name == "convolution"
    kernel = ln.lower(f)
    report = ln.verify(kernel)
    assert report.ok, str(report)
    if processor == "any" or name in ("rows of 9", "rows of 17", "one image"):
        arrays = arrays_of(name)
        result = ln.compile(kernel, target="c", optimize=1)(*arrays)
        verdict = compare("y", result, enclosures(f, arrays, {})["y"])
        assert verdict.ok, str(verdict)


OTHERS = {
    "lanes would not count": ((2, 8, 8, 8), (24, 8, 3, 3), 1, Processor()),
    "images are small": ((2, 8, 4, 4), (32, 8, 3, 3), 1, Processor()),
    "images are tiny": ((2, 8, 2, 2), (32, 8, 3, 3), 1, Processor()),
    "sums of few terms": ((2, 3, 8, 8), (32, 3, 3, 3), 1, Processor()),
    "groups": ((2, 32, 8, 8), (32, 8, 3, 3), 4, Processor()),
    "narrow vectors": ((2, 8, 8, 8), (32, 8, 3, 3), 1, Processor(vector_bytes=16)),
    "volumes of unknown depth": ((2, 8, "D", 8, 8), (32, 8, 3, 3, 3), 1, Processor()),
    "rows of unknown length": ((2, 8, 8, "W"), (32, 8, 3, 3), 1, Processor()),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_convolutions_have_other_schedules(name: str) -> None:
    image, weights, groups, processor = OTHERS[name]
    with ln.Fusion("case") as f:
        x, w = f.input("x", image, F), f.input("w", weights, F)
        f.output(ln.conv(x, w, padding=1, groups=groups), "y")
    chosen = scheduler_of(f, "c", processor)
    assert chosen is not None
    assert chosen.name != "convolution"


def sums_of(name: str, processor: Processor) -> list[str]:
    """Return the lines of a nest up to the first sum of a tile, without the copies in front."""
    f = fusion(name)
    auto_schedule(f, "c", processor)
    lines = [line.strip() for line in str(ln.lower(f)).splitlines()]
    last = next(i for i, line in enumerate(lines) if " + T" in line and "for" not in line)
    return lines[:last]


@pytest.mark.parametrize("name", ["rows of 12", "rows of 9", "rows of 17", "strided", "dilated"])
def test_sums_are_not_tested(name: str) -> None:
    for processor in PROCESSORS.values():
        assert not any(line.startswith("if ") for line in sums_of(name, processor))


def test_a_single_image_is_copied_and_its_bands_are_computed_by_all_cores() -> None:
    text = "\n".join(sums_of("one image", SMALL))
    assert text.count("# cpu_parallel") == 3
    assert ": float32[1, 8, 8, 14] global" in text
