"""The docstrings of the pointwise functions, from their first lines, their types and a table.

What all of them share (shapes, operands, errors) is written here once; what each one says of itself
is its first line, a row of `function_docs.ROWS`, and its rule of types.
"""

from __future__ import annotations

from loopnest.scalar.function_docs import ROWS, types
from loopnest.scalar.op_table import FUNCTIONS

_SHAPES = {
    1: """\
Args:
    x: a tensor of any shape, or a run-time scalar.

Returns:
    A tensor of the shape of `x`, element by element; a scalar expression of a scalar.
   """,
    2: """\
Args:
    a: a tensor, a run-time scalar, or a Python number.
    b: likewise; one of the two is no Python number.

Returns:
    A tensor of the shape that NumPy's broadcasting gives; a scalar expression of scalars.
   """,
}


def docstring(name: str, first: str) -> str:
    """Return the docstring of the function `name`, which begins with `first`."""
    row = ROWS.get(name)
    if row is None:
        return first
    arity = FUNCTIONS[name].arity
    call = f"ln.{name}(x, {row.b})" if row.b else f"ln.{name}(x)"
    parts = [
        first.strip(),
        f"{_SHAPES[arity]} {types(name)}",
        "Raises:\n    DefinitionError: an operand that is none (an array, a string), operands of "
        "two\n        fusions, or shapes or types that do not fit.",
        ">>> import numpy as np\n>>> import loopnest as ln\n"
        '>>> with ln.Fusion("k") as f:\n'
        f'...     x = f.input("x", (3,), ln.{row.dtype})\n'
        f'...     y = f.output({call}, "y")\n'
        f">>> print(ln.evaluate(f, np.array([{row.x}], np.{row.dtype})))\n"
        f"{row.y}",
        f"Source: {row.source}.",
    ]
    return "\n\n".join(parts)
