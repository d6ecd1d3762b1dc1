"""A loop nest as the source of a Python generator: what one thread of `thread_machine` does.

Every access is a call that checks its place; every statement of several threads is a `yield` of
where the thread waits: (scope, statement, loop values, kind, …).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias, assert_never

import numpy as np

from loopnest import kir
from loopnest.kir.nest_text import nest_lines
from loopnest.numerics.float64_math import APPLY, rounded
from loopnest.scalar.arguments import size_value
from loopnest.scalar.dtypes import FLOATS, INTEGERS, DType
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import (
    ONE,
    Buffer,
    Const,
    Expr,
    Index,
    LaunchIndex,
    Load,
    Local,
    Op,
    ScalarParam,
    Symbol,
)

Layout: TypeAlias = "tuple[tuple[int, ...], tuple[int, ...], int]"

_PLACES = {"grid_x": "gx", "grid_y": "gy", "grid_z": "gz",
           "block_x": "bx", "block_y": "by", "block_z": "bz"}  # fmt: skip
_WARPS = (ParallelType.block_z, ParallelType.block_y)
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_INFIX = {"add": "+", "sub": "-", "mul": "*", "bitand": "&", "bitor": "|", "bitxor": "^"}
_FAST: Mapping[str, Callable[[float], float]] = {
    "exp": math.exp, "sqrt": math.sqrt, "tanh": math.tanh, "erf": math.erf, "log": math.log,
}  # fmt: skip


class NeverStored:
    """The value of an element that was never stored."""


UNDEFINED = NeverStored()


@dataclass
class Code:
    """A nest at given sizes, ready to run.

    Args:
        thread: the generator function of a thread.
        buffers: all buffers, numbered.
        layouts: shape, strides and size of each.
        written: the numbers of those that a statement stores to.
    """

    thread: Callable[..., Iterator[Any]]
    buffers: list[Buffer]
    layouts: list[Layout]
    written: frozenset[int]


@lru_cache(maxsize=8)
def _known_code(program: kir.Program, sizes: tuple[tuple[str, int], ...]) -> Code:
    return _code_of(program, dict(sizes))


def code_of(program: kir.Program, sizes: Mapping[str, int]) -> Code:
    """Return `program` at `sizes` as code; the last few are kept, for runs in other orders."""
    return _known_code(program, tuple(sizes.items()))


def _code_of(program: kir.Program, sizes: Mapping[str, int]) -> Code:
    nodes = [node for node, _ in kir.walk(program.body)]
    buffers = [p.buffer for p in program.params if p.buffer is not None]
    buffers += [o.buffer for o in program.outputs]
    buffers += [n.storage for n in nodes if isinstance(n, kir.Allocate)]
    buffers += [n.storage for n in nodes if isinstance(n, kir.Store)]
    buffers = list(dict.fromkeys(buffers))
    alone = any(size_value(extent, sizes) == 0 for _, extent in program.launch)
    layouts = [_layout(b, sizes, alone) for b in buffers]
    stored = {n.storage for n in nodes if isinstance(n, kir.Store)}
    written = frozenset([n for n, b in enumerate(buffers) if b in stored or b.kind != "input"])
    writer = _ThreadWriter(program, sizes, buffers, layouts, written)
    return Code(writer.function(), buffers, layouts, written)


def _layout(buffer: Buffer, sizes: Mapping[str, int], alone: bool) -> Layout:
    shape = tuple([size_value(s, sizes) for s in buffer.shape])
    if (
        alone and 0 in shape and buffer.kind not in ("input", "output")
    ):  # room for the thread of an empty launch
        shape = tuple([max(extent, 1) for extent in shape])
        strides = tuple([math.prod(shape[n + 1 :]) for n in range(len(shape))])
        return shape, strides, math.prod(shape)
    strides = tuple([size_value(s, sizes) for s in buffer.strides])
    return shape, strides, max(size_value(buffer.size, sizes), 0)


@dataclass
class _ThreadWriter:
    program: kir.Program
    sizes: Mapping[str, int]
    buffers: list[Buffer]
    layouts: list[Layout]
    written: frozenset[int]
    lines: list[str] = field(default_factory=list)
    names: dict[Expr, str] = field(default_factory=dict)
    texts: dict[Expr, str] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    issuing: bool = False

    def function(self) -> Callable[..., Iterator[Any]]:
        self.numbers = {b: n for n, b in enumerate(self.buffers)}
        self.places = nest_lines(self.program)
        for number in range(len(self.buffers)):
            self._access(number)
        self.lines.append("def thread(M, T, G, gx, gy, gz, bx, by, bz):")
        self.lines.append(" if False: yield")
        self.lines.append(f" T.lane = bx; T.warps = {self._warps()}")
        for number, buffer in enumerate(self.buffers):
            if buffer.memory is Memory.GLOBAL:
                self.lines.append(f" m{number} = G[{number}]")
        self._body(self.program.body, 1, ())
        space = {"U": UNDEFINED, "inf": math.inf, "nan": math.nan, **_HELPERS, **self.constants}
        exec(compile("\n".join(self.lines), f"<{self.program.name}>", "exec"), space)
        thread: Callable[..., Iterator[Any]] = space["thread"]
        return thread

    def _warps(self) -> str:
        """Return the index that a thread has of the axes for warps in WARP buffers."""
        launch = dict(self.program.launch)
        used = [f"{_PLACES[d.value]}, " for d in _WARPS if launch.get(d, ONE) is not ONE]
        return f"({''.join(used)})"

    # Accesses

    def _access(self, number: int) -> None:
        shape, strides, size = self.layouts[number]
        index = [f"a{n}" for n in range(len(shape))]
        held = list(index)
        for a, b in self.buffers[number].swizzles:
            rows, columns = shape[a], shape[b]
            moved = held[a] if rows <= columns else f"({held[a]} & {columns - 1})"
            held[b] = f"({held[b]} ^ {moved})"
        place = " + ".join([f"{a} * {s}" for a, s in zip(held, strides, strict=True)])
        inside = [f"0 <= {a} < {n}" for a, n in zip(index, shape, strict=True)]
        self._functions(number, "", index, place, [*inside, f"0 <= e < {size}"])
        self._functions(number, "f", ["a0"], "a0", [f"0 <= e < {size}"])

    def _functions(
        self, number: int, mark: str, index: Sequence[str], place: str, inside: Sequence[str]
    ) -> None:
        plain = self._is_plain(number)
        held = "m" if plain else "m.values"
        args, test = ", ".join(index), " and ".join(inside)
        name = self.buffers[number].name
        held_by_lanes = self.buffers[number].memory is Memory.WARP
        lane = [f" T.look({number}, ({args},))"] if held_by_lanes else []
        self.lines += [
            f"def L{mark}{number}(T, m, {args}):",
            *lane,
            f" e = {place}",
            f" if {test}:",
            "  v = m[e]" if plain else "  v = m.read(T, e)",
            f"  return T.undefined({number}, {args}) if v is U else v",
            f" return T.outside({number}, ({args},), {held}, e)",
            f"def S{mark}{number}(T, m, v, {args}):",
            *lane,
            f" e = {place}",
            f" if T.trace is not None: T.trace.append(({name!r}, e, v))",
            f" if {test}:",
            "  m[e] = v" if plain else "  m.write(T, e, v)",
            f" else: T.beyond({number}, ({args},), {held}, e, v)",
        ]

    def _is_plain(self, number: int) -> bool:
        return self.buffers[number].memory is Memory.LOCAL or number not in self.written

    # Statements

    def _body(self, body: tuple[kir.Stmt, ...], depth: int, loops: tuple[str, ...]) -> None:
        pad = " " * depth
        for node in body:
            self._statement(node, depth, pad, loops)
        if not body:
            self.lines.append(f"{pad}pass")

    def _statement(self, node: kir.Stmt, depth: int, pad: str, loops: tuple[str, ...]) -> None:
        put = self.lines.append
        if not isinstance(node, (kir.Loop, kir.Allocate, kir.Collective)):
            put(f"{pad}T.at = {self.places[node]}")
        match node:
            case kir.Loop():
                self._loop(node, depth, pad, loops)
            case kir.If() | kir.Until():
                self._test(node, depth, pad, loops)
            case kir.Allocate():
                number = self.numbers[node.storage]
                shared = node.storage.memory in (Memory.SHARED, Memory.WARP)
                made = f"T.shared({number})" if shared else f"[U] * {self.layouts[number][2]}"
                put(f"{pad}m{number} = {made}")
            case kir.Store():
                self._store(node, pad)
            case kir.Issue() | kir.Commit() | kir.Wait():
                self._copies(node, depth, pad, loops)
            case kir.Let():
                put(f"{pad}{self.name(node.var)} = {self.text(node.value)}")
            case kir.Barrier():
                put(f"{pad}yield {self._wait(node.scope, node, loops)}, 'barrier')")
            case kir.Shuffle():
                kind = self._constant(node.var.dtype)
                offer = f"{self.text(node.value)}, {node.mode!r}, {self.text(node.offset)}, {kind}"
                wait = self._wait("warp", node, loops)
                put(f"{pad}{self.name(node.var)} = yield {wait}, 'shuffle', {offer})")
            case kir.Arrive():
                self._arrive(node, pad, loops)
            case kir.Collective() | kir.Tile() | kir.Launch():
                self._together(node, depth, pad, loops)
            case _:
                assert_never(node)

    def _test(self, node: kir.If | kir.Until, depth: int, pad: str, loops: tuple[str, ...]) -> None:
        self.lines.append(f"{pad}if {self.text(node.condition)}:")
        if isinstance(node, kir.Until):
            self.lines.append(f"{pad} break")
            return
        self._body(node.body, depth + 1, loops)
        self.lines.append(f"{pad}else:")
        self._body(node.orelse, depth + 1, loops)

    def _together(
        self,
        node: kir.Collective | kir.Tile | kir.Launch,
        depth: int,
        pad: str,
        loops: tuple[str, ...],
    ) -> None:
        """Run a body; that of a tile of a warp between barriers, whose lanes share elements."""
        if isinstance(node, kir.Launch):
            raise kir.one_launch(node)
        if isinstance(node, kir.Collective) or not node.over_lanes:
            self._body(node.body, depth, loops)
            return
        self.lines.append(f"{pad}yield {self._wait('warp', node, loops)}, 'barrier')")
        self.lines.append(f"{pad}T.tile = True")
        self._body(node.body, depth, loops)
        self.lines.append(f"{pad}T.tile = False")
        self.lines.append(f"{pad}yield {self._wait('warp', node, loops)}, 'barrier')")

    def _store(self, node: kir.Store, pad: str) -> None:
        value = _converted(self.text(node.value), node.value.dtype, node.storage.dtype)
        call = self._call("S", node.storage, node.index, node.flat, value)
        if node.atomic:
            number = self.buffers.index(node.storage)
            self.lines.append(f"{pad}T.atomic = {number}")
            self.lines.append(f"{pad}{call}")
            self.lines.append(f"{pad}T.atomic = None")
        elif self.issuing:
            self._fly(node, pad)
        else:
            self.lines.append(f"{pad}{call}")

    def _copies(
        self,
        node: kir.Issue | kir.Commit | kir.Wait,
        depth: int,
        pad: str,
        loops: tuple[str, ...],
    ) -> None:
        if isinstance(node, kir.Issue):
            self.issuing = True
            self._body(node.body, depth, loops)
            self.issuing = False
        elif isinstance(node, kir.Commit):
            self.lines.append(f"{pad}T.commit()")
        else:
            self.lines.append(f"{pad}T.land({node.pending})")

    def _fly(self, node: kir.Store, pad: str) -> None:
        """Begin a copy: its element is undefined, and its source read, until it lands."""
        number = self.numbers[node.storage]
        mark = "f" if node.flat else ""
        index = "".join([f"{self.text(i)}, " for i in node.index])
        held = _converted("v", node.value.dtype, node.storage.dtype)
        again = "None"
        if isinstance(node.value, Load):
            place = "".join([f"{self.text(i)}, " for i in node.value.args])
            source, flat = self.numbers[node.value.buffer], "f" if node.value.flat else ""
            again = f"lambda m=m{source}, a=({place}): L{flat}{source}(T, m, *a)"
        store = f"lambda v, m=m{number}, a=({index}): S{mark}{number}(T, m, v, *a)"
        self.lines.append(f"{pad}v = {self.text(node.value)}")
        self.lines.append(f"{pad}T.fly({held}, {store}, {again})")

    def _loop(self, node: kir.Loop, depth: int, pad: str, loops: tuple[str, ...]) -> None:
        name, extent = self.name(node.var), self.text(node.var.extent)
        if node.parallel.is_thread:
            self.lines.append(f"{pad}{name} = {_PLACES[node.parallel.value]}")
            self.lines.append(f"{pad}if {name} < {extent}:")
            self._body(node.body, depth + 1, loops)
        else:
            self.lines.append(f"{pad}for {name} in range({extent}):")
            self._body(node.body, depth + 1, (*loops, name))
            if node.body and isinstance(node.body[-1], kir.Until):
                self.lines.append(f"{pad}else: {name} = {extent}")
                end = self._constant(node.body[-1])
                self.lines.append(f"{pad}M.run_state.left({end}, {name}, {extent})")

    def _wait(self, scope: str, node: kir.Stmt, loops: tuple[str, ...]) -> str:
        """Return the beginning of what a thread that waits yields."""
        site = len(self.lines)
        values = "".join([f"{name}, " for name in loops])
        return f"({scope!r}, {site}, ({values})"

    def _arrive(self, node: kir.Arrive, pad: str, loops: tuple[str, ...]) -> None:
        number = self.numbers[node.counter]
        strides = self.layouts[number][1]
        place = " + ".join(
            [f"{self.text(i)} * {s}" for i, s in zip(node.index, strides, strict=True)]
        )
        wait = self._wait("block", node, loops)
        call = f"{wait}, 'arrive', {number}, {place}, {self.text(node.count)})"
        self.lines.append(f"{pad}{self.name(node.var)} = yield {call}")

    def _call(
        self, verb: str, buffer: Buffer, index: Sequence[Expr], flat: bool, value: str = ""
    ) -> str:
        number = self.numbers[buffer]
        inner = ", ".join([self.text(i) for i in index])
        given = f"{value}, " if value else ""
        return f"{verb}{'f' if flat else ''}{number}(T, m{number}, {given}{inner})"

    def _constant(self, value: object) -> str:
        name = f"k{len(self.constants)}"
        self.constants[name] = value
        return name

    # Expressions

    def name(self, var: Index | Local) -> str:
        """Return the Python variable of a loop index or a temporary."""
        return self.names.setdefault(var, f"v{len(self.names)}")

    def text(self, node: Expr) -> str:
        """Return an expression as Python."""
        found = self.texts.get(node)
        if found is None:
            found = self.texts[node] = self._text(node)
        return found

    def _text(self, node: Expr) -> str:
        match node:
            case Const():
                return f"({_literal(node)!r})"
            case Symbol():
                return str(self.sizes[node.name])
            case ScalarParam():
                return f"M.scalars[{node.name!r}]"
            case Index() | Local():
                return self.name(node)
            case LaunchIndex():
                return _PLACES[node.dimension.value]
            case Load():
                return self._call("L", node.buffer, node.args, node.flat)
            case Op():
                return self._operation(node)
        raise TypeError(f"no Python for {node!r}")

    def _operation(self, node: Op) -> str:
        args = [self.text(a) for a in node.args]
        op, dtype = node.op, node.dtype
        if op in _COMPARE:
            return f"({args[0]} {_COMPARE[op]} {args[1]})"
        if op in ("and", "or"):
            return f"({args[0]} {op} {args[1]})"
        if op == "not" or (op == "bitnot" and dtype.is_bool):
            return f"(not {args[0]})"
        if op == "where":
            return f"({args[1]} if {args[0]} else {args[2]})"
        if op == "cast":
            return _converted(args[0], node.args[0].dtype, dtype)
        if op in _INFIX:
            return _wrapped(f"({args[0]} {_INFIX[op]} {args[1]})", dtype)
        if op == "neg":
            return _wrapped(f"(-{args[0]})", dtype)
        if op == "fma":
            return _wrapped(f"({args[0]} * {args[1]} + {args[2]})", dtype)
        if dtype.is_integer and f"i_{op}" in _HELPERS:
            return _wrapped(f"i_{op}({', '.join(args)})", dtype)
        if node.args[0].dtype.is_float and f"f_{op}" in _HELPERS:
            return f"f_{op}({', '.join(args)})"
        kind = self._constant(node.args[0].dtype)
        return f"apply({op!r}, {kind}, {', '.join(args)})"


def _literal(node: Const) -> bool | int | float:
    """Return a literal as its type can hold it."""
    if not node.dtype.is_float:
        return node.value
    with np.errstate(all="ignore"):
        return float(rounded(np.asarray(float(node.value)), node.dtype))


def _wrapped(text: str, dtype: DType) -> str:
    if dtype.kind == "i":
        return f"wrap_{dtype.name}({text})"
    return f"bool({text})" if dtype.is_bool else text


def _converted(text: str, source: DType, target: DType) -> str:
    if target.is_narrow:
        return text if source is target else f"round_{target.name}({text})"
    if source is target:
        return text
    if target.is_float:
        return f"float({text})" if target.name == "float64" else f"round_float32({text})"
    if target.is_bool:
        return f"({text} != 0)"
    return _wrapped(f"whole({text})", target)


def _wrap(dtype: DType) -> Callable[[int], int]:
    least, full = dtype.least, 1 << dtype.bits
    return lambda v: v if 0 <= v - least < full else (v - least) % full + least


def _apply(op: str, dtype: DType, *args: Any) -> Any:
    """Return an operation on numbers, as NumPy computes it in float64 or in the integer type."""
    fast = _FAST.get(op)
    if fast is not None:
        try:
            return fast(*args)
        except (ValueError, OverflowError):
            pass
    kind = np.float64 if dtype.is_float else dtype.numpy
    with np.errstate(all="ignore"):
        return np.asarray(APPLY[op](*[np.asarray(a, kind) for a in args])).item()


def _rounding(name: str) -> Callable[[float], float]:
    from loopnest.scalar import dtypes

    dtype = dtypes.of(name)

    def convert(value: float) -> float:
        with np.errstate(all="ignore"):
            return float(rounded(np.asarray(float(value)), dtype))

    return convert


def _whole(value: float) -> int:
    return int(value) if math.isfinite(value) else 0


def _least(a: float, b: float) -> float:
    return a if a != a or a < b else b


def _largest(a: float, b: float) -> float:
    return a if a != a or a > b else b


def _quotient(a: float, b: float) -> float:
    if b:
        return a / b
    if a != a or b != b or a == 0:
        return math.nan
    return math.copysign(math.inf, a * math.copysign(1, b))


_HELPERS: Mapping[str, Any] = {
    "apply": _apply,
    **{f"wrap_{dtype.name}": _wrap(dtype) for dtype in INTEGERS},
    "whole": _whole,
    **{f"round_{dtype.name}": _rounding(dtype.name) for dtype in FLOATS},
    "i_floordiv": lambda a, b: a // b if b else 0,
    "i_mod": lambda a, b: a % b if b else 0,
    "i_ceildiv": lambda a, b: -(-a // b) if b else 0,
    "i_min": min,
    "i_max": max,
    "i_abs": abs,
    "f_min": _least,
    "f_max": _largest,
    "f_abs": abs,
    "f_div": _quotient,
    "f_isnan": lambda a: a != a,
}
