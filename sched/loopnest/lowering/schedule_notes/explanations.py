"""Why a kernel came out as it did, of each tensor: its place, its buffer, and the tests around it.

These are notes like others, but of all that there is: also of what came out as it was asked for.
Places and remedies are those of the schedule that was lowered, which may have gone on since.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from loopnest.base.errors import LoopnestError
from loopnest.kir import BOUND, If, Loop, Stmt, Store, walk
from loopnest.kir.lowered import Explained, Lowered, Note
from loopnest.lowering.memory.allocation import TensorStorage
from loopnest.lowering.schedule_notes.findings import buffer_axes, notes_of
from loopnest.lowering.schedule_notes.lowered_schedule import UNSWITCHED, Lowering
from loopnest.lowering.schedule_notes.nest_costs import FAR_AHEAD
from loopnest.lowering.schedule_notes.removals import assumptions, removal
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import ONE, Buffer, Const, Expr, terms_of
from loopnest.scalar.origin import Origin
from loopnest.schedule.inlining import depth_limit
from loopnest.tensor.fusion import Fusion
from loopnest.tensor.intents import LeftBehind
from loopnest.tensor.layout_transforms import paddings_of, swizzles_of
from loopnest.tensor.tensor_view import TensorView


def explained(lowering: Lowering, lower: Callable[[Fusion], Lowered]) -> tuple[Explained, ...]:
    """Return what there is to say of each tensor that is computed, in the order of creation.

    Args:
        lowering: the schedule and its nest.
        lower: makes a kernel, to try what would take a tensor deeper.
    """
    fusion = lowering.plan.fusion
    notes = notes_of(lowering)
    stored = {node.storage.name for node in lowering.program.nodes if isinstance(node, Store)}
    found = []
    with fusion.as_of(lowering.state):
        tests = _tests(lowering, _Trials(fusion, lower))
        for tensor, held in lowering.held.items():
            of_tensor = lowering.storage.get(tensor)
            if of_tensor is None or tensor.is_input or of_tensor.buffer.name not in stored:
                continue  # a pass may have left it out
            limit = depth_limit(tensor, lambda: refusal_of(fusion, lower))
            found.append(
                Explained(
                    held.name,
                    _place(lowering, tensor, limit),
                    (_memory(lowering, tensor, limit), *_accumulator(lowering, tensor)),
                    tuple([test for test, under in tests.items() if held.name in under]),
                    tuple([note for note in notes if note.subject.split(".")[0] == held.name]),
                )
            )
    return tuple(found)


def refusal_of(fusion: Fusion, lower: Callable[[Fusion], object]) -> str:
    """Return why a schedule has no kernel; "" where it has one."""
    try:
        lower(fusion)
    except LoopnestError as error:
        return str(error)
    return ""


# Places


def _place(lowering: Lowering, tensor: TensorView, limit: LeftBehind) -> Note:
    held = lowering.held[tensor]
    around = [lowering.spec(axis) for axis in held.leaf[: held.position]]
    loops = [f"{s.axis} ({s.parallel.value})" for s in around]
    behind = held.leaf[held.position :]
    own = sum(not axis.is_reduction and axis.size is not ONE for axis in behind)
    if not loops:
        became = "it is computed in loops of its own, outside of all others"
    elif own:
        became = f"it is computed in the loops over {', '.join(loops)}, in {own} of its own"
    else:
        became = f"it is computed in the loops over {', '.join(loops)}"
    placed = tensor.placed
    asked = "no call placed it" if placed is None or not held.position else placed.call
    return Note(held.name, asked, became, limit.why, limit.remedy, placed or tensor.origin)


# Buffers


def _memory(lowering: Lowering, tensor: TensorView, limit: LeftBehind) -> Note:
    """Return why the buffer of a tensor has its memory and its size."""
    held, where = lowering.held[tensor], lowering.storage[tensor]
    buffer = where.buffer
    origin = lowering.call("memory", tensor)
    unset = "an output is in global memory" if buffer.kind == "output" else "no call set its memory"
    asked = origin.call if origin else unset
    became = f"its buffer {buffer.name} has {_size(buffer)}, {_OWNERS[buffer.memory]}"
    if buffer.memory is Memory.GLOBAL and not where.buffer.alias_of:
        became = f"{_KINDS.get(buffer.kind, 'workspace')} {buffer.name} has {_size(buffer)}"
    spread = lowering.spread.get(tensor)
    remedy = spread[1] if spread else ""
    if buffer.memory in (Memory.LOCAL, Memory.SHARED) and buffer.size is not ONE and limit.remedy:
        remedy = limit.remedy
    return Note(
        held.name, asked, became, "; ".join(_reasons(lowering, tensor, where)), remedy, origin
    )


_OWNERS = {
    Memory.LOCAL: "one a thread",
    Memory.WARP: "one a warp, over the registers of its lanes",
    Memory.SHARED: "one a block",
    Memory.GLOBAL: "one in all",
}
_KINDS = {"input": "the caller's array", "output": "the caller's array"}


def _size(buffer: Buffer) -> str:
    shape, size = " x ".join([str(extent) for extent in buffer.shape]), buffer.size
    if size is ONE:
        return f"1 element of {buffer.dtype} ({buffer.dtype.size} bytes)"
    if isinstance(size, Const):
        bytes_ = f"{int(size.value) * buffer.dtype.size} bytes"
        return f"{shape} elements of {buffer.dtype} ({bytes_})"
    return f"{shape} elements of {buffer.dtype}"


def _reasons(lowering: Lowering, tensor: TensorView, where: TensorStorage) -> Iterator[str]:
    """Yield what makes a buffer as large as it is, and what lies in its space."""
    held, buffer = lowering.held[tensor], where.buffer
    if buffer.memory is Memory.GLOBAL:
        if buffer.kind == "input":
            yield f"{held.name} is an output in the memory of the input {buffer.name}"
        elif buffer.kind == "output":
            yield "it is an output, whole"
        else:
            yield "all of it lies in memory from where it is stored to where it is read"
    else:
        axes = buffer_axes(lowering, tensor)
        names = [f"{_axis_text(lowering, tensor, axis)}" for axis in axes]
        if names:
            yield (
                f"it holds what is behind the loops that it shares ({held.position} of "
                f"{len(held.leaf)}): {', '.join(names)}"
            )
        else:
            yield "an iteration of the loops around it needs one element at a time"
    if buffer.stages > 1:
        call = lowering.call("stages", tensor)
        made = f" by {call.call}" if call else ""
        yield f"{buffer.stages} stages{made} stand in front, so that loads run ahead"
    if any(paddings_of(held.domain).values()):
        yield "padding that was asked for lies between its rows"
    if swizzles_of(held.domain.allocation or ()):
        yield "its rows are permuted by a swizzle, which takes no space"
    final = lowering.buffers.get(buffer.name)
    if final is not None and final.alias_of:
        yield f"it takes the space of {final.alias_of}, which is not read any more by then"


def _axis_text(lowering: Lowering, tensor: TensorView, axis: object) -> str:
    """Return an axis of a buffer as text: its loop where it is one, and its extent."""
    held = lowering.held[tensor]
    for place, leaf in enumerate(held.leaf):
        if leaf is axis:
            spec = lowering.spec(leaf)
            kind = f" {spec.parallel.value}" if spec.parallel.is_thread else ""
            return f"{leaf.label(place)}{kind} ({spec.extent})"
    return f"an axis of {getattr(axis, 'size', '')}"


def _accumulator(lowering: Lowering, tensor: TensorView) -> Iterator[Note]:
    """Yield the note of the registers that a reduction folds in, where they are others."""
    where = lowering.storage[tensor]
    held, buffer = lowering.held[tensor], where.accumulator
    if buffer is not where.buffer and buffer.name != where.buffer.name:
        yield Note(
            held.name,
            f"{held.name} is a reduction",
            f"its accumulator {buffer.name} has {_size(buffer)}, one a thread",
            "what a thread folds stays in registers until it is finished",
            "",
            tensor.origin,
        )


# Tests


@dataclass(frozen=True, slots=True)
class _PlacedTest:
    """A term of a test with its reason, the stores under it, and the loop around it."""

    condition: Expr
    reason: str
    tensors: tuple[str, ...]
    loop: Loop | None
    origin: Origin | None


class _Trials:
    """The tests that kernels under further assumptions have, each of which is lowered once."""

    def __init__(self, fusion: Fusion, lower: Callable[[Fusion], Lowered]) -> None:
        self.fusion, self.lower = fusion, lower
        self.left: dict[str, frozenset[str] | None] = {}

    def remove(self, text: str, reason: str) -> bool:
        """Whether no test with a reason is left under an assumption."""
        if text not in self.left:
            self.left[text] = self._left(text)
        left = self.left[text]
        return left is not None and reason not in left

    def _left(self, text: str) -> frozenset[str] | None:
        """Return the reasons of the tests under an assumption; None where there is no kernel."""
        fusion = self.fusion
        mark = fusion.begin()
        try:
            fusion.assume(text)
            return frozenset(_reasons_in(self.lower(fusion).program.body))
        except LoopnestError:
            return None
        finally:
            fusion.rollback(mark)
            fusion.end()
            fusion.renew()


def _reasons_in(body: tuple[Stmt, ...]) -> Iterator[str]:
    for node, _ in walk(body):
        if isinstance(node, If):
            yield from node.reason.split("; ")


def _tests(lowering: Lowering, trials: _Trials) -> dict[Note, tuple[str, ...]]:
    """Return a note for each test of the nest, each term by itself, with the tensors under it."""
    found: dict[Note, tuple[str, ...]] = {}
    for test in _terms(lowering):
        note = _test_note(lowering, test, trials)
        found[note] = tuple(dict.fromkeys((*found.get(note, ()), note.subject, *test.tensors)))
    return found


def _terms(lowering: Lowering) -> Iterator[_PlacedTest]:
    for node, around in walk(lowering.program.body):
        if not isinstance(node, If) or node.reason == BOUND or node.reason.startswith(UNSWITCHED):
            continue
        conditions = [*terms_of(node.condition)]
        reasons = node.reason.split("; ") if node.reason else []
        loops = [n for n in around if isinstance(n, Loop) and not n.parallel.is_thread]
        stores = tuple(
            dict.fromkeys([n.tensor for n, _ in walk(node.body) if isinstance(n, Store)])
        )
        for number, condition in enumerate(conditions):
            paired = len(reasons) == len(conditions)
            reason = reasons[number] if paired else "; ".join(reasons)
            yield _PlacedTest(condition, reason, stores, loops[-1] if loops else None, node.origin)


def _subject(lowering: Lowering, test: _PlacedTest) -> str:
    """Return the tensor that a test is for: the one that its reason names, or one under it."""
    named = test.reason.partition(":")[0].partition(" ")[0]
    if any(held.name == named for held in lowering.held.values()):
        return named
    return test.tensors[0] if test.tensors else lowering.program.name


def _splitting(lowering: Lowering, subject: str, test: _PlacedTest) -> Origin | None:
    """Return the call that made the split that a test is there for."""
    simplify = lowering.plan.algebra.simplify
    for held in lowering.held.values():
        for step in held.domain.history if held.name == subject else ():
            whys = [f"{subject}: {step.describe()} need not divide {simplify(a.size)}"
                    for a in step.inputs]  # fmt: skip
            if test.reason in whys and step.outputs[0].origin:
                return step.outputs[0].origin
    return None


def _tried(lowering: Lowering, test: _PlacedTest, trials: _Trials) -> str:
    """Return the weakest assumption under which the kernel has no test of that reason."""
    given = assumptions(lowering.plan.algebra, test.condition)
    numbers = [text for text in given if text.rpartition(" % ")[2].split()[0].isdigit()]
    if numbers and not trials.remove(numbers[-1], test.reason):
        given = [text for text in given if text not in numbers]
    for text in given:
        if trials.remove(text, test.reason):
            return f'f.assume("{text}")'
    return ""


def _test_note(lowering: Lowering, test: _PlacedTest, trials: _Trials) -> Note:
    subject = _subject(lowering, test)
    origin = _splitting(lowering, subject, test)
    became = f"{test.condition} is tested"
    if test.loop is not None:
        became += f" in each iteration of the loop over {test.loop.axis}"
    asked = origin.call if origin is not None else f"a loop of {subject}"
    remedy = removal(lowering, test.condition) or _tried(lowering, test, trials)
    remedy = remedy or _kept(lowering, test.reason)
    why = test.reason or "a value is taken in there alone"
    return Note(subject, asked, became, why, remedy, origin or test.origin)


_OTHER_WAYS = (
    (
        r"(one|the last) lane of each warp stores|warps before this one",
        "none while warps fold together; at most 32 threads along it are one warp",
    ),
    (r"so many blocks left a part", "none: the last block has its own number of threads"),
    (
        r"\w+ is computed in the last block of (\w+)",
        r"a launch of its own for what reads \1 (new_launch), or no grid axis in \1",
    ),
    (
        r"elsewhere nothing is taken in|\w+ takes nothing in elsewhere",
        "none: it leaves out what the mask of the math leaves out",
    ),
    (r"split by \d+ need not divide (\d+)", r"none: no factor beside the other splits divides \1"),
    (
        r"a tile with halo begins in front of the first element|tile with halo need not divide .*",
        "none by sizes: a halo reaches past the border; at position 0 there is no halo",
    ),
)
"""What is to be done about tests that no assumption and no factor decides, by their reason."""


def _kept(lowering: Lowering, reason: str) -> str:
    """Return what removes a test that no assumption and no factor decides, or why nothing does."""
    unused = re.fullmatch(r"(\w+) does not use (\w+), so one writes it", reason)
    if unused:
        return f"bind an axis of {unused[1]} to {unused[2]}"
    if reason.endswith(FAR_AHEAD):
        ahead = [t for t, held in lowering.held.items() if reason.startswith(f"{held.name}: ")]
        calls = [call for t in ahead if (call := lowering.call("stages", t))]
        return f"leave out {calls[0].call}" if calls else ""
    told = reason.partition(": ")[2] or reason
    for pattern, way in _OTHER_WAYS:
        found = re.fullmatch(pattern, told)
        if found:
            return found.expand(way)
    return ""
