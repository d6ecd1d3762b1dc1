"""Notes: what was asked of a schedule and cannot be found in the loop nest, for `Kernel.notes`.

Requires the schedule's intents (`Fusion.intents`) and the program after the last pass. For each
intent, a function of its kind (`CHECKS`) looks for a witness in the nest: a wide access, a loop of
that type, statements inside the loops that they shall share. It returns the witness as text, or a
`Note`. Three notes concern no single call: a LOCAL buffer of symbolic size, a buffer that is laid
out for more than its loops compute, and a test in an innermost loop. Nothing here changes the
program; all runs when somebody reads the notes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from loopnest.kir import If, Loop, Program, Stmt, Store, bodies, expressions, holds_sync, walk
from loopnest.kir.buffers import Buffer
from loopnest.kir.lowered import Note
from loopnest.kir.vector_access import VectorFinder, is_vector, memory_accesses
from loopnest.lowering.loops.loop_plan import LoopPlan, LoopSpec, is_trivial
from loopnest.lowering.memory.allocation import TensorStorage
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import Const, Expr, LaunchIndex, Load, Symbol, free_indices, loads
from loopnest.scalar.expr import walk as walk_expr
from loopnest.scalar.facts import Facts
from loopnest.scalar.origin import Origin
from loopnest.schedule.replay import match_leaves
from loopnest.tensor.domain import IterDomain, TensorDomain
from loopnest.tensor.fusion import Intent
from loopnest.tensor.layout_transforms import paddings_of, stored_axes
from loopnest.tensor.tensor_view import TensorView

Finding: TypeAlias = "str | Note"
"""The witness of an intent, or a note."""

_UNSWITCHED = "unswitch: "
_FAR_AHEAD = "an iteration that far ahead exists"


@dataclass(frozen=True, slots=True)
class ScheduledTensor:
    """What a tensor was when it was lowered."""

    name: str
    leaf: tuple[IterDomain, ...]
    position: int
    domain: TensorDomain
    placed: Origin


@dataclass(eq=False)
class Lowering:
    """One lowering, as the checks read it.

    Args:
        plan: the loops.
        storage: the buffer of each live tensor.
        program: the loop nest.
        held: each tensor as it was.
        intents: what was asked until then.
        spread: why LOCAL buffers of symbolic size are that large, by tensor.
        idle: the assumptions that told nobody anything, and whether anybody could have asked.
    """

    plan: LoopPlan
    storage: Mapping[TensorView, TensorStorage]
    program: Program
    held: Mapping[TensorView, ScheduledTensor]
    intents: tuple[Intent, ...]
    spread: Mapping[TensorView, tuple[str, str]]
    idle: Mapping[str, bool]

    @cached_property
    def stores(self) -> dict[str, list[tuple[Store, tuple[Stmt, ...]]]]:
        """The stores of each tensor, by name, and what stands around them."""
        found: dict[str, list[tuple[Store, tuple[Stmt, ...]]]] = {}
        for node, around in walk(self.program.body):
            if isinstance(node, Store):
                found.setdefault(node.tensor, []).append((node, around))
        return found

    @cached_property
    def loops(self) -> dict[str, list[Loop]]:
        """The loops of the program, by the axis that gave them their shape."""
        found: dict[str, list[Loop]] = {}
        for node, _ in walk(self.program.body):
            if isinstance(node, Loop):
                found.setdefault(node.axis, []).append(node)
        return found

    @cached_property
    def finder(self) -> VectorFinder:
        """What finds wide accesses."""
        return VectorFinder(self.program)

    def spec(self, axis: IterDomain) -> LoopSpec:
        """Return the loop of a leaf axis."""
        return self.plan.spec(axis)

    def notes(self) -> tuple[Note, ...]:
        """Return the notes, those of calls first, in their order; one for each loop."""
        found: dict[object, Note] = {}
        for intent, note in findings(self):
            if isinstance(note, Note):
                tensor = None if intent.kind == "parallel" else note.subject
                key = (tensor, note.became, note.why, note.remedy)
                found.setdefault(key, note)
        others = (*_large_locals(self), *_unused_parts(self), *_guards(self))
        return tuple(dict.fromkeys([*found.values(), *others]))

    def stores_of(self, tensor: TensorView) -> list[tuple[Store, tuple[Stmt, ...]]]:
        """Return the stores of `tensor`, and what stands around each."""
        return self.stores.get(self.held[tensor].name, [])


def lowering_of(
    plan: LoopPlan, storage: Mapping[TensorView, TensorStorage], program: Program, facts: Facts
) -> Lowering:
    """Return what the notes of a lowering are made from, when they are first read.

    Only references are taken here, since lowering pays for it: the schedule may go on.
    """
    fusion = plan.fusion
    held = {
        t: ScheduledTensor(t.name, t.domain.leaf, t.compute_at_pos, t.domain, t.placed or t.origin)
        for t in fusion.tensors
    }
    spread = {
        t: _spread(t)
        for t, where in storage.items()
        if t.memory is Memory.LOCAL and not isinstance(where.buffer.size, Const)
    }
    intents = tuple(fusion.intents)
    idle = {text: facts.teaches(text) for text, _ in facts.conditions if not facts.uses(text)}
    return Lowering(plan, storage, program, held, intents, spread, idle)


def findings(lowering: Lowering) -> Iterator[tuple[Intent, Finding]]:
    """Yield each intent with its witness or its note."""
    last = {_key(intent): intent for intent in lowering.intents}
    for intent in lowering.intents:
        if last[_key(intent)] is not intent:
            yield intent, "a later call set it again"
        elif intent.tensor is not None and not _is_computed(lowering, intent.tensor):
            yield intent, _dead(lowering, intent)
        else:
            yield intent, CHECKS[intent.kind](lowering, intent)


def _key(intent: Intent) -> object:
    if intent.kind in ("unchanged", "assume"):
        return intent
    return intent.kind, intent.tensor, intent.axis


def _is_computed(lowering: Lowering, tensor: TensorView) -> bool:
    return tensor in lowering.storage


def _note(
    lowering: Lowering, intent: Intent, became: str, why: str, remedy: str, subject: str = ""
) -> Note:
    if not subject:
        assert intent.tensor is not None
        subject = lowering.held[intent.tensor].name
    return Note(subject, intent.origin.call, became, why, remedy, intent.origin)


def _dead(lowering: Lowering, intent: Intent) -> Finding:
    assert intent.tensor is not None
    if intent.tensor not in lowering.held:
        return "the call that made the tensor was undone"
    return _note(
        lowering,
        intent,
        "it is not computed",
        "no output depends on it",
        "declare an output that does, or leave the call out",
    )


def _unchanged(lowering: Lowering, intent: Intent) -> Finding:
    return "all was so before"


def _loops(lowering: Lowering, intent: Intent) -> Finding:
    """Look for the statements inside of the leaf axes' loops: split, merge, reorder, propagate."""
    assert intent.tensor is not None
    return _inside(lowering, intent, len(lowering.held[intent.tensor].leaf))


