"""The C compiler runtime and the disk cache behind it."""

from __future__ import annotations

import ctypes
import logging
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import pytest

from helpers.interrupts import heed_interrupts
from loopnest.backends.clike.source_excerpt import excerpt
from loopnest.backends.cpu import c_compiler
from loopnest.backends.cpu.c_compiler import Compiler, compile_c, find_compiler
from loopnest.base.errors import CompileError

COMPILER = find_compiler()
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler")

SOURCE = "int answer(int x) { return x + 41; }\n"
PARALLEL = """\
long total(const long *x, long n) {
  long sum = 0;
#pragma omp parallel for reduction(+ : sum)
  for (long i = 0; i < n; i++) sum += x[i];
  return sum;
}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a memory as empty as a new process has."""
    monkeypatch.setenv("LOOPNEST_CACHE_DIR", str(tmp_path / "cache"))
    forget(monkeypatch)
    return tmp_path / "cache"


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_compiler, "_LIBRARIES", c_compiler._Once())


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that are really compiled."""
    built: list[str] = []
    original = c_compiler._build

    def build(compiler: Compiler, flags: tuple[str, ...], source: str) -> bytes:
        if source != c_compiler._PROBE:
            built.append(source)
        return original(compiler, flags, source)

    monkeypatch.setattr(c_compiler, "_build", build)
    return built


def answer(source: str = SOURCE) -> int:
    function = compile_c(source).function("answer", [ctypes.c_int], ctypes.c_int)
    result: int = function(1)
    return result


def program(path: Path, text: str) -> str:
    """Write a shell script that stands for a compiler."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def compiler() -> Compiler:
    assert COMPILER is not None
    return COMPILER


@needs_compiler
def test_source_is_compiled_once(folder: Path, builds: list[str]) -> None:
    assert answer() == 42
    assert compile_c(SOURCE) is compile_c(SOURCE)
    assert builds == [SOURCE]


@needs_compiler
def test_cc_may_name_a_processor(folder: Path, builds: list[str]) -> None:
    found = compiler()
    c_compiler._features.cache_clear()
    named = Compiler((*found.command, "-march=x86-64"), found.version)
    try:
        flags = c_compiler._features(named).native
    except CompileError:
        pytest.skip("the compiler knows no -march=x86-64")
    assert flags == ()
    assert c_compiler._features(found).native in c_compiler._NATIVE


@needs_compiler
def test_another_process_takes_the_library_from_disk(
    folder: Path, builds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer()
    forget(monkeypatch)
    assert answer() == 42
    assert builds == [SOURCE]


@needs_compiler
def test_key_covers_flags_and_source(folder: Path, builds: list[str]) -> None:
    answer()
    answer("int answer(int x) { return x; }\n")
    compile_c(SOURCE, optimize=1)
    compile_c(SOURCE, openmp=False)
    compile_c(SOURCE, fast_math=True)
    features = c_compiler._features(compiler())
    assert len(builds) == 5 - (features.threads == features.simd)


@needs_compiler
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[: len(data) // 2], id="truncated"),
        pytest.param(lambda data: data[:-1] + bytes([data[-1] ^ 1]), id="one bit"),
        pytest.param(lambda data: b"", id="empty"),
    ],
)
def test_damaged_entry_is_rebuilt(
    folder: Path,
    builds: list[str],
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[bytes], bytes],
) -> None:
    answer()
    (entry,) = (folder / "c").glob("*.so")
    data = entry.read_bytes()
    entry.unlink()  # the loaded library keeps its file; writing into that would crash it
    entry.write_bytes(damage(data))
    forget(monkeypatch)
    assert answer() == 42
    assert builds == [SOURCE, SOURCE]
    forget(monkeypatch)
    assert answer() == 42
    assert len(builds) == 2


