"""CUDA source to PTX, machine code, SASS and resource numbers by NVRTC: no GPU, no driver."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType

from loopnest.backends.clike.source_excerpt import excerpt
from loopnest.backends.cuda.toolchain.cubin import Resources, disassemble, kernel_resources
from loopnest.backends.cuda.toolchain.cuda_toolkit import (
    INSTALL_OR_CUDA_HOME,
    include_dirs,
    load_nvrtc,
    nvrtc_build,
)
from loopnest.base.errors import CompileError, InternalError
from loopnest.launch.disk_cache import DiskCache, digest

_FILE = "kernel.cu"
_FORMAT = "1"  # of cache entries: raise it with any change of _Output.encode
_ARCH_OPTIONS = ("-arch", "--gpu-architecture", "-gpu-architecture")
_INCLUDE_OPTIONS = ("-I", "-include", "--include-path", "--pre-include")
# Below 24 the assembler raises the limit, above 255 it ignores it; both with a mere warning.
_REGISTERS = range(24, 256)


@dataclass(frozen=True, slots=True)
class Architecture:
    """An architecture: ``capability`` is "90" or "90a"; a virtual one has PTX, no machine code."""

    capability: str
    virtual: bool

    @property
    def real_name(self) -> str:
        return f"sm_{self.capability}"

    @property
    def virtual_name(self) -> str:
        return f"compute_{self.capability}"

    def __str__(self) -> str:
        return self.virtual_name if self.virtual else self.real_name


def parse_arch(arch: str | int) -> Architecture:
    """Read ``"sm_90"``, ``"compute_90"``, ``"90"`` or ``90``; without a prefix it is a real one.

    Raises:
        CompileError: it has another form. Whether NVRTC knows the architecture is seen later.
    """
    text = "" if isinstance(arch, bool) else str(arch)
    found = re.fullmatch(r"(?:(sm|compute)_)?([1-9]\d+[af]?)", text, re.ASCII)
    if found is None:
        raise CompileError(f"arch={arch!r}", "not an architecture", 'use the form "sm_90" or 90')
    return Architecture(found[2], virtual=found[1] == "compute")


def loadable_arch(capability: tuple[int, int]) -> Architecture:
    """Return what to compile for a GPU of that compute capability.

    Its own architecture, or PTX of the newest older one where NVRTC does not know it yet.

    Raises:
        CompileError: NVRTC is missing, or no longer knows so old an architecture.
    """
    nvrtc = load_nvrtc()
    _, numbers = nvrtc.nvrtcGetSupportedArchs()
    number = capability[0] * 10 + capability[1]
    older = [n for n in numbers if n <= number]
    if not older:
        known = ", ".join(map(str, sorted(numbers)))
        reason = f"{_title(nvrtc)} does not know this architecture"
        raise CompileError(f"arch='sm_{number}'", reason, f"it knows {known}")
    return Architecture(str(max(older)), virtual=number not in numbers)


def check_driver(target: Architecture, supported: tuple[int, int]) -> None:
    """Check that a driver loads what NVRTC makes.

    Machine code of a CUDA version loads where the driver is of the same major version or a newer
    one; PTX only where it is not older at all. Source: CUDA Compatibility, "minor version
    compatibility".

    Args:
        target: what is compiled for.
        supported: the newest CUDA version of the driver.

    Raises:
        CompileError: the driver is too old.
    """
    built = _version(load_nvrtc())
    enough = supported >= built if target.virtual else supported[0] >= built[0]
    if not enough:
        kind = "PTX" if target.virtual else "machine code"
        raise CompileError(
            f"arch='{target}'",
            f"NVRTC {_dotted(built)} makes {kind} that this driver is too old for: it supports "
            f"CUDA {_dotted(supported)}",
            f"update the driver, or install nvidia-cuda-nvrtc of CUDA {_dotted(supported)}",
        )


def _dotted(version: tuple[int, int]) -> str:
    return "{}.{}".format(*version)


@dataclass(frozen=True, slots=True)
class _Job:
    """What NVRTC is asked to do; ``machine``: run the assembler too, with its report."""

    source: str
    target: Architecture
    options: tuple[str, ...]
    machine: bool

    @property
    def flags(self) -> tuple[str, ...]:
        if not self.machine:
            return f"--gpu-architecture={self.target.virtual_name}", *self.options
        # The register numbers come from the assembler's report. NVRTC's own cache is off since
        # an answer from there might come without it; ours keeps the report with the code.
        report = ("--ptxas-options=-v", "--no-cache")
        return f"--gpu-architecture={self.target.real_name}", *self.options, *report


@dataclass(frozen=True, slots=True)
class _Output:
    """What one compilation gave; ``cubin`` is empty for a virtual architecture."""

    ptx: str
    cubin: bytes
    log: str

    def encode(self) -> bytes:
        cubin = base64.b64encode(self.cubin).decode()
        return json.dumps({"ptx": self.ptx, "cubin": cubin, "log": self.log}).encode()

    @staticmethod
    def decode(data: bytes) -> _Output | None:
        """Read what `encode` wrote; None for anything else."""
        try:
            fields = json.loads(data)
            return _Output(fields["ptx"], base64.b64decode(fields["cubin"]), fields["log"])
        except (ValueError, KeyError, TypeError):
            return None


class Compiled:
    """CUDA source for one architecture; each artefact is made when it is first asked for.

    All properties raise CompileError where the source, the architecture or the options are
    refused or a tool is missing; ``cubin``, ``sass`` and ``resources`` do so for a virtual
    architecture too.
    """

    def __init__(self, source: str, target: Architecture, options: tuple[str, ...]) -> None:
        self.source = source
        self.target = target
        self.options = options

    @cached_property
    def ptx(self) -> str:
        """The PTX text; alone it costs NVRTC's front end, without the assembler."""
        if "_machine" in self.__dict__:
            return self._machine.ptx
        return _build(_Job(self.source, self.target, self.options, machine=False)).ptx

    @property
    def cubin(self) -> bytes:
        """The machine code: an ELF file, as the driver loads it."""
        return self._machine.cubin

    @property
    def log(self) -> str:
        """NVRTC's messages: warnings, and the assembler's report on each kernel."""
        return self._machine.log

    @cached_property
    def sass(self) -> str:
        """The disassembled machine code."""
        major, _ = _version(load_nvrtc())
        return disassemble(self.cubin, major)

    @cached_property
    def resources(self) -> dict[str, Resources]:
        """Registers, spills, shared memory… of each kernel, by its name."""
        return kernel_resources(self.log, self.cubin)

    @cached_property
    def _machine(self) -> _Output:
        if self.target.virtual:
            real = self.target.real_name
            reason = "a virtual architecture has PTX but no machine code"
            raise CompileError(f"arch='{self.target}'", reason, f"use '{real}'")
        return _build(_Job(self.source, self.target, self.options, machine=True))


