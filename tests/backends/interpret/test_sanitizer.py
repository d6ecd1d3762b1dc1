"""The sanitizing interpreter: races, missing barriers, misaligned vectors, each named in full."""

from __future__ import annotations

import numpy as np
import pytest

import loopnest as ln
from helpers.thread_nests import (
    GRID_STEP,
    GRID_SUM,
    IN_WARPS,
    NEIGHBOURS,
    TWO_USES,
    block_sum,
    tiled_gemm,
    without,
)
from helpers.work import calls
from loopnest.backends.interpret import Interpreter, interpret
from loopnest.kir import parse as parse_nest
from loopnest.lane_machine import abstract_machine, race_detector
from loopnest.scalar import dtypes
from loopnest.scalar.expr import Op, Symbol, integer

F = np.float32


def arrays(program, sizes):
    """Return arrays of ones for the inputs and outputs."""
    from loopnest.lane_machine.concrete_program import ConcreteProgram

    layouts = ConcreteProgram(program, sizes).layouts
    return {
        p.name: np.ones(layouts[p.buffer].shape, p.dtype.numpy)
        for p in program.params
        if p.kind in ("input", "output")
    }


def run(text, sizes=None, order=None):
    program = parse_nest(text)
    held = arrays(program, sizes or {})
    interpret(program, held, sizes or {}, {}, order)
    return held


def fault(text, sizes=None):
    with pytest.raises(ln.KernelFault) as caught:
        run(text, sizes)
    return str(caught.value)


# Barriers that are missing


@pytest.mark.parametrize("threads", [32, 33, 128])
def test_block_sum_without_its_barrier(threads):
    text = block_sum(threads)
    run(text)
    found = fault(without(text, "barrier block"))
    assert "total reads part[" in found
    assert "'part[i1 // 32] = v5', and no barrier orders the two" in found


def test_a_load_of_what_a_neighbour_stores():
    assert fault(without(NEIGHBOURS, "barrier block", 0), {"K": 2}) == (
        "neighbours, nest line 7 'y[i1, i0] = s[(i0 + 1) % 64]': y reads s[1] of buffer s (tensor "
        "s), which thread (1, 0, 0) writes at nest line 6 's[i0] = x[i1, i0]', and no barrier "
        "orders the two; block (0, 0, 0), thread (0, 0, 0), i0=0, i1=0"
    )


def test_a_store_over_what_a_neighbour_loads_in_the_iteration_before():
    text = without(NEIGHBOURS, "barrier block", 1)
    run(text, {"K": 1})
    assert fault(text, {"K": 2}) == (
        "neighbours, nest line 6 's[i0] = x[i1, i0]': s writes s[0] of buffer s (tensor s), which "
        "thread (63, 0, 0) reads at nest line 8 'y[i1, i0] = s[(i0 + 1) % 64]', and no barrier "
        "orders the two; block (0, 0, 0), thread (0, 0, 0), i0=0, i1=1"
    )


def test_a_barrier_of_the_warp_does_not_order_warps():
    found = fault(NEIGHBOURS.replace("barrier block", "barrier warp"), {"K": 2})
    assert "y reads s[32] of buffer s (tensor s), which thread (32, 0, 0) writes" in found
    assert "thread (31, 0, 0), i0=31, i1=0" in found


@pytest.mark.parametrize("number", [0, 1])
def test_warps_need_their_own_barriers(number):
    run(IN_WARPS, {"K": 3})
    assert "no barrier orders the two" in fault(without(IN_WARPS, "barrier warp", number), {"K": 3})


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "a reads s[63] of buffer s (tensor s), which thread (63, 0, 0) writes"),
        (1, "u writes u[0] of buffer u (tensor u), which thread (63, 0, 0) reads at nest line 7"),
        (2, "y reads u[63] of buffer u (tensor u), which thread (63, 0, 0) writes"),
    ],
)
def test_buffers_that_share_a_space_race(number, words):
    assert words in fault(without(TWO_USES, "barrier block", number))


