"""A fusion that is focused on a stage is that stage, and afterwards itself with what was done."""

import numpy as np
import pytest

import loopnest as ln
from loopnest.schedule.stage_focus import focused

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def chain():
    with ln.Fusion("chain") as f:
        x = f.input("x", (3, 4), ln.float32)
        h = ln.exp(x)
        f.output(ln.sum(h, axis=1), "s")
        f.output(h * x, "y")
    return f, x, h


def state(f):
    fields = [(t.definition, t.domain, t.consumers, t.compute_at_pos, str(t)) for t in f.tensors]
    ends = f.tensors, f.inputs, f.outputs, dict(f.inplace)
    return fields, ends, [*f.trace], [*f.intents]


def test_a_stage_has_its_own_ends():
    f, x, h = chain()
    s, y = f.outputs
    before = state(f)
    with focused(f, {h}, [h]):
        assert (f.inputs, f.outputs, f.tensors) == ((x,), (h,), (x, h))
        assert h.consumers == ()
        assert x.consumers == (h,)
        assert h.is_output
    with focused(f, {s, y}, [s, y]):
        assert (f.inputs, f.outputs, f.tensors) == ((x, h), (s, y), (x, h, s, y))
        assert h.is_input
        assert h.producers == ()
        assert x.consumers == (y,)
    assert state(f) == before


def test_it_is_itself_again_after_an_error():
    f, _, h = chain()
    before = state(f)
    with pytest.raises(ZeroDivisionError), focused(f, {h}, [h]):
        raise ZeroDivisionError
    assert state(f) == before


def test_a_copy_of_what_is_read_serves_one_stage():
    f, x, h = chain()
    s, y = f.outputs
    h.memory = ln.GLOBAL
    with focused(f, {y}, [y]):
        copy = h.cache_after()
        y.split(1, 2)
        ln.inline_most([copy])
    assert h.consumers == (s, copy)
    assert y.producers == (copy, x)
    assert [origin.call for origin in f.trace] == [
        "T1.set_memory(global)", "T1.cache_after()", "y.split(axis=1, factor=2)",
        "inline_most([T4])"
    ]  # fmt: skip
    kernel = ln.lower(f)
    assert ln.verify(kernel).ok
    for found, right in zip(kernel_results(kernel), ln.evaluate(f, X), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-6)


def kernel_results(kernel):
    return ln.compile(kernel, target="interpret")(X)


def test_readers_outside_follow_an_output_that_is_replaced():
    with ln.Fusion("fork") as f:
        x = f.input("x", (3, 4), ln.float32)
        h = f.output(ln.exp(x), "h")
        t = h + 1.0
        y = f.output(t * h, "y")
    with focused(f, {h, t}, [h, t]):
        copy = h.cache_fork()
    assert f.outputs == (copy, y)
    assert y.producers == (t, copy)
    assert t.producers == (h,)
    assert ln.verify(ln.lower(f)).ok


def test_what_lies_in_memory_has_no_loops():
    """It may be copied, whatever its own loops have become."""
    f, x, h = chain()
    s, y = f.outputs
    h.memory = ln.GLOBAL
    with focused(f, {h}, [h]):
        copy = x.cache_after()
        h.split(1, 2)
        copy.compute_at(h, 2)
    assert h.produced_at_pos == 2
    with focused(f, {s, y}, [s, y]):
        assert (h.ndim, h.frozen) == (2, 0)
        h.cache_after()
    assert (h.ndim, h.frozen) == (3, 2)
    assert ln.verify(ln.lower(f)).ok
