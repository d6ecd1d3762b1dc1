"""One table of all ops: how each is called, and what NumPy (or a plain loop) says to it."""

from __future__ import annotations

import math

import numpy as np

import loopnest as ln
import loopnest.graph as G
from graph.case_makers import (
    apart,
    between,
    bools,
    both,
    case,
    integers,
    normal,
    positive,
    quotient,
    transposed,
)
from graph.op_references import (
    NUMBERS,
    average,
    blocked,
    conv,
    erf,
    fused,
    gathered,
    multiplied,
    normalised,
    picked_by_number,
    place_numbers,
    pool,
    sigmoid,
    softmax,
    spread,
    spread_by_number,
    unblocked,
    unsliced,
)
from loopnest.graph.registry import get_op

OPS = [op for op in G.op_names() if get_op(op).infer.__module__.startswith("loopnest.graph.")]
"""The ops of graphs themselves: other rooms add theirs, such as calls of torch."""
SIZE = {"value": 3, "dtype": ln.float32}
SQUARE = normal((3, 4))
PAIR = normal((3, 4), (4,))
IMAGE, KERNEL = (2, 4, 5, 6), (6, 4, 3, 2)
CONV = {"strides": (2, 1), "padding": (1, 0, 2, 1), "dilation": (1, 2)}
ARGS = ((2, 1), (1, 0, 2, 1), (1, 2))
OUT = (2, 6, 3, 5)
BACK = {**CONV, "groups": 1}
POOL = {"pool": (2, 2), "strides": (1, 1)}
AVERAGE = {"pool": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)}


POINTWISE = [
    case("neg", SQUARE, np.negative),
    case("abs", apart((3, 4)), np.abs),
    case("floor", SQUARE, np.floor),
    case("ceil", SQUARE, np.ceil),
    case("round", SQUARE, np.round),
    case("trunc", SQUARE, np.trunc),
    case("relu", apart((3, 4)), lambda x: np.where(x > 0, x, 0)),
    case("exp", SQUARE, np.exp),
    case("exp2", SQUARE, lambda x: 2**x),
    case("log", positive((3, 4)), np.log),
    case("log2", positive((3, 4)), np.log2),
    case("log1p", positive((3, 4)), np.log1p),
    case("sqrt", positive((3, 4)), np.sqrt),
    case("rsqrt", positive((3, 4)), lambda x: x**-0.5),
    case("reciprocal", positive((3, 4)), lambda x: 1 / x),
    case("sin", SQUARE, np.sin),
    case("cos", SQUARE, np.cos),
    case("tan", SQUARE, np.tan),
    case("tanh", SQUARE, np.tanh),
    case("sigmoid", SQUARE, sigmoid),
    case("erf", SQUARE, erf),
    case("silu", SQUARE, lambda x: x * sigmoid(x)),
    case("gelu", SQUARE, lambda x: x * 0.5 * (1 + erf(x / math.sqrt(2)))),
    case(
        "gelu",
        SQUARE,
        lambda x: x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        lambda x: G.gelu(x, "tanh"),
        "tanh",
    ),
    case("add", PAIR, np.add),
    case("sub", PAIR, np.subtract),
    case("mul", PAIR, np.multiply),
    case("mul", normal((3, 1), (4,)), np.multiply, label="outer"),
    case("div", positive((4,), (3, 4)), np.divide),
    case("mod", between, np.mod),
    case("pow", positive((3, 4), (4,)), np.power),
    case("pow", SQUARE, lambda x: x**3, lambda x: x**3, "constant"),
    case("pow", SQUARE, lambda x: x**2, lambda x: x**2, "square"),
    case("pow", normal((3,)), lambda x: x**0, lambda x: x**0.0, "zero"),
    case("pow", normal((3,)), lambda x: x, lambda x: x**1.0, "one"),
    case("fma", normal((3, 4), (4,), ()), lambda a, b, c: a * b + c),
    case("maximum", apart((3, 4), (4,)), np.maximum),
    case("minimum", apart((3, 4), (4,)), np.minimum),
    case(
        "clamp",
        apart((3, 4), (4,), (3, 1)),
        lambda x, lo, hi: np.minimum(np.maximum(x, lo), hi),
    ),
    *[
        case(op, apart((3, 4), (4,)), getattr(np, name))
        for op, name in {
            "eq": "equal",
            "ne": "not_equal",
            "lt": "less",
            "le": "less_equal",
            "gt": "greater",
            "ge": "greater_equal",
        }.items()
    ],
    case("isnan", lambda r: [np.array([1.0, np.nan, np.inf])], np.isnan),
    case("bitand", integers((3, 4), (4,)), np.bitwise_and),
    case("bitor", bools((3, 4), (4,)), np.bitwise_or),
    case("bitxor", bools((3, 4), (4,)), np.bitwise_xor),
    case("invert", integers((3, 4)), np.invert),
    case("floordiv", integers((3, 4), (4,)), quotient),
    case("lshift", integers((3, 4), (4,)), np.left_shift),
    case("rshift", integers((3, 4), (4,)), np.right_shift),
    case("logical_and", bools((3, 4), (4,)), np.logical_and),
    case("logical_or", bools((3, 4), (4,)), np.logical_or),
    case("logical_not", bools((3, 4)), np.logical_not),
    case("where", both(bools((3, 1)), normal((3, 4), (4,))), np.where),
    case("cast", SQUARE, lambda x: x.astype(np.float32), lambda x: G.cast(x, "float32")),
    case("cast", bools((3,)), lambda x: x.astype(np.float64), lambda x: G.cast(x, "float64"), "b"),
]

