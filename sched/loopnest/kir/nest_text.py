"""The nest text: the loop nest as a user reads it, version 1.

Deterministic: the same program gives the same bytes in any process. One statement takes one line,
so a line number names a statement (`nest_lines`).
"""

from __future__ import annotations

from collections.abc import Iterable

from loopnest.base.recursion import deep
from loopnest.kir.kernel_program import Param, Program
from loopnest.kir.loop_bounds import loop_bounds
from loopnest.kir.nodes import (
    Allocate,
    Barrier,
    Collective,
    If,
    Loop,
    StatementVisitor,
    Stmt,
    Store,
    Tile,
    bodies,
)
from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import Buffer, Expr
from loopnest.scalar.simplify import Simplifier

HEADER = "# loopnest nest 1"


@deep
def print_nest(program: Program) -> str:
    """Return the nest text of `program`, without a newline at the end."""
    return "\n".join(_Nest(program).lines)


def nest_lines(program: Program) -> dict[Stmt, int]:
    """Return the line of each statement in `print_nest(program)`, counted from 1."""
    return _Nest(program).places


class _Nest(StatementVisitor):
    def __init__(self, program: Program) -> None:
        self.lines = [HEADER, _signature(program)]
        self.places: dict[Stmt, int] = {}
        self.algebra = Simplifier()
        for param in program.params:
            if param.kind == "workspace" and param.buffer is not None:
                self.lines.append(_allocation(param.buffer))
        self._body(program.body, "")

    def _body(self, body: tuple[Stmt, ...], pad: str) -> None:
        for node in body:
            # A statement that stands at two places (both branches of an unswitched loop) keeps
            # the first.
            self.places.setdefault(node, len(self.lines) + 1)
            self.visit(node, pad)

    def visit_other(self, node: Stmt, pad: str) -> None:
        if not node.form:
            super().visit_other(node)
        self._line(node.form.format(node=node), node, pad)

    def _line(self, text: str, node: Stmt, pad: str) -> None:
        """Add the line of a statement, and its bodies."""
        self.lines.append(pad + text + (":" if node.encloses else ""))
        for body in bodies(node):
            self._nested(body, pad)

    def visit_store(self, node: Store, pad: str) -> None:
        self.lines.append(f"{pad}{'atomic ' if node.atomic else ''}{node.own} = {node.value}")

    def visit_if(self, node: If, pad: str) -> None:
        self.lines.append(f"{pad}if {node.condition}:")
        self._nested(node.body, pad)
        if node.orelse:
            self.lines.append(f"{pad}else:")
            self._nested(node.orelse, pad)

    def visit_allocate(self, node: Allocate, pad: str) -> None:
        self.lines.append(pad + _allocation(node.storage))

    def visit_barrier(self, node: Barrier, pad: str) -> None:
        why = f"  # {node.reason}" if node.reason else ""
        self.lines.append(f"{pad}barrier {node.scope}{why}")

    def visit_collective(self, node: Collective, pad: str) -> None:
        dims = ", ".join([d.value for d in node.dims])
        names = "; ".join([_list(v) for v in node.by_value(node.results)])
        given = "; ".join([_list(v) for v in node.by_value(node.args)])
        how = node.scan or ("ordered" if node.ordered else "")
        name = f"{how} {node.name}".lstrip()
        self._line(f"{names} = {name}({given}) over {dims}", node, pad)

    def visit_tile(self, node: Tile, pad: str) -> None:
        held = ", ".join([f"{role}={buffer.name}" for role, buffer in node.operands])
        self._line(f"tile {node.instruction}({held})", node, pad)

    def visit_loop(self, node: Loop, pad: str) -> None:
        how = "" if node.parallel is ParallelType.serial else node.parallel.value
        mark = ", ".join([part for part in (node.axis_name, how) if part])
        bounds = loop_bounds(node, self.algebra)
        span, body = f"{node.var.extent}", node.body
        if bounds is not None:
            self.places.setdefault(bounds.guard, len(self.lines) + 1)
            span, body = f"{bounds.start}..{bounds.stop} of {span}", bounds.body
        self.lines.append(f"{pad}for {node.index} in {span}:" + (f"  # {mark}" if mark else ""))
        self._nested(body, pad)

    def _nested(self, body: tuple[Stmt, ...], pad: str) -> None:
        if body:
            self._body(body, pad + "  ")
        else:
            self.lines.append(f"{pad}  pass")


def _list(items: Iterable[Expr]) -> str:
    return ", ".join([str(item) for item in items])


def _allocation(buffer: Buffer) -> str:
    alias = f" = {buffer.alias_of}" if buffer.alias_of else ""
    shape = _list(buffer.shape)
    swizzles = "".join([f" xor{pair}" for pair in buffer.swizzles])
    return f"{buffer.name}: {buffer.dtype.name}[{shape}] {buffer.memory.value}{swizzles}{alias}"


def _signature(program: Program) -> str:
    taken = [_param(p) for p in program.params if p.kind in ("input", "scalar")]
    given = []
    for output in program.outputs:
        place = f" in {output.inplace}" if output.inplace else ""
        shape = _list(output.shape)
        given.append(f"{output.name}: {output.buffer.dtype.name}[{shape}]{place}")
    return f"kernel {program.name}({', '.join(taken)}) -> ({', '.join(given)})"


def _param(param: Param) -> str:
    if param.buffer is None:
        return f"{param.name}: {param.dtype.name}"
    strides = "" if param.strides is None else f" strides({_list(param.strides)})"
    return f"{param.name}: {param.dtype.name}[{_list(param.shape)}]{strides}"
