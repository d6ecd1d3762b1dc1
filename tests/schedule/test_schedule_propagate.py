"""propagate and parallelize_like: one tensor's loops, or their types, for all others."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

import loopnest as ln
from helpers.schedule_run import PT, assert_computes, leaf, positions, random, state


def layer() -> tuple[ln.Fusion, dict[str, ln.TensorView]]:
    """Return a row-normalised x: total [I, rJ], its broadcast, and y = x / broadcast + bias[J]."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        bias = f.input("bias", ("J",), ln.float32)
        t = ln.exp(x).named("t")
        kept = ln.sum(t, axis=1, keepdims=True).named("kept")
        assert kept.reduction is not None
        kept.reduction.named("total")
        f.output(t / kept + bias, "y")
    return f, {tensor.name: tensor for tensor in f.tensors}


def test_propagate_replays_on_every_computed_tensor() -> None:
    f, named = layer()
    y = named["y"]
    y.split(1, 4).split(0, 2)
    ln.propagate(y)
    assert leaf(named["t"]) == leaf(y) == "i:ceildiv(I, 2) i:2 i:ceildiv(J, 4) i:4"
    assert leaf(named["total"]) == "i:ceildiv(I, 2) i:2 r:ceildiv(J, 4) r:4"
    assert leaf(named["kept"]) == "i:ceildiv(I, 2) i:2 b:1 b:1"
    assert leaf(named["x"]) == "i:I i:J"
    assert set(positions(*f.tensors)) == {0}
    assert_computes(f, random(5, 6), random(6))


def test_propagate_of_leading_axes_only() -> None:
    f, named = layer()
    y = named["y"]
    y.split(1, 4).split(0, 2)
    ln.propagate(y, 2)
    for name in ("t", "total"):
        kind = "r" if name == "total" else "i"
        assert leaf(named[name]) == f"i:ceildiv(I, 2) i:2 {kind}:J"
    assert leaf(named["kept"]) == "i:ceildiv(I, 2) i:2 b:1"
    before = state(f)[5:]
    ln.propagate(y, 0)
    assert state(f)[5:] == before


def test_propagate_carries_no_parallel_types() -> None:
    _, named = layer()
    named["y"].split(1, 4).parallelize({0: PT.grid_x, 2: PT.unroll})
    ln.propagate(named["y"])
    assert {axis.parallel for axis in named["t"].leaf_domain} == {PT.serial}


def test_propagate_reaches_tensors_by_the_path_that_keeps_most() -> None:
    """The sum is reached through its operand (two axes), not through its broadcast (one).

    And from the sum, the broadcast's other side is reached through the operand too.
    """
    f, named = layer()
    named["y"].split(1, 4)
    ln.propagate(named["y"])
    assert leaf(named["total"]) == "i:I r:ceildiv(J, 4) r:4"
    g, named = layer()
    named["total"].split(1, 4)
    ln.propagate(named["total"])
    assert leaf(named["t"]) == leaf(named["y"]) == "i:I i:ceildiv(J, 4) i:4"
    assert_computes(f, random(2, 6), random(6))
    assert_computes(g, random(2, 6), random(6))


def test_propagate_refuses_to_merge_iteration_with_reduction() -> None:
    f, named = layer()
    named["y"].merge(0)
    before = state(f)
    message = (
        "propagate(y, -1): a merge of these loops would join iteration and reduction axes of "
        "total; an iteration axis merges with iteration or broadcast axes only"
    )
    with pytest.raises(ln.ScheduleError, match=f"^{re.escape(message)}$"):
        ln.propagate(named["y"])
    assert state(f) == before


def test_propagate_refuses_to_change_a_frozen_prefix() -> None:
    f, named = layer()
    named["t"].compute_at(named["y"], 1)
    other = named["kept"]
    assert other.compute_at_pos == 1
    named["y"].split(1, 4)
    ln.propagate(named["y"])
    assert leaf(named["t"]) == "i:I i:ceildiv(J, 4) i:4"
    assert_computes(f, random(3, 6), random(6))
    g, tensors = layer()
    tensors["t"].compute_at(tensors["total"], 1)
    tensors["y"].split(0, 4)
    before = state(g)
    with pytest.raises(
        ln.ScheduleError, match=r"^propagate\(y, -1\): it would change the leading 1"
    ):
        ln.propagate(tensors["y"])
    assert state(g) == before