def _place(lowering: Lowering, intent: Intent) -> Finding:
    """Look for the statements inside of the shared loops: compute_at, inline_at, inline_most."""
    assert intent.tensor is not None
    return _inside(lowering, intent, lowering.held[intent.tensor].position)


def _inside(lowering: Lowering, intent: Intent, count: int) -> Finding:
    tensor = intent.tensor
    assert tensor is not None
    wanted = {
        spec.axis
        for spec in map(lowering.spec, lowering.held[tensor].leaf[:count])
        if not is_trivial(spec) and not spec.parallel.is_thread
    }
    around: set[str] = set()
    for _, parents in lowering.stores_of(tensor):
        around |= {p.axis for p in parents if isinstance(p, Loop)}
    if wanted <= around:
        return "its statements stand inside of " + (", ".join(sorted(wanted)) or "no loop")
    missing = ", ".join(sorted(wanted - around))
    return _note(
        lowering,
        intent,
        f"its statements stand outside of the loops over {missing}",
        "they are not run there",
        "place the tensor by compute_at",
    )


def _tensor(lowering: Lowering, intent: Intent) -> Finding:
    """Look for stores of a new tensor: a cache, a factored reduction."""
    if lowering.stores_of(_tensor_of(intent)):
        return "it is stored"
    return _note(
        lowering, intent, "it is not stored", "no statement computes it", "leave the call out"
    )


