"""The C text of types, expressions and names, and a whole text."""

import ctypes
import math
import re

import numpy as np
import pytest

from helpers.printed_c import run_c
from helpers.printed_nests import RNG, body_of, both_widths, randn
from helpers.printer_cases import CASTS, GROUPING
from loopnest.backends.cpu.c_compiler import compile_c
from loopnest.backends.cpu.c_printer import c_prelude, print_c
from loopnest.base.errors import InternalError
from loopnest.kir import Loop, Param, Program, Store
from loopnest.kir import parse as parse_nest
from loopnest.scalar import dtypes
from loopnest.scalar.expr import (
    Arg,
    Const,
    Index,
    Load,
    Op,
    ScalarParam,
    Symbol,
    integer,
)
from loopnest.scalar.op_table import OPS

# Types


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_16_bit_storage(name):
    dtype = dtypes.of(name).numpy
    program = parse_nest(f"""
        kernel k(x: {name}[N]) -> (y: {name}[N], z: float32[N], w: {name}[N], v: bool[N])
        for i0 in N:
          T2: {name}[1] local
          T2[0] = float32(x[i0]) * 1.1
          T3: {name}[2] local
          T3[1] = T2[0]
          y[i0] = T3[1]
          z[i0] = float32(T3[1]) + 1.0
          w[i0] = {name}(float64(x[i0]) * float64(1.3))
          v[i0] = bool(x[i0])
        """)
    x = np.concatenate([randn(100), [0, -0.0, np.inf, np.nan, 1e-7, 4e4]]).astype(dtype)
    result = run_c(program, x=x)
    y = (x.astype(np.float32) * np.float32(1.1)).astype(dtype)
    np.testing.assert_array_equal(result["y"].view(np.uint16)[:-3], y.view(np.uint16)[:-3])
    np.testing.assert_array_equal(result["z"], y.astype(np.float32) + 1)
    w = (x.astype(np.float64) * np.float64(1.3)).astype(dtype)
    np.testing.assert_array_equal(result["w"].astype(np.float64), w.astype(np.float64))
    np.testing.assert_array_equal(result["v"], x.astype(bool))


def test_operations_on_16_bit_values_compute_in_float32():
    x = parse_nest("kernel k(x: float16[N]) -> (y: float16[N])\nfor i0 in N:\n  y[i0] = x[i0]")
    (loop,) = x.body
    (store,) = loop.body
    value = store.value
    twice = Op("add", (value, Op("exp", (value,), dtypes.float16)), dtypes.float16)
    test = Op("lt", (value, Const(0.5, dtypes.float16)), dtypes.bool_)
    chosen = Op("where", (test, twice, value), dtypes.float16)
    body = (Loop(loop.var, loop.parallel, "", (Store(store.storage, store.index, chosen, "y"),)),)
    data = randn(50, dtype=np.float16)
    exponential = np.exp(data.astype(np.float32)).astype(np.float16)
    total = (data.astype(np.float32) + exponential.astype(np.float32)).astype(np.float16)
    expected = np.where(data < 0.5, total, data)
    np.testing.assert_array_equal(run_c(x.with_body(body), x=data)["y"], expected)


def test_casts_are_numpys():
    lines = "\n".join([f"  y_{a}_{b}[i0] = {b}({a}_x[i0])" for a, b in CASTS])
    inputs = ", ".join([f"{a}_x: {a}[N]" for a in dict(CASTS)])
    outputs = ", ".join([f"y_{a}_{b}: {b}[N]" for a, b in CASTS])
    program = parse_nest(f"kernel k({inputs}) -> ({outputs})\nfor i0 in N:\n{lines}")
    values = np.array([0, 1, -1, 2.5, -2.5, 0.99, 1000, 3e4, 65519, 1e-8, 7, -60000])
    with np.errstate(over="ignore", invalid="ignore"):
        arrays = {f"{a}_x": values.astype(dtypes.of(a).numpy) for a in dict(CASTS)}
    result = run_c(program, **arrays)
    for a, b in CASTS:
        given, target = arrays[f"{a}_x"], dtypes.of(b)
        with np.errstate(over="ignore", invalid="ignore"):
            expected = given.astype(target.numpy)
            whole = np.trunc(given.astype(np.float64))
        if dtypes.of(a).is_float and target.is_integer:  # elsewhere NumPy promises nothing
            defined = (whole >= target.least) & (whole <= target.greatest)
        else:
            defined = np.full(given.shape, True)
        np.testing.assert_array_equal(
            result[f"y_{a}_{b}"].astype(np.float64)[defined],
            expected.astype(np.float64)[defined],
            f"{a} to {b}",
        )


