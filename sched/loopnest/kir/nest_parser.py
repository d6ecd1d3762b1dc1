"""Read a nest text (`str(kernel)`) into a `Program`: kernels written by hand.

The text leaves out origins, coordinates and layouts; `Kernel.text(full=True)` has all of them. A
line has one of the `FORMS`; Python's grammar reads the expressions in it.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from loopnest.base.errors import LoopnestError
from loopnest.kir import nodes as kir
from loopnest.kir.kernel_program import Output, Param, Program
from loopnest.kir.nest_text import HEADER
from loopnest.kir.nodes import BOUND
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import LAUNCH_DIMENSIONS, Memory, ParallelType
from loopnest.scalar.expr import (
    ONE,
    ZERO,
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
    all_of,
    cast,
    integer,
    two_sides,
)
from loopnest.scalar.expr_parser import ExprParser, Unreadable, items
from loopnest.scalar.record_text import natural_type

_REDUCERS = {"sum": ("add", 0), "prod": ("mul", 1), "max": ("max", -math.inf),
             "min": ("min", math.inf), "any": ("or", False), "all": ("and", True)}  # fmt: skip


def _held(start: float, dtype: DType) -> Const:
    """Return what a reducer starts from; integers hold no infinity."""
    return Const(min(max(start, dtype.least), dtype.greatest) if dtype.is_integer else start, dtype)


_LINE = "a nest's line"
_PARAMETERS = "parameters as name: type[shape]"
_OUTPUTS = "outputs as name: type[shape]"


def parse(
    text: str,
    conditions: tuple[tuple[str, Expr], ...] = (),
    launch: Mapping[ParallelType, Expr] | None = None,
) -> Program:
    """Return the program of a nest text.

    Literals take the type of the other operand, else index (ints) or float32 (floats). `launch`
    overrides the launch extents, by default those of the loops (the larger one of two by `max`).

    Raises:
        LoopnestError: a line is damaged.
    """
    parser = NestParser(text, conditions, launch or {})
    try:
        return parser.parsed()
    except (Unreadable, SyntaxError, KeyError, ValueError, IndexError) as error:
        reason = f"'{parser.line.strip()}' cannot be read"
        hint = f"expected {error if isinstance(error, Unreadable) else _LINE}"
        raise LoopnestError(f"parse, line {parser.number}", reason, hint) from error


def _match(pattern: str, text: str, expected: str) -> tuple[str, ...]:
    """Return the groups of a pattern; "" for one that is not there."""
    found = re.fullmatch(pattern, text)
    if found is None:
        raise Unreadable(expected)
    return tuple([group or "" for group in found.groups()])


def _declared(text: str, expected: str) -> list[tuple[str, ast.expr | None]]:
    """Return names with what stands behind their colons: ``x: float32[N], s: float32``."""
    text = text.replace("[]", "[()]").replace(" strides(", ".strides(")
    try:
        match ast.parse(f"def _({text}): pass").body:
            case [ast.FunctionDef(args=ast.arguments(args=found), returns=None)]:
                return [(arg.arg, arg.annotation) for arg in found]
    except SyntaxError:
        pass
    raise Unreadable(expected)


def _operands(op: str, value: Expr) -> list[Expr]:
    """Return what `value` is the largest or smallest of, itself where it is another operation."""
    if not isinstance(value, Op) or value.op != op:
        return [value]
    return [found for arg in value.args for found in _operands(op, arg)]


def _loop_mark(mark: str) -> tuple[str, ParallelType]:
    """Return the name of a loop's axis and its parallel type, of ``do, grid_x`` or one of them."""
    name, _, how = mark.rpartition(", ")
    if name or how in ParallelType.__members__:
        return name, ParallelType(how)
    return how, ParallelType.serial


