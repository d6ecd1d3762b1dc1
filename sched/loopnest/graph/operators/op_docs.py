"""The docstrings of pointwise and reducing ops, from their first lines, their types and tables."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from loopnest.graph.node import Node
from loopnest.scalar.function_docs import ROWS, types
from loopnest.scalar.op_table import FUNCTIONS

F = TypeVar("F", bound=Callable[..., Node])

_LONG = re.compile(r"\.\d{5}")
_OPERANDS = {
    1: """\
Args:
    x: a node of any shape; arrays are made nodes by `const`.

Returns:
    A node of the shape of `x`, element by element.""",
    2: """\
Args:
    a: a node, or a Python number.
    b: likewise; one of the two is a node.

Returns:
    A node of the shape that NumPy's broadcasting gives.""",
}
_RAISES = "Raises:\n    GraphError: an operand that is none, or shapes or types that do not fit."
_FOLDED = """\
Args:
    x: a node.
    axis: the axes that are folded, negative ones from the end; None for all.
    keepdims: whether they stay, with extent 1.

Raises:
    GraphError: an operand that is none, an axis that it lacks, or one named twice."""


def pointwise(function: F) -> F:
    """Complete the docstring of a pointwise op, which has its first line."""
    name, first = function.__name__, (function.__doc__ or "").strip()
    row = ROWS.get(name)
    if row is not None:
        call = f"G.{name}(x, {row.b})" if row.b else f"G.{name}(x)"
        example = _example(f"np.array([{row.x}], np.{row.dtype})", call, row.y)
        if _LONG.search(row.y):  # its last digits are those of float32 here
            example = f"An example is that of `ln.{name}`."
        shapes = f"{_OPERANDS[FUNCTIONS[name].arity]}\n    {types(name)}"
        parts = [first, shapes, _RAISES, example, f"Source: {row.source}."]
        function.__doc__ = "\n\n".join(parts)
    return function


def folding(shown: str, source: str) -> Callable[[F], F]:
    """Complete the docstring of a reduction.

    Args:
        shown: what it gives for ``[[1, 0], [3, 2]]`` along axis 1.
        source: where it is defined.
    """

    def complete(function: F) -> F:
        first = (function.__doc__ or "").strip()
        call = f"G.{function.__name__}(x, 1)"
        example = _example("np.array([[1, 0], [3, 2]], np.float32)", call, shown)
        function.__doc__ = "\n\n".join([first, _FOLDED, example, f"Source: {source}."])
        return function

    return complete


def _example(array: str, call: str, shown: str) -> str:
    return (
        ">>> import numpy as np\n>>> import loopnest.graph as G\n"
        f">>> x = G.const({array})\n"
        f">>> print(*G.evaluate(G.Graph([], [{call}])))\n{shown}"
    )
