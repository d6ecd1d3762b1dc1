"""Every rule of an ATen operator, with each of its arguments given and left out, beside torch."""

import math
import operator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from loopnest.torch import loopnest_backend, recording  # noqa: E402 - torch is asked for first
from loopnest.torch.aten_table import RULES  # noqa: E402
from loopnest.torch.dynamo_backend import LazyProgram, shapes_propagated  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, of several versions


def some(*shape: int, dtype: torch.dtype = torch.float32) -> Any:
    """Return numbers of both signs, of which some are equal."""
    torch.manual_seed(len(shape))
    return (torch.randn(shape) * 3).to(dtype)


def whole(*shape: int) -> Any:
    return some(*shape, dtype=torch.int64)


X = some(3, 4)
POSITIVE = X.abs() + 0.5
PLANES, VOLUMES = some(2, 3, 7, 8), some(1, 2, 5, 6, 7)
ROWS = torch.tensor([[2], [0], [1]])
HEADS = [x.cpu() for x in (some(1, 2, 5, 4) / 3, some(1, 2, 5, 4) / 2, some(1, 2, 5, 4))]
ATTENDED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*HEADS)
FILTERS = some(4, 3, 3, 2)
AROUND = [2, 1], [1, 0], [1, 2], False, [0, 0], 1
CONVOLVED = torch.ops.aten.convolution(PLANES, FILTERS, None, *AROUND)
LARGEST = {
    2: torch.ops.aten.max_pool2d_with_indices(PLANES, [3, 2], [2, 2]),
    3: torch.ops.aten.max_pool3d_with_indices(VOLUMES, [2, 2, 2]),
}

