"""Divisors that all sums of indices along one axis of a buffer have in common.

An axis of M * N elements may be stored by a merged loop, whose index is divided by N elsewhere, and
be read at ``i * N + j``, or by a loop that nobody divides. Elements are named by the same digits
(`symbolic/parted_axes`) where each of these sums is divided by N, or has a quotient by it already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loopnest.kir.buffers import Buffer
from loopnest.proofs.quasi_affine import Monomial, NotAffine, Poly

if TYPE_CHECKING:
    from loopnest.proofs.isl_spaces import Spaces


def share_divisors(spaces: Spaces, wanted: dict[tuple[str, ...], dict[Monomial, None]]) -> None:
    """Add divisors to the sums of indices that are to be divided.

    Args:
        spaces: the loops, whose indices no digits stand for yet.
        wanted: the divisors of each sum, by its indices.
    """
    along: dict[tuple[Buffer, int], dict[tuple[str, ...], Poly]] = {}
    for access in spaces.model.accesses if any(wanted.values()) else ():
        for axis, node in enumerate(() if access.flat else access.index):
            try:
                whole = spaces.algebra.poly(node, spaces.env)
                members = spaces.radix(whole)
            except NotAffine:
                continue
            if members:
                along.setdefault((access.buffer, axis), {})[members] = whole
    for found in along.values():
        divisors = {d: None for members in found for d in wanted.get(members, ())}
        for members, whole in found.items() if divisors else ():
            if any(spaces.algebra.exactly(whole, {d: 1}) is None for d in divisors):
                wanted.setdefault(members, {}).update(divisors)
            elif not wanted.get(members):  # its indices are the digits
                wanted.pop(members, None)
