"""Values that cross threads in the interpreter: shuffles, barriers, arrivals, shared memory."""

from __future__ import annotations

import re

import numpy as np
import pytest

import loopnest as ln
from helpers.thread_nests import GRID_STEP, GRID_SUM, IN_WARPS, NEIGHBOURS, TWO_USES, block_sum
from loopnest.backends.interpret import interpret
from loopnest.kir import parse as parse_nest
from loopnest.lane_machine import abstract_machine, concrete_program

F = np.float32
ORDERS = (None, 0, 1, 2)


def run(text, sizes=None, order=None, **arrays):
    interpret(parse_nest(text), arrays, sizes or {}, {}, order)


def fault(text, sizes=None, order=None, **arrays):
    with pytest.raises(ln.KernelFault) as caught:
        run(text, sizes, order, **arrays)
    return str(caught.value)


def numbers(*shape):
    """Return small integers, whose sums are exact in any order."""
    return np.random.default_rng(0).integers(-50, 50, shape).astype(F)


# Reductions and exchanges


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("threads", [1, 7, 32, 33, 64, 128, 1000])
def test_block_sum(threads, order):
    x, y = numbers(3, threads), np.full((3, threads), np.nan, F)
    run(block_sum(threads), order=order, x=x, y=y)
    np.testing.assert_array_equal(y, np.broadcast_to(x.sum(1, keepdims=True), y.shape))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (NEIGHBOURS, lambda x: np.roll(x, -1, axis=1)),
        (IN_WARPS, lambda x: np.hstack([x[:, 31::-1], x[:, 63:31:-1], x[:, :63:-1]])),
    ],
)
def test_exchange_through_shared_memory(text, expected, order):
    x = numbers(3, 64 if text is NEIGHBOURS else 70)
    y = np.full_like(x, np.nan)
    run(text, {"K": 3}, order, x=x, y=y)
    np.testing.assert_array_equal(y, expected(x))


@pytest.mark.parametrize("order", ORDERS)
def test_buffers_in_one_space(order):
    x, y = numbers(64), np.zeros(64, F)
    run(TWO_USES, order=order, x=x, y=y)
    np.testing.assert_array_equal(y, x[::-1])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("lanes", [1 << 14, 96, 1])
@pytest.mark.parametrize("blocks", [1, 2, 7])
def test_the_last_block_sums(blocks, lanes, order, monkeypatch):
    monkeypatch.setattr(abstract_machine, "LANES", lanes)
    x, y = numbers(blocks, 48), np.zeros(1, F)
    run(GRID_SUM, {"B": blocks}, order, x=x, y=y)
    assert y[0] == x.sum()


@pytest.mark.parametrize("order", ORDERS)
def test_an_empty_launch_is_as_if_its_last_block_ran(order):
    y = np.full(1, np.nan, F)
    text = """
    kernel nothing(x: float32[B]) -> (y: float32[1])
    blocks: float32[B] global
    count: int32[1] global
    for i0 in B:  # grid_x
      blocks[i0] = x[i0]
    let last = arrive(count[0], B)
    if last:
      y[0] = 0.0
      for i1 in B:
        y[0] = y[0] + blocks[i1]
    """
    run(text, {"B": 0}, order, x=np.zeros(0, F), y=y)
    assert y[0] == 0


@pytest.mark.parametrize("order", ORDERS)
def test_each_counter_has_a_last_block(order):
    text = """
    kernel groups(x: float32[12]) -> (y: float32[4], z: int32[1])
    w: float32[12] global
    groups: int32[4] global
    all: int32[1] global
    for i0 in 12:  # grid_x
      w[i0] = x[i0]
      let first = arrive(groups[i0 % 4], 3)
      if first:
        y[i0 % 4] = w[i0 % 4] + w[i0 % 4 + 4] + w[i0 % 4 + 8]
        let second = arrive(all[0], 4)
        if second:
          z[0] = int32(y[0] + y[1] + y[2] + y[3])
    """
    x, y, z = numbers(12), np.zeros(4, F), np.zeros(1, np.int32)
    run(text, order=order, x=x, y=y, z=z)
    np.testing.assert_array_equal(y, x.reshape(3, 4).sum(0))
    assert z[0] == x.sum()


def test_no_block_is_the_last_one_everywhere():
    """It may arrive last at one counter and earlier at another."""
    text = """
    kernel both(x: float32[4]) -> (y: float32[1])
    one: int32[1] global
    two: int32[1] global
    for i0 in 4:  # grid_x
      let a = arrive(one[0], 4)
      let b = arrive(two[0], 4)
      if a and b:
        y[0] = x[0]
    """
    with pytest.raises(ln.KernelFault, match="ended without storing y"):
        run(text, x=numbers(4), y=np.zeros(1, F))


@pytest.mark.parametrize("order", ORDERS)
def test_grid_barrier(order, monkeypatch):
    monkeypatch.setattr(abstract_machine, "LANES", 16)
    x, y = numbers(5, 8), np.zeros((5, 8), F)
    run(GRID_STEP, {"B": 5}, order, x=x, y=y)
    np.testing.assert_array_equal(y, x[::-1, ::-1])


