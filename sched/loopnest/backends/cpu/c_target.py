"""The target "c": printed C, built by the system's compiler, blocks in parallel by OpenMP."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from struct import Struct
from typing import Any

import numpy as np

from loopnest import kir
from loopnest.backends.cpu import c_compiler
from loopnest.backends.cpu.c_printer import c_prelude, entry_name, print_c, print_entry
from loopnest.backends.cpu.data_checks import OUTSIDE
from loopnest.backends.cpu.fission.thread_loop_fission import slot_sizes
from loopnest.backends.cpu.host_call import (
    HostCall,
    LaunchTable,
    Packer,
    TableEntry,
    reads_arrays,
    words_of,
)
from loopnest.backends.cpu.machine_probe import machine, vector_flags
from loopnest.backends.cpu.openmp import Function, Runtime, runtime_of
from loopnest.backends.ready_call import no_memory
from loopnest.launch.index_width import INT32
from loopnest.launch.launch_plan import LaunchPlan
from loopnest.launch.new_arrays import address_of
from loopnest.launch.target_interface import (
    LEVEL,
    SWITCH,
    THREADS,
    Array,
    ArrayForm,
    DataOutside,
    Executable,
    IdleOption,
    TargetOption,
    TargetRow,
    TargetText,
)
from loopnest.scalar.arguments import size_value
from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import Expr

OPTIONS: Mapping[str, TargetOption] = {
    "threads": THREADS,
    "fast_math": SWITCH,
    "optimize": LEVEL,
    "check_indices": SWITCH,
}

_FAST_MATH_CHANGES = (
    'on "c" it computes erf and tanh of float32 by shorter functions, divides by reciprocals where '
    "these are shared or constant, and takes -0.0 for 0.0, and nothing in this kernel is faster so"
)
_PARALLEL = "#pragma omp parallel"
_PARALLELIZE = "parallelize one: axis.parallelize(ln.ParallelType.cpu_parallel)"

# At -O3 gcc takes a second for 28 loops in each other and minutes for 40, clang a quarter of a
# minute; at -O1 both take seconds. What is scheduled for speed has not nearly so many.
_DEEP = 16

_FORMATS: Mapping[str, str] = {
    "bool": "?7x", "int8": "b7x", "uint8": "B7x", "int16": "h6x", "uint16": "H6x", "int32": "i4x",
    "uint32": "I4x", "int64": "q", "float8_e4m3fn": "B7x", "float8_e5m2": "B7x", "float16": "H6x",
    "bfloat16": "H6x", "float32": "f4x", "float64": "d",
}  # fmt: skip
"""How each type lies in a word of 64 bits; a narrow float as its bits."""


class CompiledC(Executable):
    """A program built as C, for each index width when it is first needed.

    The words of a launch are the addresses of arrays, in the order of their parameters, then
    scalars, then sizes.

    Args:
        program: the kernel.
        threads: how many threads a launch may use, None for OpenMP's choice.
        fast_math, optimize: see `c_compiler.compile_c`.
        built: entries that exist already, by index width.
        runtime: the OpenMP runtime of `built`, if it has one.
        check_indices: whether launches look at indices that nothing keeps inside of their axis.
    """

    checks_data = True

    def __init__(
        self,
        program: kir.Program,
        threads: int | None = None,
        fast_math: bool = False,
        optimize: int = 3,
        built: Mapping[int, Function] | None = None,
        runtime: Runtime | None = None,
        check_indices: bool = True,
    ) -> None:
        self.program = program if check_indices else replace(program, index_checks=())
        self._leaves_out_nothing = not check_indices and not program.index_checks
        self.threads = threads
        self.fast_math = fast_math
        self.optimize = optimize
        self.built: dict[int, Function] = dict(built or {})
        self.runtime = runtime
        """The OpenMP runtime of what was built."""
        order = {"input": 0, "output": 0, "workspace": 0, "scalar": 1, "size": 2}
        places = sorted(range(len(program.params)), key=lambda n: order[program.params[n].kind])
        self._slots = [places.index(n) for n in range(len(places))]
        scalars = [p.dtype for p in program.params if p.kind == "scalar"]
        self._arrays = sum([p.buffer is not None for p in program.params])
        self._scalars = len(scalars)
        self._pack = _packer(scalars)
        self._tables: dict[int, LaunchTable] = {}

    def entry(self, bits: int) -> Function:
        """Return the entry of the build whose indices have `bits`, built now if need be.

        Raises:
            CompileError: the compiler is missing or refuses the source.
        """
        found = self.built.get(bits)
        if found is None:
            found = self.built[bits] = self._build(bits)
        return found

    def _build(self, bits: int) -> Function:
        own = _renamed(self.program)
        library = c_compiler.compile_c(
            _source(own, bits), fast_math=self.fast_math, **self._code_options()
        )
        self.runtime = runtime_of(library)
        return _entry(library, own)

    def _code_options(self) -> dict[str, Any]:
        return code_options([self.program], self.optimize)

    def idle_options(self) -> Iterator[IdleOption]:
        """Yield the options that change nothing of this program."""
        source = _source(_renamed(self.program), 32)
        if self.fast_math:
            options = self._code_options()
            if c_compiler.machine_code(
                source, fast_math=False, **options
            ) == c_compiler.machine_code(source, fast_math=True, **options):
                yield IdleOption("fast_math=True", "the machine code is the same without it",
                                 _FAST_MATH_CHANGES)  # fmt: skip
        if (self.threads or 1) > 1 and _PARALLEL not in source:
            yield IdleOption(f"threads={self.threads}", "the kernel runs on one thread",
                             "none of its loops is parallel", _PARALLELIZE)  # fmt: skip
        if self._leaves_out_nothing:
            yield IdleOption("check_indices=False", "it leaves nothing out",
                             "no launch checks an index of this kernel")  # fmt: skip

    def index_bits(self, plan: LaunchPlan) -> int:
        """Return the width that indices need, those into what is kept for each thread too."""
        large = any(size_value(size, plan.sizes) > INT32 for size in self.slot_sizes)
        return 64 if large else plan.index_bits

    @cached_property
    def slot_sizes(self) -> tuple[Expr, ...]:
        """The elements of the arrays in which C keeps what each thread owns."""
        return slot_sizes(self.program)

    def _table(self, plan: LaunchPlan) -> LaunchTable:
        bits = self.index_bits(plan)
        if bits not in self._tables:
            launch = TableEntry(self.entry(bits), self._slots)
            self._tables[bits] = LaunchTable([launch], self.threads, self.runtime)
        return self._tables[bits]

    def run(self, arrays: Sequence[Array], scalars: Sequence[Any], plan: LaunchPlan) -> None:
        """Run one launch."""
        front = bytes(words_of([*map(address_of, arrays)]))
        sizes = bytes(words_of([*plan.sizes.values()]))
        status = self._table(plan).run(front + self._pack(scalars) + sizes)
        if status >= OUTSIDE:
            raise DataOutside(status - OUTSIDE)
        if status:
            raise no_memory(f"{self.program.name}(...)")

    def prepared(
        self, plan: LaunchPlan, inputs: Sequence[ArrayForm], made: Sequence[ArrayForm]
    ) -> HostCall | None:
        """Return a call of one plan; None where a launch does more than to call a function."""
        if plan.is_empty or not reads_arrays():
            return None
        call = HostCall(self._table(plan), inputs, made, self._scalars, self._pack)
        call.attach(words_of([*[0] * (self._arrays + self._scalars), *plan.sizes.values()]))
        return call


def code_options(programs: Sequence[kir.Program], optimize: int = 3) -> dict[str, Any]:
    """Return the level and the flags of the C compiler for programs, on this machine."""
    return {"optimize": _bounded(optimize, programs), "flags": vector_flags(machine())}


def _source(program: kir.Program, bits: int) -> str:
    return print_c(program, index_bits=bits) + print_entry(program)


def _packer(dtypes: Sequence[DType]) -> Packer:
    """Return what makes words of scalars of these types, a word each."""
    pack = Struct("=" + "".join([_FORMATS[dtype.name] for dtype in dtypes])).pack
    narrow = {n: dtype for n, dtype in enumerate(dtypes) if dtype.is_narrow}
    if not narrow:
        return lambda values: pack(*values)
    return lambda values: pack(*[_bits(v, narrow.get(n)) for n, v in enumerate(values)])


def _renamed(program: kir.Program, number: int = 0) -> kir.Program:
    """Return a program whose function has a name that no library has.

    An entry calls it by name, and the linker would prefer that of a library: libc has a ``step``.
    """
    return replace(program, name=f"{program.name}_kernel_{number}")


def _entry(library: c_compiler.Library, program: kir.Program) -> Function:
    return library.function(entry_name(program), restype=ctypes.c_int)


def _bits(value: Any, dtype: DType | None) -> Any:
    """Return a narrow float as its bits; any other value as it is."""
    return value if dtype is None else int(np.array(value, dtype.numpy).view(f"u{dtype.size}"))


def _bounded(optimize: int, programs: Sequence[kir.Program]) -> int:
    """Return a level at which the compiler ends: what it does to nested loops multiplies."""
    loops = (
        sum(isinstance(above, kir.Loop) for above in ancestors)
        for program in programs
        for _, ancestors in kir.walk(program.body)
    )
    return min(optimize, 1) if max(loops, default=0) > _DEEP else optimize


def build_together(programs: Sequence[kir.Program], optimize: int) -> list[CompiledC]:
    """Return programs built in one run of the compiler, with 32-bit indices.

    Functions of one name are told apart by a number; widths that a launch needs beside 32 bits are
    built alone, later.
    """
    renamed = [_renamed(program, number) for number, program in enumerate(programs)]
    texts = [print_c(p, index_bits=32, prelude=False) + print_entry(p) for p in renamed]
    source = "\n".join([c_prelude(32), *texts])
    library = c_compiler.compile_c(source, **code_options(renamed, optimize))
    runtime = runtime_of(library)
    result = []
    for program, own in zip(programs, renamed, strict=True):
        built = {32: _entry(library, own)}
        result.append(CompiledC(program, optimize=optimize, built=built, runtime=runtime))
    return result


def from_library(data: bytes, program: kir.Program, names: Mapping[int, str]) -> CompiledC:
    """Return a program whose functions a library has, built before.

    Args:
        data: the library.
        program: the kernel.
        names: of the functions that `print_entry` printed, by the width of indices.

    Raises:
        CompileError: it does not load, or lacks a function.
    """
    library = c_compiler.load_library(data)
    built = {bits: library.function(name, restype=ctypes.c_int) for bits, name in names.items()}
    return CompiledC(program, built=built, runtime=runtime_of(library))


def _build(program: kir.Program, **options: Any) -> CompiledC:
    built = CompiledC(program, **options)
    built.entry(32)
    return built


TARGET = TargetRow(
    "c",
    OPTIONS,
    _build,
    text=TargetText("C", "c", print_c, slot_sizes),
    obstacle=c_compiler.obstacle,
    together=build_together,
)