def test_parallelize_like_gives_corresponding_axes_their_types() -> None:
    f, named = layer()
    y = named["y"]
    y.split(1, 4)
    ln.propagate(y)
    y.parallelize({0: PT.grid_x, 2: PT.unroll})
    ln.parallelize_like(y)
    for name in ("t", "total", "kept"):
        types = [axis.parallel for axis in named[name].leaf_domain]
        assert types == [PT.grid_x, PT.serial, PT.unroll], name
    assert [axis.parallel for axis in named["x"].leaf_domain] == [PT.serial, PT.serial]
    named["total"].axis(2).parallelize(PT.serial)
    f.inline_most()
    assert_computes(f, random(3, 6), random(6))


def test_parallelize_like_of_some_tensors() -> None:
    _, named = layer()
    named["y"].axis(0).parallelize(PT.grid_x)
    ln.parallelize_like(named["y"], [named["t"]])
    assert named["t"].axis(0).parallel is PT.grid_x
    assert named["total"].axis(0).parallel is PT.serial
    ln.parallelize_like(named["y"], named["total"])  # type: ignore[arg-type]
    assert named["total"].axis(0).parallel is PT.grid_x


def test_parallelize_like_passes_permutations_and_merges() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        t = ln.exp(x)
        y = f.output(ln.permute(t, (1, 0)), "y")
    y.parallelize({0: PT.block_x, 1: PT.block_y})
    ln.parallelize_like(y)
    assert [a.parallel for a in t.leaf_domain] == [PT.block_y, PT.block_x]
    assert_computes(f, random(3, 4))


def test_parallelize_like_refuses_a_launch_dimension_twice() -> None:
    f, named = layer()
    named["t"].axis(1).parallelize(PT.grid_x)
    named["y"].axis(0).parallelize(PT.grid_x)
    before = state(f)
    with pytest.raises(ln.ScheduleError) as caught:
        ln.parallelize_like(named["y"])
    assert str(caught.value) == (
        "parallelize_like(y): axes 0 and 1 of t would both be grid_x; "
        "one axis of a tensor may have a launch dimension"
    )
    assert state(f) == before


