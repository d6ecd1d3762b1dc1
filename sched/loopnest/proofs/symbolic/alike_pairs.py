"""Which pairs of accesses pose the same question about races, and which pose none.

Statements that a loop could have written repeat each other but for a constant: the slots of values
that threads exchange together. Two pairs of accesses are alike where the first ones stand in one
body with no synchronisation between them, the second ones do as well, and where indices differ,
both of a pair have one constant: whether the rest meets is one question. Where their constants
differ they are two elements, whatever the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement

from loopnest.proofs.program_model import Access, Model
from loopnest.proofs.symbolic.barrier_order import stretches
from loopnest.scalar.expr import Const, Expr


class AlikePairs:
    """Tells pairs of accesses of a program apart."""

    def __init__(self, model: Model) -> None:
        self._stretch = stretches(model)

    def different(self, accesses: Sequence[Access]) -> Iterator[tuple[Access, Access]]:
        """Yield the pairs, one of which writes, that may use one element: one of those alike."""
        seen: set[object] = set()
        for a, b in combinations_with_replacement(accesses, 2):
            places = self._places(a, b)
            if not (a.writes or b.writes) or places is None or (a.atomic and b.atomic):
                continue
            key = (self._where(a), self._where(b), places)
            if key not in seen:
                seen.add(key)
                yield a, b

    def _where(self, access: Access) -> object:
        """Return where an access stands: its buffer, its body, and between which barriers."""
        site = access.site
        around = (site.loops, site.guards, site.time[:-1], site.within)
        return (
            access.buffer,
            access.writes,
            access.atomic,
            access.guards,
            access.flat,
            around,
            self._stretch[site],
        )

    def _places(self, a: Access, b: Access) -> tuple[tuple[Expr, Expr] | None, ...] | None:
        """Return where indices differ from a constant that both have; None where they never meet.

        Of two buffers in one space any elements meet, wherever they lie.
        """
        if a.buffer is not b.buffer:
            return ()
        if a.flat or b.flat:
            return tuple([(place, place) for place in (*a.index, *b.index)])
        found: list[tuple[Expr, Expr] | None] = []
        for i, j in zip(a.index, b.index, strict=True):
            if isinstance(i, Const) and isinstance(j, Const):
                if i.value != j.value:
                    return None
                found.append(None)
            else:
                found.append((i, j))
        return tuple(found)
