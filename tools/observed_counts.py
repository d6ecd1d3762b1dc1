#!/usr/bin/env python
"""The counts of `ln.profile`, held against those of runs of random schedules, thread by thread."""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import loopnest as ln
from loopnest import kir
from loopnest.costs import LaunchCounts
from loopnest.costs.launch_counts import FLOPS, SECTOR, SPECIAL, WORD, count_launches
from loopnest.devtools.harness import Arguments, make_arguments
from loopnest.devtools.trial_sizes import trial_sizes
from loopnest.kir.vector_access import WideAccess, wide_accesses
from loopnest.scalar.arguments import size_value
from loopnest.scalar.enums import WARP, Memory
from loopnest.scalar.expr import Buffer, Expr, Load, Op, walk
from loopnest.second_checker import thread_machine
from loopnest.second_checker.thread_code import Code, _code_of, _ThreadWriter
from mutation.subjects import random_kernel

ROOT = Path(__file__).resolve().parent.parent
Row = dict[str, Any]

HELP = """Run random kernels under random schedules, count what their threads do, and compare.

Every thread runs alone, on the machine of loopnest.second_checker, and says what it does: the
elements that it loads and stores, with its loops; its barriers; the statements that it runs, from
which arithmetic follows. Requests of warps, their sectors and wavefronts are made of that. All have
to be the numbers of ln.profile; where that says that data decide, no more than they.

Random kernels --seeds A:B are looked at, at up to two sizes each; every answer is written to
--journal at once, and what stands there is not run again.

\b
    tools/run python tools/observed_counts.py --seeds 0:3000
    tools/run python tools/observed_counts.py --table build/observed_counts.jsonl
"""