ONE = [(X,), (torch.zeros(2, 0),)]
NUMBERS = [(X, 2), (whole(3, 4), 3), (X, 0.75)]
TENSORS = [(X, POSITIVE), (whole(3, 4), whole(3, 4)), (X, some(4)), (some(3, 1), some(4))]
BITS = [(whole(3, 4), whole(4)), (X > 0, some(3, 4) > 1)]
OTHERS = {
    "reciprocal": [(POSITIVE,)],
    "log": [(POSITIVE,)],
    "log2": [(POSITIVE,)],
    "log1p": [(POSITIVE,)],
    "sqrt": [(POSITIVE,)],
    "rsqrt": [(POSITIVE,)],
    "bitwise_not": [(whole(4),), (X > 0,)],
    "t": [(X,), (X[0],)],
    "max": [(X,), (whole(3, 4),)],
    "min": [(X,), (whole(3, 4),)],
    "sign": [(X,), (whole(3, 4),), (X > 0,)],
    "squeeze": [(some(1, 3, 1),)],
}
"""Calls of operators of one tensor, where these are others than `ONE`."""
SHAPE = [((2, 3),), ((0, 2),)]
LIKE = [(X,), (whole(3),)]
NEW = [(X, (2, 5)), (whole(2), ())]
MASK = X > 0
CALLS: dict[str, list[tuple[Any, ...]]] = {
    "_adaptive_avg_pool2d.default": [(some(2, 3, 6, 8), [3, 2])],
    "_adaptive_avg_pool3d.default": [(some(1, 2, 4, 6, 8), [2, 3, 2])],
    "_log_softmax.default": [(X, -1, False), (X, 0, False), (X[0, 0], 0, False)],
    "_softmax.default": [(X, -1, False), (X, 0, False), (X[0, 0], -1, False)],
    "_scaled_dot_product_flash_attention_for_cpu.default": [tuple(HEADS)],
    "_scaled_dot_product_flash_attention_for_cpu_backward.default": [
        (some(1, 2, 5, 4).cpu(), *HEADS, *ATTENDED, 0.0, False)
    ],
    "_unsafe_view.default": [(X, (2, 6)), (X, (-1,))],
    "addcdiv.default": [(X, some(4), POSITIVE)],
    "addcmul.default": [(X, some(4), POSITIVE), (whole(3), whole(3), whole(3))],
    "addmm.default": [(some(4), some(3, 2), some(2, 4)), (whole(4), whole(3, 2), whole(2, 4))],
    "all.dim": [(MASK, 1), (X, -2)],
    "any.dim": [(MASK, 1), (X, -2)],
    "arange.default": [(5,), (4.5,)],
    "arange.start": [(2, 7), (-1.5, 3.0)],
    "arange.start_step": [(1, 8), (0.5, 5)],
    "as_strided.default": [(X, (2, 6), (6, 1)), (X, (4, 3), (1, 4)), (X, (2, 2), (4, 1))],
    "as_strided_copy.default": [(X, (4, 3), (1, 4)), (X, (2, 3, 2), (4, 1, 2))],
    "avg_pool1d.default": [(some(2, 3, 9), [4])],
    "avg_pool2d.default": [(PLANES, [3, 2])],
    "avg_pool3d.default": [(VOLUMES, [2, 3, 3])],
    "avg_pool2d_backward.default": [
        (some(2, 3, 3, 4), PLANES, [3, 2], [2, 2], [0, 0], False, True, None),
        (some(2, 3, 4, 5), PLANES, [3, 2], [2, 2], [1, 1], True, False, None),
        (some(2, 3, 3, 4), PLANES, [3, 2], [2, 2], [0, 0], False, True, 5),
    ],
    "avg_pool3d_backward.default": [
        (some(1, 2, 2, 3, 3), VOLUMES, [2, 2, 2], [2, 2, 2], [0, 0, 0], False, True, None)
    ],
    "bmm.default": [(some(2, 3, 4), some(2, 4, 5))],
    "cat.default": [([X, some(2, 4), torch.zeros(0)],), ([whole(3), some(2)],)],
    "clamp.Tensor": [(X,)],
    "clamp.default": [(X,), (whole(3, 4),)],
    "clamp_max.Tensor": TENSORS,
    "clamp_max.default": NUMBERS,
    "clamp_min.Tensor": TENSORS,
    "clamp_min.default": NUMBERS,
    "constant_pad_nd.default": [(X, [1, 2, 0, 3]), (X, [-1, 2]), (whole(3), [1, 1])],
    "convolution.default": [
        (PLANES, FILTERS, some(4), *AROUND),
        (PLANES, some(3, 2, 3, 2), None, [2], [1], [1], True, [1, 0], 1),
    ],
    "convolution_backward.default": [
        (some(*CONVOLVED.shape), PLANES, FILTERS, [4], *AROUND, [True, True, True])
    ],
    "copy.default": [(X, some(4)), (whole(3, 4), X)],
    "cumprod.default": [(X, 1), (whole(3, 4) % 3, -2)],
    "cumsum.default": [(X, 1), (whole(3, 4), -2), (X[0, 0], 0)],
    "div.Scalar_mode": [(X, 2), (whole(9), -2)],
    "div.Tensor_mode": [(X, POSITIVE), (whole(9), whole(9) * 2 - 1)],
    "dot.default": [(some(5), some(5))],
    "embedding.default": [(some(5, 3), torch.tensor([[1, 4], [0, 1]]))],
    "embedding_dense_backward.default": [
        (some(2, 2, 3), torch.tensor([[1, 4], [0, 1]]), 5, -1, False),
        (some(2, 2, 3), torch.tensor([[1, 4], [0, 1]]), 5, 1, False),
    ],
    "empty.memory_format": [((0, 2),)],
    "empty_like.default": [(torch.zeros(3, 0),)],
    "expand.default": [(some(3, 1), (2, 3, 4)), (some(3, 1), (-1, 2))],
    "expand_copy.default": [(some(3, 1), (2, 3, 4))],
    "fill.Scalar": [(X, 2), (whole(3), 1)],
    "fill.Tensor": [(X, torch.tensor(2.5))],
    "flip.default": [(X, [0, -1]), (X, [])],
    "full.default": [((2, 3), 7), ((), 1.5)],
    "full_like.default": [(X, 7), (whole(3), 2)],
    "gather.default": [
        (X, 1, ROWS),
        (X, 0, torch.tensor([[2, 0], [1, 1]])),
        (X, -1, torch.tensor([[2, 3, 3, 0, 1]])),
        (some(5), 0, torch.zeros(2, 0, dtype=torch.int64)),
        (some(2, 3, 4), 1, torch.tensor([[[2, 0, 1, 1]], [[0, 1, 2, 0]]])),
    ],
    "hardtanh.default": [(X,), (whole(3, 4),)],
    "index.Tensor": [
        (X, [torch.tensor([2, -1])]),
        (X, [None, torch.tensor([[0], [3]])]),
        (X, [torch.tensor([[2], [-3]]), torch.tensor([3, 0, -1])]),
        (some(2, 3, 4), [torch.tensor([1, 0]), None, torch.tensor([[3], [-2]])]),
        (some(2, 3, 4), [None, torch.tensor([1, 0]), torch.tensor([[3], [-2]])]),
        (some(2, 3, 4, 2), [None, torch.tensor([2, 0]), None, torch.tensor([-1])]),
    ],
    "index_put.default": [
        (X, [torch.tensor([2, -2, 0])], some(3, 4)),
        (X, [None, torch.tensor([[0], [3]])], some(2, 1)),
        (X, [torch.tensor([[2], [0]]), torch.tensor([3, 0, -1])], torch.tensor(2.5)),
        (some(2, 3, 4), [torch.tensor([1, 0]), None, torch.tensor([3, 2])], some(2, 3)),
        (whole(2, 3, 4), [None, torch.tensor([1, 0, 1]), torch.tensor([3, -2, 0])], whole(2, 3)),
    ],
    "index_select.default": [(X, 1, torch.tensor([3, 0, 3])), (X, -2, torch.tensor([1]))],
    "leaky_relu.default": [(X,)],
    "linalg_vector_norm.default": [(X,)],
    "logical_and.default": [(X.round(), MASK)],
    "logical_or.default": [(X.round(), MASK)],
    "max.dim": [(X, 1), (whole(3, 4), -2), (X[0, 0], 0)],
    "min.dim": [(X, 1), (whole(3, 4), -2), (X[0, 0], 0)],
    "max_pool1d_with_indices.default": [(some(2, 3, 9), [4])],
    "max_pool2d_with_indices.default": [(PLANES, [3, 2])],
    "max_pool3d_with_indices.default": [(VOLUMES, [2, 2, 2])],
    "max_pool2d_with_indices_backward.default": [
        (some(*LARGEST[2][0].shape), PLANES, [3, 2], [2, 2], [0, 0], [1, 1], False, LARGEST[2][1])
    ],
    "max_pool3d_with_indices_backward.default": [
        (
            some(*LARGEST[3][0].shape),
            VOLUMES,
            [2] * 3,
            [2] * 3,
            [0] * 3,
            [1] * 3,
            False,
            LARGEST[3][1],
        )
    ],
    "mean.dim": [(X, 1), (X, None), (X, [0, -1])],
    "mm.default": [(some(3, 4), some(4, 2)), (whole(3, 4), whole(4, 2))],
    "mv.default": [(X, some(4))],
    "new_empty.default": [(X, (0, 2))],
    "new_full.default": [(X, (2, 2), 7), (whole(2), (3,), 2)],
    "permute.default": [(some(2, 3, 4), [2, 0, -2])],
    "permute_copy.default": [(some(2, 3, 4), [2, 0, -2])],
    "pow.Scalar": [(2, X), (1.5, X)],
    "pow.Tensor_Scalar": [(POSITIVE, e) for e in (2, 3, 4, 0.5, -1.5, 0)] + [(whole(3), 2)],
    "pow.Tensor_Tensor": [(POSITIVE, some(4)), (whole(3), whole(3).abs())],
    "prod.dim_int": [(X, 1), (whole(3, 4), -2)],
    "remainder.Scalar": NUMBERS,
    "remainder.Tensor": [(X, POSITIVE), (whole(9), whole(9) * 2 - 1)],
    "repeat.default": [(X, [2, 1, 3])],
    "reshape.default": [(X, (2, -1))],
    "rsub.Scalar": NUMBERS,
    "rsub.Tensor": TENSORS,
    "scalar_tensor.default": [(2,), (2.5,), (True,)],
    "scatter_add.default": [
        (X, 0, torch.tensor([[2, 0, 1], [2, 2, 1]]), some(3, 4)),
        (whole(3, 4), -1, torch.tensor([[2, 0], [3, 3], [1, 0]]), whole(3, 2)),
    ],
    "scatter_reduce.two": [
        (X, 0, torch.tensor([[2, 0, 1], [2, 2, 1]]), some(3, 4), "sum"),
        *[
            (x, axis, torch.tensor([[2, 0, 1], [2, 2, 1]]), values, fold)
            for fold in ("amax", "amin", "mean", "prod")
            for x, axis, values in [
                (X, 1, some(3, 4) + 1),
                (X, 0, torch.full((3, 4), math.nan)),
                (whole(3, 4), -1, whole(2, 3)),
            ]
        ],
        (
            some(4, dtype=torch.float16),
            0,
            torch.zeros(600, dtype=torch.int64),
            some(600, dtype=torch.float16),
            "amax",
        ),
    ],
    "bucketize.Tensor": [(X, torch.tensor([-1.0, 0.0, 0.5])), (X, torch.tensor([0, 1]))],
    "searchsorted.Tensor": [
        (torch.tensor([-1.0, 0.0, 0.5]), X),
        (X.sort(1).values, some(3, 2)),
    ],
    "sort.default": [(X,), (X, 0, True), (whole(3, 4), -1)],
    "sort.stable": [(whole(3, 4),)],
    "topk.default": [(X, 2), (X, 2, 0), (X, 3, 1, False)],
    "scatter.src": [
        (X, 1, ROWS, some(3, 1)),
        (X, 0, torch.tensor([[2, 0, 1], [0, 2, 0]]), some(3, 4)),
        (whole(2, 3, 4), -1, torch.tensor([[[3, 0], [1, 2]]]), whole(2, 3, 4)),
    ],
    "scatter.value": [(X, 1, ROWS, 7), (X, 0, torch.tensor([[2, 0, 1]]), 2.5)],
    "select.int": [(X, 1, -1), (X, -2, 1)],
    "select_copy.int": [(X, 1, -1)],
    "select_scatter.default": [(X, some(3), 1, -1), (X, some(4), -2, 1)],
    "slice.Tensor": [(X,), (whole(4, 3),)],
    "slice_copy.Tensor": [(X,)],
    "slice_scatter.default": [(X, some(3, 4)), (X, some(2, 4)), (X, some(1, 4))],
    "split.Tensor": [(some(5, 4), 2)],
    "split_with_sizes.default": [(some(4, 4), [1, 3])],
    "split_with_sizes_copy.default": [(some(4, 4), [1, 3])],
    "squeeze.dim": [(some(3, 1), 1), (some(3, 1), -2)],
    "squeeze.dims": [(some(1, 3, 1), [0, -1])],
    "stack.default": [([X, some(3, 4)],), ([whole(2), some(2)],)],
    "sum.dim_IntList": [(X, [1]), (whole(3, 4), [0, -1]), (X, []), (X, None)],
    "transpose.int": [(some(2, 3, 4), 0, -1)],
    "unsqueeze.default": [(X, -1), (X, 0)],
    "var.correction": [(X,)],
    "var_mean.correction": [(X,)],
    "view.default": [(X, (2, -1))],
    "view_copy.default": [(X, (2, -1))],
    "where.Scalar": [(MASK, 2, 3)],
    "where.ScalarOther": [(MASK, X, 3)],
    "where.ScalarSelf": [(MASK, 2, some(4))],
    "where.self": [(MASK, X, some(4)), (MASK, X, whole(3, 4))],
}
"""Calls of each operator with the arguments that it needs; families of operators have one row."""
CALLS["_unsafe_index.Tensor"] = CALLS["index.Tensor"]
CALLS["_unsafe_index_put.default"] = CALLS["index_put.default"]
for _name in ("add", "sub", "mul", "div"):
    CALLS.update({f"{_name}.Tensor": TENSORS, f"{_name}.Scalar": NUMBERS})
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    CALLS.update({f"{_name}.Tensor": TENSORS, f"{_name}.Scalar": NUMBERS})
for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    CALLS.update({f"{_name}.Tensor": BITS, f"{_name}.Scalar": [(whole(3, 4), 6)]})
for _name in ("maximum.default", "minimum.default"):
    CALLS[_name] = TENSORS
