"""Names of axes: where they come from, and which may be given.

An axis has its names from the start. A user gives them (``names=`` of an input or a split), or they
are implied: those of an input are its sizes, those of a matrix product m, n and k. A definition
hands them on to each axis of its result that is one of what it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias, TypeVar

from loopnest.base.errors import ScheduleError
from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import Symbol
from loopnest.tensor.domain import IterDomain

Axis: TypeAlias = "int | str"
"""Which axis a call means: a position, negative from the end, or a name."""
AxisKey = TypeVar("AxisKey", bound="int | str")
"""An `Axis` as the key of a mapping."""

RESERVED = frozenset({"types", *(parallel.value for parallel in ParallelType)})
"""No names of axes: a keyword of `TensorView.parallelize`, and what stands beside a name."""


def name_by_sizes(axes: Sequence[IterDomain]) -> None:
    """Name the axes without a name by their sizes, where these are symbols that stand once."""
    for axis in axes:
        size = axis.size
        if axis.names or size.__class__ is not Symbol:
            continue
        others = [other for other in axes if other is not axis]
        if not any(other.size is size or size.name in other.names for other in others):
            axis.names = (size.name,)


def named_axes(
    call: str, axes: Sequence[IterDomain], names: Sequence[str | None] | None
) -> Sequence[IterDomain]:
    """Let the axes of an input have names, those of `names` in front.

    Raises:
        ScheduleError: these are no names of the axes, or two axes would have one name.
    """
    name_by_sizes(axes)
    if names is None:
        return axes
    why = refused(names, len(axes))
    if why is None:  # an axis that is given no name keeps that of its size
        rest = [axis for axis, name in zip(axes, names, strict=True) if name is None]
        why = refused([name for name in names if name], len(axes) - len(rest), rest)
    if why is not None:
        raise ScheduleError(call, *why)
    for axis, name in zip(axes, names, strict=True):
        axis.take_name(name)
    return axes


def refused(names: object, count: int, beside: Iterable[IterDomain] = ()) -> tuple[str, str] | None:
    """Return why these are no names for `count` axes beside others, and what is allowed; or None.

    A name that is None leaves its axis without.
    """
    axes = "1 axis" if count == 1 else f"{count} axes"
    if isinstance(names, str) or not isinstance(names, Sequence) or len(names) != count:
        return f"names={names!r} are no names of {axes}", "give one for each, or None"
    taken = {axis.names[0] for axis in beside if axis.names}
    for name in names:
        if name is None:
            continue
        if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
            return f"the name {name!r} is not an identifier", "give a name of letters and digits"
        if name in RESERVED:
            what = "a keyword of parallelize" if name == "types" else "a parallel type"
            return f"the name {name!r} is {what}", "choose another name"
        if name in taken:
            return f"two axes would be named {name!r}", "the names of a tensor's axes differ"
        taken.add(name)
    return None