@pytest.mark.parametrize("dtype", ["int64", "int32", "float16", "bool"])
def test_elements_of_other_widths_share_bytes(dtype):
    text = f"""
    kernel widths(x: float32[8]) -> (y: float32[8])
    for i0 in 8:  # block_x
      s: float32[8] shared
      s[i0] = x[i0]
      let a = s[i0]
      y[i0] = a
      u: {dtype}[32] shared = s
      if i0 == 3:
        u[{{place}}] = {dtype}(x[0])
    """
    size = np.dtype(dtype).itemsize
    if size <= 4:  # then thread 3 has an element of its own
        run(text.format(place=12 // size))
    found = fault(text.format(place=16 // size))
    assert "u writes" in found
    assert "which thread (4, 0, 0) writes at nest line 5" in found


@pytest.mark.parametrize("lanes", [1 << 14, 1])
def test_blocks_race_wherever_they_run(lanes, monkeypatch):
    monkeypatch.setattr(abstract_machine, "LANES", lanes)
    text = GRID_SUM.replace("let last = arrive(count[0], B)", "let last = i0 == B - 1")
    run(text, {"B": 1})
    assert (
        "y reads blocks[0] of buffer blocks (tensor blocks), which thread (0, 0, 0) of block "
        "(0, 0, 0) writes at nest line 13 'blocks[i0] = blocks[i0] + s[i2]', and no barrier orders "
        "the two; block (2, 0, 0), thread (0, 0, 0), i0=2, i1=0, i3=0"
    ) in fault(text, {"B": 3})


def test_an_arrival_is_needed_by_the_stores_before_it_only():
    text = GRID_SUM.replace("    let last", "    blocks[i0] = s[0]\n    let last")
    assert "which thread (0, 0, 0) of block (0, 0, 0) writes" in fault(text, {"B": 3})
    text = GRID_SUM + "    if i1 == 0 and i0 == 0:\n      blocks[0] = 1.0\n"
    assert "no barrier orders the two" in fault(text, {"B": 3})


def test_a_barrier_of_the_block_does_not_order_blocks():
    run(GRID_STEP, {"B": 3})
    found = fault(GRID_STEP.replace("barrier grid", "barrier block"), {"B": 3})
    assert "y reads w[" in found
    assert "no barrier orders the two" in found


def test_the_middle_block_of_a_grid_step_needs_no_barrier_of_the_grid():
    run(GRID_STEP.replace("barrier grid", "barrier block"), {"B": 1})


def test_a_tiled_product_is_checked_for_all_threads_of_a_block_at_once():
    program = parse_nest(tiled_gemm(256, 256, 64))
    held = arrays(program, {})
    rng = np.random.default_rng(0)
    for array in held.values():
        array[...] = rng.integers(-9, 9, array.shape)
    # It has 8 million loads, and a call of Python for many of them.
    assert calls(lambda: interpret(program, held, {}, {})) < 200_000
    np.testing.assert_array_equal(held["c"], held["a"] @ held["b"])


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "sums reads ta["), (1, "ta writes ta[0, 0] of buffer ta (tensor ta), which")],
)
def test_a_tiled_product_needs_both_barriers(number, words):
    text = tiled_gemm(64, 64, 32)
    run(text)
    found = fault(without(text, "barrier block", number))
    assert words in found
    assert "no barrier orders the two" in found


# Accesses of one statement, equal values, loops


def body_of(*lines):
    """Return a nest in which 40 threads of 2 blocks run these lines."""
    head = [
        "kernel k(x: float32[2, 40]) -> (y: float32[2, 40])",
        "w: float32[128] global",
        "for b in 2:  # grid_x",
        "  for t in 40:  # block_x",
        "    s: float32[64] shared",
    ]
    return "\n".join([*head, *["    " + line for line in lines], "    y[b, t] = 1.0"])


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["s[0] = 1.0"], "s writes s[0]"),
        (["s[t // 2] = 1.0"], "s writes s[0]"),
        (["if t == 0:", "  s[5] = 1.0", "if t == 1:", "  s[5] = 1.0"], "thread (0, 0, 0)"),
        (["w[t] = 1.0"], "w writes w[0]"),
        (["for k in 2:", "  w[b * 64 + t + k] = 1.0"], "w writes w["),
        (["for k in 3:", "  s[t + k * 10] = 1.0"], "s writes s["),
    ],
)
def test_stores_of_one_value_race(lines, words):
    found = fault(body_of(*lines))
    assert words in found
    assert "writes in this statement" in found or "writes at nest line" in found


