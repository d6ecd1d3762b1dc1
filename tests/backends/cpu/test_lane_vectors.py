"""Vectorized loops that are printed in C with vector types, at every width of a register."""

import ctypes
import mmap

import numpy as np
import pytest

from helpers.printed_c import run_c
from loopnest.backends.clike.float_functions import C
from loopnest.backends.cpu.c_compiler import compile_c
from loopnest.backends.cpu.c_printer import c_prelude, print_c
from loopnest.backends.cpu.lane_vectors import FUNCTIONS
from loopnest.kir import parse as parse_nest
from loopnest.scalar.op_table import OPS

RNG = np.random.default_rng(11)


def body_of(nest):
    return print_c(parse_nest(nest), prelude=False)


def randn(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


@pytest.fixture(params=[16, 32, 64])
def run(request):
    """Run a nest with vector types of so many bytes, whatever the machine has."""

    def run(nest, **values):
        width = f"#define LN_VECTOR_BYTES {request.param}\n"
        return run_c(parse_nest(nest), before=width, **values)

    return run


PRODUCT = """
    kernel k(a: float32[M], b: float32[N * 16]) -> (c: float32[M, N * 16])
    for i0 in M:
      for i1 in N:
        T2: float32[1] local
        T2[0] = a[i0]
        T3: float32[16] local
        for i2 in 16:  # vectorize
          T3[i2] = T2[0] * b[i1 * 16 + i2]
        for i3 in 16:  # vectorize
          c[i0, i1 * 16 + i3] = -T3[i3] / 3.0 + T2[0]
    """


def test_arithmetic_on_neighbours_becomes_vectors(run):
    text = body_of(PRODUCT)
    assert text.count("i2 += LN_LANES(ln_f32x16)") == 1
    assert "LN_VEC(ln_f32x16, T3[i2]) = T2 * LN_VEC(ln_f32x16, b[i1 * 16 + i2]);" in text
    a, b = randn(3), randn(32)
    result = run(PRODUCT, a=a, b=b, sizes={"N": 2})
    wanted = -(a[:, None] * b) / np.float32(3) + a[:, None]
    np.testing.assert_allclose(result["c"], wanted, rtol=1e-6)


@pytest.mark.parametrize(("dtype", "name"), [("float32", "ln_f32x4"), ("float64", "ln_f64x4")])
def test_private_scalars_and_names_are_vectors_where_their_value_differs(run, dtype, name):
    nest = f"""
        kernel k(x: {dtype}[8], s: {dtype}) -> (y: {dtype}[8])
        for i0 in 2:
          for i1 in 4:  # vectorize
            T2: {dtype}[1] local
            T2[0] = s * 2.0
            T3: {dtype}[1] local
            T3[0] = x[i0 * 4 + i1] * T2[0]
            let v0 = T3[0] + T2[0]
            if i0 == 0:
              y[i0 * 4 + i1] = v0
            else:
              y[i0 * 4 + i1] = v0 - T3[0]
        """
    text = body_of(nest)
    kind = "float" if dtype == "float32" else "double"
    assert f"{kind} T2 = s * 2.0" in text
    assert f"{name} T3 = " in text
    assert f"const {name} v0 = T3 + T2;" in text
    x = randn(8, dtype=dtype)
    result = run(nest, x=x, s=1.5)
    np.testing.assert_allclose(result["y"], np.r_[x[:4] * 3 + 3, np.full(4, 3)], rtol=1e-5)


def test_one_value_in_all_lanes_keeps_its_sign(run):
    nest = """
        kernel k(s: float32) -> (y: float32[8])
        for i0 in 8:  # vectorize
          y[i0] = s
        """
    assert "LN_VEC(ln_f32x8, y[i0]) = LN_ALL(ln_f32x8, s);" in body_of(nest)
    assert np.signbit(run(nest, s=-0.0)["y"]).all()
    assert np.isnan(run(nest, s=np.nan)["y"]).all()


@pytest.mark.parametrize(
    "statement",
    [
        "y[i0] = sin(x[i0])",  # a function that the header has not
        "y[i0] = where(float32(h[i0]) < 0.0, 0.0, x[i0])",
        "y[i0] = where(i0 < 5, x[0], 1.0)",  # one load, under a condition that differs
        "y[i0] = where(x[i0] < 0.0 and x[0] < 1.0, 0.0, 1.0)",
        "y[i0] = where(i0 * i0 < 5, x[i0], 1.0)",  # neither the first lanes nor the last
        "y[i0] = x[i0 * 5]",  # too far apart
        "y[i0] = x[i0 * i0]",
        "y[i0] = x[i0 % 4] + 1.0",
        "y[i0] = float32(i0)",  # the number of the lane
        "y[i0] = x[i0] + float32(i0)",
        "y[i0 * 2] = x[i0] * 2.0",
        "y[i0] = float32(h[i0])",  # another type
    ],
)
def test_what_has_no_vector_form_stays_a_loop_over_lanes(statement):
    nest = f"""
        kernel k(x: float32[16], h: float16[16]) -> (y: float32[16])
        for i0 in 8:  # vectorize
          {statement}
        """
    text = body_of(nest)
    assert "LN_VEC" not in text
    assert "#pragma omp simd" in text


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 5, 8, 13, 23])
def test_where_a_row_ends_vectors_load_and_store_what_is_left(run, dtype, n):
    nest = f"""
        kernel k(x: {dtype}[N]) -> (y: {dtype}[N])
        for i0 in ceildiv(N, 8):
          for i1 in 8:  # vectorize
            if i0 * 8 + i1 < N:
              y[i0 * 8 + i1] = x[i0 * 8 + i1] * 2.0
        """
    text = body_of(nest)
    assert text.count("+= LN_LANES(ln_f") == 2
    assert "#pragma omp simd" not in text
    x, y = randn(n, dtype=dtype), np.full(n + 8, 77, dtype)
    run(nest, x=x, y=y[:n])
    np.testing.assert_array_equal(y, np.r_[x * 2, np.full(8, 77)])


