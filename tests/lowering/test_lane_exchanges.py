"""Registers of other lanes: a flip along an axis of threads is a shuffle, and proved as a read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import loopnest as ln
from helpers.cuda_on_cpu import CpuGpu
from helpers.fake_gpu import plug_in
from helpers.math_run import assert_equal
from helpers.verify_nests import report_on
from loopnest.kir import Shuffle

PT = ln.ParallelType


def flipped(
    shape: tuple[int, ...], axes: tuple[int, ...], lanes: tuple[int, ...] = (), rows: int = 2
) -> ln.Fusion:
    """Return ``x + 10 * flip(x)`` of rows, whose axes `lanes` are merged to those of a block.

    What is left of a row is computed by each thread; a block has `rows` rows.
    """
    with ln.Fusion("flipped") as f:
        x = f.input("x", ("B", *shape), ln.float32)
        t = (x * 2.0).named("t")
        other = t
        for axis in axes:
            other = ln.flip(other, axis)
        f.output(t + 10.0 * other, "y")
    bind(f, len(shape), lanes or tuple(range(1, len(shape) + 1)), rows)
    return f


def bind(f: ln.Fusion, ndim: int, lanes: tuple[int, ...], rows: int) -> None:
    """Bind rows to blocks and block_y, the axes `lanes` of a row to block_x."""
    t, y = f["t"], f["y"]
    y.split(0, rows)
    rest = [axis for axis in range(1, ndim + 1) if axis not in lanes]
    order = [0, 1, *[axis + 1 for axis in (*lanes, *rest)]]
    y.reorder({old: new for new, old in enumerate(order)})
    for _ in lanes[1:]:
        y.merge(2)
    ln.propagate(y)
    y.parallelize({0: PT.grid_x, 1: PT.block_y, 2: PT.block_x})
    ln.parallelize_like(y)
    t.compute_at(y, 2)
    f.inline_most([tensor for tensor in f.tensors if tensor is not t and not tensor.is_input])


def masks(f: ln.Fusion) -> list[str]:
    """Return the modes and offsets of the shuffles of a kernel."""
    nodes = [node for node, _ in ln.lower(f).walk() if isinstance(node, Shuffle)]
    return [f"{node.mode} {node.offset}" for node in nodes]


RIGHT = {
    "the last of two axes": (flipped((16, 2), (2,)), ["xor 1"]),
    "the first of two axes": (flipped((2, 16), (1,)), ["xor 16"]),
    "one of five": (flipped((2, 2, 2, 2, 2), (2,)), ["xor 8"]),
    "a whole warp": (flipped((32,), (1,)), ["xor 31"]),
    "half of it": (flipped((2, 16), (2,)), ["xor 15"]),
    "two warps": (flipped((2, 32), (2,)), ["xor 31"]),
    "two registers, by lanes": (flipped((2, 32), (2,), (2,)), ["xor 31"]),
    "two registers, by registers": (flipped((2, 32), (1,), (2,)), []),
}


@pytest.mark.parametrize("case", list(RIGHT))
def test_a_flip_of_lanes_is_a_shuffle(case: str, tmp_path: Path, monkeypatch: object) -> None:
    f, expected = RIGHT[case]
    assert masks(f) == expected
    kernel = ln.lower(f)
    report = ln.verify(kernel)
    assert (report.status, report.scope) == ("proved", "all sizes"), str(report)
    assert "barrier" not in str(kernel)
    assert "shared" not in str(kernel)
    assert str(ln.Kernel.parse(kernel.text(full=True))) == str(kernel)
    shape = [5, *[int(str(size)) for size in f["x"].sizes[1:]]]
    x = np.random.default_rng(0).integers(-9, 9, shape).astype(np.float32)
    wanted = ln.evaluate(f, x)
    plug_in(monkeypatch, CpuGpu(tmp_path))
    for target in ("interpret", "c", "cuda"):
        assert_equal(ln.compile(kernel, target=target)(x), wanted)


def test_several_axes_of_threads_tell_a_lane() -> None:
    """Lanes of a warp that differ along block_y: their rows are there at all sizes."""
    with ln.Fusion("columns") as f:
        x = f.input("x", ("B", 4, 8), ln.float32)
        t = (x + 1.0).named("t")
        f.output(ln.flip(t, 1) * t, "y")
    y = f["y"]
    y.parallelize({0: PT.grid_x, 1: PT.block_y, 2: PT.block_x})
    ln.parallelize_like(y)
    t.compute_at(y, 1)
    f.inline_most([tensor for tensor in f.tensors if tensor is not t and not tensor.is_input])
    assert masks(f) == ["xor 24"]
    kernel = ln.lower(f)
    assert str(ln.verify(kernel)) == "proved for all sizes"
    values = np.random.default_rng(0).integers(-9, 9, (3, 4, 8)).astype(np.float32)
    for target in ("interpret", "c"):
        assert_equal(ln.compile(kernel, target=target)(values), ln.evaluate(f, values))


def test_lanes_that_some_tests_part_are_refused() -> None:
    with pytest.raises(ln.LoweringError) as refused:
        ln.lower(flipped((8,), (1,), rows=4))
    assert str(refused.value) == (
        "T2 reads t (local): other lanes of the warp have the elements, which takes a shuffle by "
        "all 32 of them, and some may fail the test i0 * 4 + i1 < B alone; let whole warps have "
        "it: let axes of 32 elements or more be those of block_x, assume that tiles divide the "
        "size, or set the memory of t to SHARED"
    )
    f = flipped((8,), (1,), rows=4)
    f.assume("B % 4 == 0")
    assert masks(f) == ["xor 7"]
    assert str(ln.verify(ln.lower(f))).startswith("proved for all sizes")


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((64,), (1,)), ((2, 32), (1,)), ((24,), (1,)), ((33,), (1,))],
    ids=["over warps", "the other warp", "no power of two", "a warp and a lane"],
)
def test_other_threads_than_those_a_mask_tells_are_refused(
    shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    with pytest.raises(ln.LoweringError) as refused:
        ln.lower(flipped(shape, axes))
    text = str(refused.value)
    assert text.startswith("T2 reads t (local): along block_x (")
    assert text.endswith(
        ") the reading thread is not the writing one; compute t at a position in T2 that holds "
        "the block_x loop, bind the same axis of both to it, or set its memory to SHARED or GLOBAL"
    )


NEST = """# loopnest nest 1
kernel flipped(x: float32[B, 2, 32]) -> (y: float32[B, 2, 32])
for i0 in B:  # grid_x
  t: float32[2] local
  for i1 in 32:  # block_x
    for i2 in 2:
      t[i2] = x[i0, i2, i1] * 2.0  # t(i0, i2, i1)
  for i3 in 32:  # block_x
    for i4 in 2:
      T2: float32[1] local
      let v0 = shuffle_xor(t[i4], 31)
      T2[0] = v0  # T2(i0, i4, i3)
      y[i0, i4, i3] = t[i4] + T2[0]  # y(i0, i4, i3)
