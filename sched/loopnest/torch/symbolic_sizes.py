"""Torch's symbolic sizes as size expressions of a graph.

TorchDynamo makes a graph for many sizes by shapes of symbols (``s0``); a size expression of ours
says the same, so that one function is compiled for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch

import loopnest.graph as G
from loopnest.graph.dimensions import Dim, add, ceildiv, dim_of, floordiv, mul, sub
from loopnest.graph.node import Node
from loopnest.scalar.dtypes import float64


class NotTranslated(Exception):
    """An operator, or these arguments of one, have no rule; the text says which."""


class UnknownSizes(Exception):
    """A graph of symbolic sizes cannot be compiled for all of them; the text says why."""


_FUNCTIONS: dict[str, Callable[[Dim, Dim], Dim]] = {
    "CleanDiv": floordiv,
    "Mod": lambda a, b: sub(a, mul(floordiv(a, b), b)),
    "PythonMod": lambda a, b: sub(a, mul(floordiv(a, b), b)),
}


def is_symbolic(value: Any) -> bool:
    """Whether a value of a graph of torch has sizes that are not numbers."""
    if isinstance(value, (tuple, list)):
        return any(map(is_symbolic, value))
    if isinstance(value, torch.Tensor):
        sizes = (*value.shape, *value.stride())
        return any(isinstance(e, torch.SymInt) for e in sizes)
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def size_of(value: Any, stride: bool = False) -> Dim:
    """Return a size of torch as an extent; in a `stride` the larger of 1 and a size is that size.

    Raises:
        NotTranslated: it is made of what size expressions do not have.
    """
    if isinstance(value, int):
        return value
    if not isinstance(value, torch.SymInt):
        raise NotTranslated(f"a size that is {type(value).__name__}")
    expr = value.node.expr
    if stride:
        expr = expr.replace(
            lambda part: part.func.__name__ == "Max" and len(part.args) == 2 and 1 in part.args,
            lambda part: next(arg for arg in part.args if arg != 1),
        )
    return _translated(expr)


def _sum(terms: Sequence[Any]) -> Dim:
    """Return a sum; ``a // c + k`` as the ceildiv that the extents of windows are."""
    known = sum([int(term) for term in terms if term.is_Integer])
    found: Dim = 0
    for term in [term for term in terms if not term.is_Integer]:
        if type(term).__name__ != "FloorDiv":
            found = add(found, _translated(term))
            continue
        dividend, divisor = map(_translated, term.args)
        if isinstance(divisor, int):
            dividend, known = add(dividend, divisor * (known - 1) + 1), 0
            found = add(found, ceildiv(dividend, divisor))
        else:
            found = add(found, floordiv(dividend, divisor))
    return add(found, known)


def number_node(value: Any) -> Node:
    """Return a float that torch computes of sizes as a scalar of a graph.

    Raises:
        NotTranslated: it is made of what sizes have no function for.
    """
    return _number(value.node.expr)


def _number(expr: Any) -> Node:
    name = type(expr).__name__
    if expr.is_number:
        return G.const(float(expr), float64)
    if name == "ToFloat":
        return _number(expr.args[0])
    if name in ("IntTrueDiv", "FloatTrueDiv"):
        first, second = map(_number, expr.args)
        return G.div(first, second)
    if expr.is_integer or expr.is_Symbol:
        return G.size(_translated(expr), float64)
    parts = [_number(part) for part in expr.args]
    if expr.is_Add:
        return reduce(G.add, parts)
    if expr.is_Mul:
        return reduce(G.mul, parts)
    if expr.is_Pow:
        return G.pow(*parts)
    raise NotTranslated(f"the number {expr}")


def strides_of(tensor: Any) -> tuple[Dim, ...]:
    """Return the strides of a tensor; torch counts an empty extent as 1 in them."""
    return tuple([size_of(step, stride=True) for step in tensor.stride()])


def sizes_of(values: Sequence[Any]) -> tuple[Dim, ...]:
    """Return sizes as extents."""
    return tuple([size_of(value) for value in values])


def _translated(expr: Any) -> Dim:
    if expr.is_Integer:
        return int(expr)
    if expr.is_Symbol:
        return dim_of(str(expr), f"size({expr})")
    if expr.is_Add:
        return _sum(expr.args)
    if type(expr).__name__ == "FloorDiv":
        return _sum([expr])
    parts = [_translated(part) for part in expr.args]
    if expr.is_Mul:
        return reduce(mul, parts)
    if expr.is_Pow and isinstance(parts[1], int) and parts[1] > 0:
        return reduce(mul, parts[:1] * parts[1])
    function = _FUNCTIONS.get(type(expr).__name__)
    if function is None:
        raise NotTranslated(f"the size {expr}")
    return function(*parts)
