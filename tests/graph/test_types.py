"""The types that ops compute in, and the conversions: those of the core."""

import itertools

import numpy as np
import pytest

import loopnest as ln
import loopnest.graph as G
from loopnest.numerics.target_accuracy import FORMATS
from loopnest.scalar import dtypes

UNARY = [
    "neg",
    "abs",
    "floor",
    "ceil",
    "round",
    "trunc",
    "relu",
    "exp",
    "sqrt",
    "sin",
    "tanh",
    "sigmoid",
    "invert",
    "isnan",
    "logical_not",
]
BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "mod",
    "maximum",
    "minimum",
    "eq",
    "lt",
    "ge",
    "bitand",
    "bitor",
    "bitxor",
    "floordiv",
    "lshift",
    "rshift",
    "logical_and",
    "logical_or",
    "matmul",
]
NUMBERS = (True, 3, -2, 0.5, 0.1, 70000, 1e5, float("inf"), np.float64(0.1))
VALUES = {
    "b": [True, False, True, True],
    "i": [127, 3, -2, 1],
    "f": [0.5, -1.25, 3.0, 0.1],
}


def array(dtype, rank):
    given = [70000, *VALUES["i"][1:]] if dtype in (ln.int32, ln.int64) else VALUES[dtype.kind]
    values = np.array(given).astype(dtype.numpy)
    return values.reshape(2, 2) if rank == 2 else values


def in_core(op, operands):
    """Return type and value that the core gives for arrays and numbers; None if it refuses."""
    with ln.Fusion("f") as f:
        nodes = [
            f.input(f"x{i}", x.shape, dtypes.from_numpy(x.dtype)) if shaped(x) else x
            for i, x in enumerate(operands)
        ]
        try:
            result = getattr(ln, op)(*nodes)
        except ln.LoopnestError:
            return None
        f.output(result, "y")
    return result.dtype, ln.evaluate(f, *[x for x in operands if shaped(x)])


def in_graph(op, operands):
    nodes = [
        G.var(f"x{i}", x.shape, x.dtype.name) if shaped(x) else x for i, x in enumerate(operands)
    ]
    try:
        result = getattr(G, op)(*nodes)
    except G.GraphError:
        return None
    feeds = {f"x{i}": x for i, x in enumerate(operands) if shaped(x)}
    inputs = [x for x in nodes if isinstance(x, G.Node)]
    return result.dtype, G.evaluate(G.Graph(inputs, [result]), feeds)[0]


def shaped(operand):
    return isinstance(operand, np.ndarray)


def agree(op, operands):
    core, graph = in_core(op, operands), in_graph(op, operands)
    assert (core is None) == (graph is None), (op, operands, core, graph)
    if core is None:
        return
    assert core[0] is graph[0], (op, operands)
    kind = core[0]
    bound = 2 * FORMATS[kind.name].unit if kind.is_narrow else 1e-5
    wanted, found = (np.asarray(x[1]).astype(np.float64) for x in (core, graph))
    np.testing.assert_allclose(found, wanted, bound, 0, err_msg=f"{op} {operands}")


@pytest.mark.parametrize("op", UNARY)
def test_one_operand(op):
    for dtype in dtypes.ALL:
        agree(op, [array(dtype, 1)])


@pytest.mark.parametrize("op", BINARY)
def test_two_operands(op):
    rank = 2 if op == "matmul" else 1
    for a, b in itertools.product(dtypes.ALL, repeat=2):
        agree(op, [array(a, rank), array(b, rank)])


@pytest.mark.parametrize("op", [op for op in BINARY if op != "matmul"])
def test_numbers_are_weak(op):
    for dtype, number in itertools.product(dtypes.ALL, NUMBERS):
        agree(op, [array(dtype, 1), number])
        agree(op, [number, array(dtype, 1)])


def test_three_operands():
    for types in itertools.product((dtypes.bool_, ln.int32, ln.float16, ln.bfloat16), repeat=3):
        for op in ("where", "clamp", "fma"):
            agree(op, [array(dtype, 1) for dtype in types])


def test_operands_of_halves_are_rounded_once():
    i, h = G.var("i", (1,), "int32"), G.var("h", (1,), "float16")
    graph = G.Graph([i, h], [i * h, i < h, h * 0.1])
    assert str(graph) == (
        "# loopnest graph 1\n"
        "graph main(i: int32[1], h: float16[1]) {\n"
        "  %0: float32[1] = cast(i, dtype=float32)\n"
        "  %1: float32[1] = cast(h, dtype=float32)\n"
        "  %2: float32[1] = mul(%0, %1)\n"
        "  %3: float16[1] = cast(%2, dtype=float16)\n"
        "  %4: float32[1] = cast(i, dtype=float32)\n"
        "  %5: float32[1] = cast(h, dtype=float32)\n"
        "  %6: bool[1] = lt(%4, %5)\n"
        "  %7: float32[1] = cast(h, dtype=float32)\n"
        "  %8: float32[1] = mul(%7, 0.1:float32)\n"
        "  %9: float16[1] = cast(%8, dtype=float16)\n"
        "  return %3, %6, %9\n"
        "}"
    )
    (product, less, _) = G.evaluate(graph, {"i": [70000], "h": [0.5]})
    assert product == np.float16(35008)
    assert not less
    x = np.arange(2048, dtype=np.float16)
    node = G.var("x", x.shape, "float16")
    (scaled,) = G.evaluate(G.Graph([node], [node * 0.1]), {"x": x})
    np.testing.assert_array_equal(scaled, (x.astype(np.float32) * np.float32(0.1)).astype("f2"))


def test_numbers_that_halves_hold_need_no_conversion():
    h = G.var("h", (2,), "float16")
    assert str(G.Graph([h], [h * 0.5 + 1])).count("cast") == 0
    assert str(G.Graph([h], [G.maximum(h, float("-inf"))])).count("cast") == 0


def test_numbers_of_numpy():
    x = G.var("x", (2,))
    assert (x * np.sqrt(2)).dtype is ln.float32  # float64 is Python's float, weak as in the core
    assert (x * np.float32(2)).dtype is ln.float32
    assert (G.cast(x, "float16") * np.float32(2)).dtype is ln.float32
    assert G.full((2,), np.float64(0.5)).dtype is ln.float32
