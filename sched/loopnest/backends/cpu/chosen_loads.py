"""Loads that data choose: what a compiler turns into loads under a mask, some of them wrongly.

GCC 12 vectorizes a loop whose inner loops it has unrolled. Loads a few elements apart, each under a
test of its own, may become one load of neighbours under one mask (-O3 with AVX2 or AVX-512): of a
fold that keeps the last of the chosen values it then gives others. The C printer keeps the loops
around such a value from being vectorized (`LN_APART`); explicit vectors have masks of their own.
"""

from __future__ import annotations

from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import Expr, Op, loads, walk


def chooses_load(value: Expr) -> bool:
    """Whether data say if an element of an array is the value, and do not read it themselves."""
    for node in walk(value):
        if isinstance(node, Op) and node.op == "where":
            condition, *sides = node.args
            known = loads(condition)
            chosen = [load for side in sides for load in loads(side) if load not in known]
            if known and any(load.buffer.memory is Memory.GLOBAL for load in chosen):
                return True
    return False
