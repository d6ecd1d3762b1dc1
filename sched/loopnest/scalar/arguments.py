"""The arguments of a launch: checks, the sizes that their shapes give, the values of scalars.

Works on plain specifications, so that the oracle and every target share it. All errors are
`LaunchError`, raised before anything runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import c_float
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from loopnest.base.errors import LaunchError
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import Const, Expr, Op, ScalarParam, Symbol, walk, whole

ScalarValue: TypeAlias = "bool | int | float"


@runtime_checkable
class Array(Protocol):
    """What an array must tell of itself (NumPy's do; wrap what tells it otherwise)."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> Any: ...  # a NumPy dtype


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """An array that a kernel takes: its name, element type, extents, and strides if declared."""

    name: str
    dtype: DType
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...] | None = None

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join([str(size) for size in self.shape])}]"


@dataclass(frozen=True, slots=True)
class Bound:
    """What the arguments of one launch stand for."""

    sizes: dict[str, int]
    scalars: dict[str, ScalarValue]


def bind(
    inputs: Sequence[ArraySpec],
    scalars: Sequence[ScalarParam],
    symbols: Sequence[Symbol],
    conditions: Iterable[tuple[str, Expr]],
    arrays: Sequence[object],
    keywords: Mapping[str, object],
    subject: str,
    strides_of: Callable[[object], tuple[int, ...]] | None = None,
) -> Bound:
    """Return the sizes and scalars that `arrays` and `keywords` give, all checked.

    Args:
        inputs: the arrays that are expected, in order.
        scalars: the run-time scalars, each of which `keywords` must name.
        symbols: every size symbol; one that is the extent of no input is taken from `keywords`
            (of the others a keyword must agree with the shapes).
        conditions: what must hold of the sizes: a text and a predicate each.
        arrays: the arrays given.
        keywords: the keyword arguments given.
        subject: the call, for errors: ``softmax(...)``.
        strides_of: tells the strides of an array in elements; None where they do not matter, and
            each array is taken for C-contiguous.

    Returns:
        Every symbol's size, and every scalar rounded to its type.

    Raises:
        LaunchError: wrong count, rank, type, extents, scalars or sizes; a broken condition.
    """
    if len(arrays) != len(inputs):
        raise LaunchError(subject, _count_text(len(arrays)), _expected(inputs))
    found = _Binding(subject, keywords, strides_of)
    given = list(zip(inputs, arrays, strict=True))
    for spec, array in given:
        found.take_shape(spec, _checked_shape(spec, array, subject))
    strided = [(spec, array) for spec, array in given if spec.strides is not None]
    for spec, array in strided:
        found.take_strides(spec, array)
    for name, value in found.plain.items():
        if name not in keywords:
            found.sizes.setdefault(name, value)
    found.take_keywords(symbols)
    for spec, array in given:
        found.check_extents(spec, array)
    if strides_of is not None:
        for spec, array in strided:
            found.check_strides(spec, array, strides_of(array))
    values = _bind_scalars(scalars, symbols, keywords, subject)
    check_conditions(conditions, found.sizes, subject)
    return Bound(found.sizes, values)


def check_conditions(
    conditions: Iterable[tuple[str, Expr]], sizes: Mapping[str, int], subject: str
) -> None:
    """Check assumptions on sizes.

    Raises:
        LaunchError: one does not hold.
    """
    broken = broken_condition(conditions, sizes)
    if broken is not None:
        raise LaunchError(
            subject,
            f"the assumption {broken}",
            "pass sizes for which it does, or define the kernel without it",
        )


def broken_condition(
    conditions: Iterable[tuple[str, Expr]], sizes: Mapping[str, int]
) -> str | None:
    """Return the first condition that does not hold: ``'N % 4 == 0' does not hold for N = 5``."""
    for text, condition in conditions:
        if not _holds(condition, sizes):
            named = [node.name for node in walk(condition) if isinstance(node, Symbol)]
            found = ", ".join([f"{name} = {sizes[name]}" for name in named])
            return f"'{text}' does not hold" + (f" for {found}" if found else "")
    return None


def check_factors(factors: Iterable[Expr], sizes: Mapping[str, int], subject: str) -> None:
    """Check that axes are split by 1 or more.

    Raises:
        LaunchError: one is split by a size that is 0, or less.
    """
    found = {factor: size_value(factor, sizes) for factor in factors}
    bad = {factor: value for factor, value in found.items() if value < 1}
    if not bad:
        return
    if all(isinstance(factor, Symbol) for factor in bad):
        reason = f"an axis is split by {' or '.join(map(str, bad))}, which is 0"
        raise LaunchError(subject, reason, "pass a size >= 1")
    factor, value = next((f, v) for f, v in bad.items() if not isinstance(f, Symbol))
    names = {node.name for node in walk(factor) if isinstance(node, Symbol)}
    given = ", ".join([f"{name} = {size}" for name, size in sizes.items() if name in names])
    reason = f"an axis is split by '{factor}', which is {value} for {given}"
    raise LaunchError(subject, reason, "pass sizes for which it is 1 or more")


