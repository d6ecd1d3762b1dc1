"""`G.compile(g, invariant=["N"])`: kernels of which the bits do not depend on a size."""

import re

import numpy as np
import pytest

import loopnest as ln
import loopnest.graph as G
from loopnest.graph_kernels import code_gen
from loopnest.schedulers.scheduler_table import (
    Scheduler,
    register_scheduler,
    unregister_scheduler,
)


def attention_like():
    x, w = G.var("x", ("N", "D")), G.var("w", ("D", 24))
    y = G.softmax(G.matmul(x, w), axis=1)
    return G.Graph([x, w], [y])


def test_rows_have_the_same_bits_in_any_batch():
    fn = G.compile(attention_like(), "c", invariant=["N"])
    draw = np.random.default_rng(0)
    x = draw.standard_normal((67, 133), np.float32)
    w = draw.standard_normal((133, 24), np.float32)
    whole = fn(x, w)
    for count in (1, 2, 31, 64):
        assert fn(x[:count].copy(), w).tobytes() == whole[:count].tobytes()
    assert all(launch.kernel is not None for launch in fn.kernels)
    for launch in fn.kernels:
        assert ln.batch_invariant(launch.kernel, "N")


@pytest.fixture
def chunks_of_n(monkeypatch):
    """A scheduler that folds rows in chunks of N elements."""

    def accepts(fusion, processor):
        y = fusion.outputs[0]
        return y.ndim == 2 and y.axis(1).is_reduction and str(y.axis(0).extent) == "N"

    def chunked(fusion, processor):
        y = fusion.outputs[0]
        y.split(1, "N")
        y.rfactor([2])

    monkeypatch.setattr(code_gen, "_KERNELS", {})
    register_scheduler(Scheduler("chunks", "c", accepts, chunked))
    yield
    unregister_scheduler("chunks", "c")


def test_a_schedule_that_depends_on_the_size_gives_way_to_plain_loops(chunks_of_n):
    x = G.var("x", ("N", "D"))
    g = G.Graph([x], [G.sum(x, 1)])
    chunked = G.compile(g, "c").kernels[0].kernel
    assert ln.batch_invariant(chunked, "N").status == "different"
    fn = G.compile(g, "c", invariant=["N"])
    assert ln.batch_invariant(fn.kernels[0].kernel, "N")
    values = np.random.default_rng(0).standard_normal((5, 7), np.float32)
    assert fn(values[:3].copy()).tobytes() == fn(values)[:3].tobytes()


def test_a_sum_over_the_size_is_refused():
    x = G.var("x", ("N", "D"))
    g = G.Graph([x], [G.sum(x, 0)])
    with pytest.raises(G.GraphError) as error:
        G.compile(g, "c", invariant=["N"])
    assert "the bits of its kernel (sum) may differ: batch_invariant(" in str(error.value)
    assert str(error.value).endswith("; leave that size out of invariant")


@pytest.mark.parametrize(
    ("invariant", "message"),
    [
        (["Q"], "compile(main, invariant=['Q']): 'Q' is no size of it; its sizes are ['N', 'D']"),
        ("N", "compile(main, invariant='N'): invariant is a str; pass a list of sizes, as [\"N\"]"),
    ],
)
def test_what_is_no_size(invariant, message):
    with pytest.raises(G.GraphError, match=f"^{re.escape(message)}$"):
        G.compile(attention_like(), "c", invariant=invariant)
