"""Tensors and scalars of two fusions, by name: what code in tables of bad input may use."""

from __future__ import annotations

from typing import Any

import numpy as np

import loopnest as ln


def names() -> dict[str, Any]:
    """Return what the code below may use: tensors and scalar `a` of fusion f, `z` of fusion g."""
    with ln.Fusion("main") as f:
        tensors = [
            f.input("x", ("N", "D"), ln.float32),
            f.input("i", ("N", "D"), ln.int32),
            f.input("b", ("D",), ln.float32),
            f.input("u", ("N", 1), ln.float32),
            f.input("r", (), ln.float32),
            f.input("m", ("M",), ln.float32),
            f.input("s", (4,), ln.float32),
        ]
        a = f.scalar("alpha", ln.float32)
    with ln.Fusion("other") as g:
        z = g.input("z", ("N", "D"), ln.float32)
    return {"ln": ln, "np": np, "f": f, "a": a, "z": z, **{t.name: t for t in tensors}}
