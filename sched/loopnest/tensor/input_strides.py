"""The strides that an input array is declared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from loopnest.base.errors import DefinitionError
from loopnest.scalar.expr import ONE, Expr

if TYPE_CHECKING:
    from loopnest.tensor.fusion import Fusion


def declared_strides(
    fusion: Fusion, call: str, strides: object, sizes: Sequence[Expr]
) -> tuple[Expr, ...] | None:
    """Return the stride of each axis; None where all are those of a C-contiguous array.

    Args:
        fusion: whose size symbols they may name.
        call: the call, for errors.
        strides: an int >= 0, a size symbol, or None (contiguous with the axes behind) an axis.
        sizes: the extents.

    Raises:
        DefinitionError: they are not one an axis, or one is no stride.
    """
    given = list(strides) if isinstance(strides, (tuple, list)) else []
    if not isinstance(strides, (tuple, list)) or len(given) != len(sizes):
        found = f"the strides {strides!r} are not one for each of {len(sizes)} axes"
        raise DefinitionError(call, found, "use an int >= 0, a size symbol or None an axis")
    result: list[Expr] = []
    behind: Expr = ONE
    for size, stride in zip(reversed(sizes), reversed(given), strict=True):
        result.insert(0, behind if stride is None else fusion.size(call, stride))
        behind = fusion.algebra.mul(result[0], size)
    return None if all(stride is None for stride in given) else tuple(result)
