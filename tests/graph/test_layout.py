"""Layouts: what a text means, and that transforms come back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loopnest.graph as G
from loopnest.graph.data_layout import (
    math_shape,
    parse_layout,
    shape_in,
    transformed_shape,
)
from loopnest.graph.graph_error import Refused


def transform(data, src, dst):
    node = G.layout_transform(G.const(data), str(src), str(dst))
    return G.evaluate(G.Graph([], [node]))[0]


def test_a_blocked_layout():
    layout = parse_layout("OIHW4i16o")
    assert layout.letters == ("O", "I", "H", "W")
    assert (layout.block("I"), layout.block("O"), layout.block("H")) == (4, 16, 1)
    assert layout.places("O") == [0, 5]
    assert math_shape((2, 3, 5, 5, 4, 16), layout) == {"O": 32, "I": 12, "H": 5, "W": 5}
    assert shape_in({"O": 32, "I": 12, "H": 5, "W": 5}, layout) == (2, 3, 5, 5, 4, 16)
    nchw = parse_layout("NCHW")
    assert transformed_shape((1, 64, 54, 54), nchw, parse_layout("NCHW16c")) == (1, 4, 54, 54, 16)


def test_two_blocks_of_one_axis():
    layout = parse_layout("A2a3a")
    data = np.arange(12)
    found = transform(data, parse_layout("A"), layout)
    np.testing.assert_array_equal(found, data.reshape(2, 2, 3))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "'' is no layout"),
        ("NC HW", "'NC HW' is no layout"),
        ("NCHWc", "layout 'NCHWc': 'c'"),
        ("NCHW0c", "layout 'NCHW0c': '0c'"),
        ("4NCHW", "layout '4NCHW': '4N'"),
        ("NCCW", "layout 'NCCW'"),
        ("NHW4c", "layout 'NHW4c'"),
        (None, "None is no layout"),
    ],
)
def test_no_layout(text, reason):
    with pytest.raises(Refused) as found:
        parse_layout(text)
    assert found.value.reason == reason


@settings(deadline=None)
@given(st.permutations("NCHW"), st.permutations("NCHW"), st.sampled_from(["", "2c", "3h2c"]))
def test_transforms_come_back(first, second, blocks):
    src, dst = parse_layout("".join(first)), parse_layout("".join(second) + blocks)
    extents = {"N": 2, "C": 4, "H": 3, "W": 5}
    data = np.random.default_rng(0).normal(size=shape_in(extents, src))
    there = transform(data, src, dst)
    assert there.shape == transformed_shape(data.shape, src, dst)
    np.testing.assert_array_equal(transform(there, dst, src), data)
