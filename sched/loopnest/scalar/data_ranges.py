"""Ranges that are declared of the elements of an input: stated once, checked at each launch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loopnest.base.errors import LaunchError
from loopnest.scalar.arguments import size_value
from loopnest.scalar.expr import Expr

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class DataRange:
    """What is declared of every element of an input: ``low <= element < high``.

    Args:
        name: of the input.
        low: an expression over sizes.
        high: likewise.
        ascending: whether no element is below the one before it; the input has one axis then.
    """

    name: str
    low: Expr
    high: Expr
    ascending: bool = False

    def __str__(self) -> str:
        return f"{self.low} <= {self.name} < {self.high}{', ascending' * self.ascending}"


def check_data(
    ranges: Iterable[DataRange],
    arrays: Mapping[str, npt.NDArray[Any]],
    sizes: Mapping[str, int],
    subject: str,
) -> None:
    """Check what is declared of inputs on their elements.

    Args:
        ranges: what is declared.
        arrays: the inputs by name, in the memory of the host.
        sizes: the value of every size symbol.
        subject: the call, for errors.

    Raises:
        LaunchError: an element lies outside, or below the one before it; the first one is named.
    """
    for declared in ranges:
        low, high = size_value(declared.low, sizes), size_value(declared.high, sizes)
        found = first_outside(arrays[declared.name], low, high)
        if found is not None:
            raise LaunchError(
                subject,
                f"{declared.name}{found[0]} is {found[1]}, "
                f"but it was declared that {declared}" + _numbers(declared, low, high),
                allowed_elements(low, high),
            )
        descent = _first_descent(arrays[declared.name]) if declared.ascending else None
        if descent is not None:
            raise LaunchError(
                subject,
                f"{declared.name}{descent[0]} is {descent[1]} behind {descent[2]}, "
                f"but it was declared that {declared}",
                "pass elements that ascend",
            )


def _first_descent(array: npt.NDArray[Any]) -> tuple[str, int, int] | None:
    """Return the place and value of the first element below the one before it, and that one."""
    import numpy as np

    below = np.flatnonzero(array[1:] < array[:-1])
    if not below.size:
        return None
    behind = int(below[0]) + 1
    return f"[{behind}]", int(array[behind]), int(array[behind - 1])


def first_outside(array: npt.NDArray[Any], low: int, high: int) -> tuple[str, int] | None:
    """Return the place and the value of the first element outside of low..high - 1; else None."""
    if not array.size or (int(array.min()) >= low and int(array.max()) < high):
        return None
    import numpy as np

    place = tuple([int(n) for n in np.argwhere((array < low) | (array >= high))[0]])
    return (str(list(place)) if place else ""), int(array[place])


def first_repeated(
    array: npt.NDArray[Any], axis: int, extent: int
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return two places along `axis` that have the same of 0..extent - 1, the first two; or None.

    They differ in nothing but their place along the axis.
    """
    import numpy as np

    rows = np.moveaxis(array, axis, -1)
    order = np.argsort(rows, axis=-1, kind="stable")
    found = np.take_along_axis(rows, order, -1)
    same = (found[..., 1:] == found[..., :-1]) & (found[..., 1:] >= 0) & (found[..., 1:] < extent)
    places = np.argwhere(same)
    if not places.size:
        return None
    *row, where = [int(n) for n in places[0]]
    pair = [(*row[:axis], int(order[(*row, n)]), *row[axis:]) for n in (where, where + 1)]
    return pair[0], pair[1]


def allowed_elements(low: int, high: int) -> str:
    """Return what elements a caller may pass."""
    return f"pass elements in {low}..{high - 1}" if low < high else "no element is allowed"


def _numbers(declared: DataRange, low: int, high: int) -> str:
    """Return the bounds as numbers, where they are none as declared."""
    plain = (str(declared.low), str(declared.high)) == (str(low), str(high))
    return "" if plain else f", here {low} <= {declared.name} < {high}"
