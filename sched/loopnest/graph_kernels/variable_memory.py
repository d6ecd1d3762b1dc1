"""The variables of compiled graphs: memory that calls overwrite, and copies for the callers.

A step of training assigns each weight once. Its value stays where the next step reads it, and no
copy is made for the caller: an output that is a group of updates is a `StepUpdates`, which copies a
value when it is asked for. A later step overwrites the values, so that the group of an earlier one
refuses to be read, rather than to give values of another step.

Source: donated buffers of JAX (``jax.jit``, ``donate_argnums``), which raise where they are read
after a call has taken them; updates of Theano's functions, which are no outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from threading import Lock
from typing import Any, SupportsIndex, overload

from loopnest.base.errors import LaunchError
from loopnest.graph.node import Node
from loopnest.graph_kernels.plan_records import UpdatedVariable, rounded
from loopnest.graph_kernels.step_arrays import Array, StepArrays


class VariableMemory:
    """The variables of a compiled graph, or of several that share them.

    Args:
        arrays: of which kind.
        variables: the nodes of the variables, one a name.
    """

    def __init__(self, arrays: StepArrays, variables: Mapping[str, Node]) -> None:
        self.arrays, self.nodes = arrays, dict(variables)
        self.lock = Lock()
        """Held by a call: graphs that share variables take turns."""
        self.version = 0
        """The number of calls that assigned variables."""
        sizes = {name: rounded(x.value.nbytes) for name, x in variables.items()}
        self.room = arrays.room(sum(sizes.values()))
        """All variables in one piece, so that one look tells an alias of any."""
        begin = arrays.address(self.room)
        self.host_range = (begin, begin + sum(sizes.values())) if arrays.is_host else (0, 0)
        """From where to where they lie in the memory of the host."""
        self.states: dict[str, Array] = {}
        """The value of each variable, flat."""
        used = 0
        for name, node in variables.items():
            dtype = node.dtype
            self.states[name] = arrays.piece(self.room, used, node.value.nbytes, dtype)
            arrays.overwrite(self.states[name], arrays.constant(node.value))
            used += sizes[name]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each variable."""
        return {name: node.static_shape for name, node in self.nodes.items()}


class StepUpdates(tuple[Any, ...]):
    """The items of a group in the results of a call: new values of variables, and other values.

    A tuple, whose values of variables are copied when they are asked for, each time. Until then
    they are memory of the compiled graph, and after a later call that assigns variables they cannot
    be read any more.
    """

    _memory: VariableMemory
    _subject: str
    _version: int

    @staticmethod
    def of(items: tuple[Any, ...], memory: VariableMemory, subject: str) -> StepUpdates:
        """Return the items of a group.

        Args:
            items: of a variable what it is, of another output its value.
            memory: of the variables.
            subject: the call, for errors.
        """
        made = StepUpdates(items)
        made._memory, made._subject, made._version = memory, subject, memory.version
        return made

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the variables, in order."""
        return tuple([x.name for x in super().__iter__() if isinstance(x, UpdatedVariable)])

    def __iter__(self) -> Iterator[Any]:
        return map(self._value, super().__iter__())

    @overload
    def __getitem__(self, index: SupportsIndex) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Any, ...]: ...

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        found = super().__getitem__(index)
        return tuple(map(self._value, found)) if isinstance(index, slice) else self._value(found)

    def __add__(self, other: Any) -> tuple[Any, ...]:
        return (*self, *other)

    def __radd__(self, other: Any) -> tuple[Any, ...]:
        # tuple's own would put the items of this one, as they are held, behind those of `other`
        return (*other, *self)

    def __mul__(self, times: SupportsIndex) -> tuple[Any, ...]:
        return (*self,) * times

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, ([*self],)

    def __repr__(self) -> str:
        return f"<updates of {', '.join(self.names) or 'no variable'}>"

    def _value(self, item: Any) -> Any:
        if not isinstance(item, UpdatedVariable):
            return item
        memory = self._memory
        with memory.lock:  # no call is under way
            if memory.version == self._version:
                return memory.arrays.kept(memory.states[item.name]).reshape(item.shape)
        reason = f"the new value of {item.name} is read after a later call has overwritten it"
        hint = "read it before the next call, or read the variable as it is now: fn.state"
        raise LaunchError(self._subject, reason, hint)
