"""What an atomic store does to its element: one operation, or a template of the old value."""

from __future__ import annotations

from loopnest.kir.nodes import Store
from loopnest.scalar.expr import Expr, Op, loads

OPERATIONS = ("add", "max", "min")
"""The operations that machines have atomic instructions for, of some types."""


def operation_of(store: Store) -> tuple[str, Expr] | None:
    """Return (operation, operand) of ``a[i] = a[i] op operand``; None of any other form."""
    value, own = store.value, store.own
    if not isinstance(value, Op) or value.op not in OPERATIONS:
        return None
    if value.dtype is not store.storage.dtype:
        return None
    for mine, other in (value.args, value.args[::-1]):
        if mine is own and all(load.buffer is not store.storage for load in loads(other)):
            return value.op, other
    return None


def is_update(store: Store) -> bool:
    """Whether the value is made of the element itself and of other buffers alone."""
    found = {load for load in loads(store.value) if load.buffer is store.storage}
    inner = any(load.buffer is store.storage for index in store.index for load in loads(index))
    return found == {store.own} and not inner
