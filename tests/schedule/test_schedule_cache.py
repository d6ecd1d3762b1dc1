"""cache_after, cache_before, cache_fork: what they insert, where it stands, what they refuse."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import loopnest as ln
from helpers.schedule_run import (
    PT,
    assert_computes,
    leaf,
    loops,
    positions,
    random,
    state,
    taken_back,
)


def example() -> tuple[ln.Fusion, ln.TensorView, ln.TensorView, ln.TensorView, ln.TensorView]:
    """Return x -> T1 -> a (output) -> b (output), and T1 -> b."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        t1 = x * 2.0
        a = f.output(ln.exp(t1), "a")
        b = f.output(a + t1, "b")
    return f, x, t1, a, b


def test_cache_after_stands_between_a_tensor_and_its_consumers() -> None:
    """Before T1 -> a, b; after T1 -> c -> a, b."""
    f, x, t1, a, b = example()
    c = t1.cache_after()
    assert f.tensors[-1] is c
    assert (c.producers, c.consumers, t1.consumers) == ((t1,), (a, b), (c,))
    assert (c.memory, c.dtype, c.name) == (ln.LOCAL, ln.float32, "T4")
    assert c.definition is not None
    assert c.definition.op == "copy"
    assert x.consumers == (t1,)
    assert_computes(f, random(3, 4))


def test_cache_after_of_an_input() -> None:
    f, x, t1, _, _ = example()
    c = x.cache_after()
    assert (c.producers, t1.producers, x.consumers) == ((x,), (c,), (c,))
    assert leaf(c) == "i:I i:J"
    c.compute_at(t1, -1)
    assert_computes(f, random(3, 4))


def test_cache_after_takes_the_loops_of_a_computed_tensor() -> None:
    """Splits, order, parallel types and pins; reductions excepted."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "R", "J"), ln.float32)
        t1 = ln.sum(x, axis=1)
        f.output(t1 * 2.0, "y")
    t1.split(2, 4).split(1, 2).reorder({0: 1})
    t1.axis(1).parallelize(PT.unroll)
    t1.axis(3).pin()
    c = t1.cache_after()
    assert leaf(t1) == "r:ceildiv(R, 2) i:I r:2 i:ceildiv(J, 4) i:4"
    assert leaf(c) == "i:I i:ceildiv(J, 4) i:4"
    assert [a.parallel for a in c.leaf_domain] == [PT.unroll, PT.serial, PT.serial]
    assert [a.pinned for a in c.leaf_domain] == [False, True, False]
    assert_computes(f, random(3, 5, 6))


def test_cache_after_of_one_output_of_an_expression() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        mean, var, count = ln.welford(x, axis=1)
        y = f.output(mean * 2.0, "y")
        f.output(var * 2.0, "z")
    c = mean.cache_after()
    assert (c.producers, y.producers) == ((mean,), (c,))
    assert mean.siblings == (mean, var, count)
    assert_computes(f, random(3, 4))


def test_cache_before_takes_over_the_definition() -> None:
    """Before T1 -> a; after T1 -> c -> a: c computes, a copies; a's consumers stay."""
    f, _, t1, a, b = example()
    definition = a.definition
    c = a.cache_before()
    assert definition is not None
    assert c.definition is not None
    assert (c.definition.op, c.producers, c.consumers) == (definition.op, (t1,), (a,))
    assert a.definition is not None
    assert (a.definition.op, a.producers, a.consumers) == ("copy", (c,), (b,))
    assert (a.is_output, c.is_output, c.memory) == (True, False, ln.LOCAL)
    assert f["a"] is a
    assert_computes(f, random(3, 4))


def test_cache_before_of_a_reduction_keeps_its_loops() -> None:
    """The new tensor has all loops that the tensor had, the tensor those that reduce nothing."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        y = f.output(ln.sum(x, axis=1), "y")
    y.split(1, 4).split(0, 2)
    y.axis(0).parallelize(PT.grid_x)
    c = y.cache_before()
    assert leaf(c) == "i:ceildiv(I, 2) i:2 r:ceildiv(J, 4) r:4"
    assert leaf(y) == "i:ceildiv(I, 2) i:2"
    assert [t.axis(0).parallel for t in (c, y)] == [PT.grid_x, PT.grid_x]
    f.inline_most()
    assert positions(c, y) == (2, 0)
    assert loops(f)[:3] == ["for ceildiv(I, 2)", "  for 2", "    T2"]
    assert_computes(f, random(3, 6))


def test_cache_before_of_one_output_of_an_expression() -> None:
    """The new tensor takes the output's place among the siblings."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        mean, var, count = ln.welford(x, axis=1)
        f.output(mean, "mean")
        f.output(var, "var")
    c = mean.cache_before()
    assert c.siblings == var.siblings == count.siblings == (c, var, count)
    assert mean.siblings == (mean,)
    c.split(1, 4)
    assert leaf(var) == leaf(count) == "i:I r:ceildiv(J, 4) r:4"
    assert leaf(mean) == "i:I"
    assert_computes(f, random(3, 6))