def test_a_tail_reads_nothing_behind_the_end(run):
    """The array ends where a page does, and the next page may not be read."""
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    array = np.frombuffer(memory, np.float32)
    place = array.ctypes.data
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    end = mmap.PAGESIZE // 4
    x, y = array[end - 5 : end], randn(5)
    x[:] = y
    assert protect(place + mmap.PAGESIZE, mmap.PAGESIZE, 0) == 0
    try:
        result = run(TAIL, x=x)["y"]
    finally:
        protect(place + mmap.PAGESIZE, mmap.PAGESIZE, 3)
    np.testing.assert_array_equal(result, y + 1)


TAIL = """
    kernel k(x: float32[N]) -> (y: float32[N])
    for i0 in ceildiv(N, 16):
      for i1 in 16:  # vectorize
        if i0 * 16 + i1 < N:
          y[i0 * 16 + i1] = x[i0 * 16 + i1] + 1.0
    """


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("step", [2, -1, 3, -2, 4])
@pytest.mark.parametrize("n", [3, 8, 21])
def test_elements_a_few_steps_apart_are_loaded_and_shuffled(run, dtype, step, n):
    """The array ends with the last element that is read, and begins with the first."""
    place = f"(i0 * 8 + i1) * {step}" if step > 0 else f"(N - 1 - i0 * 8 - i1) * {-step}"
    nest = f"""
        kernel k(x: {dtype}[(N - 1) * {abs(step)} + 1]) -> (y: {dtype}[N])
        for i0 in ceildiv(N, 8):
          for i1 in 8:  # vectorize
            if i0 * 8 + i1 < N:
              y[i0 * 8 + i1] = x[{place}] * 2.0
        """
    text = body_of(nest)
    assert "simd" not in text
    assert text.count("_every(&x[") == text.count("_every_of(&x[") == 1
    x = randn((n - 1) * abs(step) + 1, dtype=dtype)
    np.testing.assert_array_equal(run(nest, x=x, sizes={"N": n})["y"], x[::step] * 2)


