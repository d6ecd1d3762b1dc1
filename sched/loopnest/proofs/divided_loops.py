"""By which numbers a program divides the indices of its loops: ``i0 // 32`` and ``i0 % 32``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from loopnest import kir
from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import Const, Expr, Index, LaunchIndex, Op, walk


def dividing_numbers(program: kir.Program) -> dict[Index | ParallelType, frozenset[int]]:
    """Return the numbers that each index is divided by; of threads, by launch dimension.

    ``i0 // 2 % 4`` divides i0 by 2 and by 8.
    """
    bound = {
        node.var: node.parallel
        for node, _ in kir.walk(program.body)
        if isinstance(node, kir.Loop) and node.parallel.is_thread
    }
    found: dict[Index | ParallelType, set[int]] = {}
    seen: set[Expr] = set()
    for node, _ in kir.walk(program.body):
        claimed = node.coordinate if isinstance(node, kir.Store) else ()
        for whole in (*kir.expressions(node), *claimed):
            if whole in seen:
                continue
            seen.add(whole)
            for index, number in _divided(whole):
                key = index.dimension if isinstance(index, LaunchIndex) else bound.get(index, index)
                found.setdefault(key, set()).add(number)
    return {index: frozenset(numbers) for index, numbers in found.items()}


def _divided(whole: Expr) -> Iterator[tuple[Index | LaunchIndex, int]]:
    for part in walk(whole):
        number = 1
        while isinstance(part, Op) and part.op in ("floordiv", "mod"):
            inner, by = part.args
            if not isinstance(by, Const):
                break
            number = number * int(by.value) if part.op == "floordiv" or number == 1 else number
            if isinstance(inner, (Index, LaunchIndex)):
                yield inner, number
            part = inner


def numbers_below(found: Mapping[Index | ParallelType, frozenset[int]]) -> dict[Index, int]:
    """Return the number that each index is divided by; none for one that two numbers divide."""
    return {
        index: min(numbers)
        for index, numbers in found.items()
        if len(numbers) == 1 and isinstance(index, Index)
    }


def is_divided_often(found: Mapping[Index | ParallelType, frozenset[int]]) -> bool:
    """Whether an index is taken apart by several numbers, as those of fragments are."""
    return any(len(numbers) > 1 for numbers in found.values())


def radix_of(extent: int, numbers: frozenset[int]) -> Sequence[int]:
    """Return how many values each digit of an index has, the fastest last.

    One digit where the numbers do not divide each other, or the extent.
    """
    steps = [1, *sorted(n for n in numbers if 1 < n < extent), extent]
    if any(large % small for small, large in pairwise(steps)):
        return [extent]
    return [large // small for small, large in pairwise(steps)][::-1]
