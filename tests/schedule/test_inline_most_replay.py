"""`inline_most(replay=True)`: tensors without a place take the loops of a consumer."""

import numpy as np
import pytest

import loopnest as ln


def notes(f):
    """Return (subject, why, remedy) of the notes that the call left."""
    found = [n for n in ln.lower(f).notes if "inline_most" in n.asked]
    return [(n.subject, n.why, n.remedy) for n in found]


def is_right(f, *arrays):
    kernel = ln.lower(f)
    assert ln.verify(kernel).ok
    got = ln.compile(kernel, target="interpret")(*arrays)
    bound = ln.error_bound(f, *arrays)
    return bool((np.abs(got - ln.evaluate(f, *arrays)) <= bound).all())


def product():
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        w = f.input("w", ("D", "K"), ln.float32)
        f.output(ln.relu(ln.matmul(ln.exp(x), w) + 1.0), "y")
    return f


def rows():
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        m = ln.max(x, axis=1, keepdims=True)
        e = ln.exp(x - m).named("e")
        f.output(e / ln.sum(e, axis=1, keepdims=True).named("total"), "y")
    return f


def test_operands_of_a_product_take_its_loops():
    f = product()
    y = f["y"].split(0, 4)
    y.split(2, 8)
    y.reorder({2: 1, 1: 2})
    f.inline_most(replay=True)
    total = next(t for t in f.tensors if any(a.is_reduction for a in t.leaf_domain))
    assert total.compute_at_pos == 4
    assert all(
        t.compute_at_pos == t.ndim for t in f.tensors if not t.is_input and t not in (total, y)
    )
    assert notes(f) == []
    assert is_right(
        f, *(np.random.default_rng(0).random((n, m), np.float32) for n, m in [(9, 5), (5, 11)])
    )


def test_what_a_fold_and_its_consumer_read_stays_a_row():
    f = rows()
    y = f["y"].split(0, 4)
    y.split(2, 8)
    f.inline_most(replay=True)
    assert f["e"].compute_at_pos == 2
    (note,) = notes(f)
    total = f["e"].consumers[0].name
    assert note == (
        "e",
        f"its axis i2 is no loop that {total} [i0, i1, r2] and y [i0, i1, i2, i3] share",
        "e.compute_at(y, -1, recompute=True), called first, computes it for each of them",
    )
    assert is_right(f, np.random.default_rng(1).random((6, 17), np.float32))


def test_a_clone_for_each_consumer_is_placed():
    f = rows()
    y = f["y"].split(0, 4)
    f["e"].compute_at(y, -1, recompute=True)
    f.inline_most(replay=True)
    ((subject, why, _),) = notes(f)  # the clones share what they are computed from
    assert subject == "T3"
    assert why == "total reads T5 (compute_at_pos 2) inside a loop that still computes T5"
    assert is_right(f, np.random.default_rng(1).random((6, 17), np.float32))


def test_memory_for_a_whole_row_ends_the_note():
    f = rows()
    f["y"].split(0, 4)
    f.inline_most(replay=True)
    assert [subject for subject, _, _ in notes(f)] == ["e"]
    f["e"].memory = ln.SHARED
    assert notes(f) == []


def test_loops_that_a_tensor_has_stay_where_no_consumer_takes_it_deeper():
    f = product()
    y = f["y"]
    t = y.producers[0]
    t.split(0, 2)
    y.split(0, 2)
    before = t.leaf_domain
    f.inline_most(replay=True)
    assert t.leaf_domain == before
    assert t.compute_at_pos == 3


def test_placed_tensors_keep_their_loops():
    f = product()
    y = f["y"].split(0, 4)
    t = y.producers[0]
    t.compute_at(y, 1)
    before = t.leaf_domain
    f.inline_most(replay=True)
    assert t.leaf_domain == before
    assert t.compute_at_pos == 3  # it rises where loops correspond already


def test_only_the_tensors_that_are_given():
    f = product()
    y = f["y"].split(0, 4)
    t = y.producers[0]
    ln.inline_most([t], replay=True)
    assert (t.compute_at_pos, t.producers[0].compute_at_pos) == (3, 0)


@pytest.mark.parametrize("mark", [ln.ParallelType.vectorize, ln.ParallelType.unroll, "pin"])
def test_a_loop_that_was_marked_leaves_no_note(mark):
    with ln.Fusion("k") as f:
        x = f.input("x", ("N",), ln.float32)
        y = f.output(ln.exp(x) + 1.0, "y")
    y.split(0, 4)
    if mark == "pin":
        y.axis(1).pin()
    else:
        y.axis(1).parallelize(mark)
    f.inline_most(replay=True)
    t = y.producers[0]
    assert (t.ndim, t.compute_at_pos) == (2, 1)
    assert notes(f) == []


def test_rows_that_data_choose_stay():
    with ln.Fusion("k") as f:
        table = f.input("table", ("V", "D"), ln.float32)
        i = f.input("i", ("N",), ln.int32)
        f.assume_range(i, 0, "V")
        f.output(ln.take(ln.exp(table), i, axis=0), "y")
    y = f["y"].split(1, 4)
    t = y.producers[0]
    f.inline_most(replay=True)
    assert t.compute_at_pos == 0
    ((subject, why, remedy),) = notes(f)
    assert (subject, why) == (t.name, "y reads its axis i0 at other indices than its own")
    assert remedy == (
        f"{t.name}.compute_at, at an outer loop, computes what an iteration of it reads; "
        f"{t.name}.memory = ln.SHARED or ln.GLOBAL holds it whole"
    )
    table, i = np.random.default_rng(2).random((5, 6), np.float32), np.array([4, 0, 4], np.int32)
    assert is_right(f, table, i)


def test_what_an_iteration_would_compute_several_times_stays():
    with ln.Fusion("k") as f:
        x = f.input("x", ("N",), ln.float32)
        t = ln.exp(x)
        y = f.output(t[:-2] + t[1:-1] + t[2:], "y")
    y.split(0, 8)
    f.inline_most(replay=True)
    assert [n.compute_at_pos for n in t.consumers] == [2, 2, 2]
    ((subject, why, _),) = notes(f)
    assert (subject, why) == ("T1", "T2 reads its axis i0 at other indices than its own")
    t.compute_at(y, 1)
    assert notes(f) == []
    assert is_right(f, np.random.default_rng(3).random(21, np.float32))


def test_it_stands_in_the_trace_and_refuses_what_is_no_flag():
    f = product()
    with pytest.raises(ln.ScheduleError) as caught:
        f.inline_most(replay=1)
    assert str(caught.value) == (
        "inline_most(replay=1): replay=1 is no bool; use replay=True or replay=False"
    )
    f.inline_most(replay=True)
    assert f.trace[-1].call == "inline_most(replay=True)"
