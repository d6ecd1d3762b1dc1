"""Calls of schedule primitives on random tensors of a session, each as a line of Python.

Most arguments are good, so that calls are accepted; a few are not, so that refusals are met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from random import Random

from loopnest.devtools.fuzzing.case_lines import Session
from loopnest.facade import language as ln
from loopnest.schedule.fold_order import carries, folded_axes

_FACTORS = ["1", "2", "2", "3", "4", "4", "5", "7", "8", "16"]
_BAD_FACTORS = ["0", "-1", '"Q"', "2.5", "True", "None"]
THREADS = ["grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"]
MEMORIES = ["SHARED", "SHARED", "GLOBAL", "GLOBAL", "LOCAL"]
SCATTERS = ("index_add", "scatter_add", "scatter")
LOOPS = ["unroll", "unroll", "unswitch", "cpu_parallel", "serial"]


class ScheduleCalls:
    """Writes one call at a time; which calls follow each other is `ScheduleWriter`'s matter.

    Args:
        session: with math and outputs.
        rng: decides everything.
    """

    symbolic_factors = 0.1
    """How often a factor is a size symbol, where there is one."""

    def __init__(self, session: Session, rng: Random) -> None:
        self.session, self.rng = session, rng
        self.made = 0

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
        names = self._where(lambda t: t.is_output)
        ends = [n for n in names if not self._of(n).consumers]
        return self.rng.choice(ends or names)

    def _where(self, holds: Callable[[ln.TensorView], object]) -> list[str]:
        """Return the variables of the tensors of which something holds."""
        return [n for n in self.session.tensors if holds(self._of(n))]

    def _one_of(self, names: list[str]) -> str:
        """Return one of some variables; any other where there is none."""
        return self.rng.choice(names) if names else self._tensor()

    def _reduction(self) -> str:
        return self._one_of(self._where(lambda t: any(a.is_reduction for a in t.leaf_domain)))

    def _scattered(self) -> list[str]:
        """Return the variables of scatters."""
        return self._where(lambda t: t.definition is not None and t.definition.op in SCATTERS)

    def _ordered(self) -> list[str]:
        """Return the variables of folds by reducers of several components, or in an order."""
        found = [(name, self._of(name)) for name in self.session.tensors]
        folds = [(n, t.definition.reducer) for n, t in found if t.definition and self._reduced(n)]
        return [n for n, made in folds if made and (made.ordered or len(made.identity) > 1)]

    def _scanned(self) -> list[str]:
        """Return the variables of scans."""
        return self._where(lambda t: t.definition is not None and t.definition.scan is not None)

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
        if symbols and rng.random() < self.symbolic_factors:
            return f'"{rng.choice(symbols)}"'
        return rng.choice(_FACTORS)

    def _some(self, names: list[str]) -> list[str]:
        return self.rng.sample(names, self.rng.randint(0, len(names)))

    def _reduced(self, name: str) -> list[int]:
        """Return the places of the leaf axes that a tensor reduces."""
        return [n for n, axis in enumerate(self._of(name).leaf_domain) if axis.is_reduction]

    def _is_plain(self, name: str) -> bool:
        """Whether `name` is a computed tensor whose memory may be chosen."""
        tensor = self._of(name)
        return not tensor.is_input and not tensor.is_output and bool(tensor.consumers)

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
        return self._one_of(self._where(lambda t: len(t.consumers) > 1 and not t.is_input))

    def _below(self, name: str) -> list[str]:
        """Return the tensors that depend on `name`."""
        return self._reached(name, lambda t: t.consumers)

    def _above(self, name: str) -> str:
        """Return a tensor that `name` depends on, where there is one."""
        return self._one_of(self._reached(name, lambda t: t.producers))

    def _reached(
        self, name: str, near: Callable[[ln.TensorView], Iterable[ln.TensorView]]
    ) -> list[str]:
        found: dict[ln.TensorView, None] = {}
        stack = [self._of(name)]
        while stack:
            for other in near(stack.pop()):
                if other not in found:
                    found[other] = None
                    stack.append(other)
        return self._where(found.__contains__)

    def _inline_at(self) -> str:
        name = self._tensor()
        return f"{name}.inline_at({self._position(name)})"

    def _most(self) -> str:
        if self.rng.random() < 0.6:
            return "f.inline_most(replay=True)" if self.rng.random() < 0.4 else "f.inline_most()"
        names = self.session.tensors
        chosen = self.rng.sample(names, self.rng.randint(1, len(names)))
        replay = ", replay=True" if self.rng.random() < 0.3 else ""
        return f"ln.inline_most([{', '.join(chosen)}]{replay})"

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
        again = ", refold=True" if rng.random() < 0.3 else ""
        yield f"{made} = {name}.rfactor({places[-1] + 1 if places else 0}{again})"
        if made not in self.session.tensors:
            return
        totals, carried = self._new("s"), self._new("s")
        yield f"{carried} = {name}.producers[0]"
        yield f"{totals} = {carried}.producers[0]"
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

    def _atomic(self, name: str) -> Iterator[str]:
        """Yield an atomic reduction, with loops of its own for what it folds and starts from."""
        rng = self.rng
        if not self._of(name).is_output:
            yield f"{name}.memory = ln.{rng.choice(['GLOBAL', 'SHARED', 'SHARED'])}"
        start = self._new("a")
        yield f"{start} = {name}.atomic()"
        if start not in self.session.tensors:
            return
        if rng.random() < 0.5:
            yield f"{name}.new_launch()"
        for made in (name, start):
            for place in range(self._of(made).ndim):
                if rng.random() < 0.4:
                    how = rng.choice(["grid_x", "block_x", "block_y", "cpu_parallel"])
                    yield f"{made}.axis({place}).parallelize(ln.ParallelType.{how})"
        if rng.random() < 0.3:
            yield f"{start}.compute_at({name}, {self._position(name)})"
        if rng.random() < 0.2:
            yield rng.choice([f"{start}.memory = ln.SHARED", self._any()])

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
        free = list(THREADS)
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
                kind = rng.choice(LOOPS)
                yield f"{name}.axis({axis}).parallelize(ln.ParallelType.{kind})"

    def _scans(self) -> Iterator[str]:
        """Yield calls that bind the inner part of the axis of a scan to threads of a block."""
        rng = self.rng
        name = rng.choice(self._scanned())
        if self._of(name).is_output and rng.random() < 0.4:
            held = self._new("s")
            yield f"{held} = {name}.cache_before()"
            name = held if held in self.session.tensors else name
        definition = self._of(name).definition
        assert definition is not None
        assert definition.scan is not None
        place = definition.scan.axis
        if rng.random() < 0.3:
            yield from self._items_a_thread(name, place)
            return
        if rng.random() < 0.85:
            yield f"{name}.split({place}, {rng.choice([2, 4, 7, 8, 12, 32, 33, 40, 64])})"
        if rng.random() < 0.3:
            yield f"{name}.split({place}, {rng.choice([2, 3, 4])})"
        if rng.random() < 0.3:
            yield f"{self._new('p')} = {name}.rfactor({self._of(name).ndim - 1})"
            name = rng.choice(self._scanned() or [name])
        yield from self._bound_along(name, place)
        others = [n for n in range(self._of(name).ndim) if n != place]
        for axis, kind in zip(rng.sample(others, min(2, len(others))), ["grid_x", "block_z"],
                              strict=False):  # fmt: skip
            if rng.random() < 0.5:
                yield f"{name}.axis({axis}).parallelize(ln.ParallelType.{kind})"
        if rng.random() < 0.4:
            yield f"{name}.memory = ln.{rng.choice(['SHARED', 'GLOBAL'])}"
        for _ in range(rng.randint(0, 3)):
            yield self._weighted([
                (self._compute_at, 4), (self._most, 3), (self._like, 2), (self._propagate, 1),
            ])  # fmt: skip

    def _items_a_thread(self, name: str, place: int) -> Iterator[str]:
        """Yield calls that give each thread neighbouring items, blocks of which loops go through.

        ``[N]`` becomes ``[N / items / threads, threads, items]``, all but the threads serial.
        """
        rng = self.rng
        yield f"{name}.split({place}, {rng.choice([2, 3, 4, 8])})"
        if rng.random() < 0.6:
            yield f"{name}.split({place}, {rng.choice([2, 4, 32, 33, 64])})"
        threads = self._of(name).ndim - 2
        yield f"{name}.axis({threads}).parallelize(ln.ParallelType.block_x)"
        if rng.random() < 0.3:
            yield f"{name}.axis({threads + 1}).parallelize(ln.ParallelType.unroll)"
        if place and rng.random() < 0.5:
            kind = rng.choice(["grid_x", "block_y", "grid_y"])
            yield f"{name}.axis({rng.randrange(place)}).parallelize(ln.ParallelType.{kind})"
        read = [n for n in self.session.tensors if self._of(n) in self._of(name).producers]
        if read and rng.random() < 0.5:
            yield f"{rng.choice(read)}.compute_at({name}, {self._position(name)})"
        if rng.random() < 0.3:
            yield self._most()

    def _bound_along(self, name: str, place: int) -> Iterator[str]:
        """Yield calls that bind some of the innermost loops of a scan, the last to block_x."""
        rng = self.rng
        folded = list(range(place, self._of(name).ndim))
        kinds = rng.choice([["block_x"], ["block_x", "block_y"], ["block_y"]])
        last = rng.choice(folded[:3]) if folded else 0
        for axis, kind in zip(range(last, place - 1, -1), kinds, strict=False):
            yield f"{name}.axis({axis}).parallelize(ln.ParallelType.{kind})"

    def _parallelize(self) -> str:
        rng = self.rng
        name = self._tensor()
        kinds = rng.choice([THREADS, LOOPS, [*LOOPS, "vectorize"]])
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

    def _rotated(self, name: str) -> Iterator[str]:
        """Yield a circular buffer, and perhaps another memory for it, or copies in flight."""
        moved = self._of(name).memory is ln.SHARED and self.rng.random() < 0.5
        if moved:
            yield f"{name}.move_by('cp.async')"
        if not moved or self.rng.random() < 0.8:
            yield f"{name}.circular_buffer({self._turns()})"
        if self.rng.random() < 0.3:
            yield f"{name}.memory = ln.{self.rng.choice(MEMORIES)}"

    def _turns(self) -> str:
        """Return the arguments of a circular buffer."""
        stages = self.rng.choice([2, 2, 3, 4])
        if self.rng.random() < 0.5:
            return str(stages)
        return f"{stages}, {self.rng.randint(1, stages - 1)}"

    def _new(self, letter: str) -> str:
        self.made += 1
        name = f"{letter}{self.made}"
        return name if name not in self.session.names else self._new(letter)
