"""Bad declarations: fusions, inputs, scalars, outputs, assumptions; each raises its error."""

from __future__ import annotations

import numpy as np
import pytest

import loopnest as ln
from helpers.named_operands import names

TYPES = (
    "use ln.bool, int8, uint8, int16, uint16, int32, uint32, int64, float8_e4m3fn, float8_e5m2, "
    "float16, bfloat16, float32 or float64"
)
EXTENT = "use an int >= 0 or the name of a size symbol (an identifier)"
ASSUME = (
    "write one comparison of integers and size symbols with + - * // %, "
    "such as 'N % 128 == 0' or 'N <= 65536'"
)
INPLACE = "an output takes the memory of an input of the same shape and type"

# The code, the message up to the hint, the hint (if several share it).
DECLARATIONS = [
    ("ln.Fusion(3)", "Fusion(3): the name is no string", ""),
    (
        'f["nothing"]',
        "main['nothing']: no tensor has this name; the tensors are x, i, b, u, r, m, s",
        "",
    ),
    (
        'f.input("x", ("N",), ln.float32)',
        "input('x', ('N',)): the name 'x' is taken already",
        "use another one, such as 'x_2'",
    ),
    (
        'f.input("alpha", ("N",), ln.float32)',
        "input('alpha', ('N',)): the name 'alpha' is taken already",
        "use another one, such as 'alpha_2'",
    ),
    (
        'f.input("N", ("N",), ln.float32)',
        "input('N', ('N',)): the name 'N' is a size symbol already",
        "use another one, such as 'N_values'",
    ),
    (
        'f.input("fresh", ("fresh",), ln.float32)',
        "input('fresh', ('fresh',)): the name 'fresh' is a size symbol already",
        "use another one, such as 'fresh_values'",
    ),
    (
        'f.input("T3", ("N",), ln.float32)',
        "input('T3', ('N',)): the name 'T3' is reserved; names like T3 are given automatically",
        "",
    ),
    ('f.input(3, ("N",), ln.float32)', "input(3, ('N',)): the name 3 is not an identifier", ""),
    (
        'f.input("y", "N", ln.float32)',
        "input('y', 'N'): the shape 'N' is not a tuple of extents",
        "",
    ),
    ('f.input("y", 3, ln.float32)', "input('y', 3): the shape 3 is not a tuple of extents", ""),
    ('f.input("y", ("a b",), ln.float32)', "input('y', ('a b',)): 'a b' is no extent", EXTENT),
    (
        'f.input("y", ("x",), ln.float32)',
        "input('y', ('x',)): 'x' is the name of an argument already",
        "name the size otherwise, such as 'x_size'",
    ),
    ('f.input("y", (-1,), ln.float32)', "input('y', (-1,)): -1 is no extent", EXTENT),
    ('f.input("y", (True,), ln.float32)', "input('y', (True,)): True is no extent", EXTENT),
    ('f.input("y", (1.5,), ln.float32)', "input('y', (1.5,)): 1.5 is no extent", EXTENT),
    ('f.input("y", ("N",), "float32")', "input('y', ('N',)): 'float32' is no element type", TYPES),
    (
        'f.input("y", ("N",), np.float32)',
        "input('y', ('N',)): <class 'numpy.float32'> is no element type",
        TYPES,
    ),
    (
        'f.scalar("x", ln.float32)',
        "scalar('x'): the name 'x' is taken already",
        "use another one, such as 'x_2'",
    ),
    ('f.scalar("beta", float)', "scalar('beta'): <class 'float'> is no element type", TYPES),
    (
        'f.scalar("D", ln.int32)',
        "scalar('D'): the name 'D' is a size symbol already",
        "use another one, such as 'D_values'",
    ),
    (
        'x.named("b")',
        "x.named('b'): the name 'b' is taken already",
        "use another one, such as 'b_2'",
    ),
    (
        'x.named("T1")',
        "x.named('T1'): the name 'T1' is reserved; names like T3 are given automatically",
        "",
    ),
    (
        'f.output(x + 1, "b")',
        "output('b'): the name 'b' is taken already",
        "use another one, such as 'b_2'",
    ),
    ('f.output(x + 1, "2y")', "output('2y'): the name '2y' is not an identifier", ""),
    (
        'f.output(z, "y")',
        "output('y'): <TensorView z float32 global [i0: N, i1: D] compute_at=0 produced_at=0> "
        "is no TensorView of fusion main",
        "",
    ),
    ('f.output(1.0, "y")', "output('y'): 1.0 is no TensorView of fusion main", ""),
    (
        'f.output(x + 1, "y", inplace=i)',
        "output('y'): T7 is float32[N, D] but i is int32[N, D]",
        INPLACE,
    ),
    ('f.output(x + 1, "y", inplace=z)', "output('y'): inplace= is not an input of this fusion", ""),
    (
        'f.output(x + 1, "y", inplace=x + 1)',
        "output('y'): inplace= is not an input of this fusion",
        "",
    ),
    (
        '(f.output(x + 1, "y", inplace=x), f.output(x + 2, "w", inplace=x))',
        "output('w'): x is overwritten by another output already",
        "",
    ),
    ('f.assume("N")', "assume('N'): it is not one comparison", ASSUME),
    ('f.assume("N <")', "assume('N <'): it cannot be read", ASSUME),
    ('f.assume("N < 3 < D")', "assume('N < 3 < D'): it is not one comparison", ASSUME),
    ('f.assume("N < Q")', "assume('N < Q'): 'Q' is no size symbol of this fusion", ASSUME),
    ('f.assume("N < 2.5")', "assume('N < 2.5'): '2.5' is not allowed", ASSUME),
    ('f.assume("N / 2 == 4")', "assume('N / 2 == 4'): 'N / 2' is not allowed", ASSUME),
    ('f.assume("N is D")', "assume('N is D'): it is not one comparison", ASSUME),
    ('f.assume("abs(N) == 4")', "assume('abs(N) == 4'): 'abs(N)' is not allowed", ASSUME),
    ("f.assume(3)", "assume(3): it is not a string", ""),
]


@pytest.mark.parametrize(
    ("code", "message", "hint"), DECLARATIONS, ids=[c[0] for c in DECLARATIONS]
)
def test_bad_declaration(code: str, message: str, hint: str) -> None:
    with pytest.raises(ln.DefinitionError) as caught:
        eval(code, names())
    assert str(caught.value) == (f"{message}; {hint}" if hint else message)


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("scale", "scale"),
        ("layer 1/norm", "layer_1_norm"),
        ("3x3", "_3x3"),
        ("", "_"),
        ("x\u00b2\n", "x__"),
        ("\u00e9 t\u00e9", "\u00e9_t\u00e9"),
        ("for", "for"),
        ('a"*/(b)', "a_b_"),
    ],
)
def test_any_name_of_a_fusion_makes_a_kernel(name: str, kept: str) -> None:
    with ln.Fusion(name) as f:
        x = f.input("x", (4,), ln.float32)
        f.output(x * 2.0, "y")
    k = ln.lower(f)
    assert f.name == kept
    assert str(k).splitlines()[1] == f"kernel {kept}(x: float32[4]) -> (y: float32[4])"
    assert str(ln.Kernel.parse(k.text(full=True))) == str(k)
    values = np.arange(4, dtype=np.float32)
    assert ln.compile(k, "c")(values).tolist() == [0.0, 2.0, 4.0, 6.0]
    assert "__global__" in k.cuda()
