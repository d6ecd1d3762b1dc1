"""Reductions over a sum of indices that holds a product: ``i0 * C + i1`` with a size C.

The product ``i0 * C`` is a hidden variable m (`spaces`), so that isl sees points whose m is no such
product. An element that is folded is therefore named by its coordinate c = m + i1 and by the
indices (i0, i1), its *tile*: they are the digits of c in mixed radix, so that an element has one
tile, and with c they tell m. The domain that a reader must find is the set of all c, with every
tile from which some m leads to c.

That both are equal means for a true element, with its true tile, that it is found just once, by way
of points whose m is true: each point on the way either has no hidden variable, or is the update at
that tile, or lies in one iteration with it. `Tilings` refuses all else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loopnest import kir
from loopnest.proofs.obligations import Work
from loopnest.proofs.program_model import Site
from loopnest.proofs.quasi_affine import NotAffine, Poly, constant, times
from loopnest.proofs.symbolic.polyhedral_model import PolyhedralModel
from loopnest.proofs.symbolic.statement_instances import NOWHERE, NotProved
from loopnest.tensor.math_snapshot import MathTensor


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a coordinate is made of indices.

    Args:
        axis: of the reduction's root domain.
        whole: the sum.
        members: its indices, the fastest last.
    """

    axis: int
    whole: Poly
    members: tuple[str, ...]


class Tilings:
    """The tilings of all reductions.

    Raises:
        NotProved, NotAffine: a hidden variable matters elsewhere.
    """

    def __init__(self, setting: PolyhedralModel) -> None:
        self.setting, self.spaces = setting, setting.spaces
        self._of_tensors: dict[MathTensor, list[Tiling]] = {}
        if not self.spaces.hidden:
            return
        for site in setting.model.sites:
            self._check_site(site)
        for work in setting.works:
            self._check_work(work)

    def _check_site(self, site: Site) -> None:
        meets = kir.is_sync(site.node) or isinstance(site.node, kir.Collective)
        if self.spaces.hidden_at(site) and (meets or site.within is not None):
            raise NotAffine("a product where threads meet")

    def _check_work(self, work: Work) -> None:
        hidden = self.spaces.hidden_at(work.site)
        if work.kind == "update":
            found = self._tilings(work)
            if not hidden <= {name for tiling in found for name in self._products(tiling.whole)}:
                raise NotAffine("a product that is in no coordinate")
            # c and the tile tell one product by subtraction, and of two only the sum.
            if any(len(self._products(tiling.whole)) > 1 for tiling in found):
                raise NotAffine("a coordinate that does not determine its products")
            known = self._of_tensors.setdefault(work.tensor, found)
            if [self._signature(t) for t in known] != [self._signature(t) for t in found]:
                raise NotProved(f"two tilings of {work.tensor.name}")
        elif hidden:
            made = self.setting.model.lifetime(work.write)
            hidden &= set(self.setting.hidden_points.storing(work).variables)
            if not hidden:
                return
            if made is None or not hidden <= self.spaces.hidden_at(made):
                raise NotAffine("a product where a value is stored")

    def _tilings(self, work: Work) -> list[Tiling]:
        return [
            Tiling(axis, p, self.spaces.radix(p))
            for axis, p in enumerate(self.setting.polys(work.store.coordinate))
            if self._products(p)
        ]

    def _products(self, whole: Poly) -> list[str]:
        """Return the hidden variables in a sum."""
        derived = self.setting.algebra.derived
        return [derived[m] for m in whole if derived.get(m) in self.spaces.hidden]

    def _signature(self, tiling: Tiling) -> object:
        return tiling.axis, [self.spaces.extent[m] for m in tiling.members]

    # What readers ask

    def tile(self, work: Work) -> list[str]:
        """Return the indices that go with the coordinate of an update."""
        if not self.spaces.hidden:
            return []
        return [member for tiling in self._tilings(work) for member in tiling.members]

    def names(self, tensor: MathTensor) -> list[str]:
        """Return the names of all dimensions of an element."""
        found = self._of_tensors.get(tensor, [])
        roots = [f"c{n}" for n in range(len(tensor.root))]
        data = [f"g{n}" for n, _ in enumerate(self.setting.live.data(tensor))]
        return [*roots, *[name for tiling in found for name in _names(tiling).values()], *data]

    def in_order(self, tensor: MathTensor) -> list[str]:
        """Return the dimensions of an element that tell its place in C order, the first above all.

        A coordinate that has a tile grows as that, digit by digit: isl need not know the product.
        """
        tiles = {t.axis: [*_names(t).values()] for t in self._of_tensors.get(tensor, [])}
        return [n for axis, _ in enumerate(tensor.root) for n in tiles.get(axis, [f"c{axis}"])]

    def place(self, work: Work, mark: str) -> list[str]:
        """Return where in that order the element of an update is; `mark` begins variables."""
        tiles = {tiling.axis: tiling.members for tiling in self._tilings(work)}
        result: list[str] = []
        for axis, p in enumerate(self.setting.polys(work.store.coordinate)):
            members = tiles.get(axis)
            result += (
                [self.setting.text(p, mark)] if members is None else [mark + m for m in members]
            )
        return result

    def conditions(self, tensor: MathTensor, extents: Sequence[Poly]) -> list[str]:
        """Return which tiles an element may have; `extents` are those of the root domain.

        Raises:
            NotProved: there are elements that no tile has.
        """
        result: list[str] = []
        algebra = self.setting.algebra
        for tiling in self._of_tensors.get(tensor, []):
            names = _names(tiling)
            total = constant(1)
            for member, name in names.items():
                extent = self.spaces.extent[member]
                total = times(total, extent)
                result.append(f"0 <= {name} < {self.setting.text(extent)}")
            # Digits in mixed radix reach exactly the numbers below the product of their extents:
            # with fewer than the axis has, elements at its end have no tile, and none could be
            # found missing.
            more = algebra.compare("lt", total, extents[tiling.axis], str)
            found = self.setting.among(NOWHERE, [more])
            self.setting.require_empty(found, f"the tiles of {tensor.name}")
            result.append(self._leads(tiling, names))
        return result

    def _leads(self, tiling: Tiling, names: Mapping[str, str]) -> str:
        """Return that some value of each product leads from a tile to the coordinate."""
        algebra = self.setting.algebra
        products = [m for m in tiling.whole if m in algebra.derived]
        places = {m: f"h{n}" for n, m in enumerate(products)}
        whole: Poly = {
            (places[m],) if m in places else tuple([names.get(v, v) for v in m]): count
            for m, count in tiling.whole.items()
        }
        limits = [f"c{tiling.axis} = {algebra.text(whole, str)}"]
        for product, place in places.items():
            limit = self.spaces.hidden.get(algebra.derived[product])
            limits += [] if limit is None else [limit.format(place)]
        return f"exists ({', '.join(places.values())} : {' and '.join(limits)})"


def _names(tiling: Tiling) -> dict[str, str]:
    return {member: f"w{tiling.axis}_{n}" for n, member in enumerate(tiling.members)}
