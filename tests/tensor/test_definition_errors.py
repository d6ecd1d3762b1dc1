"""Bad operands of the math: each kind raises its error, and the sentence says what to do."""

from __future__ import annotations

import pytest

import loopnest as ln
from helpers.named_operands import names
from helpers.schedule_run import taken_back
from loopnest.tensor.fusion import ScalarOperand

OPERAND = "use TensorViews, scalars of the fusion, sizes or Python numbers"
NO_FUSION = "at least one must be a TensorView or a scalar of a fusion"
TYPES = (
    "use ln.bool, int8, uint8, int16, uint16, int32, uint32, int64, float8_e4m3fn, float8_e5m2, "
    "float16, bfloat16, float32 or float64"
)
EXTENTS = "extents at one axis are equal (the same int or the same name), or one is a static 1"
EXTENT = "use an int >= 0 or the name of a size symbol (an identifier)"
MASK = "use True for a new axis, False for one of the tensor"
FUSIONS = "all operands of an expression belong to one fusion"
CORRECTION = "use 0 (of a population), 1 (of a sample) or another number"
SQUEEZE = "only broadcast axes (of a static extent 1) can be squeezed"
EXPAND = "only broadcast axes (of a static extent 1) can be expanded"
MATMUL = "the last extent of the first is the last but one of the second"
FLOORS = "// takes integers or bool; of floats use ln.floor(a / b)"
SHIFTS = "shifts take integers or bool"
BITS = "bitwise operations take integers or bool"