for _name in ("zeros", "ones"):
    CALLS[f"{_name}.default"], CALLS[f"{_name}_like.default"] = SHAPE, LIKE
    CALLS[f"new_{_name}.default"] = NEW

DTYPES = [torch.float64, torch.int32]
POOLS = {"stride": [[1], [3]], "padding": [[1]], "ceil_mode": [True], "count_include_pad": [False]}
BY_NAME: dict[str, list[Any]] = {
    **POOLS,
    "accumulate": [True],
    "alpha": [3],
    "approximate": ["tanh"],
    "beta": [0, 2],
    "correction": [0, 1],
    "descending": [True],
    "device": [torch.device("cpu")],
    "dilation": [[2]],
    "dim": [0, -1],
    "divisor_override": [5],
    "dtype": DTYPES,
    "implicit": [True],
    "include_self": [False],
    "is_causal": [True],
    "keepdim": [True],
    "layout": [torch.strided],
    "memory_format": [torch.contiguous_format],
    "non_blocking": [True],
    "ord": [0, 1, 3, float("inf"), -float("inf")],
    "padding_idx": [1],
    "pin_memory": [False],
    "rounding_mode": ["floor", "trunc"],
    "scale": [0.3],
    "scale_grad_by_freq": [True],
    "sparse": [True],
    "sparse_grad": [True],
    "value": [2.5, 0],
}
"""What an argument may be beside its default, by its name."""
LISTED = {"dim": [[0], [-1], [0, -1], []]}
OWN: dict[str, dict[str, list[Any]]] = {
    "_scaled_dot_product_flash_attention_for_cpu.default": {
        "dropout_p": [],  # its numbers are random
        "attn_mask": [some(5, 5)],
    },
    "_scaled_dot_product_flash_attention_for_cpu_backward.default": {"attn_mask": [some(5, 5)]},
    "addcmul.default": {"value": [2, 0]},
    "arange.start_step": {"step": [2, 3]},
    "as_strided.default": {"storage_offset": [0, 2]},
    "as_strided_copy.default": {"storage_offset": [0, 1]},
    "clamp.Tensor": {"min": [some(4)], "max": [some(4)]},
    "clamp.default": {"min": [-1, 2], "max": [1, -2]},
    "cumprod.default": {"dtype": [torch.float64, torch.int64]},
    "hardtanh.default": {"min_val": [-2, -1], "max_val": [2, 1]},
    "leaky_relu.default": {"negative_slope": [0.2, 0]},
    "bucketize.Tensor": {"out_int32": [True], "right": [True]},
    "searchsorted.Tensor": {
        "out_int32": [True],
        "right": [True],
        "side": ["left", "right"],
        "sorter": [torch.tensor([0, 1, 2])],
    },
    "sort.stable": {"stable": [True]},
    "topk.default": {"largest": [False], "sorted": []},  # in no order
    "linalg_vector_norm.default": {"dtype": [torch.float64]},
    "mean.default": {"dtype": [torch.float64]},
    "mean.dim": {"dtype": [torch.float64]},
    "slice.Tensor": {"start": [1, -3, 9], "end": [2, -1, 9], "step": [2]},
    "slice_copy.Tensor": {"start": [1, -2], "end": [2, -1], "step": [2]},
    "slice_scatter.default": {"start": [0, -3], "end": [3, 9, -1], "step": [2]},
    "stack.default": {"dim": [0, -1]},
}
"""The same for one operator; no value where there is nothing to compare."""


