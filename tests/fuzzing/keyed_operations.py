"""Random operations whose indices are computed from data: bins, lookups, histograms, sorts."""

from __future__ import annotations

from fuzzing.indexed_operations import IndexedOperations

_KEYS = (
    ("{0} & 3", 4), ("{0} & 7", 8), ("{0} & 15", 16), ("{0} % 5", 5), ("ln.clamp({0}, 0, 6)", 7),
    ("ln.where({0} > 0, 1, 0)", 2), ("({0} & 3) + ({0} & 4)", 8), ("({0} & 3) * 2 + 1", 8),
    ("ln.cast({0}, ln.uint8) >> 4", 16), ("ln.maximum(ln.minimum({0}, 4), 0)", 5),
)  # fmt: skip
"""Keys of integers, and the number of bins that they lie in as they are written."""


class KeyedOperations(IndexedOperations):
    """Defines operations whose indices lie in their axis by the math that computes them."""

    def _keys(self, ranks: tuple[int, ...]) -> tuple[str, int]:
        """Define keys of some rank; return their name and how many bins there are; "" for none."""
        rng = self.rng
        source = self._pick(lambda t: t.dtype.is_integer and len(t.shape) in ranks)
        if source is None or rng.random() < 0.5:
            source = f"k{self.count}"
            shape = ", ".join([repr(rng.choice(self.dims)) for _ in range(rng.choice(ranks))])
            kind = rng.choice(["int32", "int32", "int64", "uint8", "int8", "uint32"])
            if not self._line(source, f'f.input("{source}", ({shape},), ln.{kind})'):
                return "", 0
        text, bins = rng.choice(_KEYS)
        if not self._define(text.format(source)):
            return "", 0
        key = f"t{self.count - 1}"
        wide = rng.choice(["int32", "int64"])
        if self.session.tensor(key).dtype.name not in ("int32", "int64") or rng.random() < 0.2:
            if not self._define(f"ln.cast({key}, ln.{wide})"):
                return "", 0
            key = f"t{self.count - 1}"
        return key, bins

    def _lookup(self) -> None:
        """Look keys up in a table, which is an input, computed or a constant."""
        rng = self.rng
        key, bins = self._keys((1, 1, 2))
        if not key:
            return
        tables = self._tensors(lambda t: t.shape[:1] == (bins,) and 0 < len(t.shape) < 3)
        table = f"w{self.count}"
        if tables and rng.random() < 0.5:
            table = rng.choice(tables)
        else:
            shape = rng.choice([f"({bins},)", f"({bins}, {rng.choice(self.dims)!r})"])
            texts = [f'f.input("{table}", {shape}, ln.float32)'] * 3
            texts += [f"ln.iota({bins}, dtype=ln.float32)", f"ln.full(({bins},), 1.5)"]
            if not self._line(table, rng.choice(texts)):
                return
        self._define(f"ln.take({table}, {key}, 0)")

    def _histogram(self) -> None:
        """Add or assign updates to bins, which keys of symbolic length choose."""
        rng = self.rng
        key, bins = self._keys((1,))
        if not key:
            return
        length = self.session.tensor(key).shape[0]
        size = repr(length if isinstance(length, int) else str(length))
        kind = rng.choice(["float32", "float32", "int32"])
        fits = self._tensors(
            lambda t: len(t.shape) == 1 and t.dtype.name == kind
            and t.sizes == self.session.tensor(key).sizes
        )  # fmt: skip
        updates = f"u{self.count}"
        texts = [f"ln.full(({size},), 1, ln.{kind})", f'f.input("{updates}", ({size},), ln.{kind})']
        if fits and rng.random() < 0.5:
            updates = rng.choice(fits)
        elif not self._line(updates, rng.choice(texts)):
            return
        start = f"ln.full(({bins + rng.choice([0, 0, 1])},), 0, ln.{kind})"
        call = rng.choice([
            f"ln.index_add({start}, 0, {key}, {updates})",
            f"ln.index_add({start}, 0, {key}, {updates})",
            f"ln.scatter_add({start}, {key}, {updates}, 0)",
            f"ln.scatter({start}, {key}, {updates}, 0)",
        ])  # fmt: skip
        self._define(call)

    # Orders

    def _sort(self) -> None:
        """Sort elements, find their order, or keep the largest few of them."""
        rng = self.rng
        name = self._pick(lambda t: 0 < len(t.shape) < 4 and not t.dtype.is_bool)
        if name is None:
            return
        shape = self.session.tensor(name).shape
        axis = rng.randrange(len(shape))
        if rng.random() < 0.4:
            least = shape[axis] if isinstance(shape[axis], int) else 4
            count = rng.randint(1, max(1, min(least, 5)))
            if str(shape[axis]) in self.dims:  # without the assumption it is refused
                self.session.define(f'f.assume("{shape[axis]} >= {count}")')
            pair = ", ".join(f"t{self.count + n}" for n in range(2))
            if self._line(pair, f"ln.topk({name}, {count}, {axis})"):
                self.count += 2
            return
        down = rng.choice(["", "", ", descending=True"])
        op = rng.choice(["sort", "argsort"])
        if self._define(f"ln.{op}({name}, {axis}{down})") and op == "sort" and not down:
            self._search(f"t{self.count - 1}", axis)

    def _search(self, ordered: str, axis: int) -> None:
        """Find, now and then, where elements have their places in what was sorted."""
        own = self.session.tensor(ordered)
        if axis != len(own.shape) - 1 or self.rng.random() < 0.5:
            return
        rows = own.sizes[:-1]
        fits = self._tensors(
            lambda t: t.dtype is own.dtype and (not rows or t.sizes[: len(rows)] == rows)
        )
        side = self.rng.choice(["", ', side="right"'])
        if fits:
            self._define(f"ln.searchsorted({ordered}, {self.rng.choice(fits)}{side})")

    def _permuted(self) -> None:
        """Assign updates to places that differ: an order that was found, or data."""
        rng = self.rng
        name = self._pick(lambda t: 0 < len(t.shape) < 4 and not t.dtype.is_bool)
        if name is None:
            return
        own = self.session.tensor(name)
        axis = rng.randrange(len(own.shape))
        fits = self._tensors(lambda t: t.dtype is own.dtype and t.sizes == own.sizes)
        into, updates = rng.choice(fits), rng.choice(fits)
        places = f"g{self.count}"
        if rng.random() < 0.5:
            if not self._define(f"ln.argsort({name}, {axis})"):
                return
            places = f"t{self.count - 1}"
        else:
            shape = "".join(f"{s if isinstance(s, int) else str(s)!r}, " for s in own.shape)
            kind = rng.choice(["int32", "int64"])
            if not self._line(places, f'f.input("{places}", ({shape.rstrip()}), ln.{kind})'):
                return
        self._define(f"ln.scatter({into}, {places}, {updates}, {axis}, unique=True)")