# The code, the message up to the hint, the hint (if several share it).
EXPRESSIONS = [
    ("x + np.ones(3)", "add(x, <ndarray>): operand 2 is of type ndarray", OPERAND),
    ("np.ones(3) * x", "mul(<ndarray>, x): operand 1 is of type ndarray", OPERAND),
    ('x + "a"', "add(x, 'a'): operand 2 is of type str", OPERAND),
    ("None - x", "sub(None, x): operand 1 is of type NoneType", OPERAND),
    ("x / (1, 2)", "div(x, (1, 2)): operand 2 is of type tuple", OPERAND),
    ("x * np.float32(2)", "mul(x, <float32>): operand 2 is of type float32", OPERAND),
    ("x * 1j", "mul(x, <complex>): operand 2 is of type complex", OPERAND),
    ('"b" @ x', "matmul('b', x): operand 1 is of type str; use TensorViews", ""),
    (
        "x @ np.ones((3, 3))",
        "matmul(x, <ndarray>): operand 2 is of type ndarray; use TensorViews",
        "",
    ),
    ("a * np.ones(3)", "mul(alpha, <ndarray>): operand 2 is of type ndarray", OPERAND),
    ('"c" + a', "add('c', alpha): operand 1 is of type str", OPERAND),
    ("a < []", "lt(alpha, []): operand 2 is of type list", OPERAND),
    ("ln.exp(np.ones(3))", "exp(<ndarray>): operand 1 is of type ndarray", OPERAND),
    ("ln.exp(2.0)", "exp(2.0): no operand belongs to a fusion", NO_FUSION),
    ("ln.add(1, 2)", "add(1, 2): no operand belongs to a fusion", NO_FUSION),
    ("ln.where(True, 1, 2)", "where(True, 1, 2): no operand belongs to a fusion", NO_FUSION),
    ("ln.where(x, None, 1)", "where(x, None, 1): operand 2 is of type NoneType", OPERAND),
    ("ln.clamp(x, None, 1)", "clamp(x, None, 1): operand 2 is of type NoneType", OPERAND),
    (
        'ln.fma(x, 2, "y" * 60)',
        "fma(x, 2, 'yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy...): operand 3 is of type str",
        OPERAND,
    ),
    (
        "ln.cast(x, ln.int8, saturate=1)",
        "cast(x, ln.int8, saturate=1): saturate=1 is no bool",
        "use saturate=True or saturate=False",
    ),
    (
        'ln.cast(x, ln.int8, rounding="up")',
        "cast(x, ln.int8, rounding='up'): there is no rounding='up' to int8",
        "use 'trunc' or 'nearest' or 'floor' or 'ceil'",
    ),
    (
        'ln.cast(x, ln.float16, rounding="trunc")',
        "cast(x, ln.float16, rounding='trunc'): there is no rounding='trunc' to float16",
        "use 'nearest'",
    ),
    (
        "ln.cast(x, ln.bool, saturate=True)",
        "cast(x, ln.bool, saturate=True): a bool says whether a value is 0",
        "leave the choice out",
    ),
    ("x // 2", "floordiv(x, 2): the operands meet in float32", FLOORS),
    ("x << 2", "lshift(x, 2): the operands meet in float32", SHIFTS),
    ("2 >> x", "rshift(2, x): the operands meet in float32", SHIFTS),
    ("x ^ i", "bitxor(x, i): the operands meet in float32", BITS),
    ('ln.cast(x, "float32")', "cast(x, 'float32'): 'float32' is no element type", TYPES),
    (
        "ln.cast(x, np.float32)",
        "cast(x, <type>): <class 'numpy.float32'> is no element type",
        TYPES,
    ),
    ("ln.cast(2.0, ln.float32)", "cast(2.0): no operand belongs to a fusion", NO_FUSION),
    (
        'ln.gelu(x, "sin")',
        "gelu(x, approximate='sin'): there is no approximate='sin'; use 'none' or 'tanh'",
        "",
    ),
    ("ln.gelu(None)", "gelu(None): operand 1 is of type NoneType", OPERAND),
    ("x + z", "add(x, z): z belongs to fusion other, not to main", FUSIONS),
    ("a * z", "mul(alpha, z): z belongs to fusion other, not to main", FUSIONS),
    ("ln.where(z, x, x)", "where(z, x, x): x belongs to fusion main, not to other", FUSIONS),
    ("x & 1", "bitand(x, 1): the operands meet in float32", BITS),
    ("ln.bitor(x, i)", "bitor(x, i): the operands meet in float32", BITS),
    ("~x", "invert(x): the operands meet in float32", BITS),
    ("i & 0.5", "bitand(i, 0.5): the operands meet in float32", BITS),
    ("i + 2**31", "add(i, 2147483648): 2147483648 does not fit int32; use a wider type", ""),
    (
        "i * 10**400",
        "mul(i, 1000000000000000000000000000000000000...): "
        "1000000000000000000000000000000000000... does not fit int32; use a wider type",
        "",
    ),
    (
        "x * 10**400",
        "mul(x, 1000000000000000000000000000000000000...): "
        "the number is beyond the range of floats; use float('inf')",
        "",
    ),
    ("i ** -1", "pow(i, -1): an integer has no negative power; cast it to a float first", ""),
    ("ln.mean(3)", "mean(3, axis=None): operand 1 is of type int; use a TensorView", ""),
    ("ln.iota(-3, a)", "iota(-3, alpha, 1): -3 is no extent", EXTENT),
    ("x + m", "add(x, m): at axis -1 the extent of x is D, that of m is M", EXTENTS),
    ("x * s", "mul(x, s): at axis -1 the extent of x is D, that of s is 4", EXTENTS),
    (
        "i + ln.permute(x, (1, 0))",
        "add(i, T7): at axis -2 the extent of i is N, that of T7 is D",
        EXTENTS,
    ),
    ("bool(x)", "x: a tensor has no truth value; use ln.where(cond, a, b) or ln.logical_and", ""),
    (
        "bool(a)",
        "alpha: a scalar has no truth value before the launch; use ln.where(cond, a, b)",
        "",
    ),
    (
        "bool(a > 1)",
        "alpha > 1.0: a scalar has no truth value before the launch; use ln.where(cond, a, b)",
        "",
    ),
    ("ln.sum(x, axis=2)", "sum(x, axis=2): axis 2 is out of range; x has 2 axes, so use -2..1", ""),
    (
        "ln.max(b, axis=-2)",
        "max(b, axis=-2): axis -2 is out of range; b has 1 axis, so use -1..0",
        "",
    ),
    (
        "ln.sum(x, axis=(0, 0))",
        "sum(x, axis=(0, 0)): an axis is named twice; name each axis once",
        "",
    ),
    (
        "ln.sum(x, axis=(1, -1))",
        "sum(x, axis=(1, -1)): an axis is named twice; name each axis once",
        "",
    ),
    ("ln.sum(x, axis=())", "sum(x, axis=()): no axis is named; x is float32[N, D]", ""),
    ("ln.sum(r)", "sum(r, axis=None): r has no axes; r is float32[]", ""),
    (
        "ln.any(r, axis=0)",
        "any(r, axis=0): axis 0 is out of range; r has 0 axes, so there is none to name",
        "",
    ),
    (
        "ln.prod(x, axis=1.0)",
        "prod(x, axis=1.0): axis 1.0 is not an int; axes are given by position",
        "",
    ),
    (
        'ln.min(x, axis="N")',
        "min(x, axis='N'): axis 'N' is not an int; axes are given by position",
        "",
    ),
    (
        "ln.mean(x, axis=True)",
        "mean(x, axis=True): axis True is not an int; axes are given by position",
        "",
    ),
    ("ln.all(3.0)", "all(3.0, axis=None): operand 1 is of type float; use a TensorView", ""),
    (
        "ln.mean(np.ones(3), axis=0)",
        "mean(<ndarray>, axis=0): operand 1 is of type ndarray; use a TensorView",
        "",
    ),
    ("ln.welford(a)", "welford(alpha, axis=None): operand 1 is a scalar; use a TensorView", ""),
    (
        'ln.var(x, axis=0, correction="n")',
        "var(x, correction='n'): the correction is no finite number",
        CORRECTION,
    ),
    (
        'ln.var(x, correction=float("nan"))',
        "var(x, correction=nan): the correction is no finite number",
        CORRECTION,
    ),
    (
        "ln.broadcast(x, (True, False))",
        "broadcast(x, (True, False)): the mask has 1 False for the 2 axes of x",
        MASK,
    ),
    (
        "ln.broadcast(x, (False, 0))",
        "broadcast(x, (False, 0)): the mask is not a tuple of bools",
        MASK,
    ),
    ("ln.broadcast(x, True)", "broadcast(x, True): the mask is not a tuple of bools", MASK),
    (
        "ln.broadcast(a, (True,))",
        "broadcast(alpha, (True,)): operand 1 is a scalar; use a TensorView",
        "",
    ),
    (
        "ln.permute(x, (0, 0))",
        "permute(x, (0, 0)): the order is no permutation; name each of the 2 axes of x once",
        "",
    ),
    (
        "ln.permute(x, (0,))",
        "permute(x, (0,)): the order is no permutation; name each of the 2 axes of x once",
        "",
    ),
    (
        "ln.permute(x, (0, 2))",
        "permute(x, (0, 2)): axis 2 is out of range; x has 2 axes, so use -2..1",
        "",
    ),
    (
        "ln.permute(x, 1)",
        "permute(x, 1): the order is not a tuple of ints; name each of the 2 axes of x once",
        "",
    ),
    (
        "ln.permute(None, (0,))",
        "permute(None, (0,)): operand 1 is of type NoneType; use a TensorView",
        "",
    ),
    ("ln.squeeze(x, 1)", "squeeze(x, axis=1): axis 1 has extent D", SQUEEZE),
    ("ln.squeeze(s, 0)", "squeeze(s, axis=0): axis 0 has extent 4", SQUEEZE),
    (
        "ln.squeeze(u, 2)",
        "squeeze(u, axis=2): axis 2 is out of range; u has 2 axes, so use -2..1",
        "",
    ),
    (
        "ln.squeeze(1.0, 0)",
        "squeeze(1.0, axis=0): operand 1 is of type float; use a TensorView",
        "",
    ),
    (
        'ln.expand(x, (1, "D"))',
        "expand(x, (1, 'D')): axis 0 cannot become 1; x is float32[N, D]",
        EXPAND,
    ),
    (
        'ln.expand(x, ("N", "M"))',
        "expand(x, ('N', 'M')): axis 1 cannot become M; x is float32[N, D]",
        EXPAND,
    ),
    ('ln.expand(u, ("N", -1))', "expand(u, ('N', -1)): -1 is no extent", EXTENT),
    ('ln.expand(u, ("M",))', "expand(u, ('M',)): the shape has rank 1; u is float32[N, 1]", ""),
    ('ln.expand(u, "N")', "expand(u, 'N'): the shape 'N' is not a tuple of extents", ""),
    (
        'ln.expand(u, ("N", "x"))',
        "expand(u, ('N', 'x')): 'x' is the name of an argument already",
        "name the size otherwise, such as 'x_size'",
    ),
    ('ln.expand(u, ("N", 2.5))', "expand(u, ('N', 2.5)): 2.5 is no extent", EXTENT),
    (
        'ln.expand("u", ("N",))',
        "expand('u', ('N',)): operand 1 is of type str; use a TensorView",
        "",
    ),
    ("ln.iota(4)", "iota(4, 0, 1): no fusion is open; call it inside 'with ln.Fusion(...):'", ""),
    (
        "ln.full(3, a * 2**40, ln.float16) + i",
        "add(T7, i): at axis -1 the extent of T7 is 3, that of i is D",
        EXTENTS,
    ),
    (
        'ln.iota(4, a, "b")',
        "iota(4, alpha, 'b'): a value is no number; use a Python number or a scalar",
        "",
    ),
    (
        'ln.iota("N", a, dtype=ln.int32)',
        "iota('N', alpha, 1, dtype=int32): elements of int32 cannot step by float32",
        "use a wider dtype=",
    ),
    ("ln.iota((3,), a)", "iota((3,), alpha, 1): (3,) is no extent", EXTENT),
    (
        "ln.iota(3, a, dtype=ln.bool)",
        "iota(3, alpha, 1, dtype=bool): elements of bool cannot step by float32",
        "use a wider dtype=",
    ),
    (
        "ln.iota(3, a, dtype=float)",
        "iota(3, alpha, 1, dtype=<class 'float'>): <class 'float'> is no element type",
        TYPES,
    ),
    (
        "ln.full((3,), 1.0)",
        "full((3,), 1.0): no fusion is open; call it inside 'with ln.Fusion(...):'",
        "",
    ),
    ('ln.full(("N", -3), a)', "full(('N', -3), alpha): -3 is no extent", EXTENT),
    (
        "ln.full((3,), a, ln.int32)",
        "full((3,), alpha, dtype=int32): alpha is float32, no int32; use a wider dtype=",
        "",
    ),
    (
        "ln.full((3,), None)",
        "full((3,), None): a value is no number; use a Python number or a scalar",
        "",
    ),
    ("ln.full(None, a)", "full(None, alpha): the shape None is not a tuple of extents", ""),
    ("ln.matmul(x, b)", "matmul(x, b): b has rank 1; both ranks are at least 2", ""),
    ("ln.matmul(r, x)", "matmul(r, x): r has rank 0; both ranks are at least 2", ""),
    ("ln.matmul(x, x)", "matmul(x, x): x is float32[N, D], x is float32[N, D]", MATMUL),
    ("ln.matmul(x, z)", "matmul(x, z): z belongs to fusion other, not to main", FUSIONS),
    ("ln.matmul(x, a)", "matmul(x, alpha): operand 2 is a scalar; use TensorViews", ""),
    (
        "ln.broadcast(x, (False, True, False)) "
        '@ ln.expand(ln.broadcast(b, (True, False, True)), (4, "D", 1))',
        "matmul(T7, T9): at axis -3 the extent of T7 is N, that of T9 is 4",
        EXTENTS,
    ),
]


