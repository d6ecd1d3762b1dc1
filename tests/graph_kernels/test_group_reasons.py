"""`G.explain_fusion(kernels=True)`: why two ops share a kernel, or why they do not."""

import pytest

import loopnest.graph as G

X, W, B = G.var("x", (32, 16)), G.var("w", (16, 8)), G.var("b", (8,))
PRODUCT = X @ W
SUM = PRODUCT + B
OTHER_PRODUCT = X @ (W * 0.5)
SCALED = OTHER_PRODUCT * 0.5
TOTAL = G.sum(SUM, 1)
ROWS = G.sum(G.exp(X), 1)
BACK = G.exp(X) * G.argmax(G.softmax(X), 1, keepdims=True)
OTHER = G.var("z", (5,)) * 2.0
EXP = G.exp(X)
CUT = G.reshape(EXP, (8, 4, 16))
OF_CUT = G.sum(CUT, (1, 2))
ODD = G.exp(G.var("odd", (4, 6)))
UNEVEN = G.sum(G.reshape(ODD, (3, 8)), 1)


def reason(a, b, **options):
    ends = [TOTAL, ROWS, BACK, OTHER, SCALED, OF_CUT, UNEVEN]
    graph = G.Graph([X, W, B, OTHER.inputs[0], ODD.inputs[0]], ends)
    with G.Target("llvm"):
        return G.explain_fusion(graph, a, b, kernels=True, **options)


@pytest.mark.parametrize(
    ("a", "b", "options", "expected"),
    [
        (
            OTHER_PRODUCT,
            SCALED,
            {},
            "matmul(x, mul(…)) and mul(matmul(…), 0.5) share a kernel of 3 ops, by the scheduler "
            "'contraction'",
        ),
        (
            SUM,
            TOTAL,
            {},
            "add(matmul(…), b) and sum(add(…)) share a kernel of 2 ops, by the scheduler 'fold'",
        ),
        (
            PRODUCT,
            SUM,
            {"library": True},
            "matmul(x, w) is left to a library; library=False makes a kernel of it",
        ),
        (
            PRODUCT,
            SUM,
            {},
            "matmul(x, w) and add(matmul(…), b) do not share a kernel: no scheduler of 'c' accepts "
            "both together (asked: ",
        ),
        (
            TOTAL,
            OTHER,
            {},
            "sum(add(…)) and mul(z, 2.0) do not share a kernel: neither reads the other, and they "
            "read nothing in common",
        ),
        (
            EXP,
            OF_CUT,
            {},
            "exp(x) and sum(reshape(…)) share a kernel of 2 ops, by the scheduler 'fold'",
        ),
        (
            EXP,
            CUT,
            {},
            "reshape(exp(…)) is another shape of its operand: a kernel of ops on both sides of it "
            "does without",
        ),
        (
            ODD,
            UNEVEN,
            {},
            "exp(odd) and sum(reshape(…)) do not share a kernel: a reshape is between them, and "
            "axes of 6 and of 8 have no parts in common",
        ),
        (
            ROWS,
            X,
            {},
            "x is a var: kernels read it, and a scalar constant stands in their text",
        ),
        (
            BACK.inputs[1].inputs[0].inputs[0],
            ROWS,
            {},
            "softmax(x) is made of other ops: apply G.Decompose() to the graph first",
        ),
    ],
)
def test_reasons(a, b, options, expected):
    assert reason(a, b, **options).startswith(expected)
