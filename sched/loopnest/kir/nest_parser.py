"""Read a nest text (`str(kernel)`) into a `Program`: kernels written by hand.

The text leaves out origins, coordinates and layouts; `Kernel.text(full=True)` has all of them.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from loopnest.errors import LoopnestError
from loopnest.kir import nodes as kir
from loopnest.kir.buffers import Buffer
from loopnest.kir.kernel_program import Output, Param, Program
from loopnest.kir.nest_text import HEADER
from loopnest.kir.nodes import BOUND
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import LAUNCH_DIMENSIONS, Memory, ParallelType
from loopnest.scalar.expr import (
    FALSE,
    TRUE,
    ZERO,
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
from loopnest.scalar.record_text import natural_type

_INFIX = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv",
    ast.Mod: "mod", ast.BitAnd: "bitand", ast.BitOr: "bitor", ast.BitXor: "bitxor",
    ast.LShift: "shl", ast.RShift: "shr",
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge",
}  # fmt: skip
_TYPES = {dtype.name for dtype in (*dtypes.ALL, dtypes.index)}
_FLOATS = {"inf": math.inf, "nan": math.nan}
_REDUCERS = {"sum": ("add", 0), "prod": ("mul", 1), "max": ("max", -math.inf),
             "min": ("min", math.inf), "any": ("or", False), "all": ("and", True)}  # fmt: skip


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
    except (_Unreadable, SyntaxError, KeyError, ValueError, IndexError) as error:
        reason = f"'{parser.line.strip()}' cannot be read"
        hint = f"expected {error}" if isinstance(error, _Unreadable) else "expected a nest's line"
        raise LoopnestError(f"parse, line {parser.number}", reason, hint) from error


class _Unreadable(Exception):
    """What a line should be, and is not."""


def _match(pattern: str, text: str, expected: str) -> tuple[str, ...]:
    """Return the groups of a pattern; "" for one that is not there."""
    found = re.fullmatch(pattern, text)
    if found is None:
        raise _Unreadable(expected)
    return tuple([group or "" for group in found.groups()])


@dataclass
class _Scope:
    names: dict[str, Expr] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)


class NestParser:
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
        self.scope = _Scope()
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
        inputs = [self.param(p) for p in parts(taken)]
        outputs = [self.output(p) for p in parts(given)]
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

    # The signature

    def param(self, text: str) -> Param:
        """Read an input or a scalar."""
        text, _, steps = text.partition(" strides")
        name, dtype, shape = _match(
            r"(\w+): (\w+)(\[.*\])?", text, "parameters as name: type[shape]"
        )
        if not shape:
            self.scope.names[name] = ScalarParam(name, _dtype(dtype))
            return Param(name, "scalar", _dtype(dtype))
        made = self.array(name, "input", dtype, shape)
        return self.strided(made, self.shape(steps)) if steps else made

    def strided(self, param: Param, strides: tuple[Expr, ...]) -> Param:
        """Return a parameter whose array has other strides."""
        assert param.buffer is not None
        size: Expr = integer(1)
        for extent, stride in zip(param.shape, strides, strict=True):
            reach = _index("mul", _index("sub", extent, integer(1)), stride)
            size = _index("add", size, reach)
        buffer = replace(param.buffer, strides=strides, size=size)
        self.scope.buffers[param.name] = buffer
        return replace(param, buffer=buffer, strides=strides)

    def array(self, name: str, kind: str, dtype: str, shape: str) -> Param:
        """Make the parameter of an array."""
        extents = self.shape(shape)
        buffer = self.buffer(name, dtype, extents or (integer(1),), Memory.GLOBAL, kind)
        return Param(name, kind, buffer.dtype, buffer, extents)

    def output(self, text: str) -> Output:
        """Read an output."""
        text, _, place = text.partition(" in ")
        name, dtype, shape = _match(r"(\w+): (\w+)(\[.*\])", text, "outputs as name: type[shape]")
        if place:
            return Output(name, self.scope.buffers[place], self.shape(shape), place)
        param = self.array(name, "output", dtype, shape)
        return Output(name, self.scope.buffers[name], param.shape)

    def shape(self, text: str) -> tuple[Expr, ...]:
        """Read extents in brackets."""
        return tuple(self.expr(part) for part in parts(text[1:-1]))

    def buffer(
        self,
        name: str,
        dtype: str,
        shape: tuple[Expr, ...],
        memory: Memory,
        kind: str,
        alias: str | None = None,
        swizzles: tuple[tuple[int, int], ...] = (),
    ) -> Buffer:
        """Make a dense buffer."""
        strides: list[Expr] = []
        size: Expr = integer(1)
        for extent in reversed(shape):
            strides.insert(0, size)
            size = extent if size is integer(1) else _index("mul", size, extent)
        made = Buffer(
            name, name, memory, _dtype(dtype), shape, tuple(strides), size, kind, alias,
            swizzles=swizzles,
        )  # fmt: skip
        self.scope.buffers[name] = made
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
        if line.startswith("for "):
            return self.loop(line, indent)
        if line.startswith("if "):
            condition, body = self.expr(line[3:-1]), self.body(indent + 2)
            orelse: tuple[kir.Stmt, ...] = ()
            if self.at < len(self.lines) and self.lines[self.at] == " " * indent + "else:":
                self.at += 1
                orelse = self.body(indent + 2)
            return kir.If(condition, body, orelse)
        if line == "launch:":
            return self.launched(indent)
        if line.startswith("barrier "):
            scope, _, reason = line.removeprefix("barrier ").partition("#")
            return kir.Barrier(scope.strip(), reason.strip())
        if line.startswith("let "):
            return self.let(line)
        if line.endswith(":"):
            return self.collective(line, indent)
        return None if line == "pass" else self.allocate_or_store(line)

    def launched(self, indent: int) -> kir.Stmt:
        """Read one launch of several: it has the extents of its loops, and its own buffers."""
        whole, self.launch = self.launch, {d: self.launch[d] for d in self.given}
        body = self.body(indent + 2)
        own, self.launch = self.launch, whole
        for dimension, extent in own.items():
            self.extend(dimension, extent)
        return kir.Launch(tuple([(d, own[d]) for d in LAUNCH_DIMENSIONS if d in own]), body)

    def extend(self, dimension: ParallelType, extent: Expr) -> None:
        """Let the launch have at least this extent along a dimension."""
        known = self.launch.get(dimension)
        larger = extent if known in (None, extent) else _index("max", known, extent)
        self.launch[dimension] = larger

    def let(self, line: str) -> kir.Stmt:
        """Read what defines a name."""
        name, _, value = line[4:].partition(" = ")
        found = re.fullmatch(r"(shuffle_\w+|arrive)\((.*)\)", value)
        if found is None:
            made = self.expr(value)
            return kir.Let(self.local(name, made.dtype), made)
        call, (first, second) = found[1], [self.expr(part) for part in parts(found[2])]
        if call == "arrive":
            if not isinstance(first, Load):
                raise _Unreadable("arrive(counter[index], count)")
            var = self.local(name, dtypes.bool_)
            return kir.Arrive(var, first.buffer, first.args, second)
        mode = call.removeprefix("shuffle_")
        return kir.Shuffle(self.local(name, first.dtype), first, mode, second)

    def local(self, name: str, dtype: DType) -> Local:
        """Make a temporary."""
        self.scope.names[name] = var = Local(name, dtype)
        return var

    def collective(self, line: str, indent: int) -> kir.Stmt:
        """Read a collective with its body."""
        names, how, name, given, dims = _match(
            r"(.*?) = (inclusive |exclusive |ordered |)(\w+)\((.*)\) over (.*):",
            line,
            "results = reducer(values) over dimensions:",
        )
        values = [tuple([self.expr(part) for part in parts(value)]) for value in given.split(";")]
        first = values[0]
        op, start = _REDUCERS.get(name, ("", 0))  # others print, but do not combine
        one, other = two_sides([a.dtype for a in first])
        body = self.body(indent + 2)
        wanted = [part for value in names.split(";") for part in parts(value)]
        results = [found for n in wanted if isinstance(found := self.name(n), Local)]
        if len(results) != len(wanted):
            raise _Unreadable(f"a body that defines {names}")
        return kir.Collective(
            name,
            tuple(results),
            tuple(chain.from_iterable(values)),
            tuple([ParallelType(d) for d in parts(dims)]),
            tuple([Const(start, a.dtype) for a in first]),
            tuple([_op(op, pair) for pair in zip(one, other, strict=True) if op]),
            body,
            scan="" if how == "ordered " else how.strip(),
            ordered=how == "ordered ",
        )

    def allocate_or_store(self, line: str) -> kir.Stmt | None:
        """Read the line of a buffer, or of a store."""
        found = re.fullmatch(
            r"(\w+): (\w+)(\[.*\]) (local|shared|global)((?: xor\(\d+, \d+\))*)(?: = (\w+))?", line
        )
        if found is None:
            return self.store(line)
        name, dtype, shape, memory, swizzles, alias = found.groups()
        if memory == "global":
            kind = "counter" if name in self.counters else "workspace"
            made = self.array(name, kind, dtype, shape)
            self.workspace.append(replace(made, kind="workspace"))
            return None
        return kir.Allocate(
            self.buffer(
                name, dtype, self.shape(shape), Memory(memory), memory, alias,
                tuple([ast.literal_eval(pair) for pair in swizzles.split(" xor")[1:]]),
            )
        )  # fmt: skip

    def store(self, line: str) -> kir.Stmt:
        """Read a store."""
        target, _, value = line.removeprefix("atomic ").partition(" = ")
        access = self.expr(target)
        if not isinstance(access, Load):
            raise _Unreadable("a statement")
        return kir.Store(
            access.buffer,
            access.args,
            self.expr(value, access.dtype),
            access.buffer.tensor,
            flat=access.flat,
            atomic=line.startswith("atomic "),
        )

    def loop(self, line: str, indent: int) -> kir.Stmt:
        """Read a loop with its body."""
        name, span, extent, mark = _match(
            r"for (\w+) in (?:(.*\.\..*) of )?(.*):(?:\s+# (\w+))?",
            line,
            "for index in extent:  # parallel",
        )
        parallel = ParallelType(mark or "serial")
        self.scope.names[name] = var = Index(name, self.expr(extent))
        if parallel.is_thread and parallel not in self.given:
            self.extend(parallel, var.extent)
        body = self.body(indent + 2)
        if span:
            start, stop = [self.expr(part) for part in span.split("..")]
            tests = [Op("lt", (var, stop), dtypes.bool_)]
            if start is not ZERO:
                tests.insert(0, Op("le", (start, var), dtypes.bool_))
            body = (kir.If(all_of(tests), body, (), BOUND),)
        return kir.Loop(var, parallel, name, body)

    # Expressions

    def expr(self, text: str, dtype: DType | None = None) -> Expr:
        """Read an expression; `dtype` is the type of literals that meet no other operand."""
        return self.build(ast.parse(text, mode="eval").body, dtype)

    def build(self, node: ast.expr, want: DType | None = None) -> Expr:
        """Return the expression of a node of Python's grammar."""
        match node:
            case ast.Constant(value=value):
                return _literal(value, want)
            case ast.Name(id=name):
                return _literal(_FLOATS[name], want) if name in _FLOATS else self.name(name)
            case ast.Subscript():
                return self.access(node)
            case ast.UnaryOp(op=op, operand=operand):
                return self.unary(op, self.build(operand, want))
            case ast.BoolOp(op=op, values=values):
                result, *rest = [self.build(v) for v in values]
                for term in rest:
                    result = _op("and" if isinstance(op, ast.And) else "or", [result, term])
                return result
            case ast.BinOp(left=left, op=op, right=right):
                return _op(_INFIX[type(op)], self.together([left, right], want))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return _op(_INFIX[type(op)], self.together([left, right], None))
            case ast.Call(func=ast.Name(id=name), args=args):
                return self.call(name, args, want)
        raise _Unreadable(f"an expression of the nest, not {ast.unparse(node)}")

    def unary(self, op: ast.unaryop, inner: Expr) -> Expr:
        """Return an operand with a sign in front: its negation, or itself."""
        if isinstance(op, ast.USub) and isinstance(inner, Const):
            return Const(-inner.value, inner.dtype)
        return _op({ast.USub: "neg", ast.Not: "not", ast.Invert: "bitnot"}[type(op)], [inner])

    def name(self, name: str) -> Expr:
        """Return the expression that a name refers to; an unknown name is a size."""
        if name in ParallelType.__members__:
            return LaunchIndex(ParallelType(name))
        if name not in self.scope.names:
            self.scope.names[name] = Symbol(name)
            self.sizes.setdefault(name)
        return self.scope.names[name]

    def access(self, node: ast.Subscript) -> Load:
        """Read an access to a buffer."""
        flat = isinstance(node.value, ast.Attribute)
        named = node.value.value if isinstance(node.value, ast.Attribute) else node.value
        if not isinstance(named, ast.Name):
            raise _Unreadable("an access as buffer[index]")
        name = named.id
        index = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return Load(self.scope.buffers[name], tuple(self.build(i) for i in index), flat)

    def call(self, name: str, args: list[ast.expr], want: DType | None) -> Expr:
        """Read an operation in functional form, or a conversion."""
        if name in _TYPES:
            return cast(self.build(args[0]), dtypes.of(name))
        if name == "where":
            condition = self.build(args[0])
            values = self.together(args[1:], want)
            return Op("where", (condition, *values), values[0].dtype)
        return _op(name, self.together(args, dtypes.int64 if name == "philox" else want))

    def together(self, nodes: list[ast.expr], want: DType | None) -> list[Expr]:
        """Build operands of one type: literals follow the others."""
        plain = [
            not any(isinstance(x, (ast.Name, ast.Subscript)) for x in ast.walk(n)) for n in nodes
        ]
        first = [None if p else self.build(n, want) for n, p in zip(nodes, plain, strict=True)]
        common = next((f.dtype for f in first if f is not None), want)
        return [
            f if f is not None else self.build(n, common) for n, f in zip(nodes, first, strict=True)
        ]


def parts(text: str) -> list[str]:
    """Split at commas outside brackets."""
    found: list[str] = []
    depth, current = 0, ""
    for char in text:
        depth += (char in "[(") - (char in "])")
        if char == "," and depth == 0:
            found.append(current.strip())
            current = ""
        else:
            current += char
    return [*found, current.strip()] if current.strip() else found


def _literal(value: object, want: DType | None) -> Expr:
    if isinstance(value, bool):
        return TRUE if value else FALSE
    if not isinstance(value, (int, float)):
        raise _Unreadable("a number")
    return Const(value, want or (dtypes.float32 if isinstance(value, float) else dtypes.index))


def _dtype(name: str) -> DType:
    return dtypes.of(name)


def _index(op: str, *args: Expr) -> Expr:
    return Op(op, args, dtypes.index)


def _op(name: str, args: Iterable[Expr]) -> Expr:
    args = tuple(args)
    dtype = natural_type(name, args)
    if any(a.dtype is not args[0].dtype for a in args):
        types = ", ".join([f"{a}: {a.dtype}" for a in args])
        raise _Unreadable(f"operands of one type for {name}, not {types}")
    return Op(name, args, dtype)
