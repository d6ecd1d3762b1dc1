"""A GPU driven through cuda-bindings: the driver's own functions, one by one."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy.typing as npt

from loopnest.backends.cuda.driver.driver_interface import Address, Device, DriverLaunch, Stream
from loopnest.base.errors import CompileError, LaunchError

KEPT_SHARE = 32
"""The pool keeps 1/32 of the GPU's memory for later allocations, once all of it is free."""

_log = logging.getLogger("loopnest")


@dataclass(frozen=True, slots=True)
class Handles:
    """The driver's module and its names for a device and its primary context."""

    cu: ModuleType
    device: Any
    context: Any


def open_device() -> tuple[Device, Handles]:
    """Return the device of the current context, else the first one, with its primary context.

    Raises:
        CompileError: a package, the driver or a GPU is missing.
    """
    cu = _load()
    ordinal = _current_ordinal(cu)
    device = check(cu, cu.cuDeviceGet(ordinal))
    context = check(cu, cu.cuDevicePrimaryCtxRetain(device))
    return _describe(cu, device, ordinal), Handles(cu, device, context)


def _load() -> ModuleType:
    try:
        from cuda.bindings import driver
    except Exception as error:  # a package that is not mended may raise anything
        reason = f"the package cuda-bindings cannot be imported ({error})"
        if not isinstance(error, ModuleNotFoundError):
            _log.warning("no GPU is used: %s", reason)
        raise CompileError("the GPU", reason) from error
    try:
        status, *_ = driver.cuInit(0)
    except RuntimeError as error:  # the library of the driver is missing
        raise CompileError("the GPU", "no NVIDIA driver was found") from error
    if status != driver.CUresult.CUDA_SUCCESS:
        raise CompileError("the GPU", f"no GPU was found ({status.name})")
    if check(driver, driver.cuDeviceGetCount()) == 0:
        raise CompileError("the GPU", "no GPU was found")
    module: ModuleType = driver
    return module


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


class BindingsDriver:
    """A `Driver` on cuda-bindings; also the base of those on other packages."""

    def __init__(self, device: Device, handles: Handles) -> None:
        self.device = device
        self.cu = handles.cu
        self.handles = handles
        self._pools: list[Any] = []

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the driver; raises LaunchError where it fails."""
        return check(self.cu, getattr(self.cu, name)(*arguments))

    @contextmanager
    def current(self) -> Iterator[None]:
        self.call("cuCtxPushCurrent", self.handles.context)
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent")

    # Kernels

    def load(self, code: bytes, name: str) -> Any:
        return self.module_function(code, name)

    def module_function(self, code: bytes, name: str) -> Any:
        """Return a CUfunction; its module stays loaded with the context."""
        module = self.call("cuModuleLoadData", code)
        return self.call("cuModuleGetFunction", module, name.encode())

    def allow_shared(self, function: Any, count: int) -> None:
        key = self.cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self.call("cuFuncSetAttribute", function, key, count)

    def resident_blocks(self, function: Any, threads: int, dynamic_bytes: int) -> int:
        name = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        return int(self.call(name, function, threads, dynamic_bytes))

    def launch(
        self, function: Any, launch: DriverLaunch, arguments: Sequence[Any], stream: Stream
    ) -> None:
        pointers = (ctypes.c_void_p * max(len(arguments), 1))(
            *[ctypes.addressof(argument) for argument in arguments]
        )
        place = ctypes.addressof(pointers)  # both stay alive until the driver has copied them
        config = (*launch.grid, *launch.block, launch.dynamic_bytes, stream, place)
        if launch.cooperative:
            self.call("cuLaunchCooperativeKernel", function, *config)
        else:
            self.call("cuLaunchKernel", function, *config, 0)

    # Memory

    def allocate(self, count: int, stream: Stream) -> Address:
        pool = self._pool()
        if pool is None:
            return int(self.call("cuMemAlloc", count))
        return int(self.call("cuMemAllocFromPoolAsync", count, pool, stream))

    def free(self, address: Address, stream: Stream | None) -> None:
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
        if not source.nbytes:
            return
        copied = (address, source.ctypes.data, source.nbytes)
        if stream:
            self.call("cuMemcpyHtoDAsync", *copied, stream)
            self.synchronize(stream)  # page-locked memory is read only when its turn comes
        else:
            self.call("cuMemcpyHtoD", *copied)

    def download(self, target: npt.NDArray[Any], address: Address, stream: Stream) -> None:
        if target.nbytes:
            self.call("cuMemcpyDtoHAsync", target.ctypes.data, address, target.nbytes, stream)
        self.synchronize(stream)

    def zero(self, address: Address, count: int, stream: Stream) -> None:
        self.call("cuMemsetD8Async", address, 0, count, stream)

    # Streams

    def wait(self, stream: Stream, other: Stream) -> None:
        if stream == other:
            return
        flags = self.cu.CUevent_flags.CU_EVENT_DISABLE_TIMING
        event = self.call("cuEventCreate", int(flags))
        try:
            self.call("cuEventRecord", event, other)
            self.call("cuStreamWaitEvent", stream, event, 0)
        finally:
            self.call("cuEventDestroy", event)

    def synchronize(self, stream: Stream) -> None:
        self.call("cuStreamSynchronize", stream)

    def timed(self, work: Callable[[], None], stream: Stream) -> float:
        self.synchronize(stream)
        start, end = (self.call("cuEventCreate", 0) for _ in range(2))
        try:
            self.call("cuEventRecord", start, stream)
            work()
            self.call("cuEventRecord", end, stream)
            self.call("cuEventSynchronize", end)
            return float(self.call("cuEventElapsedTime", start, end)) / 1e3
        finally:
            for event in (start, end):
                self.call("cuEventDestroy", event)