REDUCTIONS = [
    case(
        op,
        maker((2, 3, 4)),
        lambda x, f=function, a=axis, k=keep: f(x, axis=a, keepdims=k),
        lambda x, op=op, a=axis, k=keep: getattr(G, op)(x, a, keepdims=k),
        f"{axis}",
    )
    for op, function, maker in (
        ("sum", np.sum, normal),
        ("prod", np.prod, normal),
        ("max", np.max, apart),
        ("min", np.min, apart),
        ("any", np.any, bools),
        ("all", np.all, bools),
        ("mean", np.mean, normal),
        ("variance", np.var, normal),
    )
    for axis, keep in ((1, False), ((0, 2), True), (None, False))
] + [
    case(
        "variance",
        SQUARE,
        lambda x: np.var(x, 1, ddof=1),
        lambda x: G.variance(x, 1, correction=1),
        "sample",
    ),
    case(
        "prod",
        lambda r: [np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 1.0]])],
        lambda x: np.prod(x, 1),
        lambda x: G.prod(x, 1),
        "zeros",
    ),
    case("argmax", apart((3, 4)), lambda x: np.argmax(x, 1), lambda x: G.argmax(x, 1)),
    case("argmin", apart((3, 4)), lambda x: np.argmin(x, 0), lambda x: G.argmin(x, 0)),
    case("matmul", normal((3, 4), (4, 2)), np.matmul),
    case("matmul", normal((2, 1, 3, 4), (5, 4, 2)), np.matmul, label="batch"),
]

