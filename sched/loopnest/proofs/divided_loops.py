"""By which numbers a program divides the indices of its loops: ``i0 // 32`` and ``i0 % 32``."""

from __future__ import annotations

from loopnest import kir
from loopnest.scalar.expr import Const, Expr, Index, Op, walk


def numbers_below(program: kir.Program) -> dict[Index, int]:
    """Return the number that each index is divided by; none for one that two numbers divide."""
    found: dict[Index, set[int]] = {}
    seen: set[Expr] = set()
    for node, _ in kir.walk(program.body):
        claimed = node.coordinate if isinstance(node, kir.Store) else ()
        for whole in (*kir.expressions(node), *claimed):
            if whole in seen:
                continue
            seen.add(whole)
            for part in walk(whole):
                match part:
                    case Op(op="floordiv" | "mod", args=(Index() as index, Const() as by)):
                        found.setdefault(index, set()).add(int(by.value))
    return {index: min(numbers) for index, numbers in found.items() if len(numbers) == 1}