def compile_cuda(
    source: str,
    arch: str | int,
    *,
    options: Sequence[str] = (),
    fast_math: bool = False,
    max_registers: int | None = None,
) -> Compiled:
    """Compile CUDA C++ for an architecture; the work is done when a result is asked for.

    ``cuda_fp16.h``, ``cuda_bf16.h`` and the other headers of the toolkit can be included. Results
    are kept in a disk cache, keyed by everything that they depend on, the headers too.

    Args:
        source: one translation unit; kernels declared ``extern "C"`` keep their names.
        arch: "sm_90", 90, "sm_90a"; or "compute_90", which gives PTX only.
        options: more options of NVRTC, except the architecture.
        fast_math: approximate division, sqrt and transcendental functions, flush denormals.
        max_registers: limit per thread, 24 to 255, for kernels with ``__launch_bounds__`` too.

    Raises:
        CompileError: an argument has a wrong form; all else is raised by the result's properties.

    Source: NVRTC documentation, "Supported Compile Options".
    """
    target = parse_arch(arch)
    flags = _checked_options(options)
    if fast_math:
        flags += ("--use_fast_math",)
    if max_registers is not None:
        flags += _register_limit(max_registers)
    return Compiled(source, target, flags)


def _checked_options(options: Sequence[str]) -> tuple[str, ...]:
    if isinstance(options, str) or not all(isinstance(option, str) for option in options):
        raise CompileError(f"options={options!r}", "not a sequence of strings")
    for option in options:
        if option.startswith(_ARCH_OPTIONS):
            # NVRTC would take the last one and only warn.
            raise CompileError(f"options=[{option!r}]", "the architecture is given by arch")
    return tuple(options)


def _register_limit(limit: int) -> tuple[str, ...]:
    if limit not in _REGISTERS:
        allowed = f"use {_REGISTERS[0]} to {_REGISTERS[-1]}"
        raise CompileError(f"max_registers={limit!r}", "no limit that the assembler keeps", allowed)
    # Without the second option the assembler ignores the limit where __launch_bounds__ stands.
    return f"--maxrregcount={limit}", "--ptxas-options=--override-directive-values"


def _build(job: _Job) -> _Output:
    """Compile, or take the result of an earlier process from the disk cache."""
    nvrtc = load_nvrtc()
    _check_target(nvrtc, job.target)
    key = _cache_key(nvrtc, job)
    cache = DiskCache("nvrtc")
    data = None if key is None else cache.get(key)
    if data is not None and (stored := _Output.decode(data)) is not None:
        return stored
    output = _compile(nvrtc, job)
    if key is not None:
        cache.put(key, output.encode())
    return output


