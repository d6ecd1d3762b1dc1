"""Statements in C and CUDA C++: what the two texts share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, assert_never

from loopnest.backends.clike.c_expressions import CFormat
from loopnest.backends.clike.dialect import SUM, Dialect
from loopnest.backends.clike.identifiers import Names, function_name
from loopnest.base.errors import NotSupported
from loopnest.kir import (
    Allocate,
    Arrive,
    Barrier,
    Collective,
    Commit,
    If,
    Issue,
    Let,
    Loop,
    Param,
    Program,
    Shuffle,
    StatementVisitor,
    Stmt,
    Store,
    Tile,
    Until,
    Wait,
)
from loopnest.kir.atomic_updates import operation_of
from loopnest.kir.instruction_table import Instruction
from loopnest.kir.loop_bounds import LoopBounds, loop_bounds
from loopnest.kir.matrix_rows import first_elements
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import ONE, ZERO, Buffer, Const, Expr, Local
from loopnest.scalar.facts import Facts
from loopnest.scalar.simplify import Simplifier


def comment(text: str) -> str:
    """Return `text` so that it stays within a line comment."""
    return text if text.isprintable() and "\\" not in text else repr(text).replace("\\", "/")


def mark(node: Loop, parallel: ParallelType) -> str:
    """Return the comment that says whose axis a loop is and how it runs."""
    return f"  // {comment(f'{node.axis} {parallel.value}'.strip())}"


def static_size(buffer: Buffer) -> int | None:
    """Return the number of elements of `buffer`, None where it is symbolic."""
    return int(buffer.size.value) if isinstance(buffer.size, Const) else None


class Variable(NamedTuple):
    """A variable, as a parameter and as an argument."""

    declaration: str
    name: str


class StatementPrinter(StatementVisitor, ABC):
    """Print the statements of one program; a subclass adds the function around them.

    Args:
        program: whose parameters claim their names first.
        dialect: how expressions are written.
    """

    target: str

    is_part = False
    """Whether the program is one launch of several: it changes some of the arrays only."""

    def __init__(self, program: Program, dialect: Dialect) -> None:
        self.program = program
        self.dialect = dialect
        self.names = Names()
        tests = [test for _, test in (*program.conditions, *program.requires)]
        self.facts = Facts.of(tests)
        self.algebra = Simplifier(self.facts)
        self.format = CFormat(dialect, self.names, facts=self.facts)
        self.lines: list[str] = []
        self.pad = ""
        for param in program.params:
            self.param_name(param)

    # Parameters

    def param_name(self, param: Param) -> str:
        """Return the identifier of a parameter inside the function."""
        match param.kind:
            case "size":
                return self.size_name(param, "size")
            case "scalar":
                return self.names.of("scalar", param.name)
        assert param.buffer is not None
        return self.names.of("buffer", param.buffer.name)

    def size_name(self, param: Param, kind: str) -> str:
        """Return the name of a size: as an index ("size") or as passed ("size argument")."""
        return self.names.of(kind, param.name if kind == "size" else f"size_{param.name}")

    def declarations(
        self, restrict: str, sizes: str, size_type: str, whole: Program | None = None
    ) -> list[Variable]:
        """Return the parameters, in order.

        Args:
            restrict: the qualifier of pointers to what no other pointer reaches.
            sizes: the kind that size symbols are named as.
            size_type: their type.
            whole: the program, for the function that runs all launches of it one by one.
        """
        nodes = self.program.nodes if whole is None else whole.nodes
        written = {n.storage for n in nodes if isinstance(n, Store)}
        read_only = ("input", "output", "workspace") if self.is_part and not whole else ("input",)
        result = []
        for param in self.program.params:
            if param.kind == "size":
                name = self.size_name(param, sizes)
                result.append(Variable(f"const {size_type} {name}", name))
                continue
            name = self.param_name(param)
            if param.buffer is None:
                declared = f"const {self.dialect.types[param.dtype.name]} {name}"
            else:
                reads = param.kind in read_only and param.buffer.kind != "counter"
                const = "const " if reads and param.buffer not in written else ""
                element = self.dialect.element(param.buffer.dtype)
                pointer = f"*{restrict} " if self.is_restricted(param.buffer) else "*"
                declared = f"{const}{element} {pointer}{name}"
            result.append(Variable(declared, name))
        return result

    def is_restricted(self, buffer: Buffer) -> bool:
        """Whether a thread sees no change of `buffer` but its own."""
        return True

    def define_sizes(self) -> None:
        """Give the sizes the type of indices."""
        for param in self.program.params:
            if param.kind == "size" and self.is_needed(param):
                passed = self.size_name(param, "size argument")
                self.emit(f"const idx_t {self.size_name(param, 'size')} = {self.index(passed)};")

    def index(self, value: str) -> str:
        """Return a number that is not negative and fits an index, in the type of indices."""
        return f"(idx_t){value}"

    def is_needed(self, size: Param) -> bool:
        """Whether a size gets a variable in the type of indices."""
        return True

    # Statements

    def emit(self, line: str) -> None:
        """Add a line."""
        self.lines.append(self.pad + line)

    def block(
        self, header: str, body: tuple[Stmt, ...], footer: str = "}", first: Sequence[str] = ()
    ) -> None:
        """Add ``header { first body }``; `header` ends in the brace."""
        with self.scope(header, footer):
            for line in first:
                self.emit(line)
            self.statements(body)

    @contextmanager
    def scope(self, header: str = "{", footer: str = "}") -> Iterator[None]:
        """Add ``header … footer`` around what a `with` block adds."""
        self.emit(header)
        outer, self.pad = self.pad, self.pad + "  "
        yield
        self.pad = outer
        if footer:
            self.emit(footer)

    def statements(self, body: tuple[Stmt, ...]) -> None:
        """Print `body`; a scalar that is stored where it is made is declared by its store."""
        if len(body) == 1 and isinstance(body[0], Loop) and self.is_always_run(body[0]):
            self.binding(body[0])
            self.statements(body[0].body)
            return
        fused: Stmt | None = None
        for place, node in enumerate(body):
            after = body[place + 1] if place + 1 < len(body) else None
            if node is fused:
                continue
            if (
                isinstance(node, Allocate)
                and isinstance(after, Store)
                and after.storage is node.storage
                and self.is_scalar(node.storage)
            ):
                self.enter_scalar(node.storage)
                self.visit_store(after, self.type_of(node.storage) + " ")
                fused = after
            else:
                self.visit(node)

    def visit_if(self, node: If) -> None:
        """Print a test with its branches."""
        self.block(f"if ({self.format.format(node.condition)}) {{", node.body, "")
        if node.orelse:
            self.block("} else {", node.orelse)
        else:
            self.emit("}")

    def visit_until(self, node: Until) -> None:
        """Print the end of the loop around."""
        self.emit(f"if ({self.format.format(node.condition)}) break;")

    def visit_other(self, node: Stmt, *_: object) -> None:
        if isinstance(node, (Shuffle, Arrive, Issue, Commit, Wait)):
            reason = f"values that cross threads on target '{self.target}'"
            raise NotSupported(self.program.name, reason)
        super().visit_other(node)

    def visit_collective(self, node: Collective) -> None:
        """Print the body of a collective in place: what it names stays visible."""
        self.statements(node.body)

    def tile_call(self, node: Tile, row: Instruction) -> str:
        """Return the call of the function that executes a row on the elements of a tile."""
        held, used = dict(node.operands), first_elements(node)
        loads = [used[held[role]] for role in row.operands]
        places = [f"&{self.format.element(load.buffer, load.args, flat=False)}" for load in loads]
        tensors = ", ".join([f"{role}={buffer.tensor}" for role, buffer in node.operands])
        return f"{function_name(row)}({', '.join(places)});  // {comment(tensors)}"

    def visit_store(self, node: Store, declare: str = "") -> None:
        """Print an assignment, with the tensor that it computes."""
        if node.atomic and self.is_contended(node):
            self.atomic_store(node)
            return
        place, value = self.stored_place(node), self.stored_value(node)
        role = "" if node.role == "define" else f" {node.role}"
        self.emit(f"{declare}{place} = {value};  // {comment(node.tensor)}{role}")

    def is_contended(self, node: Store) -> bool:
        """Whether other threads may store what an atomic store does."""
        return True

    def atomic_store(self, node: Store) -> None:
        """Print an atomic store: by one operation that the machine has, or else by a loop."""
        place, remark = self.stored_place(node), f"// {comment(node.tensor)} atomic"
        found = operation_of(node)
        if found is not None:
            operation, operand = found
            value = self.format.converted(operand, node.storage.dtype)
            call = self.atomic_call(operation, node.storage.dtype, f"&{place}", value)
            if call:
                self.emit(f"{call};  {remark}")
                return
        element = self.dialect.element(node.storage.dtype)
        with self.scope("{" + f"  {remark}"):
            self.emit(f"{element} *const ln_place = &{place};")
            self.emit(f"{element} ln_old = *ln_place, ln_new;")
            self.emit("do {")
            with self.format.renamed({node.own: "ln_old"}):
                value = self.format.converted(node.value, node.storage.dtype)
            self.emit(f"  ln_new = {value};")
            self.emit(f"}} while (!{self.swap('ln_place', '&ln_old', 'ln_new')});")

    def atomic_call(self, operation: str, dtype: DType, place: str, value: str) -> str:
        """Return the call of an atomic operation; empty where the machine has none."""
        return ""

    @abstractmethod
    def swap(self, place: str, old: str, new: str) -> str:
        """Return the call that stores `new` where `old` is found, else says what is found."""

    def stored_place(self, node: Store) -> str:
        """Return what is assigned to."""
        return self.format.element(node.storage, node.index, flat=node.flat)

    def stored_value(self, node: Store) -> str:
        """Return what is assigned, in the type of the buffer."""
        return self.format.converted(node.value, node.storage.dtype)

    def type_of(self, variable: Buffer | Local) -> str:
        """Return the type of an element of a buffer, or of a name."""
        return self.dialect.types[variable.dtype.name]

    def visit_let(self, node: Let) -> None:
        """Print a named value."""
        self.format.learn(node.var, node.value)
        self.define(node.var, self.format.converted(node.value, node.var.dtype))

    def define(self, var: Local, value: str) -> None:
        """Print the definition of a name."""
        name = self.names.of("local", var.name)
        self.emit(f"const {self.type_of(var)} {name} = {value};")

    # Loops

    def visit_loop(self, node: Loop) -> None:
        """Print a loop as its parallel type asks."""
        match node.parallel:
            case ParallelType.serial | ParallelType.unswitch:
                self.plain_loop(node)
            case ParallelType.unroll | ParallelType.mma:
                self.unrolled_loop(node)
            case ParallelType.vectorize:
                self.vector_loop(node)
            case ParallelType.cpu_parallel:
                self.parallel_loop(node)
            case ParallelType.grid_x | ParallelType.grid_y | ParallelType.grid_z:
                self.bound_loop(node)
            case ParallelType.block_x | ParallelType.block_y | ParallelType.block_z:
                self.bound_loop(node)
            case _:
                assert_never(node.parallel)

    def plain_loop(self, node: Loop, pragmas: Sequence[str] = ()) -> None:
        """Print an ordinary loop below its pragmas."""
        for pragma in pragmas:
            self.emit(pragma)
        index = self.format.format(node.var)
        bounds = loop_bounds(node, self.algebra, of_width=True)
        first: Expr = ZERO
        size, body = self.bound(node), node.body
        if bounds is not None:
            first, body = bounds.start, bounds.body
            size = self.algebra.min(bounds.stop, size)
        start, bound = self.format.format(first), self.format.format(size, SUM)
        header = f"for (idx_t {index} = {start}; {index} < {bound}; {self.step(node)}) {{"
        self.block(header + self.remark(node), body, first=self.told(node, bounds))

    def told(self, node: Loop, bounds: LoopBounds | None) -> Sequence[str]:
        """Return lines at the begin of a loop's body that tell the compiler about it."""
        return ()

    def step(self, node: Loop) -> str:
        """Return how an ordinary loop goes on."""
        return f"++{self.format.format(node.var)}"

    def bound(self, node: Loop) -> Expr:
        """Return what a loop's index stays below."""
        return node.var.extent

    def remark(self, node: Loop) -> str:
        """Return the comment on a loop that is not serial."""
        return "" if node.parallel is ParallelType.serial else mark(node, node.parallel)

    def bound_loop(self, node: Loop) -> None:
        """Print a loop over a launch dimension: a test and a constant."""
        number = self.format.launch.get(node.parallel, "0")
        size = self.format.format(node.var.extent, SUM)
        guard = "" if self.is_always_run(node) else f"if ({number} < {size}) "
        with self.scope(f"{guard}{{"):
            self.binding(node)
            self.statements(node.body)

    def is_always_run(self, node: Loop) -> bool:
        """Whether `node` is bound to a launch dimension and runs in every thread along it."""
        if not node.parallel.is_thread:
            return False
        size = self.program.launch_extent(node.parallel)
        return (ONE if size is None else size) is node.var.extent

    def binding(self, node: Loop) -> None:
        """Define the index of a loop over a launch dimension."""
        index = self.format.format(node.var)
        number = self.format.launch.get(node.parallel, "0")
        self.emit(f"const idx_t {index} = {number};{self.remark(node)}")

    # Buffers

    def is_scalar(self, buffer: Buffer) -> bool:
        """Whether `buffer` is a plain variable: one element that one thread owns."""
        return buffer.memory is Memory.LOCAL and buffer.size is ONE

    def enter_scalar(self, buffer: Buffer) -> str:
        """Make `buffer` a plain variable from here on; return its name."""
        name = self.names.of("buffer", buffer.name)
        self.format.scalars[buffer] = name
        return name

    def declare_local(self, buffer: Buffer, count: int, align: str) -> None:
        """Declare a variable or an array of static size."""
        if self.is_scalar(buffer):
            self.emit(f"{self.type_of(buffer)} {self.enter_scalar(buffer)};")
        else:
            element, name = self.dialect.element(buffer.dtype), self.names.of("buffer", buffer.name)
            self.emit(f"{align}{element} {name}[{max(count, 1)}];")

    # What the targets do differently

    @abstractmethod
    def unrolled_loop(self, node: Loop) -> None:
        """Print a loop to be unrolled."""

    @abstractmethod
    def vector_loop(self, node: Loop) -> None:
        """Print a loop whose iterations may run as lanes of one instruction."""

    @abstractmethod
    def parallel_loop(self, node: Loop) -> None:
        """Print a loop that a CPU may spread over its cores."""

    @abstractmethod
    def visit_allocate(self, node: Allocate) -> None:
        """Print the declaration of a buffer."""

    @abstractmethod
    def visit_barrier(self, node: Barrier) -> None:
        """Print a barrier."""


def extent_product(extents: Sequence[Expr]) -> int | None:
    """Return the product of static extents, None where one is symbolic."""
    result = 1
    for extent in extents:
        if not isinstance(extent, Const):
            return None
        result *= int(extent.value)
    return result
