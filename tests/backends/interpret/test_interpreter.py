"""The interpreter on hand-written nests: threads, memory, and every kind of fault."""

from __future__ import annotations

import numpy as np
import pytest

import loopnest as ln
from loopnest.backends.interpret import interpret
from loopnest.kir import parse as parse_nest
from loopnest.lane_machine import abstract_machine

F = np.float32


def run(text, sizes=None, scalars=None, thread_order=None, **arrays):
    """Interpret a nest on arrays; outputs are given as arrays of any content."""
    interpret(parse_nest(text), arrays, sizes or {}, scalars or {}, thread_order)


def fault(text, sizes=None, **arrays):
    with pytest.raises(ln.KernelFault) as caught:
        run(text, sizes, **arrays)
    return str(caught.value)


ROW_SUM = """
kernel row_sum(x: float32[N, D]) -> (y: float32[N])
for i0 in ceildiv(N, 4):  # grid_x
  for i1 in 4:  # block_y
    T2: float32[1] local
    T2[0] = 0.0
    if i0 * 4 + i1 < N:
      for i2 in D:
        T2[0] = T2[0] + x[i0 * 4 + i1, i2]
      y[i0 * 4 + i1] = T2[0]
"""


def serial_sums(x):
    result = np.zeros(len(x), F)
    for column in x.T:
        result = result + column
    return result


@pytest.mark.parametrize(("n", "d"), [(10, 7), (8, 5), (1, 1), (4, 0), (0, 3), (1000, 33)])
def test_threads_run_in_step_and_guards_hold(n, d):
    x, y = np.random.default_rng(0).random((n, d), F), np.full(n, np.nan, F)
    run(ROW_SUM, {"N": n, "D": d}, x=x, y=y)
    np.testing.assert_array_equal(y, serial_sums(x))


@pytest.mark.parametrize("seed", [0, 1])
def test_thread_order_runs_one_thread_after_another(seed):
    x, y = np.random.default_rng(0).random((10, 7), F), np.full(10, np.nan, F)
    run(ROW_SUM, {"N": 10, "D": 7}, thread_order=seed, x=x, y=y)
    np.testing.assert_array_equal(y, serial_sums(x))


def test_thread_order_depends_on_the_seed():
    text = """
    kernel last(x: float32[64]) -> (y: float32[1])
    for i0 in 64:  # block_x
      y[0] = x[i0]
    """
    found = set()
    for seed in range(6):
        y = np.zeros(1, F)
        run(text, thread_order=seed, x=np.arange(64, dtype=F), y=y)
        found.add(float(y[0]))
    assert len(found) > 1


# Faults: every sentence names statement, tensor, element, block, thread and loops


def test_read_out_of_bounds():
    text = ROW_SUM.replace("i0 * 4 + i1 < N", "i0 * 4 + i1 < 12")
    x = np.zeros((10, 7), F)
    assert fault(text, {"N": 10, "D": 7}, x=x, y=np.zeros(10, F)) == (
        "row_sum, nest line 9 'T2[0] = T2[0] + x[i0 * 4 + i1, i2]': T2 reads x[10, 0]: index 10 is "
        "out of bounds for axis 0 of buffer x (tensor x), which has extent 10; "
        "block (2, 0, 0), thread (0, 2, 0), i0=2, i1=2, i2=0"
    )


def test_write_out_of_bounds():
    text = """
    kernel shift(x: float32[N]) -> (y: float32[N])
    for i0 in N:
      y[i0 - 1] = x[i0]
    """
    assert fault(text, {"N": 5}, x=np.zeros(5, F), y=np.zeros(5, F)) == (
        "shift, nest line 4 'y[i0 - 1] = x[i0]': y writes y[-1]: index -1 is out of bounds for "
        "axis 0 of buffer y (tensor y), which has extent 5; "
        "block (0, 0, 0), thread (0, 0, 0), i0=0"
    )


def test_flat_access_out_of_bounds():
    text = """
    kernel flat(x: float32[N, D]) -> (y: float32[N])
    for i0 in N:
      y[i0] = x.flat[i0 * 4]
    """
    assert fault(text, {"N": 3, "D": 2}, x=np.zeros((3, 2), F), y=np.zeros(3, F)) == (
        "flat, nest line 4 'y[i0] = x.flat[i0 * 4]': y reads x.flat[8]: index 8 is out of bounds "
        "for buffer x (tensor x), which has extent 6; "
        "block (0, 0, 0), thread (0, 0, 0), i0=2"
    )


