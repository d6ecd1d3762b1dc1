"""A program at given sizes: every extent and layout as a number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from loopnest import kir
from loopnest.buffers import Buffer
from loopnest.enums import LAUNCH_DIMENSIONS, Memory, ParallelType
from loopnest.errors import InternalError
from loopnest.expr import Const, Expr, Index, LaunchIndex, Op, ScalarParam, Symbol
from loopnest.interpreter import scalar
from loopnest.interpreter.frame import Dependences, Frame
from loopnest.interpreter.scalar import Array, Value

Layout = tuple[tuple[int, ...], tuple[int, ...], int]
"""Shape, strides and size of a buffer, in elements."""


class Setting:
    """What a program is at given sizes.

    Args:
        program: the kernel.
        sizes: the value of every size symbol.
    """

    def __init__(self, program: kir.Program, sizes: Mapping[str, int]) -> None:
        self.program = program
        self.sizes = dict(sizes)
        self.dependences = Dependences()
        self.nodes = [node for node, _ in kir.walk(program.body)]
        self.extents = self._extents()
        launch = [self._launch_extent(d) for d in LAUNCH_DIMENSIONS]
        self.is_empty = 0 in launch
        self.grid = [max(e, 1) for e in launch[:3]]
        self.block = [max(e, 1) for e in launch[3:]]
        self.blocks, self.threads = math.prod(self.grid), math.prod(self.block)
        self.layouts = {b: self._layout(b) for b in self._buffers()}

    def number(self, size: Expr) -> int:
        """Return an expression over size symbols as a number."""
        match size:
            case Const():
                return int(size.value)
            case Symbol():
                return self.sizes[size.name]
            case Op() if size.op in scalar.INDEX:
                return int(scalar.INDEX[size.op](*[self.number(a) for a in size.args]))
        raise InternalError(self.program.name, f"the size '{size}' depends on more than sizes")

    def _extents(self) -> dict[Index, int]:
        loops = [n.var for n in self.nodes if isinstance(n, kir.Loop)]
        return {v: self.number(v.extent) for v in loops if _over_sizes(v.extent)}

    def _launch_extent(self, dimension: ParallelType) -> int:
        size = self.program.launch_extent(dimension)
        return 1 if size is None else self.number(size)

    def _buffers(self) -> list[Buffer]:
        params = [p.buffer for p in self.program.params if p.buffer is not None]
        return [*params, *[n.storage for n in self.nodes if isinstance(n, kir.Allocate)]]

    def _layout(self, buffer: Buffer) -> Layout:
        shape = tuple([self.number(s) for s in buffer.shape])
        strides = tuple([self.number(s) for s in buffer.strides])
        return shape, strides, self.number(buffer.size)

    def bytes(self, buffer: Buffer) -> int:
        """Return the memory that one copy of a buffer takes, its shadow included."""
        return (buffer.dtype.size + 1) * self.layouts[buffer][2]

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

    def launches(self, constants: Frame, lanes: int, memory: int) -> Iterator[Launch]:
        """Yield the lanes of the launch in groups of whole blocks.

        Args:
            constants: what every lane derives from.
            lanes: how many lanes a group has at most, unless one block has more.
            memory: how many bytes the local buffers of a group may take.
        """
        local = {n.storage for n in self.nodes if isinstance(n, kir.Allocate)}
        space = sum(self.bytes(b) for b in local if b.memory is Memory.LOCAL)
        step = max(1, min(lanes, memory // max(space, 1)) // self.threads)
        if any(isinstance(n, kir.Barrier) and n.scope == "grid" for n in self.nodes):
            step = self.blocks
        for start in range(0, self.blocks, step):
            stop = min(start + step, self.blocks)
            group = np.arange(start * self.threads, stop * self.threads)
            yield Launch(self, constants, group)

    def single_launches(self, constants: Frame, seed: int) -> Iterator[Launch]:
        """Yield the lanes of the launch one by one, in a random order."""
        order = np.random.default_rng(seed).permutation(self.blocks * self.threads)
        for lane in order:
            yield Launch(self, constants, np.array([lane]))


class Launch:
    """Some lanes of a launch, each a thread; thread number = x + extent_x * (y + extent_y * z).

    `blocks` counts the blocks among them, `block_of_lane` numbers these from 0.
    """

    def __init__(self, setting: Setting, constants: Frame, lanes: Array) -> None:
        number, thread = lanes // setting.threads, lanes % setting.threads
        self.blocks = int(number[-1] - number[0]) + 1
        self.block_of_lane = _single(number - number[0])
        self.frame = Frame(lanes.size, constants)
        places = [*_unravel(number, setting.grid), *_unravel(thread, setting.block)]
        for dimension, place in zip(LAUNCH_DIMENSIONS, places, strict=True):
            self.frame.define(LaunchIndex(dimension), place)

    def blocks_in(self, frame: Frame) -> Value:
        """Return the number of the block of each lane of a frame derived from this launch."""
        if frame is self.frame or frame.parent is None:
            return self.block_of_lane
        return frame.taken_over(self.blocks_in(frame.parent))


def _over_sizes(size: Expr) -> bool:
    return isinstance(size, (Const, Symbol)) or (
        isinstance(size, Op) and all(_over_sizes(a) for a in size.args)
    )


def _single(value: Array) -> Value:
    return int(value[0]) if value.size == 1 else value


def _unravel(number: Array, extents: list[int]) -> list[Value]:
    x, y, _ = extents
    parts = [(number % x, x), (number // x % y, y), (number // (x * y), extents[2])]
    return [0 if extent == 1 else _single(part) for part, extent in parts]
