"""The guide's list of operations has every public function of the math, with its first sentence.

``--update-goldens`` writes the table anew.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

import loopnest as ln
from loopnest.scalar.operators import Operators

PAGE = Path(__file__).parents[1] / "sched" / "docs" / "guide" / "operations.md"
BEGIN, END = "<!-- table: written by a test -->\n", "<!-- end of table -->\n"
SYMBOLS = {
    "__add__": "a + b", "__sub__": "a - b", "__mul__": "a * b", "__truediv__": "a / b",
    "__floordiv__": "a // b", "__mod__": "a % b", "__pow__": "a ** b", "__and__": "a & b",
    "__or__": "a | b", "__xor__": "a ^ b", "__lshift__": "a << b", "__rshift__": "a >> b",
    "__lt__": "a < b", "__le__": "a <= b", "__gt__": "a > b", "__ge__": "a >= b",
    "__neg__": "-x", "__invert__": "~x", "__abs__": "abs(x)",
}  # fmt: skip


class _Recorder(Operators[object, str]):
    def _operate(self, name: str, *operands: object) -> str:
        return name


def operators() -> dict[str, str]:
    """Return the name of a function -> the operator that is the same."""
    found = {}
    for method, symbol in SYMBOLS.items():
        others = [0] if "b" in symbol.replace("abs", "") else []
        found[getattr(_Recorder(), method)(*others)] = symbol
    return found


def functions() -> dict[str, list[str]]:
    """Return the public functions of the math by the module that defines them."""
    found: dict[str, list[str]] = {}
    for name in ln.__all__:
        value = getattr(ln, name)
        module = getattr(value, "__module__", "")
        if module.startswith("loopnest.tensor.ops.") and inspect.isfunction(value):
            found.setdefault(module, []).append(name)
    return found


def table() -> str:
    """Return a table for each module: call, operator, first sentence."""
    symbols, parts = operators(), []
    for module, names in sorted(functions().items()):
        first = (importlib.import_module(module).__doc__ or "").split("\n")[0].rstrip(".")
        heading, _, rest = first.partition(": ")
        heading = heading if " " in heading or not rest else rest.capitalize()
        rows = [f"**{heading}**\n", "| call | what it returns |", "| --- | --- |"]
        for name in sorted(names):
            value = getattr(ln, name)
            given = ", ".join(inspect.signature(value).parameters)
            operator = f", `{symbols[name]}`" if name in symbols else ""
            said = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
            said = said.removeprefix("Return ").replace("|", "\\|")
            rows.append(f"| `ln.{name}({given})`{operator} | {said} |".replace(" | b`", " \\| b`"))
        parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


def test_the_list_of_operations_is_whole(request: pytest.FixtureRequest) -> None:
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    wanted = f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"
    if request.config.getoption("--update-goldens"):
        PAGE.write_text(wanted, "utf-8")
    elif text != wanted:
        pytest.fail(
            f"{PAGE} is not up to date; write it with "
            "tools/run pytest --update-goldens tests/test_operations_page.py"
        )


def test_every_operator_stands_in_the_list() -> None:
    assert set(operators()) <= {name for names in functions().values() for name in names}
    methods = {m for m in vars(Operators) if m.startswith("__") and callable(vars(Operators)[m])}
    reflected = {m for m in methods if m.startswith("__r") and m != "__rshift__"}
    assert methods - reflected - {"__class_getitem__", "__init_subclass__"} == set(SYMBOLS)
