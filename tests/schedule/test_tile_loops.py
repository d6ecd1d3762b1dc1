"""Loops around tiles with halo are shared by all readers of the tile, whatever call made them."""

import numpy as np

import loopnest as ln


def is_right(f, *shape):
    """Whether `f` is proved, and gives the math's result on random data of a shape."""
    kernel = ln.lower(f)
    assert ln.verify(kernel).ok
    x = np.random.default_rng(0).random(shape, np.float32)
    got = ln.compile(kernel, target="interpret")(x)
    return bool((np.abs(got - ln.evaluate(f, x)) <= ln.error_bound(f, x)).all())


def loops(tensor):
    return [str(axis.extent) for axis in tensor.leaf_domain], tensor.compute_at_pos


def test_a_tile_takes_fewer_loops_where_a_fold_parts_the_inner_ones():
    with ln.Fusion("k") as f:
        x = f.input("x", ("M", "M"), ln.float32)
        padded = ln.pad(x, [(1, 1), (0, 0)])
        most = ln.max(ln.unfold(padded, 0, 2, stride=3, dilation=2), -1)
        f.output(most, "y")
    most.split(2, 2)
    most.split(0, 2)
    partial = most.rfactor(4)
    partial.split(4, 2)
    partial.rfactor(5)
    f.inline_most(replay=True)
    assert loops(padded) == (["ceildiv(ceildiv(M, 3), 2)", "2", "M", "2"], 3)
    assert all(is_right(f, n, n) for n in (1, 4, 7, 11))


def test_a_tile_takes_no_loop_behind_a_vectorized_one():
    with ln.Fusion("k") as f:
        t = ln.neg(f.input("x", ("M", 1, "N"), ln.float32))
        y = f.output(t[-3:, :, 1:], "y")
    y.split(1, 2)
    y.axis(3).parallelize(ln.ParallelType.vectorize)
    f.inline_most(replay=True)
    assert loops(t) == (["3", "1", "1", "N - 1"], 1)
    y.axis(3).parallelize(ln.ParallelType.serial)
    assert all(is_right(f, m, 1, n) for m, n in ((3, 2), (5, 9)))


def test_a_tile_of_one_reader_is_taken_only_where_the_others_share_its_loops():
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", 16), ln.float32)
        t = ln.exp(x)
        f.output(t[2:] + t[:-2], "y")
    f["y"].reorder({0: 1})
    f["y"].producers[1].cache_before()
    ln.propagate(f["y"], tensors=[u for u in f.tensors if not u.is_input and u is not t])
    f.inline_most(replay=True)
    assert loops(t) == (["16", "N"], 1)
    assert all(is_right(f, n, 16) for n in (2, 4, 17))


def test_propagate_carries_no_tile_to_tensors_that_share_no_loop():
    with ln.Fusion("k") as f:
        x = f.input("x", (11, 11), ln.float32)
        first = ln.abs(x)
        second = ln.reciprocal(first + 0.5)
        y = f.output(ln.pad(second, [(0, 3), (0, 3)]), "y")
    second.compute_at(y, 2, recompute=True)
    second.split(3, 3)
    ln.propagate(second, 1)
    assert loops(first) == (["11", "11"], 0)
    assert is_right(f, 11, 11)
    f.inline_most(replay=True)
    assert is_right(f, 11, 11)
