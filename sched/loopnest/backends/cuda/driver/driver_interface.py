"""The driver interface: all that launching asks of a GPU, and which package does it here.

Three packages can: pycuda; else cuda-core, by its launcher; else cuda-bindings alone, which
compiling needs in any case. There is one driver, on cuda-bindings; the other two override how it
loads and launches kernels, so that a program keeps the package that it has chosen. All work in the
device's primary context, which PyTorch and others share, and make it current only for the length of
a call.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy.typing as npt

from loopnest.base.errors import CompileError, LaunchError

Address: TypeAlias = int
Stream: TypeAlias = int
"""A CUstream as a number; 0 is the legacy default stream."""

PER_THREAD: Stream = 2
"""The default stream of the calling thread: one number for as many streams as there are threads."""

INSTALL = "pip install 'loopnest[cuda]'"


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


class Driver(Protocol):
    """One GPU. Every method but `current` is called inside ``with driver.current()``."""

    @property
    def device(self) -> Device:
        """The GPU."""

    def current(self) -> AbstractContextManager[None]:
        """Make the context current in this thread, and the one before it afterwards."""

    def load(self, code: bytes, name: str) -> Any:
        """Load machine code or PTX and return its kernel `name`, which keeps the code loaded."""

    def allow_shared(self, function: Any, count: int) -> None:
        """Let a kernel have `count` bytes of dynamic shared memory, beyond 48 KiB."""

    def resident_blocks(self, function: Any, threads: int, dynamic_bytes: int) -> int:
        """Return how many blocks of a kernel a multiprocessor holds at once."""

    def launch(
        self, function: Any, launch: DriverLaunch, arguments: Sequence[Any], stream: Stream
    ) -> None:
        """Enqueue a kernel; `arguments` are ctypes objects, ``c_void_p`` for addresses."""

    def allocate(self, count: int, stream: Stream) -> Address:
        """Return `count` bytes of device memory for work on `stream`, aligned to 256 bytes."""

    def free(self, address: Address, stream: Stream | None) -> None:
        """Give memory back once all work is done that `stream` was given so far.

        Without a stream, wait here until all work on the GPU that may use it is done.
        """

    def upload(self, address: Address, source: npt.NDArray[Any], stream: Stream) -> None:
        """Copy a C-contiguous array to the device; it may be changed when this returns."""

    def download(self, target: npt.NDArray[Any], address: Address, stream: Stream) -> None:
        """Copy to a C-contiguous array; all that `stream` was given before is done then."""

    def zero(self, address: Address, count: int, stream: Stream) -> None:
        """Set `count` bytes to 0."""

    def wait(self, stream: Stream, other: Stream) -> None:
        """Let what `stream` is given from now on come after what `other` was given so far."""

    def synchronize(self, stream: Stream) -> None:
        """Wait until all is done that `stream` was given."""

    def timed(self, work: Callable[[], None], stream: Stream) -> float:
        """Call `work` and wait; return the seconds that the GPU took for what it enqueued."""


_log = logging.getLogger("loopnest")
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
    """Return the first launcher that is installed and works; one that does not is told of."""
    from loopnest.backends.cuda.driver.driver_bindings import BindingsDriver, open_device

    device, handles = open_device()
    broken: list[str] = []
    for package, make in (("pycuda", _pycuda), ("cuda-core", _core)):
        try:
            found = make(device, handles)
        except (
            Exception
        ) as error:  # of the import or of the first calls: pycuda has its own classes
            broken.append(f"{package} is installed but does not work ({_in_words(error)})")
            continue
        if found is not None:
            _tell_broken(broken, package)
            return found
    _tell_broken(broken, "cuda-bindings")
    return BindingsDriver(device, handles)


def _pycuda(device: Device, handles: Any) -> Driver | None:
    """Return pycuda's driver; None where it is not installed."""
    if importlib.util.find_spec("pycuda") is None:
        return None
    from loopnest.backends.cuda.driver.driver_pycuda import PycudaDriver

    return PycudaDriver(device, handles)


def _core(device: Device, handles: Any) -> Driver | None:
    """Return cuda-core's driver; None where it is not installed, or too old."""
    if importlib.util.find_spec("cuda.core") is None:
        return None
    from cuda import core  # has_core takes what does not import for missing

    from loopnest.backends.cuda.driver.driver_core import CoreDriver, has_core

    return CoreDriver(device, handles) if core and has_core() else None


def _tell_broken(broken: Sequence[str], used: str) -> None:
    if broken:
        _log.warning("kernels are launched by %s: %s", used, "; ".join(broken))


def _in_words(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
