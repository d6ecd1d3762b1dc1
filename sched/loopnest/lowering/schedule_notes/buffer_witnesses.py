"""Witnesses of what was asked of a buffer: memory, layout, and the stages of a circular one."""

from __future__ import annotations

from loopnest.kir import If, Stmt, Store, expressions, walk
from loopnest.kir.buffers import Buffer
from loopnest.kir.instruction_table import gives_lanes
from loopnest.lowering.loops.loop_plan import is_trivial
from loopnest.lowering.schedule_notes.lowered_schedule import (
    Check,
    Finding,
    Lowering,
    note_of,
    tensor_of,
)
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import Const, Load, loads
from loopnest.tensor.domain import IterDomain
from loopnest.tensor.intents import Intent
from loopnest.tensor.layout_transforms import paddings_of, stored_axes
from loopnest.tensor.tensor_view import TensorView


def _memory(lowering: Lowering, intent: Intent) -> Finding:
    assert intent.tensor is not None
    return f"its buffer is {lowering.storage[intent.tensor].buffer.memory.value}"


def _allocation(lowering: Lowering, intent: Intent) -> Finding:
    axes = buffer_axes(lowering, tensor_of(intent))
    shown = ", ".join([str(axis.size) for axis in axes])
    return f"its buffer is made of axes of its allocation domain: {shown or 'one element'}"


def _order(lowering: Lowering, intent: Intent) -> Finding:
    held, axes = lowering.held[tensor_of(intent)], buffer_axes(lowering, tensor_of(intent))
    stored = stored_axes(held.domain)
    if intent.value is None or len([axis for axis in stored if axis in axes]) > 1:
        return "the strides of its buffer have that order"
    whole = f"{len(held.leaf)} leaf axes"
    if not set(stored) <= set(held.leaf):
        whole = f"{len(stored)} axes of its allocation domain"
    return note_of(
        lowering,
        intent,
        "the order changes nothing",
        f"its buffer holds {len(axes)} of the {whole}, and an order needs two",
        f"leave order= out, or compute {held.name} at a smaller position",
    )


def _pad(lowering: Lowering, intent: Intent) -> Finding:
    held, axes = lowering.held[tensor_of(intent)], buffer_axes(lowering, tensor_of(intent))
    stored = stored_axes(held.domain)
    outside = [axis for axis in paddings_of(held.domain) if axis not in axes]
    if not outside:
        return "its buffer has these gaps" if intent.value else "its buffer has no gaps"
    of, where = held.leaf, "leaf axis {}"
    if not set(outside) <= set(held.leaf):
        of, where = stored, "axis {} of its allocation domain"
    places = ", ".join([str(of.index(axis)) for axis in outside])
    return note_of(
        lowering,
        intent,
        "nothing is padded",
        "its buffer does not hold " + where.format(places),
        f"pad an axis from position {held.position} on that is not bound to blocks",
    )


def buffer_axes(lowering: Lowering, tensor: TensorView) -> tuple[IterDomain, ...]:
    """Return the axes that index the buffer of a tensor."""
    where = lowering.storage[tensor]
    if where.axes is not None:
        return where.axes
    if where.buffer.memory is Memory.GLOBAL:
        return lowering.held[tensor].domain.logical
    return tuple([lowering.held[tensor].leaf[place] for place in where.places])


def _swizzle(lowering: Lowering, intent: Intent) -> Finding:
    pairs = lowering.storage[tensor_of(intent)].buffer.swizzles
    return f"its buffer is swizzled: {pairs}" if pairs else "its buffer is not swizzled"


def _stages(lowering: Lowering, intent: Intent) -> Finding:
    """Look for a load of a later iteration before the use, and its store behind it."""
    tensor = tensor_of(intent)
    buffer = lowering.storage[tensor].buffer
    held = lowering.held[tensor]
    around = [lowering.spec(axis) for axis in held.leaf[: held.position]]
    own = [s for s in around if is_trivial(s) or not s.parallel.is_thread]
    if not own:
        return note_of(
            lowering,
            intent,
            "no iteration is computed ahead",
            "the loops that it shares are all over launch dimensions, which do not iterate",
            f"compute {held.name} inside of a serial loop (compute_at)",
        )
    spec = own[-1]
    if is_trivial(spec):
        return note_of(
            lowering,
            intent,
            "no iteration is computed ahead",
            f"the loop over {spec.axis}, which its stages rotate through, runs once",
            f"compute {held.name} inside of a loop of more iterations (compute_at)",
        )
    if tensor.layout.move:
        return f"copies are in flight in the loop over {spec.axis}"
    for loop in lowering.loops.get(spec.axis, []):
        for body in (loop.body, *[n.body for n, _ in walk(loop.body) if isinstance(n, If)]):
            if _overlaps(body, buffer) or _loads_ahead(body, buffer):
                return f"loads stand before the uses in the loop over {spec.axis}"
    return note_of(
        lowering,
        intent,
        f"each iteration of the loop over {spec.axis} waits for the loads of a later one",
        f"these are stored to {buffer.name} at once, which waits for them",
        f"load into registers first, and store after the work: c = x.cache_after(), "
        f"c.compute_at({held.name}, {held.position}), c inlined no deeper (inline_most)",
    )


def _move(lowering: Lowering, intent: Intent) -> Finding:
    tensor = tensor_of(intent)
    if gives_lanes(str(intent.value)):
        return f"its copies are tiles of {intent.value}"
    if tensor.layout.stages > 1:
        return f"its copies are in flight, begun by {intent.value}"
    return note_of(
        lowering,
        intent,
        "each copy is waited for at once",
        "no circular buffer holds what arrives while something else is computed",
        f"let {lowering.held[tensor].name} run ahead: circular_buffer(2)",
    )


def _overlaps(body: tuple[Stmt, ...], buffer: Buffer) -> bool:
    """Whether registers are loaded, then `buffer` is read, then it is stored from them."""
    stored = [n for n, item in enumerate(body) if buffer in _written(item)]
    read = [n for n, item in enumerate(body) if buffer in _loaded(item)]
    if not stored or not read or read[0] > stored[-1]:
        return False
    sources = _loaded(body[stored[-1]])
    return any(
        held.memory is Memory.LOCAL and held in sources
        for item in body[: read[0]]
        for held in _written(item)
    )


def _loads_ahead(body: tuple[Stmt, ...], buffer: Buffer) -> bool:
    """Whether registers take what is loaded for a later iteration, beside the use of others."""
    stored = [n.value for n, _ in walk(body) if isinstance(n, Store) and n.storage is buffer]
    moved = [value for value in stored if not isinstance(value, Const)]  # the rest are fills
    read = any(buffer in _loaded(item) for item in body)
    local = buffer.memory is Memory.LOCAL
    return local and read and bool(moved) and all(isinstance(value, Load) for value in moved)


def _written(item: Stmt) -> set[Buffer]:
    return {n.storage for n, _ in walk((item,)) if isinstance(n, Store)}


def _loaded(item: Stmt) -> set[Buffer]:
    return {
        load.buffer for node, _ in walk((item,)) for e in expressions(node) for load in loads(e)
    }


BUFFER_CHECKS: dict[str, Check] = {
    "memory": _memory,
    "allocation": _allocation,
    "order": _order,
    "pad": _pad,
    "swizzle": _swizzle,
    "stages": _stages,
    "move": _move,
}
"""The checks that look at the buffer of a tensor."""