def test_a_grid_barrier_of_too_many_blocks_is_refused(monkeypatch):
    monkeypatch.setattr(concrete_program, "TOGETHER", 1 << 20)
    message = (
        "interpret grid_step: its 600 blocks wait for each other, and together they take 1 MiB; "
        "use at most 1 MiB: fewer blocks, or smaller buffers"
    )
    with pytest.raises(ln.LaunchError, match=f"^{re.escape(message)}$"):
        run(GRID_STEP, {"B": 600}, x=numbers(600, 8), y=numbers(600, 8))


def test_warps_are_counted_through_all_dimensions():
    text = """
    kernel lanes(x: float32[3, 4, 5]) -> (y: float32[3, 4, 5])
    for i0 in 3:  # block_z
      for i1 in 4:  # block_y
        for i2 in 5:  # block_x
          let a = shuffle_lane(x[i0, i1, i2], 7)
          y[i0, i1, i2] = a
    """
    x, y = numbers(3, 4, 5), np.zeros((3, 4, 5), F)
    run(text, x=x, y=y)
    np.testing.assert_array_equal(y.ravel(), np.repeat(x.ravel()[[7, 39]], [32, 28]))


@pytest.mark.parametrize(
    ("call", "source"),
    [
        ("shuffle_xor(x[i0], 5)", lambda lane: lane ^ 5),
        ("shuffle_down(x[i0], 3)", lambda lane: lane + 3),
        ("shuffle_lane(x[i0], 2)", lambda lane: lane * 0 + 2),
        ("shuffle_lane(x[i0], i0 // 32)", lambda lane: lane * 0 + lane // 32),
    ],
)
def test_shuffle_modes(call, source):
    text = f"""
    kernel modes(x: int64[64]) -> (y: int64[64])
    for i0 in 64:  # block_x
      let a = {call}
      y[i0] = 0
      if i0 % 32 < 29:
        y[i0] = a
    """
    x, y = np.arange(64), np.zeros(64, np.int64)
    run(text, x=x, y=y)
    lane = np.arange(64)
    wanted = lane // 32 * 32 + source(lane) % 32
    if "i0 // 32" in call:
        wanted = np.repeat([0, 33], 32)
    np.testing.assert_array_equal(y, np.where(lane % 32 < 29, wanted, 0))


def test_what_a_loop_names_stays_a_value_of_its_iteration():
    text = """
    kernel scan(x: float32[K, 32]) -> (y: float32[K, 32])
    for i0 in 32:  # block_x
      for i1 in K:
        let a = shuffle_xor(x[i1, i0], 1)
        let b = shuffle_xor(a + x[i1, i0], 2)
        y[i1, i0] = b
    """
    x, y = numbers(4, 32), np.zeros((4, 32), F)
    run(text, {"K": 4}, x=x, y=y)
    pairs = x + x[:, np.arange(32) ^ 1]
    np.testing.assert_array_equal(y, pairs[:, np.arange(32) ^ 2])


# Undefined values


SHUFFLED = """
kernel edge(x: {dtype}[33]) -> (y: {dtype}[33])
for i0 in 33:  # block_x
  let a = shuffle_down(x[i0], 1)
  let b = a + x[i0]
  {use}
"""


@pytest.mark.parametrize("dtype", ["float32", "int32", "int64", "float16", "bool"])
def test_an_undefined_value_may_be_named_and_passed_over(dtype):
    use = "y[i0] = where(i0 % 32 + 1 < min(32, 33 - i0 // 32 * 32), a, x[i0])"
    x = (numbers(33) % 2).astype(dtype)
    y = np.zeros_like(x)
    run(SHUFFLED.format(dtype=dtype, use=use).replace("let b = a + x[i0]", "let b = a"), x=x, y=y)
    wanted = np.append(x[1:], x[32])
    wanted[31] = x[31]
    np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize(
    ("use", "what"),
    [
        ("y[i0] = b", "what is stored"),
        ("y[i0] = where(b < 3, x[i0], x[i0])", "what is stored"),
        ("y[max(min(index(b), 0), 0)] = 1", "what is stored"),
        ("if b < 5 and i0 < 99:", "the condition"),
        ("let c = shuffle_xor(x[i0], index(b))", "the offset"),
    ],
)
def test_an_undefined_value_decides_nothing(use, what):
    text = SHUFFLED.format(dtype="int32", use=use)
    if use.startswith("if"):
        text += "    y[i0] = x[i0]\n"
    assert fault(text, x=np.zeros(33, np.int32), y=np.zeros(33, np.int32)) == (
        f"edge, nest line 6 '{use}': {what} is undefined: it was shuffled from a thread that does "
        "not exist; block (0, 0, 0), thread (31, 0, 0), i0=31"
    )


def test_the_side_that_a_condition_does_not_choose_may_be_undefined():
    text = SHUFFLED.format(dtype="int32", use="if i0 % 32 < 31 and i0 < 32 and b > 0:")
    text += "    y[i0] = 1\n  else:\n    y[i0] = 0\n"
    x, y = np.ones(33, np.int32), np.zeros(33, np.int32)
    run(text, x=x, y=y)
    np.testing.assert_array_equal(y, np.arange(33) < 31)


def test_an_undefined_value_travels_through_shuffles():
    text = SHUFFLED.format(dtype="int32", use="let c = shuffle_lane(b, 0)").replace("33", "32")
    x, y = np.arange(32, dtype=np.int32), np.zeros(32, np.int32)
    run(text + "  y[i0] = c\n", x=x, y=y)
    np.testing.assert_array_equal(y, 1)
    text = text.replace("(b, 0)", "(b, 31)") + "  y[i0] = c\n"
    assert "thread (0, 0, 0), i0=0" in fault(text, x=x, y=y)


# Threads that do not come


def test_a_shuffle_that_a_thread_misses():
    text = """
    kernel some(x: float32[40]) -> (y: float32[40])
    for i0 in 40:  # block_x
      y[i0] = x[i0]
      if i0 < 39:
        let a = shuffle_xor(x[i0], 1)
    """
    assert fault(text, x=numbers(40), y=numbers(40)) == (
        "some, nest line 6 'let a = shuffle_xor(x[i0], 1)': this shuffle is not reached by thread "
        "(39, 0, 0); block (0, 0, 0), thread (32, 0, 0), i0=32"
    )


@pytest.mark.parametrize("order", ORDERS)
def test_whole_warps_may_take_a_branch_of_their_own(order):
    text = """
    kernel some(x: float32[40]) -> (y: float32[40])
    for i0 in 40:  # block_x
      if i0 < 32:
        let a = shuffle_lane(x[i0], 1)
        barrier warp
        y[i0] = a
      else:
        y[i0] = 0.0
    """
    x, y = numbers(40), numbers(40)
    run(text, order=order, x=x, y=y)
    np.testing.assert_array_equal(y, np.repeat([x[1], 0], [32, 8]))


def test_an_arrival_that_threads_miss():
    text = GRID_SUM.replace(
        "    let last", "    if i1 < 40:\n      let last0 = arrive(count[0], B)\n    let last"
    )
    assert "this arrival is not reached by thread (40, 0, 0), thread (41, 0, 0), " in fault(
        text, {"B": 1}, x=numbers(1, 48), y=numbers(1)
    )


def test_a_grid_barrier_that_a_block_misses():
    text = GRID_STEP.replace("    barrier grid", "    if i0 < 2:\n      barrier grid")
    assert (
        "this barrier is not reached by thread (0, 0, 0) of block (2, 0, 0), thread (1, 0, 0) of "
        "block (2, 0, 0), thread (2, 0, 0) of block (2, 0, 0), thread (3, 0, 0) of block (2, 0, 0) "
        "and 4 more; block (0, 0, 0), thread (0, 0, 0), i0=0, i1=0"
    ) in fault(text, {"B": 3}, x=numbers(3, 8), y=numbers(3, 8))


def test_offsets_that_differ_in_a_warp():
    text = """
    kernel some(x: float32[32]) -> (y: float32[32])
    for i0 in 32:  # block_x
      let a = shuffle_xor(x[i0], i0 // 16)
      y[i0] = a
    """
    assert fault(text, x=numbers(32), y=numbers(32)) == (
        "some, nest line 4 'let a = shuffle_xor(x[i0], i0 // 16)': the offset of a shuffle differs "
        "in a warp; block (0, 0, 0), thread (16, 0, 0), i0=16"
    )


# Counters


@pytest.mark.parametrize("order", ORDERS)
def test_a_counter_must_be_full_in_the_end(order):
    text = """
    kernel few(x: float32[3]) -> (y: float32[3])
    count: int32[2] global
    for i0 in 3:  # grid_x
      y[i0] = x[i0]
      let last = arrive(count[1], 4)
    """
    assert fault(text, order=order, x=numbers(3), y=numbers(3)) == (
        "few: the kernel ended with 3 in count[1] of buffer count (tensor count); as many blocks "
        "must arrive as the arrival counts"
    )


def test_more_blocks_than_a_counter_counts():
    text = """
    kernel many(x: float32[3]) -> (y: float32[3])
    count: int32[1] global
    for i0 in 3:  # grid_x
      y[i0] = x[i0]
      let last = arrive(count[0], 2 - i0)
    """
    assert fault(text, x=numbers(3), y=numbers(3)) == (
        "many, nest line 6 'let last = arrive(count[0], 2 - i0)': more than 1 blocks arrive at "
        "this counter; block (1, 0, 0), thread (0, 0, 0), i0=1"
    )


def test_counters_that_differ_in_a_block():
    text = """
    kernel mixed(x: float32[4]) -> (y: float32[4])
    count: int32[4] global
    for i0 in 4:  # block_x
      y[i0] = x[i0]
      let last = arrive(count[i0], 1)
    """
    assert "the counter differs in a block; block (0, 0, 0), thread (1, 0, 0), i0=1" in fault(
        text, x=numbers(4), y=numbers(4)
    )
