"""Automatic schedules of windows on "c": what is copied, what is kept whole."""

import pytest

import loopnest as ln
from helpers.scheduled_fusions import check_values, fusion
from loopnest.schedulers import Processor, auto_schedule, window_loops


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("columns", [4, 8, 12, 14, 24])
@pytest.mark.parametrize("stride", [1, 2])
def test_windows_are_copied_along_their_rows(lanes, columns, stride):
    extent = columns * stride
    f = fusion(lambda x, w: ln.conv(x, w, stride, 1), (2, 2, extent, extent), (32, 2, 3, 3))
    processor = Processor(vector_bytes=4 * lanes, tile=(6, 2 * lanes))
    assert auto_schedule(f, "c", processor).name == "contraction"
    kernel = ln.lower(f)
    (copy,) = [line for line in kernel.text().splitlines() if "where(" in line]
    assert f"// {columns} +" not in copy, "the row of a lane is found without a division"
    assert ln.verify(kernel).ok
    check_values(f)


@pytest.mark.parametrize(
    ("side", "size", "stride", "rows", "expected"),
    [
        (32, 3, 1, 7, "window"),  # whole vectors along a row
        (32, 3, 1, 64, "contraction"),
        (31, 3, 1, 12, "window"),  # the copy would go element by element
        (31, 3, 1, 28, "contraction"),
        (31, 3, 1, 32, "convolution"),  # whole vectors of channels
        (24, 3, 1, 7, "contraction"),  # rows of one and a half vectors
        (7, 3, 1, 7, "contraction"),  # short rows
        (32, 1, 2, 7, "contraction"),  # no element is in two windows
        (160, 3, 1, 7, "window"),  # images of any size
    ],
)
def test_windows_are_copied_where_that_pays(side, size, stride, rows, expected):
    """A copy of windows takes as long for a few rows of weights as for many."""
    x, w = (2, 3, side, side), (rows, 3, size, size)
    f = fusion(lambda x, w: ln.relu(ln.conv(x, w, stride, size // 2)), x, w)
    assert auto_schedule(f, "c", Processor()).name == expected
    assert ln.verify(ln.lower(f)).ok
    if side == 31:
        check_values(f)


@pytest.mark.parametrize(("most", "whole"), [(window_loops.KEPT, True), (1 << 14, False)])
def test_an_image_is_kept_whole_where_memory_allows(most, whole, monkeypatch):
    """Windows read it without a test then; it has 66 x 66 floats with its border."""
    monkeypatch.setattr(window_loops, "KEPT", most)
    f = fusion(lambda x: ln.max_pool(x, (3, 3), 1, 1), (2, 8, 64, 64))
    assert auto_schedule(f, "c", Processor()).name == "window"
    k = ln.lower(f)
    assert ("float32[66, 66] local" in str(k)) == whole, str(k)
    assert ln.verify(k).ok
    check_values(f)


def test_mirrored_weights_are_no_windows():
    """A tile of results has several channels then, too: each element of an image is used again."""

    def build(x, w):
        return ln.conv(x, ln.permute(ln.flip(w, (2, 3)), (1, 0, 2, 3)), 1, 1)

    f = fusion(build, (2, 3, 32, 32), (3, 8, 3, 3))
    assert auto_schedule(f, "c", Processor()).name == "window"
    kernel = ln.lower(f)
    assert ln.verify(kernel).ok
    tile = [t for t in f.tensors if t.axis(-1).parallel is ln.ParallelType.vectorize]
    assert [axis.extent for axis in tile[0].leaf_domain[-3:]] == [8, 2, 16]
    check_values(f)
