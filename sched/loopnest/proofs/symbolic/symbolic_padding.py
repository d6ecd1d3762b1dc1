"""Updates beyond the domain of a reduction: they must add nothing.

Their operands' sources are followed to the stores of constants (`fill`), through the definitions
that are computed from these alone.
"""

from __future__ import annotations

from typing import Any

from loopnest.proofs import affine
from loopnest.proofs.data_indices import Need
from loopnest.proofs.obligations import Work
from loopnest.proofs.out_of_domain import defined, is_neutral
from loopnest.proofs.symbolic.isl_relations import Instances, NotProved
from loopnest.proofs.symbolic.polyhedral_model import PolyhedralModel
from loopnest.proofs.symbolic.symbolic_dataflow import SymbolicDataflow
from loopnest.proofs.template_matching import Combined
from loopnest.scalar.enums import IterKind
from loopnest.scalar.expr import Const


class SymbolicPadding:
    """The constants of a program, and what is computed from them.

    Raises:
        NotProved, NotAffine: it could not be shown.
    """

    def __init__(self, setting: PolyhedralModel, flow: SymbolicDataflow) -> None:
        self.setting, self.flow = setting, flow
        self.filled = any(work.kind == "fill" for work in setting.works)

    def folded(self, work: Work) -> list[affine.Condition]:
        """Return that the point of an update lies within the axes that it folds."""
        return self._within(work, IterKind.REDUCTION) if self.filled else []

    def _within(self, work: Work, kind: IterKind | None = None) -> list[affine.Condition]:
        setting, found = self.setting, list[affine.Condition]()
        places = setting.polys(work.store.coordinate)
        for place, axis in zip(places, work.tensor.root, strict=True):
            if kind is None or axis.kind is kind:
                extent = setting.algebra.poly(axis.extent, {})
                found.append(setting.algebra.inside(place, extent))
        return found

    def prove(self) -> None:
        """Show that fills store outside of their tensors, and that updates there add nothing."""
        if not self.filled:
            return
        for work in self.setting.works:
            at = self.setting.sites[work.site]
            if work.kind == "fill":
                found = self._among(at, self._within(work))
                self.setting.require_empty(
                    found, f"a constant for an element of {work.tensor.name}"
                )
            elif work.kind == "update":
                within = self.folded(work)
                points = self._among(at, [~affine.all_of(within)]) if within else None
                if points is not None and not points.is_empty():
                    self._neutral(work, points)

    def _among(self, at: Instances, conditions: list[affine.Condition]) -> Any:
        self.setting.require_present(conditions, at.variables)
        return self.setting.among(at, conditions)

    def _neutral(self, work: Work, points: Any) -> None:
        if not is_neutral(work.tensor, self._constants(work, points)):
            raise NotProved(f"what {work.tensor.name} adds outside of its domain")

    def _constants(self, work: Work, points: Any) -> dict[str, Const]:
        """Return the constants that a store's operands are at some of its points."""
        result: dict[str, Const] = {}
        unknown: set[str] = set()
        for need in work.needs:
            if need.demand != "whole":
                continue
            found = self._constant(work, need, points)
            name = need.tensor.name
            if found is None or result.setdefault(name, found) is not found:
                unknown.add(name)
        return {name: value for name, value in result.items() if name not in unknown}

    def _constant(self, work: Work, need: Need, points: Any) -> Const | None:
        operand = need.operand
        if isinstance(operand, Combined) or need.tensor.definition is None or operand.guards:
            return None
        setting = self.setting
        at = setting.instances(work.site, f"R{next(setting.numbers)}", operand.moment)
        access = setting.access(at, operand).intersect_domain(points.set_tuple_name(at.name))
        writes = self.flow.writes(operand.buffer)
        if any(not w.is_final for w, _ in writes):
            return None
        found, missing = self.flow.sources(at, access, operand.buffer, writes)
        setting.require_empty(missing, f"a read of {need.tensor.name} without a source")
        result: Const | None = None
        for source, _ in writes:
            part = found.extract_map(self.flow.pairs(setting.hidden_points.storing(source), at))
            if part.is_empty():
                continue
            value = self._stored(source, part.domain())
            if value is None or (result is not None and result is not value):
                return None
            result = value
        return result

    def _stored(self, work: Work, points: Any) -> Const | None:
        """Return the constant that a store leaves at some of its points."""
        if work.kind == "fill":
            assert isinstance(work.store.value, Const)
            return work.store.value
        if work.kind != "define":
            return None
        return defined(work.tensor, self._constants(work, points))