def _memory(lowering: Lowering, intent: Intent) -> Finding:
    assert intent.tensor is not None
    return f"its buffer is {lowering.storage[intent.tensor].buffer.memory.value}"


def _pinned(lowering: Lowering, intent: Intent) -> Finding:
    if intent.axis in lowering.held[_tensor_of(intent)].leaf or intent.value is False:
        return "no producer shares the loop"
    return _replaced(lowering, intent, "pin it again")


def _tensor_of(intent: Intent) -> TensorView:
    assert intent.tensor is not None
    return intent.tensor


def _replaced(lowering: Lowering, intent: Intent, remedy: str) -> Finding:
    """Return what became of an axis that is no leaf axis any more."""
    leaf = lowering.held[_tensor_of(intent)].leaf
    if any(_made_of(axis, intent.axis) for axis in leaf):
        return "axes that were made of it have it"
    return _note(
        lowering,
        intent,
        "its axis is gone",
        "a later call gave the tensor other loops",
        f"{remedy} after that call",
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


# Parallel types


def _parallel(lowering: Lowering, intent: Intent) -> Finding:
    tensor, kind = _tensor_of(intent), intent.value
    assert isinstance(kind, ParallelType)
    leaf = lowering.held[tensor].leaf
    axis = intent.axis
    if kind is ParallelType.serial:
        return "its loop is serial"
    if axis not in leaf:
        same = [a for a in leaf if lowering.spec(a).parallel is kind]
        if not same:
            return _replaced(lowering, intent, "parallelize")
        axis = same[0]
    assert axis is not None
    spec = lowering.spec(axis)
    if is_trivial(spec) and kind is not ParallelType.unswitch:
        return _note(
            lowering,
            intent,
            f"no loop is {kind.value}",
            f"{spec.axis} has extent 1",
            "leave the type out, or give it to an axis of more elements",
        )
    check = _BY_TYPE.get(kind, _thread if kind.is_thread else _looped)
    return check(lowering, intent, spec)


def _looped(lowering: Lowering, intent: Intent, spec: LoopSpec) -> Finding:
    return f"the loop over {spec.axis} is {spec.parallel.value}"


def _thread(lowering: Lowering, intent: Intent, spec: LoopSpec) -> Finding:
    """Look for a statement of the tensor that uses the launch dimension."""
    dimension = spec.parallel
    extent = lowering.program.launch_extent(dimension)
    for store, around in lowering.stores_of(_tensor_of(intent)):
        for node in (*around, store):
            bound = isinstance(node, Loop) and node.parallel is dimension
            if bound or any(_names(e, dimension) for e in expressions(node)):
                return f"the launch has {extent} along {dimension.value}, which it uses"
    return _note(
        lowering,
        intent,
        f"the loop over {spec.axis} does not use {dimension.value}",
        "no statement of it stands in that loop",
        "give the type to an axis that it is computed on",
    )


def _names(value: Expr, dimension: ParallelType) -> bool:
    return any(isinstance(e, LaunchIndex) and e.dimension is dimension for e in walk_expr(value))


def _unroll(lowering: Lowering, intent: Intent, spec: LoopSpec) -> Finding:
    if isinstance(spec.extent, Const):
        return f"the loop over {spec.axis} has {spec.extent} steps"
    return _note(
        lowering,
        intent,
        f"the loop over {spec.axis} stays a loop",
        f"its extent {spec.extent} is known at run time only",
        "split the axis by a constant and unroll the inner one",
    )


def _vectorize(lowering: Lowering, intent: Intent, spec: LoopSpec) -> Finding:
    mine = {p for _, around in lowering.stores_of(_tensor_of(intent)) for p in around}
    own = [loop for loop in lowering.loops.get(spec.axis, []) if loop in mine]
    for access in (a for loop in own for a in lowering.finder.of_loop(loop)):
        return f"{access.buffer.name} is accessed in pieces of {access.piece_bytes} bytes"
    if not own:
        return _note(
            lowering,
            intent,
            "no access is wide",
            "no loop is left of its axis",
            "vectorize an axis of 2, 4 or 8 elements",
        )
    if not lowering.program.launch and is_vector(own[0]) and not any(memory_accesses(own[0])):
        return "its lanes are registers, which a CPU computes together"
    why, remedy = lowering.finder.refusal(own[0])
    became = f"no access is wide in the loop over {spec.axis}"
    return _note(lowering, intent, became, why, remedy)


def _unswitch(lowering: Lowering, intent: Intent, spec: LoopSpec) -> Finding:
    regions = [
        loop for loop in lowering.loops.get(spec.axis, []) if loop.parallel is ParallelType.unswitch
    ]
    chosen = [
        node
        for node, _ in walk(lowering.program.body)
        if isinstance(node, If)
        and node.reason.startswith(_UNSWITCHED)
        and any(loop in node.body for loop in regions)
    ]
    if chosen:
        return f"one test decides those inside of the loop over {spec.axis}"
    tested = [loop for loop in regions if any(isinstance(n, If) for n, _ in walk(loop.body))]
    if regions and not tested:
        return f"no test stands inside of the loop over {spec.axis}"
    if any(holds_sync(loop.body) for loop in tested):
        why, remedy = "a barrier stands inside of it", "unswitch an inner axis, without barriers"
    else:
        why = "its tests are not decided at the largest index"
        remedy = "unswitch an inner axis, or assume that tiles divide the sizes"
    return _note(lowering, intent, f"the tests stay in the loop over {spec.axis}", why, remedy)


_ByType: TypeAlias = Callable[[Lowering, Intent, LoopSpec], Finding]

_BY_TYPE: dict[ParallelType, _ByType] = {
    ParallelType.unroll: _unroll,
    ParallelType.vectorize: _vectorize,
    ParallelType.unswitch: _unswitch,
}


# Layouts


def _order(lowering: Lowering, intent: Intent) -> Finding:
    held, axes = lowering.held[_tensor_of(intent)], _buffer_axes(lowering, _tensor_of(intent))
    stored = stored_axes(held.domain)
    if intent.value is None or len([axis for axis in stored if axis in axes]) > 1:
        return "the strides of its buffer have that order"
    whole = f"{len(held.leaf)} leaf axes"
    if not set(stored) <= set(held.leaf):
        whole = f"{len(stored)} axes of its allocation domain"
    return _note(
        lowering,
        intent,
        "its buffer has no two axes to order",
        f"it holds {len(axes)} of the {whole}",
        "leave order= out, or compute the tensor further out",
    )


def _allocation(lowering: Lowering, intent: Intent) -> Finding:
    axes = _buffer_axes(lowering, _tensor_of(intent))
    shown = ", ".join([str(axis.size) for axis in axes])
    return f"its buffer is made of axes of its allocation domain: {shown or 'one element'}"


def _pad(lowering: Lowering, intent: Intent) -> Finding:
    held, axes = lowering.held[_tensor_of(intent)], _buffer_axes(lowering, _tensor_of(intent))
    stored = stored_axes(held.domain)
    outside = [axis for axis in paddings_of(held.domain) if axis not in axes]
    if not outside:
        return "its buffer has these gaps"
    which, of = "leaf axis", held.leaf
    if not set(outside) <= set(held.leaf):
        which, of = "of its allocation domain axis", stored
    places = ", ".join([str(of.index(axis)) for axis in outside])
    return _note(
        lowering,
        intent,
        "its buffer has no gap there",
        f"it does not hold {which} {places}",
        "pad an axis right of the compute-at position that is not bound to blocks",
    )


def _buffer_axes(lowering: Lowering, tensor: TensorView) -> tuple[IterDomain, ...]:
    where = lowering.storage[tensor]
    if where.axes is not None:
        return where.axes
    if where.buffer.memory is Memory.GLOBAL:
        return lowering.held[tensor].domain.logical
    return tuple([lowering.held[tensor].leaf[place] for place in where.places])


def _swizzle(lowering: Lowering, intent: Intent) -> Finding:
    return f"its buffer is swizzled: {lowering.storage[_tensor_of(intent)].buffer.swizzles}"


def _stages(lowering: Lowering, intent: Intent) -> Finding:
    """Look for a load of a later iteration before the use, and its store behind it."""
    tensor = _tensor_of(intent)
    buffer = lowering.storage[tensor].buffer
    held = lowering.held[tensor]
    around = [lowering.spec(axis) for axis in held.leaf[: held.position]]
    spec = [s for s in around if is_trivial(s) or not s.parallel.is_thread][-1]
    if is_trivial(spec):
        return _note(
            lowering,
            intent,
            "nothing runs ahead",
            f"the loop over {spec.axis} runs once",
            "compute the tensor inside a loop of more iterations",
        )
    for loop in lowering.loops.get(spec.axis, []):
        for body in (loop.body, *[n.body for n, _ in walk(loop.body) if isinstance(n, If)]):
            if _overlaps(body, buffer) or _loads_ahead(body, buffer):
                return f"loads stand before the uses in the loop over {spec.axis}"
    return _note(
        lowering,
        intent,
        "nothing overlaps",
        f"in the loop over {spec.axis} each load of a later iteration is waited for where it "
        f"stands, by the store to {buffer.name} beside it",
        f"let a LOCAL copy be computed at that loop and no deeper: c = x.cache_after(), "
        f"c.compute_at({held.name}, {held.position}), and keep inline_most from it",
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
    stores = [n for n, _ in walk(body) if isinstance(n, Store) and n.storage is buffer]
    read = any(buffer in _loaded(item) for item in body)
    local = buffer.memory is Memory.LOCAL
    return local and read and bool(stores) and all(isinstance(s.value, Load) for s in stores)


def _written(item: Stmt) -> set[Buffer]:
    return {n.storage for n, _ in walk((item,)) if isinstance(n, Store)}


def _loaded(item: Stmt) -> set[Buffer]:
    return {
        load.buffer for node, _ in walk((item,)) for e in expressions(node) for load in loads(e)
    }


# Assumptions


def _assume(lowering: Lowering, intent: Intent) -> Finding:
    text = intent.value
    assert isinstance(text, str)
    if text not in lowering.idle:
        return "the simplifier looked it up"
    why = (
        "no index, test or bound of this schedule depends on it"
        if lowering.idle[text]
        else "an assumption before it says as much, or no proof reads a comparison of this form"
    )
    return _note(
        lowering, intent, "nothing but the check at each launch came of it", why,
        "leave it out, so that other sizes may be launched", lowering.program.name,
    )  # fmt: skip


CHECKS: dict[str, Callable[[Lowering, Intent], Finding]] = {
    "unchanged": _unchanged,
    "loops": _loops,
    "place": _place,
    "tensor": _tensor,
    "memory": _memory,
    "pinned": _pinned,
    "parallel": _parallel,
    "allocation": _allocation,
    "order": _order,
    "pad": _pad,
    "swizzle": _swizzle,
    "stages": _stages,
    "assume": _assume,
}
"""The check of each kind of intent."""


# What no single call asked for


def _spread(tensor: TensorView) -> tuple[str, str]:
    """Return why a LOCAL buffer is as large as its loops, and what would make it small."""
    live = tensor.fusion.live()
    read = [(twin, c) for twin in tensor.siblings for c in twin.consumers if c in live]
    own = [pair for pair in read if pair[0] is tensor]
    if not read:
        return "nothing reads it", "leave it out, or declare it an output"
    twin, consumer = (own or read)[0]
    pos = tensor.compute_at_pos
    shared = f"it shares {pos or 'none'} of its {tensor.ndim} loops with {consumer.name}"
    remedy = (
        f"ln.propagate({consumer.name}) gives it the loops of {consumer.name}, then "
        f"{tensor.name}.compute_at({consumer.name}, -1) or ln.inline_most() shares them; "
        f"{tensor.name}.memory = ln.GLOBAL holds it whole"
    )
    image, places = match_leaves(twin, consumer).image, []
    for number, axis in enumerate(twin.domain.leaf):
        other = image.get(axis)
        if axis.is_reduction:
            continue
        mine = f"{axis.kind.letter}{number}"
        if other not in consumer.domain.leaf:
            places.append(f"{mine} has no loop")
        elif consumer.domain.leaf.index(other) != number:
            place = consumer.domain.leaf.index(other)
            places.append(f"{mine} is {other.kind.letter}{place}")
    return shared + (f", where its {', its '.join(places)}" if places else ""), remedy


def _large_locals(lowering: Lowering) -> Iterator[Note]:
    """Yield a note for each LOCAL buffer of symbolic size, but for a row of a CPU's cache.

    Without a launch, a tensor that was placed inside a loop, or runs over the cores of a CPU, has
    such a buffer for good.
    """
    for tensor, (why, remedy) in lowering.spread.items():
        buffer, held = lowering.storage[tensor].buffer, lowering.held[tensor]
        kinds = {lowering.spec(axis).parallel for axis in held.leaf}
        meant = held.position > 0 or ParallelType.cpu_parallel in kinds
        if lowering.program.launch or not meant:
            asked = f"{held.name} in local memory"
            became = f"each thread has a buffer of {buffer.size} elements"
            yield Note(held.name, asked, became, why, remedy, held.placed)


def _unused_parts(lowering: Lowering) -> Iterator[Note]:
    """Yield a note for each buffer on the chip that has room for more than is in it at a time.

    So has one whose allocation domain does not split an axis where the loops outside of its home
    begin: all of that axis is allocated.
    """
    algebra = lowering.plan.algebra
    for tensor, where in lowering.storage.items():
        if where.axes is None or where.buffer.memory is Memory.GLOBAL:
            continue
        held = lowering.held[tensor]
        room = algebra.product([algebra.simplify(axis.size) for axis in where.axes])
        used = algebra.product([lowering.spec(held.leaf[place]).extent for place in where.places])
        if not algebra.proves_le(room, used):
            yield Note(
                held.name,
                f"the allocation domain of {held.name}",
                f"its buffer has room for {room} elements",
                f"its loops compute {used} while it lives",
                "split the allocation domain as the loops outside are split, or lay the buffer out "
                "after compute_at",
                held.placed,
            )


def _guards(lowering: Lowering) -> Iterator[Note]:
    """Yield a note for each loop that tests in each iteration, among those nested deepest."""
    depths = list(_depths(lowering.program.body, 0))
    deepest = max([depth for _, depth in depths], default=0)
    for loop, depth in depths:
        if depth < deepest or not _iterates(loop) or "." not in loop.axis:
            continue
        for node in loop.body:
            if not isinstance(node, If) or loop.var not in free_indices(node.condition):
                continue
            if node.reason.endswith(_FAR_AHEAD):
                continue
            yield Note(
                loop.axis,
                f"a loop over {loop.axis}",
                f"{node.condition} is tested in each iteration",
                node.reason or "it is needed",
                f"{_dividing(node.condition)}, or make the axis or one around it unswitch",
                node.origin or loop.origin,
            )
            break


def _dividing(condition: Expr) -> str:
    if any(isinstance(e, Symbol) for e in walk_expr(condition)):
        return "assume that tiles divide the sizes"
    return "split by a factor that divides"


def _iterates(loop: Loop) -> bool:
    return not loop.parallel.is_thread and loop.extent != 1


def _depths(body: tuple[Stmt, ...], depth: int) -> Iterator[tuple[Loop, int]]:
    """Yield each loop with how many loops that iterate it is nested in, itself included.

    What runs where the one test of an unswitch loop failed is left out.
    """
    for node in body:
        if isinstance(node, Loop):
            inner = depth + _iterates(node)
            yield node, inner
            yield from _depths(node.body, inner)
        elif isinstance(node, If) and node.reason.startswith(_UNSWITCHED):
            yield from _depths(node.body, depth)
        else:
            for part in bodies(node):
                yield from _depths(part, depth)
