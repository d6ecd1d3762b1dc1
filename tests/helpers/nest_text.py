"""Read nest text back into a `kir.Program`: hand-written kernels for the tests below lowering."""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass, field, replace

from loopnest import kir
from loopnest.kir.buffers import Buffer
from loopnest.scalar import dtypes
from loopnest.scalar.enums import LAUNCH_DIMENSIONS, Memory, ParallelType
from loopnest.scalar.expr import (
    FALSE,
    TRUE,
    Const,
    Expr,
    Index,
    LaunchIndex,
    Load,
    Local,
    Op,
    ScalarParam,
    Symbol,
    cast,
    integer,
    two_sides,
)
from loopnest.scalar.op_table import OPS

_INFIX = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv",
    ast.Mod: "mod", ast.BitAnd: "bitand", ast.BitOr: "bitor", ast.BitXor: "bitxor",
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge",
}  # fmt: skip
_FLOATS = {"inf": math.inf, "nan": math.nan}
_REDUCERS = {"sum": ("add", 0), "prod": ("mul", 1), "max": ("max", -math.inf),
             "min": ("min", math.inf), "any": ("or", False), "all": ("and", True)}  # fmt: skip


def parse_nest(
    text: str,
    conditions: tuple[tuple[str, Expr], ...] = (),
    launch: dict[ParallelType, Expr] | None = None,
) -> kir.Program:
    """Return the program of a nest text.

    Literals take the type of the other operand, else index (ints) or float32 (floats). `launch`
    overrides the launch extents, by default those of the loops (the larger one of two by `max`).
    """
    return _Parser(text, conditions, launch or {}).program


@dataclass
class _Scope:
    names: dict[str, Expr] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)


