"""The points of statements as isl tuples, and what is raised where isl shows nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from loopnest.proofs.program_model import Site
from loopnest.proofs.quasi_affine import NotAffine

_PRODUCT = re.compile(r"\bm\d+_")
"""The name of a variable that stands for a product."""


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
    except (NotProved, NotAffine) as why:
        why.site = why.site or site
        raise


class Instances:
    """A statement's points, or a read's, as an isl tuple with constraints.

    Args:
        name: of the tuple.
        variables: its dimensions.
        conditions: what holds of them.
        time: when, a text a dimension.
        ties: those of the conditions that only say what a variable for a product is.
    """

    def __init__(
        self,
        name: str,
        variables: Sequence[str],
        conditions: list[str],
        time: list[str],
        ties: Sequence[str] = (),
    ):
        self.name = name
        self.variables = list(variables)
        self.conditions = conditions
        self.time = time
        self.ties = ties

    @property
    def untied(self) -> list[str]:
        """The conditions without the ties, where nothing else speaks of products."""
        rest = [c for c in self.conditions if c not in self.ties]
        return rest if not any(_PRODUCT.search(c) for c in rest) else self.conditions

    @property
    def tuple(self) -> str:
        return f"{self.name}[{', '.join(self.variables)}]"

    def renamed(self, mark: str) -> str:
        return f"{self.name}[{', '.join([mark + v for v in self.variables])}]"


NOWHERE = Instances("", (), [], [])
"""One point without indices: for what concerns sizes alone."""
