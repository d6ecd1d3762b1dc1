"""Components of a reduction whose stores stand side by side hold the same elements.

The components of a Welford reduction have a buffer each. Mostly each store to one has siblings that
store to the others: in the same loops, under the same tests, at the same index and coordinate, and
before or after a read of their buffer as its siblings are. Which stores a read finds follows from
these alone. So the buffers hold the same elements wherever one of them is read, and isl need not be
asked.
"""

from __future__ import annotations

from collections.abc import Sequence

from loopnest.proofs.data_indices import Need
from loopnest.proofs.obligations import Work
from loopnest.proofs.program_model import Access, Site
from loopnest.proofs.symbolic.symbolic_dataflow import SymbolicDataflow


def side_by_side(flow: SymbolicDataflow, needs: Sequence[Need]) -> bool:
    """Whether all that these reads find was stored by siblings.

    Partial results that a store takes in are compared with those of its siblings elsewhere, not
    here: only starts with nothing and updates are siblings.
    """
    found = [_history(flow, need) for need in needs]
    return None not in found and all(history == found[0] for history in found[1:])


def _history(flow: SymbolicDataflow, need: Need) -> object | None:
    """Return what decides which elements a read finds; None where it is more than can be compared.

    The order of the stores of two components to each other decides nothing.
    """
    access = need.operand
    if not isinstance(access, Access) or flow.kills(access.buffer):
        return None
    works = [work for work, _ in flow.writes(access.buffer)]
    if not works or any(w.kind not in ("init", "update") or w.store.atomic for w in works):
        return None
    if any(work.tensor is not need.tensor for work in works):
        return None
    accesses = flow.setting.model.accesses_to([access.buffer])
    if sum(a.writes for a in accesses) != len(works):
        return None
    buffer = access.buffer
    made = flow.setting.model.lifetime(access)
    return (
        (buffer.memory, buffer.shape, buffer.strides, buffer.swizzles, made and made.loops),
        (access.index, access.flat, access.guards, access.moment.loops, access.moment.guards),
        [_step(work, works, access.moment) for work in works],
    )


def _step(work: Work, works: Sequence[Work], moment: Site) -> object:
    site, store = work.site, work.store
    return (
        work.kind,
        (site.loops, site.guards, site.time[:-1], site.within),
        (store.index, store.flat, store.coordinate),
        [_is_before(site, other.site) for other in works],
        _is_before(site, moment),
    )


def _is_before(site: Site, other: Site) -> tuple[int, bool]:
    """Return where two sites part, and whether the first one stands before the other there."""
    for place, (a, b) in enumerate(zip(site.time, other.time, strict=False)):
        if a is not b and a != b:
            return place, isinstance(a, int) and isinstance(b, int) and a < b
    return min(len(site.time), len(other.time)), False
