"""Divisors that all sums of indices along one axis of a buffer have in common.

An axis of M * N elements may be stored by a merged loop, whose index is divided by N elsewhere, and
be read at ``i * N + j``, or by a loop that nobody divides. Elements are named by the same digits
(`symbolic/parted_axes`) where each of these sums is divided by N, or has a quotient by it already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loopnest.kir.buffers import Buffer
from loopnest.proofs.quasi_affine import NotAffine, Poly, Product

if TYPE_CHECKING:
    from loopnest.proofs.isl_spaces import Spaces


def share_divisors(spaces: Spaces, wanted: dict[tuple[str, ...], dict[Product, None]]) -> None:
    """Add divisors to the sums of indices that are to be divided.

    Args:
        spaces: the loops, whose indices no digits stand for yet.
        wanted: the divisors of each sum, by its indices.
    """
    for found in _along(spaces) if any(wanted.values()) else ():
        divisors = {d: None for members in found for d in wanted.get(members, ())}
        for members, whole in found.items() if divisors else ():
            if any(spaces.algebra.exactly(whole, dict([d])) is None for d in divisors):
                wanted.setdefault(members, {}).update(divisors)
            elif not wanted.get(members):  # its indices are the digits
                wanted.pop(members, None)


def left_whole(
    spaces: Spaces, wanted: dict[tuple[str, ...], dict[Product, None]]
) -> list[tuple[str, ...]]:
    """Return the divided sums that no digits can stand for.

    Their indices are used by themselves too, or they go along an axis with a sum of which that is
    true: all indices of an axis are written in the same way. Quotients of such sums need variables
    of their own (`bounded_quotients`).
    """
    divided = [members for members, divisors in wanted.items() if divisors]
    result = {members for members in divided if spaces.products.used_apart(members)}
    for found in _along(spaces) if divided else ():
        if any(spaces.products.used_apart(members) for members in found):
            result.update(members for members in found if wanted.get(members))
    return [members for members in divided if members in result]


def _along(spaces: Spaces) -> list[dict[tuple[str, ...], Poly]]:
    """Return the sums of indices along each axis of each buffer, by their indices."""
    along: dict[tuple[Buffer, int], dict[tuple[str, ...], Poly]] = {}
    for access in spaces.model.accesses:
        for axis, node in enumerate(() if access.flat else access.index):
            try:
                whole = spaces.algebra.poly(node, spaces.env)
                members = spaces.radix(whole)
            except NotAffine:
                continue
            if members:
                along.setdefault((access.buffer, axis), {})[members] = whole
    return list(along.values())
