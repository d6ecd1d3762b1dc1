"""What a launch at given sizes needs: its variant, configuration, index width and arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, reduce

from loopnest import kir
from loopnest.base.errors import LaunchError
from loopnest.kir.shared_memory import SharedLayout, shared_layout, shared_places
from loopnest.launch.index_width import INT32, INT64, IndexWidth
from loopnest.scalar import dtypes
from loopnest.scalar.arguments import (
    broken_condition,
    check_conditions,
    check_factors,
    keyword_size,
    size_value,
)
from loopnest.scalar.enums import MOST_ALONG, MOST_THREADS, ParallelType
from loopnest.scalar.expr import Buffer, Const, Expr, Op

MAX_SHARED_BYTES = 227 * 1024
"""The limit of CUDA; every target keeps it, so that a schedule that runs on one runs on all."""


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """The configuration of a launch.

    Of a kernel that is several launches each number is the largest of theirs.

    Args:
        grid: blocks along x, y, z.
        block: threads of a block along x, y, z.
        shared_bytes: shared memory of a block: what its buffers take.
        variant: "vector" where every vectorized loop runs whole, else "scalar".
        parts: the configurations of the launches; none where it is one.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    variant: str
    parts: tuple[LaunchConfig, ...] = field(default=(), repr=False)

    @property
    def launches(self) -> tuple[LaunchConfig, ...]:
        """The configuration of each launch, in order; this one alone where it is one."""
        return self.parts or (self,)

    @property
    def is_empty(self) -> bool:
        """Whether no thread runs in one of the launches; the host then does what all would do."""
        return any(0 in part.grid or 0 in part.block for part in self.launches)


NO_THREADS = LaunchConfig((0, 1, 1), (1, 1, 1), 0, "scalar")


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """A launch at given sizes, checked.

    Args:
        program: the variant that runs.
        sizes: the value of every size symbol, in the order of the parameters.
        config: its configuration.
        is_empty: whether no thread runs, or there is nothing to compute.
        index_bits: the width that indices need.
        outputs: the shape of each output, in order.
        workspace: the number of elements of each workspace buffer, in order.
    """

    program: kir.Program
    sizes: dict[str, int]
    config: LaunchConfig
    is_empty: bool
    index_bits: int
    outputs: tuple[tuple[int, ...], ...]
    workspace: tuple[int, ...]


