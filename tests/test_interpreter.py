"""The interpreter on hand-written nests: values, checks, and loops run side by side."""

from __future__ import annotations

import random
import re

import ml_dtypes
import numpy as np
import pytest

import loopnest as ln
from loopnest import dtypes
from loopnest.expr import OPS
from loopnest.interpreter import interpret, machine, scalar
from nest_text import parse_nest

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


def test_thread_order_refuses_barriers():
    text = """
    kernel meet(x: float32[4]) -> (y: float32[4])
    for i0 in 4:  # block_x
      y[i0] = x[i0]
    barrier block
    """
    message = (
        "interpret meet with thread_order: a random order of threads between barriers does not "
        "exist yet; leave thread_order out: all threads of a block then run in step"
    )
    with pytest.raises(ln.NotSupported, match=f"^{re.escape(message)}$"):
        run(text, thread_order=0, x=np.zeros(4, F), y=np.zeros(4, F))


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
    for lanes in (1, machine.LANES):
        assert fault_with(lanes, text, x=np.zeros(4, F), y=np.zeros(4, F)) == (
            "again, nest line 7 'y[i0] = T1[0]': y reads T1[0] of buffer T1 (tensor T1), which was "
            "never stored; block (0, 0, 0), thread (0, 0, 0), i0=1"
        )


def fault_with(lanes, text, **arrays):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "LANES", lanes)
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
        "diverge, nest line 7 'barrier block': 2 of the 4 threads of a block reach this barrier; "
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


# Values


def values(op, *arrays, dtype, result=None):
    out = scalar.apply(op, list(arrays), [dtype] * len(arrays), result or dtype)
    return np.asarray(out)


def test_every_operation_of_the_language_is_there():
    known = {*scalar.VALUE, *scalar.PREDICATE, "where", "cast"}
    assert known == set(OPS)


NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("op", "operands", "expected"),
    [
        ("min", ([1, NAN, 2], [NAN, 1, 3]), [NAN, NAN, 2]),
        ("max", ([1, NAN, 2], [NAN, 1, 3]), [NAN, NAN, 3]),
        ("mod", ([-7, 7, -7], [3, -3, -3]), [2, -2, -1]),
        ("floordiv", ([-7, 7, -7], [3, -3, -3]), [-3, -3, 2]),
        ("round", ([0.5, 1.5, 2.5, -0.5],), [0, 2, 2, -0.0]),
        ("trunc", ([1.7, -1.7],), [1, -1]),
        ("sigmoid", ([-1000, 0, 1000],), [0, 0.5, 1]),
        ("rsqrt", ([4, 0],), [0.5, INF]),
        ("reciprocal", ([4, 0],), [0.25, INF]),
        ("erf", ([0, INF, -INF],), [0, 1, -1]),
        ("pow", ([2, -8, 0], [0.5, 2, -1]), [np.sqrt(F(2)), 64, INF]),
    ],
)
def test_float_semantics(op, operands, expected):
    with np.errstate(all="ignore"):
        found = values(op, *[np.array(a, F) for a in operands], dtype=dtypes.float32)
    assert found.dtype == F
    np.testing.assert_array_equal(found, np.array(expected, F))


@pytest.mark.parametrize(
    ("op", "operands", "expected"),
    [
        ("add", ([2**31 - 1], [1]), [-(2**31)]),
        ("mul", ([2**16], [2**16]), [0]),
        ("neg", ([-(2**31)],), [-(2**31)]),
        ("abs", ([-(2**31)],), [-(2**31)]),
        ("floordiv", ([-7, 7, -(2**31), 5], [2, -2, -1, 0]), [-4, -4, -(2**31), 0]),
        ("mod", ([-7, 7, 5], [3, -3, 0]), [2, -2, 0]),
        ("pow", ([2, -1, 1, 3, 0], [31, -3, -5, -1, -1]), [-(2**31), -1, 1, 0, 0]),
        ("round", ([3],), [3]),
        ("bitnot", ([5],), [-6]),
        ("ceildiv", ([7, -7], [2, 2]), [4, -3]),
    ],
)
def test_int32_wraps_without_a_warning(op, operands, expected):
    with np.errstate(all="ignore"):
        found = values(op, *[np.array(a, np.int32) for a in operands], dtype=dtypes.int32)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, expected)


