"""Axes that are equal by what is assumed of sizes share loops."""

from __future__ import annotations

import pytest

import loopnest as ln
from helpers.schedule_run import assert_computes, mapped, random


@pytest.mark.parametrize("assumed", ["N == K", "K == N"])
def test_axes_of_sizes_assumed_equal_share_loops(assumed: str) -> None:
    """One loop, one test, no tile with halo; without the assumption they do not even broadcast."""
    with ln.Fusion("k") as f:
        a = f.input("a", ("N", "D"), ln.float32)
        b = f.input("b", ("K", "D"), ln.float32)
        f.assume(assumed)
        t = ln.exp(b)
        y = f.output(a + t, "y")
    assert mapped(t, y) == {0: 0, 1: 1}
    y.merge(0).split(0, 4)
    t.compute_at(y, 2)
    kernel = ln.lower(f)
    assert str(kernel).count("if ") == 1
    assert not any("halo" in note.why for note in kernel.notes)
    for sizes in ({}, {"N": 3}, {"K": 3}, {"N": 3, "K": 3}):
        assert ln.verify(kernel, **sizes).ok
    assert ln.verify(kernel).all_sizes
    assert_computes(f, random(3, 5), random(3, 5))
    with pytest.raises(ln.LaunchError, match=assumed):
        ln.compile(kernel, target="interpret")(random(3, 5), random(2, 5))


@pytest.mark.parametrize("swapped", [False, True])
def test_axes_of_a_product_of_sizes_share_loops(swapped: bool) -> None:
    with ln.Fusion("k") as f:
        a = f.input("a", ("N",), ln.float32)
        b = f.input("b", ("T", "S"), ln.float32)
        f.assume("N == T * S")
        t = ln.reshape(b, (-1,))
        y = f.output(t + a if swapped else a + t, "y")
    y.split(0, 8)
    t.compute_at(y, 2)
    kernel = ln.lower(f)
    assert str(kernel).count("if ") == 1
    assert ln.verify(kernel).all_sizes
    assert_computes(f, random(12), random(4, 3))


def test_an_equation_that_is_assumed_after_a_tile_was_placed() -> None:
    """Axes that were placed as windows are equal ones from then on; the schedule stays good."""
    with ln.Fusion("k") as f:
        a = f.input("a", ("N",), ln.float32)
        count = f.symbol("K")
        t = ln.exp(a)
        y = f.output(t[:count] * 2.0, "y")
    y.split(0, 4)
    t.compute_at(y, 1)
    f.assume("N == K")
    assert ln.verify(ln.lower(f)).all_sizes
    (consumer,) = t.consumers
    assert mapped(t, consumer) == {0: 0}


def test_shapes_that_may_be_equal_name_the_assumption() -> None:
    with ln.Fusion("k") as f:
        a = f.input("a", ("N",), ln.float32)
        b = f.input("b", ("T", "S"), ln.float32)
        with pytest.raises(ln.DefinitionError) as caught:
            _ = a + ln.reshape(b, (-1,))
    assert str(caught.value) == (
        "add(a, T2): at axis -1 the extent of a is N, that of T2 is T * S; extents at one axis "
        "are equal (the same int or the same name), or one is a static 1; what is assumed before "
        "counts too, such as f.assume('N == T * S')"
    )


@pytest.mark.parametrize(
    "assumed", ["M == N + K", "N == M - K", "K == M - N", "M - K == N", "N - M == -K"]
)
def test_proofs_know_equations_however_they_are_written(assumed: str) -> None:
    """A product of a difference of sizes has an affine form as one of their sum."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("M", "D"), ln.float32)
        f.input("n", ("N",), ln.float32)
        f.input("k", ("K",), ln.float32)
        f.assume(assumed)
        t = ln.reshape(x * 2.0, ("N * D + K * D",))
        y = f.output(t + 1.0, "y")
    y.split(0, 128)
    ln.propagate(y)
    f.inline_most()
    assert ln.verify(ln.lower(f)).all_sizes
