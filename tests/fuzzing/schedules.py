"""Random schedules: calls of every primitive on every tensor, legal and not, as lines of Python.

A schedule has a style, so that all depths are reached: "free" takes any call at any time; "tile"
transforms one tensor, carries that to others, inlines, and binds loops at last, as people do;
"place" mostly moves tensors into each other's loops; "reduce" works on reductions; "threads" gives
all tensors the tiled loops of one and binds these to grid, block and lanes; "blocks" lets values
cross threads: shared memory, and reductions over the threads of a block and over blocks; "copies"
gives reductions tiles of what they read; "stages" factors one reduction again and again, each stage
in a memory of its own; "lanes" has vectors inside of unswitch and unroll loops; "joint" lets the
threads of a block, and blocks, reduce several values of a thread together; "halo" gives what is
read in windows tiles of its readers' loops; "swizzles" permutes buffers in shared memory.

After any style, one schedule in eight gets several launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import loopnest as ln
from fuzzing.judge import require_order
from fuzzing.program import Session
from loopnest.schedule.fold_order import carries, folded_axes

Report = Callable[[str, str], None]

_STYLES = ["free", "free", "tile", "tile", "place", "place", "reduce"]
_STYLES += ["threads"] * 3 + ["blocks"] * 4 + ["copies"] * 2 + ["stages"] * 3 + ["lanes"] * 2
_STYLES += ["joint"] * 2 + ["halo"] * 3 + ["swizzles"] * 2
_FACTORS = ["1", "2", "2", "3", "4", "4", "5", "7", "8", "16"]
_BAD_FACTORS = ["0", "-1", '"Q"', "2.5", "True", "None"]
_THREADS = ["grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"]
_MEMORIES = ["SHARED", "SHARED", "GLOBAL", "GLOBAL", "LOCAL"]
_LOOPS = ["unroll", "unroll", "unswitch", "cpu_parallel", "serial"]


class ScheduleWriter:
    """Writes a random schedule into a session whose math is written.

    Args:
        session: with math and outputs.
        rng: decides everything.
        report: is told each call's primitive and outcome.
    """

    def __init__(self, session: Session, rng: Random, report: Report | None = None) -> None:
        self.session, self.rng, self.report = session, rng, report
        self.style = rng.choice(_STYLES)
        self.made = 0

    def write(self) -> None:
        """Write up to a dozen calls, each judged at once.

        Raises:
            Failure: a call broke a promise.
        """
        calls = {
            "free": self._free, "tile": self._tile, "place": self._place, "reduce": self._reduce,
            "threads": self._threads, "blocks": self._blocks, "copies": self._copies,
            "stages": self._stages, "lanes": self._lanes, "joint": self._joint,
            "halo": self._halo, "swizzles": self._swizzles,
        }[self.style]  # fmt: skip
        for line in calls():
            self._attempt(line)
        self._several_launches()
        require_order(self.session.fusion)

    def _several_launches(self) -> None:
        """Let one schedule in eight be several launches; what others draw stays the same."""
        own = Random("\n".join([str(tensor) for tensor in self.session.fusion.tensors]))
        if own.random() < 0.125:
            drawn, self.rng = self.rng, own
            for line in self._launches():
                self._attempt(line)
            self.rng = drawn

    def _launches(self) -> Iterator[str]:
        """Yield starts of launches, and the memory that lasts from one to the next."""
        rng, fusion = self.rng, self.session.fusion
        live = fusion.live()
        heads = [n for n in self.session.tensors if self._of(n).producers and self._of(n) in live]
        for name in rng.sample(heads, min(len(heads), rng.randint(1, 3))):
            yield f"{name}.new_launch()"
            if rng.random() < 0.3:
                yield from self._bind_apart(name)
        for tensor in fusion.tensors:
            inner = tensor.is_input or tensor.is_output or tensor.compute_at_pos
            if not inner and tensor.memory is not ln.GLOBAL and rng.random() < 0.85:
                yield f'f["{tensor.name}"].memory = ln.GLOBAL'
        if rng.random() < 0.3:
            yield self._any()

    def _attempt(self, line: str) -> bool:
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

    def _new(self, letter: str) -> str:
        self.made += 1
        return f"{letter}{self.made}"

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
        free = list(_THREADS)
        for axis in range(self._of(ref).ndim - lanes):
            if free and rng.random() < 0.6:
                kind = free.pop(rng.choice([0, 0, -1]))
                yield f"{ref}.axis({axis}).parallelize(ln.ParallelType.{kind})"
            elif rng.random() < 0.4:
                kind = rng.choice(_LOOPS)
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

    def _laid_out(self, names: list[str]) -> Iterator[str]:
        """Yield calls that lay out buffers, and then give their tensors other loops."""
        rng = self.rng
        for name in rng.sample(names, min(len(names), rng.randint(1, 2))):
            for _ in range(rng.randint(1, 3)):
                yield self._allocation(name)
            for _ in range(rng.randint(0, 2)):
                yield self._transform(name)

    def _bind_apart(self, name: str) -> Iterator[str]:
        """Yield calls that bind axes of one tensor to threads, whatever others do."""
        rng = self.rng
        free = ["block_x", "block_x", "block_y", "grid_x", "grid_y", "block_z"]
        for axis in range(self._of(name).ndim):
            if rng.random() < 0.3:
                yield f"{name}.split({axis}, {self._factor()})"
            if rng.random() < 0.55 and free:
                kind = rng.choice(free[:3])
                free = [k for k in free if k != kind]
                yield f"{name}.axis({axis}).parallelize(ln.ParallelType.{kind})"

    def _is_plain(self, name: str) -> bool:
        """Whether `name` is a computed tensor whose memory may be chosen."""
        tensor = self._of(name)
        return not tensor.is_input and not tensor.is_output and bool(tensor.consumers)

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

    def _rotated(self, name: str) -> Iterator[str]:
        """Yield a circular buffer, and perhaps another memory for it."""
        yield f"{name}.circular_buffer({self._turns()})"
        if self.rng.random() < 0.3:
            yield f"{name}.memory = ln.{self.rng.choice(_MEMORIES)}"

    def _turns(self) -> str:
        """Return the arguments of a circular buffer."""
        stages = self.rng.choice([2, 2, 3, 4])
        if self.rng.random() < 0.5:
            return str(stages)
        return f"{stages}, {self.rng.randint(1, stages - 1)}"

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
                yield f"{made}.memory = ln.{rng.choice(_MEMORIES)}"
            if rng.random() < 0.3:
                yield self._transform(made)
        for made in self._some(stages):
            below = self._below(made)
            if below:
                target = rng.choice(below)
                yield f"{made}.compute_at({target}, {self._position(target)})"

    def _some(self, names: list[str]) -> list[str]:
        return self.rng.sample(names, self.rng.randint(0, len(names)))

    def _reduced(self, name: str) -> list[int]:
        """Return the places of the leaf axes that a tensor reduces."""
        return [n for n, axis in enumerate(self._of(name).leaf_domain) if axis.is_reduction]

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

    # Choices

    def _weighted(self, options: list[tuple[Callable[[], str], int]]) -> str:
        make = self.rng.choices([m for m, _ in options], [w for _, w in options])[0]
        return make()

    def _any(self) -> str:
        return self._weighted([
            (lambda: self._transform(self._tensor()), 30), (self._compute_at, 20),
            (self._inline_at, 6), (self._most, 5), (self._propagate, 4), (self._like, 4),
            (self._rfactor, 8), (self._cache, 7), (self._parallelize, 12), (self._pin, 2),
            (self._memory, 4), (self._layout, 2), (self._wrong, 3), (self._pure, 2),
        ])  # fmt: skip

    def _tensor(self) -> str:
        """Return a tensor's variable: mostly one that is computed and used."""
        names = self.session.tensors
        live = self.session.fusion.live()
        good = [n for n in names if not self._of(n).is_input and self._of(n) in live]
        return self.rng.choice(good if good and self.rng.random() < 0.95 else names)

    def _output(self) -> str:
        names = [n for n in self.session.tensors if self._of(n).is_output]
        ends = [n for n in names if not self._of(n).consumers]
        return self.rng.choice(ends or names)

    def _reduction(self) -> str:
        found = [
            n for n in self.session.tensors if any(a.is_reduction for a in self._of(n).leaf_domain)
        ]
        return self.rng.choice(found) if found else self._tensor()

    def _of(self, name: str) -> ln.TensorView:
        return self.session.tensor(name)

    def _axis(self, name: str) -> int:
        """Return a leaf position, rarely one that does not exist."""
        count = self._of(name).ndim
        if not count or self.rng.random() < 0.03:
            return self.rng.choice([count, -count - 1, count + 3])
        axis = self.rng.randrange(count)
        frozen = self._of(name).frozen
        if frozen < count and self.rng.random() < 0.7:
            axis = self.rng.randrange(frozen, count)
        return axis - count if self.rng.random() < 0.2 else axis

    def _position(self, name: str) -> int:
        count = self._of(name).ndim
        if self.rng.random() < 0.03:
            return self.rng.choice([count + 1, -count - 2])
        if self.rng.random() < 0.3:
            return -self.rng.randint(1, count + 1)
        return self.rng.randint(min(1, count), count)

    def _factor(self) -> str:
        rng = self.rng
        symbols = [s.name for s in self.session.fusion.symbols]
        if rng.random() < 0.02:
            return rng.choice(_BAD_FACTORS)
        if symbols and rng.random() < (0.2 if self.style == "stages" else 0.1):
            return f'"{rng.choice(symbols)}"'
        return rng.choice(_FACTORS)

    def _halo(self) -> Iterator[str]:
        """Yield calls that place what is read in windows, tile by tile, in memory of any kind."""
        rng = self.rng
        ref = self._output()
        for _ in range(rng.randint(1, 4)):
            yield self._transform(ref)
        read = [n for n in self.session.tensors if self._is_plain(n) and self._is_windowed(n)]
        for name in rng.sample(read, min(len(read), rng.randint(1, 3))):
            if rng.random() < 0.6:
                yield f"{name}.memory = ln.{rng.choice(_MEMORIES)}"
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

    def _is_windowed(self, name: str) -> bool:
        """Whether a tensor is read at other indices than its own."""
        tensor = self._of(name)
        return any(len(ln.root_map(tensor, c)) < len(tensor.shape) for c in tensor.consumers)

    # Calls

    def _transform(self, name: str) -> str:
        rng = self.rng
        chance = rng.random()
        if chance < 0.5:
            outer = ", inner=False" if rng.random() < 0.2 else ""
            return f"{name}.split({self._axis(name)}, {self._factor()}{outer})"
        if chance < 0.72:
            axis, count = self._axis(name), self._of(name).ndim
            if rng.random() < 0.4 and count > 1:
                return f"{name}.merge({axis}, {self._axis(name)})"
            return f"{name}.merge({axis - 1 if axis in (count - 1, -1) else axis})"
        return f"{name}.reorder({self._order(name)})"

    def _order(self, name: str) -> str:
        count, rng = self._of(name).ndim, self.rng
        if rng.random() < 0.4 or count < 2:
            order = list(range(count))
            frozen = self._of(name).frozen if rng.random() < 0.8 else 0
            tail = order[frozen:]
            rng.shuffle(tail)
            return str(order[:frozen] + tail)
        moves = {self._axis(name): self._axis(name) for _ in range(rng.choice([1, 1, 2]))}
        return str(moves)

    def _compute_at(self) -> str:
        rng = self.rng
        extra = ", recompute=True" if rng.random() < 0.2 else ""
        name = self._shared() if extra else self._tensor()
        below = self._below(name)
        target = rng.choice(below) if below and rng.random() < 0.95 else self._tensor()
        return f"{name}.compute_at({target}, {self._position(target)}{extra})"

    def _shared(self) -> str:
        """Return a tensor that several others use, where there is one."""
        names = self.session.tensors
        found = [n for n in names if len(self._of(n).consumers) > 1 and not self._of(n).is_input]
        return self.rng.choice(found) if found else self._tensor()

    def _below(self, name: str) -> list[str]:
        """Return the tensors that depend on `name`."""
        found: dict[ln.TensorView, None] = {}
        stack = [self._of(name)]
        while stack:
            for consumer in stack.pop().consumers:
                if consumer not in found:
                    found[consumer] = None
                    stack.append(consumer)
        return [n for n in self.session.tensors if self._of(n) in found]

    def _above(self, name: str) -> str:
        """Return a tensor that `name` depends on, where there is one."""
        found: dict[ln.TensorView, None] = {}
        stack = [self._of(name)]
        while stack:
            for producer in stack.pop().producers:
                if producer not in found:
                    found[producer] = None
                    stack.append(producer)
        names = [n for n in self.session.tensors if self._of(n) in found]
        return self.rng.choice(names) if names else self._tensor()

    def _inline_at(self) -> str:
        name = self._tensor()
        return f"{name}.inline_at({self._position(name)})"

    def _most(self) -> str:
        if self.rng.random() < 0.6:
            return "f.inline_most()"
        names = self.session.tensors
        chosen = self.rng.sample(names, self.rng.randint(1, len(names)))
        return f"ln.inline_most([{', '.join(chosen)}])"

    def _propagate(self) -> str:
        name = self._tensor()
        return f"ln.propagate({name}, {self._position(name)})"

    def _like(self) -> str:
        name = self._tensor()
        if self.rng.random() < 0.7:
            return f"ln.parallelize_like({name})"
        return f"ln.parallelize_like({name}, [{self._tensor()}, {self._tensor()}])"

    def _factored(self, name: str) -> Iterator[str]:
        """Yield an rfactor, after a split where there is just one reduction axis."""
        scans = [n for n in self.session.tensors if carries(self._of(n))]
        if scans and self.rng.random() < 0.5:
            yield from self._in_segments(self.rng.choice(scans))
            return
        places = [n for n, a in enumerate(self._of(name).leaf_domain) if a.is_reduction]
        if len(places) == 1 and self.rng.random() < 0.9:
            yield f"{name}.split({places[0]}, {self._factor()})"
        yield self._rfactor(name)

    def _in_segments(self, name: str) -> Iterator[str]:
        """Yield an rfactor of a scan, and calls on the tensors that it makes."""
        rng = self.rng
        folded = folded_axes(self._of(name))
        places = [n for n, axis in enumerate(self._of(name).leaf_domain) if axis in folded]
        if places and rng.random() < 0.95:
            yield f"{name}.split({places[-1]}, {self._factor()})"
        made = self._new("s")
        yield f"{made} = {name}.rfactor({places[-1] + 1 if places else 0})"
        if made not in self.session.tensors:
            return
        totals, carried = self._new("s"), self._new("s")
        yield f"{totals} = {made}.consumers[0]"
        yield f"{carried} = {name}.producers[0]"
        for other in (made, totals, carried):
            if other in self.session.tensors:
                if rng.random() < 0.4:
                    yield f"{other}.memory = ln.{rng.choice(['SHARED', 'GLOBAL'])}"
                if rng.random() < 0.5:
                    yield from self._bind_apart(other)
        if carried in self.session.tensors and rng.random() < 0.3:
            yield from self._in_segments(carried)

    def _rfactor(self, name: str = "") -> str:
        name = name or self._reduction()
        leaf = self._of(name).leaf_domain
        places = [n for n, a in enumerate(leaf) if a.is_reduction]
        if not places or self.rng.random() < 0.05:
            return f"{self._new('r')} = {name}.rfactor({self._axis(name)})"
        chosen = self.rng.sample(places, self.rng.randint(1, max(1, len(places) - 1)))
        axes = str(chosen[0]) if len(chosen) == 1 else str(chosen)
        return f"{self._new('r')} = {name}.rfactor({axes})"

    def _cache(self) -> str:
        rng = self.rng
        names = self.session.tensors
        used = [n for n in names if self._of(n).consumers] or names
        forked = [n for n in used if self._of(n).is_output]
        if forked and rng.random() < 0.4:
            return f"{self._new('c')} = {rng.choice(forked)}.cache_fork()"
        chance = rng.random()
        if chance < 0.48:
            return f"{self._new('c')} = {rng.choice(used)}.cache_after()"
        if chance < 0.97:
            return f"{self._new('c')} = {self._tensor()}.cache_before()"
        return f"{self._new('c')} = {self._output()}.cache_fork()"

    def _bind(self, name: str) -> Iterator[str]:
        """Yield calls that give several axes of one tensor parallel types, outermost first."""
        rng = self.rng
        free = list(_THREADS)
        if rng.random() < 0.3:
            free = ["cpu_parallel"]
        for axis in range(self._of(name).ndim):
            last = axis == self._of(name).ndim - 1
            if last and rng.random() < 0.3:
                yield f"{name}.axis({axis}).parallelize(ln.ParallelType.vectorize)"
            elif rng.random() < 0.5 and free:
                kind = free.pop(0 if rng.random() < 0.5 else rng.randrange(len(free)))
                yield f"{name}.axis({axis}).parallelize(ln.ParallelType.{kind})"
            elif rng.random() < 0.2:
                kind = rng.choice(_LOOPS)
                yield f"{name}.axis({axis}).parallelize(ln.ParallelType.{kind})"

    def _parallelize(self) -> str:
        rng = self.rng
        name = self._tensor()
        kinds = rng.choice([_THREADS, _LOOPS, [*_LOOPS, "vectorize"]])
        types = {self._axis(name): rng.choice(kinds) for _ in range(rng.choice([1, 1, 2]))}
        inner = ", ".join(f"{a}: ln.ParallelType.{k}" for a, k in types.items())
        return f"{name}.parallelize({{{inner}}})"

    def _pin(self) -> str:
        name = self._tensor()
        axis = self._axis(name)
        return f"{name}.pin({axis})" if self.rng.random() < 0.5 else f"{name}.axis({axis}).pin()"

    def _memory(self) -> str:
        kind = self.rng.choice(["GLOBAL"] * 5 + ["LOCAL"] + ["SHARED"] * 4)
        return f"{self._tensor()}.memory = ln.{kind}"

    def _layout(self, name: str = "") -> str:
        rng = self.rng
        name = name or self._tensor()
        chance = rng.random()
        if chance < 0.35:
            return f"{name}.circular_buffer({self._turns()})"
        if chance < 0.6:
            return f"{name}.swizzle(ln.Swizzle.XOR, {self._axis(name)}, {self._axis(name)})"
        if chance < 0.8:
            return self._allocation(name)
        order = list(range(self._of(name).ndim))
        rng.shuffle(order)
        pad = f"{{{self._axis(name)}: {rng.choice([0, 1, 1, 3])}}}"
        return f"{name}.set_allocation({rng.choice([str(order), 'None'])}, {pad})"

    def _allocation(self, name: str) -> str:
        """Return a call that lays a buffer out, whatever its loops are."""
        rng, domain = self.rng, self._of(name).allocation_domain
        axes = [rng.randint(-1, max(0, len(domain) - 1)) for _ in range(2)]
        order = list(range(len(domain)))
        rng.shuffle(order)
        calls = [
            f"split({axes[0]}, {rng.choice([2, 3, 4, 8])})", f"merge({axes[0]}, {axes[1]})",
            f"reorder({order})", f"pad({axes[0]}, {rng.choice([1, 3])})",
            f"swizzle(ln.Swizzle.XOR, {axes[0]}, {axes[1]})", "reset()",
        ]  # fmt: skip
        call = rng.choices(calls, (4, 3, 3, 3, 4, 1))[0]
        return f"{name}.allocation_domain.{call}"

    def _wrong(self) -> str:
        a, b = self._tensor(), self._tensor()
        return self.rng.choice([
            f"{a}.compute_at({a}, 1)", f"{a}.compute_at(None, 1)", f"{a}.compute_at({b}, '1')",
            f"{a}.split(0, 0)", f"{a}.split('0', 2)", f"{a}.merge(0, 0)", f"{a}.reorder([0, 0])",
            f"{a}.reorder(None)", f"{a}.parallelize({{0: 'grid_x'}})", f"{a}.parallelize(3)",
            f"{a}.rfactor([])", f"{a}.inline_at(None)", f"{a}.memory = 'local'", f"{a}.pin(9)",
            f"ln.propagate({a}, 99)", f"{a}.rfactor(None)", f"{a}.split(0, 2, 5, 6)"[:0]
            or f"{a}.split(None, 2)",
            f"{a}.merge(None)", f"{a}.reorder({{0: 'x'}})", f"ln.inline_most([{a}, None])",
        ])  # fmt: skip

    def _pure(self) -> str:
        """Return a query, which must change nothing."""
        name = self._tensor()
        below = self._below(name)
        mates = [n for n in below if self._of(name) in self._of(n).producers]
        if mates and self.rng.random() < 0.7:
            mate = self.rng.choice(mates)
            if self.rng.random() < 0.5:
                return f"ln.replay_pasc({name}, {mate}, {self._position(mate)})"
            return f"ln.replay_casp({mate}, {name}, {self._position(name)})"
        return f"ln.common_consumers({name})"