def test_comparisons_with_nan_are_false():
    nan, one = np.array([NAN], F), np.array([1], F)
    for op in ("lt", "le", "gt", "ge", "eq"):
        assert not values(op, nan, one, dtype=dtypes.float32, result=dtypes.bool_)
    assert values("ne", nan, one, dtype=dtypes.float32, result=dtypes.bool_)


def test_fma_rounds_once():
    a, b, c = F(1 + 2**-12), F(1 + 2**-12), F(-1 - 2**-11)
    found = values("fma", *[np.array([v]) for v in (a, b, c)], dtype=dtypes.float32)
    assert found == F(2**-24)
    assert F(F(a * b) + c) == 0
    wide = [np.array([v]) for v in (1 + 2**-30, 1 + 2**-30, -1 - 2**-29)]
    assert values("fma", *wide, dtype=dtypes.float64) == 2.0**-60


def test_index_arithmetic_is_exact():
    big = 2**62
    assert scalar.apply("mul", [big, 4], [dtypes.index] * 2, dtypes.index) == 2**64
    assert scalar.apply("floordiv", [-7, 2], [dtypes.index] * 2, dtypes.index) == -4
    assert scalar.apply("mod", [-7, 2], [dtypes.index] * 2, dtypes.index) == 1
    assert scalar.apply("ceildiv", [7, 2], [dtypes.index] * 2, dtypes.index) == 4


@pytest.mark.parametrize(
    ("value", "source", "target", "expected"),
    [
        ([2049.0, 65520.0], dtypes.float32, dtypes.float16, [2048, INF]),
        ([257.0, 1e39], dtypes.float64, dtypes.bfloat16, [256, INF]),
        # halfway between two bfloat16 after a rounding to float32, above it before
        ([1 + 2**-8 + 2**-30], dtypes.float64, dtypes.bfloat16, [1 + 2**-7]),
        ([1.9, -1.9], dtypes.float32, dtypes.int32, [1, -1]),
        ([2**33 + 5], dtypes.int64, dtypes.int32, [5]),
        ([0.5, 0.0, NAN], dtypes.float32, dtypes.bool_, [1, 0, 1]),
    ],
)
def test_conversions(value, source, target, expected):
    with np.errstate(all="ignore"):
        found = scalar.convert(np.array(value, source.numpy), source, target)
    assert found.dtype == target.numpy
    np.testing.assert_array_equal(found.astype(np.float64), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32", "int64", "bool"])
def test_store_rounds_to_the_type_of_the_buffer(dtype):
    text = f"""
    kernel store(x: float32[5]) -> (y: {dtype}[5])
    for i0 in 5:
      y[i0] = x[i0] * 1.5
    """
    target = {"bfloat16": ml_dtypes.bfloat16}.get(dtype, dtype)
    x, y = np.array([0, 1, 1.37, 999.3, -2.71], F), np.zeros(5, target)
    run(text, x=x, y=y)
    np.testing.assert_array_equal(y, (x * F(1.5)).astype(target))


def test_half_loads_are_cast():
    text = """
    kernel scale(x: float16[6], a: float16) -> (y: float16[6])
    for i0 in 6:
      y[i0] = float16(float32(x[i0]) * float32(a) + 0.1)
    """
    x, y = np.linspace(0, 3, 6).astype(np.float16), np.zeros(6, np.float16)
    run(text, {}, {"a": np.float16(1.1)}, x=x, y=y)
    expected = x.astype(F) * np.float16(1.1).astype(F) + F(0.1)
    np.testing.assert_array_equal(y, expected.astype(np.float16))


# Loops run side by side give what running them in order gives


def in_order(program, sizes, arrays):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "LANES", 1)
        interpret(program, arrays, sizes, {})