def _version(nvrtc: ModuleType) -> tuple[int, int]:
    _, major, minor = nvrtc.nvrtcVersion()
    return major, minor


def _title(nvrtc: ModuleType) -> str:
    return "NVRTC {}.{}".format(*_version(nvrtc))


def _check_target(nvrtc: ModuleType, target: Architecture) -> None:
    """Refuse an architecture that this NVRTC does not know, before it says so in its own words."""
    _, numbers = nvrtc.nvrtcGetSupportedArchs()
    # Architecture-specific features ("a") began with 90, family-specific ones ("f") with 100.
    known = [
        Architecture(f"{number}{suffix}", target.virtual)
        for number in sorted(numbers)
        for suffix, since in (("", 0), ("a", 90), ("f", 100))
        if number >= since
    ]
    if target not in known:
        allowed = ", ".join(map(str, known))
        reason = f"{_title(nvrtc)} does not know this architecture"
        raise CompileError(f"arch='{target}'", reason, f"use one of {allowed}")


def _cache_key(nvrtc: ModuleType, job: _Job) -> str | None:
    """Digest all that the result depends on; None where files come in that cannot be followed."""
    if any(option.startswith(_INCLUDE_OPTIONS) for option in job.options):
        return None
    folders = include_dirs(_version(nvrtc)[0])
    headers = []
    for name in re.findall(r'^\s*#\s*include\s*[<"]?([^>"\n]*)', job.source, re.MULTILINE):
        found = next((each / name for each in folders if (each / name).is_file()), None)
        if found is None or Path(name).is_absolute():
            return None
        status = found.stat()
        headers.append([str(found), status.st_size, status.st_mtime_ns])
    compiler = f"{_title(nvrtc)} {nvrtc_build()}"
    return digest(_FORMAT, compiler, json.dumps(headers), json.dumps(job.flags), job.source)


def _compile(nvrtc: ModuleType, job: _Job) -> _Output:
    include = [f"--include-path={folder}" for folder in include_dirs(_version(nvrtc)[0])]
    flags = [flag.encode() for flag in (*include, *job.flags)]
    status, program = nvrtc.nvrtcCreateProgram(job.source.encode(), _FILE.encode(), 0, [], [])
    _expect_success(nvrtc, status)
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
        log = _fetch(nvrtc, program, "ProgramLog").decode(errors="replace")
        log = log.replace("\0", "").strip()  # NVRTC ends each tool's part with a zero byte
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise _failure(nvrtc, status, job, log)
        ptx = _fetch(nvrtc, program, "PTX").decode().rstrip("\0")
        return _Output(ptx, _fetch(nvrtc, program, "CUBIN"), log)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _fetch(nvrtc: ModuleType, program: object, what: str) -> bytes:
    """Read one of a program's results: NVRTC tells the size and then fills a buffer."""
    status, size = getattr(nvrtc, f"nvrtcGet{what}Size")(program)
    _expect_success(nvrtc, status)
    # NVIDIA's examples pass bytes, which Python takes for constant and may share.
    buffer = bytearray(size)
    if size:
        (status,) = getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
        _expect_success(nvrtc, status)
    return bytes(buffer)


def _expect_success(nvrtc: ModuleType, status: object) -> None:
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise InternalError(_title(nvrtc), f"unexpected status {status}")


def _failure(nvrtc: ModuleType, status: object, job: _Job, log: str) -> CompileError:
    """Say why NVRTC refused: what is missing here, a wrong option, or its log with the source."""
    title = _title(nvrtc)
    if status == nvrtc.nvrtcResult.NVRTC_ERROR_INVALID_OPTION:
        return CompileError(f"options={list(job.options)}", f"{title} refused them: {log}")
    missing = re.search(r'(?:cannot|could not) open source file "([^"]+)"', log)
    if missing and not include_dirs(_version(nvrtc)[0]):
        reason = f"{title} could not open {missing[1]}, and no CUDA headers were found"
        return CompileError(f"{_FILE} for {job.target}", reason, INSTALL_OR_CUDA_HOME)
    pattern = rf"^{re.escape(_FILE)}\((\d+)\): (?:catastrophic )?error"
    lines = [int(line) for line in re.findall(pattern, log, re.MULTILINE)]
    shown = excerpt(job.source.split("\n"), lines[:5])
    # The assembler's report on the kernels that it took would bury its error on another.
    log = re.sub(r"^ptxas (info| {2}).*\n", "", log, flags=re.MULTILINE)
    reason = f"{title} refused the source\n{log}" + (f"\n\n{shown}" if shown else "")
    return CompileError(f"{_FILE} for {job.target}", reason)
