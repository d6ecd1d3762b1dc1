"""Wide accesses: those of a vectorized loop must be aligned."""

from __future__ import annotations

from typing import NamedTuple

from loopnest import kir
from loopnest.kir.shared_memory import swizzled
from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import Index, Load


class AlignedAccess(NamedTuple):
    """A wide access.

    Args:
        access: what its statement loads or stores.
        place: where that lies: `access`, its index permuted where the buffer is swizzled.
        lane: the index of the vectorized loop; where it is 0 an access begins.
        width: the bytes of one access.
    """

    access: Load
    place: Load
    lane: Index
    width: int


def wide_accesses(program: kir.Program) -> dict[kir.Stmt, tuple[AlignedAccess, ...]]:
    """Return the wide accesses of each statement that has any, as printed kernels have them."""
    if all(
        not isinstance(n, kir.Loop) or n.parallel is not ParallelType.vectorize
        for n, _ in kir.walk(program.body)
    ):
        return {}
    from loopnest.kir import vector_access

    found: dict[kir.Stmt, tuple[AlignedAccess, ...]] = {}
    for wide in vector_access.wide_accesses(program):
        node = wide.statement
        access = wide.load
        if access is None:
            assert isinstance(node, kir.Store)
            access = Load(node.storage, node.index, node.flat)
        place = access
        if not wide.flat:
            place = Load(access.buffer, swizzled(access.buffer, access.args))
        entry = AlignedAccess(access, place, wide.loop.var, wide.piece_bytes)
        found[node] = (*found.get(node, ()), entry)
    return found
