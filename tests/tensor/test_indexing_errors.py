"""Bad indices, borders, joins and windows: each raises its error, and changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import loopnest as ln
from helpers.schedule_run import taken_back

LENGTH = "s is float32[4]"
ITEMS = "use ints, slices, None and one ..., as in tv[1:-1, ::-2, None, ..., 0]"
STEP = "use an int such as 2 or -1"
BOUND = "use an int, the name of a size symbol, a size expression or None"
EACH = "give one for each of the 2 axes of x, in a tuple"
TENSOR = "use a TensorView"
PAIRS = "give a pair of ints for each of the 2 axes of x, as in ((1, 1), (0, 2))"
INT = "give an int >= 0"
RANK = "x has 2 axes, so use -2..1"
SHIFT = "give an int, or a tuple of ints, one an axis"
TENSORS = "give a tuple of TensorViews"
SHAPES = "all shapes are the same but for axis 0"
PLACES = "use -3..2"
COUNT = "give an int >= 1"
PADDING = "give an int >= 0, or for each of 1 axes an int or a pair of ints"
CHANNELS = "the channels of x are groups times those that the kernel takes, and groups divides O"


def names() -> dict[str, Any]:
    """Return what the code below may use: tensors of one fusion, `z` of another."""
    with ln.Fusion("main") as f:
        tensors = [
            f.input("x", ("N", "D"), ln.float32),
            f.input("i", ("N", "D"), ln.int32),
            f.input("b", ("D",), ln.float32),
            f.input("u", ("N", 1), ln.float32),
            f.input("s", (4,), ln.float32),
            f.input("q", (2, 4, 8), ln.float32),
            f.input("w", (6, 3, 3), ln.float32),
            f.input("v", (4, 4, 3), ln.float32),
        ]
        y = tensors[0] * 2
        f.output(y + 1, "out")
    y.named("y").compute_at(f["out"], 1)
    with ln.Fusion("other") as g:
        z = g.input("z", ("N", "D"), ln.float32)
    return {"ln": ln, "np": np, "f": f, "z": z, "y": y, **{t.name: t for t in tensors}}


CASES = [
    ("x[1, 2, 3]", "x[1, 2, 3]: it has 3 indices", "x has 2 axes"),
    ("s[4]", "s[4]: index 4 of axis 0 is out of range", LENGTH),
    ("s[-5]", "s[-5]: index -5 of axis 0 is out of range", LENGTH),
    ("x[np.arange(3)]", "x[<ndarray>]: <ndarray> is no basic index", ITEMS),
    ("x[x]", "x[x]: x is no basic index", ITEMS),
    ("x[..., ...]", "x[..., ...]: ... stands twice", ITEMS),
    ("x[True]", "x[True]: True is no basic index", ITEMS),
    ("x[1.5]", "x[1.5]: 1.5 is no basic index", ITEMS),
    ("x[::0]", "x[::0]: the step 0 of axis 0 is no int other than 0", STEP),
    ('x["Q R":]', "x['Q R':]: the bound 'Q R' of axis 0 is no index", BOUND),
    ("x['Z':, ::0]", "x['Z':, ::0]: the step 0 of axis 1 is no int other than 0", STEP),
    ('s[::"a"]', "s[::'a']: the step 'a' of axis 0 is no int other than 0", STEP),
    ("ln.slice(x, [0], [1])", "slice(x, [0], [1]): starts is [0]", EACH),
    ("ln.slice(x, [0, 0], [1, 1], 2)", "slice(x, [0, 0], [1, 1], steps=2): steps is 2", EACH),
    ("ln.slice(3, [0], [1])", "slice(3, [0], [1]): operand 1 is of type int", TENSOR),
    (
        "ln.slice(x, [0, 0.5], [1, 1])",
        "slice(x, [0, 0.5], [1, 1]): the bound 0.5 of axis 1 is no index",
        BOUND,
    ),
    ("ln.pad(x, 1)", "pad(x, 1): the widths are 1", PAIRS),
    (
        "ln.pad(x, ((1, 1), (1,)))",
        "pad(x, ((1, 1), (1,))): the widths (1,) are no pair of ints",
        PAIRS,
    ),
    ("ln.pad(s, [(-3, -2)])", "pad(s, [(-3, -2)]): the extent of axis 0 would be -1", LENGTH),
    (
        'ln.pad(s, [(1, 1)], value="a")',
        "pad(s, [(1, 1)]): the value 'a' is no number",
        "use a Python number or a scalar of the fusion",
    ),
    (
        "ln.pad(i, ((1, 1), (0, 0)), value=0.5)",
        "pad(i, ((1, 1), (0, 0))): 0.5 is no int32",
        "use a value of that type",
    ),
    (
        "ln.pad(i, ((1, 1), (0, 0)), value=2**40)",
        "pad(i, ((1, 1), (0, 0))): 1099511627776 does not fit int32",
        "use a wider type",
    ),
    ("ln.pad(s, [(1, 1)], interior=-1)", "pad(s, [(1, 1)]): interior is -1", INT),
    ("ln.pad(s, [(1, 1)], interior=(1, 1))", "pad(s, [(1, 1)]): interior is (1, 1)", INT),
    ("ln.flip(x, 2)", "flip(x, axis=2): axis 2 is out of range", RANK),
    ("ln.roll(x, 1.5, 0)", "roll(x, 1.5, 0): the shift is 1.5", SHIFT),
    ("ln.roll(x, (1, 2), 0)", "roll(x, (1, 2), 0): the shift is (1, 2)", SHIFT),
    ("ln.roll(x, 1, 2)", "roll(x, axis=2): axis 2 is out of range", RANK),
    ("ln.concatenate([])", "concatenate([], axis=0): no tensors are given", TENSORS),
    ("ln.concatenate(x)", "concatenate(x, axis=0): no tensors are given", TENSORS),
    ("ln.concatenate([x, 3])", "concatenate([x, 3], axis=0): operand 2 is of type int", TENSORS),
    (
        "ln.concatenate([x, u])",
        "concatenate([x, u], axis=0): x is float32[N, D], u is float32[N, 1]",
        SHAPES,
    ),
    (
        "ln.concatenate([x, b], 0)",
        "concatenate([x, b], axis=0): x is float32[N, D], b is float32[D]",
        SHAPES,
    ),
    ("ln.concatenate([x, x], 2)", "concatenate([x, x], axis=2): axis 2 is out of range", RANK),
    (
        "ln.concatenate([x, z])",
        "concatenate(x, z): z belongs to fusion other, not to main",
        "all operands of an expression belong to one fusion",
    ),
    (
        "ln.stack([x, u])",
        "stack([x, u], axis=0): x is float32[N, D], u is float32[N, 1]",
        "all shapes are the same",
    ),
    ("ln.stack([x, x], 3)", "stack([x, x], axis=3): axis 3 is no place for a new axis", PLACES),
    (
        'ln.stack([x, x], "a")',
        "stack([x, x], axis='a'): axis 'a' is no place for a new axis",
        PLACES,
    ),
    (
        "ln.unfold(s, 0, 6)",
        "unfold(s, 0, 6, stride=1, dilation=1): a window of 6 elements is larger than axis 0",
        LENGTH,
    ),
    (
        "ln.unfold(s, 1, 2)",
        "unfold(s, 1, 2, stride=1, dilation=1): axis 1 is out of range",
        "s has 1 axis, so use -1..0",
    ),
    ("ln.unfold(s, 0, 0)", "unfold(s, 0, 0, stride=1, dilation=1): size is 0", COUNT),
    ("ln.unfold(s, 0, 2, stride=0)", "unfold(s, 0, 2, stride=0, dilation=1): stride is 0", COUNT),
    (
        "ln.unfold(s, 0, 2, dilation=1.5)",
        "unfold(s, 0, 2, stride=1, dilation=1.5): dilation is 1.5",
        COUNT,
    ),
    (
        "ln.max_pool(x, 2)",
        "max_pool(x, 2): x is float32[N, D]",
        "it is [N, C, *space], of rank 3 or more",
    ),
    ("ln.max_pool(q, 2, padding=-1)", "max_pool(q, 2): padding is -1", PADDING),
    ("ln.max_pool(q, (2, 2))", "max_pool(q, (2, 2)): size is (2, 2)", COUNT),
    ("ln.avg_pool(3, 2)", "avg_pool(3, 2): operand 1 is of type int", TENSOR),
    (
        "ln.conv(q, s)",
        "conv(q, s): q is float32[2, 4, 8], s is float32[4]",
        "they are [N, C, *space] and [O, C / groups, *kernel], of one rank >= 3",
    ),
    ("ln.conv(q, 3)", "conv(q, 3): operand 2 is of type int", "use TensorViews"),
    (
        "ln.conv(q, w)",
        "conv(q, w): q is float32[2, 4, 8], w is float32[6, 3, 3], groups=1",
        CHANNELS,
    ),
    ("ln.conv(q, v, stride=0)", "conv(q, v): stride is 0", COUNT),
    ("ln.conv(q, v, padding=(1, 2, 3))", "conv(q, v): padding is (1, 2, 3)", PADDING),
    (
        "ln.conv(q, v, groups=2)",
        "conv(q, v): q is float32[2, 4, 8], v is float32[4, 4, 3], groups=2",
        CHANNELS,
    ),
    (
        "ln.conv(q, v, dilation=9)",
        "conv(q, v): a window of 3 elements is larger than axis 2, which has 8 with its padding",
        "q is float32[2, 4, 8]",
    ),
    ("ln.conv(q, v, transposed=1)", "conv(q, v): transposed=1 is no bool", "use True or False"),
    (
        "ln.conv(q, v, transposed=True, padding=9)",
        "conv(q, v): v is float32[4, 4, 3], padding (9, 9)",
        "the kernel is static, and the padding at most dilation * (size - 1)",
    ),
    (
        "ln.conv(q, v, dtype=ln.bool)",
        "conv(q, v): bool is no type to add or multiply in",
        "use an integer or a float type",
    ),
    (
        "y[1:]",
        "getitem(y): y is computed inside its consumers already (compute_at_pos 1)",
        "define all consumers of a tensor before it is inlined: TAKE",
    ),
]


@pytest.mark.parametrize(("code", "problem", "hint"), CASES, ids=[c[0] for c in CASES])
def test_errors(code: str, problem: str, hint: str) -> None:
    known = names()
    fusion = known["f"]
    before = len(fusion.tensors), list(fusion.facts.conditions), set(fusion._symbols)
    with pytest.raises(ln.DefinitionError) as caught:
        eval(code, known)
    hint = hint.replace("TAKE", taken_back(fusion, 0) if fusion.trace else "")
    assert str(caught.value) == f"{problem}; {hint}"
    assert before == (len(fusion.tensors), list(fusion.facts.conditions), set(fusion._symbols))
