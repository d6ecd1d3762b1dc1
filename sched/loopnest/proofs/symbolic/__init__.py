"""The facts for all sizes, decided by isl; what it cannot decide is left to `enumeration`.

Every check shows that a set of counterexamples is empty. `NotProved` says that one may not be, or
that something has no affine form: never that the kernel is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

from loopnest import kir
from loopnest.proofs.collectives.collective_contract import Body
from loopnest.proofs.obligations import CollectiveMath, Work
from loopnest.proofs.point_arrays import Undecidable
from loopnest.proofs.program_model import Model
from loopnest.proofs.report import Finding
from loopnest.proofs.symbolic.merged_order import require_any_order
from loopnest.proofs.symbolic.polyhedral_model import PolyhedralModel
from loopnest.proofs.symbolic.statement_instances import NotProved
from loopnest.proofs.symbolic.symbolic_alignment import Alignment
from loopnest.proofs.symbolic.symbolic_order import prove_fold_order
from loopnest.proofs.symbolic.symbolic_races import SymbolicRaces
from loopnest.proofs.symbolic.symbolic_values import Values
from loopnest.tensor.math_snapshot import MathSnapshot

__all__ = ["NotProved", "prove", "prove_order"]


def prove(
    model: Model,
    math: MathSnapshot,
    works: Sequence[Work],
    exchanges: Sequence[CollectiveMath],
    sizes: dict[str, int],
) -> list[Finding]:
    """Prove every fact for all sizes but those given; return notes.

    Raises:
        NotProved, NotAffine: it could not be shown.
    """
    setting = PolyhedralModel(model, math, works, exchanges, sizes)
    try:
        values = Values(setting)
        values.claims.prove()
        Alignment(setting).prove()
        SymbolicRaces(setting).prove()
        require_any_order(setting)
        values.prove()
        prove_fold_order(setting, values.flow, values.parts)
        _declarations(model, exchanges, sizes)
        setting.require_divisors()
    except setting.isl.Error as error:
        raise NotProved(f"isl: {error}") from None
    return setting.notes


def prove_order(
    model: Model,
    math: MathSnapshot,
    works: Sequence[Work],
    exchanges: Sequence[CollectiveMath],
    sizes: dict[str, int],
    without: Sequence[kir.Barrier],
) -> None:
    """Prove that there are no races, even if some barriers do not count.

    Raises:
        NotProved, NotAffine: it could not be shown.
    """
    setting = PolyhedralModel(model, math, works, exchanges, sizes)
    try:
        SymbolicRaces(setting, without).prove_apart()
        require_any_order(setting)
        setting.require_divisors()
    except setting.isl.Error as error:
        raise NotProved(f"isl: {error}") from None


def _declarations(model: Model, exchanges: Sequence[CollectiveMath], sizes: dict[str, int]) -> None:
    extents = dict(model.program.launch)
    conditions = [condition for _, condition in model.program.conditions]
    for exchange in exchanges:
        try:
            problem = Body(exchange.node).check_all(extents, sizes, conditions)
        except Undecidable as why:
            raise NotProved(str(why)) from None
        if problem is not None:
            raise NotProved(problem)
