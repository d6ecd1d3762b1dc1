"""Loops whose indices one sum replaces, but which do not run in the order of that sum.

The time of a statement in such loops is that of the sum's digits (`PolyhedralModel.time`): right
where the loops stand one in the other, the slowest part of the sum outside, and wrong after a
reorder. There nothing may hang on the order of two iterations: none writes an element that another
one uses, but for partial results that may be folded in any order.
"""

from __future__ import annotations

from itertools import combinations_with_replacement

from loopnest.proofs.index_notation import Group
from loopnest.proofs.program_model import Access, Site, is_private
from loopnest.proofs.symbolic.polyhedral_model import PolyhedralModel
from loopnest.proofs.symbolic.statement_instances import NotProved, about
from loopnest.proofs.template_matching import reducer_of


def require_any_order(setting: PolyhedralModel) -> None:
    """Show that loops in another order than their sum's may run in any order.

    Raises:
        NotProved, NotAffine: it could not be shown.
    """
    model = setting.model
    for group in setting.spaces.groups:
        sites = [s for s in model.sites if _has(setting, group, s)]
        if all(_is_in_order(setting, group, s) for s in sites):
            continue
        inside = [a for a in model.accesses if a.site in set(sites)]
        for a, b in combinations_with_replacement(inside, 2):
            one_space = a.buffer is b.buffer or b.buffer in model.aliases(a.buffer)
            if one_space and (a.writes or b.writes) and not _folds(setting, a, b):
                with about(b.site):
                    _apart(setting, group, a, b)


def _has(setting: PolyhedralModel, group: Group, site: Site) -> bool:
    return set(group.members) <= set(setting.spaces.members_of(site))


def _is_in_order(setting: PolyhedralModel, group: Group, site: Site) -> bool:
    """Whether the serial loops of a group follow each other around a site, the slowest first."""
    serial = [v for loop in site.serial for v in setting.spaces.names[loop.var]]
    own = [m for m in group.members if m in serial]
    first = min([serial.index(m) for m in own], default=0)
    return serial[first : first + len(own)] == own


def _folds(setting: PolyhedralModel, a: Access, b: Access) -> bool:
    """Whether two accesses are of one update, by an element of a fold without an order."""
    works = [w for w in setting.works if w.site is a.site and w.kind == "update"]
    if a.site is not b.site or not works or (a.index, a.flat) != (b.index, b.flat):
        return False
    tensor = works[0].tensor
    return a.buffer is b.buffer and tensor.scan is None and not reducer_of(tensor).ordered


def _apart(setting: PolyhedralModel, group: Group, a: Access, b: Access) -> None:
    """Show that no two iterations of a group's loops use one element.

    Iterations of the loops around those of the group are in the right order.
    """
    made = [setting.model.lifetime(access) for access in (a, b)]
    # A thread's own buffer is another one in each iteration. One that threads share is too, but it
    # lies where the last one lay: whether a barrier stands between two uses hangs on the order.
    if is_private(a.buffer) and all(m is not None and _has(setting, group, m) for m in made):
        return
    if a.buffer is not b.buffer:
        raise NotProved("iterations of merged loops over shared space")
    first, second = setting.points(a), setting.points(b)
    around = _outside(setting, group, a.site)
    if around != _outside(setting, group, b.site):
        raise NotProved("the order of merged loops")
    differ = " or ".join([f"a_{v} != b_{v}" for v in group.digits])
    conditions = [f"({differ})", *[f"a_{v} = b_{v}" for v in around if v in first.variables]]
    pairs = setting.relation(first.renamed("a_"), second.renamed("b_"), conditions)
    mine, theirs = [
        setting.access(at, access, place=True) for at, access in ((first, a), (second, b))
    ]
    met = mine.apply_range(theirs.reverse())
    setting.require_empty(met.intersect(pairs), f"the order of merged loops, for {b}")


def _outside(setting: PolyhedralModel, group: Group, site: Site) -> list[str]:
    """Return the indices of the loops around the outermost one of a group."""
    result: list[str] = []
    for loop in site.serial:
        names = setting.spaces.names[loop.var]
        if not set(group.members).isdisjoint(names):
            break
        result += names
    return result
