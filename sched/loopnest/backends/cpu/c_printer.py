"""C text: one function a kernel, `int NAME(params…)`, which returns 0, or 1 out of memory.

The text stands on two headers of this package, `loopnest_math.h` and `loopnest_kernel.h`;
`c_prelude` returns them, and `print_c` puts them first unless told otherwise. It assumes no flags
but gains from ``-O3 -march=native -fopenmp -fno-math-errno -fno-trapping-math``.

Blocks of the launch and cpu_parallel loops are shared out among threads; what one thread does is a
function of its own, whose pointers are `restrict`. Threads of a block are plain loops, split where
they meet (`thread_loop_fission`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from loopnest.backends.clike.c_expressions import CFormat
from loopnest.backends.clike.dialect import SUM, UNARY, Dialect, common_functions, unsigned
from loopnest.backends.clike.float_functions import C
from loopnest.backends.clike.identifiers import function_name, symbol
from loopnest.backends.clike.narrow_counts import launch_programs
from loopnest.backends.clike.statements import Variable, comment, mark, static_size
from loopnest.backends.cpu.border_loops import Piece, border_pieces, first_iterations
from loopnest.backends.cpu.data_checks import DataChecks, computing_programs, is_checked
from loopnest.backends.cpu.fission.loop_form import (
    LoopForm,
    allocations,
    loop_form,
    may_share_out,
    parallel_chain,
    stores_apart,
)
from loopnest.backends.cpu.fission.thread_loop_fission import has_threads_that_meet, thread_form
from loopnest.backends.cpu.lane_vectors import (
    folds_chosen,
    is_short,
    reads_own_lane,
    streamed_outputs,
)
from loopnest.backends.cpu.vector_printer import VectorPrinter
from loopnest.base.errors import InternalError
from loopnest.base.recursion import deep
from loopnest.kir import (
    Allocate,
    Arrive,
    Barrier,
    If,
    Loop,
    Program,
    Stmt,
    Store,
    Tile,
    expressions,
    walk,
)
from loopnest.kir.instruction_rows import instructions
from loopnest.kir.instruction_table import Instruction
from loopnest.kir.loop_bounds import LoopBounds
from loopnest.kir.tiles import without_tiles
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import (
    ONE,
    ZERO,
    Buffer,
    Const,
    Expr,
    Index,
    Load,
    Local,
    Op,
    all_of,
    free_indices,
    loads,
    terms_of,
    variables,
)

VECTOR_BYTES = 64
"""The widest vector register: arrays that fill one are aligned to it."""


@deep
def print_c(program: Program, index_bits: int = 64, prelude: bool = True) -> str:
    """Return the C text of `program`; indices are signed integers of `index_bits`.

    With `prelude` the text compiles alone; several kernels in one file share one `c_prelude`.

    Raises:
        InternalError: threads meet where not all of them come.
    """
    program = without_tiles(program, lambda tile: bool(instructions[tile.instruction].c))
    checked = is_checked(program)
    is_part = checked or len(program.launches) > 1
    inner = replace(program, name=f"{program.name}_run") if checked else program
    printers = _printers(inner, index_bits, is_part)
    texts = [printer.text() for printer in printers]
    if is_part:
        computing = {
            own: _printers(replace(own, name=f"{program.name}_index{n}"), index_bits, True)
            for n, own in enumerate(computing_programs(program))
        }
        texts += [printer.text() for found in computing.values() for printer in found]
        functions = {own: found[0].symbol for own, found in computing.items()}
        texts.append(_entry(program, printers, functions))
    return "".join([c_prelude(index_bits) if prelude else "", *texts])


def _printers(program: Program, index_bits: int, is_part: bool) -> list[_CPrinter]:
    """Return what prints each launch; `is_part` where another function calls them."""
    printers = [_CPrinter(part, index_bits) for part, _ in launch_programs(program, index_bits)]
    for printer in printers:
        printer.is_part = is_part
    return printers


def _entry(
    program: Program, printers: Sequence[_CPrinter], functions: Mapping[Program, str]
) -> str:
    """Return the function that is called: it looks at the data, and runs the launches one by one.

    Args:
        program: the program.
        printers: of its launches.
        functions: those that compute indices, by their programs.
    """
    first = printers[0]
    params = first.declarations("", "size argument", "int64_t", program)
    given = _list([variable.name for variable in params])
    names = {p.name: v.name for p, v in zip(program.params, params, strict=True)}
    lines = [f"int {symbol(program.name)}({_lines([v.declaration for v in params])})", "{"]
    element = first.dialect.element
    lines += DataChecks(program, names, first.wide.format, element, functions).lines()
    for printer in printers[:-1]:
        lines.append(f"  if ({printer.symbol}({given}) != LN_OK) return LN_OUT_OF_MEMORY;")
    return "\n".join([*lines, f"  return {printers[-1].symbol}({given});", "}", ""])


def entry_name(program: Program) -> str:
    """Return the name of the function that `print_entry` prints."""
    return f"ln_call_{symbol(program.name)}"


def print_entry(program: Program) -> str:
    """Return a function that calls a kernel with words: an address, a size or a scalar in each.

    ``slots`` has the number of each parameter's word. So every kernel is called the same way,
    whatever its parameters are.
    """
    lines = [f"int {entry_name(program)}(const uint64_t *words, const int *slots)", "{"]
    given = []
    for number, param in enumerate(program.params):
        word = f"words[slots[{number}]]"
        if param.buffer is not None:
            given.append(f"(void *)(uintptr_t){word}")
        elif param.kind == "size":
            given.append(f"(int64_t){word}")
        else:
            given.append(f"v{number}")
            lines.append(f"  {_dialect(64).types[param.dtype.name]} v{number};")
            lines.append(f"  __builtin_memcpy(&v{number}, &{word}, sizeof v{number});")
    lines.append(f"  return {symbol(program.name)}({_list(given)});")
    return "\n".join([*lines, "}", ""])


@cache
def c_prelude(index_bits: int = 64) -> str:
    """Return what comes before the kernels of one file."""
    folder = Path(__file__).parent
    headers = [
        (folder / name).read_text(encoding="utf-8")
        for name in ("loopnest_math.h", "loopnest_kernel.h")
    ]
    return "".join([*headers, f"typedef int{index_bits}_t idx_t;\n\n"])


class _CPrinter(VectorPrinter):
    target = "c"

    def __init__(self, program: Program, index_bits: int) -> None:
        super().__init__(program, _dialect(index_bits))
        meet = has_threads_that_meet(program)
        self.loops: LoopForm = thread_form(program) if meet else loop_form(program)
        self.symbol = symbol(program.name)
        self.format.launch = {
            d: self.format.format(index) for d, index in self.loops.launch.items()
        }
        made = allocations(self.loops.body)
        self.memory = MemoryPlan(made, is_threaded=self.loops.lane is not None)
        self.changed = _changed_by_others(self.loops.body)
        self.visible: list[Variable] = []  # what enclosing statements of the entry define
        self.works: list[str] = []
        self.in_work = False
        self.is_shared_out = False
        """Whether several threads run the statement at hand."""
        self.own: frozenset[Buffer] = frozenset()
        """The buffers that each of them makes for itself."""
        self.streamed = streamed_outputs(program, self.loops.body)
        self.instructions: dict[str, Instruction] = {}
        """The rows that tiles execute."""

    @cached_property
    def wide(self) -> CFormat:
        """Writes sizes as they were passed, in 64 bits."""
        return CFormat(_dialect(64), self.names, "size argument")

    # The function that is called

    def text(self) -> str:
        self.pad = "  "
        self.define_sizes()
        shared = any(
            isinstance(n, Loop) and n.parallel is ParallelType.cpu_parallel
            for n, _ in walk(self.loops.body)
        )
        for buffer in self.streamed:
            count = f"LN_PAST_CACHES({self.wide.format(buffer.size)}, {self._element(buffer)})"
            self.emit(f"const bool {self.past(buffer)} = {count};")
            self._define(f"const bool {self.past(buffer)}", self.past(buffer))
        if self.memory.scratch or shared:
            self.emit(f"const int ln_threads = {'ln_max_threads()' if shared else '1'};")
        self._reserve_scratch()
        if self.memory.scratch and not shared:  # a function of its own for the sake of `restrict`
            self._call(self._work([], self.loops.body), (), "0")
        else:
            self.statements(self.loops.body)
            if not self.works:
                self.fence(self.loops.body)
        for piece in self.memory.pieces:
            self.emit(f"__builtin_free({piece.memory});")
        self.emit("return LN_OK;")
        params = self.declarations("restrict", "size argument", "int64_t")
        static = "static " if self.is_part else ""
        head = f"{static}int {self.symbol}({_lines(v.declaration for v in params)})"
        tiles = [self._tile_function(row) for row in self.instructions.values()]
        functions = [*self.vector_functions(), *tiles]
        return "\n".join([*functions, *self.works, head, "{", *self.lines, "}", ""])

    def _reserve_scratch(self) -> None:
        pieces = self.memory.pieces
        for start, memory, total, copies, buffers in pieces:
            self.emit(f"size_t {total} = 0;")
            for buffer in buffers:
                if free_indices(buffer.size):
                    raise InternalError(buffer.name, f"its size {buffer.size} changes in a loop")
                arguments = f"{self.wide.format(buffer.size)}, sizeof({self._element(buffer)})"
                place = self._place(buffer)
                self.emit(f"const size_t {place} = ln_reserve(&{total}, {arguments});")
            self.emit(f"void *{memory};")
            self.emit(f"char *const {start} = ln_scratch_new(&{memory}, {copies}, {total});")
        if len(pieces) == 1:
            self.emit(f"if ({pieces[0].memory} == NULL) return LN_OUT_OF_MEMORY;")
        elif pieces:
            self.emit(f"if ({' || '.join([f'{p.memory} == NULL' for p in pieces])}) {{")
            for piece in pieces:
                self.emit(f"  __builtin_free({piece.memory});")
            self.emit("  return LN_OUT_OF_MEMORY;")
            self.emit("}")

    def _element(self, buffer: Buffer) -> str:
        if self.is_scalar(buffer):
            return self.type_of(buffer)
        return self.dialect.element(buffer.dtype)

    def _place(self, buffer: Buffer) -> str:
        return "ln_at_" + self.names.of("buffer", buffer.name)

    # The work of one thread

    def parallel_loop(self, node: Loop) -> None:
        if self.in_work or not may_share_out(node, self.loops):
            self.plain_loop(node)
            return
        chain = parallel_chain(node, self.loops)
        sizes = [self.format.format(self.bound(n), UNARY) for n in chain]
        count = "(int64_t)" + " * ".join(sizes)
        work = self._work(chain, chain[-1].body)
        with self.scope():
            self.emit(f"const int64_t ln_count = {count};{self.remark(node)}")
            stores = stores_of(chain, chain[-1].body)
            amount = "INT64_MAX" if stores is None else self.wide.format(stores)
            self.emit(f"const int64_t ln_stores = {amount};")
            self.emit("const int ln_members = ln_team(ln_threads, ln_count, ln_stores);")
            # OpenMP takes as long to run a team of one as small kernels do.
            self.emit("if (ln_members < 2) {")
            self._call(work, ("0", "ln_count"), "0")
            self.emit("} else {")
            self.emit("  #pragma omp parallel num_threads(ln_members)")
            self._call(work, ("ln_share(ln_count, 0)", "ln_share(ln_count, 1)"), "ln_thread()")
            self.emit("}")

    def _call(self, work: _Work, share: Sequence[str], thread: str) -> None:
        places = [f"({self._element(b)} *)(ln_mine + {self._place(b)})" for b in work.scratch]
        call = f"{work.name}({_list([*share, *work.arguments, *places])});"
        if work.scratch:
            self.emit("  {")
            self.emit(f"    char *const ln_mine = ln_scratch + (size_t){thread} * ln_bytes;")
            self.emit("    " + call)
            self.emit("  }")
        else:
            self.emit("  " + call)

    def _work(self, chain: Sequence[Loop], body: tuple[Stmt, ...]) -> _Work:
        """Print the function in which a thread does its share of the loops in `chain`."""
        known = [*self.declarations("restrict", "size", "idx_t"), *self.visible]
        scratch = self.memory.scratch_of(allocations(body))
        name = f"ln_work_{self.symbol}_{len(self.works) + 1}"
        share = ["const int64_t ln_from", "const int64_t ln_to"] if chain else []
        own = [f"{self._element(b)} *restrict {self.buffer_name(b)}" for b in scratch]
        params = _lines([*share, *(v.declaration for v in known), *own])
        lines, pad = self.lines, self.pad
        self.lines, self.pad, self.in_work = [f"LN_WORK {name}({params})", "{"], "  ", True
        self.is_shared_out, self.own = bool(chain), frozenset(allocations(body))
        self._share(chain, body)
        self.fence(body)
        self.works.append("\n".join([*self.lines, "}", ""]))
        self.lines, self.pad, self.in_work = lines, pad, False
        self.is_shared_out = False
        return _Work(name, [v.name for v in known], scratch)

    def _share(self, chain: Sequence[Loop], body: tuple[Stmt, ...]) -> None:
        if not chain:
            self.statements(body)
            return
        indices = [self.format.format(n.var) for n in chain]
        if len(chain) == 1:
            (i,) = indices
            head = f"for (idx_t {i} = (idx_t)ln_from; {i} < (idx_t)ln_to; ++{i}) {{"
            self.block(head + self.remark(chain[0]), body)
            return
        lines = ["int64_t ln_rest = ln_i;"]
        for index, node in zip(indices[:0:-1], chain[:0:-1], strict=True):
            size = self.format.format(node.var.extent, UNARY)
            lines.append(f"const idx_t {index} = (idx_t)(ln_rest % {size});{self.remark(node)}")
            lines.append(f"ln_rest /= {size};")
        lines.append(f"const idx_t {indices[0]} = (idx_t)ln_rest;{self.remark(chain[0])}")
        self.block("for (int64_t ln_i = ln_from; ln_i < ln_to; ++ln_i) {", body, first=lines)

    # Scopes: what a parallel loop within serial ones must be passed

    def statements(self, body: tuple[Stmt, ...]) -> None:
        mark = len(self.visible)
        super().statements(body)
        del self.visible[mark:]

    def _define(self, declaration: str, name: str) -> None:
        if not self.in_work:
            self.visible.append(Variable(declaration, name))

    def plain_loop(self, node: Loop, pragmas: Sequence[str] = ()) -> None:
        if not pragmas and self._print_peeled(node):
            return
        index = self.format.format(node.var)
        self._define(f"const idx_t {index}", index)
        super().plain_loop(node, pragmas or kept_whole(node))

    def told(self, node: Loop, bounds: LoopBounds | None) -> Sequence[str]:
        """Return what data say of an index, so that a mask by them is a constant in the loop."""
        known = [] if bounds is None else terms_of(bounds.guard.condition)
        by_data = [term for term in known if loads(term)]
        lines = [f"LN_HOLDS({self.format.format(all_of(by_data))});"] if by_data else []
        return [*lines, "LN_APART();"] if folds_chosen(node) else lines

    def _print_peeled(self, node: Loop) -> bool:
        """Print a loop in pieces, in each of which a test holds or fails; return whether it is."""
        if node.parallel not in (ParallelType.serial, ParallelType.unswitch):
            return False
        pieces = self._pieces(node)
        if len(pieces) == 1:
            return False
        index = self.format.format(node.var)
        self._define(f"const idx_t {index}", index)
        with self.scope():
            self.emit(f"idx_t {index} = 0;{self.remark(node)}")
            for stop, body in pieces:
                self.block(f"for (; {index} < {self.format.format(stop, SUM)}; ++{index}) {{", body)
        return True

    def _pieces(self, node: Loop) -> list[Piece]:
        """Return where the pieces of a loop stop, and what they do."""
        pieces: tuple[Piece, ...] = ((self.bound(node), node.body),)
        if self.is_whole(node):
            first = first_iterations(node, self.algebra, self.loops.limits)
            if first is not None:
                count, whole, rest = first
                pieces = (count, whole), (node.var.extent, rest)
        return [
            part
            for stop, body in pieces
            for part in border_pieces(body, node.var, stop, self.algebra)
        ]

    def binding(self, node: Loop) -> None:
        super().binding(node)
        index = self.format.format(node.var)
        self._define(f"const idx_t {index}", index)

    def define(self, var: Local, value: str) -> None:
        super().define(var, value)
        name = self.names.of("local", var.name)
        self._define(f"const {self.type_of(var)} {name}", name)

    def enter_scalar(self, buffer: Buffer) -> str:
        name = super().enter_scalar(buffer)
        self._define(f"const {self._element(buffer)} {name}", name)
        return name

    # Loops

    def visit_loop(self, node: Loop) -> None:
        mark = len(self.visible)
        self._loop(node)
        del self.visible[mark:]

    def _loop(self, node: Loop) -> None:
        if self.is_whole(node) and self.print_transposed(node):
            return
        if (
            is_short(node, self.in_work)
            and reads_own_lane(node)
            and self._has_free_order(node)
            and self.print_vectors(node)
        ):
            return
        if node.var is self.loops.lane:
            self.vector_loop(node)
        else:
            super().visit_loop(node)

    def is_whole(self, node: Loop) -> bool:
        return node not in self.loops.limits

    def bound(self, node: Loop) -> Expr:
        size = node.var.extent
        for limit in self.loops.limits.get(node, ()):
            size = Op("min", (size, limit), dtypes.index)
        return size

    def remark(self, node: Loop) -> str:
        for dimension, index in self.loops.launch.items():
            if index is node.var:
                return mark(node, dimension)
        return super().remark(node)

    def unrolled_loop(self, node: Loop) -> None:
        count = node.extent
        known = isinstance(count, int) and 1 < count <= MAX_UNROLL
        self.plain_loop(node, [f"#pragma GCC unroll {count}"] if known else ())

    def vector_loop(self, node: Loop) -> None:
        apart = self._has_free_order(node) and not has_constant_masks(node)
        if not (apart and self.print_vectors(node)):
            self.plain_loop(node, ["#pragma omp simd"] if apart else ())

    def _has_free_order(self, node: Loop) -> bool:
        """Whether the lanes of a loop may run side by side, if none reads what another stores."""
        nested = any(isinstance(n, Loop) for n, _ in walk(node.body))
        private = not any(b in self.memory.off_stack for b in allocations(node.body))
        return private and not nested and stores_apart(node, lanes=True)

    # Tiles

    def visit_tile(self, node: Tile) -> None:
        """Print the call of what executes an instruction, and loops for other processors."""
        row = self.instructions[node.instruction] = instructions[node.instruction]
        self.emit(f"#if {_has_extension(row)}")
        self.emit(self.tile_call(node, row))
        self.emit("#else")
        self.statements(node.body)
        self.emit("#endif")

    def _tile_function(self, row: Instruction) -> str:
        """Return the function that executes a row, where the compiler's target has it."""
        params = []
        for role, operand in row.operands.items():
            const = "" if role == row.result else "const "
            params.append(f"{const}{self.dialect.element(operand.dtype)} *{role}")
        name = function_name(row)
        lines = [
            f"#if {_has_extension(row)} && !defined(LN_HAS_{name})",
            f"#define LN_HAS_{name}",
            "#include <immintrin.h>",
            f"LN_FN void {name}({_list(params)}) {{",
            row.c.format_map({role: role for role in row.operands}).strip("\n"),
            "}",
            "#endif",
        ]
        return "\n".join(lines)

    # Memory

    def visit_allocate(self, node: Allocate) -> None:
        buffer = node.storage
        name = self.buffer_name(buffer)
        if buffer in self.memory.off_stack:
            self.emit(f"// {comment(f'{buffer.name}: {buffer.size}')} elements of scratch memory")
            if not self.in_work:
                pointer = f"{self._element(buffer)} *"
                start = self.memory.piece_of(buffer).start
                place = f"({pointer})({start} + {self._place(buffer)})"
                self.emit(f"{pointer}const {name} = {place};")
                self._define(f"{pointer}restrict {name}", name)
            return
        count = static_size(buffer)
        assert count is not None
        wide = count * buffer.dtype.size >= VECTOR_BYTES
        self.declare_local(buffer, count, f"_Alignas({VECTOR_BYTES}) " if wide else "")
        if not self.is_scalar(buffer):
            self._define(f"{self._element(buffer)} *restrict {name}", name)

    # Several threads

    def is_restricted(self, buffer: Buffer) -> bool:
        return buffer not in self.changed

    def visit_arrive(self, node: Arrive) -> None:
        """Print how a block counts itself and learns whether it is the last one."""
        place = self.format.element(node.counter, node.index, flat=False)
        self.define(node.var, f"ln_arrive(&{place}, {self.format.format(node.count)})")

    def is_contended(self, node: Store) -> bool:
        return self.is_shared_out and node.storage not in self.own

    def atomic_call(self, operation: str, dtype: DType, place: str, value: str) -> str:
        if operation != "add" or dtype.is_float:
            return ""
        return f"__atomic_fetch_add({place}, {value}, __ATOMIC_RELAXED)"

    def swap(self, place: str, old: str, new: str) -> str:
        return f"LN_SWAP({place}, {old}, {new})"

    def visit_barrier(self, node: Barrier) -> None:
        raise InternalError(self.program.name, f"a barrier of the {node.scope} is left in C")