class _Parser:
    def __init__(self, text, conditions, launch):
        lines = [line.rstrip() for line in text.strip("\n").splitlines()]
        indent = len(lines[0]) - len(lines[0].lstrip())
        self.lines = [line[indent:] for line in lines if line.strip()]
        if self.lines[0].startswith("#"):
            self.lines.pop(0)
        self.at = 1
        self.counters = set(re.findall(r" = arrive\((\w+)\[", text))
        self.scope = _Scope()
        self.sizes: dict[str, None] = {}
        self.launch = dict(launch)
        self.given = set(launch)
        self.workspace: list[kir.Param] = []
        head = re.fullmatch(r"kernel (\w+)\((.*)\) -> \((.*)\)", self.lines[0])
        assert head is not None, self.lines[0]
        inputs = [self.param(p) for p in _parts(head[2])]
        outputs = [self.output(p) for p in _parts(head[3])]
        body = self.body(0)
        made = [
            kir.Param(o.name, "output", o.buffer.dtype, o.buffer, o.shape)
            for o in outputs
            if not o.inplace
        ]
        params = [p for p in inputs if p.kind == "input"] + made
        params += [p for p in inputs if p.kind == "scalar"]
        params += [kir.Param(name, "size", dtypes.index) for name in self.sizes]
        order = [(d, self.launch[d]) for d in LAUNCH_DIMENSIONS if d in self.launch]
        self.program = kir.Program(
            head[1], (*params, *self.workspace), body, tuple(order), tuple(outputs), conditions
        )

    # The signature

    def param(self, text):
        name, dtype, shape = re.fullmatch(r"(\w+): (\w+)(\[.*\])?", text).groups()
        if shape is None:
            self.scope.names[name] = ScalarParam(name, _dtype(dtype))
            return kir.Param(name, "scalar", _dtype(dtype))
        return self.array(name, "input", dtype, shape)

    def array(self, name, kind, dtype, shape):
        extents = self.shape(shape)
        buffer = self.buffer(name, dtype, extents or (integer(1),), Memory.GLOBAL, kind)
        return kir.Param(name, kind, buffer.dtype, buffer, extents)

    def output(self, text):
        text, _, place = text.partition(" in ")
        name, dtype, shape = re.fullmatch(r"(\w+): (\w+)(\[.*\])", text).groups()
        if place:
            return kir.Output(name, self.scope.buffers[place], self.shape(shape), place)
        param = self.array(name, "output", dtype, shape)
        return kir.Output(name, param.buffer, param.shape)

    def shape(self, text):
        return tuple(self.expr(part) for part in _parts(text[1:-1]))

    def buffer(self, name, dtype, shape, memory, kind, alias=None, swizzle=None):
        strides, size = [], integer(1)
        for extent in reversed(shape):
            strides.insert(0, size)
            size = extent if size is integer(1) else _index("mul", size, extent)
        made = Buffer(
            name, name, memory, _dtype(dtype), shape, tuple(strides), size, kind, alias,
            swizzle=swizzle,
        )  # fmt: skip
        self.scope.buffers[name] = made
        return made

    # Statements

    def body(self, indent):
        result = []
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if len(line) - len(line.lstrip()) < indent:
                break
            self.at += 1
            node = self.statement(line.strip(), indent)
            if node is not None:
                result.append(node)
        return tuple(result)

    def statement(self, line, indent):
        if line.startswith("for "):
            return self.loop(line, indent)
        if line.startswith("if "):
            condition, body = self.expr(line[3:-1]), self.body(indent + 2)
            orelse = ()
            if self.at < len(self.lines) and self.lines[self.at] == " " * indent + "else:":
                self.at += 1
                orelse = self.body(indent + 2)
            return kir.If(condition, body, orelse)
        if line.startswith("barrier "):
            return kir.Barrier(line.split()[1])
        if line.startswith("let "):
            return self.let(line)
        if line.endswith(":"):
            return self.collective(line, indent)
        return None if line == "pass" else self.allocate_or_store(line)

    def let(self, line):
        name, _, value = line[4:].partition(" = ")
        found = re.fullmatch(r"(shuffle_\w+|arrive)\((.*)\)", value)
        if found is None:
            made = self.expr(value)
            return kir.Let(self.local(name, made.dtype), made)
        call, (first, second) = found[1], [self.expr(part) for part in _parts(found[2])]
        if call == "arrive":
            var = self.local(name, dtypes.bool_)
            return kir.Arrive(var, first.buffer, first.args, second)
        mode = call.removeprefix("shuffle_")
        return kir.Shuffle(self.local(name, first.dtype), first, mode, second)

    def local(self, name, dtype):
        self.scope.names[name] = var = Local(name, dtype)
        return var

    def collective(self, line, indent):
        names, name, args, dims = re.fullmatch(r"(.*?) = (\w+)\((.*)\) over (.*):", line).groups()
        args = tuple(self.expr(part) for part in _parts(args))
        op, start = _REDUCERS.get(name, ("", 0))  # others print, but do not combine
        one, other = two_sides([a.dtype for a in args])
        body = self.body(indent + 2)
        return kir.Collective(
            name, tuple(self.scope.names[n] for n in _parts(names)), args,
            tuple(ParallelType(d) for d in _parts(dims)),
            tuple(Const(start, a.dtype) for a in args),
            tuple(_op(op, pair) for pair in zip(one, other, strict=True) if op), body,
        )  # fmt: skip

    def allocate_or_store(self, line):
        found = re.fullmatch(
            r"(\w+): (\w+)(\[.*\]) (local|shared|global)(?: xor(\(.*\)))?(?: = (\w+))?", line
        )
        if found is None:
            return self.store(line)
        name, dtype, shape, memory, swizzle, alias = found.groups()
        if memory == "global":
            kind = "counter" if name in self.counters else "workspace"
            made = self.array(name, kind, dtype, shape)
            self.workspace.append(replace(made, kind="workspace"))
            return None
        return kir.Allocate(
            self.buffer(
                name, dtype, self.shape(shape), Memory(memory), memory, alias,
                ast.literal_eval(swizzle) if swizzle else None,
            )
        )  # fmt: skip

    def store(self, line):
        target, _, value = line.partition(" = ")
        access = self.expr(target)
        assert isinstance(access, Load), line
        return kir.Store(
            access.buffer, access.args, self.expr(value, access.dtype), access.buffer.tensor,
            flat=access.flat,
        )  # fmt: skip

    def loop(self, line, indent):
        name, extent, mark = re.fullmatch(r"for (\w+) in (.*):(?:\s+# (\w+))?", line).groups()
        parallel = ParallelType(mark or "serial")
        self.scope.names[name] = var = Index(name, self.expr(extent))
        if parallel.is_thread and parallel not in self.given:
            known = self.launch.get(parallel)
            self.launch[parallel] = (
                var.extent if known in (None, var.extent) else _index("max", known, var.extent)
            )
        return kir.Loop(var, parallel, name, self.body(indent + 2))

    # Expressions

    def expr(self, text, dtype=None):
        return self.build(ast.parse(text, mode="eval").body, dtype)

    def build(self, node, want=None):
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
        raise AssertionError(ast.unparse(node))

    def unary(self, op, inner):
        if isinstance(op, ast.USub) and isinstance(inner, Const):
            return Const(-inner.value, inner.dtype)
        return _op({ast.USub: "neg", ast.Not: "not", ast.Invert: "bitnot"}[type(op)], [inner])

    def name(self, name):
        if name in ParallelType.__members__:
            return LaunchIndex(ParallelType(name))
        if name not in self.scope.names:
            self.scope.names[name] = Symbol(name)
            self.sizes.setdefault(name)
        return self.scope.names[name]

    def access(self, node):
        flat = isinstance(node.value, ast.Attribute)
        name = node.value.value.id if flat else node.value.id
        index = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return Load(self.scope.buffers[name], tuple(self.build(i) for i in index), flat)

    def call(self, name, args, want):
        if name in dtypes._BY_NAME or name == "index":
            return cast(self.build(args[0]), dtypes.of(name))
        if name == "where":
            condition = self.build(args[0])
            values = self.together(args[1:], want)
            return Op("where", (condition, *values), values[0].dtype)
        return _op(name, self.together(args, want))

    def together(self, nodes, want):
        """Build operands of one type: literals follow the others."""
        plain = [not any(isinstance(x, (ast.Name, ast.Subscript)) for x in ast.walk(n))
                 for n in nodes]  # fmt: skip
        first = [None if p else self.build(n, want) for n, p in zip(nodes, plain, strict=True)]
        common = next((f.dtype for f in first if f is not None), want)
        return [f if f is not None else self.build(n, common)
                for n, f in zip(nodes, first, strict=True)]  # fmt: skip


def _parts(text):
    """Split at commas outside brackets."""
    parts, depth, current = [], 0, ""
    for char in text:
        depth += (char in "[(") - (char in "])")
        if char == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += char
    return [*parts, current.strip()] if current.strip() else parts


def _literal(value, want):
    if isinstance(value, bool):
        return TRUE if value else FALSE
    return Const(value, want or (dtypes.float32 if isinstance(value, float) else dtypes.index))


def _dtype(name):
    return dtypes.of(name)


def _index(op, *args):
    return Op(op, args, dtypes.index)


def _op(name, args):
    dtype = dtypes.bool_ if OPS[name].result == "bool" else args[0].dtype
    assert all(a.dtype is args[0].dtype for a in args), [(str(a), a.dtype) for a in args]
    return Op(name, tuple(args), dtype)
