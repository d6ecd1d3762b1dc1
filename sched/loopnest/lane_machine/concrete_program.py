"""A program at given sizes: every extent and layout as a number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np

from loopnest import kir
from loopnest.base.errors import InternalError, LaunchError
from loopnest.kir import vector_access
from loopnest.kir.shared_memory import ALIGNMENT, swizzled
from loopnest.lane_machine import native_math
from loopnest.lane_machine.frame import Dependences, Frame
from loopnest.lane_machine.native_math import Array, Value
from loopnest.lane_machine.watched_memory import ElementLayout
from loopnest.scalar import dtypes
from loopnest.scalar.enums import LAUNCH_DIMENSIONS, Memory, ParallelType, along_dimensions
from loopnest.scalar.expr import (
    Buffer,
    Const,
    Expr,
    Index,
    LaunchIndex,
    Load,
    Local,
    Op,
    ScalarParam,
    Symbol,
)

THREAD = Local("thread", dtypes.index)
"""The number of a lane's thread in the launch, those of a block following each other.

Threads of a block, and blocks, are numbered x + extent_x * (y + extent_y * z).
"""

INSIDE = Local("inside", dtypes.index)
"""The number of a lane's thread in its block."""

THREADS = Local("threads", dtypes.index)
"""How many threads a lane's block has."""

SLOT = Local("slot", dtypes.index)
"""The place of a lane's block among the blocks that run together."""

SHADOW_BYTES = 16
"""Of an element of shared memory, in the race detector."""

LANE_BYTES = 256
"""What a lane takes beside its buffers: a guess."""

TOGETHER = 1 << 32
"""How many bytes the blocks of a launch may take that wait for each other."""


