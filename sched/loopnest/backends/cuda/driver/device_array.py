"""Arrays in a GPU's memory: ours, which a launch returns, and those of other packages."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from loopnest.backends.cuda.driver import dlpack
from loopnest.backends.cuda.driver.gpu_driver import PER_THREAD, Address, Driver, Stream
from loopnest.base.errors import LaunchError
from loopnest.launch.target_interface import Array
from loopnest.scalar.dtypes import DType

_DEFAULT_STREAMS = (0, 1)
"""The legacy default stream by both of its numbers: it is there as long as the context."""


@dataclass(slots=True)
class _Uses:
    """Which work must be done before a piece of memory is given back.

    Args:
        home: the stream that it was allocated on, and is given back on.
        streams: others with work on it, each with what keeps that stream.
        unknown: whether there may be work on it that is not known here: the memory was lent to
            another package, or was used on a stream that may be gone by then.
    """

    home: Stream
    streams: dict[Stream, object]
    unknown: bool


class DeviceMemory:
    """A piece of a GPU's memory, given back when nothing refers to it any more.

    It comes from a pool and goes back to it in the order of its stream, so that neither a call nor
    the end of its result waits for the GPU. Where work may be pending on it that is not known
    here, giving it back waits for all work.

    Args:
        driver: of the GPU.
        count: bytes.
        stream: whose work uses it first.
    """

    def __init__(self, driver: Driver, count: int, stream: Stream) -> None:
        self.driver = driver
        self.bytes = count
        self.address: Address = driver.allocate(count, stream) if count else 0
        self._uses = _Uses(stream, {}, stream not in _DEFAULT_STREAMS)
        if self.address:
            weakref.finalize(self, _free, driver, self.address, self._uses).atexit = False

    def used(self, stream: Stream, owner: object) -> None:
        """Note work on it that was enqueued on `stream`, which lives as long as `owner`."""
        uses = self._uses
        kept = stream in _DEFAULT_STREAMS or not (
            owner is None or isinstance(owner, int) or stream == PER_THREAD
        )
        if not kept:
            uses.unknown = True
        elif stream != uses.home or stream not in _DEFAULT_STREAMS:
            uses.streams[stream] = owner

    def made_for(self, stream: Stream, owner: object) -> None:
        """Note that its own stream lives as long as `owner`: as yet, nobody else uses it."""
        self._uses.unknown = False
        self.used(stream, owner)

    def lent(self) -> None:
        """Note that another package may use it, on streams that are not known here."""
        self._uses.unknown = True


def _free(driver: Driver, address: Address, uses: _Uses) -> None:
    with driver.current():
        if uses.unknown:
            driver.free(address, None)
            return
        for stream in uses.streams:
            driver.wait(uses.home, stream)  # nothing where it is the same one
        driver.free(address, uses.home)


class DeviceArray:
    """A result in the memory of the GPU, in C order.

    Other packages take it without a copy: ``torch.from_dlpack(y)``, ``cupy.asarray(y)``.
    ``y.numpy()`` copies it to the host.

    Args:
        memory: what holds it.
        shape: extents.
        element: type of its elements.
        stream: where the work was enqueued that computes it.
    """

    def __init__(
        self, memory: DeviceMemory, shape: tuple[int, ...], element: DType, stream: Stream
    ) -> None:
        self.memory = memory
        self.shape = shape
        self.element = element
        self.stream = stream
        self.is_new = True
        """Whether the launch that it was made for has not been enqueued yet."""
        self.stream_owner: object = None
        """What the stream may not be without: it is used as long as the array is."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of its elements."""
        return self.element.numpy

    @property
    def ndim(self) -> int:
        """The number of its axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes that its elements take."""
        return self.size * self.dtype.itemsize

    def __repr__(self) -> str:
        return f"<DeviceArray {self.element}{list(self.shape)} at {self.memory.address:#x}>"

    def numpy(self) -> Array:
        """Return a copy in the host's memory, when all work on it is done."""
        result = np.empty(self.shape, self.dtype)
        driver = self.memory.driver
        with driver.current():
            driver.download(result, self.memory.address, self.stream)
        return result

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("an array in the memory of a GPU has to be copied")
        return self.numpy().astype(dtype or self.dtype, copy=False)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The array as Numba, CuPy and PyTorch read it; types of ml_dtypes go by DLPack only."""
        if self.element.is_narrow and self.element.name != "float16":
            raise AttributeError(f"the CUDA array interface has no {self.element}; use DLPack")
        self.memory.lent()
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (self.memory.address, False),
            "strides": None, "stream": self.stream or 1, "version": 3,
        }  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.memory.driver.device.ordinal

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("a DeviceArray is lent where it lies, not copied")
        driver = self.memory.driver
        if stream != -1:
            with driver.current():
                driver.wait(_plain_stream(stream), self.stream)
        self.memory.lent()
        place = self.memory.address
        return dlpack.give(place, self.shape, self.element, driver.device.ordinal, self.memory)


def _plain_stream(stream: int | None) -> Stream:
    """Return a stream as the driver counts: DLPack's 1 (or None) is the legacy default one."""
    return 0 if stream in (None, 1) else int(stream or 0)