@pytest.mark.parametrize(("code", "message", "hint"), EXPRESSIONS, ids=[c[0] for c in EXPRESSIONS])
def test_bad_expression(code: str, message: str, hint: str) -> None:
    with pytest.raises(ln.DefinitionError) as caught:
        eval(code, names())
    assert str(caught.value) == (f"{message}; {hint}" if hint else message)


@pytest.mark.parametrize("code", [c[0] for c in EXPRESSIONS])
def test_failed_expression_leaves_no_tensor(code: str) -> None:
    given = names()
    before = given["f"].tensors
    with pytest.raises(ln.DefinitionError):
        eval(code, given)
    made = [t for t in given["f"].tensors if t not in before]
    assert all(t.definition.op in ("permute", "broadcast", "expand", "full") for t in made)


def test_fusions_of_one_name_are_told_apart() -> None:
    with ln.Fusion() as f, ln.Fusion() as g:
        x, y = f.input("x", ("N",), ln.float32), g.input("y", ("N",), ln.float32)
    with pytest.raises(ln.DefinitionError) as caught:
        x + y
    assert str(caught.value) == (
        "add(x, y): y belongs to another fusion of the name kernel; "
        "all operands of an expression belong to one fusion"
    )


def test_consumer_of_an_inlined_tensor() -> None:
    with ln.Fusion() as f:
        x = f.input("x", ("N",), ln.float32)
        t = x + 1
        y = f.output(t * 2, "y")
        t.compute_at(y, 1)
        for call, text in (
            (lambda: t + 1, "add(T1, 1)"),
            (lambda: ln.sum(t), "sum(T1, axis=None)"),
            (lambda: ln.broadcast(t, (True, False)), "broadcast(T1, (True, False))"),
        ):
            with pytest.raises(ln.DefinitionError) as caught:
                call()
            assert str(caught.value) == (
                f"{text}: T1 is computed inside its consumers already (compute_at_pos 1); "
                f"define all consumers of a tensor before it is inlined: {taken_back(f, 0)}"
            )


def test_errors_are_loopnest_errors() -> None:
    assert issubclass(ln.DefinitionError, ln.LoopnestError)
    assert issubclass(ln.NotSupported, ln.LoopnestError)
    assert isinstance(names()["a"], ScalarOperand)
