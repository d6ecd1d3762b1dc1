"""What became of each call of a schedule, and why: one `Query` of the nest for each intent.

The check of its kind looks for a witness: of a buffer its memory, layout and stages; of an axis its
parallel type, and whether it is pinned; where the statements of a tensor stand, and whether there
are any. `notes_of` makes the notes of a kernel of those that found none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from loopnest.kir import If, Launch, Loop, Stmt, Store, expressions, holds_sync, walk
from loopnest.kir.instruction_rows import instructions
from loopnest.kir.instruction_table import gives_lanes
from loopnest.kir.lowered import Note
from loopnest.kir.vector_access import is_vector, memory_accesses
from loopnest.lowering.loops.loop_plan import LoopSpec, is_trivial
from loopnest.lowering.loops.needed_components import is_needed
from loopnest.lowering.schedule_notes.lowered_schedule import (
    UNSWITCHED,
    Lowering,
    ScheduledTensor,
)
from loopnest.lowering.schedule_notes.nest_costs import bank_notes, halo_notes, nest_notes
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import Buffer, Const, Expr, LaunchIndex, Load, loads
from loopnest.scalar.expr import walk as walk_expr
from loopnest.tensor.domain import IterDomain
from loopnest.tensor.intents import Intent, LeftBehind
from loopnest.tensor.layout_transforms import paddings_of, stored_axes
from loopnest.tensor.tensor_view import TensorView


class Missed(NamedTuple):
    """What became of a call instead of what it asked for, why, and what would change that.

    It is noted of the call's tensor, unless there is another `subject`.
    """

    became: str
    why: str
    remedy: str
    subject: str = ""


Finding: TypeAlias = "str | Missed"
"""The witness of what was asked, or that there is none."""


@dataclass(frozen=True, slots=True)
class Query:
    """What became of a call, and why: what it meant to achieve, and the nest that was made."""

    lowering: Lowering
    intent: Intent

    @property
    def tensor(self) -> TensorView:
        """The tensor of the call."""
        assert self.intent.tensor is not None
        return self.intent.tensor

    @property
    def held(self) -> ScheduledTensor:
        """What the tensor was when it was lowered."""
        return self.lowering.held[self.tensor]

    @property
    def buffer(self) -> Buffer:
        """The buffer of the tensor."""
        return self.lowering.storage[self.tensor].buffer

    @property
    def stores(self) -> list[tuple[Store, tuple[Stmt, ...]]]:
        """The stores of the tensor, each with the statements around it."""
        return self.lowering.stores.get(self.held.name, [])

    def note(self, missed: Missed) -> Note:
        """Return the note that says what became of the call."""
        origin, subject = self.intent.origin, missed.subject or self.held.name
        return Note(subject, origin.call, missed.became, missed.why, missed.remedy, origin)


def _memory(asked: Query) -> Finding:
    return f"its buffer is {asked.buffer.memory.value}"


def _allocation(asked: Query) -> Finding:
    axes = buffer_axes(asked.lowering, asked.tensor)
    shown = ", ".join([str(axis.size) for axis in axes])
    return f"its buffer is made of axes of its allocation domain: {shown or 'one element'}"


def _order(asked: Query) -> Finding:
    held, axes = asked.held, buffer_axes(asked.lowering, asked.tensor)
    stored = stored_axes(held.domain)
    if asked.intent.value is None or len([axis for axis in stored if axis in axes]) > 1:
        return "the strides of its buffer have that order"
    whole = f"{len(held.leaf)} leaf axes"
    if not set(stored) <= set(held.leaf):
        whole = f"{len(stored)} axes of its allocation domain"
    return Missed(
        "the order changes nothing",
        f"its buffer holds {len(axes)} of the {whole}, and an order needs two",
        f"leave order= out, or compute {held.name} at a smaller position",
    )


def _pad(asked: Query) -> Finding:
    held, axes = asked.held, buffer_axes(asked.lowering, asked.tensor)
    stored = stored_axes(held.domain)
    outside = [axis for axis in paddings_of(held.domain) if axis not in axes]
    if not outside:
        return "its buffer has these gaps" if asked.intent.value else "its buffer has no gaps"
    of, where = held.leaf, "leaf axis {}"
    if not set(outside) <= set(held.leaf):
        of, where = stored, "axis {} of its allocation domain"
    places = ", ".join([str(of.index(axis)) for axis in outside])
    return Missed(
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


def _swizzle(asked: Query) -> Finding:
    pairs = asked.buffer.swizzles
    return f"its buffer is swizzled: {pairs}" if pairs else "its buffer is not swizzled"


def _stages(asked: Query) -> Finding:
    """Look for a load of a later iteration before the use, and its store behind it."""
    buffer, held = asked.buffer, asked.held
    around = [asked.lowering.spec(axis) for axis in held.leaf[: held.position]]
    own = [s for s in around if is_trivial(s) or not s.parallel.is_thread]
    if not own:
        return Missed(
            "no iteration is computed ahead",
            "the loops that it shares are all over launch dimensions, which do not iterate",
            f"compute {held.name} inside of a serial loop (compute_at)",
        )
    spec = own[-1]
    if is_trivial(spec):
        return Missed(
            "no iteration is computed ahead",
            f"the loop over {spec.axis}, which its stages rotate through, runs once",
            f"compute {held.name} inside of a loop of more iterations (compute_at)",
        )
    if asked.tensor.layout.move:
        return f"copies are in flight in the loop over {spec.axis}"
    for loop in asked.lowering.loops.get(spec.axis, []):
        for body in (loop.body, *[n.body for n, _ in walk(loop.body) if isinstance(n, If)]):
            if _overlaps(body, buffer) or _loads_ahead(body, buffer):
                return f"loads stand before the uses in the loop over {spec.axis}"
    return Missed(
        f"each iteration of the loop over {spec.axis} waits for the loads of a later one",
        f"these are stored to {buffer.name} at once, which waits for them",
        f"load into registers first, and store after the work: c = x.cache_after(), "
        f"c.compute_at({held.name}, {held.position}), c inlined no deeper (inline_most)",
    )


def _move(asked: Query) -> Finding:
    if gives_lanes(str(asked.intent.value)):
        return f"its copies are tiles of {asked.intent.value}"
    if asked.tensor.layout.stages > 1:
        return f"its copies are in flight, begun by {asked.intent.value}"
    return Missed(
        "each copy is waited for at once",
        "no circular buffer holds what arrives while something else is computed",
        f"let {asked.held.name} run ahead: circular_buffer(2)",
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


def _pinned(asked: Query) -> Finding:
    if asked.intent.axis in asked.held.leaf or asked.intent.value is False:
        return "no producer shares the loop"
    return _replaced(asked)


def _replaced(asked: Query) -> Finding:
    """Return what became of an axis that is no leaf axis any more."""
    held = asked.held
    if any(_made_of(axis, asked.intent.axis) for axis in held.leaf):
        return "axes that were made of it have it"
    return Missed(
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


def _parallel(asked: Query) -> Finding:
    kind, leaf, axis = asked.intent.value, asked.held.leaf, asked.intent.axis
    assert isinstance(kind, ParallelType)
    if kind is ParallelType.serial:
        return "its loop is serial"
    if axis not in leaf:
        same = [a for a in leaf if asked.lowering.spec(a).parallel is kind]
        if not same:
            return _replaced(asked)
        axis = same[0]
    assert axis is not None
    spec = asked.lowering.spec(axis)
    if is_trivial(spec) and kind is not ParallelType.unswitch:
        return Missed(
            f"no loop is {kind.value}",
            f"{spec.axis} has one element",
            "leave the call out, or parallelize an axis of more elements",
        )
    check = _BY_TYPE.get(kind, _thread if kind.is_thread else _looped)
    return check(asked, spec)


def _looped(asked: Query, spec: LoopSpec) -> Finding:
    return f"the loop over {spec.axis} is {spec.parallel.value}"


def _thread(asked: Query, spec: LoopSpec) -> Finding:
    """Look for a statement of the tensor that uses the launch dimension."""
    dimension = spec.parallel
    extent = asked.lowering.program.launch_extent(dimension)
    for store, around in asked.stores:
        for node in (*around, store):
            bound = isinstance(node, Loop) and node.parallel is dimension
            if bound or any(_names(e, dimension) for e in expressions(node)):
                return f"the launch has {extent} along {dimension.value}, which it uses"
    return Missed(
        f"no statement of {asked.held.name} depends on {dimension.value}",
        f"it is computed outside of the loop over {spec.axis}",
        "parallelize an axis that it is computed along",
    )


def _names(value: Expr, dimension: ParallelType) -> bool:
    return any(isinstance(e, LaunchIndex) and e.dimension is dimension for e in walk_expr(value))


def _unroll(asked: Query, spec: LoopSpec) -> Finding:
    if isinstance(spec.extent, Const):
        return f"the loop over {spec.axis} has {spec.extent} steps"
    return Missed(
        f"the loop over {spec.axis} is not unrolled",
        f"its extent {spec.extent} is known at run time only",
        "split the axis by a constant, and unroll the inner one",
    )


def _vectorize(asked: Query, spec: LoopSpec) -> Finding:
    mine = {p for _, around in asked.stores for p in around}
    own = [loop for loop in asked.lowering.loops.get(spec.axis, []) if loop in mine]
    for access in (a for loop in own for a in asked.lowering.finder.of_loop(loop)):
        return f"{access.buffer.name} is accessed in pieces of {access.piece_bytes} bytes"
    if not own:
        return Missed(
            "nothing is loaded or stored in vectors",
            "no loop over the axis is left",
            "vectorize an axis of 2, 4 or 8 elements",
        )
    if not asked.lowering.program.launch and is_vector(own[0]) and not [*memory_accesses(own[0])]:
        return "its lanes are registers, which a CPU computes together"
    why, remedy = asked.lowering.finder.refusal(own[0])
    became = f"nothing is loaded or stored in vectors in the loop over {spec.axis}"
    return Missed(became, why, remedy)


def _unswitch(asked: Query, spec: LoopSpec) -> Finding:
    regions = [
        loop
        for loop in asked.lowering.loops.get(spec.axis, [])
        if loop.parallel is ParallelType.unswitch
    ]
    chosen = [
        node
        for node, _ in walk(asked.lowering.program.body)
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
    return Missed(became, why, remedy)


_ByType: TypeAlias = Callable[[Query, LoopSpec], Finding]
_BY_TYPE: dict[ParallelType, _ByType] = {
    ParallelType.unroll: _unroll,
    ParallelType.vectorize: _vectorize,
    ParallelType.unswitch: _unswitch,
}


def _loops(asked: Query) -> Finding:
    """Look for the statements inside of the leaf axes' loops: split, merge, reorder, propagate."""
    return _inside(asked, len(asked.held.leaf))


