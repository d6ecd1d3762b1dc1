"""Sums of products of bytes in CUDA text: four of them, in words, are one instruction.

What a loop over neighbouring bytes in registers or shared memory adds to an int32 goes in steps of
four::

    for (i = 0; i < 16; ++i)           for (i = 0; i < 16; i += 4)
      t = t + (int)a[i] * (int)b[i]  ->   t = ln_dot4(word of a[i], word of b[i], t)

Compilers find the instruction by themselves, but take the words of wide copies apart and put their
bytes together again: of a loop with 64 such instructions 320 did that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from loopnest.kir import Allocate, Loop, Program, Stmt, Store
from loopnest.kir.vector_access import VectorFinder
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import ONE, Buffer, Expr, Load, Op, cast, free_indices, rewrite

LANES = 4
"""Bytes of a word."""

FUNCTIONS: Mapping[DType, str] = {dtypes.int8: "ln_dot4", dtypes.uint8: "ln_udot4"}


def _definition(name: str, byte: str, word: str) -> str:
    return f"""int {name}({word} a, {word} b, int c) {{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 610
  return (int)__dp4a(a, b, ({word})c);
#else
  for (int i = 0; i < 32; i += 8) {{
    c = (int)((unsigned int)c + (unsigned int)((int)({byte})(a >> i) * (int)({byte})(b >> i)));
  }}
  return c;
#endif
}}"""


DOT_PRODUCTS: Mapping[str, tuple[str, str]] = {
    "ln_dot4": ("", _definition("ln_dot4", "signed char", "int")),
    "ln_udot4": ("", _definition("ln_udot4", "unsigned char", "unsigned int")),
}
"""Device functions by name, in the form of `cuda_functions`."""


@dataclass(frozen=True, slots=True)
class DotProduct:
    """A loop that adds products of bytes to one element.

    Args:
        store: the update.
        left, right: the bytes at an iteration; those of the three after it follow them.
    """

    store: Store
    left: Load
    right: Load


def plan_dot_products(program: Program) -> dict[Loop, DotProduct]:
    """Return the loops of `program` that are dot products of bytes in words."""
    loops = [n for n in program.nodes if isinstance(n, Loop) and _may_be(n)]
    if not loops:
        return {}
    finder = VectorFinder(program)
    found = {loop: _dot_product(loop, finder) for loop in loops}
    return {loop: dot for loop, dot in found.items() if dot is not None}


def word_arrays(plans: Collection[DotProduct]) -> frozenset[Buffer]:
    """Return the register arrays that are read in words, which must be aligned to them."""
    sides = [side.buffer for plan in plans for side in (plan.left, plan.right)]
    return frozenset([buffer for buffer in sides if buffer.memory is Memory.LOCAL])


def _may_be(loop: Loop) -> bool:
    ordinary = loop.parallel in (ParallelType.serial, ParallelType.unroll)
    return ordinary and isinstance(loop.extent, int) and loop.extent % LANES == 0


def _dot_product(loop: Loop, finder: VectorFinder) -> DotProduct | None:
    update = _one_update(loop.body)
    if update is None:
        return None
    store, value = update
    if store.storage.dtype is not dtypes.int32 or store.atomic:
        return None
    if any(loop.var in free_indices(place) for place in store.index):
        return None
    if not isinstance(value, Op) or value.op != "add" or store.own not in value.args:
        return None
    (product,) = [part for part in value.args if part is not store.own] or [value]
    sides = _bytes(product)
    if sides is None:
        return None
    assert isinstance(loop.extent, int)
    for side in sides:
        lies_here = side.buffer.memory is not Memory.GLOBAL and side.buffer is not store.storage
        if not lies_here or not finder.piece(side, loop.var, loop.extent):
            return None
    return DotProduct(store, *sides)


def _one_update(body: tuple[Stmt, ...]) -> tuple[Store, Expr] | None:
    """Return the only store of a body that outlives it, and its value in terms of what is outside.

    Before it the body may name values, by stores to registers of its own.
    """
    values: dict[Buffer, Expr | None] = {}

    def known(node: Expr) -> Expr | None:
        return values.get(node.buffer) if isinstance(node, Load) else None

    for place, node in enumerate(body):
        if isinstance(node, Allocate):
            if node.storage.memory is not Memory.LOCAL or node.storage.size is not ONE:
                return None
            values[node.storage] = None
        elif not isinstance(node, Store):
            return None
        elif node.storage not in values:
            last = place == len(body) - 1
            return (node, rewrite(node.value, known)) if last else None
        else:
            values[node.storage] = cast(rewrite(node.value, known), node.storage.dtype)
    return None


def _bytes(product: Expr) -> tuple[Load, Load] | None:
    """Return the two bytes whose product as int32 this is."""
    if not isinstance(product, Op) or product.op != "mul":
        return None
    sides = [_byte(part) for part in product.args]
    if None in sides or len(sides) != 2:
        return None
    left, right = sides
    assert left is not None
    assert right is not None
    return (left, right) if left.dtype is right.dtype else None


def _byte(value: Expr) -> Load | None:
    if not isinstance(value, Op) or value.op != "cast" or value.dtype is not dtypes.int32:
        return None
    (inner,) = value.args
    return inner if isinstance(inner, Load) and inner.dtype in FUNCTIONS else None
