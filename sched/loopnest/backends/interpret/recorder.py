"""Record what every tensor gets while a program is interpreted, at the elements that it claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loopnest import kir
from loopnest.backends.interpret.abstract_machine import Machine
from loopnest.backends.interpret.frame import Frame
from loopnest.backends.interpret.loop_dependence import Expansions
from loopnest.backends.interpret.native_math import Array
from loopnest.scalar.expr import Expr, Load


@dataclass(eq=False, slots=True)
class Recorded:
    """The values of one tensor.

    Args:
        values: of its logical shape, in the type of what was stored last.
        known: which elements were stored.
        store: for each element the number of the store that came last, in `Recorder.stores`.
    """

    values: Array
    known: Array
    store: Array


class Recorder(Machine):
    """A machine that keeps the last value stored to each element of each tensor.

    Args:
        expansions, arrays, scalars: as for `Machine`.
        shapes: name of each tensor to record -> its logical extents.
        elements: for each store the logical index that it claims; stores not named are left out.
        earlier: the recorder of the launch before this one, which this one goes on with.
    """

    def __init__(
        self,
        expansions: Expansions,
        arrays: Mapping[str, Array],
        scalars: Mapping[str, object],
        shapes: Mapping[str, Sequence[int]],
        elements: Mapping[kir.Store, tuple[Expr, ...]],
        earlier: Recorder | None = None,
    ) -> None:
        super().__init__(expansions, arrays, scalars, earlier=earlier)
        self.elements = elements
        self.stores: list[kir.Store] = [] if earlier is None else earlier.stores
        self.recorded: Mapping[str, Recorded] = (
            earlier.recorded
            if earlier is not None
            else {
                name: Recorded(
                    np.zeros(tuple(shape), np.float64),
                    np.zeros(tuple(shape), np.bool_),
                    np.full(tuple(shape), -1),
                )
                for name, shape in shapes.items()
            }
        )

    def _store(self, node: kir.Store, frame: Frame) -> None:
        super()._store(node, frame)
        element = self.elements.get(node)
        if element is not None:
            self._record(node, element, frame)

    def _record(self, node: kir.Store, element: tuple[Expr, ...], frame: Frame) -> None:
        held = self.recorded[node.tensor]
        address = self.eval.address(Load(node.storage, node.index, node.flat), frame)
        # What a copy in flight brings is not there yet.
        flying = self.flying.copies[-1].value if self.flying.issuing else None
        value = self.memory[node.storage].load(address) if flying is None else flying
        if node not in self.stores:
            self.stores.append(node)
        if not held.values.ndim:
            place: tuple[Array, ...] = ()
            value, inside = value[-1], np.ones((), np.bool_)
        else:
            index = [np.asarray(self.eval.value(e, frame)) for e in element]
            parts = [np.atleast_1d(p) for p in np.broadcast_arrays(*index, value)]
            inside = np.ones(parts[0].shape, np.bool_)
            for part, extent in zip(parts, held.values.shape, strict=False):
                inside &= (part >= 0) & (part < extent)
            place, value = tuple([p[inside] for p in parts[:-1]]), parts[-1][inside]
        if held.values.dtype != value.dtype and not held.known.any():
            held.values = held.values.astype(value.dtype)
        elif held.values.dtype != value.dtype:
            held.values = held.values.astype(np.result_type(held.values.dtype, np.float32))
        held.values[place] = value
        held.known[place] = True
        held.store[place] = self.stores.index(node)
