"""Calls of a compiled kernel that are like an earlier one: nearly one call of C.

What a call checks of its arguments is of two kinds. Shapes, types, sizes and assumptions are the
same for arrays of the same form, and were checked when that form came first. What may differ from
call to call (which arrays, where they lie, whether they may be written, their elements, scalars) is
looked at again by the call of the target (`PreparedCall`). Where that finds anything that is not as
it takes it, nothing has run, and the call goes the long way, which copies or refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from loopnest.base.errors import LaunchError
from loopnest.launch.outputs import Outputs
from loopnest.launch.target_interface import NO_MEMORY, PreparedCall
from loopnest.scalar.arguments import scalar_value
from loopnest.scalar.expr import ScalarParam


class ReadyCall:
    """A call of a kernel on arrays of one form.

    Args:
        prepared: the launch.
        outputs: of the kernel.
        makers: make the array of each output that is not in place, and of each workspace.
        scalars: the run-time scalars.
        sizes: the sizes that are given by name.
        subject: the call, for errors.
    """

    def __init__(
        self,
        prepared: PreparedCall,
        outputs: Outputs,
        makers: Sequence[Callable[[], Any]],
        scalars: Sequence[ScalarParam],
        sizes: Mapping[str, int],
        subject: str,
    ) -> None:
        self._prepared, self._run = prepared, prepared.run
        self._sources, self._makers = outputs.sources, [*makers]
        self._scalars, self._subject = scalars, subject
        self._names = [*[s.name for s in scalars], *sizes]
        self._sizes = [*sizes.values()]
        self._packed: dict[tuple[type, ...], bool] = {}
        """Whether the launch takes values of these types as they are, a type for each scalar."""
        self._is_one = self._sources == [None]
        self._make = self._makers[0] if self._is_one and len(self._makers) == 1 else None
        """What makes the result, where it is all that a call makes."""
        makes_all = self._sources == [None] * len(self._makers)
        self._given = [np.ndarray] * len(self._sources) if makes_all else None
        """The types of results that a caller gave, where they are all that a call makes."""

    def __call__(
        self, arrays: tuple[Any, ...], out: object, keywords: Mapping[str, Any]
    ) -> Any | None:
        """Run the kernel once; return the results, or None where nothing ran.

        Raises:
            LaunchError: no memory is left.
        """
        values: Sequence[Any] | None = ()
        if keywords or self._names:
            values = self._values(keywords)
        made = self._made(arrays, out)
        if values is None or made is None:
            return None
        status = self._run(arrays, made, out is not None, values)
        if status:
            if status == NO_MEMORY:
                raise no_memory(self._subject)
            return None
        return made[0] if self._is_one else self._results(arrays, made)

    def _made(self, arrays: tuple[Any, ...], out: object) -> tuple[Any, ...] | None:
        """Return new arrays, or those of a caller; None where these are not as many."""
        try:
            if self._make is not None:
                if out is None:
                    return (self._make(),)
                if type(out) is np.ndarray:
                    return (out,)
            if out is None:
                return tuple([make() for make in self._makers])
            given = out if type(out) in (tuple, list) else (out,)
            if [*map(type, given)] == self._given:  # type: ignore[call-overload]
                return (*given,)  # type: ignore[misc]
            if len(given) != len(self._sources):  # type: ignore[arg-type]
                return None
            return self._taken(arrays, given)  # type: ignore[arg-type]
        except (MemoryError, ValueError):
            return None

    def _taken(self, arrays: Sequence[Any], given: Sequence[Any]) -> tuple[Any, ...] | None:
        """Return what a caller gave for results, and new arrays; None where one does not fit."""
        makers = iter(self._makers)
        found = []
        for source, array in zip(self._sources, given, strict=True):
            if source is None:
                make = next(makers)
                found.append(make() if array is None else array)
            elif array is not None and not (source < len(arrays) and array is arrays[source]):
                return None
        return (*found, *[make() for make in makers])

    def _values(self, keywords: Mapping[str, Any]) -> Sequence[Any] | None:
        """Return the values of scalars; None where keywords are others, or one does not fit."""
        try:
            values = [*map(keywords.__getitem__, self._names)]
        except KeyError:
            return None
        if len(keywords) != len(values):
            return None
        if self._sizes:
            sizes = values[len(self._scalars) :]
            if sizes != self._sizes or any(type(size) is not int for size in sizes):
                return None
            del values[len(self._scalars) :]
        types = (*map(type, values),)
        if types not in self._packed:
            self._packed[types] = _are_packed(self._scalars, types)
        if self._packed[types]:
            return values
        try:
            pairs = zip(self._scalars, values, strict=True)
            return [scalar_value(scalar, value, self._subject) for scalar, value in pairs]
        except LaunchError:
            return None  # the long way looks at all arguments in order

    def _results(self, arrays: tuple[Any, ...], made: tuple[Any, ...]) -> Any:
        own = iter(made)
        found = [next(own) if source is None else arrays[source] for source in self._sources]
        return found[0] if len(found) == 1 else tuple(found)

    def learn(self, arrays: Sequence[Any]) -> None:
        """Let arrays like these be taken, whose type is another object that says the same."""
        self._prepared.learn(arrays)


_INTEGERS = {int, *[np.dtype(code).type for code in "bBhHiIlLqQ"]}
_PACKED: Mapping[str, set[type]] = {
    "b": {bool, np.bool_},
    "i": _INTEGERS,
    "f": {float, np.float16, np.float32, np.float64, *_INTEGERS},
}


def _are_packed(scalars: Sequence[ScalarParam], types: Sequence[type]) -> bool:
    """Whether numbers of these types become words just as `scalar_value` rounds them."""
    pairs = zip(scalars, types, strict=True)
    return all(not s.dtype.is_narrow and own in _PACKED[s.dtype.kind] for s, own in pairs)


def no_memory(subject: str, whose: str = "its local buffers") -> LaunchError:
    """Return the error of a launch that found no memory."""
    hint = "pass smaller arrays, or fewer threads"
    return LaunchError(subject, f"no memory is left for {whose}", hint)
