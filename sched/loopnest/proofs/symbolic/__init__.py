"""The facts for all sizes, decided by isl; what it cannot decide is left to `enumeration`.

Every check shows that a set of counterexamples is empty. `NotProved` says that one may not be, or
that something has no affine form: never that the kernel is wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from loopnest import kir
from loopnest.proofs.affine import NotAffine
from loopnest.proofs.collectives.collective_contract import Body
from loopnest.proofs.index_variables import Forms
from loopnest.proofs.obligations import CollectiveMath, Work, obligations
from loopnest.proofs.point_arrays import Undecidable
from loopnest.proofs.program_model import Model
from loopnest.proofs.report import Finding
from loopnest.proofs.single_launches import SingleLaunch, stages_apart
from loopnest.proofs.symbolic.isl_relations import NotProved
from loopnest.proofs.symbolic.partial_reductions import prove_fold_order
from loopnest.proofs.symbolic.polyhedral_model import PolyhedralModel, least_sizes
from loopnest.proofs.symbolic.symbolic_alignment import Alignment
from loopnest.proofs.symbolic.symbolic_races import SymbolicRaces, require_any_order
from loopnest.proofs.symbolic.symbolic_values import Values
from loopnest.tensor.math_snapshot import MathSnapshot

_log = logging.getLogger("loopnest")

__all__ = ["NotProved", "broken_contract", "prove", "prove_order"]


def prove(
    model: Model,
    math: MathSnapshot,
    works: Sequence[Work],
    exchanges: Sequence[CollectiveMath],
    sizes: dict[str, int],
) -> list[Finding]:
    """Prove every fact for all sizes but those given, stage by stage where that needs it.

    Returns:
        Notes.

    Raises:
        NotProved, NotAffine: it could not be shown.
    """
    try:
        return _prove_together(model, math, works, exchanges, sizes)
    except (NotProved, NotAffine) as why:
        may_fail = isinstance(why, NotProved) and why.sizes
        stages = () if may_fail else stages_apart(model, math)
        if not stages:
            raise
        try:
            return [f for stage in stages for f in _prove_apart(stage, sizes)]
        except (NotProved, NotAffine) as other:
            raise NotProved(f"{other}, of a stage alone,", getattr(other, "sizes", {})) from None


def _prove_apart(stage: SingleLaunch, sizes: dict[str, int]) -> list[Finding]:
    model = Model(stage.program)
    works, exchanges, problems = obligations(model, stage.math)
    if problems:
        raise NotProved(problems[0].message)
    notes = _prove_together(model, stage.math, works, exchanges, sizes)
    return [note.moved(stage.place) for note in notes]


def _prove_together(
    model: Model,
    math: MathSnapshot,
    works: Sequence[Work],
    exchanges: Sequence[CollectiveMath],
    sizes: dict[str, int],
) -> list[Finding]:
    first: NotProved | NotAffine | None = None
    for forms, least in _attempts(model, sizes):
        try:
            setting = PolyhedralModel(model, math, works, exchanges, sizes, forms, least)
            return _proved(setting, model, exchanges, sizes)
        except (NotProved, NotAffine) as why:
            _log.debug("verify %s: %s is not shown, %s", model.program.name, why, forms)
            first = first or why
            if isinstance(why, NotProved) and why.sizes:
                break  # sizes at which it may fail are worth more than another try
    assert first is not None
    raise first


def _attempts(model: Model, sizes: dict[str, int]) -> Iterator[tuple[Forms, dict[object, int]]]:
    """Yield the ways to write indices and sizes.

    The plain ones first: they cost least, and few programs need others.
    """
    yield from ((forms, {}) for forms in Forms)
    least = least_sizes(model, sizes)
    if least:
        yield from ((forms, least) for forms in Forms)


def _proved(
    setting: PolyhedralModel,
    model: Model,
    exchanges: Sequence[CollectiveMath],
    sizes: dict[str, int],
) -> list[Finding]:
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
    try:
        problem = broken_contract(model, exchanges, sizes)
    except Undecidable as why:
        raise NotProved(str(why)) from None
    if problem is not None:
        raise NotProved(problem)


def broken_contract(
    model: Model, exchanges: Sequence[CollectiveMath], sizes: dict[str, int]
) -> str | None:
    """Return how a collective breaks its declaration for some number of threads, or None.

    Raises:
        Undecidable: it is not known for all of them.
    """
    extents = dict(model.program.launch)
    conditions = [condition for _, condition in model.program.conditions]
    for exchange in exchanges:
        problem = Body(exchange.node).check_all(extents, sizes, conditions)
        if problem is not None:
            return problem
    return None
