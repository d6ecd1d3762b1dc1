"""The target "cuda": printed CUDA C++, built by NVRTC for this machine's GPU, and its launches."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from loopnest import kir
from loopnest.backends.clike.identifiers import symbol
from loopnest.backends.clike.narrow_counts import launch_names
from loopnest.backends.compiled_kernel import CompiledKernel, K, Results
from loopnest.backends.cuda.driver import gpu_driver
from loopnest.backends.cuda.driver.device_array import (
    DeviceArray,
    DeviceMemory,
    DeviceView,
    gathered,
    stream_number,
    uploaded,
    view,
)
from loopnest.backends.cuda.driver.gpu_driver import (
    PER_THREAD,
    Address,
    Driver,
    DriverLaunch,
    Stream,
)
from loopnest.backends.cuda.printing import cuda_printer
from loopnest.backends.cuda.toolchain import nvrtc
from loopnest.base.errors import LaunchError
from loopnest.kir.vector_access import alignments, wide_accesses
from loopnest.launch.launch_plan import LaunchConfig, LaunchPlan, Planner
from loopnest.launch.outputs import Outputs
from loopnest.launch.target_interface import (
    COUNT,
    REGISTERS,
    SWITCH,
    Array,
    Executable,
    IdleOption,
    TargetOption,
    TargetRow,
    TargetText,
)
from loopnest.launch.timing import BenchResult, measure_batches
from loopnest.scalar.arguments import size_value
from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import Buffer

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

    def _built(self, bits: int, fast_math: bool) -> nvrtc.Compiled:
        device = self.driver.device
        target = nvrtc.loadable_arch(device.capability)
        nvrtc.check_driver(target, device.cuda)
        source = cuda_printer.print_cuda(self.program, bits, self.min_blocks)
        return nvrtc.compile_cuda(
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
        cubin, ptx = self._codes[bits]
        digits = nvrtc.parse_arch(self._arch).capability.rstrip("af")
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
    return LoadedCuda(program, gpu_driver.find_driver(), codes, arch)


def _of(found: Mapping[Buffer, int], buffer: Buffer | None) -> int:
    return 1 if buffer is None else found.get(buffer, 1)


def scalar_argument(value: Any, dtype: DType) -> Any:
    """Return a scalar as a kernel takes it: a ctypes object of its C type."""
    if dtype.is_narrow:
        value = int(np.array(value, dtype.numpy).view(f"u{dtype.size}"))
    return _SCALARS[dtype.name](value)


# Kernels on a GPU: arrays of the host are copied, those of the GPU taken as they are.
#
# The outputs of a launch on arrays of the GPU: the caller's, checked, or new ones.


class CudaKernel(CompiledKernel[K]):
    """A kernel on a GPU.

    NumPy arrays are copied to the GPU, and results back. Where an input or an array of `out` lies
    in the GPU's memory, the call does not wait and copies nothing back: results are the arrays of
    `out` or a `DeviceArray` each, ready for work on the call's stream.
    """

    @cached_property
    def _placed(self) -> DeviceOutputs:
        """Makes outputs in the memory of the GPU."""
        return DeviceOutputs(self._program, self._subject, self.driver)

    @property
    def driver(self) -> Driver:
        """The GPU that it runs on."""
        return self._compiled(self._program).driver

    def __call__(
        self, /, *arrays: Any, out: Any = None, stream: object = None, **scalars: Any
    ) -> Results:
        """Run the kernel once; as `CompiledKernel`, and on arrays of the GPU.

        Args:
            *arrays: the inputs: NumPy's, or any with DLPack or ``__cuda_array_interface__``.
            out: where the outputs go, in the memory of the host or of the GPU as the inputs.
            stream: of PyTorch, CuPy, cuda-core or pycuda, or its address; None is the default one.
            **scalars: the run-time scalars, and the sizes that are the extent of no input.

        Returns:
            The output, or a tuple of them.

        Raises:
            LaunchError: an argument does not fit; nothing ran.
        """
        number = stream_number(stream, self._subject)
        with self.driver.current():
            given = self._viewed(arrays, number)
            places = [
                self._view(a, self._outputs.out_name(i), number)
                for i, a in enumerate(self._outputs.given(out))
            ]
            plan, values = self._bound(given, scalars, self._key(given, scalars))
            if any(isinstance(a, DeviceView) for a in (*given, *places)):
                results = self._on_device(given, places, plan, values, number)
                _enqueued(given, results, number, stream)
            else:
                results = self._on_host(given, out, plan, values, number)
        return results[0] if len(results) == 1 else tuple(results)

    def bench(self, /, *arrays: Any, **scalars: Any) -> BenchResult:
        """Measure launches on `arrays`, which are copied to the GPU first if need be.

        Launches follow each other without a pause, on the same arrays again and again; inputs that
        an output overwrites are copied first.

        Raises:
            LaunchError: as a call.
        """
        driver = self.driver
        with driver.current():
            given = self._viewed(arrays, 0)
            plan, values = self._bound(given, scalars, self._key(given, scalars))
            inputs = [
                uploaded(self._copied(a, 0), driver, 0)
                if spec.name in self._outputs.overwritten
                else a
                for spec, a in zip(self._inputs, given, strict=True)
            ]
            held = self._held(inputs, 0)
            self._check_data(held, plan, lambda array: self._copied(array, 0))
            outs = self._placed.fitted(self._outputs.given(None), held, plan)
            plan = self._aligned(plan, held, outs)
            moved = sum([a.nbytes for a in (*held, *outs)])
            return measure_batches(
                lambda: self._launch(held, outs, values, plan, 0),
                lambda work: driver.timed(work, 0),
                moved,
            )

    # Arguments

    def sizes_for(
        self, program: kir.Program, arrays: Sequence[Any], keywords: Mapping[str, Any]
    ) -> dict[str, int]:
        """Return the sizes that arguments give, those on the GPU too; raises as on the host."""
        with self.driver.current():
            return super().sizes_for(program, self._viewed(arrays, 0), keywords)

    def _viewed(self, arrays: Sequence[Any], stream: Stream) -> list[Any]:
        names = [spec.name for spec in self._inputs]
        names += [f"argument {i + 1}" for i in range(len(names), len(arrays))]
        return [self._view(a, name, stream) for a, name in zip(arrays, names, strict=False)]

    def _view(self, array: Any, name: str, stream: Stream) -> Any:
        """Return an array of the GPU as a `DeviceView`, any other object as it is."""
        found = None if array is None else view(array, name, self.driver, stream, self._subject)
        return array if found is None else found

    def _compiled(self, program: kir.Program) -> CompiledCuda:
        found = self._variant(program).executable
        assert isinstance(found, CompiledCuda)
        return found

    # Arrays of the host

    def _on_host(
        self,
        arrays: Sequence[Any],
        out: Any,
        plan: LaunchPlan,
        values: Sequence[Any],
        stream: Stream,
    ) -> list[Any]:
        inputs = list(map(self._contiguous, range(len(arrays)), arrays))
        self._check_data(arrays if self._strided else inputs, plan)
        results = self._outputs.take(out, inputs, plan)
        if plan.is_empty:
            self._run(inputs, results, values, plan)
        else:
            passed = [*inputs, *self._outputs.own(results)]
            self._compiled(plan.program).run(passed, values, plan, stream, self._subject)
        self._outputs.give_back(results, arrays)
        return results

    # Arrays of the GPU

    def _strides_of(self, array: Any) -> tuple[int, ...]:
        if not isinstance(array, DeviceView):
            return super()._strides_of(array)
        shape = array.shape
        plain = tuple([math.prod(shape[n + 1 :]) for n in range(len(shape))])
        return plain if array.strides is None else array.strides

    def _on_device(
        self,
        arrays: Sequence[Any],
        places: Sequence[Any],
        plan: LaunchPlan,
        values: Sequence[Any],
        stream: Stream,
    ) -> list[Any]:
        held = self._held(arrays, stream)
        self._check_data(held, plan, lambda array: self._copied(array, stream))
        outs = self._placed.fitted(places, held, plan, stream)
        plan = self._aligned(plan, held, outs)
        if plan.is_empty:
            self._fill(held, outs, values, plan, stream)
        else:
            self._launch(held, outs, values, plan, stream)
        return [place.source for place in outs]

    def _held(self, arrays: Sequence[Any], stream: Stream) -> list[DeviceView]:
        """Return the inputs in the memory of the GPU, in C order."""
        result = []
        for number, array in enumerate(arrays):
            name = self._inputs[number].name
            if not isinstance(array, DeviceView):
                hint = "pass an array of the GPU"
                self._outputs.refuse_copy(name, "no array of the GPU, as others are", hint)
                array = uploaded(self._contiguous(number, array), self.driver, stream)
            elif array.strides is not None and self._inputs[number].strides is None:
                self._outputs.refuse_copy(name, "not C-contiguous", "pass a C-contiguous array")
                self._warn_of_copy(name)
                array = gathered(array, self.driver, stream)
            result.append(array)
        return result

    def _aligned(
        self, plan: LaunchPlan, held: Sequence[DeviceView], outs: Sequence[DeviceView]
    ) -> LaunchPlan:
        """Return the plan of the variant that these addresses allow."""
        required = self._compiled(plan.program).alignments
        for (name, count), place in zip(required, (*held, *self._own(outs)), strict=True):
            if place.address % count:
                reason = f"{name} is not aligned to {count} bytes"
                scalar = self._planner.scalar
                if scalar is None or plan.program is scalar.program:
                    raise self._error(reason, "pass an array that is")
                self._tell_scalar(reason)
                return scalar.own_plan(plan.sizes, self._subject)
        return plan

    def _own(self, outs: Sequence[DeviceView]) -> list[DeviceView]:
        return [outs[i] for i in self._outputs.own_places]

    def _launch(
        self,
        held: Sequence[DeviceView],
        outs: Sequence[DeviceView],
        values: Sequence[Any],
        plan: LaunchPlan,
        stream: Stream,
    ) -> None:
        compiled = self._compiled(plan.program)
        launches = compiled.configure(plan, self._subject)
        places = [place.address for place in (*held, *self._own(outs))]
        compiled.launch(launches, places, values, plan, stream)

    def _fill(
        self,
        held: Sequence[DeviceView],
        outs: Sequence[DeviceView],
        values: Sequence[Any],
        plan: LaunchPlan,
        stream: Stream,
    ) -> None:
        """Do on the host what a launch of no thread leaves to do."""
        inputs = [self._copied(place, stream) for place in held]
        results = self._outputs.take(None, inputs, plan)
        self._run(inputs, results, values, plan)
        for result, place in zip(results, outs, strict=True):
            self.driver.upload(place.address, result, stream)

    def _copied(self, array: Any, stream: Stream) -> Array:
        """Return a copy on the host of an array that is ready for work on `stream`."""
        if not isinstance(array, DeviceView):
            return np.array(array)
        result = np.empty(array.shape, array.dtype)
        if array.strides is not None:
            array = gathered(array, self.driver, stream)
        self.driver.download(result, array.address, stream)
        return result


def _enqueued(
    inputs: Sequence[Any], results: Sequence[Any], number: Stream, stream: object
) -> None:
    """Note where the work was enqueued that reads these inputs and computes these results.

    A result that was new is used there alone; one that the caller gave may be older.
    """
    for place in inputs:
        if isinstance(place, DeviceView) and isinstance(place.source, DeviceArray):
            place.source.memory.used(number, stream)
    for array in results:
        if isinstance(array, DeviceArray):
            note = array.memory.made_for if array.is_new else array.memory.used
            note(number, stream)
            array.is_new = False
            array.stream, array.stream_owner = number, stream


def _build(program: kir.Program, **options: Any) -> CompiledCuda:
    return CompiledCuda(program, gpu_driver.find_driver(), **options)


TARGET = TargetRow(
    "cuda",
    OPTIONS,
    _build,
    device="gpu",
    text=TargetText("CUDA C++", "cuda", cuda_printer.print_cuda),
    obstacle=gpu_driver.obstacle,
    instead='use target "c" or "interpret"; kernel.cubin(arch) compiles without a GPU',
    kernel=CudaKernel,
)


class DeviceOutputs(Outputs):
    """Makes the outputs of one program's launches on the GPU; `source` is what a caller gets."""

    def __init__(self, program: kir.Program, subject: str, driver: Driver) -> None:
        super().__init__(program, subject)
        self.driver = driver

    def new(self, number: int, plan: LaunchPlan, stream: Stream) -> DeviceView:
        shape, dtype = plan.outputs[number], self.dtypes[number]
        memory = DeviceMemory(self.driver, math.prod(shape) * dtype.itemsize, stream)
        array = DeviceArray(memory, shape, self.outputs[number].buffer.dtype, stream)
        return DeviceView(array, memory.address, shape, dtype, None, False, memory)

    def is_same(self, array: Any, place: DeviceView) -> bool:
        return isinstance(array, DeviceView) and array.address == place.address

    def check_owner(self, name: str, array: Any) -> None:
        if not isinstance(array, DeviceView):
            found = f"{name} is of type {type(array).__name__}, while inputs lie on the GPU"
            raise self._error(found, "pass an array of the GPU")

    def is_contiguous(self, array: DeviceView) -> bool:
        return array.strides is None

    def is_writable(self, array: DeviceView) -> bool:
        return not array.read_only

    def share(self, a: DeviceView, b: DeviceView) -> bool:
        return a.overlaps(b)
