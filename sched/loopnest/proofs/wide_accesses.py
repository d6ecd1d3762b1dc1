"""Wide accesses: when one access of a vector equals its lanes one after the other.

Which accesses are wide is decided by `loopnest.kir.vector_access`, for printers and interpreters
alike. That they may be is shown here, by other means: the lanes' addresses follow each other, the
first one's is a multiple of the piece, and no access of the loop comes between those that are put
together.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from loopnest import kir
from loopnest.kir.vector_access import WideAccess, wide_accesses
from loopnest.proofs.program_model import Access, Model
from loopnest.scalar.expr import loads


@dataclass(frozen=True, eq=False, slots=True)
class WidePlace:
    """A wide access at its place.

    Args:
        access: of all lanes.
        loop: the vectorized loop.
        lanes: elements of one piece.
        ordered: whether nothing of the loop comes between the lanes.
    """

    access: Access
    loop: kir.Loop
    lanes: int
    ordered: bool


_KNOWN: WeakKeyDictionary[Model, list[WidePlace]] = WeakKeyDictionary()


def wide_place_of(model: Model) -> list[WidePlace]:
    """Return the wide accesses of a program, at every place where they stand."""
    known = _KNOWN.get(model)
    if known is None:
        known = _KNOWN[model] = _found(model)
    return known


def _found(model: Model) -> list[WidePlace]:
    found = wide_accesses(model.program)
    result: list[WidePlace] = []
    for wide in found:
        together = {w.statement for w in found if w.loop is wide.loop and w.is_store}
        ordered = _is_ordered(wide, model, together)
        for site in model.sites:
            if site.node is wide.statement and wide.loop in site.loops:
                result += [
                    WidePlace(a, wide.loop, wide.piece_lanes, ordered)
                    for a in model.accesses_of(site)
                    if _is_it(a, wide)
                ]
    return result


def _is_it(access: Access, wide: WideAccess) -> bool:
    if wide.load is None:
        return access.writes
    same = (access.buffer, access.index, access.flat)
    return not access.writes and same == (wide.load.buffer, wide.load.args, wide.load.flat)


def _is_ordered(wide: WideAccess, model: Model, together: set[kir.Stmt]) -> bool:
    """Whether a load may go before all else that its loop does, a store after all else."""
    space = {wide.buffer, *model.aliases(wide.buffer)}
    body = wide.loop.body
    place = body.index(wide.statement)
    for number, node in enumerate(body):
        stores = isinstance(node, kir.Store) and node.storage in space
        reads = any(load.buffer in space for e in kir.expressions(node) for load in loads(e))
        if wide.load is not None and stores and number < place:
            return False
        if wide.load is None and reads and number > place:
            return False
        if wide.load is None and stores and node not in together:
            return False
    return True