def test_load_of_an_undefined_element():
    text = """
    kernel half(x: float32[8]) -> (y: float32[8])
    for i0 in 2:  # grid_x
      for i1 in 4:  # block_x
        T1: float32[4] local
        for i2 in 3:
          T1[i2] = x[i0 * 4 + i2]
        y[i0 * 4 + i1] = T1[i1]
    """
    assert fault(text, x=np.zeros(8, F), y=np.zeros(8, F)) == (
        "half, nest line 8 'y[i0 * 4 + i1] = T1[i1]': y reads T1[3] of buffer T1 (tensor T1), "
        "which was never stored; block (0, 0, 0), thread (3, 0, 0), i0=0, i1=3"
    )


def test_allocate_makes_elements_undefined_again():
    text = """
    kernel again(x: float32[4]) -> (y: float32[4])
    for i0 in 4:
      T1: float32[1] local
      if i0 < 1:
        T1[0] = x[i0]
      y[i0] = T1[0]
    """
    for lanes in (1, abstract_machine.LANES):
        assert fault_with(lanes, text, x=np.zeros(4, F), y=np.zeros(4, F)) == (
            "again, nest line 7 'y[i0] = T1[0]': y reads T1[0] of buffer T1 (tensor T1), which was "
            "never stored; block (0, 0, 0), thread (0, 0, 0), i0=1"
        )


def fault_with(lanes, text, **arrays):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(abstract_machine, "LANES", lanes)
        return fault(text, **arrays)


def test_output_read_before_it_is_stored():
    text = """
    kernel early(x: float32[4]) -> (y: float32[4])
    for i0 in 4:
      y[i0] = y[i0] + x[i0]
    """
    assert fault(text, x=np.zeros(4, F), y=np.zeros(4, F)) == (
        "early, nest line 4 'y[i0] = y[i0] + x[i0]': y reads y[0] of buffer y (tensor y), which "
        "was never stored; block (0, 0, 0), thread (0, 0, 0), i0=0"
    )


def test_accumulation_into_an_undefined_element():
    text = """
    kernel lost(x: float32[N]) -> (y: float32[1])
    T1: float32[2] local
    T1[0] = 0.0
    for i0 in N:
      T1[1] = T1[1] + x[i0]
    y[0] = T1[1]
    """
    assert fault(text, {"N": 9}, x=np.zeros(9, F), y=np.zeros(1, F)) == (
        "lost, nest line 6 'T1[1] = T1[1] + x[i0]': T1 reads T1[1] of buffer T1 (tensor T1), which "
        "was never stored; block (0, 0, 0), thread (0, 0, 0), i0=0"
    )


def test_output_element_that_is_never_stored():
    text = """
    kernel gap(x: float32[N, 2]) -> (y: float32[N, 2])
    for i0 in N - 1:
      for i1 in 2:
        y[i0, i1] = x[i0, i1]
    """
    x = np.zeros((5, 2), F)
    assert fault(text, {"N": 5}, x=x, y=x.copy()) == (
        "gap: the kernel ended without storing y[4, 0] of buffer y (tensor y)"
    )


def test_condition_out_of_bounds():
    text = """
    kernel test(x: float32[4]) -> (y: float32[4])
    for i0 in 4:
      y[i0] = 0.0
      if x[i0 + 1] < 0.0:
        y[i0] = 1.0
    """
    assert fault(text, x=np.zeros(4, F), y=np.zeros(4, F)) == (
        "test, nest line 5 'if x[i0 + 1] < 0.0:': the condition reads x[4]: index 4 is out of "
        "bounds for axis 0 of buffer x (tensor x), which has extent 4; "
        "block (0, 0, 0), thread (0, 0, 0), i0=3"
    )


def test_barrier_that_some_threads_miss():
    text = """
    kernel diverge(x: float32[8]) -> (y: float32[8])
    for i0 in 2:  # grid_x
      for i1 in 4:  # block_x
        y[i0 * 4 + i1] = x[i0 * 4 + i1]
        if i0 * 4 + i1 < 6:
          barrier block
    """
    assert fault(text, x=np.zeros(8, F), y=np.zeros(8, F)) == (
        "diverge, nest line 7 'barrier block': this barrier is not reached by thread (2, 0, 0) of "
        "block (1, 0, 0), thread (3, 0, 0) of block (1, 0, 0); "
        "block (1, 0, 0), thread (0, 0, 0), i0=1, i1=0"
    )