def _has_extension(row: Instruction) -> str:
    """Return the test of the preprocessor for the extension that a row needs."""
    return f"defined(__{row.arch.upper().replace('-', '_')}__)"


class _Work(NamedTuple):
    """A printed function: its name, the variables passed on, the scratch buffers that it makes."""

    name: str
    arguments: list[str]
    scratch: list[Buffer]


def _changed_by_others(body: tuple[Stmt, ...]) -> frozenset[Buffer]:
    """Return what a block may see change while it runs: where blocks arrive, all that is stored."""
    nodes = [node for node, _ in walk(body)]
    counters = {n.counter for n in nodes if isinstance(n, Arrive)}
    if not counters:
        return frozenset()
    return frozenset(counters | {n.storage for n in nodes if isinstance(n, Store)})


def _list(items: Iterable[str]) -> str:
    return ", ".join(items)


def _lines(params: Iterable[str]) -> str:
    """Return parameters, one a line; C reads an empty list as "any"."""
    text = ",\n    ".join(params)
    return f"\n    {text}" if text else "void"


def _functions(index: str) -> dict[tuple[str, str], str]:
    functions = {
        **common_functions(C),
        ("floordiv", "index"): f"ln_index_div_{index}",
        ("mod", "index"): f"ln_index_mod_{index}",
    }
    for dtype, end in (*_INTEGER_ENDS.items(), ("index", index)):
        for op in ("max", "min", "abs", "floordiv", "mod", "pow", "shl", "shr"):
            functions.setdefault((op, dtype), f"ln_{op}_{end}")
    return functions


