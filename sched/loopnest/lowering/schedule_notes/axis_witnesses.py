"""Witnesses of what was asked of an axis: its parallel type, and whether it is pinned."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from loopnest.kir import If, Loop, expressions, holds_sync, walk
from loopnest.kir.vector_access import is_vector, memory_accesses
from loopnest.lowering.loops.loop_plan import LoopSpec, is_trivial
from loopnest.lowering.schedule_notes.lowered_schedule import (
    UNSWITCHED,
    Check,
    Finding,
    Lowering,
    note_of,
    tensor_of,
)
from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import Const, Expr, LaunchIndex
from loopnest.scalar.expr import walk as walk_expr
from loopnest.tensor.domain import IterDomain
from loopnest.tensor.intents import Intent


def _pinned(lowering: Lowering, intent: Intent) -> Finding:
    if intent.axis in lowering.held[tensor_of(intent)].leaf or intent.value is False:
        return "no producer shares the loop"
    return _replaced(lowering, intent)


def _replaced(lowering: Lowering, intent: Intent) -> Finding:
    """Return what became of an axis that is no leaf axis any more."""
    held = lowering.held[tensor_of(intent)]
    if any(_made_of(axis, intent.axis) for axis in held.leaf):
        return "axes that were made of it have it"
    return note_of(
        lowering,
        intent,
        "the call has no effect",
        f"a later call gave {held.name} other loops, without this axis",
        "repeat it after that call",
    )


def _made_of(axis: IterDomain, other: IterDomain | None) -> bool:
    stack, seen = [axis], set()
    while stack:
        node = stack.pop()
        if node is other:
            return True
        if node.definition is not None and node not in seen:
            seen.add(node)
            stack.extend(node.definition.inputs)
    return False


def _parallel(lowering: Lowering, intent: Intent) -> Finding:
    tensor, kind = tensor_of(intent), intent.value
    assert isinstance(kind, ParallelType)
    leaf = lowering.held[tensor].leaf
    axis = intent.axis
    if kind is ParallelType.serial:
        return "its loop is serial"
    if axis not in leaf:
        same = [a for a in leaf if lowering.spec(a).parallel is kind]
        if not same:
            return _replaced(lowering, intent)
        axis = same[0]
    assert axis is not None
    spec = lowering.spec(axis)
    if is_trivial(spec) and kind is not ParallelType.unswitch:
        return note_of(
            lowering,
            intent,
            f"no loop is {kind.value}",
            f"{spec.axis} has one element",
            "leave the call out, or parallelize an axis of more elements",
        )
    check = _BY_TYPE.get(kind, _thread if kind.is_thread else _looped)
    return check(lowering, intent, spec)


def _looped(lowering: Lowering, intent: Intent, spec: LoopSpec) -> Finding:
    return f"the loop over {spec.axis} is {spec.parallel.value}"


def _thread(lowering: Lowering, intent: Intent, spec: LoopSpec) -> Finding:
    """Look for a statement of the tensor that uses the launch dimension."""
    dimension = spec.parallel
    extent = lowering.program.launch_extent(dimension)
    for store, around in lowering.stores_of(tensor_of(intent)):
        for node in (*around, store):
            bound = isinstance(node, Loop) and node.parallel is dimension
            if bound or any(_names(e, dimension) for e in expressions(node)):
                return f"the launch has {extent} along {dimension.value}, which it uses"
    return note_of(
        lowering,
        intent,
        f"no statement of {lowering.held[tensor_of(intent)].name} depends on {dimension.value}",
        f"it is computed outside of the loop over {spec.axis}",
        "parallelize an axis that it is computed along",
    )


def _names(value: Expr, dimension: ParallelType) -> bool:
    return any(isinstance(e, LaunchIndex) and e.dimension is dimension for e in walk_expr(value))


def _unroll(lowering: Lowering, intent: Intent, spec: LoopSpec) -> Finding:
    if isinstance(spec.extent, Const):
        return f"the loop over {spec.axis} has {spec.extent} steps"
    return note_of(
        lowering,
        intent,
        f"the loop over {spec.axis} is not unrolled",
        f"its extent {spec.extent} is known at run time only",
        "split the axis by a constant, and unroll the inner one",
    )


def _vectorize(lowering: Lowering, intent: Intent, spec: LoopSpec) -> Finding:
    mine = {p for _, around in lowering.stores_of(tensor_of(intent)) for p in around}
    own = [loop for loop in lowering.loops.get(spec.axis, []) if loop in mine]
    for access in (a for loop in own for a in lowering.finder.of_loop(loop)):
        return f"{access.buffer.name} is accessed in pieces of {access.piece_bytes} bytes"
    if not own:
        return note_of(
            lowering,
            intent,
            "nothing is loaded or stored in vectors",
            "no loop over the axis is left",
            "vectorize an axis of 2, 4 or 8 elements",
        )
    if not lowering.program.launch and is_vector(own[0]) and not any(memory_accesses(own[0])):
        return "its lanes are registers, which a CPU computes together"
    why, remedy = lowering.finder.refusal(own[0])
    became = f"nothing is loaded or stored in vectors in the loop over {spec.axis}"
    return note_of(lowering, intent, became, why, remedy)


def _unswitch(lowering: Lowering, intent: Intent, spec: LoopSpec) -> Finding:
    regions = [
        loop for loop in lowering.loops.get(spec.axis, []) if loop.parallel is ParallelType.unswitch
    ]
    chosen = [
        node
        for node, _ in walk(lowering.program.body)
        if isinstance(node, If)
        and node.reason.startswith(UNSWITCHED)
        and any(loop in node.body for loop in regions)
    ]
    if chosen:
        return f"one test decides those inside of the loop over {spec.axis}"
    tested = [loop for loop in regions if any(isinstance(n, If) for n, _ in walk(loop.body))]
    if regions and not tested:
        return f"no test stands inside of the loop over {spec.axis}"
    if any(holds_sync(loop.body) for loop in tested):
        why = "a barrier stands inside of it, which all threads have to reach"
        remedy = "unswitch an inner axis, without barriers"
    else:
        why = "one test of the largest index does not decide them"
        remedy = "unswitch an inner axis, or state by f.assume that tiles divide the sizes"
    became = f"the tests inside of the loop over {spec.axis} are made in each iteration"
    return note_of(lowering, intent, became, why, remedy)


_ByType: TypeAlias = Callable[[Lowering, Intent, LoopSpec], Finding]
_BY_TYPE: dict[ParallelType, _ByType] = {
    ParallelType.unroll: _unroll,
    ParallelType.vectorize: _vectorize,
    ParallelType.unswitch: _unswitch,
}
AXIS_CHECKS: dict[str, Check] = {
    "pinned": _pinned,
    "parallel": _parallel,
}
"""The checks that look at what the axes of a tensor became."""
