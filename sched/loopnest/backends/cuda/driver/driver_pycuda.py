"""A GPU driven through pycuda: kernels and copies on the default stream.

Memory, cooperative launches and other streams go by cuda-bindings: pycuda has no stream-ordered
allocation, and takes no stream of another package.
"""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from loopnest.backends.cuda.driver.driver_bindings import BindingsDriver, Handles
from loopnest.backends.cuda.driver.driver_interface import Address, Device, DriverLaunch, Stream


@dataclass
class _Function:
    """A kernel for both packages; each has a handle of its own."""

    own: Any
    code: bytes
    name: str
    driver: BindingsDriver

    @cached_property
    def foreign(self) -> Any:
        """The kernel as cuda-bindings loads it."""
        return self.driver.module_function(self.code, self.name)


class PycudaDriver(BindingsDriver):
    """A `Driver` on pycuda."""

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

    def load(self, code: bytes, name: str) -> Any:
        function = self.cuda.module_from_buffer(code).get_function(name)
        return _Function(function, code, name, self)

    def allow_shared(self, function: _Function, count: int) -> None:
        key = self.cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
        function.own.set_attribute(key, count)
        super().allow_shared(function.foreign, count)

    def resident_blocks(self, function: _Function, threads: int, dynamic_bytes: int) -> int:
        return super().resident_blocks(function.foreign, threads, dynamic_bytes)

    def launch(
        self, function: _Function, launch: DriverLaunch, arguments: Sequence[Any], stream: Stream
    ) -> None:
        if stream or launch.cooperative:
            super().launch(function.foreign, launch, arguments, stream)
            return
        packed = [np.void(pack(arguments))] if arguments else []
        function.own(*packed, grid=launch.grid, block=launch.block, shared=launch.dynamic_bytes)

    def upload(self, address: Address, source: npt.NDArray[Any], stream: Stream) -> None:
        if stream:
            super().upload(address, source, stream)
        elif source.nbytes:
            self.cuda.memcpy_htod(address, source)

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
