"""C source to a loaded library, by the compiler that the system has.

Programs that a compilation runs: each in a private folder, and ended with all that it starts.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
import platform
import re
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from threading import Lock, current_thread, main_thread
from typing import Any

from loopnest.backends.clike.source_excerpt import excerpt
from loopnest.base.errors import CompileError
from loopnest.launch.disk_cache import DiskCache, digest

HEADER = "loopnest_math.h"
"""What generated source includes; it stands beside the source when that is compiled."""

_FILE = "kernel.c"
_log = logging.getLogger("loopnest")

# None of these changes a result by more than rounding:
# -ffp-contract=fast lets a * b + c be rounded once, as CUDA compilers do by default;
# -fno-math-errno and -fno-trapping-math say that nobody reads errno or the exception flags, which
#   lets square roots inline and both sides of a select be computed (if-conversion, so SIMD).
# Not -fwrapv: values of integer tensors are computed unsigned where they may wrap, and an index
#   that might wrap is no address that moves by 1: its loads would become gathers.
_FLAGS = (
    "-std=gnu11",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-shared",
    "-w",
)
# Sums keep their order even so: the compensated sums of the header rely on it.
_FAST_MATH = ("-fno-signed-zeros", "-freciprocal-math", "-DLN_FAST_MATH")
# The last resort of each list is to do without. Where CC names a processor, that is the one.
_PROCESSOR = ("-march=", "-mcpu=")
_NATIVE = (("-march=native",), ("-mcpu=native",), ())
_OPENMP = (("-fopenmp",), ("-fopenmp-simd", "-DLOOPNEST_OPENMP_SIMD"), ())
_MEND_CC = "mend or unset CC"
_PROBE = """\
int loopnest_probe(int n) {
  int sum = 0;
#pragma omp parallel for reduction(+ : sum)
  for (int i = 0; i < n; i++) sum += i;
  return sum;
}
"""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C compiler: the command that starts it and the first line of its ``--version``."""

    command: tuple[str, ...]
    version: str

    def __str__(self) -> str:
        return f"{shlex.join(self.command)} ({self.version})"


@dataclass(frozen=True, slots=True)
class Features:
    """The flags of a compiler for this CPU, for threads, and for SIMD pragmas without threads."""

    native: tuple[str, ...]
    threads: tuple[str, ...]
    simd: tuple[str, ...]


class Library:
    """A loaded library; it stays loaded, so that its functions stay callable."""

    def __init__(self, handle: ctypes.CDLL, source: str) -> None:
        self.source = source
        self._handle = handle

    def function(
        self, name: str, argtypes: Sequence[Any] = (), restype: Any = None
    ) -> Callable[..., Any]:
        """Return a function of the library; calls of it release the GIL.

        Args:
            name: its name in C.
            argtypes: the ctypes types of its parameters.
            restype: the ctypes type of its result, None for void.

        Raises:
            CompileError: the library has no such function.
        """
        try:
            found = self._handle[name]
        except AttributeError as error:
            raise CompileError(f"function {name}", f"{_FILE} does not define it") from error
        found.argtypes = list(argtypes)
        found.restype = restype
        return found


def find_compiler() -> Compiler | None:
    """Return the compiler that ``CC`` names, else the first of cc, gcc and clang, or None.

    ``CC`` may hold arguments (``ccache gcc``); ``-march=`` or ``-mcpu=`` among them names the
    processor to compile for, else it is the one at hand. Where CC is set, no other is tried.
    """
    return _find(os.environ.get("CC", ""), os.environ.get("PATH", ""))


def obstacle() -> str | None:
    """Return why there is no compiler that works, None where there is one."""
    compiler = find_compiler()
    if compiler is None:
        return "no C compiler was found"
    try:
        _features(compiler)
    except CompileError as error:
        return str(error).partition("\n")[0]
    return None


def compile_c(
    source: str,
    *,
    optimize: int = 3,
    openmp: bool = True,
    fast_math: bool = False,
    flags: tuple[str, ...] = (),
) -> Library:
    """Compile C source that may include `HEADER`, and load it; or take it from memory or disk.

    Threads and processes that ask for the same source at once compile it once.

    Args:
        source: the text of one translation unit. The compiler is stopped when it has taken
            LOOPNEST_COMPILE_SECONDS (600; 0: no limit).
        optimize: the level after -O; below 2 the header's functions are not inlined by force.
        openmp: build ``#pragma omp parallel`` too, not the SIMD pragmas alone. Where the compiler
            cannot, the build is serial, and that is logged once.
        fast_math: allow reciprocals for divisions, forget the sign of zero, and compute erf and
            tanh of float32 within 7 and 6 ulp instead of 1.
        flags: more of them; a compiler that does not know them all gets none.

    Raises:
        CompileError: no compiler; one that does not work; it refuses the source.
    """
    key, build = _job(source, optimize, openmp, fast_math, flags)
    return _LIBRARIES.get(key, lambda: Library(_library("c", key, build), source))