def operators() -> list[str]:
    return sorted([str(op).removeprefix("aten.") for op in RULES if str(op).startswith("aten.")])


def overload(name: str) -> Any:
    packet, _, own = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), own)


def calls(name: str) -> list[tuple[Any, ...]]:
    own = CALLS.get(name)
    if own is None and len(required(name)) == 1:
        own = OTHERS.get(name.split(".")[0], ONE)
    assert own is not None, f"test_aten_arguments.CALLS has no row for {name}"
    return own


def required(name: str) -> list[Any]:
    schema = overload(name)._schema.arguments
    return [a for a in schema if not a.has_default_value() and not a.kwarg_only]


def values(name: str, argument: Any) -> list[Any]:
    """Return the default of an argument, and what else it may be."""
    own = OWN.get(name, {})
    is_list = str(argument.type).startswith(("List", "Optional[List"))
    if argument.name in own:
        found = own[argument.name]
    else:
        found = (LISTED if is_list and argument.name in LISTED else BY_NAME)[argument.name]
    return [argument.default_value, *found]


def by_torch(op: Any, args: Any, named: Any) -> list[Any] | None:
    """Return the values of a call; None where torch refuses it."""
    try:
        found = op(*args, **named)
    except (RuntimeError, IndexError, ValueError):
        return None
    return [found] if isinstance(found, torch.Tensor) else list(found)