@dataclass(frozen=True, slots=True)
class DeviceView:
    """An argument that lies in a GPU's memory; tells shape and dtype as NumPy's arrays do.

    Args:
        source: the caller's own object.
        address: of its first element.
        shape: extents.
        dtype: NumPy's.
        strides: in elements; None in C order.
        read_only: whether it may not be written.
        owner: what keeps its memory.
    """

    source: object
    address: Address
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...] | None
    read_only: bool
    owner: object

    @property
    def size(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes that its elements take."""
        return self.size * self.dtype.itemsize

    def overlaps(self, other: DeviceView) -> bool:
        """Whether the memory that one array spans meets that of the other."""
        a, b = self.address, other.address
        return a < b + other.reach and b < a + self.reach

    @property
    def reach(self) -> int:
        """The bytes from its first element to the end of its last."""
        if self.strides is None or not self.nbytes:
            return self.nbytes
        steps = zip(self.shape, self.strides, strict=True)
        return (1 + sum([(extent - 1) * step for extent, step in steps])) * self.dtype.itemsize


def view(array: Any, name: str, driver: Driver, stream: Stream, subject: str) -> DeviceView | None:
    """Return `array` where it lies in a GPU's memory, ready for work on `stream`; else None.

    Raises:
        LaunchError: it lies in the memory of another GPU, or its package does not lend it.
    """
    if isinstance(array, (np.ndarray, np.generic, int, float)):
        return None
    if isinstance(array, DeviceView):
        return array
    if isinstance(array, DeviceArray) and array.memory.driver is driver:
        return _of_ours(array, stream)
    place = dlpack.device_of(array)
    if place is not None:
        if place[0] not in (dlpack.CUDA, dlpack.CUDA_MANAGED):
            return None
        if place[1] != driver.device.ordinal:
            found = f"{name} lies on GPU {place[1]}"
            raise LaunchError(subject, found, f"pass arrays on GPU {driver.device.ordinal}")
        try:
            return _of_dlpack(array, dlpack.take(array, stream))
        except (BufferError, RuntimeError) as error:  # PyTorch's of an array with a gradient
            raise LaunchError(subject, f"{name} is not lent: {error}") from error
    described = getattr(array, "__cuda_array_interface__", None)
    return None if described is None else _of_interface(array, described, driver, stream)


def _of_ours(array: DeviceArray, stream: Stream) -> DeviceView:
    memory = array.memory
    memory.driver.wait(stream, array.stream)
    return DeviceView(array, memory.address, array.shape, array.dtype, None, False, memory)


def _of_dlpack(array: object, taken: dlpack.Taken) -> DeviceView:
    return DeviceView(
        array, taken.address, taken.shape, taken.dtype, _strides(taken.shape, taken.strides),
        taken.read_only, taken.capsule,
    )  # fmt: skip


def _of_interface(
    array: object, described: Mapping[str, Any], driver: Driver, stream: Stream
) -> DeviceView:
    address, read_only = described["data"]
    dtype = np.dtype(described["typestr"])
    shape = tuple(described["shape"])
    other = described.get("stream")
    if other is not None:
        driver.wait(stream, _plain_stream(other))
    steps = described.get("strides")
    strides = None if steps is None else tuple([step // dtype.itemsize for step in steps])
    return DeviceView(array, address or 0, shape, dtype, _strides(shape, strides), read_only, array)


def _strides(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Return `strides`, or None where they are those of C order."""
    if strides is None or 0 in shape:
        return None
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != step:
            return strides
        step *= extent
    return None


def gathered(found: DeviceView, driver: Driver, stream: Stream) -> DeviceView:
    """Return a copy in C order of an array in another order; it goes by way of the host."""
    assert found.strides is not None
    width = found.dtype.itemsize
    ends = [(n - 1) * s for n, s in zip(found.shape, found.strides, strict=True)]
    low = sum([min(end, 0) for end in ends])
    raw = np.empty(sum([max(end, 0) for end in ends]) - low + 1, found.dtype)
    driver.download(raw, found.address + low * width, stream)
    steps = [s * width for s in found.strides]
    array = np.lib.stride_tricks.as_strided(raw[-low:], found.shape, steps).copy(order="C")
    return uploaded(array, driver, stream)


def uploaded(array: Array, driver: Driver, stream: Stream) -> DeviceView:
    """Return a copy of an array of the host in the memory of the GPU."""
    memory = DeviceMemory(driver, array.nbytes, stream)
    driver.upload(memory.address, array, stream)
    return DeviceView(array, memory.address, array.shape, array.dtype, None, False, memory)


def stream_number(stream: object, subject: str) -> Stream:
    """Return a stream of any package as the driver's number; None is the default stream.

    Raises:
        LaunchError: it is no stream.
    """
    if stream is None:
        return 0
    if isinstance(stream, int) and not isinstance(stream, bool) and stream >= 0:
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        told = protocol() if callable(protocol) else protocol
        return int(told[1])
    for name in ("cuda_stream", "ptr", "handle"):  # PyTorch, CuPy, pycuda and Numba
        number: Any = getattr(stream, name, None)
        if hasattr(number, "value"):
            number = number.value or 0  # ctypes reads a null pointer as None
        if isinstance(number, int):
            return number
    raise LaunchError(
        subject,
        f"the stream is of type {type(stream).__name__}",
        "pass a stream of PyTorch, CuPy, cuda-core or pycuda, or its address",
    )