STRUCTURE = [
    case(
        "broadcast_to",
        normal((3, 1)),
        lambda x: np.broadcast_to(x, (2, 3, 4)),
        lambda x: G.broadcast_to(x, (2, 3, 4)),
    ),
    case(
        "expand_dims",
        SQUARE,
        lambda x: np.expand_dims(x, (0, 2)),
        lambda x: G.expand_dims(x, (0, 2)),
    ),
    case("squeeze", normal((1, 3, 1)), lambda x: x[0], lambda x: G.squeeze(x, 0)),
    case(
        "transpose",
        normal((2, 3, 4)),
        lambda x: np.transpose(x, (2, 0, 1)),
        lambda x: G.transpose(x, (2, 0, 1)),
    ),
    case("reshape", SQUARE, lambda x: x.reshape(2, 6), lambda x: G.reshape(x, (2, -1))),
    case("flip", SQUARE, lambda x: x[:, ::-1], lambda x: G.flip(x, 1)),
    case(
        "concatenate",
        normal((3, 2), (3, 1), (3, 4)),
        lambda *xs: np.concatenate(xs, 1),
        lambda *xs: G.concatenate(xs, 1),
    ),
    case("slice", normal((5, 6)), lambda x: x[1:4:2, -5:], lambda x: x[1:4:2, -5:]),
    case("unslice", normal((2, 3)), unsliced, lambda x: G.unslice(x, (5, 7), (1, 0), (2, 3))),
    case(
        "pad",
        SQUARE,
        lambda x: np.pad(x, ((1, 0), (0, 2)), constant_values=1.5),
        lambda x: G.pad(x, ((1, 0), (0, 2)), 1.5),
    ),
    case(
        "layout_transform",
        normal((2, 6, 3, 2)),
        lambda x: blocked(x, 3),
        lambda x: G.layout_transform(x, "NCHW", "NCHW3c"),
    ),
    case(
        "layout_transform",
        normal((2, 2, 3, 2, 3)),
        lambda x: unblocked(x).transpose(0, 2, 3, 1),
        lambda x: G.layout_transform(x, "NCHW3c", "NHWC"),
        "back",
    ),
    case("full", lambda r: [], lambda: np.full((2, 3), 1.5), lambda: G.full((2, 3), 1.5)),
    case("iota", lambda r: [], lambda: np.array([3, 1, -1]), lambda: G.iota(3, 3, -2)),
    case(
        "take",
        both(normal((2, 4, 3)), integers((3, 2), low=0, high=4)),
        lambda x, i: np.take(x, i, 1),
        lambda x, i: G.take(x, i, 1),
    ),
    case("argsort", normal((4, 70)), lambda x: np.argsort(x, 1, kind="stable")),
    case(
        "argsort",
        integers((3, 5), low=0, high=3),
        lambda x: np.argsort(-x, 0, kind="stable"),
        lambda x: G.argsort(x, 0, descending=True),
        "falling",
    ),
    case(
        "searchsorted",
        lambda r: [np.sort(r.standard_normal(9)), r.standard_normal((4, 3))],
        lambda x, v: np.searchsorted(x, v),
    ),
    case(
        "index_add",
        both(normal((4, 3)), integers((5,), low=0, high=4, dtype="int32"), normal((5, 3))),
        lambda x, i, u: x + (i == np.arange(4)[:, None]) @ u,
    ),
    case(
        "put",
        both(normal((4, 3)), lambda r: [np.array([7, 0, 11])], normal((3,))),
        lambda x, i, u: np.concatenate([u[1:2], x.flat[1:7], u[:1], x.flat[8:11], u[2:]]).reshape(
            4, 3
        ),
    ),
    *[
        case(
            "put",
            lambda r: (lambda x, u: [x, np.array([7, 0, 7, 11, 7]), u])(*apart((4, 3), (5,))(r)),
            lambda x, i, u, fold=fold: np.array(
                [fold([v, *u[i == n]]) for n, v in enumerate(x.flat)]
            ).reshape(4, 3),
            lambda x, i, u, name=name: G.put(x, i, u, name),
            name,
        )
        for name, fold in {"max": max, "min": min, "prod": math.prod}.items()
    ],
    case(
        "put",
        both(
            lambda r: [np.array([[2.0, 0.0, -1.5], [0.0, 3.0, 0.5]])],
            lambda r: [np.array([[0, 1, 5, 5], [2, 0, 2, 3]])],
            lambda r: [np.array([[0.0, 2.0, 3.0, 0.0], [-2.0, 1.5, 4.0, 0.0]])],
        ),
        multiplied,
        lambda x, i, u: G.put(x, i, u, "prod"),
        "prod, zeros",
    ),
    case("size", lambda r: [], lambda: np.float32(3), lambda: G.call("size", (), SIZE)),
    case("const", lambda r: [], lambda: np.ones(2), lambda: G.const(np.ones(2))),
    case("var", SQUARE, lambda x: x, lambda x: x),
    case(
        "variable", lambda r: [], lambda: np.array([1.0]), lambda: G.Variable(np.array([1.0]), "s")
    ),
    case(
        "assign",
        normal((3,)),
        lambda x: 2 * x,
        lambda x: G.assign(G.Variable(np.zeros(3), "s"), x * 2.0),
    ),
    case("tuple", normal((3,)), lambda x: (x, 2 * x), lambda x: G.make_tuple(x, x * 2.0)),
    case("group", normal((3,)), lambda x: (x, -x), lambda x: G.group(x, -x)),
    case("get_item", PAIR, lambda x, y: x - y, lambda x, y: G.make_tuple(y, x - y)[1]),
    case(
        "fused",
        PAIR,
        lambda x, y: np.tanh(x + y) * (x + y),
        lambda x, y: fused(x, y),
    ),
]


