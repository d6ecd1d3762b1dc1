"""In which order a reducer that need not commute takes its elements in, for all sizes.

Of two updates of one value the earlier one has the lower coordinate. What a thread contributes to
an exchange lies before what later threads do, and what a partial result holds lies before another
one that it is combined with.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from loopnest.proofs.obligations import Work
from loopnest.proofs.symbolic.partial_reductions import PartialReductions
from loopnest.proofs.symbolic.polyhedral_model import PolyhedralModel
from loopnest.proofs.symbolic.statement_instances import NotProved, about
from loopnest.proofs.symbolic.symbolic_dataflow import SymbolicDataflow, earlier
from loopnest.proofs.template_matching import reducer_of
from loopnest.tensor.math_snapshot import MathTensor


def prove_fold_order(
    setting: PolyhedralModel, flow: SymbolicDataflow, parts: PartialReductions
) -> None:
    """Show that every reducer that need not commute combines its elements in order.

    Raises:
        NotProved, NotAffine: it could not be shown.
    """
    for exchange in setting.exchanges.values():
        with about(exchange.site):
            tensor = exchange.tensors[0]
            if not _is_ordered(tensor):
                continue
            if not exchange.node.in_order:
                raise NotProved(f"the order in which threads combine parts of {tensor.name}")
            for pairs in parts.in_turn(exchange):
                _require_rising(setting, parts, tensor, pairs)
    works = [w for w in setting.works if not w.starts and _is_ordered(w.tensor)]
    for work in works:
        with about(work.site):
            if work.kind == "merge":
                _prove_merge(setting, parts, work)
    updates = [w for w in works if w.kind != "merge"]
    for first, second in product(updates, repeat=2):
        if first.store.storage is second.store.storage:
            with about(second.site):
                _prove_pair(setting, flow, parts, first, second)


def _prove_merge(setting: PolyhedralModel, parts: PartialReductions, work: Work) -> None:
    """Show that what a merge continues lies before what it takes in."""
    part = work.part
    own = next((n for n in work.needs if n.demand == "own" and n.tensor is work.tensor), None)
    if part is None or own is None:
        raise NotProved("a merge of nothing")
    pairs = parts.continued(work, own).reverse().apply_range(parts.part(work, part))
    _require_rising(setting, parts, work.tensor, pairs)


def _require_rising(
    setting: PolyhedralModel, parts: PartialReductions, tensor: MathTensor, pairs: Any
) -> None:
    """Show that of all pairs of elements the first lies before the second in C order."""
    names = parts.tilings.names(tensor)
    places = [(f"a_{name}", f"b_{name}") for name in parts.tilings.in_order(tensor)]
    one, other = [f"C[{', '.join([mark + n for n in names])}]" for mark in ("a_", "b_")]
    wrong = setting.relation(one, other, [_not_below(places)])
    setting.require_empty(pairs.intersect(wrong), f"the order in which {tensor.name} folds")


def _prove_pair(
    setting: PolyhedralModel,
    flow: SymbolicDataflow,
    parts: PartialReductions,
    first: Work,
    second: Work,
) -> None:
    """Show that no point of `first` comes before one of `second` that it should come after."""
    buffer = first.store.storage
    starts = [(w, m) for w, m in flow.writes(buffer) if w.starts]
    one, chained = parts.chain(first, buffer, starts)
    other, continued = parts.chain(second, buffer, starts)
    pairs = chained.reverse().apply_range(continued).extract_map(flow.pairs(one, other))
    before = [f"({' and '.join(part) or '1 = 1'})" for part in earlier(one, "a_", other, "b_", ())]
    if pairs.is_empty() or not before:
        return
    tilings = parts.tilings
    places = [*zip(tilings.place(first, "a_"), tilings.place(second, "b_"), strict=True)]
    wrong = setting.relation(
        one.renamed("a_"), other.renamed("b_"), [" or ".join(before), _not_below(places)]
    )
    setting.require_empty(pairs.intersect(wrong), f"the order in which {first.tensor.name} folds")


def _not_below(places: Sequence[tuple[str, str]]) -> str:
    """Return the condition that one coordinate does not come before another in C order."""
    result = "1 = 1"
    for a, b in reversed(places):
        result = f"({a} > {b} or ({a} = {b} and {result}))"
    return result


def _is_ordered(tensor: MathTensor) -> bool:
    return tensor.accumulates and reducer_of(tensor).ordered