_INTEGER_ENDS = {
    "int8": "i8", "uint8": "u8", "int16": "i16", "uint16": "u16", "int32": "i32",
    "uint32": "u32", "int64": "i64",
}  # fmt: skip
_NARROW_ENDS = {
    "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "f8_e4m3fn", "float8_e5m2": "f8_e5m2",
}  # fmt: skip


@cache
def _dialect(index_bits: int) -> Dialect:
    types = {
        "bool": "bool", **{name: f"{name}_t" for name in _INTEGER_ENDS}, "float16": "half_t",
        "bfloat16": "bfloat16_t", "float8_e4m3fn": "float8_e4m3fn_t",
        "float8_e5m2": "float8_e5m2_t", "float32": "float", "float64": "double", "index": "idx_t",
    }  # fmt: skip
    special = {
        ("inf", "float32"): "LN_INFF",
        ("nan", "float32"): "LN_NANF",
        ("inf", "float64"): "LN_INF",
        ("nan", "float64"): "LN_NAN",
    }
    casts = {(f"float{w}", f"int{n}"): f"ln_f{w}_to_i{n}" for w in (32, 64) for n in (32, 64)}
    for name, short in _NARROW_ENDS.items():
        casts[name, "float32"] = f"ln_{short}_to_f32"
        casts["float32", name] = f"ln_f32_to_{short}"
        casts["float64", name] = f"ln_f64_to_{short}"
    casts["int64", "bfloat16"] = "ln_i64_to_bf16"
    # gcc 12 makes masked loads of conditional ones, and wrong ones where it unrolls 3, 5, 6 or 7 of
    # them in a loop that it vectorizes.
    selects = {name: f"ln_select_{name}" for name in types if name != "index"}
    functions = _functions(f"i{index_bits}")
    elements = {"bool": "uint8_t"}  # gcc 12 vectorizes no loop that loads bool
    return Dialect(
        types, unsigned("uint32_t", "uint64_t"), special, functions, casts, selects, elements
    )


