"""Changes of buffers, one at a time: size, strides, swizzle, element type, shared space."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from loopnest.kir import (
    Allocate,
    Program,
    Stmt,
    Store,
    map_body,
)
from loopnest.kir import walk as statements
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import (
    Buffer,
    Const,
    Expr,
    Load,
    Op,
    integer,
    rewrite,
)
from mutation.interfaces import retyped
from mutation.mutant import Mutant
from mutation.rewriting import (
    packed,
    replaced,
    with_buffer,
)

# Buffers


def of_buffer(program: Program, buffer: Buffer, node: Stmt | None) -> Iterator[Mutant]:
    for axis, extent in enumerate(buffer.shape):
        small = Op("sub", (extent, integer(1)), dtypes.index)
        shape = (*buffer.shape[:axis], small, *buffer.shape[axis + 1 :])
        strides, size = packed(shape)
        new = replace(buffer, shape=shape, strides=strides, size=size)
        text = f"{buffer.name} axis {axis}"
        yield Mutant("buffer", text, with_buffer(program, buffer, new), node)
    for axis, stride in enumerate(buffer.strides):
        if isinstance(stride, Const) and stride.value == 1:
            continue
        for step in (-1, 1):
            other = Op("add", (stride, integer(step)), dtypes.index)
            strides = (*buffer.strides[:axis], other, *buffer.strides[axis + 1 :])
            new = replace(buffer, strides=strides)
            text = f"{buffer.name} stride of axis {axis} {step:+}"
            yield Mutant("stride", text, with_buffer(program, buffer, new), node)


def _of_swizzles(program: Program, buffer: Buffer, node: Stmt) -> Iterator[Mutant]:
    """Yield swizzles that move two elements to one place, and a store that goes past them."""
    for number, (a, b) in enumerate(buffer.swizzles):
        for pair in ((b, b), (a, a)):
            swizzles = (*buffer.swizzles[:number], pair, *buffer.swizzles[number + 1 :])
            new = replace(buffer, swizzles=swizzles)
            text = f"{buffer.name} xor{pair} for xor{(a, b)}"
            yield Mutant("swizzle", text, with_buffer(program, buffer, new), node)
    for store, _ in statements(program.body) if buffer.swizzles else ():
        if isinstance(store, Store) and store.storage is buffer and not store.flat:
            terms = [
                Op("mul", pair, dtypes.index)
                for pair in zip(store.index, buffer.strides, strict=True)
            ]
            offset: Expr = terms[0]
            for term in terms[1:]:
                offset = Op("add", (offset, term), dtypes.index)
            new_store = replace(store, index=(offset,), flat=True)
            text = f"{buffer.name} stored past its swizzle"
            yield Mutant("swizzle", text, replaced(program, store, new_store), store)


def _of_stages(program: Program, buffer: Buffer, node: Stmt) -> Iterator[Mutant]:
    """Yield a buffer of a stage less, in which the stages follow each other all the same."""
    fewer = integer(buffer.stages - 1)

    def turned(value: Expr) -> Expr | None:
        is_turn = isinstance(value, Op) and value.op == "mod" and value.args[1] is stages
        return Op("mod", (value.args[0], fewer), dtypes.index) if is_turn else None

    def rule(value: Expr) -> Expr | None:
        if isinstance(value, Load) and value.buffer is buffer:
            return Load(buffer, tuple([rewrite(i, turned) for i in value.args]), value.flat)
        return None

    def of_node(other: Stmt) -> Stmt:
        if not isinstance(other, Store):
            return other
        index = other.index
        if other.storage is buffer:
            index = tuple([rewrite(i, turned) for i in index])
        return replace(other, index=index, value=rewrite(other.value, rule))

    stages = integer(buffer.stages)
    changed = program.with_body(map_body(program.body, of_node))
    shape = (fewer, *buffer.shape[1:])
    size = Op("mul", (fewer, buffer.strides[0]), dtypes.index)
    new = replace(buffer, shape=shape, size=size, stages=buffer.stages - 1)
    text = f"{buffer.name} a stage less"
    yield Mutant("flight", text, with_buffer(changed, buffer, new), node)


def of_allocation(program: Program, node: Allocate) -> Iterator[Mutant]:
    yield from of_buffer(program, node.storage, node)
    if node.storage.stages > 1:
        yield from _of_stages(program, node.storage, node)
    yield from _of_swizzles(program, node.storage, node)
    for dtype in _TYPES.get(node.storage.dtype.name, ()):
        text = f"{node.storage.name} of {dtype} instead of {node.storage.dtype}"
        yield Mutant("type", text, retyped(program, node.storage, dtype), node)


_TYPES: Mapping[str, tuple[DType, ...]] = {
    "float64": (dtypes.float32,),
    "float32": (dtypes.float16, dtypes.float64),
    "float16": (dtypes.float32, dtypes.bfloat16),
    "bfloat16": (dtypes.float32, dtypes.float16),
    "float8_e4m3fn": (dtypes.float16, dtypes.float8_e5m2),
    "float8_e5m2": (dtypes.float16, dtypes.float8_e4m3fn),
    "int64": (dtypes.int32,),
    "int32": (dtypes.int64, dtypes.uint32),
    "uint32": (dtypes.int32,),
    "int16": (dtypes.int8, dtypes.uint16),
    "uint16": (dtypes.int16,),
    "int8": (dtypes.uint8,),
    "uint8": (dtypes.int8,),
}
"""Other types that the elements of a buffer may have."""


def aliased(program: Program, nodes: list[Stmt]) -> Iterator[Mutant]:
    shared = [n for n in nodes if isinstance(n, Allocate) and n.storage.memory is Memory.SHARED]
    for number, a in enumerate(shared):
        for b in shared[number + 1 :]:
            root = a.storage.alias_of or a.storage.name
            if root in (b.storage.name, b.storage.alias_of):
                continue
            changed = with_buffer(program, b.storage, replace(b.storage, alias_of=root))
            yield Mutant("alias", f"{b.storage.name} in the space of {root}", changed, b)