def _holds(condition: Expr, sizes: Mapping[str, int]) -> bool:
    try:
        return bool(size_value(condition, sizes))
    except ZeroDivisionError:  # N % M == 0 where M is 0
        return False


def size_value(node: Expr, sizes: Mapping[str, int]) -> int:
    """Return an expression over size symbols (or a comparison of such) as a Python int."""
    if isinstance(node, Const):
        return int(node.value)
    if isinstance(node, Symbol):
        return sizes[node.name]
    assert isinstance(node, Op), f"{node!r} is no size"
    return int(_INTEGER[node.op](*[size_value(arg, sizes) for arg in node.args]))


_INTEGER: Mapping[str, Callable[..., int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b if b else 0,  # by zero as in kernels
    "mod": lambda a, b: a % b,  # raises: no size is known to be a multiple of 0
    "ceildiv": lambda a, b: -(-a // b) if b else 0,
    "min": min,
    "max": max,
    "neg": lambda a: -a,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "not": lambda a: not a,
}


# Arrays


def _count_text(count: int) -> str:
    return "1 array was given" if count == 1 else f"{count} arrays were given"


def _expected(inputs: Sequence[ArraySpec]) -> str:
    if not inputs:
        return "pass none"
    return f"pass {len(inputs)}: " + ", ".join([f"{spec.name}: {spec}" for spec in inputs])


def _checked_shape(spec: ArraySpec, array: object, subject: str) -> tuple[int, ...]:
    """Return the shape of `array` after a check of its kind, type and rank."""
    if not isinstance(array, Array):
        found = f"{spec.name} is of type {type(array).__name__}"
        raise LaunchError(subject, found, f"pass an array, {spec}")
    dtype = array.dtype
    if spec.dtype.numpy != dtype:
        if isinstance(dtype, DType):  # a tensor of a fusion, or a node of a graph
            found = f"{spec.name} is of type {type(array).__name__}, which has no elements"
            raise LaunchError(subject, found, f"pass an array, {spec}")
        order = "" if getattr(dtype, "isnative", True) else " in foreign byte order"
        found = f"{spec.name} has dtype {getattr(dtype, 'name', dtype)}{order}"
        raise LaunchError(subject, found, f"pass {spec}")
    shape = array.shape
    if len(shape) != len(spec.shape):
        raise LaunchError(subject, f"{spec.name} has shape {shape}", f"pass {spec}")
    return shape


class _Binding:
    """The sizes that the arguments of one launch give.

    Attributes:
        sizes: by name.
        source: where each was found first.
        plain: strides of C order, for axes that do not tell theirs.
    """

    def __init__(
        self,
        subject: str,
        keywords: Mapping[str, object],
        strides_of: Callable[[object], tuple[int, ...]] | None,
    ) -> None:
        self.subject, self.keywords, self.strides_of = subject, keywords, strides_of
        self.sizes: dict[str, int] = {}
        self.source: dict[str, str] = {}
        self.plain: dict[str, int] = {}

    def _take(self, name: str, value: int, place: str) -> None:
        """Take a size found at a place, which must be as large as at all others."""
        known = self.sizes.setdefault(name, value)
        if known != value:
            raise LaunchError(
                self.subject,
                f"{name} is {known} by {self.source[name]} but {value} by {place}",
                "a size symbol has one value in a launch",
            )
        self.source.setdefault(name, place)

    def take_shape(self, spec: ArraySpec, shape: tuple[int, ...]) -> None:
        """Take the size symbols that are extents."""
        for axis, (size, found) in enumerate(zip(spec.shape, shape, strict=True)):
            if isinstance(size, Symbol):
                self._take(size.name, int(found), f"axis {axis} of {spec.name}")

    def take_strides(self, spec: ArraySpec, array: object) -> None:
        """Take the size symbols that are strides.

        Where an axis does not tell its stride, that of C order is noted in `plain`.
        """
        assert isinstance(array, Array)
        assert spec.strides is not None
        shape = tuple(array.shape)
        found = shape if self.strides_of is None else self.strides_of(array)
        empty = 0 in shape
        for axis, (stride, extent) in enumerate(zip(spec.strides, shape, strict=True)):
            if not isinstance(stride, Symbol):
                continue
            if empty or extent == 1 or self.strides_of is None:
                self.plain.setdefault(stride.name, math.prod(shape[axis + 1 :]))
                continue
            self._take(stride.name, found[axis], f"stride {axis} of {spec.name}")

    def take_keywords(self, symbols: Sequence[Symbol]) -> None:
        """Take the sizes that are given by name."""
        for symbol in symbols:
            name = symbol.name
            if name in self.keywords:
                value = keyword_size(name, self.keywords[name], self.subject)
                self._take(name, value, "keyword")
            elif name not in self.sizes:
                raise LaunchError(
                    self.subject, f"the size {name} is the extent of no input", f"pass {name}=..."
                )

    def check_extents(self, spec: ArraySpec, array: object) -> None:
        """Check the extents that are no symbols."""
        assert isinstance(array, Array)
        for axis, (size, found) in enumerate(zip(spec.shape, array.shape, strict=True)):
            if isinstance(size, Symbol):
                continue
            wanted = size_value(size, self.sizes)
            if wanted != found:
                raise LaunchError(
                    self.subject,
                    f"axis {axis} of {spec.name} has extent {found}, not {wanted}",
                    f"pass {spec}",
                )

    def check_strides(self, spec: ArraySpec, array: object, strides: tuple[int, ...]) -> None:
        """Check the strides of an array with elements."""
        assert isinstance(array, Array)
        assert spec.strides is not None
        wanted = tuple([size_value(stride, self.sizes) for stride in spec.strides])
        if 0 in array.shape:
            return
        for extent, stride, expected in zip(array.shape, strides, wanted, strict=True):
            if extent > 1 and (stride != expected or stride < 0):
                shown = ", ".join([str(step) for step in spec.strides])
                raise LaunchError(
                    self.subject,
                    f"{spec.name} has the strides {strides} in elements",
                    f"its strides are declared as ({shown}), none of them negative; copy it, or "
                    "declare others",
                )


# Keywords


def keyword_size(name: str, value: object, subject: str) -> int:
    """Return the size `value` that was given for `name`.

    Raises:
        LaunchError: it is no int >= 0.
    """
    number = whole(value)
    if number is None or number < 0:
        raise LaunchError(subject, f"{name} = {value!r} is no size", "sizes are ints >= 0")
    return number


def _bind_scalars(
    scalars: Sequence[ScalarParam],
    symbols: Sequence[Symbol],
    keywords: Mapping[str, object],
    subject: str,
) -> dict[str, ScalarValue]:
    names = [scalar.name for scalar in scalars]
    allowed = {*names, *[symbol.name for symbol in symbols]}
    for name in keywords:
        if name not in allowed:
            wanted = f"the scalars are {', '.join(names)}" if names else "it takes no scalar"
            raise LaunchError(subject, f"it has no scalar '{name}'", wanted)
    values: dict[str, ScalarValue] = {}
    for scalar in scalars:
        if scalar.name not in keywords:
            raise LaunchError(
                subject,
                f"the scalar {scalar.name} is missing",
                f"pass {scalar.name}=..., a number of type {scalar.dtype}",
            )
        values[scalar.name] = scalar_value(scalar, keywords[scalar.name], subject)
    return values


def scalar_value(scalar: ScalarParam, value: object, subject: str) -> ScalarValue:
    """Return the number `value` as `scalar` holds it: a float rounded to its type.

    Raises:
        LaunchError: no number of its kind (an int is a float too, a bool is only a bool), or an
            int out of range.
    """
    dtype = scalar.dtype
    if type(value) is float and dtype.is_float:  # the most frequent case
        return _rounded(value, dtype)
    kind = _number_kind(value)
    if kind not in {"b": "b", "i": "i", "f": "if"}[dtype.kind]:
        raise LaunchError(
            subject,
            f"{scalar.name} = {_short(value)} is no {dtype}",
            f"pass a Python or NumPy {_KINDS[dtype.kind]}",
        )
    number: ScalarValue = value.item() if hasattr(value, "item") else value  # type: ignore[assignment]
    if dtype.is_bool:
        return bool(number)
    if dtype.is_float:
        return _rounded(number, dtype)
    if not dtype.least <= number <= dtype.greatest:
        raise LaunchError(subject, f"{scalar.name} = {number} does not fit {dtype}")
    return int(number)


_KINDS = {"b": "bool", "i": "int", "f": "number"}


def _number_kind(value: object) -> str:
    """Return "b", "i" or "f" for a number or an array of no axes, else "?"."""
    if isinstance(value, bool):
        return "b"
    if isinstance(value, int):
        return "i"
    if isinstance(value, float):
        return "f"
    if isinstance(value, Array) and value.shape == () and hasattr(value, "item"):
        found = dtypes.from_numpy(value.dtype)
        return found.kind if found is not None else value.dtype.kind.replace("u", "i")
    return "?"


def _rounded(value: ScalarValue, dtype: DType) -> float:
    try:
        number = float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    if dtype is dtypes.float64 or not math.isfinite(number):
        return number
    if dtype is dtypes.float32:  # a cast of C; NumPy's, with its warnings, takes ten times as long
        return c_float(number).value
    import numpy as np

    with np.errstate(over="ignore"):
        return float(np.float64(number).astype(dtype.numpy))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 and "\n" not in text else f"<{type(value).__name__}>"
