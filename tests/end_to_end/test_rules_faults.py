"""Faults seen in other systems of this kind: each must not happen here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import loopnest as ln
from helpers.schedule_run import PT, assert_computes, leaf, loops, nest, random, state


def placed(position: int) -> tuple[ln.Fusion, list[ln.TensorView]]:
    """Return T1 computed at `position` of y, both [I, J, K, L]."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J", "K", "L"), ln.float32)
        t1 = x + 1.0
        y = f.output(t1 * 2.0, "y")
    t1.compute_at(y, position)
    return f, [t1, y]


Call = Callable[[ln.TensorView], object]

LEFT_OF_2: list[Call] = [
    lambda t: t.split(1, 4),
    lambda t: t.split(1, 4, inner=False),
    lambda t: t.split(1, "L"),
    lambda t: t.split(-3, 4),
    lambda t: t.merge(1),
    lambda t: t.merge(1, 2),
    lambda t: t.merge(2, 1),
    lambda t: t.merge(3, 0),
    lambda t: t.reorder({1: 2}),
    lambda t: t.reorder({2: 1}),
    lambda t: t.reorder({3: 0}),
    lambda t: t.reorder([0, 2, 1, 3]),
    lambda t: t.reorder([1, 0, 2, 3]),
]
RIGHT_OF_2: list[Call] = [
    lambda t: t.split(2, 4),
    lambda t: t.split(2, 4, inner=False),
    lambda t: t.split(2, "L"),
    lambda t: t.split(-2, 4),
    lambda t: t.merge(2),
    lambda t: t.merge(3, 2),
    lambda t: t.reorder({2: 3}),
    lambda t: t.reorder([0, 1, 3, 2]),
    lambda t: t.reorder({0: 0, 1: 1, 3: 2}),
]


@pytest.mark.parametrize("which", [0, 1], ids=["producer", "consumer"])
@pytest.mark.parametrize("call", LEFT_OF_2)
def test_frozen_prefix_is_checked_to_its_last_axis(call: Call, which: int) -> None:
    """merge checked its frozen prefix off by one, reorder and one split not at all."""
    f, tensors = placed(2)
    before = state(f)
    with pytest.raises(ln.ScheduleError, match="the leading 2 of the leaf axes"):
        call(tensors[which])
    assert state(f) == before


@pytest.mark.parametrize("which", [0, 1], ids=["producer", "consumer"])
@pytest.mark.parametrize("call", RIGHT_OF_2)
def test_frozen_prefix_ends_at_its_last_axis(call: Call, which: int) -> None:
    """The first axis right of the prefix is free."""
    f, tensors = placed(2)
    call(tensors[which])
    assert_computes(f, random(2, 3, 5, 4))


@pytest.mark.parametrize(("outer", "inner"), [(0, 1), (1, 0), (1, 2), (2, 1)])
def test_merge_refuses_when_either_axis_is_parallel(outer: int, inner: int) -> None:
    """merge rejected only when both axes were parallel."""
    f, (_, y) = placed(0)
    y.axis(1).parallelize(PT.block_x)
    before = state(f)
    with pytest.raises(
        ln.ScheduleError,
        match=rf"^y\.merge\({outer}, {inner}\): axis 1 is bound to threadIdx\.x; "
        "merge before parallelize$",
    ):
        y.merge(outer, inner)
    assert state(f) == before