# Loops that a C compiler must not unroll: there the mask of a gather would be a constant.
#
# A test in a loop that is vectorized is a mask, and under it a load of elements that are no
# neighbours is a masked gather. Where the loop has few iterations and is unrolled afterwards, a
# test of its index against a number is a constant::
#
#     for i in 128:
#       if i < 16:
#         y[i] = x[i % 4, i // 4]
#
# gcc 12 makes such a mask of ones where AVX2 asks for the sign bits of floats, so that nothing is
# loaded, and zeros are stored. A loop that stays a loop computes its masks.


MAX_UNROLL = 256
"""Loops of more iterations are not unrolled whole."""


def kept_whole(loop: Loop) -> Sequence[str]:
    """Return the pragma that keeps the compiler from unrolling a loop, where it must not."""
    return ("#pragma GCC unroll 1",) if has_constant_masks(loop) else ()


def has_constant_masks(loop: Loop) -> bool:
    """Whether a test in a loop compares its index with numbers alone, and decides over gathers."""
    if not isinstance(loop.extent, int) or loop.extent > MAX_UNROLL:
        return False
    nodes = [node for node, _ in walk(loop.body)]
    # In a loop over the threads of a block, their numbers go by the names of the loops bound to it.
    bound = [node.var for node in nodes if isinstance(node, Loop) and node.parallel.is_thread]
    return any(
        isinstance(node, If)
        and var in free_indices(node.condition)
        and _is_static(node.condition)
        and any(_gathers(load, var) for load in _loads(node))
        for node in nodes
        for var in (loop.var, *bound)
    )


