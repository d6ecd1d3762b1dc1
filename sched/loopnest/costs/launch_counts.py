"""Count what one launch does: each access of memory, barrier and operation, by warps.

Threads of a block are counted one by one, blocks and iterations by those that stand for others
(`iteration_classes`), each with its weight. Counts are exact but where a test, a choice or an
index depends on data: then both branches run, and a warp touches as many sectors as it has lanes;
and where even so there are more than `MOST` points: then iterations that are drawn, always the same
ones, stand for all.

Rules of the hardware (CUDA C++ Programming Guide, "Device memory accesses" and "Shared memory";
Nsight Compute's guide, "Memory tables"): a request is one instruction of one warp; global memory
moves in sectors of 32 bytes; shared memory has 32 banks of 4 bytes, gives each bank's word to all
lanes that ask for it, and serves 8 bytes a lane in halves of a warp, 16 bytes in quarters.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loopnest import kir
from loopnest.costs.iteration_classes import Array, Uses
from loopnest.kir.instruction_table import instructions
from loopnest.kir.matrix_rows import named
from loopnest.kir.shared_memory import swizzled
from loopnest.kir.tiles import in_registers
from loopnest.kir.vector_access import wide_accesses
from loopnest.proofs.point_arrays import Points, Undecidable, number
from loopnest.proofs.program_model import Access, Model, Site, is_decidable
from loopnest.scalar import dtypes
from loopnest.scalar.enums import (
    BLOCK_DIMENSIONS,
    GRID_DIMENSIONS,
    WARP,
    Memory,
    ParallelType,
    along_dimensions,
)
from loopnest.scalar.expr import (
    ZERO,
    Buffer,
    Expr,
    LaunchIndex,
    Load,
    Local,
    Op,
    Symbol,
    integer,
    substitute,
    variables,
    walk,
)
from loopnest.scalar.op_table import ops

MOST = 1 << 18
"""Points of one statement that are counted one by one."""

SECTOR, BANKS, WORD = 32, 32, 4

FLOPS: Mapping[str, int] = {
    "add": 1, "sub": 1, "mul": 1, "div": 1, "fma": 2, "min": 1, "max": 1, "neg": 0, "abs": 0,
    "lt": 1, "le": 1, "gt": 1, "ge": 1, "eq": 1, "ne": 1, "mod": 1, "floordiv": 1,
}  # fmt: skip
"""Operations on floats that count, and for how many."""

SPECIAL = ops(lambda info: info.result == "float") | {"pow"}
"""Functions that take several instructions, or those of the special function unit."""

_WEIGHT = Local("weight", dtypes.index)
"""How many points a point stands for."""

_BLOCKS = Local("blocks", dtypes.index)
"""How many blocks its block stands for."""


@dataclass(slots=True)
class AccessCount:
    """What one load or store of the nest costs.

    Args:
        access: as the nest writes it.
        buffer: the name of the buffer.
        tensor: the name of the tensor that it holds.
        memory: where that lies.
        writes: whether it stores.
        atomic: whether it adds to what is there.
        width: bytes of a lane.
        origin: the file and line of the math or the schedule behind it; "" where unknown.
        elements: accesses of elements, by all threads.
        requests: instructions, by all warps.
        sectors: of GLOBAL memory, that all requests touch.
        wavefronts: of SHARED memory, that all requests take.
        least: wavefronts without any conflict of banks.
        exact: whether no data decides these numbers; else they are the most that may be.
    """

    access: str
    buffer: str
    tensor: str
    memory: Memory
    writes: bool
    atomic: bool
    width: int
    origin: str
    element: int
    elements: int = 0
    requests: int = 0
    sectors: int = 0
    wavefronts: int = 0
    least: int = 0
    exact: bool = True

    @property
    def bytes(self) -> int:
        """Bytes that threads ask for."""
        return self.elements * self.element

    @property
    def moved(self) -> int:
        """Bytes of the sectors that they touch."""
        return self.sectors * SECTOR

    @property
    def conflicts(self) -> int:
        """Wavefronts that conflicts of banks add."""
        return self.wavefronts - self.least


@dataclass
class LaunchCounts:
    """What one launch does.

    Attributes:
        grid, block: its extents along x, y, z.
        accesses: of GLOBAL and SHARED memory, in the order of the nest.
        barriers: that a thread reaches, by scope: the most of any block (of an average one, if
            sampled).
        shuffles: by all warps.
        flops: arithmetic on floats, an `fma` being two, but for that of tiles.
        products: of tiles, by the bytes of a factor: a product and its sum being two.
        special: calls of exp, sqrt, tanh and the like.
        computed: how often an element of each tensor is computed; copies and folds are left out.
        exact: whether nothing that is counted depends on data.
        sampled: whether iterations were drawn that stand for others unlike them.
    """

    grid: tuple[int, ...]
    block: tuple[int, ...]
    accesses: list[AccessCount] = field(default_factory=list)
    barriers: Counter[str] = field(default_factory=Counter)
    shuffles: int = 0
    flops: int = 0
    products: Counter[int] = field(default_factory=Counter)
    special: int = 0
    computed: Counter[str] = field(default_factory=Counter)
    exact: bool = True
    sampled: bool = False


class _Names:
    """Expressions of a program without names, sizes and loops of threads."""

    def __init__(self, model: Model, sizes: Mapping[str, int]) -> None:
        self.values: dict[Expr, Expr] = {
            Symbol(name): integer(size) for name, size in sizes.items()
        }
        for site in model.sites:
            for loop in site.loops:
                if loop.parallel.is_thread:
                    self.values[loop.var] = LaunchIndex(loop.parallel)
        for site in model.sites:  # a name is defined above all that use it
            if isinstance(site.node, kir.Let):
                self.values[site.node.var] = substitute(site.node.value, self.values)

    def plain(self, node: Expr) -> Expr:
        return substitute(node, self.values)

    def offset(self, access: Access) -> Expr:
        """Return the distance of an element from the first one of its buffer, in elements."""
        buffer = access.buffer
        if access.flat:
            return self.plain(access.index[0])
        total: Expr = ZERO
        for place, stride in zip(swizzled(buffer, access.index), buffer.strides, strict=True):
            total = Op("add", (total, Op("mul", (place, stride), dtypes.index)), dtypes.index)
        return self.plain(total)


def _unit(buffer: Buffer) -> int:
    """Return a distance in elements by which all lanes can move at the same cost."""
    return max((SECTOR if buffer.memory is Memory.GLOBAL else WORD) // buffer.dtype.size, 1)


class Counting:
    """The walk through a launch that counts it.

    `uses_of` says which iterations are looked at, `request` what becomes of an access; pictures
    of tiles have both of their own.
    """

    def __init__(self, program: kir.Program, sizes: Mapping[str, int], most: int) -> None:
        self.factors = _factors(program)
        program = plain(program)
        self.model, self.sizes, self.most = Model(program), sizes, most
        self.random = np.random.default_rng(0)
        self.names = _Names(self.model, sizes)
        launch = {d: number(size, sizes) for d, size in program.launch}
        grid = [launch.get(d, 1) for d in GRID_DIMENSIONS]
        block = [launch.get(d, 1) for d in BLOCK_DIMENSIONS]
        self.counts = LaunchCounts(tuple(grid), tuple(block))
        self.threads = math.prod(block)
        self.uses = self.uses_of(launch)
        self.wide = {(w.statement if w.load is None else w.load): w for w in wide_accesses(program)}
        self._site_of = {(s.node, s.time): s for s in self.model.sites}
        self._counted: dict[tuple[object, ...], AccessCount] = {}
        self._certain: dict[kir.Stmt, set[Expr]] = {}
        self._arrivals = {n.var: n for n in program.nodes if isinstance(n, kir.Arrive)}
        if math.prod(grid) * self.threads > 0:
            self._body(program.body, self._start(grid, block), ())
        self.counts.accesses += self._counted.values()

    def uses_of(self, launch: Mapping[ParallelType, int]) -> Uses:
        conditions: dict[Expr, None] = {}
        offsets: dict[tuple[Expr, int], None] = {}
        extents: dict[Expr, int] = {LaunchIndex(d): n for d, n in launch.items()}
        for site in self.model.sites:
            for loop in site.loops:
                extent = number(loop.var.extent, self.sizes)
                if loop.parallel.is_thread:
                    inside = (LaunchIndex(loop.parallel), integer(extent))
                    conditions[Op("lt", inside, dtypes.bool_)] = None
                else:
                    extents[loop.var] = extent
            for condition, _ in site.guards:
                conditions[self.names.plain(condition)] = None
            for access in self.model.accesses_of(site):
                for condition, _ in access.guards:
                    conditions[self.names.plain(condition)] = None
                if access.buffer.memory is not Memory.LOCAL:
                    offsets[self.names.offset(access), _unit(access.buffer)] = None
        known = tuple([(o, unit) for o, unit in offsets if not _is_data(o)])
        return Uses(tuple(conditions), known, extents)

    def _start(self, grid: list[int], block: list[int]) -> Points:
        """Return a point for each thread of the blocks that stand for all."""
        chosen = []
        for dim, extent in zip(GRID_DIMENSIONS, grid, strict=True):
            chosen.append(self.uses.iterations(LaunchIndex(dim), extent))
        x, y, z = [np.arange(len(c.values)) for c in chosen]
        places = [axis.ravel() for axis in np.meshgrid(x, y, z, indexing="ij")]
        weights: Any = np.ones(len(places[0]))
        for found, place in zip(chosen, places, strict=True):
            weights = weights * found.weights[place]
        if len(weights) * self.threads > self.most:
            drawn, weights = self._drawn(weights, self.most // self.threads)
            places = [place[drawn] for place in places]
        values: dict[Expr, Any] = {}
        for dim, found, place in zip(GRID_DIMENSIONS, chosen, places, strict=True):
            values[LaunchIndex(dim)] = np.repeat(found.values[place], self.threads)
        lanes = np.tile(np.arange(self.threads, dtype=np.int64), len(weights))
        for dim, along in zip(
            BLOCK_DIMENSIONS, along_dimensions(lanes, block[0], block[1]), strict=True
        ):
            values[LaunchIndex(dim)] = along
        blocks = np.repeat(np.arange(len(weights), dtype=np.int64), self.threads)
        values[_WEIGHT] = values[_BLOCKS] = np.repeat(weights, self.threads)
        return Points(lanes.size, values, lanes, blocks, blocks.copy())

    def _drawn(self, weights: Any, most: int) -> tuple[Array, Any]:
        """Return which of some things stand for all of them, and for how many each.

        The whole weight is parted evenly, and each part has the thing at a place drawn within it:
        heavy things are always there, and no period of the nest meets one of the choice.
        """
        self.counts.sampled = True
        ends, parts = np.cumsum(weights), max(most, 1)
        places = (np.arange(parts) + self.random.random(parts)) * (ends[-1] / parts)
        found = np.minimum(np.searchsorted(ends, places, "right"), len(ends) - 1)
        drawn, times = np.unique(found, return_counts=True)
        return drawn, times * (ends[-1] / parts)

    def _thinned(self, points: Points, times: int) -> Points:
        """Return points of fewer iterations, where each of them would become `times` too many."""
        if points.count * times <= self.most:
            return points
        _, first, place = np.unique(points.time, return_index=True, return_inverse=True)
        drawn, weights = self._drawn(
            points.values[_WEIGHT][first], len(first) * self.most // (points.count * times)
        )
        kept = np.zeros(len(first))
        kept[drawn] = weights
        found = points.take(kept[place] > 0)
        found.values[_WEIGHT] = kept[place][kept[place] > 0]
        return found

    # The walk

    def _body(self, body: tuple[kir.Stmt, ...], points: Points, time: tuple[Any, ...]) -> None:
        for place, node in enumerate(body):
            if not points.count:
                return
            now = (*time, place)
            match node:
                case kir.Loop():
                    self._loop(node, points, now)
                case kir.If():
                    self._if(node, points, now)
                case kir.Collective():
                    self._body(node.body, points, (*now, 1))
                case kir.Issue():
                    self._body(node.body, points, now)
                case kir.Allocate() | kir.Commit() | kir.Wait():
                    pass
                case _:
                    self._statement(self._site_of[node, now], points)

    def _loop(self, node: kir.Loop, points: Points, now: tuple[Any, ...]) -> None:
        extent = number(node.var.extent, self.sizes)
        if node.parallel.is_thread:
            place = points.values[LaunchIndex(node.parallel)]
            inside = points.take(place < extent)
            inside.values[node.var] = place[place < extent]
            self._body(node.body, inside, now)
            return
        whole = node.parallel is ParallelType.vectorize
        found = self.uses.iterations(node.var, extent, whole)
        points = self._thinned(points, len(found.values))
        inside = points.expand(node.var, len(found.values))
        place = inside.values[node.var]
        inside.values[node.var] = found.values[place]
        inside.values[_WEIGHT] = inside.values[_WEIGHT] * found.weights[place]
        inside.time = inside.time * len(found.values) + place
        self._body(node.body, inside, (*now, node.var))

    def _if(self, node: kir.If, points: Points, now: tuple[Any, ...]) -> None:
        if (node, (*now, 0)) in self._site_of:
            self._statement(self._site_of[node, (*now, 0)], points)
        if node.condition in self._arrivals:
            yes, no = self._last_block(self._arrivals[node.condition], node, points)
        else:
            yes, no = self._branches(node.condition, points)
        self._body(node.body, yes, (*now, 1))
        self._body(node.orelse, no, (*now, 2))

    def _branches(self, condition: Expr, points: Points) -> tuple[Points, Points]:
        """Return who takes each branch: of a test of data, all take both."""
        try:
            holds = points.where(((condition, True),), self.model.names, self.sizes)
        except Undecidable:
            self.counts.exact = False
            return points, points
        return points.take(holds), points.take(~holds)

    def _last_block(
        self, arrival: kir.Arrive, node: kir.If, points: Points
    ) -> tuple[Points, Points]:
        """Return who takes each branch of a test for the last block: any may be it, one of all.

        Data decide what that costs only where it matters which block of those it is.
        """
        same = {v for i in arrival.index for v in variables(self.names.plain(i))}
        inside = [e for n, _ in kir.walk(node.body) for e in kir.expressions(n)]
        for var in {v for e in inside for v in variables(self.names.plain(e))} - same:
            if isinstance(var, LaunchIndex) and var.dimension.is_grid:
                self.counts.exact = False
        count = max(number(arrival.count, self.sizes), 1)
        return _lighter(points, 1 / count), _lighter(points, 1 - 1 / count)

    # Statements

    def _statement(self, site: Site, points: Points) -> None:
        node, weight = site.node, points.values[_WEIGHT]
        total = round(weight.sum())
        match node:
            case kir.Barrier() | kir.Arrive():
                self._barrier(kir.meets(node), points)
            case kir.Shuffle():
                self.counts.shuffles += self._warps(points)
            case kir.Store():
                factor = self.factors.get(node, 0)
                if factor:
                    self.counts.products[factor] += 2 * total
                elif node.role == "define" and _is_computed(node):
                    self.counts.computed[node.tensor] += total
        for part in kir.expressions(node) if node not in self.factors else ():
            self._operations(part, total)
        for access in self.model.accesses_of(site):
            if access.buffer.memory is not Memory.LOCAL and not isinstance(node, kir.Arrive):
                self._access(site, access, points)

    def _barrier(self, scope: str, points: Points) -> None:
        """Add the barriers of the thread that reaches the most; of an average block, if sampled.

        The most of numbers that were drawn would be beyond the truth.
        """
        weight, key = points.values[_WEIGHT], points.thread
        if self.counts.sampled:
            own = weight / math.prod(self.counts.grid)
        else:
            own, key = weight / points.values[_BLOCKS], points.block * self.threads + key
        _, place = np.unique(key, return_inverse=True)
        self.counts.barriers[scope] += round(float(np.bincount(place, own).max()))

    def _warps(self, points: Points) -> int:
        """Return how many warps execute an instruction, weighted."""
        _, first = np.unique(self._warp(points), return_index=True)
        return round(float(points.values[_WEIGHT][first].sum()))

    def _warp(self, points: Points) -> Array:
        """Return a number for each point that the lanes of one request share."""
        count = -(-self.threads // WARP)
        found: Array = points.time * count + points.thread // WARP
        return found

    def _operations(self, root: Expr, total: int) -> None:
        """Add the arithmetic on floats in an expression, each part of it once."""
        for node in walk(root):
            if isinstance(node, Op) and node.args and node.args[0].dtype.is_float:
                self.counts.flops += FLOPS.get(node.op, 0) * total
                self.counts.special += (node.op in SPECIAL) * total

    # Accesses

    def _access(self, site: Site, access: Access, points: Points) -> None:
        try:
            active = points.take(points.where(access.guards, self.model.names, self.sizes))
        except Undecidable:
            self.counts.exact, active = False, points
        if not active.count:
            return
        entry = self._entry(site, access)
        if not access.writes and self._by_data(site.node, access):
            self.counts.exact = entry.exact = False
        weight = active.values[_WEIGHT]
        entry.elements += round(weight.sum())
        wide = self._wide(site, access)
        if wide is not None:  # one lane of the loop stands for a piece
            lane = active.values[wide.loop.var]
            active = active.take(lane % wide.piece_lanes == 0)
        try:
            place = active.array(self.names.offset(access), {}, {}) * access.buffer.dtype.size
        except Undecidable:
            self.counts.exact = entry.exact = False
            place = None
        self.request(entry, active, place)

    def _by_data(self, node: kir.Stmt, access: Access) -> bool:
        """Whether data say if a statement loads an element, as on one side of a `where`."""
        if node not in self._certain:
            self._certain[node] = _certain(kir.expressions(node))
        return Load(access.buffer, access.index, access.flat) not in self._certain[node]

    def _wide(self, site: Site, access: Access) -> Any:
        if access.writes:
            return self.wide.get(site.node)
        return self.wide.get(Load(access.buffer, access.index, access.flat))

    def _entry(self, site: Site, access: Access) -> AccessCount:
        buffer, node = access.buffer, site.node
        text = str(Load(buffer, access.index, access.flat))
        wide = self._wide(site, access)
        width = buffer.dtype.size if wide is None else wide.piece_bytes
        atomic = isinstance(node, kir.Store) and node.atomic and buffer is node.storage
        key = (text, access.writes, width, atomic, node)
        if key not in self._counted:
            origin = getattr(node, "origin", None)
            self._counted[key] = AccessCount(
                text, buffer.name, buffer.tensor, buffer.memory, access.writes, atomic, width,
                "" if origin is None else f"{origin.file}:{origin.line}", buffer.dtype.size,
            )  # fmt: skip
        return self._counted[key]

    def request(self, entry: AccessCount, points: Points, place: Array | None) -> None:
        """Add the requests of points that access bytes from `place` on; None: anywhere."""
        warp, weight = self._warp(points), points.values[_WEIGHT]
        entry.requests += self._warps(points)
        if entry.memory is Memory.GLOBAL:
            total = weight if place is None else weight[_distinct(warp, place // SECTOR)]
            entry.sectors += round(total.sum())
            return
        parts = max(entry.width // WORD, 1)
        lane = points.thread % WARP
        phase = warp * parts + lane * parts // WARP
        first = _distinct(phase)
        entry.least += round(weight[first].sum())
        if place is None:
            entry.wavefronts += round(weight.sum())
            return
        words = place[:, None] // WORD + np.arange(parts)
        entry.wavefronts += _wavefronts(phase, words, weight)


def _lighter(points: Points, share: float) -> Points:
    """Return points that stand for a share of the blocks."""
    found = points.take(np.full(points.count, share > 0))
    for name in (_WEIGHT, _BLOCKS):
        found.values[name] = found.values[name] * share
    return found


def _is_computed(node: kir.Store) -> bool:
    """Whether a store is more than a copy."""
    return isinstance(node.value, Op) and node.value.op != "cast"


def plain(program: kir.Program) -> kir.Program:
    """Return a launch as it is counted: tiles are their bodies, on registers.

    Of a move of matrices that is the load of the row that each lane names.
    """
    lanes = named(program)
    body = kir.map_body(lanes.body, lambda n: n.body if isinstance(n, kir.Tile) else n)
    return lanes.with_body(body)


def _factors(program: kir.Program) -> dict[kir.Stmt, int]:
    """Return the statements of products by instructions, with the bytes of a factor.

    Those that only lead to them have none.
    """
    found: dict[kir.Stmt, int] = {}
    for tile in [n for n in program.nodes if isinstance(n, kir.Tile)]:
        row = instructions[tile.instruction]
        if row.is_move:
            continue
        held = dict(tile.operands)
        least = min([b.dtype.size for role, b in held.items() if role != row.result])
        for node, _ in kir.walk(tile.body):
            if isinstance(node, kir.Store):
                found[node] = least if node.storage is held[row.result] else 0
    return found


def _distinct(*keys: Array) -> Array:
    """Return the place of the first of each kind."""
    _, first = np.unique(np.stack(keys), axis=1, return_index=True)
    return first


def _wavefronts(phase: Array, words: Array, weight: Any) -> int:
    """Return how often banks are asked: for each phase the most different words of one bank."""
    count = words.shape[1]
    each, flat = np.repeat(phase, count), words.ravel()
    first = _distinct(each, flat)
    each, bank, heavy = each[first], flat[first] % BANKS, np.repeat(weight, count)[first]
    _, start, size = np.unique(
        np.stack([each, bank]), axis=1, return_index=True, return_counts=True
    )
    phases, place = np.unique(each[start], return_inverse=True)
    most = np.zeros(len(phases), np.int64)
    np.maximum.at(most, place, size)
    of_phase = np.zeros(len(phases))
    of_phase[place] = heavy[start]
    return round(float((most * of_phase).sum()))


def _certain(roots: Sequence[Expr]) -> set[Expr]:
    """Return the parts of expressions that are evaluated whatever memory and scalars hold."""
    found: set[Expr] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node in found:
            continue
        found.add(node)
        chosen = isinstance(node, Op) and node.op in ("where", "and", "or")
        whole = not chosen or is_decidable(node.args[0])
        stack += node.args if whole else node.args[:1]
    return found


def _is_data(node: Expr) -> bool:
    """Whether an index depends on what memory holds."""
    return any(isinstance(n, (Load, Local)) for n in walk(node))


def count_launches(
    program: kir.Program, sizes: Mapping[str, int], most: int = MOST
) -> tuple[LaunchCounts, ...]:
    """Return what each launch of a program does at given sizes."""
    parts = [in_registers(part) for part in program.launches]
    return tuple([Counting(part, sizes, most).counts for part in parts])
