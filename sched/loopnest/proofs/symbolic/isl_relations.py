"""Points of statements as isl tuples, relations of them, and what is raised where isl gives up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from loopnest.proofs import affine
from loopnest.proofs.program_model import Site
from loopnest.proofs.quasi_affine import Algebra
from loopnest.scalar.arguments import size_value
from loopnest.scalar.expr import Symbol, walk

PRODUCT = "m"
"""How the name of a variable begins that stands for a product."""


class NotProved(Exception):
    """A fact that isl did not show, of the statement `site`; at `sizes` it may fail."""

    def __init__(self, what: str, sizes: dict[str, int] | None = None) -> None:
        super().__init__(what)
        self.sizes = sizes or {}
        self.site: Site | None = None


@contextmanager
def about(site: Site) -> Iterator[None]:
    """Name the statement whose facts could not be shown; the innermost counts."""
    try:
        yield
    except (NotProved, affine.NotAffine) as why:
        why.site = why.site or site
        raise


class Instances:
    """A statement's points, or a read's, as an isl tuple with constraints.

    Args:
        name: of the tuple.
        variables: its dimensions.
        conditions: what holds of them.
        time: when, a value a dimension.
        ties: those of the conditions that only say what a variable for a product is.
    """

    def __init__(
        self,
        name: str,
        variables: Sequence[str],
        conditions: list[affine.Condition],
        time: list[affine.Value],
        ties: Sequence[affine.Condition] = (),
    ):
        self.name = name
        self.variables = list(variables)
        self.conditions = conditions
        self.time = time
        self.ties = ties

    @property
    def untied(self) -> list[affine.Condition]:
        """The conditions without the ties, where nothing else speaks of products."""
        rest = [c for c in self.conditions if c not in self.ties]
        return (
            rest
            if not any(n.startswith(PRODUCT) for n in affine.names_in(rest))
            else self.conditions
        )

    @property
    def moment(self) -> affine.Tuple:
        return affine.Tuple("T", tuple(self.time))

    def tuple(self, mark: str = "") -> affine.Tuple:
        return affine.Tuple(self.name, tuple([mark + v for v in self.variables]))


NOWHERE = Instances("", (), [], [])
"""One point without indices: for what concerns sizes alone."""


def agree(names: Iterable[str]) -> list[affine.Condition]:
    """Return that two points, of variables that begin with ``a_`` and ``b_``, agree in all."""
    return [affine.equal(f"a_{v}", f"b_{v}") for v in names]


def differ(names: Iterable[str]) -> affine.Condition:
    """Return that they differ in one."""
    return affine.any_of([affine.unequal(f"a_{v}", f"b_{v}") for v in names])


# Sets and maps of isl, each made once; and counterexamples found in them.


class IslRelations:
    """One context of isl, and the relations that were made in it.

    Args:
        algebra: the sizes, which are parameters of every relation.
        most: how many of isl's operations may be done.
    """

    def __init__(self, algebra: Algebra, most: int) -> None:
        import islpy

        self.isl = islpy
        self.ctx = islpy.Context()
        self.ctx.set_max_operations(most)
        self.algebra, self.linear = algebra, algebra.linear
        self.relations = affine.Relations(islpy, self.ctx)
        self._made: dict[object, Any] = {}
        self._relations: dict[object, Any] = {}
        self._shown: dict[str, list[tuple[Any, Any]]] = {}

    def relation(
        self,
        domain: affine.Tuple,
        target: affine.Tuple | None,
        conditions: Iterable[affine.Condition] = (),
    ) -> Any:
        """Return ``{ domain -> target : conditions }``, or a set where there is no target.

        Nothing else is known of it, of sizes neither.
        """
        key = (self.algebra.parameters(), domain, target, tuple(conditions))
        found = self._relations.get(key)  # what isl finds out about a set stays with it
        if found is None:
            found = self._relations[key] = self._named(*key)
        return found

    def _named(
        self,
        parameters: tuple[str, ...],
        domain: affine.Tuple,
        target: affine.Tuple | None,
        conditions: tuple[affine.Condition, ...],
    ) -> Any:
        """Return the same from one that is made once for tuples of any names."""
        key = (parameters, domain.values, target and target.values, conditions)
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self.relations.make(*key)
        if target is None:
            return found.set_tuple_name(domain.name) if domain.name else found
        if domain.name:
            found = found.set_tuple_name(self.isl.dim_type.in_, domain.name)
        return found.set_tuple_name(self.isl.dim_type.out, target.name) if target.name else found

    def between(
        self, first: Instances, second: Instances, conditions: Iterable[affine.Condition] = ()
    ) -> Any:
        """Return the pairs of points, of ``a_`` and of ``b_``, for which conditions hold."""
        return self.relation(first.tuple("a_"), second.tuple("b_"), conditions)

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
        return self.relation(NOWHERE.tuple(), None, [self.algebra.context()]).params()

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
                counted = int(value.to_python()) + self.algebra.least.get(size, 0)
                result[size] = counted * self.algebra.multiples.get(size, 1)
        for size, value in self.algebra.same.items():
            if all(node.name in result for node in walk(value) if isinstance(node, Symbol)):
                result[size] = size_value(value, result)
        return result
