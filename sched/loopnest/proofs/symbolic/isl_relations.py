"""Sets and maps of isl, made from texts, each text once; and counterexamples found in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from loopnest.proofs.constraint_matrices import Matrices
from loopnest.proofs.quasi_affine import Algebra, Poly
from loopnest.proofs.symbolic.statement_instances import NotProved
from loopnest.scalar.arguments import size_value
from loopnest.scalar.expr import Symbol, walk


class IslRelations:
    """One context of isl, and the relations that were read in it.

    Args:
        algebra: the sizes, which are parameters of every relation.
        most: how many of isl's operations may be done.
    """

    def __init__(self, algebra: Algebra, most: int) -> None:
        import islpy

        self.isl = islpy
        self.ctx = islpy.Context()
        self.ctx.set_max_operations(most)
        self.algebra = algebra
        self.matrices = Matrices(islpy, self.ctx)
        self._texts: dict[tuple[str, str, str | None, tuple[str, ...]], Any] = {}
        self._shown: dict[str, list[tuple[Any, Any]]] = {}
        self._relations: dict[tuple[str, str, str, tuple[str, ...]], Any] = {}

    def text(self, p: Poly, mark: str = "") -> str:
        """Return a polynomial as isl reads it, with `mark` in front of the names of variables."""
        return self.algebra.text(p, lambda v: mark + v)

    def relation(self, domain: str, target: str, conditions: Sequence[str] = ()) -> Any:
        """Return ``{ domain -> target : conditions }``, or a set where `target` is empty.

        Nothing else is known of it, of sizes neither.
        """
        head = ", ".join([*sorted(self.algebra.symbols), *self.algebra.products.values()])
        key = (head, domain, target, tuple(conditions))
        found = self._relations.get(key)
        if found is None:
            found = self._relations[key] = self._named(*key)
        return found

    def _named(self, head: str, domain: str, target: str, conditions: tuple[str, ...]) -> Any:
        """Return the same from its texts, which are read once for tuples of any names."""
        dim = self.isl.dim_type
        first, _, variables = domain.partition("[")
        if not target:
            found = self._read(head, variables, None, conditions)
            return found.set_tuple_name(first) if first else found
        second, _, others = target.partition("[")
        found = self._read(head, variables, others, conditions)
        if first:
            found = found.set_tuple_name(dim.in_, first)
        return found.set_tuple_name(dim.out, second) if second else found

    def _read(
        self, head: str, variables: str, target: str | None, conditions: tuple[str, ...]
    ) -> Any:
        key = (head, variables, target, conditions)
        found = self._texts.get(key)
        if found is None:
            found = self._texts[key] = self.matrices.read(*key)
        return found

    def require_once(self, show: Callable[[Any, Any], None], *maps: Any) -> None:
        """Show a fact of two maps from points, unless it was shown of the same from other points.

        The components of a reduction pose the same questions, of tuples of other names.
        """
        dim = self.isl.dim_type.in_
        first, second = [found.set_tuple_name(dim, "P") for found in maps]
        shown = self._shown.setdefault(show.__name__, [])
        if not any(first.plain_is_equal(a) and second.plain_is_equal(b) for a, b in shown):
            show(first, second)
            shown.append((first, second))

    def require_empty(self, found: Any, what: str) -> None:
        """Raise NotProved where a set of counterexamples has a point."""
        if found.is_empty():
            return
        found = found.intersect_params(self._known())
        if not found.is_empty():
            raise NotProved(what, self._sample(found))

    def _known(self) -> Any:
        """Return what is known of sizes by now: a relation may be older than some of it."""
        head = ", ".join([*sorted(self.algebra.symbols), *self.algebra.products.values()])
        return self._read(head, "]", None, (self.algebra.context(),)).params()

    def _sample(self, found: Any) -> dict[str, int]:
        """Return sizes at which a set is not empty; none where they are not small."""
        isl = self.isl
        params = found.params()
        point = params.sample_point()
        result: dict[str, int] = {}
        for place in range(params.dim(isl.dim_type.param)):
            name = params.get_dim_name(isl.dim_type.param, place)
            value = point.get_coordinate_val(isl.dim_type.param, place)
            if name in self.algebra.symbols and name.startswith("p_"):
                size = name.removeprefix("p_")
                result[size] = int(value.to_python()) * self.algebra.multiples.get(size, 1)
        for size, value in self.algebra.same.items():
            if all(node.name in result for node in walk(value) if isinstance(node, Symbol)):
                result[size] = size_value(value, result)
        return result