def _is_static(cond: Expr) -> bool:
    """Whether nothing but indices of loops of known extents decides a test."""
    return all(isinstance(v, Index) and isinstance(v.extent, Const) for v in variables(cond))


def _loads(node: Stmt) -> set[Load]:
    inner = [node, *[below for below, _ in walk((node,))]]
    return {load for below in inner for value in expressions(below) for load in loads(value)}


def _gathers(load: Load, index: Index) -> bool:
    """Whether iterations of a loop load elements that are no neighbours."""
    *outer, last = load.args
    return any(index in free_indices(place) for place in outer) or not _steps_by_one(last, index)


def _steps_by_one(place: Expr, index: Index) -> bool:
    """Whether an index does not depend on a loop, or is a sum in which its own is a term."""
    if place is index or index not in free_indices(place):
        return True
    if isinstance(place, Op) and place.op == "add":
        return all(_steps_by_one(term, index) for term in place.args)
    return False


# How many values a parallel loop stores, for the number of threads that it pays for.


def stores_of(chain: Sequence[Loop], body: tuple[Stmt, ...]) -> Expr | None:
    """Return how many stores the loops of `chain` perform, their tests all true.

    None where an extent changes from one iteration to the next: then nothing is known from outside.

    Args:
        chain: loops around each other, the outermost first.
        body: of the innermost one.
    """
    count = _stores(body)
    for loop in reversed(chain):
        count = _times(loop.var.extent, count)
    return None if count is None or free_indices(count) else count


