"""Random schedules: calls of every primitive on every tensor, legal and not, as lines of Python.

A schedule has a style, which says what calls follow each other, so that all depths are reached;
after any style, one schedule in eight gets several launches.

"free" takes any call at any time; "tile" transforms one tensor, carries that to others, inlines,
and binds loops at last, as people do; "place" mostly moves tensors into each other's loops;
"reduce" works on reductions; "threads" gives all tensors the tiled loops of one and binds these to
grid, block and lanes; "blocks" lets values cross threads: shared memory, and reductions over the
threads of a block and over blocks; "copies" gives reductions tiles of what they read; "stages"
factors one reduction again and again, each stage in a memory of its own; "lanes" has vectors inside
of unswitch and unroll loops; "joint" lets the threads of a block, and blocks, reduce several values
of a thread together; "halo" gives what is read in windows tiles of its readers' loops; "chains"
puts copies between windows and places them all, in any order; "swizzles" permutes buffers in shared
memory; "scans" binds scans to threads; "grouped" takes tiles in groups of rows by one loop;
"scatters" runs scatters over their sources; "orders" folds by own reducers over threads and blocks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from random import Random

from loopnest.devtools.fuzzing.case_lines import Session
from loopnest.devtools.fuzzing.judge import require_order
from loopnest.devtools.fuzzing.schedule_calls import LOOPS, MEMORIES, THREADS, ScheduleCalls
from loopnest.facade import language as ln

Report = Callable[[str, str], None]

_STYLES = ["free", "free", "tile", "tile", "place", "place", "reduce"]
_STYLES += ["threads"] * 3 + ["blocks"] * 4 + ["copies"] * 2 + ["stages"] * 3 + ["lanes"] * 2
_STYLES += ["grouped"] * 2 + ["joint"] * 2 + ["halo"] * 3 + ["swizzles"] * 2 + ["chains"] * 3


class ScheduleWriter(ScheduleCalls):
    """Writes a random schedule into a session whose math is written.

    Args:
        session: with math and outputs.
        rng: decides everything.
        report: is told each call's primitive and outcome.
    """

    def __init__(self, session: Session, rng: Random, report: Report | None = None) -> None:
        super().__init__(session, rng)
        self.report = report
        self.style = rng.choice(_STYLES)
        for style, found in (
            ("scans", self._scanned()),
            ("scatters", self._scattered()),
            ("orders", self._ordered()),
        ):  # few fusions have one
            if found and rng.random() < 0.4:
                self.style = style
        if self.style == "stages":
            self.symbolic_factors = 0.2

    def write(self) -> None:
        """Write up to a dozen calls, each judged at once.

        Raises:
            Failure: a call broke a promise.
        """
        for line in getattr(self, f"_{self.style}")():
            self._attempt(line)
        self._sometimes("atomic", lambda: self._atomic(self._reduction()))
        self._sometimes("", self._launches)
        require_order(self.session.fusion)

    def _sometimes(self, mark: str, calls: Callable[[], Iterable[str]]) -> None:
        """Let one schedule in eight have some calls more; what others draw stays the same."""
        shown = [str(tensor) for tensor in self.session.fusion.tensors]
        own = Random("\n".join([*mark.split(), *shown]))
        if own.random() < 0.125:
            drawn, self.rng = self.rng, own
            for line in calls():
                self._attempt(line)
            self.rng = drawn

    def _attempt(self, line: str) -> bool:
        own = Random(f"{line}/{len(self.session.schedule)}")
        if own.random() < 0.25:  # the same call; what others draw stays the same
            line = by_names(line, self.session, own)
        accepted = self.session.attempt(line, self.report)
        if accepted:
            if "inline_most" in line:
                require_order(self.session.fusion, line)
            if "recompute=True" in line:
                self._bind_clones()
        return accepted

    def _bind_clones(self) -> None:
        session = self.session
        known = {session.tensor(n) for n in session.tensors}
        for name in list(session.tensors):
            for place, clone in enumerate(session.tensor(name).clones):
                if clone not in known:
                    known.add(clone)
                    self.session.attempt(f"{self._new('d')} = {name}.clones[{place}]")

    # Styles

    def _free(self) -> Iterator[str]:
        for _ in range(self.rng.randint(1, 12)):
            yield self._any()
        if self.rng.random() < 0.4:
            yield self._most()

    def _place(self) -> Iterator[str]:
        rng = self.rng
        for _ in range(rng.randint(0, 4)):
            yield self._transform(self._tensor())
        for _ in range(rng.randint(1, 5)):
            yield self._weighted([(self._compute_at, 6), (self._inline_at, 1), (self._most, 1)])
        if rng.random() < 0.4:
            yield from self._bind(self._tensor())
        if rng.random() < 0.3:
            yield self._any()

    def _tile(self) -> Iterator[str]:
        rng = self.rng
        ref = self._output()
        if rng.random() < 0.3:
            yield self._cache()
        if rng.random() < 0.15:
            yield from self._factored(self._reduction())
        for _ in range(rng.randint(1, 5)):
            yield self._transform(ref)
        if rng.random() < 0.5:
            pos = rng.choice(["", f", {self._position(ref)}"])
            yield f"ln.propagate({ref}{pos})"
        if rng.random() < 0.15:
            yield from self._bind(ref)
            yield f"ln.parallelize_like({ref})"
        chance = rng.random()
        if chance < 0.5:
            yield self._most()
        elif chance < 0.9:
            for _ in range(rng.randint(1, 3)):
                yield f"{self._above(ref)}.compute_at({ref}, {self._position(ref)})"
        if rng.random() < 0.7:
            yield from self._bind(ref)
            if rng.random() < 0.7:
                yield f"ln.parallelize_like({ref})"
        if rng.random() < 0.3:
            yield self._any()

    def _threads(self) -> Iterator[str]:
        rng = self.rng
        ref = self._output()
        if rng.random() < 0.4:
            yield self._cache()
        while self._of(ref).ndim > 1 and rng.random() < 0.7:
            yield f"{ref}.merge({rng.randrange(self._of(ref).ndim - 1)})"
        lanes = rng.random() < 0.4
        for _ in range(rng.randint(1, 2)):
            yield f"{ref}.split({self._axis(ref)}, {self._factor()})"
        if lanes:
            yield f"{ref}.split(-1, {rng.choice([2, 4])})"
        yield f"ln.propagate({ref})"
        yield self._most() if rng.random() < 0.8 else self._compute_at()
        free = list(THREADS)
        for axis in range(self._of(ref).ndim - lanes):
            if free and rng.random() < 0.6:
                kind = free.pop(rng.choice([0, 0, -1]))
                yield f"{ref}.axis({axis}).parallelize(ln.ParallelType.{kind})"
            elif rng.random() < 0.4:
                kind = rng.choice(LOOPS)
                yield f"{ref}.axis({axis}).parallelize(ln.ParallelType.{kind})"
        if lanes:
            yield f"{ref}.axis(-1).parallelize(ln.ParallelType.vectorize)"
        if rng.random() < 0.8:
            yield f"ln.parallelize_like({ref})"

    def _blocks(self) -> Iterator[str]:
        rng = self.rng
        ref = self._output()
        for _ in range(rng.randint(0, 2)):
            yield self._cache()
        for _ in range(rng.randint(0, 2)):
            yield self._transform(ref)
        if rng.random() < 0.5:
            yield from self._factored(self._reduction())
        if rng.random() < 0.5:
            yield f"ln.propagate({ref}, {self._position(ref)})"
        for _ in range(rng.randint(0, 2)):
            yield f"{self._above(ref)}.compute_at({ref}, {self._position(ref)})"
        names = [n for n in self.session.tensors if self._is_plain(n)]
        for name in rng.sample(names, min(len(names), rng.randint(0, 2))):
            yield f"{name}.memory = ln.{rng.choice(['SHARED'] * 4 + ['GLOBAL'])}"
        if rng.random() < 0.3:
            yield self._most()
        if rng.random() < 0.4:
            yield from self._laid_out(names)
        for name in [*rng.sample(names, min(len(names), rng.randint(0, 3))), ref]:
            yield from self._bind_apart(name)
        for name in names:
            if self._of(name).memory is ln.SHARED and rng.random() < 0.5:
                yield self._layout(name)

    def _grouped(self) -> Iterator[str]:
        """Yield tiles of two axes, whose order goes through groups of rows of tiles, in one loop.

        ``[M, N]`` becomes ``[tiles, M's tile, N's tile]``: what a grid of one dimension goes
        through so that neighbouring blocks read neighbouring rows and columns.
        """
        rng = self.rng
        ref = self._output()
        kept = [n for n, a in enumerate(self._of(ref).leaf_domain) if not a.is_reduction]
        if len(kept) < 2:
            yield from self._threads()
            return
        if rng.random() < 0.3:
            yield f"{self._new('c')} = {ref}.cache_before()"
        a, b = sorted(rng.sample(kept, 2))
        count = self._of(ref).ndim
        yield f"{ref}.split({b}, {rng.choice([2, 3, 4, 8])})"
        yield f"{ref}.split({a}, {rng.choice([2, 3, 4, 8])})"
        tail = [n for n in range(count + 2) if n not in (a, a + 1, b + 1, b + 2)]
        yield f"{ref}.reorder({[a, b + 1, *tail, a + 1, b + 2]})"
        yield f"{ref}.split(0, {rng.choice([2, 3, 4, 8])})"
        yield f"{ref}.reorder({{1: 2}})"
        yield f"{ref}.merge(0)"
        yield f"{ref}.merge(0)"
        if rng.random() < 0.3:  # so many blocks go through all tiles
            yield f"{ref}.split(0, {rng.choice([2, 3, 5])}, inner=False)"
        yield f"ln.propagate({ref})"
        if rng.random() < 0.7:
            yield self._most()
        else:
            yield f"{self._above(ref)}.compute_at({ref}, {self._position(ref)})"
        kinds = rng.choice([["grid_x", "block_x"], ["grid_x"], ["block_x"], ["cpu_parallel"]])
        yield f"{ref}.axis(0).parallelize(ln.ParallelType.{kinds[0]})"
        for kind in kinds[1:]:
            yield f"{ref}.axis(-1).parallelize(ln.ParallelType.{kind})"
        if rng.random() < 0.8:
            yield f"ln.parallelize_like({ref})"

    def _scatters(self) -> Iterator[str]:
        """Yield calls that run a scatter over its sources, with its keys at any place."""
        rng = self.rng
        name = rng.choice(self._scattered())
        if rng.random() < 0.7 and self._of(name).ndim > 1:
            yield f"{name}.reorder({{{(self._reduced(name) or [1])[-1]}: 0}})"
        if rng.random() < 0.6:
            yield f"{name}.split(0, {self._factor()})"
        for producer in self._some([n for n in self.session.tensors if self._is_plain(n)]):
            if name in self._below(producer):
                if rng.random() < 0.5:
                    yield f"{producer}.memory = ln.{rng.choice(MEMORIES)}"
                if rng.random() < 0.6:
                    yield f"{producer}.compute_at({name}, {self._position(name)})"
        if rng.random() < 0.5:
            yield self._most()
        if rng.random() < 0.5:
            yield from self._atomic(name)
        else:
            yield from self._bind_apart(name)
        if rng.random() < 0.3:
            yield self._most()

    def _orders(self) -> Iterator[str]:
        """Yield calls that fold by an own reducer over threads and blocks, neighbours in order."""
        rng = self.rng
        name = rng.choice(self._ordered())
        for place in self._reduced(name)[-1:]:
            yield f"{name}.split({place}, {rng.choice([2, 3, 4, 7, 32, 33])})"
            if rng.random() < 0.4:
                yield f"{name}.split({place}, {rng.choice([2, 4, 8, 32])})"
        folded, bound = self._reduced(name), [name]
        if len(folded) > 1 and rng.random() < 0.4:
            chosen = folded[-rng.randint(1, len(folded) - 1) :]
            part = self._new("r")
            yield f"{part} = {name}.rfactor({folded[:1] if rng.random() < 0.4 else chosen})"
            bound += [part] * (part in self.session.tensors)
        kinds = rng.choice([
            ["block_x"], ["block_y", "block_x"], ["grid_x", "block_x"], ["grid_x"],
            ["block_x", "serial"], ["grid_x", "block_x", "serial"],
        ])  # fmt: skip
        for made in bound:
            for place, kind in zip(reversed(self._reduced(made)), reversed(kinds), strict=False):
                yield f"{made}.axis({place}).parallelize(ln.ParallelType.{kind})"
            rest = [n for n, a in enumerate(self._of(made).leaf_domain) if a.is_iteration]
            if rest and rng.random() < 0.4:
                kind = rng.choice(["grid_y", "block_z", "block_y"])
                yield f"{made}.axis({rest[0]}).parallelize(ln.ParallelType.{kind})"
            if self._is_plain(made) and rng.random() < 0.4:
                yield f"{made}.memory = ln.{rng.choice(MEMORIES)}"
        for _ in range(rng.randint(0, 2)):
            yield self._weighted([(self._compute_at, 3), (self._most, 3), (self._like, 2)])

    def _laid_out(self, names: list[str]) -> Iterator[str]:
        """Yield calls that lay out buffers, and then give their tensors other loops."""
        rng = self.rng
        for name in rng.sample(names, min(len(names), rng.randint(1, 2))):
            for _ in range(rng.randint(1, 3)):
                yield self._allocation(name)
            for _ in range(rng.randint(0, 2)):
                yield self._transform(name)

    def _reduce(self) -> Iterator[str]:
        rng = self.rng
        for _ in range(rng.randint(1, 3)):
            name = self._reduction()
            for _ in range(rng.randint(0, 3)):
                yield self._transform(name)
            if rng.random() < 0.6:
                yield from self._factored(name)
            if rng.random() < 0.3:
                yield self._cache()
        for _ in range(rng.randint(0, 3)):
            yield self._weighted([(self._compute_at, 4), (self._inline_at, 1), (self._most, 2)])
        if rng.random() < 0.5:
            yield from self._bind(self._tensor())

    def _copies(self) -> Iterator[str]:
        rng = self.rng
        ref = self._reduction()
        made: list[str] = []
        for _ in range(rng.randint(1, 2)):
            name = self._new("c")
            yield f"{name} = {self._above(ref)}.cache_after()"
            if name in self.session.tensors:
                made.append(name)
        for _ in range(rng.randint(1, 3)):
            yield f"{ref}.split({self._axis(ref)}, {self._factor()})"
        if rng.random() < 0.6:
            yield f"{ref}.reorder({self._order(ref)})"
        for name in made:
            yield f"{name}.compute_at({ref}, {self._position(ref)})"
            if rng.random() < 0.4:
                yield f"{name}.memory = ln.SHARED"
            if rng.random() < 0.3:
                yield from self._rotated(name)
            if rng.random() < 0.3:
                yield self._transform(name)
            if rng.random() < 0.3:
                yield from self._bind_apart(name)
        if rng.random() < 0.5:
            yield from self._bind(ref)
        if rng.random() < 0.6:
            yield self._most()

    def _stages(self) -> Iterator[str]:
        """Yield calls that factor a reduction two or three times, and place what it goes through.

        A stage is a part of a part: its extents are what splits that do not divide leave.
        """
        stages: list[str] = []
        yield from self._factored_again(stages)
        yield from self._placed(stages)
        if self.rng.random() < 0.3:
            yield self._cache()
        if self.rng.random() < 0.3:
            yield self._most()
        for made in self._some(stages):
            yield from self._bind_apart(made)

    def _factored_again(self, stages: list[str]) -> Iterator[str]:
        """Yield rfactors of one reduction, mostly of the one before; add them to `stages`."""
        rng = self.rng
        name = self._reduction()
        for _ in range(rng.choice([1, 2, 2, 3])):
            for place in self._reduced(name)[-2:]:
                if rng.random() < 0.7:
                    outer = ", inner=False" if rng.random() < 0.2 else ""
                    yield f"{name}.split({place}, {self._factor()}{outer})"
            if rng.random() < 0.25:
                yield self._transform(name)
            call = self._rfactor(name)
            yield call
            made = call.partition(" = ")[0]
            if made not in self.session.tensors:
                return
            stages.append(made)
            if rng.random() < 0.8:
                name = made

    def _placed(self, stages: list[str]) -> Iterator[str]:
        """Yield calls that give stages memory, loops of their own, and places in other loops."""
        rng = self.rng
        for made in stages:
            if rng.random() < 0.75:
                yield f"{made}.memory = ln.{rng.choice(MEMORIES)}"
            if rng.random() < 0.3:
                yield self._transform(made)
        for made in self._some(stages):
            below = self._below(made)
            if below:
                target = rng.choice(below)
                yield f"{made}.compute_at({target}, {self._position(target)})"

    def _joint(self) -> Iterator[str]:
        """Yield calls that bind what a reduction folds to threads, around lanes of its result."""
        rng = self.rng
        name = self._reduction()
        if self._of(name).is_output and rng.random() < 0.5:
            held = self._new("j")
            yield f"{held} = {name}.cache_before()"
            name = held if held in self.session.tensors else name
        kept = [n for n, a in enumerate(self._of(name).leaf_domain) if a.is_iteration]
        for _ in range(rng.randint(1, 2)):
            if kept:
                yield f"{name}.split({rng.choice(kept)}, {rng.choice([2, 2, 3, 4, 4, 8])})"
                yield f"{name}.reorder({{{rng.choice(kept) + 1}: -1}})"
        for place in self._reduced(name)[:1]:
            yield f"{name}.split({place}, {rng.choice([2, 4, 7, 12, 32, 33, 64])})"
        folded = self._reduced(name)
        for place, kind in zip(
            folded[::-1],
            rng.choice([("block_x",), ("block_y", "grid_y"), ("grid_x",)]),
            strict=False,
        ):
            yield f"{name}.axis({place}).parallelize(ln.ParallelType.{kind})"
        behind = [n for n in range(self._of(name).ndim) if folded and n > folded[-1]]
        for place in behind:
            kind = rng.choice(["unroll", "unroll", "vectorize", "serial", "block_z"])
            yield f"{name}.axis({place}).parallelize(ln.ParallelType.{kind})"
        for place in kept[:1]:
            kind = rng.choice(["grid_z", "block_z", "serial"])
            yield f"{name}.axis({place}).parallelize(ln.ParallelType.{kind})"

    def _lanes(self) -> Iterator[str]:
        """Yield calls that put vectors inside of loops whose bodies are doubled or unrolled."""
        rng = self.rng
        ref = self._output()
        if rng.random() < 0.3:
            yield self._cache()
        yield f"{ref}.split(-1, {rng.choice([2, 4, 4, 8])})"
        for _ in range(rng.randint(1, 2)):
            if self._of(ref).ndim > 1:
                yield f"{ref}.split({rng.randrange(self._of(ref).ndim - 1)}, {self._factor()})"
        yield f"ln.propagate({ref})"
        yield "f.inline_most()" if rng.random() < 0.7 else self._compute_at()
        count = self._of(ref).ndim
        free = ["grid_x", "block_x"] if rng.random() < 0.5 else []
        for axis in range(count - 1):
            chance = rng.random()
            if free and chance < 0.4:
                yield f"{ref}.axis({axis}).parallelize(ln.ParallelType.{free.pop(0)})"
            elif chance < 0.8:
                kind = rng.choice(["unswitch", "unswitch", "unroll"])
                yield f"{ref}.axis({axis}).parallelize(ln.ParallelType.{kind})"
        yield f"{ref}.axis(-1).parallelize(ln.ParallelType.vectorize)"
        if rng.random() < 0.8:
            yield f"ln.parallelize_like({ref})"

    def _halo(self) -> Iterator[str]:
        """Yield calls that place what is read in windows, tile by tile, in memory of any kind."""
        rng = self.rng
        ref = self._output()
        for _ in range(rng.randint(1, 4)):
            yield self._transform(ref)
        read = [n for n in self.session.tensors if self._is_plain(n) and self._is_windowed(n)]
        for name in rng.sample(read, min(len(read), rng.randint(1, 3))):
            if rng.random() < 0.6:
                yield f"{name}.memory = ln.{rng.choice(MEMORIES)}"
            below = self._below(name)
            target = ref if ref in below and rng.random() < 0.7 else rng.choice(below or [ref])
            extra = ", recompute=True" if rng.random() < 0.1 else ""
            yield f"{name}.compute_at({target}, {self._position(target)}{extra})"
            if rng.random() < 0.4:
                yield self._transform(name)
        if rng.random() < 0.7:
            yield self._most()
        if rng.random() < 0.6:
            yield from self._bind(ref)
            if rng.random() < 0.5:
                yield f"ln.parallelize_like({ref})"
        for name in read:
            if rng.random() < 0.4:
                yield from self._bind_apart(name)
            elif rng.random() < 0.2:
                yield self._layout(name)

    def _chains(self) -> Iterator[str]:
        """Yield calls that copy what windows read, copies of copies too, and place them all."""
        rng, made = self.rng, list[str]()
        read = [n for n in self.session.tensors if self._is_windowed(n)]
        for _ in range(rng.randint(1, 4)):
            name = rng.choice([*made[-1:] * 2, *read] or self.session.tensors)
            copy = self._new("c")
            before = not self._of(name).is_input and rng.random() < 0.3
            yield f"{copy} = {name}.cache_{'before' if before else 'after'}()"
            made += [copy] * (copy in self.session.tensors)
        ref = self._output()
        for _ in range(rng.randint(1, 4)):
            yield self._transform(ref)
        computed = [n for n in read if self._is_plain(n)]
        moved = [*made, *self._some(computed), *self._some(made)]
        rng.shuffle(moved)
        for name in moved:
            below = self._below(name) or [ref]
            near = [n for n in below if self._of(name) in self._of(n).producers]
            target = rng.choice([*near, *near, rng.choice(below), *[ref] * (ref in below)])
            if rng.random() < 0.2:
                yield self._transform(target)
            yield f"{name}.compute_at({target}, {self._position(target)})"
            if rng.random() < 0.3:
                yield f"{name}.memory = ln.{rng.choice(MEMORIES)}"
        for name in self._some(made):
            if rng.random() < 0.2:
                yield from self._rotated(name)
            if rng.random() < 0.3:
                yield from self._bind_apart(name)
        if rng.random() < 0.4:
            yield self._most()
        if rng.random() < 0.6:
            yield from self._bind(ref)

    def _swizzles(self) -> Iterator[str]:
        """Yield calls that swizzle buffers in shared memory, and give their tensors threads."""
        rng = self.rng
        if rng.random() < 0.4 or not any(map(self._is_plain, self.session.tensors)):
            made = self._new("c")
            used = [n for n in self.session.tensors if self._of(n).consumers]
            yield f"{made} = {rng.choice(used or self.session.tensors)}.cache_after()"
        names = [n for n in self.session.tensors if self._is_plain(n)]
        for name in rng.sample(names, min(len(names), rng.randint(1, 2))):
            below = self._below(name)
            if below and rng.random() < 0.4:
                target = rng.choice(below)
                yield self._transform(target)
                yield f"{name}.compute_at({target}, {self._position(target)})"
            yield f"{name}.memory = ln.SHARED"
            if rng.random() < 0.5:
                yield from self._swizzled_loops(name)
            else:
                yield from self._swizzled_layout(name)
                for _ in range(rng.randint(0, 2)):
                    yield self._transform(name)
            yield from self._bind_apart(name)
        for name in self._some(self.session.tensors):
            if not self._of(name).is_input:
                yield from self._bind_apart(name)
        if rng.random() < 0.3:
            yield self._most()

    def _swizzled_loops(self, name: str) -> Iterator[str]:
        """Yield splits of two loops by one power of two, or of one loop twice, and a swizzle."""
        rng, tensor = self.rng, self._of(name)
        factor = rng.choice([2, 4, 8])
        for _ in range(2):
            leaf = [(n, a) for n, a in enumerate(tensor.leaf_domain) if n >= tensor.frozen]
            free = [n for n, a in leaf if a.is_iteration and str(a.size) != str(factor)]
            if free:
                yield f"{name}.split({rng.choice(free)}, {factor})"
        places = [n for n, a in enumerate(tensor.leaf_domain) if str(a.size) == str(factor)]
        if len(places) > 1:
            a, b = rng.sample(places, 2)
            yield f"{name}.swizzle(ln.Swizzle.XOR, {a}, {b})"

    def _swizzled_layout(self, name: str) -> Iterator[str]:
        """Yield calls that give a buffer axes of powers of two, swizzle them, and perhaps pad."""
        rng, domain = self.rng, self._of(name).allocation_domain
        powers = ("2", "4", "8", "16", "32")
        for _ in range(rng.randint(1, 3)):
            if len(domain) > 1 and rng.random() < 0.2:
                yield f"{name}.allocation_domain.merge({rng.randrange(len(domain) - 1)})"
            free = [n for n, a in enumerate(domain) if str(a.size) not in powers]
            if free:
                call = f"split({rng.choice(free)}, {rng.choice([2, 4, 4, 8])})"
                yield f"{name}.allocation_domain.{call}"
        for _ in range(rng.choice([1, 1, 2])):
            places = [n for n, a in enumerate(domain) if str(a.size) in powers]
            if len(places) > 1:
                a, b = rng.sample(places, 2)
                yield f"{name}.allocation_domain.swizzle(ln.Swizzle.XOR, {a}, {b})"
        if len(domain) and rng.random() < 0.3:
            yield f"{name}.allocation_domain.pad({rng.randrange(len(domain))}, 1)"

    def _launches(self) -> Iterator[str]:
        """Yield starts of launches, and the memory that lasts from one to the next."""
        rng, fusion = self.rng, self.session.fusion
        live = fusion.live()
        heads = [n for n in self.session.tensors if self._of(n).producers and self._of(n) in live]
        for name in rng.sample(heads, min(len(heads), rng.randint(1, 3))):
            yield f"{name}.new_launch()"
            if rng.random() < 0.15:
                yield from self._factored(name)
            elif rng.random() < 0.15:
                yield f"{self._new('c')} = {name}.cache_before()"
            if rng.random() < 0.3:
                yield from self._bind_apart(name)
        for tensor in fusion.tensors:
            inner = tensor.is_input or tensor.is_output or tensor.compute_at_pos
            if not inner and tensor.memory is not ln.GLOBAL and rng.random() < 0.85:
                yield f'f["{tensor.name}"].memory = ln.GLOBAL'
        if rng.random() < 0.3:
            yield self._any()


# Schedule calls whose axes are given by name, in place of their positions

_CALL = re.compile(r"((?:\w+ = )?(\w+)\.(split|merge|reorder|axis|pin|rfactor)\()(.*)")
_AT = re.compile(r"((?:\w+\.compute_at\(((?!None\b)\w+), |(\w+)\.inline_at\())(-?\d+)(.*)")
_FIRST, _ALL = r"^-?\d+", r"(?<![\w'])-?\d+(?![\w'])"
_AXES = {
    **{name: re.compile(_FIRST) for name in ("split", "axis", "pin")},
    "merge": re.compile(_ALL),
    "reorder": re.compile(rf"{_ALL}(?=:)|(?<=[\[,]){_ALL}|(?<=, ){_ALL}(?=[,\]])"),
    "rfactor": re.compile(rf"{_FIRST}|{_ALL}(?=[,\]])"),
}
"""Where the axes stand among the arguments of a call."""


def with_names(line: str, number: int) -> str:
    """Return a schedule line whose split names the axes that it makes, by the line's number."""
    split = re.fullmatch(r"(\w+\.split\(.*)\)", line)
    return f"{split[1]}, names=('o{number}', 'n{number}'))" if split else line


