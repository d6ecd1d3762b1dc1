"""Points with hidden variables: which products stores claim, and where these do not matter."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from loopnest.proofs.obligations import Work
from loopnest.proofs.program_model import Access, Guards, Site, is_callers
from loopnest.proofs.quasi_affine import Monomial, NotAffine
from loopnest.proofs.symbolic.statement_instances import Instances, NotProved, about

if TYPE_CHECKING:
    from loopnest.proofs.symbolic.polyhedral_model import PolyhedralModel


class HiddenPoints:
    """The hidden variables of what stores claim.

    Args:
        setting: the program in isl, whose statements have no points yet.

    Raises:
        NotAffine: a product is none of an index, or nothing is known of a quotient where a
            statement asks for it.
    """

    def __init__(self, setting: PolyhedralModel) -> None:
        self.setting, self.spaces = setting, setting.spaces
        self._storing: dict[Work, Instances] = {}
        for work in setting.works:
            with about(work.site):
                if self.spaces.quotients.known:
                    self._require_known(work)
                if self.spaces.wide:
                    self._hide(work)
                elif self.spaces.groups:
                    self._derive(work)

    def _derive(self, work: Work) -> None:
        """Make variables for the products of digits with few values and sizes."""
        for access in self.setting.model.accesses_of(work.site):
            with suppress(NotAffine, NotProved):  # who needs the indices says it
                for p in self.setting.placed(access):
                    for monomial in self.spaces.products.of(p):
                        self.spaces.products.derive(monomial)

    def _hide(self, work: Work) -> None:
        """Make variables for the products of indices and sizes in what a store claims and reads."""
        products = self.spaces.products
        for monomial in self._compared(work):
            if not products.derive(monomial) and any(v in self.spaces.extent for v in monomial):
                products.hide_at(monomial, work.site)

    def _require_known(self, work: Work) -> None:
        """Show that the quotients in what the math demands of a store are known where it runs.

        Those in the nest's own indices and tests are: their values were looked for there.
        """
        setting = self.setting
        demanded = [*work.store.coordinate, *[e for pair in work.equalities for e in pair]]
        self._ask(work.site, lambda: [*setting.polys(demanded), *setting.claimed(work)])
        for need in work.needs:
            guards = need.operand.guards if isinstance(need.operand, Access) else ()
            self._ask(work.site, partial(setting.needed, work, need), guards)
        for agreement in work.conditions:
            condition = ((agreement.wanted, True),)
            self._ask(work.site, partial(setting.guards, condition), agreement.guards)

    def _ask(self, site: Site, compute: Callable[[], object], guards: Guards = ()) -> None:
        asked = self.setting.algebra.asked
        asked.clear()
        compute()
        for name in sorted(asked):
            self.spaces.quotients.require_known(name, site, guards)

    def _compared(self, work: Work) -> list[Monomial]:
        """Return the products in indices that a source and its reader must have in common."""
        polys, products = self.setting.polys, self.spaces.products
        claimed = self.setting.claimed(work)
        compared = [] if is_callers(work.store.storage) else [*claimed]
        for need in work.needs:
            element = self.setting.needed(work, need)
            if need.tensor.definition is not None:
                compared += element
        for access in self.setting.model.accesses_of(work.site):
            if access.buffer not in self.spaces.dense.shapes and not access.flat:
                compared += polys(access.index)
        return [m for p in compared for m in products.of(p)]

    def storing(self, work: Work) -> Instances:
        """Return the points of a store, without the hidden variables that do not matter to it.

        A statement runs once for the true value of a product, which is one of those that a hidden
        variable may have. Where no test, no time, no place and no claim of the store names the
        variable, all of them are one point, and none must be found: the variable is left out.
        """
        found = self._storing.get(work)
        if found is None:
            found = self._storing[work] = self._without_hidden(work)
        return found

    def _without_hidden(self, work: Work) -> Instances:
        setting, spaces = self.setting, self.spaces
        at = setting.sites[work.site]
        made = setting.model.lifetime(work.write)
        # A buffer made where a product is known is another one for each value of it.
        kept = set() if made is None else spaces.hidden_at(made)
        gone = spaces.hidden_at(work.site) - kept
        if not gone or not spaces.wide or work.kind not in ("init", "define"):
            return at
        ties = [t for v in spaces.derived.values() for name, t in v.items() if name in gone]
        conditions = [text for text in at.conditions if text not in ties]
        texts = [*conditions, *at.time, *map(setting.text, setting.placed(work.write))]
        if work.store.storage not in spaces.dense.shapes:
            texts += map(setting.text, setting.claimed(work))
        if any(re.search(rf"\b{name}\b", text) for name in gone for text in texts):
            return at
        variables = [v for v in at.variables if v not in gone]
        left = [t for t in at.ties if t not in ties]
        return Instances(at.name, variables, conditions, at.time, left)