def test_a_race_inside_one_statement_says_so():
    assert fault(body_of("s[t // 2] = 1.0")) == (
        "k, nest line 7 's[t // 2] = 1.0': s writes s[0] of buffer s (tensor s), which thread "
        "(1, 0, 0) of block (0, 0, 0) writes in this statement, and no barrier orders the two; "
        "block (0, 0, 0), thread (0, 0, 0), b=0, t=0"
    )


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["s[t] = 1.0", "barrier block", "s[t] = s[(t + 1) % 40]"],
         "thread (39, 0, 0) of block (0, 0, 0) reads in this statement"),
        (["s[t] = 1.0", "barrier block", "let a = s[0]", "if t == 1:", "  s[0] = 2.0"],
         "and others of its block read at nest line 9"),
        (["s[t] = 1.0", "barrier block", "if t < 32:", "  let a = s[0]", "if t == 1:",
          "  s[0] = 2.0"], "and others of its warp read at nest line 10"),
        (["s[t] = 1.0", "barrier block", "if s[0] > 0.0:", "  s[t] = 2.0"],
         "read at nest line 9 'if s[0] > 0.0:'"),
        (["s[t] = 1.0", "barrier block", "let a = shuffle_xor(s[t // 32 * 32], 0)",
          "s[t] = 2.0"], "read at nest line 9 'let a = shuffle_xor(s[t // 32 * 32], 0)'"),
        (["if t < 20:", "  s[t] = 1.0", "else:", "  s[t - 20] = 2.0"],
         "s writes s[0] of buffer s (tensor s), which thread (0, 0, 0) of block (0, 0, 0) writes"),
        (["if t == 0 and b == 0:", "  w[0] = 1.0", "barrier block",
          "let a = where(b == 0, w[0], 1.0)", "if b == 1 and t == 3:", "  w[0] = 2.0"],
         "thread (3, 0, 0), b=1, t=3"),
    ],
)  # fmt: skip
def test_loads_race_with_stores(lines, words):
    found = fault(body_of(*lines))
    assert words in found
    assert found.split("; ")[0].endswith("and no barrier orders the two")


@pytest.mark.parametrize(
    "lines",
    [
        ["s[t] = 1.0", "s[t] = s[t] + 1.0", "for k in 3:", "  s[t] = s[t] + 1.0"],
        ["s[t] = 1.0", "barrier block", "let a = s[0]", "barrier block", "s[39 - t] = a"],
        ["s[t] = 1.0", "barrier block", "if t == 1:", "  s[0] = 2.0", "barrier block",
         "let a = s[0]", "let c = s[t]"],
        ["if t < 32:", "  s[t] = 1.0", "  barrier warp", "  let a = s[31 - t]", "  barrier warp",
         "  s[t] = 2.0"],
        ["if t < 20:", "  s[t] = 1.0", "else:", "  s[t] = 2.0"],
        ["w[b * 64 + t] = 1.0", "barrier block", "let a = w[b * 64 + 39 - t]"],
        ["for k in 4:", "  w[b * 64 + t] = 1.0", "  barrier block",
         "  let a = w[b * 64 + (t + k) % 40]", "  barrier block"],
        ["s[t] = x[b, t]", "if b == 1:", "  barrier block", "  let a = s[39 - t]"],
    ],
)  # fmt: skip
@pytest.mark.parametrize("lanes", [1 << 14, 1])
def test_what_is_ordered_does_not_race(lines, lanes, monkeypatch):
    monkeypatch.setattr(abstract_machine, "LANES", lanes)
    run(body_of(*lines))


def test_threads_that_accumulate_into_one_element_race():
    text = """
    kernel total(x: float32[64, K]) -> (y: float32[1])
    for i0 in 64:  # block_x
      if i0 == 0:
        y[0] = 0.0
      barrier block
      for i1 in K:
        y[0] = y[0] + x[i0, i1]
    """
    assert "which thread (63, 0, 0) writes in this statement" in fault(text, {"K": 4})