def _place(asked: Query) -> Finding:
    """Look for the statements inside of the shared loops: compute_at, inline_at, inline_most."""
    return _inside(asked, asked.held.position)


def _inside(asked: Query, count: int) -> Finding:
    wanted = {
        spec.axis
        for spec in map(asked.lowering.spec, asked.held.leaf[:count])
        if not is_trivial(spec) and not spec.parallel.is_thread
    }
    around: set[str] = set()
    for _, parents in asked.stores:
        around |= {p.axis for p in parents if isinstance(p, Loop)}
    if wanted <= around:
        return "its statements stand inside of " + (", ".join(sorted(wanted)) or "no loop")
    missing = ", ".join(sorted(wanted - around))
    return Missed(
        f"its statements stand outside of the loops over {missing}",
        "nothing in these loops computes it",
        "place it by compute_at",
    )


def _left(asked: Query) -> Finding:
    """Say why a tensor that was to share all loops keeps some: inline_most with replay."""
    left, held = asked.intent.value, asked.held
    assert isinstance(left, LeftBehind)
    if held.position != left.pos:
        return "a later call placed it"
    if asked.buffer.memory is not Memory.LOCAL:
        return "a later call gave it memory for all that it holds"
    count = sum(not axis.is_reduction for axis in held.leaf)
    return Missed(
        f"it shares {left.pos or 'none'} of its {count} loops with its consumers, and holds what "
        "the others compute",
        left.why,
        left.remedy,
    )