def test_partial_sums_of_a_tail_keep_what_other_lanes_have(run):
    nest = """
        kernel k(x: float32[N]) -> (y: float32[16])
        T2: float32[16] local
        for i1 in 16:  # vectorize
          T2[i1] = -1.0
        for i0 in ceildiv(N, 16):
          for i1 in 16:  # vectorize
            if i0 * 16 + i1 < N:
              T2[i1] = max(T2[i1], x[i0 * 16 + i1])
        for i1 in 16:  # vectorize
          y[i1] = T2[i1]
        """
    assert "LN_VEC(ln_f32x16, T2[i1]) = ln_f32x16_where(ln_rest, " in body_of(nest)
    x = np.abs(randn(21))
    wanted = np.maximum(x[:16], np.r_[x[16:], np.full(11, -1)])
    np.testing.assert_array_equal(run(nest, x=x)["y"], wanted)


# Functions, conditions

VALUES = [0.0, -0.0, 1.0, -1.5, 2.5, 0.3, -88.0, 89.5, -104.0, 1e-40, 3e38, np.inf, -np.inf, np.nan]
WITHOUT_FORM = {"sin", "cos", "tan", "pow", "mod", "floordiv"}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions_of_vectors_are_those_of_one_value(run, dtype):
    """By the same nest: in vectors of eight, and one after the other."""
    names = [n for n, op in OPS.items() if n in FUNCTIONS]
    assert {n for n in C if n in OPS} - WITHOUT_FORM == FUNCTIONS | {"isnan"}
    draw = [randn(2 * len(VALUES), dtype=dtype) * 3, np.array(VALUES * 3, dtype)]
    x = np.concatenate([*draw, np.zeros(-sum(map(len, draw)) % 8, dtype)])
    nest = f"kernel k(x: {dtype}[N], z: {dtype}[N]) -> (y: {dtype}[{len(names)}, N])\n"
    nest += "for i0 in N // 8:\n  for i1 in 8:  # vectorize\n"
    for row, name in enumerate(names):
        arguments = ", ".join(["x[i0 * 8 + i1]", "z[i0 * 8 + i1]", "0.5"][: OPS[name].arity])
        nest += f"    y[{row}, i0 * 8 + i1] = {name}({arguments})\n"
    text = body_of(nest)
    assert "simd" not in text
    assert all(f"{name}(LN_VEC" in text for name in names)
    z = np.roll(x, 3)
    with np.errstate(all="ignore"):
        found = run(nest, x=x, z=z)["y"]
        wanted = run(nest.replace("# vectorize", ""), x=x, z=z)["y"]
    for name, a, b in zip(names, found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=4 * np.finfo(dtype).eps, atol=0, err_msg=name)
        np.testing.assert_array_equal(np.signbit(a[a == a]), np.signbit(b[a == a]), err_msg=name)


