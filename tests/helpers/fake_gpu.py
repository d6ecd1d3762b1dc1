"""A GPU that is none: memory of the host, kernels that the interpreter runs, a log of all calls.

It takes the place of a `Driver`, and checks what a GPU would not forgive: arguments of the wrong
number or type, memory that was not allocated, calls without a context, a missing opt-in.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from time import perf_counter
from types import SimpleNamespace

import numpy as np

from loopnest.backends.clike.identifiers import symbol
from loopnest.backends.clike.narrow_counts import launch_names
from loopnest.backends.cuda.driver import gpu_driver as drivers
from loopnest.backends.cuda.driver.gpu_driver import Device
from loopnest.backends.cuda.printing.cuda_printer import print_cuda
from loopnest.backends.cuda.toolchain import nvrtc
from loopnest.backends.cuda.toolchain.nvrtc import Architecture
from loopnest.backends.interpret import Interpreter

H100 = Device("Fake H100", 0, (9, 0), 132, 232448, (13, 9))
A100 = Device("Fake A100", 0, (8, 0), 108, 166912, (13, 9))


class FakeGpu:
    """A `Driver`; `log` holds the names of its calls with what matters of each."""

    def __init__(self, device=H100, resident=2):
        self.device = device
        self.resident = resident
        self.memory: dict[int, np.ndarray] = {}
        self.log: list[tuple] = []
        self.depth = 0
        self.sources: dict[bytes, object] = {}
        self.next = 1 << 20

    @contextmanager
    def current(self):
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    def _note(self, *what):
        assert self.depth > 0, f"{what[0]} without a context"
        self.log.append(what)

    def calls(self, name):
        return [entry[1:] for entry in self.log if entry[0] == name]

    # Kernels

    def load(self, code, name):
        self._note("load", name)
        return SimpleNamespace(name=name, **self._launched(code, name), shared=48 * 1024)

    def _launched(self, code, name):
        """Return the launch that a function is, and the program that it is one of."""
        whole = self.sources[code]
        number = [symbol(found) for found in launch_names(whole)].index(name)
        return {"whole": whole, "program": whole.launches[number]}

    def allow_shared(self, function, count):
        self._note("allow_shared", count)
        assert count <= self.device.shared_bytes
        function.shared = count

    def resident_blocks(self, function, threads, dynamic_bytes):
        self._note("resident_blocks", threads, dynamic_bytes)
        return self.resident

    def launch(self, function, launch, arguments, stream):
        self._note("launch", function.name, launch, stream)
        assert launch.dynamic_bytes <= function.shared
        program = function.program
        hidden = 1 if program.is_cooperative else 0
        assert len(arguments) == len(program.params) + hidden
        assert launch.cooperative == program.is_cooperative
        arrays, sizes, scalars = {}, {}, {}
        pairs = list(zip(program.params, arguments, strict=False))
        for param, argument in pairs:
            if param.kind == "size":
                assert type(argument) is ctypes.c_int64
                sizes[param.name] = argument.value
        for param, argument in pairs:
            if param.kind == "scalar":
                scalars[param.name] = _number(param, argument)
            elif param.buffer is not None:
                assert type(argument) is ctypes.c_void_p
                array = self._array(param, argument.value, sizes)
                if param.kind == "workspace":
                    assert param.buffer.kind != "counter" or not array.any()
                else:
                    arrays[param.name] = array
        if hidden:
            assert self.at(arguments[-1].value, 4).view(np.uint32)[0] == 0
        if function.whole.launches[-1].body is program.body:  # by then all of them were enqueued
            Interpreter(function.whole, races=False).run(arrays, sizes, scalars)

    def _array(self, param, address, sizes):
        shape = tuple([int(_value(s, sizes)) for s in param.shape])
        count = int(np.prod(shape, dtype=int)) * param.dtype.size
        if count == 0:
            return np.empty(shape, param.dtype.numpy)
        if param.strides is not None:
            count = int(_value(param.buffer.size, sizes)) * param.dtype.size
            return self.at(address, count).view(param.dtype.numpy)
        return self.at(address, count).view(param.dtype.numpy).reshape(shape)

    # Memory

    def allocate(self, count, stream):
        self._note("allocate", count, stream)
        address = self.next
        self.next += -(-count // 256) * 256 + 256
        self.memory[address] = np.full(count, 0xAB, np.uint8)
        return address

    def free(self, address, stream):
        self._note("free", address, stream)
        del self.memory[address]

    def at(self, address, count):
        """Return the bytes at an address: part of one allocation."""
        for start, held in self.memory.items():
            if start <= address and address + count <= start + len(held):
                return held[address - start : address - start + count]
        raise AssertionError(f"no memory at {address:#x}, {count} bytes")

    def upload(self, address, source, stream):
        self._note("upload", source.nbytes, stream)
        assert source.flags.c_contiguous
        if source.nbytes:
            self.at(address, source.nbytes)[:] = np.frombuffer(source.tobytes(), np.uint8)

    def download(self, target, address, stream):
        self._note("download", target.nbytes, stream)
        assert target.flags.c_contiguous
        if target.nbytes:
            raw = self.at(address, target.nbytes).copy()
            target[...] = raw.view(target.dtype).reshape(target.shape)

    def zero(self, address, count, stream):
        self._note("zero", count, stream)
        self.at(address, count)[:] = 0

    def wait(self, stream, other):
        self._note("wait", stream, other)

    def timed(self, work, stream):
        start = perf_counter()
        work()
        return perf_counter() - start

    def synchronize(self, stream):
        self._note("synchronize", stream)

    # Arrays of another package

    def array(self, values, strides=None, offset=0, read_only=False, stream=None):
        """Return an array of this GPU that speaks the CUDA array interface."""
        values = np.ascontiguousarray(values)
        with self.current():
            address = self.allocate(values.nbytes + offset, 0)
            self.upload(address + offset, values, 0)
        shape = values.shape
        described = {
            "shape": shape, "typestr": values.dtype.str, "data": (address + offset, read_only),
            "strides": strides, "version": 3, "stream": stream,
        }  # fmt: skip
        return SimpleNamespace(__cuda_array_interface__=described)

    def read(self, array):
        """Return the values of such an array, or of a result."""
        described = array.__cuda_array_interface__
        dtype = np.dtype(described["typestr"])
        count = int(np.prod(described["shape"], dtype=int)) * dtype.itemsize
        return self.at(described["data"][0], count).view(dtype).reshape(described["shape"])


def _number(param, argument):
    if param.dtype.is_narrow:
        return np.uint16(argument.value).view(param.dtype.numpy)
    return param.dtype.numpy.type(argument.value)


def _value(size, sizes):
    from loopnest.scalar.arguments import size_value

    return size_value(size, sizes)


def plug_in(monkeypatch, gpu):
    """Make `gpu` this machine's GPU: kernels get no machine code, the interpreter runs them."""

    def printed(program, bits=32, min_blocks=None):
        text = print_cuda(program, bits, min_blocks)
        gpu.sources[text.encode()] = program
        return text

    def compiled(source, arch, **options):
        gpu.log.append(("compile", arch, options))
        return SimpleNamespace(cubin=source.encode(), ptx=source, target=nvrtc.parse_arch(arch))

    monkeypatch.setattr(drivers, "_found", [gpu])
    monkeypatch.setattr(drivers, "_obstacle", [])
    monkeypatch.setattr("loopnest.backends.cuda.printing.cuda_printer.print_cuda", printed)
    monkeypatch.setattr(nvrtc, "compile_cuda", compiled)
    known = Architecture("".join(map(str, gpu.device.capability)), virtual=False)
    monkeypatch.setattr(nvrtc, "loadable_arch", lambda capability: known)
    monkeypatch.setattr(nvrtc, "check_driver", lambda target, supported: None)
    return gpu
