"""What a launch at given sizes needs: its configuration, its index width, its arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from loopnest import kir
from loopnest.arguments import check_conditions, keyword_size, size_value
from loopnest.buffers import Buffer
from loopnest.enums import ParallelType
from loopnest.errors import LaunchError
from loopnest.expr import Const, Expr
from loopnest.runtime.bounds import INT32, INT64, IndexBounds

MAX_THREADS = 1024
MAX_SHARED_BYTES = 227 * 1024
MAX_EXTENT: Mapping[ParallelType, int] = {
    ParallelType.grid_x: (1 << 31) - 1,
    ParallelType.grid_y: 65535,
    ParallelType.grid_z: 65535,
    ParallelType.block_x: 1024,
    ParallelType.block_y: 1024,
    ParallelType.block_z: 64,
}
"""The limits of CUDA; every target keeps them, so that a schedule that runs on one runs on all."""


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """The configuration of a launch.

    Args:
        grid: blocks along x, y, z.
        block: threads of a block along x, y, z.
        shared_bytes: dynamic shared memory of a block.
        variant: "vector" where every vectorized loop runs whole, else "scalar".
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    variant: str

    @property
    def is_empty(self) -> bool:
        """Whether no thread runs."""
        return 0 in self.grid or 0 in self.block


NO_THREADS = LaunchConfig((0, 1, 1), (1, 1, 1), 0, "scalar")


@dataclass(frozen=True, slots=True)
class Plan:
    """A launch at given sizes, checked.

    Args:
        sizes: the value of every size symbol, in the order of the parameters.
        config: its configuration.
        is_empty: whether no thread runs, or there is nothing to compute.
        index_bits: the width that indices need.
        outputs: the shape of each output, in order.
        workspace: the number of elements of each workspace buffer, in order.
    """

    sizes: dict[str, int]
    config: LaunchConfig
    is_empty: bool
    index_bits: int
    outputs: tuple[tuple[int, ...], ...]
    workspace: tuple[int, ...]


class Planner:
    """Plans the launches of one program."""

    def __init__(self, program: kir.Program) -> None:
        self.program = program
        self.bounds = IndexBounds(program)
        self.names = tuple([p.name for p in program.params if p.kind == "size"])

    def plan(self, sizes: Mapping[str, int], subject: str) -> Plan:
        """Return the plan of a launch.

        Raises:
            LaunchError: too many threads, blocks or too much shared memory; sizes that no index
                can count, or that a loop cannot be split by.
        """
        spaces = [p.buffer for p in self.program.params if p.kind == "workspace"]
        outputs = tuple([_numbers(o.shape, sizes) for o in self.program.outputs])
        nothing = all(0 in shape for shape in outputs)
        config = NO_THREADS if nothing else self.config(sizes, subject)
        return Plan(
            {name: sizes[name] for name in self.names},
            config,
            nothing or config.is_empty,
            self._index_bits(sizes, subject),
            outputs,
            tuple([size_value(b.size, sizes) for b in spaces if b is not None]),
        )

    def _index_bits(self, sizes: Mapping[str, int], subject: str) -> int:
        if self.bounds.fits(sizes, INT32):
            return 32
        if self.bounds.fits(sizes, INT64):
            return 64
        found = ", ".join([f"{name} = {size}" for name, size in sizes.items()])
        raise LaunchError(subject, f"for {found} an index exceeds 64 bits", "pass smaller sizes")

    def _split_by_zero(self, sizes: Mapping[str, int], subject: str) -> LaunchError:
        zero = [name for name, size in sizes.items() if size == 0]
        return LaunchError(
            subject, f"a loop is split by {' or '.join(zero)}, which is 0", "pass a size >= 1"
        )

    def config(self, sizes: Mapping[str, int], subject: str) -> LaunchConfig:
        """Return the configuration of a launch, within the limits.

        Raises:
            LaunchError: beyond a limit, or a loop is split by a size that is 0.
        """
        try:
            extents = {d: size_value(size, sizes) for d, size in self.program.launch}
            for loop in self.bounds.extents:
                size_value(loop, sizes)
        except ZeroDivisionError:
            raise self._split_by_zero(sizes, subject) from None
        for dimension, extent in extents.items():
            if extent > MAX_EXTENT[dimension]:
                where = f"{dimension.value} has extent {extent}"
                raise LaunchError(subject, where, f"use at most {MAX_EXTENT[dimension]}")
        _check_threads(extents, subject)
        shared = self._shared_bytes(sizes)
        if shared > MAX_SHARED_BYTES:
            found = f"a block needs {shared} bytes of shared memory"
            raise LaunchError(subject, found, f"use at most {MAX_SHARED_BYTES}")
        x, y, z, u, v, w = [extents.get(d, 1) for d in MAX_EXTENT]
        vector = self.bounds.takes_vectors(sizes)
        return LaunchConfig((x, y, z), (u, v, w), shared, "vector" if vector else "scalar")

    def _shared_bytes(self, sizes: Mapping[str, int]) -> int:
        from loopnest.printers.cuda import shared_layout

        _, total = shared_layout(self.program)
        return size_value(total, sizes)

    def keyword_config(self, keywords: Mapping[str, object], subject: str) -> LaunchConfig:
        """Return the configuration of a launch whose sizes are given by name.

        Raises:
            LaunchError: an unknown size, a missing one, no int >= 0, a broken assumption; and as
                `plan`.
        """
        listed = ", ".join([f"{name}=..." for name in self.names])
        wanted = f"pass {listed}" if listed else "pass none"
        for name in keywords:
            if name not in self.names:
                raise LaunchError(subject, f"it has no size '{name}'", wanted)
        for name in self.names:
            if name not in keywords:
                raise LaunchError(subject, f"the size {name} is missing", wanted)
        sizes = {n: keyword_size(n, keywords[n], subject) for n in self.names}
        check_conditions(self.program.conditions, sizes, subject)
        self._index_bits(sizes, subject)
        return self.config(sizes, subject)


def _check_threads(extents: Mapping[ParallelType, int], subject: str) -> None:
    block = {d: extent for d, extent in extents.items() if d.is_block}
    threads = math.prod(block.values())
    if threads > MAX_THREADS:
        product = " * ".join([f"{d.value} ({extent})" for d, extent in block.items()])
        raise LaunchError(
            subject, f"a block has {threads} threads: {product}", f"use at most {MAX_THREADS}"
        )


def _numbers(shape: tuple[Expr, ...], sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple([size_value(size, sizes) for size in shape])


def identity(program: kir.Program, buffer: Buffer) -> float:
    """Return what an output holds where no thread runs: what its reduction starts from, else 0."""
    for node, _ in kir.walk(program.body):
        match node:
            case kir.Store(role="init", value=Const(value=value)) if node.storage is buffer:
                return value
    return 0
