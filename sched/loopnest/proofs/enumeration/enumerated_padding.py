"""Updates beyond the domain of a reduction, at given sizes: where they add nothing.

Each store is given the constant that it leaves at each of its points, as far as that is known: that
of a fill, and what a definition makes of such constants.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from loopnest.kir.buffers import Buffer
from loopnest.proofs.data_indices import Need
from loopnest.proofs.obligations import Work
from loopnest.proofs.out_of_domain import defined, is_neutral
from loopnest.proofs.point_arrays import Array, Flags
from loopnest.proofs.template_matching import Combined
from loopnest.scalar.expr import Const

if TYPE_CHECKING:
    from loopnest.proofs.enumeration.value_provenance import ValueProvenance

_UNKNOWN = -1


class EnumeratedPadding:
    """The constants that stores leave, as numbers; -1 where they are not known."""

    def __init__(self, contents: ValueProvenance) -> None:
        self.contents = contents
        self.filled = any(work.kind == "fill" for work in contents.works)
        self.values: list[Const] = []
        self._stored: dict[Buffer, Array] = {}

    def neutral(self, work: Work) -> Flags:
        """Return at which points of an update it adds the identity, as far as that is known."""
        count = self.contents.table.space.points[work.site].count
        result: Flags = np.zeros(count, np.bool_)
        if not self.filled or not count:
            return result
        for where, constants in self._cases(work):
            result[where] = is_neutral(work.tensor, constants)
        return result

    def stored(self, buffer: Buffer) -> Array:
        """Return the constants that all stores to a buffer leave, in the order of `writes`."""
        found = self._stored.get(buffer)
        if found is None:
            writes = self.contents.writes(buffer)
            found = np.full(writes.key.size, _UNKNOWN)
            self._stored[buffer] = found  # one that depends on itself is unknown
            for n, work in enumerate(writes.works):
                rows = np.flatnonzero(writes.work == n)
                found[rows] = self._left(work)[writes.point[rows]]
        return found

    def _left(self, work: Work) -> Array:
        count = self.contents.table.space.points[work.site].count
        result = np.full(count, _UNKNOWN)
        if work.kind == "fill":
            assert isinstance(work.store.value, Const)
            result[:] = self._number(work.store.value)
        elif work.kind == "define" and count:
            for where, constants in self._cases(work):
                value = defined(work.tensor, constants)
                result[where] = _UNKNOWN if value is None else self._number(value)
        return result

    def _number(self, value: Const) -> int:
        for number, other in enumerate(self.values):
            if other is value:
                return number
        self.values.append(value)
        return len(self.values) - 1

    def _cases(self, work: Work) -> list[tuple[Array, dict[str, Const]]]:
        """Return the points of a store by what constants its operands are."""
        needs = [n for n in work.needs if n.demand == "whole"]
        if not needs:
            return []
        codes = [self._operand(work, need) for need in needs]
        if all((code == _UNKNOWN).all() for code in codes):
            return []
        result: list[tuple[Array, dict[str, Const]]] = []
        for where in _alike(codes):
            constants: dict[str, Const] = {}
            kind = [int(code[where[0]]) for code in codes]
            if kind == [_UNKNOWN] * len(kind):
                continue
            for need, code in zip(needs, kind, strict=True):
                if code != _UNKNOWN:
                    constants[need.tensor.name] = self.values[code]
            same = all(
                code != _UNKNOWN and constants[need.tensor.name] is self.values[code]
                for need, code in zip(needs, kind, strict=True)
                if need.tensor.name in constants
            )
            if same:
                result.append((where, constants))
        return result

    def _operand(self, work: Work, need: Need) -> Array:
        count = self.contents.table.space.points[work.site].count
        result = np.full(count, _UNKNOWN)
        if isinstance(need.operand, Combined) or need.tensor.definition is None:
            return result
        mark, writes, source = self.contents.own(need.operand)
        if writes.key.size:
            found = self.stored(need.operand.buffer)[np.where(source >= 0, source, 0)]
            result[mark.where] = np.where(source >= 0, found, _UNKNOWN)
        return result


def _alike(codes: Sequence[Array]) -> Iterator[Array]:
    """Yield the points at which all of some small numbers, from -1 on, are the same."""
    which = np.zeros(codes[0].size, np.int64)
    for code in codes:
        which = which * (int(code.max()) + 2) + code + 1
        present = np.bincount(which) > 0
        which = (np.cumsum(present) - 1)[which]
    for number in range(int(which.max()) + 1):
        yield np.flatnonzero(which == number)