@pytest.mark.parametrize("lanes", [16384, 64, 10])
@pytest.mark.parametrize(
    "body",
    [
        "T1[0] = T1[0] + x[i0, i1]",
        "T1[0] = max(x[i0, i1], T1[0])",
        "T1[0] = T1[0] * 0.5 + x[i0, i1]",
        "T1[i1 % 2] = T1[i1 % 2] * x[i0, i1]",
    ],
)
def test_accumulation_keeps_the_order_of_the_program(body, lanes, monkeypatch):
    text = f"""
    kernel fold(x: float32[N, D]) -> (y: float32[2])
    T1: float32[2] local
    T1[0] = 1.0
    T1[1] = 1.0
    for i0 in N:
      for i1 in D:
        {body}
    for i2 in 2:
      y[i2] = T1[i2]
    """
    program = parse_nest(text)
    x = np.random.default_rng(1).random((13, 37), F) + F(0.5)
    expected, found = np.zeros(2, F), np.zeros(2, F)
    in_order(program, {"N": 13, "D": 37}, {"x": x, "y": expected})
    monkeypatch.setattr(machine, "LANES", lanes)
    interpret(program, {"x": x, "y": found}, {"N": 13, "D": 37}, {})
    np.testing.assert_array_equal(found, expected)


def expands(body):
    """Return whether the interpreter runs the loop over i0 side by side."""
    from loopnest.interpreter.dependence import LoopAnalysis
    from loopnest.interpreter.setting import Setting

    head = "kernel k(x: float32[64]) -> (y: float32[64], z: float32[8, 8])\nfor i0 in 8:\n"
    program = parse_nest(head + body)
    return LoopAnalysis(program.body[0], Setting(program, {})).expansion() is not None


@pytest.mark.parametrize(
    ("body", "independent"),
    [
        ("  y[i0] = x[i0]", True),
        ("  y[7 - i0] = x[i0]", True),
        ("  y[0] = x[i0]", False),
        ("  y[i0] = y[i0 + 1]", False),
        ("  y[i0 // 2] = x[i0]", False),
        ("  y[i0 // 2 * 2 + i0 % 2] = x[i0]", True),
        ("  z[i0 // 4, i0 % 4] = x[i0]", True),
        ("  z[i0 // 4, i0 % 2] = x[i0]", False),
        ("  for i1 in 8:\n    y[i0 * 8 + i1] = x[i1]", True),
        ("  for i1 in 8:\n    y[i1 * 8 + i0] = x[i1]", True),
        ("  for i1 in 9:\n    y[i0 * 8 + i1] = x[i1]", False),
        ("  for i1 in 5:\n    z[(i0 * 5 + i1) // 8, (i0 * 5 + i1) % 8] = x[i1]", True),
        ("  for i1 in 8:\n    y[i0 * 8 + i1] = x[i1]\n    y[i0 * 8] = 1.0", True),
        ("  for i1 in 8:\n    y[i0 * 8 + i1] = y[i1]", False),
        ("  T1: float32[1] local\n  T1[0] = x[i0]\n  y[i0] = T1[0]", True),
        ("  y[3] = y[3] + x[i0]", True),  # folds
        ("  y[3] = y[3] + y[4]", False),
        ("  y[3] = y[3] + x[i0]\n  y[4] = x[i0]", False),
        ("  z[i0, 0] = 1.0\n  z.flat[i0 * 8 + 1] = z[i0, 0]", True),
        ("  barrier block\n  y[i0] = x[i0]", False),
    ],
)
def test_which_loops_run_side_by_side(body, independent):
    assert expands(body) == independent


