"""Random operations whose indices are computed from data: bins, lookups, histograms."""

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
