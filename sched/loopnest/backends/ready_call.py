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

from loopnest.errors import LaunchError
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
        self._scalars, self._sizes, self._subject = scalars, sizes, subject
        self._names = {*sizes, *[s.name for s in scalars]}
        self._is_one = self._sources == [None]

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
            if out is None:
                return tuple([make() for make in self._makers])
            given = out if type(out) in (tuple, list) else (out,)
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
        if keywords.keys() != self._names:
            return None
        for name, size in self._sizes.items():
            if type(keywords[name]) is not int or keywords[name] != size:
                return None
        try:
            return [scalar_value(s, keywords[s.name], self._subject) for s in self._scalars]
        except LaunchError:
            return None  # the long way looks at all arguments in order

    def _results(self, arrays: tuple[Any, ...], made: tuple[Any, ...]) -> Any:
        own = iter(made)
        found = [next(own) if source is None else arrays[source] for source in self._sources]
        return found[0] if len(found) == 1 else tuple(found)

    def learn(self, arrays: Sequence[Any]) -> None:
        """Let arrays like these be taken, whose type is another object that says the same."""
        self._prepared.learn(arrays)


def no_memory(subject: str, whose: str = "its local buffers") -> LaunchError:
    """Return the error of a launch that found no memory."""
    hint = "pass smaller arrays, or fewer threads"
    return LaunchError(subject, f"no memory is left for {whose}", hint)