def _tensor(asked: Query) -> Finding:
    """Look for stores of a new tensor: a cache, a factored reduction."""
    if asked.stores:
        return "it is stored"
    return Missed(
        "the call has no effect",
        "no statement computes the new tensor",
        "leave it out",
    )


def _launch(asked: Query) -> Finding:
    """Look for the launch that the tensor is computed in: new_launch."""
    launches = [node for node in asked.lowering.program.body if isinstance(node, Launch)]
    found = [parents[0] for _, parents in asked.stores if parents]
    number = next((n for n, launch in enumerate(launches) if launch in found), 0)
    if number:
        return f"it is computed in launch {number} of 0 to {len(launches) - 1}"
    return Missed(
        "no launch comes before it",
        "its loops read nothing but inputs, and what they compute themselves",
        "set memory = ln.GLOBAL of what it reads, in loops of its own, or leave the call out",
    )


def _instruction(asked: Query) -> Finding:
    """Look at what the lane maps of the instruction of a tile rest on: instruct."""
    row = instructions[asked.tensor.instruction]
    if row.witness:
        return f"{row.name} executes its tiles, whose lane maps rest on {row.witness}"
    return Missed(
        f"on a device the results rest on the lane maps of {row.name}",
        "its row names no witness of them",
        "hold them against a published table or a device, and name it: witness=",
    )


def notes_of(lowering: Lowering) -> tuple[Note, ...]:
    """Return the notes, those of calls first, in their order; one for each loop."""
    found: dict[object, Note] = {}
    for intent, note in findings(lowering):
        if isinstance(note, Note):
            tensor = None if intent.kind == "parallel" else note.subject
            key = (tensor, note.became, note.why, note.remedy)
            found.setdefault(key, note)
    costs = [*nest_notes(lowering), *halo_notes(lowering), *bank_notes(lowering)]
    return tuple(dict.fromkeys([*found.values(), *costs]))


