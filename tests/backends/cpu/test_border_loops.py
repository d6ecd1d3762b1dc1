"""Loops in C that choose by their index what stands outside of a tensor, and become several."""

import re

import numpy as np
import pytest

import loopnest as ln
from helpers.printed_c import run_c
from loopnest.backends.cpu.c_printer import print_c
from loopnest.kir import parse as parse_nest

X = np.random.default_rng(5).standard_normal((3, 40)).astype(np.float32)


def loops_of(nest):
    """Return the heads of the loops along a row, and the text."""
    text = print_c(parse_nest(nest), prelude=False)
    return re.findall(r"for \(; (?:i0|i1) < (.*); \+\+i", text), text


def run(nest, x, **sizes):
    return run_c(parse_nest(nest), x=x, sizes=sizes)["y"]


PAD = """
    kernel k(x: float32[M, N]) -> (y: float32[M + 2, N + 3])
    for i0 in M + 2:
      for i1 in N + 3:
        y[i0, i1] = where(1 <= i0 and i0 <= M and 2 <= i1 and i1 < N + 2, x[i0 - 1, i1 - 2], 9.0)
    """


@pytest.mark.parametrize(("m", "n"), [(3, 40), (1, 1), (2, 0), (0, 4)])
def test_a_border_on_all_sides(m, n):
    stops, text = loops_of(PAD)
    assert stops == ["(1 <= i0 && i0 <= M ? 2 : N + 3)", "N + 2", "N + 3"]
    assert "simd" not in text
    assert text.count("= 9.0f;") == 2
    wanted = np.pad(X[:m, :n], ((1, 1), (2, 1)), constant_values=9)
    np.testing.assert_array_equal(run(PAD, X[:m, :n].copy(), M=m, N=n), wanted)


@pytest.mark.parametrize("n", [0, 1, 20, 40])
def test_every_second_element_lies_inside_from_a_quotient_on(n):
    nest = """
        kernel k(x: float32[N]) -> (y: float32[30])
        for i1 in 30:
          y[i1] = where(0 <= i1 * 2 - 7 and i1 * 2 - 7 < N, x[i1 * 2 - 7] * 2.0, -1.0)
        """
    x = X[0, :n].copy()
    place = np.arange(30) * 2 - 7
    inside = (place >= 0) & (place < n)
    wanted = np.where(inside, 2 * np.resize(np.r_[x, 0], 60)[place], -1)
    np.testing.assert_array_equal(run(nest, x, N=n), wanted)


def test_an_index_that_falls_holds_up_to_a_bound():
    nest = """
        kernel k(x: float32[N]) -> (y: float32[N + 4])
        for i1 in N + 4:
          y[i1] = where(0 <= N - 1 - i1, x[N - 1 - i1], 0.0)
        """
    stops, _ = loops_of(nest)
    assert stops == ["0", "N", "N + 4"]
    np.testing.assert_array_equal(run(nest, X[0], N=40), np.r_[X[0, ::-1], np.zeros(4)])


def test_of_two_borders_the_middle_alone_has_no_test():
    """The sides keep both: one may hold where the other fails."""
    nest = """
        kernel k(x: float32[N]) -> (y: float32[N])
        for i1 in N:
          y[i1] = where(1 <= i1, x[i1 - 1], 0.0) + where(i1 + 1 < N, x[i1 + 1], 0.0)
        """
    stops, text = loops_of(nest)
    assert stops == ["ln_min_i64(1, N)", "N - 1", "N"]
    assert text.count("?") == 4
    wide = np.pad(X[0], 1)
    np.testing.assert_array_equal(run(nest, X[0], N=40), wide[:-2] + wide[2:])


def test_iterations_behind_a_test_of_the_whole_loop_are_cut_too():
    nest = """
        kernel k(x: float32[N]) -> (y: float32[M])
        for i1 in M:
          if i1 < N + 2:
            y[i1] = where(2 <= i1, x[i1 - 2], 1.0)
          else:
            y[i1] = 5.0
        """
    stops, _ = loops_of(nest)
    assert len(stops) == 3
    wanted = np.r_[1, 1, X[0], np.full(8, 5)]
    np.testing.assert_array_equal(run(nest, X[0], N=40, M=50), wanted)


