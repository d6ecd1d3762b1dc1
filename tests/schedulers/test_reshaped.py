"""Fusions with reshapes: no scheduler takes them for what they are not."""

import loopnest as ln
from loopnest.schedulers import scheduler_of


def test_a_reshape_has_no_single_space():
    with ln.Fusion("f") as f:
        x = f.input("x", (6, 4), ln.float32)
        f.output(ln.sum(ln.reshape(x * 2.0, (3, 2, 4)), axis=1), "y")
    assert scheduler_of(f, "c") is None