def test_a_log_that_is_full_enters_the_shadow(monkeypatch):
    monkeypatch.setattr(race_detector, "LOGGED", 100)
    text = body_of("s[t] = 1.0", "barrier block", "let a = s[39 - t]", "let c = s[t]", "s[t] = 2.0")
    assert "which it and others of its block read at nest line 10 'let c = s[t]'" in fault(text)
    run(body_of("s[t] = 1.0", "barrier block", "let c = s[t]", "let a = s[t] + c", "s[t] = a"))


def test_races_may_be_left_alone():
    program = parse_nest(body_of("s[0] = 1.0"))
    Interpreter(program, races=False).run(arrays(program, {}), {}, {})


# The same by running threads in a random order


RACES = [
    (block_sum(33), "barrier block", 0),
    (block_sum(128), "barrier block", 0),
    (NEIGHBOURS, "barrier block", 0),
    (NEIGHBOURS, "barrier block", 1),
    (IN_WARPS, "barrier warp", 0),
    (IN_WARPS, "barrier warp", 1),
    (TWO_USES, "barrier block", 0),
    (TWO_USES, "barrier block", 1),
    (TWO_USES, "barrier block", 2),
    (GRID_STEP, "barrier grid", 0),
    (GRID_SUM, "barrier block", 0),
]


def differs(text, sizes, order):
    """Return whether a run in this order ends in a fault or in other results than in step."""
    program = parse_nest(text)
    results = []
    for seed in (None, order):
        held = arrays(program, sizes)
        rng = np.random.default_rng(0)
        for array in held.values():
            array[...] = rng.integers(0, 99, array.shape)
        try:
            Interpreter(program, races=False).run(held, sizes, {}, seed)
        except ln.KernelFault:
            return True
        results.append([a.tobytes() for a in held.values()])
    return results[0] != results[1]


@pytest.mark.parametrize(("text", "line", "number"), RACES)
def test_a_random_order_shows_what_the_detector_says(text, line, number):
    sizes = {"K": 3, "B": 4}
    program = parse_nest(text)
    sizes = {p.name: sizes[p.name] for p in program.params if p.kind == "size"}
    assert not any(differs(text, sizes, order) for order in range(8))
    assert any(differs(without(text, line, number), sizes, order) for order in range(8))
    fault(without(text, line, number), sizes)


# Vectors


VECTOR = """
kernel copy(x: float32[N, D]) -> (y: float32[N, D])
for i0 in N:  # block_x
  for i1 in D // 4:
    for i2 in 4:  # vectorize
      y[i0, i1 * 4 + i2] = x[i0, i1 * 4 + i2]
"""
D = Symbol("D")
DIVIDES = Op(
    "eq", (Op("mod", (D, integer(4)), dtypes.index), integer(0)), dtypes.bool_
)  # the launcher checks it; these tests do not ask the launcher


@pytest.mark.parametrize("lanes", [1 << 14, 1])
def test_a_misaligned_vector(lanes, monkeypatch):
    monkeypatch.setattr(abstract_machine, "LANES", lanes)
    program = parse_nest(VECTOR, conditions=(("D % 4 == 0", DIVIDES),))
    for d in (4, 8, 64):
        sizes = {"N": 3, "D": d}
        interpret(program, arrays(program, sizes), sizes, {})
    with pytest.raises(ln.KernelFault) as caught:
        interpret(program, arrays(program, {"N": 3, "D": 6}), {"N": 3, "D": 6}, {})
    assert str(caught.value) == (
        "copy, nest line 6 'y[i0, i1 * 4 + i2] = x[i0, i1 * 4 + i2]': misaligned vector access: y "
        "reads 16 bytes at x[1, 0] of buffer x (tensor x), 24 bytes from its start; "
        "block (0, 0, 0), thread (1, 0, 0), i0=1, i1=0, i2=0"
    )


def test_lanes_that_are_accessed_one_by_one_need_no_alignment():
    program = parse_nest(VECTOR)
    interpret(program, arrays(program, {"N": 3, "D": 4}), {"N": 3, "D": 4}, {})
    with pytest.raises(ln.KernelFault, match="the kernel ended without storing"):
        interpret(program, arrays(program, {"N": 3, "D": 6}), {"N": 3, "D": 6}, {})