def test_integers_wrap():
    program = parse_nest("""
        kernel k(x: int32[N], z: int64[N]) -> (y: int32[N], w: int64[N], v: int32[N], u: int64[N])
        for i0 in N:
          y[i0] = x[i0] * x[i0] + x[i0] - 7
          w[i0] = z[i0] * z[i0] - z[i0] + 9000000000
          v[i0] = -x[i0] ^ abs(x[i0]) & ~x[i0]
          u[i0] = fma(z[i0], z[i0], -9223372036854775808)
        """)
    x = np.array([0, 5, -5, 2**31 - 1, -(2**31), 123456789], np.int32)
    z = np.array([0, 5, -5, 2**63 - 1, -(2**63), 1234567890123], np.int64)
    with np.errstate(over="ignore"):
        expected = {
            "y": x * x + x - np.int32(7),
            "w": z * z - z + 9000000000,
            "v": -x ^ np.abs(x) & ~x,
            "u": z * z + np.int64(-(2**63)),
        }
    for optimize in (1, 3):
        result = run_c(program, x=x, z=z, optimize=optimize)
        for name, array in expected.items():
            np.testing.assert_array_equal(result[name], array, name)


@both_widths
def test_division_of_negative_values_rounds_down(bits):
    program = parse_nest("""
        kernel k(x: int32[N], b: int64[N]) -> (q: int32[N], r: int64[N], s: int64[N], t: int64[N], c: int64[N])
        for i0 in N:
          q[i0] = x[i0] // 7 + x[i0] % -3
          r[i0] = b[i0] // -4 + b[i0] % 5
          s[i0] = int64((i0 - 9) // 4)
          t[i0] = int64((i0 - 9) % 4 + (0 - i0) % N)
          c[i0] = int64(ceildiv(i0 - 9, 4) * 100 + ceildiv(i0, N) + (N - i0) // 1)
        """)  # noqa: E501
    text = body_of(program, index_bits=bits)
    assert f"ln_index_div_i{bits}(i0 - 9, 4)" in text
    x = np.arange(-11, 12, dtype=np.int32)
    b = x.astype(np.int64) * 3_000_000_000
    result = run_c(program, x=x, b=b, bits=bits)
    i, n = np.arange(len(x)), len(x)
    np.testing.assert_array_equal(result["q"], x // 7 + x % -3)
    np.testing.assert_array_equal(result["r"], b // -4 + b % 5)
    np.testing.assert_array_equal(result["s"], (i - 9) // 4)
    np.testing.assert_array_equal(result["t"], (i - 9) % 4 + -i % n)
    np.testing.assert_array_equal(result["c"], -(-(i - 9) // 4) * 100 - (-i // n) + n - i)


def test_division_of_indices_is_plain_where_they_cannot_be_negative():
    program = parse_nest("""
        kernel k(x: float32[N, M]) -> (y: float32[N, M])
        for i0 in ceildiv(N * M, 4):
          for i1 in 4:
            let v0 = i0 * 4 + i1
            if v0 < N * M:
              y[v0 // M % N, v0 % M] = x.flat[min(v0, N * M)]
        """)
    text = body_of(program)
    assert "const idx_t v0 = i0 * 4 + i1;" in text
    assert "y[v0 / M % N * M + v0 % M] = x[ln_min_i64(v0, N * M)];" in text
    x = randn(5, 7)
    np.testing.assert_array_equal(run_c(program, x=x)["y"], x)


def test_literals_are_exact():
    values = [0.1, 1e-45, 3.4028234663852886e38, -0.0, np.pi, 1 / 3, 1e300, np.inf, -np.inf, np.nan]
    lines = [f"y[{i}] = {v!r}" for i, v in enumerate(values)]
    lines += [f"z[{i}] = {v!r}" for i, v in enumerate(values)]
    head = f"kernel k() -> (y: float32[{len(values)}], z: float64[{len(values)}])\n"
    program = parse_nest(head + "\n".join(lines))
    result = run_c(program)
    with np.errstate(over="ignore"):
        single = np.array(values).astype(np.float32)
    np.testing.assert_array_equal(result["y"].view(np.uint32)[:-1], single.view(np.uint32)[:-1])
    np.testing.assert_array_equal(result["z"], np.array(values))
    assert np.isnan(result["y"][-1])
    assert np.signbit(result["y"][3])
    assert "y[0] = 0.1f;" in body_of(program)


# Expressions


def test_loads_under_a_false_condition_are_not_performed():
    program = parse_nest("""
        kernel k(x: float32[N]) -> (y: float32[N], z: bool[N])
        for i0 in N:
          y[i0] = where(i0 > 100000000, x[i0 * 100000000], x[i0])
          z[i0] = i0 < 0 and x[i0 * 100000000] > 0.0 or i0 == 3
        """)
    x = randn(8)
    for optimize in (1, 3):
        result = run_c(program, x=x, optimize=optimize)
        np.testing.assert_array_equal(result["y"], x)
        np.testing.assert_array_equal(result["z"], np.arange(8) == 3)


def test_grouping_of_operators():
    lines = "\n".join([f"  y[{n}, i0] = {text}" for n, text in enumerate(GROUPING)])
    for old, new in (("a", "x[0, i0]"), ("b", "x[1, i0]"), ("c", "x[2, i0]")):
        lines = re.sub(rf"\b{old}\b", new, lines)
    program = parse_nest(
        f"kernel k(x: float32[3, N]) -> (y: float32[{len(GROUPING)}, N])\nfor i0 in N:\n{lines}"
    )
    x = RNG.integers(1, 9, (3, 40)).astype(np.float32) * RNG.choice([1, -1], (3, 40)).astype("f")
    result = run_c(program, x=x)["y"]
    a, b, c = x
    scope = {
        "a": a, "b": b, "c": c, "where": np.where, "max": np.maximum, "min": np.minimum,
        "float32": np.float32, "int32": lambda v: v.astype(np.int32), "isnan": np.isnan,
        "abs": np.abs, "fma": lambda p, q, r: p * q + r, "reciprocal": lambda v: 1 / v,
    }  # fmt: skip
    for n, text in enumerate(GROUPING):
        python = text.replace("not (", "~(").replace(" and ", " & ").replace(" or ", " | ")
        python = re.sub(r"(\w < \w)( [&|])", r"(\1)\2", python)
        python = re.sub(r"([&|] )(\w < \w)", r"\1(\2)", python).replace("not a < b", "~(a < b)")
        with np.errstate(divide="ignore", invalid="ignore"):
            expected = np.float32(eval(python, {}, scope))
        np.testing.assert_allclose(result[n], expected, rtol=2e-7, err_msg=text)


UNARY = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "log1p": np.log1p,
    "sqrt": np.sqrt, "rsqrt": lambda v: 1 / np.sqrt(v), "reciprocal": lambda v: 1 / v,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "tanh": np.tanh,
    "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
    "abs": np.abs, "floor": np.floor, "ceil": np.ceil, "round": np.rint, "trunc": np.trunc,
    "neg": np.negative,
}  # fmt: skip

BINARY = {
    "pow": np.power, "mod": np.mod, "floordiv": np.floor_divide, "min": np.minimum,
    "max": np.maximum, "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal,
}  # fmt: skip


def test_every_operation_of_floats():
    tested = [*UNARY, *BINARY, "erf", "isnan"]
    for name in ("float32", "float64"):
        dtype = dtypes.of(name)
        base = parse_nest(
            f"kernel k(a: {name}[N], b: {name}[N]) -> (y: {name}[{len(tested)}, N])\n"
            "for i0 in N:\n  y[0, i0] = a[i0] + b[i0]"
        )
        (loop,) = base.body
        (first,) = loop.body
        a, b = first.value.args
        stores = []
        for row, op in enumerate(tested):
            kind = dtypes.bool_ if OPS[op].result == "bool" else dtype
            value = Op(op, (a, b)[: OPS[op].arity], kind)
            stores.append(Store(first.storage, (integer(row), loop.var), value, "y"))
        program = base.with_body((Loop(loop.var, loop.parallel, "", tuple(stores)),))
        x = RNG.uniform(0.1, 5, 64).astype(name)
        z = RNG.uniform(-3, 3, 64).astype(name)
        x[:4], z[:4] = [np.nan, 1, np.nan, 2], [1, np.nan, np.nan, 2]
        result = run_c(program, a=x, b=z)["y"]
        wide = {"a": x.astype(np.float64), "b": z.astype(np.float64)}
        for row, op in enumerate(tested):
            if op in UNARY:
                expected = UNARY[op](wide["a"])
            elif op in BINARY:
                # Rounding and remainders are those of the type itself.
                exact = op in ("mod", "floordiv")
                expected = BINARY[op](*((x, z) if exact else wide.values()))
            elif op == "isnan":
                expected = np.isnan(x)
            else:
                expected = np.array([math.erf(v) for v in wide["a"]])
            np.testing.assert_allclose(
                result[row].astype(np.float64),
                expected.astype(np.float64),
                rtol=4 * np.finfo(name).eps,
                err_msg=f"{op} of {name}",
            )


def test_every_operation_of_integers():
    tested = ["add", "sub", "mul", "floordiv", "mod", "min", "max", "bitand", "bitor", "bitxor",
              "shl", "shr", "pow", "eq", "lt", "neg", "abs", "bitnot", "floor", "round",
              "isnan"]  # fmt: skip
    numpy = {"neg": np.negative, "abs": np.abs, "bitnot": np.invert, "floor": np.positive,
             "round": np.positive, "isnan": np.isnan, "bitand": np.bitwise_and,
             "bitor": np.bitwise_or, "bitxor": np.bitwise_xor, "shl": np.left_shift,
             "shr": np.right_shift, **BINARY}  # fmt: skip
    for name in [dtype.name for dtype in dtypes.INTEGERS]:
        dtype = dtypes.of(name)
        base = parse_nest(
            f"kernel k(a: {name}[N], b: {name}[N]) -> (y: {name}[{len(tested)}, N])\n"
            "for i0 in N:\n  y[0, i0] = a[i0] + b[i0]"
        )
        (loop,) = base.body
        (first,) = loop.body
        stores = []
        for row, op in enumerate(tested):
            kind = dtypes.bool_ if OPS[op].result == "bool" else dtype
            value = Op(op, first.value.args[: OPS[op].arity], kind)
            stores.append(Store(first.storage, (integer(row), loop.var), value, "y"))
        program = base.with_body((Loop(loop.var, loop.parallel, "", tuple(stores)),))
        a = RNG.integers(-20, 20, 64).astype(name)
        b = np.abs(RNG.integers(-20, 20, 64).astype(name)) % 7
        result = run_c(program, a=a, b=b)["y"]
        for row, op in enumerate(tested):
            args = (a, b)[: OPS[op].arity]
            with np.errstate(divide="ignore", over="ignore"):
                expected = numpy[op](*args).astype(name)
            np.testing.assert_array_equal(result[row], expected, f"{op} of {name}")


# Names


def test_hostile_names():
    program = parse_nest("""
        kernel exp(int: float32[N, I], exp: float32[N], i0: float32[N], T2: float32[1], blockIdx: float32, idx_t: float32, size_N: float32) -> (double: float32[N, I], linux: float32[N])
        for i1 in N:
          for i2 in I:
            double[i1, i2] = int[i1, i2] * blockIdx + exp[i1] + idx_t
        for register in N:
          T2_: float32[1] local
          T2_[0] = T2[0] * size_N
          let auto = i0[register] + T2_[0]
          linux[register] = auto
        """)  # noqa: E501
    x, e, i, t = randn(4, 3), randn(4), randn(4), randn(1)
    values = {"int": x, "exp": e, "i0": i, "T2": t, "blockIdx": 2.0, "idx_t": 3.0, "size_N": 4.0}
    result = run_c(program, **values)
    np.testing.assert_allclose(result["double"], x * 2 + e[:, None] + 3, rtol=1e-6)
    np.testing.assert_allclose(result["linux"], i + t * 4, rtol=1e-6)


def test_names_of_different_things_that_collide():
    # An input, a size, a scalar, a loop index and a buffer of one name.
    n, f32 = Symbol("k"), dtypes.float32
    base = parse_nest("kernel k(k: float32[M]) -> (y: float32[M])\nfor k in M:\n  y[k] = 1.0")
    array = base.params[0].buffer
    index = Index("k", Symbol("M"))
    scalar = ScalarParam("k", f32)
    value = Op("mul", (Load(array, (index,)), scalar), f32)
    value = Op("add", (value, Op("cast", (n,), f32)), f32)
    params = (
        *base.params[:2],
        Param("k", "scalar", f32),
        Param("M", "size", dtypes.index),
        Param("k", "size", dtypes.index),
    )
    store = Store(base.params[1].buffer, (index,), value, "y")
    loop = Loop(index, base.body[0].parallel, "", (store,))
    program = Program("k", params, (loop,), (), base.outputs)
    text = body_of(program)
    assert "y[k___] = k[k___] * k_ + (float)k__;" in text
    x, y = randn(5), np.zeros(5, np.float32)
    function = compile_c(print_c(program), optimize=1).function("k", restype=ctypes.c_int)
    function.argtypes = None
    pointers = [ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data)]
    function(*pointers, ctypes.c_float(2), ctypes.c_int64(5), ctypes.c_int64(9))
    np.testing.assert_array_equal(y, x * 2 + 9)


def test_tensor_names_do_not_leave_their_comment():
    program = parse_nest("kernel k() -> (y: float32[1])\ny[0] = 1.0")
    (store,) = program.body
    for name in ("a\\", "a\nb", "a */ b"):
        node = Store(store.storage, store.index, store.value, name)
        assert run_c(program.with_body((node,)))["y"][0] == 1


# The whole text


def test_prelude_once_for_many_kernels():
    kernels = [
        parse_nest(
            f"kernel k{n}() -> (y: float32[N])\nfor i0 in N:  # cpu_parallel\n  y[i0] = {n}.0"
        )
        for n in range(3)
    ]
    source = c_prelude() + "".join([print_c(k, prelude=False) for k in kernels])
    library = compile_c(source, optimize=1)
    for n in range(3):
        y = np.zeros(4, np.float32)
        function = library.function(f"k{n}", restype=ctypes.c_int)
        function.argtypes = None
        function(ctypes.c_void_p(y.ctypes.data), ctypes.c_int64(4))
        np.testing.assert_array_equal(y, np.full(4, n, np.float32))


def test_barriers_of_one_thread_vanish():
    alone = parse_nest("""
        kernel k(x: float32[8]) -> (y: float32[8])
        for i0 in 1:  # block_x
          T2: float32[8] shared
          for i1 in 8:
            T2[i1] = x[i1]
          barrier block
          for i2 in 8:
            y[i2] = T2[7 - i2]
        """)
    x = randn(8)
    np.testing.assert_array_equal(run_c(alone, x=x)["y"], x[::-1])


def test_what_is_left_of_a_template_is_an_internal_error():
    program = parse_nest("kernel k() -> (y: float32[1])\ny[0] = 1.0")
    (store,) = program.body
    node = Store(store.storage, store.index, Arg(0, dtypes.float32), "y")
    with pytest.raises(InternalError) as raised:
        print_c(program.with_body((node,)))
    assert str(raised.value) == "$0: an Arg is left in the loop nest"
