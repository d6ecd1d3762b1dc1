"""Functions of one side of a choice are computed only where some lane needs them."""

import numpy as np
import pytest

from helpers.printed_c import run_c
from loopnest.backends.cpu.c_printer import print_c
from loopnest.kir import parse as parse_nest

ELU = """
    kernel k(x: {dtype}[N * 8]) -> (y: {dtype}[N * 8])
    for i0 in N:
      for i1 in 8:  # vectorize
        T1: bool[1] local
        T1[0] = x[i0 * 8 + i1] > 0.0
        T2: {dtype}[1] local
        T2[0] = x[i0 * 8 + i1] * 2.0
        T3: {dtype}[1] local
        T3[0] = exp(T2[0])
        T4: {dtype}[1] local
        T4[0] = T3[0] - 1.0
        y[i0 * 8 + i1] = where({condition}, {sides})
    """
HOLDS = {"condition": "T1[0]", "sides": "T2[0], T4[0]"}
FAILS = {"condition": "not T1[0]", "sides": "T4[0], T2[0]"}
CONSTANT = {"condition": "T1[0]", "sides": "0.5, T4[0]"}
INLINE = {"condition": "x[i0 * 8 + i1] > 0.0", "sides": "T2[0], exp(T4[0])"}


def body_of(nest):
    return print_c(parse_nest(nest), prelude=False)


@pytest.fixture(params=[16, 32, 64])
def run(request):
    """Run a nest with vector types of so many bytes, whatever the machine has."""

    def run(nest, **values):
        width = f"#define LN_VECTOR_BYTES {request.param}\n"
        return run_c(parse_nest(nest), before=width, **values)

    return run


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", [HOLDS, FAILS, CONSTANT, INLINE])
def test_vectors_of_which_all_some_or_no_lanes_need_the_function(run, dtype, case):
    nest = ELU.format(dtype=dtype, **case)
    assert "_is_full(" in body_of(nest)
    rng = np.random.default_rng(5)
    x = rng.standard_normal(8 * 40).astype(dtype)
    x[:64], x[64:128] = abs(x[:64]), -abs(x[64:128])
    x[3], x[70], x[100] = np.nan, 0.0, -0.0
    x[130:134] = [np.nan, np.inf, -np.inf, 200.0]
    found = run(nest, x=x, sizes={"N": 40})["y"]
    with np.errstate(over="ignore", invalid="ignore"):
        long = np.exp(2 * x) - 1
        if case is INLINE:
            long = np.exp(long)
    other = np.full_like(x, 0.5) if case is CONSTANT else 2 * x
    wanted = np.where(x > 0, other, long)
    np.testing.assert_allclose(found, wanted, rtol=2e-6 if dtype == "float32" else 1e-14, atol=1e-6)
    np.testing.assert_array_equal(found[x > 0], other[x > 0])


def test_what_both_sides_read_is_computed_in_front_of_the_test():
    text = body_of(ELU.format(dtype="float32", **HOLDS))
    before, behind = text.split("_is_full(")
    short, long = behind.split("} else {")
    assert "T2 =" in before
    assert "T3 =" not in before
    assert "y[" in short
    assert "exp" not in short
    assert long.index("T3 =") < long.index("T4 =") < long.index("y[")


@pytest.mark.parametrize(
    "change",
    [
        {"condition": "T4[0] > 0.0", "sides": "T2[0], T4[0]"},  # the condition needs it
        {"condition": "T1[0]", "sides": "T3[0], T4[0]"},  # both sides do
        {"condition": "T1[0]", "sides": "T2[0], T2[0] * 3.0"},  # no side does
    ],
)
def test_functions_that_are_needed_in_any_case_are_not_skipped(change):
    assert "_is_full(" not in body_of(ELU.format(dtype="float32", **change))


def test_a_loop_that_stores_another_array_too_computes_both_sides():
    nest = """
        kernel k(x: float32[8]) -> (y: float32[8], z: float32[8])
        for i1 in 8:  # vectorize
          T3: float32[1] local
          T3[0] = exp(x[i1])
          z[i1] = x[i1] * 2.0
          y[i1] = where(x[i1] > 0.0, x[i1], T3[0])
        """
    assert "_is_full(" not in body_of(nest)