def machine_code(
    source: str, *, optimize: int = 3, fast_math: bool = False, flags: tuple[str, ...] = ()
) -> bytes:
    """Return the library that `compile_c` loads, as bytes: the same where the code is the same.

    Raises:
        CompileError: as `compile_c`.
    """
    key, build = _job(source, optimize, True, fast_math, flags)
    entries = DiskCache("c", ".so")
    with entries.lock(key):
        found = entries.get(key)
        if found is None:
            found = build()
            entries.put(key, found)
    return found


def command_line(
    *, optimize: int = 3, fast_math: bool = False, flags: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Return the command that `machine_code` runs, without its files; raises as that."""
    compiler = _required()
    own = _flags(compiler, optimize, True, fast_math)
    return (*compiler.command, *own, *_known(compiler, flags))


def load_library(data: bytes) -> Library:
    """Load a library that `machine_code` made, on this machine or another.

    Raises:
        CompileError: it does not load.
    """
    return Library(_load_copy(data), "")


def _job(
    source: str, optimize: int, openmp: bool, fast_math: bool, flags: tuple[str, ...]
) -> tuple[str, Callable[[], bytes]]:
    """Return the key of a library in the cache, and what builds it."""
    compiler = _required()
    flags = (*_flags(compiler, optimize, openmp, fast_math), *_known(compiler, flags))
    header = _header()
    key = digest(package_version(), str(compiler), shlex.join(flags), cpu_model(), header, source)
    return key, partial(_build, compiler, flags, source)


class _Once:
    """Results by key, each computed once; other threads wait for it. Failures are not kept."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._results: dict[str, Future[Library]] = {}

    def get(self, key: str, build: Callable[[], Library]) -> Library:
        while True:
            with self._lock:
                found = self._results.get(key)
                result = self._results.setdefault(key, Future())
            if found is None:
                self._compute(key, result, build)
            with suppress(CancelledError):  # whose turn it was, was interrupted
                return result.result()

    def _compute(self, key: str, result: Future[Library], build: Callable[[], Library]) -> None:
        try:
            result.set_result(build())
        except BaseException as error:
            with self._lock:
                del self._results[key]
            if not isinstance(error, Exception):
                result.cancel()
                raise
            result.set_exception(error)

    def forget_unfinished(self) -> None:
        """Drop what other threads were at when this process was forked: it lacks them."""
        self._lock = Lock()
        self._results = {key: result for key, result in self._results.items() if result.done()}


_LIBRARIES = _Once()
os.register_at_fork(after_in_child=lambda: _LIBRARIES.forget_unfinished())


def _library(kind: str, key: str, build: Callable[[], bytes]) -> ctypes.CDLL:
    """Load the library of a cache entry; build it where there is none that loads.

    Raises:
        CompileError: it cannot be built, or what was built does not load.
    """
    entries = DiskCache(kind, ".so")
    if (stored := _stored(entries, key)) is not None:
        return stored
    with entries.lock(key):
        # Another process may have built it while this one waited.
        if (stored := _stored(entries, key)) is not None:
            return stored
        built = build()
        entries.put(key, built)
        return _stored(entries, key) or _load_copy(built)


def _stored(entries: DiskCache, key: str) -> ctypes.CDLL | None:
    """Load an entry; None where there is none, or none that loads."""
    with entries.entry(key) as found:
        if found is None:
            return None
        data, path = found
        try:
            return ctypes.CDLL(path)
        except OSError:  # no library, or a file system without execution, or without /proc
            with suppress(CompileError):
                return _load_copy(data)
    return None


def _load_copy(data: bytes) -> ctypes.CDLL:
    """Load a library from a file of its own, which is gone afterwards.

    Raises:
        CompileError: it does not load.
    """
    with workplace() as folder:
        path = folder / "kernel.so"
        path.write_bytes(data)
        try:
            return ctypes.CDLL(str(path))
        except OSError as error:
            reason = f"the compiled library does not load ({error})"
            hint = "where the file system allows no execution, set TMPDIR to a folder on another"
            raise CompileError(_FILE, reason, hint) from error


# The compiler and what it can do


@lru_cache(maxsize=16)
def _find(cc: str, path: str) -> Compiler | None:
    try:
        commands = [shlex.split(cc)] if cc.strip() else [["cc"], ["gcc"], ["clang"]]
    except ValueError:  # a quotation without its end
        return None
    for name, *arguments in commands:
        program = shutil.which(name, path=path)
        if program is not None and (version := _ask_version((program, *arguments))):
            return Compiler((program, *arguments), version)
    return None


def _ask_version(command: tuple[str, ...]) -> str:
    try:
        done = run((*command, "--version"))
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.partition("\n")[0].strip() if done.returncode == 0 else ""


def _required() -> Compiler:
    compiler = find_compiler()
    if compiler is not None:
        return compiler
    if cc := os.environ.get("CC", "").strip():
        raise CompileError('target "c"', f"CC={cc} does not start", _MEND_CC)
    hint = "install one (Debian, Ubuntu: apt install gcc; macOS: xcode-select --install) or set CC"
    raise CompileError('target "c"', "no C compiler (cc, gcc, clang) was found", hint)


@cache
def _features(compiler: Compiler) -> Features:
    """Find out by trial which flags work.

    Raises:
        CompileError: the compiler builds nothing that loads.
    """
    named = any(argument.startswith(_PROCESSOR) for argument in compiler.command)
    for native in ((),) if named else _NATIVE:
        for level, threads in enumerate(_OPENMP):
            with suppress(CompileError):
                _probe(compiler, (*native, *threads))
                return Features(native, threads, _OPENMP[max(level, 1)])
    _probe(compiler, ())  # raises again, with the compiler's message
    return Features((), (), ())


def _probe(compiler: Compiler, flags: tuple[str, ...]) -> None:
    """Build and load a library: a linker may put off what is missing, so both are tried.

    What works is kept on disk; what does not is tried again in the next process, where it may
    have been installed.

    Raises:
        CompileError: it does not work.
    """
    key = digest(str(compiler), cpu_model(), shlex.join(flags))
    _library("probe", key, partial(_build, compiler, (*_FLAGS, *flags), _PROBE))


def _flags(compiler: Compiler, optimize: int, openmp: bool, fast_math: bool) -> tuple[str, ...]:
    features = _features(compiler)
    threads = features.threads if openmp else features.simd
    if openmp and threads != _OPENMP[0]:
        _tell_serial(compiler)
    compact = () if optimize >= 2 else ("-DLOOPNEST_COMPACT",)
    fast = _FAST_MATH if fast_math else ()
    return (*_FLAGS, f"-O{optimize}", *features.native, *threads, *compact, *fast)


@cache
def _known(compiler: Compiler, flags: tuple[str, ...]) -> tuple[str, ...]:
    """Return `flags` where the compiler takes them, else none."""
    if not flags:
        return ()
    try:
        _probe(compiler, flags)
    except CompileError:
        return ()
    return flags


@cache
def _tell_serial(compiler: Compiler) -> None:
    _log.warning(
        "kernels on target 'c' run on one thread: %s builds no OpenMP code "
        "(gcc brings libgomp along; clang needs the package libomp-dev)",
        compiler,
    )


@cache
def cpu_model() -> str:
    """Return what decides over the code that -march=native gives: model and feature flags."""
    wanted = ("model name", "flags", "CPU implementer", "CPU part", "Features")
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    first = text.partition("\n\n")[0].splitlines()
    return "\n".join(line for line in first if line.partition("\t")[0] in wanted)


@cache
def package_version() -> str:
    """Return the version of this package; "unknown" where it runs from a source tree."""
    from importlib import metadata

    try:
        return metadata.version("loopnest")
    except metadata.PackageNotFoundError:  # run from a source tree; the header is in the key
        return "unknown"


@cache
def _header() -> str:
    from importlib import resources

    return resources.files("loopnest.backends.cpu").joinpath(HEADER).read_text(encoding="utf-8")


# One compilation


def _build(compiler: Compiler, flags: tuple[str, ...], source: str) -> bytes:
    """Compile `source` and return the library's bytes.

    Raises:
        CompileError: the compiler fails; with its messages and the lines they are about.
    """
    with workplace() as folder:
        (folder / _FILE).write_text(source, encoding="utf-8")
        (folder / HEADER).write_text(_header(), encoding="utf-8")
        command = (*compiler.command, *flags, _FILE, "-o", "kernel.so", "-lm")
        try:
            done = run(command, folder)
        except OSError as error:
            raise CompileError(str(compiler), f"does not start ({error.strerror})") from error
        except subprocess.TimeoutExpired as error:
            raise _too_slow(compiler, flags, source, error.timeout) from error
        if done.returncode:
            raise _refusal(compiler, source, done)
        try:
            return (folder / "kernel.so").read_bytes()
        except FileNotFoundError as error:
            reason = "ended without an error and made no library"
            raise CompileError(str(compiler), reason, _MEND_CC) from error


def _too_slow(
    compiler: Compiler, flags: tuple[str, ...], source: str, seconds: float
) -> CompileError:
    kernels = ", ".join(re.findall(r"^int (\w+)\($", source, re.MULTILINE)) or _FILE
    level = next((flag for flag in flags if flag.startswith("-O")), "no -O")
    lines = len(source.splitlines())
    what = f"{kernels} ({lines} lines of C, {level})"
    hint = f"set {LIMIT_VARIABLE} to more, or to 0 for no limit; or use a smaller optimize="
    return CompileError(what, f"{compiler} did not end within {seconds:g} seconds", hint)


def _refusal(
    compiler: Compiler, source: str, done: subprocess.CompletedProcess[str]
) -> CompileError:
    log = done.stderr.strip() or f"no message, exit status {done.returncode}"
    shown = "\n".join(log.splitlines()[:40])
    around = excerpt(source.splitlines(), _failing_lines(log))
    reason = f"{compiler} refused the source\n{shown}" + (f"\n\n{around}" if around else "")
    return CompileError(_FILE, reason)


def _failing_lines(log: str, at_most: int = 5) -> list[int]:
    found = re.findall(rf"^{re.escape(_FILE)}:(\d+):(?:\d+:)? (?:fatal )?error:", log, re.MULTILINE)
    return [int(line) for line in found][:at_most]


LIMIT_VARIABLE = "LOOPNEST_COMPILE_SECONDS"

_SECONDS = 600
# How Linux shows owners whom a container does not know, its host's root among them.
_UNMAPPED = 65534
_SET_TMPDIR = "set TMPDIR to another"


@contextmanager
def workplace() -> Iterator[Path]:
    """Yield a folder for temporary files that nobody else can change; it is deleted afterwards.

    Raises:
        CompileError: there is no place for it, or no space.
    """
    place = "the temporary folder"
    try:
        place = f"the temporary folder {tempfile.gettempdir()}"
        if reason := _open_to_others(os.stat(tempfile.gettempdir())):
            raise CompileError(place, reason, _SET_TMPDIR)
        with tempfile.TemporaryDirectory(prefix="loopnest-") as name:
            yield Path(name)
    except OSError as error:
        reason = f"cannot be used ({error.strerror or error})"
        raise CompileError(place, reason, _SET_TMPDIR) from error


def _open_to_others(status: os.stat_result) -> str | None:
    """Return why others could exchange a folder in a temporary folder that has this status."""
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        return f"lets every user replace its files (mode {stat.S_IMODE(status.st_mode):04o})"
    if status.st_uid not in (os.geteuid(), 0, _UNMAPPED):
        return f"belongs to user {status.st_uid}"
    return None


def run(command: tuple[str, ...], folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program to its end.

    Where it is not waited for any more, by an interrupt or the time limit, it ends with all the
    programs that it has started.

    Raises:
        OSError: it does not start.
        CompileError: it did not end in time.
    """
    # LC_ALL: messages in English and in ASCII, so that they can be searched.
    with ExitStack() as start:
        start.enter_context(_interrupts_later())
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            process_group=0,
        )
        with process:
            try:
                start.close()
                out, err = process.communicate(timeout=time_limit())
            except BaseException:
                with suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Let an interrupt wait for the end of a `with` block.

    One that came while a program starts would leave nobody who knows of the program.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or current_thread() is not main_thread():
        yield
        return
    came: list[tuple[Any, ...]] = []
    signal.signal(signal.SIGINT, lambda *told: came.append(told))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[0])


def time_limit() -> float | None:
    """Return how many seconds a compilation may take; None for no limit.

    Raises:
        CompileError: the environment has no number.
    """
    text = os.environ.get(LIMIT_VARIABLE, "").strip()
    try:
        seconds = float(text or _SECONDS)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        reason = "the time limit of the C compiler is no number of seconds"
        raise CompileError(
            f"{LIMIT_VARIABLE}={text}", reason, "set it to one, or to 0 for no limit"
        )
    return seconds or None
