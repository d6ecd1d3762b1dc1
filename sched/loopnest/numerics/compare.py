"""Compare results with the interval that contains every correct result at each element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt

    from loopnest.numerics.intervals import Interval


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one output compares with the math.

    Args:
        name: of the output.
        error: the difference to the oracle at `place`; inf where just one of them is finite.
        allowed: the bound on it there; see `loopnest.error_bound`.
        place: the index of the worst element, () where there is none: one that is wrong, else the
            one with the largest difference of those that are bounded.
        wrong: how many elements differ by more than is allowed.
        size: how many were compared.
        whole: how many it has, where only a part was compared; else 0.
        problem: why there is nothing to compare.
    """

    name: str
    error: float = 0.0
    allowed: float = 0.0
    place: tuple[int, ...] = ()
    wrong: int = 0
    size: int = 0
    whole: int = 0
    problem: str = ""

    @property
    def ok(self) -> bool:
        """Whether the output is right."""
        return not self.wrong and not self.problem

    def __str__(self) -> str:
        if self.problem:
            return f"{self.name}: {self.problem}"
        largest = f"largest error {self.error:.3g}"
        where = f" at {list(self.place)}" if self.place and (self.wrong or self.error) else ""
        count = f"; {self.wrong} of {self.size} elements differ" if self.wrong else ""
        part = f"; compared {self.size} of {self.whole} elements" if self.whole else ""
        rest = f"{count}{part}"
        return f"{self.name}: {largest}{where}, where rounding allows {self.allowed:.3g}{rest}"


@dataclass(frozen=True, slots=True)
class Reference:
    """What a reference gave for an output, and where that has to lie."""

    values: npt.NDArray[Any]
    enclosure: Interval


def compare(
    name: str, actual: npt.NDArray[Any], enclosure: Interval, reference: Reference | None = None
) -> Verdict:
    """Return how `actual` compares with what correct results may be; see `Interval`.

    Args:
        name: of the output.
        actual: what the kernel gave.
        enclosure: of the output.
        reference: with it, differences are those to it; where it is itself none of the results
            that a computation of the math may give, `actual` counts as wrong.
    """
    import numpy as np

    if actual.shape != enclosure.value.shape:
        return Verdict(name, problem=f"its shape is {actual.shape}, not {enclosure.value.shape}")
    if not actual.size:
        return Verdict(name)
    found, value, bounds = _alike(actual, enclosure), enclosure.value, enclosure.bound
    wrong = ~enclosure.contains(found)
    if reference is not None:
        value, bounds = _alike(reference.values, enclosure), reference.enclosure.bound
        wrong |= ~reference.enclosure.contains(value)
    errors = difference(found, value)
    # Those that are wrong come first; of the right ones those that may be anything last.
    first = wrong if wrong.any() else ~np.isinf(bounds)
    rank = np.where(first, errors, -1.0)
    place = np.unravel_index(int(np.argmax(rank)), rank.shape)
    return Verdict(
        name,
        float(errors[place]),
        float(bounds[place]),
        tuple([int(index) for index in place]),
        int(np.count_nonzero(wrong)),
        actual.size,
    )


def _alike(values: npt.NDArray[Any], enclosure: Interval) -> npt.NDArray[Any]:
    """Return `values` in the type that the oracle holds them in; floats round to an integer."""
    import numpy as np

    kind = enclosure.value.dtype
    floats = values.dtype.kind in "fV" and kind.kind in "iu"
    with np.errstate(invalid="ignore"):
        return np.asarray(np.rint(values) if floats else values).astype(kind)


def difference(actual: npt.NDArray[Any], value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the absolute differences: NaN equals NaN, infinity itself, else they are far off."""
    import numpy as np

    with np.errstate(invalid="ignore", over="ignore"):
        a, b = np.asarray(actual, np.float64), np.asarray(value, np.float64)
        apart = np.abs(a - b)
    same = (actual == value) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, np.where(np.isfinite(apart), apart, np.inf))
