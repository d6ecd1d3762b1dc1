"""Random operations that read other elements than their own: windows, shapes, gathers, masks."""

from __future__ import annotations

from fuzzing.fusion_lines import FusionLines


class IndexedOperations(FusionLines):
    """Defines operations whose indices are templates, data, or compared with each other."""

    # Other indices

    def _part(self) -> None:
        name = self._pick(lambda t: len(t.shape) > 0)
        if name is not None:
            shape = self.session.tensor(name).shape
            items = [self._item(n if isinstance(n, int) else None) for n in shape]
            if self.rng.random() < 0.2 and len(items) < 4:
                items.insert(self.rng.randint(0, len(items)), "None")
            self._define(f"{name}[{', '.join(items)}]")

    def _item(self, extent: int | None) -> str:
        """Return an index of an axis; None: of symbolic extent, which small bounds must fit."""
        rng = self.rng
        chance = rng.random()
        if chance < 0.35:
            return ":"
        if chance < 0.42:
            return rng.choice(["0", "-1"]) if extent != 0 else ":"
        ends = [str(n) for n in range(-(extent or 3), (extent or 3) + 1)]
        low = rng.choice(["", "", "1", "2", "-3"] if extent is None else ["", *ends])
        high = rng.choice(["", "", "-1", "-2"] if extent is None else ["", *ends])
        step = rng.choice(["", "", "", ":2", ":-1", ":-2", ":3"])
        if "-" in step:
            low, high = high, low
        return f"{low}:{high}{step}"

    def _border(self) -> None:
        name = self._pick(lambda t: len(t.shape) > 0)
        if name is None:
            return
        rng = self.rng
        rank = len(self.session.tensor(name).shape)
        widths = [(rng.choice([0, 0, 1, 2, -1]), rng.choice([0, 0, 1, 3, -1])) for _ in range(rank)]
        between = [rng.choice([0, 0, 0, 0, 1, 2]) for _ in range(rank)]
        extra = f", interior={tuple(between)}" if rng.random() < 0.2 else ""
        self._define(f"ln.pad({name}, {widths}, {rng.choice(['0', '1', '0', '-1'])}{extra})")

    def _stencil(self) -> None:
        """Define neighbours along an axis, joined; sometimes of what such a one gave."""
        rng = self.rng
        name = self._pick(lambda t: len(t.shape) > 0)
        for _ in range(rng.choice([1, 1, 2]) if name is not None else 0):
            axis = rng.randrange(len(self.session.tensor(name).shape))
            before = ":, " * axis
            a, b = rng.choice([("1:", ":-1"), ("2:", ":-2"), ("1:-1", "2:"), ("::-1", ":")])
            if not self._define(f"{name}[{before}{a}] {rng.choice('+-*')} {name}[{before}{b}]"):
                return
            name = f"t{self.count - 1}"

    def _turn(self) -> None:
        name = self._pick(lambda t: len(t.shape) > 0)
        if name is not None:
            axis = self.rng.randrange(len(self.session.tensor(name).shape))
            shift = self.rng.choice([1, 2, -1, 5])
            texts = [f"ln.flip({name}, {axis})", f"ln.roll({name}, {shift}, {axis})"]
            self._define(self.rng.choice(texts))

    def _join(self) -> None:
        name = self._pick()
        if name is None:
            return
        rank = len(self.session.tensor(name).shape)
        own = self.session.tensor(name)
        fits = self._tensors(lambda t: t.sizes == own.sizes)
        names = [name, *(self.rng.choice(fits) for _ in range(self.rng.choice([1, 1, 2])))]
        self.rng.shuffle(names)
        op = self.rng.choice(["stack", "concatenate"] if rank else ["stack"])
        if op == "concatenate" or rank < 4:
            place = self.rng.randrange(rank + (op == "stack"))
            self._define(f"ln.{op}([{', '.join(names)}], {place})")

    def _window(self) -> None:
        name = self._pick(lambda t: 0 < len(t.shape) < 4)
        if name is None:
            return
        rng = self.rng
        axis = rng.randrange(len(self.session.tensor(name).shape))
        if rng.random() < 0.6:
            rank = len(self.session.tensor(name).shape)
            widths = [(int(n == axis), int(n == axis)) for n in range(rank)]
            if self._define(f"ln.pad({name}, {widths})"):
                name = f"t{self.count - 1}"
        extra = rng.choice(["", "", ", stride=2", ", dilation=2", ", stride=3, dilation=2"])
        if self._define(f"ln.unfold({name}, {axis}, {rng.choice([2, 3, 3])}{extra})"):
            made = f"t{self.count - 1}"
            if rng.random() < 0.8:
                self._define(f"ln.{rng.choice(['sum', 'max', 'mean'])}({made}, -1)")

    # Indices that are data

    def _gather(self) -> None:
        rng = self.rng
        name = self._pick(lambda t: 0 < len(t.shape) < 4 and 0 not in t.shape)
        if name is None:
            return
        shape = [s if isinstance(s, int) else str(s) for s in self.session.tensor(name).shape]
        axis = rng.randrange(len(shape))
        found = self._pick(lambda t: t.dtype.is_integer and len(t.shape) + len(shape) < 6)
        if found is not None and rng.random() < 0.5:
            kind = rng.choice(["int32", "int64"])
            mode = rng.choice(["clip", "clip", "wrap"])
            text = f"ln.take({name}, ln.cast({found}, ln.{kind}), {axis}, mode={mode!r})"
            self._define(text)
            return
        indices = f"g{self.count}"
        own = [rng.choice(self.dims) for _ in range(rng.choice([0, 1, 1, 2]))]
        alike = rng.random() < 0.4
        if alike:
            own = [*shape[:axis], rng.choice(self.dims), *shape[axis + 1 :]]
        extent = shape[axis]
        if not (isinstance(extent, int) or extent.isidentifier()):
            return
        text = "(" + "".join(f"{s!r}, " for s in own).rstrip() + ")"
        kind = rng.choice(["int32", "int64"])
        if not self._line(indices, f'f.input("{indices}", {text}, ln.{kind})'):
            return
        if isinstance(extent, str):
            self.session.define(f'f.assume("{extent} >= 1")')
        self.session.define(f"f.assume_range({indices}, 0, {extent!r})")
        self._define(f"ln.{'gather' if alike else 'take'}({name}, {indices}, {axis})")

    def _scatter(self) -> None:
        """Add updates where indices say; some of them lie outside."""
        rng = self.rng
        name = self._pick(lambda t: 0 < len(t.shape) < 4 and not t.dtype.is_bool)
        if name is None:
            return
        own = self.session.tensor(name)
        shape = [s if isinstance(s, int) else str(s) for s in own.shape]
        axis = rng.randrange(len(shape))
        updates, indices, count = f"u{self.count}", f"g{self.count}", rng.choice(self.dims)
        changed = [*shape[:axis], count, *shape[axis + 1 :]]
        if not all(isinstance(s, int) or s.isidentifier() for s in changed):
            return
        alike = rng.random() < 0.5
        for variable, extents, kind in (
            (updates, changed, own.dtype.name),
            (indices, changed if alike else [count], rng.choice(["int32", "int64"])),
        ):
            text = "(" + "".join(f"{s!r}, " for s in extents).rstrip() + ")"
            if not self._line(variable, f'f.input("{variable}", {text}, ln.{kind})'):
                return
        if alike:
            op = rng.choice(["scatter_add", "scatter_max", "scatter_min", "scatter"])
            self._define(f"ln.{op}({name}, {indices}, {updates}, {axis})")
        else:
            self._define(f"ln.index_add({name}, {axis}, {indices}, {updates})")

    # Masks of coordinates

    def _triangle(self) -> None:
        """Reduce what a mask of coordinates leaves: a triangle, a band, a diagonal."""
        rng = self.rng
        name = self._pick(lambda t: 1 < len(t.shape) < 4 and t.dtype.is_float)
        if name is None:
            return
        shape = [s if isinstance(s, int) else str(s) for s in self.session.tensor(name).shape]
        if not all(isinstance(s, int) or s.isidentifier() for s in shape):
            return
        a, b = rng.sample(range(len(shape)), 2)
        sides = []
        for place in (a, b):
            mask = tuple(n != place for n in range(len(shape)))
            sides.append(f"ln.broadcast(ln.iota({shape[place]!r}), {mask})")
        offset = rng.choice(["", "", " + 1", " - 2", " + 9"])
        test = (
            f"ln.{rng.choice(['le', 'lt', 'ge', 'gt', 'eq', 'ne'])}({sides[0]}, {sides[1]}{offset})"
        )
        if rng.random() < 0.3:
            test = f"ln.logical_and({test}, ln.gt({sides[0]} + 3, {sides[1]}))"
        op, identity = rng.choice(
            [("sum", "0.0"), ("max", 'float("-inf")'), ("min", 'float("inf")'), ("prod", "1.0"),
             ("sum", "1.0")]
        )  # fmt: skip
        if self._define(f"ln.where({test}, {name}, {identity})"):
            axes = rng.choice([a, b, b, (a, b)])
            self._define(f"ln.{op}(t{self.count - 1}, {axes})")

    def _reshape(self) -> None:
        """Give a tensor another shape: axes as one, an axis in parts, the shape of another one."""
        name = self._pick()
        if name is None:
            return
        rng, own = self.rng, self.session.tensor(name)
        rank = len(own.shape)
        shape = [f"{name}.shape[{n}]" for n in range(rank)]
        algebra = self.session.fusion.algebra
        whole = algebra.product(own.sizes)
        fits = self._tensors(
            lambda t: t.sizes != own.sizes and algebra.equal(algebra.product(t.sizes), whole)
        )
        kinds = ["part"] * 3 + ["flatten"] * 3 * (rank > 1) + ["turn"] * (rank > 1)
        kinds += ["repeat"] * 3 * (0 < rank < 4)
        kind = rng.choice([*kinds, *["like"] * 3 * bool(fits)])
        if kind == "repeat":  # elements of an axis several times, or all of it again
            place, times = rng.randrange(rank), rng.choice([2, 2, 3, 4])
            new = place + rng.randint(0, 1)
            mask = [n == new for n in range(rank + 1)]
            shape.insert(new, str(times))
            if self._define(f"ln.broadcast({name}, {mask})"):
                wide = f"t{self.count - 1}"
                if self._define(f"ln.expand({wide}, ({', '.join(shape)}))"):
                    self._define(f"ln.flatten(t{self.count - 1}, {place}, {place + 1})")
            return
        if kind == "flatten":
            first = rng.randrange(rank - 1)
            self._define(f"ln.flatten({name}, {first}, {rng.randrange(first + 1, rank)})")
            return
        if kind == "like":
            self._define(f"ln.reshape({name}, {rng.choice(fits)}.shape)")
            return
        if kind == "turn":
            rng.shuffle(shape)
        elif rank and rank < 4:
            place = rng.randrange(rank)
            size = own.shape[place]
            parts = [2, 2, 3, 4]
            if isinstance(size, int):
                parts = [n for n in range(1, 17) if size % n == 0]
            factor = rng.choice(parts)
            if str(size) in self.dims:
                self.session.define(f'f.assume("{size} % {factor} == 0")')
            pair = [str(factor), "-1" if size != 0 else "0"]
            rng.shuffle(pair)
            shape[place : place + 1] = pair
        if rng.random() < 0.2 and len(shape) < 4:
            shape.insert(rng.randint(0, len(shape)), "1")
        self._define(f"ln.reshape({name}, ({''.join([f'{part}, ' for part in shape])}))")
