"""A GPU driven through cuda-core: its loader, its launcher; memory and streams by cuda-bindings."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from loopnest.backends.cuda.driver.driver_bindings import BindingsDriver, Handles
from loopnest.backends.cuda.driver.driver_interface import Device, DriverLaunch, Stream


def has_core() -> bool:
    """Whether cuda-core is here, in a version with all that is called (0.6)."""
    try:
        from cuda import core
    except ImportError:
        return False
    names = ("Kernel", "LaunchConfig", "ObjectCode", "launch")
    return all(hasattr(core, name) for name in names) and hasattr(core.Kernel, "handle")


class _Stream:
    """A stream by its number, as cuda-core takes those of other packages."""

    def __init__(self, handle: Stream) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


class CoreDriver(BindingsDriver):
    """A `Driver` on cuda-core."""

    def __init__(self, device: Device, handles: Handles) -> None:
        super().__init__(device, handles)
        from cuda import core

        self.core = core

    def load(self, code: bytes, name: str) -> Any:
        make = self.core.ObjectCode
        text = code.lstrip().startswith((b"//", b".version"))
        loaded = make.from_ptx(code) if text else make.from_cubin(code)
        return loaded.get_kernel(name)

    def allow_shared(self, function: Any, count: int) -> None:
        key = self.cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self.call("cuKernelSetAttribute", key, count, function.handle, self.handles.device)

    def resident_blocks(self, function: Any, threads: int, dynamic_bytes: int) -> int:
        occupancy = function.occupancy
        return int(occupancy.max_active_blocks_per_multiprocessor(threads, dynamic_bytes))

    def launch(
        self, function: Any, launch: DriverLaunch, arguments: Sequence[Any], stream: Stream
    ) -> None:
        make = self.core.LaunchConfig
        options: dict[str, Any] = {}
        if launch.cooperative:  # renamed in 1.0
            known = hasattr(make, "is_cooperative")
            options["is_cooperative" if known else "cooperative_launch"] = True
        config = make(
            grid=launch.grid, block=launch.block, shmem_size=launch.dynamic_bytes, **options
        )
        self.core.launch(_Stream(stream), config, function, *map(_argument, arguments))


def _argument(argument: Any) -> Any:
    """Return an argument as cuda-core takes it: addresses as plain ints."""
    return argument.value or 0 if isinstance(argument, ctypes.c_void_p) else argument