class Planner:
    """Plans the launches of one program, or of its scalar variant where that must run.

    Args:
        program: the kernel.
        scalar: makes the variant that runs where the program's `requires` do not hold, None where
            there is none.
        is_scalar: whether `program` is itself that variant.
    """

    def __init__(
        self,
        program: kir.Program,
        scalar: Callable[[], kir.Program] | None = None,
        is_scalar: bool = False,
    ) -> None:
        self.program = program
        self.is_scalar = is_scalar
        self.bounds = IndexWidth(program)
        self.names = tuple([p.name for p in program.params if p.kind == "size"])
        self.parts = program.launches
        self.shared: tuple[SharedLayout, ...] = tuple([shared_layout(p) for p in self.parts])
        self._make_scalar = scalar

    @cached_property
    def scalar(self) -> Planner | None:
        """The planner of the scalar variant, None where there is none."""
        return None if self._make_scalar is None else Planner(self._make_scalar(), is_scalar=True)

    def variant(self, sizes: Mapping[str, int], subject: str) -> Planner:
        """Return the planner of the variant that takes these sizes.

        Raises:
            LaunchError: the program requires what does not hold, and has no other variant.
        """
        if self.unmet(sizes) is None:
            return self
        if self.scalar is None:
            check_conditions(self.program.requires, sizes, subject)
        assert self.scalar is not None
        return self.scalar

    def unmet(self, sizes: Mapping[str, int]) -> str | None:
        """Return the requirement that these sizes do not meet, and for what sizes; else None."""
        return broken_condition(self.program.requires, sizes)

    def plan(self, sizes: Mapping[str, int], subject: str) -> LaunchPlan:
        """Return the plan of a launch of the variant that takes these sizes.

        Raises:
            LaunchError: too many threads, blocks or too much shared memory; sizes that no index
                can count, or that a loop cannot be split by.
        """
        return self.variant(sizes, subject).own_plan(sizes, subject)

    def own_plan(self, sizes: Mapping[str, int], subject: str) -> LaunchPlan:
        """Return the plan of a launch of this very program; raises as `plan`."""
        spaces = [p.buffer for p in self.program.params if p.kind == "workspace"]
        outputs = tuple([_numbers(o.shape, sizes) for o in self.program.outputs])
        nothing = all(0 in shape for shape in outputs)
        config = NO_THREADS if nothing else self.config(sizes, subject)
        return LaunchPlan(
            self.program,
            {name: sizes[name] for name in self.names},
            config,
            nothing or config.is_empty,
            self._index_bits(sizes, subject),
            outputs,
            tuple([0 if nothing else _room(b, sizes, config) for b in spaces if b is not None]),
        )

    def _index_bits(self, sizes: Mapping[str, int], subject: str) -> int:
        if self.bounds.fits(sizes, INT32):
            return 32
        if self.bounds.fits(sizes, INT64):
            return 64
        found = ", ".join([f"{name} = {size}" for name, size in sizes.items()])
        problem = f"for {found} {self.bounds.too_large(sizes)}"
        raise LaunchError(subject, problem, "pass smaller sizes")

    def config(self, sizes: Mapping[str, int], subject: str) -> LaunchConfig:
        """Return the configuration of a launch, within the limits.

        Raises:
            LaunchError: beyond a limit, or an axis is split by less than 1.
        """
        check_factors(self.program.split_factors, sizes, subject)
        vector = not self.is_scalar and self.bounds.takes_vectors(sizes)
        variant = "vector" if vector else "scalar"
        made = tuple([self._part(n, sizes, variant, subject) for n in range(len(self.parts))])
        if len(made) == 1:
            return made[0]
        x, y, z = [max([part.grid[n] for part in made]) for n in range(3)]
        u, v, w = [max([part.block[n] for part in made]) for n in range(3)]
        shared = max([part.shared_bytes for part in made])
        return LaunchConfig((x, y, z), (u, v, w), shared, variant, made)

    def _part(
        self, number: int, sizes: Mapping[str, int], variant: str, subject: str
    ) -> LaunchConfig:
        """Return the configuration of one launch."""
        program = self.parts[number]
        extents = {d: size_value(size, sizes) for d, size in program.launch}
        for dimension, extent in extents.items():
            if extent > MOST_ALONG[dimension]:
                where = f"{dimension.value}{_axes(program, dimension)} has extent {extent}"
                raise LaunchError(subject, where, f"use at most {MOST_ALONG[dimension]}")
        _check_threads(program, extents, subject)
        shared = size_value(self.shared[number].total, sizes)
        if shared > MAX_SHARED_BYTES:
            raise self.too_much_shared(sizes, MAX_SHARED_BYTES, subject)
        x, y, z, u, v, w = [extents.get(d, 1) for d in MOST_ALONG]
        return LaunchConfig((x, y, z), (u, v, w), shared, variant)

    def block_bytes(self, sizes: Mapping[str, int]) -> int | Expr:
        """Return the shared memory of a block; without `sizes` an expression if it asks for any."""
        totals = list(dict.fromkeys([layout.total for layout in self.shared]))
        most = reduce(lambda a, b: Op("max", (a, b), dtypes.index), totals)
        known = bool(sizes) or all(isinstance(total, Const) for total in totals)
        return size_value(most, sizes) if known else most

    def too_much_shared(
        self, sizes: Mapping[str, int], limit: int, subject: str, device: str = ""
    ) -> LaunchError:
        """Return the error of a block that needs more than `limit` bytes of shared memory."""
        total, program = max(
            [(size_value(s.total, sizes), p) for s, p in zip(self.shared, self.parts, strict=True)],
            key=lambda found: found[0],
        )
        places = [(p.buffers, size_value(p.bytes, sizes)) for p in shared_places(program)]
        parts = [f"{'/'.join([b.tensor for b in held])} {count}" for held, count in places]
        found = f"a block needs {total} bytes of shared memory: {', '.join(parts)}"
        return LaunchError(subject, found, f"use at most {limit}{device}")

    def keyword_config(self, keywords: Mapping[str, object], subject: str) -> LaunchConfig:
        """Return the configuration of a launch whose sizes are given by name.

        Raises:
            LaunchError: as `named_sizes` and `plan`.
        """
        sizes = self.named_sizes(keywords, subject)
        taken = self.variant(sizes, subject)
        taken._index_bits(sizes, subject)
        return taken.config(sizes, subject)

    def named_sizes(self, keywords: Mapping[str, object], subject: str) -> dict[str, int]:
        """Return the sizes of a launch that are given by name.

        Raises:
            LaunchError: an unknown size, a missing one, no int >= 0, a broken assumption.
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
        return sizes


def _axes(program: kir.Program, dimension: ParallelType) -> str:
    """Return the axes that are bound to a dimension, in parentheses."""
    loops = [n for n, _ in kir.walk(program.body) if isinstance(n, kir.Loop)]
    axes = dict.fromkeys([n.axis for n in loops if n.parallel is dimension and n.axis])
    return f" ({', '.join(axes)})" if axes else ""


def _check_threads(program: kir.Program, extents: Mapping[ParallelType, int], subject: str) -> None:
    block = {d: extent for d, extent in extents.items() if d.is_block}
    threads = math.prod(block.values())
    if threads > MOST_THREADS:
        product = " * ".join(
            [f"{d.value} = {extent}{_axes(program, d)}" for d, extent in block.items()]
        )
        raise LaunchError(
            subject, f"a block has {threads} threads: {product}", f"use at most {MOST_THREADS}"
        )


def _room(buffer: Buffer, sizes: Mapping[str, int], config: LaunchConfig) -> int:
    """Return the elements of workspace; room for one thread where the launch is empty."""
    extents = [size_value(extent, sizes) for extent in buffer.shape]
    if not config.is_empty or 0 not in extents:
        return size_value(buffer.size, sizes)
    return math.prod([max(extent, 1) for extent in extents])


def _numbers(shape: tuple[Expr, ...], sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple([size_value(size, sizes) for size in shape])


def identity(program: kir.Program, buffer: Buffer) -> float:
    """Return what an output holds where no thread runs: what its reduction starts from, else 0."""
    for node, _ in kir.walk(program.body):
        match node:
            case kir.Store(role="init", value=Const(value=value)) if node.storage is buffer:
                return value
    return 0
