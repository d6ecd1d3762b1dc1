"""The docstrings of reductions and scans, from their first paragraphs and a table.

What all of them share (operands, axes, errors) is written here once; what each one says of itself
is what it returns, and a row of `FOLD_ROWS`: an example, its result and a source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class FoldRow:
    """What the docstring of a reduction or scan cannot take from its parameters.

    Args:
        call: of the example, on the operand x.
        y: what NumPy prints of the result.
        source: where the function is defined.
        x: the elements of the operand.
        needs: what else it refuses: "no type to add in".
    """

    call: str
    y: str
    source: str
    x: str = "[[1, 2, 3], [4, 5, 6]]"
    needs: str = ""


_PAIRS = "[[1, 5, 5], [3, 2, 4]]"
_LINE = "[1, 3, 2]"
_MAX, _MIN = [f"numpy.{n}, with an identity for no element" for n in ("max", "min")]

FOLD_ROWS: Mapping[str, FoldRow] = {
    "sum": FoldRow("sum(x, axis=1)", "[ 6. 15.]", "numpy.sum", needs="no type to add in"),
    "prod": FoldRow("prod(x, axis=1)", "[  6. 120.]", "numpy.prod", needs="no type to multiply in"),
    "max": FoldRow("max(x, axis=1)", "[3. 6.]", _MAX, needs="no element type"),
    "min": FoldRow("min(x, axis=0)", "[1. 2. 3.]", _MIN, needs="no element type"),
    "any": FoldRow("any(x > 5.0, axis=1)", "[False  True]", "numpy.any"),
    "all": FoldRow("all(x > 3.0, axis=1)", "[False  True]", "numpy.all"),
    "mean": FoldRow("mean(x, axis=1)", "[2. 5.]", "numpy.mean", needs="no float type"),
    "argmax": FoldRow("argmax(x, axis=1)", "[1 2]", "numpy.argmax", _PAIRS),
    "argmin": FoldRow("argmin(x, axis=1)", "[0 1]", "numpy.argmin", _PAIRS),
    "cumsum": FoldRow(
        "cumsum(x, 0)", "[1. 4. 6.]",
        'numpy.cumsum; Blelloch, "Prefix sums and their applications", 1990', _LINE,
    ),
    "cumprod": FoldRow("cumprod(x, 0)", "[1. 3. 6.]", "numpy.cumprod", _LINE),
    "cummax": FoldRow("cummax(x, 0)", "[1. 3. 3.]", "numpy.maximum.accumulate", _LINE),
}  # fmt: skip

_REDUCED = """\
Args:
    tv: the operand, of any shape.
    axis: an axis, several, or None for all; negative from the end.
    keepdims: whether broadcast axes of extent 1 stand in place of the reduced ones."""

_TYPED = """
    dtype: what elements are converted to, the type of the fold and of the result; a 16-bit type
        is folded in float32 and rounded once."""

_KEPT = """\
Returns:
    A tensor without the reduced axes; with `keepdims` a broadcast, whose `.reduction` it is."""

_FOUND = """\
Args:
    tv: the operand, of any shape.
    axis: an axis, negative from the end, or None for all.
    keepdims: whether a broadcast axis stands in place of the reduced one."""

_SCANNED = """\
Args:
    tv: the operand, of any shape.
    axis: the axis to go along, negative from the end.
    exclusive: whether an element has what lies before it, the first one the identity.
    reverse: whether to go from the end."""


def documented(function: F) -> F:
    """Give `function`, whose docstring says what it returns, the rest of it."""
    name = function.__name__
    function.__doc__ = fold_docstring(name, function.__doc__ or "", function.__annotations__)
    return function


def fold_docstring(name: str, first: str, parameters: Mapping[str, object]) -> str:
    """Return the docstring of the function `name`, which begins with `first`."""
    row = FOLD_ROWS[name]
    axes, sections = "axes that it does not have", [_REDUCED, _KEPT]
    if "exclusive" in parameters:
        axes, sections = "no axis that it has", [_SCANNED]
    elif name.startswith("arg"):
        axes, sections = "an axis that it does not have", [_FOUND]
    elif "dtype" in parameters:
        sections[0] += _TYPED
    last = "flags that are no bools" if "exclusive" in parameters else row.needs
    refused = f"{axes}, or {last}" if last else f"or {axes}"
    shape = '("N",)' if row.x is _LINE else '("N", "D")'
    lines = " ".join(first.split("\n\n")[0].split())
    rest = ["\n".join(line.strip() for line in p.splitlines()) for p in first.split("\n\n")[1:]]
    parts = [
        lines,
        *[paragraph.strip() for paragraph in rest if paragraph.strip()],
        f"Raises:\n    DefinitionError: no TensorView, {refused}.",
        *sections,
        ">>> import numpy as np\n>>> import loopnest as ln\n"
        '>>> with ln.Fusion("k") as f:\n'
        f'...     x = f.input("x", {shape}, ln.float32)\n'
        f'...     y = f.output(ln.{row.call}, "y")\n'
        f">>> print(ln.evaluate(f, np.array({row.x}, np.float32)))\n"
        f"{row.y}",
        f"Source: {row.source}.",
    ]
    return "\n\n".join(parts)
