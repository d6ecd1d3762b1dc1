"""Pass 3, allocation: which buffer holds each tensor, its shape, and where it is made.

Requires the nest. Ensures a `Storage` for every live tensor: GLOBAL ones have their full logical
shape; a LOCAL one has the leaf axes right of its compute-at position that are neither bound to
threads, nor reductions, nor of extent 1 (rule 40), and is made in the body where its own loops
begin. A 16-bit reduction accumulates in a float32 buffer of its own, and a GLOBAL one beside a
LOCAL one in a LOCAL buffer. It comes before indexing, because an access is an index into these
shapes.

Before: ``for i0: { define T1; define T2 }``; after::

    for i0: { T1: float32[1] local; define T1; define T2 }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loopnest.buffers import Buffer
from loopnest.dtypes import DType
from loopnest.enums import Memory
from loopnest.errors import NotSupported
from loopnest.expr import ONE, Expr
from loopnest.lower.groups import Plan
from loopnest.lower.nest import accumulates_apart
from loopnest.schedule.loop_groups import LoopGroup
from loopnest.simplify import Simplifier
from loopnest.tensor import TensorView


@dataclass(frozen=True, eq=False, slots=True)
class Storage:
    """Where a tensor lives.

    `places` are the leaf positions that index a LOCAL buffer, in its order; a GLOBAL buffer is
    indexed by the logical axes. `home` is the loop in whose body a LOCAL buffer is made (None: the
    kernel's). `accumulator` is the buffer that a reduction folds in: its own, or a float32 one with
    the leaf positions `partial_places`.
    """

    buffer: Buffer
    places: tuple[int, ...]
    home: LoopGroup | None
    accumulator: Buffer
    partial_places: tuple[int, ...]


def contiguous(shape: Sequence[Expr], algebra: Simplifier) -> tuple[Expr, ...]:
    """Return row-major strides in elements."""
    strides: list[Expr] = []
    step: Expr = ONE
    for extent in reversed(shape):
        strides.append(step)
        step = algebra.mul(step, extent)
    return tuple(reversed(strides))


def allocate(plan: Plan) -> dict[TensorView, Storage]:
    """Return the storage of every live tensor and of every input.

    Raises:
        NotSupported: a tensor in shared memory.
    """
    result: dict[TensorView, Storage] = {}
    for tensor in plan.fusion.inputs:
        result[tensor] = _global(plan, tensor, "input", tensor.name)
    names = {tensor.name for tensor in plan.fusion.tensors}
    for unit in plan.forest.units:
        for tensor in unit.siblings:
            storage = _storage(plan, tensor, result)
            if accumulates_apart(tensor):
                storage = _with_accumulator(plan, tensor, storage, names)
            result[tensor] = storage
    return result


def _storage(plan: Plan, tensor: TensorView, done: dict[TensorView, Storage]) -> Storage:
    target = plan.fusion.inplace.get(tensor)
    if target is not None and tensor.is_output:
        return done[target]
    if tensor.memory is Memory.GLOBAL:
        return _global(plan, tensor, "output" if tensor.is_output else "workspace", tensor.name)
    if tensor.memory is Memory.SHARED:
        raise NotSupported(
            f"{tensor.name} in shared memory",
            "values that cross threads do not exist yet",
            "use ln.LOCAL",
        )
    return _local(plan, tensor)


def _global(plan: Plan, tensor: TensorView, kind: str, name: str) -> Storage:
    shape = tuple([plan.algebra.simplify(size) for size in tensor.sizes]) or (ONE,)
    buffer = _buffer(plan, name, tensor, Memory.GLOBAL, tensor.dtype, shape, kind)
    return Storage(buffer, (), None, buffer, ())


def _buffer(
    plan: Plan,
    name: str,
    tensor: TensorView,
    memory: Memory,
    dtype: DType,
    shape: tuple[Expr, ...],
    kind: str,
) -> Buffer:
    algebra = plan.algebra
    size = algebra.product(shape)
    return Buffer(name, tensor.name, memory, dtype, shape, contiguous(shape, algebra), size, kind)


def stored_places(plan: Plan, tensor: TensorView, start: int) -> tuple[int, ...]:
    """Return the leaf positions from `start` on that a LOCAL buffer of `tensor` is indexed by."""
    result: list[int] = []
    for place, axis in enumerate(tensor.domain.leaf):
        if place < start or not axis.is_iteration:
            continue
        spec = plan.spec(axis)
        if spec.parallel.is_thread or spec.extent is ONE:
            continue
        result.append(place)
    return tuple(result)


def _local(plan: Plan, tensor: TensorView) -> Storage:
    pos = tensor.compute_at_pos
    places = stored_places(plan, tensor, pos)
    leaf = tensor.domain.leaf
    shape = tuple([plan.spec(leaf[place]).extent for place in places]) or (ONE,)
    buffer = _buffer(plan, tensor.name, tensor, Memory.LOCAL, tensor.dtype, shape, "local")
    home = plan.forest.find(leaf[pos - 1]) if pos else None
    return Storage(buffer, places, home, buffer, places)


def _with_accumulator(plan: Plan, tensor: TensorView, storage: Storage, names: set[str]) -> Storage:
    leaf = tensor.domain.leaf
    first = next(n for n, axis in enumerate(leaf) if axis.is_reduction)
    places = stored_places(plan, tensor, first)
    shape = tuple([plan.spec(leaf[place]).extent for place in places]) or (ONE,)
    name = f"{tensor.name}_acc"
    while name in names:
        name += "_"
    names.add(name)
    partial = _buffer(plan, name, tensor, Memory.LOCAL, tensor.dtype.compute, shape, "accumulator")
    return Storage(storage.buffer, storage.places, storage.home, partial, places)
