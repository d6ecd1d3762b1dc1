"""Costs counted the slow way: every point of every thread, one by one, and by the interpreter."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

import loopnest as ln
from loopnest import kir
from loopnest.kir.vector_access import wide_accesses
from loopnest.lane_machine.abstract_machine import Machine
from loopnest.proofs.point_arrays import Enumeration, number
from loopnest.proofs.program_model import Model
from loopnest.scalar.enums import BLOCK_DIMENSIONS, Memory
from loopnest.scalar.expr import Load


def by_points(program: kir.Program, sizes: dict[str, int]) -> dict[str, Counter[str]]:
    """Return what accesses of one launch cost, by their text, each point counted by itself."""
    model = Model(program)
    points_of = Enumeration(model, sizes, 1 << 22).points
    wide = {(w.statement if w.load is None else w.load): w for w in wide_accesses(program)}
    found: dict[str, Counter[str]] = defaultdict(Counter)
    threads = threads_of(program, sizes)
    for site, points in points_of.items():
        for access in model.accesses_of(site):
            if access.buffer.memory is Memory.LOCAL or isinstance(site.node, kir.Arrive):
                continue
            load = Load(access.buffer, access.index, access.flat)
            piece = wide.get(site.node if access.writes else load)
            active = points.take(points.where(access.guards, model.names, sizes))
            place = _places(model, access, active, sizes) * access.buffer.dtype.size
            told = found[f"{'store' if access.writes else 'load'} {load}"]
            told["elements"] += active.count
            width = access.buffer.dtype.size
            keep = np.ones(active.count, bool)
            if piece is not None:
                width = piece.piece_bytes
                keep = active.values[piece.loop.var] % piece.piece_lanes == 0
            requests = defaultdict(list)
            for p in np.flatnonzero(keep):
                lane = int(active.thread[p]) % threads
                block = int(active.block[p])
                requests[block, lane // 32, int(active.time[p])].append((lane, int(place[p])))
            told["requests"] += len(requests)
            for lanes in requests.values():
                told["sectors"] += len({byte // 32 for _, byte in lanes})
                told["wavefronts"] += wavefronts(lanes, width)
    return found


def threads_of(program: kir.Program, sizes: dict[str, int]) -> int:
    found = 1
    for dim, extent in program.launch:
        if dim in BLOCK_DIMENSIONS:
            found *= number(extent, sizes)
    return found


def wavefronts(lanes: list[tuple[int, int]], width: int) -> int:
    """Return how many wavefronts a request of shared memory takes."""
    parts, total = max(width // 4, 1), 0
    for phase in range(parts):
        banks = defaultdict(set)
        for lane, byte in lanes:
            if lane % 32 * parts // 32 == phase:
                for word in range(byte // 4, byte // 4 + parts):
                    banks[word % 32].add(word)
        total += max(map(len, banks.values()), default=0)
    return total


def _places(model, access, points, sizes):
    if access.flat:
        return points.array(access.index[0], model.names, sizes)
    indices = [points.array(i, model.names, sizes) for i in access.index]
    for a, b in access.buffer.swizzles:
        indices[b] = indices[b] ^ (indices[a] % int(access.buffer.shape[b].value))
    total = np.zeros(points.count, np.int64)
    for index, stride in zip(indices, access.buffer.strides, strict=True):
        total += index * points.array(stride, model.names, sizes)
    return total


def by_interpreter(kernel, arguments, fusion, monkeypatch) -> Counter[str]:
    """Return how many elements of each buffer a run stores, in memory that is not LOCAL."""
    found: Counter[str] = Counter()
    plain, within = Machine.visit_store, []

    def store(self, node, frame):
        if not within and node.storage.memory is not Memory.LOCAL:
            found[node.storage.name] += frame.lanes
        within.append(node)  # an atomic store hands its lanes on one after the other
        try:
            plain(self, node, frame)
        finally:
            within.pop()

    with monkeypatch.context() as patched:
        patched.setattr(Machine, "visit_store", store)
        run = ln.compile(kernel, target="interpret")
        run(*arguments.fresh(), **arguments.keywords(fusion))
    return found