NETWORKS = [
    case(
        "conv2d",
        normal(IMAGE, KERNEL),
        lambda x, w: conv(x, w, *ARGS),
        lambda x, w: G.conv2d(x, w, **CONV),
    ),
    case(
        "conv2d",
        normal((1, 4, 4, 3), (6, 2, 2, 2)),
        lambda x, w: conv(x, w, groups=2),
        lambda x, w: G.conv2d(x, w, groups=2),
        "groups",
    ),
    case(
        "conv2d",
        normal((1, 2, 4, 3, 2), (6, 4, 2, 2)),
        lambda x, w: blocked(conv(unblocked(x), w), 2),
        lambda x, w: G.conv2d(x, w, data_layout="NCHW2c"),
        "blocked",
    ),
    case(
        "conv2d_backward_data",
        normal(OUT, KERNEL),
        lambda dy, w: transposed(lambda x: conv(x, w, *ARGS), IMAGE)(dy),
        lambda dy, w: G.conv2d_backward_data(dy, w, IMAGE, **BACK),
    ),
    case(
        "conv2d_backward_weight",
        normal(IMAGE, OUT),
        lambda x, dy: transposed(lambda w: conv(x, w, *ARGS), KERNEL)(dy),
        lambda x, dy: G.conv2d_backward_weight(x, dy, KERNEL, **BACK),
    ),
    case(
        "conv",
        normal(IMAGE, KERNEL),
        lambda x, w: conv(x, w, *ARGS),
        lambda x, w: G.conv(x, w, (2, 1), [(1, 2), (0, 1)], (1, 2)),
    ),
    case(
        "conv",
        normal((1, 4, 5), (6, 2, 2)),
        lambda x, w: conv(x[:, :, None], w[:, :, None], groups=2)[:, :, 0],
        lambda x, w: G.conv(x, w, groups=2),
        "groups",
    ),
    case(
        "conv_transposed",
        normal(OUT, KERNEL),
        lambda dy, w: transposed(lambda x: conv(x, w, *ARGS), IMAGE)(dy),
        lambda dy, w: G.conv_transposed(dy, w, IMAGE[2:], (2, 1), (1, 0), (1, 2)),
    ),
    case(
        "conv_transposed",
        normal((1, 4, 3), (4, 3, 2)),
        lambda dy, w: np.pad(
            transposed(
                lambda x: conv(x[:, :, None], w[:, :, None], (1, 2), groups=2)[:, :, 0],
                (1, 6, 6),
            )(dy),
            ((0, 0), (0, 0), (0, 2)),
        ),
        lambda dy, w: G.conv_transposed(dy, w, [8], 2, groups=2),
        "behind",
    ),
    case(
        "conv_weight",
        normal(IMAGE, OUT),
        lambda x, dy: transposed(lambda w: conv(x, w, *ARGS), KERNEL)(dy),
        lambda x, dy: G.conv_weight(x, dy, KERNEL[2:], (2, 1), [(1, 2), (0, 1)], (1, 2)),
    ),
    case(
        "unfold",
        normal((2, 8, 3)),
        lambda x: np.stack([x[:, 0:3:2], x[:, 2:5:2], x[:, 4:7:2]], -1),
        lambda x: G.unfold(x[:, :7], 1, 3, 2, 2),
    ),
    case(
        "strided_view",
        normal((14,)),
        lambda x: np.stack([x[:4], x[5:9], x[10:14]])[:, ::2],
        lambda x: G.strided_view(x, (3, 2), (5, 2)),
    ),
    case(
        "strided_view",
        normal((6,)),
        lambda x: np.stack([x[:3], x[1:4]])[:, None].repeat(2, 1),
        lambda x: G.strided_view(x, (2, 2, 3), (1, 0, 1)),
        "of one element twice",
    ),
    case("cumsum", SQUARE, lambda x: np.cumsum(x, 1), lambda x: G.cumsum(x, 1)),
    case(
        "cumsum",
        SQUARE,
        lambda x: np.flip(np.cumsum(np.flip(x, 0), 0), 0) - x,
        lambda x: G.cumsum(x, 0, exclusive=True, reverse=True),
        "exclusive",
    ),
    case("cumprod", SQUARE, lambda x: np.cumprod(x, 0), lambda x: G.cumprod(x, 0)),
    case(
        "cumprod",
        SQUARE,
        lambda x: np.flip(np.cumprod(np.flip(x, 1), 1), 1) / x,
        lambda x: G.cumprod(x, 1, exclusive=True, reverse=True),
        "exclusive",
    ),
    case(
        "max_pool2d",
        apart((2, 2, 5, 5)),
        lambda x: pool(x, 3, 2, 1, np.nanmax),
        lambda x: G.max_pool2d(x, 3, 2, 1),
    ),
    case(
        "max_pool2d_backward",
        both(apart((1, 2, 4, 3)), normal((1, 2, 3, 2))),
        spread,
        lambda x, dy: G.max_pool2d_backward(x, dy, **POOL),
    ),
    case(
        "max_pool2d_gather",
        both(apart((1, 2, 4, 3)), normal((1, 2, 4, 3))),
        gathered,
        lambda x, v: G.max_pool2d_gather(x, v, **POOL),
    ),
    case(
        "max_pool2d_places",
        lambda r: [
            x := r.permutation(np.arange(24.0)).reshape(1, 2, 4, 3),
            pool(x, 2, 1, 0, np.max),
        ],
        place_numbers,
        lambda x, largest: G.call("max_pool2d_places", (x, largest), POOL),
    ),
    case(
        "max_pool2d_spread",
        both(NUMBERS, normal((1, 2, 3, 2))),
        spread_by_number,
        lambda n, dy: G.call("max_pool2d_spread", (n, dy), {"shape": (1, 2, 4, 3), **POOL}),
    ),
    case(
        "max_pool2d_spread_phases",
        both(NUMBERS, normal((1, 2, 3, 2))),
        lambda n, dy: spread_by_number(n, dy).reshape(1, 2, 1, 1, 4, 3),
        lambda n, dy: G.call("max_pool2d_spread_phases", (n, dy), {"shape": (1, 2, 4, 3), **POOL}),
    ),
    case(
        "max_pool2d_pick",
        both(NUMBERS, normal((1, 2, 4, 3))),
        picked_by_number,
        lambda n, v: G.call("max_pool2d_pick", (n, v), POOL),
    ),
    case("avg_pool2d", normal((2, 2, 5, 5)), average, lambda x: G.avg_pool2d(x, 3, 2, 1)),
    case(
        "avg_pool2d",
        normal((2, 2, 5, 5)),
        lambda x: pool(x, 3, 2, 1, lambda w, axis: np.nansum(w, axis) / 9),
        lambda x: G.avg_pool2d(x, 3, 2, 1, count_include_pad=True),
        "include",
    ),
    case(
        "avg_pool2d_backward",
        normal((2, 2, 3, 3)),
        lambda dy: transposed(average, (2, 2, 5, 5))(dy),
        lambda dy: G.avg_pool2d_backward(dy, (2, 2, 5, 5), **AVERAGE),
    ),
    case("softmax", SQUARE, lambda x: softmax(x, 1)),
    case("log_softmax", SQUARE, lambda x: np.log(softmax(x, 0)), lambda x: G.log_softmax(x, 0)),
]


