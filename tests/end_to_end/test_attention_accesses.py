"""Attention moves what it reads and writes in 16 bytes, in every element type."""

import pytest

import loopnest as ln
from kernels.attention import attention, attention_causal
from loopnest.kir import Loop, Store, expressions, walk
from loopnest.kir.vector_access import wide_accesses
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import loads


@pytest.mark.parametrize("dtype", [ln.float16, ln.bfloat16, ln.float32], ids=str)
@pytest.mark.parametrize("kernel", [attention, attention_causal], ids=["plain", "causal"])
def test_global_memory_and_tiles_are_moved_in_16_bytes(kernel, dtype):
    program = kernel.lower("gpu", dtype=dtype).program
    wide = wide_accesses(program)
    moved = {a.buffer.name: a.piece_bytes for a in wide if a.buffer.memory is Memory.GLOBAL}
    assert moved == dict.fromkeys("qkvy", 16)
    single = [n for n, _ in walk(program.body) if isinstance(n, Store)]
    inputs = {x.buffer for n in single for e in expressions(n) for x in loads(e)}
    outside = {b.name for b in inputs | {n.storage for n in single} if b.memory is Memory.GLOBAL}
    assert outside == set("qkvy")
    tiles = {a.buffer.name for a in wide if a.is_store and a.buffer.memory is Memory.SHARED}
    assert {"keys", "values"} <= tiles
    for access in wide:
        if access.buffer.name in ("keys", "values"):
            assert access.piece_bytes == 16
            assert access.buffer.dtype is ln.float32
            assert isinstance(access.loop, Loop)
