"""Loads that data choose: what a compiler turns into loads under a mask, some of them wrongly.

GCC 12 vectorizes a loop whose inner loops it has unrolled. Loads a few elements apart, each under a
test of its own, may become one load of neighbours under one mask (-O3 with AVX2 or AVX-512): of a
fold that keeps the last of the chosen values it then gives others. The C printer keeps the loops
around such a value from being vectorized (`LN_APART`); explicit vectors have masks of their own.

A sum of floats keeps its order, so that a vector of what data choose is gathered lane by lane and
added lane by lane: a sparse matrix times a vector took 1.4 times as long (GCC 12, Zen 5). Such
loops are kept from it, too.
"""

from __future__ import annotations

from loopnest.kir import Loop, Store, expressions
from loopnest.kir import walk as statements
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import Expr, Op, loads, variables, walk


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


def folds_chosen(loop: Loop) -> bool:
    """Whether an innermost loop adds floats that data choose of an array to one element."""
    body = [node for node, _ in statements(loop.body)]
    stores = [node for node in body if isinstance(node, Store) and node.role == "update"]
    if any(isinstance(node, Loop) for node in body) or not stores:
        return False
    if any(loop.var in variables(i) for node in stores for i in node.index):
        return False
    values = [e for node in body for e in expressions(node)]
    chosen = any(loads(i) for e in values for load in loads(e) for i in load.args)
    return chosen and all(node.storage.dtype.is_float for node in stores)
