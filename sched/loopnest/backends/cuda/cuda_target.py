"""The target "cuda": printed CUDA C++, built by NVRTC for this machine's GPU, and its launches."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loopnest import kir
from loopnest.backends.cuda.driver.device_array import DeviceMemory
from loopnest.backends.cuda.driver.gpu_driver import (
    PER_THREAD,
    Address,
    Driver,
    DriverLaunch,
    Stream,
)
from loopnest.base.errors import LaunchError
from loopnest.kir.buffers import Buffer
from loopnest.kir.vector_access import alignments, wide_accesses
from loopnest.launch.launch_plan import LaunchConfig, LaunchPlan, Planner
from loopnest.launch.target_interface import (
    COUNT,
    REGISTERS,
    SWITCH,
    Array,
    Executable,
    IdleOption,
    TargetOption,
    TargetText,
)
from loopnest.scalar.arguments import size_value
from loopnest.scalar.dtypes import DType

if TYPE_CHECKING:
    from loopnest.backends.cuda.toolchain.nvrtc import Compiled

OPTIONS: Mapping[str, TargetOption] = {
    "fast_math": SWITCH,
    "min_blocks": COUNT,
    "max_registers": REGISTERS,
    "check_indices": SWITCH,
}
"""`check_indices` is taken for the sake of "auto": here no launch looks at indices."""

ALIGNMENT = 256
"""Of each piece of workspace, in bytes."""

MAX_SPACES = 16
"""Workspaces of other sizes and streams are kept up to this number; then all are made anew."""

_SCALARS: Mapping[str, Any] = {
    "bool": ctypes.c_bool, "int8": ctypes.c_int8, "uint8": ctypes.c_uint8, "int16": ctypes.c_int16,
    "uint16": ctypes.c_uint16,
    "int32": ctypes.c_int32, "uint32": ctypes.c_uint32, "int64": ctypes.c_int64,
    "float8_e4m3fn": ctypes.c_uint8, "float8_e5m2": ctypes.c_uint8, "float16": ctypes.c_uint16,
    "bfloat16": ctypes.c_uint16, "float32": ctypes.c_float, "float64": ctypes.c_double,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Workspace:
    """Memory of a kernel's own: where each workspace parameter lies, and the grid's counter."""

    memory: DeviceMemory
    places: tuple[Address, ...]
    counter: Address


class CompiledCuda(Executable):
    """A program built for a GPU, for each index width when it is first needed.

    Args:
        program: the kernel.
        driver: of the GPU.
        fast_math: approximate division, sqrt and transcendental functions; flush denormals.
        min_blocks: blocks that a multiprocessor shall hold at least; the compiler sees to it.
        max_registers: limit per thread.

    Raises:
        CompileError: NVRTC is missing or refuses the source.
        LoweringError: the program has no CUDA text.
    """

    def __init__(
        self,
        program: kir.Program,
        driver: Driver,
        fast_math: bool = False,
        min_blocks: int | None = None,
        max_registers: int | None = None,
        check_indices: bool = True,
    ) -> None:
        self.program = program
        self.driver = driver
        self.fast_math = fast_math
        self.min_blocks = min_blocks
        self.max_registers = max_registers
        self.check_indices = check_indices
        self.planner = Planner(program)
        # A walk of the nest: too slow for each launch.
        self.cooperative = tuple([part.is_cooperative for part in program.launches])
        self.written = {o.buffer for o in program.outputs}
        self.alignments = self._alignments()
        self.codes = {32: self._compile(32)}
        self.functions: dict[int, tuple[Any, ...]] = {}
        self.spaces: dict[object, _Workspace] = {}
        self._allowed: dict[object, int] = {}
        self._resident: dict[object, int] = {}

    def _alignments(self) -> tuple[tuple[str, int], ...]:
        """Return name and alignment in bytes of each input and output, in the order of both."""
        found = alignments(wide_accesses(self.program))
        params = [p for p in self.program.params if p.kind in ("input", "output")]
        return tuple([(p.name, _of(found, p.buffer)) for p in params])

    # Building

    def _compile(self, bits: int) -> bytes:
        built = self._built(bits, self.fast_math)
        return built.ptx.encode() if built.target.virtual else built.cubin

    def _built(self, bits: int, fast_math: bool) -> Compiled:
        from loopnest.backends.cuda.printing.cuda_printer import print_cuda
        from loopnest.backends.cuda.toolchain.nvrtc import check_driver, compile_cuda, loadable_arch

        device = self.driver.device
        target = loadable_arch(device.capability)
        check_driver(target, device.cuda)
        source = print_cuda(self.program, bits, self.min_blocks)
        return compile_cuda(
            source, str(target), fast_math=fast_math, max_registers=self.max_registers
        )

    def idle_options(self) -> Iterator[IdleOption]:
        """Yield the options that change nothing of this program."""
        if self.fast_math and self._built(32, False).ptx == self._built(32, True).ptx:
            why = 'on "cuda" it changes arithmetic of float32 and divisions, and here are none'
            yield IdleOption("fast_math=True", "the machine code is the same without it", why)
        if not self.check_indices:
            why = 'on "cuda" no launch looks at indices'
            yield IdleOption("check_indices=False", "it leaves nothing out", why)

    def launched(self, bits: int) -> tuple[Any, ...]:
        """Return the kernel of each launch, with indices of `bits`, built and loaded if need be."""
        from loopnest.backends.clike.identifiers import symbol
        from loopnest.backends.clike.narrow_counts import launch_names

        found = self.functions.get(bits)
        if found is None:
            if bits not in self.codes:
                self.codes[bits] = self._compile(bits)
            names = [symbol(name) for name in launch_names(self.program)]
            found = tuple([self.driver.load(self.codes[bits], name) for name in names])
            self.functions[bits] = found
        return found

    # Launching; all inside ``with driver.current()``

    def configure(self, plan: LaunchPlan, subject: str) -> tuple[DriverLaunch, ...]:
        """Return the configuration of each launch, checked against this GPU.

        Raises:
            LaunchError: too much shared memory, or too many blocks that wait for each other.
        """
        parts = plan.config.launches
        return tuple([self._configured(n, part, plan, subject) for n, part in enumerate(parts)])

    def _configured(
        self, number: int, config: LaunchConfig, plan: LaunchPlan, subject: str
    ) -> DriverLaunch:
        device, bits = self.driver.device, plan.index_bits
        if config.shared_bytes > device.shared_bytes:
            where = f" on {device.name}"
            raise self.planner.too_much_shared(plan.sizes, device.shared_bytes, subject, where)
        dynamic = config.shared_bytes if self.planner.shared[number].is_dynamic else 0
        launch = DriverLaunch(config.grid, config.block, dynamic, self.cooperative[number])
        if dynamic > self._allowed.get((bits, number), 0):
            self.driver.allow_shared(self.launched(bits)[number], dynamic)
            self._allowed[bits, number] = dynamic
        if launch.cooperative:
            self._check_residency(number, launch, plan, subject)
        return launch

    def _check_residency(
        self, number: int, launch: DriverLaunch, plan: LaunchPlan, subject: str
    ) -> None:
        device = self.driver.device
        if not device.cooperative:
            found = f"its blocks wait for each other, which {device.name} cannot do"
            raise LaunchError(subject, found, "reduce over blocks without a barrier of the grid")
        x, y, z = launch.block
        shape = (x * y * z, launch.dynamic_bytes)
        key = (plan.index_bits, number, *shape)
        if key not in self._resident:
            function = self.launched(plan.index_bits)[number]
            self._resident[key] = self.driver.resident_blocks(function, *shape)
        each = self._resident[key]
        blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
        if blocks > each * device.multiprocessors:
            raise LaunchError(
                subject,
                f"its {blocks} blocks wait for each other, so all must run at once; "
                f"{device.name} holds {each} on each of {device.multiprocessors} multiprocessors",
                f"use at most {each * device.multiprocessors} blocks",
            )

    def launch(
        self,
        launches: Sequence[DriverLaunch],
        places: Sequence[Address],
        scalars: Sequence[Any],
        plan: LaunchPlan,
        stream: Stream,
    ) -> None:
        """Enqueue the launches, one after the other.

        Args:
            launches: as `configure` gave them.
            places: the addresses of inputs and outputs, in the order of the parameters.
            scalars: the values of the scalar parameters, in their order.
            plan: the launch.
            stream: where.
        """
        space = self._workspace(plan, stream)
        arguments = list(self._arguments(places, scalars, plan, space))
        functions = self.launched(plan.index_bits)
        for function, launch in zip(functions, launches, strict=True):
            own = (ctypes.c_void_p(space.counter),) if launch.cooperative else ()
            self.driver.launch(function, launch, [*arguments, *own], stream)

    def _arguments(
        self, places: Sequence[Address], scalars: Sequence[Any], plan: LaunchPlan, space: _Workspace
    ) -> Iterator[Any]:
        """Yield the arguments in the order of the parameters."""
        arrays, values, spaces = iter(places), iter(scalars), iter(space.places)
        for param in self.program.params:
            match param.kind:
                case "input" | "output":
                    yield ctypes.c_void_p(next(arrays))
                case "workspace":
                    yield ctypes.c_void_p(next(spaces))
                case "scalar":
                    yield scalar_argument(next(values), param.dtype)
                case _:
                    yield ctypes.c_int64(plan.sizes[param.name])

    def run(
        self,
        arrays: Sequence[Array],
        scalars: Sequence[Any],
        plan: LaunchPlan,
        stream: Stream = 0,
        subject: str = "",
    ) -> None:
        """Run one launch on arrays of the host: copied to the GPU, and back where written.

        Raises:
            LaunchError: as `configure`; nothing ran.
        """
        with self.driver.current():
            launches = self.configure(plan, subject or f"{self.program.name}(...)")
            params = [p for p in self.program.params if p.kind in ("input", "output")]
            held = [DeviceMemory(self.driver, array.nbytes, stream) for array in arrays]
            for param, memory, array in zip(params, held, arrays, strict=True):
                if param.kind == "input":
                    self.driver.upload(memory.address, array, stream)
            self.launch(launches, [memory.address for memory in held], scalars, plan, stream)
            for param, memory, array in zip(params, held, arrays, strict=True):
                if param.buffer in self.written:
                    self.driver.download(array, memory.address, stream)

    def _workspace(self, plan: LaunchPlan, stream: Stream) -> _Workspace:
        """Return the workspace of launches of these sizes on this stream; counters are 0.

        Launches on one stream follow each other, so they can share it: each leaves its counters at
        0, and the grid's as its next launch takes it.
        """
        thread = threading.get_ident() if stream == PER_THREAD else 0
        key = (*plan.sizes.values(), stream, thread)
        found = self.spaces.get(key)
        if found is None:
            if len(self.spaces) >= MAX_SPACES:
                self.spaces.clear()
            found = self.spaces[key] = self._allocate(plan, stream)
        return found

    def _allocate(self, plan: LaunchPlan, stream: Stream) -> _Workspace:
        buffers = [p.buffer for p in self.program.params if p.kind == "workspace"]
        offsets, cleared, end = [], [], 0
        for buffer in buffers:
            assert buffer is not None
            count = size_value(buffer.size, plan.sizes) * buffer.dtype.size
            offsets.append(end)
            if buffer.kind == "counter" and count:
                cleared.append((end, count))
            end += -(-count // ALIGNMENT) * ALIGNMENT
        waits = any(self.cooperative)
        if waits:
            cleared.append((end, 4))
        memory = DeviceMemory(self.driver, end + (ALIGNMENT if waits else 0), stream)
        for offset, count in cleared:
            self.driver.zero(memory.address + offset, count, stream)
        places = tuple([memory.address + offset for offset in offsets])
        return _Workspace(memory, places, memory.address + end)


class LoadedCuda(CompiledCuda):
    """A program whose machine code was built before.

    Args:
        program, driver: as of `CompiledCuda`.
        codes: machine code and PTX, by the width of indices.
        arch: the architecture of the machine code.
    """

    def __init__(
        self,
        program: kir.Program,
        driver: Driver,
        codes: Mapping[int, tuple[bytes, bytes]],
        arch: str,
    ) -> None:
        self._codes, self._arch = codes, arch
        super().__init__(program, driver)

    def _compile(self, bits: int) -> bytes:
        """Return machine code where this GPU runs it, else PTX, which the driver compiles."""
        from loopnest.backends.cuda.toolchain.nvrtc import parse_arch

        cubin, ptx = self._codes[bits]
        digits = parse_arch(self._arch).capability.rstrip("af")
        major, minor = self.driver.device.capability
        runs = (int(digits[:-1]), int(digits[-1])) <= (major, minor) and int(digits[:-1]) == major
        return cubin if runs else ptx


def from_machine_code(
    program: kir.Program, codes: Mapping[int, tuple[bytes, bytes]], arch: str
) -> LoadedCuda:
    """Return a program whose machine code and PTX were built before, for this machine's GPU.

    Raises:
        CompileError: there is no GPU, or no driver.
    """
    from loopnest.backends.cuda.driver import gpu_driver

    return LoadedCuda(program, gpu_driver.find_driver(), codes, arch)


def _of(found: Mapping[Buffer, int], buffer: Buffer | None) -> int:
    return 1 if buffer is None else found.get(buffer, 1)


def scalar_argument(value: Any, dtype: DType) -> Any:
    """Return a scalar as a kernel takes it: a ctypes object of its C type."""
    if dtype.is_narrow:
        value = int(np.array(value, dtype.numpy).view(f"u{dtype.size}"))
    return _SCALARS[dtype.name](value)


def _print(program: kir.Program, index_bits: int) -> str:
    from loopnest.backends.cuda.printing.cuda_printer import print_cuda

    return print_cuda(program, index_bits)


TEXT = TargetText("CUDA C++", "cuda", _print)