@needs_compiler
def test_entry_without_its_sum_is_rebuilt(
    folder: Path, builds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer()
    (sum_file,) = (folder / "c").glob("*.so.sha256")
    sum_file.unlink()
    forget(monkeypatch)
    assert answer() == 42
    assert len(builds) == 2


@needs_compiler
def test_threads_compile_once(folder: Path, builds: list[str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: answer(), range(32))) == {42}
    assert builds == [SOURCE]


@needs_compiler
def test_processes_compile_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    # Slow enough for the others to arrive meanwhile; one short line is appended atomically.
    slow = program(
        tmp_path / "slow",
        f'case "$*" in *--version*) ;; *) grep -q answer kernel.c && echo x >> {log}; '
        f'sleep 0.3;; esac\nexec {compiler().command[0]} "$@"',
    )
    monkeypatch.setenv("CC", slow)
    script = (
        "import ctypes; from loopnest.backends.cpu.c_compiler import compile_c;"
        f"f = compile_c({SOURCE!r}).function('answer', [ctypes.c_int], ctypes.c_int);"
        "print(f(1))"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    assert [process.communicate(timeout=120)[0] for process in running] == ["42\n"] * 4
    assert log.read_text() == "x\n"


@needs_compiler
def test_a_failure_is_not_remembered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise CompileError("kernel.c", "for the test")

    answer("int answer(int x) { return x; }\n")  # the probe is done
    with monkeypatch.context() as patch:
        patch.setattr(c_compiler, "_build", fail)
        with pytest.raises(CompileError) as caught:
            answer()
    assert str(caught.value) == "kernel.c: for the test"
    assert answer() == 42


@needs_compiler
def test_compile_error_shows_message_and_lines(folder: Path) -> None:
    source = "int a;\nint b;\nint c;\nint f(void) {\n  return missing;\n}\nint d;\nint e;\n"
    with pytest.raises(CompileError) as caught:
        compile_c(source)
    error = caught.value
    assert error.subject == "kernel.c"
    head, excerpt = error.reason.split("\n\n")
    assert head.startswith(f"{compiler()} refused the source\n")
    assert re.search(r"^kernel\.c:5:10: error: .*missing", head, re.MULTILINE)
    assert excerpt == (
        "    3 | int c;\n    4 | int f(void) {\n"
        ">   5 |   return missing;\n    6 | }\n    7 | int d;"
    )
    assert not list((folder / "c").glob("*.so"))


def test_excerpt_of_distant_lines() -> None:
    source = "\n".join(f"line {i}" for i in range(1, 20))
    assert excerpt(source.splitlines(), [2, 12]) == (
        "    1 | line 1\n>   2 | line 2\n    3 | line 3\n    4 | line 4\n      ...\n"
        "   10 | line 10\n   11 | line 11\n>  12 | line 12\n   13 | line 13\n   14 | line 14"
    )


def test_failing_lines_are_those_of_errors() -> None:
    log = (
        "kernel.c: In function 'f':\nkernel.c:3:1: warning: x\nkernel.c:5:10: error: y\n"
        "loopnest_math.h:7:1: error: z\nkernel.c:9: fatal error: w\n"
    )
    assert c_compiler._failing_lines(log) == [5, 9]


@needs_compiler
def test_unknown_function(folder: Path) -> None:
    library = compile_c(SOURCE)
    with pytest.raises(CompileError) as caught:
        library.function("other")
    assert str(caught.value) == "function other: kernel.c does not define it"


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_compiler() is None
    with pytest.raises(CompileError) as caught:
        compile_c(SOURCE)
    assert str(caught.value) == (
        'target "c": no C compiler (cc, gcc, clang) was found; install one (Debian, Ubuntu: '
        "apt install gcc; macOS: xcode-select --install) or set CC"
    )


@pytest.mark.parametrize("cc", ["no-such-compiler -m64", "gcc 'unfinished"])
def test_compiler_named_by_cc_is_missing(cc: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", cc)
    assert find_compiler() is None
    with pytest.raises(CompileError) as caught:
        compile_c(SOURCE)
    assert str(caught.value) == f'target "c": CC={cc} does not start; mend or unset CC'


@needs_compiler
def test_cc_may_hold_arguments(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", f"{compiler().command[0]} -DANSWER=42")
    found = find_compiler()
    assert found is not None
    assert found.command == (compiler().command[0], "-DANSWER=42")
    assert answer("int answer(int x) { return ANSWER; }\n") == 42


def test_compiler_that_builds_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = program(
        tmp_path / "broken",
        'case "$*" in *--version*) echo "broken 1.0";; *) echo "no linker" >&2; exit 1;; esac',
    )
    monkeypatch.setenv("CC", broken)
    with pytest.raises(CompileError) as caught:
        compile_c(SOURCE)
    assert str(caught.value) == (f"kernel.c: {broken} (broken 1.0) refused the source\nno linker")


def test_compiler_that_makes_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends without an error; "auto" passes it over."""
    idle = program(tmp_path / "idle", 'case "$*" in *--version*) echo "idle 1.0";; esac')
    monkeypatch.setenv("CC", idle)
    message = f"{idle} (idle 1.0): ended without an error and made no library; mend or unset CC"
    with pytest.raises(CompileError) as caught:
        compile_c(SOURCE)
    assert str(caught.value) == message
    assert c_compiler.obstacle() == message


def test_a_full_temporary_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    if COMPILER is not None:
        c_compiler._features(COMPILER)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(CompileError) as caught:
        c_compiler._build(Compiler(("cc",), "1.0"), (), SOURCE)
    assert str(caught.value) == (
        f"the temporary folder {tmp_path}: cannot be used (No space left on device); "
        "set TMPDIR to another"
    )
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("loopnest-")] == []


def slow_compiler(folder: Path) -> str:
    """A compiler that goes on for ever, in a process of its own whose number it tells."""
    return program(
        folder / "slow",
        f'case "$*" in *--version*) echo "slow 1.0";; *) sh -c "echo \\$\\$ > {folder}/pid; '
        'sleep 300";; esac',
    )


def has_ended(folder: Path) -> bool:
    """Whether the slow compiler's process is gone, or lingers as a zombie.

    A signal that was sent is delivered when the machine gets to it, so this waits a while.
    """
    number = (folder / "pid").read_text().strip()
    for _ in range(100):
        done = subprocess.run(["ps", "-o", "stat=", "-p", number], capture_output=True, text=True)
        if done.stdout.strip()[:1] in ("", "Z"):
            return True
        time.sleep(0.1)
    return False


needs_ps = pytest.mark.skipif(shutil.which("ps") is None, reason="no ps")


@needs_ps
def test_a_compiler_that_takes_too_long(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = slow_compiler(tmp_path)
    monkeypatch.setenv("LOOPNEST_COMPILE_SECONDS", "1")
    source = "int first(\n    int x)\n{\n}\nint second(\n    int x)\n{\n}\n"
    with pytest.raises(CompileError) as caught:
        c_compiler._build(Compiler((slow,), "slow 1.0"), ("-O2",), source)
    assert str(caught.value) == (
        f"first, second (8 lines of C, -O2): {slow} (slow 1.0) did not end within 1 seconds; "
        "set LOOPNEST_COMPILE_SECONDS to more, or to 0 for no limit; or use a smaller optimize="
    )
    assert has_ended(tmp_path)


@pytest.mark.parametrize("limit", ["-1", "nan", "inf", "soon"])
def test_a_time_limit_that_is_none(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPNEST_COMPILE_SECONDS", limit)
    with pytest.raises(CompileError) as caught:
        c_compiler.time_limit()
    assert str(caught.value) == (
        f"LOOPNEST_COMPILE_SECONDS={limit}: the time limit of the C compiler is no number of "
        "seconds; set it to one, or to 0 for no limit"
    )


def test_no_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPNEST_COMPILE_SECONDS", "0")
    assert c_compiler.time_limit() is None
    monkeypatch.delenv("LOOPNEST_COMPILE_SECONDS")
    assert c_compiler.time_limit() == 600


@needs_ps
def test_an_interrupt_ends_the_compiler(folder: Path, tmp_path: Path) -> None:
    """Nothing is left: no process, no temporary files, no half entry."""
    temporary = tmp_path / "temporary"
    temporary.mkdir(mode=0o700)
    script = f"from loopnest.backends.cpu.c_compiler import compile_c; compile_c({SOURCE!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "CC": slow_compiler(tmp_path), "TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert has_ended(tmp_path)
    assert list(temporary.iterdir()) == []
    kept = [p.name for p in folder.rglob("*") if p.is_file() and p.suffix != ".lock"]
    assert kept == []


def test_an_interrupt_while_the_compiler_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is there already, and is ended though nobody has its number yet."""
    started: list[subprocess.Popen[str]] = []

    class Interrupted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **keywords: Any) -> None:
            super().__init__(*args, **keywords)
            started.append(self)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            c_compiler.run(("sleep", "300"))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert started[0].wait(10) == -signal.SIGKILL
    finally:
        signal.signal(signal.SIGINT, before)
        started[0].kill()


def test_who_waits_for_an_interrupted_compilation_takes_it_over() -> None:
    once = c_compiler._Once()
    library = object()
    begun, go = threading.Event(), threading.Event()

    def interrupted() -> NoReturn:
        begun.set()
        go.wait()
        raise KeyboardInterrupt

    def first() -> None:
        with pytest.raises(KeyboardInterrupt):
            once.get("key", interrupted)

    with ThreadPoolExecutor(2) as pool:
        interrupted_one = pool.submit(first)
        begun.wait()
        waiting = pool.submit(once.get, "key", lambda: library)  # type: ignore[arg-type, return-value]
        go.set()
        interrupted_one.result()
        assert waiting.result() is library


@needs_compiler
def test_missing_openmp_is_told_once(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    serial = program(
        tmp_path / "serial",
        f'for a in "$@"; do [ "$a" = -fopenmp ] && exit 1; done\nexec {compiler().command[0]} "$@"',
    )
    monkeypatch.setenv("CC", serial)
    values = (ctypes.c_long * 5)(1, 2, 3, 4, 5)
    with caplog.at_level(logging.WARNING, "loopnest"):
        total = compile_c(PARALLEL).function(
            "total", [ctypes.c_void_p, ctypes.c_long], ctypes.c_long
        )
        assert total(values, 5) == 15
        compile_c(SOURCE)
        compile_c(SOURCE, openmp=False)
    assert caplog.messages == [
        f"kernels on target 'c' run on one thread: {serial} ({compiler().version}) builds no "
        "OpenMP code (gcc brings libgomp along; clang needs the package libomp-dev)"
    ]


@needs_compiler
def test_openmp_off_is_silent(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "loopnest"):
        compile_c(PARALLEL, openmp=False)
    assert caplog.messages == []


@needs_compiler
def test_library_that_does_not_load(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer()  # the probe is done
    monkeypatch.setattr(c_compiler, "_build", lambda *_: b"not a library")
    with pytest.raises(CompileError) as caught:
        compile_c("int other;\n")
    assert re.fullmatch(
        r"kernel\.c: the compiled library does not load \(.+/kernel\.so: .+\); where the file "
        r"system allows no execution, set TMPDIR to a folder on another",
        str(caught.value),
    )