def test_a_loop_that_ends_inside_of_the_border_stops_there():
    nest = """
        kernel k(x: float32[N]) -> (y: float32[M])
        for i1 in M:
          y[i1] = where(8 <= i1, x[i1 - 8], 1.0)
        """
    y = np.full(20, 7, np.float32)
    run_c(parse_nest(nest), x=X[0], y=y[:3], sizes={"M": 3})
    np.testing.assert_array_equal(y, np.r_[np.ones(3), np.full(17, 7)])


def test_sums_keep_their_order():
    nest = """
        kernel k(x: float32[N]) -> (y: float32[1])
        y[0] = 0.0
        for i1 in N + 2:
          y[0] = y[0] + where(1 <= i1 and i1 - 1 < N, x[i1 - 1], 1e8)
        """
    total = np.float32(0)
    for value in np.r_[1e8, X[0], 1e8].astype(np.float32):
        total = np.float32(total + value)
    assert run(nest, X[0], N=40)[0] == total


@pytest.mark.parametrize(
    "statement",
    [
        "y[i1] = where(x[i1] < 0.0, x[i1], 0.0)",  # data
        "y[i1] = where(i1 % 2 == 0, x[i1], 0.0)",  # no range
        "y[i1] = where(i1 * i1 < N, x[i1], 0.0)",
        "y[i1] = where(N < 4, x[i1], 0.0)",  # the same for all
        "y[i1] = where(i1 < 4, 1.0, 0.0)",  # nothing is loaded
    ],
)
def test_other_choices_stay_where_they_are(statement):
    nest = f"""
        kernel k(x: float32[N]) -> (y: float32[N])
        for i1 in N:
          {statement}
        """
    stops, text = loops_of(nest)
    assert not stops
    assert text.count("for (") == 1


def test_a_short_loop_is_left_to_be_unrolled():
    nest = """
        kernel k(x: float32[4]) -> (y: float32[5])
        for i1 in 5:
          y[i1] = where(1 <= i1, x[i1 - 1], 0.0)
        """
    assert not loops_of(nest)[0]


MERGED = """
    kernel k(x: float32[M, N]) -> (y: float32[M * N, N + 2])
    for i0 in M * N:
      for i1 in N + 2:
        y[i0, i1] = where(1 <= i0 % N and 1 <= i1 and i1 <= N, x[i0 // N, i1 - 1], 0.0)
    """


@pytest.mark.parametrize(("m", "n"), [(3, 40), (2, 1), (0, 4)])
def test_a_border_is_asked_for_where_loops_were_merged(m, n):
    """The loop around runs, over a multiple of the divisor: this is not 0."""
    stops, _ = loops_of(MERGED)
    assert stops == ["(1 <= i0 % N ? 1 : N + 2)", "N + 1", "N + 2"]
    x = X[:m, :n].copy()
    wanted = np.zeros((m, n, n + 2), np.float32)
    wanted[:, 1:, 1:-1] = x[:, None]
    np.testing.assert_array_equal(run(MERGED, x, M=m, N=n), wanted.reshape(m * n, n + 2))


def test_a_divisor_that_may_be_zero_is_asked_in_the_loop():
    nest = """
        kernel k(x: float32[40], z: float32[N]) -> (y: float32[40, N])
        for i0 in 40:
          for i1 in N:
            y[i0, i1] = where(1 <= i0 % N and i1 < 30, x[i1], 0.0)
        """
    assert loops_of(nest)[0] == []
    z = np.zeros(0, np.float32)
    found = run_c(parse_nest(nest), x=X[0], z=z, sizes={"N": 0})["y"]
    assert found.shape == (40, 0)


@pytest.mark.parametrize("size", [0, 1, 2, 5])
def test_a_border_of_a_loop_that_runs_no_iteration(size):
    """The first iteration stands outside; where there is none it is not run."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("M",), ln.float32)
        f.output(ln.welford(x - ln.pad(x, [(1, -1)], 1), 0)[2], "n")
    f.inline_most()
    assert ln.compile(f, "c")(np.zeros(size, np.float32)) == size