CONDITIONS = [
    ("x[i] < 0.0", lambda x, i: x < 0),
    ("x[i] >= s", lambda x, i: x >= 0.25),
    ("not x[i] == x[i]", lambda x, i: x != x),
    ("isnan(x[i])", lambda x, i: np.isnan(x)),
    ("x[i] > 0.0 and x[i] != 1.0", lambda x, i: (x > 0) & (x != 1)),
    ("3 <= i and x[i - 3] > 0.0", lambda x, i: (i >= 3) & (np.roll(x, 3) > 0)),
    ("i < 3 or x[i - 3] > 0.0", lambda x, i: (i < 3) | (np.roll(x, 3) > 0)),
    ("x[i] <= 0.0 or s > 1.0", lambda x, i: x <= 0),
    ("i < 5", lambda x, i: i < 5),
    ("i <= 5", lambda x, i: i <= 5),
    ("3 <= i", lambda x, i: i >= 3),
    ("3 < i and i < 6", lambda x, i: (i > 3) & (i < 6)),
    ("i > 2 and i >= 4", lambda x, i: i >= 4),
    ("not (i < 2 or x[i] < 0.0)", lambda x, i: ~((i < 2) | (x < 0))),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_conditions_that_differ_by_lane_are_masks(run, dtype):
    nest = f"kernel k(x: {dtype}[8], s: {dtype}) -> (y: {dtype}[{len(CONDITIONS)}, 8])\n"
    nest += "for i in 8:  # vectorize\n"
    for row, (condition, _) in enumerate(CONDITIONS):
        nest += f"  y[{row}, i] = where({condition}, x[i] * 2.0, s)\n"
    text = body_of(nest)
    assert text.count("_where(") == len(CONDITIONS)
    assert "simd" not in text
    x = np.array([0.5, -1, 1, 0, np.nan, 3, -2, np.inf], dtype)
    found = run(nest, x=x, s=0.25)["y"]
    for row, (condition, wanted) in zip(found, CONDITIONS, strict=True):
        keep = wanted(x, np.arange(8))
        np.testing.assert_array_equal(row, np.where(keep, x * 2, 0.25), err_msg=condition)


def test_a_load_under_a_condition_is_that_of_its_lanes_alone(run):
    """Of an array of four elements, eight lanes read four."""
    nest = """
        kernel k(x: float32[4], s: float32) -> (y: float32[8])
        for i0 in 8:  # vectorize
          y[i0] = where(2 <= i0 and i0 < 6, exp(x[i0 - 2]), where(i0 < 2, -1.0, s))
        """
    text = body_of(nest)
    assert "_load(&x[i0 - 2], (~ln_f32x8_first(2 - i0) & ln_f32x8_first(6 - i0)))" in text
    x = randn(4)
    wanted = np.r_[-1, -1, np.exp(x), 5, 5]
    np.testing.assert_allclose(run(nest, x=x, s=5.0)["y"], wanted, rtol=1e-6)


def test_what_is_loaded_in_any_case_needs_no_mask_under_a_condition(run):
    nest = """
        kernel k(x: float32[8], z: float32[8]) -> (y: float32[8])
        for i0 in 8:  # vectorize
          y[i0] = where(x[i0] > 0.0, x[i0], z[i0])
        """
    text = body_of(nest)
    assert "_load(&x[" not in text
    assert "_load(&z[i0], ~" in text
    x, z = randn(8), randn(8)
    np.testing.assert_array_equal(run(nest, x=x, z=z)["y"], np.where(x > 0, x, z))


def test_a_test_of_a_lane_is_a_mask_of_its_stores(run):
    """Scalars keep what they had in the other lanes, and other arrays are not touched there."""
    nest = """
        kernel k(x: float32[N], s: float32) -> (y: float32[8], z: float32[8])
        for i0 in 8:  # vectorize
          T2: float32[1] local
          T3: float32[1] local
          T2[0] = s
          T3[0] = 5.0
          if i0 < 6:
            T2[0] = x[i0]
            if T2[0] > 0.0:
              T3[0] = T2[0]
              z[i0] = T2[0] * 2.0
            else:
              T4: float32[1] local
              T4[0] = x[i0] * 3.0
              T3[0] = T4[0]
          y[i0] = T2[0] + T3[0]
        """
    text = body_of(nest)
    assert "simd" not in text
    x = np.array([1, -1, 2, np.nan, -3, 4], np.float32)
    result = run(nest, x=x, s=-1.0)
    third = np.where(x > 0, x, x * 3)
    np.testing.assert_array_equal(result["y"], np.r_[x + third, [4, 4]])
    np.testing.assert_array_equal(result["z"], [2, 77, 4, 77, 77, 8, 77, 77])


def test_a_load_that_a_test_of_a_lane_guards_is_not_read_for_all():
    nest = """
        kernel k(x: float32[N]) -> (y: float32[8])
        for i0 in 8:  # vectorize
          if i0 < N:
            y[i0] = x[0]
          else:
            y[i0] = 1.0
        """
    assert "LN_VEC" not in body_of(nest)
    assert "ln_f32x8_load(&x[i0], ln_if_2)" in body_of(nest.replace("x[0]", "x[i0]"))


@pytest.mark.parametrize("n", [0, 5, 16, 40, 48])
def test_a_copy_with_a_fill_goes_by_vectors(run, n):
    nest = """
        kernel k(x: float32[N]) -> (y: float32[3, 16])
        for i0 in 3:
          for i1 in 16:
            if i0 * 16 + i1 < N:
              y[i0, i1] = x[i0 * 16 + i1]
            else:
              y[i0, i1] = 0.5
        """
    assert "const ln_f32x16_mask ln_if_" in body_of(nest)
    x = randn(n)
    wanted = np.full(48, 0.5, np.float32)
    wanted[:n] = x
    np.testing.assert_array_equal(run(nest, x=x)["y"].ravel(), wanted)


@pytest.mark.parametrize("n", [0, 3, 8, 21, 24])
def test_iterations_whose_test_holds_have_a_loop_of_their_own(run, n):
    """The sums of the first one stay in registers."""
    nest = """
        kernel k(x: float32[N]) -> (y: float32[8])
        T2: float32[8] local
        for i1 in 8:  # vectorize
          T2[i1] = 0.0
        for i0 in ceildiv(N, 8):
          for i1 in 8:  # vectorize
            if i0 * 8 + i1 < N:
              T2[i1] = T2[i1] + x[i0 * 8 + i1]
        for i1 in 8:  # vectorize
          y[i1] = T2[i1]
        """
    text = body_of(nest)
    assert "for (; i0 < ln_min_i64((N + 7) / 8, N / 8); ++i0) {" in text
    assert "for (; i0 < (N + 7) / 8; ++i0) {" in text
    x = np.arange(n, dtype=np.float32)
    wanted = np.r_[x, np.zeros(-n % 8)].reshape(-1, 8).sum(0)
    np.testing.assert_array_equal(run(nest, x=x)["y"], wanted)


def test_a_condition_that_is_the_same_for_all_lanes_chooses_a_vector(run):
    nest = """
        kernel k(x: float32[16], s: float32) -> (y: float32[16])
        for i0 in 2:
          for i1 in 8:  # vectorize
            y[i0 * 8 + i1] = where(i0 == 0, x[i0 * 8 + i1], s)
        """
    x = randn(16)
    np.testing.assert_array_equal(run(nest, x=x, s=2.0)["y"], np.r_[x[:8], np.full(8, 2)])


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        ("s", "x[i1] + s", lambda x, s: (s, x + s)),
        ("-x[i1]", "x[i1]", lambda x, s: (-x, x)),
        ("x[i1] * s", "s - x[i1]", lambda x, s: (x * s, s - x)),
        ("where(n < 1, x[i1], x[i1] / s)", "s", lambda x, s: (x / s, s)),
    ],
)
def test_branches_of_one_condition_are_vectors_of_one_type(run, first, second, wanted):
    """A sum of vectors has another type to gcc than vectors in memory: it refused the two."""
    nest = f"""
        kernel k(x: float32[4], s: float32, n: int32) -> (y: float32[4])
        for i0 in 1:
          for i1 in 4:  # vectorize
            y[i1] = where(n < 2, {first}, {second})
        """
    text = body_of(nest)
    assert "LN_VEC(ln_f32x4, y[" in text
    assert "n < 2 ?" in text
    x = randn(4)
    for n, branch in ((1, 0), (2, 1)):
        expected = np.broadcast_to(wanted(x, np.float32(1.5))[branch], 4)
        np.testing.assert_allclose(run(nest, x=x, s=1.5, n=n)["y"], expected, rtol=1e-6)