def _stores(body: tuple[Stmt, ...]) -> Expr | None:
    total: Expr = ZERO
    for node in body:
        count = _of(node)
        if count is None:
            return None
        if count is not ZERO:
            total = count if total is ZERO else Op("add", (total, count), dtypes.index)
    return total


def _of(node: Stmt) -> Expr | None:
    match node:
        case Store():
            return ONE
        case Loop():
            return _times(node.var.extent, _stores(node.body))
        case If():
            either = _stores(node.body), _stores(node.orelse)
            if None in either:
                return None
            return either[1] if either[0] is ZERO else either[0]
    inner = getattr(node, "body", ())
    return _stores(inner)


def _times(extent: Expr, count: Expr | None) -> Expr | None:
    if count is None or free_indices(extent):
        return None
    if count is ZERO or extent is ONE:
        return count
    return extent if count is ONE else Op("mul", (extent, count), dtypes.index)


# Where the buffers of a C kernel lie: on the stack or in scratch memory.
#
# There are two pieces of scratch memory, both reserved before the kernel starts: one that each
# thread of the CPU has for itself, and one of the launch for what outlives the work of a thread,
# because blocks keep it across a barrier of the grid.


STACK_BYTES = 16384
"""Larger buffers of static size lie in scratch memory: the stacks of threads are small."""

