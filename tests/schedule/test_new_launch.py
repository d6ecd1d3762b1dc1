"""new_launch: what it does to a schedule, what it refuses, and that refusals change nothing."""

from __future__ import annotations

import numpy as np
import pytest

import loopnest as ln
from helpers.launch_cases import split_sum

PT = ln.ParallelType


def message(call) -> str:
    with pytest.raises(ln.LoopnestError) as found:
        call()
    return str(found.value)


def state(f: ln.Fusion) -> list[object]:
    return [(str(t), t.memory, t.starts_launch, t.definition) for t in f.tensors]


def chain() -> tuple[ln.Fusion, ln.TensorView, ln.TensorView]:
    """Return x -> t (GLOBAL) -> y."""
    with ln.Fusion("chain") as f:
        x = f.input("x", ("N",), ln.float32)
        t = ln.exp(x)
        y = f.output(t + 1.0, "y")
    t.memory = ln.GLOBAL
    return f, t, y


APART = (
    "y starts a launch (new_launch), and T1, which it reads from GLOBAL memory, is computed in an "
    "earlier one: they share no loops; give them separate loops, or keep what is read in LOCAL or "
    "SHARED memory"
)


def test_a_producer_in_global_memory_is_not_computed_in_the_loops_of_the_next_launch():
    f, t, y = chain()
    assert y.new_launch() is y
    before = state(f)
    assert message(lambda: t.compute_at(y, 1)) == f"T1.compute_at(y, 1): {APART}"
    assert message(lambda: t.inline_at(1)).startswith("T1.inline_at(1): y starts a launch")
    assert state(f) == before
    f.inline_most()
    assert t.compute_at_pos == 0


def test_loops_that_are_shared_already_are_not_torn_apart():
    f, t, y = chain()
    t.compute_at(y, 1)
    before = state(f)
    assert message(y.new_launch) == f"y.new_launch(): {APART}"
    assert state(f) == before
    t.memory = ln.LOCAL
    y.new_launch()
    assert message(lambda: setattr(t, "memory", ln.GLOBAL)) == f"T1.set_memory(global): {APART}"
    assert (t.memory, t.compute_at_pos) == (ln.LOCAL, 1)


def test_a_tensor_between_the_two_is_told_apart_too():
    """t (GLOBAL) -> c (SHARED) -> y: c is computed in the loops of y, t is not."""
    f, t, y = chain()
    c = t.cache_after()
    c.memory = ln.SHARED
    y.new_launch()
    c.compute_at(y, 1)
    assert message(lambda: t.compute_at(c, 1)) == f"T1.compute_at(T3, 1): {APART}"
    assert [launch.grid for launch in ln.lower(f).launch(N=4).launches] == [(1, 1, 1)] * 2


