"""A machine that runs a loop nest thread by thread, to the letter of `loopnest.kir`.

It is the ground truth by which the checkers are judged, so it shares nothing with them: each
thread is a Python generator made from the nest (`thread_code`), runs alone to its next barrier,
and the order of threads and blocks is random. Nothing is forbidden here. A broken rule is noted,
the run goes on with what a processor might do: an undefined element holds garbage, a store out of
bounds is lost or hits a neighbour. Floats are Python's, rounded where a 16-bit buffer is stored to.

Whether two accesses race does not depend on the order that was drawn: for every element of shared
and global memory the machine keeps who wrote and read it last, and how many barriers of each scope
that thread had passed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from loopnest import kir
from loopnest.scalar.arguments import size_value
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import LAUNCH_DIMENSIONS, WARP, Memory
from loopnest.scalar.expr import Buffer, Const
from loopnest.second_checker.thread_code import UNDEFINED, code_of

RULES = ("bounds", "undefined", "race", "equal race", "divergence", "unwritten", "lane", "scope")
"""What may be broken. "equal race": threads store one equal value, without an order. "lane": a
thread accesses another lane's element of WARP memory outside of a tile, or another warp's."""

EARLY, WHOLE = "is left early, behind its first step", "runs all its steps"
"""How a loop is left that a condition ends."""


@dataclass
class MachineRun:
    """What came of a run.

    Args:
        outputs: the results, in order.
        broken: each rule that was broken, with the first place.
        trace: the stores of each thread, where asked for: (block, thread) -> (buffer, element,
            value), in order.
        ends: for each end of a loop by a condition, how threads left that loop: `EARLY`, `WHOLE`.
    """

    outputs: list[np.ndarray]
    broken: dict[str, str] = field(default_factory=dict)
    trace: dict[tuple[int, int], list[tuple[str, int, object]]] = field(default_factory=dict)
    ends: dict[kir.Until, set[str]] = field(default_factory=dict)

    def left(self, end: kir.Until, step: int, extent: int) -> None:
        """Note at which step a thread left a loop; `extent` where no condition ended it.

        Where it ends at its first step, no later one was told from it; at its last, it ends anyway.
        """
        if 0 < step < extent - 1:
            self.ends.setdefault(end, set()).add(EARLY)
        elif step == extent > 1:
            self.ends.setdefault(end, set()).add(WHOLE)


class AccessedBuffer:
    """A shared or global buffer that is written: values, and who used each element last."""

    __slots__ = (
        "buffer", "clobbers", "instance", "linked", "number", "readers", "values", "writers",
    )  # fmt: skip

    def __init__(self, number: int, buffer: Buffer, values: list[Any]) -> None:
        self.number, self.buffer, self.values = number, buffer, values
        self.writers: list[Any] = [None] * len(values)
        self.readers: list[Any] = [None] * len(values)
        self.clobbers: list[Any] = [None] * len(values)
        """Who stored to elements of other buffers that lie there; these do not race: each stored
        bytes of its own."""
        self.instance: list[int] = [0] * len(values)
        self.linked: list[AccessedBuffer] = []

    def link(self, others: Any) -> None:
        """Find the buffers that share this one's space."""
        root = self.buffer.alias_of or self.buffer.name
        for other in others:
            if other is not self and root in (other.buffer.alias_of, other.buffer.name):
                self.linked.append(other)
                other.linked.append(self)

    def read(self, thread: Thread, place: int) -> object:
        """Return an element's value, UNDEFINED where it has none here; note the access."""
        machine = thread.machine
        writer = self._other(thread, place)
        if writer is not None:
            machine.broke("race", thread, self.buffer, (place,), writer[0])
        readers = self.readers[place]
        if readers is None:
            readers = self.readers[place] = {}
        if thread.atomic != self.number:  # the store of the same step stands for both
            readers[thread] = machine.moment(thread)
        value = self.values[place]
        if self.buffer.memory is Memory.SHARED:
            current = self.instance[place] == thread.instances[self.number]
            return value if current else UNDEFINED
        return value

    def write(self, thread: Thread, place: int, value: object) -> None:
        """Store an element; note the access."""
        self.race(thread, place, value, self.clobbers[place])
        self.values[place] = value
        self.clobbers[place] = None
        alone = thread.atomic == self.number
        self.writers[place] = (*thread.machine.moment(thread), value, alone)
        self.readers[place] = None
        self.instance[place] = thread.instances.get(self.number, 0)
        for other in self.linked:
            mine, size = self.buffer.dtype.size, other.buffer.dtype.size
            for element in range(place * mine // size, -(-(place + 1) * mine // size)):
                if element < len(other.values):
                    other.race(thread, element, UNDEFINED)
                    other.values[element] = UNDEFINED
                    clobbers = other.clobbers[element] or {}
                    other.clobbers[element] = {**clobbers, thread: thread.machine.moment(thread)}

    def _other(self, thread: Thread, place: int) -> Any:
        """Return who stored an element without an order to `thread`; updates in one step have one.

        The machine runs a statement of a thread as a whole, as an atomic update must be.
        """
        writer = self.writers[place]
        if writer is None or writer[0] is thread or thread.machine.ordered(writer, thread):
            return None
        return None if writer[6] and thread.atomic == self.number else writer

    def race(self, thread: Thread, place: int, value: object, more: Any = None) -> None:
        """Note where a store races with earlier accesses, those in `more` among them."""
        machine = thread.machine
        writer = self._other(thread, place)
        if writer is not None:
            same = writer[5] == value or (value != value and writer[5] != writer[5])
            rule = "equal race" if same else "race"
            machine.broke(rule, thread, self.buffer, (place,), writer[0])
        for other, moment in [*(self.readers[place] or {}).items(), *(more or {}).items()]:
            if other is not thread and not machine.ordered(moment, thread):
                machine.broke("race", thread, self.buffer, (place,), other)


class Block:
    """A block: its threads, its shared memory, how many barriers it has passed."""

    __slots__ = ("arrivals", "epoch", "number", "seen", "shared", "threads")

    def __init__(self, number: int) -> None:
        self.number = number
        self.epoch = 0
        self.arrivals = 0
        self.seen: dict[int, int] = {}
        self.shared: dict[int, AccessedBuffer] = {}
        self.threads: list[Thread] = []


class Thread:
    """A thread: a generator that stops where threads must come together."""

    __slots__ = ("answer", "at", "atomic", "block", "groups", "instances", "lane", "machine",
                 "number", "steps", "tile", "trace", "waits", "warp", "warp_epoch",
                 "warps")  # fmt: skip

    def __init__(self, machine: ThreadMachine, block: Block, number: int) -> None:
        self.machine, self.block, self.number = machine, block, number
        self.warp = number // WARP
        self.warp_epoch = 0
        self.at = 0
        self.atomic: int | None = None
        """The number of the buffer that the thread is updating in one step."""
        self.groups: list[list[Callable[[], None]]] = [[]]
        """What lands with each group of copies; the last one is open."""
        self.lane, self.tile = 0, False
        self.warps: tuple[int, ...] = ()
        """The index that the thread has of the axes for warps in WARP buffers."""
        self.waits: tuple[Any, ...] | None = None
        self.answer: object = None
        self.instances: dict[int, int] = {}
        self.steps: Iterator[Any] = iter(())
        self.trace: list[tuple[str, int, object]] | None = None

    # What the generated code calls

    def undefined(self, number: int, *index: int) -> object:
        """Note a load of an element that was never stored; return garbage."""
        self.machine.broke("undefined", self, self.machine.buffers[number], index)
        return self.machine.garbage(self.machine.buffers[number].dtype)

    def look(self, number: int, index: Sequence[int]) -> None:
        """Note an access to an element of WARP memory that is another lane's or another warp's."""
        buffer = self.machine.buffers[number]
        own = index[int(buffer.stages > 1) :]
        if own[: len(self.warps)] == self.warps and (self.tile or own[-2:-1] == (self.lane,)):
            return
        self.machine.broke("lane", self, buffer, index)

    def outside(self, number: int, index: Sequence[int], held: Sequence[Any], place: int) -> object:
        """Note a load out of bounds; return what lies there, or garbage."""
        self.machine.broke("bounds", self, self.machine.buffers[number], index)
        found = held[place] if 0 <= place < len(held) else UNDEFINED
        if found is UNDEFINED:
            return self.machine.garbage(self.machine.buffers[number].dtype)
        return found

    def beyond(
        self, number: int, index: Sequence[int], held: list[Any], place: int, value: object
    ) -> None:
        """Note a store out of bounds; it changes what lies there."""
        self.machine.broke("bounds", self, self.machine.buffers[number], index)
        if 0 <= place < len(held):
            held[place] = value

    def fly(
        self,
        value: object,
        store: Callable[[object], None],
        again: Callable[[], object] | None,
    ) -> None:
        """Begin a copy: nothing is known of its element until it lands."""
        store(UNDEFINED)

        def land() -> None:
            if again is not None:
                again()
            store(value)

        self.groups[-1].append(land)

    def commit(self) -> None:
        """Close the open group."""
        self.groups.append([])

    def land(self, pending: int) -> None:
        """Land all but the last closed groups."""
        closed = len(self.groups) - 1
        for group in self.groups[: max(closed - pending, 0)]:
            for landing in group:
                landing()
            group.clear()

    def shared(self, number: int) -> AccessedBuffer:
        """Return this block's copy of a shared buffer, from here on with undefined elements."""
        self.instances[number] = self.instances.get(number, 0) + 1
        found = self.block.shared.get(number)
        if found is None:
            found = self.machine.make(number)
            self.block.shared[number] = found
            found.link(self.block.shared.values())
        return found


class ThreadMachine:
    """One run of a program.

    Args:
        program: the loop nest.
        sizes: the value of every size symbol.
        arrays: name of each input and output that is a parameter -> array of its shape, at the
            strides that are declared; they are not changed.
        scalars: the value of every scalar parameter.
        seed: decides the order of threads and blocks, and what garbage is.
        trace: whether to keep what each thread stores.
        earlier: the run of the launch before this one, whose arrays this one goes on with.
    """

    def __init__(
        self,
        program: kir.Program,
        sizes: Mapping[str, int],
        arrays: Mapping[str, np.ndarray],
        scalars: Mapping[str, object],
        seed: int = 0,
        trace: bool = False,
        earlier: ThreadMachine | None = None,
    ) -> None:
        self.program, self.sizes, self.scalars = program, sizes, scalars
        self.random = Random(seed)
        self.sign = -1 if seed % 2 else 1
        self.tracing = trace
        self.run_state: MachineRun = MachineRun([]) if earlier is None else earlier.run_state
        self.code = code_of(program, sizes)
        self.buffers = self.code.buffers
        self.grid_epoch = 0
        self.globals: dict[int, Any] = {}
        held = {} if earlier is None else earlier.arrays()
        for number, buffer in enumerate(self.buffers):
            if buffer.memory is Memory.GLOBAL:
                self.globals[number] = self._held(number, buffer, arrays, held.get(buffer))
        self.counters: dict[tuple[int, int], list[tuple[int, int, dict[int, int]]]] = {}

    def arrays(self) -> dict[Buffer, list[Any]]:
        """Return what GLOBAL memory holds."""
        return {
            self.buffers[number]: held.values if isinstance(held, AccessedBuffer) else held
            for number, held in self.globals.items()
        }

    def _held(
        self, number: int, buffer: Buffer, arrays: Mapping[str, np.ndarray], left: list[Any] | None
    ) -> Any:
        size = self.code.layouts[number][2]
        if left is not None:
            values = left
        elif buffer.kind == "input":
            values = _memory_of(arrays[buffer.name])
        elif buffer.kind == "counter":
            values = [0] * size
        else:
            values = [UNDEFINED] * size
        if number not in self.code.written:
            return values
        return AccessedBuffer(number, buffer, values)

    def make(self, number: int) -> AccessedBuffer:
        """Return new shared memory for a buffer."""
        return AccessedBuffer(
            number, self.buffers[number], [UNDEFINED] * self.code.layouts[number][2]
        )

    # What breaks rules

    def garbage(self, dtype: DType) -> object:
        """Return a value that was not computed."""
        if dtype.is_bool:
            return self.random.random() < 0.5
        if dtype.is_float:
            return self.sign * self.random.uniform(1e3, 3e4)
        number = self.sign * self.random.randrange(1000, 30000)
        return (number - dtype.least) % (1 << dtype.bits) + dtype.least

    def broke(
        self, rule: str, thread: Thread, buffer: Buffer | None, index: Sequence[int],
        other: Thread | None = None,
    ) -> None:  # fmt: skip
        if rule in self.run_state.broken:
            return
        element = f"{buffer.name}{list(index)}, " if buffer is not None else ""
        who = f"thread {thread.block.number}.{thread.number}"
        who += f" and {other.block.number}.{other.number}" if other is not None else ""
        self.run_state.broken[rule] = f"{rule}: {element}line {thread.at}, {who}"

    @staticmethod
    def moment(thread: Thread) -> tuple[Thread, int, int, int, int]:
        """Return what orders an access of `thread` now against later ones."""
        block = thread.block
        return (thread, block.epoch, thread.warp_epoch, thread.machine.grid_epoch, block.arrivals)

    def ordered(self, earlier: Sequence[Any], now: Thread) -> bool:
        """Whether a barrier stands between an access of another thread and one of `now`."""
        other, block_epoch, warp_epoch, grid_epoch, arrivals = earlier[:5]
        if other.block is now.block:
            if block_epoch < now.block.epoch:
                return True
            return bool(other.warp == now.warp and warp_epoch < now.warp_epoch)
        if grid_epoch < self.grid_epoch:
            return True
        return bool(arrivals < now.block.seen.get(other.block.number, 0))

    # The run

    def run(self, *, last: bool = True) -> MachineRun:
        """Run all blocks, then, after the `last` launch, read the outputs."""
        extents = [self._launch(d) for d in LAUNCH_DIMENSIONS]
        shapes = [[size_value(s, self.sizes) for s in o.shape] for o in self.program.outputs]
        if any(math.prod(shape) for shape in shapes):
            most = [max(extent, 1) for extent in extents]
            self._run_blocks(most[:3], most[3:])
        if last:
            self._take_outputs(math.prod(extents) == 0)
        return self.run_state

    def _launch(self, dimension: Any) -> int:
        size = self.program.launch_extent(dimension)
        return 1 if size is None else max(size_value(size, self.sizes), 0)

    def _run_blocks(self, grid: Sequence[int], extents: Sequence[int]) -> None:
        order = list(range(math.prod(grid)))
        self.random.shuffle(order)
        together = self.program.is_cooperative
        waiting = [self._block(number, grid, extents) for number in order] if together else []
        for number in [] if together else order:
            block = self._block(number, grid, extents)
            if self._advance(block):
                self._diverged(block.threads)
        while waiting:
            left = [block for block in waiting if self._advance(block)]
            if not left:
                return
            threads = [t for block in waiting for t in block.threads]
            if not self._same_place(threads, "grid"):
                self._diverged(threads)
                return
            self.grid_epoch += 1
            for block in waiting:
                self._passed(block)
                self._release(block.threads)

    def _block(self, number: int, grid: Sequence[int], extents: Sequence[int]) -> Block:
        block = Block(number)
        place = _unravel(number, grid)
        for n in range(math.prod(extents)):
            thread = Thread(self, block, n)
            thread.steps = self.code.thread(
                self, thread, self.globals, *place, *_unravel(n, extents)
            )
            if self.tracing:
                thread.trace = self.run_state.trace[number, n] = []
            block.threads.append(thread)
        return block

    def _advance(self, block: Block) -> bool:
        """Run a block to its end; return whether its threads wait for something else instead."""
        ready = list(block.threads)
        while ready:
            self.random.shuffle(ready)
            for thread in ready:
                self._step(thread)
            ready = self._woken(block)
        return any(t.waits is not None for t in block.threads)

    def _step(self, thread: Thread) -> None:
        answer, thread.answer, thread.waits = thread.answer, None, None
        try:
            thread.waits = thread.steps.send(answer)  # type: ignore[attr-defined]
        except StopIteration:
            thread.waits = None
        except (UnboundLocalError, KeyError):
            self.broke("scope", thread, None, ())

    def _woken(self, block: Block) -> list[Thread]:
        """Return the threads whose warp or block has come together."""
        result: list[Thread] = []
        for start in range(0, len(block.threads), WARP):
            warp = block.threads[start : start + WARP]
            if self._same_place(warp, "warp"):
                self._meet(warp)
                result += warp
        if not result and self._same_place(block.threads, "block"):
            self._meet_block(block)
            result = list(block.threads)
        return result

    def _same_place(self, threads: Sequence[Thread], scope: str) -> bool:
        first = threads[0].waits
        return (
            first is not None
            and first[0] == scope
            and all(t.waits is not None and t.waits[:3] == first[:3] for t in threads)
        )

    def _meet(self, warp: Sequence[Thread]) -> None:
        kind = warp[0].waits[3] if warp[0].waits else ""
        if kind == "barrier":
            for thread in warp:
                thread.warp_epoch += 1
        else:
            self._shuffle(warp)

    def _shuffle(self, warp: Sequence[Thread]) -> None:
        offers = [t.waits[4] for t in warp if t.waits]
        for lane, thread in enumerate(warp):
            assert thread.waits is not None
            mode, offset, dtype = thread.waits[5:8]
            source = {
                "xor": lane ^ offset,
                "down": lane + offset,
                "up": lane - offset,
                "lane": offset,
            }[mode]
            inside = 0 <= source < len(warp)
            thread.answer = offers[source] if inside else self.garbage(dtype)

    def _meet_block(self, block: Block) -> None:
        first = block.threads[0].waits
        assert first is not None
        self._passed(block)
        if first[3] == "arrive":
            last = self._arrive(block, first[4], first[5], first[6])
            for thread in block.threads:
                thread.answer = last

    def _arrive(self, block: Block, number: int, place: int, count: int) -> bool:
        block.arrivals += 1
        arrived = self.counters.setdefault((number, place), [])
        arrived.append((block.number, block.arrivals, dict(block.seen)))
        if len(arrived) != count:
            return False
        for other, arrivals, seen in arrived:
            for known, moment in {**seen, other: arrivals}.items():
                block.seen[known] = max(block.seen.get(known, 0), moment)
        arrived.clear()
        return True

    @staticmethod
    def _passed(block: Block) -> None:
        block.epoch += 1

    @staticmethod
    def _release(threads: Sequence[Thread]) -> None:
        for thread in threads:
            thread.waits = None

    def _diverged(self, threads: Sequence[Thread]) -> None:
        stuck = next(t for t in threads if t.waits is not None)
        self.broke("divergence", stuck, None, ())

    # Results

    def _take_outputs(self, empty: bool) -> None:
        for output in self.program.outputs:
            number = self.buffers.index(output.buffer)
            shape = tuple([size_value(s, self.sizes) for s in output.shape])
            held = self.globals[number]
            values = held.values if isinstance(held, AccessedBuffer) else held
            values = values[: math.prod(shape)]
            if empty:
                start = self._identity(output.buffer)
                values = [start if v is UNDEFINED else v for v in values]
            if any(v is UNDEFINED for v in values):
                place = next(n for n, v in enumerate(values) if v is UNDEFINED)
                self.run_state.broken.setdefault("unwritten", f"unwritten: {output.name} {place}")
            self.run_state.outputs.append(self._array(values, shape, output.buffer.dtype))

    def _identity(self, buffer: Buffer) -> float:
        """Return what an output holds where no thread runs: what its reduction starts from."""
        for node, _ in kir.walk(self.program.body):
            if isinstance(node, kir.Store) and node.storage is buffer and node.role == "init":
                return node.value.value if isinstance(node.value, Const) else 0
        return 0

    def _array(self, values: list[Any], shape: tuple[int, ...], dtype: DType) -> np.ndarray:
        plain = [self.garbage(dtype) if v is UNDEFINED else v for v in values]
        with np.errstate(all="ignore"):
            wide = np.array(plain, np.float64 if dtype.is_float else dtype.numpy)
            return wide.astype(dtype.numpy).reshape(shape)


def _memory_of(array: np.ndarray) -> list[Any]:
    """Return what lies between the first and the last element of an array, in the order of memory.

    What lies between its elements is undefined.
    """
    steps = [step // array.itemsize for step in array.strides]
    reach = sum([(n - 1) * step for n, step in zip(array.shape, steps, strict=True)])
    values: list[Any] = [UNDEFINED] * (reach + 1 if array.size else 0)
    wide = array if array.dtype.kind in "iub" else array.astype(np.float64)
    for place, value in zip(np.ndindex(array.shape), wide.ravel().tolist(), strict=True):
        values[sum([at * step for at, step in zip(place, steps, strict=True)])] = value
    return values


def _unravel(number: int, extents: Sequence[int]) -> tuple[int, int, int]:
    x, y, _ = extents
    return number % x, number // x % y, number // (x * y)


def run(
    program: kir.Program,
    sizes: Mapping[str, int],
    arrays: Mapping[str, np.ndarray],
    scalars: Mapping[str, object],
    seed: int = 0,
    trace: bool = False,
) -> MachineRun:
    """Run `program` once; see `ThreadMachine`."""
    machine: ThreadMachine | None = None
    launches = program.launches
    for launch in launches:
        machine = ThreadMachine(launch, sizes, arrays, scalars, seed, trace, machine)
        found = machine.run(last=launch is launches[-1])
    return found