def test_several_vectors_of_a_wide_loop(run):
    nest = """
        kernel k(x: float32[64]) -> (y: float32[64])
        for i0 in 64:  # vectorize
          y[i0] = exp(x[i0]) - 1.0
        """
    assert "i0 += LN_LANES(ln_f32x16)" in body_of(nest)
    x = randn(64)
    np.testing.assert_allclose(run(nest, x=x)["y"], np.exp(x) - 1, rtol=1e-5, atol=1e-6)


def test_kernels_of_one_file_share_the_functions_of_vectors():
    nest = """
        kernel k(x: float32[8]) -> (y: float32[8])
        for i0 in 8:  # vectorize
          y[i0] = exp(x[i0])
        """
    texts = [body_of(nest.replace("kernel k", f"kernel {name}")) for name in ("one", "two")]
    compile_c("".join([c_prelude(), *texts]), optimize=0)


def test_a_scalar_that_differs_on_one_branch_alone_differs_behind_it(run):
    nest = """
        kernel k(x: float32[8], s: float32) -> (y: float32[8])
        for i0 in 2:
          for i1 in 4:  # vectorize
            T2: float32[1] local
            if i0 == 0:
              T2[0] = s
            else:
              T2[0] = x[i0 * 4 + i1]
            y[i0 * 4 + i1] = T2[0] * 2.0
        """
    x = randn(8)
    np.testing.assert_array_equal(run(nest, x=x, s=3.0)["y"], np.r_[np.full(4, 6), x[4:] * 2])