def test_cache_fork_makes_a_copy_the_output() -> None:
    """Before T1 -> a (output) -> b; after T1 -> a -> o (output), a -> b."""
    f, _, _, a, b = example()
    a.split(0, 4)
    o = a.cache_fork()
    assert f.outputs == (o, b)
    assert (o.name, a.name) == ("a", "T2")
    assert (o.memory, a.memory) == (ln.GLOBAL, ln.LOCAL)
    assert (o.producers, o.consumers, a.consumers) == ((a,), (), (b, o))
    assert leaf(o) == "i:ceildiv(I, 4) i:4 i:J"
    assert f["a"] is o
    a.compute_at(b, 1)
    assert positions(a, o, b) == (1, 0, 0)
    assert_computes(f, random(6, 4))


def test_cache_fork_moves_the_input_that_an_output_overwrites() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("I",), ln.float32)
        a = f.output(x * 2.0, "a", inplace=x)
        f.output(a + 1.0, "b")
    o = a.cache_fork()
    assert dict(f.inplace) == {o: x}
    f.inline_most()
    assert_computes(f, random(5))


def test_caches_of_16_bit_tensors_round_once() -> None:
    """A copy of a 16-bit tensor is a 16-bit tensor: the value stays the one that was rounded."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I",), ln.float16)
        t = ln.exp(x)
        y = f.output(t * 3.0, "y")
    assert t.cache_after().dtype is t.cache_before().dtype is y.cache_before().dtype is ln.float16


def test_caches_in_a_row() -> None:
    """Each copy reads the one before it."""
    f, x, _, _, b = example()
    first = x.cache_after()
    second = x.cache_after()
    assert (second.producers, first.producers) == ((x,), (second,))
    last = b.cache_before().cache_before()
    assert last.consumers[0].consumers == (b,)
    f.inline_most()
    assert_computes(f, random(3, 4))


BAD: list[tuple[Callable[[ln.TensorView, ln.TensorView, ln.TensorView], object], str]] = [
    (lambda x, t, b: b.cache_after(), "b.cache_after(): no tensor consumes b; "
     "cache_before serves an output, cache_fork both"),
    (lambda x, t, b: x.cache_before(), "x.cache_before(): x is an input, which has no loops of its "
     "own; only cache_after and compute_at apply to inputs"),
    (lambda x, t, b: b.cache_fork(), "b.cache_fork(): b cannot be forked: no tensor consumes it; "
     "cache_fork serves an output that other tensors use"),
    (lambda x, t, b: t.cache_fork(), "T1.cache_fork(): T1 cannot be forked: it is no output; "
     "cache_fork serves an output that other tensors use"),
    (lambda x, t, b: x.cache_fork(), "x.cache_fork(): x cannot be forked: it is no output; "
     "cache_fork serves an output that other tensors use"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD, ids=[m.split(":")[0] for _, m in BAD])
def test_refusals_change_nothing(
    call: Callable[[ln.TensorView, ln.TensorView, ln.TensorView], object], message: str
) -> None:
    f, x, t1, _, b = example()
    before = state(f)
    with pytest.raises(ln.ScheduleError) as caught:
        call(x, t1, b)
    assert str(caught.value) == message
    assert state(f) == before


@pytest.mark.parametrize("name", ["cache_after", "cache_before", "cache_fork"])
def test_a_frozen_tensor_is_not_cached(name: str) -> None:
    """Neither where its own loops are shared nor where a producer was computed into it."""
    f, _, t1, a, b = example()
    t1.compute_at(b, 1)
    for tensor in (t1, a):
        before = state(f)
        with pytest.raises(ln.ScheduleError) as caught:
            getattr(tensor, name)()
        assert str(caught.value) == (
            f"{tensor.name}.{name}(): the leading 1 loops of {tensor.name} are shared already; "
            f"cache a tensor before compute_at: {taken_back(f, 0)}"
        )
        assert state(f) == before


def test_consumers_that_were_frozen_may_get_a_cached_input() -> None:
    """An input is never frozen; the copy of it stands in its own nest."""
    f, x, t1, _, b = example()
    t1.compute_at(b, 1)
    c = x.cache_after()
    assert positions(c, t1) == (0, 1)
    assert_computes(f, random(3, 4))