"""


def one_warp() -> ln.Fusion:
    """Return the math of `NEST`."""
    with ln.Fusion("flipped") as f:
        x = f.input("x", ("B", 2, 32), ln.float32)
        t = (x * 2.0).named("t")
        f.output(t + ln.flip(t, 2), "y")
    return f


WRONG = {
    "another lane": ("shuffle_xor(t[i4], 31)", "shuffle_xor(t[i4], 15)", "flow"),
    "no lane": ("shuffle_xor(t[i4], 31)", "shuffle_xor(t[i4], 0)", "flow"),
    "the other register": ("shuffle_xor(t[i4], 31)", "shuffle_xor(t[1 - i4], 31)", "flow"),
    "under a test": (
        "      let v0 = shuffle_xor(t[i4], 31)\n      T2",
        "      if i3 < 16:\n        let v0 = shuffle_xor(t[i4], 31)\n        T2", "barrier",
    ),
    "before it is stored": ("    for i2 in 2:", "    for i2 in 1:", "flow"),
}  # fmt: skip


@pytest.mark.parametrize("what", list(WRONG))
def test_one_thing_wrong_is_refuted(what: str) -> None:
    assert str(report_on(one_warp(), NEST)) == "proved for all sizes"
    old, new, kind = WRONG[what]
    assert old in NEST
    report = report_on(one_warp(), NEST.replace(old, new))
    assert report.status == "refuted", str(report)
    assert kind in {finding.kind for finding in report.findings}, str(report)


def test_a_finding_has_the_line_of_the_shuffle() -> None:
    report = report_on(one_warp(), NEST.replace("t[i4], 31", "t[i4], 15"))
    found = [finding.at for finding in report.findings if finding.at is not None]
    assert [(at.line, at.text) for at in found] == [(11, "let v0 = shuffle_xor(t[i4], 15)")]
