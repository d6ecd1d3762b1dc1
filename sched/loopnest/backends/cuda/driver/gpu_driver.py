"""The driver of a GPU: all that launching asks of it, by cuda-core.

cuda-core loads and launches kernels, and orders streams. Context, memory and copies go by the
package that it stands on, cuda-bindings: cuda-core leaves its context current, only tells the
threshold of a pool, and copies between buffers of its own alone, not arrays of the host. A program
that works with pycuda keeps it: an adapter lets pycuda load and launch. All work in the device's
primary context, which PyTorch and others share, and make it current only for the length of a call.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import importlib.util
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial, wraps
from types import ModuleType
from typing import Any, ParamSpec, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from loopnest.base.errors import CompileError, LaunchError

Address: TypeAlias = int
Stream: TypeAlias = int
"""A CUstream as a number; 0 is the legacy default stream."""

PER_THREAD: Stream = 2
"""The default stream of the calling thread: one number for as many streams as there are threads."""

INSTALL = "pip install 'loopnest[cuda]'"

LEAST_CORE = (1, 1)
"""The oldest version of cuda-core whose interface is the one that is called here."""

KEPT_STREAMS = 64
"""cuda-core's objects of streams, kept by number: to make one takes longer than a launch."""

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Device:
    """What a launch must know of a GPU.

    Args:
        name: as the driver says it.
        ordinal: its number.
        capability: major and minor compute capability.
        multiprocessors: how many there are.
        shared_bytes: shared memory that a block can have, opting in.
        cuda: the newest CUDA version that its driver supports: ``(13, 0)``.
        cooperative: whether blocks can wait for each other.
    """

    name: str
    ordinal: int
    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int
    cuda: tuple[int, int]
    cooperative: bool = True

    @property
    def arch(self) -> str:
        """The architecture: ``sm_90``."""
        major, minor = self.capability
        return f"sm_{major}{minor}"


@dataclass(frozen=True, slots=True)
class DriverLaunch:
    """The configuration of a launch: blocks, threads, dynamic shared memory in bytes."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_bytes: int = 0
    cooperative: bool = False


_log = logging.getLogger("loopnest")
KEPT_SHARE = 32
"""The pool keeps 1/32 of the GPU's memory for later allocations, once all of it is free."""


@dataclass(frozen=True, slots=True)
class Handles:
    """The driver's modules, its names for a device and for its primary context.

    Args:
        cu: cuda-bindings' module of the driver.
        core: cuda-core.
        device, context: as `cu` names them.
    """

    cu: ModuleType
    core: ModuleType
    device: Any
    context: Any


def open_device() -> tuple[Device, Handles]:
    """Return the device of the current context, else the first one, with its primary context.

    Raises:
        CompileError: a package, the driver or a GPU is missing.
    """
    cu = _load()
    core = _package("cuda.core", "cuda-core")
    if tuple(map(int, core.__version__.split(".")[:2])) < LEAST_CORE:
        wanted = ".".join(map(str, LEAST_CORE))
        raise CompileError("the GPU", f"cuda-core is {core.__version__}, older than {wanted}")
    ordinal = _current_ordinal(cu)
    device = check(cu, cu.cuDeviceGet(ordinal))
    context = check(cu, cu.cuDevicePrimaryCtxRetain(device))
    return _describe(cu, device, ordinal), Handles(cu, core, device, context)


