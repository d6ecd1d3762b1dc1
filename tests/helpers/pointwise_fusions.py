"""A fusion without and one with a reduction, for tests of transforms."""

from __future__ import annotations

import loopnest as ln


def doubled(*shape: int | str) -> tuple[ln.Fusion, ln.TensorView]:
    """Return y = 2 x."""
    with ln.Fusion("k") as f:
        x = f.input("x", shape, ln.float32)
        y = f.output(x * 2.0, "y")
    return f, y


def summed() -> tuple[ln.Fusion, ln.TensorView]:
    """Return y[I, K], the sum over R of x[I, R, K]."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "R", "K"), ln.float32)
        y = f.output(ln.sum(x, axis=1), "y")
    return f, y