def by_rule(op: Any, args: Any, named: Any, wanted: list[Any]) -> tuple[list[Any], Any]:
    """Return the values of a graph of one call, None where there is none; and what torch computes.

    Args:
        op: the operator.
        args: its arguments.
        named: those that are given by name.
        wanted: what torch returns.
    """
    graph, given = torch.fx.Graph(), []

    def place(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            given.append(value)
            return graph.placeholder(f"x{len(given)}")
        return [place(x) for x in value] if isinstance(value, list) else value

    places = [place(x) for x in args], {key: place(x) for key, x in named.items()}
    value = graph.call_function(op, tuple(places[0]), places[1])
    if op._schema.returns[0].type.kind() == "TensorType" and len(op._schema.returns) == 1:
        kept = {0: value}
    else:
        numbers = [n for n, x in enumerate(wanted) if x is not None]
        kept = {n: graph.call_function(operator.getitem, (value, n)) for n in numbers}
    graph.output(tuple(kept.values()))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    shapes_propagated(module, given)
    options = {"library": False}
    if all(x.device.type == "cpu" for x in given):  # else each is run where its tensors are
        options["target"] = "interpret"
    with recording() as programs:
        run = LazyProgram(module, options)
        found = dict(zip(kept, run(given), strict=True))
    return [found.get(n) for n in range(len(wanted))], programs[0].in_torch


def variants(name: str) -> Any:
    """Yield the calls of an operator: without its optional arguments, and each of them given."""
    schema = overload(name)._schema.arguments
    for args in calls(name):
        yield args, {}
        for argument in schema[len(args) :]:
            for value in values(name, argument):
                yield args, {argument.name: value}


@pytest.mark.parametrize("name", operators())
def test_each_argument_given_and_left_out(name: str) -> None:
    op, compared, own = overload(name), 0, 0
    for args, named in variants(name):
        wanted = by_torch(op, args, named)
        if wanted is None:
            continue
        found, in_torch = by_rule(op, args, named, wanted)
        told = f"{op}({args}, {named})"
        torch.testing.assert_close(
            found, wanted, rtol=2e-5, atol=2e-5, equal_nan=True, check_stride=False,
            msg=lambda text, told=told: f"{told}: {text}",
        )  # fmt: skip
        compared, own = compared + 1, own + (not in_torch)
    assert compared
    assert own, f"torch computes all calls of {op}"


def test_every_argument_has_values() -> None:
    """Of each operator with a rule, each argument that can be left out is given something."""
    missing = []
    for name in operators():
        for argument in overload(name)._schema.arguments[len(required(name)) :]:
            given = [*BY_NAME, *OWN.get(name, {})]
            if argument.name not in given:
                missing.append(f"{name}: {argument.name}")
    assert missing == []
    assert set(CALLS) <= set(operators())


def test_arguments_that_equal_the_defaults() -> None:
    """Torch leaves them out of the graph that it hands over."""
    x = torch.arange(-5, 6)
    cut = torch.compile(lambda x: torch.nn.functional.hardtanh(x, -1, 1), backend="loopnest")
    assert torch.equal(cut(x), x.clamp(-1, 1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x * 1.1,
        lambda x: x / 1.1,
        lambda x: x + 0.1,
        lambda x: 0.3 - x,
        lambda x: torch.nn.functional.leaky_relu(x, 0.01),
        lambda x: x % 0.7,
        lambda x: x.clamp(-0.1, 0.3),
        lambda x: x < 0.1,
    ],
)
def test_numbers_beside_narrow_tensors_are_rounded_where_torch_does(fn, dtype):
    """Each element has torch's bits; on a GPU torch adds in float32."""
    x = some(64, 64, dtype=dtype).cpu()
    fast = torch.compile(fn, backend=loopnest_backend, options={"target": "interpret"})
    assert torch.equal(fast(x), fn(x))
