"""Read a compiled CUDA module: the resources of each kernel, and its disassembly."""

from __future__ import annotations

import re
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from loopnest.backends.cuda.toolchain.cuda_toolkit import INSTALL_OR_CUDA_HOME, find_tool
from loopnest.base.errors import CompileError, InternalError
from loopnest.scalar.expr import Expr


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel takes of a multiprocessor, as its machine code was built.

    Attributes:
        registers: 32-bit registers per thread.
        spill_store_bytes: bytes per thread of the store instructions that spill registers,
            each counted once however often it runs, in the kernel and the functions it calls.
        spill_load_bytes: the same for the loads that bring them back.
        shared_bytes: shared memory per block, without the 1 KiB that the system keeps for itself:
            of machine code what is static; of a `Kernel` what a launch gives a block, as a number
            or as an expression over the sizes that it depends on.
        stack_bytes: local memory per thread: arrays that are indexed at run time, and spills.
        constant_bytes: the kernel's own constant banks: its parameters (bank 0, with the
            system's area) and literals; not the module's ``__constant__`` variables.
        barriers: named barriers per block.
    """

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    shared_bytes: int | Expr
    stack_bytes: int
    constant_bytes: int
    barriers: int

    @property
    def spill_bytes(self) -> int:
        """Bytes per thread that spilling moves, stores and loads together; 0: nothing spills."""
        return self.spill_store_bytes + self.spill_load_bytes


def together(found: Iterable[Resources]) -> Resources:
    """Return what the kernels of several launches take: the most of one, spills of all."""
    every = tuple(found)
    return Resources(
        max(r.registers for r in every),
        sum(r.spill_store_bytes for r in every),
        sum(r.spill_load_bytes for r in every),
        max(r.shared_bytes for r in every if isinstance(r.shared_bytes, int)),
        max(r.stack_bytes for r in every),
        max(r.constant_bytes for r in every),
        max(r.barriers for r in every),
    )


def kernel_resources(log: str, cubin: bytes) -> dict[str, Resources]:
    """Return the resources of every kernel by its (mangled) name, in the log's order.

    All but the constant banks comes from the assembler's report: it alone tells spills from other
    uses of the stack, and its shared memory is what the kernel declares, where cuobjdump adds the
    system's 1 KiB for sm_90 and later. Reports of recent versions leave the constant banks out,
    so these are the sizes of the sections of the cubin.

    Args:
        log: NVRTC's log of a compilation with ``--ptxas-options=-v``.
        cubin: the machine code, an ELF file.

    Raises:
        InternalError: the report or the cubin has another form than the ones known.

    Source: CUDA Binary Utilities, cuobjdump's ``--dump-resource-usage``; NVRTC's log as printed
        by CUDA 13.0 to 13.5.
    """
    constants = _constant_bytes(cubin)
    # A kernel's block may hold the properties of the functions that it calls, after its own.
    _, *blocks = re.split(r"Compiling entry function '([^']+)' for ", log)
    kernels = {
        name: _resources(name, block, constants[name])
        for name, block in zip(blocks[::2], blocks[1::2], strict=True)
    }
    if not kernels:
        raise InternalError("resources", f"the assembler's report names no kernel:\n{log}")
    return kernels


def _resources(name: str, block: str, constant_bytes: int) -> Resources:
    used = re.search(r"Used (\d+) registers.*", block)
    if used is None:
        raise InternalError(f"resources of {name}", f"no register count in the report:\n{block}")

    def first(pattern: str) -> int:
        found = re.search(pattern, used[0])
        return int(found[1]) if found else 0

    def total(pattern: str) -> int:
        return sum(map(int, re.findall(pattern, block)))

    return Resources(
        registers=int(used[1]),
        spill_store_bytes=total(r"(\d+) bytes spill stores"),
        spill_load_bytes=total(r"(\d+) bytes spill loads"),
        shared_bytes=first(r"(\d+) bytes smem"),
        stack_bytes=first(r"(\d+) bytes cumulative stack size"),
        constant_bytes=constant_bytes,
        barriers=first(r"used (\d+) barriers"),
    )


def _constant_bytes(cubin: bytes) -> Counter[str]:
    """Sum the sections ``.nv.constant<bank>.<kernel>`` by kernel."""
    sizes: Counter[str] = Counter()
    for name, size in _sections(cubin):
        if owner := re.fullmatch(r"\.nv\.constant\d+\.(.+)", name):
            sizes[owner[1]] += size
    return sizes


def _sections(elf: bytes) -> Iterator[tuple[str, int]]:
    """Yield name and size in bytes of each section of a 64-bit little-endian ELF file.

    Source: System V ABI, chapter 4, "ELF Header" and "Sections".
    """
    if elf[:6] != b"\x7fELF\x02\x01":
        raise InternalError("cubin", f"not a 64-bit ELF file; it begins with {elf[:6]!r}")
    (table,) = struct.unpack_from("<Q", elf, 40)
    entry_size, count, names_index = struct.unpack_from("<HHH", elf, 58)

    def header(index: int) -> tuple[int, int, int]:
        name, _, _, _, offset, size = struct.unpack_from("<IIQQQQ", elf, table + index * entry_size)
        return name, offset, size

    names = header(names_index)[1]
    for index in range(count):
        name, _, size = header(index)
        start = names + name
        yield elf[start : elf.index(0, start)].decode(), size


def disassemble(cubin: bytes, major: int) -> str:
    """Return the SASS of a cubin, by nvdisasm (which names branch targets) or cuobjdump.

    Args:
        cubin: the machine code.
        major: the major version of the CUDA toolkit to prefer.

    Raises:
        CompileError: neither program is installed, or it fails.
    """
    for name, option in (("nvdisasm", "--print-code"), ("cuobjdump", "--dump-sass")):
        if tool := find_tool(name, major):
            return _run(tool, option, cubin)
    reason = "neither nvdisasm nor cuobjdump was found"
    raise CompileError("SASS", reason, INSTALL_OR_CUDA_HOME)


def _run(tool: Path, option: str, cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        try:
            done = subprocess.run([tool, option, file.name], capture_output=True, text=True)
        except OSError as error:
            raise CompileError("SASS", f"{tool} does not start ({error.strerror})") from error
    if done.returncode:
        raise CompileError("SASS", f"{tool} failed: {done.stderr.strip()}")
    return done.stdout
