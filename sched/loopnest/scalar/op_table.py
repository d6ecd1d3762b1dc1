"""The keys of all operations: scalar operations, the functions made of them, and their columns.

A key stands here once, with its signature. What else a reader knows of an operation (its value in
NumPy, its spelling in C, its rounding, its gradient…) is a cell of that reader's own `Column`,
which lies in the reader's module: nothing is imported here. `tests/scalar/test_op_table.py` demands
a cell for each key that a column needs, and names the file where one is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from loopnest.scalar.dtypes import (
    ARITHMETIC,
    BITWISE,
    COMPARISON,
    FLOAT,
    INTEGRAL,
    KEEPING,
    LOGICAL,
    Rule,
)

Cell = TypeVar("Cell", covariant=True)


@dataclass(frozen=True, slots=True)
class OpInfo:
    """The signature of a scalar operation.

    `kinds` are those of the types that its operands may have, as in `DType.kind`. `result` is
    "same" (the operands' common type), "bool", "float" (the operands' type, which is a float),
    "uint32", "int64" or "cast". `infix` and `precedence` are those of the nest text (Python's).
    """

    name: str
    arity: int
    kinds: str
    result: str = "same"
    infix: str = ""
    precedence: int = 12


def _infos() -> Iterator[OpInfo]:
    yield from (
        OpInfo("or", 2, "b", "bool", "or", 1),
        OpInfo("and", 2, "b", "bool", "and", 2),
        OpInfo("not", 1, "b", "bool", "not ", 3),
    )
    for name, sign in (
        ("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="),
    ):  # fmt: skip
        yield OpInfo(name, 2, "bifx", "bool", sign, 4)
    for name, kinds, sign, level in (
        ("bitor", "ix", "|", 5), ("bitxor", "ix", "^", 6), ("bitand", "ix", "&", 7),
        ("shl", "i", "<<", 8), ("shr", "i", ">>", 8),
        ("add", "ifx", "+", 9), ("sub", "ifx", "-", 9), ("mul", "ifx", "*", 10),
        ("div", "f", "/", 10), ("floordiv", "ifx", "//", 10), ("mod", "ifx", "%", 10),
    ):  # fmt: skip
        yield OpInfo(name, 2, kinds, "same", sign, level)
    yield OpInfo("neg", 1, "ifx", "same", "-", 11)
    yield OpInfo("bitnot", 1, "ix", "same", "~", 11)
    yield OpInfo("min", 2, "bifx")
    yield OpInfo("max", 2, "bifx")
    yield OpInfo("pow", 2, "if")
    yield OpInfo("ceildiv", 2, "ix")
    yield OpInfo("abs", 1, "ifx")
    for name in ("floor", "ceil", "round", "trunc"):
        yield OpInfo(name, 1, "if")
    for name in (
        "exp", "exp2", "log", "log2", "log1p", "sqrt", "rsqrt", "reciprocal", "sin", "cos",
        "tan", "tanh", "sigmoid", "erf",
    ):  # fmt: skip
        yield OpInfo(name, 1, "f", "float")
    yield OpInfo("isnan", 1, "f", "bool")
    yield OpInfo("ordinal32", 1, "f", "int64")  # of a float32 among all, NaN the last
    yield OpInfo("ordinal64", 1, "f", "int64")
    yield OpInfo("fma", 3, "if")
    yield OpInfo("philox", 4, "i", "uint32")
    yield OpInfo("where", 3, "bifx")
    yield OpInfo("cast", 1, "bifx", "cast")


OPS: Mapping[str, OpInfo] = {info.name: info for info in _infos()}
"""Every operation of the scalar language."""


@dataclass(frozen=True, slots=True)
class FunctionInfo:
    """The signature of a pointwise function, which users call on tensors and on nodes of a graph.

    `rule` says which types it takes, computes in and gives.
    """

    name: str
    arity: int
    rule: Rule


def _functions() -> Iterator[FunctionInfo]:
    for name in ("add", "sub", "mul", "mod", "pow"):
        yield FunctionInfo(name, 2, ARITHMETIC)
    yield FunctionInfo("div", 2, FLOAT)
    for name in ("floordiv", "lshift", "rshift"):
        yield FunctionInfo(name, 2, INTEGRAL)
    yield FunctionInfo("neg", 1, ARITHMETIC)
    yield FunctionInfo("fma", 3, ARITHMETIC)
    for name in ("abs", "floor", "ceil", "round", "trunc", "relu"):
        yield FunctionInfo(name, 1, KEEPING)
    yield FunctionInfo("maximum", 2, KEEPING)
    yield FunctionInfo("minimum", 2, KEEPING)
    yield FunctionInfo("clamp", 3, KEEPING)
    for info in OPS.values():
        if info.result == "float":
            yield FunctionInfo(info.name, info.arity, FLOAT)
    yield FunctionInfo("silu", 1, FLOAT)
    yield FunctionInfo("gelu", 1, FLOAT)
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        yield FunctionInfo(name, 2, COMPARISON)
    yield FunctionInfo("bitand", 2, BITWISE)
    yield FunctionInfo("bitor", 2, BITWISE)
    yield FunctionInfo("bitxor", 2, BITWISE)
    yield FunctionInfo("invert", 1, BITWISE)
    yield FunctionInfo("logical_and", 2, LOGICAL)
    yield FunctionInfo("logical_or", 2, LOGICAL)
    yield FunctionInfo("logical_not", 1, LOGICAL)
    yield FunctionInfo("isnan", 1, COMPARISON)


FUNCTIONS: Mapping[str, FunctionInfo] = {info.name: info for info in _functions()}
"""Every pointwise function that the core and the graph layer have alike, but where and cast.

Each operation whose result is "float" is one.
"""


class Column(Mapping[str, Cell], Generic[Cell]):
    """What one reader knows of each operation: a cell a key. It is read like any mapping.

    Args:
        name: of a cell, as errors say it: "NumPy function".
        module: ``__name__`` of the module that holds it.
        cells: by key.
        keys: the table that the keys are of: `OPS` or `FUNCTIONS`.
        needs: which keys must have a cell; all where it is left out.
    """

    def __init__(
        self,
        name: str,
        module: str,
        cells: Mapping[str, Cell],
        *,
        keys: Mapping[str, object] = OPS,
        needs: frozenset[str] | None = None,
    ) -> None:
        self.name, self.module = name, module
        self.keys_of = keys
        self.needs = frozenset(keys) if needs is None else needs
        self._cells = dict(cells)
        _COLUMNS.append(self)

    def __getitem__(self, op: str) -> Cell:
        return self._cells[op]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    @property
    def missing(self) -> tuple[str, ...]:
        """The keys that need a cell and have none."""
        return tuple([op for op in self.keys_of if op in self.needs and op not in self._cells])

    @property
    def unknown(self) -> tuple[str, ...]:
        """The cells of keys that do not exist."""
        return tuple([op for op in self._cells if op not in self.keys_of])


_COLUMNS: list[Column[object]] = []


def columns() -> tuple[Column[object], ...]:
    """Return the columns of all modules that were imported."""
    return tuple(_COLUMNS)


def ops(condition: Callable[[OpInfo], bool], *, but: tuple[str, ...] = ()) -> frozenset[str]:
    """Return the keys of the operations that satisfy `condition`, `but` some."""
    return frozenset(n for n, info in OPS.items() if condition(info) and n not in but)
