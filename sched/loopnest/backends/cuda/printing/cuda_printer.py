"""CUDA C++ text: one `extern "C" __global__` function that needs nothing but CUDA's own headers.

NVRTC and nvcc both compile it. A kernel whose blocks wait for each other takes one parameter more
than the program has: `cuda_sync.GRID_COUNTER`, the last one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext

from loopnest.backends.clike.dialect import SUM
from loopnest.backends.clike.identifiers import function_name, symbol
from loopnest.backends.clike.narrow_counts import launch_programs
from loopnest.backends.clike.sink_allocations import settle_allocations
from loopnest.backends.clike.statements import (
    StatementPrinter,
    Variable,
    comment,
    extent_product,
    static_size,
)
from loopnest.backends.cuda.printing.cuda_dot_products import (
    FUNCTIONS,
    LANES,
    DotProduct,
    plan_dot_products,
    word_arrays,
)
from loopnest.backends.cuda.printing.cuda_functions import (
    cuda_dialect,
    device_functions,
    float8_types,
)
from loopnest.backends.cuda.printing.cuda_sync import (
    FULL_MASK,
    GRID_COUNTER,
    SHUFFLES,
    atomic_call,
    mask_value,
    static_mask,
    thread_number,
)
from loopnest.backends.cuda.printing.cuda_vectors import (
    MAX_PIECE,
    Span,
    WideCopy,
    WideLoop,
    aligned_locals,
    plan_vectors,
    template,
)
from loopnest.base.errors import LoweringError
from loopnest.base.recursion import deep
from loopnest.kir import (
    Allocate,
    Arrive,
    Barrier,
    Collective,
    Commit,
    If,
    Issue,
    Loop,
    Param,
    Program,
    Shuffle,
    Stmt,
    Store,
    Tile,
    Wait,
    expressions,
    is_sync,
    map_body,
)
from loopnest.kir.instruction_rows import instructions
from loopnest.kir.instruction_table import Instruction, Operand
from loopnest.kir.matrix_rows import named
from loopnest.kir.shared_memory import ALIGNMENT, shared_layout, shared_places
from loopnest.kir.tiles import in_registers
from loopnest.kir.vector_access import WideAccess, alignments, require_wide_copies
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import LAUNCH_DIMENSIONS, Memory, ParallelType
from loopnest.scalar.expr import (
    ONE,
    ZERO,
    Buffer,
    Expr,
    Index,
    Load,
    Symbol,
    cast,
    free_indices,
    is_zero,
    loads,
)
from loopnest.scalar.fragments import Fragment
from loopnest.scalar.launch_bounds import LaunchBounds
from loopnest.scalar.simplify import Simplifier

MAX_THREADS = 1024

MAX_UNROLLED = 512
"""How often the body of a loop may stand in the text of the compiler, so that register arrays that
it indexes stay in registers; beyond that the compiler decides."""

UNROLLED_SLOTS = 4
"""How many slots of shared memory an iteration folds: 16 bytes of float32 are one access. A block
has at most 32 warps, mostly 4 or 8; compilers take 16 slots at once, and need three loops more for
what is left. Of all other loops they know better: what pays depends on the body."""


@deep
def print_cuda(program: Program, index_bits: int = 32, min_blocks: int | None = None) -> str:
    """Return the CUDA C++ text of `program`.

    Args:
        program: what is printed.
        index_bits: indices are signed integers of that width.
        min_blocks: how many blocks a multiprocessor shall hold at least; None leaves it open.

    Raises:
        LoweringError: a LOCAL buffer has a symbolic size, so it cannot live in registers.
    """
    printers: list[_CudaPrinter] = []
    parts = zip(launch_programs(program, index_bits), program.launches, strict=True)
    for (part, quotients), whole in parts:
        printer = _CudaPrinter(named(in_registers(part)), whole, index_bits, min_blocks)
        printer.is_part = part.name != program.name
        printer.format.quotients = quotients
        printers.append(printer)
    kernels = [printer.text() for printer in printers]
    if len(kernels) == 1:
        head = [*printers[0].about(), *declared(printers)]
        return "\n".join([*head, kernels[0]])
    names = ", ".join([printer.name for printer in printers])
    lines = [
        f"// kernel {comment(program.name)}: {len(kernels)} launches in this order: {names}",
        *declared(printers),
    ]
    for printer, kernel in zip(printers, kernels, strict=True):
        lines += [*printer.about(), kernel]
    return "\n".join(lines)


class _CudaPrinter(StatementPrinter):
    target = "cuda"

    def __init__(
        self, program: Program, whole: Program, index_bits: int, min_blocks: int | None
    ) -> None:
        super().__init__(program, cuda_dialect())
        self.index_type = {32: "int", 64: "long long"}[index_bits]
        self.min_blocks = min_blocks
        # A launch gives a block what the program asks for, however narrow its counts are here.
        self.shared, self.places = shared_layout(whole), shared_places(whole)
        self.usage = Usage(program)
        self.exchanged = self.usage.exchanged()
        self.registers = self.usage.register_indices()
        self.format.launch = {
            d: self.names.of("launch", d.value) for d, size in program.launch if size is not ONE
        }
        self.axes: dict[ParallelType, dict[str, None]] = {d: {} for d in self.format.launch}
        """The axes that run along each dimension of the launch."""
        body = settle_allocations(map_body(program.body, self._without_loop))
        self.program = program.with_body(body)
        require_wide_copies(self.program)
        self.vectors = plan_vectors(self.program)
        tiles = [node for node in self.program.nodes if isinstance(node, Tile)]
        self.fragments = {buffer for tile in tiles for _, buffer in tile.operands}
        self.dots = plan_dot_products(self.program)
        self.aligned = aligned_locals(self.vectors) | word_arrays(self.dots.values())
        self.alignments = alignments(a for plan in self.vectors.values() for a in plan.accesses)
        self.lanes: dict[Stmt, str] = {}
        """The register of each store to a lane of a wide store, inside of its loop."""
        self.mask = ""
        self.instructions: dict[str, Instruction] = {}
        """The rows that tiles execute."""
        self.is_alone = False
        """Whether the statement at hand has its scope to itself."""
        self.is_collective = False
        """Whether the statement at hand belongs to a collective."""
        self.issued: Instruction | None = None
        """What begins the stores at hand, of copies in flight."""
        self.rows: dict[str, Instruction] = {}
        self.taken = ""
        """The test of the copy at hand, which stores zeros where it fails."""

    def _without_loop(self, node: Stmt) -> Stmt | tuple[Stmt, ...]:
        """Return the body of a loop over a launch dimension that runs in every thread."""
        if not isinstance(node, Loop) or node.parallel not in self.axes:
            return node
        if node.axis:
            self.axes[node.parallel][node.axis] = None
        self.format.rename(node.var, self.format.launch[node.parallel])
        return node.body if self.is_always_run(node) else node

    def text(self) -> str:
        self.pad = "  "
        self._define_mask()
        self._declare_shared()
        self.statements(self.program.body)
        body, self.lines = self.lines, []
        self.define_sizes()
        for dimension, variable in self.format.launch.items():
            axes = comment(", ".join(self.axes[dimension]))
            remark = f"  // {axes}" if axes else ""
            self.emit(f"const idx_t {variable} = {self.index(dimension.cuda_name)};{remark}")
        self.lines += body
        declared = self.declarations("__restrict__", "size argument", "long long")
        if self.program.is_cooperative:
            declared.append(Variable(f"unsigned int *{GRID_COUNTER}", GRID_COUNTER))
        params = ",\n    ".join([variable.declaration for variable in declared]) or "void"
        head = f'extern "C" __global__ void {self._launch_bounds()}{self.name}(\n    {params})'
        return "\n".join([head, "{", *self.lines, "}", ""])

    def _launch_bounds(self) -> str:
        """Return the bounds; of 1 block if no other number is asked for.

        Without a number ptxas aims at several blocks, and spills to get there. Threads are as many
        as sizes allow that a launch of this text accepts.
        """
        threads = extent_product([size for d, size in self.program.launch if d.is_block])
        if threads is None:
            threads = LaunchBounds(dict(self.program.launch), Simplifier(self.facts)).threads()
        if not 0 < threads <= MAX_THREADS:
            return ""
        blocks = f", {1 if self.min_blocks is None else self.min_blocks}"
        return f"__launch_bounds__({threads}{blocks}) "

    @property
    def name(self) -> str:
        """The name of the kernel in the text."""
        return symbol(self.program.name)

    def about(self) -> Iterator[str]:
        """Yield comments on the launch."""
        launch = dict(self.program.launch)
        sizes = [comment(str(launch.get(d, ONE))) for d in LAUNCH_DIMENSIONS]
        together = ", all blocks at once" if self.program.is_cooperative else ""
        yield f"// kernel {comment(self.program.name)}"
        yield f"// grid ({', '.join(sizes[:3])}), block ({', '.join(sizes[3:])}){together}"
        if self.shared.offsets:
            dynamic = "dynamic " if self.shared.is_dynamic else ""
            yield f"// {dynamic}shared memory: {comment(str(self.shared.total))} bytes"
        if self.program.requires:
            texts = [text for text, _ in self.program.requires]
            yield f"// requires {comment(', '.join(texts))}"
        aligned = [f"{b.name} to {n}" for b, n in self.alignments.items()]
        if aligned:
            yield f"// addresses aligned: {comment(', '.join(aligned))} bytes"

    def is_restricted(self, buffer: Buffer) -> bool:
        return buffer not in self.exchanged

    def is_needed(self, size: Param) -> bool:
        return self.format.knows(Symbol(size.name))

    def index(self, value: str) -> str:
        self.format.called["ln_index"] = None
        return f"ln_index({value})"

    # Loops

    def bound_loop(self, node: Loop) -> None:
        number = self.format.launch.get(node.parallel)
        if number is None:
            super().bound_loop(node)
        else:
            size = self.format.format(node.var.extent, SUM)
            self.block(f"if ({number} < {size}) {{{self.remark(node)}", node.body)

    def visit_loop(self, node: Loop) -> None:
        held = node.var in self.registers and unrolled_trips(node) <= MAX_UNROLLED
        if node.parallel is ParallelType.serial and (held or node in self.dots):
            self.unrolled_loop(node)
        elif self.is_collective and folds_slots(node):
            self.plain_loop(node, (f"#pragma unroll {UNROLLED_SLOTS}",))
        else:
            super().visit_loop(node)

    def unrolled_loop(self, node: Loop) -> None:
        dot = self.dots.get(node)
        if dot is not None:
            self._dot_loop(node, dot)
            return
        self.plain_loop(node, ("#pragma unroll",) if isinstance(node.extent, int) else ())

    def _dot_loop(self, node: Loop, dot: DotProduct) -> None:
        """Print a loop that adds the products of the bytes of two words in each step."""
        function = FUNCTIONS[dot.left.dtype]
        self.format.called[function] = None
        word = "int" if dot.left.dtype is dtypes.int8 else "unsigned int"
        index, place = self.format.format(node.var), self.stored_place(dot.store)
        words = [
            f"*(const {word} *)&{self.format.element(side.buffer, side.args, flat=side.flat)}"
            for side in (dot.left, dot.right)
        ]
        limits = f"{index} < {node.extent}; {index} += {LANES}"
        self.emit("#pragma unroll")
        self.emit(f"for (idx_t {index} = 0; {limits}) {{{self.remark(node)}")
        call = f"{function}({', '.join(words)}, {place})"
        self.emit(f"  {place} = {call};  // {comment(dot.store.tensor)} {dot.store.role}")
        self.emit("}")

    def vector_loop(self, node: Loop) -> None:
        if self.issued is not None and self._issued_vector(node, self.issued):
            return
        match self.vectors.get(node):
            case WideCopy() as copy:
                self.format.called["ln_wide"] = None
                target = self._wide(copy.target, copy.template, copy.words)
                source = self._wide(
                    copy.source, copy.template, copy.words and f"const {copy.words}"
                )
                remark = comment(f"{copy.store.tensor}, {node.extent} lanes")
                self.emit(f"{target} = {source};  // {remark}")
            case WideLoop() as plan:
                self.format.called["ln_wide"] = None
                # In a scope of its own beside other statements.
                with nullcontext() if self.is_alone else self.scope():
                    self._wide_loop(node, plan)
            case None:
                self.unrolled_loop(node)

    def _wide(self, place: Span | WideAccess, arguments: str, words: str = "") -> str:
        """Return the lanes from a place on: elements, or words where their type is given."""
        element = self.format.element(place.buffer, place.index, flat=place.flat)
        return f"ln_wide<{arguments}>({words and f'({words} *)'}&{element})"

    def statements(self, body: tuple[Stmt, ...]) -> None:
        before, self.is_alone = self.is_alone, len(body) == 1
        super().statements(body)
        self.is_alone = before

    def _wide_loop(self, node: Loop, plan: WideLoop) -> None:
        """Print the three steps of a vectorized loop."""
        lane = self.format.format(node.var)
        vectors = self._vector_names((*plan.loads, *plan.stores))
        loaded: dict[Expr, str] = {}
        for access in plan.loads:
            assert access.load is not None
            arguments = template(access.buffer, access.lanes, access.piece_bytes)
            place = self._wide(access, arguments)
            self.emit(f"const {self._vector_type(access)} {vectors[access]} = {place};")
            loaded[access.load] = f"{vectors[access]}[{lane}]"
        for access in plan.stores:
            self.emit(f"{self._vector_type(access)} {vectors[access]};")
            self.lanes[access.statement] = f"{vectors[access]}[{lane}]"
        with self.format.renamed(loaded):
            self.plain_loop(node, ("#pragma unroll",))
        self.lanes.clear()  # the same stores may stand in another loop
        for access in plan.stores:
            arguments = template(access.buffer, access.lanes, access.piece_bytes)
            remark = comment(f"{access.buffer.tensor}, {access.lanes} lanes")
            self.emit(f"{self._wide(access, arguments)} = {vectors[access]};  // {remark}")

    def _vector_names(self, accesses: Sequence[WideAccess]) -> dict[WideAccess, str]:
        """Return a name for the lanes of each access: ``x_v``, and ``x_v1`` for another of x."""
        result: dict[WideAccess, str] = {}
        counts: Counter[str] = Counter()
        for access in accesses:
            stem = f"{access.buffer.name}_v"
            number = counts[stem] or ""
            counts[stem] += 1
            result[access] = self.names.of("vector", f"{stem}{number}")
        return result

    def _vector_type(self, access: WideAccess) -> str:
        arguments = template(access.buffer, access.lanes, access.piece_bytes)
        return f"ln_vec<{self.dialect.types[access.buffer.dtype.name]}, {arguments}>"

    def visit_store(self, node: Store, declare: str = "") -> None:
        lane = self.lanes.get(node)
        if self.issued is not None and isinstance(node.value, Load):
            size, load = node.storage.dtype.size, node.value
            source = self.format.element(load.buffer, load.args, flat=load.flat)
            self._copy(self.issued, size, (f"&{self.stored_place(node)}", f"&{source}"), node)
        elif lane is None:
            super().visit_store(node, declare)
        else:
            value = self.format.converted(node.value, node.storage.dtype)
            self.emit(f"{lane} = {value};  // {comment(node.tensor)}")

    def atomic_call(self, operation: str, dtype: DType, place: str, value: str) -> str:
        return atomic_call(operation, dtype, place, value)

    def swap(self, place: str, old: str, new: str) -> str:
        self.format.called["ln_swap"] = None
        return f"ln_swap({place}, {old}, {new})"

    def parallel_loop(self, node: Loop) -> None:
        self.plain_loop(node)

    # Memory

    def _declare_shared(self) -> None:
        """Declare all shared memory where the function begins: an array a place, or one arena."""
        if self.places and self.shared.is_dynamic:
            align = f"__align__({ALIGNMENT})"
            self.emit(f"extern __shared__ {align} unsigned char ln_shared[];")
        here = {n.storage.name: n.storage for n in self.program.nodes if isinstance(n, Allocate)}
        for place in self.places:
            first, *others = [here[b.name] for b in place.buffers]
            if self.shared.is_dynamic:
                offset = self.shared.offsets[place.buffers[0]]
                self._declare_view(first, self._arena_place(offset))
            elif place.static_bytes:
                self._declare_array(first, place.static_bytes // first.dtype.size)
            else:  # CUDA has no array without elements
                self._declare_view(first, "nullptr")
            for buffer in others:
                self._declare_view(buffer, self.names.of("buffer", first.name))

    def _arena_place(self, offset: Expr) -> str:
        if offset is ZERO:
            return "ln_shared"
        return f"(ln_shared + {self.format.format(offset, SUM)})"

    def _declare_array(self, buffer: Buffer, count: int) -> None:
        element = self.dialect.types[buffer.dtype.name]
        name = self.names.of("buffer", buffer.name)
        align = f"__shared__ __align__({ALIGNMENT})"
        self.emit(f"{align} {element} {name}[{count}];{self._shape(buffer)}")

    def _declare_view(self, buffer: Buffer, place: str) -> None:
        element = self.dialect.types[buffer.dtype.name]
        name = self.names.of("buffer", buffer.name)
        self.emit(f"{element} *const {name} = ({element} *){place};{self._shape(buffer)}")

    def _shape(self, buffer: Buffer) -> str:
        extents = ", ".join(map(str, buffer.shape))
        stages = f", {buffer.stages} stages" if buffer.stages > 1 else ""
        swizzle = ", swizzled" if buffer.swizzles else ""
        return f"  // {comment(f'{buffer.tensor}: [{extents}]{stages}{swizzle}')}"

    def visit_allocate(self, node: Allocate) -> None:
        buffer = node.storage
        if buffer.memory is Memory.SHARED:
            return
        count = static_size(buffer)
        if count is None:
            about = dict(self.program.about).get(buffer.tensor)
            raise LoweringError(
                buffer.tensor,
                f"its LOCAL buffer has the symbolic size {buffer.size}, "
                "while registers on target 'cuda' need a static one"
                + (f"; {about}" if about else ""),
                "inline it deeper (compute_at a consumer, or ln.propagate from one and then "
                "inline_most), compute it again (recompute=True), split its axis by a constant, "
                "or set its memory to SHARED or GLOBAL",
            )
        align = f"__align__({MAX_PIECE}) " if buffer in self.aligned else ""
        if not align and buffer in self.fragments:
            align = f"__align__({WORD}) "
        self.declare_local(buffer, count, align)

    # Several threads

    def _define_mask(self) -> None:
        """Name the lanes of this thread's warp, where a statement needs them."""
        if not self.usage.concerns_warps:
            return
        same = static_mask(self.program)
        if same is not None:
            self.mask = same
            return
        thread = thread_number(self.program, self.format.launch)
        value, function = mask_value(self.program, thread)
        if function:
            self.format.called[function] = None
        self.mask = self.names.of("launch", "warp_mask")
        self.emit(f"const unsigned int {self.mask} = {value};")

    def visit_tile(self, node: Tile) -> None:
        """Print the call of the function that executes an instruction on registers."""
        row = instructions[node.instruction]
        if not row.ptx:
            raise LoweringError(
                self.program.name,
                f"the instruction {row.name} has no PTX, which target 'cuda' needs",
                "give its row a ptx, or run the kernel on another target",
            )
        self.instructions[row.name] = row
        self.emit(self.tile_call(node, row))

    def visit_collective(self, node: Collective) -> None:
        self.is_collective = True
        super().visit_collective(node)
        self.is_collective = False

    def visit_barrier(self, node: Barrier) -> None:
        match node.scope:
            case "block":
                self.emit("__syncthreads();")
            case "warp":
                self.emit(f"__syncwarp({'' if self.mask == FULL_MASK else self.mask});")
            case _:
                self.format.called["ln_grid_barrier"] = None
                self.emit(f"ln_grid_barrier({GRID_COUNTER});")

    # Copies in flight

    def visit_commit(self, _: Commit) -> None:
        """Print what closes a group of copies."""
        self.format.called[COMMIT] = None
        self.emit(f"{COMMIT}();")

    def visit_wait(self, node: Wait) -> None:
        """Print what waits for groups of copies."""
        self.format.called[WAIT] = None
        self.emit(f"{WAIT}<{node.pending}>();")

    def visit_issue(self, node: Issue) -> None:
        """Print what begins copies."""
        self.issued = instructions.get(node.instruction)
        if self.issued is None or not self.issued.ptx:
            raise no_instruction(self.program.name, node.instruction)
        self.rows[function_name(self.issued)] = self.issued
        self.statements(node.body)
        self.issued = None

    def visit_if(self, node: If) -> None:
        copy = zero_filled(node) if self.issued is not None else None
        if copy is None:
            super().visit_if(node)
            return
        outer, test = self.taken, self.format.format(node.condition)
        self.taken = f"({outer}) && ({test})" if outer else test
        self.visit(copy)
        self.taken = outer

    def _issued_vector(self, node: Loop, row: Instruction) -> bool:
        """Print a vectorized loop as copies in flight, where all of its lanes are together."""
        plan = self.vectors.get(node)
        if not isinstance(plan, WideCopy):
            return False
        dtype = plan.store.storage.dtype
        total = node.extent * dtype.size if isinstance(node.extent, int) else 0
        width = widest(total, (plan.piece,))
        if not width:
            return False
        for start in range(0, total, width):
            places = [self._from(span, start // dtype.size) for span in (plan.target, plan.source)]
            self._copy(row, width, places, plan.store)
        return True

    def _from(self, span: Span, lane: int) -> str:
        """Return the address of a lane."""
        element = self.format.element(span.buffer, span.index, flat=span.flat)
        return f"&{element}" + (f" + {lane}" if lane else "")

    def _copy(self, row: Instruction, width: int, places: Sequence[str], node: Store) -> None:
        taken = f"{self.taken} ? {width} : 0" if self.taken else f"{width}"
        call = f"{function_name(row)}<{width}>({', '.join(places)}, {taken})"
        self.emit(f"{call};  // {comment(node.tensor)}")

    def visit_shuffle(self, node: Shuffle) -> None:
        """Print what a thread gets of another thread of its warp."""
        dtype = node.var.dtype
        passed = cast(node.value, dtypes.int32 if dtype.is_bool else dtype)
        value, offset = self.format.format(passed), self.format.format(node.offset)
        call = f"{SHUFFLES[node.mode]}({self.mask}, {value}, {offset})"
        self.define(node.var, f"{call} != 0" if dtype.is_bool else call)

    def visit_arrive(self, node: Arrive) -> None:
        """Print how a block counts itself and learns whether it is the last one."""
        self.format.called["ln_arrive"] = None
        counter = self.names.of("buffer", node.counter.name)
        offset = self.format.offset(node.counter, node.index)
        place = counter if offset == "0" else f"{counter} + {offset}"
        self.define(node.var, f"ln_arrive({place}, {self.format.format(node.count)})")


def declared(printers: Sequence[_CudaPrinter]) -> Iterator[str]:
    """Yield what kernels need before them, each once; they have been printed."""
    used: set[DType] = set()
    called: dict[str, None] = {}
    rows: dict[str, Instruction] = {}
    for printer in printers:
        program = printer.program
        used |= {p.dtype for p in program.params}
        used |= {n.storage.dtype for n in program.nodes if isinstance(n, Allocate)}
        called.update(printer.format.called)
        rows |= printer.rows
    if dtypes.float16 in used or any("half" in name for name in called):
        yield "#include <cuda_fp16.h>"
    if dtypes.bfloat16 in used or any("bf" in name for name in called):
        yield "#include <cuda_bf16.h>"
    yield from float8_types(used, called.keys())
    yield f"typedef {printers[0].index_type} idx_t;"
    yield from device_functions(called.keys())
    yield from map(copy_function, rows.values())
    tiles = {name: row for printer in printers for name, row in printer.instructions.items()}
    yield from map(device_function, tiles.values())
    if COMMIT in called or WAIT in called:
        yield GROUPS
    yield ""


# Analyses of a program for CUDA text: register arrays, memory through which threads exchange.


class Usage:
    """What the statements of a program touch, found in one pass."""

    def __init__(self, program: Program) -> None:
        self.nodes = program.nodes
        self.loads = {x for n in self.nodes for e in expressions(n) for x in loads(e)}
        self.stores = [n for n in self.nodes if isinstance(n, Store)]

    def register_indices(self) -> frozenset[Index]:
        """Return the indices that address arrays of registers, which have none at run time."""
        found: set[Index] = set()
        for node in self.stores:
            if _is_register_array(node.storage):
                found.update(*map(free_indices, node.index))
        for load in self.loads:
            if _is_register_array(load.buffer):
                found |= free_indices(load)
        return frozenset(found)

    def exchanged(self) -> frozenset[Buffer]:
        """Return the GLOBAL buffers through which threads may pass values to each other.

        `__restrict__` would promise the compiler that a load after a barrier gives what the same
        load gave before it.
        """
        if not any(is_sync(n) for n in self.nodes):
            return frozenset()
        stored = {n.storage for n in self.stores}
        counters = {n.counter for n in self.nodes if isinstance(n, Arrive)}
        return frozenset((stored & {load.buffer for load in self.loads}) | counters)

    @property
    def concerns_warps(self) -> bool:
        """Whether a statement is reached by the threads of a warp together, and needs no others."""
        return any(
            isinstance(n, Shuffle) or (isinstance(n, Barrier) and n.scope == "warp")
            for n in self.nodes
        )


def _is_register_array(buffer: Buffer) -> bool:
    return buffer.memory is Memory.LOCAL and buffer.size is not ONE


def unrolled_trips(loop: Loop) -> float:
    """Return how often the innermost body of static loops stands there once they are unrolled."""
    if not isinstance(loop.extent, int):
        return math.inf
    loops = [n for n in loop.body if isinstance(n, Loop) and isinstance(n.extent, int)]
    return loop.extent * max(map(unrolled_trips, loops), default=1)


def folds_slots(loop: Loop) -> bool:
    """Whether `loop`, of a collective, folds as many slots as there are, each by one statement."""
    return not isinstance(loop.extent, int) and [type(n) for n in loop.body] == [Store]


# Copies in flight in CUDA text: a device function for each width, and groups of them.
#
# A copy and the store of zeros where its test fails are one call, which takes no byte of its source
# there::
#
#     ln_cp_async<16>(&T2[i * 4], &x[i * 4], i < N ? 16 : 0);  // T2
#     ln_commit();
#     ln_wait<1>();


WIDTHS = (16, 8, 4)
"""Bytes of one copy, the widest first."""

COMMIT, WAIT = "ln_commit", "ln_wait"

GROUPS = f"""\
static __device__ __forceinline__ void {COMMIT}() {{
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}}
template <int PENDING>
static __device__ __forceinline__ void {WAIT}() {{
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
#endif
}}"""
"""What closes a group of copies, and what waits until at most so many groups are unfinished."""


def copy_function(row: Instruction) -> str:
    """Return the device function that begins one copy: `taken` bytes, then zeros."""
    target = row.result
    (source,) = [role for role in row.operands if role != target]
    numbers = {target: "%0", source: "%1", "bytes": "%2", "taken": "%3"}
    return f"""\
template <int BYTES>
static __device__ __forceinline__ void {function_name(row)}(
    void *to, const void *from, int taken) {{
#if defined(__CUDA_ARCH__)
  asm volatile("{row.ptx.format_map(numbers)}"
      :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(__cvta_generic_to_global(from)),
         "n"(BYTES), "r"(taken) : "memory");
#else
  for (int i = 0; i < BYTES; ++i) ((char *)to)[i] = i < taken ? ((const char *)from)[i] : 0;
#endif
}}"""


def no_instruction(kernel: str, name: str) -> LoweringError:
    """Return the error of a copy by an instruction that has no PTX, or of no row."""
    return LoweringError(
        kernel,
        f"the instruction '{name}' has no ptx, so that no CUDA text can be printed",
        "give its row one, or run on 'interpret' and 'c'",
    )


def zero_filled(node: If) -> Stmt | None:
    """Return what a test copies, where its other branch stores zeros to the same elements."""
    if len(node.body) != 1 or len(node.orelse) != 1:
        return None
    copy, fill = node.body[0], node.orelse[0]
    return copy if _are_alike(copy, fill) else None


def _are_alike(copy: Stmt, fill: Stmt) -> bool:
    if isinstance(copy, Loop) and isinstance(fill, Loop):
        same = copy.var is fill.var and len(copy.body) == len(fill.body) == 1
        return same and _are_alike(copy.body[0], fill.body[0])
    if isinstance(copy, Store) and isinstance(fill, Store):
        place = copy.storage is fill.storage and copy.index == fill.index
        return place and copy.flat is fill.flat and is_zero(fill.value)
    return False


def widest(bytes_: int, pieces: Iterable[int]) -> int:
    """Return the widest copy that so many bytes are made of, in pieces of memory; 0 for none."""
    most = min([bytes_, *pieces])
    return next((width for width in WIDTHS if width <= most and bytes_ % width == 0), 0)


# Device functions in CUDA text that execute one instruction of the table by inline PTX.


WORD = 4
"""Bytes of a register, in which the elements of an operand lie together."""


def device_function(row: Instruction) -> str:
    """Return the definition of the device function that executes a row of scope "warp".

    Its parameters are the operands in the order of the row: the registers of the calling lane, as
    one piece of memory aligned to 4 bytes, or the address of the row of shared memory that the lane
    names. Registers are handed to PTX by words of 32 bits, float32 results as floats.
    """
    written = row.result
    parameters, lines, numbers = [], [], dict[str, str]()
    constraints: dict[bool, list[str]] = {True: [], False: []}
    order = [written, *[role for role in row.operands if role != written]]
    count = 0
    for role in order:
        operand = row.operands[role]
        is_result = role == written
        if operand.fragment is None:
            lines.append(f"  const unsigned {role} = (unsigned)__cvta_generic_to_shared({role}_);")
            constraints[False].append(f'"r"({role})')
            numbers[role] = f"%{count}"
            count += 1
            continue
        words = word_count(operand, operand.fragment)
        kind = "float" if is_result and operand.dtype is dtypes.float32 else "unsigned"
        const = "" if is_result else "const "
        lines.append(f"  {const}{kind}* {role} = ({const}{kind}*){role}_;")
        letter = ("+" if is_result and not row.is_move else "=" if is_result else "") + kind[0]
        letter = letter.replace("u", "r")
        constraints[is_result] += [f'"{letter}"({role}[{n}])' for n in range(words)]
        numbers[role] = "{" + ", ".join([f"%{count + n}" for n in range(words)]) + "}"
        count += words
    for role in row.operands:
        parameters.append(f"{'' if role == written else 'const '}void* {role}_")
    reads_memory = any(o.memory is not Memory.WARP for o in row.operands.values())
    effects = ' : "memory"' if reads_memory else ""
    text = row.ptx.format_map(numbers)
    return "\n".join([
        f"static __device__ __forceinline__ void {function_name(row)}({', '.join(parameters)}) {{",
        *lines,
        f'  asm {"volatile" if reads_memory else ""}("{text}"'.replace("asm (", "asm("),
        f"      : {', '.join(constraints[True])}",
        f"      : {', '.join(constraints[False])}{effects});",
        "}",
    ])  # fmt: skip


def word_count(operand: Operand, fragment: Fragment) -> int:
    """Return how many registers of 32 bits a lane has of an operand."""
    return fragment.registers * operand.dtype.size // WORD