BAD: list[tuple[Callable[[ln.TensorView, ln.TensorView], object], str]] = [
    (lambda x, y: ln.propagate(y, 3), "propagate(y, 3): position 3 is out of range; y has the leaf "
     "axes [i0, i1], so use -3..2"),
    (lambda x, y: ln.propagate(y, -4), "propagate(y, -4): position -4 is out of range; y has the "
     "leaf axes [i0, i1], so use -3..2"),
    (lambda x, y: ln.propagate(y, 1.5), "propagate(y, 1.5): position 1.5 is not an int; "  # type: ignore[arg-type]
     "a position counts leading leaf axes, or names the innermost of them"),
    (lambda x, y: ln.propagate(x), "propagate(x, -1): x is an input, which has no loops of its "
     "own; only cache_after and compute_at apply to inputs"),
    (lambda x, y: ln.propagate("y"), "propagate('y'): it is no TensorView"),  # type: ignore[arg-type]
    (lambda x, y: ln.parallelize_like(x), "parallelize_like(x): x is an input, which has no loops "
     "of its own; only cache_after and compute_at apply to inputs"),
    (lambda x, y: ln.parallelize_like(None), "parallelize_like(None): it is no TensorView"),  # type: ignore[arg-type]
    (lambda x, y: ln.parallelize_like(y, 3), "parallelize_like(y, 3): 3 is no list of TensorViews"),  # type: ignore[arg-type]
    (lambda x, y: ln.parallelize_like(y, [x, 3]), "parallelize_like: 3 is no TensorView of the "  # type: ignore[list-item]
     "same fusion; give TensorViews"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD, ids=[m.split(":")[0] for _, m in BAD])
def test_bad_arguments_are_named_and_change_nothing(
    call: Callable[[ln.TensorView, ln.TensorView], object], message: str
) -> None:
    f, named = layer()
    before = state(f)
    with pytest.raises(ln.ScheduleError, match=f"^{re.escape(message)}$"):
        call(named["x"], named["y"])
    assert state(f) == before


def forked() -> tuple[ln.Fusion, list[ln.TensorView]]:
    """Return u = 2 x, a = u + 1 and s = the sums of x by row, which only the input x connects."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        u = ln.mul(x, 2.0).named("u")
        a = f.output(u + 1.0, "a")
        s = f.output(ln.sum(x, axis=1), "s")
    return f, [x, u, a, s]


def test_propagate_passes_through_inputs() -> None:
    f, (x, u, a, s) = forked()
    a.split(1, 4).split(0, 2)
    ln.propagate(a)
    assert leaf(u) == "i:ceildiv(I, 2) i:2 i:ceildiv(J, 4) i:4"
    assert leaf(s) == "i:ceildiv(I, 2) i:2 r:ceildiv(J, 4) r:4"
    assert leaf(x) == "i:I i:J"
    a.parallelize({0: PT.grid_x, 2: PT.unroll})
    ln.parallelize_like(a)
    assert [axis.parallel for axis in s.leaf_domain] == [PT.grid_x, PT.serial, PT.unroll, PT.serial]
    assert [axis.parallel for axis in x.leaf_domain] == [PT.serial, PT.serial]
    s.axis(2).parallelize(PT.serial)
    f.inline_most()
    assert_computes(f, random(5, 6))


def test_an_input_is_passed_only_where_nothing_else_leads() -> None:
    """The maximum is reached through its broadcast, though the input would keep its other axis."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        most = ln.max(x, axis=1, keepdims=True)
        y = f.output(x - most, "y")
    y.split(1, 4).split(0, 2)
    ln.propagate(y)
    assert most.reduction is not None
    assert leaf(most.reduction) == "i:ceildiv(I, 2) i:2 r:J"


def test_propagate_to_some_tensors() -> None:
    f, (_, u, a, s) = forked()
    a.split(0, 2)
    ln.propagate(a, -1, [u])
    assert (leaf(u), leaf(s)) == ("i:ceildiv(I, 2) i:2 i:J", "i:I r:J")
    ln.propagate(a, tensors=[s, u])
    assert leaf(s) == "i:ceildiv(I, 2) i:2 r:J"
    assert_computes(f, random(5, 6))


FAR: list[tuple[Callable[[list[ln.TensorView]], object], str]] = [
    (lambda t: (t[2].merge(0), ln.propagate(t[2])),
     "propagate(a, -1): a merge of these loops would join iteration and reduction axes of s; an "
     "iteration axis merges with iteration or broadcast axes only, or name the tensors that shall "
     "have the loops of a by tensors=[...], since an input alone connects it to others"),
    (lambda t: ln.propagate(t[2], -1, [t[0]]),
     "propagate(a, -1, [x]): x is an input, which has no loops of its own; only cache_after and "
     "compute_at apply to inputs"),
    (lambda t: ln.propagate(t[2], -1, [t[3]]),
     "propagate(a, -1, [s]): no path over the given tensors and inputs leads from a to s; give the "
     "tensors between them too"),
    (lambda t: ln.propagate(t[2], -1, 3),  # type: ignore[arg-type]
     "propagate(a, 3): 3 is no list of TensorViews"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), FAR, ids=["merge", "input", "apart", "no list"])
def test_what_propagate_cannot_reach_is_said(
    call: Callable[[list[ln.TensorView]], object], message: str
) -> None:
    _, tensors = forked()
    with pytest.raises(ln.ScheduleError, match=f"^{re.escape(message)}$"):
        call(tensors)
    assert leaf(tensors[1]) == "i:I i:J"
