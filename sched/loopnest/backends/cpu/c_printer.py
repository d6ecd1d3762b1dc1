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
from loopnest.backends.clike.dialect import SUM, UNARY, Dialect
from loopnest.backends.clike.float_functions import C
from loopnest.backends.clike.identifiers import symbol
from loopnest.backends.clike.narrow_counts import launch_programs
from loopnest.backends.clike.statements import Variable, comment, mark, static_size
from loopnest.backends.cpu.border_loops import Piece, border_pieces
from loopnest.backends.cpu.chosen_loads import folds_chosen
from loopnest.backends.cpu.constant_masks import MAX_UNROLL, has_constant_masks, kept_whole
from loopnest.backends.cpu.data_checks import DataChecks, computing_programs, is_checked
from loopnest.backends.cpu.first_iterations import first_iterations
from loopnest.backends.cpu.fission.loop_form import (
    LoopForm,
    allocations,
    loop_form,
    may_share_out,
    parallel_chain,
    stores_apart,
)
from loopnest.backends.cpu.fission.thread_loop_fission import has_threads_that_meet, thread_form
from loopnest.backends.cpu.lane_vectors import is_short, reads_own_lane
from loopnest.backends.cpu.scratch_memory import MemoryPlan
from loopnest.backends.cpu.streaming_stores import streamed_outputs
from loopnest.backends.cpu.vector_printer import VectorPrinter
from loopnest.backends.cpu.work_estimate import stores_of
from loopnest.base.errors import InternalError
from loopnest.base.recursion import deep
from loopnest.kir import Arrive, Barrier, Loop, Program, Stmt, Store, walk
from loopnest.kir.buffers import Buffer
from loopnest.kir.loop_bounds import LoopBounds
from loopnest.kir.tiles import without_tiles
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import Expr, Local, Op, all_of, free_indices, loads, terms_of

VECTOR_BYTES = 64
"""The widest vector register: arrays that fill one are aligned to it."""


@deep
def print_c(program: Program, index_bits: int = 64, prelude: bool = True) -> str:
    """Return the C text of `program`; indices are signed integers of `index_bits`.

    With `prelude` the text compiles alone; several kernels in one file share one `c_prelude`.

    Raises:
        InternalError: threads meet where not all of them come.
    """
    program = without_tiles(program)
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
        self.scope: list[Variable] = []  # what enclosing statements of the entry define
        self.works: list[str] = []
        self.in_work = False
        self.is_shared_out = False
        """Whether several threads run the statement at hand."""
        self.own: frozenset[Buffer] = frozenset()
        """The buffers that each of them makes for itself."""
        self.streamed = streamed_outputs(program, self.loops.body)

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
        functions = self.vector_functions()
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
        self.emit("{")
        outer, self.pad = self.pad, self.pad + "  "
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
        self.pad = outer
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
        known = [*self.declarations("restrict", "size", "idx_t"), *self.scope]
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
        self.emit("for (int64_t ln_i = ln_from; ln_i < ln_to; ++ln_i) {")
        self.pad += "  "
        self.emit("int64_t ln_rest = ln_i;")
        for index, node in zip(indices[:0:-1], chain[:0:-1], strict=True):
            size = self.format.format(node.var.extent, UNARY)
            self.emit(f"const idx_t {index} = (idx_t)(ln_rest % {size});{self.remark(node)}")
            self.emit(f"ln_rest /= {size};")
        self.emit(f"const idx_t {indices[0]} = (idx_t)ln_rest;{self.remark(chain[0])}")
        self.statements(body)
        self.pad = self.pad[2:]
        self.emit("}")

    # Scopes: what a parallel loop within serial ones must be passed

    def statements(self, body: tuple[Stmt, ...]) -> None:
        mark = len(self.scope)
        super().statements(body)
        del self.scope[mark:]

    def _define(self, declaration: str, name: str) -> None:
        if not self.in_work:
            self.scope.append(Variable(declaration, name))

    def plain_loop(self, node: Loop, pragmas: Sequence[str] = ()) -> None:
        if not pragmas and self._print_peeled(node):
            return
        mark = len(self.scope)
        index = self.format.format(node.var)
        self._define(f"const idx_t {index}", index)
        super().plain_loop(node, pragmas or kept_whole(node))
        del self.scope[mark:]

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
        mark = len(self.scope)
        index = self.format.format(node.var)
        self._define(f"const idx_t {index}", index)
        self.emit("{")
        outer, self.pad = self.pad, self.pad + "  "
        self.emit(f"idx_t {index} = 0;{self.remark(node)}")
        for stop, body in pieces:
            self.block(f"for (; {index} < {self.format.format(stop, SUM)}; ++{index}) {{", body)
        self.pad = outer
        self.emit("}")
        del self.scope[mark:]
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

    def bound_loop(self, node: Loop) -> None:
        mark = len(self.scope)
        super().bound_loop(node)
        del self.scope[mark:]

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

    def loop(self, node: Loop) -> None:
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
            super().loop(node)

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

    # Memory

    def allocate(self, buffer: Buffer) -> None:
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

    def arrive(self, node: Arrive) -> None:
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

    def barrier(self, node: Barrier) -> None:
        raise InternalError(self.program.name, f"a barrier of the {node.scope} is left in C")


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
        ("floordiv", "index"): f"ln_index_div_{index}",
        ("mod", "index"): f"ln_index_mod_{index}",
    }
    for op, (single, double) in C.items():
        functions |= {(op, "float32"): single, (op, "float64"): double}
    functions["philox", "int64"] = "ln_philox"
    functions["ordinal32", "float32"] = "ln_ordinal32"
    functions["ordinal64", "float64"] = "ln_ordinal64"
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
    return Dialect(types, _UNSIGNED, special, functions, casts, selects, elements)


_UNSIGNED = {
    **dict.fromkeys(("int8", "uint8", "int16", "uint16", "int32"), "uint32_t"),
    "int64": "uint64_t",
}
"""uint32 itself wraps; what is narrower would be promoted to int."""