def in_two_launches(math):
    """Return exp(x), stored in GLOBAL memory, and `math` of that, which starts a launch."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        t = ln.exp(x)
        f.output(math(t), "y")
    t.memory = ln.GLOBAL
    f["y"].new_launch()
    return f


def launches_of(f):
    """Return what each launch stores, once each."""
    body = ln.lower(f).program.body
    stores = [
        [n.tensor for n, _ in ln.kir.walk(launch.body) if isinstance(n, ln.kir.Store)]
        for launch in body
    ]
    return [list(dict.fromkeys(names)) for names in stores]


def right(f):
    """Whether a kernel is proved, and gives what the math says."""
    x = np.linspace(-1, 1, 33, dtype=np.float32).reshape(3, 11)
    k = ln.lower(f)
    found = ln.compile(k, target="interpret")(x)
    wanted, bound = ln.evaluate(f, x), ln.error_bound(f, x)
    return ln.verify(k).all_sizes and bool((abs(found - wanted) <= bound).all())


def test_what_computes_a_reduction_that_starts_a_launch_starts_it_when_factored():
    f = in_two_launches(lambda t: ln.sum(t, 1))
    y = f["y"]
    y.split(1, 4)
    part = y.rfactor(1)
    assert (part.starts_launch, y.starts_launch) == (True, False)
    assert launches_of(f) == [["T1"], [part.name, "y"]]
    assert right(f)
    part.memory = ln.GLOBAL
    y.new_launch()
    assert launches_of(f) == [["T1"], [part.name], ["y"]]
    assert right(f)


def test_a_partial_result_is_computed_in_the_loops_of_the_launch_that_it_starts():
    f = in_two_launches(lambda t: ln.sum(t, 1))
    y = f["y"]
    part = y.split(1, 4).rfactor(1)
    part.compute_at(y, 1)
    assert launches_of(f) == [["T1"], [part.name, "y"]]
    assert right(f)


def test_what_computes_a_tensor_that_starts_a_launch_starts_it_when_cached():
    f = in_two_launches(lambda t: ln.sum(t, 1))
    y = f["y"]
    held = y.cache_before()
    assert (held.starts_launch, y.starts_launch) == (True, False)
    held.compute_at(y, 1)
    assert launches_of(f) == [["T1"], [held.name, "y"]]
    assert right(f)
    assert [note.asked for note in ln.lower(f).notes] == []


@pytest.mark.parametrize("refold", [False, True])
def test_a_scan_that_starts_a_launch_is_factored_inside_of_it(refold):
    f = in_two_launches(lambda t: ln.cumsum(t, 1))
    y = f["y"]
    y.split(1, 4)
    known = len(f.tensors)
    y.rfactor(2, refold=refold)
    for made in f.tensors[known:]:
        made.memory = ln.GLOBAL
    segments, totals, carried = f.tensors[known:]
    assert [t.starts_launch for t in (segments, totals, carried, y)] == [True, refold, False, False]
    first, second = launches_of(f)
    assert first == ["T1"]
    assert {"y", totals.name, carried.name} <= set(second)
    assert right(f)


def test_of_several_results_the_one_that_is_cached_leaves_the_launch_to_the_others():
    with ln.Fusion("k") as f:
        x = f.input("x", (4, 8), ln.float32)
        mean, var, _ = ln.welford(x * 2.0, 1)
        f.output(mean, "mean")
        f.output(var, "var")
    f.tensors[1].memory = ln.GLOBAL
    var.new_launch()
    held = var.cache_before()
    assert [t.starts_launch for t in (held, mean, var)] == [True, True, False]
    assert len(ln.lower(f).program.body) == 2


def test_a_refused_call_leaves_the_start_of_a_launch():
    f = in_two_launches(lambda t: ln.sum(t, 1))
    y = f["y"]
    before = state(f)
    assert message(lambda: y.rfactor(1)).startswith("y.rfactor(1): all reduction axes of y")
    assert state(f) == before


def test_an_input_starts_no_launch():
    f, _, _ = chain()
    assert message(f["x"].new_launch) == (
        "x.new_launch(): x is an input, which has no loops of its own; only cache_after and "
        "compute_at apply to inputs"
    )


def test_outputs_of_one_definition_start_a_launch_together():
    with ln.Fusion("k") as f:
        x = f.input("x", (4, 8), ln.float32)
        mean, var, _ = ln.welford(x * 2.0, 1)
        f.output(mean, "mean")
        f.output(var, "var")
    var.new_launch()
    assert mean.starts_launch
    assert var.starts_launch


def test_the_order_of_launches_is_that_of_what_they_need():
    """What starts no launch comes in the first one that has all that it needs."""
    with ln.Fusion("k") as f:
        x = f.input("x", (8,), ln.float32)
        a = f.output(x + 1.0, "a")
        b = f.output(ln.flip(a, 0), "b")
        c = f.output(b * 2.0, "c")
        d = f.output(x * 3.0, "d")
        e = f.output(c + d, "e")
    b.new_launch()
    e.new_launch()
    body = ln.lower(f).program.body
    stored = [
        [n.tensor for n, _ in ln.kir.walk(launch.body) if isinstance(n, ln.kir.Store)]
        for launch in body
    ]
    assert stored == [["a", "d"], ["b", "c"], ["e"]]


def test_a_launch_that_nothing_comes_before_is_told():
    with ln.Fusion("k") as f:
        x = f.input("x", (8,), ln.float32)
        y = f.output(x + 1.0, "y")
    y.new_launch()
    k = ln.lower(f)
    assert "launch:" not in str(k)
    (note,) = k.notes
    assert (note.subject, note.asked, note.became) == (
        "y", "y.new_launch()", "no launch comes before it",
    )  # fmt: skip
    assert ln.lower(split_sum()).notes[0].subject == "T2.r2"


def test_pickles_and_clones_keep_it():
    import pickle

    f = split_sum()
    assert pickle.loads(pickle.dumps(f))["y"].starts_launch
    assert f.trace[-3].call == "y.new_launch()"
