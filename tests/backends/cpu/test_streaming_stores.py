"""C that goes past the caches: stores of whole lines, and tiles transposed in registers."""

import numpy as np
import pytest

from helpers.printed_c import run_c
from loopnest.backends.cpu.c_printer import print_c
from loopnest.kir import parse as parse_nest

RNG = np.random.default_rng(13)


def body_of(nest):
    return print_c(parse_nest(nest), prelude=False)


@pytest.fixture(params=[16, 32, 64])
def run(request):
    """Run a nest with registers of so many bytes, as if no cache held more than a line."""

    def run(nest, fast="", **values):
        machine = f"{fast}#define LN_VECTOR_BYTES {request.param}\n#define LN_LAST_CACHE 64\n"
        return run_c(parse_nest(nest), before=machine, **values)

    return run


SCALE = """
    kernel k(x: float32[N, D]) -> (y: float32[N, D])
    for i0 in N:  # cpu_parallel
      for i1 in D // 16:
        for i2 in 16:  # vectorize
          y[i0, i1 * 16 + i2] = x[i0, i1 * 16 + i2] * 2.0
    """


def test_an_output_is_stored_past_the_caches_where_it_is_larger(run):
    text = body_of(SCALE)
    assert "const bool ln_past_y = LN_PAST_CACHES(size_D * size_N, float);" in text
    assert "ln_f32x16_stream(&y[i0 * D + i1 * 16 + i2], " in text
    assert text.count("if (ln_past_y) LN_FENCE();") == 1
    x = RNG.standard_normal((5, 48)).astype(np.float32)
    np.testing.assert_array_equal(run(SCALE, x=x)["y"], x * 2)


def test_functions_are_slower_than_fast_memory(run):
    """Where a machine's memory is, what they compute is stored like all else."""
    nest = SCALE.replace("* 2.0", "* 2.0 + exp(1.0 + x[i0, i1 * 16 + i2])")
    assert ", ln_past_y && !LN_FAST_MEMORY);  // y" in body_of(nest)
    assert "LN_FAST_MEMORY" not in body_of(SCALE)
    x = RNG.standard_normal((5, 48)).astype(np.float32)
    for fast in (0, 1):
        nest = nest.replace("kernel k", f"kernel k{fast}")
        result = run(nest, fast=f"#define LN_FAST_MEMORY {fast}\n", x=x)
        np.testing.assert_allclose(result["y"], x * 2 + np.exp(1 + x), rtol=1e-5)


def test_lines_that_are_not_aligned_are_stored_as_others(run):
    x = RNG.standard_normal((3, 32)).astype(np.float32)
    memory = np.full(97, 77, np.float32)
    start = 1 if memory.ctypes.data % 64 == 0 else 0
    y = memory[start : start + 96].reshape(3, 32)
    run(SCALE, x=x, y=y)
    np.testing.assert_array_equal(y, x * 2)


@pytest.mark.parametrize(
    "nest",
    [
        # half a line
        """
        kernel k(x: float32[N, 8]) -> (y: float32[N, 8])
        for i0 in N:
          for i1 in 8:  # vectorize
            y[i0, i1] = x[i0, i1] * 2.0
        """,
        # read again
        """
        kernel k(x: float32[N, 16]) -> (y: float32[N, 16])
        for i0 in N:
          for i1 in 16:  # vectorize
            y[i0, i1] = 1.0
          for i2 in 16:  # vectorize
            y[i0, i2] = y[i0, i2] + x[i0, i2]
        """,
        # memory of the kernel's own
        """
        kernel k(x: float32[16]) -> (y: float32[16])
        T2: float32[16] local
        for i0 in 16:  # vectorize
          T2[i0] = x[i0] * 2.0
        for i1 in 16:
          y[i1] = T2[i1]
        """,
    ],
)
def test_what_stays_in_the_caches(nest):
    assert "ln_past" not in body_of(nest)


def transpose(dtype="float32", side=16, inner="i0 * {s} + i3, i1 * {s} + i2"):
    return f"""
        kernel k(x: {dtype}[N, D]) -> (y: {dtype}[D, N])
        for i0 in N // {side}:  # cpu_parallel
          for i1 in D // {side}:
            for i2 in {side}:
              for i3 in {side}:  # vectorize
                y[i1 * {side} + i2, i0 * {side} + i3] = x[{inner.format(s=side)}]
        """


@pytest.mark.parametrize("optimize", [1, 3])
@pytest.mark.parametrize(("dtype", "side"), [("float32", 16), ("float64", 8)])
def test_a_tile_is_transposed_in_registers(run, dtype, side, optimize):
    nest = transpose(dtype, side)
    name = "ln_f32x16" if side == 16 else "ln_f64x8"
    to, source = f"&y[i1 * {side} * N + i0 * {side}]", f"&x[i0 * {side} * D + i1 * {side}]"
    assert f"{name}_transpose({to}, N, {source}, D, ln_past_y);" in body_of(nest)
    x = RNG.standard_normal((3 * side, 2 * side)).astype(dtype)
    np.testing.assert_array_equal(run(nest, x=x, optimize=optimize)["y"], x.T)


def test_steps_of_a_tile_are_those_of_the_indices(run):
    nest = """
        kernel k(x: float32[64, 50]) -> (y: float32[33, 40])
        for i2 in 16:  # unroll
          for i3 in 16:  # vectorize
            y[i2 * 2 + 1, i3 + 3] = x[60 - i3 * 4, i2 + 5]
        """
    assert "_transpose(&y[40 + 3], 80, &x[" in body_of(nest)
    x = RNG.standard_normal((64, 50)).astype(np.float32)
    y = run(nest, x=x)["y"]
    wanted = np.full((33, 40), 77, np.float32)
    wanted[1:33:2, 3:19] = x[60::-4, 5:21].T
    np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize(
    "inner",
    [
        "i0 * {s} + i3, i1 * {s} + i2 // 2",
        "i0 * {s} + i3, i1 * {s} + i3",
        "i0 * {s} + i2, i1 * {s} + i3",
        "i0 * {s} + i3 * i3 % 3, i1 * {s} + i2",
    ],
)
def test_tiles_that_are_not_transposed(inner):
    assert "_transpose(" not in body_of(transpose(inner=inner))


def test_half_a_tile_is_not_transposed():
    assert "_transpose(" not in body_of(transpose(side=8))
