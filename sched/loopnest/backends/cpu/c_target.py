"""The target "c": printed C, built by the system's compiler, blocks in parallel by OpenMP."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from loopnest import kir
from loopnest.backends.cpu.data_checks import OUTSIDE
from loopnest.backends.cpu.openmp import Function, Runtime, runtime_of, threads_are_lost
from loopnest.errors import LaunchError
from loopnest.launch.index_width import INT32
from loopnest.launch.launch_plan import LaunchPlan
from loopnest.launch.target_interface import (
    LEVEL,
    SWITCH,
    THREADS,
    Array,
    DataOutside,
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

# At -O3 gcc takes a second for 28 loops in each other and minutes for 40, clang a quarter of a
# minute; at -O1 both take seconds. What is scheduled for speed has not nearly so many.
_DEEP = 16

_SCALARS: Mapping[str, Any] = {
    "bool": ctypes.c_bool, "int8": ctypes.c_int8, "uint8": ctypes.c_uint8, "int16": ctypes.c_int16,
    "uint16": ctypes.c_uint16,
    "int32": ctypes.c_int32, "uint32": ctypes.c_uint32, "int64": ctypes.c_int64,
    "float8_e4m3fn": ctypes.c_uint8, "float8_e5m2": ctypes.c_uint8, "float16": ctypes.c_uint16,
    "bfloat16": ctypes.c_uint16, "float32": ctypes.c_float, "float64": ctypes.c_double,
    "index": ctypes.c_int64,
}  # fmt: skip


class CompiledC:
    """A program built as C, for each index width when it is first needed.

    Args:
        program: the kernel.
        threads: how many threads a launch may use, None for OpenMP's choice.
        fast_math, optimize: see `c_compiler.compile_c`.
        built: functions that exist already, by index width.
        openmp: the runtime of `built`, if it has one.
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
        openmp: Runtime | None = None,
        check_indices: bool = True,
    ) -> None:
        self.program = program if check_indices else replace(program, index_checks=())
        self.threads = threads
        self.fast_math = fast_math
        self.optimize = optimize
        self.built: dict[int, Function] = dict(built or {})
        kinds = [p.kind for p in program.params if p.kind != "size"]
        self.workspaces = kinds.count("workspace")
        self.sizes = [p.name for p in program.params if p.kind == "size"]
        scalars = [p.dtype for p in program.params if p.kind == "scalar"]
        self.narrow = {i: d for i, d in enumerate(scalars) if d.is_narrow}
        self._openmp = openmp

    def function(self, bits: int) -> Function:
        """Return the C function whose indices have `bits`, built now if need be.

        Raises:
            CompileError: the compiler is missing or refuses the source.
        """
        found = self.built.get(bits)
        if found is None:
            found = self.built[bits] = self._build(bits)
        return found

    def _build(self, bits: int) -> Function:
        from loopnest.backends.clike.identifiers import symbol
        from loopnest.backends.cpu.c_compiler import compile_c
        from loopnest.backends.cpu.c_printer import print_c
        from loopnest.backends.cpu.machine_probe import machine, vector_flags

        source = print_c(self.program, index_bits=bits)
        optimize = _bounded(self.optimize, [self.program])
        flags = vector_flags(machine())
        library = compile_c(source, optimize=optimize, fast_math=self.fast_math, flags=flags)
        self._openmp = runtime_of(library)
        return library.function(symbol(self.program.name), argtypes(self.program), ctypes.c_int)

    def index_bits(self, plan: LaunchPlan) -> int:
        """Return the width that indices need, those into what is kept for each thread too."""
        large = any(size_value(size, plan.sizes) > INT32 for size in self.slot_sizes)
        return 64 if large else plan.index_bits

    @cached_property
    def slot_sizes(self) -> tuple[Expr, ...]:
        """The elements of the arrays in which C keeps what each thread owns."""
        from loopnest.backends.cpu.fission.thread_loop_fission import slot_sizes

        return slot_sizes(self.program)

    def run(self, arrays: Sequence[Array], scalars: Sequence[Any], plan: LaunchPlan) -> None:
        """Run one launch."""
        function = self.function(self.index_bits(plan))
        if self.narrow:
            scalars = [_bits(v, self.narrow.get(i)) for i, v in enumerate(scalars)]
        places = [a.ctypes.data for a in arrays]
        split = len(places) - self.workspaces
        arguments = (*places[:split], *scalars, *plan.sizes.values(), *places[split:])
        threads = 1 if threads_are_lost() else self.threads
        if self._openmp is None or threads is None:
            status = function(*arguments)
        else:
            status = self._openmp.limited(threads, function, arguments)
        if status >= OUTSIDE:
            raise DataOutside(status - OUTSIDE)
        if status:
            raise LaunchError(
                f"{self.program.name}(...)",
                "no memory is left for its local buffers",
                "pass smaller arrays, or fewer threads",
            )


def argtypes(program: kir.Program) -> list[Any]:
    """Return the ctypes types of a kernel's parameters."""
    return [
        ctypes.c_void_p if p.buffer is not None else _SCALARS[p.dtype.name] for p in program.params
    ]


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
    from loopnest.backends.clike.identifiers import symbol
    from loopnest.backends.cpu.c_compiler import compile_c
    from loopnest.backends.cpu.c_printer import c_prelude, print_c
    from loopnest.backends.cpu.machine_probe import machine, vector_flags

    renamed = [replace(p, name=f"{p.name}_{number}") for number, p in enumerate(programs)]
    texts = [print_c(p, index_bits=32, prelude=False) for p in renamed]
    source = "\n".join([c_prelude(32), *texts])
    flags = vector_flags(machine())
    library = compile_c(source, optimize=_bounded(optimize, renamed), flags=flags)
    openmp = runtime_of(library)
    result = []
    for program, own in zip(programs, renamed, strict=True):
        function = library.function(symbol(own.name), argtypes(program), ctypes.c_int)
        result.append(CompiledC(program, optimize=optimize, built={32: function}, openmp=openmp))
    return result


def _obstacle() -> str | None:
    from loopnest.backends.cpu.c_compiler import obstacle

    return obstacle()


def _build(program: kir.Program, **options: Any) -> CompiledC:
    built = CompiledC(program, **options)
    built.function(32)
    return built


def _print(program: kir.Program, index_bits: int) -> str:
    from loopnest.backends.cpu.c_printer import print_c

    return print_c(program, index_bits)


def _sizes(program: kir.Program) -> tuple[Expr, ...]:
    from loopnest.backends.cpu.fission.thread_loop_fission import slot_sizes

    return slot_sizes(program)


TARGET = TargetRow(
    "c",
    OPTIONS,
    _build,
    text=TargetText("C", "c", _print, _sizes),
    obstacle=_obstacle,
    together=build_together,
)