COMPOSITES = [
    case(
        "batch_norm",
        normal((2, 3, 4, 5), (3,), (3,)),
        lambda x, g, b: normalised(x, (0, 2, 3), 1e-5) * g[:, None, None] + b[:, None, None],
    ),
    case(
        "batch_norm",
        normal((6, 3), (3,), (3,)),
        lambda x, g, b: normalised(x, (0,), 0.1) * g + b,
        lambda x, g, b: G.batch_norm(x, g, b, 0.1),
        "rows",
    ),
    case(
        "layer_norm",
        normal((3, 4, 5), (4, 5), (4, 5)),
        lambda x, g, b: normalised(x, (1, 2), 1e-5) * g + b,
        lambda x, g, b: G.layer_norm(x, g, b, (1, 2)),
    ),
    case(
        "cross_entropy",
        normal((3, 4), (3, 4)),
        lambda x, t: -(t * np.log(softmax(x, 1))).sum(1).mean(),
    ),
    case(
        "cross_entropy",
        both(normal((3, 4)), integers((3,), low=0, high=4)),
        lambda x, t: -np.log(softmax(x, 1))[np.arange(3), t].mean(),
        label="classes",
    ),
]

CASES = [*POINTWISE, *REDUCTIONS, *STRUCTURE, *NETWORKS]
