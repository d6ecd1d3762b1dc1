"""Forks: a child runs kernels, whatever the threads of its parent were at."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from loopnest.backends.cpu.c_compiler import find_compiler

pytestmark = [
    pytest.mark.skipif(find_compiler() is None, reason="no C compiler"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork"),
]

PRELUDE = """
import ctypes, multiprocessing, os, sys, threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
import numpy as np
import loopnest as ln

with ln.Fusion("row_sum") as f:
    x = f.input("x", ("N", "M"), ln.float32)
    y = ln.sum(x, axis=1)
    f.output(y, "y")
y.parallelize({0: ln.ParallelType.cpu_parallel})
fn = ln.compile(f, target="c", **OPTIONS)
a = np.ones((1000, 100), np.float32)


def right(factor=1):
    return bool((fn(factor * a) == 100 * factor).all())


def threads():
    return len(os.listdir("/proc/self/task"))


def in_child(work, fork=os.fork):
    read, write = os.pipe()
    child = fork()
    if not child:
        os.write(write, repr(work()).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text
"""

HAS_OPENMP = """
from loopnest.backends.cpu.c_compiler import _OPENMP, _features, find_compiler
print(_features(find_compiler()).threads == _OPENMP[0] and os.path.isdir("/proc/self/task"))
"""


def run(script: str, options: str = "{}", seconds: float = 120) -> list[str]:
    """Run a script in a new process, by teams of four threads, and return the lines it prints."""
    text = f"OPTIONS = {options}\n" + PRELUDE + textwrap.dedent(script)
    # The fork of a process with threads, which NumPy has too, is warned of since Python 3.12.
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", text],
        env={**os.environ, "OMP_NUM_THREADS": "4", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def teams() -> int:
    """How many threads a process has that ran a kernel."""
    return 4 if run(HAS_OPENMP) == ["True"] else 1


@pytest.mark.parametrize("options", ["{}", "{'threads': 3}"])
def test_a_fork_after_a_parallel_region(options: str, teams: int) -> None:
    script = """
    print(right(), in_child(lambda: (right(), threads())))
    print(right(), in_child(lambda: (right(), in_child(lambda: (right(), threads())))))
    print(right(), threads())
    """
    least = min(teams, 3) if "threads" in options else teams
    assert run(script, options) == [
        f"True (True, {least})",
        f"True (True, '(True, {least})')",
        f"True {least}",
    ]


def test_a_fork_before_any_region(teams: int) -> None:
    script = "print(in_child(lambda: (right(), threads())), right(), threads())"
    assert run(script) == [f"(True, {teams}) True {teams}"]


def test_a_fork_that_python_does_not_see(teams: int) -> None:
    """The child, and its own children, do without threads."""
    script = """
    raw = ctypes.CDLL(None).fork
    print(right(), in_child(lambda: (right(2), in_child(right), threads()), raw), right())
    """
    assert run(script) == ["True (True, 'True', 1) True"]


def test_a_runtime_that_cannot_pause_its_threads() -> None:
    script = """
    from dataclasses import replace
    from loopnest.backends.cpu import openmp
    lost = bool(openmp._runtimes)
    openmp._runtimes = {place: replace(r, pause=None) for place, r in openmp._runtimes.items()}
    print(right(), in_child(lambda: (right(2), threads() == 1 or not lost)), right())
    """
    assert run(script) == ["True (True, True) True"]


@pytest.mark.parametrize(
    "pool",
    [
        "multiprocessing.get_context('fork').Pool(2)",
        "ProcessPoolExecutor(2, multiprocessing.get_context('fork'))",
    ],
)
def test_a_pool_of_forked_processes(pool: str) -> None:
    script = f"""
    print(right())
    with {pool} as pool:
        print(list(pool.map(right, range(8))))
    print(right())
    """
    assert run(script) == ["True", str([True] * 8), "True"]


def test_threads_that_call_at_once_and_a_fork_meanwhile() -> None:
    script = """
    stop = threading.Event()

    def busy():
        while not stop.is_set():
            assert right(3)

    workers = [threading.Thread(target=busy) for _ in range(3)]
    for worker in workers:
        worker.start()
    with ThreadPoolExecutor(4) as pool:
        print(all(pool.map(right, range(64))))
    answers = [in_child(right) for _ in range(5)]
    stop.set()
    for worker in workers:
        worker.join()
    print(*answers, right())
    """
    assert run(script) == ["True", "True True True True True True"]


def test_a_fork_while_another_thread_compiles() -> None:
    """The child compiles for itself: nobody will finish what the thread was at."""
    script = """
    from loopnest.backends.cpu import c_compiler
    original, inside = c_compiler._build, threading.Event()
    source = "int unlike_any_other_%d;" % os.getpid()

    def build(*arguments):
        inside.set()
        stop.wait()
        return original(*arguments)

    stop = threading.Event()
    c_compiler._build = build
    worker = threading.Thread(target=c_compiler.compile_c, args=(source,))
    worker.start()
    inside.wait()

    def alone():
        c_compiler._build = original
        c_compiler.DiskCache.lock = lambda self, key: open(os.devnull)
        return c_compiler.compile_c(source).source == source

    print(in_child(alone))
    stop.set()
    worker.join()
    """
    assert run(script) == ["True"]