STACK_TOTAL = 65536
"""What buffers of several threads may take of a stack together; further ones lie in scratch."""


class ScratchPiece(NamedTuple):
    """A piece of scratch memory: names of variables, and what lies in it.

    Args:
        start: where it begins.
        memory: what malloc returned.
        total: its size in bytes.
        copies: how often it is needed.
        buffers: what lies in it, in order.
    """

    start: str
    memory: str
    total: str
    copies: str
    buffers: list[Buffer]


class MemoryPlan:
    """Where each of `buffers` lies.

    Args:
        buffers: all that a kernel makes, in order.
        is_threaded: whether arrays of several threads are among them, which add up.
    """

    def __init__(self, buffers: Iterable[Buffer], *, is_threaded: bool) -> None:
        self.off_stack: dict[Buffer, None] = {}
        room = STACK_TOTAL
        for buffer in buffers:
            count = static_size(buffer)
            size = None if count is None else count * buffer.dtype.size
            if size is None or size > STACK_BYTES or _is_kept(buffer):
                self.off_stack[buffer] = None
            elif is_threaded and (buffer.memory is Memory.SHARED or buffer.kind == "slots"):
                room -= size
                if room < 0:
                    self.off_stack[buffer] = None
        self.scratch = self.scratch_of(self.off_stack)
        self._own = ScratchPiece("ln_scratch", "ln_memory", "ln_bytes", "ln_threads", self.scratch)
        kept = [b for b in self.off_stack if _is_kept(b)]
        self._kept = ScratchPiece("ln_kept", "ln_kept_memory", "ln_kept_bytes", "1", kept)
        self.pieces = tuple([p for p in (self._own, self._kept) if p.buffers])

    def scratch_of(self, buffers: Iterable[Buffer]) -> list[Buffer]:
        """Return those of `buffers` that lie in the scratch memory of a thread."""
        return [b for b in buffers if b in self.off_stack and not _is_kept(b)]

    def piece_of(self, buffer: Buffer) -> ScratchPiece:
        """Return the piece in which a buffer off the stack lies."""
        return self._kept if _is_kept(buffer) else self._own


def _is_kept(buffer: Buffer) -> bool:
    return buffer.memory is Memory.GLOBAL
