"""Run a nest thread by thread, slowly and simply: what programs whose threads meet must compute.

Each thread is a Python generator that stops where threads meet; between two such places the threads
run one after the other, in a random order.
"""

from __future__ import annotations

import itertools
import operator

import numpy as np

from loopnest import kir
from loopnest.scalar.enums import LAUNCH_DIMENSIONS, Memory
from loopnest.scalar.expr import Const, Index, LaunchIndex, Load, Local, Op, ScalarParam, Symbol

_OPS = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv,
    "mod": operator.mod, "lt": operator.lt, "le": operator.le, "eq": operator.eq,
    "ne": operator.ne, "gt": operator.gt, "ge": operator.ge, "min": min, "max": max,
    "bitxor": operator.xor, "neg": operator.neg, "not": operator.not_,
    "ceildiv": lambda a, b: -(-a // b),
}  # fmt: skip


def run_threads(program, sizes, arrays, seed=0):
    """Run `program` on `arrays` (name -> array of its shape); outputs are written in place."""
    return _Launch(program, sizes, arrays, seed).run()


class _Launch:
    def __init__(self, program, sizes, arrays, seed):
        self.program, self.sizes = program, sizes
        self.random = np.random.default_rng(seed)
        self.memory = {p.buffer: arrays[p.name].reshape(-1) for p in program.params if p.buffer}
        extents = dict(program.launch)
        self.extents = [self.size(extents[d]) if d in extents else 1 for d in LAUNCH_DIMENSIONS]

    def size(self, node):
        return _Thread(self, {}, {}).value(node)

    def run(self):
        gx, gy, gz, bx, by, bz = self.extents
        blocks = []
        for z, y, x in itertools.product(range(gz), range(gy), range(gx)):
            shared = {}
            blocks.append([
                _Thread(self, shared, dict(zip(LAUNCH_DIMENSIONS, (x, y, z, c, b, a), strict=True)))
                for a, b, c in itertools.product(range(bz), range(by), range(bx))
            ])  # fmt: skip
        while blocks:
            waiting = []
            for number in self.random.permutation(len(blocks)):
                if self._advance(blocks[number]):
                    waiting.append(blocks[number])
            assert not waiting or len(waiting) == len(blocks), "a barrier of some blocks"
            blocks = waiting

    def _advance(self, threads):
        """Run a block to its next barrier of the grid; return False where it ends instead."""
        warps = [threads[first : first + 32] for first in range(0, len(threads), 32)]
        while True:
            for number in self.random.permutation(len(warps)):
                self._step(warps[number])
            (node,) = {t.at for t in threads}  # else it is a divergent barrier
            if node is None:
                return False
            if isinstance(node, kir.Arrive):
                self._arrive(node, threads)
            elif node.scope == "grid":
                return True

    def _step(self, warp):
        """Run a warp to where its block meets."""
        while True:
            for lane in self.random.permutation(len(warp)):
                warp[lane].at = next(warp[lane].steps, None)
            node = warp[0].at
            if isinstance(node, kir.Shuffle):
                self._shuffle(node, warp)
            elif not (isinstance(node, kir.Barrier) and node.scope == "warp"):
                return
            assert all(t.at is node for t in warp), "a warp is divided"

    def _shuffle(self, node, warp):
        values = [thread.value(node.value) for thread in warp]
        for lane, thread in enumerate(warp):
            offset = thread.value(node.offset)
            partner = {
                "xor": lane ^ offset,
                "down": lane + offset,
                "up": lane - offset,
                "lane": offset,
            }[node.mode]
            thread.names[node.var] = values[partner if 0 <= partner < len(warp) else lane]

    def _arrive(self, node, threads):
        place = threads[0].place(node.counter, node.index, False)
        counter = self.memory[node.counter]
        counter[place] += 1
        last = counter[place] == threads[0].value(node.count)
        if last:
            counter[place] = 0
        for thread in threads:
            thread.names[node.var] = bool(last)


class _Thread:
    def __init__(self, launch, shared, numbers):
        self.launch, self.shared, self.numbers = launch, shared, numbers
        self.own, self.names = {}, {}
        self.at = None
        self.steps = self.body(launch.program.body)

    def body(self, body):
        for node in body:
            match node:
                case kir.Loop() if node.parallel.is_thread:
                    number = self.numbers[node.parallel]
                    if number < self.value(node.var.extent):
                        self.names[node.var] = number
                        yield from self.body(node.body)
                case kir.Loop():
                    for i in range(self.value(node.var.extent)):
                        self.names[node.var] = i
                        yield from self.body(node.body)
                case kir.If():
                    yield from self.body(node.body if self.value(node.condition) else node.orelse)
                case kir.Allocate():
                    self.allocate(node.storage)
                case kir.Store():
                    value = self.value(node.value)
                    place = self.place(node.storage, node.index, node.flat)
                    self.memory(node.storage)[place] = value
                case kir.Let():
                    self.names[node.var] = self.value(node.value)
                case kir.Collective():
                    yield from self.body(node.body)
                case _:
                    yield node

    def allocate(self, buffer):
        home = self.own if buffer.memory is Memory.LOCAL else self.shared
        if buffer.memory is Memory.LOCAL or buffer not in home:
            home[buffer] = [None] * self.value(buffer.size)

    def memory(self, buffer):
        if buffer.memory is Memory.GLOBAL:
            return self.launch.memory[buffer]
        return (self.own if buffer.memory is Memory.LOCAL else self.shared)[buffer]

    def place(self, buffer, index, flat):
        index = [self.value(i) for i in index]
        if flat:
            return index[0]
        for a, b in buffer.swizzles:
            index[b] ^= index[a] % self.value(buffer.shape[b])
        return sum(i * self.value(s) for i, s in zip(index, buffer.strides, strict=True))

    def value(self, node):
        match node:
            case Const():
                return node.value
            case Symbol():
                return self.launch.sizes[node.name]
            case Index() | Local():
                return self.names[node]
            case LaunchIndex():
                return self.numbers[node.dimension]
            case Load():
                found = self.memory(node.buffer)[self.place(node.buffer, node.args, node.flat)]
                assert found is not None, f"{node} is undefined"
                return found
            case Op(op="and"):
                return all(self.value(a) for a in node.args)
            case Op(op="or"):
                return any(self.value(a) for a in node.args)
            case Op(op="where"):
                return self.value(node.args[1 if self.value(node.args[0]) else 2])
            case Op(op="cast"):
                value = self.value(node.args[0])
                return float(value) if node.dtype.is_float else int(value)
            case ScalarParam():
                raise AssertionError(node)
        return _OPS[node.op](*[self.value(a) for a in node.args])