def test_memory_reread_under_a_serial_broadcast_is_not_overwritten() -> None:
    """An input's memory, given to an output, is reread by a broadcast in the same loop."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I",), ln.float32)
        u = f.input("u", ("I", "J"), ln.float32)
        y = f.output(x * 2.0, "y", inplace=x)
        b = ln.broadcast(x, (False, True))
        z = f.output(b + u, "z")
    b.compute_at(z, -1)
    assert y.ndim == 1
    try:
        nest(f)
    except ln.LoweringError as error:
        assert str(error).startswith("y in the memory of x: ")  # noqa: PT017
        return
    assert_computes(f, random(3), random(3, 4))


def graphs() -> dict[str, Callable[[ln.TensorView], list[ln.TensorView]]]:
    """Return functions from x[I, J] to outputs, in which not all positions have an order."""

    def skip(x: ln.TensorView) -> list[ln.TensorView]:
        a = ln.exp(x)
        return [a * ln.sum(a, axis=0, keepdims=True)]

    def two_totals(x: ln.TensorView) -> list[ln.TensorView]:
        a = ln.exp(x)
        rows, columns = ln.sum(a, axis=1, keepdims=True), ln.sum(a, axis=0, keepdims=True)
        return [a / rows, a / columns, rows + columns]

    def ladder(x: ln.TensorView) -> list[ln.TensorView]:
        a, b = ln.sin(x), ln.cos(x)
        for _ in range(3):
            a, b = a + b, a * ln.sum(b, axis=1, keepdims=True)
        return [a, b]

    def transposed(x: ln.TensorView) -> list[ln.TensorView]:
        a = ln.exp(x)
        t = ln.permute(a, (1, 0))
        return [ln.sum(a, axis=1), ln.sum(t, axis=0), ln.permute(t * 2.0, (1, 0)) + a]

    def outputs_in_a_row(x: ln.TensorView) -> list[ln.TensorView]:
        a = ln.exp(x)
        b = a + ln.max(a, axis=1, keepdims=True)
        return [a, b, b - ln.sum(b)]

    def moments(x: ln.TensorView) -> list[ln.TensorView]:
        mean, var, _ = ln.welford(x, axis=1, keepdims=True)
        return [(x - mean) * ln.rsqrt(var + 1.0), ln.sum(var)]

    found = (skip, two_totals, ladder, transposed, outputs_in_a_row, moments)
    return {function.__name__: function for function in found}


@pytest.mark.parametrize("name", graphs())
def test_inlining_sets_only_positions_that_have_an_order(name: str) -> None:
    """Inlining set positions for which no order of expressions exists."""
    with ln.Fusion(name) as f:
        x = f.input("x", ("I", "J"), ln.float32)
        for output in graphs()[name](x * 0.5):
            f.output(output)
    f.inline_most()
    for tensor in f.tensors:
        assert 0 <= tensor.compute_at_pos <= tensor.ndim
    assert_computes(f, random(3, 4))


SCRIPT = """
import loopnest as ln
from loopnest.lowering.pipeline import lower
from loopnest.kir.nest_text import print_nest
with ln.Fusion("k") as f:
    x = f.input("x", ("I", "J"), ln.float32)
    t = ln.exp(x)
    mean, var, count = ln.welford(t, axis=1, keepdims=True)
    f.output((t - mean) * ln.rsqrt(var + 1.0), "y")
    f.output(ln.sum(t, axis=0), "z")
f["y"].split(1, 4)
ln.propagate(f["y"])
f.inline_most()
print(print_nest(lower(f).program))
for stage, text in lower(f).stages:
    print(stage, text())
for tensor in f.tensors:
    print(tensor)
try:
    f["y"].merge(0, 7)
except ln.ScheduleError as error:
    print(error)
"""


def test_text_does_not_depend_on_ids_or_hashes(tmp_path: Path) -> None:
    """Kernel text depended on object ids or hash order: two processes print the same bytes."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    texts = []
    for seed in ("0", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, str(script)], capture_output=True, env=environment, check=True
        )
        texts.append(done.stdout)
    assert texts[0] == texts[1]
    assert b"y.merge(0, 7): " in texts[0]


def test_tensors_that_no_output_needs_are_not_computed() -> None:
    """A node that nothing uses leaves the text of the others as it is."""
    texts = []
    for extra in (False, True):
        with ln.Fusion("k") as f:
            x = f.input("x", ("I", "J"), ln.float32)
            t = ln.exp(x)
            f.output(t * 2.0, "y")
            if extra:
                ln.sum(t, axis=0)
        f.inline_most()
        texts.append(nest(f))
    assert texts[0] == texts[1]


def test_a_tensor_that_no_output_needs_restrains_nothing() -> None:
    """A consumer that leads to no output counts neither for positions nor for orders."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        t = ln.exp(x)
        y = f.output(t * 2.0, "y")
        dead = ln.permute(t, (1, 0))
    t.compute_at(y, 2)
    assert (t.compute_at_pos, dead.produced_at_pos) == (2, 0)
    assert leaf(dead) == "i:J i:I"
    assert loops(f) == ["for I", "  for J", "    T1", "    y"]
