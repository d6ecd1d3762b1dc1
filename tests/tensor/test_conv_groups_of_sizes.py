"""conv whose number of groups is a size: depthwise kernels of symbolic channels, and the like."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import loopnest as ln

CASES: dict[str, tuple[Any, Any, dict[str, Any], dict[str, int], tuple[str, ...]]] = {
    "depthwise": (("N", "C", "H", "W"), ("C", 1, 3, 3), {"groups": "C", "padding": 1}, {}, ()),
    "strided": (("N", "C", "H"), ("C", 1, 3), {"groups": "C", "stride": 2}, {}, ()),
    "two kernels a channel": (("N", "C", "H"), ("C * 2", 1, 3), {"groups": "C"}, {}, ()),
    "groups of four": (("N", "G * 4", "H"), ("G * 2", 4, 3), {"groups": "G"}, {"G": 3}, ()),
    "pairs": (("N", "C", "H"), ("C", 2, 3), {"groups": "C // 2"}, {"C": 6}, ("C % 2 == 0",)),
    "assumed": (
        ("N", "C", "H"), ("O", 4, 3), {"groups": "G"}, {"G": 3, "C": 12, "O": 6},
        ("C == G * 4", "O % G == 0"),
    ),
    "results": (("N", 6, "H"), ("O", 3, 3), {"groups": 2}, {"O": 4}, ("O % 2 == 0",)),
    "transposed": (
        ("N", "C", "H"), ("C", 2, 3), {"groups": "C", "transposed": True, "stride": 2}, {}, (),
    ),
}  # fmt: skip
SIZES = {"N": 2, "C": 5, "H": 9, "W": 4}


def fusion(name: str) -> tuple[ln.Fusion, dict[str, int]]:
    shape, kernel, parameters, sizes, assumed = CASES[name]
    with ln.Fusion("conv") as f:
        for symbol in sizes:
            f.symbol(symbol)
        for text in assumed:
            f.assume(text)
        x, w = f.input("x", shape, ln.float32), f.input("w", kernel, ln.float32)
        f.output(ln.conv(x, w, **parameters), "y")
    return f, {**SIZES, **sizes}


@pytest.mark.parametrize("name", CASES)
def test_it_is_what_a_number_of_groups_gives(name: str) -> None:
    f, sizes = fusion(name)
    rng = np.random.default_rng(0)
    x, w = (
        rng.integers(-3, 4, [eval(str(size), {}, sizes) for size in tensor.shape])
        for tensor in f.inputs
    )
    arrays = [a.astype(np.float32) for a in (x, w)]
    parameters = CASES[name][2]
    groups = eval(str(parameters["groups"]), {}, sizes)
    with ln.Fusion("static") as g:
        own = [g.input(n, a.shape, ln.float32) for n, a in zip("xw", arrays, strict=True)]
        g.output(ln.conv(*own, **{**parameters, "groups": groups}), "y")
    wanted = ln.evaluate(g, *arrays)
    told = {str(size) for tensor in f.inputs for size in tensor.shape}
    named = {s.name: sizes[s.name] for s in f.symbols if s.name not in told}
    np.testing.assert_array_equal(ln.evaluate(f, *arrays, **named), wanted)
    np.testing.assert_array_equal(ln.compile(f, "interpret")(*arrays, **named), wanted)


@pytest.mark.parametrize("name", [name for name in CASES if name != "assumed"])
def test_it_is_proved_for_all_sizes(name: str) -> None:
    assert ln.verify(ln.lower(fusion(name)[0])).all_sizes


def message(shape: Any, kernel: Any, **parameters: Any) -> str:
    with ln.Fusion("conv") as f:
        for symbol in "CGO":
            f.symbol(symbol)
        x, w = f.input("x", shape, ln.float32), f.input("w", kernel, ln.float32)
        with pytest.raises(ln.DefinitionError) as caught:
            ln.conv(x, w, **parameters)
    assert "Q" not in [symbol.name for symbol in f.symbols]
    return str(caught.value)


MANY = "the channels of x are groups times those that the kernel takes, and groups divides "


def test_channels_that_the_groups_do_not_fit() -> None:
    found = message(("N", "C", "H"), ("C", 1, 3), groups="Q")
    what = "conv(x, w): x is float32[N, C, H], w is float32[C, 1, 3], groups=Q; "
    assert found == f"{what}{MANY}O"
    found = message(("N", "C", "H"), ("D", 1, 3), groups="C", transposed=True)
    what = "conv(x, w): x is float32[N, C, H], w is float32[D, 1, 3], groups=C; "
    assert found == f"{what}{MANY}C"


def test_results_that_the_groups_do_not_divide() -> None:
    found = message(("N", "G * 4", "H"), ("O", 4, 3), groups="G")
    what = "conv(x, w): x is float32[N, G * 4, H], w is float32[O, 4, 3], groups=G; "
    assert found == f"{what}{MANY}O; state it before: f.assume('O % G == 0')"
    found = message(("N", 6, "H"), (5, 3, 3), groups=2)
    what = "conv(x, w): x is float32[N, 6, H], w is float32[5, 3, 3], groups=2; "
    assert found == f"{what}{MANY}O"
    found = message(("N", "C", "H"), ("C", 2, 3), groups="C // 2")
    what = "conv(x, w): x is float32[N, C, H], w is float32[C, 2, 3], groups=C // 2; "
    assert found == f"{what}{MANY}O"


@pytest.mark.parametrize("groups", [0, -1, 2.5, None, True, (1,)])
def test_what_is_no_number_of_groups(groups: Any) -> None:
    found = message(("N", 4, "H"), (4, 4, 3), groups=groups)
    assert found == f"conv(x, w): groups is {groups!r}; give an int >= 1, or a size"
