"""How far a kernel's results may lie from the exact ones: a bound, not a guess.

A value that is reached through k roundings, each of relative size u (half the distance of
neighbouring numbers), is off by at most about k * u times the largest magnitude on its way. So the
roundings along the longest way from the inputs are counted, by type: one for each addition,
multiplication, division or square root; 8 for a function such as exp, whose results are within 4
ulp; n - 1 times those of one step for a reduction of n elements, in whatever order it folds; one
more where a 16-bit tensor is computed or a cast narrows. Copies, selections, maxima and comparisons
are exact. The largest magnitude is taken to be that of the results: the bound holds where the
values on the way are not much larger, which is how arguments for a comparison should be made.

Both sides of a comparison may be off by the bound, hence twice the bound is allowed.

Source: Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, sections 3.1 and 4.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loopnest import dtypes
from loopnest.arguments import size_value
from loopnest.dtypes import DType
from loopnest.expr import Arg, Expr, Op, walk
from loopnest.fusion import Fusion
from loopnest.tensor import TensorView

if TYPE_CHECKING:
    import numpy.typing as npt

_DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
_LEAST = {"float16": -24, "bfloat16": -133, "float32": -149, "float64": -1074}
"""The exponent of the smallest positive number."""

_FUNCTION = 8  # 4 ulp, and an ulp is up to 2 u
_ROUNDINGS = {
    **dict.fromkeys(("add", "sub", "mul", "div", "sqrt", "fma", "reciprocal", "mod"), 1),
    **dict.fromkeys(("floordiv", "rsqrt"), 2),
    **dict.fromkeys(("exp", "exp2", "log", "log2", "log1p", "sin", "cos"), _FUNCTION),
    **dict.fromkeys(("tanh", "sigmoid", "erf", "pow"), _FUNCTION),
}


@dataclass(frozen=True, slots=True)
class Bound:
    """The roundings on the way to a value, by the name of the type that is rounded to.

    >>> str(Bound({"float32": 1030, "float16": 3}))
    '3 * 2^-11 + 1030 * 2^-24'
    >>> str(Bound({}))
    '0'
    """

    roundings: Mapping[str, int]

    @property
    def relative(self) -> float:
        """The bound on the error, in units of the largest magnitude."""
        return sum(count * 2.0 ** -_DIGITS[name] for name, count in self.roundings.items())

    @property
    def count(self) -> int:
        """How many roundings there are; 0: the value is exact."""
        return sum(self.roundings.values())

    def __str__(self) -> str:
        terms = [(_DIGITS[name], count) for name, count in self.roundings.items() if count]
        return " + ".join([f"{count} * 2^-{digits}" for digits, count in sorted(terms)]) or "0"

    def plus(self, dtype: DType, count: int) -> Bound:
        """Return this bound after `count` more roundings to `dtype`."""
        if not count or not dtype.is_float:
            return self
        found = self.roundings.get(dtype.name, 0)
        return Bound({**self.roundings, dtype.name: found + count})

    def after(self, other: Bound, times: int = 1) -> Bound:
        """Return this bound after `times` times the roundings of `other`."""
        result = self
        for name, count in other.roundings.items():
            result = result.plus(dtypes.of(name), count * times)
        return result


EXACT = Bound({})


def bounds(fusion: Fusion, sizes: Mapping[str, int]) -> dict[TensorView, Bound]:
    """Return the bound of every tensor of `fusion` for the given sizes."""
    result: dict[TensorView, Bound] = {}
    for tensor in fusion.topological():
        result[tensor] = _of_tensor(tensor, result, sizes)
    return result


def _of_tensor(
    tensor: TensorView, done: Mapping[TensorView, Bound], sizes: Mapping[str, int]
) -> Bound:
    definition = tensor.definition
    if definition is None:
        return EXACT
    leaves: dict[Expr, Bound] = {
        Arg(number, producer.dtype): done[producer]
        for number, producer in enumerate(definition.producers)
    }
    # A reducer's components depend on each other, so each is as far off as the worst.
    found = _worst([_of_expression(value, leaves) for value in definition.values])
    exact = all(_selects(value, tensor.dtype) for value in definition.values)
    if definition.reducer is not None:
        types = [value.dtype for value in definition.values]
        left = tuple([Arg(n, t) for n, t in enumerate(types)])
        right = tuple([Arg(len(types) + n, t) for n, t in enumerate(types)])
        steps = definition.reducer.combine(left, right)
        step = _worst([_of_expression(value, {}) for value in steps])
        found = found.after(step, max(_length(tensor, sizes) - 1, 0))
        exact = exact and not step.count
    return found.plus(tensor.dtype, 1) if tensor.dtype.is_half and not exact else found


def _selects(value: Expr, dtype: DType) -> bool:
    """Whether `value` is one of its operands of type `dtype`, or the negative of one."""
    for node in walk(value):
        if isinstance(node, Op):
            if node.op != "cast" and _own_roundings(node):
                return False
        elif node.dtype.is_float and not (isinstance(node, Arg) and node.dtype is dtype):
            return False
    return True


def _length(tensor: TensorView, sizes: Mapping[str, int]) -> int:
    """Return how many elements are folded to one."""
    result = 1
    for axis in tensor.root_domain:
        if axis.is_reduction:
            result *= size_value(axis.size, sizes)
    return result


def _of_expression(root: Expr, leaves: Mapping[Expr, Bound]) -> Bound:
    done: dict[Expr, Bound] = {}
    for node in walk(root):
        found = _worst([done[arg] for arg in node.args])
        if isinstance(node, Op):
            done[node] = found.plus(node.dtype, _own_roundings(node))
        else:
            done[node] = leaves.get(node, EXACT)
    return done[root]


def _own_roundings(node: Op) -> int:
    if node.op != "cast":
        return _ROUNDINGS.get(node.op, 0)
    source = node.args[0].dtype
    if source.is_float:
        return 1 if _DIGITS[source.name] > _DIGITS.get(node.dtype.name, 64) else 0
    return 0 if source.is_bool else 1


def _worst(found: Sequence[Bound]) -> Bound:
    return max(found, key=lambda bound: bound.relative, default=EXACT)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one output compares with what was expected.

    Args:
        name: of the output.
        error: the largest absolute difference; inf where just one side is finite.
        allowed: the tolerance, absolute.
        reason: how the tolerance follows, as text.
        place: the index of the largest difference, () where there is no element.
    """

    name: str
    error: float
    allowed: float
    reason: str
    place: tuple[int, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the output is right."""
        return self.error <= self.allowed

    def __str__(self) -> str:
        where = "" if self.ok else f" at {list(self.place)}"
        return (
            f"{self.name}: largest error {self.error:.3g}{where}, "
            f"tolerance {self.allowed:.3g} = {self.reason}"
        )


def compare(
    name: str, actual: npt.NDArray[Any], expected: npt.NDArray[Any], dtype: DType, bound: Bound
) -> Verdict:
    """Return how `actual` compares with `expected`; NaN equals NaN, infinity itself.

    Args:
        name: of the output.
        actual: what the kernel gave.
        expected: what the reference or the oracle gave, of any type.
        dtype: the type of the output.
        bound: of the output, from `bounds`.
    """
    import numpy as np

    if actual.shape != expected.shape:
        reason = f"its shape is {actual.shape}, not {expected.shape}"
        return Verdict(name, float("inf"), 0.0, reason)
    wide = np.float64 if dtype.is_float else np.int64
    got, want = actual.astype(wide), expected.astype(np.float64).astype(wide)
    if not dtype.is_float:
        want = expected.astype(wide) if expected.dtype.kind in "iub" else np.rint(expected)
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.abs(got - want).astype(np.float64)
    if dtype.is_float:
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        difference = np.where(same, 0.0, np.where(np.isfinite(difference), difference, np.inf))
    allowed, reason = _allowed(want, dtype, bound)
    if not difference.size:
        return Verdict(name, 0.0, allowed, reason)
    place = np.unravel_index(int(np.argmax(difference)), difference.shape)
    where = tuple([int(index) for index in place])
    return Verdict(name, float(difference[place]), allowed, reason, where)


def _allowed(want: npt.NDArray[Any], dtype: DType, bound: Bound) -> tuple[float, str]:
    """Return the tolerance and how it follows."""
    import numpy as np

    if not bound.count:
        return 0.0, "0, there is no rounding"
    finite = want[np.isfinite(want)] if dtype.is_float else want
    largest = float(np.abs(finite).max(initial=0))
    if dtype.is_bool:
        return 0.0, "0 for truth values"
    if not dtype.is_float:  # a value near the middle may fall on either side
        return 1 + 2 * bound.relative * largest, f"1 + 2 * ({bound}) * {largest:.3g}"
    least = bound.count * 2.0 ** _LEAST[dtype.name]
    reason = f"2 * ({bound}) * {largest:.3g}, the roundings on the way and the largest value"
    return 2 * bound.relative * largest + least, reason