class NestParser(ExprParser):
    """Reads a nest text line by line."""

    def __init__(
        self,
        text: str,
        conditions: tuple[tuple[str, Expr], ...],
        launch: Mapping[ParallelType, Expr],
    ) -> None:
        lines = [line.rstrip() for line in text.strip("\n").splitlines()] or [""]
        indent = len(lines[0]) - len(lines[0].lstrip())
        kept = [(n, line[indent:]) for n, line in enumerate(lines, 1) if line.strip()]
        if kept and kept[0][1].startswith("#"):
            if kept[0][1] != HEADER:
                reason = f"it is '{kept[0][1]}'"
                raise LoopnestError("parse, line 1", reason, f"expected '{HEADER}'")
            kept.pop(0)
        self.numbers = [number for number, _ in kept] or [1]
        self.lines = [line for _, line in kept] or [""]
        self.at = 1
        self.counters = set(re.findall(r" = arrive\((\w+)\[", text))
        self.names: dict[str, Expr] = {}
        self.buffers: dict[str, Buffer] = {}
        self.sizes: dict[str, None] = {}
        self.launch = dict(launch)
        self.given = set(launch)
        self.workspace: list[Param] = []
        self.conditions = conditions

    @property
    def line(self) -> str:
        """The line that was read last."""
        return self.lines[self.at - 1]

    @property
    def number(self) -> int:
        """Its number in the text, counted from 1."""
        return self.numbers[self.at - 1]

    def parsed(self) -> Program:
        """Return the program."""
        pattern = r"kernel (\w+)\((.*)\) -> \((.*)\)"
        name, taken, given = _match(pattern, self.lines[0], "kernel name(inputs) -> (outputs)")
        inputs = [self.param(*part) for part in _declared(taken, _PARAMETERS)]
        outputs = [self.output(*part) for part in _declared(given, _OUTPUTS)]
        body = self.body(0)
        made = [
            Param(o.name, "output", o.buffer.dtype, o.buffer, o.shape)
            for o in outputs
            if not o.inplace
        ]
        params = [p for p in inputs if p.kind == "input"] + made
        params += [p for p in inputs if p.kind == "scalar"]
        params += [Param(name, "size", dtypes.index) for name in self.sizes]
        order = [(d, self.launch[d]) for d in LAUNCH_DIMENSIONS if d in self.launch]
        return Program(
            name, (*params, *self.workspace), body, tuple(order), tuple(outputs), self.conditions
        )

    # Arrays

    def param(self, name: str, form: ast.expr | None) -> Param:
        """Read an input or a scalar."""
        match form:
            case ast.Name(id=dtype):
                self.names[name] = ScalarParam(name, dtypes.of(dtype))
                return Param(name, "scalar", dtypes.of(dtype))
            case ast.Call(func=ast.Attribute(value=array, attr="strides"), args=steps):
                made = self.array(name, "input", array, _PARAMETERS)
                return self.strided(made, tuple([self.build(step) for step in steps]))
        return self.array(name, "input", form, _PARAMETERS)

    def strided(self, param: Param, strides: tuple[Expr, ...]) -> Param:
        """Return a parameter whose array has other strides."""
        assert param.buffer is not None
        size: Expr = ONE
        for extent, stride in zip(param.shape, strides, strict=True):
            reach = _index("mul", _index("sub", extent, ONE), stride)
            size = _index("add", size, reach)
        buffer = replace(param.buffer, strides=strides, size=size)
        self.buffers[param.name] = buffer
        return replace(param, buffer=buffer, strides=strides)

    def output(self, name: str, form: ast.expr | None) -> Output:
        """Read an output."""
        match form:
            case ast.Compare(left=array, ops=[ast.In()], comparators=[ast.Name(id=place)]):
                return Output(name, self.buffers[place], self.typed(array, _OUTPUTS)[1], place)
        param = self.array(name, "output", form, _OUTPUTS)
        return Output(name, self.buffers[name], param.shape)

    def array(self, name: str, kind: str, form: ast.expr | None, expected: str) -> Param:
        """Make the parameter of an array."""
        dtype, shape = self.typed(form, expected)
        buffer = self.buffer(name, dtype, shape or (ONE,), Memory.GLOBAL, kind)
        return Param(name, kind, dtype, buffer, shape)

    def typed(self, form: ast.expr | None, expected: str) -> tuple[DType, tuple[Expr, ...]]:
        """Read ``type[shape]``."""
        match form:
            case ast.Subscript(value=ast.Name(id=dtype), slice=shape):
                return dtypes.of(dtype), tuple([self.build(extent) for extent in items(shape)])
        raise Unreadable(expected)

    def buffer(
        self,
        name: str,
        dtype: DType,
        shape: tuple[Expr, ...],
        memory: Memory,
        kind: str,
        alias: str | None = None,
        swizzles: tuple[tuple[int, int], ...] = (),
    ) -> Buffer:
        """Make a dense buffer."""
        strides: list[Expr] = []
        size: Expr = ONE
        for extent in reversed(shape):
            strides.insert(0, size)
            size = extent if size is ONE else _index("mul", size, extent)
        made = Buffer(
            name, name, memory, dtype, shape, tuple(strides), size, kind, alias, swizzles=swizzles
        )
        self.buffers[name] = made
        return made

    # Statements

    def body(self, indent: int) -> tuple[kir.Stmt, ...]:
        """Read the statements that are indented by `indent`."""
        result: list[kir.Stmt] = []
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if len(line) - len(line.lstrip()) < indent:
                break
            self.at += 1
            node = self.statement(line.strip(), indent)
            if node is not None:
                result.append(node)
        return tuple(result)

    def statement(self, line: str, indent: int) -> kir.Stmt | None:
        """Read a statement with its bodies; None for one that says nothing."""
        for word, (pattern, expected, read) in FORMS.items():
            if line.startswith(word):
                return read(self, indent + 2, *_match(pattern, line, expected))
        if line == "commit":
            return kir.Commit()
        if line.endswith(":"):
            return self.collective(line, indent + 2)
        return None if line == "pass" else self.allocate_or_store(line)

    def loop(self, indent: int, name: str, span: str, extent: str, mark: str) -> kir.Stmt:
        """Read a loop with its body."""
        label, parallel = _loop_mark(mark)
        self.names[name] = var = Index(name, self.expression(extent))
        if parallel.is_thread and parallel not in self.given:
            self.extend(parallel, var.extent)
        body = self.body(indent)
        if span:
            start, stop = [self.expression(part) for part in span.split("..")]
            # That it lies within the extent is said by the loop itself.
            first = [e for e in _operands("max", start) if e is not ZERO]
            tests = [Op("le", (e, var), dtypes.bool_) for e in first]
            how, last, end = "lt", stop, var.extent
            if isinstance(stop, Op) and stop.op == "add" and stop.args[1] is ONE:
                how, last, end = "le", stop.args[0], self._before(extent)
            behind = [e for e in _operands("min", last) if e is not end]
            tests += [Op(how, (var, e), dtypes.bool_) for e in behind or [last]]
            body = (kir.If(all_of(tests), body, (), BOUND),)
        return kir.Loop(var, parallel, f"{name}.{label}" if label else name, body)

    def _before(self, extent: str) -> Expr:
        """Return the last index of an axis."""
        return integer(int(extent) - 1) if extent.isdigit() else self.expression(f"{extent} - 1")

    def extend(self, dimension: ParallelType, extent: Expr) -> None:
        """Let the launch have at least this extent along a dimension."""
        known = self.launch.get(dimension)
        larger = extent if known in (None, extent) else _index("max", known, extent)
        self.launch[dimension] = larger

    def branch(self, indent: int, text: str) -> kir.Stmt:
        """Read a test with its bodies."""
        condition, body = self.expression(text), self.body(indent)
        orelse: tuple[kir.Stmt, ...] = ()
        if self.lines[self.at : self.at + 1] == [" " * (indent - 2) + "else:"]:
            self.at += 1
            orelse = self.body(indent)
        return kir.If(condition, body, orelse)

    def tile(self, indent: int, name: str, held: str) -> kir.Stmt:
        """Read a tile with its body."""
        pairs = [_match(r"(\w+)=(\w+)", part, "role=buffer") for part in held.split(", ")]
        operands = tuple([(role, self.buffers[buffer]) for role, buffer in pairs])
        return kir.Tile(name, operands, self.body(indent))

    def launched(self, indent: int) -> kir.Stmt:
        """Read one launch of several: it has the extents of its loops, and its own buffers."""
        whole, self.launch = self.launch, {d: self.launch[d] for d in self.given}
        body = self.body(indent)
        own, self.launch = self.launch, whole
        for dimension, extent in own.items():
            self.extend(dimension, extent)
        return kir.Launch(tuple([(d, own[d]) for d in LAUNCH_DIMENSIONS if d in own]), body)

    def barrier(self, _: int, scope: str, reason: str) -> kir.Stmt:
        """Read a barrier."""
        return kir.Barrier(scope, reason)

    def issue(self, indent: int, instruction: str) -> kir.Stmt:
        """Read what begins copies."""
        return kir.Issue(instruction, self.body(indent))

    def wait(self, _: int, pending: str) -> kir.Stmt:
        """Read what waits for copies."""
        return kir.Wait(int(pending))

    def until(self, _: int, condition: str) -> kir.Stmt:
        """Read what ends a loop."""
        return kir.Until(self.expression(condition))

    def let(self, _: int, name: str, value: str) -> kir.Stmt:
        """Read what defines a name."""
        match ast.parse(value, mode="eval").body:
            case ast.Call(func=ast.Name(id="arrive"), args=[place, count]):
                counter = self.build(place)
                if not isinstance(counter, Load):
                    raise Unreadable("arrive(counter[index], count)")
                var = self.local(name, dtypes.bool_)
                return kir.Arrive(var, counter.buffer, counter.args, self.build(count))
            case ast.Call(func=ast.Name(id=call), args=[given, offset]) if call.startswith(
                "shuffle_"
            ):
                offered, mode = self.build(given), call.removeprefix("shuffle_")
                var = self.local(name, offered.dtype)
                return kir.Shuffle(var, offered, mode, self.build(offset))
            case tree:
                made = self.build(tree)
                return kir.Let(self.local(name, made.dtype), made)

    def local(self, name: str, dtype: DType) -> Local:
        """Make a temporary."""
        self.names[name] = var = Local(name, dtype)
        return var

    def collective(self, line: str, indent: int) -> kir.Stmt:
        """Read a collective with its body."""
        pattern = r"(.*?) = (inclusive |exclusive |ordered |)(\w+)\((.*)\) over (.*):"
        expected = "results = reducer(values) over dimensions:"
        names, how, name, given, dims = _match(pattern, line, expected)
        values = [self.expressions(value) for value in given.split(";")]
        first = values[0]
        op, start = _REDUCERS.get(name, ("", 0))  # others print, but do not combine
        pairs = zip(*two_sides([a.dtype for a in first]), strict=True)
        body = self.body(indent)
        wanted = self.expressions(names.replace(";", ","))
        results = tuple([local for local in wanted if isinstance(local, Local)])
        if len(results) != len(wanted):
            raise Unreadable(f"a body that defines {names}")
        return kir.Collective(
            name,
            results,
            tuple(chain.from_iterable(values)),
            tuple([ParallelType(d) for d in dims.split(", ")]),
            tuple([_held(start, a.dtype) for a in first]),
            tuple([self.operation(op, pair) for pair in pairs if op]),
            body,
            scan="" if how == "ordered " else how.strip(),
            ordered=how == "ordered ",
        )

    def allocate_or_store(self, line: str) -> kir.Stmt | None:
        """Read the line of a buffer, or of a store."""
        found = re.fullmatch(
            r"(\w+: \w+\[.*\]) (local|warp|shared|global)((?: xor\(\d+, \d+\))*)(?: = (\w+))?", line
        )
        if found is None:
            return self.store(line)
        text, memory, swizzles, alias = found.groups()
        ((name, form),) = _declared(text, _LINE)
        if memory == "global":
            kind = "counter" if name in self.counters else "workspace"
            made = self.array(name, kind, form, _LINE)
            self.workspace.append(replace(made, kind="workspace"))
            return None
        pairs = tuple([ast.literal_eval(pair) for pair in swizzles.split(" xor")[1:]])
        dtype, shape = self.typed(form, _LINE)
        return kir.Allocate(self.buffer(name, dtype, shape, Memory(memory), memory, alias, pairs))

    def store(self, line: str) -> kir.Stmt:
        """Read a store."""
        target, _, value = line.removeprefix("atomic ").partition(" = ")
        access = self.expression(target)
        if not isinstance(access, Load):
            raise Unreadable("a statement")
        return kir.Store(
            access.buffer,
            access.args,
            self.expression(value, access.dtype),
            access.buffer.tensor,
            flat=access.flat,
            atomic=line.startswith("atomic "),
        )

    # Expressions

    def expressions(self, text: str) -> tuple[Expr, ...]:
        """Read expressions between commas."""
        return tuple([self.build(part) for part in items(ast.parse(f"[{text}]", mode="eval").body)])

    def name(self, name: str) -> Expr:
        """Return the expression that a name refers to; an unknown name is a size."""
        if name in ParallelType.__members__:
            return LaunchIndex(ParallelType(name))
        if name not in self.names:
            self.names[name] = Symbol(name)
            self.sizes.setdefault(name)
        return self.names[name]

    def load(self, buffer: str, index: tuple[Expr, ...], *, flat: bool) -> Load:
        return Load(self.buffers[buffer], index, flat)

    def convert(self, value: Expr, dtype: DType) -> Expr:
        return cast(value, dtype)

    def operands(self, nodes: Sequence[ast.expr], want: DType | None) -> tuple[Expr, ...]:
        """Return operands of one type: literals follow the others."""
        named = (ast.Name, ast.Subscript)
        typed = [n for n in nodes if any(isinstance(inner, named) for inner in ast.walk(n))]
        built = {id(node): self.build(node, want) for node in typed}
        if typed:
            want = built[id(typed[0])].dtype
        return tuple([built[id(n)] if id(n) in built else self.build(n, want) for n in nodes])

    def operation(self, op: str, args: tuple[Expr, ...]) -> Expr:
        dtype = natural_type(op, args)
        if op != "where" and any(a.dtype is not args[0].dtype for a in args):
            types = ", ".join([f"{a}: {a.dtype}" for a in args])
            raise Unreadable(f"operands of one type for {op}, not {types}")
        return Op(op, args, dtype)

    def call(self, name: str, args: list[ast.expr], want: DType | None) -> Expr:
        return super().call(name, args, dtypes.int64 if name == "philox" else want)


def _index(op: str, *args: Expr) -> Expr:
    return Op(op, args, dtypes.index)


FORMS: Mapping[str, tuple[str, str, Callable[..., kir.Stmt]]] = {
    "for ": (
        r"for (\w+) in (?:(.*\.\..*) of )?(.*):(?:\s+# (\w+(?:, \w+)?))?",
        "for index in extent:  # axis, parallel",
        NestParser.loop,
    ),
    "if ": (r"if (.*):", _LINE, NestParser.branch),
    "launch:": (r"launch:", _LINE, NestParser.launched),
    "tile ": (r"tile ([\w.]+)\((.*)\):", "tile instruction(role=buffer):", NestParser.tile),
    "barrier ": (r"barrier (\w+)(?:\s+# (.*))?", _LINE, NestParser.barrier),
    "issue ": (r"issue ([\w.]+):", "issue instruction:", NestParser.issue),
    "wait ": (r"wait (\d+)", "wait groups", NestParser.wait),
    "until ": (r"until (.*)", _LINE, NestParser.until),
    "let ": (r"let (\w+) = (.*)", _LINE, NestParser.let),
}
"""By the word with which a line begins: its pattern, what it should be, and who reads its groups.

Whoever reads it is given the indent of its bodies first.
"""