def by_names(line: str, session: Session, rng: Random) -> str:
    """Return a line that means the same axes by names, as far as they have some."""
    at = _AT.fullmatch(line)
    if at is not None:
        tensor, pos = session.tensor(at[2] or at[3]), int(at[4])
        place = pos + (tensor.ndim if pos < 0 else -1)
        return f"{at[1]}{_name(tensor, place, at[4], rng)}{at[5]}" if place >= 0 else line
    call = _CALL.fullmatch(line)
    if call is None:
        return line
    tensor = session.tensor(call[2])
    return call[1] + _AXES[call[3]].sub(
        lambda found: _name(tensor, int(found[0]), found[0], rng), call[4]
    )


def _name(tensor: ln.TensorView, place: int, shown: str, rng: Random) -> str:
    """Return a name that only the axis at a place has; the position as it was where none does."""
    leaf = tensor.leaf_domain
    if not -len(leaf) <= place < len(leaf):
        return shown
    first = [axis.name for axis in leaf]
    every = [name for axis in leaf for name in axis.names]
    axis = leaf[place]
    found = [
        name
        for name in axis.names
        if (first.count(name) == 1 if name in first else every.count(name) == 1)
        and (name not in first or name == axis.name)
    ]
    return repr(rng.choice(found)) if found else shown