class RandomNest:
    """A nest of random loops and statements on two outputs, stored before."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.loops = 0
        head = [
            "kernel k(x: float32[64]) -> (y: float32[64], z: float32[8, 8])",
            "for q in 64:\n  y[q] = x[q]",
            "for q0 in 8:\n  for q1 in 8:\n    z[q0, q1] = 1.0",
        ]
        self.text = "\n".join([*head, *self.body(0, [], ["x", "y", "z"])])

    def index(self, variables):
        if not variables:
            return str(self.random.randint(0, 7))
        a, b, c = (self.random.choice(variables) for _ in range(3))
        m, d = self.random.choice([2, 3, 4, 8]), self.random.choice([2, 3, 4])
        forms = [
            a, f"{a} * {m} + {b}", f"({a} * {m} + {b}) // {d}", f"({a} * {m} + {b}) % {d}",
            f"{m * 3} - {a}", f"{a} // {d} * {m} + {b} % {d}", f"{a} + {b} * {m} + {c} * {m * d}",
        ]  # fmt: skip
        return self.random.choice(forms)

    def access(self, variables, buffers):
        buffer = self.random.choice(buffers)
        i, j = self.index(variables), self.index(variables)
        if buffer == "z":
            d = self.random.choice([2, 4, 8])
            if self.random.random() < 0.5:
                return f"z[({i}) // {d} % 8, ({i}) % {d}]"
            return f"z[({i}) % 8, ({j}) % 8]"
        return f"{buffer}[({i}) % {4 if buffer == 't' else 64}]"

    def statement(self, variables, buffers):
        written = [b for b in buffers if b != "x"]
        target = self.access(variables, written)
        if self.random.random() < 0.4:
            return f"{target} = {target} {self.random.choice('+*')} {self.access(variables, 'x')}"
        left, right = self.access(variables, buffers), self.access(variables, buffers)
        return f"{target} = {left} + {right} * 0.5"

    def body(self, depth, variables, buffers):
        lines, pad = [], "  " * depth
        for _ in range(self.random.randint(1, 2 if depth else 3)):
            if self.random.random() < 0.15 and "t" not in buffers:
                lines += [f"{pad}t: float32[4] local", *[f"{pad}t[{j}] = {j}.0" for j in range(4)]]
                buffers = [*buffers, "t"]
            kind = self.random.random()
            if kind < 0.45 and len(variables) < 3:
                self.loops += 1
                name = f"i{self.loops}"
                lines.append(f"{pad}for {name} in {self.random.choice([1, 2, 3, 4, 5, 8])}:")
                lines += self.body(depth + 1, [*variables, name], buffers)
            elif kind < 0.55 and variables:
                limit = self.random.choice([1, 3, 5, 8])
                lines.append(f"{pad}if {self.index(variables)} < {limit}:")
                lines += self.body(depth + 1, variables, buffers)
            else:
                lines.append(pad + self.statement(variables, buffers))
        return lines


@pytest.mark.parametrize("start", range(0, 200, 25))
def test_random_nests_give_the_same_side_by_side(start, monkeypatch):
    x = np.random.default_rng(0).random(64, F) * F(1.5)
    for seed in range(start, start + 25):
        nest = RandomNest(seed).text
        program = parse_nest(nest)
        found = []
        for lanes in (1, 16384, 64, 12):
            y, z = np.zeros(64, F), np.zeros((8, 8), F)
            monkeypatch.setattr(machine, "LANES", lanes)
            interpret(program, {"x": x, "y": y, "z": z}, {}, {})
            found.append((y.tobytes(), z.tobytes()))
        assert found.count(found[0]) == len(found), f"RandomNest({seed}):\n{nest}"


# Found by tests that ran longer


def test_fold_within_a_loop_whose_own_nested_loops_limit_it(monkeypatch):
    text = """
    kernel k(x: float32[64]) -> (y: float32[4], z: float32[8])
    for q in 4:
      y[q] = 1.0
    for q in 8:
      z[q] = 1.0
    for i1 in 8:
      for i2 in 2:
        for i3 in 5:
          z[i1] = z[i1] * x[i3]
        y[i1 % 4] = y[i1 % 4] + x[i2 + i1 * 7]
    """
    program = parse_nest(text)
    x = np.random.default_rng(0).random(64, F)
    found = []
    for lanes in (1, 64):
        y, z = np.zeros(4, F), np.zeros(8, F)
        monkeypatch.setattr(machine, "LANES", lanes)
        interpret(program, {"x": x, "y": y, "z": z}, {}, {})
        found.append((y.tobytes(), z.tobytes()))
    assert found[0] == found[1]


def test_speed_does_not_depend_on_where_the_parallelism_is():
    """Loops without launch dimensions are run side by side: well beyond 10^6 stores a second."""
    text = """
    kernel gemm(a: float32[M, K], b: float32[K, N]) -> (c: float32[M, N])
    for i0 in M:
      for i1 in N:
        T2: float32[1] local
        T2[0] = 0.0
        for i2 in K:
          T2[0] = T2[0] + a[i0, i2] * b[i2, i1]
        c[i0, i1] = T2[0]
    """
    rng = np.random.default_rng(0)
    a, b, c = rng.random((128, 32), F), rng.random((32, 128), F), np.zeros((128, 128), F)
    run(text, {"M": 128, "N": 128, "K": 32}, a=a, b=b, c=c)
    np.testing.assert_allclose(c, a @ b, rtol=32 * 2**-23)