def _package(module: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except Exception as error:  # a package that is not mended may raise anything
        reason = f"the package {name} cannot be imported ({error})"
        if not isinstance(error, ModuleNotFoundError):
            _log.warning("no GPU is used: %s", reason)
        raise CompileError("the GPU", reason) from error


def _load() -> ModuleType:
    driver = _package("cuda.bindings.driver", "cuda-bindings")
    try:
        status, *_ = driver.cuInit(0)
    except RuntimeError as error:  # the library of the driver is missing
        raise CompileError("the GPU", "no NVIDIA driver was found") from error
    if status != driver.CUresult.CUDA_SUCCESS:
        raise CompileError("the GPU", f"no GPU was found ({status.name})")
    if check(driver, driver.cuDeviceGetCount()) == 0:
        raise CompileError("the GPU", "no GPU was found")
    return driver


def _current_ordinal(cu: ModuleType) -> int:
    context = check(cu, cu.cuCtxGetCurrent())
    return int(check(cu, cu.cuCtxGetDevice())) if int(context) else 0


def _describe(cu: ModuleType, device: Any, ordinal: int) -> Device:
    def attribute(name: str) -> int:
        key = getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(check(cu, cu.cuDeviceGetAttribute(key, device)))

    name = check(cu, cu.cuDeviceGetName(256, device))
    return Device(
        name.split(b"\0")[0].decode(),
        ordinal,
        (attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")),
        attribute("MULTIPROCESSOR_COUNT"),
        attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        _version(cu),
        bool(attribute("COOPERATIVE_LAUNCH")),
    )


def _version(cu: ModuleType) -> tuple[int, int]:
    """Return the CUDA version that the driver supports, which it gives as 1000 major + 10 minor."""
    number = int(check(cu, cu.cuDriverGetVersion()))
    return number // 1000, number % 1000 // 10


def check(cu: ModuleType, result: tuple[Any, ...]) -> Any:
    """Return what a function of the driver returned.

    Raises:
        LaunchError: it failed.
    """
    status, *values = result
    if status != cu.CUresult.CUDA_SUCCESS:
        _, text = cu.cuGetErrorString(status)
        found = text.decode() if isinstance(text, bytes) else "no description"
        raise LaunchError("the CUDA driver", f"{status.name}: {found}")
    return values[0] if len(values) == 1 else tuple(values)


def _in_our_words(method: Callable[P, R]) -> Callable[P, R]:
    """Let what a package says of the driver be a `LaunchError`, whichever package it is."""

    @wraps(method)
    def call(*args: P.args, **keywords: P.kwargs) -> R:
        try:
            return method(*args, **keywords)
        except Exception as error:
            # By the names of their modules: cuda-core gives its class no public one.
            if type(error).__module__.partition(".")[0] not in ("cuda", "pycuda"):
                raise
            raise LaunchError("the CUDA driver", " ".join(str(error).split())) from error

    return call


class Driver:
    """One GPU. All but `current` is called ``with driver.current()``."""

    def __init__(self, device: Device, handles: Handles) -> None:
        self.device = device
        self.cu = handles.cu
        self.core: Any = handles.core
        self.handles = handles
        self.stream = lru_cache(KEPT_STREAMS)(self.core.Stream.from_handle)
        """Returns a stream of any package as cuda-core's object, by its number."""
        self._pools: list[Any] = []

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the driver; raises LaunchError where it fails."""
        return check(self.cu, getattr(self.cu, name)(*arguments))

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the context current in this thread, and the one before it afterwards."""
        self.call("cuCtxPushCurrent", self.handles.context)
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent")

    # Kernels

    @_in_our_words
    def load(self, code: bytes, name: str) -> Any:
        """Load machine code or PTX and return its kernel `name`, which keeps the code loaded."""
        make = self.core.ObjectCode
        text = code.lstrip().startswith((b"//", b".version"))
        loaded = make.from_ptx(code) if text else make.from_cubin(code)
        return loaded.get_kernel(name)

    def allow_shared(self, function: Any, count: int) -> None:
        """Let a kernel have `count` bytes of dynamic shared memory, beyond 48 KiB."""
        key = self.cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self.call("cuKernelSetAttribute", key, count, function.handle, self.handles.device)

    @_in_our_words
    def resident_blocks(self, function: Any, threads: int, dynamic_bytes: int) -> int:
        """Return how many blocks of a kernel a multiprocessor holds at once."""
        occupancy = function.occupancy
        return int(occupancy.max_active_blocks_per_multiprocessor(threads, dynamic_bytes))

    @_in_our_words
    def launch(
        self, function: Any, launch: DriverLaunch, arguments: Sequence[Any], stream: Stream
    ) -> None:
        """Enqueue a kernel; `arguments` are ctypes objects, ``c_void_p`` for addresses."""
        given = [a.value or 0 if isinstance(a, ctypes.c_void_p) else a for a in arguments]
        config = self.core.LaunchConfig(
            grid=launch.grid,
            block=launch.block,
            shmem_size=launch.dynamic_bytes,
            is_cooperative=launch.cooperative,
        )
        self.core.launch(self.stream(stream), config, function, *given)

    # Memory

    def allocate(self, count: int, stream: Stream) -> Address:
        """Return `count` bytes of device memory for work on `stream`, aligned to 256 bytes."""
        pool = self._pool()
        if pool is None:
            return int(self.call("cuMemAlloc", count))
        return int(self.call("cuMemAllocFromPoolAsync", count, pool, stream))

    def free(self, address: Address, stream: Stream | None) -> None:
        """Give memory back once all work is done that `stream` was given so far.

        Without a stream, wait here until all work on the GPU that may use it is done.
        """
        if stream is None or self._pool() is None:
            self.call("cuMemFree", address)  # waits for all work, also where a pool gave it
        else:
            self.call("cuMemFreeAsync", address, stream)

    def _pool(self) -> Any:
        """Return the pool that memory comes from, made at its first use; None where none can be.

        A pool of our own: what the process' default pool keeps is for others to set.
        """
        if not self._pools:
            self._pools.append(self._make_pool())
        return self._pools[0]

    def _make_pool(self) -> Any:
        cu = self.cu
        key = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
        if not self.call("cuDeviceGetAttribute", key, self.handles.device):
            return None
        props = cu.CUmemPoolProps()
        props.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        props.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        props.location.id = self.device.ordinal
        pool = self.call("cuMemPoolCreate", props)
        kept = self.call("cuDeviceTotalMem", self.handles.device) // KEPT_SHARE
        name = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        self.call("cuMemPoolSetAttribute", pool, name, cu.cuuint64_t(kept))
        return pool

    def upload(self, address: Address, source: npt.NDArray[Any], stream: Stream) -> None:
        """Copy a C-contiguous array to the device; it may be changed when this returns."""
        if not source.nbytes:
            return
        copied = (address, source.ctypes.data, source.nbytes)
        if stream:
            self.call("cuMemcpyHtoDAsync", *copied, stream)
            self.synchronize(stream)  # page-locked memory is read only when its turn comes
        else:
            self.call("cuMemcpyHtoD", *copied)

    def download(self, target: npt.NDArray[Any], address: Address, stream: Stream) -> None:
        """Copy to a C-contiguous array; all that `stream` was given before is done then."""
        if target.nbytes:
            self.call("cuMemcpyDtoHAsync", target.ctypes.data, address, target.nbytes, stream)
        self.synchronize(stream)

    def zero(self, address: Address, count: int, stream: Stream) -> None:
        """Set `count` bytes to 0."""
        self.call("cuMemsetD8Async", address, 0, count, stream)

    # Streams

    @_in_our_words
    def wait(self, stream: Stream, other: Stream) -> None:
        """Let what `stream` is given from now on come after what `other` was given so far."""
        if stream != other:
            self.stream(stream).wait(self.stream(other))

    @_in_our_words
    def synchronize(self, stream: Stream) -> None:
        """Wait until all is done that `stream` was given."""
        self.stream(stream).sync()

    @_in_our_words
    def timed(self, work: Callable[[], None], stream: Stream) -> float:
        """Call `work` and wait; return the seconds that the GPU took for what it enqueued."""
        self.synchronize(stream)
        timing = self.core.EventOptions(timing_enabled=True)
        start = self.stream(stream).record(options=timing)
        work()
        end = self.stream(stream).record(options=timing)
        end.sync()
        return float(end - start) / 1e3


@dataclass
class _Function:
    """A kernel for both packages; each has a handle of its own."""

    own: Any
    load: Callable[[], Any]

    @cached_property
    def foreign(self) -> Any:
        """The kernel as cuda-core loads it."""
        return self.load()


class PycudaDriver(Driver):
    """A GPU driven through pycuda: kernels and copies on the default stream.

    Memory, cooperative launches and other streams go as without it: pycuda has no stream-ordered
    allocation, and takes no stream of another package.
    """

    def __init__(self, device: Device, handles: Handles) -> None:
        super().__init__(device, handles)
        import pycuda.driver

        self.cuda = pycuda.driver
        self.cuda.init()
        self.context = self.cuda.Device(device.ordinal).retain_primary_context()
        atexit.register(self.context.detach)  # others may go on to use the primary context

    @contextmanager
    def current(self) -> Iterator[None]:
        self.context.push()
        try:
            yield
        finally:
            self.cuda.Context.pop()

    @_in_our_words
    def load(self, code: bytes, name: str) -> Any:
        function = self.cuda.module_from_buffer(code).get_function(name)
        return _Function(function, partial(super().load, code, name))

    @_in_our_words
    def allow_shared(self, function: _Function, count: int) -> None:
        key = self.cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
        function.own.set_attribute(key, count)
        super().allow_shared(function.foreign, count)

    def resident_blocks(self, function: _Function, threads: int, dynamic_bytes: int) -> int:
        return super().resident_blocks(function.foreign, threads, dynamic_bytes)

    @_in_our_words
    def launch(
        self, function: _Function, launch: DriverLaunch, arguments: Sequence[Any], stream: Stream
    ) -> None:
        if stream or launch.cooperative:
            super().launch(function.foreign, launch, arguments, stream)
            return
        packed = [np.void(pack(arguments))] if arguments else []
        function.own(*packed, grid=launch.grid, block=launch.block, shared=launch.dynamic_bytes)

    @_in_our_words
    def upload(self, address: Address, source: npt.NDArray[Any], stream: Stream) -> None:
        if stream:
            super().upload(address, source, stream)
        elif source.nbytes:
            self.cuda.memcpy_htod(address, source)

    @_in_our_words
    def download(self, target: npt.NDArray[Any], address: Address, stream: Stream) -> None:
        if stream:
            super().download(target, address, stream)
        elif target.nbytes:
            self.cuda.memcpy_dtoh(target, address)


def pack(arguments: Sequence[Any]) -> bytes:
    """Return the parameter block of a kernel: each argument at a multiple of its size."""
    block = bytearray()
    for argument in arguments:
        size = ctypes.sizeof(argument)
        block += b"\0" * (-len(block) % size)
        block += bytes(argument)
    return bytes(block)


_lock = threading.Lock()
_found: list[Driver] = []
_obstacle: list[str] = []


def find_driver() -> Driver:
    """Return the driver of this machine's GPU: that of the current context, else the first.

    Raises:
        CompileError: there is no GPU, or no package to drive it.
    """
    with _lock:
        if not _found and not _obstacle:
            try:
                _found.append(_open())
            except CompileError as error:
                _obstacle.append(error.reason)
            except LaunchError as error:  # the driver refuses the GPU
                _obstacle.append(str(error))
        if _obstacle:
            raise CompileError("target 'cuda'", _obstacle[0], INSTALL)
        return _found[0]


def obstacle() -> str | None:
    """Return why there is no GPU to launch on, None where there is one."""
    try:
        find_driver()
    except CompileError as error:
        return error.reason
    return None


def _open() -> Driver:
    """Return pycuda's adapter where pycuda is installed and works, else cuda-core alone."""
    device, handles = open_device()
    if importlib.util.find_spec("pycuda") is not None:
        try:
            return PycudaDriver(device, handles)
        except Exception as error:  # of the import or the first calls: pycuda has own classes
            broken = "pycuda is installed but does not work"
            _log.warning("kernels are launched by cuda-core: %s (%s)", broken, _in_words(error))
    return Driver(device, handles)


def _in_words(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
