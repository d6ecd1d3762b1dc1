"""new_launch: what it does to a schedule, what it refuses, and that refusals change nothing."""

from __future__ import annotations

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


def test_what_starts_a_launch_is_not_factored_or_cached():
    f = split_sum()
    y = f["y"]
    found = (
        "y starts a launch already; call {0} first, then new_launch() of the tensor that shall "
        "start it"
    )
    assert message(lambda: y.rfactor(0)) == "y.rfactor(0): " + found.format("rfactor")
    assert message(y.cache_before) == "y.cache_before(): " + found.format("cache_before")


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
        "y", "y.new_launch()", "it is computed in the first launch",
    )  # fmt: skip
    assert ln.lower(split_sum()).notes[0].subject == "T2.r2"


def test_pickles_and_clones_keep_it():
    import pickle

    f = split_sum()
    assert pickle.loads(pickle.dumps(f))["y"].starts_launch
    assert f.trace[-3].call == "y.new_launch()"
