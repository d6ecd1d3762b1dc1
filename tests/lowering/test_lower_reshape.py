"""Reshaped tensors beside others in one loop: indices, broadcasts, empty axes, threads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import loopnest as ln

PT = ln.ParallelType
RNG = np.random.default_rng(0)


def check(f: ln.Fusion, *arrays: np.ndarray, all_sizes: bool = True) -> ln.Kernel:
    """Return the kernel of `f`, which is proved and gives what the math does."""
    kernel = ln.lower(f)
    expected = ln.evaluate(f, *arrays)
    found = ln.compile(kernel, target="interpret")(*arrays)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    report = ln.verify(kernel)
    assert report.ok
    assert report.all_sizes == all_sizes
    return kernel


def test_the_index_goes_back_through_the_shape() -> None:
    with ln.Fusion("heads") as f:
        x = f.input("x", ("N", 12), ln.float32)
        t = ln.exp(x)
        y = f.output(ln.permute(ln.reshape(t, ("N", 3, 4)), (1, 0, 2)) + 1.0, "y")
    t.compute_at(y, -1)
    f.inline_most()
    kernel = check(f, RNG.standard_normal((2, 12)).astype(np.float32))
    assert str(kernel).splitlines()[2:] == [
        "for i0 in 3:",
        "  for i1 in N:",
        "    for i2 in 4:",
        "      T1: float32[1] local",
        "      T2: float32[1] local",
        "      T3: float32[1] local",
        "      T1[0] = exp(x[i1, i0 * 4 + i2])",
        "      T2[0] = T1[0]",
        "      T3[0] = T2[0]",
        "      y[i0, i1, i2] = T3[0] + 1.0",
    ]


def flat(y: ln.TensorView, *tensors: ln.TensorView) -> None:
    """One loop over all axes, by 4."""
    while y.ndim > 1:
        y.merge(0)
    y.split(0, 4)
    for tensor in tensors:
        tensor.compute_at(y, -1)


def blocks(y: ln.TensorView, *tensors: ln.TensorView) -> None:
    """Blocks of the two innermost axes as one, tensors in the memory of a block."""
    if y.ndim > 1:
        y.merge(y.ndim - 2)
    y.split(y.ndim - 1, 4)
    for tensor in tensors:
        tensor.compute_at(y, y.ndim - 1)
        tensor.memory = ln.SHARED
    ln.parallelize_like(y.parallelize({y.ndim - 2: PT.grid_x, y.ndim - 1: PT.block_x}))


def inner_first(y: ln.TensorView, *tensors: ln.TensorView) -> None:
    y.reorder({-1: 0})
    for tensor in tensors:
        tensor.compute_at(y, 1)


BIASED = [
    ((24,), (4, 6), 6),
    (("N", 24), ("N", 4, 6), 6),
    ((6, 4), (4, 6), 6),
    ((4, 6), (8, 3), 3),
    ((4, "N"), ("4 * N",), None),
]


@pytest.mark.parametrize("schedule", [flat, blocks, inner_first])
@pytest.mark.parametrize(("old", "new", "width"), BIASED)
def test_a_bias_along_the_new_shape_shares_merged_loops(
    schedule: Callable[..., None],
    old: tuple[int | str, ...],
    new: tuple[int | str, ...],
    width: int | None,
) -> None:
    """The bias lacks what the reshape made of an axis, not the axis: it is computed again."""
    with ln.Fusion("biased") as f:
        t = -f.input("x", old, ln.float32)
        r = ln.reshape(t, new)
        arrays = [RNG.standard_normal([2 if n == "N" else n for n in old]).astype(np.float32)]
        if width is None:
            bias = r
        else:
            bias = -f.input("b", (width,), ln.float32)
            arrays.append(RNG.standard_normal(width).astype(np.float32))
        y = f.output(r + bias, "y")
    schedule(y, t, *([bias] if width else []))
    check(f, *arrays)


def test_a_bias_along_the_old_shape_shares_the_loops_of_the_new_one() -> None:
    """w lacks N, of which the shape has N * 5 together."""
    with ln.Fusion("biased") as f:
        x, w = f.input("x", ("N", 5), ln.float32), f.input("w", (5,), ln.float32)
        doubled = w * 2.0
        t = x + doubled
        y = f.output(ln.reshape(t, ("5 * N",)) + 1.0, "y")
    y.split(0, 4)
    t.compute_at(y, -1)
    doubled.compute_at(t, -1)
    assert doubled.compute_at_pos == 2
    arrays = (RNG.standard_normal((3, 5)).astype(np.float32), np.arange(5, dtype=np.float32))
    check(f, *arrays)


@pytest.mark.parametrize("size", [0, 1, 3])
def test_what_lacks_an_empty_axis_is_computed_all_the_same(size: int) -> None:
    """s is an output too: the loop over N * 5, of which it lacks N, runs 5 times where N is 0."""
    with ln.Fusion("kept") as f:
        x, w = f.input("x", ("N", 5), ln.float32), f.input("w", (5,), ln.float32)
        s = f.output(w * 2.0, "s")
        y = f.output(ln.reshape(x + s, ("5 * N",)) + 1.0, "y")
    s.compute_at(y, 1)
    assert s.compute_at_pos == 1
    arrays = (np.ones((size, 5), np.float32), np.arange(5, dtype=np.float32))
    for found, expected in zip(
        ln.compile(f, target="interpret")(*arrays), ln.evaluate(f, *arrays), strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    assert ln.verify(ln.lower(f)).ok


@pytest.mark.parametrize("size", [0, 1, 3])
def test_what_lacks_an_empty_part_is_computed_all_the_same(size: int) -> None:
    """As above, where the shape splits: s lacks the outer part, and has the inner one."""
    with ln.Fusion("kept") as f:
        x, w = f.input("x", ("N",), ln.float32), f.input("w", (5,), ln.float32)
        f.assume("N % 5 == 0")
        s = f.output(w * 2.0, "s")
        y = f.output(ln.reshape(-x, (-1, 5)) + s, "y")
    y.merge(0)
    f.tensors[3].compute_at(y, 1)
    s.compute_at(y, 1)
    arrays = (np.ones(5 * size, np.float32), np.arange(5, dtype=np.float32))
    for found, expected in zip(
        ln.compile(f, target="interpret")(*arrays), ln.evaluate(f, *arrays), strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    assert ln.verify(ln.lower(f)).ok


@pytest.mark.parametrize("memory", [ln.Memory.LOCAL, ln.Memory.SHARED])
@pytest.mark.parametrize("shape", [("N", "M"), (5, 3)])
def test_rows_alone_are_not_read_beyond_the_last_one(
    shape: tuple[str | int, ...], memory: ln.Memory
) -> None:
    """Where [N, M] is read as [M, N], tiles of the new columns count on beyond the last row."""
    with ln.Fusion("rows") as f:
        rows, x = f.input("rows", shape[:1], ln.float32), f.input("x", shape, ln.float32)
        copy = -rows
        swapped = ln.reshape(ln.broadcast(copy, (False, True)) * x, (x.shape[1], x.shape[0]))
        y = f.output(swapped + 1.0, "y")
    y.split(1, 4)
    copy.memory = memory
    ln.propagate(y)
    f.inline_most()
    arrays = (RNG.standard_normal(5).astype(np.float32), np.ones((5, 3), np.float32))
    check(f, *arrays, all_sizes=shape == (5, 3))


def test_two_reshapes_of_one_tensor_are_one_axis_of_the_math() -> None:
    with ln.Fusion("twice") as f:
        t = -f.input("x", ("N", 12), ln.float32)
        a, b = ln.reshape(t, ("N", 3, 4)), ln.reshape(t, ("N", 3, 4))
        y = f.output(a * b, "y")
    flat(y, t)
    assert t.compute_at_pos == 2
    check(f, RNG.standard_normal((2, 12)).astype(np.float32))


def test_symbolic_products_are_proved_for_all_sizes() -> None:
    """N * K points of one loop are no affine relation; dense arrays are looked at in one shape."""
    with ln.Fusion("k") as f:
        t = -f.input("x", ("N", "K"), ln.float32)
        y = f.output(ln.reshape(t, ("N * K",)) + 1.0, "y")
    flat(y, t)
    check(f, RNG.standard_normal((2, 3)).astype(np.float32))


REPEATED = {
    "rows": (lambda x, h, w: ln.expand(x[None, :, :], (4, h, w)), (0, 1)),
    "elements": (lambda x, h, w: ln.expand(x[:, :, None], (h, w, 3)), (1, 2)),
    "pixels": (lambda x, h, w: ln.flatten(ln.expand(x[:, None, :, None], (h, 2, w, 2)), 2, 3),
               (0, 1)),
}  # fmt: skip


@pytest.mark.parametrize("memory", [ln.LOCAL, ln.SHARED], ids=str)
@pytest.mark.parametrize("kind", REPEATED)
def test_what_a_reshape_repeats_is_read_inside_its_own_axis(kind: str, memory: ln.Memory) -> None:
    """A loop of W * 2 elements by 8 passes beyond W as well: x is not read there."""
    repeat, (first, last) = REPEATED[kind]
    with ln.Fusion("k") as f:
        x = f.input("x", ("H", "W"), ln.float32)
        t = x * 2.0
        wide = repeat(t, *x.shape)
        y = f.output(ln.flatten(wide, first, last) + 1.0, "y")
    y.split(1, 8)
    y.split(0, 8)
    y.parallelize({0: PT.grid_x, 2: PT.block_x} if memory is not ln.LOCAL else {})
    t.compute_at(y, 2 if memory is not ln.LOCAL else -1)
    t.memory = memory
    f.inline_most()
    check(
        f,
        RNG.standard_normal((3, 5)).astype(np.float32),
        all_sizes=True,
    )


def test_cuda_text_and_full_text_hold_the_shape() -> None:
    with ln.Fusion("k") as f:
        t = -f.input("x", ("N", 12), ln.float32)
        y = f.output(ln.reshape(t, ("N", 3, 4)) + 1.0, "y")
    t.compute_at(y, -1)
    y.parallelize({0: PT.grid_x, 2: PT.block_x})
    kernel = ln.lower(f)
    assert "x[grid_x * 12 + i1 * 4 + block_x]" in kernel.cuda()
    again = ln.Kernel.parse(kernel.text(full=True))
    assert ln.verify(again).all_sizes


@pytest.mark.parametrize("factor", [None, 4])
@pytest.mark.parametrize("size", [7, "N"])
def test_repeated_and_flattened_twice(size: int | str, factor: int | None) -> None:
    """The loops run over the last shape; t has one of the axes that the first one was made of."""
    with ln.Fusion("k") as f:
        x = f.input("x", (size,), ln.float32)
        t = x * 2.0
        rows = ln.flatten(ln.expand(ln.broadcast(t, [False, True]), (size, 3)), 0, 1)
        wide = ln.expand(ln.broadcast(rows, [True, False]), (2, rows.shape[0]))
        y = f.output(ln.flatten(wide, 0, 1), "y")
    if factor is not None:
        y.split(0, factor)
    ln.propagate(y)
    f.inline_most()
    data = RNG.standard_normal(7).astype(np.float32)
    kernel = check(f, data, all_sizes=True)
    assert "float32[1] local" in str(kernel)
    assert "float32[7]" not in str(kernel).partition("->")[2]


@pytest.mark.parametrize("shape", [(1,), (), (1, 1)])
def test_axes_of_sizes_that_are_assumed_to_be_1_are_dropped(shape: tuple[int, ...]) -> None:
    with ln.Fusion("one") as f:
        x = f.input("x", ("N", "N"), ln.float32)
        f.assume("N == 1")
        f.output(-ln.reshape(x, shape), "y")
    kernel = check(f, np.full((1, 1), 3.0, np.float32))
    assert "for " not in str(kernel)


def test_a_merge_that_one_output_alone_makes_follows_from_the_loops_of_another() -> None:
    """The loop runs over 4 * N * 3, made by the other output; `wide` has 4 * N of it."""
    with ln.Fusion("repeated") as f:
        x = f.input("x", ("N", 5), ln.float32)
        copies = ln.expand(ln.broadcast(x, [True, False, False]), (4, "N", 5))
        f.output(ln.flatten(copies, 0, 1), "wide")
        thrice = ln.expand(ln.broadcast(copies, [False, False, True, False]), (4, "N", 3, 5))
        y = f.output(ln.flatten(thrice, 1, 2), "y")
    y.merge(0)
    ln.propagate(y)
    f.inline_most()
    kernel = ln.lower(f)
    assert ln.verify(kernel).ok
    data = RNG.standard_normal((3, 5)).astype(np.float32)
    for found, wanted in zip(
        ln.compile(kernel, target="c")(data), ln.evaluate(f, data), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


def test_parts_that_several_tensors_made_alike_tell_an_index_together() -> None:
    """One loop over a part of K stands for another tensor's split than the other part's loop."""
    with ln.Fusion("turned") as f:
        x = f.input("x", ("M", "K"), ln.float32)
        row = ln.broadcast(x, [True, False, False])
        flat = ln.flatten(ln.expand(row, (2, "M", "K")), 0, 1)
        y = f.output(ln.reshape(flat, ("K", "2 * M")), "y")
    y.split(0, 2).split(0, 8).split(1, 5)
    row.compute_at(y, 5, recompute=True)
    kernel = ln.lower(f)
    assert ln.verify(kernel).ok
    data = RNG.standard_normal((3, 37)).astype(np.float32)
    np.testing.assert_array_equal(ln.compile(kernel, target="c")(data), ln.evaluate(f, data))


@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize("width", ["N", "M"])
def test_a_split_takes_a_scheduled_merge_apart_beside_a_reshape(width: str, inner: bool) -> None:
    """`low` lacks N of the merged axis: what its split makes of M alone are not y's N and M."""
    with ln.Fusion("beside") as f:
        x = f.input("x", ("N", "M"), ln.float32)
        wide = ln.broadcast(x, (False, True, False))
        scaled = wide * f.input("z", ("N", "N", "M"), ln.float32)
        f.assume("M % 4 == 0")
        f.output(ln.reshape(scaled, ("N", "N", 4, -1)), "shaped")
        y = f.output(ln.min(wide, 0) < x, "y")
    y.merge(0, -1)
    y.split(0, width, inner=inner)
    f.inline_most(replay=True)
    kernel = ln.lower(f)
    assert ln.verify(kernel).ok
    for n, m in ((3, 8), (8, 4), (4, 4)):
        data = [RNG.standard_normal(size).astype(np.float32) for size in ((n, m), (n, n, m))]
        wanted = ln.evaluate(f, *data)
        for target in ("interpret", "c"):
            for found, right in zip(ln.compile(kernel, target=target)(*data), wanted, strict=True):
                np.testing.assert_array_equal(found, right)