def findings(lowering: Lowering) -> Iterator[tuple[Intent, str | Note]]:
    """Yield each intent with its witness or its note."""
    last = {_key(intent): intent for intent in lowering.intents}
    for intent in lowering.intents:
        later = last[_key(intent)] is not intent
        asked = Query(lowering, intent)
        found = "a later call set it again" if later else _found(asked)
        yield intent, asked.note(found) if isinstance(found, Missed) else found


def _found(asked: Query) -> Finding:
    tensor = asked.intent.tensor
    if tensor is not None and tensor not in asked.lowering.storage:
        return _dead(asked)
    if tensor is not None and not is_needed(asked.lowering.plan, tensor):
        return "its definition is computed, but nobody reads this component of it"
    return CHECKS[asked.intent.kind](asked)


def _key(intent: Intent) -> object:
    if intent.kind in ("unchanged", "assume", "range"):
        return intent
    return intent.kind, intent.tensor, intent.axis


def _dead(asked: Query) -> Finding:
    if asked.tensor not in asked.lowering.held:
        return "the call that made the tensor was undone"
    definition = asked.tensor.definition
    if definition is not None and definition.is_zero:
        return Missed(
            "the call has no effect",
            "what is added to zeros (index_add, scatter_add) starts at 0 by itself, so that these "
            "zeros are never computed",
            "call it on the result of that, or leave it out",
        )
    return Missed(
        "the call has no effect",
        f"no output depends on {asked.held.name}, so that it is never computed",
        "declare an output that does (f.output), or leave the call out",
    )


def _unchanged(asked: Query) -> Finding:
    return "all was so before"


def _assume(asked: Query) -> Finding:
    text = asked.intent.value
    assert isinstance(text, str)
    if text not in asked.lowering.idle:
        return "the simplifier looked it up"
    why = (
        "no index, test or bound of this schedule depends on it"
        if asked.lowering.idle[text]
        else "an assumption before it says as much, or nothing follows from one of this form"
    )
    return Missed("each launch checks it, and nothing is faster", why,
        "leave it out, so that other sizes may be launched", asked.lowering.program.name,
    )  # fmt: skip


def _range(asked: Query) -> Finding:
    """Look for an index or a test that an input of which a range was declared decides."""
    if any(
        load.buffer.name == asked.intent.value for load in _deciding(asked.lowering.program.body)
    ):
        return f"elements of {asked.intent.value} are indices, or compared to them"
    return Missed(
        "each launch checks it, and nothing is faster",
        f"no index and no test of what is computed depends on an element of {asked.intent.value}",
        "leave it out, so that other data may be passed",
        str(asked.intent.value),
    )


def _stored(asked: Query) -> Finding:
    """Say that loops end at a tensor: an automatic schedule goes in stages there."""
    return Missed(
        "it is stored, and the loops of what reads it load it again",
        "no scheduler takes it and what reads it in one loop nest",
        "where that costs much, schedule both by hand: compute_at shares loops",
    )


def _lost(asked: Query) -> Finding:
    """Say that axes with names gave way to the loops of another tensor."""
    names = asked.intent.value
    assert isinstance(names, tuple)
    tensor = asked.held.name
    are = "axis {} of {} is" if len(names) == 1 else "axes {} of {} are"
    return Missed(
        f"the {are.format(' and '.join(names), tensor)} no more",
        "loops of another tensor, which are split otherwise, took the place",
        "name the axes of that tensor, which replay carries, or split both alike",
    )


def _elements(asked: Query) -> Finding:
    """Say that an automatic schedule has no loops for a fold but the plainest."""
    return Missed(
        "each of its elements is folded by itself, in order",
        "no scheduler takes it with what it is computed from, or what one made of it has no kernel",
        "where that costs much, schedule it by hand: rfactor folds side by side",
    )


def _deciding(body: tuple[Stmt, ...]) -> Iterator[Load]:
    """Yield the loads on which an index or a test depends."""
    for node, _ in walk(body):
        if isinstance(node, Store):
            for place in node.index:
                yield from loads(place)
        for value in expressions(node):
            for part in walk_expr(value):
                if isinstance(part, Load):
                    for place in part.args:
                        yield from loads(place)
                elif part.dtype.is_bool:
                    yield from loads(part)


CHECKS: dict[str, Callable[[Query], Finding]] = {
    "unchanged": _unchanged,
    "loops": _loops,
    "place": _place,
    "left": _left,
    "tensor": _tensor,
    "launch": _launch,
    "instruction": _instruction,
    "pinned": _pinned,
    "parallel": _parallel,
    "memory": _memory,
    "allocation": _allocation,
    "order": _order,
    "pad": _pad,
    "swizzle": _swizzle,
    "stages": _stages,
    "move": _move,
    "assume": _assume,
    "range": _range,
    "stored": _stored,
    "elements": _elements,
    "lost": _lost,
}
"""The check of each kind of intent."""