class ConcreteProgram:
    """What a program is at given sizes.

    Args:
        program: the kernel, or one of its launches.
        sizes: the value of every size symbol.
        whole: the kernel, where `program` is one of its launches.
    """

    def __init__(
        self, program: kir.Program, sizes: Mapping[str, int], whole: kir.Program | None = None
    ) -> None:
        self.program = program
        self.whole = program if whole is None else whole
        self.sizes = dict(sizes)
        self.dependences = Dependences()
        self.nodes = [node for node, _ in kir.walk(program.body)]
        self.extents = self._extents()
        launch = [self._launch_extent(d) for d in LAUNCH_DIMENSIONS]
        self.is_empty = 0 in launch
        self.is_roomy = any(self._has_no_thread(part) for part in self.whole.launches)
        """Whether a launch of the kernel has no thread: one thread then stands for all of it."""
        self.grid = [max(e, 1) for e in launch[:3]]
        self.block = [max(e, 1) for e in launch[3:]]
        self.blocks, self.threads = math.prod(self.grid), math.prod(self.block)
        self.buffers = self._buffers()
        self.spaces = spaces_of(self.buffers)
        self.layouts = self._layouts()
        self.block_bytes = self._block_bytes()

    @cached_property
    def wide(self) -> Mapping[kir.Stmt, tuple[AlignedAccess, ...]]:
        """The wide accesses of each statement that has any."""
        return wide_accesses(self.program)

    def number(self, size: Expr) -> int:
        """Return an expression over size symbols as a number."""
        match size:
            case Const():
                return int(size.value)
            case Symbol():
                return self.sizes[size.name]
            case Op() if size.op in native_math.INDEX:
                return int(native_math.INDEX[size.op](*[self.number(a) for a in size.args]))
        raise InternalError(self.program.name, f"the size '{size}' depends on more than sizes")

    def _extents(self) -> dict[Index, int]:
        loops = [n.var for n in self.nodes if isinstance(n, kir.Loop)]
        return {v: self.number(v.extent) for v in loops if _over_sizes(v.extent)}

    def _has_no_thread(self, launch: kir.Program) -> bool:
        return any(self.number(extent) == 0 for _, extent in launch.launch)

    def _launch_extent(self, dimension: ParallelType) -> int:
        size = self.program.launch_extent(dimension)
        return 1 if size is None else self.number(size)

    def _buffers(self) -> list[Buffer]:
        params = [p.buffer for p in self.program.params if p.buffer is not None]
        return [*params, *[n.storage for n in self.nodes if isinstance(n, kir.Allocate)]]

    def _layouts(self) -> dict[Buffer, ElementLayout]:
        shapes = {b: self._shape(b) for b in self.buffers}
        roomy = {b for b in self.buffers if shapes[b] != tuple([self.number(s) for s in b.shape])}
        sizes = {
            b: math.prod(shapes[b]) if b in roomy else self.number(b.size) for b in self.buffers
        }
        space_bytes: dict[Buffer, int] = {}
        units: dict[Buffer, int] = {}
        for buffer, space in self.spaces.items():
            width = buffer.dtype.size
            unit = ALIGNMENT if buffer.memory is Memory.SHARED else width
            space_bytes[space] = max(space_bytes.get(space, 0), sizes[buffer] * width)
            units[space] = max(units.get(space, 0), unit)
        result: dict[Buffer, ElementLayout] = {}
        for buffer, space in self.spaces.items():
            shape = shapes[buffer]
            strides = tuple([self.number(s) for s in buffer.strides])
            if buffer in roomy:
                strides = tuple([math.prod(shape[n + 1 :]) for n in range(len(shape))])
            whole = -(-space_bytes[space] // units[space]) * units[space]
            result[buffer] = ElementLayout(
                shape, strides, sizes[buffer], whole // buffer.dtype.size
            )
        return result

    def _shape(self, buffer: Buffer) -> tuple[int, ...]:
        """Return the extents of a buffer.

        The one thread that stands for an empty launch takes part in its exchanges: what the launch
        made for itself then has room for it.
        """
        least = int(self.is_roomy and buffer.kind not in ("input", "output"))
        return tuple([max(self.number(s), least) for s in buffer.shape])

    def bytes(self, buffer: Buffer) -> int:
        """Return the memory that one copy of a buffer takes, its shadow included."""
        shadow = 1 if buffer.memory is Memory.LOCAL else 1 + SHADOW_BYTES
        return (buffer.dtype.size + shadow) * self.layouts[buffer].size

    def _block_bytes(self) -> int:
        """Return what the LOCAL and SHARED buffers of a block take."""
        made = {n.storage for n in self.nodes if isinstance(n, kir.Allocate)}
        copies = {Memory.LOCAL: self.threads, Memory.SHARED: 1, Memory.GLOBAL: 0}
        return sum(copies[b.memory] * self.bytes(b) for b in made)

    # Lanes

    def constants(self, scalars: Mapping[str, object]) -> Frame:
        """Return the frame that every lane derives from: sizes and scalar parameters."""
        frame = Frame(1, None)
        for name, size in self.sizes.items():
            frame.define(Symbol(name), int(size))
        for param in self.program.params:
            if param.kind == "scalar":
                value = np.array([scalars[param.name]], param.dtype.numpy)
                frame.define(ScalarParam(param.name, param.dtype), value)
        return frame

    def launches(
        self,
        constants: Frame,
        lanes: int,
        memory: int,
        random: np.random.Generator | None = None,
    ) -> Iterator[LaunchedBlocks]:
        """Yield the lanes of the launch in groups of whole blocks.

        Args:
            constants: what every lane derives from.
            lanes: how many lanes a group has at most, unless one block has more.
            memory: how many bytes the buffers of a group may take, its shadow included.
            random: deals the blocks out; without it they come in order.

        Raises:
            LaunchError: blocks wait for each other, and all together take too much memory.
        """
        step = max(1, min(lanes // self.threads, memory // max(self.block_bytes, 1)))
        step = min(step, self.blocks)
        order = np.arange(self.blocks)
        if random is not None:
            order = random.permutation(order)
            step = int(random.integers(1, step + 1))
        if self.program.is_cooperative:
            self._check_together()
            step = self.blocks
        for start in range(0, self.blocks, step):
            yield LaunchedBlocks(self, constants, order[start : start + step])

    def _check_together(self) -> None:
        need = self.blocks * (self.block_bytes + self.threads * LANE_BYTES)
        if need > TOGETHER:
            found = f"its {self.blocks} blocks wait for each other"
            reason = f"{found}, and together they take {need >> 20} MiB"
            hint = f"use at most {TOGETHER >> 20} MiB: fewer blocks, or smaller buffers"
            raise LaunchError(f"interpret {self.program.name}", reason, hint)


class LaunchedBlocks:
    """Some blocks of a launch, a lane for each of their threads.

    Args:
        setting: the program at its sizes.
        constants: the frame that the lanes derive from.
        blocks: the numbers of the blocks.
    """

    def __init__(self, setting: ConcreteProgram, constants: Frame, blocks: Array) -> None:
        self.blocks = blocks
        threads, count = setting.threads, blocks.size
        number = int(blocks[0]) if count == 1 else np.repeat(blocks, threads)
        thread = 0 if threads == 1 else np.tile(np.arange(threads), count)
        self.frame = frame = Frame(count * threads, constants)
        places = [*_unravel(number, setting.grid), *_unravel(thread, setting.block)]
        for dimension, place in zip(LAUNCH_DIMENSIONS, places, strict=True):
            frame.define(LaunchIndex(dimension), place)
        frame.define(THREAD, number * threads + thread)
        frame.define(INSIDE, thread)
        frame.define(THREADS, threads)
        frame.define(SLOT, 0 if count == 1 else np.repeat(np.arange(count), threads))


def spaces_of(buffers: list[Buffer]) -> dict[Buffer, Buffer]:
    """Return for each buffer the one that gives its space its name: the end of its aliases."""
    names = {b.name: b for b in buffers}
    result: dict[Buffer, Buffer] = {}
    for buffer in buffers:
        space, seen = buffer, {buffer}
        while space.alias_of is not None and names.get(space.alias_of, space) not in seen:
            space = names[space.alias_of]
            seen.add(space)
        result[buffer] = space
    return result


def _over_sizes(size: Expr) -> bool:
    return isinstance(size, (Const, Symbol)) or (
        isinstance(size, Op) and all(_over_sizes(a) for a in size.args)
    )


def _unravel(number: Value, extents: list[int]) -> list[Value]:
    places = along_dimensions(number, extents[0], extents[1])
    return [0 if extent == 1 else part for part, extent in zip(places, extents, strict=True)]


class AlignedAccess(NamedTuple):
    """A wide access.

    Args:
        access: what its statement loads or stores.
        place: where that lies: `access`, its index permuted where the buffer is swizzled.
        lane: the index of the vectorized loop; where it is 0 an access begins.
        width: the bytes of one access.
    """

    access: Load
    place: Load
    lane: Index
    width: int


def wide_accesses(program: kir.Program) -> dict[kir.Stmt, tuple[AlignedAccess, ...]]:
    """Return the wide accesses of each statement that has any, as printed kernels have them."""
    if all(
        not isinstance(n, kir.Loop) or n.parallel is not ParallelType.vectorize
        for n, _ in kir.walk(program.body)
    ):
        return {}
    found: dict[kir.Stmt, tuple[AlignedAccess, ...]] = {}
    for wide in vector_access.wide_accesses(program):
        node = wide.statement
        access = wide.load
        if access is None:
            assert isinstance(node, kir.Store)
            access = Load(node.storage, node.index, node.flat)
        place = access
        if not wide.flat:
            place = Load(access.buffer, swizzled(access.buffer, access.args))
        entry = AlignedAccess(access, place, wide.loop.var, wide.piece_bytes)
        found[node] = (*found.get(node, ()), entry)
    return found