def test_buffer_out_of_scope_is_our_own_fault():
    text = """
    kernel scope(x: float32[4]) -> (y: float32[4])
    for i0 in 4:
      T1: float32[1] local
      T1[0] = x[i0]
    for i1 in 4:
      y[i1] = T1[0]
    """
    with pytest.raises(
        ln.InternalError, match=r"^scope: buffer T1 is used where it is not allocated$"
    ):
        run(text, x=np.zeros(4, F), y=np.zeros(4, F))


# Memory


def test_blocks_have_shared_memory_of_their_own():
    text = """
    kernel reverse(x: float32[N]) -> (y: float32[N])
    for i0 in N // 8:  # grid_x
      T1: float32[8] shared
      for i1 in 8:  # block_x
        T1[i1] = x[i0 * 8 + i1]
        barrier block
        y[i0 * 8 + i1] = T1[7 - i1]
    """
    x = np.arange(24, dtype=F)
    y = np.zeros(24, F)
    run(text, {"N": 24}, x=x, y=y)
    np.testing.assert_array_equal(y, x.reshape(3, 8)[:, ::-1].ravel())


def test_workspace_is_watched():
    text = """
    kernel two(x: float32[N]) -> (y: float32[N])
    T1: float32[N] global
    for i0 in N - 1:
      T1[i0] = x[i0] * 2.0
    for i1 in N:
      y[i1] = T1[i1] + 1.0
    """
    assert fault(text, {"N": 4}, x=np.zeros(4, F), y=np.zeros(4, F)) == (
        "two, nest line 7 'y[i1] = T1[i1] + 1.0': y reads T1[3] of buffer T1 (tensor T1), which "
        "was never stored; block (0, 0, 0), thread (0, 0, 0), i1=3"
    )


def test_alias_overwrites_what_it_shares():
    text = """
    kernel share(x: float32[4]) -> (y: float32[4])
    T1: float32[4] local
    for i0 in 4:
      T1[i0] = x[i0]
    T2: float32[4] local = T1
    for i1 in 4:
      T2[i1] = T1[i1] + 1.0
    for i2 in 4:
      y[i2] = T2[i2]{rest}
    """
    x, y = np.arange(4, dtype=F), np.zeros(4, F)
    run(text.format(rest=""), x=x, y=y)
    np.testing.assert_array_equal(y, x + 1)
    assert "y reads T1[0] of buffer T1 (tensor T1), which was never stored" in fault(
        text.format(rest=" + T1[i2]"), x=x, y=y
    )


def test_in_place_output():
    text = """
    kernel step(p: float32[N], g: float32[N], rate: float32) -> (q: float32[N] in p)
    for i0 in N:
      p[i0] = p[i0] - rate * g[i0]
    """
    p, g = np.arange(5, dtype=F), np.ones(5, F)
    run(text, {"N": 5}, {"rate": 0.5}, p=p, g=g)
    np.testing.assert_array_equal(p, np.arange(5, dtype=F) - F(0.5))


def test_let_names_a_value():
    text = """
    kernel square(x: float32[N]) -> (y: float32[N])
    for i0 in N:
      let a = x[i0] + 1.0
      y[i0] = a * a
    """
    x, y = np.arange(5, dtype=F), np.zeros(5, F)
    run(text, {"N": 5}, x=x, y=y)
    np.testing.assert_array_equal(y, (x + 1) ** 2)


@pytest.mark.parametrize(
    "value",
    [
        "where(i0 < N - 1, x[i0 + 1], 0.0)",
        "where(not (i0 < N - 1), 0.0, x[i0 + 1])",
    ],
)
def test_a_load_under_a_false_condition_is_not_performed(value):
    text = f"""
    kernel next(x: float32[N]) -> (y: float32[N])
    for i0 in N:
      y[i0] = {value}
    """
    x, y = np.arange(5, dtype=F), np.zeros(5, F)
    run(text, {"N": 5}, x=x, y=y)
    np.testing.assert_array_equal(y, [1, 2, 3, 4, 0])


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("i0 < 4 and x[i0 + 1] < 3.0", [1, 1, 0, 0, 0]),
        ("i0 > 3 or x[i0 + 1] > 2.0", [0, 0, 1, 1, 1]),
    ],
)
def test_a_load_behind_and_or_is_not_performed(condition, expected):
    text = f"""
    kernel test(x: float32[5]) -> (y: float32[5])
    for i0 in 5:
      y[i0] = 0.0
      if {condition}:
        y[i0] = 1.0
      else:
        pass
    """
    y = np.zeros(5, F)
    run(text, x=np.arange(5, dtype=F), y=y)
    np.testing.assert_array_equal(y, expected)
