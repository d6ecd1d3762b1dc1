"""One key for an operation: every reader has its cell, and none of a key that does not exist."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from importlib import resources
from pathlib import Path

import pytest

import loopnest as ln
import loopnest.graph as G
from loopnest.backends.clike.c_expressions import RULES
from loopnest.backends.clike.float_functions import CUDA, C
from loopnest.backends.cuda.printing.cuda_functions import _HELPERS, _functions
from loopnest.scalar import op_table
from loopnest.scalar.op_table import FUNCTIONS, OPS, Column, columns

# Modules that need what a machine may not have (`torch` the folder, too); they hold no column.
HEADERS = ("loopnest_math.h", "loopnest_kernel.h")
OPTIONAL = ("driver_", "pytest_plugin", "__main__")


def file_of(module: str) -> str:
    found = importlib.import_module(module).__file__
    assert found is not None
    root = Path(ln.__file__).parent.parent.parent
    return str(Path(found).relative_to(root))


def all_columns() -> tuple[Column[object], ...]:
    for module in pkgutil.walk_packages(ln.__path__, "loopnest."):
        parts = module.name.split(".")
        if {"torch", "jax"}.isdisjoint(parts) and not parts[-1].startswith(OPTIONAL):
            importlib.import_module(module.name)
    return columns()


def complaints(found: tuple[Column[object], ...]) -> list[str]:
    """Return a sentence for each cell that is missing or that belongs to no key."""
    lines = []
    for column in found:
        file, name = file_of(column.module), column.name
        lines += [f"{file}: no {name} of '{op}'" for op in column.missing]
        lines += [f"{file}: {name} of unknown '{op}'" for op in column.unknown]
    return lines


COLUMNS = {
    "NumPy function", "interpreter's function", "interpreter's function of indices",
    "interpreter's predicate", "range over an interval", "range over integers or bools",
    "accuracy", "accuracy with fast math", "accuracy in C", "form in C and CUDA",
    "function in CUDA", "value in a graph", "gradient", "cost",
}  # fmt: skip


def test_every_column_has_every_cell() -> None:
    found = all_columns()
    assert {column.name for column in found} == COLUMNS
    assert not (lines := complaints(found)), "\n".join(lines)


def test_every_key_is_needed_somewhere() -> None:
    needed = frozenset().union(*[c.needs for c in all_columns() if c.keys_of is OPS])
    assert needed == set(OPS)


def test_a_missing_cell_is_named_with_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op_table, "_COLUMNS", [])
    Column(
        "rule", "loopnest.scalar.op_table", {"sinus": 0, "sin": 1}, needs=frozenset({"sin", "cos"})
    )
    assert complaints(columns()) == [
        "sched/loopnest/scalar/op_table.py: no rule of 'cos'",
        "sched/loopnest/scalar/op_table.py: rule of unknown 'sinus'",
    ]


def test_a_column_is_a_mapping() -> None:
    assert C.keys() == set(CUDA)
    assert len(RULES) == len(OPS)
    assert list(CUDA) == list(iter(CUDA))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_core_and_graph_have_every_function(name: str) -> None:
    for layer in (ln, G):
        assert name in layer.__all__, f"{file_of(layer.__name__)}: no {name}"
        parameters = inspect.signature(getattr(layer, name)).parameters.values()
        required = [p for p in parameters if p.default is inspect.Parameter.empty]
        assert len(required) == FUNCTIONS[name].arity


def test_every_function_called_in_c_is_defined() -> None:
    folder = resources.files("loopnest.backends.cpu")
    text = "".join([folder.joinpath(name).read_text("utf-8") for name in HEADERS])
    defined = set(
        re.findall(r"^(?:LN_FN|static inline .*) (?:float|double|int) (ln_\w+)\(", text, re.M)
    )
    for suffix, bits in (("f", 32), ("", 64)):  # of a type T each, written once
        assert f"LN_FLOAT{bits}_FUNCTIONS(LN_NAME_F{bits}, " in text
        defined |= {f"ln_{n}{suffix}" for n in re.findall(r"^LN_FN T N\((\w+)\)", text, re.M)}
    called = {name for pair in C.values() for name in pair}
    assert called <= defined, f"loopnest_math.h does not define {sorted(called - defined)}"


def test_every_helper_called_in_cuda_is_defined() -> None:
    called = {name.partition("<")[0] for name in _functions().values()}
    helpers = {name for name in called if name.startswith("ln_")}
    assert helpers <= set(_HELPERS)