@click.command(help=HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("journals", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--seeds", default="0:100", show_default=True, help="Which random kernels.")
@click.option("--most", default=30_000, show_default=True, help="Statements of a run at most.")
@click.option("--journal", default=ROOT / "build" / "observed_counts.jsonl", show_default=True,
              type=click.Path(path_type=Path), help="Where answers are written.")  # fmt: skip
@click.option("--table", is_flag=True, help="Print the table of JOURNALS; run nothing.")
def main(journals: tuple[Path, ...], seeds: str, most: int, journal: Path, table: bool) -> None:
    if table:
        rows = [row for file in journals for row in read(file)]
        print(markdown(rows))
        raise SystemExit(1 if any(row["differs"] for row in rows) else 0)
    first, end = [int(number) for number in seeds.split(":")]
    known = {row["seed"] for row in read(journal)}
    journal.parent.mkdir(parents=True, exist_ok=True)
    with journal.open("a", encoding="utf-8") as file:
        for seed in [s for s in range(first, end) if s not in known]:
            for row in rows_of(seed, most):
                file.write(json.dumps(row) + "\n")
                file.flush()


def read(journal: Path) -> list[Row]:
    """Return the answers in a journal; a line that was cut off is left out."""
    lines = journal.read_text("utf-8").splitlines() if journal.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def rows_of(seed: int, most: int) -> Iterator[Row]:
    """Yield a row for each size of a random kernel; one without sizes where there is no kernel."""
    made = random_kernel(seed)
    compared = 0
    if made is not None:
        fusion, kernel = made
        for sizes in list(trial_sizes(kernel.program, None, 2, most))[:2]:
            try:
                arguments = make_arguments(fusion, sizes)
                config = kernel.launch(**sizes)
            except ln.LaunchError:
                continue
            scalar = kernel.scalar if config.variant == "scalar" else None
            program = (scalar or kernel).program
            shapes = [[size_value(n, sizes) for n in o.shape] for o in program.outputs]
            nothing = config.is_empty or all(0 in shape for shape in shapes)
            if nothing or any(isinstance(n, kir.Tile) for n in program.nodes):
                continue
            compared += 1
            yield {"seed": seed, "sizes": dict(sizes), **compared_at(program, sizes, arguments)}
    if not compared:
        yield {"seed": seed, "sizes": None, "exact": True, "differs": [], "counts": 0}


def compared_at(program: kir.Program, sizes: Mapping[str, int], arguments: Arguments) -> Row:
    """Return which counts differ between `ln.profile` and a run, and how many there are."""
    names = [p.name for p in program.params if p.kind == "input"]
    arrays = dict(zip(names, arguments.fresh(), strict=True))
    watched: list[Watch] = []

    def code_of(part: kir.Program, at: Mapping[str, int]) -> Code:
        code = _code_of(part, at)
        watched.append(Watch(part, code))
        writer = _WatchingWriter(part, at, code.buffers, code.layouts, code.written)
        writer.watch = watched[-1]
        return Code(writer.function(), code.buffers, code.layouts, code.written)

    with patch.object(thread_machine, "code_of", code_of):
        found = thread_machine.run(program, sizes, arrays, arguments.scalars)
    counted = count_launches(program, sizes)
    exact = all(one.exact and not one.sampled for one in counted)
    differs, total = [], 0
    for number, (one, watch) in enumerate(zip(counted, watched, strict=True)):
        mine, theirs = profiled(one), watch.counts()
        for name in sorted({*mine, *theirs}):
            a, b = mine.get(name, 0), theirs.get(name, 0)
            total += 1
            if (a != b) if exact else (a < b):
                differs.append(f"launch {number}, {name}: profile {a}, run {b}")
    differs += [f"the run broke a rule: {text}" for text in found.broken.values()]
    return {"exact": exact, "differs": differs, "counts": total}


def profiled(launch: LaunchCounts) -> dict[str, int]:
    """Return the counts of a launch by name, those of accesses by buffer."""
    found: Counter[str] = Counter()
    for access in launch.accesses:
        name = f"{'stores to' if access.writes else 'loads of'} {access.buffer}"
        found[f"elements: {name}"] += access.elements
        found[f"requests: {name}"] += access.requests
        if access.memory is Memory.GLOBAL:
            found[f"sectors: {name}"] += access.sectors
        else:
            found[f"wavefronts: {name}"] += access.wavefronts
    for scope, number in launch.barriers.items():
        found[f"barriers: {scope}"] = number
    found["flops"], found["special"] = launch.flops, launch.special
    return {name: number for name, number in found.items() if number}


@dataclass(frozen=True)
class WatchedAccess:
    """A load or store of the nest; `place` is that of the vectorized loop among its loops."""

    buffer: Buffer
    writes: bool
    flat: bool
    wide: WideAccess | None
    place: int

    @property
    def name(self) -> str:
        """What a count of it is called."""
        return f"{'stores to' if self.writes else 'loads of'} {self.buffer.name}"


@dataclass
class Watch:
    """What the threads of a launch do, as they say it.

    Args:
        program: the launch.
        code: its buffers and layouts.
    """

    program: kir.Program
    code: Code
    statements: list[kir.Stmt] = field(default_factory=list)
    accesses: list[WatchedAccess] = field(default_factory=list)
    runs: Counter[int] = field(default_factory=Counter)
    waits: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    touched: dict[tuple[Any, ...], int] = field(default_factory=dict)
    now: tuple[Any, ...] = ()

    def step(self, thread: Any, number: int, loops: tuple[int, ...]) -> None:
        """Take note that a thread runs a statement."""
        self.now = (thread.block.number, thread.number, number, loops)
        self.runs[number] += 1
        scope = kir.meets(self.statements[number])
        if scope and not isinstance(self.statements[number], kir.Shuffle):
            self.waits[scope, thread.block.number, thread.number] += 1

    def touch(self, thread: Any, number: int, index: Sequence[int], value: object) -> object:
        """Take note of an element that the statement at hand loads or stores; return `value`."""
        access = self.accesses[number]
        buffer, place = access.buffer, list(index)
        shape, strides, _ = self.code.layouts[self.code.buffers.index(buffer)]
        if access.flat:
            strides = (1,)
        else:
            for a, b in buffer.swizzles:
                place[b] ^= place[a] % shape[b]
        element = sum([at * stride for at, stride in zip(place, strides, strict=True)])
        self.touched[(*self.now, number)] = element * buffer.dtype.size
        return value

    def counts(self) -> dict[str, int]:
        """Return the numbers that a profile has of a launch."""
        found: Counter[str] = Counter()
        requests: dict[tuple[Any, ...], list[tuple[int, int]]] = defaultdict(list)
        for (block, thread, statement, loops, number), byte in self.touched.items():
            access = self.accesses[number]
            found[f"elements: {access.name}"] += 1
            if access.wide is None or loops[access.place] % access.wide.piece_lanes == 0:
                requests[number, block, thread // WARP, statement, loops].append((thread, byte))
        for (number, *_), lanes in requests.items():
            access = self.accesses[number]
            found[f"requests: {access.name}"] += 1
            if access.buffer.memory is Memory.GLOBAL:
                sectors = {byte // SECTOR for _, byte in lanes}
                found[f"sectors: {access.name}"] += len(sectors)
            else:
                wide, size = access.wide, access.buffer.dtype.size
                width = size if wide is None else wide.piece_bytes
                found[f"wavefronts: {access.name}"] += wavefronts(lanes, width)
        for (scope, _, _), number in self.waits.items():
            found[f"barriers: {scope}"] = max(found[f"barriers: {scope}"], number)
        for number, times in self.runs.items():
            ops = [n for e in kir.expressions(self.statements[number]) for n in set(walk(e))]
            floats = [n for n in ops if isinstance(n, Op) and n.args and n.args[0].dtype.is_float]
            found["flops"] += times * sum([FLOPS.get(n.op, 0) for n in floats])
            found["special"] += times * sum([n.op in SPECIAL for n in floats])
        return {name: number for name, number in found.items() if number}


def wavefronts(lanes: Sequence[tuple[int, int]], width: int) -> int:
    """Return how often SHARED memory is asked for a request, the most different words of a bank."""
    parts, total = max(width // WORD, 1), 0
    for phase in range(parts):
        banks: dict[int, set[int]] = defaultdict(set)
        for lane, byte in lanes:
            if lane % WARP * parts // WARP == phase:
                for word in range(byte // WORD, byte // WORD + parts):
                    banks[word % 32].add(word)
        total += max([len(words) for words in banks.values()], default=0)
    return total


class _WatchingWriter(_ThreadWriter):
    """Writes threads that say what they do."""

    watch: Watch

    def function(self) -> Any:
        self.told = self._constant(self.watch)
        self.wide: dict[object, WideAccess] = {
            w.statement if w.load is None else w.load: w for w in wide_accesses(self.program)
        }
        self.current: kir.Stmt | None = None
        self.loops: tuple[str, ...] = ()
        return super().function()

    def _statement(self, node: kir.Stmt, depth: int, pad: str, loops: tuple[str, ...]) -> None:
        before = self.current, self.loops
        self.current, self.loops = node, loops
        # What is written anew for each statement has its own accesses.
        self.texts = {e: t for e, t in self.texts.items() if self.told not in t}
        if kir.expressions(node) or kir.meets(node):
            self.watch.statements.append(node)
            values = "".join([f"{name}, " for name in loops])
            number = len(self.watch.statements) - 1
            self.lines.append(f"{pad}{self.told}.step(T, {number}, ({values}))")
        super()._statement(node, depth, pad, loops)
        self.current, self.loops = before

    def _call(
        self, verb: str, buffer: Buffer, index: Sequence[Expr], flat: bool, value: str = ""
    ) -> str:
        plain = super()._call(verb, buffer, index, flat, value)
        if buffer.memory is Memory.LOCAL:
            return plain
        return self._noted(verb == "S", buffer, index, flat, plain)

    def _noted(
        self, writes: bool, buffer: Buffer, index: Sequence[Expr], flat: bool, value: str
    ) -> str:
        found: object = self.current if writes else Load(buffer, tuple(index), flat)
        wide = self.wide.get(found)
        place = self.loops.index(self.name(wide.loop.var)) if wide is not None else 0
        self.watch.accesses.append(WatchedAccess(buffer, writes, flat, wide, place))
        inner = "".join([f"{self.text(i)}, " for i in index])
        number = len(self.watch.accesses) - 1
        return f"{self.told}.touch(T, {number}, ({inner}), {value})"

    def _fly(self, node: kir.Store, pad: str) -> None:
        self.lines.append(f"{pad}{self._noted(True, node.storage, node.index, node.flat, 'None')}")
        super()._fly(node, pad)


def markdown(rows: Sequence[Row]) -> str:
    """Return the table of answers."""
    run = [row for row in rows if row["sizes"] is not None]
    kernels = {row["seed"] for row in run}
    exact = [row for row in run if row["exact"]]
    wrong = [row for row in run if row["differs"]]
    lines = [
        "# Counts of profiles, held against runs",
        "",
        "| | schedules | runs | counts | differ |",
        "| --- | --- | --- | --- | --- |",
    ]
    for title, chosen in (
        ("exact", exact),
        ("data decide: at most", [row for row in run if not row["exact"]]),
    ):
        seeds, counts = {row["seed"] for row in chosen}, sum(row["counts"] for row in chosen)
        differ = sum(len(row["differs"]) for row in chosen)
        lines.append(f"| {title} | {len(seeds)} | {len(chosen)} | {counts} | {differ} |")
    lines += ["", f"{len(kernels)} random schedules of {len({row['seed'] for row in rows})} seeds "
              "ran; the others have no kernel, or launch nothing at these sizes."]  # fmt: skip
    lines += [
        "",
        *[f"- seed {r['seed']} at {r['sizes']}: {'; '.join(r['differs'])}" for r in wrong],
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
