"""Wrong windows, borders and joins are not proved: mutants of what reads at other indices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import loopnest as ln
from loopnest.proofs.verifier import verify_program
from mutation.mutants import mutants

PT = ln.ParallelType


def padded(f: ln.Fusion) -> ln.TensorView:
    return ln.pad(f.input("x", ("N", 6), ln.float32), ((1, 2), (-1, 1)), value=3)


def spread(f: ln.Fusion) -> ln.TensorView:
    return ln.pad(f.input("x", (5,), ln.float32), [(2, 2)], interior=1)


def joined(f: ln.Fusion) -> ln.TensorView:
    x, z = f.input("x", ("N",), ln.float32), f.input("z", ("M",), ln.float32)
    return ln.concatenate([x, z, x])


def turned(f: ln.Fusion) -> ln.TensorView:
    return ln.roll(f.input("x", (4, "N"), ln.float32), 2, 0)[:, ::-2]


def stencil(f: ln.Fusion) -> ln.TensorView:
    x = f.input("x", ("N",), ln.float32)
    return x[2:] - x[:-2]


def smoothed(f: ln.Fusion) -> ln.TensorView:
    x, w = f.input("x", (2, 3, "N"), ln.float32), f.input("w", (4, 3, 3), ln.float32)
    return ln.conv(x, w, stride=2, padding=1)


def heads(f: ln.Fusion) -> ln.TensorView:
    x, b = f.input("x", ("N", 10), ln.float32), f.input("b", (5,), ln.float32)
    return ln.permute(ln.reshape(-x, ("N", 2, 5)) + b, (1, 0, 2))


def strided(f: ln.Fusion) -> ln.TensorView:
    x = f.input("x", ("N", 10), ln.float32, strides=(1, "S"))
    return ln.reshape(ln.reshape(x, ("N", 5, 2)) * 2.0, ("N", 10))


SAME = {
    turned: [  # where there is a result there is an element that it reads, and the reverse
        f"{kind}{test}{rest}"
        for test in ("'i1 * 4 + i2 < ceildiv(N, 2)'", "'i1 * 8 + i2 * 2 + 1 <= N'")
        for kind, rest in [("drop ", ""), ("weaken ", ""), ("", " without i1"), ("", " without i2")]
    ],
    smoothed: [  # what is outside of the padded axis too is none that a window reads
        "drop 'i2 * 2 + i4 < N + 2'",
        "weaken 'i2 * 2 + i4 < N + 2'",
        "'i2 * 2 + i4 < N + 2' without i2",
        "'i2 * 2 + i4 < N + 2' without i4",
    ],
    spread: [  # element 1 is none for its parity, and no block ends within the border
        "mask: weaken '0 <= i0 * 4 + i1 - 2'",
        "mask: 'i0 * 2 + i1 // 2 - 1 < 5' without i1",
    ],
}
"""Mutants that compute the same."""


@pytest.mark.parametrize(
    "math", [padded, spread, joined, turned, stencil, smoothed, heads, strided]
)
def test_mutants_are_not_proved(math: Callable[[ln.Fusion], ln.TensorView]) -> None:
    with ln.Fusion("windows") as f:
        y = f.output(math(f), "y")
    y.split(y.ndim - 1 if math is not smoothed else 2, 4)
    f.inline_most()
    kernel = ln.lower(f)
    assert ln.verify(kernel).all_sizes
    lowered = kernel._lowered
    assert lowered.math is not None
    math_of = lowered.math()
    made = list(mutants(lowered.program, frozenset({"index", "predicate", "identity"})))
    assert len(made) > 6
    alive = [mutant.text for mutant in made if verify_program(mutant.program, math_of).ok]
    assert alive == SAME.get(math, [])


def test_mutants_of_tiles_are_not_proved() -> None:
    """Halos and bases off by one, tests dropped: but for what computes the same."""
    with ln.Fusion("tiles") as f:
        t = f.input("x", ("N",), ln.float32) * 2.0
        p = ln.pad(t, ((1, 1),))
        y = f.output(p[2:] - p[1:-1] * p[:-2], "y")
    y.split(0, 8)
    t.compute_at(y, 1)
    f.inline_most()
    lowered = ln.lower(f)._lowered
    assert lowered.math is not None
    math_of = lowered.math()
    made = list(mutants(lowered.program))
    assert {"loop i1 -1", "loop i2 -1"} <= {m.text for m in made}
    alive = {mutant.text for mutant in made if verify_program(mutant.program, math_of).ok}
    beyond = "'i0 * 8 + i2 < N + 2'"
    assert alive == {
        "loop i0 +1",  # a tile more, of which nothing is stored
        *(f"drop {beyond}", f"weaken {beyond}", f"{beyond} without i0", f"{beyond} without i2"),
        "swap two neighbours",
    }


@pytest.mark.parametrize("leading", [(2, 3), ("B", "C")])
@pytest.mark.parametrize("padding", [0, 2])
def test_merged_axes_in_front_of_a_window_are_proved_for_all_sizes(
    leading: tuple[int | str, ...], padding: int
) -> None:
    with ln.Fusion("k") as f:
        t = f.input("x", (*leading, "H", "W"), ln.float32)
        if padding:
            t = ln.pad(t, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
        y = f.output(t * 2.0, "y")
    y.merge(0)
    y.split(-1, 8)  # i * H * W + row * W + (outer * 8 + inner), with a test of the column
    y.split(-3, 8)
    f.inline_most()
    assert ln.verify(ln.lower(f)).all_sizes


@pytest.mark.parametrize(("start", "stop"), [(-3, -2), (1, 2)])
def test_which_of_two_equal_parts_is_read_follows_from_what_is_assumed(
    start: int, stop: int
) -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", 2), ln.float32)
        f.assume("N >= 3")
        t = x * 2.0
        f.output(ln.concatenate([t, t])[start:stop], "y")
    f.inline_most()
    kernel = ln.lower(f)
    assert "where" not in str(kernel)
    assert ln.verify(kernel).all_sizes
    lowered = kernel._lowered
    assert lowered.math is not None
    made = mutants(lowered.program, frozenset({"index"}))
    moved = [mutant for mutant in made if "load T1" in mutant.text]
    assert moved
    for mutant in moved:
        assert not verify_program(mutant.program, lowered.math()).ok, mutant.text
