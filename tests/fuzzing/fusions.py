"""Random math: fusions of a few operations each, as lines of Python.

Every operation of the language has its turn; operands are taken from what there is, so that
diamonds, shared producers and tensors that nobody uses come about by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from fuzzing.fusion_lines import meets
from fuzzing.keyed_operations import KeyedOperations
from loopnest.devtools.fuzzing.case_lines import Session
from loopnest.scalar.enums import IterKind

_DTYPES = (
    *["float32"] * 14,
    *("float16", "float16", "bfloat16", "float64", "float64", "int32", "int32", "int64", "bool"),
    *("int8", "uint8", "int16", "uint16", "uint32", "float8_e4m3fn", "float8_e5m2"),
)
_SMOOTH = (
    *("tanh", "tanh", "sigmoid", "sin", "cos", "neg", "neg", "abs", "abs", "relu", "relu"),
    *("exp", "exp2", "gelu", "silu", "erf"),
)
_ROUGH = ("floor", "ceil", "round", "trunc", "isnan")
_PARTIAL = ("reciprocal", "rsqrt", "sqrt", "log", "log2", "log1p")
"""What is not defined everywhere: taken of magnitudes."""

_ARITHMETIC = ("add", "add", "sub", "sub", "mul", "mul", "maximum", "minimum")
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_REDUCTIONS = ("sum", "sum", "sum", "max", "max", "min", "mean", "mean", "prod", "any", "all")
_OWN_REDUCERS = (
    ('(0.0, float("-inf")), lambda a, b: (a[0] + b[0], ln.maximum(a[1], b[1])), "sum_and_top"',
     "({0}, ln.abs({0}))"),
    ('(1.0, 0.0), lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), "affine"', "(ln.sin({0}), 0.5)"),
    ('(0.0, False), lambda a, b: (ln.where(b[1], b[0], a[0]), a[1] | b[1]), "last"',
     "(ln.where({0} > 0.25, {0}, 0.0), {0} > 0.25)"),
    ('(1.0, 0.0), lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), "affine"',
     "(ln.sin(ln.max({0}, 0, keepdims=True)), {0})"),
    ('(float("-inf"), 0.0), lambda a, b: (m := ln.maximum(a[0], b[0]), '
     'a[1] * ln.exp(a[0] - m) + b[1] * ln.exp(b[0] - m)), "rescaled"',
     "(ln.max({0}, -1, keepdims=True), {0})"),
)  # fmt: skip
"""Arguments of `ln.Reducer`, and values, some of them lacking an axis; some commute."""

_SYMBOLS = "NMK"
_STATIC = (1, 2, 3, 4, 5, 7, 8, 11, 13, 16)
_FLAVOURS = {
    "any": (),
    "broadcasts": ("_binary", "_broadcast", "_expand", "_permute"),
    "reductions": ("_reduce", "_welford", "_softmax", "_arg", "_own_reducer", "_scan"),
    "diamonds": ("_binary",),
    "windows": ("_part", "_border", "_turn", "_join", "_window", "_stencil"),
    "gathers": ("_gather", "_scatter"),
    "keys": ("_lookup", "_histogram", "_histogram"),
    "orders": ("_sort", "_permuted"),
    "own reducers": ("_own_reducer", "_own_reducer", "_scan"),
    "shapes": ("_reshape", "_reshape", "_broadcast", "_permute"),
    "triangles": ("_triangle",),
}
"""What some fusions have more of."""


class FusionWriter(KeyedOperations):
    """Writes the math of one case into a session.

    Args:
        session: an empty one.
        rng: decides everything.
        dims: the extents of inputs; by default size symbols, with some static ones above 0.
    """

    def __init__(self, session: Session, rng: Random, dims: Sequence[int | str] = ()) -> None:
        super().__init__(session, rng, dims)
        self.flavour = rng.choice(list(_FLAVOURS))

    def write(self) -> None:
        """Write inputs, operations and outputs."""
        rng = self.rng
        if not self.dims:
            symbols = list(_SYMBOLS[: rng.choice([1, 2, 2, 2, 3])])
            static = rng.sample(_STATIC, rng.choice([0, 1, 2]))
            self.dims = [*symbols, *symbols, *static, *([0] if rng.random() < 0.03 else [])]
        for number in range(rng.choice([1, 1, 2, 2, 3])):
            self._input(number)
        if rng.random() < 0.25:
            self._line("a0", f'f.scalar("a0", ln.{rng.choice(_DTYPES)})')
        if rng.random() < 0.12 and self.session.fusion.symbols:
            self._assume()
        wanted = rng.choice([2, 3, 4, 5, 6, 8])
        for _ in range(4 * wanted):
            if self.count >= wanted:
                break
            self._operation()
        self._outputs()
        self._name_all()

    def _input(self, number: int) -> None:
        rng = self.rng
        rank = rng.choice([0, 1, 1, 2, 2, 2, 2, 3, 3, 4])
        shape = [rng.choice(self.dims) for _ in range(rank)]
        if number and rng.random() < 0.4:  # like the first, so that they meet
            shape = list(self.session.tensor("x0").shape)
            shape = [s if isinstance(s, int) else str(s) for s in shape]
            if shape and rng.random() < 0.5:
                shape[rng.randrange(len(shape))] = 1
            shape = shape[rng.choice([0, 0, 1]) :]
        text = "(" + "".join(f"{s!r}, " for s in shape).rstrip() + ")"
        strides = ""
        if shape and rng.random() < 0.08:
            steps = [rng.choice([repr(f"S{n}"), "1", "0", "None"]) for n in range(len(shape))]
            strides = f", strides=[{', '.join(steps)}]"
        dtype = rng.choice(_DTYPES)
        self._line(f"x{number}", f'f.input("x{number}", {text}, ln.{dtype}{strides})')

    def _assume(self) -> None:
        name = self.rng.choice(self.session.fusion.symbols).name
        factor = self.rng.choice([2, 4, 8])
        texts = [f"{name} % {factor} == 0", f"{name} <= 64", f"{name} >= 1"]
        texts += [f"{name} == {self.rng.choice([1, 4, 6, 16])}"] * 2
        self.session.define(f'f.assume("{self.rng.choice(texts)}")')

    # Operations

    def _operation(self) -> None:
        kinds = {
            self._unary: 18, self._binary: 30, self._compare: 5, self._select: 5,
            self._reduce: 20, self._permute: 5, self._broadcast: 6, self._squeeze: 3,
            self._expand: 4, self._source: 3, self._matmul: 4, self._cast: 4, self._softmax: 3,
            self._welford: 3, self._logic: 3, self._layer: 2, self._arg: 3, self._own_reducer: 3,
            self._part: 3, self._border: 3, self._turn: 2, self._join: 3, self._window: 4,
            self._scan: 4, self._gather: 3, self._scatter: 2, self._triangle: 3, self._reshape: 4,
            self._stencil: 3, self._lookup: 2, self._histogram: 2, self._sort: 1, self._permuted: 1,
        }  # fmt: skip
        for make in _FLAVOURS[self.flavour]:
            kinds[getattr(self, make)] *= 5
        self.rng.choices(list(kinds), list(kinds.values()))[0]()

    def _unary(self) -> None:
        name = self._pick()
        if name is None:
            return
        op = self.rng.choice(self.rng.choices([_SMOOTH, _ROUGH, _PARTIAL], [85, 6, 9])[0])
        if op in _PARTIAL and self._define(f"ln.abs({name})"):
            name = f"t{self.count - 1}"
            if op != "sqrt" and self._define(f"{name} + 0.5"):
                name = f"t{self.count - 1}"
        extra = ', approximate="tanh"' if op == "gelu" and self.rng.random() < 0.5 else ""
        self._define(f"ln.{op}({name}{extra})")

    def _binary(self) -> None:
        name = self._pick()
        if name is None:
            return
        mate = self._mate(name)
        if mate == name:  # x - x is 0 whatever is wrong; x + x is enough of it
            mate = self._mate(name)
        pair = [name, mate]
        self.rng.shuffle(pair)
        a, b = pair
        chance = self.rng.random()
        if chance < 0.8:
            op = self.rng.choice(_ARITHMETIC)
            self._define(f"ln.{'add' if a == b and op == 'sub' else op}({a}, {b})")
        elif chance < 0.86:
            self._define(f"{a} / {b}")
        elif chance < 0.9:
            self._define(f"{name} % {self.rng.choice(['3', '2.5', b])}")
        elif chance < 0.94:
            self._define(f"{name} ** {self.rng.choice(['2', '3', '2.0'])}")
        else:
            self._define(f"ln.fma({a}, {b}, {self._mate(name)})")

    def _compare(self) -> None:
        name = self._pick()
        if name is not None:
            self._define(f"ln.{self.rng.choice(_COMPARISONS)}({name}, {self._mate(name)})")

    def _select(self) -> None:
        cond, name = self._pick(lambda t: t.dtype.is_bool), self._pick()
        if name is None:
            return
        if cond is not None and self.rng.random() < 0.7:
            self._define(f"ln.where({cond}, {name}, {self._mate(name)})")
        else:
            self._define(f"ln.clamp({name}, -1.0, {self._mate(name)})")

    def _logic(self) -> None:
        name = self._pick(lambda t: not t.dtype.is_float)
        if name is not None:
            mate = self._mate(name)
            count = self.rng.choice(["1", "3", "7", mate])
            texts = [f"{name} & {mate}", f"{name} | {mate}", f"~{name}", f"ln.logical_not({name})",
                     f"ln.logical_and({name}, {mate})", f"{name} ^ {mate}", f"{name} << {count}",
                     f"{name} >> {count}", f"{name} // {count}"]  # fmt: skip
            self._define(self.rng.choice(texts))

    def _axes(self, name: str) -> tuple[str, bool]:
        """Return an axis argument, and whether to keep the dimensions."""
        rank = len(self.session.tensor(name).shape)
        rng = self.rng
        keep = rng.random() < 0.35
        if rng.random() < 0.15:
            return "None", keep
        count = rng.choice([1, 1, 1, 2]) if rank > 1 else 1
        axes = rng.sample(range(rank), min(count, rank))
        if len(axes) == 1:
            return str(axes[0] - rng.choice([0, rank])), keep
        return str(tuple(axes)), keep

    def _reduce(self, only: str = "") -> None:
        name = self._pick(lambda t: len(t.shape) > 0)
        if name is None:
            return
        axes, keep = self._axes(name)
        op = only or self.rng.choice(_REDUCTIONS)
        if op == "prod" and self.rng.random() < 0.5:
            op = "sum"
        self._define(f"ln.{op}({name}, {axes}{', keepdims=True' if keep else ''})")

    def _welford(self) -> None:
        name = self._pick(lambda t: len(t.shape) > 0)
        if name is None:
            return
        axes, keep = self._axes(name)
        extra = ", keepdims=True" if keep else ""
        if self.rng.random() < 0.5:
            correction = self.rng.choice(["", ", correction=1"])
            self._define(f"ln.var({name}, {axes}{correction}{extra})")
            return
        trio = ", ".join(f"t{self.count + n}" for n in range(3))
        if self._line(trio, f"ln.welford({name}, {axes}{extra})"):
            self.count += 3

    def _arg(self) -> None:
        name = self._pick(lambda t: len(t.shape) > 0 and all(s != 0 for s in t.shape))
        if name is None:
            return
        axes, keep = self._axes(name)
        axes = axes if not axes.startswith("(") else "None"
        extra = ", keepdims=True" if keep else ""
        self._define(f"ln.{self.rng.choice(['argmax', 'argmin'])}({name}, {axes}{extra})")

    def _own_reducer(self) -> None:
        """Fold by a reducer of one's own: one that commutes, or one whose order counts."""
        name = self._pick(lambda t: len(t.shape) > 0 and t.dtype.is_float)
        if name is None:
            return
        axes, keep = self._axes(name)
        extra = ", keepdims=True" if keep else ""
        reducer, values = self.rng.choice(_OWN_REDUCERS)
        pair = ", ".join(f"t{self.count + n}" for n in range(2))
        text = f"ln.reduce(ln.Reducer({reducer}), {values.format(name)}, {axes}{extra})"
        if self._line(pair, text):
            self.count += 2

    def _scan(self) -> None:
        name = self._pick(lambda t: len(t.shape) > 0)
        if name is None:
            return
        axis = self.rng.randrange(len(self.session.tensor(name).shape))
        flags = "".join(
            f", {flag}=True" for flag in ("exclusive", "reverse") if self.rng.random() < 0.3
        )
        if self.rng.random() < 0.25 and self.session.tensor(name).dtype.is_float:
            reducer, values = self.rng.choice(_OWN_REDUCERS)
            pair = ", ".join(f"t{self.count + n}" for n in range(2))
            text = f"ln.scan(ln.Reducer({reducer}), {values.format(name)}, {axis}{flags})"
            if self._line(pair, text):
                self.count += 2
            return
        op = self.rng.choice(["cumsum", "cumsum", "cummax"])
        self._define(f"ln.{op}({name}, {axis}{flags})")

    def _permute(self) -> None:
        name = self._pick(lambda t: len(t.shape) > 1)
        if name is not None:
            rank = len(self.session.tensor(name).shape)
            order = self.rng.sample(range(rank), rank)
            self._define(f"ln.permute({name}, {tuple(order)})")

    def _broadcast(self) -> None:
        name = self._pick(lambda t: len(t.shape) < 4)
        if name is None:
            return
        mask = [False] * len(self.session.tensor(name).shape)
        for _ in range(self.rng.choice([1, 1, 1, 2])):
            if len(mask) < 4:
                mask.insert(self.rng.randint(0, len(mask)), True)
        if self._define(f"ln.broadcast({name}, {tuple(mask)})") and self.rng.random() < 0.7:
            mine = f"t{self.count - 1}"  # make it concrete at once
            own = self.session.tensor(mine)
            mates = self._tensors(
                lambda t: len(t.shape) == len(own.shape) and t is not own and meets(own, t)
            )
            if mates:
                self._define(f"ln.{self.rng.choice(_ARITHMETIC)}({mine}, {self.rng.choice(mates)})")

    def _squeeze(self) -> None:
        name = self._pick(lambda t: any(a.is_broadcast for a in t.domain.logical))
        if name is not None:
            axes = self.session.tensor(name).domain.logical
            places = [n for n, a in enumerate(axes) if a.kind is IterKind.BROADCAST]
            self._define(f"ln.squeeze({name}, {self.rng.choice(places)})")

    def _expand(self) -> None:
        name = self._pick(lambda t: any(a.is_broadcast for a in t.domain.logical))
        if name is None:
            return
        shape: list[object] = []
        for axis in self.session.tensor(name).domain.logical:
            own = axis.extent if isinstance(axis.extent, int) else str(axis.extent)
            widen = axis.is_broadcast and self.rng.random() < 0.8
            shape.append(self.rng.choice(self.dims) if widen else own)
        if len(shape) < 4 and self.rng.random() < 0.2:
            shape.insert(0, self.rng.choice(self.dims))
        self._define(f"ln.expand({name}, ({', '.join(map(repr, shape))},))")

    def _source(self) -> None:
        rng = self.rng
        size = repr(rng.choice(self.dims))
        if rng.random() < 0.6:
            extra = rng.choice(["", ", dtype=ln.float32", ", 1, 2", ", -1, 0.5"])
            self._define(f"ln.iota({size}{extra})")
        elif rng.random() < 0.6:
            self._define(f"ln.full(({size},), {rng.choice(['1.5', '2', 'True'])})")
        else:
            shape = rng.choice([f"({size},)", f"({size}, {rng.choice(self.dims)!r})"])
            drawn = rng.choice(["bits", "uniform"])
            self._define(f"ln.random_{drawn}({rng.randrange(9)}, {rng.randrange(9)}, {shape})")

    def _matmul(self) -> None:
        a = self._pick(lambda t: len(t.shape) > 1)
        if a is None:
            return
        left = self.session.tensor(a)
        fits = self._tensors(lambda t: (len(t.shape) > 1 and t.shape[-2] is left.shape[-1])
                             or (len(t.shape) > 1 and t.shape[-2] == left.shape[-1]))  # fmt: skip
        if fits:
            self._define(f"ln.matmul({a}, {self.rng.choice(fits)})")

    def _cast(self) -> None:
        name = self._pick()
        if name is not None:
            saturate = ", saturate=True" if self.rng.random() < 0.3 else ""
            self._define(f"ln.cast({name}, ln.{self.rng.choice(_DTYPES[10:])}{saturate})")

    def _softmax(self) -> None:
        name = self._pick(lambda t: len(t.shape) > 0 and t.dtype.is_float)
        if name is None:
            return
        axis = self.rng.randrange(len(self.session.tensor(name).shape))
        at = self.count
        self._define(f"ln.max({name}, {axis}, keepdims=True)")
        self._define(f"ln.exp({name} - t{at})")
        self._define(f"t{at + 1} / ln.sum(t{at + 1}, {axis}, keepdims=True)")

    def _layer(self) -> None:
        name = self._pick(lambda t: len(t.shape) > 0 and t.dtype.is_float)
        if name is None:
            return
        at = self.count
        self._define(f"{name} - ln.mean({name}, -1, keepdims=True)")
        self._define(f"t{at} * ln.rsqrt(ln.var({name}, -1, keepdims=True) + 1e-3)")

    # Outputs

    def _outputs(self) -> None:
        rng, session = self.rng, self.session
        ends = self._tensors(lambda t: not t.is_input and not t.consumers)
        inner = self._tensors(lambda t: not t.is_input and bool(t.consumers))
        several = {n for n in ends if len(session.tensor(n).siblings) > 1}
        chosen = [n for n in ends if rng.random() < (0.5 if n in several else 0.9)]
        chosen += [n for n in inner if rng.random() < 0.1]
        chosen = chosen or ends[-1:] or session.tensors[-1:]
        if rng.random() < 0.02:
            chosen.append("x0")
        rng.shuffle(chosen)
        for number, name in enumerate(chosen[:4]):
            text = f'f.output({name}, "y{number}")'
            target = self._memory_for(name) if rng.random() < 0.12 else None
            if target and self._line(f"y{number}", f"{text[:-1]}, inplace={target})"):
                continue
            self._line(f"y{number}", text)

    def _memory_for(self, name: str) -> str | None:
        own = self.session.tensor(name)
        fits = self._tensors(
            lambda t: t.is_input and t.dtype is own.dtype and t.sizes == own.sizes
            and t not in self.session.fusion.inplace.values()
        )  # fmt: skip
        return self.rng.choice(fits) if fits else None

    def _name_all(self) -> None:
        """Give a variable to every tensor that an operation made beside its result."""
        session = self.session
        count = 0
        queue = [session.tensor(n) for n in session.tensors]
        known = {session.tensor(n): n for n in session.tensors}
        for tensor in queue:  # grows while it is walked
            for place, producer in enumerate(tensor.producers):
                if producer not in known:
                    known[producer] = f"b{count}"
                    session.define(f"b{count} = {known[tensor]}.producers[{place}]")
                    queue.append(producer)
                    count += 1
            for place, twin in enumerate(tensor.siblings):
                if twin not in known:
                    known[twin] = f"b{count}"
                    session.define(f"b{count} = {known[tensor]}.definition.outputs[{place}]")
                    queue.append(twin)
                    count += 1
